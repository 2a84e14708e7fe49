"""Tests of child conversations of sub-agents: separate logs that are deleted and exported with their parent."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import (
    InvalidInputError,
    InvalidScopeError,
    SourceIdClashError,
    StoreUnavailableError,
    TurnBusyError,
    TurnConflictError,
    TurnLostError,
)
from convstore.integration import host_of
from convstore.mongo.heads import Heads
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.clock import Clock
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore, NextCall, ahead, kinds_of, texts_of, unanswered
from convstore.testing.samples import new_id, rag_turn
from convstore.transfer import export_conversations
from convstore.values.reports import ErasureReceipt

__all__ = ["ChildContract"]

_COLLECTIONS = ("log", "heads")


async def _family(chat: Conversation) -> list[Conversation]:
    """Return a conversation with a child of a call, a nested one and one with a name, each with a message."""
    call = chat.child("m1", "call/1:a")
    chats = [chat, call, call.child("critic"), chat.child("researcher")]
    for number, conversation in enumerate(chats):
        await conversation.append(HumanMessage(f"message {number}", id="m"))
    return chats


async def _left(database: Any, conversation: str) -> int:
    """Count the documents of a conversation and of all its children, without tombstones."""
    query = {"conversation": {"$regex": f"^{conversation}"}, "sweep_at": {"$exists": False}}
    return sum([await database[name].count_documents(query) for name in _COLLECTIONS])


def _found(*numbers: int) -> list[Any]:
    """Return a call and a result whose sources have the tool's own numbers."""
    call = {"name": "search", "args": {}, "id": f"c{numbers}"}
    artifact = [{"source_id": number, "content": f"text {new_id()}"} for number in numbers]
    result = ToolMessage("found", artifact=artifact, tool_call_id=call["id"], name="search")
    return [AIMessage("", tool_calls=[call]), result]


