"""Import and export on a real server: everything once, in order, again without harm, and back without loss."""

from __future__ import annotations

import asyncio
import io
import json
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Client
from hypothesis import assume, given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_mongodb import MongoDBChatMessageHistory
from properties import examples, sampled
from pymongo import MongoClient
from scripted_agents import log_of
from strategies import messages as any_message
from strategies import same

from convstore import ConversationStore, HistoryPolicy, InvalidInputError, StoreUnavailableError
from convstore.conversation import Conversation
from convstore.exceptions import NotSetUpError
from convstore.integration import host_of
from convstore.mongo.driver import open_client
from convstore.testing.restoring import restore, saved, talk
from convstore.testing.samples import SHARED_FIXTURES, new_id, passages, rag_turn, same_messages
from convstore.transfer import (
    BadRecord,
    ConversationRecord,
    ImportReport,
    Problem,
    RecordItem,
    ScopeRule,
    export_conversations,
    import_conversations,
    read_file,
    read_history_collection,
)
from convstore.types import LogItem


@pytest.fixture
async def store(client: Client, database_name: str) -> ConversationStore:
    """A store that nobody else uses, empty."""
    return await emptied(client, database_name, "store_")


@pytest.fixture
async def other(client: Client, database_name: str) -> ConversationStore:
    """Return another store, into which exports are imported."""
    return await emptied(client, database_name, "other_")


async def emptied(client: Client, name: str, prefix: str) -> ConversationStore:
    """A store whose collections are made once for all tests."""
    database = client[f"{name}_transfer"]
    for collection in await database.list_collection_names():
        if collection.startswith(prefix) and not collection.endswith("migrations"):
            await database[collection].delete_many({})
    store = ConversationStore(database, collection_prefix=prefix)
    await store.setup()
    return store


@pytest.fixture(scope="module", autouse=True)
def _dropped(server_uri: str, database_name: str) -> Iterator[None]:
    yield
    with MongoClient[dict[str, Any]](server_uri) as client:
        client.drop_database(f"{database_name}_transfer")


async def ready(client: Client, database_name: str, prefix: str = "") -> ConversationStore:
    """A store that is set up, in collections of its own."""
    store = ConversationStore(
        client[database_name], collection_prefix=prefix or f"t{new_id()[:10]}_"
    )
    await store.setup()
    return store


def ask(number: int, **more: Any) -> list[dict[str, Any]]:
    """A turn in OpenAI's format."""
    return [
        {"role": "user", "content": f"question {number}", **more},
        {"role": "assistant", "content": f"answer {number}", **more},
    ]


def record(id_: str = "one", turns: int = 3, **more: Any) -> ConversationRecord:
    """A conversation of some turns."""
    messages = [message for n in range(turns) for message in ask(n)]
    return ConversationRecord(id=id_, messages=messages, where=f"at {id_}", **more)


async def taken(store: ConversationStore, *records: Any, **options: Any) -> ImportReport:
    """Import records for one user."""
    return await import_conversations(
        store, records, scope=options.pop("scope", {"user_id": "ada"}), **options
    )


def chat_of(store: ConversationStore, thread: str = "one") -> Conversation:
    """The conversation that a record became."""
    return store.conversation(user_id="ada", thread_id=thread)


async def texts_of(chat: Conversation) -> list[str]:
    """Their texts."""
    return [message.text for message in await log_of(chat)]


def reasons(report: ImportReport) -> list[str]:
    """Return the reasons in a report."""
    return [problem.reason for problem in report.problems]


async def exported(store: ConversationStore, **options: Any) -> bytes:
    """All that an export writes; nothing may be left out."""
    file = io.BytesIO()
    report = await export_conversations(store, file.write, **options)
    assert report.is_complete, report.problems
    assert report.size == len(file.getvalue())
    return file.getvalue()


async def brought(
    store: ConversationStore, written: bytes, tmp_path: Path, **options: Any
) -> ImportReport:
    """Import what was written."""
    path = tmp_path / f"{new_id()}.jsonl"
    path.write_bytes(written)
    return await import_conversations(store, read_file(path, codec=host_of(store).codec), **options)


TEXTS = [f"{what} {number}" for number in range(3) for what in ("question", "answer")]

# ---------------------------------------------------------------------------------------------------------------------
# Once, in order, again without harm


@pytest.mark.slow
async def test_records_become_conversations(store: ConversationStore) -> None:
    """Each in its scope, in order, one append for each turn; the report says so, and listings know them."""
    report = await taken(store, record("one"), record("two", 1))
    assert (report.conversations, report.imported, report.messages, report.is_complete) == (
        2,
        2,
        8,
        True,
    )
    assert await texts_of(chat_of(store)) == TEXTS
    assert await texts_of(chat_of(store, "two")) == TEXTS[:2]
    page = await store.list_conversations(user_id="ada")
    assert sorted(
        (conversation.scope["thread_id"], conversation.message_count)
        for conversation in page.conversations
    ) == [("one", 6), ("two", 2)]


async def test_a_second_import_writes_nothing(store: ConversationStore) -> None:
    """All is there already; the conversation may have gone on since, and title and metadata may have changed.

    The first import indexed it for searches.
    """
    given = record(title="Old", metadata={"a": 1})
    await taken(store, given)
    assert await host_of(store).driver.collection("search").count_documents({}) == 1
    await chat_of(store).append([HumanMessage("and now?", id="new")])
    await chat_of(store).update(title="New")
    before = await log_of(chat_of(store))
    report = await taken(store, given)
    assert (report.unchanged, report.messages, report.known, report.is_complete) == (1, 0, 6, True)
    assert same_messages(await log_of(chat_of(store)), before)
    assert ((await chat_of(store).info()).title, (await chat_of(store).info()).metadata) == (
        "New",
        {"a": 1},
    )


@pytest.mark.slow
async def test_a_turn_without_an_answer_stays_finished(
    store: ConversationStore, other: ConversationStore, tmp_path: Path
) -> None:
    """A turn that was stopped is finished in the copy too. A question that was asked there later is not."""
    await chat_of(store).append(HumanMessage("Tell me a story", id="q1"))
    await chat_of(store).stop("q1")
    written = await exported(store)
    for _ in range(2):
        await brought(other, written, tmp_path)
    found = await chat_of(other).get_turn("q1")
    assert found is not None
    assert found.is_finished
    await chat_of(other).append(HumanMessage("Another one", id="q2"))
    await brought(other, written, tmp_path)
    found = await chat_of(other).get_turn("q2")
    assert found is not None
    assert not found.is_finished


@pytest.mark.slow
async def test_two_imports_at_once_write_everything_once(
    client: Client, database_name: str
) -> None:
    """Each of several importers finds all in order; together they wrote every message once."""
    stores = [await ready(client, database_name, f"two{database_name}_") for _ in range(4)]
    records = [record(f"c{number}", 6) for number in range(8)]
    reports = await asyncio.gather(*(taken(target, *records, jobs=3) for target in stores))
    assert [report.left_out for report in reports] == [0] * 4, [
        reasons(report) for report in reports
    ]
    assert sum(report.messages for report in reports) == 8 * 12
    for number in range(8):
        assert await texts_of(chat_of(stores[0], f"c{number}")) == [
            message["content"] for n in range(6) for message in ask(n)
        ]


