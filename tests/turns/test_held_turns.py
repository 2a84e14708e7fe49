"""What a worker knows of a turn that it holds, and takes over after others have written to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from mongomock_motor import AsyncMongoMockClient

from convstore import Conversation, ConversationStore
from convstore.exceptions import SchemaVersionError, StoreUnavailableError
from convstore.integration import HeldTurn, RunTurn, TurnAccess, host_of
from convstore.mongo.log import Log

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
            works: dict[str, Any] = {
                "append": held.finish,
                "look": held.lease.look,
                "renew": held.lease.renew,
            }
            with pytest.raises(SchemaVersionError):
                await works[work]()
        assert held.lease.is_lost


async def test_another_answer_brings_the_summary_before_it_back() -> None:
    """The newest summary covers messages that the answer hides; an earlier one does not, and is shown at once."""
    texts = iter(["Earlier.", "Later."])

    async def summarize(_messages: Sequence[BaseMessage], _summary: str | None) -> str:
        return next(texts)

    store = ConversationStore(AsyncMongoMockClient()["app"], summarizer=summarize)
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    for first in (0, 12):
        for number in range(first, first + 12):
            await chat.append([HumanMessage("Why?", id=f"q{number}"), AIMessage("So.")])
        assert (await chat.compact(force=True)).status == "done"
    assert "Later." in str((await chat.load_history()).summary)
    async with await chat.turn("q12", regenerate="again") as turn:
        await turn.append(AIMessage("Because."))
    assert "Earlier." in str((await chat.load_history()).summary)


async def test_a_turn_with_an_open_call_is_not_done(chat: Conversation) -> None:
    """A run that ended with the result of another call leaves it to the next run."""
    async with await chat.turn("q1", human=QUESTION.text) as turn:
        called = [{"name": "look", "args": {}, "id": id_} for id_ in ("c1", "c2")]
        await turn.append(AIMessage("", tool_calls=called))
        await turn.add_result(turn.open_calls[0], "found")
        await _held(chat).finish(if_done=True)
        assert turn.is_running
        await turn.add_result(turn.open_calls[0], "found")
        await _held(chat).finish(if_done=True)
        assert not turn.is_running


@pytest.mark.parametrize("is_written", [False, True])
async def test_only_the_retry_of_a_reply_is_taken_for_it(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    """A model may say the same twice, without ids, also after an append of unknown outcome was repeated."""
    async with await chat.turn("q1", human=QUESTION.text) as turn:
        insert = Log.insert

        async def unavailable(*given: Any, **options: Any) -> None:
            if is_written:
                await insert(*given, **options)
            raise StoreUnavailableError("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(Log, "insert", unavailable)
            with pytest.raises(StoreUnavailableError):
                await turn.append(AIMessage("They do."))
        for _ in range(2):
            await turn.append(AIMessage("They do."))
    assert [message.text async for message in chat.messages()] == [QUESTION.text, *["They do."] * 2]
