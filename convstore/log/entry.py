"""Define the log entry and the values in it, which `mongo` stores and every use case reads.

An entry is one appended batch and one document. Each entry carries the running `Totals` of the log, so an append or a
load needs only the last entry to know the state of the whole log.

Values of a log do not change once they are created; only views set `EntryMessage.kept`. The classes of which a load
creates many are not frozen, because the constructor of a frozen dataclass takes five times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from operator import attrgetter
from sys import getsizeof
from typing import Any, Literal, NamedTuple

from convstore.messages.media_sizes import MediaSize
from convstore.messages.sizes import bytes_of
from convstore.messages.stop_reasons import FILTERED
from convstore.sources.places import SourcePlace
from convstore.values.models import State
from convstore.values.usage import Usage

Over = Literal["", "answered", "finished", "stopped"]
"""Why a turn is over; "" if it is not."""

Facts = Mapping[str, Any]
"""The facts of an entry by the names of their kinds, see `log.facts`. Each kind defines the type of its facts."""
NO_FACTS: Facts = {}

_SHORT_ID = 12
"""Maximum characters of an id in notes. For a longer one, such as a UUID with about 20 tokens, they have ``m12``."""
ENTRY_BYTES = 500
_MESSAGE_BYTES = 200
"""Stored size of an entry's totals, and of a message's fields other than its texts, approximately."""
NO_USAGE: Mapping[str, Usage] = {}

RULES = 1
"""Version of the rules for derived fields: stubs, sizes, totals, look-up values.

Any change of these rules, even of a constant or a word, takes a new number, so that `verify` does not report entries of
earlier versions as damaged.
"""


@dataclass(slots=True, unsafe_hash=True)
class PayloadRef:
    """The location of a message's payload.

    Attributes:
        token: Random token of the append; the ``_id`` of each chunk begins with the conversation and this token.
        chunk: Number of the payload's first chunk under that token.
        ends: End of each chunk, in characters of the payload.
        own: Number of leading characters that belong to the message; its sources follow.
        digest: Digest of these characters.
        size: Bytes of its compressed chunks.
        shown: Number of leading characters that views of the finished turn show; always whole chunks.
        shown_digest: Digest of these characters; empty if no character or every one of the message is shown.
        is_edged: The shown characters consist of texts only, and the body keeps beginning and end of each.
        identity: The digests of body and payload as encoded independently of the batch, if the size of the batch made
            them differ; else empty.
        child: The child conversation that has the payload, if its parent reads it; else "".
    """

    token: str
    chunk: int
    ends: tuple[int, ...]
    own: int
    digest: bytes
    size: int
    shown: int = 0
    shown_digest: bytes = b""
    is_edged: bool = False
    identity: bytes = b""
    child: str = ""

    def shown_part(self) -> PayloadRef:
        """Return the location of the shown characters, as a payload of its own."""
        ends = tuple(end for end in self.ends if end <= self.shown)
        if ends == self.ends:
            return self
        return replace(self, ends=ends, size=self.size * self.shown // self.ends[-1])


@dataclass(slots=True)
class EntryMessage:
    """One message of an entry.

    Attributes:
        ordinal: Its position in the log.
        id: Its id.
        type: "human", "ai", "tool", …
        body: Its encoded fields, see `messages.encoding`.
        digest: Digest of its body.
        tokens: Its size in full.
        view_tokens: Its size in the default view of a finished turn.
        content_digest: Digest of the content as a client sees it, see `log.comparison`.
        turn: Ordinal of the question that it belongs to, its own ordinal for a question, else 0; see `log.assignment`.
        saw: For an AI message of a model the last ordinal that the model saw, else 0.
        calls: The `result_id` of each of its tool calls, in order.
        answers: For a tool result, and for a message that a tool added to its result, the `result_id` of the call;
            else "".
        tool: For a tool result the tool's name, "" if it is unknown.
        call: For a tool result the id of the call that it answers, "" if that cannot be looked up.
        arguments: For a tool result the beginning of its call's arguments as JSON, "" if its call is not known.
        sources: For a tool result the ids of its sources as text, or "".
        stub: The text that replaces it in views; None if it is shown as it is.
        payload: Location of the parts outside the body, if it has any.
        entry: Key of the entry that it was read from.
        is_named: True for a tool result or a long message: a note names it if a view leaves it out.
        stamp: For an AI message the stamp of the view that it answers, as `values.stamps` writes it; "" if it was
            appended without a stamp, or the stamp was not read.
        is_failed: True for a tool result that reports a failed call.
        is_judged: True if the application decided `is_failed`, against status and content of the result.
        is_paused: True for an AI message that its provider paused, see `messages.tool_calls.is_paused`.
        is_reasoning: True for an AI message that begins with reasoning.
        media: The sizes of its images, files and recordings, in order.
        is_estimate: True if the sizes were estimated for another token counter, without the payload.
        kept: The form in which a view showed it last, see `stored_message.KeptMessage`; None before the first view.
    """

    ordinal: int
    id: str
    type: str
    body: str
    digest: bytes
    tokens: int
    view_tokens: int
    content_digest: bytes = b""
    turn: int = 0
    saw: int = 0
    calls: tuple[str, ...] = ()
    answers: str = ""
    tool: str = ""
    call: str = ""
    arguments: str = ""
    sources: str = ""
    stub: str | None = None
    payload: PayloadRef | None = None
    entry: str = field(default="", compare=False)
    is_named: bool = False
    stamp: str = field(default="", compare=False)
    is_failed: bool = False
    is_judged: bool = False
    is_paused: bool = False
    is_reasoning: bool = False
    media: tuple[MediaSize, ...] = ()
    is_estimate: bool = field(default=False, compare=False)
    kept: Any = field(default=None, init=False, compare=False, repr=False)

    @property
    def is_reply(self) -> bool:
        """True for an AI message that a model wrote; False for one that a tool added to its result."""
        return self.type == "ai" and not self.answers

    @property
    def is_added(self) -> bool:
        """True for a message that a tool added to its result, such as an image of it."""
        return bool(self.answers) and self.type != "tool"

    @property
    def keeps_content(self) -> bool:
        """True if finished turns show its content, as it is or with a suffix that names the sources of a result."""
        return self.stub is None or self.stub.startswith("\n")

    @property
    def is_answer(self) -> bool:
        """True if it ends a turn: a model's reply without calls that was not paused."""
        return self.is_reply and not self.calls and not self.is_paused

    @property
    def unseen(self) -> int:
        """For an AI message of a model the number of messages directly before it that it was not shown; else 0."""
        return self.ordinal - 1 - self.saw if self.is_reply else 0

    @property
    def begins_turn(self) -> bool:
        """True for a question."""
        return self.turn == self.ordinal

    @property
    def identity(self) -> bytes:
        """The digests of body and payload in any batch, to detect the same id with different content."""
        if self.payload is None:
            return self.digest
        return self.payload.identity or self.digest + self.payload.digest

    @property
    def stored_bytes(self) -> int:
        """Its stored size: the body as UTF-8, and the compressed payload."""
        return bytes_of(self.body) + (self.payload.size if self.payload else 0)

    @property
    def name(self) -> tuple[str, str]:
        """The name that notes use: its id or its ordinal, and the ids of its sources or the type of a long message."""
        name = self.id if len(self.id) <= _SHORT_ID else f"m{self.ordinal}"
        return name, self.sources if self.type == "tool" else self.type


