"""What the log is made of: entries, how a batch becomes one, and what is rewound.

Layer 1. `normalize` reads what a caller gives, `batch` checks and encodes it, `compose` makes the entry at its place in
the log, `rewinds` tells which messages still count.
"""

from __future__ import annotations

from convstore.entries.models import (
    UNREAD,
    Entry,
    EntryMessage,
    EntrySource,
    Gap,
    Lost,
    OpenCall,
    PayloadRef,
    Preview,
    Recount,
    Repair,
    Totals,
    Usage,
)

__all__ = [
    "UNREAD",
    "Entry",
    "EntryMessage",
    "EntrySource",
    "Gap",
    "Lost",
    "OpenCall",
    "PayloadRef",
    "Preview",
    "Recount",
    "Repair",
    "Totals",
    "Usage",
]
