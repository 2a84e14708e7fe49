"""A turn that its worker leaves while the server fails, or after others have ended it or taken it over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import Conversation, ConversationStore
from convstore.exceptions import (
    InvalidInputError,
    MissingPrivilegeError,
    StoreUnavailableError,
    TurnBusyError,
    TurnClosedError,
    TurnConflictError,
)
from convstore.mongo.log import Log
from convstore.mongo.turn_leases import TurnLeases
from convstore.runtime import background
from convstore.testing.fixtures import ahead
from convstore.testing.stored import Stored
from convstore.turns import held_lease

NewChat = Callable[..., Conversation]


@pytest.fixture
async def database() -> Any:
    """A database in memory."""
    database = AsyncMongoMockClient()["app"]
    await ConversationStore(database).setup()
    return database


@pytest.fixture
def new_chat(database: Any) -> NewChat:
    """Make the conversation as another process has it, perhaps with a clock that is ahead."""

    def new(seconds: float = 0) -> Conversation:
        store = ConversationStore(database, clock=ahead(seconds))
        return store.conversation(user_id="ada", thread_id="t")

    return new


async def _unavailable(*_: Any, **__: Any) -> None:
    raise StoreUnavailableError("no answer")


async def _failed(*_: Any, **__: Any) -> None:
    raise MissingPrivilegeError("refused")


async def test_a_cancelled_append_is_fenced_off(
    new_chat: NewChat, database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may land after the worker has left; the server has not answered until then."""
    monkeypatch.setattr(background, "SETTLE_SECONDS", 0.01)
    is_sent = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> None:
        is_sent.set()
        await asyncio.Event().wait()

    chat = new_chat()
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        with monkeypatch.context() as patch:
            patch.setattr(Log, "insert", hang)
            appending = asyncio.ensure_future(turn.append(AIMessage("They do.")))
            await is_sent.wait()
            appending.cancel()
            await asyncio.wait({appending})
    *_, last, _state = await (await Stored.of(chat, database)).all()
    assert '"fence"' in last["facts"]["event"][0]


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_later_question_has_ended_a_turn(new_chat: NewChat, *, is_known: bool) -> None:
    """To finish it is no error; numbers for sources are refused, as any message is."""
    async with await new_chat().turn("r1", human="Do seals sleep?") as turn:
        await new_chat().append(HumanMessage("And orcas?"))
        if is_known:
            with pytest.raises(TurnConflictError):
                await turn.append(AIMessage("They do."))
        await turn.finish()
        assert turn.is_finished
        with pytest.raises(TurnConflictError):
            await turn.reserve(1)


async def test_a_finished_turn_reserves_no_numbers(new_chat: NewChat) -> None:
    """No result can be appended that shows them."""
    async with await new_chat().turn("r1", human="Do seals sleep?") as turn:
        await turn.finish()
        with pytest.raises(TurnClosedError):
            await turn.reserve(1)


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
    with pytest.raises(TurnClosedError):
        await turn.append(AIMessage("They do."))


@pytest.mark.parametrize("successor", ["worker", "question"])
async def test_a_stop_that_others_overtook_is_no_error(new_chat: NewChat, successor: str) -> None:
    """Whoever takes the turn over marks it; a later question leaves nothing to stop."""
    async with await new_chat().turn("r1", human="Do seals sleep?"):
        assert await new_chat().stop("r1")
        if successor == "worker":
            await new_chat(31).turn("r1")
        else:
            await new_chat().append(HumanMessage("And orcas?"))
    turn = await new_chat().get_turn("r1")
    assert turn
    assert turn.over == ("stopped" if successor == "worker" else "superseded")


async def test_a_rewind_of_the_question_that_overtook_a_stop_reopens_the_turn(
    new_chat: NewChat,
) -> None:
    """As the documentation of `stop` says; a stop that was marked stays."""
    async with await new_chat().turn("r1", human="Do seals sleep?"):
        assert await new_chat().stop("r1")
        await new_chat().append(HumanMessage("And orcas?", id="r2"))
    assert not await new_chat().stop("r1")
    await new_chat().rewind(before_id="r2")
    async with await new_chat().turn("r1") as again:
        assert not again.is_finished
    assert await new_chat().stop("r1")
    await new_chat().append(HumanMessage("And orcas?", id="r3"))
    await new_chat().rewind(before_id="r3")
    async with await new_chat().turn("r1") as again:
        assert again.is_stopped


@pytest.mark.parametrize("error", [StoreUnavailableError("no answer"), asyncio.CancelledError()])
async def test_a_lease_of_unknown_outcome_is_given_back(
    new_chat: NewChat, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The same request comes again at once, perhaps to another worker."""
    await new_chat().append(HumanMessage("Do seals sleep?", id="r1"))
    take = TurnLeases.take

    async def take_unanswered(*given: Any, **options: Any) -> None:
        await take(*given, **options)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(TurnLeases, "take", take_unanswered)
        with pytest.raises(type(error)):
            await new_chat().turn("r1")
    async with await new_chat().turn("r1") as turn:
        assert turn.is_running


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_lease_that_cannot_be_given_back_lapses(
    new_chat: NewChat, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    """The error is the first one, and comes in time; the server answers nothing."""
    monkeypatch.setattr(held_lease, "SETTLE_SECONDS", 0.01)
    await new_chat().append(HumanMessage("Do seals sleep?", id="r1"))

    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(TurnLeases, "take", _unavailable)
        patch.setattr(TurnLeases, "release", hang if is_slow else _failed)
        with pytest.raises(StoreUnavailableError):
            await new_chat().turn("r1")


async def test_what_is_no_stream_is_refused_and_not_closed(new_chat: NewChat) -> None:
    """A client or a store has a `close`, too, which its owner calls."""
    chat = new_chat()
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        with pytest.raises(InvalidInputError, match="async iterator of chunks, not Conv"):
            await anext(turn.stream(chat.store))
        closed: list[bool] = []
        client = SimpleNamespace(close=lambda: closed.append(True))
        with pytest.raises(InvalidInputError, match="async iterator of chunks, not Simple"):
            await anext(turn.stream(client))
        assert closed == []
        await turn.append(AIMessage("They do."))
