"""The responses of the SDKs are appended as they are: message, calls, reasoning, model, stop reason and counts."""

from __future__ import annotations

from typing import Any

import pytest
from cases import each_case
from langchain_core.messages import AIMessage
from pydantic import BaseModel, ConfigDict, Field

from convstore import ConversationStore
from convstore.append.inputs import normalize_messages
from convstore.exceptions import InvalidMessageError
from convstore.wire.streams import StreamedReply

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "search", "arguments": '{"q": null}'},
}
COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-5-2025-08-07",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": None,
                "refusal": None,
                "tool_calls": [CALL],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    },
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "model": "gpt-5-2025-08-07",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eA=="},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "phase": "commentary",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "search",
            "arguments": '{"q": null}',
        },
    ],
    "usage": {
        "input_tokens": 10,
        "output_tokens": 5,
        "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens_details": {"reasoning_tokens": 3},
    },
}
MESSAGE: dict[str, Any] = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-1",
    "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "tool_use", "id": "call_1", "name": "search", "input": {"q": None}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 6,
        "output_tokens": 5,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
    },
}


class Sdk(BaseModel):
    """An object of an SDK: a model that takes what the server sends, nested objects too."""

    model_config = ConfigDict(extra="allow")


class Completion(Sdk):
    """Chat Completions."""

    choices: list[Sdk]
    model: int = 0  # the SDK does not validate, so that a type may be another than it says


class Response(Sdk):
    """Responses API."""

    output: list[Sdk]


class Message(Sdk):
    """Messages API."""

    content: list[Sdk]


def stored_form(given: Any) -> AIMessage:
    """The only message that something becomes."""
    [message] = normalize_messages(given)
    assert isinstance(message, AIMessage)
    return message


@each_case(
    ("given", "provider", "model", "stop"),
    [
        (COMPLETION, "openai", "gpt-5-2025-08-07", "tool_calls"),
        (Completion.model_construct(**COMPLETION), "openai", "gpt-5-2025-08-07", "tool_calls"),
        (RESPONSE, "openai", "gpt-5-2025-08-07", None),
        (Response(**RESPONSE), "openai", "gpt-5-2025-08-07", None),
        (MESSAGE, "anthropic", "claude-1", "tool_use"),
        (Message(**MESSAGE), "anthropic", "claude-1", "tool_use"),
    ],
)
def test_a_whole_response_is_one_message(
    given: Any, provider: str, model: str, stop: str | None
) -> None:
    """With its call, and everything that the response says of it, in LangChain's words."""
    message = stored_form(given)
    assert [(call["name"], call["args"], call["id"]) for call in message.tool_calls] == [
        ("search", {"q": None}, "call_1")
    ]
    metadata = message.response_metadata
    assert (metadata["model_provider"], metadata["model_name"]) == (provider, model)
    assert metadata.get("finish_reason", metadata.get("stop_reason")) == stop
    usage = message.usage_metadata
    assert usage is not None
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 5, 15)
    assert usage.get("input_token_details", {}).get("cache_read") == 4
    assert usage.get("output_token_details", {"reasoning": 3}) == {"reasoning": 3}
    assert stored_form(given).id == message.id != "chatcmpl-1"


def test_items_of_a_response_are_blocks_of_its_message() -> None:
    """Reasoning, items of tools that OpenAI ran, and texts with their phase."""
    blocks: Any = stored_form(RESPONSE).content
    assert [block["type"] for block in blocks] == [
        "reasoning",
        "web_search_call",
        "text",
        "function_call",
    ]
    assert blocks[2] == {"type": "text", "text": "I look.", "phase": "commentary"}
    assert stored_form(RESPONSE["output"]).content == blocks


def test_objects_in_a_dict_are_read() -> None:
    """The content blocks or calls of a dict may be objects that an SDK returned."""
    blocks = Message(**MESSAGE).content
    message = stored_form({"role": "assistant", "content": blocks})
    assert (message.content, len(message.tool_calls)) == (MESSAGE["content"], 1)
    called = stored_form({"role": "assistant", "content": None, "tool_calls": [Sdk(**CALL)]})
    assert [call["id"] for call in called.tool_calls] == ["call_1"]


def test_objects_are_read_by_the_names_of_the_api() -> None:
    """An SDK renames a field such as `async`, which is a word of Python, appended and streamed."""

    class Block(Sdk):
        async_: bool = Field(alias="async")

    block = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "search", "input": {}}
    made: Any = Block.model_validate({**block, "async": True})
    assert stored_form({"role": "assistant", "content": [made]}).content == [
        {**block, "async": True}
    ]
    reply = StreamedReply()
    reply.add(Sdk(type="message_start", message={"role": "assistant"}))  # type: ignore[call-arg]
    reply.add(Sdk(type="content_block_start", index=0, content_block=made))  # type: ignore[call-arg]
    reply.add({"type": "message_stop"})
    assert stored_form(reply.whole()).content == [{**block, "async": True}]


@pytest.mark.slow
def test_a_response_of_the_anthropic_sdk_is_one_message() -> None:
    """The SDK's own classes are read like the models above."""
    from anthropic.types import Message  # noqa: PLC0415 - takes 1.5 s, which quick runs save

    given = Message.model_validate(MESSAGE)
    assert stored_form(given) == stored_form(MESSAGE)
    assert (
        stored_form({"role": "assistant", "content": given.content}).content == MESSAGE["content"]
    )


def test_two_responses_of_anthropic_are_two_messages() -> None:
    """Two responses of Anthropic become two messages, although items of OpenAI's Responses API become one."""
    again = {**MESSAGE, "id": "msg_02"}
    assert [message.id for message in normalize_messages([MESSAGE, again])] == ["msg_01", "msg_02"]


@each_case(
    ("given", "field"),
    [
        ({**COMPLETION, "choices": []}, "choices"),
        ({**COMPLETION, "choices": COMPLETION["choices"] * 2}, "choices"),
        ({**COMPLETION, "choices": None}, "choices"),
        ({**RESPONSE, "output": [{"type": "computer_call", "call_id": "c"}]}, "output[0]"),
        ({**RESPONSE, "output": None}, "output"),
    ],
)
def test_a_response_that_is_not_one_answer_is_refused(given: Any, field: str) -> None:
    """The error names the field."""
    with pytest.raises(InvalidMessageError) as caught:
        normalize_messages(given)
    assert (caught.value.index, caught.value.field) == (0, field)


async def test_responses_come_back_in_their_form() -> None:
    """Appended to a turn, each gives its API the message that it wrote, and the counts of its model are summed."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        for number, given in enumerate((COMPLETION, RESPONSE, MESSAGE)):
            chat = store.conversation(user_id="ada", thread_id=str(number))
            await chat.append([{"role": "user", "content": "Orcas?"}, given])
            assert (await chat.append([given])).written == 0
            history = await chat.load_history()
            [counts] = (await chat.info()).usage.values()
            assert [*counts.values()] == [10, 5, 15, 4, 0]
            if given is COMPLETION:
                assert history.to_openai()[1]["tool_calls"][0]["id"] == "call_1"
            elif given is MESSAGE:
                assert history.to_anthropic()["messages"][1]["content"] == MESSAGE["content"]
            else:
                items = history.to_openai(api="responses")[1:4]
                assert items[0]["content"] == "[The provider ran web_search]"
                assert [item["type"] for item in items[1:]] == ["message", "function_call"]
