"""Charts of the benchmarks as SVG that reads well on light and dark pages; no library draws so little so simply."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Bar", "Dot", "bar_chart", "dot_chart", "line_charts"]

_WIDTH, _LEFT, _BAR, _GAP, _LINE = 760, 24, 16, 26, 20
_PANEL, _PANEL_HEIGHT, _PLOT, _LABEL = 470, 240, 240, 14
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:12px;fill:#59636e}.track{fill:#d1d9e0;"
    "opacity:.5}.card{fill:#fbfcfe;stroke:#d5dae2}.strong{fill:#1f5fcf}.grey{fill:#7b8594}.pale{fill:#b3bbc6}"
    ".line{fill:none;stroke:#7b8594;stroke-width:1.5}.strong-line{fill:none;stroke:#1f5fcf;stroke-width:3}"
    "@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.track{fill:#3d444d}"
    ".card{fill:#12161d;stroke:#343d4a}.strong{fill:#7fb0ff}.grey{fill:#8994a5}.pale{fill:#5b6572}"
    ".line{stroke:#8994a5}.strong-line{stroke:#7fb0ff}}"
)
"""One strong colour, for convstore; the card keeps texts readable where page and system differ in their scheme."""


class Bar(NamedTuple):
    """A bar: the name of its series and its value from 0 to 1."""

    series: str
    value: float


def bar_chart(title: str, groups: Mapping[str, Sequence[Bar]], legend: Mapping[str, str]) -> str:
    """Return horizontal bars in groups, each with its share as text.

    Args:
        title: First line.
        groups: Bars by the heading of their group.
        legend: Text of each series: two others, then those of convstore.
    """
    looks = _looks(legend)
    parts, top = [_text(_LEFT, 24, title)], 24
    for series, text in legend.items():
        top += _LINE
        parts.append(_rectangle(_LEFT, top - 10, 12, 12, looks[series]))
        parts.append(_text(_LEFT + 20, top, text, "small"))
    width = _WIDTH - 2 * _LEFT - 50
    for heading, bars in groups.items():
        top += _GAP
        parts.append(_text(_LEFT, top, heading))
        for bar in bars:
            top += _BAR
            parts.append(_rectangle(_LEFT, top - 9, width, _BAR - 4, 'class="track"'))
            parts.append(_rectangle(_LEFT, top - 9, width * bar.value, _BAR - 4, looks[bar.series]))
            parts.append(_text(_LEFT + width + 8, top + 1, f"{bar.value:.0%}", "small"))
    return svg(_WIDTH, top + 20, title, parts)


def line_charts(title: str, panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> str:
    """Return charts with logarithmic axes, two in a row, each line with its name at its end; the first is strong.

    Args:
        title: First line.
        panels: By the heading of a chart and the name of a series, its values by number of turns.
    """
    parts, top = [_text(_LEFT, 24, title)], 24
    for number, (heading, series) in enumerate(panels.items()):
        left, up = _LEFT + number % 2 * _PANEL, top + 30 + number // 2 * _PANEL_HEIGHT
        parts += _panel(heading, series, left, up)
    return svg(_LEFT + 2 * _PANEL, top + 20 + (len(panels) + 1) // 2 * _PANEL_HEIGHT, title, parts)


def _panel(
    heading: str, series: Mapping[str, Mapping[int, float]], left: int, top: int
) -> Iterator[str]:
    turns = sorted({turn for values in series.values() for turn in values})
    values = [value for points in series.values() for value in points.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    width, height = _PLOT, _PANEL_HEIGHT - 70
    first, last = math.log10(turns[0]), math.log10(turns[-1])

    def across(turn: int) -> float:
        return left + 50 + width * (math.log10(turn) - first) / ((last - first) or 1)

    def down(value: float) -> float:
        return top + 20 + height * (high - math.log10(value)) / ((high - low) or 1)

    yield _text(left, top, heading)
    for power in range(low, high + 1):
        y = down(10.0**power)
        yield _rectangle(left + 50, y, width, 1, 'class="track"')
        yield _text(left, y + 4, f"{10.0**power:,g}", "small")
    for turn in turns:
        yield _text(across(turn) - 10, top + height + 38, f"{turn:,}", "small")
    ends = {
        name: (across(max(points)), down(points[max(points)])) for name, points in series.items()
    }
    labels = _spread({name: y for name, (_, y) in ends.items()})
    for number, (name, points) in reversed(list(enumerate(series.items()))):
        line = " ".join(
            f"{across(turn):.1f},{down(value):.1f}" for turn, value in sorted(points.items())
        )
        look = (
            f'class="line" stroke-dasharray="{_DASHES[(number - 1) % len(_DASHES)]}"'
            if number
            else 'class="strong-line"'
        )
        yield f'<polyline points="{line}" {look}/>'
        x, y = ends[name]
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{"grey" if number else "strong"}"/>'
        yield _text(x + 9, labels[name] + 4, name, "small" if number else "")


def _spread(places: Mapping[str, float]) -> dict[str, float]:
    """Return heights of labels near these places that do not overlap, from top to bottom."""
    spread: dict[str, float] = {}
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        spread[name] = max([place, *(used + _LABEL for used in spread.values())])
    return spread


def _looks(names: Iterable[str]) -> dict[str, str]:
    """Return the look of each series of bars: two greys, then the strong colour, ever fuller."""
    looks = (
        'class="pale"',
        'class="grey"',
        'class="strong" opacity=".4"',
        'class="strong" opacity=".7"',
        'class="strong"',
    )
    return dict(zip(names, looks, strict=False))


def svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Return a whole document."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    card = f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>'
    return "\n".join(
        [
            head,
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            card,
            *parts,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{escape(text)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, look: str) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height:.0f}" rx="2" {look}/>'
    )


class Dot(NamedTuple):
    """A point of a chart with its label: a share of the axis to the right, and a value from 0 to 1 upwards."""

    label: str
    x: float
    y: float


def dot_chart(title: str, dots: Sequence[Dot], *, across: str, up: str, strong: str) -> str:
    """Return points with labels; those whose label begins with `strong` have the strong colour, others are grey."""
    left, top, width, height = _LEFT + 50, 60, _WIDTH - 280, 280
    quarters = math.ceil(max(1.0, *(dot.x for dot in dots)) * 4)
    parts = [
        _text(_LEFT, 24, title),
        _text(_LEFT, 48, up, "small"),
        _text(left, top + height + 40, across, "small"),
    ]
    parts += [
        _text(
            left + width * quarter / quarters - 10, top + height + 20, f"{quarter / 4:.0%}", "small"
        )
        for quarter in range(quarters + 1)
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + height * (1 - share)
        parts += [
            _rectangle(left, y, width, 1, 'class="track"'),
            _text(_LEFT, y + 4, f"{share:.0%}", "small"),
        ]
    lines: list[tuple[float, float]] = []
    for dot in sorted(dots, key=lambda dot: -dot.y):
        x, y = left + width * dot.x * 4 / quarters, top + height * (1 - dot.y)
        line = max(
            [y + 4, *(used + 16 for at, used in lines if abs(at - x) < 180 and used + 16 < y + 40)]
        )
        lines.append((x, line))
        is_strong = dot.label.startswith(strong)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" class="{"strong" if is_strong else "grey"}"/>'
        )
        parts.append(_text(x + 12, line, dot.label, "" if is_strong else "small"))
    return svg(_WIDTH, top + height + 60, title, parts)
