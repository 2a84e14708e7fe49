"""Variants of a log that lost entries: each one that is listed can be shown, and the log stays sound."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from properties import parts

from convstore import Conversation, ConversationStore
from convstore.exceptions import MessageRewoundError, TurnLostError, UnknownMessageError
from convstore.integration import host_of
from convstore.runtime.clock import Clock
from convstore.testing.fixtures import ahead

pytestmark = pytest.mark.slow


async def answered(chat: Conversation, turn_id: str, text: str, **asked: Any) -> None:
    """Ask for an answer of two messages; the id of the last one is its text."""
    async with await chat.turn(turn_id, **asked) as turn:
        await turn.append(
            AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": f"call {text}"}])
        )
        await turn.add_result(turn.open_calls[0], "found")
        await turn.append(AIMessage(text, id=text))


async def check(database: Any, chat: Conversation) -> None:
    """Show each variant of each turn, and rewind and restore its end; `verify` finds nothing."""
    store = ConversationStore(database)
    chat = store.conversation(**chat.scope)
    for turn_id in ("q", "q2"):
        try:
            variants = await chat.variants(turn_id)
        except UnknownMessageError:
            continue
        for variant in variants:
            try:
                await chat.activate(variant)
            except (MessageRewoundError, UnknownMessageError):
                continue
            last = (await chat.list_messages())[-1].message.id
            await chat.rewind(before_id=str(last))
            await chat.undo_rewind()
            assert (await chat.list_messages())[-1].message.id == last
            assert (await store.verify()).findings == ()


@pytest.mark.parametrize("part", parts(8))
async def test_variants_of_a_repaired_log_are_shown(own_database: Any, part: slice) -> None:
    """Whichever entry is lost, also with the one that took a variant away or showed it, or with the first ones."""
    await ConversationStore(own_database).setup()
    chat = ConversationStore(own_database).conversation(user_id="ada", thread_id="t")
    await answered(chat, "q", "A", human="Q")
    await answered(chat, "q", "B", regenerate="one")
    await answered(chat, "q2", "C", human="Q2", instead_of="q")
    await answered(chat, "q2", "D", regenerate="two")
    await chat.activate((await chat.variants("q"))[0])
    await chat.rewind(before_id="A")
    await chat.undo_rewind()
    await answered(chat, "q", "E", regenerate="three")
    everything = {
        name: await own_database[name].find({}).to_list(None) for name in ("heads", "log")
    }
    keys = [entry["_id"] for entry in everything["log"] if "first" in entry][:-1]
    losses = (
        [{key} for key in keys]
        + [set(keys[:number]) for number in (2, 5, 7, 9)]
        + [{*pair} for pair in combinations(keys[::5], 2)]
    )
    for lost in losses[part]:
        for name, documents in everything.items():
            await own_database[name].delete_many({})
            await own_database[name].insert_many(documents)
        await own_database["log"].delete_many({"_id": {"$in": [*lost]}})
        assert (await ConversationStore(own_database).verify(repair=True)).ok, sorted(lost)
        await check(own_database, chat)


async def test_a_variant_that_came_late_has_its_own_number(own_database: Any) -> None:
    """A worker finishes it in the old log, while another one is made in the copy; both can be shown."""
    store = ConversationStore(own_database, clock=Clock(monotonic=lambda: 100.0))
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(AIMessage("greeting", id="greeting"))
    await chat.append(AIMessage("lost", id="lost"))
    await answered(chat, "q", "A", human="Q")
    held = await chat.turn("q", regenerate="late")
    await own_database["log"].delete_one({"messages.id": "lost"})
    assert (await ConversationStore(own_database).verify(repair=True)).ok
    written = await held.append(AIMessage("late", id="late"))
    assert (written.message_ids, written.written) == (("late",), 1)
    shown = [message.id for message in (await chat.load_history()).messages]
    assert shown[-1] == "A"  # a load notices the copy, to which the answer is not moved yet
    with pytest.raises(TurnLostError):
        await held.append(AIMessage("more", id="more"))
    fresh = ConversationStore(own_database).conversation(**chat.scope)
    await answered(fresh, "q", "B", regenerate="new")
    services = await host_of(ConversationStore(own_database, clock=ahead(90))).services()
    await services.retention.sweep()
    found = await ConversationStore(own_database).conversation(**chat.scope).variants("q")
    assert [(variant.variant_id, variant.number) for variant in found] == [
        ("q", 1),
        ("new", 2),
        ("late", 3),
    ]
    for variant, text in zip(found, ("A", "B", "late"), strict=True):
        await fresh.activate(variant)
        assert (await fresh.list_messages())[-1].message.id == text
    await check(own_database, chat)


async def test_a_lost_rewind_is_known_by_an_entry_of_a_hidden_variant(own_database: Any) -> None:
    """A message was rewound while another answer was worked on; the entry of the rewind is lost, its effect is not."""
    await ConversationStore(own_database).setup()
    chat = ConversationStore(own_database).conversation(user_id="ada", thread_id="t")
    await answered(chat, "q", "A", human="Q")
    async with await chat.turn("q", regenerate="new") as turn:
        await turn.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "call B"}]))
        await chat.rewind(before_id="A")
        lost = (await chat.info()).message_count
        [rewind] = (
            await own_database["log"].find({"first": {"$exists": True}}).sort("_id", -1).to_list(1)
        )
        await turn.add_result(turn.open_calls[0], "found")
        shown = [message.message.id for message in await chat.list_messages()]
        assert "A" not in shown
        await own_database["log"].delete_one({"_id": rewind["_id"]})
        assert (await ConversationStore(own_database).verify(repair=True)).ok
        fresh = ConversationStore(own_database).conversation(**chat.scope)
        assert [message.message.id for message in await fresh.list_messages()] == shown
        assert (await fresh.info()).message_count == lost
    assert (await ConversationStore(own_database).verify()).findings == ()
