"""Builds the view: the list of messages that a model gets, and the stamp that identifies it.

A note replaces the turns that are left out, and `tool_calls.pair` makes the list acceptable to any provider. The caller
reads the payloads that `payloads_needed` lists and passes their texts to the decoder.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from convstore.log.entry import EntryMessage
from convstore.log.rows import Row, is_hidden
from convstore.log.stored_message import ShownMessage
from convstore.log.summary import NamedResult, how_to_read
from convstore.log.turns import answers_among
from convstore.messages.encoding import digest_of_messages
from convstore.messages.provenance import kind_of, mark, view_parts_of
from convstore.messages.tokens import TokenCounter, count
from convstore.messages.tool_calls import Pairing, calls_of, pair, without_orphans
from convstore.values.json_form import sendable_message
from convstore.values.policy import HistoryPolicy
from convstore.values.stamps import Stamper, ViewParts, ViewStamp, changed_options
from convstore.view.decoder import FINISHED, WHOLE, Decoder, Showing
from convstore.view.provider_rules import made_for, with_original_ids
from convstore.wire.requests import Dropped

NOTE_RESULTS = 20
"""Maximum number of tool message ids that a note names."""


@dataclass(frozen=True, slots=True)
class View:
    """A view, and the ids of the messages that were changed to build it, in the order of the view."""

    messages: list[BaseMessage]
    sizes: list[int]
    stubbed: tuple[str, ...]
    placeholders: tuple[str, ...]
    shortened: tuple[str, ...]
    missing_results: tuple[str, ...]
    orphans: tuple[str, ...]
    late_results: tuple[str, ...]
    moved: tuple[str, ...]
    dropped: tuple[Dropped, ...] = ()
    thinking_through: int = 0

    @property
    def tokens(self) -> int:
        """The size of the view."""
        return sum(self.sizes)


def get_conversational_history(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the conversation without tools: system, human and AI messages without tool calls, as the same objects.

    Args:
        messages: A view, or a log.

    Examples:
        >>> from langchain_core.messages import HumanMessage, ToolMessage
        >>> log = [HumanMessage("hi"), ToolMessage("x", tool_call_id="1")]
        >>> [message.text for message in get_conversational_history(log)]
        ['hi']
    """
    return [
        message
        for message in messages
        if isinstance(message, SystemMessage | HumanMessage)
        or (isinstance(message, AIMessage) and not calls_of(message))
    ]


def make_note(
    left_out: tuple[int, int], results: Sequence[NamedResult], *, first: int
) -> HumanMessage:
    """Build the note for turns and steps that are left out; equal arguments give equal notes.

    Args:
        left_out: Number of turns, and number of steps of later turns.
        results: The newest results in these turns and steps, newest first.
        first: Ordinal of the first message after the turns.
    """
    counts = [
        f"{n} earlier {unit}{'s' * (n != 1)}"
        for n, unit in zip(left_out, ("turn", "step"), strict=True)
        if n
    ]
    verb = "is" if sum(left_out) == 1 else "are"
    text = (
        f"[Note: {' and '.join(counts)} {verb} left out here to save context. "
        f"{how_to_read(results)}]"
    )
    return HumanMessage(text, id=f"note-{first}", additional_kwargs=mark("note"))


def build_view(
    rows: Sequence[Row],
    shown: Sequence[Showing | None],
    *,
    decoder: Decoder,
    system: Sequence[EntryMessage] = (),
    notes: Sequence[ShownMessage] = (),
) -> View:
    """Decode and pair the rows of a view.

    Args:
        rows: The rows from the start of the view to the end of the log.
        shown: The form of each row; None for a row that is left out.
        decoder: Restores messages; it has the texts of the payloads that `payloads_needed` listed.
        system: Leading system messages.
        notes: Summary and note, which replace summarised and left-out messages.

    Raises:
        CorruptDocumentError: A stored message is damaged; the error names its entry.
    """
    visible = _visible(rows, shown, system, decoder.policy)
    logged = [message for message, _ in visible]
    made = [decoder.shown(message, form) for message, form in visible]
    listed = [message for message, _ in (*made[: len(system)], *notes, *made[len(system) :])]
    dropped: list[Dropped] = []
    pairing, late_results = _pair_for_provider(
        listed, logged, decoder.policy, dropped, has_notes=bool(notes)
    )
    # Sizes counted at append are reused, unless a message is shown in another form.
    sizes = {id(message): details.tokens for message, details in made}
    messages = _with_unique_ids(pairing.messages, logged, sizes)
    sizes |= {id(message): details.tokens for message, details in notes}
    measured = _measure(messages, sizes, decoder.counter)
    stubbed, placeholders, shortened = _ids_of_changes(made, set(pairing.orphans))
    return View(
        messages=messages,
        sizes=measured,
        stubbed=stubbed,
        placeholders=placeholders,
        shortened=shortened,
        missing_results=pairing.missing,
        orphans=pairing.orphans,
        late_results=late_results,
        moved=pairing.moved,
        dropped=tuple(dropped),
    )


def _visible(
    rows: Sequence[Row],
    shown: Sequence[Showing | None],
    system: Sequence[EntryMessage],
    policy: HistoryPolicy,
) -> list[tuple[EntryMessage, Showing]]:
    """Return the leading system messages and the rows that the view shows, each with its form."""
    visible = [(message, WHOLE if message.payload is None else FINISHED) for message in system]
    is_talk = policy.view == "conversation"
    for row, showing in zip(rows, shown, strict=True):
        if showing is None or (is_talk and is_hidden(row.message, policy)):
            continue
        visible.append((row.message, showing))
    return visible


