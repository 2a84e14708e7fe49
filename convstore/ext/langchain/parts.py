"""Repeat the turn of a graph whose nodes are agents: each agent gets its stored replies from the log.

The log has the replies of all agents to one question, in order. The run of the graph tracks which ones were repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.ext.langchain.results import ends_agent
from convstore.ext.run_turns import done_in_graph, is_resumed
from convstore.integration import TurnRecord
from convstore.messages.filing import added_to, ids_of, is_question, step_ids


class AgentPart(NamedTuple):
    """The messages of one agent in a turn.

    Attributes:
        messages: Its replies and their results, in order, without the human messages that nodes added.
        is_answered: True if the last one is its answer.
    """

    messages: list[BaseMessage]
    is_answered: bool


def not_done(later: Sequence[BaseMessage], state: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a turn that the run of the graph has neither made nor repeated yet.

    A run that is resumed from a checkpoint has made the messages of its state.
    """
    done = done_in_graph()
    if is_resumed():
        done |= ids_of(state)
    last = max((at for at, message in enumerate(later) if message.id in done), default=-1)
    return list(later[last + 1 :])


def next_part(rest: Sequence[BaseMessage], found: TurnRecord, *, skip: int) -> AgentPart:
    """Skip `skip` parts of the rest of a turn and return the next one; if it has an answer, mark it as repeated.

    A part ends with an answer, or with the step in which its agent ended or handed over to another agent.
    """
    answers = {item.id for item in found.fold.messages if item.is_answer}
    ends = _ends_in(rest, answers)
    bounds = [0, *ends, len(rest)]
    at = min(skip, len(ends))
    part = [each for each in rest[bounds[at] : bounds[at + 1]] if not is_question(each)]
    is_answered = bool(part) and part[-1].id in answers
    if is_answered:
        done_in_graph().update(ids_of(part))
    return AgentPart(part, is_answered)


def _ends_in(rest: Sequence[BaseMessage], answers: Collection[str]) -> list[int]:
    """Return the indexes after each answer, and after each step that ended its agent, with its tools' messages."""
    step_of = {id_: step[0] for step in step_ids(rest) for id_ in step}
    ends: dict[str, int] = {}  # by the reply that begins the step
    over = set(answers)
    for at, each in enumerate(rest):
        own = added_to(each) or str(each.id)
        step = step_of.get(own, own)
        ends[step] = at + 1
        if ends_agent(each):
            over.add(step)
    return sorted(end for step, end in ends.items() if step in over)
