"""Pydantic AI's `ConversationStore` on the conversations of a convstore.

The entries of a history are messages of the log, where search, views and read-back find them. A save first replaces the
record, if it has the expected revision, and then appends its messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.conversation_store import ConversationStore as PydanticStore
from pydantic_ai.exceptions import UserError

from convstore import Conversation, ConversationStore
from convstore.exceptions import InvalidScopeError, LogMovedError
from convstore.ext.pydantic_ai.messages import entry_of, mark_of, to_log
from convstore.ext.pydantic_ai.record import RecordState, read_state
from convstore.integration import each_conversation, newest_first, read_current, settle

_BATCH, _MAX_TIPS = 100, 10_000


class ConvstoreConversationStore(PydanticStore):
    """Keeps conversations of Pydantic AI in the log, each message once, with their branches.

    The last scope key that is not given has the conversation id; the one before it, if any, has the ``scope=`` of the
    methods. Without such a key a scope is a label, kept with the record.

    A branch that was left is rewound: views do not show it, and it stays in the log. One that is returned to is
    appended again. A fork has copies of the messages, under the same entry ids, and outlives its origin; `delete`
    erases the messages. Write a conversation through this class alone; every other part of convstore can read it.

    Args:
        store: The store of the conversations.
        scope: Values for all scope keys but one or two.

    Attributes:
        store: The store of the conversations.
        shared_keys: The scope keys but the one of the conversation id.
        owner_key: The scope key that has the ``scope=`` of the methods, or None.

    Raises:
        InvalidScopeError: No scope key, or more than two, are left.
    """

    def __init__(self, store: ConversationStore, **scope: str) -> None:
        left = [key for key in store.scope_keys if key not in scope]
        if len(left) not in (1, 2) or len(left) + len(scope) != len(store.scope_keys):
            raise InvalidScopeError(
                f"pass values for the scope keys of the store, {store.scope_keys}, but the one of the conversation id, "
                "or but that one and the one of Pydantic AI's scope"
            )
        self.store, self._fixed, self._id_key = store, dict(scope), left[-1]
        self.owner_key = left[0] if len(left) == 2 else None
        self.shared_keys = tuple(key for key in store.scope_keys if key != self._id_key)
        self._chats: dict[str, Conversation] = {}

    async def conversation(self, conversation_id: str, *, scope: str | None = None) -> Conversation:
        """Return convstore's handle of a conversation, for views, search or an export.

        Args:
            conversation_id: Its id.
            scope: Its scope. If that is the value of a scope key, None looks it up with one command.

        Raises:
            UserError: The scope has to be given, because there is no such conversation.
        """
        values = {**self._fixed, self._id_key: conversation_id}
        if self.owner_key and scope is None:
            async for info in each_conversation(self.store, values):
                return self.store.conversation(**info.scope)
            raise UserError(f"Conversation {conversation_id!r} is not in the store; pass scope= to create it.")
        return self.store.conversation(**values, **({self.owner_key: str(scope)} if self.owner_key else {}))

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation. Two or three commands, one more to look up its scope."""
        with suppress(UserError):
            return (await self._state_of(await self.conversation(conversation_id))).record
        return None

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records with a scope, newest first. Reads all of them, each with two or three commands."""
        values = self._fixed | ({self.owner_key: scope} if self.owner_key and scope is not None else {})
        found = [info.scope async for info in each_conversation(self.store, values)]
        states = [await self._state_of(self.store.conversation(**scope)) for scope in found]
        records = [state.record for state in states if state.record and scope in (None, state.record.scope)]
        return sorted(records, key=lambda record: record.updated_at, reverse=True)[:limit]

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; LookupError if no conversation has it."""
        return (await self.read_history(entry_id, limit=1))[0]

    @read_current
    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to `head_id`, or the last `limit` of them. Up to seven commands for each 200 messages.

        An entry of a conversation that this object has not read yet is looked for in all of them, one command each.

        Raises:
            LookupError: No conversation has it.
        """
        if head_id is None or limit == 0:
            return []
        with suppress(LookupError):
            return await _history(self._chats[head_id], head_id, limit)
        async for info in each_conversation(self.store, self._fixed):
            chat = self.store.conversation(**info.scope)
            if await chat.get_tool_messages([head_id]):
                return await _history(chat, head_id, limit)
        raise LookupError(head_id)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and new entries, both or neither. Eight or nine commands, more at first and after a branch.

        Raises:
            ConversationConflict: The stored record has another revision, another save is running, or there is no entry
                `record.head_id`. A save whose process was killed counts as running for 90 seconds.
        """
        try:
            chat = await self._chat_of(record)
            added = [*(await self._forked_entries(record) if expected_revision is None else []), *new_entries]
            messages = [message for entry in added for message in to_log(entry)]
            state, extends = await self._replace_record(chat, record, expected_revision, added, len(messages))
            try:
                await settle(_append_after(chat, messages, record, after=state.tail if extends else None))
                if expected_revision is None and not (await chat.state.get()).values:
                    await chat.delete()  # after a deletion, the append has begun another conversation
                    raise LookupError(record.conversation_id)
            except BaseException:
                await state.restore(chat, record)
                raise
        except LookupError:
            raise ConversationConflict(record.conversation_id) from None
        self._note_tips(chat, record)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Erase a conversation, with all its messages and branches. Its forks stay.

        Raises:
            ConversationConflict: There is no record with this revision.
        """
        record = await self.read_record(conversation_id)
        if record is None or record.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        await (await self._chat_of(record)).delete()

    async def _chat_of(self, record: ConversationRecord) -> Conversation:
        with suppress(UserError):
            return await self.conversation(record.conversation_id)
        return await self.conversation(record.conversation_id, scope=record.scope)

    async def _forked_entries(self, record: ConversationRecord) -> list[ConversationEntry]:
        """Return the entries that a new fork begins with."""
        if record.forked_from is None or record.head_id is None:
            return []
        with suppress(UserError):
            return await _history(await self.conversation(record.forked_from), record.head_id)
        raise LookupError(record.forked_from)

    async def _replace_record(
        self, chat: Conversation, record: ConversationRecord, expected: str | None, added: Any, messages: int
    ) -> tuple[RecordState, bool]:
        """Replace the record, and return what was stored, and whether the entries continue the end of the log."""
        while True:
            state = await self._state_of(chat)
            stored, head = (state.record.revision, state.record.head_id) if state.record else (None, None)
            if stored != expected or state.is_running:
                raise ConversationConflict(record.conversation_id)
            if record.head_id not in {None, head, *(entry.id for entry in added)}:
                await self.read_history(record.head_id, limit=1)
            extends = state.tail is not None and (added[0].parent_id if added else record.head_id) == head
            tail = (state.tail or 0) + messages if extends else None
            if await state.replace(chat, record, tail=tail, unfinished=bool(added)):
                return state, extends

    async def _state_of(self, chat: Conversation) -> RecordState:
        state = await read_state(chat)
        if state.record:
            self._note_tips(chat, state.record)
        return state

    def _note_tips(self, chat: Conversation, record: ConversationRecord) -> None:
        """Remember which conversation has the tips of a record: a history is read by its tip alone."""
        for tip in {record.head_id, *record.branches} - {None}:
            self._chats.pop(str(tip), None)
            self._chats[str(tip)] = chat
        while len(self._chats) > _MAX_TIPS:
            del self._chats[next(iter(self._chats))]


async def _append_after(
    chat: Conversation, messages: list[BaseMessage], record: ConversationRecord, *, after: int | None
) -> None:
    """Append messages after the history they continue; unless the log ends with it, first make it the active one."""
    if after is not None:
        with suppress(LogMovedError):  # another part of the application has appended
            return await _append(chat, messages, after)
    path = await _history(chat, mark_of(messages[0])["parent"] if messages else record.head_id)
    again = [message for entry in path for message in to_log(entry, copy=f"~{record.revision}")]
    active = [stored.message async for stored in newest_first(chat) if mark_of(stored.message)][::-1]
    pairs = zip(map(_original_id, active), map(_original_id, again), strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    if shared < len(active):
        await chat.rewind(before=str(active[shared].id))
    return await _append(chat, [*again[shared:], *messages])


async def _append(chat: Conversation, messages: Sequence[BaseMessage], after: int | None = None) -> None:
    """Append in batches; the record counts when the last one is stored."""
    for at in range(0, len(messages), _BATCH):
        receipt = await chat.append(messages[at : at + _BATCH], after=after)
        after = None if after is None else receipt.last


async def _history(chat: Conversation, head_id: str | None, limit: int | None = None) -> list[ConversationEntry]:
    """Return the entries up to one, rewound or not: each stands before those that continue it."""
    entries: list[ConversationEntry] = []
    group: dict[int, BaseMessage] = {}
    wanted = head_id
    if wanted is None:
        return []
    async for stored in newest_first(chat, rewound=True):
        message, mark = stored.message, mark_of(stored.message)
        if mark.get("entry") == wanted:
            group[mark["at"]] = message
            if len(group) == mark["of"]:
                entries.append(entry_of([group[at] for at in sorted(group)]))
                group, wanted = {}, mark["parent"]
                if wanted is None or len(entries) == limit:
                    return entries[::-1]
    raise LookupError(head_id)


def _original_id(message: BaseMessage) -> str:
    return str(message.id).partition("~")[0]
