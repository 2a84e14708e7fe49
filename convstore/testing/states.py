"""Tests of the state document: created by the first entry, changed by compactions, removed by deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from convstore.conversation import Conversation
from convstore.integration import host_of
from convstore.runtime.clock import Clock
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, same_messages
from convstore.testing.stored import Stored
from convstore.testing.verifying import VerifyFixtures
from convstore.values.policy import CompactionRule, HistoryPolicy

__all__ = ["StateContract"]

_RULE = CompactionRule(max_tokens_before_summary=400, max_summary_tokens=50, keep_last_turns=1)
_POLICIES = (HistoryPolicy(max_tokens=600), HistoryPolicy(max_turns=3))


class _BusySummarizer:
    """A summarizer that calls a function before it returns, such as a write of another process."""

    rule = _RULE
    name = "scripted"

    def __init__(self, before: Callable[[], Any] | None = None, text: str = "words") -> None:
        self.before = before
        self.text = text

    async def summarize(self, _messages: Sequence[BaseMessage], **_: Any) -> str:
        if self.before:
            await self.before()
        return self.text


async def _talk(chat: Conversation, *numbers: int, words: int = 60) -> None:
    for number in numbers:
        question = HumanMessage(f"q{number} " + "why " * words, id=f"q{number}")
        await chat.append([question, AIMessage(f"a{number}", id=f"a{number}")])


async def _view(chat: Conversation, policy: HistoryPolicy | None = None) -> list[str]:
    return [message.model_dump_json() for message in (await chat.load_history(policy)).messages]


async def _found(stored: Stored, *, repair: bool = False) -> list[tuple[str, str]]:
    """Return the findings, without those about the options of collections."""
    found = await stored.found(repair=repair)
    return [pair for pair in found if pair[0] not in ("collection", "options")]


@pytest.mark.usefixtures("store")
class StateContract(VerifyFixtures):
    """Promises about the state of a conversation: one document with all data that a load needs besides entries."""

    async def test_an_append_does_not_change_the_state(
        self, chat: Conversation, database: Any
    ) -> None:
        """The first entry creates the state at revision 0. Later appends and loads do not change it."""
        await chat.append([SystemMessage("Be kind.", id="s"), HumanMessage("hi", id="q0")])
        stored = await Stored.of(chat, database)
        state = await stored.state()
        assert (state["conversation"], state["revision"]) == (stored.conversation, 0)
        assert [message["id"] for message in state["system"]["messages"]] == ["s"]
        await _talk(chat, 1, 2, 3)
        await chat.load_history()
        assert await stored.state() == state

    async def test_a_load_stores_leading_system_messages_of_any_text(
        self, chat: Conversation, new_store: NewStore, database: Any
    ) -> None:
        """Leading system messages are kept in the state, even with lone surrogates, which BSON strings refuse."""
        await chat.append(SystemMessage("Be kind. \ud800", id="s"))
        await _talk(chat, *range(1, 40))
        others = [new_store().conversation(**chat.scope) for _ in range(2)]
        assert same_messages(
            *[(await other.load_history(_POLICIES[0])).messages for other in others]
        )
        state = await (await Stored.of(chat, database)).state()
        assert [message["id"] for message in state["system"]["messages"]] == ["s"]

    async def test_a_first_append_accepts_a_restored_state(
        self, chat: Conversation, database: Any
    ) -> None:
        """A reader that saw the first entry before the state has inserted it; the append succeeds all the same."""
        await chat.update(title="Seals")
        stored = await Stored.of(chat, database)
        state = {"conversation": stored.conversation, "at": datetime.now(UTC), "revision": 7}
        await database["log"].insert_one({"_id": stored.state_key, **state})
        receipt = await chat.append([HumanMessage("hi", id="q0"), AIMessage("a", id="a0")])
        assert receipt.written == 2
        assert (await stored.state())["revision"] == 7
        assert [message.id for message in (await chat.load_history()).messages] == ["q0", "a0"]

    async def test_a_deletion_during_a_compaction_wins(
        self, new_store: NewStore, database: Any
    ) -> None:
        """If a conversation is deleted during its compaction, neither the summary nor the state is written."""
        other = new_store().conversation(user_id=new_id(), thread_id="t")
        chat = new_store(summarizer=_BusySummarizer(other.delete)).conversation(**other.scope)
        await _talk(chat, 1, 2, 3, 4)
        stored = await Stored.of(chat, database)
        assert (await chat.compact(force=True)).status == "busy"
        for name in ("log", "summaries"):
            assert await stored.all(name) == []
        assert await _view(chat) == await _view(other) == []

    async def test_a_summary_of_another_process_is_never_replaced_unseen(
        self, new_store: NewStore
    ) -> None:
        """An undo changes the state that it has read; if another process compacts in between, nothing is undone."""
        chat = new_store(summarizer=_BusySummarizer(text="first")).conversation(
            user_id=new_id(), thread_id="t"
        )
        other = new_store(summarizer=_BusySummarizer(text="second")).conversation(**chat.scope)
        await _talk(chat, 1, 2, 3, 4)
        assert (await chat.compact(force=True)).status == "done"
        states: Any = (await host_of(chat).services()).summaries._states  # noqa: SLF001 - no call can wait there
        commit = states.commit

        async def commit_late(*values: Any, **options: Any) -> bool:
            await _talk(other, 5, 6, 7)
            assert (await other.compact(force=True)).status == "done"
            return bool(await commit(*values, **options))

        states.commit = commit_late
        assert not await chat.undo_compaction()
        assert [(summary.text, summary.is_current) for summary in await chat.summaries()] == [
            ("first", False),
            ("second", True),
        ]
        assert await _view(chat) == await _view(other)
        states.commit = commit
        assert await chat.undo_compaction()
        assert [summary.is_current for summary in await other.summaries()] == [True, False]

    async def test_a_deletion_that_was_killed_after_its_tombstone(
        self, new_store: NewStore, database: Any
    ) -> None:
        """A store with a cached id notices within ten seconds, others at once; the next call completes the deletion."""
        seconds = [0.0]
        scope = {"user_id": new_id(), "thread_id": "t"}
        chat = new_store(clock=Clock(monotonic=lambda: seconds[0])).conversation(**scope)
        await _talk(chat, 1)
        stored = await Stored.of(chat, database)
        tombstones = (await host_of(chat).services()).retention.tombstones  # no call stops half-way
        head = await tombstones.find(scope)
        assert head is not None
        await tombstones.write_tombstone(head, sweep_after=timedelta(minutes=1), pruned=False)
        assert await _view(new_store().conversation(**scope)) == []
        seconds[0] += 11
        assert await _view(chat) == []
        await chat.delete()
        assert await stored.all() == []

    async def test_a_deletion_that_was_killed_after_the_state(
        self, new_store: NewStore, database: Any
    ) -> None:
        """A store with a cached id shows an empty view at once after head and state were deleted."""
        scope = {"user_id": new_id(), "thread_id": "t"}
        chat = new_store(clock=Clock(monotonic=lambda: 0.0)).conversation(**scope)
        await _talk(chat, 1)
        stored = await Stored.of(chat, database)
        await database["heads"].delete_one({"conversation": stored.conversation})
        await stored.drop(stored.state_key)
        assert await _view(chat) == []
        assert await stored.state() == {}

    async def test_loads_during_compactions_are_whole(self, new_store: NewStore) -> None:
        """A view has the summary and everything after it, or all messages."""
        reader = new_store().conversation(user_id=new_id(), thread_id="t")
        chat = new_store(summarizer=_BusySummarizer()).conversation(**reader.scope)
        await _talk(chat, 1, 2)
        views: list[list[str]] = []

        async def read() -> None:
            histories = [await reader.load_history() for _ in range(12)]
            views.extend([str(message.id) for message in history.messages] for history in histories)

        async def write() -> None:
            for number in range(3, 9):
                await _talk(chat, number)
                assert (await chat.compact(force=True)).status == "done"

        await asyncio.gather(read(), write())
        for ids in views:
            shown = [int(id_[1:]) for id_ in ids if id_.startswith("q")]
            assert shown == list(range(shown[0], shown[0] + len(shown))) if shown else ids
            assert ids[0] == "q1" or ids[0].startswith("summary-")

    async def test_policies_have_records_of_their_own(
        self, new_store: NewStore, alone: Conversation, database: Any
    ) -> None:
        """The state keeps one view record for each of at most 16 policies. All processes load the same views."""
        chat = alone
        await _talk(chat, *range(40))
        other = new_store(policy=_POLICIES[1]).conversation(**chat.scope)
        for number in range(40, 60):
            await _talk(chat if number % 2 else other, number)
            for policy in _POLICIES:
                cold = new_store().conversation(**chat.scope)
                assert (
                    await _view(chat, policy)
                    == await _view(other, policy)
                    == await _view(cold, policy)
                )
        for turns in range(2, 20):
            policy = HistoryPolicy(max_turns=turns)
            histories = [
                await new_store().conversation(**chat.scope).load_history(policy) for _ in range(2)
            ]
            assert histories[0].messages == histories[1].messages
        stored = await Stored.of(chat, database)
        assert len((await stored.state())["views"]) == 16

    async def test_a_lost_state_is_restored(self, new_store: NewStore, database: Any) -> None:
        """The next load restores it from the summaries; past views and compactions continue to work."""
        chat = new_store(summarizer=_BusySummarizer()).conversation(user_id=new_id(), thread_id="t")
        await _talk(chat, 1, 2, 3, 4)
        assert (await chat.compact(force=True)).status == "done"
        await _talk(chat, 5)
        stored = await Stored.of(chat, database)
        before = await _view(chat)
        past = [(await chat.view_at(ordinal)).messages for ordinal in range(1, 11)]
        for reader in (chat, new_store().conversation(**chat.scope)):
            await stored.drop(stored.state_key)
            assert await _view(reader) == before
            assert (await stored.state())["revision"] > 1
            assert [(await reader.view_at(ordinal)).messages for ordinal in range(1, 11)] == past
        await _talk(chat, 6, 7)
        again = await chat.compact(force=True)
        assert again.summary is not None
        assert again.summary.version == 2
        assert await chat.undo_compaction()
        assert (await chat.load_history()).summary == "words"

    async def test_a_large_summary_is_read_from_its_own_document(
        self, new_store: NewStore, database: Any
    ) -> None:
        """For a summary above 32 KB the state has its digest and range, and a store reads the text once."""
        text = "words " * 8_000
        chat = new_store(summarizer=_BusySummarizer(text=text)).conversation(
            user_id=new_id(), thread_id="t"
        )
        await _talk(chat, *range(6), words=9_000)
        assert (await chat.compact(force=True)).status == "done"
        state = await (await Stored.of(chat, database)).state()
        assert set(state["summary"]) == {"token", "digest", "entry", "last", "sizes"}
        other = new_store().conversation(**chat.scope)
        trips = [(await other.load_history()).report.round_trips for _ in range(2)]
        assert (await other.load_history()).summary == text
        assert trips == [3, 1]

    @pytest.mark.parametrize(
        "change", [None, {"$set": {"summary.text": "x"}}, {"$set": {"revision": "x"}}]
    )
    async def test_a_damaged_state_is_found_and_restored(
        self, stored: Stored, change: dict[str, Any] | None
    ) -> None:
        """`verify` finds a damaged or missing state, and a repair restores it."""
        before = await _view(stored.chat)
        key = stored.state_key
        await (stored.change(key, change) if change else stored.drop(key))
        for repair in (False, True):
            assert await _found(stored, repair=repair) == [("state", key)]
        assert await _found(stored) == []
        assert await _view(stored.chat) == before

    async def test_wrong_records_and_system_messages_are_found(self, stored: Stored) -> None:
        """A wrong view record in the state is a finding, and a repair removes it."""
        key = stored.state_key
        await stored.change(key, {"$set": {"views.x": {"start": 99, "entry": 3}}})
        assert await _found(stored, repair=True) == [("state", key)]
        assert await _found(stored) == []
