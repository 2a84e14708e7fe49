"""Listings that are exact to 15 s from every process, though heads are brought up to date only now and then.

Floor 7, part of the contract. The tests move the clock and ring the timer themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.exceptions import ContentConflictError, InvalidInputError, InvalidScopeError, StoreUnavailableError
from convstore.integration import host_of
from convstore.mongo.heads import Heads
from convstore.mongo.log import Log
from convstore.runtime import cache as known
from convstore.runtime.clock import Clock, as_of, is_backdated
from convstore.store import ConversationStore
from convstore.testing.samples import new_id
from convstore.values.models import ConversationInfo
from convstore.values.reports import ErasureReceipt

__all__ = ["HandMovedTime", "ListContract"]

_NewStore = Callable[..., ConversationStore]
_START = datetime(2026, 3, 1, 12, tzinfo=UTC)
_LONG_AGO = _START - timedelta(days=400)


class HandMovedTime:
    """A clock that a test moves, and the timers that stores set by it.

    Attributes:
        seconds: Since the test began.
        timers: When each timer is due, and what it calls.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    @property
    def now(self) -> datetime:
        """The date."""
        return _START + timedelta(seconds=self.seconds)

    @property
    def clock(self) -> Clock:
        """A clock that stores use; imports date their messages 400 days back."""
        return Clock(
            now=lambda: _LONG_AGO if is_backdated() else self.now,
            monotonic=lambda: self.seconds,
            call_later=self._call_later,
        )

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.seconds + seconds, callback))

    async def pass_by(self, seconds: float, *stores: ConversationStore) -> None:
        """Move the clock, ring the timers that are due, and wait until these stores have done their work."""
        self.seconds += seconds
        due = [timer for timer in self.timers if timer[0] <= self.seconds]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, callback in due:
            callback()
        for store in stores:
            await (await host_of(store).services()).open_heads.settled()


def _shown(info: ConversationInfo) -> tuple[int, str]:
    return info.message_count, info.last_message.text if info.last_message else ""


async def _listed(store: ConversationStore, user: str) -> dict[str, tuple[int, str]]:
    """Count and last text of a user's conversations, in the order of the listing."""
    page = await store.list_conversations(user_id=user, limit=100)
    return {info.scope["thread_id"]: _shown(info) for info in page.conversations}


async def _head(database: Any, user: str, thread: str = "t") -> Any:
    return await database["heads"].find_one({"scope.user_id": user, "scope.thread_id": thread})


