"""Count the calls and tokens that each way of the read-back takes until a fact is found; `reach.py --ways` runs it.

The conversations are the RAG runs of MTRAG, with the passages that were retrieved in them, in three files: as they were
recorded, with the lists of five retrievers fused, and with questions that are unclear or have no answer (MTRAG-UN),
which have one result each. After the end of each, a scripted reader looks for passages of its results but the last, or
of the only one: the first that most people found relevant, or the first one where nobody voted. It looks by the id of
the result in its stub, by the number of the source, by the words of the question, and by the list of what can be read,
then the id in it. It follows cursors until the beginning of the passage is on a page, for ten calls at most.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from reach_data import is_relevant

from convstore import Conversation, ConversationStore
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, weight

__all__ = ["FILES", "Fact", "measured", "table"]

FILES = "mtrag*.jsonl.gz"

WAYS = ("id", "number", "words", "list")
_MAX_CALLS = 10
_PROOF_CHARACTERS = 120
_CURSOR = re.compile(r'More: cursor="([^"]+)";.*\Z')


class Fact(NamedTuple):
    """A passage to find: the question that it answered, its result, its number and the beginning of its text."""

    question: str
    result: str
    number: int
    proof: str


class Cost(NamedTuple):
    """What a way took: calls, tokens of their pages, and True if the fact was found."""

    calls: int
    tokens: int
    found: bool


async def measured(
    paths: Sequence[Path], *, conversations: int = 1_000
) -> dict[str, dict[str, list[Cost]]]:
    """Return by file the cost of each way for each fact of the recorded conversations."""
    return {path.name: await _measured_file(path, conversations) for path in paths}


async def _measured_file(path: Path, conversations: int) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {way: [] for way in WAYS}
    for name, messages in list(_recorded(path))[:conversations]:
        # A store of its own: the database in memory has no indexes.
        async with await ConversationStore.connect("memory://") as store:
            await store.setup()
            chat = store.conversation(user_id="bench", thread_id=name)
            facts = await _appended(chat, messages)
            await chat.load_history()
            tool = chat.retrieve_previous_sources_tool()
            for fact in facts:
                for way in WAYS:
                    costs[way].append(await _cost(tool, fact, way))
    return costs


def _recorded(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            yield record["id"], record["messages"]


async def _appended(chat: Conversation, messages: list[dict[str, Any]]) -> list[Fact]:
    """Append a conversation; return a passage of each of its results but the last, or of the only one."""
    facts: list[Fact] = []
    question = ""
    for index, message in enumerate(messages):
        made = _message(message, index)
        receipt = await chat.append(made)
        if isinstance(made, HumanMessage):
            question = made.text
        passages = message.get("sources") or []
        place = _passage_to_find(passages)
        if place is not None and receipt.source_ids:
            text = " ".join(passages[place]["text"].split())
            number = receipt.source_ids[0] + place
            facts.append(Fact(question, str(made.id), number, text[:_PROOF_CHARACTERS]))
    return facts[:-1] or facts


def _passage_to_find(passages: Sequence[dict[str, Any]]) -> int | None:
    """Return the position of the first relevant passage, or the first one where nobody voted; None without one."""
    relevant = [place for place, passage in enumerate(passages) if is_relevant(passage)]
    if relevant:
        return relevant[0]
    has_votes = any(passage.get("relevant") for passage in passages)
    return 0 if passages and not has_votes else None


def _message(message: dict[str, Any], index: int) -> BaseMessage:
    name = f"message-{index}"
    content = message.get("content") or ""
    if message["role"] == "user":
        return HumanMessage(content, id=name)
    if message["role"] == "tool":
        found = [
            {
                "content": source["text"],
                "title": source.get("title", ""),
                "url": source.get("url", ""),
            }
            for source in message.get("sources") or []
        ]
        call = message["tool_call_id"]
        return ToolMessage(
            content, artifact=found, tool_call_id=call, name=message["name"], id=name
        )
    calls = [
        {
            "name": call["function"]["name"],
            "args": json.loads(call["function"]["arguments"]),
            "id": call["id"],
        }
        for call in message.get("tool_calls") or []
    ]
    return AIMessage(content, tool_calls=calls, id=name)


async def _cost(tool: BaseTool, fact: Fact, way: str) -> Cost:
    tokens = 0
    calls = 0
    ways: dict[str, dict[str, Any]] = {
        "id": {"tool_message_ids": [fact.result]},
        "number": {"source_ids": str(fact.number)},
        "words": {"find": fact.question},
        "list": {},
    }
    arguments = ways[way]
    while calls < _MAX_CALLS:
        page = await tool.ainvoke(arguments)
        calls += 1
        tokens += weight(page) // CHARACTERS_PER_TOKEN
        if arguments and fact.proof in " ".join(page.split()):
            return Cost(calls, tokens, found=True)
        following = _CURSOR.search(page)
        if not arguments and f"{fact.result}:" in page:
            arguments = {"tool_message_ids": [fact.result]}
        elif following:
            arguments = {"cursor": following[1]}
        else:
            break
    return Cost(calls, tokens, found=False)


def table(measured_files: dict[str, dict[str, list[Cost]]]) -> str:
    """Return for each file a line for each way: the share that was found, and mean calls and tokens until then."""
    return "\n\n".join(f"{name}\n{_table_of_file(costs)}" for name, costs in measured_files.items())


def _table_of_file(costs: dict[str, list[Cost]]) -> str:
    lines = [f"{'way':10}{'facts':>8}{'found':>8}{'calls':>8}{'tokens':>8}"]
    for way, taken in costs.items():
        found = [cost for cost in taken if cost.found]
        calls = statistics.fmean(cost.calls for cost in found) if found else 0
        tokens = statistics.fmean(cost.tokens for cost in found) if found else 0
        share = len(found) / max(1, len(taken))
        lines.append(f"{way:10}{len(taken):8}{share:8.0%}{calls:8.1f}{tokens:8.0f}")
    return "\n".join(lines)
