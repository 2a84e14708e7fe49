"""Make a searchable part of a log from messages: its windows and the windows of each term.

`segment` stores a part and reads it back. Both forms answer the same questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from convstore.index.texts import MAX_CHARACTERS, Text, windows_of
from convstore.index.words import is_single, language_of, terms, unescaped
from convstore.log.entry import EntryMessage, PayloadRef
from convstore.sources.places import SourcePlace

Posting = tuple[int, int]
"""A window and how often it contains a term."""

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


@dataclass(slots=True)
class IndexBuilder:
    """A part in memory, to which messages are added in order.

    Attributes:
        is_wanted: Selects the terms to keep, with the texts that contain them; None for all terms, without texts, as
            a segment has them.
        characters: Characters of the texts and ids that were added, and a constant for each message.
        texts: Texts by message and position among its texts, up to a total size.
        places: Places of escaped sources by message and source.
    """

    is_wanted: Callable[[str], bool] | None = None
    messages: list[IndexedMessage] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    by_term: dict[str, list[Posting]] = field(default_factory=dict)
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    places: dict[tuple[int, int], SourcePlace] = field(default_factory=dict)
    characters: int = 0
    lengths: list[int] = field(default_factory=list)
    message_of: list[int] = field(default_factory=list)
    source_of: list[int] = field(default_factory=list)
    _room: int = _MAX_KEPT

    def has_room(self, texts: Iterable[Sequence[Text]]) -> bool:
        """Return True unless these texts, of one append, would make a segment too large; the first ones never do."""
        size = sum(len(text.text) for some in texts for text in some)
        return self.is_wanted is not None or not self.messages or self.characters + size <= MAX_CHARACTERS

    def add(self, stored: EntryMessage, texts: Sequence[Text], *, first: int, at: datetime) -> None:
        """Add a message with its texts, all of them read, of the entry that begins with an ordinal."""
        self.messages.append(
            IndexedMessage(stored.ordinal, stored.type, first, stored.id, stored.tool, at, stored.payload)
        )
        language = language_of(" ".join(text.text[:1_000] for text in texts))
        seen = set[str]()
        self.characters += _MESSAGE + len(stored.id)
        for index, text in enumerate(texts):
            self.characters += len(text.text) + len(text.label)
            if text.place:
                self.places[len(self.messages) - 1, text.source_id] = text.place
            self._add_text(index, text, language, seen)

    def _add_text(self, index: int, text: Text, language: str, seen: set[str]) -> None:
        message, label, new, is_found = len(self.messages) - 1, text.label, set[str](), False
        is_json = text.text.lstrip()[:1] in ("{", "[")
        for start, end in windows_of(text.text) or ([(0, 0)] if label else []):
            shown = text.text[start:end]
            found = terms(label, language) + terms(unescaped(shown) if is_json else shown, language)
            new.update(found)
            if text.is_rest:
                found = [term for term in found if term not in seen]
            if found:
                window = Window(message, index, text.source_id, text.start, start, end, len(found), label)
                is_found |= self._add_window(window, found)
            label = ""
        seen |= new
        if self.is_wanted and is_found and len(text.text) <= self._room:
            self.texts[message, index] = text.text
            self._room -= len(text.text)

    def _add_window(self, window: Window, found: Sequence[str]) -> bool:
        """Add a window with its terms; return True if one of them is wanted."""
        number, counts, is_found = len(self.windows), dict[str, int](), False
        self.windows.append(window)
        self.lengths.append(window.length)
        self.message_of.append(window.message)
        self.source_of.append(window.source_id)
        for term in found:
            counts[term] = counts.get(term, 0) + 1
        for term, count in counts.items():
            if self.is_wanted is None or self.is_wanted(term):
                self.by_term.setdefault(term, []).append((number, count))
                is_found = True
        return is_found

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

    def text_of(self, window: Window) -> str | None:
        """Return the text that a window is cut from; None if it has to be read."""
        return self.texts.get((window.message, window.text))

    def place_of(self, window: Window) -> SourcePlace | None:
        """Return the place of the item in the payload that holds the text of a window escaped, None if none does."""
        return self.places.get((window.message, window.source_id)) if window.payload_start < 0 else None

    def frequency(self, term: str) -> int:
        """Return the number of windows that contain a term."""
        return len(self.by_term.get(term, ()))

    def postings(self, term: str) -> Sequence[Posting]:
        """Return the windows that contain a term, in order."""
        return self.by_term.get(term, ())

    def containing(self, sign: str) -> Iterable[str]:
        """Return the terms of at most two characters that contain a character."""
        return [term for term in self.by_term if len(term) <= 2 and sign in term]


def only_terms_of(groups: Iterable[tuple[str, ...]]) -> Callable[[str], bool]:
    """Return the function that selects the terms which a query with these groups needs."""
    groups = list(groups)
    wanted = {term for group in groups for term in group}
    signs = {term for group in groups if is_single(group) for term in group}

    def is_wanted(term: str) -> bool:
        return term in wanted or (bool(signs) and len(term) <= 2 and not signs.isdisjoint(term))

    return is_wanted
