"""A log that lost entries is replaced by a copy of what is left: which everybody finds, and nothing is lost again."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from programs import killed
from properties import parts

from convstore import Conversation, ConversationDeletedError, ConversationStore, InvalidInputError
from convstore.exceptions import CorruptDocumentError, StoreUnavailableError
from convstore.integration import host_of
from convstore.log.copied import LogCopy
from convstore.log.entry import Entry
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.facts.rewound import REWOUND, RewoundRange
from convstore.messages.values import Codec
from convstore.mongo.copies import Copies
from convstore.mongo.documents import entry_from
from convstore.mongo.inspection import Inspection
from convstore.mongo.log import Log
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.clock import Clock
from convstore.summarization import HeadTailSummarizer
from convstore.testing import rag_turn
from convstore.testing.fixtures import ahead
from convstore.testing.restoring import talk, texts
from convstore.testing.verifying import SUMMARY_RULE, fill_with_everything
from convstore.types import LogItem, VerifyReport
from convstore.values.stamps import read_stamp

pytestmark = pytest.mark.slow


async def filled(database: Any) -> Conversation:
    """A conversation with all that entries can hold: variants, decisions, items and cuts besides."""
    store = ConversationStore(database, summarizer=HeadTailSummarizer(SUMMARY_RULE))
    await store.setup()
    chat = store.conversation(user_id=uuid.uuid4().hex, thread_id="t")
    await fill_with_everything(chat)
    await chat.append([_item("a"), HumanMessage("Which?", id="q1")])
    async with await chat.turn("q1") as turn:
        await turn.append(AIMessage("This."))
    async with await chat.turn("q1", regenerate="again") as turn:
        call = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "call"}])
        await turn.append(call)
        await chat.append(_item("b"))
        await turn.append(rag_turn("x")[2].model_copy(update={"tool_call_id": "call"}))
        await turn.append(AIMessage("That."))
    async with await chat.turn("q2", human="What else?", instead_of="q1") as turn:
        await turn.append(AIMessage("Something."))
    await chat.append(HumanMessage("Seen?", id="q9"))
    stamp = (await chat.load_history()).stamp
    await chat.append(AIMessage("Seen.", id="a9"), stamp=stamp)
    first, *_ = await chat.variants("q2")
    await chat.activate(first)
    await chat.append([HumanMessage("And now?", id="q3"), AIMessage("Later.", id="a3"), _item("c")])
    await chat.append(AIMessage("Later still.", id="a4"))
    await chat.rewind(before_id="c")
    await chat.rewind(before_id="q3")
    await chat.undo_rewind()
    return chat


def _item(id_: str) -> LogItem:
    return LogItem(kind="note", data={"x": 1}, id=id_)


async def entries_of(database: Any, chat: Conversation) -> list[Entry]:
    """Return the entries of a conversation in order."""
    head = await database["heads"].find_one({"scope": dict(chat.scope)})
    query = {"conversation": head["conversation"], "first": {"$exists": True}}
    return [
        entry_from(document)
        for document in await database["log"].find(query).sort("_id", 1).to_list(None)
    ]


def bare(entry: Entry) -> Entry:
    """Return an entry without the entries in rewound ranges.

    A range may end at an entry with messages, or at the empty ones beside it.
    """
    change = REWOUND.of(entry)
    if change is None:
        return entry
    ranges, restored = (
        tuple(RewoundRange(first, last, 0, 0) for first, last, *_ in listed)
        for listed in change[:2]
    )
    return REWOUND.on(entry, change._replace(ranges=ranges, restored=restored))


async def test_a_copy_without_a_loss_is_the_log(database: Any) -> None:
    """Whichever entry is the first to be followed: it and all later ones are made again as they are."""
    chat = await filled(database)
    entries = await entries_of(database, chat)
    services = await host_of(chat).services()
    cached = await services.reader.find(tuple(chat.scope.items()))
    assert cached
    payloads = await services.reader.payloads_of(
        cached, [message for entry in entries for message in entry.messages]
    )
    stamps = [message.stamp for entry in entries for message in entry.messages if message.stamp]
    summaries = frozenset(read_stamp(stamp, "").summary for stamp in stamps)
    assert "" not in summaries
    for sound in range(len(entries)):
        copy = LogCopy(Codec(), summaries=summaries)
        for entry in entries[:sound]:
            copy.add(entry)
            copy.match(entry)
        for entry in entries[sound:]:
            made = copy.follow(entry, payloads)
            assert made is not None
            assert bare(made) == bare(entry), (sound, entry.number)
            copy.add(made)
            copy.match(entry)


async def id_of(database: Any, chat: Conversation) -> str:
    """Return the id that a conversation has now."""
    head = await database["heads"].find_one({"scope": dict(chat.scope)})
    return str(head["conversation"])


async def broken(database: Any, chat: Conversation, number: int = 3) -> str:
    """Remove an entry of a conversation's log, and return the id of the conversation."""
    conversation = await id_of(database, chat)
    await database["log"].delete_one({"_id": f"{conversation}:{number:012d}"})
    return conversation


