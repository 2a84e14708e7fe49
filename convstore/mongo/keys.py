"""Names of the collections, and the keys of their documents.

``log`` holds entries and payload chunks in one key order::

    <conversation>#<token>#<chunk>   a chunk of a payload
    <conversation>:<entry number>    an entry

so that "#" < ":" < ";" gives a conversation one key range and its entries another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

__all__ = [
    "ANNOTATIONS",
    "HEADS",
    "LOG",
    "MIGRATIONS",
    "SUMMARIES",
    "annotation_id",
    "chunk_id",
    "chunk_range",
    "conversation_range",
    "entry_id",
    "entry_range",
    "head_id",
    "log_ranges",
    "summary_id",
]

ANNOTATIONS = "annotations"


LOG = "log"


HEADS = "heads"


SUMMARIES = "summaries"


MIGRATIONS = "convstore_migrations"


def head_id(scope: Mapping[str, str]) -> str:
    """The key of a scope's head: the same for the same keys and values in any order."""
    canonical = json.dumps(sorted(scope.items()), ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def entry_id(conversation: str, number: int) -> str:
    """The key of an entry; keys order as numbers do."""
    return f"{conversation}:{number:012d}"


def entry_range(conversation: str, *, start: int = 0, before: int | None = None) -> tuple[str, str]:
    """Keys of a conversation's entries, from one number and before another."""
    return entry_id(conversation, start), f"{conversation};" if before is None else entry_id(conversation, before)


def annotation_id(conversation: str, ordinal: int) -> str:
    """The key of what is said of a message."""
    return f"{conversation}:{ordinal:012d}"


def summary_id(conversation: str, token: str) -> str:
    """The key of a summary."""
    return f"{conversation}:{token}"


def chunk_id(conversation: str, token: str, chunk: int) -> str:
    """The key of a payload chunk."""
    return f"{conversation}#{token}#{chunk:06d}"


def chunk_range(conversation: str, token: str, first: int, count: int) -> tuple[str, str]:
    """Keys of `count` chunks of one append."""
    return chunk_id(conversation, token, first), chunk_id(conversation, token, first + count)


def conversation_range(conversation: str) -> tuple[str, str]:
    """Keys of everything that a conversation has in the log."""
    return f"{conversation}#", f"{conversation};"


def log_ranges(conversation: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Keys of everything that a conversation has in the log: of its entries, and of its chunks."""
    return (f"{conversation}:", f"{conversation};"), (f"{conversation}#", f"{conversation}:")
