"""Record which variant of a turn is active at its place in the log.

A place is identified by the first turn there. Each entry that changes the variant shown at a place records the new and
the previous variant. So readers need two look-ups: the last entry that changed the place, and the last entry that hid a
certain variant. Activating that variant restores the log as of the entry before the latter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from convstore.log.entry import Entry
from convstore.log.facts.branch import BRANCH
from convstore.log.facts.event import EVENT
from convstore.log.facts.kind import CopyPositions, FactKind, Key, digest_key

_MAX_UNFINISHED = 20


class ShownVariant(NamedTuple):
    """A finished variant, or the question that is shown at a place without an answer.

    Attributes:
        turn: Id of the question; "" if no question is shown.
        variant: Id of the variant; "" if the question is shown alone.
        number: Number of the variant at its place, from 1, in the order of finishing; 0 if the question is alone.
    """

    turn: str = ""
    variant: str = ""
    number: int = 0


NOTHING = ShownVariant()


class Standing(NamedTuple):
    """The variants of a place, as of an entry that changed the variant shown there or began a variant.

    Attributes:
        place: Id of the first turn there.
        shown: The variant that is shown.
        left: The variant that the entry hid; `NOTHING` if it did not change the variant shown.
        variants: Number of variants of the place.
        unfinished: Ids of the newest variants that began there and were never shown, oldest first.
        began: When the variant that the entry finished began, as ISO 8601; else "".
    """

    place: str
    shown: ShownVariant
    left: ShownVariant = NOTHING
    variants: int = 1
    unfinished: tuple[str, ...] = ()
    began: str = ""

    def begun(self, variant: str) -> Standing:
        """Return the state after a variant began, which is not shown yet."""
        unfinished = (*self.unfinished, variant)[-_MAX_UNFINISHED:]
        return self._replace(left=NOTHING, unfinished=unfinished, began="")

    def finished(self, turn: str, variant: str, *, began: str) -> Standing:
        """Return the state after a variant was finished, which is shown from now on."""
        number = self.variants + 1
        unfinished = tuple(id_ for id_ in self.unfinished if id_ != variant)
        new = ShownVariant(turn, variant, number)
        return Standing(self.place, new, self.shown, number, unfinished, began)

    def changed(self, shown: ShownVariant) -> Standing:
        """Return the state after an earlier variant or question became the one shown."""
        return self._replace(shown=shown, left=self.shown, began="")


def first_standing(place: str) -> Standing:
    """Return the state of a place before its first change: the turn itself is the only variant.

    >>> first_standing("q1").finished("q1", "click", began="").changed(ShownVariant("q1", "q1", 1)).left.number
    2
    """
    return Standing(place, ShownVariant(place, place, 1))


def key_of_place(place: str) -> bytes:
    """Return the key of the entries with a `Standing` of a place."""
    return digest_key("place", place)


def key_of_hidden_variant(place: str, variant: str) -> bytes:
    """Return the key of the entries that hid a variant."""
    return digest_key("left", place, variant)


def key_of_number(place: str, number: int) -> bytes:
    """Return the key of the entry that finished the variant with a number; the first variant has no such entry."""
    return digest_key("number", place, number)


def finishes_variant(entry: Entry) -> bool:
    """Return True for the entry that first shows a variant."""
    event = EVENT.of(entry)
    standing = STANDING.of(entry)
    if event is None or standing is None or BRANCH.of(entry) is not None:
        return False
    return bool(event.variant) and event.variant == standing.shown.variant


def branched_after(entry: Entry, without: int) -> int:
    """Return `Totals.branched` for an entry that changes the active messages; `without` if no variant is unfinished.

    A variant is unfinished if the entry shows a turn at a place where a variant began that was never shown.
    """
    standing = STANDING.of(entry)
    if standing and standing.shown.turn and standing.unfinished:
        return entry.totals.turn
    return without


class StandingKind(FactKind[Standing]):
    """Kind of fact: the variants that are active at places."""

    name = "standing"
    is_loaded = True
    is_forked = False  # `append.forker` finds the variant that is shown there in the fork

    def restored(self, archived: Any) -> Standing:
        """Return the value with these fields."""
        place, shown, left, variants, unfinished, began = archived
        here = ShownVariant(*shown)
        return Standing(place, here, ShownVariant(*left), variants, tuple(unfinished), began)

    def keys(self, value: Standing, entry: Entry) -> Iterable[Key]:
        """Return the keys of its place, of the variant that was hidden, and of the variant that the entry finished."""
        place = value.place
        shown = value.shown
        left = value.left
        keys = [key_of_place(place)]
        if left.variant and left.variant != shown.variant:
            keys.append(key_of_hidden_variant(place, left.variant))
        if finishes_variant(entry):
            keys.append(key_of_number(place, shown.number))
        return keys

    def moved(self, value: Standing, entry: Entry, copy: CopyPositions) -> Standing | None:
        """Return the value with the variant that the copy shows as the one that it hides.

        An earlier entry that changed the place may be lost.
        """
        known: Standing = copy.standings.get(value.place) or first_standing(value.place)
        here = known.shown
        left = value.left
        standing = value
        if finishes_variant(entry) and value.variants <= known.variants:  # its number is taken
            number = known.variants + 1
            shown = value.shown._replace(number=number)
            standing = value._replace(shown=shown, variants=number)
        standing = standing._replace(variants=max(known.variants, standing.variants))
        event = EVENT.of(entry)
        if event and event.kind == "begin":
            return standing._replace(shown=here)
        is_answered_since = not here.variant and left.turn == left.variant == here.turn
        return standing if is_answered_since else standing._replace(left=here)


STANDING = StandingKind()
