"""Items of a log that are no messages, and the records that exports read of a log and imports write to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError
from convstore.values.json_form import Value
from convstore.values.stamps import ViewStamp


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordItem:
    """One message of a record to import, or of a log, with its metadata from there.

    Attributes:
        message: A LangChain message or a dict in OpenAI's format; None if the source has no valid message.
        problem: Why there is no valid message.
        key: Identifies a message without an id in its source; by default its position.
        where: Location in the source, for reports; by default its position.
        at: When it was written first; UTC if it has no time zone. None takes the date from a dict's own fields.
        unread_date: The date of the source, if it cannot be read.
        entry: Number of the entry that held it; messages with the same one are appended together.
        turn: Position, from 1, of the question that it belongs to, its own if it is one, 0 for none; None if the store
            is to find it.
        unseen: For an AI message the number of messages directly before it that its model was not shown.
        added_to: For a message that a tool added to its result the `result_id` of the call; it needs `turn`.
        is_failed: If a tool result reports a failed call, None if the store is to say so; it needs `turn`.
        sources: Ids of its sources, as text such as "3, 11-20".
        annotations: Values set with `annotate`.
        stamp: For an AI message the stamp of the view that it answers: that of everything before its entry.
    """

    message: BaseMessage | Mapping[str, Any] | None
    problem: str = ""
    key: str = ""
    where: str = ""
    at: datetime | None = None
    unread_date: str = ""
    entry: int = 0
    turn: int | None = None
    unseen: int = 0
    added_to: str = ""
    is_failed: bool | None = None
    sources: str = ""
    annotations: Mapping[str, Any] = field(default_factory=dict)
    stamp: ViewStamp | None = None

    def __post_init__(self) -> None:
        if self.at is not None and not isinstance(self.at, datetime):
            raise InvalidInputError(
                f"at must be a datetime, not {type(self.at).__name__}; "
                "datetime.fromisoformat makes one"
            )
        if self.at is not None and self.at.tzinfo is None:
            object.__setattr__(self, "at", self.at.replace(tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class StoredId:
    """A message that is in the log: the number of its entry, the digest of its content, the ids of its sources."""

    entry: int
    ordinal: int
    digest: bytes
    sources: str


class LogChange(NamedTuple):
    """What an entry did besides appending messages, as an archive has it; see `log.changes`.

    Attributes:
        ordinal: The last one of the log then.
        kind: "wait", "decide", "finish" or "stop" for an event of a turn, or of a variant; "begin" for the first entry
            of a variant, "append" for another one without an event; "activate", "rewind" or "undo"; "fact" for a fact
            of its entry that an archive has as it is.
        at: When it was written.
        turn: Id of the turn.
        first_turn: For a variant, id of the turn that stood first at its place.
        variant: Id of the variant.
        call: For "wait" and "decide" the `result_id` of the call.
        values: For "wait" and "decide" how it waits, or the decision, as JSON; the value of a fact as its text.
        message: Id of the first message that was rewound or restored, "" for none; for "begin" that of the question
            which stood at the place.
        has_messages: The messages of the entry were appended with it.
        shows: For a variant, the entry that made it active.
        name: Name of the kind of a fact.
    """

    ordinal: int
    kind: str
    at: datetime
    turn: str = ""
    first_turn: str = ""
    variant: str = ""
    call: str = ""
    values: str = ""
    message: str = ""
    has_messages: bool = False
    shows: bool = False
    name: str = ""

    @property
    def is_fact(self) -> bool:
        """True for a fact of an entry."""
        return self.kind == "fact"

    @property
    def is_event(self) -> bool:
        """True if a worker or a person said it of a turn, and it moves no messages."""
        return self.kind in ("wait", "decide", "finish", "stop")

    @property
    def leading(self) -> LogChange | None:
        """The change of the first of two entries that have its messages together, None for none."""
        return self._replace(kind="append", shows=False) if self.variant else None


@dataclass(slots=True, kw_only=True)
class LogItem:
    """Something to keep in the log between its messages: a mark, a title, an approval request of a framework.

    No view, count, title or search has it; only `Conversation.items` returns it.

    Attributes:
        kind: What it is, such as "openai.compaction"; `Conversation.items` selects by it.
        data: Any value that an artifact may hold, of any size.
        id: Unique among the items of its conversation. `Conversation.append` sets a missing one.
    """

    kind: str
    data: Any
    id: str | None = None


class PlacedItem(NamedTuple):
    """An item of a batch, or of a record to import, and the number of messages before it."""

    item: LogItem
    position: int


class StoredItem(Value):
    """An item of the log.

    Attributes:
        id: Its id.
        kind: Its kind.
        data: Equal to the appended value.
        after: Ordinal of the message that it follows, 0 for none. Items of one message are in the order of appends.
        created_at: When it was appended (UTC).
        is_rewound: It was rewound. Only with ``rewound=True``.
    """

    id: str
    kind: str
    data: Any
    after: int
    created_at: datetime
    is_rewound: bool = False
