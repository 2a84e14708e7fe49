"""Make a searchable part of a log from messages: its windows and the windows of each term.

`segment` stores a part and reads it back. Both forms answer the same questions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import NamedTuple, TypeVar

from convstore.index.texts import Text, windows_of, without_copies
from convstore.index.words import is_single, language_of, terms, unescaped
from convstore.log.entry import EntryMessage, PayloadRef
from convstore.sources.places import SourcePlace

Posting = tuple[int, int]
"""A window and how often it contains a term."""

_Made = TypeVar("_Made")
Steps = Generator[None, None, _Made]
"""Work in steps of well below a millisecond, so that work in the background can pause in between."""

_MAX_KEPT = 4_000_000
"""Maximum characters of texts that a part keeps in memory; windows of others are read again."""

_MESSAGE = 100
"""Size of a message without its texts and its id, as a segment stores it."""


class IndexedMessage(NamedTuple):
    """A message of a part; `payload` is the location of its payload.

    In a segment, id, tool and date are missing if the message has to be read anyway, as its texts are in its entry.
    `first` is the ordinal of the first message of that entry.
    """

    ordinal: int
    type: str
    first: int = 0
    id: str = ""
    tool: str = ""
    created_at: datetime | None = None
    payload: PayloadRef | None = None


class Window(NamedTuple):
    """A window of a searchable text.

    Attributes:
        message: Index of its message in the part.
        text: Index of its text among `texts_of` the message.
        source_id: The source that it belongs to, 0 for none.
        payload_start: First character of its text in the payload; -1 if the text is escaped or in the entry.
        start: Its first character in the text.
        end: The character after its last one.
        length: Its number of terms.
        label: Title and address of the source, in the first window of the source's text.
    """

    message: int
    text: int
    source_id: int
    payload_start: int
    start: int
    end: int
    length: int
    label: str = ""


class WantedTerms:
    """The terms that a query with some groups needs."""

    def __init__(self, groups: Iterable[tuple[str, ...]]) -> None:
        groups = list(groups)
        self._terms = frozenset(chain.from_iterable(groups))
        self._signs = [term for group in groups if is_single(group) for term in group]

    def among(self, terms: Sequence[str]) -> Sequence[str]:
        """Return those of some terms that are wanted, repeated ones too."""
        wanted = set(self._terms.intersection(terms))
        for sign in self._signs:
            wanted.update(term for term in terms if len(term) <= 2 and sign in term)
        return [term for term in terms if term in wanted] if wanted else ()


@dataclass(slots=True)
class IndexBuilder:
    """A part in memory, to which messages are added in order.

    Attributes:
        wanted: The terms to keep, with the texts that contain them; None for all terms, without texts, as a segment
            has them.
        room: Maximum characters of the texts of one that is to be a segment.
        characters: Characters of the texts and ids that were added, copies apart, and a constant for each message.
        by_term: The windows that contain a term, in order; one that contains it twice occurs twice.
        texts: Texts by message and position among its texts, up to a total size.
        places: Places of escaped sources by message and source.
    """

    wanted: WantedTerms | None = None
    room: float = math.inf
    messages: list[IndexedMessage] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    by_term: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    places: dict[tuple[int, int], SourcePlace] = field(default_factory=dict)
    characters: int = 0
    lengths: list[int] = field(default_factory=list)
    message_of: list[int] = field(default_factory=list)
    source_of: list[int] = field(default_factory=list)
    _kept: int = 0

    def has_room(self, texts: Iterable[Sequence[Text]]) -> bool:
        """Return True unless these texts, of one append, would make it too large; the first ones never do."""
        size = sum(len(text.text) for some in texts for text in some)
        return not self.messages or self.characters + size <= self.room

    def adding(self, stored: EntryMessage, texts: Sequence[Text], *, first: int, at: datetime) -> Steps[None]:
        """Add a message with its texts, all of them read, of the entry that begins with an ordinal, by one window."""
        self.messages.append(
            IndexedMessage(stored.ordinal, stored.type, first, stored.id, stored.tool, at, stored.payload)
        )
        language = language_of(" ".join(text.text[:1_000] for text in texts))
        seen = set[str]()
        self.characters += _MESSAGE + len(stored.id)
        for index, text in enumerate(texts):
            if text.place:
                self.places[len(self.messages) - 1, text.source_id] = text.place
            shown = without_copies(text, texts[:index]) if text.is_rest else text.text
            blank = shown.count(" ") - text.text.count(" ") if text.is_rest else 0
            self.characters += len(text.text) - blank + len(text.label)
            yield from self._add_text(index, text, shown, language, seen)

    def _add_text(self, index: int, text: Text, shown: str, language: str, seen: set[str]) -> Steps[None]:
        """Add the windows of a text; `shown` is the part of it that is searched, with spaces for the rest."""
        message, label, new, is_found = len(self.messages) - 1, text.label, set[str](), False
        is_escaped = shown.lstrip()[:1] in ("{", "[") and "\\" in shown
        for start, end in windows_of(text.text) or ([(0, 0)] if label else []):
            piece = shown[start:end]
            if text.is_rest and piece.isspace():
                continue
            piece = unescaped(piece) if is_escaped else piece
            found = terms(f"{label} {piece}" if label else piece, language)
            new.update(found)
            if text.is_rest:
                found = [term for term in found if term not in seen]
            if found:
                window = Window(message, index, text.source_id, text.start, start, end, len(found), label)
                is_found |= self._add_window(window, found)
            label = ""
            yield
        seen |= new
        if self.wanted and is_found and self._kept + len(text.text) <= _MAX_KEPT:
            self.texts[message, index] = text.text
            self._kept += len(text.text)

    def _add_window(self, window: Window, found: Sequence[str]) -> bool:
        """Add a window with its terms; return True if one of them is wanted."""
        number, by_term = len(self.windows), self.by_term
        self.windows.append(window)
        self.lengths.append(window.length)
        self.message_of.append(window.message)
        self.source_of.append(window.source_id)
        wanted = found if self.wanted is None else self.wanted.among(found)
        for term in wanted:
            by_term[term].append(number)
        return bool(wanted)

    @property
    def size(self) -> int:
        """Return its number of messages."""
        return len(self.messages)

    @property
    def humans(self) -> Sequence[int]:
        """Return the indexes of its human messages, in order."""
        return [index for index, message in enumerate(self.messages) if message.type == "human"]

    def message(self, index: int) -> IndexedMessage:
        """Return a message."""
        return self.messages[index]

    def window(self, number: int) -> Window:
        """Return a window."""
        return self.windows[number]

    def frequency(self, term: str) -> int:
        """Return the number of windows that contain a term."""
        return len(self.postings(term))

    def postings(self, term: str) -> Sequence[Posting]:
        """Return the windows that contain a term, in order."""
        return list(Counter(self.by_term.get(term, ())).items())

    def items(self) -> Iterable[tuple[str, Sequence[int]]]:
        """Yield each term with its windows."""
        return self.by_term.items()

    def containing(self, sign: str) -> Iterable[str]:
        """Return the terms of at most two characters that contain a character."""
        return [term for term in self.by_term if len(term) <= 2 and sign in term]


def finish(steps: Steps[_Made]) -> _Made:
    """Do all steps of some work at once, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: _Made = end.value
            return made
