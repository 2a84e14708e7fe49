"""Items that a log has besides messages, and the records that exports read from a log and imports write to one."""

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
    """One message of a conversation to import, or of a log, with its metadata.

    Attributes:
        message: A LangChain message or a dict in OpenAI's format; None if the source has no valid message.
        problem: Reason why the source has no valid message.
        key: Identifies a message without an id in its source; by default its position.
        where: Location in the source, for reports; by default its position.
        at: When it was first written; UTC if it has no time zone. None takes the date from a dict's own fields.
        unread_date: The date in the source, if it cannot be parsed.
        entry: Number of the entry that held it; messages with the same number are appended together.
        turn: Position, from 1, of the question that it belongs to, its own for a question, 0 without a turn. None lets
            the store choose.
        unseen: For an AI message, the number of messages directly before it that its model was not shown.
        added_to: `result_id` of the call, for a message that a tool added to its result; it needs `turn`.
        is_failed: True if a tool result reports a failed call; None lets the store decide. It needs `turn`.
        sources: Ids of its sources, as text such as "3, 11-20".
        annotations: Values set with `annotate`.
        stamp: For an AI message, the stamp of the view that it answers: the view before its entry.
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
    """A message of the log: number of its entry, ordinal, digest of its content, and ids of its sources."""

    entry: int
    ordinal: int
    digest: bytes
    sources: str


class LogChange(NamedTuple):
    """A change by an entry other than its messages, in the form of an archive; see `log.changes`.

    Attributes:
        ordinal: Last ordinal of the log at that time.
        kind: "wait", "decide", "finish" or "stop" for an event of a turn, or of a variant; "begin" for the first entry
            of a variant, "append" for a later one without an event; "activate", "rewind" or "undo"; "fact" for another
            fact of an entry.
        at: When it was written.
        turn: Id of the turn.
        first_turn: For a variant, the id of the first turn at its place.
        variant: Id of the variant.
        call: For "wait" and "decide", the `result_id` of the call.
        values: For "wait" the pause and for "decide" the decision, as JSON; for "fact" its value as text.
        message: Id of the first message that was rewound or restored, "" without one; for "begin", the id of the
            question that the variant replaces.
        has_messages: True if the messages of the entry were appended with this change.
        shows: True if this entry made the variant active.
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
        """True for a change of the kind "fact"."""
        return self.kind == "fact"

    @property
    def is_event(self) -> bool:
        """True for an event of a turn, which appends and moves no messages by itself."""
        return self.kind in ("wait", "decide", "finish", "stop")

    @property
    def leading(self) -> LogChange | None:
        """The change for the first entry, if the messages of this change are split into two; None without a variant."""
        return self._replace(kind="append", shows=False) if self.variant else None


@dataclass(slots=True, kw_only=True)
class LogItem:
    """A value to keep in the log between its messages: a mark, a title, an approval request of a framework.

    Only `Conversation.items` returns it; views, counts, titles and searches ignore it.

    Attributes:
        kind: Kind of the item, such as "openai.compaction"; `Conversation.items` selects by it.
        data: Any value that an artifact may hold, of any size.
        id: Unique among the items of its conversation. `Conversation.append` sets a missing one.
    """

    kind: str
    data: Any
    id: str | None = None


class PlacedItem(NamedTuple):
    """An item of a batch, or of a conversation to import, and the number of messages before it."""

    item: LogItem
    position: int


class StoredItem(Value):
    """An item of the log.

    Attributes:
        id: Id of the item.
        kind: Kind of the item.
        data: Equal to the appended value.
        after: Ordinal of the message that it follows, 0 at the beginning of the log. Items after the same message are
            in the order of appends.
        created_at: When it was appended (UTC).
        is_rewound: True if it was rewound. Only with ``rewound=True``.
    """

    id: str
    kind: str
    data: Any
    after: int
    created_at: datetime
    is_rewound: bool = False
