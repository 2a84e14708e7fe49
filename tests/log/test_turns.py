"""The turn of each message, and the one fold that judges a turn."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.append.batch import prepare_batch
from convstore.append.compose import compose_entry
from convstore.log.entry import Entry, EntryMessage, Totals
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.turns import LoggedTurn, unread
from convstore.messages.tokens import NamedCounter
from convstore.messages.tool_calls import result_id
from convstore.messages.values import Codec
from convstore.values.append_options import AppendOptions
from convstore.values.stamps import ViewStamp

NOW = datetime(2026, 11, 28, tzinfo=UTC)
COUNTER = NamedCounter(
    "characters", lambda messages: sum(len(message.text) for message in messages)
)
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]


def calling(id_: str, *calls: str) -> AIMessage:
    """An AI message with calls."""
    return AIMessage(
        "", id=id_, tool_calls=[{"name": "look", "args": {}, "id": call} for call in calls]
    )


class Log:
    """The entries of a log, as appends make them."""

    def __init__(self) -> None:
        self.entries = list[Entry]()
        self.questions = dict[str, int]()

    def append(
        self,
        *messages: BaseMessage,
        turn: str = "",
        event: TurnEvent | None = None,
        stamp: ViewStamp | None = None,
    ) -> list[int]:
        """Append an entry and return the turns of its messages."""
        totals = self.entries[-1].totals if self.entries else Totals()
        for index, message in enumerate(messages):
            message.id = message.id or f"m{totals.messages + index + 1}"
        batch = prepare_batch(messages, codec=Codec(), counter=COUNTER)
        batch = replace(
            batch, options=AppendOptions(question=turn, stamp=stamp), facts=EVENT.put(event)
        )
        entry = compose_entry(batch, totals, at=NOW, questions=self.questions)
        self.questions |= {
            message.id: message.ordinal for message in entry.messages if message.begins_turn
        }
        self.entries.append(entry)
        return [message.turn for message in entry.messages]

    def turn(self, turn_id: str) -> LoggedTurn:
        """Return a turn, folded from all entries."""
        turn = LoggedTurn(self.questions[turn_id], turn_id)
        for entry in self.entries:
            turn.add(entry.messages, EVENT.of(entry))
        turn.apply_tail(self.entries[-1].totals)
        return turn


def test_messages_of_an_agent_belong_to_the_turn_of_the_question() -> None:
    """In one batch or several; what follows the answer in the same entry is more of it."""
    log = Log()
    assert log.append(
        HumanMessage("Orcas?"), calling("c1", "a"), ToolMessage("5", tool_call_id="a")
    ) == [1, 1, 1]
    assert log.append(AIMessage("Five."), AIMessage("In the north.")) == [1, 1]
    assert log.append(HumanMessage("Seals?")) == [6]


def test_what_follows_an_answer_belongs_to_no_turn() -> None:
    """A greeting before the first question, a reminder, a note; but a note in a turn in progress is part of it."""
    log = Log()
    assert log.append(AIMessage("Hello!")) == [0]
    assert log.append(HumanMessage("Orcas?"), SystemMessage("Be brief."), AIMessage("Yes.")) == [
        2,
        2,
        2,
    ]
    assert log.append(SystemMessage("The user left.")) == [0]
    assert log.append(AIMessage("Are you still there?")) == [0]
    assert log.turn("m2").over == "answered"
    assert log.turn("m2").answer.id == "m4"
    asked = HumanMessage("Seals?")
    assert log.append(asked, AIMessage("Yes."), SystemMessage("The user left.")) == [7, 7, 0]


def test_the_end_of_the_log_says_whether_its_newest_turn_is_over() -> None:
    """Whatever an entry records besides, a result comes late, or an agent answers an earlier question."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", "a"), AIMessage("Yes."))
    log.append(event=TurnEvent("fence", "q"))
    log.append(ToolMessage("5", tool_call_id="a"))
    log.append(HumanMessage("Seals?", id="other"))
    log.append(AIMessage("No."), turn="q")
    found = [entry.totals.over for entry in log.entries]
    assert found == ["answered", "answered", "answered", "", ""]


def test_a_model_was_shown_what_its_stamp_says() -> None:
    """Without one all that precedes its message; a stamp cannot name more."""
    log = Log()
    log.append(HumanMessage("Orcas?"), HumanMessage("Seals?"), AIMessage("Yes."))
    for seen in (1, 9, 0):
        log.append(AIMessage("Yes."), stamp=ViewStamp(conversation_id="c", ordinal=seen))
    replies = [entry.messages[-1] for entry in log.entries]
    assert [reply.saw for reply in replies] == [2, 1, 4, 5]
    assert [reply.unseen for reply in replies] == [0, 2, 0, 0]


