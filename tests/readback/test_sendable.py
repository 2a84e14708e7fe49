"""What was acknowledged can be read by every reader: half an emoji, and arguments without an end to their nesting.

Both are stored as they came. Views, pages and the tool's answers have them in a form that JSON over HTTP can carry.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from bson import ObjectId
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)
from pydantic import BaseModel

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.exceptions import ContentConflictError
from convstore.testing.samples import same_messages
from convstore.values.json_form import deep_json, sendable, sendable_message

HALF = "cut \ud83d"
PROVIDERS = (None, "openai", "anthropic")


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store in memory: nothing here depends on the server."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store


def _nested(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return dict(value)


def _sent(value: Any) -> Any:
    """Return a value as a client reads it that an SDK sends it to."""
    return json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())


def _page(value: BaseModel) -> Any:
    """Return a value as a browser reads it, whichever of its two ways to JSON an endpoint takes."""
    read = json.loads(value.model_dump_json())
    assert _sent(value.model_dump(mode="json")) == read
    return read


async def _pages(store: ConversationStore, chat: Conversation) -> list[Any]:
    """Return all that a page shows of a conversation."""
    stored = await chat.list_messages()
    update = await anext(aiter(chat.watch()))
    turns = [turn async for turn in chat.turns()]
    found = [turn for outline in turns if (turn := await chat.get_turn(outline.turn_id))]
    records = await chat.get_tool_messages([str(each.message.id) for each in stored])
    hits = await chat.search("cut")
    listing = await store.list_conversations(**chat.scope)
    values: list[BaseModel] = [
        *stored,
        update,
        *turns,
        *found,
        *records,
        *hits,
        listing,
        await chat.info(),
    ]
    return [_page(value) for value in [*values, await chat.state.get()]]


async def _check_views(chat: Conversation, providers: Sequence[str | None] = PROVIDERS) -> None:
    """Check that a model can be sent the view of each provider, and answers of the tool."""
    for provider in providers:
        history = await chat.load_history(HistoryPolicy(provider=provider))
        for message in history.messages:
            _sent(message.model_dump(exclude={"artifact"}))
        _page(history)
        _sent([history.to_openai(), history.to_openai(api="responses"), history.to_anthropic()])
    ids = [str(stored.message.id) for stored in await chat.list_messages()]
    tool = chat.retrieve_previous_sources_tool()
    for arguments in ({"tool_message_ids": ids}, {"find": "cut"}, {"find": HALF}):
        _sent(await tool.ainvoke(arguments))


_CALL: Any = {"name": "look", "args": {}, "id": "c1"}
_THOUGHT = {"type": "thinking", "thinking": HALF, "signature": "c2ln"}
_DOCUMENT = Document(
    f"{HALF} words of a page. " * 9, metadata={"title": HALF, "_id": ObjectId(), "raw": b"\xff"}
)
_LOG: list[BaseMessage] = [
    SystemMessage(HALF),
    HumanMessage(HALF, name=HALF, additional_kwargs={HALF: HALF}),
    AIMessage(
        [_THOUGHT, {"type": "text", "text": HALF}], tool_calls=[{**_CALL, "args": {HALF: HALF}}]
    ),
    ToolMessage(HALF, tool_call_id="c1", artifact=[_DOCUMENT]),
]
_LOGS: list[list[BaseMessage]] = [
    [HumanMessage([{"type": "text", "text": HALF}]), AIMessage(HALF)],
    [
        HumanMessage(HALF * 9_000),
        AIMessage("", tool_calls=[_CALL]),
        ToolMessage(HALF * 9_000, tool_call_id="c1"),
    ],
    [HumanMessage("q"), AIMessage("", tool_calls=[{**_CALL, "name": HALF}]), HumanMessage("And?")],
]


async def _check(store: ConversationStore, chat: Conversation, log: list[BaseMessage]) -> None:
    await chat.append(log)
    await chat.update(title=HALF, metadata={HALF: HALF})
    await chat.state.update({"words": HALF})
    assert same_messages([message async for message in chat.messages()], log)
    pages = await _pages(store, chat)
    assert "cut \ufffd" in json.dumps(pages, ensure_ascii=False)


async def test_half_an_emoji_is_stored_as_it_came_and_shown_in_a_form_that_can_be_sent(
    store: ConversationStore,
) -> None:
    """Wherever it stands in a message, in a title, in metadata and in the state."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await _check(store, chat, _LOG)
    await _check_views(chat, [None])


