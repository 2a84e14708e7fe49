"""A fuzz of everything stored: what changes an answer is found by `verify`, and what it repairs is as it was.

Bits are flipped, values swapped between documents, and fields, items and documents deleted, one at a time, in every
collection. The mutations are the same for the same seed: ``CONVSTORE_FUZZ_SEED`` sets another one, and
``CONVSTORE_LONG`` multiplies their number and the time.
"""

from __future__ import annotations

import copy
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import bson
import pytest
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from properties import parts
from pymongo.errors import PyMongoError
from stored_values import Path, at, paths, shape

from convstore import Conversation, ConversationStore, ConvstoreError, HistoryPolicy
from convstore.integration import host_of
from convstore.mongo.keys import head_id
from convstore.runtime.clock import Clock
from convstore.summarization import HeadTailSummarizer
from convstore.testing import rag_turn, samples, verifying
from convstore.testing.verifying import SUMMARY_RULE, fill_with_everything

pytestmark = pytest.mark.slow

LONG = int(os.environ.get("CONVSTORE_LONG", "1"))
SEED = int(os.environ.get("CONVSTORE_FUZZ_SEED", "22"))
MUTATIONS, SECONDS = 250 * LONG, 25.0 * LONG

WEIGHTS = {
    "log": 8,
    "heads": 4,
    "summaries": 2,
    "annotations": 1,
    "convstore_migrations": 1,
    "search": 4,
}
"""How often each collection is damaged."""

NOT_DERIVED = {
    # whole conversations (the id that a scope has), dates that only grow
    "heads": {"conversation", "updated_at", "written_at"},
    # deleted conversations
    "tombstones": {
        "conversation",
        "head",
        "marks",
        "pruned",
        "sweep_at",
        "sweeps",
        "successor",
        "swept",
    },
    "log": set(),
    # dates, leases, and when a summary was made current or failed
    "state": {"at", "changes", "failures", "wait_until", "lease", "revision"},
    # deleted annotations are not missed either
    "annotations": {"at"},
    "convstore_migrations": {"at"},
    "search": {"at"},
}
"""Fields that nothing derives, by kind of document; what else is stored is compared. Checksums are to cover these."""

OPTIONAL = {"heads": "details"}
"""Fields that a document may lack, title and metadata of a conversation: what is lost of them is not missed."""

COLLECTIONS = [*WEIGHTS]

_ANY_TEXT = CodecOptions[dict[str, Any]](unicode_decode_error_handler="replace")
"""A flipped bit may leave a name of a field that is no text."""

Document = dict[str, Any]
Data = dict[str, dict[str, bytes]]
"""The stored documents of each collection by key."""


class Mutation(NamedTuple):
    """A change of stored data: its name, and the replaced documents, None for a deleted one."""

    text: str
    collection: str
    changed: dict[str, bytes | None]


def kind_of(collection: str, key: str) -> str:
    """Return the kind of a document under which its fields are named in `NOT_DERIVED`."""
    if key.startswith("deleted:"):
        return "tombstones"
    return "state" if key.endswith(":~") else collection


def key_of(raw: bytes) -> str:
    """Return the key of a document, which comes first and is a text; the rest may not be readable."""
    end = 13 + int.from_bytes(raw[9:13], "little") - 1
    return bytes(raw[13:end]).decode()


