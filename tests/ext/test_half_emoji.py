"""Half of an emoji, which a tool leaves where it cuts a text: adapters give a framework what it can send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agent_framework import Content, Message
from langchain_core.messages import HumanMessage
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel

from convstore import Conversation, ConversationStore
from convstore.ext.chat_history import ChatMessageHistory
from convstore.ext.microsoft import ConvstoreHistoryProvider
from convstore.ext.openai_agents import ConvstoreSession
from convstore.ext.pydantic_ai import ConvstoreConversationStore
from convstore.ext.ui import read_request
from convstore.testing.samples import new_id

pytestmark = pytest.mark.slow

HALF, SHOWN = "cut \ud83d", "cut \ufffd"


async def test_a_chat_history_takes_back_what_it_gave(chat: Conversation) -> None:
    """The view has U+FFFD, and the same message with it is not taken for a changed one."""
    history = ChatMessageHistory(chat)
    await history.aadd_messages([HumanMessage(HALF, id="h1")])
    [message] = await history.aget_messages()
    assert message.content == SHOWN
    await history.aadd_messages([message])
    assert [stored.content async for stored in chat.messages()] == [HALF]


async def test_a_session_of_openais_sdk_gives_items_that_can_be_sent(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """In the view, and among the newest items, which some runs send; `pop_item` returns it as it came."""
    session = ConvstoreSession(store, **scope)
    item: Any = {"role": "user", "content": HALF}
    await session.add_items([item])
    assert SHOWN in json.dumps(await session.get_items(), ensure_ascii=False)
    everything = ConvstoreSession(store, view="all", **scope)
    for items in (await session.get_items(limit=1), await everything.get_items()):
        assert items == [{"role": "user", "content": SHOWN}]
    assert await session.pop_item() == item


@pytest.mark.parametrize("view", ["policy", "all"])
async def test_agents_of_microsofts_framework_are_shown_valid_text(
    store: ConversationStore, view: Any
) -> None:
    """In questions, answers and results, in the view and in the whole history."""
    call = Content.from_function_call("c", "look", arguments={"at": HALF})
    result = Content.from_function_result("c", result=HALF)
    log = [Message("user", [HALF]), Message("assistant", [call]), Message("tool", [result])]
    log.append(Message("assistant", [HALF]))
    provider = ConvstoreHistoryProvider(store, user_id=new_id(), view=view)
    await provider.save_messages("s", log)
    shown = [message.to_dict() for message in await provider.get_messages("s")]
    assert json.dumps(shown, ensure_ascii=False, default=str).encode().decode().count(SHOWN) >= 4
    await provider.save_messages(
        "s", [*await provider.get_messages("s"), Message("user", ["And?"])]
    )
    assert len(await provider.get_messages("s")) == len(log) + 1


@pytest.mark.parametrize("format_", ["ai-sdk", "ag-ui"])
async def test_a_page_that_was_loaded_again_sends_its_question_again(
    chat: Conversation, format_: Any
) -> None:
    """The page has the question as it was shown; it is the question in the log, whose answer is still missing."""
    for text in (HALF, SHOWN):
        question: Any = {
            "id": "q",
            "role": "user",
            "parts": [{"type": "text", "text": text}],
            "content": text,
        }
        body = {
            "id": "t",
            "threadId": "t",
            "runId": "r",
            "trigger": "submit-message",
            "messages": [question],
        }
        async with await read_request(body, format=format_).turn(chat):
            pass
    assert [stored.content async for stored in chat.messages()] == [HALF]


async def test_a_history_of_pydantic_ai_that_was_saved_is_loaded(store: ConversationStore) -> None:
    """Wherever the half stands, also if values nest deeper than the parser takes; and the next run is saved."""
    deep: Any = {}
    for _ in range(120):
        deep = {"a": deep}
    question = ModelRequest([UserPromptPart("q")])
    histories: dict[str, list[ModelMessage]] = {
        "prompt": [ModelRequest([SystemPromptPart(HALF), UserPromptPart(HALF)])],
        "answer": [question, ModelResponse([ThinkingPart(HALF), TextPart(HALF)])],
        "return": [
            question,
            ModelResponse([ToolCallPart("look", {}, tool_call_id="c")]),
            ModelRequest(
                [ToolReturnPart("look", {"in": deep}, tool_call_id="c"), UserPromptPart(HALF)]
            ),
        ],
        "metadata": [ModelRequest([UserPromptPart("q")], metadata={"a": HALF})],
    }
    agent = Agent(FunctionModel(lambda _messages, _info: ModelResponse([TextPart("fine")])))
    for name, history in histories.items():
        conversations = ConvstoreConversationStore(store, user_id=f"{name} {new_id()}")
        result = await agent.run("And?", message_history=history, conversation_id="c")
        await conversations.save(result)
        loaded = await conversations.load("c")
        assert loaded is not None
        assert len(loaded.messages) == len(result.all_messages())
        assert SHOWN in repr(loaded.messages)
        await conversations.save(await agent.run("More?", conversation=loaded))
