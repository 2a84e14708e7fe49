"""The rows of a list of conversations, each with the end of its log, and how to select and order them.

For the inspector and the command line.
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
"""The words for what the newest turn is doing, or how it ended, unless it is finished."""


_LASTING = frozenset({"waiting", "asked"})
"""Ends that last until somebody acts."""


class ConversationEnd(NamedTuple):
    """The end of a conversation.

    Attributes:
        status: The status of its newest turn, as in `TurnState`; "cut", "refused" or "imported" as in
            `ConversationInfo`; "" without a turn.
        waiting: Names of the tools whose calls wait for a person.
        error: Class and first line of the error by which the turn broke off, "" if that is not known.
        step: Where an interrupted turn is, such as "during search"; "" if that is not known.
        is_only_asked: True if the turn has only its question: nothing says that somebody worked on it.
        since: Date of the newest entry of the log; None if it was not read.
        open_calls: For an interrupted turn the `result_id` of each call without a result.
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
        """Return the end of a conversation whose newest turn is not open."""
        return cls() if info.state == "open" else cls(info.state)

    @property
    def kind(self) -> str:
        """A key of `LABELS`; another text if the turn is finished, or there is none."""
        return "asked" if self.is_only_asked else self.status

    @property
    def label(self) -> str:
        """What the newest turn is doing, or how it ended, in the words of `LABELS`; "" if it is finished."""
        return LABELS.get(self.kind, "")

    @property
    def reason(self) -> str:
        """The tools whose calls wait for a person, or how the turn broke off: the error, else the step."""
        if self.kind == "interrupted":
            return self.error or self.step
        return ", ".join(self.waiting)

    def line(self, now: datetime | None = None) -> str:
        """Return its label and its reason; "" if it is finished.

        Given the time, also for how long a turn waits or has no answer: nothing was written since.
        """
        label = self.label
        if now and self.since and self.kind in _LASTING:
            label = f"{label} {age(self.since, now)}"
        return f"{label}: {self.reason}" if self.reason else label


_FULL = 0.8
"""Share of its budget from which the last call counts as nearly full."""

_IN_NEED = frozenset({"waiting", "interrupted", "asked", "cut", "refused"})
"""Ends of a conversation that need attention."""

_OUT_OF_ORDER = timedelta(minutes=1)
_MOST_VALUES = 30
"""Values of a scope key that the form offers."""
_COVERED_BY_VALUES = 0.25
"""Share of the conversations that the values of a scope key must have together, or the form does not offer them."""


@dataclass(frozen=True, slots=True)
class ListRow:
    """A conversation of the list, the end of its log, and if a message of it was rated down."""

    info: ConversationInfo
    end: ConversationEnd
    is_rated_down: bool = False

    @property
    def is_child(self) -> bool:
        """True for the conversation of a sub-agent."""
        return "path" in self.info.scope

    @property
    def share(self) -> float:
        """The share of its budget that the last call took; 0 if it is not known, or has no limit."""
        call = self.info.last_call
        return call.tokens / call.max_tokens if call and call.max_tokens else 0.0

    @property
    def is_full(self) -> bool:
        """True if the last call took more than most of its budget."""
        return self.share > _FULL

    @property
    def billed(self) -> Usage:
        """The tokens that providers counted, of all models; zeros if they did not."""
        return reduce(Usage.plus, (Usage(**counts) for counts in self.info.usage.values()), Usage())

    def state_line(self, now: datetime | None = None) -> str:
        """Return its end with the reason, the share of its budget if it is nearly full, and if it was rated down.

        Given the time, also how long the end has lasted; see `ConversationEnd.line`.
        """
        share = f"{percent(self.share)}% of its budget" if self.is_full else ""
        rating = CHIPS["down"][0] if self.is_rated_down else ""
        return "; ".join(filter(None, (self.end.line(now), share, rating)))

    @property
    def needs_attention(self) -> bool:
        """True if it waits for a person, broke off, has no whole answer, or has little room left."""
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
"""States by which the form keeps rows: the label of each, and its rule."""

