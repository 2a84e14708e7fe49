"""The rows of a list of conversations, each with the state of its newest turn, and their filters and orders.

The inspector and the command line show these lists.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, reduce
from typing import Any, NamedTuple

from convstore.values.models import (
    ConversationInfo,
    ForkOrigin,
    LastCall,
    MessagePreview,
    State,
    Status,
)
from convstore.values.plain import age, counted, percent
from convstore.values.usage import Usage

LABELS: Mapping[str, str] = {
    "waiting": "waits",
    "running": "running",
    "interrupted": "broke off",
    "asked": "no answer",
    "imported": "imported",
    "cut": "cut off",
    "refused": "refused",
    "stopped": "stopped",
}
"""Labels of the states of a newest turn; a finished turn has no label."""


_LASTING = frozenset({"waiting", "asked"})
"""States that last until a user or an application acts."""


class ConversationEnd(NamedTuple):
    """The state of the newest turn of a conversation.

    Attributes:
        status: The status of the turn, as in `TurnState`; "cut", "refused" or "imported" as in `ConversationInfo`; ""
            without a turn.
        waiting: Names of the tools whose calls wait for a person.
        error: Class and first line of the error by which the turn broke off, "" if that is not known.
        step: The step at which a turn was interrupted, such as "during search"; "" if that is not known.
        is_only_asked: True if the turn has only its question, and nothing shows that a worker began to answer it.
        since: Date of the newest entry of the log; None if it was not read.
        open_calls: For an interrupted turn, the `result_id` of each call without a result.
    """

    status: Status | State = ""
    waiting: tuple[str, ...] = ()
    error: str = ""
    step: str = ""
    is_only_asked: bool = False
    since: datetime | None = None
    open_calls: tuple[str, ...] = ()

    @classmethod
    def of(cls, info: ConversationInfo) -> ConversationEnd:
        """Return the state that the head shows; an empty one for an open turn, whose state the head does not know."""
        return cls() if info.state == "open" else cls(info.state)

    @property
    def kind(self) -> str:
        """A key of `LABELS`; "finished" or "" for a turn without a label."""
        return "asked" if self.is_only_asked else self.status

    @property
    def label(self) -> str:
        """The label of the state in `LABELS`; "" if the turn is finished."""
        return LABELS.get(self.kind, "")

    @property
    def reason(self) -> str:
        """The tools whose calls wait for a person, or how the turn broke off: the error, else the step."""
        if self.kind == "interrupted":
            return self.error or self.step
        return ", ".join(self.waiting)

    def line(self, now: datetime | None = None) -> str:
        """Return the label and the reason; "" if the turn is finished.

        With `now`, it also says how long the turn has been waiting or without an answer.
        """
        label = self.label
        if now and self.since and self.kind in _LASTING:
            label = f"{label} {age(self.since, now)}"
        return f"{label}: {self.reason}" if self.reason else label


_FULL = 0.8
"""Share of its budget from which the last call counts as nearly full."""

_IN_NEED = frozenset({"waiting", "interrupted", "asked", "cut", "refused"})
"""States of a newest turn that need attention."""

_OUT_OF_ORDER = timedelta(minutes=1)
_MOST_VALUES = 30
"""Maximum number of values of a scope key that the filter form offers."""
_COVERED_BY_VALUES = 0.25
"""The form offers the values of a scope key only if at least this share of the conversations has one of them."""


@dataclass(frozen=True, slots=True)
class ListRow:
    """A conversation of the list, the state of its newest turn, and True if a message of it was rated down."""

    info: ConversationInfo
    end: ConversationEnd
    is_rated_down: bool = False

    @property
    def is_child(self) -> bool:
        """True for the conversation of a sub-agent."""
        return "path" in self.info.scope

    @property
    def share(self) -> float:
        """The share of the budget that the last call used; 0 if it is unknown, or has no limit."""
        call = self.info.last_call
        return call.tokens / call.max_tokens if call and call.max_tokens else 0.0

    @property
    def is_full(self) -> bool:
        """True if the last call used over 80 % of its budget."""
        return self.share > _FULL

    @property
    def billed(self) -> Usage:
        """The sum of the tokens that providers counted for all models; zeros without counts."""
        return reduce(Usage.plus, (Usage(**counts) for counts in self.info.usage.values()), Usage())

    def state_line(self, now: datetime | None = None) -> str:
        """Return the state with its reason, a note if the budget is nearly used up, and a note if it was rated down.

        With `now`, it also says how long the state has lasted; see `ConversationEnd.line`.
        """
        share = f"{percent(self.share)}% of its budget" if self.is_full else ""
        rating = CHIPS["down"][0] if self.is_rated_down else ""
        return "; ".join(filter(None, (self.end.line(now), share, rating)))

    @property
    def needs_attention(self) -> bool:
        """True if the turn waits for a person, broke off or lacks a whole answer, or the budget is nearly used up."""
        return self.is_full or self.end.kind in _IN_NEED


def _has_kind(kind: str, row: ListRow) -> bool:
    return row.end.kind == kind


CHIPS: Mapping[str, tuple[str, Callable[[ListRow], bool]]] = {
    "attention": ("needs attention", lambda row: row.needs_attention),
    **{kind: (label, partial(_has_kind, kind)) for kind, label in LABELS.items()},
    "failed": ("failed tools", lambda row: row.info.failed > 0),
    "down": ("rated down", lambda row: row.is_rated_down),
    "full": ("over 80 %", lambda row: row.is_full),
}
"""Filters of the form by state: the label of each, and its rule."""

TIMES: Mapping[str, tuple[str, timedelta | None]] = {
    "": ("any time", None),
    "1h": ("last hour", timedelta(hours=1)),
    "1d": ("last 24 hours", timedelta(days=1)),
    "7d": ("last 7 days", timedelta(days=7)),
    "30d": ("last 30 days", timedelta(days=30)),
}
"""Filters of the form by the time since the last message."""

ORDERS: Mapping[str, tuple[str, Callable[[ListRow], float]]] = {
    "": ("newest", lambda _: 0),
    "full": ("fullest last call", lambda row: row.share),
    "tokens": ("largest", lambda row: row.info.tokens),
    "billed": ("most billed", lambda row: row.billed.tokens),
    "failed": ("most failed", lambda row: row.info.failed),
    "turns": ("most turns", lambda row: row.info.turns),
}
"""Orders of the rows: the label of each, and its sort key, highest first. Equal rows stay newest first."""


def document_of(row: ListRow, title: str | None, costs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON document of a conversation for `list --json`, `show --json` and the inspector's ``list.json``.

    `title` is its title, or else its first question. `costs` come from `ext.sums.cost_columns`.
    """
    return {
        **row.info.model_dump(),
        "first_question": None if row.info.title else title,
        "state": row.end.label,
        "reason": row.end.reason,
        "waiting": row.end.waiting,
        "error": row.end.error,
        "budget_share": row.share or None,
        "rated_down": row.is_rated_down,
        "billed": row.billed._asdict() if any(row.billed) else None,
        **costs,
    }


