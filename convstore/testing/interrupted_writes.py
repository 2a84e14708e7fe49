"""Tests of appends and rewinds that are cancelled, killed or of unknown outcome, and of the listings after them.

Clock and stores are the fixtures of `ListContract`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.conversation import Conversation
from convstore.exceptions import StoreUnavailableError
from convstore.mongo.log import Log
from convstore.store import ConversationStore
from convstore.testing.listing import HandMovedTime

__all__ = ["InterruptedWriteContract"]


async def _written(chat: Conversation, call: str) -> None:
    """Append a message, or rewind the answer."""
    if call == "append":
        await chat.append(HumanMessage("more"))
    else:
        await chat.rewind(before_id="answer")


async def _listed(store: ConversationStore, chat: Conversation) -> int:
    """Return the number of messages of the user's conversation in the listing."""
    [info] = (await store.list_conversations(user_id=chat.scope["user_id"])).conversations
    return info.message_count


class InterruptedWriteContract:
    """Appends and rewinds whose caller does not learn the outcome."""

    @pytest.fixture
    async def answered(self, mine: Conversation) -> Conversation:
        """A conversation of a question and an answer."""
        await mine.append([HumanMessage("q"), AIMessage("a", id="answer")])
        return mine

    @pytest.mark.parametrize("call", ["append", "rewind"])
    @pytest.mark.parametrize("landing", ["before", "after", "never"])
    @pytest.mark.parametrize("seconds", [0, 11])
    async def test_a_write_of_unknown_outcome_is_listed_as_it_turns_out(  # noqa: PLR0917 - fixtures
        self,
        answered: Conversation,
        other: ConversationStore,
        time: HandMovedTime,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
        landing: str,
        seconds: int,
    ) -> None:
        """After a broken connection, listings are right whether the entry was written at once, later or never."""
        time.seconds += seconds
        insert = Log.insert
        late: list[Any] = []

        async def unheard(*values: Any, **options: Any) -> None:
            late.append(insert(*values, **options))
            if landing == "before":
                await late.pop()
            raise StoreUnavailableError("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(Log, "insert", unheard)
            with pytest.raises(StoreUnavailableError):
                await _written(answered, call)
        for write in late:
            await write if landing == "after" else write.close()
        counts = {"append": 3, "rewind": 1} if landing != "never" else {}
        assert await _listed(other, answered) == counts.get(call, 2)

    @pytest.mark.parametrize("call", ["append", "rewind"])
    async def test_a_writer_killed_after_its_insert_is_listed(
        self,
        answered: Conversation,
        other: ConversationStore,
        time: HandMovedTime,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
    ) -> None:
        """An entry whose writer was killed after the insert is counted at once in another process's listings."""
        time.seconds += 11
        insert = Log.insert
        is_inserted = asyncio.Event()
        is_over = asyncio.Event()

        async def insert_and_hang(*values: Any, **options: Any) -> None:
            await insert(*values, **options)
            is_inserted.set()
            await is_over.wait()

        monkeypatch.setattr(Log, "insert", insert_and_hang)
        killed = asyncio.ensure_future(_written(answered, call))
        await is_inserted.wait()
        expected = {"append": 3, "rewind": 1}[call]
        assert await _listed(other, answered) == expected
        is_over.set()
        await killed

    @pytest.mark.parametrize("call", ["append", "rewind"])
    async def test_a_cancelled_write_ends_before_its_caller(
        self,
        answered: Conversation,
        other: ConversationStore,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
    ) -> None:
        """A retry finds the entry of a cancelled write, and listings count it."""
        insert = Log.insert
        is_sent = asyncio.Event()

        async def insert_slowly(*values: Any, **options: Any) -> None:
            is_sent.set()
            await asyncio.sleep(0.05)
            await insert(*values, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Log, "insert", insert_slowly)
            cancelled = asyncio.ensure_future(_written(answered, call))
            await is_sent.wait()
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        expected = {"append": 3, "rewind": 1}[call]
        assert (await other.conversation(**answered.scope).info()).message_count == expected
        assert await _listed(other, answered) == expected
