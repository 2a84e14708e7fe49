"""Facts: a new kind is one class and one registration, and everything that handles whole entries handles it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore
from convstore.exceptions import CorruptDocumentError, SchemaVersionError
from convstore.integration import host_of
from convstore.log.entry import Entry, Totals
from convstore.log.facts.kind import FactKind, Key, Sealed
from convstore.log.facts.table import KINDS
from convstore.log.facts.thinking import THINKING, Thinking
from convstore.messages.values import Codec
from convstore.mongo.documents import entry_document, entry_from
from convstore.transfer import (
    ConversationRecord,
    RecordItem,
    export_conversations,
    import_conversations,
    read_file,
)
from convstore.values.log_records import LogChange

MOODS = ["glad", "\ud83d\ude00 torn", "calm"]


class MoodKind(FactKind[str]):
    """A toy: the mood in which an entry was written."""

    name = "mood"
    is_archived = True

    def encode(self, value: str, entry: Entry) -> Any:
        """Return the text."""
        return Sealed(value)

    def decode(self, stored: Any, number: int) -> str:
        """Return the text that `encode` wrote."""
        return stored.text

    def keys(self, value: str, entry: Entry) -> Iterable[Key]:
        """Return a key for the mood."""
        return [f"mood {value[:4]!r}"]

    def problems(
        self, value: str, entry: Entry, payloads: Mapping[str, str], codec: Codec
    ) -> Iterator[str]:
        """Yield a problem for an empty mood."""
        if not value:
            yield "its mood is empty"


MOOD = MoodKind()


@pytest.fixture
def store(emptied_database: Any) -> ConversationStore:
    """A store that is set up."""
    return ConversationStore(emptied_database)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The toy kind is registered."""
    monkeypatch.setitem(KINDS, MOOD.name, MOOD)
    return monkeypatch


async def written(store: ConversationStore, thread: str = "moody") -> Conversation:
    """Return a conversation whose entries have moods: with one message, with two, and without any."""
    chat = store.conversation(user_id="toy", thread_id=thread)
    writer = (await host_of(chat).services()).writer
    scope = tuple(chat.scope.items())
    question = HumanMessage("Why?", id="q")
    answer = [AIMessage("So.", id="a"), HumanMessage("And?", id="q2")]
    for messages, mood in zip(([question], answer, ()), MOODS, strict=True):
        await writer.append(scope, messages, facts=MOOD.put(mood))
    await chat.append(AIMessage("Thus.", id="a2"))
    return chat


async def moods(chat: Conversation) -> list[tuple[int, str]]:
    """Return the moods in a log, each after the number of messages up to its entry."""
    services = await host_of(chat).services()
    cached = await services.reader.find(tuple(chat.scope.items()))
    assert cached
    walk = services.reader.walk(tuple(chat.scope.items()), fields={})
    return [(entry.last, mood) async for _, entry in walk if (mood := MOOD.of(entry)) is not None]


async def copies(chat: Conversation, file: Path) -> list[list[tuple[int, str]]]:
    """Return the moods of a whole fork, of one cut within an entry, and of an import that was made twice."""
    store = chat.store
    scopes = [{"user_id": "toy", "thread_id": name} for name in ("whole", "cut", "read")]
    await chat.fork(key="w", new_scope=scopes[0])
    await chat.fork(key="c", new_scope=scopes[1], before_id="q2")
    with file.open("wb") as archive:
        report = await export_conversations(store, archive.write, scope=chat.scope)
    assert report.problems == []
    for _ in range(2):
        records = read_file(file, codec=host_of(store).codec)
        assert (await import_conversations(store, records, scope=scopes[2])).problems == []
    assert (await store.verify(user_id="toy")).ok
    return [await moods(store.conversation(**scope)) for scope in scopes]


async def test_a_new_kind_of_fact_is_handled_everywhere(
    known: pytest.MonkeyPatch, store: ConversationStore, tmp_path: Path
) -> None:
    """Forks, `verify`, exports and imports have a toy fact that none of them names; damage to it is found."""
    chat = await written(store)
    expected = [*zip((1, 3, 3), MOODS, strict=True)]
    assert await moods(chat) == expected
    cut = [expected[0], (2, MOODS[1])]
    assert await copies(chat, tmp_path / "a.jsonl") == [expected, cut, expected]
    known.setattr(MOOD, "problems", lambda *_: iter(["its mood is empty"]))
    report = await store.verify(**chat.scope)
    assert [finding.problem for finding in report.findings] == ["its mood is empty"] * 3


async def test_facts_of_messages_that_were_left_out_are_imported_once(
    known: pytest.MonkeyPatch, store: ConversationStore
) -> None:
    """They follow what is left before them, each in an entry of its own."""
    messages = [RecordItem(message=HumanMessage("Why?", id="q"), entry=1)]
    messages += [RecordItem(message={"role": "nobody"}, entry=entry) for entry in (1, 2)]
    fact = LogChange(2, "fact", datetime.now(UTC), name="mood", values='"a"', has_messages=True)
    changes = [
        fact,
        fact._replace(ordinal=3, values='"b"'),
        fact._replace(ordinal=3, values='"c"', has_messages=False),
    ]
    record = ConversationRecord(
        id="r", messages=messages, scope={"user_id": "toy", "thread_id": "left"}, changes=changes
    )
    for _ in range(2):
        await import_conversations(store, [record], skip_messages=True)
    found = await moods(store.conversation(**record.scope))
    assert found == [(1, "a"), (1, "b"), (1, "c")]


