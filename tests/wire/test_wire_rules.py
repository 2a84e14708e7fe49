"""Requests are valid for the APIs, whatever wrote the log, and come back from an empty conversation as they were."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from api_rules import anthropic_errors, chat_errors, responses_errors
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from properties import examples, parts
from strategies import PureLog, any_text
from strategies import messages as awkward_messages

from convstore import ConversationStore, HistoryPolicy
from convstore.append.inputs import normalize_messages
from convstore.messages.tool_calls import pair
from convstore.types import History

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "dev"
FILES = sorted(DATA.glob("*.jsonl.gz"))
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WHOLE = HistoryPolicy(max_tokens=None, stub_tools="never", media="never")


def view(messages: Sequence[BaseMessage]) -> History:
    """A view of just these messages."""
    return History(messages=list(messages))


def errors(history: History, model: str | None = None) -> list[str]:
    """Return what any of the APIs would refuse; OpenAI's own models take no reasoning in Chat Completions."""
    return [
        *chat_errors(history.to_openai()),
        *responses_errors(history.to_openai(api="responses", model=model)),
        *anthropic_errors(history.to_anthropic(cache="5m", model=model)),
    ]


media = st.sampled_from(
    [
        {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image", "base64": PIXEL, "mime_type": "image/png"},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/svg+xml", "data": "PHN2Zy8+"},
        },
        {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}},
        {"type": "image", "source_type": "id", "id": "file-1"},
        {"type": "input_image", "image_url": "not an address"},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "audio", "base64": "QUJD", "mime_type": "audio/ogg"},
        {
            "type": "file",
            "file": {"file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"},
        },
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "base64": "QUJD", "mime_type": "text/csv", "filename": "a.csv"},
        {"type": "file", "url": "https://a/b.pdf"},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"},
        },
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "Law."},
            "title": "T",
        },
        {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        {
            "type": "search_result",
            "source": "https://a",
            "title": "A",
            "content": [{"type": "text", "text": "B"}],
        },
        {"type": "video", "url": "https://a/b.mp4"},
        {"type": "document_url", "document_url": "https://a/b.pdf"},
        {"type": "image", "data": b"GIF89a", "mime_type": "image/gif"},
        {"type": "image", "base64": "!", "mime_type": "image/png"},
    ]
)
texts = st.sampled_from(["", " \n", "Hello. ", "cut \ud83d"]) | any_text
blocks = st.lists(
    media | texts | texts.map(lambda text: {"type": "text", "text": text}), max_size=3
)
content = texts | blocks
ids = st.sampled_from(["call_1", "call_2", "toolu_1", "x" * 60, "a b", "", "fc.1"])
names = st.sampled_from(["search", "functions.search", "", "n" * 80, "Suche ä"])
arguments = st.sampled_from(
    [{}, {"q": "ä\ud83d"}, {"n": [1, None]}, {"x": float("nan")}, {"b": b"x"}]
)
cut = st.sampled_from(['{"q": "ora', "", "null", "[1]", '{"q": "a\nb"}', "{}"])
thoughts = st.sampled_from(
    [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "thinking", "thinking": "Hm."},
        {"type": "redacted_thinking", "data": "eA=="},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "eA=="},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "reasoning", "id": "x", "summary": None, "encrypted_content": "eA=="},
        {"type": "reasoning", "reasoning": "Hm."},
    ]
)
hosted = st.sampled_from(
    [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "mcp_call", "id": "mcp_1"},
        {"type": "image_generation_call", "id": "ig_1", "result": PIXEL},
        {"type": "compaction", "encrypted_content": "eA=="},
    ]
)
own_calls = st.lists(
    st.fixed_dictionaries({"name": names, "args": arguments, "id": ids | st.none()}), max_size=3
)
cut_calls = st.lists(
    st.fixed_dictionaries(
        {"name": names, "args": cut, "id": ids | st.none(), "error": st.just("cut")}
    ),
    max_size=2,
)
metadata = st.sampled_from(
    [
        {},
        {"model_provider": "anthropic", "model_name": "claude-1"},
        {"model_provider": "openai", "model_name": "gpt-1"},
        {"model_provider": "openai", "model_name": "gpt-1-2026-01-01"},
    ]
)
kwargs = st.sampled_from(
    [
        {},
        {},
        {"refusal": "No."},
        {"reasoning_content": "Hm."},
        {"audio": {"id": "a", "transcript": "Hi."}},
    ]
)
call_blocks = st.builds(
    lambda id_: {"type": "tool_use", "id": id_, "name": "search", "input": {}}, ids
)


def answer(body: Any, calls: Any, bad: Any, **fields: Any) -> AIMessage:
    """An answer of a model with calls of both kinds."""
    return AIMessage(body, tool_calls=calls, invalid_tool_calls=bad, **fields)


