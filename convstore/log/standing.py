"""What stands at a place of a log: one of the variants of a turn.

A place is named by the turn that stood there first. Each entry that changes what stands there records it, with the
variant that left, so that two look-ups tell all that a reader asks: what stands there now, and the last entry that took
a variant away. The log as of the entry before that is the one to which the variant comes back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from convstore.messages.encoding import digest_of

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
    """What stands at a place as of an entry that changed it, or that began a variant there.

    Attributes:
        place: Id of the turn that stood there first.
        shown: What stands there.
        left: What the entry took away; `NOTHING` if it changed nothing.
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
    """Return what stands at a place at which nothing has changed yet.

    >>> first_standing("q1").finished("q1", "click", began="").changed(ShownVariant("q1", "q1", 1)).left.number
    2
    """
    return Standing(place, ShownVariant(place, place, 1))


def at_place(place: str) -> bytes:
    """Return the key by which the entries are found that changed what stands at a place."""
    return _key("place", place)


def left_place(place: str, variant: str) -> bytes:
    """Return the key by which the entries are found that took a variant away."""
    return _key("left", place, variant)


def numbered(place: str, number: int) -> bytes:
    """Return the key by which the entry is found that finished a variant; the first variant has no such entry."""
    return _key("number", place, number)


def of_variant(place: str, variant: str) -> bytes:
    """Return the key by which the entries are found that a variant consists of."""
    return _key("variant", place, variant)


def keys_of(standing: Standing, *, is_new: bool) -> list[bytes]:
    """Return the keys by which an entry is found; `is_new` says that it finished the variant that stands there."""
    place = standing.place
    shown = standing.shown
    left = standing.left
    keys = [at_place(place)]
    if left.variant and left.variant != shown.variant:
        keys.append(left_place(place, left.variant))
    if is_new:
        keys.append(numbered(place, shown.number))
    return keys


def standing_text(standing: Standing) -> str:
    """Return it as JSON."""
    return json.dumps(standing._asdict(), ensure_ascii=False)


def standing_from(text: str) -> Standing:
    """Return what `standing_text` wrote; a ValueError, TypeError or KeyError if it is damaged."""
    found: Mapping[str, Any] = json.loads(text)
    shown = ShownVariant(*found["shown"])
    left = ShownVariant(*found["left"])
    return Standing(
        **{**found, "shown": shown, "left": left, "unfinished": tuple(found["unfinished"])}
    )


def _key(*parts: str | int) -> bytes:
    """Return a digest, which the ids of calls and of items, texts that are keys too, never equal."""
    return digest_of(json.dumps(parts))
