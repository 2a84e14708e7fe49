"""A turn takes what a model finished: a reply that failed or broke off is no answer, a call that was cut is not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.tool import tool_call_chunk

from convstore import Conversation, ConversationStore
from convstore.append.inputs import normalize_messages
from convstore.exceptions import InvalidMessageError, UnfinishedReplyError
from convstore.messages.turn_calls import calls_without_result
from convstore.wire.anthropic import to_anthropic
from convstore.wire.openai_responses import to_responses
from convstore.wire.streams import StreamedReply

_MESSAGE = {"type": "message", "id": "m", "role": "assistant"}
_SAID = {**_MESSAGE, "content": [{"type": "output_text", "text": "Half", "annotations": []}]}
_USE = {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {}}
_SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "write", "arguments": ""}}
_ITEM = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "write"}
_START = {
    "type": "message_start",
    "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-1"},
}


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a chunk of Chat Completions."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "model": "gpt-5", "choices": [choice], **more}


def completion(finish: str | None, **message: Any) -> dict[str, Any]:
    """Return a `ChatCompletion`."""
    own = {"role": "assistant", "content": None, **message}
    choice = {"index": 0, "finish_reason": finish, "message": own}
    return {"id": "c1", "object": "chat.completion", "model": "gpt-5", "choices": [choice]}


def response(*output: Any, status: str = "completed", **more: Any) -> dict[str, Any]:
    """Return a `Response`."""
    return {"id": "r", "object": "response", "status": status, "output": [*output], **more}


def claude(stop: str, *content: Any) -> dict[str, Any]:
    """Return a `Message` of Anthropic."""
    own = {"id": "m", "type": "message", "role": "assistant", "model": "claude-1"}
    return {**own, "content": [*content], "stop_reason": stop}


def block(at: int, value: Any, *deltas: Any) -> list[Any]:
    """Return the events of a block of Anthropic, but for its end."""
    first = {"type": "content_block_start", "index": at, "content_block": value}
    return [
        first,
        *({"type": "content_block_delta", "index": at, "delta": each} for each in deltas),
    ]


def ending(stop: str) -> list[Any]:
    """Return the last events of Anthropic."""
    usage = {"input_tokens": 1, "output_tokens": 9}
    return [{"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage}]


async def take(turn: Any, reply: Any) -> None:
    """Append a reply to a turn, or stream its events."""

    async def source() -> AsyncIterator[Any]:
        for event in reply:
            yield event

    if isinstance(reply, dict):
        await turn.append(reply)
        return
    async for _ in turn.stream(source()):
        pass


_TEXT_DELTA = {"type": "response.output_text.delta", "output_index": 0, "delta": "Half"}
_ERROR = {"code": "server_error", "message": "secret"}
UNFINISHED: dict[str, Any] = {
    "an error of a gateway": {"error": {"message": "secret", "code": 429}, "user_id": "u"},
    "Anthropic: an error": {"type": "error", "error": {"type": "overloaded_error"}},
    "chat: cut": [chunk({"content": "Half"})],
    "chat: error": [chunk({"content": "Half"}), {"error": _ERROR}],
    "chat: error with a reason": [chunk({"content": "Half"}, "error", error=_ERROR)],
    "chat: failed": completion("error", content="Half"),
    "DeepSeek: interrupted": [chunk({"content": "Half"}, "insufficient_system_resource")],
    "responses: cut": [_TEXT_DELTA],
    "responses: failed": [
        _TEXT_DELTA,
        {"type": "response.failed", "response": response(_SAID, status="failed", error=_ERROR)},
    ],
    "responses: error": [_TEXT_DELTA, {"type": "error", **_ERROR}],
    **{
        status: response(_SAID, status=status)
        for status in ("failed", "cancelled", "queued", "in_progress")
    },
    "claude: cut": [_START, *block(0, {"type": "text", "text": ""}), *block(1, _USE)],
    "claude: error": [_START, {"type": "error", "error": {"type": "overloaded_error"}}],
    "LangChain: cut": [
        AIMessageChunk(content="Half", response_metadata={"model_provider": "openai"}),
        AIMessageChunk(content=" of", response_metadata={"model_provider": "openai"}),
    ],
    "nothing": [],
}
_INCOMPLETE = {**_ITEM, "arguments": '{"path": "a', "status": "incomplete"}
_HALF = {"type": "input_json_delta", "partial_json": '{"path": "a'}
CUT: dict[str, Any] = {
    "claude, some arguments": claude("max_tokens", {**_USE, "input": {"path": "a"}}),
    "claude, no arguments": claude("model_context_window_exceeded", _USE),
    "claude, streamed": [_START, *block(0, _USE), *ending("max_tokens")],
    "claude, beside a search": [
        *(_START, *block(0, _SEARCH, _HALF), *block(1, _USE, _HALF), *ending("max_tokens")),
    ],
    "claude, refused": claude("refusal", {**_USE, "input": {"path": "a"}}),
    "chat": completion("length", tool_calls=[_CALL]),
    "chat, streamed": [chunk({"tool_calls": [{"index": 0, **_CALL}]}), chunk({}, "length")],
    "chat, filtered": completion("content_filter", tool_calls=[_CALL]),
    "responses": response({**_ITEM, "arguments": ""}, status="incomplete"),
    "responses, streamed": [
        {"type": "response.output_item.added", "output_index": 0, "item": _INCOMPLETE},
        {"type": "response.incomplete", "response": response(status="incomplete")},
    ],
    "responses, with its reason": response(
        {**_ITEM, "arguments": ""},
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    ),
    "an item": {**_ITEM, "arguments": "{}", "status": "incomplete"},
    "LangChain, streamed": [
        AIMessageChunk(
            content="", tool_call_chunks=[tool_call_chunk(name="write", args='{"a": "b', id="c")]
        ),
        AIMessageChunk(
            content="",
            response_metadata={"model_provider": "openai", "finish_reason": "length"},
            chunk_position="last",
        ),
    ],
    "LangChain": {
        "type": "ai",
        "content": "",
        "response_metadata": {"finish_reason": "MAX_TOKENS"},
        "tool_calls": [{"name": "write", "args": {"path": "a"}, "id": "c"}],
    },
}


@pytest.fixture
async def chats() -> AsyncIterator[Any]:
    """A function that returns a new conversation of one store."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield lambda name: store.conversation(user_id="ada", thread_id=name)


