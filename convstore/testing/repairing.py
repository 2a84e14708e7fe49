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
from convstore.testing.fixtures import NewStore, NextCall, texts_of
from convstore.testing.samples import new_id, rag_turn
from convstore.testing.stored import Stored, kinds
from convstore.testing.verifying import VerifyFixtures, clock_ahead

__all__ = ["RepairContract"]


class RepairContract(VerifyFixtures):
    """Promises of `ConversationStore.verify` with `repair=True`."""

    async def test_heads_are_brought_back(self, stored: Stored) -> None:
        """Fields derived from the log are written again; title and metadata stay; the finding is marked as repaired."""
        before = await stored.chat.info()
        head = await stored.head()
        await stored.set_head({"entry": "x", "written_at": 7, "updated_at": 7, "created_at": None})
        [found] = (await stored.verify()).findings
        assert (found.kind, found.document_id) == ("head", head["_id"])
        assert (found.repairable, found.repaired) == (True, False)
        [found] = (await stored.verify(repair=True)).findings
        assert (found.kind, found.repaired) == ("head", True)
        assert await stored.found() == []
        first, last = [(await stored.entry(number))["at"].replace(tzinfo=UTC) for number in (1, 14)]
        dates = {"created_at": first, "updated_at": last}
        assert await stored.chat.info() == before.model_copy(update=dates)

    async def test_a_head_that_is_written_before_its_entry_is_damaged(self, stored: Stored) -> None:
        """A head's date is compared with that of its entry, because `prune` relies on it. A repair sets it to now."""
        head = await stored.head()
        await stored.set_head({"written_at": head["written_at"] - timedelta(days=400)})
        for repair in (False, True):
            assert await stored.found(repair=repair) == [("head_date", head["_id"])]
        assert await stored.found() == []
        assert (await stored.head())["written_at"] >= head["written_at"]

    async def test_a_late_head_is_brought_to_its_place(self, stored: Stored) -> None:
        """A head left stale by a killed process is a finding, and a repair copies the date of the last entry."""
        head = await stored.head()
        await stored.set_head({"updated_at": head["updated_at"] - timedelta(hours=1)})
        for repair in (False, True):
            assert await stored.found(repair=repair) == [("head_behind", head["_id"])]
        assert await stored.found() == []
        assert (await stored.head())["updated_at"] == (await stored.entry(14))["at"]

    async def test_a_title_still_counts_as_use_after_a_repair(
        self, new_store: NewStore, database: Any
    ) -> None:
        """A head that refers to a lost entry keeps its date."""
        days = timedelta(days=1)
        old = new_store(clock=clock_ahead(-100 * days))
        await old.setup()
        chat = old.conversation(user_id=new_id(), thread_id="t")
        await chat.append(HumanMessage("hi", id=new_id()))
        titled = new_store(clock=clock_ahead(-days)).conversation(**chat.scope)
        await titled.update(title="kept")
        stored = await Stored.of(chat, database, new_store(clock=clock_ahead(0 * days)))
        head = await stored.head()
        await stored.set_head({"entry.1": 7})
        assert await stored.found(repair=True) == [("head_entry", head["_id"])]
        assert await stored.head() == head

    @pytest.mark.parametrize("repair", [False, True])
    async def test_a_head_that_is_refreshed_meanwhile_is_no_finding(
        self, stored: Stored, database: Any, next_call: NextCall, repair: bool
    ) -> None:
        """A head that looks late is read again before it is reported, and a refreshed one is not overwritten."""
        head = await stored.head()
        await stored.set_head({"updated_at": head["updated_at"] - timedelta(hours=1)})
        next_call(
            Inspection,
            "entries",
            before=lambda: database["heads"].replace_one({"_id": head["_id"]}, head),
        )
        assert await stored.found(repair=repair) == []
        assert await stored.head() == head

    async def test_chunks_of_a_killed_append_are_removed_after_a_day(
        self, stored: Stored, store: ConversationStore, database: Any
    ) -> None:
        """A repair removes orphaned chunks older than a day. Newer chunks and referenced chunks stay."""
        conversation = stored.conversation
        keys = sorted(f"{conversation}#{Clock().token()}#{number:06d}" for number in range(3))
        await database["log"].insert_many(
            [{"_id": key, "conversation": conversation, "data": b"x"} for key in keys]
        )
        assert kinds(await store.verify(user_id=stored.user, repair=True)) == []
        assert sorted(await stored.found()) == [("orphan_chunks", key) for key in keys]
        assert (await stored.verify(repair=True)).counts["orphan_chunks"] == 3
        report = await stored.verify()
        assert (kinds(report), report.payload_chunks) == ([], 5)
        assert len(await texts_of(stored.chat)) == 23

    async def test_a_replaced_log_stays_as_it_was(self, stored: Stored) -> None:
        """The replaced log keeps its chunks, even those of missing entries; only its state is removed."""
        await stored.drop(3)
        before = await stored.all()
        report = await stored.verify(repair=True)
        assert [(kind, report.left) for kind, _ in kinds(report)] == [("hole", 0)]
        assert len(await stored.all()) == len(before) - 1
        assert await stored.found() == []

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
        self, alone: Conversation, later: ConversationStore, database: Any, change: dict[str, Any]
    ) -> None:
        """A repair keeps the chunks of a damaged entry, so that a backup of the entry completes the log."""
        await alone.append(rag_turn("What about seals?", sources=9))
        await alone.store.close()
        stored = await Stored.of(alone, database, later)
        whole = await stored.entry(1)
        await stored.change(1, change)
        for _ in range(2):
            assert not (await stored.verify(repair=True)).ok
        await database["log"].replace_one({"_id": stored.key(1)}, whole)
        report = await stored.verify()
        assert (kinds(report), report.payload_chunks) == ([], 1)

    async def test_annotations_of_given_up_messages_are_removed(self, stored: Stored) -> None:
        """The repair that gives up the end of a log removes its annotations, so that new messages do not get them."""
        chat = stored.chat
        receipt = await chat.append(HumanMessage("A question that is lost", id=new_id()))
        await chat.annotate(receipt.message_ids[0], rating=1)
        await stored.drop(15)
        findings = (await stored.verify()).findings
        [found] = [finding for finding in findings if finding.kind == "annotation"]
        assert found.document_id == stored.key(receipt.last)
        assert (found.repairable, found.repaired) == (True, False)
        assert (await stored.verify(repair=True)).ok
        assert await stored.found() == []
        chat = stored.verifier.conversation(**chat.scope)
        again = await chat.append(HumanMessage("Another question", id=new_id()))
        assert again.last == receipt.last
        assert await chat.annotations(again.message_ids) == {}

    async def test_annotations_are_kept_while_an_entry_is_damaged(self, stored: Stored) -> None:
        """Annotations of an unreadable last entry are kept."""
        receipt = await stored.chat.append(HumanMessage("A question", id=new_id()))
        await stored.chat.annotate(receipt.message_ids[0], rating=1)
        await stored.change(15, {"$set": {"totals": 7}})
        await stored.verify(repair=True)
        kept = await stored.all("annotations")
        assert stored.key(receipt.last) in [document["_id"] for document in kept]

    async def test_chunks_are_not_removed_when_the_end_of_the_log_is_lost(
        self, new_store: NewStore, later: ConversationStore, database: Any
    ) -> None:
        """If the head refers to a missing entry, chunks that seem orphaned are kept, because they may belong to it."""
        seconds = [0.0]
        store = new_store(clock=Clock(monotonic=lambda: seconds[0]))
        await store.setup()
        chat = store.conversation(user_id=new_id(), thread_id="t")
        await chat.append(rag_turn("What about seals?"))
        seconds[0] += 11
        await chat.append(rag_turn("And whales?"))
        await store.close()
        stored = await Stored.of(chat, database, later)
        await stored.drop(2)
        report = await stored.verify(repair=True)
        assert sorted(report.counts) == ["head_entry", "orphan_chunks"]
        assert len(await stored.all()) == 4

    @pytest.mark.parametrize(
        ("change", "found"),
        [
            ({"$unset": {"newest": 1}}, "state"),
            ({"$set": {"newest": "first"}}, "summary"),
            ({"$set": {"versions": 1}}, "summary"),
        ],
    )
    async def test_summaries_are_not_removed_while_their_state_is_damaged(
        self, stored: Stored, change: dict[str, Any], found: str
    ) -> None:
        """A summary that seems unused may be one that a damaged state referred to."""
        summaries = await stored.all("summaries")
        if change.get("$set", {}).get("newest"):
            [first] = [summary for summary in summaries if summary["version"] == 1]
            change = {"$set": {"newest": first["token"]}}
        await stored.change(stored.state_key, change)
        assert await stored.found(repair=True) == [(found, stored.state_key)]
        assert await stored.all("summaries") == summaries
