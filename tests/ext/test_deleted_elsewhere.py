"""Sessions of frameworks after another worker deleted the conversation: it is empty at the first read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import ConversationStore
from convstore.ext.chat_history import ChatMessageHistory
from convstore.ext.claude_agent import ConvstoreSessionStore
from convstore.ext.microsoft import ConvstoreHistoryProvider
from convstore.ext.openai_agents import ConvstoreSession

pytestmark = pytest.mark.slow


def _reads(
    store: ConversationStore, scope: dict[str, str]
) -> Iterator[tuple[Callable[[], Awaitable[Any]], Any]]:
    """Yield the calls of all sessions with what they return of an empty conversation."""
    claude = ConvstoreSessionStore(store, project="user_id", session="thread_id")
    key: Any = {"project_key": scope["user_id"], "session_id": scope["thread_id"]}
    session = ConvstoreSession(store, **scope)
    history = ConvstoreHistoryProvider(store, view="all", **scope)
    messages = ChatMessageHistory(store.conversation(**scope), clear="rewind")
    yield lambda: claude.load(key), None
    yield session.get_items, []
    yield lambda: session.get_items(5), []
    yield session.pop_item, None
    yield session.clear_session, None
    yield lambda: history.get_messages("t"), []
    yield messages.aget_messages, []
    yield messages.aclear, None


async def test_a_conversation_that_another_worker_deleted_is_empty(
    database: Any, store: ConversationStore, scope: dict[str, str]
) -> None:
    """No call of a session raises, though this worker knew the conversation."""
    elsewhere = ConversationStore(database)
    for index in range(8):
        own = {**scope, "thread_id": f"{scope['thread_id']}-{index}"}
        read, empty = list(_reads(store, own))[index]
        chat = store.conversation(**own)
        await chat.append([HumanMessage("q", id="q1"), AIMessage("a", id="a1")])
        await chat.load_history()
        await elsewhere.conversation(**own).delete()
        assert await read() == empty
    await elsewhere.close()
