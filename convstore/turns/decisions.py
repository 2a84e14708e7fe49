"""Check what a person decides about a call, and make the results that follow from it."""

from __future__ import annotations

from typing import Literal

from langchain_core.messages import ToolMessage

from convstore.exceptions import DecisionConflictError, InvalidInputError, TurnClosedError
from convstore.log.turn_record import TurnRecord
from convstore.values.turns import Decision, TurnCall


def decidable(record: TurnRecord, call_id: str, decision: Decision) -> TurnCall | None:
    """Return the call that a decision is about; None if the same was decided before."""
    call = record.find_call(call_id)
    if sum(one.id == call_id for one in record.undecided) > 1:
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
    return call


def results_of(call: TurnCall, decision: Decision) -> list[ToolMessage]:
    """Return the result that a decision gives at once: of a rejected call, or one that a person answered."""
    if decision.verdict == "respond":
        return [result_of(call, decision.message)]
    if decision.verdict == "reject":
        reason = f": {decision.message}" if decision.message else "."
        return [result_of(call, f"A person rejected this call{reason}", is_error=True)]
    return []


def result_of(call: TurnCall, content: str, *, is_error: bool = False) -> ToolMessage:
    """Return the result of a call, with the id by which it is found."""
    status: Literal["error", "success"] = "error" if is_error else "success"
    return ToolMessage(content, tool_call_id=call.id, name=call.name, id=call.result_id, status=status)
