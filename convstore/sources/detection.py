"""Find the sources in a tool result: in the artifact, then in the content, as values, blocks or JSON.

A list is a list of sources if at least half of its items are sources and the others resemble them; these are skipped.
Content blocks may mix sources with other blocks. No tool output raises an error, and the time is linear in its size.

Many lists look like sources: tickets, products, records, lines of code. `declares_sources` returns True only for
results in formats of retrieval. Only these are numbered unless the application asks for it, because numbers in other
results would only cost tokens.

The module is long because the shapes of all services that it knows are read by the same rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import ToolMessage

from convstore.exceptions import InvalidInputError
from convstore.messages.media import block_type
from convstore.messages.text import text_of
from convstore.messages.values import is_text
from convstore.sources.blocks import HOLDERS, TEXTS, is_block, item_of_block
from convstore.sources.citations import MAX_MENTIONS, Mention, citations_in, distinct
from convstore.sources.source import (
    MAX_SOURCES,
    FoundSource,
    FoundSources,
    first_text,
    is_passage,
    retrieved,
    retrieved_text,
    source_in,
)
from convstore.sources.stub import failure_in
from convstore.values.models import SourcePage

SourceExtractor = Callable[[ToolMessage], Sequence[Any]]
"""Returns the sources of a tool's result, each a ``Document``, a ``(text, metadata)`` pair or a dict with a text."""

_ItemReader = Callable[[Any], FoundSource | None]


_LISTS = ("sources", "results", "documents", "docs", "passages", "chunks", "hits", "matches")
_TEXT_LISTS = ("sources", "documents", "docs", "passages", "chunks")
"""Keys under which a list of strings is also a list of sources."""
_STRUCTURED = ("structured_content", "structuredContent")

# Elasticsearch, MCP
SHAPES: dict[str, dict[str, str]] = {
    **{key: {} for key in (*_LISTS, *_STRUCTURED)},
    "data": {"needs": "file_id"},  # a page of OpenAI's vector store search
    **{f"{key}.{name}": {} for key in ("data", "hits", *_STRUCTURED) for name in _LISTS},
    **{f"{key}.result": {} for key in _STRUCTURED},
    "contexts.contexts": {"needs": "text"},  # Vertex AI RAG Engine
    "retrievalResults": {"needs": "content", "inside": "content"},  # Amazon Bedrock
    "value": {"needs": "@search.score", "text_key": "chunk"},  # Azure AI Search
    **{
        key: {"needs": "content"} for key in ("citations", "context.citations")
    },  # Azure OpenAI on your data
    "webPages.value": {"needs": "url"},  # Bing
    **{key: {"needs": "link"} for key in ("organic", "organic_results")},  # Serper, SerpApi
    "items": {"needs": "snippet"},  # Google
    "web.results": {"needs": "url", "text_key": "description"},  # Brave
    **{key: {"needs": "payload"} for key in ("points", "result", "result.points")},  # Qdrant
    "data.Get.*": {},  # Weaviate
    "objects": {"needs": "properties", "inside": "properties"},
    **{key: {"needs": "node"} for key in ("nodes", "source_nodes")},  # LlamaIndex
}
"""Paths of lists of sources in responses, in order of preference, with the arguments of `retrieved` for their items.

``*`` is the first key with a list. Items without the key that they need are other data under the same path.
"""

_NAMED = frozenset({"sources", "hits.hits", "data.Get.*"})
"""Further paths that only retrieved sources have; all paths whose items need a key are such paths, too."""

_PATHS = [
    (path.split("."), partial(retrieved, **how) if how else retrieved, bool(how) or path in _NAMED)
    for path, how in SHAPES.items()
]
_BY_KEY = {
    keys[0]: [(path[1:], read, named) for path, read, named in _PATHS if path[0] == keys[0]]
    for keys, _, _ in _PATHS
}
_COLUMNS = {"ids": "id", "documents": "content", "metadatas": "metadata", "distances": "distance"}
_CONTENT_KEYS = ("content", "output")
"""Keys of the content blocks in results of MCP and OpenAI."""
_DEPTH = 5
"""Maximum nesting of values; no known format is deeper."""

