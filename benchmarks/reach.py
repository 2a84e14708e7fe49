"""Find out how much of a long conversation a model can still reach, without a model and without a judge.

Run: ``python benchmarks/reach.py [--data FOLDER] [--tokens 205000] [--json] [--chart FILE]``, on a private real
MongoDB, in minutes. FOLDER holds the runs of MTRAG; without it only the conversations of this folder are measured.

Questions whose answers are known are asked at the end of long conversations. A scripted reader gets the view of 4,000
tokens, then up to two pages of 2,000 tokens from the retrieval tool: it looks for the question itself, then follows
the cursor. A question counts when all its proofs (see `reach_data`) are in the text that the reader got. The same is
counted for the full history, a window of the last 50 messages and LangChain's `trim_messages`. The ranking by itself
is measured as recall: the share of proofs whose message is among the best 20.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from charts import Bar, bar_chart
from langchain_core.messages import BaseMessage, trim_messages
from langchain_core.tools import BaseTool
from pymongo import AsyncMongoClient
from pymongo.asynchronous.database import AsyncDatabase
from reach_data import STRATA, LongConversation, Question, mtrag, own, plain, text_of
from reach_ways import FILES, measured
from reach_ways import table as table_of_ways

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.devserver import DevServer
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, approximate_tokens, weight

VIEW_TOKENS, PAGE_TOKENS, WINDOW, BEST = 4_000, 2_000, 50, 20
READERS = (
    "full history",
    f"last {WINDOW} messages",
    f"trimmed to {VIEW_TOKENS:,}",
    f"view of {VIEW_TOKENS:,}",
    "view + one call",
    "view + two calls",
)
RANKINGS = ("BM25 per message", "BM25 over passages", "chat.search")

_WORD = re.compile(r"[\u2e80-\u9fff]|[^\W\u2e80-\u9fff]+")
_PASSAGE_CHARACTERS = 800
_CURSOR = re.compile(r'More: cursor="([^"]+)";.*\Z')


@dataclass
class Outcome:
    """Result of one question.

    Attributes:
        question: The question.
        reached: By reader, True if all proofs were in its text.
        given: By reader, the tokens that the model gets without asking.
        read: By reader, the tokens that it gets from the tool.
        recall: By ranking, the share of proofs whose message is among the best.
        milliseconds: Duration of each call of the tool.
    """

    question: Question
    reached: dict[str, bool] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    recall: dict[str, float] = field(default_factory=dict)
    milliseconds: list[float] = field(default_factory=list)


class Given(NamedTuple):
    """What a reader gets without asking: the text and its tokens."""

    text: str
    tokens: int


class Bm25:
    """Plain BM25 over texts, with the usual parameters (k1 = 1.2, b = 0.75) and words in lower case."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Counter(_words(text)) for text in texts]
        self._lengths = [counts.total() for counts in self._counts]
        self._mean = statistics.fmean(self._lengths)
        self._holding = Counter(word for counts in self._counts for word in counts)

    def best_first(self, query: str) -> list[int]:
        """Return the numbers of the texts that share a word with a query, best first."""
        scores: dict[int, float] = {}
        for word in set(_words(query)) & self._holding.keys():
            holding = self._holding[word]
            rarity = math.log(1 + (len(self._counts) - holding + 0.5) / (holding + 0.5))
            for number, counts in enumerate(self._counts):
                if count := counts[word]:
                    length = 0.25 + 0.75 * self._lengths[number] / self._mean
                    scores[number] = scores.get(number, 0.0) + rarity * count * 2.2 / (
                        count + 1.2 * length
                    )
        return sorted(scores, key=lambda number: (-scores[number], number))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


class Rankings:
    """The plain rankings of a conversation that `chat.search` is compared with."""

    def __init__(self, texts: Sequence[str]) -> None:
        passages = [
            (number, passage) for number, text in enumerate(texts) for passage in _passages(text)
        ]
        self._message_of_passage = [number for number, _ in passages]
        self._by_message, self._by_passage = Bm25(texts), Bm25([passage for _, passage in passages])

    def best(self, query: str) -> dict[str, list[int]]:
        """Return the numbers of the best messages by ranking."""
        passages = self._by_passage.best_first(query)
        by_passage = list(dict.fromkeys(self._message_of_passage[number] for number in passages))
        return dict(
            zip(
                RANKINGS,
                (self._by_message.best_first(query)[:BEST], by_passage[:BEST]),
                strict=False,
            )
        )


