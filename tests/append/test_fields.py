"""Each field of a message with a value of each type, at every door: refused before a write, or readable by all."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import islice, product
from typing import Any, TypeAlias

import pytest
from every_reader import read_everything
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from properties import soaked

from convstore import Conversation, ConversationStore, InvalidInputError
from convstore.append.fields import check_fields
from convstore.append.inputs import normalize_messages
from convstore.append.trust import read_sent
from convstore.exceptions import InvalidMessageError
from convstore.messages.values import Codec
from convstore.testing.samples import new_id
from convstore.transfer import ConversationRecord, ImportReport, import_conversations
from convstore.transfer.dicts import as_item
from convstore.transfer.prepare import make_ready
from convstore.values.append_options import Trust


class Name(str):
    """A str that would come back as another type."""

    __slots__ = ()


VALUES: tuple[Any, ...] = (
    None,
    True,
    2,
    2.5,
    "x",
    Name("x"),
    b"x",
    [],
    [2],
    [{"a": 1}],
    {},
    {1: 2, "a": {}},
    (1,),
)
TURNS = 8
"""How many turns are read at once; a note names the results of all of them."""
PARTS = 4
NESTED = (
    "content",
    "tool_calls",
    "invalid_tool_calls",
    "usage_metadata",
    "response_metadata",
    "additional_kwargs",
)
Path: TypeAlias = tuple[Any, ...]
Case: TypeAlias = tuple[int, Path, Any]
"""The index of a message in the turn, the path of a field in it, and the value that the field gets."""

_CALL = {"name": "search", "args": {"q": 1}, "id": "call-1", "type": "tool_call"}
_CUT = {"name": "book", "args": "{", "id": "call-2", "error": None, "type": "invalid_tool_call"}
_HOSTED = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "x"},
}
_FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"url": "u", "title": "t"}],
}
_SAID: Any = [
    {
        "type": "text",
        "text": "hm",
        "id": "m-1",
        "phase": "commentary",
        "annotations": [{"type": "url_citation"}],
    },
    {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
    {
        "type": "reasoning",
        "id": "r-1",
        "summary": [{"type": "summary_text", "text": "x"}],
        "encrypted_content": "e",
    },
    {"type": "tool_use", "id": "call-1", "name": "search", "input": {"q": 1}},
    _HOSTED,
    _FOUND,
    {
        "type": "non_standard",
        "value": {"type": "computer_call", "call_id": "call-3", "action": {"type": "click"}},
    },
]
_ASKED: Any = [
    {"type": "text", "text": "a question"},
    {"type": "image", "base64": "QUJD", "mime_type": "image/png"},
    {"type": "file", "file": {"file_id": "file-1", "filename": "x.pdf"}},
    {"type": "image_url", "image_url": {"url": "https://example.org/c.png"}},
]
_BESIDE = {
    "tool_calls": [
        {"id": "call-1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    ],
    "function_call": {"name": "f", "arguments": "{}"},
    "reasoning": {"type": "reasoning", "id": "r-1"},
    "reasoning_content": "hm",
    "reasoning_details": [{"type": "x"}],
    "refusal": "no",
    "audio": {"id": "a-1", "transcript": "t"},
    "__gemini_function_call_thought_signatures__": {"call-1": "c2ln"},
}
_ABOUT = {
    "model_provider": "anthropic",
    "model_name": "model",
    "stop_reason": "tool_use",
    "finish_reason": "stop",
    "convstore": {"turn": "human"},
}
_USAGE: Any = {
    "input_tokens": 1,
    "output_tokens": 2,
    "total_tokens": 3,
    "input_token_details": {"cache_read": 1},
    "output_token_details": {"reasoning": 1},
}
_MARKS = {
    "convstore": {"kind": "note"},
    "lc_source": "summarization",
    "agent_framework": {"message": "x", "json": {"head": {}}},
    "pydantic_ai": {"parts": []},
    "openai_agents": {"x": 1},
}
_PASSAGE = {"title": "T", "content": "A passage. " * 30, "url": "https://example.org"}


def turn() -> list[BaseMessage]:
    """A turn with a message of each class and the fields that readers look at."""
    ai = AIMessage("", id="ai", tool_calls=[_CALL], invalid_tool_calls=[_CUT])
    ai.content = _SAID
    ai.additional_kwargs = _BESIDE
    ai.response_metadata = _ABOUT
    ai.usage_metadata = _USAGE
    found = ToolMessage(
        "found", id="tool", tool_call_id="call-1", name="search", artifact=[_PASSAGE]
    )
    found.additional_kwargs = _MARKS
    return deepcopy(
        [
            SystemMessage("Be brief.", id="system"),
            HumanMessage(_ASKED, id="human"),
            ai,
            found,
            ToolMessage(
                [{"type": "text", "text": "x" * 2_000}],
                id="failed",
                tool_call_id="call-2",
                status="error",
            ),
            FunctionMessage(content="f", name="f", id="function"),
            ChatMessage(content="c", role="user", id="chat"),
            AIMessage("The end.", id="end"),
        ]
    )


def paths(message: BaseMessage) -> Iterator[Path]:
    """Yield the path of each field of a message, of what is in its dicts and lists, and of one more field."""
    yield from ((name,) for name in (*type(message).model_fields, "more"))
    todo: list[tuple[Path, Any]] = [((name,), getattr(message, name, None)) for name in NESTED]
    while todo:
        path, value = todo.pop()
        keys = (
            value
            if isinstance(value, Mapping)
            else range(len(value))
            if isinstance(value, list)
            else ()
        )
        for key in keys:
            yield (*path, key)
            todo.append(((*path, key), value[key]))


def cases() -> Iterator[Case]:
    """Yield each field of a turn with each value: the index of its message, its path and the value."""
    for index, message in enumerate(turn()):
        for path in paths(message):
            yield from ((index, path, value) for value in VALUES)


def change(messages: list[BaseMessage], index: int, path: Path, value: Any) -> list[BaseMessage]:
    """Give one field of a turn another value, and return the turn."""
    name, *inner = path
    if not inner:
        setattr(messages[index], name, deepcopy(value))
        return messages
    *way, last = inner
    holder = getattr(messages[index], name)
    for key in way:
        holder = holder[key]
    holder[last] = deepcopy(value)
    return messages


def changed(*case: Any) -> list[BaseMessage]:
    """Return a turn in which one field was assigned another value."""
    return change(turn(), *case)


async def taken(
    chat: Conversation, messages: list[BaseMessage], *, is_history: bool = False
) -> bool:
    """Append messages; return False if they were refused, and nothing was written."""
    try:
        if is_history:
            await chat.append_history(messages, trust="all")
        else:
            await chat.append(messages)
    except InvalidInputError:
        assert not (await chat.info()).message_count
        return False
    return True


async def imported(
    store: ConversationStore, chat: Conversation, messages: list[BaseMessage]
) -> bool:
    """Import messages; return False if they were left out and reported."""
    record = ConversationRecord(id="record", messages=messages)
    report: ImportReport = await import_conversations(store, [record], scope=chat.scope)
    if not report.imported:
        assert [problem.what for problem in report.problems] == ["conversation"]
        assert "Error" not in report.problems[0].reason  # such as the name of an unexpected one
    return bool(report.imported)


async def at_each_door(
    store: ConversationStore, messages: Sequence[BaseMessage], *, has_invalid_id: bool
) -> bool:
    """Return if a turn is taken by an append, a resent history and an import, which must agree about it."""
    chat, sent, brought = (store.conversation(user_id=new_id(), thread_id=door) for door in "abc")
    is_taken = await taken(chat, deepcopy([*messages]))
    assert await taken(sent, deepcopy([*messages]), is_history=True) == is_taken
    # An import gives a message with an invalid id another one.
    assert await imported(store, brought, deepcopy([*messages])) == (is_taken or has_invalid_id)
    return is_taken


def is_right(case: Case, codec: Codec) -> bool:
    """Return False for a case that the doors are expected to refuse."""
    try:
        _, problems = make_ready(
            ConversationRecord(id="record", messages=changed(*case)), codec=codec
        )
    except InvalidInputError:
        return False
    is_bad_id = case[1] == ("id",) and not (case[2] is None or type(case[2]) is str)
    return not is_bad_id and all(problem.what != "message" for problem in problems)


def packed(some: Iterable[Case]) -> list[list[Case]]:
    """Return cases in groups for one turn each: at most one case of each field, or of each part of a field.

    A part never shares a turn with a whole field, or with what names the provider by whose rules it is read.
    """
    groups: dict[bool, list[list[Case]]] = {False: [], True: []}
    used = Counter[tuple[int, bool, Path]]()
    for case in some:
        index, path, _ = case
        is_whole = len(path) == 1 or path[0] == "response_metadata"
        key = (index, is_whole, path[:1] if is_whole else path[:2])
        place = used[key]
        used[key] += 1
        if place == len(groups[is_whole]):
            groups[is_whole].append([])
        groups[is_whole][place].append(case)
    return [*groups[True], *groups[False]]


def turn_of(cases: Iterable[Case], number: int = 0) -> list[BaseMessage]:
    """Return a turn with all of these cases, and ids of its own."""
    messages = turn()
    for case in cases:
        change(messages, *case)
    for index, message in enumerate(messages):
        if type(message.id) is str:
            message.id = f"{number} {index} {message.id}"
    return messages


async def check_taken(groups: Sequence[list[Case]]) -> None:
    """Send a turn with the cases of each group to each door, and call all readers of one conversation of all turns."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="one")
        for number, group in enumerate(groups):
            messages = turn_of(group, number)
            assert await at_each_door(store, messages, has_invalid_id=False)
            await chat.append(messages)
        await read_everything(store, chat)