async def repair(database: Any, chat: Conversation) -> VerifyReport:
    """Repair a conversation, and check that nothing is wrong then."""
    doctor = ConversationStore(database)
    scope: dict[str, Any] = {key: chat.scope[key] for key in doctor.scope_keys}
    report = await doctor.verify(repair=True, **scope)
    assert [finding.problem for finding in (await doctor.verify(**scope)).findings] == []
    return report


async def sweep(database: Any, seconds: float) -> None:
    """Do the sweeps that are due after a time."""
    services = await host_of(ConversationStore(database, clock=ahead(seconds))).services()
    await services.retention.sweep()


async def messages_of(chat: Conversation) -> list[str]:
    """Return the ids of all messages of a log."""
    return [str(message.id) async for message in chat.messages(rewound=True)]


@pytest.fixture
async def own(own_database: Any) -> Any:
    """A database for one test, which is set up."""
    await ConversationStore(own_database).setup()
    return own_database


@pytest.mark.parametrize("part", parts(4))
async def test_whichever_entry_is_lost_the_rest_is_whole(own: Any, part: slice) -> None:
    """All other messages stay, in order, with what else is stored of them; an active one stays active.

    The loss of an entry that rewinds may show again what it had rewound.
    """
    chat = await filled(own)
    entries = await entries_of(own, chat)
    everything = {
        name: await own[name].find({}).to_list(None)
        for name in ("heads", "log", "annotations", "summaries")
    }
    shown = [str(message.message.id) for message in await chat.list_messages(limit=200)]
    state = (await chat.state.get()).values
    for lost in entries[:-1][part]:
        for name, documents in everything.items():
            await own[name].delete_many({})
            await own[name].insert_many(documents)
        conversation = await broken(own, chat, lost.number)
        report = await repair(own, chat)
        assert {finding.kind for finding in report.findings} == {"hole"}, lost.number
        assert report.ok
        gone = {message.id for message in lost.messages}
        fresh = ConversationStore(own).conversation(**chat.scope)
        left = [
            message.id for entry in entries for message in entry.messages if message.id not in gone
        ]
        assert await messages_of(fresh) == left
        ordinals = [message.ordinal for message in await fresh.list_messages(limit=200)]
        assert ordinals == sorted(set(ordinals))
        now = [str(message.message.id) for message in await fresh.list_messages(limit=200)]
        if not lost.is_rewind and not EVENT.of(lost):
            assert now == [id_ for id_ in shown if id_ not in gone], lost.number
        assert (await fresh.info()).title == "Seals"
        assert (await fresh.state.get()).values == state
        rated = [id_ for id_ in left if id_ in shown][:5]
        assert len(await fresh.annotations(rated)) == len({*rated} & {*shown[1:3]} - gone)
        assert (await fresh.load_history()).messages
        [numbers] = {(finding.lost_ordinals, finding.repaired_as) for finding in report.findings}
        assert numbers == (
            (lost.first, lost.last) if lost.messages else None,
            await id_of(own, chat),
        )
        assert (await own["heads"].find_one({"_id": f"deleted:{conversation}"}))[
            "successor"
        ] == numbers[1]
        await fresh.append(HumanMessage("Then?", id="then"))
        assert (await ConversationStore(own).verify()).findings == ()


