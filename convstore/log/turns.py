"""Compute the state of a turn: open calls, calls that wait for a person, the answer, and if and why it is over.

The state is a fold over the columns of a turn's messages and its events. It is computed only here, and no body is read.
The time of `add` depends on its arguments; that of a property on the number of open calls at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from convstore.log.entry import Entry, EntryMessage, Over, Totals
from convstore.log.facts.branch import own_totals
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.messages.tool_calls import answered_by, result_id
from convstore.values.turns import Decision, OverBy, Pause


class LoggedCall(NamedTuple):
    """A call in the log.

    Attributes:
        result_id: The `result_id` that identifies it.
        message: The AI message that made it.
        position: Its index among the calls of that message.
    """

    result_id: str
    message: EntryMessage
    position: int


@dataclass(slots=True)
class LoggedTurn:
    """The state of one turn, folded entry by entry from its question on.

    Attributes:
        question: Ordinal of its question.
        turn_id: Id of its question.
        messages: Its messages, in order, the question first.
        calls: Its calls by their result ids, in order.
        results: The results of its calls, by the same ids.
        waiting: The pauses of calls that wait or waited for a person, by the same ids.
        decisions: The persons' decisions on calls, by the same ids.
        is_superseded: True if a later question was asked.
    """

    question: int
    turn_id: str
    messages: list[EntryMessage] = field(default_factory=list)
    calls: dict[str, LoggedCall] = field(default_factory=dict)
    results: dict[str, EntryMessage] = field(default_factory=dict)
    waiting: dict[str, Pause] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    is_superseded: bool = False
    _open: dict[str, LoggedCall] = field(default_factory=dict)
    _last_reply: EntryMessage | None = None
    _ended: Over = ""

    def add(self, messages: Iterable[EntryMessage], event: TurnEvent | None = None) -> None:
        """Add the messages and the event of an entry, which may belong to this turn or to others."""
        for message in messages:
            if message.turn == self.question:
                self._add(message)
            elif message.begins_turn and message.ordinal > self.question:
                self.is_superseded = True
        if event is not None and event.question == self.question:
            self._follow(event)

    def _add(self, message: EntryMessage) -> None:
        self.messages.append(message)
        for position, made in enumerate(message.calls):
            self.calls[made] = self._open[made] = LoggedCall(made, message, position)
        if message.is_reply:
            self._last_reply = message
        if message.type == "tool" and (answered := self._answered(message)):
            del self._open[answered]
            self.results[answered] = message

    def _answered(self, result: EntryMessage) -> str:
        """Return the `result_id` of the open call that a result answers, or ""."""
        known = result.answers or answered_by(result.id)
        if known in self._open:
            return known
        if result.answers or not result.call:
            return ""
        # The totals have a limited number of open calls, so the call may not have been found at append.
        for message in dict.fromkeys(call.message.id for call in reversed(self._open.values())):
            for position in count():
                made = result_id(message, result.call, position)
                if made in self._open:
                    return made
                if made not in self.calls:
                    break
        return ""

    def _follow(self, event: TurnEvent) -> None:
        if event.kind == "wait":
            self.waiting[event.call] = Pause.read(event.values)
        elif event.kind == "decide":
            self.decisions[event.call] = Decision.read(event.values)
        elif event.over:
            self._ended = event.over

    def apply_tail(self, tail: Totals) -> None:
        """Update the state from the end of the log: later questions and an end of the turn may have been rewound."""
        self.is_superseded = tail.turn > self.question
        if tail.turn == self.question:
            self._ended = tail.over if tail.is_ended else ""

    @property
    def answer(self) -> EntryMessage | None:
        """The last AI message of a model if it has no calls and was not paused by its provider."""
        reply = self._last_reply
        return reply if reply is not None and reply.is_answer else None

    @property
    def is_ended(self) -> bool:
        """True if an event ended the turn: it was finished or stopped."""
        return bool(self._ended)

    @property
    def over(self) -> OverBy:
        """Why the turn is over, "" if it is in progress. The end by an event comes before all other reasons."""
        if self._ended:
            return self._ended
        if self.answer is not None:
            return "answered"
        return "superseded" if self.is_superseded else ""

    @property
    def open_calls(self) -> list[LoggedCall]:
        """The calls without a result that may be run, in order.

        Calls that a person refused are left out. So are all calls of a message while an interrupt that is about all of
        them waits.
        """
        if self.over:
            return []
        paused = {
            call.message.ordinal for call in self.undecided if self.waiting[call.result_id].is_batch
        }
        return [
            call
            for call in self._open.values()
            if call.message.ordinal not in paused
            and not self._waits(call)
            and not self._is_refused(call)
        ]

    @property
    def refused(self) -> list[LoggedCall]:
        """The calls that a person decided not to run, and whose result was rewound, in order."""
        return [] if self.over else [call for call in self._open.values() if self._is_refused(call)]

    @property
    def undecided(self) -> list[LoggedCall]:
        """The calls without a result that wait for a person's decision, in order."""
        return [] if self.over else [call for call in self._open.values() if self._waits(call)]

    @property
    def is_waiting(self) -> bool:
        """True if the turn waits for a person's decision and has no other open call."""
        return bool(self.undecided) and not self.open_calls

    @property
    def is_done(self) -> bool:
        """True if it is in progress, and no call is open or waits for a person."""
        return not (self.over or self._open)

    @property
    def paused(self) -> list[LoggedCall]:
        """The calls of the last step that belong to a graph's interrupt, in order; empty once the turn is over.

        Calls of an interrupt that was resumed are left out. It was resumed if one of its calls was approved and has its
        result.
        """
        if self._last_reply is None:
            return []
        candidates = [self.calls[id_] for id_ in self._last_reply.calls if id_ in self.waiting]
        over = {""}
        for call in candidates:
            if not self.is_unrun(call.result_id):
                over.add(self.waiting[call.result_id].interrupt)
        return [call for call in candidates if self.waiting[call.result_id].interrupt not in over]

    def is_unrun(self, result_id: str) -> bool:
        """Return True if a call was not run: it has no result, or a decision gave the result."""
        if self.over:
            return False
        decision = self.decisions.get(result_id)
        return result_id in self._open or (decision is not None and not decision.runs)

    def waits(self, result_id: str) -> bool:
        """Return True if the call with a `result_id` waits for a person's decision."""
        return not self.over and result_id in self._open and self._waits(self._open[result_id])

    @property
    def without_result(self) -> list[LoggedCall]:
        """All calls without a result, in order, even if the turn is over."""
        return list(self._open.values())

    def _waits(self, call: LoggedCall) -> bool:
        return call.result_id in self.waiting and call.result_id not in self.decisions

    def _is_refused(self, call: LoggedCall) -> bool:
        decision = self.decisions.get(call.result_id)
        return decision is not None and not decision.runs


