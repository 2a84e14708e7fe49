"""Show what images, files and recordings of recorded conversations count as, for one to look at.

Run: ``python benchmarks/media.py FILE``, a file of JSON lines (``.gz`` as well), each with the list "messages" of a
conversation in the format of OpenAI, and perhaps the name of its model as ``meta.model``. Prints a line for each: who
sent it, its kind, characters and shape by its bytes, the tokens by the figures of each provider and of the model that
was asked, and how long it took to measure.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from convstore.messages.media_figures import UNKNOWN, MediaFigures
from convstore.messages.media_sizes import MediaSize, media_size

PROVIDERS = ("openai", "anthropic", "google_genai")


class Found(NamedTuple):
    """A medium: the model that was asked, who sent it, its size, and the milliseconds that this took."""

    model: str
    role: str
    size: MediaSize
    milliseconds: float


def found_in(path: Path) -> Iterator[Found]:
    """Yield the media of a file of conversations."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            conversation = json.loads(line)
            model = str(conversation.get("meta", {}).get("model", ""))
            for message in conversation["messages"]:
                yield from _in_message(message, model)


def _in_message(message: dict[str, Any], model: str) -> Iterator[Found]:
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        begin = time.perf_counter()
        size = media_size(block)
        if size is not None:
            took = (time.perf_counter() - begin) * 1_000
            yield Found(model, message["role"], size, took)


def row(found: Found) -> str:
    """Return the line of a medium."""
    size = found.size
    by_model = found.role == "assistant"
    figures = [MediaFigures.named(name) for name in PROVIDERS]
    figures += [UNKNOWN, MediaFigures.named(found.model)]
    tokens = [each.tokens(size, by_model=by_model) for each in figures]
    shape = "x".join(map(str, size.shape)) or "-"
    counts = "".join(f"{count:>8}" for count in tokens)
    return (
        f"{found.model:<33.32}{found.role:<10}{size.kind:<10}{size.length:>9}{shape:>14}"
        f"{counts}{found.milliseconds:>8.2f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    names = "".join(f"{name:>8.8}" for name in (*PROVIDERS, "unknown", "model"))
    print(f"{'model':<33}{'role':<10}{'kind':<10}{'length':>9}{'shape':>14}{names}{'ms':>8}")
    for found in found_in(parser.parse_args().file):
        print(row(found))


if __name__ == "__main__":
    main()
