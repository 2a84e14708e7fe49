"""Another answer that waits for a person is found in a list, whatever else became of its turn since then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore
from convstore.integration import host_of

CALL = AIMessage("", tool_calls=[{"name": "refund", "args": {}, "id": "c"}])


@pytest.fixture
async def chat() -> AsyncIterator[Conversation]:
    """A conversation in memory with an answered question."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append([HumanMessage("Refund me?", id="q"), AIMessage("No.")])
        yield chat


async def make(chat: Conversation, name: str, *, is_edit: bool, waits: bool) -> None:
    """Make another answer, or the answer to an edited question; it waits for a person, or is finished."""
    entering = (
        chat.turn(name, human="Refund?", instead_of="q")
        if is_edit
        else chat.turn("q", regenerate=name)
    )
    async with await entering as turn:
        await turn.append([CALL if waits else AIMessage("Yes.")])
        if waits:
            await turn.wait_for(turn.open_calls[0])


async def told(chat: Conversation) -> tuple[str, str]:
    """The status that the list says; what its last entry says is open. A page that follows it says the same."""
    info = await chat.info()
    [row] = await host_of(chat).rows([info])
    async for update in chat.watch(limit=1):
        assert update.turn
        assert update.turn.status == row.end.status
        break
    assert (await chat.store.verify(**chat.scope)).findings == ()
    return info.state, row.end.status


@pytest.mark.parametrize("is_edit", [False, True], ids=["answer", "question"])
async def test_an_answer_that_waits_is_found_after_another_was_shown(
    chat: Conversation, *, is_edit: bool
) -> None:
    """Also after the first one was made active again, and after a rewind of the question was undone."""
    await make(chat, "waits", is_edit=is_edit, waits=True)
    assert await told(chat) == ("open", "waiting")
    await make(chat, "shown", is_edit=is_edit, waits=False)
    assert await told(chat) == ("open", "waiting")
    await chat.activate((await chat.variants("q"))[0])
    assert await told(chat) == ("open", "waiting")
    await chat.rewind(before_id="q")
    assert (await chat.info()).state == ""
    await chat.undo_rewind()
    assert await told(chat) == ("open", "waiting")


async def test_an_answer_that_waits_is_found_after_a_later_question_was_rewound(
    chat: Conversation,
) -> None:
    """It was begun when the later question was the newest one."""
    await chat.append([HumanMessage("And now?", id="later"), AIMessage("Now.")])
    await make(chat, "waits", is_edit=False, waits=True)
    await chat.rewind(before_id="later")
    assert await told(chat) == ("open", "waiting")


async def test_an_answer_that_waits_is_found_after_one_to_a_later_question(
    chat: Conversation,
) -> None:
    """That one was begun after it, and is shown; all of its own place are."""
    await chat.append([HumanMessage("And now?", id="later"), AIMessage("Now.")])
    await make(chat, "waits", is_edit=False, waits=True)
    async with await chat.turn("later", regenerate="shown") as turn:
        await turn.append(AIMessage("Soon."))
    assert await told(chat) == ("open", "waiting")


async def test_a_turn_is_over_once_all_answers_are_shown(chat: Conversation) -> None:
    """Nothing more is read of it for a list."""
    await make(chat, "first", is_edit=False, waits=False)
    await make(chat, "second", is_edit=False, waits=False)
    assert await told(chat) == ("finished", "finished")


@pytest.mark.parametrize("is_continued", [False, True])
async def test_the_log_does_not_say_that_an_answer_was_given_up(
    chat: Conversation, *, is_continued: bool
) -> None:
    """It may be continued, so the last entry says open until it is or a later question comes; the turn is finished."""
    with suppress(RuntimeError):
        async with await chat.turn("q", regenerate="again"):
            raise RuntimeError("no model")
    assert await told(chat) == ("open", "finished")
    turn = await chat.get_turn("q")
    assert turn
    assert (turn.is_finished, turn.pending) == (True, None)
    if is_continued:
        await make(chat, "again", is_edit=False, waits=False)
    else:
        await chat.append([HumanMessage("And now?"), AIMessage("Now.")])
    assert await told(chat) == ("finished", "finished")


async def _stop(chat: Conversation, name: str, turn: str = "q", *, is_edit: bool = False) -> None:
    """Stop an answer that was begun, or begins now, before it says anything."""
    entering = (
        chat.turn(name, human="Refund?", instead_of=turn)
        if is_edit
        else chat.turn(turn, regenerate=name)
    )
    async with await entering:
        await chat.stop(name if is_edit else turn)


@pytest.mark.parametrize("is_edit", [False, True], ids=["answer", "question"])
async def test_a_turn_is_over_once_an_answer_was_stopped_before_it_said_anything(
    chat: Conversation, *, is_edit: bool
) -> None:
    """The answer that was shown stays, also if it is stopped twice; another one may be begun after that."""
    for name in ("one", "two"):
        await _stop(chat, name, is_edit=is_edit)
        assert await told(chat) == ("finished", "finished")
    await make(chat, "waits", is_edit=is_edit, waits=True)
    assert await told(chat) == ("open", "waiting")


@pytest.mark.parametrize(("turn", "is_first"), [("q", False), ("q", True), ("later", False)])
async def test_an_answer_that_waits_is_found_after_another_was_stopped(
    chat: Conversation, *, turn: str, is_first: bool
) -> None:
    """That one, perhaps to a later question, was begun before or after it, and said nothing."""
    if turn == "later":
        await chat.append([HumanMessage("And now?", id="later"), AIMessage("Now.")])
    if is_first:
        with suppress(RuntimeError):
            async with await chat.turn("q", regenerate="stopped"):
                raise RuntimeError("no model")
    await make(chat, "waits", is_edit=False, waits=True)
    await _stop(chat, "stopped", turn)
    assert await told(chat) == ("open", "waiting")


async def test_an_answer_that_was_cut_off_is_so_while_another_is_unfinished(
    chat: Conversation,
) -> None:
    """Its worker broke off, and nobody went on with it."""
    cut = AIMessage("Beca", response_metadata={"finish_reason": "length"})
    await chat.append([HumanMessage("Why?", id="why"), cut])
    with suppress(RuntimeError):
        async with await chat.turn("why", regenerate="again"):
            raise RuntimeError("no model")
    [row] = await host_of(chat).rows([await chat.info()])
    assert row.end.status == "cut"