def messages_of(reply: Any) -> list[BaseMessage]:
    """Return what `append` or `stream` stores of a reply."""
    if isinstance(reply, dict):
        return normalize_messages(reply)
    streamed = StreamedReply()
    for event in reply:
        streamed.add(event)
    return normalize_messages(streamed.whole())


def test_what_was_not_finished_is_no_message() -> None:
    """The error says why without the provider's text."""
    for name, reply in UNFINISHED.items():
        with pytest.raises(UnfinishedReplyError, match="ask the model again") as caught:
            messages_of(reply)
        assert "secret" not in str(caught.value), name
        assert caught.value.reason in str(caught.value), name


async def test_what_was_not_finished_is_no_answer(chats: Any) -> None:
    """Nothing is appended, and the same request asks again."""
    for name in ("responses: failed", "queued"):
        chat: Conversation = chats(name)
        with pytest.raises(UnfinishedReplyError):
            async with await chat.turn("q1", human="Seals?") as turn:
                await take(turn, UNFINISHED[name])
        async with await chat.turn("q1", human="Seals?") as turn:
            assert (turn.is_running, len(turn.messages)) == (True, 1), name
            await turn.append(completion("stop", content="They do."))


def test_a_call_that_was_cut_has_an_error() -> None:
    """It is the only call of the client, without arguments, which a model might have written half."""
    for name, reply in CUT.items():
        [call] = calls_without_result(messages_of(reply))
        assert (call.name, call.args) == ("write", {}), name
        assert "cut off" in call.error, name
        assert ("max_output_tokens" in call.error) == ("reason" in name)


