"""What one log entry holds: the values that go between the rules, the repository and the view.

Layer 1. An entry is one appended batch and one document; `Totals` run from entry to entry, so that the last one tells
everything that an append or a load must know of the log before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from convstore.messages.encoding import SourcePlace

__all__ = [
    "UNREAD",
    "Entry",
    "EntryMessage",
    "EntrySource",
    "Lost",
    "OpenCall",
    "PayloadRef",
    "Preview",
    "Recount",
    "Repair",
    "RewoundRange",
    "Totals",
    "Usage",
    "is_long",
]

Usage = tuple[int, int, int]
"""What a model counted: input, output and total tokens."""

_LONG_TOKENS = 1_000
_NO_USAGE: Mapping[str, Usage] = {}


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """Where a message's payload is.

    Attributes:
        token: Made fresh for each append; with the conversation it begins the ``_id`` of each chunk.
        chunk: Number of the payload's first chunk under that token.
        ends: Where each chunk ends, in characters of the payload.
        digest: sha256 of the payload.
        size: Bytes of its compressed chunks.
        body: Beginning of the sha256 of the body that refers to it; empty in entries of the first versions.
        shown: Characters at its beginning that views of the finished turn show; whole chunks hold them.
        shown_digest: Beginning of the sha256 of these; empty if they are none or all of it.
        is_edged: They are texts alone of which the body keeps the beginnings and the ends.
    """

    token: str
    chunk: int
    ends: tuple[int, ...]
    digest: bytes
    size: int
    body: bytes = b""
    shown: int = 0
    shown_digest: bytes = b""
    is_edged: bool = False

    def shown_part(self) -> PayloadRef:
        """Where that beginning is, as a payload of its own."""
        ends = tuple(end for end in self.ends if end <= self.shown)
        return self if ends == self.ends else replace(self, ends=ends, size=self.size * self.shown // self.ends[-1])


@dataclass(frozen=True, slots=True)
class EntryMessage:
    """One message of an entry.

    Attributes:
        ordinal: Its place in the log.
        id: Its id.
        type: "human", "ai", "tool", …
        body: Its fields, see ``codec.messages``.
        digest: sha256 of its canonical encoding; tells whether the same id comes with other content.
        tokens: Its size in full.
        view_tokens: Its size in the default view of a finished turn.
        content_digest: Tells what a client sees of it from other content, see ``comparing``.
        calls: How many tool calls it makes.
        tool: For a tool result the tool's name, "" if nothing names it.
        call: For a tool result the id of the call that it answers, "" if that cannot be looked up.
        arguments: For a tool result the beginning of its call's arguments as JSON, "" if its call is not known.
        sources: For a tool result the ids of its sources as text, "" if it has none.
        stub: What stands for it in the view; None if it is shown as it is.
        payload: Where the rest of it is; None if the body is all.
        entry: Key of the entry that it was read from.
        is_long: A human or AI message that a note names once a view leaves it out.
    """

    ordinal: int
    id: str
    type: str
    body: str
    digest: bytes
    tokens: int
    view_tokens: int
    content_digest: bytes = b""
    calls: int = 0
    tool: str = ""
    call: str = ""
    arguments: str = ""
    sources: str = ""
    stub: str | None = None
    payload: PayloadRef | None = None
    entry: str = field(default="", compare=False)
    is_long: bool = False

    @property
    def is_named(self) -> bool:
        """Whether notes name it: a tool result or a long message."""
        return self.type == "tool" or self.is_long

    @property
    def name(self) -> tuple[str, str]:
        """How notes name it: its id, and the ids of its sources or the type of a long message."""
        return self.id, self.sources if self.type == "tool" else self.type


def is_long(type_: str, view_tokens: int) -> bool:
    """Return True for a human or AI message of a thousand tokens or more, by the counter that it was stored with."""
    return type_ in ("human", "ai") and view_tokens >= _LONG_TOKENS


@dataclass(frozen=True, slots=True)
class EntrySource:
    """A source of an entry's tool result.

    Attributes:
        id: Its number in the conversation.
        message_id: The tool message it came with.
        title: The beginning of its title.
        url: The beginning of its address.
        place: Where it stands in its message's payload, or in `piece`.
        piece: The source itself, if its message has no payload.
        given: The number it came with, if that was taken.
        earlier: The number under which the same text was shown before, None if it is new.
        bare: Whether its item holds no more than its text, and what a line shows of title and address.
        held: Whether its item stands whole in content or artifact, too.
        entry: Key of the entry that it was read from.
    """

    id: int
    message_id: str
    title: str
    url: str
    place: SourcePlace
    piece: str = ""
    given: int | None = None
    earlier: int | None = None
    bare: bool = False
    held: bool = False
    entry: str = field(default="", compare=False)


class OpenCall(NamedTuple):
    """A call without a result: its id, its tool, the beginning of its arguments as JSON."""

    id: str
    tool: str
    arguments: str


class RewoundRange(NamedTuple):
    """Messages that were rewound, by ordinal; `entry` to `until` are the entries that hold no others."""

    first: int
    last: int
    entry: int
    until: int


class Lost(NamedTuple):
    """Ordinals and source ids that a lost entry stands for, first and last of each; none if the last is lower."""

    first: int
    last: int
    first_source: int
    last_source: int


class Recount(NamedTuple):
    """By how much the totals of some entries, first and last number, are higher than what the log holds there."""

    entry: int
    until: int
    live: int
    turns: int
    results: int
    tokens: int
    view_tokens: int


class Repair(NamedTuple):
    """What a repair found out about a log that was restored beneath running processes.

    Attributes:
        entry: The first entry that did not follow the one before it.
        until: The entry that says so: from there on all totals are right.
        joins: Entries that follow another entry than they name, all the same.
        recounts: How to correct the totals of entries before `until`.
    """

    entry: int
    until: int
    joins: tuple[int, ...]
    recounts: tuple[Recount, ...]


class Preview(NamedTuple):
    """The beginning of the last message with a text of its own, for listings: its type and the text."""

    type: str
    text: str


UNREAD = Preview("", "")
"""Stands for a preview that was not read."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What the log holds up to and with an entry.

    Attributes:
        entries: Number of the entry.
        messages: Last ordinal.
        live: Messages that are not rewound; those alone count in the next four.
        turns: Human messages.
        results: Tool results.
        tokens: All messages in full.
        view_tokens: All messages as in the default view of finished turns.
        counter: The name of what counted the last two.
        marker: Number of the last entry that changed which messages are live, 0 if all are.
        sources_through: Highest source id in use or reserved.
        usage: Sums of the models' own counts, by model.
        calls: Calls without a result: those of the turn in progress and a few older ones.
        preview: What a listing shows of the last message with text, None if none has any; `UNREAD` if it was not read.
        shown_at: Number of the last entry with sources, 0 if there is none.
        shown: The newest different sources, by digest of their text the lowest number they were shown under; None if
            it was not read, see entry `shown_at`.
        updated_at: When the entry was appended.
        link: Random number of the entry, 0 before the first one; the next entry names it as `after`.
    """

    entries: int = 0
    messages: int = 0
    live: int = 0
    turns: int = 0
    results: int = 0
    tokens: int = 0
    view_tokens: int = 0
    counter: str = ""
    marker: int = 0
    sources_through: int = 0
    usage: Mapping[str, Usage] = field(default_factory=lambda: _NO_USAGE)
    calls: tuple[OpenCall, ...] = ()
    preview: Preview | None = None
    shown_at: int = 0
    shown: Mapping[bytes, int] | None = field(default=None, compare=False)
    updated_at: datetime | None = None
    link: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One document of the log.

    Attributes:
        first: Ordinal of its first message, or of the next one if it has none.
        at: When it was appended.
        messages: In order; none in a reservation of source ids and in a marker.
        totals: What the log holds with it.
        after: The link of the entry before it, 0 for the first. Another one there means that the log was restored from
            a backup beneath the process that wrote this entry.
        sources: Those of its tool results.
        gaps: In a marker all messages that are rewound.
        undo: In a marker the number of the rewind that can be taken back, 0 for none.
        lost: In an entry that stands for a lost one, what is lost with it.
        repair: In a marker what the last repair found out, None if there was none.
        size: Its stored size in bytes, its sources apart.
    """

    first: int
    at: datetime
    messages: tuple[EntryMessage, ...]
    totals: Totals
    after: int = 0
    sources: tuple[EntrySource, ...] = ()
    gaps: tuple[RewoundRange, ...] = ()
    undo: int = 0
    lost: Lost | None = None
    repair: Repair | None = None
    size: int = 0

    @property
    def number(self) -> int:
        """Its place among the entries, from 1."""
        return self.totals.entries

    @property
    def last(self) -> int:
        """Ordinal of its last message; one below `first` if it has none."""
        return self.totals.messages

    def live_at(self, ordinal: int) -> int:
        """How many live messages the log had up to and with one of its messages; holds while that is live itself."""
        return self.totals.live - (self.last - ordinal)

    def turn_at(self, ordinal: int) -> int:
        """The number of the turn that one of its messages is in; holds while that is live."""
        return self.totals.turns - sum(one.type == "human" and one.ordinal > ordinal for one in self.messages)
