"""Makes the view: the list of messages that a model gets.

Layer 1. Rows of the log are decoded as stubs, with placeholders or in full, a note stands for what is left out, and
`pairing` makes the list one that any provider accepts. Nothing here reads the log; what it needs of payloads is asked
for first (`payloads_needed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from convstore.codec import Codec
from convstore.entries import EntryMessage, PayloadRef
from convstore.entries.reading import read_message
from convstore.extraction import parse_json
from convstore.marks import kind_of, mark, without_mark
from convstore.pairing import has_calls, pair, without_orphans
from convstore.policy import HistoryPolicy
from convstore.shortening import leave_out, with_stub, without_media
from convstore.stubs import RETRIEVAL_TOOL, failure_in, make_stub, text_of
from convstore.summaries import name_results
from convstore.tokens import TokenCounter, count
from convstore.view.providers import made_for, with_original_ids
from convstore.view.window import Row, is_hidden, shown_whole

__all__ = [
    "NOTE_RESULTS",
    "NamedResult",
    "View",
    "build_view",
    "get_conversational_history",
    "make_note",
    "payload_needed",
    "payloads_needed",
    "shorten",
]

NOTE_RESULTS = 20
"""How many tool message ids a note names."""

NamedResult = tuple[str, str]
"""A tool message id and the ids of its sources as text."""


@dataclass(frozen=True, slots=True)
class View:
    """A view with what was done to make it; ids in the order of the view."""

    messages: list[BaseMessage]
    tokens: int
    stubbed: tuple[str, ...]
    placeholders: tuple[str, ...]
    missing_results: tuple[str, ...]
    orphans: tuple[str, ...]
    late_results: tuple[str, ...]
    moved: tuple[str, ...]


def get_conversational_history(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The talk without the tools: system, human and AI messages without tool calls, in order, the same objects.

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
    """The note that stands for turns left out before the ordinal `first`; the same for the same values."""
    turns = "1 earlier turn is" if left_out_turns == 1 else f"{left_out_turns} earlier turns are"
    text = f"[Note: {turns} left out here to save context."
    if results:
        named = name_results(results)
        text += f" Use {RETRIEVAL_TOOL} to access their tool results; newest tool message ids: {named}."
    return HumanMessage(text + "]", id=f"note-{first}", additional_kwargs=mark("note"))


def shorten(codec: Codec, message: EntryMessage, payloads: Mapping[str, str]) -> BaseMessage:
    """A message as views show it once its turn is finished: as its stub, with placeholders, or as it is."""
    return _Form(message, whole=False, stub=message.stub).decode(codec, payloads)[0]


def payload_needed(message: EntryMessage, *, whole: bool = False) -> PayloadRef | None:
    """What a view reads of a message's payload: all of it, or the part that it shows once the turn is finished."""
    ref = message.payload
    if ref is None or whole:
        return ref
    return ref.shown_part() if ref.shown and message.stub is None else None


def payloads_needed(rows: Sequence[Row], policy: HistoryPolicy) -> list[tuple[str, PayloadRef]]:
    """Message id and place of each payload, or part of one, that the view of these rows shows."""
    return [
        (row.message.id, ref)
        for row, whole in zip(rows, shown_whole(rows, policy), strict=True)
        if (ref := payload_needed(row.message, whole=whole)) and not is_hidden(row.message, policy)
    ]


