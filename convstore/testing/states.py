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
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, same_messages
from convstore.testing.verifying import VerifyFixtures, kinds
from convstore.values.policy import CompactionRule, HistoryPolicy
from convstore.values.reports import VerifyReport

__all__ = ["StateContract"]

_RULE = CompactionRule(max_tokens_before_summary=400, max_summary_tokens=50, keep_last_turns=1)
_POLICIES = (HistoryPolicy(max_tokens=600), HistoryPolicy(max_turns=3))


class _Writer:
    """A summarizer that does something else first."""

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


def _found(report: VerifyReport) -> list[tuple[str, str]]:
    """The findings, without those about the options of collections."""
    return [pair for pair in kinds(report) if pair[0] not in ("collection", "options")]


@pytest.mark.usefixtures("store")
class StateContract(VerifyFixtures):
    """Promises about the state of a conversation: all that a load needs besides entries is in one document."""

    async def state_of(self, database: Any, conversation: str) -> dict[str, Any] | None:
        """The state of a conversation, as it is stored."""
        found: dict[str, Any] | None = await database["log"].find_one({"_id": f"{conversation}:~"})
        return found

    async def test_an_append_does_not_change_the_state(
        self, chat: Conversation, database: Any
    ) -> None:
        """The first entry creates the state at revision 0. Later appends and loads do not change it."""
        await chat.append([SystemMessage("Be kind.", id="s"), HumanMessage("hi", id="q0")])
        conversation = await self.id_of(database, chat)
        state = await self.state_of(database, conversation)
        assert state is not None
        assert (state["conversation"], state["revision"]) == (conversation, 0)
        assert [message["id"] for message in state["system"]["messages"]] == ["s"]
        await _talk(chat, 1, 2, 3)
        await chat.load_history()
        assert await self.state_of(database, conversation) == state

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
        state = await self.state_of(database, await self.id_of(database, chat))
        assert [message["id"] for message in (state or {})["system"]["messages"]] == ["s"]

    async def test_a_first_append_accepts_a_restored_state(
        self, chat: Conversation, database: Any
    ) -> None:
        """A reader that saw the first entry before the state has inserted it; the append succeeds all the same."""
        await chat.update(title="Seals")
        conversation = await self.id_of(database, chat)
        state = {
            "_id": f"{conversation}:~",
            "conversation": conversation,
            "at": datetime.now(UTC),
            "revision": 7,
        }
        await database["log"].insert_one(state)
        assert (
            await chat.append([HumanMessage("hi", id="q0"), AIMessage("a", id="a0")])
        ).written == 2
        assert (await self.state_of(database, conversation) or {})["revision"] == 7
        assert [message.id for message in (await chat.load_history()).messages] == ["q0", "a0"]

    async def test_a_deletion_during_a_compaction_wins(
        self, new_store: NewStore, database: Any
    ) -> None:
        """If a conversation is deleted during its compaction, neither the summary nor the state is written."""
        other = new_store().conversation(user_id=new_id(), thread_id="t")
        chat = new_store(summarizer=_Writer(other.delete)).conversation(**other.scope)
        await _talk(chat, 1, 2, 3, 4)
        conversation = await self.id_of(database, chat)
        assert (await chat.compact(force=True)).status == "busy"
        for name in ("log", "summaries"):
            assert await database[name].count_documents({"conversation": conversation}) == 0
        assert await _view(chat) == await _view(other) == []

    async def test_a_summary_of_another_process_is_never_replaced_unseen(
        self, new_store: NewStore
    ) -> None:
        """An undo changes the state that it has read; if another process compacts in between, nothing is undone."""
        chat = new_store(summarizer=_Writer(text="first")).conversation(
            user_id=new_id(), thread_id="t"
        )
        other = new_store(summarizer=_Writer(text="second")).conversation(**chat.scope)
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
        """A store that has the id cached notices within ten seconds, another one at once; the next call removes all."""
        seconds = [0.0]
        scope = {"user_id": new_id(), "thread_id": "t"}
        chat = new_store(clock=Clock(monotonic=lambda: seconds[0])).conversation(**scope)
        await _talk(chat, 1)
        conversation = await self.id_of(database, chat)
        tombstones = (await host_of(chat).services()).retention.tombstones  # no call stops half-way
        head = await tombstones.find(scope)
        assert head is not None
        await tombstones.write_tombstone(head, sweep_after=timedelta(minutes=1), pruned=False)
        assert await _view(new_store().conversation(**scope)) == []
        seconds[0] += 11
        assert await _view(chat) == []
        await chat.delete()
        assert await database["log"].count_documents({"conversation": conversation}) == 0

    async def test_a_deletion_that_was_killed_after_the_state(
        self, new_store: NewStore, database: Any
    ) -> None:
        """A store with a cached id shows an empty view at once after head and state were deleted."""
        scope = {"user_id": new_id(), "thread_id": "t"}
        chat = new_store(clock=Clock(monotonic=lambda: 0.0)).conversation(**scope)
        await _talk(chat, 1)
        conversation = await self.id_of(database, chat)
        await database["heads"].delete_one({"conversation": conversation})
        await database["log"].delete_one({"_id": f"{conversation}:~"})
        assert await _view(chat) == []
        assert await self.state_of(database, conversation) is None

    async def test_loads_during_compactions_are_whole(self, new_store: NewStore) -> None:
        """A view has the summary and everything after it, or all messages."""
        reader = new_store().conversation(user_id=new_id(), thread_id="t")
        chat = new_store(summarizer=_Writer()).conversation(**reader.scope)
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
        self, new_store: NewStore, store: ConversationStore, database: Any
    ) -> None:
        """The state keeps one view record for each of at most 16 policies. All processes load the same views."""
        chat = store.conversation(user_id=new_id(), thread_id="t")
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
        assert (
            len((await self.state_of(database, await self.id_of(database, chat)) or {})["views"])
            == 16
        )

    async def test_a_lost_state_is_restored(self, new_store: NewStore, database: Any) -> None:
        """The next load brings it back from the summaries, past views too, and compactions go on from there."""
        chat = new_store(summarizer=_Writer()).conversation(user_id=new_id(), thread_id="t")
        await _talk(chat, 1, 2, 3, 4)
        assert (await chat.compact(force=True)).status == "done"
        await _talk(chat, 5)
        conversation = await self.id_of(database, chat)
        before = await _view(chat)
        past = [(await chat.view_at(ordinal)).messages for ordinal in range(1, 11)]
        for reader in (chat, new_store().conversation(**chat.scope)):
            await database["log"].delete_one({"_id": f"{conversation}:~"})
            assert await _view(reader) == before
            assert (await self.state_of(database, conversation) or {})["revision"] > 1
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
        """Above 32 KB the state has its digest and range; a store reads the text once."""
        text = "words " * 8_000
        chat = new_store(summarizer=_Writer(text=text)).conversation(
            user_id=new_id(), thread_id="t"
        )
        await _talk(chat, *range(6), words=9_000)
        assert (await chat.compact(force=True)).status == "done"
        state = await self.state_of(database, await self.id_of(database, chat))
        assert set((state or {})["summary"]) == {"token", "digest", "range", "totals", "tokens"}
        other = new_store().conversation(**chat.scope)
        trips = [(await other.load_history()).report.round_trips for _ in range(2)]
        assert (await other.load_history()).summary == text
        assert trips == [3, 1]

    @pytest.mark.parametrize(
        "change", [None, {"$set": {"summary.text": "x"}}, {"$set": {"revision": "x"}}]
    )
    async def test_a_damaged_state_is_found_and_restored(
        self,
        full: Conversation,
        later: ConversationStore,
        database: Any,
        change: dict[str, Any] | None,
    ) -> None:
        """`verify` finds a damaged or missing state, and a repair restores it."""
        conversation = await self.id_of(database, full)
        before = await _view(full)
        key = f"{conversation}:~"
        user = full.scope["user_id"]
        await (
            database["log"].update_one({"_id": key}, change)
            if change
            else database["log"].delete_one({"_id": key})
        )
        assert _found(await later.verify(user_id=user)) == [("state", key)]
        report = await later.verify(user_id=user, repair=True)
        assert _found(report) == [("state", key)]
        assert _found(await later.verify(user_id=user)) == []
        assert await _view(full) == before

    async def test_wrong_records_and_system_messages_are_found(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """A wrong view record in the state is a finding, and a repair removes it."""
        conversation = await self.id_of(database, full)
        key = f"{conversation}:~"
        user = full.scope["user_id"]
        state = await self.state_of(database, conversation)
        assert state is not None
        await database["log"].update_one(
            {"_id": key}, {"$set": {"views.x": {"start": 99, "entry": 3}}}
        )
        assert _found(await later.verify(user_id=user, repair=True)) == [("state", key)]
        assert _found(await later.verify(user_id=user)) == []