async def test_a_look_writes_nothing_and_says_what_would_be(
    store: ConversationStore, client: Client, database_name: str
) -> None:
    """A dry run reports the effects of an import and writes nothing, even if the database is not set up."""
    await taken(store, record("one", 1))
    report = await taken(store, record("one"), record("two"), dry_run=True)
    assert (report.extended, report.imported, report.messages, report.known) == (1, 1, 10, 2)
    assert await texts_of(chat_of(store)) == TEXTS[:2]
    bare = ConversationStore(client[database_name], collection_prefix="never_")
    report = await taken(bare, record("one"), dry_run=True)
    assert (report.imported, report.messages) == (1, 6)
    assert not [
        name
        for name in await client[database_name].list_collection_names()
        if name.startswith("never_")
    ]
    with pytest.raises(NotSetUpError):
        await taken(bare, record("one"))


async def test_only_some_are_read(store: ConversationStore) -> None:
    """`limit` counts conversations, and nothing after them is asked for."""

    def records() -> Any:
        yield record("one")
        yield record("two")
        raise AssertionError

    report = await import_conversations(store, records(), scope={"user_id": "ada"}, limit=2)
    assert (report.conversations, report.imported) == (2, 2)


@pytest.mark.slow
async def test_records_are_read_as_places_become_free(store: ConversationStore) -> None:
    """No more records are held than are being worked on."""
    done = 0
    ahead = []

    async def records() -> AsyncIterator[ConversationRecord]:
        for number in range(12):
            ahead.append(number - done)
            yield record(f"c{number}", 1)

    def count(report: ImportReport) -> None:
        nonlocal done
        done = report.imported

    await import_conversations(
        store, records(), scope={"user_id": "ada"}, jobs=2, on_conversation=count
    )
    assert max(ahead) <= 3


async def test_a_server_that_does_not_answer_ends_the_import(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not answer ends the import and is not reported as a problem of one conversation."""

    async def fail(*_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(store._services.writer, "append", fail)
    with pytest.raises(StoreUnavailableError):
        await taken(store, *(record(f"c{number}") for number in range(5)))


@pytest.mark.slow
async def test_a_cancelled_import_stops_at_once(store: ConversationStore) -> None:
    """A cancelled import stops at once, and has written the first part of a long conversation."""
    long = record("one", 2_000)
    running = asyncio.create_task(taken(store, long))
    while not await chat_of(store).list_messages(limit=1):
        assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    texts = await texts_of(chat_of(store))
    assert 0 < len(texts) < 4_000
    assert texts == [message["content"] for message in long.messages[: len(texts)]]


@pytest.mark.costly
@pytest.mark.parametrize(
    "options",
    [{"jobs": 0}, {"limit": 0}, {"jobs": True}, {"scope": {"team": "x"}}, {"scope": "ada"}],
)
async def test_arguments_that_make_no_sense_are_refused(
    store: ConversationStore, options: dict[str, Any]
) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidInputError):
        await import_conversations(store, iter([AssertionError]), **options)


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be taken over


async def test_a_bad_message_keeps_its_conversation_out(store: ConversationStore) -> None:
    """A conversation with a bad message is left out as a whole and reported with the reason. Others are imported."""
    bad = ConversationRecord(
        id="bad", where="x", messages=[*ask(0), {"role": "king", "content": ""}, {"role": "tool"}]
    )
    report = await taken(store, bad, BadRecord("line 3", "no JSON"), record("one"))
    assert (report.left_out, report.imported, report.is_complete) == (2, 1, False)
    assert (
        "x, message 3: field 'role'" in reasons(report)[1]
        or "x, message 3: field 'role'" in reasons(report)[0]
    )
    assert await log_of(chat_of(store, "bad")) == []


async def test_a_bad_message_alone_may_be_left_out(store: ConversationStore) -> None:
    """With `skip_messages` the rest of its conversation is taken over, and the message is named."""
    bad = ConversationRecord(
        id="one", where="x", messages=[*ask(0), {"role": "king", "content": ""}, *ask(1)]
    )
    problems: list[Problem] = []
    report = await taken(store, bad, skip_messages=True, on_problem=problems.append)
    assert (report.messages, report.messages_left_out, report.is_complete) == (4, 1, False)
    assert [(problem.what, problem.where) for problem in problems] == [("message", "x, message 3")]
    assert await texts_of(chat_of(store)) == TEXTS[:4]


async def test_a_message_that_was_left_out_is_not_added_at_the_end(
    store: ConversationStore,
) -> None:
    """Once it can be read, it would stand after what followed it; so the conversation is named and left as it is."""
    good = record("one", 2)
    bad = ConversationRecord(
        id="one", messages=[*good.messages[:2], {"role": "king"}, *good.messages[3:]]
    )
    await taken(store, bad, skip_messages=True)
    before = await log_of(chat_of(store))
    report = await taken(store, good)
    assert (report.left_out, report.messages) == (1, 0)
    assert "missing in the log, but messages after it are stored" in reasons(report)[0]
    assert same_messages(await log_of(chat_of(store)), before)


async def test_a_conversation_with_other_messages_is_left_as_it_is(
    store: ConversationStore,
) -> None:
    """The missing messages would follow messages that are not in the record."""
    await chat_of(store).append([HumanMessage("mine", id="mine")])
    report = await taken(store, record())
    assert "1 message that the source lacks" in reasons(report)[0]
    assert await texts_of(chat_of(store)) == ["mine"]


async def test_other_content_is_named(store: ConversationStore) -> None:
    """A source that changed is not taken for what was imported."""
    await taken(store, record())
    changed = ConversationRecord(
        id="one", where="x", messages=[{"role": "user", "content": "changed"}]
    )
    report = await taken(store, changed)
    assert "x, message 1 is stored with different content" in reasons(report)[0]


async def test_two_records_for_one_scope_are_not_joined(store: ConversationStore) -> None:
    """A rule that gives many conversations one scope is found out at the second."""
    report = await taken(
        store, record("one"), record("two"), scope={"user_id": "ada", "thread_id": "one"}
    )
    assert (report.imported, report.left_out) == (1, 1)
    assert "is also that of at one" in reasons(report)[0]


async def test_an_error_in_one_conversation_stops_no_other(store: ConversationStore) -> None:
    """An error of a caller's function is reported with its place."""

    def scope(kept: ConversationRecord) -> dict[str, str]:
        return {"user_id": "ada", "thread_id": {"one": "one"}[kept.id]}

    report = await taken(store, record("two"), record("one"), scope=scope)
    assert (report.imported, report.left_out) == (1, 1)
    assert "KeyError: 'two' (test_transfer.py, line" in reasons(report)[0]


async def test_a_scope_may_be_looked_up(store: ConversationStore) -> None:
    """By a function that is awaited; a conversation of nobody is named, with the keys that are needed."""
    owners = {"one": "ada"}

    async def scope(kept: ConversationRecord) -> Any:
        return {"user_id": owners[kept.id], "thread_id": kept.id} if kept.id in owners else None

    report = await taken(store, record("two"), record("one"), scope=scope)
    assert (report.imported, report.left_out) == (1, 1)
    assert reasons(report) == [
        "the scope function must return a dict of user_id, thread_id, not NoneType"
    ]
    assert await texts_of(chat_of(store)) == TEXTS


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ("chats.jsonl", r"read_file\(path\)"),
        (Path("chats.jsonl"), r"read_file\(path\)"),
        (record(), "a list of ConversationRecords, not ConversationRecord"),
        (None, "not NoneType"),
        ([{"id": "one", "messages": []}], r"ConversationRecord\(id=…, messages=…\), not dict"),
    ],
)
async def test_what_are_no_records_is_refused(
    store: ConversationStore, records: Any, problem: str
) -> None:
    """A value that is not a list of records is refused, and the error says what to pass."""
    with pytest.raises(InvalidInputError, match=problem):
        await import_conversations(store, records)


