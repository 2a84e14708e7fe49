"""Keeps the history of a conversation's summaries: lists them, expands them, undoes the current one.

Floor 5. `conversation` and the compactor call it. Every summary is kept. The head names the current one, and each
summary names the one it extends. A summary whose messages were rewound is set aside until the rewind is undone; until
then, the newest earlier summary that is still valid is the current one.
"""

from __future__ import annotations

from collections.abc import Mapping

from langchain_core.messages import BaseMessage

from convstore.exceptions import CorruptDocumentError, InvalidInputError
from convstore.log.entry import RewoundRange
from convstore.log.rewind import Rewinds, is_active
from convstore.log.summary import SummaryRecord, fits
from convstore.mongo.heads import Heads
from convstore.mongo.keys import SUMMARIES, summary_id
from convstore.mongo.log import Log
from convstore.mongo.summaries import Summaries
from convstore.runtime.log_reader import LogReader
from convstore.values.models import Summary
from convstore.values.scope import Scope

__all__ = ["SummaryHistory"]


class SummaryHistory:
    """Reads stored summaries and selects the current one."""

    def __init__(self, reader: LogReader, heads: Heads, log: Log, summaries: Summaries) -> None:
        self._reader, self._heads, self._log, self._summaries = reader, heads, log, summaries

    async def all(self, scope: Scope) -> list[Summary]:
        """Return all summaries, oldest first; see `Conversation.summaries`."""
        head = await self._heads.find(dict(scope))
        cached = self._reader.seen(scope, head)
        if head is None or cached is None or not head.newest:
            return []
        async with self._reader.reading(cached):
            found = await self._summaries.all(head.conversation)
            current = head.summary.token if head.summary else ""
            summaries = reversed(_whole_chain(cached.conversation, found, head.newest, "previous"))
            return [self.public(record, found, is_current=record.token == current) for record in summaries]

    async def expand(self, scope: Scope, version: int) -> list[BaseMessage]:
        """Return the messages that a summary replaces; see `Conversation.expand_summary`."""
        head = await self._heads.find(dict(scope))
        cached = self._reader.seen(scope, head)
        committed: list[SummaryRecord] = []
        if head is not None and cached is not None:
            async with self._reader.reading(cached):
                found = await self._summaries.all(head.conversation)
                committed = _whole_chain(cached.conversation, found, head.newest, "previous")
        record = next((one for one in committed if one.version == version), None)
        if record is None or cached is None:
            raise InvalidInputError(f"this conversation has no summary {version!r}; summaries() lists all versions")
        async with self._reader.reading(cached):
            entries = await self._reader.entries(cached, start=1, before=record.entry + 1, is_whole=True)
            messages = [message for entry in entries for message in entry.messages]
            rewound = [RewoundRange(first, last, entry=0, until=0) for first, last in record.rewound]
            inside = [one for one in messages if record.first <= one.ordinal <= record.last]
            return await self._reader.decode_whole(cached, [one for one in inside if is_active(rewound, one.ordinal)])

    async def undo(self, scope: Scope) -> bool:
        """Restore the summary before the current one; see `Conversation.undo_compaction`."""
        head = await self._heads.find(dict(scope))
        cached = self._reader.seen(scope, head)
        if head is None or cached is None or head.summary is None:
            return False
        async with self._reader.reading(cached):
            found = await self._summaries.all(head.conversation)
            rewind_entry = (await self._log.last_totals(head.conversation)).rewind_entry
            parent = next(iter(_whole_chain(cached.conversation, found, head.summary.parent, "parent")), None)
        return await self._heads.commit(dict(scope), head, parent, rewind_entry=rewind_entry)

    async def reselect(self, scope: Scope, rewinds: Rewinds) -> None:
        """Make the longest valid summary the current one.

        The candidates are the current summary, those it extends, and those that a rewind set aside. Call it after a
        rewind and after a restore; a second call does nothing.
        """
        while head := await self._heads.find(dict(scope)):
            current = head.summary.token if head.summary else ""
            if not head.aside and (head.summary is None or fits(head.summary, rewinds)):
                return
            found = await self._summaries.all(head.conversation)
            aside = _chain(found, head.aside, "parent")
            fitting = [record for record in (*aside, *_chain(found, current, "parent")) if fits(record, rewinds)]
            best = max(fitting, key=lambda record: (record.last, record.version), default=None)
            token = best.token if best else ""
            if token == current:
                return
            is_aside = head.aside and current in {"", *(record.token for record in aside)}
            still_aside = "" if best and token == head.aside else head.aside if is_aside else current
            if await self._heads.commit(dict(scope), head, best, rewind_entry=rewinds.entry, aside=still_aside):
                return

    def public(self, record: SummaryRecord, found: Mapping[str, SummaryRecord], *, is_current: bool) -> Summary:
        """Convert a stored summary to the public model; `found` holds the summaries it extends."""
        results = [result for one in reversed(_chain(found, record.token, "parent")) for result in one.folded]
        return Summary(
            version=record.version,
            first=record.first,
            last=record.last,
            text=record.text,
            messages=self._reader.standing(record),
            model=record.model,
            tokens_in=record.tokens_in,
            tokens_out=record.tokens_out,
            created_at=record.at,
            tool_message_ids=[id_ for id_, _ in results],
            source_ids=", ".join(sources for _, sources in results if sources),
            is_current=is_current,
        )


def _chain(found: Mapping[str, SummaryRecord], token: str, link: str) -> list[SummaryRecord]:
    """Follow a link from one summary back, newest first, as far as summaries were found.

    Raises:
        CorruptDocumentError: A link leads to a later summary, so the links form a circle.
    """
    chain: list[SummaryRecord] = []
    while record := found.get(token):
        if chain and record.version >= chain[-1].version:
            key, collection = chain[-1].place
            raise CorruptDocumentError(key, f"its {link} is a later summary", collection=collection)
        chain.append(record)
        token = getattr(record, link)
    return chain


def _whole_chain(conversation: str, found: Mapping[str, SummaryRecord], token: str, link: str) -> list[SummaryRecord]:
    """Follow a link from one summary back to the first one, newest first.

    Raises:
        CorruptDocumentError: A summary is missing, or the links form a circle.
    """
    chain = _chain(found, token, link)
    if missing := getattr(chain[-1], link) if chain else token:
        raise CorruptDocumentError(summary_id(conversation, missing), "the summary is missing", collection=SUMMARIES)
    return chain
