r"""Find where the sources of a tool result stand in the text that the tool wrote.

A source is found by its text, by the beginning of its text, or by a paragraph from its middle; else by its title, its
address or its file name. Sources are found in their order, so a passage that repeats another one is not taken for it.
The search is limited to a multiple of the length of all texts: beyond it a source counts as not found.
"""

from __future__ import annotations

import re
import string
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

HEAD_CHARACTERS = 80
"""A text is recognised by its first characters, because many tools show snippets."""

_KEY_CHARACTERS = 16
_PARAGRAPH_CHARACTERS = 40
_NAME_CHARACTERS = 4
"""A shorter title may occur in a text by chance."""
_MAX_CANDIDATES = 16
_HALF_LINE = 40
"""Characters between an index and the beginning of its line at which it still counts as the beginning."""
_SCANS = 64
"""Limit of the search, in scans of all texts."""

_SHIELDED = re.compile(
    r"`[^`\n]+`"
    r"|!?\[[^\[\]\n]{0,500}\]\([^()\s]{0,2000}\)"
    r"|</?[A-Za-z!?][^<>\n]{0,2000}>"
    r"|\b[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s<>\"]+"
    r"|\"[^\"\n]*\"|“[^“”\n]*”|„[^„“”\n]*[“”]|«[^«»\n]*»"
)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_BEGINNING = re.compile(r"(?:^|(?<=>))(?![\n>])[^\w\n<>]{0,20}(?:\d{1,4}[\W_]{1,5})?", re.MULTILINE)
_AROUND = " \t.…\"“”«»'>*#-•·|"
_SIGNS = string.punctuation + string.whitespace + string.digits
_MARK = re.compile(r"^[\[(]?\d{1,4}[\]).:][ \t]+")


class Shown(NamedTuple):
    """A source by all that a text may show of it: its text, and its names, the most reliable first."""

    text: str
    names: tuple[str, ...] = ()


class Place(NamedTuple):
    """The place of a source in a text.

    Attributes:
        at: Index at which a number can be inserted.
        start: Start of the characters by which the source was found.
        end: End of these characters.
        by_text: True if they are of its text, False for a name.
    """

    at: int
    start: int
    end: int
    by_text: bool = True


class Shield:
    """The parts of a text in which no number is written: code, links, tags and quotations."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._spans = list(_shielded(text))
        self._starts = [start for start, _, _ in self._spans]

    def span_around(self, index: int) -> tuple[int, int, bool] | None:
        """Return start and end of the part that contains an index, and True if it is a block of code."""
        before = bisect_left(self._starts, index) - 1
        if before < 0 or self._spans[before][1] <= index:
            return None
        return self._spans[before]

    def is_code(self, index: int) -> bool:
        """Return True if an index is inside of code.

        >>> [Shield("a `b[0]` [1]").is_code(index) for index in (4, 9)]
        [True, False]
        """
        span = self.span_around(index)
        return span is not None and self._text[span[0]] in "`~ "

    def outside(self, index: int) -> int | None:
        """Return where a number is inserted for a text at `index`; None if that would be inside of a shielded part.

        A text that begins with a quotation or a link gets its number before it.
        """
        span = self.span_around(index)
        if span is None:
            return index
        start, _, is_block = span
        has_words = any(sign.isalnum() for sign in self._text[start:index])
        if is_block or has_words or not begins(self._text, start):
            return None
        return start


def _shielded(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield start and end of each shielded part in order, and True for a block of code."""
    start = 0
    for block_start, block_end in [*_blocks_of_code(text), (len(text), len(text))]:
        for found in _SHIELDED.finditer(text, start, block_start):
            yield *found.span(), False
        yield block_start, block_end, True
        start = block_end


