"""Sessions for the tests: a store on a real server and one in memory, and no tracing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from agents import set_tracing_disabled

from convstore import ConversationStore
from convstore.ext.openai_agents import ConvstoreSession

set_tracing_disabled(True)  # there is no network


@pytest.fixture(params=["mongod", "memory"])
async def either(request: pytest.FixtureRequest, store: ConversationStore) -> AsyncIterator[ConversationStore]:
    """A store on a real server, and one in memory."""
    if request.param == "mongod":
        yield store
        return
    async with await ConversationStore.connect("memory://") as memory:
        await memory.setup()
        yield memory


@pytest.fixture
def session(either: ConversationStore, scope: dict[str, str]) -> ConvstoreSession:
    """A session that gives everything back."""
    return ConvstoreSession(either, view="all", **scope)
