"""A streamed reply becomes the message that the same reply has without a stream, wherever it is cut."""

from __future__ import annotations

from typing import Any

import pytest
from cases import each_case
from langchain_core.messages import AIMessage, AIMessageChunk
from pydantic import BaseModel

from convstore.append.inputs import normalize_messages
from convstore.exceptions import InvalidInputError
from convstore.wire.streams import StreamedReply

USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


def _chat(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "gpt-5", "choices": [choice]}


def _function(index: int, arguments: str, **named: str) -> dict[str, Any]:
    return {
        "index": index,
        "function": {"arguments": arguments, **({"name": "search"} if named else {})},
        **named,
    }


def _block(index: int | None, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _begins(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": fields}


def _said(item: int, delta: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": item, "delta": delta}


CHAT = [
    _chat({"role": "assistant", "content": "Let "}),
    _chat({"content": "me see."}),
    _chat({"tool_calls": [_function(0, "", id="t1", type="function")]}),
    _chat({"tool_calls": [_function(1, '{"n": 2}', id="t2", type="function")]}),
    _chat({"tool_calls": [_function(0, '{"n"')]}),
    _chat({"tool_calls": [_function(0, ": 1}")]}),
    _chat({}, "tool_calls"),
    {
        "object": "chat.completion.chunk",
        "choices": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    },
]
ANTHROPIC = [
    {
        "type": "message_start",
        "message": {
            "id": "m1",
            "role": "assistant",
            "model": "claude",
            "usage": {"input_tokens": 3},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    _block(0, {"type": "text_delta", "text": "Let "}),
    {"type": "text", "text": "Let ", "snapshot": "Let "},
    _block(0, {"type": "text_delta", "text": "me see."}),
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "t1", "name": "search"},
    },
    _block(1, {"type": "input_json_delta", "partial_json": '{"n"'}),
    _block(1, {"type": "input_json_delta", "partial_json": ": 1}"}),
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "t2", "name": "search"},
    },
    _block(2, {"type": "input_json_delta", "partial_json": '{"n": 2}'}),
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
MESSAGE_ITEM = {"type": "message", "id": "i1", "role": "assistant", "content": []}
CALL_ITEMS = [
    {
        "type": "function_call",
        "id": f"f{number}",
        "call_id": f"t{number}",
        "name": "search",
        "arguments": "",
    }
    for number in (1, 2)
]
WHOLE = {
    "id": "r1",
    "object": "response",
    "model": "gpt-5",
    "output": [
        MESSAGE_ITEM | {"content": [{"type": "output_text", "text": "Let me see."}]},
        *(item | {"arguments": f'{{"n": {number}}}'} for number, item in enumerate(CALL_ITEMS, 1)),
    ],
    "usage": USAGE,
}
RESPONSES = [
    {
        "type": "response.created",
        "response": {"id": "r1", "object": "response", "model": "gpt-5", "output": []},
    },
    {"type": "response.output_item.added", "output_index": 0, "item": MESSAGE_ITEM},
    _said(0, "Let "),
    _said(0, "me see."),
    {"type": "response.output_item.added", "output_index": 1, "item": CALL_ITEMS[0]},
    {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"n": 1}'},
    {"type": "response.output_item.added", "output_index": 2, "item": CALL_ITEMS[1]},
    {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"n": 2}'},
    {"type": "response.completed", "response": WHOLE},
]
KINDS: dict[str, list[Any]] = {"chat": CHAT, "anthropic": ANTHROPIC, "responses": RESPONSES}


def _reply(chunks: list[Any]) -> StreamedReply:
    reply = StreamedReply()
    for chunk in chunks:
        reply.add(chunk)
    return reply


def _message(chunks: list[Any]) -> AIMessage:
    [message] = normalize_messages(_reply(chunks).message())
    assert isinstance(message, AIMessage)
    return message


@each_case("kind", KINDS)
def test_a_whole_stream_is_the_whole_reply(kind: str) -> None:
    """Text, parallel calls, usage, model and provider are there."""
    message = _message(KINDS[kind])
    assert message.text == _reply(KINDS[kind]).text == "Let me see."
    assert [(call["id"], call["args"]) for call in message.tool_calls] == [
        ("t1", {"n": 1}),
        ("t2", {"n": 2}),
    ]
    assert message.usage_metadata is not None
    assert {
        name: message.usage_metadata[name]
        for name in ("input_tokens", "output_tokens", "total_tokens")
    } == USAGE
    assert message.response_metadata["model_provider"] == (
        "anthropic" if kind == "anthropic" else "openai"
    )


@each_case(
    ("kind", "cut"), [(kind, cut) for kind, all_ in KINDS.items() for cut in range(1, len(all_))]
)
def test_a_stream_may_be_cut_anywhere(kind: str, cut: int) -> None:
    """A stream can be cut anywhere. Its text is a prefix, and each call is whole, invalid or missing.

    The chunks themselves are not changed.
    """
    before = repr(KINDS[kind])
    reply = _reply(KINDS[kind][:cut])
    assert "Let me see.".startswith(reply.text)
    made = reply.message()
    if made is not None:
        [message] = normalize_messages(made)
        assert isinstance(message, AIMessage)
        assert message.text == reply.text
        assert all(call["args"] in ({}, {"n": 1}, {"n": 2}) for call in message.tool_calls)
    assert repr(KINDS[kind]) == before


def test_a_cut_call_is_an_invalid_one() -> None:
    """A view then has a call that says what is wrong, in each provider's form."""
    assert [call["id"] for call in _message(CHAT[:5]).invalid_tool_calls] == ["t1"]
    assert [call["id"] for call in _message(ANTHROPIC[:8]).invalid_tool_calls] == ["t1"]


def test_objects_of_an_sdk_are_taken() -> None:
    """An event may be a pydantic object, whose unset fields do not count."""

    class Event(BaseModel):
        type: str
        index: int = 0
        delta: dict[str, Any] | None = None

    events = [
        Event(type="content_block_delta", delta={"type": "text_delta", "text": text})
        for text in ("a", "b")
    ]
    assert _reply(events).text == "ab"


def test_chunks_of_langchain_are_one_message() -> None:
    """The same as their sum; a whole message is taken as it is."""
    chunks = [AIMessageChunk(content="a", id="x"), AIMessageChunk(content="b", id="x")]
    assert _message(chunks) == AIMessage("ab", id="x")
    assert _message([AIMessage("ab", id="x")]) == AIMessage("ab", id="x")


@each_case(
    "chunks",
    [[1], [{}], [{"type": "ping"}], ["a", AIMessage("b")], [AIMessageChunk(content="a"), "b"]],
)
def test_other_things_are_refused(chunks: list[Any]) -> None:
    """With an error that names them."""
    with pytest.raises(InvalidInputError, match=r"stream"):
        _reply(chunks)


@each_case(
    "events",
    [
        [
            {
                "type": "message_start",
                "message": {"type": "message", "role": "assistant", "content": []},
            },
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        ],
        [
            {
                "type": "response.completed",
                "response": {"object": "response", "status": "completed", "output": []},
            }
        ],
    ],
)
def test_a_model_may_end_without_a_word(events: list[Any]) -> None:
    """A whole reply without content is an empty answer, and one that was cut off before its content is none."""
    reply = _reply(events)
    [message] = normalize_messages(reply.whole())
    assert isinstance(message, AIMessage)
    assert (message.text, message.tool_calls) == ("", [])
    assert message.response_metadata["model_provider"] in ("anthropic", "openai")
    begun = _reply(
        [
            {
                "type": "message_start",
                "message": {"type": "message", "role": "assistant", "content": []},
            }
        ]
    )
    assert begun.message() is None


def _item(kind: str, index: int, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.output_item.{kind}", "output_index": index, "item": fields}


CALL = {"type": "function_call", "id": "fc", "call_id": "t1", "name": "search"}
SAID = {"type": "message", "id": "m", "role": "assistant"}
DONE_CALL = {
    "type": "response.function_call_arguments.done",
    "item_id": "fc",
    "output_index": 0,
    "arguments": '{"n": 1}',
}
CALL_DELTA = {
    "type": "response.function_call_arguments.delta",
    "item_id": "fc",
    "output_index": 0,
    "delta": '{"n": 1}',
}
DONE_TEXT = {
    "type": "response.output_text.done",
    "item_id": "m",
    "output_index": 0,
    "text": "Fish.",
}
THOUGHT = {
    "type": "response.reasoning_summary_text.delta",
    "item_id": "rs",
    "output_index": 0,
    "summary_index": 0,
    "delta": "Hm.",
}
NOTE = {
    "type": "response.output_text.annotation.added",
    "item_id": "m",
    "output_index": 0,
    "annotation": {"type": "url_citation", "url": "https://a"},
}
COMPLETED = {
    "type": "response.completed",
    "response": {"object": "response", "status": "completed", "output": []},
}
WHOLE_CHOICE = {"index": 0, "message": {"role": "assistant", "content": "Fish."}}
SHAPES: dict[str, tuple[list[Any], tuple[str, Any, str]]] = {
    "arguments when they are done": (
        [_item("added", 0, **CALL), DONE_CALL, COMPLETED],
        ("", {"n": 1}, ""),
    ),
    "an item that is done without its arguments": (
        [_item("added", 0, **CALL), CALL_DELTA, _item("done", 0, **CALL, arguments=""), COMPLETED],
        ("", {"n": 1}, ""),
    ),
    "a text when it is done": (
        [_item("added", 0, **SAID), DONE_TEXT, COMPLETED],
        ("Fish.", None, ""),
    ),
    "reasoning that is done without its text": (
        [
            THOUGHT,
            _item("done", 0, type="reasoning", id="rs", summary=[]),
            _item("done", 1, **SAID, content=[{"type": "output_text", "text": "Fish."}]),
            COMPLETED,
        ],
        ("Fish.", None, "Hm."),
    ),
    "reasoning without its item": (
        [THOUGHT, {**DONE_TEXT, "output_index": 1}, COMPLETED],
        ("Fish.", None, "Hm."),
    ),
    "two items of one index": (
        [
            {**DONE_TEXT, "output_index": 1},
            _item("done", 1, type="reasoning", id="rs", summary=[{"text": "Hm."}]),
            COMPLETED,
        ],
        ("Fish.", None, "Hm."),
    ),
    "items out of their order": (
        [
            {**DONE_TEXT, "item_id": "b", "output_index": 1, "text": " more."},
            {**DONE_TEXT, "item_id": "a", "text": "Fish and"},
            COMPLETED,
        ],
        ("Fish and more.", None, ""),
    ),
    "an event without the index of its item": (
        [
            _item("done", 1, **SAID, content=[{"type": "output_text", "text": "Fish."}]),
            _item("added", 0, **CALL),
            {**DONE_CALL, "output_index": None},
            COMPLETED,
        ],
        ("Fish.", {"n": 1}, ""),
    ),
    "an item that is done with a part of its text": (
        [
            {**DONE_TEXT, "text": "Fish and more."},
            _item("done", 0, **SAID, content=[{"type": "output_text", "text": "Fish."}]),
            COMPLETED,
        ],
        ("Fish and more.", None, ""),
    ),
    "an item that is done with more than its deltas": (
        [
            {**DONE_TEXT, "text": "Fish"},
            _item("done", 0, **SAID, content=[{"type": "output_text", "text": "Fish."}]),
            NOTE,
            COMPLETED,
        ],
        ("Fish.", None, "https://a"),
    ),
    "a text that is done without itself": (
        [
            {**_said(0, "Fish"), "content_index": 0},
            {**_said(0, " sea"), "content_index": 1},
            {**_said(0, " in the"), "content_index": 0},
            {**DONE_TEXT, "item_id": "", "content_index": 0, "text": ""},
            COMPLETED,
        ],
        ("Fish in the sea", None, ""),
    ),
    "annotations of their own": ([DONE_TEXT, NOTE, COMPLETED], ("Fish.", None, "https://a")),
    "a whole message in a chunk": (
        [
            {
                "object": "chat.completion.chunk",
                "choices": [WHOLE_CHOICE | {"finish_reason": "stop"}],
            }
        ],
        ("Fish.", None, ""),
    ),
    "a delta without its index, between others": (
        [
            _begins(0, type="text"),
            _begins(1, type="tool_use", id="t1", name="search"),
            _block(0, {"type": "text_delta", "text": "Fi"}),
            _block(1, {"type": "input_json_delta", "partial_json": '{"n"'}),
            _block(0, {"type": "text_delta", "text": "sh."}),
            _block(None, {"type": "input_json_delta", "partial_json": ": 1}"}),
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        ],
        ("Fish.", {"n": 1}, ""),
    ),
    "a stop without its reason": (
        [_block(0, {"type": "text_delta", "text": "Fish."}), {"type": "message_stop"}],
        ("Fish.", None, ""),
    ),
    "no beginning of the message": (
        [
            _block(0, {"type": "text_delta", "text": "Fish."}),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        ],
        ("Fish.", None, ""),
    ),
}
"""Streams of servers that leave something out, as public threads on bugs have them: text, arguments, and what else."""


@each_case("case", SHAPES)
def test_a_stream_that_leaves_something_out_is_stored_whole(case: str) -> None:
    """No call runs with arguments that it does not have, and no answer is empty that was not."""
    events, (text, arguments, beside) = SHAPES[case]
    reply = StreamedReply()
    for event in events:
        reply.add(event)
    [message] = normalize_messages(reply.whole())
    assert isinstance(message, AIMessage)
    assert message.text == text == reply.text
    assert [call["args"] for call in message.tool_calls] == ([arguments] if arguments else [])
    assert beside in str(message.content)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
            "server_error",
        ),
        ({"type": "response.cancelled", "response": {"status": "cancelled"}}, "cancelled"),
        ({"type": "error", "code": "rate_limit", "message": "Slow."}, "rate_limit"),
        ({"type": "error", "error": {"type": "overloaded"}}, "overloaded"),
    ],
)
def test_a_failure_in_a_stream_of_responses_is_named(event: dict[str, Any], code: str) -> None:
    """What came before is kept, with what the reply began with, but reasoning only if it is done."""
    reply = StreamedReply()
    begun = {"id": "resp_1", "model": "gpt-5", "status": "in_progress"}
    reply.add({"type": "response.created", "response": begun})
    assert reply.message() is None
    for sent in (THOUGHT, {**DONE_TEXT, "output_index": 1}, event):
        reply.add(sent)
    with pytest.raises(InvalidInputError, match=f"the provider reported {code}"):
        reply.whole()
    made = reply.message()
    assert (made["id"], made["status"]) == ("resp_1", "incomplete")
    assert [item["type"] for item in made["output"]] == ["message"]
    reply.add(_item("done", 0, type="reasoning", id="rs", summary=[]))
    assert [item["type"] for item in reply.message()["output"]] == ["reasoning", "message"]
    assert reply.text == "Fish."


