"""Read the citations that providers attach to a text: as sources of a tool result, or with positions in a reply.

OpenAI calls the list ``annotations``, Anthropic ``citations``; LangChain converts both to its own format. Citations are
attached to text blocks, in Chat Completions to the message. Gemini has them in the metadata of the response, with
positions in bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, NamedTuple, TypeVar

from langchain_core.messages import BaseMessage

from convstore.messages.values import is_text
from convstore.sources.marks import MAX_CITED
from convstore.sources.source import MAX_SOURCES, FoundSource, first_text, plain_item, source_in

CITED = frozenset(
    {
        *("citation", "file_citation", "url_citation"),
        *("char_location", "content_block_location", "page_location"),
        *("search_result_location", "web_search_result_location"),
    }
)
"""Types of annotations that cite a source; others, such as ``file_path``, refer to generated files."""

MAX_MENTIONS = 2 * MAX_SOURCES
"""Maximum mentions of sources in one result; a result with more is treated as data."""

_QUOTATION = ("cited_text", "quote")
_QUOTATION_CHARACTERS = 10_000
"""Maximum characters of a quotation or a cited span, which bounds the total size of many overlapping ones."""


class Mention(NamedTuple):
    """A source that was found as an item or, if `cited`, in a citation."""

    source: FoundSource
    cited: bool = False


def citations_in(block: dict[Any, Any]) -> Iterator[Mention]:
    """Yield the sources that a text block cites, in the order of its annotations.

    The text of a cited source is the quotation, or else the span of the block's text that the citation covers.

    >>> cited = {"type": "url_citation", "url": "https://a", "start_index": 0, "end_index": 3}
    >>> [(found.source.url, found.source.text) for found in citations_in({"text": "Yes. No.", "annotations": [cited]})]
    [('https://a', 'Yes')]
    """
    text = _first(block, ("text", "content", "output_text"))
    for citation in islice(_cited_in(block), MAX_MENTIONS + 1):
        item = _item(citation, text)
        found = source_in(item) if item else None
        if found:
            yield Mention(found, cited=True)


def _cited_in(holder: Mapping[Any, Any]) -> Iterator[dict[Any, Any]]:
    """Yield the fields of the sources that a text block, or a message whose content is a text, cites."""
    for name in ("annotations", "citations"):
        annotations = holder.get(name)
        if type(annotations) is list:
            yield from filter(None, map(citation_in, annotations))


def distinct(mentions: Iterable[Mention]) -> tuple[FoundSource, ...]:
    r"""Return the mentioned sources; citations of the same address, else file, else title, become one source.

    Each further citation adds its text. A citation of a source that is also an item adds text only if the item has no
    text.

    >>> one, two = ({"content": text, "url": "https://a"} for text in ("one", "two"))
    >>> [found.text for found in distinct(Mention(source_in(item), cited=True) for item in (one, two, one))]
    ['one\n\ntwo']
    """
    collected: list[_CitedSource] = []
    by_name: dict[tuple[str, str], _CitedSource] = {}
    for source, cited in mentions:
        names = _names(source)
        same = by_name.get(names[0]) if cited else None
        if same is None:
            same = _CitedSource(source, cited or not source.text, {source.text: None})
            collected.append(same)
        elif same.takes_texts:
            same.texts[source.text] = None
        for name in names:
            by_name.setdefault(name, same)
    return tuple(found.merged() for found in collected)


@dataclass(slots=True)
class _CitedSource:
    """A source with the distinct texts of its citations in order; `takes_texts` if further citations add texts."""

    source: FoundSource
    takes_texts: bool
    texts: dict[str, None]

    def merged(self) -> FoundSource:
        texts = [text for text in self.texts if text]
        if len(self.texts) == 1 or not texts or type(self.source.item) is not dict:
            return self.source
        return source_in(self.source.item | {"content": "\n\n".join(texts)}) or self.source


def _names(source: FoundSource) -> list[tuple[str, str]]:
    """Return the keys that identify a cited source, the most reliable first; its text if it has no other key."""
    extras = source.fields.get("extras")
    file_id = source.fields.get("file_id") or (
        extras.get("file_id") if type(extras) is dict else None
    )
    names = (("url", source.url), ("file", file_id), ("title", source.title))
    return [(kind, name) for kind, name in names if is_text(name) and name] or [
        ("text", source.text)
    ]


def citation_in(annotation: Any) -> dict[Any, Any] | None:
    """Return the fields of the source that an annotation cites; None if it is not a citation."""
    if type(annotation) is dict and annotation.get("type") == "non_standard_annotation":
        annotation = annotation.get("value")
    if type(annotation) is not dict:
        return None
    kind = annotation.get("type")
    if not is_text(kind) or kind not in CITED:
        return None
    # nested in OpenAI's chat completions API, flat in its responses API
    inner = annotation.get(kind)
    if type(inner) is not dict:
        return annotation
    return {key: value for key, value in annotation.items() if key != kind} | inner


def _item(citation: dict[Any, Any], text: str) -> dict[Any, Any] | None:
    key = first_text(citation, _QUOTATION)
    span = _span(text, citation.get("start_index"), citation.get("end_index"))
    quoted = citation[key] if key else span
    item = plain_item(
        citation, quoted, title=["document_title", "filename"], url=["source"], without=(key,)
    )
    return item if quoted or first_text(item, ("title", "url", "file_id")) else None


def _span(text: str, start: Any, end: Any) -> str:
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        return ""
    return text[start : min(end, start + _QUOTATION_CHARACTERS)]


_Kind = TypeVar("_Kind", dict[Any, Any], list[Any])

_TITLE = ("title", "document_title", "filename")
_URL = ("url", "uri", "source")
_NUMBER = re.compile(r"\[(\d{1,15})\] ")


class ProviderCitation(NamedTuple):
    """A citation of a provider; `number` is the number with which the title of its source begins, if it does."""

    start: int
    end: int
    title: str
    url: str
    quotation: str
    number: int | None = None


def provider_citations(message: BaseMessage) -> list[ProviderCitation]:
    """Return the citations of a reply, each once, in the order of the text; at most `MAX_CITED`.

    >>> from langchain_core.messages import AIMessage
    >>> cited = {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 0, "end_index": 3}
    >>> provider_citations(AIMessage([{"type": "text", "text": "Yes. No.", "annotations": [cited]}]))
    [ProviderCitation(start=0, end=3, title='A', url='https://a', quotation='', number=None)]
    """
    found = [*_of_blocks(message), *islice(_of_gemini(message), MAX_CITED)]
    distinct = dict.fromkeys(found[:MAX_CITED])
    return sorted(distinct, key=lambda cited: (cited.start, cited.end))


def _of_blocks(message: BaseMessage) -> list[ProviderCitation]:
    """Return the citations of text blocks, and those of a message whose content is one text."""
    found: list[ProviderCitation] = []
    content = message.content
    if isinstance(content, str):
        return list(islice(_of_text(message.additional_kwargs, content, 0), MAX_CITED))
    offset = 0
    for block in content:
        text = _text_of(block)
        if isinstance(block, dict):
            found += islice(_of_text(block, text, offset), MAX_CITED - len(found))
        offset += len(text)
    return found


def _text_of(block: Any) -> str:
    """Return the text that a block adds to the text of its message."""
    if isinstance(block, str):
        return block
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    return text if isinstance(text, str) else ""


def _of_text(holder: Mapping[Any, Any], text: str, offset: int) -> Iterator[ProviderCitation]:
    for cited in _cited_in(holder):
        start, end = _place(cited, len(text))
        title = _first(cited, _TITLE)
        number = _NUMBER.match(title)
        yield ProviderCitation(
            offset + start,
            offset + end,
            title[number.end() :] if number else title,
            _first(cited, _URL),
            _first(cited, _QUOTATION)[:_QUOTATION_CHARACTERS],
            int(number[1]) if number else None,
        )


def _place(cited: Mapping[Any, Any], length: int) -> tuple[int, int]:
    """Return start and end of a citation in its text; the whole text if the citation has no position."""
    start = cited.get("start_index")
    end = cited.get("end_index")
    if type(start) is int and type(end) is int and 0 <= start <= end:
        return min(start, length), min(end, length)
    index = cited.get("index")
    if cited.get("type") == "file_citation" and type(index) is int and index >= 0:
        return min(index, length), min(index, length)
    return 0, length


def _of_gemini(message: BaseMessage) -> Iterator[ProviderCitation]:
    """Yield the citations in Gemini's metadata, in the spelling of its SDK and of its API."""
    metadata = message.response_metadata
    grounding = _inner(metadata, dict, "grounding_metadata", "groundingMetadata")
    cited = _inner(metadata, dict, "citation_metadata", "citationMetadata")
    ends = _ends_of(message.text) if grounding or cited else ()
    chunks = _inner(grounding, list, "grounding_chunks", "groundingChunks")
    for support in _inner(grounding, list, "grounding_supports", "groundingSupports"):
        place = _place_of_bytes(_inner(support, dict, "segment"), ends)
        indices = _inner(support, list, "grounding_chunk_indices", "groundingChunkIndices")
        for index in indices if place else ():
            chunk = chunks[index] if type(index) is int and 0 <= index < len(chunks) else None
            page = _inner(chunk, dict, "web", "retrieved_context", "retrievedContext", "maps")
            if page and place:
                quotation = _first(page, ("text",))[:_QUOTATION_CHARACTERS]
                yield ProviderCitation(*place, _first(page, _TITLE), _first(page, _URL), quotation)
    for citation in _inner(cited, list, "citations", "citation_sources", "citationSources"):
        if isinstance(citation, dict) and (place := _place_of_bytes(citation, ends)):
            yield ProviderCitation(*place, _first(citation, _TITLE), _first(citation, _URL), "")


def _ends_of(text: str) -> list[int]:
    """Return the end of each character of a text, in bytes."""
    return list(accumulate(len(sign.encode("utf-8", "surrogatepass")) for sign in text))


def _place_of_bytes(segment: Mapping[Any, Any], ends: Sequence[int]) -> tuple[int, int] | None:
    """Return start and end of a segment, converted from bytes to characters; None if it has no valid position."""
    start = segment.get("start_index", segment.get("startIndex", 0)) or 0
    end = segment.get("end_index", segment.get("endIndex"))
    if type(start) is not int or type(end) is not int or not 0 <= start <= end:
        return None
    return bisect_right(ends, start), bisect_right(ends, end)


def _first(fields: Mapping[Any, Any], keys: Sequence[str]) -> str:
    key = first_text(dict(fields), keys)
    return fields[key] if key else ""


def _inner(value: Any, kind: type[_Kind], *keys: str) -> _Kind:
    """Return the first value of the given type under some keys of a dict, or an empty value of that type."""
    found = (value[key] for key in keys if isinstance(value, dict) and key in value)
    return next((inner for inner in found if isinstance(inner, kind)), kind())
