"""What rewinds cost: their size in the log, and the time of a cold load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from counting import Commands, cold
from langchain_core.messages import AIMessage, HumanMessage
from properties import soaked

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.log.entry import Entry, EntryMessage, Totals
from convstore.log.rewind import NO_REWINDS, ActiveChange, rewind_entry
from convstore.messages.encoding import digest_of
from convstore.mongo.documents import entry_document, entry_from

pytestmark = pytest.mark.slow

POLICY = HistoryPolicy(max_tokens=2_000)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def log_of(count: int, made_of: Entry) -> Iterator[Entry]:
    """Return a log of questions, given an entry with one and its answer. Each answer was rewound."""
    tail, rewinds, (question, answer) = (
        Totals(counter=made_of.totals.counter),
        NO_REWINDS,
        made_of.messages,
    )
    for number in range(count):
        first, point = tail.messages + 1, counted(tail, question, turns=1)
        messages = tuple(
            numbered(message, ordinal, f"{message.id}{number}")
            for ordinal, message in enumerate((question, answer), first)
        )
        totals = replace(
            counted(point, answer),
            entries=tail.entries + 1,
            link=first,
            updated_at=AT,
            messages=first + 1,
        )
        yield Entry(first, AT, messages, totals, after=tail.link)
        change = ActiveChange(rewinds.ranges, first + 1, totals.entries + 1, point)
        made = rewind_entry(totals, rewinds, change, at=AT, link=first + 1)
        rewinds, tail = rewinds.after(made), made.totals
        yield made


def numbered(message: EntryMessage, ordinal: int, id_: str) -> EntryMessage:
    """Return a message at another place, with another id."""
    body = message.body.replace(f'"id":"{message.id}"', f'"id":"{id_}"')
    return replace(message, ordinal=ordinal, id=id_, body=body, digest=digest_of(body))


def counted(totals: Totals, message: EntryMessage, *, turns: int = 0) -> Totals:
    """Return totals with a message added."""
    return replace(
        totals,
        active=totals.active + 1,
        turns=totals.turns + turns,
        tokens=totals.tokens + message.tokens,
        view_tokens=totals.view_tokens + message.view_tokens,
        stored_bytes=totals.stored_bytes + message.stored_bytes,
    )


async def store_log(chat: Conversation, database: Any, count: int) -> int:
    """Give a conversation a log with many rewinds; return the size of its rewind entries in bytes."""
    await chat.append([HumanMessage("Why? " * 100, id="q"), AIMessage("Because.", id="a")])
    head = await database["heads"].find_one({"scope.thread_id": chat.scope["thread_id"]})
    [document] = (
        await database["log"].find({"_id": f"{head['conversation']}:{1:012d}"}).to_list(None)
    )
    await database["log"].delete_one({"_id": document["_id"]})
    size, batch = 0, list[dict[str, Any]]()
    for entry in log_of(count, entry_from(document)):
        batch.append(entry_document(head["conversation"], entry))
        size += len(bson.encode(batch[-1])) if entry.is_rewind else 0
        if len(batch) == 5_000:
            await database["log"].insert_many(batch)
            batch = []
    if batch:
        await database["log"].insert_many(batch)
    return size


@pytest.mark.parametrize("count", soaked([3_000, 12_000], first=1))
async def test_rewinds_stay_small_and_a_load_after_them_fast(own_database: Any, count: int) -> None:
    """An entry is about 500 bytes; a process that is new to the log reads what it shows and two lists."""
    store, scope = ConversationStore(own_database), {"user_id": "ada", "thread_id": str(count)}
    await store.setup()
    size = await store_log(store.conversation(**scope), own_database, count)
    assert size < 600 * count
    chat = ConversationStore(own_database).conversation(**scope)
    history = await chat.load_history(POLICY)
    assert [message.id for message in history.messages[-2:]] == [f"q{count - 2}", f"q{count - 1}"]
    assert await chat.rewind(before_id=f"q{count - 2}") == 2
    assert await chat.undo_rewind() == 2
    again = ConversationStore(own_database).conversation(**scope)
    assert [message.id for message in (await again.load_history(POLICY)).messages] == [
        message.id for message in history.messages
    ]


async def test_a_whole_list_is_read_along_with_the_rewind_entry(
    own_database: Any, commands: Commands, client: Any
) -> None:
    """A cold load reads the rewind entry and the entry of its whole list if neither is among the last entries."""
    store, scope = ConversationStore(own_database), {"user_id": "ada", "thread_id": "t"}
    await store.setup()
    await store_log(store.conversation(**scope), own_database, 100)
    chat = ConversationStore(own_database).conversation(**scope)
    for number in range(60):
        await chat.append([HumanMessage("Why? " * 100, id=f"later{number}"), AIMessage("So.")])
    with commands.counted():
        history = await cold(client, own_database.name, chat).load_history(POLICY)
    entries = [command["filter"].get("_id") for name, command in commands.sent if name == "find"]
    numbers = [int(key.partition(":")[2]) for key in entries if isinstance(key, str) and ":" in key]
    assert numbers == [130, 200]
    assert history.report.documents == commands.documents
