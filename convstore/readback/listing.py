"""List the parts of a conversation that can be read back: results, long messages, and earlier turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from convstore.log.entry import EntryMessage
from convstore.log.rows import named_in
from convstore.log.stored_message import read_message
from convstore.messages.payload_ranges import PayloadRange
from convstore.messages.text import in_one_line, text_of
from convstore.messages.tokens import weight
from convstore.mongo.parallel import together
from convstore.mongo.states import States
from convstore.readback.page import fitting_lines, remarks
from convstore.readback.passages import in_line
from convstore.readback.request import Request
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.values.models import SourcePage
from convstore.values.scope import Scope

_MAX_LISTED = 20
_CALL_CHARACTERS = 300
_QUESTION_CHARACTERS = 150
_NOTHING = "There is nothing earlier in this conversation yet."


class Listing:
    """Lists the results and earlier turns of a conversation that a model can read; one object serves a store."""

    def __init__(self, reader: LogReader, states: States) -> None:
        self._reader = reader
        self._states = states
        self._codec = reader.codec

    async def read(self, scope: Scope, request: Request) -> tuple[str, SourcePage]:
        """Return the newest results and long messages, and the newest turns that views leave out, on one page.

        If no view leaves turns out, all turns except the one in progress are listed.
        """
        cached = await self._reader.find(scope)
        listed = await self._listed(cached, request) if cached else []
        return "\n".join([*(listed or [_NOTHING]), *remarks([], [], [], request)]), SourcePage()

    async def _listed(self, cached: CachedConversation, request: Request) -> list[str]:
        async with self._reader.reading(cached):
            snapshot = await self._reader.snapshot(cached)
            entries, start = await together(
                self._reader.newest_results(snapshot, limit=_MAX_LISTED),
                self._states.latest_start(cached.conversation),
            )
            questions = await self._questions(snapshot, start)
        readable = named_in(entries)[:_MAX_LISTED]
        has_long = any(message.type != "tool" for message in readable)
        title = "Tool results and long messages" if has_long else "Tool results"
        title += (
            " that can be read, newest first (tool_message_id: tool and its arguments, ordinal, "
            "source ids):"
        )
        room = request.room_after(remarks([], [], [], request))
        listed = _section(title, map(_line, readable), room - room // 3 * bool(questions))
        room -= sum(weight(line) + 1 for line in listed)
        earlier = (
            "Earlier turns, newest first (message id, date, question); pass find to search "
            "everything:"
        )
        return [*listed, *_section(earlier, questions, room)]

    async def _questions(self, snapshot: Snapshot, start: tuple[int, int] | None) -> list[str]:
        """Return a line for each of the newest turns before the entry and the ordinal at which views start."""
        tail = snapshot.tail
        end = tail.messages + 1 if tail.over else tail.turn
        entry, first = start or (tail.entries, end)
        entries = await self._reader.log.questions(
            snapshot.cached.conversation, before=entry + 1, limit=_MAX_LISTED
        )
        return [
            f"{in_one_line(message.id)}, {entry.at:%Y-%m-%d}: {self._question(message)}"
            for entry in snapshot.active.of(entries)
            for message in reversed(entry.messages)
            if message.begins_turn and message.ordinal < first
        ]

    def _question(self, message: EntryMessage) -> str:
        content = read_message(self._codec, message).content
        text = content.head if isinstance(content, PayloadRange) else text_of(content)
        return in_line(" ".join(text[: 4 * _QUESTION_CHARACTERS].split()), _QUESTION_CHARACTERS)


def _line(message: EntryMessage) -> str:
    if message.type != "tool":
        return (
            f"{in_one_line(message.id)}: {message.type} message of {message.tokens} tokens, "
            f"m{message.ordinal}"
        )
    called = in_line(f"{message.tool or 'tool'} {message.arguments}".strip(), _CALL_CHARACTERS)
    sources = f", source ids {message.sources}" if message.sources else ""
    return f"{in_one_line(message.id)}: {called}, m{message.ordinal}{sources}"


def _section(title: str, lines: Iterable[str], room: int) -> Sequence[str]:
    """Return a title and the lines after it that fit; empty if no line fits."""
    kept = fitting_lines(lines, room - weight(title) + 1)
    return [title, *kept] if kept else []