async def test_long_turns_are_cut(store: ConversationStore) -> None:
    """A turn above 1 MB is appended in several entries, in order, and again writes nothing."""
    turn = [{"role": "assistant", "content": f"{number} " + "x" * 15_000} for number in range(150)]
    given = ConversationRecord(id="one", messages=[{"role": "user", "content": "go"}, *turn])
    assert (await taken(store, given)).messages == 151
    assert await texts_of(chat_of(store)) == ["go", *(message["content"] for message in turn)]
    assert (await taken(store, given)).unchanged == 1


@pytest.mark.slow
async def test_a_message_that_no_entry_can_hold_is_found_out_first(
    store: ConversationStore,
) -> None:
    """If a message fits in no entry, no message of its conversation is written, not even those before it."""
    message = {
        "role": "user",
        "content": "q",
        **{f"field {number}": "x" * 450 for number in range(2_400)},
    }
    report = await taken(store, ConversationRecord(id="one", messages=[*ask(0), message]))
    assert "larger than 1 MB" in reasons(report)[0]
    assert await log_of(chat_of(store)) == []


@pytest.mark.slow
async def test_a_message_of_more_than_1_mb_is_taken_over(store: ConversationStore) -> None:
    """A system prompt, and one of many small blocks, are no limit either."""
    many = {"role": "user", "content": [{"type": "text", "text": "x" * 400}] * 3_500}
    prompt = {"role": "system", "content": "x" * 1_100_000}
    given = ConversationRecord(id="one", messages=[prompt, many])
    assert (await taken(store, given)).messages == 2
    assert (await taken(store, given)).unchanged == 1


@pytest.mark.slow
async def test_a_huge_result_is_taken_over(store: ConversationStore) -> None:
    """Size is no limit for a tool result, nor for a pasted text."""
    result = {"role": "tool", "tool_call_id": "c", "content": "0123456789\n" * 1_600_000}
    given = ConversationRecord(
        id="one", messages=[{"role": "user", "content": "é" * 2_000_000}, result]
    )
    assert (await taken(store, given)).messages == 2
    assert [len(text) for text in await texts_of(chat_of(store))] == [2_000_000, 17_600_000]


async def test_numbers_that_searches_gave_twice_are_renumbered_and_reported(
    store: ConversationStore,
) -> None:
    """Tools that count from 1 on each search clash; the second result gets new numbers, and that is named."""

    def search(number: int) -> list[Any]:
        found = [{"source_id": n, "text": f"{number} {n} " * 60, "title": "t"} for n in (1, 2)]
        call = {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": "search", "arguments": "{}"},
        }
        return [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {
                "role": "tool",
                "tool_call_id": f"c{number}",
                "name": "search",
                "content": "x" * 900,
                "artifact": found,
            },
        ]

    report = await taken(store, ConversationRecord(id="one", messages=[*search(1), *search(2)]))
    assert (report.imported, report.changed, report.is_complete) == (1, 1, True)
    assert "1 is 3 now, 2 is 4 now" in reasons(report)[0]
    page = await chat_of(store).get_sources([1, 2, 3, 4])
    assert [source.content[:3] for source in page.sources] == ["1 1", "1 2", "2 1", "2 2"]


async def test_messages_have_the_dates_of_their_source(store: ConversationStore) -> None:
    """Messages have the dates of their source, so listings keep the order of the old store.

    Title and metadata do not make a conversation newer.
    """
    old = ConversationRecord(
        id="old",
        title="T",
        metadata={"a": 1},
        messages=[{"role": "user", "content": "Hi", "timestamp": 1_500_000_000}],
    )
    path = {"role": "user", "content": "Hi", "timestamp": 1_600_000_000}
    await taken(store, ConversationRecord(id="new", messages=[path]), old)
    page = await store.list_conversations(user_id="ada")
    listed = [
        (
            conversation.scope["thread_id"],
            conversation.title,
            conversation.created_at,
            conversation.updated_at,
        )
        for conversation in page.conversations
    ]
    dates = [datetime.fromtimestamp(seconds, UTC) for seconds in (1_600_000_000, 1_500_000_000)]
    assert listed == [("new", None, dates[0], dates[0]), ("old", "T", dates[1], dates[1])]
    [stored] = await chat_of(store, "old").list_messages()
    assert stored.created_at == dates[1]
    await chat_of(store, "old").append([HumanMessage("now", id="now")])
    assert (await chat_of(store, "old").info()).updated_at > dates[0] + timedelta(days=100)


async def test_the_openai_format_keeps_when_a_conversation_was_used(
    store: ConversationStore, other: ConversationStore, tmp_path: Path
) -> None:
    """From the first message to the last, so that a listing and `prune` there go by the dates of here."""
    days = [datetime(2024, 5, day, tzinfo=UTC) for day in (1, 2, 3)]
    await taken(
        store,
        ConversationRecord(id="one", messages=[m for d in days for m in ask(0, created_at=d)]),
    )
    [line] = (await exported(store, format="openai")).splitlines()
    document = json.loads(line)
    for message in document["messages"]:
        message.pop("created_at", None)
    assert (await brought(other, json.dumps(document).encode(), tmp_path)).changed == 0
    info = await chat_of(other).info()
    assert (info.created_at, info.updated_at) == (days[0], days[-1])


# ---------------------------------------------------------------------------------------------------------------------
# langchain-mongodb


@pytest.fixture
def histories(server_uri: str, database_name: str) -> Iterator[Any]:
    """Return a factory of langchain-mongodb histories in a collection of their own, and its name."""
    with MongoClient[dict[str, Any]](server_uri) as client, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        name = f"history_{new_id()[:8]}"

        def make(session: str, **options: Any) -> MongoDBChatMessageHistory:
            return MongoDBChatMessageHistory(
                None, session, database_name, name, client=client, **options
            )

        make.name = name
        make.collection = client[database_name][name]
        yield make


async def read_all(client: Any, database_name: str, histories: Any, **options: Any) -> list[Any]:
    """All records of the collection."""
    collection = client[database_name][histories.name]
    return [record async for record in read_history_collection(collection, **options)]


async def test_histories_of_langchain_are_taken_over(
    store: ConversationStore, client: Client, database_name: str, histories: Any
) -> None:
    """The log has the messages of `MongoDBChatMessageHistory`, whole and in order."""
    talks = {
        "ada:one": [
            *rag_turn("Where are whales?"),
            SystemMessage("later"),
            HumanMessage([{"type": "text", "text": "x"}]),
        ],
        "bob:two": [
            HumanMessage("Hi"),
            AIMessage(
                "Hello",
                usage_metadata=dict(
                    zip(("input_tokens", "output_tokens", "total_tokens"), (1, 2, 3), strict=True)
                ),
            ),
        ],
    }
    for session, messages in talks.items():
        histories(session).add_messages(messages)
    histories("ada:one").add_message(HumanMessage("last"))
    wanted = {session: histories(session).messages for session in talks}
    rule = ScopeRule(
        keys=store.scope_keys, match={"SessionId": "(?P<user_id>[^:]+):(?P<thread_id>.+)"}
    )
    for imported in (2, 0):
        report = await import_conversations(
            store, read_history_collection(client[database_name][histories.name]), scope=rule
        )
        assert (report.conversations, report.imported, report.is_complete) == (2, imported, True), (
            report
        )
    for session, messages in wanted.items():
        user, thread = session.split(":")
        log = await log_of(store.conversation(user_id=user, thread_id=thread))
        for message, there in zip(messages, log, strict=True):
            message.id = message.id or there.id
        assert same_messages(log, messages)
    [stored, *_] = await store.conversation(user_id="bob", thread_id="two").list_messages()
    assert abs(datetime.now(UTC) - stored.created_at) < timedelta(minutes=5)


