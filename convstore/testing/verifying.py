"""Tests of `verify`: intact data has no findings, damage is named, and derived data is repaired."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.mongo.inspection import Inspection
from convstore.mongo.summaries import own_document, summary_from
from convstore.runtime.clock import Clock
from convstore.store import ConversationStore
from convstore.summarization import HeadTailSummarizer
from convstore.testing.fixtures import NewStore, NextCall
from convstore.testing.samples import new_id, rag_turn
from convstore.testing.stored import Stored, kinds
from convstore.values.policy import CompactionRule
from convstore.values.reports import Finding

__all__ = [
    "SUMMARY_RULE",
    "VerifyContract",
    "VerifyFixtures",
    "clock_ahead",
    "fill_with_everything",
]


SUMMARY_RULE = CompactionRule(
    max_tokens_before_summary=2_000, max_summary_tokens=500, keep_last_turns=1
)
"""Of the summarizer of a store that `fill_with_everything` is given."""


async def fill_with_everything(chat: Conversation) -> None:
    """Fill a conversation with 14 entries, five payloads, two summaries, two annotations and a state."""
    await chat.append(SystemMessage("Be short.", id=new_id()))
    first = rag_turn("What about seals?")
    await chat.append(first[:1])
    await chat.append(first[1:])
    await chat.reserve_source_ids(5)
    for word in ("more ", "most "):
        await chat.append(
            [HumanMessage(word * 1_000, id=new_id()), AIMessage(word * 9_000, id=new_id())]
        )
        assert (await chat.compact(force=True)).status == "done"
    await chat.append([*rag_turn("And whales?"), *rag_turn("And orcas?")])
    regretted = [HumanMessage("Not this.", id=new_id()), AIMessage("No.", id=new_id())]
    await chat.append([AIMessage("By the way.", id=new_id()), *regretted])
    await chat.rewind(before_id=str(regretted[0].id))
    await chat.append(HumanMessage("Nor this.", id=new_id()))
    await chat.undo_rewind()
    await chat.rewind(before_id=str(regretted[1].id))
    usage: Any = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    await chat.append(
        AIMessage("Yes.", id=new_id(), usage_metadata=usage, response_metadata={"model_name": "m"})
    )
    await chat.append(AIMessage("Bye.", id=new_id()))
    for message in first[:2]:
        await chat.annotate(str(message.id), rating=1)
    await chat.update(title="Seals", metadata={"tags": ["sea"]})
    await chat.state.update({"step": 1})
    assert await chat.search("whales")  # which has it sealed


async def _no_pause(seconds: float) -> None:
    """Replaces the wait between two reads."""


def clock_ahead(ahead: timedelta, *, of: datetime | None = None) -> Clock:
    """Return a stopped clock, ahead of now or of a given moment by some time, whose waits return at once."""
    moment = (of or datetime.now(UTC)) + ahead
    return Clock(now=lambda: moment, sleep=_no_pause)


class VerifyFixtures:
    """A conversation to verify, and the stores that verify it."""

    @pytest.fixture
    async def later(self, new_store: NewStore) -> ConversationStore:
        """A store whose clock is two days ahead of the test's writes."""
        return new_store(clock=clock_ahead(timedelta(days=2)))

    @pytest.fixture
    async def full(self, new_store: NewStore) -> Conversation:
        """A conversation with documents of every kind, the only one of its user."""
        store = new_store(summarizer=HeadTailSummarizer(SUMMARY_RULE))
        await store.setup()
        chat = store.conversation(user_id=new_id(), thread_id="t")
        await fill_with_everything(chat)
        await store.close()
        return new_store().conversation(**chat.scope)

    @pytest.fixture
    async def stored(self, full: Conversation, database: Any, later: ConversationStore) -> Stored:
        """The stored documents of the conversation `full`."""
        return await Stored.of(full, database, later)


