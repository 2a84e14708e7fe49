"""What goes between sources of conversations and the import, and what the import says of it.

Layer 6. A source gives a `ConversationRecord` for each conversation, and a `BadRecord` for what is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError

__all__ = ["BadRecord", "ConversationRecord", "Message", "Problem", "RecordItem"]

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordItem:
    """One message of a record, with what the source says of it.

    Attributes:
        message: A LangChain message or a dict in OpenAI's format; None if the source holds something else.
        problem: Why there is none.
        key: What names the message in its source, if it has no id; by default its place.
        where: Where the source has it; by default its place.
        at: When it was written first; without a time zone it is UTC. None takes what a dict says of it.
        unread_date: What the source says of that and cannot be read.
        entry: Number of the entry that held it; messages with the same one are appended together.
        sources: The ids that its sources had, as text such as "3, 11-20".
        annotations: What was said of it with `annotate`.
    """

    message: BaseMessage | Mapping[str, Any] | None
    problem: str = ""
    key: str = ""
    where: str = ""
    at: datetime | None = None
    unread_date: str = ""
    entry: int = 0
    sources: str = ""
    annotations: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        if self.at is not None and not isinstance(self.at, datetime):
            raise InvalidInputError(f"at is a datetime, not {type(self.at).__name__}; datetime.fromisoformat makes one")
        if self.at is not None and self.at.tzinfo is None:
            object.__setattr__(self, "at", self.at.replace(tzinfo=UTC))


Message: TypeAlias = BaseMessage | Mapping[str, Any] | RecordItem
"""What a record holds; a dict is one of OpenAI's format or of LangChain's, and has its date in a field of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRecord:
    """A conversation of another store, or of an export.

    Attributes:
        id: Names it in its source, always the same: ids of messages that have none are made from it.
        messages: In order; one of LangChain has its date as `RecordItem.at`, a dict in a field of its own.
        where: Where the source has it, for reports.
        fields: What the source says of it; scopes are made of these.
        scope: Whose it is, if the source knows.
        title: As `Conversation.update` takes it.
        metadata: As `Conversation.update` takes it.
        rewound: What was rewound, as places of messages from 1: first and last.
        sources_through: Highest source id that was in use or reserved.
        notes: What the source has and an import cannot take over.
    """

    id: str
    messages: Sequence[Message]
    where: str = ""
    fields: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    scope: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    rewound: Sequence[tuple[int, int]] = ()
    sources_through: int = 0
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BadRecord:
    """Something in a source that is no conversation, and why."""

    where: str
    problem: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was not taken over as it was.

    Attributes:
        what: What it is about: a whole "conversation" or a "message" that was left out, or something "changed".
        where: Where the source has it.
        conversation: The record's id, "" if there is no record.
        reason: Why, and what to do.
    """

    what: Literal["conversation", "message", "changed"]
    where: str
    conversation: str
    reason: str
