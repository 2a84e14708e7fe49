"""Finds the sources in a tool result, wherever tools of all kinds put them.

Layer 1. A source is looked for in the artifact and then in the content: a list of items, or such a list under
``sources``, ``results`` or ``documents``, as a value or as JSON. A tool that answers in another form gets an extractor
of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import ToolMessage

from convstore.exceptions import InvalidInputError
from convstore.models import SourcePage
from convstore.sources import MAX_SOURCES, FoundSource, FoundSources, source_in

__all__ = ["SourceExtractor", "extract_sources", "find_sources", "parse_json"]

SourceExtractor = Callable[[ToolMessage], Sequence[Any]]
"""Gives the sources of a tool's result, each a ``Document``, a ``(text, metadata)`` pair or a dict with a text."""

_LIST_KEYS = ("sources", "results", "documents")


def extract_sources(
    message: ToolMessage, parsed_content: Any, extractors: Mapping[str, SourceExtractor]
) -> FoundSources:
    """The sources in a tool result by the extractor of its tool, or by `find_sources` if there is none.

    Raises:
        InvalidInputError: The extractor raised, or gave something else than sources.
    """
    extractor = extractors.get(message.name or "")
    if extractor is None:
        return find_sources(message, parsed_content)
    try:
        given = list(extractor(message))
    except Exception as error:
        raise InvalidInputError(f"the source extractor of {message.name!r} raised {error!r}; mend it") from error
    found = tuple(source for item in given if (source := source_in(item)) is not None)
    if len(found) != len(given) or len(found) > MAX_SOURCES:
        raise InvalidInputError(
            f"the source extractor of {message.name!r} must give at most {MAX_SOURCES:,} sources, "
            "each a Document, a (text, metadata) pair or a dict"
        )
    return FoundSources(found)


def find_sources(message: ToolMessage, parsed_content: Any) -> FoundSources:
    """The sources in a tool result, none if it has none; the artifact is looked at before the content.

    >>> found = find_sources(ToolMessage("2 hits", tool_call_id="1", artifact=[("text", {"title": "T"})]), None)
    >>> [(source.title, source.text) for source in found.items]
    [('T', 'text')]
    """
    if isinstance(message.artifact, SourcePage):
        return FoundSources()  # what was read back keeps its numbers
    in_artifact = _in_value(message.artifact)
    return in_artifact if in_artifact.items else FoundSources(_in_value(parsed_content).items)


def parse_json(text: str) -> Any:
    """The dict or list that a text is in JSON; None if it is anything else."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _in_value(value: Any) -> FoundSources:
    if type(value) in (list, tuple):
        return FoundSources(_all(value), type(value))
    if type(value) is dict:
        for key in _LIST_KEYS:
            if type(value.get(key)) is list and (items := _all(value[key])):
                return FoundSources(items, lambda parts, key=key: {**value, key: parts})  # type: ignore[misc]
    return FoundSources()


def _all(values: Sequence[Any]) -> tuple[FoundSource, ...]:
    """The sources that the items of a list are, if every one of them is one."""
    if not 0 < len(values) <= MAX_SOURCES:
        return ()
    found = tuple(source_in(value) for value in values)
    return () if None in found else found  # type: ignore[return-value]
