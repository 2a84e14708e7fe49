"""Imports one record into one conversation: finds the stored messages and appends those after them.

Floor 7. Concurrent imports of one record make the same appends in the same order; each is written once.
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
    """Result of importing a record: messages stored already, messages written, and differences from the source."""

    outcome: Outcome = "unchanged"
    known: int = 0
    written: int = 0
    changed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Existing:
    """State of the conversation before: stored messages of the record, last ordinal, highest source id."""

    known: int = 0
    messages: int = 0
    sources_through: int = 0


class ConversationImport:
    """Import of one record.

    Args:
        services: Services of the store; None for a dry run on a database that is not set up.
        scope: Scope of the conversation to write.
        record: The record.
        messages: Its messages, ready to append.
        dry_run: Compare only, write nothing.
    """

    def __init__(
        self,
        services: Services | None,
        scope: Scope,
        record: ConversationRecord,
        messages: Sequence[ReadyMessage],
        *,
        dry_run: bool,
    ) -> None:
        self._services, self._scope, self._record, self._messages = services, scope, record, messages
        self._dry_run = dry_run

    async def take(self) -> ImportResult:
        """Append the missing messages, or with `dry_run` count them.

        Raises:
            InvalidInputError: A message is stored with different content, or the missing messages cannot be appended
                in the order of the record. Nothing was written.
            MessageRewoundError: A concurrent import rewound messages of this one; import the record again.
        """
        existing = await self._look(self._services) if self._services else _Existing()
        result = ImportResult(known=existing.known)
        if existing.known < len(self._messages):
            result.outcome = "extended" if existing.known else "imported"
        if self._dry_run or self._services is None:
            result.written = len(self._messages) - existing.known
            return result
        await self._write(self._services, existing, result)
        if self._record.sources_through:
            await self._reserve(self._services, self._record.sources_through, None)
        await self._check_sources(self._services, result)
        await self._describe(self._services)
        await self._annotate(self._services)
        if result.written:
            # The import is complete: `prune` may remove the conversation, and listings need not read its log.
            await self._services.open_heads.close(self._scope)
        return result

    async def _look(self, services: Services) -> _Existing:
        """Count the stored messages of the record. They must be its first ones, and no others may follow them."""
        cached = await services.reader.find(self._scope)
        if cached is None:
            return _Existing()
        tail = await services.reader.tail(cached)
        rows = await self._rows(services, cached, self._messages)
        for one in self._messages:
            if one.id in rows and rows[one.id].message.digest != one.digest:
                raise InvalidInputError(
                    f"{one.item.where} is stored with different content (id {one.id!r}). The log is immutable: choose "
                    "another scope, or delete the conversation and import it again"
                )
        # Only rows up to the tail count: a concurrent import may have appended more since.
        rows = {id_: row for id_, row in rows.items() if row.message.ordinal <= tail.messages}
        found = [one for one in self._messages if one.id in rows]
        if new := len(self._messages) - len(found):
            if found and found[-1] is not self._messages[len(found) - 1]:
                missing = next(one for one in self._messages if one.id not in rows)
                raise InvalidInputError(
                    f"{missing.item.where} is missing in the log, but messages after it are stored. The log is "
                    "immutable: delete the conversation and import it again"
                )
            if others := tail.messages - len(found):
                raise InvalidInputError(
                    f"the conversation has {others} messages that are not in the record, so the {new} missing ones "
                    "would come after them; choose another scope, or delete the conversation first"
                )
        if any(left > right for left, right in pairwise(rows[one.id].message.ordinal for one in found)):
            raise InvalidInputError("the conversation has these messages in another order; choose another scope")
        return _Existing(len(found), tail.messages, tail.sources_through)

    async def _rows(
        self, services: Services, cached: CachedConversation, messages: Sequence[ReadyMessage]
    ) -> Mapping[str, StoredMessageRow]:
        ids = [one.id for one in messages]
        rows: dict[str, StoredMessageRow] = {}
        for start in range(0, len(ids), MAX_IDS):
            rows |= await services.reader.messages_by_id(cached, ids[start : start + MAX_IDS])
        return rows

    async def _write(self, services: Services, existing: _Existing, result: ImportResult) -> None:
        """Append the missing messages batch by batch. A rewind after a batch is repeated before the next one."""
        done = 0
        for batch in batches_of(self._record, self._messages):
            new = batch.messages[max(0, existing.known - done) :]
            done += len(batch.messages)
            if new:
                if batch.reserve_to:
                    await self._reserve(services, batch.reserve_to, batch.at)
                result.written += await self._append(services, new, batch.at, result)
            # An earlier run that was killed can only have missed the rewind after its last message.
            if batch.rewind_from and (new or existing.messages == existing.known == done):
                await self._rewind(services, batch)

    async def _append(
        self, services: Services, messages: Sequence[ReadyMessage], at: datetime | None, result: ImportResult
    ) -> int:
        """Append messages as one entry, or in halves if one cannot hold them; return the number written."""
        given = [one.message for one in messages]
        try:
            with as_of(at):
                receipt = await services.writer.append(self._scope, given, renumber=True)
        except BatchTooLargeError:
            if len(messages) == 1:
                raise
            half = len(messages) // 2
            first = await self._append(services, messages[:half], at, result)
            return first + await self._append(services, messages[half:], at, result)
        for id_, numbers in receipt.renumbered.items():
            shown = ", ".join(f"{old} is {new} now" for old, new in list(numbers.items())[:5])
            more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
            if not self._has_numbers(id_):
                result.changed.append(f"message {id_!r} came with source ids already in use: {shown}{more}")
        return receipt.written

    def _has_numbers(self, id_: str) -> bool:
        """Return True if the record itself names the source ids of a message."""
        return any(one.id == id_ and one.item.sources for one in self._messages)

    async def _reserve(self, services: Services, through: int, at: datetime | None) -> None:
        """Reserve source ids up to `through`, as they were in the exported conversation."""
        cached = await services.reader.find(self._scope)
        used = (await services.reader.tail(cached)).sources_through if cached else 0
        if through > used:
            with as_of(at or self._last_date()):
                await services.writer.reserve(self._scope, through - used)

    async def _rewind(self, services: Services, batch: Batch) -> None:
        first = next((one for one in self._messages if one.position >= batch.rewind_from), None)
        if first is not None:
            with as_of(batch.at):
                await services.rewinder.rewind(self._scope, first.id)

    async def _check_sources(self, services: Services, result: ImportResult) -> None:
        """Report sources whose ids differ from the record, because answers cite them."""
        numbered = [one for one in self._messages if one.item.sources]
        cached = await services.reader.find(self._scope) if numbered else None
        if cached is None:
            return
        rows = await self._rows(services, cached, numbered)
        for one in numbered:
            numbers = rows[one.id].message.sources if one.id in rows else one.item.sources
            if numbers != one.item.sources:
                result.changed.append(f"{one.item.where}: its sources were {one.item.sources}, now {numbers or 'none'}")

    async def _describe(self, services: Services) -> None:
        """Set title and metadata, unless the conversation already has them."""
        record = self._record
        if record.title is None and not record.metadata:
            return
        info = await services.directory.info(self._scope)
        title = record.title if info.title is None and record.title is not None else ...
        metadata = dict(record.metadata) if not info.metadata and record.metadata else ...
        if title is not ... or metadata is not ...:
            with as_of(self._last_date()):
                await services.directory.update(self._scope, title=title, metadata=metadata)

    async def _annotate(self, services: Services) -> None:
        """Set annotations. Values that a message already has are kept."""
        for one in self._messages:
            if one.item.annotations:
                stored = (await services.annotator.get(self._scope, [one.id])).get(one.id, {})
                if new := {name: value for name, value in one.item.annotations.items() if name not in stored}:
                    await services.annotator.annotate(self._scope, one.id, new)

    def _last_date(self) -> datetime | None:
        """Return the date of the last message, so that metadata does not make the conversation newer."""
        return next((one.item.at for one in reversed(self._messages) if one.item.at), None)
