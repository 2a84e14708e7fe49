"""Loads a view as of an entry: reads the log only up to it, uses no stored start of a view, and writes nothing.

Everything else is the work of the loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from convstore.exceptions import CorruptDocumentError, UnknownMessageError
from convstore.log.state import NO_START, State
from convstore.log.summary import SummaryRecord
from convstore.messages.values import Codec
from convstore.mongo.keys import entry_id
from convstore.runtime.cache import CachedConversation
from convstore.values.models import History
from convstore.values.policy import HistoryPolicy
from convstore.values.stamps import ViewReason
from convstore.view.load import Load, entries_needed
from convstore.view.loader import Loader
from convstore.view.reasons import reasons_of
from convstore.view.view import Stamper


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
        services = self._reader.with_codec(codec), self._ends, self._log, self._states, self._cache
        return PastLoader(*services, codec=codec, counter=self._counter)

    async def load_past(
        self, cached: CachedConversation, entry: int, summary: SummaryRecord | None, policy: HistoryPolicy
    ) -> PastLoad:
        """Return the view as it was after an entry; UnknownMessageError if it never was there."""
        tail = cached.tail or await self._reader.tail(cached)
        limit = entries_needed(NO_START, tail, policy)
        entries = await self._log.entries_before(cached.conversation, before=entry + 1, limit=limit)
        if not entries or entries[-1].number != entry:
            if not 1 <= entry <= (await self._log.last_totals(cached.conversation)).entries:
                raise UnknownMessageError
            raise CorruptDocumentError(entry_id(cached.conversation, entry), "the entry is missing")
        totals = entries[-1].totals
        load = Load(policy, cached, State(cached.conversation, entries[-1].at, summary=summary))
        load.count(entries)
        missing = cached.rewinds.missing(totals)
        load.rewinds = await self._reader.rewinds(cached, totals)
        load.count_rewinds(missing)
        self._use_summary(load, totals)
        used = await self._reader.counted(
            [one for one in entries if not load.summary or one.number >= load.summary.entry]
        )
        load.add_end(used, await self._reader.recount_tail(cached, totals))
        self._take_beginning(load)
        load.system = load.system if load.is_complete and not load.summary else None
        if not load.is_complete and load.rows:  # the note names them, and its size decides where the view begins
            load.earlier_results = load.named(await self._read_before(load, load.rows[0].message.ordinal))
        window, view = await self._show(load, await self._choose(load))
        shown = load.rows[window.start :]
        reasons = reasons_of(
            view,
            shown,
            policy,
            system=load.system or (),
            summary=load.summary,
            rewinds=load.rewinds,
            last=totals.messages,
        )
        version = load.summary.version if load.summary else 0
        history = self._history(load, window, view)
        return PastLoad(history, reasons, totals.messages, version, self._stamper(load, view))
