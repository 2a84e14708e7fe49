"""Segments belong to the log as it is: what another log gave is neither found nor built upon."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore
from convstore.integration import host_of
from convstore.mongo import segments
from convstore.runtime.clock import Clock
from convstore.search import sealer as sealer_module
from convstore.search.log_parts import MAX_UNSEALED_ENTRIES
from convstore.testing.restoring import restore, saved
from convstore.testing.samples import new_id, rag_turn

FORGED = {"sections.terms": b"orcas"}


async def said(chat: Conversation, *texts: str) -> None:
    """Append each text with an answer."""
    for text in texts:
        await chat.append([HumanMessage(text, id=new_id()), AIMessage("I see.", id=new_id())])


async def seal(chat: Conversation) -> None:
    """Seal now, as the sealer does later."""
    sealer = (await host_of(chat).services()).sealer
    await sealer.seal(tuple(chat.scope.items()))


def store_on(database: Any, **options: Any) -> ConversationStore:
    """Return a store as another process has it."""
    return ConversationStore(database, **options)


async def restored(database: Any) -> Conversation:
    """Return a log that a backup replaced and that grew again, with segments of the one before."""
    store = store_on(database)
    await store.setup()
    chat = store.conversation(user_id=new_id(), thread_id="t")
    await said(chat, "narwhals dive", "belugas sing")
    await seal(chat)
    backup = await saved(database, chat)
    await said(chat, *(f"lost orcas {number}" for number in range(6)))
    await seal(chat)
    await restore(database, backup)
    again = store_on(database).conversation(**chat.scope)
    await said(again, *(f"new dolphins {number}" for number in range(9)))
    return again


@pytest.mark.slow
async def test_a_restored_log_that_grew_far_is_searched_as_it_is(database: Any) -> None:
    """The segments end before the part of the log that a search reads first."""
    chat = await restored(database)
    await said(chat, *(f"far dolphins {number}" for number in range(MAX_UNSEALED_ENTRIES)))
    assert await found(chat, "orcas") == []
    assert len(await found(chat, "new")) == 9


async def found(chat: Conversation, text: str) -> list[str]:
    """Return the snippets that every kind of search gives, which must agree."""
    user = chat.scope["user_id"]
    snippets = [hit.snippet for hit in await chat.search(text, limit=50)]
    many = (await chat.store.search(text, limit=50, user_id=user)).conversations
    assert sorted(snippets) == sorted(hit.snippet for group in many for hit in group.hits)
    return sorted(snippets)


@pytest.mark.slow
async def test_a_restored_log_is_searched_and_sealed_as_it_is(database: Any) -> None:
    """Before the next seal, and after it, which replaces what does not follow; the rest is kept."""
    chat = await restored(database)
    for _ in range(2):
        assert len(await found(chat, "dolphins")) == 9
        assert await found(chat, "orcas") == []
        assert await found(chat, "narwhals") == ["narwhals dive"]
        await seal(chat)
        await said(chat, "more narrow waters")
        await seal(chat)
    assert (await chat.store.verify(user_id=chat.scope["user_id"])).ok


@pytest.mark.slow
async def test_verify_names_segments_of_another_log(database: Any) -> None:
    """verify() finds a segment that was made from another log, and a repair builds it again."""
    chat = await restored(database)
    user = chat.scope["user_id"]
    assert (await chat.store.verify(user_id=user)).counts == {"segment": 1}
    assert (await chat.store.verify(user_id=user, repair=True)).ok
    assert (await chat.store.verify(user_id=user)).ok
    assert len(await found(chat, "dolphins")) == 9


async def test_one_stale_conversation_does_not_spoil_the_search_of_a_user(database: Any) -> None:
    """A log that a backup made shorter, whose segments name messages that are not in it."""
    store = store_on(database)
    await store.setup()
    user = new_id()
    chats = [store.conversation(user_id=user, thread_id=name) for name in ("a", "b")]
    backup = None
    for chat in chats:
        await said(chat, "orcas hunt")
        backup = backup or await saved(database, chat)
        await said(chat, *(f"orcas {number}" for number in range(4)))
        await seal(chat)
    assert backup
    await restore(database, backup)
    result = await store_on(database).search("orcas", user_id=user)
    assert (
        sorted(len(conversation.hits) for conversation in result.conversations),
        result.incomplete,
    ) == ([1, 5], [])


async def test_a_damaged_conversation_is_named_and_the_others_are_found(database: Any) -> None:
    """A hole in one log costs its hits."""
    store = store_on(database)
    await store.setup()
    user = new_id()
    for name in ("a", "b"):
        await said(
            store.conversation(user_id=user, thread_id=name), "orcas", "more orcas", "most orcas"
        )
    head = await database["heads"].find_one({"scope.user_id": user, "scope.thread_id": "a"})
    await database["log"].delete_one({"_id": f"{head['conversation']}:{2:012d}"})
    result = await store.search("orcas", user_id=user)
    assert [conversation.scope["thread_id"] for conversation in result.conversations] == ["b"]
    assert [scope["thread_id"] for scope in result.incomplete] == ["a"]


@pytest.mark.slow
async def test_contents_that_do_not_fit_are_found_by_verify(database: Any) -> None:
    """A segment with its own digest but other contents: nothing but the log can tell."""
    store = store_on(database)
    await store.setup()
    chat, other = (store.conversation(user_id=new_id(), thread_id="t") for _ in range(2))
    for conversation, text in ((chat, "narwhals"), (other, "belugas")):
        await said(conversation, text)
        await seal(conversation)
    own, foreign = [
        await database["search"].find_one({"conversation": (await handle.info()).conversation_id})
        for handle in (chat, other)
    ]
    forged = {**own, "sections": foreign["sections"]}
    forged["digest"] = segments._digest(forged)
    await database["search"].replace_one({"_id": own["_id"]}, forged)
    report = await store.verify(user_id=chat.scope["user_id"])
    assert report.counts == {"segment": 1}
    assert (await store.verify(user_id=chat.scope["user_id"], repair=True)).ok
    assert [hit.snippet for hit in await chat.search("narwhals")] == ["narwhals"]


@pytest.mark.slow
async def test_a_repair_drops_the_segments_of_lost_entries(database: Any) -> None:
    """The entries that replace lost ones end with their link, so a segment of the lost ones seems to follow."""
    store = store_on(database)
    await store.setup()
    chat = store.conversation(user_id=new_id(), thread_id="t")
    await said(chat, "narwhals dive")
    backup = await saved(database, chat)
    await said(chat, *(f"lost orcas {number}" for number in range(4)))
    await seal(chat)
    await restore(database, backup)
    await said(chat, "dolphins")  # by a process that still has the lost end in its cache
    later = store_on(database)
    report = await later.verify(user_id=chat.scope["user_id"], repair=True)
    assert report.counts["hole"]
    again = store_on(database).conversation(**chat.scope)
    assert await found(again, "orcas") == []
    assert await found(again, "dolphins") == ["dolphins"]


@pytest.mark.slow
@pytest.mark.costly
@pytest.mark.parametrize(
    "damage", [{"$unset": {"sections": 1}}, {"$unset": {"sections.types": 1}}, {"$set": FORGED}]
)
async def test_a_damaged_segment_is_none(database: Any, damage: dict[str, Any]) -> None:
    """Searches read the log, and the sealer that they call makes it again; `verify` names it until then."""
    store = store_on(database)
    await store.setup()
    chat = store.conversation(user_id=new_id(), thread_id="t")
    await said(chat, *(f"orcas {number}" for number in range(40)))
    await seal(chat)
    [before] = (
        await database["search"]
        .find({"conversation": (await chat.info()).conversation_id})
        .to_list(None)
    )
    await said(chat, *(f"orcas {number}" for number in range(40, 70)))
    await database["search"].update_one({"_id": before["_id"]}, damage)
    assert (await store.verify(user_id=chat.scope["user_id"])).counts == {"segment": 1}
    assert await found(
        store_on(database, search_index=False).conversation(**chat.scope), "orcas"
    ) == await found(chat, "orcas")
    sealer = (await host_of(store).services()).sealer
    await sealer.wait()
    assert (await store.verify(user_id=chat.scope["user_id"])).ok
    [after] = await database["search"].find({"conversation": before["conversation"]}).to_list(None)
    assert (after["_id"], after["until"]) == (before["_id"], 70)


async def test_a_damaged_segment_is_not_merged(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sealer that reads contents only to merge them seals from the log what is damaged."""
    monkeypatch.setattr(sealer_module, "_MERGED_AT_ONCE", 2)
    seconds = 0.0
    clock = Clock(
        now=lambda: datetime.now(UTC) + timedelta(seconds=seconds),
        call_later=lambda *_: None,
        monotonic=lambda: seconds,
    )
    store = store_on(database, clock=clock)
    await store.setup()
    chat = store.conversation(user_id=new_id(), thread_id="t")
    await said(chat, "narwhals dive")
    await seal(chat)
    conversation = (await chat.info()).conversation_id
    await database["search"].update_one(
        {"conversation": conversation}, {"$unset": {"sections.terms": 1}}
    )
    await said(chat, "belugas sing")
    services = await host_of(store).services()
    seconds += 70
    services.sealer.ring()
    await services.sealer.wait()
    assert (await store.verify(user_id=chat.scope["user_id"])).ok
    assert await database["search"].distinct("until", {"conversation": conversation}) == [2]
    await store.close()


