"""The reading half of a store: listings, statistics, and the search across conversations.

Floor 6. `ConversationStore` adds the methods that set up, write and end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from convstore.conversation import Conversation
from convstore.values.models import ConversationPage, ToolRecord
from convstore.values.reports import StoreStats
from convstore.values.scope import check_id, check_partial_scope

if TYPE_CHECKING:
    from convstore.services import Services

__all__ = ["StoreReader"]


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
        scope = await (await self.services()).directory.scope_of(check_id(conversation_id, name="id"), wanted)
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
        return await (await self.services()).directory.page(scope, limit=limit, cursor=cursor)

    async def stats(self, *, sizes: bool = True, **partial_scope: str) -> StoreStats:
        """Return counts, sizes and growth of the conversations with these scope values.

        Counts lag at most 15 s behind other processes. It reads every head, a thousand with one command.

        Args:
            sizes: Also measure what is stored, and when it grew. The server then reads every document, with three
                commands for each 200 conversations of a scope, or three for all conversations.
            partial_scope: Values of some scope keys; without any, all conversations.

        Raises:
            InvalidScopeError: A scope key is unknown, or a value is invalid.
        """
        scope = check_partial_scope(self.scope_keys, partial_scope)
        return await (await self.services()).stats.read(scope, sizes=sizes)
