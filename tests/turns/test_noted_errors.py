"""The error by which a run broke off, as the next worker and the list of conversations find it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import Conversation, ConversationStore
from convstore.exceptions import StoreUnavailableError
from convstore.integration import TurnAccess, host_of
from convstore.mongo.drafts import Draft, Drafts
from convstore.mongo.turn_leases import TurnLeases
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


async def _break_off(chat: Conversation, error: BaseException, **asked: Any) -> None:
    """Enter a turn, and leave it by an error."""
    with suppress(type(error)):
        async with await chat.turn("q1", **asked):
            raise error


async def _draft(chat: Conversation) -> Draft | None:
    """Return the stored draft."""
    services = await host_of(chat).services()
    return await services.drafts.find(await host_of(chat).conversation_id(chat.scope))


async def test_the_next_worker_and_the_list_name_the_error(new_chat: NewChat) -> None:
    """Class and first line; the text of the reply stays, and the newest error counts."""
    chat = new_chat()
    await _break_off(chat, ValueError("no model\nhere"), human="Do seals sleep?")
    [row] = await host_of(chat).rows([await chat.info()])
    assert row.end.error == "ValueError: no model"
    async with await new_chat().turn("q1") as turn:
        assert (turn.draft, turn.error) == ("", "ValueError: no model")
    await _store_draft(chat, "They do")
    await _break_off(new_chat(), RuntimeError("late"))
    async with await new_chat().turn("q1") as turn:
        assert (turn.draft, turn.error) == ("They do", "RuntimeError: late")


async def _store_draft(chat: Conversation, text: str) -> None:
    """Store a draft of the turn, as a worker does that dies then."""
    services = await host_of(chat).services()
    async with await chat.turn("q1"):
        held = TurnAccess(chat).held("q1")
        assert held
        await services.drafts.begin(held.lease.conversation, Draft("q1", held.lease.owner, 1, text))


async def test_a_draft_after_an_error_is_of_the_worker_that_noted_it(new_chat: NewChat) -> None:
    """It takes the text over, so the worker before it cannot replace that any more."""
    chat = new_chat()
    async with await chat.turn("q1", human="Do seals sleep?"):
        pass
    await _store_draft(chat, "They do")
    before = await _draft(chat)
    await _break_off(chat, ValueError("no model"))
    after = await _draft(chat)
    assert before
    assert after
    assert (before.text, after.text) == ("They do", "They do")
    assert before.owner != after.owner


@pytest.mark.parametrize("error", [StoreUnavailableError("no answer"), KeyboardInterrupt()])
async def test_what_says_nothing_of_the_run_is_not_noted(
    new_chat: NewChat, error: BaseException
) -> None:
    """An error of the store is that of a server; an exit is the end of the process."""
    await _break_off(new_chat(), error, human="Do seals sleep?")
    assert await _draft(new_chat()) is None


async def test_no_error_is_noted_of_a_turn_that_is_over(new_chat: NewChat) -> None:
    """It has its answer, or was stopped, also just now; or another worker has it."""
    chat = new_chat()
    with suppress(ValueError):
        async with await chat.turn("q1", human="Do seals sleep?") as turn:
            await turn.append(AIMessage("They do."))
            raise ValueError("after the answer")
    assert await _draft(chat) is None
    with suppress(ValueError):
        async with await chat.turn("q2", human="And orcas?"):
            await new_chat().stop("q2")
            raise ValueError("stopped")
    assert await _draft(chat) is None
    successors = []
    with suppress(ValueError):
        async with await chat.turn("q3", human="And bears?"):
            successors.append(await new_chat(31).turn("q3"))
            raise ValueError("too late")
    assert await _draft(chat) is None
    async with successors[0] as successor:
        await successor.append(AIMessage("In winter."))


async def test_an_error_after_a_lost_lease_is_not_noted(
    new_chat: NewChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker knows that it lost the lease, and asks nobody."""
    chat = new_chat()
    with suppress(ValueError):
        async with await chat.turn("q1", human="Do seals sleep?"):
            held = TurnAccess(chat).held("q1")
            assert held
            held.lease.give_up()
            monkeypatch.setattr(Drafts, "find", _unavailable)
            monkeypatch.setattr(TurnLeases, "find", _unavailable)
            raise ValueError("too late")
    monkeypatch.undo()
    assert await _draft(chat) is None


async def _unavailable(*_: Any, **__: Any) -> None:
    raise AssertionError("nothing is read of a turn that was lost")


async def test_a_draft_of_another_turn_is_none_of_this_one(new_chat: NewChat) -> None:
    """Nor one to which something was appended since."""
    chat = new_chat()
    async with await chat.turn("q1", human="Do seals sleep?"):
        pass
    await _store_draft(chat, "They do")
    await chat.append(HumanMessage("And orcas?", id="q2"))
    async with await chat.turn("q2") as turn:
        assert turn.draft == ""
    with suppress(ValueError):
        async with await chat.turn("q2"):
            raise ValueError("no model")
    async with await chat.turn("q2") as turn:
        assert (turn.draft, turn.error) == ("", "ValueError: no model")