def turns_before(entry: Entry) -> set[int]:
    """Return the turns of an entry's messages and event, without the turn that is the newest one at that entry."""
    return turns_in(entry) - {0, own_totals(entry).turn}


def turns_in(entry: Entry) -> set[int]:
    """Return the turns of an entry's messages and event; 0 stands for messages that belong to no turn."""
    found = {message.turn for message in entry.messages}
    if event := EVENT.of(entry):
        found.add(event.question)
    return found


def unread(messages: Sequence[EntryMessage], *, question: int = 0) -> set[int]:
    """Return the ordinals of the human messages and tool results at the end of a log that no model has read.

    A message is read if the model of an AI message of its own turn, or of a later turn, was shown the message.

    Args:
        messages: Active messages up to the end of the log, in order.
        question: Ordinal of the newest question among them, if it is known; then the search ends early.
    """
    found: set[int] = set()
    newest = -1  # the newest turn whose model was shown all earlier messages
    # last ordinals that other models saw, which were not shown all earlier messages, and their turns
    late: list[tuple[int, int]] = []
    for message in reversed(messages):
        if message.ordinal < newest or (question and newest >= question):
            # all earlier messages are of this turn or earlier ones, and were shown to its model
            break
        if late:
            newest = max([newest, *(turn for saw, turn in late if saw >= message.ordinal)])
        if message.turn <= newest:
            continue
        if message.type in ("tool", "human"):
            found.add(message.ordinal)
        elif message.is_reply and message.saw < message.ordinal - 1:
            late.append((message.saw, message.turn))
        elif message.is_reply:
            newest = message.turn
    return found


def answers_among(stored: Sequence[EntryMessage]) -> dict[str, str]:
    """Return the `result_id` of the call that each result answers, by the result's id, as far as the log knows it.

    "" stands for a call that is not among the messages, because a summary covers it or the budget left it out. Another
    call with the same id may be among them, of another run.
    """
    made = {id_ for message in stored for id_ in message.calls}
    known = ((message.id, message.answers) for message in stored if message.type == "tool")
    return {id_: answers if answers in made else "" for id_, answers in known if answers}
