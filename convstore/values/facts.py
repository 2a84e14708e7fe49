"""Define the facts of a log as archives have them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple


class ArchivedFact(NamedTuple):
    """Facts of an entry besides its messages, sources and totals; see `log.facts`.

    Attributes:
        kind: Name of its kind.
        value: Its value, of the types that messages may hold.
        after: Ordinal of the last message up to its entry, 0 without one.
        at: When it was appended.
        is_with_messages: True if its entry has messages.
    """

    kind: str
    value: Any
    after: int
    at: datetime | None = None
    is_with_messages: bool = False
