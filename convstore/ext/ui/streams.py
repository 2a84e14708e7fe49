"""Send the answer to a request as server-sent events: live, or from the log after a page was loaded again.

A turn continues when its client disconnects. Another page, or the same one after a reload, can follow it from any
worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage

from convstore import Conversation
from convstore.edges import check_conversation
from convstore.exceptions import ConvstoreError, InvalidInputError
from convstore.ext.ui.ag_ui import AGUIEncoder, ag_ui_messages
from convstore.ext.ui.ai_sdk import AISDKEncoder
from convstore.ext.ui.messages import newest, ui_messages
from convstore.ext.ui.requests import UIRequest
from convstore.ext.ui.turns import ANSWER, Event, Format, Outcome, TurnReader
from convstore.integration import TurnAccess, host_of
from convstore.types import StoredMessage, TurnCall, TurnSession, TurnState
from convstore.values.scope import MAX_IDS, check_names, check_one_of
from convstore.wire.streams import StreamedReply

HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}
"""Headers of a response that sends a stream, in either format."""

_LOGGER = logging.getLogger("convstore")
_ANSWERING: set[asyncio.Task[None]] = set()
_INTERRUPTED = "The answer was interrupted; send the request again."
_BACKLOG = 100
"""Maximum number of events that wait for a client. New content is only encoded after the client has read them."""


def ui_stream(
    turn: TurnSession,
    chunks: AsyncGenerator[Any, None],
    request: UIRequest,
    *,
    on_error: Callable[[Exception], str] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Enter a turn, run your loop in it, and yield its answer as server-sent events in the format of the request.

    It sends the chunks that the loop yields, and all messages that are appended to the turn meanwhile. Earlier messages
    of the turn are sent first, unless the page has them. The stream ends as its protocol requires for a turn that is
    finished, stopped or waiting, or that failed.

    If the client disconnects, the loop continues in the background: `Conversation.stop` stops it, `resume_stream`
    follows it. A slow client does not delay the loop: it gets the answer in fewer, longer events.

    Args:
        turn: The session that `UIRequest.turn` has returned; it is entered here.
        chunks: Your loop, an asynchronous generator of the chunks that `TurnSession.stream` yields.
        request: The request.
        on_error: Returns the text that the client gets for an error. Log the error there; its text may quote messages.
            By default its class and line are logged, and the client is asked to send the request again.

    Raises:
        InvalidInputError: `chunks` is not an asynchronous generator: your function was not called, or has no `yield`.
            Or `turn` or `request` has another type.
    """
    if not isinstance(chunks, AsyncGenerator):
        raise InvalidInputError(
            "chunks must be an asynchronous generator: call the function of your loop, which has "
            f"to yield the chunks; it is a value of type {type(chunks).__name__}"
        )
    for name, value, kind in (("turn", turn, TurnSession), ("request", request, UIRequest)):
        if not isinstance(value, kind):
            raise InvalidInputError(
                f"{name} must be a {kind.__name__}, which UIRequest.turn and read_request return, "
                f"not {type(value).__name__}"
            )
    return _stream_answer(turn, chunks, request, on_error)


async def _stream_answer(
    turn: TurnSession,
    chunks: AsyncGenerator[Any, None],
    request: UIRequest,
    on_error: Callable[[Exception], str] | None,
) -> AsyncGenerator[bytes, None]:
    ai_sdk = AISDKEncoder(turn.turn_id, request.shown)
    ag_ui = AGUIEncoder(request.thread_id, request.run_id, request.shown)
    encoder = ai_sdk if request.format == "ai-sdk" else ag_ui
    chat, _ = TurnAccess.of_session(turn)
    screen = _ClientView(chat, turn.turn_id, encoder, request.client_tools)
    answering = _AnswerStream(turn, screen)
    task = asyncio.create_task(answering.run(chunks, on_error))
    _ANSWERING.add(task)
    task.add_done_callback(_ANSWERING.discard)
    while event := await answering.next_event():
        yield event


