"""Write an answer as it grows as events of a stream.

An encoder gets the answer so far, as pages show it, and yields the events that bring a client from what it has to that.
So a stream, a page and a resumed stream agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from convstore.ext.ui.turns import Part

Outcome: TypeAlias = Literal["finished", "waiting", "stopped", "unfinished"]
Event: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, Any]


def keyed(items: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Key, Part]]:
    """Yield parts or messages, each with what it is known by: its call, its source, or its number among its kind."""
    counts = Counter[str]()
    for item in items:
        kind = str(item.get("role", item.get("type")))
        known = next((name for name in ("toolCallId", "sourceId") if name in item), None)
        yield ((known, str(item[known])) if known else (kind, counts[kind])), dict(item)
        counts[kind] += 1


def known(message: Mapping[str, Any]) -> Part:
    """Return what a client says that it has, without all that has another type than what is read of it."""
    calls = message["toolCalls"] if isinstance(message.get("toolCalls"), list) else []
    found = [call for call in calls if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)]
    texts = {key: value for key, value in message.items() if isinstance(value, str)}
    return texts | ({"toolCalls": found} if found else {})
