"""Counts the active messages after each rewind entry, to compare them with the entry's totals.

All entries are summed during the pass. Ranges that a rewind entry hides are read a second time, each part once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from convstore.log.entry import Entry, RewoundRange
from convstore.log.rewind import NO_REWINDS, Rewinds, difference
from convstore.mongo.collection import Document
from convstore.mongo.keys import entry_id
from convstore.verify.findings import Subject

_Sums = tuple[int, ...]
_ZERO: _Sums = (0, 0, 0, 0, 0)
_NAMES = ("active", "turns", "results", "tokens", "view_tokens")


@dataclass(slots=True)
class ActiveTotals:
    """Sums over the log of one conversation: messages, human messages, tool results, tokens, tokens in views.

    Attributes:
        rewinds: The active messages as of the last rewind entry that could be read.
        problems: Problems of the entry added last, if it is a rewind entry.
    """

    subject: Subject
    rewinds: Rewinds = NO_REWINDS
    problems: list[str] = field(default_factory=list)
    _all: _Sums | None = _ZERO
    _rewound: _Sums = _ZERO
    _counters: set[str] = field(default_factory=set)
    _known: dict[int, tuple[RewoundRange, _Sums]] = field(default_factory=dict)

    def lose(self) -> None:
        """Mark the sums as unknown, because an entry cannot be read."""
        self._all = None

    async def add(self, entry: Entry) -> None:
        """Add an entry; if it is a rewind entry, count the active messages after it."""
        before, self.problems = self.rewinds, []
        if entry.is_rewind:
            try:
                self.rewinds = before.after(entry)
            except ValueError as error:
                self.problems = [str(error)]
        if self._all is None:
            return
        for message in entry.messages:
            one = (1, message.type == "human", message.type == "tool", message.tokens, message.view_tokens)
            self._all = _plus(self._all, one)
        if entry.messages:
            self._counters.add(entry.totals.counter)
        if self.rewinds is not before:
            rewound, restored = difference(before.ranges, self.rewinds.ranges)
            for range_ in restored:
                self._rewound = _plus(self._rewound, self._known[range_.first][1], sign=-1)
            for range_ in rewound:
                self._rewound = _plus(self._rewound, await self._sums(range_, entry.number))
            self._compare(entry, _plus(self._all, self._rewound, sign=-1))

    def _compare(self, entry: Entry, active: _Sums) -> None:
        # Sizes made by different token counters cannot be added.
        names = _NAMES if len(self._counters) <= 1 else _NAMES[:3]
        said = [getattr(entry.totals, name) for name in names]
        wrong = [name for name, one, other in zip(names, said, active, strict=False) if one != other]
        if wrong:
            self.problems.append(f"the totals of active messages are wrong: {', '.join(wrong)}")

    async def _sums(self, range_: RewoundRange, number: int) -> _Sums:
        """Return the sums over a rewound range, reusing those computed for an earlier rewind entry."""
        earlier, sums = self._known.get(range_.first, (None, _ZERO))
        if earlier == range_:
            return sums
        if earlier and earlier.entry == range_.entry and earlier.last <= range_.last and earlier.until <= range_.until:
            start, after = earlier.until, earlier.last
        else:
            start, after, sums = range_.entry - 2, range_.first - 1, _ZERO
        conversation, read = self.subject.conversation, self.subject.inspection.entries
        key, end = (entry_id(conversation, at) for at in (max(0, start), min(range_.until + 1, number)))
        while key < end and (documents := await read(conversation, after=key, through=end)):
            for document in documents:
                sums = _plus(sums, _sums_of(document, after + 1, range_.last))
            key = str(documents[-1]["_id"])
        self._known[range_.first] = (range_, sums)
        return sums


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
