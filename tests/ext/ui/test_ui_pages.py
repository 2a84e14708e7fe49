"""Pages for chat front ends: what the AI SDK and AG-UI read, in parts and messages with stable ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ag_ui.core import Message
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic import TypeAdapter

from convstore import Conversation
from convstore.ext.ui import UIPage, ui_messages

pytestmark = pytest.mark.slow

AG_UI: TypeAdapter[Any] = TypeAdapter(list[Message])
PIXEL = "iVBORw0KGgo="
FOUND = json.dumps({"results": [{"title": "Orcas", "url": "https://sea.example/orcas", "content": "They eat fish."}]})


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
            invalid_tool_calls=[{"name": "look", "args": '{"at": ', "id": "c9", "error": "no JSON"}],
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


async def test_the_ai_sdk_takes_every_message(chat: Conversation, run_js: Callable[..., Any]) -> None:
    """It validates them, keeps every field, and makes a model's messages of them."""
    await chat.append(everything())
    page = await ui_messages(chat)
    checked = run_js("check_messages.mjs", page.messages)
    assert checked.get("kept"), checked
    assert [message["role"] for message in checked["model"]] == [
        *("assistant", "user", "assistant", "tool", "assistant", "tool", "assistant"),
        *("user", "assistant", "tool", "assistant"),
    ]


async def test_ag_ui_takes_every_message(chat: Conversation) -> None:
    """Its models read them without a field that they do not know."""
    await chat.append(everything())
    page = await ui_messages(chat, format="ag-ui", system=True)
    read = AG_UI.validate_python(page.messages)
    assert [message.model_extra for message in read] == [{}] * len(read)
    assert AG_UI.dump_python(read, mode="json", by_alias=True) == page.messages
    assert len(ids(page)) == len(set(ids(page)))


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