def test_a_result_belongs_to_the_turn_of_its_call() -> None:
    """However late it comes; it changes nothing about a turn that is over, and calls may share an id."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q1"), calling("c1", "a"))
    log.append(HumanMessage("Seals?", id="q2"), calling("c2", "a"))
    own = result_id("c1", "a")
    assert log.append(
        ToolMessage("late", tool_call_id="a", id=own), ToolMessage("5", tool_call_id="a")
    ) == [1, 3]
    assert log.turn("q1").over == "superseded"
    assert log.turn("q1").without_result == log.turn("q2").without_result == []
    assert log.append(ToolMessage("nobody asked", tool_call_id="z")) == [3]


def test_a_result_of_a_named_turn_answers_a_call_of_that_turn() -> None:
    """Two runs at once give their calls the same ids."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"))
    log.append(HumanMessage("Seals?", id="other"))
    log.append(calling("c1", "a"), turn="q")
    log.append(calling("c2", "a"), turn="other")
    log.append(ToolMessage("5", tool_call_id="a"), turn="q")
    assert [log.turn(turn).without_result == [] for turn in ("q", "other")] == [True, False]
    log.append(ToolMessage("6", tool_call_id="a"), turn="q")
    assert log.turn("other").without_result
    log.append(ToolMessage("7", tool_call_id="a"), turn="other")
    assert not log.turn("other").without_result


def test_each_of_300_parallel_calls_has_its_result() -> None:
    """Though the totals keep fewer open calls, and the results have ids of their own."""
    log = Log()
    calls = [f"a{number}" for number in range(300)]
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", *calls))
    log.append(*[ToolMessage("5", tool_call_id=call) for call in calls])
    assert not log.turn("q").without_result


def test_each_of_300_calls_with_one_id_has_its_result() -> None:
    """In the order of the calls; and a result of none of them is the result of none."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", *["a"] * 300))
    log.append(ToolMessage("5", tool_call_id="b"), turn="q")
    assert len(log.turn("q").without_result) == 300
    log.append(*[ToolMessage("5", tool_call_id="a") for _ in range(299)], turn="q")
    assert len(log.turn("q").without_result) == 1
    log.append(ToolMessage("last", tool_call_id="a"), turn="q")
    assert not log.turn("q").without_result


@pytest.mark.parametrize("is_one_id", [False, True])
def test_late_results_find_their_calls_if_their_writer_names_the_turn(*, is_one_id: bool) -> None:
    """After a later question the end of the log has only some of the open calls."""
    log = Log()
    calls = ["a" if is_one_id else f"a{number}" for number in range(300)]
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", *calls))
    log.append(HumanMessage("Seals?", id="other"))
    for call in calls:
        log.append(ToolMessage("5", tool_call_id=call), turn="q")
    assert not log.turn("q").without_result


def test_media_directly_after_a_result_belong_to_it() -> None:
    """Some providers take images of a tool in no other way; in an entry of its own an image is a question."""
    log = Log()
    log.append(HumanMessage("Page 3?"), calling("c1", "a"))
    assert log.append(ToolMessage("text", tool_call_id="a"), HumanMessage(IMAGE)) == [1, 1]
    assert log.append(HumanMessage(IMAGE)) == [5]
    described = HumanMessage([{"type": "text", "text": "Page 4"}, *IMAGE])
    log.append(calling("c2", "b", "c"))
    assert log.append(ToolMessage("text", tool_call_id="b"), described) == [5, 5]
    asked = HumanMessage([{"type": "text", "text": "Page 5?"}])
    assert log.append(ToolMessage("text", tool_call_id="c"), asked) == [5, 10]


def test_a_writer_names_the_turn() -> None:
    """All that it appends belongs to it, human messages included; an unknown name is none."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q1"), HumanMessage("Seals?", id="q2"))
    assert log.append(calling("c1", "a"), HumanMessage("And whales?"), turn="q1") == [1, 1]
    assert log.append(AIMessage("Both."), turn="unknown") == [2]
    assert log.turn("q1").over == "superseded"
    assert [call.result_id for call in log.turn("q1").without_result] == [result_id("c1", "a")]


def test_what_an_event_ended_stays_ended() -> None:
    """A late result and a later reply change nothing; the next question begins a turn."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q1"), calling("c1", "a"))
    log.append(event=TurnEvent("stop", "q1"))
    log.append(ToolMessage("5", tool_call_id="a"), AIMessage("Five."), turn="q1")
    assert (log.turn("q1").over, log.entries[-1].totals.over) == ("stopped", "stopped")
    log.append(HumanMessage("Seals?", id="q2"), event=TurnEvent("finish", "q1"))
    assert (log.turn("q1").over, log.entries[-1].totals.over) == ("finished", "")
    log.append(HumanMessage("Whales?", id="q3"))
    assert log.turn("q2").over == "superseded"


def test_what_follows_an_answer_in_its_turn_leaves_it_the_answer() -> None:
    """A late result of a call that the model did not wait for, and what the user adds."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", "a"), AIMessage("Yes.", id="answer"))
    log.append(ToolMessage("5", tool_call_id="a"), HumanMessage("Thanks."), turn="q")
    turn = log.turn("q")
    assert (turn.over, turn.answer and turn.answer.id) == ("answered", "answer")
    assert not turn.is_ended


