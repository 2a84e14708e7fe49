"""Holds the state of one load: the rows read so far, what they depend on, and the cost of reading them.

It sends nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from convstore.log.entry import Entry, Totals
from convstore.log.facts.branch import BRANCH
from convstore.log.rows import Row, is_finished, marked, named_in, rows_of
from convstore.log.state import NO_RECORD, LeftOut, State, ViewRecord
from convstore.messages.encoding import digest_of
from convstore.runtime.cache import CachedConversation, LoadedEnd
from convstore.runtime.log_reader import Snapshot, check_dense, check_links
from convstore.values.policy import HistoryPolicy
from convstore.view.render import NOTE_RESULTS
from convstore.view.view import ActiveRows

_MIN_ENTRIES = 30
_MORE_ENTRIES = 8
_MAX_ENTRIES = 1_000


@dataclass(slots=True)
class Load(ActiveRows):
    """State of one load: the rows read so far and the cost of reading them.

    `record` is the policy's stored record, or `NO_RECORD` if that is not of this log. `held` is the cached end of the
    log, `entries` and `known_rows` are the last entries and their rows; those from `kept_from` on may be cached.
    `has_system` is True if the state was read with the leading system messages, and `is_confirmed` if the rows begin
    with the record's start. With `has_hidden` the view is that of the variant to which the last entry belongs, which
    is not active yet.
    """

    policy: HistoryPolicy
    key: str
    log: Snapshot
    state: State
    record: ViewRecord = NO_RECORD
    held: LoadedEnd = field(default_factory=LoadedEnd)
    entries: list[Entry] = field(default_factory=list)
    known_rows: Sequence[Row] = ()
    kept_from: int = 1
    documents: int = 0
    size: int = 0
    round_trips: int = 0
    payload_reads: int = 0
    is_confirmed: bool = False
    has_system: bool = False
    has_hidden: bool = False

    @property
    def last_entry(self) -> int:
        """The number of the last entry that the view sees, 0 for none."""
        for entry in reversed(self.entries):
            if self.has_hidden or not BRANCH.of(entry):
                return entry.number
        return self.entries[-1].number if self.entries else 0

    @property
    def cached(self) -> CachedConversation:
        """The conversation."""
        return self.log.cached

    @property
    def first_needed(self) -> int:
        """The first entry that the view needs, as far as record and summary tell."""
        return max(self.record.entry, self._after_summary)

    @property
    def _after_summary(self) -> int:
        """The first entry that a view needs with the summary, which without one is the first of the log."""
        return self.summary.entry if self.summary else 1

    @property
    def before(self) -> int:
        """Return the number before which unread entries may hold active messages."""
        return self.log.active.end_before(self.entries[0].number)

    @property
    def unsummarized(self) -> int:
        """Return the tokens after the summary or the leading system messages, weighed as in a compaction plan."""
        if not self.rows:
            return 0
        last = self.rows[-1]
        system = () if self.summary else self.system or ()
        now = (
            []
            if is_finished(self.rows)
            else takewhile(lambda row: row.turn == last.turn, reversed(self.rows))
        )
        whole = sum(row.message.tokens - row.message.view_tokens for row in now)
        return max(
            0,
            last.before
            + last.message.view_tokens
            + whole
            - sum(message.view_tokens for message in system),
        )

    def count(self, entries: Sequence[Entry]) -> None:
        """Add documents to the report."""
        self.documents += len(entries)
        self.size += sum(entry.size for entry in entries)

    @property
    def depends_on(self) -> tuple[int, str]:
        """Return what rows and notes depend on besides the entries."""
        return self.log.active.entry, self.summary.token if self.summary else ""

    def add_end(self, new: Sequence[Entry]) -> None:
        """Add the last entries of the log, which follow the cached ones.

        Raises:
            CorruptDocumentError: An entry in between is missing.
        """
        held = self.held
        check_links(self.cached.conversation, [*held.entries[-1:], *new])
        self.entries = [*held.entries, *new]
        rows = list[Row]()
        if held.rows and held.key == self.depends_on:
            self.kept_notes = held.notes
            last = held.rows[-1]
            added = self._rows_of(new)
            is_continued = not added or added[0].before == last.before + last.message.view_tokens
            if is_continued:
                rows = marked([*held.rows, *added], self.log.active.of(new or self.entries[-1:]))
        self._use_rows(rows or self._rows_of(self.entries))

    def prepend(self, entries: list[Entry]) -> None:
        """Prepend entries that directly precede those already read.

        Raises:
            CorruptDocumentError: An entry in between is missing.
        """
        check_dense(self.cached.conversation, entries, last=self.before - 1)
        if entries[-1].number + 1 < self.entries[0].number:  # there are rewound entries in between
            self.kept_from = max(self.kept_from, self.entries[0].number)
        self.entries = entries + self.entries
        self.earlier_results = None
        self._use_rows(self._rows_of(self.entries))

    def _rows_of(self, entries: Sequence[Entry]) -> list[Row]:
        return rows_of(self.log.active.of(entries), self.summary, through=self.log.tail.view_tokens)

    def _use_rows(self, rows: Sequence[Row]) -> None:
        self.known_rows = self.rows = rows
        self._take_record()

    def _take_record(self) -> None:
        """Use the record as far as the rows read confirm it: its marks, its start, and the results before that."""
        self.is_complete = self.before <= self._after_summary
        record = self.record
        is_of_log = max(record.marks) <= self.entries[-1].last
        if not self.is_missing:
            is_of_log = is_of_log and self._confirms(record)
        if not is_of_log:
            self.record = NO_RECORD
        elif record.start > 1 and not self.is_missing and not self.is_complete:
            self._begin_at(record)

    def _begin_at(self, record: ViewRecord) -> None:
        """Drop the rows before the start in the record, and use the earlier results that it has."""
        index = bisect_left(self.rows, record.start, key=lambda row: row.message.ordinal)
        self.rows = self.rows[index:]
        self.is_confirmed = True
        if record.results is not None and self._still_holds(record):
            covered = self._covered
            self.earlier_results = tuple(
                [result for result in record.results if result.ordinal > covered]
            )

    @property
    def is_missing(self) -> bool:
        """Return True if the entry with the record's start was not read."""
        return not self.is_complete and self.before > self.record.entry

    def _confirms(self, record: ViewRecord) -> bool:
        """Return True if the record's start is the first message of the log or of an active turn of it."""
        if record.start <= max(1, self._covered):
            return True
        row = next((row for row in self.rows if row.message.ordinal == record.start), None)
        return row is not None and row.message.begins_turn and row.entry.totals.link == record.link

    @property
    def _covered(self) -> int:
        return self.summary.last if self.summary else 0

    def moved(self, marks: tuple[int, int, int]) -> ViewRecord:
        """Return the record with moved marks, and with the results before its start as of now."""
        begin = bisect_left(self.rows, marks[0], key=lambda row: row.message.ordinal)
        record = self.record
        if marks[0] != record.start:
            entry = self.rows[begin].entry
            record = ViewRecord(entry=entry.number, link=entry.totals.link)
        named = record._replace(start=marks[0], short_through=marks[1], stubs_through=marks[2])
        results = self.results_before(begin)
        gaps = self._gaps_before(marks[0])
        return named._replace(results=results, gaps=gaps, after=self._covered)

    def _gaps_before(self, ordinal: int) -> bytes:
        gaps = self.log.active.gaps(ordinal - 1)
        return digest_of(repr(gaps)) if gaps else b""

    def _still_holds(self, record: ViewRecord) -> bool:
        """Return True if the same messages are active and summarised before the record's start as when it moved."""
        return self._covered >= record.after and self._gaps_before(record.start) == record.gaps

    @property
    def has_stale_results(self) -> bool:
        """Return True if the results in the record are not those before its start any more."""
        return self.record.start > 1 and self.is_confirmed and not self._still_holds(self.record)

    def named(self, results: Sequence[Entry]) -> tuple[LeftOut, ...]:
        """Return the names of the newest results before the rows, given newest first; a summary names those it covers.

        An entry may hold results before the rows and among them.
        """
        first = self.rows[0].message.ordinal
        covered = self._covered
        found = (message for message in named_in(results) if covered < message.ordinal < first)
        return tuple(LeftOut(message.ordinal, message.name) for message in found)[:NOTE_RESULTS]


def is_continued_by(cached: Sequence[Entry], entries: Sequence[Entry]) -> bool:
    """Return True if the entries just read begin with the last cached one."""
    pair = [
        (entry.totals, [message.digest for message in entry.messages])
        for entry in (*cached[-1:], *entries[:1])
    ]
    return len(pair) == 2 and pair[0] == pair[1]


def differs(tail: Totals | None, entries: Sequence[Entry]) -> bool:
    """Return True if the log now has another entry at the number of the cached tail."""
    return any(
        tail and entry.number == tail.entries and entry.totals.link != tail.link
        for entry in entries
    )


def entries_needed(first: int, tail: Totals, policy: HistoryPolicy) -> int:
    """Estimate how many entries to read first: those from a known one on, or enough to fill the limits."""
    active = tail.entries * tail.active // tail.messages if tail.messages else 0
    limits = ((policy.max_tokens, tail.view_tokens), (policy.max_turns, tail.turns))
    needed = min([active, *(limit * active // total for limit, total in limits if limit and total)])
    since = tail.entries - first + 1 if first else 0
    return min(max(_MIN_ENTRIES, max(needed, 5 * since // 4) + _MORE_ENTRIES), _MAX_ENTRIES)
