"""Add up all conversations, or those with some scope values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from itertools import chain

from convstore.mongo.heads import Heads, ListedHead
from convstore.mongo.keys import ANNOTATIONS, DRAFTS, LOG, SEARCH, SUMMARIES, is_conversation_id
from convstore.mongo.statistics import Amount, Statistics
from convstore.runtime.background import in_parallel
from convstore.values.reports import Growth, StoreStats
from convstore.values.scope import Scope

_AT_ONCE = 200
_COLLECTIONS = (LOG, SUMMARIES, ANNOTATIONS, DRAFTS, SEARCH)
_KINDS = ("entries", "payloads", *_COLLECTIONS[1:])


class StatsReader:
    """Counts and measures what is stored."""

    def __init__(self, heads: Heads, statistics: Statistics) -> None:
        self._heads, self._statistics = heads, statistics

    async def read(self, partial_scope: Scope, *, sizes: bool, budget: int | None) -> StoreStats:
        """Return the statistics; see `ConversationStore.stats`."""
        heads = [head async for head in self._heads.each(dict(partial_scope))]
        totals = [head.totals for head in heads]
        ids = _conversations(heads) if partial_scope else None
        amounts = await self._amounts(ids) if sizes else []
        summaries = await self._summaries(ids)
        folded = {id_: before - shown for id_, (before, shown) in summaries.items()}
        views = (head.totals.view_tokens - folded.get(head.head.conversation, 0) for head in heads)
        return StoreStats(
            conversations=len(heads),
            damaged=sum(head.damage is not None for head in heads),
            messages=sum(total.active for total in totals),
            turns=sum(total.turns for total in totals),
            tokens=sum(total.tokens for total in totals),
            saved_by_stubs=sum(total.tokens - total.view_tokens for total in totals),
            saved_by_summaries=sum(folded.values()),
            saved_by_budget=0 if budget is None else sum(max(0, view - budget) for view in views),
            summarized=len(summaries),
            bytes={kind: sum(part.size for part in amounts if part.kind == kind) for kind in _KINDS} if sizes else {},
            growth=_growth(heads, amounts) if sizes else [],
        )

    async def _amounts(self, ids: Sequence[str] | None) -> list[Amount]:
        """Measure the collections, for all conversations or for each of some."""

        async def measure(place: tuple[str, str | None]) -> list[Amount]:
            return await self._statistics.amounts(*place)

        conversations: Sequence[str | None] = [None] if ids is None else ids
        places = [(collection, conversation) for conversation in conversations for collection in _COLLECTIONS]
        return [*chain.from_iterable(await in_parallel(measure, places))]

    async def _summaries(self, ids: Sequence[str] | None) -> dict[str, tuple[int, int]]:
        """Return the sizes of current summaries and of what they cover, by conversation."""
        if ids is None:
            return await self._statistics.summaries(None)
        found = dict[str, tuple[int, int]]()
        for start in range(0, len(ids), _AT_ONCE):
            found |= await self._statistics.summaries(ids[start : start + _AT_ONCE])
        return found


def _conversations(heads: Sequence[ListedHead]) -> list[str]:
    """Return the ids in heads; that of a damaged head could be a part of another one, and select its documents."""
    return [head.head.conversation for head in heads if is_conversation_id(head.head.conversation)]


def _growth(heads: Sequence[ListedHead], amounts: Sequence[Amount]) -> list[Growth]:
    """Return the days on which something was written, in order."""
    conversations = Counter(head.head.created_at.date() for head in heads if not head.damage)
    messages, sizes = Counter[date](), Counter[date]()
    for amount in amounts:
        if amount.kind == "entries" and amount.day:
            day = date.fromisoformat(amount.day)
            messages[day] += amount.messages
            sizes[day] += amount.size
    return [
        Growth(day=day, conversations=conversations[day], messages=messages[day], bytes=sizes[day])
        for day in sorted({*conversations, *messages})
    ]