async def test_what_late_writers_append_is_moved(own: Any) -> None:
    """A process that has the old id cached loses nothing, whether the sweep is first or its next append."""
    store = ConversationStore(own, clock=Clock(monotonic=lambda: 100.0))
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(5))
    await chat.append(rag_turn("What about seals?"))
    old = await broken(own, chat)
    await repair(own, chat)
    late = rag_turn("And whales?", words=900)
    await chat.append(LogItem(kind="note", data="long " * 9_000, id="alone"))
    receipt = await chat.append([*late[:-1], LogItem(kind="note", data=1, id="i"), late[-1]])
    assert await own["log"].count_documents({"conversation": old, "messages.id": late[0].id}) == 1
    await chat.annotate(str(late[0].id), rating=1)
    await chat.state.update({"step": 2})
    other = ConversationStore(own).conversation(**chat.scope)
    between = rag_turn("And orcas?")
    numbers = (await other.append(between)).source_ids
    assert (numbers or (0,))[0] > (receipt.source_ids or (0, 0))[1]
    with pytest.raises(ConversationDeletedError):  # it was written
        await chat.rewind(before_id=str(late[-1].id))
    for _ in range(2):
        await sweep(own, 90)
        assert (await ConversationStore(own).verify()).findings == ()
    ids = await messages_of(other)
    assert ids[-len(late) :] == [str(message.id) for message in late]
    assert len(ids) == len({*ids}) == 8 + 3 * len(late)
    assert [message.id async for message in other.messages(rewound=True)][-1] == late[-1].id
    assert [message.message.id for message in await other.list_messages(limit=50)][-1] == late[
        -2
    ].id
    found = (await other.get_sources(range(*(receipt.source_ids or (0, 0))))).sources
    assert {source.tool_message_id for source in found} == {str(late[2].id)}
    assert await other.annotations([str(late[0].id)]) == {str(late[0].id): {"rating": 1}}
    assert (await other.state.get()).values == {"step": 2}
    assert [(item.id, len(str(item.data))) async for item in other.items()] == [
        ("alone", 45_000),
        ("i", 1),
    ]
    assert await own["log"].count_documents({"facts.items.id": "alone"}) == 2  # once in each log
    await chat.store.close()


async def test_a_late_annotation_is_moved_without_a_late_entry(own: Any) -> None:
    """A process that has the old id cached may only rate a message, or set the state of the application."""
    store = ConversationStore(own, clock=Clock(monotonic=lambda: 100.0))
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(5))
    await broken(own, chat)
    await repair(own, chat)
    rated = (await messages_of(ConversationStore(own).conversation(**chat.scope)))[-1]
    await chat.annotate(rated, rating=1)
    await sweep(own, 90)
    fresh = ConversationStore(own).conversation(**chat.scope)
    assert await fresh.annotations([rated]) == {rated: {"rating": 1}}
    await store.close()


async def test_a_sweep_reads_no_entry_of_a_log_to_which_nothing_came(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tombstone of the log has the number of its entries; they are counted."""
    chat = ConversationStore(own).conversation(user_id="u", thread_id="t")
    await talk(chat, range(5))
    await broken(own, chat)
    await repair(own, chat)
    read = list[str]()

    async def noted(_: Inspection, conversation: str, **_options: Any) -> list[Any]:
        read.append(conversation)
        return []

    monkeypatch.setattr(Inspection, "entries", noted)
    await sweep(own, 90)
    assert read == []


async def test_a_move_that_was_killed_writes_nothing_twice(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sweep finds what one before has moved, also an entry without messages, by its link."""
    store = ConversationStore(own, clock=Clock(monotonic=lambda: 100.0))
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(5))
    await broken(own, chat)
    await repair(own, chat)
    writer = (await host_of(chat).services()).writer
    scope = tuple(chat.scope.items())
    await writer.append(scope, (), facts=EVENT.put(TurnEvent("fence", "q4")))
    await writer.append(scope, [HumanMessage("Late?", id="late")])
    await writer.append(scope, [HumanMessage("Later?", id="later")])
    entries = len(await entries_of(own, chat))
    insert = Log.insert

    async def killed(self: Log, conversation: str, made: Sequence[Entry], *more: Any) -> None:
        """Insert the first two of the entries."""
        await insert(self, conversation, made[:2], *more)
        raise StoreUnavailableError("the server is gone")

    monkeypatch.setattr(Log, "insert", killed)
    with pytest.raises(StoreUnavailableError):
        await sweep(own, 90)
    monkeypatch.undo()
    assert len(await entries_of(own, chat)) == entries + 2
    for seconds in (600, 2 * 24 * 3_600):
        await sweep(own, seconds)
        assert len(await entries_of(own, chat)) == entries + 3
    fresh = ConversationStore(own).conversation(**chat.scope)
    assert (await messages_of(fresh))[-2:] == ["late", "later"]
    assert (await ConversationStore(own).verify()).findings == ()
    await store.close()


