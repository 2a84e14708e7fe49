"""Define the indexes of the store's collections; sends nothing.

Floor 2; `migrator` creates them, and `verify.schema` compares them with the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LOG_INDEXES", "SEARCH_INDEXES", "Index", "head_indexes"]


@dataclass(frozen=True, slots=True)
class Index:
    """An index, restricted to documents that have the field `present`."""

    name: str
    keys: tuple[tuple[str, int], ...]
    unique: bool = False
    present: str = ""


LOG_INDEXES = (
    Index("message_ids", (("conversation", 1), ("messages.id", 1)), unique=True, present="messages.id"),
    Index("kept_source_ids", (("conversation", 1), ("kept_source_ids", 1)), unique=True, present="kept_source_ids"),
    Index("lookup", (("conversation", 1), ("lookup", 1)), present="lookup"),
    Index("ordinals", (("conversation", 1), ("first", 1), ("_id", 1)), present="first"),
    Index("results", (("conversation", 1), ("results_at", 1)), present="results_at"),
    Index("states", (("conversation", 1),), present="revision"),
)


SEARCH_INDEXES = (Index("conversations", (("conversation", 1), ("_id", 1))),)
"""By this index one command finds the segments of many conversations."""


def head_indexes(scope_keys: Sequence[str]) -> list[Index]:
    """Return the indexes for listing newest first, for all heads and by one scope key, for ids and for due sweeps."""
    by_key = [
        Index(f"scope_{key}", ((f"scope.{key}", 1), ("updated_at", -1), ("_id", -1)), present=f"scope.{key}")
        for key in scope_keys
    ]
    return [*by_key, Index("newest", (("updated_at", -1), ("_id", -1)), present="updated_at"), _CONVERSATION, _DUE]


_CONVERSATION = Index("conversation", (("conversation", 1),), present="updated_at")


_DUE = Index("due", (("sweep_at", 1),), present="sweep_at")
