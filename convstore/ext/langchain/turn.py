"""The messages of one turn of an agent: which messages of a log belong to it, and what the log already has of it.

Two runs may work on one conversation at once, so their messages are interleaved in the log; `messages.filing` tells
them apart.

The log is read only if a turn may have begun before: a question whose id was used before, or a run that is resumed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from convstore import Conversation
from convstore.integration import log_of, messages_of_turn
from convstore.messages.filing import is_answer


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A turn as stored in the log: its question, and its other messages in order, in full."""

    question: BaseMessage
    later: list[BaseMessage]

    @property
    def is_finished(self) -> bool:
        """Return True if it has its answer."""
        return bool(self.later) and is_answer(self.later[-1])


async def read_turn(chat: Conversation, turn_id: str | None) -> LoggedTurn | None:
    """Read the turn that begins with a human message; None if the log does not have it, or it was rewound."""
    found = await messages_of_turn(chat, turn_id) if turn_id else []
    return LoggedTurn(found[0], found[1:]) if found else None


async def ids_in_log(chat: Conversation, ids: Collection[str]) -> set[str]:
    """Return the ids that the log has; one command for 200 ids, no payloads."""
    return set(await log_of(chat).find(list(ids))) if ids else set()
