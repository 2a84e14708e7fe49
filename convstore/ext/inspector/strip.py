"""The strip above a call: one thin bar for each model call, with what filled it and what happened.

Its numbers come from stamps, so a call costs nothing to draw; the next call has none, and its view is loaded. Of a
run, messages that were appended since the load of its view are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from convstore.ext.inspector.calls import Calls
from convstore.ext.inspector.comparison import View
from convstore.types import StoredMessage
from convstore.values.stamps import ViewStamp

_BEFORE = 7
_CALLS = 15
_STEP = 28
_WIDTH = 18
_TOP = 12
_BASE = 68
_FARTHEST = 1.5
"""A budget above so many times the largest call would make all bars too low, so it is not drawn."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A call: the ordinal of its answer, 0 for the next call, the tokens of each part, and what happened."""

    ordinal: int
    parts: Mapping[str, int]
    is_current: bool = False
    has_summary: bool = False
    cut_by: str = ""
    has_failed: bool = False
    is_rewound: bool = False

    @property
    def tokens(self) -> int:
        """Its size; 0 if it is not known."""
        return sum(self.parts.values())

    @property
    def title(self) -> str:
        """What the bar shows, in words."""
        name = f"Call for message {self.ordinal}" if self.ordinal else "The next call"
        happened = {
            "rewound": self.is_rewound,
            "a summary was made": self.has_summary,
            f"the cache broke ({self.cut_by})": self.cut_by,
            "a tool failed": self.has_failed,
        }
        size = f"{self.tokens:,} tokens" if self.tokens or not self.ordinal else "no stamp"
        return (
            f"{name}: {', '.join([size, *(text for text, is_true in happened.items() if is_true)])}"
        )


@dataclass(frozen=True, slots=True)
class Strip:
    """The bars near a call; `earlier` and `later` are the calls at the ends if there are more, `top` is the scale."""

    bars: Sequence[Bar]
    top: int
    budget: int | None
    earlier: int
    later: int

    @property
    def width(self) -> int:
        """Its width in pixels."""
        return _STEP * len(self.bars)

    @property
    def budget_at(self) -> float | None:
        """The height of the line of the budget, None if it is far above all bars."""
        return None if self.budget is None or self.budget > self.top else self._y(self.budget)

    def _y(self, tokens: float) -> float:
        return _BASE - (_BASE - _TOP) * tokens / self.top

    def paths(self) -> dict[str, str]:
        """Return the rectangles of each part, and the marks, as paths.

        Each rectangle stands on the base line, behind those of the parts below it, so that bars are to scale.
        """
        paths: dict[str, str] = dict.fromkeys(
            ("now", "turn", "stub", "summary", "system", "ink", "bad"), ""
        )
        for index, bar in enumerate(self.bars):
            left = index * _STEP + (_STEP - _WIDTH) // 2
            size = 0
            for part, tokens in bar.parts.items():
                size += tokens
                paths[part] += (
                    f"M{left} {self._y(size):.2f}h{_WIDTH}V{_BASE}h-{_WIDTH}z" if tokens else ""
                )
            middle = index * _STEP + _STEP // 2
            aside = 6 if bar.cut_by and bar.has_failed else 0
            paths["summary"] += f"M{middle} 0l5 5-5 5-5-5z" if bar.has_summary else ""
            paths["ink"] += f"M{middle - aside} 71l4 7h-8z" if bar.cut_by else ""
            paths["bad"] += (
                f"M{middle + aside - 4} 74.5a4 4 0 1 1 8 0a4 4 0 1 1-8 0z" if bar.has_failed else ""
            )
        return {part: path for part, path in paths.items() if path}


def strip_of(calls: Calls, view: View, upcoming: View | None) -> Strip:
    """Return the strip of the calls near the moment, whose bar is that of the view; the last is that of the next call.

    The strip begins later than its first call only if they do not fit.
    """
    moment = calls.moment
    before = [
        message for message in calls.all if moment is None or message.ordinal < moment.ordinal
    ]
    start = max(0, min(len(before) - _BEFORE, len(calls.all) - _CALLS))
    shown = calls.all[start : start + _CALLS]
    failed = {tool.caller for tool in calls.tools().values() if tool.has_failed}
    bars = [_bar(message, calls, view, failed) for message in shown]
    is_last = not shown or shown[-1] is calls.all[-1]
    if is_last and upcoming:
        bars.append(Bar(0, upcoming.parts(), is_current=moment is None))
    highest = max([bar.tokens for bar in bars], default=0) or 1
    budget = view.policy.max_tokens
    is_near = budget is not None and budget <= _FARTHEST * highest
    has_earlier = bool(shown) and (start > 0 or calls.near[0].ordinal > 1)
    return Strip(
        bars,
        max(highest, budget or 0) if is_near else highest,
        budget,
        shown[0].ordinal if has_earlier else 0,
        shown[-1].ordinal if shown and not is_last else 0,
    )


def _bar(message: StoredMessage, calls: Calls, view: View, failed: set[int]) -> Bar:
    stamp = message.stamp
    previous = calls.before(message)
    before = previous.stamp if previous else None
    is_current = calls.moment is not None and message.ordinal == calls.moment.ordinal
    return Bar(
        message.ordinal,
        view.parts() if is_current else _parts(message.ordinal, stamp, calls.near),
        is_current=is_current,
        has_summary=bool(stamp and before and stamp.summary and stamp.summary != before.summary),
        cut_by=calls.cut_by(message),
        has_failed=message.ordinal in failed,
        is_rewound=message.is_rewound,
    )


def _parts(ordinal: int, stamp: ViewStamp | None, near: Sequence[StoredMessage]) -> dict[str, int]:
    """Return the parts that a stamp has; a turn that went on since the load is as large as its messages."""
    if stamp is None:
        return {}
    parts = stamp.parts._asdict() if any(stamp.parts) else {"turn": stamp.tokens}
    active = [stored for stored in near if stored.ordinal < ordinal and not stored.is_rewound]
    question = max(
        (at for at, stored in enumerate(active) if stored.message.type == "human"),
        default=len(active),
    )
    turn = active[question:]
    if turn and stamp.marks.stubs_through < turn[0].ordinal:
        parts["now"] = max(parts.get("now", 0), sum(message.tokens for message in turn))
    return parts
