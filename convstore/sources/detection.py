"""Where in a tool result sources stand: the artifact, then the content, as values, blocks or JSON.

Layer 1. A list is one of sources if every item of it is one; only among content blocks it is normal that some are and
some are not. Nothing that a tool gives raises, and the time is linear in its size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from langchain_core.messages import ToolMessage

from convstore.exceptions import InvalidInputError
from convstore.messages.values import is_text
from convstore.sources.blocks import HOLDERS, TEXTS, is_block, item_of_block, type_of
from convstore.sources.citations import MOST_MENTIONS, Mention, citations_in, distinct
from convstore.sources.source import (
    MAX_SOURCES,
    FoundSource,
    FoundSources,
    first_text,
    retrieved,
    retrieved_file,
    retrieved_text,
    source_in,
)
from convstore.values.models import SourcePage

__all__ = ["LISTS", "SourceExtractor", "extract_sources", "find_sources", "parse_json", "read_back_ids"]

SourceExtractor = Callable[[ToolMessage], Sequence[Any]]
"""Gives the sources of a tool's result, each a ``Document``, a ``(text, metadata)`` pair or a dict with a text."""

_Form = Callable[[Any], FoundSource | None]

LISTS: dict[str, _Form] = {
    **dict.fromkeys(("sources", "results", "documents", "docs", "passages", "chunks", "hits", "matches"), retrieved),
    "data": retrieved_file,  # a page of OpenAI's vector store search
}
"""By the key that a list stands under what makes a source of an item of it."""

_TEXTS_UNDER = frozenset({"sources", "documents", "docs", "passages", "chunks"})
"""Keys of an artifact under which a list of bare texts is one of sources, too."""
_NESTED = ("data", "hits")
"""Keys under which one of `LISTS` may stand a level deeper: envelopes of web APIs, answers of Elasticsearch."""

_BLOCKS_TOO = [key for key, form in LISTS.items() if form is retrieved]
_STRUCTURED = ("structured_content", "structuredContent")
_IN_STRUCTURED: dict[str, _Form] = {**LISTS, "result": retrieved}  # MCP servers wrap a bare list so
_HELD = ("content", "output")
"""Where results of MCP and of OpenAI have their blocks."""
_DEPTH = 5
"""Values inside values inside values; no known form goes deeper."""

_LONG = 100_000
_SHOWN_SOURCE = re.compile(r"^\[(\d{1,15})\] ?.*, characters \d+-\d+ of \d+$", re.MULTILINE)
_LINE_CHARACTERS = 100
_LAST_LINE = re.compile(r"(End\.|More: cursor=\"[\w.]{1,40}@\d{1,20}\")\s*\Z")

_NOTHING = FoundSources()


def extract_sources(
    message: ToolMessage, parsed_content: Any, extractors: Mapping[str, SourceExtractor]
) -> FoundSources:
    r"""The sources in a tool result by the extractor of its tool, or by `find_sources` if there is none.

    Sources that were all numbered already, by ``number_sources``, are found without the extractor.

    >>> def lines(message):
    ...     return [{"text": line} for line in message.text.splitlines()]
    >>> message = ToolMessage("one\ntwo", name="grep", tool_call_id="1")
    >>> [source.text for source in extract_sources(message, None, {"grep": lines}).items]
    ['one', 'two']

    Raises:
        InvalidInputError: The extractor raised, or gave something else than sources.
    """
    extractor = extractors.get(message.name or "")
    found = find_sources(message, parsed_content)
    if extractor is None or (found.items and all(source.kept_id for source in found.items)):
        return found
    try:
        given = list(extractor(message))
    except Exception as error:
        raise InvalidInputError(f"the source extractor of {message.name!r} raised {error!r}; mend it") from error
    sources = tuple(source for item in given if (source := source_in(item)) is not None)
    if len(sources) != len(given) or len(sources) > MAX_SOURCES:
        raise InvalidInputError(
            f"the source extractor of {message.name!r} must give at most {MAX_SOURCES:,} sources, "
            "each a Document, a (text, metadata) pair or a dict"
        )
    return FoundSources(sources)


