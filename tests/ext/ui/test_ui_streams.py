"""Streams for chat front ends: the AI SDK and AG-UI build from them what a page shows after a reload."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from ag_ui.core import Event
from langchain.agents import create_agent
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from pydantic import TypeAdapter
from scripted_agents import ScriptedModel

from convstore import Conversation, ConversationStore, InvalidInputError
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.ui import read_request, resume_stream, ui_messages, ui_stream
from convstore.ext.ui.ag_ui import AGUIEncoder
from convstore.ext.ui.turns import TurnReader
from convstore.integration import TurnAccess
from convstore.testing.fixtures import ahead
from convstore.types import TurnSession, TurnState

pytestmark = pytest.mark.slow

EVENTS: TypeAdapter[Any] = TypeAdapter(Event)
FOUND = json.dumps(
    {
        "results": [
            {"title": "Orcas", "url": "https://sea.example/orcas", "content": "They eat fish."}
        ]
    }
)
ASKED = {
    "id": "t1",
    "messages": [{"id": "q1", "role": "user", "parts": [{"type": "text", "text": "What?"}]}],
}
RUN = {
    "threadId": "t1",
    "runId": "run",
    "messages": [{"id": "q1", "role": "user", "content": "What?"}],
}
BODIES = {"ai-sdk": ASKED, "ag-ui": RUN}
Chunks = AsyncIterator[Any]


def openai_chunk(**delta: Any) -> dict[str, Any]:
    """A chunk of Chat Completions."""
    return {
        "object": "chat.completion.chunk",
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "delta": delta}],
    }


def openai_call(arguments: str, name: str = "", **named: Any) -> dict[str, Any]:
    """A piece of a call in one."""
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return openai_chunk(tool_calls=[{"index": 0, **named, "function": function}])


def anthropic(*blocks: tuple[dict[str, Any], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The events of a message of Anthropic's API."""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg", "type": "message", "role": "assistant"}}
    ]
    for at, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": at, "content_block": block})
        events += [{"type": "content_block_delta", "index": at, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": at})
    stopped = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    return [*events, stopped, {"type": "message_stop"}]


def ends_openai(script: list[Any]) -> bool:
    """True for chunks of Chat Completions that are not followed by an error."""
    return isinstance(script[-1], dict) and "choices" in script[-1]


THINKING = {"type": "thinking", "thinking": "", "signature": ""}
TOOL = {"type": "tool_use", "id": "c1", "name": "search", "input": {}}
SIGNED = [
    {"type": "thinking_delta", "thinking": "Hm."},
    {"type": "signature_delta", "signature": "c2ln"},
]
SAID = [{"type": "text_delta", "text": "Let me "}, {"type": "text_delta", "text": "look."}]
GIVEN = [
    {"type": "input_json_delta", "partial_json": '{"q":'},
    {"type": "input_json_delta", "partial_json": '"a"}'},
]
RESPONSE_CALL = {
    "type": "function_call",
    "call_id": "c1",
    "id": "fc_1",
    "name": "search",
    "arguments": "",
}

STEPS: dict[str, list[Any]] = {
    "openai": [
        openai_chunk(reasoning_content="Hm."),
        openai_chunk(content="Let me "),
        openai_chunk(content="look."),
        openai_call('{"q":', "search", id="c1", type="function"),
        {**openai_call('"a"}'), "usage": None},
    ],
    "anthropic": anthropic((THINKING, SIGNED), ({"type": "text", "text": ""}, SAID), (TOOL, GIVEN)),
    "langchain": [
        AIMessageChunk(content=[{"type": "thinking", "thinking": "Hm.", "index": 0}]),
        AIMessageChunk(content=[{"type": "text", "text": "Let me ", "index": 1}]),
        AIMessageChunk(content=[{"type": "text", "text": "look.", "index": 1}]),
        AIMessageChunk(
            content="",
            tool_call_chunks=[{"name": "search", "args": '{"q":', "id": "c1", "index": 2}],
        ),
        AIMessageChunk(
            content="", tool_call_chunks=[{"name": None, "args": '"a"}', "id": None, "index": 2}]
        ),
    ],
    "responses": [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Let me "},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "look."},
        {"type": "response.output_item.added", "output_index": 1, "item": RESPONSE_CALL},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"q":'},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '"a"}'},
        {
            "type": "response.completed",
            "response": {
                "id": "resp_1",
                "object": "response",
                "status": "completed",
                "output": [
                    {
                        "type": "message",
                        "id": "msg_1",
                        "role": "assistant",
                        "status": "completed",
                        "content": [
                            {"type": "output_text", "text": "Let me look.", "annotations": []}
                        ],
                    },
                    {**RESPONSE_CALL, "arguments": '{"q":"a"}', "status": "completed"},
                ],
            },
        },
    ],
}


class Loop:
    """A loop on scripted replies: each is a list of chunks, in which an event is waited for."""

    def __init__(self, *replies: list[Any], waits: tuple[str, ...] = ()) -> None:
        self.replies, self.waits = list(replies), waits

    async def __call__(self, turn: TurnSession) -> AsyncGenerator[Any, None]:
        """Answer a turn."""
        while turn.is_running:
            for call in turn.open_calls:
                if call.name in self.waits and call.decision is None:
                    await turn.wait_for(call)
                else:
                    await turn.add_result(call, FOUND)
            if turn.is_running:
                await turn.load_history()
                async for chunk in turn.stream(self._reply(self.replies.pop(0))):
                    yield chunk

    async def _reply(self, script: list[Any]) -> Chunks:
        for part in script:
            if isinstance(part, Exception):
                raise part
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                yield part
                await asyncio.sleep(0)
        if script and ends_openai(script):
            chunk = openai_chunk()
            chunk["choices"][0]["finish_reason"] = "stop"
            yield chunk


async def post(
    chat: Conversation, body: dict[str, Any], loop: Loop, form: Any = "ai-sdk", **options: Any
) -> str:
    """Answer a request; return the whole stream."""
    request = read_request(json.dumps(body), format=form, **options)
    turn = await request.turn(chat)
    return b"".join([event async for event in ui_stream(turn, loop(turn), request)]).decode()


def events(stream: str) -> list[dict[str, Any]]:
    """The events of a stream."""
    lines = [line.removeprefix("data: ") for line in stream.split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def kinds(stream: str) -> list[str]:
    """The types of its events."""
    return [event["type"] for event in events(stream)]


async def page_of(chat: Conversation, form: Any = "ai-sdk") -> Any:
    """Return the messages that a page shows after a reload, for AG-UI without the fields that no event carries."""
    messages = (await ui_messages(chat, format=form)).messages
    return messages[-1] if form == "ai-sdk" else [bare(message) for message in messages[1:]]


def bare(message: dict[str, Any]) -> dict[str, Any]:
    """A message of AG-UI without its metadata, its error and the id of a reply, which is that of the draft."""
    left_out = {"metadata", "error"} | (
        {"id"} if message["role"] in ("assistant", "reasoning") else set()
    )
    found = {key: value for key, value in message.items() if key not in left_out}
    for call in found.get("toolCalls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return found | (
        {"content": found.get("content") or ""} if message["role"] == "assistant" else {}
    )


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message of the AI SDK without the ids that it gives to reasoning, and the raw input of a call."""
    for part in message["parts"]:
        for key in ("id", "rawInput", "inputEncoding") if part["type"] != "data-omitted" else ():
            part.pop(key, None)
    return message


@pytest.mark.parametrize("provider", STEPS)
async def test_the_ai_sdk_builds_the_message_of_a_reload(
    provider: str, chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """From chunks of each provider, piece by piece, with the result of a tool and its source."""
    answer = (
        ["They ", "eat fish [1]."]
        if provider == "langchain"
        else [openai_chunk(content="They eat fish [1].")]
    )
    stream = await post(chat, ASKED, Loop(STEPS[provider], answer))
    built = run_js("read_stream.mjs", {"stream": stream})
    assert built["errors"] == []
    assert plain(built["message"]) == await page_of(chat)
    deltas = [event["delta"] for event in events(stream) if event["type"] == "text-delta"]
    assert deltas[:2] == ["Let me ", "look."]
    raw = "".join(
        event["inputTextDelta"] for event in events(stream) if event["type"] == "tool-input-delta"
    )
    assert raw == '{"q":"a"}'
    assert "reset-step" not in kinds(stream)


@pytest.mark.parametrize("provider", STEPS)
async def test_ag_ui_builds_the_messages_of_a_reload(
    provider: str, chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """The client of AG-UI builds from the stream the messages of a reload. Its models read each event."""
    stream = await post(
        chat, RUN, Loop(STEPS[provider], [openai_chunk(content="They eat fish [1].")]), "ag-ui"
    )
    read = [EVENTS.validate_python(event) for event in events(stream)]
    assert [event.model_extra for event in read] == [{}] * len(read)
    assert read[0].protocol_version == "1.0"
    built = run_js("read_stream.mjs", {"stream": stream, "format": "ag-ui"})
    assert (built["errors"], built["outcome"]) == ([], {"type": "success"})
    assert [bare(message) for message in built["messages"]] == await page_of(chat, "ag-ui")


async def test_reasoning_between_two_texts_does_not_end_their_message(
    chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """AG-UI has one message for both texts: the second goes on with it, and both reasonings are there."""
    texts = [({"type": "text", "text": ""}, [part]) for part in SAID]
    reply = anthropic((THINKING, SIGNED), texts[0], (THINKING, SIGNED), texts[1])
    stream = await post(chat, RUN, Loop(reply), "ag-ui")
    built = run_js("read_stream.mjs", {"stream": stream, "format": "ag-ui"})
    assert (built["errors"], built["outcome"]) == ([], {"type": "success"})
    shown, expected = (
        [bare(message) for message in found]
        for found in (built["messages"], await page_of(chat, "ag-ui"))
    )
    assert sorted(shown, key=str) == sorted(expected, key=str)
    assert [message["content"] for message in shown if message["role"] == "assistant"] == [
        "Let me look."
    ]


@pytest.mark.parametrize("form", BODIES)
async def test_a_repeated_request_gets_the_answer_from_the_log(
    form: Any, chat: Conversation
) -> None:
    """Whole, without a model."""
    first = await post(chat, BODIES[form], Loop(["Fish", "."]), form)
    again = await post(chat, BODIES[form], Loop(), form)
    said = [
        "".join(event.get("delta", "") for event in events(stream)) for stream in (first, again)
    ]
    assert said == ["Fish.", "Fish."]


@pytest.mark.parametrize("form", BODIES)
async def test_a_call_waits_for_an_approval_and_the_answer_goes_on(
    form: Any, chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """The first stream ends with the question; the second one has only what the page lacks."""
    loop = Loop(STEPS["openai"], [openai_chunk(content="Done.")], waits=("search",))
    first = await post(chat, BODIES[form], loop, form)
    shown = run_js("read_stream.mjs", {"stream": first, "format": form})
    body: dict[str, Any]
    if form == "ai-sdk":
        assert [event["finishReason"] for event in events(first) if event["type"] == "finish"] == [
            "tool-calls"
        ]
        part = shown["message"]["parts"][-1]
        assert part["state"] == "approval-requested"
        approved = {
            **part,
            "state": "approval-responded",
            "approval": {**part["approval"], "approved": True},
        }
        message = {**shown["message"], "parts": [*shown["message"]["parts"][:-1], approved]}
        body = {
            **ASKED,
            "messages": [message],
            "messageId": message["id"],
            "trigger": "submit-message",
        }
        given: dict[str, Any] = {"message": message}
    else:
        [asked] = shown["outcome"]["interrupts"]
        assert shown["outcome"]["type"] == "interrupt"
        answer = {"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}
        messages = [*RUN["messages"], *shown["messages"]]
        body = {**RUN, "runId": "run-2", "messages": messages, "resume": [answer]}
        given = {"messages": messages}
    stream = await post(chat, body, loop, form)
    built = run_js("read_stream.mjs", {"stream": stream, "format": form, **given})
    assert built["errors"] == []
    if form == "ai-sdk":
        assert [
            part.pop("approval", {}).get("approved")
            for part in built["message"]["parts"]
            if "toolCallId" in part
        ]
        assert plain(built["message"]) == await page_of(chat)
    else:
        assert [bare(message) for message in built["messages"][1:]] == await page_of(chat, form)


async def test_a_client_tool_runs_on_the_page(
    chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """A client tool needs no approval: the run ends, and the next request brings the result from the page."""
    loop = Loop(STEPS["openai"], [openai_chunk(content="Blue.")], waits=("search",))
    own = {"client_tools": {"search"}}
    first = await post(chat, RUN, loop, "ag-ui", **own)
    shown = run_js("read_stream.mjs", {"stream": first, "format": "ag-ui"})
    assert shown["outcome"] == {"type": "success", "pendingToolCallIds": ["c1"]}
    result = {"id": "mine", "role": "tool", "toolCallId": "c1", "content": "blue"}
    body = {**RUN, "runId": "run-2", "messages": [*RUN["messages"], *shown["messages"], result]}
    stream = await post(chat, body, loop, "ag-ui", **own)
    assert [
        event.get("delta") for event in events(stream) if event["type"] == "TEXT_MESSAGE_CONTENT"
    ] == ["Blue."]
    assert [message.text async for message in chat.messages(rewound=True)][2:] == ["blue", "Blue."]


@pytest.mark.parametrize("form", BODIES)
async def test_a_stopped_turn_ends_the_stream(form: Any, chat: Conversation, database: Any) -> None:
    """With what was said, as the protocol says for a stop."""
    loop = Loop(["Half ", asyncio.Event()])
    request = read_request(BODIES[form], format=form)
    turn = await request.turn(chat)
    stream = ""
    async with aclosing(ui_stream(turn, loop(turn), request)) as sent:
        async for event in sent:
            stream += event.decode()
            if "Half" in event.decode():
                await chat.stop("q1")
    ended = [event for event in events(stream) if event["type"] in ("abort", "RUN_FINISHED")]
    assert [event.get("outcome", {"type": "cancelled"}) for event in ended] == [
        {"type": "cancelled"}
    ]
    assert [message.text async for message in chat.messages(rewound=True)] == ["What?", "Half "]


@pytest.mark.parametrize("form", BODIES)
async def test_an_error_is_told_without_its_details(
    form: Any, chat: Conversation, caplog: pytest.LogCaptureFixture, run_js: Callable[..., Any]
) -> None:
    """An error is streamed without its details, which are logged. The same request then streams the whole answer."""
    stream = await post(chat, BODIES[form], Loop(["Half ", ValueError("key=secret")]), form)
    built = run_js("read_stream.mjs", {"stream": stream, "format": form})
    assert len(built["errors"]) == 1
    assert "secret" not in stream
    [line] = [record.getMessage() for record in caplog.records]
    assert (await chat.info()).conversation_id in line
    assert "ValueError at " in line
    assert "secret" not in caplog.text
    again = await post(chat, BODIES[form], Loop(["Whole."]), form)
    assert "Whole." in again


@pytest.mark.parametrize("form", BODIES)
async def test_a_loop_that_is_cancelled_ends_the_stream(form: Any, chat: Conversation) -> None:
    """The client is told that the answer was interrupted, and does not wait for more."""
    request = read_request(BODIES[form], format=form)
    turn = await request.turn(chat)

    async def answer() -> Chunks:
        yield "Half "
        raise asyncio.CancelledError

    stream = b"".join([event async for event in ui_stream(turn, answer(), request)]).decode()
    assert kinds(stream)[-1] == ("error" if form == "ai-sdk" else "RUN_ERROR")


async def test_a_loop_that_cannot_be_read_is_refused_before_the_stream(chat: Conversation) -> None:
    """Such as a function that was not called, or that returns its answer."""
    request = read_request(BODIES["ai-sdk"])
    turn = await request.turn(chat)

    async def answer() -> str:
        return "Whole."

    returned: Any = answer()
    for wrong, kind in ((answer, "function"), (returned, "coroutine"), ("Whole.", "str")):
        chunks: Any = wrong
        with pytest.raises(InvalidInputError, match=f"asynchronous generator.* of type {kind}$"):
            ui_stream(turn, chunks, request)
    returned.close()
    sent = [event async for event in ui_stream(turn, Loop(["Whole."])(turn), request)]
    assert "Whole." in b"".join(sent).decode()


def raising(_: Exception) -> str:
    """Fail in place of telling an error."""
    raise LookupError("no text")


@pytest.mark.parametrize("form", BODIES)
@pytest.mark.parametrize("told", ["", None, raising])
async def test_a_client_is_told_whatever_the_application_says_of_an_error(
    form: Any, told: Any, chat: Conversation
) -> None:
    """A function that fails, or returns no text, does not leave the client without an end of the stream."""
    request = read_request(BODIES[form], format=form)
    turn = await request.turn(chat)

    async def answer() -> Chunks:
        yield "Half "
        raise ValueError

    on_error = told if callable(told) else lambda _: told
    sent = ui_stream(turn, answer(), request, on_error=on_error)
    last = events(b"".join([event async for event in sent]).decode())[-1]
    text = last["errorText" if form == "ai-sdk" else "message"]
    assert text == told if told == "" else "interrupted" in text


@pytest.mark.parametrize("form", BODIES)
async def test_a_character_may_come_in_two_halves(form: Any, chat: Conversation) -> None:
    """A stream has all of the text, though the first half alone is no text."""
    stream = await post(
        chat, BODIES[form], Loop(["A \ud83d", "\ude00 b", " c \ud83d", "\ude00"]), form
    )
    kind = "text-delta" if form == "ai-sdk" else "TEXT_MESSAGE_CONTENT"
    assert (
        "".join(event["delta"] for event in events(stream) if event["type"] == kind)
        == "A \U0001f600 b c \U0001f600"
    )


async def test_ag_ui_gets_a_reply_that_is_not_what_was_streamed(
    chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """Its events take no text back, so the reply is a message of its own; what a redacted draft hides comes later."""
    turn = await (request := read_request(RUN, format="ag-ui")).turn(chat)

    async def answer() -> Chunks:
        for text in ("It is 12", "3.", " Fine."):
            yield text
        await turn.append(AIMessage("It is 123. Good."))

    stream = b"".join([event async for event in ui_stream(turn, answer(), request)]).decode()
    built = run_js("read_stream.mjs", {"stream": stream, "format": "ag-ui"})
    assert built["errors"] == []
    assert [message["content"] for message in built["messages"]] == [
        "It is 123. Fine.",
        "It is 123. Good.",
    ]
    shown = list[str]()
    encoder, reader = AGUIEncoder("t1", "run"), TurnReader()
    for text in ("It is 1", "It is ***", "It is *** now", "It is 12 now"):
        step = reader.turn(
            "q1", [AIMessage(text, id="a1" if text.endswith("2 now") else "draft:q1:0")]
        )
        shown += [
            event["delta"]
            for event in encoder.show(step)
            if event["type"] == "TEXT_MESSAGE_CONTENT"
        ]
    assert shown == ["It is 1", "2 now"]


async def test_a_reply_that_is_not_kept_is_taken_back(
    chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """A streamed reply that is not in the log is removed from the page."""

    async def asks_twice(turn: TurnSession) -> AsyncGenerator[Any, None]:
        yield "What nobody "
        yield "appends."
        await turn.append({"role": "assistant", "content": "Fish."})

    request = read_request(ASKED)
    turn = await request.turn(chat)
    stream = b"".join(
        [event async for event in ui_stream(turn, asks_twice(turn), request)]
    ).decode()
    built = run_js("read_stream.mjs", {"stream": stream})
    assert plain(built["message"]) == await page_of(chat)


@pytest.mark.parametrize("form", BODIES)
async def test_a_reloaded_page_follows_from_another_worker(
    form: Any, chat: Conversation, database: Any, run_js: Callable[..., Any]
) -> None:
    """The client leaves; the turn goes on, and a resumed stream has all of the answer."""
    go = asyncio.Event()
    async with ConversationStore(database, clock=ahead(0, hurry=100)) as store:
        fast = store.conversation(**chat.scope)
        loop = Loop(
            STEPS["openai"],
            [openai_chunk(content="They "), go, openai_chunk(content="eat fish [1].")],
        )
        request = read_request(BODIES[form], format=form)
        turn = await request.turn(fast)
        async with aclosing(ui_stream(turn, loop(turn), request)) as sent:
            async for event in sent:
                if b"They " in event:
                    break
        async with ConversationStore(database, clock=ahead(0, hurry=100)) as other:
            again = other.conversation(**chat.scope)
            resumed = await resume_stream(again, format=form, thread_id="t1", run_id="run-2")
            assert resumed is not None
            stream = ""
            async with aclosing(resumed):
                async for event in resumed:
                    stream += event.decode()
                    if b"They " in event:
                        go.set()
            built = run_js("read_stream.mjs", {"stream": stream, "format": form})
            assert built["errors"] == []
            if form == "ai-sdk":
                assert plain(built["message"]) == await page_of(again)
            else:
                assert [bare(message) for message in built["messages"][1:]] == await page_of(
                    again, form
                )
            assert await resume_stream(again, format=form) is None


async def test_an_agent_in_the_turn_is_streamed(
    chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """An agent with `ConversationMiddleware` streams the message that a reload shows."""
    model = ScriptedModel(replies=[AIMessage("In all seas.")])
    agent = create_agent(model, middleware=[ConversationMiddleware(chat.store)])

    async def run(turn: TurnSession) -> AsyncGenerator[Any, None]:
        asked = {"messages": [HumanMessage("What?")]}
        async for part, _ in agent.astream(asked, context=chat.scope, stream_mode="messages"):
            yield part

    request = read_request(ASKED)
    turn = await request.turn(chat)
    stream = b"".join([event async for event in ui_stream(turn, run(turn), request)]).decode()
    built = run_js("read_stream.mjs", {"stream": stream})
    assert plain(built["message"]) == await page_of(chat)


async def test_another_answer_is_followed_from_another_worker(
    chat: Conversation, database: Any, run_js: Callable[..., Any]
) -> None:
    """Another worker follows a regenerated answer: first its draft, then all of it, and never the first answer."""
    await post(chat, ASKED, Loop(["First."]))
    go = asyncio.Event()
    async with ConversationStore(database, clock=ahead(0, hurry=100)) as store:
        fast = store.conversation(**chat.scope)
        again = read_request({**ASKED, "trigger": "regenerate-message"}, request_id="click-1")
        turn = await again.turn(fast)
        sending = ui_stream(turn, Loop(["Second, ", go, "not first."])(turn), again)
        await anext(sending)
        resumed = None
        while resumed is None:
            resumed, _ = await resume_stream(fast), await asyncio.sleep(0.01)
        stream = ""
        async with aclosing(resumed), aclosing(sending):
            async for event in resumed:
                stream += event.decode()
                if b"Second, " in event:
                    go.set()
        assert "First" not in stream
        built = run_js("read_stream.mjs", {"stream": stream})
        assert plain(built["message"]) == await page_of(fast)


async def test_a_draft_of_another_answer_is_not_shown_beside_its_reply(
    chat: Conversation, database: Any, monkeypatch: pytest.MonkeyPatch, run_js: Callable[..., Any]
) -> None:
    """The reply is appended after a follower read the draft, and before it reads the answer."""
    await post(chat, ASKED, Loop(["First."]))
    go, is_late = asyncio.Event(), False
    async with ConversationStore(database, clock=ahead(0, hurry=100)) as store:
        fast = store.conversation(**chat.scope)
        again = read_request({**ASKED, "trigger": "regenerate-message"}, request_id="click-1")
        turn = await again.turn(fast)
        sending = ui_stream(turn, Loop(["Second, ", go, "not first."])(turn), again)
        await anext(sending)
        read = TurnAccess.hidden_variant

        async def late(self: TurnAccess, state: TurnState) -> tuple[list[BaseMessage], str]:
            nonlocal is_late
            if state.draft and not is_late:
                is_late = True
                go.set()
                async for _ in sending:
                    pass
            return await read(self, state)

        monkeypatch.setattr(TurnAccess, "hidden_variant", late)
        resumed = None
        while resumed is None:
            resumed, _ = await resume_stream(fast), await asyncio.sleep(0.01)
        async with aclosing(resumed):
            stream = "".join([event.decode() async for event in resumed])
        assert is_late
        built = run_js("read_stream.mjs", {"stream": stream})
        assert plain(built["message"]) == await page_of(fast)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["first", "another", "edit"])
@pytest.mark.parametrize("form", ["ai-sdk", "ag-ui"])
async def test_a_page_that_resumes_shows_steps_in_order_under_their_question(
    form: Any, kind: str, chat: Conversation, database: Any
) -> None:
    """The call, its result, then the text, also of an answer or a question that views do not show yet."""
    go = asyncio.Event()
    async with ConversationStore(database, clock=ahead(0, hurry=100)) as store:
        fast, turn_id = store.conversation(**chat.scope), "q1"
        asked: dict[str, Any] = {"human": "What?"}
        if kind != "first":
            async with await fast.turn("q1", **asked) as turn:
                await turn.append(AIMessage("Old."))
            asked = {"regenerate": "click"}
        if kind == "edit":
            turn_id, asked = "q2", {"human": "Why?", "instead_of": "q1"}

        async def words() -> AsyncGenerator[str, None]:
            yield "New "
            await go.wait()
            yield "text."

        async with await fast.turn(turn_id, **asked) as turn:
            await turn.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c1"}]))
            await turn.add_result(turn.open_calls[0], "found")
            streaming = asyncio.ensure_future(_read(turn.stream(words())))
            resumed = None
            while resumed is None:
                resumed, _ = await resume_stream(fast, format=form), await asyncio.sleep(0.01)
            stream = ""
            async with aclosing(resumed):
                async for event in resumed:
                    stream += event.decode()
                    if b"New " in event:
                        go.set()
            await streaming
    assert "Old." not in stream
    sent = events(stream)
    if form == "ag-ui":
        [snapshot] = [event for event in sent if event["type"] == "MESSAGES_SNAPSHOT"]
        assert [message["content"] for message in snapshot["messages"]] == [
            "Why?" if kind == "edit" else "What?"
        ]
    wanted = {"tool-output-available", "text-start", "TOOL_CALL_RESULT", "TEXT_MESSAGE_START"}
    order = [event["type"] for event in sent if event["type"] in wanted]
    assert order == sorted(wanted & set(order), key=lambda type_: type_.lower().startswith("text"))


async def _read(stream: AsyncGenerator[Any, None]) -> None:
    async for _ in stream:
        pass


async def test_a_later_question_ends_what_follows_an_answer(chat: Conversation) -> None:
    """With all of the answer, and nothing of the next one, which is being made."""
    async with await read_request(ASKED).turn(chat) as turn:
        resumed = await resume_stream(chat)
        await turn.append(AIMessage("Fish."))
    assert resumed is not None
    async with asyncio.timeout(60), await chat.turn("q2", human="Why?"):
        sent = events("".join([event.decode() async for event in resumed]))
    assert [event.get("delta") for event in sent if event["type"] in ("text-delta", "finish")] == [
        "Fish.",
        None,
    ]


async def test_a_picture_that_a_tool_adds_does_not_end_what_follows_an_answer(
    chat: Conversation,
) -> None:
    """It is stored as a human message, as frameworks do, and is one of the turn."""
    call = {"id": "c1", "name": "draw", "args": {}}
    picture = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
    async with await read_request(ASKED).turn(chat) as turn:
        resumed = await resume_stream(chat)
        await turn.append(AIMessage("", tool_calls=[call]))
        await turn.append(ToolMessage("Drawn.", tool_call_id="c1"))
        await turn.append(HumanMessage([picture]))
        await turn.append(AIMessage("A fish."))
    assert resumed is not None
    async with asyncio.timeout(60):
        sent = events("".join([event.decode() async for event in resumed]))
    assert [event["delta"] for event in sent if event["type"] == "text-delta"] == ["A fish."]


@pytest.mark.parametrize(
    "told", ["The conversation was deleted.", "The answer was interrupted; send the request again."]
)
async def test_an_answer_that_breaks_off_ends_what_follows_it(
    told: str, chat: Conversation, database: Any
) -> None:
    """With an error that says why, and nothing of the answer is stored."""
    is_deleted = "deleted" in told
    go = asyncio.Event()
    async with ConversationStore(database, clock=ahead(0, hurry=100)) as store:
        fast = store.conversation(**chat.scope)
        request = read_request(ASKED)
        turn = await request.turn(fast)
        loop = Loop(["Half ", go, "of it." if is_deleted else ConnectionError()])
        async with aclosing(ui_stream(turn, loop(turn), request)) as sent:
            await anext(sent)
            resumed = None
            while resumed is None:
                resumed, _ = await resume_stream(fast), await asyncio.sleep(0.01)
            async with aclosing(resumed):
                await anext(resumed)
                if is_deleted:
                    await fast.delete()
                go.set()
                ended = [json.loads(event[6:]) async for event in resumed if b"DONE" not in event]
            assert ended[-1] == {"type": "error", "errorText": told}
            assert kinds("".join([event.decode() async for event in sent]))[-1] == "error"
        assert [message.text async for message in fast.messages(rewound=True)] == (
            [] if is_deleted else ["What?"]
        )


async def test_what_a_loop_yields_besides_is_not_shown(chat: Conversation) -> None:
    """Only chunks of a reply are; anything else harms nobody."""

    async def loop(turn: TurnSession) -> AsyncGenerator[Any, None]:
        yield {"progress": 1}
        async for chunk in Loop(["Fine."])(turn):
            yield chunk
        yield object()

    request = read_request(ASKED)
    turn = await request.turn(chat)
    stream = b"".join([event async for event in ui_stream(turn, loop(turn), request)]).decode()
    assert kinds(stream)[-1] == "finish"
    assert turn.is_finished


async def test_what_is_appended_is_shown_while_the_loop_yields_nothing(chat: Conversation) -> None:
    """The page has each reply of a loop that does not stream before the loop goes on."""
    is_shown = asyncio.Event()

    async def loop(turn: TurnSession) -> AsyncGenerator[Any, None]:
        await turn.append(AIMessage("They do."))
        await is_shown.wait()
        yield object()

    request = read_request(ASKED)
    turn = await request.turn(chat)
    async with asyncio.timeout(10):
        async for event in ui_stream(turn, loop(turn), request):
            if b"They do." in event:
                is_shown.set()
    assert turn.is_finished


@pytest.mark.parametrize("form", BODIES)
async def test_a_client_that_reads_slowly_gets_in_few_events_what_was_said(
    form: Any, chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """The loop does not wait for the client, and what waits for the client stays small: also if it has left."""
    words = [f"{number} " for number in range(1_000)]
    is_read = asyncio.Event()
    request = read_request(BODIES[form], format=form)
    turn = await request.turn(chat)
    stream = ui_stream(turn, Loop([*words, is_read, "end."])(turn), request)
    text = (await anext(stream)).decode()
    async with asyncio.timeout(60), aclosing(chat.watch()) as updates:
        async for update in updates:
            if update.turn and "999" in update.turn.draft:
                break
        while "999" not in text:  # before the loop goes on
            text += (await anext(stream)).decode()
        is_read.set()
        rest = b"".join([event async for event in stream]).decode()
    deltas = [event for event in events(text + rest) if "delta" in event]
    assert "".join(event["delta"] for event in deltas) == "".join([*words, "end."])
    assert len(deltas) < 150
    built = run_js("read_stream.mjs", {"stream": text + rest, "format": form})
    assert built["errors"] == []


@pytest.mark.parametrize(
    "junk", [{"type": ["text"], "text": 1}, {"type": "text", "text": ["x"]}, {"toolCallId": {}}]
)
async def test_what_a_page_claims_to_have_harms_nobody(
    junk: dict[str, Any], chat: Conversation
) -> None:
    """Malformed messages of a page do no harm: the answer is streamed to its end."""
    async with await chat.turn("q1", human="What?"):
        pass
    shown = [junk, {"role": "assistant", "toolCalls": [1, {"id": 1, "function": 1}], **junk}]
    message = {"id": "answer:q1", "role": "assistant", "parts": shown}
    stream = await post(chat, {**ASKED, "messages": [message]}, Loop(STEPS["openai"], ["Fine."]))
    assert kinds(stream)[-1] == "finish"
    run = {
        **RUN,
        "messages": [*RUN["messages"], *shown, {"role": "tool", "toolCallId": "c", "content": 1}],
    }
    assert kinds(await post(chat, run, Loop(), "ag-ui"))[-1] == "RUN_FINISHED"
