"""Write sources as text with their numbers, as a model reads them.

Floor 1, pure. It is the default of ``number_sources``.
"""

from __future__ import annotations

from collections.abc import Callable

from convstore.values.models import Source

__all__ = ["RenderSources", "heading_of", "render_sources"]

RenderSources = Callable[[list[Source]], str]
"""Writes the sources that a model gets to see."""


def render_sources(sources: list[Source]) -> str:
    """Sources as a model reads them: number, title and address in one line, the text below.

    >>> print(render_sources([Source(source_id=4, title="Seals", content="Seals sleep.", earlier_id=1)]))
    [4] Seals, already shown as [1]
    Seals sleep.
    """
    return "\n\n".join(f"{heading_of(source)}\n{source.content}" for source in sources)


def heading_of(source: Source) -> str:
    """Return number, title and address of a source in one line."""
    address = f"({source.url})" if source.url else ""
    same = f", already shown as [{source.earlier_id}]" if source.earlier_id else ""
    return " ".join(filter(None, [f"[{source.source_id}]", " ".join(source.title.split()), address])) + same
