"""The record that Pydantic AI keeps for a conversation, in the conversation's state.

While a save appends its messages, the state also has the previous record. The new record becomes valid as soon as the
log has the entry that it ends with.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import ConversationRecord

from convstore import Conversation
from convstore.exceptions import StateConflictError
from convstore.integration import settle
from convstore.values.json_form import sendable

RUNNING_SECONDS = 90
"""Longest time that a save counts as running; an append ends after 60 s."""
_KEY = "pydantic_ai"
_RECORD: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


@dataclass(frozen=True, slots=True)
class RecordState:
    """The valid record, and the state that the next save replaces.

    Attributes:
        record: The record; None if nothing was saved.
        tail: Ordinal of the last message of the log if the active messages are the record's history; else None.
        revision: Revision of the conversation's state.
        kept: The values in the state; None if nothing was saved.
        is_running: True if a save may be appending its messages.
    """

    record: ConversationRecord | None
    tail: int | None
    revision: int
    kept: dict[str, Any] | None
    is_running: bool = False

    async def replace(
        self, chat: Conversation, record: ConversationRecord, *, tail: int | None, unfinished: bool
    ) -> bool:
        """Store another record; return False if the state has changed since it was read. Undone after an error."""
        values = {"record": _dumped(record), "tail": tail, "at": datetime.now(UTC).timestamp()}
        before = {"before": _dumped(self.record)} if unfinished else {}
        try:
            return await settle(self._write(chat, values | before, self.revision))
        except BaseException:
            await self.restore(chat, record)
            raise

    async def restore(self, chat: Conversation, record: ConversationRecord) -> None:
        """Undo `replace`, unless the state has another record by now."""
        await settle(self._restore(chat, record.revision))

    async def _restore(self, chat: Conversation, revision: str) -> None:
        snapshot = await chat.state.get()
        if snapshot.values.get(_KEY, {}).get("record", {}).get("revision") == revision:
            await self._write(chat, self.kept, snapshot.revision)

    async def _write(
        self, chat: Conversation, values: dict[str, Any] | None, revision: int
    ) -> bool:
        try:
            await chat.state.update({_KEY: values}, revision=revision)
        except StateConflictError:
            return False
        return True


async def read_state(chat: Conversation) -> RecordState:
    """Return the valid record with its state. Two commands; three if the last save had messages."""
    snapshot = await chat.state.get()
    kept: dict[str, Any] | None = snapshot.values.get(_KEY)
    if kept is None:
        return RecordState(None, 0, snapshot.revision, None)
    record = _RECORD.validate_python(sendable(kept["record"]))
    if "before" not in kept or await chat.get_tool_messages([str(record.head_id)]):
        return RecordState(record, kept["tail"], snapshot.revision, kept)
    before = kept["before"] and _RECORD.validate_python(sendable(kept["before"]))
    is_running = datetime.now(UTC).timestamp() - kept["at"] < RUNNING_SECONDS
    return RecordState(before, None, snapshot.revision, kept, is_running)


def _dumped(record: ConversationRecord | None) -> Any:
    return None if record is None else _RECORD.dump_python(record, mode="json")