async def test_moves_at_once_beside_appends_move_each_entry_once(own: Any) -> None:
    """Two workers find the same late entries while others append to the copy: whoever is outrun reads it again."""
    store = ConversationStore(own, clock=Clock(monotonic=lambda: 100.0))
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(5))
    old = await broken(own, chat)
    await repair(own, chat)
    late = [f"late-{number}" for number in range(8)]
    for id_ in late:
        await chat.append([HumanMessage("long " * 9_000, id=id_), LogItem(kind="note", data=1)])
    tombstone = await own["heads"].find_one({"_id": f"deleted:{old}"})
    fresh = ConversationStore(own).conversation(**chat.scope)
    new = [f"new-{number}" for number in range(8)]

    async def append_all() -> None:
        for id_ in new:
            await fresh.append(HumanMessage("new", id=id_))

    workers = [await host_of(ConversationStore(own)).services() for _ in range(2)]
    await asyncio.gather(
        append_all(), *[worker.retention.move_late(tombstone) for worker in workers]
    )
    ids = await messages_of(ConversationStore(own).conversation(**chat.scope))
    assert [id_ for id_ in ids if id_ in late] == late
    assert [id_ for id_ in ids if id_ in new] == new
    assert len(ids) == 8 + len(late) + len(new)
    assert len([item async for item in fresh.items()]) == len(late)
    assert (await ConversationStore(own).verify()).findings == ()
    await store.close()


