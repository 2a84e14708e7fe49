"""One append: what the writer is asked for, the part that the log has already, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from convstore.append.batch import Batch
from convstore.log.branch import Branch
from convstore.log.entry import Entry, Totals, TurnEvent
from convstore.values.models import Receipt


class TailMoved(Exception):  # noqa: N818 - a result, caught by those who append after a tail
    """The log does not end with what an append has to follow; the argument is its last ordinal."""


@dataclass(frozen=True, slots=True)
class Request:
    """One append.

    Attributes:
        batch: Its messages.
        reserve: Number of source ids to reserve.
        for_child: They are for sources in the conversation of a sub-agent.
        turn: The id of the human message whose turn the batch belongs to; "" for no turn.
        after: The tail that the entry has to follow directly, or the last ordinal of the log; None for any.
        event: What the entry records besides the messages.
        branch: The variant that the entry belongs to, if it is not active yet.
        is_last: The entry makes this variant active.
    """

    batch: Batch
    reserve: int = 0
    for_child: bool = False
    turn: str = ""
    after: Totals | int | None = None
    event: TurnEvent | None = None
    branch: Branch | None = None
    is_last: bool = False

    def follows(self, tail: Totals) -> bool:
        """Return True if the entry may follow a tail."""
        if isinstance(self.after, Totals):
            return (self.after.entries, self.after.link) == (tail.entries, tail.link)
        return self.after is None or self.after == tail.messages

    def is_written(self, new: Batch) -> bool:
        """Return True if the log has everything, given the messages that it lacks."""
        return not new.prepared and not self.reserve and not self.event


class Written(NamedTuple):
    """The outcome of an append: its receipt, the conversation, the totals of the log including it, and its entry."""

    receipt: Receipt
    conversation: str
    totals: Totals
    entry: Entry | None


class Known(NamedTuple):
    """The part of a batch that the log has.

    Attributes:
        new: The messages that are still to be written.
        stored: Ordinals of the others, by id.
        renumbered: Old and new numbers of their sources, by message id.
    """

    new: Batch
    stored: Mapping[str, int] = {}
    renumbered: Mapping[str, dict[int, int]] = {}
