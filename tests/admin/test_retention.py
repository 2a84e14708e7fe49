"""Promise 12 on a real server: killed in the middle, raced by writers, with conversations of any size."""

from __future__ import annotations

import asyncio
import random
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from counting import STANDING, Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage
from programs import killed
from properties import parts
from pymongo import AsyncMongoClient

from convstore import ConversationStore, InvalidInputError, StoreUnavailableError
from convstore.admin import retention
from convstore.exceptions import CorruptDocumentError
from convstore.integration import host_of
from convstore.mongo import collection
from convstore.mongo.keys import repaired_id
from convstore.mongo.log import Log
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.clock import Clock
from convstore.summarization import HeadTailSummarizer
from convstore.testing.samples import rag_turn
from convstore.types import ErasureReceipt
from convstore.values.policy import CompactionRule

PARTS = ("log", "heads", "summaries", "annotations")
OLD, POLICY = timedelta(days=100), timedelta(days=90)
RULE = CompactionRule(max_tokens_before_summary=400, max_summary_tokens=100, keep_last_turns=1)


def at(moment: datetime) -> Clock:
    """A clock that stands still."""
    return Clock(now=lambda: moment)


@pytest.fixture
def database(emptied_database: Any) -> Any:
    """A database of its own, set up."""
    return emptied_database


async def sweep_at(database: Any, moment: datetime) -> None:
    """Sweep all that is due at a moment, as the command line does."""
    await ConversationStore(database, clock=at(moment)).prune(older_than=timedelta(days=9_000))


async def sweep(database: Any, *, start: timedelta = timedelta()) -> None:
    """The second sweep and the last one, each when it is due."""
    for due in (timedelta(seconds=90), timedelta(hours=25)):
        await sweep_at(database, datetime.now(UTC) + start + due)


async def fill(database: Any, user: str, *, conversations: int, turns: int = 3) -> None:
    """Conversations that were written to 100 days ago."""
    store = ConversationStore(
        database, clock=at(datetime.now(UTC) - OLD), summarizer=HeadTailSummarizer(RULE)
    )
    for number in range(conversations):
        chat = store.conversation(user_id=user, thread_id=f"t{number}")
        for turn in range(turns):
            messages = rag_turn(f"Question {turn} on whales?")
            await chat.append(messages)
            await chat.annotate(str(messages[0].id), rating=1)
        await chat.append([HumanMessage("why " * 400), AIMessage("so")])
        assert (await chat.compact(force=True)).status == "done"
    await store.close()


async def documents(database: Any) -> dict[str, int]:
    """Return the number of documents in each collection."""
    return {name: await database[name].count_documents({}) for name in PARTS}


@pytest.mark.slow
@pytest.mark.parametrize("call", ["erase", "prune"])
@pytest.mark.parametrize("part", parts(2))
async def test_who_is_killed_is_finished_by_the_next(
    database: Any, server_uri: str, call: str, part: slice
) -> None:
    """At whatever write it dies: the dry run counts all that is left, and calling again removes it."""
    points = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 17, 20][part]
    for point in points:
        await fill(database, f"u{point}", conversations=3, turns=1)
        past = ConversationStore(database, clock=at(datetime.now(UTC) - OLD))
        child = past.conversation(user_id=f"u{point}", thread_id="t0").child("m1", "call_1")
        await child.child("critic").append(rag_turn("And seals?"))
    await fill(database, "eve", conversations=1)
    codes = await killed(
        server_uri, database, *(f"{call} u{point} {2 * point - 1}" for point in points)
    )
    assert codes == [-signal.SIGKILL] * len(points)
    store = ConversationStore(database)
    for point in points:
        counted, removed = [
            await (
                store.erase(user_id=f"u{point}", dry_run=dry_run)
                if call == "erase"
                else store.prune(older_than=POLICY, user_id=f"u{point}", dry_run=dry_run)
            )
            for dry_run in (True, False)
        ]
        assert counted == removed, (point, counted, removed)
        assert removed.conversations <= 5
        assert (await store.list_conversations(user_id=f"u{point}")).conversations == []
    # Eve's are left, and tombstones until the last sweep.
    [head] = await database["heads"].find({"scope": {"$exists": True}}).to_list(None)
    assert head["scope"]["user_id"] == "eve"
    for name in PARTS[:1] + PARTS[2:]:
        assert await database[name].distinct("conversation") == [head["conversation"]]
    await sweep(database)
    assert (await documents(database))["heads"] == 1
    assert (await store.verify()).ok


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_to_a_policy(database: Any, server_uri: str) -> None:
    """Users return to conversations that a policy is about to end; every acknowledged append stays."""
    await fill(database, "ada", conversations=16, turns=1)
    await fill(database, "eve", conversations=5, turns=1)  # nobody comes back to these
    acknowledged: dict[str, list[str]] = {}

    async def come_back(client: Any, thread: str) -> None:
        chat = ConversationStore(client[database.name]).conversation(
            user_id="ada", thread_id=thread
        )
        for _ in range(random.randint(0, 3)):
            await chat.load_history()
        for number in range(2):
            message = HumanMessage("back", id=f"{thread}-{number}")
            await chat.append(message)
            acknowledged.setdefault(thread, []).append(str(message.id))

    async with AsyncMongoClient[dict[str, Any]](server_uri) as client:
        pruning = [
            ConversationStore(client[database.name]).prune(older_than=POLICY) for _ in range(3)
        ]
        receipts, *_ = await asyncio.gather(
            asyncio.gather(*pruning), *(come_back(client, f"t{number}") for number in range(16))
        )
    assert 5 <= sum([receipt.conversations for receipt in list[Any](receipts)]) <= 21
    await sweep(database)
    store = ConversationStore(database)
    assert len(acknowledged) == 16
    for thread, ids in acknowledged.items():
        log = [
            str(message.id)
            async for message in store.conversation(user_id="ada", thread_id=thread).messages()
        ]
        assert log[-2:] == ids
    assert (await store.verify()).findings == ()


