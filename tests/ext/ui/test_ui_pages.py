"""Pages for chat front ends: what the AI SDK and AG-UI read, in parts and messages with stable ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from ag_ui.core import Message
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic import TypeAdapter
from pydantic_ai.messages import (
    ModelMessage,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.ui.ag_ui import AGUIAdapter
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from pydantic_ai.ui.vercel_ai.request_types import UIMessage
from strategies import messages

from convstore import Conversation, ConversationStore
from convstore.exceptions import ConvstoreError
from convstore.ext.ui import UIPage, ui_messages
from convstore.ext.ui.messages import Format

pytestmark = pytest.mark.slow

AG_UI: TypeAdapter[Any] = TypeAdapter(list[Message])
FORMATS: list[Format] = ["ai-sdk", "ag-ui"]
PIXEL = "iVBORw0KGgo="
FOUND = json.dumps(
    {
        "results": [
            {"title": "Orcas", "url": "https://sea.example/orcas", "content": "They eat fish."}
        ]
    }
)


def call(name: str, id_: str, **args: Any) -> dict[str, Any]:
    """A call of a tool."""
    return {"name": name, "args": args, "id": id_}


def everything() -> list[BaseMessage]:
    """Turns with reasoning, parallel calls, an error, a repeated call id, sources, images, and odd values."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    image = {"type": "image", "base64": PIXEL, "mime_type": "image/png"}
    return [
        SystemMessage("Cite sources.", id="system"),
        AIMessage("Welcome.", id="welcome"),
        HumanMessage("What do orcas eat?", id="q1"),
        AIMessage(
            [thinking, {"type": "text", "text": "Let me look."}],
            tool_calls=[call("search", "c1", q="orcas"), call("search", "c2", q="fish")],
            id="a1",
        ),
        ToolMessage("No such index.", tool_call_id="c2", status="error", id="r2"),
        ToolMessage(FOUND, tool_call_id="c1", id="r1"),
        AIMessage("", tool_calls=[call("draw", "c1", size=float("nan"))], id="a2"),
        ToolMessage([{"type": "text", "text": "Drawn."}, image], tool_call_id="c1", id="r3"),
        AIMessage("Fish [1].", id="a3"),
        HumanMessage([{"type": "text", "text": "And \ud83d this?"}, image], id="q2"),
        AIMessage(
            "",
            additional_kwargs={"reasoning_content": "An image."},
            invalid_tool_calls=[
                {"name": "look", "args": '{"at": ', "id": "c9", "error": "no JSON"}
            ],
            id="a4",
        ),
        ToolMessage("Invalid arguments.", tool_call_id="c9", status="error", id="r4"),
        AIMessage("A pixel.", id="a5"),
    ]


def ids(page: UIPage) -> list[str]:
    """The ids of its messages."""
    return [message["id"] for message in page.messages]


def parts(page: UIPage, id_: str) -> list[dict[str, Any]]:
    """The parts of a message of the AI SDK."""
    return next(message["parts"] for message in page.messages if message["id"] == id_)


async def test_the_ai_sdk_takes_every_message(
    chat: Conversation, run_js: Callable[..., Any]
) -> None:
    """The AI SDK validates every message, keeps every field, and converts the messages for a model."""
    await chat.append(everything())
    page = await ui_messages(chat)
    checked = run_js("check_messages.mjs", page.messages)
    assert checked.get("kept"), checked
    assert [message["role"] for message in checked["model"]] == [
        *("assistant", "user", "assistant", "tool", "assistant", "tool", "assistant"),
        *("user", "assistant", "tool", "assistant"),
    ]


async def test_ag_ui_takes_every_message(chat: Conversation) -> None:
    """The models of AG-UI read every message and know each of its fields."""
    await chat.append(everything())
    page = await ui_messages(chat, format="ag-ui", system=True)
    read = AG_UI.validate_python(page.messages)
    assert [message.model_extra for message in read] == [{}] * len(read)
    assert AG_UI.dump_python(read, mode="json", by_alias=True) == page.messages
    assert len(ids(page)) == len(set(ids(page)))


