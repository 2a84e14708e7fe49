"""Tests of `verify` with `repair=True`: derived data is rebuilt, and data that a backup may need is kept."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from convstore.conversation import Conversation
from convstore.mongo.inspection import Inspection
from convstore.runtime.clock import Clock
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, rag_turn
from convstore.testing.verifying import VerifyFixtures, clock_ahead, kinds

__all__ = ["RepairContract"]


class RepairContract(VerifyFixtures):
    """Promises of `ConversationStore.verify` with `repair=True`."""

    async def test_heads_are_brought_back(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """Fields copied from the log are written again; title and metadata stay; the finding is marked as repaired."""
        before = await full.info()
        user = full.scope["user_id"]
        head = await self.head_of(database, full)
        damage = {"entry": "x", "written_at": 7, "updated_at": 7, "created_at": None}
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": damage})
        found = [
            finding
            for finding in (await later.verify(user_id=user)).findings
            if finding.kind == "head"
        ]
        assert [
            (finding.document_id, finding.repairable, finding.repaired) for finding in found
        ] == [(head["_id"], True, False)]
        report = await later.verify(user_id=user, repair=True)
        assert [finding.repaired for finding in report.findings if finding.kind == "head"] == [True]
        assert kinds(await later.verify(user_id=user)) == []
        after = await full.info()
        first, last = [
            (await database["log"].find_one({"_id": f"{head['conversation']}:{number:012d}"}))[
                "at"
            ].replace(tzinfo=UTC)
            for number in (1, 14)
        ]
        assert after == before.model_copy(update={"created_at": first, "updated_at": last})

    async def test_a_head_that_is_written_before_its_entry_is_damaged(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """Pruning trusts the date, so it is compared with that of the entry; the present is a safe date."""
        user = full.scope["user_id"]
        head = await self.head_of(database, full)
        early = {"written_at": head["written_at"] - timedelta(days=400)}
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": early})
        assert kinds(await later.verify(user_id=user)) == [("head_date", head["_id"])]
        report = await later.verify(user_id=user, repair=True)
        assert [(finding.kind, finding.repaired) for finding in report.findings] == [
            ("head_date", True)
        ]
        assert kinds(await later.verify(user_id=user)) == []
        assert (await self.head_of(database, full))["written_at"] >= head["written_at"]

    async def test_a_late_head_is_brought_to_its_place(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """A head left stale by a killed process is a finding, and a repair copies the date of the last entry."""
        user = full.scope["user_id"]
        head = await self.head_of(database, full)
        early = {"updated_at": head["updated_at"] - timedelta(hours=1)}
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": early})
        assert kinds(await later.verify(user_id=user)) == [("head_behind", head["_id"])]
        report = await later.verify(user_id=user, repair=True)
        assert [(finding.kind, finding.repaired) for finding in report.findings] == [
            ("head_behind", True)
        ]
        assert kinds(await later.verify(user_id=user)) == []
        last = await database["log"].find_one({"_id": f"{head['conversation']}:000000000014"})
        assert (await self.head_of(database, full))["updated_at"] == last["at"]

    async def test_a_title_still_counts_as_use_after_a_repair(
        self, new_store: NewStore, database: Any
    ) -> None:
        """A head that names a lost entry keeps its date."""
        user = new_id()
        days = timedelta(days=1)
        old = new_store(clock=clock_ahead(-100 * days))
        await old.setup()
        chat = old.conversation(user_id=user, thread_id="t")
        await chat.append(HumanMessage("hi", id=new_id()))
        titled = new_store(clock=clock_ahead(-days)).conversation(**chat.scope)
        await titled.update(title="kept")
        head = await self.head_of(database, chat)
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": {"entry.1": 7}})
        report = await new_store(clock=clock_ahead(0 * days)).verify(user_id=user, repair=True)
        assert kinds(report) == [("head_entry", head["_id"])]
        assert await self.head_of(database, chat) == head

    @pytest.mark.parametrize("repair", [False, True])
    async def test_a_head_that_is_refreshed_meanwhile_is_no_finding(
        self,
        full: Conversation,
        later: ConversationStore,
        database: Any,
        monkeypatch: pytest.MonkeyPatch,
        repair: bool,
    ) -> None:
        """A head that looks late is read again before it is reported, and a refreshed one is not overwritten."""
        head = await self.head_of(database, full)
        read = Inspection.entries
        early = {"updated_at": head["updated_at"] - timedelta(hours=1)}
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": early})

        async def read_late(self: Inspection, conversation: str, **options: Any) -> Any:
            await database["heads"].replace_one({"_id": head["_id"]}, head)
            return await read(self, conversation, **options)

        monkeypatch.setattr(Inspection, "entries", read_late)
        assert kinds(await later.verify(user_id=full.scope["user_id"], repair=repair)) == []
        assert await self.head_of(database, full) == head

    async def test_chunks_of_a_killed_append_are_removed_after_a_day(
        self, full: Conversation, new_store: NewStore, later: ConversationStore, database: Any
    ) -> None:
        """A repair removes orphaned chunks older than a day. Newer chunks and referenced chunks stay."""
        conversation = await self.id_of(database, full)
        user = full.scope["user_id"]
        keys = [f"{conversation}#{Clock().token()}#{number:06d}" for number in range(3)]
        await database["log"].insert_many(
            [{"_id": key, "conversation": conversation, "data": b"x"} for key in keys]
        )
        assert kinds(await new_store().verify(user_id=user, repair=True)) == []
        assert sorted(kinds(await later.verify(user_id=user))) == [
            ("orphan_chunks", key) for key in sorted(keys)
        ]
        assert (await later.verify(user_id=user, repair=True)).counts["orphan_chunks"] == 3
        report = await later.verify(user_id=user)
        assert (kinds(report), report.payload_chunks) == ([], 5)
        assert len([message async for message in full.messages(rewound=True)]) == 23

    async def test_a_replaced_log_stays_as_it_was(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """Chunks that only a missing entry leads to stay in it; its state alone is removed."""
        conversation = await self.id_of(database, full)
        await database["log"].delete_one({"_id": f"{conversation}:000000000003"})
        before = await database["log"].count_documents({"conversation": conversation})
        report = await later.verify(user_id=full.scope["user_id"], repair=True)
        assert [(kind, report.left) for kind, _ in kinds(report)] == [("hole", 0)]
        assert await database["log"].count_documents({"conversation": conversation}) == before - 1
        assert kinds(await later.verify(user_id=full.scope["user_id"])) == []

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
        self, new_store: NewStore, later: ConversationStore, database: Any, change: dict[str, Any]
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

    async def test_annotations_of_given_up_messages_are_removed(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """The repair that gives up the end of a log removes its annotations; no new message gets them."""
        conversation = await self.id_of(database, full)
        user = full.scope["user_id"]
        receipt = await full.append(HumanMessage("A question that is lost", id=new_id()))
        await full.annotate(receipt.message_ids[0], rating=1)
        key = f"{conversation}:{receipt.last:012d}"
        entry = f"{conversation}:000000000015"
        await database["log"].delete_one({"_id": entry})
        [found] = [
            finding
            for finding in (await later.verify(user_id=user)).findings
            if finding.kind == "annotation"
        ]
        assert (found.document_id, found.repairable, found.repaired) == (key, True, False)
        assert (await later.verify(user_id=user, repair=True)).ok
        assert kinds(await later.verify(user_id=user)) == []
        again = await later.conversation(**full.scope).append(
            HumanMessage("Another question", id=new_id())
        )
        assert again.last == receipt.last
        assert await later.conversation(**full.scope).annotations(again.message_ids) == {}

    async def test_annotations_are_kept_while_an_entry_is_damaged(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """Messages of an unreadable last entry are not given up."""
        conversation = await self.id_of(database, full)
        user = full.scope["user_id"]
        receipt = await full.append(HumanMessage("A question", id=new_id()))
        await full.annotate(receipt.message_ids[0], rating=1)
        entry = f"{conversation}:000000000015"
        await database["log"].update_one({"_id": entry}, {"$set": {"totals": 7}})
        await later.verify(user_id=user, repair=True)
        assert (
            await database["annotations"].count_documents(
                {"_id": f"{conversation}:{receipt.last:012d}"}
            )
            == 1
        )

    async def test_chunks_are_not_removed_when_the_end_of_the_log_is_lost(
        self, new_store: NewStore, later: ConversationStore, database: Any
    ) -> None:
        """The head names an entry that is missing; chunks that seem orphaned may belong to it."""
        seconds = [0.0]
        store = new_store(clock=Clock(monotonic=lambda: seconds[0]))
        await store.setup()
        chat = store.conversation(user_id=new_id(), thread_id="t")
        await chat.append(rag_turn("What about seals?"))
        seconds[0] += 11
        await chat.append(rag_turn("And whales?"))
        await store.close()
        conversation = await self.id_of(database, chat)
        await database["log"].delete_one({"_id": f"{conversation}:000000000002"})
        report = await later.verify(user_id=chat.scope["user_id"], repair=True)
        assert sorted(report.counts) == ["head_entry", "orphan_chunks"]
        assert await database["log"].count_documents({"conversation": conversation}) == 4

    @pytest.mark.parametrize(
        "change", [{"$unset": {"newest": 1}}, {"newest": "first"}, {"versions": 1}]
    )
    async def test_summaries_are_not_removed_while_their_state_is_damaged(
        self, full: Conversation, later: ConversationStore, database: Any, change: dict[str, Any]
    ) -> None:
        """A summary that seems unused may be one that a damaged state referred to."""
        conversation = await self.id_of(database, full)
        first = await database["summaries"].find_one({"conversation": conversation, "version": 1})
        if change.get("newest"):
            change = {"newest": first["token"]}
        key = f"{conversation}:~"
        await database["log"].update_one(
            {"_id": key}, change if "$unset" in change else {"$set": change}
        )
        report = await later.verify(user_id=full.scope["user_id"], repair=True)
        assert kinds(report) == [("state" if "$unset" in change else "summary", key)]
        assert await database["summaries"].count_documents({"conversation": conversation}) == 2
