"""Leaving a turn while the server fails, or after another worker has taken the turn over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import Conversation, ConversationStore
from convstore.exceptions import StoreUnavailableError, TurnBusyError
from convstore.mongo.log import Log
from convstore.testing.fixtures import ahead

NewChat = Callable[..., Conversation]


@pytest.fixture
async def new_chat() -> NewChat:
    """Make the conversation as another process has it, perhaps with a clock that is ahead."""
    database = AsyncMongoMockClient()["app"]
    await ConversationStore(database).setup()

    def new(seconds: float = 0) -> Conversation:
        store = ConversationStore(database, clock=ahead(seconds))
        return store.conversation(user_id="ada", thread_id="t")

    return new


async def _unavailable(*_: Any, **__: Any) -> None:
    raise StoreUnavailableError("no answer")


async def test_a_stop_that_cannot_be_marked_stays(
    new_chat: NewChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease lapses instead of being given back, and its next holder marks the turn."""
    chat = new_chat()
    with pytest.raises(StoreUnavailableError):  # noqa: PT012 - the exit raises it
        async with await chat.turn("r1", human="Do seals sleep?"):
            assert await new_chat().stop("r1")
            monkeypatch.setattr(Log, "insert", _unavailable)
    monkeypatch.undo()
    with pytest.raises(TurnBusyError):
        await chat.turn("r2", human="And orcas?")
    async with await new_chat(31).turn("r2", human="And orcas?"):
        pass
    turn = await chat.get_turn("r1")
    assert turn
    assert turn.over == "stopped"


@pytest.mark.parametrize("successor", ["r1", "r2"])
async def test_a_worker_that_lost_a_finished_turn_leaves_quietly(
    new_chat: NewChat, monkeypatch: pytest.MonkeyPatch, successor: str
) -> None:
    """Its fence after an append of unknown outcome is not needed: who took the turn over wrote an entry."""
    chat = new_chat()
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        with monkeypatch.context() as patch:
            patch.setattr(Log, "insert", _unavailable)
            with pytest.raises(StoreUnavailableError):
                await turn.append(AIMessage("They do."))
        await turn.finish()
        human = "And orcas?" if successor == "r2" else None
        await new_chat(31).turn(successor, human=human)
    assert [message.text async for message in chat.messages()][1:] == ([human] if human else [])
