"""Send the answer to a request as server-sent events: as it is made, or after a reload as the log shows it.

A turn goes on when its client leaves. Another page, or the same one after a reload, follows it from any worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage

from convstore import Conversation
from convstore.exceptions import InvalidInputError
from convstore.ext.ui.events import DRAFT, AGUIEncoder, AISDKEncoder, Event, Outcome
from convstore.ext.ui.messages import Format, ui_messages
from convstore.ext.ui.parts import PartWriter
from convstore.ext.ui.requests import UIRequest, last_turn
from convstore.ext.ui.turns import Step, answer_id, read_turn
from convstore.integration import StreamedReply, normalize_messages, observed
from convstore.types import Source, TurnSession, TurnState
from convstore.values.scope import MAX_IDS

HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}
"""Headers of a response that sends a stream, in either format."""

_LOGGER = logging.getLogger("convstore")
_ANSWERING = set[asyncio.Task[None]]()
_INTERRUPTED = "The answer was interrupted; send the request again."


def _logged(error: Exception) -> str:
    _LOGGER.error("the answer to a page ended with an error", exc_info=error)
    return _INTERRUPTED


async def ui_stream(
    turn: TurnSession,
    chunks: AsyncGenerator[Any, None],
    request: UIRequest,
    *,
    on_error: Callable[[Exception], str] = _logged,
) -> AsyncGenerator[bytes, None]:
    """Enter a turn, run your loop in it, and yield its answer as server-sent events in the format of the request.

    It sends the chunks that the loop yields, and all that is appended to the turn meanwhile, by whatever the loop
    calls. What the turn had before is sent first, unless the page has it. The stream ends as the protocol says for a
    turn that is finished, stopped or waiting, or that failed.

    If the client leaves, the loop goes on in the background: `Conversation.stop` stops it, `resume_stream` follows it.

    Args:
        turn: What `UIRequest.turn` has returned. It is entered here.
        chunks: Your loop, an asynchronous generator of the chunks that `TurnSession.stream` yields.
        request: The request.
        on_error: Returns what the client is told of an error. By default the error is logged, and the client is told to
            send the request again.
    """
    events = asyncio.Queue[bytes | None]()
    ai_sdk = AISDKEncoder(turn.turn_id, request.shown)
    ag_ui = AGUIEncoder(request.thread_id, request.run_id, request.shown)
    encoder = ai_sdk if request.format == "ai-sdk" else ag_ui
    screen = _Screen(observed(turn)[0], turn.turn_id, encoder, request.client_tools)
    task = asyncio.create_task(_answer(turn, chunks, screen, events, on_error))
    _ANSWERING.add(task)
    task.add_done_callback(_ANSWERING.discard)
    while event := await events.get():
        yield event


async def resume_stream(
    chat: Conversation,
    *,
    format: Format = "ai-sdk",  # noqa: A002 - as in `ui_messages`
    thread_id: str = "",
    run_id: str = "",
    client_tools: Collection[str] = (),
) -> AsyncGenerator[bytes, None] | None:
    """Return the stream of the answer that a worker makes just now, from its beginning; None if none does.

    An endpoint for the AI SDK's `resumeStream` then answers 204. For AG-UI the stream begins with the newest messages.
    What is being streamed arrives about once a second, as the draft of the reply.

    Args:
        chat: The conversation.
        format: The page's protocol.
        thread_id: AG-UI's id of the thread.
        run_id: AG-UI's id of the run.
        client_tools: As for `read_request`.
    """
    state = await last_turn(chat)
    if state is None or state.status != "running":
        return None
    if format == "ai-sdk":
        return _followed(_Screen(chat, state.turn_id, AISDKEncoder(state.turn_id), client_tools), [])
    page = await ui_messages(chat, format=format, client_tools=client_tools)
    messages = [message for message in page.messages if not message["id"].startswith(DRAFT)]
    ids = [message["id"] for message in messages]
    shown = messages[ids.index(state.turn_id) + 1 :] if state.turn_id in ids else []
    screen = _Screen(chat, state.turn_id, AGUIEncoder(thread_id, run_id, shown), client_tools)
    return _followed(screen, [{"type": "MESSAGES_SNAPSHOT", "messages": messages}])


class _Screen:
    """What one client sees of a turn."""

    def __init__(
        self, chat: Conversation, turn_id: str, encoder: AISDKEncoder | AGUIEncoder, client_tools: Collection[str]
    ) -> None:
        self.chat, self.turn_id, self.encoder, self._client_tools = chat, turn_id, encoder, client_tools
        self._writer, self._sources = PartWriter(output_limit=20_000, media_limit=500_000), dict[str, list[Source]]()
        self._turn = read_turn(turn_id, (), self._writer)

    async def read(self, messages: Sequence[BaseMessage], waiting: Sequence[str], **known: Any) -> None:
        """Take over what the log has of the turn."""
        results = [str(message.id) for message in messages if isinstance(message, ToolMessage)]
        if new := [id_ for id_ in results if id_ not in self._sources][-MAX_IDS:]:
            self._sources |= {tool.tool_message_id: tool.sources for tool in await self.chat.get_tool_messages(new)}
        known |= {"waiting": waiting, "client_tools": self._client_tools, "sources": self._sources}
        self._turn = read_turn(self.turn_id, messages, self._writer, **known)
        self._writer.report.clear()

    def show(self, reply: StreamedReply | None = None) -> Iterator[Event]:
        """Yield what is new, with the reply that is being streamed."""
        live = self._live(reply) if reply else []
        yield from self.encoder.show(replace(self._turn, steps=[*self._turn.steps, *live]))

    def _live(self, reply: StreamedReply) -> list[Step]:
        """Return the reply so far as a step whose last text and calls are not complete."""
        known = [step for step in self._turn.steps if step.role == "assistant"]
        used = {part.get("toolCallId", "") for step in known for part in step.parts} - {""}
        try:
            said = [message for message in normalize_messages(reply.message() or ()) if isinstance(message, AIMessage)]
        except InvalidInputError:  # nothing yet, or nothing that is a message without the rest
            return []
        id_ = f"{DRAFT}{self.turn_id}:{len(known)}"
        drafts = [message.model_copy(update={"id": id_}) for message in said]
        steps = read_turn(self.turn_id, drafts, self._writer).steps
        for step in steps:
            step.parts = [part for part in step.parts if part.get("toolCallId") not in used]
            for part in step.parts:
                if "toolCallId" in part:
                    part |= {"state": "input-streaming", "input": reply.arguments.get(part["toolCallId"], "")}
            if step.parts and "text" in step.parts[-1]:
                step.parts[-1]["state"] = "streaming"
        return [step for step in steps if step.parts]

    async def end(self, messages: Sequence[BaseMessage], waiting: Sequence[str], outcome: Outcome) -> Iterator[Event]:
        """Return the last events; of an answer that is over, with the metadata that pages show."""
        is_over, id_ = outcome in ("finished", "stopped"), answer_id(self.turn_id)
        shown = (await ui_messages(self.chat, limit=1)).messages if is_over else []
        metadata = {message["id"]: message["metadata"] for message in shown if message["id"] == id_}
        await self.read(messages, waiting, metadata=metadata, is_over=is_over)
        return iter([*self.show(), *self.encoder.end(outcome)])

    def sent(self, events: Iterable[Event]) -> Iterator[bytes]:
        """Yield events as they are sent."""
        for event in events:
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
            if event["type"] in ("finish", "abort", "error"):
                yield b"data: [DONE]\n\n"


async def _answer(
    turn: TurnSession,
    chunks: AsyncGenerator[Any, None],
    screen: _Screen,
    events: asyncio.Queue[bytes | None],
    on_error: Callable[[Exception], str],
) -> None:
    """Run a loop in its turn, and send what it does."""

    def send(found: Iterable[Event]) -> None:
        for event in screen.sent(found):
            events.put_nowait(event)

    reply, seen = StreamedReply(), 0
    send(screen.encoder.start())
    try:
        async with turn, aclosing(_news(turn, chunks)) as news:
            async for count, chunk in news:
                messages = turn.messages[:count]
                if chunk is None or count != seen:
                    await screen.read(messages, _waiting(turn))
                    reply = StreamedReply() if any(message.type == "ai" for message in messages[seen:]) else reply
                    seen = count
                if _is_new(chunk, messages):
                    with suppress(InvalidInputError):  # not of a reply
                        reply.add(chunk)
                send(screen.show(reply))
        ended: Outcome = "finished" if turn.is_finished else "waiting" if turn.is_waiting else "unfinished"
        send(await screen.end(turn.messages, _waiting(turn), "stopped" if turn.is_stopped else ended))
    except Exception as error:  # noqa: BLE001 - the client is told
        send(screen.encoder.fail(on_error(error)))
    finally:
        events.put_nowait(None)


def _waiting(turn: TurnSession) -> list[str]:
    return [call.result_id for call in turn.waiting_calls]


def _is_new(chunk: Any, messages: Sequence[BaseMessage]) -> bool:
    """Return True for a chunk of a reply that is not in the log; an agent also yields whole messages."""
    if isinstance(chunk, BaseMessage):
        return isinstance(chunk, AIMessageChunk) and (not chunk.id or chunk.id not in {kept.id for kept in messages})
    return chunk is not None


async def _news(turn: TurnSession, chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[tuple[int, Any], None]:
    """Yield the chunks of a loop, and None after each append, each with the number of messages of the turn."""
    news, changed = asyncio.Queue[tuple[int, Any] | None](), observed(turn)[1]

    async def pump() -> None:
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    news.put_nowait((len(turn.messages), chunk))
        finally:
            news.put_nowait(None)

    async def look() -> None:
        while True:
            changed.clear()
            news.put_nowait((len(turn.messages), None))
            await changed.wait()

    tasks = asyncio.create_task(look()), asyncio.create_task(pump())
    try:
        while item := await news.get():
            yield item
        await tasks[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _followed(screen: _Screen, first: Iterable[Event]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a turn that another worker answers, as the log and its drafts show it."""
    for event in screen.sent([*screen.encoder.start(), *first]):
        yield event
    found, page, is_over = await screen.chat.get_turn(screen.turn_id), list[Any](), False
    after = found.first - 1 if found else None
    async with aclosing(screen.chat.watch(after=after, limit=1, full=True)) as updates:
        while not is_over:
            update = await anext(updates)
            page = [stored for stored in page if stored.ordinal < update.replaces_from] + update.messages
            if update.turn or not update.messages:  # else earlier messages are still to come
                is_over, events = await _follow(screen, [stored.message for stored in page], update.turn)
                for event in screen.sent(events):
                    yield event


async def _follow(
    screen: _Screen, messages: list[BaseMessage], state: TurnState | None
) -> tuple[bool, Iterator[Event]]:
    """Return whether a turn is over, and the events of what the log shows of it now."""
    if state is None or state.status == "interrupted":
        return True, screen.encoder.fail(_INTERRUPTED if state else "The conversation was deleted.")
    waiting, own = [call.result_id for call in state.waiting_calls], _of_turn(screen.turn_id, messages)
    if state.variant_id:  # the answer that it replaces is not shown here
        own = []
    if state.turn_id != screen.turn_id:
        return True, await screen.end(own, [], "finished")
    if state.status != "running":
        return True, await screen.end(own, waiting, state.status)
    await screen.read(own, waiting)
    reply = StreamedReply()
    reply.add(state.draft)
    return False, screen.show(reply if state.draft else None)


def _of_turn(turn_id: str, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a turn: those from its question to the next one."""
    questions = [at for at, message in enumerate(messages) if message.type == "human"] + [len(messages)]
    found = (messages[at:end] for at, end in pairwise(questions) if messages[at].id == turn_id)
    return list(next(found, ()))
