"""Sum the stored tokens, calls and costs of conversations, for the inspector and the command line.

Listings have the totals of each conversation and of each sub-agent. The sums of tools, replaced answers and summaries
need the logs, which `Sums.read` reads without large results.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.edges import with_children
from convstore.exceptions import ConvstoreError
from convstore.ext.model_calls import ResultPairing
from convstore.integration import host_of, log_of
from convstore.messages.provenance import model_of
from convstore.messages.usage import usage_in
from convstore.sources.stub import RETRIEVAL_TOOL, stub_sources
from convstore.types import ConversationInfo, StoredMessage
from convstore.values.list_rows import ListRow, document_of
from convstore.values.usage import Prices, Usage, cost_of

_Sum = TypeVar("_Sum")
_FIELDS = 4
"""Number of metadata fields that get a table."""
_MOST_GROUPS = 10_000
"""Groups of a table; all further values are summed in one group."""
_OTHERS = "(others)"
_WORD = re.compile(r"[^\s,;\[\]\"']+")


@dataclass(slots=True)
class GroupSum:
    """Sums of a group of conversations, answers or summaries.

    Attributes:
        name: The name of the group.
        number: The number of conversations, answers or summaries.
        turns: Turns of the conversations, without those of sub-agents.
        tokens: Tokens that the conversations store. This and all following sums include sub-agents.
        failed: Failed tool results.
        usage: Tokens as providers counted them.
        unpriced: Tokens of models without a price.
        cost: Cost of all other tokens.
    """

    name: str
    number: int = 0
    turns: int = 0
    tokens: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    unpriced: int = 0
    cost: float = 0.0

    def add(
        self, family: Sequence[ConversationInfo], billed: Mapping[str, Usage], prices: Prices
    ) -> None:
        """Add a conversation, followed by those of its sub-agents, and the tokens billed for all of them, by model."""
        self.turns += family[0].turns
        self.tokens += sum(member.tokens for member in family)
        self.failed += sum(member.failed for member in family)
        self.number += 1
        for model, usage in billed.items():
            self.add_billed(usage, prices.get(model))

    def add_billed(self, usage: Usage, price: Sequence[float] | None) -> None:
        """Add tokens as a provider counted them, and their cost."""
        self.usage = self.usage.plus(usage)
        if price:
            self.cost += cost_of(usage, price)
        else:
            self.unpriced += usage.tokens

    def document(self, unit: str = "conversations", *stored: str) -> dict[str, Any]:
        """Return the sums for JSON: the number under the name `unit`, the `stored` attributes, and `bill`."""
        return {
            "name": self.name,
            unit: self.number,
            **{name: getattr(self, name) for name in stored},
            **self.bill(),
        }

    def bill(self) -> dict[str, Any]:
        """Return the billed tokens and their cost; None for a value that is not known."""
        billed = self.usage.tokens
        counts = {name: count if billed else None for name, count in self.usage._asdict().items()}
        return {
            **counts,
            "cost": None if self.unpriced == billed else self.cost,
            "tokens_without_price": self.unpriced,
        }


def billed_for(conversations: Iterable[ConversationInfo]) -> dict[str, Usage]:
    """Return the tokens that providers counted for conversations, by model."""
    billed: dict[str, Usage] = {}
    for info in conversations:
        for model, counts in info.usage.items():
            billed[model] = billed.get(model, Usage()).plus(Usage(**counts))
    return billed


def bill_for(name: str, conversations: Iterable[ConversationInfo], prices: Prices) -> GroupSum:
    """Return a group with the billed tokens of conversations and their cost."""
    group = GroupSum(name)
    for model, usage in billed_for(conversations).items():
        group.add_billed(usage, prices.get(model))
    return group


def cost_columns(info: ConversationInfo, prices: Prices) -> dict[str, Any]:
    """Return the cost of a conversation without its sub-agents, for a row of a list; empty without prices."""
    bill = bill_for("", [info], prices).bill()
    return {name: bill[name] for name in ("cost", "tokens_without_price")} if prices else {}


async def row_documents(
    store: ConversationStore, rows: Sequence[ListRow], prices: Prices
) -> list[dict[str, Any]]:
    """Return the rows of a list for JSON; costs do not include sub-agents."""
    named = await host_of(store).titled([row.info for row in rows])
    return [
        document_of(row, info.title, cost_columns(row.info, prices))
        for row, info in zip(rows, named, strict=True)
    ]


@dataclass(slots=True)
class ToolSum:
    """Sums of one tool: its calls, failed results, results that were read again, and how often each size occurs."""

    name: str
    calls: int = 0
    failed: int = 0
    read_back: int = 0
    sizes: Counter[int] = field(default_factory=Counter)

    @property
    def tokens(self) -> int:
        """The total size of the results, in tokens."""
        return sum(size * number for size, number in self.sizes.items())

    def percentile(self, percent: int) -> int:
        """Return the smallest size that at least `percent` percent of the results do not exceed; 0 without results.

        >>> ToolSum("search", sizes=Counter([100, 200, 300, 9_000])).percentile(50)
        200
        """
        wanted = -(-percent * self.sizes.total() // 100)
        sizes = sorted(self.sizes)
        reached = accumulate(self.sizes[size] for size in sizes)
        found = zip(sizes, reached, strict=True)
        return next((size for size, number in found if number >= wanted), 0)

    def document(self) -> dict[str, Any]:
        """Return the sums for JSON."""
        counts = {name: getattr(self, name) for name in ("name", "calls", "failed", "tokens")}
        shares = {f"tokens_p{percent}": self.percentile(percent) for percent in (50, 95)}
        return counts | shares | {"read_back": self.read_back}


def by_tool(
    messages: Sequence[StoredMessage], sums: dict[str, ToolSum] | None = None
) -> list[ToolSum]:
    """Return the sums of each tool in messages of one log, which are added to `sums`.

    Tools are sorted by failed results, then by calls, both descending.
    """
    sums = {} if sums is None else sums
    read_back = read_back_in(messages)
    names = names_of_results(messages)
    for stored in messages:
        for call in _calls_in(stored):
            _group(sums, call["name"], ToolSum).calls += 1
        if stored.ordinal in names:
            tool = _group(sums, names[stored.ordinal], ToolSum)
            tool.failed += stored.is_failed
            tool.sizes[stored.tokens] += 1
            tool.read_back += stored.ordinal in read_back
    return sorted(sums.values(), key=lambda tool: (-tool.failed, -tool.calls, tool.name))


def names_of_results(messages: Sequence[StoredMessage]) -> dict[int, str]:
    """Return the tool's name of each result by its ordinal: from the result, else from its call, else ""."""
    results = ResultPairing()
    names: dict[int, str] = {}
    for stored in messages:
        answered = results.add(stored)
        if isinstance(stored.message, ToolMessage):
            names[stored.ordinal] = stored.message.name or (answered.tool if answered else "")
    return names


