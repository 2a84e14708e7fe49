"""Reads what the log already has of a turn.

Floor 7. Asked only where a turn may have begun before: a question under an id that came before, a run that is taken up
again. A turn that begins now costs none of this.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from convstore.conversation import Conversation
from convstore.ext.langchain.turn import is_answer, is_question, own_messages, strays
from convstore.values.models import StoredMessage

__all__ = ["LoggedTurn", "ids_in_log", "read_turn"]

_PAGE = 200
_MOST = 1_000


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A turn as the log has it.

    Attributes:
        question: The human message that begins it.
        first: Its ordinal.
        later: What belongs to it and follows, in the order of the log, in full.
    """

    question: BaseMessage
    first: int
    later: list[BaseMessage]

    @property
    def is_finished(self) -> bool:
        """Return True if it has its answer."""
        return bool(self.later) and is_answer(self.later[-1])


async def read_turn(chat: Conversation, turn_id: str | None) -> LoggedTurn | None:
    """The turn that begins with a human message; None if the log has none, or has it rewound.

    It may be spread over a thousand messages, if other runs wrote at the same time.
    """
    found = await chat.get_tool_messages([turn_id]) if turn_id else []
    if not turn_id or not found:
        return None
    first = found[0].ordinal
    read: list[StoredMessage] = []
    while True:
        page = await chat.list_messages(after=read[-1].ordinal if read else first - 1, limit=_PAGE, full=True)
        read += page
        if not read or read[0].message.id != turn_id:
            return None
        later = [one.message for one in read[1:]]
        earlier = await _before(chat, first) if strays(later) else []
        turn = LoggedTurn(read[0].message, first, own_messages(later, turn_id, earlier))
        is_over = turn.is_finished and any(map(is_question, later))
        if is_over or len(page) < _PAGE or len(read) >= _MOST:
            return turn


async def _before(chat: Conversation, first: int) -> list[BaseMessage]:
    """Messages before a question, without payloads: a run that was not over then has its results after it."""
    page = await chat.list_messages(before=first, limit=_PAGE)
    return [one.message for one in page]


async def ids_in_log(chat: Conversation, ids: Collection[str]) -> set[str]:
    """Those of some ids that the log has; one command, no payloads."""
    if not ids:
        return set()
    parts = await chat.store.services()
    known = await parts.reader.find(tuple(chat.scope.items()))
    return set(await parts.reader.messages_by_id(known, list(ids))) if known else set()
