"""Imports one record into one conversation: finds the stored messages and appends those after them.

Floor 7. Concurrent imports of one record make the same appends in the same order; each is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Literal, TypeAlias

from convstore import BatchTooLargeError, Conversation, InvalidInputError, NotSetUpError, Receipt
from convstore.transfer.prepare import Batch, ReadyMessage, batches_of
from convstore.transfer.records import ConversationRecord
from convstore.values.stamps import ViewStamp

__all__ = ["ConversationImport", "ImportResult", "Outcome"]

Outcome: TypeAlias = Literal["imported", "extended", "unchanged"]

_SHOWN = 5


@dataclass(slots=True)
class ImportResult:
    """Result of importing a record: messages stored already, messages written, and differences from the source."""

    outcome: Outcome = "unchanged"
    known: int = 0
    written: int = 0
    changed: list[str] = field(default_factory=list)


class ConversationImport:
    """Import of one record; with `dry_run`, it only compares, and the database need not be set up."""

    def __init__(
        self, chat: Conversation, record: ConversationRecord, messages: Sequence[ReadyMessage], *, dry_run: bool
    ) -> None:
        self._chat, self._log, self._record, self._messages = chat, chat.log, record, messages
        self._dry_run = dry_run
        # The date of the last message, so that metadata does not make the conversation newer.
        self._last_date = next((one.item.at for one in reversed(messages) if one.item.at), None)

    async def take(self) -> ImportResult:
        """Append the missing messages, or with `dry_run` count them.

        Raises:
            InvalidInputError: The messages conflict with the stored ones. Nothing was written.
            MessageRewoundError: A concurrent import rewound messages of this one; import the record again.
        """
        known, stored = await self._look()
        result = ImportResult(known=known)
        if known < len(self._messages):
            result.outcome = "extended" if known else "imported"
        if self._dry_run:
            result.written = len(self._messages) - known
            return result
        await self._write(known, stored, result)
        if self._record.sources_through:
            await self._log.reserve_sources(self._record.sources_through, at=self._last_date)
        await self._check_sources(result)
        await self._describe()
        await self._annotate()
        if result.written:
            # The import is complete: `prune` may remove the conversation, and listings need not read its log.
            await self._log.close()
        return result

    async def _look(self) -> tuple[int, int]:
        """Count the stored messages of the record, which must be first and last in the log, and all stored ones."""
        try:
            end = await self._log.snapshot()
        except NotSetUpError:
            if not self._dry_run:
                raise
            end = None
        if end is None:
            return 0, 0
        stored = await self._log.find([one.id for one in self._messages])
        for one in self._messages:
            if one.id in stored and stored[one.id].digest != one.digest:
                raise InvalidInputError(
                    f"{one.item.where} is stored with different content (id {one.id!r}). The log is immutable: choose "
                    "another scope, or delete the conversation and import it again"
                )
        # Only messages up to the end count: a concurrent import may have appended more since.
        places = {id_: (one.entry, one.ordinal) for id_, one in stored.items() if one.entry <= end.entries}
        found = [one for one in self._messages if one.id in places]
        if new := len(self._messages) - len(found):
            others = 0
            if end.messages != len(found):  # some may be lost: the ordinals of a repaired log are not dense
                ids = {one.id for one in self._messages}
                others = sum([one.message.id not in ids async for one in self._log.read(end)])
            self._check_order(found, new, others=others)
        if any(left > right for left, right in pairwise(places[one.id] for one in found)):
            raise InvalidInputError("the conversation has these messages in another order; choose another scope")
        return len(found), end.messages

    def _check_order(self, found: Sequence[ReadyMessage], new: int, *, others: int) -> None:
        """Check that the missing messages can be appended after those that were found."""
        if found and found[-1] is not self._messages[len(found) - 1]:
            ids = {one.id for one in found}
            missing = next(one for one in self._messages if one.id not in ids)
            raise InvalidInputError(
                f"{missing.item.where} is missing in the log, but messages after it are stored. The log is "
                "immutable: delete the conversation and import it again"
            )
        if others:
            raise InvalidInputError(
                f"the conversation has {others} messages that are not in the record, so the {new} missing ones "
                "would come after them; choose another scope, or delete the conversation first"
            )

    async def _write(self, known: int, stored: int, result: ImportResult) -> None:
        """Append the missing messages batch by batch. A rewind after a batch is repeated before the next one."""
        done = 0
        for batch in batches_of(self._record, self._messages):
            new = batch.messages[max(0, known - done) :]
            done += len(batch.messages)
            if new:
                if batch.reserve_to:
                    await self._log.reserve_sources(batch.reserve_to, at=batch.at or self._last_date)
                await self._append(new, batch.at, result)
            # An earlier run that was killed can only have missed the rewind after its last message.
            if batch.rewind_from and (new or stored == known == done):
                await self._rewind(batch)

    async def _append(self, messages: Sequence[ReadyMessage], at: datetime | None, result: ImportResult) -> None:
        """Append messages as one entry, or in halves if one cannot hold them."""
        try:
            receipt = await self._log.append([one.message for one in messages], at=at, seen=await self._stamp(messages))
        except BatchTooLargeError:
            if len(messages) == 1:
                raise
            half = len(messages) // 2
            await self._append(messages[:half], at, result)
            await self._append(messages[half:], at, result)
            return
        result.written += receipt.written
        self._note_numbers(receipt, result)

    async def _stamp(self, messages: Sequence[ReadyMessage]) -> ViewStamp | None:
        """Return the stamp of the record for these messages, with the entry that the view has here."""
        stamp = next((one.item.seen for one in messages if one.item.seen), None)
        end = await self._log.snapshot() if stamp else None
        # An archive has no stamps with a summary; a forged one must not name a summary that is not there.
        return stamp and stamp.model_copy(update={"entry": end.entries if end else 0, "summary": ""})

    def _note_numbers(self, receipt: Receipt, result: ImportResult) -> None:
        """Report messages whose source ids were in use, unless the record names their ids: those are compared."""
        for id_, numbers in receipt.renumbered.items():
            if not any(one.id == id_ and one.item.sources for one in self._messages):
                shown = ", ".join(f"{old} is {new} now" for old, new in list(numbers.items())[:_SHOWN])
                more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
                result.changed.append(f"message {id_!r} has source ids that are already in use: {shown}{more}")

    async def _rewind(self, batch: Batch) -> None:
        first = next((one for one in self._messages if one.position >= batch.rewind_from), None)
        if first is not None:
            await self._log.rewind(before=first.id, at=batch.at)

    async def _check_sources(self, result: ImportResult) -> None:
        """Report sources whose ids differ from the record, because answers cite them."""
        numbered = [one for one in self._messages if one.item.sources]
        stored = await self._log.find([one.id for one in numbered]) if numbered else {}
        for one in numbered:
            numbers = stored[one.id].sources if one.id in stored else one.item.sources
            if numbers != one.item.sources:
                result.changed.append(f"{one.item.where}: its sources were {one.item.sources}, now {numbers or 'none'}")

    async def _describe(self) -> None:
        """Set title and metadata, unless the conversation already has them."""
        record = self._record
        if record.title is None and not record.metadata:
            return
        info = await self._chat.info()
        title = record.title if info.title is None and record.title is not None else ...
        metadata = dict(record.metadata) if not info.metadata and record.metadata else ...
        if title is not ... or metadata is not ...:
            await self._log.update(title=title, metadata=metadata, at=self._last_date)

    async def _annotate(self) -> None:
        """Set annotations. Values that a message already has are kept."""
        for one in self._messages:
            if one.item.annotations:
                stored = (await self._chat.annotations([one.id])).get(one.id, {})
                if new := {name: value for name, value in one.item.annotations.items() if name not in stored}:
                    await self._chat.annotate(one.id, **new)
