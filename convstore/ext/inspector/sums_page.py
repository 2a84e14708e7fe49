"""The page of sums: the stored tokens, calls and costs of the conversations that the form of the list selects.

Sums by scope value, metadata and model come from the rows of a listing. Sums of tools, replaced answers and summaries
need the logs. Both are read for a limited time, and each table says how much it covers. A link reads the rest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from convstore import ConversationStore
from convstore.ext.inspector.list_pages import address_of
from convstore.ext.inspector.list_selection import select
from convstore.ext.inspector.rendering import render
from convstore.ext.sums import Sums
from convstore.types import ConversationInfo
from convstore.values.usage import Prices

_GROUPS = 20
"""Maximum number of groups in a table."""

_TOOLS = 40
"""Maximum number of tools in a table."""

_SECONDS = 3.0
"""Time limit for the conversations, and again for their logs; at least one page and one log are read."""

_MOST_LOGS = 5_000
"""Maximum number of logs that are read: those of the newest conversations."""

_LONGEST = 120.0
_MOST_LOGS_OF_ALL = 100_000
"""Time limit and maximum number of logs if the address asks for everything."""


async def sums_page(
    prices: Prices, request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> Response:
    """Return the sums of the conversations that the form of the list selects."""
    sums = Sums(store.scope_keys, prices)
    is_whole = "whole" in request.query_params
    seconds = _LONGEST if is_whole else _SECONDS
    most_logs = _MOST_LOGS_OF_ALL if is_whole else _MOST_LOGS
    logs: list[ConversationInfo] = []
    covered = 0
    end = time.monotonic() + seconds
    cursor: str | None = None
    while True:
        page = await select(request, store, permitted, cursor=cursor)
        covered += len(page.covered)
        for row in page.rows:
            await sums.add_family(store, row.info)
        logs += [row.info for row in page.rows[: most_logs - len(logs)]]
        cursor = page.next_cursor
        if page.is_last or time.monotonic() >= end:
            break
    began = time.monotonic()
    end = began + seconds
    for info in logs:
        await sums.read(store, info)
        if time.monotonic() >= end:
            break
    read = sums.logs + sums.unread
    unread = sums.together.number - read
    rest = round((time.monotonic() - began) * unread / max(1, read))
    return render(
        "sums.html",
        request,
        choice=page.choice,
        address=partial(address_of, request),
        headline=page.headline_of(sums.together.number, covered),
        missed=page.missed,
        older="" if page.is_last else cursor,
        unread=unread,
        rest_seconds=max(1, rest),
        is_whole=is_whole,
        is_ordered=bool(page.query.order),
        sums=sums.document(),
        most=_GROUPS,
        most_tools=_TOOLS,
        prices=prices,
    )
