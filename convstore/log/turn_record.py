"""What the log says of one turn: its messages, the calls without a result, and what a person decided about them.

A fold over the entries from the turn's question on. A worker that takes a turn over, and one that repeats a request,
know from it what is left to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.exceptions import DecisionConflictError, InvalidInputError, TurnClosedError
from convstore.log.turn_event import TurnEvent
from convstore.messages.filing import Filing, is_answer, is_question, turn_of
from convstore.messages.media import block_type, is_media
from convstore.messages.tool_calls import Call, calls_of, result_ids
from convstore.messages.values import is_text
from convstore.values.json_form import DEEP_ARGUMENTS, has_few_levels
from convstore.values.turns import Decision, Pause, TurnCall

_UNREADABLE = "the arguments are no valid JSON object; call the tool again with valid arguments"

_BLOCKS = frozenset({"text", "json", "search_result", "tool_reference", "custom_tool_call_output", "non_standard"})
"""Blocks other than media that a tool's result may have; any other dict is a value of the tool's own."""

_NOT_RUN = "The tool was not executed. Do not retry this tool call unless the user explicitly requests it."


_NO_ORDINALS: Mapping[str, int] = {}


@dataclass(slots=True)
class TurnRecord:
    """One turn as the log has it.

    Attributes:
        turn_id: Id of its question.
        messages: Its messages in order, the question first.
        is_newest: False if a later turn has begun.
        mark: "finish" or "stop" if an event ended it, else "".
        waiting: How the calls that wait for a person do so, decided or not, by the ids of their results.
        decisions: What was decided, by the same ids.
        ordinals: Ordinals of its messages, by their ids.
        others: Ids of other questions, whose messages are left out; "" for that of a result of an earlier call.
        filing: Finds the question of each message.
    """

    turn_id: str
    messages: list[BaseMessage] = field(default_factory=list)
    is_newest: bool = True
    mark: str = ""
    waiting: dict[str, Pause] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    ordinals: dict[str, int] = field(default_factory=dict)
    others: set[str] = field(default_factory=lambda: {""})
    filing: Filing = field(default_factory=lambda: Filing(None))

    def add(
        self,
        messages: Iterable[BaseMessage],
        event: TurnEvent | None = None,
        ordinals: Mapping[str, int] = _NO_ORDINALS,
    ) -> None:
        """Add what an entry has of the turn; messages that are there already are left out."""
        for message in messages:
            id_ = str(message.id)
            if self.filing.owner(message) not in self.others and id_ not in self.ordinals:
                self.messages.append(message)
                self.ordinals[id_] = ordinals.get(id_, 0)
        if event is None or event.turn != self.turn_id:
            return
        if event.kind == "wait":
            interrupt, is_batch, allowed = json.loads(event.values) if event.values else Pause()
            self.waiting[event.call] = Pause(interrupt, is_batch, tuple(allowed))
        elif event.kind == "decide":
            self.decisions[event.call] = Decision(**json.loads(event.values))
        elif event.ends:
            self.mark = event.kind

    def is_ended_by(self, messages: Sequence[BaseMessage], event: TurnEvent | None) -> bool:
        """Return True if it is finished after these, with more than its question; if stopped, with a text."""
        whole = [*self.messages, *messages]
        if event and event.kind == "stop":
            return any(isinstance(message, AIMessage) and message.text for message in whole)
        return len(whole) > 1 and (bool(event and event.ends) or TurnRecord(self.turn_id, whole).answer is not None)

    def end_of(self, messages: Sequence[BaseMessage]) -> int:
        """Return the number of messages before the next question."""
        later = (at for at, message in enumerate(messages) if is_question(message) and message.id != self.turn_id)
        return next(later, len(messages))

    def unknown(self, messages: Iterable[BaseMessage]) -> set[str]:
        """Return the ids that messages name as their questions, and that may be those of other turns."""
        return {turn for message in messages if (turn := turn_of(message))} - {self.turn_id} - self.others

    def result(self, result_id: str) -> ToolMessage | None:
        """Return the result of a call by the call's `result_id`, None if it has none.

        The result has another id if an earlier one was rewound.
        """
        for call, result in pairs_of(self.messages):
            if call.result_id == result_id:
                return result
        return None

    @property
    def answer(self) -> AIMessage | None:
        """The last message if it is an answer: an AI message without calls, not paused by its provider."""
        last = self.messages[-1] if self.messages else None
        return last if isinstance(last, AIMessage) and is_answer(last) else None

    @property
    def is_finished(self) -> bool:
        """True if it has its answer, was finished or stopped, or a later turn has begun."""
        return bool(self.mark) or not self.is_newest or self.answer is not None

    @property
    def is_waiting(self) -> bool:
        """True if all that is left to do is what a person has to decide."""
        return not self.is_finished and bool(self.undecided) and not self.open_calls

    @property
    def undecided(self) -> list[TurnCall]:
        """The calls without a result that wait for a person's decision, in order."""
        return [call for call in self._without_result() if self._waits(call)]

    @property
    def refused(self) -> list[tuple[TurnCall, Decision]]:
        """The calls that a person decided not to run, and whose result was rewound."""
        decided = [(call, self.decisions.get(call.result_id)) for call in self._without_result()]
        return [(call, decision) for call, decision in decided if decision and not decision.runs]

    @property
    def open_calls(self) -> list[TurnCall]:
        """The calls without a result that may be run, in order, as they were decided.

        An agent that pauses for all calls of a message runs no call of it before.
        """
        waiting = [*self.undecided, *(call for call, _ in self.refused)]
        paused = {call.message_id for call in waiting if self.waiting[call.result_id].is_batch}
        ready = [call for call in self._without_result() if call not in waiting and call.message_id not in paused]
        return [self._decided(call) for call in ready]

    @property
    def paused(self) -> list[tuple[TurnCall, Pause]]:
        """The calls of the last step that a graph's interrupt is about, as they were decided, in order.

        None of an interrupt that was resumed: one of its calls was approved and has its result.
        """
        unrun, said = self.unrun, [message for message in self.messages if isinstance(message, AIMessage)][-1:]
        asked = [self._decided(call) for call in _calls(said) if call.result_id in self.waiting]
        resumed = {self.waiting[call.result_id].interrupt for call in asked if call.result_id not in unrun}
        found = [] if self.is_finished else [(call, self.waiting[call.result_id]) for call in asked]
        return [(call, pause) for call, pause in found if pause.interrupt not in {"", *resumed}]

    @property
    def unrun(self) -> set[str]:
        """Ids of the results of calls that were not run: they have none, or the one that a decision gave."""
        refused = {id_ for id_, decision in self.decisions.items() if not decision.runs}
        return {call.result_id for call in self._without_result()} | (set() if self.is_finished else refused)

    def find_call(self, call_id: str) -> TurnCall | None:
        """Return the newest call with an id, or the one whose result has it; None if no call has it."""
        calls = reversed(_calls(self.messages))
        return next((call for call in calls if call_id in (call.id, call.result_id)), None)

    def waits(self, call_id: str) -> bool:
        """Return True if a call with an id, or whose result has it, waits for a person's decision."""
        return any(call_id in (call.id, call.result_id) for call in self.undecided)

    def _waits(self, call: TurnCall) -> bool:
        return call.result_id in self.waiting and call.result_id not in self.decisions

    def _without_result(self) -> list[TurnCall]:
        return [] if self.is_finished else calls_without_result(self.messages)

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
            named = zip(calls_of(message), result_ids(message), strict=True)
            found += [_turn_call(message, call, id_) for call, id_ in named]
    return found


