"""Shows each text of a tool result once, although content, artifact and sources mostly hold the same.

Layer 4, pure. Works on texts at hand, see `Pager`; what is left out says in its place where it was shown.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convstore.messages.values import Codec
from convstore.readback.repeats import Range, dicts, leaves, repeats
from convstore.sources.detection import parse_json

__all__ = ["Result", "Shown", "deduplicated"]

_SHOWN = "[shown above]"
_BLANK = frozenset(string.whitespace + string.punctuation)


@dataclass(frozen=True, slots=True)
class Result:
    """A tool result whose texts are at hand.

    Attributes:
        sources: The texts of its sources, by number.
        items: All that the tool said of each source, by number.
        content: The texts that its content is read as.
        artifact: The texts that its artifact is read as.
        value: The artifact itself, None for none.
    """

    sources: Mapping[int, str]
    items: Mapping[int, Any]
    content: Sequence[str]
    artifact: Sequence[str]
    value: Any


@dataclass(frozen=True, slots=True)
class Shown:
    """How a result is read.

    Attributes:
        content: Its texts; None for one that says nothing else than the sources.
        artifact: Its texts; None for one that says nothing else than sources and content.
        items: Numbers of the sources of which the content says all that the tool said.
    """

    content: list[str | None]
    artifact: list[str | None]
    items: frozenset[int]


def deduplicated(result: Result, codec: Codec) -> Shown:
    """Leave out of the content what is the text of a source, and of the artifact what stands in either.

    >>> song = "Whales sing all night long."
    >>> shown = deduplicated(Result({3: song}, {}, [f"1 hit: {song}"], [f'{{"n":1,"text":"{song}"}}'], None), Codec())
    >>> shown.content, shown.artifact
    (['1 hit: [text of source 3]'], ['{"n":1,"text":"[shown above]"}'])
    """
    names = [f"[text of source {number}]" for number in result.sources]
    texts = list(result.sources.values())
    parsed = parse_json(result.content[0]) if len(result.content) == 1 else None
    content = [_without(text, repeats(text, texts), names, blank=string.whitespace) for text in result.content]
    if parsed is not None and _is_same(codec, parsed, result.value):
        return Shown(content, [None] * len(result.artifact), frozenset(result.items))
    shown_texts = [*texts, *(result.content if parsed is None else leaves(parsed))]
    artifact = [
        _without(text, repeats(text, shown_texts), [_SHOWN] * len(shown_texts), blank=_BLANK)
        for text in result.artifact
    ]
    return Shown(content, artifact, _items_in(codec, parsed, result.items))


def _without(
    text: str, found: Sequence[Sequence[Range]], names: Sequence[str], *, blank: str | frozenset[str]
) -> str | None:
    """A text with a name in the place of each range; None if nothing else is left of it."""
    named = sorted((range_, name) for ranges, name in zip(found, names, strict=True) for range_ in ranges)
    pieces: list[str] = []
    remaining: list[str] = []
    position = 0
    for (start, end), name in named:
        remaining.append(text[position:start])
        pieces += [remaining[-1], name if remaining[-1] or name not in pieces[-1:] else ""]
        position = end
    remaining.append(text[position:])
    if named and all(sign in blank for piece in remaining for sign in piece):
        return None
    return "".join([*pieces, remaining[-1]])


def _items_in(codec: Codec, parsed: Any, items: Mapping[int, Any]) -> frozenset[int]:
    """The items that stand in a value as they are."""
    if parsed is None or not items:
        return frozenset()
    shown_texts = {codec.encode(one, omitted=[]) for one in dicts(parsed)}
    return frozenset(number for number, item in items.items() if codec.encode(item, omitted=[]) in shown_texts)


def _is_same(codec: Codec, parsed: Any, artifact: Any) -> bool:
    try:
        return bool(parsed == artifact) and codec.encode(parsed, omitted=[]) == codec.encode(artifact, omitted=[])
    except RecursionError:
        return False
