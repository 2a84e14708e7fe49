r"""Write the numbers of sources into the content that their tool wrote.

Only digits are replaced: those of the marks with which the tool counts its sources, and those of numbers under
``source_id``. All other characters of the tool stay, and parts of an artifact that the tool did not show stay hidden.
The first form that fits is used:

1. JSON, also in a text block: ``"source_id": 17`` is inserted into the text of the item. A ``search_result`` block gets
   the number in its title.
2. A text in which every source is found: the number replaces the tool's own mark if there is one for every source, else
   it is inserted before the source.
3. Any other content gets lines above it that name all sources in order.

The module is long because it plans and writes each form of a content.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.messages import ToolMessage

from convstore.messages.media import block_type
from convstore.messages.values import is_text
from convstore.sources.blocks import item_of_block
from convstore.sources.detection import (
    SourceExtractor,
    extract_sources,
    parse_json,
    sources_in_json,
)
from convstore.sources.placing import (
    HEAD_CHARACTERS,
    MarkDigits,
    Shield,
    counted_passages,
    find_places,
    leading_numbers,
    own_marks,
)
from convstore.sources.prompt import heading_line, render_sources
from convstore.sources.source import FoundSource, FoundSources
from convstore.values.models import Source

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_NUMBER = re.compile(r"\s*:\s*(\d+)")


class _ParsedJson(NamedTuple):
    """A parsed JSON value with the positions of its objects.

    Attributes:
        value: The value.
        openings: Index of the brace of each object in the text, by the id of its dict.
        objects: All objects; the references keep their ids valid.
    """

    value: Any
    openings: dict[int, int]
    objects: list[dict[str, Any]]


def _parse_with_openings(text: str) -> _ParsedJson | None:
    """Parse the dict or list that a text encodes in JSON; None if it encodes anything else.

    The parser finishes objects in the order of their closing braces, even objects under a repeated key.

    >>> parsed = _parse_with_openings('[{"a": 1}, {"a": 2}]')
    >>> [parsed.openings[id(item)] for item in parsed.value]
    [1, 11]
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    objects: list[dict[str, Any]] = []

    def finished(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        objects.append(made)
        return made

    try:
        value = json.loads(text, object_pairs_hook=finished)
    except (ValueError, RecursionError):
        return None
    openings = {id(made): opening for made, opening in zip(objects, _openings(text), strict=True)}
    return _ParsedJson(value, openings, objects)


def _openings(text: str) -> list[int]:
    """Return the index of each opening brace, in the order of the closing ones."""
    opened = []
    closed = []
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign == "{":
            opened.append(token.start())
        elif sign == "}":
            closed.append(opened.pop())
    return closed


def _find_number(text: str, opening: int, key: str) -> tuple[int, int] | None:
    """Return start and end of the digits under a key of an object, given the index of its brace; None if missing.

    >>> _find_number('[{"b": {"a": 1}, "a": 25}]', 1, "a")
    (22, 24)
    """
    depth = 0
    found = None
    for token in _TOKEN.finditer(text, opening):
        sign = token[0]
        if sign in "{[":
            depth += 1
        elif sign in "}]":
            depth -= 1
        elif depth == 1 and sign[1:-1] == key and (number := _NUMBER.match(text, token.end())):
            found = number.span(1)
        if depth == 0:
            break
    return found


SourceNumbers = tuple[Sequence[int], Sequence[int | None]]
"""The numbers of some sources, and the earlier number of each if its text was shown before, else None."""

NO_SOURCE = 0
"""Source id for a number of a passage that is not a source of the log."""
_TEXT_BLOCKS = frozenset({"text", "input_text", "output_text"})
_BETWEEN = "\n\n"
_INSERTED = "[{}] "
_IN_JSON = '"source_id": {}, '
_DIGITS = "{}"


class _Spot(NamedTuple):
    """Position of a source's number: a range of one part of the content, which `form` with the number replaces."""

    part: int
    start: int
    end: int
    form: str
    source: int


class _TextPart(NamedTuple):
    """A text of the content that may be changed: the content itself, or the text under a key of one of its blocks."""

    block: int
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class NumberingPlan:
    """The positions of the numbers of a result's sources.

    Attributes:
        content: The content as the tool wrote it.
        is_marked: True if the tool counts its sources by marks of its own.
    """

    content: Any
    is_marked: bool
    _parts: Sequence[_TextPart]
    _spots: Sequence[_Spot]

    @property
    def is_shown(self) -> bool:
        """True if the content shows every source."""
        return bool(self._spots)

    def marks(self) -> dict[int, int]:
        """Return the index of the source for the number in each of the tool's own marks."""
        if not self.is_marked:
            return {}
        texts = [part.text for part in self._parts]
        return {int(texts[spot.part][spot.start : spot.end]): spot.source for spot in self._spots}

    def written(self, sources: Sequence[Source]) -> Any:
        """Return the content with the numbers of the sources."""
        if not self._spots:
            return _with_lines(self.content, sources)
        spots = defaultdict(list)
        for spot in sorted(self._spots):
            spots[spot.part].append(spot)
        texts = {
            self._parts[part]: _spliced(self._parts[part].text, found, sources)
            for part, found in spots.items()
        }
        return _with_texts(self.content, texts)


def plan_numbers(content: Any, found: Sequence[FoundSource]) -> NumberingPlan:
    """Return the positions for the numbers of sources in the content that a tool wrote.

    >>> found = [FoundSource("Seals sleep.", "Seals sleep.", {})]
    >>> plan_numbers("Page 1: Seals sleep.", found).written([Source(source_id=7, title="", content="")])
    'Page 1: [7] Seals sleep.'
    """
    parts = list(_parts_of(content))
    spots = _title_spots(content, parts, found) or _json_spots(parts, found)
    if spots:
        return NumberingPlan(content, False, parts, spots)
    spots, is_marked = _text_spots(parts, found)
    return NumberingPlan(content, is_marked, parts, spots)


def with_numbers(
    message: ToolMessage,
    found: FoundSources,
    given: SourceNumbers,
    *,
    plan: NumberingPlan | None = None,
) -> ToolMessage:
    """Return a tool result with numbers for its sources, which an append of the result then finds and keeps.

    The numbers are written into the content and into the sources, in the artifact or in JSON content. If the numbers
    could not be found there again, the sources become the artifact; an earlier artifact is kept in
    ``{"sources": [...], "artifact": artifact}``.
    """
    numbers, _ = given
    plan = plan or plan_numbers(message.content, found.items)
    written = plan.written(sources_of(found.items, given))
    changed = message.model_copy(update={"content": written})
    items = [
        source.with_number(number) for source, number in zip(found.items, numbers, strict=True)
    ]
    if found.rebuild is not None:
        changed = changed.model_copy(update={"artifact": found.rebuild(items)})
    # In some formats, such as texts among blank ones, numbered sources are not found again.
    again = sources_in(changed, {})
    if [source.kept_id for source in again.items] == list(numbers):
        return changed
    artifact: Any = items
    if message.artifact is not None:
        artifact = {"sources": items, "artifact": message.artifact}
    return changed.model_copy(update={"artifact": artifact})


def with_rendered(message: ToolMessage, found: FoundSources, given: SourceNumbers) -> ToolMessage:
    """Return the result of `with_numbers`; if its content does not show every source, append all sources in full."""
    plan = plan_numbers(message.content, found.items)
    numbered = with_numbers(message, found, given, plan=plan)
    if plan.is_shown:
        return numbered
    rendered = render_sources(sources_of(found.items, given))
    if isinstance(message.content, list):
        content: Any = [*message.content, {"type": "text", "text": rendered}]
    else:
        content = f"{message.content}\n\n{rendered}" if message.content.strip() else rendered
    return numbered.model_copy(update={"content": content})


def numbers_shown(content: Any, sources: Sequence[Source]) -> dict[int, int]:
    r"""Return the source ids by the other numbers that a result shows for them: replaced numbers, and its own marks.

    The content of an imported result still counts from 1, and so do the citations of its answer. If a result without
    sources counts passages, their numbers map to `NO_SOURCE`.

    >>> sources = [Source(source_id=n, title="", content=text) for n, text in ((8, "Seals sleep."), (9, "Orcas sing."))]
    >>> numbers_shown("[1] Seals sleep.\n[2] Orcas sing.", sources)
    {1: 8, 2: 9}
    >>> numbers_shown("[1] Seals sleep.\n[2] Orcas sing.", [])
    {1: 0, 2: 0}
    """
    if not sources:
        return dict.fromkeys(counted_passages(_lines(content)), NO_SOURCE)
    found = [
        FoundSource(source, source.content, {"title": source.title, "url": source.url})
        for source in sources
    ]
    marks = plan_numbers(content, found).marks()
    if not marks and not _shows_numbers(content, sources):
        leading = leading_numbers([source.content for source in sources])
        marks = {number: index for index, number in enumerate(leading)}
    given = {source.given_id: source.source_id for source in sources if source.given_id}
    return given | {number: sources[index].source_id for number, index in marks.items()}


def _shows_numbers(content: Any, sources: Sequence[Source]) -> bool:
    """Return True if a content has the numbers of all sources, as `NumberingPlan` writes them."""
    text = _lines(content)
    forms = (_INSERTED.strip(), _IN_JSON.strip(", "))
    return all(any(form.format(source.source_id) in text for form in forms) for source in sources)


def _lines(content: Any) -> str:
    """Return the texts of a content, each on separate lines; a JSON list counts as its texts."""
    texts: list[str] = []
    for part in _parts_of(content):
        parsed = parse_json(part.text)
        items = parsed if isinstance(parsed, list) else []
        texts += [item for item in items if isinstance(item, str)] or [part.text]
    return "\n".join(texts)


def sources_in(message: ToolMessage, extractors: Mapping[str, SourceExtractor]) -> FoundSources:
    """Return the sources that an append of a tool result would find; a failed call has no sources."""
    if message.status == "error":
        return FoundSources()
    parsed = parse_json(message.content) if isinstance(message.content, str) else None
    return extract_sources(message, parsed, extractors)


def sources_of(found: Sequence[FoundSource], given: SourceNumbers) -> list[Source]:
    """Return the sources with their numbers, as values of the API."""
    sources: list[Source] = []
    for item, number, earlier in zip(found, *given, strict=True):
        title, url, metadata = item.label()
        metadata.pop("source_id", None)
        source = Source(
            source_id=number,
            title=title,
            url=url,
            content=item.text,
            metadata=metadata,
            earlier_id=earlier,
        )
        sources.append(source)
    return sources


def _parts_of(content: Any) -> Iterator[_TextPart]:
    """Yield the texts of a content that may be changed; a text with citations by position must not be changed."""
    if isinstance(content, str):
        yield _TextPart(0, "", content)
        return
    for index, block in enumerate(content):
        if isinstance(block, str):
            yield _TextPart(index, "", block)
        elif block_type(block) == "search_result" and is_text(block.get("title")):
            yield _TextPart(index, "title", block["title"])
        elif block_type(block) in _TEXT_BLOCKS and is_text(block.get("text")):
            is_cited = block.get("annotations") or block.get("citations")
            if not is_cited:
                yield _TextPart(index, "text", block["text"])


def _title_spots(
    content: Any, parts: Sequence[_TextPart], found: Sequence[FoundSource]
) -> list[_Spot]:
    """Return the beginnings of the titles of ``search_result`` blocks, if the blocks are the sources."""
    titles = [number for number, part in enumerate(parts) if part.key == "title"]
    if not titles or len(titles) != len(found):
        return []
    items = [item_of_block(content[parts[part].block]) for part in titles]
    texts = [item["content"] if item else "" for item in items]
    if not all(map(_is_shown, texts, found)):
        return []
    return [_Spot(part, 0, 0, _INSERTED, source) for source, part in enumerate(titles)]


def _json_spots(parts: Sequence[_TextPart], found: Sequence[FoundSource]) -> list[_Spot]:
    """Return the beginnings of the items in JSON, if the items are the sources."""
    parsed = _parsed(parts)
    shown = sources_in_json([value.value for value in parsed.values()]) if parsed else ()
    if len(shown) != len(found) or not all(map(_is_same, shown, found)):
        return []
    spots = [
        spot
        for source, item in enumerate(shown)
        if (spot := _spot_of_item(source, item, parts, parsed)) is not None
    ]
    places = {(spot.part, spot.start) for spot in spots}
    return spots if len(places) == len(found) else []


def _parsed(parts: Sequence[_TextPart]) -> dict[int, _ParsedJson]:
    """Return the parsed values of the parts that are JSON, by the index of the part."""
    parsed = {}
    for number, part in enumerate(parts):
        value = None if part.key == "title" else _parse_with_openings(part.text)
        if value is not None:
            parsed[number] = value
    return parsed


def _spot_of_item(
    source: int, item: FoundSource, parts: Sequence[_TextPart], parsed: Mapping[int, _ParsedJson]
) -> _Spot | None:
    """Return the position for the number of an item: its ``source_id``, else after its brace."""
    fields = _object_of(item)
    part = next((each for each, value in parsed.items() if id(fields) in value.openings), None)
    if not fields or part is None:
        return None
    opening = parsed[part].openings[id(fields)]
    if "source_id" not in fields:
        return _Spot(part, opening + 1, opening + 1, _IN_JSON, source)
    digits = _find_number(parts[part].text, opening, "source_id")
    if digits is None or item.kept_id is None:
        return None
    return _Spot(part, *digits, _DIGITS, source)


def _object_of(item: FoundSource) -> dict[str, Any] | None:
    """Return the JSON object of an item: the item itself, or the only object in a pair with a text or a score."""
    raw = item.item if item.origin is None else item.origin
    if type(raw) is dict:
        return raw
    objects = [part for part in raw if type(part) is dict] if type(raw) is list else []
    return objects[0] if len(objects) == 1 else None


def _is_same(shown: FoundSource, found: FoundSource) -> bool:
    """Return True if an item of the content shows a source: its text or a part of it, else one of its names."""
    if shown.text and found.text:
        return _is_shown(shown.text, found)
    names = {shown.title, shown.url} & {found.title, found.url}
    return bool(names - {""})


def _is_shown(text: str, found: FoundSource) -> bool:
    """Return True if a text is the text of a source, or a part of it."""
    head = text.strip()[:HEAD_CHARACTERS].rstrip()
    return text == found.text or (bool(head) and head in found.text)


def _text_spots(
    parts: Sequence[_TextPart], found: Sequence[FoundSource]
) -> tuple[list[_Spot], bool]:
    """Return the positions for numbers in texts, and True if they replace the tool's own marks."""
    starts = []
    length = 0
    for part in parts:
        starts.append(length)
        length += len(part.text) + len(_BETWEEN)
    text = _BETWEEN.join(part.text for part in parts)
    shield = Shield(text)
    places = find_places(text, found, shield)
    if places is None:
        return [], False
    marks = own_marks(text, found, places, shield)
    form = _DIGITS if marks else _INSERTED
    inserted = [MarkDigits(place.at, place.at, source) for source, place in enumerate(places)]
    spots = []
    for start, end, source in marks or inserted:
        number = bisect_right(starts, start) - 1
        first = starts[number]
        spots.append(_Spot(number, start - first, end - first, form, source))
    return spots, bool(marks)


def _spliced(text: str, spots: Sequence[_Spot], sources: Sequence[Source]) -> str:
    pieces = []
    end = 0
    for spot in spots:
        pieces += [text[end : spot.start], spot.form.format(sources[spot.source].source_id)]
        end = spot.end
    return "".join([*pieces, text[end:]])


def _with_texts(content: Any, texts: Mapping[_TextPart, str]) -> Any:
    if isinstance(content, str):
        [written] = texts.values()
        return written
    blocks = list(content)
    for part, text in texts.items():
        block = blocks[part.block]
        blocks[part.block] = {**block, part.key: text} if part.key else text
    return blocks


def _with_lines(content: Any, sources: Sequence[Source]) -> Any:
    """Return the content below lines that name the sources."""
    lines = "\n".join(map(heading_line, sources))
    if isinstance(content, list):
        return [{"type": "text", "text": lines}, *content]
    return f"{lines}\n\n{content}" if content else lines
