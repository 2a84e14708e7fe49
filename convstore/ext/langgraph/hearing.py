"""Hear the models of a graph that runs in a turn: keep a draft of a streamed reply, and end the call at a stop.

A node that calls a model is the application's, so the store's nodes do not see the tokens. A callback handler does: it
is registered with langchain-core once, and hears every call of a model in this process. It does nothing but in a node
of a graph whose load node has joined the turn that the caller entered. LangChain then calls it in the task of the node,
and raises its errors there, which ends the call of the model.
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
class Joined:
    """A turn that a graph has joined.

    Attributes:
        held: The turn as its caller holds it.
        redact: Returns the text that a draft may hold; None for no drafts.
        said: Ids and texts of the replies that were complete before somebody asked to stop.
        calls: The calls of models that are heard.
    """

    held: HeldTurn
    redact: Callable[[str], str] | None = None
    said: set[str] = field(default_factory=set)
    calls: dict[UUID, object] = field(default_factory=dict)

    def check(self) -> None:
        """Raise an error if the turn was taken over, or is to be stopped and is not over."""
        self.held.lease.check(may_stop=not self.held.must_stop)

    def begin_draft(self, reply: StreamedReply, done: asyncio.Event) -> None:
        """Keep a draft of a reply until an event is set; not in a thread without an event loop."""
        redact = self.redact
        if redact is not None:
            work = self._draft(lambda: redact(reply.text), done)
            drafting = asyncio.get_running_loop().create_task(work)

            async def drop() -> None:
                done.set()  # no handler hears the end of a call that is cancelled
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
        if self.held.must_stop:  # what was said becomes the answer
            await drop()
        return drop

    def taken(self, messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
        """Return the messages that are still taken: those before a reply that came after somebody asked to stop."""
        return messages if not self.held.must_stop else messages[: self._first_late(messages)]

    def _first_late(self, messages: Sequence[BaseMessage]) -> int:
        late = (
            at
            for at, each in enumerate(messages)
            if isinstance(each, AIMessage) and not self._was_said(each)
        )
        return next(late, len(messages))

    def _was_said(self, message: AIMessage) -> bool:
        return message.id in self.said or (bool(message.text) and message.text in self.said)


def check_entered(chat: Conversation) -> None:
    """Raise an error if the turn that the caller of a graph entered is to be stopped, or was taken over."""
    held = TurnAccess(chat).held()
    if held is not None:
        Joined(held).check()


def join_turn(held: HeldTurn) -> Joined:
    """Let a graph work in a turn that its caller entered, or that its run holds."""
    joined: Joined = held.notes.setdefault(Joined, Joined(held))
    return joined


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Call:
    """A call of a model that is heard, in a turn."""

    joined: Joined
    reply: StreamedReply = field(default_factory=StreamedReply)
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Hearing(BaseCallbackHandler):
    """Hears the models of graphs in turns; see the module."""

    run_inline = True
    raise_error = True

    def __init__(self) -> None:
        # Sessions hold their calls: LangChain reports the end of a cancelled call to no handler.
        self._calls = WeakValueDictionary[UUID, _Call]()

    @property
    def ignore_chain(self) -> bool:
        """Hear no graph, node or other Runnable."""
        return True

    def on_chat_model_start(
        self,
        *_: Any,
        run_id: UUID,
        tags: Sequence[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **__: Any,
    ) -> None:
        """Hear a call of a node; an error if the turn is to be stopped."""
        held = TurnAccess.innermost()
        if held is None or held.record.is_finished or is_asking():
            return
        joined: Joined | None = held.notes.get(Joined)
        if joined is None or "langgraph_node" not in (metadata or {}) or NO_STREAM in (tags or ()):
            return
        joined.check()
        call = self._calls[run_id] = joined.calls[run_id] = _Call(joined)
        held.drafts.streamed = call.reply
        if has_loop():
            joined.begin_draft(call.reply, call.done)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **_: Any) -> None:
        """Add a chunk; an error if the turn is to be stopped."""
        call = self._calls.get(run_id)
        if call is None:
            return
        call.joined.check()
        try:
            call.reply.add(chunk.message)
        except (AttributeError, InvalidInputError):  # no chunk of a chat model
            self._end(run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> None:
        """Note a reply that is complete."""
        call = self._end(run_id)
        if call is None or call.joined.held.must_stop:
            return
        for generations in response.generations:
            for generation in generations:
                message = getattr(generation, "message", None)
                if isinstance(message, AIMessage):
                    call.joined.said |= {text for text in (message.id, message.text) if text}
        call.joined.held.drafts.forget(
            call.reply
        )  # a node appends it, or it is no reply to the user

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Forget a call that failed; what it said by a stop is the answer."""
        call = self._end(run_id)
        if call is not None and not call.joined.held.must_stop:
            call.joined.held.drafts.forget(call.reply)

    def _end(self, run_id: UUID) -> _Call | None:
        call = self._calls.pop(run_id, None)
        if call is not None:
            call.joined.calls.pop(run_id, None)
            call.done.set()
        return call


_HEARING: ContextVar[BaseCallbackHandler | None] = ContextVar(
    "convstore_hearing",
    default=Hearing(),  # noqa: B039
)
register_configure_hook(_HEARING, inheritable=True)