async def test_a_history_that_grows_is_followed(
    store: ConversationStore, client: Client, database_name: str, histories: Any
) -> None:
    """An import while the old application still writes is completed by the next one."""
    for turn in range(3):
        histories("s").add_messages([HumanMessage(f"question {turn}"), AIMessage(f"answer {turn}")])
        report = await taken(
            store, *await read_all(client, database_name, histories), scope={"user_id": "ada"}
        )
        assert (report.messages, report.known) == (2, 2 * turn)
    assert await texts_of(chat_of(store, "s")) == TEXTS


async def test_other_names_of_fields(client: Client, database_name: str, histories: Any) -> None:
    """The fields of a session and its history may have other names, as in LangChain's class."""
    histories("s", session_id_key="chat", history_key="said").add_message(HumanMessage("Hi"))
    [found] = await read_all(
        client, database_name, histories, session_key="chat", history_key="said"
    )
    assert (found.id, found.fields["chat"], len(found.messages)) == ("s", "s", 1)


async def test_damaged_documents_are_reported(
    store: ConversationStore, client: Client, database_name: str, histories: Any
) -> None:
    """Each with its _id; a session id that is no text is no conversation; others go on."""
    histories("good").add_message(HumanMessage("Hi"))
    histories.collection.insert_many(
        [
            {"_id": 1, "SessionId": "bad", "History": "{"},
            {
                "_id": 2,
                "SessionId": "bad",
                "History": json.dumps({"type": "human", "data": {"content": "ok"}}),
            },
            {"_id": 3, "SessionId": "bad"},
            {"_id": 4, "SessionId": {"$ne": ""}, "History": "{}"},
            {"_id": 5, "History": "{}"},
            {"_id": 6, "SessionId": 7, "History": {"type": "human", "data": {"content": "a dict"}}},
            {
                "_id": 8,
                "SessionId": "list",
                "History": json.dumps([{"type": "human", "data": {"content": "a"}}] * 2),
            },
        ]
    )
    report = await taken(
        store, *await read_all(client, database_name, histories), skip_messages=True
    )
    assert (report.conversations, report.imported, report.left_out, report.messages_left_out) == (
        6,
        4,
        2,
        2,
    )
    problems = sorted(f"{problem.where}: {problem.reason}"[:60] for problem in report.problems)
    assert [problem.partition(":")[0] for problem in problems] == [
        "SessionId None",
        "SessionId {'$ne'",
        "document 1",
        "document 3",
    ]
    assert await texts_of(chat_of(store, "bad")) == ["ok"]
    assert await texts_of(chat_of(store, "7")) == ["a dict"]
    assert await texts_of(chat_of(store, "list")) == ["a", "a"]


async def test_fields_that_no_conversation_keeps_are_named(
    store: ConversationStore, tmp_path: Path
) -> None:
    """Not those that are its id or in its scope, and not empty ones; again at each import of the line."""
    kept = {"title": "T", "metadata": {"a": 1}, "created_at": 1_714_550_400, "note": ""}
    line = {"id": "x", "user": 7, "messages": [{"role": "user", "content": "?"}], **kept}
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({**line, "source": "s", "meta": {"model": "m"}}) + "\n")
    rule = ScopeRule(keys=store.scope_keys, fields={"user_id": "user"})
    for _ in range(2):
        report = await import_conversations(store, read_file(path), scope=rule)
        assert reasons(report) == [
            "left out: its fields source, meta; put what you need into metadata"
        ]
        assert (report.changed, report.is_complete) == (1, True)
    path.write_text(json.dumps(line) + "\n")
    report = await import_conversations(store, read_file(path), scope=rule)
    assert (report.unchanged, report.problems) == (1, [])
    state = {"messages": line["messages"], "user": "bo", "step": 3}
    path.write_text(json.dumps({"id": "y", "values": state}) + "\n")
    rule = ScopeRule(keys=store.scope_keys, fields={"user_id": "values.user"})
    report = await import_conversations(store, read_file(path), scope=rule)
    assert reasons(report) == ["left out: its fields values.step; put what you need into metadata"]


