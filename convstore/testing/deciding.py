"""Tests of a person's decision and a new question that meet: each is written just before the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from convstore.append.writer import Writer
from convstore.conversation import Conversation
from convstore.exceptions import TurnClosedError
from convstore.testing.fixtures import kinds_of, result_id_of
from convstore.testing.turn_sessions import calls

__all__ = ["DecisionContract"]


def _before_the_next_append(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], Awaitable[None]]
) -> None:
    """Run a call of another worker after the next append has read the log, and before it writes."""
    append = Writer.append

    async def late(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        await call()
        return await append(*args, **options)

    monkeypatch.setattr(Writer, "append", late)


class DecisionContract:
    """`Conversation.decide` and `Conversation.turn` of two workers at once."""

    async def _wait(self, chat: Conversation) -> None:
        async with await chat.turn("r1", human="Pay the bill") as turn:
            await turn.append(calls("pay"))
            await turn.wait_for(turn.open_calls[0])

    async def _ask(self, chat: Conversation) -> None:
        async with await chat.turn("r2", human="Never mind") as turn:
            await turn.append(AIMessage("As you like."))

    async def test_a_question_after_an_unseen_decision_is_taken(
        self, chat: Conversation, elsewhere: Conversation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The question is read with the result of the decision, and no error names an id that the store derived."""
        await self._wait(chat)
        await elsewhere.load_history()
        call = await result_id_of(chat, "call_pay")
        _before_the_next_append(monkeypatch, partial(chat.decide, "r1", call, "reject"))
        await self._ask(elsewhere)
        assert await kinds_of(chat) == ["human", "ai", "tool", "human", "ai"]
        assert "rejected" in (await chat.list_messages())[2].message.text

    async def test_a_decision_after_an_unseen_question_is_refused(
        self, chat: Conversation, elsewhere: Conversation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The turn is closed by then."""
        await self._wait(chat)
        _before_the_next_append(monkeypatch, partial(self._ask, elsewhere))
        with pytest.raises(TurnClosedError):
            await chat.decide("r1", await result_id_of(chat, "call_pay"), "reject")
