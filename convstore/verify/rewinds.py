"""Counts what is live behind each marker, to compare with the totals that the marker says.

Layer 4. What all entries hold is summed on the way; what was rewound is read once more, each part of it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from convstore.log.entry import Entry, RewoundRange
from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import entry_id

__all__ = ["Live"]

_Sums = tuple[int, int, int, int, int]
_NOTHING: _Sums = (0, 0, 0, 0, 0)
_NAMES = ("live", "turns", "results", "tokens", "view_tokens")


@dataclass(slots=True)
class Live:
    """Sums over the log of one conversation: messages, human ones, tool results, tokens, tokens of the view.

    Attributes:
        conversation: Its id.
        inspection: Reads what was rewound.
    """

    conversation: str
    inspection: Inspection
    _all: _Sums | None = _NOTHING
    _counters: set[str] = field(default_factory=set)
    _gone: dict[int, tuple[RewoundRange, _Sums]] = field(default_factory=dict)
    _live: _Sums | None = None
    _wrong_gaps: list[RewoundRange] = field(default_factory=list)

    def lose(self) -> None:
        """An entry cannot be read, so the sums are not known any more."""
        self._all = None

    async def add(self, entry: Entry) -> None:
        """Take an entry in; of a marker, count what is live behind it."""
        self._live, self._wrong_gaps = None, []
        if self._all is None:
            return
        for message in entry.messages:
            one = (1, message.type == "human", message.type == "tool", message.tokens, message.view_tokens)
            self._all = _plus(self._all, one)
        if entry.messages:
            self._counters.add(entry.totals.counter)
        if entry.totals.marker == entry.number:
            live = self._all
            for gap in entry.gaps:
                live = _plus(live, await self._of_gap(gap, entry.number), sign=-1)
            self._live = live

    def problems(self, entry: Entry) -> list[str]:
        """What a marker that was just taken in says wrongly."""
        found = [f"messages {gap.first} to {gap.last} are not in the entries that it says" for gap in self._wrong_gaps]
        if self._live is None:
            return found
        # Sizes by different counters have no sum.
        names = _NAMES if len(self._counters) <= 1 else _NAMES[:3]
        said = [getattr(entry.totals, name) for name in names]
        wrong = [name for name, one, other in zip(names, said, self._live, strict=False) if one != other]
        return [*found, f"what is live is counted wrongly: {', '.join(wrong)}"] if wrong else found

    async def _of_gap(self, gap: RewoundRange, number: int) -> _Sums:
        """The sums over what was rewound, as far as they are not known from an earlier marker."""
        known, sums = self._gone.get(gap.first, (None, _NOTHING))
        if known == gap:
            return sums
        is_longer = (
            known is not None and known.entry == gap.entry and known.last <= gap.last and known.until <= gap.until
        )
        start, after = (known.until, known.last) if known and is_longer else (gap.entry - 2, gap.first - 1)
        if not is_longer:
            sums = _NOTHING
        is_right = gap.until <= number
        key, end = (entry_id(self.conversation, at) for at in (max(0, start), min(gap.until + 1, number)))
        while key < end and (documents := await self.inspection.entries(self.conversation, after=key, through=end)):
            for document in documents:
                is_right = is_right and _fits(document, gap, _number_of(document))
                sums = _plus(sums, _sums_of(document, after + 1, gap.last))
            key = str(documents[-1]["_id"])
        if not is_right:
            self._wrong_gaps.append(gap)
        self._gone[gap.first] = (gap, sums)
        return sums


def _fits(document: Mapping[str, Any], gap: RewoundRange, number: int) -> bool:
    """Whether an entry is inside, before or behind what was rewound, as the marker says."""
    first, last = document["first"], document["first"] + document["count"] - 1
    if number < gap.entry:
        return bool(first <= gap.first)
    if number > gap.until:
        return bool(first > gap.last)
    return bool(first >= gap.first and last <= gap.last)


def _sums_of(document: Mapping[str, Any], first: int, last: int) -> _Sums:
    sums = _NOTHING
    for ordinal, message in enumerate(document.get("messages", ()), document["first"]):
        if first <= ordinal <= last:
            kind = message["type"]
            sums = _plus(sums, (1, kind == "human", kind == "tool", message["tokens"], message["view_tokens"]))
    return sums


def _plus(one: _Sums, other: _Sums, *, sign: int = 1) -> _Sums:
    a, b, c, d, e = (left + sign * right for left, right in zip(one, other, strict=True))
    return a, b, c, d, e


def _number_of(document: Mapping[str, Any]) -> int:
    text = str(document["_id"]).rpartition(":")[2]
    return int(text) if text.isdecimal() else 0
