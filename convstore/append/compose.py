"""Compose the entry that appends a prepared batch to a log with given totals.

It adds everything that depends on the log so far: ordinals, numbers of sources, names of tools, stubs and running
totals.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from langchain_core.messages import ToolMessage

from convstore.append.batch import Batch, PreparedMessage
from convstore.append.items import PreparedItem
from convstore.exceptions import SourceIdClashError
from convstore.log.assignment import saw_of
from convstore.log.entry import Entry, EntryMessage, EntrySource, Facts, OpenCall, Totals
from convstore.log.facts.event import EVENT
from convstore.log.facts.items import ITEMS, EntryItem
from convstore.log.facts.thinking import THINKING, Thinking
from convstore.log.rows import is_named
from convstore.log.totals import MessageLinks, RunningTotals
from convstore.messages.encoding import decode_message
from convstore.messages.reasoning import has_bound_thinking
from convstore.messages.tokens import count
from convstore.runtime.cache import CachedPayload
from convstore.sources.failures import has_failed_by
from convstore.sources.shortening import leave_out, with_stub
from convstore.sources.source import write_ids
from convstore.sources.stub import named_sources, stub_of
from convstore.values.json_form import new_model
from convstore.values.models import Receipt
from convstore.values.scope import id_problem
from convstore.values.stamps import ViewStamp, write_stamp

_NO_QUESTIONS: Mapping[str, int] = {}

_LOGGER = logging.getLogger("convstore")
MAX_AHEAD = 1_000_000
"""A tool's source number that exceeds the highest one by more than this is replaced: it would exhaust later numbers."""


def compose_entry(
    batch: Batch,
    after: Totals,
    *,
    at: datetime,
    link: int = 0,
    taken: frozenset[int] = frozenset(),
    last_active: int = 0,
    questions: Mapping[str, int] = _NO_QUESTIONS,
) -> Entry:
    """Compose the entry that appends a batch to a log with these totals; its messages and sources are the batch's own.

    Sources without a number get the next free ones, which their stubs name. Then `batch.reserve` more numbers are
    reserved. Numbers that are reserved for a child count as given to sources of this log.

    Args:
        batch: The batch.
        after: The totals of the log before the entry, with `shown` if the batch has sources.
        at: The time of the entry.
        link: The random link of the entry.
        taken: Source numbers in use, if sources of the batch may be renumbered.
        last_active: The ordinal of the last active message; items before the first message of the batch follow it.
        questions: Ordinals of the questions that messages and facts refer to, by id.

    Raises:
        SourceIdClashError: Two sources have the same number, and the options do not allow renumbering.
    """
    numbering = _Numbering.of(batch, after)
    running = RunningTotals(after, max(after.sources_through, numbering.highest))
    messages: list[EntryMessage] = []
    sources: list[EntrySource] = []
    stamp = batch.options.stamp
    request = None
    ordinals = dict(questions)
    for ordinal, prepared in enumerate(batch.prepared, after.messages + 1):
        known = _named_turn(batch, prepared, ordinal, ordinals)
        if known is None and prepared.stored.is_reply:
            known = _answered_turn(batch, messages, running.turn)
        result_id = _added_to(batch, prepared)
        followed = running.follow(prepared.message, ordinal, turn=known, is_added=bool(result_id))
        for source in prepared.sources:
            _number(source, running, numbering, taken)
        _set_place(prepared, batch, ordinal, followed, added_to=result_id)
        message = prepared.stored
        if stamp and message.is_reply:  # the first one
            request = _stamp(prepared, stamp)
            stamp = None
        if message.begins_turn:
            ordinals[message.id] = ordinal
        running.add_size(message)
        messages.append(message)
        sources += prepared.sources
    _log_uncalled(messages)
    facts = _facts(batch, ordinals, request, after)
    if batch.items:
        if after.link and not (messages or batch.reserve or facts):
            link = after.link
        items = tuple(_placed(item, after, last_active) for item in batch.items)
        facts = ITEMS.put(items, facts)
    running.sources_through += batch.reserve
    if batch.for_child:
        running.given_through = running.sources_through
    return Entry(
        first=after.messages + 1,
        at=at,
        messages=tuple(messages),
        totals=running.totals(
            at, shown_now=bool(sources), counter=batch.counter.name, link=link, facts=facts
        ),
        after=after.link,
        sources=tuple(sources),
        facts=facts,
    )