async def test_what_follows_a_late_entry_that_has_no_room_takes_nothing_of_it(
    own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Its source ids are taken, so it stays where it is: an answer belongs to no turn, an annotation to no message."""
    store = ConversationStore(own, clock=Clock(monotonic=lambda: 100.0))
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(5))
    await broken(own, chat)
    await repair(own, chat)
    fresh = ConversationStore(own).conversation(**chat.scope)
    await fresh.append(_numbered_turn("new"))
    await chat.append(_numbered_turn("late"))
    await chat.append(AIMessage("Its answer.", id="answer"))
    await chat.annotate("late", rating=1)
    await sweep(own, 90)
    assert "where its source ids are taken" in caplog.text
    assert (await messages_of(fresh))[-2:] == ["new-result", "answer"]
    assert await fresh.annotations(["new", "new-call", "new-result", "answer"]) == {}
    assert [message.turn for message in (await entries_of(own, fresh))[-1].messages] == [0]
    assert (await ConversationStore(own).verify()).findings == ()
    await store.close()


def _numbered_turn(id_: str) -> list[BaseMessage]:
    """A question with a result whose tool numbers its source 500."""
    call = {"name": "search", "args": {}, "id": f"call-{id_}"}
    source = {"source_id": 500, "title": id_, "content": f"{id_} " * 50}
    return [
        HumanMessage("What?", id=id_),
        AIMessage("", id=f"{id_}-call", tool_calls=[call]),
        ToolMessage(
            json.dumps([source]), id=f"{id_}-result", name="search", tool_call_id=call["id"]
        ),
    ]


async def test_a_cached_id_is_used_for_ten_seconds_at_most(own: Any) -> None:
    """A load notices at once, an append after ten seconds; both go on in the copy."""
    seconds = [100.0]
    stores = [ConversationStore(own, clock=Clock(monotonic=lambda: seconds[0])) for _ in range(2)]
    reader, writer = (store.conversation(user_id="u", thread_id="t") for store in stores)
    await talk(writer, range(5))
    assert len(await texts(reader)) == 5
    await broken(own, reader)
    await repair(own, reader)
    assert await texts(reader) == ["q0", "q1", "q3", "q4"]
    seconds[0] += 11
    assert (await writer.append(HumanMessage("q", id="q"))).first == 9
    assert await texts(reader) == ["q0", "q1", "q3", "q4", "q"]


async def test_a_page_and_a_turn_go_on(own: Any) -> None:
    """A watched page gets the copy from its first message on; a turn that a worker holds is answered in the copy."""
    seconds = [100.0]
    stores = [ConversationStore(own, clock=Clock(monotonic=lambda: seconds[0])) for _ in range(2)]
    page, worker = (store.conversation(user_id="u", thread_id="t") for store in stores)
    await talk(worker, range(5))
    async with aclosing(page.watch()) as updates:
        assert len((await anext(updates)).messages) == 10
        async with await worker.turn("q", human="Q?") as turn:
            await broken(own, page)
            await repair(own, page)
            await turn.append(AIMessage("A"))
        await sweep(own, 90)
        seconds[0] += 11
        async with asyncio.timeout(60):
            while (update := await anext(updates)).replaces_from > 1:
                pass
    shown = [message.message.text for message in update.messages]
    assert shown == [text for n in (0, 1, 3, 4) for text in (f"q{n}", f"a{n}.0")] + ["Q?", "A"]
    async with (
        await ConversationStore(own).conversation(**page.scope).turn("q", human="Q?") as turn
    ):
        assert not turn.is_running


@pytest.mark.parametrize("part", parts(6))
async def test_a_repair_that_is_killed_changes_nothing_or_all(
    own: Any, server_uri: str, part: slice
) -> None:
    """Wherever it dies, the log is as it was or replaced; the next repair and the sweeps leave no rest."""
    store = ConversationStore(own)
    points = range(1, 55)[part]
    for point in points:
        chat = store.conversation(user_id=f"u{point}", thread_id="t")
        await talk(chat, range(2))
        await chat.append(rag_turn("What about seals?", words=900))
        await talk(chat, range(2, 4))
        await chat.annotate((await messages_of(chat))[0], rating=1)
        await broken(own, chat, 2)
    codes = await killed(server_uri, own, *(f"repair u{point} {point}" for point in points))
    assert codes[0] == -signal.SIGKILL
    assert codes[-1] == 0
    replaced = 0
    for point in points:
        chat = ConversationStore(own).conversation(user_id=f"u{point}", thread_id="t")
        is_replaced = "@" in await id_of(own, chat)
        replaced += is_replaced
        report = await repair(own, chat)
        assert [finding.repaired for finding in report.findings] == [True] * (not is_replaced), (
            point
        )
        assert await texts(chat) == ["q0", "What about seals?", "q2", "q3"]
        assert len(await chat.annotations((await messages_of(chat))[:1])) == 1
    assert len(points) // 10 < replaced < len(points) - len(points) // 10
    await sweep(own, 3_700)
    known = await own["heads"].distinct("conversation", {"scope": {"$exists": True}})
    stored = set(await own["log"].distinct("conversation"))
    assert stored == {*known, *(conversation.partition("@")[0] for conversation in known)}
    for days in (2, 32):
        await sweep(own, days * 24 * 3_600)
    for name in ("log", "annotations"):
        assert sorted(await own[name].distinct("conversation")) == sorted(known), name
    assert await own["heads"].count_documents({"sweep_at": {"$exists": True}}) == 0
    assert (await store.verify()).ok


async def test_of_two_repairs_at_once_one_wins(own: Any) -> None:
    """The other one reports what it found, not repaired; a third finds nothing."""
    store = ConversationStore(own)
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(9))
    for _ in range(5):
        await broken(own, chat, 2)
        doctors = [ConversationStore(own) for _ in range(3)]
        reports = await asyncio.gather(*(doctor.verify(repair=True) for doctor in doctors))
        repaired = [[finding.repaired for finding in report.findings] for report in reports]
        assert repaired.count([True]) == 1
        # none if it began when all was done
        assert all(found in ([True], [False], []) for found in repaired)
        assert (await store.verify()).findings == ()
    await sweep(own, 3_700)
    conversations = await own["log"].distinct("conversation", {"first": {"$exists": True}})
    tombs = await own["heads"].distinct("conversation", {"successor": {"$gt": ""}})
    assert sorted(conversations) == sorted([*tombs, await id_of(own, chat)])


async def test_a_copy_that_was_given_up_replaces_nothing(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair that was suspended while a sweep removed its copy reports that, whenever it was suspended."""
    store = ConversationStore(own)
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(6))
    old = await broken(own, chat)
    for name in ("keep_copy", "replace_log"):
        original = getattr(Tombstones, name)

        async def suspended(*arguments: Any, then: Any = original, **options: Any) -> Any:
            await sweep(own, 8_000)
            return await then(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Tombstones, name, suspended)
            report = await ConversationStore(own).verify(repair=True)
        assert [finding.repaired for finding in report.findings] == [False]
        assert await id_of(own, chat) == old
        assert await own["log"].distinct("conversation") == [old]
        ended = {"conversation": old, "sweep_at": {"$exists": True}}
        assert await own["heads"].count_documents(ended) == 0
    assert (await repair(own, chat)).ok
    assert await texts(ConversationStore(own).conversation(**chat.scope)) == [
        "q0",
        "q1",
        "q3",
        "q4",
        "q5",
    ]


