"""A reply that is streamed is stored as the same reply that is appended whole, wherever the stream splits it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from model_replies import DIALECTS, Streamed, anthropic_reply, chat_reply, responses_reply

from convstore.append.inputs import normalize_messages
from convstore.exceptions import UnfinishedReplyError
from convstore.wire.streams import StreamedReply

_Api = Callable[[Random], Streamed]
_CLOSING = ("message_delta", "response.completed", "response.incomplete")


def _chat_of(dialect: str) -> _Api:
    return lambda random: chat_reply(random, dialect)


APIS: list[_Api] = [responses_reply, anthropic_reply, *map(_chat_of, DIALECTS)]


def read(events: list[Any]) -> StreamedReply:
    """Return the reply of some events."""
    reply = StreamedReply()
    for event in events:
        reply.add(event)
    return reply


def stored(given: Any) -> BaseMessage:
    """Return the message that something becomes; an id that was made up is left out."""
    [message] = normalize_messages(given, new_id=lambda: "new")
    return message


def check(random: Random, api: _Api) -> None:
    """Stream a reply whole and cut, and compare it with the reply that is appended."""
    sent = api(random)
    before = repr(sent.events)
    whole = read(sent.events)
    assert stored(whole.whole()) == stored(sent.whole)
    assert whole.text == sent.text
    assert repr(sent.events) == before
    last = next(at for at, event in enumerate(sent.events) if _is_closing(event))
    cut = random.randint(1, last) if last else 0
    half = read(sent.events[:cut])
    assert sent.text.startswith(half.text)
    with pytest.raises(UnfinishedReplyError, match="ask the model again"):
        half.whole()
    if (made := half.message()) is not None:
        assert stored(made).text in half.text  # a refusal stands beside the text


def _is_closing(event: dict[str, Any]) -> bool:
    choices = event.get("choices") or [{}]
    return event.get("type") in _CLOSING or bool(choices[0].get("finish_reason"))


def test_a_streamed_reply_is_stored_as_an_appended_one() -> None:
    """For each API, and each dialect of the servers that have the API of Chat Completions; a cut stream is refused."""
    for seed in range(200):
        try:
            check(Random(seed), APIS[seed % len(APIS)])
        except Exception as error:
            error.add_note(f"with seed {seed}")
            raise


@pytest.mark.slow
def test_many_streamed_replies_are_stored_as_appended_ones() -> None:
    """The same for more of them."""
    for seed in range(200, 2_200):
        try:
            check(Random(seed), APIS[seed % len(APIS)])
        except Exception as error:
            error.add_note(f"with seed {seed}")
            raise
