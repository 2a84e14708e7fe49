"""`ConversationStore.verify` on a real server: damage in every field, lost heads, leftovers, schema, memory."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from counting import Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from properties import parts
from stored_values import at, changed, paths, shape

from convstore import ConversationStore, HistoryPolicy
from convstore.exceptions import SchemaVersionError
from convstore.mongo import inspection
from convstore.mongo.driver import Driver
from convstore.mongo.keys import HEADS, LOG, MIGRATIONS
from convstore.runtime.clock import Clock
from convstore.summarization import HeadTailSummarizer
from convstore.testing.samples import rag_turn
from convstore.testing.verifying import SUMMARY_RULE, fill_with_everything
from convstore.types import Finding, VerifyReport
from convstore.verify.findings import Findings
from convstore.verify.schema import SchemaCheck


async def no_pause(seconds: float) -> None:
    """In the place of a wait between two looks."""


LATER = Clock(now=lambda: datetime.now(UTC) + timedelta(days=2), sleep=no_pause)
PARTS = ("log", "heads", "summaries", "annotations")

ENTRIES = ("02", "03", "04", "09", "10", "14")
"""Entries of the log that are damaged, besides chunks: one of each kind."""

# Another value of these cannot be noticed: they are stored once, and nothing depends on them.
FREE = {
    "log": set(),
    "heads": {"written_at"},  # `prune` compares it with two other dates
    "summaries": set(),
    "annotations": {"at"},
}
FREE["state"] = {"at", "changes", "failures", "revision"}
FREE["log"] |= {
    "totals.counter",  # a wrong name costs a count of the messages
    "messages.tool",
    "messages.payload.size",
    "messages.payload.identity",
    "totals.sources_through",
}


@pytest.fixture
async def database(own_database: Any) -> Any:
    """A database of its own, not set up."""
    return own_database


@pytest.fixture
async def store(database: Any) -> ConversationStore:
    """A store that is set up, for which all that a test writes is two days old."""
    store = ConversationStore(database, clock=LATER)
    await store.setup()
    return store


@pytest.fixture
async def full(database: Any, store: ConversationStore) -> str:
    """The id of a conversation with everything."""
    writer = ConversationStore(database, summarizer=HeadTailSummarizer(SUMMARY_RULE))
    await fill_with_everything(writer.conversation(user_id="ada", thread_id="t"))
    await writer.close()
    return str((await database["heads"].find_one({}))["conversation"])


def findings(report: VerifyReport) -> list[tuple[str, str, str]]:
    """Return kind and document of each finding."""
    return [(finding.kind, finding.collection, finding.document_id) for finding in report.findings]


def other(value: Any) -> Any:
    """Return another value of the same type, or ... if the type has none."""
    match value:
        case bool():
            return not value
        case int():
            return value + 3
        case str():
            return f"{value}x"
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:]
        case datetime():
            return value - timedelta(days=400)
    return ...


def names(finding: Finding, document: dict[str, Any], *, strict: bool) -> bool:
    """Return True if a finding names a document or, unless `strict`, one that contradicts it."""
    return finding.document_id == document["_id"] or (
        not strict and finding.conversation == document["conversation"]
    )


def is_judged(collection: str, document: dict[str, Any]) -> bool:
    """Return True for a document whose fields are damaged: of the log only those of entries."""
    return collection != LOG or not document.get("first") or document["_id"].endswith(ENTRIES)


async def damage(
    database: Any,
    store: ConversationStore,
    collection: str,
    make: Any,
    part: slice,
    *,
    strict: bool,
) -> tuple[int, list[str]]:
    """Damage each field of a part, one at a time; gives how many there are in all, and where nobody noticed."""
    written = await database[collection].find({}).sort("_id", 1).to_list(None)
    damages = [
        (document, path, made)
        for document in written
        if is_judged(collection, document)
        for path in paths(document)
        if (made := make(document, path)) not in (None, document)
    ]
    unnoticed = list[str]()
    for document, path, made in damages[part]:
        await database[collection].replace_one({"_id": document["_id"]}, made)
        report = await store.verify(**({} if path[0] == "scope" else {"user_id": "ada"}))
        is_named = any(names(finding, document, strict=strict) for finding in report.findings)
        # Where the id of the conversation is damaged, the rest of it is found by nobody.
        if not is_named or (
            report.entries != 14 and (collection, path) != (HEADS, ("conversation",))
        ):
            unnoticed.append(f"{document['_id']} {path} {findings(report)}")
        await database[collection].replace_one({"_id": document["_id"]}, document)
    return len(damages), unnoticed


@pytest.fixture
def conversations_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schema and indexes are looked at by other tests."""

    async def nothing(check: SchemaCheck, found: Findings) -> None:
        pass

    monkeypatch.setattr(SchemaCheck, "run", nothing)


