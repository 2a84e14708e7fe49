"""The types of arguments and results, for annotations. `convstore` itself exports the most common ones."""

from __future__ import annotations

from convstore.conversation.state import ApplicationState
from convstore.conversation.turn import TurnSession
from convstore.messages.media_figures import ImageFigures, MediaFigures
from convstore.messages.tokens import TokenCounter, approximate_tokens
from convstore.messages.values import Omitted
from convstore.values.log_records import LogItem, StoredItem
from convstore.values.models import (
    Compaction,
    ConversationInfo,
    ConversationPage,
    ConversationUpdate,
    ForkOrigin,
    HistoryReport,
    LastCall,
    MessagePreview,
    Receipt,
    Source,
    SourcePage,
    StateSnapshot,
    StoredMessage,
    Summary,
    ToolRecord,
    Turn,
    TurnState,
)
from convstore.values.providers import ProviderRules
from convstore.values.reports import (
    Citation,
    ConversationHits,
    ErasureReceipt,
    Finding,
    Growth,
    Migration,
    SearchHit,
    SearchResult,
    StoreStats,
    VerifyReport,
)
from convstore.values.stamps import TurnOutline, ViewReason, ViewStamp
from convstore.values.turns import Decision, TurnCall, Variant
from convstore.wire.history import History, PastView
from convstore.wire.requests import AnthropicMessages, Dropped, OpenAIMessages

__all__ = [
    "AnthropicMessages",
    "ApplicationState",
    "Citation",
    "Compaction",
    "ConversationHits",
    "ConversationInfo",
    "ConversationPage",
    "ConversationUpdate",
    "Decision",
    "Dropped",
    "ErasureReceipt",
    "Finding",
    "ForkOrigin",
    "Growth",
    "History",
    "HistoryReport",
    "ImageFigures",
    "LastCall",
    "LogItem",
    "MediaFigures",
    "MessagePreview",
    "Migration",
    "Omitted",
    "OpenAIMessages",
    "PastView",
    "ProviderRules",
    "Receipt",
    "SearchHit",
    "SearchResult",
    "Source",
    "SourcePage",
    "StateSnapshot",
    "StoreStats",
    "StoredItem",
    "StoredMessage",
    "Summary",
    "TokenCounter",
    "ToolRecord",
    "Turn",
    "TurnCall",
    "TurnOutline",
    "TurnSession",
    "TurnState",
    "Variant",
    "VerifyReport",
    "ViewReason",
    "ViewStamp",
    "approximate_tokens",
]
