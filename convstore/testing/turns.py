"""Tests of reading turns and pages of messages, and of valid questions."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import ContentConflictError, InvalidInputError, TurnConflictError
from convstore.messages.tool_calls import result_id
from convstore.testing.fixtures import texts_of, turn_of
from convstore.testing.samples import passages, rag_turn, same_messages
from convstore.values.models import StoredMessage, Turn

__all__ = ["TurnContract"]


def _answer(text: str = "They do.") -> list[BaseMessage]:
    """Return an agent's answer to a question, new objects without ids."""
    call = {"name": "search", "args": {"query": "seals"}, "id": "call_1"}
    result = ToolMessage("found", name="search", tool_call_id="call_1", artifact=passages(2))
    return [AIMessage("", tool_calls=[call]), result, AIMessage(text)]


async def _turns(chat: Conversation, **asked: Any) -> list[Turn]:
    return [turn async for turn in chat.turns(**asked)]


async def _numbers(chat: Conversation, **asked: Any) -> list[int]:
    return [turn.number for turn in await _turns(chat, **asked)]


class TurnContract:
    """`list_messages`, `get_turn`, `turns` in a range, and the questions that `turn` takes."""

    async def test_question_and_answer_are_one_turn(self, chat: Conversation) -> None:
        """The question is stored first, the answer later, each once; the id of the turn is that of the question."""
        asked = await chat.append(HumanMessage("Do seals sleep?", id="r1"))
        answered = await chat.append(_answer(), turn="r1")
        turn = await turn_of(chat, "r1")
        assert (asked.message_ids, asked.written, answered.written) == (("r1",), 1, 3)
        assert [message.id for message in turn.messages] == ["r1", *answered.message_ids]
        assert (turn.turn_id, turn.number, turn.first, turn.last, turn.is_finished) == (
            "r1",
            1,
            1,
            4,
            True,
        )
        assert same_messages((await _turns(chat))[0].messages, turn.messages)

    async def test_another_question_under_the_id_of_a_turn_is_a_conflict(
        self, chat: Conversation
    ) -> None:
        """This holds in a session, and in an append without one."""
        await chat.append([HumanMessage("Do seals sleep?", id="r1"), *_answer()])
        with pytest.raises(TurnConflictError, match=r"'r1' has another question") as caught:
            await chat.turn("r1", human="Do orcas sleep?")
        assert (caught.value.is_newest, caught.value.is_question) == (True, True)
        with pytest.raises(ContentConflictError):
            await chat.append(HumanMessage("Do orcas sleep?", id="r1"))
        assert len(await texts_of(chat)) == 4

    async def test_what_is_no_question_is_refused_before_anything_is_written(
        self, chat: Conversation
    ) -> None:
        """The error is typed, and nothing is stored."""
        wrong: list[tuple[Any, Any]] = [
            ("", "hi"),
            ({"$ne": ""}, "hi"),
            ("\ud800", "hi"),
            ("x" * 513, "hi"),
            ("r1", 7),
            ("r1", AIMessage("I am not")),
            ("r1", {"role": "system", "content": "obey"}),
            ("r1", HumanMessage("hi", id="other")),
        ]
        for turn_id, human in wrong:
            with pytest.raises(InvalidInputError):
                await chat.turn(turn_id, human=human)
        assert (await chat.info()).created_at is None

    async def test_calls_without_results_are_stored_as_they_are(self, chat: Conversation) -> None:
        """The log is unchanged; the view adds results to be valid."""
        answer = [_answer()[0], AIMessage("I could not look.")]
        await chat.append([HumanMessage("Do seals sleep?", id="r1"), *answer])
        history = await chat.load_history()
        assert same_messages((await _turns(chat))[0].messages[1:], answer)
        assert history.report.missing_results == ("call_1",)

    async def test_turns_are_read_by_pages_both_ways(self, chat: Conversation) -> None:
        """The pages together have all turns, however they were appended; the last turn is in progress."""
        await chat.append([SystemMessage("Be brief."), AIMessage("Hello.")])
        for number in range(1, 31):
            turn = rag_turn(f"What about fish {number}?")
            await chat.append(turn[: number % 4 + 1])
            await chat.reserve_source_ids(1)
            if number % 4 < 3:
                await chat.append(turn[number % 4 + 1 :])
        await chat.append(HumanMessage("And?"))
        forth: list[Turn] = []
        while page := await _turns(chat, after=forth[-1].last if forth else None, limit=4):
            forth += page
        back: list[Turn] = []
        while page := await _turns(
            chat, before=back[-1].first if back else None, limit=3, newest_first=True
        ):
            back += page
        assert forth == back[::-1] == await _turns(chat)
        assert [turn.number for turn in forth] == list(range(32))
        assert [turn.is_finished for turn in forth] == [True] * 31 + [False]

    async def test_a_range_may_begin_and_end_anywhere(self, chat: Conversation) -> None:
        """A turn is in the range if its first message is, and is complete; both orders give the same turns."""
        for name in "abcd":
            await chat.append([HumanMessage(name, id=name), *_answer(name)])
        expected = {
            (None, None): [1, 2, 3, 4],
            (0, 17): [1, 2, 3, 4],
            (1, None): [2, 3, 4],
            (4, None): [2, 3, 4],
            (4, 9): [2],
            (4, 10): [2, 3],
            (3, 12): [2, 3],
            (None, 5): [1],
            (None, 1): [],
            (13, None): [],
            (99, None): [],
            (None, 99): [1, 2, 3, 4],
            (9, 9): [],
        }
        for (after, before), numbers in expected.items():
            assert await _numbers(chat, after=after, before=before) == numbers
            assert (
                await _numbers(chat, after=after, before=before, newest_first=True) == numbers[::-1]
            )
        assert [
            len(turn.messages) for turn in await _turns(chat, before=10, newest_first=True)
        ] == [4, 4, 4]
        assert await _numbers(chat, limit=0) == []

    async def test_ranges_leave_out_what_was_rewound(self, chat: Conversation) -> None:
        """Numbers are those of the active turns, wherever reading begins."""
        for name in "abcd":
            await chat.append([HumanMessage(name, id=name), *_answer(name)])
        await chat.rewind(before_id="c")
        await chat.append([HumanMessage("e", id="e"), *_answer("e")])
        kept = (await _turns(chat))[1].messages[1:]
        await chat.rewind(before_id=str(kept[1].id))
        await chat.append([kept[0], AIMessage("again", id="b again")], turn="b")
        await chat.append([HumanMessage("f", id="f"), *_answer("f")])
        turns = await _turns(chat)
        assert [(turn.turn_id, turn.number, len(turn.messages)) for turn in turns] == [
            ("a", 1, 4),
            ("b", 2, 3),
            ("f", 3, 4),
        ]
        for after in range(23):
            later = [turn for turn in turns if turn.first > after]
            assert await _turns(chat, after=after) == later
            assert await _turns(chat, after=after, newest_first=True) == later[::-1]
            earlier = [turn for turn in turns if turn.first < after]
            assert await _turns(chat, before=after) == earlier
            assert await _turns(chat, before=after, newest_first=True) == earlier[::-1]
        for turn in turns:
            assert await chat.get_turn(turn.turn_id) == turn
        for gone in "cde":
            assert await chat.get_turn(gone) is None

    async def test_only_the_first_message_names_a_turn(self, chat: Conversation) -> None:
        """Any other message id returns None; turn 0 is found by its first message, too."""
        await chat.append([SystemMessage("Be brief.", id="s"), AIMessage("Hello.", id="h")])
        await chat.append([HumanMessage("hi", id="r1"), AIMessage("ho", id="a")])
        begin = await turn_of(chat, "s")
        assert (begin.number, len(begin.messages)) == (0, 2)
        assert [await chat.get_turn(id_) for id_ in ("h", "a", "other")] == [None, None, None]
        other = chat.store.conversation(**{**chat.scope, "user_id": "eve"})
        assert await other.get_turn("r1") is None

    @pytest.mark.parametrize(
        "asked", [{"after": -1}, {"before": "1"}, {"limit": True}, {"after": 10**30}]
    )
    async def test_a_bad_range_is_refused(self, chat: Conversation, asked: dict[str, Any]) -> None:
        """The error is typed and comes before anything is read."""
        with pytest.raises(InvalidInputError):
            await _turns(chat, **asked)

    async def test_listed_messages_name_their_turns(self, chat: Conversation) -> None:
        """Each message has the id of its question, even if the question is on another page."""
        for turn in ("q1", "q2"):
            await chat.append([HumanMessage("Why?", id=turn), AIMessage("So.")])
        turns = [
            [message.turn_id for message in await chat.list_messages(limit=limit)]
            for limit in (9, 1)
        ]
        assert turns == [["q1", "q1", "q2", "q2"], ["q2"]]

    async def test_a_page_deep_in_a_turn_names_its_question(self, chat: Conversation) -> None:
        """The messages of a page have the id of their question, however long the turn is."""
        await chat.append(
            [
                HumanMessage("Why?", id="q1"),
                *(AIMessage(f"Step {number}.") for number in range(230)),
            ]
        )
        near = await chat.list_messages(after=150, limit=1)
        far = await chat.list_messages(limit=1)
        assert [page[0].turn_id for page in (near, far)] == ["q1", "q1"]

    async def test_a_message_of_an_overtaken_run_names_its_own_question(
        self, chat: Conversation
    ) -> None:
        """A late call, its result, and the messages that its tool added belong to the question that they name."""
        call = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}], id="call")
        result = ToolMessage("A seal.", tool_call_id="c", id=result_id("call", "c"))
        await chat.append([HumanMessage("Why?", id="q1"), HumanMessage("How?", id="q2")])
        await chat.append([call, result], turn="q1")
        await chat.append(HumanMessage("its picture"), turn="q1")
        await chat.append(AIMessage("So."))
        assert [message.turn_id for message in await chat.list_messages()] == [
            "q1",
            "q2",
            "q1",
            "q1",
            "q1",
            "q2",
        ]
        assert [message.turn_id for message in await chat.list_messages(after=4)] == ["q1", "q2"]

    async def test_messages_are_listed_by_pages_both_ways(self, chat: Conversation) -> None:
        """The pages together have the whole log; results are stubs unless `full` is set."""
        log = [message for number in range(5) for message in rag_turn(f"What about fish {number}?")]
        for begin in (0, 3, 10):
            await chat.append(log[begin : {0: 3, 3: 10, 10: 20}[begin]])
            await chat.reserve_source_ids(1)
        back: list[StoredMessage] = []
        while page := await chat.list_messages(
            before=back[0].ordinal if back else None, limit=3, full=True
        ):
            back = page + back
        forth: list[StoredMessage] = []
        while page := await chat.list_messages(after=forth[-1].ordinal if forth else 0, limit=4):
            forth += page
        assert same_messages([stored.message for stored in back], log)
        assert (
            [stored.ordinal for stored in back]
            == [stored.ordinal for stored in forth]
            == list(range(1, 21))
        )
        assert [stored.message.id for stored in forth] == [message.id for message in log]
        assert '"source_ids": "1-3"' in str(forth[2].message.content)

    @pytest.mark.parametrize(
        "asked", [{"limit": -1}, {"before": "1"}, {"before": 1, "after": 1}, {"limit": 10**9}]
    )
    async def test_a_bad_page_is_refused(self, chat: Conversation, asked: dict[str, Any]) -> None:
        """A bad limit, and two ends of a page, are refused before anything is read."""
        with pytest.raises(InvalidInputError):
            await chat.list_messages(**asked)
