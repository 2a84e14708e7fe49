"""Fills a page with passages, and with lines that say which parts of a model's call could not be done.

Sizes are measured by `tokens.weight`, which needs the text. So a page is first planned by characters, and cut once its
texts are read. Text that the model sent is quoted on one line and cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from convstore.messages.text import fold, in_one_line
from convstore.messages.tokens import fitting, weight
from convstore.readback.passages import Passage, in_line
from convstore.readback.request import Request
from convstore.readback.text_search import matches, snippets
from convstore.sources.source import FoundSource

_MIN_TEXT = 200
_NAMED = 20
_NAME_CHARACTERS = 60
MAX_APPENDS = 8
"""Maximum number of appends whose payloads a page shows or searches; each of them costs a command."""


@dataclass(slots=True)
class Piece:
    """A part of a passage and the item of its source; both are empty until they are read.

    `found` is the item that the tool returned. It stays None if it is too large to read.
    """

    passage: Passage
    start: int
    end: int
    text: str = ""
    found: FoundSource | None = None

    def cut(self, length: int) -> Piece:
        """Return the first `length` characters of the piece."""
        text = self.text[:length]
        return replace(self, end=self.start + len(text), text=text)


@dataclass(slots=True)
class Page:
    """A page that is being filled.

    Attributes:
        room: Remaining room, measured by `tokens.weight`.
        label: Maximum weight of a passage's name.
        parts: The pieces that the page shows.
        following: Cursor of the next page, "" on the last page.
        appends: Tokens of the appends whose payloads the page reads.
    """

    room: int
    label: int
    parts: list[Piece] = field(default_factory=list)
    following: str = ""
    appends: set[str] = field(default_factory=set)

    def room_for(self, passage: Passage) -> int:
        """Return the room that remains for the text of a passage."""
        return self.room - passage.overhead(self.label)

    def add(self, part: Piece) -> None:
        """Add a piece whose text was read."""
        self.room -= part.passage.overhead(self.label) + weight(part.text)
        self.parts.append(part)

    def may_read(self, passage: Passage) -> bool:
        """Return True if reading a passage stays within the limit of commands."""
        if passage.ref is None or passage.ref.token in self.appends:
            return True
        return len(self.appends) < MAX_APPENDS

    def will_read(self, passage: Passage) -> None:
        """Count the append of a passage that the page will read."""
        if passage.ref is not None:
            self.appends.add(passage.ref.token)

    @property
    def text(self) -> Iterator[str]:
        """Yield the page as text for a model."""
        for part in self.parts:
            yield f"{part.passage.header(part.start, part.end, limit=self.label)}\n{part.text}"


def next_texts(page: Page, passages: Sequence[Passage], offset: int) -> tuple[list[Piece], str]:
    """Return the pieces to read for a page, and the cursor of the next page if all of them fit.

    The first piece begins at `offset` of the first passage. Only English text is certain to fit, so no piece is added
    to the page yet.
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
    """Add as many of the pieces that were read as fit."""
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
    """Add the text around each match in a piece that was read, as long as it fits."""
    passage = piece.passage
    for start, stop in snippets(piece.text, find, limit=page.room):
        room, excerpt = page.room_for(passage), piece.text[start:stop]
        if page.parts and room < min(weight(excerpt), _MIN_TEXT):
            page.following = f"{passage.key}@{piece.start + start}"
            return
        end = _end_after_match(piece.text, find, start, start + max(fitting(excerpt, room), 1))
        page.add(Piece(passage, piece.start + start, piece.start + end, piece.text[start:end], piece.found))
        if end < stop:
            page.following = f"{passage.key}@{piece.start + end}"
            return


def _end_after_match(text: str, find: str, start: int, end: int) -> int:
    """Return the last position up to `end` where a text can be cut without splitting a match."""
    excerpt = text[start : end + len(fold(find))]
    cut = next((first for first, last in matches(excerpt, find) if start + last > end), len(excerpt))
    return min(end, start + cut) if cut else end


def no_match(request: Request, page: Page | None = None) -> str:
    """Return the line for a search without a match."""
    so_far = " in what was read so far" if page and page.following else ""
    return f"No match for '{_quoted(request.find, 50)}'{so_far}."


def unknown_cursor(request: Request) -> str:
    """Return the line for an invalid cursor."""
    return f"Unknown cursor '{_quoted(request.cursor, 50)}'. Ask again without a cursor."


def remarks(names: Sequence[int | str], valid: Sequence[str], request: Request) -> list[str]:
    """Return the lines about parts of a call that could not be done, in three eighths of a page at most."""
    lines = _not_found(names, valid, room=request.characters // 4)
    room = request.characters * 3 // 8 - sum(weight(line) + 1 for line in lines)
    for remark in request.remarks:
        room -= len(remark) + 1
        lines += [remark] if room >= 0 else []
    return lines


def _not_found(names: Sequence[int | str], valid: Sequence[str], *, room: int) -> list[str]:
    """Return a line with the names that were not found and valid ones; an empty list if all were found."""
    if not names:
        return []
    named: list[str] = []
    room_left = room // 2 - len("Not found: , and 10000 more.")
    for name in names[:_NAMED]:
        text = _quoted(name, _NAME_CHARACTERS if named else min(_NAME_CHARACTERS, room_left))
        room_left -= weight(text) + 2
        if named and room_left < 0:
            break
        named.append(text)
    rest = f", and {len(names) - len(named)} more" if len(names) > len(named) else ""
    ids, room_left = list[str](), room // 2 - len(" Valid ids: .")
    for id_ in map(in_one_line, valid):
        room_left -= weight(id_) + 2
        ids += [id_] if room_left >= 0 else []
    line = f"Not found: {', '.join(named)}{rest}."
    return [line + (f" Valid ids: {', '.join(ids)}." if ids else "")]


def _quoted(text: Any, limit: int) -> str:
    """Return the beginning of a text that a model sent, printable and cut to a weight."""
    shown = in_line(text, limit)
    return shown[: fitting(shown, limit)]
