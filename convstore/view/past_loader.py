"""Loads a view as of an entry: reads the log only up to it, and writes nothing.

Everything else is the work of the loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from convstore.exceptions import CorruptDocumentError, UnknownMessageError
from convstore.log.state import NO_RECORD, State, ViewRecord
from convstore.log.summary import SummaryRecord
from convstore.messages.values import Codec
from convstore.mongo.keys import entry_id
from convstore.mongo.log import VIEW_FIELDS
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import Snapshot
from convstore.values.models import History
from convstore.values.policy import HistoryPolicy, view_key
from convstore.values.stamps import ViewMarks, ViewReason
from convstore.view.load import Load, entries_needed
from convstore.view.loader import Loader
from convstore.view.reasons import reasons_of
from convstore.view.rule import Decision
from convstore.view.view import Stamper, past_decision


class Point(NamedTuple):
    """The end of a past view.

    Attributes:
        entry: Its last entry.
        summary: Its summary.
        marks: What it left out and shortened, if a stamp says so.
        record: Else the policy's record at that time.
        is_first_use: True if that is no longer known, so that the view is decided as at first use.
    """

    entry: int
    summary: SummaryRecord | None
    marks: ViewMarks | None = None
    record: ViewRecord = NO_RECORD
    is_first_use: bool = False


class PastLoad(NamedTuple):
    """A view as of an entry.

    Attributes:
        history: The view.
        reasons: Why each message is shown as it is.
        ordinal: Last ordinal of the log at that time.
        version: Version of the summary that the view shows, 0 for none.
        stamper: Makes the stamp of the view.
    """

    history: History
    reasons: Sequence[ViewReason]
    ordinal: int
    version: int
    stamper: Stamper


class PastLoader(Loader):
    """Loads past views for all conversations of a store."""

    _keeps_payloads = False

    def with_codec(self, codec: Codec) -> PastLoader:
        """Return a loader that decodes with another codec."""
        services = self._reader.with_codec(codec), self._ends, self._states, self._cache
        return PastLoader(*services, codec=codec, counter=self._counter, clock=self._clock)

    async def load_past(self, cached: CachedConversation, point: Point, policy: HistoryPolicy) -> PastLoad:
        """Return the view as it was after an entry; UnknownMessageError if it never was there."""
        tail = cached.tail or await self._reader.tail(cached)
        entry, limit = point.entry, entries_needed(0, tail, policy)
        entries = await self._reader.log.entries(cached.conversation, before=entry + 1, limit=limit, fields=VIEW_FIELDS)
        if not entries or entries[-1].number != entry:
            if not 1 <= entry <= (await self._reader.log.last_totals(cached.conversation)).entries:
                raise UnknownMessageError
            raise CorruptDocumentError(entry_id(cached.conversation, entry), "the entry is missing")
        totals = entries[-1].totals
        state = State(cached.conversation, entries[-1].at, summary=point.summary)
        load = Load(policy, view_key(policy, self._counter.name), Snapshot(cached), state, record=point.record)
        load.count(entries)
        await self._take_snapshot(load, totals, entries)
        load.add_end(await self._reader.counted(entries), await self._reader.recount_tail(cached, totals))
        self._take_beginning(load)
        load.system = load.system if load.is_complete and not load.summary else None
        marks = point.marks
        decision = await self._decide(load) if marks is None else await self._rendered(load, marks)
        view = await self._show(load, decision)
        shown = load.rows[decision.begin :]
        reasons = reasons_of(
            view,
            shown,
            decision.shown,
            policy,
            system=load.system or (),
            summary=load.summary,
            gaps=load.log.active.gaps(totals.messages),
            last=totals.messages,
        )
        version = load.summary.version if load.summary else 0
        history = self._history(load, decision, view)
        return PastLoad(history, reasons, totals.messages, version, self._stamper(load, decision, view))

    async def _rendered(self, load: Load, marks: ViewMarks) -> Decision:
        """Return the decision that a stamp has, reading back to its start."""
        while not load.is_complete and not (load.rows and load.rows[0].message.ordinal <= marks.start):
            await self._read_more(load)
        await self._read_beginning(load)
        return past_decision(load, self._decoder(load), marks)
