"""The request for a page of the read-back.

Floor 4, pure. The tool and `conversation` build it; the pager answers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convstore.messages.tokens import CHARACTERS_PER_TOKEN
from convstore.values.scope import MAX_IDS

__all__ = ["Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a page; its fields are in the order in which a page shows them.

    Attributes:
        tool_message_ids: Ids of messages, shown with their sources, or of tool calls, shown with their results.
        source_ids: Ids of single sources.
        find: Show only the text around matches of this, ignoring case; "" for everything.
        cursor: Cursor of the previous page; "" for the first page. Without names, it continues its passage.
        page_tokens: Size of a page.
        remarks: Lines that tell the model which parts of its call could not be done.
    """

    tool_message_ids: Sequence[str] = ()
    source_ids: Sequence[int] = ()
    find: str = ""
    cursor: str = ""
    page_tokens: int = 4_000
    remarks: Sequence[str] = ()

    @property
    def characters(self) -> int:
        """Return the size of a page, in characters of English text; see `tokens.weight`."""
        return self.page_tokens * CHARACTERS_PER_TOKEN

    @property
    def names(self) -> list[int | str]:
        """Return all ids in the request, without duplicates."""
        return [*dict.fromkeys(self.tool_message_ids[:MAX_IDS]), *dict.fromkeys(self.source_ids)]
