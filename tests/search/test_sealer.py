"""The sealer works in the background: it splits and merges a text once, and ends without a word."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from counting import STANDING, Commands
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import AsyncMongoClient

from convstore import ConversationStore
from convstore.index import part, segment, words
from convstore.integration import host_of
from convstore.mongo.versions import LEVEL
from convstore.runtime.clock import Clock
from convstore.search import sealer as sealing
from convstore.testing.samples import new_id, rag_turn


async def sealer_of(store: ConversationStore) -> sealing.Sealer:
    """Return the sealer of a store."""
    return (await host_of(store).services()).sealer


@pytest.mark.slow
async def test_a_text_is_split_once_and_merged_at_most_once(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message is indexed once and merged at most once, however often its conversation is sealed."""
    monkeypatch.setattr(sealing, "_MERGED_AT_ONCE", 3)
    split, merges = Counter[int](), Counter[int]()
    adding, merged = part.IndexBuilder.adding, segment.merged

    def counted(self: Any, stored: Any, *rest: Any, **named: Any) -> Any:
        split[stored.ordinal] += 1
        return adding(self, stored, *rest, **named)

    def counted_merge(segments: Any, last: Any) -> Any:
        merges.update(
            message.message(index).ordinal
            for message in (*segments, last)
            for index in range(message.size)
        )
        return merged(segments, last)

    monkeypatch.setattr(part.IndexBuilder, "adding", counted)
    monkeypatch.setattr(sealing, "merged", counted_merge)
    store = ConversationStore(database)
    await store.setup()
    chat, sealer = store.conversation(user_id=new_id(), thread_id="t"), await sealer_of(store)
    for number in range(20):
        await chat.append(
            [HumanMessage(f"orcas {number}", id=new_id()), AIMessage("Yes.", id=new_id())]
        )
        await sealer.seal(tuple(chat.scope.items()))
    assert set(split.values()) == {1}
    assert max(merges.values()) == 1
    conversation = (await chat.info()).conversation_id
    segments = await database["search"].find({"conversation": conversation}).to_list(None)
    assert sorted(segment["merges"] for segment in segments) == [0, 0, *[1] * 6]
    assert len(await chat.search("orcas", limit=50)) == 20
    await store.close()


@pytest.mark.slow
async def test_what_a_search_split_is_sealed_as_it_is(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each of three searches only what is new is read and split, once; the segments are what the log gives."""
    split = Counter[int]()
    adding = part.IndexBuilder.adding

    def counted(self: Any, stored: Any, *rest: Any, **named: Any) -> Any:
        split[stored.ordinal] += 1
        return adding(self, stored, *rest, **named)

    store = ConversationStore(database)
    await store.setup()
    chat, sealer = store.conversation(user_id=new_id(), thread_id="t"), await sealer_of(store)
    with monkeypatch.context() as patched:
        patched.setattr(part.IndexBuilder, "adding", counted)
        for until in (3, 6, 9):
            for number in range(3):
                await chat.append(rag_turn(f"{number}: orcas?", words=700))
            assert len(await chat.search("orcas", types=["human"])) == until
            await sealer.wait()
    assert set(split.values()) == {1}
    assert len(split) == 9 * 4
    segments = (
        await database["search"]
        .find({"conversation": (await chat.info()).conversation_id})
        .to_list(None)
    )
    assert sorted(segment["until"] for segment in segments) == [3, 6, 9]
    assert (await store.verify(user_id=chat.scope["user_id"])).ok
    await store.close()


@pytest.mark.slow
async def test_texts_of_a_deleted_conversation_reach_no_later_one(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search split them, and before they were sealed, the conversation was deleted and its scope used again."""
    store = ConversationStore(database)
    await store.setup()
    chat, sealer = store.conversation(user_id=new_id(), thread_id="t"), await sealer_of(store)
    await chat.append(rag_turn("secret?", words=6_000))
    with monkeypatch.context() as patched:
        patched.setattr(sealer._background, "start", lambda _: None)
        assert await chat.search("secret", types=["human"])
    assert sealer._scheduled
    await chat.delete()
    await chat.append(rag_turn("orcas?", words=6_000))
    sealer._background.start(sealer._seal_scheduled)
    await sealer.wait()
    assert await chat.search("secret") == []
    assert (await store.verify(user_id=chat.scope["user_id"])).ok
    await store.close()


@pytest.mark.slow
async def test_sealing_pauses(database: Any) -> None:
    """Sealing pauses at least nine times as long as it works."""
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0)

    store = ConversationStore(database, clock=Clock(sleep=sleep))
    await store.setup()
    chat, sealer = store.conversation(user_id=new_id(), thread_id="t"), await sealer_of(store)
    for number in range(10):
        await chat.append(rag_turn(f"{number}: orcas?", words=2_000))
    sealer.schedule(*(await cached(store, chat.scope)))
    await sealer.wait()
    assert len(pauses) > 5
    assert min(pauses) >= 0.002 * 9
    await store.close()


async def cached(store: ConversationStore, scope: dict[str, str]) -> Any:
    """Return scope and id of a conversation."""
    found = await (await host_of(store).services()).reader.find(tuple(scope.items()))
    assert found is not None
    return found.key


