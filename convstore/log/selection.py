"""Select the tool results and long messages of entries; estimate how many entries a page needs."""

from __future__ import annotations

from collections.abc import Sequence

from convstore.log.entry import Entry, EntryMessage


def about(limit: int, items: int, entries: int) -> int:
    """Estimate how many entries contain `limit` items, plus a margin of two.

    >>> about(20, 6_000, 60), about(20, 60, 60), about(20, 30, 60), about(20, 0, 0)
    (2, 22, 42, 2)
    """
    return limit * entries // max(items, 1) + 2


def results_in(entries: Sequence[Entry]) -> list[EntryMessage]:
    """Return the tool results of entries; both are ordered newest first."""
    return [message for message in named_in(entries) if message.type == "tool"]


def named_in(entries: Sequence[Entry]) -> list[EntryMessage]:
    """Return the tool results and long messages of entries; both are ordered newest first."""
    return [message for entry in entries for message in reversed(entry.messages) if message.is_named]
