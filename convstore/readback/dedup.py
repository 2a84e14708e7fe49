"""Removes repeated texts from a tool result, whose content, artifact and sources often hold the same text.

Each removed text is replaced by a reference to the place where it is shown.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from convstore.messages.values import Codec
from convstore.readback.repeats import Range, leaves, repeats
from convstore.sources.detection import parse_json

SHOWN_ABOVE = "[shown above]"
_BLANK = frozenset(string.whitespace + string.punctuation)


def deduplicated(
    sources: Mapping[int, str],
    content: Sequence[str],
    artifact: Sequence[str],
    value: Any,
    codec: Codec,
) -> tuple[list[str | None], list[str | None]]:
    """Return the texts of a result without repeated ones; None for a text that only repeats others.

    Texts of sources are removed from the content, and texts of sources or content from the artifact.

    Args:
        sources: The texts of its sources, by number.
        content: The texts that its content consists of.
        artifact: The texts that its artifact consists of.
        value: The artifact itself; None if there is none.
        codec: Compares the artifact with the content.

    >>> song = "Whales sing all night long."
    >>> deduplicated({3: song}, [f"1 hit: {song}"], [f'{{"n":1,"text":"{song}"}}'], None, Codec())
    (['1 hit: [text of source 3]'], ['{"n":1,"text":"[shown above]"}'])
    """
    names = [f"[text of source {number}]" for number in sources]
    texts = list(sources.values())
    parsed = parse_json(content[0]) if len(content) == 1 else None
    shown = [
        _without(text, repeats(text, texts), names, blank=string.whitespace) for text in content
    ]
    if parsed is not None and _is_same(codec, parsed, value):
        return shown, [None] * len(artifact)
    above = [*texts, *(content if parsed is None else leaves(parsed))]
    rest = [
        _without(text, repeats(text, above), [SHOWN_ABOVE] * len(above), blank=_BLANK)
        for text in artifact
    ]
    return shown, rest


def _without(
    text: str,
    found: Sequence[Sequence[Range]],
    names: Sequence[str],
    *,
    blank: str | frozenset[str],
) -> str | None:
    """Replace each range of a text by a name; return None if nothing else is left of the text."""
    named = sorted(
        (range_, name) for ranges, name in zip(found, names, strict=True) for range_ in ranges
    )
    pieces: list[str] = []
    remaining: list[str] = []
    position = 0
    for (start, end), name in named:
        remaining.append(text[position:start])
        pieces += [remaining[-1], name if remaining[-1] or name not in pieces[-1:] else ""]
        position = end
    remaining.append(text[position:])
    if named and all(sign in blank or sign.isspace() for piece in remaining for sign in piece):
        return None
    return "".join([*pieces, remaining[-1]])


def _is_same(codec: Codec, parsed: Any, artifact: Any) -> bool:
    try:
        return bool(parsed == artifact) and codec.encode(parsed, omitted=[]) == codec.encode(
            artifact, omitted=[]
        )
    except RecursionError:
        return False
