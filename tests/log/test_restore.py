"""A backup that is restored beneath running processes, on a real server: what it costs, and what is found."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import Any

import pytest
from counting import Commands, cold
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore
from convstore.exceptions import BrokenLogError, StoreUnavailableError
from convstore.integration import host_of
from convstore.runtime import log_reader as reader
from convstore.runtime.clock import Clock
from convstore.summarization import HeadTailSummarizer
from convstore.testing import rag_turn
from convstore.testing.fixtures import ahead
from convstore.testing.restoring import restore, saved, talk, texts
from convstore.values.policy import CompactionRule

Client = AsyncMongoClient[dict[str, Any]]


@pytest.fixture
async def chat(client: Client, database_name: str, seconds: list[float]) -> Conversation:
    """A conversation on the counted client."""
    store = ConversationStore(client[database_name], clock=Clock(monotonic=lambda: seconds[0]))
    await store.setup()
    return store.conversation(user_id=uuid.uuid4().hex, thread_id=uuid.uuid4().hex)


def turn() -> list[HumanMessage | AIMessage]:
    """A turn that was never appended."""
    return [HumanMessage("q", id=uuid.uuid4().hex), AIMessage("a", id=uuid.uuid4().hex)]


async def test_an_idle_store_reads_the_last_entry_while_it_checks_the_id(
    chat: Conversation, commands: Commands, seconds: list[float]
) -> None:
    """After ten idle seconds, an append checks the conversation's id and reads the last entry before it inserts.

    Before that it only inserts.
    """
    await talk(chat, range(2))
    for idle, expected in (
        (9, ["insert"]),
        (11, ["aggregate", "find", "insert", "update"]),
        (0, ["insert"]),
    ):
        seconds[0] += idle
        with commands.counted():
            await chat.append(turn())
        assert commands.names == expected


async def test_an_old_tail_is_read_though_the_id_was_checked_since(
    chat: Conversation, commands: Commands, seconds: list[float]
) -> None:
    """A look-up by id checks the id alone."""
    await talk(chat, range(2))
    seconds[0] += 11
    await chat.get_tool_messages(["x"])
    with commands.counted():
        await chat.append(turn())
    assert commands.names == ["find", "insert", "update"]


async def test_an_idle_store_continues_after_what_another_appended(
    chat: Conversation, client: Client, database_name: str, commands: Commands, seconds: list[float]
) -> None:
    """A log that only has more is no other one; the number after its end is tried at once."""
    await talk(chat, range(2))
    await talk(cold(client, database_name, chat), range(2, 5))
    seconds[0] += 11
    with commands.counted():
        await talk(chat, range(5, 6))
    assert commands.names.count("insert") == 1
    assert await texts(chat) == [f"q{number}" for number in range(6)]
    await chat.store.close()
    assert (await cold(client, database_name, chat).info()).message_count == 12
    assert (await cold(client, database_name, chat).store.verify(**chat.scope)).counts.get(
        "head_totals"
    ) is None


@pytest.mark.costly
@pytest.mark.parametrize("idle", [0, 5])
async def test_what_a_young_store_appends_is_found(
    chat: Conversation, client: Client, seconds: list[float], database: Any, idle: int
) -> None:
    """If a store appends after a gap in a restored log, every reader reports the missing entry and names the doctor."""
    await talk(chat, range(5))
    backup = await saved(database, chat)
    await talk(chat, range(5, 10))
    await chat.load_history()
    await restore(database, backup)
    seconds[0] += idle
    assert (await chat.append(turn())).first == 21
    other = cold(client, database.name, chat)
    for conversation in (chat, other, chat, other):
        with pytest.raises(BrokenLogError, match=r"entry is missing.*doctor --repair"):
            await conversation.load_history()
        with pytest.raises(BrokenLogError, match="entry is missing"):
            _ = [message async for message in conversation.messages()]
        with pytest.raises(BrokenLogError, match="entry is missing"):
            await conversation.list_messages()


async def test_a_fork_without_a_hole_is_found(
    chat: Conversation, client: Client, database_name: str, database: Any
) -> None:
    """Entries that do not follow each other are reported, even if another process left no gap between them."""
    await talk(chat, range(5))
    backup = await saved(database, chat)
    await talk(chat, range(5, 10))
    await restore(database, backup)
    other = cold(client, database_name, chat)
    await talk(other, range(20, 25))
    await chat.append(turn())
    for conversation in (chat, other, cold(client, database_name, chat)):
        with pytest.raises(
            BrokenLogError, match=r"does not follow the entry before it.*doctor --repair"
        ) as raised:
            await conversation.load_history()
        assert raised.value.document_id.endswith(f":{11:012d}")
        with pytest.raises(BrokenLogError, match="does not follow"):
            _ = [message async for message in conversation.messages()]


@pytest.mark.slow
async def test_a_fork_is_found_between_two_batches_of_entries(
    chat: Conversation, client: Client, database_name: str, database: Any
) -> None:
    """The first entry of each batch must follow the last one of the batch before it."""
    await talk(chat, range(reader._ENTRIES_AT_ONCE - 2))
    backup = await saved(database, chat)
    await talk(chat, range(1_000, 1_002))
    await restore(database, backup)
    await talk(cold(client, database_name, chat), range(2_000, 2_002))
    await chat.append(turn())
    with pytest.raises(BrokenLogError, match="does not follow") as raised:
        _ = [message async for message in cold(client, database_name, chat).messages()]
    assert raised.value.document_id.endswith(f":{reader._ENTRIES_AT_ONCE + 1:012d}")


@pytest.mark.slow
async def test_a_page_that_watches_drops_what_a_restored_log_lacks(
    chat: Conversation, database: Any, seconds: list[float]
) -> None:
    """A watched page replaces all its messages after a restore, because even its first message may be another one."""
    await talk(chat, range(5))
    backup = await saved(database, chat)
    await talk(chat, range(5, 7))
    async with aclosing(chat.watch()) as updates:
        assert len((await anext(updates)).messages) == 14
        seconds[0] += 11
        await restore(database, backup)
        async with asyncio.timeout(60):
            update = await anext(updates)
        assert (update.replaces_from, len(update.messages)) == (1, 10)


async def test_a_young_store_reports_a_lost_end_once(
    chat: Conversation, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary that was just elected may have less for a moment; then what is there counts."""
    monkeypatch.setattr(reader, "_PAUSES", (0.0, 0.0))
    await talk(chat, range(5))
    backup = await saved(database, chat)
    await talk(chat, range(5, 10))
    await restore(database, backup)
    with pytest.raises(StoreUnavailableError, match="all acknowledged writes"):
        await chat.load_history()
    assert await texts(chat) == [f"q{number}" for number in range(5)]
    assert (await chat.append(turn())).first == 11


