"""Tests of `append_turn` and of reading turns: a question is stored once and gets one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import (
    ConflictError,
    InvalidInputError,
    InvalidMessageError,
    MessageRewoundError,
    TurnConflictError,
    UnknownMessageError,
)
from convstore.messages.filing import linked
from convstore.store import ConversationStore
from convstore.testing.samples import passages, rag_turn, same_messages
from convstore.values.models import Turn

__all__ = ["TurnContract"]


def _answer(text: str = "They do.") -> list[BaseMessage]:
    """Return an agent's answer to a question, new objects without ids."""
    call = {"name": "search", "args": {"query": "seals"}, "id": "call_1"}
    result = ToolMessage("found", name="search", tool_call_id="call_1", artifact=passages(2))
    return [AIMessage("", tool_calls=[call]), result, AIMessage(text)]


async def _texts(chat: Conversation) -> list[str]:
    return [message.text async for message in chat.messages(rewound=True)]


async def _turns(chat: Conversation, **asked: Any) -> list[Turn]:
    return [turn async for turn in chat.turns(**asked)]


async def _numbers(chat: Conversation, **asked: Any) -> list[int]:
    return [turn.number for turn in await _turns(chat, **asked)]


class TurnContract:
    """`append_turn`, `get_turn`, and `turns` in a range."""

    async def test_question_and_answer_are_one_turn(self, chat: Conversation) -> None:
        """The question is stored first, the answer later, each once; the id of the turn is that of the question."""
        asked = await chat.append_turn("r1", human="Do seals sleep?")
        answered = await chat.append_turn("r1", messages=_answer())
        turn = await chat.get_turn("r1")
        assert turn is not None
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

    async def test_a_request_made_again_writes_nothing(
        self, chat: Conversation, new_store: Callable[..., ConversationStore]
    ) -> None:
        """Question, answer or both, in any order and from any process, also when the conversation has gone on."""
        first = await chat.append_turn("r1", human="Do seals sleep?", messages=_answer())
        await chat.append_turn("r2", human="And orcas?")
        for again in (chat, new_store().conversation(**chat.scope)):
            receipts = [
                await again.append_turn("r1", human=HumanMessage("Do seals sleep?")),
                await again.append_turn("r1", messages=_answer()),
                await again.append_turn(
                    "r1", human={"role": "user", "content": "Do seals sleep?"}, messages=_answer()
                ),
                await again.append_turn("r1", messages=_answer()[:1]),
            ]
            assert [receipt.written for receipt in receipts] == [0, 0, 0, 0]
            assert receipts[2].message_ids == first.message_ids
        assert len(await _texts(chat)) == 5

    async def test_an_answer_may_come_from_a_generator(self, chat: Conversation) -> None:
        """`messages` may be a generator. An empty generator leaves the turn unanswered."""
        await chat.append_turn("r1", human="Do seals sleep?", messages=iter(()))
        receipt = await chat.append_turn("r1", messages=iter(_answer()))
        assert receipt.written == len(_answer())

    async def test_a_turn_grows_step_by_step(self, chat: Conversation) -> None:
        """Each call names the turn from its beginning, and only what is new is written."""
        answer = _answer()
        await chat.append_turn("r1", human="Do seals sleep?")
        written = [
            (await chat.append_turn("r1", messages=answer[:count])).written
            for count in (1, 2, 3, 3)
        ]
        assert written == [1, 1, 1, 0]
        assert same_messages((await _turns(chat))[0].messages[1:], answer)

    async def test_a_question_gets_one_answer(
        self, chat: Conversation, new_store: Callable[..., ConversationStore]
    ) -> None:
        """If several workers answer a question at once, all but one raise TurnConflictError."""
        await chat.append_turn("r1", human="Do seals sleep?")
        workers = [chat, *(new_store().conversation(**chat.scope) for _ in range(3))]
        answers = [[AIMessage(f"Answer {number}", id=f"run-{number}")] for number in range(4)]
        outcomes = await asyncio.gather(
            *(
                worker.append_turn("r1", messages=answer)
                for worker, answer in zip(workers, answers, strict=True)
            ),
            return_exceptions=True,
        )
        assert (
            sum(
                isinstance(outcome, TurnConflictError) and outcome.is_newest for outcome in outcomes
            )
            == 3
        )
        [turn] = await _turns(chat)
        assert len(turn.messages) == 2

    async def test_another_answer_under_the_same_ids_is_a_conflict(
        self, chat: Conversation
    ) -> None:
        """Messages that have no ids get those that the first answer got."""
        await chat.append_turn("r1", human="Do seals sleep?", messages=_answer())
        with pytest.raises(TurnConflictError, match=r"position 3.*rewind") as caught:
            await chat.append_turn("r1", messages=_answer("No."))
        assert (caught.value.turn_id, caught.value.position, caught.value.key) == ("r1", 3, None)
        with pytest.raises(TurnConflictError, match=r"'r1' has another question") as caught:
            await chat.append_turn("r1", human="Do orcas sleep?")
        assert caught.value.position == 0
        await chat.append_turn("r2", human="Why?", messages=[AIMessage("So.")], key="k")
        with pytest.raises(TurnConflictError, match=r"key 'k'.*position 1"):
            await chat.append_turn("r2", human="Why?", messages=[AIMessage("Thus.")], key="k")
        assert len(await _texts(chat)) == 6

    @pytest.mark.parametrize("is_other_process", [False, True])
    async def test_an_answer_never_ends_up_in_another_turn(
        self,
        chat: Conversation,
        new_store: Callable[..., ConversationStore],
        is_other_process: bool,
    ) -> None:
        """If another question came meanwhile, nothing of the answer is written."""
        await chat.append_turn("r1", human="Do seals sleep?")
        other = new_store().conversation(**chat.scope) if is_other_process else chat
        await other.append_turn("r2", human="And orcas?")
        with pytest.raises(TurnConflictError, match="newest question") as caught:
            await chat.append_turn("r1", messages=_answer())
        assert (caught.value.turn_id, caught.value.is_newest) == ("r1", False)
        await chat.append_turn("r2", messages=_answer())
        assert [len(turn.messages) for turn in await _turns(chat)] == [1, 4]

    async def test_a_question_after_a_load_is_seen_by_an_answer_without_text(
        self, chat: Conversation, new_store: Callable[..., ConversationStore]
    ) -> None:
        """A load does not learn all that an append needs; what came in between is noticed when that is read."""
        await chat.append_turn("r1", human="Do seals sleep?")
        other = new_store().conversation(**chat.scope)
        await other.reserve_source_ids(1)
        await chat.load_history()
        await other.append_turn("r2", human="And orcas?")
        with pytest.raises(TurnConflictError, match="newest question"):
            await chat.append_turn("r1", messages=_answer()[:1])

    async def test_questions_and_answers_of_many_at_once(
        self, chat: Conversation, new_store: Callable[..., ConversationStore]
    ) -> None:
        """Each of many concurrent answers directly follows its question or is refused."""

        async def ask(worker: Conversation, name: str) -> bool:
            await worker.append_turn(name, human=f"question {name}")
            try:
                await worker.append_turn(name, messages=[AIMessage(f"answer {name}")])
            except TurnConflictError:
                return False
            return True

        workers = [chat, new_store().conversation(**chat.scope)]
        names = [f"{number}" for number in range(20)]
        answered = await asyncio.gather(*(ask(workers[int(name) % 2], name) for name in names))
        turns = await _turns(chat)
        assert {turn.turn_id for turn in turns} == set(names)
        assert {turn.turn_id for turn in turns if len(turn.messages) == 2} == {
            name for name, is_answered in zip(names, answered, strict=True) if is_answered
        }
        assert all(
            message.text.endswith(turn.turn_id) for turn in turns for message in turn.messages
        )

    async def test_other_messages_in_a_turn_are_in_the_way(self, chat: Conversation) -> None:
        """The stored turn equals the messages that were passed, or nothing is written."""
        await chat.append_turn("r1", human="Do seals sleep?")
        await chat.append(AIMessage("Let me look.", id="look"))
        with pytest.raises(TurnConflictError):
            await chat.append_turn("r1", messages=_answer())
        with pytest.raises(TurnConflictError):
            await chat.append_turn(
                "r1", messages=[*_answer(), AIMessage("Let me look.", id="look")]
            )
        look = AIMessage("Let me look.", id="look")
        assert (await chat.append_turn("r1", messages=[look, *_answer()])).written == 3

    async def test_a_message_of_another_turn_is_not_taken_for_its_own(
        self, chat: Conversation
    ) -> None:
        """A message that is already stored in another turn raises TurnConflictError, and nothing is written."""
        await chat.append_turn("r1", human="one", messages=[AIMessage("yes", id="a")])
        await chat.append_turn("r2", human="two")
        for human, messages in (
            (None, [AIMessage("yes", id="a")]),
            ("three", [AIMessage("yes", id="a")]),
        ):
            with pytest.raises(TurnConflictError):
                await chat.append_turn("r3" if human else "r2", human=human, messages=messages)
        assert await _texts(chat) == ["one", "yes", "two"]

    async def test_an_answer_without_its_question_is_refused(self, chat: Conversation) -> None:
        """Answering a turn without a question in this conversation raises an error and writes nothing."""
        with pytest.raises(UnknownMessageError, match=r"turn 'r1' was not begun.*human="):
            await chat.append_turn("r1", messages=_answer())
        assert (await chat.info()).created_at is None
        other = chat.store.conversation(**{**chat.scope, "user_id": "eve"})
        await other.append_turn("r1", human="Mine")
        await chat.append(SystemMessage("Be brief.", id="s"))
        with pytest.raises(UnknownMessageError, match=r"turn 'r1' was not begun.*human="):
            await chat.append_turn("r1", messages=_answer())
        with pytest.raises(InvalidInputError, match="is not a human message"):
            await chat.append_turn("s", messages=_answer())
        assert await _texts(chat) == ["Be brief."]
        assert await chat.get_turn("r1") is None

    async def test_calls_without_results_are_stored_as_they_are(self, chat: Conversation) -> None:
        """The log holds what happened; the view makes it valid."""
        answer = [_answer()[0], AIMessage("I could not look.")]
        await chat.append_turn("r1", human="Do seals sleep?", messages=answer)
        history = await chat.load_history()
        assert same_messages((await _turns(chat))[0].messages[1:], answer)
        assert history.report.missing_results == ("call_1",)

    async def test_another_answer_is_asked_for(self, chat: Conversation) -> None:
        """After a rewind, an answer under the old ids is refused. A `key` gives the new answer other ids."""
        first = await chat.append_turn("r1", human="Do seals sleep?", messages=_answer())
        await chat.rewind(before_id=first.message_ids[1])
        with pytest.raises(MessageRewoundError):
            await chat.append_turn("r1", messages=_answer())
        await chat.append_turn("r1", messages=_answer("Half of them does."), key="r1 again")
        turn = await chat.get_turn("r1")
        assert turn is not None
        assert [message.text for message in turn.messages] == [
            "Do seals sleep?",
            "",
            "found",
            "Half of them does.",
        ]
        await chat.rewind(before_id="r1")
        assert await chat.get_turn("r1") is None
        with pytest.raises(MessageRewoundError):
            await chat.append_turn("r1", messages=_answer())

    async def test_a_rewind_elsewhere_is_seen(
        self, chat: Conversation, new_store: Callable[..., ConversationStore]
    ) -> None:
        """A question that another process took back and asked otherwise is not answered from memory."""
        await chat.append_turn("r1", human="Do seals sleep?")
        other = new_store().conversation(**chat.scope)
        await other.rewind(before_id="r1")
        await other.append_turn("r2", human="Do orcas sleep?")
        await chat.append_turn("r2", human="Do orcas sleep?")
        with pytest.raises(MessageRewoundError):
            await chat.append_turn("r1", messages=_answer())
        assert await _texts(chat) == ["Do seals sleep?", "Do orcas sleep?"]

    async def test_a_cancelled_turn_can_be_repeated(self, chat: Conversation) -> None:
        """Repeating a cancelled `append_turn` stores the turn once, even if the cancelled call had written it."""
        for number in range(8):
            name = f"r{number}"
            task = asyncio.create_task(chat.append_turn(name, human="Why?", messages=_answer()))
            for _ in range(number * 3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await chat.append_turn(name, human="Why?", messages=_answer())
        assert [(turn.turn_id, len(turn.messages)) for turn in await _turns(chat)] == [
            (f"r{n}", 4) for n in range(8)
        ]

    @pytest.mark.parametrize(
        ("asked", "error"),
        [
            ({"turn_id": ""}, InvalidInputError),
            ({"turn_id": {"$ne": ""}}, InvalidInputError),
            ({"turn_id": "\ud800"}, InvalidInputError),
            ({"turn_id": "x" * 513}, InvalidInputError),
            ({"human": None}, InvalidMessageError),
            ({"human": 7}, InvalidMessageError),
            ({"human": AIMessage("I am not")}, InvalidInputError),
            ({"human": {"role": "system", "content": "obey"}}, InvalidInputError),
            ({"human": HumanMessage("hi", id="other")}, InvalidInputError),
            ({"human": linked(HumanMessage("A picture."), "q1")}, InvalidInputError),
            ({"messages": "They do."}, InvalidMessageError),
            ({"messages": [HumanMessage("two")]}, InvalidMessageError),
            ({"messages": [AIMessage("a", id="r1")]}, InvalidMessageError),
            ({"messages": [AIMessage("a", id="a"), AIMessage("b", id="a")]}, InvalidMessageError),
            ({"messages": _answer(), "key": ""}, InvalidInputError),
        ],
    )
    async def test_bad_turns_are_refused_before_anything_is_written(
        self, chat: Conversation, asked: dict[str, Any], error: type[InvalidInputError]
    ) -> None:
        """The error is typed and leaves no trace."""
        given: dict[str, Any] = {"turn_id": "r1", "human": "hi"} | asked
        with pytest.raises(error):
            await chat.append_turn(**given)
        assert (await chat.info()).created_at is None

    async def test_a_refused_message_of_an_answer_is_named_by_its_place(
        self, chat: Conversation
    ) -> None:
        """The place is counted among `messages`, with the question or without it."""
        await chat.append_turn("r1", human="hi")
        for human in (None, "hi"):
            with pytest.raises(InvalidMessageError) as caught:
                await chat.append_turn(
                    "r1", human=human, messages=[AIMessage("a"), HumanMessage("b")]
                )
            assert caught.value.index == 1

    async def test_turns_are_read_by_pages_both_ways(self, chat: Conversation) -> None:
        """The pages, one after the other, are all turns, however they were appended; the last one is in progress."""
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
        """A turn counts by its first message and comes whole; both orders give the same turns."""
        for name in "abcd":
            await chat.append_turn(name, human=name, messages=_answer(name))
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
            await chat.append_turn(name, human=name, messages=_answer(name))
        await chat.rewind(before_id="c")
        await chat.append_turn("e", human="e", messages=_answer("e"))
        kept = (await _turns(chat))[1].messages[1:]
        await chat.rewind(before_id=str(kept[1].id))
        await chat.append_turn("b", messages=[kept[0], AIMessage("again", id="b again")])
        await chat.append_turn("f", human="f", messages=_answer("f"))
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
        """An id in its middle, an unknown one and a foreign one give nothing; turn 0 is found too."""
        await chat.append([SystemMessage("Be brief.", id="s"), AIMessage("Hello.", id="h")])
        await chat.append_turn("r1", human="hi", messages=[AIMessage("ho", id="a")])
        begin = await chat.get_turn("s")
        assert begin is not None
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

    async def test_a_conflict_of_turns_is_a_conflict(self, chat: Conversation) -> None:
        """A backend catches one class for all that another request did first."""
        await chat.append_turn("r1", human="hi", messages=[AIMessage("ho", id="a")])
        for messages in ([AIMessage("other", id="a")], [AIMessage("other", id="b")]):
            with pytest.raises(ConflictError):
                await chat.append_turn("r1", messages=messages)
