"""Write texts about sources for a model: the paragraph of its system prompt, and sources with their numbers.

An application puts the paragraph into the system prompt of its agent; the LangChain middleware does so itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from langchain_core.messages import SystemMessage

from convstore.messages.tokens import approximate_tokens
from convstore.sources.stub import RETRIEVAL_TOOL
from convstore.values.models import Source


def sources_prompt(tool: str = RETRIEVAL_TOOL) -> str:
    """Return the paragraph for a system prompt about shortened tool results and how to read them.

    Args:
        tool: Name of the retrieval tool.

    Examples:
        >>> "retrieve_previous_sources" in sources_prompt()
        True
    """
    return (
        "Tool results of earlier turns are shortened in this history: you see the tool, whether "
        "it succeeded and the ids of its sources, but not their text. Source ids such as [17] stay "
        "valid for the whole conversation. A citation that stands in an earlier answer may be "
        "repeated without reading; for anything else, never answer from a shortened result alone: "
        "read it first, or say that you have not. To read, call "
        f"{tool} with its tool_message_id, or with source_ids; a long answer comes in pages, so go "
        "on with the cursor. Earlier turns may be left out or summarized: to search everything "
        f"that was said, call {tool} with find. It searches words, so try others if nothing fits. "
        "It also reads any message under the id that a note, a summary or a placeholder names."
    )


SOURCES_PROMPT = sources_prompt()
"""`sources_prompt` for the tool under its own name; put it into the agent's system prompt."""

RenderSources = Callable[[list[Source]], str]
"""Writes sources as a text for a model."""


def render_sources(sources: list[Source]) -> str:
    """Write sources as a text for a model: number, title and address in one line, the text below.

    >>> print(render_sources([Source(source_id=4, title="Seals", content="Seals sleep.", earlier_id=1)]))
    [4] Seals, already shown as [1]
    Seals sleep.
    """
    return "\n\n".join(f"{heading_of(source)}\n{source.content}" for source in sources)


def heading_of(source: Source) -> str:
    """Return number, title and address of a source in one line."""
    address = f"({source.url})" if source.url else ""
    same = f", already shown as [{source.earlier_id}]" if source.earlier_id else ""
    return (
        " ".join(filter(None, [f"[{source.source_id}]", " ".join(source.title.split()), address]))
        + same
    )


_LINE_TOKENS = 28
"""Maximum tokens of a line, minus two because of rounding."""


def heading_line(source: Source) -> str:
    """Return number, title and address of a source in at most 30 tokens, for a list above a tool's own text.

    >>> heading_line(Source(source_id=4, title="Song, " * 30, url="https://a", content=""))[-6:]
    'Song …'
    """
    line = heading_of(source)
    if _is_short(line):
        return line
    line = heading_of(source.model_copy(update={"url": "" if source.title else source.url}))
    if _is_short(line):
        return line
    cuts = range(len(line))
    is_long = bisect_left(cuts, True, key=lambda cut: not _is_short(f"{line[:cut]} …"))
    return f"{line[: is_long - 1].rstrip()} …"


def _is_short(line: str) -> bool:
    return approximate_tokens([SystemMessage(f"{line}\n\n")]) - _EMPTY <= _LINE_TOKENS


_EMPTY = approximate_tokens([SystemMessage("")])
