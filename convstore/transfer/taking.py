"""Takes one record over into one conversation: what is there is found out, what is missing behind it is appended.

Layer 6. Two imports of one record at once do the same appends in the same order, and each is written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Literal, TypeAlias

from convstore.exceptions import BatchTooLargeError, InvalidInputError
from convstore.mongo.log import StoredMessageRow
from convstore.runtime.cache import CachedConversation
from convstore.runtime.clock import as_of
from convstore.services import Services
from convstore.transfer.prepare import Batch, ReadyMessage, batches_of
from convstore.transfer.records import ConversationRecord
from convstore.values.scope import MAX_IDS, Scope

__all__ = ["ConversationImport", "ImportResult", "Outcome"]

Outcome: TypeAlias = Literal["imported", "extended", "unchanged"]


@dataclass(slots=True)
class ImportResult:
    """What became of a record: messages that were there, messages written, and what is not as it was."""

    outcome: Outcome = "unchanged"
    known: int = 0
    written: int = 0
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Existing:
    """What the conversation holds: how many messages of the record, the last ordinal, the highest source id."""

    known: int = 0
    messages: int = 0
    sources_through: int = 0


class ConversationImport:
    """One record on its way.

    Args:
        parts: Of the store; None for a look at a database that is not set up.
        scope: Whose conversation it becomes.
        record: What it is.
        messages: Its messages, ready to append.
        dry_run: Only look.
    """

    def __init__(
        self,
        parts: Services | None,
        scope: Scope,
        record: ConversationRecord,
        messages: Sequence[ReadyMessage],
        *,
        dry_run: bool,
    ) -> None:
        self._services, self._scope, self._record, self._messages = parts, scope, record, messages
        self._dry_run = dry_run

    async def take(self) -> ImportResult:
        """Append what is missing, or with `dry_run` count it.

        Raises:
            InvalidInputError: A message is there with other content, or what is missing would not stand where the
                record has it; nothing was written.
            MessageRewoundError: What was to be written was rewound meanwhile; take the record again.
        """
        there = await self._look(self._services) if self._services else _Existing()
        taken = ImportResult(known=there.known)
        if there.known < len(self._messages):
            taken.outcome = "extended" if there.known else "imported"
        if self._dry_run or self._services is None:
            taken.written = len(self._messages) - there.known
            return taken
        await self._write(self._services, there, taken)
        if self._record.sources_through:
            await self._reserve(self._services, self._record.sources_through, None)
        await self._check_sources(self._services, taken)
        await self._describe(self._services)
        await self._annotate(self._services)
        if taken.written:
            await self._services.open_heads.close(
                self._scope
            )  # no more is coming: `prune` may end it, listings need no look at its log
        return taken

    async def _look(self, parts: Services) -> _Existing:
        """Find out how many messages are there; those must be the first ones, and nothing else behind them."""
        known = await parts.reader.find(self._scope)
        if known is None:
            return _Existing()
        tail = await parts.reader.tail(known)
        rows = await self._rows(parts, known, self._messages)
        for one in self._messages:
            if one.id in rows and rows[one.id].message.digest != one.digest:
                raise InvalidInputError(
                    f"{one.item.where} is here with other content (id {one.id!r}); a log never changes, so choose "
                    "another scope, or delete the conversation and import it again"
                )
        # As of the tail: another import of the same record may have gone on since.
        rows = {id_: row for id_, row in rows.items() if row.message.ordinal <= tail.messages}
        found = [one for one in self._messages if one.id in rows]
        if new := len(self._messages) - len(found):
            if found and found[-1] is not self._messages[len(found) - 1]:
                missing = next(one for one in self._messages if one.id not in rows)
                raise InvalidInputError(
                    f"{missing.item.where} is missing here, and messages behind it are not; a log never changes, so "
                    "delete the conversation and import it again"
                )
            if others := tail.messages - len(found):
                raise InvalidInputError(
                    f"the conversation has {others} messages that are not in the record, so the {new} that are missing "
                    "would stand behind them; choose another scope, or delete it first"
                )
        if any(left > right for left, right in pairwise(rows[one.id].message.ordinal for one in found)):
            raise InvalidInputError("the conversation has its messages in another order; choose another scope")
        return _Existing(len(found), tail.messages, tail.sources_through)

    async def _rows(
        self, parts: Services, known: CachedConversation, messages: Sequence[ReadyMessage]
    ) -> Mapping[str, StoredMessageRow]:
        ids = [one.id for one in messages]
        rows: dict[str, StoredMessageRow] = {}
        for start in range(0, len(ids), MAX_IDS):
            rows |= await parts.reader.messages_by_id(known, ids[start : start + MAX_IDS])
        return rows

    async def _write(self, parts: Services, there: _Existing, taken: ImportResult) -> None:
        """Append what is missing, batch by batch; what was rewound behind a batch is rewound before the next."""
        done = 0
        for batch in batches_of(self._record, self._messages):
            new = batch.messages[max(0, there.known - done) :]
            done += len(batch.messages)
            if new:
                if batch.reserve_to:
                    await self._reserve(parts, batch.reserve_to, batch.at)
                taken.written += await self._append(parts, new, batch.at, taken)
            # Of what was written in an earlier run, only the last message can lack its rewind.
            if batch.rewind_from and (new or there.messages == there.known == done):
                await self._rewind(parts, batch)

    async def _append(
        self, parts: Services, messages: Sequence[ReadyMessage], at: datetime | None, taken: ImportResult
    ) -> int:
        """Append messages in one entry, or in halves if they are too many for one; gives how many were written."""
        whole = [one.message for one in messages]
        try:
            with as_of(at):
                receipt = await parts.writer.append(self._scope, whole, renumber=True)
        except BatchTooLargeError:
            if len(messages) == 1:
                raise
            half = len(messages) // 2
            first = await self._append(parts, messages[:half], at, taken)
            return first + await self._append(parts, messages[half:], at, taken)
        for id_, numbers in receipt.renumbered.items():
            shown = ", ".join(f"{old} is {new} now" for old, new in list(numbers.items())[:5])
            more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
            if not self._has_numbers(id_):
                taken.changed.append(f"message {id_!r} came with source ids that were taken: {shown}{more}")
        return receipt.written

    def _has_numbers(self, id_: str) -> bool:
        """Whether the record itself says which numbers the sources of a message have."""
        return any(one.id == id_ and one.item.sources for one in self._messages)

    async def _reserve(self, parts: Services, through: int, at: datetime | None) -> None:
        """Set source ids aside up to a number, as they were in the conversation that was exported."""
        known = await parts.reader.find(self._scope)
        used = (await parts.reader.tail(known)).sources_through if known else 0
        if through > used:
            with as_of(at or self._last_date()):
                await parts.writer.reserve(self._scope, through - used)

    async def _rewind(self, parts: Services, batch: Batch) -> None:
        first = next((one for one in self._messages if one.place >= batch.rewind_from), None)
        if first is not None:
            with as_of(batch.at):
                await parts.rewinder.rewind(self._scope, first.id)

    async def _check_sources(self, parts: Services, taken: ImportResult) -> None:
        """Make sure that sources have the numbers that the record names; answers cite them."""
        numbered = [one for one in self._messages if one.item.sources]
        known = await parts.reader.find(self._scope) if numbered else None
        if known is None:
            return
        rows = await self._rows(parts, known, numbered)
        for one in numbered:
            numbers = rows[one.id].message.sources if one.id in rows else one.item.sources
            if numbers != one.item.sources:
                taken.changed.append(f"{one.item.where}: its sources were {one.item.sources}, now {numbers or 'none'}")

    async def _describe(self, parts: Services) -> None:
        """Set title and metadata, unless the conversation has some already."""
        record = self._record
        if record.title is None and not record.metadata:
            return
        info = await parts.directory.info(self._scope)
        title = record.title if info.title is None and record.title is not None else ...
        metadata = dict(record.metadata) if not info.metadata and record.metadata else ...
        if title is not ... or metadata is not ...:
            with as_of(self._last_date()):
                await parts.directory.update(self._scope, title=title, metadata=metadata)

    async def _annotate(self, parts: Services) -> None:
        """Set annotations; values that a message has already stay."""
        for one in self._messages:
            if one.item.annotations:
                there = (await parts.annotator.get(self._scope, [one.id])).get(one.id, {})
                if new := {name: value for name, value in one.item.annotations.items() if name not in there}:
                    await parts.annotator.annotate(self._scope, one.id, new)

    def _last_date(self) -> datetime | None:
        """When the last message was written: what is only set for it does not make the conversation newer."""
        return next((one.item.at for one in reversed(self._messages) if one.item.at), None)
