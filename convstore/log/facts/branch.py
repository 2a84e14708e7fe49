"""The totals that a hidden variant continues; see `log.branch`.

An entry of a variant that is not active yet hides its messages. The entry's totals are those of the log without the
variant; this fact has the totals of the log with the variant.
"""

from __future__ import annotations

from typing import Any

from convstore.log.entry import Entry, Totals
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.facts.kind import FactKind


class BranchKind(FactKind[Totals]):
    """Kind of fact: the totals that entries of hidden variants continue."""

    name = "branch"
    shape = Totals
    is_loaded = True
    is_forked = False  # a fork has no hidden variant
    is_copied = False

    def encode(self, value: Totals, entry: Entry) -> Any:
        """Return the totals unchanged; storage encodes them."""
        return value

    def decode(self, stored: Any, number: int) -> Totals:
        """Return the totals unchanged."""
        totals: Totals = stored
        return totals


BRANCH = BranchKind()


def shown_event(entry: Entry) -> TurnEvent | None:
    """Return the event of an entry as views show it; of a hidden variant only events of calls.

    Those stay visible because a later entry may have made the variant active. If none did, no view has these calls.
    """
    event = EVENT.of(entry)
    is_hidden = event is not None and not event.is_of_call and BRANCH.of(entry) is not None
    return None if is_hidden else event


def own_totals(entry: Entry) -> Totals:
    """Return the totals that the next entry continues; for an entry of a hidden variant, the next of that variant."""
    return BRANCH.of(entry) or entry.totals
