"""Results of calls that a model gave one id: of parallel calls, and of calls in two steps of a turn."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import Conversation, ConversationStore


@pytest.fixture
async def chat() -> Conversation:
    """A conversation in memory."""
    store = ConversationStore(AsyncMongoMockClient()["app"])
    await store.setup()
    return store.conversation(user_id="ada", thread_id="t")


def _asked() -> AIMessage:
    calls = [{"name": "search", "args": {"q": text}, "id": "call_0"} for text in ("one", "two")]
    return AIMessage("", tool_calls=calls)


def _results() -> list[ToolMessage]:
    return [ToolMessage(f"of {text}", tool_call_id="call_0") for text in ("one", "two")]


@pytest.mark.parametrize("is_one_append", [True, False])
async def test_results_answer_the_calls_of_a_message_in_order(
    chat: Conversation, is_one_append: bool
) -> None:
    """The first result without an id is that of the first call, not of the last."""
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        if is_one_append:
            await turn.append([_asked(), *_results()])
        else:
            await turn.append(_asked())
            await turn.append(_results())
        shown = (await turn.load_history()).messages
    assert [message.text for message in shown[2:]] == ["of one", "of two"]


async def test_results_that_are_appended_again_write_nothing(chat: Conversation) -> None:
    """Each is known by its content, as their calls cannot tell them apart."""
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        await turn.append(_asked())
        first = await turn.append(_results())
        again = await turn.append(_results())
        alone = await turn.append(_results()[0])
    assert (again.written, again.message_ids) == (0, first.message_ids)
    assert (alone.written, alone.message_ids) == (0, first.message_ids[:1])


async def test_a_rejection_is_not_the_result_of_a_later_call_with_the_same_id(
    chat: Conversation,
) -> None:
    """However often its result is rewound, it is given again for its own call; the other call stays open."""
    call = {"name": "pay", "args": {}, "id": "call_0"}
    async with await chat.turn("r1", human="Pay both.") as turn:
        await turn.append(AIMessage("", tool_calls=[call], id="first"))
        await turn.wait_for(turn.open_calls[0])
        [asked] = turn.waiting_calls
    await chat.decide("r1", asked.result_id, "reject")
    for step in ("second", "third"):
        [last] = await chat.list_messages(limit=1)
        await chat.rewind(before_id=str(last.message.id))
        await chat.append(AIMessage("", tool_calls=[call], id=step), turn="r1")
        for _ in range(2):
            async with await chat.turn("r1") as turn:
                assert [call.message_id for call in turn.open_calls] == [step]
                assert [message.type for message in turn.messages[-2:]] == ["ai", "tool"]
        assert turn.messages[-1].text.startswith("User rejected")
        await chat.rewind(before_id=step)
        async with await chat.turn("r1") as turn:
            assert turn.messages[-1].text.startswith("User rejected")
