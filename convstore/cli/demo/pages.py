"""Reads a message again through the tool as a model would, page by page.

The demo and ``benchmarks/replay.py`` use it. It only relies on text that a model sees: the header line of each passage,
``<label>, characters <a>-<b> of <n>``, and the last line, ``End.`` or ``More: cursor="…"; …``.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from convstore.exceptions import StoreError

_HEADER = re.compile(r"(.*?), characters (\d+)-(\d+) of (\d+)\n", re.DOTALL)
_END = re.compile(r'(?:Not found: .*\n)?(?:What follows is .*\n)?(?:End\.|More: cursor="(.*)";.*)')


@dataclass(frozen=True, slots=True)
class CutPassage:
    """Part of a passage on one page."""

    label: str
    start: int
    length: int
    text: str


async def pages_of(tool: BaseTool, message_id: str) -> AsyncGenerator[ToolMessage, None]:
    """Yield every page of a message in the form that an agent gets; StoreError for an error or a repeated cursor."""
    cursor = ""
    seen: set[str] = set()
    while cursor not in seen:
        seen.add(cursor)
        arguments = {"tool_message_ids": [message_id], "cursor": cursor}
        page = await tool.ainvoke(
            {"type": "tool_call", "id": "read-back", "name": tool.name, "args": arguments}
        )
        if page.status == "error":
            raise StoreError(f"the tool answered with an error: {page.text}")
        yield page
        if page.artifact.next_cursor is None:
            return
        cursor = page.artifact.next_cursor
    raise StoreError(f"the tool gave the cursor {cursor!r} twice")


def cut_page(text: str) -> tuple[list[CutPassage], str | None]:
    r"""Return the passages of a page, and the cursor at its end.

    >>> cut_page('search, characters 0-3 of 9\nabc\nMore: cursor="m3@3"; …')
    ([CutPassage(label='search', start=0, length=9, text='abc')], 'm3@3')

    Raises:
        StoreError: The text is not a page.
    """
    passages = []
    position = 0
    while not (last := _END.fullmatch(text, position)):
        header = _HEADER.match(text, position)
        if header is None:
            raise StoreError(f"a header line is missing: {text[position : position + 80]!r}")
        start = int(header[2])
        end = int(header[3])
        length = int(header[4])
        body = text[header.end() : header.end() + end - start]
        passages.append(CutPassage(header[1], start, length, body))
        position = header.end() + end - start + 1
    return passages, last[1]
