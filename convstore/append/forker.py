"""Fork a conversation: create another one that begins with a copy of its messages.

Entries keep their numbers, ordinals and links, so source ids, message ids and views are the same. The head of the copy
is written last; see `mongo.copies`.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from convstore.append.rewinder import Rewinder
from convstore.exceptions import (
    ConversationDeletedError,
    ForkRefusedError,
    InvalidInputError,
    InvalidScopeError,
    UnknownMessageError,
)
from convstore.log.entry import Entry, Totals
from convstore.log.facts.event import EVENT
from convstore.log.facts.standing import STANDING, ShownVariant, Standing, branched_after
from convstore.log.facts.table import cut
from convstore.log.rewind import NO_REWINDS, Ranges, Rewinds, changed, continued
from convstore.log.state import forked
from convstore.log.totals import numbers_after, totals_after
from convstore.messages.encoding import decode_message, digest_of
from convstore.mongo.copies import Copies
from convstore.mongo.heads import Origin
from convstore.mongo.log import StoredMessageRow
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.cache import CachedConversation
from convstore.runtime.clock import APPEND_SECONDS, append_timeout
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import Snapshot
from convstore.runtime.places import standing_of
from convstore.values.scope import PATH, Scope, check_id

_SWEEP_AFTER = timedelta(seconds=5 * APPEND_SECONDS)


class _Cut(NamedTuple):
    """The end of a fork.

    Attributes:
        through: Number of the last entry that is copied unchanged.
        tail: The totals after the last entry of the fork.
        active: The active messages of the fork.
        entry: The entry after `through`, if only a part of it is copied.
    """

    through: int
    tail: Totals
    active: Rewinds
    entry: Entry | None = None


class Forker:
    """Forks conversations of a store."""

    def __init__(
        self, ends: LogEndReader, rewinder: Rewinder, tombstones: Tombstones, copies: Copies
    ) -> None:
        self._reader = ends.reader
        self._log = ends.reader.log
        self._heads = ends.reader.heads
        self._ends = ends
        self._rewinder = rewinder
        self._tombstones = tombstones
        self._copies = copies

    async def fork(
        self, scope: Scope, new_scope: Scope, *, before_id: str | None, key: str
    ) -> None:
        """Make the fork; see `Conversation.fork`. About twenty commands, and four for each thousand entries."""
        if PATH in dict(new_scope):
            raise InvalidScopeError(
                "new_scope names the conversation of a sub-agent, which cannot be a fork; pass "
                "the scope keys of the store only"
            )
        check_id(key, name="key")
        if before_id is not None:
            check_id(before_id, name="before_id")
        request = digest_of(json.dumps([before_id, key])).hex()
        cached = await self._reader.find(scope)
        source = cached.conversation if cached else ""
        if await self._is_made(new_scope, source, request):
            return
        if cached is None:
            if before_id:
                raise UnknownMessageError(before_id)
            raise InvalidInputError("there is no conversation to fork")
        async with append_timeout(), self._reader.reading(cached):
            if before_id is None:
                cut = await self._whole(cached)
            else:
                cut = await self._before(cached, before_id)
            target = secrets.token_hex(12)
            await self._tombstones.begin_copy(target, dict(new_scope), sweep_after=_SWEEP_AFTER)
            await self._copy(cached, target, cut)
            now = await self._heads.find(dict(scope))
            if now is None or now.conversation != source:
                raise ConversationDeletedError("the conversation was deleted while it was forked")
            origin = Origin(source, cut.tail.messages, request)
            at = self._reader.clock.now()
            head, is_new = await self._heads.claim(
                dict(new_scope), updated_at=at, written_at=at, fork=(target, origin)
            )
            if not is_new:
                await self._is_made(new_scope, source, request)
            elif not await self._tombstones.end_copy(target):
                await self._tombstones.write_tombstone(head, sweep_after=_SWEEP_AFTER, pruned=False)
                raise ConversationDeletedError("the new scope was erased while the fork was made")

    async def _is_made(self, scope: Scope, source: str, request: str) -> bool:
        """Return True if the scope has this fork, False if it has no conversation. One command.

        Raises:
            ForkRefusedError: The scope has another conversation.
        """
        if (head := await self._heads.find(dict(scope))) is None:
            return False
        origin = head.origin
        if origin is None or origin.request != request or source not in ("", origin.conversation):
            raise ForkRefusedError(
                "new_scope has another conversation, or a fork of another request"
            )
        return True

    async def _copy(self, cached: CachedConversation, target: str, cut: _Cut) -> None:
        """Copy everything; the state is inserted before the entries, because a first entry would insert its own."""
        source = cached.conversation
        ends = self._ends
        state = await ends.state(cached)
        records = await ends.summaries.all(source) if state.newest else {}
        state, kept = forked(target, state, records, tail=cut.tail, gaps=cut.active.gaps)
        for record in kept:
            await ends.summaries.insert(target, record)
        if cut.tail.entries:
            await ends.states.insert(state)
        await self._copies.entries(source, target, through=cut.through)
        if cut.entry:
            await self._copies.chunks(source, target, [cut.entry])
            await self._log.insert(target, [cut.entry])
        await self._copies.annotations(source, target, through=cut.tail.messages)

    async def _whole(self, cached: CachedConversation) -> _Cut:
        """Return the end of the log, without the entries of a variant that is not finished."""
        tail = await self._copies.last_shown(cached.conversation)
        active = (await self._reader.snapshot(cached, tail, known=NO_REWINDS)).active
        if tail.turn and not tail.over:
            raise ForkRefusedError(
                "the last turn is not finished: fork later, or before_id=<id of its question>"
            )
        return _Cut(tail.entries, tail, active)

    async def _before(self, cached: CachedConversation, message_id: str) -> _Cut:
        """Return the end of a fork that has everything before an active message."""
        rows = await self._reader.messages_by_id(cached, [message_id])
        if not rows:
            raise UnknownMessageError(message_id)
        row = rows[message_id]
        log = await self._reader.snapshot(cached)
        log.check_active([row.message])
        whole = row.entry
        ordinal = row.message.ordinal
        number = whole.number
        ranges = log.active.through(ordinal)
        is_first = ordinal == whole.first
        tail = Totals()
        if number > 1:
            tail = (await self._log.entry(cached.conversation, number - 1)).totals
        there = await self._reader.snapshot(cached, tail, known=NO_REWINDS)
        if (
            is_first
            and ranges == there.active.ranges
            and not cut(whole.facts, ordinal, has_messages=False)
        ):
            return _Cut(tail.entries, tail, there.active)
        _, point = await self._rewinder.point(cached, ordinal, log.active)
        entry = await self._standing(self._last_entry(row, there, point, ranges), row, there)
        return _Cut(
            tail.entries,
            entry.totals,
            there.active.after(entry) if entry.is_rewind else there.active,
            entry,
        )

    def _last_entry(
        self, row: StoredMessageRow, log: Snapshot, point: Totals, ranges: Ranges
    ) -> Entry:
        """Return the part of an entry before one of its messages; afterwards the messages in `ranges` are rewound."""
        whole = row.entry
        before = log.tail
        kept = tuple(message for message in whole.messages if message.ordinal < row.message.ordinal)
        sources = tuple(
            source
            for source in whole.sources
            if source.message_id in {message.id for message in kept}
        )
        facts = cut(whole.facts, row.message.ordinal, has_messages=bool(kept))
        at = whole.at if kept or facts else self._reader.clock.now()
        decoded = [(message, decode_message(self._reader.codec, message.body)) for message in kept]
        through, given = numbers_after(before, whole, sources)
        totals = replace(
            continued(totals_after(before, decoded, at=at, facts=facts), point),
            sources_through=through,
            given_through=given,
            shown_at=before.entries + 1 if sources else before.shown_at,
            link=whole.totals.link if kept else self._reader.clock.link(),
        )
        first = before.messages + 1
        entry = Entry(first, at, kept, totals, before.link, sources, facts, whole.rules)
        if ranges == log.active.ranges:
            return entry
        return changed(entry, log.active, ranges, point=point, undo=0)

    async def _standing(self, entry: Entry, row: StoredMessageRow, log: Snapshot) -> Entry:
        """Return the last entry of a fork; if it is cut from an entry of a variant, record the variant that is shown.

        If the fork has a part of the variant, that part is shown, without the end of the turn and without a decision.
        Else no variant is shown at its place.
        """
        event = EVENT.of(row.entry)
        if event is None or not event.variant or not entry.is_rewind:
            return entry
        branch = await self._reader.branch(log.cached, event, through=row.entry.number)
        is_edit = event.turn == event.variant
        turn_id = event.first_turn if is_edit else event.turn
        here = await standing_of(self._reader, log, turn_id, event.first_turn)
        if branch.own and branch.own[0].first < row.message.ordinal:
            shown = here.finished(event.turn, event.variant, began=branch.began)
            recorded = event._replace(kind="append", call="", values="")
            return _recording(EVENT.on(entry, recorded), shown, branched=0)
        shown = here.changed(ShownVariant("" if is_edit else event.turn))
        return _recording(entry, shown, branched=entry.totals.branched)


def _recording(entry: Entry, standing: Standing, *, branched: int) -> Entry:
    """Return an entry that records the variant shown at a place; `branched` is for its totals if none is unfinished."""
    made = STANDING.on(entry, standing)
    return replace(made, totals=replace(made.totals, branched=branched_after(made, branched)))