def test_a_report_keeps_problems_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many changes do not hide what was left out; all are counted."""
    monkeypatch.setattr("convstore.transfer.records._MAX_PROBLEMS", 2)
    report = ImportReport()
    for what in ("changed",) * 5 + ("message", "conversation"):
        report.note(Problem(what, "", "", ""))
    found = report.as_json()
    assert [problem["what"] for problem in found["problems"]] == [
        *("changed", "changed", "message", "conversation")
    ]
    assert (found["changed"], found["problems_not_listed"]) == (5, 3)


async def test_the_collection_is_read_by_every_driver(histories: Any) -> None:
    """The in-memory one too, which has no index."""
    _, database = open_client("memory://")
    for session in ("b", "a", "b"):
        document = {
            "SessionId": session,
            "History": json.dumps({"type": "human", "data": {"content": session}}),
        }
        await database["message_store"].insert_one(document)
    found = [record async for record in read_history_collection(database["message_store"])]
    assert [(record.id, len(record.messages)) for record in found] == [("a", 1), ("b", 2)]


# ---------------------------------------------------------------------------------------------------------------------
# Out and back


def _item(id_: str) -> LogItem:
    return LogItem(kind="mark", data=(id_, "\ud800", 2**70), id=id_)


async def lived(store: ConversationStore) -> Conversation:
    """A conversation that has seen everything: searches, reserved numbers, rewinds, annotations, stamps, a title."""
    chat = chat_of(store)
    await chat.append([_item("first"), SystemMessage("Be brief.", id="system")])
    await chat.append(rag_turn("Where are whales?"))
    await chat.reserve_source_ids(5)
    await chat.append(
        [*rag_turn("Where are seals?"), HumanMessage("wrong", id="wrong"), AIMessage("no", id="no")]
    )
    await chat.append([_item("rewound"), _item("dropped")])
    await chat.rewind(before_id="dropped")
    await chat.rewind(before_id="wrong")
    await chat.append(_item("after the rewind"))
    await chat.append([HumanMessage("better", id="better"), AIMessage("first", id="first")])
    await chat.rewind(before_id="first")
    await chat.append([AIMessage("second", id="second")], stamp=(await chat.load_history()).stamp)
    found = [
        (text, {**metadata, "source_id": 40 + n}) for n, (text, metadata) in enumerate(passages(2))
    ]
    call = AIMessage("", id="call", tool_calls=[{"name": "search", "args": {}, "id": "c"}])
    await chat.append(
        [
            HumanMessage("more", id="more"),
            call,
            ToolMessage("r", id="r", tool_call_id="c", artifact=found),
        ]
    )
    view = await chat.load_history(HistoryPolicy(max_turns=2))
    await chat.append([AIMessage("x" * 20_000, id="long")], stamp=view.stamp)
    await chat.reserve_source_ids(3)
    await chat.append([_item("last"), _item("very last")])
    await chat.annotate("no", rating=-1, tags=("a", b"b"))
    await chat.annotate("second", rating=1)
    await chat.state.update({"step": 2, "tags": ("a", b"b")})
    await chat.update(
        title="Sea \ud800", metadata={"at": datetime(2026, 1, 1, tzinfo=UTC), "n": (1, 2)}
    )
    return chat


async def state_of(store: ConversationStore, chat: Conversation) -> dict[str, Any]:
    """Everything that can be seen of a conversation from outside."""
    everything = [await chat.get_tool_messages([str(message.id)]) for message in await log_of(chat)]
    info = await chat.info()
    return {
        "log": await log_of(chat),
        "records": [record.model_dump() for [record] in everything],
        "views": [
            (await chat.load_history(HistoryPolicy(max_turns=turns))).messages
            for turns in (None, 1, 2)
        ],
        "listed": [
            message.model_dump(exclude={"stamp"})
            for message in await chat.list_messages(limit=1_000)
        ],
        "annotations": await chat.annotations([str(message.id) for message in await log_of(chat)]),
        "state": (await chat.state.get()).values,
        "items": [item.model_dump(exclude={"created_at"}) async for item in chat.items()],
        "info": info.model_dump(exclude={"conversation_id", "updated_at"}),
        "next": (await store.conversation(**chat.scope).reserve_source_ids(1)),
    }


async def test_everything_comes_back(
    store: ConversationStore, other: ConversationStore, tmp_path: Path
) -> None:
    """Log, views, sources and their numbers, dates, what is rewound, annotations, title: as before the export."""
    chat = await lived(store)
    written = await exported(store)
    report = await brought(other, written, tmp_path)
    assert (report.imported, report.is_complete, reasons(report)) == (1, True, [])
    assert await exported(other) == written
    assert same(await state_of(other, chat_of(other)), await state_of(store, chat))
    again = await brought(other, written, tmp_path)
    assert (again.unchanged, again.messages, reasons(again)) == (1, 0, [])


async def test_what_a_model_had_not_read_is_unread_after_an_import(
    store: ConversationStore, other: ConversationStore, tmp_path: Path
) -> None:
    """A result that came while the model was asked stays whole there, too."""
    calls: list[Any] = [{"name": "look", "args": {}, "id": id_} for id_ in ("a", "b", "c")]
    first, later, last = (
        ToolMessage("fact " * 800, tool_call_id=id_, name="look") for id_ in ("a", "b", "c")
    )
    chat = chat_of(store)
    await chat.append([HumanMessage("Both?"), AIMessage("", tool_calls=calls[:2]), first])
    stamp = (await chat.load_history()).stamp
    await chat.append(later)
    await chat.append(AIMessage("", tool_calls=calls[2:]), stamp=stamp)
    await chat.append(last)
    await brought(other, await exported(store), tmp_path)
    for conversation in (chat, chat_of(other)):
        shown = (await conversation.load_history(HistoryPolicy(max_tokens=1_000))).messages
        assert [message.text for message in shown if message.type == "tool"] == [
            first.text,
            later.text,
            last.text,
        ]


@pytest.mark.slow
async def test_what_a_model_saw_is_seen_again_after_an_import(
    store: ConversationStore, other: ConversationStore, tmp_path: Path
) -> None:
    """Views of stamps that show no summary and that saw everything before the answer; other stamps are left out."""
    chat = await lived(store)
    early = (await chat.load_history()).stamp
    await chat.append(HumanMessage("Late?"))
    await chat.append(AIMessage("Too late.", id="late"), stamp=early)
    await brought(other, await exported(store), tmp_path)
    there = {
        stored.message.id: stored.stamp
        for stored in await chat_of(other).list_messages(limit=1_000)
    }
    assert {id_ for id_, stamp in there.items() if stamp} == {"second", "long"}
    for message in await chat.list_messages(limit=1_000):
        if stamp := there[message.message.id]:
            before, after = await chat.view_at(message.stamp), await chat_of(other).view_at(stamp)
            assert (before.match, after.match) == ("exact", "exact")
            assert after.messages == before.messages


@pytest.mark.costly
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param("q1 a1 -a1 a2 -a2 a3", id="an answer, twice"),
        pytest.param(
            "q1 a1 -a1 a2 -q1 q2 a3 -q2 q3 a4 -a4", id="an answer, then its question, twice"
        ),
        pytest.param("q1 a1 -a1 a2 undo q2 a3", id="undone"),
        pytest.param("q1 a1 -a1 a2 -a2 a3 undo undo q2 a4 -a1 a5", id="undone twice, then again"),
        pytest.param("q1 a1 -a1 undo q2 a2 -q1", id="undone at once"),
    ],
)
async def test_stamps_of_answers_that_were_regenerated_come_back(
    store: ConversationStore, other: ConversationStore, tmp_path: Path, steps: str
) -> None:
    """Rewinds are made again as they happened, and so is their undoing."""
    chat = chat_of(store)
    for step in steps.split():
        if step == "undo":
            await chat.undo_rewind()
        elif step.startswith("-"):
            await chat.rewind(before_id=step[1:])
        elif step.startswith("q"):
            await chat.append(HumanMessage(f"question {step}", id=step))
        else:
            await chat.append(
                AIMessage(f"answer {step}", id=step), stamp=(await chat.load_history()).stamp
            )
    await brought(other, await exported(store), tmp_path)
    rows = [
        await conversation.list_messages(limit=100, rewound=True)
        for conversation in (chat, chat_of(other))
    ]
    assert [row.is_rewound for row in rows[0]] == [row.is_rewound for row in rows[1]]
    for before, after in zip(*rows, strict=True):
        assert (after.stamp is None) == (before.stamp is None)
        if before.stamp and after.stamp:
            views = await chat.view_at(before.stamp), await chat_of(other).view_at(after.stamp)
            assert [view.match for view in views] == ["exact", "exact"]
            assert views[0].messages == views[1].messages


async def _shown(chat: Conversation) -> list[str]:
    return [message.message.text for message in await chat.list_messages()]


@pytest.mark.slow
async def test_variants_come_back(
    store: ConversationStore, other: ConversationStore, tmp_path: Path
) -> None:
    """Variants are exported and imported with their later turns, even an unfinished one. A second export is equal."""
    chat, there = chat_of(store), chat_of(other)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("q1", {"human": "one"}),
        ("q2", {"human": "two"}),
        ("q1", {"regenerate": "again"}),
        ("q3", {"human": "three"}),
        ("q4", {"human": "four", "instead_of": "q1"}),
        ("q4", {"regenerate": "also"}),
        ("q5", {"human": "five", "instead_of": "q4"}),
    ]
    for number, (turn_id, how) in enumerate(asked):
        async with await chat.turn(turn_id, **how) as turn:
            await turn.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}]))
            await turn.add_result(turn.open_calls[0], f"found {number}")
            await (turn.finish() if number == 4 else turn.append(AIMessage(f"answer {number}")))
    first, *_ = await chat.variants("q1")
    await chat.activate(first)
    async with await chat.turn("q2", regenerate="never finished") as turn:
        await turn.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}]))
    written = await exported(store)
    for _ in range(2):
        report = await brought(other, written, tmp_path)
        assert (report.is_complete, reasons(report)) == (True, [])
        assert await exported(other) == written
    assert await _shown(there) == await _shown(chat)
    for turn_id in ("q1", "q2", "q4"):
        assert await there.variants(turn_id) == await chat.variants(turn_id)
    for variant in [*await chat.variants("q1"), *await chat.variants("q4")]:
        await chat.activate(variant)
        await there.activate(variant)
        assert await _shown(there) == await _shown(chat)
    assert [(await copy.verify(user_id="ada")).findings for copy in (store, other)] == [(), ()]


async def test_a_second_import_activates_nothing_again(
    store: ConversationStore, other: ConversationStore, tmp_path: Path
) -> None:
    """Neither what was activated after the last message, nor instead of what a user activated here since."""
    chat, there = chat_of(store), chat_of(other)
    await chat.append([HumanMessage("one", id="q1"), AIMessage("first")])
    async with await chat.turn("q1", regenerate="again") as turn:
        await turn.append(AIMessage("second"))
    first, second = await chat.variants("q1")
    for variant in (first, second, first):
        await chat.activate(variant)
    written = await exported(store)
    for _ in range(2):
        await brought(other, written, tmp_path)
        assert await exported(other) == written
    await there.activate(second)
    await brought(other, written, tmp_path)
    assert await _shown(there) == ["one", "second"]


@pytest.mark.slow
async def test_a_forged_stamp_does_no_harm(
    store: ConversationStore, other: ConversationStore, tmp_path: Path
) -> None:
    """A forged stamp of entries and a summary that do not exist does no harm: its view is reported as different."""
    await lived(store)
    written = (await exported(store)).replace(
        b'"stamp": {', b'"stamp": {"entry": 99, "summary": "none", '
    )
    assert written.count(b'"summary": "none"') == 2
    assert (
        await brought(other, written.replace(b'"digest":"', b'"digest":"0'), tmp_path)
    ).is_complete
    stamps = [
        message.stamp
        for message in await chat_of(other).list_messages(limit=1_000)
        if message.stamp
    ]
    for stamp in stamps:
        past = await chat_of(other).view_at(stamp)
        assert (past.match, past.difference) == ("differs", "log")
    assert len(stamps) == 2


@pytest.mark.slow
@pytest.mark.parametrize("appends", sampled(range(1, 11), every=3))
async def test_an_import_that_stopped_between_any_two_appends_brings_everything_back(
    store: ConversationStore,
    other: ConversationStore,
    tmp_path: Path,
    appends: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever append, reservation or rewind was the last, the next run brings the rest, and nothing twice."""
    await lived(store)
    written = await exported(store)
    left = appends
    log = other._services.reader.log
    insert = log.insert

    async def stop(*given: Any, **more: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreUnavailableError("killed")
        return await insert(*given, **more)

    monkeypatch.setattr(type(log), "insert", staticmethod(stop))
    with pytest.raises(StoreUnavailableError):
        await brought(other, written, tmp_path)
    monkeypatch.undo()
    assert (await brought(other, written, tmp_path)).is_complete
    assert await exported(other) == written


@pytest.mark.slow
async def test_an_export_brought_back_twice_at_once(
    client: Client, database_name: str, store: ConversationStore, tmp_path: Path
) -> None:
    """Messages and rewinds are there once, in order, whichever of the imports is ahead, with any number of rewinds."""
    chat = await lived(store)
    for number in range(8):
        await chat.append(
            [HumanMessage("again?", id=f"again-{number}"), AIMessage("so", id=f"so-{number}")]
        )
        await chat.rewind(before_id=f"again-{number}")
    written = await exported(store)
    active = [message.message.id for message in await chat_of(store).list_messages(limit=1_000)]
    stores = [await ready(client, database_name, f"both{database_name}_") for _ in range(3)]
    reports = await asyncio.gather(*(brought(target, written, tmp_path) for target in stores))
    assert [report.left_out for report in reports] == [0] * 3, [
        reasons(report) for report in reports
    ]
    chat = chat_of(stores[0])
    assert same_messages(await log_of(chat), await log_of(chat_of(store)))
    assert [message.message.id for message in await chat.list_messages(limit=1_000)] == active


@examples(15, suppress_health_check=SHARED_FIXTURES)
@given(batch=st.lists(any_message, min_size=1, max_size=4, unique_by=lambda item: item.id))
async def test_any_message_goes_out_and_back(
    store: ConversationStore, other: ConversationStore, tmp_path: Path, batch: Any
) -> None:
    """Every message is equal after an export and an import, with the same id."""
    for message in batch:
        assume(not isinstance(message, ToolMessage) or message.tool_call_id)
        assume(not isinstance(message, FunctionMessage) or message.name)
    chat = chat_of(store, new_id())
    await chat.append(batch)
    written = await exported(store, scope=chat.scope)
    assert (await brought(other, written, tmp_path)).is_complete
    assert same(await log_of(other.conversation(**chat.scope)), batch)
    assert await exported(other, scope=chat.scope) == written


@pytest.mark.slow
async def test_types_of_an_application_come_back(
    client: Client, database_name: str, tmp_path: Path
) -> None:
    """Through a store that does not know them, if it is asked to keep them."""

    @dataclass
    class Place:
        x: int

    knows, stranger = await ready(client, database_name), await ready(client, database_name)
    knows.register_artifact_type(Place, name="place")
    await chat_of(knows).append([ToolMessage("r", id="r", tool_call_id="c", artifact=[Place(1)])])
    host_of(stranger).codec.keep_unknown()
    await brought(stranger, await exported(knows), tmp_path)
    written = await exported(stranger)
    assert written == await exported(knows)
    back = await ready(client, database_name)
    back.register_artifact_type(Place, name="place")
    assert (await brought(back, written, tmp_path)).is_complete
    [message] = await log_of(chat_of(back))
    assert message.artifact == [Place(1)]


@pytest.mark.slow
async def test_the_openai_format_goes_out_and_back(
    store: ConversationStore, other: ConversationStore, tmp_path: Path
) -> None:
    """The active messages with their ids, scope and title; what the format cannot hold is named."""
    chat = await lived(store)
    lines = (await exported(store, format="openai")).splitlines()
    [line] = [json.loads(line) for line in lines]
    assert (line["scope"], line["id"]) == (chat.scope, "one")
    active = [message.message.id for message in await chat.list_messages(limit=1_000)]
    assert [message["id"] for message in line["messages"]] == active
    assert (await brought(other, lines[0], tmp_path)).is_complete
    assert [message.id for message in await log_of(chat_of(other))] == active
    report = await export_conversations(store, io.BytesIO().write, format="openai")
    assert [problem.what for problem in report.problems] == ["changed"]
    assert "artifact (3 messages)" in report.problems[0].reason


async def test_fine_tuning_lines_have_nothing_but_the_core(store: ConversationStore) -> None:
    """Roles, contents, calls: no ids, artifacts or dates."""
    turn = [{"role": "user", "content": "x", "timestamp": 1.5}, AIMessage("y")]
    await chat_of(store).append([*rag_turn("Where are whales?"), *turn])
    [line] = (await exported(store, format="fine-tuning")).splitlines()
    assert json.loads(line).keys() == {"messages"}
    keys = {key for message in json.loads(line)["messages"] for key in message}
    assert keys == {"role", "content", "tool_calls", "tool_call_id", "name"}


_CALL = {"name": "search", "args": {"q": "x"}, "id": "c", "type": "tool_call"}


@pytest.mark.costly
@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ([HumanMessage("x")], "it has no answer"),
        ([HumanMessage("x"), AIMessage("", tool_calls=[_CALL])], "it has no answer"),
        ([HumanMessage(" "), AIMessage("y")], "the content of its message 1 is empty"),
        ([HumanMessage("x"), AIMessage("")], "the content of its message 2 is empty"),
        (
            [HumanMessage([{"type": "audio", "base64": "eA=="}]), AIMessage("y")],
            "a block of type 'audio'",
        ),
        (
            [HumanMessage("x"), ChatMessage(content="y", role="critic{0}"), AIMessage("z")],
            "the role 'critic{0}'",
        ),
        (
            [HumanMessage("x"), ToolMessage("y", tool_call_id="c"), AIMessage("z")],
            "a result without a call",
        ),
        (
            [HumanMessage("x"), AIMessage("", tool_calls=[_CALL]), AIMessage("z")],
            "one of its calls has no result",
        ),
        (
            [
                HumanMessage("x"),
                AIMessage("", tool_calls=[{**_CALL, "name": "se arch"}]),
                ToolMessage("y", tool_call_id="c"),
                AIMessage("z"),
            ],
            "the name of a tool",
        ),
        (
            [
                HumanMessage("x"),
                AIMessage("", tool_calls=[_CALL]),
                ToolMessage("", tool_call_id="c"),
                AIMessage("z"),
            ],
            "the content of its message 3 is empty",
        ),
    ],
)
async def test_a_turn_that_fine_tuning_refuses_is_left_out(
    store: ConversationStore, turn: Any, reason: str
) -> None:
    """A turn that fine-tuning refuses is left out as a whole and named with the reason. The others are written."""
    await chat_of(store).append([HumanMessage("first"), AIMessage("one")])
    await chat_of(store).append(turn)
    await chat_of(store).append([HumanMessage("last"), AIMessage("two")])
    written = io.BytesIO()
    report = await export_conversations(store, written.write, format="fine-tuning")
    [line] = written.getvalue().splitlines()
    assert [message["content"] for message in json.loads(line)["messages"]] == [
        "first",
        "one",
        "last",
        "two",
    ]
    assert (report.messages, report.messages_left_out, report.is_complete) == (4, 1, False)
    [problem] = [problem for problem in report.problems if problem.what == "message"]
    assert problem.where.startswith(("messages 3-", "message 3 of "))
    assert problem.reason.startswith("turn 2: ")
    assert reason in problem.reason


