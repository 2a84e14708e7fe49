"""Repeat the turn of a graph whose nodes are agents: each gets the answer that was given in its place.

The log has what all agents said for one question, in order. The run of the graph knows how far it has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.ext.langchain.results import ends_agent
from convstore.ext.run_turns import done_in_graph, is_resumed
from convstore.integration import TurnRecord
from convstore.messages.filing import ids_of, is_question


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

    A part ends with an answer, or with a result with which its agent ended or handed over to another one.
    """
    ends = _ends_in(rest, found)
    bounds = [0, *ends, len(rest)]
    at = min(skip, len(ends))
    part = [each for each in rest[bounds[at] : bounds[at + 1]] if not is_question(each)]
    is_answered = skip < len(ends) and not ends_agent(part[-1])
    if is_answered:
        done_in_graph().update(ids_of(part))
    return Part(part, is_answered)


def _ends_in(rest: Sequence[BaseMessage], found: TurnRecord) -> list[int]:
    """Return the indexes after each message with which a part ends."""
    answers = {item.id for item in found.fold.messages if item.is_answer}
    return [at + 1 for at, each in enumerate(rest) if each.id in answers or ends_agent(each)]
