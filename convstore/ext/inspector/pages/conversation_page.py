"""The page of one conversation: a page of its log next to the view, and what fills the view.

Floor 7. It reads the view, one page of the log, and the results on it that are small enough to show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from convstore.conversation import Conversation
from convstore.ext.inspector.body import Body, as_json, body_of
from convstore.ext.inspector.changes import Changes, changes_between
from convstore.ext.inspector.comparison import ADDED, STATES, Given, Row, View, parts_of_view
from convstore.ext.inspector.moments import DIFFERENCES, Moment, load_view, moment_of
from convstore.ext.inspector.rendering import number_in, render
from convstore.values.models import ConversationInfo, StoredMessage, ToolRecord

__all__ = ["page"]

_PAGE = 30
_LOG_BYTES, _VIEW_BYTES = 1_000, 700
_RESULT_TOKENS, _RESULTS_TOKENS = 8_000, 40_000
_SOURCES = 12
_NO_END = 2**53
_ONLY_TEXT = frozenset({*ADDED, "summarised", "left_out"})
"""States of messages that the store wrote; they are shown exactly as the model gets them."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One stored message, ready to print."""

    stored: StoredMessage
    body: Body
    tool: str
    sources: list[int]
    more_sources: int


@dataclass(frozen=True, slots=True)
class _Line:
    """One row of the page: stored messages and the part of the view next to them, ready to print."""

    entries: list[_Entry]
    given: Given
    view: Body | None
    begins_turn: bool


async def page(request: Request, chat: Conversation) -> Response:
    """Return the page of a conversation, now or at an earlier message, with one page of its log."""
    before, after = number_in(request, "before"), number_in(request, "after")
    moment, is_forward = await moment_of(request, chat), before is None and after is not None
    is_paged = before is not None
    if moment.stored is not None and not is_forward:
        before = min(before or _NO_END, moment.stored.ordinal + 1)
    limit = (after or 0) + _PAGE + 2 if is_forward else before
    reading = chat.list_messages(before=before, after=after if is_forward else None, limit=_PAGE + 1, rewound=True)
    info, view, stored = await asyncio.gather(chat.info(), load_view(chat, moment.stored, before=limit), reading)
    shown = stored[:_PAGE] if is_forward else stored[-_PAGE:]
    has_more = len(stored) > _PAGE
    records = await _results(chat, shown)
    lines = [_line(row, records) for row in view.rows(shown)]
    budget = view.policy.max_tokens
    content = render(
        "conversation.html",
        request,
        info=info,
        view=view,
        moment=moment,
        changes=await _changes(chat, moment, view),
        differences=DIFFERENCES,
        lines=lines,
        fill=parts_of_view(view),
        budget_used=1000 * view.history.tokens / budget if budget else None,
        older=shown[0].ordinal if shown and (has_more or is_forward) and shown[0].ordinal > 1 else None,
        newer=shown[-1].ordinal if shown and (has_more if is_forward else is_paged) else None,
        legend={state: STATES[state] for state in STATES if state in {line.given.state for line in lines}},
        metadata=as_json(info.metadata),
        saved=_saved(info, view),
    )
    return HTMLResponse(content)


async def _changes(chat: Conversation, moment: Moment, view: View) -> Changes | None:
    """Return what changed since the call before, None without one."""
    if moment.before is None:
        return None
    return changes_between(await load_view(chat, moment.before, is_compared=False), view)


async def _results(chat: Conversation, shown: Sequence[StoredMessage]) -> dict[str, ToolRecord]:
    """Return the tool results of a page in full, the small ones first, as far as their sizes allow."""
    tools = sorted((one for one in shown if one.message.type == "tool"), key=lambda one: one.tokens)
    ids, total = list[str](), 0
    for one in tools:
        total += one.tokens
        if one.tokens > _RESULT_TOKENS or total > _RESULTS_TOKENS:
            break
        ids.append(str(one.message.id))
    return {record.tool_message_id: record for record in await chat.get_tool_messages(ids)} if ids else {}


def _line(row: Row, records: dict[str, ToolRecord]) -> _Line:
    given = row.given
    view = None
    if given.message is not None and given.state not in ("whole", "late"):
        view = body_of(given.message, _VIEW_BYTES, is_plain=given.state in _ONLY_TEXT)
    begins_turn = bool(row.stored) and row.stored[0].message.type == "human"
    return _Line([_entry(stored, records) for stored in row.stored], given, view, begins_turn)


def _entry(stored: StoredMessage, records: dict[str, ToolRecord]) -> _Entry:
    record = records.get(str(stored.message.id))
    numbers = [source.source_id for source in record.sources] if record else []
    tool = (record.tool if record else "") or stored.message.name or ""
    return _Entry(
        stored, body_of(_whole(stored, record), _LOG_BYTES), tool, numbers[:_SOURCES], len(numbers[_SOURCES:])
    )


def _whole(stored: StoredMessage, record: ToolRecord | None) -> Any:
    """Return a message with the content that was appended, if it was read."""
    return stored.message if record is None else stored.message.model_copy(update={"content": record.content})


def _saved(info: ConversationInfo, view: View) -> int:
    """Return the share of the log's tokens that the view leaves out, in percent, rounded down."""
    full = view.history.report.tokens_before or info.tokens
    return max(0, (full - view.history.tokens) * 100 // full) if full else 0
