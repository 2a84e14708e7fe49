"""`verify` with `repair`: derived data is written again, and nothing is removed that a backup may need.

Floor 7, part of the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from convstore.conversation import Conversation
from convstore.runtime.clock import ID_LIFETIME, Clock
from convstore.store import ConversationStore
from convstore.testing.samples import new_id, rag_turn
from convstore.testing.verifying import VerifyFixtures, clock_ahead, kinds

__all__ = ["RepairContract"]

_NewStore = Callable[..., ConversationStore]


class RepairContract(VerifyFixtures):
    """Promises of `ConversationStore.verify` with `repair=True`."""

    async def test_heads_are_brought_back(self, full: Conversation, later: ConversationStore, database: Any) -> None:
        """Fields copied from the log are written again; title and metadata stay; the finding is marked as repaired."""
        before, user = await full.info(), full.scope["user_id"]
        head = await self.head_of(database, full)
        damage = {"totals": "x", "start": [1], "updated_at": 7, "created_at": None}
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": damage})
        found = [one for one in (await later.verify(user_id=user)).findings if one.kind == "head"]
        assert [(one.document_id, one.repairable, one.repaired) for one in found] == [(head["_id"], True, False)]
        report = await later.verify(user_id=user, repair=True)
        assert [one.repaired for one in report.findings if one.kind == "head"] == [True]
        assert kinds(await later.verify(user_id=user)) == []
        after = await full.info()
        entry = await database["log"].find_one({"_id": f"{head['conversation']}:000000000001"})
        assert after.model_copy(update={"created_at": before.created_at}) == before
        assert after.created_at == entry["at"].replace(tzinfo=UTC)

    async def test_a_stale_head_is_refreshed(self, full: Conversation, later: ConversationStore, database: Any) -> None:
        """Of a process that died right after an append: listings read the log, until a repair closes the head."""
        user = full.scope["user_id"]
        await full.append(HumanMessage("quick", id=new_id()))
        await full.append(HumanMessage("quick again", id=new_id()))
        [listed] = (await later.list_conversations(user_id=user)).conversations
        assert listed.message_count == 23
        assert (await self.head_of(database, full))["totals"]["active"] == 22
        report = await later.verify(user_id=user, repair=True)
        assert [(one.kind, one.repaired) for one in report.findings if one.kind == "head_behind"] == [
            ("head_behind", True)
        ]
        head = await self.head_of(database, full)
        assert (head["totals"]["active"], "open_until" in head, "open_by" in head) == (23, False, False)
        [listed] = (await later.list_conversations(user_id=user)).conversations
        assert listed.message_count == 23

    async def test_a_wrong_start_is_forgotten(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """A hint where the view begins that leads elsewhere is named and taken away."""
        head = await self.head_of(database, full)
        start = [head["totals"]["rewind_entry"], 0, 3, 99, 0, 0, 0, "x", "", []]
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": {"start": start}})
        report = await later.verify(user_id=full.scope["user_id"], repair=True)
        assert kinds(report) == [("head_start", head["_id"])]
        assert (await self.head_of(database, full))["start"] == [*[0] * 7, "", "", []]

    async def test_a_title_still_counts_as_use_after_a_repair(self, new_store: _NewStore, database: Any) -> None:
        """A head without the last entry is refreshed, and does not count as older than it is."""
        user, days = new_id(), timedelta(days=1)
        old = new_store(clock=clock_ahead(-100 * days))
        await old.setup()
        chat = old.conversation(user_id=user, thread_id="t")
        for _ in range(2):
            await chat.append(HumanMessage("hi", id=new_id()))
        titled = new_store(clock=clock_ahead(-days)).conversation(**chat.scope)
        await titled.update(title="kept")
        then = (await self.head_of(database, chat))["updated_at"]
        report = await new_store(clock=clock_ahead(0 * days)).verify(user_id=user, repair=True)
        assert kinds(report) == [("head_behind", (await self.head_of(database, chat))["_id"])]
        assert (await self.head_of(database, chat))["updated_at"] == then

    @pytest.mark.parametrize("repair", [False, True])
    async def test_a_head_that_is_refreshed_a_little_later_is_no_finding(
        self, new_store: _NewStore, database: Any, repair: bool
    ) -> None:
        """Dates do not say whether somebody is at work, a second look does; and it overwrites nothing."""
        user, waited, stores = new_id(), list[float](), [new_store() for _ in range(3)]
        await stores[0].setup()
        chats = [store.conversation(user_id=user, thread_id=f"t{index}") for index, store in enumerate(stores)]
        for chat in chats:
            for _ in range(2):
                await chat.append(HumanMessage("hi", id=new_id()))

        async def meanwhile(seconds: float) -> None:
            waited.append(seconds)
            await stores[0].close()
            await chats[1].append(HumanMessage("more", id=new_id()))
            # As another process does whose counts are its own.
            await database["heads"].update_one({"_id": key}, {"$set": {"totals.active": 7}})

        key = (await self.head_of(database, chats[2]))["_id"]
        clock = Clock(now=lambda: datetime.now(UTC) + timedelta(days=2), sleep=meanwhile)
        report = await new_store(clock=clock).verify(user_id=user, repair=repair)
        assert (kinds(report), len(waited)) == ([], 1)
        assert waited[0] > ID_LIFETIME
        assert (await self.head_of(database, chats[2]))["totals"]["active"] == 7

    async def test_what_is_whole_is_not_waited_for(self, full: Conversation, new_store: _NewStore) -> None:
        """There is no second look where the first one found nothing."""

        async def wait(seconds: float) -> None:
            raise AssertionError(seconds)

        clock = Clock(now=lambda: datetime.now(UTC) + timedelta(days=2), sleep=wait)
        assert (await new_store(clock=clock).verify(user_id=full.scope["user_id"])).entries == 14

    async def test_chunks_of_a_killed_append_are_removed_after_a_day(
        self, full: Conversation, new_store: _NewStore, later: ConversationStore, database: Any
    ) -> None:
        """Not before, as they may be on their way; those that entries refer to stay."""
        conversation, user = await self.id_of(database, full), full.scope["user_id"]
        keys = [f"{conversation}#{Clock().token()}#{number:06d}" for number in range(3)]
        await database["log"].insert_many([{"_id": key, "conversation": conversation, "data": b"x"} for key in keys])
        assert kinds(await new_store().verify(user_id=user, repair=True)) == []
        assert sorted(kinds(await later.verify(user_id=user))) == [("orphan_chunks", key) for key in sorted(keys)]
        assert (await later.verify(user_id=user, repair=True)).counts["orphan_chunks"] == 3
        report = await later.verify(user_id=user)
        assert (kinds(report), report.payload_chunks) == ([], 5)
        assert len([message async for message in full.messages()]) == 23

    async def test_chunks_are_not_removed_while_an_entry_is_missing(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """Chunks that seem orphaned belong to the missing entry; the run that replaces the entry keeps them."""
        conversation = await self.id_of(database, full)
        before = await database["log"].count_documents({"conversation": conversation})
        await database["log"].delete_one({"_id": f"{conversation}:000000000003"})
        report = await later.verify(user_id=full.scope["user_id"], repair=True)
        assert sorted({kind for kind, _ in kinds(report)}) == ["hole", "orphan_chunks"]
        assert (report.counts["hole"], report.left) == (1, report.counts["orphan_chunks"])
        # One entry replaces the missing one, and one has the recomputed totals.
        assert await database["log"].count_documents({"conversation": conversation}) == before + 1

    @pytest.mark.parametrize(
        "change",
        [
            {"$set": {"messages.2.payload.token": "0" * 24}},
            {"$set": {"messages.2.payload": None}},
            {"$unset": {"messages.2.payload": 1}},
            {"$unset": {"messages.2.payload": 1, "messages.2.stub": 1}},
            {"$set": {"messages": []}},
            {"$set": {"messages.2.body": "x"}},
        ],
    )
    async def test_chunks_are_not_removed_while_an_entry_is_damaged(
        self, new_store: _NewStore, later: ConversationStore, database: Any, change: dict[str, Any]
    ) -> None:
        """Repairs keep its chunks, so that the log is whole again once the entry is restored from a backup."""
        store = new_store()
        await store.setup()
        chat = store.conversation(user_id=new_id(), thread_id="t")
        await chat.append(rag_turn("What about seals?", sources=9))
        await store.close()
        key = f"{await self.id_of(database, chat)}:000000000001"
        whole = await database["log"].find_one({"_id": key})
        await database["log"].update_one({"_id": key}, change)
        for _ in range(2):
            assert not (await later.verify(user_id=chat.scope["user_id"], repair=True)).ok
        await database["log"].replace_one({"_id": key}, whole)
        report = await later.verify(user_id=chat.scope["user_id"])
        assert (kinds(report), report.payload_chunks) == ([], 1)

    async def test_chunks_are_not_removed_when_the_end_of_the_log_is_lost(
        self, new_store: _NewStore, later: ConversationStore, database: Any
    ) -> None:
        """The head counts an entry that is missing; chunks that seem orphaned may belong to it."""
        store = new_store()
        await store.setup()
        chat = store.conversation(user_id=new_id(), thread_id="t")
        await chat.append(rag_turn("What about seals?"))
        await chat.append(rag_turn("And whales?"))
        await store.close()
        conversation = await self.id_of(database, chat)
        await database["log"].delete_one({"_id": f"{conversation}:000000000002"})
        report = await later.verify(user_id=chat.scope["user_id"], repair=True)
        assert sorted(report.counts) == ["head_totals", "orphan_chunks"]
        assert await database["log"].count_documents({"conversation": conversation}) == 4

    @pytest.mark.parametrize("change", [{"$unset": {"newest": 1}}, {"newest": "first"}, {"versions": 1}])
    async def test_summaries_are_not_removed_while_their_state_is_damaged(
        self, full: Conversation, later: ConversationStore, database: Any, change: dict[str, Any]
    ) -> None:
        """A summary that seems unused may be one that a damaged state referred to."""
        conversation = await self.id_of(database, full)
        first = await database["summaries"].find_one({"conversation": conversation, "version": 1})
        if change.get("newest"):
            change = {"newest": first["token"]}
        key = f"{conversation}:~"
        await database["log"].update_one({"_id": key}, change if "$unset" in change else {"$set": change})
        report = await later.verify(user_id=full.scope["user_id"], repair=True)
        assert kinds(report) == [("state" if "$unset" in change else "summary", key)]
        assert await database["summaries"].count_documents({"conversation": conversation}) == 2