_LONG = 100_000
_SHOWN_SOURCE = re.compile(
    r"^\[(\d{1,15})\] ?.*, (?:characters \d+-\d+ of \d+|in .*, m\d+, [\d-]{10})$", re.MULTILINE
)
_LINE_CHARACTERS = 4_200
_LAST_LINE = re.compile(r"End\.|More: cursor=\"[\w.]{1,40}@\d{1,20}[^\"\n]*\";.*")

_NOTHING = FoundSources()


def extract_sources(
    message: ToolMessage, parsed_content: Any, extractors: Mapping[str, SourceExtractor]
) -> FoundSources:
    r"""Return the sources in a tool result, found by its tool's extractor if it has one, else by `find_sources`.

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
            f"the source extractor of {message.name!r} must return at most {MAX_SOURCES:,} "
            "sources, each a Document, a (text, metadata) pair or a dict"
        )
    return FoundSources(sources, is_named=True)


def given_sources(values: Any) -> FoundSources:
    """Return the sources in a list that a caller passes as sources, so that each item has to be one.

    >>> [source.text for source in given_sources(["Whales sing.", ("Seals sleep.", {"title": "Seals"})]).items]
    ['Whales sing.', 'Seals sleep.']

    Raises:
        InvalidInputError: The value is not a list, is too long, or has an item that is not a source.
    """
    if type(values) not in (list, tuple) or len(values) > MAX_SOURCES:
        given = f"{len(values):,} items" if type(values) in (list, tuple) else type(values).__name__
        raise InvalidInputError(
            f"sources must be a list of at most {MAX_SOURCES:,} sources, not {given}; "
            "pass the best of them, or data as artifact="
        )
    found: list[FoundSource] = []
    for index, value in enumerate(values):
        source = _of_block(value) if is_block(value) else retrieved(value) or retrieved_text(value)
        if source is None:
            raise InvalidInputError(
                f"sources[{index}] must be a Document, a text that is not blank, a (text, "
                "metadata) pair, or a dict with a text, a title or an address"
            )
        found.append(source)
    return FoundSources(tuple(found))


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
    if artifact is not None:
        found = _texts_of(artifact)
        if not found.items:
            found = _in_value(artifact)
        if found.items:
            return found
    texts = _texts_of(message.content if parsed_content is None else parsed_content).items
    if texts and 2 * sum(is_passage(source.text) for source in texts) >= len(texts):
        return FoundSources(texts, is_shown=parsed_content is not None)
    if (found := _in_value(parsed_content)).items:
        return found._replace(rebuild=None, is_shown=True)
    return FoundSources(_in_content(message.content))


def sources_in_json(values: Sequence[Any]) -> tuple[FoundSource, ...]:
    """Return the sources in the parsed JSON of a content: the value of its text, or those of its text blocks.

    >>> [source.title for source in sources_in_json([[{"title": "A", "text": "a"}], {"title": "B"}])]
    ['A']
    """
    items = _read_list(values, retrieved).items
    if items and len(values) > 1:
        return items
    return (
        _collected(chain.from_iterable(_in_any_format(each, _DEPTH - 1) for each in values))
        or items
    )


def sources_in_json_are_named(value: Any) -> bool:
    """Return True if a value has sources under a path that only sources have; see `FoundSources.is_named`."""
    return _items_in(value).is_named


def read_back_ids(message: ToolMessage) -> tuple[int, ...]:
    r"""Return the numbers of the sources on a page of ``retrieve_previous_sources``.

    They are read from the artifact or, if a conversion to OpenAI's format or JSON has dropped that, from the text.

    >>> page = "[11] Seals (https://a), characters 0-12 of 12\nSeals sleep.\nEnd.\n"
    >>> read_back_ids(ToolMessage(page, tool_call_id="1"))
    (11,)
    """
    text = message.content
    numbers: Iterable[int] = ()
    if isinstance(message.artifact, SourcePage):
        numbers = (source.source_id for source in message.artifact.sources)
    elif isinstance(text, str) and _LAST_LINE.fullmatch(_last_line(text)):
        numbers = (int(found[1]) for found in _SHOWN_SOURCE.finditer(text))
    return tuple(
        dict.fromkeys(islice((number for number in numbers if 0 < number < 2**53), MAX_SOURCES))
    )


def _last_line(text: str) -> str:
    """Return the last line that is not blank; of a long line only the end."""
    return text[-_LINE_CHARACTERS:].rstrip().rpartition("\n")[2]


def has_failed(message: Any) -> bool:
    """Return True for a tool result, or its stub, that reports a failed call."""
    if not isinstance(message, ToolMessage):
        return False
    text = text_of(message.content)
    return failure_in(message.status, text, parse_json(text)) is not None


def parse_json(text: str) -> Any:
    """Return the dict or list that a text encodes in JSON; None if it encodes anything else.

    >>> parse_json('{"results": []}'), parse_json("7")
    ({'results': []}, None)
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    # A hook in Python lets other threads run while a long text is parsed.
    hook = (lambda node: node) if len(text) > _LONG else None
    try:
        return json.loads(text, object_hook=hook)
    except (ValueError, RecursionError):
        return None