def _facts(
    batch: Batch, questions: Mapping[str, int], request: Thinking | None, after: Totals
) -> Facts:
    """Return the facts of a batch; its event gets the ordinal of its question, and the request of a reply is added."""
    facts = batch.facts
    if event := EVENT.among(facts):
        facts = EVENT.put(event._replace(question=questions.get(event.turn, 0)), facts)
    request = request or THINKING.among(facts)
    if request:  # a forged stamp may name messages that the log does not have yet
        through = min(request.through, after.messages)
        facts = THINKING.put(request._replace(through=through), facts)
    return facts


def _log_uncalled(messages: Sequence[EntryMessage]) -> None:
    """Log the ids of results without a call, in one line."""
    ids = [message.id for message in messages if message.type == "tool" and not message.answers]
    if ids:
        _LOGGER.debug("results without a call, which views leave out: %s", ", ".join(ids))


def _stamp(prepared: PreparedMessage, stamp: ViewStamp) -> Thinking | None:
    """Set the stamp of a reply and the last ordinal that its model saw.

    Returns the request that the reply answered, if its thinking blocks are valid only after that request.
    """
    message = prepared.stored
    message.stamp = write_stamp(stamp)
    message.saw = saw_of(message.ordinal, stamp)
    if not stamp.digest or not has_bound_thinking(prepared.message):
        return None
    return Thinking(message.id, stamp.messages, stamp.digest, stamp.thinking_through)


def _placed(item: PreparedItem, after: Totals, last_active: int) -> EntryItem:
    """Return an item with the ordinal of the message that it follows."""
    place = after.messages + item.stored.after if item.stored.after else last_active
    return replace(item.stored, after=place)


def _named_turn(
    batch: Batch, prepared: PreparedMessage, ordinal: int, ordinals: Mapping[str, int]
) -> int | None:
    """Return the turn that the writer names for a message; None to apply the rules of `log.assignment`."""
    if columns := batch.options.columns.get(prepared.stored.id):
        begins = columns.turn == prepared.stored.id and prepared.message.type == "human"
        return ordinal if begins else ordinals.get(columns.turn, 0)
    named = batch.options.question
    return ordinals.get(named) if named else None


def _answered_turn(batch: Batch, before: Sequence[EntryMessage], newest: int) -> int | None:
    """Return the turn of a reply in the batch of a run, after its earlier messages; None to apply `log.assignment`."""
    if batch.options.replies == "newest":
        return newest
    if batch.options.replies == "results":
        for message in reversed(before):
            if message.type == "tool" or message.begins_turn:
                return message.turn
    return None


def _added_to(batch: Batch, prepared: PreparedMessage) -> str:
    """Return the `result_id` of the call whose tool added a message to its result; "" for any other message."""
    columns = batch.options.columns.get(prepared.stored.id)
    return columns.answers if columns and prepared.stored.type != "tool" else ""


@dataclass(slots=True)
class _Numbering:
    """The numbers of the sources of a batch.

    Attributes:
        in_use: Numbers that no further source may get.
        reserved: Reserved numbers, for sources without one; after them the numbers continue those of the log.
        highest: The highest number that a tool gave and that is kept, or 0.
    """

    in_use: set[int]
    reserved: Iterator[int]
    highest: int

    @classmethod
    def of(cls, batch: Batch, after: Totals) -> _Numbering:
        """Return the numbering of a batch after some totals.

        Raises:
            SourceIdClashError: Two sources have the same number, and the options do not allow renumbering.
        """
        limit = max(after.sources_through, batch.through) + MAX_AHEAD
        given = batch.kept_source_ids
        kept = sorted(number for number in given if number <= limit)
        for number, following in pairwise(kept):
            if number == following and not batch.options.renumbers:
                raise SourceIdClashError(number)
        too_high = {number for number in given if number > limit}
        return cls(too_high, iter(batch.options.numbers), kept[-1] if kept else 0)


def _number(
    source: EntrySource, running: RunningTotals, numbering: _Numbering, taken: frozenset[int]
) -> None:
    """Number a source; a number that the tool gave is kept unless it is in `taken` or `numbering.in_use`."""
    number = source.given
    if number is None or number in numbering.in_use or number in taken:
        number = next(numbering.reserved, running.sources_through + 1)
        running.sources_through = max(running.sources_through, number)
        running.given_through = max(running.given_through, number)
    numbering.in_use.add(number)
    source.id = number
    source.earlier = running.shown.add(source.digest, number)