def _passages(text: str) -> Iterator[str]:
    """Cut a text at white space into passages of about equal length."""
    while len(text) > _PASSAGE_CHARACTERS:
        end = (
            text.rfind(" ", _PASSAGE_CHARACTERS // 2, _PASSAGE_CHARACTERS) + 1
            or _PASSAGE_CHARACTERS
        )
        yield text[:end]
        text = text[end:]
    yield text


async def measure(
    database: AsyncDatabase[dict[str, Any]], conversation: LongConversation
) -> list[Outcome]:
    """Append a conversation turn by turn and ask its questions."""
    store = ConversationStore(database)
    await store.setup()
    chat = store.conversation(user_id="bench", thread_id=conversation.name)
    for turn in conversation.turns:
        await chat.append(turn)
    windows = await _windows(chat, conversation.messages)
    texts = [plain(text_of(message)) for message in conversation.messages]
    tool, rankings = chat.retrieve_previous_sources_tool(page_tokens=PAGE_TOKENS), Rankings(texts)
    outcomes = []
    for question in conversation.questions:
        outcome = Outcome(question)
        for reader, window in windows.items():
            _count(outcome, reader, window, [])
        await _ask(outcome, tool, windows[READERS[3]])
        holding = [
            {number for number, text in enumerate(texts) if plain(proof) in text}
            for proof in question.proofs
        ]
        hits = [hit.ordinal - 1 for hit in await chat.search(question.text, limit=BEST)]
        for ranking, best in {**rankings.best(question.text), RANKINGS[2]: hits}.items():
            outcome.recall[ranking] = statistics.fmean(
                not found.isdisjoint(best) for found in holding
            )
        outcomes.append(outcome)
    return outcomes


async def _windows(chat: Conversation, messages: list[BaseMessage]) -> dict[str, Given]:
    """Return what each reader gets without a call."""
    trimmed = trim_messages(
        messages,
        max_tokens=VIEW_TOKENS,
        token_counter=approximate_tokens,
        strategy="last",
        start_on="human",
    )
    view = await chat.load_history(HistoryPolicy(max_tokens=VIEW_TOKENS))
    windows = (messages, messages[-WINDOW:], trimmed, view.messages)
    given = [
        Given(plain("\n".join(map(text_of, window))), approximate_tokens(window))
        for window in windows
    ]
    return dict(zip(READERS, given, strict=False))


async def _ask(outcome: Outcome, tool: BaseTool, view: Given) -> None:
    """Ask with the words of the question, then for the next page."""
    pages: list[str] = []
    arguments = {"find": outcome.question.text}
    for reader in READERS[4:]:
        started = time.perf_counter()
        pages.append(await tool.ainvoke(arguments))
        outcome.milliseconds.append((time.perf_counter() - started) * 1000)
        _count(outcome, reader, view, pages)
        following = _CURSOR.search(pages[-1])
        arguments = {**arguments, "cursor": following[1]} if following else arguments


def _count(outcome: Outcome, reader: str, window: Given, pages: Sequence[str]) -> None:
    texts = [window.text, plain("\n".join(pages))]
    outcome.reached[reader] = all(
        any(plain(proof) in text for text in texts) for proof in outcome.question.proofs
    )
    outcome.given[reader] = window.tokens
    outcome.read[reader] = sum(weight(page) // CHARACTERS_PER_TOKEN for page in pages)


def summary(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Return shares by reader or ranking and stratum, and mean tokens, of some outcomes; empty strata are left out."""
    outcomes = list(outcomes)
    strata = {
        name: [outcome for outcome in outcomes if outcome.question.stratum == name]
        for name in STRATA
    }
    strata = {name: found for name, found in strata.items() if found}
    return {
        "questions": {name: len(found) for name, found in strata.items()},
        "reached": _shares(strata, READERS, attrgetter("reached")),
        "given": _means(outcomes, attrgetter("given")),
        "read": _means(outcomes, attrgetter("read")),
        "recall": _shares(strata, RANKINGS, attrgetter("recall")),
    }


def _shares(
    strata: dict[str, list[Outcome]],
    names: Sequence[str],
    values: Callable[[Outcome], dict[str, float]],
) -> dict[str, dict[str, float]]:
    return {
        name: {
            stratum: round(statistics.fmean(values(outcome)[name] for outcome in found), 4)
            for stratum, found in strata.items()
        }
        for name in names
    }


def _means(outcomes: list[Outcome], values: Callable[[Outcome], dict[str, int]]) -> dict[str, int]:
    return {
        reader: round(statistics.fmean(values(outcome)[reader] for outcome in outcomes))
        for reader in READERS
    }


def table(title: str, found: dict[str, Any]) -> str:
    """Return a summary as text with aligned columns."""
    strata = list(found["questions"])
    head = "".join(f"{name} ({count})".rjust(18) for name, count in found["questions"].items())
    lines = [f"{title:24}{head}{'tokens given':>15}{'tokens read':>13}{'of full':>9}"]
    full = found["given"][READERS[0]]
    for reader in READERS:
        given, read = found["given"][reader], found["read"][reader]
        shares = "".join(f"{found['reached'][reader][name]:18.0%}" for name in strata)
        lines.append(f"{reader:24}{shares}{given:15,}{read:13,}{(given + read) / full:9.1%}")
    lines.append(f"recall in the best {BEST}")
    for ranking, shares_of in found["recall"].items():
        lines.append(f"{ranking:24}" + "".join(f"{shares_of[name]:18.2f}" for name in strata))
    return "\n".join(lines)


def chart(found: dict[str, Any]) -> str:
    """Return a summary as an SVG: a group of bars for each stratum, a bar for each reader."""
    full = found["given"][READERS[0]]
    groups = {
        f"{name}, {count} questions": [
            Bar(reader, found["reached"][reader][name]) for reader in READERS[1:]
        ]
        for name, count in found["questions"].items()
    }
    tokens = {reader: found["given"][reader] + found["read"][reader] for reader in READERS[1:]}
    legend = {reader: f"{reader}: {count:,} tokens" for reader, count in tokens.items()}
    title = f"Questions whose evidence is all there; the full history holds it with {full:,} tokens"
    return bar_chart(title, groups, legend)


async def run(conversations: Iterable[LongConversation]) -> list[Outcome]:
    """Measure conversations one after the other on a private server."""
    outcomes: list[Outcome] = []
    async with DevServer() as server, AsyncMongoClient[dict[str, Any]](server.uri) as client:
        for conversation in conversations:
            outcomes += await measure(client["reach"], conversation)
    return outcomes


def main() -> None:
    """Measure, print both halves and write the chart of the half that is held out."""
    parser = argparse.ArgumentParser(
        description="How much of a long conversation can a model still reach?"
    )
    parser.add_argument("--data", type=Path, help="folder with mtrag_*.jsonl.gz")
    parser.add_argument(
        "--tokens", type=int, default=205_000, help="size of each conversation of our own"
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of conversations of our own")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, with every question"
    )
    parser.add_argument("--chart", type=Path, help="SVG file to write")
    parser.add_argument(
        "--ways",
        action="store_true",
        help="only count calls and tokens until a fact is found, by each way of the tool, with --data",
    )
    options = parser.parse_args()
    if options.ways:
        if not options.data:
            parser.error("--ways needs --data")
        print(table_of_ways(asyncio.run(measured(sorted(options.data.glob(FILES))))))
        return
    conversations = [
        *own(tokens=options.tokens, names=options.only),
        *(mtrag(options.data) if options.data else []),
    ]
    outcomes = asyncio.run(run(conversations))
    halves = {
        "held out": summary(outcome for outcome in outcomes if outcome.question.held_out),
        "tuning half": summary(outcome for outcome in outcomes if not outcome.question.held_out),
    }
    if options.chart:
        options.chart.write_text(chart(halves["held out"]), "utf-8")
    if options.json:
        print(
            json.dumps(
                {**halves, "outcomes": [as_json(outcome) for outcome in outcomes]},
                ensure_ascii=False,
            )
        )
        return
    sizes = [approximate_tokens(conversation.messages) for conversation in conversations]
    print(
        f"{len(sizes)} conversations of {min(sizes):,} to {max(sizes):,} tokens, {len(outcomes)} questions"
    )
    for title, found in halves.items():
        print(f"\n{table(title, found)}")
    durations = [duration for outcome in outcomes for duration in outcome.milliseconds]
    print(f"\na call of the tool takes {statistics.median(durations):.0f} ms (median)")


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the result of one question for a program."""
    question = outcome.question
    return {
        "id": question.id,
        "stratum": question.stratum,
        "held_out": question.held_out,
        "reached": outcome.reached,
        "recall": outcome.recall,
    }


if __name__ == "__main__":
    main()
