"""Add up all conversations, or those with some scope values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date

from convstore.mongo.keys import ANNOTATIONS, LOG, SEARCH, SUMMARIES
from convstore.mongo.statistics import Amount, HeadTotals, Statistics
from convstore.runtime.open_heads import OpenHeads
from convstore.values.reports import Growth, StoreStats
from convstore.values.scope import Scope

_AT_ONCE = 200
_COLLECTIONS = (LOG, SUMMARIES, ANNOTATIONS, SEARCH)
_KINDS = ("entries", "payloads", SUMMARIES, ANNOTATIONS, SEARCH)


class StatsReader:
    """Counts and measures what is stored."""

    def __init__(self, statistics: Statistics, open_heads: OpenHeads) -> None:
        self._statistics, self._open_heads = statistics, open_heads

    async def read(self, partial_scope: Scope, *, sizes: bool, budget: int | None) -> StoreStats:
        """Return the statistics; see `ConversationStore.stats`."""
        await self._open_heads.flush(partial_scope)
        heads = [head async for head in self._statistics.heads(dict(partial_scope))]
        amounts = await self._amounts(heads if partial_scope else None) if sizes else []
        groups = _batches(heads if partial_scope else None)
        summaries = {id_: one for group in groups for id_, one in (await self._statistics.summaries(group)).items()}
        folded = {id_: before - shown for id_, (before, shown) in summaries.items()}
        views = (head.view_tokens - folded.get(head.conversation, 0) for head in heads)
        return StoreStats(
            conversations=len(heads),
            messages=sum(head.messages for head in heads),
            turns=sum(head.turns for head in heads),
            tokens=sum(head.tokens for head in heads),
            saved_by_stubs=sum(head.tokens - head.view_tokens for head in heads),
            saved_by_summaries=sum(folded.values()),
            saved_by_budget=0 if budget is None else sum(max(0, view - budget) for view in views),
            summarized=len(summaries),
            bytes={kind: sum(one.size for one in amounts if one.kind == kind) for kind in _KINDS} if sizes else {},
            growth=_growth(heads, amounts) if sizes else [],
        )

    async def _amounts(self, heads: Sequence[HeadTotals] | None) -> list[Amount]:
        return [
            amount
            for batch in _batches(heads)
            for collection in _COLLECTIONS
            for amount in await self._statistics.amounts(collection, batch)
        ]


def _batches(heads: Sequence[HeadTotals] | None) -> list[list[str] | None]:
    if heads is None:
        return [None]
    ids = [head.conversation for head in heads]
    return [ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE)]


def _growth(heads: Sequence[HeadTotals], amounts: Sequence[Amount]) -> list[Growth]:
    """Return the days on which something was written, in order."""
    conversations = Counter(head.created_at.date() for head in heads)
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
