"""What a conversation costs under several ways to keep it within a model's context, and what the model can still reach.

Run: ``python benchmarks/bill.py [FILES …] [--budget 32000] [--scale 1] [--json] [--chart FILE]``, on a private real
MongoDB; about five minutes. Without a model: each conversation is replayed, and for each answer in it the messages
that the model would be sent are built under every strategy. FILES are recorded conversations that `convstore import`
reads; the longest `--conversations` of each are added to the generated ones.

For each call of the model:

- sent: tokens of the messages.
- new: tokens after the longest prefix shared with any of the last ten calls; a provider's prompt cache has the rest.
- broken: the call before shares less than its own size, by more than 5 % and 2,000 tokens.
- over: more than the budget, with unread questions and results alone not above it.

Prices are in tokens of uncached input: what is new costs 1, what is cached costs `--cached` (0.1, 0.25 and 0.5 are
common). Prompts of summaries are added as new. Reach is the share of a sample of the ids, numbers and paths of the log
that are in the last call's messages, or in the answer of one call of the retrieval tool: with the id of a message that
the view names, else with the question of the turn in which the fact stands.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bill_workloads import Workload, facts_of, generated, recorded
from charts import Dot, dot_chart
from langchain.agents.middleware import ClearToolUsesEdit, SummarizationMiddleware
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.runtime import Runtime
from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.devserver import DevServer
from convstore.messages.text import text_of
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, approximate_tokens
from convstore.summarization import RunningSummarizer

CACHED_PRICES = (0.1, 0.25, 0.5)
_REMEMBERED_CALLS = 10
_BREAK_SHARE, _BREAK_TOKENS = 0.05, 2_000
_FACTS = 60
_SUMMARY_CHARACTERS = 4_000

View = Callable[[int], Awaitable[Sequence[BaseMessage]]]
"""Builds the messages of the call at an index of the workload."""


class ScriptedModel(BaseChatModel):
    """Answers each request with parts of the request, and counts the tokens that it was sent."""

    prompt_tokens: int = 0

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002 - as the base class has it
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> ChatResult:
        self.prompt_tokens += approximate_tokens(messages)
        lines = "\n".join(text_of(message.content) for message in messages).splitlines() or [""]
        share = max(1, _SUMMARY_CHARACTERS // len(lines))
        text = " ".join(line[:share] for line in lines)[-_SUMMARY_CHARACTERS:]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text or "Nothing yet."))])


class Sent(NamedTuple):
    """A message as a provider is sent it: its text with all that belongs to it, and its tokens."""

    text: str
    tokens: int

    @classmethod
    def of(cls, message: BaseMessage) -> Sent:
        """Return what is sent of a message; ids of messages and artifacts are not."""
        calls = [
            (call["name"], call["args"], call["id"]) for call in getattr(message, "tool_calls", [])
        ]
        parts = [message.type, message.content, calls, getattr(message, "tool_call_id", "")]
        return cls(
            json.dumps(parts, ensure_ascii=False, default=str), approximate_tokens([message])
        )


@dataclass
class Bill:
    """The sums of a strategy over the calls of one conversation.

    Attributes:
        calls: Number of calls of the model.
        sent: Tokens sent.
        new: Tokens that no prompt cache has.
        broken: Calls that broke the cached prefix.
        over: Calls above the budget though what the model has not read yet is below it.
        summaries: Tokens of the prompts of summaries.
        in_view: Facts in the last view.
        one_call_away: Facts in the last view, or in the answer of one call of the tool.
        facts: Facts that were looked for.
    """

    calls: int = 0
    sent: int = 0
    new: int = 0
    broken: int = 0
    over: int = 0
    summaries: int = 0
    in_view: int = 0
    one_call_away: int = 0
    facts: int = 0
    _last: deque[list[Sent]] = field(
        default_factory=lambda: deque(maxlen=_REMEMBERED_CALLS), repr=False
    )

    def add(self, messages: Sequence[BaseMessage], *, budget: int) -> None:
        """Add a call of the model."""
        call = [Sent.of(message) for message in messages]
        size = sum(message.tokens for message in call)
        shared = [_shared_tokens(earlier, call) for earlier in self._last]
        if shared:
            before = sum(message.tokens for message in self._last[-1])
            self.broken += before - shared[-1] > max(_BREAK_TOKENS, before * _BREAK_SHARE)
        self.calls += 1
        self.sent += size
        self.new += size - max(shared, default=0)
        self.over += (
            size > budget >= sum(message.tokens for message in call[_unread_from(messages) :])
        )
        self._last.append(call)

    def price(self, cached: float) -> float:
        """Return the price in tokens of uncached input."""
        return self.new + self.summaries + (self.sent - self.new) * cached

    def total(self, other: Bill) -> Bill:
        """Return the sum of two bills."""
        names = [name for name in vars(self) if not name.startswith("_")]
        return Bill(**{name: getattr(self, name) + getattr(other, name) for name in names})


def _unread_from(messages: Sequence[BaseMessage]) -> int:
    """Return the index after the last answer: the model has not read what follows."""
    return next((at for at in range(len(messages), 0, -1) if messages[at - 1].type == "ai"), 0)


def _shared_tokens(earlier: Sequence[Sent], call: Sequence[Sent]) -> int:
    tokens = 0
    for item, other in zip(earlier, call, strict=False):
        if item.text != other.text:
            return tokens + _shared_characters(item.text, other.text) // CHARACTERS_PER_TOKEN
        tokens += item.tokens
    return tokens


def _shared_characters(text: str, other: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b),
        min(len(text), len(other)),
    )


class Strategies:
    """Builds the views of one workload under every strategy."""

    def __init__(self, workload: Workload, *, budget: int) -> None:
        self.messages, self.budget = list(workload.messages), budget
        self.model = ScriptedModel()

    def simple(self) -> dict[str, View]:
        """Return the strategies that need no store."""
        middleware = SummarizationMiddleware(
            self.model, trigger=("tokens", self.budget * 3 // 4), keep=("tokens", self.budget // 4)
        )
        return {
            "full history": self._view(lambda messages: messages),
            "newest 50": self._view(_newest),
            "10 results, others masked": self._view(_masked),
            "tool results cleared": self._view(self._cleared),
            "SummarizationMiddleware": _Summarized(self.messages, middleware).view,
        }

    def _view(self, build: Callable[[list[BaseMessage]], list[BaseMessage]]) -> View:
        async def view(index: int) -> list[BaseMessage]:
            return build(self.messages[:index])

        return view

    def _cleared(self, messages: list[BaseMessage]) -> list[BaseMessage]:
        copies: list[Any] = [message.model_copy() for message in messages]
        ClearToolUsesEdit(trigger=self.budget * 3 // 4, keep=3).apply(
            copies, count_tokens=approximate_tokens
        )
        return copies


def _newest(messages: list[BaseMessage]) -> list[BaseMessage]:
    newest = messages[-50:]
    return newest[next((at for at, message in enumerate(newest) if message.type == "human"), 0) :]


def _masked(messages: list[BaseMessage]) -> list[BaseMessage]:
    results = [at for at, message in enumerate(messages) if isinstance(message, ToolMessage)]
    masked = set(results[:-10])
    return [
        message.model_copy(update={"content": "[result left out]"}) if at in masked else message
        for at, message in enumerate(messages)
    ]


class _Summarized:
    """The state of an agent whose middleware summarises before a call of the model."""

    def __init__(
        self, messages: Sequence[BaseMessage], middleware: SummarizationMiddleware
    ) -> None:
        self._messages, self._middleware = messages, middleware
        self._state: list[BaseMessage] = []
        self._read = 0

    async def view(self, index: int) -> list[BaseMessage]:
        self._state += self._messages[self._read : index]
        self._read = index
        state: Any = {"messages": list(self._state)}
        update = self._middleware.before_model(state, Runtime())
        if update is not None:
            self._state = [
                message for message in update["messages"] if not isinstance(message, RemoveMessage)
            ]
        return self._state


class Stored:
    """A conversation in a store; appended as far as its views are asked for."""

    def __init__(self, chat: Conversation, messages: Sequence[BaseMessage]) -> None:
        self.chat, self._messages, self._read = chat, messages, 0

    async def view(self, index: int) -> Sequence[BaseMessage]:
        """Append what comes before the call, and load its view."""
        await self.chat.append(self._messages[self._read : index])
        self._read = index
        return (await self.chat.load_history()).messages


async def bills_of(workload: Workload, *, database: Any, budget: int) -> dict[str, Bill]:
    """Return the bill of a workload by strategy."""
    strategies = Strategies(workload, budget=budget)
    views, tools = strategies.simple(), dict[str, Conversation]()
    policy, model = HistoryPolicy(max_tokens=budget), ScriptedModel()
    summarizer = RunningSummarizer(
        model, max_tokens_before_summary=budget // 2, max_summary_tokens=1_000
    )
    summarizing = HistoryPolicy(max_tokens=budget, compact="before_load")
    stores = {
        "convstore": ConversationStore(database, policy=policy),
        "convstore with summaries": ConversationStore(
            database, policy=summarizing, summarizer=summarizer
        ),
    }
    for name, store in stores.items():
        await store.setup()
        chat = store.conversation(user_id=name, thread_id=workload.name)
        views[name], tools[name] = Stored(chat, workload.messages).view, chat
    models = {"SummarizationMiddleware": strategies.model, "convstore with summaries": model}
    bills = {}
    for name, view in views.items():
        bills[name] = await _bill(workload, view, tools.get(name), budget=budget)
        bills[name].summaries = models[name].prompt_tokens if name in models else 0
    return bills


async def _bill(workload: Workload, view: View, chat: Conversation | None, *, budget: int) -> Bill:
    bill, last = Bill(), 0
    messages: Sequence[BaseMessage] = ()
    for last in workload.calls():
        messages = await view(last)
        bill.add(messages, budget=budget)
    shown = "\n".join(Sent.of(message).text for message in messages)
    facts = facts_of(workload.messages[:last], limit=_FACTS)
    in_view = [fact in shown for _, fact in facts]
    reached = [
        found or (chat is not None and await _is_one_call_away(workload, chat, shown, index, fact))
        for found, (index, fact) in zip(in_view, facts, strict=True)
    ]
    bill.facts, bill.in_view, bill.one_call_away = len(facts), sum(in_view), sum(reached)
    return bill


async def _is_one_call_away(
    workload: Workload, chat: Conversation, shown: str, index: int, fact: str
) -> bool:
    """Return True if the tool's answer has the fact: read by the id that the view names, else found by the question."""
    tool, id_ = chat.retrieve_previous_sources_tool(), str(workload.messages[index].id)
    if id_ in shown:
        return fact in await tool.ainvoke({"tool_message_ids": [id_]})
    questions = (
        message for message in reversed(workload.messages[: index + 1]) if message.type == "human"
    )
    question = next(questions, None)
    return question is not None and fact in await tool.ainvoke(
        {"find": text_of(question.content)[:500]}
    )


