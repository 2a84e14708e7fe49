"""Import conversations from other stores, and export them.

Floor 7. ``read_file`` and the readers of other stores yield records for ``import_conversations``; for any other store a
program can build records itself. ``export_conversations`` writes OpenAI's format or the lossless archive format.
"""

from __future__ import annotations

from convstore.transfer.adk_sessions import read_adk_sessions
from convstore.transfer.agents_sessions import read_agents_sessions, read_agents_sqlite
from convstore.transfer.checkpoints import read_checkpoints
from convstore.transfer.exporting import export_conversations
from convstore.transfer.files import read_file
from convstore.transfer.history_collection import read_history_collection
from convstore.transfer.importing import import_conversations
from convstore.transfer.records import (
    AssignedScope,
    BadRecord,
    ConversationRecord,
    ExportReport,
    ImportReport,
    Problem,
    ScopeRule,
)
from convstore.transfer.step_store import read_step_store
from convstore.values.log_records import RecordItem

__all__ = [
    "AssignedScope",
    "BadRecord",
    "ConversationRecord",
    "ExportReport",
    "ImportReport",
    "Problem",
    "RecordItem",
    "ScopeRule",
    "export_conversations",
    "import_conversations",
    "read_adk_sessions",
    "read_agents_sessions",
    "read_agents_sqlite",
    "read_checkpoints",
    "read_file",
    "read_history_collection",
    "read_step_store",
]
