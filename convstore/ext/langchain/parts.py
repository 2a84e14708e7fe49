"""Repeat the turn of a graph whose nodes are agents: each gets the answer that was given in its place.

The log has what all agents said for one question, in order. The run of the graph knows how far it has come.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.ext.langchain.results import ends_agent
from convstore.ext.run_turns import done_in_graph, is_resumed
from convstore.integration import TurnRecord
from convstore.messages.filing import came_with, ids_of, is_question, steps_of


class Part(NamedTuple):
    """What one agent did in a turn.

    Attributes:
        messages: Its replies and their results, in order, without what nodes said as a user.
        is_answered: True if the last one is its answer.
    """

    messages: list[BaseMessage]
    is_answered: bool


def not_done(later: Sequence[BaseMessage], state: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return those messages of a turn that the run of the graph has neither made nor repeated yet.

    A run that goes on from a checkpoint has made what its state has.
    """
    done = done_in_graph()
    if is_resumed():
        done |= ids_of(state)
    last = max((at for at, message in enumerate(later) if message.id in done), default=-1)
    return list(later[last + 1 :])


def next_part(rest: Sequence[BaseMessage], found: TurnRecord, *, skip: int) -> Part:
    """Return the next part of the rest of a turn, after as many as are passed over; an answer counts as repeated.

    A part ends with an answer, or with the step in which its agent ended or handed over to another one.
    """
    answers = {item.id for item in found.fold.messages if item.is_answer}
    ends = _ends_in(rest, answers)
    bounds = [0, *ends, len(rest)]
    at = min(skip, len(ends))
    part = [each for each in rest[bounds[at] : bounds[at + 1]] if not is_question(each)]
    is_answered = bool(part) and part[-1].id in answers
    if is_answered:
        done_in_graph().update(ids_of(part))
    return Part(part, is_answered)


def _ends_in(rest: Sequence[BaseMessage], answers: Collection[str]) -> list[int]:
    """Return the indexes after each answer, and after each step that ended its agent, with all that its tools said."""
    step_of = {id_: step[0] for step in steps_of(rest) for id_ in step}
    ends = dict[str, int]()  # by the reply that begins the step
    over = set(answers)
    for at, each in enumerate(rest):
        own = came_with(each) or str(each.id)
        step = step_of.get(own, own)
        ends[step] = at + 1
        if ends_agent(each):
            over.add(step)
    return sorted(end for step, end in ends.items() if step in over)
