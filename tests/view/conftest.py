"""Stores of several processes, for tests that compare views with the oracle."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from oracle import count_letters

from convstore import ConversationStore


@pytest.fixture
async def stores(database: Any) -> AsyncIterator[list[ConversationStore]]:
    """Two processes: each has a cache of its own."""
    stores = [ConversationStore(database, token_counter=count_letters) for _ in range(2)]
    yield stores
    for store in stores:
        await store.close()