def test_a_call_opens_an_answered_turn_again() -> None:
    """Only an AI message with calls of the same turn does."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q1"), AIMessage("Yes."))
    log.append(calling("c1", "a", "b"), turn="q1")
    assert (log.turn("q1").over, len(log.turn("q1").open_calls)) == ("", 2)


def test_a_refused_call_is_not_open() -> None:
    """Nor one that waits, also if the result of a refusal was rewound."""
    log, refused, waits = Log(), result_id("c1", "a"), result_id("c1", "b")
    log.append(HumanMessage("Orcas?", id="q1"), calling("c1", "a", "b", "c"))
    for id_ in (refused, waits):
        log.append(event=TurnEvent("wait", "q1", id_))
    log.append(
        ToolMessage("No.", tool_call_id="a", id=refused),
        turn="q1",
        event=TurnEvent("decide", "q1", refused, '{"verdict": "reject"}'),
    )
    turn = log.turn("q1")
    assert [call.result_id for call in turn.open_calls] == [result_id("c1", "c")]
    assert [call.result_id for call in turn.undecided] == [waits]
    rewound = LoggedTurn(
        turn.question, turn.turn_id, waiting=turn.waiting, decisions=turn.decisions
    )
    rewound.add(turn.messages[:2])
    assert [call.result_id for call in rewound.open_calls] == [result_id("c1", "c")]
    assert [call.result_id for call in rewound.refused] == [refused]


def asking(log: Log, call: str, interrupt: str = "") -> str:
    """Let a call of the message ``c1`` wait for a person, in an interrupt of a graph; return its result id."""
    asked = result_id("c1", call)
    pause = json.dumps([interrupt, True, []]) if interrupt else ""
    log.append(event=TurnEvent("wait", "q", asked, pause))
    return asked


def decided(log: Log, asked: str, call: str, verdict: str) -> None:
    """Record a decision with the result of its call."""
    result = ToolMessage("5", tool_call_id=call, id=asked)
    log.append(
        result, turn="q", event=TurnEvent("decide", "q", asked, json.dumps({"verdict": verdict}))
    )


def test_an_interrupt_waits_until_one_of_its_calls_was_run() -> None:
    """A call that a person refused was not run; a call of a loop is in no interrupt; an answer ends them all."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", "a", "b", "c", "d", "e"))
    refused, run = asking(log, "a", "first"), asking(log, "b", "second")
    later, alone = asking(log, "c", "second"), asking(log, "d")
    decided(log, refused, "a", "reject")
    turn, unasked = log.turn("q"), result_id("c1", "e")
    assert [call.result_id for call in turn.paused] == [refused, run, later]
    assert (turn.is_waiting, turn.open_calls, turn.waits(unasked)) == (True, [], False)
    log.append(ToolMessage("5", tool_call_id="e"))
    assert not log.turn("q").is_unrun(unasked)
    decided(log, run, "b", "approve")
    turn = log.turn("q")
    assert [call.result_id for call in turn.paused] == [refused]
    assert [turn.is_unrun(call) for call in (refused, run, later)] == [True, False, True]
    assert [turn.waits(call) for call in (refused, run, later, alone)] == [False, False, True, True]
    assert not turn.is_done
    decided(log, later, "c", "approve")
    decided(log, alone, "d", "approve")
    assert log.turn("q").is_done
    log.append(AIMessage("Yes."), turn="q")
    turn = log.turn("q")
    assert (turn.paused, turn.is_unrun(refused), turn.is_done) == ([], False, False)