async def check_refused(cases: Iterable[Case]) -> list[str]:
    """Check that each door refuses these cases; return a line about each that fails."""
    wrong = list[str]()
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        for case in cases:
            has_invalid_id = case[1] == ("id",)
            try:
                assert not await at_each_door(
                    store, changed(*case), has_invalid_id=has_invalid_id
                ), "it was taken"
            except Exception as error:  # noqa: BLE001 - all of them are shown
                wrong.append(line_of([[case]], error))
    return wrong


def line_of(groups: Sequence[Sequence[Case]], error: Exception) -> str:
    """Return a line about cases that failed."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{groups}: {error!r:.200} ({last.filename}, line {last.lineno})"


async def failure_of(groups: Sequence[list[Case]]) -> str:
    """Return a line about cases that should be taken and fail together, "" if they do not."""
    try:
        await check_taken(groups)
    except Exception as error:  # noqa: BLE001 - it is shown
        return line_of(groups, error)
    return ""


async def failures_in(groups: Iterable[list[Case]]) -> list[str]:
    """Return a line about each case that fails alone, or about a turn of which only all together fail."""
    wrong = list[str]()
    for group in groups:
        if together := await failure_of([group]):
            alone = [await failure_of([[case]]) for case in group]
            wrong += [*filter(None, alone)] or [together]
    return wrong


async def sweep(some: Iterable[Case]) -> None:
    """Try cases at each door, and read what is taken: many together, and each alone if that fails."""
    codec = Codec()
    right, refused = list[Case](), list[Case]()
    for case in some:
        (right if is_right(case, codec) else refused).append(case)
    wrong = await check_refused(refused)
    groups = packed(right)
    for first in range(0, len(groups), TURNS):
        read = groups[first : first + TURNS]
        if together := await failure_of(read):
            wrong += await failures_in(read) or [together]
    assert not wrong, "\n".join(wrong)


async def test_some_fields_of_wrong_types_at_every_door() -> None:
    """A sample of the cases below."""
    await sweep(islice(cases(), 97, None, 751))


@pytest.mark.slow
@pytest.mark.parametrize("part", soaked(range(PARTS), first=1))
async def test_all_fields_of_wrong_types_at_every_door(part: int) -> None:
    """Append, resent history and import agree; what they take all readers can read, and the log can be continued."""
    await sweep(islice(cases(), part, None, PARTS))


def test_a_wrong_type_is_refused_with_the_name_of_its_field() -> None:
    """A field that LangChain declares has the type that it declares, and a refused batch is left as it was."""
    wrong = {
        "name": (2, ["x"], b"x", Name("x")),
        "content": (None, 2, {"a": 1}, ("x",), [2], [["x"]]),
        "additional_kwargs": (None, "x", [], [("a", 1)]),
        "response_metadata": (None, "x", []),
        "type": (None, 2, "other"),
        "status": (None, 2, "done", ["success"]),
        "tool_call_id": (None, 2, "", {"$ne": ""}),
        "role": (None, 2, ["user"]),
        "tool_calls": (
            None,
            "x",
            {},
            ({},),
            [None],
            [{}],
            [{**_CALL, "name": None}],
            [{**_CALL, "args": "{}"}],
        ),
        "invalid_tool_calls": (
            None,
            "x",
            {},
            [None],
            [{}],
            [{**_CUT, "args": {}}],
            [{**_CUT, "id": 2}],
        ),
        "usage_metadata": ("x", [_USAGE], 2),
    }
    tried = 0
    for index, message in enumerate(turn()):
        for name in wrong.keys() & type(message).model_fields.keys():
            for value in wrong[name]:
                messages = [HumanMessage("first"), changed(index, (name,), value)[index]]
                with pytest.raises(InvalidMessageError) as caught:
                    normalize_messages(messages)
                assert caught.value.index == 1
                assert caught.value.field.startswith(name), (caught.value.field, name)
                assert messages[0].id is None
                tried += 1
    assert tried > 150


def test_what_a_model_sends_is_taken() -> None:
    """The check refuses nothing that LangChain's constructors make of what providers send."""
    null = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": None}], invalid_tool_calls=[])
    bare = AIMessage(
        [{"text": "no type"}, {"type": None, "a": 1}, "text", {"type": "new_type", "deep": [{}]}]
    )
    cut = AIMessage(
        "", invalid_tool_calls=[{"name": None, "args": None, "id": None, "error": None}]
    )
    again = HumanMessage(bare.text)
    again.content = bare.text  # a subclass of str that LangChain makes
    assert len(normalize_messages([*turn(), null, bare, cut, again])) == 12