async def resume_stream(
    chat: Conversation,
    *,
    format: Format = "ai-sdk",  # noqa: A002 - as in `ui_messages`
    thread_id: str = "",
    run_id: str = "",
    client_tools: Collection[str] = (),
) -> AsyncGenerator[bytes, None] | None:
    """Return the stream of the answer in progress on any worker, from its beginning; None without one.

    For None, an endpoint of the AI SDK's `resumeStream` responds with status 204. For AG-UI the stream begins with the
    messages up to the question, which may be an edited one that views do not show yet. The reply arrives about once a
    second, as its draft is saved.

    Args:
        chat: The conversation.
        format: The page's protocol.
        thread_id: AG-UI's id of the thread.
        run_id: AG-UI's id of the run.
        client_tools: As for `read_request`.

    Raises:
        InvalidInputError: A value has the wrong type, or there is no such format.
    """
    check_conversation(chat)
    check_one_of(format, "ai-sdk", "ag-ui", name="format")
    for name, id_ in (("thread_id", thread_id), ("run_id", run_id)):
        if not isinstance(id_, str):
            raise InvalidInputError(f"{name} must be a str, not {type(id_).__name__}")
    client_tools = check_names(client_tools, name="client_tools")
    state = (await newest(chat)).turn
    if state is None or state.status != "running":
        return None
    if format == "ai-sdk":
        return _follow(
            _ClientView(chat, state.turn_id, AISDKEncoder(state.turn_id), client_tools), []
        )
    screen = _ClientView(chat, state.turn_id, AGUIEncoder(thread_id, run_id), client_tools)
    messages = await _up_to_question(chat, state, client_tools)
    return _follow(screen, [{"type": "MESSAGES_SNAPSHOT", "messages": messages}])


async def _up_to_question(
    chat: Conversation, state: TurnState, client_tools: Collection[str]
) -> list[dict[str, Any]]:
    """Return the messages in AG-UI's format up to the question of a turn, which views may not show yet."""
    shown = (await ui_messages(chat, format="ag-ui", client_tools=client_tools)).messages
    ids = [message["id"] for message in shown]
    if state.turn_id in ids:
        return shown[: ids.index(state.turn_id) + 1]
    own, replaced = await TurnAccess(chat).hidden_variant(state)
    if replaced in ids:
        shown = shown[: ids.index(replaced)]
    question = TurnReader(client_tools).turn(state.turn_id, own[:1])
    return [*shown, *ag_ui_messages(question)]


class _ClientView:
    """The state of a turn that was sent to one client."""

    def __init__(
        self,
        chat: Conversation,
        turn_id: str,
        encoder: AISDKEncoder | AGUIEncoder,
        client_tools: Collection[str],
    ) -> None:
        self.chat = chat
        self.turn_id = turn_id
        self.encoder = encoder
        self._reader = TurnReader(client_tools)
        self._turn = self._reader.turn(turn_id, ())

    async def read(
        self, messages: Sequence[BaseMessage], waiting: Iterable[TurnCall], *, is_over: bool = False
    ) -> None:
        """Update the turn from its messages in the log."""
        results = [str(message.id) for message in messages if isinstance(message, ToolMessage)]
        if new := [id_ for id_ in results if id_ not in self._reader.sources][-MAX_IDS:]:
            tools = await self.chat.get_tool_messages(new)
            self._reader.sources |= {tool.tool_message_id: tool.sources for tool in tools}
        self._turn = self._reader.turn(self.turn_id, messages, waiting, is_over=is_over)
        self._reader.dropped.clear()

    def show(self, reply: StreamedReply | None = None) -> Iterator[Event]:
        """Return the events of new content, including the reply that is being streamed."""
        return self.encoder.show(self._reader.streaming(self._turn, reply) if reply else self._turn)

    async def end(
        self, messages: Sequence[BaseMessage], waiting: Iterable[TurnCall], outcome: Outcome
    ) -> list[Event]:
        """Return the last events; if the turn is over, with the metadata that pages show."""
        if is_over := outcome in ("finished", "stopped"):
            shown = (await ui_messages(self.chat, limit=1)).messages
            own = {ANSWER + self.turn_id}
            self._reader.metadata |= {
                message["id"]: message["metadata"] for message in shown if message["id"] in own
            }
        await self.read(messages, waiting, is_over=is_over)
        return [*self.show(), *self.encoder.end(outcome)]


