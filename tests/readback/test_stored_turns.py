"""Turns of agents that worked at once, in many orders."""

from __future__ import annotations

import random

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.messages.tool_calls import result_id


def _script(name: str) -> list[BaseMessage]:
    """The messages of one run, as the middleware appends them."""
    call = {"name": "search", "args": {}, "id": "call_1"}
    asked = AIMessage("", id=f"{name}-ai", tool_calls=[call])
    result = ToolMessage("found", tool_call_id="call_1", id=result_id(f"{name}-ai", "call_1"))
    return [HumanMessage("?", id=name), asked, result, AIMessage(name, id=f"{name}-answer")]


async def _append(chat: Conversation, message: BaseMessage, name: str) -> None:
    """Append a message of a run; a result belongs to the turn of its call, whatever its writer says."""
    await chat.append(message, turn=None if isinstance(message, ToolMessage) else name)


@pytest.mark.slow
async def test_turns_are_the_same_in_every_order_and_direction() -> None:
    """Three runs, interleaved at random: each turn has its run, whole, from both ends, alone and in any range."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        for seed in range(4):
            chat, chance = (
                store.conversation(user_id="ada", thread_id=str(seed)),
                random.Random(seed),
            )
            runs = {name: _script(name) for name in ("q1", "q2", "q3")}
            whole = {name: [message.id for message in said] for name, said in runs.items()}
            while left := [name for name, said in runs.items() if said]:
                name = chance.choice(left)
                await _append(chat, runs[name].pop(0), name)
            read = [turn async for turn in chat.turns()]
            assert {
                turn.turn_id: [message.id for message in turn.messages] for turn in read
            } == whole
            assert [turn async for turn in chat.turns(newest_first=True)][::-1] == read
            for turn in read:
                assert await chat.get_turn(turn.turn_id) == turn
                span = {"after": turn.first - 1, "before": turn.first + 1}
                for newest_first in (False, True):
                    assert [
                        found async for found in chat.turns(newest_first=newest_first, **span)
                    ] == [turn]
            assert [(outlined.turn_id, outlined.last) for outlined in await chat.outline()] == [
                (t.turn_id, t.last) for t in read
            ]


async def test_a_late_result_stays_with_an_answered_turn() -> None:
    """A call that the model did not wait for gets its result after the next question."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="late")
        question, asked, result, answer = _script("q1")
        for message in (
            question,
            asked,
            answer,
            HumanMessage("?", id="q2"),
            result,
            AIMessage("q2", id="a2"),
        ):
            await chat.append(message)
        whole = {"q1": ["q1", "q1-ai", "q1-answer", result.id], "q2": ["q2", "a2"]}
        for newest_first in (False, True):
            read = [turn async for turn in chat.turns(newest_first=newest_first)]
            assert {turn.turn_id: [item.id for item in turn.messages] for turn in read} == whole


async def test_what_follows_a_paused_answer_is_in_its_turn_after_a_later_question() -> None:
    """An answer that its provider paused leaves its turn open, also if it has a result for each of its calls."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="paused")
        question, asked, result, answer = _script("q1")
        paused = AIMessage("Wait.", id="paused", response_metadata={"stop_reason": "pause_turn"})
        for message in (question, asked, result, paused, HumanMessage("?", id="q2")):
            await chat.append(message)
        await _append(chat, answer, "q1")
        whole = {"q1": ["q1", "q1-ai", result.id, "paused", "q1-answer"], "q2": ["q2"]}
        for newest_first in (False, True):
            read = [turn async for turn in chat.turns(newest_first=newest_first)]
            assert {turn.turn_id: [item.id for item in turn.messages] for turn in read} == whole


@pytest.mark.slow
async def test_a_result_may_come_thousands_of_messages_later() -> None:
    """It is in its turn, in any reader."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="far")
        question, asked, result, _ = _script("q1")
        await chat.append([question, asked])
        for _ in range(2):
            await chat.append(
                [message for _ in range(600) for message in (HumanMessage("?"), AIMessage("!"))]
            )
        await chat.append(result)
        whole = ["q1", "q1-ai", result.id]
        turn = await chat.get_turn("q1")
        assert turn
        assert [message.id for message in turn.messages] == whole
        for newest_first in (False, True):
            [read] = [turn async for turn in chat.turns(before=2, newest_first=newest_first)]
            assert [message.id for message in read.messages] == whole
        [stored] = await chat.list_messages(limit=1)
        assert stored.turn_id == "q1"
