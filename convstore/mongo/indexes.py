"""Define the collections of a store and their indexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convstore.mongo.keys import ANNOTATIONS, HEADS, LOG, SEARCH, SUMMARIES


@dataclass(frozen=True, slots=True)
class Index:
    """An index, restricted to documents that have the field `present`."""

    name: str
    keys: tuple[tuple[str, int], ...]
    unique: bool = False
    present: str = ""


_LOG = (
    Index("message_ids", (("conversation", 1), ("messages.id", 1)), unique=True, present="messages.id"),
    Index("kept_source_ids", (("conversation", 1), ("kept_source_ids", 1)), unique=True, present="kept_source_ids"),
    Index("lookup", (("conversation", 1), ("lookup", 1)), present="lookup"),
    Index("ordinals", (("conversation", 1), ("first", 1), ("_id", 1)), present="first"),
    Index("results", (("conversation", 1), ("results_at", 1)), present="results_at"),
    Index("states", (("conversation", 1),), present="revision"),
)
_HEADS = (
    Index("newest", (("updated_at", -1), ("_id", -1)), present="updated_at"),
    Index("conversation", (("conversation", 1),), present="updated_at"),
    Index("due", (("sweep_at", 1),), present="sweep_at"),
)
# By this index one command finds the segments of many conversations.
_SEARCH = (Index("conversations", (("conversation", 1), ("_id", 1))),)


def indexes_for(scope_keys: Sequence[str]) -> dict[str, tuple[Index, ...]]:
    """Return the indexes of each collection; heads are listed newest first, all of them and by one scope key."""
    by_key = (
        Index(f"scope_{key}", ((f"scope.{key}", 1), ("updated_at", -1), ("_id", -1)), present=f"scope.{key}")
        for key in scope_keys
    )
    return {LOG: _LOG, HEADS: (*by_key, *_HEADS), SUMMARIES: (), ANNOTATIONS: (), SEARCH: _SEARCH}