def _set_place(
    prepared: PreparedMessage, batch: Batch, ordinal: int, followed: MessageLinks, *, added_to: str
) -> None:
    """Set every field of a prepared message that depends on its position; an earlier attempt may have set others.

    `added_to` is the `result_id` of a call if a tool added the message to its result, else "".
    """
    message = prepared.stored
    message.ordinal = ordinal
    message.turn = followed.turn
    message.calls = followed.results
    message.answers = added_to or followed.call.result
    message.stamp = ""
    message.saw = saw_of(ordinal) if message.is_reply else 0
    if message.saw and (columns := batch.options.columns.get(message.id)):
        message.saw = max(1, message.saw - columns.unseen)
    if isinstance(prepared.message, ToolMessage):
        _set_result(prepared, prepared.message, batch, followed.call)
    message.is_named = is_named(message.type, message.view_tokens, message.tool)


def _set_result(
    prepared: PreparedMessage, given: ToolMessage, batch: Batch, call: OpenCall
) -> None:
    """Set the fields of a tool result that depend on its call and on the numbers of its sources, with its stub."""
    message = prepared.stored
    tool = given.name or call.tool
    message.tool = tool
    message.call = "" if id_problem(call.id) else call.id
    message.arguments = call.arguments
    numbers = named_sources(tool, [source.id for source in prepared.sources], prepared.read_back)
    message.sources = write_ids(numbers) if numbers else ""
    error = _error_of(prepared, given, batch, tool)
    message.is_failed = error is not None
    message.is_judged = message.is_failed != (prepared.error is not None)
    stub = stub_of(
        tool=tool,
        tool_message_id=message.id,
        content=prepared.text,
        tokens=message.tokens,
        source_ids=numbers,
        error=error,
    )
    message.stub = stub
    message.view_tokens = (
        prepared.view_tokens if stub is None else _stub_tokens(prepared, stub, batch)
    )


def _error_of(prepared: PreparedMessage, given: ToolMessage, batch: Batch, tool: str) -> str | None:
    """Return the error text of a failed result, else None; an archive decides first, then the application's judge."""
    columns = batch.options.columns.get(prepared.stored.id)
    has_failed = columns.is_failed if columns else None
    if has_failed is None:
        has_failed = has_failed_by(batch.judge, tool, given)
    if has_failed is None:
        return prepared.error
    return (prepared.error or prepared.text) if has_failed else None


def _stub_tokens(new: PreparedMessage, stub: str, batch: Batch) -> int:
    """Return the size of a result as its stub; only content and artifact are taken out of most results."""
    is_split = new.has_large_fields
    if is_split:
        shown = leave_out(decode_message(batch.codec, new.stored.body))
    else:
        shown = new.message.model_copy()
    return count(batch.counter, with_stub(shown, stub))


def payloads_to_cache(batch: Batch, entry: Entry, finished: int) -> dict[str, CachedPayload]:
    """Return the payloads that loads will need, by message id; of the first `finished` messages only shown parts."""
    found: dict[str, CachedPayload] = {}
    for index, (prepared, message) in enumerate(zip(batch.prepared, entry.messages, strict=True)):
        shown = message.payload.shown if message.payload and not message.stub else 0
        # a load in the middle of this turn needs all of it but the sources
        if message.payload and index >= finished:
            own = prepared.payload[: message.payload.own]
            found[prepared.stored.id] = CachedPayload(own, shown)
        elif shown:
            found[prepared.stored.id] = CachedPayload(
                prepared.payload[:shown], shown, is_lasting=True
            )
    return found


def renumbered_by(sources: Sequence[EntrySource]) -> dict[str, dict[int, int]]:
    """Return old and new numbers of renumbered sources, by message id."""
    changed: dict[str, dict[int, int]] = {}
    for source in sources:
        if source.given is not None and not source.kept:
            changed.setdefault(source.message_id, {})[source.given] = source.id
    return changed


def receipt_of(
    batch: Batch,
    entry: Entry | None,
    *,
    stored: Mapping[str, int],
    renumbered: Mapping[str, dict[int, int]],
) -> Receipt:
    """Return the receipt of a batch: its new messages are in `entry`, and `stored` has the ordinals of the others."""
    messages, sources = (entry.messages, entry.sources) if entry else ((), ())
    by_id = {**stored, **{message.id: message.ordinal for message in messages}}
    ids = batch.ids
    numbers = [source.id for source in sources]
    ordinals = tuple(map(by_id.__getitem__, ids)) or (0,)
    values = {
        "message_ids": tuple(ids),
        "first": min(ordinals),
        "last": max(ordinals),
        "ordinals": ordinals,
        "written": len(messages),
        "entry": entry.number if entry else 0,
        "source_ids": (min(numbers), max(numbers)) if numbers else None,
        "omitted": batch.omitted,
        "renumbered": {**renumbered, **renumbered_by(sources)},
        "ignored": (),
    }
    return new_model(Receipt, values, fields_set=set(values))
