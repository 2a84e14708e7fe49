"""Compute the running totals of a log, as a fold over its messages.

An append, a rewind and `verify` compute totals with the same functions, so they always agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.log.assignment import Assignment
from convstore.log.entry import (
    NO_FACTS,
    Entry,
    EntryMessage,
    EntrySource,
    Facts,
    OpenCall,
    Preview,
    StampedCall,
    Totals,
)
from convstore.log.facts.event import EVENT
from convstore.log.facts.imported import IMPORTED
from convstore.messages.provenance import model_of
from convstore.messages.stop_reasons import cut_reason, has_refusal
from convstore.messages.text import text_of
from convstore.messages.tool_calls import Call, answered_by, calls_of, is_paused, result_id
from convstore.messages.usage import usage_in
from convstore.values.stamps import size_in
from convstore.values.usage import Usage

MAX_SHOWN = 200
"""Number of the newest distinct sources among which a repeated text is recognised."""

SHOWN_ENTRIES = 60
"""Number of the last entries whose sources a process reads if it has no tail in its cache."""

_MAX_OPEN_CALLS = 200
_MAX_LATE_CALLS = 20

_MAX_MODELS = 20
_OTHER_MODELS = "other"

_ARGUMENT_CHARACTERS = 120
_PREVIEW_CHARACTERS = 120
_MODEL_CHARACTERS = 100
_REASON_CHARACTERS = 100

# some providers write a signature into the id
_TOOL_CHARACTERS = 200
_CALL_ID_CHARACTERS = 10_000

_NO_CALL = OpenCall("", "", "")


def totals_after(
    before: Totals,
    messages: Iterable[tuple[EntryMessage, BaseMessage]],
    *,
    at: datetime,
    facts: Facts = NO_FACTS,
) -> Totals:
    """Return the totals after some messages, given in stored and in decoded form, and after facts.

    The messages may be only the first ones of an entry. Sources are not counted.
    """
    running = RunningTotals(before, before.sources_through)
    for message, appended in messages:
        running.follow(appended, message.ordinal, turn=message.turn, is_added=message.is_added)
        running.add_size(message)
    return running.totals(at, shown_now=False, facts=facts)


class ShownSources:
    """The newest distinct sources.

    Attributes:
        numbers: The lowest number of each by digest of its text; at most 200, the newest last.
    """

    def __init__(self, numbers: Mapping[bytes, int]) -> None:
        self.numbers = dict(numbers)

    def add(self, digest: bytes, number: int) -> int | None:
        """Add a source; return the number under which its text was first shown, None if the text is new."""
        shown = self.numbers
        earlier = self.numbers.pop(digest, None)
        shown[digest] = number if earlier is None else earlier
        if len(shown) > MAX_SHOWN:
            del shown[next(iter(shown))]
        return earlier


class OpenCalls:
    """Calls without a result; a result is matched with its call by the same rules as in `pair`."""

    def __init__(self, calls: Sequence[OpenCall]) -> None:
        self._calls: dict[str, list[OpenCall]] = {}
        for call in calls:
            self._calls.setdefault(call.id, []).append(call)

    def begin_turn(self) -> None:
        """Drop all but the newest calls: a result rarely comes in a later turn."""
        self._calls = dict(list(self._calls.items())[-_MAX_LATE_CALLS:])

    def open(self, message: BaseMessage, calls: Sequence[Call], turn: int) -> tuple[str, ...]:
        """Add the calls of a message; return the `result_id` of each."""
        opened: list[OpenCall] = []
        same: dict[str, int] = {}
        for call in calls:
            position = same[call.id] = same.get(call.id, -1) + 1
            made = result_id(message.id, call.id, position) if message.id else ""
            opened.append(
                OpenCall(
                    call.id, call.tool[:_TOOL_CHARACTERS], _arguments(message, call), made, turn
                )
            )
        for pending in reversed(opened):
            # the totals of every following entry would store a long id
            if len(pending.id) <= _CALL_ID_CHARACTERS:
                self._calls.setdefault(pending.id, []).append(pending)
        return tuple([call.result for call in opened])

    def answer(self, result: ToolMessage, turn: int | None = None) -> OpenCall | None:
        """Remove and return the call that a result answers, if there is one; only of `turn`, if that is given."""
        calls = self._calls.get(result.tool_call_id, [])
        candidates = [call for call in calls if turn in (None, call.turn)]
        if not candidates:
            return None
        # Of several calls with one id the result answers the call that its own id names, else the last one.
        made_for = answered_by(str(result.id))
        call = next((call for call in candidates if call.result == made_for), candidates[-1])
        calls.remove(call)
        if not calls:
            self._calls.pop(result.tool_call_id, None)
        return call

    def newest(self) -> tuple[OpenCall, ...]:
        """Return the calls without a result, at most 200."""
        calls = [call for same_id in self._calls.values() for call in same_id]
        return tuple(calls[-_MAX_OPEN_CALLS:])


class MessageLinks(NamedTuple):
    """The links of a message to its turn and between calls and results.

    Attributes:
        call: The call that a tool result answers; its `result` is empty if the log does not have the call.
        turn: The turn of the message.
        results: The `result_id` of each of its calls, in order.
    """

    call: OpenCall
    turn: int
    results: tuple[str, ...] = ()


@dataclass(slots=True)
class RunningTotals:
    """A fold over messages, with the totals of the log after each of them.

    Attributes:
        after: The totals of the log before the first message.
        sources_through: Highest source id in use or reserved.
        given_through: Highest source id that the store gave.
        shown: The newest distinct sources.
    """

    after: Totals
    sources_through: int
    given_through: int = field(init=False)
    shown: ShownSources = field(init=False)
    _calls: OpenCalls = field(init=False)
    _assignment: Assignment = field(init=False)
    _now: Totals = field(init=False)

    def __post_init__(self) -> None:
        self.given_through = self.after.given_through
        self.shown = ShownSources(self.after.shown or {})
        self._calls = OpenCalls(self.after.calls)
        self._assignment = Assignment.after(self.after)
        self._now = self.after.copy()

    def add_size(self, message: EntryMessage) -> None:
        """Count a stored message and its tokens, and keep the sizes in its stamp."""
        now = self._now
        now.messages += 1
        now.active += 1
        now.tokens += message.tokens
        now.view_tokens += message.view_tokens
        now.failed += message.is_failed
        now.stored_bytes += message.stored_bytes
        if message.stamp:
            now.call = StampedCall(message.ordinal, *size_in(message.stamp))

    def totals(
        self,
        at: datetime,
        *,
        shown_now: bool,
        counter: str | None = None,
        link: int = 0,
        facts: Facts = NO_FACTS,
    ) -> Totals:
        """Return the totals of an entry that ends here, by default with the counter of the log before it.

        This ends the fold: no message may be added afterwards, because the totals are not copied.
        """
        event = EVENT.among(facts)
        if event and event.question == self._assignment.turn:
            self._assignment.end(event.over)
        now = self._now
        now.is_imported = self._is_imported(facts)
        now.entries += 1
        now.sources_through = self.sources_through
        now.given_through = self.given_through
        now.calls = self._calls.newest()
        now.updated_at = at
        now.link = link
        now.turn = self._assignment.turn
        now.over = self._assignment.over
        if counter is not None:
            now.counter = counter
        if shown_now:
            now.shown_at = now.entries
            now.shown = self.shown.numbers
        return now

    def _is_imported(self, facts: Facts) -> bool:
        """Return True if an import wrote the entry, or wrote the last message and this one has no message or event."""
        if IMPORTED.name in facts:
            return True
        is_alone = self._now.messages == self.after.messages
        return self.after.is_imported and is_alone and EVENT.name not in facts

    @property
    def turn(self) -> int:
        """Ordinal of the newest question so far, or 0."""
        return self._assignment.turn

    def follow(
        self, message: BaseMessage, ordinal: int, *, turn: int | None, is_added: bool = False
    ) -> MessageLinks:
        """Assign a message to its turn, match calls and results, and count its usage.

        `turn` is the turn that the writer names, None to apply the rules of `log.assignment`. With `is_added` a tool
        added the message to its result.
        """
        answered = self._calls.answer(message, turn) if isinstance(message, ToolMessage) else None
        if turn is None:
            turn = self._assignment.turn_of(message, ordinal, answered)
        calls = calls_of(message)
        is_said = message.type == "ai" and not is_added
        is_answer = is_said and not calls and not is_paused(message)
        self._assignment.add(message.type, ordinal, turn, is_said=is_said, is_answer=is_answer)
        if turn == ordinal:
            self._now.turns += 1
            self._calls.begin_turn()
            self._now.cut = ""
        elif is_said and turn == self._assignment.turn:
            self._now.cut = _cut_reason(message)
        results = self._calls.open(message, calls, turn) if calls else ()
        if usage := usage_in(message):
            self._add_usage(message, usage)
        self._now.preview = preview_of(message) or self._now.preview
        if not isinstance(message, ToolMessage):
            return MessageLinks(_NO_CALL, turn, results)
        return MessageLinks(answered or OpenCall(message.tool_call_id, "", ""), turn)

    def _add_usage(self, message: BaseMessage, usage: Usage) -> None:
        model = model_of(message)[:_MODEL_CHARACTERS] or "unknown"
        known = self._now.usage
        if model not in known and len(known) >= _MAX_MODELS:
            model = _OTHER_MODELS
        self._now.usage = {**known, model: known.get(model, Usage()).plus(usage)}


def _arguments(message: BaseMessage, call: Call) -> str:
    """Return the beginning of a call's arguments as JSON; "" if the message's list of valid calls lacks the call."""
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    if call.position < len(calls):
        return text_of(calls[call.position]["args"])[:_ARGUMENT_CHARACTERS]
    return ""


def _cut_reason(message: BaseMessage) -> str:
    """Return the stop reason of a reply that was cut off or refused, else "".

    The metadata of a message that was built without validation may have any type.
    """
    metadata: object = message.response_metadata
    reason = cut_reason(metadata)[:_REASON_CHARACTERS] if isinstance(metadata, dict) else ""
    if not reason and has_refusal(message):
        return "refusal"
    return reason


def preview_of(message: BaseMessage) -> Preview | None:
    """Return the beginning of a human or AI message's text in one line, or None if it has no text."""
    if message.type not in ("human", "ai"):
        return None
    content = message.content
    maximum = 2 * _PREVIEW_CHARACTERS
    if isinstance(content, str):
        words = content[:maximum].split()
    else:
        texts = (
            block.get("text") if isinstance(block, dict) else block
            for block in (content if isinstance(content, list) else ())
        )
        words = " ".join(text[:maximum] for text in texts if isinstance(text, str)).split()
    return Preview(message.type, " ".join(words)[:_PREVIEW_CHARACTERS]) if words else None


def numbers_after(before: Totals, entry: Entry, sources: Sequence[EntrySource]) -> tuple[int, int]:
    """Return the highest source id in use, and the highest that the store gave, after the sources of an entry."""
    through = max([before.sources_through, *(source.id for source in sources)])
    given = max([before.given_through, *(source.id for source in sources if not source.kept)])
    reserved = 0 if entry.messages else entry.totals.sources_through
    if reserved > through:
        return reserved, reserved if entry.totals.given_through == reserved else given
    return through, given
