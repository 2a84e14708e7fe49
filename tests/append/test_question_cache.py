"""A question that other calls push out of the cache is still found."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore
from convstore.integration import host_of
from convstore.mongo.log import Log
from convstore.runtime import cache


async def test_a_turn_is_named_though_the_cache_forgets_its_question(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of many turns may be read between the look-up and the entry; the end of the turn is recorded for it."""
    await chat.append([HumanMessage("First?", id="q1"), HumanMessage("Second?", id="q2")])
    monkeypatch.setattr(cache, "_MAXIMUM_QUESTIONS", 0)
    await chat.append(AIMessage("So."), turn="q1")
    assert [message.turn_id for message in await chat.list_messages()] == ["q1", "q2", "q1"]
    async with await chat.turn("q3", human="Book it.") as turn:
        await turn.finish()
    found = await chat.get_turn("q3")
    assert found is not None
    assert found.over == "finished"


async def test_a_turn_is_named_though_the_cache_forgets_its_question_during_a_look_up(
    chat: Conversation, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker took the number of the entry, and a page of many turns is read while the ids are looked up."""
    await chat.append(HumanMessage("First?", id="q1"))
    await ConversationStore(database).conversation(**chat.scope).append(HumanMessage("Second?"))
    read = Log.last_totals
    cache_of_all = (await host_of(chat).services()).reader.cache

    async def forgetting(self: Log, conversation: str, **options: Any) -> Any:
        cached = cache_of_all.get(tuple(chat.scope.items()))
        assert cached is not None
        cached.questions.clear()
        return await read(self, conversation, **options)

    monkeypatch.setattr(Log, "last_totals", forgetting)
    await chat.append(AIMessage("So."), turn="q1")
    assert (await chat.list_messages())[-1].turn_id == "q1"