def test_no_call_of_an_ended_turn_waits() -> None:
    """It was neither run nor decided, and nobody is asked any more."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", "a"))
    asked = asking(log, "a", "first")
    log.append(event=TurnEvent("stop", "q"))
    turn = log.turn("q")
    assert turn.paused == turn.undecided == []
    assert (turn.waits(asked), turn.is_unrun(asked)) == (False, False)
    assert [call.result_id for call in turn.without_result] == [asked]
    log.append(event=TurnEvent("fence", "q"))
    log.append(HumanMessage("Seals?", id="other"))
    assert log.turn("q").over == "stopped"


def read_by_definition(messages: Sequence[EntryMessage]) -> set[int]:
    """What a model of the same turn, or of a later one, was shown."""
    said = [message for message in messages if message.is_reply]
    return {
        m.ordinal for m in messages if any(ai.turn >= m.turn and ai.saw >= m.ordinal for ai in said)
    }


def test_a_message_is_unread_until_a_model_was_shown_it() -> None:
    """As in the definition, over random logs of interleaved turns and views that ended early."""
    dice = random.Random(5)
    for _ in range(300):
        messages, questions = list[EntryMessage](), [0]
        for ordinal in range(1, dice.randint(2, 30)):
            type_ = dice.choice(["human", "ai", "tool", "tool"])
            turn = ordinal if type_ == "human" else dice.choice(questions[-3:])
            questions += [ordinal] if type_ == "human" else []
            saw = dice.choice([ordinal - 1, dice.randint(0, ordinal - 1)]) if type_ == "ai" else 0
            messages.append(
                EntryMessage(ordinal, str(ordinal), type_, "", b"", 1, 1, turn=turn, saw=saw)
            )
        start, end = dice.choice([0, len(messages) // 2]), dice.randint(1, len(messages) + 1)
        shown = messages[start : end - 1]
        asked = {
            message.ordinal for message in shown if message.type != "ai" and message.ordinal < end
        }
        expected = asked - read_by_definition(messages[: end - 1])
        assert unread(shown) == expected, [(m.type, m.turn, m.saw) for m in messages]


def test_an_earlier_question_in_the_same_entry_supersedes_nothing() -> None:
    """The turn is folded from the entry on that has its question, which has the turn before it, too."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q1"), AIMessage("Yes."), HumanMessage("Seals?", id="q2"))
    turn = LoggedTurn(log.questions["q2"], "q2")
    for entry in log.entries:
        turn.add(entry.messages, EVENT.of(entry))
    overs = [turn.over]
    log.append(HumanMessage("Whales?", id="q3"))
    turn.add(log.entries[-1].messages)
    assert [*overs, turn.over] == ["", "superseded"]


@pytest.mark.parametrize("later", ["", ".2"])
def test_a_result_says_by_its_id_which_of_two_calls_it_answers(later: str) -> None:
    """Two calls of a turn have the same id, and the first one is answered last."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", "a"), calling("c2", "a"))
    log.append(ToolMessage("1", tool_call_id="a", id=result_id("c1", "a") + later))
    assert [call.message.id for call in log.turn("q").open_calls] == ["c2"]


@pytest.mark.parametrize("later", ["", ".2"])
def test_a_call_that_the_totals_did_not_keep_is_answered_by_its_own_result(later: str) -> None:
    """The id of the result says so: 300 calls have one id, and the last ones are answered in another order."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", *["a"] * 300))
    kept = len(log.entries[-1].totals.calls)
    ids = [result_id("c1", "a", position) for position in range(300)]
    in_turn = [*ids[:kept], *reversed(ids[kept:])]
    given = [f"{id_}{later}" for id_ in in_turn]
    log.append(*[ToolMessage("5", tool_call_id="a", id=id_) for id_ in given], turn="q")
    results = log.turn("q").results
    assert kept < len(results) == len(ids)
    assert all(result.id == f"{id_}{later}" for id_, result in results.items())


def test_a_result_without_a_name_answers_the_newest_call_that_is_left() -> None:
    """Two messages have 300 calls each, all with one id, of which the totals keep some."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", *["a"] * 300))
    log.append(calling("c2", *["a"] * 300), turn="q")
    kept = [call.result for call in log.entries[-1].totals.calls]
    log.append(*[ToolMessage("5", tool_call_id="a", id=id_) for id_ in kept], turn="q")
    before = {call.result_id for call in log.turn("q").without_result}
    log.append(ToolMessage("5", tool_call_id="a"), turn="q")
    [answered] = before - {call.result_id for call in log.turn("q").without_result}
    left = [position for position in range(300) if result_id("c2", "a", position) in before]
    assert answered == result_id("c2", "a", left[0])


def test_the_end_of_the_log_settles_how_a_turn_ended() -> None:
    """Also if the event that ended it was rewound, or was not read, and if a later question was asked."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", "a"))
    log.append(event=TurnEvent("finish", "q", question=1))
    turn = log.turn("q")
    tail = log.entries[-1].totals
    assert turn.over == "finished"
    for over in ("", "stopped"):
        turn.apply_tail(replace(tail, over=over))
        assert turn.over == over
    turn.apply_tail(replace(tail, over="", turn=9))
    assert (turn.over, turn.is_superseded) == ("stopped", True)


def test_a_turn_goes_on_once_a_later_question_was_rewound() -> None:
    """The end of the log says that it is the newest one again."""
    log = Log()
    log.append(HumanMessage("Orcas?", id="q"), calling("c1", "a"))
    log.append(HumanMessage("Seals?", id="later"))
    turn = log.turn("q")
    assert turn.over == "superseded"
    turn.apply_tail(log.entries[0].totals)
    assert [call.result_id for call in turn.open_calls] == [result_id("c1", "a")]