def _blocks_of_code(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each block between fences; one that is not closed is no block."""
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[1].startswith(opened[1]) and not fence[2].strip():
            yield opened.start(), fence.end()
            opened = None


def begins(text: str, index: int) -> bool:
    """Return True if only signs and digits stand between an index and the start of its line or element.

    >>> [begins("- [1] Seals sleep.", index) for index in (6, 12)]
    [True, False]
    """
    line = text[max(0, index - _HALF_LINE) : index]
    start = max(line.rfind("\n"), line.rfind(">")) + 1
    is_known = start > 0 or index <= _HALF_LINE
    return is_known and not any(sign.isalpha() for sign in line[start:])


def find_places(text: str, sources: Sequence[Shown], shield: Shield) -> list[Place] | None:
    r"""Return the place of each source in a text, in order; None if one has no place of its own.

    >>> text = "Seals\nThey sleep on land.\n\nOrcas\nThey never sleep."
    >>> places = find_places(text, [Shown("They sleep on land."), Shown("", ("Orcas",))], Shield(text))
    >>> [(place.at, place.end) for place in places]
    [(6, 25), (27, 32)]
    """
    if not text.strip():
        return None
    search = _Search(text, sources, shield)
    search.find_texts()
    search.find_paragraphs()
    search.find_names()
    places = [place for place in search.places if place is not None]
    is_whole = len(places) == len(sources)
    indexes = [place.at for place in places]
    return places if is_whole and len(set(indexes)) == len(indexes) else None


class _Search:
    """Finds one source after the other, within a limit of characters to look at."""

    def __init__(self, text: str, sources: Sequence[Shown], shield: Shield) -> None:
        self.places: list[Place | None] = [None] * len(sources)
        self._text = text
        self._sources = sources
        self._shield = shield
        self._budget = _SCANS * (len(text) + sum(len(source.text) for source in sources))
        self._beginnings = self._indexed()

    def find_texts(self) -> None:
        """Find each text, whole or by its beginning, after the one before it."""
        start = 0
        for index, source in enumerate(self._sources):
            place = self._place_of_text(source.text.strip(), start)
            if place is not None:
                self.places[index] = place
                start = place.end

    def find_paragraphs(self) -> None:
        """Find a paragraph of each source that is still missing, between its neighbours."""
        if None not in self.places:
            return
        paragraphs = list(self._paragraphs())
        starts = [start for start, _ in paragraphs]
        for index, low, high in self._missing():
            text = self._sources[index].text
            if len(text) < _PARAGRAPH_CHARACTERS:
                continue
            between = paragraphs[bisect_left(starts, low) : bisect_left(starts, high)]
            self.places[index] = self._place_of_paragraph(text, between)

    def find_names(self) -> None:
        """Find a name of each source that is still missing, between its neighbours."""
        for index, low, high in self._missing():
            for name in self._sources[index].names:
                place = self._place_of_name(name.strip(), low, high)
                if place is not None:
                    self.places[index] = place
                    break

    def _missing(self) -> Iterator[tuple[int, int, int]]:
        """Yield each source without a place, and the range of the text between its neighbours' places."""
        ends = [len(self._text)]
        for place in reversed(self.places):
            ends.append(ends[-1] if place is None else place.start)
        ends.reverse()
        low = 0
        for index in range(len(self.places)):
            place = self.places[index]
            if place is None:
                yield index, low, ends[index + 1]
                place = self.places[index]
            low = place.end if place is not None else low

    def _indexed(self) -> dict[str, list[int]]:
        """Return the indexes at which lines and elements begin, by the characters that follow."""
        found = defaultdict(list)
        for beginning in _BEGINNING.finditer(self._text):
            for index in {beginning.start(), beginning.end()}:
                found[self._text[index : index + _KEY_CHARACTERS]].append(index)
        return found

    def _place_of_text(self, text: str, start: int) -> Place | None:
        head = text[:HEAD_CHARACTERS].rstrip()
        if not head:
            return None
        best: Place | None = None
        for index in self._candidates(head, start):
            at = self._shield.outside(index)
            if at is None or at < start:
                continue
            length = self._length(text, index)
            if length == len(text):
                return Place(at, index, index + length)
            # Signs and digits after a snippet may be those of the next mark, which its source continues with by chance.
            best = best or Place(at, index, index + len(text[:length].rstrip(_SIGNS)))
        return best

    def _candidates(self, head: str, start: int) -> Iterator[int]:
        """Yield where a text may begin: at the beginning of a line or an element first, then anywhere."""
        known = self._beginnings.get(head[:_KEY_CHARACTERS], [])
        first = bisect_left(known, start)
        is_known = False
        for index in known[first : first + _MAX_CANDIDATES]:
            self._budget -= len(head)
            if self._text.startswith(head, index):
                is_known = True
                yield index
        index = start - 1
        for _ in range(0 if is_known else _MAX_CANDIDATES):
            index = self._find(head, index + 1, len(self._text))
            if index < 0:
                return
            yield index

    def _find(self, part: str, start: int, end: int) -> int:
        if self._budget <= 0:
            return -1
        index = self._text.find(part, start, end)
        self._budget -= (end if index < 0 else index) - start + len(part)
        return index

    def _length(self, text: str, index: int) -> int:
        """Return how many characters of a source's text stand at an index."""
        step = 1 << 12
        length = 0
        while length < len(text):
            part = text[length : length + step]
            if self._text.startswith(part, index + length):
                length += len(part)
            elif step == 1:
                break
            else:
                step >>= 1
        return length

    def _paragraphs(self) -> Iterator[tuple[int, str]]:
        """Yield start and text of each line that is long enough, without marks and signs around it."""
        start = 0
        for line in self._text.split("\n"):
            words = line.lstrip(_AROUND)
            if mark := _MARK.match(words):
                words = words[mark.end() :].lstrip(_AROUND)
            index = start + len(line) - len(words)
            words = words.rstrip(_AROUND)
            if len(words) >= _PARAGRAPH_CHARACTERS:
                yield index, words
            start += len(line) + 1

    def _place_of_paragraph(self, text: str, paragraphs: Sequence[tuple[int, str]]) -> Place | None:
        for index, words in paragraphs:
            if self._budget <= 0:
                return None
            self._budget -= len(text)
            at = self._shield.outside(index) if words in text else None
            if at is not None:
                return Place(at, index, index + len(words))
        return None

    def _place_of_name(self, name: str, low: int, high: int) -> Place | None:
        """Return the place of a name that stands once in a range, at the beginning of a line or an element."""
        if len(name) < _NAME_CHARACTERS:
            return None
        index = self._find(name, low, high)
        if index < 0 or not begins(self._text, index):
            return None
        if self._find(name, index + 1, high) >= 0 or self._budget <= 0:
            return None
        at = self._shield.outside(index)
        return (
            None if at is None or at < low else Place(at, index, index + len(name), by_text=False)
        )
