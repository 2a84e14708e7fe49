"""Say for every message up to the end of a view why the view shows it as it does, as ranges of ordinals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from convstore.log.rows import Row, is_hidden
from convstore.values.policy import HistoryPolicy
from convstore.values.ranges import without
from convstore.values.stamps import ViewReason
from convstore.view.load import Load
from convstore.view.render import View
from convstore.view.rule import Decision
from convstore.view.sizes import Showing


def reasons_of(view: View, load: Load, decision: Decision) -> list[ViewReason]:
    """Return the reasons in the order of the log, given what was loaded for the view and what it shows of that."""
    rows = load.rows[decision.begin :]
    policy = load.policy
    summary = load.summary
    last = load.log.tail.messages
    begin = rows[0].message.ordinal if rows else last + 1
    before = [
        ViewReason(first=message.ordinal, last=message.ordinal, state="whole")
        for message in load.system or ()
    ]
    done = before[-1].last if before else 0
    if summary:
        before.append(
            ViewReason(
                first=done + 1, last=summary.last, state="summarised", summary=summary.version
            )
        )
        done = summary.last
    if done + 1 < begin:
        limit = _limit(rows, policy)
        before.append(ViewReason(first=done + 1, last=begin - 1, state="left_out", limit=limit))
    inactive = [
        ViewReason(first=low, last=high, state="rewound")
        for low, high in load.log.active.gaps(last)
    ]
    active = (piece for reason in before for piece in _without(reason, inactive))
    shown = _shown(view, rows, decision.shown, policy)
    return _merged(sorted([*active, *inactive, *shown], key=lambda reason: reason.first))


def _shown(
    view: View, rows: Sequence[Row], showings: Sequence[Showing | None], policy: HistoryPolicy
) -> Iterator[ViewReason]:
    """Yield the reasons of the messages from the start of a view on."""
    ids = {"stub": view.stubbed, "placeholder": view.placeholders, "shortened": view.shortened}
    ids |= {"orphan": view.orphans, "late": view.late_results}
    states = {id_: state for state, of_state in ids.items() for id_ in of_state}
    run: tuple[int, int, str] | None = None
    for row, showing in zip(rows, showings, strict=True):
        state = "hidden" if is_hidden(row.message, policy) else states.get(row.message.id, "whole")
        state = state if showing else "left_out"
        ordinal = row.message.ordinal
        if run and run[1:] == (ordinal - 1, state):
            run = (run[0], ordinal, state)
            continue
        if run:
            yield _reason(*run)
        run = (ordinal, ordinal, state)
    if run:
        yield _reason(*run)


def _reason(first: int, last: int, state: str) -> ViewReason:
    limit = "max_tokens" if state == "left_out" else ""
    return ViewReason.model_construct(first=first, last=last, state=state, summary=0, limit=limit)


def _limit(rows: Sequence[Row], policy: HistoryPolicy) -> str:
    """Return the limit that left turns out: that of turns if about so many are shown."""
    if policy.max_turns is None:
        return "max_tokens"
    turns = len({row.turn for row in rows})
    return (
        "max_turns"
        if policy.max_tokens is None or turns > policy.max_turns * 3 // 4 - 1
        else "max_tokens"
    )


def _without(reason: ViewReason, others: Sequence[ViewReason]) -> Iterator[ViewReason]:
    """Yield the parts of a range that are in no other one, given these in order."""
    pairs = [(other.first, other.last) for other in others]
    for first, last in without([(reason.first, reason.last)], pairs):
        yield reason.model_copy(update={"first": first, "last": last})


def _merged(reasons: Iterable[ViewReason]) -> list[ViewReason]:
    """Join neighbouring ranges with the same reason."""
    merged: list[ViewReason] = []
    for new in reasons:
        before = merged[-1] if merged else None
        if (
            before
            and before.last + 1 == new.first
            and (before.state, before.summary) == (new.state, new.summary)
        ):
            merged[-1] = before.model_copy(update={"last": new.last})
        else:
            merged.append(new)
    return merged
