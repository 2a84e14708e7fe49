"""Passages that the demo's search tool finds: ten for each of two questions.

A small handbook of our own making, as long and as wordy as what a retriever really returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict


class Passage(TypedDict):
    """One retrieved item, as a search tool hands it over."""

    title: str
    url: str
    text: str


def as_text(passages: Iterable[Passage]) -> str:
    """Return passages as the content of a tool's result."""
    return "\n\n".join(f"{one['title']}\nURL: {one['url']}\n{one['text']}" for one in passages)


def _passages(address: str, file: str) -> tuple[Passage, ...]:
    """Cut a text at its blank lines into passages; the first line of each is its title."""
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    blocks = [block.split("\n", 1) for block in text.strip().split("\n\n")]
    return tuple(
        Passage(title=title, url=f"{address}/{number}", text=" ".join(body.split()))
        for number, (title, body) in enumerate(blocks, 1)
    )


MACHINE_LEARNING = _passages("https://ml.example", "machine_learning.txt")
"""Found for "Tell me about machine learning"."""

DEEP_LEARNING = _passages("https://dl.example", "deep_learning.txt")
"""Found for "What is deep learning?"."""
