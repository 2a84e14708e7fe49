"""Dicts in the formats of Anthropic, OpenAI Responses and LangChain become whole messages, or are refused by name."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)
from pydantic import BaseModel

from convstore import ConversationStore, InvalidInputError
from convstore.append.inputs import normalize_messages
from convstore.exceptions import InvalidMessageError
from convstore.messages.tool_calls import MISSING_TEXT, calls_of, pair
from convstore.testing import same_messages
from convstore.testing.pairing import check_pairing

ANTHROPIC: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Oslo and Rome?"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
            {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Rome"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "4 degrees"},
            {
                "type": "tool_result",
                "tool_use_id": "toolu_2",
                "content": [{"type": "text", "text": "?"}],
                "is_error": True,
            },
            {"type": "text", "text": "And be brief."},
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "4 in Oslo."}]},
]
RESPONSES: list[dict[str, Any]] = [
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Weather in Oslo and Rome?"}],
    },
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "weather",
        "arguments": '{"city": "Oslo"}',
    },
    {
        "type": "function_call",
        "id": "fc_2",
        "call_id": "call_2",
        "name": "weather",
        "arguments": '{"city": "Rome"}',
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "4 degrees"},
    {
        "type": "function_call_output",
        "call_id": "call_2",
        "output": [{"type": "input_text", "text": "?"}],
    },
    {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "content": [{"type": "output_text", "text": "4 in Oslo.", "annotations": []}],
    },
]


def types(messages: list[BaseMessage]) -> list[str]:
    """The types of some messages."""
    return [message.type for message in messages]


def test_blocks_of_anthropic_are_calls_and_results() -> None:
    """Blocks of Anthropic become calls in ``tool_calls`` and tool messages, which precede the other text."""
    before = copy.deepcopy(ANTHROPIC)
    messages = normalize_messages(ANTHROPIC)
    assert types(messages) == ["human", "ai", "tool", "tool", "human", "ai"]
    _, ai, message, other, human, _ = messages
    assert isinstance(ai, AIMessage)
    assert [(call["id"], call["args"]["city"]) for call in ai.tool_calls] == [
        ("toolu_1", "Oslo"),
        ("toolu_2", "Rome"),
    ]
    assert ai.content == ANTHROPIC[1]["content"]
    assert isinstance(message, ToolMessage)
    assert isinstance(other, ToolMessage)
    assert (message.tool_call_id, message.content, message.status) == (
        "toolu_1",
        "4 degrees",
        "success",
    )
    assert (other.tool_call_id, other.text, other.status) == ("toolu_2", "?", "error")
    assert human.text == "And be brief."
    assert check_pairing(messages) == []
    assert before == ANTHROPIC


def test_a_call_without_input_has_no_arguments() -> None:
    """A transcript may leave out the input of a tool that takes none."""
    call = {"type": "tool_use", "id": "c", "name": "now"}
    [message] = normalize_messages([{"role": "assistant", "content": [call]}])
    assert isinstance(message, AIMessage)
    assert message.tool_calls == [{"name": "now", "args": {}, "id": "c", "type": "tool_call"}]


def test_items_of_openai_responses_are_messages() -> None:
    """Adjacent items become one AI message, with its reasoning and its calls, as in langchain-openai."""
    before = copy.deepcopy(RESPONSES)
    messages = normalize_messages(RESPONSES)
    assert types(messages) == ["human", "ai", "tool", "tool", "ai"]
    human, ai, message, other, answer = messages
    assert isinstance(ai, AIMessage)
    assert (human.text, message.text, other.text, answer.text) == (
        *("Weather in Oslo and Rome?", "4 degrees"),
        *("?", "4 in Oslo."),
    )
    assert [call["args"] for call in ai.tool_calls] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert [block["type"] for block in ai.content if isinstance(block, dict)] == [
        "reasoning",
        "function_call",
        "function_call",
    ]
    assert [call.id for call in calls_of(ai)] == ["call_1", "call_2"]
    assert answer.id == "msg_1"
    assert answer.content == [{"type": "text", "text": "4 in Oslo."}]
    assert pair(messages).missing == pair(messages).orphans == ()
    assert before == RESPONSES


def test_a_custom_call_and_its_result_belong_together() -> None:
    """Free text for input."""
    items = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "shell", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "a.txt"},
    ]
    messages = normalize_messages(items)
    assert types(messages) == ["ai", "tool"]
    assert check_pairing(messages) == []


MESSAGES: list[BaseMessage] = [
    SystemMessage("Be brief.", id="s"),
    HumanMessage([{"type": "text", "text": "Hi"}], id="h", name="ada"),
    AIMessage(
        "",
        id="a",
        tool_calls=[{"name": "look", "args": {"at": [1, {"b": None}]}, "id": "c1"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        response_metadata={"model_name": "m"},
        additional_kwargs={"x": 1},
    ),
    ToolMessage("r", id="t", tool_call_id="c1", name="look", artifact={"a": [1]}, status="error"),
    FunctionMessage(content="f", id="f", name="old"),
    ChatMessage(content="c", id="c", role="critic"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.type)
@pytest.mark.parametrize("form", ["message_to_dict", "model_dump", "json"])
def test_dicts_of_langchain_come_back_equal(message: BaseMessage, form: str) -> None:
    """Dicts written by ``message_to_dict`` and ``model_dump`` are read, also after JSON."""
    raw = message_to_dict(message) if form == "message_to_dict" else message.model_dump()
    if form == "json":
        raw = json.loads(json.dumps(raw))
    [again] = normalize_messages(raw)
    assert type(again) is type(message)
    assert same_messages([again], [message])


def test_an_item_leaves_no_trace_of_its_format() -> None:
    """Type and status of a Responses message are no arguments of the message; a tool result keeps its status."""
    item = {"type": "message", "role": "user", "content": "Hi", "status": "completed"}
    result = {"role": "tool", "tool_call_id": "c1", "content": "no", "status": "error"}
    said, failed = normalize_messages([item, result])
    assert (said.text, said.additional_kwargs) == ("Hi", {})
    assert isinstance(failed, ToolMessage)
    assert failed.status == "error"


def test_a_dict_of_a_chunk_is_made_whole() -> None:
    """The dict of an AIMessageChunk becomes an AIMessage, as the chunk itself does."""
    [whole] = normalize_messages(AIMessageChunk(content="Hi", id="a").model_dump())
    assert type(whole) is AIMessage
    assert whole.text == "Hi"


def test_a_dict_of_langchain_is_copied() -> None:
    """A caller who changes it later changes no message."""
    raw = {"type": "human", "data": {"content": [{"type": "text", "text": "Hi"}]}}
    [message] = normalize_messages(raw)
    raw["data"]["content"][0]["text"] = "Ho"
    assert message.text == "Hi"


@each_case(
    ("raw", "field"),
    [
        ({"type": "computer_call", "id": "cu", "call_id": "c", "status": "completed"}, "type"),
        ({"type": "item_reference", "id": "x"}, "type"),
        ({"type": "nonsense", "content": "x"}, "type"),
        ({"type": "human"}, "content"),
        ({"type": "human", "data": {"content": 5}}, "content"),
        ({"type": "remove", "id": "x", "content": ""}, ""),
        (
            {
                "lc": 1,
                "type": "constructor",
                "id": ["langchain", "schema", "HumanMessage"],
                "kwargs": {},
            },
            "type",
        ),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "call_id"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "name"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": []}, "arguments"),
        ({"type": "function_call_output", "output": "x"}, "call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": {"a": 1}}, "output"),
        ({"type": "message", "role": "assistant"}, "content"),
        (
            {"role": "user", "content": [{"type": "tool_result", "content": "x"}]},
            "content[0].tool_use_id",
        ),
        (
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "x", "content": 5}],
            },
            "content",
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]},
            "content[0].id",
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "input": {}}]},
            "content[0].name",
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "f", "input": "x"}],
            },
            "content[0].input",
        ),
    ],
)
def test_what_is_not_taken_is_refused_by_name(raw: dict[str, Any], field: str) -> None:
    """The error names the message by its index in the caller's batch, and the field."""
    with pytest.raises(InvalidMessageError) as caught:
        normalize_messages([ANTHROPIC[2], raw])
    assert (caught.value.index, caught.value.field) == (1, field)


