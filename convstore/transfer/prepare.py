"""Prepares a record for appending: messages are read, checked, given ids and divided into batches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage, HumanMessage

from convstore.exceptions import InvalidInputError
from convstore.integration import normalize_messages, renumbered_fact
from convstore.messages.encoding import SMALLEST_PART, digest_of, encode_message, fields_of
from convstore.messages.sizes import bytes_of
from convstore.messages.values import Codec
from convstore.transfer.checking import (
    MAX_ENTRY_BYTES,
    check_changes,
    check_item,
    check_record,
    numbers_in,
)
from convstore.transfer.dicts import as_item, without_id
from convstore.transfer.records import (
    ConversationRecord,
    Problem,
)
from convstore.values.append_options import Columns
from convstore.values.log_records import PlacedItem, RecordItem
from convstore.values.plain import part_of
from convstore.values.ranges import merge_ranges
from convstore.values.scope import id_problem

Placed = TypeVar("Placed")


@dataclass(frozen=True, slots=True)
class ReadyMessage:
    """A message with an id, ready to append, with its position in the record from 1, its digest and its item."""

    position: int
    message: BaseMessage
    digest: bytes
    item: RecordItem

    @property
    def id(self) -> str:
        """The id of the message."""
        return str(self.message.id)


@dataclass(frozen=True, slots=True)
class ImportBatch:
    """Messages that are appended as one entry.

    Attributes:
        messages: The messages.
        at: The date of the entry; None for the time of the import.
        reserve_to: Reserve source ids up to this one before the append; 0 to reserve no ids.
        rewind_from: Position of the first message to rewind after the append; 0 if no rewind follows.
        items: Items that follow its messages, or that precede the first message of the record.
    """

    messages: Sequence[ReadyMessage]
    at: datetime | None = None
    reserve_to: int = 0
    rewind_from: int = 0
    items: Sequence[PlacedItem] = ()


def make_ready(
    record: ConversationRecord, *, codec: Codec
) -> tuple[list[ReadyMessage], list[Problem]]:
    """Return the messages of a record that can be appended, and the problems of the others.

    A message without an id gets one that is derived from the record's id.

    Raises:
        InvalidInputError: A value of the record, besides its messages, cannot be stored.
    """
    check_record(record, codec)
    messages: list[ReadyMessage] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for position, given in enumerate(record.messages, 1):
        item = as_item(given)
        where = item.where or f"{record.where}, message {position}".removeprefix(", ")
        try:
            check_item(item, position)
            key = f"{item.key or position}:{record.id}"
            read, note = _read(item, seen, key=digest_of(key).hex() if id_problem(key) else key)
            placed = replace(item, where=where)
            messages += [
                ReadyMessage(position, part, digest, placed)
                for part, digest in _with_digests(codec, read)
            ]
        except InvalidInputError as error:
            reason = str(error).removeprefix("message 0, ").removeprefix("message 0: ")
            problems.append(Problem("message", where, record.id, reason))
            continue
        seen |= {str(message.id) for message in read}
        problems += [Problem("changed", where, record.id, note)] if note else []
    notes = [*_note_of_dates(messages), *record.notes]
    problems += [Problem("changed", record.where, record.id, note) for note in notes]
    return messages, problems


def without_left_out(
    record: ConversationRecord, messages: Sequence[ReadyMessage], codec: Codec
) -> ConversationRecord:
    """Return a record whose facts use the ordinals that the messages have without those that are left out.

    Raises:
        InvalidInputError: A message that the changes need is left out.
    """
    positions = [message.position for message in messages]
    if not record.changes or positions == [*range(1, len(record.messages) + 1)]:
        return record
    kept = set(positions)
    found = [
        given if position in kept else RecordItem(message=None, entry=as_item(given).entry)
        for position, given in enumerate(record.messages, 1)
    ]
    check_changes(replace(record, messages=found), codec)
    place = partial(bisect_right, positions)
    changes = [
        renumbered_fact(change, codec, place) if change.is_fact else change
        for change in record.changes
    ]
    return replace(record, changes=changes)


def columns_of(messages: Sequence[ReadyMessage], ids: Mapping[int, str]) -> dict[str, Columns]:
    """Return the columns of messages by their ids, for messages whose record has a turn.

    `ids` has the ids of all messages of the record, by their positions.
    """
    found: dict[str, Columns] = {}
    for ready in messages:
        item = ready.item
        if item.turn is not None:
            turn = ids.get(item.turn, "")
            found[ready.id] = Columns(turn, item.unseen, item.added_to, item.is_failed)
    return found


def _note_of_dates(messages: Sequence[ReadyMessage]) -> list[str]:
    """Return one note for all messages whose dates cannot be read."""
    unread = [message for message in messages if message.item.unread_date]
    if not unread:
        return []
    first = unread[0]
    return [
        f"dates that cannot be read: {len(unread)}, the first is {first.item.unread_date} of "
        f"message {first.position}; these messages get the date of their turn, of the turn before, "
        "or of the import"
    ]


def batches_of(
    record: ConversationRecord, messages: Sequence[ReadyMessage]
) -> Iterator[ImportBatch]:
    """Yield batches: the entries of an export, or whole turns of other sources. A rewound range ends a batch."""
    rewinds = {last: first for first, last in record.rewinds}
    items = defaultdict[int, list[PlacedItem]](list)
    for placed in record.items:
        items[placed.position].append(placed)
    latest = _first_date(messages)
    through = 0
    placed_here = items[0]
    for batch in _groups(messages, rewinds):
        for number, message in enumerate(batch, 1):
            placed_here += [each._replace(position=number) for each in items[message.position]]
        at = _first_date(batch)
        if latest and at:
            latest = max(latest, at)  # dates in a log never decrease
        numbers = numbers_of(batch)
        reserve_to = 0
        if numbers and min(numbers) > through + 1:
            reserve_to = min(numbers) - 1
        yield ImportBatch(
            batch, latest, reserve_to, rewinds.get(batch[-1].position, 0), placed_here
        )
        through = max([through, *numbers])
        placed_here = []


def by_batch(
    ends: Sequence[int], placed: Iterable[Placed], place: Callable[[Placed], int]
) -> defaultdict[int, list[Placed]]:
    """Group values with a position by the position of the last message of the batch before them, 0 without a batch.

    `ends` has these positions. The last messages of a batch may have been left out.
    """
    found = defaultdict[int, list[Placed]](list)
    for each in placed:
        index = bisect_right(ends, place(each))
        found[ends[index - 1] if index else 0].append(each)
    return found


def _groups(messages: Sequence[ReadyMessage], ends: Container[int]) -> Iterator[list[ReadyMessage]]:
    """Yield the messages of each batch; `ends` has positions after which a batch must end."""
    group: list[ReadyMessage] = []
    for message in messages:
        if group and (group[-1].position in ends or _begins(group[-1], message)):
            yield group
            group = []
        group.append(message)
    if group:
        yield group


def _first_date(messages: Sequence[ReadyMessage]) -> datetime | None:
    return next((message.item.at for message in messages if message.item.at), None)


def _begins(message: ReadyMessage, following: ReadyMessage) -> bool:
    if message.item.entry or following.item.entry:
        return message.item.entry != following.item.entry
    return isinstance(following.message, HumanMessage)


def messages_between(
    messages: Sequence[ReadyMessage], first: int, last: int
) -> Sequence[ReadyMessage]:
    """Return the messages from one position of a record to another."""
    position = attrgetter("position")
    return messages[
        bisect_left(messages, first, key=position) : bisect_right(messages, last, key=position)
    ]


def items_after(items: Sequence[PlacedItem], number: int) -> list[PlacedItem]:
    """Return the items after the first `number` messages of a batch, with positions relative to these messages."""
    return [
        PlacedItem(item, position - number)
        for item, position in items
        if position > number or not number
    ]


def hidden_ranges(shown: Iterable[bool]) -> list[tuple[int, int]]:
    """Return the first and last position, from 1, of each range of messages that a source hides, for `rewound`.

    >>> hidden_ranges([True, False, False, True, False])
    [(2, 3), (5, 5)]
    """
    return merge_ranges((at, at) for at, is_shown in enumerate(shown, 1) if not is_shown)


def numbers_of(batch: Sequence[ReadyMessage]) -> list[int]:
    """Return the source ids that an export has for a batch."""
    return [number for message in batch for number in numbers_in(message.item.sources)]


def _read(item: RecordItem, seen: Container[str], *, key: str) -> tuple[list[BaseMessage], str]:
    """Return the message or messages of an item, each with an id, and a note if an id was replaced."""
    if item.problem:
        raise InvalidInputError(item.problem)
    given: Any = item.message
    id_ = part_of(given, "id")
    note = ""
    if id_ is not None and (
        problem := id_problem(id_) or ("belongs to an earlier message" if id_ in seen else "")
    ):
        note = f"its id {str(id_)[:80]!r} {problem}; it was given a new id"
        given = without_id(given)
    return normalize_messages([given], key=key), note


def _with_digests(codec: Codec, messages: Sequence[BaseMessage]) -> list[tuple[BaseMessage, bytes]]:
    """Return the messages with the digests that entries store, of body and payload.

    Raises:
        InvalidInputError: A message is larger than 1 MB in parts that are too small to be stored outside the entry.
    """
    encoded = [encode_message(codec, fields_of(message)) for message in messages]
    for message, form in zip(messages, encoded, strict=True):
        if bytes_of(form.body) <= MAX_ENTRY_BYTES:
            continue
        least = encode_message(
            codec, fields_of(message), minimum=SMALLEST_PART, whole_contents=True
        )
        if bytes_of(least.body) > MAX_ENTRY_BYTES:
            raise InvalidInputError(
                "larger than 1 MB in fields of fewer than 500 characters each; join or shorten them"
            )
    return [(message, form.digests) for message, form in zip(messages, encoded, strict=True)]
