"""Tests of compaction: summaries, their expansion and undo, failures and concurrency (promise 9)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore
from convstore.testing.pairing import check_pairing
from convstore.testing.samples import rag_turn, same_messages
from convstore.values.policy import CompactionRule, HistoryPolicy

__all__ = ["CompactContract"]

_RULE = CompactionRule(max_tokens_before_summary=400, max_summary_tokens=50, keep_last_turns=2)


class _ScriptedSummarizer:
    """A summarizer that records the ids of its messages; its summaries have the number of messages."""

    name = "scripted"

    def __init__(self, rule: CompactionRule = _RULE) -> None:
        self.rule = rule
        self.shown: list[list[str]] = []
        self.fails: Exception | None = None
        self.before: Callable[[], Any] | None = None

    async def summarize(self, messages: Sequence[BaseMessage], *, summary: str | None) -> str:
        if self.before:
            await self.before()
        if self.fails:
            raise self.fails
        self.shown.append([str(message.id) for message in messages])
        return f"{summary or 'So far'}+{len(messages)}"


async def _talk(chat: Conversation, *numbers: int, words: int = 60) -> None:
    for number in numbers:
        asked = HumanMessage(f"question {number} " + "why " * words, id=f"q{number}")
        await chat.append([asked, AIMessage(f"answer {number}", id=f"a{number}")])


async def _texts(chat: Conversation, policy: HistoryPolicy | None = None) -> list[str]:
    history = await chat.load_history(policy)
    assert check_pairing(history.messages) == []
    return [" ".join(message.text.split()[:2]) for message in history.messages]


class CompactContract:
    """`compact`, `summaries`, `expand_summary`, `undo_compaction`."""

    @pytest.fixture
    def writer(self) -> _ScriptedSummarizer:
        """The summarizer of `compacting`."""
        return _ScriptedSummarizer()

    @pytest.fixture
    async def compacting(
        self, new_store: NewStore, store: ConversationStore, writer: _ScriptedSummarizer
    ) -> Conversation:
        """An empty conversation of a store with a summarizer."""
        assert store.policy == HistoryPolicy()  # it is set up
        return new_store(summarizer=writer).conversation(user_id="ada", thread_id=uuid.uuid4().hex)

    async def test_old_turns_become_a_summary(
        self, compacting: Conversation, writer: _ScriptedSummarizer
    ) -> None:
        """System messages come first, then the summary, then the last turns; every process loads the same view."""
        chat = compacting
        await chat.append(SystemMessage("Be kind.", id="s"))
        await _talk(chat, 1, 2, 3)
        assert (await chat.compact()).status == "not_needed"
        await _talk(chat, 4, 5, 6)
        done = await chat.compact()
        assert done.status == "done"
        assert done.summary is not None
        assert (
            done.summary.first,
            done.summary.last,
            done.summary.version,
            done.summary.model,
        ) == (
            2,
            9,
            1,
            "scripted",
        )
        assert writer.shown == [["q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4"]]
        expected = ["Be kind.", "[Record of", "question 5", "answer 5", "question 6", "answer 6"]
        assert await _texts(chat) == expected
        history = await chat.load_history()
        assert history.summary == "So far+8"
        assert history.messages[1].additional_kwargs["convstore"] == {"kind": "summary"}
        assert isinstance(history.messages[1], HumanMessage)
        assert len([message async for message in chat.messages(rewound=True)]) == 13

    async def test_a_second_summary_extends_the_first(
        self, compacting: Conversation, writer: _ScriptedSummarizer, new_store: NewStore
    ) -> None:
        """Each message is shown once, ranges are contiguous, and later processes see the last summary."""
        chat = compacting
        await _talk(chat, *range(1, 7))
        first = await chat.compact()
        await _talk(chat, *range(7, 12))
        await new_store().conversation(**chat.scope).load_history()
        second = await chat.compact()
        assert first.summary is not None
        assert second.summary is not None
        assert first.summary.reason.endswith(" tokens were not summarised")
        assert (second.summary.first, second.summary.last, second.summary.version) == (1, 18, 2)
        assert [id_ for ids in writer.shown for id_ in ids] == [
            f"{k}{n}" for n in range(1, 10) for k in "qa"
        ]
        for conversation in (
            chat,
            new_store().conversation(**chat.scope),
            new_store().conversation(**chat.scope),
        ):
            assert await _texts(conversation) == [
                "[Record of",
                "question 10",
                "answer 10",
                "question 11",
                "answer 11",
            ]
        assert [(summary.version, summary.is_current) for summary in await chat.summaries()] == [
            (1, False),
            (2, True),
        ]
        assert (await chat.compact()).status == "not_needed"

    async def test_a_summary_leads_back_to_its_messages(self, compacting: Conversation) -> None:
        """`expand_summary` returns equal messages; results are named and can be read."""
        chat = compacting
        turns = [rag_turn(f"What about fish {number}?") for number in range(8)]
        for turn in turns:
            await chat.append(turn)
        done = await chat.compact()
        assert done.summary is not None
        folded = [message for turn in turns for message in turn][: done.summary.last]
        assert same_messages(await chat.expand_summary(1), folded)
        results = [str(message.id) for message in folded if isinstance(message, ToolMessage)]
        assert done.summary.tool_message_ids == results
        assert done.summary.source_ids.startswith("1-3, 4-6")
        shown = (await chat.load_history()).messages[0].text
        [newest] = await chat.get_tool_messages(results[-1:])
        assert f"newest tool message ids: m{newest.ordinal} (source ids " in shown
        with pytest.raises(InvalidInputError):
            await chat.expand_summary(2)

    async def test_a_compaction_is_taken_back(self, compacting: Conversation) -> None:
        """After an undo, views are as before the compaction, and the next compaction has the next version."""
        chat = compacting
        await _talk(chat, *range(1, 7))
        before = await _texts(chat)
        await chat.compact()
        assert await chat.undo_compaction()
        assert await _texts(chat) == before
        assert not await chat.undo_compaction()
        again = await chat.compact()
        assert again.summary is not None
        assert again.summary.version == 2
        assert [summary.is_current for summary in await chat.summaries()] == [False, True]

    async def test_when_the_summarizer_fails_history_loads_as_before(
        self, compacting: Conversation, writer: _ScriptedSummarizer
    ) -> None:
        """A failure is a typed result and writes nothing; the next attempt waits, unless it is forced."""
        chat = compacting
        await _talk(chat, *range(1, 7))
        before = await _texts(chat)
        writer.fails = RuntimeError("quota")
        failed = await chat.compact()
        assert (failed.status, failed.problem) == ("failed", "RuntimeError: quota")
        assert await _texts(chat) == before
        assert (await chat.compact()).status == "waiting"
        assert await chat.summaries() == []
        writer.fails = None
        assert (await chat.compact(force=True)).status == "done"
        await _talk(chat, *range(7, 12))
        assert (await chat.compact()).status == "done"

    @pytest.mark.parametrize("answer", ["", " \n", "x" * 20_000, None, 7])
    async def test_what_is_no_summary_is_refused(
        self, store: ConversationStore, new_store: NewStore, answer: Any
    ) -> None:
        """An empty summary is refused, and so is one that is longer than the messages that it replaces."""

        async def summarize(_messages: Sequence[BaseMessage], _summary: str | None) -> str:
            return answer  # type: ignore[no-any-return]

        assert store.policy == HistoryPolicy()
        chat = new_store(summarizer=summarize).conversation(
            user_id="ada", thread_id=uuid.uuid4().hex
        )
        await _talk(chat, *range(1, 8))
        assert (await chat.compact(force=True)).status == "failed"
        assert (await chat.load_history()).summary is None

    async def test_two_workers_never_both_summarise(
        self, compacting: Conversation, writer: _ScriptedSummarizer, new_store: NewStore
    ) -> None:
        """While one worker summarises, `compact` in every other worker returns the status "busy"."""
        await _talk(compacting, *range(1, 7))
        others = [new_store(summarizer=writer).conversation(**compacting.scope) for _ in range(4)]
        inside: list[str] = []

        async def at_once() -> None:
            writer.before = None
            inside.extend(
                [
                    compaction.status
                    for compaction in await asyncio.gather(*(other.compact() for other in others))
                ]
            )

        writer.before = at_once
        assert (await compacting.compact()).status == "done"
        assert inside == ["busy"] * 4
        assert len(writer.shown) == 1

    async def test_what_comes_while_a_summary_is_written_is_not_in_it(
        self, compacting: Conversation, writer: _ScriptedSummarizer
    ) -> None:
        """Messages appended during a compaction follow its summary. A rewind meanwhile leaves the summary unused."""
        chat = compacting
        await _talk(chat, *range(1, 7))
        writer.before = lambda: _talk(chat, 7)
        await chat.compact()
        assert await _texts(chat) == [
            "[Record of",
            *(f"{k} {n}" for n in (5, 6, 7) for k in ("question", "answer")),
        ]
        writer.before = lambda: chat.rewind(before_id="q2")
        await _talk(chat, *range(8, 14))
        await chat.compact()
        assert await _texts(chat) == ["question 1", "answer 1"]

    async def test_what_is_rewound_is_not_summarised(
        self, compacting: Conversation, writer: _ScriptedSummarizer
    ) -> None:
        """Rewound messages are not summarised. A rewind into a summary makes the earlier summary current."""
        chat = compacting
        await _talk(chat, *range(1, 7))
        await chat.rewind(before_id="q3")
        await _talk(chat, *range(7, 12))
        first = await chat.compact()
        assert first.summary is not None
        assert not {"q3", "a6"} & {id_ for ids in writer.shown for id_ in ids}
        expanded = [message.id for message in await chat.expand_summary(1)]
        assert expanded == writer.shown[0]
        await _talk(chat, *range(12, 17))
        await chat.compact()
        await chat.rewind(before_id="q12")
        assert (await chat.load_history()).summary == first.summary.text
        assert [summary.is_current for summary in await chat.summaries()] == [True, False]
        await chat.rewind(before_id="q1")
        assert await _texts(chat) == []
        assert not any(summary.is_current for summary in await chat.summaries())

    async def test_a_long_turn_in_progress_is_folded_in_its_older_pairs(
        self, compacting: Conversation, writer: _ScriptedSummarizer
    ) -> None:
        """Calls stay with their results, the question is kept, and the newest pairs are not summarised."""
        chat = compacting
        await chat.append(HumanMessage("Mend the roof, please.", id="q"))
        for number in range(12):
            call = {"name": "run", "args": {"n": number}, "id": f"c{number}"}
            await chat.append(AIMessage("", id=f"a{number}", tool_calls=[call]))
            await chat.append(
                ToolMessage("log line " * 30, id=f"r{number}", tool_call_id=f"c{number}")
            )
        done = await chat.compact()
        assert done.status == "done"
        assert writer.shown[0][-1].startswith("r")
        history = await chat.load_history()
        assert check_pairing(history.messages) == []
        assert "Mend the roof, please." in history.messages[0].text
        assert history.messages[-1].text.startswith("log line")
        assert history.tokens < 400

    async def test_a_load_may_summarise_first(
        self, compacting: Conversation, writer: _ScriptedSummarizer
    ) -> None:
        """A load compacts first only under a policy with ``compact="before_load"``."""
        await _talk(compacting, *range(1, 7))
        assert (await compacting.load_history()).summary is None
        policy = HistoryPolicy(compact="before_load", max_turns=1)
        assert (await compacting.load_history(policy)).summary == "So far+8"
        assert (
            await compacting.load_history(HistoryPolicy(compact="before_load"))
        ).summary == "So far+8"
        assert len(writer.shown) == 1

    async def test_views_with_a_summary_are_stable_and_within_their_budget(
        self, compacting: Conversation, new_store: NewStore
    ) -> None:
        """Each view begins with the view before until the next compaction, in every process, warm or cold."""
        chat = compacting
        policy = HistoryPolicy(max_tokens=700)
        last: list[Any] = []
        for number in range(1, 24):
            await chat.append(HumanMessage(f"question {number} " + "why " * 60))
            history = await chat.load_history(policy)
            cold = await new_store().conversation(**chat.scope).load_history(policy)
            assert same_messages(history.messages, cold.messages)
            assert history.tokens <= 700
            texts = [message.text for message in history.messages]
            assert texts[: len(last)] == last
            last = texts
            await chat.append(AIMessage(f"answer {number}"))
            if (await chat.compact()).status == "done":
                last = []
        assert 1 <= len(await chat.summaries()) <= 10

    async def test_without_a_summarizer_the_error_says_what_to_do(self, chat: Conversation) -> None:
        """`compact` raises a typed error that names the argument."""
        with pytest.raises(InvalidInputError, match="summarizer="):
            await chat.compact()
        assert await chat.summaries() == []
        assert not await chat.undo_compaction()

    async def test_summaries_end_with_the_conversation(
        self, compacting: Conversation, database: Any
    ) -> None:
        """Deleting a conversation deletes its summaries."""
        await _talk(compacting, *range(1, 7))
        assert (await compacting.compact()).status == "done"
        [head] = await database["heads"].find({"scope": compacting.scope}).to_list(None)
        mine = {"conversation": head["conversation"]}
        assert len(await database["summaries"].find(mine).to_list(None)) == 1
        await compacting.delete()
        assert await database["summaries"].find(mine).to_list(None) == []
        await _talk(compacting, 1)
        assert (await compacting.load_history()).summary is None