async def test_a_conversation_without_an_answer_is_no_line(store: ConversationStore) -> None:
    """A conversation without an answer gives no line and is left out with the reason."""
    await chat_of(store, "a").append([SystemMessage("Be kind."), HumanMessage("Hello?")])
    await chat_of(store, "b").append([SystemMessage("Be kind.")])
    written = io.BytesIO()
    report = await export_conversations(store, written.write, format="fine-tuning")
    assert (written.getvalue(), report.conversations, report.left_out) == (b"", 0, 2)
    assert sorted(reasons(report)) == [
        "no turn of it can be used: it has no answer",
        "no turn of it can be used: turn 1: it has no answer",
    ]


async def test_the_texts_of_blocks_are_trained_as_one(store: ConversationStore) -> None:
    """Reasoning and calls among the blocks are not said; a system prompt and a greeting stay."""
    said = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Yes."},
        {"type": "text", "text": "Do."},
    ]
    messages = [
        SystemMessage("Be kind."),
        AIMessage("Hello."),
        HumanMessage("May I?"),
        AIMessage(said),
    ]
    await chat_of(store).append(messages)
    [line] = (await exported(store, format="fine-tuning")).splitlines()
    assert [(message["role"], message["content"]) for message in json.loads(line)["messages"]] == [
        ("system", "Be kind."),
        ("assistant", "Hello."),
        ("user", "May I?"),
        ("assistant", "Yes.\nDo."),
    ]


