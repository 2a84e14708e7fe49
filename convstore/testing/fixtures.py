"""Fixtures of the contract: a store on the backend's database, and a separate conversation for each test."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest

from convstore.conversation import Conversation
from convstore.exceptions import StoreUnavailableError
from convstore.messages.tool_calls import calls_of, result_id
from convstore.runtime.clock import Clock
from convstore.store import ConversationStore
from convstore.values.models import Turn

__all__ = [
    "ContractFixtures",
    "NewStore",
    "NextCall",
    "ahead",
    "kinds_of",
    "result_id_of",
    "texts_of",
    "turn_of",
    "unanswered",
]

NewStore: TypeAlias = Callable[..., ConversationStore]
"""Makes a store with the given options."""

NextCall: TypeAlias = Callable[..., None]
"""Takes a class and the name of a method, and what happens `before` or `after` its next call (that succeeds)."""

_Event: TypeAlias = Callable[[], Awaitable[Any]] | None


def ahead(seconds: float, *, hurry: float = 1.0) -> Clock:
    """Return a clock that is some seconds ahead, or late if negative; its waits are `hurry` times shorter."""
    return Clock(
        now=lambda: datetime.now(UTC) + timedelta(seconds=seconds),
        sleep=lambda wait: asyncio.sleep(wait / hurry),
    )


async def unanswered() -> None:
    """Raise the error of a server that cannot be reached."""
    raise StoreUnavailableError("no answer")


async def result_id_of(chat: Conversation, call_id: str) -> str:
    """Return the `TurnCall.result_id` of the newest call with an id, in any variant; the id itself without a call."""
    found = call_id
    async for message in chat.messages(rewound=True):
        if any(call.id == call_id for call in calls_of(message)):
            found = result_id(str(message.id), call_id)
    return found


async def turn_of(chat: Conversation, turn_id: str) -> Turn:
    """Return a turn that must exist."""
    turn = await chat.get_turn(turn_id)
    assert turn is not None
    return turn


async def kinds_of(chat: Conversation) -> list[str]:
    """Return the types of the messages of a log."""
    return [message.type async for message in chat.messages(rewound=True)]


async def texts_of(chat: Conversation) -> list[str]:
    """Return the texts of the messages of a log."""
    return [message.text async for message in chat.messages(rewound=True)]


class ContractFixtures:
    """Fixtures of the contract; a backend overrides `database`."""

    @pytest.fixture
    async def database(self) -> Any:
        """A database of the backend, empty or not; overridden by the backend's test class."""
        raise NotImplementedError("override the fixture `database`")

    @pytest.fixture
    async def new_store(self, database: Any) -> AsyncIterator[NewStore]:
        """Makes another store on the same database, like that of another process.

        It is closed after the test, because a store whose clock is ahead would run the sweeps of later tests.
        """
        made: list[ConversationStore] = []

        def make(**options: Any) -> ConversationStore:
            made.append(ConversationStore(database, **options))
            return made[-1]

        yield make
        for store in made:
            await store.close()

    @pytest.fixture
    async def store(self, new_store: NewStore) -> AsyncIterator[ConversationStore]:
        """A store that is set up."""
        store = new_store()
        await store.setup()
        yield store
        await store.close()

    @pytest.fixture
    def chat(self, store: ConversationStore) -> Conversation:
        """An empty conversation."""
        return store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)

    @pytest.fixture
    def alone(self, store: ConversationStore) -> Conversation:
        """An empty conversation, the only one of its user."""
        return store.conversation(user_id=uuid.uuid4().hex, thread_id="t")

    @pytest.fixture
    def elsewhere(self, chat: Conversation, new_store: NewStore) -> Conversation:
        """The same conversation in another worker."""
        return new_store().conversation(**chat.scope)

    @pytest.fixture
    def next_call(self, monkeypatch: pytest.MonkeyPatch) -> NextCall:
        """Runs a function before or after the next call of a method, such as a write of another worker or a failure."""

        def set_up(owner: type, name: str, *, before: _Event = None, after: _Event = None) -> None:
            method = getattr(owner, name)

            async def called(*args: Any, **options: Any) -> Any:
                if before:
                    monkeypatch.setattr(owner, name, method)
                    await before()
                found = await method(*args, **options)
                if after:
                    monkeypatch.setattr(owner, name, method)
                    await after()
                return found

            monkeypatch.setattr(owner, name, called)

        return set_up

    @pytest.fixture
    async def hurried(self, chat: Conversation, new_store: NewStore) -> AsyncIterator[Conversation]:
        """The same conversation in a worker that waits a hundred times shorter."""
        async with new_store(clock=ahead(0, hurry=100)) as store:
            yield store.conversation(**chat.scope)