def said(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Messages of all kinds; `inside` are the blocks that only models write."""
    return st.one_of(
        st.builds(HumanMessage, content, name=st.none() | names),
        st.builds(SystemMessage, content, name=st.none() | names),
        st.builds(
            answer,
            texts | st.lists(inside | media | texts | call_blocks, max_size=5),
            own_calls,
            cut_calls,
            response_metadata=metadata,
            additional_kwargs=kwargs,
        ),
        st.builds(
            ToolMessage, content, tool_call_id=ids, status=st.sampled_from(["success", "error"])
        ),
        st.builds(FunctionMessage, content=texts, name=names),
    )


@given(st.lists(said(thoughts | hosted), max_size=10), st.sampled_from([None, "gpt-1", "claude-1"]))
@examples(400)
def test_any_log_gives_valid_requests(log: list[BaseMessage], model: str | None) -> None:
    """Cut and invalid calls, late and missing results, repeated ids, media, foreign reasoning, empty messages."""
    for number, message in enumerate(log):
        message.id = f"m{number}"
    assert errors(view(log), model) == []


@pytest.mark.slow
@given(st.lists(awkward_messages, max_size=5))
@examples(200)
def test_any_value_gives_valid_requests(log: list[BaseMessage]) -> None:
    """Any values in any field, even values that no model writes, give valid requests."""
    assert errors(view(log)) == []


FORMS: list[tuple[Callable[[History], Any], Callable[[Any], Any]]] = [
    (lambda history: history.to_openai(), lambda request: request),
    (lambda history: history.to_openai(api="responses"), lambda request: request),
    (
        lambda history: history.to_anthropic(),
        lambda request: [
            *({"role": "system", "content": block["text"]} for block in request.get("system", ())),
            *request["messages"],
        ],
    ),
]


def again(request: Any, batch: list[Any]) -> Any:
    """Return the view of an empty log to which a request was appended."""
    log = PureLog()
    if batch:
        log.append(normalize_messages(batch, key="again"))
    return view(log.view(WHOLE).messages)


@given(st.lists(said(hosted), min_size=1, max_size=8), st.sampled_from(FORMS))
@examples(200)
def test_a_request_comes_back_equal(log: list[BaseMessage], form: Any) -> None:
    """A request that is appended to an empty conversation is the request that this conversation gives.

    Reasoning apart: a message that an API moves or has no role for may begin another turn there.
    """
    write, as_batch = form
    first = write(view(log))
    assert write(again(first, as_batch(first))) == first


@given(st.lists(said(hosted), min_size=2, max_size=8), st.data(), st.sampled_from(FORMS))
@examples(200)
def test_a_longer_view_begins_with_the_same_request(
    log: list[BaseMessage], data: Any, form: Any
) -> None:
    """Prompt caches live on it: new ids, moved images and placeholders do not depend on what follows."""
    write, as_batch = form
    for number, message in enumerate(log):
        message.id = f"m{number}"
    whole = pair(log).messages
    shorter = pair(log[: data.draw(st.integers(0, len(log)))]).messages
    if any(message.type != "system" for message in shorter) and whole[: len(shorter)] == shorter:
        before, after = (as_batch(write(view(messages))) for messages in (shorter, whole))
        if "server_tool_use" in str(before[-2:]) and "web_search_tool_result" not in str(before):
            return  # a pending call whose result never came
        assert after[: len(before)] == before


def conversations(path: Path) -> list[list[BaseMessage]]:
    """The recorded conversations of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [
            normalize_messages(json.loads(line)["messages"], key=str(n))
            for n, line in enumerate(lines)
        ]


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason="the real conversations are not part of the project")
@pytest.mark.parametrize("part", parts(5))
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_recorded_views_are_valid_and_come_back(path: Path, part: slice) -> None:
    """Each conversation whole and up to some message, under a budget and without one, in all three forms."""
    dice = random.Random(1)
    for log in conversations(path)[part]:
        for end in {len(log), dice.randint(1, len(log))}:
            pure = PureLog()
            pure.append(log[:end])
            short = pure.view(HistoryPolicy(max_tokens=4_000)).messages
            whole = view(pure.view(WHOLE).messages)
            if short != whole.messages:
                assert errors(view(short)) == []
            requests = [write(whole) for write, _ in FORMS]
            marked = whole.to_anthropic(cache="5m")
            judged = [chat_errors(requests[0]), responses_errors(requests[1])]
            assert [*judged, anthropic_errors(marked)] == [[], [], []]
            for (write, as_batch), request in zip(FORMS, requests, strict=True):
                assert write(again(request, as_batch(request))) == request


async def test_a_stored_view_has_the_forms() -> None:
    """`load_history` and `view_at` return them."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append([SystemMessage("Be brief."), HumanMessage("Hello")])
        history, past = await chat.load_history(), await chat.view_at()
        assert history.to_openai() == past.to_openai()
        assert history.to_openai() == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ]


def hosted_answers(count: int) -> list[BaseMessage]:
    """A turn with as many answers that ran a search, of Anthropic and of OpenAI."""
    log: list[BaseMessage] = [HumanMessage("?")]
    for number in range(count):
        ran = {"type": "server_tool_use", "id": f"srvtoolu_{number}", "name": "search", "input": {}}
        found = {
            "type": "web_search_tool_result",
            "tool_use_id": f"srvtoolu_{number}",
            "content": [],
        }
        action = {"type": "search", "query": "seals"}
        searched = {"type": "web_search_call", "id": f"ws_{number}", "action": action}
        log.append(AIMessage([ran, found, searched, {"type": "text", "text": "So."}]))
    return log


def work_of(write: Callable[[], Any]) -> int:
    """How many functions a writer calls, those of Python itself too."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        write()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("form", ["chat", "responses", "anthropic"])
def test_hosted_calls_are_paired_in_linear_work(form: Any) -> None:
    """Twice as many of them take twice as many steps."""
    few, many = (History(messages=hosted_answers(count)) for count in (20, 40))
    works = [
        work_of(each.to_anthropic if form == "anthropic" else partial(each.to_openai, api=form))
        for each in (few, few, many)
    ]
    assert works[2] < works[1] * 2.1