@dataclass(slots=True)
class EntrySource:
    """A source of an entry's tool result.

    Attributes:
        id: Its number in the conversation.
        message_id: The tool message that contains it.
        title: The beginning of its title.
        url: The beginning of its address.
        place: Its position in its message's payload, or in `piece`.
        digest: Digest of its text.
        piece: The text that holds it, if the payload does not.
        given: The number that the tool gave it, if any.
        earlier: The number under which the same text was shown before, None if it is new.
        is_plain: True if its item holds only its text, and title and address as shown in one line.
        is_shown: True if its tool showed the whole item, in JSON.
        entry: Key of the entry that it was read from.
    """

    id: int
    message_id: str
    title: str
    url: str
    place: SourcePlace
    digest: bytes
    piece: str = ""
    given: int | None = None
    earlier: int | None = None
    is_plain: bool = False
    is_shown: bool = False
    entry: str = field(default="", compare=False)

    @property
    def kept(self) -> bool:
        """True if it has the number that the tool gave it, False if the store numbered it."""
        return self.given == self.id


class OpenCall(NamedTuple):
    """A call without a result.

    Attributes:
        id: Its id, which calls of other messages may have too.
        tool: Name of the tool.
        arguments: The beginning of its arguments as JSON.
        result: The `result_id` of the call, to distinguish calls with one id; "" if its message has no id.
        turn: The turn of its message.
    """

    id: str
    tool: str
    arguments: str
    result: str = ""
    turn: int = 0


class Preview(NamedTuple):
    """The beginning of the last message with a text of its own, for listings: its type and the text."""

    type: str
    text: str


class StampedCall(NamedTuple):
    """The last call of a model whose reply has a stamp: the reply's ordinal, and tokens and budget of its view.

    A budget of 0 means that the view had no limit.
    """

    ordinal: int
    tokens: int
    budget: int


UNREAD = Preview("", "")
"""Placeholder for a preview that was not read."""


