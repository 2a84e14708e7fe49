"""Import conversations from other stores, and export them.

Floor 7. ``read_file`` and ``read_history_collection`` yield the records that ``import_conversations`` takes; a program
can build records for any other store. ``export_conversations`` writes OpenAI's format or the lossless archive format.
"""

from __future__ import annotations

from convstore.transfer.exporting import export_conversations
from convstore.transfer.files import read_file
from convstore.transfer.history_collection import read_history_collection
from convstore.transfer.importing import import_conversations
from convstore.transfer.records import (
    BadRecord,
    ConversationRecord,
    ExportReport,
    ImportReport,
    Problem,
    RecordItem,
    ScopeRule,
)

__all__ = [
    "BadRecord",
    "ConversationRecord",
    "ExportReport",
    "ImportReport",
    "Problem",
    "RecordItem",
    "ScopeRule",
    "export_conversations",
    "import_conversations",
    "read_file",
    "read_history_collection",
]
