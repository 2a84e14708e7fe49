"""Find the sources in a tool result: in the artifact, then in the content, as values, blocks or JSON.

A list holds sources only if every item is one; content blocks may mix sources with others. No tool output raises an
error, and the time is linear in its size.
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
from convstore.sources.citations import MAX_MENTIONS, Mention, citations_in, distinct
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

SourceExtractor = Callable[[ToolMessage], Sequence[Any]]
"""Returns the sources of a tool's result, each a ``Document``, a ``(text, metadata)`` pair or a dict with a text."""

_ItemReader = Callable[[Any], FoundSource | None]

LISTS: dict[str, _ItemReader] = {
    **dict.fromkeys(("sources", "results", "documents", "docs", "passages", "chunks", "hits", "matches"), retrieved),
    "data": retrieved_file,  # a page of OpenAI's vector store search
}
"""Keys of a dict that may hold a list of sources, with the function that reads an item of the list."""

_TEXT_LISTS = frozenset({"sources", "documents", "docs", "passages", "chunks"})
"""Keys of an artifact under which a list of bare strings is a list of sources too."""
_NESTED = ("data", "hits")
"""Keys of envelopes with one of `LISTS` inside: responses of web APIs and of Elasticsearch."""

_BLOCK_LISTS = [key for key, read in LISTS.items() if read is retrieved]
_STRUCTURED = ("structured_content", "structuredContent")
_IN_STRUCTURED: dict[str, _ItemReader] = {**LISTS, "result": retrieved}  # MCP servers wrap a bare list in "result"
_CONTENT_KEYS = ("content", "output")
"""Keys of the content blocks in results of MCP and OpenAI."""
_DEPTH = 5
"""Maximum nesting of values; no known format is deeper."""

_LONG = 100_000
_SHOWN_SOURCE = re.compile(
    r"^\[(\d{1,15})\] ?.*, (?:characters \d+-\d+ of \d+|in .*, ordinal \d+, [\d-]{10})$", re.MULTILINE
)
_LINE_CHARACTERS = 100
_LAST_LINE = re.compile(r"(End\.|More: cursor=\"[\w.]{1,40}@\d{1,20}\")\s*\Z")

_NOTHING = FoundSources()


def extract_sources(
    message: ToolMessage, parsed_content: Any, extractors: Mapping[str, SourceExtractor]
) -> FoundSources:
    r"""Return the sources in a tool result, found by its tool's extractor, or by `find_sources` without one.

    The extractor is skipped if ``number_sources`` has already numbered every source.

    >>> def lines(message):
    ...     return [{"text": line} for line in message.text.splitlines()]
    >>> message = ToolMessage("one\ntwo", name="grep", tool_call_id="1")
    >>> [source.text for source in extract_sources(message, None, {"grep": lines}).items]
    ['one', 'two']

    Raises:
        InvalidInputError: The extractor raised, or returned something other than sources.
    """
    extractor = extractors.get(message.name or "")
    found = find_sources(message, parsed_content)
    if extractor is None or (found.items and all(source.kept_id for source in found.items)):
        return found
    try:
        items = list(extractor(message))
    except Exception as error:
        raise InvalidInputError(
            f"the source extractor of {message.name!r} raised {error!r}; fix the extractor"
        ) from error
    sources = tuple(source for item in items if (source := source_in(item)) is not None)
    if len(sources) != len(items) or len(sources) > MAX_SOURCES:
        raise InvalidInputError(
            f"the source extractor of {message.name!r} must return at most {MAX_SOURCES:,} sources, "
            "each a Document, a (text, metadata) pair or a dict"
        )
    return FoundSources(sources)


def find_sources(message: ToolMessage, parsed_content: Any) -> FoundSources:
    """Return the sources in a tool result; those in the artifact take precedence over those in the content.

    >>> found = find_sources(ToolMessage("2 hits", tool_call_id="1", artifact=[("text", {"title": "T"})]), None)
    >>> [(source.title, source.text) for source in found.items]
    [('T', 'text')]
    >>> block = {"type": "search_result", "source": "https://a", "title": "A", "content": []}
    >>> [source.url for source in find_sources(ToolMessage(["1 hit", block], tool_call_id="1"), None).items]
    ['https://a']
    """
    artifact = message.artifact
    if isinstance(artifact, SourcePage):
        return _NOTHING  # sources that were read back keep their numbers
    if artifact is not None and ((found := _texts_of(artifact)).items or (found := _in_value(artifact)).items):
        return found
    return FoundSources(_in_value(parsed_content).items or _in_content(message.content))


def read_back_ids(message: ToolMessage) -> tuple[int, ...]:
    r"""Return the numbers of the sources on a page of ``retrieve_previous_sources``.

    They are read from the artifact or, where a conversion to OpenAI's format or JSON has dropped it, from the text.

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
    """Return the dict or list that a text encodes in JSON; None if it encodes anything else.

    >>> parse_json('{"results": []}'), parse_json("7")
    ({'results': []}, None)
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    # A Python hook lets other threads run in the middle of a long text.
    hook = _identity if len(text) > _LONG else None
    try:
        return json.loads(text, object_hook=hook)
    except (ValueError, RecursionError):
        return None


