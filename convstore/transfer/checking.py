"""Checks a record before any part of it is written, because an import that fails later leaves half a conversation.

Its changes are made one by one, so each has to be possible at its position.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from langchain_core.messages import HumanMessage

from convstore.exceptions import InvalidInputError
from convstore.integration import check_fact
from convstore.messages.sizes import bytes_of
from convstore.messages.values import Codec
from convstore.sources.source import read_ids
from convstore.transfer.dicts import as_item
from convstore.transfer.records import DAMAGED, ConversationRecord, Message
from convstore.values.log_records import LogChange, RecordItem
from convstore.values.plain import part_of
from convstore.values.scope import check_id, check_number, check_one_of, id_problem
from convstore.values.turns import Decision, Pause

MAX_ENTRY_BYTES = 1_000_000
"""Maximum size of an entry without its payloads."""

_MAX_SOURCE_ID = 10**12
"""Highest source id that is imported. A log reaches it after a million results that each skip a million numbers."""

_WITHOUT_MESSAGES = ("begin", "activate", "rewind", "undo")
_CHANGES = (*_WITHOUT_MESSAGES, "append", "wait", "decide", "finish", "stop", "fact")


def check_record(record: ConversationRecord, codec: Codec) -> None:
    """Raise an InvalidInputError for a value of a record that cannot be stored; messages are not checked."""
    number = len(record.messages)
    if not isinstance(record.title, str | None):
        raise InvalidInputError(
            f"its title must be a str or None, not {type(record.title).__name__}"
        )
    for name, values in (("metadata", record.metadata), ("state", record.state)):
        _check_names(values, name)
    check_number(
        record.sources_through, name="its sources_through", minimum=0, maximum=_MAX_SOURCE_ID
    )
    for first, last in record.rewound:
        check_number(first, name="the first message of a rewind", minimum=1, maximum=last)
        check_number(last, name="the last message of a rewind", minimum=1, maximum=number)
    check_changes(record, codec)
    seen: set[str | None] = set()
    for item, position in record.items:
        check_number(position, name="the message before an item", minimum=0, maximum=number)
        check_id(item.kind, name="the kind of an item")
        if problem := id_problem(item.id):
            raise InvalidInputError(f"the id of an item {problem}")
        if item.id in seen:
            raise InvalidInputError(f"two of its items have the id {item.id!r}; give each its own")
        seen.add(item.id)


def check_changes(record: ConversationRecord, codec: Codec) -> None:
    """Raise an InvalidInputError for changes that cannot be made in order, each at its position.

    For example, a variant must begin before it has messages, is finished or is made active.
    """
    if not record.changes:
        return
    known = _questions(record.messages)
    places = _places(record.messages)
    ends = _entry_ends(record.messages)
    begun: dict[tuple[str, str], bool] = {}
    facts: set[tuple[str, int]] = set()
    last = 0
    for change in record.changes:
        last = _check_ordinal(change, last, ends)
        if _needs_message(change) and places.get(change.message, last + 1) > last:
            raise InvalidInputError(f"it lacks the message {change.message!r:.80} of a change")
        check_one_of(change.kind, *_CHANGES, name="the kind of a change")
        if change.is_fact:
            _check_fact(change, codec, facts, ends)
        elif change.variant:
            _check_variant(change, known, begun)
        elif change.is_event:
            _check_question(change, known)
        elif change.kind not in ("rewind", "undo"):
            raise InvalidInputError(f"its change {change.kind!r} names no variant")
        _check_call(change)


def _entry_ends(messages: Sequence[Message]) -> list[int]:
    """Return the positions, from 0, between the entries of a record; all positions if it has no entries."""
    entries = [as_item(given).entry for given in messages]
    inside = {at for at, (a, b) in enumerate(pairwise(entries), 1) if a and a == b}
    return [at for at in range(len(entries) + 1) if at not in inside]


def _check_ordinal(change: LogChange, last: int, ends: Sequence[int]) -> int:
    """Return the ordinal of a change; it must not be before that of the last change, nor inside an entry."""
    if change.has_messages and change.kind in _WITHOUT_MESSAGES:
        raise InvalidInputError(f"its change {change.kind!r} cannot come with messages")
    with_messages = int(change.has_messages)
    minimum = max(last, with_messages) if change.is_fact else last + with_messages
    ordinal = check_number(
        change.ordinal, name="the ordinal of a change", minimum=minimum, maximum=ends[-1]
    )
    if ends[bisect_left(ends, ordinal)] != ordinal:
        raise InvalidInputError(
            f"one of its changes follows message {ordinal}, between messages appended together"
        )
    return ordinal


def _check_fact(
    fact: LogChange, codec: Codec, seen: set[tuple[str, int]], ends: Sequence[int]
) -> None:
    """Check that an entry can have a fact, and only one of its kind; add the fact to `seen`."""
    if not fact.name.isidentifier():
        raise InvalidInputError(f"the kind of a fact must be a word, not {fact.name!r:.80}")
    if bytes_of(fact.values) > MAX_ENTRY_BYTES:
        raise InvalidInputError(f"its fact {fact.name!r:.80} is larger than 1 MB")
    before = ends[bisect_left(ends, fact.ordinal) - fact.has_messages]
    check_fact(fact, codec, before=before)
    place = (fact.name, fact.ordinal)
    if fact.has_messages and place in seen:
        raise InvalidInputError(f"one of its entries has two facts of the kind {fact.name!r}")
    if fact.has_messages:
        seen.add(place)


def _has_own_question(change: LogChange) -> bool:
    """Return True if a change begins a variant with a question of its own."""
    return change.kind == "begin" and change.turn == change.variant


def _needs_message(change: LogChange) -> bool:
    """Return True if a change refers to a message; an undo may have no message to restore."""
    return bool(change.message) or change.kind == "rewind" or _has_own_question(change)


def _places(messages: Sequence[Message]) -> dict[Any, int]:
    """Return the positions of the messages of a record, by id."""
    return {
        part_of(as_item(given).message, "id"): position
        for position, given in enumerate(messages, 1)
    }


def _check_question(change: LogChange, questions: Mapping[str, int]) -> None:
    """Check that the turn of a change has begun."""
    if questions.get(change.turn, change.ordinal + 1) > change.ordinal:
        raise InvalidInputError(f"it lacks the question {change.turn!r:.80} of one of its changes")


def _check_call(change: LogChange) -> None:
    """Check the values of a waiting call or of a decision, because readers do not check them."""
    if change.kind not in ("wait", "decide"):
        return
    check_id(change.call, name="the call of a change")
    try:
        if change.kind == "wait":
            Pause.read(change.values)
        else:
            Decision.read(change.values)
    except DAMAGED as error:
        raise InvalidInputError(
            f"the {change.kind!r} of its call {change.call!r:.80} cannot be read: {error}"
        ) from error


def _check_variant(
    change: LogChange, questions: Mapping[str, int], begun: dict[tuple[str, str], bool]
) -> None:
    """Check a change of a variant, and update `begun`: the earlier variants, True for those that were shown."""
    _check_position(change, questions)
    variant = (change.first_turn, change.variant)
    if change.kind == "begin":
        begun.setdefault(variant, False)
    # the turn's first answer does not need a beginning
    if change.kind == "activate" and change.variant == change.turn:
        return
    if variant not in begun:
        raise InvalidInputError(f"its variant {change.variant!r:.80} has no beginning")
    begun[variant] |= change.shows
    if change.kind == "activate" and not begun[variant]:
        raise InvalidInputError(
            f"its variant {change.variant!r:.80} is made active before it was finished"
        )


def _check_position(change: LogChange, questions: Mapping[str, int]) -> None:
    """Check that a change of a variant follows the question of its turn."""
    if change.turn not in questions and not _has_own_question(change):
        raise InvalidInputError(f"it lacks the question {change.turn!r:.80} of one of its variants")
    if questions.get(change.first_turn, change.ordinal + 1) > change.ordinal:
        raise InvalidInputError(
            f"its variant {change.variant!r:.80} precedes the question of its turn"
        )


def _questions(messages: Sequence[Message]) -> dict[Any, int]:
    """Return the positions of the questions of a record, by id."""
    found: dict[Any, int] = {}
    for position, given in enumerate(messages, 1):
        message, turn = (
            (given.message, given.turn) if isinstance(given, RecordItem) else (given, None)
        )
        if isinstance(message, HumanMessage) and turn in (None, position):
            found[message.id] = position
    return found


def check_item(item: RecordItem, position: int) -> None:
    """Raise an InvalidInputError for a value of an item, other than the message, that cannot be stored."""
    check_number(item.entry, name="entry", minimum=0)
    if item.turn is not None:
        check_number(item.turn, name="turn", minimum=0, maximum=position)
    check_number(item.unseen, name="unseen", minimum=0, maximum=position - 1)
    if item.added_to:
        check_id(item.added_to, name="added_to")
    _check_names(item.annotations, "annotations")
    for number in numbers_in(item.sources):
        check_number(number, name="a source id", minimum=1, maximum=_MAX_SOURCE_ID)


def _check_names(values: Any, name: str) -> None:
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InvalidInputError(f"its {name} must have values by name, not {type(values).__name__}")


def numbers_in(sources: str) -> list[int]:
    """Return the source ids that an export has for a message."""
    try:
        return read_ids(sources)
    except ValueError as error:
        raise InvalidInputError(f"its sources must be ids such as '3, 11-20': {error}") from error
