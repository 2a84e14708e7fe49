"""Promises of ``convstore.append.inputs``: whole messages with ids, or a typed error and nothing changed."""

from __future__ import annotations

import asyncio
import copy
import gzip
import itertools
import json
import math
import traceback
from collections import Counter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
    message_chunk_to_message,
)
from langchain_core.prompt_values import ChatPromptValue
from properties import examples
from pydantic import ValidationError

from convstore.append.inputs import normalize_messages
from convstore.exceptions import InvalidInputError, InvalidMessageError
from convstore.values.json_form import deep_json

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "dev"
DEEP = 10_000
HELLO = {"role": "user", "content": "Hello"}


class PoliteHumanMessage(HumanMessage):
    """A subclass of the kind that agents define."""


class MarkedChunk(AIMessageChunk):
    """A subclass of a chunk."""


class StrWithNotes(str):
    """A str that is not exactly str."""

    __slots__ = ()


def numbered() -> Any:
    """Return an id maker that gives new-0, new-1 and so on."""
    counter = itertools.count()
    return lambda: f"new-{next(counter)}"


def normalized(raw: Any, **options: Any) -> Any:
    """Return the only message of a batch of one."""
    (message,) = normalize_messages(raw, **options)
    return message


def refusal(batch: Any, **options: Any) -> InvalidMessageError:
    """Return the error that the batch is refused with."""
    with pytest.raises(InvalidMessageError) as caught:
        normalize_messages(batch, **options)
    return caught.value


def function_call(arguments: Any, **more: Any) -> dict[str, Any]:
    """Return an assistant dict with one call."""
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "search", "arguments": arguments},
        **more,
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def nested(levels: int, *, of: type = dict) -> Any:
    """Return dicts or lists inside each other, made without recursion."""
    outer: Any = "core"
    for _ in range(levels):
        outer = {"in": outer} if of is dict else [outer]
    return outer


def depth(value: Any) -> int:
    """Return how many dicts and lists are inside each other on the way down."""
    levels = 0
    while isinstance(value, dict | list):
        levels += 1
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return levels


# What a batch may be


@each_case("wrap", [list, tuple, iter, lambda items: (item for item in items)])
def test_any_iterable_is_a_batch(wrap: Any) -> None:
    """Lists, tuples, iterators and generators of messages and dicts are batches, and the order is kept."""
    batch = [HumanMessage("a"), {"role": "assistant", "content": "b"}, HumanMessage("c")]
    assert [message.content for message in normalize_messages(wrap(batch))] == ["a", "b", "c"]


@each_case(
    "alone",
    [HumanMessage("Hello"), HELLO, MappingProxyType(HELLO), HumanMessageChunk(content="Hello")],
)
def test_one_message_is_a_batch_of_one(alone: Any) -> None:
    """A message, a chunk or a dict that is not in a list is a batch of one."""
    message = normalized(alone)
    assert type(message) is HumanMessage
    assert message.content == "Hello"


@each_case(
    "batch",
    [
        "Hello",
        b"Hello",
        bytearray(b"x"),
        None,
        7,
        1.5,
        True,
        object(),
        ChatPromptValue(messages=[]),
        repr,
    ],
)
def test_what_is_no_batch_is_refused(batch: Any) -> None:
    """A str, bytes, None, a number or another object is refused by an error that says what to pass."""
    error = refusal(batch)
    assert error.index is None
    assert "pass a LangChain message or an OpenAI-format dict" in str(error)


@each_case("empty", [[], (), iter(())])
def test_an_empty_batch_is_refused(empty: Any) -> None:
    """An empty batch is refused: it would be an entry of nothing."""
    assert "empty" in str(refusal(empty))


@each_case("item", ["Hello", None, ("user", "Hello"), 3, [HELLO], ChatPromptValue(messages=[])])
def test_an_item_that_is_no_message_is_named(item: Any) -> None:
    """An item that is neither message nor dict is refused, with its place in the batch."""
    error = refusal([HELLO, item])
    assert (error.index, error.field) == (1, "")
    assert "expected a LangChain message" in str(error)


def test_an_error_of_the_callers_generator_is_the_callers() -> None:
    """An exception of a generator reaches the caller unchanged."""

    def broken() -> Any:
        yield HELLO
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        normalize_messages(broken())


# LangChain messages


@each_case(
    "message",
    [
        HumanMessage("Hello", name="ada"),
        AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": None}]),
        SystemMessage(["Hello", {"type": "text", "text": "there"}]),
        ToolMessage("42", tool_call_id="c1", artifact=Document("x"), status="error"),
        FunctionMessage(content="42", name="f"),
        ChatMessage(content="Hello", role="narrator"),
    ],
)
def test_plain_messages_are_returned_as_they_are(message: Any) -> None:
    """A message of a plain class comes back as the same object, changed in its id only."""
    before = message.model_copy()
    returned = normalized(message, new_id=lambda: "new")
    assert returned is message
    assert message == before.model_copy(update={"id": "new"})


def test_remove_message_is_refused() -> None:
    """A RemoveMessage is refused: the log is immutable, and the error names rewind."""
    error = refusal([HELLO, RemoveMessage(id="x")])
    assert error.index == 1
    assert "immutable" in str(error)
    assert "rewind" in str(error)


