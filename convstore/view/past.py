"""Builds views again as they were: from a stamp, or as of a message.

It reads the log only up to an entry and applies the rewinds, the summary and the policy's record of that moment. It
writes nothing.
"""

from __future__ import annotations

from convstore.exceptions import CorruptDocumentError, InvalidInputError, UnknownMessageError
from convstore.log.state import NO_RECORD
from convstore.log.summary import SummaryRecord
from convstore.messages.tokens import NamedCounter
from convstore.messages.values import Codec
from convstore.mongo.keys import SUMMARIES, summary_id
from convstore.mongo.states import States
from convstore.mongo.summaries import Summaries
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import LogReader
from convstore.values.models import HistoryReport, PastView
from convstore.values.policy import HistoryPolicy, view_key
from convstore.values.scope import Scope, check_id, check_number
from convstore.values.stamps import VIEW_FORMAT, ViewStamp, check_stamp
from convstore.view.past_loader import PastLoad, PastLoader, Point
from convstore.view.view import stamper

_MAX_REASONS = 500

Moment = ViewStamp | str | int | None
"""A stamp, a message id, an ordinal, or None for now."""


class PastViews:
    """Builds past views for all conversations of a store."""

    def __init__(
        self,
        reader: LogReader,
        ends: LogEndReader,
        states: States,
        summaries: Summaries,
        loader: PastLoader,
        *,
        codec: Codec,
        counter: NamedCounter,
    ) -> None:
        self._reader, self._ends, self._states, self._summaries = reader, ends, states, summaries
        self._loader, self._codec, self._counter = loader, codec, counter

    async def view_at(
        self, scope: Scope, at: Moment, policy: HistoryPolicy, *, reasons_before: int | None, has_policy: bool
    ) -> PastView:
        """Return a view as it was; see `Conversation.view_at`."""
        cached = await self._reader.find(scope)
        if cached is None and at is not None and not (isinstance(at, ViewStamp) and not at.conversation_id):
            raise _missing(at)
        view, has_unknown_types = self._empty(cached, policy), False
        if cached:
            async with self._reader.reading(cached):
                point = await self._point(cached, at, policy)
                if point.entry:
                    past, has_unknown_types = await self._load(cached, point, policy)
                    view = self._view(past, point, policy, reasons_before)
        return view if has_policy else self._compared(view, at, has_unknown_types=has_unknown_types)

    def _empty(self, cached: CachedConversation | None, policy: HistoryPolicy) -> PastView:
        """Return the view before the first message."""
        stamps = stamper(cached.conversation if cached else "", policy, counter=self._counter.name)
        return PastView(messages=[], report=HistoryReport(), policy=policy).sealed(stamps)

    async def _point(self, cached: CachedConversation, at: Moment, policy: HistoryPolicy) -> Point:
        """Return what the view that the caller asks for depends on.

        Raises:
            UnknownMessageError: This conversation has no such message, or no view with this stamp.
        """
        key = view_key(policy, self._counter.name)
        if at is None:
            end = await self._ends.read(cached)
            number, record = end.entries[-1].number if end.entries else 0, end.state.views.get(key, NO_RECORD)
            return Point(number, end.state.summary, record=record)
        if isinstance(at, ViewStamp):
            if at.conversation_id != cached.conversation:
                raise _missing(at)
            is_same = key == view_key(at.history_policy, self._counter.name)
            return Point(at.entry, await self._summary(cached, at.summary), at.marks if is_same else None)
        rows = await self._reader.messages_by_id(cached, [at]) if isinstance(at, str) else {}
        row = rows.get(at) if isinstance(at, str) else await self._reader.log.message_at(cached.conversation, at)
        if row is None:
            raise _missing(at)
        entry = row.entry.number
        changes, moves, is_cut = await self._states.past(cached.conversation, key)
        token = next((token for seen, token in reversed(changes) if seen < entry), "")
        seen = [move.record for move in moves if move.seen <= entry]
        record = seen[-1] if seen else NO_RECORD
        return Point(entry, await self._summary(cached, token), record=record, is_first_use=is_cut and not seen)

    async def _summary(self, cached: CachedConversation, token: str) -> SummaryRecord | None:
        if not token:
            return None
        found = await self._summaries.find(cached.conversation, token)
        if found is None:
            if token not in {known for _, known in await self._states.changes(cached.conversation)}:
                raise UnknownMessageError  # a stamp named it
            key = summary_id(cached.conversation, token)
            raise CorruptDocumentError(key, "the summary of a past view is missing", collection=SUMMARIES)
        return found

    async def _load(self, cached: CachedConversation, point: Point, policy: HistoryPolicy) -> tuple[PastLoad, bool]:
        """Load the view; values of unregistered types are kept as they are stored. True if there were any."""
        try:
            return await self._loader.load_past(cached, point, policy), False
        except CorruptDocumentError:
            lenient = Codec()
            lenient.copy_from(self._codec)
            lenient.keep_unknown()
            loader = self._loader.with_codec(lenient)
            return await loader.load_past(cached, point, policy), True

    def _view(self, past: PastLoad, point: Point, policy: HistoryPolicy, reasons_before: int | None) -> PastView:
        """Return the view with one page of its reasons."""
        history = past.history
        reasons = [one for one in past.reasons if reasons_before is None or one.first < reasons_before]
        page = reasons[-_MAX_REASONS:]
        left = page[0].first if len(page) < len(reasons) else None
        view = PastView(
            messages=history.messages,
            summary=history.summary,
            tokens=history.tokens,
            report=history.report.model_copy(update={"reasons": tuple(page), "reasons_before": left}),
            entry=point.entry,
            ordinal=past.ordinal,
            is_first_use=point.is_first_use,
            version=past.version,
            policy=policy,
        )
        return view.sealed(past.stamper)

    def _compared(self, view: PastView, at: Moment, *, has_unknown_types: bool) -> PastView:
        """Compare a view with its stamp, if there is one."""
        if not isinstance(at, ViewStamp):
            return view
        if (stamp := view.stamp) and stamp.digest == at.digest:
            return view.model_copy(update={"match": "exact"})
        difference = _difference(at, self._counter.name, has_unknown_types=has_unknown_types)
        return view.model_copy(update={"match": "differs", "difference": difference})


def check_moment(at: object) -> Moment:
    """Return the moment that a caller asks for if it is valid.

    Raises:
        InvalidInputError: It is no stamp, message id, ordinal or None.
    """
    if at is None:
        return at
    if isinstance(at, ViewStamp):
        return check_stamp(at)
    if isinstance(at, str):
        return check_id(at, name="at")
    if type(at) is int:
        check_number(at, name="at", minimum=1, maximum=2**53)
        return at
    raise InvalidInputError(f"at is a stamp, a message id or an ordinal, not {type(at).__name__}")


def _missing(at: Moment) -> UnknownMessageError:
    return UnknownMessageError("" if isinstance(at, ViewStamp) else str(at))


def _difference(stamp: ViewStamp, counter: str, *, has_unknown_types: bool) -> str:
    """Return the first reason that explains why a view differs from its stamp."""
    reasons = {
        "adapted": stamp.adapted,
        "view format": stamp.format != VIEW_FORMAT,
        "counter": stamp.counter != counter,
        "type": has_unknown_types,
    }
    return next((name for name, is_true in reasons.items() if is_true), "log")