async def test_a_call_that_was_cut_is_not_run(chats: Any) -> None:
    """The loop gives its error as the result, and asks again."""
    async with await chats("cut").turn("q1", human="Write it.") as turn:
        await take(turn, CUT["claude, beside a search"])
        [call] = turn.open_calls
        await turn.add_result(call, call.error, error=True)
        assert (turn.open_calls, turn.is_running) == ([], True)


def test_calls_before_the_cut_are_run() -> None:
    """Only the last call of a reply can be cut, and none of one that goes on with a text."""
    first = {**_USE, "id": "toolu_0", "input": {"path": "b"}}
    text = {"type": "text", "text": "Then"}
    for reply, errors in (
        (claude("max_tokens", first, _USE), [False, True]),
        (claude("max_tokens", first, _USE, text), [False, False]),
        (claude("tool_use", first, _USE), [False, False]),
    ):
        calls = calls_without_result(messages_of(reply))
        assert [bool(call.error) for call in calls] == errors


def test_a_paid_reply_is_stored_whatever_is_in_it() -> None:
    """Items and calls of types that a later API adds are kept; they are no calls of the client."""
    later = {"type": "from_a_later_version", "id": "x_1"}
    hosted = {"id": "w1", "type": "web_search", "web_search": {"query": "seals"}}
    called = completion("stop", content="Half", tool_calls=[hosted])
    for reply, kept in ((response(later, _SAID), later), (called, hosted)):
        [message] = messages_of(reply)
        assert message.text == "Half"
        assert str(kept) in str(message)
        assert calls_without_result([message]) == []
    [message] = normalize_messages([later, _SAID])
    assert str(later) in str(message)


async def test_an_answer_without_a_word_has_its_stop_reason_and_usage(chats: Any) -> None:
    """Such as a refusal, which is billed."""
    chat: Conversation = chats("refused")
    async with await chat.turn("q1", human="Seals?") as turn:
        await take(turn, [_START, *ending("refusal")])
        assert turn.answer is not None
        assert turn.answer.response_metadata["stop_reason"] == "refusal"
    assert (await chat.info()).usage["claude-1"]["output_tokens"] == 9


async def test_a_search_of_tools_that_the_client_runs_is_refused(chats: Any) -> None:
    """As other items that the client answers in a way of its own; the turn goes on."""
    item = {"type": "tool_search_call", "id": "ts_1", "call_id": "c", "execution": "client"}
    async with await chats("client").turn("q1", human="Seals?") as turn:
        for given in (response(item), item):
            with pytest.raises(InvalidMessageError, match="tool_search_call"):
                await turn.append(given)
        assert turn.is_running


async def test_a_reply_of_a_framework_that_failed_is_no_answer(chats: Any) -> None:
    """LangChain returns a response in background mode as a message without content."""
    async with await chats("background").turn("q1", human="Seals?") as turn:
        for metadata in ({"status": "queued"}, {"finish_reason": "error"}):
            with pytest.raises(UnfinishedReplyError, match=r"queued|error"):
                await turn.append(AIMessage("", response_metadata=metadata))
        assert turn.is_running


def test_what_an_sdk_parses_is_not_stored() -> None:
    """`responses.parse` and `chat.completions.parse` add fields that the API does not take back."""
    text = {"type": "output_text", "text": "{}", "parsed": {"a": 1}}
    item = {**_ITEM, "arguments": "{}", "parsed_arguments": {"a": 1}}
    function = {"name": "write", "arguments": "{}", "parsed_arguments": {"a": 1}}
    calls = [{"id": "c", "type": "function", "function": function}]
    parsed = completion("stop", content="{}", parsed={"a": 1}, tool_calls=calls)
    for reply in (response({**_MESSAGE, "content": [text]}, item), parsed):
        [message] = messages_of(reply)
        assert "parsed" not in str(message)
        assert len(calls_without_result([message])) == 1


