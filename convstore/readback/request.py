"""The request for a page of stored content, and the cursor with which the next request continues it.

The tool and `conversation` build requests; the pager answers them. The cursor at the end of a page has the position at
which the page ended: ``11@4000`` continues in source 11, ``m7@4000`` in the message with ordinal 7, ``m7.2@0`` in the
third part of its content, ``m7.x1@0`` in its second part after the content, ``f9@40`` after the best 40 passages of a
search up to ordinal 9. The names of the request follow, then the words to find: ``2@325/m3+1,1-5/leopard seal``.
``m3+1`` is the message with ordinal 4, in an entry that begins with ordinal 3. A cursor comes from a model, so its
names are looked up only in the conversation that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from convstore.exceptions import InvalidInputError, TooManyIdsError
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, weight
from convstore.sources.source import MAX_SOURCES, read_ids
from convstore.sources.stub import PAGE_TOKENS
from convstore.values.plain import shown_value
from convstore.values.scope import MAX_IDS, check_ids, check_number

MAX_CHARACTERS = 4_000
"""Maximum length of a cursor."""
_MAX_NAMES = 1_000
_MESSAGE_REF = r"m(?:\d{1,15}\+)?\d{1,15}"
_SOURCES = r"\d{1,15}(?:-\d{1,15})?"
_NAMES = rf"(?:{_MESSAGE_REF}|{_SOURCES})(?:,(?:{_MESSAGE_REF}|{_SOURCES}))*"
_CURSOR = re.compile(
    rf"([mf]?\d{{1,15}}|m\d{{1,15}}\.x?\d{{1,6}})@(\d{{1,15}})(?:/({_NAMES})?(?:/(.*))?)?",
    re.ASCII | re.DOTALL,
)


class MessageRef(NamedTuple):
    """The ordinal of a message, and the first ordinal of its entry, by which one indexed read finds it."""

    ordinal: int
    first: int

    def __str__(self) -> str:
        if self.first < self.ordinal:
            return f"m{self.first}+{self.ordinal - self.first}"
        return f"m{self.ordinal}"


class Cursor(NamedTuple):
    """A parsed cursor: a position and the names of a request. Its passages may not exist.

    Attributes:
        key: Name of the passage; for a search "f" and the ordinal of the last message that is searched.
        offset: Number of characters of the passage, or of found passages, that were shown.
        message_refs: The requested messages.
        source_ids: The requested sources.
        find: The words to find.
    """

    key: str
    offset: int
    message_refs: tuple[MessageRef, ...] = ()
    source_ids: tuple[int, ...] = ()
    find: str = ""


def read_cursor(text: Any) -> Cursor | None:
    """Parse a cursor; None if it is invalid. A cursor without names continues the source or message of its position.

    >>> read_cursor("11@4000")
    Cursor(key='11', offset=4000, message_refs=(), source_ids=(11,), find='')
    >>> read_cursor("2@325/m3+1,1-2/leopard seal")[2:]
    ((MessageRef(ordinal=4, first=3),), (1, 2), 'leopard seal')
    """
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        return None
    found = _CURSOR.fullmatch(text.strip())
    if not found:
        return None
    key, offset, names, find = found.groups("")
    if not names and not key.startswith("f"):
        names = key.partition(".")[0]
    messages = [name for name in names.split(",") if name.startswith("m")]
    others = [name for name in names.split(",") if not name.startswith("m")]
    message_refs = tuple(map(_message_ref, messages[:MAX_IDS]))
    numbers = read_ids(",".join(others))[:MAX_SOURCES]
    return Cursor(
        key, int(offset), message_refs, tuple(numbers), unquote(find, errors="replace").strip()
    )


def quoted(find: str) -> str:
    """Encode a search text for a cursor: on one line, without quotes and backslashes, which models escape."""
    plain = (
        sign if sign.isprintable() and sign not in '%"\\' else quote(sign, errors="replace")
        for sign in find
    )
    return "".join(plain)


def _compact_names(
    message_refs: Iterable[MessageRef], numbers: Sequence[int], *, room: int
) -> tuple[str, int, int]:
    """Return the names that fit in a cursor, and the number of messages and of sources among them.

    >>> _compact_names([MessageRef(7, 5)], [1, 2, 3, 9], room=100)
    ('m5+2,1-3,9', 1, 4)
    """
    room = min(room, _MAX_NAMES)
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ]
    messages = [(str(ref), 1, 0) for ref in message_refs]
    sources = [(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]), 0, len(run)) for run in runs]
    kept: list[tuple[str, int, int]] = []
    for name in (*messages, *sources):
        room -= len(name[0]) + 1
        if room < 0 and kept:
            break
        kept.append(name)
    return (
        ",".join(name for name, *_ in kept),
        sum(count for _, count, _ in kept),
        sum(size for *_, size in kept),
    )


def last_line(cursor: str) -> str:
    """Return the last line of a page: "End.", or how to continue with the cursor."""
    return f'More: cursor="{cursor}"; call again with this cursor alone.' if cursor else "End."


def room_for_last_line(names: str, find: str) -> int:
    """Return the maximum weight of `last_line` for a request."""
    return len(last_line("m1234567890.123@1234567890//")) + len(names) + weight(quoted(find))


def _message_ref(name: str) -> MessageRef:
    first, _, offset = name[1:].partition("+")
    return MessageRef(int(first) + int(offset or 0), int(first))


MAXIMUM_PAGE_TOKENS = 16_000
_MINIMUM_PAGE_TOKENS = 100
_MESSAGE = 4 * CHARACTERS_PER_TOKEN
"""Characters that a message takes in addition to its text, by `approximate_tokens`."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a page; its fields are in the order in which a page shows them.

    Attributes:
        tool_message_ids: Ids of messages, shown with their sources, or of tool calls, shown with their results.
        source_ids: Ids of single sources.
        find: Show only the text around matches of this text, ignoring case; "" shows everything.
        cursor: Position at which the previous page ended; "" for the first page.
        page_tokens: Size of a page in tokens.
        remarks: Lines that tell the model which parts of its call could not be fulfilled.
        message_refs: Messages that a cursor names, shown after those of `tool_message_ids`.
        artifact: True to show and search also the rest of artifacts.
    """

    tool_message_ids: Sequence[str] = ()
    source_ids: Sequence[int] = ()
    find: str = ""
    cursor: str = ""
    page_tokens: int = PAGE_TOKENS
    remarks: Sequence[str] = ()
    message_refs: Sequence[MessageRef] = ()
    artifact: bool = False

    @classmethod
    def continued(cls, cursor: str, *, page_tokens: int, remarks: Sequence[str] = ()) -> Request:
        """Return the request that a cursor of the tool continues; without names for an invalid cursor."""
        if (found := read_cursor(cursor)) is None:
            return cls(cursor=cursor or "?", page_tokens=page_tokens, remarks=remarks)
        position = f"{found.key}@{found.offset}"
        return cls(
            (), found.source_ids, found.find, position, page_tokens, remarks, found.message_refs
        )

    def cursor_at(self, position: str) -> str:
        """Return the cursor that continues this request at a position; it names messages by ordinal.

        >>> Request(source_ids=[2]).cursor_at("2@325"), Request(find='say "ah"').cursor_at("f9@40")
        ('2@325', 'f9@40//say %22ah%22')
        """
        names = self._compact[0]
        if not self.find and names == position.partition("@")[0]:
            return position
        return f"{position}/{names}" + (f"/{quoted(self.find)}" if self.find else "")

    def cut_for_cursor(self) -> Request:
        """Return the request with as many names as fit in a cursor."""
        _, messages, sources = self._compact
        cut = len(self.message_refs) - messages + len(self.source_ids) - sources
        more = (
            [f"Only the first {messages + sources} names are read; {cut} are left."] if cut else []
        )
        kept = self.message_refs[:messages], self.source_ids[:sources]
        return replace(
            self, message_refs=kept[0], source_ids=kept[1], remarks=[*self.remarks, *more]
        )

    @property
    def is_search(self) -> bool:
        """True for a search of the whole conversation, which the index answers, and for each later page of it."""
        return bool(self.find) and (self.cursor.startswith("f") or not (self.names or self.cursor))

    def room_after(self, lines: Iterable[str]) -> int:
        """Return the room for the texts of a page beside some lines and the last line, in characters."""
        used = sum(weight(line) + 1 for line in lines) + room_for_last_line(
            self._compact[0], self.find
        )
        return self.characters - used - _MESSAGE

    @property
    def _compact(self) -> tuple[str, int, int]:
        return _compact_names(self.message_refs, self.source_ids, room=self.characters // 8)

    @property
    def characters(self) -> int:
        """The size of a page, in characters of English text; see `tokens.weight`."""
        return self.page_tokens * CHARACTERS_PER_TOKEN

    @property
    def names(self) -> list[int | str]:
        """All names in the request, without duplicates."""
        messages = (f"m{ref.ordinal}" for ref in self.message_refs)
        return [
            *dict.fromkeys((*self.tool_message_ids[:MAX_IDS], *messages)),
            *dict.fromkeys(self.source_ids),
        ]


def request_of(
    source_ids: Iterable[int] | str,
    tool_message_ids: Sequence[str],
    find: str,
    cursor: str | None,
    page_tokens: int,
) -> Request:
    """Check the arguments of `Conversation.get_sources` and return its request."""
    names = check_ids(tool_message_ids, name="tool_message_ids"), check_source_ids(source_ids)
    if find and not any(names):
        raise InvalidInputError(
            "pass the source_ids or tool_message_ids to look in, or call `search`"
        )
    return Request(*names, find, cursor or "", check_page_tokens(page_tokens))


def check_page_tokens(page_tokens: int) -> int:
    """Return the size of a page in tokens if it is valid.

    Raises:
        InvalidInputError: It is not a whole number from 100 to 16,000.
    """
    return check_number(
        page_tokens, name="page_tokens", minimum=_MINIMUM_PAGE_TOKENS, maximum=MAXIMUM_PAGE_TOKENS
    )


def check_source_ids(given: Iterable[int] | str) -> list[int]:
    """Return the source numbers that a caller asks for.

    Raises:
        InvalidInputError: They are not valid numbers.
        TooManyIdsError: They are more than one call reads.
    """
    try:
        numbers = (
            read_ids(given) if isinstance(given, str) else list(islice(given, MAX_SOURCES + 1))
        )
    except TypeError as error:
        raise InvalidInputError(
            f"source_ids must be numbers or a text such as '3, 11-20', not {shown_value(given)}"
        ) from error
    except ValueError as error:
        raise InvalidInputError(
            f"source_ids must be numbers or a text such as '3, 11-20': {error}"
        ) from error
    for number in numbers:
        check_number(number, name="a source id", minimum=1, maximum=2**53 - 1)
    if len(numbers) > MAX_SOURCES:
        raise TooManyIdsError(
            f"more than {MAX_SOURCES:,} source ids in one call; ask for fewer at a time"
        )
    return numbers
