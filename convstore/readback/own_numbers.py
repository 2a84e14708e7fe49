"""Find the numbers that the results of a turn show, where these are not the numbers of their sources in the log.

Results that were imported, or that nobody numbered, count from 1 as their tools wrote them, and the answer of their
turn cites these numbers. They follow from the content of the results and from the numbers that their tools gave.
"""

from __future__ import annotations

from collections.abc import Iterable

from convstore.log.entry import Entry, EntryMessage
from convstore.mongo.log import SEARCHED
from convstore.readback.records import Records
from convstore.runtime.threads import run_in_thread_if_long
from convstore.sources.marks import marks_in
from convstore.sources.numbering import numbers_shown
from convstore.values.models import ToolRecord
from convstore.values.scope import Scope

MAX_RESULTS = 20
"""Maximum number of results of a turn whose marks are read, the newest ones."""
_EXPLAINED = 20
"""Maximum number of citations that a line explains."""


class OwnNumbers:
    """Reads the marks of results."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._reader = records.reader

    async def before(self, scope: Scope, message_id: str) -> dict[int, int]:
        """Return source ids by the numbers that results of a turn before a message show; the newest result wins.

        Two commands; two more if the turn has results with sources that their tools did not number themselves.
        """
        cached = await self._reader.find(scope) if message_id else None
        if cached is None:
            return {}
        async with self._reader.reading(cached):
            rows = await self._reader.log.messages_by_id(cached.conversation, [message_id])
            if message_id not in rows:
                return {}
            message = rows[message_id].message
            entries = await self._reader.log.newest_results(
                cached.conversation,
                before=message.ordinal,
                limit=MAX_RESULTS,
                tools_only=True,
                without=(),
                fields=SEARCHED,
            )
        ids = _counted_by_tools(entries, message)
        records = await self._records.get(scope, ids) if ids else []
        characters = sum(len(str(record.content)) for record in records)
        return await run_in_thread_if_long(lambda: _shown(records), characters=characters)

    async def explained(
        self, scope: Scope, message_id: str, ordinal: int, texts: Iterable[str]
    ) -> str:
        """Return a line on what the numbers mean that texts of an answer cite; "" if all are those of the log.

        No command for texts without citations.
        """
        marks = [mark for text in texts for mark in marks_in(text)]
        if not marks:
            return ""
        own = await self.before(scope, message_id)
        cited = sorted({number for mark in marks for number in mark.numbers})
        other = [number for number in cited if own.get(number, number) != number]
        meant = ", ".join(f"[{number}] is source {own[number]}" for number in other[:_EXPLAINED])
        return f"In m{ordinal}, {meant}." if meant else ""


def _counted_by_tools(entries: Iterable[Entry], message: EntryMessage) -> list[str]:
    """Return the ids of the results of a message's turn whose sources the log numbered, oldest first."""
    numbered = {
        source.message_id for entry in entries for source in entry.sources if not source.kept
    }
    return [
        result.id
        for entry in reversed(list(entries))
        for result in entry.messages
        if result.id in numbered and result.turn == message.turn
    ]


def _shown(records: Iterable[ToolRecord]) -> dict[int, int]:
    shown: dict[int, int] = {}
    for record in records:
        shown |= numbers_shown(record.content, record.sources)
    return shown