@pytest.mark.parametrize("by", ["delete", "erase", "old id", "prune"])
async def test_who_deletes_a_conversation_deletes_what_its_repair_left(own: Any, by: str) -> None:
    """No document of it is left, under no id."""
    store = ConversationStore(own)
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(6))
    await chat.child("agent").append(rag_turn("What about seals?"))
    old = await broken(own, chat)
    await repair(own, chat)
    if by == "delete":
        await ConversationStore(own).conversation(**chat.scope).delete()
    elif by == "erase":
        assert await store.erase(user_id="u", dry_run=True) == await store.erase(user_id="u")
    elif by == "old id":
        assert await store.erase(old, dry_run=True) == await store.erase(old)
    else:
        later = ConversationStore(own, clock=ahead(20 * 24 * 3_600))
        age = timedelta(days=1)
        assert await later.prune(older_than=age, dry_run=True) == await later.prune(older_than=age)
    assert await own["log"].count_documents({}) == 0
    for days in (50, 90, 130):
        await sweep(own, days * 24 * 3_600)
    assert await own["heads"].count_documents({}) == 0


async def test_a_deletion_ends_a_repair_and_what_comes_late(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation that is deleted while it is repaired stays deleted, and so does what a late writer appends."""
    late = ConversationStore(own, clock=Clock(monotonic=lambda: 100.0)).conversation(
        user_id="u", thread_id="t"
    )
    copied = Copies.entries

    async def deleted_first(*arguments: Any, **options: Any) -> None:
        await ConversationStore(own).conversation(**late.scope).delete()
        await copied(*arguments, **options)

    monkeypatch.setattr(Copies, "entries", deleted_first)
    await talk(late, range(5))
    await broken(own, late)
    assert (await ConversationStore(own).verify(repair=True)).findings == ()
    monkeypatch.undo()
    await late.store.close()
    assert await own["heads"].count_documents({"scope": {"$exists": True}}) == 0

    late = ConversationStore(own, clock=Clock(monotonic=lambda: 100.0)).conversation(
        user_id="u", thread_id="t"
    )
    await talk(late, range(5))
    await broken(own, late)
    await repair(own, late)
    await ConversationStore(own).conversation(**late.scope).delete()
    await late.append(HumanMessage("late", id="late"))
    for seconds in (3_700, 100_000, 200_000):
        await sweep(own, seconds)
    assert await own["log"].count_documents({}) == await own["heads"].count_documents({}) == 0


async def test_what_cannot_be_moved_stops_no_sweep(
    own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged log is told; it stays where it is, and all else is swept."""
    late = ConversationStore(own, clock=Clock(monotonic=lambda: 100.0)).conversation(
        user_id="u", thread_id="t"
    )
    await talk(late, range(5))
    old = await broken(own, late)
    await repair(own, late)
    await late.append(HumanMessage("late", id="late"))
    damage = {"$set": {"count": "x"}}
    await own["log"].update_one({"conversation": old, "messages.id": "late"}, damage)
    await sweep(own, 90)
    assert f"late entries of {old} were not moved" in caplog.text
    assert await own["log"].count_documents({"conversation": old, "messages.id": "late"}) == 1


async def test_pruning_keeps_a_replaced_log_for_its_time(own: Any) -> None:
    """The conversation is in use, and the log that it had before stays for 30 days."""
    store = ConversationStore(own)
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(6))
    old = await broken(own, chat)
    await repair(own, chat)
    for days, is_there in ((1.1, True), (3, True), (29, True), (32, False)):
        later = ConversationStore(own, clock=ahead(days * 24 * 3_600))
        await later.conversation(**chat.scope).append(
            HumanMessage("still here", id=uuid.uuid4().hex)
        )
        await later.prune(older_than=timedelta(hours=1))
        assert bool(await own["log"].count_documents({"conversation": old})) == is_there, days
    assert (await store.verify()).ok