@each_case(
    ("message", "plain"),
    [
        (PoliteHumanMessage(content="Hello"), "HumanMessage"),
        (MarkedChunk(content="Hello"), "AIMessage"),
        (BaseMessage(content="Hello", type="human"), "HumanMessage"),
    ],
)
def test_other_classes_are_refused(message: Any, plain: str) -> None:
    """A subclass, which would come back as another class, is refused by an error that names the plain class."""
    error = refusal(message)
    assert error.index == 0
    assert f"convert it to a plain class such as {plain}" in str(error)
    assert message.id is None


@each_case("call_id", ["", None, 7])
def test_a_tool_message_without_its_call_is_refused(call_id: int | str | None) -> None:
    """A LangChain tool message whose tool_call_id is missing, empty or no str is refused."""
    message = ToolMessage("42", tool_call_id="c1")
    message.tool_call_id = call_id
    error = refusal([HELLO, message])
    assert (error.index, error.field) == (1, "tool_call_id")


def test_a_function_message_without_a_name_is_refused() -> None:
    """A function message with an empty name belongs to no call and is refused."""
    assert refusal(FunctionMessage(content="42", name="")).field == "name"


@each_case(
    ("content", "field"),
    [(None, "content"), (7, "content"), (("a",), "content"), (["a", 7], "content[1]")],
)
def test_a_message_whose_content_was_broken_is_refused(content: Any, field: str) -> None:
    """LangChain does not check content that is set later, so it is checked here."""
    message = HumanMessage("Hello")
    message.content = content
    assert refusal(message).field == field


def test_a_message_made_without_its_fields_is_refused() -> None:
    """A message from ``model_construct`` that lacks required fields is refused with the field."""
    assert refusal(HumanMessage.model_construct()).field == "content"
    assert refusal(ToolMessage.model_construct(content="x")).field == "tool_call_id"


# Chunks


COMMON = {
    "content": ["Hello", {"type": "text", "text": "there", "index": 0}],
    "additional_kwargs": {"reasoning_content": "hm"},
    "response_metadata": {"model_name": "m", "finish_reason": "stop"},
    "name": "ada",
}
CALL_CHUNKS = [
    {"name": "f", "args": '{"a": 1}', "id": "c1", "index": 0, "type": "tool_call_chunk"},
    {"name": "g", "args": "[1]", "id": "c2", "index": 1, "type": "tool_call_chunk"},
]
USAGE = {
    "input_tokens": 1,
    "output_tokens": 2,
    "total_tokens": 3,
    "output_token_details": {"reasoning": 1},
}


@each_case(
    ("chunk", "whole_class"),
    [
        (
            AIMessageChunk(
                **COMMON, tool_call_chunks=CALL_CHUNKS, usage_metadata=USAGE, chunk_position="last"
            ),
            AIMessage,
        ),
        (HumanMessageChunk(**COMMON), HumanMessage),
        (SystemMessageChunk(**COMMON), SystemMessage),
        (ChatMessageChunk(**COMMON, role="narrator"), ChatMessage),
        (FunctionMessageChunk(**COMMON), FunctionMessage),
        (
            ToolMessageChunk(**COMMON, tool_call_id="c1", artifact={"a": 1}, status="error"),
            ToolMessage,
        ),
    ],
)
def test_a_chunk_becomes_the_message_langchain_makes_of_it(chunk: Any, whole_class: Any) -> None:
    """Each chunk becomes its plain class, equal to what LangChain itself converts it to."""
    message = normalized(chunk)
    assert type(message) is whole_class
    assert message == message_chunk_to_message(chunk)
    assert message.model_dump() == message_chunk_to_message(chunk).model_dump()


def test_a_chunk_loses_no_field() -> None:
    """Content, calls, broken calls, usage, metadata, name and id of a summed AI chunk are in the whole message."""
    parts = [
        AIMessageChunk(content="Hel", id="run-1", response_metadata={"model_name": "m"}),
        AIMessageChunk(
            content="lo", tool_call_chunks=[{"name": "f", "args": '{"a"', "id": "c1", "index": 0}]
        ),
        AIMessageChunk(
            content="", tool_call_chunks=[{"name": None, "args": ": 1}", "id": None, "index": 0}]
        ),
        AIMessageChunk(
            content="", tool_call_chunks=[{"name": "g", "args": "oops", "id": "c2", "index": 1}]
        ),
        AIMessageChunk(
            content="",
            usage_metadata=USAGE,
            additional_kwargs={"refusal": "no"},
            chunk_position="last",
        ),
    ]
    message = normalized(parts[0] + parts[1] + parts[2] + parts[3] + parts[4])
    assert message == AIMessage(
        "Hello",
        id="run-1",
        tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c1"}],
        invalid_tool_calls=[{"name": "g", "args": "oops", "id": "c2", "error": None}],
        usage_metadata=USAGE,
        response_metadata={"model_name": "m"},
        additional_kwargs={"refusal": "no"},
    )


def test_a_chunk_keeps_what_langchains_conversion_drops() -> None:
    """Extra fields of a chunk and the extras of its tool calls (a signature, say) are kept."""
    chunk = AIMessageChunk(content="", tool_call_chunks=CALL_CHUNKS[:1], provider_note="kept")  # type: ignore[call-arg]
    chunk.tool_calls[0]["extras"] = {"signature": "s"}
    message = normalized(chunk)
    assert message.provider_note == "kept"
    assert message.tool_calls[0]["extras"] == {"signature": "s"}


