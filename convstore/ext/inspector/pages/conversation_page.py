"""The page of one conversation: a page of its log beside the view, and what fills the view.

Floor 7. It reads the view, one page of the log, and the results on it that are small enough to show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from convstore.conversation import Conversation
from convstore.ext.inspector.body import Body, as_json, body_of
from convstore.ext.inspector.comparison import STATES, Given, Row, View, parts_of_view
from convstore.ext.inspector.rendering import number_in, render
from convstore.values.models import ConversationInfo, StoredMessage, ToolRecord

__all__ = ["load_view", "page"]

_PAGE = 30
_LOG_BYTES, _VIEW_BYTES = 1_000, 700
_RESULT_TOKENS, _RESULTS_TOKENS = 8_000, 40_000
_SOURCES = 12


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
    """One row of the page: stored messages and the part of the view beside them, ready to print."""

    entries: list[_Entry]
    given: Given
    view: Body | None
    begins_turn: bool


async def page(request: Request, chat: Conversation) -> Response:
    """Return the page of a conversation, with its newest messages or those next to an ordinal."""
    before, after = number_in(request, "before"), number_in(request, "after")
    reading = chat.list_messages(before=before, after=None if before else after, limit=_PAGE + 1, rewound=True)
    info, view, stored = await asyncio.gather(chat.info(), load_view(chat), reading)
    is_forward = before is None and after is not None
    shown = stored[:_PAGE] if is_forward else stored[-_PAGE:]
    more = len(stored) > _PAGE
    records = await _results(chat, shown)
    lines = [_line(row, records) for row in view.rows(shown)]
    budget = view.policy.max_tokens
    parts = parts_of_view(view)
    content = render(
        "conversation.html",
        request,
        info=info,
        view=view,
        lines=lines,
        fill=parts,
        budget_used=1000 * min(1, view.history.tokens / budget) if budget else None,
        older=shown[0].ordinal if shown and (more or is_forward) and shown[0].ordinal > 1 else None,
        newer=shown[-1].ordinal if shown and (more if is_forward else before is not None) else None,
        legend={state: STATES[state] for state in STATES if state in {line.given.state for line in lines}},
        metadata=as_json(info.metadata),
        saved=_saved(info, view),
    )
    return HTMLResponse(content)


async def load_view(chat: Conversation) -> View:
    """Load the view under the store's policy, without summarising first."""
    policy = replace(chat.store.policy, compact="explicit")
    history = await chat.load_history(policy)
    summaries = await chat.summaries() if history.summary is not None else []
    current = next((one for one in summaries if one.is_current), None)
    return View(history, policy, chat.store.token_counter, current)


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
    view = None if given.message is None or given.state in ("whole", "late") else body_of(given.message, _VIEW_BYTES)
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
