"""List the reason why a view shows each message of the log in its form or leaves it out, as ranges of ordinals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from convstore.log.rows import Row, is_hidden
from convstore.values.policy import HistoryPolicy
from convstore.values.ranges import without
from convstore.values.stamps import ViewReason
from convstore.view.decoder import Showing
from convstore.view.load import Load
from convstore.view.render import View
from convstore.view.rule import ViewPlan


class _Range(NamedTuple):
    """A range of ordinals with one reason, with the fields of `ViewReason`."""

    first: int
    last: int
    state: str
    summary: int = 0
    limit: str = ""


def reasons_of(view: View, load: Load, plan: ViewPlan) -> list[ViewReason]:
    """Return the reasons in the order of the log, given a view, its load and its plan."""
    rows = load.rows[plan.begin :]
    end = load.log.tail.messages
    inactive = load.log.active.gaps(end)
    found = [_Range(*gap, "rewound") for gap in inactive]
    for before in _before(load, rows[0].message.ordinal if rows else end + 1, rows):
        parts = without([(before.first, before.last)], inactive)
        found += [before._replace(first=first, last=last) for first, last in parts]
    found += _shown_ranges(view, rows, plan.shown, load.policy)
    return [
        ViewReason.model_construct(**each._asdict()) for each in _merge_neighbours(sorted(found))
    ]


def _before(load: Load, begin: int, rows: Sequence[Row]) -> Iterator[_Range]:
    """Yield the ranges before the first message that follows system messages, summary and note in a view."""
    done = 0
    for message in load.system or ():
        done = message.ordinal
        yield _Range(done, done, "whole")
    if load.summary:
        yield _Range(done + 1, load.summary.last, "summarised", load.summary.version)
        done = load.summary.last
    if done + 1 < begin:
        yield _Range(done + 1, begin - 1, "left_out", limit=_limit(rows, load.policy))


def _shown_ranges(
    view: View, rows: Sequence[Row], showings: Sequence[Showing | None], policy: HistoryPolicy
) -> Iterator[_Range]:
    """Yield a range for each message from the start of a view on."""
    ids = {"stub": view.stubbed, "placeholder": view.placeholders, "shortened": view.shortened}
    ids |= {"orphan": view.orphans, "late": view.late_results}
    states = {id_: state for state, of_state in ids.items() for id_ in of_state}
    for row, showing in zip(rows, showings, strict=True):
        ordinal = row.message.ordinal
        if showing is None:
            yield _Range(ordinal, ordinal, "left_out", limit="max_tokens")
        elif is_hidden(row.message, policy):
            yield _Range(ordinal, ordinal, "hidden")
        else:
            yield _Range(ordinal, ordinal, states.get(row.message.id, "whole"))


def _limit(rows: Sequence[Row], policy: HistoryPolicy) -> str:
    """Return the limit that left turns out: `max_turns` if nearly as many turns are shown, else `max_tokens`."""
    if policy.max_turns is None:
        return "max_tokens"
    turns = len({row.turn for row in rows})
    is_full = turns > policy.max_turns * 3 // 4 - 1
    return "max_turns" if policy.max_tokens is None or is_full else "max_tokens"


def _merge_neighbours(ranges: Iterable[_Range]) -> list[_Range]:
    """Join neighbouring ranges with the same reason."""
    merged: list[_Range] = []
    for new in ranges:
        last = merged[-1] if merged else None
        if last and last.last + 1 == new.first and last[2:4] == new[2:4]:
            merged[-1] = last._replace(last=new.last)
        else:
            merged.append(new)
    return merged
