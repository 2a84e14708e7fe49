"""Conversations from other stores and back: import, export, and what both read and write.

Layer 6. ``read_file`` and ``read_history_collection`` give the records that ``import_conversations`` takes; a program
can make its own for any other store. ``export_conversations`` writes OpenAI's format, or one that loses nothing.
"""

from __future__ import annotations

from convstore.transfer.exporting import export_conversations
from convstore.transfer.files import read_file
from convstore.transfer.history_collection import read_history_collection
from convstore.transfer.importing import import_conversations
from convstore.transfer.records import BadRecord, ConversationRecord, Problem, RecordItem
from convstore.transfer.report import ExportReport, ImportReport
from convstore.transfer.scope_rule import ScopeRule

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
