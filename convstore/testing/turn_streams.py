"""Tests of streamed replies in a turn: appended at the end, kept as drafts, stopped and interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, ToolCallChunk

from convstore.conversation import Conversation
from convstore.conversation.turn import TurnSession
from convstore.exceptions import InvalidInputError, InvalidMessageError
from convstore.runtime.clock import Clock
from convstore.testing.fixtures import NewStore, ahead, kinds_of, turn_of
from convstore.turns.drafting import DRAFT_SECONDS

__all__ = ["TurnStreamContract", "break_off"]

_PATIENCE = 60.0
_NOTICED = 2.0


async def _stream(
    chunks: list[Any], error: BaseException | None = None, closed: list[str] | None = None
) -> Any:
    """Yield chunks, and wait at an event; record in `closed` when the stream is closed."""
    try:
        for chunk in chunks:
            if isinstance(chunk, asyncio.Event):
                await chunk.wait()
            yield chunk
        if error:
            raise error
    finally:
        if closed is not None:
            closed.append("closed")


async def _draft_in(chat: Conversation, text: str) -> None:
    """Wait until the first turn has this draft."""
    async with asyncio.timeout(_PATIENCE):
        while (turn := await chat.get_turn("r1")) is None or turn.draft != text:  # noqa: ASYNC110 - no event tells
            # a call in memory may be over without leaving the event loop to others
            await asyncio.sleep(0.01)


async def break_off(turn: TurnSession, *texts: str, **options: Any) -> None:
    """Stream a reply whose source fails at its end."""
    with pytest.raises(ConnectionError):
        async for _ in turn.stream(_stream(list(texts), ConnectionError()), **options):
            pass


class TurnStreamContract:
    """`stream` of a turn."""

    async def test_a_stream_is_appended_at_its_end(self, chat: Conversation) -> None:
        """A stream yields its chunks unchanged, then appends the message with the stamp of the view it answers."""
        chunks = [AIMessageChunk(content="They ", id="m"), AIMessageChunk(content="do.", id="m")]
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            history = await turn.load_history()
            assert [chunk async for chunk in turn.stream(_stream(chunks))] == chunks
            assert (turn.is_finished, turn.answer and turn.answer.text) == (True, "They do.")
        *_, answer = await chat.list_messages()
        assert answer.stamp == history.stamp

    async def test_a_stream_that_breaks_leaves_a_draft(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """The turn is unfinished, the draft has the yielded text, and the same request can be repeated."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await break_off(turn, "They ", "do")
        found = await turn_of(elsewhere, "r1")
        assert (found.is_finished, found.draft) == (False, "They do")
        async with await elsewhere.turn("r1", human="Do seals sleep?") as again:
            assert (again.is_running, again.draft) == (True, "They do")

    async def test_a_draft_is_shown_only_where_its_reply_would_stand(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A draft left by a broken stream is no longer shown once the turn has a later message."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await break_off(turn, "Let me ")
            await turn.append(AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "c"}]))
        found = await turn_of(elsewhere, "r1")
        assert (found.is_finished, found.draft) == (False, "")
        async with await elsewhere.turn("r1") as again:
            assert again.draft == ""

    async def test_a_draft_is_seen_while_its_reply_is_streamed(
        self, chat: Conversation, elsewhere: Conversation, new_store: NewStore, database: Any
    ) -> None:
        """Other workers see the draft while the reply is streamed. Storing the reply deletes the draft."""
        hurried = new_store(clock=ahead(0, hurry=100)).conversation(**chat.scope)

        async def reply() -> Any:
            yield "They "
            await _draft_in(elsewhere, "They ")
            yield "do."

        async with await hurried.turn("r1", human="Do seals sleep?") as turn:
            async for _ in turn.stream(reply()):
                pass
            assert turn.answer is not None
        conversation = (await chat.info()).conversation_id
        assert await database["drafts"].count_documents({"conversation": conversation}) == 0

    async def test_a_stalled_stream_leaves_the_draft_of_its_successor(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """A stalled stream whose lease was taken over does not change the draft of the new worker."""
        slow = new_store(clock=ahead(-60, hurry=100)).conversation(**chat.scope)
        old = await slow.turn("r1", human="Do seals sleep?")
        gate = asyncio.Event()

        async def reply() -> Any:
            yield "They do not"
            await gate.wait()
            yield " sleep"
            raise ConnectionError

        async def read() -> None:
            async for _ in old.stream(reply()):
                pass

        reading = asyncio.ensure_future(read())
        await _draft_in(chat, "They do not")
        async with await chat.turn("r1") as turn:
            await break_off(turn, "They do")
            gate.set()
            await asyncio.wait([reading])
        assert isinstance(reading.exception(), ConnectionError)
        await _draft_in(chat, "They do")

    async def test_a_draft_is_deleted_with_its_conversation(
        self, chat: Conversation, database: Any
    ) -> None:
        """Deleting a conversation deletes its drafts and counts them in the receipt."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await break_off(turn, "They")
        conversation = (await chat.info()).conversation_id
        assert (await chat.delete()).drafts == 1
        assert await database["drafts"].count_documents({"conversation": conversation}) == 0

    async def test_a_damaged_draft_counts_as_none(self, chat: Conversation, database: Any) -> None:
        """A draft that fails its checksum is never shown. `verify` reports it, and a repair removes it."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await break_off(turn, "They")
        query = {"conversation": (await chat.info()).conversation_id}
        [document] = await database["drafts"].find(query).to_list(None)
        text, seal = document["draft"]
        await database["drafts"].update_one(
            query, {"$set": {"draft": [text.replace("They", "They do not"), seal]}}
        )
        await _draft_in(chat, "")
        async with await chat.turn("r1") as turn:
            assert (turn.is_running, turn.draft) == (True, "")
        for repair in (False, True):
            report = await chat.store.verify(repair=repair, **chat.scope)
            [found] = report.findings
            assert (found.kind, found.collection, found.repaired) == ("damaged", "drafts", repair)
        assert (await chat.store.verify(**chat.scope)).ok

    async def test_a_reader_that_leaves_ends_a_stream(self, chat: Conversation) -> None:
        """A client that disconnects, or a cancelled task, closes the source; nothing is appended."""
        closed: list[str] = []
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            stream = turn.stream(_stream(["They ", "do"], closed=closed))
            assert await anext(stream) == "They "
            await stream.aclose()
            reading = asyncio.ensure_future(
                anext(turn.stream(_stream([asyncio.Event()], closed=closed)))
            )
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
        assert closed == ["closed", "closed"]
        assert await kinds_of(chat) == ["human"]

    async def test_a_stopped_stream_of_an_sdk_is_closed(
        self, hurried: Conversation, elsewhere: Conversation
    ) -> None:
        """A stop calls `close` on a source object that cancellation does not end, such as an SDK's stream."""

        class SdkStream:
            is_closed = False

            def __aiter__(self) -> SdkStream:
                return self

            async def __anext__(self) -> str:
                return "Yes. "

            async def close(self) -> None:
                self.is_closed = True

        source = SdkStream()
        async with await hurried.turn("r1", human="Do seals sleep?") as turn:
            async for _ in turn.stream(source):
                await elsewhere.stop("r1")
        assert source.is_closed

    @pytest.mark.parametrize(("on_stop", "texts"), [("keep", ["They "]), ("discard", [])])
    async def test_a_stopped_stream_ends_in_the_middle(
        self, elsewhere: Conversation, new_store: NewStore, on_stop: Any, texts: list[str]
    ) -> None:
        """Within two seconds a waiting source is closed; the streamed text becomes the answer, or is discarded."""
        # those before it looks, the last ones after the stop
        closed: list[str] = []
        waits: list[float] = []

        async def hurry(seconds: float) -> None:
            if seconds != DRAFT_SECONDS and not turn.is_stopped:
                waits.append(seconds)
            await asyncio.sleep(seconds / 100)

        chat = new_store(clock=Clock(sleep=hurry)).conversation(**elsewhere.scope)
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            async for _ in turn.stream(
                _stream(["They ", asyncio.Event()], closed=closed), on_stop=on_stop
            ):
                await elsewhere.stop("r1")
                waits = waits[-1:]
            assert (len(waits) in {1, 2}, max(waits) <= _NOTICED) == (True, True)
            assert (turn.is_running, turn.is_stopped, turn.is_finished) == (False, True, True)
        assert closed == ["closed"]
        found = await turn_of(elsewhere, "r1")
        assert (found.is_finished, [message.text for message in found.messages[1:]]) == (
            True,
            texts,
        )

    async def test_a_client_stops_a_stream_and_leaves(
        self, chat: Conversation, elsewhere: Conversation
    ) -> None:
        """A stop is stored even if the worker ended before it noticed the stop."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            assert await anext(turn.stream(_stream(["They ", asyncio.Event()]))) == "They "
            assert await elsewhere.stop("r1")
        found = await turn_of(elsewhere, "r1")
        assert (found.is_finished, [message.text for message in found.messages[1:]]) == (
            True,
            ["They "],
        )

    async def test_calls_of_a_stopped_stream_are_closed(
        self, hurried: Conversation, elsewhere: Conversation
    ) -> None:
        """A call that was cut off gets an error as its result, so that it is not open in views."""
        call = ToolCallChunk(name="search", args='{"n":', id="c", index=0, type="tool_call_chunk")
        said = AIMessageChunk(content="Let me see", tool_call_chunks=[call])
        async with await hurried.turn("r1", human="Do seals sleep?") as turn:
            async for _ in turn.stream(_stream([said, asyncio.Event()])):
                await elsewhere.stop("r1")
        assert await kinds_of(hurried) == ["human", "ai", "tool"]
        assert (await hurried.load_history()).report.missing_results == ()

    async def test_a_stalled_worker_replaces_no_draft(
        self, chat: Conversation, new_store: NewStore
    ) -> None:
        """The draft is that of the worker that holds the turn."""
        old = await chat.turn("r1", human="Do seals sleep?")
        later = new_store(clock=ahead(31)).conversation(**chat.scope)
        async with await later.turn("r1") as turn:
            for session, text in ((turn, "They do"), (old, "They do not")):
                await break_off(session, text)
        found = await turn_of(chat, "r1")
        assert found.draft == "They do"

    async def test_leaving_closes_a_stream(self, chat: Conversation) -> None:
        """A reader that stops in the middle leaves the source closed and its text as the draft."""
        closed: list[str] = []
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            stream = turn.stream(_stream(["They ", asyncio.Event()], closed=closed))
            assert await anext(stream) == "They "
        assert closed == ["closed"]
        found = await turn_of(chat, "r1")
        assert found.draft == "They "

    async def test_a_source_that_cannot_be_closed_keeps_no_lease(self, chat: Conversation) -> None:
        """The session ends nevertheless: another worker continues the turn at once, with the draft."""

        class UnclosableStream:
            async def __aiter__(self) -> Any:
                yield "They "
                await asyncio.Event().wait()

            async def aclose(self) -> None:
                raise ConnectionError

        with pytest.raises(ConnectionError):
            async with await chat.turn("r1", human="Do seals sleep?") as turn:
                assert await anext(turn.stream(UnclosableStream())) == "They "
        async with await chat.turn("r1") as turn:
            assert turn.draft == "They "

    async def test_a_redactor_that_fails_hides_no_error(
        self, chat: Conversation, caplog: pytest.LogCaptureFixture
    ) -> None:
        """If a redactor fails, no draft is stored and its error class is logged. The source's error is raised."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            await break_off(turn, "They", redact=int)
        lines = [record.getMessage() for record in caplog.records if record.name == "convstore"]
        assert (
            sum("has no drafts, as their redactor raises ValueError" in line for line in lines) == 1
        )
        found = await turn_of(chat, "r1")
        assert found.draft == ""

    async def test_a_source_may_cancel_itself(self, chat: Conversation) -> None:
        """If the source raises CancelledError, the reader gets that error instead of waiting forever."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            with pytest.raises(asyncio.CancelledError):
                async for _ in turn.stream(_stream(["They"], asyncio.CancelledError())):
                    pass
            assert turn.is_running

    async def test_a_stream_is_stopped_before_it_begins(
        self, hurried: Conversation, elsewhere: Conversation
    ) -> None:
        """After a stop, the stream ends without waiting for a source that is still awaited."""
        async with await hurried.turn("r1", human="Do seals sleep?") as turn:
            await elsewhere.stop("r1")
            assert [chunk async for chunk in turn.stream(asyncio.Event().wait())] == []
            assert (turn.is_stopped, turn.is_finished) == (True, True)

    async def test_a_stream_without_a_message_is_refused(self, chat: Conversation) -> None:
        """It is an error, because a loop that runs until the turn is finished would never end."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            with pytest.raises(InvalidMessageError):
                async for _ in turn.stream(_stream([])):
                    pass

    @pytest.mark.parametrize(
        "source",
        [
            None,
            "text",
            [1],
            object(),
            ["a", 1],
            [{"choices": 3}],
            [{"type": "content_block_delta"}],
        ],
    )
    async def test_a_stream_is_checked(self, chat: Conversation, source: Any) -> None:
        """A source that is not a stream, or that yields unsupported values, raises InvalidInputError."""
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            with pytest.raises(InvalidInputError):
                async for _ in turn.stream(_stream(source) if isinstance(source, list) else source):
                    pass
            assert turn.is_running
