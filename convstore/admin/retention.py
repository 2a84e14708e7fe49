"""Delete conversations: a single one, all of a user, or idle ones; sweep documents written after a deletion.

First the head is replaced by a tombstone, so that the conversation can no longer be found. Then its state is removed,
so that loads with a cached id notice the deletion, and then all other documents. Another process may still have the
old id cached, so the tombstone stays until a second sweep has removed late writes of such a process. It stays a day
longer until a third sweep, because a broken network or a suspended process may deliver a command long after its caller
timed out. An interrupted deletion is finished by the next call.

A log that a repair replaced has a tombstone, too. Its sweeps move late writes to the log that replaced it; the last
sweep, after 30 days, removes it. Deleting the conversation removes it at once.

The scope is only in the head. A conversation whose head is missing or damaged is called lost: it is deleted by its id,
with all lost conversations, or with everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from convstore.exceptions import CorruptDocumentError, InvalidInputError, StoreError
from convstore.mongo.collection import Collection, Document
from convstore.mongo.heads import EntryRef, Head
from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import HEADS, first_id, is_conversation_id
from convstore.mongo.parallel import in_parallel
from convstore.mongo.states import States
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.background import Background
from convstore.runtime.clock import APPENDS_END_AFTER
from convstore.runtime.log_reader import LogReader
from convstore.values.plain import duration
from convstore.values.reports import ErasureReceipt
from convstore.values.scope import PATH, Scope, check_idle_time

_SWEEP_AGAIN_AFTER = timedelta(hours=24)
_KEPT_FOR = (timedelta(hours=24), timedelta(days=29))
"""Intervals between the sweeps of a replaced log."""

_CLAIMED_FOR = timedelta(minutes=5)
"""Time after which another process may claim a sweep, because the process that claimed it may have died."""

_BATCH = 200
_FEW = 8
_PAUSE = 0.02
"""Seconds between two sweeps in the background, each of which takes about 2 ms of processor time."""

_EMPTY_RECEIPT = ErasureReceipt()

Progress = Callable[[ErasureReceipt], None] | None
"""Called with the receipt so far."""


@dataclass(eq=False)
class Retention:
    """Deletes conversations and returns receipts of the removed documents.

    `parts` are the other collections, by the names in a receipt. `move_late` moves late writes of a replaced log, given
    its tombstone; it is injected, because repairs are loaded only when one is needed. `background` runs sweeps that no
    call awaits; a sweep that is cancelled stays due.
    """

    reader: LogReader
    tombstones: Tombstones
    inspection: Inspection
    states: States
    parts: Mapping[str, Collection]
    move_late: Callable[[Document], Awaitable[None]]
    background: Background = field(default_factory=Background)

    async def delete(self, scope: Scope) -> ErasureReceipt:
        """Delete one conversation; see `Conversation.delete`."""
        head = await self.tombstones.find(dict(scope))
        if head and not head.conversation:
            raise _nameless(head.key)
        try:
            if head:
                return await self._end(head)
            return await self._finish(await self.tombstones.unswept(dict(scope)), dry_run=False)
        finally:
            self.reader.cache.end(dict(scope))  # even if another process deleted it first

    async def erase(
        self,
        partial_scope: Scope,
        *,
        conversation: str = "",
        lost: bool = False,
        dry_run: bool,
        progress: Progress,
    ) -> ErasureReceipt:
        """Delete the selected conversations; see `ConversationStore.erase`.

        Without scope values, id and `lost` these are all conversations, including the lost ones.
        """
        if conversation:
            return await self._erase_one(conversation, dry_run=dry_run)
        if lost:
            marked = await self.tombstones.unswept_lost()
            rest = await self._finish(marked, dry_run=dry_run)
            return await self._erase_lost(rest, dry_run=dry_run, progress=progress)
        receipt = await self._erase_scope(partial_scope, dry_run=dry_run, progress=progress)
        if partial_scope:
            return receipt
        return await self._erase_lost(receipt, is_rest=True, dry_run=dry_run, progress=progress)

    async def _erase_one(self, conversation: str, *, dry_run: bool) -> ErasureReceipt:
        if not is_conversation_id(conversation):
            raise InvalidInputError(
                f"{conversation!r} is not the id of a conversation; `convstore list` and "
                "`convstore doctor` print ids"
            )
        if head := await self.tombstones.find_by_conversation(conversation):
            return await self._end(head, dry_run=dry_run)
        return await self._end_lost(conversation, dry_run=dry_run)

    async def _erase_lost(
        self, receipt: ErasureReceipt, *, is_rest: bool = False, dry_run: bool, progress: Progress
    ) -> ErasureReceipt:
        """Delete logs without a head, and damaged heads, and add them to a receipt.

        With `is_rest` this is the end of an erasure of everything, so the receipt already has the conversations of
        damaged heads.
        """
        async with aclosing(self.inspection.lost_logs()) as conversations:
            async for conversation in conversations:
                ended = await self._end_lost(conversation, is_rest=is_rest, dry_run=dry_run)
                receipt = _sum(receipt, ended)
                _report(progress, receipt)
        async with aclosing(self.inspection.lost_heads()) as heads:
            async for head in heads:
                if head.conversation and is_rest:
                    continue
                if head.conversation:
                    ended = await self._end(head, dry_run=dry_run)
                else:
                    ended = ErasureReceipt(
                        conversations=int(dry_run or await self.inspection.drop_lost_head(head))
                    )
                receipt = _sum(receipt, ended)
                _report(progress, receipt)
        return receipt

    async def _end_lost(
        self, conversation: str, *, is_rest: bool = False, dry_run: bool
    ) -> ErasureReceipt:
        """Delete a conversation without a head, and those of its sub-agents; it is counted if it has a document."""
        found = await self._documents(conversation, dry_run=True)
        counted = {"conversations": int(found != _EMPTY_RECEIPT)}
        if dry_run and is_rest:
            return found.model_copy(update=counted)
        if dry_run or found == _EMPTY_RECEIPT:
            own = found.model_copy(update=counted)
            return _sum(own, await self._end_children(conversation, dry_run=dry_run))
        await self.reader.schema.check()
        await self.tombstones.write_tombstone(
            _headless(conversation), sweep_after=APPENDS_END_AFTER, pruned=False
        )
        self.reader.cache.end_conversation(conversation)
        removed = await self._documents(conversation, dry_run=False)
        own = removed.model_copy(update=counted)
        return _sum(own, await self._end_children(conversation, dry_run=False))

    async def _erase_scope(
        self, partial_scope: Scope, *, dry_run: bool, progress: Progress
    ) -> ErasureReceipt:
        # The children of a deleted conversation still have these scope values, so the pages below have them.
        marked = await self.tombstones.unswept(dict(partial_scope))
        receipt = await self._finish(marked, dry_run=dry_run, is_alone=dry_run)
        after = ""
        damaged = ""
        end = partial(self._end, dry_run=dry_run, is_alone=dry_run)
        while heads := await self.tombstones.page(dict(partial_scope), after=after, limit=_BATCH):
            named: list[Head] = []
            for head in heads:
                if head.conversation:
                    named.append(head)
                else:
                    damaged = damaged or head.key
            receipt = _sum(receipt, *await in_parallel(end, named))
            _report(progress, receipt)
            after = heads[-1].key
        if not dry_run:
            await self.sweep(partial_scope)
        if damaged and partial_scope:
            done = "counted" if dry_run else "erased"
            raise _nameless(damaged, f"; all others are {done}: {receipt}")
        return receipt

    async def prune(
        self, partial_scope: Scope, *, older_than: timedelta, dry_run: bool, progress: Progress
    ) -> ErasureReceipt:
        """Delete idle conversations; see `ConversationStore.prune`."""
        before = self._date_before(older_than)
        damaged: list[CorruptDocumentError] = []

        async def end(head: Head) -> ErasureReceipt:
            try:
                is_idle = await self._is_idle(head, before)
            except CorruptDocumentError as error:
                damaged.append(error)
                return _EMPTY_RECEIPT
            if not is_idle:
                return _EMPTY_RECEIPT
            return await self._end(head, dry_run=dry_run, pruned=True)

        marked = await self.tombstones.unswept(dict(partial_scope), copies=False)
        receipt = await self._finish(marked, dry_run=dry_run)
        last: Head | None = None
        while heads := await self.tombstones.idle(
            dict(partial_scope), before=before, after=last, limit=_BATCH
        ):
            receipt = _sum(receipt, *await in_parallel(end, heads))
            _report(progress, receipt)
            last = heads[-1]
        if not dry_run:
            await self.sweep(partial_scope)
        if damaged:
            raise damaged[0]
        return receipt

    def _date_before(self, older_than: timedelta) -> datetime:
        """Return the current date minus `older_than`.

        Raises:
            InvalidInputError: `older_than` is not a timedelta, or is too short or too long.
        """
        check_idle_time(older_than)
        try:
            return self.reader.clock.now() - older_than
        except OverflowError:
            raise InvalidInputError(
                f"older_than goes back before the year 1: {duration(older_than)}"
            ) from None

    async def _is_idle(self, head: Head, before: datetime) -> bool:
        """Return True if a log was not written to since a date.

        The log is read, because the head may lack the last append of a killed writer.
        """
        if not head.conversation:
            return False
        last_date = await self.reader.log.last_date(head.conversation)
        return last_date is None or last_date < before

    async def sweep(self, partial_scope: Scope = ()) -> None:
        """Run all due sweeps of deleted conversations with these scope values: remove documents of late writers."""
        while due := await self.tombstones.due(dict(partial_scope), limit=_BATCH):
            await in_parallel(self._sweep, due)

    async def sweep_slowly(self) -> None:
        """Run all due sweeps one after the other, with pauses for the calls of users."""
        with suppress(StoreError):  # every call reports it; the next sweep begins a minute later
            while due := await self.tombstones.due({}, limit=_FEW):
                for conversation in due:
                    await self._sweep(conversation)
                    await asyncio.sleep(_PAUSE)

    async def _sweep(self, conversation: str) -> None:
        """Sweep one conversation that is due, with one range delete in each collection. At most eight commands."""
        await self.reader.schema.check()
        tombstone = await self.tombstones.take(conversation, time=_CLAIMED_FOR)
        if tombstone is None:
            return  # another process sweeps it
        is_ended = await self.tombstones.is_ended(conversation, tombstone)
        if is_ended and tombstone.get("successor"):
            await self._sweep_replaced(conversation, tombstone)
            return
        if is_ended:
            await self.tombstones.clear(conversation)
            if tombstone.get("has_children"):  # a child may have begun during the deletion
                await self._end_children(conversation, dry_run=False)
        is_last = bool(tombstone.get("swept"))
        await self.tombstones.swept(
            tombstone, again_after=None if is_last else _SWEEP_AGAIN_AFTER, swept=True
        )

    async def _sweep_replaced(self, conversation: str, tombstone: Document) -> None:
        """Move late writes of a log that a repair replaced; the last sweep removes the log."""
        sweeps = tombstone.get("sweeps", 0)
        if sweeps < len(_KEPT_FOR):
            await self.move_late(tombstone)
            await self.tombstones.swept(tombstone, again_after=_KEPT_FOR[sweeps], sweeps=sweeps + 1)
        else:
            await self.tombstones.clear(conversation)
            await self.tombstones.swept(tombstone, again_after=None)

    async def _end(
        self,
        head: Head,
        *,
        dry_run: bool = False,
        pruned: bool = False,
        is_alone: bool = False,
    ) -> ErasureReceipt:
        """Delete a conversation with those of its sub-agents and with replaced logs, or count the documents to remove.

        With `is_alone` only the conversation itself is counted. Nothing is deleted if another process deleted the
        conversation first or, when pruning, if it was written to meanwhile.
        """
        if not dry_run and not await self._mark(head, pruned=pruned):
            return _EMPTY_RECEIPT
        documents = await self._documents(head.conversation, dry_run=dry_run)
        counted = {"conversations": 1, "sub_agents": int(PATH in head.scope)}
        own = documents.model_copy(update=counted)
        if is_alone:
            return own
        for log in await self._replaced(head):
            if not dry_run:
                await self.tombstones.end_replaced(
                    log, sweep_after=APPENDS_END_AFTER, pruned=pruned
                )
            own = _sum(own, await self._documents(log, dry_run=dry_run))
        if head.has_children:
            own = _sum(own, await self._end_children(head.conversation, dry_run=dry_run))
        return own

    async def _mark(self, head: Head, *, pruned: bool) -> bool:
        """Replace a head by a tombstone; return False if the head changed, so that it must not be deleted."""
        await self.reader.schema.check()  # an erasure of everything may last for hours
        if not await self.tombstones.write_tombstone(
            head, sweep_after=APPENDS_END_AFTER, pruned=pruned
        ):
            return False
        if head.has_key_of_scope:
            self.reader.cache.end(head.scope)
        else:
            self.reader.cache.end_conversation(head.conversation)
        return True

    async def _replaced(self, head: Head) -> list[str]:
        """Return the logs of a conversation that repairs replaced; no command if it was never repaired."""
        if head.conversation == first_id(head.conversation):
            return []
        return await self.tombstones.replaced(head.key)

    async def _end_children(self, conversation: str, *, dry_run: bool) -> ErasureReceipt:
        """Delete or count the sub-agents' conversations of one that is deleted; they cannot be found without it."""
        end = partial(self._end, dry_run=dry_run)
        return _sum(*await in_parallel(end, await self.tombstones.children(conversation)))

    async def _finish(
        self, marked: Sequence[str], *, dry_run: bool, is_alone: bool = False
    ) -> ErasureReceipt:
        """Finish interrupted deletions of conversations that have a tombstone, or only count their documents.

        A conversation that still has its head is skipped; it is deleted or counted by its head.
        """
        is_ended = self.tombstones.has_ended if dry_run else self.tombstones.is_ended
        receipt = _EMPTY_RECEIPT
        for conversation in marked:
            if not await is_ended(conversation):
                continue
            receipt = _sum(receipt, await self._documents(conversation, dry_run=dry_run))
            if not is_alone:
                children = await self._end_children(conversation, dry_run=dry_run)
                receipt = _sum(receipt, children)
        return receipt

    async def _documents(self, conversation: str, *, dry_run: bool) -> ErasureReceipt:
        """Remove the documents of a conversation, or only count them."""
        log = self.reader.log
        if dry_run:
            entries, chunks = await log.count(conversation)
            found = {name: await part.count(conversation) for name, part in self.parts.items()}
        else:
            # first, so that loads with a cached id read the head
            await self.states.remove(conversation)
            entries, chunks = await log.delete(conversation)
            found = {name: await part.delete(conversation) for name, part in self.parts.items()}
        return ErasureReceipt(entries=entries, payload_chunks=chunks, **found)


def _headless(conversation: str) -> Head:
    """Return a placeholder head for a conversation without a head; no document has its key."""
    never = datetime.min.replace(tzinfo=UTC)
    return Head("", conversation, {}, never, never, never, EntryRef())


def _report(progress: Progress, receipt: ErasureReceipt) -> None:
    if progress:
        progress(receipt)


def _nameless(key: str, more: str = "") -> CorruptDocumentError:
    problem = (
        "it does not name its conversation, so the log stays; to remove both, "
        f"run `convstore erase --lost`{more}"
    )
    return CorruptDocumentError(key, problem, collection=HEADS)


def _sum(*receipts: ErasureReceipt) -> ErasureReceipt:
    names = ErasureReceipt.model_fields
    return ErasureReceipt(
        **{name: sum(getattr(receipt, name) for receipt in receipts) for name in names}
    )
