"""Leading system messages in the state: a load trusts only a readable copy, and `verify` compares it with the log."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.mongo import state_documents
from convstore.testing.samples import new_id

CUT = HistoryPolicy(max_tokens=300)
"""A view that begins long after the system messages, so that a load takes them from the state."""

Document = dict[str, Any]


def words(messages: Any) -> int:
    """Count words, as an application's own counter."""
    return sum(len(str(message.content).split()) for message in messages)


@pytest.fixture
async def chat(store: ConversationStore) -> Conversation:
    """A conversation with two system messages, longer than its view."""
    chat = store.conversation(user_id=new_id(), thread_id="t")
    await chat.append(
        [
            SystemMessage("Be brief.", id="s1"),
            SystemMessage("Be kind.", id="s2"),
            HumanMessage("Hi"),
        ]
    )
    for number in range(5):
        await chat.append(
            [AIMessage(f"Answer {number}. " * 60), HumanMessage(f"Question {number}?")]
        )
    await chat.load_history(CUT)
    return chat


async def state_of(database: Any, chat: Conversation) -> Document:
    """Return the stored state."""
    found: Document = await database["log"].find_one(
        {"_id": f"{(await chat.info()).conversation_id}:~"}
    )
    return found


async def shown(database: Any, chat: Conversation, **options: Any) -> list[str]:
    """Return the view of a process that knows nothing yet."""
    cold = ConversationStore(database, **options).conversation(**chat.scope)
    return [message.text for message in (await cold.load_history(CUT)).messages]


async def found_in(
    database: Any, chat: Conversation, **options: Any
) -> list[tuple[str, str, bool]]:
    """Return kind, document and outcome of each finding about the conversation."""
    repair = options.pop("repair", False)
    report = await ConversationStore(database, **options).verify(
        repair=repair, user_id=chat.scope["user_id"]
    )
    return [(finding.kind, finding.document_id, finding.repaired) for finding in report.findings]


def emptied(system: Document) -> None:
    """No messages at all."""
    system["messages"] = []


def doubled(system: Document) -> None:
    """The first message twice."""
    system["messages"].insert(0, system["messages"][0])


def cut_off(system: Document) -> None:
    """The last message is missing."""
    del system["messages"][-1]


def counted_wrongly(system: Document) -> None:
    """Change the number of tokens of the first system message."""
    system["messages"][0]["view_tokens"] += 5


def of_other_content(system: Document) -> None:
    """A text that the digest of the message does not fit."""
    system["messages"][0]["body"] = system["messages"][0]["body"].replace("brief", "rude!")


def of_another_id(system: Document) -> None:
    """A message that the log has under another id."""
    system["messages"][0]["id"] = "s9"


def beginning_elsewhere(system: Document) -> None:
    """Change the number of the last message that the copy covers."""
    system["through"] += 1


def unreadable(system: Document) -> None:
    """A field of another type."""
    system["messages"] = "none"


CHANGES = (
    emptied,
    doubled,
    cut_off,
    counted_wrongly,
    of_other_content,
    of_another_id,
    beginning_elsewhere,
)
DAMAGES = [(damage, True) for damage in CHANGES]
DAMAGES += [(damage, False) for damage in (emptied, of_other_content, unreadable)]


@pytest.mark.costly
@pytest.mark.parametrize(("damage", "is_consistent"), DAMAGES)
async def test_a_damaged_copy_is_found_and_rebuilt(
    chat: Conversation, database: Any, damage: Callable[[Document], None], is_consistent: bool
) -> None:
    """Damaged, it is not shown. Made to look whole, it is still not what the log has."""
    before, right = await state_of(database, chat), await shown(database, chat)
    assert right[:2] == ["Be brief.", "Be kind."]
    assert len(right) < 20
    system = copy.deepcopy(before["system"])
    damage(system)
    if is_consistent:
        del system["digest"]
        system["digest"] = state_documents._digest(before["conversation"], system)
    change = {"$set": {"system": system}}
    await database["log"].update_one({"_id": before["_id"]}, change)
    if not is_consistent:
        assert await shown(database, chat) == right
        # a load may have mended it
        await database["log"].update_one({"_id": before["_id"]}, change)
    finding = ("state", before["_id"])
    assert await found_in(database, chat) == [(*finding, False)]
    assert await found_in(database, chat, repair=True) == [(*finding, True)]
    assert await found_in(database, chat) == []
    assert (await state_of(database, chat))["system"] == before["system"]
    assert await shown(database, chat) == right