def table(title: str, bills: dict[str, Bill]) -> Iterator[str]:
    """Yield the lines of a table with aligned columns."""
    prices = "".join(f"{f'at {cached}':>10}" for cached in CACHED_PRICES)
    yield f"{title[:27]:28}{'sent':>12}{'new':>12}{prices}{'breaks':>8}{'over':>7}{'in view':>9}{'one call':>10}"
    full = bills["full history"]
    for name, bill in bills.items():
        shares = "".join(
            f"{bill.price(cached) / full.price(cached):10.0%}" for cached in CACHED_PRICES
        )
        reach = (
            f"{bill.in_view / (bill.facts or 1):9.0%}{bill.one_call_away / (bill.facts or 1):10.0%}"
        )
        yield f"{name:28}{bill.sent:12,}{bill.new:12,}{shares}{bill.broken:8}{bill.over:7}{reach}"


def chart(bills: dict[str, Bill]) -> str:
    """Return price against reach as an SVG."""
    full = bills["full history"]
    dots = [
        Dot(name, bill.price(0.25) / full.price(0.25), bill.one_call_away / (bill.facts or 1))
        for name, bill in bills.items()
    ]
    title = "Price of a conversation, with cached tokens at 0.25, against what the model can reach"
    return dot_chart(
        title, dots, across="price, share of the full history", up="reach", strong="convstore"
    )


