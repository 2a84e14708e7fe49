"""Removes repeated texts from a tool result, whose content, artifact and sources often contain the same text.

Each removed text is replaced by a reference to the passage that shows it. Headings and marks of sources between removed
texts are removed as well, because a page shows each source under its heading.

Tools that put their sources into an artifact usually write them into the content as well: unchanged, line by line
between headings, truncated, or as JSON strings. The search time is limited; a missed repetition is only read twice.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from convstore.log.entry import EntrySource
from convstore.messages.values import Codec
from convstore.sources.places import read_text
from convstore.sources.source import source_in, write_ids
from convstore.values.models import Source
from convstore.values.plain import equal_at_start

Range = tuple[int, int]
"""Start and end of a part of a text."""

_MIN_LENGTH = 20
"""A shorter line may occur in a text by chance."""
_MIN_TEXT_FOR_LINES = 200
"""A shorter text is searched for whole parts only, not for their lines."""
_PREFIX = 60
"""Number of characters by which a truncated line is recognised."""
_MAX_MISSED = 3
"""Number of consecutive missing lines after which the search for a part ends."""
_SCANS = 8
"""Maximum number of scans of the text without a match, unless `_MIN_SCANNED` characters are more."""
_MIN_SCANNED = 200_000
_MAX_FOUND = 1_000
_MAX_NODES = 20_000

_Form = Callable[[str], str]


def repeats(text: str, parts: Sequence[str]) -> list[list[Range]]:
    r"""Return for each part the ranges of a text that repeat it or its lines, in order; no two ranges overlap.

    >>> song, bark = "Whales sing all night long.", "Seals bark when they are hungry."
    >>> repeats(f"[1] Whales\n{song}\n\n[2] Seals\n{bark}", [song, bark])
    [[(11, 38)], [(50, 82)]]
    """
    search = _RepeatSearch(
        text, budget=max(_SCANS * (len(text) + sum(map(len, parts))), _MIN_SCANNED)
    )
    return [search.ranges_of(part) if len(text) >= _MIN_LENGTH else [] for part in parts]


def leaves(value: Any) -> list[str]:
    """Return the strings in nested dicts and lists that are long enough to search for, in order, up to a maximum.

    >>> leaves({"a": ["x" * 20, 7], "b": "short"})
    ['xxxxxxxxxxxxxxxxxxxx']
    """
    texts = (node for node in _values_in(value) if type(node) is str and len(node) >= _MIN_LENGTH)
    return list(islice(texts, _MAX_FOUND))


def _values_in(value: Any) -> Iterator[Any]:
    todo = [value]
    for _ in range(_MAX_NODES):
        if not todo:
            return
        yield (item := todo.pop())
        if type(item) in (list, tuple, dict):
            todo.extend(reversed(list(item.values() if type(item) is dict else item)[:_MAX_NODES]))


@dataclass(slots=True)
class _RepeatSearch:
    """Searches for one part after another, starting after the previous match, because tools keep the order."""

    text: str
    budget: int
    forms: tuple[_Form, ...] = field(init=False)
    position: int = 0
    matched: list[Range] = field(default_factory=list)

    def __post_init__(self) -> None:
        first = self.text[:100].lstrip()[:1]
        last = self.text[-100:].rstrip()[-1:]
        is_json = first + last in ("{}", "[]", '""')
        twice = (lambda text: _quoted(_quoted(text)), lambda text: _quoted(_in_ascii(text)))
        self.forms = (_quoted, _in_ascii, *twice, str) if is_json else (str,)

    def ranges_of(self, part: str) -> list[Range]:
        if len(part.strip()) < _MIN_LENGTH:
            return []
        missed: set[str] = set()
        for form in self.forms:
            if (needle := form(part)) not in missed and (position := self._find(needle)) >= 0:
                return [self._take(position, len(needle))]
            missed.add(needle)
        for form in self.forms if len(self.text) >= _MIN_TEXT_FOR_LINES else ():
            if ranges := self._lines_of(part, form):
                return _with_neighbours_joined(self.text, ranges)
        return []

    def _lines_of(self, part: str, form: _Form) -> list[Range]:
        ranges: list[Range] = []
        missed = 0
        for line in (
            line for stripped in part.splitlines() if len(line := stripped.strip()) >= _MIN_LENGTH
        ):
            found = self._line(form(line))
            missed = 0 if found else missed + 1
            ranges += [found] if found else []
            if missed == _MAX_MISSED:
                break
        return ranges

    def _line(self, needle: str) -> Range | None:
        if (position := self._find(needle)) >= 0:
            return self._take(position, len(needle))
        if len(needle) <= _PREFIX or (position := self._find(needle[:_PREFIX])) < 0:
            return None
        at_match = self.text[position : position + len(needle)]
        return self._take(position, equal_at_start(needle, at_match))

    def _find(self, needle: str) -> int:
        """Return the position of a text outside earlier matches; -1 if it is not found."""
        if self.budget <= 0 or len(needle) > len(self.text):
            return -1
        position = self.text.find(needle, self.position)
        if position < 0:
            self.budget -= len(self.text) - self.position
            position = self.text.find(needle, 0, self.position)
            self.budget -= self.position
            if any(
                start < position + len(needle) and position < end for start, end in self.matched
            ):
                return -1
        return position

    def _take(self, position: int, length: int) -> Range:
        self.matched.append((position, position + length))
        self.position = max(self.position, position + length)
        return position, position + length


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _in_ascii(text: str) -> str:
    return json.dumps(text)[1:-1]


def _with_neighbours_joined(text: str, ranges: Sequence[Range]) -> list[Range]:
    """Sort ranges and join those with only white space between them."""
    joined: list[Range] = []
    for start, end in sorted(ranges):
        touches = bool(joined) and not text[joined[-1][1] : start].replace("\\n", "").strip()
        joined.append((joined.pop()[0] if touches else start, end))
    return joined


SHOWN_ABOVE = "[shown above]"
_BLANK = frozenset(string.whitespace + string.punctuation)

_MARK = re.compile(r"\s*(?:\[(\d{1,15})\]|\((\d{1,15})\)|(\d{1,15})[.):](?=\s|$))\s*")
_LABEL = re.compile(r"(?i)(?:title|url|link|source|file|document|content|text|passage)\s*[:=]\s*")
_TAGS = re.compile(r"<(?:/?[\w-]{1,50}|[\w-]{1,50}((?:\s+[\w-]{1,50}=\"[^\"<>]*\")+))\s*/?>")
_VALUE = re.compile(r"\"([^\"]*)\"")
_EARLIER = re.compile(r", already shown as \[\d{1,15}\]$")


def deduplicated(
    sources: Sequence[Source],
    content: Sequence[str],
    artifact: Sequence[str],
    codec: Codec,
    *,
    parsed: Any = None,
    value: Any = None,
) -> tuple[list[str | None], list[str | None]]:
    r"""Return the texts of a result without repeated ones; None for a text that only repeats others.

    Texts and headings of sources are removed from the content, and texts of sources or content from the artifact.

    Args:
        sources: Its sources, with the texts that a page shows of them.
        content: The texts that its content consists of.
        artifact: The texts that its artifact consists of.
        codec: Compares the artifact with the content.
        parsed: The value of a content that is JSON; else None.
        value: The artifact itself; None without one.

    >>> song = "Whales sing all night long."
    >>> found = [Source(source_id=3, title="Whales", content=song)]
    >>> deduplicated(found, [f"1 hit: {song}"], [f'{{"n":1,"text":"{song}"}}'], Codec())
    (['1 hit: [text of source 3]'], ['{"n":1,"text":"[shown above]"}'])
    >>> deduplicated(found, [f"[3] Whales\n{song}"], [], Codec())
    ([None], [])
    """
    texts = [source.content for source in sources]
    headings = _Headings(sources)
    numbers = [source.source_id for source in sources]
    shown = [_without_sources(text, repeats(text, texts), numbers, headings) for text in content]
    if parsed is not None and _is_same(codec, parsed, value):
        return shown, [None] * len(artifact)
    above = [*texts, *(content if parsed is None else leaves(parsed))]
    rest = [_with_references(text, repeats(text, above)) for text in artifact]
    return shown, rest


class _Headings:
    """The marks and headings of some sources, in the forms in which tools write them."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._numbers = {str(source.source_id) for source in sources}
        self._names = {""}
        for source in sources:
            title = " ".join(source.title.split())
            address = f"({source.url})" if source.url else ""
            self._names |= {title, source.url, address, f"{title} {address}".strip()}

    def without(self, gap: str) -> str:
        """Return the text between two sources without the lines at its ends that only name sources."""
        lines = gap.splitlines(keepends=True)
        while lines and self._only_names(lines[-1]):
            lines.pop()
        first = 0
        while first < len(lines) and self._only_names(lines[first]):
            first += 1
        while first and not lines[first - 1].strip():
            first -= 1
        kept = "".join(lines[first:])
        return kept if kept.strip() else ""

    def _only_names(self, line: str) -> bool:
        """Return True if a line has only marks, titles and addresses of the sources."""
        text = _EARLIER.sub("", _TAGS.sub(self._tag, line).strip())
        mark = _MARK.match(text)
        if mark and next(filter(None, mark.groups())) in self._numbers:
            text = text[mark.end() :]
        label = _LABEL.match(text)
        if label:
            text = text[label.end() :]
        return " ".join(text.split()) in self._names

    def _tag(self, tag: re.Match[str]) -> str:
        """Return "" for a tag whose values are all numbers or names of the sources; otherwise the tag."""
        values = _VALUE.findall(tag[1] or "")
        known = all(value in self._numbers or value in self._names for value in values)
        return "" if known else tag[0]


