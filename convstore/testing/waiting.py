"""Tests of calls that wait for a person: decided while a question is asked, and in variants."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from convstore.append.writer import Writer
from convstore.conversation import Conversation
from convstore.exceptions import DecisionConflictError, TurnClosedError
from convstore.testing.fixtures import NextCall, kinds_of, result_id_of, turn_of
from convstore.testing.turn_sessions import leave_waiting
from convstore.testing.turn_variants import CALL, ask, shown

__all__ = ["WaitingContract"]


async def _wait(chat: Conversation, asked: dict[str, Any]) -> str:
    """Make a variant of the turn q2, or the turn q3 in its place, with a waiting call; return the turn's id."""
    turn_id = "q3" if "human" in asked else "q2"
    async with await chat.turn(turn_id, **asked) as turn:
        await turn.append(CALL.model_copy())
        await turn.wait_for(turn.open_calls[0])
    return turn_id


class WaitingContract:
    """`decide`, also in variants, and directly before or after a question."""

    async def test_a_person_decides_in_a_variant(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A call waits, even if the old answer has a decided call with the same id; the first decision stands."""
        async with await chat.turn("q1", human="Q1") as turn:
            await turn.append(CALL.model_copy())
            await turn.add_result(turn.open_calls[0], "found")
            await turn.append(AIMessage("A1"))
        async with await chat.turn("q1", regenerate="click") as turn:
            await turn.append(CALL.model_copy())
            await turn.wait_for(turn.open_calls[0])
        await elsewhere.decide(
            "q1", await result_id_of(elsewhere, "call"), "respond", message="ask Ada"
        )
        async with await elsewhere.turn("q1", regenerate="click") as turn:
            assert (turn.messages[-1].text, turn.open_calls) == ("ask Ada", [])
            await chat.decide("q1", await result_id_of(chat, "call"), "respond", message="ask Ada")
            await turn.append(AIMessage("B1"))
        await chat.decide("q1", await result_id_of(chat, "call"), "respond", message="ask Ada")
        with pytest.raises(DecisionConflictError):
            await chat.decide("q1", await result_id_of(chat, "call"), "approve")
        assert (await shown(chat))[-1] == "B1"

    @pytest.mark.parametrize(
        "asked", [{"regenerate": "click"}, {"human": "Q3", "instead_of": "q2"}], ids=str
    )
    async def test_a_variant_that_waits_is_found_and_continued(
        self, chat: Conversation, elsewhere: Conversation, asked: dict[str, Any]
    ) -> None:
        """Any worker can find a waiting variant in the turn's `pending`, decide its call and continue it."""
        await ask(chat, 1, 2)
        turn_id = await _wait(chat, asked)
        found = await turn_of(elsewhere, "q2")
        assert found.pending
        assert (found.pending.turn_id, found.pending.status) == (turn_id, "waiting")
        await elsewhere.decide(turn_id, found.pending.waiting_calls[0], "approve")
        async with await elsewhere.turn(
            turn_id, regenerate=found.pending.variant_id or None
        ) as turn:
            await turn.add_result(turn.open_calls[0], "found")
            await turn.append(AIMessage("B2"))
        assert (await shown(chat))[-2:] == ["found", "B2"]
        again = await turn_of(chat, turn_id)
        assert again.pending is None

    @pytest.mark.parametrize(
        "asked", [{"regenerate": "click"}, {"human": "Q3", "instead_of": "q2"}], ids=str
    )
    async def test_a_variant_that_waits_is_stopped(
        self, chat: Conversation, elsewhere: Conversation, asked: dict[str, Any]
    ) -> None:
        """Stopping a waiting variant without text closes it for every worker and keeps the old answer."""
        await ask(chat, 1, 2)
        turn_id = await _wait(chat, asked)
        assert await elsewhere.stop(turn_id)
        assert not await elsewhere.stop(turn_id)
        found = await turn_of(chat, "q2")
        assert found.pending is None
        with pytest.raises(TurnClosedError):
            await chat.decide(turn_id, await result_id_of(chat, "call"), "approve")
        async with await chat.turn(turn_id, **asked) as turn:
            assert (turn.is_running, turn.is_stopped) == (False, True)
        assert await shown(chat) == ["Q1", "A1", "Q2", "A2"]
        assert [variant.count for variant in await chat.variants("q2")] == [1]

    async def test_a_new_question_closes_a_variant_that_waits(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A late decision is refused, as in any waiting turn, so that it cannot hide the user's newer question."""
        await ask(chat, 1, 2)
        await _wait(chat, {"regenerate": "click"})
        await ask(elsewhere, 3)
        with pytest.raises(TurnClosedError):
            await chat.decide("q2", await result_id_of(chat, "call"), "approve")
        found = await turn_of(chat, "q2")
        assert found.pending is None
        assert not await chat.stop("q2")
        assert await shown(chat) == ["Q1", "A1", "Q2", "A2", "Q3", "A3"]

    async def _ask(self, chat: Conversation) -> None:
        async with await chat.turn("r2", human="Never mind") as turn:
            await turn.append(AIMessage("As you like."))

    async def test_a_question_after_an_unseen_decision_is_taken(
        self, chat: Conversation, elsewhere: Conversation, next_call: NextCall
    ) -> None:
        """The question is stored after the result of the decision, and no error names an id that the store derived."""
        await leave_waiting(chat)
        await elsewhere.load_history()
        call = await result_id_of(chat, "call_pay")
        next_call(Writer, "append", before=partial(chat.decide, "r1", call, "reject"))
        await self._ask(elsewhere)
        assert await kinds_of(chat) == ["human", "ai", "tool", "human", "ai"]
        assert "rejected" in (await chat.list_messages())[2].message.text

    async def test_a_decision_after_an_unseen_question_is_refused(
        self, chat: Conversation, elsewhere: Conversation, next_call: NextCall
    ) -> None:
        """The question has closed the turn, so the decision is refused."""
        await leave_waiting(chat)
        next_call(Writer, "append", before=partial(self._ask, elsewhere))
        with pytest.raises(TurnClosedError):
            await chat.decide("r1", await result_id_of(chat, "call_pay"), "reject")