async def test_a_fact_of_a_log_without_messages_is_imported_once(
    known: pytest.MonkeyPatch, store: ConversationStore, tmp_path: Path
) -> None:
    """Also where the import is repeated."""
    chat = store.conversation(user_id="toy", thread_id="silent")
    writer = (await host_of(chat).services()).writer
    await writer.append(tuple(chat.scope.items()), (), facts=MOOD.put("calm"))
    file = tmp_path / "a.jsonl"
    with file.open("wb") as archive:
        await export_conversations(store, archive.write, scope=chat.scope)
    there = store.conversation(user_id="toy", thread_id="read")
    for _ in range(3):
        await import_conversations(store, read_file(file), scope=there.scope)
        assert await moods(there) == [(0, "calm")]


async def test_a_fact_names_ordinals_of_the_log_that_lacks_messages(
    store: ConversationStore,
) -> None:
    """A request of an answer with thinking says up to where thinking was left out of it."""
    messages = [
        RecordItem(message={"role": "nobody"}, entry=1),
        RecordItem(message=HumanMessage("Why?", id="q"), entry=2),
        RecordItem(message=AIMessage("So.", id="a"), entry=3),
    ]
    values = '["a", 2, "d", 2]'
    at = datetime.now(UTC)
    fact = LogChange(3, "fact", at, name="thinking", values=values, has_messages=True)
    scope = {"user_id": "toy", "thread_id": "lacking"}
    record = ConversationRecord(id="r", messages=messages, scope=scope, changes=[fact])
    for _ in range(2):
        await import_conversations(store, [record], skip_messages=True)
    assert (await store.verify(**scope)).ok
    walk = (await host_of(store).services()).reader.walk(tuple(scope.items()), fields={})
    found = [THINKING.of(entry) async for _, entry in walk]
    assert found == [None, Thinking("a", 2, "d", 1)]


async def test_an_unknown_kind_of_fact_is_carried_along(
    known: pytest.MonkeyPatch, store: ConversationStore, tmp_path: Path
) -> None:
    """A convstore that does not know a kind reads, forks, verifies and exports what has it, and loses nothing."""
    chat = await written(store)
    known.delitem(KINDS, MOOD.name)
    assert len(await chat.list_messages()) == 4
    await copies(chat, tmp_path / "a.jsonl")
    known.setitem(KINDS, MOOD.name, MOOD)
    expected = [*zip((1, 3, 3), MOODS, strict=True)]
    assert (await store.verify(user_id="toy")).ok
    cut = [expected[0], (2, MOODS[1])]
    names = {"whole": expected, "cut": cut, "read": expected}
    for name, found in names.items():
        copy = store.conversation(user_id="toy", thread_id=name)
        assert await moods(copy) == found, name


@pytest.mark.slow
async def test_a_repaired_log_keeps_the_facts_of_unknown_kinds(
    known: pytest.MonkeyPatch, store: ConversationStore, emptied_database: Any
) -> None:
    """An entry is lost. Facts of the others are in the repaired log, each after the messages before it."""
    chat = await written(store)
    lost = {"first": 2, "count": 2}
    assert (await emptied_database["log"].delete_one(lost)).deleted_count == 1
    known.delitem(KINDS, MOOD.name)
    assert (await store.verify(**chat.scope, repair=True)).findings
    known.setitem(KINDS, MOOD.name, MOOD)
    fresh = ConversationStore(emptied_database)
    assert (await fresh.verify(**chat.scope)).ok
    assert await moods(fresh.conversation(**chat.scope)) == [(1, MOODS[0]), (1, MOODS[2])]


async def test_a_kind_that_an_older_version_would_misread_makes_it_refuse(
    known: pytest.MonkeyPatch, store: ConversationStore
) -> None:
    """Its entries have a higher version. Others of the conversation, and all other conversations, do not."""
    known.setattr(MOOD, "version", 2)
    chat = await written(store)
    assert (await store.verify(**chat.scope)).ok
    known.delitem(KINDS, MOOD.name)
    with pytest.raises(SchemaVersionError):
        await chat.list_messages()


def test_facts_of_a_wrong_type_are_damage() -> None:
    """Whatever stands where the facts of an entry should be, the error names the entry."""
    at = datetime(2026, 11, 28, tzinfo=UTC)
    document = entry_document("conv", Entry(1, at, (), Totals(entries=1, updated_at=at)))
    known = [{name: value} for name in KINDS for value in ("x", 1, [], {}, None)]
    for facts in ("x", 1, [1], *known):
        with pytest.raises(CorruptDocumentError, match=document["_id"]):
            entry_from({**document, "facts": facts})