async def test_a_damaged_rewind_costs_one_conversation_its_hits(database: Any) -> None:
    """A damaged rewind costs its conversation the hits and names it as incomplete. Other conversations are found."""
    store = store_on(database)
    await store.setup()
    user = new_id()
    for name in ("a", "b"):
        chat = store.conversation(user_id=user, thread_id=name)
        await chat.append(
            [HumanMessage("orcas", id="1"), AIMessage("Yes.", id="2"), HumanMessage("more", id="3")]
        )
        await seal(chat)
        await chat.rewind(before_id="3")
        await seal(chat)
    head = await database["heads"].find_one({"scope.user_id": user, "scope.thread_id": "a"})
    key = {"_id": f"{head['conversation']}:{2:012d}"}
    await database["log"].update_one(key, {"$set": {"facts.rewound": b"damaged"}})
    result = await store_on(database).search("orcas", user_id=user)
    assert [conversation.scope["thread_id"] for conversation in result.conversations] == ["b"]
    assert [scope["thread_id"] for scope in result.incomplete] == ["a"]


async def test_a_repair_does_not_build_segments_from_a_damaged_log(database: Any) -> None:
    """A total of an entry is damaged: the segment over it is right, and another that is damaged is only removed."""
    store = store_on(database)
    await store.setup()
    chat = store.conversation(user_id=new_id(), thread_id="t")
    await said(chat, "narwhals dive")
    await seal(chat)
    await said(chat, "belugas sing", "orcas hunt")
    await seal(chat)
    conversation, user = (await chat.info()).conversation_id, chat.scope["user_id"]
    await database["log"].update_one(
        {"_id": f"{conversation}:{2:012d}"}, {"$set": {"totals.tokens": 7}}
    )
    of_it = {"conversation": conversation}
    assert "segment" not in (await store.verify(user_id=user, repair=True)).counts
    assert await database["search"].count_documents(of_it) == 2
    await database["search"].update_one({**of_it, "until": 3}, {"$unset": {"sections": 1}})
    assert (await store.verify(user_id=user, repair=True)).counts["segment"] == 1
    assert await database["search"].distinct("until", of_it) == [1]
    assert await found(chat, "belugas") == ["belugas sing"]


@pytest.mark.costly
@pytest.mark.parametrize("maximum", range(8_000, 12_000, 1_000))
async def test_merged_segments_of_any_size_are_what_the_log_gives(
    database: Any, monkeypatch: pytest.MonkeyPatch, maximum: int
) -> None:
    """Copies in a text count for the room that a new segment has, but not for the size of a merged one."""
    monkeypatch.setattr(sealer_module, "MAX_CHARACTERS", maximum)
    monkeypatch.setattr(sealer_module, "_MERGED_AT_ONCE", 2)
    store = store_on(database)
    await store.setup()
    chat = store.conversation(user_id=new_id(), thread_id="t")
    for number in range(6):
        await chat.append(rag_turn(f"{number}: orcas?", words=30))
        await seal(chat)
    assert (await store.verify(user_id=chat.scope["user_id"])).counts == {}