async def run(workloads: Iterable[Workload], *, budget: int) -> dict[str, dict[str, Bill]]:
    """Compute the bills of all workloads on a private server, each in a database of its own."""
    found: dict[str, dict[str, Bill]] = {}
    async with DevServer() as server, AsyncMongoClient[dict[str, Any]](server.uri) as client:
        for number, workload in enumerate(workloads):
            bills = await bills_of(workload, database=client[f"bill_{number}"], budget=budget)
            earlier = found.get(workload.name, {})
            found[workload.name] = {
                name: bill.total(earlier.get(name, Bill())) for name, bill in bills.items()
            }
            await client.drop_database(f"bill_{number}")
    return found


def mean_shares(found: dict[str, dict[str, Bill]]) -> dict[str, Bill]:
    """Return one bill for each strategy in which every workload weighs the same: a million tokens of full history."""
    means: dict[str, Bill] = {}
    for bills in found.values():
        scale = 1_000_000 / bills["full history"].sent
        for name, bill in bills.items():
            scaled = Bill(
                **{
                    key: round(value * scale)
                    for key, value in vars(bill).items()
                    if key in ("sent", "new", "summaries")
                },
                **{
                    key: value
                    for key, value in vars(bill).items()
                    if key in ("calls", "broken", "over")
                },
                facts=1_000,
                in_view=round(1_000 * bill.in_view / (bill.facts or 1)),
                one_call_away=round(1_000 * bill.one_call_away / (bill.facts or 1)),
            )
            means[name] = means.get(name, Bill()).total(scaled)
    return means


