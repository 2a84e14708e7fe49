"""What is no store is refused where it is passed, by each integration and by imports and exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from convstore import ConversationStore, HistoryPolicy, InvalidInputError
from convstore.ext.chat_history import SessionHistories
from convstore.ext.claude_agent import ConvstoreSessionStore
from convstore.ext.microsoft import ConvstoreHistoryProvider
from convstore.ext.openai_agents import ConvstoreSession, read_back_tools
from convstore.ext.pydantic_ai import ConvstoreConversationStore, ConvstoreView
from convstore.transfer import export_conversations, import_conversations

SCOPE = {"user_id": "ada", "thread_id": "t"}

TAKES_STORE: dict[str, Callable[[Any], Any]] = {
    "histories": SessionHistories,
    "claude": lambda store: ConvstoreSessionStore(store, user_id="ada"),
    "microsoft": lambda store: ConvstoreHistoryProvider(store, user_id="ada"),
    "openai": lambda store: ConvstoreSession(store, **SCOPE),
    "pydantic": lambda store: ConvstoreConversationStore(store, user_id="ada"),
    "export": lambda store: export_conversations(store, print),
    "import": lambda store: import_conversations(store, []),
}


@pytest.mark.parametrize("name", TAKES_STORE)
async def test_what_is_no_store_is_refused(store: ConversationStore, name: str) -> None:
    """A conversation, which other integrations take, is none; nor is what an application forgot to make."""
    for wrong in (store.conversation(**SCOPE), None):
        expected = f"store must be a ConversationStore, not {type(wrong).__name__}"
        with pytest.raises(InvalidInputError, match=expected):
            await TAKES_STORE[name](wrong)


def test_what_stands_on_an_adapter_takes_that_adapter(store: ConversationStore) -> None:
    """The store itself is easily passed in its place, and the error says what is wanted."""
    wrong: Any = store
    with pytest.raises(InvalidInputError, match="must be a ConvstoreConversationStore, not Conv"):
        ConvstoreView(wrong)
    with pytest.raises(InvalidInputError, match="session must be a ConvstoreSession, not Conv"):
        read_back_tools(wrong)


@pytest.mark.parametrize("wrong", [{"max_tokens": 5}, "default"], ids=repr)
def test_what_is_no_policy_is_refused_where_it_is_passed(
    store: ConversationStore, wrong: HistoryPolicy
) -> None:
    """Not in the middle of the first run."""
    conversations = ConvstoreConversationStore(store, user_id="ada")
    with pytest.raises(InvalidInputError, match="policy must be a HistoryPolicy"):
        ConvstoreView(conversations, policy=wrong)
    with pytest.raises(InvalidInputError, match="policy must be a HistoryPolicy"):
        ConvstoreHistoryProvider(store, policy=wrong, user_id="ada")