CHUNK = {"object": "chat.completion.chunk", "model": "m"}
FISH = {"index": 0, "delta": {"role": "assistant", "content": "Fish."}}


@pytest.mark.parametrize(
    ("begun", "event", "code"),
    [
        (
            [
                {"type": "message_start", "message": {"role": "assistant", "model": "m"}},
                _block(0, {"type": "text_delta", "text": "Fish."}),
            ],
            {"type": "error", "error": {"type": "overloaded_error"}},
            "overloaded_error",
        ),
        ([CHUNK | {"choices": [FISH]}], {**CHUNK, "error": {"code": 429}}, "429"),
        (
            [CHUNK | {"choices": [FISH]}],
            CHUNK | {"choices": [{"index": 0, "error": {"code": "flagged"}}]},
            "flagged",
        ),
    ],
    ids=["messages", "chat", "chat, in the choice"],
)
def test_a_failure_in_any_other_stream_is_named(begun: list[Any], event: Any, code: str) -> None:
    """Also if a stop reason follows it; the text before it is kept."""
    closing: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    if "object" in event:
        closing = CHUNK | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    reply = StreamedReply()
    for sent in (*begun, event, closing):
        reply.add(sent)
    with pytest.raises(InvalidInputError, match=f"the provider reported {code}"):
        reply.whole()
    [message] = normalize_messages(reply.message())
    assert message.text == reply.text == "Fish."
    assert "m" in message.response_metadata.values()


