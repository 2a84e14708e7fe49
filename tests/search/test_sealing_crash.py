"""A process that is killed while it seals loses nothing and doubles nothing."""

from __future__ import annotations

import signal
import uuid
from typing import Any

import pytest
from programs import killed

from convstore import ConversationStore
from convstore.integration import host_of
from convstore.testing.samples import rag_turn

pytestmark = pytest.mark.slow

STEPS = (1, 2, 3, 4)
"""Before and after each of the two writes of a seal: the segment, and the removal of those that it took in."""


async def hits(database: Any, user: str, **options: Any) -> list[Any]:
    """The hits of another process."""
    chat = ConversationStore(database, **options).conversation(user_id=user, thread_id="t")
    return [await chat.search(text, limit=50) for text in ("orcas", "passage 2", "number 3")]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(STEPS, id="one after the other"),
        *(
            pytest.param((step,) * 3, id=f"three times at {step}", marks=pytest.mark.soak)
            for step in STEPS
        ),
    ],
)
async def test_a_kill_at_any_step_of_a_seal(
    database: Any, server_uri: str, steps: tuple[int, ...]
) -> None:
    """Searches give what a scan gives, and the next seal goes on; segments are whole and cover all."""
    user = uuid.uuid4().hex
    store = ConversationStore(database)
    await store.setup()
    chat = store.conversation(user_id=user, thread_id="t")
    services = await host_of(store).services()
    for number, step in enumerate(steps, 1):
        for text in ("seals", "whales"):
            await chat.append(rag_turn(f"Number {number}: what about {text}?", words=40))
            await services.sealer.seal(tuple(chat.scope.items()))
        await chat.append(rag_turn(f"Number {number}: what about orcas?", words=40))
        assert await killed(server_uri, database, f"seal {user} {step}") == [-signal.SIGKILL]
        assert await hits(database, user) == await hits(database, user, search_index=False)
    await chat.append(rag_turn("The last number: what about orcas?", words=40))
    await services.sealer.seal(tuple(chat.scope.items()))
    assert await hits(database, user) == await hits(database, user, search_index=False)
    head = await database["heads"].find_one({"scope.user_id": user})
    segments = (
        await database["search"]
        .find({"conversation": head["conversation"]})
        .sort("_id", 1)
        .to_list(None)
    )
    untils = [segment["until"] for segment in segments]
    assert [int(segment["_id"].split(":")[1]) for segment in segments] == [
        1,
        *(until + 1 for until in untils[:-1]),
    ]
    assert untils[-1] == 3 * len(steps) + 1
    assert (await store.verify(user_id=user)).ok
    await store.close()
