"""Tests of restoring a backup while stores are running: later appends leave no undetected hole in the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.conversation import Conversation
from convstore.exceptions import BrokenLogError
from convstore.integration import host_of
from convstore.runtime.clock import Clock
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore, texts_of
from convstore.testing.samples import new_id
from convstore.testing.stored import Stored
from convstore.testing.verifying import clock_ahead
from convstore.values.reports import VerifyReport

__all__ = [
    "RestoreContract",
    "RestoreFixtures",
    "conversation_of",
    "restore",
    "saved",
    "talk",
    "texts",
]

_Backup = Mapping[str, list[dict[str, Any]]]


async def talk(chat: Conversation, numbers: range, *, answers: int = 1) -> None:
    """Append a turn for each number."""
    for number in numbers:
        said = [AIMessage(f"a{number}.{index}", id=new_id()) for index in range(answers)]
        await chat.append([HumanMessage(f"q{number}", id=new_id()), *said])


async def texts(chat: Conversation) -> list[str]:
    """Return the questions in the view."""
    return [
        message.text for message in (await chat.load_history()).messages if message.type == "human"
    ]


async def _asked(chat: Conversation) -> list[str]:
    """Return the questions in the log."""
    return [
        message.text async for message in chat.messages(rewound=True) if message.type == "human"
    ]


async def saved(database: Any, chat: Conversation) -> _Backup:
    """Return a copy of all documents of a conversation."""
    stored = await Stored.of(chat, database)
    return {name: await stored.all(name) for name in ("heads", "log", "summaries")}


async def restore(database: Any, backup: _Backup) -> None:
    """Replace the stored documents of a conversation by a copy."""
    of_it = {"conversation": conversation_of(backup)}
    for name, documents in backup.items():
        await database[name].delete_many(of_it)
        for document in documents:
            await database[name].insert_one(dict(document))


class RestoreFixtures:
    """Fixtures of stores whose clock a test moves."""

    @pytest.fixture
    def seconds(self) -> list[float]:
        """The clock of the stores."""
        return [100.0]

    @pytest.fixture
    async def running(
        self, new_store: NewStore, seconds: list[float]
    ) -> AsyncIterator[Conversation]:
        """A conversation of a store that keeps running while a backup is restored."""
        store = new_store(clock=Clock(monotonic=lambda: seconds[0]))
        await store.setup()
        yield store.conversation(user_id=new_id(), thread_id="t")
        await store.close()

    @pytest.fixture
    async def backup(self, running: Conversation, database: Any) -> _Backup:
        """The conversation after 5 turns; the store goes on to 10 turns and loads them."""
        await talk(running, range(5))
        backup = await saved(database, running)
        await talk(running, range(5, 10))
        assert await texts(running) == [f"q{number}" for number in range(10)]
        return backup

    @pytest.fixture
    async def restored(self, running: Conversation, backup: _Backup, database: Any) -> Conversation:
        """Return the conversation as it was after 5 turns, while its store has cached 10."""
        await restore(database, backup)
        return running

    @pytest.fixture
    async def forked(self, running: Conversation, backup: _Backup, database: Any) -> Conversation:
        """Return the conversation as it was after 5 turns, with an 11th after the 10 that its store cached."""
        await talk(running, range(10, 11))
        last = await (await Stored.of(running, database)).entry(11)
        await restore(database, backup)
        await database["log"].insert_one(last)
        return running

    @pytest.fixture
    async def later(self, new_store: NewStore) -> ConversationStore:
        """A store for which all that is written in a test was written two days ago."""
        return new_store(clock=clock_ahead(timedelta(days=2)))


def conversation_of(backup: _Backup) -> str:
    """Return the id of the conversation in a backup."""
    return str(backup["log"][0]["conversation"])


def _log_findings(report: VerifyReport) -> list[tuple[str, bool, bool]]:
    """Return kind, repairable and repaired of each finding in the log; heads may be stale."""
    return [
        (finding.kind, finding.repairable, finding.repaired)
        for finding in report.findings
        if finding.collection == "log"
    ]


class RestoreContract(RestoreFixtures):
    """Promises about backups."""

    @pytest.mark.parametrize("idle", [10, 15])
    async def test_an_idle_store_appends_to_what_was_restored(
        self, restored: Conversation, seconds: list[float], idle: int
    ) -> None:
        """A cached tail older than 10 seconds is compared with the log before it is used."""
        seconds[0] += idle
        receipt = await restored.append(
            [HumanMessage("q", id=new_id()), AIMessage("a", id=new_id())]
        )
        assert (receipt.first, receipt.last) == (11, 12)
        expected = [*(f"q{number}" for number in range(5)), "q"]
        assert await texts(restored) == expected
        assert await _asked(restored) == expected
        assert (await restored.info()).message_count == 12

    @pytest.mark.parametrize("idle", [10, 15])
    async def test_an_idle_store_loads_what_was_restored(
        self, restored: Conversation, seconds: list[float], idle: int
    ) -> None:
        """After a restore, an idle store loads the restored log instead of its cache, and appends after it."""
        seconds[0] += idle
        assert await texts(restored) == [f"q{number}" for number in range(5)]
        assert (await restored.append(HumanMessage("q", id=new_id()))).first == 11

    @pytest.mark.parametrize("further", [3, 5, 9])
    async def test_an_idle_store_appends_to_what_others_went_on_with(
        self, restored: Conversation, seconds: list[float], further: int, new_store: NewStore
    ) -> None:
        """The store appends correctly if the log now has fewer entries than it knew of, as many, or more."""
        other = new_store().conversation(**restored.scope)
        await talk(other, range(20, 20 + further))
        seconds[0] += 11
        await restored.append(HumanMessage("q", id=new_id()))
        expected = [f"q{number}" for number in (*range(5), *range(20, 20 + further))]
        assert await texts(restored) == await texts(other) == [*expected, "q"]
        assert await _asked(restored) == [*expected, "q"]

    async def test_a_young_store_loads_what_others_went_on_with(
        self, restored: Conversation, new_store: NewStore
    ) -> None:
        """A load always reads the last entry, so it notices at once that the log was replaced."""
        await talk(new_store().conversation(**restored.scope), range(20, 25))
        expected = [f"q{number}" for number in (*range(5), *range(20, 25))]
        assert await texts(restored) == expected
        await restored.append(HumanMessage("q", id=new_id()))
        assert await texts(restored) == [*expected, "q"]

    async def test_a_rewind_after_a_restore_is_one_of_what_is_there(
        self, backup: _Backup, restored: Conversation, seconds: list[float]
    ) -> None:
        """The rewind entry follows the last stored entry, and appends follow the rewind entry."""
        seconds[0] += 11
        question = backup["log"][4]["messages"][0]["id"]
        assert await restored.rewind(before_id=question) == 2
        await restored.append(HumanMessage("q", id=new_id()))
        assert await texts(restored) == ["q0", "q1", "q2", "q3", "q"]

    async def test_a_hole_is_repaired(
        self, forked: Conversation, backup: _Backup, new_store: NewStore, later: ConversationStore
    ) -> None:
        """The remaining messages get a new log without gaps; the report has the lost ordinals."""
        user = forked.scope["user_id"]
        report = await later.verify(user_id=user)
        assert _log_findings(report) == [("hole", True, False)]
        report = await later.verify(user_id=user, repair=True)
        assert _log_findings(report) == [("hole", True, True)]
        [finding] = [finding for finding in report.findings if finding.kind == "hole"]
        assert (finding.lost_ordinals, finding.lost_source_ids) == ((11, 20), None)
        assert (finding.conversation, finding.repaired_as[:25]) == (
            conversation_of(backup),
            f"{conversation_of(backup)}@",
        )
        assert _log_findings(await later.verify(user_id=user)) == []
        expected = [*(f"q{number}" for number in range(5)), "q10"]
        other = new_store().conversation(**forked.scope)
        for chat in (other, forked, other):
            assert await texts(chat) == expected
            assert (await texts_of(chat))[::2] == expected
            assert [turn.number async for turn in chat.turns()] == [1, 2, 3, 4, 5, 6]
            newest = [turn.number async for turn in chat.turns(newest_first=True)]
            assert newest == [6, 5, 4, 3, 2, 1]
            ordinals = [message.ordinal for message in await chat.list_messages(limit=4)]
            assert ordinals == [9, 10, 11, 12]
        same = new_store().conversation(user_id=new_id(), thread_id="t")
        await same.append([message async for message in other.messages(rewound=True)])
        assert (await other.info()).message_count == 12
        assert (await other.info()).tokens == (await same.info()).tokens
        assert (await forked.append(HumanMessage("q", id=new_id()))).first == 13
        assert await texts(other) == await texts(forked) == [*expected, "q"]
        assert _log_findings(await later.verify(user_id=user)) == []
        found = await later.find_conversation(conversation_of(backup))
        assert found is not None
        assert found.scope == forked.scope

    async def test_a_fork_is_repaired(
        self,
        forked: Conversation,
        backup: _Backup,
        database: Any,
        new_store: NewStore,
        later: ConversationStore,
    ) -> None:
        """If other writers used the numbers of lost entries, their messages and all later ones are active."""
        stale = await (await Stored.of(forked, database)).entry(11)
        await restore(database, backup)
        other = new_store().conversation(**forked.scope)
        await talk(other, range(20, 24))
        await other.append(HumanMessage("q24", id=new_id()))
        await database["log"].insert_one(stale)
        user = forked.scope["user_id"]
        with pytest.raises(BrokenLogError, match="does not follow"):
            await texts(new_store().conversation(**forked.scope))
        report = await later.verify(user_id=user, repair=True)
        assert _log_findings(report) == [("fork", True, True)]
        assert _log_findings(await later.verify(user_id=user)) == []
        expected = [f"q{number}" for number in (*range(5), *range(20, 25), 10)]
        for chat in (other, forked, new_store().conversation(**forked.scope)):
            assert await texts(chat) == expected
            assert await _asked(chat) == expected
            assert [message.ordinal for message in await chat.list_messages(limit=50)] == [
                *range(1, 22)
            ]
        assert (await other.info()).message_count == 21
        assert (await other.append(HumanMessage("q", id=new_id()))).first == 22

    async def test_a_repaired_log_goes_on_like_any(
        self, forked: Conversation, new_store: NewStore, later: ConversationStore
    ) -> None:
        """An open turn of the repaired log can be answered, rewound and restored, and all counts stay right."""
        user = forked.scope["user_id"]
        await later.verify(user_id=user, repair=True)
        chat = new_store().conversation(**forked.scope)
        asked = [message async for message in chat.messages(rewound=True)][-2]
        assert await chat.rewind(before_id=str(asked.id)) == 2
        assert (await chat.info()).message_count == 10
        assert _log_findings(await later.verify(user_id=user)) == []
        assert await chat.undo_rewind() == 2
        assert await chat.undo_rewind() == 0
        await chat.append(HumanMessage("Go on.", id="t-1"))
        await chat.append([AIMessage("So.")], turn="t-1")
        assert await texts(chat) == [*(f"q{number}" for number in range(5)), "q10", "Go on."]
        assert await chat.rewind(before_id="t-1") == 2
        assert (await chat.reserve_source_ids(2)).start == 1
        assert _log_findings(await later.verify(user_id=user)) == []
        sealer = (await host_of(chat).services()).sealer
        for _ in range(2):
            await sealer.seal(tuple(chat.scope.items()))
            stores = [new_store(search_index=given) for given in (True, False)]
            found = [await store.conversation(**chat.scope).search("q10 q3 on") for store in stores]
            assert found[0] == found[1]
            assert {hit.turn_id for hit in found[0]} > {asked.id}
            await chat.append(HumanMessage("Go on with q3?", id=new_id()))

    async def test_a_log_is_repaired_twice(
        self, forked: Conversation, database: Any, later: ConversationStore, seconds: list[float]
    ) -> None:
        """If the repaired copy loses entries, its own copy keeps the first id of the conversation."""
        user = forked.scope["user_id"]
        await later.verify(user_id=user, repair=True)
        seconds[0] += 11
        await talk(forked, range(30, 34))
        await (await Stored.of(forked, database)).drop(8)
        report = await later.verify(user_id=user, repair=True)
        assert report.counts["hole"] == 1
        assert _log_findings(await later.verify(user_id=user)) == []
        assert await texts(forked) == [f"q{number}" for number in (*range(5), 10, 30, 32, 33)]
        assert (await forked.info()).message_count == 18

    async def test_a_hole_is_not_repaired_while_an_entry_can_not_be_read(
        self, forked: Conversation, database: Any, later: ConversationStore
    ) -> None:
        """A repair writes nothing while an unreadable entry may come back from a backup."""
        stored = await Stored.of(forked, database, later)
        await stored.change(3, {"$set": {"first": "x"}})
        before = await stored.all()
        report = await stored.verify(repair=True)
        assert _log_findings(report) == [("damaged", False, False), ("hole", False, False)]
        assert await stored.all() == before
