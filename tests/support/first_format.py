"""A database as the first version wrote it, kept in ``first_format.json``; ``test_first_format`` reads it.

The file is never made anew once a version is released: it represents the databases of users. Until then
``python tests/support/first_format.py`` makes it, on a private server.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from bson import json_util
from canary import sign_up
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.devserver import DevServer
from convstore.integration import log_of
from convstore.runtime.clock import Clock
from convstore.summarization import HeadTailSummarizer
from convstore.testing.fixtures import result_id_of
from convstore.types import LogItem
from convstore.values.append_options import Columns
from convstore.values.policy import CompactionRule

FILE = Path(__file__).with_name("first_format.json")
KEYS = ("user_id", "course_id")
RULE = CompactionRule(max_tokens_before_summary=600, max_summary_tokens=200, keep_last_turns=1)
START = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
SCOPES = (
    {"user_id": "ada", "course_id": "bees"},
    {"user_id": "bo", "course_id": "ünï"},
    {"user_id": "cy", "course_id": "edges"},
    {"user_id": "di", "course_id": "turns"},
    {"user_id": "eve", "course_id": "variants"},
    {"user_id": "fay", "course_id": "views"},
    {"user_id": "fay", "course_id": "fork"},
)
DELETED = {"user_id": "gus", "course_id": "deleted"}
POLICY = HistoryPolicy(max_tokens=600)
CHILDREN, TURN_ENTRIES, VIEW_ENTRIES = 1, 31, 50
"""Conversations of sub-agents, the entries of all conversations in turns, and those of the views and their fork."""


def call(number: int, tool: str, **args: Any) -> AIMessage:
    """A message that calls one tool."""
    calls = [{"name": tool, "args": args, "id": f"call-{number}", "type": "tool_call"}]
    return AIMessage("", id=f"ai-{number}", tool_calls=calls)


def found(number: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the results of a search: pairs of text and metadata."""
    return [
        (
            f"Bees dance, part {index}. " + "A round, a run, a turn. " * 20,
            {"title": f"Dance {number}.{index}"},
        )
        for index in (1, 2, 3)
    ]


def odd_values() -> dict[str, Any]:
    """An artifact with a value of every type that is known."""
    return {
        "a.b": {"$set": 1},
        "nul": "\x00",
        "lone": "\ud800",
        "big": 2**80,
        "nan": float("nan"),
        "raw": b"\x00\xff",
        "set": {3, 1, 2},
        "tuple": (1, (2, [3])),
        "when": datetime(2026, 1, 1, tzinfo=UTC),
        "day": date(2026, 1, 1),
        "span": timedelta(seconds=1.5),
        "price": Decimal("1.10"),
        "id": uuid.UUID(int=7),
        "doc": Document(page_content="On bees.", metadata={"page": 3}, id="d"),
        "keys": {1: "one", None: "none"},
    }


def batches() -> list[list[BaseMessage]]:
    """Return the batches of the first conversation, new objects at every call."""
    usage: Any = {"input_tokens": 30, "output_tokens": 12, "total_tokens": 42}
    usage["input_token_details"] = {"cache_read": 20, "cache_creation": 5}
    answer = AIMessage(
        [
            {"type": "reasoning", "reasoning": "They dance.", "extras": {"signature": "c2ln"}},
            {"type": "text", "text": "By dancing [1]."},
        ],
        id="ai-1b",
        usage_metadata=usage,
        response_metadata={"model_name": "small-1"},
    )
    broken: Any = [
        {
            "name": "look",
            "args": "{",
            "id": "call-x",
            "error": "not JSON",
            "type": "invalid_tool_call",
        }
    ]
    picture = {"type": "image", "base64": "aGl2ZQ==" * 3_000, "mime_type": "image/png"}
    return [
        [SystemMessage("You know bees.", id="system")],
        [HumanMessage("How do bees tell the way?", id="h-1")],
        [
            call(1, "search", query="bees"),
            ToolMessage(
                "see artifact", id="t-1", name="search", tool_call_id="call-1", artifact=found(1)
            ),
            answer,
        ],
        [HumanMessage([{"type": "text", "text": "And this?"}, picture], id="h-2", name="ada")],
        [
            call(2, "weigh", of="hive"),
            ToolMessage("12 kg", id="t-2", tool_call_id="call-2", artifact=odd_values()),
            call(3, "read", page=1),
            ToolMessage("Wax. " * 600, id="t-3", tool_call_id="call-3", status="error"),
            AIMessage(
                "Heavy.", id="ai-3b", invalid_tool_calls=broken, additional_kwargs={"x": [1]}
            ),
        ],
        [
            HumanMessage("A long one: " + "hum " * 5_000, id="h-3"),
            AIMessage("Yes. " * 60, id="ai-yes"),
        ],
        [HumanMessage("Not this one.", id="h-4"), AIMessage("No.", id="ai-5")],
        [
            HumanMessage("This one.", id="h-5"),
            ChatMessage(content="noted", role="critic", id="c-1"),
            FunctionMessage(content="done", name="old", id="f-1"),
            call(4, "search", query="wax"),
            ToolMessage(
                "see artifact", id="t-4", name="search", tool_call_id="call-4", artifact=found(4)
            ),
        ],
    ]