def _tool_result(block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c1", "content": [block]}


_CALLED = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_CUSTOM = {"id": "c2", "type": "custom", "custom": {"name": "g", "input": "x"}}
_TEXTS = [{"type": "output_text", "text": "x", "annotations": []}]
_COUNTS = {
    "prompt_tokens": 1,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 1},
}
_BODIES: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {
            "role": "assistant",
            "content": "x",
            "tool_calls": [_CALLED, _CUSTOM],
            "usage": _COUNTS,
            "id": "m1",
        },
        {
            "role": "tool",
            "content": [{"type": "text", "text": "x"}],
            "tool_call_id": "c1",
            "status": "success",
        },
    ],
    "anthropic": [
        {
            "role": "assistant",
            "type": "message",
            "content": [_SAID[0], _SAID[3]],
            "stop_reason": "x",
            "usage": _USAGE,
        },
        {
            "role": "user",
            "content": [_tool_result({"type": "text", "text": "x"}), "y"],
            "id": "m1",
            "name": "n",
        },
        {"role": "user", "content": [_tool_result({"type": "text", "text": "x"})] * 2, "id": "m2"},
    ],
    "responses": [
        _SAID[2],
        {"type": "message", "role": "assistant", "id": "m1", "phase": "p", "content": _TEXTS},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "f1"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x", "id": "f2"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "x"}],
        },
    ],
    "whole responses": [
        {
            "object": "chat.completion",
            "id": "x",
            "choices": [{"message": {"role": "assistant", "content": "x"}}],
        },
        {
            "object": "response",
            "id": "x",
            "output": [{"type": "message", "role": "assistant", "content": _TEXTS}],
        },
    ],
    "LangChain": [
        {
            "type": "ai",
            "data": {"content": "x", "tool_calls": [_CALL], "usage_metadata": _USAGE, "id": "m1"},
        },
        {
            "type": "ai",
            "content": "x",
            "invalid_tool_calls": [_CUT],
            "additional_kwargs": {"tool_calls": [_CALLED]},
        },
        {
            "type": "tool",
            "content": "x",
            "tool_call_id": "c1",
            "status": "success",
            "name": "f",
            "id": "m3",
        },
        {"type": "chat", "role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "type": "AIMessageChunk",
            "content": "x",
            "tool_call_chunks": [{"name": "f", "args": "{}", "id": "c1"}],
        },
    ],
}


