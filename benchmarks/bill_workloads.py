"""Conversations whose bill is computed: generated ones of several shapes, and recorded files.

Generated texts are seeded. They hold what an agent needs again later: order numbers, amounts and paths, each of them
in one message only.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.append.inputs import normalize_messages
from convstore.messages.text import text_of
from convstore.transfer import ConversationRecord, read_file
from convstore.transfer.dicts import as_item

__all__ = ["SHAPES", "Workload", "facts_of", "generated", "recorded"]

_WORDS = re.findall(
    r"\w+",
    """
    account archive basket battery border bottle branch bridge budget button cabin camera carbon carpet castle
    channel charter circle client coffee column copper corner cotton credit custom danger decade degree delay desert
    design device dinner doctor dragon driver editor effect engine estate fabric family farmer figure filter finger
    flight forest garden guitar harbor height helmet honey island jacket kernel ladder launch lawyer leader legend
    letter limit liquid machine margin market master member memory metal method mirror module motion museum needle
    """,
)
_FACT = re.compile(
    r"(?:/[\w.-]+){2,}|\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{6,}\b|\b\d+[.,]\d{2,}\b|\b\d{5,}\b"
)
_WORDS_PER_TOKEN = 0.6
"""Measured for `_WORDS` with the approximation of the store."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A conversation to be replayed.

    Attributes:
        name: Shape, or file.
        messages: All messages, with ids, in order.
    """

    name: str
    messages: Sequence[BaseMessage]

    def calls(self) -> Iterator[int]:
        """Return the indexes of the answers of the model; the messages before one are what the call is about."""
        return (
            index for index, message in enumerate(self.messages) if index and message.type == "ai"
        )


class _Writer:
    """Writes the messages of one generated conversation."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)  # noqa: S311 - it makes texts
        self.messages: list[BaseMessage] = []

    def text(self, tokens: int, *, facts: int = 1) -> str:
        """Return about so many tokens of words with some facts between them."""
        words = self._random.choices(_WORDS, k=max(1, int(tokens * _WORDS_PER_TOKEN)))
        for _ in range(facts):
            words.insert(self._random.randrange(len(words) + 1), self._fact())
        return " ".join(words)

    def _fact(self) -> str:
        number = self._random.randrange(10**7, 10**8)
        return self._random.choice(
            [f"W{number}", f"/srv/{self._random.choice(_WORDS)}/{number}.log", f"{number}.25"]
        )

    def ask(self, tokens: int) -> None:
        self._add(HumanMessage(self.text(tokens)))

    def answer(self, tokens: int) -> None:
        self._add(AIMessage(self.text(tokens)))

    def search(self, *, count: int, tokens: int, tool: str = "search") -> None:
        """Add a call and its result: passages with addresses, or one text without sources for a count of 0."""
        call = f"call_{len(self.messages):06}"
        self._add(
            AIMessage(
                "",
                tool_calls=[{"name": tool, "args": {"query": self.text(8, facts=0)}, "id": call}],
            )
        )
        passages = [
            (self.text(tokens), {"url": f"https://example.org/{call}/{at}"}) for at in range(count)
        ]
        content = "\n\n".join(
            f"[{at}] {text}" for at, (text, _) in enumerate(passages, 1)
        ) or self.text(tokens, facts=3)
        self._add(ToolMessage(content, tool_call_id=call, name=tool, artifact=passages or None))

    def _add(self, message: BaseMessage) -> None:
        message.id = f"message-{len(self.messages):06}"
        self.messages.append(message)


def _chat(writer: _Writer, _turn: int) -> None:
    writer.ask(40)
    writer.answer(300)


def _retrieval(writer: _Writer, _turn: int) -> None:
    writer.ask(25)
    writer.search(count=10, tokens=350)
    writer.answer(250)


def _large_results(writer: _Writer, _turn: int) -> None:
    writer.ask(25)
    for _ in range(2):
        writer.search(count=9, tokens=2_000)
    writer.answer(250)


def _pastes(writer: _Writer, turn: int) -> None:
    writer.ask(12_000 if turn % 12 == 5 else 60)
    writer.answer(400)


def _agent(writer: _Writer, _turn: int) -> None:
    writer.ask(80)
    for step in range(25):
        writer.search(count=0, tokens=2_500 if step % 5 == 2 else 350, tool="shell")
    writer.answer(300)


SHAPES: dict[str, tuple[Callable[[_Writer, int], None], int]] = {
    "chat": (_chat, 150),
    "retrieval": (_retrieval, 50),
    "large results": (_large_results, 25),
    "pastes": (_pastes, 80),
    "agent runs": (_agent, 8),
}
"""How one turn of a shape is written, and the number of its turns."""


def generated(*, scale: float = 1.0) -> list[Workload]:
    """Return a conversation of each shape; `scale` multiplies its number of turns."""
    workloads = []
    for name, (write, turns) in SHAPES.items():
        writer = _Writer(name)
        for turn in range(max(1, round(turns * scale))):
            write(writer, turn)
        workloads.append(Workload(name, writer.messages))
    return workloads


def recorded(paths: Iterable[Path], *, limit: int) -> Iterator[Workload]:
    """Return the longest conversations of each file that `convstore import` reads."""
    for path in paths:
        records = [record for record in read_file(path) if isinstance(record, ConversationRecord)]
        longest = sorted(records, key=lambda record: len(record.messages), reverse=True)[:limit]
        yield from map(partial(_replayable, path.name), longest)


def _replayable(file: str, record: ConversationRecord) -> Workload:
    given = [item.message for item in map(as_item, record.messages) if item.message is not None]
    messages = normalize_messages(given)
    for index, message in enumerate(messages):
        message.id = f"message-{index:06}"
    return Workload(file, messages)


def facts_of(
    messages: Sequence[BaseMessage], *, limit: int, seed: int = 0
) -> list[tuple[int, str]]:
    """Return a sample of the ids, numbers and paths of a conversation, each with the index of its only message."""
    places: dict[str, set[int]] = {}
    for index, message in enumerate(messages):
        for fact in _FACT.findall(text_of(message.content)):
            places.setdefault(fact, set()).add(index)
    only = sorted((min(found), fact) for fact, found in places.items() if len(found) == 1)
    chosen = random.Random(seed)  # noqa: S311 - a sample
    return sorted(chosen.sample(only, min(limit, len(only))))
