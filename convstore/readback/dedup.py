"""Removes repeated texts from a tool result, whose content, artifact and sources often hold the same text.

Each removed text is replaced by a reference to the place where it is shown. Headings and marks of sources between them
are removed as well, because a page shows each source under its heading.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Any, NamedTuple

from convstore.messages.values import Codec
from convstore.readback.repeats import Range, leaves, repeats
from convstore.sources.source import write_ids

SHOWN_ABOVE = "[shown above]"
_BLANK = frozenset(string.whitespace + string.punctuation)

_MARK = re.compile(r"\s*(?:\[(\d{1,15})\]|\((\d{1,15})\)|(\d{1,15})[.):](?=\s|$))\s*")
_LABEL = re.compile(r"(?i)(?:title|url|link|source|file|document|content|text|passage)\s*[:=]\s*")
_TAGS = re.compile(r"<(?:/?[\w-]{1,50}|[\w-]{1,50}((?:\s+[\w-]{1,50}=\"[^\"<>]*\")+))\s*/?>")
_VALUE = re.compile(r"\"([^\"]*)\"")
_EARLIER = re.compile(r", already shown as \[\d{1,15}\]$")


class ShownSource(NamedTuple):
    """A source that a page shows: its number, its text there, and its heading."""

    number: int
    text: str
    title: str = ""
    url: str = ""


def deduplicated(
    sources: Sequence[ShownSource],
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
        sources: Its sources.
        content: The texts that its content consists of.
        artifact: The texts that its artifact consists of.
        codec: Compares the artifact with the content.
        parsed: The value that its content is in JSON; else None.
        value: The artifact itself; None if there is none.

    >>> song = "Whales sing all night long."
    >>> found = [ShownSource(3, song, "Whales")]
    >>> deduplicated(found, [f"1 hit: {song}"], [f'{{"n":1,"text":"{song}"}}'], Codec())
    (['1 hit: [text of source 3]'], ['{"n":1,"text":"[shown above]"}'])
    >>> deduplicated(found, [f"[3] Whales\n{song}"], [], Codec())
    ([None], [])
    """
    texts = [source.text for source in sources]
    headings = _Headings(sources)
    numbers = [source.number for source in sources]
    shown = [_without_sources(text, repeats(text, texts), numbers, headings) for text in content]
    if parsed is not None and _is_same(codec, parsed, value):
        return shown, [None] * len(artifact)
    above = [*texts, *(content if parsed is None else leaves(parsed))]
    rest = [_without(text, repeats(text, above)) for text in artifact]
    return shown, rest


class _Headings:
    """The marks and headings of some sources, in the forms in which tools write them."""

    def __init__(self, sources: Sequence[ShownSource]) -> None:
        self._numbers = {str(source.number) for source in sources}
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
        """Return "" for a tag without other values than numbers and names of the sources."""
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
    """Return True for a text of spaces and punctuation."""
    return all(sign in _BLANK or sign.isspace() for sign in text)


def _without(text: str, found: Sequence[Sequence[Range]]) -> str | None:
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
