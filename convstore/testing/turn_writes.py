"""Tests of what a session writes while others stop, finish or take over its turn, and of the ids of what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from convstore.conversation import Conversation
from convstore.exceptions import ContentConflictError, TurnClosedError, TurnLostError
from convstore.mongo.turn_leases import TurnLeases
from convstore.store import ConversationStore
from convstore.testing.fixtures import ahead, kinds_of
from convstore.testing.turn_sessions import calls

__all__ = ["TurnWriteContract"]


class TurnWriteContract:
    """`TurnSession.append`, `add_result` and `finish` at the same time as a stop, and after a takeover."""

    @pytest.mark.parametrize("end", ["finish", "stop"])
    async def test_a_turn_that_ended_stays_ended(self, chat: Conversation, elsewhere: Conversation, end: str) -> None:
        """Results written at the same time come before the end, or are refused; their calls stay without a result."""
        turn = await chat.turn("r1", human="Look everywhere")
        await turn.append(calls("a", "b", "c"))
        if end == "stop":
            assert await elsewhere.stop("r1")
        ending = turn.finish() if end == "finish" else turn.__aexit__(None, None, None)
        results = [turn.add_result(call, "found") for call in turn.open_calls]
        _, *outcomes = await asyncio.gather(ending, *results, return_exceptions=True)
        await turn.__aexit__(None, None, None)
        refused = [outcome for outcome in outcomes if isinstance(outcome, TurnClosedError)]
        async with await elsewhere.turn("r1") as again:
            assert (again.is_finished, again.is_stopped) == (True, end == "stop")
            assert len(again.messages) == 2 + len(outcomes) - len(refused)
        assert end == "stop" or len(refused) == 3

    async def test_a_repetition_in_a_finished_turn_is_no_error(self, chat: Conversation) -> None:
        """What the log has gets its receipt, and nothing new is written."""
        reply = calls("a", "b")
        async with await chat.turn("r1", human="Look everywhere") as turn:
            await turn.append(reply)
            first, second = turn.open_calls
            before = await turn.add_result(first, "found")
            await turn.finish()
            again = await turn.add_result(first, "found")
            assert (again.written, again.first) == (0, before.first)
            assert (await turn.append(reply)).written == 0
            with pytest.raises(ContentConflictError):
                await turn.add_result(first, "other")
            with pytest.raises(TurnClosedError):
                await turn.add_result(second, "found")
        assert await kinds_of(chat) == ["human", "ai", "tool"]

    @pytest.mark.parametrize("is_lapsed", [True, False])
    async def test_a_stop_of_a_killed_worker_stays(
        self, chat: Conversation, new_store: Callable[..., ConversationStore], is_lapsed: bool
    ) -> None:
        """It is marked at once if the lease has lapsed, else by whoever takes the lease over."""
        killed = await chat.turn("r1", human="Do seals sleep?")
        await killed.append(calls("search"))
        later = new_store(clock=ahead(31)).conversation(**chat.scope)
        assert await (later if is_lapsed else chat).stop("r1")
        if not is_lapsed:
            async with await later.turn("r2", human="Do orcas sleep?") as turn:
                await turn.append(AIMessage("They do."))
            await later.rewind(before="r2")
        stopped = await later.get_turn("r1")
        assert stopped is not None
        assert stopped.is_finished
        async with await later.turn("r1") as again:
            assert (again.is_stopped, again.is_finished, again.open_calls) == (True, True, [])

    async def test_a_stop_as_the_session_is_left_is_marked(
        self, chat: Conversation, elsewhere: Conversation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may come after the holder looked for one last time."""
        release = TurnLeases.release

        async def late(leases: TurnLeases, *args: Any, **options: Any) -> bool:
            monkeypatch.undo()
            assert await elsewhere.stop("r1")
            return await release(leases, *args, **options)

        async with await chat.turn("r1", human="Do seals sleep?"):
            monkeypatch.setattr(TurnLeases, "release", late)
        async with await elsewhere.turn("r1") as again:
            assert (again.is_stopped, again.is_finished) == (True, True)

    async def test_a_slow_worker_has_lost_its_turn(
        self, chat: Conversation, new_store: Callable[..., ConversationStore]
    ) -> None:
        """It is told so also if its successor asked something else, or finished the turn, and it writes nothing."""
        later = new_store(clock=ahead(31)).conversation(**chat.scope)
        for number, successor in enumerate(("r1", "other")):
            scope = {**chat.scope, "thread_id": f"{chat.scope['thread_id']}{number}"}
            slow = await chat.store.conversation(**scope).turn("r1", human="Do seals sleep?")
            await slow.append(calls("search"))
            [call] = slow.open_calls
            async with await later.store.conversation(**scope).turn(successor, human="Do seals sleep?") as turn:
                await turn.finish()
            for late in (slow.add_result(call, "late"), slow.append(AIMessage("Late.")), slow.finish()):
                with pytest.raises(TurnLostError):
                    await late
            assert "tool" not in await kinds_of(later.store.conversation(**scope))

    async def test_a_question_after_an_unseen_rewind_is_taken(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A worker that did not see that everything was rewound, with a call open, takes the next question."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("search"))
        await elsewhere.rewind(before="r1")
        async with await chat.turn("r2", human="Do orcas sleep?") as turn:
            await turn.append(AIMessage("They do."))
        assert [item.message.type for item in await elsewhere.list_messages()] == ["human", "ai"]