async def test_only_what_was_asked_for_is_written(store: ConversationStore) -> None:
    """Scope values choose, `limit` ends; another user's conversations are not there."""
    await taken(store, *(record(f"c{number}", 1) for number in range(5)))
    await store.conversation(user_id="bob", thread_id="t").append([HumanMessage("secret")])
    written = await exported(store, scope={"user_id": "ada"})
    assert b"secret" not in written
    assert written.count(b'"end"') == 5
    assert (await exported(store, scope={"user_id": "ada"}, limit=2)).count(b'"end"') == 2
    assert await exported(store, scope={"user_id": "nobody"}) == b""
    assert await exported(store, scope={"user_id": "nobody"}, format="openai") == b""


@pytest.mark.parametrize(
    "wrong", [{"format": "xml"}, {"limit": 0}, {"scope": {"team": "x"}}, {"scope": {"user_id": ""}}]
)
async def test_an_export_that_makes_no_sense_is_refused(
    store: ConversationStore, wrong: dict[str, Any]
) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidInputError):
        await export_conversations(store, io.BytesIO().write, **wrong)


async def test_conversations_of_a_store_with_other_keys_are_named(
    store: ConversationStore, client: Client, database_name: str
) -> None:
    """Conversations with other scope keys are left out and their keys are named. The others are written."""
    await taken(store, record())
    beside = ConversationStore(
        client[f"{database_name}_transfer"], scope_keys=("team",), collection_prefix="store_"
    )
    await beside.conversation(team="red").append([HumanMessage("Hi")])
    report = await export_conversations(store, io.BytesIO().write)
    assert (report.conversations, report.left_out) == (1, 1)
    assert reasons(report)[0].startswith("its scope keys are team; make the store with these")


async def test_a_path_is_no_function_that_writes(store: ConversationStore) -> None:
    """A path in place of the function that writes is refused, and the error shows such a function."""
    with pytest.raises(InvalidInputError, match=r'such as open\(path, "wb"\)\.write, not str'):
        await export_conversations(store, "backup.jsonl")


async def test_what_writes_may_be_async(store: ConversationStore) -> None:
    """The function that writes may be async: each of its coroutines is awaited."""
    await taken(store, record())
    file = io.BytesIO()

    async def write(piece: bytes) -> None:
        file.write(piece)

    await export_conversations(store, write)
    assert file.getvalue() == await exported(store)