def build_view(
    rows: Sequence[Row],
    policy: HistoryPolicy,
    *,
    codec: Codec,
    counter: TokenCounter,
    system: Sequence[EntryMessage] = (),
    notes: Sequence[BaseMessage] = (),
    payloads: Mapping[str, str],
) -> View:
    """Decode and pair the rows of a view.

    Args:
        rows: From the start of the view to the end of the log.
        policy: What is shown in full.
        codec: Decodes bodies.
        counter: Counts what is not in the log.
        system: Leading system messages.
        notes: Stand for what is summarised and for what is left out.
        payloads: By message id the texts that `payloads_needed` named.

    Raises:
        CorruptDocumentError: A stored message is damaged; names its entry.
    """
    shown = zip(rows, shown_whole(rows, policy), strict=True)
    later = [_form(row.message, whole, policy, codec) for row, whole in shown if not is_hidden(row.message, policy)]
    leading = [_Form(message, whole=message.payload is None) for message in system]
    forms = [*leading, *later]
    made = [form.decode(codec, payloads) for form in forms]
    decoded = [message for message, _ in made]
    listed = [*decoded[: len(leading)], *notes, *decoded[len(leading) :]]
    if policy.provider:
        listed = with_original_ids(listed, policy.provider)
    pairing, late_results = pair(listed), tuple[str, ...]()
    if notes and pairing.orphans:
        # Their calls may be among what the notes stand for.
        calls = {form.message.id: f"{form.message.tool} {form.message.arguments}".strip() for form in later}
        late_results, pairing = pairing.orphans, pair(without_orphans(listed, calls))
    fitting = made_for(pairing.messages, policy.provider) if policy.provider else pairing.messages
    messages = _with_ids_of_their_own(fitting, {form.message.id for form in forms})
    # What was counted at append is not counted again, unless it is shown in another way.
    sizes = {id(one): form.tokens for one, form in zip(decoded, forms, strict=True) if form.tokens is not None}
    gone = set(pairing.orphans)
    return View(
        messages=messages,
        tokens=sum(sizes[id(one)] if id(one) in sizes else count(counter, one) for one in messages),
        stubbed=tuple(form.message.id for form in later if form.stub is not None and form.message.id not in gone),
        placeholders=tuple(str(message.id) for message, has_placeholder in made if has_placeholder),
        missing_results=tuple(pairing.missing),
        orphans=tuple(pairing.orphans),
        late_results=late_results,
        moved=tuple(pairing.moved),
    )


@dataclass(frozen=True, slots=True)
class _Form:
    """How one message is shown: in full, as a stub, or as its body with placeholders."""

    message: EntryMessage
    whole: bool
    stub: str | None = None

    @property
    def tokens(self) -> int | None:
        """Its size, None for a stub that was not made at append."""
        if self.whole:
            return self.message.tokens
        return self.message.view_tokens if self.stub == self.message.stub else None

    def decode(self, codec: Codec, payloads: Mapping[str, str]) -> tuple[BaseMessage, bool]:
        """The message, and whether parts of it stand as placeholders."""
        message, ref = self.message, self.message.payload
        if self.whole:
            return without_mark(read_message(codec, message, payloads[message.id] if ref else None)), False
        if self.stub is not None:
            return with_stub(without_mark(read_message(codec, message)), self.stub), False
        payload = payloads[message.id][: ref.shown] if ref and message.id in payloads and ref.shown else None
        decoded = without_mark(read_message(codec, message, payload))
        shown = without_media(leave_out(decoded) if ref else decoded)
        has_rest = ref is not None and (payload is None or len(payload) < ref.ends[-1])
        return shown, has_rest or shown is not decoded


def _form(message: EntryMessage, whole: bool, policy: HistoryPolicy, codec: Codec) -> _Form:
    if whole or message.type != "tool" or message.stub is not None:
        return _Form(message, whole, None if whole else message.stub)
    return _Form(message, False, _stub_below_default(message, policy, codec))


def _stub_below_default(message: EntryMessage, policy: HistoryPolicy, codec: Codec) -> str | None:
    """The stub of a result that only a policy with a lower `stub_min_tokens` wants as one."""
    if message.payload or message.sources or not policy.stub_min_tokens < message.tokens:
        return None
    if message.tokens > HistoryPolicy().stub_min_tokens:
        return None  # was longer than its stub would be, or would have one
    result = read_message(codec, message)
    text = text_of(result.content)
    error = failure_in(getattr(result, "status", "success"), text, parse_json(text))
    stub = make_stub(tool=message.tool, tool_message_id=message.id, content=text, error=error)
    return stub if len(stub) < len(text) else None


def _with_ids_of_their_own(messages: Sequence[BaseMessage], logged: set[str]) -> list[BaseMessage]:
    """The messages of a view, each with another id: one that the store made gives way to those of the log.

    Args:
        messages: In order.
        logged: Ids that are taken, whether the view has their messages or a text in their place.

    >>> note = HumanMessage("[Note: ...]", id="note-5", additional_kwargs=mark("note"))
    >>> [message.id for message in _with_ids_of_their_own([note, HumanMessage("hi", id="note-5")], set())]
    ['note-5~', 'note-5']
    """
    taken = logged | {message.id for message in messages if not kind_of(message)}
    own: list[BaseMessage] = []
    for message in messages:
        id_ = message.id
        while kind_of(message) and id_ is not None and id_ in taken:
            id_ += "~"
        taken.add(id_)
        own.append(message if id_ == message.id else message.model_copy(update={"id": id_}))
    return own