def test_a_chunk_and_its_message_get_the_same_id() -> None:
    """The id that a chunk lacks is set on the caller's chunk too, so a retry makes the same message."""
    chunk = AIMessageChunk(content="Hello")
    first = normalized(chunk)
    assert chunk.id == first.id
    assert normalized(chunk) == first


# Ids


def test_missing_ids_are_new_uuids() -> None:
    """Messages and dicts without id get different random uuid4 strings."""
    ids = [message.id for message in normalize_messages([HumanMessage("a"), HELLO, HELLO])]
    assert len(set(ids)) == 3
    assert all(len(id_) == 36 and id_[14] == "4" for id_ in ids)


def test_ids_are_set_on_the_callers_messages() -> None:
    """A second call with the same objects finds the ids of the first."""
    batch = [HumanMessage("a"), AIMessage("b", id="mine")]
    first = [message.id for message in normalize_messages(batch, new_id=numbered())]
    assert first == ["new-0", "mine"]
    assert [message.id for message in normalize_messages(batch)] == first


def test_errors_say_what_a_reply_lacks() -> None:
    """A dict of a whole completion without its `object`, and the coroutine of a call that was not awaited."""
    choice = {"message": {"role": "assistant", "content": "Fish."}}
    error = refusal({"choices": [choice]})
    assert error.field == "role"
    assert "is missing; a message has one of system, " in str(error)
    assert "'object': 'chat.completion' or 'object': 'response'" in str(error)
    reply = asyncio.sleep(0)
    assert str(refusal(reply)) == "a batch cannot be a value of type coroutine; await it first"
    reply.close()


@each_case(
    "bad",
    [
        {"role": "nobody"},
        ToolMessage("x", tool_call_id=""),
        HumanMessage("x", id=""),
        HumanMessage("x", id="a"),
    ],
)
def test_a_refused_batch_changes_nothing(bad: Any) -> None:
    """If a message of the batch is refused, no id is set on any object of the caller."""
    first, chunk, named = HumanMessage("a"), AIMessageChunk(content="b"), HumanMessage("c", id="a")
    refusal([first, chunk, named, bad])
    assert (first.id, chunk.id) == (None, None)


BAD_IDS = ["", "x" * 513, "é" * 257, "\ud800", StrWithNotes("x"), 7, b"x", ["x"], {"$ne": ""}, True]


@each_case("bad", BAD_IDS)
def test_unusable_ids_are_refused(bad: Any) -> None:
    """An id that is not a plain non-empty str of at most 512 bytes of UTF-8 is refused, on messages and dicts."""
    message = HumanMessage("x")
    message.id = bad
    for item in (message, {**HELLO, "id": bad}):
        error = refusal([HELLO, item])
        assert (error.index, error.field) == (1, "id")


@each_case("good", ["x", "x" * 512, "é" * 256, "\x00", "$a.b"])
def test_usable_ids_are_kept(good: str) -> None:
    """Any plain str of 1 to 512 bytes of UTF-8 is kept, with and without a key."""
    assert normalized({**HELLO, "id": good}, key="k") == HumanMessage("Hello", id=good)
    assert normalized(HumanMessage("x", id=good)).id == good


@each_case("bad", BAD_IDS)
def test_an_unusable_key_is_refused(bad: Any) -> None:
    """A key is held to the same rule as an id; the error does not blame a message."""
    with pytest.raises(InvalidInputError, match="key must") as caught:
        normalize_messages(HELLO, key=bad)
    assert not isinstance(caught.value, InvalidMessageError)


@each_case("bad", ["", 7])
def test_an_unusable_new_id_is_refused(bad: int | str) -> None:
    """Ids returned by ``new_id`` are checked as well."""
    assert refusal(HumanMessage("x"), new_id=lambda: bad).field == "id"


def test_repeated_ids_name_both_places() -> None:
    """Two messages with one id in a batch are refused, and the error names both indexes."""
    error = refusal([HumanMessage("a", id="x"), HELLO, {**HELLO, "id": "x"}])
    assert (error.index, error.field) == (2, "id")
    assert "message 2" in str(error)
    assert "message 0" in str(error)


@pytest.mark.parametrize("again", [HumanMessage("a"), AIMessageChunk(content="a")])
@pytest.mark.parametrize("key", [None, "k"])
def test_the_same_object_twice_is_refused(again: Any, key: str | None) -> None:
    """A batch that contains one object twice is refused, because an object can have only one id."""
    error = refusal([again, HELLO, again], key=key)
    assert (error.index, error.field) == (2, "id")
    assert "message 0" in str(error)
    assert again.id is None


def test_the_same_dict_twice_is_two_messages() -> None:
    """A dict has no identity: given twice it is two messages with two ids."""
    first, second = normalize_messages([HELLO, HELLO])
    assert first.id != second.id


def test_a_key_makes_ids_repeatable() -> None:
    """The same key gives the same ids in any process; another key or place gives others; given ids stay."""
    batch = [HELLO, {**HELLO, "id": "mine"}, {**HELLO, "id": None}]
    ids = [message.id for message in normalize_messages(batch, key="request-1")]
    assert ids == [
        "1bd50395-73c6-5419-bc52-51def364afab",
        "mine",
        "bc4ffe4a-d4b8-5abb-b728-a608c5776cf3",
    ]
    assert ids[0] != normalized(HELLO, key="request-2").id


