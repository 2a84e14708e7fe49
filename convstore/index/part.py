"""Build a searchable part of a log from messages: its windows and the windows of each term.

`segment` stores a part and reads it back. Both forms have the same methods.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import NamedTuple, TypeVar

from convstore.index.texts import SearchableText, windows_of, without_copies
from convstore.index.windows import Window, Windows, unpacked_numbers
from convstore.index.words import is_single, language_of, piece_terms, unescaped
from convstore.log.entry import EntryMessage, PayloadRef

Posting = tuple[int, int]
"""A window and the number of times that it contains a term."""

_Made = TypeVar("_Made")
Steps = Generator[None, None, _Made]
"""Work in steps of well below a millisecond, so that background work can pause in between."""

_MAX_KEPT = 4_000_000
"""Maximum characters of texts that a part keeps in memory; other texts are read again for their windows."""

_MESSAGE = 100
"""Size of a message without its texts and its id, as a segment stores it."""


class IndexedMessage(NamedTuple):
    """A message of a part; `first` is the first ordinal of its entry, `turn` the ordinal of its question."""

    ordinal: int
    type: str
    first: int
    id: str
    tool: str
    created_at: datetime
    payload: PayloadRef | None = None
    turn: int = 0


class _Postings(dict[str, tuple[bytearray, ...]]):
    """The windows of the terms of a piece of text between spaces, by piece, for texts of one language."""

    def __init__(self, by_term: Mapping[str, bytearray], language: str) -> None:
        self._by_term = by_term
        self._language = language

    def __missing__(self, piece: str) -> tuple[bytearray, ...]:
        found = self[piece] = tuple(
            map(self._by_term.__getitem__, piece_terms(piece, self._language))
        )
        return found


@dataclass(slots=True)
class IndexBuilder:
    """A part in memory, to which messages are added in order.

    Attributes:
        room: Maximum characters of a part for a segment.
        keeps_texts: True to keep texts, up to a total size, for a search.
        characters: Characters of the added windows and ids, plus a constant for each message.
        by_term: The windows that contain a term, in order, with 4 bytes for each occurrence of the term.
        texts: Texts by message and position among its texts.
        labels: Title and address of a source by the first window of its text.
    """

    room: float = math.inf
    keeps_texts: bool = False
    messages: list[IndexedMessage] = field(default_factory=list)
    windows: Windows = field(default_factory=Windows)
    by_term: defaultdict[str, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    characters: int = 0
    _postings: dict[str, _Postings] = field(default_factory=dict)
    _kept: int = 0

    def has_room(self, texts: Iterable[Sequence[SearchableText]]) -> bool:
        """Return True if these texts of one append fit; the texts of the first append always fit."""
        size = sum(len(text.text) for message_texts in texts for text in message_texts)
        return not self.messages or self.characters + size <= self.room

    def adding(
        self, stored: EntryMessage, texts: Sequence[SearchableText], *, first: int, at: datetime
    ) -> Steps[None]:
        """Add a message with its texts, one window in each step; `first` is the first ordinal of its entry."""
        self.messages.append(
            IndexedMessage(
                stored.ordinal,
                stored.type,
                first,
                stored.id,
                stored.tool,
                at,
                stored.payload,
                stored.turn,
            )
        )
        self.characters += _MESSAGE + len(stored.id)
        language = language_of(" ".join(text.text[:1_000] for text in texts))
        postings = self._postings.setdefault(language, _Postings(self.by_term, language))
        begin = len(self.windows)
        for index, text in enumerate(texts):
            if self.keeps_texts and self._kept + len(text.text) <= _MAX_KEPT:
                self.texts[len(self.messages) - 1, index] = text.text
                self._kept += len(text.text)
            shown = without_copies(text, texts[:index]) if text.is_rest else text.text
            yield from self._add_text(index, text, shown, postings, begin)

    def _add_text(
        self, index: int, text: SearchableText, shown: str, postings: _Postings, begin: int
    ) -> Steps[None]:
        """Add the windows of a text.

        Args:
            index: Its position among the texts of its message.
            text: The text.
            shown: The text with spaces in place of parts that are not searched.
            postings: The postings of its language.
            begin: Number of the first window of its message.
        """
        if text.is_rest and shown.isspace():
            return
        label = text.label
        earlier = range(begin, len(self.windows)) if text.is_rest else range(0)
        for start, end, piece in _pieces(text, shown):
            # Tokens do not contain white space, and most pieces occurred before.
            found = list(chain.from_iterable(map(postings.__getitem__, f"{label} {piece}".split())))
            if earlier:
                found = [windows for windows in found if _last(windows) not in earlier]
            if found:
                place = (len(self.messages) - 1, index, text.source_id, text.start)
                self._add_window(Window(*place, start, end, len(found)), found, label)
            label = ""
            yield

    def _add_window(self, window: Window, postings: Sequence[bytearray], label: str) -> None:
        """Add a window and its number to the postings of its terms."""
        number = len(self.windows)
        in_bytes = number.to_bytes(4, "little")
        for windows in postings:
            windows.extend(in_bytes)
        if label:
            self.labels[number] = label
        self.windows.append(window)
        self.characters += window.end - window.start + len(label)

    def keep(self, groups: Iterable[tuple[str, ...]]) -> None:
        """Drop all terms except those of a query, and all texts without them."""
        kept = {
            term: windows
            for term in terms_of(self.containing, groups)
            if (windows := self.by_term.get(term))
        }
        self.by_term = defaultdict(bytearray, kept)
        self._postings = {}
        message_of = self.windows.message_of
        text_of = self.windows.text_of
        found = {
            (message_of[window], text_of[window])
            for windows in kept.values()
            for window in unpacked_numbers(windows)
        }
        self.texts = {key: text for key, text in self.texts.items() if key in found}
        self._kept = sum(map(len, self.texts.values()))

    @property
    def size(self) -> int:
        """Return its number of messages."""
        return len(self.messages)

    @property
    def humans(self) -> Sequence[int]:
        """Return the indexes of its human messages, in order."""
        return [index for index, message in enumerate(self.messages) if message.type == "human"]

    @property
    def questions(self) -> Sequence[int]:
        """Return the indexes of its questions, in order."""
        return [
            index for index, message in enumerate(self.messages) if message.turn == message.ordinal
        ]

    def message(self, index: int) -> IndexedMessage:
        """Return a message."""
        return self.messages[index]

    def frequency(self, term: str) -> int:
        """Return the number of windows that contain a term."""
        return len(self.postings(term))

    def postings(self, term: str) -> Sequence[Posting]:
        """Return the windows that contain a term, in order."""
        return list(Counter(unpacked_numbers(self.by_term.get(term, b""))).items())

    def items(self) -> Iterable[tuple[str, Sequence[int]]]:
        """Yield each term with its windows."""
        return ((term, unpacked_numbers(windows)) for term, windows in self.by_term.items())

    def containing(self, sign: str) -> Iterable[str]:
        """Return the terms of at most two characters that contain a character."""
        return [term for term in self.by_term if len(term) <= 2 and sign in term]


def terms_of(
    containing: Callable[[str], Iterable[str]], groups: Iterable[tuple[str, ...]]
) -> set[str]:
    """Return the terms of a part for the words of a query; `containing` is the method of the part."""
    return {
        term
        for group in groups
        for term in (chain.from_iterable(map(containing, group)) if is_single(group) else group)
    }


def _pieces(text: SearchableText, shown: str) -> Iterator[tuple[int, int, str]]:
    """Yield start and end of the windows of a text, and the text to search in each; an empty text has one window."""
    is_escaped = shown.lstrip()[:1] in ("{", "[") and "\\" in shown
    for start, end in windows_of(text.text) or [(0, 0)]:
        piece = shown[start:end]
        if text.is_rest and piece.isspace():
            continue
        yield start, end, unescaped(piece) if is_escaped else piece


def _last(windows: bytearray) -> int:
    """Return the last of some windows, or -1."""
    return int.from_bytes(windows[-4:], "little") if windows else -1
