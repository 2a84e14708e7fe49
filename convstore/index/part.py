"""Define a searchable part of a log: its windows and the windows of each term.

Floor 1, pure. `IndexBuilder` makes a part from messages; `segment` stores one and reads it back. Both forms answer the
same questions, so that ranking does not know which one it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from convstore.index.texts import Text, windows_of
from convstore.index.words import is_single, language_of, terms, unescaped
from convstore.log.entry import EntryMessage, PayloadRef

__all__ = ["IndexBuilder", "IndexedMessage", "Part", "Posting", "Window", "only_terms_of"]

Posting = tuple[int, int]
"""A window and how often it contains a term."""


class IndexedMessage(NamedTuple):
    """A message of a part.

    Attributes:
        ordinal: Its position in the log.
        type: "human", "ai", "tool", …
        id: Its id; "" if the message has to be read anyway, because its texts are in its entry.
        tool: For a tool result with a payload, the name of the tool.
        created_at: For a message with a payload, when it was appended.
        payload: Location of its payload, if any.
    """

    ordinal: int
    type: str
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
        payload_start: First character of its text in the payload; -1 if the text is in the entry.
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


class Part(Protocol):
    """A searchable part of a log, with its windows numbered from 0."""

    @property
    def messages(self) -> Sequence[IndexedMessage]:
        """Return its messages, in order."""
        ...

    @property
    def lengths(self) -> Sequence[int]:
        """Return the number of terms of each window."""
        ...

    @property
    def message_of(self) -> Sequence[int]:
        """Return the index of the message of each window."""
        ...

    def window(self, number: int) -> Window:
        """Return a window."""
        ...

    def frequency(self, term: str) -> int:
        """Return the number of windows that contain a term."""
        ...

    def postings(self, term: str) -> Sequence[Posting]:
        """Return the windows that contain a term, in order."""
        ...

    def questions(self) -> Sequence[IndexedMessage]:
        """Return its human messages, in order."""
        ...

    def all_windows(self) -> Iterable[Window]:
        """Return all windows, in order."""
        ...

    def all_postings(self) -> Iterable[tuple[str, Sequence[Posting]]]:
        """Return all terms with their windows."""
        ...

    def containing(self, sign: str) -> Iterable[str]:
        """Return the terms of at most two characters that contain a character."""
        ...


@dataclass(slots=True)
class IndexBuilder:
    """A part in memory, to which messages are added in order.

    Attributes:
        is_wanted: Selects the terms to keep; None for all of them.
        characters: Characters of the texts that were added.
        lengths: The number of terms of each window.
        message_of: The index of the message of each window.
    """

    is_wanted: Callable[[str], bool] | None = None
    messages: list[IndexedMessage] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    by_term: dict[str, list[Posting]] = field(default_factory=dict)
    characters: int = 0
    lengths: list[int] = field(default_factory=list)
    message_of: list[int] = field(default_factory=list)

    def add(self, stored: EntryMessage, texts: Sequence[Text], *, at: datetime) -> None:
        """Add a message with its texts, all of them read."""
        ref = stored.payload
        is_named = stored.type == "human" or ref is not None
        self.messages.append(
            IndexedMessage(
                stored.ordinal,
                stored.type,
                stored.id if is_named else "",
                stored.tool if ref else "",
                at if ref else None,
                ref,
            )
        )
        language = language_of(" ".join(text.text[:1_000] for text in texts))
        seen = set[str]()
        for index, text in enumerate(texts):
            self.characters += len(text.text) + len(text.label)
            self._add_text(index, text, language, seen)

    def _add_text(self, index: int, text: Text, language: str, seen: set[str]) -> None:
        label, new = text.label, set[str]()
        is_json = text.text.lstrip()[:1] in ("{", "[")
        for start, end in windows_of(text.text) or ([(0, 0)] if label else []):
            shown = text.text[start:end]
            found = terms(label, language) + terms(unescaped(shown) if is_json else shown, language)
            new.update(found)
            if text.is_rest:
                found = [term for term in found if term not in seen]
            if found:
                message = len(self.messages) - 1
                window = Window(message, index, text.source_id, text.start, start, end, len(found), label)
                self._add_window(window, found)
            label = ""
        seen |= new

    def _add_window(self, window: Window, found: Sequence[str]) -> None:
        number = len(self.windows)
        self.windows.append(window)
        self.lengths.append(window.length)
        self.message_of.append(window.message)
        counts: dict[str, int] = {}
        for term in found:
            counts[term] = counts.get(term, 0) + 1
        for term, count in counts.items():
            if self.is_wanted is None or self.is_wanted(term):
                self.by_term.setdefault(term, []).append((number, count))

    def window(self, number: int) -> Window:
        """Return a window."""
        return self.windows[number]

    def frequency(self, term: str) -> int:
        """Return the number of windows that contain a term."""
        return len(self.by_term.get(term, ()))

    def questions(self) -> Sequence[IndexedMessage]:
        """Return its human messages, in order."""
        return [message for message in self.messages if message.type == "human"]

    def postings(self, term: str) -> Sequence[Posting]:
        """Return the windows that contain a term, in order."""
        return self.by_term.get(term, ())

    def all_windows(self) -> Iterable[Window]:
        """Return all windows, in order."""
        return self.windows

    def all_postings(self) -> Iterable[tuple[str, Sequence[Posting]]]:
        """Return all terms with their windows."""
        return self.by_term.items()

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
