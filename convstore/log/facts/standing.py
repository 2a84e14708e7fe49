"""Record which variant of a turn is active at its place in the log.

A place is named by the turn that stood there first. Each entry that changes the variant shown there records it, with
the variant that left. So two look-ups answer all readers: the variant shown there, and the last entry that took a
variant away. The log as of the entry before that is the one to which the variant comes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from convstore.log.entry import Entry
from convstore.log.facts.branch import BRANCH
from convstore.log.facts.event import EVENT
from convstore.log.facts.kind import FactKind, Key, LogCopy, digest_key

_MAX_UNFINISHED = 20


class ShownVariant(NamedTuple):
    """A variant that was finished, or shown.

    Attributes:
        turn: Id of its question; that of the question that stands alone, if no variant is shown; "" without one.
        variant: Its id, "" for none.
        number: Its number at its place, from 1, in the order in which they were finished; 0 for none.
    """

    turn: str = ""
    variant: str = ""
    number: int = 0


NOTHING = ShownVariant()


class Standing(NamedTuple):
    """Variant that is active at a place as of an entry that changed it, or that began a variant there.

    Attributes:
        place: Id of the turn that stood there first.
        shown: The variant that is shown there.
        left: The variant that the entry took away; `NOTHING` if it changed nothing.
        variants: Number of variants of the place.
        unfinished: Ids of the newest variants that were begun there and never shown, oldest first.
        began: When the variant that the entry finished began, as ISO 8601; else "".
    """

    place: str
    shown: ShownVariant
    left: ShownVariant = NOTHING
    variants: int = 1
    unfinished: tuple[str, ...] = ()
    began: str = ""

    def begun(self, variant: str) -> Standing:
        """Return it after a variant was begun, which is not shown yet."""
        unfinished = (*self.unfinished, variant)[-_MAX_UNFINISHED:]
        return self._replace(left=NOTHING, unfinished=unfinished, began="")

    def finished(self, turn: str, variant: str, *, began: str) -> Standing:
        """Return it after a variant was finished, which is shown from now on."""
        number = self.variants + 1
        unfinished = tuple(id_ for id_ in self.unfinished if id_ != variant)
        new = ShownVariant(turn, variant, number)
        return Standing(self.place, new, self.shown, number, unfinished, began)

    def changed(self, shown: ShownVariant) -> Standing:
        """Return it after something else was shown that stood there before."""
        return self._replace(shown=shown, left=self.shown, began="")


def first_standing(place: str) -> Standing:
    """Return the variant shown at a place at which nothing has changed yet.

    >>> first_standing("q1").finished("q1", "click", began="").changed(ShownVariant("q1", "q1", 1)).left.number
    2
    """
    return Standing(place, ShownVariant(place, place, 1))


def at_place(place: str) -> bytes:
    """Return the key of the entries that changed a place."""
    return digest_key("place", place)


def left_place(place: str, variant: str) -> bytes:
    """Return the key by which the entries are found that took a variant away."""
    return digest_key("left", place, variant)


def numbered(place: str, number: int) -> bytes:
    """Return the key by which the entry is found that finished a variant; the first variant has no such entry."""
    return digest_key("number", place, number)


def finishes_variant(entry: Entry) -> bool:
    """Return True for the entry that first shows a variant."""
    event = EVENT.of(entry)
    standing = STANDING.of(entry)
    if event is None or standing is None or BRANCH.of(entry) is not None:
        return False
    return bool(event.variant) and event.variant == standing.shown.variant


def branched_after(entry: Entry, without: int) -> int:
    """Return `Totals.branched` of an entry that changes which messages are active; `without` if nothing is unfinished.

    Nothing is if it shows no turn at a place, or a turn at a place at which every variant that was begun was shown.
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
        """Return what its fields say."""
        place, shown, left, variants, unfinished, began = archived
        here = ShownVariant(*shown)
        return Standing(place, here, ShownVariant(*left), variants, tuple(unfinished), began)

    def keys(self, value: Standing, entry: Entry) -> Iterable[Key]:
        """Return the keys of its place, of the variant that left it, and of the one that the entry finished."""
        place = value.place
        shown = value.shown
        left = value.left
        keys = [at_place(place)]
        if left.variant and left.variant != shown.variant:
            keys.append(left_place(place, left.variant))
        if finishes_variant(entry):
            keys.append(numbered(place, shown.number))
        return keys

    def moved(self, value: Standing, entry: Entry, copy: LogCopy) -> Standing | None:
        """Return it with the variant that it takes away in the copy, which is the one shown there.

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
