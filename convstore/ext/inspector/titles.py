"""Name conversations by their title, else by their first question."""

from __future__ import annotations

from collections.abc import Sequence

from convstore import Conversation, ConversationStore
from convstore.integration import first_questions
from convstore.types import ConversationInfo


async def titled(store: ConversationStore, conversations: Sequence[ConversationInfo]) -> list[ConversationInfo]:
    """Return conversations in which the first question stands for a missing title. At most one command."""
    questions = await first_questions(store, [info.conversation_id for info in conversations if not info.title])
    titles = [info.title or questions.get(info.conversation_id) for info in conversations]
    return [info.model_copy(update={"title": title}) for info, title in zip(conversations, titles, strict=True)]


async def info_of(chat: Conversation) -> ConversationInfo:
    """Return information about a conversation, with its first question if it has no title."""
    [info] = await titled(chat.store, [await chat.info()])
    return info
