"""The commands of turns, counted; their promises are in the contract suite."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from counting import STANDING, Commands, cold
from fixture_types import Client
from langchain_core.messages import AIMessage

from convstore import Conversation, ConversationStore
from convstore.integration import pause_in_turn
from convstore.testing import rag_turn
from convstore.values.turns import Pause


@pytest.fixture
async def chat(client: Client, database_name: str) -> AsyncIterator[Conversation]:
    """A conversation of forty turns with results, warm, on a counted client."""
    store = ConversationStore(client[database_name], clock=STANDING)
    await store.setup()
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    for number in range(40):
        await chat.append(rag_turn(f"What about fish {number}?"))
    yield chat
    await store.close()


@pytest.mark.slow
async def test_an_answer_to_the_question_of_another_process(
    chat: Conversation, commands: Commands, client: Client, database_name: str
) -> None:
    """The head, the tail twice, the question, the answer."""
    await chat.append_turn("r1", human="And orcas?")
    other = cold(client, database_name, chat)
    with commands.counted():
        await other.append_turn("r1", messages=AIMessage("They do."))
    assert commands.names == ["find", "find", "find", "find", "insert", "update"]


async def test_a_turn_is_read_without_the_rest(chat: Conversation, commands: Commands) -> None:
    """By its id, and at both ends, whatever the length of the conversation."""
    [first] = [turn async for turn in chat.turns(limit=1)]
    with commands.counted():
        assert await chat.get_turn(first.turn_id) == first
    assert (len(commands.sent), commands.documents) == (7, 8)  # three entries, a payload; whether a variant is pending
    with commands.counted():
        turns = [turn async for turn in chat.turns(newest_first=True, limit=3)]
    assert [turn.number for turn in turns] == [40, 39, 38]
    assert commands.documents < 20


@pytest.mark.slow
async def test_decisions_at_once_cost_as_much_as_one_after_the_other(chat: Conversation, commands: Commands) -> None:
    """A page approves all calls of a step: each decision reads the turn once, not again for each of the others."""
    calls = [{"name": "pay", "args": {}, "id": f"call_{number}"} for number in range(12)]
    async with await chat.turn("r1", human="Pay all") as turn:
        await turn.append(AIMessage("", tool_calls=calls))
        for call in turn.open_calls:
            await turn.wait_for(call)
        results = [call.result_id for call in turn.waiting_calls]
    with commands.counted():  # as an agent asks about each on its own
        await asyncio.gather(*(pause_in_turn(chat, "r1", {result: Pause(result)}) for result in results))
    assert len(commands.sent) <= 12 * 8
    with commands.counted():
        await asyncio.gather(*(chat.decide("r1", str(call["id"]), "approve") for call in calls))
    assert len(commands.sent) <= 12 * 8
