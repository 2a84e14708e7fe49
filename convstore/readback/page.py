"""Fills a page with passages, and with lines about the parts of a model's call that could not be fulfilled.

Sizes are measured by `tokens.weight`, which needs the text. So a page is first planned by characters, and cut once its
texts are read. Text from the model is quoted on one line and cut. A search shows the text around each match, and
ignores case.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from convstore.index.texts import windows_of
from convstore.index.words import is_common, language_of, query_groups, terms
from convstore.messages.text import fold
from convstore.messages.tokens import fitting, weight
from convstore.readback.passages import Passage, in_line
from convstore.readback.request import Request, last_line, read_cursor
from convstore.sources.source import FoundSource, write_ids
from convstore.values.models import SourcePage

_CONTEXT = 200
_SEARCHED_FOR_WORDS = 200_000
"""Maximum number of characters that are searched for words. Word forms take a second for three million characters."""


def find_matches(text: str, find: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a text that match `find` under Unicode's full case folding, in linear time.

    >>> list(find_matches("Maße, MASSE, masse", "mASSe"))
    [(0, 4), (6, 11), (13, 18)]
    """
    folded = fold(text)
    wanted = fold(find)
    # Folding makes several characters of some, such as the German sharp s; `ends` are their ends in the folded text.
    ends: Sequence[int] = range(1, len(text) + 1)
    if len(folded) > len(text):
        ends = list(accumulate(len(fold(sign)) for sign in text))
    position = folded.find(wanted) if wanted else -1
    while position >= 0:
        after = position + len(wanted)
        yield bisect_right(ends, position), bisect_left(ends, after) + 1
        position = folded.find(wanted, after)


