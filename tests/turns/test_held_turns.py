"""What a worker knows of a turn that it holds, and takes over after others have written to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore
from convstore.exceptions import SchemaVersionError
from convstore.integration import HeldTurn, RunTurn, TurnAccess, host_of

QUESTION = HumanMessage("Do seals sleep?", id="q1")
ANSWER = AIMessage("They do.", id="a1")


@pytest.fixture
async def chat() -> AsyncIterator[Conversation]:
    """A conversation in memory."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store.conversation(user_id="ada", thread_id="t")


def _held(chat: Conversation) -> HeldTurn:
    """Return the turn that this worker holds."""
    held = TurnAccess(chat).held("q1")
    assert held
    return held


async def test_the_first_answer_is_that_before_a_worker_took_the_turn(chat: Conversation) -> None:
    """What it says itself is none, also after the turn was read again."""
    async with await chat.turn("q1", human=QUESTION.text) as turn:
        held = _held(chat)
        await turn.append(ANSWER.model_copy())
        await held.read_again()
        assert held.first_answer == ""
    async with await chat.turn("q1"):
        assert _held(chat).first_answer == "a1"


async def test_a_run_that_appends_its_question_had_no_answer(chat: Conversation) -> None:
    """The turn was not read before its first append."""
    run = await RunTurn.enter(chat, "q1", busy="raise", is_at_work=lambda: False, is_new=True)
    assert run.held.first_answer is None
    await TurnAccess(chat).append(run.held, [QUESTION.model_copy(), ANSWER.model_copy()])
    await run.held.read_again()
    assert run.held.first_answer == ""
    await run.leave()


@pytest.mark.parametrize("work", ["append", "look", "renew"])
async def test_a_process_that_a_migration_excludes_gives_its_turn_up(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Each append, and each look at the lease, asks for the level of the database."""
    async with await chat.turn("q1", human=QUESTION.text):
        held = _held(chat)
        schema = (await host_of(chat).services()).reader.schema

        async def exclude() -> None:
            raise SchemaVersionError("a newer convstore set up the database")

        with monkeypatch.context() as patch:
            patch.setattr(schema, "check", exclude)
            works: dict[str, Any] = {"append": held.finish, "look": held.look, "renew": held.renew}
            with pytest.raises(SchemaVersionError):
                await works[work]()
        assert held.is_lost
