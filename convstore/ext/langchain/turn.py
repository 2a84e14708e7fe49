"""The messages of one turn of an agent: which messages of a log belong to it, and what the log already has of it.

Two runs may work on one conversation at once, so their messages are interleaved in the log; each is stored with its
turn.

The log is read only if a turn may have begun before: a question whose id was used before, or a run that is resumed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from convstore import Conversation
from convstore.integration import log_of, messages_of_turn
from convstore.messages.filing import came_with, is_answer


@dataclass(frozen=True, slots=True)
class TurnMessages:
    """A turn as stored in the log: its question, and its other messages in order, in full."""

    question: BaseMessage
    later: list[BaseMessage]

    @property
    def until_answer(self) -> list[BaseMessage]:
        """Its messages after the question up to its answer; empty without one. A late result may follow an answer."""
        said = [
            at
            for at, message in enumerate(self.later)
            if message.type == "ai" and not came_with(message)
        ]
        return self.later[: said[-1] + 1] if said and is_answer(self.later[said[-1]]) else []


async def read_turn(chat: Conversation, turn_id: str | None) -> TurnMessages | None:
    """Read the turn that begins with a human message; None if the log does not have it, or it was rewound."""
    found = await messages_of_turn(chat, turn_id) if turn_id else []
    return TurnMessages(found[0], found[1:]) if found else None


async def ids_in_log(chat: Conversation, ids: Collection[str]) -> set[str]:
    """Return the ids that the log has; one command for 200 ids, no payloads."""
    return set(await log_of(chat).find(list(ids))) if ids else set()
