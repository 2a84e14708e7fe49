"""The reading half of a store: listings, statistics, and the search across conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convstore.conversation import Conversation
from convstore.conversation.host import Host
from convstore.exceptions import InvalidInputError
from convstore.search.request import search_request
from convstore.values.models import ConversationPage, ToolRecord
from convstore.values.policy import HistoryPolicy
from convstore.values.reports import ConversationHits, SearchHit, SearchResult, StoreStats
from convstore.values.scope import check_id, check_partial_scope, check_selection


class StoreReader:
    """Reads the conversations of a store; the base of `ConversationStore`."""

    scope_keys: tuple[str, ...]
    policy: HistoryPolicy
    _host: Host

    def conversation(self, **scope: str) -> Conversation:
        """Return the handle of one conversation; no I/O."""
        raise NotImplementedError

    async def find_conversation(self, conversation_id: str, /, **partial_scope: str) -> Conversation | None:
        """Return the handle of the conversation with a random id (`ConversationInfo.conversation_id`). One command.

        None if it is missing, deleted or has other scope values. Without any, it finds conversations of all users.
        """
        wanted = check_partial_scope(self.scope_keys, partial_scope)
        scope = await (await self._host.services()).catalog.scope_of(check_id(conversation_id, name="id"), wanted)
        return self.conversation(**scope) if scope and set(scope) == set(self.scope_keys) else None

    async def get_tool_messages(
        self, *values: Any, tool_message_ids: Sequence[str] | None = None, **scope: str
    ) -> list[ToolRecord]:
        """Return messages of one conversation in full; see `Conversation.get_tool_messages`.

        All arguments have names, or none: then the scope values come in the order of `scope_keys`, and the ids last.

        Raises:
            InvalidInputError: Some arguments have names and others not, or there are more or fewer than these.
        """
        ids: Any = tool_message_ids
        if values or ids is None:
            if scope or ids is not None or len(values) != len(self.scope_keys) + 1:
                names = ", ".join((*self.scope_keys, "tool_message_ids"))
                raise InvalidInputError(f"get_tool_messages takes {names}: all by name, or all in this order")
            scope, ids = dict(zip(self.scope_keys, values[:-1], strict=True)), values[-1]
        return await self.conversation(**scope).get_tool_messages(ids)

    async def list_conversations(
        self, *, limit: int = 50, cursor: str | None = None, everything: bool = False, **partial_scope: str
    ) -> ConversationPage:
        """Return a page of the conversations with these scope values, newest first.

        Counts, previews and usage are exact, even after a process was killed. The order is exact to 10 s, if clocks
        agree. It takes one command, which joins the last entry of each log. On servers that do not join collections
        (``$lookup``), as of sharded ones before MongoDB 5.1, it takes one more for each conversation on the page.

        Args:
            limit: Maximum number of conversations on a page, up to 1,000.
            cursor: ``next_cursor`` of the previous page.
            everything: List the conversations of all users. Excludes scope values.
            partial_scope: Values of some scope keys, at least one.

        Raises:
            InvalidInputError: Neither scope values nor ``everything=True``, or both, or `limit` is out of bounds.
            InvalidScopeError: A scope key is unknown, or a value is invalid.
            InvalidCursorError: The cursor does not come from this call.
        """
        scope = check_selection(self.scope_keys, partial_scope, everything=everything)
        return await (await self._host.services()).catalog.page(scope, limit=limit, cursor=cursor)

    async def stats(self, *, sizes: bool = True, **partial_scope: str) -> StoreStats:
        """Return counts, sizes and growth of the conversations with these scope values.

        Counts are exact. It reads every head and the last entry of each log, a thousand with one command. What views
        save is estimated from the running totals, with the budget of the store's policy; no other entry is read.

        Args:
            sizes: Also measure what is stored, and when it grew. The server then reads every document, with four
                commands for each 200 conversations of a scope, or four for all conversations.
            partial_scope: Values of some scope keys; without any, all conversations.

        Raises:
            InvalidScopeError: A scope key is unknown, or a value is invalid.
        """
        scope = check_partial_scope(self.scope_keys, partial_scope)
        return await (await self._host.services()).stats.read(scope, sizes=sizes, budget=self.policy.max_tokens)

    async def search(
        self,
        text: str,
        /,
        *,
        limit: int = 20,
        conversations: int = 500,
        everything: bool = False,
        **partial_scope: str,
    ) -> SearchResult:
        """Return the messages that match some words best, from all conversations with these scope values.

        A store with ``search_index="across"`` keeps segments of short conversations, too. At most 4 million characters
        or 2 seconds of messages in no segment are read; the other conversations are named in the result, and sealed.
        One command lists the conversations, one reads all segments, two read a conversation with messages in no
        segment, and one the hits of a conversation; large results take one more.

        Args:
            text: The words, as in `Conversation.search`.
            limit: Maximum number of hits, up to 200.
            conversations: Maximum number of conversations, the newest ones; up to 1,000.
            everything: Search the conversations of all users. Excludes scope values.
            partial_scope: Values of some scope keys, at least one.

        Raises:
            InvalidInputError: Neither scope values nor ``everything=True``, or both, or another argument is invalid.
            InvalidScopeError: A scope key is unknown, or a value is invalid.
        """
        scope = check_selection(self.scope_keys, partial_scope, everything=everything)
        request = search_request(text, limit=limit)
        services = await self._host.services()
        found = await services.catalog.newest(scope, limit=conversations)
        newest = [(one, info) for one, info in found if not one.damage]
        searched = []
        for (head, totals, _), _ in newest:
            keys = self.scope_keys if set(self.scope_keys) == set(head.scope) else tuple(head.scope)
            cached = services.reader.outside(tuple((key, head.scope[key]) for key in keys), head)
            searched.append((cached, totals))
        matches, incomplete = await services.across.search(searched, request)
        hits: dict[int, list[SearchHit]] = {}
        for index, match in matches:
            hits.setdefault(index, []).append(match.hit)
        groups = [
            ConversationHits(
                scope=newest[index][1].scope,
                conversation_id=newest[index][1].conversation_id,
                title=newest[index][1].title,
                hits=own,
            )
            for index, own in hits.items()
        ]
        return SearchResult(
            conversations=sorted(groups, key=lambda one: -one.hits[0].score),
            searched=len(searched),
            incomplete=[newest[index][1].scope for index in incomplete],
            problems={info.conversation_id: info.problem for _, info in found if info.problem},
        )
