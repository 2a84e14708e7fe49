"""Tests of `stats`: sums over the conversations that match the scope values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore.exceptions import InvalidScopeError
from convstore.runtime.clock import Clock
from convstore.store import ConversationStore
from convstore.summarization import HeadTailSummarizer
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, rag_turn
from convstore.testing.turn_streams import break_off
from convstore.values.policy import CompactionRule
from convstore.values.reports import StoreStats

__all__ = ["StatsContract"]

_RULE = CompactionRule(max_tokens_before_summary=200, max_summary_tokens=100, keep_last_turns=1)


class StatsContract:
    """`stats`, of one user and of all."""

    async def test_statistics_are_sums_over_conversations(self, new_store: NewStore) -> None:
        """Counts and tokens equal those of `info`, savings equal those of views; other users are not counted."""
        store = new_store()
        user = new_id()
        await store.setup()
        chats = [store.conversation(user_id=user, thread_id=f"t{number}") for number in range(3)]
        for number, chat in enumerate(chats):
            for question in range(number + 1):
                await chat.append(rag_turn(f"What of whales, {question}?"))
        await store.conversation(user_id=new_id(), thread_id="t").append(rag_turn("What of seals?"))
        await chats[0].append(HumanMessage("Wrong.", id="wrong"))
        await chats[0].rewind(before_id="wrong")
        stats = await store.stats(user_id=user)
        infos = [await chat.info() for chat in chats]
        assert (stats.conversations, stats.turns) == (3, 6)
        assert stats.messages == sum(info.message_count for info in infos) == 24
        assert stats.tokens == sum(info.tokens for info in infos)
        views = [await chat.load_history() for chat in chats]
        assert stats.saved_by_stubs == stats.tokens - sum(view.tokens for view in views) > 0
        assert (stats.summarized, stats.saved_by_summaries) == (0, 0)
        alone = await store.stats(user_id=user, thread_id="t0")
        assert (alone.conversations, alone.messages) == (1, 4)

    async def test_statistics_tell_what_summaries_save(self, new_store: NewStore) -> None:
        """The savings of a summary equal the difference of the views, until it is undone."""
        store = new_store(summarizer=HeadTailSummarizer(_RULE))
        user = new_id()
        await store.setup()
        chat = store.conversation(user_id=user, thread_id="t")
        for number in range(4):
            await chat.append(
                [HumanMessage(f"{number}?", id=new_id()), AIMessage("Well. " * 80, id=new_id())]
            )
        before = (await chat.load_history()).tokens
        assert (await chat.compact()).status == "done"
        stats = await store.stats(user_id=user)
        assert stats.summarized == 1
        assert 0 < stats.saved_by_summaries <= before
        assert await chat.undo_compaction()
        assert (await store.stats(user_id=user)).summarized == 0

    async def test_sizes_are_counted_by_kind_and_day(self, new_store: NewStore) -> None:
        """A large result is a payload, a broken reply a draft; a message counts on the day of its append."""
        now = datetime(2026, 3, 1, 12, tzinfo=UTC)
        store = new_store(clock=Clock(now=lambda: now))
        user = new_id()
        await store.setup()
        chat = store.conversation(user_id=user, thread_id="t")
        await chat.append(
            [HumanMessage("Hi"), AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "c"}])]
        )
        small = (await store.stats(user_id=user)).bytes
        assert small["entries"] > 0
        assert (
            small["payloads"] == small["summaries"] == small["annotations"] == small["drafts"] == 0
        )
        now += timedelta(days=2)
        await chat.append(
            ToolMessage("".join(new_id() for _ in range(500)), id="r", tool_call_id="c")
        )
        await chat.annotate("r", label="large")
        stats = await store.stats(user_id=user)
        assert stats.bytes["payloads"] > 1_000
        assert stats.bytes["annotations"] > 0
        assert [
            (growth.day.isoformat(), growth.conversations, growth.messages)
            for growth in stats.growth
        ] == [
            ("2026-03-01", 1, 2),
            ("2026-03-03", 0, 1),
        ]
        assert sum(growth.bytes for growth in stats.growth) == stats.bytes["entries"]
        async with await chat.turn("q", human="Sing") as turn:
            await break_off(turn, "La la la")
        assert (await store.stats(user_id=user)).bytes["drafts"] > 0

    async def test_an_empty_scope_has_empty_statistics(self, store: ConversationStore) -> None:
        """A deleted conversation counts for nothing in `stats`. An unknown scope key raises InvalidScopeError."""
        user = new_id()
        chat = store.conversation(user_id=user, thread_id="t")
        await chat.append(rag_turn("What of whales?"))
        await chat.delete()
        nothing = StoreStats(
            bytes=dict.fromkeys(
                ("entries", "payloads", "summaries", "annotations", "drafts", "search"), 0
            )
        )
        assert await store.stats(user_id=user) == nothing
        with pytest.raises(InvalidScopeError):
            await store.stats(tenant="x")

    async def test_statistics_of_all_are_those_of_each(self, new_store: NewStore) -> None:
        """Called without a scope, `stats` counts each conversation of its own collections once."""
        store = new_store(collection_prefix=f"s{new_id()}_")
        users = [new_id() for _ in range(3)]
        await store.setup()
        for user in users:
            await store.conversation(user_id=user, thread_id="t").append(
                rag_turn("What of whales?")
            )
        stats = await store.stats()
        each = [await store.stats(user_id=user) for user in users]
        await store.close()
        assert (stats.conversations, stats.messages) == (3, 12)
        assert stats.bytes["entries"] == sum(part.bytes["entries"] for part in each)
