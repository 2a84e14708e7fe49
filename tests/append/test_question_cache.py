"""A question that other calls push out of the cache is still found."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation
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