@pytest.mark.parametrize(
    "written", ['{"size": "\\ud83d"}', '{"size": ' + "[" * 300 + "]" * 300 + "}", '{"size": 1e999}']
)
async def test_a_page_is_json_whatever_a_model_and_its_tools_write(
    chat: Conversation, written: str
) -> None:
    """Arguments, results and drafts with half a character, many levels or infinite numbers; nothing is left out."""
    odd = AIMessage(
        "", id="a1", tool_calls=[call("draw", "c1", **json.loads(written)), call("draw", "c2")]
    )
    async with await chat.turn("q1", human="Draw!") as turn:
        await turn.append(odd)
        first, other = turn.open_calls
        await turn.add_result(other, written)
        await turn.wait_for(first)
    for shape in FORMATS:
        page = await ui_messages(chat, format=shape)
        assert page.turn
        waiting = page.model_dump(mode="json")["turn"]["waiting_calls"][0]
        assert waiting["args"] or waiting["error"]  # arguments that nest too deeply are invalid
        assert json.loads(page.model_dump_json()) == json.loads(
            json.dumps(page.model_dump(mode="json"), allow_nan=False)
        )

    async def model() -> AsyncIterator[str]:
        yield "half \ud83d"
        await asyncio.Event().wait()

    async with await chat.turn("q2", human="And?") as turn:
        async for _ in turn.stream(model()):
            async with aclosing(chat.watch()) as updates:
                await anext(update async for update in updates if update.turn and update.turn.draft)
            assert "half \ufffd" in (await ui_messages(chat)).model_dump_json()
            break


async def test_one_message_has_the_whole_answer_of_a_turn(chat: Conversation) -> None:
    """Steps in order, each with its reasoning, texts, calls and sources; a call id is not used twice."""
    await chat.append(everything())
    page = await ui_messages(chat)
    assert ids(page) == ["answer:system", "q1", "answer:q1", "q2", "answer:q2"]
    shown = parts(page, "answer:q1")
    assert [part["type"] for part in shown] == [
        *("step-start", "reasoning", "text", "tool-search", "tool-search", "source-url"),
        *("step-start", "tool-draw", "file", "step-start", "text"),
    ]
    assert shown[1]["providerMetadata"] == {"anthropic": {"signature": "c2ln"}}
    assert (shown[3]["toolCallId"], shown[3]["state"], shown[3]["output"]) == (
        "c1",
        "output-available",
        json.loads(FOUND),
    )
    assert (shown[4]["state"], shown[4]["errorText"]) == ("output-error", "No such index.")
    assert (shown[5]["sourceId"], shown[5]["url"]) == ("1", "https://sea.example/orcas")
    assert shown[7]["toolCallId"] not in ("", "c1")
    assert [message_id for message_id, *_ in page.report] == ["system"]


async def test_sources_have_the_numbers_that_results_show(chat: Conversation) -> None:
    """A tool that reserved them, one whose marks they replaced, and passages: page, model and citations agree."""
    first, second, *_ = await chat.reserve_source_ids(9)
    fish = {"content": "Orcas eat fish. " * 9}
    own = [{**fish, "source_id": first}, {"content": "Seals sing. " * 9, "source_id": second}]
    async with await chat.turn("q1", human="What?") as turn:
        calls = [call("table", "c1"), call("search", "c2"), call("search", "c3")]
        await turn.append(AIMessage("", id="a1", tool_calls=calls))
        table, counted, given = turn.open_calls
        await turn.add_result(table, f"fish <{first}>, seals <{second}>", artifact=own)
        await turn.add_result(counted, f"[1] {fish['content']}", artifact=[fish])
        await turn.add_result(given, sources=["Whales dive. " * 9])
        history = await turn.load_history()
        shown = [message.text for message in history.messages if isinstance(message, ToolMessage)]
        await turn.append(AIMessage("So [1] and [2], [10] and [11].", id="a2"))
    cited = [str(each.source_id) for each in await chat.citations("a2")]
    assert cited == ["1", "2", "10", "11"]
    page = parts(await ui_messages(chat), "answer:q1")
    assert [part["output"] for part in page if part["type"].startswith("tool-")] == shown
    assert [part["sourceId"] for part in page if "sourceId" in part] == cited
    other = (await ui_messages(chat, format="ag-ui")).messages
    activities = [each["content"] for each in other if each.get("activityType") == "sources"]
    assert [each["sourceId"] for found in activities for each in found["sources"]] == cited
    for number, text in zip(("<2>", "[10] Orcas", "[11]"), shown, strict=True):
        assert number in text


