"""Items of the application in the log: which of them are active, and their data, verified by its digest.

An item follows the message that was the last active one when the item was appended, and is active while that message
is active. A rewind to an item also stores a cut: an item without id and kind that names a position in the log. A cut
removes the items and cuts at that position and later that follow the same message. Undoing a rewind stores cuts for the
items that were appended since the rewind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from convstore.exceptions import CorruptDocumentError
from convstore.log.entry import Entry, PayloadRef
from convstore.log.facts.kind import CopyPositions, FactKind, Key
from convstore.log.rewind import Rewinds
from convstore.messages.encoding import DIGEST_BYTES, digest_of
from convstore.messages.values import Codec
from convstore.values.log_records import StoredItem

ItemPosition = tuple[int, int]
"""Number of an entry, and index among its items."""


@dataclass(slots=True)
class EntryItem:
    """An item of an entry, or a cut, which removes earlier items.

    Attributes:
        id: Its id; "" for a cut.
        kind: Its kind; "" for a cut.
        after: Ordinal of the message that it follows, 0 at the beginning.
        body: Its encoded data; "" if the payload holds it.
        digest: Digest of id, kind and data.
        payload: Location of its data outside the entry.
        cut: For a cut, number of the entry and index among its items of the first item that it removes.
    """

    id: str
    kind: str
    after: int
    body: str = ""
    digest: bytes = b""
    payload: PayloadRef | None = None
    cut: ItemPosition | None = None


class ItemRow(NamedTuple):
    """An item with its entry and its position in the log."""

    item: EntryItem
    entry: Entry
    place: ItemPosition


def item_rows(entries: Iterable[Entry]) -> list[ItemRow]:
    """Return the items and cuts of entries in the order of the log."""
    return [
        ItemRow(item, entry, (entry.number, at))
        for entry in entries
        for at, item in enumerate(ITEMS.of(entry) or ())
    ]


def active_items(rows: Sequence[ItemRow], rewinds: Rewinds) -> list[ItemRow]:
    """Return the active items, given all items and cuts of a log, in the order of their messages."""
    kept: list[ItemRow] = []
    cuts: dict[int, ItemPosition] = {}
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


def _position(row: ItemRow) -> tuple[int, ItemPosition]:
    return row.item.after, row.place


def item_digest(id_: str, kind: str, text: str) -> bytes:
    """Return the digest of an item with its encoded data `text`."""
    return digest_of("\n".join([id_, kind, text]))


def read_log_item(codec: Codec, row: ItemRow, payload: str | None, *, key: str) -> StoredItem:
    """Return an item as it was appended, given its payload if it has one, and the key of its entry.

    Raises:
        CorruptDocumentError: The item is damaged; names the entry.
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


def key_of_items_after(ordinal: int) -> str:
    """Return the look-up value of entries with items after a message; look-up values sort by the ordinal."""
    return f"items {ordinal:016d}"


def key_of_item(id_: str) -> str:
    """Return the look-up value of the entry with an item."""
    return f"item {id_}"


_ITEM = {
    "id": str,
    "kind": str,
    "after": int,
    "cut": [int],
    "digest": bytes,
    "payload": PayloadRef,
    "body": str,
}
_SHAPE = [_ITEM]


class ItemsKind(FactKind[tuple[EntryItem, ...]]):
    """Kind of fact: items of the application, and cuts; only reads of items and of whole entries load them."""

    name = "items"
    shape = _SHAPE

    def encode(self, value: tuple[EntryItem, ...], entry: Entry) -> Any:
        """Return the list of the items' stored forms."""
        return [_encoded(item) for item in value]

    def decode(self, stored: Any, number: int) -> tuple[EntryItem, ...]:
        """Return the items that `encode` wrote."""
        items = tuple(map(_decoded, stored))
        if not items:
            raise ValueError("its list of items is empty")
        return items

    def keys(self, value: tuple[EntryItem, ...], entry: Entry) -> Iterable[Key]:
        """Return look-up values for the messages that the items follow, and for their ids."""
        places = dict.fromkeys(key_of_items_after(item.after) for item in value)
        return [*places, *(key_of_item(item.id) for item in value if item.id)]

    def cut(
        self, value: tuple[EntryItem, ...], before: int, *, has_messages: bool
    ) -> tuple[EntryItem, ...]:
        """Return the items that follow earlier messages."""
        return tuple(item for item in value if item.after < before)

    def moved(
        self, value: tuple[EntryItem, ...], entry: Entry, copy: CopyPositions
    ) -> tuple[EntryItem, ...]:
        """Return the items and cuts with their positions in the copy, without items that the copy has."""
        return tuple(_moved(value, copy))

    def payloads(self, value: tuple[EntryItem, ...]) -> Iterable[tuple[str, PayloadRef]]:
        """Return the payloads of large items."""
        return [(f"item {item.id!r}", item.payload) for item in value if item.payload]

    def problems(
        self,
        value: tuple[EntryItem, ...],
        entry: Entry,
        payloads: Mapping[str, str],
        codec: Codec,
    ) -> Iterator[str]:
        """Yield the problems of items and cuts."""
        for row in item_rows([entry]):
            text = payloads.get(f"item {row.item.id!r}") if row.item.payload else None
            is_unread = row.item.payload is not None and text is None
            if not is_unread and (problem := _problem(row, text, codec)):
                yield problem


ITEMS = ItemsKind()


def _encoded(item: EntryItem) -> dict[str, Any]:
    if item.cut:
        return {"after": item.after, "cut": list(item.cut)}
    stored = {"id": item.id, "kind": item.kind, "after": item.after, "digest": item.digest}
    data = {"payload": item.payload} if item.payload else {"body": item.body}
    return stored | data


def _decoded(stored: Mapping[str, Any]) -> EntryItem:
    after = stored["after"]
    if "cut" in stored:
        number, index = stored["cut"]
        return EntryItem("", "", after, cut=(number, index))
    digest = stored["digest"]
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"an item has a digest of {len(digest)} bytes")
    item = EntryItem(stored["id"], stored["kind"], after, digest=digest)
    if "payload" in stored:
        item.payload = stored["payload"]
    else:
        item.body = stored["body"]
    return item


def _moved(items: Iterable[EntryItem], copy: CopyPositions) -> Iterator[EntryItem]:
    for item in items:
        after = copy.ordinal_before(item.after)
        if item.cut:
            if place := copy.item_from(item.cut):
                yield replace(item, after=after, cut=place)
        elif item.id not in copy.items:
            yield replace(item, after=after)


def _problem(row: ItemRow, payload: str | None, codec: Codec) -> str:
    """Return the problem of an item or a cut, or ""."""
    item = row.item
    if item.after > row.entry.last or (item.cut or (0, 0)) >= row.place:
        return "an item or a cut of it has a position that the log does not have"
    try:
        if not item.cut:
            read_log_item(codec, row, payload, key="")
    except CorruptDocumentError as error:
        return error.problem
    return ""
