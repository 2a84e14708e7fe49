"""convstore: the conversation store for agent backends on MongoDB.

Keeps every message of a conversation, whole and for ever; hands the model only what the next call needs; everything
left out has an id that brings it back.
"""

from __future__ import annotations

from convstore.agent import number_sources, retrieve_previous_sources_tool
from convstore.conversation import Conversation
from convstore.exceptions import (
    BatchTooLargeError,
    BrokenLogError,
    ConflictError,
    ContentConflictError,
    ConversationDeletedError,
    ConvstoreError,
    CorruptDocumentError,
    HistoryDivergedError,
    InvalidCursorError,
    InvalidInputError,
    InvalidMessageError,
    InvalidScopeError,
    MalformedChainError,
    MessageRewoundError,
    MissingExtraError,
    NotSetUpError,
    ResentHistoryError,
    SchemaVersionError,
    SourceIdClashError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    SummaryError,
    SyncUnsupportedError,
    TooManyIdsError,
    TurnConflictError,
    UnencodableError,
    UnknownMessageError,
)
from convstore.messages.tokens import TokenCounter
from convstore.messages.values import Omitted
from convstore.store import ConversationStore
from convstore.tools.retrieval import SOURCES_PROMPT, sources_prompt
from convstore.values.models import (
    Compaction,
    ConversationInfo,
    ConversationPage,
    ErasureReceipt,
    Finding,
    History,
    HistoryReport,
    MessagePreview,
    Receipt,
    Source,
    SourcePage,
    StoredMessage,
    Summary,
    ToolRecord,
    Turn,
    VerifyReport,
)
from convstore.values.policy import HistoryPolicy
from convstore.view.render import get_conversational_history

__all__ = [
    "SOURCES_PROMPT",
    "BatchTooLargeError",
    "BrokenLogError",
    "Compaction",
    "ConflictError",
    "ContentConflictError",
    "Conversation",
    "ConversationDeletedError",
    "ConversationInfo",
    "ConversationPage",
    "ConversationStore",
    "ConvstoreError",
    "CorruptDocumentError",
    "ErasureReceipt",
    "Finding",
    "History",
    "HistoryDivergedError",
    "HistoryPolicy",
    "HistoryReport",
    "InvalidCursorError",
    "InvalidInputError",
    "InvalidMessageError",
    "InvalidScopeError",
    "MalformedChainError",
    "MessagePreview",
    "MessageRewoundError",
    "MissingExtraError",
    "NotSetUpError",
    "Omitted",
    "Receipt",
    "ResentHistoryError",
    "SchemaVersionError",
    "Source",
    "SourceIdClashError",
    "SourcePage",
    "StoreClosedError",
    "StoreError",
    "StoreUnavailableError",
    "StoredMessage",
    "Summary",
    "SummaryError",
    "SyncUnsupportedError",
    "TokenCounter",
    "TooManyIdsError",
    "ToolRecord",
    "Turn",
    "TurnConflictError",
    "UnencodableError",
    "UnknownMessageError",
    "VerifyReport",
    "get_conversational_history",
    "number_sources",
    "retrieve_previous_sources_tool",
    "sources_prompt",
]

__version__ = "0.1.0"
