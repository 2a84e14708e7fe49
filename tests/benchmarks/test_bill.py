"""The bill of a conversation: what counts as new, as a broken prefix and as above the budget, and the whole table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import AsyncMongoClient

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import bill
import bill_workloads

_LONG = "whale " * 4_000


def test_messages_that_an_earlier_call_began_with_are_not_new() -> None:
    """A call that continues the call before pays for its last messages only; one that shares nothing pays for all."""
    found, first = bill.Bill(), [HumanMessage("Do orcas sleep?")]
    continued = [*first, AIMessage("Yes."), HumanMessage("How long?")]
    for messages in (first, continued, [AIMessage("Yes.")]):
        found.add(messages, budget=1_000)
    tokens = [
        sum(bill.Sent.of(message).tokens for message in call)
        for call in (continued, continued[1:2])
    ]
    assert found.calls == 3
    assert found.new == sum(tokens)
    assert found.sent == found.new + bill.Sent.of(first[0]).tokens
    assert found.broken == 0  # nothing of size was lost


def test_a_call_that_drops_a_long_beginning_breaks_the_prefix() -> None:
    """More than 2,000 tokens of the call before that are not shared count as a broken prefix."""
    found, whole = bill.Bill(), [HumanMessage("Hi"), AIMessage(_LONG), HumanMessage("And then?")]
    for messages in (whole, whole[2:]):
        found.add(messages, budget=100_000)
    assert found.broken == 1


def test_a_long_question_is_not_above_the_budget() -> None:
    """Only calls whose read messages exceed the budget count."""
    found = bill.Bill()
    found.add([HumanMessage(_LONG)], budget=1_000)
    found.add([HumanMessage(_LONG), AIMessage("Yes."), HumanMessage("Why?")], budget=1_000)
    assert found.over == 1


def test_generated_conversations_hold_facts_and_are_the_same_each_time() -> None:
    """Each shape has facts that stand in one message, and a seed fixes all texts."""
    for workload, again in zip(
        bill_workloads.generated(scale=0.1), bill_workloads.generated(scale=0.1), strict=True
    ):
        assert workload.messages == again.messages
        facts = bill_workloads.facts_of(workload.messages, limit=10)
        assert len(facts) == 10
        assert all(fact in str(workload.messages[index].content) for index, fact in facts)


@pytest.mark.slow
async def test_each_strategy_has_a_line(server_uri: str, database_name: str) -> None:
    """The full history costs and reaches 100 %, and results that convstore leaves out are one call away."""
    workload = next(
        workload for workload in bill_workloads.generated(scale=0.1) if workload.name == "retrieval"
    )
    async with AsyncMongoClient(server_uri) as client:
        bills = await bill.bills_of(
            workload, database=client[f"{database_name}_bill"], budget=8_000
        )
        await client.drop_database(f"{database_name}_bill")
    full, stored = bills["full history"], bills["convstore"]
    assert full.in_view == full.facts > stored.in_view
    assert stored.sent < full.sent
    assert stored.one_call_away > stored.in_view
    assert len(list(bill.table("retrieval", bills))) == 1 + len(bills)
    assert "convstore with summaries" in bill.chart(bills)
