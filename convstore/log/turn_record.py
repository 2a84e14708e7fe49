"""Read one turn of the log with its messages decoded.

A worker that takes over a turn or repeats a request finds here which calls are open and what the answer is. The state
of the turn comes from its fold, see `log.turns`; the record adds the messages and the calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.log.entry import EntryMessage
from convstore.log.facts.event import TurnEvent
from convstore.log.turns import LoggedCall, LoggedTurn
from convstore.messages.turn_calls import turn_calls
from convstore.values.turns import Decision, Pause, TurnCall

_NOT_ASKED = sys.maxsize
"""Placeholder for the ordinal of a question that the log does not have yet: no message belongs to its turn."""


@dataclass(slots=True)
class TurnRecord:
    """A turn of the log with its messages.

    Attributes:
        fold: The state of the turn.
        messages: Its messages in order, the question first.
        ordinals: Ordinals of its messages, by their ids.
    """

    fold: LoggedTurn
    messages: list[BaseMessage] = field(default_factory=list)
    ordinals: dict[str, int] = field(default_factory=dict)
    _bodies: dict[int, BaseMessage] = field(default_factory=dict)
    _calls: dict[str, TurnCall] = field(default_factory=dict)

    @classmethod
    def of(cls, turn_id: str, question: int) -> TurnRecord:
        """Return a record without messages; `question` is the ordinal of the turn's question, or 0."""
        return cls(LoggedTurn(question, turn_id))

    @classmethod
    def to_be_asked(cls, turn_id: str) -> TurnRecord:
        """Return the record of a turn whose question is not in the log yet; `add` sets it."""
        return cls.of(turn_id, _NOT_ASKED)

    @classmethod
    def read(cls, fold: LoggedTurn, messages: Iterable[BaseMessage]) -> TurnRecord:
        """Return the record of a turn from its fold and its decoded messages."""
        record = cls(fold)
        for item, message in zip(fold.messages, messages, strict=True):
            record._add(item, message)
        return record

    def add(
        self,
        stored: Iterable[EntryMessage],
        messages: Iterable[BaseMessage],
        event: TurnEvent | None = None,
    ) -> None:
        """Add an entry: its messages, stored and decoded, and its event. The time depends only on the entry's size."""
        new = list(stored)
        for item, message in zip(new, messages, strict=True):
            if item.id == self.turn_id and item.begins_turn:
                self.fold.question = item.ordinal
            if item.turn == self.fold.question:
                self._add(item, message)
        self.fold.add(new, event)

    def _add(self, item: EntryMessage, message: BaseMessage) -> None:
        self.messages.append(message)
        self.ordinals[item.id] = item.ordinal
        self._bodies[item.ordinal] = message
        if isinstance(message, AIMessage) and item.calls:
            for call in turn_calls(message, item.calls):
                self._calls[call.result_id] = call

    @property
    def turn_id(self) -> str:
        """Id of the turn's question."""
        return self.fold.turn_id

    @property
    def is_asked(self) -> bool:
        """True if the log has its question."""
        return self.fold.question != _NOT_ASKED

    @property
    def is_ended(self) -> bool:
        """True if an event ended it: it was finished or stopped."""
        return self.fold.is_ended

    @property
    def is_stopped(self) -> bool:
        """True if it was stopped."""
        return self.fold.over == "stopped"

    @property
    def is_finished(self) -> bool:
        """True if the turn was answered, finished or stopped, or if a later turn has begun."""
        return bool(self.fold.over)

    @property
    def is_waiting(self) -> bool:
        """True if the turn waits for a person's decision and has no other open call."""
        return self.fold.is_waiting

    @property
    def answer(self) -> AIMessage | None:
        """The answer: the last AI message, if that has no calls and was not paused by its provider."""
        stored = self.fold.answer
        message = self._bodies.get(stored.ordinal) if stored else None
        return message if isinstance(message, AIMessage) else None

    @property
    def open_calls(self) -> list[TurnCall]:
        """The calls without a result that may be run, in order, with the decisions on them."""
        return [self._decided(call) for call in self.fold.open_calls]

    @property
    def undecided(self) -> list[TurnCall]:
        """The calls without a result that wait for a person's decision, in order."""
        return [self._call(call) for call in self.fold.undecided]

    @property
    def refused(self) -> list[tuple[TurnCall, Decision]]:
        """The calls that a person decided not to run, and whose result was rewound."""
        decisions = self.fold.decisions
        return [(self._call(call), decisions[call.result_id]) for call in self.fold.refused]

    @property
    def without_result(self) -> list[TurnCall]:
        """All calls without a result, in order, even if the turn is over."""
        return [self._call(call) for call in self.fold.without_result]

    @property
    def paused(self) -> list[tuple[TurnCall, Pause]]:
        """The calls of a graph's interrupt with the decisions on them, in order; see `LoggedTurn.paused`."""
        waiting = self.fold.waiting
        return [(self._decided(call), waiting[call.result_id]) for call in self.fold.paused]

    def reviewed(self, message_id: str) -> list[tuple[TurnCall, Pause]]:
        """Return the calls of an AI message that wait or waited for a person, with the decisions on them, in order."""
        waiting = self.fold.waiting
        return [
            (self._decided(call), waiting[result_id])
            for result_id, call in self.fold.calls.items()
            if result_id in waiting and call.message.id == message_id
        ]

    def result(self, result_id: str) -> ToolMessage | None:
        """Return the result of the call with a `result_id`, None if it has no result."""
        stored = self.fold.results.get(result_id)
        message = self._bodies.get(stored.ordinal) if stored else None
        return message if isinstance(message, ToolMessage) else None

    def find_call(self, call_id: str) -> TurnCall | None:
        """Return the newest call with an id or a `result_id`; None if no call has it."""
        for call in reversed(self._calls.values()):
            if call_id in (call.id, call.result_id):
                return call
        return None

    def call_of_result(self, result_id: str) -> TurnCall | None:
        """Return the call with a `result_id`; None if no call has it."""
        return self._calls.get(result_id)

    def _call(self, logged: LoggedCall) -> TurnCall:
        return self._calls[logged.result_id]

    def _decided(self, logged: LoggedCall) -> TurnCall:
        """Return a call with the person's decision on it, if there is one, and the arguments of that decision."""
        call = self._call(logged)
        decision = self.fold.decisions.get(logged.result_id)
        if decision is None:
            return call
        args = call.args if decision.args is None else decision.args
        return call.model_copy(update={"args": args, "decision": decision})