def test_a_key_names_messages_too() -> None:
    """A message without id gets the derived id as a dict does, so one made anew for a retry is the same."""
    assert normalized(HumanMessage("Hello"), key="k").id == normalized(HELLO, key="k").id


@given(
    st.sets(
        st.tuples(st.text("a1-:\0", min_size=1, max_size=6), st.integers(0, 30)),
        min_size=2,
        max_size=8,
    )
)
def test_derived_ids_do_not_clash(places: Any) -> None:
    """No two pairs of key and place give one id, however keys are spelt ("a", 11 and "a-1", 1)."""
    ids = [normalize_messages([HELLO] * (index + 1), key=key)[index].id for key, index in places]
    assert len(set(ids)) == len(places)


# Dicts: roles, content, names


@each_case(
    ("raw", "message"),
    [
        ({"role": "system", "content": "x"}, SystemMessage("x")),
        (
            {"role": "developer", "content": "x"},
            SystemMessage("x", additional_kwargs={"__openai_role__": "developer"}),
        ),
        ({"role": "user", "content": "x", "name": "ada"}, HumanMessage("x", name="ada")),
        ({"role": "assistant", "content": "x"}, AIMessage("x")),
        ({"role": "assistant"}, AIMessage("")),
        ({"role": "assistant", "content": None, "tool_calls": None}, AIMessage("")),
        (
            {"role": "tool", "content": "x", "tool_call_id": "c1"},
            ToolMessage("x", tool_call_id="c1"),
        ),
        (
            {
                "role": "tool",
                "content": "",
                "tool_call_id": "c1",
                "name": "f",
                "status": "error",
                "artifact": [1],
            },
            ToolMessage("", tool_call_id="c1", name="f", status="error", artifact=[1]),
        ),
        ({"role": "function", "content": "x", "name": "f"}, FunctionMessage(content="x", name="f")),
    ],
)
def test_each_role_has_its_class(raw: dict[str, Any], message: Any) -> None:
    """A dict becomes the message of its role, with content, name and what else LangChain has a field for."""
    assert normalized(raw, new_id=lambda: "new") == message.model_copy(update={"id": "new"})


@each_case("role", ["human", "ai", "", "User", None, 7, ["user"], {"a": 1}, nested(DEEP, of=list)])
def test_an_unknown_role_is_refused(role: Any) -> None:
    """An unknown, empty or missing role is refused with an error that lists the valid roles."""
    error = refusal([HELLO, {"role": role, "content": "x"}])
    assert (error.index, error.field) == (1, "role")
    assert "system, developer, user, assistant, tool, function" in str(error)


@each_case("role", ["system", "developer", "user", "tool", "function"])
def test_missing_content_is_refused(role: str) -> None:
    """Only an assistant may leave content out or send null; OpenAI's API also takes null of an old function."""
    raw = {"role": role, "name": "f", "tool_call_id": "c1", "content": None}
    if role == "function":
        assert normalized(raw).content == ""
        return
    for sent in (
        raw,
        {**raw, "type": "message"},
        {"role": role, "name": "f", "tool_call_id": "c1"},
    ):
        error = refusal([HELLO, sent])
        assert (error.index, error.field) == (1, "content")
        assert "a text or a list of blocks" in str(error)


@each_case(
    ("raw", "field"),
    [
        *[({"type": type_, "content": None}, "content") for type_ in ("human", "ai")],
        *[({"type": type_, "data": {"content": None}}, "content") for type_ in ("human", "system")],
        ({"type": "tool", "tool_call_id": "c1", "content": None}, "content"),
        ({"type": "function_call_output", "call_id": "c1", "output": None}, "output"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "input_text", "text": None}]}, "content[0].text"),
    ],
)
def test_no_text_is_refused_in_other_forms(raw: dict[str, Any], field: str) -> None:
    """Dicts of LangChain, Responses and Anthropic; LangChain would make it the text "None" in a result."""
    assert refusal(raw).field == field


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (7, "content"),
        (b"x", "content"),
        ({"type": "text"}, "content"),
        (("x",), "content"),
        (["x", None], "content[1]"),
    ],
)
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "function"])
def test_content_of_another_type_is_refused(role: str, content: Any, field: str) -> None:
    """Content is text or a list of blocks; LangChain's own turning of a number into text never happens."""
    raw = {"role": role, "name": "f", "tool_call_id": "c1", "content": content}
    assert refusal([HELLO, raw]).field == field


def test_blocks_are_kept_as_they_are() -> None:
    """Text and dict blocks of any provider, odd keys and values included, are kept unchanged."""
    blocks = [
        "x",
        {"type": "thinking", "signature": "s"},
        {"$a.b": [math.inf, None, {"\ud800": "\x00"}], 7: 2**70},
    ]
    assert normalized({"role": "user", "content": blocks}).content == blocks


