"""The oracle of views has the properties that the rule promises; only then can it judge the store."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Decision, Oracle, Record, count_letters, decide
from properties import examples
from view_scripts import Load, Script

from convstore import HistoryPolicy

BUDGETS = st.sampled_from([2_700, 3_000])
CHOICES = st.randoms(use_true_random=False)


def replayed(
    script: Script, used: list[HistoryPolicy], calls: int
) -> Iterator[tuple[HistoryPolicy, Record | None, Decision]]:
    """Yield each view of a script: its policy, the record before it, and the decision."""
    records: dict[int, Record | None] = {}
    for event in script.events(calls):
        if isinstance(event, Load):
            policy, before = used[event.policy], records.get(event.policy)
            decision = decide(script.log, policy, before)
            yield policy, before, decision
            records[event.policy] = decision.record


@given(chosen=CHOICES, budget=BUDGETS)
@examples(30)
def test_the_newest_turn_is_whole_in_a_first_call(chosen: random.Random, budget: int) -> None:
    """In each first call that it fits in, the newest finished turn is whole but for stubs and settled steps."""
    script = Script(chosen, budget, rewinds=0)
    for policy, before, decision in replayed(script, [HistoryPolicy(max_tokens=budget)], 12):
        oracle = Oracle(script.log, policy)
        newest, now = oracle.newest, oracle.now
        if not newest or not now or now.steps or (before and newest.first <= before.stubs_through):
            continue
        shown = [one for one in decision.shown if newest.first <= one.line.ordinal <= newest.last]
        whole = [one if one.form == "stub" else one._replace(form="whole", limit=None) for one in shown]
        if decision.unseen + oracle.size_of(newest) <= budget:
            assert shown == whole


def test_the_size_of_a_view_is_that_of_its_messages() -> None:
    """Sizes by which the oracle decides are those that its counter gives for the messages shown."""
    for seed in range(10):
        chosen = random.Random(seed)
        script = Script(chosen, 2_000)
        for _, _, decision in replayed(script, [HistoryPolicy(max_tokens=2_000)], 12):
            assert decision.size == pytest.approx(count_letters(decision.messages()), abs=60)
