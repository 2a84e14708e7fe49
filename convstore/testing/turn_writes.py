"""Tests of a session's writes while others stop, finish or take over its turn, and of their message ids."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.conversation.turn import TurnSession
from convstore.exceptions import (
    ContentConflictError,
    StoreUnavailableError,
    TurnBusyError,
    TurnClosedError,
    TurnLostError,
)
from convstore.mongo.log import Log
from convstore.mongo.turn_leases import TurnLeases
from convstore.testing.fixtures import (
    NewStore,
    NextCall,
    ahead,
    kinds_of,
    result_id_of,
    texts_of,
    turn_of,
    unanswered,
)
from convstore.testing.turn_sessions import calls, leave_waiting
from convstore.turns.record_reader import TurnRecordReader

__all__ = ["TurnWriteContract"]

_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


class TurnWriteContract:
    """`TurnSession.append`, `add_result` and `finish` at the same time as a stop, and after a takeover."""

    @pytest.mark.parametrize("end", ["finish", "stop"])
    async def test_a_turn_that_ended_stays_ended(
        self, chat: Conversation, elsewhere: Conversation, end: str
    ) -> None:
        """Concurrent results are stored before the end or refused; the calls of refused ones stay without a result."""
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
        """Repeating stored messages returns their receipt and writes nothing."""
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
        self, chat: Conversation, new_store: NewStore, is_lapsed: bool
    ) -> None:
        """It is stored at once if the lease has lapsed, else by the worker that takes the lease over."""
        killed = await chat.turn("r1", human="Do seals sleep?")
        await killed.append(calls("search"))
        later = new_store(clock=ahead(31)).conversation(**chat.scope)
        assert await (later if is_lapsed else chat).stop("r1")
        if not is_lapsed:
            async with await later.turn("r2", human="Do orcas sleep?") as turn:
                await turn.append(AIMessage("They do."))
            await later.rewind(before_id="r2")
        stopped = await turn_of(later, "r1")
        assert stopped.is_finished
        async with await later.turn("r1") as again:
            assert (again.is_stopped, again.is_finished, again.open_calls) == (True, True, [])

    @pytest.mark.parametrize("is_answered", [True, False])
    async def test_a_stop_of_a_killed_worker_keeps_nobody_from_asking(
        self, chat: Conversation, new_store: NewStore, is_answered: bool
    ) -> None:
        """The stopped turn may be over meanwhile, because another writer has asked a later question."""
        killed = await chat.turn("r1", human="Do seals sleep?")
        if is_answered:
            await killed.append(AIMessage("They do."))
        await chat.append(HumanMessage("Do walruses sleep?", id="plain"))
        assert await chat.stop("r1")
        later = new_store(clock=ahead(31)).conversation(**chat.scope)
        async with await later.turn("r2", human="Do orcas sleep?") as turn:
            await turn.append(AIMessage("They do."))
        assert (await turn_of(later, "r1")).over == ("answered" if is_answered else "superseded")

    async def test_a_stop_as_the_session_is_left_is_marked(
        self, chat: Conversation, elsewhere: Conversation, next_call: NextCall
    ) -> None:
        """A stop is stored even if it comes after the holder's last check."""
        async with await chat.turn("r1", human="Do seals sleep?"):
            next_call(TurnLeases, "release", before=lambda: elsewhere.stop("r1"))
        async with await elsewhere.turn("r1") as again:
            assert (again.is_stopped, again.is_finished) == (True, True)

    async def test_a_worker_that_leaves_late_keeps_the_lease_of_its_successor(
        self, chat: Conversation, new_store: NewStore, next_call: NextCall
    ) -> None:
        """A worker whose lease lapsed after its last check does not release its successor's lease."""
        later = new_store(clock=ahead(31)).conversation(**chat.scope)
        successors: list[TurnSession] = []

        async def take() -> None:
            successors.append(await later.turn("r1"))

        async with await chat.turn("r1", human="Do seals sleep?"):
            next_call(TurnLeases, "release", before=take)
        with pytest.raises(TurnBusyError):
            await later.turn("r2", human="And orcas?")
        async with successors[0] as turn:
            await turn.append(AIMessage("They do."))
        assert (await turn_of(later, "r1")).over == "answered"

    async def test_a_stop_of_a_cancelled_request_is_marked(
        self, chat: Conversation, elsewhere: Conversation, next_call: NextCall
    ) -> None:
        """If a user stops a request that begins and disconnects, the next request does not wait for its lease."""
        async with await chat.turn("r1", human="Do seals sleep?"):
            pass

        async def stop_and_leave() -> None:
            assert await elsewhere.stop("r1")
            asked.cancel()
            await asyncio.sleep(0)  # in memory nothing else does; the task would end first

        next_call(TurnRecordReader, "read", after=stop_and_leave)
        asked = asyncio.create_task(chat.turn("r1", human="Do seals sleep?"))
        await asyncio.wait([asked])
        assert asked.cancelled()
        async with await elsewhere.turn("r2", human="Do orcas sleep?", busy="raise"):
            pass
        assert (await turn_of(elsewhere, "r1")).over == "stopped"

    async def test_a_stop_is_no_error_where_the_session_is_left(
        self, hurried: Conversation, elsewhere: Conversation
    ) -> None:
        """The session's exit suppresses the error of a stop, even in a task group; any other error is raised."""

        async def reply() -> Any:
            yield "They "
            await elsewhere.stop(turn_id)
            await asyncio.sleep(60)

        for turn_id, other in (("r1", None), ("r2", None), ("r3", KeyError("other"))):
            with nullcontext() if other is None else pytest.raises(KeyError):
                async with await hurried.turn(turn_id, human="Do seals sleep?") as turn:
                    async for _ in turn.stream(reply()):
                        pass
                    if other is not None:
                        raise other
                    if turn_id == "r1":
                        await turn.append(AIMessage("They do."))
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(turn.append(AIMessage("They do.")))
            assert (turn.is_stopped, turn.answer and turn.answer.text) == (True, "They ")
        with pytest.raises(TurnClosedError):  # noqa: PT012 - the exit raises it
            async with await hurried.turn("r4", human="Do seals sleep?") as turn:
                await turn.finish()
                await turn.append(AIMessage("They do."))

    async def test_a_slow_worker_has_lost_its_turn(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """It gets an error and writes nothing, also if its successor asked another question or finished the turn."""
        later = new_store(clock=ahead(31)).conversation(**chat.scope)
        for number, successor in enumerate(("r1", "other")):
            scope = {**chat.scope, "thread_id": f"{chat.scope['thread_id']}{number}"}
            slow = await chat.store.conversation(**scope).turn("r1", human="Do seals sleep?")
            await slow.append(calls("search"))
            [call] = slow.open_calls
            async with await later.store.conversation(**scope).turn(
                successor, human="Do seals sleep?"
            ) as turn:
                await turn.finish()
            for late in (
                slow.add_result(call, "late"),
                slow.append(AIMessage("Late.")),
                slow.finish(),
            ):
                with pytest.raises(TurnLostError):
                    await late
            assert "tool" not in await kinds_of(later.store.conversation(**scope))

    async def test_each_reply_is_a_message_of_its_own(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """An id that another message has is replaced by a new one; repeating the append writes nothing."""
        call = calls("search")
        answer = AIMessage("Fish.", id="cached-2")
        call.id = "cached-1"
        for number in ("1", "2"):
            async with await chat.turn(f"r{number}", human="What do orcas eat?") as turn:
                for said in (
                    call,
                    call,
                    answer,
                    AIMessage("Seals, too.", id="cached-2"),
                    {"role": "assistant", "id": ""},
                ):
                    await turn.append(said)
                    if said is not call:
                        continue
                    assert (await turn.append(call.model_copy())).written == 0
                    await turn.add_result(turn.open_calls[0], "fish")
                *_, last, empty = turn.messages
                assert (last.text, empty.id != "") == ("Seals, too.", True)
            async with await elsewhere.turn(f"r{number}") as again:
                assert (await again.append(empty)).written == 0
                assert [message.type for message in again.messages] == [
                    "human",
                    *["ai", "tool"] * 2,
                    "ai",
                    "ai",
                    "ai",
                ]
        assert (
            len(
                {message.id for message in [stored async for stored in chat.messages(rewound=True)]}
            )
            == 16
        )

    async def test_parallel_appends_without_ids_are_one_message_each(
        self, chat: Conversation
    ) -> None:
        """Results get ids from their calls, replies get new ids, and repeated appends of the objects write nothing."""
        async with await chat.turn("r1", human="Look everywhere") as turn:
            await turn.append(calls("a", "b", "c"))
            results = [ToolMessage(call.name, tool_call_id=call.id) for call in turn.open_calls]
            expected = {call.result_id for call in turn.open_calls}
            await asyncio.gather(*map(turn.append, results))
            assert {result.id for result in results} == expected
            same = "The same."
            replies: list[Any] = [
                AIMessage(same),
                AIMessage(same),
                {"role": "assistant", "content": same},
            ]
            receipts = await asyncio.gather(*map(turn.append, replies))
            assert [receipt.written for receipt in receipts] == [1, 1, 1]
            for result in results:
                assert (await turn.append(result)).written == 0
        assert await kinds_of(chat) == ["human", "ai", *["tool"] * 3, *["ai"] * 3]

    async def test_a_turn_goes_on_after_a_rewind_within_it(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Replies and results after the rewind get new ids, even if their texts are equal."""
        async with await chat.turn("r1", human="What do orcas eat?") as turn:
            await turn.append(calls("search"))
            called = turn.messages[-1]
        for text in ("fish", "fish", "seals"):
            async with await chat.turn("r1") as turn:
                [call] = turn.open_calls
                await turn.add_result(call, text)
                assert (await turn.add_result(call, text)).written == 0
                with pytest.raises(ContentConflictError):
                    await turn.add_result(call, "other")
                *_, result = turn.messages
                await turn.append(AIMessage(text, id="answer"))
                assert turn.answer
                assert turn.answer.text == text
            await elsewhere.rewind(before_id=str(result.id))
        async with await elsewhere.turn("r1") as turn:
            assert turn.messages[-1].id == called.id
            assert [call.name for call in turn.open_calls] == ["search"]

    async def test_a_reply_of_unknown_outcome_is_stored_once(
        self, chat: Conversation, next_call: NextCall
    ) -> None:
        """That holds for a reply under a new id and for one without an id, if the caller sends an equal one again."""
        async with await chat.turn("r1", human="What do orcas eat?") as turn:
            await turn.append(AIMessage("Fish.", id="cached"))
        async with await chat.turn("r2", human="What do orcas eat?") as turn:
            for reply in (
                AIMessage("Fish.", id="cached"),
                {"role": "assistant", "content": "And seals."},
            ):
                next_call(Log, "insert", after=unanswered)
                with pytest.raises(StoreUnavailableError):
                    await turn.append(reply)
                assert (await turn.append(reply)).written == 0
        assert (await texts_of(chat))[3:] == [
            "Fish.",
            "And seals.",
        ]

    async def test_a_decision_stands_after_a_rewind_of_its_result(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A rejected call is never open again: its result is appended again when the turn is entered."""
        await leave_waiting(chat)
        await chat.decide("r1", await result_id_of(chat, "call_pay"), "reject", message="Too much.")
        [*_, result] = await chat.list_messages()
        await chat.rewind(before_id=str(result.message.id))
        async with await elsewhere.turn("r1") as turn:
            assert (turn.is_running, turn.open_calls, turn.waiting_calls) == (True, [], [])
            assert turn.messages[-1].text == result.message.text
            assert turn.messages[-1].id != result.message.id

    async def test_a_call_that_waits_again_is_closed_again(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A call whose result by a new question was rewound is decided, or closed by the next question."""
        for end in ("decide", "ask"):
            ids = [f"{end}{number}" for number in range(3)]
            await leave_waiting(chat, ids[0])
            async with await elsewhere.turn(ids[1], human="Never mind"):
                pass
            result = (await chat.list_messages())[-2].message
            await chat.rewind(before_id=str(result.id))
            if end == "decide":
                await elsewhere.decide(ids[0], await result_id_of(elsewhere, "call_pay"), "reject")
            async with await chat.turn(ids[2], human="And now?") as turn:
                await turn.finish()
            closed = await turn_of(elsewhere, ids[0])
            assert ("Not decided" in closed.messages[-1].text) is (end == "ask")

    async def test_what_comes_later_by_another_way_opens_no_turn(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A late result belongs to its turn, a note to no turn; a stopped, finished or answered turn stays over."""
        for end in ("stop", "finish", "answer"):
            async with await chat.turn(end, human="Do seals sleep?") as turn:
                await turn.append(calls("search"))
                if end == "finish":
                    await turn.finish()
                elif end == "answer":
                    await turn.append(AIMessage("They do."))
            if end == "stop":
                await elsewhere.stop(end)
            await elsewhere.append(
                ToolMessage("late", tool_call_id="call_search", id=f"late {end}")
            )
            await elsewhere.append(SystemMessage("The user uploaded a file."))
            async with await elsewhere.turn(end) as again:
                assert (again.is_finished, again.is_running, again.open_calls) == (True, False, [])
                assert (again.is_stopped, again.answer is not None) == (
                    end == "stop",
                    end == "answer",
                )
                assert again.messages[-1].id == f"late {end}"

    async def test_human_messages_of_a_session_belong_to_its_turn(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """An image of a result and a hint of the user do not begin a turn, and the result before them stays in full."""
        async with await chat.turn("r1", human="What is on page 3?") as turn:
            await turn.append(calls("page"))
            await turn.add_result(turn.open_calls[0], "orca " * 1_000)
            await turn.append(
                [HumanMessage([_IMAGE]), {"role": "user", "content": "Look at the picture."}]
            )
            assert (turn.is_running, len(turn.messages), turn.open_calls) == (True, 5, [])
            shown = (await turn.load_history()).messages
            assert [len(message.text) for message in shown if message.type == "tool"] == [5_000]
            await turn.append(AIMessage("An orca."))
        async with await elsewhere.turn("r1") as again:
            assert again.answer
            assert len(again.messages) == 6
        assert [len(found.messages) async for found in elsewhere.turns()] == [6]

    async def test_a_question_after_an_unseen_rewind_is_taken(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A worker that missed a complete rewind with an open call can ask the next question."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(calls("search"))
        await elsewhere.rewind(before_id="r1")
        async with await chat.turn("r2", human="Do orcas sleep?") as turn:
            await turn.append(AIMessage("They do."))
        assert [item.message.type for item in await elsewhere.list_messages()] == ["human", "ai"]
