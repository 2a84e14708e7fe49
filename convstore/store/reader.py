"""The reading half of a store: listings, statistics, and the search across conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError
from convstore.search.request import SearchRequest, search_request
from convstore.values.models import ConversationPage, ToolRecord
from convstore.values.reports import ConversationHits, SearchHit, SearchResult, StoreStats
from convstore.values.scope import Scope, check_id, check_partial_scope

if TYPE_CHECKING:
    from convstore.conversation.services import Services


class StoreReader:
    """Reads the conversations of a store; the base of `ConversationStore`."""

    scope_keys: tuple[str, ...]

    def conversation(self, **scope: str) -> Conversation:
        """Return the handle of one conversation; no I/O."""
        raise NotImplementedError

    async def services(self) -> Services:
        """Return the services after checking that the database is set up."""
        raise NotImplementedError

    async def find_conversation(self, conversation_id: str, /, **partial_scope: str) -> Conversation | None:
        """Return the handle of the conversation with a random id (`ConversationInfo.conversation_id`). One command.

        None if it is missing, deleted or has other scope values. Without any, it finds conversations of all users.
        """
        wanted = check_partial_scope(self.scope_keys, partial_scope)
        scope = await (await self.services()).catalog.scope_of(check_id(conversation_id, name="id"), wanted)
        return self.conversation(**scope) if scope and set(scope) == set(self.scope_keys) else None

    async def get_tool_messages(self, *, tool_message_ids: Sequence[str], **scope: str) -> list[ToolRecord]:
        """Return messages of one conversation in full; see `Conversation.get_tool_messages`."""
        return await self.conversation(**scope).get_tool_messages(tool_message_ids)

    async def list_conversations(
        self, *, limit: int = 50, cursor: str | None = None, **partial_scope: str
    ) -> ConversationPage:
        """Return a page of the conversations with these scope values, newest first.

        Order and counts lag at most 15 s behind other processes, even killed ones, if clocks agree to 5 s. Appends
        of this store count at once. It takes one command, one more for each conversation on the page whose writer did
        not update it in time, and one for up to 500 conversations to which this store appended recently.

        Without scope values it lists the conversations of all users: pass a scope before showing the list to a user.

        Args:
            limit: Maximum number of conversations on a page, up to 1,000.
            cursor: ``next_cursor`` of the previous page.
            partial_scope: Values of some scope keys; without any, all conversations.

        Raises:
            InvalidInputError: `limit` is out of bounds.
            InvalidScopeError: A scope key is unknown, or a value is invalid.
            InvalidCursorError: The cursor does not come from this call.
        """
        scope = check_partial_scope(self.scope_keys, partial_scope)
        return await (await self.services()).catalog.page(scope, limit=limit, cursor=cursor)

    async def stats(self, *, sizes: bool = True, **partial_scope: str) -> StoreStats:
        """Return counts, sizes and growth of the conversations with these scope values.

        Counts lag at most 15 s behind other processes. It reads every head, a thousand with one command.

        Args:
            sizes: Also measure what is stored, and when it grew. The server then reads every document, with four
                commands for each 200 conversations of a scope, or four for all conversations.
            partial_scope: Values of some scope keys; without any, all conversations.

        Raises:
            InvalidScopeError: A scope key is unknown, or a value is invalid.
        """
        scope = check_partial_scope(self.scope_keys, partial_scope)
        return await (await self.services()).stats.read(scope, sizes=sizes)

    async def search(
        self, text: str, /, *, limit: int = 20, conversations: int = 500, **partial_scope: str
    ) -> SearchResult:
        """Return the messages that match some words best, from all conversations with these scope values.

        Exact to 15 s, like a listing; a store with ``search_index="across"`` keeps segments of short conversations,
        too. At most 20 conversations with messages in no segment are read; the others are named in the result. One
        command lists the conversations, one reads all segments, two read a conversation with messages in no segment,
        and one reads the hits of a conversation; large results among them take one more.

        Args:
            text: The words, as in `Conversation.search`.
            limit: Maximum number of hits, up to 200.
            conversations: Maximum number of conversations, the newest ones; up to 1,000.
            partial_scope: Values of some scope keys, at least one.

        Raises:
            InvalidInputError: No scope value, or another argument is invalid.
            InvalidScopeError: A scope key is unknown, or a value is invalid.
        """
        scope = check_partial_scope(self.scope_keys, partial_scope)
        if not scope:
            raise InvalidInputError("name at least one scope value, or call search_everything for all conversations")
        return await self._search(scope, search_request(text, limit=limit), conversations)

    async def search_everything(self, text: str, /, *, limit: int = 20, conversations: int = 500) -> SearchResult:
        """Return the messages that match some words best, from the conversations of all users; see `search`."""
        return await self._search((), search_request(text, limit=limit), conversations)

    async def _search(self, scope: Scope, request: SearchRequest, conversations: int) -> SearchResult:
        services = await self.services()
        newest = await services.catalog.newest(scope, limit=conversations)
        searched = []
        for head, _ in newest:
            keys = self.scope_keys if set(self.scope_keys) == set(head.scope) else tuple(head.scope)
            if cached := services.reader.seen(tuple((key, head.scope[key]) for key in keys), head):
                searched.append((cached, head.totals))
        matches, incomplete = await services.across.search(searched, request)
        hits: dict[int, list[SearchHit]] = {}
        for index, match in matches:
            hits.setdefault(index, []).append(match.hit)
        groups = [
            ConversationHits(
                scope=newest[index][1].scope,
                conversation_id=newest[index][1].conversation_id,
                title=newest[index][1].title,
                hits=found,
            )
            for index, found in hits.items()
        ]
        return SearchResult(
            conversations=sorted(groups, key=lambda one: -one.hits[0].score),
            searched=len(searched),
            incomplete=[newest[index][1].scope for index in incomplete],
        )
