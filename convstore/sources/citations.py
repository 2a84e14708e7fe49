"""What a text cites, by the annotations that providers put beside it; each cited thing is one source.

Layer 1. OpenAI calls the list ``annotations``, Anthropic ``citations``, LangChain turns both into its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from convstore.messages.values import is_text
from convstore.sources.source import MAX_SOURCES, FoundSource, first_text, plain_item, source_in

__all__ = ["CITED", "MOST_MENTIONS", "Mention", "citations_in", "distinct"]

CITED = frozenset(
    {
        *("citation", "file_citation", "url_citation"),
        *("char_location", "content_block_location", "page_location"),
        *("search_result_location", "web_search_result_location"),
    }
)
"""Annotations that name what is cited; others, such as ``file_path``, name what was made."""

MOST_MENTIONS = 2 * MAX_SOURCES
"""No result mentions its sources more often; beyond it what it cites is data."""

_SPAN_CHARACTERS = 10_000
"""A longer part of a text is no place of a citation; bounds what many overlapping ones can ask for."""


class Mention(NamedTuple):
    """A source where it stands, or where a text cites it."""

    source: FoundSource
    cited: bool = False


def citations_in(block: dict[Any, Any]) -> Iterator[Mention]:
    """What a text cites, in the order of its annotations; nothing if it has none.

    The text of a citation is what it quotes, else the part of the block's text that it stands for.

    >>> cited = {"type": "url_citation", "url": "https://a", "start_index": 0, "end_index": 3}
    >>> [(one.source.url, one.source.text) for one in citations_in({"text": "Yes. No.", "annotations": [cited]})]
    [('https://a', 'Yes')]
    """
    key = first_text(block, ("text", "content", "output_text"))
    text = block[key] if key else ""
    for name in ("annotations", "citations"):
        annotations = block.get(name)
        if type(annotations) is list:
            said = (_said(one) for one in annotations[: MOST_MENTIONS + 1])
            items = (_item(one, text) for one in said if one is not None)
            yield from (Mention(found, cited=True) for item in items if item and (found := source_in(item)))


def distinct(mentions: Iterable[Mention]) -> tuple[FoundSource, ...]:
    r"""The sources that are mentioned, each cited thing once: one address, else one file, else one title.

    What cites a thing again adds its text. What cites a source that stands there too adds none, unless that one has no
    text.

    >>> one, two = ({"content": text, "url": "https://a"} for text in ("one", "two"))
    >>> [found.text for found in distinct(Mention(source_in(item), cited=True) for item in (one, two, one))]
    ['one\n\ntwo']
    """
    things: list[_Thing] = []
    known: dict[tuple[str, str], _Thing] = {}
    for source, cited in mentions:
        names = _names(source)
        thing = known.get(names[0]) if cited else None
        if thing is None:
            thing = _Thing(source, cited or not source.text, {source.text: None})
            things.append(thing)
        elif thing.grows:
            thing.texts[source.text] = None
        for name in names:
            known.setdefault(name, thing)
    return tuple(thing.whole() for thing in things)


@dataclass(slots=True)
class _Thing:
    """A source that may be cited again; its texts in order, each once."""

    source: FoundSource
    grows: bool
    texts: dict[str, None]

    def whole(self) -> FoundSource:
        texts = [text for text in self.texts if text]
        if len(self.texts) == 1 or not texts or type(self.source.item) is not dict:
            return self.source
        return source_in(self.source.item | {"content": "\n\n".join(texts)}) or self.source


def _names(source: FoundSource) -> list[tuple[str, str]]:
    """By what a citation may name a source, the surest first; its text if it has no name."""
    extras = source.fields.get("extras")
    file_id = source.fields.get("file_id") or (extras.get("file_id") if type(extras) is dict else None)
    names = (("url", source.url), ("file", file_id), ("title", source.title))
    return [(kind, name) for kind, name in names if is_text(name) and name] or [("text", source.text)]


def _said(annotation: Any) -> dict[Any, Any] | None:
    """What an annotation says of the thing that it cites; None if it cites nothing."""
    if type(annotation) is dict and annotation.get("type") == "non_standard_annotation":
        annotation = annotation.get("value")
    if type(annotation) is not dict:
        return None
    kind = annotation.get("type")
    if not is_text(kind) or kind not in CITED:
        return None
    inner = annotation.get(kind)  # the chat completions API has them nested, the responses API has not
    if type(inner) is not dict:
        return annotation
    return {key: value for key, value in annotation.items() if key != kind} | inner


def _item(said: dict[Any, Any], text: str) -> dict[Any, Any] | None:
    key = first_text(said, ("cited_text", "quote"))
    quoted = said[key] if key else _span(text, said.get("start_index"), said.get("end_index"))
    item = plain_item(said, quoted, title=["document_title", "filename"], url=["source"], without=(key,))
    return item if quoted or first_text(item, ("title", "url", "file_id")) else None


def _span(text: str, start: Any, end: Any) -> str:
    if type(start) is not int or type(end) is not int or not 0 <= start < end:
        return ""
    return text[start : min(end, start + _SPAN_CHARACTERS)]