class ListContract:
    """`list_conversations`, from the process that appends and from others, dead ones included."""

    @pytest.fixture
    def time(self) -> HandMovedTime:
        """The clock of all stores of a test."""
        return HandMovedTime()

    @pytest.fixture
    async def appender(self, new_store: _NewStore, time: HandMovedTime) -> ConversationStore:
        """A store that appends; it is not closed, as in a process that is killed."""
        store = new_store(clock=time.clock)
        await store.setup()
        return store

    @pytest.fixture
    def user(self) -> str:
        """A user whom no other test has."""
        return new_id()

    async def test_conversations_that_left_the_cache_are_refreshed(
        self, appender: ConversationStore, new_store: _NewStore, user: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store that has touched more conversations than it remembers brings the heads of all up to date."""
        monkeypatch.setattr(known, "_MAXIMUM_CONVERSATIONS", 2)
        for number in range(6):
            chat = appender.conversation(user_id=user, thread_id=f"t{number}")
            await chat.append(HumanMessage("q"))
            await chat.append(AIMessage(f"a{number}"))
        await appender.close()
        assert await _listed(new_store(), user) == {f"t{number}": (2, f"a{number}") for number in range(6)}

    async def test_a_listing_is_right_after_its_writer_was_killed(
        self, appender: ConversationStore, new_store: _NewStore, time: HandMovedTime, user: str
    ) -> None:
        """Ten seconds after the first append of a burst another process lists all of it; nobody wrote to the head."""
        for number in range(3):
            chat = appender.conversation(user_id=user, thread_id=f"t{number}")
            await chat.append(HumanMessage("q"))
        time.seconds += 9.9
        await appender.conversation(user_id=user, thread_id="t0").append(AIMessage("so"))
        time.seconds += 0.2
        other = new_store(clock=time.clock)
        assert await _listed(other, user) == {"t0": (2, "so"), "t1": (1, "q"), "t2": (1, "q")}
        [newest, *_] = (await other.list_conversations(user_id=user)).conversations
        assert newest.updated_at == _START + timedelta(seconds=9.9)

    async def test_the_timer_brings_heads_up_to_date(
        self, appender: ConversationStore, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """Ten seconds after the first append of a burst, though nothing more is appended; then the head is closed."""
        for number in range(3):
            chat = appender.conversation(user_id=user, thread_id=f"t{number}")
            await chat.append(HumanMessage("q"))
            await chat.append(AIMessage("a"))
        head = await _head(database, user, "t1")
        assert (head["totals"]["active"], head["open_until"].replace(tzinfo=UTC)) == (1, _START + timedelta(seconds=10))
        assert len(time.timers) == 1
        await time.pass_by(10, appender)
        for number in range(3):
            head = await _head(database, user, f"t{number}")
            assert (head["totals"]["active"], "open_until" in head, "open_by" in head) == (2, False, False)
        assert time.timers == []

    async def test_an_append_after_the_burst_opens_the_head_again(
        self, appender: ConversationStore, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """The head opens again although the timer of the earlier burst is late, and that timer does not close it."""
        chat = appender.conversation(user_id=user, thread_id="t")
        await chat.append(HumanMessage("q1"))
        time.seconds += 10.5  # the timer is late
        await chat.append(HumanMessage("q2"))
        await chat.append(AIMessage("a2"))
        await time.pass_by(0.5, appender)
        head = await _head(database, user)
        assert (head["totals"]["active"], len(head["open_by"])) == (2, 1)
        assert head["open_until"].replace(tzinfo=UTC) == _START + timedelta(seconds=20.5)
        await time.pass_by(10, appender)
        head = await _head(database, user)
        assert (head["totals"]["active"], "open_until" in head) == (3, False)

    async def test_a_late_writer_takes_nothing_back(
        self, appender: ConversationStore, new_store: _NewStore, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """A pending update of a head is dropped if the head already counts more."""
        one, other = (
            store.conversation(user_id=user, thread_id="t") for store in (appender, new_store(clock=time.clock))
        )
        await one.append(HumanMessage("q"))
        await one.append(AIMessage("a"))
        time.seconds += 5
        await other.append(HumanMessage("q2"))
        await other.append(AIMessage("a2"))
        await time.pass_by(5, appender)
        head = await _head(database, user)
        assert (head["totals"]["active"], len(head["open_by"])) == (3, 1)
        await time.pass_by(5, other.store)
        assert (await _head(database, user))["totals"]["active"] == 4

    async def test_a_head_stays_open_for_a_writer_that_died_during_another(
        self, appender: ConversationStore, new_store: _NewStore, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """The store that lives on does not close it, as it cannot know of the last append; a later burst does."""
        died, lives = new_store(clock=time.clock), appender
        await died.conversation(user_id=user, thread_id="t").append(HumanMessage("q"))
        time.seconds += 5
        await lives.conversation(user_id=user, thread_id="t").append(AIMessage("a"))
        time.seconds += 1
        await died.conversation(user_id=user, thread_id="t").append(AIMessage("said last"))
        del died
        time.timers = time.timers[1:]
        await time.pass_by(10, lives)
        assert "open_until" in await _head(database, user)
        assert await _listed(new_store(clock=time.clock), user) == {"t": (3, "said last")}
        time.seconds += 100
        await lives.conversation(user_id=user, thread_id="t").append(HumanMessage("more"))
        await time.pass_by(10, lives)
        assert "open_until" not in await _head(database, user)

    async def test_a_batch_that_was_refused_is_taken_back(
        self, appender: ConversationStore, new_store: _NewStore, time: HandMovedTime, user: str
    ) -> None:
        """The head was refreshed along with its insert; the timer writes the totals of the log."""
        one, other = (
            store.conversation(user_id=user, thread_id="t") for store in (appender, new_store(clock=time.clock))
        )
        await one.append(HumanMessage("q", id="q"))
        await other.append(AIMessage("said last"))
        time.seconds += 11
        with pytest.raises(ContentConflictError):
            await one.append([HumanMessage("never said", id="q"), AIMessage("nor this")])
        await time.pass_by(10, appender)
        assert await _listed(other.store, user) == {"t": (2, "said last")}

    async def test_a_batch_that_another_store_wrote_first_is_listed_as_written(
        self, appender: ConversationStore, new_store: _NewStore, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """The head was refreshed with a date that no entry has; the timer writes that of the log."""
        one, other = (
            store.conversation(user_id=user, thread_id="t") for store in (appender, new_store(clock=time.clock))
        )
        await one.append(HumanMessage("q", id="q"))
        time.seconds += 5
        await other.append(AIMessage("a", id="a"))
        time.seconds += 6
        assert (await one.append(AIMessage("a", id="a"))).written == 0
        await time.pass_by(10, appender, other.store)
        head = await _head(database, user)
        entry = await database["log"].find_one({"_id": f"{head['conversation']}:{2:012d}"})
        assert head["totals"] == entry["totals"]

    async def test_a_repeated_batch_refreshes_the_head_of_a_killed_writer(
        self, appender: ConversationStore, new_store: _NewStore, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """An entry whose writer was killed before it refreshed the head is listed once it is appended again."""
        chat = appender.conversation(user_id=user, thread_id="t")
        before = await _head(database, user)
        await chat.append(HumanMessage("q", id="q"))
        await chat.append(AIMessage("a", id="a"))
        unset = {"$unset": {"open_until": "", "open_by": ""}}
        await database["heads"].update_one({"scope.user_id": user}, unset)
        assert before is None
        other = new_store(clock=time.clock)
        await other.conversation(user_id=user, thread_id="t").append(AIMessage("a", id="a"))
        await time.pass_by(10, other)
        assert (await _head(database, user))["totals"]["active"] == 2

    async def test_a_damaged_log_keeps_no_other_conversation_from_a_listing(
        self, appender: ConversationStore, new_store: _NewStore, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """Its own line says what the head says."""
        for number in range(2):
            await appender.conversation(user_id=user, thread_id=f"t{number}").append(HumanMessage("q"))
        head = await _head(database, user, "t1")
        await database["log"].update_one({"_id": f"{head['conversation']}:{1:012d}"}, {"$set": {"first": "x"}})
        time.seconds += 11
        assert await _listed(new_store(clock=time.clock), user) == dict.fromkeys(("t0", "t1"), (1, "q"))

    async def test_a_damaged_log_keeps_no_other_head_open(
        self, appender: ConversationStore, new_store: _NewStore, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """The others are brought up to date though this one cannot be, and the store can be closed."""
        one, other = (
            store.conversation(user_id=user, thread_id="t") for store in (appender, new_store(clock=time.clock))
        )
        await one.append(HumanMessage("q", id="q"))
        await other.append(AIMessage("a"))
        time.seconds += 11
        with pytest.raises(ContentConflictError):
            await one.append([HumanMessage("never said", id="q"), AIMessage("nor this")])
        await appender.conversation(user_id=user, thread_id="whole").append(HumanMessage("q"))
        head = await _head(database, user)
        await database["log"].update_one({"_id": f"{head['conversation']}:{2:012d}"}, {"$set": {"first": "x"}})
        await time.pass_by(10, appender)
        assert "open_until" not in await _head(database, user, "whole")
        await appender.close()

    async def test_a_conversation_is_dated_by_its_first_message(
        self, appender: ConversationStore, new_store: _NewStore, time: HandMovedTime, user: str
    ) -> None:
        """Not by a title that was set before it, in `info` and in listings."""
        chat = appender.conversation(user_id=user, thread_id="t")
        await chat.update(title="Soon")
        time.seconds += 5
        await chat.append(HumanMessage("q"))
        time.seconds += 20
        await chat.append(AIMessage("a"))
        [listed] = (await new_store(clock=time.clock).list_conversations(user_id=user)).conversations
        [first, _] = await chat.list_messages()
        assert listed.created_at == (await chat.info()).created_at == first.created_at == _START + timedelta(seconds=5)

    async def test_a_page_is_in_the_order_of_its_dates_and_the_next_continues_after_it(
        self, appender: ConversationStore, new_store: _NewStore, time: HandMovedTime, user: str
    ) -> None:
        """Of writers that died, too: each conversation once, and those of one page as their dates say."""
        for number in range(6):
            time.seconds += 1
            await appender.conversation(user_id=user, thread_id=f"t{number}").append(HumanMessage("q"))
        for number in (0, 4):
            time.seconds += 1
            await appender.conversation(user_id=user, thread_id=f"t{number}").append(AIMessage("a"))
        time.seconds += 20
        other, pages, cursor = new_store(clock=time.clock), [], None
        for _ in range(3):
            page = await other.list_conversations(user_id=user, limit=2, cursor=cursor)
            pages.append([info.scope["thread_id"] for info in page.conversations])
            dates = [info.updated_at for info in page.conversations if info.updated_at]
            assert dates == sorted(dates, reverse=True)
            cursor = page.next_cursor
        assert pages == [["t4", "t5"], ["t3", "t2"], ["t0", "t1"]]
        assert cursor is None

    async def test_what_is_owed_is_never_pruned(
        self, appender: ConversationStore, new_store: _NewStore, time: HandMovedTime, user: str
    ) -> None:
        """An import dates its messages long ago, and still writes; its head is open, so no policy ends it."""
        chat = appender.conversation(user_id=user, thread_id="t")
        with as_of(_LONG_AGO):
            await chat.append(HumanMessage("q"))
        pruning = new_store(clock=time.clock)
        policy: dict[str, Any] = {"older_than": timedelta(days=90), "user_id": user}
        assert await pruning.prune(**policy) == ErasureReceipt()
        with as_of(_LONG_AGO):
            await chat.append(AIMessage("a"))
        assert [message.text async for message in new_store().conversation(**chat.scope).messages()] == ["q", "a"]
        await time.pass_by(10, appender)
        assert (await pruning.prune(**policy)).conversations == 1

    async def test_a_head_that_is_opened_meanwhile_is_not_pruned(
        self,
        appender: ConversationStore,
        new_store: _NewStore,
        time: HandMovedTime,
        user: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Between the look at the log and the end of the conversation, by an import whose date changes nothing."""
        chat = appender.conversation(user_id=user, thread_id="t")
        with as_of(_LONG_AGO):
            await chat.append(HumanMessage("q"))
        await time.pass_by(10, appender)
        pruning = new_store(clock=time.clock)
        look = Log.last_totals

        async def look_and_be_late(log: Log, conversation: str) -> Any:
            found = await look(log, conversation)
            monkeypatch.undo()
            with as_of(_LONG_AGO):
                await chat.append(AIMessage("a"))
            return found

        monkeypatch.setattr(Log, "last_totals", look_and_be_late)
        assert await pruning.prune(older_than=timedelta(days=90), user_id=user) == ErasureReceipt()
        assert [message.text async for message in new_store().conversation(**chat.scope).messages()] == ["q", "a"]

    async def test_a_deleted_conversation_is_not_brought_back(
        self, appender: ConversationStore, new_store: _NewStore, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """A pending update of a head is not written to a tombstone, nor to the next conversation of the scope."""
        chat = appender.conversation(user_id=user, thread_id="t")
        await chat.append(HumanMessage("q"))
        await chat.append(AIMessage("a"))
        other = new_store(clock=time.clock).conversation(**chat.scope)
        await other.delete()
        await time.pass_by(10, appender)
        assert await _head(database, user) is None
        await other.append(HumanMessage("new"))
        await appender.close()
        assert await _listed(other.store, user) == {"t": (1, "new")}

    async def test_a_write_that_fails_is_repeated(
        self,
        appender: ConversationStore,
        database: Any,
        time: HandMovedTime,
        user: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Ten seconds later; nothing that is owed is lost with a server that is away for a while."""
        chat = appender.conversation(user_id=user, thread_id="t")
        await chat.append(HumanMessage("q"))
        await chat.append(AIMessage("a"))
        with monkeypatch.context() as patch:
            patch.setattr(Heads, "catch_up", _fails)
            await time.pass_by(10, appender)
        assert "open_until" in await _head(database, user)
        await time.pass_by(10, appender)
        head = await _head(database, user)
        assert (head["totals"]["active"], "open_until" in head) == (2, False)

    async def test_a_conversation_is_found_by_its_random_id(
        self, appender: ConversationStore, new_store: _NewStore, user: str
    ) -> None:
        """By every store, if it has the scope values; another user's answers like a missing and a deleted one."""
        chat = appender.conversation(user_id=user, thread_id="t")
        assert (await chat.info()).conversation_id == ""
        await chat.append(HumanMessage("Hi"))
        id_ = (await chat.info()).conversation_id
        other = new_store()
        [listed] = (await other.list_conversations(user_id=user)).conversations
        assert (listed.conversation_id, listed.turns) == (id_, 1)
        scopes: tuple[dict[str, str], ...] = ({}, {"user_id": user}, {"user_id": user, "thread_id": "t"})
        for scope in scopes:
            found = await other.find_conversation(id_, **scope)
            assert found is not None
            assert found.scope == chat.scope
        assert await other.find_conversation(id_, user_id=new_id()) is None
        assert await other.find_conversation("0" * 24) is None
        wrongs: tuple[Any, ...] = ("", 7, {"$ne": ""})
        for wrong in wrongs:
            with pytest.raises(InvalidInputError):
                await other.find_conversation(wrong)
        with pytest.raises(InvalidScopeError):
            await other.find_conversation(id_, team="x")
        await chat.delete()
        assert await other.find_conversation(id_) is None
        await chat.append(HumanMessage("Again"))
        assert (await chat.info()).conversation_id != id_


async def _fails(*_: Any) -> None:
    raise StoreUnavailableError("no answer")
