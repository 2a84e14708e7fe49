"""Read the sources in the citations that providers attach to a text, where each cited document becomes one source.

OpenAI calls the list ``annotations``, Anthropic ``citations``; LangChain converts both to its own format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from convstore.messages.values import is_text
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
"""Maximum mentions of sources in one result; beyond it they are treated as data."""

_SPAN_CHARACTERS = 10_000
"""Maximum characters of a cited span, which bounds the total size of many overlapping ones."""


class Mention(NamedTuple):
    """A source, found as an item of its own or, if `cited`, in a citation."""

    source: FoundSource
    cited: bool = False


def citations_in(block: dict[Any, Any]) -> Iterator[Mention]:
    """Yield the sources that a text block cites, in the order of its annotations.

    The text of a cited source is the quotation, or else the span of the block's text that the citation covers.

    >>> cited = {"type": "url_citation", "url": "https://a", "start_index": 0, "end_index": 3}
    >>> [(found.source.url, found.source.text) for found in citations_in({"text": "Yes. No.", "annotations": [cited]})]
    [('https://a', 'Yes')]
    """
    key = first_text(block, ("text", "content", "output_text"))
    text = block[key] if key else ""
    for name in ("annotations", "citations"):
        annotations = block.get(name)
        if type(annotations) is list:
            citations = (citation_in(annotation) for annotation in annotations[: MAX_MENTIONS + 1])
            items = (_item(citation, text) for citation in citations if citation is not None)
            yield from (
                Mention(found, cited=True) for item in items if item and (found := source_in(item))
            )


def distinct(mentions: Iterable[Mention]) -> tuple[FoundSource, ...]:
    r"""Return the mentioned sources; citations of the same address, else file, else title, become one source.

    Each further citation adds its text. A citation of a source that is also an item of its own adds text only if the
    item has none.

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
    """A source that may be cited again; its distinct texts in order."""

    source: FoundSource
    takes_texts: bool
    texts: dict[str, None]

    def merged(self) -> FoundSource:
        texts = [text for text in self.texts if text]
        if len(self.texts) == 1 or not texts or type(self.source.item) is not dict:
            return self.source
        return source_in(self.source.item | {"content": "\n\n".join(texts)}) or self.source


def _names(source: FoundSource) -> list[tuple[str, str]]:
    """Return the keys by which citations identify a source, most reliable first; its text if it has none."""
    extras = source.fields.get("extras")
    file_id = source.fields.get("file_id") or (
        extras.get("file_id") if type(extras) is dict else None
    )
    names = (("url", source.url), ("file", file_id), ("title", source.title))
    return [(kind, name) for kind, name in names if is_text(name) and name] or [
        ("text", source.text)
    ]


def citation_in(annotation: Any) -> dict[Any, Any] | None:
    """Return the fields of the source that an annotation cites; None if it is no citation."""
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
    key = first_text(citation, ("cited_text", "quote"))
    quoted = (
        citation[key]
        if key
        else _span(text, citation.get("start_index"), citation.get("end_index"))
    )
    item = plain_item(
        citation, quoted, title=["document_title", "filename"], url=["source"], without=(key,)
    )
    return item if quoted or first_text(item, ("title", "url", "file_id")) else None


def _span(text: str, start: Any, end: Any) -> str:
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        return ""
    return text[start : min(end, start + _SPAN_CHARACTERS)]