@each_case(
    ("raw", "field"),
    [
        ({"role": "user", "content": "x", "name": 7}, "name"),
        ({"role": "user", "content": "x", "name": b"x"}, "name"),
        ({"role": "function", "content": "x"}, "name"),
        ({"role": "function", "content": "x", "name": ""}, "name"),
        ({"role": "function", "content": "x", "name": 7}, "name"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": None}, "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": ""}, "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": 7}, "tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": "c1", "status": "ok"}, "status"),
        ({"role": "tool", "content": "x", "tool_call_id": "c1", "status": ["error"]}, "status"),
        ({"role": "tool", "content": "x", "tool_call_id": "c1", "status": ""}, "status"),
    ],
)
def test_unusable_fields_of_a_dict_are_named(raw: dict[str, Any], field: str) -> None:
    """A name, tool_call_id or status that cannot be right is refused with message index and field."""
    error = refusal([HELLO, raw])
    assert (error.index, error.field) == (1, field)
    assert str(error).startswith(f"message 1, field '{field}': ")


# Dicts: nothing is lost


@each_case(
    ("name", "value"),
    [
        ("reasoning_content", "hm"),
        ("reasoning", None),
        ("reasoning_details", [{"type": "reasoning.text", "signature": "s"}]),
        ("annotations", []),
        ("executed_tools", [{"a": 1}]),
        ("refusal", None),
        ("audio", {"id": "a1"}),
        ("function_call", {"name": "f", "arguments": "{}"}),
        ("timestamp", 1.5),
        ("sources", [{"text": "x"}]),
        ("type", "ai"),
        ("response_metadata", {"a": 1}),
        ("additional_kwargs", {"a": 1}),
        ("usage_metadata", {"a": 1}),
        ("invalid_tool_calls", [{"a": 1}]),
    ],
)
def test_unknown_keys_are_kept(name: str, value: Any) -> None:
    """A key that LangChain has no field for is in additional_kwargs under its own name, whatever the role."""
    for role in ("system", "user", "assistant", "tool", "function"):
        raw = {"role": role, "content": "x", "name": "f", "tool_call_id": "c1", name: value}
        assert normalized(raw).additional_kwargs[name] == value


@each_case("name", ["audio", "function_call"])
def test_a_null_that_means_none_is_left_out(name: str) -> None:
    """OpenAI's null for "no audio" and "no function call" is left out: langchain-openai fails on sending it."""
    assert normalized({"role": "assistant", "content": "x", name: None}).additional_kwargs == {}


@each_case(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 9}, (5, 2, 9)),
        ({"prompt_tokens": 5, "completion_tokens": 2}, (5, 2, 7)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": None}, (5, 2, 7)),
        ({"prompt_tokens": 2**70, "completion_tokens": 0}, (2**70, 0, 2**70)),
        ({"prompt_tokens": 5}, None),
        ({"prompt_tokens": 5.0, "completion_tokens": 2}, None),
        ({"prompt_tokens": True, "completion_tokens": 2}, None),
        ({"prompt_tokens": -5, "completion_tokens": 2}, None),
        ([5, 2], None),
        (None, None),
    ],
)
def test_usage_becomes_usage_metadata(
    usage: dict[str, Any] | list[int] | None, expected: Any
) -> None:
    """Token counts are in usage_metadata in LangChain's words, and always also as they were given."""
    message = normalized({"role": "assistant", "content": "x", "usage": usage})
    found = message.usage_metadata
    names = ("input_tokens", "output_tokens", "total_tokens")
    assert found == (None if expected is None else dict(zip(names, expected, strict=True)))
    assert message.additional_kwargs == {"usage": usage}


def test_dicts_are_not_mutated_and_not_shared() -> None:
    """The caller's dicts stay as they are, and changing them later changes no message, and the reverse."""
    raw = [
        {
            "role": "user",
            "content": [{"type": "text", "x": {"y": [1]}}],
            "sources": [{"a": {"b": 1}}],
        },
        {**function_call({"a": {"b": [1]}}, extra={"s": [1]}), "usage": {"d": {"e": 1}}},
        {"role": "tool", "content": ["x"], "tool_call_id": "c1", "artifact": {"a": [{"b": 1}]}},
    ]
    before = copy.deepcopy(raw)
    messages = normalize_messages(raw)
    assert raw == before
    dumped = copy.deepcopy([message.model_dump() for message in messages])
    for shared in ([*containers(item)] for item in raw):
        for container in shared:
            container.clear()
    assert [message.model_dump() for message in messages] == dumped


def containers(value: Any) -> Any:
    """Yield the dicts and lists in a value, innermost first."""
    for child in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from containers(child)
    if isinstance(value, dict | list):
        yield value


def test_other_objects_in_an_artifact_are_kept() -> None:
    """Only dicts and lists are made anew: a Document, tuple, set or bytes in an artifact is the caller's own."""
    artifact = {"docs": [Document("x")], "pair": (1, [2]), "set": {1}, "raw": b"x"}
    kept = normalized(
        {"role": "tool", "content": "x", "tool_call_id": "c1", "artifact": artifact}
    ).artifact
    assert kept == artifact
    assert kept["docs"][0] is artifact["docs"][0]


