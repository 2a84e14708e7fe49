"""Sessions for the tests: a store on a real server and one in memory, and no tracing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from agents import set_tracing_disabled

from convstore import ConversationStore
from convstore.ext.openai_agents import ConvstoreSession

set_tracing_disabled(True)  # there is no network


@pytest.fixture
async def memory() -> AsyncIterator[ConversationStore]:
    """A store in memory."""
    async with await ConversationStore.connect("memory://") as memory:
        await memory.setup()
        yield memory


@pytest.fixture
def mongod(store: ConversationStore) -> ConversationStore:
    """A store on a real server."""
    return store


@pytest.fixture(params=["mongod", "memory"])
def either(request: pytest.FixtureRequest) -> ConversationStore:
    """A store on a real server, and one in memory."""
    found: ConversationStore = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def session(either: ConversationStore, scope: dict[str, str]) -> ConvstoreSession:
    """A session that gives everything back."""
    return ConvstoreSession(either, view="all", **scope)
