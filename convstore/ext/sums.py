"""Sum what conversations stored, called and cost, for the inspector and the command line.

Totals of a conversation come with its row of a listing. Those of tools, of replaced answers and of summaries need its
log, which `LogSums.read` reads without large results.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, ToolMessage

from convstore import ConversationStore
from convstore.edges import with_children
from convstore.exceptions import ConvstoreError
from convstore.integration import log_of
from convstore.messages.provenance import model_of
from convstore.messages.usage import usage_in
from convstore.sources.stub import RETRIEVAL_TOOL, stub_sources
from convstore.types import ConversationInfo, StoredMessage
from convstore.values.log_records import LogUse
from convstore.values.usage import Prices, Usage, cost_of

_Sum = TypeVar("_Sum")
_FIELDS = 4
"""Fields of metadata with a table."""
_MOST_GROUPS = 10_000
"""Groups of a table; the values that come after them are summed together."""
_OTHERS = "(others)"
_WORD = re.compile(r"[^\s,;\[\]\"']+")


@dataclass(slots=True)
class GroupSum:
    """Sums of the conversations of a group; `cost` is that of all billed tokens but the `unpriced` ones."""

    name: str
    conversations: int = 0
    turns: int = 0
    tokens: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    unpriced: int = 0
    cost: float = 0.0

    @property
    def billed(self) -> int:
        """Billed tokens, in and out; 0 if no provider counted any."""
        return self.usage.input_tokens + self.usage.output_tokens

    def add(self, info: ConversationInfo, prices: Prices) -> None:
        """Add a conversation, with the tokens of all its models."""
        self.conversations += 1
        self.turns += info.turns
        self.tokens += info.tokens
        self.failed += info.failed
        for model, counts in info.usage.items():
            self.add_billed(Usage(**counts), prices.get(model))

    def add_billed(self, usage: Usage, price: Sequence[float] | None) -> None:
        """Add tokens as a provider counted them, and what they cost."""
        self.usage = self.usage.plus(usage)
        if price:
            self.cost += cost_of(usage, price)
        else:
            self.unpriced += usage.input_tokens + usage.output_tokens

    def document(self) -> dict[str, Any]:
        """Return the sums for JSON; the cost is None if no billed token has a price."""
        cost = None if self.unpriced == self.billed else self.cost
        counts = {name: getattr(self, name) for name in ("conversations", "turns", "tokens")}
        named = {"name": self.name, **counts, "failed": self.failed, **self.usage._asdict()}
        return named | {"cost": cost, "tokens_without_price": self.unpriced}


@dataclass(slots=True)
class ToolSum:
    """The calls of one tool and its results: how often each size occurs, and how many were read again."""

    name: str
    calls: int = 0
    failed: int = 0
    read_back: int = 0
    sizes: Counter[int] = field(default_factory=Counter)

    @property
    def tokens(self) -> int:
        """The size of all results."""
        return sum(size * number for size, number in self.sizes.items())

    def percentile(self, percent: int) -> int:
        """Return the smallest size of a result that so many percent of the results do not exceed; 0 without results.

        >>> ToolSum("search", sizes=Counter([100, 200, 300, 9_000])).percentile(50)
        200
        """
        wanted = -(-percent * self.sizes.total() // 100)
        sizes = sorted(self.sizes)
        reached = accumulate(self.sizes[size] for size in sizes)
        return next(
            (size for size, number in zip(sizes, reached, strict=True) if number >= wanted), 0
        )

    def document(self) -> dict[str, Any]:
        """Return the sums for JSON."""
        counts = {name: getattr(self, name) for name in ("name", "calls", "failed", "tokens")}
        shares = {"tokens_p50": self.percentile(50), "tokens_p95": self.percentile(95)}
        return counts | shares | {"read_back": self.read_back}


def by_tool(uses: Sequence[LogUse], sums: dict[str, ToolSum] | None = None) -> list[ToolSum]:
    """Return the sums of each tool in a log, those with the largest results first; they are added to `sums`."""
    sums = {} if sums is None else sums
    again = read_back_in(uses)
    for use in uses:
        for call in use.calls:
            _group(sums, call["name"], ToolSum).calls += 1
        if use.tool is not None:
            tool = _group(sums, use.tool, ToolSum)
            tool.failed += use.is_failed
            tool.sizes[use.tokens] += 1
            tool.read_back += use.ordinal in again
    return sorted(sums.values(), key=lambda tool: -tool.tokens)


def read_back_in(uses: Sequence[LogUse]) -> set[int]:
    """Return the ordinals of the results that a model read again, as far as the messages of a log tell."""
    asked = frozenset(_names_asked(uses))
    return {use.ordinal for use in uses if not asked.isdisjoint(use.names)}


def _names_asked(uses: Iterable[LogUse]) -> Iterator[str]:
    """Yield the words in the arguments of calls that read results again."""
    for use in uses:
        for call in use.calls:
            if call["name"] == RETRIEVAL_TOOL:
                yield from _WORD.findall(json.dumps(call["args"], default=repr))


def uses_in(messages: Sequence[StoredMessage]) -> list[LogUse]:
    """Return what messages of a page say about tools, as `ConversationLog.uses` does of a whole log."""
    called = dict[str | None, str]()
    uses = list[LogUse]()
    for stored in messages:
        message = stored.message
        if isinstance(message, AIMessage):
            called |= {call["id"]: call["name"] for call in message.tool_calls}
            uses.append(LogUse(stored.ordinal, message.tool_calls))
        elif isinstance(message, ToolMessage):
            tool = message.name or called.get(message.tool_call_id, "")
            numbers = stub_sources(message.text) if tool != RETRIEVAL_TOOL else ()
            uses.append(
                LogUse(
                    stored.ordinal,
                    tool=tool,
                    tokens=stored.tokens,
                    is_failed=stored.is_failed,
                    names=(str(message.id), f"m{stored.ordinal}", *map(str, numbers)),
                )
            )
    return uses


@dataclass(slots=True)
class LogSums:
    """Sums of whole logs: of tools, of replaced answers and of summaries.

    Attributes:
        prices: The prices by model.
        conversations: The conversations that were read.
        unread: Those that could not be read: they are damaged, or were deleted meanwhile.
        tools: By the names of tools.
        replaced: The billed tokens of answers that were rewound or replaced; `answers` is their number.
        summaries: The number of summaries, the size of what they were made of, and their own.
        children: The conversations of sub-agents; their logs are not read.
    """

    prices: Prices
    conversations: int = 0
    unread: int = 0
    tools: dict[str, ToolSum] = field(default_factory=dict)
    replaced: GroupSum = field(default_factory=partial(GroupSum, "replaced"))
    answers: int = 0
    summaries: tuple[int, int, int] = (0, 0, 0)
    children: GroupSum = field(default_factory=partial(GroupSum, "sub-agents"))

    async def read(self, store: ConversationStore, info: ConversationInfo) -> None:
        """Add the log of a conversation."""
        chat = store.conversation(**info.scope)
        try:
            uses = [use async for use in log_of(chat).uses()]
            summaries = await chat.summaries()
            family = [member async for member in with_children(store, info)]
        except ConvstoreError:
            self.unread += 1
            return
        self.conversations += 1
        by_tool(uses, self.tools)
        for use in uses:
            if use.replaced:
                self._add_replaced(use.replaced)
        for child in family[1:]:
            self.children.add(child, self.prices)
        number, before, after = self.summaries
        before += sum(summary.tokens_in for summary in summaries)
        after += sum(summary.tokens_out for summary in summaries)
        self.summaries = (number + len(summaries), before, after)

    def _add_replaced(self, answer: AIMessage) -> None:
        self.answers += 1
        model = model_of(answer) or "unknown"
        self.replaced.add_billed(usage_in(answer) or Usage(), self.prices.get(model))

    def document(self) -> dict[str, Any]:
        """Return the sums for JSON."""
        number, before, after = self.summaries
        return {
            "logs_read": self.conversations,
            "logs_not_read": self.unread,
            "tools": [tool.document() for tool in by_tool((), self.tools)],
            "replaced": {**self.replaced.document(), "answers": self.answers},
            "sub_agents": self.children.document(),
            "summaries": {"number": number, "tokens_in": before, "tokens_out": after},
        }


class Sums:
    """Sums of conversations: together, by each scope key, by the first fields of metadata, and by model.

    Their size is bounded, however many conversations are added.

    Attributes:
        prices: The prices by model.
        together: All of them.
        models: The tokens that each model billed.
        damaged: The conversations of which the totals cannot be read.
    """

    def __init__(self, scope_keys: Sequence[str], prices: Prices) -> None:
        self.prices = prices
        self.together = GroupSum("all")
        self.models = dict[str, GroupSum]()
        self.damaged = 0
        self._scope = {key: dict[str, GroupSum]() for key in scope_keys}
        self._metadata = dict[str, dict[str, GroupSum]]()

    def add(self, info: ConversationInfo) -> None:
        """Add a conversation."""
        self.damaged += bool(info.problem)
        for name in info.metadata:
            if name not in self._metadata and len(self._metadata) < _FIELDS:
                # those before have no value
                self._metadata[name] = {"": replace(self.together, name="")}
        self.together.add(info, self.prices)
        for key, groups in self._scope.items():
            _group(groups, info.scope.get(key, ""), GroupSum).add(info, self.prices)
        for name, groups in self._metadata.items():
            value = _text_of(info.metadata.get(name))
            _group(groups, value, GroupSum).add(info, self.prices)
        for name, counts in info.usage.items():
            model = _group(self.models, name, GroupSum)
            model.conversations += 1
            model.add_billed(Usage(**counts), self.prices.get(name))

    def tables(self) -> dict[str, list[GroupSum]]:
        """Return the sums by what several conversations share, those with the most conversations first."""
        metadata = {f"metadata {name}": groups for name, groups in self._metadata.items()}
        tables = dict[str, list[GroupSum]]()
        for title, groups in (self._scope | metadata).items():
            found = [group for group in groups.values() if group.conversations]
            if any(group.conversations > 1 and group.name not in ("", _OTHERS) for group in found):
                tables[title] = sorted(found, key=lambda group: -group.conversations)
        return tables

    def unpriced(self) -> list[str]:
        """Return the models without a price; none if no model has one."""
        return [model for model in self.models if self.prices and model not in self.prices]

    def by_model(self) -> list[GroupSum]:
        """Return the tokens that each model billed, those with the most first."""
        return sorted(self.models.values(), key=lambda model: -model.billed)

    def document(self) -> dict[str, Any]:
        """Return the sums for JSON."""
        tables = {
            title: [group.document() for group in groups] for title, groups in self.tables().items()
        }
        models = ("turns", "tokens", "failed")
        return {
            "damaged": self.damaged,
            "together": self.together.document(),
            "by": tables,
            "models": [
                {name: value for name, value in model.document().items() if name not in models}
                for model in self.by_model()
            ],
        }


def _text_of(value: Any) -> str:
    """Return a value of metadata as text; "" for none, and for a list or an object."""
    return str(value) if isinstance(value, str | int | float) else ""


def _group(groups: dict[str, _Sum], name: str, new: Callable[[str], _Sum]) -> _Sum:
    """Return the group with a name, made if it is missing; that of all others if there are too many."""
    if name not in groups and len(groups) >= _MOST_GROUPS:
        name = _OTHERS
    if name not in groups:
        groups[name] = new(name)
    return groups[name]