@pytest.mark.slow
async def test_erasures_race_with_writers_and_each_other(database: Any) -> None:
    """Writers go on while their user is erased again and again: what is left is whole, and a last one takes it."""
    stores = [ConversationStore(database) for _ in range(4)]

    async def write(store: ConversationStore, thread: str) -> None:
        for number in range(15):
            await store.conversation(user_id="ada", thread_id=thread).append(
                rag_turn(f"Question {number} on whales?")
            )

    erasing = (store.erase(user_id="ada") for store in stores)
    await asyncio.gather(
        *(write(store, f"t{number}") for number, store in enumerate(stores)), *erasing
    )
    later = ConversationStore(database, clock=at(datetime.now(UTC) + timedelta(seconds=90)))
    await sweep_at(database, datetime.now(UTC) + timedelta(seconds=90))
    assert (await later.verify()).findings == ()
    await later.erase(user_id="ada")
    await sweep(database, start=timedelta(seconds=90))
    assert await documents(database) == dict.fromkeys(PARTS, 0)


@pytest.mark.slow
async def test_a_summary_that_comes_after_the_end_is_not_kept(database: Any) -> None:
    """A summarizer may take longer than the tombstone stays."""

    async def slow(messages: Any, summary: str | None) -> str:
        await ConversationStore(database).conversation(**scope).delete()
        await sweep(database)
        return "short"

    scope = {"user_id": "ada", "thread_id": "t"}
    chat = ConversationStore(database, summarizer=slow).conversation(**scope)
    for number in range(30):
        await chat.append([HumanMessage(f"{number} " + "why " * 2_000), AIMessage("so")])
    assert (await chat.compact(force=True)).status == "busy"
    assert await documents(database) == dict.fromkeys(PARTS, 0)


