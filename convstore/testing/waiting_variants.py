"""Tests of variants that wait for a person's decision: found, decided, continued and stopped."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from convstore.conversation import Conversation
from convstore.exceptions import DecisionConflictError, TurnClosedError
from convstore.testing.fixtures import result_id_of
from convstore.testing.turn_variants import CALL, ask, shown

__all__ = ["WaitingVariantContract"]


async def _wait(chat: Conversation, asked: dict[str, Any]) -> str:
    """Begin another answer to the turn q2, or the turn q3 instead of it, whose call waits; return the turn's id."""
    turn_id = "q3" if "human" in asked else "q2"
    async with await chat.turn(turn_id, **asked) as turn:
        await turn.append(CALL.model_copy())
        await turn.wait_for(turn.open_calls[0])
    return turn_id


class WaitingVariantContract:
    """Variants in which nobody sees a call but the person who decides about it."""

    async def test_a_person_decides_in_a_variant(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """The call waits there, whatever the old answer did with one of the same id; the first decision stands."""
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
        found = await elsewhere.get_turn("q2")
        assert found
        assert found.pending
        assert (found.pending.turn_id, found.pending.status) == (turn_id, "waiting")
        await elsewhere.decide(turn_id, found.pending.waiting_calls[0], "approve")
        async with await elsewhere.turn(
            turn_id, regenerate=found.pending.variant_id or None
        ) as turn:
            await turn.add_result(turn.open_calls[0], "found")
            await turn.append(AIMessage("B2"))
        assert (await shown(chat))[-2:] == ["found", "B2"]
        again = await chat.get_turn(turn_id)
        assert again
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
        found = await chat.get_turn("q2")
        assert found
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
        """A late decision is refused, as in a turn that waits, so it cannot hide what the user asked since."""
        await ask(chat, 1, 2)
        await _wait(chat, {"regenerate": "click"})
        await ask(elsewhere, 3)
        with pytest.raises(TurnClosedError):
            await chat.decide("q2", await result_id_of(chat, "call"), "approve")
        found = await chat.get_turn("q2")
        assert found
        assert found.pending is None
        assert not await chat.stop("q2")
        assert await shown(chat) == ["Q1", "A1", "Q2", "A2", "Q3", "A3"]