@pytest.mark.slow
async def test_a_conversation_that_is_appended_to_meanwhile_is_not_missed(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation that moves to the front of the listing during an export is written once."""
    monkeypatch.setattr("convstore.edges._PAGE", 2)
    await taken(store, *(record(f"c{number}", 1) for number in range(6)))
    page = await store.list_conversations(everything=True, limit=10)
    last = store.conversation(**page.conversations[-1].scope)

    async def move() -> None:
        await last.append([HumanMessage("now")])

    file, moved = io.BytesIO(), []

    def write(piece: bytes) -> None:
        file.write(piece)
        if not moved:
            moved.append(asyncio.get_running_loop().create_task(move()))

    async def listed(*given: Any, **more: Any) -> Any:
        await asyncio.gather(*moved)
        return await listing(*given, **more)

    listing = store.list_conversations
    monkeypatch.setattr(store, "list_conversations", listed)
    report = await export_conversations(store, write)
    assert report.conversations == file.getvalue().count(b'"convstore"') == 6


@pytest.mark.slow
async def test_a_damaged_conversation_is_left_out_whole(client: Client, database_name: str) -> None:
    """A damaged conversation is named and left out as a whole. The others are written."""
    store = await ready(client, database_name, f"bad{database_name}_")
    await taken(store, record("good"), record("bad"))
    log = client[database_name][f"bad{database_name}_log"]
    entry = await log.find_one(
        {"messages.id": {"$exists": True}, "first": 3, "conversation": await _id(store, "bad")}
    )
    await log.delete_one({"_id": entry["_id"]})
    file = io.BytesIO()
    report = await export_conversations(store, file.write)
    assert (report.conversations, report.left_out) == (1, 1)
    assert '"bad"' in report.problems[0].conversation
    assert b'"bad"' not in file.getvalue()


async def _id(store: ConversationStore, thread: str) -> str:
    parts = await host_of(store).services()
    known = await parts.reader.find(tuple(chat_of(store, thread).scope.items()))
    return known.conversation


async def test_documents_in_artifacts_come_back(
    store: ConversationStore, other: ConversationStore, tmp_path: Path
) -> None:
    """A retriever's documents are documents again, with their numbers."""
    found = [
        Document(page_content=f"page {n} " * 50, metadata={"n": n}, id=f"d{n}") for n in range(3)
    ]
    await chat_of(store).append([ToolMessage("x" * 999, id="r", tool_call_id="c", artifact=found)])
    await brought(other, await exported(store), tmp_path)
    [back] = await chat_of(other).get_tool_messages(["r"])
    assert back.artifact == found
    assert [source.source_id for source in back.sources] == [1, 2, 3]


async def test_messages_in_another_order_are_not_taken_for_the_same(
    store: ConversationStore,
) -> None:
    """A record whose messages are all there, but not as it has them, is reported."""
    first, two = (
        {"role": "user", "content": "one", "id": "1"},
        {"role": "assistant", "content": "two", "id": "2"},
    )
    await taken(store, ConversationRecord(id="one", messages=[first, two]))
    report = await taken(store, ConversationRecord(id="one", messages=[two, first]))
    assert (report.unchanged, report.left_out) == (0, 1)
    assert "another order" in reasons(report)[0]


async def test_annotations_that_were_changed_stay(store: ConversationStore) -> None:
    """An import again brings back what is missing, and overwrites nothing."""
    message = RecordItem(message=HumanMessage("Hi", id="1"), annotations={"rating": 1, "note": "x"})
    given = ConversationRecord(id="one", messages=[message])
    await taken(store, given)
    await chat_of(store).annotate("1", rating=5, note=None)
    await taken(store, given)
    assert await chat_of(store).annotations(["1"]) == {"1": {"rating": 5, "note": "x"}}


async def test_two_records_without_a_place_for_one_scope_are_not_joined(
    store: ConversationStore,
) -> None:
    """Records of a caller need not say where they come from."""
    given = [
        ConversationRecord(id=id_, messages=ask(number))
        for number, id_ in enumerate(("one", "two"))
    ]
    report = await taken(store, *given, scope={"user_id": "ada", "thread_id": "one"})
    assert (report.imported, report.left_out) == (1, 1)
    assert "its scope" in reasons(report)[0]
    assert await texts_of(chat_of(store)) == TEXTS[:2]


async def repaired(client: Client, name: str, *, is_overlapping: bool) -> Conversation:
    """A conversation that lost entries with sources and was repaired; rewound before and after these.

    Args:
        client: To the server.
        name: Of the database.
        is_overlapping: A second writer wrote in the hole, under ordinals that the first one used after it.
    """
    scope = {"user_id": new_id(), "thread_id": "one"}
    ahead, behind, fresh = (ConversationStore(client[name]).conversation(**scope) for _ in range(3))
    await ahead.store.setup()
    await talk(ahead, range(4))
    await ahead.append(
        [
            *rag_turn("Where are whales?"),
            HumanMessage("wrong", id="wrong"),
            AIMessage("no", id="no"),
        ]
    )
    await ahead.rewind(before_id="wrong")
    await talk(ahead, range(4, 5))
    backup = await saved(client[name], ahead)
    await talk(behind, range(5, 7))
    await ahead.append(rag_turn("Lost seals?"))
    await restore(client[name], backup)
    await ahead.append(rag_turn("Where are orcas?"))
    if is_overlapping:
        await talk(behind, range(30, 31), answers=20)
    await talk(ahead, range(22, 24))
    await fresh.store.verify(**scope, repair=True)
    await fresh.append([HumanMessage("worse", id="worse"), AIMessage("bad", id="bad")])
    await fresh.rewind(before_id="worse")
    await fresh.append([HumanMessage("last", id="last"), AIMessage("done")])
    await fresh.annotate("last", rating=1)
    return fresh


@pytest.mark.slow
@pytest.mark.parametrize("is_overlapping", [False, True])
async def test_a_repaired_conversation_goes_out_and_back(
    client: Client,
    database_name: str,
    store: ConversationStore,
    tmp_path: Path,
    is_overlapping: bool,
) -> None:
    """Rewound ranges and the ids of sources stay."""
    chat = await repaired(client, database_name, is_overlapping=is_overlapping)
    messages = await log_of(chat)
    written = await exported(chat.store, scope=chat.scope)
    *lines, last = [json.loads(line) for line in written.splitlines()][1:]
    assert [line["ordinal"] for line in lines] == list(range(1, len(messages) + 1))
    assert [messages[first - 1].id for first, _ in last["end"]["rewound"]] == ["wrong", "worse"]
    assert last["end"]["messages"] == len(messages)
    assert (await chat.list_messages())[-1].ordinal == len(messages)
    report = await brought(store, written, tmp_path)
    assert (report.imported, report.is_complete, reasons(report)) == (1, True, [])
    back = store.conversation(**chat.scope)
    assert same_messages(await log_of(back), messages)
    assert same_messages((await back.load_history()).messages, (await chat.load_history()).messages)
    assert await sources_of(back) == await sources_of(chat)
    assert await back.annotations(["last"]) == {"last": {"rating": 1}}
    assert (await back.info()).message_count == (await chat.info()).message_count
    assert (await brought(store, written, tmp_path)).unchanged == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_overlapping", [False, True])
async def test_a_repaired_conversation_is_extended(
    client: Client, database_name: str, is_overlapping: bool
) -> None:
    """What it lost counts as no message of others; a message of another is found as always."""
    chat = await repaired(client, database_name, is_overlapping=is_overlapping)
    known = [RecordItem(message=message) for message in await log_of(chat)]
    grown = ConversationRecord(id="one", messages=[*known, HumanMessage("more", id="more")])
    rewound = [
        message
        for message in await chat.list_messages(limit=1_000, rewound=True)
        if message.is_rewound
    ]
    report = await taken(chat.store, grown, scope=chat.scope)
    noted = [f"still rewound: {len(rewound)} messages that the source shows; see undo_rewind"]
    assert (report.extended, report.messages, reasons(report)) == (1, 1, noted)
    await chat.append(HumanMessage("from elsewhere"))
    grown = ConversationRecord(
        id="one", messages=[*grown.messages, HumanMessage("and more", id="and more")]
    )
    assert (
        "has 1 message that the source lacks"
        in reasons(await taken(chat.store, grown, scope=chat.scope))[0]
    )


async def sources_of(chat: Conversation) -> dict[int, str]:
    """Texts of all sources by number."""
    pages = [await chat.get_sources([number], page_tokens=16_000) for number in range(1, 60)]
    return {source.source_id: source.content for page in pages for source in page.sources}


async def test_the_head_of_an_import_names_its_last_entry(
    store: ConversationStore,
    other: ConversationStore,
    client: Client,
    database_name: str,
    tmp_path: Path,
) -> None:
    """So `verify` finds an import that lost its end, however fast its entries were written."""
    chat = chat_of(store)
    for number in range(3):
        await chat.append(ask(number))
    path = tmp_path / "all.jsonl"
    path.write_bytes(await exported(store))
    assert (await import_conversations(other, read_file(path))).imported == 1
    heads = client[f"{database_name}_transfer"]["other_heads"]
    head = await heads.find_one({"scope": {"$exists": True}})
    assert head is not None
    assert head["entry"][0] == 3
