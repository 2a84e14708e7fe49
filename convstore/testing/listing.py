"""Tests of listings: counts, previews and usage are exact after every append, the order is exact to 10 seconds.

The tests move the clock themselves.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore.conversation import Conversation
from convstore.exceptions import (
    ContentConflictError,
    InvalidInputError,
    InvalidScopeError,
    StoreError,
    StoreUnavailableError,
)
from convstore.mongo.collection import Collection
from convstore.mongo.heads import Heads
from convstore.mongo.log import Log
from convstore.runtime.clock import Clock, as_of, backdated
from convstore.store import ConversationStore
from convstore.testing.fixtures import NewStore, NextCall, texts_of
from convstore.testing.samples import new_id
from convstore.values.models import ConversationInfo, LastCall
from convstore.values.reports import ErasureReceipt
from convstore.values.stamps import ViewStamp

__all__ = ["HandMovedTime", "ListContract"]

_START = datetime(2026, 3, 1, 12, tzinfo=UTC)
_LONG_AGO = _START - timedelta(days=400)


class HandMovedTime:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def now(self) -> datetime:
        """The date."""
        return _START + timedelta(seconds=self.seconds)

    @property
    def clock(self) -> Clock:
        """A clock for stores whose timers never fire."""
        return Clock(
            now=lambda: backdated() or self.now,
            monotonic=lambda: self.seconds,
            call_later=lambda _seconds, _callback: None,
        )


def _call_of(stamp: ViewStamp | None, *, ordinal: int) -> LastCall:
    """Return the call in listings that a stamp describes."""
    assert stamp
    budget = stamp.history_policy.max_tokens
    return LastCall(ordinal=ordinal, tokens=stamp.tokens, max_tokens=budget)


def _shown(info: ConversationInfo) -> tuple[int, str]:
    return info.message_count, info.last_message.text if info.last_message else ""


async def _listed(store: ConversationStore, user: str) -> dict[str, tuple[int, str]]:
    """Count and last text of a user's conversations, in the order of the listing."""
    page = await store.list_conversations(user_id=user, limit=100)
    return {info.scope["thread_id"]: _shown(info) for info in page.conversations}


async def _head(database: Any, user: str, thread: str = "t") -> Any:
    return await database["heads"].find_one({"scope.user_id": user, "scope.thread_id": thread})


