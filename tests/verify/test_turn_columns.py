"""Damage to what is stored of turns is noticed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import ConversationStore
from convstore.mongo.keys import LOG
from convstore.runtime.clock import Clock

# appends of now are not in flight any more
LATER = Clock(now=lambda: datetime.now(UTC) + timedelta(days=2))
DAMAGE: dict[str, tuple[int, dict[str, Any]]] = {
    "a turn that is not a question": (1, {"messages.1.turn": 2}),
    "what a model saw": (1, {"messages.1.unseen": 1, "messages.1.stamp": None}),
    "another call that a result answers": (1, {"messages.2.answers": "0" * 32}),
    "other calls of a reply": (1, {"messages.1.calls": ["0" * 32]}),
    "reasoning": (1, {"messages.1.reasoning": 1}),
    "why the newest turn is over": (1, {"totals.over": "stopped"}),
    "the newest question": (2, {"totals.turn": 1}),
    "the newest question after a rewind": (4, {"totals.turn": 5}),
    "the look-up values of an entry without messages": (4, {"lookup": ["turn 1"]}),
    "that an answer is not shown yet": (5, {"totals.branched": None}),
}


async def test_what_is_stored_of_a_turn_is_derived_again() -> None:
    """Each column that a reader judges by, and the look-up values that find it."""
    for name, (number, change) in DAMAGE.items():
        database = AsyncMongoMockClient()["damage"]
        store = ConversationStore(database)
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        calling = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "a"}])
        await chat.append(
            [
                HumanMessage("Orcas?", id="q1"),
                calling,
                ToolMessage("5", tool_call_id="a"),
                AIMessage("5."),
            ]
        )
        await chat.append([HumanMessage("Seals?", id="q2"), AIMessage("Yes.")])
        await chat.append(HumanMessage("Whales?", id="q3"))
        await chat.rewind(before_id="q2")
        async with await chat.turn("q1", regenerate="unfinished"):
            pass
        doctor = ConversationStore(database, clock=LATER)
        assert (await doctor.verify()).findings == (), name
        sets = {key: value for key, value in change.items() if value is not None}
        unsets = {key: "" for key, value in change.items() if value is None}
        update = {"$set": sets} | ({"$unset": unsets} if unsets else {})
        found = await database[LOG].update_one({"totals.entries": number}, update)
        assert found.modified_count == 1, name
        assert (await doctor.verify()).findings, name


async def test_only_a_message_of_a_person_is_a_question() -> None:
    """A reply whose turn is its own ordinal belongs to no question."""
    database = AsyncMongoMockClient()["damage"]
    store = ConversationStore(database)
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append([HumanMessage("Orcas?"), AIMessage("5.")])
    await chat.append(AIMessage("By the way.", id="reply"))
    await database[LOG].update_one({"totals.entries": 2}, {"$set": {"messages.0.turn": 3}})
    problems = [finding.problem for finding in (await store.verify()).findings]
    assert "message 'reply': its turn is not an earlier question" in problems
