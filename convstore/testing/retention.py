"""Tests of `erase` and `prune`: erasing a user, expiry by age, receipts and interrupted runs (promise 12)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.conversation import Conversation
from convstore.exceptions import (
    CorruptDocumentError,
    InvalidInputError,
    InvalidScopeError,
    StoreUnavailableError,
)
from convstore.mongo.log import Log
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.clock import Clock
from convstore.store import ConversationStore
from convstore.summarization import HeadTailSummarizer
from convstore.testing.fixtures import NewStore, NextCall, texts_of, unanswered
from convstore.testing.samples import new_id, rag_turn
from convstore.values.policy import CompactionRule
from convstore.values.reports import ErasureReceipt

__all__ = ["RetentionContract"]

_COLLECTIONS = ("log", "heads", "summaries", "annotations")
_NOTHING = ErasureReceipt()


def _at(moment: datetime) -> Clock:
    """Return a clock that stands still."""
    return Clock(now=lambda: moment)


async def _fill(chat: Conversation) -> ErasureReceipt:
    """Fill a conversation with documents of every kind; return the counts of a receipt."""
    turn = rag_turn("What about seals?")
    await chat.append(turn[:1])
    await chat.append(turn[1:])
    for word in ("more ", "most "):
        await chat.append(
            [HumanMessage(word * 1_000, id=new_id()), AIMessage(word * 9_000, id=new_id())]
        )
    await chat.annotate(str(turn[0].id), rating=1)
    await chat.annotate(str(turn[3].id), rating=1)
    assert (await chat.compact(force=True)).status == "done"
    return ErasureReceipt(conversations=1, entries=4, payload_chunks=3, summaries=1, annotations=2)


async def _documents_of(database: Any, conversation: str) -> int:
    """Count the documents of a conversation, its tombstone excluded."""
    found = [
        await database[name].find({"conversation": conversation}).to_list(None)
        for name in _COLLECTIONS
    ]
    return sum(document.get("sweep_at") is None for documents in found for document in documents)


class RetentionContract:
    """Promises of `erase` and `prune`, and the receipt of `delete`."""

    @pytest.fixture
    async def summing(self, new_store: NewStore) -> ConversationStore:
        """A store that can summarise."""
        rule = CompactionRule(
            max_tokens_before_summary=2_000, max_summary_tokens=500, keep_last_turns=1
        )
        store = new_store(summarizer=HeadTailSummarizer(rule))
        await store.setup()
        return store

    async def test_a_deletion_counts_what_it_removed(
        self, summing: ConversationStore, database: Any
    ) -> None:
        """The receipt has the removed documents of each kind; a second call finds nothing."""
        chat = summing.conversation(user_id=new_id(), thread_id="t")
        expected = await _fill(chat)
        conversation = (await chat.info()).conversation_id
        assert await chat.delete() == expected
        assert await _documents_of(database, conversation) == 0
        assert await chat.delete() == _NOTHING

    async def test_an_erasure_removes_all_of_a_user_and_nothing_else(
        self, summing: ConversationStore, database: Any
    ) -> None:
        """All conversations with the scope value are removed with all their documents; all others stay complete."""
        user = new_id()
        eve = new_id()
        chats = [summing.conversation(user_id=user, thread_id=f"t{number}") for number in range(3)]
        first, *_ = [await _fill(chat) for chat in chats]
        ids = [(await chat.info()).conversation_id for chat in chats]
        other = summing.conversation(user_id=eve, thread_id="t0")
        kept = await _fill(other)
        before = await _documents_of(database, (await other.info()).conversation_id)
        receipt = await summing.erase(user_id=user)
        assert receipt == ErasureReceipt(
            **{name: 3 * number for name, number in dict(first).items()}
        )
        assert [await _documents_of(database, id_) for id_ in ids] == [0, 0, 0]
        assert await _documents_of(database, (await other.info()).conversation_id) == before
        assert [message async for message in chats[0].messages(rewound=True)] == []
        assert await summing.erase(user_id=user) == _NOTHING
        assert await summing.erase(user_id=eve, thread_id="t0") == kept

    async def test_an_erased_scope_can_be_used_again(self, store: ConversationStore) -> None:
        """The store that erased a scope forgets it at once."""
        chat = store.conversation(user_id=new_id(), thread_id="t")
        await chat.append(HumanMessage("old"))
        await store.erase(user_id=chat.scope["user_id"])
        assert (await chat.append(HumanMessage("new"))).first == 1
        assert await texts_of(chat) == ["new"]

    @pytest.mark.parametrize(
        "arguments", [{}, {"everything": True, "user_id": "ada"}, {"everything": False}]
    )
    async def test_erasing_everything_is_said_in_so_many_words(
        self, chat: Conversation, arguments: dict[str, Any]
    ) -> None:
        """A call without scope values, such as an empty filter, is refused and erases nothing."""
        await chat.append(HumanMessage("kept"))
        with pytest.raises(InvalidInputError, match="everything=True"):
            await chat.store.erase(**arguments)
        assert await texts_of(chat) == ["kept"]

    async def test_everything_is_everything(self, database: Any) -> None:
        """All conversations of these collections are removed, whatever their scope keys; other prefixes stay."""
        prefix = f"x{new_id()}_"
        stores = [
            ConversationStore(database, collection_prefix=prefix, scope_keys=keys)
            for keys in (("user_id",), ("team",))
        ]
        neighbour = ConversationStore(
            database, collection_prefix=f"y{prefix}", scope_keys=("user_id",)
        )
        for store in (*stores, neighbour):
            await store.setup()
        for store in (*stores, neighbour):
            await store.conversation(**dict.fromkeys(store.scope_keys, "one")).append(
                HumanMessage("hi")
            )
        assert (await stores[0].erase(everything=True)).conversations == 2
        assert [
            (await store.list_conversations(everything=True)).conversations for store in stores
        ] == [[], []]
        assert len((await neighbour.list_conversations(everything=True)).conversations) == 1

    @pytest.mark.parametrize(
        "scope", [{"tenant": "x"}, {"user_id": {"$ne": ""}}, {"user_id": ""}, {"user_id": None}]
    )
    @pytest.mark.parametrize("call", ["erase", "prune"])
    async def test_only_scope_values_choose(
        self, chat: Conversation, call: str, scope: dict[str, Any]
    ) -> None:
        """A value that could match other users' data is refused, and nothing is removed."""
        await chat.append(HumanMessage("kept"))
        options = {"older_than": timedelta(days=1)} if call == "prune" else {}
        with pytest.raises(InvalidScopeError):
            await getattr(chat.store, call)(**options, **scope)
        assert await texts_of(chat) == ["kept"]

    async def test_an_erasure_that_broke_off_is_finished_by_the_next(
        self,
        summing: ConversationStore,
        new_store: NewStore,
        database: Any,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A second `erase`, in any store, removes the rest of a killed one. It counts no other user's documents."""
        user = new_id()
        eve = new_id()
        chats = [
            summing.conversation(user_id=name, thread_id=f"t{number}")
            for name in (user, eve)
            for number in (1, 2)
        ]
        for chat in chats:
            await _fill(chat)
        ids = [(await chat.info()).conversation_id for chat in chats]

        async def die(_log: Log, _conversation: str) -> tuple[int, int]:
            raise RuntimeError("killed")

        monkeypatch.setattr(Log, "delete", die)
        for name in (user, eve):
            with pytest.raises(RuntimeError, match="killed"):
                await summing.erase(user_id=name)
        monkeypatch.undo()
        assert all([await _documents_of(database, id_) for id_ in ids])
        receipt = await new_store().erase(user_id=user)
        assert (receipt.conversations, receipt.entries, receipt.payload_chunks) == (0, 8, 6)
        assert [await _documents_of(database, id_) for id_ in ids[:2]] == [0, 0]
        assert all([await _documents_of(database, id_) for id_ in ids[2:]])
        assert (await new_store().conversation(user_id=eve, thread_id="t1").delete()).entries == 4

    async def test_a_tombstone_says_nothing_of_a_person(
        self, store: ConversationStore, database: Any
    ) -> None:
        """The tombstone has no scope value, and is removed with the second sweep."""
        user = new_id()
        await store.conversation(user_id=user, thread_id="t").append(HumanMessage("hi"))
        await store.erase(user_id=user)
        left = [
            document
            for name in _COLLECTIONS
            for document in await database[name].find({}).to_list(None)
        ]
        assert [document for document in left if user in repr(document)] == []

    async def test_a_damaged_head_does_not_keep_the_others(
        self, store: ConversationStore, database: Any
    ) -> None:
        """All readable conversations are erased; the error names the head without a readable scope."""
        user = new_id()
        for number in range(3):
            await store.conversation(user_id=user, thread_id=f"t{number}").append(
                HumanMessage("hi")
            )
        heads = database["heads"]
        damaged = await heads.find_one({"scope.user_id": user, "scope.thread_id": "t1"})
        await heads.update_one({"_id": damaged["_id"]}, {"$unset": {"conversation": ""}})
        with pytest.raises(CorruptDocumentError, match=damaged["_id"]):
            await store.erase(user_id=user)
        assert [document["_id"] async for document in heads.find({"scope.user_id": user})] == [
            damaged["_id"]
        ]
        await heads.update_one(
            {"_id": damaged["_id"]}, {"$set": {"conversation": damaged["conversation"]}}
        )
        assert (await store.erase(user_id=user)).conversations == 1

    @pytest.mark.parametrize("by", ["id", "lost", "everything"])
    async def test_a_conversation_without_a_head_can_be_erased(
        self, summing: ConversationStore, database: Any, by: str
    ) -> None:
        """It is erased by its id, with `lost` or with `everything`; other conversations only if they are selected."""
        await summing.erase(lost=True)
        lost, sound = (summing.conversation(user_id=new_id(), thread_id="t") for _ in range(2))
        expected = await _fill(lost)
        await sound.append(HumanMessage("hi"))
        conversation = (await lost.info()).conversation_id
        await database["heads"].delete_one({"conversation": conversation})
        assert await summing.erase(user_id=lost.scope["user_id"]) == _NOTHING
        ids = [conversation] if by == "id" else []
        chosen = dict[str, Any]({} if by == "id" else {by: True})
        counted = await summing.erase(*ids, dry_run=True, **chosen)
        assert await _documents_of(database, conversation) > 0
        assert await summing.erase(*ids, **chosen) == counted
        if by != "everything":
            assert counted == expected
        assert await _documents_of(database, conversation) == 0
        assert (await sound.info()).message_count == (by != "everything")
        assert await summing.erase(lost=True, dry_run=True) == _NOTHING

    @pytest.mark.parametrize(
        "damage",
        [
            {"$unset": {"conversation": ""}},
            {"$set": {"conversation": 7}},
            {"$unset": {"scope": ""}},
        ],
    )
    async def test_a_damaged_head_and_its_log_can_be_erased(
        self, store: ConversationStore, database: Any, damage: dict[str, Any]
    ) -> None:
        """An erasure of lost conversations removes the log and the head, whatever of the head is damaged."""
        await store.erase(lost=True)
        lost, sound = (store.conversation(user_id=new_id(), thread_id="t") for _ in range(2))
        for chat in (lost, sound):
            await chat.append(HumanMessage("hi"))
        conversation = (await lost.info()).conversation_id
        await database["heads"].update_one({"conversation": conversation}, damage)
        assert (await store.erase(lost=True, dry_run=True)).entries == 1
        assert (await store.erase(lost=True)).entries == 1
        assert await _documents_of(database, conversation) == 0
        assert await store.erase(lost=True, dry_run=True) == _NOTHING
        assert await database["heads"].count_documents({"scope": lost.scope}) == 0
        assert (await sound.info()).message_count == 1

    async def test_an_id_names_one_conversation(self, store: ConversationStore) -> None:
        """A sound conversation is deleted by its id too; part of an id, and a second choice, are refused."""
        first, second = (store.conversation(user_id=new_id(), thread_id="t") for _ in range(2))
        for chat in (first, second):
            await chat.append(HumanMessage("hi"))
        conversation = (await first.info()).conversation_id
        refused: list[tuple[tuple[str, ...], dict[str, Any]]] = [
            ((conversation[:8],), {}),
            ((conversation,), {"lost": True}),
            ((conversation,), {"everything": True}),
            ((), {"lost": True, "everything": True}),
            ((), {"lost": 1}),
            ((conversation,), {"user_id": "ada"}),
        ]
        for ids, chosen in refused:
            with pytest.raises(InvalidInputError):
                await store.erase(*ids, **chosen)
        assert (await store.erase(conversation)).conversations == 1
        assert await store.erase(conversation) == _NOTHING
        assert ((await first.info()).message_count, (await second.info()).message_count) == (0, 1)

    async def test_a_policy_removes_what_is_old(self, new_store: NewStore) -> None:
        """Old conversations are removed completely, by the date of their last entry; all others stay."""
        now = datetime.now(UTC)
        user = new_id()
        eve = new_id()
        for name, days in ((user, 91), (user, 89), (eve, 91)):
            then = new_store(clock=_at(now - timedelta(days=days)))
            await then.setup()
            await then.conversation(user_id=name, thread_id=f"d{days}").append(
                rag_turn("What about seals?")
            )
        store = new_store(clock=_at(now))
        policy: dict[str, Any] = {"older_than": timedelta(days=90), "user_id": user}
        expected = ErasureReceipt(conversations=1, entries=1, payload_chunks=1)
        assert await store.prune(**policy, dry_run=True) == expected
        assert await store.prune(**policy, dry_run=True) == expected
        assert await store.prune(**policy) == expected
        assert await store.prune(**policy) == _NOTHING
        assert [
            conversation.scope["thread_id"]
            for conversation in (await store.list_conversations(user_id=user)).conversations
        ] == ["d89"]
        assert len((await store.list_conversations(user_id=eve)).conversations) == 1

    async def test_the_last_entry_counts_not_the_head(
        self, new_store: NewStore, database: Any
    ) -> None:
        """A stale head, left by a killed process, does not lead to the removal of newer messages."""
        now = datetime.now(UTC)
        user = new_id()
        store = new_store(clock=_at(now))
        await store.setup()
        chat = store.conversation(user_id=user, thread_id="t")
        await chat.append(HumanMessage("hi"))
        long_ago = {"$set": {"updated_at": now - timedelta(days=100)}}
        await database["heads"].update_one({"scope.user_id": user}, long_ago)
        assert await store.prune(older_than=timedelta(days=90), user_id=user) == _NOTHING
        assert await texts_of(chat) == ["hi"]

    async def test_a_title_that_is_set_counts_as_use(self, new_store: NewStore) -> None:
        """Setting a title counts as use, so `prune` keeps the conversation."""
        now = datetime.now(UTC)
        user = new_id()
        old = new_store(clock=_at(now - timedelta(days=100)))
        store = new_store(clock=_at(now))
        await old.setup()
        await old.conversation(user_id=user, thread_id="t").append(HumanMessage("hi"))
        await store.conversation(user_id=user, thread_id="t").update(title="Kept")
        assert await store.prune(older_than=timedelta(days=90), user_id=user) == _NOTHING

    async def test_an_annotation_does_not_count_as_use(self, new_store: NewStore) -> None:
        """A rating of an old answer does not keep its conversation; a change of the state does."""
        now = datetime.now(UTC)
        user = new_id()
        old = new_store(clock=_at(now - timedelta(days=91)))
        later = new_store()
        await old.setup()
        for thread in ("rated", "used"):
            await old.conversation(user_id=user, thread_id=thread).append(
                HumanMessage("hi", id="hi")
            )
        await later.conversation(user_id=user, thread_id="rated").annotate("hi", rating=1)
        await later.conversation(user_id=user, thread_id="used").state.update({"step": 1})
        assert (await later.prune(older_than=timedelta(days=90), user_id=user)).conversations == 1
        [left] = (await later.list_conversations(user_id=user)).conversations
        assert left.scope["thread_id"] == "used"

    async def test_what_is_written_while_a_policy_ends_it_is_not_lost(
        self, new_store: NewStore, database: Any
    ) -> None:
        """A writer that has just read a pruned conversation begins a new one with its append."""
        now = datetime.now(UTC)
        user = new_id()
        old, store, writer = (
            new_store(clock=_at(now - timedelta(days=days))) for days in (100, 0, 0)
        )
        await old.setup()
        await old.conversation(user_id=user, thread_id="t").append(HumanMessage("old"))
        chat = writer.conversation(user_id=user, thread_id="t")
        assert [message.content for message in (await chat.load_history()).messages] == ["old"]
        ended = (await chat.info()).conversation_id
        assert (await store.prune(older_than=timedelta(days=90), user_id=user)).conversations == 1
        receipt = await chat.append(HumanMessage("new"))
        assert (receipt.first, receipt.written) == (1, 1)
        assert await texts_of(new_store().conversation(**chat.scope)) == ["new"]
        later = new_store(clock=_at(now + timedelta(seconds=90)))
        await later.prune(older_than=timedelta(days=9_000))
        assert await _documents_of(database, ended) == 0

    async def test_a_head_that_was_touched_meanwhile_stays(
        self, new_store: NewStore, next_call: NextCall
    ) -> None:
        """An append between the check and the removal keeps the conversation."""
        now = datetime.now(UTC)
        user = new_id()
        old, store, writer = (
            new_store(clock=_at(now - timedelta(days=days))) for days in (100, 0, 0)
        )
        await old.setup()
        await old.conversation(user_id=user, thread_id="t").append(HumanMessage("old"))
        chat = writer.conversation(user_id=user, thread_id="t")
        next_call(Log, "last_date", after=lambda: chat.append(HumanMessage("new")))
        assert await store.prune(older_than=timedelta(days=90), user_id=user) == _NOTHING
        assert await texts_of(chat) == ["old", "new"]

    async def test_several_at_once_remove_everything_once(self, new_store: NewStore) -> None:
        """The receipts of concurrent calls add up to that of a single call."""
        now = datetime.now(UTC)
        user = new_id()
        old = new_store(clock=_at(now - timedelta(days=100)))
        await old.setup()
        for number in range(8):
            await old.conversation(user_id=user, thread_id=f"t{number}").append(
                rag_turn("What about seals?")
            )
        stores = [new_store(clock=_at(now)) for _ in range(3)]
        pruning = (store.prune(older_than=timedelta(days=90), user_id=user) for store in stores)
        receipts = await asyncio.gather(*pruning, new_store(clock=_at(now)).erase(user_id=user))
        sums = [
            sum(numbers)
            for numbers in zip(*(dict(receipt).values() for receipt in receipts), strict=True)
        ]
        assert sums == [8, 0, 8, 8, 0, 0, 0, 0]
        assert (await stores[0].list_conversations(user_id=user)).conversations == []

    @pytest.mark.parametrize(
        "age", [timedelta(0), timedelta(minutes=4), timedelta(days=-90), 90, None, "90d"]
    )
    async def test_a_policy_that_could_hit_what_is_in_use_is_refused(
        self, store: ConversationStore, age: Any
    ) -> None:
        """An age is refused if it is shorter than the longest append, negative, or not a duration."""
        with pytest.raises(InvalidInputError, match="older_than"):
            await store.prune(older_than=age)

    async def test_a_policy_may_be_of_five_minutes(self, new_store: NewStore) -> None:
        """An age of five minutes is accepted; a shorter one is refused."""
        store = new_store()
        await store.setup()
        assert await store.prune(older_than=timedelta(minutes=5), user_id=new_id()) == _NOTHING
        with pytest.raises(InvalidInputError, match="at least"):
            await store.prune(
                older_than=timedelta(minutes=5) - timedelta(microseconds=1), user_id=new_id()
            )

    async def test_a_conversation_that_has_only_a_title_ends_too(self, new_store: NewStore) -> None:
        """`prune` removes an old conversation that has a title and no messages."""
        user = new_id()
        old = new_store(clock=_at(datetime.now(UTC) - timedelta(days=100)))
        await old.setup()
        await old.conversation(user_id=user, thread_id="t").update(title="Seals")
        receipt = await new_store().prune(older_than=timedelta(days=90), user_id=user)
        assert (receipt.conversations, receipt.entries) == (1, 0)

    async def test_what_is_on_its_way_when_somebody_deletes_goes_with_it(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """An append in flight is deleted with the conversation and does not begin a new one; only prune() lets it."""
        seconds = [0.0]
        other = new_store(clock=Clock(monotonic=lambda: seconds[0])).conversation(**chat.scope)
        await other.append(HumanMessage("old"))
        seconds[0] += 11
        await other.load_history()  # reads the head, which its next append refreshes
        await chat.delete()
        await other.append(HumanMessage("new"))
        assert (await chat.load_history()).messages == []
        assert (await other.load_history()).messages == []

    async def test_concurrent_work_has_ended_when_an_error_is_raised(
        self, store: ConversationStore, next_call: NextCall
    ) -> None:
        """If one conversation cannot be deleted, `erase` deletes all others before it raises the error."""
        user = new_id()
        for number in range(6):
            await store.conversation(user_id=user, thread_id=f"t{number}").append(
                HumanMessage("Hello")
            )
        next_call(Tombstones, "write_tombstone", before=unanswered)
        with pytest.raises(StoreUnavailableError):
            await store.erase(user_id=user)
        assert len((await store.list_conversations(user_id=user)).conversations) == 1
