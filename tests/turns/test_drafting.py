"""The draft of a reply, while its writes are slow."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from convstore import ConversationStore
from convstore.exceptions import StoreUnavailableError
from convstore.integration import host_of
from convstore.mongo.drafts import Draft, Drafts
from convstore.turns.drafting import Drafting

_BEGUN = Draft("r1", "owner", 1, "")


class _SlowDrafts(Drafts):
    """Stores drafts in memory: the first one after an event, even if its caller was cancelled meanwhile."""

    def __init__(self, error: Exception | None = None) -> None:
        self.stored = dict[str, str]()
        self.is_asked = asyncio.Event()
        self.may_store = asyncio.Event()
        self._error = error
        self._storing = list[asyncio.Task[None]]()

    async def begin(self, conversation: str, draft: Draft) -> None:
        self._storing.append(asyncio.ensure_future(self._store(conversation, draft)))
        self.is_asked.set()
        await asyncio.shield(self._storing[-1])
        if self._error:
            raise self._error

    async def _store(self, conversation: str, draft: Draft) -> None:
        await self.may_store.wait()
        self.stored[conversation] = draft.text

    async def write(self, conversation: str, draft: Draft) -> None:
        self.stored[conversation] = draft.text

    async def drop(self, conversation: str, draft: Draft) -> None:
        assert draft == _BEGUN
        self.stored.pop(conversation, None)

    @property
    def begun(self) -> int:
        """Return how often a draft was begun."""
        return len(self._storing)

    async def ended(self) -> dict[str, str]:
        """Return what is stored after all commands have come to their end."""
        self.may_store.set()
        await asyncio.gather(*self._storing)
        return self.stored


async def _reply(drafts: Drafts, going: asyncio.Event) -> None:
    """Stream a reply until an event is set."""

    async def look() -> bool:
        return True

    async def check() -> None:
        pass

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    lease: Any = SimpleNamespace(
        conversation="c",
        look=look,
        schema=SimpleNamespace(check=check),
        clock=SimpleNamespace(sleep=sleep),
    )
    async with Drafting(drafts, lease, _BEGUN, lambda: "They do"):
        await going.wait()


@pytest.mark.parametrize("error", [None, StoreUnavailableError("its outcome is unknown")])
async def test_a_reply_that_ends_during_the_first_write_of_its_draft_leaves_none(
    error: Exception | None,
) -> None:
    """The end waits for the write, and then deletes what it may have stored."""
    drafts, going = _SlowDrafts(error), asyncio.Event()
    replying = asyncio.ensure_future(_reply(drafts, going))
    await drafts.is_asked.wait()
    going.set()
    await asyncio.wait({replying}, timeout=0.05)
    assert not replying.done()
    drafts.may_store.set()
    await replying
    assert await drafts.ended() == {}


async def test_a_reply_that_breaks_during_a_write_leaves_its_draft() -> None:
    """A cancelled reply waits for the write as well, and writes nothing twice; the draft is what was said."""
    drafts = _SlowDrafts()
    replying = asyncio.ensure_future(_reply(drafts, asyncio.Event()))
    await drafts.is_asked.wait()
    replying.cancel()
    drafts.may_store.set()
    await asyncio.wait({replying})
    assert (replying.cancelled(), drafts.begun) == (True, 1)
    assert await drafts.ended() == {"c": "They do"}


async def test_only_the_worker_of_a_draft_changes_it() -> None:
    """One whose turn was taken over, or that appended since, leaves the draft that is there; so does another scope."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        drafts = Drafts(host_of(store).driver)
        now = Draft("r1", "owner", 2, "They")
        await drafts.begin("c", now)
        for old in (now._replace(owner="gone"), now._replace(after=1)):
            await drafts.write("c", old._replace(text="Late"))
            await drafts.drop("c", old)
        await drafts.write("other", now._replace(text="Late"))
        await drafts.drop("other", now)
        assert await drafts.find("c") == now
        assert await drafts.among(["other", "c"]) == {"c"}
        assert await drafts.among(["other"]) == set()
        await drafts.drop("c", now)
        assert await drafts.find("c") is None