@pytest.mark.slow
async def test_a_client_that_is_closed_while_it_is_used_to_seal_logs_nothing(
    server_uri: str,
    database_name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At whichever pause: the next search seals the rest."""
    errors = list[Any]()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_exception_handler", errors.append)
    for at in range(0, 12, 2):
        client = AsyncMongoClient[dict[str, Any]](server_uri)
        pauses = 0

        async def sleep(_: float, client: Any = client, at: int = at) -> None:
            nonlocal pauses
            pauses += 1
            await asyncio.sleep(0)
            if pauses == at:
                await client.close()

        store = ConversationStore(client[database_name], clock=Clock(sleep=sleep))
        await store.setup()
        chat, sealer = store.conversation(user_id=new_id(), thread_id="t"), await sealer_of(store)
        for number in range(8):
            await chat.append(rag_turn(f"{number}: orcas?", words=300))
        sealer.schedule(*(await cached(store, chat.scope)))
        if at == 0:
            await asyncio.sleep(0)
            await client.close()
        await sealer.wait()
        await client.close()
    assert errors == []
    assert caplog.records == []


async def test_what_waits_to_be_sealed_is_bounded(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sealer remembers a bounded number of conversations, however many rest or are due."""
    monkeypatch.setattr(sealing, "_MAX_REMEMBERED", 3)
    store = ConversationStore(database, clock=Clock(call_later=lambda *_: None))
    await store.setup()
    sealer = await sealer_of(store)
    for number in range(10):
        sealer.note((("user_id", "ada"), ("thread_id", f"rests {number}")), f"rests {number}")
        sealer.schedule((("user_id", "ada"), ("thread_id", f"is due {number}")), f"is due {number}")
    assert (len(sealer._resting), len(sealer._scheduled)) == (3, 3)
    await sealer.wait()
    await store.close()


async def test_a_version_that_a_migration_excludes_seals_nothing(
    own_database: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a newer convstore migrated the database; calls report it, the sealer does not."""
    store = ConversationStore(own_database)
    await store.setup()
    chat, sealer = store.conversation(user_id=new_id(), thread_id="t"), await sealer_of(store)
    await chat.append(rag_turn("What about orcas?"))
    conversation = await cached(store, chat.scope)
    await own_database["convstore_migrations"].insert_one({"_id": "9999_later", "level": LEVEL + 1})
    # so that it reads them now, not in 10 seconds
    monkeypatch.setattr(host_of(store).schema, "is_ready", False)
    sealer.schedule(*conversation)
    await sealer.wait()
    assert await own_database["search"].count_documents({"conversation": conversation[1]}) == 0
    assert caplog.records == []
    await store.close()


@pytest.mark.slow
async def test_a_search_across_leaves_the_conversation_cache_alone(
    client: Client, commands: Commands, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search across conversations leaves the cache alone: the next append to a conversation in use is one command."""
    monkeypatch.setattr("convstore.runtime.cache._MAXIMUM_CONVERSATIONS", 3)
    store = ConversationStore(client[database_name], clock=STANDING)
    await store.setup()
    user = new_id()
    chats = [store.conversation(user_id=user, thread_id=str(number)) for number in range(6)]
    for chat in chats:
        await chat.append([HumanMessage("orcas", id=new_id())])
    await chats[-1].append([AIMessage("Yes.", id=new_id())])
    assert len((await store.search("orcas", user_id=user)).conversations) == 6
    for chat in chats:
        await (await sealer_of(store)).seal(tuple(chat.scope.items()))
    with commands.counted():
        await chats[-1].append([HumanMessage("And seals?", id=new_id())])
    assert commands.names == ["insert"]
    await store.close()


async def test_few_searches_across_run_at_once(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait, so that their memory is bounded."""
    store = ConversationStore(database)
    await store.setup()
    user = new_id()
    await store.conversation(user_id=user, thread_id="t").append(
        [HumanMessage("orcas", id=new_id())]
    )
    across = (await host_of(store).services()).across
    running, most, read = 0, 0, across._read

    async def counted(search: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        found = await read(search)
        running -= 1
        return found

    monkeypatch.setattr(across, "_read", counted)
    results = await asyncio.gather(*(store.search("orcas", user_id=user) for _ in range(7)))
    assert [len(result.conversations) for result in results] == [1] * 7
    assert most == 2
    await store.close()


async def test_the_fingerprint_of_the_analyzer_changes_with_the_stemmer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fingerprint of the analyzer changes with the stemmer, not only with the version number in the code."""
    assert words.analyzer.__wrapped__() == words.analyzer()
    words._cached_terms.cache_clear()
    stemmed = words._stemmed
    with monkeypatch.context() as patched:
        patched.setattr(
            words,
            "_stemmed",
            lambda word, language: {"news": "new"}.get(word, stemmed(word, language)),
        )
        assert words.analyzer.__wrapped__() != words.analyzer()
    words._cached_terms.cache_clear()
    assert words.analyzer.__wrapped__() == words.analyzer()
