"""Check the arguments of `Conversation.append` and `append_history`, and pass them to the service that writes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from langchain_core.messages import BaseMessage

from convstore.append.condition import Condition, TailMoved
from convstore.append.formats import Item
from convstore.append.inputs import items_of, whole_messages
from convstore.append.items import named_items, split_items
from convstore.conversation.host import Host
from convstore.exceptions import InvalidInputError, LogMovedError
from convstore.values.append_options import AppendOptions, Trust
from convstore.values.log_records import PlacedItem
from convstore.values.models import Receipt
from convstore.values.plain import counted
from convstore.values.scope import Scope, check_choice, check_id, check_number
from convstore.values.stamps import ViewStamp, check_stamp

_LOGGER = logging.getLogger("convstore")


class Batch(NamedTuple):
    """A batch as it was given, its messages, and its items with their places among these."""

    given: Sequence[Item]
    whole: list[BaseMessage]
    items: Sequence[PlacedItem]


def check_append(*, turn: str | None, after: int | None) -> None:
    """Refuse a turn or an end of the log that cannot be one."""
    if turn is not None:
        check_id(turn, name="turn")
    if after is not None:
        check_number(after, name="after", minimum=0, maximum=2**53)


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


@dataclass(frozen=True, slots=True)
class Writing:
    """How a batch is written; `question` is the id of the question that it belongs to."""

    on_unencodable: Literal["raise", "omit"]
    on_source_clash: Literal["raise", "renumber"]
    stamp: ViewStamp | None = None
    question: str = ""
    after: int | None = None
    items: Sequence[PlacedItem] = ()

    def _options(self) -> AppendOptions:
        """Return the options that batches and histories share, checked."""
        check_choice(self.on_unencodable, "raise", "omit", name="on_unencodable")
        check_choice(self.on_source_clash, "raise", "renumber", name="on_source_clash")
        stamp = None if self.stamp is None else check_stamp(self.stamp)
        return AppendOptions(self.on_unencodable, self.on_source_clash, stamp, self.question)

    async def append(self, host: Host, scope: Scope, whole: Sequence[BaseMessage]) -> Receipt:
        """Append the messages of a batch; see `Conversation.append`."""
        options = self._options()
        services = await host.services()
        try:
            written = await services.writer.append(
                scope,
                whole,
                items=self.items,
                condition=Condition(self.after),
                options=options,
            )
        except TailMoved as moved:
            raise LogMovedError(self.after or 0, last=moved.args[0]) from None
        return written.receipt

    async def append_history(
        self, host: Host, scope: Scope, whole: Sequence[BaseMessage], trust: Trust, on_resent: str
    ) -> Receipt:
        """Append the new messages of a history; see `Conversation.append_history`."""
        check_choice(on_resent, "skip", "raise", name="on_resent")
        options = self._options()
        services = await host.services()
        return await services.resender.append(
            scope, whole, skip=on_resent == "skip", trust=trust, options=options
        )