def read_back_in(messages: Sequence[StoredMessage]) -> set[int]:
    """Return the ordinals of the results that a model read again, judged by the given messages of one log."""
    requested = frozenset(_words_of_retrievals(messages))
    if not requested:
        return set()
    return {
        stored.ordinal for stored in messages if not requested.isdisjoint(_retrieval_ids(stored))
    }


def _calls_in(stored: StoredMessage) -> Sequence[Any]:
    return stored.message.tool_calls if isinstance(stored.message, AIMessage) else ()


def _words_of_retrievals(messages: Iterable[StoredMessage]) -> Iterator[str]:
    """Yield the words in the arguments of calls that read results again."""
    for stored in messages:
        for call in _calls_in(stored):
            if call["name"] == RETRIEVAL_TOOL:
                yield from _WORD.findall(json.dumps(call["args"], default=repr))


def _retrieval_ids(stored: StoredMessage) -> set[str]:
    """Return the ids by which a result can be read again: its message id, its ordinal, the numbers of its sources.

    A page of the retrieval tool has no numbers of its own, only those of the results that it repeats.
    """
    message = stored.message
    if not isinstance(message, ToolMessage):
        return set()
    numbers = stub_sources(message.text) if message.name != RETRIEVAL_TOOL else ()
    return {str(message.id), f"m{stored.ordinal}", *map(str, numbers)}