def test_ids_are_derived_for_each_message_of_a_dict() -> None:
    """The dict's own id is the last one's; a key gives each its own, the same every time."""
    results = {"role": "user", "id": "u1", "content": ANTHROPIC[2]["content"]}
    ids = [message.id for message in normalize_messages(results)]
    assert ids[-1] == "u1"
    assert len(set(ids)) == 3
    assert ids == [message.id for message in normalize_messages(results)]
    keyed = [[message.id for message in normalize_messages(ANTHROPIC, key="r1")] for _ in range(2)]
    assert keyed[0] == keyed[1]
    assert len(set(keyed[0])) == 6


_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_TYPES = [
    *(
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        "custom_tool_call",
        "human",
        "ai",
        "tool",
    ),
    *("constructor", "tool_use", "tool_result", "input_text", "text", "web_search_call"),
]
_KEYS = [
    "type",
    "role",
    "content",
    "call_id",
    "name",
    "arguments",
    "output",
    "input",
    "id",
    "tool_use_id",
    "data",
    "text",
]
_values = _plain | st.sampled_from([*_TYPES, "user", "assistant"])
_blocks = st.lists(
    st.dictionaries(st.sampled_from(_KEYS), _values, max_size=5) | _values, max_size=3
)


@given(st.lists(st.dictionaries(st.sampled_from(_KEYS), _values | _blocks, max_size=6), max_size=3))
def test_any_dicts_give_messages_or_the_typed_error(batch: list[Any]) -> None:
    """Any dicts give messages with ids or raise InvalidInputError, and the batch is not changed."""
    before = copy.deepcopy(batch)
    try:
        messages = normalize_messages(batch)
    except InvalidInputError:
        messages = []
    assert all(isinstance(message, BaseMessage) and message.id for message in messages)
    assert batch == before