def _in_value(value: Any) -> FoundSources:
    items = _items_in(value)
    return items if items.items else FoundSources(_collected(_mentions(value, _DEPTH)))


def _in_content(content: Any) -> tuple[FoundSource, ...]:
    """Return the sources in a message's content; a plain text among content blocks does not count as an item."""
    if type(content) is list and any(block_type(block) for block in content):
        return _collected(_in_blocks(content, _DEPTH))
    return _in_value(content).items


def _collected(mentions: Iterator[Mention]) -> tuple[FoundSource, ...]:
    """Return the distinct sources mentioned; empty if there are too many to be sources."""
    found = list(islice(mentions, MAX_MENTIONS + 1))
    sources = distinct(found) if len(found) <= MAX_MENTIONS else ()
    return sources if len(sources) <= MAX_SOURCES else ()


# ---------------------------------------------------------------------------------------------------------------------
# Lists of items, from which the artifact can be rebuilt


def _items_in(value: Any) -> FoundSources:
    """Return the sources of a list of items, which is the value itself or under a known path; else empty."""
    if type(value) in (list, tuple):
        return _read_list(value, retrieved)
    if type(value) is not dict:
        return _NOTHING
    if "ids" in value and (found := _read_list(_rows(value), retrieved)).items:
        return FoundSources(found.items, is_named=True)
    for key in [key for key in _BY_KEY if key in value]:
        for path, read, is_named in _BY_KEY[key]:
            if (found := _at_path(value[key], path, read)).items:
                return _under(value, key, found)._replace(is_named=is_named)
    return _single_document(value)


def _at_path(value: Any, path: Sequence[str], read: _ItemReader) -> FoundSources:
    """Return the sources of the list at the end of a path."""
    if not path:
        return _read_list(value, read) if type(value) is list else _NOTHING
    if type(value) is not dict:
        return _NOTHING
    key = (
        path[0] if path[0] != "*" else next((key for key in value if type(value[key]) is list), "")
    )
    return _under(value, key, _at_path(value.get(key), path[1:], read))


