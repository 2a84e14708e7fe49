"""Random conversations for tests of views: what is appended, rewound and loaded, in which order.

A script keeps the log as a plain list, so that an oracle can follow it with or without a store.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from oracle import CHARACTERS, Log

from convstore import HistoryPolicy

_MARK = 30
"""Tokens of the mark in a shortened text, at most."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Append:
    """A batch to append."""

    messages: list[BaseMessage]


@dataclass(frozen=True)
class Rewind:
    """A rewind to make, or to undo if there is no id."""

    before: str = ""


@dataclass(frozen=True)
class Load:
    """A view to load: the numbers of its policy and of its process."""

    policy: int
    process: int


Event = Append | Rewind | Load


@dataclass
class Script:
    """Writes a random conversation.

    Attributes:
        random: Decides everything.
        budget: Tokens that sizes of messages are measured against.
        policies: How many policies load views.
        processes: How many processes do.
        rewinds: How often a rewind is made, between 0 and 1.
        log: What was appended so far.
    """

    random: random.Random
    budget: int
    policies: int = 1
    processes: int = 1
    rewinds: float = 0.04
    log: Log = field(default_factory=Log)
    _messages: int = 0

    def events(self, calls: int) -> Iterator[Event]:
        """Yield events with this many loads; the log already has an event when it is yielded."""
        shape = self.random.choice(_SHAPES)
        if self.random.random() < 0.3:
            yield self._append(SystemMessage(self.text(self.random.randint(1, 40)), id=self._id()))
        if self.random.random() < 0.1:
            yield self._append(AIMessage(self.text(10), id=self._id()))
        done = 0
        while done < calls:
            for event in self._turn(shape):
                yield event
                if self.random.random() < 0.9:
                    yield self.load()
                    done += 1
            for event in self._going_back():
                yield event
                yield self.load()
                done += 1

    def load(self) -> Load:
        """A load by one of the policies, the first one mostly."""
        policy = 0 if self.random.random() < 0.6 else self.random.randrange(self.policies)
        return Load(policy, self.random.randrange(self.processes))

    def ask(self) -> Append:
        """A short question."""
        return self._append(HumanMessage(self.text(5), id=self._id()))

    def text(self, tokens: int) -> str:
        """A text without spaces, so that it is shortened to exactly the tokens it keeps."""
        self._texts = getattr(self, "_texts", 0) + 1
        letter = _LETTERS[self._texts % len(_LETTERS)]
        return f"{self._texts:06}{letter * (tokens * CHARACTERS)}"[: max(1, tokens) * CHARACTERS]

    def _id(self) -> str:
        self._messages += 1
        return f"m{self._messages}"

    def _append(self, *messages: BaseMessage) -> Append:
        self.log.append(messages)
        return Append(list(messages))

    def _turn(self, shape: Shape) -> Iterator[Event]:
        yield self._append(HumanMessage(self.text(self._size(shape.question)), id=self._id()))
        for _ in range(self.random.randint(*shape.steps)):
            call, results = self._step(shape)
            if self.random.random() < 0.2:
                yield self._append(call)
                yield self._append(*results)
            else:
                yield self._append(call, *results)
        if self.random.random() < 0.93:  # else the user asks again
            yield self._append(AIMessage(self.text(self._size(shape.answer)), id=self._id()))

    def _step(self, shape: Shape) -> tuple[BaseMessage, list[BaseMessage]]:
        calls = [
            f"call {self._id()}"
            for _ in range(1 if self.random.random() < 0.8 else self.random.randint(2, 3))
        ]
        argument = self.random.choice([4, 4, 4, self._size(shape.argument)])
        said = self.text(self._size(shape.argument)) if self.random.random() < 0.2 else ""
        name = self.random.choice(["search", "search", "shell"])
        arguments = [{"query": self.text(argument if at == 0 else 4)} for at in range(len(calls))]
        asked = [
            {"name": name, "args": item, "id": call}
            for item, call in zip(arguments, calls, strict=True)
        ]
        answered = [self._result(shape, call, name) for call in calls]
        return AIMessage(said, tool_calls=asked, id=self._id()), answered

    def _result(self, shape: Shape, call: str, name: str) -> BaseMessage:
        sources = self.random.choice([0, 0, 3, 10])
        found = [(self.text(3), {"title": f"Part {at}"}) for at in range(sources)]
        status = "error" if self.random.random() < 0.05 else "success"
        text = self.text(self._size(shape.result))
        return ToolMessage(
            text, tool_call_id=call, name=name, artifact=found or None, id=self._id(), status=status
        )

    def _size(self, share: tuple[float, float]) -> int:
        """A number of tokens between two shares of the budget, small ones more often."""
        low, high = share
        tokens = max(2, int(self.budget * low * (high / low) ** self.random.random()))
        return max(
            [tokens, *(limit + _MARK for limit in self._limits() if limit < tokens < limit + _MARK)]
        )

    def _limits(self) -> list[int]:
        """The limits of texts under the policies of a test: a text little above one may be cut further, or stay."""
        budgets = (self.budget // 3, self.budget, self.budget * 4 // 3)
        return [budget // 8 for budget in budgets]

    def _going_back(self) -> Iterator[Event]:
        if self.random.random() >= self.rewinds or not self.log.active:
            return
        questions = [line for line in self.log.active if line.message.type == "human"]
        choices = [*questions[-1:] * 4, *questions[-3:], *self.log.active[-6:]]
        before = str(self.random.choice(choices).message.id)
        self.log.rewind(before)
        yield Rewind(before)
        if self.random.random() < 0.3:
            self.log.undo_rewind()
            yield Rewind()


@dataclass(frozen=True)
class Shape:
    """The sizes of a kind of conversation or of turn, as shares of the budget."""

    question: tuple[float, float] = (0.002, 0.02)
    answer: tuple[float, float] = (0.005, 0.1)
    argument: tuple[float, float] = (0.002, 0.3)
    result: tuple[float, float] = (0.01, 0.3)
    steps: tuple[int, int] = (0, 2)


_SHAPES: Sequence[Shape] = [
    Shape(steps=(0, 0)),
    Shape(),
    Shape(result=(0.2, 0.7), steps=(1, 2)),
    Shape(question=(0.005, 1.3), steps=(0, 1)),
    Shape(answer=(0.05, 1.1), steps=(0, 1)),
    Shape(result=(0.01, 0.4), steps=(3, 25)),
    Shape(argument=(0.05, 0.5), steps=(2, 8)),
    Shape(
        question=(0.003, 1.2),
        answer=(0.003, 1.2),
        argument=(0.003, 1),
        result=(0.003, 1.5),
        steps=(0, 4),
    ),
    Shape(question=(0.01, 0.4), answer=(0.01, 0.4), steps=(0, 1)),
]

VARIANTS: Sequence[Callable[[int], HistoryPolicy]] = [
    lambda budget: HistoryPolicy(max_tokens=budget * 4 // 3),
    lambda budget: HistoryPolicy(max_tokens=budget // 3),
    lambda budget: HistoryPolicy(max_tokens=budget, stub_tools="never"),
    lambda budget: HistoryPolicy(max_tokens=budget, never_stub=frozenset({"shell"})),
    lambda budget: HistoryPolicy(max_tokens=budget, max_turns=1),
    lambda budget: HistoryPolicy(max_tokens=budget, max_turns=5),
    lambda budget: HistoryPolicy(max_tokens=budget, max_turns=8),
    lambda budget: HistoryPolicy(max_tokens=budget, view="conversation"),
]


def policies(chosen: random.Random, budget: int, *, count: int) -> list[HistoryPolicy]:
    """The default policy with this budget, and others."""
    return [
        HistoryPolicy(max_tokens=budget),
        *(policy(budget) for policy in chosen.sample(list(VARIANTS), count - 1)),
    ]