def snippets(text: str, find: str, *, limit: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a text around the matches of `find`, ignoring case; adjacent ranges are joined.

    The iteration stops after the first range longer than `limit`, because a page cannot show it whole.

    >>> list(snippets("a" * 300 + "Needle" + "b" * 300, "needle", limit=1_000))
    [(100, 506)]
    """
    start = stop = 0
    for first, end in find_matches(text, find):
        if stop and first - _CONTEXT > stop:
            yield start, stop
            stop = 0
        start = start if stop else max(0, first - _CONTEXT)
        stop = min(len(text), end + _CONTEXT)
        if stop - start > limit:
            break
    if stop:
        yield start, stop


def _windows_with_words(
    texts: Sequence[str], find: str, *, limit: int
) -> list[tuple[int, int, int]]:
    """Return the parts of texts with most words of a query in any form, as text index, start and end, best first.

    >>> _windows_with_words(["Whales sing.", "A seal and a whale."], "seals whale", limit=1)
    [(1, 0, 19)]
    """
    groups = query_groups(find)
    groups = [group for group in groups if not is_common(group)] or groups
    found: list[tuple[int, int, int, int]] = []
    room = _SEARCHED_FOR_WORDS
    for index, text in enumerate(texts):
        language = language_of(text)
        for start, end in windows_of(text[:room]):
            words = set(terms(text[start:end], language))
            score = sum(not words.isdisjoint(group) for group in groups)
            found += [(-score, index, start, end)] if score else []
        room = max(0, room - len(text))
    best = min(found, default=(0,))[0]
    return [window[1:] for window in sorted(found)[:limit] if 2 * window[0] <= best]


_MIN_TEXT = 200
_MAX_WITH_WORDS = 8
_NAMED = 20
_NAME_CHARACTERS = 60
MAX_APPENDS = 8
"""Maximum number of appends whose payloads a page shows or searches; each takes a command."""


@dataclass(slots=True)
class Excerpt:
    """A part of a passage, with the item of its source; text and item are empty until they are read.

    `found` is the item that the tool returned. It stays None if it is too large to read. `block` is an image or file.
    """

    passage: Passage
    start: int
    end: int
    text: str = ""
    found: FoundSource | None = None
    block: Any = None


@dataclass(slots=True)
class Page:
    """A page that is being filled.

    Attributes:
        room: Remaining room, measured by `tokens.weight`.
        label: Maximum weight of a passage's name.
        parts: The excerpts that the page shows.
        following: Cursor of the next page, "" on the last page.
        appends: Tokens of the appends whose payloads the page reads.
        has_match: True if it shows a match of a search.
    """

    room: int
    label: int
    parts: list[Excerpt] = field(default_factory=list)
    following: str = ""
    appends: set[str] = field(default_factory=set)
    has_match: bool = False

    def room_for(self, passage: Passage) -> int:
        """Return the room that remains for the text of a passage."""
        return self.room - passage.overhead(self.label)

    def add(self, part: Excerpt) -> None:
        """Add an excerpt whose text was read."""
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
    def shown(self) -> list[Any]:
        """The page for a model: texts under their headers, each followed by the image or file that it describes."""
        shown: list[Any] = []
        for part in self.parts:
            shown.append(
                f"{part.passage.header(part.start, part.end, limit=self.label)}\n{part.text}"
            )
            shown += [part.block] if part.block else []
        return shown


def compose_page(
    shown: Sequence[Any], lines: Sequence[str], values: SourcePage, request: Request
) -> tuple[Any, SourcePage]:
    """Return a page for a model, as text or blocks, and for a program; its last line has the cursor of the next page.

    Args:
        shown: Texts under their headers, images and files.
        lines: Lines about parts of the call that could not be fulfilled.
        values: The page for a program; its cursor is the position at which the page ended.
        request: The request that the page answers, by ordinals and source numbers, which the cursor repeats.
    """
    cursor = request.cursor_at(values.next_cursor) if values.next_cursor else ""
    texts: list[str] = []
    blocks: list[Any] = []
    for part in (*shown, *lines, last_line(cursor)):
        if isinstance(part, str):
            texts.append(part)
        else:
            blocks += [{"type": "text", "text": "\n".join([*texts, ""])}, part]
            texts = []
    text = "\n".join(texts)
    page = [*blocks, {"type": "text", "text": text}] if blocks else text
    return page, values.model_copy(update={"next_cursor": cursor or None})


def passages_from(
    request: Request, passages: Sequence[Passage]
) -> tuple[Sequence[Passage], int] | None:
    """Return the passages from the request's cursor on, and the offset in the first; None for an unknown cursor.

    Passages that repeat others are left out; for a search, also sources that have only a heading.
    """
    index = 0
    offset = 0
    if request.cursor:
        cursor = read_cursor(request.cursor)
        keys = [passage.key for passage in passages]
        if cursor is None or cursor.key not in keys:
            return None
        index = keys.index(cursor.key)
        offset = cursor.offset
    if passages and passages[index].is_repeated:
        offset = 0
    following = [passage for passage in passages[index:] if not passage.is_repeated]
    if request.find:
        following = [passage for passage in following if passage.length]
    return following, offset


def fitting_lines(lines: Iterable[str], room: int) -> list[str]:
    """Return the lines that fit on a page, without empty ones."""
    kept: list[str] = []
    for line in filter(None, lines):
        room -= weight(line) + 1
        if room > 0:
            kept.append(line)
    return kept


def remark_on_next(page: Page, passages: Sequence[Passage]) -> str:
    """Return the line that announces the first passage of the next page, "" if the passage has none."""
    following = (passage for passage in passages if f"{passage.key}@0" == page.following)
    return next((passage.remark for passage in following), "")


def next_excerpts(
    page: Page, passages: Sequence[Passage], offset: int
) -> tuple[list[Excerpt], str]:
    """Return the excerpts to read for a page, and the cursor of the next page if all of them fit.

    The first excerpt begins at `offset` of the first passage. The result is empty if that passage is deferred. Excerpts
    are not added to the page yet, because only English text is certain to fit.
    """
    excerpts: list[Excerpt] = []
    room = page.room
    for passage in passages:
        offset = min(offset, passage.length)
        room -= passage.overhead(page.label)
        left = passage.length - offset
        begins_page = passage.remark and not offset
        is_full = begins_page or room < min(left, _MIN_TEXT) or not page.may_read(passage)
        if passage.is_deferred or (excerpts and is_full):
            return excerpts, f"{passage.key}@{offset}"
        end = min(passage.length, offset + max(room, 1))
        excerpts.append(Excerpt(passage, offset, end))
        page.will_read(passage)
        if end < passage.length:
            return excerpts, f"{passage.key}@{end}"
        room -= end - offset
        offset = 0
    return excerpts, ""


def fill(page: Page, excerpts: Sequence[Excerpt], *, find: str = "", following: str = "") -> None:
    """Add as many excerpts as fit, or with `find` the text around each match in them.

    `following` is the cursor of the next page if all excerpts fit.
    """
    for excerpt in excerpts:
        for start, stop in _ranges_of(excerpt, find, page.room):
            passage = excerpt.passage
            text = excerpt.text[start:stop]
            room = page.room_for(passage)
            if page.parts and room < min(weight(text), _MIN_TEXT):
                page.following = f"{passage.key}@{excerpt.start + start}"
                return
            end = min(stop, start + max(fitting(text, room), 1))
            end = _end_after_match(excerpt.text, find, start, end) if find else end
            page.add(
                replace(
                    excerpt,
                    start=excerpt.start + start,
                    end=excerpt.start + end,
                    text=excerpt.text[start:end],
                )
            )
            page.has_match = bool(find)
            if end < stop:
                page.following = f"{passage.key}@{excerpt.start + end}"
                return
    page.following = following


def _ranges_of(excerpt: Excerpt, find: str, room: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of an excerpt to show: all of it, or those around each match of a search.

    If only the fields of a source match, its header shows them, above the beginning of its text.
    """
    if not find:
        yield 0, len(excerpt.text)
        return
    is_found = False
    for found in snippets(excerpt.text, find, limit=room):
        is_found = True
        yield found
    if not is_found and not excerpt.start and any(find_matches(excerpt.passage.fields, find)):
        yield 0, min(len(excerpt.text), _MIN_TEXT)


def fill_words(page: Page, excerpts: Sequence[Excerpt], find: str) -> None:
    """Add the parts with most words of a search to the last page of exact matches, as far as they fit."""
    for index, start, end in _windows_with_words(
        [excerpt.text for excerpt in excerpts], find, limit=_MAX_WITH_WORDS
    ):
        excerpt = excerpts[index]
        text = excerpts[index].text[start:end]
        text = text[: fitting(text, page.room_for(excerpt.passage))]
        shown = [part for part in page.parts if part.passage is excerpt.passage]
        begin = excerpt.start + start
        is_new = all(begin + len(text) <= part.start or part.end <= begin for part in shown)
        if is_new and len(text) >= min(end - start, _MIN_TEXT):
            page.add(Excerpt(excerpt.passage, begin, begin + len(text), text, excerpt.found))


def _end_after_match(text: str, find: str, start: int, end: int) -> int:
    """Return the last position up to `end` at which a text can be cut without splitting a match."""
    searched = text[start : end + len(fold(find))]
    cut = next(
        (first for first, last in find_matches(searched, find) if start + last > end), len(searched)
    )
    return min(end, start + cut) if cut else end


def no_match(request: Request, page: Page | None = None) -> str:
    """Return the line for a search without a match."""
    text = f"No match for '{_quoted(request.find, 50)}'"
    if page and page.following:
        return f"{text} in the text read so far."
    if page and page.parts:
        return f"{text} as an exact text; these passages have its words."
    return f"{text}. Try other words{', or find without ids' if request.names else ''}."


def unknown_cursor(request: Request) -> tuple[Any, SourcePage]:
    """Return the page for an invalid cursor."""
    text = f"Unknown cursor '{_quoted(request.cursor, 50)}'. Ask again without a cursor."
    return compose_page([text], remarks([], [], [], request), SourcePage(), Request())


def remarks(
    names: Sequence[int | str], valid: Sequence[str], numbers: Iterable[int], request: Request
) -> list[str]:
    """Return the lines about parts of a call that could not be fulfilled, in at most three eighths of a page.

    Args:
        names: The names that were not found.
        valid: Ids of messages to suggest.
        numbers: Source numbers to suggest.
        request: The call.
    """
    lines = _not_found(names, valid, numbers, room=request.characters // 4) if names else []
    room = request.characters * 3 // 8 - sum(weight(line) + 1 for line in lines)
    return lines + fitting_lines(request.remarks, room + 1)


def _not_found(
    names: Sequence[int | str], valid: Sequence[str], numbers: Iterable[int], *, room: int
) -> list[str]:
    """Return a line with the names that were not found, and with valid ones."""
    named: list[str] = []
    room_left = room // 2 - len("Not found: , and 10000 more.")
    for name in names[:_NAMED]:
        text = _quoted(name, _NAME_CHARACTERS if named else min(_NAME_CHARACTERS, room_left))
        room_left -= weight(text) + 2
        if named and room_left < 0:
            break
        named.append(text)
    rest = f", and {len(names) - len(named)} more" if len(names) > len(named) else ""
    line = f"Not found: {', '.join(named)}{rest}."
    room = room // 2
    is_number = all(isinstance(name, int) for name in names)
    existing = write_ids(numbers) or "none" * is_number
    for label, hints in (
        ("Valid ids", [] if is_number and existing != "none" else valid),
        ("Source numbers here", existing.split(", ")),
    ):
        kept: list[str] = []
        room -= len(f" {label}: .")
        for hint in filter(None, hints):
            room -= weight(hint) + 2
            kept += [hint] if room >= 0 else []
        line += f" {label}: {', '.join(kept)}." if kept else ""
    return [line]


def _quoted(text: Any, limit: int) -> str:
    """Return the beginning of a text from a model, printable and cut to a weight."""
    shown = in_line(text, limit)
    return shown[: fitting(shown, limit)]
