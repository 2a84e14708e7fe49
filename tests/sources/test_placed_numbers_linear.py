"""The time to number a result is linear in its size, whatever a tool wrote."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import partial

import pytest

from convstore.sources.numbering import plan_numbers, sources_of
from convstore.sources.source import FoundSource, source_in

pytestmark = pytest.mark.slow

_SIZE = 1_000_000
_RUNS = (
    *(
        '"',
        "`",
        "[",
        "]",
        "<",
        ">",
        "(",
        "```\n",
        "~~~~\n",
        "“",
        "«",
        '"\n',
        "<a id=1>",
        "[1]",
        "1.\n",
    ),
    *(
        "\n",
        "[1]\n",
        "a://",
        "</",
        '<a id="',
        "![](",
        "- ",
        ">- ",
        "[1] ",
        "`\n",
        "<p>1. ",
        "(1)\n",
        "Source 1 ",
    ),
)


def _source(text: str, title: str = "") -> FoundSource:
    found = source_in({"content": text, "title": title})
    assert found is not None
    return found


def _words(rng: random.Random, length: int) -> str:
    words = ("seal", "orca", "dive", "ice", "floe", "krill")
    return " ".join(f"{rng.choice(words)}{rng.randrange(1000)}" for _ in range(length // 8))


def _results(size: int) -> dict[str, Callable[[], tuple[str, list[FoundSource]]]]:
    rng = random.Random(size)
    texts = [f"Passage {n} {_words(rng, 90)}" for n in range(size // 100)]
    sources = [_source(text) for text in texts]
    counted = "\n".join(f"[{n}] {text}" for n, text in enumerate(texts[:100], 1))
    titled = [_source(f"seals {n} " * 12, f"Title {n}") for n in range(200)]
    return {
        "10,000 sources": lambda: ("\n".join(texts), sources),
        "one line": lambda: (" | ".join(texts), sources),
        "absent": lambda: (" ".join(texts).swapcase(), sources),
        "one head": lambda: (("A" * 80 + "\n") * (size // 81), [_source("A" * 80 + f"{n}") for n in range(9_000)]),
        "one letter": lambda: ("a" * size, [_source("a" * 90 + "b")] * (size // 100)),
        "names": lambda: ("\n".join(f"Title {n}" for n in range(size // 12)), titled),
        "lines": lambda: ("\n".join(texts), [_source(f"zz {_words(rng, 2_000)}") for _ in range(300)]),
        "uses": lambda: ("[1] " * (size // 8) + "\n" + counted, sources[:100]),
        "braces": lambda: ("[" + "{" * size, sources[:100]),
        "json": lambda: (json.dumps([source.item for source in sources]), sources),
    }  # fmt: skip


def _signs(size: int) -> dict[str, Callable[[], tuple[str, list[FoundSource]]]]:
    """Return results that repeat signs with a meaning, alone and before each passage."""
    sources = [_source(f"seals {n} " * 12, f"Title {n}") for n in range(200)]

    def before_each(run: str) -> str:
        signs = run * (size // len(run) // 200)
        return "\n".join(signs + source.text for source in sources)

    made = dict[str, Callable[[], tuple[str, list[FoundSource]]]]()
    for run in _RUNS:
        made[f"{run!r}"] = partial(_result, run * (size // len(run)), sources)
        made[f"{run!r} before"] = partial(_result, before_each(run), sources)
    return made


def _result(text: str, sources: list[FoundSource]) -> tuple[str, list[FoundSource]]:
    return text, sources


def test_time_is_linear() -> None:
    """Four times the size takes at most eight times as long, and 1 MB seconds, not minutes."""
    slow = []
    for make, size in ((_results, _SIZE), (_signs, _SIZE // 5)):
        small = make(size // 4)
        for name, large in make(size).items():
            short = _seconds(*small[name]())
            long = _seconds(*large())
            if long > 8 * short + 1 or long > 10:
                slow.append((name, short, long))
    assert slow == []


def _seconds(text: str, found: list[FoundSource]) -> float:
    start = time.process_time()
    plan = plan_numbers(text, found)
    plan.written(sources_of(found, (range(1, len(found) + 1), [None] * len(found))))
    return time.process_time() - start