TIMES: Mapping[str, tuple[str, timedelta | None]] = {
    "": ("any time", None),
    "1h": ("last hour", timedelta(hours=1)),
    "1d": ("last 24 hours", timedelta(days=1)),
    "7d": ("last 7 days", timedelta(days=7)),
    "30d": ("last 30 days", timedelta(days=30)),
}
"""Times since the last message by which the form keeps rows."""

ORDERS: Mapping[str, tuple[str, Callable[[ListRow], float]]] = {
    "": ("newest", lambda _: 0),
    "full": ("fullest last call", lambda row: row.share),
    "tokens": ("largest", lambda row: row.info.tokens),
    "billed": ("most billed", lambda row: row.billed.tokens),
    "failed": ("most failed", lambda row: row.info.failed),
    "turns": ("most turns", lambda row: row.info.turns),
}
"""Orders of the rows: the label of each, and its key, the highest first; rows that are equal stay newest first."""


def document_of(row: ListRow, title: str | None, costs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a conversation as `list --json`, `show --json` and the inspector's ``list.json`` have it.

    `title` is its title, or else its first question. `costs` are those of `ext.sums.cost_columns`.
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
"""Fields of a document that are columns each in a table."""


def columns_of(document: Mapping[str, Any], scope_keys: Sequence[str]) -> dict[str, Any]:
    """Return the document of a conversation as a row of a table: lists and other objects are JSON texts."""
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
    """The button of a state.

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
        """The label and the number, "1+" for at least 1; no number if none was found and older ones may be."""
        if not self.is_least:
            return f"{self.label} {counted(self.number)}"
        return f"{self.label} {counted(self.number)}+" if self.number else self.label


def chips_of(rows: Sequence[ListRow], *, has_older: bool, chosen: str) -> dict[str, Chip]:
    """Return the buttons of the states that rows have, or that may be found in older conversations.

    "attention", and the state that is chosen, have a button always.
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
    """Return False if a conversation, and so all that are listed after it, were changed before a time.

    Conversations are listed by dates that are older than theirs by at most 10 seconds, or by what clocks differ.
    """
    return time is None or info.updated_at is None or info.updated_at >= time - _OUT_OF_ORDER


def with_chip(rows: Sequence[ListRow], chip: str) -> list[ListRow]:
    """Return the rows in a state, one of `CHIPS`; all of them for ""."""
    if not chip:
        return list(rows)
    is_kept = CHIPS[chip][1]
    return [row for row in rows if is_kept(row)]


def since(rows: Sequence[ListRow], span: timedelta | None, now: datetime) -> list[ListRow]:
    """Return the rows whose conversation was changed within a length of time; all of them for None."""
    if span is None:
        return list(rows)
    return [row for row in rows if row.info.updated_at and now - row.info.updated_at <= span]


def in_order(rows: Sequence[ListRow], order: str) -> list[ListRow]:
    """Return the rows in an order, one of `ORDERS`."""
    key = ORDERS[order][1]
    return sorted(rows, key=key, reverse=True)


def scope_choices(rows: Sequence[ListRow], keys: Sequence[str]) -> list[tuple[str, str]]:
    """Return the scope values that several rows share, as key and id of a conversation that has it, and its text.

    An address names a conversation in place of the value. The most frequent value of a key comes first. A key is left
    out if nearly each conversation has a value of its own.
    """
    choices = list[tuple[str, str]]()
    for key in keys:
        counts = Counter(row.info.scope[key] for row in rows if key in row.info.scope)
        like = {row.info.scope.get(key): row.info.conversation_id for row in rows}
        common = [(value, n) for value, n in counts.most_common(_MOST_VALUES) if n > 1]
        if sum(number for _, number in common) < _COVERED_BY_VALUES * len(rows):
            continue
        for value, number in common:
            choices.append((f"{key}:{like[value]}", f"{key} = {value} ({number:,})"))
    return choices