class VerifyContract(VerifyFixtures):
    """`ConversationStore.verify`, a conversation at a time."""

    async def test_what_is_whole_is_found_whole(self, stored: Stored) -> None:
        """Documents of every kind are counted, and the check finds nothing."""
        report = await stored.verify()
        assert kinds(report) == []
        assert (report.conversations, report.entries, report.messages) == (1, 14, 23)
        assert (report.payload_chunks, report.summaries, report.annotations) == (5, 2, 3)

    async def test_it_changes_nothing_without_repair(self, stored: Stored) -> None:
        """A check does not change documents, not even damaged ones; a repair without findings does not either."""

        async def documents() -> list[Any]:
            names = ("log", "heads", "summaries", "annotations")
            return [await stored.all(name) for name in names]

        before = await documents()
        assert all(before)
        await stored.verify(repair=True)
        assert await documents() == before
        await stored.set_head({"entry.1": 7})
        damaged = await documents()
        assert not (await stored.verify()).ok
        assert await documents() == damaged

    async def test_a_hole_is_named(self, stored: Stored) -> None:
        """The finding names the missing number; later entries are checked as well."""
        await stored.drop(2)
        report = await stored.verify()
        assert kinds(report) == [("hole", stored.key(2))]
        assert report.entries == 13

    async def test_a_damaged_rewind_is_named(self, stored: Stored) -> None:
        """`verify` reports rewind ranges that were altered, emptied or copied from another entry."""
        rewinds = [entry for entry in await stored.all() if "rewound" in entry.get("facts", {})]
        other, ranges = (entry["facts"]["rewound"] for entry in rewinds[:2])
        key = rewinds[1]["_id"]
        for damaged in (other, ranges[:-1] + b"x", b""):
            await stored.change(key, {"$set": {"facts.rewound": damaged}})
            assert ("damaged", key) in await stored.found()

    async def test_a_lost_end_is_reported(self, stored: Stored) -> None:
        """Head and index refer to missing entries; after a repair, both match the stored log."""
        [segment] = await stored.all("search")
        head = await stored.head()
        # as by an append 10 seconds after the one before it
        await stored.set_head({"entry": [14, (await stored.entry(14))["totals"]["link"]]})
        assert await stored.found() == []
        await stored.drop(14)
        report = await stored.verify()
        assert kinds(report) == [("head_entry", head["_id"]), ("segment", segment["_id"])]
        assert "lacks 1 entry that was" in report.findings[0].problem
        assert (await stored.verify(repair=True)).left == 0
        assert await stored.found() == []

    async def test_another_log_than_at_the_last_refresh_is_reported(self, stored: Stored) -> None:
        """After an older backup with other appends, the entry with the head's number has another link."""
        head = await stored.head()
        await stored.set_head({"entry.1": head["entry"][1] + 1})
        assert await stored.found() == [("head_entry", head["_id"])]

    async def test_a_missing_payload_is_named(self, stored: Stored) -> None:
        """The finding names the chunk that is missing and the message that it belongs to."""
        messages = (await stored.entry(3))["messages"]
        [message] = [message for message in messages if "payload" in message]
        key = f"{stored.conversation}#{message['payload']['token']}#000000"
        await stored.drop(key)
        report = await stored.verify()
        assert kinds(report) == [("payload_missing", key)]
        assert message["id"] in report.findings[-1].problem
        assert (report.entries, report.payload_chunks) == (14, 4)

    @pytest.mark.parametrize(
        "change",
        [
            {"messages.1.body": "x"},
            {"messages.1.digest": b"x" * 16},
            {"messages.1.stub": "{}"},
            {"totals.turns": 9},
        ],
    )
    async def test_a_damaged_entry_is_named_once(
        self, stored: Stored, change: dict[str, Any]
    ) -> None:
        """The finding names this entry and no later one."""
        await stored.change(3, {"$set": change})
        report = await stored.verify()
        assert {document for _, document in kinds(report)} == {stored.key(3)}
        assert report.entries == 14

    async def test_a_view_may_begin_inside_an_entry(
        self, new_store: NewStore, later: ConversationStore
    ) -> None:
        """A view that begins in the middle of a batch, after a summary, is not reported as damage."""
        rule = CompactionRule(
            max_tokens_before_summary=400, max_summary_tokens=100, keep_last_turns=1
        )
        store = new_store(summarizer=HeadTailSummarizer(rule))
        await store.setup()
        chat = store.conversation(user_id=new_id(), thread_id="t")
        questions = [HumanMessage("why " * count, id=new_id()) for count in (400, 400, 3)]
        await chat.append(
            [message for asked in questions for message in (asked, AIMessage("So.", id=new_id()))]
        )
        assert (await chat.compact()).status == "done"
        await chat.load_history()
        await chat.append(HumanMessage("more", id=new_id()))
        view = (await chat.load_history()).messages
        assert [message.text for message in view[1:]] == ["why why why ", "So.", "more"]
        await store.close()
        assert kinds(await later.verify(user_id=chat.scope["user_id"])) == []

    async def test_one_damaged_head_does_not_hide_the_others(self, stored: Stored) -> None:
        """A head without its scope is reported and cannot be repaired; the next head is checked."""
        for thread in ("a", "b"):
            other = stored.chat.store.conversation(user_id=stored.user, thread_id=thread)
            await other.append(HumanMessage("hi", id=new_id()))
        await stored.set_head({"conversation": 7})
        report = await stored.verify(repair=True)
        assert kinds(report) == [("head", (await stored.head())["_id"])]
        assert (report.conversations, report.left > 0) == (3, True)

    async def test_a_summary_that_was_set_aside_is_looked_for(self, stored: Stored) -> None:
        """A rewind sets a summary aside for `undo_rewind`, so its loss is a finding."""
        [third] = await stored.chat.list_messages(after=2, limit=1)
        await stored.chat.rewind(before_id=str(third.message.id))
        assert (await stored.state())["aside"]
        await stored.chat.store.close()
        assert await stored.found() == []
        token = new_id()
        await stored.change(stored.state_key, {"$set": {"aside": [token]}})
        assert await stored.found() == [("summary", f"{stored.conversation}:{token}")]

    async def test_summaries_without_their_messages_are_named(
        self, stored: Stored, database: Any
    ) -> None:
        """A summary with a range outside the log is reported; an unreferenced one is removed after a day."""
        summaries = database["summaries"]
        first, second = sorted(
            await stored.all("summaries"), key=lambda document: int(document["version"])
        )
        # With valid digests, so that only the comparison with the log shows the damage.
        record = summary_from(first)
        key = f"{stored.conversation}:unused"
        await summaries.insert_one(
            own_document(stored.conversation, replace(record, token="unused"))  # noqa: S106 - no password
        )
        await summaries.replace_one(
            {"_id": first["_id"]}, own_document(stored.conversation, replace(record, last=999))
        )
        found = set(await stored.found(repair=True))
        # The second one extends the first, so they do not agree any more.
        assert found - {("summary", second["_id"])} == {
            ("summary", first["_id"]),
            ("summary_unused", key),
        }
        left = await stored.all("summaries")
        assert {document["_id"] for document in left} == {first["_id"], second["_id"]}
        await summaries.delete_one({"_id": first["_id"]})
        assert await stored.found() == [("summary", first["_id"])]

    async def test_annotations_of_nothing_are_named(self, stored: Stored, database: Any) -> None:
        """`verify` reports annotations without a message and annotations that cannot be read."""
        annotations = database["annotations"]
        document = (await stored.all("annotations"))[0]
        foreign = {"_id": stored.key(99), "ordinal": 99, "values": {}, "names": {}}
        await annotations.insert_one({**document, **foreign})
        await annotations.update_one({"_id": document["_id"]}, {"$set": {"values.rating": "{"}})
        assert await stored.found() == [
            ("damaged", document["_id"]),
            ("annotation", stored.key(99)),
        ]

    async def test_running_writers_are_no_finding(self, new_store: NewStore) -> None:
        """While turns are appended, rewound and deleted, and afterwards, a check finds nothing and repairs nothing."""
        user = new_id()
        done = asyncio.Event()
        stores: list[ConversationStore] = []
        await new_store().setup()

        async def write(thread: str) -> None:
            stores.append(new_store())
            chat = stores[-1].conversation(user_id=user, thread_id=thread)
            for number in range(12):
                turn = rag_turn(f"Question {number} on whales?")
                await chat.append(turn)
                if number % 4 == 3:
                    await chat.rewind(before_id=str(turn[-1].id))
                if number == 8 and thread == "t0":
                    await chat.delete()

        async def look() -> list[Finding]:
            found: list[Finding] = []
            while not done.is_set():
                found += (await new_store().verify(user_id=user, repair=True)).findings
                await asyncio.sleep(0)
            return [finding for finding in found if not finding.kind.startswith("index")]

        looking = asyncio.create_task(look())
        await asyncio.gather(*(write(f"t{number}") for number in range(3)))
        done.set()
        assert await looking == []
        for store in stores:
            await store.close()
        ahead = new_store(clock=clock_ahead(timedelta(minutes=5)))
        assert kinds(await ahead.verify(user_id=user)) == []

    async def test_a_conversation_that_ends_meanwhile_is_no_finding(
        self, stored: Stored, next_call: NextCall
    ) -> None:
        """Entries that a deletion removes during the check are not reported."""
        next_call(Inspection, "entries", after=stored.chat.delete)
        assert await stored.found() == []

    async def test_artifacts_of_unknown_types_are_whole(self, new_store: NewStore) -> None:
        """A check without the application's artifact types does not report their values."""

        class Ticket:
            def __init__(self, number: int) -> None:
                self.number = number

        store = new_store()
        await store.setup()
        store.register_artifact_type(
            Ticket, dump=lambda ticket: {"n": ticket.number}, load=lambda plain: Ticket(plain["n"])
        )
        turn: list[Any] = list(rag_turn("What about seals?"))
        turn[2].artifact = {"found": [Ticket(1), {Ticket(2)}], "raw": b"\x00" * 20_000}
        user = new_id()
        await store.conversation(user_id=user, thread_id="t").append(turn)
        assert kinds(await new_store().verify(user_id=user)) == []

    async def test_progress_is_reported(self, store: ConversationStore) -> None:
        """`verify` calls `progress` after each conversation, with the report so far."""
        user = new_id()
        seen: list[int] = []
        for number in range(3):
            await store.conversation(user_id=user, thread_id=f"t{number}").append(
                HumanMessage("hi", id=new_id())
            )
        await store.verify(user_id=user, progress=lambda report: seen.append(report.conversations))
        assert seen == [1, 2, 3]

    async def test_a_head_that_was_just_refreshed_is_no_finding(
        self, stored: Stored, new_store: NewStore
    ) -> None:
        """A head may name an append in flight, so a missing entry is a finding only after two minutes."""
        await stored.set_head({"entry": [15, 7]})
        head = await stored.head()
        written = head["written_at"].replace(tzinfo=UTC)
        two_minutes = timedelta(minutes=2)
        for age, found in (
            (two_minutes, []),
            (two_minutes + timedelta(milliseconds=1), [("head_entry", head["_id"])]),
        ):
            verifier = new_store(clock=clock_ahead(age, of=written))
            assert kinds(await verifier.verify(user_id=stored.user)) == found

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"source_ids": "1-2"', '"source_ids": "7-9"'),
            ('"result_count": 2', '"result_count": 3'),
            ('"success": true', '"success": false'),
            ('"tool": "', '"tool": "un'),
        ],
    )
    async def test_an_altered_stub_is_noticed(
        self, alone: Conversation, later: ConversationStore, database: Any, old: str, new: str
    ) -> None:
        """A stub is compared with one derived from the message and its sources, as models only see the stub."""
        await alone.append(rag_turn("What about seals?", sources=2))
        stored = await Stored.of(alone, database, later)
        stub = (await stored.entry(1))["messages"][2]["stub"]
        assert old in stub
        await stored.change(1, {"$set": {"messages.2.stub": stub.replace(old, new)}})
        assert ("stub", stored.key(1)) in await stored.found()

    async def test_an_altered_size_or_preview_in_a_stub_is_noticed(
        self, alone: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """Size and preview in the stub of a result without sources are compared as well."""
        call = {"name": "look", "args": {}, "id": "c"}
        result = ToolMessage("seal " * 2_000, tool_call_id="c", id=new_id())
        await alone.append(
            [HumanMessage("q"), AIMessage("", tool_calls=[call]), result, AIMessage("a")]
        )
        stored = await Stored.of(alone, database, later)
        stub = (await stored.entry(1))["messages"][2]["stub"]
        for old, new in (("10000", "10001"), ("seal seal", "seal meal")):
            await stored.change(1, {"$set": {"messages.2.stub": stub.replace(old, new, 1)}})
            assert ("stub", stored.key(1)) in await stored.found()

    async def test_another_earlier_number_of_a_source_is_noticed(
        self, alone: Conversation, later: ConversationStore, database: Any
    ) -> None:
        """The first number of a repeated text is derived from earlier sources and compared."""
        for _ in range(2):
            await alone.append(rag_turn("What about seals?", sources=2))
        stored = await Stored.of(alone, database, later)
        assert (await stored.entry(2))["sources"][0]["earlier"] == [1, 2]
        for change in ({"$set": {"sources.0.earlier.1": 1}}, {"$unset": {"sources.0.earlier": 1}}):
            await stored.change(2, change)
            assert ("source", stored.key(2)) in await stored.found()

    async def test_a_copy_of_a_summary_without_its_digest_is_noticed(self, stored: Stored) -> None:
        """A copy of a summary must have the digest of its text."""
        await stored.change(stored.state_key, {"$unset": {"summary.digest": 1}})
        assert ("state", stored.state_key) in await stored.found()

    async def test_a_head_is_not_made_to_agree_with_a_damaged_log(self, stored: Stored) -> None:
        """A repair keeps the entry of a head whose log cannot be read."""
        await stored.set_head({"entry": [14, 7]})
        head = await stored.head()
        await stored.change(14, {"$set": {"first": "x"}})
        assert await stored.found(repair=True) == [("damaged", stored.key(14))]
        assert await stored.head() == head

    async def test_chunks_are_not_removed_while_the_end_of_the_log_is_lost(
        self, stored: Stored
    ) -> None:
        """The head refers to an entry that a backup may restore, and that may refer to the chunks."""
        await stored.chat.append(rag_turn("And the end?", sources=9))
        assert (await stored.head())["entry"][0] == 15
        await stored.drop(15)
        before = await stored.all()
        found = await stored.found(repair=True)
        assert {"head_entry", "orphan_chunks"} <= {kind for kind, _ in found}
        assert len(await stored.all()) == len(before)