async def test_a_repair_is_no_use_of_a_conversation(own: Any) -> None:
    """The numbers that it reserves are in an entry with the date of the one before: listings and pruning see no use."""
    chat = ConversationStore(own, clock=ahead(-48 * 3_600)).conversation(user_id="u", thread_id="t")
    await talk(chat, range(5))
    await chat.append(rag_turn("What about seals?"))
    before = (await chat.info()).updated_at
    await broken(own, chat)
    await repair(own, chat)
    assert (await ConversationStore(own).conversation(**chat.scope).info()).updated_at == before
    assert (await ConversationStore(own, clock=ahead(3_600)).verify()).findings == ()


async def test_conversations_of_sub_agents_stay_where_they_are(own: Any) -> None:
    """They are found below the copy, begin below it, and number their sources with it; theirs are repaired likewise."""
    store = ConversationStore(own)
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(3))
    child = chat.child("agent")
    given = [
        (await child.append(rag_turn(f"What about {word}?"))).source_ids
        for word in ("seals", "whales", "orcas")
    ]
    await broken(own, chat, 2)
    await repair(own, chat)
    fresh = ConversationStore(own).conversation(**chat.scope)
    below = fresh.child("agent")
    assert len(await messages_of(below)) == 3 * len(rag_turn("x"))
    assert [info.scope for info in await fresh.children()] == [below.scope]
    last = (await fresh.append(rag_turn("And sharks?"))).source_ids or (0, 0)
    assert last[0] > max(pair[1] for pair in given if pair)
    assert (await fresh.child("other").append(rag_turn("And eels?"))).source_ids != last
    report = await repair(own, below) if await broken(own, below, 2) else None
    assert report
    assert report.ok
    assert len(await messages_of(ConversationStore(own).conversation(**below.scope))) == 2 * len(
        rag_turn("x")
    )
    again = ConversationStore(own).conversation(**chat.scope)
    assert len(await again.children()) == 2
    first = given[0] or (0, 0)
    assert [source.source_id for source in (await again.get_sources([first[0]])).sources] == [
        first[0]
    ]
    assert (await again.child("agent").append(rag_turn("More?"))).source_ids
    assert (await ConversationStore(own).verify()).ok
    await again.delete()
    assert await own["log"].count_documents({"first": {"$exists": True}}) == 0


@pytest.mark.parametrize("knows_the_old_id", [False, True])
async def test_an_answer_to_a_view_of_the_old_log_is_stored(
    own: Any, knows_the_old_id: bool
) -> None:
    """Its stamp names a log that nobody reads any more, and is left out, also if the answer was made for that log."""
    seconds = [100.0]
    store = ConversationStore(own, clock=Clock(monotonic=lambda: seconds[0]))
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(5))
    await chat.append(HumanMessage("q", id="q"))
    stamp = (await chat.load_history()).stamp
    await broken(own, chat)
    await repair(own, chat)
    seconds[0] += 11
    fresh = chat if knows_the_old_id else ConversationStore(own).conversation(**chat.scope)
    await fresh.append(AIMessage("a", id="a"), stamp=stamp)
    assert (await messages_of(fresh))[-2:] == ["q", "a"]
    assert (await fresh.list_messages())[-1].stamp is None
    assert (await fresh.store.verify()).findings == ()
    await store.close()