@pytest.mark.costly
@pytest.mark.parametrize("of", [dict, list])
def test_any_depth_is_copied(of: Any) -> None:
    """Content, artifact and unknown keys of 10,000 levels are kept, without recursion; arguments as their JSON text."""
    deep = nested(DEEP, of=of)
    user, tool, assistant = normalize_messages(
        [
            {"role": "user", "content": [{"deep": deep}]},
            {"role": "tool", "content": "x", "tool_call_id": "c1", "artifact": deep},
            {**function_call({"deep": deep}), "reasoning_details": deep},
        ]
    )
    kept = [
        user.content[0]["deep"],
        tool.artifact,
        assistant.additional_kwargs["reasoning_details"],
    ]
    assert [depth(value) for value in kept] == [DEEP] * 3
    [call] = assistant.invalid_tool_calls
    assert call["args"] == deep_json({"deep": deep})
    ring: dict[str, Any] = {}
    ring["self"] = ring
    with pytest.raises(InvalidMessageError, match=r"arguments.*contains itself"):
        normalize_messages([function_call(ring)])


def test_shared_and_circular_values_end() -> None:
    """A value that is met twice, or that holds itself, is copied once: nothing hangs."""
    ring: dict[str, Any] = {}
    ring["self"] = ring
    wide: Any = ["x"]
    for _ in range(100):
        wide = [wide, wide]
    kept = normalized({**HELLO, "ring": ring, "wide": wide}).additional_kwargs
    assert kept["ring"]["self"] is kept["ring"] is not ring
    assert kept["wide"][0] is kept["wide"][1] is not wide[0]


# Dicts: tool calls


def test_an_error_and_its_causes_quote_no_content() -> None:
    """A traceback that an application logs has the field and the problem, not the text that was refused."""
    refused: list[Any] = [
        {"type": "ai", "content": {"x": "secret"}},
        {"type": "ai", "content": "x", "usage_metadata": {"input_tokens": "secret"}},
        {"role": "tool", "content": "x", "tool_call_id": "c1", "status": "secret"},
    ]
    for body in refused:
        with pytest.raises(InvalidMessageError) as caught:
            normalize_messages([body])
        written = traceback.format_exception(caught.value)
        assert "secret" not in "".join(line for line in written if not line.startswith('  File "'))


@each_case(
    ("arguments", "args"),
    [
        ('{"q": "ada", "n": [1, 2.5, null]}', {"q": "ada", "n": [1, 2.5, None]}),
        (' {"q": 1}\n', {"q": 1}),
        ("null", {}),
        (" null ", {}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ("{}", {}),
        ({}, {}),
        ({"q": {"a": [1]}}, {"q": {"a": [1]}}),
        ('{"q": 1, "q": 2}', {"q": 2}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ('{"n": Infinity}', {"n": math.inf}),
        ('{"n": 1e999}', {"n": math.inf}),
        ('{"\\ud800": "\\u0000"}', {"\ud800": "\x00"}),
    ],
)
def test_arguments_become_args(
    arguments: dict[str, Any] | str | None, args: dict[str, Any]
) -> None:
    """The JSON text of an object, nothing, null or a dict becomes a tool call; the call says no more than that."""
    message = normalized(function_call(arguments))
    assert message.tool_calls == [{"name": "search", "args": args, "id": "c1", "type": "tool_call"}]
    assert (message.invalid_tool_calls, message.additional_kwargs, message.content) == ([], {}, "")


def test_missing_arguments_are_none() -> None:
    """A call without the key ``arguments`` has no arguments."""
    raw = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "f"}}]}
    assert normalized(raw).tool_calls[0]["args"] == {}


def test_nan_is_read() -> None:
    """NaN, which Python's JSON writes, is read as a float."""
    assert math.isnan(normalized(function_call('{"n": NaN}')).tool_calls[0]["args"]["n"])


@pytest.mark.parametrize(
    "text",
    [
        "{oops",
        '{"q": "ada',
        "[1, 2]",
        '"ada"',
        "7",
        "true",
        "NaN",
        "\ufeff{}",
        '{"q": 1} trailing',
        '{"q": "\n"}',
        '{"n": ' + "9" * 5_000 + "}",
        '{"in": ' * 201 + "1" + "}" * 201,
        '{"in": ' * DEEP + "1" + "}" * DEEP,
        '{"in": ' + "[" * DEEP + "]" * DEEP + "}",
        "[" * 1_000_000,
    ],
    ids=lambda text: text[:12],
)
def test_unreadable_arguments_are_an_invalid_call(text: Any) -> None:
    """Text that is not JSON, is no object or nests too deeply is kept raw in invalid_tool_calls, and nothing hangs."""
    message = normalized(function_call(text))
    assert message.tool_calls == []
    (invalid,) = message.invalid_tool_calls
    assert (invalid["name"], invalid["args"], invalid["id"]) == ("search", text, "c1")
    assert invalid["error"].startswith("the arguments are not a JSON object")


def test_two_hundred_levels_are_readable() -> None:
    """Arguments of up to 200 levels are read, so that the limit does not depend on the caller's stack."""
    assert (
        depth(normalized(function_call('{"in": ' * 200 + "1" + "}" * 200)).tool_calls[0]["args"])
        == 200
    )


@each_case(("call_id", "kept"), [(None, None), ("", ""), ("c9", "c9")])
def test_the_id_of_a_call_is_kept(call_id: str | None, kept: str | None) -> None:
    """A call without id, as some servers send it, is kept with id None."""
    assert normalized(function_call("{}", id=call_id)).tool_calls[0]["id"] == kept
    assert (
        normalized({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}).tool_calls[
            0
        ]["id"]
        is None
    )


