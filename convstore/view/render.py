"""Builds the view: the list of messages that a model gets.

Rows of the log are decoded as stubs, with placeholders or in full. A note replaces the turns that are left out, and
`tool_calls.pair` makes the list acceptable to any provider. The caller reads the payloads that `payloads_needed` names
and passes their texts in.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from convstore.log.entry import EntryMessage, PayloadRef
from convstore.log.rows import Row, is_current, is_hidden, shown_whole
from convstore.log.stored_message import Form, KeptMessage, Shown, payload_needed, read_message, stub_again
from convstore.log.summary import NamedResult, how_to_read
from convstore.messages.copying import Template
from convstore.messages.provenance import kind_of, mark
from convstore.messages.tokens import TokenCounter, count
from convstore.messages.tool_calls import Pairing, has_calls, pair, without_orphans
from convstore.messages.values import Codec
from convstore.sources.stub import STUB_MIN_TOKENS
from convstore.values.policy import HistoryPolicy
from convstore.view.fitting import fitted
from convstore.view.provider_rules import made_for, with_original_ids

NOTE_RESULTS = 20
"""Maximum number of tool message ids that a note names."""


@dataclass(frozen=True, slots=True)
class View:
    """A view and a record of the changes made to build it; ids are in the order of the view.

    `is_fitting` is False if the first turn could not be shortened to its room.
    """

    messages: list[BaseMessage]
    tokens: int
    stubbed: tuple[str, ...]
    placeholders: tuple[str, ...]
    shortened: tuple[str, ...]
    missing_results: tuple[str, ...]
    orphans: tuple[str, ...]
    late_results: tuple[str, ...]
    moved: tuple[str, ...]
    is_fitting: bool


def get_conversational_history(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the conversation without tools: system, human and AI messages without tool calls, as the same objects.

    >>> from langchain_core.messages import HumanMessage, ToolMessage
    >>> log = [HumanMessage("hi"), ToolMessage("x", tool_call_id="1")]
    >>> [message.text for message in get_conversational_history(log)]
    ['hi']
    """
    return [
        message
        for message in messages
        if isinstance(message, SystemMessage | HumanMessage)
        or (isinstance(message, AIMessage) and not has_calls(message))
    ]


def make_note(left_out_turns: int, results: Sequence[NamedResult], *, first: int) -> HumanMessage:
    """Build the note that replaces the turns left out before the ordinal `first`; equal arguments give equal notes."""
    turns = "1 earlier turn is" if left_out_turns == 1 else f"{left_out_turns} earlier turns are"
    text = f"[Note: {turns} left out here to save context. {how_to_read(results)}]"
    return HumanMessage(text, id=f"note-{first}", additional_kwargs=mark("note"))


def payloads_needed(rows: Sequence[Row], policy: HistoryPolicy) -> list[tuple[str, PayloadRef]]:
    """Return the message id and the range of each payload that the view of these rows shows."""
    return [
        (row.message.id, ref)
        for row, whole, current in zip(rows, shown_whole(rows, policy), is_current(rows), strict=True)
        if row.message.payload and (ref := _payload_in_view(row.message, policy, whole=whole, current=current))
    ]


def _payload_in_view(message: EntryMessage, policy: HistoryPolicy, *, whole: bool, current: bool) -> PayloadRef | None:
    ref = message.payload
    if ref is None or is_hidden(message, policy):
        return None
    # Media follow the texts of a payload.
    has_media = policy.media == "never" and message.type != "tool" and ref.shown < ref.ends[-1]
    return payload_needed(message, whole=whole or has_media, shorten_over=None if current else policy.shorten_over)


def build_view(
    rows: Sequence[Row],
    policy: HistoryPolicy,
    *,
    codec: Codec,
    counter: TokenCounter,
    system: Sequence[EntryMessage] = (),
    notes: Sequence[Shown] = (),
    payloads: Mapping[str, str],
    room: int = 0,
    known: dict[str, KeptMessage] | None = None,
) -> View:
    """Decode and pair the rows of a view.

    Args:
        rows: From the start of the view to the end of the log.
        policy: Says which messages are shown in full.
        codec: Decodes bodies.
        counter: Counts messages whose size is not stored in the log.
        system: Leading system messages.
        notes: Messages that replace summarised turns and turns left out.
        payloads: The texts that `payloads_needed` named, by message id.
        room: Tokens to shorten the first turn to; 0 for no limit.
        known: Messages that earlier views showed, by id; new ones are added.

    Raises:
        CorruptDocumentError: A stored message is damaged; the error names its entry.
    """
    decoder = _Decoder(policy, codec, payloads, {} if known is None else known)
    whole = shown_whole(rows, policy)
    visible = list(zip(rows, whole, strict=True))
    if policy.view == "conversation":
        visible = [(row, one) for row, one in visible if not is_hidden(row.message, policy)]
    leading = [decoder.shown(one, one.payload is None) for one in system]
    made = [decoder.shown(row.message, whole) for row, whole in visible]
    stubbed = [row.message.id for (row, _), one in zip(visible, made, strict=True) if one.is_stub]
    fitting = _fitted(made, sum(row.turn == rows[0].turn for row, _ in visible), room, counter) if room else None
    made = [*leading, *(fitting or made)]
    listed = [one.message for one in made]
    listed[len(leading) : len(leading)] = [note.message for note in notes]
    pairing, late_results = _paired(listed, visible, policy, has_notes=bool(notes))
    # Sizes counted at append are reused, unless a message is shown in another form.
    sizes = {id(one.message): one.tokens for one in made}
    ids = {one.id for one in system} | {row.message.id for row, _ in visible}
    messages = _with_unique_ids(pairing.messages, ids, sizes)
    sizes |= {id(note.message): note.tokens for note in notes}
    orphans = set(pairing.orphans)
    return View(
        messages=messages,
        tokens=_tokens(messages, sizes, counter),
        stubbed=tuple(id_ for id_ in stubbed if id_ not in orphans),
        placeholders=tuple(str(one.message.id) for one in made if one.has_placeholder),
        shortened=tuple(str(one.message.id) for one in made if one.is_shortened),
        is_fitting=not room or fitting is not None,
        missing_results=pairing.missing,
        orphans=pairing.orphans,
        late_results=late_results,
        moved=pairing.moved,
    )


