"""Random conversations of awkward messages, for tests of what views promise under any policy and counter.

Texts of dense scripts, calls with many or nested arguments, contents of many blocks, results that are missing, late,
repeated or of no call: sizes go from a token to twice the budget.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately
from view_scripts import Shape

from convstore import Conversation, HistoryPolicy
from convstore.messages.tokens import approximate_tokens

COUNTERS: Sequence[Any]


def count_characters(messages: Sequence[BaseMessage]) -> int:
    """A dense counter: a token for each character of what a provider gets."""
    return sum(
        len(json.dumps(_sent(message), ensure_ascii=False, default=str)) for message in messages
    )


def _sent(message: BaseMessage) -> list[Any]:
    calls = (
        [*message.tool_calls, *message.invalid_tool_calls] if isinstance(message, AIMessage) else []
    )
    return [message.type, message.content, calls, getattr(message, "tool_call_id", "")]


COUNTERS = (approximate_tokens, approximate_tokens, count_tokens_approximately, count_characters)

_SCRIPTS = ("word ", "word ", "word ", "x", "订单", "заказ ", "😀", 'a"\n\\', "é\n", '{"a": 1}, ')
_SIGNS_PER_TOKEN = {"订单": 1, "😀": 1, "заказ ": 2}


@dataclass
class Talk:
    """Writes a random conversation, and knows what it wrote.

    Attributes:
        random: Decides everything.
        budget: Tokens that sizes are measured against.
        per_token: Characters of English text for a token.
        written: Every message appended, by id.
        active: The messages of the log, without rewound ones.
    """

    random: random.Random
    budget: int
    per_token: int = 4
    written: dict[str, BaseMessage] = field(default_factory=dict)
    active: list[BaseMessage] = field(default_factory=list)
    _late: list[ToolMessage] = field(default_factory=list)

    def batches(self) -> Iterator[tuple[list[BaseMessage], bool]]:
        """Yield batches to append, without end, and True if a model is called after it."""
        pick = self.random
        if pick.random() < 0.4:
            yield (
                self._add(SystemMessage(self.text(self.size(0.001, pick.choice([0.05, 0.9]))))),
                False,
            )
        if pick.random() < 0.1:
            yield self._add(AIMessage(self.text(10))), False
        while True:
            yield from self._turn(pick.choice(_SHAPES))

    async def rewind(self, chat: Conversation) -> None:
        """Rewind to one of the last messages."""
        first = self.random.randrange(max(1, len(self.active) - 8), len(self.active) + 1)
        if removed := self.active[first:]:
            await chat.rewind(before_id=str(removed[0].id))
            self.active = self.active[:first]

    def _turn(self, shape: Shape) -> Iterator[tuple[list[BaseMessage], bool]]:
        pick = self.random
        yield self._add(HumanMessage(self.content(shape.question, asked=True))), True
        if pick.random() < 0.03:
            yield self._add(SystemMessage(self.text(self.size(0.001, 0.1)))), False
        for _ in range(pick.randint(*shape.steps)):
            asked, answered = self._step(shape)
            if answered and pick.random() < 0.2:
                yield self._add(asked), False
                for part in (answered[: len(answered) // 2], answered[len(answered) // 2 :]):
                    if part:
                        yield self._add(*part), part is not answered[: len(answered) // 2]
            else:
                yield self._add(asked, *answered), True
            if self._late and pick.random() < 0.3:
                yield self._add(self._late.pop()), False
        if pick.random() < 0.93:
            yield self._add(AIMessage(self.content(shape.answer))), False

    def _step(self, shape: Shape) -> tuple[AIMessage, list[BaseMessage]]:
        pick = self.random
        number = pick.choice([1, 1, 1, 1, 2, 3, pick.choice([5, 50])])
        name = pick.choice(["search", "shell", "shell", "n" * 60, "n" * self.size(0.001, 0.1)])
        calls = [self._call(name, shape, small=at > 0) for at in range(number)]
        content: Any = self.content(shape.argument) if pick.random() < 0.3 else ""
        is_block, invalid = pick.random() < 0.2, list[Any]()
        if is_block:
            content = (
                content
                if isinstance(content, list)
                else [{"type": "text", "text": content or "So:"}]
            )
            blocks = [
                {"type": "tool_use", "id": call["id"], "name": name, "input": call["args"]}
                for call in calls
            ]
            content = [*content, *blocks]
            calls = [] if pick.random() < 0.1 else calls
        if pick.random() < 0.06:
            bad = {
                "name": name,
                "args": "{" + self.text(self.size(*shape.argument)),
                "id": self._name("bad"),
            }
            invalid = [bad | {"error": "no JSON", "type": "invalid_tool_call"}]
        message = AIMessage(content, tool_calls=calls, invalid_tool_calls=invalid)
        asked = [call["id"] for call in calls] + [call["id"] for call in invalid]
        if is_block and not calls:
            asked += [block["id"] for block in blocks]
        return message, self._results(shape, asked, name)

    def _results(self, shape: Shape, asked: Sequence[str], name: str) -> list[BaseMessage]:
        pick, made = self.random, list[BaseMessage]()
        high = shape.result[1] / max(1, len(asked) / 2)
        for call in asked:
            result = self._result(call, name, (min(shape.result[0], high / 2), high))
            fate = pick.random()
            if fate < 0.03:
                self._late.append(result)
            elif fate >= 0.05:
                made.append(result)
            if 0.95 < fate < 0.97:
                made.append(self._result(call, name, shape.result))
        if pick.random() < 0.04:
            made.append(self._result(self._name("nothing"), name, shape.result))
        if pick.random() < 0.1:
            pick.shuffle(made)
        return made

    def _result(self, call: str, name: str, share: tuple[float, float]) -> ToolMessage:
        pick = self.random
        content: Any = self.text(self.size(*share))
        if pick.random() < 0.15:
            content = [{"type": "text", "text": content}, self._image()]
        found = [
            (self.text(3), {"title": f"Part {at}"}) for at in range(pick.choice([0, 0, 0, 3, 10]))
        ]
        status = "error" if pick.random() < 0.05 else "success"
        return ToolMessage(
            content, tool_call_id=call, name=name, artifact=found or None, status=status
        )

    def _call(self, name: str, shape: Shape, *, small: bool) -> dict[str, Any]:
        tokens = 4 if small or self.random.random() < 0.5 else self.size(*shape.argument)
        call = self._name("call " if self.random.random() < 0.97 else "c" * 400)
        return {"name": name, "args": self._arguments(tokens), "id": call, "type": "tool_call"}

    def _arguments(self, tokens: int) -> dict[str, Any]:
        """Arguments of about so many tokens, in one of many shapes."""
        pick = self.random
        many = pick.choice([3, 30, 300])
        share = max(1, tokens // many)
        shapes: list[Callable[[], Any]] = [
            lambda: self.text(tokens),
            lambda: self.text(tokens),
            lambda: [self.text(share) for _ in range(many)],
            lambda: [{"path": f"{at}.py", "text": self.text(share)} for at in range(many)],
            lambda: [*range(1_000, 1_000 + max(1, tokens // 2))],
            lambda: {
                self.text(max(1, share // 2)) + str(at): self.text(max(1, share // 2))
                for at in range(many)
            },
            lambda: self._nested(pick.choice([3, 12]), self.text(tokens)),
        ]
        return {"query": pick.choice(shapes)()}

    def _nested(self, depth: int, value: Any) -> Any:
        return {"in": self._nested(depth - 1, value)} if depth else value

    def content(self, share: tuple[float, float], *, asked: bool = False) -> Any:
        """A text, or blocks."""
        pick = self.random
        tokens = self.size(*share)
        if pick.random() < 0.6:
            return self.text(tokens)
        number = pick.choice([1, 2, 5, 40])
        kinds = [self._plain, self._plain, self._string, self._image_of]
        kinds += (
            [self._document] if asked else [self._reasoning, self._reasoning, self._server_tool]
        )
        return [
            block for _ in range(number) for block in pick.choice(kinds)(max(1, tokens // number))
        ]

    def _plain(self, tokens: int) -> list[Any]:
        return [{"type": "text", "text": self.text(tokens)}]

    def _string(self, tokens: int) -> list[Any]:
        return [self.text(tokens)]

    def _document(self, tokens: int) -> list[Any]:
        source = {"type": "text", "media_type": "text/plain", "data": self.text(tokens)}
        return [{"type": "document", "source": source}]

    def _reasoning(self, tokens: int) -> list[Any]:
        if self.random.random() < 0.5:
            return [{"type": "thinking", "thinking": self.text(tokens), "signature": "s" * 20}]
        return [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": self.text(tokens)}]}
        ]

    def _server_tool(self, tokens: int) -> list[Any]:
        id_ = self._name("srv")
        found = [
            {"type": "web_search_result", "title": "x", "encrypted_content": self.text(tokens)}
        ]
        return [
            {
                "type": "server_tool_use",
                "id": id_,
                "name": "web_search",
                "input": {"query": self.text(3)},
            },
            {"type": "web_search_tool_result", "tool_use_id": id_, "content": found},
        ]

    def _image_of(self, _tokens: int) -> list[Any]:
        return [self._image()]

    def _image(self) -> dict[str, Any]:
        size = self.random.choice([40, 400, 30_000])
        if self.random.random() < 0.5:
            return {"type": "image", "base64": "A" * size, "mime_type": "image/png"}
        return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}

    def text(self, tokens: int) -> str:
        """A text of about so many tokens in one of several scripts, unlike any other."""
        script = self.random.choice(_SCRIPTS)
        length = max(1, tokens * min(self.per_token, _SIGNS_PER_TOKEN.get(script, self.per_token)))
        begin = f"{len(self.written)}-{self.random.randrange(1000)} "
        return (begin + script * (length // len(script) + 1))[:length]

    def size(self, low: float, high: float) -> int:
        """A number of tokens between two shares of the budget, small ones more often."""
        return max(1, int(self.budget * low * (high / low) ** self.random.random()))

    def _name(self, kind: str) -> str:
        self._named = getattr(self, "_named", 0) + 1
        return f"{kind}{self._named}"

    def _add(self, *messages: BaseMessage) -> list[BaseMessage]:
        for message in messages:
            message.id = self._name("m")
            if self.random.random() < 0.02:
                message.id += "é]\n" * self.random.choice([1, 100])
            self.written[message.id] = message.model_copy(deep=True)
        self.active += messages
        return list(messages)


_SHAPES: Sequence[Shape] = [
    Shape(steps=(0, 0)),
    Shape(),
    Shape(result=(0.2, 0.7), steps=(1, 2)),
    Shape(question=(0.005, 1.3), steps=(0, 1)),
    Shape(answer=(0.05, 1.1), steps=(0, 1)),
    Shape(result=(0.01, 0.4), steps=(3, 12)),
    Shape(argument=(0.05, 0.8), steps=(2, 6)),
    Shape(
        question=(0.003, 1.2),
        answer=(0.003, 1.2),
        argument=(0.003, 1),
        result=(0.003, 1.5),
        steps=(0, 4),
    ),
    Shape(question=(0.01, 0.4), answer=(0.01, 0.4), steps=(0, 1)),
]


def policy_of(pick: random.Random, budget: int) -> HistoryPolicy:
    """A random policy with this budget."""
    options: dict[str, Any] = {}
    for name, values in _OPTIONS.items():
        if pick.random() < 0.35:
            options[name] = pick.choice(values)
    return HistoryPolicy(max_tokens=budget, **options)


_OPTIONS: dict[str, Sequence[Any]] = {
    "shorten_over": [5, 50, 400, 1_000, 1_200, 4_000],
    "media": ["never"],
    "never_stub": [frozenset({"shell"})],
    "stub_tools": ["never"],
    "max_turns": [1, 5],
    "view": ["conversation"],
}
