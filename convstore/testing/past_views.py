"""Tests of past views: `view_at` rebuilds an earlier view from a stamp or a message id."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.conversation import Conversation
from convstore.exceptions import UnknownMessageError
from convstore.summarization import HeadTailSummarizer
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, rag_turn
from convstore.values.policy import CompactionRule, HistoryPolicy

__all__ = ["PastViewContract"]

_RULE = CompactionRule(max_tokens_before_summary=200, max_summary_tokens=100, keep_last_turns=1)
_POLICIES = (HistoryPolicy(max_tokens=700), HistoryPolicy(max_turns=3))


class PastViewContract:
    """Past views."""

    async def test_a_stamp_and_a_message_give_the_view_as_it_was(self, new_store: NewStore) -> None:
        """`view_at` rebuilds an earlier view in another store, even after a compaction, its undo and a rewind."""
        chat = new_store(summarizer=HeadTailSummarizer(_RULE)).conversation(
            user_id=new_id(), thread_id="t"
        )
        recorded: list[tuple[Any, Any, Any]] = []
        for number in range(6):
            receipt = await chat.append(rag_turn(f"Question {number}?")[: 3 + number % 2])
            for policy in _POLICIES:
                history = await chat.load_history(policy)
                recorded += [
                    (history.stamp, None, history),
                    (receipt.message_ids[0], policy, history),
                ]
            if number in (2, 4):
                await chat.compact(force=True)
        await chat.undo_compaction()
        await chat.rewind(before_id=recorded[-1][0])
        other = new_store().conversation(**chat.scope)
        for at, policy, history in recorded:
            past = await other.view_at(at, policy=policy)
            assert (past.messages, past.tokens) == (history.messages, history.tokens)
            assert past.match == ("rebuilt" if policy else "exact")
            ranges = past.report.reasons
            assert (ranges[0].first, ranges[-1].last) == (1, past.ordinal)
            assert all(reason.last + 1 == two.first for reason, two in pairwise(ranges))

    async def test_an_answer_keeps_the_stamp_of_its_view(
        self, new_store: NewStore, chat: Conversation
    ) -> None:
        """Listings return it, and its view is exact from another store."""
        await chat.append([*rag_turn("Orcas?"), HumanMessage("And seals?")])
        history = await chat.load_history()
        await chat.append(AIMessage("Seals too.", id="answer"), stamp=history.stamp)
        *_, answer = await new_store().conversation(**chat.scope).list_messages()
        assert answer.stamp == history.stamp
        assert answer.stamp is not None
        past = await new_store().conversation(**chat.scope).view_at(answer.stamp)
        assert (past.match, past.messages) == ("exact", history.messages)

    async def test_a_view_that_left_out_a_long_turn_is_exact(self, chat: Conversation) -> None:
        """A past view is exact even if the turn that it left out began long before the end of the log."""
        await chat.append(HumanMessage("Orcas?"))
        for _ in range(60):
            await chat.append(AIMessage("They eat fish."))
        history = await chat.load_history(HistoryPolicy(max_tokens=1))
        past = await chat.view_at(history.stamp)
        assert (past.match, past.messages) == ("exact", history.messages)

    async def test_a_deleted_conversation_has_no_past_views(self, chat: Conversation) -> None:
        """`view_at` raises UnknownMessageError once the conversation is deleted, also in a reused scope."""
        await chat.append(HumanMessage("Hi", id="hi"))
        stamp = (await chat.load_history()).stamp
        await chat.delete()
        for _ in range(2):
            for at in (stamp, "hi"):
                with pytest.raises(UnknownMessageError):
                    await chat.view_at(at)
            await chat.append(HumanMessage("Again"))
