"""Builds the lines of a page that tell a model which parts of its call could not be done.

Floor 4, pure. The pager calls it. Text that the model sent is quoted on one line and cut to the available room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convstore.messages.text import in_one_line
from convstore.messages.tokens import fitting, weight
from convstore.readback.page import Page
from convstore.readback.passages import in_line
from convstore.readback.request import Request

__all__ = ["no_match", "remarks", "unknown_cursor"]

_NAMED = 20
_NAME_CHARACTERS = 60


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
