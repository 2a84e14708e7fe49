"""Tests of `watch`: a page that applies its updates shows the state of the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError, StoreClosedError
from convstore.runtime.changes import ChangeFeed
from convstore.testing.fixtures import NewStore, ahead, result_id_of
from convstore.testing.turn_streams import break_off
from convstore.types import StoredMessage, TurnState

_PATIENCE = 60.0


class _ChatPage:
    """A chat page that applies each update of `watch` to the messages and the turn that it shows."""

    def __init__(self, chat: Conversation, **options: Any) -> None:
        self.updates = chat.watch(**options)
        self.messages: list[StoredMessage] = []
        self.turn: TurnState | None = None

    @property
    def texts(self) -> list[str]:
        return [message.message.text for message in self.messages]

    @property
    def status(self) -> str:
        return self.turn.status if self.turn else ""

    async def follow(self) -> None:
        """Apply the next update."""
        update = await anext(self.updates)
        kept = [message for message in self.messages if message.ordinal < update.replaces_from]
        self.messages = kept + update.messages
        self.turn = update.turn

    async def until(self, is_shown: Callable[[_ChatPage], bool]) -> None:
        """Apply updates until the page shows an expected state."""
        async with asyncio.timeout(_PATIENCE):
            while not is_shown(self):
                await self.follow()


@asynccontextmanager
async def _page(chat: Conversation, **options: Any) -> AsyncIterator[_ChatPage]:
    """A page that has received its first update."""
    page = _ChatPage(chat, **options)
    try:
        await page.follow()
        yield page
    finally:
        await page.updates.aclose()


async def _answer(
    chat: Conversation, words: tuple[str, str], go_on: asyncio.Event, **asked: Any
) -> None:
    """Enter the turn "r1" and stream two words; the second one waits for an event."""

    async def reply() -> AsyncIterator[str]:
        yield words[0]
        await go_on.wait()
        yield words[1]

    async with await chat.turn("r1", **asked) as turn:
        async for _ in turn.stream(reply()):
            pass


def _calls(**values: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c1"}], **values)


class WatchContract:
    """`watch` of a conversation."""

    async def test_a_page_follows_what_others_append(
        self, chat: Conversation, hurried: Conversation
    ) -> None:
        """A page begins with the newest messages or after an ordinal, then gets each new message once, in order."""
        async with _page(hurried) as page:
            assert (page.texts, page.turn) == ([], None)
            await chat.append([HumanMessage("Do seals sleep?"), AIMessage("They do.")])
            await page.until(lambda page: page.status == "finished")
            await chat.append(HumanMessage("How?"))
            await page.until(lambda page: page.status == "interrupted")
            assert page.messages == await chat.list_messages()
        async with _page(hurried, limit=2) as page:
            assert (page.texts, page.status) == (["They do.", "How?"], "interrupted")
        for after, texts in (
            (1, ["They do.", "How?"]),
            (3, []),
            (99, ["Do seals sleep?", "They do.", "How?"]),
        ):
            async with _page(hurried, after=after) as page:
                assert (page.texts, page.status) == (texts, "interrupted")

    async def test_a_page_knows_the_turn_of_each_new_message(
        self, chat: Conversation, hurried: Conversation
    ) -> None:
        """A message that comes after the update with its question has the id of the question."""
        await chat.append(HumanMessage("How?", id="q1"))
        async with _page(hurried) as page:
            await chat.append(AIMessage("So."))
            await page.until(lambda page: page.status == "finished")
            assert [message.turn_id for message in page.messages] == ["q1", "q1"]

    async def test_a_page_follows_rewinds(self, chat: Conversation, hurried: Conversation) -> None:
        """Rewound messages leave the page, and come back when the rewind is undone."""
        await chat.append(
            [HumanMessage("q1", id="q1"), AIMessage("a1", id="a1"), HumanMessage("q2", id="q2")]
        )
        async with _page(hurried) as page:
            await chat.rewind(before_id="a1")
            await page.until(lambda page: page.texts == ["q1"])
            await chat.append([AIMessage("b1"), HumanMessage("q3")])
            await page.until(lambda page: page.texts == ["q1", "b1", "q3"])
            await chat.undo_rewind()
            await page.until(lambda page: page.texts == ["q1", "a1", "q2"])
            assert page.messages == await chat.list_messages()

    async def test_a_page_follows_a_rewind_within_a_turn(
        self, chat: Conversation, hurried: Conversation
    ) -> None:
        """A page drops messages rewound within a turn, whether or not the rewind reopens the turn."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(_calls())
            await turn.add_result(turn.open_calls[0], "One.")
            await turn.append(_calls(id="again"))
            await turn.finish()
        async with _page(hurried) as page:
            assert page.status == "finished"
            await chat.rewind(before_id="again")
            await page.until(lambda page: page.status == "interrupted")
            await chat.append([AIMessage("a1"), AIMessage("a2", id="a2")])
            await page.until(lambda page: page.texts[3:] == ["a1", "a2"])
            await chat.rewind(before_id="a2")
            await page.until(lambda page: page.texts[3:] == ["a1"])

    async def test_a_page_that_has_rewound_messages(
        self, chat: Conversation, hurried: Conversation
    ) -> None:
        """`replaces_from` is the first rewound ordinal of the page, and the update only adds later messages."""
        await chat.append([HumanMessage("q1"), AIMessage("a1", id="a1"), HumanMessage("q2")])
        await chat.rewind(before_id="a1")
        await chat.append(AIMessage("b1"))
        update = await anext(updates := hurried.watch(after=3))
        await updates.aclose()
        assert (update.replaces_from, [message.ordinal for message in update.messages]) == (2, [4])

    async def test_a_page_sees_the_turn(self, chat: Conversation, hurried: Conversation) -> None:
        """A page shows the status of the turn: running, waiting, interrupted, stopped and finished."""
        async with _page(hurried) as page:
            async with await chat.turn("r1", human="Book a table") as turn:
                await page.until(lambda page: page.status == "running")
                calls = [{"name": "book", "args": {}, "id": "c1"}]
                await turn.append(AIMessage("", tool_calls=calls))
                await turn.wait_for(turn.open_calls[0])
            await page.until(lambda page: page.status == "waiting")
            assert page.turn
            assert [call.id for call in page.turn.waiting_calls] == ["c1"]
            await chat.decide("r1", await result_id_of(chat, "c1"), "reject")
            await page.until(lambda page: page.status == "interrupted")
            assert await chat.stop("r1")
            await page.until(lambda page: page.status == "stopped")
            async with await chat.turn("r2", human="Thanks") as turn:
                await turn.append(AIMessage("You are welcome."))
            await page.until(lambda page: page.status == "finished")
            assert page.turn.turn_id == "r2"

    async def test_a_page_sees_the_draft(self, hurried: Conversation) -> None:
        """A reply that is being streamed is shown as a draft, not as a message."""
        go_on = asyncio.Event()
        async with _page(hurried) as page, asyncio.TaskGroup() as tasks:
            tasks.create_task(_answer(hurried, ("They ", "do."), go_on, human="Do seals sleep?"))
            await page.until(lambda page: page.turn is not None and page.turn.draft == "They ")
            assert page.texts == ["Do seals sleep?"]
            go_on.set()
            await page.until(lambda page: page.status == "finished")
            assert page.texts == ["Do seals sleep?", "They do."]

    async def test_a_page_sees_another_answer(self, hurried: Conversation) -> None:
        """A page shows the draft of another answer while it is made, and its message once it is finished."""
        go_on = asyncio.Event()
        await hurried.append([HumanMessage("Do seals sleep?", id="r1"), AIMessage("They do.")])
        async with _page(hurried) as page, asyncio.TaskGroup() as tasks:
            tasks.create_task(_answer(hurried, ("Half ", "does."), go_on, regenerate="click"))
            await page.until(lambda page: page.turn is not None and page.turn.draft == "Half ")
            assert (page.status, page.texts) == ("running", ["Do seals sleep?", "They do."])
            go_on.set()
            await page.until(lambda page: page.texts == ["Do seals sleep?", "Half does."])
            await page.until(lambda page: page.status == "finished")
            [first, _] = await hurried.variants("r1")
            await hurried.activate(first)
            await page.until(lambda page: page.texts == ["Do seals sleep?", "They do."])

    async def test_a_page_sees_another_answer_that_waits(
        self, chat: Conversation, hurried: Conversation
    ) -> None:
        """The page shows the waiting calls of a variant until it is finished or the user asks the next question."""
        await chat.append([HumanMessage("Do seals sleep?", id="r1"), AIMessage("They do.")])
        async with _page(hurried) as page:
            async with await chat.turn("r1", regenerate="click") as turn:
                await page.until(lambda page: page.status == "running")
                await turn.append(_calls())
                await turn.wait_for(turn.open_calls[0])
            await page.until(lambda page: page.status == "waiting")
            async with _page(hurried) as other:
                assert other.turn == page.turn
            assert page.turn
            assert (page.turn.variant_id, [call.id for call in page.turn.waiting_calls]) == (
                "click",
                ["c1"],
            )
            await chat.decide("r1", await result_id_of(chat, "c1"), "reject")
            await page.until(lambda page: page.status == "interrupted")
            assert page.texts == ["Do seals sleep?", "They do."]
            await chat.append([HumanMessage("Thanks", id="r2"), AIMessage("You are welcome.")])
            await page.until(lambda page: page.turn == TurnState(turn_id="r2", status="finished"))

    async def test_a_page_sees_no_draft_of_before(
        self, chat: Conversation, hurried: Conversation
    ) -> None:
        """A page does not show a draft that a later message follows, nor the draft of an abandoned variant."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await break_off(turn, "They ")
        async with _page(hurried) as page:
            assert page.turn == TurnState(turn_id="r1", status="interrupted", draft="They ")
            await chat.append([_calls()], turn="r1")
            await page.until(
                lambda page: page.turn == TurnState(turn_id="r1", status="interrupted")
            )
            await chat.append(AIMessage("They do."))
            async with await chat.turn("r1", regenerate="click") as turn:
                await break_off(turn, "They ")
        async with await chat.turn("r1"), _page(hurried) as page:
            assert page.turn == TurnState(turn_id="r1", status="finished")

    async def test_a_page_sees_how_the_turn_that_is_shown_ended(
        self, chat: Conversation, hurried: Conversation
    ) -> None:
        """A page shows the status of the active answer, not that of a stopped variant."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await turn.append(_calls())
            await turn.finish()
        async with await chat.turn("r1", regenerate="click"):
            await hurried.stop("r1")
        async with _page(hurried) as page:
            assert page.status == "finished"

    async def test_a_page_sees_that_a_worker_died(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """A page shows a turn as interrupted once the lease of its worker has lapsed."""
        await chat.turn("r1", human="Do seals sleep?")
        later = new_store(clock=ahead(31, hurry=100))
        for store, status in ((chat.store, "running"), (later, "interrupted")):
            async with _page(store.conversation(**chat.scope)) as page:
                assert page.status == status
        await later.close()

    async def test_a_page_of_a_deleted_conversation_is_empty(
        self, chat: Conversation, hurried: Conversation
    ) -> None:
        """A page is emptied when its conversation is deleted, and then follows the next one in the scope."""
        await chat.append([HumanMessage("q1"), AIMessage("a1")])
        async with _page(hurried) as page:
            await chat.delete()
            await page.until(lambda page: not page.texts)
            await chat.append(HumanMessage("anew"))
            await page.until(lambda page: page.texts == ["anew"])

    async def test_a_deletion_elsewhere_is_told_when_it_wakes_a_watcher(
        self, chat: Conversation, elsewhere: Conversation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A watcher that is woken by a deletion reports it before it waits again."""
        woken = asyncio.Event()

        async def wait(*_: Any) -> None:
            await woken.wait()
            woken.clear()

        monkeypatch.setattr(ChangeFeed, "wait", wait)
        await chat.append([HumanMessage("q1"), AIMessage("a1")])
        async with _page(elsewhere) as page:
            await chat.delete()
            woken.set()
            await page.until(lambda page: not page.texts)

    async def test_a_watch_ends_with_its_store(self, hurried: Conversation) -> None:
        """Closing the store makes a waiting `watch` raise StoreClosedError at once."""
        async with _page(hurried) as page:
            waiting = asyncio.ensure_future(page.follow())
            await asyncio.sleep(0)
            await hurried.store.close()
            async with asyncio.timeout(_PATIENCE):
                with pytest.raises(StoreClosedError):
                    await waiting

    @pytest.mark.parametrize(
        "options", [{"after": -1}, {"after": "3"}, {"limit": 0}, {"limit": 1_001}], ids=str
    )
    async def test_a_watch_checks_its_arguments(self, chat: Conversation, options: Any) -> None:
        """`watch` raises InvalidInputError for an invalid `after` or `limit`."""
        with pytest.raises(InvalidInputError):
            await anext(chat.watch(**options))
