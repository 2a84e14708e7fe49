"""Tests of appending: each batch is stored whole, in order and only once (promises 2, 3 and 4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import (
    BatchTooLargeError,
    ContentConflictError,
    NotSetUpError,
    SourceIdClashError,
    StoreClosedError,
)
from convstore.testing.fixtures import NewStore
from convstore.testing.samples import new_id, passages, rag_turn, same_messages

__all__ = ["AppendContract"]


async def _ids(chat: Conversation) -> list[str]:
    return [str(message.id) async for message in chat.messages(rewound=True)]


class AppendContract:
    """Promises 2, 3 and 4."""

    async def test_the_receipt_has_ids_and_ordinals(self, chat: Conversation) -> None:
        """Ordinals are dense from 1, across batches."""
        first = await chat.append([HumanMessage("a", id="a"), AIMessage("b", id="b")])
        second = await chat.append(HumanMessage("c", id="c"))
        assert (first.message_ids, first.first, first.last, first.written) == (("a", "b"), 1, 2, 2)
        assert (second.first, second.last, second.ordinals) == (3, 3, (3,))

    async def test_a_repeated_batch_writes_nothing(self, chat: Conversation) -> None:
        """Appending the same ids again returns the old ordinals."""
        turn = rag_turn("What do whales eat?")
        await chat.append(turn)
        again = await chat.append(turn)
        assert (again.written, again.first, again.last) == (0, 1, 4)
        assert len(await _ids(chat)) == 4

    async def test_a_partly_repeated_batch_writes_the_rest(self, chat: Conversation) -> None:
        """Only the new messages are appended, at the end of the log."""
        turn = rag_turn("What do whales eat?")
        await chat.append(turn[:2])
        receipt = await chat.append(turn)
        assert (receipt.written, receipt.ordinals) == (2, (1, 2, 3, 4))
        assert same_messages([message async for message in chat.messages(rewound=True)], turn)

    async def test_other_content_under_an_id_is_a_conflict(self, chat: Conversation) -> None:
        """Appending other content under a stored id raises ContentConflictError and writes nothing of the batch."""
        await chat.append(HumanMessage("first", id="m"))
        with pytest.raises(ContentConflictError, match="'m'"):
            await chat.append([AIMessage("new", id="n"), HumanMessage("second", id="m")])
        assert await _ids(chat) == ["m"]

    async def test_messages_without_ids_get_them_on_the_callers_objects(
        self, chat: Conversation
    ) -> None:
        """An append sets missing ids on the caller's messages, so a retry with the same objects writes nothing."""
        batch = [HumanMessage("hi"), AIMessage("ho")]
        receipt = await chat.append(batch)
        again = await chat.append(batch)
        assert [message.id for message in batch] == list(receipt.message_ids)
        assert again.written == 0

    async def test_a_key_makes_the_ids_of_dicts(self, chat: Conversation) -> None:
        """A repeated request with the same key writes nothing; another key makes another request."""
        request = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
        first = await chat.append(request, key="request-1")
        again = await chat.append(request, key="request-1")
        other = await chat.append(request, key="request-2")
        assert (first.written, again.written, other.written) == (2, 0, 2)
        assert again.message_ids == first.message_ids

    async def test_two_stores_append_to_one_conversation_without_holes(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Messages of a batch are adjacent; nothing is lost or stored twice when two stores write concurrently."""

        async def write(handle: Conversation, name: str) -> None:
            for number in range(5):
                batch = [
                    HumanMessage(f"{name}{number}.{part}", id=f"{name}-{number}-{part}")
                    for part in range(3)
                ]
                await handle.append(batch)

        await asyncio.gather(
            *(
                write(handle, f"{name}{handle is elsewhere}")
                for handle in (chat, elsewhere)
                for name in "abc"
            )
        )
        ids = await _ids(chat)
        batches = [ids[index : index + 3] for index in range(0, len(ids), 3)]
        assert len(ids) == len(set(ids)) == 90
        assert all(len({id_.rpartition("-")[0] for id_ in batch}) == 1 for batch in batches)

    async def test_readers_see_a_prefix_while_writers_write(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A log read earlier is the beginning of one read later."""
        logs: list[list[str]] = []

        async def read() -> None:
            logs.extend([await _ids(elsewhere) for _ in range(6)])

        async def write(name: str) -> None:
            for number in range(6):
                await chat.append(
                    [
                        HumanMessage("x", id=f"{name}{number}a"),
                        AIMessage("y", id=f"{name}{number}b"),
                    ]
                )

        await asyncio.gather(read(), *(write(name) for name in "abcd"))
        final = await _ids(chat)
        assert all(log == final[: len(log)] for log in logs)
        assert all(len(log) % 2 == 0 for log in logs)

    async def test_a_cancelled_append_can_be_repeated(self, chat: Conversation) -> None:
        """Repeating a cancelled append stores the batch once, even if the cancelled call had already written it."""
        for number in range(8):
            batch = [HumanMessage(f"{number}", id=new_id()), AIMessage("ok", id=new_id())]
            task = asyncio.create_task(chat.append(batch))
            for _ in range(number * 3):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await chat.append(batch)
        ids = await _ids(chat)
        assert len(ids) == len(set(ids)) == 16

    async def test_a_conflict_of_a_key_names_it(self, chat: Conversation) -> None:
        """The error names the key, not the id that was derived from it; messages with own ids are named by these."""
        batch = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        await chat.append(batch, key="request-7")
        with pytest.raises(
            ContentConflictError, match=r"key 'request-7'.*message 1.*new key"
        ) as caught:
            await chat.append([batch[0], {"role": "assistant", "content": "c"}], key="request-7")
        assert (caught.value.key, caught.value.position) == ("request-7", 1)
        await chat.append(AIMessage("d", id="own"))
        with pytest.raises(ContentConflictError, match="'own'") as caught:
            await chat.append([AIMessage("e", id="own")], key="request-8")
        assert (caught.value.key, caught.value.position) == (None, None)

    async def test_a_batch_above_one_megabyte_is_refused(self, chat: Conversation) -> None:
        """Many small messages are refused if their entry would be larger than the server may accept."""
        batch = [HumanMessage("x" * 400) for _ in range(2_500)]
        with pytest.raises(BatchTooLargeError, match="smaller batches"):
            await chat.append(batch)
        assert (await chat.info()).created_at is None

    async def test_source_ids_go_on_across_results(self, chat: Conversation) -> None:
        """Sources are numbered once, in order, unique in the conversation."""
        receipts = [
            await chat.append(rag_turn(f"What about {name}?", sources=4))
            for name in ("seals", "orcas")
        ]
        assert [receipt.source_ids for receipt in receipts] == [(1, 4), (5, 8)]

    async def test_reserved_source_ids_are_nobody_elses(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Two stores that reserve and append concurrently never share a number, and reserved ids are kept."""
        ranges = await asyncio.gather(
            *(handle.reserve_source_ids(3) for handle in (chat, elsewhere) for _ in range(4))
        )
        numbers = [number for ids in ranges for number in ids]
        assert sorted(numbers) == list(range(1, 25))
        items = [{"text": "kept", "source_id": number} for number in ranges[0]]
        receipt = await chat.append(
            [ToolMessage("r", tool_call_id="c", artifact=items), rag_turn("More?")[2]]
        )
        assert receipt.source_ids == (min(ranges[0]), 27)

    async def test_a_taken_source_id_is_refused(self, chat: Conversation) -> None:
        """A tool that numbers its own sources cannot use a number twice."""

        def result() -> ToolMessage:
            items = [{**metadata, "text": text, "source_id": 7} for text, metadata in passages(1)]
            return ToolMessage("one", id=new_id(), tool_call_id="c", artifact=items)

        await chat.append([result()])
        with pytest.raises(SourceIdClashError, match="7"):
            await chat.append([HumanMessage("again"), result()])
        assert (await chat.info()).message_count == 1

    async def test_a_database_without_setup_says_so(self, new_store: NewStore) -> None:
        """Before `setup`, both `ping` and `append` raise NotSetUpError."""
        store = new_store(collection_prefix=f"fresh_{new_id()}_")
        for call in (
            store.ping,
            lambda: store.conversation(user_id="a", thread_id="b").append(HumanMessage("hi")),
        ):
            with pytest.raises(NotSetUpError, match="setup"):
                await call()

    async def test_a_closed_store_says_so(self, new_store: NewStore) -> None:
        """Every call after `close` raises an error."""
        store = new_store()
        await store.setup()
        await store.ping()
        await store.close()
        for call in (store.ping, store.conversation(user_id="a", thread_id="b").load_history):
            with pytest.raises(StoreClosedError, match=r"make a new store$"):
                await call()

    async def test_a_batch_that_was_there_already_leaves_no_payload_behind(
        self, chat: Conversation, elsewhere: Conversation, database: Any
    ) -> None:
        """Chunks that were written before an entry that turned out to be stored already are removed at once."""
        await elsewhere.append(HumanMessage("What about seals?"))
        turn = rag_turn("What about orcas?", sources=6)
        await chat.append(turn)
        assert (await elsewhere.append(turn)).written == 0
        entry = await database["log"].find_one({"messages.id": turn[2].id})
        query = {"conversation": entry["conversation"], "data": {"$exists": True}}
        assert [
            chunk["_id"].split("#")[1] for chunk in await database["log"].find(query).to_list(None)
        ] == [entry["messages"][2]["payload"]["token"]]

    async def test_sources_count_in_the_size_of_an_entry(self, chat: Conversation) -> None:
        """Titles and addresses of thousands of sources count toward the limit of 1 MB."""
        hits = [
            {"title": "é" * 200, "url": "https://a.b/" + "x" * 480, "content": f"text {n}"}
            for n in range(999)
        ]
        results = [
            ToolMessage("x", id=new_id(), tool_call_id="c", name="t", artifact=hits)
            for _ in range(2)
        ]
        with pytest.raises(BatchTooLargeError, match="smaller batches"):
            await chat.append(results)
        assert await _ids(chat) == []
