"""The page of a conversation with a damaged document: only its log, with the damaged messages marked.

The page has neither view nor calls, because these cannot be read with a message missing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from convstore import Conversation
from convstore.exceptions import CorruptDocumentError
from convstore.ext.inspector.rendering import number_in, render
from convstore.ext.inspector.text import Body, body_of
from convstore.integration import log_of
from convstore.types import StoredMessage
from convstore.values.scope import PATH

_PAGE = 25
_BYTES = 700
_TOKENS = 100_000


class _LogRow(NamedTuple):
    """A message, or a range of messages that cannot be read; `problem` is the reason, also if only a part is lost."""

    first: int
    last: int
    stored: StoredMessage | None = None
    body: Body | None = None
    problem: str = ""


def doctor_command(chat: Conversation | None) -> str:
    """Return the command that checks a conversation, or the whole database."""
    pairs = [f"{key}={value}" for key, value in chat.scope.items() if key != PATH] if chat else []
    return " ".join(["convstore doctor", *(f"--scope {shlex.quote(pair)}" for pair in pairs)])


async def damaged_page(
    request: Request, chat: Conversation, error: CorruptDocumentError
) -> Response:
    """Return a page of the log, read message by message.

    Raises:
        CorruptDocumentError: The totals at the end of the log cannot be read.
    """
    newest = await log_of(chat).snapshot()
    last = newest.messages if newest else 0
    before = number_in(request, "before")
    after = number_in(request, "after")
    end = last
    if before:
        end = min(last, before - 1)
    elif after is not None:
        end = min(last, after + _PAGE)
    start = max(1, end - _PAGE + 1)
    rows = [await _row(chat, ordinal) for ordinal in range(start, end + 1)]
    return render(
        "damaged.html",
        request,
        conversation_id=request.path_params["conversation_id"],
        scope=chat.scope,
        problem=str(error),
        command=doctor_command(chat),
        rows=_joined(rows),
        older=start if start > 1 else None,
        newer=end if end < last else None,
    )


async def _row(chat: Conversation, ordinal: int) -> _LogRow:
    """Read one message; if that fails, from the other side, because each read includes an adjacent entry."""
    problem = "it is missing"
    spans: tuple[dict[str, Any], ...] = ({"after": ordinal - 1}, {"before": ordinal + 1})
    for span in spans:
        try:
            found = await chat.list_messages(limit=1, rewound=True, **span)
        except CorruptDocumentError as error:
            problem = str(error)
            continue
        if found and found[0].ordinal == ordinal:
            return _LogRow(
                ordinal,
                ordinal,
                found[0],
                body_of(found[0].message, _BYTES),
                await _problem_of_whole(chat, found[0]),
            )
    return _LogRow(ordinal, ordinal, problem=problem)


async def _problem_of_whole(chat: Conversation, stored: StoredMessage) -> str:
    """Return the reason why the full content of a message cannot be read; "" if it can, or is too long to try."""
    if stored.tokens <= _TOKENS:
        try:
            await chat.list_messages(after=stored.ordinal - 1, limit=1, full=True, rewound=True)
        except CorruptDocumentError as error:
            return str(error)
    return ""


def _joined(rows: Sequence[_LogRow]) -> list[_LogRow]:
    """Join consecutive rows that cannot be read for the same reason."""
    joined: list[_LogRow] = []
    for problem, group in groupby(rows, key=lambda row: "" if row.stored else row.problem):
        same = list(group)
        joined += [_LogRow(same[0].first, same[-1].last, problem=problem)] if problem else same
    return joined
