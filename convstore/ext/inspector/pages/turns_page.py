"""The page that lists turns: sizes, a chart of the whole log against what the model got, and the way to each past view.

Floor 7. It reads outlines of at most 100 turns, no messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from convstore.conversation import Conversation
from convstore.ext.inspector.rendering import number_in, render
from convstore.values.stamps import TurnOutline

__all__ = ["page"]

_PAGE = 100
_WIDTH, _HEIGHT, _MIN_BARS = 1000, 220, 8


@dataclass(frozen=True, slots=True)
class _Bar:
    """One turn in the chart: position, width and heights of its two bars, and True if a new summary came before it."""

    turn: TurnOutline
    x: float
    width: float
    full: float
    view: float
    is_compacted: bool


async def page(request: Request, chat: Conversation) -> Response:
    """Return the page of the last 100 turns, or of those before an ordinal."""
    before = number_in(request, "before")
    info, turns = await asyncio.gather(chat.info(), chat.outline(before=before, limit=_PAGE + 1))
    shown = turns[-_PAGE:]
    sizes = [turn.seen.tokens for turn in shown if turn.seen] + [turn.tokens_through for turn in shown]
    highest = max(sizes, default=0)
    content = render(
        "turns.html",
        request,
        info=info,
        bars=_bars(shown, highest),
        height=_HEIGHT,
        highest=highest,
        has_stamps=any(turn.seen for turn in shown),
        older=shown[0].first if len(turns) > _PAGE else None,
        is_newest=before is None,
    )
    return HTMLResponse(content)


def _bars(turns: Sequence[TurnOutline], highest: int) -> list[_Bar]:
    step, scale = _WIDTH / max(len(turns), _MIN_BARS), _HEIGHT / max(highest, 1)
    bars, summary = list[_Bar](), None
    for index, turn in enumerate(turns):
        seen = turn.seen
        is_compacted = bool(seen and seen.summary and summary is not None and seen.summary != summary)
        summary = seen.summary if seen else summary
        view = seen.tokens * scale if seen else 0.0
        bars.append(_Bar(turn, index * step, step * 0.8, turn.tokens_through * scale, view, is_compacted))
    return bars
