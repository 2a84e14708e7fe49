"""Items of the log that are no messages: which of them are active, and their data, verified by its digest.

An item stands after a message, the last active one when it was appended, and is active as long as that message is. A
rewind to an item also stores a cut: an item without id and kind that names a place in the log. It removes the items
and cuts from there on that follow the same message. Undoing a rewind cuts what was appended since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import Entry, EntryItem
from convstore.log.rewind import Rewinds
from convstore.messages.encoding import digest_of
from convstore.messages.values import Codec
from convstore.values.items import StoredItem

Place = tuple[int, int]
"""Number of an entry, and index among its items."""


class ItemRow(NamedTuple):
    """An item with its entry and its place in the log."""

    item: EntryItem
    entry: Entry
    place: Place


def item_rows(entries: Iterable[Entry]) -> list[ItemRow]:
    """Return the items and cuts of entries in the order of the log."""
    return [
        ItemRow(item, entry, (entry.number, at))
        for entry in entries
        for at, item in enumerate(entry.items)
    ]


def active_items(rows: Sequence[ItemRow], rewinds: Rewinds) -> list[ItemRow]:
    """Return the active items, given all items and cuts of a log, in the order of their messages."""
    kept = list[ItemRow]()
    cuts = dict[int, Place]()
    for row in reversed(rows):
        item = row.item
        if not rewinds.has(item.after) or row.place >= cuts.get(
            item.after, (row.entry.number + 1, 0)
        ):
            continue
        if item.cut:
            cuts[item.after] = min(item.cut, cuts.get(item.after, item.cut))
        else:
            kept.append(row)
    return sorted(kept, key=_position)


def without_cuts(rows: Sequence[ItemRow]) -> list[ItemRow]:
    """Return all items, active or not, given all items and cuts of a log, in the order of their messages."""
    return sorted([row for row in rows if not row.item.cut], key=_position)


def _position(row: ItemRow) -> tuple[int, Place]:
    return row.item.after, row.place


def item_digest(id_: str, kind: str, text: str) -> bytes:
    """Return the digest of an item with its encoded data."""
    return digest_of("\n".join([id_, kind, text]))


def read_log_item(codec: Codec, row: ItemRow, payload: str | None, *, key: str) -> StoredItem:
    """Return an item as it was appended, given its payload if it has one, and the key of its entry.

    Raises:
        CorruptDocumentError: It is damaged; names the entry.
    """
    item = row.item
    text = row.item.body if payload is None else payload
    try:
        if item_digest(item.id, item.kind, text) != item.digest:
            raise ValueError("it does not match its digest")
        data = codec.decode(text)
    except ValueError as error:
        raise CorruptDocumentError(key, f"item {item.id!r}: {error}") from error
    return StoredItem(
        id=item.id, kind=item.kind, data=data, after=item.after, created_at=row.entry.at
    )
