"""Define the collections of a store and their indexes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from convstore.mongo.keys import HEADS, LOG, OF_CONVERSATIONS, SEARCH


@dataclass(frozen=True, slots=True)
class Index:
    """An index, restricted to documents that have the field `present`."""

    name: str
    keys: tuple[tuple[str, int], ...]
    unique: bool = False
    present: str = ""


_LOG = (
    Index(
        "message_ids", (("conversation", 1), ("messages.id", 1)), unique=True, present="messages.id"
    ),
    Index(
        "kept_source_ids",
        (("conversation", 1), ("kept_source_ids", 1)),
        unique=True,
        present="kept_source_ids",
    ),
    Index("lookup", (("conversation", 1), ("lookup", 1), ("_id", 1)), present="lookup"),
    Index("ordinals", (("conversation", 1), ("first", 1), ("_id", 1)), present="first"),
    Index("results", (("conversation", 1), ("results_at", 1)), present="results_at"),
    Index("states", (("conversation", 1),), present="revision"),
)
_HEADS = (
    Index("newest", (("updated_at", -1), ("_id", -1)), present="updated_at"),
    Index("conversation", (("conversation", 1),)),
    Index("children", (("parent", 1), ("_id", 1)), present="parent"),
    Index("due", (("sweep_at", 1),), present="sweep_at"),
)
# With this index one command finds the segments of many conversations.
_SEARCH = (Index("conversations", (("conversation", 1), ("_id", 1))),)

SHARD_KEYS = {
    name: Index("shard_key", (("conversation", 1), ("_id", 1)))
    for name in OF_CONVERSATIONS
    if name != SEARCH  # it has this index under another name
}
"""Indexes that collections need only if they are sharded by conversation.

They include `_id`, because MongoDB 6.0.5 reads a state by this index if it exists: with the conversation alone it would
examine all documents of the conversation. MongoDB 6.0.27 reads it by its key.
"""


def scope_indexes(
    scope_keys: Sequence[str], listings: Iterable[Sequence[str]] = (), *, has_default: bool = True
) -> list[Index]:
    """Return the indexes of heads by scope keys, newest first: by each key, by the `listings`, and by a default.

    The default has all keys but the last, or both of two keys: such as all conversations of a user in a team.
    """
    default = [scope_keys[: max(2, len(scope_keys) - 1)]] if has_default else []
    by_scope = {
        tuple(sorted(keys)): None
        for keys in (*((key,) for key in scope_keys), *default, *listings)
        if keys
    }
    return [*map(_by_scope, by_scope)]


def indexes_for(
    scope_keys: Sequence[str], *, has_default: bool = True
) -> dict[str, tuple[Index, ...]]:
    """Return the indexes of each collection in a store with these scope keys."""
    own = {
        LOG: _LOG,
        HEADS: (*scope_indexes(scope_keys, has_default=has_default), *_HEADS),
        SEARCH: _SEARCH,
    }
    return dict.fromkeys(OF_CONVERSATIONS, ()) | own


def _by_scope(keys: Sequence[str]) -> Index:
    """Return the index for listings by these scope keys together."""
    fields = [(f"scope.{key}", 1) for key in keys]
    return Index(
        f"scope_{'+'.join(keys)}", (*fields, ("updated_at", -1), ("_id", -1)), present=fields[0][0]
    )
