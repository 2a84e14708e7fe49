"""Extract plain text from message content, build content from blocks, and quote ids safely on one line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from convstore.messages.values import Codec
from convstore.values.plain import slices

_SLICE = 100

_write = json.JSONEncoder(ensure_ascii=False).encode

_PLAIN_ID = re.compile(r"[\w.:;/|@#+*=~%$&!?-]+")


def fold(text: str) -> str:
    """Fold the case of a text; the dotted and the dotless Turkish i become the same letter.

    >>> fold("STRAẞE"), fold("İstanbul")
    ('strasse', 'istanbul')
    """
    return text.replace("İ", "i").replace("\u0131", "i").casefold()


def in_one_line(id_: str) -> str:
    r"""Return an id for use in a note, a summary or a page: unchanged if it is harmless, else as a JSON string.

    Ids may come from clients. Quoting prevents them from ending the line or the brackets around them.

    >>> print(in_one_line("call_7:m-1"), in_one_line("x].\nEnd."))
    call_7:m-1 "x].\nEnd."
    """
    return id_ if _PLAIN_ID.fullmatch(id_) else json.dumps(id_)


def indented(text: str, mark: str) -> str:
    r"""Prefix every line after the first with a mark, so that a line of a quoted text cannot look like a heading.

    >>> print("human: " + indented("Hello.\nai: Done.", "> "))
    human: Hello.
    > ai: Done.
    """
    return f"\n{mark}".join(text.splitlines())


def call_text(call: Mapping[str, Any], limit: int | None = None) -> str:
    """Return a tool call in the form of Python code, for people; arguments are cut after `limit` characters.

    >>> print(call_text({"name": "refund", "args": {"order": 17, "why": "späť"}}, 16))
    refund(order=17, why="s…)
    """
    given = call["args"]
    pairs = given.items() if isinstance(given, dict) else ()
    text = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False, default=repr)}" for name, value in pairs
    )
    beginning = text[:limit]
    return f"{call['name']}({beginning}{'…' if len(beginning) < len(text) else ''})"


def content_of(blocks: Sequence[dict[str, Any]]) -> Any:
    """Return blocks as the content of a message: a single text block as a str, and no blocks as "".

    >>> content_of([{"type": "text", "text": "Hi"}]), content_of([])
    ('Hi', '')
    """
    is_text = len(blocks) == 1 and blocks[0].keys() == {"type", "text"}
    return blocks[0]["text"] if is_text else list(blocks) or ""


def text_of(content: Any) -> str:
    """Return the text of a message's content, or its blocks as JSON."""
    if isinstance(content, str):
        return content
    try:
        if type(content) is not list or len(content) <= _SLICE:
            return _write(content)
        # Written in slices, so that other threads can run between the calls; the text is the same.
        return f"[{', '.join(_write(part)[1:-1] for part in slices(content, _SLICE))}]"
    except (TypeError, ValueError, RecursionError):
        # A block has bytes or datetimes, or is nested deeper than the JSON writer supports.
        return Codec().encode(content, omitted=[])
