"""Holds the state of one load: the rows read so far, what they depend on, and the cost of reading them.

It sends nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from convstore.log.entry import ENTRY_BYTES, RANGE_BYTES, Entry, Totals
from convstore.log.rewind import NO_REWINDS, Rewinds
from convstore.log.rows import Row, rows_of, weigh
from convstore.log.selection import named_in
from convstore.log.state import NO_START, State, ViewStart
from convstore.log.stored_message import KeptMessage
from convstore.log.summary import NamedResult
from convstore.runtime.cache import CachedConversation, LoadedEnd
from convstore.runtime.log_reader import check_dense
from convstore.values.policy import HistoryPolicy
from convstore.view.budget import NOTHING_REQUIRED, Required
from convstore.view.render import NOTE_RESULTS
from convstore.view.view import ActiveRows

_MIN_ENTRIES, _MORE_ENTRIES, _MAX_ENTRIES = 30, 8, 1_000


@dataclass(slots=True)
class Load(ActiveRows):
    """State of one load: the rows read so far and the cost of reading them.

    `held` is the cached end of the log, and `end` and `end_rows` the whole end that is known now. `searches` counts the
    reads that a start of the view in the state would have saved; `has_hints` is False if the state was read without it.
    """

    policy: HistoryPolicy
    cached: CachedConversation
    state: State
    start: ViewStart = NO_START
    rewinds: Rewinds = NO_REWINDS
    held: LoadedEnd = field(default_factory=LoadedEnd)
    end: list[Entry] = field(default_factory=list)
    end_rows: Sequence[Row] = ()
    entries: list[Entry] = field(default_factory=list)
    shown: dict[str, KeptMessage] = field(default_factory=dict)
    documents: int = 0
    size: int = 0
    round_trips: int = 0
    searches: int = 0
    has_hints: bool = True

    @property
    def is_complete(self) -> bool:
        """Return True if every entry that is not summarised was read."""
        return not self.entries or self.before <= (self.summary.entry if self.summary else 1)

    @property
    def before(self) -> int:
        """Return the number before which unread entries may hold active messages."""
        return self.rewinds.active_before(self.entries[0].number)

    @property
    def required(self) -> Required:
        """Return what turns weighed by an earlier load require, if the entries include its last one."""
        links = {entry.totals.link for entry in self.entries} if self.start.through else ()
        return Required(self.start.turn, self.start.through) if self.start.link in links else NOTHING_REQUIRED

    @property
    def unsummarized(self) -> int:
        """Return the tokens after the summary or the leading system messages, weighed as in a compaction plan."""
        system = () if self.summary else self.system or ()
        before = self.rows[0].before if self.rows else 0
        return max(0, before + sum(weigh(self.rows)) - sum(message.view_tokens for message in system))

    def count(self, entries: Sequence[Entry]) -> None:
        """Add documents to the report."""
        self.documents += len(entries)
        self.size += sum(entry.size for entry in entries)

    def count_rewinds(self, numbers: Sequence[int]) -> None:
        """Add rewind entries that were read together to the report."""
        self.documents += len(numbers)
        self.round_trips += bool(numbers)
        whole = self.rewinds.whole or self.rewinds
        self.size += ENTRY_BYTES * len(numbers) + RANGE_BYTES * len(whole.ranges) * (whole.entry in numbers)

    @property
    def key(self) -> tuple[int, str]:
        """Return what rows and notes depend on besides the entries."""
        return self.rewinds.entry, self.summary.token if self.summary else ""

    def add_end(self, new: Sequence[Entry], tail: Totals) -> None:
        """Add the last entries of the log, which follow the cached ones; `tail` are its totals by the store's counter.

        Raises:
            CorruptDocumentError: An entry in between is missing.
        """
        check_dense(self.cached, [*self.held.entries[-1:], *new])
        self.end, self.shown, rows = [*self.held.entries, *new], self.held.shown, self.held.rows
        if self.held.key == self.key:
            self.kept_notes = self.held.notes
        else:
            rows = ()
        self.entries = self.end[bisect_left(self.end, self.start.entry, key=lambda entry: entry.number) :]
        if tail is not self.entries[-1].totals:
            self.entries[-1] = replace(self.entries[-1], totals=tail)
        if rows:
            added = rows_of(self.entries[-len(new) :] if new else (), self.rewinds, self.summary)
            is_continued = not added or added[0].before == rows[-1].before + rows[-1].message.view_tokens
            self.end_rows = [*rows, *added] if is_continued else ()
        rows = self.end_rows or rows_of(self.entries, self.rewinds, self.summary)
        self.rows = rows[bisect_left(rows, self.entries[0].number, key=lambda row: row.entry) :]

    def prepend(self, entries: list[Entry]) -> None:
        """Prepend entries that directly precede those already read.

        Raises:
            CorruptDocumentError: An entry in between is missing.
        """
        check_dense(self.cached, entries, last=self.before - 1)
        self.entries = entries + self.entries
        if entries[-1].number + 1 == self.end[0].number:
            self.end, self.end_rows = entries + self.end, ()  # its rows begin later
        self.rows = rows_of(self.entries, self.rewinds, self.summary)
        self.earlier_results = None

    def named(self, results: Sequence[Entry]) -> tuple[NamedResult, ...]:
        """Return the names of the newest results, given newest first; the summary names the results it covers."""
        last = self.summary.last if self.summary else 0
        found = (message for message in named_in(results, self.rewinds) if message.ordinal > last)
        return tuple(message.name for message in found)[:NOTE_RESULTS]


def is_sufficient(cached_end: Sequence[Entry], start: ViewStart, limit: int) -> bool:
    """Return True if the cached end of a log holds as much as a load would read."""
    if not cached_end or start.entry:
        return bool(cached_end) and cached_end[0].number <= start.entry
    return cached_end[0].number == 1 or len(cached_end) >= limit


def is_continued_by(cached_end: Sequence[Entry], entries: Sequence[Entry]) -> bool:
    """Return True if the entries just read begin with the last cached one."""
    pair = [(one.totals, [message.digest for message in one.messages]) for one in (*cached_end[-1:], *entries[:1])]
    return len(pair) == 2 and pair[0] == pair[1]


def differs(tail: Totals | None, entries: Sequence[Entry]) -> bool:
    """Return True if the log now has another entry at the number of the cached tail."""
    return any(tail and entry.number == tail.entries and entry.totals.link != tail.link for entry in entries)


def entries_needed(start: ViewStart, totals: Totals, policy: HistoryPolicy) -> int:
    """Estimate how many entries to read first: those after a known start, or enough to fill the limits.

    The start may be older than the view. Then a view is assumed to hold as much as the limits allow, and not much more
    than between the start and these totals.
    """
    active = totals.entries * totals.active // totals.messages if totals.messages else 0
    limits = ((policy.max_tokens, totals.view_tokens), (policy.max_turns, totals.turns))
    needed = min([active, *(limit * active // total for limit, total in limits if limit and total)])
    since = max(0, totals.entries - start.entry) if start.entry else 0
    return min(max(_MIN_ENTRIES, max(needed, 5 * since // 4) + _MORE_ENTRIES), _MAX_ENTRIES)


def newest_start(starts: Iterable[ViewStart], totals: Totals, *, revision: int, counter: str) -> ViewStart:
    """Return the last of the starts that are valid for a log with these totals and the state's revision."""
    wanted = (totals.rewind_entry, revision, counter)
    valid = (one for one in starts if one.entry and (one.rewind_entry, one.revision, one.counter) == wanted)
    possible = (one for one in valid if one.entry <= totals.entries and one.turn <= totals.turns)
    return max(possible, key=lambda one: one.entry, default=NO_START)