def find_sources(message: ToolMessage, parsed_content: Any) -> FoundSources:
    """The sources in a tool result, none if it has none; the artifact is looked at before the content.

    >>> found = find_sources(ToolMessage("2 hits", tool_call_id="1", artifact=[("text", {"title": "T"})]), None)
    >>> [(source.title, source.text) for source in found.items]
    [('T', 'text')]
    >>> block = {"type": "search_result", "source": "https://a", "title": "A", "content": []}
    >>> [source.url for source in find_sources(ToolMessage(["1 hit", block], tool_call_id="1"), None).items]
    ['https://a']
    """
    if isinstance(message.artifact, SourcePage):
        return _NOTHING  # what was read back keeps its numbers
    in_artifact = _texts_of(message.artifact)
    if not in_artifact.items:
        in_artifact = _in_value(message.artifact)
    if in_artifact.items:
        return in_artifact
    return FoundSources(_in_value(parsed_content).items or _in_content(message.content))


def read_back_ids(message: ToolMessage) -> tuple[int, ...]:
    r"""Numbers of the sources that a page of ``retrieve_previous_sources`` shows, by its artifact or else its text.

    A page that came through OpenAI's format or JSON has lost its artifact.

    >>> page = "[11] Seals (https://a), characters 0-12 of 12\nSeals sleep.\nEnd."
    >>> read_back_ids(ToolMessage(page, tool_call_id="1"))
    (11,)
    """
    text = message.content
    numbers: Iterable[int] = ()
    if isinstance(message.artifact, SourcePage):
        numbers = (source.source_id for source in message.artifact.sources)
    elif isinstance(text, str) and _LAST_LINE.search(text[-_LINE_CHARACTERS:]):
        numbers = (int(found[1]) for found in _SHOWN_SOURCE.finditer(text))
    return tuple(dict.fromkeys(islice((number for number in numbers if 0 < number < 2**53), MAX_SOURCES)))


