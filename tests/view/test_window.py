"""Promise 6 and the budget: where views begin, over logs of all shapes, whole or read from their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from properties import examples
from strategies import PureLog, Round, log_of, policies, turn, turns

from convstore.log.rows import Row, is_finished, leading_system, rows_of, shown_whole
from convstore.values.policy import HistoryPolicy
from convstore.view.budget import NOTHING_REQUIRED, Required, choose_window
from convstore.view.load import is_continued_by

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
some = examples(60)


def _moments(log: PureLog) -> Iterator[tuple[PureLog, Row]]:
    """The log as it was after each entry, with its last row."""
    for entry in log.entries:
        earlier = log.until(entry.number)
        yield earlier, rows_of(earlier.entries)[-1]


def _alone(log: PureLog, policy: HistoryPolicy) -> int:
    """The largest view that holds nothing but one turn, at any moment of it, with system messages and a long note."""
    rows = rows_of(log.entries)
    numbers = {row.turn for row in rows}
    sizes = [sum(row.message.tokens for row in rows if row.turn == number) for number in numbers]
    return max(sizes) + sum(row.message.tokens for row in leading_system(rows)) + 250


# ---------------------------------------------------------------------------------------------------------------------
# Stability


@given(scripts, beginnings, st.integers(700, 4_000), st.none() | st.integers(1, 9))
@some
def test_each_turn_begins_with_the_view_of_the_turn_before(
    script: Any, begin: Any, budget: Any, max_turns: Any
) -> None:
    """The view at the start of a turn begins with the view at the start of the last one, unless the start moved."""
    policy = HistoryPolicy(max_tokens=budget, max_turns=max_turns)
    before: tuple[int | None, list[BaseMessage]] = (None, [])
    for log, row in _moments(log_of(script, begin=begin)):
        if row.message.type == "human":
            now = log.start(policy), log.view(policy).messages
            if now[0] == before[0]:
                assert now[1][: len(before[1])] == before[1]
            before = now


@given(scripts, beginnings, st.integers(300, 4_000))
@some
def test_within_a_turn_each_view_begins_with_the_one_before(script: Any, begin: Any, budget: Any) -> None:
    """While an agent works on a turn its view only grows, unless the start moved."""
    policy = HistoryPolicy(max_tokens=budget)
    before: tuple[Any, list[BaseMessage]] = (None, [])
    for log, row in _moments(log_of(script, begin=begin)):
        if row.message.type == "ai" and row.message.calls:
            continue  # an agent loads when its calls are answered
        if any(call[0] for call in log.totals.calls) or is_finished([row]):
            continue
        now = (row.turn, log.start(policy)), log.view(policy).messages
        if now[0] == before[0]:
            assert now[1][: len(before[1])] == before[1]
        before = now


@given(scripts, beginnings, policies)
@some
def test_the_start_never_moves_back(script: Any, begin: Any, policy: Any) -> None:
    """While no turn is larger than the budget, no message that left the view ever comes into it again."""
    log = log_of(script, begin=begin)
    assume(policy.max_tokens is None or _alone(log, policy) <= policy.max_tokens)
    starts = [earlier.start(policy) for earlier, _ in _moments(log)]
    assert all(earlier <= later for earlier, later in pairwise(starts) if earlier and later)


@given(scripts, beginnings, policies)
@some
def test_what_earlier_turns_require_need_not_be_weighed_again(script: Any, begin: Any, policy: Any) -> None:
    """With the position that any earlier window required, a view begins at the same message as without it."""
    required = [NOTHING_REQUIRED]
    for log, _ in _moments(log_of(script, begin=begin)):
        _, window = log.window(policy)
        assert window is not None
        for known in required[-3:]:
            assert log.window(policy, known=known)[1] == window
        required += [window.required] if window.required.through else []


def test_the_start_moves_seldom_and_by_large_steps() -> None:
    """With turns small beside the budget, a move frees a good part of it and leaves more than half of it filled."""
    budget = 8_000
    policy = HistoryPolicy(max_tokens=budget)
    script = [([Round((900, 300 * (number % 5)), sources=bool(number % 2))], 200, 300) for number in range(150)]
    log = log_of(script, batch=5)
    rows = rows_of(log.entries)
    views = [(earlier.start(policy) or 0, earlier.view(policy).tokens) for earlier, _ in _moments(log)]
    moves = [(old, new, tokens) for (old, _), (new, tokens) in pairwise(views) if old != new]
    assert log.totals.view_tokens > 4 * budget
    assert all(rows[new - 1].before - rows[old - 1].before >= budget / 8 for old, new, _ in moves)
    assert all(tokens > budget / 2 for _, _, tokens in moves)
    assert 4 <= len(moves) <= log.totals.view_tokens / (budget / 5)


_one_result: tuple[list[Round], int, int] = ([Round((5_600,), sources=False)], 130, 420)
_talk: tuple[list[Round], int, int] = ([], 80, 8_000)


@pytest.mark.parametrize(
    ("fields", "script", "turns_at_once"),
    [
        ({"max_tokens": 32_000, "stub_tools": "never"}, _one_result, 4),
        ({"max_tokens": 16_000, "never_stub": {"search"}}, _one_result, 3),
        ({"max_tokens": 16_000, "shorten_over": 200}, _talk, 8),
        ({"max_tokens": 16_000, "shorten_over": 1_000}, _talk, 3),
        ({"max_tokens": 16_000, "view": "conversation"}, ([Round((900,), sources=False)], 400, 4_000), 4),
        ({"max_tokens": 16_000, "keep_last_results": 4}, _one_result, 8),
        ({"max_tokens": 8_000}, _talk, 2),
        ({"max_tokens": 5_000}, _talk, 2),
        ({"max_tokens": 4_000}, ([Round((8_400,), sources=False)], 130, 420), 2),
    ],
    ids=["whole results", "one tool", "shortened", "less", "conversation", "newest results", "3 fit", "2 fit", "large"],
)
def test_the_start_moves_by_several_turns_under_every_policy(
    fields: dict[str, Any], script: Any, turns_at_once: int
) -> None:
    """Steps are measured in what the policy shows: no policy moves the start with every turn."""
    policy, count = HistoryPolicy(**fields), 60
    log = log_of([script] * count, batch=4)
    starts = [rows_of(log.entries)[(one.start(policy) or 1) - 1].turn for one, _ in _moments(log)]
    assert starts[-1] > 20
    moves = len(set(starts)) - 1
    assert starts[-1] / moves >= turns_at_once
    assert all(one.view(policy).tokens <= (policy.max_tokens or 0) for one, _ in _moments(log))


@pytest.mark.parametrize("fields", [{"view": "conversation"}, {"stub_min_tokens": 20}], ids=["hidden", "small stubs"])
def test_nothing_is_left_out_of_a_view_that_fits(fields: dict[str, Any]) -> None:
    """Messages count as the policy shows them: hidden ones not at all, small results as their stubs."""
    log = log_of([([Round((900,) * 3, sources=False)], 80, 300)] * 40, batch=6)
    whole = log.view(HistoryPolicy(max_tokens=None, **fields)).tokens
    assert log.start(HistoryPolicy(max_tokens=whole * 5 // 4 + 1_000, **fields)) == 1
    assert log.start(HistoryPolicy(max_tokens=whole * 5 // 4 + 1_000)) != 1


def test_one_large_turn_does_not_cost_the_rest_of_the_conversation() -> None:
    """After a turn that nearly fills the budget the start stays where that turn put it, and history grows again."""
    policy = HistoryPolicy(max_tokens=4_000)
    small, large = ([], 200, 200), ([Round((13_000,), sources=True)], 100, 100)
    log = log_of([*[small] * 10, large, *[small] * 12])
    starts = [earlier.start(policy) for earlier, row in _moments(log) if row.turn > 11]
    assert len(set(starts)) == 1
    assert starts[0] is not None
    assert rows_of(log.entries)[starts[0] - 1].turn < 11


# ---------------------------------------------------------------------------------------------------------------------
# The budget


@given(scripts, beginnings, policies)
@some
def test_the_view_is_within_the_budget_whenever_the_last_turn_is(script: Any, begin: Any, policy: Any) -> None:
    """A view of more than one turn never holds more than `max_tokens`."""
    for log, _ in _moments(log_of(script, begin=begin)):
        view, start = log.view(policy), log.start(policy)
        shown = {row.turn for row in rows_of(log.entries)[(start or 1) - 1 :]}
        if len(shown) > 1:
            assert policy.max_tokens is None or view.tokens <= policy.max_tokens


@given(scripts, beginnings, policies)
@some
def test_a_view_never_begins_inside_a_turn(script: Any, begin: Any, policy: Any) -> None:
    """A human message, or the log's first, follows the leading system messages; turns before it are counted."""
    log = log_of(script, begin=begin)
    rows = rows_of(log.entries)
    first = len(leading_system(rows)) + 1
    for earlier, _ in _moments(log):
        before, window = earlier.window(policy)
        assert window is not None
        assert before == 0
        start = window.start + 1
        assert start == first or start > len(earlier.entries) or rows[start - 1].message.type == "human"
        left_out = sum(row.message.type == "human" for row in rows[: start - 1])
        assert window.left_out_turns == (max(1, left_out) if first < start <= len(earlier.entries) else 0)


