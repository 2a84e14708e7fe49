"""Reads a message back through the tool as a model would, page by page, and joins the pages.

``demo`` and ``benchmarks/replay.py`` use it. It relies only on text that a model sees: the header line of each
passage, ``<label>, characters <a>-<b> of <n>``, the last line, ``End.`` or ``More: cursor="…"; …``, and the artifact.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from convstore.exceptions import StoreError
from convstore.types import SourcePage

_HEADER = re.compile(r"(.*?), characters (\d+)-(\d+) of (\d+)\n", re.DOTALL)
_END = re.compile(r'(?:Not found: .*\n)?(?:What follows is .*\n)?(?:End\.|More: cursor="(.*)";.*)')


@dataclass(frozen=True, slots=True)
class CutPassage:
    """Part of a passage on one page."""

    label: str
    start: int
    length: int
    text: str


@dataclass(slots=True)
class ReadBack:
    """Everything read back of one message.

    Attributes:
        sources: Text of each source by its id, from the tool's artifact.
        headings: The headings of the sources.
        passages: Text of everything else by label, in order.
        pages: Number of pages.
        characters: Length of the longest page.
        problems: Contradictions between pages.
    """

    sources: dict[int, str] = field(default_factory=dict)
    headings: set[str] = field(default_factory=set)
    passages: dict[str, str] = field(default_factory=dict)
    pages: int = 0
    characters: int = 0
    problems: list[str] = field(default_factory=list)


async def pages_of(tool: BaseTool, message_id: str) -> AsyncGenerator[ToolMessage, None]:
    """Yield every page of a message, as an agent gets it; raise a StoreError for an error or a repeated cursor."""
    cursor = ""
    seen = set[str]()
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


async def read_back(tool: BaseTool, message_id: str) -> ReadBack:
    """Read a message to its end and join the pages."""
    found = ReadBack()
    totals: dict[str, int] = {}
    async for page in pages_of(tool, message_id):
        found.pages += 1
        found.characters = max(found.characters, len(page.text))
        passages, cursor = cut_page(page.text)
        if cursor != page.artifact.next_cursor:
            found.problems.append(
                f"page {found.pages} ends with the cursor {cursor!r}, not "
                f"{page.artifact.next_cursor!r}"
            )
        _take_sources(found, passages[: len(page.artifact.sources)], page.artifact)
        for passage in passages[len(page.artifact.sources) :]:
            _take(found, passage)
            totals[passage.label] = passage.length
    short = [label for label, length in totals.items() if len(found.passages[label]) != length]
    found.problems.extend(
        f"{label!r} ends after {len(found.passages[label]):,} characters" for label in short
    )
    return found


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


def _take_sources(found: ReadBack, passages: list[CutPassage], page: SourcePage) -> None:
    for passage, source in zip(passages, page.sources, strict=False):
        so_far = found.sources.get(source.source_id, "")
        if passage.text != source.content or passage.start != len(so_far):
            found.problems.append(
                f"source {source.source_id}: text and artifact of page {found.pages} do not agree"
            )
        found.sources[source.source_id] = so_far + source.content
        found.headings.add(passage.label)


def _take(found: ReadBack, passage: CutPassage) -> None:
    so_far = found.passages.get(passage.label, "")
    if passage.start != len(so_far):
        found.problems.append(
            f"{passage.label!r} goes on at {passage.start:,} after {len(so_far):,} characters"
        )
    found.passages[passage.label] = so_far + passage.text
