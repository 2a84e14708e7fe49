"""Check the condition on the log under which an append writes.

A condition is checked where the entry is made, after everything up to the tail was read. The entry is inserted at the
next number, so a duplicate key means that the log has moved, and that the condition is checked again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from convstore.exceptions import ConflictError
from convstore.log.branch import Branch
from convstore.log.entry import Entry, Totals


class TailMoved(Exception):  # noqa: N818 - a result, which callers catch to append again
    """The log has another tail than the condition of an append names; the argument is the log's last ordinal."""


class IdsTaken(Exception):  # noqa: N818 - a result, which callers catch to assign other ids
    """The log uses ids of the batch for other messages; the argument is the set of these ids."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on the log under which an append writes; messages that are stored already need no condition.

    Attributes:
        after: The tail that the entry has to follow directly, or the last ordinal of the log; None allows any tail.
        branch: The variant that the entry belongs to, if it is not active yet.
        known: Ids of the batch that the log may have already; None allows all of them.
        refusal: The error to raise if the batch has something new, because the turn is over as of `after`.
    """

    after: Totals | int | None = None
    branch: Branch | None = None
    known: frozenset[str] | None = None
    refusal: ConflictError | None = None

    def follows(self, tail: Totals) -> bool:
        """Return True if the entry may follow a tail."""
        if isinstance(self.after, Totals):
            return (self.after.entries, self.after.link) == (tail.entries, tail.link)
        return self.after is None or self.after == tail.messages

    def check(self, tail: Totals) -> None:
        """Raise an error if nothing may be written after a tail.

        Raises:
            TailMoved: The log has another tail than `after`.
            ConflictError: The turn is over; this is `refusal`.
        """
        if not self.follows(tail):
            raise TailMoved(tail.messages)
        if self.refusal is not None:
            raise self.refusal

    def check_ids(self, found: Collection[str], tail: Totals) -> None:
        """Raise an error if the log has ids of the batch that it should not have.

        Raises:
            TailMoved: The messages with these ids may be later than the tail that the batch was made for.
            IdsTaken: The ids belong to other messages.
        """
        if self.known is None or self.known.issuperset(found):
            return
        if not self.follows(tail):
            raise TailMoved(tail.messages)
        raise IdsTaken(frozenset(found) - self.known)

    def has_not_seen(self, entry: Entry) -> bool:
        """Return True if an entry is later than the tail that the batch was made for."""
        return isinstance(self.after, Totals) and entry.number > self.after.entries


ANYWHERE = Condition()
