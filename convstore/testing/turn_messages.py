"""Tests of the turn that each message belongs to, which all readers of turns must agree on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError, UnknownMessageError
from convstore.messages.tool_calls import result_id
from convstore.testing.fixtures import turn_of
from convstore.values.models import Turn

__all__ = ["TurnMessageContract"]


def _called(id_: str) -> BaseMessage:
    return AIMessage("", id=id_, tool_calls=[{"name": "search", "args": {}, "id": "call_1"}])


def _result(of: str) -> BaseMessage:
    return ToolMessage(f"for {of}", tool_call_id="call_1", id=result_id(of, "call_1"))


def _ids(messages: list[BaseMessage]) -> list[str | None]:
    return [message.id for message in messages]


async def _turns(chat: Conversation, **asked: Any) -> list[Turn]:
    return [turn async for turn in chat.turns(**asked)]


class TurnMessageContract:
    """Messages of concurrent runs, late results, and messages without a turn."""

    async def test_an_answer_is_filed_under_the_question_that_it_names(
        self, chat: Conversation
    ) -> None:
        """Two agents work at once: turns, outlines and sessions have each message where it belongs, not by its place.

        A call id repeats, a late result comes first, and a tool adds an image.
        """
        log: list[tuple[str | None, list[BaseMessage]]] = [
            (None, [HumanMessage("One?", id="q1"), _called("x1")]),
            ("q1", [HumanMessage("A picture.", id="i1")]),
            (None, [HumanMessage("Two?", id="q2")]),
            (None, [_result("x1"), AIMessage("Hm.", id="n2"), _called("x2")]),
            (None, [_result("x2")]),
            ("q1", [AIMessage("First.", id="a1")]),
        ]
        for turn_id, batch in log:
            await chat.append(batch, turn=turn_id)
        first = ["q1", "x1", "i1", _result("x1").id, "a1"]
        second = ["q2", "n2", "x2", _result("x2").id]
        for newest_first in (False, True):
            read = await _turns(chat, newest_first=newest_first)
            assert {turn.turn_id: _ids(turn.messages) for turn in read} == {
                "q1": first,
                "q2": second,
            }
        assert [(outlined.turn_id, outlined.answer) for outlined in await chat.outline()] == [
            ("q1", 9),
            ("q2", 7),
        ]
        assert [turn.is_finished for turn in await _turns(chat)] == [True, False]
        assert [_ids(turn.messages) for turn in await _turns(chat, before=3)] == [first]
        assert [
            _ids(turn.messages) for turn in await _turns(chat, before=3, newest_first=True)
        ] == [first]
        turn = await turn_of(chat, "q1")
        assert _ids(turn.messages) == first
        assert await chat.get_turn("i1") is None
        with pytest.raises(InvalidInputError):
            await chat.stop("i1")
        async with await chat.turn("q1") as session:
            assert session.answer
            assert session.answer.id == "a1"
        async with await chat.turn("q2") as session:
            assert (session.is_finished, _ids(session.messages)) == (False, second)
            await session.append(AIMessage("Second."))
        assert [turn.messages[-1].text for turn in await _turns(chat)] == ["First.", "Second."]
        async for update in chat.watch():
            assert update.turn
            assert (update.turn.turn_id, update.turn.status) == ("q2", "finished")
            break

    async def test_answers_of_many_questions_at_once_are_filed_under_their_own(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Two processes ask and answer ten questions each, without waiting for each other."""
        workers = [chat, elsewhere]

        async def ask(worker: Conversation, name: str) -> None:
            await worker.append(HumanMessage(f"question {name}", id=name))
            await worker.append(AIMessage(f"answer {name}"), turn=name)

        names = [f"{number}" for number in range(20)]
        await asyncio.gather(*(ask(workers[int(name) % 2], name) for name in names))
        turns = await _turns(chat)
        assert {turn.turn_id: [message.text for message in turn.messages] for turn in turns} == {
            name: [f"question {name}", f"answer {name}"] for name in names
        }

    async def test_a_question_that_was_taken_back_elsewhere_gets_no_answer(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A process that missed the rewind writes nothing, and the next question keeps its answer."""
        await chat.append(HumanMessage("Do seals sleep?", id="r1"))
        await elsewhere.rewind(before_id="r1")
        await elsewhere.append(HumanMessage("Do orcas sleep?", id="r2"))
        with pytest.raises(UnknownMessageError):
            await chat.append(AIMessage("They do."), turn="r1")
        await chat.append(AIMessage("Half of each."), turn="r2")
        assert [[message.text for message in turn.messages] for turn in await _turns(chat)] == [
            ["Do orcas sleep?", "Half of each."]
        ]

    async def test_a_message_of_no_turn_is_listed_and_changes_nothing(
        self, chat: Conversation
    ) -> None:
        """A greeting is in turn 0; a note and a reminder after the answer are listed with the turn before them."""
        await chat.append(AIMessage("Hello.", id="hello"))
        await chat.append(
            [
                HumanMessage("One?", id="q1"),
                SystemMessage("Be brief.", id="s"),
                AIMessage("So.", id="a1"),
            ]
        )
        await chat.append(SystemMessage("The user uploaded a file.", id="note"))
        await chat.append(AIMessage("Are you still there?", id="reminder"))
        turn = await turn_of(chat, "q1")
        assert (turn.is_finished, turn.over) == (True, "answered")
        assert _ids(turn.messages) == ["q1", "s", "a1", "note", "reminder"]
        await chat.append(HumanMessage("Two?", id="q2"))
        for newest_first in (False, True):
            read = {turn.turn_id: turn for turn in await _turns(chat, newest_first=newest_first)}
            assert [(id_, read[id_].number, read[id_].over) for id_ in sorted(read)] == [
                ("hello", 0, "answered"),
                ("q1", 1, "answered"),
                ("q2", 2, ""),
            ]
            assert read["q1"].messages == turn.messages
        assert [(turn.number, turn.answer) for turn in await chat.outline()] == [
            (0, 1),
            (1, 4),
            (2, None),
        ]
        ids = [(stored.message.id, stored.turn_id) for stored in await chat.list_messages()]
        assert ids == [
            *[
                ("hello", ""),
                ("q1", "q1"),
                ("s", "q1"),
                ("a1", "q1"),
                ("note", ""),
                ("reminder", ""),
                ("q2", "q2"),
            ]
        ]

    async def test_a_late_result_belongs_to_its_turn(self, chat: Conversation) -> None:
        """A late result is in the turn of its call and does not change how the turn ended."""
        for name in ("q1", "q2"):
            async with await chat.turn(name, human="?") as turn:
                await turn.append(
                    AIMessage(
                        "", id=f"ai-{name}", tool_calls=[{"name": "look", "args": {}, "id": name}]
                    )
                )
                await turn.finish()
        await chat.append(HumanMessage("Three?", id="q3"))
        for name in ("q1", "q2"):
            await chat.append(ToolMessage("Five orcas.", tool_call_id=name, id=f"late-{name}"))
        expected = {name: [name, f"ai-{name}", f"late-{name}"] for name in ("q1", "q2")} | {
            "q3": ["q3"]
        }
        for newest_first in (False, True):
            read = await _turns(chat, newest_first=newest_first)
            assert {turn.turn_id: _ids(turn.messages) for turn in read} == expected
            assert {turn.turn_id: turn.over for turn in read} == {
                "q1": "finished",
                "q2": "finished",
                "q3": "",
            }
        assert _ids((await _turns(chat, before=2))[0].messages) == expected["q1"]
        assert [stored.turn_id for stored in await chat.list_messages(limit=2)] == ["q1", "q2"]
        hits = await chat.search("orcas")
        assert sorted((hit.message_id, hit.turn_id) for hit in hits) == [
            ("late-q1", "q1"),
            ("late-q2", "q2"),
        ]
        async for update in chat.watch(limit=2):
            assert [stored.turn_id for stored in update.messages] == ["q1", "q2"]
            break
