"""The types of what calls take and return, for annotations; `convstore` itself has those that are typed every day."""

from __future__ import annotations

from convstore.messages.tokens import TokenCounter
from convstore.messages.values import Omitted
from convstore.values.models import (
    Compaction,
    ConversationInfo,
    ConversationPage,
    History,
    HistoryReport,
    MessagePreview,
    PastView,
    Receipt,
    Source,
    SourcePage,
    StoredMessage,
    Summary,
    ToolRecord,
    Turn,
)
from convstore.values.reports import (
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

__all__ = [
    "Compaction",
    "ConversationHits",
    "ConversationInfo",
    "ConversationPage",
    "ErasureReceipt",
    "Finding",
    "Growth",
    "History",
    "HistoryReport",
    "MessagePreview",
    "Migration",
    "Omitted",
    "PastView",
    "Receipt",
    "SearchHit",
    "SearchResult",
    "Source",
    "SourcePage",
    "StoreStats",
    "StoredMessage",
    "Summary",
    "TokenCounter",
    "ToolRecord",
    "Turn",
    "TurnOutline",
    "VerifyReport",
    "ViewReason",
    "ViewStamp",
]
