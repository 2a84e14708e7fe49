"""List and describe conversations: title, dates, counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import EllipsisType
from typing import Any

from convstore.exceptions import CorruptDocumentError, InvalidInputError, StoreError
from convstore.log.entry import StampedCall
from convstore.log.stored_message import read_message
from convstore.messages.payload_ranges import PayloadRange
from convstore.mongo.heads import ListedHead
from convstore.runtime.log_reader import LogReader
from convstore.values.models import (
    ConversationInfo,
    ConversationPage,
    ForkOrigin,
    LastCall,
    MessagePreview,
)
from convstore.values.scope import Scope, check_number, check_text_keys

_DETAIL_CHARACTERS = 100_000
_QUESTION_CHARACTERS = 200
_MAX_PAGE = 1_000


class Catalog:
    """Lists and describes conversations."""

    def __init__(self, reader: LogReader) -> None:
        self._heads = reader.heads
        self._cache = reader.cache
        self._codec = reader.codec
        self._clock = reader.clock

    async def info(self, scope: Scope) -> ConversationInfo:
        """Return exact information about a conversation. One command."""
        found = await self._heads.find_listed(dict(scope))
        if found:
            return self._info(found, *found.head.described(self._codec))
        return ConversationInfo(scope=dict(scope))

    async def children(self, scope: Scope) -> list[ConversationInfo]:
        """Return the conversations of sub-agents directly below one, oldest first. Two commands."""
        head = await self._heads.find(dict(scope))
        if head:
            return [self._listed(child) for child in await self._heads.children(head.conversation)]
        return []

    async def scope_of(self, conversation_id: str, partial_scope: Scope) -> dict[str, str] | None:
        """Return the scope of the conversation with an id; None if it is missing or has other scope values."""
        head = await self._heads.find_by_conversation(conversation_id)
        return head.scope if head and set(partial_scope) <= set(head.scope.items()) else None

    async def page(
        self, partial_scope: Scope, *, limit: int, cursor: str | None
    ) -> ConversationPage:
        """Return a page of the conversations with these scope values, newest first. One command."""
        check_number(limit, name="limit", minimum=1, maximum=_MAX_PAGE)
        found = await self._heads.page(dict(partial_scope), limit=limit + 1, cursor=cursor)
        # The cursor follows the stored order of heads; the page is sorted by the dates it shows.
        next_cursor = found[limit - 1].cursor if len(found) > limit else None
        shown = sorted(found[:limit], key=lambda info: info.updated_at, reverse=True)
        return ConversationPage(
            conversations=[self._listed(head) for head in shown], next_cursor=next_cursor
        )

    async def newest(
        self, partial_scope: Scope, *, limit: int
    ) -> list[tuple[ListedHead, ConversationInfo]]:
        """Return the newest conversations with these scope values, with their heads. One command."""
        check_number(limit, name="limit", minimum=1, maximum=_MAX_PAGE)
        return [
            (head, self._listed(head))
            for head in await self._heads.page(dict(partial_scope), limit=limit)
        ]

    async def first_questions(self, conversation_ids: Sequence[str]) -> dict[str, str]:
        """Return the beginning of the first question of each conversation, by its id. At most one command.

        A damaged question is left out, so that the others are still returned.
        """
        found = await self._heads.first_questions(conversation_ids) if conversation_ids else {}
        questions: dict[str, str] = {}
        for id_, message in found.items():
            with suppress(CorruptDocumentError):
                questions[id_] = _beginning(read_message(self._codec, message).content)
        return questions

    async def update(
        self,
        scope: Scope,
        *,
        title: str | EllipsisType | None,
        metadata: Mapping[str, Any] | EllipsisType,
    ) -> None:
        """Set title or metadata, or both."""
        details: dict[str, Any] = {}
        if title is not ...:
            if title is not None and type(title) is not str:
                raise InvalidInputError(f"title must be a str or None, not {type(title).__name__}")
            details["title"] = title
        if metadata is not ...:
            if type(metadata) is not dict:
                raise InvalidInputError(f"metadata must be a dict, not {type(metadata).__name__}")
            check_text_keys(metadata, name="metadata")
            details["metadata"] = metadata
        encoded = self._encoded(details)
        described = False
        while not described:  # retry if the conversation was deleted in between
            dates: Any = {"updated_at": self._clock.now(), "written_at": self._clock.undated()}
            head, _ = await self._heads.claim(dict(scope), **dates)
            cached = self._cache.add(scope, head.conversation)
            described = await self._heads.describe(dict(scope), cached.conversation, encoded)

    def _encoded(self, details: Mapping[str, Any]) -> dict[str, str]:
        """Return title and metadata in stored form.

        Raises:
            InvalidInputError: One of them is too long.
        """
        encoded: dict[str, str] = {}
        for name, value in details.items():
            encoded[name] = self._codec.encode(value, path=name)
            if len(encoded[name]) > _DETAIL_CHARACTERS:
                raise InvalidInputError(
                    f"{name} is longer than {_DETAIL_CHARACTERS:,} characters; shorten it"
                )
        return encoded

    def _listed(self, found: ListedHead) -> ConversationInfo:
        """Return a row of a listing; its `problem` names damage."""
        problem = str(found.damage or "")
        try:
            return self._info(found, *found.head.described(self._codec), problem=problem)
        except StoreError as error:
            return self._info(found, None, {}, problem=problem or str(error))

    def _info(
        self, found: ListedHead, title: str | None, metadata: dict[str, Any], *, problem: str = ""
    ) -> ConversationInfo:
        head = found.head
        totals = found.totals
        preview = found.totals.preview
        from_ = found.head.origin
        return ConversationInfo(
            scope=head.scope,
            conversation_id=head.conversation,
            title=title,
            metadata=metadata,
            created_at=head.created_at,
            updated_at=found.updated_at,
            message_count=totals.active,
            turns=totals.turns,
            tokens=totals.tokens,
            bytes=totals.stored_bytes,
            usage={model: counts._asdict() for model, counts in totals.usage.items()},
            last_message=MessagePreview(type=preview.type, text=preview.text) if preview else None,
            has_children=head.has_children,
            failed=totals.failed,
            state=totals.state,
            last_call=totals.call and _last_call(totals.call),
            forked_from=from_
            and ForkOrigin(conversation_id=from_.conversation, ordinal=from_.ordinal),
            problem=problem,
        )


def _last_call(call: StampedCall) -> LastCall:
    return LastCall(ordinal=call.ordinal, tokens=call.tokens, max_tokens=call.budget or None)


def _beginning(content: Any) -> str:
    """Return the beginning of the first text of a question, in one line; of a long text it is in the body, too."""
    blocks = content if isinstance(content, list) else [content]
    texts = (block.get("text") if isinstance(block, dict) else block for block in blocks)
    heads = (text.head if isinstance(text, PayloadRange) else text for text in texts)
    return " ".join(
        next((text for text in heads if isinstance(text, str)), "")[:_QUESTION_CHARACTERS].split()
    )