@pytest.mark.parametrize("history", [ANTHROPIC, RESPONSES], ids=["anthropic", "responses"])
async def test_views_show_calls_with_their_results(
    store: ConversationStore, scope: dict[str, str], history: list[Any]
) -> None:
    """Every call has its result and every result its call, in the turn in progress and afterwards."""
    chat = store.conversation(**scope)
    await chat.append(history)
    for _ in range(2):
        view = (await chat.load_history()).messages
        assert check_pairing(view) == []
        assert [message.text for message in view if message.type == "tool"] == ["4 degrees", "?"]
        assert all(MISSING_TEXT not in message.text for message in view)
        await chat.append({"role": "user", "content": "Thanks."})


async def test_a_turn_is_appended_in_these_formats(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """`turn` and its session take them too; a message with results is not a question."""
    chat = store.conversation(**scope)
    async with await chat.turn("r1", human=RESPONSES[0]) as turn:
        receipt = await turn.append(RESPONSES[1:])
    assert receipt.written == 4
    with pytest.raises(InvalidInputError):
        await chat.turn("r2", human=ANTHROPIC[2])


class Details(BaseModel):
    """The details that an SDK's counts have."""

    reasoning_tokens: int | None = None


class Counts(BaseModel):
    """The counts of a model as an SDK's object."""

    prompt_tokens: int = 10
    completion_tokens: int = 5
    total_tokens: int = 15
    completion_tokens_details: Details = Details()


class Said(BaseModel):
    """A message as an SDK's object."""

    role: str = "assistant"
    content: str = "Hello."
    refusal: str | None = None
    model: str = "m-1"
    usage: Counts = Counts()


SAID: dict[str, Any] = {"role": "assistant", "content": "Hello."}


@each_case(
    ("message", "model", "cached"),
    [
        ({**SAID, "usage": Counts().model_dump()}, "unknown", 0),
        ({**SAID, "usage": Counts(), "model": "m-1"}, "m-1", 0),
        (
            {
                **SAID,
                "usage": {"input_tokens": 8, "output_tokens": 5, "cache_read_input_tokens": 2},
            },
            "unknown",
            2,
        ),
        (
            {
                **SAID,
                "type": "message",
                "model": "m-1",
                "usage": {"input_tokens": 10, "output_tokens": 5},
            },
            "m-1",
            0,
        ),
        (Said(), "m-1", 0),
        (Said().model_dump(), "m-1", 0),
    ],
)
async def test_the_counts_of_a_model_are_counted(message: Any, model: str, cached: int) -> None:
    """Token counts are recorded from dicts of OpenAI and Anthropic, from SDK objects and from whole responses."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        for batch in (message, [message]):
            await chat.append(batch)
        (found,) = (await chat.info()).usage.items()
        assert (found[0], *found[1].values()) == (model, 20, 10, 30, 2 * cached, 0)
        assert [message.text async for message in chat.messages()] == ["Hello."] * 2
