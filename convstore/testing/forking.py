"""Tests of forks: a fork is a separate conversation that begins with the same messages, whole or not at all."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.conversation import Conversation
from convstore.exceptions import (
    BrokenLogError,
    ConversationDeletedError,
    ForkRefusedError,
    InvalidScopeError,
    MessageRewoundError,
    StoreUnavailableError,
    UnknownMessageError,
)
from convstore.messages.compression import decompress_bytes
from convstore.mongo.copies import Copies
from convstore.mongo.heads import Heads
from convstore.mongo.keys import entry_id
from convstore.testing.fixtures import NewStore, NextCall, ahead, unanswered
from convstore.testing.samples import new_id, rag_turn
from convstore.testing.turn_variants import CALL
from convstore.types import LogItem

__all__ = ["ForkContract"]


def _scope() -> dict[str, str]:
    return {"user_id": new_id(), "thread_id": "fork"}


class ForkContract:
    """`Conversation.fork`."""

    async def test_a_fork_has_the_same_messages_views_sources_and_annotations(
        self, chat: Conversation
    ) -> None:
        """A fork has the messages, view, sources and annotations of its original, and outlives the original."""
        for topic in ("whales", "seals"):
            await chat.append(rag_turn(f"What about {topic}?", words=2_000))
        shown = await chat.load_history()
        [first] = await chat.list_messages(limit=1, after=0)
        await chat.annotate(str(first.message.id), rating=5)
        fork = await chat.fork(key="r", new_scope=_scope())
        assert [message async for message in fork.messages(rewound=True)] == [
            message async for message in chat.messages(rewound=True)
        ]
        assert (await fork.load_history()).messages == shown.messages
        assert await fork.annotations([str(first.message.id)]) == {first.message.id: {"rating": 5}}
        origin = (await fork.info()).forked_from
        assert origin is not None
        assert (origin.conversation_id, origin.ordinal) == ((await chat.info()).conversation_id, 8)
        await chat.delete()
        receipt = await fork.append(rag_turn("And dolphins?"))
        assert (receipt.first, receipt.source_ids) == (9, (7, 9))
        assert [
            source.source_id for source in (await fork.get_sources(source_ids=[4])).sources
        ] == [4]
        assert (await fork.store.verify(**fork.scope)).findings == ()
        listed = await fork.store.list_conversations(user_id=fork.scope["user_id"])
        assert [conversation.forked_from for conversation in listed.conversations] == [origin]

    async def test_a_fork_before_a_message_has_nothing_of_it_and_what_follows(
        self, chat: Conversation, database: Any
    ) -> None:
        """A fork that ends inside a batch stores nothing of the message it ends before, nor of any later one."""
        turn = rag_turn("What about whales?")
        kept, cut = (
            LogItem(kind="mark", data=f"{what} " * 90_000, id=what)
            for what in ("orcas", "walruses")
        )
        last = HumanMessage("And walruses? " * 9_000, id="last")
        early = LogItem(kind="mark", data="seals", id="seals")
        await chat.append(
            [early, *(first := rag_turn("What about seals?")), *turn[:3], kept, turn[3], cut, last]
        )
        await chat.annotate(str(turn[3].id), note="walruses")
        empty = await chat.fork(before_id=str(first[0].id), key="r", new_scope=_scope())
        assert ([item.id async for item in empty.items()], (await empty.info()).message_count) == (
            ["seals"],
            0,
        )
        fork = await chat.fork(before_id=str(turn[3].id), key="r", new_scope=_scope())
        ids = [[message.id async for message in log.messages(rewound=True)] for log in (fork, chat)]
        assert ids[0] == ids[1][:7]
        assert [(item.id, item.data) async for item in fork.items()] == [
            ("seals", "seals"),
            ("orcas", kept.data),
        ]
        await chat.rewind(before_id=str(turn[3].id))
        assert (await fork.load_history()).messages == (await chat.load_history()).messages
        id_ = (await fork.info()).conversation_id
        chunks = [
            row["data"]
            async for row in database["log"].find({"conversation": id_, "data": {"$exists": True}})
        ]
        assert "walruses" not in str([decompress_bytes(chunk, maximum=10**7) for chunk in chunks])
        documents = [
            row
            for name in ("log", "summaries", "annotations")
            async for row in database[name].find({"conversation": id_})
        ]
        assert "walruses" in str(
            [row async for row in database["log"].find({"messages.id": "last"})]
        )
        assert "walruses" not in str(documents)
        assert (await fork.append(rag_turn("And dolphins?"))).source_ids == (7, 9)
        assert (await fork.store.verify(**fork.scope)).findings == ()

    async def test_a_repeated_fork_writes_nothing(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """Two at once make one, also while the other is appended to; another request for its scope is refused."""
        scope = _scope()
        await chat.append(first := rag_turn("What about whales?"))
        await asyncio.gather(
            *(log.fork(key="r", new_scope=scope) for log in (chat, elsewhere)),
            chat.append(rag_turn("And seals?")),
        )
        made = await chat.store.conversation(**scope).info()
        await chat.append(HumanMessage("And walruses?"))
        assert await (await elsewhere.fork(key="r", new_scope=scope)).info() == made
        for other in ({"key": "other"}, {"key": "r", "before_id": str(first[0].id)}):
            with pytest.raises(ForkRefusedError):
                await chat.fork(**other, new_scope=scope)
        another = chat.store.conversation(**_scope())
        free = _scope()
        await another.append(rag_turn("What about dolphins?"))
        for source, new_scope in ((chat, chat.scope), (another, scope)):
            with pytest.raises(ForkRefusedError, match="another conversation"):
                await source.fork(key="r", new_scope=new_scope)
        both = [another.fork(key=key, new_scope=free) for key in ("one", "two")]
        found = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(made).__name__ for made in found) == ["Conversation", "ForkRefusedError"]

    async def test_what_cannot_be_forked_is_refused(
        self, chat: Conversation, database: Any
    ) -> None:
        """In a turn in progress, of a damaged log, before unknown or rewound messages and into a partial scope."""
        scope = _scope()
        async with await chat.turn("q", human="Q") as turn:
            await turn.append(CALL.model_copy())
            with pytest.raises(ForkRefusedError):
                await chat.fork(key="r", new_scope=scope)
        await chat.append(
            [HumanMessage("Q2", id="q2"), AIMessage("A2", id="a2"), HumanMessage("Q3", id="q3")]
        )
        await chat.rewind(before_id="q3")
        for before, error in (("nobody", UnknownMessageError), ("q3", MessageRewoundError)):
            with pytest.raises(error):
                await chat.fork(key="r", before_id=before, new_scope=scope)
        wrong: list[Any] = [
            {"user_id": "u"},
            {**scope, "more": "x"},
            {**scope, "user_id": {"$ne": ""}},
            None,
            {1: "u"},
        ]
        for new_scope in (*wrong, chat.child("a").scope):
            with pytest.raises(InvalidScopeError):
                await chat.fork(key="r", new_scope=new_scope)
        made = chat.store.conversation(**scope)
        assert (await made.info()).created_at is None
        listed = await (await chat.fork(key="r", new_scope=scope)).list_messages()
        assert listed[-1].message.id == "a2"
        damaged = (await chat.info()).conversation_id
        free = _scope()
        await database["log"].delete_one({"_id": entry_id(str(damaged), 2)})
        with pytest.raises(BrokenLogError, match="missing"):
            await chat.fork(key="r", new_scope=free)
        assert (await chat.store.conversation(**free).info()).created_at is None

    @pytest.mark.parametrize("by", ["lost", "age", "id"])
    async def test_an_erasure_of_others_leaves_a_fork_that_is_being_made(
        self, chat: Conversation, database: Any, next_call: NextCall, by: str
    ) -> None:
        """One of lost conversations, or of old ones; erased by its own id, the fork fails and has nothing."""
        scope = _scope()

        async def erase() -> None:
            copy = (await database["heads"].find_one({"copying": True}, sort=[("sweep_at", -1)]))[
                "conversation"
            ]
            if by == "age":
                await chat.store.prune(older_than=timedelta(days=90))
            else:
                await chat.store.erase(*([copy] if by == "id" else []), lost=by == "lost")

        await chat.append(rag_turn("What about whales?"))
        next_call(Heads, "claim", before=erase)
        if by == "id":
            with pytest.raises(ConversationDeletedError):
                await chat.fork(key="r", new_scope=scope)
            assert (await chat.store.conversation(**scope).info()).created_at is None
        else:
            fork = await chat.fork(key="r", new_scope=scope)
            assert len([message async for message in fork.messages(rewound=True)]) == 4

    async def test_a_fork_that_was_given_up_is_invisible_and_swept(
        self,
        chat: Conversation,
        new_store: NewStore,
        database: Any,
        next_call: NextCall,
    ) -> None:
        """The same request makes it later; of a scope that is erased meanwhile nothing stays either."""
        scope = _scope()

        async def copies() -> int:
            tombstones = [
                tombstone
                async for tombstone in database["heads"].find({"copying": {"$exists": True}})
            ]
            ids = [
                tombstone["conversation"]
                for tombstone in tombstones
                if tombstone["head"] == tombstones[-1]["head"]
            ]
            return int(await database["log"].count_documents({"conversation": {"$in": ids}}))

        async def erase() -> None:
            await chat.store.erase(user_id=scope["user_id"])

        await chat.append(rag_turn("What about whales?"))
        meanwhile = ((unanswered, StoreUnavailableError), (erase, ConversationDeletedError))
        for happens, error in meanwhile:
            next_call(Heads, "claim", before=happens)
            with pytest.raises(error):
                await chat.fork(key="r", new_scope=scope)
            assert (await chat.store.conversation(**scope).info()).created_at is None
            assert (
                await chat.store.list_conversations(user_id=scope["user_id"])
            ).conversations == []
            assert await copies() > 0 or happens is erase
            await new_store(clock=ahead(3_600)).erase(user_id=scope["user_id"])
            assert await copies() == 0
        fork = await chat.fork(key="r", new_scope=scope)
        assert (await fork.info()).message_count == 4
        free = _scope()
        next_call(Copies, "annotations", before=chat.delete)
        with pytest.raises(ConversationDeletedError):
            await chat.fork(key="r", new_scope=free)
        assert (await chat.store.conversation(**free).info()).created_at is None
