"""Tests of search segments: a search that uses segments returns the same hits as a scan of the log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError
from convstore.integration import host_of
from convstore.runtime.clock import Clock
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, rag_turn
from convstore.testing.stored import Stored

__all__ = ["SealContract"]

_QUERIES = (
    "orcas",
    "what about seals",
    "passage 2 on fish",
    "whales1w7",
    "example.org whales",
    "number 12",
    "found",
)


async def _seal(store: ConversationStore, chat: Conversation) -> None:
    """Seal now, as the timer does later."""
    sealer = (await host_of(store).services()).sealer
    await sealer.seal(tuple(chat.scope.items()))


async def _segments(database: Any, chat: Conversation) -> list[dict[str, Any]]:
    return await (await Stored.of(chat, database)).all("search")


async def _same_as_a_scan(
    new_store: NewStore, chat: Conversation, queries: Iterable[str] = _QUERIES
) -> None:
    """Check that searches with and without segments have equal hits."""
    handles = [new_store(search_index=given).conversation(**chat.scope) for given in (True, False)]
    for query in queries:
        hits = [await handle.search(query, limit=50) for handle in handles]
        assert hits[0] == hits[1]


class SealContract:
    """Sealing, and searches that use segments."""

    @pytest.fixture
    def ticking(self) -> tuple[Clock, list[float]]:
        """A clock that a test moves, and its seconds."""
        seconds = [100.0]
        began = datetime.now(UTC)
        clock = Clock(
            now=lambda: began + timedelta(seconds=seconds[0]),
            monotonic=lambda: seconds[0],
            call_later=lambda _seconds, _callback: None,
        )
        return clock, seconds

    async def test_segments_give_the_hits_of_a_scan(
        self, store: ConversationStore, chat: Conversation, new_store: NewStore, database: Any
    ) -> None:
        """Searches with segments return the same hits as a scan of the log, at every stage and after rewinds."""
        dice = random.Random(7)  # noqa: S311 - a test
        topics = ("seals?", "orcas?", "fish?", "whales?")
        for number in range(14):
            turn = rag_turn(
                f"Number {number}: what about {dice.choice(topics)}", words=dice.choice([5, 200])
            )
            await chat.append(turn)
            if dice.random() < 0.3:
                await chat.rewind(before_id=str(turn[dice.randrange(4)].id))
            if dice.random() < 0.2:
                await chat.undo_rewind()
            if dice.random() < 0.6:
                await _seal(store, chat)
                await _same_as_a_scan(new_store, chat, dice.sample(_QUERIES, 2))
        await _same_as_a_scan(new_store, chat)
        segments = await _segments(database, chat)
        assert 1 <= len(segments) <= 8
        assert sum(segment["characters"] for segment in segments) > 10_000

    async def test_very_large_texts_are_searched_up_to_a_size(
        self, store: ConversationStore, chat: Conversation, new_store: NewStore, database: Any
    ) -> None:
        """The longest text of an append is cut, shorter ones are searched completely, with and without segments."""
        words = [f"{number}{'x' * 500}" for number in range(5_000)]
        call = {"name": "read", "args": {}, "id": "call"}
        result = ToolMessage(
            " ".join(["begin", *words, "end"]), id=new_id(), tool_call_id="call", name="read"
        )
        await chat.append(
            [HumanMessage("orcas", id=new_id()), AIMessage("", id=new_id(), tool_calls=[call])]
        )
        await chat.append([result, AIMessage("narwhals", id=new_id())])
        await chat.append([HumanMessage("seals", id=new_id()), AIMessage("seals", id=new_id())])
        await _seal(store, chat)
        assert [segment["until"] for segment in await _segments(database, chat)] == [1, 2, 3]
        await _same_as_a_scan(new_store, chat, ["begin", f"orcas narwhals {words[3_000]}"])
        found = {
            text: [hit.ordinal for hit in await chat.search(text)]
            for text in ("begin", "end", "narwhals")
        }
        assert found == {"begin": [3], "end": [], "narwhals": [4]}

    async def test_what_rests_is_sealed(
        self, new_store: NewStore, database: Any, ticking: tuple[Clock, list[float]]
    ) -> None:
        """A conversation of any length is sealed once no process has appended to it for a minute."""
        clock, seconds = ticking
        store = new_store(clock=clock)
        other = new_store(clock=clock)
        chat, short = (store.conversation(user_id="ada", thread_id=new_id()) for _ in range(2))
        for number in range(70):
            await chat.append(
                [HumanMessage(f"number {number}", id=new_id()), AIMessage("so", id=new_id())]
            )
        await short.append(HumanMessage("hi", id=new_id()))
        sealers = [(await host_of(each_store).services()).sealer for each_store in (store, other)]

        async def sealed(later: float, of: Conversation = chat) -> list[int]:
            seconds[0] += later
            for sealer in sealers:
                sealer.ring()
                await sealer.wait()
            return [segment["until"] for segment in await _segments(database, of)]

        assert [await sealed(59), await sealed(2), await sealed(0, short)] == [[], [70], [1]]
        await (
            new_store(search_index=False)
            .conversation(**short.scope)
            .append(HumanMessage("ho", id=new_id()))
        )
        seconds[0] += 90
        for later, until in ((0, [1]), (61, [1, 2])):
            assert await sealed(later, short) == until
            assert [hit.ordinal for hit in await short.search("ho")] == [2]
        assert [hit.ordinal for hit in await chat.search("12", limit=1)] == [25]
        for number in range(70):
            await chat.append([HumanMessage(f"number {number}", id=new_id())])
        seconds[0] += 59
        await other.conversation(**chat.scope).append(HumanMessage("number 100", id=new_id()))
        assert [await sealed(2), await sealed(59)] == [[70], [70, 141]]
        for opened in (store, other):
            await opened.close()

    async def test_a_store_that_is_closed_seals_what_is_due(
        self, new_store: NewStore, database: Any
    ) -> None:
        """`close` seals the conversations that were searched, without waiting until they are idle."""
        texts = [HumanMessage(f"number {number} " * 900, id=new_id()) for number in range(10)]
        for is_searched, sealed in ((True, [1]), (False, [])):
            store = new_store()
            chat = store.conversation(user_id="ada", thread_id=new_id())
            await chat.append(texts)
            if is_searched:
                await chat.search("number")
            await store.close()
            assert [segment["until"] for segment in await _segments(database, chat)] == sealed

    async def test_a_search_owes_a_seal(self, new_store: NewStore, database: Any) -> None:
        """If a writer was killed before it sealed a log, the next search seals it."""
        chat = new_store(search_index=False).conversation(user_id="ada", thread_id=new_id())
        await chat.append(
            [HumanMessage(f"number {number} " * 900, id=new_id()) for number in range(10)]
        )
        store = new_store()
        assert len(await store.conversation(**chat.scope).search("number 7")) == 10
        sealer = (await host_of(store).services()).sealer
        await sealer.wait()
        assert [segment["until"] for segment in await _segments(database, chat)] == [1]
        await store.close()

    async def test_another_search_index_is_refused(self, new_store: NewStore) -> None:
        """`search_index` must be True or False."""
        with pytest.raises(InvalidInputError, match="search_index"):
            new_store(search_index="across")

    async def test_two_processes_seal_at_once(
        self, store: ConversationStore, chat: Conversation, new_store: NewStore, database: Any
    ) -> None:
        """If two processes seal concurrently, a search has every hit once, and the used segments do not overlap."""
        others = [new_store() for _ in range(3)]
        for number in range(6):
            await chat.append(rag_turn(f"Number {number}: what about orcas?", words=100))
            await asyncio.gather(*(_seal(opened, chat) for opened in (store, *others)))
            await _same_as_a_scan(new_store, chat, ["orcas", f"number {number}"])
        hits = await chat.search("orcas", limit=50)
        assert len({hit.ordinal for hit in hits}) == len(hits) == 24
        await _seal(store, chat)
        assert (await _segments(database, chat))[-1]["until"] == 6

    async def test_a_conversation_that_is_erased_leaves_no_segment(
        self, store: ConversationStore, chat: Conversation, new_store: NewStore, database: Any
    ) -> None:
        """Deleting a conversation removes its segments. Searches in the reused scope ignore a late segment."""
        await chat.append(rag_turn("What about orcas?"))
        await _seal(store, chat)
        [segment] = await _segments(database, chat)
        scope: Any = chat.scope
        assert (await store.erase(dry_run=True, **scope)).search_segments == 1
        receipt = await chat.delete()
        assert (receipt.conversations, receipt.search_segments) == (1, 1)
        await database["search"].insert_one(segment)  # by a process that was slow
        await chat.append(HumanMessage("A new beginning", id=new_id()))
        assert await new_store().conversation(**chat.scope).search("orcas") == []
        await _seal(store, chat)
        await _same_as_a_scan(new_store, chat)
        assert [hit.ordinal for hit in await chat.search("beginning")] == [1]
        await database["search"].delete_one({"_id": segment["_id"]})

    @pytest.mark.parametrize("damage", ["bytes", "version", "hole", "link"])
    async def test_damaged_segments_cost_only_time(
        self,
        store: ConversationStore,
        chat: Conversation,
        new_store: NewStore,
        database: Any,
        damage: str,
    ) -> None:
        """Damaged segments are ignored and the log is scanned; `verify` reports them and builds them again."""
        await chat.append(rag_turn("What about orcas?"))
        await _seal(store, chat)
        await chat.append(rag_turn("What about seals?"))
        [segment] = await _segments(database, chat)
        changed = {
            "bytes": {"sections.terms": segment["sections"]["terms"][:-1]},
            "version": {"version": 0},
            "hole": {"until": 0},
            "link": {"link": segment["link"] + 1},
        }
        await database["search"].update_one({"_id": segment["_id"]}, {"$set": changed[damage]})
        await _same_as_a_scan(new_store, chat, _QUERIES[:2])
        scope: Any = chat.scope
        report = await store.verify(**scope)
        assert (report.search_segments, report.counts) == (1, {"segment": 1})
        assert (await store.verify(repair=True, **scope)).ok
        assert [document["until"] for document in await _segments(database, chat)] == [2]
        assert (await store.verify(**scope)).ok
        await _same_as_a_scan(new_store, chat)

    async def test_analyzers_do_not_disturb_each_other(
        self,
        chat: Conversation,
        new_store: NewStore,
        database: Any,
        monkeypatch: pytest.MonkeyPatch,
        ticking: tuple[Clock, list[float]],
    ) -> None:
        """Each analyzer uses its own segments; those that were not searched for a day are dropped by another's seal."""
        clock, seconds = ticking
        store = new_store(clock=clock)
        await chat.append(rag_turn("What about orcas?"))
        await _seal(store, chat)
        own = await _segments(database, chat)
        monkeypatch.setattr("convstore.mongo.segments.analyzer", lambda: "other")
        await _seal(store, chat)
        await _same_as_a_scan(new_store, chat, _QUERIES[:2])
        both = await _segments(database, chat)
        assert len(both) == 2
        assert own[0] in both
        assert (await store.verify(user_id="ada", thread_id=chat.scope["thread_id"])).ok
        for hours, versions in ((13, 2), (13, 1)):
            seconds[0] += hours * 3_600
            await store.conversation(**chat.scope).search("orcas")
            sealer = (await host_of(store).services()).sealer
            await sealer.wait()
            assert len(await _segments(database, chat)) == versions
        assert [segment["version"] for segment in await _segments(database, chat)] == ["other"]
