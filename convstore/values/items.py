"""Items of a log that are no messages, as an application gives them and as the log returns them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from convstore.values.json_form import Value


@dataclass(slots=True, kw_only=True)
class LogItem:
    """Something to keep in the log between its messages: a mark, a title, an approval request of a framework.

    No view, count, title or search has it; only `Conversation.items` returns it.

    Attributes:
        kind: What it is, such as "openai.compaction"; `Conversation.items` selects by it.
        data: Any value that an artifact may hold, of any size.
        id: Unique among the items of its conversation. `Conversation.append` sets a missing one.
    """

    kind: str
    data: Any
    id: str | None = None


class PlacedItem(NamedTuple):
    """An item of a batch, or of a record to import, and the number of messages before it."""

    item: LogItem
    position: int


class StoredItem(Value):
    """An item of the log.

    Attributes:
        id: Its id.
        kind: Its kind.
        data: Equal to the appended value.
        after: Ordinal of the message that it follows, 0 for none. Items of one message are in the order of appends.
        created_at: When it was appended (UTC).
        is_rewound: It was rewound. Only with ``rewound=True``.
    """

    id: str
    kind: str
    data: Any
    after: int
    created_at: datetime
    is_rewound: bool = False
