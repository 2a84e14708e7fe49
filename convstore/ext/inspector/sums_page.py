"""The page of sums: what the conversations that the form of the list selects have stored, called and cost together.

Sums by scope value, metadata and model cost no command. Those of tools, of replaced answers and of summaries need the
messages, which are read up to a limit that the page names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage
from starlette.requests import Request
from starlette.responses import Response

from convstore import ConversationStore
from convstore.exceptions import ConvstoreError, InvalidInputError
from convstore.ext.inspector.list_pages import address_of
from convstore.ext.inspector.list_selection import select
from convstore.ext.inspector.rendering import render
from convstore.ext.inspector.tool_sums import ToolSum, add_tools, by_tokens
from convstore.messages.provenance import model_of
from convstore.types import StoredMessage, Summary
from convstore.values.list_rows import ListRow

_GROUPS = 20
_KEYS = 4
"""Groups of a table, and fields of metadata with a table."""

_NEWEST = 300
_MOST_MESSAGES = 6_000
"""Messages that are read: the newest of each conversation, and of all together."""

_MILLION = 1_000_000

Prices = Mapping[str, tuple[float, float]]
"""The prices of a million tokens in and out, by model."""


def check_prices(prices: Any) -> Prices:
    """Return prices, {} for None; InvalidInputError unless they are two numbers by the name of a model."""
    if prices is None:
        return {}
    if not isinstance(prices, Mapping):
        raise InvalidInputError(f"prices must be a dict, not {type(prices).__name__}")
    for model, price in prices.items():
        if not isinstance(model, str) or not _is_price(price):
            raise InvalidInputError(
                f"the price of {model!r} must be two numbers that are not negative, those of a "
                'million tokens in and out, as in {"my-model": (2.5, 10)}'
            )
    return dict(prices)


def _is_price(price: Any) -> bool:
    if not isinstance(price, tuple | list) or len(price) != 2:
        return False
    return all(type(number) in (int, float) and number >= 0 for number in price)


@dataclass(slots=True)
class GroupSum:
    """Sums of the conversations of a group; `cost` is that of all billed tokens but the `unpriced` ones."""

    name: str
    conversations: int = 0
    turns: int = 0
    tokens: int = 0
    failed: int = 0
    billed_in: int = 0
    billed_out: int = 0
    unpriced: int = 0
    cost: float = 0.0

    @property
    def billed(self) -> int:
        """Billed tokens, in and out; 0 if no provider counted any."""
        return self.billed_in + self.billed_out

    def add(self, row: ListRow, prices: Prices) -> None:
        """Add a conversation, with the tokens of all its models."""
        self.conversations += 1
        self.turns += row.info.turns
        self.tokens += row.info.tokens
        self.failed += row.info.failed
        for model, usage in row.info.usage.items():
            self.add_billed(usage["input_tokens"], usage["output_tokens"], prices.get(model))

    def add_billed(self, count_in: int, count_out: int, price: tuple[float, float] | None) -> None:
        """Add tokens as a provider counted them, and what they cost."""
        self.billed_in += count_in
        self.billed_out += count_out
        if price:
            self.cost += (count_in * price[0] + count_out * price[1]) / _MILLION
        else:
            self.unpriced += count_in + count_out


@dataclass(slots=True)
class _Read:
    """Sums of messages that were read: of tools, of replaced answers and of summaries."""

    conversations: int = 0
    messages: int = 0
    tools: dict[str, ToolSum] = field(default_factory=dict)
    replaced: GroupSum = field(default_factory=partial(GroupSum, "replaced"))
    answers: int = 0
    summaries: list[Summary] = field(default_factory=list)

    def add(self, messages: Sequence[StoredMessage], prices: Prices) -> None:
        """Add the messages of a conversation."""
        self.conversations += 1
        self.messages += len(messages)
        add_tools(self.tools, [stored for stored in messages if not stored.is_rewound])
        for stored in messages:
            if stored.is_rewound and isinstance(stored.message, AIMessage):
                self._add_replaced(stored.message, prices)

    def _add_replaced(self, answer: AIMessage, prices: Prices) -> None:
        self.answers += 1
        if usage := answer.usage_metadata:
            price = prices.get(model_of(answer) or "unknown")
            counts = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
            self.replaced.add_billed(*counts, price)

    @property
    def folded(self) -> int:
        """The size of what summaries were made of."""
        return sum(summary.tokens_in for summary in self.summaries)

    @property
    def written(self) -> int:
        """The size of the summaries."""
        return sum(summary.tokens_out for summary in self.summaries)


async def sums_page(
    prices: Prices, request: Request, store: ConversationStore, permitted: Mapping[str, str]
) -> Response:
    """Return the sums of the conversations that the form of the list selects."""
    found = await select(request, store, permitted)
    together = GroupSum("all")
    for row in found.rows:
        together.add(row, prices)
    read = await _read(store, found.rows, prices)
    models = _by_model(found.rows, prices)
    return render(
        "sums.html",
        request,
        found=found,
        choice=found.choice,
        address=partial(address_of, request),
        together=together,
        groups=_all_groups(found.rows, store.scope_keys, prices),
        models=models,
        unpriced=[model.name for model in models if model.name not in prices] if prices else [],
        prices=prices,
        read=read,
        tools=by_tokens(read.tools),
        newest=_NEWEST,
    )


async def _read(store: ConversationStore, rows: Sequence[ListRow], prices: Prices) -> _Read:
    """Return the sums of the newest messages of conversations, as far as the limit allows."""
    read = _Read()
    for row in rows:
        left = _MOST_MESSAGES - read.messages
        if left <= 0:
            break
        chat = store.conversation(**row.info.scope)
        try:
            messages = await chat.list_messages(limit=min(_NEWEST, left), rewound=True)
            summaries = await chat.summaries()
        except ConvstoreError:  # damaged, or deleted meanwhile
            continue
        read.add(messages, prices)
        read.summaries += summaries
    return read


def _all_groups(
    rows: Sequence[ListRow], scope_keys: Sequence[str], prices: Prices
) -> dict[str, list[GroupSum]]:
    """Return the sums by each scope key, and by each field of metadata, of which several rows share a value."""
    tables = dict[str, list[GroupSum]]()
    for key in scope_keys:
        tables[key] = _grouped(rows, partial(_scope_value, key), prices)
    fields = dict.fromkeys(name for row in rows for name in row.info.metadata)
    for name in list(fields)[:_KEYS]:
        tables[f"metadata {name}"] = _grouped(rows, partial(_metadata_value, name), prices)
    return {
        title: groups
        for title, groups in tables.items()
        if any(group.conversations > 1 and group.name for group in groups)
    }


def _scope_value(key: str, row: ListRow) -> str:
    return row.info.scope.get(key, "")


def _metadata_value(name: str, row: ListRow) -> str:
    """Return a value of metadata as text; "" for none, and for a list or an object."""
    value = row.info.metadata.get(name)
    return str(value) if isinstance(value, str | int | float) else ""


def _grouped(
    rows: Sequence[ListRow], value_of: Callable[[ListRow], str], prices: Prices
) -> list[GroupSum]:
    """Return the sums of rows by a value, those with the most conversations first; "" for rows without one."""
    groups = dict[str, GroupSum]()
    for row in rows:
        value = value_of(row)
        groups.setdefault(value, GroupSum(value)).add(row, prices)
    return sorted(groups.values(), key=lambda group: -group.conversations)[:_GROUPS]


def _by_model(rows: Sequence[ListRow], prices: Prices) -> list[GroupSum]:
    """Return the tokens that each model billed, those with the most first."""
    models = dict[str, GroupSum]()
    for row in rows:
        for name, usage in row.info.usage.items():
            model = models.setdefault(name, GroupSum(name))
            model.conversations += 1
            model.add_billed(usage["input_tokens"], usage["output_tokens"], prices.get(name))
    return sorted(models.values(), key=lambda model: -model.billed)