@pytest.mark.parametrize("form", ["ai-sdk", "ag-ui"])
async def test_pages_are_cut_at_turns_and_agree(chat: Conversation, form: Any) -> None:
    """Read a turn at a time, from the end, they are the same messages as in one page."""
    await chat.append(everything())
    whole, found, before = await ui_messages(chat, format=form), list[dict[str, Any]](), None
    while page := await ui_messages(chat, format=form, before=before, limit=1):
        found = page.messages + found
        if (before := page.before) is None:
            break
    assert found == whole.messages
    assert (whole.before, whole.last) == (None, 13)


async def test_a_waiting_call_asks_for_an_approval(chat: Conversation) -> None:
    """Under the id that `decide` takes; a call of a tool on the client waits for its result alone."""
    async with await chat.turn("q1", human="Refund, please.") as turn:
        await turn.append(
            AIMessage("", tool_calls=[call("refund", "c1", euros=9), call("locate", "c2")], id="a1")
        )
        for waiting in turn.open_calls:
            await turn.wait_for(waiting)
    page = await ui_messages(chat, client_tools={"locate"})
    refund, locate = parts(page, "answer:q1")[1:]
    assert (refund["state"], locate["state"]) == ("approval-requested", "input-available")
    assert page.turn is not None
    assert page.turn.status == "waiting"
    answer = (await ui_messages(chat, format="ag-ui", client_tools={"locate"})).messages[-1]
    assert [made.get("metadata") for made in answer["toolCalls"]] == [
        {"approval": refund["approval"]},
        None,
    ]
    await chat.decide("q1", refund["approval"]["id"], "reject", message="Too much.")
    assert parts(await ui_messages(chat), "answer:q1")[1]["state"] == "output-error"


@pytest.mark.parametrize("form", ["ai-sdk", "ag-ui"])
async def test_drafts_and_stops_are_marked(chat: Conversation, form: Any) -> None:
    """A reply that was cut off is shown as far as it was stored, and gives way to what is in the log."""

    async def words() -> AsyncIterator[str]:
        yield "They eat"
        raise ConnectionError

    async with await chat.turn("q1", human="What do orcas eat?") as turn:
        with pytest.raises(ConnectionError):
            async for _ in turn.stream(words()):
                pass
    page = await ui_messages(chat, format=form)
    draft = page.messages[-1]
    assert draft["metadata"]["draft"] is True
    assert "They eat" in (draft["content"] if form == "ag-ui" else draft["parts"][-1]["text"])
    assert form == "ag-ui" or draft["parts"][-1]["state"] == "streaming"
    assert page.turn is not None
    assert page.turn.status == "interrupted"
    await chat.append(AIMessage("Fish.", id="a1"))
    assert "draft" not in (await ui_messages(chat, format=form)).messages[-1]["metadata"]


async def test_a_stopped_answer_is_marked(chat: Conversation) -> None:
    """While its turn is the last one."""
    async with await chat.turn("q1", human="What do orcas eat?") as turn:
        await turn.append(AIMessage("", tool_calls=[call("search", "c1")], id="a1"))
    await chat.stop("q1")
    page = await ui_messages(chat)
    assert (page.messages[-1]["metadata"].get("stopped"), page.turn and page.turn.status) == (
        True,
        "stopped",
    )