@pytest.mark.slow
async def test_half_an_emoji_in_any_message_reaches_every_reader(store: ConversationStore) -> None:
    """Also in texts that are stored outside the entry, while a turn goes on, and once it is finished."""
    for number, log in enumerate([_LOG, *_LOGS]):
        chat = store.conversation(user_id="ada", thread_id=str(number))
        await _check(store, chat, log)
        await _check_views(chat)
        await chat.append([AIMessage("ok"), HumanMessage("next")])
        await _check_views(chat)


async def test_a_client_sends_back_what_it_was_shown(store: ConversationStore) -> None:
    """A question with U+FFFD in place of a half is the stored one, in a history that a client sends again."""
    questions: list[Any] = [
        HALF,
        [{"type": "text", "text": HALF * 9_000}],
        [{"type": "note", "n": HALF}],
    ]
    for number, question in enumerate(questions):
        chat = store.conversation(user_id="ada", thread_id=str(number))
        await chat.append([HumanMessage(question), AIMessage("ok")])
        shown = [stored.message.content for stored in (await chat.list_messages(after=0, limit=1))]
        sent = [
            {"role": "user", "content": sendable(shown[0])},
            AIMessage("ok"),
            HumanMessage("And?"),
        ]
        assert (await chat.append_history(sent, trust="human")).written == 1


async def test_what_was_shown_comes_back_under_its_id(store: ConversationStore) -> None:
    """It is the stored message, so a retry writes nothing; any other text is still a conflict."""
    chat = store.conversation(user_id="ada", thread_id="t")
    deep = AIMessage("", tool_calls=[{**_CALL, "args": _nested(260)}])
    log = [
        HumanMessage(HALF * 900),
        deep,
        ToolMessage(HALF, tool_call_id="c1"),
        HumanMessage(HALF, id="last"),
    ]
    await chat.append(log)
    shown = [sendable_message(message) for message in log]
    assert shown[1].invalid_tool_calls
    assert (await chat.append([*shown, AIMessage("ok", id="a")])).written == 1
    assert not (
        await chat.append(
            [HumanMessage(str(shown[-1].content), id="last"), AIMessage("ok", id="a")]
        )
    ).written
    sent = [message.model_copy(update={"id": None}) for message in shown]
    sent += [AIMessage("ok"), HumanMessage("And?")]
    assert (await chat.append_history(sent, trust="all")).written == 1
    for other in (HumanMessage("cut ", id="last"), HumanMessage("cut \ufffd ", id="last")):
        with pytest.raises(ContentConflictError):
            await chat.append(other)
    assert same_messages([message async for message in chat.messages()][:4], log)


async def test_a_counter_that_refuses_half_an_emoji_counts_the_form_that_is_sent() -> None:
    """Tokenizers raise for lone surrogates; the message can be appended nevertheless."""

    def count(messages: Any) -> int:
        return sum(len(message.content.encode()) for message in messages)

    async with await ConversationStore.connect(
        "memory://", token_counter=count, token_counter_name="b"
    ) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append(HumanMessage(HALF))
        assert (await chat.load_history()).tokens == len("cut \ufffd".encode())


def _answers(levels: int) -> list[Any]:
    """Return an answer with a call whose arguments have so many levels, in each form in which one comes."""
    deep = _nested(levels)
    text = deep_json(deep)
    block = {"type": "tool_use", "id": "c1", "name": "write", "input": deep}
    function = {"id": "c1", "type": "function", "function": {"name": "write", "arguments": deep}}
    made = AIMessage("", tool_calls=[{"name": "write", "args": deep, "id": "c1"}])
    chunk = {"name": "write", "args": text, "id": "c1", "index": 0}
    return [
        {"role": "assistant", "content": [block]},
        {"role": "assistant", "content": None, "tool_calls": [function]},
        {"type": "function_call", "call_id": "c1", "name": "write", "arguments": text},
        made,
        message_to_dict(made),
        AIMessageChunk(content="", tool_call_chunks=[chunk]),
    ]


