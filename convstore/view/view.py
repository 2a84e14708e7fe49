"""Makes a view from the active messages at the end of a log.

Loads and past views use it. The caller reads rows until `window_of` is certain, and then the payloads that
`render.payloads_needed` names for the rows of the window. Stamps identify views.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.log.entry import EntryMessage
from convstore.log.rows import Row
from convstore.log.stored_message import Form, KeptMessage, Shown, payload_needed, read_message
from convstore.log.summary import NamedResult, SummaryRecord
from convstore.messages.copying import Template
from convstore.messages.encoding import digest_of_messages
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, TokenCounter, count
from convstore.messages.tool_calls import Call, missing_result
from convstore.messages.values import Codec
from convstore.sources.shortening import SHORTENED, leave_out, with_short_texts, without_media
from convstore.values.policy import HistoryPolicy
from convstore.values.stamps import ViewStamp, changed_options
from convstore.view.budget import NOTHING_REQUIRED, Required, Window, choose_window
from convstore.view.render import NOTE_RESULTS, View, build_view, make_note, stub_below_default

Stamper = Callable[[Sequence[BaseMessage]], ViewStamp]
"""Makes the stamp of a view from its messages."""

_MANY_TURNS = 99_999
"""Turns left out by the notes that are measured to find the start."""

MISSING = missing_result(Call("call_of_twenty_four_char", "a_tool_of_twenty", 0), ai_message_id=None)
"""A result made up for a call without one, which is measured to find the start."""

_STUB_MIN = HistoryPolicy().stub_min_tokens


@dataclass(slots=True, kw_only=True)
class ActiveRows:
    """The active messages at the end of a log, sized by the store's counter and checked for holes.

    Attributes:
        rows: The messages, after those that the summary covers.
        summary: The current summary.
        summary_messages: The messages that show it.
        system: The leading system messages of the log; None if they are unknown.
        earlier_results: The newest named messages before the rows, newest first; None if they are unknown.
        kept_notes: Notes and their sizes, by the ordinal of the first message after them and the turns left out.
    """

    rows: Sequence[Row] = ()
    summary: SummaryRecord | None = None
    summary_messages: Sequence[BaseMessage] = ()
    system: tuple[EntryMessage, ...] | None = None
    earlier_results: tuple[NamedResult, ...] | None = None
    kept_notes: dict[tuple[int, int], Shown] = field(default_factory=dict)
    _named: tuple[Sequence[Row], list[int]] = field(default=((), []), repr=False, compare=False)

    def results_before(self, index: int) -> tuple[NamedResult, ...]:
        """Return the newest results before a row, newest first."""
        if self._named[0] is not self.rows:
            self._named = self.rows, [at for at, row in enumerate(self.rows) if row.message.is_named]
        named = self._named[1]
        end = bisect_left(named, index)
        own = [self.rows[at].message.name for at in reversed(named[max(0, end - NOTE_RESULTS) : end])]
        return (*own, *(self.earlier_results or ()))[:NOTE_RESULTS]

    def note(self, index: int, left_out: int, counter: TokenCounter) -> Shown:
        """Return the note of a view that begins with a row."""
        key = self.rows[index].message.ordinal, left_out
        if key not in self.kept_notes:
            message = make_note(left_out, self.results_before(index), first=key[0])
            self.kept_notes[key] = Shown(message, count(counter, message))
        return self.kept_notes[key]

    def notes(self, window: Window, counter: TokenCounter) -> list[Shown]:
        """Return the messages that replace everything before the view: summary and note."""
        summary = [Shown(message, None) for message in self.summary_messages]
        if not window.left_out_turns:
            return summary
        note = self.note(window.start, window.left_out_turns, counter)
        return [*summary, note._replace(message=Template(note.message).make())]


def window_of(
    active: ActiveRows,
    policy: HistoryPolicy,
    *,
    codec: Codec,
    counter: TokenCounter,
    missing_tokens: int,
    known: Required = NOTHING_REQUIRED,
) -> Window | None:
    """Choose the rows that a view shows; None if earlier rows must be read first. See `budget.choose_window`."""
    if not active.rows:
        return Window(0, 0, anchor=None)
    is_default = (policy.shorten_over, policy.media) == (None, "finished_turns") and policy.stub_min_tokens >= _STUB_MIN
    summary_tokens = sum(count(counter, message) for message in active.summary_messages)
    return choose_window(
        active.rows,
        policy,
        fixed_tokens=summary_tokens + sum(message.tokens for message in active.system or ()),
        note_tokens=lambda index: active.note(index, _MANY_TURNS, counter).tokens or 0,
        summarized=active.summary is not None,
        sizes=None if is_default else [_size(row.message, policy, codec, counter) for row in active.rows],
        missing_tokens=missing_tokens,
        known=known,
    )


def view_of(
    active: ActiveRows,
    window: Window,
    policy: HistoryPolicy,
    *,
    codec: Codec,
    counter: TokenCounter,
    payloads: Mapping[str, str],
    known: dict[str, KeptMessage] | None = None,
) -> View:
    """Make the view of a window; see `render.build_view`. Equal arguments give equal views."""
    return build_view(
        active.rows[window.start :],
        policy,
        codec=codec,
        counter=counter,
        system=active.system or (),
        notes=active.notes(window, counter),
        payloads=payloads,
        room=window.room,
        known=known,
    )


def _size(message: EntryMessage, policy: HistoryPolicy, codec: Codec, counter: TokenCounter) -> int:
    """Return the size of a message once its turn is finished; an estimate if more is shown than its entry holds."""
    if message.type == "tool":
        stub = stub_below_default(message, policy, codec) if message.stub is None else None
        return count(counter, Form(message, False, stub).decode(codec, {}).message) if stub else message.view_tokens
    media = message.tokens - message.view_tokens if policy.media == "never" else 0
    length = len(message.body) + (message.payload.shown if message.payload else 0)
    if policy.shorten_over is None or message.type not in SHORTENED or length <= policy.shorten_over:
        return message.view_tokens + media
    if payload_needed(message, shorten_over=policy.shorten_over):
        # Estimate: the part that remains if the payload is a single text.
        return min(message.view_tokens, message.view_tokens * policy.shorten_over * CHARACTERS_PER_TOKEN // length)
    decoded = read_message(codec, message)
    shown = with_short_texts(decoded, policy.shorten_over)
    if shown is decoded:
        return message.view_tokens + media
    return count(counter, without_media(leave_out(shown))) + media


def stamper(conversation: str, policy: HistoryPolicy, **identity: Any) -> Stamper:
    """Return the function that makes the stamp of a view with this identity; it can be pickled."""
    return partial(_stamp, conversation_id=conversation, policy=policy, **identity)


def _stamp(messages: Sequence[BaseMessage], policy: HistoryPolicy, **identity: Any) -> ViewStamp:
    """Return the stamp; its digest is computed only if a stamp is asked for."""
    return ViewStamp(digest=digest_of_messages(messages), policy=changed_options(policy), **identity)
