"""The strip above a call: one thin bar for each model call, with the parts of its view and marks for its events.

The numbers come from stamps, so drawing a call needs no command. The next call has no stamp, so its view is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from convstore.ext.inspector.comparison import AlignedView
from convstore.ext.model_calls import Calls, ModelCall
from convstore.values.stamps import TURN_ENDED, ViewStamp

_CALLS = 15
_STEP = 28
_WIDE_STEP = 44
_FEWER_CALLS = 9
_LONG = 10_000
"""Ordinals from here on need wider labels, so that fewer bars fit."""
_WIDTH = 18
_TOP = 12
_BASE = 68
DRAWING_ORDER = ("now", "turn", "stub", "summary", "system")
"""The parts of a bar in the order in which they are drawn; each is a rectangle from the base line."""

_FARTHEST = 1.5
"""Highest ratio of budget to largest call at which the budget is drawn; a higher budget would make all bars too low."""


class Scale(NamedTuple):
    """The scale of the bars: `top` is the tokens of the highest bar, or the budget if it is not far above."""

    top: int
    budget: int | None

    @classmethod
    def of(cls, sizes: Iterable[int], budget: int | None) -> Scale:
        """Return the scale for bars of these sizes."""
        highest = max(sizes, default=0) or 1
        if budget is not None and budget <= _FARTHEST * highest:
            highest = max(highest, budget)
        return cls(highest, budget)

    @property
    def budget_at(self) -> float | None:
        """The y coordinate of the budget's line; None without a budget, or if it is far above all bars."""
        return None if self.budget is None or self.budget > self.top else self._y(self.budget)

    def _y(self, tokens: float) -> float:
        return _BASE - (_BASE - _TOP) * tokens / self.top

    def rectangles(
        self, parts: Mapping[str, int], left: int, width: int
    ) -> Iterator[tuple[str, str]]:
        """Yield the rectangle of each part of a bar as an SVG path.

        Each rectangle begins at the base line and covers the parts below it; these are drawn over it later.
        """
        size = 0
        for part, tokens in parts.items():
            size += tokens
            if tokens:
                yield part, f"M{left} {self._y(size):.2f}h{width}V{_BASE}h-{width}z"


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of a call: the ordinal of its answer, 0 for the next call, the tokens of each part, and its events."""

    ordinal: int
    parts: Mapping[str, int]
    is_current: bool = False
    has_summary: bool = False
    cut_by: str = ""
    has_failed: bool = False
    is_rewound: bool = False

    @property
    def tokens(self) -> int:
        """The size of the view; 0 if it is not known."""
        return sum(self.parts.values())

    @property
    def title(self) -> str:
        """The text that describes the bar."""
        name = f"Call for message {self.ordinal}" if self.ordinal else "The next call"
        events = {
            "rewound": self.is_rewound,
            "a summary was made": self.has_summary,
            f"the cache broke ({self.cut_by})": self.cut_by,
            "a tool failed": self.has_failed,
        }
        size = f"{self.tokens:,} tokens" if self.parts or not self.ordinal else "no stamp"
        return (
            f"{name}: {', '.join([size, *(text for text, is_true in events.items() if is_true)])}"
        )


@dataclass(frozen=True, slots=True)
class Strip:
    """The bars near a call; `earlier` and `later` are the ordinals of links to further calls, 0 without a link."""

    bars: Sequence[Bar]
    scale: Scale
    earlier: int
    later: int

    @property
    def is_wide(self) -> bool:
        """True if a label is long."""
        return any(bar.ordinal >= _LONG for bar in self.bars)

    @property
    def step(self) -> int:
        """The distance between bars in pixels."""
        return _WIDE_STEP if self.is_wide else _STEP

    @property
    def width(self) -> int:
        """The width in pixels."""
        return self.step * len(self.bars)

    def paths(self) -> dict[str, str]:
        """Return the rectangles of each part, and the marks, as SVG paths by their class."""
        paths: dict[str, str] = dict.fromkeys((*DRAWING_ORDER, "ink", "hollow", "bad"), "")
        for index, bar in enumerate(self.bars):
            left = index * self.step + (self.step - _WIDTH) // 2
            marks = _marks(bar, index * self.step + self.step // 2)
            for part, path in (*self.scale.rectangles(bar.parts, left, _WIDTH), *marks):
                paths[part] += path
        return {part: path for part, path in paths.items() if path}


def _marks(bar: Bar, middle: int) -> Iterator[tuple[str, str]]:
    """Yield the marks above and below a bar as SVG paths: a new summary, a broken prompt cache, a failed tool."""
    aside = 6 if bar.cut_by and bar.has_failed else 0
    if bar.has_summary:
        yield "summary", f"M{middle} 0l5 5-5 5-5-5z"
    if bar.cut_by == TURN_ENDED:
        yield "hollow", f"M{middle - aside} 72l3 5h-6z"
    elif bar.cut_by:
        yield "ink", f"M{middle - aside} 71l4 7h-8z"
    if bar.has_failed:
        yield "bad", f"M{middle + aside - 4} 74.5a4 4 0 1 1 8 0a4 4 0 1 1-8 0z"


def strip_of(calls: Calls, view: AlignedView, upcoming: AlignedView | None, cut: str) -> Strip:
    """Return the strip of the calls near the selected one; with `upcoming`, the last bar is that of the next call.

    `view` is the view of the selected call, and `cut` the cause that broke its cache. Calls at the beginning are left
    out only if not all calls fit.
    """
    before = _number_before(calls)
    is_long = bool(calls.near) and calls.near[-1].ordinal >= _LONG
    fitting = _FEWER_CALLS if is_long else _CALLS
    start = max(0, min(before - fitting // 2, len(calls.all) - fitting))
    shown = calls.all[start : start + fitting]
    bars = [_bar(call, calls, view, cut) for call in shown]
    has_later = bool(shown) and shown[-1] is not calls.all[-1]
    if upcoming and not has_later:
        bars.append(_next_bar(calls, upcoming, cut))
    return Strip(
        bars,
        Scale.of([bar.tokens for bar in bars], view.policy.max_tokens),
        _earlier_than(calls, start),
        shown[-1].ordinal if has_later else 0,
    )


def _earlier_than(calls: Calls, start: int) -> int:
    """Return the ordinal of the link to earlier calls; 0 if the strip begins with the log."""
    if not calls.all or (start == 0 and calls.near[0].ordinal <= 1):
        return 0
    return calls.all[start].ordinal


def _number_before(calls: Calls) -> int:
    """Return the number of calls before the selected one."""
    if calls.moment is None:
        return len(calls.all)
    return sum(message.ordinal < calls.moment.ordinal for message in calls.all)


def _next_bar(calls: Calls, upcoming: AlignedView, cut: str) -> Bar:
    """Return the bar of the next call."""
    call = calls.upcoming
    return Bar(
        0,
        upcoming.parts(),
        is_current=calls.moment is None,
        has_summary=call.has_summary,
        cut_by=call.cut_by if calls.moment else cut,
    )


def _bar(call: ModelCall, calls: Calls, view: AlignedView, cut: str) -> Bar:
    is_current = calls.moment is not None and call.ordinal == calls.moment.ordinal
    return Bar(
        call.ordinal,
        view.parts() if is_current else parts_in(call.stamp),
        is_current=is_current,
        has_summary=call.has_summary,
        cut_by=cut if is_current else call.cut_by,
        has_failed=call.failed > 0,
        is_rewound=call.is_rewound,
    )


def parts_in(stamp: ViewStamp | None) -> dict[str, int]:
    """Return the tokens of each part from a stamp; {} without a stamp."""
    if stamp is None:
        return {}
    return stamp.parts._asdict() if any(stamp.parts) else {"turn": stamp.tokens}
