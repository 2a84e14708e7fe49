"""Tests of isolation: another scope's data answers exactly like missing data (promise 8)."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.conversation import Conversation
from convstore.exceptions import InvalidScopeError
from convstore.store import ConversationStore
from convstore.testing.samples import new_id, rag_turn, same_messages

__all__ = ["IsolationContract"]


class IsolationContract:
    """Promise 8."""

    @pytest.mark.parametrize(
        "value", [{"$ne": ""}, "", None, 7, b"x", ["x"], "\ud800", "x" * 513, True]
    )
    async def test_bad_scope_values_are_refused(self, store: ConversationStore, value: Any) -> None:
        """An operator instead of a value never reaches a query."""
        with pytest.raises(InvalidScopeError, match="user_id"):
            store.conversation(user_id=value, thread_id="t")

    @pytest.mark.parametrize(
        "scope", [{}, {"user_id": "a"}, {"user_id": "a", "thread_id": "t", "more": "x"}]
    )
    async def test_a_scope_has_all_keys_and_no_others(
        self, store: ConversationStore, scope: dict[str, str]
    ) -> None:
        """The error names the missing or unknown key."""
        with pytest.raises(InvalidScopeError):
            store.conversation(**scope)

    @pytest.mark.parametrize(
        "value", ["a\x00b", "$where", "a.b", " ", "ünï", "' or 1=1", '{"$ne": ""}']
    )
    async def test_any_other_text_is_a_scope(self, store: ConversationStore, value: str) -> None:
        """Any other text is a valid scope value, even if it looks like code or an operator."""
        chat = store.conversation(user_id=value, thread_id=new_id())
        await chat.append(HumanMessage("mine"))
        assert (await chat.info()).scope == chat.scope
        assert [message.content async for message in chat.messages()] == ["mine"]

    async def test_another_scope_sees_nothing(
        self, store: ConversationStore, chat: Conversation
    ) -> None:
        """Loads, lookups by id, listings and the tool treat another scope's conversation as missing."""
        turn = rag_turn("A secret about seals?")
        await chat.append(turn)
        other = store.conversation(user_id="eve", thread_id=chat.scope["thread_id"])
        missing = store.conversation(user_id="eve", thread_id=new_id())
        for handle in (other, missing):
            assert (await handle.load_history()).messages == []
            assert await handle.get_tool_messages([str(turn[2].id)]) == []
            assert [message async for message in handle.messages()] == []
            assert (await handle.info()).message_count == 0
        tools = [handle.retrieve_previous_sources_tool() for handle in (other, missing)]
        answers = [await tool.ainvoke({"tool_message_ids": [turn[2].id]}) for tool in tools]
        assert answers[0] == answers[1]
        listed = (await store.list_conversations(user_id="eve")).conversations
        assert chat.scope not in [info.scope for info in listed]

    async def test_a_foreign_tool_sees_nothing_in_a_conversation_with_results(
        self, store: ConversationStore, chat: Conversation
    ) -> None:
        """Suggested ids are the conversation's own."""
        secret = rag_turn("A secret about seals?")
        own = rag_turn("My orcas?")
        await chat.append(secret)
        eve = store.conversation(user_id="eve", thread_id=new_id())
        await eve.append(own)
        answer = await eve.retrieve_previous_sources_tool().ainvoke(
            {"tool_message_ids": [secret[2].id]}
        )
        assert f"Not found: {secret[2].id}" in answer
        assert f"Valid ids: {own[2].id}. Source numbers here: 1-3." in answer

    async def test_the_same_message_ids_live_in_two_scopes(self, store: ConversationStore) -> None:
        """The same message id can be used in two conversations."""
        handles = [store.conversation(user_id=name, thread_id=new_id()) for name in ("ada", "bob")]
        for handle in handles:
            await handle.append(
                [HumanMessage(f"I am {handle.scope['user_id']}", id="m1"), AIMessage("hi", id="m2")]
            )
        logs = [[message async for message in handle.messages()] for handle in handles]
        assert same_messages(logs[0][1:], logs[1][1:])
        assert [log[0].content for log in logs] == ["I am ada", "I am bob"]
