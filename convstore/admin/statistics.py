"""Compute the statistics of all conversations, or of those with some scope values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date

from convstore.mongo.heads import Heads, ListedHead
from convstore.mongo.keys import ANNOTATIONS, DRAFTS, LOG, SEARCH, SUMMARIES, is_conversation_id
from convstore.mongo.parallel import in_parallel
from convstore.mongo.statistics import DailySize, Statistics
from convstore.values.plain import slices
from convstore.values.reports import Growth, StoreStats
from convstore.values.scope import Scope

_AT_ONCE = 200
_COLLECTIONS = (LOG, SUMMARIES, ANNOTATIONS, DRAFTS, SEARCH)
_KINDS = ("entries", "payloads", *_COLLECTIONS[1:])


class StatsReader:
    """Counts conversations and measures their documents."""

    def __init__(self, heads: Heads, statistics: Statistics) -> None:
        self._heads = heads
        self._statistics = statistics

    async def read(self, partial_scope: Scope, *, sizes: bool, budget: int | None) -> StoreStats:
        """Return the statistics; see `ConversationStore.stats`."""
        heads = [head async for head in self._heads.each(dict(partial_scope))]
        ids = _conversations(heads) if partial_scope else None
        summaries = await self._summaries(ids)
        folded = {id_: before - shown for id_, (before, shown) in summaries.items()}
        stats = StoreStats(
            conversations=len(heads),
            damaged=sum(head.damage is not None for head in heads),
            messages=sum(head.totals.active for head in heads),
            turns=sum(head.totals.turns for head in heads),
            tokens=sum(head.totals.tokens for head in heads),
            saved_by_stubs=sum(head.totals.tokens - head.totals.view_tokens for head in heads),
            saved_by_summaries=sum(folded.values()),
            saved_by_budget=_saved_by_budget(heads, folded, budget),
            summarized=len(summaries),
        )
        if not sizes:
            return stats
        amounts = await self._amounts(ids)
        return stats.model_copy(
            update={"bytes": _bytes(amounts), "growth": _growth(heads, amounts)}
        )

    async def _amounts(self, ids: Sequence[str] | None) -> list[DailySize]:
        """Measure the collections, for all conversations or for each of some."""
        amounts: list[DailySize] = []
        if ids is None:
            for collection in _COLLECTIONS:
                amounts += await self._statistics.amounts(collection, None)
            return amounts
        for part in slices(ids, _AT_ONCE):
            places = [(collection, id_) for id_ in part for collection in _COLLECTIONS]
            measured = await in_parallel(lambda place: self._statistics.amounts(*place), places)
            for found in measured:
                amounts += found
        return amounts

    async def _summaries(self, ids: Sequence[str] | None) -> dict[str, tuple[int, int]]:
        """Return for each conversation the sizes of the messages that its summary covers, and of the summary."""
        if ids is None:
            return await self._statistics.summaries(None)
        found: dict[str, tuple[int, int]] = {}
        for part in slices(ids, _AT_ONCE):
            found |= await self._statistics.summaries(part)
        return found


def _conversations(heads: Sequence[ListedHead]) -> list[str]:
    """Return the valid ids in heads; a damaged id could be a prefix of another one and select its documents."""
    return [head.head.conversation for head in heads if is_conversation_id(head.head.conversation)]


def _saved_by_budget(
    heads: Sequence[ListedHead], folded: Mapping[str, int], budget: int | None
) -> int:
    """Return the tokens by which views, with summaries but without a budget, would exceed the budget."""
    if budget is None:
        return 0
    views = [head.totals.view_tokens - folded.get(head.head.conversation, 0) for head in heads]
    return sum(max(0, view - budget) for view in views)


def _bytes(amounts: Sequence[DailySize]) -> dict[str, int]:
    """Return the sizes by kind."""
    sizes: dict[str, int] = dict.fromkeys(_KINDS, 0)
    for amount in amounts:
        sizes[amount.kind] += amount.size
    return sizes


def _growth(heads: Sequence[ListedHead], amounts: Sequence[DailySize]) -> list[Growth]:
    """Return the growth on each day with a new conversation or entry, in order."""
    conversations = Counter(head.head.created_at.date() for head in heads if not head.damage)
    messages = Counter[date]()
    sizes = Counter[date]()
    for amount in amounts:
        if amount.kind == "entries" and amount.day:
            day = date.fromisoformat(amount.day)
            messages[day] += amount.messages
            sizes[day] += amount.size
    return [
        Growth(day=day, conversations=conversations[day], messages=messages[day], bytes=sizes[day])
        for day in sorted({*conversations, *messages})
    ]