@pytest.mark.slow
@pytest.mark.usefixtures("conversations_only")
@pytest.mark.parametrize("collection", PARTS)
@pytest.mark.parametrize("part", parts(3))
async def test_a_field_of_another_type_is_noticed(
    database: Any, store: ConversationStore, full: str, collection: Any, part: slice
) -> None:
    """A finding names the document with the damaged field, and all entries are read."""

    def strange(document: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any] | None:
        free = {"undo", "lease", "lease.owner", "lease.until"}
        return None if shape(path) in free else changed(document, path, {"strange": ObjectId()})

    tried, unnoticed = await damage(database, store, collection, strange, part, strict=True)
    assert tried >= 8
    assert unnoticed == []


@pytest.mark.slow
@pytest.mark.usefixtures("conversations_only")
@pytest.mark.parametrize("collection", PARTS)
@pytest.mark.parametrize("part", parts(3))
async def test_a_field_of_another_value_is_noticed(
    database: Any, store: ConversationStore, full: str, collection: Any, part: slice
) -> None:
    """A value that could be right, and is not: a finding names the document, unless nothing depends on the value."""

    def wrong(document: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any] | None:
        names = FREE["state" if document["_id"].endswith(":~") else collection]
        free = any(shape(path) == name or shape(path).startswith(f"{name}.") for name in names)
        # A rewind entry repeats the preview of an earlier point, which may lie in the middle of an entry.
        free |= path[:2] == ("totals", "preview") and "rewound" in document.get("facts", {})
        found = None if free else other(at(document, path))
        return None if found in (None, ...) else changed(document, path, found)

    tried, unnoticed = await damage(database, store, collection, wrong, part, strict=False)
    assert tried >= 3
    assert unnoticed == []


@pytest.mark.slow
async def test_a_log_whose_head_is_lost_is_reported_and_kept(
    database: Any, store: ConversationStore, full: str
) -> None:
    """A repair does not remove what a backup of the heads would bring back."""
    await database["heads"].delete_many({})
    report = await store.verify(repair=True)
    assert {(kind, where) for kind, where, _ in findings(report)} == {
        ("lost", LOG),
        ("lost", "summaries"),
        ("lost", "annotations"),
        ("lost", "search"),
    }
    assert not report.ok
    assert await database["log"].count_documents({"conversation": full}) == 20
    assert await database["summaries"].count_documents({}) == 2


@pytest.mark.slow
async def test_what_is_left_of_deletions_goes_after_a_day(
    database: Any, store: ConversationStore, full: str
) -> None:
    """Chunks, summaries and annotations that no entry and no head goes with; not before they are a day old."""
    for collection in PARTS:
        await database[collection].delete_many(
            {"messages": {"$exists": True}} if collection == LOG else {"x": 1}
        )
    await database["log"].delete_many({"first": {"$exists": True}})
    await database["heads"].delete_many({})
    young = await ConversationStore(database).verify(repair=True)
    assert findings(young) == []
    report = await store.verify(repair=True)
    assert {(kind, where) for kind, where, _ in findings(report)} == {
        ("leftover", LOG),
        ("leftover", "search"),
        ("leftover", "summaries"),
        ("leftover", "annotations"),
    }
    assert report.ok
    assert [await database[name].count_documents({}) for name in PARTS] == [0, 0, 0, 0]


@pytest.mark.slow
async def test_a_conversation_that_just_ended_is_no_leftover(
    database: Any, store: ConversationStore, full: str
) -> None:
    """While its tombstone stays, what it left is the sweep's."""
    await database["heads"].delete_many({})
    tombstone = {
        "_id": f"deleted:{full}",
        "conversation": full,
        "head": "x",
        "sweep_at": datetime.now(UTC),
    }
    await database["heads"].insert_one(tombstone)
    assert findings(await store.verify(repair=True)) == []
    assert await database["log"].count_documents({"conversation": full}) == 20


