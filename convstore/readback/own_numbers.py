"""Find the numbers that the results of a turn show, where these differ from the source ids in the log.

Imported results, and others that were not numbered, count from 1 as their tools wrote them, and the answer of their
turn cites these numbers. They are found in the content of the results and among the numbers that their tools assigned.
A number in a result without sources has no meaning, unless it is the id of a source of the turn or of a sub-agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from convstore.log.entry import Entry, EntryMessage
from convstore.mongo.log import SEARCHED
from convstore.readback.records import Records
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.threads import run_in_thread_if_long
from convstore.sources.marks import marks_in
from convstore.sources.numbering import NO_SOURCE, numbers_shown
from convstore.sources.stub import RETRIEVAL_TOOL
from convstore.values.models import ToolRecord
from convstore.values.scope import Scope

MAX_RESULTS = 20
"""Maximum number of a turn's results whose marks are read; the newest are chosen."""
_EXPLAINED = 20
"""Maximum number of citations that a line explains."""


async def numbers_before(records: Records, scope: Scope, message_id: str) -> dict[int, int]:
    """Return source ids by the numbers in the results of a message's turn before it; the newest result wins.

    Two commands; two more if the turn has results that were not numbered, one more if these count passages that are
    not sources.
    """
    reader = records.reader
    cached = await reader.find(scope) if message_id else None
    if cached is None:
        return {}
    async with reader.reading(cached):
        rows = await reader.log.messages_by_id(cached.conversation, [message_id])
        if message_id not in rows:
            return {}
        message = rows[message_id].message
        entries = await reader.log.newest_results(
            cached.conversation,
            before=message.ordinal,
            limit=MAX_RESULTS,
            tools_only=True,
            without=(),
            fields=SEARCHED,
        )
    ids = _not_numbered(entries, message)
    results = await records.get(scope, ids) if ids else []
    characters = sum(len(str(result.content)) for result in results)
    shown = await run_in_thread_if_long(lambda: _numbers_shown(results), characters=characters)
    known = await _numbers_of_sources(reader, cached, message, shown)
    return {number: source for number, source in shown.items() if number not in known}


async def _numbers_of_sources(
    reader: LogReader, cached: CachedConversation, message: EntryMessage, shown: Mapping[int, int]
) -> set[int]:
    """Return the numbers without a source in their result that are ids of sources of the turn or of a sub-agent."""
    unknown = [number for number, source in shown.items() if source == NO_SOURCE]
    if not unknown:
        return set()
    async with reader.reading(cached):
        rows = await reader.log.sources_by_id(cached.conversation, unknown)
    return {
        number
        for number, (row, source) in rows.items()
        if row.message.turn == message.turn
        or not source.entry.startswith(f"{cached.conversation}:")
    }


async def explain_citations(
    records: Records, scope: Scope, message_id: str, ordinal: int, texts: Iterable[str]
) -> str:
    """Return a line that explains cited numbers which are not source ids; "" if all are source ids.

    Texts without citations take no command.
    """
    marks = [mark for text in texts for mark in marks_in(text)]
    if not marks:
        return ""
    own = await numbers_before(records, scope, message_id)
    cited = sorted({number for mark in marks for number in mark.numbers})
    other = [number for number in cited if own.get(number, number) != number]
    meant = ", ".join(f"[{number}] is {_named(own[number])}" for number in other[:_EXPLAINED])
    return f"In m{ordinal}, {meant}." if meant else ""


def _named(source: int) -> str:
    return "no source" if source == NO_SOURCE else f"source {source}"


def _not_numbered(entries: Sequence[Entry], message: EntryMessage) -> list[str]:
    """Return the ids of the results of a message's turn that neither their tools nor a wrapper numbered, in order."""
    return [
        result.id
        for entry in reversed(entries)
        for result in entry.messages
        if result.turn == message.turn and _may_count(result, entry)
    ]


def _may_count(result: EntryMessage, entry: Entry) -> bool:
    """Return True for a tool result without sources, or with sources to which the log assigned numbers."""
    if result.type != "tool" or result.tool == RETRIEVAL_TOOL:
        return False
    kept = [source.kept for source in entry.sources if source.message_id == result.id]
    return not kept or not all(kept)


def _numbers_shown(records: Iterable[ToolRecord]) -> dict[int, int]:
    """Return source ids by the numbers that results show; a result with sources wins over one without."""
    shown: dict[int, int] = {}
    for record in sorted(records, key=lambda record: bool(record.sources)):
        shown |= numbers_shown(record.content, record.sources)
    return shown
