"""The rule of views, over logs of all shapes: forward only, within the budget, whole until the budget is exceeded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from properties import examples
from strategies import PureLog, Round, log_of, policies, turn, turns

from convstore import HistoryPolicy
from convstore.log.rows import Row, is_finished, rows_of
from convstore.view import active_rows as views
from convstore.view.render import View
from convstore.view.rule import ViewPlan, _MarkChooser

_BEGINNINGS: list[list[BaseMessage]] = [
    [],
    [SystemMessage("rules " * 9, id="s")],
    [SystemMessage("one", id="s1"), SystemMessage("two", id="s2")],
    [AIMessage("Hello, what can I do for you?", id="g")],
    [SystemMessage("rules", id="s"), AIMessage("Hello!", id="g")],
]
_long = st.lists(turns, min_size=8, max_size=18)
scripts = st.one_of(_long, _long, st.lists(turns, min_size=1, max_size=3))
beginnings = st.sampled_from(_BEGINNINGS)
few_examples = examples(40)
_Script = Sequence[tuple[Sequence[Round], int, int]]
_Call = tuple[PureLog, Row, ViewPlan, View]


def _calls(log: PureLog, policy: HistoryPolicy) -> Iterator[_Call]:
    """The log after each entry, with the plan and the view of a load that stores the record."""
    record = (1, 0, 0)
    for entry in log.entries:
        earlier = log.until(entry.number)
        plan = earlier.decide(policy, record)
        assert plan is not None
        record = plan.stored
        yield earlier, rows_of(earlier.entries)[-1], plan, earlier.rendered(policy, plan)


def _unseen(log: PureLog, policy: HistoryPolicy) -> int:
    """Size of what the model has not read yet: the question of the turn in progress and its last step."""
    rows = [
        row
        for row in rows_of(log.entries)
        if policy.view == "full" or row.message.type in ("human", "system")
    ]
    first = [row.message.tokens for row in rows if row.message.type == "system"]
    turn_rows = [row for row in rows if row.turn == rows[-1].turn and row.message.type != "system"]
    if is_finished(rows):
        return sum(first)
    begins = [index for index, row in enumerate(turn_rows) if row.message.type == "ai"]
    head = turn_rows[: begins[0]] if begins else turn_rows
    last = turn_rows[begins[-1] :] if begins else []
    made_up = 25 * sum(len(row.message.calls) for row in last)
    return sum(first) + sum(row.message.tokens for row in [*head, *last]) + made_up


# ---------------------------------------------------------------------------------------------------------------------
# Promise 6


@given(scripts, beginnings, policies)
@few_examples
def test_the_marks_never_move_back(
    script: _Script, begin: list[BaseMessage], policy: HistoryPolicy
) -> None:
    """Start, shortening and stubs of a record only move forward while the log grows."""
    records = [plan.stored for *_, plan, _ in _calls(log_of(script, begin=begin), policy)]
    assert all(
        old <= new
        for earlier, later in pairwise(records)
        for old, new in zip(earlier, later, strict=True)
    )


@given(scripts, beginnings, policies)
@few_examples
def test_deciding_twice_changes_nothing(
    script: _Script, begin: list[BaseMessage], policy: HistoryPolicy
) -> None:
    """With the record that a plan stores, the same log gives the same view and moves nothing."""
    for log, _, plan, view in _calls(log_of(script, begin=begin), policy):
        again = log.decide(policy, plan.stored)
        assert again is not None
        assert again.stored == plan.stored
        assert log.rendered(policy, again).messages == view.messages


@given(scripts, beginnings, policies)
@few_examples
def test_the_marks_of_a_stamp_give_the_view_again(
    script: _Script, begin: list[BaseMessage], policy: HistoryPolicy
) -> None:
    """Rendering alone rebuilds a past view, excursions too."""
    for log, _, plan, view in _calls(log_of(script, begin=begin), policy):
        assert log.again(policy, plan.marks).messages == view.messages


@given(scripts, beginnings, st.integers(300, 4_000))
@few_examples
def test_each_view_begins_with_the_one_before_unless_a_mark_moved(
    script: _Script, begin: list[BaseMessage], budget: int
) -> None:
    """Within a turn and from turn to turn the prefix stays, but for stored moves and excursions."""
    policy = HistoryPolicy(max_tokens=budget)
    before: tuple[ViewPlan, View] | None = None
    for log, row, plan, view in _calls(log_of(script, begin=begin), policy):
        if log.totals.calls:
            continue  # an agent loads when its calls are answered
        is_first = row.message.type == "human"
        if not is_first and is_finished([row]):
            before = before if before and log else None
            continue
        marks = plan.marks
        if before and before[0].marks == marks and (not is_first or plan.begin == before[0].begin):
            old = before[1].messages
            shared = len(old) if not is_first else _finished_part(old)
            assert view.messages[:shared] == old[:shared]
        before = plan, view


def _finished_part(messages: Sequence[BaseMessage]) -> int:
    """Number of messages before the last question, whose turn changes its form when it is finished."""
    return max(
        (index for index, message in enumerate(messages) if isinstance(message, HumanMessage)),
        default=0,
    )


def test_a_large_question_leaves_an_eighth_of_the_budget_to_earlier_turns() -> None:
    """The start stops there, not at the newest turn, so that it does not move again at once."""
    policy = HistoryPolicy(max_tokens=4_000)
    log = log_of([*[([], 200, 200)] * 100, ([], 10_800, 40)])
    asked = log.until(log.entries[-2].number)
    plan = asked.decide(policy, (1, 0, 0))
    assert plan is not None
    kept = [row.message.tokens for row in rows_of(asked.entries)[plan.begin : -1]]
    assert 4_000 // 16 < sum(kept) <= 4_000 // 8
    assert plan.stored[0] == plan.marks.start


@pytest.mark.parametrize("last", [40, 30_000])
def test_a_start_is_found_with_few_notes(monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """Turns that are too large even without a note are passed over, however long the log is; a note costs time."""
    made, make = list[object](), views.make_note
    monkeypatch.setattr(
        views, "make_note", lambda *given, **named: made.append(given) or make(*given, **named)
    )
    plan = log_of([*[([], 200, 200)] * 400, ([], last, 40)], batch=50).decide(
        HistoryPolicy(max_tokens=4_000)
    )
    assert plan is not None
    assert plan.stored[0] > 700
    assert len(made) <= 12


def test_a_move_that_makes_the_view_no_smaller_is_not_made() -> None:
    """Short turns leave as they are: nothing is marked as shortened, and a load that changes no view stores nothing."""
    log = log_of([*[([], 400, 400)] * 60, ([], 30_000, 40)])
    asked = log.until(log.entries[-2].number)
    plan = asked.decide(HistoryPolicy(max_tokens=4_000), (1, 0, 0))
    assert plan is not None
    start, short_through, _ = plan.stored
    assert start > 1
    assert short_through == 0


@pytest.mark.slow
def test_the_start_moves_seldom_and_by_large_steps() -> None:
    """With turns small beside the budget, a move frees about half of it."""
    policy = HistoryPolicy(max_tokens=8_000)
    script = [
        ([Round((900, 300 * (number % 5)), sources=bool(number % 2))], 200, 300)
        for number in range(150)
    ]
    log = log_of(script, batch=5)
    calls = list(_calls(log, policy))
    moves = [
        view.tokens
        for (*_, old, _), (*_, new, view) in pairwise(calls)
        if old.stored[0] != new.stored[0]
    ]
    assert log.totals.view_tokens > 4 * 8_000
    assert 2 <= len(moves) <= log.totals.view_tokens // 3_000
    assert all(2_000 <= tokens <= 4_000 for tokens in moves)


# ---------------------------------------------------------------------------------------------------------------------
# The budget


@given(scripts, beginnings, policies)
@few_examples
def test_a_view_is_within_the_budget_unless_the_unseen_part_is_not(
    script: _Script, begin: list[BaseMessage], policy: HistoryPolicy
) -> None:
    """Only what the model has not read yet, and a note, exceed `max_tokens`."""
    kept = policy.stub_tools == "never" or policy.never_stub
    for log, _, _, view in _calls(log_of(script, begin=begin), policy):
        if policy.max_tokens is not None and not kept:
            assert view.tokens <= max(policy.max_tokens, _unseen(log, policy)) + 210


@given(scripts, beginnings, policies)
@few_examples
def test_what_fits_is_whole(
    script: _Script, begin: list[BaseMessage], policy: HistoryPolicy
) -> None:
    """While the whole log fits, nothing is left out or shortened, and nothing is stored."""
    log = log_of(script, begin=begin)
    unlimited = HistoryPolicy(max_tokens=10**6, view=policy.view)
    for *_, plan, view in _calls(log, unlimited):
        assert plan.stored == (1, 0, 0)
        assert not view.shortened
        assert not plan.is_excursion


def test_small_turns_stay_visible_beside_a_large_paste() -> None:
    """A paste larger than the budget is shortened once the model has read it; the turns before it stay."""
    script = [([], 400, 400) for _ in range(30)]
    log = log_of(script, batch=2)
    log.append([HumanMessage("lorem " * 27_000, id="paste")])
    log.append([AIMessage("Read.", id="read")])
    log.append([HumanMessage("What did I ask first?", id="next")])
    *_, before, now = _calls(log, HistoryPolicy(max_tokens=32_000))
    assert before[2].stored[0] == 1
    assert now[3].shortened == ("paste",)
    assert "h1" in [message.id for message in now[3].messages]


def test_earlier_steps_of_a_long_turn_become_stubs_at_once() -> None:
    """The question and the last step stay whole; the other results are stubs, and stay so."""
    policy = HistoryPolicy(max_tokens=4_000)
    log = PureLog()
    for message in turn(1, [Round((3_000,), sources=False)] * 12)[:-1]:
        log.append([message])
    stubbed: tuple[str, ...] = ()
    for _, row, plan, view in _calls(log, policy):
        assert view.stubbed[: len(stubbed)] == stubbed or plan.left
        stubbed = view.stubbed
        assert row.message.id not in stubbed
        assert view.tokens <= 4_210
    assert stubbed
    assert log.view(policy, plan.stored).messages[0].id == "h1" or plan.left


# ---------------------------------------------------------------------------------------------------------------------
# Reading


@pytest.mark.slow
@given(scripts, beginnings, policies, st.lists(st.integers(1, 4), min_size=1, max_size=5))
@example(  # only a turn that leaves would become smaller by shortening
    [
        *[([], 0, 0), ([], 0, 380), ([], 270, 330), ([], 300, 366)],
        *[([Round((0,), False)], 150, 264), ([], 0, 0), ([], 0, 0), ([], 0, 0)],
    ],
    [],
    HistoryPolicy(max_tokens=544),
    [1],
)
@example(  # as many turns as `max_turns` exceed the budget, three quarters of them do not
    [([], 100, 400)] * 15, [], HistoryPolicy(max_tokens=1_515, max_turns=12), [1]
)
@few_examples
def test_reading_from_the_end_gives_what_the_whole_log_gives(
    script: _Script, begin: list[BaseMessage], policy: HistoryPolicy, lengths: list[int]
) -> None:
    """A read from any entry on gives the plan of the whole log, or asks for more."""
    log = log_of(script, batch=lengths, begin=begin)
    for record in (
        (1, 0, 0),
        *(plan.stored for *_, plan, _ in list(_calls(log, policy))[-3:]),
    ):
        whole = log.decide(policy, record)
        assert whole is not None
        for since in range(1, len(log.entries) + 1):
            found = log.decide(policy, record, since=since)
            assert found is None or _effect(found) == _effect(whole)


def _effect(plan: ViewPlan) -> tuple[object, ...]:
    """Return all that a plan shows and stores, without the shortening of turns that left the view."""
    start, short, stubs = plan.stored
    return (
        start,
        max(short, start - 1),
        stubs,
        plan.marks.start,
        plan.shown,
        plan.marks.gap,
    )


@pytest.mark.parametrize("budget", [600, 2_000])
def test_a_first_view_of_a_long_log_reads_about_a_view(budget: int) -> None:
    """Little more than the budget has to be read to decide without a record."""
    log = log_of([([], 200, 300) for _ in range(200)], batch=2)
    needed = next(
        since
        for since in range(len(log.entries), 0, -1)
        if log.decide(HistoryPolicy(max_tokens=budget), since=since)
    )
    rows = rows_of(log.entries[needed - 1 :])
    assert sum(row.message.view_tokens for row in rows) <= 2 * budget


def test_without_limits_the_whole_log_is_needed() -> None:
    """A policy without budget and turns decides nothing from the end of a log, and stores nothing."""
    log = log_of([([], 100, 100)] * 5)
    policy = HistoryPolicy(max_tokens=None)
    assert log.decide(policy, since=2) is None
    plan = log.decide(policy)
    assert plan is not None
    assert plan.stored == (1, 0, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Turns


@pytest.mark.slow
@given(scripts, beginnings, policies)
@example(  # `max_turns` leaves the turn in progress alone, with a note above a quarter of the budget
    [
        *[([], 0, 0)] * 6,
        ([Round((0, 0), True), Round((0, 0, 0), True)], 0, 0),
        ([Round((900,), False), Round((0,), False)], 0, 0),
    ],
    [],
    HistoryPolicy(max_tokens=300, max_turns=1),
)
@few_examples
def test_a_view_never_begins_inside_a_turn(
    script: _Script, begin: list[BaseMessage], policy: HistoryPolicy
) -> None:
    """A human message, or the log's first, follows the leading system messages and the note."""
    for log, _, plan, _ in _calls(log_of(script, begin=begin), policy):
        rows = rows_of(log.entries)
        if plan.begin < len(rows):
            first = rows[plan.begin]
            assert first.message.type == "human" or all(
                row.message.type == "system" for row in rows[: first.place - 1]
            )


@given(scripts, beginnings, st.integers(1, 12))
@few_examples
def test_max_turns_bounds_the_turns_of_a_view(
    script: _Script, begin: list[BaseMessage], maximum: int
) -> None:
    """Never more turns than allowed, and three quarters of them directly after a move."""
    policy = HistoryPolicy(max_tokens=None, max_turns=maximum)
    start = 1
    for log, _, plan, _ in _calls(log_of(script, begin=begin), policy):
        rows = rows_of(log.entries)[plan.begin :]
        shown = len({row.turn for row in rows if row.message.type != "system"})
        assert shown <= maximum
        if plan.stored[0] != start:
            start = plan.stored[0]
            assert shown == (maximum - maximum // 4 or 1)


@pytest.mark.parametrize(
    ("unseen", "gap"), [(5_999, 2_001), (6_000, 1_999), (6_001, 1_999), (9_000, 0)]
)
def test_the_room_of_an_excursion_is_never_a_quarter(unseen: int, gap: int) -> None:
    """By a quarter a stamp says that results which stay whole were not counted."""
    choice: Any = SimpleNamespace(log=SimpleNamespace(unseen=unseen), early=lambda: 0)
    _MarkChooser._leave_steps_out(choice, 8_000)
    assert choice.gap == gap
