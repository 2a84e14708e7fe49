"""The overview of a conversation: all its calls in at most 150 bars with marks, and below them the calls of a window.

A call is represented by the AI message that answers it. Sizes come from stamps; a call without a stamp has no bar.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation
from convstore.ext.inspector.call_page import titled_info
from convstore.ext.inspector.rendering import number_in, render
from convstore.ext.inspector.strip import DRAWING_ORDER, Scale, parts_in
from convstore.ext.model_calls import CallFold, ModelCall
from convstore.types import ConversationInfo
from convstore.values.plain import slices
from convstore.values.scope import PATH
from convstore.values.stamps import TURN_ENDED

_PAGE = 1_000
_BUCKETS = 150
_WINDOW_BUCKETS = 3
_STEP = 8
_WIDTH = 6
_HEIGHT = 92
_KEPT = 16
"""Number of conversations whose calls are cached."""

_SECONDS = 3.0
"""Time limit for reading the log; at least one page is read."""

_LONGEST = 120.0
"""Time limit for reading the rest of the log, if the address asks for it."""

_ROWS = 50
"""Minimum number of calls below the overview; a window of a long conversation has more."""


@dataclass(slots=True)
class CallsRead(CallFold):
    """The calls of the part of a log that was read; `is_whole` is True if the whole log was read."""

    is_whole: bool = False

    async def read(self, chat: Conversation, seconds: float) -> None:
        """Read more of the log, until its end or a time limit."""
        end = time.monotonic() + seconds
        while not self.is_whole:
            page = await chat.list_messages(after=self.last, limit=_PAGE, rewound=True)
            for stored in page:
                self.add(stored)
            self.is_whole = len(page) < _PAGE
            if time.monotonic() >= end:
                break
        await self.compare_views(chat)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Calls that share a bar; the bar has the size of the largest call."""

    calls: Sequence[ModelCall]

    @property
    def largest(self) -> ModelCall:
        """The call that got the most tokens."""
        return max(self.calls, key=lambda call: call.tokens or 0)