def edges() -> list[list[BaseMessage]]:
    """Return batches with sizes on both sides of every constant of the format, new objects at every call."""
    batches: list[list[BaseMessage]] = [
        [HumanMessage("x" * size, id=f"text-{size}")]
        for size in (119, 121, 3_900, 4_100, 16_383, 16_385)
    ]
    batches.append(
        [HumanMessage("hum " * 250_001, id="two-chunks"), AIMessage("y" * 16_400, id="long-answer")]
    )
    sizes = (199, 201, 960, 980, 1_000, 1_020, 1_040, 1_099, 1_101)
    batches += [_asked(f"size-{size}", "z" * size) for size in sizes]
    batches += [_asked(f"error-{size}", "e" * size, status="error") for size in (199, 201)]
    batches += [_asked(f"argument-{size}", "so", argument="a" * size) for size in (90, 130)]
    batches += [_asked(f"tool-{size}", "so", tool="t" * size) for size in (199, 201)]
    batches += [_asked(f"call-{size}", "so", call="c" * size) for size in (9_999, 10_001)]
    paused = AIMessage("Wait.", id="paused", response_metadata={"stop_reason": "pause_turn"})
    batches.append([HumanMessage("And?", id="asked pause"), paused, AIMessage("So.", id="went on")])
    many = [(f"Text {number}.", {"title": f"Title {number}"}) for number in range(210)]
    batches.append(_asked("many", "see artifact", artifact=many))
    batches.append(_asked("again", "see artifact", artifact=[*many[:3], *many[-3:]]))
    usage: Any = {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}
    models = [*(f"model-{number}" for number in range(21)), "m" * 99, "m" * 101]
    said = [{"model_name": model} for model in models]
    batches.append(
        [
            AIMessage("So.", id=f"by-{n}", usage_metadata=usage, response_metadata=item)
            for n, item in enumerate(said)
        ]
    )
    return batches


def _asked(
    id_: str, content: str, *, argument: str = "", tool: str = "read", call: str = "", **fields: Any
) -> list[BaseMessage]:
    """Return a question, a call and its result."""
    calls = [
        {"name": tool, "args": {"a": argument}, "id": call or f"call {id_}", "type": "tool_call"}
    ]
    result = ToolMessage(
        content, id=f"result {id_}", name=tool, tool_call_id=calls[0]["id"], **fields
    )
    return [
        HumanMessage("And?", id=f"asked {id_}"),
        AIMessage("", id=f"calls {id_}", tool_calls=calls),
        result,
    ]


def regretted() -> list[list[BaseMessage]]:
    """Return turns whose answers are rewound: more than a difference of rewound ranges holds."""
    return [
        [HumanMessage("Why?", id=f"why-{n}"), AIMessage("No.", id=f"no-{n}")] for n in range(66)
    ]


async def fill_edges(chat: Conversation) -> None:
    """Append all edges, and rewind what is regretted."""
    for batch in edges():
        await chat.append(batch)
    for batch in regretted():
        await chat.append(batch)
        await chat.rewind(before_id=str(batch[1].id))


async def fill(chat: Conversation) -> None:
    """Append everything, with a reservation, a rewind, summaries and annotations in between."""
    for number, batch in enumerate(batches()):
        await chat.append(batch)
        if number == 2:
            await chat.reserve_source_ids(5)
        if number in (4, 5):
            assert (await chat.compact(force=True)).status == "done"
        if batch[0].id == "h-4":
            await chat.rewind(before_id="h-4")
    await chat.annotate("ai-1b", rating=1, comment="right")
    await chat.state.update({"step": 1})
    await chat.update(title="Bees", metadata={"tags": ["sea"], "\x00": None})


def calls(*ids: str) -> AIMessage:
    """A message that calls a tool once for each id."""
    return AIMessage("", tool_calls=[{"name": "pay", "args": {"sum": 1}, "id": id_} for id_ in ids])