def _encoded(events: Iterable[Event]) -> Iterator[bytes]:
    """Yield events encoded as server-sent events."""
    for event in events:
        yield b"data: " + json.dumps(event).encode() + b"\n\n"
        if event["type"] in ("finish", "abort", "error"):
            yield b"data: [DONE]\n\n"


def _outcome(turn: TurnSession) -> Outcome:
    if turn.is_stopped:
        return "stopped"
    if turn.is_finished:
        return "finished"
    return "waiting" if turn.is_waiting else "unfinished"


class _AnswerStream:
    """Runs a loop in its turn, and queues the events of its answer for the client."""

    def __init__(self, turn: TurnSession, screen: _ClientView) -> None:
        self._turn = turn
        self._screen = screen
        self._events = asyncio.Queue[bytes | None]()
        self._is_behind = False
        self._reply = StreamedReply()
        self._seen = 0
        self._lock = asyncio.Lock()

    async def next_event(self) -> bytes | None:
        """Return the next event for the client; None after the last one."""
        if self._is_behind and self._events.empty():
            self._show()
        return await self._events.get()

    async def run(
        self, chunks: AsyncGenerator[Any, None], on_error: Callable[[Exception], str] | None
    ) -> None:
        """Queue the events of the stream; the last one reports the outcome."""
        turn = self._turn
        encoder = self._screen.encoder
        self._send(encoder.start())
        try:
            async with turn, aclosing(chunks):
                await self._take_all(chunks)
            self._end(await self._screen.end(turn.messages, turn.waiting_calls, _outcome(turn)))
        except asyncio.CancelledError:  # raised in the loop, or by a shutdown
            self._end(encoder.fail(_INTERRUPTED))
            raise
        except Exception as error:  # noqa: BLE001 - reported to the client
            text: object = _INTERRUPTED
            try:
                text = on_error(error) if on_error else text
            finally:  # reported to the client, even if the function fails
                self._end(encoder.fail(text if isinstance(text, str) else _INTERRUPTED))
            if on_error is None:
                await _log(error, self._screen.chat)  # last, because the server may be down

    async def _take_all(self, chunks: AsyncGenerator[Any, None]) -> None:
        """Send the chunks of the loop, and the messages that are appended to the turn meanwhile."""
        await self._take()
        following = asyncio.create_task(self._follow_log())
        try:
            async for chunk in chunks:
                await self._take(chunk)
        finally:
            following.cancel()
            # Its errors are ignored, because all messages are read again at the end.
            await asyncio.gather(following, return_exceptions=True)

    async def _follow_log(self) -> None:
        changed = TurnAccess.of_session(self._turn)[1].changed
        while await changed.wait():
            changed.clear()
            await self._take()

    async def _take(self, chunk: Any = None) -> None:
        """Send new messages of the log, and a chunk of the next reply."""
        async with self._lock:
            messages = list(self._turn.messages)
            if chunk is None or len(messages) != self._seen:
                await self._screen.read(messages, self._turn.waiting_calls)
                if any(message.type == "ai" for message in messages[self._seen :]):
                    self._reply = StreamedReply()
                self._seen = len(messages)
            if _is_new(chunk, messages):
                with suppress(InvalidInputError):  # not a chunk of a reply
                    self._reply.add(chunk)
            self._show()

    def _show(self) -> None:
        """Queue the events of new content, unless too many events wait for the client."""
        self._is_behind = self._events.qsize() >= _BACKLOG
        if not self._is_behind:
            self._send(self._screen.show(self._reply))

    def _end(self, last: Iterable[Event]) -> None:
        self._is_behind = False
        self._send(last)
        self._events.put_nowait(None)

    def _send(self, found: Iterable[Event]) -> None:
        for event in _encoded(found):
            self._events.put_nowait(event)