_PARTS: Mapping[str, Iterable[str]] = {
    "last_call": LastCall.model_fields,
    "billed": Usage._fields,
    "last_message": MessagePreview.model_fields,
    "forked_from": ForkOrigin.model_fields,
}
"""Fields of a document that become one column for each of their parts."""


def table_row(document: Mapping[str, Any], scope_keys: Sequence[str]) -> dict[str, Any]:
    """Return the document of a conversation as a row of a table; lists and other objects become JSON texts."""
    scope = document["scope"]
    columns = dict[str, Any]({key: scope.get(key) for key in (*scope_keys, "path")})
    for name, value in document.items():
        if name in _PARTS:
            parts = value or {}
            columns |= {f"{name}_{part}": parts.get(part) for part in _PARTS[name]}
        elif name != "scope":
            is_plain = not isinstance(value, dict | list)
            columns[name] = value if is_plain else json.dumps(value, ensure_ascii=False)
    return columns


class Chip(NamedTuple):
    """The button of a filter by state.

    Attributes:
        label: The label of the state.
        number: The number of rows in the state.
        is_least: True if older conversations, which were not read, may be in this state too.
    """

    label: str
    number: int
    is_least: bool

    @property
    def text(self) -> str:
        """The label with the number, such as "1+" for at least 1; without a number for at least 0."""
        if not self.is_least:
            return f"{self.label} {counted(self.number)}"
        return f"{self.label} {counted(self.number)}+" if self.number else self.label


def chips_of(rows: Sequence[ListRow], *, has_older: bool, chosen: str) -> dict[str, Chip]:
    """Return the buttons of the states that rows have, and of all states if older conversations were not read.

    "attention" and the chosen state always have a button.
    """
    chips = {
        name: Chip(label, sum(is_kept(row) for row in rows), is_least=has_older)
        for name, (label, is_kept) in CHIPS.items()
    }
    always = {"attention", chosen}
    return {
        name: chip for name, chip in chips.items() if chip.number or has_older or name in always
    }


def may_be_since(info: ConversationInfo, time: datetime | None) -> bool:
    """Return False if a conversation, and so all that are listed after it, were last changed before a time.

    The dates that order a list may be up to 10 seconds old, and clocks may differ; so a minute is allowed for.
    """
    return time is None or info.updated_at is None or info.updated_at >= time - _OUT_OF_ORDER


def with_chip(rows: Sequence[ListRow], chip: str) -> list[ListRow]:
    """Return the rows in a state, a key of `CHIPS`; all rows for ""."""
    if not chip:
        return list(rows)
    is_kept = CHIPS[chip][1]
    return [row for row in rows if is_kept(row)]


def since(rows: Sequence[ListRow], span: timedelta | None, now: datetime) -> list[ListRow]:
    """Return the rows whose conversation was changed within a time span; all rows for None."""
    if span is None:
        return list(rows)
    return [row for row in rows if row.info.updated_at and now - row.info.updated_at <= span]


def sorted_rows(rows: Sequence[ListRow], order: str) -> list[ListRow]:
    """Return the rows in an order, a key of `ORDERS`."""
    key = ORDERS[order][1]
    return sorted(rows, key=key, reverse=True)


def scope_choices(rows: Sequence[ListRow], keys: Sequence[str]) -> list[tuple[str, str]]:
    """Return the scope values that several rows share, as pairs of a choice and its label.

    A choice has the id of a conversation with the value, so that the value itself is not in a page's address. The most
    frequent value of a key comes first. A key is left out if nearly each conversation has a value of its own.
    """
    choices: list[tuple[str, str]] = []
    for key in keys:
        counts = Counter(row.info.scope[key] for row in rows if key in row.info.scope)
        like = {row.info.scope.get(key): row.info.conversation_id for row in rows}
        common = [(value, n) for value, n in counts.most_common(_MOST_VALUES) if n > 1]
        if sum(number for _, number in common) < _COVERED_BY_VALUES * len(rows):
            continue
        for value, number in common:
            choices.append((f"{key}:{like[value]}", f"{key} = {value} ({number:,})"))
    return choices
