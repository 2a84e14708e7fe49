"""One turn as the log has it: its messages, the calls without a result, and the decisions about them.

A worker that takes a turn over, and one that repeats a request, know from it what is left to do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.exceptions import DecisionConflictError, InvalidInputError, TurnClosedError
from convstore.log.entry import EntryMessage
from convstore.log.facts.event import TurnEvent
from convstore.log.turns import LoggedTurn
from convstore.messages.cut_calls import cut_errors
from convstore.messages.filing import came_with, is_answer
from convstore.messages.media import block_type, is_media
from convstore.messages.tool_calls import Call, block_of, calls_of, result_ids
from convstore.messages.values import is_text
from convstore.values.json_form import DEEP_ARGUMENTS, has_few_levels
from convstore.values.turns import Decision, Pause, TurnCall

_UNREADABLE = "the arguments are no valid JSON object; call the tool again with valid arguments"

_BLOCKS = frozenset(
    {"text", "json", "search_result", "tool_reference", "custom_tool_call_output", "non_standard"}
)
"""Blocks other than media that a tool's result may have; any other dict is a value of the tool's own."""

_NOT_ASKED = sys.maxsize
"""Stands for the ordinal of a question that is not in the log yet: no message belongs to its turn."""

_NOT_RUN = (
    "The tool was not executed. Do not retry this tool call unless the user explicitly requests it."
)


@dataclass(slots=True)
class TurnRecord:
    """One turn as the log has it, with its messages; `log.turns` judges it.

    Attributes:
        fold: What the log says of it.
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
        """Return a record without messages; `question` is the ordinal of the turn's question, 0 if it has none."""
        return cls(LoggedTurn(question, turn_id))

    @classmethod
    def to_be_asked(cls, turn_id: str) -> TurnRecord:
        """Return the record of a turn whose question is not in the log yet; `add` finds it."""
        return cls.of(turn_id, _NOT_ASKED)

    @property
    def is_asked(self) -> bool:
        """True if the log has its question."""
        return self.fold.question != _NOT_ASKED

    @classmethod
    def read(cls, fold: LoggedTurn, messages: Iterable[BaseMessage]) -> TurnRecord:
        """Return the record of a turn that was folded, with its messages, decoded."""
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
        """Add what an entry has: its messages, stored and decoded, and its event. Costs what the entry has."""
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
            for call in _turn_calls(message, item.calls):
                self._calls[call.result_id] = call

    @property
    def turn_id(self) -> str:
        """Id of its question."""
        return self.fold.turn_id

    @property
    def decisions(self) -> dict[str, Decision]:
        """Decisions about calls, by the ids of their results."""
        return self.fold.decisions

    @property
    def waiting(self) -> dict[str, Pause]:
        """How calls wait for a person, decided or not, by the same ids."""
        return self.fold.waiting

    def is_ended_by(self, messages: Sequence[BaseMessage], event: TurnEvent | None) -> bool:
        """Return True if it is finished after these, with more than its question; if stopped, with a text."""
        if event and event.kind == "stop":
            said = [*self.messages, *messages]
            return any(isinstance(message, AIMessage) and message.text for message in said)
        if len(self.messages) + len(messages) <= 1:
            return False
        if event and event.ends:
            return True
        spoken = [
            message
            for message in messages
            if isinstance(message, AIMessage) and not came_with(message)
        ]
        return is_answer(spoken[-1]) if spoken else self.answer is not None

    def result(self, result_id: str) -> ToolMessage | None:
        """Return the result of a call by the call's `result_id`, None if it has none."""
        stored = self.fold.results.get(result_id)
        message = self._bodies.get(stored.ordinal) if stored else None
        return message if isinstance(message, ToolMessage) else None

    @property
    def answer(self) -> AIMessage | None:
        """Its answer: the last AI message, if that has no calls and was not paused by its provider."""
        stored = self.fold.answer
        message = self._bodies.get(stored.ordinal) if stored else None
        return message if isinstance(message, AIMessage) else None

    @property
    def is_ended(self) -> bool:
        """True if an event ended it: it was finished or stopped."""
        return self.fold.over in ("finished", "stopped")

    @property
    def is_stopped(self) -> bool:
        """True if it was stopped."""
        return self.fold.over == "stopped"

    @property
    def is_finished(self) -> bool:
        """True if it has its answer, was finished or stopped, or a later turn has begun."""
        return bool(self.fold.over)

    @property
    def is_waiting(self) -> bool:
        """True if all that is left to do is what a person has to decide."""
        return self.fold.is_waiting

    @property
    def is_done(self) -> bool:
        """True if it is in progress, and no call is open or waits for a person."""
        return not (self.is_finished or self.fold.without_result)

    @property
    def undecided(self) -> list[TurnCall]:
        """The calls without a result that wait for a person's decision, in order."""
        return [self._calls[call.result_id] for call in self.fold.undecided]

    @property
    def refused(self) -> list[tuple[TurnCall, Decision]]:
        """The calls that a person decided not to run, and whose result was rewound."""
        return [
            (self._calls[call.result_id], self.decisions[call.result_id])
            for call in self.fold.refused
        ]

    @property
    def open_calls(self) -> list[TurnCall]:
        """The calls without a result that may be run, in order, as they were decided."""
        return [self._decided(self._calls[call.result_id]) for call in self.fold.open_calls]

    @property
    def without_result(self) -> list[TurnCall]:
        """All calls without a result, in order, whatever became of the turn."""
        return [self._calls[call.result_id] for call in self.fold.without_result]

    @property
    def paused(self) -> list[tuple[TurnCall, Pause]]:
        """The calls of the last step that a graph's interrupt is about, as they were decided, in order.

        Calls of an interrupt that was resumed are left out: one of them was approved and has its result.
        """
        if self.is_finished:
            return []
        unrun = self.unrun
        said = self.fold.said
        asked = [
            self._decided(self._calls[id_])
            for id_ in (said.calls if said else ())
            if id_ in self.waiting
        ]
        resumed = {
            self.waiting[call.result_id].interrupt for call in asked if call.result_id not in unrun
        }
        found = [(call, self.waiting[call.result_id]) for call in asked]
        return [(call, pause) for call, pause in found if pause.interrupt not in {"", *resumed}]

    @property
    def unrun(self) -> set[str]:
        """Ids of the results of calls that were not run: they have none, or the one that a decision gave."""
        if self.is_finished:
            return set()
        refused = {id_ for id_, decision in self.decisions.items() if not decision.runs}
        return {call.result_id for call in self.fold.without_result} | refused

    def find_call(self, call_id: str) -> TurnCall | None:
        """Return the newest call with an id, or the one whose result has it; None if no call has it."""
        for call in reversed(self._calls.values()):
            if call_id in (call.id, call.result_id):
                return call
        return None

    def call_of_result(self, result_id: str) -> TurnCall | None:
        """Return the call with a `result_id`; None if no call has it."""
        return self._calls.get(result_id)

    def waits(self, result_id: str) -> bool:
        """Return True if the call with a `result_id` waits for a person's decision."""
        return any(result_id == call.result_id for call in self.undecided)

    def _decided(self, call: TurnCall) -> TurnCall:
        decision = self.decisions.get(call.result_id)
        if decision is None:
            return call
        args = call.args if decision.args is None else decision.args
        return call.model_copy(update={"args": args, "decision": decision})


