"""Views that were recorded while conversations lived, each rebuilt by another process: exactly, or with the reason."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, SystemMessage, ToolMessage
from programs import ROOT
from view_rebuilder import store_of

from convstore import Conversation, HistoryPolicy
from convstore.append.inputs import normalize_messages
from convstore.messages.encoding import digest_of_messages
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing.samples import new_id, rag_turn
from convstore.values.stamps import changed_options

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "dev"
PREFIX = "recorded_"
COUNTERS = ("", "words")
RULE = CompactionRule(max_tokens_before_summary=600, max_summary_tokens=200, keep_last_turns=2)
POLICIES = (
    HistoryPolicy(max_tokens=2_500),
    HistoryPolicy(max_tokens=6_000, keep_last_results=2, shorten_over=60, max_turns=7, provider="openai"),
)


@dataclass(frozen=True)
class Unregistered:
    """A value of a type that only the recording process knows."""


class OtherSummarizer(HeadTailSummarizer):
    """Another summarizer, with other words."""

    name = "other"
    _TITLE = _SHORTENED = "(In other words.)"


class Life:
    """The history of one conversation, and the views that its stores load meanwhile."""

    def __init__(self, database: Any, dice: random.Random) -> None:
        self.database, self.dice = database, dice
        self.scope = {"user_id": "ada", "thread_id": new_id()}
        self.stores = [
            self._store("", HeadTailSummarizer(RULE)),
            self._store("", OtherSummarizer(RULE, characters=200)),
            self._store("words", HeadTailSummarizer(RULE)),
        ]
        self.cases: list[dict[str, Any]] = []

    def _store(self, counter: str, summarizer: HeadTailSummarizer) -> Any:
        store = store_of(self.database, PREFIX, counter, summarizer=summarizer)
        store.register_artifact_type(Unregistered, name="unregistered", dump=lambda _: 1, load=lambda _: Unregistered())
        return store

    @property
    def chat(self) -> Conversation:
        """The conversation, mostly by the usual store, else by one with another counter or summarizer."""
        [store] = self.dice.choices(self.stores, weights=(6, 2, 1))
        return store.conversation(**self.scope)

    async def live(self, messages: Sequence[BaseMessage]) -> None:
        """Append the messages in pieces, and look, compact, undo, rewind and bring back between them."""
        for piece in self._pieces(messages):
            receipt = await self.chat.append(piece)
            await self.change()
            if self.dice.random() < 0.8:
                await self.look()
            if self.dice.random() < 0.2:
                await self.look_at(self.dice.choice(receipt.message_ids))

    async def change(self) -> None:
        """Change what views show, sometimes."""
        step = self.dice.random()
        if step < 0.1:
            await self.chat.compact(force=True)
        elif step < 0.14:
            await self.chat.undo_compaction()
        elif step < 0.2:
            if found := await self.chat.list_messages(limit=6):
                await self.chat.rewind(before=str(self.dice.choice(found).message.id))
        elif step < 0.25:
            await self.chat.undo_rewind()

    async def look(self) -> None:
        """Record a view with its stamp; some are changed further before the model gets them."""
        history = await self.chat.load_history(self.dice.choice(POLICIES))
        messages, is_adapted = history.messages, self.dice.random() < 0.05 and len(history.messages) > 1
        if is_adapted:
            messages = messages[:-1]
        self._record(history.stamp_for(messages, adapted=is_adapted).model_dump(), messages)

    async def look_at(self, id_: str) -> None:
        """Record the view after a message, which may be in the middle of its batch; if it is the last one, load it."""
        chat, policy = self.stores[0].conversation(**self.scope), self.dice.choice(POLICIES)
        past, now = await chat.view_at(id_, policy=policy), await chat.view_at(policy=policy)
        if (past.entry, past.version) == (now.entry, now.version):
            assert past.messages == now.messages == (await chat.load_history(policy)).messages
        self._record(id_, past.messages, policy=changed_options(policy))

    def _record(self, at: Any, messages: Sequence[BaseMessage], **case: Any) -> None:
        has_type = any(isinstance(one.additional_kwargs.get("value"), Unregistered) for one in messages)
        self.cases.append(
            {"scope": self.scope, "at": at, "digest": digest_of_messages(messages), "has_type": has_type, **case}
        )

    def _pieces(self, messages: Sequence[BaseMessage]) -> Iterator[Sequence[BaseMessage]]:
        """Cut the messages anywhere, also between a call and its result."""
        cuts = sorted({0, len(messages), *self.dice.sample(range(len(messages)), len(messages) * 2 // 3)})
        return (messages[begin:end] for begin, end in pairwise(cuts))


def samples(dice: random.Random) -> Iterator[list[BaseMessage]]:
    """Conversations of our own: searches, calls at once, results that are missing or late, texts, images, types."""
    while True:
        messages: list[BaseMessage] = [SystemMessage("Be brief.", id=new_id())]
        for number in range(12):
            turn = rag_turn(f"Question {number}?", sources=dice.randint(1, 4), words=dice.choice((20, 200)))
            if number % 3 == 1:
                turn[1].tool_calls.append({"name": "look", "args": {}, "id": f"late-{number}", "type": "tool_call"})
            if number % 4 == 3:
                turn.append(ToolMessage("Late result. " * 90, tool_call_id=f"late-{number - 2}", id=new_id()))
            if number % 5 == 2:
                image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 4_000}"}}
                turn[0].content = [{"type": "text", "text": "What is this? " * 50}, image]
            if number == 9:
                turn[0].additional_kwargs["value"] = Unregistered()
            messages += turn
        yield messages


def real_conversations(dice: random.Random) -> Iterator[list[BaseMessage]]:
    """Conversations of the development data, of each kind in turn."""
    files = sorted(DATA.glob("*.jsonl.gz"))
    while True:
        for path in files:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                chosen = [json.loads(line) for line in dice.sample(list(lines), 2)]
            for one in chosen:
                yield normalize_messages(one["messages"][:60], key=new_id())


async def rebuilt(uri: str, name: str, cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the views that another process rebuilds of each case, with each of the counters."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "tests" / "support" / "view_rebuilder.py"), str(uri), name, PREFIX, *COUNTERS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        limit=1 << 24,
    )
    out, _ = await process.communicate("".join(f"{json.dumps(case)}\n" for case in cases).encode())
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]


def verdict(case: dict[str, Any], counter: str, found: dict[str, Any]) -> str:
    """Name what became of a case; it must be what it has to be."""
    stamp, is_same = case["at"], found["digest"] == case["digest"]
    assert found["is_explained"]
    if isinstance(stamp, str):
        assert found["match"] == "rebuilt"
        assert is_same != case["has_type"] or counter == "words"  # recorded with the usual counter
        return "rebuilt"
    assert (found["match"] == "exact") == is_same == (not found["difference"])
    if stamp["adapted"]:
        assert found["difference"] == "adapted"
    elif stamp["counter"] != counter:
        assert found["difference"] in ("counter", "")
    else:
        assert found["difference"] == ("type" if case["has_type"] else "")
    return found["difference"] or "exact"


@pytest.mark.parametrize("number", [10, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "conversations",
    [
        samples,
        pytest.param(
            real_conversations,
            marks=pytest.mark.skipif(not DATA.is_dir(), reason="the real conversations are not part of the project"),
        ),
    ],
)
async def test_recorded_views_hold(
    database: Any, database_name: str, server_uri: str, conversations: Any, number: int
) -> None:
    """Appended, compacted, undone, rewound and brought back, with two policies, counters and summarizers."""
    dice, cases = random.Random(number), list[dict[str, Any]]()
    source = conversations(dice)
    await store_of(database, PREFIX).setup()
    while len(cases) < number:
        life = Life(database, dice)
        await life.live(next(source))
        cases += life.cases
    counts: Counter[str] = Counter()
    names = [store_of(database, PREFIX, counter).token_counter.name for counter in COUNTERS]
    found = await rebuilt(server_uri, database_name, cases)
    counts.update(verdict(case, name, one) for (case, name), one in zip(product(cases, names), found, strict=True))
    assert counts["exact"] > number
    assert counts["rebuilt"]
    assert {"adapted", "counter"} <= set(counts) or number < 1_000, counts
