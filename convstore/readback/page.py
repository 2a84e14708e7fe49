"""A page of passages while it is filled.

Layer 4, pure. What a page shows is measured by `tokens.weight`, which is known only of what was read; so a page is
planned by characters first, and cut when its texts are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from convstore.messages.tokens import fitting, weight
from convstore.readback.passages import Passage
from convstore.readback.text_search import fold, matches, snippets

__all__ = ["MAX_APPENDS", "Page", "Piece", "fill_matches", "fill_texts", "next_texts"]

_MIN_TEXT = 200
MAX_APPENDS = 8
"""A page shows payloads of so many appends, as each of them is a command; a text is looked for in so many."""


@dataclass(slots=True)
class Piece:
    """A part of a passage, and what the tool said of the source that it is of; both are empty until they are read.

    The item stays None if it is too much to read.
    """

    passage: Passage
    start: int
    end: int
    text: str = ""
    item: str | None = None

    def cut(self, length: int) -> Piece:
        """The beginning of it."""
        text = self.text[:length]
        return replace(self, end=self.start + len(text), text=text)


@dataclass(slots=True)
class Page:
    """A page that is being filled.

    Attributes:
        room: What is left of it, as `tokens.weight` measures.
        label: The largest weight of the name of a passage.
        parts: What it shows.
        following: Where the next page begins, "" on the last.
        appends: Those that came with payloads it has to read.
    """

    room: int
    label: int
    parts: list[Piece] = field(default_factory=list)
    following: str = ""
    appends: set[str] = field(default_factory=set)

    def room_for(self, passage: Passage) -> int:
        """What is left for the text of a passage."""
        return self.room - passage.overhead(self.label)

    def add(self, part: Piece) -> None:
        """Show a part that was read."""
        self.room -= part.passage.overhead(self.label) + weight(part.text)
        self.parts.append(part)

    def may_read(self, passage: Passage) -> bool:
        """Whether a passage costs no command too many."""
        if passage.ref is None or passage.ref.token in self.appends:
            return True
        return len(self.appends) < MAX_APPENDS

    def will_read(self, passage: Passage) -> None:
        """Note that it is read."""
        if passage.ref is not None:
            self.appends.add(passage.ref.token)

    @property
    def text(self) -> Iterator[str]:
        """The page as a model reads it."""
        for part in self.parts:
            yield f"{part.passage.header(part.start, part.end, limit=self.label)}\n{part.text}"


def next_texts(page: Page, passages: Sequence[Passage], offset: int) -> tuple[list[Piece], str]:
    """What to read for a page, from a place of the first passage on, and where the next page begins if all of it fits.

    That it fits is sure of English text alone, so nothing is added to the page yet.
    """
    pieces: list[Piece] = []
    room = page.room
    for passage in passages:
        offset = min(offset, passage.length)
        room -= passage.overhead(page.label)
        left = passage.length - offset
        begins_page = passage.remark and not offset
        if pieces and (begins_page or passage.is_deferred or room < min(left, _MIN_TEXT) or not page.may_read(passage)):
            return pieces, f"{passage.key}@{offset}"
        end = min(passage.length, offset + max(room, 1))
        pieces.append(Piece(passage, offset, end))
        page.will_read(passage)
        if end < passage.length:
            return pieces, f"{passage.key}@{end}"
        room -= end - offset
        offset = 0
    return pieces, ""


def fill_texts(page: Page, pieces: Sequence[Piece], following: str) -> None:
    """Show as much of what was read as there is room for."""
    for piece in pieces:
        room = page.room_for(piece.passage)
        if page.parts and room < min(weight(piece.text), _MIN_TEXT):
            page.following = f"{piece.passage.key}@{piece.start}"
            return
        part = piece.cut(max(fitting(piece.text, room), 1))
        page.add(part)
        if part.end < piece.end:
            page.following = f"{piece.passage.key}@{part.end}"
            return
    page.following = following


def fill_matches(page: Page, piece: Piece, find: str) -> None:
    """Show what is around each match in a piece that is read, as long as there is room."""
    passage = piece.passage
    for start, stop in snippets(piece.text, find, limit=page.room):
        room, excerpt = page.room_for(passage), piece.text[start:stop]
        if page.parts and room < min(weight(excerpt), _MIN_TEXT):
            page.following = f"{passage.key}@{piece.start + start}"
            return
        end = _end_after_match(piece.text, find, start, start + max(fitting(excerpt, room), 1))
        page.add(Piece(passage, piece.start + start, piece.start + end, piece.text[start:end], piece.item))
        if end < stop:
            page.following = f"{passage.key}@{piece.start + end}"
            return


def _end_after_match(text: str, find: str, start: int, end: int) -> int:
    """Where to cut a text at the latest so that no match is cut in two."""
    excerpt = text[start : end + len(fold(find))]
    cut = next((first for first, last in matches(excerpt, find) if start + last > end), len(excerpt))
    return min(end, start + cut) if cut else end
