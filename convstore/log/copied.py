"""Continue a log in a copy of it from which entries are missing.

The copy numbers entries and messages without gaps. References to an entry number or an ordinal are translated to the
same entry or message of the copy: in rewinds, variants, items and cuts. Message ids, source ids, dates, links and
bodies are not changed. `verify.repair` reads and writes.

The module is long because each kind of reference to a number or an ordinal has its translation.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.exceptions import CorruptDocumentError
from convstore.log.active_totals import ActiveTotals
from convstore.log.assignment import saw_of
from convstore.log.branch import Branch, branch_of
from convstore.log.entry import Entry, EntryMessage, Facts, Over, Totals
from convstore.log.facts.branch import BRANCH, own_totals
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.facts.items import item_rows
from convstore.log.facts.rewound import REWOUND, Rewound, RewoundRange
from convstore.log.facts.standing import STANDING, Standing
from convstore.log.facts.table import kept_source_ids, moved
from convstore.log.rewind import NO_REWINDS, Rewinds, changed, continued
from convstore.log.stored_message import read_message, stored_stamp
from convstore.log.totals import RunningTotals, numbers_after
from convstore.messages.encoding import decode_message
from convstore.messages.values import Codec
from convstore.values.ranges import has, merge_ranges, without
from convstore.values.stamps import ViewStamp, write_stamp

Pairs = list[tuple[int, int]]
"""First and last ordinals of ranges, in order."""


class _Span(NamedTuple):
    """An entry of the copy that has messages."""

    first: int
    last: int
    number: int


@dataclass(slots=True)
class LogCopy:
    """A copy of a log, with the data that is needed to add the next entry: some 400 bytes for each message.

    Attributes:
        codec: Decodes messages.
        tail: The totals of the copy's last entry.
        ordinals: The ordinal in the copy for each ordinal of the log; 0 for a message that the copy lacks.
        log_active: The active messages of the log after the entries that were matched.
        log_sources: The highest source id in use after any of these entries.
        matched: Number of these entries.
        summaries: Tokens of the copy's summaries.
        items: Positions of items in the copy, by their ids.
        variants: The variants that began in the copy, by the first turn at their place and their ids.
        standings: The variants that are shown in the copy, by the first turn at their place.
    """

    codec: Codec
    tail: Totals = field(default_factory=Totals)
    ordinals: dict[int, int] = field(default_factory=dict)
    log_active: Rewinds = NO_REWINDS
    log_sources: int = 0
    matched: int = 0
    summaries: frozenset[str] = frozenset()
    items: dict[str, tuple[int, int]] = field(default_factory=dict)
    variants: dict[tuple[str, str], Branch] = field(default_factory=dict)
    standings: dict[str, Standing] = field(default_factory=dict)
    _ids: dict[str, int] = field(default_factory=dict)
    _source_ids: set[int] = field(default_factory=set)
    _totals: ActiveTotals = field(default_factory=ActiveTotals)
    _spans: list[_Span] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    _links: dict[int, int] = field(default_factory=dict)
    _item_positions: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    _ends: dict[int, tuple[Over, str]] = field(default_factory=dict)
    _replies: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)

    @property
    def active(self) -> Rewinds:
        """The active messages of the copy."""
        return self._totals.messages

    def add(self, entry: Entry) -> None:
        """Add the next entry of the copy."""
        self.tail = entry.totals
        if BRANCH.of(entry) is None:
            self._ends[entry.totals.turn] = entry.totals.over, entry.totals.cut
        self._links.setdefault(entry.totals.link, entry.number)
        self._totals.add(entry)
        self._add_messages(entry)
        self._source_ids.update(kept_source_ids(entry))
        for row in item_rows([entry]):
            if row.item.id:
                self.items[row.item.id] = row.place
        event = EVENT.of(entry)
        if event and event.variant:
            self._add_to_variant(entry, event)
        if standing := STANDING.of(entry):
            self.standings[standing.place] = standing

    def _add_messages(self, entry: Entry) -> None:
        if entry.messages:
            self._spans.append(_Span(entry.first, entry.last, entry.number))
        for message in entry.messages:
            self._ids[message.id] = message.ordinal
        for turn, ordinal, is_answer in _replies_in(entry):
            self._replies.setdefault(turn, []).append((ordinal, is_answer))

    def _add_to_variant(self, entry: Entry, event: TurnEvent) -> None:
        key = (event.first_turn, event.variant)
        if event.kind == "begin":
            self.variants[key] = branch_of([entry], self.active)
        elif key in self.variants:
            self.variants[key] = self.variants[key].after(entry)

    def match(self, entry: Entry) -> None:
        """Record the positions in the copy of an entry of the log: of its messages, its items and itself."""
        for message in entry.messages:
            self.ordinals[message.ordinal] = self._ids.get(message.id, 0)
        for row in item_rows([entry]):
            if position := self.items.get(row.item.id):
                self._item_positions.append((row.place, position))
        self.log_sources = max(self.log_sources, entry.totals.sources_through)
        self.matched += 1
        self._numbers[entry.number] = self._links.get(entry.totals.link, 0)
        if rewinds := _after(self.log_active, entry):
            self.log_active = rewinds

    def has(self, entry: Entry) -> bool:
        """Return True if the copy has an entry of the log; False for entries with items alone, which share a link."""
        return entry.totals.link in self._links and not entry.has_only_items

    def follow(self, entry: Entry, payloads: Mapping[str, str]) -> Entry | None:
        """Return the entry of the copy for an entry of the log, without messages and items that the copy has.

        Returns None if the copy has everything. `payloads` are the readable payloads of its messages, by message id.
        """
        kept = self._assign_ordinals(entry)
        if entry.messages and not kept:
            return None
        facts = moved(entry, self)
        event = EVENT.among(facts)
        branch = self._branch(entry, event)
        made = self._made(entry, kept, payloads, facts, branch)
        if branch is not None:
            made = branch.entry_of(made, self.tail, self.active)
            # its ranges may include those of a rewind whose own entry was lost
            if BRANCH.of(entry):
                made = self._with_rewinds(made, entry)
        elif event is not None and event.kind == "begin":
            made = BRANCH.on(made, self._point(entry, made, event))
            made = replace(made, totals=replace(made.totals, branched=self.tail.turn))
        else:
            made = self._with_rewinds(made, entry)
        reserves = made.totals.sources_through > self.tail.sources_through
        is_needed = bool(made.messages or made.facts or reserves)
        return made if is_needed else None

    def has_source_ids(self, entry: Entry) -> bool:
        """Return True if the copy has a source id of an entry that the store did not choose."""
        return not self._source_ids.isdisjoint(kept_source_ids(entry))

    def _assign_ordinals(self, entry: Entry) -> list[EntryMessage]:
        """Assign ordinals of the copy to the messages of an entry; return the messages that the copy lacks."""
        kept = [message for message in entry.messages if message.id not in self._ids]
        for message in entry.messages:
            self.ordinals[message.ordinal] = self._ids.get(message.id, 0)
        for ordinal, message in enumerate(kept, self.tail.messages + 1):
            self.ordinals[message.ordinal] = ordinal
        return kept

    def _made(
        self,
        entry: Entry,
        kept: Iterable[EntryMessage],
        payloads: Mapping[str, str],
        facts: Facts,
        branch: Branch | None,
    ) -> Entry:
        """Return an entry with only the messages in `kept`, as an append to the copy would have written it."""
        before = branch.tail(self.tail) if branch else self.tail
        running = RunningTotals(before, before.sources_through)
        messages: list[EntryMessage] = []
        for message in kept:
            appended = self._appended(message, payloads.get(message.id))
            moved = self._moved_message(message)
            followed = running.follow(
                appended, moved.ordinal, turn=moved.turn, is_added=moved.is_added
            )
            if moved.type == "tool":
                moved.answers = followed.call.result
                moved.arguments = followed.call.arguments
            running.add_size(moved)
            messages.append(moved)
        ids = {message.id for message in messages}
        sources = tuple(source for source in entry.sources if source.message_id in ids)
        through, given = numbers_after(before, entry, sources)
        totals = replace(
            running.totals(entry.at, shown_now=bool(sources), facts=facts),
            counter=_counter(before, entry),
            sources_through=through,
            given_through=given,
            link=before.link if entry.has_only_items and before.link else entry.totals.link,
        )
        return replace(
            entry,
            first=before.messages + 1,
            messages=tuple(messages),
            totals=totals,
            after=before.link,
            sources=sources,
            facts=facts,
        )

    def _moved_message(self, message: EntryMessage) -> EntryMessage:
        """Return a message with the ordinals of the copy."""
        ordinal = self.ordinals[message.ordinal]
        stamp = self._moved_stamp(message)
        seen = self.ordinal_before(message.saw) or ordinal - 1
        saw = saw_of(ordinal, stamp) if stamp else min(seen, ordinal - 1)
        return replace(
            message,
            ordinal=ordinal,
            entry="",
            turn=self.ordinals.get(message.turn, 0),
            saw=saw if message.is_reply else 0,
            stamp=write_stamp(stamp) if stamp else "",
        )

    def _moved_stamp(self, message: EntryMessage) -> ViewStamp | None:
        """Return the stamp of a message with ordinals of the copy; None if the message has no stamp, or a damaged one.

        A summary that the copy lacks is removed from the stamp. Lost messages of its view are not detected here, but
        when the view is built again.
        """
        try:
            stamp = stored_stamp("", message)
        except CorruptDocumentError:
            return None
        if stamp is None:
            return None
        marks = stamp.marks
        changes = {
            "entry": self._numbers.get(stamp.entry, 0),
            "ordinal": self.ordinal_before(stamp.ordinal),
            "summary": stamp.summary if stamp.summary in self.summaries else "",
            "marks": marks._replace(
                start=self.ordinal_before(marks.start),
                short_through=self.ordinal_before(marks.short_through),
                stubs_through=self.ordinal_before(marks.stubs_through),
            ),
        }
        return stamp.model_copy(update=changes)

    def _moved_totals(self, totals: Totals) -> Totals:
        """Return totals with the turns' ordinals of the copy."""
        calls = tuple(call._replace(turn=self.ordinals.get(call.turn, 0)) for call in totals.calls)
        return replace(totals, calls=calls, turn=self.ordinals.get(totals.turn, 0))

    def _appended(self, message: EntryMessage, payload: str | None) -> BaseMessage:
        """Return a message as it was appended; if its payload is damaged, only the part in its body."""
        with suppress(CorruptDocumentError):
            return read_message(self.codec, message, payload)
        return decode_message(self.codec, message.body)

    def _with_rewinds(self, made: Entry, entry: Entry) -> Entry:
        """Return an entry that rewinds and restores the same messages in the copy as an entry did in the log."""
        rewinds = _after(self.log_active, entry)
        if rewinds is None:
            return STANDING.on(made, None)
        before = _pairs(self.log_active)
        after = _pairs(rewinds)
        rewound = self._moved(without(after, before))
        restored = self._moved(without(before, after))
        pairs = without(merge_ranges([*_pairs(self.active), *rewound]), restored)
        ends = self.tail if BRANCH.of(entry) else self._moved_totals(entry.totals)
        self._totals.count(made)
        counts = self._totals.counts(made.last, pairs)
        newest = self._totals.newest_question(pairs)
        if newest != ends.turn:  # the newest question of the log is lost
            over, cut = self._ends.get(newest, ("", ""))
            ends = replace(ends, turn=newest, over=over, cut=cut)
        if ends.over == "answered" and not self._is_answered(newest, made, pairs):
            ends = replace(ends, over="", cut="")  # its answer is lost
        point = replace(continued(made.totals, ends), **counts, counter=made.totals.counter)
        change = REWOUND.of(entry) or Rewound()
        undo = made.number if change.undo == entry.number else self._numbers.get(change.undo, 0)
        return changed(made, self.active, self._ranges(made, pairs), point=point, undo=undo)

    def _is_answered(self, turn: int, made: Entry, rewound: Pairs) -> bool:
        """Return True if the last reply of a turn, up to an entry and outside some ranges, is an answer."""
        own = [(ordinal, is_answer) for of, ordinal, is_answer in _replies_in(made) if of == turn]
        replies = reversed([*self._replies.get(turn, ()), *own])
        active = (is_answer for ordinal, is_answer in replies if not has(rewound, ordinal))
        return next(active, False)

    def _ranges(self, made: Entry, pairs: Pairs) -> tuple[RewoundRange, ...]:
        """Return the rewound ranges after an entry; ranges that were rewound before are the same objects."""
        spans = [*self._spans]
        if made.messages:
            spans.append(_Span(made.first, made.last, made.number))
        known = {range_[:2]: range_ for range_ in self.active.ranges}
        return tuple(
            known.get(pair) or _range_of(*pair, spans, until=made.number) for pair in pairs
        )

    def _moved(self, ranges: Pairs) -> Pairs:
        """Return the ranges in the copy of the messages in some ranges of the log."""
        places = (
            self.ordinals.get(ordinal, 0)
            for first, last in ranges
            for ordinal in range(first, last + 1)
        )
        return merge_ranges((place, place) for place in places if place)

    def ordinal_before(self, ordinal: int) -> int:
        """Return the ordinal in the copy of the last message up to an ordinal of the log that the copy has, or 0."""
        while ordinal and not self.ordinals.get(ordinal):
            ordinal -= 1
        return self.ordinals[ordinal] if ordinal else 0

    def entry_after(self, ordinal: int) -> int:
        """Return the number of the first entry of the copy that has only messages after an ordinal."""
        index = bisect_right(self._spans, ordinal, key=lambda span: span.first) - 1
        return self._spans[index].number + 1 if index >= 0 else 1

    def is_active(self, ordinal: int) -> bool:
        """Return True if a message of the copy is active."""
        return self.active.has(ordinal)

    def item_from(self, place: tuple[int, int]) -> tuple[int, int] | None:
        """Return the position in the copy of the first item that is at a position of the log or later."""
        places = [in_copy for in_log, in_copy in self._item_positions if in_log >= place]
        return min(places, default=None)

    def _branch(self, entry: Entry, event: TurnEvent | None) -> Branch | None:
        """Return the variant that an entry continues or finishes; None if it does neither."""
        if event is None or not event.variant or event.kind == "begin":
            return None
        known = self.variants.get((event.first_turn, event.variant))
        return known._replace(is_ending=BRANCH.of(entry) is None) if known else None

    def _point(self, entry: Entry, made: Entry, event: TurnEvent) -> Totals:
        """Return the totals at the place where a variant begins, with the counts of the active messages before it."""
        place = json.loads(event.values)[0]
        counts = self._totals.counts(place, _pairs(self.active))
        there = self._moved_totals(own_totals(entry))
        return replace(continued(made.totals, there), **counts, counter=made.totals.counter)


