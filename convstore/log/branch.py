"""A variant of a turn that is not active yet: another answer, or an edited question, that is still in progress.

The log stays linear. Each entry of the variant hides its own messages from all readers, and stores the totals of the
log as if the variant were active. The entry that finishes the variant makes it active; all messages that were active
after its place are hidden.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from convstore.log.entry import Entry, Totals
from convstore.log.facts.branch import BRANCH, own_totals
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.facts.rewound import RewoundRange
from convstore.log.facts.standing import STANDING, Standing, first_standing
from convstore.log.rewind import Ranges, Rewinds, changed, continued, joined
from convstore.messages.encoding import digest_of


class Branch(NamedTuple):
    """A variant that is not active yet.

    Attributes:
        event: The event that its entries record: the turn, the first turn at its place, and its id.
        place: Ordinal of the last message before it, 0 at the beginning.
        entry: First entry that contains only messages after the place.
        kept: The rewound ranges before the place.
        totals: Totals of its last entry, as if it were active.
        own: The ranges of its messages.
        is_ending: True if its next entry is the last one, see `ending_with`.
        has_something: True if it has a message to show. Then the next entry is the last one if it ends the turn.
        standing: The variant shown at its place as of the end of the log; None if the variant is only read.
        began: When it began, as ISO 8601.
    """

    event: TurnEvent
    place: int
    entry: int
    kept: Ranges
    totals: Totals
    own: Ranges = ()
    is_ending: bool = False
    has_something: bool = False
    standing: Standing | None = None
    began: str = ""

    @property
    def key(self) -> str:
        """Return the key from which the ids of its messages derive."""
        turn = self.event.turn
        variant = self.event.variant
        return turn if variant == turn else digest_of(json.dumps([turn, variant])).hex()

    @property
    def begin(self) -> TurnEvent:
        """Return the event that its first entry records."""
        return self.event._replace(kind="begin", values=json.dumps([self.place, self.entry]))

    @property
    def rewound(self) -> Ranges:
        """Return the ranges that are rewound if it is active, as of its last entry."""
        ranges = self.kept
        first = self.place + 1
        entry = self.entry
        for range_ in self.own:
            ranges = joined(ranges, RewoundRange(first, range_.first - 1, entry, range_.entry - 1))
            first = range_.last + 1
            entry = range_.until + 1
        return joined(ranges, RewoundRange(first, self.totals.messages, entry, self.totals.entries))

    def active(self, log: Rewinds) -> Rewinds:
        """Return the active messages of a log as if it were active."""
        return Rewinds(log.entry, self.rewound)

    def fits(self, active: Rewinds) -> bool:
        """Return True if the same messages before its place are active as when it began."""
        return active.gaps(self.place) == tuple((range_.first, range_.last) for range_ in self.kept)

    def records(self, event: TurnEvent | None) -> TurnEvent:
        """Return an event of its turn in the form that its entries record."""
        own = self.event
        return (
            own if event is None else event._replace(first_turn=own.first_turn, variant=own.variant)
        )

    def after(self, entry: Entry) -> Branch:
        """Return the variant with one more entry."""
        messages = RewoundRange(entry.first, entry.last, entry.number, entry.number)
        return self._replace(own=joined(self.own, messages), totals=own_totals(entry))

    def tail(self, log: Totals) -> Totals:
        """Return the totals that its next entry continues, given the totals of the log."""
        return continued(log, self.totals)

    def ending_with(self, made: Entry) -> Branch:
        """Return the variant with `is_ending` for its next entry, given that entry as composed after `tail`."""
        is_ending = self.has_something and bool(made.totals.over)
        return self._replace(is_ending=self.is_ending or is_ending)

    def entry_of(self, made: Entry, log: Totals, rewinds: Rewinds) -> Entry:
        """Return the entry to append, given the entry composed after `tail`, and the log's totals and active messages.

        The last entry makes the variant active; any other entry hides its messages.
        """
        number = made.number
        event = self.event
        here = self.standing or first_standing(self.event.first_turn)
        if self.is_ending:
            branched = made.totals.turn if self._is_after_others(log) else 0
            made = replace(made, totals=replace(made.totals, branched=branched))
            shown = STANDING.of(made) or here.finished(event.turn, event.variant, began=self.began)
            made = STANDING.on(made, shown)
            return changed(made, rewinds, self.after(made).rewound, point=made.totals, undo=number)
        recorded = EVENT.of(made)
        if recorded and recorded.kind == "begin":
            made = STANDING.on(made, here.begun(event.variant))
        else:  # as the log had it when the variant began
            made = replace(made, totals=replace(made.totals, branched=self.totals.branched))
        hidden = BRANCH.on(made, made.totals)
        is_newest = here.unfinished[-1:] == (event.variant,)
        is_over = made.totals.is_ended and is_newest and not self._is_after_others(log)
        totals = replace(continued(made.totals, log), branched=0 if is_over else log.turn)
        hidden = replace(hidden, totals=totals)
        if not made.messages:
            return hidden
        ranges = joined(rewinds.ranges, RewoundRange(made.first, made.last, number, number))
        return changed(hidden, rewinds, ranges, point=log, undo=rewinds.undo)

    def _is_after_others(self, log: Totals) -> bool:
        """Return True if another unfinished variant may have begun before this one, perhaps at another place."""
        return 0 < log.turn <= self.totals.branched


def branch_of(entries: Sequence[Entry], kept: Rewinds) -> Branch:
    """Return a variant from its entries, in order, and the active messages before the first of them."""
    begin, *later = entries
    event = EVENT.of(begin) or TurnEvent("", "")
    place, entry = json.loads(event.values)
    base = event._replace(kind="append", values="")
    totals = own_totals(begin)
    began = begin.at.isoformat()
    branch = Branch(base, place, entry, kept.through(place), totals, began=began)
    for following in later:
        branch = branch.after(following)
    return branch
