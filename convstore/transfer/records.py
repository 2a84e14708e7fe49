"""Records that sources hand to an import, and the problems that it reports.

Floor 7. A source yields a `ConversationRecord` for each conversation, and a `BadRecord` for anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError
from convstore.values.stamps import ViewStamp

__all__ = ["BadRecord", "ConversationRecord", "Message", "Problem", "RecordItem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordItem:
    """One message of a record, with its metadata from the source.

    Attributes:
        message: A LangChain message or a dict in OpenAI's format; None if the source has no valid message.
        problem: Why there is no valid message.
        key: Identifies a message without an id in its source; by default its position.
        where: Location in the source, for reports; by default its position.
        at: When it was written first; UTC if it has no time zone. None takes the date from a dict's own fields.
        unread_date: The date of the source, if it cannot be read.
        entry: Number of the entry that held it; messages with the same one are appended together.
        sources: Ids of its sources, as text such as "3, 11-20".
        annotations: Values set with `annotate`.
        seen: For an AI message the stamp of the view that it answers: that of everything before its entry.
    """

    message: BaseMessage | Mapping[str, Any] | None
    problem: str = ""
    key: str = ""
    where: str = ""
    at: datetime | None = None
    unread_date: str = ""
    entry: int = 0
    sources: str = ""
    annotations: Mapping[str, Any] = field(default_factory=dict)
    seen: ViewStamp | None = None

    def __post_init__(self) -> None:
        if self.at is not None and not isinstance(self.at, datetime):
            raise InvalidInputError(f"at is a datetime, not {type(self.at).__name__}; datetime.fromisoformat makes one")
        if self.at is not None and self.at.tzinfo is None:
            object.__setattr__(self, "at", self.at.replace(tzinfo=UTC))


Message: TypeAlias = BaseMessage | Mapping[str, Any] | RecordItem
"""A message of a record. A dict is in OpenAI's or LangChain's format, and its date is one of its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """A conversation of another store, or of an export.

    Attributes:
        id: Stable id in its source. Messages without an id get one made from it.
        messages: In order. `RecordItem.at` dates a LangChain message; a dict has a field for its date.
        where: Location in the source, for reports.
        fields: Fields of the source, from which a `ScopeRule` makes the scope.
        scope: Its scope, if the source knows it.
        title: As `Conversation.update` takes it.
        metadata: As `Conversation.update` takes it.
        rewound: Ranges of rewound messages: first and last position, from 1.
        sources_through: Highest source id that was in use or reserved.
        notes: Parts of the source that an import cannot keep.
    """

    id: str
    messages: Sequence[Message]
    where: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    scope: Mapping[str, str] = field(default_factory=dict)
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rewound: Sequence[tuple[int, int]] = ()
    sources_through: int = 0
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BadRecord:
    """Part of a source that is not a conversation, and why."""

    where: str
    problem: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A conversation or message that was left out or changed.

    Attributes:
        what: "conversation" or "message" if one was left out, "changed" otherwise.
        where: Location in the source.
        conversation: The record's id, "" if there is no record.
        reason: Why, and how to solve it.
    """

    what: Literal["conversation", "message", "changed"]
    where: str
    conversation: str
    reason: str
