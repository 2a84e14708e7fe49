"""Erasures of conversations whose head is missing or damaged: what they count and leave, and who learns of it."""

from __future__ import annotations

from typing import Any

import pytest
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore
from convstore.mongo.keys import all_ids
from convstore.types import ErasureReceipt


@pytest.fixture
def database(emptied_database: Any) -> Any:
    """A database of its own, set up."""
    return emptied_database


async def id_of(chat: Conversation) -> str:
    """The id of a conversation."""
    return str((await chat.info()).conversation_id)


@pytest.mark.costly
@pytest.mark.parametrize("by", ["id", "lost", "everything"])
async def test_an_erasure_without_a_head_counts_sub_agents_once(
    store: ConversationStore, database: Any, by: str
) -> None:
    """A dry run counts what the erasure removes: with its children, and a head of another scope once."""
    lost, damaged = (store.conversation(user_id=user, thread_id="t") for user in ("ada", "eve"))
    for chat in (lost, damaged):
        await chat.append([HumanMessage("hi"), AIMessage("", id="c")])
    await lost.child("c").append(HumanMessage("hi"))
    ids = [await id_of(chat) for chat in (lost, damaged)]
    await database["heads"].delete_one({"conversation": ids[0]})
    await database["heads"].update_one({"conversation": ids[1]}, {"$set": {"scope.thread_id": "u"}})
    chosen, options = (
        ids[:1] if by == "id" else [],
        dict[str, Any]({} if by == "id" else {by: True}),
    )
    counted = await store.erase(*chosen, dry_run=True, **options)
    assert await store.erase(*chosen, **options) == counted
    assert counted.conversations == (2 if by == "id" else 3)


@pytest.mark.costly
@pytest.mark.parametrize("by", ["id", "lost"])
@pytest.mark.parametrize("has_head", [True, False])
async def test_a_process_that_erases_a_lost_conversation_forgets_it(
    store: ConversationStore, database: Any, by: str, has_head: bool
) -> None:
    """Its next append begins a new conversation, as after `delete`; nothing that it acknowledges is swept."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(HumanMessage("hi"))
    conversation = await id_of(chat)
    if has_head:
        await database["heads"].update_one(
            {"conversation": conversation}, {"$unset": {"scope": ""}}
        )
    else:
        await database["heads"].delete_one({"conversation": conversation})
    await store.erase(*([conversation] if by == "id" else []), lost=by == "lost")
    assert (await chat.append(HumanMessage("again"))).first == 1
    assert [message.content async for message in chat.messages()] == ["again"]


@pytest.mark.costly
@pytest.mark.parametrize(
    "damage",
    [
        {"$unset": {"scope": ""}},
        {"$unset": {"scope": "", "updated_at": ""}},
        {"$set": {"scope": 7}},
        {"$set": {"scope.user_id": "eve"}},
        {"$unset": {"conversation": ""}},
        {"$set": {"conversation": ["a", "list"]}},
    ],
    ids=str,
)
@pytest.mark.parametrize("by", ["lost", "everything"])
async def test_whatever_is_wrong_with_a_head_its_conversation_can_be_erased(
    store: ConversationStore, database: Any, damage: dict[str, Any], by: str
) -> None:
    """With everything no document stays, and with what is lost those of other conversations; a dry run counts that.

    The last progress that is reported is the receipt.
    """
    chats = [store.conversation(user_id=user, thread_id="t") for user in ("ada", "bo")]
    for chat in chats:
        await chat.append([HumanMessage("hi"), AIMessage("ho")])
    await database["heads"].update_one({"conversation": await id_of(chats[0])}, damage)
    options: dict[str, Any] = {by: True}
    counted = await store.erase(dry_run=True, **options)
    seen = list[ErasureReceipt]()
    assert await store.erase(progress=seen.append, **options) == counted
    assert seen[-1] == counted
    kept = 0 if by == "everything" else 1
    assert await database["heads"].count_documents({"sweep_at": {"$exists": False}}) == kept
    assert await database["log"].count_documents({"first": {"$exists": True}}) == kept
    assert (await chats[1].info()).message_count == 2 * kept


async def test_a_head_of_a_newer_version_is_not_lost(
    store: ConversationStore, database: Any
) -> None:
    """It may name its scope in another way."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(HumanMessage("hi"))
    conversation = await id_of(chat)
    newer = {"$set": {"v": 99, "scope": "elsewhere"}}
    await database["heads"].update_one({"conversation": conversation}, newer)
    assert await store.erase(lost=True) == ErasureReceipt()
    assert (await store.erase(conversation)).entries == 1


async def test_a_conversation_is_looked_up_by_id_once(
    client: Client, database_name: str, commands: Any
) -> None:
    """By an index, also if it has no head."""
    store = ConversationStore(client[database_name])
    chat = store.conversation(user_id="ada", thread_id="by-id")
    await chat.append(HumanMessage("hi"))
    known = await id_of(chat)
    for conversation in (known, known[::-1]):
        with commands.counted():
            await store.erase(conversation)
        looks = [sent for name, sent in commands.own if (name, sent[name]) == ("find", "heads")]
        assert [look["filter"] for look in looks if "conversation" in look["filter"]] == [
            {"conversation": all_ids(conversation), "sweep_at": {"$exists": False}}
        ]
    plan = await client[database_name]["heads"].find({"conversation": all_ids("0" * 24)}).explain()
    assert "IXSCAN" in str(plan["queryPlanner"]["winningPlan"])
    await store.close()
