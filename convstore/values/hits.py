"""Return values of searches: data without behaviour or I/O.

Floor 0; built by `search` and the store. They are pydantic models like those of `models`.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict

__all__ = ["ConversationHits", "SearchHit", "SearchResult"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SearchHit(_Value):
    """A message that a search found.

    Attributes:
        message_id: Its id.
        ordinal: Its position in the log; ``list_messages(around=…)`` jumps to it.
        turn_id: Id of the first message of its turn.
        type: "human", "ai", "tool", …
        tool: For a tool result the tool's name, else "".
        source_ids: For a tool result the sources that matched, best first.
        snippet: The part of its text with the words of the query, unchanged.
        score: Higher is better; comparable within one result only.
        created_at: When it was appended (UTC).
    """

    message_id: str
    ordinal: int
    turn_id: str
    type: str
    tool: str = ""
    source_ids: tuple[int, ...] = ()
    snippet: str
    score: float
    created_at: datetime


class ConversationHits(_Value):
    """The hits of a search in one conversation.

    Attributes:
        scope: The scope values of the conversation.
        conversation_id: Its random id, for `ConversationStore.find_conversation`.
        title: Its title, None if none was set.
        hits: Best first.
    """

    scope: dict[str, str]
    conversation_id: str = ""
    title: str | None = None
    hits: list[SearchHit]


class SearchResult(_Value):
    """The result of a search across conversations.

    Attributes:
        conversations: Those with hits; the one with the best hit first.
        searched: Number of conversations that were searched, the newest ones.
        incomplete: Scopes of conversations whose newest messages were not searched, because too many conversations had
            messages in no segment yet; repeat the call a few seconds later.
    """

    conversations: list[ConversationHits] = []
    searched: int = 0
    incomplete: list[dict[str, str]] = []
