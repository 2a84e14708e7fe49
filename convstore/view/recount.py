"""Counts stored messages anew for a store whose token counter is another one than wrote them.

Layer 1. Sizes are kept with the entry under the name of what counted them. Payloads are not read for this: what a
message has besides what views show of it is taken to grow or shrink as the rest does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convstore.codec import Codec
from convstore.entries import Entry, EntryMessage
from convstore.tokens import NamedCounter, count
from convstore.view.render import shorten

__all__ = ["recounted"]


def recounted(entries: Sequence[Entry], *, codec: Codec, counter: NamedCounter) -> list[Entry]:
    """The entries with the sizes of their messages by a counter; those that it counted stay as they are.

    Raises:
        ValueError: A stored message is damaged; the text names it.
    """
    return [entry if entry.totals.counter == counter.name else _anew(entry, codec, counter) for entry in entries]


def _anew(entry: Entry, codec: Codec, counter: NamedCounter) -> Entry:
    shown = [count(counter, shorten(codec, message)) for message in entry.messages]
    ratio = sum(shown) / max(1, sum(message.view_tokens for message in entry.messages))
    sizes = zip(entry.messages, shown, strict=True)
    return replace(entry, messages=tuple(_resized(message, view, ratio) for message, view in sizes))


def _resized(message: EntryMessage, view_tokens: int, ratio: float) -> EntryMessage:
    hidden = max(0, message.tokens - message.view_tokens)
    return replace(message, tokens=view_tokens + round(hidden * ratio), view_tokens=view_tokens)
