"""Split a caller's batch into messages and items of the application, and prepare the items for the log."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid4, uuid5

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from convstore.append.formats import InputMessage
from convstore.append.inputs import converted_items, whole_messages
from convstore.exceptions import ContentConflictError, InvalidInputError
from convstore.log.entry import PayloadRef
from convstore.log.facts.items import EntryItem, item_digest, item_rows
from convstore.messages.compression import Chunk, chunk_ends, compress
from convstore.messages.encoding import digest_of
from convstore.messages.values import Codec
from convstore.mongo.log import Log
from convstore.values.log_records import LogItem, PlacedItem
from convstore.values.plain import counted
from convstore.values.scope import id_problem

_LOGGER = logging.getLogger("convstore")


class PreparedItem(NamedTuple):
    """An item, encoded; `stored.after` is the number of messages before it in the batch."""

    stored: EntryItem
    chunks: tuple[Chunk, ...] = ()


ReadBatch = tuple[Sequence[InputMessage], list[BaseMessage], list[PlacedItem]]
"""The elements of a batch as the caller gave them, its messages, and its items with their positions among these."""


def read_history(batch: Any, *, key: str | None) -> ReadBatch:
    """Return the messages of a history; missing ids are set on the caller's objects.

    Raises:
        InvalidInputError: The history has items.
    """
    read = read_batch(batch, key=key)
    if read[-1]:
        raise InvalidInputError(
            "a history has messages only; append a LogItem in a call of its own"
        )
    return read


def read_batch(batch: Any, *, key: str | None) -> ReadBatch:
    """Return the messages and items of a batch; missing ids are set on the caller's objects."""
    messages, found = _split(batch)
    given = converted_items(messages) if messages or not found else []
    nameless = [index for index, item in given if isinstance(item, Mapping) and not item.get("id")]
    if nameless and key is None:
        _LOGGER.debug(
            "append without key=: a repeated call would store %s again, because dicts have no id",
            counted(len(nameless), "message"),
        )
    whole = whole_messages(given, key=key)
    return given, whole, _named(found, given, key=key)


def _split(batch: Any) -> tuple[Any, list[PlacedItem]]:
    """Return a batch without its items, and the items, each with the number of other elements before it.

    >>> from types import MappingProxyType
    >>> _split(MappingProxyType({"role": "user"}))[0]
    mappingproxy({'role': 'user'})
    >>> mark = LogItem(kind="mark", data=1)
    >>> _split([{"role": "user"}, mark])
    ([{'role': 'user'}], [PlacedItem(item=LogItem(kind='mark', data=1, id=None), position=1)])
    """
    if isinstance(batch, LogItem):
        return [], [PlacedItem(batch, 0)]
    if isinstance(batch, str | bytes | bytearray | BaseModel | Mapping) or not isinstance(
        batch, Iterable
    ):
        return batch, []  # one message, or an error
    others: list[Any] = []
    items: list[PlacedItem] = []
    for given in batch:
        if isinstance(given, LogItem):
            items.append(PlacedItem(given, len(others)))
        else:
            others.append(given)
    return others, items


def _named(
    items: Sequence[PlacedItem], given: Sequence[InputMessage], *, key: str | None
) -> list[PlacedItem]:
    """Set missing ids of items, derived from `key` if given; return the items with the number of messages before each.

    `given` has the messages of the batch; one dict may have become several of them.

    Raises:
        InvalidInputError: An id or a kind is invalid, or two items have the same id. No id was set.
    """
    ids: dict[str, int] = {}
    for index, (item, _) in enumerate(items):
        made = str(uuid4() if key is None else uuid5(NAMESPACE_OID, f"item {index}:{key}"))
        id_ = made if item.id is None else item.id
        for name, value in (("kind", item.kind), ("id", id_)):
            if problem := id_problem(value):
                raise InvalidInputError(f"item {index}: its {name} {problem}")
        if ids.setdefault(id_, index) != index:
            raise InvalidInputError(
                f"item {index} has the id of item {ids[id_]}; give each its own"
            )
    for (item, _), id_ in zip(items, ids, strict=True):
        item.id = id_
    positions = [other.position for other in given]
    return [PlacedItem(item, bisect_left(positions, place)) for item, place in items]


def prepare_items(
    items: Sequence[PlacedItem],
    codec: Codec,
    *,
    token: str,
    numbers: Iterator[int],
    omitted: list[str] | None,
    minimum: int,
) -> tuple[PreparedItem, ...]:
    """Encode items; data of at least `minimum` characters becomes chunks with these numbers; see `batch.prepare_batch`.

    Paths of values that cannot be encoded are added to `omitted`, unless it is None.

    Raises:
        UnencodableError: The codec cannot encode the type of a value, and `omitted` is None.
    """
    prepared: list[PreparedItem] = []
    for index, (item, position) in enumerate(items):
        id_ = str(item.id)
        text = codec.encode(item.data, path=f"item {index}.data", omitted=omitted)
        digest = item_digest(id_, item.kind, text)
        chunks = tuple[Chunk, ...]()
        stored = EntryItem(id_, item.kind, position, text, digest)
        if len(text) >= minimum:
            ends = chunk_ends(text)
            chunks = tuple(Chunk(next(numbers), data) for data in compress(text, ends))
            size = sum(len(chunk.data) for chunk in chunks)
            stored.payload = PayloadRef(
                token=token,
                chunk=chunks[0].number,
                ends=tuple(ends),
                own=len(text),
                digest=digest_of(text),
                size=size,
            )
            stored.body = ""
        prepared.append(PreparedItem(stored, chunks))
    return tuple(prepared)


async def stored_items(log: Log, conversation: str, items: Sequence[PreparedItem]) -> set[str]:
    """Return the ids of the items that the log has. One command, or no command if there are no items.

    Raises:
        ContentConflictError: The log has an item with other data or another kind under the same id.
    """
    given = {item.stored.id: item.stored.digest for item in items}
    rows = item_rows(await log.entries_with_items(conversation, given)) if given else []
    if conflict := next(
        (item.id for item, *_ in rows if given.get(item.id, item.digest) != item.digest), ""
    ):
        raise ContentConflictError(conflict)
    return {item.id for item, *_ in rows}
