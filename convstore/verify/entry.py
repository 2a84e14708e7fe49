"""Check that a stored entry equals the entry that an append after the previous one would have written.

All redundant fields, and all fields that follow from the previous entry, are recomputed and compared. Descriptions of
problems never contain text of messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.exceptions import CorruptDocumentError
from convstore.log.assignment import saw_of
from convstore.log.comparison import content_digest
from convstore.log.entry import RULES, Entry, EntryMessage, EntrySource, Totals
from convstore.log.facts.branch import BRANCH, own_totals
from convstore.log.facts.event import EVENT
from convstore.log.facts.standing import branched_after
from convstore.log.rewind import OF_ACTIVE, continued
from convstore.log.stored_message import read_message, stored_stamp, stub_again
from convstore.log.totals import (
    MAX_SHOWN,
    SHOWN_ENTRIES,
    RunningTotals,
    numbers_after,
    totals_after,
)
from convstore.messages.media_sizes import media_of
from convstore.messages.reasoning import begins_with_reasoning
from convstore.messages.tool_calls import is_paused, result_ids
from convstore.messages.values import Codec
from convstore.sources.detection import has_failed, read_back_ids
from convstore.sources.places import read_item
from convstore.sources.source import text_digest, write_ids
from convstore.sources.stub import RETRIEVAL_TOOL, named_sources
from convstore.values.scope import id_problem

_DIGESTS_KEPT = 1_000


Problem = tuple[str, str]
"""A problem of an entry: its kind and a description."""


def check_entry(
    entry: Entry, payloads: Mapping[str, str], *, codec: Codec
) -> tuple[list[Problem], list[BaseMessage] | None]:
    """Check an entry by itself: messages, payloads, stubs and sources.

    `payloads` are the readable payloads, by message id. Returns the problems, and the decoded messages, or None if a
    message cannot be read.
    """
    problems: list[Problem] = []
    decoded: dict[str, BaseMessage] = {}
    for message in entry.messages:
        if message.payload and message.id not in payloads:
            continue  # already reported when the payload was read
        try:
            appended = decoded[message.id] = read_message(codec, message, payloads.get(message.id))
        except CorruptDocumentError as error:
            problems.append(("checksum", error.problem))
            continue
        found = _message_problems(codec, message, appended)
        problems += [("message", f"message {message.id!r}: {text}") for text in found]
    for message in entry.messages if entry.rules == RULES else ():
        if text := _stub_problem(message, decoded.get(message.id), entry):
            problems.append(("stub", f"message {message.id!r}: {text}"))
    read_back = {
        id_: read_back_ids(result)
        for id_, result in decoded.items()
        if isinstance(result, ToolMessage)
    }
    problems += [("source", text) for text in _source_problems(entry, payloads, read_back, codec)]
    if len({message.id for message in entry.messages}) < len(entry.messages):
        problems.append(("message", "two messages have the same id"))
    return problems, list(decoded.values()) if len(decoded) == len(entry.messages) else None


def check_totals(
    entry: Entry, messages: Sequence[BaseMessage] | None, candidates: Sequence[Totals]
) -> tuple[list[Problem], tuple[Totals, ...]]:
    """Compare the totals of an entry with those that follow from the previous entry.

    `candidates` are possible totals of the previous entry; empty if it cannot be read. Returns the problems, and the
    candidates for the next entry: after damage the expected and the stored totals, so that no damage is reported twice.
    """
    stored = entry.totals
    if messages is None or not candidates or entry.rules != RULES:
        return [], (stored,)
    expected = [_expected(entry, messages, before) for before in candidates]
    if stored in expected:
        event = EVENT.of(entry)
        # The calls of a variant are not those of the log.
        is_of_variant = event is not None and event.variant
        before = candidates[expected.index(stored)]
        return [] if is_of_variant else _call_problems(entry, messages, before), (stored,)
    compared = [field.name for field in fields(Totals) if field.compare]
    differing = [name for name in compared if getattr(expected[0], name) != getattr(stored, name)]
    problem = f"the running totals do not follow: {', '.join(differing)}"
    return [("totals", problem)], (expected[0], stored)


def _call_problems(entry: Entry, messages: Sequence[BaseMessage], before: Totals) -> list[Problem]:
    """Return problems of results whose stored call or arguments are not those of the call that they answer."""
    running = RunningTotals(before, before.sources_through)
    numbered = zip(entry.messages, messages, strict=True)
    wrong: list[str] = []
    for stored, message in numbered:
        call = running.follow(
            message, stored.ordinal, turn=stored.turn, is_added=stored.is_added
        ).call
        answers = stored.answers if stored.is_added else call.result
        if (stored.answers, stored.arguments) != (answers, call.arguments):
            wrong.append(stored.id)
    return [
        ("message", f"message {id_!r}: the stored result id or arguments of its call are wrong")
        for id_ in wrong
    ]


def _message_problems(codec: Codec, message: EntryMessage, appended: BaseMessage) -> Iterator[str]:
    if content_digest(appended, codec) != message.content_digest:
        yield "its content digest does not match its content"
    if tuple(result_ids(appended)) != message.calls:
        yield "the stored ids of its calls' results are wrong"
    if not _is_right_about_seen(message):
        yield "the stored ordinal that its model saw does not match its stamp"
    if is_paused(appended) != message.is_paused:
        yield "its mark as paused does not match its content"
    if begins_with_reasoning(appended) != message.is_reasoning:
        yield "its mark as beginning with reasoning does not match its content"
    if media_of(appended) != message.media:
        yield "the stored sizes of its images and files do not match its content"
    if isinstance(appended, ToolMessage):
        call = "" if id_problem(appended.tool_call_id) else appended.tool_call_id
        if message.call != call or (appended.name and message.tool != appended.name):
            yield "the stored id or tool of the call that it answers is wrong"
    if has_failed(appended) != (message.is_failed != message.is_judged):
        yield "its mark as failed does not match its content"


def _is_right_about_seen(message: EntryMessage) -> bool:
    """Return True if the ordinal that the model of a message saw matches its stamp; without a stamp, it may be lower.

    An archive without the stamp still has this ordinal.
    """
    if not message.is_reply:
        return message.saw == 0
    stamp = stored_stamp("", message)
    whole = saw_of(message.ordinal)
    if stamp is not None:
        return message.saw == saw_of(message.ordinal, stamp)
    return min(1, whole) <= message.saw <= whole


def _stub_problem(message: EntryMessage, appended: BaseMessage | None, entry: Entry) -> str:
    """Return the problem of a stub, which must equal the stub recomputed from the message and its sources, or ""."""
    if appended is None:
        return ""
    if not isinstance(appended, ToolMessage):
        return "it has a stub, but is not a tool result" if message.stub is not None else ""
    own = [source.id for source in entry.sources if source.message_id == message.id]
    numbers = named_sources(message.tool, own, read_back_ids(appended))
    if (
        not _is_plain(appended.content)
        or stub_again(message, appended, source_ids=numbers) == message.stub
    ):
        return ""
    return "its stub does not match its content and its sources"


def _is_plain(content: Any) -> bool:
    """Return True if blocks have only values of JSON; `verify` may not know other types."""
    try:
        json.dumps(content)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


@dataclass(slots=True)
class RecentSources:
    """The newest sources of a log, to check the numbers that sources store for earlier copies of their text.

    Attributes:
        digests: Digests of sources, by number.
        entries: Number of the last entry that shows a text, by its digest; the newest last.
    """

    digests: dict[int, bytes] = field(default_factory=dict)
    entries: dict[bytes, int] = field(default_factory=dict)

    def check(self, entry: Entry) -> list[Problem]:
        """Add the sources of the next entry; return problems for those with a wrong number for their earlier copy."""
        problems = []
        for source in entry.sources:
            # Every writer knows the texts of the last entries; a writer that has run for long may know more.
            was_shown = (
                self.entries.pop(source.digest, -SHOWN_ENTRIES) >= entry.number - SHOWN_ENTRIES
            )
            # A source with a reserved number may be a copy of a source with a higher number.
            known = self.digests.get(
                earlier := source.earlier or 0, source.digest if earlier < source.id else b""
            )
            if (was_shown and not earlier) or known != source.digest:
                problems.append(
                    ("source", f"source {source.id} stores a wrong number for its earlier copy")
                )
            self.digests[source.id] = source.digest
            self.entries[source.digest] = entry.number
            _keep_newest(self.digests, _DIGESTS_KEPT)
            _keep_newest(self.entries, MAX_SHOWN)
        return problems


def _keep_newest(values: dict[Any, Any], maximum: int) -> None:
    if len(values) > maximum:
        del values[next(iter(values))]


def _source_problems(
    entry: Entry, payloads: Mapping[str, str], read_back: Mapping[str, Sequence[int]], codec: Codec
) -> Iterator[str]:
    messages = {message.id: message for message in entry.messages}
    numbers: dict[str, list[int]] = {}
    for source in entry.sources:
        numbers.setdefault(source.message_id, []).append(source.id)
        if source.message_id not in messages:
            yield f"source {source.id} belongs to no message of its entry"
        elif not _is_where_it_says(source, source.piece or payloads.get(source.message_id), codec):
            yield f"source {source.id} is not at its stored position"
    if len({source.id for source in entry.sources}) < len(entry.sources):
        yield "two sources have the same number"
    for id_, message in messages.items():
        is_read_back = message.tool == RETRIEVAL_TOOL
        if is_read_back and id_ not in read_back:
            continue
        if message.sources != write_ids((read_back if is_read_back else numbers).get(id_, ())):
            yield f"the stored source ids of message {id_!r} do not match its sources"


def _is_where_it_says(source: EntrySource, text: str | None, codec: Codec) -> bool:
    """Return True if a source is at its stored position, and matches its stored columns and its digest."""
    if text is None:
        return True
    place = source.place
    if place.end > len(text):
        return False
    try:
        found = read_item(codec, text[place.middle : place.end])
    except ValueError:
        return False
    if found is None or source.given != found.kept_id:
        return False
    is_shown = (source.title, source.url, source.is_plain) == found.shown()
    return is_shown and (
        not place.length or text_digest(text[place.start : place.middle]) == source.digest
    )


def _expected(entry: Entry, messages: Sequence[BaseMessage], before: Totals) -> Totals:
    """Compute the totals after an entry; fields that may legitimately differ are taken from the stored totals."""
    stored = entry.totals
    made = totals_after(
        before, zip(entry.messages, messages, strict=True), at=entry.at, facts=entry.facts
    )
    through, given = numbers_after(before, entry, entry.sources)
    made = replace(
        made,
        counter=stored.counter,
        sources_through=through,
        given_through=given,
        shown_at=entry.number if entry.sources else before.shown_at,
        link=stored.link,
    )
    # every total was recomputed with another counter
    if before.counter != stored.counter and before.messages:
        made = replace(made, tokens=stored.tokens, view_tokens=stored.view_tokens)
    return with_active(made, entry, before)


def with_active(totals: Totals, entry: Entry, before: Totals) -> Totals:
    """Return the expected totals of an entry, with stored values for the fields that `ActiveTotals` checks."""
    event = EVENT.of(entry)
    if event is not None and event.variant:
        own = BRANCH.of(entry)
        is_in_progress = own is not None and not own.is_ended
        # after this variant is shown or stopped, others may still be unfinished
        others = entry.totals.turn if entry.totals.branched else 0
        totals = replace(totals, branched=before.turn if is_in_progress else others)
    if entry.is_rewind:
        totals = replace(totals, branched=branched_after(entry, totals.branched))
        changed = {name: getattr(entry.totals, name) for name in ("rewind_entry", "whole_list")}
        return replace(continued(totals, entry.totals), **changed)
    if BRANCH.of(entry) is None:
        return totals
    # the writer may have recounted the whole log
    sizes = {name: getattr(totals, name) for name in ("tokens", "view_tokens", "counter")}
    return replace(continued(totals, before), **sizes)


def branch_problem(
    entry: Entry, messages: Sequence[BaseMessage], known: dict[tuple[str, str], Totals]
) -> str:
    """Compare the totals of a variant with those that follow from its previous entry, in `known`; "" if they agree.

    The totals of its first entry are checked by `ActiveTotals` when the variant becomes active.
    """
    event = EVENT.of(entry)
    stored = own_totals(entry)
    if event is None or not event.variant:
        return ""
    before = known.get((event.first_turn, event.variant))
    known[event.first_turn, event.variant] = stored
    if before is None or entry.rules != RULES or before.counter != stored.counter:
        return ""
    made = totals_after(
        before, zip(entry.messages, messages, strict=True), at=entry.at, facts=entry.facts
    )
    wrong = [name for name in OF_ACTIVE if getattr(made, name) != getattr(stored, name)]
    if wrong:
        return f"the totals of variant {event.variant!r} do not follow: {', '.join(wrong)}"
    return ""
