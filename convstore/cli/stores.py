"""Opens the stores that commands work on.

Talks to ``demo`` and ``replay``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from convstore.store import ConversationStore

__all__ = ["opened"]


@asynccontextmanager
async def opened(uri: str, **options: Any) -> AsyncIterator[ConversationStore]:
    """A store with these options that is set up, closed at the end.

    Raises:
        ConvstoreError: The address cannot be used, or the server does not answer.
    """
    async with await ConversationStore.connect(uri, **options) as store:
        await store.setup()
        yield store