@pytest.mark.slow
async def test_other_conversations_are_not_taken_for_strays(
    database: Any, store: ConversationStore, full: str
) -> None:
    """Many conversations beside a lost one, in the order of their random ids."""
    for number in range(15):
        await store.conversation(user_id=f"u{number}", thread_id="t").append(HumanMessage("hi"))
    await database["heads"].delete_one({"conversation": full})
    assert {finding.conversation for finding in (await store.verify()).findings} == {full}


@pytest.mark.slow
async def test_heads_are_looked_up_by_an_index(database: Any, store: ConversationStore) -> None:
    """Looking for strays reads about one head for each conversation, and not all heads for each.

    The server may try another plan first, which reads a few more.
    """
    for number in range(15):
        chat = store.conversation(user_id=f"u{number}", thread_id="t")
        await chat.append([HumanMessage("hi", id="q"), AIMessage("", id="c")])
        await chat.child("c").append(HumanMessage("hi"))
    await database.command("profile", 2)
    try:
        assert findings(await store.verify()) == []
    finally:
        await database.command("profile", 0)
    query = {"ns": f"{database.name}.heads", "command.filter.conversation": {"$type": "string"}}
    looked_up = await database["system.profile"].find(query).to_list(None)
    assert len(looked_up) >= 30
    assert sum(command["docsExamined"] for command in looked_up) < 3 * len(looked_up)