def _calls(messages: Iterable[BaseMessage]) -> list[TurnCall]:
    """Return all calls of some messages, in order."""
    found = list[TurnCall]()
    for message in messages:
        if isinstance(message, AIMessage):
            found += _turn_calls(message, result_ids(message))
    return found


def _turn_calls(message: AIMessage, result_ids: Iterable[str]) -> list[TurnCall]:
    """Return the calls of a message, given the ids of their results."""
    errors = cut_errors(message)
    found = list[TurnCall]()
    for call, result_id in zip(calls_of(message), result_ids, strict=True):
        args, unreadable = _arguments(message, call)
        error = errors.get(call.position, unreadable)
        made = TurnCall(
            id=call.id,
            name=call.tool,
            namespace=str(block_of(message, call.id).get("namespace") or ""),
            args={} if error else args,
            error=error,
            message_id=str(message.id),
            result_id=result_id,
        )
        found.append(made)
    return found


def _arguments(message: AIMessage, call: Call) -> tuple[dict[str, Any], str]:
    """Return the arguments of a call, and why it cannot be run, "" if it can."""
    if call.position >= len(message.tool_calls):
        invalid = message.invalid_tool_calls[call.position - len(message.tool_calls) :][:1]
        return {}, str((invalid and invalid[0].get("error")) or _UNREADABLE)
    given = message.tool_calls[call.position]["args"]
    return (dict(given), "") if has_few_levels(given) else ({}, DEEP_ARGUMENTS)