class ChildContract:
    """Children: agents within agents."""

    @pytest.fixture
    async def outer(self, store: ConversationStore) -> Conversation:
        """A conversation alone with its user."""
        return store.conversation(user_id=new_id(), thread_id="t")

    async def test_a_child_has_a_log_of_its_own(
        self, new_store: NewStore, outer: Conversation
    ) -> None:
        """Parent, child and grandchild each read their own messages, from every process."""
        chats = await _family(outer)
        other = new_store()
        for number, chat in enumerate(chats):
            for handle in (chat, other.conversation(**chat.scope)):
                assert await texts_of(handle) == [f"message {number}"]
                assert [message.text for message in (await handle.load_history()).messages] == [
                    f"message {number}"
                ]
        assert chats[1].scope == outer.scope | {"path": "m1:call%2F1%3Aa"}
        assert chats[2].scope == outer.scope | {"path": "m1:call%2F1%3Aa/critic"}

    async def test_a_child_is_found_below_its_parent_and_in_no_list(
        self, outer: Conversation
    ) -> None:
        """A user's list only has the parent; `children` returns the conversations directly below it."""
        chats = await _family(outer)
        listed = (
            await outer.store.list_conversations(user_id=outer.scope["user_id"])
        ).conversations
        assert [(info.scope, info.has_children) for info in listed] == [(outer.scope, True)]
        assert [info.scope for info in await outer.children()] == [chats[1].scope, chats[3].scope]
        (nested,) = await chats[1].children()
        assert (nested.scope, nested.message_count, nested.has_children) == (
            chats[2].scope,
            1,
            False,
        )
        for chat in chats:
            id_ = (await chat.info()).conversation_id
            found = await outer.store.find_conversation(id_, user_id=outer.scope["user_id"])
            assert found is not None
            assert found.scope == chat.scope
            assert await outer.store.find_conversation(id_, user_id="eve") is None

    async def test_bad_ids_of_children_are_refused(self, outer: Conversation) -> None:
        """An operator instead of an id, or an invalid path, never reaches a query."""
        for id_ in ({"$ne": ""}, "", None, 7, "\ud800", "x" * 513):
            with pytest.raises(InvalidInputError):
                outer.child(id_)  # type: ignore[arg-type]
        for path in ({"$ne": ""}, "", "/", "a/", "a:", "%zz", "a b", "a:b:c", "/".join("a" * 9)):
            with pytest.raises(InvalidScopeError):
                outer.store.conversation(**outer.scope, path=path)
        with pytest.raises(InvalidInputError):
            outer.child("m1", {"$ne": ""})  # type: ignore[arg-type]
        for name in ("a\x00b", "$where", "a.b", "ünï", "/", ".."):
            assert await outer.child(name).get_tool_messages(["m"]) == []

    async def test_a_child_of_another_scope_is_missing(
        self, store: ConversationStore, outer: Conversation
    ) -> None:
        """The same ids below another user's conversation, or below another path, reach nothing."""
        await _family(outer)
        eve = store.conversation(user_id="eve", thread_id=outer.scope["thread_id"])
        for other in (
            eve.child("m1", "call/1:a"),
            eve.child("researcher"),
            outer.child("m1"),
            outer.child("critic"),
        ):
            assert await texts_of(other) == []
            assert await other.get_tool_messages(["m"]) == []
            assert (await other.info()).created_at is None
        assert await eve.children() == []

    async def test_a_child_is_deleted_with_its_parent(
        self, database: Any, new_store: NewStore, outer: Conversation
    ) -> None:
        """Deleting a parent deletes its children. In a reused scope every process finds them empty."""
        chats = await _family(outer)
        root = (await outer.info()).conversation_id
        receipt = await outer.delete()
        assert (receipt.conversations, receipt.entries) == (4, 4)
        assert await _left(database, root) == 0
        await outer.append(HumanMessage("new", id="new"))
        for chat in chats[1:]:
            for handle in (chat, new_store().conversation(**chat.scope)):
                assert await texts_of(handle) == []

    async def test_a_child_is_deleted_alone(self, outer: Conversation) -> None:
        """Deleting a child deletes the conversations below it. Its parent and siblings stay."""
        chats = await _family(outer)
        assert (await chats[1].delete()).conversations == 2
        assert [await texts_of(chat) for chat in chats] == [["message 0"], [], [], ["message 3"]]

    async def test_verify_restores_a_parents_knowledge_of_children(
        self, database: Any, outer: Conversation
    ) -> None:
        """A repair restores the `has_children` flag of a head, so deleting the parent deletes its children."""
        await _family(outer)
        await database["heads"].update_one(
            {"scope": outer.scope}, {"$unset": {"has_children": True}}
        )
        report = await outer.store.verify(user_id=outer.scope["user_id"], repair=True)
        assert ({finding.kind for finding in report.findings}, report.left) == ({"head"}, 0)
        assert (await outer.delete()).conversations == 4

    async def test_erasure_takes_children_and_counts_them(
        self, database: Any, outer: Conversation
    ) -> None:
        """An erasure removes and counts children; its dry run has the same counts."""
        await _family(outer)
        root = (await outer.info()).conversation_id
        user = outer.scope["user_id"]
        counted = await outer.store.erase(dry_run=True, user_id=user)
        assert (
            counted
            == await outer.store.erase(user_id=user)
            == ErasureReceipt(conversations=4, sub_agents=3, entries=4)
        )
        assert await _left(database, root) == 0

    async def test_children_are_pruned_with_an_idle_parent(
        self, database: Any, new_store: NewStore, outer: Conversation
    ) -> None:
        """`prune` removes children with an idle parent, but keeps the family while a child still appends."""
        chats = await _family(outer)
        user = outer.scope["user_id"]
        root = (await outer.info()).conversation_id
        age = timedelta(minutes=10)
        passed = [0.0]
        clock = Clock(
            now=lambda: datetime.now(UTC) + timedelta(seconds=passed[0]),
            monotonic=lambda: time.monotonic() + passed[0],
        )
        later = new_store(clock=clock)
        # when it begins to work it is looked up, and later its head is refreshed
        for passed[0] in (
            0.0,
            900.0,
        ):
            await later.conversation(**chats[2].scope).append(HumanMessage("working"))
        assert (await later.prune(older_than=age, user_id=user)).conversations == 0
        idle = new_store(clock=ahead(1_800))
        assert (await idle.prune(older_than=age, dry_run=True, user_id=user)).conversations == 4
        assert (await idle.prune(older_than=age, user_id=user)).conversations == 4
        assert await _left(database, root) == 0

    async def test_a_child_does_not_survive_an_interrupted_deletion(
        self,
        database: Any,
        new_store: NewStore,
        outer: Conversation,
        next_call: NextCall,
    ) -> None:
        """After a kill between parent and children, no process finds the children, and the next call removes them."""
        chats = await _family(outer)
        root = (await outer.info()).conversation_id
        next_call(Tombstones, "children", before=unanswered)
        with pytest.raises(StoreUnavailableError):
            await outer.delete()
        for chat in chats[1:]:
            assert await texts_of(new_store().conversation(**chat.scope)) == []
        assert await _left(database, root) > 0
        await new_store().conversation(**outer.scope).delete()
        assert await _left(database, root) == 0

    async def test_the_id_of_a_deleted_child_finds_no_later_one(
        self, new_store: NewStore, outer: Conversation, next_call: NextCall
    ) -> None:
        """`find_conversation` returns None for a deleted child, even if its documents stay and its scope is reused."""
        child = (await _family(outer))[1]
        deleted = (await child.info()).conversation_id
        next_call(Tombstones, "children", before=unanswered)
        with pytest.raises(StoreUnavailableError):
            await outer.delete()
        await new_store().conversation(**child.scope).append(HumanMessage("new"))
        assert await outer.store.find_conversation(deleted) is None

    @pytest.mark.parametrize("way", ["erase", "sweep"])
    async def test_a_child_that_begins_during_a_deletion_is_swept(
        self,
        database: Any,
        new_store: NewStore,
        outer: Conversation,
        monkeypatch: pytest.MonkeyPatch,
        *,
        way: str,
    ) -> None:
        """A child written during the deletion of its parent is invisible. A sweep or an erasure removes it."""
        await outer.append(HumanMessage("hello", id="m"))
        root = (await outer.info()).conversation_id
        claim = Heads.claim

        async def slow_claim(
            heads: Heads, scope: Any, *, for_child: bool = False, **dates: Any
        ) -> Any:
            claimed = await claim(heads, scope, for_child=for_child, **dates)
            if for_child:
                await new_store().conversation(**outer.scope).delete()
            return claimed

        monkeypatch.setattr(Heads, "claim", slow_claim)
        await (
            new_store()
            .conversation(**outer.child("late").scope)
            .append(HumanMessage("late", id="m"))
        )
        monkeypatch.undo()
        assert await texts_of(new_store().conversation(**outer.child("late").scope)) == []
        past = datetime.now(UTC) - timedelta(minutes=2)
        await database["heads"].update_one({"_id": f"deleted:{root}"}, {"$set": {"sweep_at": past}})
        if way == "erase":
            await new_store().erase(user_id=outer.scope["user_id"])
        else:
            await (await host_of(outer).services()).retention.sweep()
        assert await _left(database, root) == 0

    async def test_children_are_exported_with_their_parent(self, outer: Conversation) -> None:
        """Children are exported directly after their parent, nested ones below theirs."""
        chats = await _family(outer)
        lines: list[bytes] = []
        scope = {"user_id": outer.scope["user_id"]}
        report = await export_conversations(outer.store, lines.append, format="openai", scope=scope)
        assert (report.conversations, report.problems) == (4, [])
        assert [line.decode().partition('"id": ')[2].partition(",")[0] for line in lines] == [
            f'"{list(chat.scope.values())[-1]}"' for chat in chats
        ]

    async def test_a_child_has_views_turns_and_details(self, outer: Conversation) -> None:
        """A child supports views, turns, a title, metadata and rewinds like any conversation."""
        child = outer.child("researcher")
        async with await child.turn("t1", human="Find it") as turn:
            await turn.append(AIMessage("Found"))
        await child.update(title="Research", metadata={"depth": 1})
        assert (await kinds_of(child), await kinds_of(outer)) == (["human", "ai"], [])
        info = await child.info()
        assert (info.title, info.metadata, info.turns) == ("Research", {"depth": 1}, 1)
        await child.append(rag_turn("What about seals?"))
        assert await child.rewind(before_id="t1") > 0
        report = await outer.store.verify(user_id=outer.scope["user_id"])
        assert (report.conversations, report.findings) == (2, ())

    async def test_sources_of_children_have_numbers_of_the_parent(
        self, new_store: NewStore, outer: Conversation
    ) -> None:
        """A number is unique in the family: the parent reads every source by it, a child reads only its own sources."""
        call = outer.child("m1", "call_1")
        chats = [outer, call, call.child("critic"), outer, call]
        receipts = [
            await chat.append(rag_turn(f"Seals {at}?", words=600)) for at, chat in enumerate(chats)
        ]
        assert [receipt.source_ids for receipt in receipts] == [
            (1, 3),
            (4, 6),
            (7, 9),
            (10, 12),
            (13, 15),
        ]
        assert await call.reserve_source_ids(2) == range(16, 18)
        assert (await outer.append(rag_turn("Whales?"))).source_ids == (19, 21)
        for store in (outer.store, new_store()):
            handles = [store.conversation(**chat.scope) for chat in chats[:3]]
            pages = [await handle.get_sources("1-15", page_tokens=16_000) for handle in handles]
            assert [[source.source_id for source in page.sources] for page in pages] == [
                [*range(1, 16)],
                [*range(4, 10), 13, 14, 15],
                [7, 8, 9],
            ]
            for own in pages[1:]:
                assert {source.source_id: source.content for source in own.sources}.items() <= {
                    source.source_id: source.content for source in pages[0].sources
                }.items()
        answer = await outer.retrieve_previous_sources_tool().ainvoke({"source_ids": "5, 8"})
        assert "[5]" in answer
        assert "[8]" in answer
        assert "Not found: 5" in await new_store().conversation(
            user_id=outer.scope["user_id"], thread_id="other"
        ).retrieve_previous_sources_tool().ainvoke({"source_ids": "5"})
        report = await outer.store.verify(user_id=outer.scope["user_id"])
        assert (report.conversations, report.findings) == (3, ())

    async def test_numbers_of_children_cost_few_entries_of_the_parent(
        self, new_store: NewStore, outer: Conversation, database: Any
    ) -> None:
        """Children reserve numbers in doubling blocks, so the parent gets one entry for each doubling."""
        handles = [new_store().conversation(**outer.child(name).scope) for name in "ab"]
        ranges = [await handle.reserve_source_ids(3) for _ in range(20) for handle in handles]
        ranges += await asyncio.gather(*[handle.reserve_source_ids(3) for handle in handles])
        numbers = [number for allotted in ranges for number in allotted]
        assert len(numbers) == len({*numbers})
        assert max(numbers) < 2 * len(numbers)
        entries = {"conversation": (await outer.info()).conversation_id, "first": {"$exists": True}}
        assert await database["log"].count_documents(entries) <= 2 + len(ranges).bit_length()
        # a tool of the parent uses a number of the block
        await outer.append(_found(free := max(numbers) + 2))
        assert free not in [
            number for _ in range(4) for number in await handles[0].reserve_source_ids(1)
        ]
        assert (await outer.store.verify(user_id=outer.scope["user_id"])).findings == ()
        await database["log"].update_one(
            {"conversation": entries["conversation"], "numbers": {"$exists": True}},
            {"$inc": {"numbers.last": 10_000}},
        )
        assert (await outer.store.verify(user_id=outer.scope["user_id"], repair=True)).counts == {
            "state": 1
        }
        assert (await outer.store.verify(user_id=outer.scope["user_id"])).findings == ()

    async def test_numbers_of_tools_clash_across_a_family(self, outer: Conversation) -> None:
        """A number that a tool gave in a child is in use in the parent, and the reverse."""
        child = outer.child("a")
        sibling = outer.child("b")
        await child.append(_found(5))
        for other in (outer, sibling):
            with pytest.raises(SourceIdClashError):
                await other.append(_found(5))
        receipt = await sibling.append(_found(5), on_source_clash="renumber")
        assert [
            number for numbers in receipt.renumbered.values() for number in numbers.items()
        ] == [(5, 6)]
        assert await outer.reserve_source_ids(1) == range(7, 8)
        await outer.append(_found(7))
        with pytest.raises(SourceIdClashError):
            await child.append(_found(7))

    async def test_a_deletion_elsewhere_costs_no_number_its_meaning(
        self, new_store: NewStore, outer: Conversation
    ) -> None:
        """A worker that knows the deleted conversation numbers its child's sources in the one that replaced it."""
        scope = outer.scope
        for found in (rag_turn("by the store", sources=2), _found(1, 2)):
            old, new = [new_store().conversation(**scope) for _ in range(2)]
            await old.append(rag_turn("before", sources=3))
            await old.child("finder").append(rag_turn("by the finder", sources=1))
            await new.delete()
            await new.append(HumanMessage("A new beginning."))
            child = await old.child("finder").child("critic").append(found)
            root = await new.append(rag_turn("after", sources=6))
            assert child.source_ids
            assert root.source_ids
            assert child.source_ids[1] < root.source_ids[0]
            page = await new.get_sources([child.source_ids[0]])
            assert [source.child_id for source in page.sources] != [""]
            assert (await new.store.verify(user_id=scope["user_id"])).findings == ()

    async def test_tools_that_count_alike_at_the_same_time_clash(
        self, new_store: NewStore, outer: Conversation
    ) -> None:
        """If a parent and its children take the same numbers concurrently, all but one raise SourceIdClashError."""
        scopes = [outer.scope, outer.child("a").scope, outer.child("b").scope]
        chats = [new_store().conversation(**scope) for scope in scopes]
        for chat in chats:
            await chat.append(HumanMessage("hello"))
        for first in (1, 3):
            sent = [chat.append(_found(first, first + 1)) for chat in chats]
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
            assert sum(isinstance(outcome, SourceIdClashError) for outcome in outcomes) == 2, (
                outcomes
            )
        await asyncio.gather(
            *[chat.append(_found(5, 6), on_source_clash="renumber") for chat in chats]
        )
        assert len((await outer.get_sources("1-20")).sources) == 10
        assert (await outer.store.verify(user_id=outer.scope["user_id"])).findings == ()

    async def test_a_child_numbers_sources_while_the_parent_is_in_a_turn(
        self, outer: Conversation
    ) -> None:
        """A child can reserve numbers while a worker holds the parent's turn, and the worker continues after them."""
        async with await outer.turn("t1", human="Ask them") as turn:
            await turn.append(AIMessage("", tool_calls=[{"name": "ask", "args": {}, "id": "c1"}]))
            await outer.child("t1", "c1").append(rag_turn("Seals?"))
            await turn.add_result(
                turn.open_calls[0], "", sources=[{"content": "one"}, {"content": "two"}]
            )
            async with await outer.child("critic").turn("t1", human="Is it so?") as inner:
                await inner.append(
                    AIMessage("", tool_calls=[{"name": "check", "args": {}, "id": "c1"}])
                )
                await inner.add_result(inner.open_calls[0], "", sources=[{"content": "three"}])
            await turn.append(AIMessage("Done"))
        assert [source.source_id for source in (await outer.get_sources("1-9")).sources] == [
            1,
            2,
            3,
            4,
            5,
            6,
        ]

    async def test_a_child_that_is_asked_twice_at_once_answers_one(
        self, new_store: NewStore, outer: Conversation
    ) -> None:
        """The second caller gets an error. The same request then finds the answer, and another question is accepted."""
        child, other = (new_store().conversation(**outer.child("m1", "c1").scope) for _ in range(2))
        async with await child.turn("c1", human="When?") as turn:
            for turn_id, question in (("c1", "When?"), ("c2", "Why?")):
                with pytest.raises(TurnBusyError):
                    await other.turn(turn_id, human=question)
            await turn.append(AIMessage("In May."))
        async with await other.turn("c1", human="When?") as turn:
            assert turn.answer
            assert turn.answer.text == "In May."
        with pytest.raises(TurnConflictError):
            await other.turn("c1", human="Why?")
        async with await other.turn("c2", human="Why?") as turn:
            await turn.append(AIMessage("It is warm."))
        assert await texts_of(child) == ["When?", "In May.", "Why?", "It is warm."]

    async def test_a_turn_of_a_deleted_child_begins_no_conversation(
        self, new_store: NewStore, outer: Conversation
    ) -> None:
        """Adding a result to a turn of a deleted child raises TurnLostError and creates no conversation."""
        async with await outer.child("critic").turn("t1", human="Is it so?") as turn:
            await turn.append(AIMessage("", tool_calls=[{"name": "check", "args": {}, "id": "c1"}]))
            await new_store().conversation(**outer.scope).delete()
            with pytest.raises(TurnLostError):
                await turn.add_result(turn.open_calls[0], "", sources=[{"content": "one"}])
        assert (
            await outer.store.list_conversations(user_id=outer.scope["user_id"])
        ).conversations == []

    async def test_a_number_far_ahead_is_replaced_by_one_of_the_parent(
        self, outer: Conversation
    ) -> None:
        """A child never uses a number of the parent, whatever its tools count by."""
        await outer.append(rag_turn("Seals?"))
        receipt = await outer.child("a").append(_found(10**9, 2), on_source_clash="renumber")
        assert next(iter(receipt.renumbered.values())) == {10**9: 4, 2: 5}
        assert len((await outer.get_sources("1-9")).sources) == 5

    async def test_what_a_sub_agent_writes_while_its_parent_ends_is_not_lost(
        self, new_store: NewStore, outer: Conversation
    ) -> None:
        """If `prune` or a missed deletion removes the parent, a sub-agent's append begins a new conversation."""
        seconds = [0.0]
        age = timedelta(minutes=10)
        clock = Clock(
            now=lambda: datetime.now(UTC) + timedelta(seconds=900), monotonic=lambda: seconds[0]
        )
        worker = new_store(clock=clock)
        child, parent = (
            worker.conversation(**chat.scope) for chat in (outer.child("a").child("b"), outer)
        )
        await outer.child("a").child("b").append(HumanMessage("old"))
        assert [message.text for message in (await child.load_history()).messages] == ["old"]
        assert (
            await new_store(clock=clock).prune(older_than=age, user_id=outer.scope["user_id"])
        ).conversations == 3
        await child.append(HumanMessage("new"))
        assert await texts_of(new_store().conversation(**child.scope)) == ["new"]
        await outer.delete()
        seconds[0] = 11.0
        assert (await child.load_history()).messages == []
        await child.append(HumanMessage("newest"))
        assert await texts_of(new_store().conversation(**child.scope)) == ["newest"]
        assert [info.has_children for info in (await parent.info(), *await parent.children())] == [
            True,
            True,
        ]

    async def test_a_damaged_head_of_a_child_is_repaired(
        self, database: Any, outer: Conversation
    ) -> None:
        """A repair rebuilds the head of a child from its log. The child stays out of listings."""
        (_, child, *_) = await _family(outer)
        user = outer.scope["user_id"]
        await database["heads"].update_one(
            {"conversation": (await child.info()).conversation_id}, {"$unset": {"entry": 1}}
        )
        assert (await outer.store.verify(user_id=user, repair=True)).counts == {"head": 1}
        report = await outer.store.verify(user_id=user)
        assert (report.conversations, report.findings) == (4, ())
        assert [
            conversation.scope
            for conversation in (await outer.store.list_conversations(user_id=user)).conversations
        ] == [outer.scope]
        assert (await child.info()).message_count == 1
