"""The tools of a conversation in a loop on a provider's SDK: specifications, calls and results."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from convstore import Conversation, ConversationStore, InvalidInputError, search_conversations_tool

INVALID = (
    "The arguments are not a JSON object, or they nest too deeply. Call again with valid ones."
)
PARAMETERS = ["tool_message_ids", "source_ids", "find", "cursor"]


@pytest.fixture
async def chat() -> AsyncIterator[Conversation]:
    """A conversation with one message."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append({"role": "user", "content": "Orcas eat fish.", "id": "m1"})
        yield chat


def test_specifications(chat: Conversation) -> None:
    """In the form of each API, with the same parameters."""
    tool = chat.retrieve_previous_sources_tool()
    spec, flat, theirs = tool.to_openai(), tool.to_openai(api="responses"), tool.to_anthropic()
    assert (spec["type"], spec["function"]["name"]) == ("function", tool.name)
    assert list(spec["function"]["parameters"]["properties"]) == PARAMETERS
    assert flat == {"type": "function", **spec["function"], "strict": False}
    assert theirs["input_schema"] == spec["function"]["parameters"]
    assert (theirs["name"], theirs["description"]) == (tool.name, tool.description)
    assert search_conversations_tool(chat).to_anthropic()["name"] == "search_conversations"
    wrong: Any = "completions"
    with pytest.raises(InvalidInputError, match="responses"):
        tool.to_openai(api=wrong)


class Function(BaseModel):
    """The function of a call, as OpenAI's SDK has it."""

    name: str = "retrieve_previous_sources"
    arguments: str = '{"tool_message_ids": ["m1"]}'


class Call(BaseModel):
    """A call, as OpenAI's SDK has it."""

    id: str = "call_1"
    type: str = "function"
    function: Function = Function()


class ToolUseBlock(BaseModel):
    """A call, as Anthropic's SDK has it."""

    id: str = "toolu_1"
    type: str = "tool_use"
    name: str = "x"
    input: dict[str, object]


GIVEN: dict[str, object] = {"tool_message_ids": ["m1"]}


@pytest.mark.parametrize(
    "call",
    [
        Call(),
        Call().model_dump(),
        {
            "type": "function_call",
            "call_id": "c",
            "name": "x",
            "arguments": '{"tool_message_ids": ["m1"]}',
        },
        ToolUseBlock(input=GIVEN),
        {"type": "tool_use", "id": "toolu_1", "name": "x", "input": GIVEN},
        GIVEN,
    ],
)
async def test_a_call_of_an_sdk_is_answered_with_text(chat: Conversation, call: Any) -> None:
    """A call in the form of any SDK is answered with text, as plain arguments are."""
    tool = chat.retrieve_previous_sources_tool()
    text = await tool.ainvoke(call)
    assert isinstance(text, str)
    assert "Orcas eat fish." in text


@pytest.mark.slow
async def test_a_block_of_the_anthropic_sdk_is_answered_with_text(chat: Conversation) -> None:
    """The SDK's own class is read like the one above."""
    from anthropic.types import ToolUseBlock as Block  # noqa: PLC0415 - takes 1.5 s, which quick runs save

    call = Block(id="toolu_1", type="tool_use", name="x", input=GIVEN)
    assert "Orcas eat fish." in await chat.retrieve_previous_sources_tool().ainvoke(call)


@pytest.mark.parametrize("arguments", ['{"find": "or', "[1]", "orcas"])
async def test_a_call_that_was_cut_is_answered_too(chat: Conversation, arguments: str) -> None:
    """With a text that asks the model to call again."""
    call = Call(function=Function(arguments=arguments))
    tool = chat.retrieve_previous_sources_tool()
    assert await tool.ainvoke(call) == tool.invoke(call) == INVALID


@pytest.mark.parametrize("levels", [300, 10_000])
async def test_a_call_with_deep_arguments_is_answered_too(chat: Conversation, levels: int) -> None:
    """In any form; LangChain and pydantic raise a RecursionError when they write such arguments."""
    deep: Any = "m1"
    for _ in range(levels):
        deep = [deep]
    arguments = {"tool_message_ids": deep}
    tool = chat.retrieve_previous_sources_tool()
    for given in (arguments, ToolUseBlock.model_construct(input=arguments)):
        assert await tool.ainvoke(given) == tool.invoke(given) == INVALID
    call = {"type": "tool_call", "id": "c", "name": tool.name, "args": arguments}
    for answer in (await tool.ainvoke(call), tool.invoke(call)):
        assert (answer.content, answer.status) == (INVALID, "error")
        assert (answer.tool_call_id, answer.name) == ("c", tool.name)