def main() -> None:
    """Compute the bills and print a table for each workload and one for all."""
    parser = argparse.ArgumentParser(
        description="What does a conversation cost, and what can the model reach?"
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        help="recorded conversations, as `convstore import` reads them",
    )
    parser.add_argument("--budget", type=int, default=32_000, help="tokens of a call")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of the numbers of turns of the generated ones"
    )
    parser.add_argument("--conversations", type=int, default=3, help="of each file, the longest")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--chart", type=Path, help="SVG file to write")
    options = parser.parse_args()
    workloads = [
        *generated(scale=options.scale),
        *recorded(options.files, limit=options.conversations),
    ]
    found = asyncio.run(run(workloads, budget=options.budget))
    found["all, weighed alike"] = mean_shares(found)
    if options.chart:
        options.chart.write_text(chart(found["all, weighed alike"]), "utf-8")
    if options.json:
        print(
            json.dumps(
                {
                    title: {name: _as_json(bill) for name, bill in bills.items()}
                    for title, bills in found.items()
                }
            )
        )
        return
    longest = statistics.median(len(workload.messages) for workload in workloads)
    print(
        f"{len(workloads)} conversations, {longest:.0f} messages each (median), a budget of {options.budget:,} tokens\n"
    )
    for title, bills in found.items():
        print("\n".join(table(title, bills)), end="\n\n")


def _as_json(bill: Bill) -> dict[str, Any]:
    sums = {name: value for name, value in vars(bill).items() if not name.startswith("_")}
    return sums | {f"price at {cached}": round(bill.price(cached)) for cached in CACHED_PRICES}


if __name__ == "__main__":
    main()
