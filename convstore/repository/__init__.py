"""All commands that convstore sends to MongoDB, and nothing else.

Layer 3. One class for each collection; every method takes the scope or the conversation first, so that no command can
be sent without one. Only `inspection`, and the sweep in `endings`, look at what is nobody's.
"""

from __future__ import annotations

from convstore.repository.annotations import Annotations
from convstore.repository.digests import Digests
from convstore.repository.endings import Endings, HeadKey
from convstore.repository.heads import Head, HeadChange, Heads, Opening, head_from
from convstore.repository.inspection import Inspection, SchemaInspection, said_of_log
from convstore.repository.log import Log, SlotTaken, StoredMessageRow
from convstore.repository.newest import Newest
from convstore.repository.summaries import Summaries

__all__ = [
    "Annotations",
    "Digests",
    "Endings",
    "Head",
    "HeadChange",
    "HeadKey",
    "Heads",
    "Inspection",
    "Log",
    "Newest",
    "Opening",
    "SchemaInspection",
    "SlotTaken",
    "StoredMessageRow",
    "Summaries",
    "head_from",
    "said_of_log",
]