async def test_an_append_after_a_restored_end_is_read_at_once(
    chat: Conversation, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an append that failed, the store reads the end again: what it acknowledged before is not waited for."""

    async def is_lost(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("no answer")

    await talk(chat, range(5))
    backup = await saved(database, chat)
    await talk(chat, range(5, 10))
    await restore(database, backup)
    monkeypatch.setattr((await host_of(chat).services()).writer._log, "insert", is_lost)
    with pytest.raises(StoreUnavailableError, match="no answer"):
        await chat.append(turn())
    monkeypatch.undo()
    assert (await chat.append(turn())).first == 11
    assert await texts(chat) == [*(f"q{number}" for number in range(5)), "q"]


async def repaired(chat: Conversation) -> None:
    """Let the doctor repair a conversation, and look again."""
    user = chat.scope["user_id"]
    report = await chat.store.verify(user_id=user, repair=True)
    assert {finding.repaired for finding in report.findings if finding.collection == "log"} == {
        True
    }
    assert [
        finding
        for finding in (await chat.store.verify(user_id=user)).findings
        if finding.collection == "log"
    ] == []


@pytest.mark.costly
@pytest.mark.parametrize("idle", [0, 5])
@pytest.mark.parametrize("answers", [1, 3, 20])
async def test_two_writers_with_different_tails_lose_nothing_that_was_acknowledged(
    client: Client, database: Any, seconds: list[float], idle: int, answers: int
) -> None:
    """Two writers with different tails of a restored log lose no acknowledged message.

    After a repair all readers see the messages of both, and both can append.
    """
    clock = Clock(monotonic=lambda: seconds[0])
    stores = [ConversationStore(client[database.name], clock=clock) for _ in range(2)]
    await stores[0].setup()
    scope = {"user_id": uuid.uuid4().hex, "thread_id": "t"}
    ahead, behind = (store.conversation(**scope) for store in stores)
    await talk(ahead, range(5))
    backup = await saved(database, ahead)
    await talk(behind, range(5, 7))
    await talk(ahead, range(7, 10))
    await restore(database, backup)
    seconds[0] += idle
    await talk(ahead, range(20, 22))
    await talk(behind, range(30, 31), answers=answers)
    await talk(ahead, range(22, 23))
    fresh = ConversationStore(client[database.name]).conversation(**scope)
    with pytest.raises(BrokenLogError):
        await fresh.load_history()
    await repaired(fresh)
    seconds[0] += 11
    expected = ["q0", "q1", "q2", "q3", "q4", "q30", "q20", "q21", "q22"]
    for chat in (ahead, behind, fresh):
        assert await texts(chat) == expected
        assert [
            message.text async for message in chat.messages() if message.type == "human"
        ] == expected
    assert (await fresh.info()).message_count == 2 * 9 + answers - 1
    assert (await behind.append(turn())).first == 2 * 9 + answers
    await talk(ahead, range(40, 41))
    assert await texts(fresh) == [*expected, "q", "q40"]
    assert (await fresh.store.verify(user_id=scope["user_id"])).counts.get("totals") is None


@pytest.mark.slow
async def test_numbers_of_lost_sources_are_not_given_again(
    chat: Conversation, database: Any
) -> None:
    """Nor does a new source say that it was shown under one of them."""
    await chat.append(rag_turn("What about seals?"))
    backup = await saved(database, chat)
    lost = rag_turn("And orcas?")
    first, last = (await chat.append(lost)).source_ids or (0, 0)
    await chat.append(turn())
    await restore(database, backup)
    await chat.append(turn())
    fresh = ConversationStore(database).conversation(**chat.scope)
    report = await fresh.store.verify(**chat.scope)
    assert [finding.lost_source_ids for finding in report.findings if finding.kind == "hole"] == [
        (first, last)
    ]
    await repaired(fresh)
    again = rag_turn("And orcas?")
    given = (await fresh.append(again)).source_ids or (0, 0)
    assert given[0] > last
    assert {
        source.earlier_id
        for source in (await fresh.get_sources(range(given[0], given[1] + 1))).sources
    } == {None}
    assert (await fresh.get_sources([first])).not_found == [first]


@pytest.mark.slow
async def test_a_summary_of_lost_messages_is_not_shown(database: Any) -> None:
    """A summary of lost messages is not shown if only the log was restored. The next compaction makes a new one."""
    rule = CompactionRule(max_tokens_before_summary=200, max_summary_tokens=50, keep_last_turns=1)
    store = ConversationStore(database, summarizer=HeadTailSummarizer(rule))
    chat = store.conversation(user_id=uuid.uuid4().hex, thread_id="t")
    await talk(chat, range(5), answers=20)
    backup = await saved(database, chat)
    await talk(chat, range(5, 10), answers=20)
    assert (await chat.compact(force=True)).status == "done"
    await restore(database, {"log": backup["log"]})
    await chat.append(turn())
    fresh = ConversationStore(database, summarizer=HeadTailSummarizer(rule)).conversation(
        **chat.scope
    )
    await repaired(fresh)
    assert (await fresh.load_history()).summary is None
    assert (await fresh.compact(force=True)).status == "done"
    expected = await fresh.load_history()
    assert expected.summary is not None
    again = ConversationStore(database).conversation(**chat.scope)
    assert (await again.load_history()).messages == expected.messages


@pytest.mark.slow
async def test_a_repair_during_appends_loses_nothing(client: Client, database: Any) -> None:
    """The first entry in a hole or at the end stays, whichever process wrote it; what came late, after a sweep."""
    stores = [ConversationStore(client[database.name]) for _ in range(4)]
    scope = {"user_id": uuid.uuid4().hex, "thread_id": "t"}
    chats = [store.conversation(**scope) for store in stores]
    await stores[0].setup()
    await talk(chats[0], range(5))
    backup = await saved(database, chats[0])
    for number, chat in enumerate(chats):
        await talk(chat, range(10 + number, 11 + number))
    await restore(database, backup)
    await talk(chats[-1], range(20, 21))

    async def write(number: int) -> None:
        await talk(chats[number], range(100 * (number + 1), 100 * (number + 1) + 10))

    doctor = ConversationStore(client[database.name])
    await asyncio.gather(
        *map(write, range(3)), doctor.verify(user_id=scope["user_id"], repair=True)
    )
    await doctor.verify(user_id=scope["user_id"], repair=True)
    # moves what a writer put into the old log after it was copied
    sweeper = await host_of(ConversationStore(client[database.name], clock=ahead(90))).services()
    await sweeper.retention.sweep()
    fresh = ConversationStore(client[database.name]).conversation(**scope)
    found = [message.text async for message in fresh.messages() if message.type == "human"]
    written = [f"q{number}" for start in (100, 200, 300) for number in range(start, start + 10)]
    assert sorted(found) == sorted([*(f"q{number}" for number in range(5)), "q20", *written])
    assert await texts(fresh) == found
    assert (await fresh.info()).message_count == 2 * len(found)
    assert [
        finding
        for finding in (await doctor.verify(user_id=scope["user_id"])).findings
        if finding.collection == "log"
    ] == []