def _turn_call(message: AIMessage, call: Call, result_id: str) -> TurnCall:
    args: dict[str, Any] = {}
    error = ""
    if call.position >= len(message.tool_calls):
        invalid = message.invalid_tool_calls[call.position - len(message.tool_calls) :][:1]
        error = str((invalid and invalid[0].get("error")) or _UNREADABLE)
    elif has_few_levels(given := message.tool_calls[call.position]["args"]):
        args = dict(given)
    else:
        error = DEEP_ARGUMENTS
    return TurnCall(id=call.id, name=call.tool, args=args, error=error, message_id=str(message.id), result_id=result_id)


def pairs_of(messages: Sequence[BaseMessage]) -> list[tuple[TurnCall, ToolMessage | None]]:
    """Return the calls of some messages in order, each with its result among them; None for one without.

    A result answers the call whose `result_id` it has, else the last open one with its call id, as views pair them.
    """
    calls, open_, results = list[TurnCall](), list[TurnCall](), dict[str, ToolMessage]()
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


def decidable(record: TurnRecord, call_id: str, decision: Decision) -> TurnCall | None:
    """Return the call that a decision is about; None if the same was decided before."""
    call = record.find_call(call_id)
    if sum(other.id == call_id for other in record.undecided) > 1:
        raise InvalidInputError(f"several calls that wait have the id {call_id!r}; pass the result_id of one of them")
    if call is None:
        raise InvalidInputError(f"turn {record.turn_id!r} has no call {call_id!r}")
    earlier = record.decisions.get(call.result_id)
    if earlier == decision:
        return None
    if earlier is not None:
        raise DecisionConflictError(call_id, verdict=earlier.verdict, by=earlier.by)
    if record.is_finished:
        raise TurnClosedError(record.turn_id)
    if call.result_id not in record.waiting:
        raise InvalidInputError(f"call {call_id!r} does not wait for a decision; see `wait_for`")
    allowed = record.waiting[call.result_id].allowed
    if allowed and decision.verdict not in allowed:
        raise InvalidInputError(f"the agent takes {' or '.join(allowed)} for call {call_id!r}, not {decision.verdict}")
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
    return ToolMessage(_shown(content), tool_call_id=call.id, name=call.name, id=call.result_id, status=status)


def _shown(content: Any) -> Any:
    """Return a text or content blocks as they are, and any other value as JSON."""
    if is_text(content) or (type(content) is list and content and all(map(_is_block, content))):
        return content
    try:
        return json.dumps(content, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"content must be a text, a list of content blocks or a value that JSON can express, not {error}"
        ) from error


def _is_block(value: Any) -> bool:
    return block_type(value) in _BLOCKS or is_media(value)