@pytest.mark.slow
async def test_a_huge_conversation_goes_in_pieces(
    database: Any, client: Client, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command removes more than a part of it, so none outlasts the wait for its answer."""
    monkeypatch.setattr(collection, "_DELETED_AT_ONCE", 10)
    await fill(database, "ada", conversations=1, turns=35)
    store = ConversationStore(client[database.name])
    store._host.schema.is_ready = True
    with commands.counted():
        receipt = await store.conversation(user_id="ada", thread_id="t0").delete()
    assert (receipt.entries, receipt.payload_chunks, receipt.annotations) == (36, 35, 35)
    log = [
        command
        for name, command in commands.sent
        if name == "delete" and command["delete"] == "log"
    ]
    assert len(log) == 9  # the state goes first, alone


@pytest.mark.slow
async def test_the_cost_of_an_end(database: Any, client: Client, commands: Commands) -> None:
    """Fourteen commands and three more for the sweep, whatever the conversation holds; none reads a document whole."""
    await fill(database, "ada", conversations=1, turns=20)
    store = ConversationStore(client[database.name])
    store._host.schema.is_ready = True
    with commands.counted():
        await store.conversation(user_id="ada", thread_id="t0").delete()
    assert len(commands.sent) <= 17
    assert commands.bytes < 2_400


@pytest.mark.slow
async def test_a_damaged_tail_does_not_keep_the_others(database: Any) -> None:
    """A conversation without a readable date stays and is named in the error; all others end."""
    await fill(database, "ada", conversations=3, turns=1)
    head = await database["heads"].find_one({"scope.thread_id": "t1"})
    key = f"{head['conversation']}:000000000002"
    await database["log"].update_one({"_id": key}, {"$set": {"at": 7}})
    store = ConversationStore(database)
    with pytest.raises(CorruptDocumentError, match=key):
        await store.prune(older_than=POLICY)
    [left] = (await store.list_conversations(everything=True)).conversations
    assert left.scope["thread_id"] == "t1"
    assert (await store.erase(user_id="ada")).conversations == 1


@pytest.mark.slow
async def test_lost_conversations_are_found_by_an_index(
    database: Any, client: Client, commands: Commands
) -> None:
    """However many conversations there are, a count takes three commands for each part of the ids, and one for heads.

    The server skips from one conversation to the next, and reads no entry.
    """
    store = ConversationStore(client[database.name])
    for number in range(40):
        chat = store.conversation(user_id="ada", thread_id=f"t{number}")
        await chat.append(HumanMessage("hi"))
        await chat.append(AIMessage("hi"))
    await database["heads"].delete_one({"scope.thread_id": "t7"})
    with commands.counted():
        assert (await store.erase(lost=True, dry_run=True)).conversations == 1
    assert len(commands.sent) <= 16 * 3 + 13
    query = {"conversation": {"$gte": "", "$lt": "\x7f"}, "first": {"$gte": 0}}
    explained = await database.command(
        "explain",
        {"distinct": "log", "key": "conversation", "query": query},
        verbosity="executionStats",
    )
    stats = explained["executionStats"]
    assert stats["totalDocsExamined"] == 0
    assert stats["totalKeysExamined"] <= 41


@pytest.mark.slow
async def test_many_ends_are_swept_at_once(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tombstones than are read together do not wait for as many minutes."""
    monkeypatch.setattr(retention, "_BATCH", 10)
    store = ConversationStore(database)
    for number in range(24):
        await store.conversation(user_id="ada", thread_id=f"t{number}").append(HumanMessage("hi"))
    assert (await store.erase(user_id="ada")).conversations == 24
    assert (await documents(database))["heads"] == 24
    await sweep(database)
    assert (await documents(database))["heads"] == 0


async def test_a_damaged_tombstone_does_not_stop_the_sweep(database: Any) -> None:
    """A tombstone with a damaged conversation id is swept too, because its key names the conversation."""
    heads = database["heads"]
    past = datetime.now(UTC) - timedelta(seconds=1)
    await heads.insert_one({"_id": "deleted:0123", "sweep_at": past, "conversation": 7})
    for hours in (0, 25):
        await sweep_at(database, datetime.now(UTC) + timedelta(hours=hours))
    assert await heads.count_documents({}) == 0


async def test_a_dry_run_removes_nothing(database: Any) -> None:
    """erase(dry_run=True) counts entries of a deleted conversation whose sweep is due, and removes nothing.

    The erasure itself then removes those entries.
    """
    store = ConversationStore(database)
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(rag_turn("What about whales?"))
    late = await database["log"].find({}).to_list(None)
    await chat.delete()
    await database["log"].insert_many(late)
    before = await documents(database)
    later = ConversationStore(database, clock=at(datetime.now(UTC) + timedelta(seconds=90)))
    counted = await later.erase(user_id="ada", dry_run=True)
    assert (counted.conversations, counted.entries) == (0, 1)
    assert await documents(database) == before
    assert (await later.erase(user_id="ada")).entries == 1


@pytest.mark.slow
async def test_progress_is_reported_after_each_batch(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt so far; the last one is the result."""
    monkeypatch.setattr(retention, "_BATCH", 2)
    store = ConversationStore(database, clock=at(datetime.now(UTC) - OLD))
    for number in range(5):
        await store.conversation(user_id="ada", thread_id=f"t{number}").append(HumanMessage("Hi"))
    await store.close()
    later, seen = ConversationStore(database), list[ErasureReceipt]()
    counted = await later.prune(older_than=POLICY, dry_run=True, progress=seen.append)
    erased = await later.erase(user_id="ada", progress=seen.append)
    assert [receipt.conversations for receipt in seen] == [2, 4, 5, 2, 4, 5]
    assert (seen[2], seen[5]) == (counted, erased)


async def test_what_the_longest_append_writes_late_is_swept(database: Any) -> None:
    """An append can write up to 75 seconds after a deletion, and the sweep removes even that entry.

    Ten seconds are for a cached id, 60 for the append, and five for its last insert.
    """
    now = datetime.now(UTC)
    chat = ConversationStore(database).conversation(user_id="ada", thread_id="t")
    await chat.append(HumanMessage("What about orcas?"))
    late = await database["log"].find_one({"count": 1})
    await ConversationStore(database, clock=at(now)).conversation(**chat.scope).delete()
    await sweep_at(database, now + timedelta(seconds=75))
    await database["log"].insert_one(late)
    await sweep_at(database, now + timedelta(seconds=81))
    assert (await documents(database))["log"] == 0


@pytest.mark.slow
async def test_a_tombstone_next_to_an_active_head_removes_nothing(database: Any) -> None:
    """A prune that lost to a writer leaves a tombstone; sweeps remove it, and nothing of the conversation."""
    store = ConversationStore(database)
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(rag_turn("What about orcas?"))
    tombstones, now = (await host_of(store).services()).retention.tombstones, datetime.now(UTC)
    head = await tombstones.find(chat.scope)
    assert head is not None
    stale = replace(head, updated_at=now - OLD)
    assert not await tombstones.write_tombstone(
        stale, sweep_after=timedelta(seconds=75), pruned=True
    )
    assert not await tombstones.is_ended(head.conversation)
    before = await documents(database)
    for late, left in (
        (timedelta(seconds=70), 1),
        (timedelta(seconds=90), 1),
        (timedelta(hours=25), 0),
    ):
        await sweep_at(database, now + late)
        assert await documents(database) == before | {"heads": 1 + left}
    assert (
        len((await ConversationStore(database).conversation(**chat.scope).load_history()).messages)
        == 4
    )
    await chat.delete()
    await sweep(database)
    assert set((await documents(database)).values()) == {0}


@pytest.mark.slow
async def test_a_tombstone_without_its_head_removes_what_came_late(database: Any) -> None:
    """Both sweeps remove entries that an append in flight added; the tombstone stays until the second."""
    chat = ConversationStore(database).conversation(user_id="ada", thread_id="t")
    await chat.append(HumanMessage("hi"))
    late, now = await database["log"].find({}).to_list(None), datetime.now(UTC)
    await chat.delete()
    tombstones = (await host_of(ConversationStore(database)).services()).retention.tombstones
    assert await tombstones.is_ended(late[0]["conversation"])
    for seconds, left in ((90, 1), (25 * 3600, 0)):
        await database["log"].insert_many(late)
        await sweep_at(database, now + timedelta(seconds=seconds))
        assert await documents(database) == dict.fromkeys(PARTS, 0) | {"heads": left}
    assert not await tombstones.is_ended(late[0]["conversation"])


async def live(database: Any) -> list[str]:
    """The ids of the conversations that exist."""
    return list(await database["heads"].distinct("conversation", {"scope": {"$exists": True}}))


async def due_conversations(database: Any, number: int) -> None:
    """Deleted conversations of Ada, each with an entry that came late, whose sweep is due by the server's clock."""
    store = ConversationStore(database)
    for value in range(number):
        await store.conversation(user_id="ada", thread_id=f"t{value}").append(HumanMessage("hi"))
    late = await database["log"].find({"count": 1}).to_list(None)
    await store.erase(user_id="ada")
    kept = await live(database)
    if late := [entry for entry in late if entry["conversation"] not in kept]:
        await database["log"].insert_many(late)
    await database["heads"].update_many(
        {"swept": False}, {"$set": {"sweep_at": datetime.now(UTC) - OLD}}
    )


@pytest.mark.slow
@pytest.mark.parametrize("call", ["append", "load", "delete"])
async def test_no_call_waits_for_a_sweep(
    database: Any, client: Client, commands: Commands, call: str
) -> None:
    """With many due, a call awaits the commands that it awaits with none; a task of its own then sweeps all."""
    counts = list[int]()
    for due in (0, 20):
        await due_conversations(database, due)
        seconds = [0.0]
        clock = replace(STANDING, now=lambda: datetime.now(UTC), monotonic=lambda: seconds[0])  # noqa: B023 - used here
        store = ConversationStore(client[database.name], clock=clock)
        chat = store.conversation(user_id="eve", thread_id=f"t{due}")
        await chat.append(HumanMessage("hi"))
        await chat.load_history()
        retention = (await host_of(store).services()).retention
        seconds[0] += 61
        calls = {
            "append": partial(chat.append, HumanMessage("more")),
            "load": chat.load_history,
            "delete": chat.delete,
        }
        with commands.counted():
            await calls[call]()
            counts.append(len(commands.own))
        await retention.background.wait()
    assert counts[0] == counts[1] > 0
    assert await database["heads"].count_documents({"swept": True}) >= 20
    assert (
        await database["log"].count_documents({"conversation": {"$nin": await live(database)}}) == 0
    )


async def test_a_sweep_is_eight_commands(database: Any, client: Client, commands: Commands) -> None:
    """A sweep sends eight commands for each tombstone, five of them range deletes, and two more in all.

    The server's clock decides which tombstones are due. A query that finds no due tombstone examines no index key.
    """
    await due_conversations(database, 5)
    store = ConversationStore(client[database.name])
    await store.setup()
    with commands.counted():
        await (await host_of(store).services()).retention.sweep()
    deletes = [command for name, command in commands.sent if name == "delete"]
    assert sorted(delete["delete"] for delete in deletes) == sorted(
        ["annotations", "drafts", "log", "search", "summaries"] * 5
    )
    assert len(commands.sent) == 5 * 8 + 2
    tombstones = (await host_of(store).services()).retention.tombstones
    query = await tombstones._times.is_past("sweep_at")
    plan = await database.command(
        {"explain": {"find": "heads", "filter": query}, "verbosity": "executionStats"}
    )
    assert plan["executionStats"]["totalKeysExamined"] == plan["executionStats"]["nReturned"] == 0


@pytest.mark.slow
async def test_an_erasure_finishes_its_own_sweeps_and_leaves_those_of_others(database: Any) -> None:
    """When erase() returns, the due sweeps of its scope are done. Sweeps of other scopes stay due for any process."""
    await due_conversations(database, 3)
    store = ConversationStore(database)
    await store.erase(user_id="eve")
    assert await database["heads"].count_documents({"swept": False}) == 3
    assert await database["log"].count_documents({}) == 3
    await store.erase(user_id="ada")
    assert await database["heads"].count_documents({"swept": False}) == 0
    assert await database["log"].count_documents({}) == 0


@pytest.mark.slow
async def test_two_processes_never_sweep_the_same(
    database: Any, client: Client, commands: Commands
) -> None:
    """The one that takes a conversation first has it for minutes; if it dies, the sweep is due again."""
    await due_conversations(database, 20)
    stores = [ConversationStore(client[database.name]) for _ in range(4)]
    for store in stores:
        store._host.schema.is_ready = True
        sweeper = (await host_of(store).services()).retention
        sweeper.background.start(sweeper.sweep_slowly)
    with commands.counted():
        for store in stores:
            await (await host_of(store).services()).retention.background.wait()
    log = [
        command
        for name, command in commands.sent
        if (name, command.get("delete")) == ("delete", "log")
    ]
    assert len(log) == 20
    taken = (await host_of(stores[0]).services()).retention.tombstones
    await database["heads"].update_many(
        {}, {"$set": {"sweep_at": datetime.now(UTC) - OLD, "swept": False}}
    )
    [conversation, *_] = await taken.due({}, limit=5)
    assert await taken.take(conversation, time=timedelta(milliseconds=100)) is not None
    assert await taken.take(conversation, time=timedelta(milliseconds=100)) is None
    await asyncio.sleep(0.2)
    assert await taken.take(conversation, time=timedelta(minutes=1)) is not None


@pytest.mark.slow
async def test_a_closed_store_stops_its_sweep_and_another_goes_on(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is closed during its sweep leaves the remaining tombstones due, and another store sweeps them."""
    monkeypatch.setattr(retention, "_PAUSE", 60)
    await due_conversations(database, 3)
    async with ConversationStore(database) as store:
        sweeper = (await host_of(store).services()).retention
        sweeper.background.start(sweeper.sweep_slowly)
        while not await database["heads"].count_documents({"swept": True}):  # noqa: ASYNC110 - a task of the store
            await asyncio.sleep(0.01)
    assert await database["heads"].count_documents({"swept": True}) == 1
    await ConversationStore(database).prune(older_than=POLICY)
    assert await database["heads"].count_documents({"swept": True}) == 3


async def test_a_sweep_that_fails_is_nobody_elses_error(
    database: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed background sweep fails no load and logs nothing."""
    seconds = [0.0]
    store = ConversationStore(database, clock=Clock(monotonic=lambda: seconds[0]))
    chat = store.conversation(user_id="eve", thread_id="t")
    await chat.append(HumanMessage("hi"))

    async def refuse(self: Any, *_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("no primary")

    monkeypatch.setattr(Tombstones, "due", refuse)
    seconds[0] += 61
    assert len((await chat.load_history()).messages) == 1
    await (await host_of(store).services()).retention.background.wait()
    assert caplog.records == []


async def test_an_age_before_all_time_is_refused(database: Any) -> None:
    """A policy of a million days is a mistake, and is said to be one."""
    with pytest.raises(InvalidInputError, match="before the year 1"):
        await ConversationStore(database).prune(older_than=timedelta(days=999_999))


async def test_an_append_that_began_before_a_deletion_is_deleted_with_it(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that read the tail before a deletion is deleted with it. The next append starts at number 1."""
    scope = {"user_id": "ada", "thread_id": "t"}
    chat = ConversationStore(database).conversation(**scope)
    await chat.append(rag_turn("What about seals?"))
    read = Log.last_totals

    async def read_and_end(self: Any, conversation: Any, **how: Any) -> Any:
        totals = await read(self, conversation, **how)
        monkeypatch.undo()
        await chat.delete()
        return totals

    monkeypatch.setattr(Log, "last_totals", read_and_end)
    await ConversationStore(database).conversation(**scope).append(rag_turn("And orcas?"))
    assert [message async for message in chat.messages(rewound=True)] == []
    receipt = await chat.append(rag_turn("And whales?"))
    assert (receipt.first, receipt.written) == (1, 4)
    assert [message.id async for message in chat.messages(rewound=True)] == list(
        receipt.message_ids
    )


async def test_a_tombstone_that_a_sweep_drops_before_the_head_is_removed_is_written_again(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep found the head and took the deletion for one that was interrupted."""
    await fill(database, "ada", conversations=1, turns=1)
    store = ConversationStore(database)
    tombstones = (await host_of(store).services()).writer._tombstones
    remove = collection.Collection.delete_one

    async def swept_first(heads: Any, query: Any) -> bool:
        await database["heads"].delete_many({"sweep_at": {"$exists": True}})
        return await remove(heads, query)

    monkeypatch.setattr(collection.Collection, "delete_one", swept_first)
    head = await tombstones.find({"user_id": "ada", "thread_id": "t0"})
    assert head is not None
    assert await tombstones.write_tombstone(head, sweep_after=timedelta(), pruned=False)
    assert await tombstones.is_ended(head.conversation)


async def test_a_tombstone_that_is_written_again_during_a_sweep_stays(database: Any) -> None:
    """The sweep that was under way does not count: late writers of the new deletion have their time."""
    await fill(database, "ada", conversations=1, turns=1)
    store, now = ConversationStore(database), datetime.now(UTC)
    tombstones = (await host_of(store).services()).writer._tombstones
    head = await tombstones.find({"user_id": "ada", "thread_id": "t0"})
    assert head is not None
    for swept in (False, True):
        await tombstones.write_tombstone(head, sweep_after=timedelta(), pruned=False)
        await database["heads"].update_one(
            {"sweep_at": {"$exists": True}}, {"$set": {"swept": swept}}
        )
        await asyncio.sleep(0.01)
        taken = await tombstones.take(head.conversation, time=timedelta(minutes=5))
        assert taken is not None
        await tombstones.write_tombstone(head, sweep_after=timedelta(seconds=80), pruned=False)
        await database["heads"].update_one(
            {"sweep_at": {"$exists": True}}, {"$set": {"sweep_at": now}}
        )
        await tombstones.swept(taken, again_after=timedelta(days=1))
        assert await tombstones.is_ended(head.conversation)
        assert await tombstones.due({}, limit=5) == [head.conversation]


async def test_a_count_of_what_an_erasure_removes_gives_no_repair_up(database: Any) -> None:
    """A copy that is being made can still replace its log."""
    await fill(database, "ada", conversations=1, turns=1)
    store = ConversationStore(database)
    tombstones = (await host_of(store).services()).retention.tombstones
    head = await database["heads"].find_one({})
    copy = repaired_id(head["conversation"], "0" * 24)
    assert await tombstones.begin_repair(head, copy, sweep_after=timedelta(hours=1))
    await store.erase(user_id="ada", dry_run=True)
    assert (await database["heads"].find_one({"_id": head["_id"]}))["copy"] == copy
    await store.erase(user_id="ada")
    assert await live(database) == []