def _rows(value: dict[Any, Any]) -> list[dict[str, Any]]:
    """Return the items of Chroma's parallel lists; with several queries each list has one list for each query."""
    columns = {name: value[key] for key, name in _COLUMNS.items() if type(value.get(key)) is list}
    if not {"id", "content"} <= columns.keys():
        return []
    if all(type(part) is list for part in columns["id"]):
        columns = {name: list(chain(*filter(None, column))) for name, column in columns.items()}
    if len({len(column) for column in columns.values()}) > 1:
        return []
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _texts_of(value: Any) -> FoundSources:
    """Return the sources of a list of strings, or of such a list under a key of `_TEXT_LISTS`.

    In content most such lists are data: the items of `["AA12", "BB7"]` are not passages.
    """
    if type(value) in (list, tuple):
        return _read_list(value, retrieved_text)
    if type(value) is not dict or "ids" in value:
        return _NOTHING
    found = (_at_path(value, (key,), retrieved_text) for key in _TEXT_LISTS if key in value)
    return next((sources for sources in found if sources.items), _NOTHING)


def _read_list(values: Sequence[Any], read: _ItemReader) -> FoundSources:
    """Return the sources of a list; empty unless at least half of the items are sources and the others like them."""
    if not 0 < len(values) <= MAX_SOURCES:
        return _NOTHING
    if read is retrieved_text and not _have_text(values):
        return _NOTHING
    found = [_source_of(value, read) for value in values]
    sources = tuple([source for source in found if source is not None])
    others = [value for value, source in zip(values, found, strict=True) if source is None]
    if others and not _are_like(others, sources):
        return _NOTHING
    if not _are_items(values, found):
        return FoundSources(sources, None)
    return FoundSources(sources, partial(_filled, values, found))


def _have_text(values: Sequence[Any]) -> bool:
    """Return True if a value among some is a text or a content block."""
    return any(is_text(value) or is_block(value) for value in values)


def _source_of(value: Any, read: _ItemReader) -> FoundSource | None:
    """Return a value of a list as a source, None if it is not a source."""
    source = _of_block(value) if is_block(value) else read(value)
    if source is None or source.item is value:
        return source
    return source._replace(origin=value)  # its item was converted from the value


def _are_like(others: Sequence[Any], sources: Sequence[FoundSource]) -> bool:
    """Return True if the other values of a list may be sources without text, and are not more than its sources."""
    if len(others) > len(sources):
        return False
    return all(_is_like(other, sources[0].item) for other in others)


def _are_items(values: Sequence[Any], found: Sequence[FoundSource | None]) -> bool:
    """Return True if the item of each source of a list is a value of the list itself."""
    pairs = zip(found, values, strict=True)
    return all(source is None or source.item is value for source, value in pairs)


def _is_like(value: Any, item: Any) -> bool:
    """Return True if a value may be a source without text: it is empty, or shares type and a key with a source."""
    if type(value) is dict and type(item) is dict:
        return not is_block(value) and not value.keys().isdisjoint(item)
    return value is None or (type(value) is type(item) and not (is_text(value) and value.strip()))


def _filled(values: Any, found: Sequence[Any], parts: Sequence[Any]) -> Any:
    """Return a list with its sources replaced."""
    left = iter(parts)
    return type(values)(
        [
            value if source is None else next(left)
            for value, source in zip(values, found, strict=True)
        ]
    )


def _single_document(value: dict[Any, Any]) -> FoundSources:
    """Return a single document as a source; it must have a text, a title and an address."""
    found = None if is_block(value) else retrieved(value)
    if found is None or not (found.text and found.url and first_text(found.fields, ("title",))):
        return _NOTHING
    rebuild = itemgetter(0) if found.item is value else None
    return FoundSources((found._replace(origin=value),), rebuild)


def _under(value: dict[Any, Any], key: str, found: FoundSources) -> FoundSources:
    rebuild = found.rebuild
    return FoundSources(
        found.items, None if rebuild is None else lambda parts: {**value, key: rebuild(parts)}
    )


def _of_block(block: Any) -> FoundSource | None:
    item = item_of_block(block)
    return None if item is None else source_in(item)


# ---------------------------------------------------------------------------------------------------------------------
# Blocks, their citations and their contents


def _in_any_format(value: Any, depth: int) -> Iterator[Mention]:
    """Yield the sources in a value of any format."""
    found = _items_in(value).items
    return map(Mention, found) if found else _mentions(value, depth)