def test_the_turn_in_progress_is_never_cut() -> None:
    """A turn larger than the whole budget is shown whole and alone while it is in progress, and no longer."""
    policy = HistoryPolicy(max_tokens=1_000)
    log = log_of([([], 100, 100)] * 3)
    log.append(turn(4, [Round((3_000, 3_000), sources=True)])[:-1])
    assert log.start(policy) == 7
    assert log.view(policy).tokens > 1_000
    log.append([AIMessage("done", id="z")])
    assert log.start(policy) == 1
    assert log.view(policy).tokens <= 1_000


@pytest.mark.parametrize("budget", [1_000, 4_000])
def test_results_made_up_for_unanswered_calls_are_within_the_budget(budget: int) -> None:
    """A turn whose calls never got results counts with the results that its view makes up."""
    log = PureLog()
    for number in range(60):
        calls = [{"name": "search", "args": {}, "id": f"{number}-{call}"} for call in range(8)]
        log.append([HumanMessage("?", id=f"h{number}"), AIMessage("", id=f"a{number}", tool_calls=calls)])
        log.append([AIMessage("done", id=f"z{number}")])
    view = log.view(HistoryPolicy(max_tokens=budget))
    assert len(view.missing_results) >= 8
    assert view.tokens <= budget


def test_late_results_are_within_the_budget() -> None:
    """A result whose call is left out counts with the text that names the call."""
    log, call = PureLog(), {"name": "search", "args": {"q": "x" * 150}}
    for number in range(60):
        calls = [{**call, "id": f"{number}-{one}"} for one in range(4)]
        late = [
            ToolMessage("so", id=f"r{number}-{one}", name="search", tool_call_id=f"{number - 1}-{one}")
            for one in range(4 if number else 0)
        ]
        log.append([HumanMessage("?", id=f"h{number}"), *late, AIMessage("", id=f"a{number}", tool_calls=calls)])
        log.append([AIMessage("done", id=f"z{number}")])
    for budget in range(1_000, 2_000, 50):
        assert log.view(HistoryPolicy(max_tokens=budget)).tokens <= budget