async def test_deep_arguments_are_a_call_with_invalid_arguments(store: ConversationStore) -> None:
    """In whichever form the answer comes; a LangChain message is stored equal, and shown with such a call."""
    for number, answer in enumerate(_answers(260)):
        chat = store.conversation(user_id="ada", thread_id=str(number))
        await chat.append([HumanMessage("q"), answer, ToolMessage("r", tool_call_id="c1")])
        page = _page((await chat.list_messages(after=1, limit=1))[0])["message"]
        assert (len(page["tool_calls"]), len(page["invalid_tool_calls"])) == (0, 1)
        [_, stored, _] = [message async for message in chat.messages()]
        is_exact = type(answer) is AIMessage or "data" in answer
        assert len(stored.invalid_tool_calls) != is_exact
        assert not any("input" in block for block in stored.content if isinstance(block, dict))
        if type(answer) is AIMessage:
            stored = [message async for message in chat.messages()]
            assert same_messages(stored[1:2], [answer])


@pytest.mark.slow
async def test_values_of_any_depth_are_read_by_every_reader(store: ConversationStore) -> None:
    """Arguments, content blocks, artifacts and additional fields."""
    for levels in (260, 2_000):
        block = AIMessage(
            [{"type": "other", "other": _nested(levels)}], additional_kwargs=_nested(levels)
        )
        for number, answer in enumerate([*_answers(levels), block]):
            chat = store.conversation(user_id="ada", thread_id=f"{levels} {number}")
            result = ToolMessage("r", tool_call_id="c1", artifact=_nested(levels))
            await chat.append([HumanMessage("q"), answer, result])
            await _pages(store, chat)
            await _check_views(chat)


async def _anthropic(arguments: str) -> AsyncIterator[dict[str, Any]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    block = {"type": "tool_use", "id": "c1", "name": "write", "input": {}}
    yield {
        "type": "message_start",
        "message": {"id": "m1", "role": "assistant", "content": [], "usage": usage},
    }
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": arguments},
    }
    yield {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": usage}


async def _langchain(arguments: str) -> AsyncIterator[AIMessageChunk]:
    yield AIMessageChunk(
        content="", tool_call_chunks=[{"name": "write", "args": arguments, "id": "c1", "index": 0}]
    )


async def test_a_streamed_call_with_deep_arguments_is_invalid(store: ConversationStore) -> None:
    """The loop is told so by its open call, and the next model call has valid arguments."""
    for stream in (_anthropic, _langchain):
        for levels in (260, 1_100):
            chat = store.conversation(user_id="ada", thread_id=f"{stream.__name__} {levels}")
            async with await chat.turn("q1", human="q") as turn:
                async for _ in turn.stream(stream(deep_json(_nested(levels)))):
                    pass
                [call] = turn.open_calls
                assert call.error
                assert call.args == {}
                await turn.add_result(call, call.error, error=True)
                request = (await turn.load_history()).to_openai()
            assert request[1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_a_value_without_half_an_emoji_or_many_levels_stays_the_same_object() -> None:
    """What needs no change costs no copy; tuples, sets and documents inside are changed where they need it."""
    value: Any = {
        "a": [1, ("x", {2: None})],
        "b": Document("x", metadata={"c": "\U0001f600"}),
        "d": {"x"},
    }
    assert sendable(value) is value
    message = HumanMessage("x", additional_kwargs={"a": value["a"]})
    assert sendable_message(message) is message
    changed = sendable(
        {
            "a": (HALF,),
            "b": Document(HALF, metadata={HALF: 1}),
            "c": {HALF},
            "split": "\ud83d\ude00",
        }
    )
    whole = Document("cut \ufffd", metadata={"cut \ufffd": 1})
    assert changed == {"a": ("cut \ufffd",), "b": whole, "c": ["cut \ufffd"], "split": "\U0001f600"}


def test_a_caller_that_used_half_of_the_stack_gets_the_form_that_can_be_sent() -> None:
    """A value just below the limit of levels takes one frame for each of them."""

    def called(frames: int) -> BaseMessage:
        return called(frames - 1) if frames else sendable_message(message)

    message = HumanMessage(HALF, additional_kwargs=_nested(215))
    assert called(sys.getrecursionlimit() // 2).content == "cut \ufffd"


def test_json_of_any_depth_is_that_of_the_standard_library() -> None:
    """`deep_json` writes what `json.dumps` does where that can, and refuses a value that contains itself."""
    value = {"a": [1, 1.5, None, True, {"b": ()}, []], 2: "é\ud83d", None: {}, "c": {"d": [[]]}}
    assert deep_json(value) == json.dumps(value)
    assert deep_json([value, value]) == json.dumps([value, value])
    assert deep_json(_nested(2_000)).count("{") == 2_000
    value["c"] = value
    with pytest.raises(ValueError, match="contains itself"):
        deep_json(value)