def pairs_of(messages: Sequence[BaseMessage]) -> list[tuple[TurnCall, ToolMessage | None]]:
    """Return the calls of some messages in order, each with its result among them; None for one without.

    A result answers the call whose `result_id` it has, else the last open one with its call id, as views pair them.
    """
    calls = list[TurnCall]()
    open_ = list[TurnCall]()
    results = dict[str, ToolMessage]()
    for message in messages:
        new = _calls([message])
        calls += new
        open_ += new
        if isinstance(message, ToolMessage):
            matching = [call for call in open_ if call.id == message.tool_call_id]
            own = [call for call in matching if call.result_id == message.id]
            for matched in (own or matching[-1:])[:1]:
                open_.remove(matched)
                results[matched.result_id] = message
    return [(call, results.get(call.result_id)) for call in calls]


def calls_without_result(messages: Sequence[BaseMessage]) -> list[TurnCall]:
    """Return the calls of some messages that have no result among them, in order."""
    return [call for call, result in pairs_of(messages) if result is None]


def paused(record: TurnRecord, pauses: Mapping[str, Pause]) -> list[TurnEvent]:
    """Return the events that record how calls wait, by the ids of their results; none for those that do so already.

    A repeated request asks again, under another interrupt; the newest is the one that the agent can be resumed from.
    """
    unrun = record.unrun
    new = [id_ for id_ in pauses if id_ in unrun and record.waiting.get(id_) != pauses[id_]]
    return [TurnEvent("wait", record.turn_id, id_, json.dumps(pauses[id_])) for id_ in new]


def decidable(record: TurnRecord, result_id: str, decision: Decision) -> TurnCall | None:
    """Return the call that a decision is about; None if the same was decided before."""
    call = record.call_of_result(result_id)
    if call is None:
        raise InvalidInputError(
            f"turn {record.turn_id!r} has no call with the result_id {result_id!r}; pass one of "
            "its waiting_calls"
        )
    earlier = record.decisions.get(call.result_id)
    if earlier == decision:
        return None
    if earlier is not None:
        raise DecisionConflictError(call.id, verdict=earlier.verdict, by=earlier.by)
    if record.is_finished:
        raise TurnClosedError(record.turn_id)
    if call.result_id not in record.waiting:
        raise InvalidInputError(f"call {call.id!r} does not wait for a decision; see `wait_for`")
    allowed = record.waiting[call.result_id].allowed
    if allowed and decision.verdict not in allowed:
        raise InvalidInputError(
            f"the agent takes {' or '.join(allowed)} for call {call.id!r}, not {decision.verdict}"
        )
    return call


def results_of(call: TurnCall, decision: Decision) -> list[ToolMessage]:
    """Return the result that a decision gives at once: of a rejected call, or one that a person answered.

    A rejection reads as LangChain's ``HumanInTheLoopMiddleware`` writes it.
    """
    if decision.verdict == "respond":
        return [result_of(call, decision.message)]
    if decision.verdict == "reject":
        rejected = f"User rejected the tool call for `{call.name}` with "
        reason = f"reason: {decision.message}" if decision.message else f"id {call.id}. {_NOT_RUN}"
        return [result_of(call, rejected + reason, is_error=True)]
    return []


def result_of(call: TurnCall, content: Any, *, is_error: bool = False) -> ToolMessage:
    """Return the result of a call, with the id by which it is found.

    Raises:
        InvalidInputError: The content is neither a text nor a list of content blocks, and JSON cannot express it.
    """
    status: Literal["error", "success"] = "error" if is_error else "success"
    return ToolMessage(
        _shown(content), tool_call_id=call.id, name=call.name, id=call.result_id, status=status
    )


def _shown(content: Any) -> Any:
    """Return a text or content blocks as they are, and any other value as JSON."""
    if is_text(content) or (type(content) is list and content and all(map(_is_block, content))):
        return content
    try:
        return json.dumps(content, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            "content must be a text, a list of content blocks or a value that JSON can express, "
            f"not {error}"
        ) from error


def _is_block(value: Any) -> bool:
    return block_type(value) in _BLOCKS or is_media(value)
