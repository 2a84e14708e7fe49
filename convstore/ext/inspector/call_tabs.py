"""The other tabs of a call: the messages as they were sent, the changes from the call before, and the tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markdown_it.common.utils import escapeHtml
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation
from convstore.ext.inspector.call_page import calls_of, load_call, load_view, render_call
from convstore.ext.inspector.changes import changes_between
from convstore.ext.inspector.comparison import SHOWN, AlignedView
from convstore.ext.inspector.rendering import number_in, what_if_in
from convstore.ext.inspector.text import clip, sent_text
from convstore.ext.sums import by_tool, names_of_results, read_back_in
from convstore.types import StoredMessage
from convstore.values.explanations import PROMPT_UNKNOWN
from convstore.values.stamps import RequestParts

_SENT_BYTES = 50_000
_MESSAGE_BYTES = 12_000
_SENT = 100
_LOOKED_AT = 300
_CALLS = 60
_ROLES = {"human": "user", "ai": "assistant"}


@dataclass(frozen=True, slots=True)
class _SentRow:
    """A message as it was sent; `left` characters are not shown."""

    role: str
    call_id: str
    label: str
    part: str
    ordinal: int
    text: str
    left: int
    tokens: int


async def sent_page(request: Request, chat: Conversation) -> Response:
    """Return the page of the view's messages in order, as the model got them, beginning with the number ``from=``."""
    calls = await calls_of(request, chat)
    start = number_in(request, "from", 1) or 1
    view = await load_call(request, chat, calls)
    if start > max(1, len(view.sizes)):
        raise HTTPException(404)
    sent: list[_SentRow] = []
    budget = _SENT_BYTES
    for item in _sent(view, start - 1):
        budget -= len(escapeHtml(item.text).encode("utf-8", "replace"))
        if sent and (budget < 0 or len(sent) == _SENT):
            break
        sent.append(item)
    end = start + len(sent)
    following = end if end <= len(view.sizes) else None
    stamp = calls.moment.stamp if calls.moment else None
    return await render_call(
        request,
        chat,
        "sent",
        calls,
        view,
        sent=sent,
        start=start,
        following=following,
        beside=stamp.beside if stamp else RequestParts(),
    )


def _sent(view: AlignedView, start: int) -> Iterator[_SentRow]:
    ordinals = view.ordinals()
    for message, size, part in list(zip(view.history.messages, view.sizes, view.keys, strict=True))[
        start:
    ]:
        text = sent_text(message)
        beginning = clip(text, _MESSAGE_BYTES)
        yield _SentRow(
            _ROLES.get(message.type, message.type),
            getattr(message, "tool_call_id", ""),
            view.labels.get(id(message), ("", ""))[0],
            part,
            ordinals.get(message.id, 0),
            beginning,
            len(text) - len(beginning),
            size,
        )


async def changes_page(request: Request, chat: Conversation) -> Response:
    """Return the page of the changes from the call before, and of the tokens that a prompt cache can reuse."""
    calls = await calls_of(request, chat)
    view = await load_call(request, chat, calls)
    call = calls.current
    compared = call.before
    before = await load_view(request, chat, compared) if compared else None
    ordinals = (before.ordinals() if before else {}) | view.ordinals()
    cut_by = "" if what_if_in(request) else call.cut_by
    changes = changes_between(before, view, calls.has_ended, cut_by) if before else None
    stamps = (call.stamp, compared.stamp if compared else None)
    is_prompt_known = any(stamp and stamp.beside.digest for stamp in stamps)
    return await render_call(
        request,
        chat,
        "changes",
        calls,
        view,
        compared=compared,
        before=before,
        changes=changes,
        prompt_unknown="" if is_prompt_known else PROMPT_UNKNOWN,
        ordinals=ordinals,
        labels=(before.labels if before else {}) | view.labels,
        id=id,
    )


@dataclass(frozen=True, slots=True)
class _ToolResult:
    """A tool result with its form in the view.

    Attributes:
        stored: The result.
        tool: Name of its tool.
        label: Label of its form in the view.
        shown: Its tokens in the view; None if the view does not have it.
        is_read_back: True if the model read it again.
    """

    stored: StoredMessage
    tool: str
    label: str
    shown: int | None
    is_read_back: bool


async def tools_page(request: Request, chat: Conversation) -> Response:
    """Return the page of the tools called before this call: their results, errors, sizes, and results read again."""
    calls = await calls_of(request, chat)
    end = calls.moment.ordinal if calls.moment else None
    view = await load_call(request, chat, calls)
    messages = await chat.list_messages(before=end, limit=_LOOKED_AT, rewound=True)
    active = [message for message in messages if not message.is_rewound]
    tools = by_tool(active)
    results = _results(active, view)
    shown = Counter[str]()
    for result in results:
        shown[result.tool] += result.shown or 0
    return await render_call(
        request,
        chat,
        "tools",
        calls,
        view,
        scanned=messages,
        by_tool=tools,
        shown=shown,
        any_failed=any(tool.failed for tool in tools),
        results=results[: -_CALLS - 1 : -1],
    )


def _results(messages: Sequence[StoredMessage], view: AlignedView) -> list[_ToolResult]:
    """Return the tool results among messages, each with its form in the view."""
    read_back = read_back_in(messages)
    tools = names_of_results(messages)
    found: list[_ToolResult] = []
    for stored in messages:
        ordinal = stored.ordinal
        if ordinal in tools:
            given = view.given(stored)
            size = given.tokens if given.state in SHOWN else None
            found.append(
                _ToolResult(stored, tools[ordinal], given.label, size, ordinal in read_back)
            )
    return found