FUNCTION = {"name": "f", "arguments": "{}"}


@each_case(
    ("tool_calls", "field"),
    [
        ({}, "tool_calls"),
        ("", "tool_calls"),
        (7, "tool_calls"),
        ([7], "tool_calls[0]"),
        ([{"function": FUNCTION}, None], "tool_calls[1]"),
        ([{}], "tool_calls[0].function"),
        ([{"name": "f", "args": {}, "id": "c1"}], "tool_calls[0].function"),
        ([{"function": "f"}], "tool_calls[0].function"),
        ([{"function": {"arguments": "{}"}}], "tool_calls[0].function.name"),
        ([{"function": {"name": ""}}], "tool_calls[0].function.name"),
        ([{"function": {"name": None}}], "tool_calls[0].function.name"),
        ([{"function": FUNCTION, "id": 7}], "tool_calls[0].id"),
        ([{"function": FUNCTION, "id": b"c1"}], "tool_calls[0].id"),
        ([{"function": {"name": "f", "arguments": [1]}}], "tool_calls[0].function.arguments"),
        ([{"function": {"name": "f", "arguments": 7}}], "tool_calls[0].function.arguments"),
        ([{"type": "custom", "function": FUNCTION}], "tool_calls[0].custom"),
        ([{"type": "custom", "custom": {"input": "x"}}], "tool_calls[0].custom.name"),
        ([{"type": "custom", "custom": {"name": "f", "input": {}}}], "tool_calls[0].custom.input"),
    ],
)
def test_unusable_tool_calls_are_named(tool_calls: Any, field: str) -> None:
    """A call that lacks what a call needs is refused with the path to it."""
    error = refusal([HELLO, {"role": "assistant", "content": "x", "tool_calls": tool_calls}])
    assert (error.index, error.field) == (1, field)


def test_what_pydantic_refuses_is_typed() -> None:
    """Errors that only LangChain's model finds are InvalidMessageError with index and field, caused by pydantic's."""
    error = refusal([HELLO, function_call({7: "x"})])
    assert error.index == 1
    assert error.field.startswith("tool_calls[0].args")
    assert isinstance(error.__cause__, ValidationError)


@each_case(("given_input", "text"), [("SELECT 1", "SELECT 1"), ("", ""), (None, "")])
def test_custom_calls_are_kept(given_input: str | None, text: str) -> None:
    """A custom call is a tool call with langchain-openai's one argument; the raw call stays beside it."""
    calls = [{"id": "c1", "type": "custom", "custom": {"name": "sql", "input": given_input}}]
    message = normalized({"role": "assistant", "content": None, "tool_calls": calls})
    assert message.tool_calls == [
        {"name": "sql", "args": {"__arg1": text}, "id": "c1", "type": "tool_call"}
    ]
    assert message.additional_kwargs == {"tool_calls": calls}


