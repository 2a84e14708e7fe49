"""Make the stub of a tool result: a short JSON text that replaces the result in views.

A stub is made once, when its result is appended. Equal results, ids and names give equal stubs.
"""

from __future__ import annotations

import json
import re
from typing import Any

RETRIEVAL_TOOL = "retrieve_previous_sources"
"""Name of the tool that reads the full content."""

PREVIEW_CHARACTERS = 200

_write = json.JSONEncoder(ensure_ascii=False).encode

_SURROGATES = re.compile("[\ud800-\udfff]")


def make_stub(
    *,
    tool: str,
    tool_message_id: str,
    content: str,
    source_count: int = 0,
    source_ids: str = "",
    error: str | None = None,
) -> str:
    """Return the stub of a tool result. Its exact characters are part of the stored format.

    >>> print(make_stub(tool="search", tool_message_id="m3", content="…", source_count=10, source_ids="11-20"))
    {"success": true, "tool": "search", "result_count": 10, "message": "Retrieved 10 sources. \
Use retrieve_previous_sources to access full content.", "tool_message_id": "m3", "source_ids": "11-20"}
    """
    stub: dict[str, Any] = {"success": error is None, "tool": tool}
    if source_count:
        stub["result_count"] = source_count
        description = f"Retrieved {source_count} source{'' if source_count == 1 else 's'}."
    else:
        description = f"Result of {len(content)} characters."
    stub["message"] = f"{description} Use {RETRIEVAL_TOOL} to access full content."
    if error is not None:
        stub["error"] = error[:PREVIEW_CHARACTERS]
    stub["tool_message_id"] = tool_message_id
    if source_count:
        stub["source_ids"] = source_ids
    else:
        stub |= {"size": len(content), "preview": content[:PREVIEW_CHARACTERS]}
    return _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", _write(stub))


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
