"""Select the tool results and long messages of entries; estimate how many entries a page needs."""

from __future__ import annotations

from collections.abc import Sequence

from convstore.log.entry import Entry, EntryMessage
from convstore.log.rewind import Rewinds


def about(limit: int, items: int, entries: int) -> int:
    """Estimate how many entries contain `limit` items, plus a margin of two.

    >>> about(20, 6_000, 60), about(20, 60, 60), about(20, 30, 60), about(20, 0, 0)
    (2, 22, 42, 2)
    """
    return limit * entries // max(items, 1) + 2


def results_in(entries: Sequence[Entry], rewinds: Rewinds) -> list[EntryMessage]:
    """Return the active tool results of entries; both are ordered newest first."""
    return [message for message in named_in(entries, rewinds) if message.type == "tool"]


def named_in(entries: Sequence[Entry], rewinds: Rewinds) -> list[EntryMessage]:
    """Return the active tool results and long messages of entries; both are ordered newest first."""
    messages = (message for entry in entries for message in reversed(entry.messages))
    return [message for message in messages if message.is_named and rewinds.is_active(message.ordinal)]
