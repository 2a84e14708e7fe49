"""A backup is restored beneath running stores: what they append next does not leave a hole that nobody finds.

Layer 6, part of the contract.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.conversation import Conversation
from convstore.services.clock import Clock
from convstore.store import ConversationStore
from convstore.testing.samples import new_id

__all__ = ["RestoreContract", "RestoreFixtures", "restore", "saved", "talk", "texts"]

_NewStore = Callable[..., ConversationStore]
_Backup = Mapping[str, list[dict[str, Any]]]


async def talk(chat: Conversation, numbers: range, *, answers: int = 1) -> None:
    """Append a turn for each number."""
    for number in numbers:
        said = [AIMessage(f"a{number}.{place}", id=new_id()) for place in range(answers)]
        await chat.append([HumanMessage(f"q{number}", id=new_id()), *said])


async def texts(chat: Conversation) -> list[str]:
    """The questions of the view."""
    return [message.text for message in (await chat.load_history()).messages if message.type == "human"]


async def saved(database: Any, chat: Conversation) -> _Backup:
    """Copy all that is stored of a conversation."""
    head = await database["heads"].find_one({"scope": chat.scope})
    of_it = {"conversation": head["conversation"]}
    return {name: await database[name].find(of_it).to_list(None) for name in ("heads", "log", "summaries")}


async def restore(database: Any, backup: _Backup) -> None:
    """Put a copy of a conversation back in the place of what is stored."""
    of_it = {"conversation": backup["heads"][0]["conversation"]}
    for name, documents in backup.items():
        await database[name].delete_many(of_it)
        for document in documents:
            await database[name].insert_one(dict(document))


class RestoreFixtures:
    """Fixtures of stores whose clock a test moves."""

    @pytest.fixture
    def seconds(self) -> list[float]:
        """The clock of the stores."""
        return [100.0]

    @pytest.fixture
    async def running(self, new_store: _NewStore, seconds: list[float]) -> AsyncIterator[Conversation]:
        """A conversation of a store that goes on running while a backup is restored."""
        store = new_store(clock=Clock(monotonic=lambda: seconds[0]))
        await store.setup()
        yield store.conversation(user_id=new_id(), thread_id="t")
        await store.close()

    @pytest.fixture
    async def backup(self, running: Conversation, database: Any) -> _Backup:
        """The conversation after 5 turns; the store goes on to 10 turns and loads them."""
        await talk(running, range(5))
        backup = await saved(database, running)
        await talk(running, range(5, 10))
        assert await texts(running) == [f"q{number}" for number in range(10)]
        return backup

    @pytest.fixture
    async def restored(self, running: Conversation, backup: _Backup, database: Any) -> Conversation:
        """The conversation is as it was after 5 turns, and its store knows 10."""
        await restore(database, backup)
        return running


class RestoreContract(RestoreFixtures):
    """Promises about backups."""

    @pytest.mark.parametrize("idle", [10, 15])
    async def test_an_idle_store_appends_to_what_was_restored(
        self, restored: Conversation, seconds: list[float], idle: int
    ) -> None:
        """A tail of 10 seconds is compared with the log before it is used."""
        seconds[0] += idle
        receipt = await restored.append([HumanMessage("q", id=new_id()), AIMessage("a", id=new_id())])
        assert (receipt.first, receipt.last) == (11, 12)
        expected = [*(f"q{number}" for number in range(5)), "q"]
        assert await texts(restored) == expected
        assert [message.text async for message in restored.messages() if message.type == "human"] == expected
        assert (await restored.info()).message_count == 12

    @pytest.mark.parametrize("idle", [10, 15])
    async def test_an_idle_store_loads_what_was_restored(
        self, restored: Conversation, seconds: list[float], idle: int
    ) -> None:
        """Nothing of what it remembers is shown, no call fails, and it goes on behind what is there."""
        seconds[0] += idle
        assert await texts(restored) == [f"q{number}" for number in range(5)]
        assert (await restored.append(HumanMessage("q", id=new_id()))).first == 11

    @pytest.mark.parametrize("further", [3, 5, 9])
    async def test_an_idle_store_appends_to_what_others_went_on_with(
        self, restored: Conversation, seconds: list[float], further: int, new_store: _NewStore
    ) -> None:
        """Whether the log then has fewer entries than the store knew of, as many or more."""
        other = new_store().conversation(**restored.scope)
        await talk(other, range(20, 20 + further))
        seconds[0] += 11
        await restored.append(HumanMessage("q", id=new_id()))
        expected = [f"q{number}" for number in (*range(5), *range(20, 20 + further))]
        assert await texts(restored) == await texts(other) == [*expected, "q"]
        assert [message.text async for message in restored.messages() if message.type == "human"] == [*expected, "q"]

    async def test_a_young_store_loads_what_others_went_on_with(
        self, restored: Conversation, new_store: _NewStore
    ) -> None:
        """A load reads the last entry anyway, so it sees at once that the log is another one."""
        await talk(new_store().conversation(**restored.scope), range(20, 25))
        expected = [f"q{number}" for number in (*range(5), *range(20, 25))]
        assert await texts(restored) == expected
        await restored.append(HumanMessage("q", id=new_id()))
        assert await texts(restored) == [*expected, "q"]

    async def test_a_rewind_after_a_restore_is_one_of_what_is_there(
        self, backup: _Backup, restored: Conversation, seconds: list[float]
    ) -> None:
        """The marker goes in behind the last entry that is there, and appends go on behind the marker."""
        seconds[0] += 11
        question = backup["log"][4]["messages"][0]["id"]
        assert await restored.rewind(before=question) == 2
        await restored.append(HumanMessage("q", id=new_id()))
        assert await texts(restored) == ["q0", "q1", "q2", "q3", "q"]
