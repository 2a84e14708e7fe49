"""Conversations of known shapes, to measure how much of each model call a prompt cache has."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from oracle import CHARACTERS, count_letters

Batches = Iterator[list[BaseMessage]]


class Writer:
    """Writes messages of given sizes, with ids; two texts differ from their first character on."""

    def __init__(self) -> None:
        self._messages = 0

    def text(self, tokens: int) -> str:
        """Return a text of this many tokens."""
        number = f"{self._messages:05}"[::-1]
        return (number + "x" * tokens * CHARACTERS)[: tokens * CHARACTERS]

    def ask(self, tokens: int) -> list[BaseMessage]:
        """Return a batch with a question."""
        return [HumanMessage(self.text(tokens), id=self._id())]

    def answer(self, tokens: int) -> list[BaseMessage]:
        """Return a batch with an answer."""
        return [AIMessage(self.text(tokens), id=self._id())]

    def step(self, tokens: int, *, sources: int = 0, tool: str = "search") -> list[BaseMessage]:
        """Return a batch with a call and its result."""
        call = f"call {self._messages}"
        asked = AIMessage(
            "",
            tool_calls=[{"name": tool, "args": {"query": self.text(8)}, "id": call}],
            id=self._id(),
        )
        found = [(f"{self._messages} {at}", {"title": f"Part {at}"}) for at in range(sources)]
        result = ToolMessage(
            self.text(tokens), tool_call_id=call, name=tool, artifact=found or None, id=self._id()
        )
        return [asked, result]

    def _id(self) -> str:
        self._messages += 1
        return f"m{self._messages}"


def _chat(writer: Writer) -> Batches:
    for _ in range(120):
        yield writer.ask(40)
        yield writer.answer(300)


def _retrieval(writer: Writer) -> Batches:
    for _ in range(50):
        yield writer.ask(25)
        yield writer.step(3_500, sources=10)
        yield writer.answer(250)


def _large_results(writer: Writer) -> Batches:
    for _ in range(30):
        yield writer.ask(25)
        yield writer.step(18_000, sources=9)
        yield writer.step(18_000, sources=9)
        yield writer.answer(250)


def _paste(writer: Writer) -> Batches:
    for turn in range(60):
        yield writer.ask(40_000 if turn == 30 else 60)
        yield writer.answer(400)


def _agent(writer: Writer) -> Batches:
    yield writer.ask(80)
    for step in range(120):
        yield writer.step(2_500 if step % 5 == 2 else 350, tool="shell")
    yield writer.answer(300)


def _mixed(writer: Writer) -> Batches:
    chosen = random.Random(5)
    for _ in range(40):
        yield writer.ask(chosen.choice([20, 60, 60, 2_000]))
        for _ in range(chosen.choice([0, 0, 1, 1, 2, 12])):
            yield writer.step(
                chosen.choice([100, 350, 1_200, 3_500, 9_000]), sources=chosen.choice([0, 5])
            )
        yield writer.answer(chosen.choice([150, 400, 400, 1_500]))


WORKLOADS: dict[str, Callable[[Writer], Batches]] = {
    "short chat": _chat,
    "retrieval": _retrieval,
    "large results": _large_results,
    "paste": _paste,
    "agent run": _agent,
    "mixed": _mixed,
}
"""Each writes the batches of a conversation. A model is called after each batch that no answer ends."""


def calls_model(batch: Sequence[BaseMessage]) -> bool:
    """Return True if a model is called after a batch."""
    return batch[-1].type != "ai"


class Cache:
    """The share of the tokens sent that are in the longest prefix shared with the call before.

    Attributes:
        sent: Tokens of all calls but the first.
        cached: Those of them in the shared prefix.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.cached = 0
        self._last: list[str] | None = None

    def add(self, messages: Sequence[BaseMessage]) -> None:
        """Count a call."""
        call = [
            f"{message.type} {message.content!r} {getattr(message, 'tool_calls', '')!r}"
            for message in messages
        ]
        if self._last is not None:
            shared = next(
                (
                    at
                    for at, pair in enumerate(zip(call, self._last, strict=False))
                    if len({*pair}) > 1
                ),
                None,
            )
            self.cached += count_letters(
                messages[: min(len(call), len(self._last)) if shared is None else shared]
            )
            self.sent += count_letters(messages)
        self._last = call

    @property
    def share(self) -> float:
        """Cached tokens for each token sent."""
        return self.cached / max(1, self.sent)