async def fill_turns(chat: Conversation) -> None:
    """Work in turns: finished, stopped, decided, and one that a worker left with a draft, its lease and a call."""
    async with await chat.turn("t1", human="Which hive?") as turn:
        await turn.append(calls("c1"))
        await turn.add_result(
            turn.open_calls[0], "That one.", sources=[Document("A hive.", metadata={"title": "H"})]
        )
        columns = {"picture": Columns("t1", answers=await result_id_of(chat, "c1"))}
        await log_of(chat).append([AIMessage("A picture of it.", id="picture")], columns=columns)
        await turn.finish()
    async with await chat.turn("t2", human="And this?") as turn:
        await turn.append(calls("c2"))
    await chat.stop("t2")
    async with await chat.turn("t3", human="Pay.") as turn:
        await turn.append(calls("c3", "c4", "c5"))
        for waiting in turn.open_calls[:2]:
            await turn.wait_for(waiting)
    await chat.decide("t3", await result_id_of(chat, "c3"), "edit", args={"sum": 2}, by="bo")
    await chat.decide("t3", await result_id_of(chat, "c4"), "reject", message="No.", by="\u00fc")
    left = await chat.turn("t3")
    stream = left.stream(_words())
    async for _ in stream:
        break
    await stream.aclose()  # which writes the draft; the lease stays


async def fill_variants(chat: Conversation) -> None:
    """Answer twice, ask something else instead, go back and undo that, begin a third answer, and ask a sub-agent."""
    async with await chat.turn("v1", human="Why?") as turn:
        await turn.append(AIMessage("So.", id="so"))
    async with await chat.turn("v1", regenerate="w1") as turn:
        await turn.append(AIMessage("Because.", id="because"))
    async with await chat.turn("v2", human="Why not?", instead_of="v1") as turn:
        await turn.append(AIMessage("Indeed.", id="indeed"))
    await chat.activate((await chat.variants("v2"))[0])
    await chat.undo_rewind()
    async with await chat.turn("v2", regenerate="w2") as turn:
        await turn.append(calls("c6"))
    async with await chat.child("scout").turn("s1", human="Look.") as turn:
        await turn.append(AIMessage("Seen.", id="seen"))


async def fill_views(chat: Conversation, store: ConversationStore) -> None:
    """Ask under a small budget, so that a record of views moves; add an item, fork, and leave a tombstone."""
    for number in range(12):
        await chat.append(HumanMessage(f"Question {number}? " + "why " * 60, id=f"asked-{number}"))
        history = await chat.load_history(POLICY)
        await chat.append(AIMessage("so " * 60, id=f"said-{number}"), stamp=history.stamp)
    await chat.append(LogItem(kind="note", data={"step": 1}, id="item"))
    await chat.fork(key="f", new_scope=SCOPES[6])
    gone = store.conversation(**DELETED)
    await gone.append(HumanMessage("Forget me.", id="h-1"))
    await gone.delete()


async def _words() -> AsyncIterator[str]:
    for word in ("Paid ", "so far: \ud83d\ude00 1."):
        yield word


async def make() -> None:
    """Write the file."""
    minutes = iter(range(10_000))
    clock = Clock(now=lambda: START + timedelta(seconds=next(minutes)))
    with DevServer() as server:
        async with AsyncMongoClient[dict[str, Any]](sign_up(server.uri)) as client:
            database = client["first"]
            options: dict[str, Any] = {
                "scope_keys": KEYS,
                "summarizer": HeadTailSummarizer(RULE),
                "clock": clock,
            }
            store = ConversationStore(database, **options)
            await store.setup()
            await fill(store.conversation(**SCOPES[0]))
            await store.conversation(**SCOPES[1]).append(HumanMessage("Hello", id="h-1"))
            await fill_edges(store.conversation(**SCOPES[2]))
            await fill_turns(store.conversation(**SCOPES[3]))
            await fill_variants(store.conversation(**SCOPES[4]))
            await fill_views(store.conversation(**SCOPES[5]), store)
            await store.close()
            FILE.write_text(
                json_util.dumps(await dump(database), json_options=json_util.CANONICAL_JSON_OPTIONS)
            )


async def dump(database: Any) -> dict[str, Any]:
    """Every collection: its options, its indexes, its documents."""
    whole = {}
    for name in sorted(await database.list_collection_names()):
        indexes = (await database.command("listIndexes", name))["cursor"]["firstBatch"]
        whole[name] = {
            "options": await database[name].options(),
            "indexes": [
                dict(index)
                for index in indexes
                if not index.get("clustered") and index["name"] != "_id_"
            ],
            "documents": await database[name].find({}).sort("_id", 1).to_list(None),
        }
    return whole


if __name__ == "__main__":
    asyncio.run(make())
