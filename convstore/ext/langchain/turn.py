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
from convstore.integration import TurnAccess, TurnRecord, log_of
from convstore.messages.filing import marked_as_added


@dataclass(frozen=True, slots=True)
class TurnMessages:
    """A turn as stored in the log, in the form in which an agent's state has its messages.

    Attributes:
        question: Its question.
        later: Its other messages in order, in full.
        answer: Id of its answer; "" if it has none.
    """

    question: BaseMessage
    later: list[BaseMessage]
    answer: str = ""

    @classmethod
    def of(cls, record: TurnRecord) -> TurnMessages:
        """Return the messages of a turn; those that tools added to their results are marked."""
        added = {item.id: item.answers for item in record.fold.messages if item.is_added}
        question, *later = record.messages
        for index, message in enumerate(later):
            if message.id in added:
                later[index] = marked_as_added(message, added[message.id])
        answer = record.answer
        return cls(question, later, str(answer.id) if answer else "")

    @property
    def until_answer(self) -> list[BaseMessage]:
        """Its messages after the question up to its answer; empty without one. A late result may follow an answer."""
        ids = [message.id for message in self.later]
        return self.later[: ids.index(self.answer) + 1] if self.answer else []


async def read_turn(chat: Conversation, turn_id: str | None) -> TurnMessages | None:
    """Read the turn that begins with a human message; None if the log does not have it, or it was rewound."""
    record = await TurnAccess(chat).record(turn_id) if turn_id else None
    return TurnMessages.of(record) if record else None


async def ids_in_log(chat: Conversation, ids: Collection[str]) -> set[str]:
    """Return the ids that the log has; one command for 200 ids, no payloads."""
    return set(await log_of(chat).find(list(ids))) if ids else set()
