"""Tests of loading on a real driver: the view is valid, stable and small, and can be built again (promises 5, 6 and 7).

The rules themselves are tested without a database.
"""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.messages.tokens import approximate_tokens
from convstore.store import ConversationStore
from convstore.summarization import HeadTailSummarizer
from convstore.testing.fixtures import NewStore
from convstore.testing.pairing import check_pairing
from convstore.testing.samples import SHARED_FIXTURES, new_id, rag_turn, same_messages
from convstore.values.policy import CompactionRule, HistoryPolicy
from convstore.wire.history import History

__all__ = ["LoadContract"]

_RULE = CompactionRule(max_tokens_before_summary=200, max_summary_tokens=100, keep_last_turns=1)
_POLICIES = (HistoryPolicy(max_tokens=700), HistoryPolicy(max_turns=3))
_SMALL = HistoryPolicy(max_tokens=1_500)


def _written(messages: list[BaseMessage]) -> list[str]:
    return [message.model_dump_json() for message in messages]


class LoadContract:
    """Promises 5, 6 and 7, and `view_at`."""

    async def test_an_empty_conversation_has_an_empty_view(self, chat: Conversation) -> None:
        """Loading a conversation that does not exist returns an empty view."""
        history = await chat.load_history()
        assert (history.messages, history.tokens, history.summary) == ([], 0, None)

    async def test_old_results_are_stubs_and_the_turn_in_progress_is_whole(
        self, chat: Conversation
    ) -> None:
        """A stub has the tool, the count and a hint how to read the rest; the turn in progress is not cut."""
        old = rag_turn("What do seals eat?")
        current = rag_turn("And orcas?")
        await chat.append(old)
        await chat.append(current[:3])
        history = await chat.load_history()
        stub = json.loads(str(history.messages[2].content))
        assert stub == {
            "success": True,
            "tool": "search",
            "result_count": 3,
            "message": "Retrieved 3 sources. Use retrieve_previous_sources to access full content.",
            "tool_message_id": old[2].id,
            "source_ids": "1-3",
        }
        assert same_messages(history.messages[4:], current[:3])
        assert history.report.stubbed == (old[2].id,)

    async def test_stubs_keep_the_message(self, chat: Conversation) -> None:
        """A stub keeps id, call, name and status; the artifact is not part of a view."""
        turn = rag_turn("What do seals eat?")
        await chat.append(turn)
        stubbed = (await chat.load_history()).messages[2]
        assert isinstance(stubbed, ToolMessage)
        assert isinstance(turn[2], ToolMessage)
        assert (stubbed.id, stubbed.tool_call_id, stubbed.name) == (
            turn[2].id,
            turn[2].tool_call_id,
            "search",
        )
        assert (stubbed.status, stubbed.artifact) == ("success", None)

    async def test_large_parts_of_finished_turns_are_placeholders(self, chat: Conversation) -> None:
        """After its turn, an image is replaced by a placeholder with the message's id."""
        image = {"type": "image", "base64": "QUJD" * 20_000, "mime_type": "image/png"}
        question = HumanMessage([{"type": "text", "text": "What is this?"}, image], id=new_id())
        await chat.append([question])
        whole = (await chat.load_history()).messages
        await chat.append([AIMessage("A cat.")])
        history = await chat.load_history()
        assert same_messages(whole, [question])
        assert history.messages[0].content[0] == {"type": "text", "text": "What is this?"}
        assert str(question.id) in str(history.messages[0].content[1])
        assert len(str(history.messages[0].content)) < 300
        assert history.report.placeholders == (question.id,)

    async def test_a_long_system_prompt_is_always_whole(self, chat: Conversation) -> None:
        """A view never shortens the leading system prompt or replaces any part of it."""
        prompt = SystemMessage("Follow the policy. " * 4_000, id=new_id())
        await chat.append([prompt, *rag_turn("What about seals?")])
        assert same_messages((await chat.load_history()).messages[:1], [prompt])

    async def test_missing_and_stray_results_are_paired_in_the_view_only(
        self, chat: Conversation
    ) -> None:
        """The view is valid and the report lists the changes; the log is unchanged."""
        messages: list[BaseMessage] = [
            HumanMessage("go", id=new_id()),
            AIMessage(
                "",
                id=new_id(),
                tool_calls=[{"name": "f", "args": {}, "id": id_} for id_ in ("c1", "c2")],
            ),
            ToolMessage("two", id="late", tool_call_id="c2"),
            ToolMessage("stray", id="stray", tool_call_id="c9"),
            HumanMessage("well?", id=new_id()),
        ]
        await chat.append(messages)
        history = await chat.load_history()
        assert check_pairing(history.messages) == []
        assert history.report.missing_results == ("c1",)
        assert history.report.orphans == ("stray",)
        assert history.messages[2].additional_kwargs["convstore"] == {"kind": "missing_result"}
        assert same_messages([message async for message in chat.messages()], messages)

    async def test_each_view_begins_with_the_view_before(self, chat: Conversation) -> None:
        """Provider prompt caches need this; it is compared after every turn, warm and cold."""
        earlier: list[str] = []
        for number in range(6):
            turn = rag_turn(f"What about fish {number}?")
            await chat.append(turn[0])
            view = _written((await chat.load_history()).messages)
            assert view[: len(earlier)] == earlier
            earlier = view
            await chat.append(turn[1:])

    async def test_every_store_comes_to_the_same_view(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """The view does not depend on the cache of a process."""
        for number in range(30):
            await chat.append(rag_turn(f"What about fish {number}?"))
            if number % 7 == 0:
                warm = await chat.load_history(_SMALL)
                cold = await new_store().conversation(**chat.scope).load_history(_SMALL)
                assert _written(warm.messages) == _written(cold.messages)
                assert warm.tokens == cold.tokens

    async def test_a_view_keeps_to_its_budget(self, chat: Conversation) -> None:
        """The oldest turns leave first; system messages stay; a note reports the turns and names the newest results."""
        await chat.append(SystemMessage("Answer in one line.", id="system"))
        results = []
        history = await chat.load_history(_SMALL)
        for number in range(40):
            turn = rag_turn(f"What about fish {number}?")
            results.append(str(turn[2].id))
            await chat.append(turn)
            history = await chat.load_history(_SMALL)
            assert history.tokens <= 1_500
            assert history.tokens == approximate_tokens(history.messages)
        system, note, *rest = history.messages
        assert system.id == "system"
        assert note.additional_kwargs["convstore"] == {"kind": "note"}
        assert f"{history.report.left_out_turns} earlier turns" in str(note.content)
        shown = {message.id for message in rest}
        left_out = [id_ for id_ in results if id_ not in shown]
        named = [
            f"m{record.ordinal} (" in str(note.content)
            for record in await chat.get_tool_messages(left_out)
        ]
        assert named == [False] * len(left_out[:-20]) + [True] * len(left_out[-20:])
        assert isinstance(rest[0], HumanMessage)

    async def test_the_turn_in_progress_is_never_cut(self, chat: Conversation) -> None:
        """A turn in progress that exceeds the budget is shown in full, and the report says so."""
        await chat.append(rag_turn("What about seals?"))
        turn = rag_turn("What about whales?", sources=20)
        await chat.append(turn[:3])
        history = await chat.load_history(_SMALL)
        assert same_messages(history.messages[-3:], turn[:3])
        assert history.report.over_budget

    async def test_a_view_can_be_limited_in_turns(self, chat: Conversation) -> None:
        """`max_turns` counts whole turns and the one in progress."""
        for number in range(5):
            await chat.append(rag_turn(f"What about fish {number}?"))
        await chat.append(HumanMessage("and now?"))
        history = await chat.load_history(HistoryPolicy(max_turns=2))
        assert [str(message.content) for message in history.messages if message.type == "human"][
            1:
        ] == [
            "What about fish 4?",
            "and now?",
        ]
        assert history.report.left_out_turns == 4

    @pytest.mark.parametrize(
        ("policy", "whole"),
        [
            (HistoryPolicy(), 0),
            (HistoryPolicy(stub_tools="never"), 6),
            (HistoryPolicy(never_stub=frozenset({"book"})), 3),
        ],
    )
    async def test_a_policy_keeps_results_whole(
        self, chat: Conversation, policy: HistoryPolicy, whole: int
    ) -> None:
        """A policy can keep all results, or those of some tools."""
        turns = [
            rag_turn(f"Fish {number}?", tool="book" if number % 2 else "search")
            for number in range(6)
        ]
        for turn in turns:
            await chat.append(turn)
        appended = {message.id: message for turn in turns for message in turn}
        results = [m for m in (await chat.load_history(policy)).messages if m.type == "tool"]
        assert sum(same_messages([result], [appended[result.id]]) for result in results) == whole

    async def test_the_conversation_view_is_the_talk_alone(self, chat: Conversation) -> None:
        """The view "conversation" has neither tool messages nor AI messages with calls."""
        await chat.append(
            [SystemMessage("Be kind."), *rag_turn("What about seals?"), *rag_turn("And orcas?")]
        )
        history = await chat.load_history(HistoryPolicy(view="conversation"))
        assert [message.type for message in history.messages] == [
            "system",
            "human",
            "ai",
            "human",
            "ai",
        ]

    @settings(
        max_examples=min(25, settings().max_examples),
        deadline=None,
        suppress_health_check=SHARED_FIXTURES,
    )
    @given(data=st.data())
    async def test_any_log_gives_a_valid_view(
        self, store: ConversationStore, data: st.DataObject
    ) -> None:
        """Views are valid for calls and results in any order, in any batches, with loads in between."""
        chat = store.conversation(user_id="any", thread_id=new_id())
        kinds = st.sampled_from(["human", "ai", "call", "calls", "result", "result"])
        log: list[BaseMessage] = []
        for kind in data.draw(st.lists(kinds, min_size=1, max_size=14)):
            message = _message(kind, data.draw(st.sampled_from(["c1", "c2", "c3"])))
            await chat.append(message)
            log.append(message)
            history = await chat.load_history()
            assert check_pairing(history.messages) == []
        assert same_messages([message async for message in chat.messages()], log)

    async def test_loads_during_appends_are_views_of_a_prefix(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A load never returns a part of a batch."""
        histories: list[History] = []

        async def read() -> None:
            histories.extend([await elsewhere.load_history() for _ in range(10)])

        async def write() -> None:
            for number in range(10):
                await chat.append(rag_turn(f"Fish {number}?"))

        await asyncio.gather(read(), write())
        assert all(len(history.messages) % 4 == 0 for history in histories)

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
        """Listings return the stamp, and another store rebuilds its view exactly."""
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


def _message(kind: str, call: str) -> BaseMessage:
    if kind == "human":
        return HumanMessage("q", id=new_id())
    if kind == "result":
        return ToolMessage("r" * 1_500, id=new_id(), tool_call_id=call)
    ids = {"ai": [], "call": [call], "calls": ["c1", "c2"]}[kind]
    return AIMessage(
        "a", id=new_id(), tool_calls=[{"name": "f", "args": {}, "id": id_} for id_ in ids]
    )