async def test_a_reminder_is_not_the_answer(chat: Conversation) -> None:
    """It is shown after the answer, whose id the page names."""
    await chat.append([HumanMessage("q", id="q1"), AIMessage("a", id="a1")])
    await chat.append(AIMessage("Are you still there?", id="reminder"))
    [_, answer] = (await ui_messages(chat)).messages
    assert [part["text"] for part in answer["parts"] if part["type"] == "text"] == [
        "a",
        "Are you still there?",
    ]
    assert answer["metadata"]["messageId"] == "a1"


@pytest.mark.parametrize("form", ["ai-sdk", "ag-ui"])
async def test_variants_are_marked(chat: Conversation, form: Any) -> None:
    """The shown one of several answers or questions, at its place alone; an unfinished one is not shown."""
    await chat.append([HumanMessage("Hello", id="q0"), AIMessage("Hi.", id="a0")])
    asks: list[dict[str, Any]] = [{"human": "What do orcas eat?"}, {"regenerate": "click"}]
    for asked in asks:
        async with await chat.turn("q1", **asked) as turn:
            await turn.append(AIMessage("Fish."))
    async with await chat.turn("q2", human="What do seals eat?", instead_of="q1"):
        pass
    found = [
        message["metadata"].get("variant")
        for message in (await ui_messages(chat, format=form)).messages
    ]
    assert found == [None, None, *[{"id": "click", "number": 2, "count": 2}] * 2]
    await chat.activate((await chat.variants("q1"))[0])
    page = await ui_messages(chat, format=form)
    assert page.messages[-1]["metadata"]["variant"] == {"id": "q1", "number": 1, "count": 2}


@pytest.mark.parametrize("form", ["ai-sdk", "ag-ui"])
async def test_what_is_cut_is_named(chat: Conversation, form: Any) -> None:
    """A long result and a large file say which message has the rest, and so does the report."""
    image = {"type": "image", "base64": PIXEL, "mime_type": "image/png"}
    await chat.append(
        [
            HumanMessage([image, {"type": "file", "file_id": "f1"}], id="q1"),
            AIMessage(
                [{"type": "server_tool_use", "id": "s1"}],
                tool_calls=[call("search", "c1")],
                id="a1",
            ),
            ToolMessage("x" * 100, tool_call_id="c1", id="r1"),
            ToolMessage("Who asked?", tool_call_id="c9", id="r2"),
            AIMessage("Done.", id="a2"),
        ]
    )
    page = await ui_messages(chat, format=form, output_limit=10, media_limit=5)
    assert [(dropped.message_id, dropped.part) for dropped in page.report] == [
        *(
            ("r1", "output"),
            ("q1", "image"),
            ("q1", "file"),
            ("a1", "server_tool_use"),
            ("r2", "tool"),
        ),
    ]
    shown = json.dumps(page.messages)
    assert "xxxxxxxxxx\\n[90 more characters in message r1]" in shown
    assert shown.count("[image, image/png, 8 bytes]") == 1
    assert PIXEL not in shown


def facts(loaded: Sequence[ModelMessage]) -> list[tuple[Any, ...]]:
    """The texts, calls and results that Pydantic AI has read."""
    found: list[tuple[Any, ...]] = []
    for part in (part for message in loaded for part in message.parts):
        if isinstance(part, UserPromptPart):
            content = [part.content] if isinstance(part.content, str) else part.content
            found.append(("user", *(text for text in content if isinstance(text, str))))
        elif isinstance(part, TextPart):
            found.append(("text", part.content))
        elif isinstance(part, ToolCallPart):
            found.append(("call", part.tool_call_id, part.tool_name))
        elif isinstance(part, ToolReturnPart | RetryPromptPart):
            found.append(("result", part.tool_call_id, part.content))
    return found