class _Decoder:
    """Restores messages as a view shows them; those without payloads, which may be large, are decoded once."""

    def __init__(
        self, policy: HistoryPolicy, codec: Codec, payloads: Mapping[str, str], known: dict[str, KeptMessage]
    ) -> None:
        self._policy, self._codec, self._payloads, self._known = policy, codec, payloads, known
        self._options = [(one, policy.media, policy.shorten_over, policy.stub_min_tokens) for one in (False, True)]

    def shown(self, message: EntryMessage, whole: bool) -> Shown:
        kept, options = self._known.get(message.id), self._options[whole]
        if kept is not None and kept.stored is message and kept.options == options:
            return Shown(kept.template.make(), *kept.about)
        shown = _form(message, whole, self._policy, self._codec).decode(self._codec, self._payloads)
        if message.is_estimate and not shown.is_stub:
            shown = shown._replace(tokens=None)
        if message.id not in self._payloads:
            self._known[message.id] = KeptMessage(message, options, Template(shown.message), shown[1:])
        return shown


def _fitted(made: Sequence[Shown], end: int, room: int, counter: TokenCounter) -> list[Shown] | None:
    """Return the messages with the first turn, up to `end`, shortened to its room; None if that is not enough."""
    turn = fitted(made[:end], room, counter=counter)
    return None if turn is None else [*turn, *made[end:]]


def _paired(
    messages: Sequence[BaseMessage], visible: Sequence[tuple[Row, bool]], policy: HistoryPolicy, *, has_notes: bool
) -> tuple[Pairing, tuple[str, ...]]:
    """Return the messages as the provider accepts them, and the results whose calls are in turns left out."""
    if policy.provider:
        messages = with_original_ids(messages, policy.provider)
    pairing, late_results = pair(messages), tuple[str, ...]()
    if has_notes and pairing.orphans:
        calls = {one.message.id: f"{one.message.tool} {one.message.arguments}".strip() for one, _ in visible}
        late_results, pairing = pairing.orphans, pair(without_orphans(messages, calls))
    if policy.provider:
        pairing = replace(pairing, messages=made_for(pairing.messages, policy.provider))
    return pairing, late_results


def _tokens(messages: Sequence[BaseMessage], sizes: Mapping[int, int | None], counter: TokenCounter) -> int:
    known = [(message, sizes.get(id(message))) for message in messages]
    return sum(count(counter, message) if size is None else size for message, size in known)


def _form(message: EntryMessage, whole: bool, policy: HistoryPolicy, codec: Codec) -> Form:
    if whole:
        return Form(message, whole)
    if message.type != "tool":
        return Form(message, False, None, policy.media == "never", policy.shorten_over)
    stub = stub_below_default(message, policy, codec) if message.stub is None else message.stub
    return Form(message, False, stub)


def stub_below_default(message: EntryMessage, policy: HistoryPolicy, codec: Codec) -> str | None:
    """Return a stub for a result that becomes one only under a policy with a lower `stub_min_tokens`."""
    if message.payload or message.sources or not policy.stub_min_tokens < message.tokens:
        return None
    if message.tokens > STUB_MIN_TOKENS:
        return None  # large enough for a stored stub; it has none because its stub would be longer
    return stub_again(message, read_message(codec, message), min_tokens=policy.stub_min_tokens)


def _with_unique_ids(
    messages: Sequence[BaseMessage], logged: set[str], stored: Container[int] = ()
) -> list[BaseMessage]:
    """Give each message of a view a unique id: generated messages yield to messages of the log.

    Args:
        messages: In order.
        logged: Ids in use by the log, including those of messages replaced by a stub.
        stored: ``id(message)`` of messages that are surely not generated.

    >>> note = HumanMessage("[Note: ...]", id="note-5", additional_kwargs=mark("note"))
    >>> [message.id for message in _with_unique_ids([note, HumanMessage("hi", id="note-5")], set())]
    ['note-5~', 'note-5']
    """
    generated = [index for index, message in enumerate(messages) if id(message) not in stored and kind_of(message)]
    unique = list(messages)
    if generated:
        made = set(generated)
        taken = logged | {str(message.id) for index, message in enumerate(messages) if index not in made}
        for index in generated:
            message, id_ = messages[index], str(messages[index].id)
            while id_ in taken:
                id_ += "~"
            taken.add(id_)
            if id_ != message.id and message.id is not None:
                unique[index] = message.model_copy(update={"id": id_})
    return unique
