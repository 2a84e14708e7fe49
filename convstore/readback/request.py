"""What a model or a program asks of the read-back.

Layer 4, pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convstore.messages.tokens import CHARACTERS_PER_TOKEN
from convstore.values.scope import MAX_IDS

__all__ = ["Request"]


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for, in the order in which it is shown.

    Attributes:
        tool_message_ids: Messages, each with its sources; or tool calls, each with its results.
        source_ids: Single sources.
        find: Show only what is around this text, in any case; "" for everything.
        cursor: Where the page before ended; "" for the first page. Alone it goes on in its passage.
        page_tokens: Size of a page.
        remarks: Lines for the model: what of its call is not done.
    """

    tool_message_ids: Sequence[str] = ()
    source_ids: Sequence[int] = ()
    find: str = ""
    cursor: str = ""
    page_tokens: int = 4_000
    remarks: Sequence[str] = ()

    @property
    def characters(self) -> int:
        """Size of a page, in characters of English text; see `tokens.weight`."""
        return self.page_tokens * CHARACTERS_PER_TOKEN

    @property
    def names(self) -> list[int | str]:
        """Everything that is asked for by name."""
        return [*dict.fromkeys(self.tool_message_ids[:MAX_IDS]), *dict.fromkeys(self.source_ids)]
