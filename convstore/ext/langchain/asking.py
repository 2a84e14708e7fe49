"""Call the model: keep a draft of a streamed reply, and cancel the call if the turn is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

from langchain.agents.middleware.types import ModelResponse
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.runnables.config import (
    merge_configs,
    set_config_context,
    var_child_runnable_config,
)

from convstore import Conversation
from convstore.ext.around import NO_STREAM, turn_around
from convstore.integration import HeldTurn, TurnAccess
from convstore.wire.streams import StreamedReply

_Response = ModelResponse[Any]


class _StreamCollector(BaseCallbackHandler):
    """Collects the last reply that a model streams to the agent; it stays empty for a model that does not stream."""

    run_inline = True

    def __init__(self) -> None:
        self.reply = StreamedReply()
        self._run: UUID | None = None

    def on_chat_model_start(
        self, *_: Any, run_id: UUID, tags: Sequence[str] | None = None, **__: Any
    ) -> None:
        """Begin a reply; that of an earlier call, which failed or is repeated, is discarded."""
        if NO_STREAM not in (tags or ()):
            self.reply = StreamedReply()
            self._run = run_id

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **_: Any) -> None:
        """Add a chunk."""
        if run_id == self._run and chunk is not None:
            self.reply.add(chunk.message)

    @property
    def partial_message(self) -> AIMessage:
        """The text that was streamed so far, without calls."""
        message = self.reply.message()
        return AIMessage(
            self.reply.text, id=message.id, response_metadata=message.response_metadata
        )


async def ask(
    chat: Conversation,
    turn_id: str | None,
    work: Callable[[], Coroutine[Any, Any, _Response]],
    redact: Callable[[str], str] | None,
) -> _Response:
    """Call the model. With `redact` a draft of its streamed reply is kept until the reply is appended.

    If the turn, or that of an enclosing agent, is stopped meanwhile, the call is cancelled and the reply is the text
    that was streamed so far.

    Raises:
        TurnClosedError: The turn was over before the model was called, or was stopped before any text was streamed.
        TurnLostError: Another worker took the turn over.
    """
    own = TurnAccess(chat).held(turn_id)
    held = [turn for turn in (own, turn_around()) if turn]
    _check(held)
    if own and own.refusal:  # the turn is over, so its reply would be refused
        raise own.refusal
    stream = _StreamCollector()
    config = merge_configs(var_child_runnable_config.get() or {}, {"callbacks": [stream]})
    async with AsyncExitStack() as stack:
        if redact and own:
            drafting = own.drafting(lambda: redact(stream.reply.text), keeps=True)
            own.drafts.drop = await stack.enter_async_context(drafting)
        with set_config_context(config) as context:
            asking = asyncio.create_task(work(), context=context)
            response = await _until(asking, [turn.lease.ended for turn in held])
        if response is None and not stream.reply.text:
            _check(held)
        return response or ModelResponse(result=[stream.partial_message])


def _check(held: Sequence[HeldTurn]) -> None:
    """Raise an error if one of these turns is being stopped, or was taken over by another worker."""
    for turn in held:
        turn.lease.check(may_stop=False)


async def _until(
    asking: asyncio.Task[_Response], ended: Sequence[asyncio.Event]
) -> _Response | None:
    """Return the response of a model call; None if an event is set first, which cancels the call."""
    stopping = [asyncio.create_task(event.wait()) for event in ended]
    try:
        await asyncio.wait({asking, *stopping}, return_when=asyncio.FIRST_COMPLETED)
        return await asking if asking.done() else None
    finally:
        for each in (asking, *stopping):
            each.cancel()
        await asyncio.wait({asking, *stopping})
        if not asking.cancelled():
            # retrieved, so that asyncio does not log an error raised during the cancellation
            asking.exception()
