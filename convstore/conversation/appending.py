"""Check what `Conversation.append` and `append_turn` are given, and hand it to the service that writes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from langchain_core.messages import BaseMessage

from convstore.append.condition import Condition, TailMoved
from convstore.append.formats import Item
from convstore.append.inputs import items_of, whole_messages
from convstore.append.items import named_items, split_items
from convstore.append.trust import Trust, check_trust
from convstore.conversation.host import Host
from convstore.exceptions import InvalidInputError, LogMovedError
from convstore.values.append_options import AppendOptions
from convstore.values.items import PlacedItem
from convstore.values.models import Receipt
from convstore.values.scope import Scope, check_choice, check_id, check_number
from convstore.values.stamps import ViewStamp, check_stamp


class Batch(NamedTuple):
    """A batch as it was given, its messages, and its items with their places among these."""

    given: Sequence[Item]
    whole: list[BaseMessage]
    items: Sequence[PlacedItem]


def check_append(
    resent: str | None,
    accept: str | None,
    client_tools: Collection[str],
    strict: bool,
    *,
    after: int | None,
    turn: str | None,
) -> Trust:
    """Return what is taken of a history that a client sent; arguments that exclude each other are refused."""
    trust = check_trust(accept, client_tools, strict)
    if resent is None and (accept or client_tools or strict):
        raise InvalidInputError(
            'accept, client_tools and strict are for histories of clients; add resent="skip"'
        )
    if turn is not None:
        check_id(turn, name="turn")
        if resent:
            raise InvalidInputError(
                "turn cannot be combined with resent, whose messages have turns of their own"
            )
    if after is not None:
        check_number(after, name="after", minimum=0, maximum=2**53)
        if resent:
            raise InvalidInputError(
                "after cannot be combined with resent, which compares the batch with the log"
            )
    return trust


def read_batch(batch: Any, *, key: str | None, takes_items: bool) -> Batch:
    """Return the messages and items of a batch; those without an id get one, on the caller's objects."""
    messages, found = split_items(batch)
    if found and not takes_items:
        raise InvalidInputError(
            "a history of a client has messages only; append a LogItem in a call of its own"
        )
    given = items_of(messages) if messages or not found else []
    whole = whole_messages(given, key=key)
    return Batch(given, whole, named_items(found, given, key=key))


@dataclass(frozen=True, slots=True)
class Writing:
    """How a batch is written; the arguments of `Conversation.append`, and the turn that it must begin or continue.

    `question` is the id of the question that it belongs to.
    """

    on_unencodable: Literal["raise", "omit"]
    on_source_clash: Literal["raise", "renumber"]
    stamp: ViewStamp | None = None
    turn: str = ""
    question: str = ""
    resent: str | None = None
    trust: Trust = Trust()  # noqa: RUF009 - frozen
    after: int | None = None
    items: Sequence[PlacedItem] = ()

    async def append(self, host: Host, scope: Scope, whole: Sequence[BaseMessage]) -> Receipt:
        """Append the messages of a batch; see `Conversation.append`."""
        check_choice(self.on_unencodable, "raise", "omit", name="on_unencodable")
        check_choice(self.on_source_clash, "raise", "renumber", name="on_source_clash")
        check_choice(self.resent, None, "skip", "raise", name="resent")
        stamp = None if self.stamp is None else check_stamp(self.stamp)
        options = AppendOptions(self.on_unencodable, self.on_source_clash, stamp, self.question)
        services = await host.services()
        if self.resent:
            skip = self.resent == "skip"
            return await services.resender.append(
                scope, whole, skip=skip, trust=self.trust, options=options
            )
        try:
            written = await services.writer.append(
                scope,
                whole,
                items=self.items,
                condition=Condition(self.after, self.turn),
                options=options,
            )
            return written.receipt
        except TailMoved as moved:
            raise LogMovedError(self.after or 0, last=moved.args[0]) from None
