"""The pages with lists: conversations, also as CSV and JSON, and hits of a search."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation, ConversationStore
from convstore.edges import with_children
from convstore.ext.inspector.call_page import titled_info
from convstore.ext.inspector.list_selection import (
    SEARCHED,
    ScopeChoice,
    choice_of,
    select,
    words_in,
)
from convstore.ext.inspector.rendering import number_in, render
from convstore.ext.sums import row_documents
from convstore.integration import host_of, marks_of
from convstore.values.json_form import json_values
from convstore.values.list_rows import (
    ORDERS,
    TIMES,
    ListRow,
    chips_of,
    scope_choices,
    table_row,
)
from convstore.values.reports import ConversationHits, SearchResult
from convstore.values.usage import Prices

_PAGE = 50
_CHILDREN = 5
_HITS = 30
_MOST_SEARCHED = 1_000
"""Number of conversations that a search with ``older`` in its address covers."""
_NO_END = 2**53 - 1
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a text that a spreadsheet would run as a formula."""


async def listing_page(
    request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> Response:
    """Return the list of conversations that the request may see and its form selects."""
    found = await select(request, store, permitted)
    end = found.query.start + _PAGE
    rows, more = await _with_sub_agents(store, found.rows[found.query.start : end])
    return render(
        "listing.html",
        request,
        found=found,
        query=found.query,
        choice=found.choice,
        rows=rows,
        more=more,
        chips=chips_of(found.in_time, has_older=not found.is_last, chosen=found.query.chip),
        times=TIMES,
        orders=ORDERS,
        scopes=scope_choices(found.covered, store.scope_keys),
        following=end if end < len(found.rows) else 0,
        address=partial(address_of, request),
        scope_keys=store.scope_keys,
    )


def address_of(request: Request, **changes: Any) -> str:
    """Return the query of the list with changed values, without empty ones."""
    query = {**request.query_params, **changes}
    return urlencode({name: value for name, value in query.items() if value})


async def exported_list(
    prices: Prices,
    form: str,
    request: Request,
    store: ConversationStore,
    permitted: Mapping[str, str],
) -> Response:
    """Return the rows that the form selects as a file to download, "json" or "csv".

    Rows have the fields of `convstore list --json`; costs do not include sub-agents.
    """
    found = await select(request, store, permitted)
    rows = json_values(await row_documents(store, found.rows, prices))
    headers = {"Content-Disposition": f'attachment; filename="conversations.{form}"'}
    if form == "json":
        written = json.dumps(rows, indent=1)
    else:
        written = _as_csv([table_row(row, store.scope_keys) for row in rows])
    kinds = {"json": "application/json", "csv": "text/csv; charset=utf-8"}
    return Response(written, media_type=kinds[form], headers=headers)


def _as_csv(rows: list[dict[str, Any]]) -> str:
    """Return rows as CSV; a text that a spreadsheet would run as a formula begins with an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows[0] if rows else ())
    for row in rows:
        writer.writerow([_cell(value) for value in row.values()])
    return file.getvalue().encode("utf-8", "replace").decode()


def _cell(value: Any) -> Any:
    """Return the value of a cell, "" for None."""
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


async def _with_sub_agents(
    store: ConversationStore, rows: Sequence[ListRow]
) -> tuple[list[ListRow], dict[str, int]]:
    """Return rows, each followed by those of its first sub-agents, and the numbers of sub-agents that are not shown.

    Conversations without a title get their first question as title. The numbers are by the id of the last row shown
    before the missing sub-agents.
    """
    shown: list[ListRow] = []
    more: dict[str, int] = {}
    for row in rows:
        family = [member async for member in with_children(store, row.info)]
        children = family[1 : 1 + _CHILDREN]
        shown += [row, *(await host_of(store).rows(children) if children else ())]
        if left := len(family) - 1 - len(children):
            more[shown[-1].info.conversation_id] = left
    named = await host_of(store).titled([row.info for row in shown])
    return [replace(row, info=info) for row, info in zip(shown, named, strict=True)], more


async def search_page(request: Request, chat: Conversation) -> Response:
    """Return the messages of a conversation that match the words of the query."""
    text = words_in(request)
    end = (number_in(request, "at") or _NO_END) + 1
    info, hits = await asyncio.gather(titled_info(chat), chat.search(text, limit=_HITS, before=end))
    groups = [
        ConversationHits(
            scope=info.scope, conversation_id=info.conversation_id, title=info.title, hits=hits
        )
    ]
    found = SearchResult(conversations=groups if hits else [], searched=1)
    return _hits(request, text, found, info=info, choice=ScopeChoice(), widest=0)


async def search_all_page(
    request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> Response:
    """Return the messages that match the words of the query, from the conversations that the request may see."""
    text = words_in(request)
    choice = await choice_of(request, store, permitted)
    scope: dict[str, Any] = {**permitted, **choice.scope}
    is_wide = "older" in request.query_params
    searched = _MOST_SEARCHED if is_wide else SEARCHED
    found = await store.search(
        text, limit=_HITS, conversations=searched, everything=not scope, **scope
    )
    found = found.model_copy(
        update={"conversations": await host_of(store).titled(found.conversations)}
    )
    can_widen = found.searched == SEARCHED and not is_wide
    widest = _MOST_SEARCHED if can_widen else 0
    return _hits(request, text, found, info=None, choice=choice, widest=widest)


def _hits(request: Request, text: str, found: SearchResult, **context: Any) -> Response:
    """Return the page of the messages found, with the words of the query marked."""
    hits = sum(len(conversation.hits) for conversation in found.conversations)
    marks = marks_of(text)
    return render(
        "search.html",
        request,
        text=text,
        found=found,
        hits=hits,
        is_cut=hits == _HITS,
        marks=marks,
        address=partial(address_of, request),
        **context,
    )