def test_what_is_well_within_the_budget_is_shown_whole() -> None:
    """Nothing is left out, and there is no note, as long as a note would fit too."""
    log = log_of([([], 300, 300)] * 8)
    total = log.totals.tokens
    for policy in (HistoryPolicy(max_tokens=None), HistoryPolicy(max_tokens=total + 100), HistoryPolicy(max_turns=8)):
        before, window = log.window(policy)
        assert window is not None
        assert (before, window.start, window.left_out_turns, window.anchor) == (0, 0, 0, 0)
        assert log.view(policy).tokens == total


# ---------------------------------------------------------------------------------------------------------------------
# The same start for everybody


def _read_from_everywhere(log: PureLog, policy: HistoryPolicy, since: Callable[[int], int]) -> None:
    """Compare the start of each moment's whole log with reads from an earlier anchor, and from one other entry."""
    anchors: list[tuple[int, Required]] = []
    for entry in log.entries:
        earlier = log.until(entry.number)
        _, window = earlier.window(policy)
        start = earlier.start(policy)
        assert window is not None
        assert start is not None
        assert earlier.start(policy, since=since(entry.number)) in (start, None)
        for anchor, known in anchors[-3:]:
            before, again = earlier.window(policy, since=anchor, known=known)
            assert earlier.start(policy, since=anchor, known=known) == start
            assert again is not None
            assert again.left_out_turns == window.left_out_turns
            assert (again.anchor is None) == (window.anchor is None)
            assert again.anchor is None or before + again.anchor == max(before, window.anchor or 0)
        if window.anchor is not None and window.anchor < earlier.totals.messages:
            ordinal = window.anchor + 1
            number = next(one.number for one in earlier.entries if one.first <= ordinal <= one.last)
            anchors.append((number, window.required))


batches = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(scripts, beginnings, policies, batches, st.data())
@some
def test_reading_from_any_place_gives_the_same_start(
    script: Any, begin: Any, policy: Any, lengths: Any, data: Any
) -> None:
    """A read from the end of a log, or from an earlier anchor, gives the whole log's start or asks for more."""
    log = log_of(script, begin=begin, batch=lengths)
    _read_from_everywhere(log, policy, lambda last: data.draw(st.integers(1, last)))