def test_what_was_cut_of_a_message_stands_beside_what_is_whole() -> None:
    """The rest of a hosted call in its block, calls of the client apart; a text that only began is nothing."""
    reply = StreamedReply()
    reply.add(_begins(0, type="text", text=""))
    assert reply.message() is None
    hosted = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    reply.add(_begins(1, **hosted))
    reply.add(_block(1, {"type": "input_json_delta", "partial_json": '{"q'}))
    made = reply.message()
    assert made["content"] == [hosted | {"partial_json": '{"q'}]
    assert made["stop_reason"] is None
    assert "tool_calls" not in made
    whole = {"type": "tool_use", "id": "t1", "name": "look"}
    reply.add(_begins(2, **whole))
    reply.add(_begins(3, type="tool_use", id="t2", name="look"))
    reply.add(_block(3, {"type": "input_json_delta", "partial_json": '{"n'}))
    made = reply.message()
    assert made["content"] == [hosted | {"partial_json": '{"q'}, whole | {"input": {}}]
    assert made["tool_calls"] == [
        {"id": id_, "type": "function", "function": {"name": "look", "arguments": given}}
        for id_, given in (("t1", {}), ("t2", '{"n'))
    ]


def test_the_text_so_far_has_every_piece_that_the_message_has() -> None:
    """A stopped reply is cut where its reader was: bare strings in a list of blocks are read like their blocks."""
    reply = _reply([_chat({"content": ["Half "]}), _chat({"content": "of it."})])
    [message] = normalize_messages(reply.message())
    assert message.text == reply.text == "Half of it."


