"""The totals that a hidden variant continues; see `log.branch`.

An entry of a variant that is not active yet hides its messages. Its own totals are those of the log without it; this
fact has the totals of the log with it.
"""

from __future__ import annotations

from typing import Any

from convstore.log.entry import Entry, Totals
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.facts.kind import FactKind


class BranchKind(FactKind[Totals]):
    """The totals that entries of hidden variants continue."""

    name = "branch"
    shape = Totals
    is_loaded = True
    is_forked = False  # a fork has no hidden variant
    is_copied = False

    def encode(self, value: Totals, entry: Entry) -> Any:
        """Return them as they are."""
        return value

    def decode(self, stored: Any, number: int) -> Totals:
        """Return the totals that `encode` was given."""
        totals: Totals = stored
        return totals


BRANCH = BranchKind()


def shown_event(entry: Entry) -> TurnEvent | None:
    """Return what an entry records of a turn as views show it; of a hidden variant only what is said of its calls.

    The variant may be shown by now. If it is not, no view has these calls.
    """
    event = EVENT.of(entry)
    is_hidden = event is not None and not event.is_of_call and BRANCH.of(entry) is not None
    return None if is_hidden else event


def own_totals(entry: Entry) -> Totals:
    """Return the totals that the entry after it continues, in its variant if it is of a hidden one."""
    return BRANCH.of(entry) or entry.totals
