"""Read the batches that `Conversation.append` and `append_history` are given."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from convstore.append.formats import Item
from convstore.append.inputs import items_of, whole_messages
from convstore.append.items import named_items, split_items
from convstore.exceptions import InvalidInputError
from convstore.values.log_records import PlacedItem
from convstore.values.plain import counted

_LOGGER = logging.getLogger("convstore")


class Batch(NamedTuple):
    """A batch as it was given, its messages, and its items with their places among these."""

    given: Sequence[Item]
    whole: list[BaseMessage]
    items: Sequence[PlacedItem]


def read_history(batch: Any, *, key: str | None) -> Batch:
    """Return the messages of a history, which has no items; those without an id get one, on the caller's objects."""
    read = read_batch(batch, key=key)
    if read.items:
        raise InvalidInputError(
            "a history has messages only; append a LogItem in a call of its own"
        )
    return read


def read_batch(batch: Any, *, key: str | None) -> Batch:
    """Return the messages and items of a batch; those without an id get one, on the caller's objects."""
    messages, found = split_items(batch)
    given = items_of(messages) if messages or not found else []
    nameless = [index for index, item in given if isinstance(item, Mapping) and not item.get("id")]
    if nameless and key is None:
        _LOGGER.debug(
            "append without key=: a repeated call would store %s again, because dicts have no id",
            counted(len(nameless), "message"),
        )
    whole = whole_messages(given, key=key)
    return Batch(given, whole, named_items(found, given, key=key))
