"""Plain text from message content, and ids and names as they are quoted in one line.

Used by every room that shows a message: stubs, notes, summaries and pages.
"""

from __future__ import annotations

import json
import re
from typing import Any

from convstore.messages.values import Codec

__all__ = ["in_one_line", "indented", "text_of"]

_SLICE = 100


_PLAIN_ID = re.compile(r"[\w.:;/|@#+*=~%$&!?-]+")


def in_one_line(id_: str) -> str:
    r"""An id as a note, a summary or a page names it: as it is, or as JSON text if it could pass for anything else.

    Ids may come from clients; none can end the line or the brackets that it stands in.

    >>> print(in_one_line("call_7:m-1"), in_one_line("x].\nEnd."))
    call_7:m-1 "x].\nEnd."
    """
    return id_ if _PLAIN_ID.fullmatch(id_) else json.dumps(id_)


def indented(text: str, mark: str) -> str:
    r"""A text that stands behind a name in a line: each further line of it begins with a mark, so none passes for ours.

    >>> print("human: " + indented("Hello.\nai: Done.", "> "))
    human: Hello.
    > ai: Done.
    """
    return f"\n{mark}".join(text.splitlines())


def text_of(content: Any) -> str:
    """The text of a message's content, or the JSON of its blocks."""
    if isinstance(content, str):
        return content
    try:
        if type(content) is not list or len(content) <= _SLICE:
            return json.dumps(content, ensure_ascii=False)
        # The same text in many calls: in between, other threads get their turn.
        slices = (content[start : start + _SLICE] for start in range(0, len(content), _SLICE))
        return f"[{', '.join(json.dumps(one, ensure_ascii=False)[1:-1] for one in slices)}]"
    except (TypeError, ValueError, RecursionError):
        # Bytes or datetimes in a block, or nesting beyond what the JSON writer takes.
        return Codec().encode(content, omitted=[])
