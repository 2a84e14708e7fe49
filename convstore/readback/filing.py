"""Find the messages in the midst of a turn that answer an earlier question, and give them to its turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from convstore.log.rows import Row
from convstore.messages.filing import LINK, Filing, turn_of
from convstore.messages.tool_calls import result_id, result_ids
from convstore.runtime.active_log import active_questions
from convstore.runtime.log_reader import LogReader, Snapshot

AHEAD = 1_000
"""Number of messages after the end of a turn among which its answer is looked for."""


class Stray(NamedTuple):
    """A message that answers an earlier question: its id; "" for the result of a call that was not read yet."""

    row: Row
    question: str


class Filer:
    """Files the messages of one log."""

    def __init__(self, reader: LogReader, log: Snapshot) -> None:
        self._reader, self._log = reader, log

    async def split(self, turn: Sequence[Row]) -> tuple[list[Row], list[Stray]]:
        """Return the messages from a human message to the next one: those of its turn, and those of earlier turns.

        Nothing is decoded unless a message may be of an earlier turn.
        """
        begins, late = turn[0].message, _late_results(turn)
        if not late and not any(_names_another(row, begins.id) for row in turn):
            return list(turn), []
        messages = [self._reader.stubbed(row.message) for row in turn]
        filing = Filing(turn_of(messages[0]) or begins.id, late)
        owners = [filing.owner(message) or "" for message in messages]
        known = await active_questions(self._reader, self._log, {*owners} - {"", begins.id})
        earlier = {"", *(id_ for id_, ordinal in known.items() if ordinal < begins.ordinal)}
        before = owners[0] if owners[0] in earlier else begins.id  # a message of a tool begins no turn
        filed = [(row, owner if owner in earlier else before) for row, owner in zip(turn, owners, strict=True)]
        strays = [Stray(row, owner) for row, owner in filed if owner != begins.id]
        return [row for row, owner in filed if owner == begins.id], strays

    def takes(self, turn: Sequence[Row], stray: Stray) -> bool:
        """Return True if a message belongs to a turn that is not over yet."""
        last = turn[-1].message.ordinal
        if is_over(turn) or not last < stray.row.message.ordinal <= last + AHEAD:
            return False
        if stray.question:
            return stray.question == turn[0].message.id
        called = [self._reader.stubbed(row.message) for row in turn if row.message.calls]
        return any(stray.row.message.id in result_ids(message) for message in called)


def is_over(turn: Sequence[Row]) -> bool:
    """Return True if a turn has its answer, and results for all its calls."""
    said = [row.message for row in turn if row.message.type == "ai"]
    results = sum(row.message.type == "tool" for row in turn)
    return bool(said) and said[-1].is_answer and results >= sum(len(message.calls) for message in said)


def _names_another(row: Row, question: str) -> bool:
    """Return True if a message may name another question than this one; its fields are not decoded."""
    message = row.message
    if message.type == "tool" or f'"{LINK}"' not in message.body:
        return False
    return message.id == question or f'"{question}"' not in message.body


def _late_results(turn: Sequence[Row]) -> set[str]:
    """Return the ids of the results in a turn whose calls were open before it."""
    open_ = {call.result for call in turn[0].entry.totals.calls} - {""}
    results = [row.message for row in turn if open_ and row.message.type == "tool" and row.message.id in open_]
    callers = [row.message for row in turn if row.message.calls] if results else []
    return {
        result.id
        for result in results
        if not any(result_id(ai.id, result.call, at) == result.id for ai in callers for at in range(len(ai.calls)))
    }
