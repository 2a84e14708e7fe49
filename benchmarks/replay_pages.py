"""Reads a message back to its end and joins the pages, as text and as artifacts of the tool."""

from __future__ import annotations

from dataclasses import dataclass, field

from langchain_core.tools import BaseTool

from convstore.cli.demo.pages import CutPassage, cut_page, pages_of
from convstore.types import SourcePage


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