@given(_long, st.integers(700, 2_500), st.sampled_from([5, 20, 60]), batches, st.data())
@some
def test_under_shortening_every_read_gives_the_same_start(
    script: Any, budget: Any, longest: Any, lengths: Any, data: Any
) -> None:
    """The log's totals do not include the sizes of shortened texts; the start is the same from every anchor even so."""
    policy = HistoryPolicy(max_tokens=budget, shorten_over=longest)
    _read_from_everywhere(log_of(script, batch=lengths), policy, lambda last: data.draw(st.integers(1, last)))


@pytest.mark.parametrize("back", range(0, 6, 3))
def test_a_start_between_two_steps_is_found_again(back: Any) -> None:
    """A turn that fills the budget moves the start to a turn that is no multiple of the step; later reads agree."""
    large = ([Round((1_500, 0, 3_000), sources=True)], 200, 0)
    script = [*[([], 150, 250)] * 8, large, *[([], 300, 300)] * 9]
    for batch in (1, 3, 7):
        policy = HistoryPolicy(max_tokens=1_467, shorten_over=5)
        _read_from_everywhere(log_of(script, batch=batch), policy, lambda last: max(1, last - back))


def test_a_turn_that_was_read_in_part_may_be_too_large() -> None:
    """A start among the turns after it is not certain as long as its beginning may or may not fit."""
    search = Round((900, 1_500, 3_000), sources=True)
    script = [([search], 600, 0), ([search], 600, 0), ([Round((5_000, 1_500), sources=False)], 0, 900), ([], 40, 300)]
    script += [([], 0, 0)] * 3
    for budget in range(1_500, 2_500, 100):
        log = log_of(script, batch=(8, 9, 6))
        for since in range(1, len(log.entries) + 1):
            policy = HistoryPolicy(max_tokens=budget, keep_last_results=2)
            _read_from_everywhere(log, policy, partial(min, since))


@pytest.mark.parametrize(("size", "step"), [(300, 8), (900, 2), (1_000, 4)])
def test_under_shortening_turns_leave_in_steps_and_half_of_the_budget_stays_filled(size: int, step: int) -> None:
    """The step is at most half of the turns that fit, also if turns are larger than `shorten_over` lets expect."""
    policy = HistoryPolicy(max_tokens=6_050, shorten_over=20)
    log = log_of([([Round((size,) * 3, sources=False)], 40, 80)] * 40, batch=6)
    views = [
        (rows_of(log.entries)[(one.start(policy) or 1) - 1].turn, one.view(policy).tokens) for one, _ in _moments(log)
    ]
    moves = [number for number, (one, two) in enumerate(pairwise(views)) if one[0] != two[0]]
    assert [views[number + 1][0] for number in moves[2:]] == list(range(views[moves[2] + 1][0], views[-1][0] + 1, step))
    assert all(tokens > 3_000 for _, tokens in views[moves[0] :])


@given(scripts, beginnings, policies, batches)
@some
def test_the_start_does_not_depend_on_batches(script: Any, begin: Any, policy: Any, lengths: Any) -> None:
    """The same messages in other batches give the same start."""
    assert log_of(script, begin=begin, batch=lengths).start(policy) == log_of(script, begin=begin).start(policy)


@pytest.mark.parametrize("policy", [HistoryPolicy(max_tokens=2_000), HistoryPolicy(max_turns=4)])
def test_the_start_in_a_long_log_is_known_from_its_end(policy: Any) -> None:
    """Little more than the view has to be read to know where it begins."""
    log = log_of([([Round((600,), sources=True)], 100, 100)] * 60, batch=4)
    start = log.start(policy)
    assert log.start(policy, since=40) == start
    assert log.start(policy, since=60) is None or policy.max_tokens is None


@pytest.mark.parametrize("budget", [1, 1_000])
def test_the_start_is_known_if_no_turn_fits_while_it_is_in_progress(budget: int) -> None:
    """Turns above the budget move the start by the size that they have later, so a load does not read the whole log."""
    log = log_of([([Round((9_000,), sources=True)], 100, 100)] * 60, batch=4)
    policy = HistoryPolicy(max_tokens=budget)
    _, window = log.window(policy, since=40)
    assert window is not None
    assert window.anchor is not None
    assert log.start(policy, since=40) == log.start(policy)


