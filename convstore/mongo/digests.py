"""Read digests, totals and rewound ranges from the ``log`` collection, to compare messages.

Floor 2; `append.resent_history` calls it. Texts, stubs and sources stay on the server, so a message costs about 150
bytes, whatever its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from convstore.log.entry import Entry
from convstore.messages.encoding import DIGEST_BYTES
from convstore.mongo.documents import entry_from
from convstore.mongo.driver import Driver, driver_errors
from convstore.mongo.key_ranges import between
from convstore.mongo.keys import LOG, entry_range

__all__ = ["Digests"]

_BATCH, _MANY = 1_000, 150
_NOT_READ = ("body", "digest", "arguments", "stub", "sources", "payload")
_PROJECTION = {"sources": 0, "lookup": 0, "kept_source_ids": 0} | {f"messages.{name}": 0 for name in _NOT_READ}


class Digests:
    """Commands on the ``log`` collection that read no content."""

    def __init__(self, driver: Driver, *, prefix: str = "") -> None:
        self._log = driver.collection(prefix + LOG)

    async def newest(self, conversation: str, *, before: int | None = None, limit: int) -> list[Entry]:
        """Return the last entries, or those before a number, in order: totals and rewound ranges, but no content.

        One command up to a thousand entries.
        """
        span = entry_range(conversation, before=before)
        async with driver_errors():
            found = self._log.find(between(conversation, *span), _PROJECTION).sort("_id", -1)
            documents = await found.limit(limit).batch_size(_BATCH).to_list(None)

        def made() -> list[Entry]:
            return [entry_from(_filled(document)) for document in reversed(documents)]

        return await asyncio.to_thread(made) if len(documents) > _MANY else made()


def _filled(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an entry's document with empty bodies; a damaged one is returned unchanged."""
    messages = document.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return document
    return {**document, "messages": [{**message, "body": "", "digest": bytes(DIGEST_BYTES)} for message in messages]}
