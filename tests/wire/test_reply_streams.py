"""A reply that is streamed is stored as the same reply that is appended whole, wherever the stream splits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from model_replies import DIALECTS, Streamed, anthropic_reply, chat_reply, responses_reply

from convstore.append.inputs import normalize_messages
from convstore.exceptions import InvalidInputError, UnfinishedReplyError
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


_WRONG = (None, "", 0, -1, [], {}, "x", [1], [None], {"a": 1}, True, 1.5, [[]])


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in a value."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*path, key)
            yield from _paths(value[key], (*path, key))


def _with(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    """Return a copy of a value with another one at a place."""
    made = deepcopy(value)
    parent = made
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = wrong
    return made


@pytest.mark.slow
def test_wrong_values_anywhere_raise_typed_errors() -> None:
    """In each field of each event of a stream, and of a whole reply."""
    for seed in range(24):
        random = Random(seed)
        sent = APIS[seed % len(APIS)](random)
        for at, event in enumerate(sent.events):
            for path in _paths(event):
                events = [*sent.events]
                events[at] = _with(event, path, random.choice(_WRONG))
                with suppress(InvalidInputError):
                    reply = read(events)
                    assert isinstance(reply.text, str)
                    normalize_messages(reply.message() or {"role": "assistant"})
                    normalize_messages(reply.whole())
        for path in _paths(sent.whole):
            for wrong in _WRONG:
                with suppress(InvalidInputError):
                    normalize_messages(_with(sent.whole, path, wrong))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_the_objects_of_the_sdks_are_read_as_their_dicts() -> None:
    """Events and whole replies; what the SDKs put together themselves is equal, where a stream follows the protocol."""
    from anthropic._models import construct_type as anthropic_type  # noqa: PLC0415 - slow to import
    from anthropic.lib.streaming import _messages as anthropic_streams  # noqa: PLC0415
    from anthropic.types import Message, RawMessageStreamEvent  # noqa: PLC0415
    from openai._models import construct_type  # noqa: PLC0415
    from openai.lib.streaming.chat import ChatCompletionStreamState  # noqa: PLC0415
    from openai.types.chat import ChatCompletion, ChatCompletionChunk  # noqa: PLC0415
    from openai.types.responses import Response, ResponseStreamEvent  # noqa: PLC0415

    types: dict[int, Any] = {
        0: (ResponseStreamEvent, Response),
        1: (RawMessageStreamEvent, Message),
    }
    compared = 0
    for seed in range(400):
        number = seed % len(APIS)
        sent = APIS[number](Random(seed))
        of_event, of_whole = types.get(number, (ChatCompletionChunk, ChatCompletion))
        make: Any = anthropic_type if number == 1 else construct_type
        events = [make(type_=of_event, value=event) for event in sent.events]
        message = stored(read(events).whole())
        assert message == stored(sent.whole) == stored(make(type_=of_whole, value=sent.whole))
        if number == 1:
            snapshot: Any = None
            buffers: dict[int, bytes] = {}
            for event in events:
                if getattr(event, "type", "ping") != "ping":
                    snapshot = anthropic_streams.accumulate_event(
                        event=event, current_snapshot=snapshot, json_bufs=buffers
                    )
            assert stored(snapshot) == message
            compared += 1
        elif APIS[number] is APIS[2] and _is_of_protocol(sent.whole):
            state: Any = ChatCompletionStreamState()
            helped = [each for event in events for each in state.handle_chunk(event)]
            assert stored(state.get_final_completion()) == stored(read(helped).whole()) == message
            compared += 1
    assert compared > 40


def _is_of_protocol(whole: dict[str, Any]) -> bool:
    """Return True for a completion that the SDK's accumulator neither refuses nor spoils."""
    [choice] = whole["choices"]
    message = choice["message"]
    is_plain = all(call["type"] == "function" for call in message.get("tool_calls", ()))
    is_text = not isinstance(message["content"], list)
    return (
        is_plain
        and is_text
        and choice["finish_reason"] != "length"
        and ("reasoning_details" not in message)
    )
