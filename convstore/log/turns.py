"""Judge a turn: which calls are open, which wait for a person, what its answer is, and whether and why it is over.

One fold over the columns of a turn's messages and its events. Nothing else judges, and no body is read. `add` costs
what it is given; every property is ready, or costs what is open.
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
    """A call as the log has it.

    Attributes:
        result_id: The `result_id` by which it is known.
        message: The AI message that made it.
        position: Its index among the calls of that message.
    """

    result_id: str
    message: EntryMessage
    position: int


@dataclass(slots=True)
class LoggedTurn:
    """One turn as the log has it, folded entry by entry from its question on.

    Attributes:
        question: Ordinal of its question.
        turn_id: Id of its question.
        messages: Its messages, in order, the question first.
        calls: Its calls by their result ids, in order.
        results: The results that its calls have, by the same ids.
        waiting: How calls wait for a person, decided or not, by the same ids.
        decisions: What was decided about calls, by the same ids.
        is_superseded: A later question was asked.
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
    _said: EntryMessage | None = None
    _ended: Over = ""

    def add(self, messages: Iterable[EntryMessage], event: TurnEvent | None = None) -> None:
        """Add what an entry has, of this turn and of others."""
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
            self._said = message
        if message.type == "tool" and (answered := self._answered(message)):
            del self._open[answered]
            self.results[answered] = message

    def _answered(self, result: EntryMessage) -> str:
        """Return the `result_id` of the open call that a result answers, "" if there is none."""
        known = result.answers or answered_by(result.id)
        if known in self._open:
            return known
        if result.answers or not result.call:
            return ""
        # One of more calls than the totals keep: it was not found at append.
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

    def settle(self, tail: Totals) -> None:
        """Take over from the end of the log if a later turn has begun, and if the turn goes on after all."""
        self.is_superseded = tail.turn > self.question
        if tail.turn == self.question:
            self._ended = tail.over if tail.is_ended else ""

    @property
    def answer(self) -> EntryMessage | None:
        """The last AI message of a model if it has no calls and was not paused by its provider."""
        said = self._said
        return said if said is not None and said.is_answer else None

    @property
    def is_ended(self) -> bool:
        """True if an event ended it: it was finished or stopped."""
        return bool(self._ended)

    @property
    def over(self) -> OverBy:
        """Why it is over, "" if it is in progress. What an event ended stays as it is."""
        if self._ended:
            return self._ended
        if self.answer is not None:
            return "answered"
        return "superseded" if self.is_superseded else ""

    @property
    def open_calls(self) -> list[LoggedCall]:
        """The calls without a result that may be run, in order.

        Calls that a person refused are left out, and those of a message while an interrupt about all its calls waits.
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
        """True if all that is left to do is what a person has to decide."""
        return bool(self.undecided) and not self.open_calls

    @property
    def is_done(self) -> bool:
        """True if it is in progress, and no call is open or waits for a person."""
        return not (self.over or self._open)

    @property
    def paused(self) -> list[LoggedCall]:
        """The calls of the last step that a graph's interrupt is about, in order.

        Empty once the turn is over. Calls of an interrupt that was resumed are left out: one of them was approved and
        has its result.
        """
        if self._said is None:
            return []
        asked = [self.calls[id_] for id_ in self._said.calls if id_ in self.waiting]
        over = {""}
        for call in asked:
            if not self.is_unrun(call.result_id):
                over.add(self.waiting[call.result_id].interrupt)
        return [call for call in asked if self.waiting[call.result_id].interrupt not in over]

    def is_unrun(self, result_id: str) -> bool:
        """Return True if a call was not run: it has no result, or the one that a decision gave."""
        if self.over:
            return False
        decision = self.decisions.get(result_id)
        return result_id in self._open or (decision is not None and not decision.runs)

    def waits(self, result_id: str) -> bool:
        """Return True if the call with a `result_id` waits for a person's decision."""
        return not self.over and result_id in self._open and self._waits(self._open[result_id])

    @property
    def without_result(self) -> list[LoggedCall]:
        """All calls without a result, in order, whatever became of the turn."""
        return list(self._open.values())

    def _waits(self, call: LoggedCall) -> bool:
        return call.result_id in self.waiting and call.result_id not in self.decisions

    def _is_refused(self, call: LoggedCall) -> bool:
        decision = self.decisions.get(call.result_id)
        return decision is not None and not decision.runs


def turns_before(entry: Entry) -> set[int]:
    """Return the turns that an entry says something of and that are not the newest one where it stands."""
    return turns_in(entry) - {0, own_totals(entry).turn}


def turns_in(entry: Entry) -> set[int]:
    """Return the turns that an entry says something of, 0 for messages of no turn."""
    found = {message.turn for message in entry.messages}
    if event := EVENT.of(entry):
        found.add(event.question)
    return found


def unread(messages: Sequence[EntryMessage], *, question: int = 0) -> set[int]:
    """Return the ordinals of the human messages and results at the end of a log that no model has read.

    A message is read by an AI message of its own turn, or of a later one, whose model was shown it.

    Args:
        messages: Active messages up to the end of the log, in order.
        question: The newest question among them, if it is known; then the search ends early.
    """
    found = set[int]()
    newest = -1  # the newest turn whose model was shown what precedes
    # what models of newer turns saw, if not all of it, and their turns
    late = list[tuple[int, int]]()
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
