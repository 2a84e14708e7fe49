"""`verify`: what is whole is found whole, what is damaged is named, and what follows from the rest is mended.

Layer 6, part of the contract.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from convstore.conversation import Conversation
from convstore.models import Finding, VerifyReport
from convstore.policy import CompactionRule
from convstore.repository import Inspection
from convstore.services.known import ID_LIFETIME, Clock
from convstore.store import ConversationStore
from convstore.summarization import HeadTailSummarizer
from convstore.testing.samples import new_id, rag_turn

__all__ = ["SUMMARY_RULE", "VerifyContract", "fill_with_everything"]

_NewStore = Callable[..., ConversationStore]
_Kinds = list[tuple[str, str]]

SUMMARY_RULE = CompactionRule(max_tokens_before_summary=2_000, max_summary_tokens=500, keep_last_turns=1)
"""Of the summarizer of a store that `fill_with_everything` is given."""


async def fill_with_everything(chat: Conversation) -> None:
    """A conversation that has seen everything: 14 entries, five payloads, two summaries, two annotated messages."""
    await chat.append(SystemMessage("Be short.", id=new_id()))
    first = rag_turn("What about seals?")
    await chat.append(first[:1])
    await chat.append(first[1:])
    await chat.reserve_source_ids(5)
    for word in ("more ", "most "):
        await chat.append([HumanMessage(word * 1_000, id=new_id()), AIMessage(word * 9_000, id=new_id())])
        assert (await chat.compact(force=True)).status == "done"
    await chat.append([*rag_turn("And whales?"), *rag_turn("And orcas?")])
    regretted = [HumanMessage("Not this.", id=new_id()), AIMessage("No.", id=new_id())]
    await chat.append([AIMessage("By the way.", id=new_id()), *regretted])
    await chat.rewind(before=str(regretted[0].id))
    await chat.append(HumanMessage("Nor this.", id=new_id()))
    await chat.undo_rewind()
    await chat.rewind(before=str(regretted[1].id))
    usage: Any = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    await chat.append(AIMessage("Yes.", id=new_id(), usage_metadata=usage, response_metadata={"model_name": "m"}))
    await chat.append(AIMessage("Bye.", id=new_id()))
    for message in first[:2]:
        await chat.annotate(str(message.id), rating=1)
    await chat.update(title="Seals", metadata={"tags": ["sea"]})


def _kinds(report: VerifyReport) -> _Kinds:
    """What was found, and where; schema and indexes apart, which other tests look at."""
    return [(one.kind, one.document_id) for one in report.findings if not one.kind.startswith("index")]


async def _no_pause(seconds: float) -> None:
    """In the place of a wait between two looks."""


def _clock(ahead: timedelta) -> Clock:
    moment = datetime.now(UTC) + ahead
    return Clock(now=lambda: moment, sleep=_no_pause)


class VerifyContract:
    """`ConversationStore.verify`, a conversation at a time."""

    @pytest.fixture
    async def later(self, new_store: _NewStore) -> ConversationStore:
        """A store for which all that is written in a test was written two days ago."""
        return new_store(clock=_clock(timedelta(days=2)))

    @pytest.fixture
    async def full(self, new_store: _NewStore) -> Conversation:
        """A conversation with everything, alone with its user."""
        store = new_store(summarizer=HeadTailSummarizer(SUMMARY_RULE))
        await store.setup()
        chat = store.conversation(user_id=new_id(), thread_id="t")
        await fill_with_everything(chat)
        await store.close()
        return new_store().conversation(**chat.scope)

    async def id_of(self, database: Any, chat: Conversation) -> str:
        """The id that a conversation has in the log."""
        return str((await self.head_of(database, chat))["conversation"])

    async def head_of(self, database: Any, chat: Conversation) -> dict[str, Any]:
        """The head of a conversation, as it is stored."""
        query = {f"scope.{key}": value for key, value in chat.scope.items()}
        found: dict[str, Any] = await database["heads"].find_one(query)
        return found

    async def test_what_is_whole_is_found_whole(self, full: Conversation, later: ConversationStore) -> None:
        """Everything is counted and nothing is found, with results, large parts, summaries, rewinds, reservations."""
        report = await later.verify(user_id=full.scope["user_id"])
        assert _kinds(report) == []
        assert (report.conversations, report.entries, report.messages) == (1, 14, 23)
        assert (report.payload_chunks, report.summaries, report.annotations) == (5, 2, 2)

    async def test_it_changes_nothing_unless_told_to(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """A look leaves every document as it is, damaged ones too; so does a repair when all is well."""
        user, names = full.scope["user_id"], ("log", "heads", "summaries", "annotations")

        async def stored() -> list[Any]:
            return [await database[name].find({}).sort("_id", 1).to_list(None) for name in names]

        before = await stored()
        await later.verify(user_id=user, repair=True)
        assert await stored() == before
        await database["heads"].update_one({"scope.user_id": user}, {"$set": {"totals.live": 7}})
        damaged = await stored()
        assert not (await later.verify(user_id=user)).ok
        assert await stored() == damaged

    async def test_a_hole_is_named(self, full: Conversation, later: ConversationStore, database: Any) -> None:
        """By the number that is missing; the entries behind it are read all the same."""
        conversation = await self.id_of(database, full)
        await database["log"].delete_one({"_id": f"{conversation}:000000000002"})
        report = await later.verify(user_id=full.scope["user_id"])
        assert _kinds(report) == [("hole", f"{conversation}:000000000002")]
        assert report.entries == 13

    async def test_a_lost_end_is_told(self, full: Conversation, later: ConversationStore, database: Any) -> None:
        """The head was told of entries that are not there; a repair makes listings say what there is."""
        conversation = await self.id_of(database, full)
        head = await self.head_of(database, full)
        await database["log"].delete_one({"_id": f"{conversation}:000000000014"})
        report = await later.verify(user_id=full.scope["user_id"])
        assert _kinds(report) == [("head_totals", head["_id"])]
        assert "1 entries fewer" in report.findings[-1].problem
        assert (await later.verify(user_id=full.scope["user_id"], repair=True)).left == 0
        assert _kinds(await later.verify(user_id=full.scope["user_id"])) == []

    async def test_a_missing_payload_is_named(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """A stub that leads nowhere: the chunk, and the message that it is of."""
        conversation = await self.id_of(database, full)
        entry = await database["log"].find_one({"_id": f"{conversation}:000000000003"})
        [message] = [one for one in entry["messages"] if "payload" in one]
        key = f"{conversation}#{message['payload']['token']}#000000"
        await database["log"].delete_one({"_id": key})
        report = await later.verify(user_id=full.scope["user_id"])
        assert _kinds(report) == [("payload_missing", key)]
        assert message["id"] in report.findings[-1].problem
        assert (report.entries, report.payload_chunks) == (14, 4)

    @pytest.mark.parametrize(
        "change",
        [{"messages.1.body": "x"}, {"messages.1.digest": b"x" * 32}, {"messages.1.stub": "{}"}, {"totals.turns": 9}],
    )
    async def test_a_damaged_entry_is_named_once(
        self, full: Conversation, later: ConversationStore, database: Any, change: dict[str, Any]
    ) -> None:
        """It, and no entry behind it."""
        key = f"{await self.id_of(database, full)}:000000000003"
        await database["log"].update_one({"_id": key}, {"$set": change})
        report = await later.verify(user_id=full.scope["user_id"])
        assert {document for _, document in _kinds(report)} == {key}
        assert report.entries == 14

    async def test_heads_are_brought_back(self, full: Conversation, later: ConversationStore, database: Any) -> None:
        """What they repeat of the log is written anew; title and metadata stay; the finding says that it was done."""
        before, user = await full.info(), full.scope["user_id"]
        head = await self.head_of(database, full)
        damage = {"totals": "x", "start": [1], "updated_at": 7, "created_at": None}
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": damage})
        found = [one for one in (await later.verify(user_id=user)).findings if one.kind == "head"]
        assert [(one.document_id, one.repairable, one.repaired) for one in found] == [(head["_id"], True, False)]
        report = await later.verify(user_id=user, repair=True)
        assert [one.repaired for one in report.findings if one.kind == "head"] == [True]
        assert _kinds(await later.verify(user_id=user)) == []
        after = await full.info()
        entry = await database["log"].find_one({"_id": f"{head['conversation']}:000000000001"})
        assert after.model_copy(update={"created_at": before.created_at}) == before
        assert after.created_at == entry["at"].replace(tzinfo=UTC)

    async def test_a_head_that_was_not_told_is_told(self, full: Conversation, later: ConversationStore) -> None:
        """Of a process that died right after an append: listings are out of date, and a repair brings them up."""
        user = full.scope["user_id"]
        await full.append(HumanMessage("quick", id=new_id()))
        await full.append(HumanMessage("quick again", id=new_id()))
        [listed] = (await later.list_conversations(user_id=user)).conversations
        assert listed.message_count == 22
        report = await later.verify(user_id=user, repair=True)
        assert [(one.kind, one.repaired) for one in report.findings if one.kind == "head_behind"] == [
            ("head_behind", True)
        ]
        [listed] = (await later.list_conversations(user_id=user)).conversations
        assert listed.message_count == 23

    async def test_a_wrong_start_is_forgotten(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """A hint where the view begins that leads elsewhere is named and taken away."""
        head = await self.head_of(database, full)
        start = [head["totals"]["marker"], head["revision"], 3, 99, "x"]
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": {"start": start}})
        report = await later.verify(user_id=full.scope["user_id"], repair=True)
        assert _kinds(report) == [("head_start", head["_id"])]
        assert (await self.head_of(database, full))["start"] == [0, 0, 0, 0, ""]

    async def test_a_view_may_begin_inside_an_entry(
        self, new_store: _NewStore, later: ConversationStore, database: Any
    ) -> None:
        """Behind a summary that ends in the middle of a batch; what the head says of that is no finding."""
        rule = CompactionRule(max_tokens_before_summary=400, max_summary_tokens=100, keep_last_turns=1)
        store = new_store(summarizer=HeadTailSummarizer(rule))
        await store.setup()
        chat = store.conversation(user_id=new_id(), thread_id="t")
        questions = [HumanMessage("why " * count, id=new_id()) for count in (400, 400, 3)]
        await chat.append([one for asked in questions for one in (asked, AIMessage("So.", id=new_id()))])
        assert (await chat.compact()).status == "done"
        await chat.load_history()
        await chat.append(HumanMessage("more", id=new_id()))
        await store.close()
        assert (await self.head_of(database, chat))["start"][2:4] == [1, 5]
        assert _kinds(await later.verify(user_id=chat.scope["user_id"])) == []

    async def test_a_title_still_counts_as_use_after_a_repair(self, new_store: _NewStore, database: Any) -> None:
        """A head that was not told of the last entry is told, and not taken for older than it is."""
        user, days = new_id(), timedelta(days=1)
        old = new_store(clock=_clock(-100 * days))
        await old.setup()
        chat = old.conversation(user_id=user, thread_id="t")
        for _ in range(2):
            await chat.append(HumanMessage("hi", id=new_id()))
        titled = new_store(clock=_clock(-days)).conversation(**chat.scope)
        await titled.update(title="kept")
        then = (await self.head_of(database, chat))["updated_at"]
        report = await new_store(clock=_clock(0 * days)).verify(user_id=user, repair=True)
        assert _kinds(report) == [("head_behind", (await self.head_of(database, chat))["_id"])]
        assert (await self.head_of(database, chat))["updated_at"] == then

    @pytest.mark.parametrize("repair", [False, True])
    async def test_a_head_that_is_told_a_little_later_is_no_finding(
        self, new_store: _NewStore, database: Any, repair: bool
    ) -> None:
        """Dates do not tell whether somebody is at work, as in an import; a second look does, and overwrites nothing."""
        user, waited, stores = new_id(), list[float](), [new_store() for _ in range(3)]
        await stores[0].setup()
        chats = [store.conversation(user_id=user, thread_id=f"t{place}") for place, store in enumerate(stores)]
        for chat in chats:
            for _ in range(2):
                await chat.append(HumanMessage("hi", id=new_id()))

        async def meanwhile(seconds: float) -> None:
            waited.append(seconds)
            await stores[0].close()
            await chats[1].append(HumanMessage("more", id=new_id()))
            # As another process does whose counts are its own.
            await database["heads"].update_one({"_id": key}, {"$set": {"totals.live": 7}})

        key = (await self.head_of(database, chats[2]))["_id"]
        clock = Clock(now=lambda: datetime.now(UTC) + timedelta(days=2), sleep=meanwhile)
        report = await new_store(clock=clock).verify(user_id=user, repair=repair)
        assert (_kinds(report), len(waited)) == ([], 1)
        assert waited[0] > ID_LIFETIME
        assert (await self.head_of(database, chats[2]))["totals"]["live"] == 7

    async def test_what_is_whole_is_not_waited_for(self, full: Conversation, new_store: _NewStore) -> None:
        """There is no second look where the first one found nothing."""

        async def wait(seconds: float) -> None:
            raise AssertionError(seconds)

        clock = Clock(now=lambda: datetime.now(UTC) + timedelta(days=2), sleep=wait)
        assert (await new_store(clock=clock).verify(user_id=full.scope["user_id"])).entries == 14

    async def test_one_damaged_head_does_not_hide_the_others(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """A head that does not say what it is of is named, and can not be mended; the next is checked."""
        user = full.scope["user_id"]
        for thread in ("a", "b"):
            await full.store.conversation(user_id=user, thread_id=thread).append(HumanMessage("hi", id=new_id()))
        head = await self.head_of(database, full)
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": {"conversation": 7}})
        report = await later.verify(user_id=user, repair=True)
        assert _kinds(report) == [("head", head["_id"])]
        assert (report.conversations, report.left > 0) == (3, True)

    async def test_chunks_of_a_killed_append_are_removed_after_a_day(
        self, full: Conversation, new_store: _NewStore, later: ConversationStore, database: Any
    ) -> None:
        """Not before, as they may be on their way; those that entries refer to stay."""
        conversation, user = await self.id_of(database, full), full.scope["user_id"]
        keys = [f"{conversation}#{Clock().token()}#{number:06d}" for number in range(3)]
        await database["log"].insert_many([{"_id": key, "conversation": conversation, "data": b"x"} for key in keys])
        assert _kinds(await new_store().verify(user_id=user, repair=True)) == []
        assert sorted(_kinds(await later.verify(user_id=user))) == [("orphan_chunks", key) for key in sorted(keys)]
        assert (await later.verify(user_id=user, repair=True)).counts["orphan_chunks"] == 3
        report = await later.verify(user_id=user)
        assert (_kinds(report), report.payload_chunks) == ([], 5)
        assert len([message async for message in full.messages()]) == 23

    async def test_chunks_are_not_removed_while_an_entry_can_not_be_read(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """What seems orphaned may be what a damaged or missing entry refers to."""
        conversation = await self.id_of(database, full)
        before = await database["log"].count_documents({"conversation": conversation})
        await database["log"].delete_one({"_id": f"{conversation}:000000000003"})
        report = await later.verify(user_id=full.scope["user_id"], repair=True)
        assert sorted({kind for kind, _ in _kinds(report)}) == ["hole", "orphan_chunks"]
        assert await database["log"].count_documents({"conversation": conversation}) == before - 1

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
        """Whatever in an entry is not as it was: once a backup of it is brought back, all is whole."""
        store = new_store()
        await store.setup()
        chat = store.conversation(user_id=new_id(), thread_id="t")
        await chat.append(rag_turn("What about seals?"))
        await store.close()
        key = f"{await self.id_of(database, chat)}:000000000001"
        whole = await database["log"].find_one({"_id": key})
        await database["log"].update_one({"_id": key}, change)
        for _ in range(2):
            assert not (await later.verify(user_id=chat.scope["user_id"], repair=True)).ok
        await database["log"].replace_one({"_id": key}, whole)
        report = await later.verify(user_id=chat.scope["user_id"])
        assert (_kinds(report), report.payload_chunks) == ([], 1)

    async def test_chunks_are_not_removed_when_the_end_of_the_log_is_lost(
        self, new_store: _NewStore, later: ConversationStore, database: Any
    ) -> None:
        """The head was told of an entry that is not there, which what seems orphaned may belong to."""
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
        assert await database["log"].count_documents({"conversation": conversation}) == 3

    @pytest.mark.parametrize("change", [{"$unset": {"newest": 1}}, {"newest": "first"}, {"versions": 1}])
    async def test_summaries_are_not_removed_while_their_head_is_damaged(
        self, full: Conversation, later: ConversationStore, database: Any, change: dict[str, Any]
    ) -> None:
        """What seems unused may be what a damaged head led to."""
        conversation = await self.id_of(database, full)
        first = await database["summaries"].find_one({"conversation": conversation, "version": 1})
        if change.get("newest"):
            change = {"newest": first["token"]}
        key = (await self.head_of(database, full))["_id"]
        await database["heads"].update_one({"_id": key}, change if "$unset" in change else {"$set": change})
        report = await later.verify(user_id=full.scope["user_id"], repair=True)
        assert _kinds(report) == [("summary", key)]
        assert await database["summaries"].count_documents({"conversation": conversation}) == 2

    async def test_a_summary_that_was_set_aside_is_looked_for(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """A rewind set it aside, and it comes back with what was rewound; so its loss is told."""
        conversation, user = await self.id_of(database, full), full.scope["user_id"]
        await full.rewind(before=str((await full.list_messages(after=2, limit=1))[0].message.id))
        aside = (await self.head_of(database, full))["aside"]
        await full.store.close()
        assert (bool(aside), _kinds(await later.verify(user_id=user))) == (True, [])
        head, key = await self.head_of(database, full), f"{conversation}:{new_id()}"
        await database["heads"].update_one({"_id": head["_id"]}, {"$set": {"aside": key.partition(":")[2]}})
        assert _kinds(await later.verify(user_id=user)) == [("summary", key)]

    async def test_summaries_that_stand_for_nothing_are_named(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """A range that the log has not; one that nothing leads to goes when it is a day old."""
        conversation, user = await self.id_of(database, full), full.scope["user_id"]
        summaries = database["summaries"]
        [first, second] = await summaries.find({"conversation": conversation}).sort("version", 1).to_list(None)
        # Without a digest only what follows from the rest tells that something is wrong.
        unused = {**first, "_id": f"{conversation}:unused", "token": "unused"}
        del unused["digest"]
        await summaries.insert_one(unused)
        await summaries.update_one({"_id": first["_id"]}, {"$set": {"range": [1, 999, 5]}, "$unset": {"digest": ""}})
        found = set(_kinds(await later.verify(user_id=user, repair=True)))
        # The second one extends the first, so they do not agree any more.
        assert found - {("summary", second["_id"])} == {("summary", first["_id"]), ("summary_unused", unused["_id"])}
        left = await summaries.find({"conversation": conversation}).to_list(None)
        assert {one["_id"] for one in left} == {first["_id"], second["_id"]}
        await summaries.delete_one({"_id": first["_id"]})
        assert _kinds(await later.verify(user_id=user)) == [("summary", first["_id"])]

    async def test_annotations_of_nothing_are_named(
        self, full: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """And those that can not be read."""
        conversation, annotations = await self.id_of(database, full), database["annotations"]
        [one, _] = await annotations.find({"conversation": conversation}).sort("_id", 1).to_list(None)
        key = f"{conversation}:{99:012d}"
        await annotations.insert_one({**one, "_id": key, "ordinal": 99})
        await annotations.update_one({"_id": one["_id"]}, {"$set": {"values.rating": "{"}})
        report = await later.verify(user_id=full.scope["user_id"])
        assert _kinds(report) == [("damaged", one["_id"]), ("annotation", key)]

    async def test_running_writers_are_no_finding(self, new_store: _NewStore) -> None:
        """While turns are appended, rewound and deleted, and behind it, a check finds nothing and repairs nothing."""
        user, done, stores = new_id(), asyncio.Event(), list[ConversationStore]()
        await new_store().setup()

        async def write(thread: str) -> None:
            stores.append(new_store())
            chat = stores[-1].conversation(user_id=user, thread_id=thread)
            for number in range(12):
                turn = rag_turn(f"Question {number} on whales?")
                await chat.append(turn)
                if number % 4 == 3:
                    await chat.rewind(before=str(turn[-1].id))
                if number == 8 and thread == "t0":
                    await chat.delete()

        async def look() -> list[Finding]:
            found: list[Finding] = []
            while not done.is_set():
                found += (await new_store().verify(user_id=user, repair=True)).findings
                await asyncio.sleep(0)
            return [one for one in found if not one.kind.startswith("index")]

        looking = asyncio.create_task(look())
        await asyncio.gather(*(write(f"t{number}") for number in range(3)))
        done.set()
        assert await looking == []
        for store in stores:
            await store.close()
        ahead = new_store(clock=_clock(timedelta(minutes=5)))
        assert _kinds(await ahead.verify(user_id=user)) == []

    async def test_a_conversation_that_ends_meanwhile_is_no_finding(
        self, full: Conversation, later: ConversationStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its holes are not told."""
        read = Inspection.entries

        async def read_late(self: Inspection, conversation: str, *, after: str = "") -> Any:
            found = await read(self, conversation, after=after)
            monkeypatch.undo()
            await full.delete()
            return found

        monkeypatch.setattr(Inspection, "entries", read_late)
        assert _kinds(await later.verify(user_id=full.scope["user_id"])) == []

    async def test_artifacts_of_unknown_types_are_whole(self, new_store: _NewStore) -> None:
        """A check by a program that does not know the application's types reads over them."""

        class Ticket:
            def __init__(self, number: int) -> None:
                self.number = number

        store = new_store()
        await store.setup()
        store.register_artifact_type(Ticket, dump=lambda one: {"n": one.number}, load=lambda plain: Ticket(plain["n"]))
        turn: list[Any] = list(rag_turn("What about seals?"))
        turn[2].artifact = {"found": [Ticket(1), {Ticket(2)}], "raw": b"\x00" * 20_000}
        user = new_id()
        await store.conversation(user_id=user, thread_id="t").append(turn)
        assert _kinds(await new_store().verify(user_id=user)) == []

    async def test_progress_is_told(self, store: ConversationStore) -> None:
        """After each conversation, with the numbers so far."""
        user, seen = new_id(), list[int]()
        for number in range(3):
            await store.conversation(user_id=user, thread_id=f"t{number}").append(HumanMessage("hi", id=new_id()))
        await store.verify(user_id=user, progress=lambda report: seen.append(report.conversations))
        assert seen == [1, 2, 3]
