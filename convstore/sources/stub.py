"""Decide how a view shows a tool result of a finished turn: as its stub, with a suffix, or as it is.

A stub is a short JSON text that replaces the result. A result that is shorter than its stub is shown as it is; if it
has sources, a suffix with its message id and their numbers is appended. Both are computed once, when the result is
appended, and depend only on the result, its ids and its names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from convstore.messages.encoding import RESULT_MINIMUM
from convstore.messages.text import in_one_line
from convstore.sources.source import read_ids, write_ids

RETRIEVAL_TOOL = "retrieve_previous_sources"
"""Name of the tool that reads the full content."""

PAGE_TOKENS = 4_000
"""Default size of one of its answers."""

PREVIEW_CHARACTERS = 200

_SUFFIX = "\n[tool_message_id: {}, source_ids: {}]"

_NAMED = re.compile(r'source_ids"?: "?([\d, -]+)(?:"\}|\])\Z')
"""The end of a stub or a suffix."""

STUB_MIN_TOKENS = 256
"""Size above which a result without sources becomes a stub."""

_write = json.JSONEncoder(ensure_ascii=False).encode

_SURROGATES = re.compile("[\ud800-\udfff]")


def wants_stub(tokens: int, *, has_sources: bool) -> bool:
    """Return True if a result is shown as a stub, or with a suffix, unless that is longer than the result.

    >>> wants_stub(2, has_sources=True), wants_stub(300, has_sources=False), wants_stub(2, has_sources=False)
    (True, True, False)
    """
    return has_sources or tokens > STUB_MIN_TOKENS


def named_sources(tool: str, source_ids: Collection[int], read_back: Collection[int]) -> set[int]:
    """Return the numbers in the stub of a result: its sources, or those on a page of the retrieval tool."""
    return set(read_back if tool == RETRIEVAL_TOOL else source_ids)


def stub_of(
    *,
    tool: str,
    tool_message_id: str,
    content: str,
    tokens: int,
    source_ids: Collection[int] = (),
    error: str | None = None,
) -> str | None:
    r"""Return the stub of a tool result, or its suffix; None if views show it as it is.

    A result without sources is shown as it is unless it is large. `content` is its text, see `messages.text`.

    >>> stub_of(tool="search", tool_message_id="m3", content="Found 10 songs.", tokens=4, source_ids=range(11, 21))
    '\n[tool_message_id: m3, source_ids: 11-20]'
    >>> stub_of(tool="book", tool_message_id="m3", content="Booked.", tokens=2) is None
    True
    """
    if not wants_stub(tokens, has_sources=bool(source_ids)):
        return None
    stub = make_stub(
        tool=tool,
        tool_message_id=tool_message_id,
        content=content,
        source_ids=source_ids,
        error=error,
    )
    if len(content) > len(stub) or len(content) >= RESULT_MINIMUM or not content.strip():
        return stub
    # A page of the retrieval tool shows the numbers itself.
    has_suffix = source_ids and tool != RETRIEVAL_TOOL
    return (
        _SUFFIX.format(in_one_line(tool_message_id), write_ids(source_ids)) if has_suffix else None
    )


def make_stub(
    *,
    tool: str,
    tool_message_id: str,
    content: str,
    source_ids: Collection[int] = (),
    error: str | None = None,
) -> str:
    """Return the stub of a tool result. Its exact characters are part of the stored format.

    >>> print(make_stub(tool="search", tool_message_id="m3", content="…", source_ids=range(11, 21)))
    {"success": true, "tool": "search", "result_count": 10, "message": "Retrieved 10 sources. \
Use retrieve_previous_sources to access full content.", "tool_message_id": "m3", "source_ids": "11-20"}
    """
    stub: dict[str, Any] = {"success": error is None, "tool": tool}
    if source_ids:
        stub["result_count"] = len(source_ids)
        description = f"Retrieved {len(source_ids)} source{'' if len(source_ids) == 1 else 's'}."
    else:
        description = f"Result of {len(content)} characters."
    stub["message"] = f"{description} Use {RETRIEVAL_TOOL} to access full content."
    if error is not None:
        stub["error"] = error[:PREVIEW_CHARACTERS]
    stub["tool_message_id"] = tool_message_id
    if source_ids:
        stub["source_ids"] = write_ids(source_ids)
    else:
        stub["size"] = len(content)
        if error is None:  # an error is the beginning of the text, or a part of it
            stub["preview"] = content[:PREVIEW_CHARACTERS]
    text = _write(stub)
    if text.isascii():
        return text
    return _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_stub(text: str, tool_message_id: str | None) -> bool:
    """Return True if a text is the stub of this tool result.

    >>> is_stub(make_stub(tool="search", tool_message_id="m3", content="…"), "m3"), is_stub("Booked.", "m3")
    (True, False)
    """
    return (
        text.startswith('{"success": ') and f'"tool_message_id": {_write(tool_message_id)}' in text
    )


def stub_sources(text: str) -> list[int]:
    r"""Return the numbers of the sources in a stub or in the suffix of a result; empty for other texts.

    >>> stub_sources("Found 10 songs.\n[tool_message_id: m3, source_ids: 11-13]"), stub_sources("Found 10 songs.")
    ([11, 12, 13], [])
    """
    named = _NAMED.search(text)
    try:
        return read_ids(named[1]) if named else []
    except ValueError:
        return []


def failure_in(status: str, text: str, parsed: Any) -> str | None:
    """Return the error text if a tool result reports a failed call, else None.

    >>> failure_in("success", "…", {"success": False, "error": "no such order"})
    'no such order'
    """
    reports_failure = isinstance(parsed, dict) and parsed.get("success") is False
    if status != "error" and not reports_failure:
        return None
    error = (parsed.get("error") or parsed.get("message")) if isinstance(parsed, dict) else None
    return error if isinstance(error, str) else text