def reservation(before: Totals, through: int, *, at: datetime, link: int) -> Entry:
    """Return an entry without messages that reserves all source numbers up to `through`."""
    totals = replace(
        before,
        entries=before.entries + 1,
        sources_through=through,
        given_through=through,
        updated_at=at,
        link=link,
    )
    return Entry(before.messages + 1, at, (), totals, after=before.link)


def _replies_in(entry: Entry) -> Iterator[tuple[int, int, bool]]:
    """Yield turn and ordinal of each reply of a model, and True if it is an answer."""
    for message in entry.messages:
        if message.is_reply:
            yield message.turn, message.ordinal, not message.calls and not message.is_paused


def _pairs(rewinds: Rewinds) -> Pairs:
    return merge_ranges((range_.first, range_.last) for range_ in rewinds.ranges)


def _after(rewinds: Rewinds, entry: Entry) -> Rewinds | None:
    """Return the active messages after a rewind entry; None for other entries, or if the list it continues is lost."""
    if not entry.is_rewind:
        return None
    try:
        return rewinds.after(entry)
    except ValueError:
        return None


def _counter(before: Totals, entry: Entry) -> str:
    """Return the name of the token counter up to an entry; "" if there are several, so that sizes are recounted."""
    if not entry.messages:
        return before.counter
    is_same = not before.messages or before.counter == entry.totals.counter
    return entry.totals.counter if is_same else ""


def _range_of(first: int, last: int, spans: Sequence[_Span], *, until: int) -> RewoundRange:
    """Return a range of ordinals with the entries that have no other messages; `until` is the last entry of the log."""
    begin = bisect_right(spans, first, key=lambda span: span.first) - 1
    end = bisect_right(spans, last, key=lambda span: span.first) - 1
    entry = spans[begin].number if spans[begin].first == first else spans[begin].number + 1
    if spans[end].last > last:
        until = spans[end].number - 1
    elif end + 1 < len(spans):
        until = spans[end + 1].number - 1
    return RewoundRange(first, last, entry, until)
