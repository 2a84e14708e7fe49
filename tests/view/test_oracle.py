"""The oracle of views has the properties that the rule promises; only then can it judge the store."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Decision, Oracle, Record, count_letters, decide
from properties import examples
from view_scripts import Load, Script, policies

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
def test_only_what_is_unseen_exceeds_the_budget(chosen: random.Random, budget: int) -> None:
    """A view is larger than the budget only if what the model has not read yet is; results kept whole apart."""
    for policy, _, decision in replayed(Script(chosen, budget, policies=4), policies(chosen, budget, count=4), 12):
        if policy.stub_tools == "finished_turns" and not policy.never_stub:
            assert policy.max_tokens is not None
            assert decision.size <= max(policy.max_tokens, decision.unseen)


@given(chosen=CHOICES, budget=BUDGETS)
@examples(30)
def test_deciding_twice_changes_nothing(chosen: random.Random, budget: int) -> None:
    """A view decided from the record that it stored is the same, and stores the same."""
    script = Script(chosen, budget, policies=4)
    for policy, _, decision in replayed(script, policies(chosen, budget, count=4), 12):
        again = decide(script.log, policy, decision.record)
        assert (again.shown, again.record) == (decision.shown, decision.record)


@given(chosen=CHOICES, budget=BUDGETS)
@examples(30)
def test_marks_move_forward_only(chosen: random.Random, budget: int) -> None:
    """No mark of a record moves back, unless a rewind made the record count as none."""
    script = Script(chosen, budget, policies=4)
    for policy, before, decision in replayed(script, policies(chosen, budget, count=4), 12):
        if before and decision.record and Oracle(script.log, policy).valid(before) == before:
            assert all(new >= old for new, old in zip(decision.record[:3], before[:3], strict=True))


@given(chosen=CHOICES, budget=BUDGETS)
@examples(30)
def test_a_view_that_fits_stores_nothing(chosen: random.Random, budget: int) -> None:
    """A log whose view fits the budget, with what is in progress whole, has no record."""
    script = Script(chosen, budget)
    for policy, before, decision in replayed(script, [HistoryPolicy(max_tokens=budget)], 12):
        if before is None:
            oracle = Oracle(script.log, policy)
            fits = oracle.size(oracle.marks(oracle.valid(None))) <= budget
            assert fits == (decision.record is None) or decision.is_excursion


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
