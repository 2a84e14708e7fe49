"""One load of a view: the rows read so far, the state that they depend on, and the cost of reading them.

The module is long because reading, planning and showing a view all work on the same rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import takewhile

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import Entry, PayloadRef, Totals
from convstore.log.facts.branch import BRANCH
from convstore.log.rows import (
    Row,
    is_finished,
    leading_system,
    named_in,
    open_turn,
    rows_of,
    with_turn_ends,
)
from convstore.log.state import NO_RECORD, NamedMessage, State, ViewRecord, system_of
from convstore.messages.encoding import digest_of
from convstore.messages.media_sizes import request_length
from convstore.mongo.keys import entry_id
from convstore.mongo.log import VIEW_FIELDS
from convstore.mongo.parallel import together
from convstore.runtime.cache import CachedConversation, CachedPayload, LoadedEnd
from convstore.runtime.log_reader import LogReader, Snapshot, check_dense, check_links
from convstore.runtime.threads import characters_of, run_in_thread_if_long
from convstore.values.json_form import new_model
from convstore.values.models import HistoryReport
from convstore.values.policy import HistoryPolicy, view_key
from convstore.values.stamps import Stamper
from convstore.view.active_rows import ActiveRows
from convstore.view.decoder import Decoder, payloads_needed
from convstore.view.media import BYTES_PER_TOKEN
from convstore.view.render import NOTE_RESULTS, View, stamper
from convstore.view.rule import ViewPlan
from convstore.wire.history import History

_FIRST_ENTRIES = 4
_MIN_ENTRIES = 30
_MORE_ENTRIES = 8
_MAX_ENTRIES = 1_000


@dataclass(slots=True)
class Load(ActiveRows):
    """One load of a view, current or past: it reads the log, plans the view and builds it.

    Attributes:
        record: The policy's stored record; `NO_RECORD` if it does not belong to this log.
        held: The cached end of the log.
        entries: The last entries of the log.
        known_rows: The rows of these entries.
        kept_from: Number of the first entry that may be cached.
        is_confirmed: True if the rows begin with the record's start.
        has_system: True if the state was read with the leading system messages.
        has_hidden: True for the view of a variant that is not active yet, to which the last entry belongs.
        keeps_payloads: True to cache the payloads that the view shows for the next load.
    """

    reader: LogReader
    policy: HistoryPolicy
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
    keeps_payloads: bool = False

    @property
    def key(self) -> str:
        """The key of the policy's record."""
        return view_key(self.policy, self.reader.counter.name)

    @property
    def last_entry(self) -> int:
        """Number of the last entry that the view includes, 0 without entries."""
        for entry in reversed(self.entries):
            if self.has_hidden or not BRANCH.of(entry):
                return entry.number
        return self.entries[-1].number if self.entries else 0

    @property
    def cached(self) -> CachedConversation:
        """The cached data of the conversation."""
        return self.log.cached

    @property
    def first_needed(self) -> int:
        """Number of the first entry that the view needs, by the record and the summary."""
        return max(self.record.entry, self._after_summary)

    @property
    def _after_summary(self) -> int:
        """Number of the first entry that a view needs after the summary; without a summary, the first of the log."""
        return self.summary.entry if self.summary else 1

    @property
    def before(self) -> int:
        """Number of the entry before which unread entries may have active messages."""
        return self.log.active.end_before(self.entries[0].number)

    @property
    def unsummarized(self) -> int:
        """Size of the messages after the summary or the leading system messages, measured as in a compaction plan."""
        if not self.rows:
            return 0
        last = self.rows[-1]
        system = () if self.summary else self.system or ()
        now: Iterable[Row] = ()
        if not is_finished(self.rows):
            now = takewhile(lambda row: row.turn == last.turn, reversed(self.rows))
        whole = sum(row.message.tokens - row.message.view_tokens for row in now)
        return max(
            0,
            last.before
            + last.message.view_tokens
            + whole
            - sum(message.view_tokens for message in system),
        )

    def count(self, entries: Sequence[Entry]) -> None:
        """Add read entries to the report."""
        self.documents += len(entries)
        self.size += sum(entry.size for entry in entries)

    @property
    def depends_on(self) -> tuple[int, str]:
        """Key of cached rows and notes: the last rewind and the summary that they depend on."""
        return self.log.active.entry, self.summary.token if self.summary else ""

    def add_end(self, new: Sequence[Entry]) -> None:
        """Append the last entries of the log to the cached ones.

        Raises:
            CorruptDocumentError: An entry in between is missing.
        """
        held = self.held
        check_links(self.cached.conversation, [*held.entries[-1:], *new])
        self.entries = [*held.entries, *new]
        rows: list[Row] = []
        if held.rows and held.key == self.depends_on:
            self.kept_notes = held.notes
            last = held.rows[-1]
            added = self._rows_of(new)
            is_continued = not added or added[0].before == last.before + last.message.view_tokens
            if is_continued:
                rows = with_turn_ends(
                    [*held.rows, *added], self.log.active.of(new or self.entries[-1:])
                )
        self._use_rows(rows or self._rows_of(self.entries))

    def prepend(self, entries: list[Entry]) -> None:
        """Prepend entries that directly precede those already read.

        Raises:
            CorruptDocumentError: An entry in between is missing.
        """
        check_dense(self.cached.conversation, entries, last=self.before - 1)
        # rewound entries in between were skipped
        if entries[-1].number + 1 < self.entries[0].number:
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
        """Use the start, the marks and the results of the record, as far as the rows read so far confirm them."""
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
        """Drop the rows before the record's start, and use the record's list of earlier results."""
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
        """True if the entry with the record's start was not read yet."""
        return not self.is_complete and self.before > self.record.entry

    def _confirms(self, record: ViewRecord) -> bool:
        """Return True if the record's start is the first message of the log, or of an active turn."""
        if record.start <= max(1, self._covered):
            return True
        row = next((row for row in self.rows if row.message.ordinal == record.start), None)
        return row is not None and row.message.begins_turn and row.entry.totals.link == record.link

    @property
    def _covered(self) -> int:
        return self.summary.last if self.summary else 0

    def moved(self, marks: tuple[int, int, int]) -> ViewRecord:
        """Return the record with moved marks, and with the current results before its start."""
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
        """Return True if no message before the record's start was rewound, restored or un-summarised since it moved."""
        return self._covered >= record.after and self._gaps_before(record.start) == record.gaps

    @property
    def has_stale_results(self) -> bool:
        """True if the results listed in the record may differ from those before its start."""
        return self.record.start > 1 and self.is_confirmed and not self._still_holds(self.record)

    def named(self, results: Sequence[Entry]) -> tuple[NamedMessage, ...]:
        """Return the names of the newest results before the rows, from entries in the order newest first.

        Results that the summary covers are left out, as the summary names them. An entry may have results before the
        rows and among them.
        """
        first = self.rows[0].message.ordinal
        covered = self._covered
        found = (message for message in named_in(results) if covered < message.ordinal < first)
        return tuple(NamedMessage(message.ordinal, message.name) for message in found)[
            :NOTE_RESULTS
        ]

    async def take_snapshot(self, log: Snapshot) -> None:
        """Set which messages are active, and use the summary if it fits them."""
        # Recounted with the store's counter, so that every process plans the same view.
        self.log = log._replace(tail=await self.reader.recount_tail(self.cached, log.tail))
        self.count(self.log.read)
        self.round_trips += bool(self.log.read)
        summary = self.state.summary
        if summary and self.log.fits(summary):
            self.summary = summary
            self.summary_messages = self.reader.summary_messages(
                summary, talk=self.policy.view == "conversation"
            )

    def take_beginning(self) -> None:
        """Take the leading system messages from the rows, if the rows include them."""
        if self.is_complete and not self.summary:
            self.system = tuple(row.message for row in leading_system(self.rows))
            self.cached.system = system_of(
                self.rows, self.reader.counter.name, self.log.active.gaps
            )

    async def _read_system(self) -> None:
        """Read the leading system messages if they are unknown; nearly always they are in the first entries."""
        if self.system is not None:
            return
        first: list[Entry] = []
        rows: list[Row] = []
        async with aclosing(self.reader.batches(self.log, at_once=_FIRST_ENTRIES)) as batches:
            async for entries in batches:
                self.count(entries)
                self.round_trips += bool(first)
                first += await self.reader.counted(entries)
                if len(leading_system(rows := rows_of(first))) < len(rows):
                    break
        self.system = tuple(row.message for row in leading_system(rows))
        self.cached.system = system_of(rows, self.reader.counter.name, self.log.active.gaps)

    async def _read_results(self) -> None:
        """Read the newest results before the rows, which the note may name."""
        if self.is_complete or self.earlier_results is not None:
            return
        first = self.rows[0].message.ordinal
        results = await self.reader.newest_results(self.log, before=first, limit=NOTE_RESULTS)
        self.count(results)
        self.earlier_results = self.named(results)

    async def decide(self) -> ViewPlan:
        """Plan the view; first read further back until earlier messages cannot change the plan."""
        while not self._has_enough():
            await self.read_more()
        await self.read_beginning()
        return self.plan(self.decoder(), self.record.marks)

    async def read_more(self) -> None:
        """Read entries before those read so far, but not before the first one that the view needs."""
        before = self.before
        limit = min(_MAX_ENTRIES, 4 * len(self.entries))
        start = self.log.active.stretch_before(before, max(0, before - limit))
        if before > self.first_needed:
            start = max(start, self.first_needed)
        entries = await self.reader.log.entries(
            self.cached.conversation, start=start, before=before, limit=limit, fields=VIEW_FIELDS
        )
        self.count(entries)
        self.round_trips += 1
        if not entries:
            raise CorruptDocumentError(
                entry_id(self.cached.conversation, before - 1), "the entry is missing"
            )
        self.prepend(await self.reader.counted(entries))
        self.take_beginning()

    async def read_beginning(self) -> None:
        """Read the leading system messages and the newest results before the rows, unless they are known."""
        has_results = self.is_complete or self.earlier_results is not None
        if self.system is None or not has_results:
            self.round_trips += 1
            await together(self._read_system(), self._read_results())

    def _has_enough(self) -> bool:
        """Return True if earlier rows cannot change the view."""
        if self.is_complete or self.is_confirmed:
            return True
        # Positions after a summary are unknown if another counter measured the summarised messages.
        is_counted = self.summary is None or self.summary.counter == self.reader.counter.name
        return bool(self.rows) and is_counted and self.has_enough(self.decoder())

    def decoder(self) -> Decoder:
        """Return a decoder for the messages of the view."""
        return Decoder(self.policy, self.reader.codec, self.reader.counter)

    async def show(self, plan: ViewPlan) -> View:
        """Read the payloads that a plan needs and build its view."""
        rows = self.rows[plan.begin :]
        needed = payloads_needed(rows, plan.shown, self.policy)
        # Nearly always empty: only a system prompt that is too large for its entry has a payload.
        needed += [
            (message.id, message.payload) for message in self.system or () if message.payload
        ]
        payloads, read = await self._read_payloads(rows, needed)
        if read:
            self.payload_reads = 1
            self.documents += sum(len(ref.ends) for ref in read)
            self.size += sum(ref.size for ref in read)
        decoder = self.decoder()
        decoder.payloads = payloads
        new = [row.message for row in rows if row.message.kept is None]
        return await run_in_thread_if_long(
            lambda: self.view(plan, decoder), characters=characters_of(new, payloads)
        )

    async def _read_payloads(
        self,
        rows: Sequence[Row],
        needed: Sequence[tuple[str, PayloadRef]],
    ) -> tuple[dict[str, str], list[PayloadRef]]:
        """Return the payload texts that a view of these rows needs, by message id, and the payloads read for it.

        Raises:
            CorruptDocumentError: A chunk is missing or damaged.
        """
        # Taken before reading: an append that finishes during the read may drop cached payloads.
        kept = self.cached.payloads
        if not needed and not kept:
            return {}, []
        cached_texts = {
            id_: kept[id_].text
            for id_, ref in needed
            if id_ in kept and len(kept[id_].text) >= min(ref.own, ref.ends[-1])
        }
        missing = {id_: ref for id_, ref in needed if id_ not in cached_texts}
        read = await self.reader.payloads(self.cached, list(missing.values()))
        texts = cached_texts | dict(zip(missing, read, strict=True))
        payloads = {id_: texts[id_][: ref.ends[-1]] for id_, ref in needed}
        if self.keeps_payloads:
            self._keep_payloads(rows, payloads, before=kept)
        return payloads, list(missing.values())

    def _keep_payloads(
        self,
        rows: Sequence[Row],
        payloads: Mapping[str, str],
        *,
        before: Mapping[str, CachedPayload],
    ) -> None:
        """Cache the payloads that this view shows, and those that were appended while it was read."""
        current = None if is_finished(rows) else rows[-1].turn
        shown = {
            row.message.id: CachedPayload(
                payloads[row.message.id],
                row.message.payload.shown if row.message.payload and not row.message.stub else 0,
                is_lasting=row.turn != current,
            )
            for row in rows
            if row.message.id in payloads
        }
        kept = shown | {
            id_: payload for id_, payload in self.cached.payloads.items() if id_ not in before
        }
        self.reader.cache.keep_payloads(self.cached, kept)

    def history(self, plan: ViewPlan, view: View) -> History:
        """Return the view with its report, as the public `History`."""
        summary = self.summary.text if self.summary else None
        report = _report(self, plan, view)
        values = {
            "messages": view.messages,
            "summary": summary,
            "tokens": view.tokens,
            "report": report,
            "compaction": None,
        }
        history = new_model(History, values, private={}, fields_set=set(values))
        stamps = self.stamper(plan, view)
        return history.sealed(stamps, view.dropped, open_turn(self.rows))

    def stamper(self, plan: ViewPlan, view: View) -> Stamper:
        """Return the function that makes the stamp of a view."""
        return stamper(
            self.cached.conversation,
            self.policy,
            counter=self.reader.counter.name,
            entry=self.last_entry,
            ordinal=self.log.tail.messages,
            summary=self.summary.token if self.summary else "",
            marks=plan.marks,
            left_out_steps=len(plan.left),
            shortened=len(view.shortened),
            tokens=view.tokens,
            thinking_through=view.thinking_through,
            sizes=view.sizes,
            smaller=frozenset((*view.stubbed, *view.placeholders, *view.shortened)),
        )