@dataclass(slots=True, unsafe_hash=True)  # dataclasses take no default without a hash
class Totals:
    """The running totals of a log up to and including an entry.

    Attributes:
        counter: Name of the token counter that made `tokens` and `view_tokens`.
        usage: Sums of the models' own counts, by model.
        calls: Calls without a result: those of the turn in progress and a few older ones.
        preview: Preview of the last message with text, if there is one; `UNREAD` if it was not read.
        shown: The newest distinct sources: the lowest number of each by digest of its text. None if it was not read;
            the sources of the last entries have it.
        updated_at: When the entry was appended.
        whole_list: Number of the last rewind entry with a whole list of rewound ranges, 0 without such an entry.
        over: Why the newest turn is over: "answered", "finished" or "stopped"; "" if it is in progress.
        failed: Active tool results that report a failed call.
        call: The last call of a model, active or rewound, whose reply has a stamp, if there is one.
        cut: Stop reason of the newest turn's last AI message, if it was cut off or refused; else "".
        is_imported: True if an import wrote the last message, and no event of a turn was recorded since.
        branched: Ordinal of the newest question when an entry of an unfinished variant was last written; 0 once every
            variant is shown or was stopped with nothing to show. In the totals of a variant, its value when the variant
            began.
        turn: Ordinal of the newest question, or 0.
        entries: Number of the entry.
        messages: Last ordinal.
        active: Active messages, which are those not rewound; only they count in the next three fields.
        turns: Questions.
        tokens: Size of all messages in full.
        view_tokens: Size of all messages in the default view of finished turns.
        stored_bytes: Stored size of all messages, active or rewound.
        rewind_entry: Number of the last rewind entry, 0 if all messages are active.
        sources_through: Highest source id in use or reserved.
        given_through: Highest source id that the store gave to a source without a number.
        shown_at: Number of the last entry with sources, 0 without such an entry.
        link: Random number of the entry, 0 before the first one; the next entry has it as `after`. An entry with items
            alone repeats the link of the entry before it, so loads can skip it and still detect a missing entry.
    """

    counter: str = ""
    usage: Mapping[str, Usage] = field(default_factory=lambda: NO_USAGE)
    calls: tuple[OpenCall, ...] = ()
    preview: Preview | None = None
    shown: Mapping[bytes, int] | None = field(default=None, compare=False)
    updated_at: datetime | None = None
    whole_list: int = 0
    over: Over = ""
    failed: int = 0
    call: StampedCall | None = None
    cut: str = ""
    is_imported: bool = False
    branched: int = 0
    turn: int = 0
    entries: int = 0
    messages: int = 0
    active: int = 0
    turns: int = 0
    tokens: int = 0
    view_tokens: int = 0
    stored_bytes: int = 0
    rewind_entry: int = 0
    sources_through: int = 0
    given_through: int = 0
    shown_at: int = 0
    link: int = 0

    def copy(self) -> Totals:
        """Return a copy, to which each append makes changes; `replace` takes twenty times as long."""
        return Totals(*_VALUES_OF_TOTALS(self))

    @property
    def is_ended(self) -> bool:
        """True if an event ended the newest turn."""
        return self.over in ("finished", "stopped")

    @property
    def has_variant(self) -> bool:
        """True if the newest question or an earlier one may have an unfinished variant.

        It stays true after a rewind to an earlier question, because the variant may belong to that question.
        """
        return 0 < self.turn <= self.branched

    @property
    def state(self) -> State:
        """State of the newest turn, see `ConversationInfo`; "" before the first question."""
        if not self.turn:
            return ""
        if self.has_variant:
            return "open"
        ended = self.ended
        if self.is_imported and ended not in ("finished", "stopped"):
            return "imported"
        return ended

    @property
    def ended(self) -> State:
        """How the newest turn ended, or "open"; variants and imports are not taken into account."""
        if self.over in ("", "stopped"):
            return self.over or "open"
        if self.cut:
            return "refused" if self.cut in FILTERED else "cut"
        return "finished"


_VALUES_OF_TOTALS = attrgetter(*(value.name for value in fields(Totals)))


@dataclass(slots=True)
class Entry:
    """One document of the log.

    Attributes:
        first: Ordinal of its first message, or of the next one if it has none.
        at: When it was appended.
        messages: Its messages in order; empty in a rewind entry or a reservation of source ids.
        totals: Running totals of the log including this entry.
        after: The link of the entry before it, 0 for the first. A mismatch means that the log was restored from a
            backup under the process that wrote this entry.
        sources: Sources of its tool results.
        facts: Everything else that it records, see `log.facts`; empty for most entries.
        rules: Version of the rules for its derived fields; `verify` compares only fields of this version.
        size: Its approximate size in bytes, without its sources.
    """

    first: int
    at: datetime
    messages: tuple[EntryMessage, ...]
    totals: Totals
    after: int = 0
    sources: tuple[EntrySource, ...] = ()
    facts: Facts = field(default_factory=lambda: NO_FACTS)
    rules: int = RULES
    size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        texts = sum(
            [getsizeof(message.body) + len(message.stub or "") for message in self.messages]
        )
        self.size = ENTRY_BYTES + _MESSAGE_BYTES * len(self.messages) + texts
        if self.facts:
            self.size += sum([getattr(fact, "size", 0) for fact in self.facts.values()])

    @property
    def number(self) -> int:
        """Its position among the entries, from 1."""
        return self.totals.entries

    @property
    def has_only_items(self) -> bool:
        """True for an entry with items alone, which loads skip; False for the first entry of a log."""
        return 0 < self.after == self.totals.link

    @property
    def is_rewind(self) -> bool:
        """True for a rewind entry."""
        return self.totals.rewind_entry == self.totals.entries

    @property
    def last(self) -> int:
        """Ordinal of its last message; one below `first` if it has no messages."""
        return self.totals.messages