async def _log(error: Exception, chat: Conversation) -> None:
    """Log the class and line of an error, without its text: an error of the application may quote messages."""
    conversation = ""
    with suppress(ConvstoreError):  # the server may be down
        conversation = await host_of(chat).conversation_id(chat.scope)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = (
        "conversation %s: the answer to a page ended with %s at %s:%s; on_error of ui_stream "
        "gets the error"
    )
    _LOGGER.error(line, conversation, type(error).__name__, frame.filename, frame.lineno)


def _is_new(chunk: Any, messages: Sequence[BaseMessage]) -> bool:
    """Return True for a chunk of a reply that is not in the log; an agent also yields whole messages."""
    if isinstance(chunk, BaseMessage):
        return isinstance(chunk, AIMessageChunk) and (
            not chunk.id or chunk.id not in {kept.id for kept in messages}
        )
    return chunk is not None


async def _follow(screen: _ClientView, first: Iterable[Event]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a turn that another worker answers, from the log and its drafts."""
    for event in _encoded([*screen.encoder.start(), *first]):
        yield event
    async with aclosing(_watch(screen)) as changes:
        async for own, state in changes:
            for event in _encoded(await _new_events(screen, own, state)):
                yield event
            if not _is_running(screen.turn_id, state):
                return


async def _watch(
    screen: _ClientView,
) -> AsyncGenerator[tuple[list[BaseMessage], TurnState | None], None]:
    """Yield the messages of the turn and the state of the last turn, each time that one of them changes."""
    turn = await screen.chat.get_turn(screen.turn_id)
    after = turn.first - 1 if turn else None
    page: list[StoredMessage] = []
    async with aclosing(screen.chat.watch(after=after, limit=1, full=True)) as updates:
        async for update in updates:
            kept = [stored for stored in page if stored.ordinal < update.replaces_from]
            page = kept + update.messages
            is_complete = update.turn is not None or not update.messages
            if is_complete:
                own = [stored.message for stored in page if stored.turn_id == screen.turn_id]
                yield own, update.turn


def _is_running(turn_id: str, state: TurnState | None) -> bool:
    return state is not None and state.turn_id == turn_id and state.status == "running"


async def _hidden(chat: Conversation, state: TurnState) -> tuple[list[BaseMessage], str]:
    """Return the messages of a variant that is not active yet, and the draft of its next reply.

    The draft is "" if its reply was appended after the state was read.
    """
    own, _ = await TurnAccess(chat).hidden_variant(state)
    replies = [message.text for message in own if isinstance(message, AIMessage)]
    is_kept = any(text.startswith(state.draft) for text in replies)
    return own, "" if is_kept else state.draft


async def _new_events(
    screen: _ClientView, own: Sequence[BaseMessage], state: TurnState | None
) -> Iterable[Event]:
    """Return the events of new messages and of the draft of a turn; the last events if the turn is over."""
    if state is None or state.status == "interrupted":
        return screen.encoder.fail(_INTERRUPTED if state else "The conversation was deleted.")
    draft = state.draft
    # a variant that is not active yet
    if state.turn_id == screen.turn_id and (state.variant_id or not own):
        own, draft = await _hidden(screen.chat, state)
    if state.turn_id != screen.turn_id:
        return await screen.end(own, (), "finished")
    if state.status != "running":
        return await screen.end(own, state.waiting_calls, state.status)
    await screen.read(own, state.waiting_calls)
    reply = StreamedReply()
    reply.add(draft)
    return screen.show(reply if draft else None)
