"""The view: which messages the next model call gets, and in which form.

Layer 1. `window` says where a view begins under its budget, `render` makes its messages, `providers` makes them safe
for one provider, `compaction` says which turns a summary is to stand for.
"""

from __future__ import annotations

from convstore.view.render import (
    NOTE_RESULTS,
    NamedResult,
    View,
    build_view,
    get_conversational_history,
    make_note,
    payload_needed,
    payloads_needed,
    shorten,
)

__all__ = [
    "NOTE_RESULTS",
    "NamedResult",
    "View",
    "build_view",
    "get_conversational_history",
    "make_note",
    "payload_needed",
    "payloads_needed",
    "shorten",
]
