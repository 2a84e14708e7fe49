"""Charts of the benchmarks as SVG that reads well on light and dark pages; no library draws so little so simply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Bar", "bar_chart"]

_WIDTH, _LEFT, _BAR, _GAP, _LINE = 760, 24, 16, 26, 20
_COLOURS = ("#8c959f", "#bf8700", "#54aeff", "#2da44e", "#8250df")
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:12px;fill:#59636e}.track{fill:#d1d9e0;"
    "opacity:.35}@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.track{fill:#3d444d}}"
)


class Bar(NamedTuple):
    """A bar: the name of its series and its value from 0 to 1."""

    series: str
    value: float


def bar_chart(title: str, groups: Mapping[str, Sequence[Bar]], legend: Mapping[str, str]) -> str:
    """Return horizontal bars in groups, each with its share as text.

    Args:
        title: First line.
        groups: Bars by the heading of their group.
        legend: Text of each series, in the order of the colours.
    """
    colours = dict(zip(legend, _COLOURS, strict=False))
    parts, top = [_text(_LEFT, 24, title)], 24
    for series, text in legend.items():
        top += _LINE
        parts.append(_rectangle(_LEFT, top - 10, 12, 12, f'fill="{colours[series]}"'))
        parts.append(_text(_LEFT + 20, top, text, "small"))
    width = _WIDTH - 2 * _LEFT - 50
    for heading, bars in groups.items():
        top += _GAP
        parts.append(_text(_LEFT, top, heading))
        for bar in bars:
            top += _BAR
            parts.append(_rectangle(_LEFT, top - 9, width, _BAR - 4, 'class="track"'))
            parts.append(_rectangle(_LEFT, top - 9, width * bar.value, _BAR - 4, f'fill="{colours[bar.series]}"'))
            parts.append(_text(_LEFT + width + 8, top + 1, f"{bar.value:.0%}", "small"))
    return svg(_WIDTH, top + 20, title, parts)


def svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Return a whole document."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", *parts, "</svg>\n"])


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{escape(text)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, look: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{height:.0f}" rx="2" {look}/>'