def parse_json(text: str) -> Any:
    """The dict or list that a text is in JSON; None if it is anything else.

    >>> parse_json('{"results": []}'), parse_json("7")
    ({'results': []}, None)
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    # Where a function of Python is called for each dict, other threads get their turn in the middle of a long text.
    hook = _same if len(text) > _LONG else None
    try:
        return json.loads(text, object_hook=hook)
    except (ValueError, RecursionError):
        return None


def _same(node: dict[str, Any]) -> dict[str, Any]:
    return node


def _in_value(value: Any) -> FoundSources:
    standing = _standing(value)
    return standing if standing.items else FoundSources(_gathered(_mentions(value, _DEPTH)))


def _in_content(content: Any) -> tuple[FoundSource, ...]:
    """Sources in the blocks of a message, where a text is no item that was retrieved."""
    if type(content) is list and any(type_of(block) for block in content):
        return _gathered(_in_blocks(content, _DEPTH))
    return _in_value(content).items


def _gathered(mentions: Iterator[Mention]) -> tuple[FoundSource, ...]:
    """Sources that stand in another form; none if there are too many to be sources."""
    found = list(islice(mentions, MOST_MENTIONS + 1))
    sources = distinct(found) if len(found) <= MOST_MENTIONS else ()
    return sources if len(sources) <= MAX_SOURCES else ()


# ---------------------------------------------------------------------------------------------------------------------
# Lists of items, which keep their place


def _standing(value: Any, lists: Mapping[str, _Form] = LISTS) -> FoundSources:
    """The sources of a list of items, as a value or under a key; nothing if they stand in another form."""
    if type(value) in (list, tuple):
        return _all(value, retrieved)
    if type(value) is not dict:
        return _NOTHING
    if (found := _listed(value, lists)).items:
        return found
    for key in _NESTED:
        if type(value.get(key)) is dict and (found := _listed(value[key], LISTS)).items:
            return _under(value, key, found)
    if lists is LISTS:
        for key in _STRUCTURED:
            if (found := _standing(value.get(key), _IN_STRUCTURED)).items:
                return _under(value, key, found)
    return _one(value)


def _listed(value: dict[Any, Any], lists: Mapping[str, _Form]) -> FoundSources:
    """The sources of the first list under a known key whose items are all sources."""
    for key, form in lists.items():
        if type(value.get(key)) is list and (found := _all(value[key], form)).items:
            return _under(value, key, found)
    return _NOTHING


def _texts_of(artifact: Any) -> FoundSources:
    """The sources of an artifact that is a list of texts, or holds one under a key that says so.

    In content such a list is data: a tool that answers `["AA12", "BB7"]` has retrieved nothing.
    """
    if type(artifact) in (list, tuple):
        return _all(artifact, retrieved_text)
    if type(artifact) is dict:
        return _listed(artifact, {key: retrieved_text for key in LISTS if key in _TEXTS_UNDER})
    return _NOTHING


def _all(values: Sequence[Any], form: _Form) -> FoundSources:
    """The sources that the items of a list are, if every one of them is one."""
    if not 0 < len(values) <= MAX_SOURCES:
        return _NOTHING
    found = tuple(_of_block(value) if is_block(value) else form(value) for value in values)
    sources = tuple(one for one in found if one is not None)
    if len(sources) < len(values):
        return _NOTHING
    is_standing = all(source.item is value for source, value in zip(sources, values, strict=True))
    return FoundSources(sources, type(values) if is_standing else None)


def _one(value: dict[Any, Any]) -> FoundSources:
    """A single document, which must have all of text, title and address."""
    found = None if is_block(value) else retrieved(value)
    if found is None or not (found.text and found.url and first_text(found.fields, ("title",))):
        return _NOTHING
    return FoundSources((found,), itemgetter(0) if found.item is value else None)


def _under(value: dict[Any, Any], key: str, found: FoundSources) -> FoundSources:
    rebuild = found.rebuild
    return FoundSources(found.items, None if rebuild is None else lambda parts: {**value, key: rebuild(parts)})


def _of_block(block: Any) -> FoundSource | None:
    item = item_of_block(block)
    return None if item is None else source_in(item)


# ---------------------------------------------------------------------------------------------------------------------
# Blocks, what they cite and what they hold


def _anything(value: Any, depth: int) -> Iterator[Mention]:
    """Sources in a value of any form."""
    found = _standing(value).items
    return map(Mention, found) if found else _mentions(value, depth)


def _mentions(value: Any, depth: int) -> Iterator[Mention]:
    """Sources in blocks, a list of them or one, or under a key of a dict that has one; nothing below `depth`."""
    if depth <= 0:
        return
    if type(value) in (list, tuple):
        yield from _in_blocks(value, depth)
    elif type(value) is dict:
        yield from _first(chain([_in_block(value, depth)], _in_parts(value, depth)))


def _in_blocks(blocks: Sequence[Any], depth: int) -> Iterator[Mention]:
    """The items that a list of texts is in JSON, as some MCP servers split a list; else sources in each block."""
    split = len(blocks) > 1 and all(type_of(block) in TEXTS for block in blocks[: MAX_SOURCES + 1])
    items = _all([_parsed(block) for block in blocks[: MAX_SOURCES + 1]], retrieved).items if split else ()
    yield from map(Mention, items)
    for block in () if items else blocks:
        yield from _in_block(block, depth)


def _in_block(block: Any, depth: int) -> Iterator[Mention]:
    """Sources in one block: what it cites, else itself, else what its text is in JSON or what it holds."""
    cited = list(citations_in(block)) if type(block) is dict else []
    if cited:
        yield from cited
    elif found := _of_block(block):
        yield Mention(found)
    elif is_text(block) or type_of(block) in TEXTS:
        yield from _anything(_parsed(block), depth - 1)
    elif holder := HOLDERS.get(type_of(block)):
        yield from _anything(block.get(holder), depth - 1)


def _in_parts(value: dict[Any, Any], depth: int) -> Iterator[Iterator[Mention]]:
    """Sources in the parts of a result; what holds blocks holds nothing else."""
    for key in (*_BLOCKS_TOO, *_STRUCTURED):
        yield _anything(value.get(key), depth - 1)
    for key in _HELD:
        if type(value.get(key)) is list:
            yield _mentions(value[key], depth - 1)


def _first(parts: Iterable[Iterator[Mention]]) -> Iterator[Mention]:
    """The sources in the first part that has any."""
    for part in parts:
        for mention in part:
            yield mention
            yield from part
            return


def _parsed(block: Any) -> Any:
    text = block.get("text") if type(block) is dict else block
    return parse_json(text) if is_text(text) else None
