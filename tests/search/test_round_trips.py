"""A search waits for the server as seldom as promised, whatever the end of the log needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fixture_types import Client
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pymongo.asynchronous.cursor import AsyncCursor

from convstore import Conversation, ConversationStore
from convstore.integration import host_of
from convstore.testing.samples import new_id, rag_turn

TURNS = 100
"""Turns of the event loop without a new read, or anything to wait for, after which all reads of a round trip began."""


class Trips:
    """Holds reads back until no more of them begin, and counts how often."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._busy = 0

    async def begin(self) -> None:
        """Wait for the reads that begin concurrently."""
        loop = asyncio.get_running_loop()
        self._waiting.append(loop.create_future())
        if len(self._waiting) == 1:
            loop.call_soon(self._watch, TURNS, 1)
        await self._waiting[-1]

    async def finish(self, work: Awaitable[Any]) -> Any:
        """Await a read, or work in a thread: reads may follow from it."""
        self._busy += 1
        try:
            return await work
        finally:
            self._busy -= 1

    def _watch(self, turns: int, before: int) -> None:
        waiting = len(self._waiting)
        if turns or self._busy:
            left = TURNS if self._busy or waiting > before else turns - 1
            asyncio.get_running_loop().call_soon(self._watch, left, waiting)
            return
        self.count += 1
        for future in self._waiting:
            future.set_result(None)
        self._waiting = []


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    """Count the round trips of finds from now on."""
    counted = Trips()
    send: Callable[..., Any] = AsyncCursor._send_message
    to_thread: Callable[..., Any] = asyncio.to_thread

    async def send_later(cursor: Any, operation: Any) -> None:
        await counted.begin()
        await counted.finish(send(cursor, operation))

    monkeypatch.setattr(AsyncCursor, "_send_message", send_later)
    monkeypatch.setattr(
        asyncio, "to_thread", lambda *work, **named: counted.finish(to_thread(*work, **named))
    )
    return counted


def escaped_turn(number: int) -> list[BaseMessage]:
    """Return a turn whose sources are stored with escapes, outside the entry."""
    call = {"name": "lookup", "args": {}, "id": f"call-{number}"}
    text = f'"Orcas" of pod {number}:\n' + "They hunt together.\n" * 100
    found = [Document(text, metadata={"title": f"Pod {number}"}), Document("Seals\nbark. " * 100)]
    return [
        HumanMessage(f"Pod {number}?", id=new_id()),
        AIMessage("", id=new_id(), tool_calls=[call]),
        ToolMessage("2 hits", id=new_id(), tool_call_id=call["id"], name="lookup", artifact=found),
        AIMessage("Orcas hunt.", id=new_id()),
    ]


async def sealed_conversation(
    database: Any, turn: Callable[[int], list[BaseMessage]]
) -> Conversation:
    """Return a conversation with a segment, and a turn after it."""
    store = ConversationStore(database)
    await store.setup()
    chat = store.conversation(user_id=new_id(), thread_id="t")
    for number in range(3):
        await chat.append(turn(number))
    sealer = (await host_of(store).services()).sealer
    await sealer.seal(tuple(chat.scope.items()))
    await chat.append(turn(3))
    return chat


def plain_turn(number: int) -> list[BaseMessage]:
    """Return a turn whose sources are ranges of its result."""
    return rag_turn(f"{number}: orcas?", words=200)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("turn", "rewound"),
    [
        pytest.param(escaped_turn, True, id="escaped, rewound"),
        pytest.param(escaped_turn, False, id="escaped"),
        pytest.param(plain_turn, True, id="plain, rewound"),
        pytest.param(plain_turn, False, id="plain"),
    ],
)
async def test_two_round_trips_and_one_for_an_unknown_conversation(
    client: Client,
    database_name: str,
    turn: Callable[[int], list[BaseMessage]],
    trips: Trips,
    rewound: bool,
) -> None:
    """With large results in segments and after them, stored with escapes or not, and with a rewind between."""
    chat = await sealed_conversation(client[database_name], turn)
    if rewound:
        await chat.append(HumanMessage("And bees?", id="bees"))
        await chat.rewind(before_id="bees")
    store = ConversationStore(client[database_name])
    await store.setup()
    other = store.conversation(**chat.scope)
    for expected in (3, 2):
        trips.count = 0
        hits = await other.search("what about orcas of pod")
        assert {hit.ordinal // 4 for hit in hits} >= {0, 1, 2, 3}
        assert trips.count == expected
