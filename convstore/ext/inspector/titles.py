"""Name conversations by their title, else by their first question."""

from __future__ import annotations

from collections.abc import Sequence

from convstore import Conversation, ConversationStore
from convstore.integration import first_questions
from convstore.types import ConversationInfo


async def titled(store: ConversationStore, conversations: Sequence[ConversationInfo]) -> list[ConversationInfo]:
    """Return conversations in which the first question stands for a missing title. At most one command."""
    questions = await first_questions(store, [one.conversation_id for one in conversations if not one.title])
    return [one.model_copy(update={"title": one.title or questions.get(one.conversation_id)}) for one in conversations]


async def info_of(chat: Conversation) -> ConversationInfo:
    """Return information about a conversation, with its first question if it has no title."""
    [info] = await titled(chat.store, [await chat.info()])
    return info
