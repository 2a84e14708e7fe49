"""Results without ids of parallel calls that a model gave one id, as an own loop appends them."""

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
