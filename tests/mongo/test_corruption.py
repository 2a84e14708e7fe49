"""Stored documents that are not what was written: damaged, cut off, or changed by hand.

Every public read gives the right answer or an error that names the document, and what other documents hold stays
readable. With CONVSTORE_LONG=2 each single value of each document is damaged, else one of each kind.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
import zstandard
from fixture_types import Client
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from mongomock_motor import AsyncMongoMockClient
from properties import parts
from pymongo.errors import DuplicateKeyError
from stored_values import Path, at, changed, paths

from convstore import Conversation, ConversationStore, ConvstoreError, HistoryPolicy
from convstore.chain import ChainSummarizer, ChainSummarizerConfig
from convstore.exceptions import CorruptDocumentError
from convstore.messages.compression import CHUNK_BYTES, decompress
from convstore.messages.values import Codec
from convstore.mongo.summaries import own_document, summary_from
from convstore.testing import rag_turn, same_messages
from convstore.values.policy import CompactionRule

LONG = int(os.environ.get("CONVSTORE_LONG", "1"))
RULE = CompactionRule(max_tokens_before_summary=300, max_summary_tokens=20, keep_last_turns=1)
WHOLE = HistoryPolicy(max_tokens=None, stub_tools="never")
LIKE_OTHERS = {
    "load_history, cut",
    "turns, newest first",
    "get_sources of messages",
    "the tool, finding",
    "get_turn",
}
"""Reads that are left out of the short form."""
Read = Callable[[], Awaitable[Any]]

# What is looked up by an index is not found when it is damaged, as if it were not there.
FOUND_BY = {
    ("log", "conversation"),
    ("log", "first"),
    ("log", "messages"),
    ("log", "messages.*"),
    ("log", "messages.*.id"),
    ("log", "results_at"),
    ("log", "sources"),
    ("log", "sources.*"),
    ("log", "sources.*.first"),
    ("log", "sources.*.last"),
    ("log", "sources.*.message"),
    ("log", "lookup"),
    ("log", "lookup.*"),
    ("heads", "scope"),
    ("heads", "scope.*"),
    ("heads", "updated_at"),
    ("heads", "conversation"),
    ("annotations", "conversation"),
}
# What only helps to find or to show something is checked for its type; `verify` compares it with the messages.
TOLD = {
    ("log", "messages.*.arguments"),
    ("log", "messages.*.calls"),
    ("log", "messages.*.content_digest"),
    ("log", "messages.*.sources"),
    ("log", "messages.*.stub"),
    ("log", "messages.*.tool"),
    ("log", "messages.*.type"),
    ("log", "sources.*.titles.*"),
    ("log", "sources.*.urls"),  # a missing column is one of empty values
    ("log", "sources.*.urls.*"),
    ("log", "sources.*.earlier.*"),
    ("log", "sources.*.given.*"),
    ("log", "sources.*.plain.*"),
    ("log", "sources.*.digests"),
    ("log", "summary"),
    ("heads", "details"),
    ("heads", "details.*"),
    ("summaries", "folded"),
    ("summaries", "folded.*"),
    ("summaries", "folded.*.*"),
}


class Writer:
    """A summarizer that needs no model."""

    name, rule = "scripted", RULE

    async def summarize(self, messages: list[BaseMessage], *, summary: str | None) -> str:
        """A few words."""
        return f"{summary or 'So far'}+{len(messages)}"


async def shorten(prompt: str) -> str:
    """The model of the chain summarizer."""
    return f"a part of {len(prompt)}"


def summarizer(kind: str) -> Any:
    """Return a summarizer that writes text, or one of chains."""
    config = ChainSummarizerConfig(last_section_bytes=3_000, max_pair_bytes=1_500)
    return Writer() if kind == "text" else ChainSummarizer(shorten, config=config, rule=RULE)


class Damage:
    """A conversation with all that can be stored, what is read of it, and its documents."""

    def __init__(self, database: Any) -> None:
        self.database = database
        self.collections = ["log", "heads", "summaries", "annotations"]
        self.right: dict[str, str] = {}

    def chat(self) -> Conversation:
        """The conversation as a process has it that knows nothing of it."""
        store = ConversationStore(self.database, summarizer=Writer())
        store._host.schema.is_ready = True
        return store.conversation(user_id="ada", thread_id="t")

    async def fill(self, kind: str) -> None:
        """Small and large messages, sources beside and in payloads, a rewind, a reservation, summaries, labels."""
        store = ConversationStore(self.database, summarizer=summarizer(kind))
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        first, last = rag_turn("About seals?", sources=2), rag_turn("More on whales?", sources=2)
        first[2].id, last[2].id = "r1", "r5"
        first[3].content = "They sleep in the sea. " * 100
        await chat.append(first)
        call = {"name": "find", "args": {"q": 1}, "id": "k2"}
        used = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
        small = ToolMessage(
            "x",
            id="r2",
            tool_call_id="k2",
            artifact=[("short \ud800", {"title": "T\ud800", "source_id": 40})],
        )
        asked = AIMessage("", id="c2", tool_calls=[call], usage_metadata=used)
        await chat.append([HumanMessage("q", id="q2"), asked, small, AIMessage("ok", id="a2")])
        await chat.append([HumanMessage("paste " * 4_000, id="q3"), AIMessage("fine", id="a3")])
        await chat.append([HumanMessage("gone", id="q4"), AIMessage("gone", id="a4")])
        await chat.rewind(before_id="q4")
        await chat.reserve_source_ids(3)
        await chat.append(last)
        now = AIMessage("", id="c6", tool_calls=[{**call, "id": "k6"}])
        result = ToolMessage("line\n" * 1_000, id="r6", tool_call_id="k6")
        await chat.append([HumanMessage("now", id="q6"), now, result])
        assert (await chat.compact(force=True)).status == "done"
        await chat.annotate("r2", rating=1, why="x")
        await chat.state.update({"step": 1})
        await chat.update(title="Seals", metadata={"a": 1})
        self.ids = [str(message.id) async for message in chat.messages(rewound=True)]
        await store.close()
        self.right = {name: repr(await read()) for name, read in self.reads().items()}

    def reads(self) -> dict[str, Read]:
        """Every public read, by a process that knows nothing yet."""
        chat = self.chat()
        tool = chat.retrieve_previous_sources_tool()
        results = ["r1", "r2", "r5", "r6", "q3"]

        async def view(policy: HistoryPolicy | None) -> Any:
            history = await chat.load_history(policy)
            return history.messages, history.summary, history.tokens

        async def expanded() -> Any:
            return [
                await chat.expand_summary(summary.version) for summary in await chat.summaries()
            ]

        async def listed(reading: AsyncIterator[Any]) -> list[Any]:
            return [item async for item in reading]

        async def listing() -> Any:
            await view(None)  # earlier turns are those before the view that was loaded last
            return await tool.ainvoke({})

        every: dict[str, Read] = {
            "load_history": lambda: view(None),
            "load_history in full": lambda: view(WHOLE),
            "load_history, cut": lambda: view(HistoryPolicy(max_tokens=500)),
            "messages": lambda: listed(chat.messages()),
            "turns": lambda: listed(chat.turns()),
            "turns, newest first": lambda: listed(chat.turns(newest_first=True)),
            "get_turn": lambda: chat.get_turn("q2"),
            "list_messages": chat.list_messages,
            "list_messages in full": lambda: chat.list_messages(full=True),
            "get_tool_messages": lambda: chat.get_tool_messages(self.ids),
            "get_sources": lambda: chat.get_sources("1-50"),
            "get_sources of messages": lambda: chat.get_sources(
                tool_message_ids=["r1", "r2", "r5"]
            ),
            "the tool": lambda: tool.ainvoke({"tool_message_ids": results}),
            "the tool, listing": listing,
            "the tool, finding": lambda: tool.ainvoke(
                {"tool_message_ids": ["r1", "r6"], "find": "line"}
            ),
            "find_shown_sources": lambda: chat.find_shown_sources(["short \ud800"]),
            "info": chat.info,
            "list_conversations": lambda: chat.store.list_conversations(user_id="ada"),
            "summaries": chat.summaries,
            "expand_summary": expanded,
            "annotations": lambda: chat.annotations(self.ids),
            "state": chat.state.get,
        }
        return (
            every
            if LONG > 1
            else {name: read for name, read in every.items() if name not in LIKE_OTHERS}
        )

    async def outcome(self, name: str, read: Read, document: dict[str, Any]) -> str:
        """Return the outcome of reading a damaged document: "right", "named", "other", or another problem."""
        try:
            shown = repr(await read())
        except CorruptDocumentError as error:
            return (
                "named"
                if self.is_named(document, error.document_id)
                else f"names {error.document_id!r}"
            )
        except ConvstoreError as error:
            return f"raises {error!r}"
        if shown == self.right[name]:
            return "right"
        is_row = f"document {document['_id']!r} in the collection" in shown.replace("\\'", "'")
        return "named" if is_row or "The store cannot answer now: document " in shown else "other"

    def is_named(self, document: dict[str, Any], named: str) -> bool:
        """Return True if an error names the document, or one that refers to it."""
        return named == document["_id"] or ":" in named or "#" in named

    async def places(self) -> list[tuple[str, dict[str, Any], Path]]:
        """Return what can be damaged: each field of each document, or the first of each kind."""
        found = list[tuple[str, dict[str, Any], Path]]()
        for collection in self.collections:
            # ids of summaries are random
            in_order = {"version": 1, "_id": 1}
            for document in await self.database[collection].find({}).sort(in_order).to_list(None):
                found += [(collection, document, path) for path in paths(document)]
        if LONG > 1:
            return found
        first = dict[tuple[str, str], tuple[str, dict[str, Any], Path]]()
        for collection, document, path in found:
            first.setdefault((collection, place(path)), (collection, document, path))
        return list(first.values())

    async def put(self, collection: str, document: dict[str, Any]) -> bool:
        """Store a document; False if an index refuses it."""
        try:
            await self.database[collection].replace_one({"_id": document["_id"]}, document)
        except DuplicateKeyError:
            return False
        return True


def place(path: Path) -> str:
    """Return the path of a field without indexes and keys of maps."""
    free = {"details", "values", "names", "scope"}
    parts = [
        "*" if isinstance(part, int) or before in free else part
        for before, part in pairwise(("", *path))
    ]
    return ".".join(map(str, parts))


def wrongs(right: Any, index: int) -> list[Any]:
    """Return wrong values: a missing one, values of other types, and changed values of the same type."""
    others = [
        value
        for value in (None, -1, "wrong", ["x"], {"x": 1}, b"x")
        if type(value) is not type(right)
    ]
    same: list[Any] = []
    if isinstance(right, bytes):
        same = [bytes([right[0] ^ 1]) + right[1:] if right else b"x", right[:-1]]
    elif isinstance(right, str):
        same = [right[: len(right) // 2] + "Z", right[:-1]]
    elif isinstance(right, int):
        same = [2**40, right + 1]
    elif isinstance(right, datetime):
        same = [datetime(2020, 1, 1, tzinfo=UTC)]
    if LONG > 1:
        return [..., *others, *same]
    return [[..., *others][index % (len(others) + 1)], *same[:1]]


@pytest.fixture(scope="module", params=["text", "chain"])
async def filled(
    request: pytest.FixtureRequest, pymongo_client: Client, database_name: str
) -> AsyncIterator[Damage]:
    """A conversation in a database of its own, with a summary of each kind."""
    made = Damage(pymongo_client[f"{database_name}_{request.param}"])
    await made.fill(request.param)
    if request.param == "chain" and LONG == 1:
        made.collections = ["heads", "summaries"]
    yield made
    await pymongo_client.drop_database(f"{database_name}_{request.param}")


@pytest.fixture
async def damage(filled: Damage) -> AsyncIterator[Damage]:
    """The same; whatever is done to it is mended afterwards."""
    names = ["log", "heads", "summaries", "annotations"]
    written = {
        name: [document async for document in filled.database[name].find({})] for name in names
    }
    yield filled
    for name, documents in written.items():
        await filled.database[name].delete_many({})
        await filled.database[name].insert_many(documents)


@pytest.mark.slow
@pytest.mark.parametrize("part", parts(4))
async def test_what_is_damaged_is_named(damage: Damage, part: slice) -> None:
    """Never an error that is not ours, never another answer where the messages themselves are concerned."""
    problems: dict[str, None] = {}
    places = await damage.places()
    for number, (collection, document, path) in list(enumerate(places, 1))[part]:
        where, right = (collection, place(path)), at(document, path)
        for wrong in wrongs(right, number):
            if not await damage.put(collection, changed(document, path, wrong)):
                continue
            is_plausible = type(wrong) is type(right) and isinstance(right, int | datetime)
            for name, read in damage.reads().items():
                outcome = await damage.outcome(name, read, document)
                if outcome == "other" and (
                    where in FOUND_BY | TOLD or is_plausible or "totals" in path
                ):
                    continue
                if outcome not in ("right", "named"):
                    problems[f"{where}, {str(wrong)[:30]!r}: {name} {outcome}"] = None
        assert await damage.put(collection, document)
    assert list(problems) == []
    assert len(places) > 20


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 0x40])


@pytest.mark.slow
@pytest.mark.costly
@pytest.mark.parametrize(
    ("number", "path", "change"),
    [
        (1, ("messages", 0, "body"), lambda body: body.replace("seals", "lions")),
        (1, ("messages", 2, "payload", "digest"), _flipped),
        (2, ("messages", 1, "digest"), _flipped),
        (3, ("messages", 0, "body"), lambda body: body.replace("human", "system")),
        (7, ("totals", "messages"), lambda number: number + 1),
    ],
)
async def test_the_rest_stays_readable(
    damage: Damage, number: int, path: Path, change: Callable[[Any], Any]
) -> None:
    """Every other message by its id, every page that does not hold the damaged one, titles and labels."""
    whole = {str(message.id): message async for message in damage.chat().messages(rewound=True)}
    document = await damage.database["log"].find_one({"totals.entries": number})
    assert document is not None
    held = {message["id"] for message in document["messages"]}
    assert await damage.put("log", changed(document, path, change(at(document, path))))
    chat, named = damage.chat(), list[tuple[str, tuple[str, str]]]()
    for id_, message in whole.items():
        try:
            [record] = await chat.get_tool_messages([id_])
        except CorruptDocumentError as error:
            named.append((id_, (error.document_id, error.collection)))
            continue
        assert record.content == message.content
    assert named
    assert all(id_ in held and where == (document["_id"], "log") for id_, where in named)
    read: list[BaseMessage] = []
    for ordinal in range(len(whole)):
        try:
            read += [
                stored.message
                for stored in await chat.list_messages(after=ordinal, limit=1, full=True)
            ]
        except CorruptDocumentError as error:
            named.append((damage.ids[ordinal], (error.document_id, error.collection)))
    assert {where for _, where in named} == {(document["_id"], "log")}
    others = {str(message.id) for message in read}
    assert {id_ for id_ in whole if id_ not in held | {"q4", "a4"}} <= others
    assert same_messages(read, [whole[str(message.id)] for message in read])
    assert (await chat.info()).title == "Seals" or number == 7


BOMBS = {
    "a gigabyte": zstandard.ZstdCompressor().compress(b"x" * 200_000_000),
    "without a size": zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 5_000_000),
    "a chunk where less is recorded": zstandard.ZstdCompressor().compress(b"x" * CHUNK_BYTES),
    "of the right size with another text": zstandard.ZstdCompressor().compress(b"x" * 5_000),
    "not a frame": b"x" * 500,
}


@pytest.mark.costly
@pytest.mark.parametrize("name", BOMBS)
async def test_a_chunk_grows_no_larger_than_what_is_recorded(damage: Damage, name: str) -> None:
    """The result of "line" has 5,000 characters; what claims or holds more is never unfolded."""
    log = damage.database["log"]
    entry = await log.find_one({"messages.id": "r6"})
    assert entry is not None
    token = entry["messages"][2]["payload"]["token"]
    [chunk] = [chunk async for chunk in log.find({"_id": {"$regex": f"#{token}#"}})]
    await log.update_one({"_id": chunk["_id"]}, {"$set": {"data": BOMBS[name]}})
    with pytest.raises(CorruptDocumentError) as found:
        await damage.chat().get_tool_messages(["r6"])
    assert found.value.document_id in (chunk["_id"], entry["_id"])
    with pytest.raises(CorruptDocumentError):
        await damage.chat().load_history(WHOLE)
    if name != "of the right size with another text":
        with pytest.raises(ValueError, match=r"larger than it may be|not a zstd frame"):
            decompress(BOMBS[name], characters=5_000)


@pytest.mark.parametrize(
    "text", ['[{"$":["line",1]},{"$":["line",1]}]\n[]', '{"$":["line",0]}', '[{"$":["line",2]}]\n1']
)
def test_a_text_can_not_unfold_without_end(text: str) -> None:
    """A value on a line of its own is referred to once."""
    with pytest.raises(ValueError, match="not a value"):
        Codec().decode(text)


@pytest.mark.costly
async def test_summaries_that_lead_in_a_circle_are_named(damage: Damage) -> None:
    """No read follows them for ever."""
    [summary] = [document async for document in damage.database["summaries"].find({})]
    token = summary["token"]
    record = replace(summary_from(summary), previous=token, parent=token)
    changed = own_document(summary["conversation"], record)  # as one wrote it who knows the format
    assert await damage.put("summaries", changed)
    for read in (damage.chat().summaries(), damage.chat().expand_summary(1)):
        with pytest.raises(CorruptDocumentError, match=summary["_id"]):
            await read


@pytest.mark.costly
async def test_a_missing_summary_is_named(damage: Damage) -> None:
    """The list of summaries is not silently shorter; views show the copy that the head has."""
    [summary] = [document async for document in damage.database["summaries"].find({})]
    await damage.database["summaries"].delete_one({"_id": summary["_id"]})
    with pytest.raises(CorruptDocumentError, match=summary["_id"]):
        await damage.chat().summaries()
    assert (await damage.chat().load_history()).summary == summary_from(summary).text


async def test_an_entry_that_lost_its_messages_is_damage() -> None:
    """An entry that lost its messages is damage, not an entry without messages."""
    database = AsyncMongoMockClient()["damaged"]
    async with ConversationStore(database) as store:
        await store.setup()
        for _ in range(3):
            await store.conversation(user_id="ada", thread_id="t").append(
                [HumanMessage("?"), AIMessage("!")]
            )
    await database["log"].update_one({"first": 3}, {"$unset": {"messages": ""}})
    for read in (Conversation.load_history, Conversation.list_messages):
        with pytest.raises(CorruptDocumentError):
            await read(ConversationStore(database).conversation(user_id="ada", thread_id="t"))