def differing(item: Any, other: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths at which two documents differ."""
    if type(item) is type(other) and isinstance(item, dict):
        for key in dict.fromkeys([*item, *other]):
            if key in item and key in other:
                yield from differing(item[key], other[key], (*path, key))
            else:
                yield (*path, key)
    elif isinstance(item, list) and isinstance(other, list) and len(item) == len(other):
        for index, pair in enumerate(zip(item, other, strict=True)):
            yield from differing(*pair, (*path, index))
    elif repr(item) != repr(other):
        yield path


def is_derived(kind: str, path: Path) -> bool:
    """Return True if something says what a field must be."""
    name = shape(path)
    return not any(
        name == free or name.startswith(f"{free}.") for free in NOT_DERIVED.get(kind, ())
    )


def is_missed(kind: str, path: Path, document: Document) -> bool:
    """Return True if a field is in a document, or its loss is noticed."""
    if kind not in OPTIONAL or path[0] != OPTIONAL[kind]:
        return True
    with suppress(KeyError, IndexError, TypeError):
        at(document, path)
        return True
    return False


class Fuzz:
    """Makes the mutations of one seed."""

    def __init__(self, data: Data, seed: int) -> None:
        self.data, self.seed = data, seed

    def mutation(self, number: int) -> Mutation:
        """Return a mutation of a derived field, the same for the same seed and number."""
        made = random.Random(f"{self.seed}:{number}")
        while True:
            collection = made.choices(COLLECTIONS, [WEIGHTS[name] for name in COLLECTIONS])[0]
            make = made.choice(
                [self._flip, self._flip, self._swap, self._delete, self._reorder, self._documents]
            )
            if (found := make(made, collection)) and self._is_judged(found):
                return found

    def _is_judged(self, found: Mutation) -> bool:
        for key, new in found.changed.items():
            if new is None:
                continue
            try:
                pair = bson.decode(self.data[found.collection][key]), bson.decode(new, _ANY_TEXT)
            except BSONError:
                continue
            changes = list(differing(*pair))
            kind = kind_of(found.collection, key)
            if not changes or not all(
                is_derived(kind, path) and is_missed(kind, path, pair[1]) for path in changes
            ):
                return False
        return True

    def _document(self, made: random.Random, collection: str) -> tuple[str, Document]:
        """Draw a document of one kind; all kinds of a collection come equally often."""
        kinds = {
            kind: [key for key in sorted(self.data[collection]) if kind in key]
            for kind in ("", ":~", "#", "deleted:")
        }
        key = made.choice(kinds[made.choice([kind for kind, keys in kinds.items() if keys])])
        return key, bson.decode(self.data[collection][key])

    def _flip(self, made: random.Random, collection: str) -> Mutation | None:
        """Flip one bit of a document: of a value or of a field's name."""
        key, document = self._document(made, collection)
        data = bytearray(self.data[collection][key])
        # The key comes first and stays as it is: the documents of other keys are other conversations.
        place = made.randrange(len(bson.encode({"_id": document["_id"]})) - 1, len(data) - 1)
        data[place] ^= 1 << (bit := made.randrange(8))
        return Mutation(f"flip bit {bit} of byte {place} of {key}", collection, {key: bytes(data)})

    def _swap(self, made: random.Random, collection: str) -> Mutation | None:
        """Exchange two values of the same field, in one document or in two."""
        pair = [self._document(made, collection), self._document(made, collection)]
        if pair[0][0] == pair[1][0]:
            pair[1] = pair[0]
        first = made.choice(list(paths(pair[0][1])) or [()])
        others = [path for path in paths(pair[1][1]) if shape(path) == shape(first)]
        if not first or not others:
            return None
        second = made.choice(others)
        if pair[0] is pair[1] and first != second and first[: len(second)] == second[: len(first)]:
            return None  # one of them is inside the other
        values = [copy.deepcopy(at(pair[0][1], first)), copy.deepcopy(at(pair[1][1], second))]
        at(pair[0][1], first[:-1])[first[-1]] = values[1]
        at(pair[1][1], second[:-1])[second[-1]] = values[0]
        text = f"swap {first} of {pair[0][0]} and {second} of {pair[1][0]}"
        return Mutation(text, collection, {key: bson.encode(document) for key, document in pair})

    def _delete(self, made: random.Random, collection: str) -> Mutation | None:
        """Delete a field, or an item of a list."""
        key, document = self._document(made, collection)
        path = made.choice(list(paths(document)) or [()])
        if not path:
            return None
        del at(document, path[:-1])[path[-1]]
        return Mutation(f"delete {path} of {key}", collection, {key: bson.encode(document)})

    def _reorder(self, made: random.Random, collection: str) -> Mutation | None:
        """Repeat an item of a list, or turn the list round."""
        key, document = self._document(made, collection)
        lists = [
            path
            for path in paths(document)
            if isinstance(at(document, path), list) and at(document, path)
        ]
        if not lists:
            return None
        found = at(document, path := made.choice(lists))
        if is_repeated := made.random() < 0.5:
            found.append(copy.deepcopy(made.choice(found)))
        else:
            found.reverse()
        text = f"{'repeat an item of' if is_repeated else 'reverse'} {path} of {key}"
        return Mutation(text, collection, {key: bson.encode(document)})

    def _documents(self, made: random.Random, collection: str) -> Mutation | None:
        """Delete a document, or exchange the contents of two."""
        (key, document), (other, second) = (
            self._document(made, collection),
            self._document(made, collection),
        )
        is_whole_conversation = collection == "heads" or key.endswith("000001")
        if made.random() < 0.5:
            is_whole_conversation |= collection == "annotations"  # nothing derives them
            return (
                None
                if is_whole_conversation
                else Mutation(f"delete {key}", collection, {key: None})
            )
        if key == other or is_whole_conversation or collection == "heads":
            return None
        stay = {"_id", "conversation"}
        swapped = [
            {
                **{name: mine[name] for name in stay & set(mine)},
                **{name: own for name, own in theirs.items() if name not in stay},
            }
            for mine, theirs in ((document, second), (second, document))
        ]
        changed = {key: bson.encode(swapped[0]), other: bson.encode(swapped[1])}
        return Mutation(f"exchange {key} and {other}", collection, dict(changed))


class Database:
    """A database with everything that can be stored, what is read of it, and its documents."""

    def __init__(self, database: Any) -> None:
        self.database = database
        self.scopes = [("ada", "1"), ("ada", "2"), ("bob", "1"), ("ada", "gone")]
        self.ids: dict[tuple[str, str], list[str]] = {}
        self.is_ready = False
        self.stores: list[ConversationStore] = []
        self.owners: dict[tuple[str, str], tuple[str, ...]] = {}

    async def fill(self) -> None:
        """Store one conversation with everything, two with other system messages, and one that is deleted."""
        links = itertools.count(1_000_001, 7)
        clock = Clock(link=lambda: next(links))
        store = ConversationStore(
            self.database, summarizer=HeadTailSummarizer(SUMMARY_RULE), clock=clock
        )
        await store.setup()
        chats = [store.conversation(user_id=user, thread_id=thread) for user, thread in self.scopes]
        await fill_with_everything(chats[0])
        await chats[1].append(
            [SystemMessage("Ada's rules.", id="s1"), SystemMessage("More rules.", id="s2")]
        )
        await chats[1].append(
            [*rag_turn("Do whales sing?"), HumanMessage("paste " * 4_000, id="p1")]
        )
        call = {"name": "find", "args": {"q": 1}, "id": "k1"}
        found = ToolMessage(
            "line\n" * 1_000, id="r1", tool_call_id="k1", artifact=[("kept", {"source_id": 40})]
        )
        await chats[1].append([AIMessage("", id="c1", tool_calls=[call]), found])
        await chats[2].append(
            [SystemMessage("Bob's rules.", id="s1"), *rag_turn("Do seals sleep?")]
        )
        for number in range(6):
            await chats[2].append(
                [HumanMessage("Why? " * 200, id=f"q{number}"), AIMessage("Because. " * 200)]
            )
        await chats[3].append(rag_turn("Who was here?"))
        await chats[3].delete()
        sealer = (await host_of(store).services()).sealer
        for chat in chats[:3]:
            await sealer.seal(tuple(chat.scope.items()))
        await store.close()
        for scope in self.scopes:
            reader = self.chat(*scope)
            self.ids[scope] = [str(message.id) async for message in reader.messages()]
            head = head_id({"user_id": scope[0], "thread_id": scope[1]})
            self.owners[scope] = (
                head,
                (await reader.info()).conversation_id or "deleted:",
                "0001_",
                "0002_",
            )
            # A load stores what it had to find out; so later loads write nothing.
            for policy in POLICIES.values():
                await self.chat(*scope).load_history(policy)

    def store(self, **options: Any) -> ConversationStore:
        """Return a store that knows nothing yet."""
        # nothing is sealed later, while documents are compared
        clock = Clock(call_later=lambda *_: None)
        store = ConversationStore(self.database, **{"clock": clock, **options})
        store._host.schema.is_ready = self.is_ready
        self.stores.append(store)
        return store

    def chat(self, user: str, thread: str) -> Conversation:
        """Return the conversation as a process has it that knows nothing yet."""
        return self.store().conversation(user_id=user, thread_id=thread)

    async def data(self) -> Data:
        """Return all documents."""
        options = CodecOptions(document_class=RawBSONDocument)
        read = {
            name: self.database.get_collection(name, codec_options=options).find({})
            for name in COLLECTIONS
        }
        return {
            name: {key_of(row.raw): bytes(row.raw) async for row in found}
            for name, found in read.items()
        }

    async def put(self, collection: str, changed: dict[str, bytes | None]) -> bool:
        """Store documents; False if the server or an index refuses one."""
        options = CodecOptions(document_class=RawBSONDocument)
        target = self.database.get_collection(collection, codec_options=options)
        try:
            await target.delete_many({"_id": {"$in": list(changed)}})
            if new := [RawBSONDocument(raw) for raw in changed.values() if raw is not None]:
                await target.insert_many(new)
        except (PyMongoError, BSONError):
            return False
        return True

    async def restore(self, data: Data) -> None:
        """Make all documents what they were."""
        now = await self.data()
        for name, documents in data.items():
            wrong = [
                key for key in {*now[name], *documents} if now[name].get(key) != documents.get(key)
            ]
            if wrong:
                assert await self.put(name, {key: documents.get(key) for key in wrong})

    def reads(self, changed: Iterable[str]) -> Iterator[tuple[str, Callable[[], Awaitable[Any]]]]:
        """Yield every answer that documents with these keys are part of: loads, read-back, listings, searches."""
        for scope in self.scopes:
            name = "/".join(scope)
            if not any(key.startswith(self.owners[scope]) for key in changed):
                continue
            for policy_name, policy in POLICIES.items():
                yield f"{name}: load {policy_name}", partial(self._load, scope, policy)
            chat = self.chat(*scope)
            for read_name, read in READS.items():
                yield f"{name}: {read_name}", partial(read, chat, self.ids[scope])
        yield "list", lambda: self.store().list_conversations(everything=True)
        yield "list of ada", lambda: self.store().list_conversations(user_id="ada")
        yield "search of ada", lambda: self.store().search("seals whales more", user_id="ada")
        yield "stats", lambda: self.store().stats(sizes=False)

    async def _load(self, scope: tuple[str, str], policy: HistoryPolicy) -> Any:
        history = await self.chat(*scope).load_history(policy)
        told = history.report.model_dump(exclude={"documents", "bytes", "round_trips"})
        return history.messages, history.summary, history.tokens, told

    async def answers(self, changed: Iterable[str]) -> dict[str, str]:
        """Return each answer as text, or the error that was raised."""
        found = {}
        for name, read in self.reads(changed):
            try:
                found[name] = repr(await read())
            except ConvstoreError as error:
                found[name] = f"raised {type(error).__name__}: {error}"
            except Exception as error:  # noqa: BLE001 - an error of another kind is a finding
                found[name] = f"UNTYPED {error!r}"
        await self.rest()
        return found

    async def rest(self) -> None:
        """Wait for what searches began to seal in the background."""
        for store in self.stores:
            if store._services and store._services.sealer:
                await store._services.sealer.wait()
        self.stores.clear()

    async def verify(self, *, repair: bool = False) -> tuple[bool, str]:
        """Return True if `verify` finds nothing, and what it finds."""
        try:
            report = await self.store(clock=LATER).verify(repair=repair)
        except ConvstoreError as error:
            return False, repr(error)
        except Exception as error:  # noqa: BLE001 - an error of another kind is a finding
            return False, f"UNTYPED {error!r}"
        return report.ok, str(
            [
                (finding.kind, finding.document_id, finding.problem, finding.repaired)
                for finding in report.findings
            ]
        )


async def _no_pause(seconds: float) -> None:
    """Replace the wait between two looks."""


LATER = Clock(now=lambda: datetime.now(UTC) + timedelta(days=2), sleep=_no_pause)

POLICIES = {
    "by default": HistoryPolicy(),
    "in full": HistoryPolicy(max_tokens=None, stub_tools="never"),
    "cut": HistoryPolicy(max_tokens=700),
}


async def _listed(reading: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in reading]


async def _summaries(chat: Conversation) -> Any:
    found = await chat.summaries()
    return found, [await chat.expand_summary(summary.version) for summary in found]


async def _past(chat: Conversation, ids: list[str]) -> Any:
    view = await chat.view_at(ids[len(ids) // 2]) if ids else None
    return view and (view.messages, view.summary, view.tokens)


READS: dict[str, Callable[[Conversation, list[str]], Awaitable[Any]]] = {
    "messages": lambda chat, _: _listed(chat.messages()),
    "list_messages": lambda chat, _: chat.list_messages(full=True),
    "turns": lambda chat, _: _listed(chat.turns()),
    "outline": lambda chat, _: chat.outline(),
    "get_tool_messages": lambda chat, ids: chat.get_tool_messages(ids),
    "get_sources": lambda chat, _: chat.get_sources("1-60"),
    "the tool": lambda chat, ids: chat.retrieve_previous_sources_tool().ainvoke(
        {"tool_message_ids": ids[:5]}
    ),
    "find_shown_sources": lambda chat, _: chat.find_shown_sources(["kept"]),
    "info": lambda chat, _: chat.info(),
    "search": lambda chat, _: chat.search("seals rules more"),
    "summaries": lambda chat, _: _summaries(chat),
    "view_at": _past,
    "annotations": lambda chat, ids: chat.annotations(ids),
    "state": lambda chat, _: chat.state.get(),
}


@pytest.fixture
async def filled(own_database: Any, monkeypatch: pytest.MonkeyPatch) -> Database:
    """The database, with the same ids for the same seed."""
    ids, conversations = itertools.count(1), itertools.count(1)
    for module in (samples, verifying):
        monkeypatch.setattr(module, "new_id", lambda: f"{next(ids):032x}")
    monkeypatch.setattr(
        "convstore.mongo.heads.secrets.token_hex",
        lambda size: f"{next(conversations):0{2 * size}x}",
    )
    made = Database(own_database)
    await made.fill()
    return made


@pytest.mark.parametrize("part", parts(2))
async def test_what_changes_an_answer_is_found(filled: Database, part: slice) -> None:
    """`verify` says ok only if every answer is right, and after a repair that mends all; no error is untyped."""
    data = await filled.data()
    truth = await filled.answers([key for documents in data.values() for key in documents])
    assert not [name for name, answer in truth.items() if answer.startswith(("raised", "UNTYPED"))]
    assert await filled.verify() == (True, "[]")
    assert await filled.data() == data
    assert all(data.values())
    fuzz, problems, end = Fuzz(data, SEED), list[str](), time.monotonic() + SECONDS
    tried = changed = 0
    for number in range(MUTATIONS)[part]:
        if time.monotonic() > end:
            break
        mutation = fuzz.mutation(number)
        if await filled.put(mutation.collection, mutation.changed):
            tried += 1
            found = await _problems(filled, mutation, truth, data)
            changed += found is not None
            problems += [
                f"seed {SEED}, mutation {number}: {mutation.text} [{mutation.collection}]: {text}"
                for text in found or ()
            ]
        await filled.restore(data)
    assert problems == []
    assert min(tried, changed) > 0


async def _problems(
    filled: Database, mutation: Mutation, truth: dict[str, str], data: Data
) -> list[str] | None:
    """Return what is wrong with the answers and with `verify` after a mutation; None if no answer differs."""
    filled.is_ready = mutation.collection != "convstore_migrations"
    wrong = await _wrong(filled, mutation, truth)
    problems = [
        f"{name}: {answer[:300]}" for name, answer in wrong.items() if answer.startswith("UNTYPED")
    ]
    await filled.restore(data)  # a load may have mended it
    await filled.put(mutation.collection, mutation.changed)
    is_ok, findings = await filled.verify()
    if "UNTYPED" in findings:
        problems.append(f"verify {findings}")
    if wrong and is_ok:
        problems.append(f"verify is ok, but {_difference(truth, wrong)}")
    if not is_ok:
        problems += await _problems_of_repair(filled, mutation, truth, data)
    return problems if wrong else problems or None


async def _problems_of_repair(
    filled: Database, mutation: Mutation, truth: dict[str, str], data: Data
) -> list[str]:
    """Return what is wrong after a repair that says that it mended everything."""
    is_repaired, repairs = await filled.verify(repair=True)
    if not is_repaired:
        return [f"repair {repairs}"] if "UNTYPED" in repairs else []
    again, left = await filled.verify()
    if not again:
        return [f"repaired {repairs}, and then found {left}"]
    stored = data[mutation.collection]
    lost = [bson.decode(stored[key]) for key, new in mutation.changed.items() if new is None]
    if any("first" in document for document in lost):
        return []  # a lost entry is named, not brought back
    after = await _wrong(filled, mutation, truth)
    return [f"repaired {repairs}, but {_difference(truth, after)}"] if after else []


async def _wrong(filled: Database, mutation: Mutation, truth: dict[str, str]) -> dict[str, str]:
    """Return the answers that differ from the truth."""
    answers = await filled.answers(mutation.changed)
    return {name: answer for name, answer in answers.items() if answer != truth[name]}


def _difference(truth: dict[str, str], wrong: dict[str, str]) -> str:
    """Name the answers that differ, and show where the first of them does."""
    name, answer = next(iter(wrong.items()))
    pairs = enumerate(zip(truth[name], answer, strict=False))
    start = max(0, next((index for index, pair in pairs if pair[0] != pair[1]), 0) - 60)
    return f"{list(wrong)} differ: {truth[name][start : start + 120]!r} is {answer[start : start + 120]!r}"
