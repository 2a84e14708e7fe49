"""The page of one conversation, now or at an earlier message, and the same view as JSON.

An answer that was appended with a stamp gives exactly the view that it answers. Any other message gives the view
directly after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import message_to_dict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation
from convstore.ext.inspector.comparison import ADDED, STATES, Given, Row, View, changes_between, parts_of_view
from convstore.ext.inspector.rendering import number_in, render
from convstore.ext.inspector.text import Body, as_json, body_of
from convstore.integration import with_children
from convstore.transfer.openai_lines import openai_message
from convstore.types import StoredMessage, ToolRecord

_PAGE, _LOOKED_BACK, _NO_END = 30, 60, 2**53
_LOG_BYTES, _VIEW_BYTES = 1_000, 700
_RESULT_TOKENS, _RESULTS_TOKENS = 8_000, 40_000
_SOURCES = 12
_ONLY_TEXT = frozenset({*ADDED, "summarised", "left_out"})
"""States of messages that the store wrote; they are shown exactly as the model gets them."""

_DIFFERENCES = {
    "counter": "This store counts tokens with another counter than the one of that call, so the view begins elsewhere.",
    "view format": "That call was made by a version of convstore that builds views by other rules.",
    "type": "The view has values of types that are not registered here; they are shown as they are stored.",
    "adapted": "The model got this view with changes: with messages appended with the answer, or with results that a "
    "middleware shortened.",
    "log": "The log is not as it was then, as after a repair.",
}
"""Why a view differs from what the model was given."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A message, None for now, and the AI message before it, whose view is compared with its own."""

    stored: StoredMessage | None = None
    before: StoredMessage | None = None


async def moment_of(request: Request, chat: Conversation) -> Moment:
    """Return the moment that ``at=`` in the address names by an ordinal, by default now; HTTPException if invalid."""
    ordinal = number_in(request, "at")
    if ordinal is None:
        return Moment()
    page = await chat.list_messages(before=ordinal + 1, limit=_LOOKED_BACK, rewound=True)
    if not page or page[-1].ordinal != ordinal:
        raise HTTPException(404)
    answers = [one for one in reversed(page[:-1]) if one.message.type == "ai" and not one.is_rewound]
    stamped = (one for one in answers if one.stamp and page[-1].stamp)
    return Moment(page[-1], next(stamped, next(iter(answers), None)))


async def load_view(
    request: Request, chat: Conversation, stored: StoredMessage | None = None, *, before: int | None = None
) -> View:
    """Load the view of a message, or of now, with the reasons that begin before an ordinal."""
    stamp, policy, origin = stored.stamp if stored else None, request.state.policy, "chosen for these pages"
    if stamp is not None:
        policy, origin = None, "that of the call"
    elif policy is None:
        policy = await chat.last_policy()
        origin = "from the newest answer with a stamp" if policy else "from the store, because no answer has a stamp"
    at = stamp or (stored.ordinal if stored else None)
    history = await chat.view_at(at, policy=policy, reasons_before=before)
    return View(history, chat.store.token_counter, origin=origin, answer=stored.ordinal if stored and stamp else 0)


@dataclass(frozen=True, slots=True)
class _Entry:
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


async def conversation_page(request: Request, chat: Conversation) -> Response:
    """Return the page of a conversation, now or at an earlier message, with one page of its log."""
    before, after = number_in(request, "before"), number_in(request, "after")
    moment, is_forward = await moment_of(request, chat), before is None and after is not None
    is_paged = before is not None
    if moment.stored is not None and not is_forward:
        before = min(before or _NO_END, moment.stored.ordinal + 1)
    limit = (after or 0) + _PAGE + 2 if is_forward else before
    reading = chat.list_messages(before=before, after=after if is_forward else None, limit=_PAGE + 1, rewound=True)
    viewing = load_view(request, chat, moment.stored, before=limit)
    info, view, stored = await asyncio.gather(chat.info(), viewing, reading)
    shown = stored[:_PAGE] if is_forward else stored[-_PAGE:]
    has_more = len(stored) > _PAGE
    records = await _results(chat, shown)
    lines = [_line(row, records) for row in view.rows(shown)]
    earlier = moment.before and await load_view(request, chat, moment.before)
    budget, full = view.policy.max_tokens, view.history.report.tokens_before or info.tokens
    return render(
        "conversation.html",
        request,
        info=info,
        children=[one async for one in with_children(chat.store, info)][1:],
        view=view,
        moment=moment,
        changes=changes_between(earlier, view) if earlier else None,
        differences=_DIFFERENCES,
        lines=lines,
        fill=parts_of_view(view),
        budget_used=1000 * view.history.tokens / budget if budget else None,
        older=shown[0].ordinal if shown and (has_more or is_forward) and shown[0].ordinal > 1 else None,
        newer=shown[-1].ordinal if shown and (has_more if is_forward else is_paged) else None,
        legend={state: STATES[state] for state in STATES if state in {line.given.state for line in lines}},
        metadata=as_json(info.metadata),
        saved=max(0, full - view.history.tokens) * 100 // max(1, full),
    )


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
    whole = stored.message if record is None else stored.message.model_copy(update={"content": record.content})
    return _Entry(stored, body_of(whole, _LOG_BYTES, is_stored=True), tool, numbers[:_SOURCES], len(numbers[_SOURCES:]))


async def export_page(request: Request, chat: Conversation) -> Response:
    """Return the messages of the view as a JSON list, in LangChain's form or OpenAI's."""
    form = request.query_params.get("form", "langchain")
    if form not in ("langchain", "openai"):
        raise HTTPException(404)
    view = await load_view(request, chat, (await moment_of(request, chat)).stored)
    values: list[Any] = [message_to_dict(one) for one in view.history.messages]
    if form == "openai":
        values = [openai_message(one, bare=True)[0] for one in view.history.messages]
    # In ASCII, so that lone surrogates survive; bytes and dates as Python writes them.
    text, headers = (
        json.dumps(values, indent=1, default=repr),
        {"Content-Disposition": f'attachment; filename="view-{form}.json"'},
    )
    return Response(text, media_type="application/json", headers=headers)
