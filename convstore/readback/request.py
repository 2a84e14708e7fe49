"""The request for a page of the read-back.

The tool and `conversation` build it; the pager answers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from convstore.exceptions import InvalidInputError, TooManyIdsError
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, weight
from convstore.readback.cursor import Place, compact_names, quoted, read_cursor, room_for_last_line
from convstore.sources.source import MAX_SOURCES, read_ids
from convstore.sources.stub import PAGE_TOKENS
from convstore.values.scope import MAX_IDS, check_ids, check_number

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
        find: Show only the text around matches of this, ignoring case; "" for everything.
        cursor: Position at which the previous page ended; "" for the first page.
        page_tokens: Size of a page.
        remarks: Lines that tell the model which parts of its call could not be done.
        places: Messages that a cursor names, shown after those of `tool_message_ids`.
        artifact: True to show and search the rest of artifacts, too.
    """

    tool_message_ids: Sequence[str] = ()
    source_ids: Sequence[int] = ()
    find: str = ""
    cursor: str = ""
    page_tokens: int = PAGE_TOKENS
    remarks: Sequence[str] = ()
    places: Sequence[Place] = ()
    artifact: bool = False

    @classmethod
    def continued(cls, cursor: str, *, page_tokens: int, remarks: Sequence[str] = ()) -> Request:
        """Return the request that a cursor of the tool continues; an unknown one continues nothing."""
        if (found := read_cursor(cursor)) is None:
            return cls(cursor=cursor or "?", page_tokens=page_tokens, remarks=remarks)
        position = f"{found.key}@{found.offset}"
        return cls((), found.source_ids, found.find, position, page_tokens, remarks, found.places)

    def cursor_at(self, position: str) -> str:
        """Return the cursor that continues this request, whose names are places and source numbers, at a position.

        >>> Request(source_ids=[2]).cursor_at("2@325"), Request(find='say "ah"').cursor_at("f9@40")
        ('2@325', 'f9@40//say %22ah%22')
        """
        names = self._compact[0]
        if not self.find and names == position.partition("@")[0]:
            return position
        return f"{position}/{names}" + (f"/{quoted(self.find)}" if self.find else "")

    def cut_for_cursor(self) -> Request:
        """Return the request with as many names as a cursor holds."""
        _, messages, sources = self._compact
        cut = len(self.places) - messages + len(self.source_ids) - sources
        more = (
            [f"Only the first {messages + sources} names are read; {cut} are left."] if cut else []
        )
        kept = self.places[:messages], self.source_ids[:sources]
        return replace(self, places=kept[0], source_ids=kept[1], remarks=[*self.remarks, *more])

    @property
    def is_search(self) -> bool:
        """Return True for a request that the index answers: for words everywhere, or after all exact matches."""
        return bool(self.find) and (self.cursor.startswith("f") or not (self.names or self.cursor))

    def room_after(self, lines: Iterable[str]) -> int:
        """Return the room for the texts of a page, in characters; it also has some lines, and the last one."""
        used = sum(weight(line) + 1 for line in lines) + room_for_last_line(
            self._compact[0], self.find
        )
        return self.characters - used - _MESSAGE

    @property
    def _compact(self) -> tuple[str, int, int]:
        return compact_names(self.places, self.source_ids, room=self.characters // 8)

    @property
    def characters(self) -> int:
        """Return the size of a page, in characters of English text; see `tokens.weight`."""
        return self.page_tokens * CHARACTERS_PER_TOKEN

    @property
    def names(self) -> list[int | str]:
        """Return all names in the request, without duplicates."""
        places = (f"m{place.ordinal}" for place in self.places)
        return [
            *dict.fromkeys((*self.tool_message_ids[:MAX_IDS], *places)),
            *dict.fromkeys(self.source_ids),
        ]


def request_of(
    source_ids: Iterable[int] | str,
    tool_message_ids: Sequence[str],
    find: str,
    cursor: str | None,
    page_tokens: int,
) -> Request:
    """Return the request of `Conversation.get_sources`, checked."""
    names = check_ids(tool_message_ids, name="tool_message_ids"), check_source_ids(source_ids)
    if find and not any(names):
        raise InvalidInputError(
            "pass the source_ids or tool_message_ids to look in, or call `search`"
        )
    return Request(*names, find, cursor or "", check_page_tokens(page_tokens))


def check_page_tokens(page_tokens: int) -> int:
    """Return the size of a page.

    Raises:
        InvalidInputError: Not a whole number in bounds.
    """
    return check_number(
        page_tokens, name="page_tokens", minimum=_MINIMUM_PAGE_TOKENS, maximum=MAXIMUM_PAGE_TOKENS
    )


def check_source_ids(given: Iterable[int] | str) -> list[int]:
    """Return the source numbers that a caller asks for.

    Raises:
        InvalidInputError: Not numbers, or too many.
    """
    try:
        numbers = (
            read_ids(given) if isinstance(given, str) else list(islice(given, MAX_SOURCES + 1))
        )
    except TypeError as error:
        raise InvalidInputError(
            f"source_ids must be numbers or a text such as '3, 11-20', not {given!r}"
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
