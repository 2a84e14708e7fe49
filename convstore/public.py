"""The names that users import from ``convstore`` itself.

``convstore`` imports this module when one of the names is first used, so that the command line starts fast.
`convstore.exceptions` has all errors, and `convstore.types` has the types that are rarely written.
"""

from __future__ import annotations

from convstore.conversation import Conversation
from convstore.exceptions import (
    ConflictError,
    ConversationDeletedError,
    ConvstoreError,
    HistoryDivergedError,
    InvalidInputError,
    StoreUnavailableError,
)
from convstore.sources.prompt import SOURCES_PROMPT, sources_prompt
from convstore.store import ConversationStore
from convstore.store.agent_tools import (
    number_sources,
    retrieve_previous_sources_tool,
    search_conversations_tool,
)
from convstore.types import (
    Compaction,
    ConversationInfo,
    History,
    Receipt,
    Source,
    SourcePage,
    StoredMessage,
    ToolRecord,
    Turn,
)
from convstore.values.policy import HistoryPolicy
from convstore.view.render import get_conversational_history

__all__ = [
    "SOURCES_PROMPT",
    "Compaction",
    "ConflictError",
    "Conversation",
    "ConversationDeletedError",
    "ConversationInfo",
    "ConversationStore",
    "ConvstoreError",
    "History",
    "HistoryDivergedError",
    "HistoryPolicy",
    "InvalidInputError",
    "Receipt",
    "Source",
    "SourcePage",
    "StoreUnavailableError",
    "StoredMessage",
    "ToolRecord",
    "Turn",
    "get_conversational_history",
    "number_sources",
    "retrieve_previous_sources_tool",
    "search_conversations_tool",
    "sources_prompt",
]
