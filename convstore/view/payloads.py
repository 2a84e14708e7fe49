"""Reads the payloads that a view shows and caches them for the next view.

A payload never changes, so a payload that this store appended or showed before costs no round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convstore.log.entry import PayloadRef
from convstore.log.rows import Row, is_finished
from convstore.runtime.cache import CachedConversation, CachedPayload, ConversationCache
from convstore.runtime.log_reader import LogReader


class ShownPayloads:
    """Reads and caches payloads for the views of a store."""

    def __init__(self, reader: LogReader, conversations: ConversationCache) -> None:
        self._reader, self._cache = reader, conversations

    async def read(
        self,
        cached: CachedConversation,
        rows: Sequence[Row],
        needed: Sequence[tuple[str, PayloadRef]],
        *,
        keep: bool = True,
    ) -> tuple[dict[str, str], list[PayloadRef]]:
        """Return the texts that a view of these rows needs, by message id, and the payloads read from the database.

        Raises:
            CorruptDocumentError: A chunk is missing or damaged.
        """
        # Taken before reading: an append that finishes during the read may drop cached payloads.
        kept = self._cache.payloads.get(cached) or {}
        if not needed and not kept:
            return {}, []
        cached_texts = {
            id_: kept[id_].text for id_, ref in needed if id_ in kept and len(kept[id_].text) >= ref.ends[-1]
        }
        missing = {id_: ref for id_, ref in needed if id_ not in cached_texts}
        read = await self._reader.payloads(cached, list(missing.values()))
        texts = cached_texts | dict(zip(missing, read, strict=True))
        payloads = {id_: texts[id_][: ref.ends[-1]] for id_, ref in needed}
        if keep:
            self._keep(cached, rows, payloads, before=kept)
        return payloads, list(missing.values())

    def _keep(
        self,
        cached: CachedConversation,
        rows: Sequence[Row],
        payloads: Mapping[str, str],
        *,
        before: Mapping[str, CachedPayload],
    ) -> None:
        """Cache the payloads that this view shows and those appended while it was read."""
        current = None if is_finished(rows) else rows[-1].turn
        shown = {
            row.message.id: CachedPayload(
                payloads[row.message.id],
                row.message.payload.shown if row.message.payload and not row.message.stub else 0,
                is_lasting=row.turn != current,
            )
            for row in rows
            if row.message.id in payloads
        }
        appended = self._cache.payloads.get(cached) or {}
        kept = shown | {id_: one for id_, one in appended.items() if id_ not in before}
        self._cache.keep_payloads(cached, kept)