class Sums:
    """Sums of conversations: together, by each scope key, by the first fields of metadata, and by model.

    All sums include sub-agents; the tokens billed for sub-agents are also summed separately. Conversations whose logs
    are read are also summed by tool, and their replaced answers and summaries separately. The size of the sums is
    bounded, however many conversations are added.

    Attributes:
        prices: The prices by model.
        together: The sums of all conversations.
        logs: Number of conversations whose logs were read, each with those of its sub-agents.
        unread: Number of conversations whose logs could not be read, as they are damaged or were deleted meanwhile.
    """

    def __init__(self, scope_keys: Sequence[str], prices: Prices) -> None:
        self.prices = prices
        self.together = GroupSum("all")
        self.logs = 0
        self.unread = 0
        self._without_children = 0
        self._damaged = 0
        self._tables = {key: dict[str, GroupSum]() for key in scope_keys}
        self._fields: dict[str, dict[str, GroupSum]] = {}
        self._models: dict[str, GroupSum] = {}
        self._tools: dict[str, ToolSum] = {}
        self._children = GroupSum("sub-agents, of the billed")
        self._replaced = GroupSum("replaced answers, of the billed")
        self._summaries = GroupSum("summaries, not among the billed")

    async def add_family(self, store: ConversationStore, info: ConversationInfo) -> None:
        """Add a conversation with its sub-agents."""
        family = [info]
        try:
            family = [member async for member in with_children(store, info)]
        except ConvstoreError:
            self._without_children += 1
        self.add(family)

    def add(self, family: Sequence[ConversationInfo]) -> None:
        """Add a conversation, followed by those of its sub-agents."""
        info, *children = family
        billed = billed_for(family)
        for child in children:
            self._children.add([child], billed_for([child]), self.prices)
        self._damaged += bool(info.problem)
        for name in info.metadata:
            if name not in self._fields and len(self._fields) < _FIELDS:
                # the conversations added before have no value for this field
                self._fields[name] = {"": replace(self.together, name="")}
        self.together.add(family, billed, self.prices)
        for key, groups in self._tables.items():
            _group(groups, info.scope.get(key, ""), GroupSum).add(family, billed, self.prices)
        for name, groups in self._fields.items():
            value = _text_of(info.metadata.get(name))
            _group(groups, value, GroupSum).add(family, billed, self.prices)
        for name, usage in billed.items():
            model = _group(self._models, name, GroupSum)
            model.number += 1
            model.add_billed(usage, self.prices.get(name))

    async def read(self, store: ConversationStore, info: ConversationInfo) -> None:
        """Add the sums from the logs of a conversation and its sub-agents; their totals are added by `add`."""
        try:
            for member in [member async for member in with_children(store, info)]:
                await self._read_log(store.conversation(**member.scope))
        except ConvstoreError:
            self.unread += 1
            return
        self.logs += 1

    async def _read_log(self, chat: Conversation) -> None:
        messages = [stored async for stored in log_of(chat).skim()]
        summaries = await chat.summaries()
        by_tool([stored for stored in messages if not stored.is_rewound], self._tools)
        self._add_replaced(stored.message for stored in messages if stored.is_rewound)
        for summary in summaries:
            self._summaries.number += 1
            self._summaries.add_billed(Usage(summary.tokens_in, summary.tokens_out), None)

    def _add_replaced(self, rewound: Iterable[BaseMessage]) -> None:
        for message in rewound:
            if isinstance(message, AIMessage):
                self._replaced.number += 1
                price = self.prices.get(model_of(message) or "unknown")
                self._replaced.add_billed(usage_in(message) or Usage(), price)

    def document(self) -> dict[str, Any]:
        """Return all sums for JSON, the largest group of each table first; None for a value that is not known."""
        models = sorted(self._models.values(), key=lambda model: -model.usage.tokens)
        found = {
            "damaged": self._damaged,
            "together": _stored(self.together),
            "by": {title: [*map(_stored, groups)] for title, groups in self._shared()},
            "models": [model.document() for model in models],
            "without_sub_agents": self._without_children,
            "apart": [self._children.document("number")] if self._children.number else [],
        }
        if not self.logs and not self.unread:
            return found
        apart = (self._children, self._replaced, self._summaries)
        return found | {
            "logs_read": self.logs,
            "logs_not_read": self.unread,
            "tools": [tool.document() for tool in by_tool((), self._tools)],
            "apart": [group.document("number") for group in apart],
        }

    def _shared(self) -> Iterator[tuple[str, list[GroupSum]]]:
        """Yield the tables in which a named group has several conversations; groups are sorted by size, descending."""
        fields = {f"metadata {name}": groups for name, groups in self._fields.items()}
        for title, groups in (self._tables | fields).items():
            found = sorted(groups.values(), key=lambda group: -group.number)
            if any(group.number > 1 and group.name not in ("", _OTHERS) for group in found):
                yield title, [group for group in found if group.number]


def _stored(group: GroupSum) -> dict[str, Any]:
    return group.document("conversations", "turns", "tokens", "failed")


def _text_of(value: Any) -> str:
    """Return a value of metadata as text; "" for a missing value, a list or an object."""
    return str(value) if isinstance(value, str | int | float) else ""


def _group(groups: dict[str, _Sum], name: str, new: Callable[[str], _Sum]) -> _Sum:
    """Return the group with a name, which is made if it is missing; the group of all others if there are too many."""
    if name not in groups and len(groups) >= _MOST_GROUPS:
        name = _OTHERS
    if name not in groups:
        groups[name] = new(name)
    return groups[name]