def bodies() -> Iterator[list[dict[str, Any]]]:
    """Yield the body of each format, in which one field has another value."""
    for body in _BODIES.values():
        for path, value in product(
            _paths_in(body), (*VALUES, "\ud800", float("inf"), {"type": {}})
        ):
            copied: Any = deepcopy(body)
            holder = copied
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = deepcopy(value)
            yield copied


def _paths_in(value: Any, path: Path = ()) -> Iterator[Path]:
    for key in (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    ):
        yield (*path, key)
        yield from _paths_in(value[key], (*path, key))


def read_bodies(some: Iterable[list[dict[str, Any]]]) -> None:
    """Read bodies as an append, as a resent history and as records of an import."""
    for body in some:
        for parts in (body, *([part] for part in body)):
            as_record = [as_item(part) for part in deepcopy(parts) if isinstance(part, dict)]
            assert all(bool(item.problem) == (item.message is None) for item in as_record)
            with suppress(InvalidInputError):
                read_sent(normalize_messages(deepcopy(parts)), Trust())


def test_some_bodies_with_wrong_types_are_refused_or_read() -> None:
    """A sample of the bodies below."""
    read_bodies(islice(bodies(), 0, None, 211))


@pytest.mark.slow
def test_all_bodies_with_wrong_types_are_refused_or_read() -> None:
    """Whatever a client posts in any of the formats raises an InvalidInputError, or is read."""
    read_bodies(bodies())


async def test_a_broken_body_of_a_client_is_refused() -> None:
    """It raises InvalidMessageError, whichever of the ways to send it."""
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("type", {"type": "ai", "content": "q", "tool_calls": "x"}),
        ("content[0].type", {"role": "user", "content": [{"type": {}, "text": "hi"}]}),
        ("content[0].type", {"role": "user", "content": [{"type": ["text"], "text": "hi"}]}),
        ("content[0].type", {"type": "human", "data": {"content": [{"type": 2}]}}),
        ("content[0].type", {"role": "user", "content": [_tool_result({"type": {}})]}),
    ]
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="one")
        ways: list[Any] = [
            chat.append,
            chat.append_history,
            partial(chat.append_history, trust="all"),
        ]
        for (field, body), append in product(bodies, ways):
            with pytest.raises(InvalidMessageError) as caught:
                await append([body])
            assert caught.value.field == field


def test_keys_of_arguments_are_texts() -> None:
    """A turn could not be read with others; LangChain's constructor refuses them, too."""
    answer = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "c"}])
    answer.tool_calls[0]["args"] = {1: 2}
    with pytest.raises(InvalidMessageError, match=r"tool_calls\[0\]\.args"):
        check_fields(answer, index=0)
