"""Counts the active messages after each rewind entry, to compare them with the entry's totals.

All entries are summed during the pass. Rewound ranges are read a second time, each part once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from convstore.log.entry import Entry, RewoundRange
from convstore.mongo.collection import Document
from convstore.mongo.keys import entry_id
from convstore.verify.findings import Subject

_Sums = tuple[int, ...]
_ZERO: _Sums = (0, 0, 0, 0, 0)
_NAMES = ("active", "turns", "results", "tokens", "view_tokens")


@dataclass(slots=True)
class ActiveTotals:
    """Sums over the log of one conversation: messages, human messages, tool results, tokens, tokens in views."""

    subject: Subject
    _all: _Sums | None = _ZERO
    _counters: set[str] = field(default_factory=set)
    _rewound: dict[int, tuple[RewoundRange, _Sums]] = field(default_factory=dict)
    _active: _Sums | None = None
    _wrong_ranges: list[RewoundRange] = field(default_factory=list)

    def lose(self) -> None:
        """Mark the sums as unknown, because an entry cannot be read."""
        self._all = None

    async def add(self, entry: Entry) -> None:
        """Add an entry; if it is a rewind entry, count the active messages after it."""
        self._active, self._wrong_ranges = None, []
        if self._all is None:
            return
        for message in entry.messages:
            one = (1, message.type == "human", message.type == "tool", message.tokens, message.view_tokens)
            self._all = _plus(self._all, one)
        if entry.messages:
            self._counters.add(entry.totals.counter)
        if entry.totals.rewind_entry == entry.number:
            active = self._all
            for range_ in entry.rewound:
                active = _plus(active, await self._rewound_sums(range_, entry.number), sign=-1)
            self._active = active

    def problems(self, entry: Entry) -> list[str]:
        """Return the problems of the entry just added, if it is a rewind entry."""
        text = "messages {} to {} are not in the entries that it names"
        found = [text.format(range_.first, range_.last) for range_ in self._wrong_ranges]
        if self._active is None:
            return found
        # Sizes made by different token counters cannot be added.
        names = _NAMES if len(self._counters) <= 1 else _NAMES[:3]
        said = [getattr(entry.totals, name) for name in names]
        wrong = [name for name, one, other in zip(names, said, self._active, strict=False) if one != other]
        return [*found, f"the totals of active messages are wrong: {', '.join(wrong)}"] if wrong else found

    async def _rewound_sums(self, range_: RewoundRange, number: int) -> _Sums:
        """Return the sums over a rewound range, reusing those computed for an earlier rewind entry."""
        earlier, sums = self._rewound.get(range_.first, (None, _ZERO))
        if earlier == range_:
            return sums
        if earlier and earlier.entry == range_.entry and earlier.last <= range_.last and earlier.until <= range_.until:
            start, after = earlier.until, earlier.last
        else:
            start, after, sums = range_.entry - 2, range_.first - 1, _ZERO
        is_right = range_.until <= number
        conversation, read = self.subject.conversation, self.subject.inspection.entries
        key, end = (entry_id(conversation, at) for at in (max(0, start), min(range_.until + 1, number)))
        while key < end and (documents := await read(conversation, after=key, through=end)):
            for document in documents:
                is_right = is_right and _fits(document, range_)
                sums = _plus(sums, _sums_of(document, after + 1, range_.last))
            key = str(documents[-1]["_id"])
        if not is_right:
            self._wrong_ranges.append(range_)
        self._rewound[range_.first] = (range_, sums)
        return sums


def _fits(document: Document, range_: RewoundRange) -> bool:
    """Return True if an entry is inside, before or after a rewound range, as the rewind entry states."""
    number = number_in(document["_id"])
    first, last = document["first"], document["first"] + document["count"] - 1
    if number < range_.entry:
        return bool(first <= range_.first)
    if number > range_.until:
        return bool(first > range_.last)
    return bool(first >= range_.first and last <= range_.last)


def _sums_of(document: Document, first: int, last: int) -> _Sums:
    sums = _ZERO
    for ordinal, message in enumerate(document.get("messages", ()), document["first"]):
        if first <= ordinal <= last:
            kind = message["type"]
            sums = _plus(sums, (1, kind == "human", kind == "tool", message["tokens"], message["view_tokens"]))
    return sums


def _plus(one: _Sums, other: _Sums, *, sign: int = 1) -> _Sums:
    return tuple(left + sign * right for left, right in zip(one, other, strict=True))


def number_in(key: str) -> int:
    """Return the number in the key of an entry, 0 if there is none."""
    text = key.rpartition(":")[2]
    return int(text) if text.isdecimal() else 0