class ListContract:
    """`list_conversations`, from the process that appends and from others, including killed ones."""

    @pytest.fixture
    def time(self) -> HandMovedTime:
        """The clock of all stores of a test."""
        return HandMovedTime()

    @pytest.fixture
    async def appender(self, new_store: NewStore, time: HandMovedTime) -> ConversationStore:
        """A store that appends; it is not closed, as in a process that is killed."""
        store = new_store(clock=time.clock)
        await store.setup()
        return store

    @pytest.fixture
    def user(self) -> str:
        """A user that other tests do not use."""
        return new_id()

    @pytest.fixture
    def mine(self, appender: ConversationStore, user: str) -> Conversation:
        """The only conversation of the user."""
        return appender.conversation(user_id=user, thread_id="t")

    @pytest.fixture
    def other(self, new_store: NewStore, time: HandMovedTime) -> ConversationStore:
        """A store of another process, with the same clock."""
        return new_store(clock=time.clock)

    async def test_counts_previews_and_usage_are_exact_after_every_append(
        self, mine: Conversation, other: ConversationStore, time: HandMovedTime, user: str
    ) -> None:
        """Listings in every process are exact after each append and each rewind, even if no head was written."""
        usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
        stamp = None
        for number in range(1, 4):
            time.seconds += 1
            await mine.append(HumanMessage(f"q{number}"))
            stamp = (await mine.load_history()).stamp
            await mine.append(
                AIMessage(f"a{number}", id=f"a{number}", usage_metadata=usage), stamp=stamp
            )
            for store in (mine.store, other):
                [listed] = (await store.list_conversations(user_id=user)).conversations
                assert _shown(listed) == (2 * number, f"a{number}")
                assert listed.usage["unknown"]["total_tokens"] == 9 * number
                assert (listed.turns, listed.updated_at) == (number, time.now)
                assert listed.last_call == _call_of(stamp, ordinal=2 * number)
                assert listed == await mine.info()
        await mine.rewind(before_id="a3")
        assert await _listed(other, user) == {"t": (5, "q3")}
        await mine.append(HumanMessage("q4"))
        [listed] = (await other.list_conversations(user_id=user)).conversations
        assert listed.last_call == _call_of(stamp, ordinal=6)

    async def test_a_reservation_and_a_rewind_are_last_entries_too(
        self, mine: Conversation, other: ConversationStore, user: str
    ) -> None:
        """Entries without messages have the same first ordinal as the next entry; the last of them is used."""
        await mine.append([HumanMessage("q", id="q"), AIMessage("a", id="a")])
        await mine.rewind(before_id="a")
        await mine.reserve_source_ids(3)
        await mine.rewind(before_id="q")
        assert await _listed(other, user) == {"t": (0, "")}
        await mine.undo_rewind()
        assert await _listed(other, user) == {"t": (1, "q")}

    async def test_failed_results_count_until_they_are_rewound(
        self, mine: Conversation, user: str
    ) -> None:
        """A tool result counts as failed by its status or its JSON content, and only while it is active."""
        calls: list[Any] = [{"name": "look_up", "args": {}, "id": id_} for id_ in ("a", "b", "c")]
        results = [
            ToolMessage("Timeout", tool_call_id="a", status="error"),
            ToolMessage(
                '{"success": false, "error": "no such order"}' + " " * 10_000, tool_call_id="b"
            ),
            ToolMessage('{"success": true}', tool_call_id="c"),
        ]
        await mine.append(
            [HumanMessage("q"), AIMessage("", id="calling", tool_calls=calls), *results]
        )
        for rewinds, failed in (
            (mine.info, 2),
            (lambda: mine.rewind(before_id="calling"), 0),
            (mine.undo_rewind, 2),
        ):
            await rewinds()
            [listed] = (await mine.store.list_conversations(user_id=user)).conversations
            assert listed.failed == failed
        assert (await mine.store.verify(user_id=user)).findings == ()

    async def test_a_server_that_refuses_to_join_is_asked_for_each_entry(
        self,
        appender: ConversationStore,
        other: ConversationStore,
        user: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Pages, cursors, `info` and `stats` are the same if the server does not support joins."""
        chats = [appender.conversation(user_id=user, thread_id=f"t{number}") for number in range(5)]
        for chat in chats:
            await chat.append(HumanMessage("q"))

        async def read() -> tuple[Any, ...]:
            page = await other.list_conversations(user_id=user, limit=3)
            rest = await other.list_conversations(user_id=user, limit=3, cursor=page.next_cursor)
            return page, rest, await chats[0].info(), await other.stats(sizes=False, user_id=user)

        aggregate = Collection.aggregate

        async def refuse(collection: Collection, pipeline: Any, **how: Any) -> Any:
            if any("$lookup" in stage for stage in pipeline):
                raise StoreError("$lookup is not supported")
            return await aggregate(collection, pipeline, **how)

        joined = await read()
        monkeypatch.setattr(Collection, "aggregate", refuse)
        assert await read() == joined

    async def test_the_order_is_exact_to_ten_seconds(
        self, appender: ConversationStore, other: ConversationStore, time: HandMovedTime, user: str
    ) -> None:
        """The first append after ten seconds moves a conversation to the front, without any other call."""
        for thread in ("a", "b"):
            await appender.conversation(user_id=user, thread_id=thread).append(HumanMessage("q"))
            time.seconds += 1
        time.seconds += 8.5
        for thread in ("a", "b", "a"):
            await appender.conversation(user_id=user, thread_id=thread).append(AIMessage("so"))
            assert next(iter(await _listed(other, user))) == thread
            time.seconds += 10

    async def test_a_head_is_refreshed_once_in_ten_seconds(
        self, mine: Conversation, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """The first append or rewind after ten seconds refreshes the head, which then refers to that entry."""
        written = []
        for seconds in (0, 5, 4.5, 1, 9.5, 1):
            time.seconds += seconds
            await mine.append(HumanMessage("q", id=f"q{time.seconds}"))
            head = await _head(database, user)
            number, link = head["entry"]
            entry = await database["log"].find_one({"_id": f"{head['conversation']}:{number:012d}"})
            assert (entry["totals"]["link"], entry["at"]) == (link, head["updated_at"])
            assert head["written_at"] == head["updated_at"]
            written.append(number)
        assert written == [1, 1, 1, 4, 4, 6]
        time.seconds += 10
        await mine.rewind(before_id="q0.0")
        assert (await _head(database, user))["entry"][0] == 7

    async def test_a_head_has_no_counts(self, mine: Conversation, database: Any, user: str) -> None:
        """A head only has the scope, id, dates, an entry, the title and metadata."""
        await mine.append(HumanMessage("q"))
        await mine.update(title="T", metadata={"a": 1})
        names = {
            "_id",
            "conversation",
            "scope",
            "created_at",
            "updated_at",
            "written_at",
            "entry",
            "details",
        }
        assert set(await _head(database, user)) == names

    async def test_two_writers_take_nothing_back(
        self,
        appender: ConversationStore,
        new_store: NewStore,
        database: Any,
        time: HandMovedTime,
        user: str,
    ) -> None:
        """Whichever refresh is last, dates never decrease, and the counts are those of the log."""
        late = Clock(now=lambda: time.now - timedelta(seconds=30), monotonic=lambda: time.seconds)
        chat, other = (
            store.conversation(user_id=user, thread_id="t")
            for store in (appender, new_store(clock=late))
        )
        for number in range(3):
            await chat.append(HumanMessage(f"q{number}"))
            before = await _head(database, user)
            await other.append(AIMessage(f"a{number}"))
            head = await _head(database, user)
            assert [head[name] for name in ("updated_at", "written_at")] == [
                before["updated_at"]
            ] * 2
            assert await _listed(chat.store, user) == {"t": (2 * number + 2, f"a{number}")}
            time.seconds += 11

    async def test_a_batch_that_was_refused_leaves_nothing(
        self,
        appender: ConversationStore,
        new_store: NewStore,
        database: Any,
        time: HandMovedTime,
        user: str,
    ) -> None:
        """After a refused batch, the head that was refreshed with it refers to an entry of the log."""
        chat, other = (
            store.conversation(user_id=user, thread_id="t")
            for store in (appender, new_store(clock=time.clock))
        )
        await chat.append(HumanMessage("q", id="q"))
        await other.append(AIMessage("said last"))
        time.seconds += 11
        for _ in range(2):
            with pytest.raises(ContentConflictError):
                await chat.append([HumanMessage("never said", id="q"), AIMessage("nor this")])
            await chat.load_history()  # the next append refreshes beside its insert, not before
            number, link = (await _head(database, user))["entry"]
            entry = await database["log"].find_one({"totals.link": link})
            assert entry["totals"]["entries"] == number
            assert await _listed(other.store, user) == {"t": (2, "said last")}

    async def test_a_repeated_batch_refreshes_the_head_of_a_killed_writer(
        self,
        mine: Conversation,
        other: ConversationStore,
        database: Any,
        time: HandMovedTime,
        user: str,
    ) -> None:
        """If a killed writer did not refresh the head, repeating its batch moves the conversation to its position."""
        await mine.append(HumanMessage("q", id="q"))
        before = await _head(database, user)
        time.seconds += 100
        await mine.append(AIMessage("a", id="a"))
        await database["heads"].replace_one({"_id": before["_id"]}, before)
        receipt = await other.conversation(**mine.scope).append(AIMessage("a", id="a"))
        assert receipt.written == 0
        head = await _head(database, user)
        assert (head["entry"][0], head["updated_at"].replace(tzinfo=UTC)) == (2, time.now)

    @pytest.mark.parametrize("failures", [1, 2])
    async def test_a_refresh_that_fails_loses_no_append(  # noqa: PLR0917 - fixtures
        self,
        mine: Conversation,
        database: Any,
        time: HandMovedTime,
        user: str,
        monkeypatch: pytest.MonkeyPatch,
        failures: int,
    ) -> None:
        """An append retries a failed refresh once. If the retry fails too, the append can safely be repeated."""
        await mine.append(HumanMessage("q", id="q"))
        time.seconds += 11
        await mine.load_history()
        refresh = Heads.refresh
        left = [StoreUnavailableError("no answer")] * failures

        async def fail_first(*values: Any, **options: Any) -> bool:
            if left:
                raise left.pop()
            return await refresh(*values, **options)

        monkeypatch.setattr(Heads, "refresh", fail_first)
        if failures == 2:
            with pytest.raises(StoreUnavailableError):
                await mine.append(AIMessage("a", id="a"))
        assert (await mine.append(AIMessage("a", id="a"))).last == 2
        assert await _listed(mine.store, user) == {"t": (2, "a")}
        assert (await _head(database, user))["written_at"].replace(tzinfo=UTC) == time.now

    async def test_a_damaged_log_hides_no_other_conversation(
        self, appender: ConversationStore, new_store: NewStore, database: Any, user: str
    ) -> None:
        """A conversation with a damaged log is listed with its `problem`, next to all other conversations."""
        for number in range(2):
            await appender.conversation(user_id=user, thread_id=f"t{number}").append(
                HumanMessage("q")
            )
        key = f"{(await _head(database, user, 't1'))['conversation']}:{1:012d}"
        await database["log"].update_one({"_id": key}, {"$set": {"totals.turns": "x"}})
        assert await _listed(new_store(), user) == {"t0": (1, "q"), "t1": (0, "")}
        page = await new_store().list_conversations(user_id=user)
        problems = [info.problem for info in page.conversations]
        assert [key in problem for problem in sorted(problems)] == [False, True]

    async def test_a_conversation_is_dated_by_its_first_message(
        self, mine: Conversation, other: ConversationStore, time: HandMovedTime, user: str
    ) -> None:
        """`created_at` is the date of the first message in `info` and listings, even if a title was set earlier."""
        await mine.update(title="Soon")
        time.seconds += 5
        await mine.append(HumanMessage("q"))
        time.seconds += 20
        await mine.append(AIMessage("a"))
        [listed] = (await other.list_conversations(user_id=user)).conversations
        [first, _] = await mine.list_messages()
        assert (
            listed.created_at
            == (await mine.info()).created_at
            == first.created_at
            == _START + timedelta(seconds=5)
        )

    async def test_a_page_is_in_the_order_of_its_dates_and_the_next_continues_after_it(
        self, appender: ConversationStore, other: ConversationStore, time: HandMovedTime, user: str
    ) -> None:
        """Each conversation is listed once, by the last refreshes; each page is sorted by the dates that it shows."""
        for number in range(6):
            time.seconds += 1
            await appender.conversation(user_id=user, thread_id=f"t{number}").append(
                HumanMessage("q")
            )
        for number in (0, 4):
            time.seconds += 1
            await appender.conversation(user_id=user, thread_id=f"t{number}").append(AIMessage("a"))
        pages = []
        cursor = None
        for _ in range(3):
            page = await other.list_conversations(user_id=user, limit=2, cursor=cursor)
            pages.append([info.scope["thread_id"] for info in page.conversations])
            dates = [info.updated_at for info in page.conversations if info.updated_at]
            assert dates == sorted(dates, reverse=True)
            cursor = page.next_cursor
        assert pages == [["t4", "t5"], ["t3", "t2"], ["t0", "t1"]]
        assert cursor is None

    async def test_an_import_is_listed_by_its_newest_date(
        self, appender: ConversationStore, time: HandMovedTime, user: str
    ) -> None:
        """The date counts when the import has ended; a new message then moves the conversation to the front at once."""
        chats = [appender.conversation(user_id=user, thread_id=name) for name in ("old", "older")]
        for chat, days in zip(chats, (0, 50), strict=True):
            for year in (2, 1, 0):
                with as_of(_LONG_AGO - timedelta(days=365 * year + days)):
                    await chat.append(HumanMessage(f"{year}"))
                    await chat.update()  # as an import does at its end
        assert list(await _listed(appender, user)) == ["old", "older"]
        await chats[1].append(HumanMessage("now"))
        assert list(await _listed(appender, user)) == ["older", "old"]
        [first, last] = (await appender.list_conversations(user_id=user)).conversations
        assert (first.updated_at, last.updated_at) == (time.now, _LONG_AGO)

    async def test_an_import_with_old_dates_is_not_pruned(
        self,
        mine: Conversation,
        other: ConversationStore,
        database: Any,
        time: HandMovedTime,
        user: str,
    ) -> None:
        """`prune` removes an import only once both its dates and its time of import are older than the limit."""
        policy: dict[str, Any] = {"older_than": timedelta(days=90), "user_id": user}
        for text in ("q", "a"):
            with as_of(_LONG_AGO):
                await mine.append(HumanMessage(text))
            assert await other.prune(**policy) == ErasureReceipt()
        assert await texts_of(other.conversation(**mine.scope)) == ["q", "a"]
        head = await _head(database, user)
        assert (head["updated_at"].replace(tzinfo=UTC), head["written_at"].replace(tzinfo=UTC)) == (
            _LONG_AGO,
            _START,
        )
        time.seconds += 89 * 86_400
        assert await other.prune(**policy) == ErasureReceipt()
        time.seconds += 2 * 86_400
        assert (await other.prune(**policy)).conversations == 1

    async def test_a_head_that_is_refreshed_meanwhile_is_not_pruned(
        self,
        mine: Conversation,
        other: ConversationStore,
        time: HandMovedTime,
        user: str,
        next_call: NextCall,
    ) -> None:
        """An import that does not change the date is not pruned if it refreshes the head during the prune."""
        with as_of(_LONG_AGO):
            await mine.append(HumanMessage("q"))
        time.seconds += 100 * 86_400

        async def append() -> None:
            with as_of(_LONG_AGO):
                await mine.append(AIMessage("a"))

        next_call(Log, "last_date", after=append)
        assert await other.prune(older_than=timedelta(days=90), user_id=user) == ErasureReceipt()
        assert await texts_of(other.conversation(**mine.scope)) == ["q", "a"]

    async def test_a_deleted_conversation_is_not_brought_back(
        self, mine: Conversation, new_store: NewStore, database: Any, time: HandMovedTime, user: str
    ) -> None:
        """A late refresh is not written to a tombstone, nor to the next conversation of the scope."""
        await mine.append(HumanMessage("q"))
        other = new_store(clock=time.clock).conversation(**mine.scope)
        await other.delete()
        time.seconds += 9
        await mine.append(AIMessage("a"))  # by a process that has not learnt of it
        assert await _head(database, user) is None
        await other.append(HumanMessage("new"))
        assert await _listed(other.store, user) == {"t": (1, "new")}
        time.seconds += 10
        await mine.append(AIMessage("newer"))
        assert await _listed(other.store, user) == {"t": (2, "newer")}

    async def test_a_conversation_is_found_by_its_random_id(
        self, mine: Conversation, other: ConversationStore, user: str
    ) -> None:
        """`find_conversation` finds an id in any store, and returns None for another user or a deleted conversation."""
        assert (await mine.info()).conversation_id == ""
        await mine.append(HumanMessage("Hi"))
        id_ = (await mine.info()).conversation_id
        [listed] = (await other.list_conversations(user_id=user)).conversations
        assert (listed.conversation_id, listed.turns) == (id_, 1)
        scopes: tuple[dict[str, str], ...] = (
            {},
            {"user_id": user},
            {"user_id": user, "thread_id": "t"},
        )
        for scope in scopes:
            found = await other.find_conversation(id_, **scope)
            assert found is not None
            assert found.scope == mine.scope
        assert await other.find_conversation(id_, user_id=new_id()) is None
        assert await other.find_conversation("0" * 24) is None
        wrongs: tuple[Any, ...] = ("", 7, {"$ne": ""})
        for wrong in wrongs:
            with pytest.raises(InvalidInputError):
                await other.find_conversation(wrong)
        with pytest.raises(InvalidScopeError):
            await other.find_conversation(id_, team="x")
        await mine.delete()
        assert await other.find_conversation(id_) is None
        await mine.append(HumanMessage("Again"))
        assert (await mine.info()).conversation_id != id_