def _without_sources(
    text: str, found: Sequence[Sequence[Range]], numbers: Sequence[int], headings: _Headings
) -> str | None:
    """Replace the texts of sources, and headings between them, by their numbers; None if nothing else is left."""
    named = sorted(
        (range_, number) for ranges, number in zip(found, numbers, strict=True) for range_ in ranges
    )
    pieces: list[str] = []
    run: list[int] = []
    position = 0
    for (start, end), number in named:
        gap = headings.without(text[position:start])
        if gap:
            pieces += [_reference(run), gap]
            run = []
        run.append(number)
        position = end
    rest = text[position:]
    last = headings.without(rest) if named else rest
    pieces += [_reference(run), last]
    return "".join(pieces) if not named or len(list(filter(None, pieces))) > 1 else None


def _reference(numbers: Sequence[int]) -> str:
    distinct = set(numbers)
    if not distinct:
        return ""
    if len(distinct) == 1:
        return f"[text of source {numbers[0]}]"
    return f"[texts of sources {write_ids(distinct)}]"


def _is_blank(text: str) -> bool:
    """Return True for a text of white space and punctuation only."""
    return all(sign in _BLANK or sign.isspace() for sign in text)


def _with_references(text: str, found: Sequence[Sequence[Range]]) -> str | None:
    """Replace each range of a text by a reference; return None if only punctuation is left of the text."""
    pieces: list[str] = []
    remaining: list[str] = []
    position = 0
    for start, end in sorted(range_ for ranges in found for range_ in ranges):
        remaining.append(text[position:start])
        if remaining[-1] or not position:
            pieces += [remaining[-1], SHOWN_ABOVE]
        position = end
    remaining.append(text[position:])
    if position and _is_blank("".join(remaining)):
        return None
    return "".join([*pieces, remaining[-1]])


def _is_same(codec: Codec, parsed: Any, artifact: Any) -> bool:
    try:
        return bool(parsed == artifact) and codec.encode(parsed, omitted=[]) == codec.encode(
            artifact, omitted=[]
        )
    except RecursionError:
        return False


def holds_only_sources(value: Any, sources: Sequence[EntrySource]) -> bool:
    """Return True if a value has only the texts of its sources, which have passages of their own."""
    if not all(source.is_plain for source in sources):
        return False
    items = _items_in(value)
    if len(items) != len(sources):
        return False
    return all(map(_is_source, sources, items))


def _is_source(source: EntrySource, item: Any) -> bool:
    """Return True if an item is the text of a source that is stored with its entry."""
    found = source_in(item)
    if not source.piece or not found:
        return False
    return found.text == read_text(source.place, source.piece)


def _items_in(value: Any) -> Sequence[Any]:
    """Return a list, also from inside dicts with one key each; () for any other value."""
    while type(value) is dict and len(value) == 1:
        (value,) = value.values()
    if isinstance(value, (list, tuple)):
        return value
    return ()
