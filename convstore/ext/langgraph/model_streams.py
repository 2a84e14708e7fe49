"""Follow the model calls of a graph in a turn: keep a draft of a streamed reply, and end the call at a stop.

The application's own nodes call the models, so the store's nodes do not see the tokens. A callback handler does: it is
registered with langchain-core once, and is called for every model call in this process. It only acts in a node of a
graph whose load node has joined the turn that the caller entered. LangChain calls it in the task of the node and raises
its errors there, which ends the model call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tracers.context import register_configure_hook

from convstore import Conversation
from convstore.exceptions import InvalidInputError
from convstore.ext.around import NO_STREAM, is_asking
from convstore.ext.loops import has_loop
from convstore.integration import HeldTurn, TurnAccess
from convstore.wire.streams import StreamedReply


@dataclass(eq=False, slots=True)
class JoinedTurn:
    """A turn that a graph has joined.

    Attributes:
        held: The turn, which the caller of the graph or the graph's run holds.
        redact: Redacts the text of drafts; None if no drafts are kept.
        completed: Ids and texts of the replies that were complete before a stop was requested.
        calls: The model calls in progress.
    """

    held: HeldTurn
    redact: Callable[[str], str] | None = None
    completed: set[str] = field(default_factory=set)
    calls: dict[UUID, object] = field(default_factory=dict)

    def check(self) -> None:
        """Raise an error if the turn was taken over by another worker, or if a requested stop is not in the log yet."""
        self.held.lease.check(may_stop=not self.held.must_stop)

    def begin_draft(self, reply: StreamedReply, done: asyncio.Event) -> None:
        """Keep a draft of a reply until an event is set; must be called in a thread with an event loop."""
        redact = self.redact
        if redact is not None:
            work = self._draft(lambda: redact(reply.text), done)
            drafting = asyncio.get_running_loop().create_task(work)

            async def drop() -> None:
                done.set()  # handlers are not called at the end of a cancelled call
                await (await drafting)()

            self.held.drafts.drop = drop

    async def _draft(
        self, text: Callable[[], str], done: asyncio.Event
    ) -> Callable[[], Awaitable[None]]:
        async with self.held.drafting(text, keeps=True) as drop:
            waiting = [
                asyncio.ensure_future(event.wait()) for event in (done, self.held.lease.ended)
            ]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waiting:
                    each.cancel()
        if self.held.must_stop:  # the text streamed so far becomes the answer
            await drop()
        return drop

    def accepted(self, messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
        """Return the messages before the first reply that was completed after a stop was requested."""
        return messages if not self.held.must_stop else messages[: self._first_late(messages)]

    def _first_late(self, messages: Sequence[BaseMessage]) -> int:
        late = (
            at
            for at, each in enumerate(messages)
            if isinstance(each, AIMessage) and not self._was_completed(each)
        )
        return next(late, len(messages))

    def _was_completed(self, message: AIMessage) -> bool:
        has_text = bool(message.text) and message.text in self.completed
        return has_text or message.id in self.completed


def check_entered(chat: Conversation) -> None:
    """Raise an error if the turn that the caller of a graph entered is being stopped, or was taken over."""
    held = TurnAccess(chat).held()
    if held is not None:
        JoinedTurn(held).check()


def join_turn(held: HeldTurn) -> JoinedTurn:
    """Let a graph work in a turn that its caller entered, or that its run holds."""
    joined: JoinedTurn = held.notes.setdefault(JoinedTurn, JoinedTurn(held))
    return joined


@dataclass(eq=False, slots=True, weakref_slot=True)
class _StreamedCall:
    """A model call in progress, in a turn."""

    joined: JoinedTurn
    reply: StreamedReply = field(default_factory=StreamedReply)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class _StreamHandler(BaseCallbackHandler):
    """Follows the model calls of graphs in turns; see the module."""

    run_inline = True
    raise_error = True

    def __init__(self) -> None:
        # Weak references, because LangChain does not report the end of a cancelled call. `JoinedTurn.calls` has the
        # strong ones.
        self._calls = WeakValueDictionary[UUID, _StreamedCall]()

    @property
    def ignore_chain(self) -> bool:
        """Ignore graphs, nodes and other Runnables."""
        return True

    def on_chat_model_start(
        self,
        *_: Any,
        run_id: UUID,
        tags: Sequence[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **__: Any,
    ) -> None:
        """Follow a model call of a node; raise an error if the turn is being stopped."""
        held = TurnAccess.innermost()
        if held is None or held.record.is_finished or is_asking():
            return
        joined: JoinedTurn | None = held.notes.get(JoinedTurn)
        if joined is None or "langgraph_node" not in (metadata or {}) or NO_STREAM in (tags or ()):
            return
        joined.check()
        call = self._calls[run_id] = joined.calls[run_id] = _StreamedCall(joined)
        held.drafts.streamed = call.reply
        if has_loop():
            joined.begin_draft(call.reply, call.done)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **_: Any) -> None:
        """Add a chunk; raise an error if the turn is being stopped."""
        call = self._calls.get(run_id)
        if call is None:
            return
        call.joined.check()
        try:
            call.reply.add(chunk.message)
        except (AttributeError, InvalidInputError):  # the chunk is not one of a chat model
            self._end(run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> None:
        """Record a complete reply."""
        call = self._end(run_id)
        if call is None or call.joined.held.must_stop:
            return
        for generations in response.generations:
            for generation in generations:
                message = getattr(generation, "message", None)
                if isinstance(message, AIMessage):
                    call.joined.completed |= {text for text in (message.id, message.text) if text}
        # a node appends it, or it is not a reply to the user
        call.joined.held.drafts.forget(call.reply)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Forget a failed call, unless a stop was requested: then the text streamed so far becomes the answer."""
        call = self._end(run_id)
        if call is not None and not call.joined.held.must_stop:
            call.joined.held.drafts.forget(call.reply)

    def _end(self, run_id: UUID) -> _StreamedCall | None:
        call = self._calls.pop(run_id, None)
        if call is not None:
            call.joined.calls.pop(run_id, None)
            call.done.set()
        return call


_STREAM_HANDLER: ContextVar[BaseCallbackHandler | None] = ContextVar(
    "convstore_model_streams",
    default=_StreamHandler(),  # noqa: B039
)
register_configure_hook(_STREAM_HANDLER, inheritable=True)
