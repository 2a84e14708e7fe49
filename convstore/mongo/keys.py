"""Define the names of the collections and the keys of their documents.

``log`` holds entries and payload chunks in one key order::

    <conversation>#<token>#<chunk>   a chunk of a payload
    <conversation>:<entry number>    an entry
    <conversation>:~                 the state of the conversation

so that "#" < ":" < ";" gives a conversation one key range, and "0" < "~" puts its state after its entries.

The id of a child is ``<id of its parent>~<token>``. A repair copies a log under the id ``<id>@<token>``; children keep
the first id of their parent, its `first_id`, in theirs.

The bounds of a range of entries are never keys of documents. Servers with SERVER-121822 exclude the lower bound of a
descending scan of a clustered collection and include the upper one; between keys, both ways select the same entries.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from convstore.values.scope import PATH

ANNOTATIONS = "annotations"
LOG = "log"
HEADS = "heads"
SUMMARIES = "summaries"
MIGRATIONS = "convstore_migrations"
SEARCH = "search"
DRAFTS = "drafts"

OF_CONVERSATIONS = (LOG, SUMMARIES, ANNOTATIONS, SEARCH, DRAFTS)
"""The collections in which each conversation has a key range."""

_AFTER_ALL = 10**12
"""A number greater than those of all entries: their keys have room for twelve digits."""

_CONVERSATION_ID = re.compile(r"[0-9a-f]{24}(~[0-9a-f]{24})*(@[0-9a-f]{24})?")


def is_conversation_id(text: object) -> bool:
    """Return True for a complete conversation id; a prefix would select the key ranges of other conversations."""
    return isinstance(text, str) and _CONVERSATION_ID.fullmatch(text) is not None


def head_id(scope: Mapping[str, str], parent: str = "") -> str:
    """Return the key of a scope's head; the order of the scope's keys does not matter.

    The key of a child's head includes the first id of its parent, so the head is not found after the parent's deletion.
    """
    pairs = [*sorted(scope.items()), *([("", first_id(parent))] if parent else [])]
    canonical = json.dumps(pairs, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def date_field(scope: Mapping[str, str]) -> str:
    """Return the field for the last use of a scope's conversation; that of a child is not indexed for listings."""
    return "active_at" if PATH in scope else "updated_at"


def child_id(parent: str, token: str) -> str:
    """Return the id of a new child; the ids of all children, at any depth, begin with the id of the root."""
    return f"{first_id(parent)}~{token}" if parent else token


def parent_id(conversation: str) -> str:
    """Return the first id of a child's parent, "" for a conversation that is not a child."""
    return conversation.rpartition("~")[0]


def root_id(conversation: str) -> str:
    """Return the first id of the root of a conversation: the outermost one, or itself if it is not a child."""
    return first_id(conversation.partition("~")[0])


def repaired_id(conversation: str, token: str) -> str:
    """Return the id for a repaired copy of a conversation's log."""
    return f"{first_id(conversation)}@{token}"


def first_id(conversation: str) -> str:
    """Return the id that a conversation had before any repair of its log.

    >>> first_id("a~b@c"), first_id("a~b")
    ('a~b', 'a~b')
    """
    return conversation.partition("@")[0]


def is_twin(id_: str, conversation: str) -> bool:
    """Return True if `id_` is another id of a conversation: that of a replaced log or of a repaired copy."""
    return id_ != conversation and first_id(id_) == first_id(conversation)


def all_ids(conversation: str) -> dict[str, str] | str:
    """Return the filter for all ids that a conversation has had, without those of its children.

    A text that is not an id matches only itself, because a prefix of an id would match other conversations.
    """
    first = first_id(conversation)
    return {"$gte": first, "$lt": f"{first}~"} if is_conversation_id(conversation) else conversation


def family(conversation: str) -> dict[str, str]:
    """Return the filter for all ids of a conversation and of all its children."""
    return {"$gte": first_id(conversation), "$lt": f"{first_id(conversation)}\x7f"}


def scope_filter(partial_scope: Mapping[str, str]) -> dict[str, Any]:
    """Return the filter for the heads with some scope values."""
    return {f"scope.{key}": value for key, value in partial_scope.items()}


def entry_id(conversation: str, number: int) -> str:
    """Return the key of an entry; keys sort like numbers."""
    return f"{conversation}:{number:012d}"


def entry_number(key: str) -> int:
    """Return the number in the key of an entry, 0 if it has no number."""
    text = key.rpartition(":")[2]
    return int(text) if text.isdecimal() else 0


def entry_bound(conversation: str, number: int) -> str:
    """Return a bound between the keys of an entry and of the entry before it; a document never has it as its key."""
    return f"{entry_id(conversation, number - 1)}~"


def entry_range(conversation: str, *, start: int = 0, before: int | None = None) -> tuple[str, str]:
    """Return the bounds of a conversation's entries with numbers from `start` to before `before`."""
    end = _AFTER_ALL if before is None else before
    return entry_bound(conversation, start), entry_bound(conversation, end)


def tombstone_id(conversation: str) -> str:
    """Return the key of the tombstone of a deleted conversation, which is among the heads."""
    return f"deleted:{conversation}"


def state_id(conversation: str) -> str:
    """Return the key of a conversation's state, which is after all its entries."""
    return f"{conversation}:~"


def of_state(conversation: str) -> dict[str, Any]:
    """Return the filter for a conversation's state; a router finds its shard by the conversation."""
    return {"_id": state_id(conversation), "conversation": conversation}


def end_range(conversation: str, *, start: int) -> tuple[str, str]:
    """Return the bounds of a conversation's entries from a number on, and of its state."""
    return entry_bound(conversation, start), f"{conversation};"


def annotation_id(conversation: str, ordinal: int) -> str:
    """Return the key of a message's annotations."""
    return f"{conversation}:{ordinal:012d}"


def application_state_id(conversation: str) -> str:
    """Return the key of the state that the application keeps for a conversation, after all annotations."""
    return f"{conversation}:state"


def draft_id(conversation: str) -> str:
    """Return the key of a conversation's draft."""
    return f"{conversation}:draft"


def segment_id(conversation: str, first: int, analyzer: str) -> str:
    """Return the key of a search segment that begins with an entry; each analyzer has its own segments."""
    return f"{conversation}:{first:012d}:{analyzer}"


def summary_id(conversation: str, token: str) -> str:
    """Return the key of a summary."""
    return f"{conversation}:{token}"


def chunk_id(conversation: str, token: str, chunk: int) -> str:
    """Return the key of a payload chunk."""
    return f"{conversation}#{token}#{chunk:06d}"


def chunk_range(conversation: str, token: str, first: int, count: int) -> tuple[str, str]:
    """Return the key range of `count` chunks of one append."""
    return chunk_id(conversation, token, first), chunk_id(conversation, token, first + count)


def conversation_range(conversation: str) -> tuple[str, str]:
    """Return the bounds of all documents of a conversation in one collection; neither is a key."""
    return f"{conversation}#", f"{conversation};"


def log_ranges(conversation: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the key ranges of a conversation in the log: entries and state, then chunks."""
    return (f"{conversation}:", f"{conversation};"), (f"{conversation}#", f"{conversation}:")
