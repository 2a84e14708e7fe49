"""Lists and describes conversations: title, dates, counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import EllipsisType
from typing import Any

from convstore.exceptions import CorruptDocumentError, InvalidInputError, StoreError
from convstore.messages.values import Codec
from convstore.mongo.heads import Head, Heads
from convstore.mongo.log import Log
from convstore.runtime.cache import ConversationCache
from convstore.runtime.clock import Clock
from convstore.runtime.open_heads import OpenHeads
from convstore.runtime.parallel import in_parallel
from convstore.values.models import ConversationInfo, ConversationPage, MessagePreview
from convstore.values.scope import Scope, check_number

_DETAIL_CHARACTERS = 100_000
_MAX_PAGE = 1_000
_USAGE = ("input_tokens", "output_tokens", "total_tokens")


class Catalog:
    """Lists and describes conversations."""

    def __init__(
        self,
        heads: Heads,
        log: Log,
        conversations: ConversationCache,
        open_heads: OpenHeads,
        *,
        codec: Codec,
        clock: Clock,
    ) -> None:
        self._heads, self._log, self._cache, self._open_heads = heads, log, conversations, open_heads
        self._codec, self._clock = codec, clock

    async def info(self, scope: Scope) -> ConversationInfo:
        """Return exact information about a conversation; the counts come from the log, not from the head."""
        head = await self._heads.find(dict(scope))
        if head is None:
            return ConversationInfo(scope=dict(scope))
        totals = await self._log.last_totals(head.conversation)
        updated_at = totals.updated_at or head.updated_at
        return self._info(replace(head, totals=totals, updated_at=updated_at), *head.described(self._codec))

    async def scope_of(self, conversation_id: str, partial_scope: Scope) -> dict[str, str] | None:
        """Return the scope of the conversation with an id; None if there is none with these scope values."""
        head = await self._heads.find_by_conversation(conversation_id)
        return head.scope if head and set(partial_scope) <= set(head.scope.items()) else None

    async def page(self, partial_scope: Scope, *, limit: int, cursor: str | None) -> ConversationPage:
        """Return a page of the conversations with these scope values, newest first."""
        heads, next_cursor = await self._page(partial_scope, limit=limit, cursor=cursor)
        return ConversationPage(conversations=[self._listed(head) for head in heads], next_cursor=next_cursor)

    async def newest(self, partial_scope: Scope, *, limit: int) -> list[tuple[Head, ConversationInfo]]:
        """Return the newest conversations with these scope values, with their heads."""
        heads, _ = await self._page(partial_scope, limit=limit, cursor=None)
        return [(head, self._listed(head)) for head in heads]

    async def _page(self, partial_scope: Scope, *, limit: int, cursor: str | None) -> tuple[list[Head], str | None]:
        check_number(limit, name="limit", minimum=1, maximum=_MAX_PAGE)
        if cursor is None:
            await self._open_heads.flush(partial_scope)
        found = await self._heads.page(dict(partial_scope), limit=limit + 1, cursor=cursor)
        shown, now = found[:limit], self._clock.now()
        overdue = [head for head, _ in shown if head.open_until and head.open_until <= now]
        read = {head.conversation: head for head in await in_parallel(self._with_last_entry, overdue)}
        heads = [read.get(head.conversation, head) for head, _ in shown]
        # The cursor follows the stored order of heads; the page is sorted by the dates it shows.
        heads.sort(key=lambda head: head.updated_at, reverse=True)
        return heads, shown[-1][1] if len(found) > limit else None

    async def _with_last_entry(self, head: Head) -> Head:
        """Return an overdue open head with totals from the log, because its process may have died after an append."""
        try:
            totals = await self._log.last_totals(head.conversation)
        except CorruptDocumentError:
            return head  # loads and `verify` report the damage; the listing still shows the other conversations
        return replace(head, totals=totals, updated_at=max(head.updated_at, totals.updated_at or head.updated_at))

    async def update(
        self, scope: Scope, *, title: str | EllipsisType | None, metadata: Mapping[str, Any] | EllipsisType
    ) -> None:
        """Set title or metadata, or both."""
        if title is not ... and title is not None and type(title) is not str:
            raise InvalidInputError(f"title must be a str or None, not {type(title).__name__}")
        if metadata is not ... and type(metadata) is not dict:
            raise InvalidInputError(f"metadata must be a dict, not {type(metadata).__name__}")
        details = {name: value for name, value in (("title", title), ("metadata", metadata)) if value is not ...}
        encoded = {name: self._codec.encode(value, path=name) for name, value in details.items()}
        if too_long := [name for name, text in encoded.items() if len(text) > _DETAIL_CHARACTERS]:
            raise InvalidInputError(f"{too_long[0]} is longer than {_DETAIL_CHARACTERS:,} characters; shorten it")
        described = False
        while not described:  # retry if the conversation was deleted in between
            head, _ = await self._heads.claim(dict(scope), at=self._clock.now())
            cached = self._cache.add(scope, head.conversation)
            described = await self._heads.describe(dict(scope), cached.conversation, encoded)

    def _listed(self, head: Head) -> ConversationInfo:
        """Return a row of a listing, which says what of it cannot be read."""
        try:
            return self._info(head, *head.described(self._codec), problem=head.problem)
        except StoreError as error:
            return self._info(head, None, {}, problem=str(error))

    def _info(self, head: Head, title: str | None, metadata: dict[str, Any], *, problem: str = "") -> ConversationInfo:
        totals, preview = head.totals, head.totals.preview
        return ConversationInfo(
            scope=head.scope,
            conversation_id=head.conversation,
            title=title,
            metadata=metadata,
            created_at=head.created_at,
            updated_at=head.updated_at,
            message_count=totals.active,
            turns=totals.turns,
            tokens=totals.tokens,
            bytes=totals.stored_bytes,
            usage={model: dict(zip(_USAGE, counts, strict=True)) for model, counts in totals.usage.items()},
            last_message=MessagePreview(type=preview.type, text=preview.text) if preview else None,
            problem=problem,
        )
