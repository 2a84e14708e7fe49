"""Record a person's decisions about waiting calls, without a lease."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.append.condition import Condition, TailMoved
from convstore.exceptions import (
    DecisionConflictError,
    InvalidInputError,
    TurnClosedError,
    UnknownMessageError,
)
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.turn_record import TurnRecord
from convstore.messages.turn_calls import make_result
from convstore.runtime.retrying import until_written
from convstore.turns.held import TurnServices
from convstore.turns.naming import Naming
from convstore.turns.record_reader import FoundTurn
from convstore.turns.variants import check_resumable
from convstore.values.scope import Scope
from convstore.values.turns import Decision, TurnCall

_NOT_RUN = (
    "The tool was not executed. Do not retry this tool call unless the user explicitly requests it."
)


class Decisions:
    """Records decisions in all conversations of a store."""

    def __init__(self, services: TurnServices) -> None:
        self._records = services.records
        self._variants = services.variants
        self._writing = WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Scope], asyncio.Lock]()

    async def _in_order(self, scope: Scope, write: Callable[[], Awaitable[None]]) -> None:
        """Append at the end of the log, one write of this process after the other.

        Each write reads the turn. If they ran concurrently, approving 60 calls at once would take a minute of retries.
        """
        async with self._writing.setdefault((asyncio.get_running_loop(), scope), asyncio.Lock()):
            await until_written(write, TailMoved)

    async def decide(self, scope: Scope, turn_id: str, result_id: str, decision: Decision) -> None:
        """Record a person's decision about a call; see `Conversation.decide`."""

        async def write() -> None:
            place, paused_last = await self._find_call(scope, turn_id, result_id)
            call = _call_to_decide(place.record, result_id, decision)
            if call is not None:
                check_resumable(place.record, call, place.hidden, paused_last)
                await self._record(scope, place, call, decision)

        await self._in_order(scope, write)

    async def _record(
        self, scope: Scope, place: FoundTurn, call: TurnCall, decision: Decision
    ) -> None:
        """Append a decision, with the result of a rejected or answered call."""
        record = place.record
        branch = place.hidden
        event = TurnEvent(
            "decide", record.turn_id, call.result_id, json.dumps(decision.model_dump())
        )
        key = record.turn_id
        if branch:
            event = branch.records(event)
            key = branch.key

        async def write(named: list[BaseMessage], known: frozenset[str]) -> None:
            condition = Condition(place.tail, branch=branch, known=known)
            await self._variants.writer.append(
                scope, named, condition=condition, facts=EVENT.put(event)
            )

        naming = Naming(record, key, place.tail.messages + 1)
        await naming.append(results_of(call, decision), write)

    async def _find_call(self, scope: Scope, turn_id: str, result_id: str) -> tuple[FoundTurn, str]:
        """Return the turn or variant in which a call waits or waited, and the variant in which an agent paused last."""
        found, paused_last = await self._variants.with_call(scope, turn_id, result_id)
        if not any(variant.record.fold.waits(result_id) for variant in found):
            try:
                turn = await self._records.read(scope, turn_id)
            except UnknownMessageError:  # its question is in a variant only
                if not found:
                    raise
            else:
                waits = turn.record.fold.waits(result_id)
                if not found or (waits and not found[0].record.paused):
                    return turn, paused_last
        return max(found, key=lambda place: place.record.fold.waits(result_id)), paused_last


def _as_json(decision: Decision) -> str:
    """Return a decision as JSON, in which NaN equals NaN, and 1 does not equal True."""
    return json.dumps(decision.model_dump(), sort_keys=True)


def _call_to_decide(record: TurnRecord, result_id: str, decision: Decision) -> TurnCall | None:
    """Return the call of a decision; None if the same decision is recorded already."""
    call = record.call_of_result(result_id)
    if call is None:
        raise InvalidInputError(
            f"turn {record.turn_id!r} has no call with the result_id {result_id!r}; pass one of "
            "its waiting_calls"
        )
    earlier = record.fold.decisions.get(call.result_id)
    if earlier is not None and _as_json(earlier) == _as_json(decision):
        return None
    if earlier is not None:
        raise DecisionConflictError(call.id, verdict=earlier.verdict, by=earlier.by)
    if record.is_finished:
        raise TurnClosedError(record.turn_id)
    if call.result_id not in record.fold.waiting:
        raise InvalidInputError(f"call {call.id!r} does not wait for a decision; see `wait_for`")
    allowed = record.fold.waiting[call.result_id].allowed
    if allowed and decision.verdict not in allowed:
        raise InvalidInputError(
            f"the agent takes {' or '.join(allowed)} for call {call.id!r}, not {decision.verdict}"
        )
    return call


def results_of(call: TurnCall, decision: Decision) -> list[ToolMessage]:
    """Return the result of a rejected call, or of one that the person answered; nothing for an approved call.

    The text of a rejection is that of LangChain's ``HumanInTheLoopMiddleware``.
    """
    if decision.verdict == "respond":
        return [make_result(call, decision.message)]
    if decision.verdict == "reject":
        rejected = f"User rejected the tool call for `{call.name}` with "
        reason = f"reason: {decision.message}" if decision.message else f"id {call.id}. {_NOT_RUN}"
        return [make_result(call, rejected + reason, is_error=True)]
    return []
