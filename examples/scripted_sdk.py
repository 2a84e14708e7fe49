"""A client for the examples on OpenAI's SDK: of a real model if the environment names one, else scripted.

    MODEL=gpt-5 python examples/openai_loop.py      # needs the package openai, and OPENAI_API_KEY

A script is a function from the messages of a request to the reply: a text, or calls of tools as pairs of a name and
arguments. `client` returns an object with the part of the SDK's client that a loop uses, whole and streamed. Its
replies have the attributes and the `model_dump` of the SDK's own, and it refuses calls without results, as OpenAI does.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

MODEL = os.environ.get("MODEL", "")
"""Name of the model that is asked; "" if replies come from a script."""

Calls: TypeAlias = Sequence[tuple[str, dict[str, Any]]]
Script: TypeAlias = Callable[[list[dict[str, Any]]], str | Calls]


class Shape(BaseModel):
    """An object of the SDK: it has the fields that the server sent."""

    model_config = ConfigDict(extra="allow")


def client(script: Script, *, pause: float = 0.0) -> Any:
    """Return `openai.AsyncOpenAI()` if `MODEL` is set, else a client whose replies come from `script`.

    `pause` is the time between two chunks of a scripted stream, in seconds.
    """
    if MODEL:
        return import_module("openai").AsyncOpenAI()  # only a real model needs the package
    return ScriptedClient(script, pause=pause)


class ScriptedClient:
    """A client whose `chat.completions.create` returns replies of a script."""

    def __init__(self, script: Script, *, pause: float = 0.0) -> None:
        self.script, self.pause, self.requests = script, pause, list[list[dict[str, Any]]]()
        self.chat = self.completions = self

    async def create(
        self, *, messages: list[dict[str, Any]], stream: bool = False, **_: Any
    ) -> Any:
        """Return a completion, or with `stream` an iterator of its chunks.

        Raises:
            ValueError: OpenAI would refuse the messages.
        """
        check(messages)
        self.requests.append(list(messages))
        said, number = self.script(messages), len(self.requests)
        text = said if isinstance(said, str) else None
        made = [] if isinstance(said, str) else said
        calls = [call_of(*pair, id_=f"call_{number}_{at}") for at, pair in enumerate(made)]
        return (
            chunks(text, calls, number, pause=self.pause)
            if stream
            else completion(text, calls, number)
        )


def check(messages: Sequence[dict[str, Any]]) -> None:
    """Raise a ValueError if a call has no result, or a result has no call."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])  # raises ValueError for an unknown call
            continue
        if waiting:
            break
        waiting = [call["id"] for call in message.get("tool_calls", ())]
    if waiting:
        raise ValueError(
            f"The following tool_call_ids did not have response messages: {', '.join(waiting)}"
        )


def call_of(name: str, arguments: dict[str, Any], *, id_: str) -> dict[str, Any]:
    """Return a call as the API writes it."""
    return {
        "id": id_,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def completion(text: str | None, calls: list[dict[str, Any]], number: int) -> Any:
    """Return a whole reply: a `ChatCompletion`."""
    message = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
    counts = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return shaped({**_head("chat.completion", number), "choices": [choice], "usage": counts})


async def chunks(
    text: str | None, calls: list[dict[str, Any]], number: int, *, pause: float
) -> AsyncIterator[Any]:
    """Yield the same reply as `ChatCompletionChunk`s: a word at a time, arguments in two parts."""
    for delta in [{"role": "assistant", "content": ""}, *_deltas(text, calls), {}]:
        reason = None if delta else "tool_calls" if calls else "stop"
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        yield shaped({**_head("chat.completion.chunk", number), "choices": [choice]})
        await asyncio.sleep(pause)


def shaped(value: Any) -> Any:
    """Return dicts as objects with attributes, also those in lists."""
    return json.loads(json.dumps(value), object_hook=lambda fields: Shape(**fields))


def _head(kind: str, number: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number}",
        "object": kind,
        "created": number,
        "model": MODEL or "scripted",
    }


def _deltas(text: str | None, calls: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    words = (text or "").split(" ")
    yield from ({"content": word if at == 0 else f" {word}"} for at, word in enumerate(words))
    for index, call in enumerate(calls):
        function, half = call["function"], len(call["function"]["arguments"]) // 2
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        for part in (function["arguments"][:half], function["arguments"][half:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
