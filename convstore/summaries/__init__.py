"""Stored summaries: what is kept of one, its message in a view, and when the next is due.

Layer 1. `records` has the summary itself, `compaction` the plan for the next one.
"""

from __future__ import annotations

from convstore.summaries.records import (
    NAMED_RESULTS,
    SummaryRecord,
    clipped,
    fits,
    is_summary,
    name_results,
    summary_message,
    summary_messages,
)

__all__ = [
    "NAMED_RESULTS",
    "SummaryRecord",
    "clipped",
    "fits",
    "is_summary",
    "name_results",
    "summary_message",
    "summary_messages",
]