def _identity(node: dict[str, Any]) -> dict[str, Any]:
    return node


def _in_value(value: Any) -> FoundSources:
    items = _items_in(value)
    return items if items.items else FoundSources(_collected(_mentions(value, _DEPTH)))


def _in_content(content: Any) -> tuple[FoundSource, ...]:
    """Return the sources in a message's content; in content blocks a bare text is no retrieved item."""
    if type(content) is list and any(type_of(block) for block in content):
        return _collected(_in_blocks(content, _DEPTH))
    return _in_value(content).items


def _collected(mentions: Iterator[Mention]) -> tuple[FoundSource, ...]:
    """Return the distinct sources mentioned; none if there are too many to be sources."""
    found = list(islice(mentions, MAX_MENTIONS + 1))
    sources = distinct(found) if len(found) <= MAX_MENTIONS else ()
    return sources if len(sources) <= MAX_SOURCES else ()


# ---------------------------------------------------------------------------------------------------------------------
# Lists of items, from which the artifact can be rebuilt


def _items_in(value: Any, lists: Mapping[str, _ItemReader] = LISTS) -> FoundSources:
    """Return the sources of a list of items, as the value itself or under a known key; none for other formats."""
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
            if (found := _items_in(value.get(key), _IN_STRUCTURED)).items:
                return _under(value, key, found)
    return _one(value)


def _listed(value: dict[Any, Any], lists: Mapping[str, _ItemReader]) -> FoundSources:
    """Return the sources of the first list under a known key whose items are all sources."""
    for key, read in lists.items():
        if type(value.get(key)) is list and (found := _all(value[key], read)).items:
            return _under(value, key, found)
    return _NOTHING


def _texts_of(artifact: Any) -> FoundSources:
    """Return the sources of an artifact that is a list of strings, or has one under a key of `_TEXT_LISTS`.

    In content such a list is data: a tool that answers `["AA12", "BB7"]` has retrieved nothing.
    """
    if type(artifact) in (list, tuple):
        return _all(artifact, retrieved_text)
    if type(artifact) is dict:
        return _listed(artifact, {key: retrieved_text for key in LISTS if key in _TEXT_LISTS})
    return _NOTHING


def _all(values: Sequence[Any], read: _ItemReader) -> FoundSources:
    """Return the sources of a list if every item is one, else none."""
    if not 0 < len(values) <= MAX_SOURCES:
        return _NOTHING
    found = tuple(_of_block(value) if is_block(value) else read(value) for value in values)
    sources = tuple(one for one in found if one is not None)
    if len(sources) < len(values):
        return _NOTHING
    are_items = all(source.item is value for source, value in zip(sources, values, strict=True))
    return FoundSources(sources, type(values) if are_items else None)


def _one(value: dict[Any, Any]) -> FoundSources:
    """Return a single document as a source; it must have a text, a title and an address."""
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
# Blocks, their citations and their contents


def _anything(value: Any, depth: int) -> Iterator[Mention]:
    """Yield the sources in a value of any format."""
    found = _items_in(value).items
    return map(Mention, found) if found else _mentions(value, depth)


def _mentions(value: Any, depth: int) -> Iterator[Mention]:
    """Yield the sources in a block, in a list of blocks or in the parts of a dict; stops at `depth` 0."""
    if depth <= 0:
        return
    if type(value) in (list, tuple):
        yield from _in_blocks(value, depth)
    elif type(value) is dict:
        yield from _first(chain([_in_block(value, depth)], _in_parts(value, depth)))


def _in_blocks(blocks: Sequence[Any], depth: int) -> Iterator[Mention]:
    """Yield the sources in a list of blocks.

    Some MCP servers send a list as one text block with JSON per item; those are read as items.
    """
    split = len(blocks) > 1 and all(type_of(block) in TEXTS for block in blocks[: MAX_SOURCES + 1])
    items = _all([_parsed(block) for block in blocks[: MAX_SOURCES + 1]], retrieved).items if split else ()
    yield from map(Mention, items)
    for block in () if items else blocks:
        yield from _in_block(block, depth)


def _in_block(block: Any, depth: int) -> Iterator[Mention]:
    """Yield the sources of one block: its citations, else itself, else those in its JSON text or its contents."""
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
    """Yield the sources of each part of a result; `_CONTENT_KEYS` are searched for blocks only."""
    for key in (*_BLOCK_LISTS, *_STRUCTURED):
        yield _anything(value.get(key), depth - 1)
    for key in _CONTENT_KEYS:
        if type(value.get(key)) is list:
            yield _mentions(value[key], depth - 1)


def _first(parts: Iterable[Iterator[Mention]]) -> Iterator[Mention]:
    """Yield the sources of the first part that has any."""
    for part in parts:
        for mention in part:
            yield mention
            yield from part
            return


def _parsed(block: Any) -> Any:
    text = block.get("text") if type(block) is dict else block
    return parse_json(text) if is_text(text) else None