def _mentions(value: Any, depth: int) -> Iterator[Mention]:
    """Yield the sources in a block, in a list of blocks or in the parts of a dict, down to `depth` levels."""
    if depth <= 0:
        return
    if type(value) in (list, tuple):
        yield from _in_blocks(value, depth)
    elif type(value) is dict:
        parts = map(list, chain([_in_block(value, depth)], _in_parts(value, depth)))
        yield from next(filter(None, parts), ())


def _in_blocks(blocks: Sequence[Any], depth: int) -> Iterator[Mention]:
    """Yield the sources in a list of blocks.

    Some MCP servers send a list as text blocks with the JSON of one item each; these are read as items.
    """
    first = blocks[: MAX_SOURCES + 1]
    items = tuple[FoundSource, ...]()
    if len(blocks) > 1 and all(block_type(block) in TEXTS for block in first):
        items = _read_list([_parsed(block) for block in first], retrieved).items
    yield from map(Mention, items)
    for block in () if items else blocks:
        yield from _in_block(block, depth)


def _in_block(block: Any, depth: int) -> Iterator[Mention]:
    """Yield the sources of one block: its citations, else the block itself, else those in its JSON text or contents."""
    cited = list(citations_in(block)) if type(block) is dict else []
    if cited:
        yield from cited
    elif found := _of_block(block):
        yield Mention(found)
    elif is_text(block) or block_type(block) in TEXTS:
        yield from _in_any_format(_parsed(block), depth - 1)
    elif holder := HOLDERS.get(block_type(block)):
        yield from _in_any_format(block.get(holder), depth - 1)


def _in_parts(value: dict[Any, Any], depth: int) -> Iterator[Iterator[Mention]]:
    """Yield the sources of each part of a result; `_CONTENT_KEYS` are searched for blocks only."""
    for key in (*_LISTS, *_STRUCTURED):
        if key in value:
            yield _in_any_format(value[key], depth - 1)
    for key in _CONTENT_KEYS:
        if type(value.get(key)) is list:
            yield _mentions(value[key], depth - 1)


def _parsed(block: Any) -> Any:
    text = block.get("text") if type(block) is dict else block
    return parse_json(text) if is_text(text) else None


_BLOCKS = frozenset({"search_result", "web_search_result"})
_URLS = ("link", "url", "href")


def declares_sources(message: ToolMessage, found: FoundSources) -> bool:
    """Return True if the format of a result shows that it has sources, not other items.

    Such formats are documents of LangChain, ``search_result`` blocks, results of known retrieval and search services, a
    list under ``sources``, and the sources that the tool's extractor returned.

    >>> page = FoundSource({"page_content": "Seals sleep."}, "Seals sleep.", {}, "page_content")
    >>> ticket = FoundSource({"title": "Broken", "body": "It is."}, "It is.", {"title": "Broken"}, "body")
    >>> message = ToolMessage("", tool_call_id="1")
    >>> [declares_sources(message, FoundSources((item,))) for item in (page, ticket)]
    [True, False]
    """
    if found.is_named or all(map(_is_retrieved, found.items)):
        return True
    if not isinstance(message.content, list):
        return False
    texts = [block.get("text") for block in message.content if isinstance(block, dict)]
    values = [parse_json(text) for text in texts if isinstance(text, str)]
    return any(map(sources_in_json_are_named, values))


def _is_retrieved(found: FoundSource) -> bool:
    item: Any = found.item
    if isinstance(item, list | tuple) and item:
        item = item[0]
    if isinstance(item, Document):
        return True
    if type(item) is not dict:
        return False
    is_document = found.text_key == "page_content" or block_type(item) in _BLOCKS
    return is_document or _is_found_on_the_web(item)


def _is_found_on_the_web(item: dict[Any, Any]) -> bool:
    """Return True for an item of a web search: an address with a snippet, or with content and score (Tavily)."""
    if not first_text(item, _URLS):
        return False
    return bool(first_text(item, ("snippet",))) or ("content" in item and "score" in item)