def test_with_max_turns_no_more_than_those_turns_is_read() -> None:
    """The entries that hold the allowed turns are enough, one less is not."""
    policy = HistoryPolicy(max_turns=4)
    log = log_of([([], 50, 50)] * 20, batch=2)
    assert log.start(policy) == log.start(policy, since=17) == 33
    assert log.start(policy, since=18) is None


def test_without_limits_the_whole_log_is_needed() -> None:
    """A policy without budget and turns decides nothing from the end of a log."""
    log = log_of([([], 50, 50)] * 5, batch=2)
    assert log.start(HistoryPolicy(max_tokens=None), since=2) is None


@pytest.mark.parametrize("begin", [1, 2, 4])
def test_system_messages_in_entries_of_their_own_are_not_left_out_turns(begin: int) -> None:
    """A load that does not read them again shows the log from its first turn on, without a note."""
    log = log_of([([], 50, 50)] * 3, begin=_BEGINNINGS[begin])
    systems = sum(message.type == "system" for message in _BEGINNINGS[begin])
    for since in range(1, systems + 2):
        before, window = log.window(HistoryPolicy(), since=since)
        assert window is not None
        assert (before + window.start, window.left_out_turns) == (systems, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Turns, results and views


@given(scripts, beginnings, st.integers(1, 12))
@some
def test_max_turns_bounds_the_turns_of_a_view(script: Any, begin: Any, maximum: Any) -> None:
    """Never more turns than allowed, never fewer than three quarters of them once there were enough."""
    for log, row in _moments(log_of(script, begin=begin)):
        start = log.start(HistoryPolicy(max_tokens=None, max_turns=maximum))
        assert start is not None
        if row.turn:
            shown = row.turn - max(1, rows_of(log.entries)[start - 1].turn) + 1
            assert min(row.turn, maximum - max(0, maximum // 4 - 1)) <= shown <= maximum
            assert maximum >= 8 or shown == min(row.turn, maximum)


@pytest.mark.parametrize(("maximum", "step"), [(4, 1), (8, 2), (12, 3), (40, 10)])
def test_from_eight_on_turns_leave_a_quarter_at_a_time(maximum: int, step: int) -> None:
    """Few turns leave one by one; more leave a quarter of `max_turns` at once, and none while they are not too many."""
    policy, numbers = HistoryPolicy(max_tokens=None, max_turns=maximum), list[int]()
    for log, row in _moments(log_of([([], 9, 9)] * (2 * maximum + 5), batch=2)):
        first = rows_of(log.entries)[(log.start(policy) or 0) - 1].turn
        assert first == 1 or first % step == 0
        assert (first == 1) == (row.turn <= maximum)
        numbers.append(first)
    assert [new - old for old, new in pairwise(dict.fromkeys(numbers))][1:] == [step] * (len(set(numbers)) - 2)


def _kept(log: PureLog, policy: HistoryPolicy) -> list[bool]:
    """For each result of a finished turn whether it is whole."""
    rows = rows_of(log.entries)
    last = None if is_finished(rows) else rows[-1].turn
    shown = zip(rows, shown_whole(rows, policy), strict=True)
    return [whole for row, whole in shown if row.message.type == "tool" and row.turn != last]


@given(scripts, st.integers(1, 5))
@some
def test_the_newest_results_are_kept_whole(script: Any, minimum: Any) -> None:
    """At least so many of the newest results in finished turns are whole, and fewer than twice as many or two."""
    policy = HistoryPolicy(max_tokens=None, keep_last_results=minimum, stub_min_tokens=0)
    steps, last = 0, 0
    for log, _ in _moments(log_of(script)):
        kept = _kept(log, policy)
        whole = sum(kept)
        assert kept == [False] * (len(kept) - whole) + [True] * whole
        assert min(len(kept), minimum) <= whole <= max(2, 2 * minimum - 1)
        steps += len(kept) - whole > last
        last = max(last, len(kept) - whole)
    assert steps <= last / max(2, minimum) + 1


def _log_of_two_tools() -> PureLog:
    """A finished turn with results of two tools, one of them named by its call alone, and a small one."""
    log = PureLog()
    calls = [{"name": name, "args": {}, "id": f"c-{name}"} for name in ("search", "lookup", "clock")]
    log.append([HumanMessage("?", id="h"), AIMessage("", id="a", tool_calls=calls)])
    log.append(
        [
            ToolMessage("x" * 3_000, id="search", tool_call_id="c-search", name="search"),
            ToolMessage("y" * 3_000, id="lookup", tool_call_id="c-lookup"),
            ToolMessage("noon", id="clock", tool_call_id="c-clock", artifact={"raw": "z" * 20_000}),
        ]
    )
    log.append([AIMessage("done", id="z")])
    return log


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({}, set()),
        ({"never_stub": {"search"}}, {"search"}),
        ({"never_stub": {"lookup", "other"}}, {"lookup"}),
        ({"stub_tools": "never"}, {"search", "lookup", "clock"}),
        ({"stub_min_tokens": 5_000}, {"search", "lookup"}),
        ({"keep_last_results": 2}, {"search", "lookup", "clock"}),
    ],
    ids=["default", "never one tool", "never two tools", "never any", "only long ones", "not the last two"],
)
def test_a_policy_says_which_results_stay_whole(fields: dict[str, Any], whole: Any) -> None:
    """By default no result of a finished turn needs its payload; what a policy exempts is shown in full."""
    log, policy = _log_of_two_tools(), HistoryPolicy(**fields)
    rows = rows_of(log.entries)
    shown = zip(rows, shown_whole(rows, policy), strict=True)
    assert {row.message.id for row, is_whole in shown if is_whole and row.message.type == "tool"} == whole
    contents = {message.id: message.content for message in log.view(policy).messages}
    assert {id_ for id_ in ("search", "lookup") if contents[id_][1:] in ("x" * 2_999, "y" * 2_999)} == whole - {"clock"}
    assert contents["clock"] == "noon"


def test_in_progress_everything_is_whole() -> None:
    """Until the turn is finished nothing in it is a stub."""
    log = _log_of_two_tools()
    earlier = log.until(2)
    assert all(shown_whole(rows_of(earlier.entries), HistoryPolicy()))
    assert earlier.view(HistoryPolicy()).stubbed == ()
    assert log.view(HistoryPolicy()).stubbed == ("search", "lookup")


class Looked(list[Row]):
    """Rows that count how often one of them is looked at."""

    times = 0

    def __getitem__(self, index: Any) -> Any:
        self.times += 1
        return super().__getitem__(index)


def test_results_that_are_kept_cost_little_in_a_long_log() -> None:
    """The rows that are looked at for `keep_last_results` grow with the turns, not with their square."""
    looked = []
    for turns_there in (100, 400):
        rows = Looked(rows_of(log_of([([Round((30,), sources=False)], 9, 9)] * turns_there).entries))
        policy = HistoryPolicy(max_tokens=1_000_000, keep_last_results=3)
        window = choose_window(rows, policy, fixed_tokens=0, note_tokens=lambda _place: 1)
        assert window is not None
        assert window.start == 0
        looked.append(rows.times)
    assert looked[1] < 6 * looked[0]


def test_a_cached_end_is_continued_by_its_own_last_entry_alone() -> None:
    """An entry with the same number but other messages, or no entry at all, is a log that was restored."""
    log = log_of([([], 50, 50)] * 4, batch=2)
    other = log_of([([], 50, 50), ([], 60, 60)], batch=2)
    assert is_continued_by(log.entries[:2], log.entries[1:])
    assert not is_continued_by(log.entries[:2], other.entries[1:])
    assert not is_continued_by(log.entries[:2], log.entries[2:])
    assert not is_continued_by(log.entries[:2], [])
    assert not is_continued_by([], log.entries)


def test_rows_tell_the_log_before_them() -> None:
    """Turn, results and tokens before each row come from the entry's totals, wherever reading begins."""
    log = log_of([([Round((100, 2_000), sources=True)], 10, 10)] * 4, begin=_BEGINNINGS[4], batch=3)
    rows = rows_of(log.entries)
    for index, row in enumerate(rows):
        assert row.turn == sum(one.message.type == "human" for one in rows[: index + 1])
        assert row.result == sum(one.message.type == "tool" for one in rows[:index])
        assert row.before == sum(one.message.view_tokens for one in rows[:index])
        assert row.message.ordinal == index + 1
    assert rows_of(log.entries[3:]) == rows[9:]


def test_an_empty_log_has_an_empty_window() -> None:
    """No rows, or system messages alone, give a view without turns."""
    for log in (PureLog(), log_of([], begin=_BEGINNINGS[2])):
        window = choose_window(rows_of(log.entries), HistoryPolicy(), fixed_tokens=10, note_tokens=lambda _place: 1)
        assert window is not None
        assert (window.start, window.left_out_turns, window.anchor) == (log.totals.messages, 0, None)