class Overview:
    """The bars of all calls, and the window of calls that is listed below them.

    `first` is the ordinal of the window's first call; None for the last calls.

    Attributes:
        calls: All calls.
        buckets: The calls of each bar.
        start: Index of the first call of the window.
        end: Index after its last call.
        scale: The heights of the bars, with the budget of the last call with a stamp.
    """

    def __init__(self, calls: Sequence[ModelCall], first: int | None) -> None:
        self.calls = calls
        self._size = max(1, -(-len(calls) // _BUCKETS))
        self.buckets = list(map(Bucket, slices(calls, self._size)))
        rows = max(_ROWS, self._size * _WINDOW_BUCKETS)
        at = len(calls) if first is None else bisect_left(calls, first, key=attrgetter("ordinal"))
        self.start = max(0, min(at, len(calls) - (rows if first is None else 1)))
        self.end = min(self.start + rows, len(calls))
        stamps = [call.stamp for call in calls if call.stamp]
        budget = stamps[-1].history_policy.max_tokens if stamps else None
        self.scale = Scale.of([call.tokens or 0 for call in calls], budget)

    @property
    def rows(self) -> Sequence[ModelCall]:
        """The calls of the window."""
        return self.calls[self.start : self.end]

    @property
    def width(self) -> int:
        """The width of the bars in pixels."""
        return _STEP * len(self.buckets)

    @property
    def window(self) -> tuple[int, int]:
        """The left edge and the width of the window, in pixels."""
        left = self.start // self._size
        right = -(-self.end // self._size)
        return left * _STEP, max(1, right - left) * _STEP

    def links(self) -> Iterator[tuple[int, int, str, bool]]:
        """Yield the windows with links: first ordinal, width in pixels, a text, and True for the window shown below."""
        shown = self.rows[0].ordinal if self.rows else 0
        for buckets in slices(self.buckets, _WINDOW_BUCKETS):
            first = buckets[0].calls[0].ordinal
            last = buckets[-1].calls[-1].ordinal
            largest = max((bucket.largest.tokens or 0 for bucket in buckets), default=0)
            text = f"Calls for messages {first:,} to {last:,}, at most {largest:,} tokens"
            yield first, _STEP * len(buckets), text, first <= shown <= last

    def paths(self) -> dict[str, str]:
        """Return the bars and marks as SVG paths by their class, in the order in which they are drawn."""
        paths: dict[str, str] = dict.fromkeys((*DRAWING_ORDER, "ink", "hollow", "bad", "mark"), "")
        for index, bucket in enumerate(self.buckets):
            parts = parts_in(bucket.largest.stamp)
            bar = self.scale.rectangles(parts, index * _STEP + 1, _WIDTH)
            for name, path in (*bar, *_marks(index, bucket)):
                paths[name] += path
        return {name: path for name, path in paths.items() if path}

    def neighbours(self, has: Callable[[ModelCall], object]) -> tuple[int, int, int]:
        """Count the calls with a property; return the count, the last one before the window and the first after it.

        The calls are given by their ordinals; 0 if there is no such call.
        """
        found = [call.ordinal for call in self.calls if has(call)]
        if not self.rows:
            return 0, 0, 0
        before = bisect_left(found, self.rows[0].ordinal)
        after = bisect_right(found, self.rows[-1].ordinal)
        earlier = found[before - 1] if before else 0
        later = found[after] if after < len(found) else 0
        return len(found), earlier, later


def _marks(index: int, bucket: Bucket) -> Iterator[tuple[str, str]]:
    """Yield the marks of a bar: a new summary above it, a cache break and a failure in two lines below it."""
    middle = index * _STEP + _STEP // 2
    if any(call.has_summary for call in bucket.calls):
        yield "mark", f"M{middle} 1l4 4-4 4-4-4z"
    if any(call.is_break for call in bucket.calls):
        yield "ink", f"M{middle} 71l4 7h-8z"
    elif any(call.cut_by for call in bucket.calls):
        yield "hollow", f"M{middle} 72l3 5h-6z"
    if any(call.failed for call in bucket.calls):
        yield "bad", f"M{middle - 4} 85a4 4 0 1 1 8 0a4 4 0 1 1-8 0z"


MARKS: Mapping[str, tuple[Callable[[ModelCall], object], str, str, str]] = {
    "bad": (
        lambda call: call.failed,
        "call with failed tools",
        "calls with failed tools",
        "failure",
    ),
    "ink": (lambda call: call.is_break, "other cache break", "other cache breaks", "break"),
    "mark": (lambda call: call.has_summary, "summary", "summaries", "summary"),
}
"""The properties of calls that the page counts and links to: rule, singular, plural, and name in links."""


class OverviewCache:
    """A cache of the calls of recently viewed conversations, without texts of messages."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[object, CallsRead]] = {}

    async def read(self, chat: Conversation, info: ConversationInfo, seconds: float) -> CallsRead:
        """Return the calls of a conversation; if it changed or was not read completely, read more of its log first."""
        state = info.updated_at, info.message_count, info.tokens
        known, calls = self._kept.pop(info.conversation_id, (None, CallsRead()))
        if known != state:
            calls = CallsRead()
        await calls.read(chat, seconds)
        self._kept[info.conversation_id] = state, calls
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return calls


async def overview_page(cache: OverviewCache, request: Request, chat: Conversation) -> Response:
    """Return the page with the overview of a conversation; the window begins with the call ``from=`` of the address."""
    info = await titled_info(chat)
    began = time.perf_counter()
    seconds = _LONGEST if "whole" in request.query_params else _SECONDS
    read = await cache.read(chat, info, seconds)
    milliseconds = round(1_000 * (time.perf_counter() - began))
    overview = Overview(read.calls, number_in(request, "from", number_in(request, "at")))
    return render(
        "overview.html",
        request,
        info=info,
        last=read.last,
        is_whole=read.is_whole,
        milliseconds=milliseconds,
        overview=overview,
        height=_HEIGHT,
        jumps={name: (*overview.neighbours(has), *words) for name, (has, *words) in MARKS.items()},
        at_ends=sum(call.cut_by == TURN_ENDED for call in read.calls),
        children=await _children(chat, info, overview.rows),
    )


async def _children(
    chat: Conversation, info: ConversationInfo, calls: Sequence[ModelCall]
) -> dict[int, list[ConversationInfo]]:
    """Return the conversations of sub-agents that tool calls began, by the ordinal of the message with the call."""
    if not info.has_children:
        return {}
    by_path = {child.scope[PATH]: child for child in await chat.children()}
    found: dict[int, list[ConversationInfo]] = {}
    for call in calls:
        for tool in call.tools:
            path = chat.child(call.message_id, tool).scope[PATH]
            if child := by_path.get(path):
                found.setdefault(call.ordinal, []).append(child)
    return found
