"""Number the sources of a child, a sub-agent's conversation, in the sequence of its root: the outermost conversation.

The id of a child begins with the id of its root. Its numbers come from exactly that conversation. If the cache has
another root for the scope, another worker has deleted one of the two, and the append begins again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from convstore.append.batch import Batch, BatchLookup, ConversationReplaced
from convstore.append.compose import MAX_AHEAD
from convstore.log.entry import Entry, Totals
from convstore.log.facts.claim import CLAIM, Claim
from convstore.mongo.keys import first_id, root_id
from convstore.mongo.number_pools import MAX_BLOCK, NumberPools
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.values.scope import Scope, root_scope

Write: TypeAlias = Callable[
    [Scope, Batch], Awaitable[tuple[BatchLookup, Entry | None, CachedConversation, Totals]]
]


class ChildNumbers:
    """Reserves and claims numbers for the sources of children.

    Args:
        reader: Reads the logs.
        pools: The numbers that are reserved for children.
        write: Writes a batch to the conversation of a scope. It is injected because the writer calls this class.
    """

    def __init__(self, reader: LogReader, pools: NumberPools, write: Write) -> None:
        self._reader = reader
        self._log = reader.log
        self._cache = reader.cache
        self._pools = pools
        self._write = write

    async def reserve(self, scope: Scope, number: int) -> range:
        """Reserve numbers for a child."""
        outer = root_scope(scope)
        numbers, _ = await self._reserve(outer, await self._reader.find(outer), number)
        return numbers

    async def through(self, child: CachedConversation) -> int:
        """Return the last number of the sequence that a child's sources are numbered in."""
        root = await self._root_of(child)
        return (await self._log.last_totals(root.conversation)).sources_through

    async def numbered(
        self, child: CachedConversation, new: Batch, taken: frozenset[int], through: int
    ) -> Batch:
        """Return a child's batch with numbers for its sources, reserved in the root.

        Numbers beyond `through`, the end of the sequence, that tools or an archive gave are claimed in the root,
        because no index keeps the numbers of several conversations unique. A batch without sources needs no command.
        """
        kept = set(new.kept_source_ids) - taken
        given = [number for number in dict.fromkeys(new.options.numbers) if number not in kept]
        if given and await self._log.taken_source_ids(child.conversation, given):
            given = []
        fixed = {number for number in (*kept, *given) if number <= through + MAX_AHEAD}
        missing = max(0, sum(len(part.sources) for part in new.prepared) - len(fixed))
        claims = tuple(sorted(number for number in fixed if number > through))
        given = [number for number in given if number in fixed]
        if claims:
            await self._claim(child, claims)
        if missing:
            numbers, root = await self._reserve(
                root_scope(child.scope), await self._root_of(child), missing
            )
            self._check_root(child, root)
            given += numbers
        return replace(new, options=replace(new.options, numbers=given), through=through)

    async def _claim(self, child: CachedConversation, claims: tuple[int, ...]) -> None:
        """Claim numbers that the tools of a child gave.

        Raises:
            SourceIdClashError: One of them is taken.
        """
        await self._root_of(child)
        facts = {CLAIM.name: Claim(child.conversation, claims)}
        batch = replace(self._empty(), facts=facts)
        _, _, root, _ = await self._write(root_scope(child.scope), batch)
        self._check_root(child, root)

    async def _reserve(
        self, scope: Scope, root: CachedConversation | None, number: int
    ) -> tuple[range, CachedConversation]:
        """Reserve numbers in the root of a scope; return them and the root.

        Children share blocks of reserved numbers. The blocks grow, because each is an entry that loads of the root
        read. A root without a state was deleted, most likely by another worker.
        """
        given = 0
        if root is not None:
            numbers, had = await self._take(root.conversation, number)
            if numbers:
                return numbers, root
            if had is None:
                self._cache.forget(root)
                found = await self._reader.find(scope)
                if found is not None and found.conversation != root.conversation:
                    return await self._reserve(scope, found, number)
            given = had or 0
        size = max(number, min(given, MAX_BLOCK))
        _, _, written, tail = await self._write(scope, replace(self._empty(), reserve=size))
        block = last_numbers(tail, size)
        # in another conversation `given` would count numbers of the deleted root
        if root is None or written.conversation == root.conversation:
            await self._pools.fill(written.conversation, block[number:], given=given + size)
        return block[:number], written

    async def _take(self, conversation: str, number: int) -> tuple[range, int | None]:
        """Take numbers that no source has from the pool of a conversation; see `NumberPools.take`."""
        while True:
            numbers, given = await self._pools.take(conversation, number)
            if not numbers or not await self._log.taken_source_ids(conversation, numbers):
                return numbers, given

    async def _root_of(self, child: CachedConversation) -> CachedConversation:
        """Return the root of a child."""
        return self._check_root(child, await self._reader.find(root_scope(child.scope)))

    def _check_root(
        self, child: CachedConversation, root: CachedConversation | None
    ) -> CachedConversation:
        """Return the root that was found if it is the root of the child.

        Raises:
            ConversationReplaced: It is not the root of the child, because one of the two conversations was deleted.
        """
        if root is not None and first_id(root.conversation) == root_id(child.conversation):
            return root
        if root is not None:
            self._cache.forget(root)
        raise ConversationReplaced

    def _empty(self) -> Batch:
        return Batch((), self._reader.codec, self._reader.counter, for_child=True)


def last_numbers(tail: Totals, number: int) -> range:
    """Return the last source ids of a log, which an entry reserved."""
    return range(tail.sources_through - number + 1, tail.sources_through + 1)
