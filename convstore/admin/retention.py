"""Ends conversations: one, all of a user, or those that nobody has written to for long; and removes what is left.

Layer 4. First the head is replaced by a tombstone, so that the conversation cannot be found any more, then everything
in it is removed. Another process may still know the old id, so the tombstone stays until all that such a process may
have written is removed in a second sweep, and for a day more until a third one: a network that was cut, or a process
that was stopped, may deliver a command long after its caller gave it up. Whatever breaks off in the middle is finished
by the next call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial

from convstore.exceptions import CorruptDocumentError, InvalidInputError
from convstore.mongo.annotations import Annotations
from convstore.mongo.keys import HEADS
from convstore.mongo.log import Log
from convstore.mongo.summaries import Summaries
from convstore.mongo.tombstones import HeadKey, Tombstones
from convstore.runtime.clock import APPEND_SECONDS, ID_LIFETIME, Clock
from convstore.runtime.parallel import in_parallel
from convstore.values.models import ErasureReceipt
from convstore.values.scope import Scope

__all__ = ["LEAST_AGE", "Retention"]

LEAST_AGE = timedelta(minutes=5)
"""No policy may be shorter. A process that writes without a look at the head has opened it less than 10 seconds ago; so
a closed head that is older than this can be replaced without losing what is just being written."""

_SWEEP_AFTER = timedelta(seconds=APPEND_SECONDS + ID_LIFETIME + 5)
"""By then every append that did not know of a deletion has ended."""

_SWEEP_AGAIN_AFTER = timedelta(hours=24)

_BATCH = 200
_EMPTY_RECEIPT = ErasureReceipt()


class Retention:
    """Ends conversations and says what was removed."""

    def __init__(
        self,
        tombstones: Tombstones,
        log: Log,
        annotations: Annotations,
        summaries: Summaries,
        *,
        clock: Clock,
        forget: Callable[[dict[str, str]], None],
    ) -> None:
        self._tombstones, self._log = tombstones, log
        self._annotations, self._summaries = annotations, summaries
        self._clock, self._forget = clock, forget

    async def delete(self, scope: Scope) -> ErasureReceipt:
        """End one conversation; see `Conversation.delete`."""
        head = await self._tombstones.find(dict(scope))
        if head and not head.conversation:
            raise CorruptDocumentError(head.key, "it does not say which conversation it is of", collection=HEADS)
        receipt = await (self._end(head) if head else self._finish(scope))
        self._forget(dict(scope))  # though another process was quicker
        await self.sweep()
        return receipt

    async def erase(self, partial_scope: Scope, *, dry_run: bool) -> ErasureReceipt:
        """End all conversations with these scope values; see `ConversationStore.erase`."""
        receipt, after, damaged = _EMPTY_RECEIPT if dry_run else await self._finish(partial_scope), "", ""
        end = self._count if dry_run else self._end
        while heads := await self._tombstones.page(dict(partial_scope), after=after, limit=_BATCH):
            damaged = damaged or next((head.key for head in heads if not head.conversation), "")
            receipt = _sum([receipt, *await in_parallel(end, [head for head in heads if head.conversation])])
            after = heads[-1].key
        if not dry_run:
            await self.sweep()
        if damaged:
            problem = (
                f"it does not say which conversation it is of; all others are {'counted' if dry_run else 'erased'}"
            )
            raise CorruptDocumentError(damaged, f"{problem}: {receipt}", collection=HEADS)
        return receipt

    async def prune(self, partial_scope: Scope, *, older_than: timedelta, dry_run: bool) -> ErasureReceipt:
        """End the conversations that nobody has written to for long; see `ConversationStore.prune`."""
        if not isinstance(older_than, timedelta) or older_than < LEAST_AGE:
            raise InvalidInputError(f"older_than is a timedelta of at least {LEAST_AGE}, not {older_than!r}")
        try:
            before = self._clock.now() - older_than
        except OverflowError:
            raise InvalidInputError(f"older_than goes back before the year 1: {older_than!r}") from None
        damaged: list[CorruptDocumentError] = []

        async def end(head: HeadKey) -> ErasureReceipt:
            try:
                # Heads lag behind the log by seconds, or longer if a process died.
                is_idle = bool(head.conversation) and await self._is_idle(head, before)
            except CorruptDocumentError as error:
                damaged.append(error)
                is_idle = False
            if not is_idle:
                return _EMPTY_RECEIPT
            return await (self._count(head) if dry_run else self._end(head, pruned=True))

        receipt = _EMPTY_RECEIPT if dry_run else await self._finish(partial_scope)
        async for heads in self._idle(partial_scope, before):
            receipt = _sum([receipt, *await in_parallel(end, heads)])
        if not dry_run:
            await self.sweep()
        if damaged:
            raise damaged[0]
        return receipt

    async def sweep(self, *, most: int | None = None) -> int:
        """Remove what writers in flight added to conversations that ended a while ago; gives how many were looked at.

        Args:
            most: Look at no more; None for all that are due.
        """
        now, examined = self._clock.now(), 0
        while due := await self._tombstones.due(at=now, limit=min(_BATCH, most or _BATCH)):
            await in_parallel(partial(self._sweep, now), due)
            examined += len(due)
            if most:
                break
        return examined

    async def _sweep(self, now: datetime, conversation: str) -> None:
        if await self._tombstones.is_ended(conversation):
            await self._remove(conversation)
        await self._tombstones.swept(conversation, at=now, again=now + _SWEEP_AGAIN_AFTER)

    async def _idle(self, partial_scope: Scope, before: datetime) -> AsyncIterator[list[HeadKey]]:
        last: HeadKey | None = None
        while heads := await self._tombstones.idle(
            dict(partial_scope), at=self._clock.now(), before=before, after=last, limit=_BATCH
        ):
            yield heads
            last = heads[-1]

    async def _is_idle(self, head: HeadKey, before: datetime) -> bool:
        written_at = (await self._log.last_totals(head.conversation)).updated_at
        return written_at is None or written_at < before

    async def _end(self, head: HeadKey, *, pruned: bool = False) -> ErasureReceipt:
        """End a conversation, unless another was quicker or, for a policy, somebody wrote to it."""
        now = self._clock.now()
        if not await self._tombstones.write_tombstone(head, at=now, sweep_at=now + _SWEEP_AFTER, pruned=pruned):
            return _EMPTY_RECEIPT
        self._forget(dict(head.scope))
        return (await self._remove(head.conversation)).model_copy(update={"conversations": 1})

    async def _finish(self, partial_scope: Scope) -> ErasureReceipt:
        """Remove what is left of conversations with these scope values whose end broke off."""
        receipt = _EMPTY_RECEIPT
        for conversation in await self._tombstones.unswept(dict(partial_scope)):
            if await self._tombstones.is_ended(conversation):
                receipt = _sum([receipt, await self._remove(conversation)])
        return receipt

    async def _remove(self, conversation: str) -> ErasureReceipt:
        summaries = await self._summaries.delete(conversation)
        annotations = await self._annotations.delete(conversation)
        entries, chunks = await self._log.delete(conversation)
        return ErasureReceipt(entries=entries, payload_chunks=chunks, summaries=summaries, annotations=annotations)

    async def _count(self, head: HeadKey) -> ErasureReceipt:
        conversation = head.conversation
        entries, chunks = await self._log.count(conversation)
        return ErasureReceipt(
            conversations=1,
            entries=entries,
            payload_chunks=chunks,
            summaries=await self._summaries.count(conversation),
            annotations=await self._annotations.count(conversation),
        )


def _sum(receipts: Sequence[ErasureReceipt]) -> ErasureReceipt:
    names = ErasureReceipt.model_fields
    return ErasureReceipt(**{name: sum(getattr(receipt, name) for receipt in receipts) for name in names})