@pytest.mark.slow
async def test_the_copy_of_another_user_is_not_shown(
    store: ConversationStore, chat: Conversation, database: Any
) -> None:
    """A copy of another user's system messages is not shown, because it names another conversation."""
    other = store.conversation(user_id=new_id(), thread_id="t")
    await other.append([SystemMessage("Be someone else.", id="s1"), HumanMessage("Hi")])
    system, right = (await state_of(database, other))["system"], await shown(database, chat)
    key = (await state_of(database, chat))["_id"]
    await database["log"].update_one({"_id": key}, {"$set": {"system": system}})
    assert await found_in(database, chat) == [("state", key, False)]
    assert await shown(database, chat) == right
    await found_in(database, chat, repair=True)
    assert await found_in(database, chat) == []


async def test_a_damaged_copy_of_a_damaged_log_is_dropped(
    chat: Conversation, database: Any
) -> None:
    """The log decides nothing then; the entry is reported by itself and stays."""
    state = await state_of(database, chat)
    entry = f"{state['conversation']}:000000000001"
    await database["log"].update_one({"_id": state["_id"]}, {"$set": {"system.messages": []}})
    await database["log"].update_one({"_id": entry}, {"$set": {"messages.0.body": "{}"}})
    assert ("state", state["_id"], True) in await found_in(database, chat, repair=True)
    assert "system" not in await state_of(database, chat)
    assert {document for _, document, _ in await found_in(database, chat)} == {entry}


async def test_a_healthy_copy_of_a_damaged_log_is_kept(chat: Conversation, database: Any) -> None:
    """A repair keeps a healthy copy and does not copy a message that it reports as damaged."""
    state = await state_of(database, chat)
    entry = f"{state['conversation']}:000000000001"
    await database["log"].update_one({"_id": entry}, {"$set": {"messages.0.view_tokens": 99}})
    assert {document for _, document, _ in await found_in(database, chat, repair=True)} == {entry}
    assert await state_of(database, chat) == state


async def test_sizes_by_another_counter_are_no_damage(chat: Conversation, database: Any) -> None:
    """Nor are they compared: the log does not have them. What else the copy has is."""
    state = await state_of(database, chat)
    await database["log"].update_one({"_id": state["_id"]}, {"$unset": {"system": ""}})
    await shown(database, chat, token_counter=words)
    system = (await state_of(database, chat))["system"]
    assert system["counter"] != state["system"]["counter"]
    assert (
        await found_in(database, chat) == await found_in(database, chat, token_counter=words) == []
    )
    cut_off(system)
    system["digest"] = state_documents._digest(
        state["conversation"], {name: value for name, value in system.items() if name != "digest"}
    )
    await database["log"].update_one({"_id": state["_id"]}, {"$set": {"system": system}})
    assert await found_in(database, chat, repair=True) == [("state", state["_id"], True)]
    assert (await state_of(database, chat))["system"] == state["system"]


@pytest.mark.slow
async def test_a_copy_from_before_a_rewind_is_no_damage(chat: Conversation, database: Any) -> None:
    """No load uses it until the rewind is undone."""
    for before in ("s2", "s1"):
        await chat.rewind(before_id=before)
        assert await found_in(database, chat) == []
        await chat.append(
            [SystemMessage(f"After {before}."), HumanMessage("Hi"), AIMessage("Hello. " * 300)]
        )
        assert await found_in(database, chat) == []
        await shown(database, chat)
        assert await found_in(database, chat) == []
    await chat.undo_rewind()
    assert await found_in(database, chat) == []