@pytest.mark.slow
async def test_a_conversation_that_begins_meanwhile_is_no_stray(
    database: Any, store: ConversationStore, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation that begins during a check is no stray, because its head is looked up again."""

    async def not_yet(self: Any, *_: Any, **__: Any) -> Any:
        return []

    monkeypatch.setattr(inspection.Inspection, "heads", not_yet)
    assert findings(await store.verify()) == []


@pytest.mark.slow
async def test_the_cost_of_rewinds(
    client: Client, commands: Commands, database: Any, store: ConversationStore
) -> None:
    """Rewound messages are read once more, and hardly anything else."""
    counted = []
    looker = ConversationStore(client[database.name], clock=LATER)
    for turns in (10, 20):
        chat = store.conversation(user_id="ada", thread_id=str(turns))
        for number in range(turns):
            await chat.append([HumanMessage("Why?"), AIMessage("So.", id=f"{number}")])
            await chat.rewind(before_id=f"{number}")
            await chat.append(AIMessage("Or so."))
        await store.close()
        store = ConversationStore(database)
        with commands.counted() as counting:
            report = await looker.verify(thread_id=str(turns))
        assert (findings(report), report.entries) == ([], 3 * turns)
        counted.append((len(counting.sent), counting.documents))
    (few, read), (more, read_more) = counted
    assert more - few <= 10 + 2
    assert read_more - read <= 10 * (3 + 3)


async def test_a_fresh_database_is_as_it_should_be(store: ConversationStore) -> None:
    """Collections, options, indexes and migrations."""
    assert await store.verify() == VerifyReport()


async def test_a_database_that_is_not_set_up_is_reported_and_set_up(database: Any) -> None:
    """Every migration that has not run; a repair runs them."""
    report = await ConversationStore(database).verify()
    assert {"migration", "collection", "index_missing"} == set(report.counts)
    assert all(finding.repairable for finding in report.findings)
    assert (await ConversationStore(database).verify(repair=True)).ok
    assert await ConversationStore(database).verify() == VerifyReport()


@pytest.mark.slow
async def test_missing_indexes_are_made(database: Any, store: ConversationStore, full: str) -> None:
    """A repair makes missing indexes of the log and of the heads."""
    await database["log"].drop_index("message_ids")
    await database["heads"].drop_index("scope_user_id")
    expected = [("index_missing", LOG, "message_ids"), ("index_missing", HEADS, "scope_user_id")]
    assert findings(await store.verify()) == expected
    report = await store.verify(repair=True)
    assert (findings(report), report.ok) == (expected, True)
    assert await store.verify(repair=True) == (await store.verify())
    assert (await store.verify()).ok


@pytest.mark.slow
async def test_an_index_that_can_not_be_made_is_reported(
    database: Any, store: ConversationStore, full: str
) -> None:
    """Duplicates that came in while it was missing: the finding stays, with what the server says."""
    await database["log"].drop_index("message_ids")
    entry = await database["log"].find_one({"_id": f"{full}:000000000001"})
    await database["log"].insert_one({**entry, "_id": f"{full}:000000000015"})
    report = await store.verify(repair=True)
    [missing] = [finding for finding in report.findings if finding.kind == "index_missing"]
    assert (missing.repaired, report.ok) == (False, False)
    assert "duplicate key" in missing.problem


@pytest.mark.slow
async def test_a_migration_that_can_not_run_is_reported(
    database: Any, store: ConversationStore, full: str
) -> None:
    """A migration that cannot run is reported, and everything else is still checked."""
    name = (await database[MIGRATIONS].find_one({}, sort=[("_id", 1)]))["_id"]
    await database[MIGRATIONS].delete_one({"_id": name})
    await database["log"].drop_index("lookup")
    await database["log"].create_index([("conversation", 1), ("lookup", 1)], name="lookup")
    report = await store.verify(repair=True)
    assert findings(report) == [("migration", MIGRATIONS, name), ("index_different", LOG, "lookup")]
    assert (report.entries, report.ok, report.findings[0].repaired) == (14, False, False)
    assert "same name" in report.findings[0].problem


@pytest.mark.slow
async def test_no_index_is_made_for_a_scope_key_that_nobody_has(database: Any) -> None:
    """A doctor without the scope keys of the application checks the indexes that exist."""
    keys = ("user_id", "course_id")
    store = ConversationStore(database, scope_keys=keys)
    await store.setup()
    await store.conversation(user_id="ada", course_id="ml").append(HumanMessage("hi"))
    assert findings(await ConversationStore(database).verify(repair=True)) == []
    await database["heads"].drop_index("scope_course_id")
    report = await ConversationStore(database).verify()
    assert findings(report) == [("index_missing", HEADS, "scope_course_id")]
    assert (await ConversationStore(database).verify(repair=True)).ok
    assert "scope_thread_id" not in await database["heads"].index_information()
    assert (await ConversationStore(database, scope_keys=keys).verify()).ok


@pytest.mark.slow
async def test_indexes_that_differ_or_expire_are_reported(
    database: Any, store: ConversationStore
) -> None:
    """Indexes that differ, expire or make reads slow are reported and left alone.

    Only an operator of the database knows when there is time to build them again.
    """
    await database["log"].drop_index("lookup")
    await database["log"].create_index([("conversation", 1), ("lookup", 1)], name="lookup")
    await database["heads"].create_index("updated_at", name="old", expireAfterSeconds=99)
    await database["log"].create_index("conversation", name="slow")
    report = await store.verify(repair=True)
    assert findings(report) == [
        ("index_different", LOG, "lookup"),
        ("index_slow", LOG, "slow"),
        ("index_expiring", HEADS, "old"),
    ]
    assert not report.ok


async def test_collections_without_the_options_are_reported(database: Any) -> None:
    """A log that somebody's restore made: not clustered, and with the server's own compressor."""
    await database.create_collection("log")
    store = ConversationStore(database)
    await store.setup()
    report = await store.verify(repair=True)
    expected = ["it is compressed with snappy, not with zstd"]
    if await Driver(database).can_cluster():
        expected.insert(0, "it is not clustered")
    assert [finding.problem.partition(";")[0] for finding in report.findings] == expected


async def test_a_newer_database_is_not_judged(database: Any, store: ConversationStore) -> None:
    """A database of a newer version raises SchemaVersionError, because this version does not know its form."""
    await database[MIGRATIONS].insert_one({"_id": "9999_later"})
    with pytest.raises(SchemaVersionError, match="9999_later"):
        await store.verify()


async def test_a_prefix_is_part_of_every_name(database: Any) -> None:
    """Only collections with the prefix are checked."""
    store = ConversationStore(database, collection_prefix="chat_", clock=LATER)
    await store.setup()
    await store.conversation(user_id="ada", thread_id="t").append(rag_turn("What about seals?"))
    await database["log"].insert_one({"_id": "ffff:1"})
    report = await store.verify(repair=True)
    assert (findings(report), report.entries) == ([], 1)


@pytest.mark.slow
async def test_many_orphans_are_found_without_holding_them_all(
    database: Any, store: ConversationStore, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more chunks than are looked at together, entries are read again; none that is used goes."""
    monkeypatch.setattr(inspection, "_KEYS", 2)
    token = ObjectId()
    keys = [f"{full}#{token}#{number:06d}" for number in range(5)]
    await database["log"].insert_many(
        [{"_id": key, "conversation": full, "data": b"x"} for key in keys]
    )
    report = await store.verify(repair=True)
    assert {finding.kind for finding in report.findings} == {"orphan_chunks"}
    assert await database["log"].count_documents({"conversation": full}) == 20
    assert (await store.verify()).ok


@pytest.mark.slow
async def test_memory_does_not_grow_with_the_conversation(
    database: Any, store: ConversationStore
) -> None:
    """A log four times as long takes hardly more memory to look at."""
    peaks = []
    chat = store.conversation(user_id="ada", thread_id="t")
    for turns in (100, 300):
        for number in range(turns):
            await chat.append(rag_turn(f"Question {number} on whales?", words=200))
        tracemalloc.start()
        assert (await store.verify()).ok
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


@pytest.mark.slow
async def test_findings_are_counted_beyond_a_thousand(
    database: Any, store: ConversationStore
) -> None:
    """A report lists at most 1,000 findings and counts all of them."""
    await store.conversation(user_id="ada", thread_id="t").append(HumanMessage("hi"))
    conversation = (await database["heads"].find_one({}))["conversation"]
    keys = [f"{conversation}#{ObjectId()}#000000" for _ in range(1_100)]
    await database["log"].insert_many(
        [{"_id": key, "conversation": conversation, "data": b""} for key in keys]
    )
    report = await store.verify()
    assert (len(report.findings), report.counts, report.left) == (
        1_000,
        {"orphan_chunks": 1_100},
        1_100,
    )


async def test_unused_names_of_memory_are_not_judged() -> None:
    """The in-memory database has no options and not all indexes; the rest is looked at."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        await store.conversation(user_id="ada", thread_id="t").append(rag_turn("What about seals?"))
        report = await store.verify()
        assert (report.findings, report.entries, report.payload_chunks) == ((), 1, 1)


async def test_a_source_with_a_reserved_number_may_copy_one_with_a_higher_number(
    own_database: Any,
) -> None:
    """A source with a reserved number may copy a source with a higher number, because that source came first."""
    store = ConversationStore(own_database, clock=LATER)
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.reserve_source_ids(2)
    text = "Seals sleep under water. " * 20
    for name, about in (("a", {}), ("b", {"source_id": 2})):
        call = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": name}])
        found = [(text, {"title": "Seals", **about})]
        await chat.append(
            [HumanMessage("Sleep?"), call, ToolMessage(text, artifact=found, tool_call_id=name)]
        )
    assert [source.earlier_id for source in (await chat.get_sources([3, 2])).sources] == [None, 3]
    assert (await store.verify()).findings == ()


@pytest.mark.costly
@pytest.mark.parametrize("status", ["success", "error"])
async def test_whether_a_call_failed_is_derived(own_database: Any, status: str) -> None:
    """From the result itself, with totals that agree with a wrong mark; listings count by it."""
    store = ConversationStore(own_database, clock=LATER)
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    call = AIMessage("", tool_calls=[{"name": "pay", "args": {}, "id": "c"}])
    await chat.append(
        [HumanMessage("Pay."), call, ToolMessage("Timeout", tool_call_id="c", status=status)]
    )
    assert (await store.verify()).findings == ()
    number = int(status == "success")
    change = {"$set": {"messages.2.failed": 1, "totals.failed": 1}}
    if not number:
        change = {"$unset": {"messages.2.failed": "", "totals.failed": ""}}
    await own_database[LOG].update_one({"messages": {"$exists": True}}, change)
    assert (await chat.info()).failed == number
    assert [finding.kind for finding in (await store.verify()).findings] == ["message"]


@pytest.mark.costly
@pytest.mark.parametrize("reason", ["pause_turn", "end_turn"])
async def test_whether_an_answer_was_paused_is_derived(own_database: Any, reason: str) -> None:
    """From its stop reason; by it a load knows that the turn is not over."""
    store = ConversationStore(own_database, clock=LATER)
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(
        [
            HumanMessage("Seals?"),
            AIMessage("I look it up.", response_metadata={"stop_reason": reason}),
        ]
    )
    assert (await store.verify()).findings == ()
    change = "$unset" if reason == "pause_turn" else "$set"
    await own_database[LOG].update_one(
        {"messages": {"$exists": True}}, {change: {"messages.1.paused": 1}}
    )
    assert [finding.kind for finding in (await store.verify()).findings] == ["message"]


@pytest.mark.costly
@pytest.mark.parametrize("given", [0, 2, 4])
async def test_a_reservation_for_a_child_is_derived(own_database: Any, given: int) -> None:
    """An entry without messages gives all numbers that it reserves to a child, or none of them."""
    store = ConversationStore(own_database)
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(HumanMessage("hi"))
    numbers = await chat.child("critic").reserve_source_ids(3)
    reserved = {"conversation": (await chat.info()).conversation_id, "_id": {"$regex": ":0+2$"}}
    assert (await store.verify(**chat.scope)).ok
    await own_database["log"].update_one(reserved, {"$set": {"totals.given_through": given}})
    assert (await store.verify(**chat.scope)).ok is (given == 0), numbers


async def test_the_arguments_that_a_listing_shows_are_derived(
    store: ConversationStore, database: Any
) -> None:
    """The stored beginning of a call's arguments is compared with the call: a model chooses results by it."""
    chat = store.conversation(user_id="ada", thread_id="t")
    call = {"name": "transfer", "args": {"sum": 1}, "id": "c"}
    await chat.append([HumanMessage("hi"), AIMessage("", tool_calls=[call])])
    await chat.append([ToolMessage("done " * 500, tool_call_id="c"), AIMessage("ho")])
    forged = {"messages.0.arguments": '{"sum": 99999}'}
    await database["log"].update_one({"messages.type": "tool"}, {"$set": forged})
    assert [finding.kind for finding in (await store.verify()).findings] == ["message"]


@pytest.mark.slow
async def test_a_child_that_names_no_parent_is_noticed(
    store: ConversationStore, database: Any
) -> None:
    """A deletion finds children by that field, so it is derived from the child's id and written again."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append([HumanMessage("hi"), AIMessage("ho")])
    child = chat.child("researcher")
    await child.append([HumanMessage("hi"), AIMessage("ho")])
    await database["heads"].update_one({"parent": {"$exists": True}}, {"$set": {"parent": "x"}})
    assert [finding.kind for finding in (await store.verify()).findings] == ["head"]
    assert (await store.verify(repair=True)).left == 0
    await chat.delete()
    assert await database["log"].count_documents({}) == 0


@pytest.mark.costly
@pytest.mark.parametrize("name", ["updated_at", "written_at"])
async def test_a_date_in_the_future_is_brought_back(
    store: ConversationStore, database: Any, name: str
) -> None:
    """It would keep a conversation on top of every listing, or from ever being pruned."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append([HumanMessage("hi"), AIMessage("ho")])
    await database["heads"].update_one({}, {"$set": {name: datetime(2099, 1, 1, tzinfo=UTC)}})
    assert [finding.kind for finding in (await store.verify()).findings] == ["head_date"]
    assert (await store.verify(repair=True)).left == 0
    assert (await store.verify()).findings == ()


@pytest.mark.slow
async def test_damaged_moves_of_a_record_are_removed(
    store: ConversationStore, database: Any
) -> None:
    """The digest of a move covers what its load saw: a past view without a stamp goes by it."""
    chat = store.conversation(user_id="ada", thread_id="t")
    for number in range(30):
        await chat.append([HumanMessage(f"q{number} " * 50), AIMessage("a " * 200)])
    await chat.load_history(HistoryPolicy(max_tokens=2_000))
    state = await database["log"].find_one({"moves": {"$exists": True}})
    [key] = state["moves"]
    await database["log"].update_one({"_id": state["_id"]}, {"$inc": {f"moves.{key}.0.seen": 1}})
    assert [finding.kind for finding in (await store.verify()).findings] == ["state"]
    assert (await store.verify(repair=True)).left == 0
    assert (await store.verify()).findings == ()


@pytest.mark.slow
async def test_numbers_of_children_are_never_given_again_after_a_loss(
    store: ConversationStore, database: Any
) -> None:
    """The entry that reserved them is lost with the end of the parent's log: a repair reserves them again."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(rag_turn("seals", sources=2))
    child = await chat.child("finder").append(rag_turn("orcas", sources=3))
    conversation = (await chat.info()).conversation_id
    await database["log"].delete_one({"_id": f"{conversation}:{2:012d}"})
    restarted = ConversationStore(database)
    assert [finding.kind for finding in (await restarted.verify()).findings] == ["state"]
    assert (await restarted.verify(repair=True)).left == 0
    assert (await restarted.verify()).findings == ()
    root = await restarted.conversation(user_id="ada", thread_id="t").append(
        rag_turn("whales", sources=2)
    )
    assert (child.source_ids, root.source_ids) == ((3, 5), (6, 7))
