"""A record of a turn costs a step what the step has, however long the turn is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.append.batch import prepare_batch
from convstore.append.compose import compose_entry
from convstore.log.entry import Totals
from convstore.log.turn_record import TurnRecord
from convstore.messages.tokens import NamedCounter
from convstore.messages.values import Codec
from convstore.turns.naming import Naming

COUNTER = NamedCounter(
    "characters", lambda messages: sum(len(message.text) for message in messages)
)


class LongTurn:
    """A turn that grows step by step."""

    def __init__(self) -> None:
        self.record, self.tail = TurnRecord.of("q1", 1), Totals()
        self.append(HumanMessage("Read the whole library.", id="q1"))

    def append(self, *messages: BaseMessage) -> None:
        """Name some messages, and add them as an entry."""
        named = Naming(self.record, "q1", self.tail.messages + 1).named(messages).messages
        entry = compose_entry(
            prepare_batch(named, codec=Codec(), counter=COUNTER),
            self.tail,
            at=datetime(2026, 11, 28, tzinfo=UTC),
        )
        self.tail = entry.totals
        self.record.add(entry.messages, named)

    def step(self, number: int) -> None:
        """Add a call and its result, and look at the turn as a loop does."""
        call = AIMessage(
            "", id=f"a{number}", tool_calls=[{"name": "read", "args": {}, "id": f"c{number}"}]
        )
        self.append(call)
        [open_call] = self.record.open_calls
        assert not self.record.is_finished
        self.append(ToolMessage("read", tool_call_id=f"c{number}", id=open_call.result_id))
        assert self.record.open_calls == []
        assert self.record.answer is None


def calls_of(function: Callable[..., Any], *args: Any) -> int:
    """Return the number of calls of Python functions that a call makes."""
    number = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal number
        number += event == "call"

    sys.setprofile(count)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return number


def test_a_step_costs_at_the_end_of_a_long_turn_what_it_cost_at_its_beginning() -> None:
    """The number of calls is the same after 10 messages and after 200."""
    turn = LongTurn()
    for number in range(5):
        turn.step(number)
    early = calls_of(turn.step, 1_000)
    for number in range(5, 100):
        turn.step(number)
    assert calls_of(turn.step, 1_001) <= early + 2
