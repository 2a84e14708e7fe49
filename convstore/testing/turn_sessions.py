"""Tests of turns that one worker holds: asked once, answered once, resumed, stopped, decided by a person."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.conversation.turn import TurnSession
from convstore.exceptions import (
    CorruptDocumentError,
    DecisionConflictError,
    InvalidInputError,
    InvalidMessageError,
    LogMovedError,
    StoreUnavailableError,
    TurnBusyError,
    TurnClosedError,
    TurnConflictError,
    TurnLostError,
    UnknownMessageError,
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
)
from convstore.testing.samples import rag_turn
from convstore.testing.stored import Stored

__all__ = ["TurnSessionContract", "calls", "leave_waiting"]


def calls(*names: str) -> AIMessage:
    """Return a message that calls some tools."""
    return AIMessage(
        "", tool_calls=[{"name": name, "args": {"n": 1}, "id": f"call_{name}"} for name in names]
    )


async def leave_waiting(chat: Conversation, turn_id: str = "r1") -> None:
    """Leave a turn that waits for a decision about the call of `pay`."""
    async with await chat.turn(turn_id, human="Pay the bill") as turn:
        await turn.append(calls("pay"))
        await turn.wait_for(turn.open_calls[0])


class TurnSessionContract:
    """`turn`, `stop`, `decide`, and `append` with `after`."""

    async def test_a_turn_is_asked_and_answered(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Each message of a turn is stored before the call returns. The answer has the stamp of its view."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            assert (turn.is_running, turn.is_finished, turn.open_calls) == (True, False, [])
            assert await kinds_of(elsewhere) == ["human"]
            history = await turn.load_history()
            await turn.append({"role": "assistant", "content": "They do."})
            assert (turn.is_running, turn.answer and turn.answer.text) == (False, "They do.")
        *_, answer = await chat.list_messages()
        assert answer.stamp == history.stamp

    async def test_an_answer_that_its_provider_paused_does_not_end_the_turn(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """After a paused answer the turn stays open, with its results in full, until the next answer."""
        _, call, result, answer = rag_turn("Do seals sleep?")
        paused = AIMessage("I look it up.", response_metadata={"stop_reason": "pause_turn"})
        async with await chat.turn("q1", human="Do seals sleep?") as turn:
            await turn.append([call, result])
            for message, is_over in ((paused, False), (answer, True)):
                await turn.append(message)
                assert (turn.is_finished, turn.is_running) == (is_over, not is_over)
                for reader in (chat, elsewhere):
                    history = await reader.load_history()
                    read = await reader.get_turn("q1")
                    assert history.report.stubbed == ((result.id,) if is_over else ())
                    assert read
                    assert read.is_finished == is_over

    async def test_a_repeated_request_finds_its_answer(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A repeated request, in any worker, returns the stored messages and has no open calls."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append([calls("search")])
            await turn.add_result(turn.open_calls[0], "yes")
            await turn.append(AIMessage("They do."))
        async with await elsewhere.turn("r1", human="Do seals sleep?") as again:
            assert (again.is_finished, again.is_running, again.open_calls) == (True, False, [])
            assert again.messages == turn.messages
        assert len(await kinds_of(chat)) == 4

    @pytest.mark.parametrize("text", ["", " \n"])
    async def test_a_blank_question_is_refused(self, chat: Conversation, text: str) -> None:
        """An empty question, such as one from a form, is refused before anything is written."""
        with pytest.raises(InvalidInputError, match="blank"):
            await chat.turn("r1", human=text)
        assert await kinds_of(chat) == []

    async def test_only_one_worker_works_on_a_conversation(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """The same request and another question are refused while a turn is held; the question is not stored."""
        async with await chat.turn("r1", human="Do seals sleep?"):
            for request, text in (("r1", "Do seals sleep?"), ("r2", "And orcas?")):
                with pytest.raises(TurnBusyError) as caught:
                    await elsewhere.turn(request, human=text)
                assert caught.value.turn_id == "r1"
        assert await kinds_of(chat) == ["human"]
        async with await elsewhere.turn("r2", human="And orcas?"):
            assert await kinds_of(chat) == ["human", "human"]

    async def test_of_many_first_questions_one_is_taken(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """Of ten workers that ask at once in a new conversation, one works and nine get a TurnBusyError."""
        chats = [new_store().conversation(**chat.scope) for _ in range(10)]
        asked = [
            conversation.turn(f"r{number}", human="Who is first?")
            for number, conversation in enumerate(chats)
        ]
        found = await asyncio.gather(*asked, return_exceptions=True)
        kinds = [type(session) for session in found]
        assert (kinds.count(TurnSession), kinds.count(TurnBusyError)) == (1, 9), found
        assert await kinds_of(chat) == ["human"]

    async def test_a_titled_conversation_gets_its_first_turn(self, chat: Conversation) -> None:
        """A conversation may have a title and no message before its first question."""
        await chat.update(title="Seals")
        with pytest.raises(UnknownMessageError):
            await chat.turn("r1")
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(AIMessage("They do."))
        assert await kinds_of(chat) == ["human", "ai"]

    async def test_a_second_question_waits(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """With ``busy="wait"`` a second question is stored after the first answer, once the first turn is left."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            waiting = asyncio.ensure_future(elsewhere.turn("r2", human="And orcas?", busy="wait"))
            await turn.append(AIMessage("They do."))
        async with await waiting as second:
            assert await kinds_of(chat) == ["human", "ai", "human"]
            assert second.turn_id == "r2"

    async def test_another_question_interrupts(
        self, hurried: Conversation, elsewhere: Conversation
    ) -> None:
        """The running turn is asked to stop, and marked as finished when its worker leaves it."""
        async with await hurried.turn("r1", human="Do seals sleep?") as turn:
            interrupting = asyncio.ensure_future(
                elsewhere.turn("r2", human="And orcas?", busy="interrupt")
            )
            while turn.is_running:
                await turn.load_history()
                await asyncio.sleep(0.01)  # in memory a load does not let others run
        async with await interrupting:
            pass
        async with await hurried.turn("r1", human="Do seals sleep?") as again:
            assert (again.is_finished, again.is_stopped, again.answer) == (True, True, None)

    async def test_a_stopped_turn_is_finished(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """`stop` finishes a turn that no worker holds, and returns False for a finished or unknown turn."""
        async with await chat.turn("r1", human="Do seals sleep?"):
            pass
        assert await elsewhere.stop("r1")
        turn = await turn_of(chat, "r1")
        assert turn.is_finished
        assert not await elsewhere.stop("r1")
        assert not await elsewhere.stop("r2")

    async def test_a_stop_of_another_turn_stops_nothing(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """The turn in progress continues to its answer."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(AIMessage("They do."))
        async with await chat.turn("r2", human="And orcas?") as turn:
            assert not await elsewhere.stop("r1")
            await turn.append(AIMessage("They do."))
        assert (await turn_of(chat, "r2")).over == "answered"

    async def test_an_answer_undoes_no_stop(
        self, chat: Conversation, elsewhere: Conversation, new_store: NewStore
    ) -> None:
        """If `stop` returned True, every reader reports "stopped", even if the answer came before it was noticed.

        The same holds for a variant, and if the worker was killed in between.
        """
        requests: list[dict[str, Any]] = [{"human": "Do seals sleep?"}, {"regenerate": "again"}]
        for asked in requests:
            async with await chat.turn("r1", **asked) as turn:
                assert await elsewhere.stop("r1")
                await turn.append(AIMessage("They do."))
            assert (turn.is_stopped, turn.answer and turn.answer.text) == (True, "They do.")
            state = await turn_of(elsewhere, "r1")
            assert (state.over, len(state.messages)) == ("stopped", 2)
        killed = await chat.turn("r2", human="And orcas?")
        assert await elsewhere.stop("r2")
        await killed.append(AIMessage("They do."))
        later = new_store(clock=ahead(31)).conversation(**chat.scope)
        async with await later.turn("r2") as again:
            assert (again.is_stopped, again.answer and again.answer.text) == (True, "They do.")
        assert not await elsewhere.stop("r2")

    async def test_a_reply_after_a_stop_is_refused(
        self, hurried: Conversation, elsewhere: Conversation
    ) -> None:
        """The reply of a model call without streaming is refused after a stop; results of tools are stored."""
        asked = AIMessage("", tool_calls=[{"name": "book", "args": {}, "id": "1"}])
        async with await hurried.turn("r1", human="Book a boat") as turn:
            await turn.append(asked)
            [call] = turn.open_calls
            assert await elsewhere.stop("r1")
            while turn.is_running:
                await turn.load_history()
                await asyncio.sleep(0.01)  # in memory a load does not let others run
            await turn.add_result(call, "booked")
            assert (await turn.append(asked)).written == 0
            with pytest.raises(TurnClosedError):
                await turn.append(AIMessage("I booked a boat."))
            paid = AIMessage("", tool_calls=[{"name": "pay", "args": {}, "id": "2"}])
            await turn.append([paid, ToolMessage("paid", tool_call_id="2")])
            await turn.append(AIMessage("The exit swallows the error."))
        assert (turn.is_stopped, turn.answer) == (True, None)
        assert await kinds_of(elsewhere) == ["human", "ai", "tool", "ai", "tool"]

    async def test_the_next_question_interrupts_no_answered_turn(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A turn that has its answer is not marked as stopped while its worker still holds it."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(AIMessage("They do."))
            with pytest.raises(TurnBusyError):
                await elsewhere.turn("r2", human="And orcas?", busy="interrupt", wait_seconds=0)
        state = await turn_of(elsewhere, "r1")
        assert (turn.is_stopped, state.over) == (False, "answered")

    async def test_a_person_decides_later(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A waiting turn has no lease; after the decision any worker can run the decided call."""
        async with await chat.turn("r1", human="Pay the bill") as turn:
            await turn.append(calls("pay"))
            [call] = turn.open_calls
            for _ in range(2):  # a repetition changes nothing
                await turn.wait_for(call)
            assert (turn.is_waiting, turn.is_running, turn.open_calls) == (True, False, [])
        await elsewhere.decide(
            "r1", await result_id_of(elsewhere, "call_pay"), "edit", args={"n": 2}, by="bob"
        )
        async with await elsewhere.turn("r1") as again:
            [call] = again.open_calls
            assert (call.args, call.decision and call.decision.by) == ({"n": 2}, "bob")
            await again.add_result(call, "paid")
            await again.append(AIMessage("Done."))

    @pytest.mark.parametrize(("verdict", "status"), [("reject", "error"), ("respond", "success")])
    async def test_a_decision_may_be_the_result(
        self, chat: Conversation, verdict: Any, status: str
    ) -> None:
        """The result of a rejected call is an error; that of a call that a person answered is the person's text."""
        await leave_waiting(chat)
        await chat.decide("r1", await result_id_of(chat, "call_pay"), verdict, message="too much")
        async with await chat.turn("r1") as turn:
            result: Any = turn.messages[-1]
            assert (turn.is_running, turn.open_calls, result.status) == (True, [], status)
            assert "too much" in result.text

    async def test_the_first_decision_stands(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Repeating a decision has no effect; a different one is refused, also of two concurrent ones."""
        await leave_waiting(chat)
        call = await result_id_of(chat, "call_pay")
        both = (
            conversation.decide("r1", call, "approve", by=by)
            for conversation, by in ((chat, "ada"), (elsewhere, "bob"))
        )
        found = await asyncio.gather(*both, return_exceptions=True)
        assert [type(outcome) for outcome in found].count(DecisionConflictError) == 1
        by = "bob" if isinstance(found[0], Exception) else "ada"
        await chat.decide("r1", call, "approve", by=by)
        with pytest.raises(DecisionConflictError, match=by):
            await elsewhere.decide("r1", call, "reject")

    async def test_a_decision_with_any_numbers_may_be_repeated(self, chat: Conversation) -> None:
        """NaN equals NaN, and the order of arguments is ignored; a number does not equal a bool."""
        await leave_waiting(chat)
        call = await result_id_of(chat, "call_pay")
        args: dict[str, Any] = {"rate": float("nan"), "sum": -0.0, "times": 1}
        for given in (args, dict(reversed(args.items()))):
            await chat.decide("r1", call, "edit", args=given)
        with pytest.raises(DecisionConflictError):
            await chat.decide("r1", call, "edit", args={**args, "times": True})
        async with await chat.turn("r1") as turn:
            assert repr(turn.open_calls[0].args) == repr(args)

    async def test_a_new_question_closes_a_waiting_turn(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A new question adds results to the open calls of a waiting turn. Later decisions are refused."""
        await leave_waiting(chat)
        async with await elsewhere.turn("r2", human="Never mind") as turn:
            shown = (await turn.load_history()).messages
        assert [message.type for message in shown] == ["human", "ai", "tool", "human"]
        assert "Not decided" in shown[2].text
        with pytest.raises(TurnClosedError):
            await chat.decide("r1", await result_id_of(chat, "call_pay"), "approve")

    @pytest.mark.parametrize(
        ("call", "verdict", "args"),
        [
            ("call_x", "approve", None),
            ("call_pay", "maybe", None),
            ("call_pay", "edit", None),
            ("call_pay", "edit", 1),
        ],
    )
    async def test_a_decision_is_checked(
        self, chat: Conversation, call: str, verdict: Any, args: Any
    ) -> None:
        """An unknown call, an unknown verdict, missing or wrong arguments are refused."""
        await leave_waiting(chat)
        with pytest.raises(InvalidInputError):
            await chat.decide("r1", await result_id_of(chat, call), verdict, args=args)
        async with await chat.turn("r1") as turn:
            assert turn.is_waiting

    async def test_a_turn_is_finished_without_an_answer(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Views of other processes then show its results as those of a finished turn."""
        async with await chat.turn("r1", human="Book a table") as turn:
            await turn.append(calls("book"))
            await turn.add_result(turn.open_calls[0], "booked " * 2_000)
            assert (await turn.load_history()).messages[-1].text.startswith("booked")
            await turn.finish()
            assert turn.is_finished
            assert (await turn.load_history()).messages[-1].text.startswith('{"success": true')
        found = await turn_of(elsewhere, "r1")
        assert found.is_finished
        assert (await elsewhere.load_history()).messages[-1].text.startswith('{"success": true')

    async def test_a_killed_worker_is_succeeded(
        self, chat: Conversation, new_store: NewStore, database: Any
    ) -> None:
        """After 30 seconds another worker takes over the turn, and each write of the old worker is refused."""
        old = await chat.turn("r1", human="Do seals sleep?")
        await old.append(calls("search"))
        later = new_store(clock=ahead(31)).conversation(**chat.scope)
        async with await later.turn("r1", human="Do seals sleep?") as turn:
            assert [call.name for call in turn.open_calls] == ["search"]
            [call] = old.open_calls
            stored = await Stored.of(chat, database)
            before = len(await stored.all())
            for late in (old.reserve(1), old.add_result(call, "stale"), old.finish()):
                with pytest.raises(TurnLostError):
                    await late
            assert len(await stored.all()) == before
            await turn.add_result(turn.open_calls[0], "fresh")
            await turn.append(AIMessage("They do."))
        with pytest.raises(TurnLostError):
            await old.append(AIMessage("They do not."))
        assert (await texts_of(chat))[2:] == ["fresh", "They do."]

    @pytest.mark.parametrize("is_finished", [False, True])
    async def test_leaving_fences_off_an_append_of_unknown_outcome(
        self,
        chat: Conversation,
        database: Any,
        monkeypatch: pytest.MonkeyPatch,
        *,
        is_finished: bool,
    ) -> None:
        """Leaving a turn writes a fence, so an append of unknown outcome cannot land in a later turn."""

        async def unavailable(*_: Any, **__: Any) -> None:
            raise StoreUnavailableError("no answer")

        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            with monkeypatch.context() as patch:
                patch.setattr(Log, "insert", unavailable)
                with pytest.raises(StoreUnavailableError):
                    await turn.append(AIMessage("They do."))
            if is_finished:
                await turn.finish()
        *_, last, _state = await (await Stored.of(chat, database)).all()
        assert '"fence"' in last["facts"]["event"][0]

    async def test_a_changed_event_is_damage(
        self, chat: Conversation, elsewhere: Conversation, database: Any
    ) -> None:
        """An altered turn event fails its checksum: `turn` raises CorruptDocumentError and `verify` reports it."""
        async with await chat.turn("r1", human="Book a table") as turn:
            await turn.finish()
        stored = await Stored.of(chat, database)
        entries = await stored.all()
        [entry] = [entry for entry in entries if "finish" in str(entry.get("facts"))]
        text, checksum = entry["facts"]["event"]
        changed = {"facts.event": [text.replace("finish", "stop"), checksum]}
        await stored.change(entry["_id"], {"$set": changed})
        with pytest.raises(CorruptDocumentError, match=entry["_id"]):
            await elsewhere.turn("r1")
        assert not (await chat.store.verify(**chat.scope)).ok
        await chat.delete()

    async def test_a_held_lease_is_renewed(
        self, chat: Conversation, hurried: Conversation, database: Any
    ) -> None:
        """A worker's lease is renewed in the background, so long calls do not lose the turn."""
        async with await hurried.turn("r1", human="Do seals sleep?"), asyncio.timeout(60):
            stored = await Stored.of(chat, database)
            until = (await stored.state())["turn"]["until"]
            while (await stored.state())["turn"]["until"] <= until:  # noqa: ASYNC110 - no event tells
                # a call in memory may be over without leaving the event loop to others
                await asyncio.sleep(0.01)

    async def test_a_slow_worker_keeps_a_turn_that_nobody_took(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """A worker with a lapsed lease can still answer if no other worker took the turn."""
        slow = new_store(clock=ahead(-60)).conversation(**chat.scope)
        turn = await slow.turn("r1", human="Do seals sleep?")
        await chat.append(AIMessage("", id="note", tool_calls=[]))
        await chat.reserve_source_ids(1)
        await turn.append(AIMessage("They do."))
        assert (await texts_of(chat))[-1] == "They do."

    async def test_an_answer_of_a_session_has_its_question(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """If a question was appended without a lease meanwhile, the answer is refused."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await elsewhere.append(HumanMessage("And orcas?", id="r2"))
            with pytest.raises(TurnConflictError):
                await turn.append(AIMessage("They do."))
        assert await kinds_of(chat) == ["human", "human"]

    async def test_a_deleted_conversation_gets_no_answer(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """The answer to a turn of a deleted conversation is not written to the scope's next conversation."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await elsewhere.delete()
            await elsewhere.append(HumanMessage("Anew", id="r2"))
            with suppress(TurnLostError):
                await turn.append(AIMessage("They do."))
        assert await kinds_of(elsewhere) == ["human"]

    async def test_a_session_is_used_until_it_is_left(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A turn session can be entered only once. Appending after it was left raises TurnLostError."""
        turn = await chat.turn("r1", human="Do seals sleep?")
        async with turn:
            with pytest.raises(InvalidInputError):
                await turn.__aenter__()
        async with await elsewhere.turn("r1") as again:
            with pytest.raises(TurnLostError):
                await turn.append(AIMessage("late", id="late"))
            await again.append(AIMessage("They do."))
        assert await kinds_of(chat) == ["human", "ai"]

    async def test_a_finished_turn_takes_no_more(self, chat: Conversation) -> None:
        """A message after `finish` is refused, and the turn stays finished."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.finish()
            await turn.finish()
            with pytest.raises(TurnClosedError):
                await turn.append(AIMessage("They do."))
        found = await turn_of(chat, "r1")
        assert (found.is_finished, len(found.messages)) == (True, 1)

    async def test_a_cancelled_request_leaves_no_lease(
        self, chat: Conversation, elsewhere: Conversation, next_call: NextCall
    ) -> None:
        """A client that disconnects while the lease is taken may ask again at once."""

        async def cancel() -> None:
            asked.cancel()
            await asyncio.sleep(0)

        async with await chat.turn("r0", human="Do seals eat?"):
            pass
        next_call(TurnLeases, "take", after=cancel)
        asked = asyncio.create_task(chat.turn("r1", human="Do seals sleep?"))
        await asyncio.wait([asked])
        assert asked.cancelled()
        async with await elsewhere.turn("r1", human="Do seals sleep?") as turn:
            assert turn.is_running

    async def test_a_rewound_turn_is_left(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A session whose question was rewound writes nothing, and leaving it raises no error, even after a stop."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await elsewhere.stop("r1")
            await elsewhere.rewind(before_id="r1")
            with pytest.raises(UnknownMessageError, match="or was rewound"):
                await turn.append(AIMessage("They do."))
            assert turn.is_stopped
        assert await kinds_of(chat) == ["human"]

    async def test_calls_with_one_id_are_decided_apart(self, chat: Conversation) -> None:
        """Models repeat call ids, so `decide` accepts a call, or the id of its result."""
        async with await chat.turn("r1", human="Pay both") as turn:
            await turn.append(
                AIMessage(
                    "", tool_calls=[{"name": name, "args": {}, "id": "call"} for name in "ab"]
                )
            )
            for call in turn.open_calls:
                await turn.wait_for(call)
            waiting = turn.waiting_calls
        found = await turn_of(chat, "r1")
        assert list(found.waiting_calls) == waiting
        [listed] = [turn async for turn in chat.turns()]
        assert listed.waiting_calls == found.waiting_calls
        with pytest.raises(InvalidInputError, match="result_id"):
            await chat.decide("r1", "call", "approve")
        with pytest.raises(InvalidInputError, match="call must be a TurnCall or its result_id"):
            await chat.decide("r1", 1, "approve")  # type: ignore[arg-type]
        await chat.decide("r1", waiting[0], "approve")
        found = await turn_of(chat, "r1")
        assert list(found.waiting_calls) == waiting[1:]
        await chat.decide("r1", waiting[1].result_id, "reject")
        found = await turn_of(chat, "r1")
        assert found.waiting_calls == ()
        async with await chat.turn("r1") as turn:
            assert [call.name for call in turn.open_calls] == ["a"]

    async def test_a_turn_is_continued_only_if_it_began(self, chat: Conversation) -> None:
        """Continuing a turn that never began, or with another question, is refused."""
        with pytest.raises(UnknownMessageError):
            await chat.turn("r1")
        async with await chat.turn("r1", human="Do seals sleep?"):
            pass
        with pytest.raises(TurnConflictError):
            await chat.turn("r1", human="Do orcas sleep?")
        async with await chat.turn("r1"):  # the refused call gave the lease back
            pass

    @pytest.mark.parametrize(
        "reply", ["text", AIMessage("x", id="r1"), HumanMessage("x", id="r1"), None]
    )
    async def test_a_reply_is_checked(self, chat: Conversation, reply: Any) -> None:
        """A value that is not a message, or has the id of the question, is refused, and the turn stays open."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            with pytest.raises(InvalidMessageError):
                await turn.append(reply)
            await turn.append(AIMessage("They do."))

    async def test_an_append_may_depend_on_the_end(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """With `after`, an append succeeds only at that end of the log or if its messages are already stored.

        It does not create a conversation if the end does not exist.
        """
        said: list[BaseMessage] = [AIMessage("Hello", id="a")]
        with pytest.raises(LogMovedError):
            await chat.append(said, after=1)
        assert not (await chat.store.list_conversations(**chat.scope)).conversations
        await chat.append(said, after=0)
        await elsewhere.append(AIMessage("Again", id="b"), after=1)
        await chat.append(said, after=0)
        with pytest.raises(LogMovedError) as caught:
            await chat.append(AIMessage("Third", id="c"), after=1)
        assert (caught.value.after, caught.value.last) == (1, 2)
        assert len(await kinds_of(chat)) == 2

    async def test_a_rewind_restores_how_a_turn_ended(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Rewinding the next question leaves a turn finished. Rewinding the end of the turn reopens it."""
        async with await chat.turn("r1", human="Book a table") as turn:
            await turn.append(calls("book"))
            await turn.add_result(turn.open_calls[0], "booked")
            await turn.finish()
        await chat.append(HumanMessage("And a room", id="r2"))
        for before, is_finished in (("r2", True), (turn.messages[1].id, False)):
            await elsewhere.rewind(before_id=str(before))
            found = await turn_of(chat, "r1")
            assert found.is_finished is is_finished
        async with await chat.turn("r1") as again:
            assert again.is_running
        assert (await chat.store.verify(**chat.scope)).ok