@each_case(
    "call",
    [
        {
            "id": "c1",
            "type": "function",
            "function": FUNCTION,
            "extra_content": {"google": {"thought_signature": "s"}},
        },
        {"id": "c1", "type": "function", "function": {**FUNCTION, "strict": True}},
        {"id": "c1", "type": "other", "function": FUNCTION},
    ],
)
def test_calls_that_say_more_are_kept_raw(call: dict[str, Any]) -> None:
    """A call with a signature or another unknown key is kept raw too: LangChain's form has no place for it."""
    message = normalized({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message.tool_calls == [{"name": "f", "args": {}, "id": "c1", "type": "tool_call"}]
    assert message.additional_kwargs == {"tool_calls": [call]}


def test_the_order_of_valid_and_invalid_calls_is_kept() -> None:
    """If a message has both, LangChain's two lists lose their order, so the raw calls are kept as well."""
    calls = [
        {"id": name, "function": {"name": name, "arguments": text}}
        for name, text in [("a", "{"), ("b", "{}")]
    ]
    message = normalized({"role": "assistant", "tool_calls": calls})
    assert [call["id"] for call in message.tool_calls] == ["b"]
    assert [call["id"] for call in message.invalid_tool_calls] == ["a"]
    assert message.additional_kwargs == {"tool_calls": calls}


# Properties


TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXT
    | st.sampled_from(["tool", "assistant", "{}", "custom"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
BODY = st.fixed_dictionaries({}, optional=dict.fromkeys(("name", "arguments", "input"), JSON))
GOOD_BODY = st.fixed_dictionaries(
    {"name": st.just("f")}, optional={"arguments": TEXT | JSON.map(json.dumps)}
)
CALL = st.fixed_dictionaries(
    {},
    optional={
        "id": st.just("c1") | JSON,
        "type": st.sampled_from(["function", "custom"]) | JSON,
        "function": GOOD_BODY | BODY | JSON,
        "custom": BODY | JSON,
        "extra_content": JSON,
    },
)
ROLE = st.sampled_from(
    ["system", "developer", "user", "assistant", "assistant", "tool", "function"]
)
ANY_DICT = st.fixed_dictionaries(
    {},
    optional={
        "role": ROLE | JSON,
        "content": TEXT | JSON,
        "name": st.just("f") | JSON,
        "id": JSON,
        "tool_call_id": st.just("c1") | JSON,
        "status": st.sampled_from(["error", "success"]) | JSON,
        "artifact": JSON,
        "tool_calls": st.lists(CALL, max_size=3) | JSON,
        "function_call": JSON,
        "usage": st.dictionaries(
            st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens"]), JSON
        )
        | JSON,
        "reasoning_details": JSON,
        "unknown": JSON,
    },
)


@pytest.mark.slow
@given(st.lists(ANY_DICT | st.dictionaries(TEXT, JSON, max_size=4) | JSON, max_size=3) | JSON)
@examples(500)
def test_anything_gives_messages_or_the_typed_error(batch: Any) -> None:
    """Any JSON-like object in any field gives messages or an InvalidMessageError, never another exception."""
    try:
        messages = normalize_messages(batch)
    except InvalidMessageError:
        return
    assert all(type(message.id) is str and message.id for message in messages)
    assert len(messages) == (1 if isinstance(batch, dict) else len(batch))


GOOD_DICT = st.fixed_dictionaries(
    {"role": ROLE, "content": TEXT, "name": st.just("f"), "tool_call_id": st.just("c1")},
    optional={
        "usage": JSON,
        "unknown": JSON,
        "reasoning_details": JSON,
        "artifact": JSON,
        "tool_calls": st.lists(
            st.fixed_dictionaries({"id": TEXT, "function": GOOD_BODY}), max_size=3
        ),
    },
)


@given(GOOD_DICT)
def test_every_value_of_a_dict_is_in_its_message(raw: Any) -> None:
    """All that a usable dict says can be read from its message, and normalising it again says the same."""
    before = repr(raw)
    message = normalized(raw, key="k")
    assert repr(raw) == before
    assert repr(normalized(raw, key="k")) == repr(message)
    assert repr(said_by(message, like=raw)) == repr(parsed_arguments(raw))


def parsed_arguments(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the dict with the arguments of its calls read as an object where they are one, else as text."""
    if raw["role"] != "assistant" or "tool_calls" not in raw:
        return raw
    calls = [
        (call.get("id"), call["function"]["name"], loaded(call["function"]))
        for call in raw["tool_calls"]
    ]
    return {**raw, "tool_calls": sorted(calls, key=repr)}


def loaded(function: dict[str, Any]) -> Any:
    """Return arguments as JSON reads them; the raw text where it holds no object."""
    text = function.get("arguments", "")
    try:
        value = json.loads(text) if text.strip() else {}
    except ValueError:
        return text
    return value if isinstance(value, dict) else {} if value is None else text


def said_by(message: AnyMessage, *, like: dict[str, Any]) -> dict[str, Any]:
    """Return what the message says, as a dict with the keys that its source has and in their order."""
    says = dict(message.additional_kwargs)
    role = says.pop("__openai_role__", like["role"])
    says |= {"role": role, "content": message.content, "name": message.name}
    if isinstance(message, ToolMessage):
        says |= {"tool_call_id": message.tool_call_id, "artifact": message.artifact}
    if isinstance(message, AIMessage):
        calls = [
            (call["id"], call["name"], call["args"])
            for call in [*message.tool_calls, *message.invalid_tool_calls]
        ]
        says["tool_calls"] = sorted(calls, key=repr)
    return {name: says[name] for name in like}


# Real conversations


@pytest.mark.slow
@pytest.mark.skipif(
    not DATA.is_dir(),
    reason="the real conversations are not part of the project: ../shared/data/dev",
)
def test_real_conversations_are_normalised_whole() -> None:
    """All 888 real conversations become messages that say all that their dicts say; none is refused."""
    counts: Counter[str] = Counter()
    for path in sorted(DATA.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                count_conversation(json.loads(line)["messages"], counts)
    assert counts == {
        "conversations": 888,
        "ids": 17_900,
        "system": 280,
        "human": 4_388,
        "ai": 8_530,
        "tool": 4_702,
        "blocks": 294,
        "errors": 12,
        "usage": 476,
        "calls": 4_742,
        "calls without arguments": 74,
        "null arguments": 0,  # other collections have them: see test_arguments_become_args
        "invalid calls": 0,
        "raw calls kept": 0,
    }


def count_conversation(raw: list[dict[str, Any]], counts: Counter[str]) -> None:
    """Normalise a conversation, check each message against its dict and count what is in it."""
    messages = normalize_messages(raw, key="k")
    counts["conversations"] += 1
    counts["ids"] += len({message.id for message in messages})
    for source, message in zip(raw, messages, strict=True):
        expected = parsed_arguments(
            {**source, "content": ""} if source["content"] is None else source
        )
        if "status" in expected:
            assert message.status == expected["status"]
            expected = {name: value for name, value in expected.items() if name != "status"}
        assert said_by(message, like=expected) == expected
        counts[message.type] += 1
        counts["errors"] += getattr(message, "status", "") == "error"
        counts["usage"] += getattr(message, "usage_metadata", None) is not None
        counts["blocks"] += isinstance(message.content, list)
        counts["raw calls kept"] += "tool_calls" in message.additional_kwargs
        for call in getattr(message, "tool_calls", []):
            counts["calls"] += 1
            counts["calls without arguments"] += call["args"] == {}
        counts["invalid calls"] += len(getattr(message, "invalid_tool_calls", []))
        for call in source.get("tool_calls", []):
            counts["null arguments"] += call["function"]["arguments"].strip() in ("", "null")