@each_case("kind", KINDS)
def test_only_calls_have_arguments(kind: str) -> None:
    """Texts have none, so no key stands for what has no id."""
    found = _reply(KINDS[kind]).arguments
    assert found == {"t1": '{"n": 1}', "t2": '{"n": 2}'}


def test_only_the_first_choice_is_the_reply() -> None:
    """Chunks of others come between, if a request asked for several."""
    other = {"index": 1, "delta": {"content": "No."}, "finish_reason": "stop"}
    chunks = [_chat({"content": "Y"}), {"choices": [other]}, _chat({"content": "es."}, "stop")]
    assert normalize_messages(_reply(chunks).whole())[0].text == "Yes."


def test_what_is_no_text_is_said_once() -> None:
    """Servers repeat fields in each chunk, and the name of a call that has an id without its id."""
    named = {"index": 0, "function": {"name": "search", "arguments": ": 1}"}}
    chunks = [
        _chat({"tool_calls": [_function(0, '{"n"', id="t1")], "tier": "a"}),
        _chat({"tool_calls": [named | {"function": {**named["function"], "name": "find"}}]}),
        _chat({"tier": "b"}, "tool_calls"),
    ]
    message = _reply(chunks).whole()["choices"][0]["message"]
    assert message["tier"] == "a"
    [call] = message["tool_calls"]
    assert call["function"] == {"name": "search", "arguments": '{"n": 1}'}


