"""Tests of deleting, describing, listing and annotating conversations (promise 12)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata

from convstore.conversation import Conversation
from convstore.exceptions import (
    ConversationDeletedError,
    InvalidCursorError,
    InvalidInputError,
    InvalidScopeError,
    UnknownMessageError,
)
from convstore.mongo.heads import Heads
from convstore.runtime.clock import Clock
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore, NextCall, texts_of
from convstore.testing.samples import new_id, rag_turn, same_messages
from convstore.values.models import MessagePreview

__all__ = ["EndContract"]


def _same(moment: datetime) -> datetime:
    return moment


class EndContract:
    """Promise 12, `info`, `update`, `list_conversations`."""

    async def test_a_deleted_conversation_is_removed_and_its_scope_can_be_used_again(
        self, chat: Conversation, database: Any
    ) -> None:
        """All its documents are removed, and new messages in the scope are counted from 1."""
        turn = rag_turn("What about seals?")
        await chat.append(turn)
        before = await database["log"].find_one({"messages.id": turn[2].id})
        await chat.delete()
        left = await database["log"].find({"conversation": before["conversation"]}).to_list(None)
        assert left == []
        assert (await chat.load_history()).messages == []
        assert (await chat.append(turn)).first == 1

    async def test_deleting_nothing_is_fine(self, chat: Conversation) -> None:
        """Deleting a conversation that does not exist succeeds, also when repeated."""
        await chat.delete()
        await chat.delete()

    async def test_other_stores_learn_of_a_deletion(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A store that has the deleted conversation cached loads the new, empty one."""
        await elsewhere.append(HumanMessage("old"))
        await chat.delete()
        assert (await elsewhere.load_history()).messages == []
        await elsewhere.append(HumanMessage("new"))
        assert await texts_of(chat) == ["new"]

    async def test_a_remembered_id_is_checked_after_ten_seconds(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """A process whose cache missed a deletion writes to the new conversation."""
        seconds = [0.0]
        sleeper = new_store(clock=Clock(monotonic=lambda: seconds[0])).conversation(**chat.scope)
        await sleeper.append(HumanMessage("old"))
        await chat.delete()
        seconds[0] = 11.0
        await sleeper.append(HumanMessage("new"))
        assert await texts_of(chat) == ["new"]

    async def test_what_a_writer_in_flight_added_is_swept(
        self, chat: Conversation, new_store: NewStore, database: Any
    ) -> None:
        """Messages of an append that did not know of the deletion are removed by it. The second prune only sweeps."""
        writers = [
            new_store(clock=Clock(monotonic=lambda: 0.0)).conversation(**chat.scope)
            for _ in range(2)
        ]
        for writer in writers:
            await writer.append(HumanMessage("old"))
        await chat.delete()
        for late, passed in zip(writers, (timedelta(seconds=90), timedelta(days=2)), strict=True):
            lost = HumanMessage("too late", id=new_id())
            await late.append(lost)
            later = datetime.now(UTC) + passed
            await new_store(clock=Clock(now=partial(_same, later))).prune(
                older_than=timedelta(days=9_000)
            )
            assert [message async for message in chat.messages(rewound=True)] == []
            assert await database["log"].find({"messages.id": lost.id}).to_list(None) == []

    async def test_info_describes_the_conversation(self, chat: Conversation) -> None:
        """Counts are exact, usage is summed by model, the last message with a text is shown."""
        usage = UsageMetadata(
            input_tokens=10,
            output_tokens=5,
            total_tokens=15,
            input_token_details={"cache_read": 6, "cache_creation": 3},
        )
        for model in ("gpt-4.1", "gpt-4.1", "$small"):
            answer = AIMessage(
                "It\nis  so.", usage_metadata=usage, response_metadata={"model_name": model}
            )
            await chat.append([HumanMessage("q"), answer])
        await chat.append(AIMessage("", usage_metadata=usage))
        info = await chat.info()
        assert (info.scope, info.message_count) == (chat.scope, 7)
        once = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        once |= {"cache_read_tokens": 6, "cache_write_tokens": 3}
        twice = {key: 2 * number for key, number in once.items()}
        assert info.usage == {"gpt-4.1": twice, "$small": once, "unknown": once}
        assert info.last_message == MessagePreview(type="ai", text="It is so.")
        assert info.created_at is not None
        assert info.updated_at is not None
        assert info.created_at <= info.updated_at

    async def test_title_and_metadata_are_kept_apart(self, chat: Conversation) -> None:
        """Fields that are not given stay unchanged; any JSON-like metadata comes back equal."""
        metadata = {"a.b": {"$set": 1}, "tags": ["x"], "\x00": None}
        await chat.update(title="Whales")
        await chat.update(metadata=metadata)
        info = await chat.info()
        assert (info.title, info.metadata) == ("Whales", metadata)
        await chat.update(title=None)
        assert ((await chat.info()).title, (await chat.info()).metadata) == (None, metadata)

    @pytest.mark.parametrize(
        "change", [{"title": 7}, {"metadata": "x"}, {"metadata": {"x": "y" * 200_000}}]
    )
    async def test_a_bad_description_is_refused(
        self, chat: Conversation, change: dict[str, Any]
    ) -> None:
        """`update` raises InvalidInputError for an invalid title or invalid metadata, and writes nothing."""
        with pytest.raises(InvalidInputError):
            await chat.update(**change)
        assert (await chat.info()).created_at is None

    @pytest.mark.parametrize("seconds", [1, 0])
    async def test_conversations_are_listed_newest_first_by_pages(
        self, new_store: NewStore, seconds: int
    ) -> None:
        """Pages list each conversation of a user once, even those with equal dates, and no other user's."""
        start = datetime(2026, 1, 1, tzinfo=UTC)
        ticks = count()
        store = new_store(clock=Clock(now=lambda: start + timedelta(seconds=next(ticks) * seconds)))
        await store.setup()
        user = new_id()
        threads = [f"t{number}" for number in range(7)]
        for thread in threads:
            await store.conversation(user_id=user, thread_id=thread).append(HumanMessage("hi"))
        await store.conversation(user_id=new_id(), thread_id="t").append(HumanMessage("other"))
        seen: list[str] = []
        cursor = None
        for _ in range(3):
            page = await store.list_conversations(user_id=user, limit=3, cursor=cursor)
            seen += [info.scope["thread_id"] for info in page.conversations]
            cursor = page.next_cursor
        assert cursor is None
        assert (seen if seconds else sorted(seen, reverse=True)) == threads[::-1]

    @pytest.mark.parametrize("cursor", ["x", "", "AAAA", "💥", 7])
    async def test_a_bad_cursor_is_refused(self, store: ConversationStore, cursor: Any) -> None:
        """The error has its own type and tells the caller how to go on."""
        with pytest.raises(InvalidCursorError, match="without a cursor"):
            await store.list_conversations(everything=True, cursor=cursor)

    async def test_a_listing_takes_only_scope_keys(self, store: ConversationStore) -> None:
        """An unknown key or an operator is refused."""
        with pytest.raises(InvalidScopeError):
            await store.list_conversations(tenant="x")
        with pytest.raises(InvalidScopeError):
            await store.list_conversations(user_id={"$ne": ""})  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "given", [{}, {"everything": True, "user_id": "ada"}, {"everything": 1}], ids=repr
    )
    async def test_all_users_are_read_only_if_asked_for(
        self, store: ConversationStore, given: dict[str, Any]
    ) -> None:
        """A scope that is empty by mistake lists and searches nothing."""
        for call in (store.list_conversations(**given), store.search("seals", **given)):
            with pytest.raises(InvalidInputError, match="everything"):
                await call

    @pytest.mark.parametrize("knows_its_length", [True, False])
    async def test_a_log_that_is_deleted_while_it_is_read_says_so(
        self, chat: Conversation, elsewhere: Conversation, *, knows_its_length: bool
    ) -> None:
        """Iterating `messages` raises ConversationDeletedError, even in a process without a cache of the log."""
        for number in range(120):
            await chat.append(HumanMessage(f"q{number}"))
        reader, other = (chat, elsewhere) if knows_its_length else (elsewhere, chat)
        reading = reader.messages(rewound=True)
        await anext(reading)
        await other.delete()
        with pytest.raises(ConversationDeletedError):
            _ = [message async for message in reading]

    async def test_annotations_at_once_are_all_stored(self, chat: Conversation) -> None:
        """Concurrent callers can store the first values of a message, although their writes collide on the server."""
        for number in range(10):
            await chat.append(HumanMessage("Do seals sleep?", id=f"q{number}"))
            await asyncio.gather(
                *(chat.annotate(f"q{number}", **{f"by{value}": value}) for value in range(20))
            )
            assert len((await chat.annotations([f"q{number}"]))[f"q{number}"]) == 20

    async def test_annotations_are_stored_outside_the_log(self, chat: Conversation) -> None:
        """Values are set one by one and removed by None; listings have them, the log and the view do not."""
        turn = rag_turn("What about seals?")
        await chat.append(turn)
        answer = str(turn[3].id)
        result = str(turn[2].id)
        await chat.annotate(
            answer, rating=1, note="a.b $set \ud800", when=datetime(2026, 1, 1, tzinfo=UTC)
        )
        await chat.annotate(answer, rating=-1, when=None)
        await chat.annotate(result, message_id="x")
        expected = {"rating": -1, "note": "a.b $set \ud800"}
        assert await chat.annotations([answer, result, str(turn[0].id), "none"]) == {
            answer: expected,
            result: {"message_id": "x"},
        }
        annotations = [message.annotations for message in await chat.list_messages()]
        assert annotations == [{}, {}, {"message_id": "x"}, expected]
        assert same_messages([message async for message in chat.messages(rewound=True)], turn)
        await chat.annotate(result, message_id=None)
        assert await chat.annotations([result]) == {}

    @pytest.mark.parametrize(
        "values",
        [
            {},
            {"a.b": 1},
            {"$set": 1},
            {"": 1},
            {"x" * 200: 1},
            {"x": object()},
            {"x": "y" * 200_000},
        ],
    )
    async def test_bad_annotations_are_refused(
        self, chat: Conversation, values: dict[str, Any]
    ) -> None:
        """Invalid annotations, or too many, raise a typed error before anything is written."""
        await chat.append(HumanMessage("q", id="q"))
        with pytest.raises(InvalidInputError):
            await chat.annotate("q", **values)
        with pytest.raises(InvalidInputError, match="at most 100"):
            await chat.annotate("q", **{f"x{number}": number for number in range(101)})
        assert await chat.annotations(["q"]) == {}

    async def test_only_messages_of_the_conversation_are_annotated(
        self, chat: Conversation, store: ConversationStore
    ) -> None:
        """Annotating a foreign message raises UnknownMessageError. Annotations are deleted with the conversation."""
        eve = store.conversation(**{**chat.scope, "user_id": "eve"})
        await eve.append(HumanMessage("q", id="q"))
        with pytest.raises(UnknownMessageError):
            await chat.annotate("q", rating=1)
        await chat.append(HumanMessage("mine", id="mine"))
        with pytest.raises(UnknownMessageError):
            await chat.annotate("q", rating=1)
        await eve.annotate("q", rating=1)
        assert await chat.annotations(["q"]) == {}
        await eve.delete()
        await eve.append(HumanMessage("q", id="q"))
        assert await eve.annotations(["q"]) == {}

    async def test_a_date_never_goes_back(self, chat: Conversation, new_store: NewStore) -> None:
        """A late refresh of the head does not make the conversation older."""
        start = datetime(2026, 1, 1, tzinfo=UTC)
        scope = {**chat.scope, "user_id": new_id()}
        clocks = [Clock(now=partial(start.__add__, timedelta(hours=hours))) for hours in range(2)]
        early, late = (new_store(clock=clock).conversation(**scope) for clock in clocks)
        for number in range(2):
            await early.append(HumanMessage(f"q{number}"))
        await late.update(title="Seals")
        [listed] = (await early.store.list_conversations(user_id=scope["user_id"])).conversations
        assert listed.updated_at == start + timedelta(hours=1)

    async def test_a_description_of_a_conversation_that_is_deleted_meanwhile_is_of_the_next(
        self, chat: Conversation, elsewhere: Conversation, next_call: NextCall
    ) -> None:
        """If the conversation is deleted during `update`, the scope's next conversation gets the title."""
        await chat.append(HumanMessage("Hello"))
        next_call(Heads, "describe", before=elsewhere.delete)
        await chat.update(title="Seals")
        info = await chat.info()
        assert (info.title, info.message_count) == ("Seals", 0)