async def test_an_incomplete_answer_is_continued(chats: Any) -> None:
    """An answer that the output limit cut is stored as it is; more of it may follow, and is the answer then."""
    async with await chats("continued").turn("q1", human="Seals?") as turn:
        await turn.append(response(_SAID, status="incomplete"))
        assert turn.answer is not None
        assert turn.answer.response_metadata["status"] == "incomplete"
        await turn.append(completion("stop", content=" of it."))
        assert turn.answer.text == " of it."


async def test_calls_of_two_namespaces_are_told_apart(chats: Any) -> None:
    """A call has the namespace of its tool."""
    calls = [
        {**_ITEM, "id": f"fc_{name}", "call_id": name, "arguments": "{}", "namespace": name}
        for name in ("crm", "billing")
    ]
    async with await chats("namespaces").turn("q1", human="Orders?") as turn:
        await turn.append(response(*calls))
        assert [call.namespace for call in turn.open_calls] == ["crm", "billing"]


def test_what_streams_of_langchain_leave_in_blocks_is_not_sent() -> None:
    """The numbers of blocks, and the text of an input in place of the input: the APIs refuse unknown fields."""
    search = {**_SEARCH, "index": 0, "partial_json": '{"query": "mulch"}'}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    claude_said = AIMessage(
        [search, {**found, "index": 1}, {"type": "text", "text": "Five.", "index": 2}],
        response_metadata={"model_provider": "anthropic", "model_name": "claude-1"},
    )
    thought = {"type": "reasoning", "id": "rs_1", "encrypted_content": "ZW5j", "index": 0}
    thought["summary"] = [{"index": 0, "type": "summary_text", "text": "Hm."}]
    looked = {"type": "web_search_call", "id": "ws_1", "action": {"query": "mulch"}, "index": 1}
    openai_said = AIMessage(
        [thought, looked, {"type": "text", "text": "Five.", "index": 2}],
        response_metadata={"model_provider": "openai", "model_name": "gpt-5"},
    )
    question = HumanMessage("Price?")
    blocks = to_anthropic([question, claude_said])["messages"][1]["content"]
    items = to_responses([question, openai_said])
    assert blocks[0] == {**_SEARCH, "input": {"query": "mulch"}}
    assert "index" not in str([blocks, items])
    assert "summary_text" in str(items)


async def _run(chat: Conversation, reply: Any, error: Exception | None = None) -> None:
    """Work on the first turn until an error ends it."""
    async with await chat.turn("q1", human="Seals?") as turn:
        try:
            await take(turn, reply)
        except ConnectionError as broken:
            raise ExceptionGroup("tasks", [broken]) from broken
        if error:
            raise error


async def test_a_turn_that_broke_off_keeps_its_error(chats: Any) -> None:
    """Class and first line of it, beside the draft, until something is appended; of a turn that is over none."""
    chat: Conversation = chats("broken")

    def broken() -> Iterator[str]:
        yield "They "
        raise ConnectionError("reset \ud83d\nby peer")

    with pytest.raises(ExceptionGroup):
        await _run(chat, broken())
    found = await chat.get_turn("q1")
    assert found is not None
    assert (found.draft, found.error) == ("They ", "ConnectionError: reset \ufffd")
    async with await chat.turn("q1", human="Seals?") as turn:
        assert (turn.draft, turn.error) == ("They ", found.error)
    with pytest.raises(KeyError):
        await _run(chat, completion("tool_calls", tool_calls=[_CALL]), KeyError())
    async with await chat.turn("q1", human="Seals?") as turn:
        assert (turn.draft, turn.error) == ("", "KeyError")
        await turn.add_result(turn.open_calls[0], "done")
    async with await chat.turn("q1", human="Seals?") as turn:
        assert turn.error == ""
    with pytest.raises(ValueError, match="late"):
        await _run(chat, completion("stop", content="They do."), ValueError("late"))
    finished = await chat.get_turn("q1")
    assert finished is not None
    assert (finished.is_finished, finished.error) == (True, "")