@each_case(
    ("details", "texts"),
    [
        ([{"text": "A"}, {"type": "reasoning.encrypted"}, {"text": "B"}], ["A", None, "B"]),
        ([{"text": "A"}, {"text": "B"}], ["AB"]),
        (
            [{"index": 0, "id": "r1", "text": "A"}, {"index": 0, "id": "r2", "text": "B"}],
            ["A", "B"],
        ),
        ([{"index": 0, "id": "r1", "text": "A"}, {"index": 0, "text": "B"}], ["AB"]),
    ],
)
def test_details_of_reasoning_stay_apart(details: Any, texts: Any) -> None:
    """A text goes on with the one before it, unless another detail came between, or it has another id."""
    chunks = [
        _chat({"reasoning_details": [{"type": "reasoning.text", **each}]}) for each in details
    ]
    made = _reply(chunks).message()["choices"][0]["message"]["reasoning_details"]
    assert [each.get("text") for each in made] == texts


def test_a_stream_may_begin_with_its_failure() -> None:
    """A gateway answers with nothing but an error: that is named, and no chunk of an unknown kind."""
    reply = _reply([{"error": {"code": "overloaded", "message": "secret"}}])
    with pytest.raises(InvalidInputError, match="the provider reported overloaded"):
        reply.whole()