async def test_pydantic_ai_reads_the_same_in_both_formats(chat: Conversation) -> None:
    """The adapters of Pydantic AI find the same texts, calls and results in both formats."""
    await chat.append(
        [message for message in everything() if message.id not in ("a2", "r3", "a4", "r4")]
    )
    ui = TypeAdapter(list[UIMessage]).validate_python((await ui_messages(chat)).messages)
    ag_ui = AG_UI.validate_python((await ui_messages(chat, format="ag-ui")).messages)
    read = facts(VercelAIAdapter.load_messages(ui))
    assert read == [
        ("text", "Welcome."),
        ("user", "What do orcas eat?"),
        ("text", "Let me look."),
        ("call", "c1", "search"),
        ("call", "c2", "search"),
        ("result", "c1", json.loads(FOUND)),
        ("result", "c2", "No such index."),
        ("text", "Fish [1]."),
        ("user", "And \ufffd this?"),
        ("text", "A pixel."),
    ]
    assert sorted(map(str, facts(AGUIAdapter.load_messages(ag_ui)))) == sorted(map(str, read))


@pytest.mark.parametrize("form", ["ai-sdk", "ag-ui"])
async def test_what_a_provider_cites_and_runs_is_shown(chat: Conversation, form: Any) -> None:
    """Citations are sources without a number; a block that no format knows is passed on."""
    cited = {
        "type": "url_citation",
        "url": "https://sea.example",
        "title": "Sea",
        "start_index": 0,
        "end_index": 4,
    }
    ran = {"type": "web_search_call", "id": "w1", "status": "completed"}
    said = AIMessage(
        [ran, {"type": "text", "text": "Fish.", "annotations": [cited, cited]}], id="a1"
    )
    await chat.append([HumanMessage("What do orcas eat?", id="q1"), said])
    page = await ui_messages(chat, format=form)
    shown = page.messages[1:] if form == "ag-ui" else parts(page, "answer:q1")
    types = [part.get("activityType") or part.get("type") or part.get("role") for part in shown]
    assert types == (
        ["assistant", "web_search_call", "sources"]
        if form == "ag-ui"
        else ["step-start", "text", "data-web_search_call", "source-url"]
    )
    assert json.dumps(page.messages).count("https://sea.example") == 1
    assert page.report == ()


@pytest.mark.parametrize("id_", ["", "half \ud83d"])
async def test_calls_are_named_apart(id_: str, chat: Conversation) -> None:
    """Calls without an id too, and those whose ids differ only in what is no text."""
    calls = [call("search", id_), call("search", id_.replace("\ud83d", "\ud83e"))]
    await chat.append([HumanMessage("Go.", id="q1"), AIMessage("", tool_calls=calls, id="a1")])
    shown = parts(await ui_messages(chat), "answer:q1")[1:]
    ids = {part["toolCallId"] for part in shown}
    assert len(ids - {""}) == 2
    assert all(name.isprintable() for name in ids)


async def test_a_call_that_a_turn_left_open_is_an_error(chat: Conversation) -> None:
    """A page does not wait for its result for ever."""
    await chat.append(
        [HumanMessage("Go.", id="q1"), AIMessage("", tool_calls=[call("search", "c1")], id="a1")]
    )
    assert parts(await ui_messages(chat), "answer:q1")[1]["state"] == "input-available"
    await chat.append(HumanMessage("And now?", id="q2"))
    assert parts(await ui_messages(chat), "answer:q1")[1]["errorText"] == "The call has no result."


@given(st.lists(messages, min_size=1, max_size=4))
def test_whatever_the_log_takes_is_valid_json_in_both_formats(said: list[BaseMessage]) -> None:
    """Odd values, blocks of any role, any ids: each message has an id of its own, and AG-UI's models read it."""

    async def check() -> None:
        async with await ConversationStore.connect("memory://") as store:
            await store.setup()
            chat = store.conversation(user_id="ada", thread_id="odd")
            try:
                await chat.append(said)
            except ConvstoreError:
                return
            forms: tuple[Format, ...] = ("ai-sdk", "ag-ui")
            for form in forms:
                page = await ui_messages(chat, format=form, system=True)
                json.dumps(page.messages, allow_nan=False, ensure_ascii=False).encode()
                assert len(ids(page)) == len(set(ids(page)))
            AG_UI.validate_python(page.messages)

    asyncio.run(check())


async def test_an_empty_conversation_is_an_empty_page(chat: Conversation) -> None:
    """A conversation that does not exist is an empty page."""
    assert await ui_messages(chat) == UIPage(messages=[])
