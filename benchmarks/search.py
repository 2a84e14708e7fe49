"""Find out what a search costs: its time, the time it adds to appends, and the bytes of the index.

Run: ``python benchmarks/search.py [--tokens 500000] [--conversations 200]``, on a private real MongoDB, in minutes.

A conversation of generated prose and one of Python's own source files are searched by stores that see them for the
first time: with segments, by scanning the log, and by MongoDB's text index over one document for each message. Then
the conversations of one user are searched together. Times are medians, with the shortest in brackets: on a busy
machine the shortest says more. The processor time of a search includes the driver's.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sysconfig
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pymongo import AsyncMongoClient
from reach_data import own, text_of

from convstore import Conversation, ConversationStore
from convstore.devserver import DevServer
from convstore.integration import host_of
from convstore.messages.tokens import approximate_tokens

_CODE_QUERIES = (
    "where is the socket timeout set",
    "parse the header of a zip file",
    "def _check_closed",
    "weakref",
)
_SEARCHES, _APPENDS = 40, 600


def code(tokens: int) -> Iterator[list[BaseMessage]]:
    """Yield turns in which an agent reads files of Python's standard library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    for number, path in enumerate(files):
        text = path.read_text("utf-8", "replace")[:60_000]
        call = {"name": "read_file", "args": {"path": path.name}, "id": f"call-{number}"}
        yield [
            HumanMessage(f"What does {path.name} do?", id=f"q{number}"),
            AIMessage("", tool_calls=[call], id=f"c{number}"),
            ToolMessage(text, tool_call_id=call["id"], name="read_file", id=f"r{number}"),
            AIMessage(f"{path.stem}: {text[:200]}", id=f"a{number}"),
        ]
        tokens -= len(text) // 4
        if tokens < 0:
            return


def prose(tokens: int) -> tuple[list[list[BaseMessage]], list[str]]:
    """Return turns of prose, and questions about them."""
    [conversation] = own(tokens=tokens, names=["household"])
    return conversation.turns, [question.text for question in conversation.questions]


async def fill(chat: Conversation, turns: Iterable[list[BaseMessage]]) -> int:
    """Append turns, seal them all but the last ten, and return their tokens."""
    turns, tokens = list(turns), 0
    for number, turn in enumerate(turns):
        await chat.append(turn)
        tokens += approximate_tokens(turn)
        if number == len(turns) - 10:
            await seal(chat)
    return tokens


async def seal(chat: Conversation) -> None:
    """Seal a conversation, as the timer of its store does."""
    sealer = (await host_of(chat).services()).sealer
    await sealer.seal(tuple(chat.scope.items()))


async def timed(
    name: str, queries: Sequence[str], search: Callable[[str], Awaitable[object]], searches: int
) -> None:
    """Print how long searches take."""
    await search(queries[0])
    walls, busy = [], []
    for number in range(searches):
        began, began_busy = time.perf_counter(), time.process_time()
        await search(queries[number % len(queries)])
        walls.append((time.perf_counter() - began) * 1_000)
        busy.append((time.process_time() - began_busy) * 1_000)
    wall, shortest, cpu = statistics.median(walls), min(walls), statistics.median(busy)
    print(f"  {name:24}{wall:8.1f} ms ({shortest:.1f}), processor {cpu:.1f} ms")


async def one_conversation(
    database: Any, kind: str, turns: Sequence[list[BaseMessage]], queries: Sequence[str]
) -> None:
    """Measure searches of one conversation from new stores, and the size of its segments."""
    store = ConversationStore(database)
    await store.setup()
    chat = store.conversation(user_id="bench", thread_id=kind)
    tokens = await fill(chat, turns)
    characters = sum(len(text_of(message)) for turn in turns for message in turn)
    print(f"{kind}: {tokens:,} tokens, {characters / 1e6:.1f} MB of text")
    documents = await database["search"].find({}, {"sections": 1}).to_list(None)
    own_bytes = sum(len(data) for document in documents for data in document["sections"].values())
    print(f"  segments: {len(documents)}, {own_bytes / characters:.1%} of the text")

    def searching(**options: Any) -> Callable[[str], Awaitable[object]]:
        return lambda query: (
            ConversationStore(database, **options).conversation(**chat.scope).search(query)
        )

    await timed("segments", queries, searching(), _SEARCHES)
    await timed("scan of the log", queries, searching(search_index=False), 3)
    texts = database[f"texts_{kind}"]
    await texts.create_index([("text", "text")])
    await texts.insert_many([{"text": text_of(message)} for turn in turns for message in turn])

    async def text_search(query: str) -> object:
        score = {"score": {"$meta": "textScore"}}
        return (
            await texts.find({"$text": {"$search": query}}, score)
            .sort(score)
            .limit(20)
            .to_list(None)
        )

    await timed("$text of MongoDB", queries, text_search, _SEARCHES)
    await database.client.admin.command("fsync")  # sizes are those of the last checkpoint
    size = (await database.command("collStats", texts.name))["indexSizes"]["text_text"]
    print(f"  its index: {size / characters:.1%} of the text")
    await database["search"].delete_many({})


async def across(
    database: Any, conversations: int, turns: Sequence[list[BaseMessage]], queries: Sequence[str]
) -> None:
    """Measure searches over the conversations of one user, each of about a hundred messages."""
    store, dice = ConversationStore(database), random.Random(1)  # noqa: S311 - a sample
    for number in range(conversations):
        chat, numbers, messages = (
            store.conversation(user_id="many", thread_id=f"{number}"),
            count(),
            0,
        )
        while messages < 100:
            turn = [
                message.model_copy(update={"id": f"m{next(numbers)}"})
                for message in dice.choice(turns)
            ]
            messages += len(turn)
            await chat.append(turn)
        await seal(chat)
    print(f"across {conversations} conversations of 100 messages")
    await timed(
        "segments",
        queries,
        lambda query: ConversationStore(database).search(query, user_id="many"),
        _SEARCHES,
    )
    await store.close()


async def appends(database: Any, turns: Sequence[list[BaseMessage]]) -> None:
    """Print the processor time of an append with the index and without it, one after the other in turns."""
    spent: dict[bool, list[float]] = {True: [], False: []}
    stores = {has_index: ConversationStore(database, search_index=has_index) for has_index in spent}
    chats = {
        value: store.conversation(user_id="appends", thread_id=str(value))
        for value, store in stores.items()
    }
    for number, turn in enumerate(turns[:_APPENDS]):
        for has_index in (True, False) if number % 2 else (False, True):
            began = time.process_time()
            await chats[has_index].append(turn)
            spent[has_index].append((time.process_time() - began) * 1_000)
    for store in stores.values():
        await store.close()
    plain, indexed = statistics.median(spent[False]), statistics.median(spent[True])
    print(f"appends: {plain:.2f} ms of processor time, {indexed / plain - 1:+.1%} with the index")


async def main(tokens: int, conversations: int) -> None:
    """Measure everything."""
    turns, queries = prose(tokens)
    with DevServer() as server:
        async with AsyncMongoClient[dict[str, Any]](server.uri) as client:
            await one_conversation(client["bench"], "prose", turns, queries)
            await one_conversation(client["bench"], "code", list(code(tokens)), _CODE_QUERIES)
            await across(client["bench"], conversations, turns, queries)
            await appends(client["bench"], turns)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=500_000)
    parser.add_argument("--conversations", type=int, default=200)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.tokens, arguments.conversations))