def _ids_of_changes(
    made: Sequence[ShownMessage], orphans: Container[str | None]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the ids of stubs, of messages with placeholders, and of shortened messages."""
    stubbed: list[str] = []
    placeholders: list[str] = []
    shortened: list[str] = []
    for message, details in made:
        if details.is_stub and message.id not in orphans:
            stubbed.append(str(message.id))
        if details.has_placeholder:
            placeholders.append(str(message.id))
        if details.is_shortened:
            shortened.append(str(message.id))
    return tuple(stubbed), tuple(placeholders), tuple(shortened)


def _measure(
    messages: list[BaseMessage], sizes: Mapping[int, int | None], counter: TokenCounter
) -> list[int]:
    """Return the size of each message. A message of unknown size is replaced by its sendable form and counted."""
    measured: list[int] = []
    for index, message in enumerate(messages):
        size = sizes.get(id(message))
        if size is None:
            messages[index] = sendable_message(message)
            size = count(counter, messages[index])
        measured.append(size)
    return measured


def _pair_for_provider(
    messages: Sequence[BaseMessage],
    stored: Sequence[EntryMessage],
    policy: HistoryPolicy,
    dropped: list[Dropped],
    *,
    has_notes: bool,
) -> tuple[Pairing, tuple[str, ...]]:
    """Return the messages in the form that the provider accepts, and the ids of results whose calls are left out.

    The parts that messages lose for the provider are added to `dropped`.
    """
    rules = policy.rules
    if rules:
        messages = with_original_ids(messages, rules)
    answers = answers_among(stored)
    answers |= dict.fromkeys(_without_call(messages, stored), "")
    pairing = pair(messages, answers)
    late_results = tuple[str, ...]()
    if has_notes and pairing.orphans:
        calls = {message.id: f"{message.tool} {message.arguments}".strip() for message in stored}
        late_results = pairing.orphans
        pairing = pair(without_orphans(messages, calls, answers), answers)
    adapted = made_for(pairing.messages, rules, dropped)
    return replace(pairing, messages=adapted), late_results


def _without_call(messages: Sequence[BaseMessage], stored: Sequence[EntryMessage]) -> list[str]:
    """Return the ids of results whose calls were rewound, even if a call of another turn has the same id."""
    lost = {row.id for row in stored if row.type == "tool" and row.turn and not row.answers}
    if not lost:
        return []
    turns = {row.id: row.turn for row in stored}
    called = _calls_by_turn(messages, turns)
    answered = _answered_calls(messages)
    return [id_ for id_ in lost & answered.keys() if (turns[id_], answered[id_]) not in called]


def _answered_calls(messages: Sequence[BaseMessage]) -> dict[str, str]:
    """Return the call id of each result by the id of the result."""
    results = (message for message in messages if isinstance(message, ToolMessage))
    return {str(result.id): result.tool_call_id for result in results}


def _calls_by_turn(
    messages: Sequence[BaseMessage], turns: Mapping[str, int]
) -> set[tuple[int, str]]:
    """Return the turn and the id of each call, given the turns by message id."""
    called: set[tuple[int, str]] = set()
    for message in messages:
        turn = turns.get(str(message.id), 0)
        called.update((turn, call.id) for call in calls_of(message))
    return called


def _with_unique_ids(
    messages: Sequence[BaseMessage], logged: Sequence[EntryMessage], stored: Container[int] = ()
) -> list[BaseMessage]:
    """Give each message of a view a unique id; a generated message gets another id if a message of the log has it.

    Args:
        messages: The messages of the view, in order.
        logged: The messages of the log, including those that the view leaves out or shows in another form.
        stored: ``id(message)`` of messages that are known not to be generated.

    >>> note = HumanMessage("[Note: ...]", id="note-5", additional_kwargs=mark("note"))
    >>> [message.id for message in _with_unique_ids([note, HumanMessage("hi", id="note-5")], [])]
    ['note-5~', 'note-5']
    """
    unique = list(messages)
    generated: list[int] = []
    taken: set[str] = set()
    for index, message in enumerate(messages):
        if id(message) in stored:
            continue
        if kind_of(message):
            generated.append(index)
        else:
            taken.add(str(message.id))
    if not generated:
        return unique
    taken.update(message.id for message in logged)
    for index in generated:
        message = messages[index]
        id_ = str(message.id)
        while id_ in taken:
            id_ += "~"
        taken.add(id_)
        if id_ != message.id and message.id is not None:
            unique[index] = message.model_copy(update={"id": id_})
    return unique


def stamper(conversation: str, policy: HistoryPolicy, **identity: Any) -> Stamper:
    """Return the function that makes the stamp of a view with this identity; it can be pickled."""
    return partial(_stamp, conversation_id=conversation, policy=policy, **identity)


def _stamp(
    messages: Sequence[BaseMessage],
    added: Sequence[int] | None,
    open_turn: str,
    *,
    policy: HistoryPolicy,
    sizes: Sequence[int] = (),
    smaller: Collection[str] = (),
    tokens: int = 0,
    **identity: Any,
) -> ViewStamp:
    """Return the stamp of a view. The digest is slow, so this runs only when a stamp is needed.

    `added` are the sizes of the last messages, which `sizes` does not include; None if they are unknown.
    """
    if added is not None:
        sizes = [*sizes[: len(messages) - len(added)], *added]
        tokens = sum(sizes)
    parts = view_parts_of(messages[: len(sizes)], smaller, current=open_turn)
    digest = digest_of_messages(messages)
    options = changed_options(policy)
    return ViewStamp(
        digest=digest,
        messages=len(messages),
        policy=options,
        parts=ViewParts.of(parts, sizes),
        tokens=tokens,
        **identity,
    )