async def test_a_late_answer_keeps_the_summary_of_its_view(own: Any) -> None:
    """Its stamp names the summary, which the copy has."""
    store = ConversationStore(
        own,
        clock=Clock(monotonic=lambda: 100.0),
        summarizer=HeadTailSummarizer(SUMMARY_RULE),
    )
    chat = store.conversation(user_id="u", thread_id="t")
    for word in ("more ", "most "):
        await chat.append([HumanMessage(word * 1_000), AIMessage(word * 9_000)])
    assert (await chat.compact(force=True)).status == "done"
    await talk(chat, range(3))
    stamp = (await chat.load_history()).stamp
    assert stamp is not None
    await broken(own, chat, 4)
    await repair(own, chat)
    await chat.append(AIMessage("a", id="a"), stamp=stamp)
    await sweep(own, 90)
    fresh = ConversationStore(own).conversation(**chat.scope)
    moved = (await fresh.list_messages())[-1].stamp
    assert moved is not None
    assert moved.summary == stamp.summary != ""
    await store.close()


async def test_a_part_of_an_id_finds_nothing(own: Any) -> None:
    """An old id finds the conversation that it was of; no other text does."""
    store = ConversationStore(own)
    chat = store.conversation(user_id="u", thread_id="t")
    await talk(chat, range(5))
    old = await broken(own, chat)
    await repair(own, chat)
    new = await id_of(own, chat)
    for known in (old, new):
        found = await store.find_conversation(known)
        assert found is not None
        assert found.scope == chat.scope
        assert await store.find_conversation(known, user_id="eve") is None
    for text in (old[0], old[:12], old[:-1], f"{old}@", new[:-1], f"{old}~", f"{new}~", "~", "@"):
        assert await store.find_conversation(text) is None
        with pytest.raises(InvalidInputError):
            await store.erase(text)


@pytest.mark.parametrize(("lost", "state"), [(2, "finished"), (3, "open")])
async def test_a_turn_does_not_end_as_what_is_lost_did(own: Any, lost: int, state: str) -> None:
    """Before the newest question, which was rewound, stood an answer that was cut off: only that is lost."""
    store = ConversationStore(own)
    await store.setup()
    chat = store.conversation(user_id=uuid.uuid4().hex, thread_id="t")
    cut = AIMessage("Beca", response_metadata={"finish_reason": "length"})
    await chat.append([HumanMessage("Who?"), AIMessage("Ada.")])
    await chat.append([HumanMessage("Why?"), *([] if lost == 3 else [cut])])
    await chat.append([cut] if lost == 3 else [SystemMessage("A note.")])
    await chat.append([HumanMessage("How?", id="how"), AIMessage("So.")])
    await chat.rewind(before_id="how")
    assert (await chat.info()).state == "cut"
    await broken(own, chat, lost)
    await repair(own, chat)
    assert (await ConversationStore(own).conversation(**chat.scope).info()).state == state


async def test_a_repair_reads_and_writes_many_entries_at_once(
    own: Any, client: Any, commands: Any
) -> None:
    """It sends two commands for each entry at most, and ten inserts; a damaged payload keeps no other one out."""
    chat = ConversationStore(own).conversation(user_id="ada", thread_id="payloads")
    for number in range(40):
        await chat.append(rag_turn(str(number)))
    before = await _payload_texts(own, chat)
    conversation = await broken(own, chat)
    query = {"_id": {"$gt": f"{conversation}#", "$lt": f"{conversation}:"}}
    chunks = await own["log"].find(query, {"_id": 1}).sort("_id", 1).to_list(None)
    await own["log"].delete_one({"_id": chunks[20]["_id"]})
    with commands.counted():
        report = await ConversationStore(client[own.name]).verify(repair=True, **chat.scope)
    assert commands.names.count("insert") < 10
    assert len(commands.names) < 2 * 40
    assert report.counts == {"hole": 1, "payload_missing": 1}
    found = await _payload_texts(own, chat)
    assert len(found) == len(before) - 1
    [damaged] = [id_ for id_, text in found.items() if text != before[id_]]
    assert found[damaged] == ""


async def _payload_texts(database: Any, chat: Conversation) -> dict[str, str]:
    """Return the contents of the results of a conversation by id, "" for one that cannot be read."""
    chat = ConversationStore(database).conversation(**chat.scope)
    found = dict[str, str]()
    for message in await chat.list_messages(limit=1_000):
        if message.message.type == "tool":
            try:
                [record] = await chat.get_tool_messages([str(message.message.id)])
                found[str(message.message.id)] = str(record.content)
            except CorruptDocumentError:
                found[str(message.message.id)] = ""
    return found
