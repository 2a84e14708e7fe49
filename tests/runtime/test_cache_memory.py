"""Everything that a store caches of conversations counts towards its limit."""

from __future__ import annotations

import gc
import tracemalloc
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from counting import STANDING, Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.runtime import cache
from convstore.summarization import CompactionRule, HeadTailSummarizer

pytestmark = pytest.mark.slow

LIMIT = 6_000_000


@pytest.fixture
async def store(
    client: Client, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ConversationStore]:
    """A store that may cache six megabytes."""
    monkeypatch.setattr(cache, "_MAXIMUM_BYTES", LIMIT)
    rule = CompactionRule(
        max_tokens_before_summary=20_000, max_summary_tokens=9_000, keep_last_turns=1
    )
    summarizer = HeadTailSummarizer(rule)
    store = ConversationStore(
        client[database_name],
        clock=STANDING,
        policy=HistoryPolicy(max_tokens=None),
        summarizer=summarizer,
    )
    await store.setup()
    yield store
    await store.close()


async def with_system(chat: Conversation) -> None:
    """A long system message, which each view begins with."""
    await chat.append(
        [
            SystemMessage(chat.scope["thread_id"] + "rule " * 58_000),
            HumanMessage("hi"),
            AIMessage("ho"),
        ]
    )
    for _ in range(2):
        await chat.append([HumanMessage("hi"), AIMessage("ho")])
        await chat.load_history()


async def with_summary(chat: Conversation) -> None:
    """A long summary, which each view begins with."""
    for _ in range(4):
        await chat.append([HumanMessage("why " * 5_000), AIMessage("so " * 20_000)])
    assert (await chat.compact(force=True)).status == "done"
    await chat.load_history()


async def with_turns(chat: Conversation) -> None:
    """Many short messages with what models report of each call."""
    for _ in range(6):
        await chat.append([message for _ in range(10) for message in short_turn()])
        await chat.load_history()


def short_turn() -> list[BaseMessage]:
    """Return a turn with a tool call and the metadata of a provider."""
    usage = UsageMetadata(input_tokens=9_000, output_tokens=300, total_tokens=9_300)
    metadata = {
        "model_name": "large-2026",
        "finish_reason": "stop",
        "system_fingerprint": "fp_1",
        "id": "completion-1",
    }
    call = {"name": "lookup", "args": {"query": "orcas"}, "id": uuid.uuid4().hex}
    return [
        HumanMessage("hi"),
        AIMessage("", tool_calls=[call], usage_metadata=usage, response_metadata=metadata),
        ToolMessage("found", tool_call_id=call["id"], name="lookup"),
        AIMessage("ho", usage_metadata=usage, response_metadata=metadata),
    ]


@pytest.mark.parametrize(
    "fill",
    [
        with_system,
        *(pytest.param(fill, marks=pytest.mark.slow) for fill in (with_turns, with_summary)),
    ],
)
async def test_everything_cached_counts(
    store: ConversationStore, commands: Commands, fill: Any
) -> None:
    """Two dozen conversations take no more than the limit and what the interpreter adds; the newest ones stay warm."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(24):
            chat = store.conversation(user_id="large", thread_id=uuid.uuid4().hex)
            await fill(chat)
        commands.reset()  # it keeps what was sent
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1.3 * LIMIT
    with commands.counted():
        await chat.append([HumanMessage("hi"), AIMessage("ho")])
        await chat.load_history()
    assert commands.names == ["find", "insert"]


async def test_each_text_is_held_once(store: ConversationStore, commands: Commands) -> None:
    """Conversations whose texts take three quarters of the limit stay warm, all of them."""
    chats = [store.conversation(user_id="once", thread_id=uuid.uuid4().hex) for _ in range(24)]
    for chat in chats:
        await chat.append(
            [
                message
                for _ in range(10)
                for message in (HumanMessage("why " * 2_400), AIMessage("so"))
            ]
        )
        await chat.append(
            [
                message
                for _ in range(10)
                for message in (HumanMessage("hm " * 3_000), AIMessage("ho"))
            ]
        )
        await chat.load_history()
    commands.reset()
    with commands.counted():
        for chat in chats:
            await chat.load_history()
    assert commands.names == ["find"] * len(chats)
