"""Texts of the demo's conversations, and the passages that its search tool finds for two questions.

The passages are a small handbook that was written for the demo, in the length and style of real retrieval results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypedDict

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

THIRD_QUESTION = "How do I notice that my model is overfitting?"
_TOOL = "rag_search_tool"


class DemoPassage(TypedDict):
    """One retrieved item of the search tool's result."""

    title: str
    url: str
    text: str


def as_text(passages: Iterable[DemoPassage]) -> str:
    """Return passages as the content of a tool's result."""
    return "\n\n".join(
        f"{passage['title']}\nURL: {passage['url']}\n{passage['text']}" for passage in passages
    )


def _passages(address: str, file: str) -> tuple[DemoPassage, ...]:
    """Split a text at its blank lines into passages; the first line of each is its title."""
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    blocks = [block.split("\n", 1) for block in text.strip().split("\n\n")]
    return tuple(
        DemoPassage(title=title, url=f"{address}/{number}", text=" ".join(body.split()))
        for number, (title, body) in enumerate(blocks, 1)
    )


MACHINE_LEARNING = _passages("https://ml.example", "machine_learning.txt")
"""Passages found for "Tell me about machine learning"."""

DEEP_LEARNING = _passages("https://dl.example", "deep_learning.txt")
"""Passages found for "What is deep learning?"."""

TURNS = (
    (
        "Tell me about machine learning",
        MACHINE_LEARNING,
        "Machine learning finds a function from examples instead of having it written down [1]. "
        "With answers to learn from it is **supervised** [2], without it is **unsupervised** [3]. "
        "Judge a model only on data it has not seen [6].",
    ),
    (
        "What is deep learning?",
        DEEP_LEARNING,
        "Deep learning is machine learning with models of many layers that learn their own "
        "features [11]. It wins where the input is raw and plentiful, such as images, "
        "sound and text, and seldom on small tables [20].",
    ),
)
"""Question, passages and answer of each answered turn."""


def search_messages(
    number: int, question: str, passages: Sequence[DemoPassage]
) -> list[BaseMessage]:
    """Return a question, the call of the search tool and its result; their ids end with `number`."""
    ids = {"id": f"result-{number}", "tool_call_id": f"call-{number}"}
    result = ToolMessage(as_text(passages), artifact=list(passages), name=_TOOL, **ids)
    return [HumanMessage(question, id=f"question-{number}"), search_call(number, question), result]


def search_call(number: int, query: str) -> AIMessage:
    """Return the message with a call of the search tool."""
    call = {"name": _TOOL, "args": {"query": query}, "id": f"call-{number}"}
    return AIMessage("", tool_calls=[call], id=f"search-{number}", **usage_fields(600, 20))


def usage_fields(read: int, wrote: int) -> dict[str, dict[str, object]]:
    """Return the fields of an AI message that name the model and its usage."""
    usage: dict[str, object] = {
        "input_tokens": read,
        "output_tokens": wrote,
        "total_tokens": read + wrote,
    }
    return {"usage_metadata": usage, "response_metadata": {"model_name": "demo-model"}}