def _report(load: Load, plan: ViewPlan, view: View) -> HistoryReport:
    budget = load.policy.max_tokens
    values = {
        "stubbed": view.stubbed,
        "placeholders": view.placeholders,
        "shortened": view.shortened,
        "left_out_turns": load.turns_before(plan.begin) if load.rows else 0,
        "left_out_steps": len(plan.left),
        "is_excursion": plan.is_excursion,
        "missing_results": view.missing_results,
        "orphans": view.orphans,
        "late_results": view.late_results,
        "moved": view.moved,
        "over_budget": budget is not None and view.tokens > budget,
        "tokens_before": load.log.tail.tokens,
        "tokens_after": view.tokens,
        "tokens_unsummarized": load.unsummarized,
        "counter_error": "".join(load.reader.counter.errors),
        "request_bytes": BYTES_PER_TOKEN * view.tokens + sum(map(request_length, view.messages)),
        "documents": load.documents,
        "bytes": load.size,
        "round_trips": load.round_trips,
        "reasons": (),
        "reasons_before": None,
    }
    return new_model(HistoryReport, values, fields_set=set(values))


def is_continued_by(cached: Sequence[Entry], entries: Sequence[Entry]) -> bool:
    """Return True if the entries just read begin with the last cached one."""
    pair = [
        (entry.totals, [message.digest for message in entry.messages])
        for entry in (*cached[-1:], *entries[:1])
    ]
    return len(pair) == 2 and pair[0] == pair[1]


def differs(tail: Totals | None, entries: Sequence[Entry]) -> bool:
    """Return True if the log has another entry at the number of the cached tail."""
    return any(
        tail and entry.number == tail.entries and entry.totals.link != tail.link
        for entry in entries
    )


def entries_needed(first: int, tail: Totals, policy: HistoryPolicy) -> int:
    """Estimate how many entries to read at once: those since a known one, or enough to fill the policy's limits."""
    active = tail.entries * tail.active // tail.messages if tail.messages else 0
    limits = ((policy.max_tokens, tail.view_tokens), (policy.max_turns, tail.turns))
    needed = min([active, *(limit * active // total for limit, total in limits if limit and total)])
    since = tail.entries - first + 1 if first else 0
    return min(max(_MIN_ENTRIES, max(needed, 5 * since // 4) + _MORE_ENTRIES), _MAX_ENTRIES)
