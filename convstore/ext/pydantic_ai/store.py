"""Pydantic AI's `ConversationStore` on a convstore's conversations.

The entries of a history are messages of the log, where search, views and read-back find them. A save first replaces the
record, if it has the expected revision, and then appends its messages.

Pydantic AI does not pass the scope to the five methods that a backend implements. So each method with a ``scope=``
first finds the owner of the conversation, and the five methods only read and write conversations of that owner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import wraps
from inspect import signature
from itertools import islice
from typing import Any, TypeVar, cast
from uuid import uuid4

from langchain_core.messages import BaseMessage
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
)
from pydantic_ai.conversation_store import ConversationStore as PydanticStore
from pydantic_ai.exceptions import UserError

from convstore import Conversation, ConversationStore
from convstore.edges import (
    check_store,
    each_conversation,
    newest_first,
    read_current,
)
from convstore.exceptions import InvalidScopeError, LogMovedError
from convstore.ext.pydantic_ai.messages import entry_of, mark_of, to_log
from convstore.ext.pydantic_ai.record import RecordState, read_state
from convstore.integration import settle
from convstore.values.plain import equal_at_start, slices
from convstore.values.scope import check_id, check_number

_BATCH = 100
_MAX_TIPS = 10_000

_owner: ContextVar[str | None] = ContextVar("owner", default=None)
"""The owner of the conversations that a call may read and write, once it is known."""


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _of_owner(method: _Method, *, owner: str = "scope") -> _Method:
    """Wrap a method of Pydantic AI's store so that it only reads and writes conversations of one owner.

    `owner` is the name of the method's parameter for the owner.
    """
    form = signature(method)

    @wraps(method)
    async def restricted(*args: Any, **options: Any) -> Any:
        given = form.bind(*args, **options).arguments
        store, conversation = islice(given.values(), 2)
        # the argument may be the result of a run, which has a conversation
        found = getattr(conversation, "conversation", conversation)
        id_ = getattr(found, "conversation_id", found)
        async with store._owned_by(given.get(owner), id_):  # noqa: SLF001 - of this module's class
            return await method(*args, **options)

    return cast(_Method, restricted)


class ConvstoreConversationStore(PydanticStore):
    """Keeps conversations of Pydantic AI in the log, each message once, with their branches.

    The last scope key without a value here is the conversation id. If one more has no value, it is the ``scope=`` of
    the methods. Otherwise a scope is a label, which is kept with the record. A method that is called without a scope
    finds the owner by the conversation id, and raises a UserError if several owners have the id.

    A branch that is no longer active is rewound: views do not show it, and it stays in the log. If it becomes active
    again, its messages are appended again. A fork has copies of the messages, under the same entry ids, and outlives
    its origin; `delete` erases the messages. Write a conversation only through this class; every other part of
    convstore can read it.

    Args:
        store: The store of the conversations.
        scope: Values for all scope keys except one or two.

    Attributes:
        store: The store of the conversations.
        shared_keys: The scope keys except that of the conversation id.
        owner_key: The scope key for the ``scope=`` of the methods, or None.

    Raises:
        InvalidScopeError: `scope` leaves out no scope key, or more than two.
    """

    def __init__(self, store: ConversationStore, **scope: str) -> None:
        check_store(store)
        left = [key for key in store.scope_keys if key not in scope]
        if len(left) not in (1, 2) or len(left) + len(scope) != len(store.scope_keys):
            raise InvalidScopeError(
                f"the store has the scope keys {store.scope_keys}: pass values for all of them "
                "except the one of the conversation id, and except the one of Pydantic AI's scope "
                "if it has one"
            )
        self.store = store
        self._fixed = dict(scope)
        self._id_key = left[-1]
        self.owner_key = left[0] if len(left) == 2 else None
        self.shared_keys = tuple(key for key in store.scope_keys if key != self._id_key)
        self._chats: dict[tuple[str | None, str], Conversation] = {}

    load = _of_owner(PydanticStore.load)
    load_entries = _of_owner(PydanticStore.load_entries)
    save = _of_owner(PydanticStore.save)
    branch = _of_owner(PydanticStore.branch)
    fork = _of_owner(PydanticStore.fork, owner="source_scope")
    delete = _of_owner(PydanticStore.delete)

    async def conversation(self, conversation_id: str, *, scope: str | None = None) -> Conversation:
        """Return convstore's handle of a conversation, for views, search or an export.

        Args:
            conversation_id: The id of the conversation.
            scope: Its scope. If scopes are values of a scope key, None looks it up with one command.

        Raises:
            UserError: The scope must be given, because no owner has the id, or several owners have it.
        """
        chat = await self._find(conversation_id, scope)
        if chat is None:
            raise UserError(
                f"Conversation {conversation_id!r} is not in the store; pass scope= to create it."
            )
        return chat

    async def _find(self, conversation_id: str, scope: str | None = None) -> Conversation | None:
        """Return a conversation of one owner; None if the owner is not given and no owner has the id."""
        values = {**self._fixed, self._id_key: conversation_id}
        if self.owner_key is not None:
            owner = await self._owner_of(conversation_id) if scope is None else scope
            if owner is None:
                return None
            values[self.owner_key] = owner
        return self.store.conversation(**values)

    async def _owner_of(self, conversation_id: str) -> str | None:
        """Return the owner of the current call, else the only owner of the id; None if no owner has the id."""
        if (known := _owner.get()) is not None:
            return known
        values: dict[str, Any] = {**self._fixed, self._id_key: conversation_id}
        found = (await self.store.list_conversations(limit=2, **values)).conversations
        if len(found) > 1:
            raise UserError(
                f"Several owners have a conversation {conversation_id!r}; pass scope= to choose "
                "one."
            )
        return found[0].scope[str(self.owner_key)] if found else None

    @asynccontextmanager
    async def _owned_by(self, scope: str | None, conversation_id: str) -> AsyncIterator[None]:
        """Restrict the calls inside to the conversations of one owner: `scope`, else the only owner of the id."""
        if self.owner_key is None:
            yield
            return
        token = _owner.set(scope)
        try:
            _owner.set(await self._owner_of(conversation_id))
            yield
        finally:
            _owner.reset(token)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation. Two or three commands, one more to look up its scope."""
        chat = await self._find(conversation_id)
        return None if chat is None else (await self._state_of(chat)).record

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records with a scope, newest first. Reads all of them, with two or three commands for each."""
        if limit is not None:
            check_number(limit, name="limit", minimum=0)
        found = [info.scope async for info in each_conversation(self.store, self._values_of(scope))]
        states = [await self._state_of(self.store.conversation(**scope)) for scope in found]
        records = [
            state.record for state in states if state.record and scope in (None, state.record.scope)
        ]
        return sorted(records, key=lambda record: record.updated_at, reverse=True)[:limit]

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; LookupError if no conversation has it."""
        check_id(entry_id, name="entry_id")
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(
        self, head_id: str | None, *, limit: int | None = None
    ) -> list[ConversationEntry]:
        """Return the entries up to `head_id`, or the last `limit` of them. Up to seven commands for each 200 messages.

        If this object has not read the entry's conversation before, all conversations are searched, with one command
        for each.

        Raises:
            LookupError: No conversation has the entry.
        """
        if head_id is not None:
            check_id(head_id, name="head_id")
        return await self._history_to(head_id, limit)

    @read_current
    async def _history_to(self, head_id: str | None, limit: int | None) -> list[ConversationEntry]:
        if head_id is None or limit == 0:
            return []
        with suppress(LookupError):
            return await _history(self._chats[_owner.get(), head_id], head_id, limit)
        found: dict[str | None, Conversation] = {}
        async with aclosing(
            each_conversation(self.store, self._values_of(_owner.get()))
        ) as conversations:
            async for info in conversations:
                chat = self.store.conversation(**info.scope)
                if await chat.get_tool_messages([head_id]):
                    found[chat.scope[self.owner_key] if self.owner_key else None] = chat
                    if self.owner_key is None or _owner.get() is not None:
                        break
        if not found:
            raise LookupError(head_id)
        if len(found) > 1:
            raise UserError(
                f"Several owners have an entry {head_id!r}; load it with its conversation and "
                "scope=."
            )
        [chat] = found.values()
        return await _history(chat, head_id, limit)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and new entries, both or neither. Eight or nine commands, more at first and after a branch.

        Raises:
            ConversationConflict: The stored record has another revision, another save is running, or the entry
                `record.head_id` does not exist. A save whose process was killed counts as running for 90 seconds.
            UserError: The record has no scope, but scopes are values of a scope key.
        """
        if self.owner_key is not None and record.scope is None:
            raise UserError(
                f"Conversation {record.conversation_id!r} is not in the store; pass scope= to "
                f"create it: the value of the scope key {self.owner_key}."
            )
        try:
            chat = await self.conversation(record.conversation_id, scope=record.scope)
            added = [
                *(await self._forked_entries(record) if expected_revision is None else []),
                *new_entries,
            ]
            messages = [message for entry in added for message in to_log(entry)]
            state, extends = await self._replace_record(
                chat, record, expected_revision, added, len(messages)
            )
            try:
                await settle(
                    _append_after(chat, messages, record, after=state.tail if extends else None)
                )
                if expected_revision is None and not (await chat.state.get()).values:
                    # the conversation was deleted meanwhile, and the append has begun a new one
                    await chat.delete()
                    raise LookupError(record.conversation_id)
            except BaseException:
                await state.restore(chat, record)
                raise
        except LookupError:
            raise ConversationConflict(record.conversation_id) from None
        self._note_tips(chat, record)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Erase a conversation, with all its messages and branches. Its forks stay.

        Saves that begin meanwhile are refused, for 90 seconds if the process is killed before the deletion.

        Raises:
            ConversationConflict: The conversation does not exist, or its record has another revision.
        """
        chat = await self._find(conversation_id)
        state = await self._state_of(chat) if chat else None
        record = state.record if state else None
        if chat is None or state is None or record is None or record.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        # stored like a save in progress, which never gets its entry
        ending = replace(record, revision=uuid4().hex, head_id=uuid4().hex)
        if not await state.replace(chat, ending, tail=None, unfinished=True):
            raise ConversationConflict(conversation_id)
        try:
            await settle(chat.delete())
        except BaseException:
            await state.restore(chat, ending)
            raise

    def _values_of(self, owner: str | None) -> dict[str, str]:
        """Return the scope values of an owner's conversations; for None, of all owners' conversations."""
        if self.owner_key is None or owner is None:
            return self._fixed
        return {**self._fixed, self.owner_key: owner}

    async def _forked_entries(self, record: ConversationRecord) -> list[ConversationEntry]:
        """Return the entries that a new fork copies from its origin; [] for a record that is not a fork."""
        if record.forked_from is None or record.head_id is None:
            return []
        origin = await self._find(record.forked_from)
        if origin is None:
            raise LookupError(record.forked_from)
        return await _history(origin, record.head_id)

    async def _replace_record(
        self,
        chat: Conversation,
        record: ConversationRecord,
        expected: str | None,
        added: Any,
        messages: int,
    ) -> tuple[RecordState, bool]:
        """Replace the record; return the state before, and True if the new entries continue the end of the log."""
        while True:
            state = await self._state_of(chat)
            stored, head = (
                (state.record.revision, state.record.head_id) if state.record else (None, None)
            )
            if stored != expected or state.is_running:
                raise ConversationConflict(record.conversation_id)
            if record.head_id not in {None, head, *(entry.id for entry in added)}:
                await _history(chat, record.head_id, 1)
            extends = (
                state.tail is not None and (added[0].parent_id if added else record.head_id) == head
            )
            tail = (state.tail or 0) + messages if extends else None
            if await state.replace(chat, record, tail=tail, unfinished=bool(added)):
                return state, extends

    async def _state_of(self, chat: Conversation) -> RecordState:
        state = await read_state(chat)
        if state.record:
            self._note_tips(chat, state.record)
        return state

    def _note_tips(self, chat: Conversation, record: ConversationRecord) -> None:
        """Cache the conversation of a record's tips, because a history is requested by its tip alone."""
        owner = chat.scope[self.owner_key] if self.owner_key else None
        for tip in {record.head_id, *record.branches} - {None}:
            self._chats.pop((owner, str(tip)), None)
            self._chats[owner, str(tip)] = chat
        while len(self._chats) > _MAX_TIPS:
            del self._chats[next(iter(self._chats))]


async def _append_after(
    chat: Conversation,
    messages: list[BaseMessage],
    record: ConversationRecord,
    *,
    after: int | None,
) -> None:
    """Append messages after the history that they continue; if the log does not end with it, make it active first."""
    if after is not None:
        with suppress(LogMovedError):  # another part of the application has appended
            return await _append(chat, messages, after)
    path = await _history(chat, mark_of(messages[0])["parent"] if messages else record.head_id)
    copies = [message for entry in path for message in to_log(entry, copy=f"~{record.revision}")]
    active = [stored.message async for stored in newest_first(chat) if mark_of(stored.message)][
        ::-1
    ]
    shared = equal_at_start(map(_original_id, active), map(_original_id, copies))
    if shared < len(active):
        await chat.rewind(before_id=str(active[shared].id))
    return await _append(chat, [*copies[shared:], *messages])


async def _append(
    chat: Conversation, messages: Sequence[BaseMessage], after: int | None = None
) -> None:
    """Append in batches; the new record becomes valid when the last batch is stored."""
    for batch in slices(messages, _BATCH):
        receipt = await chat.append(batch, after=after)
        after = None if after is None else receipt.last


async def _history(
    chat: Conversation, head_id: str | None, limit: int | None = None
) -> list[ConversationEntry]:
    """Return the entries up to one, rewound or not, by following parents from the end of the log to its beginning.

    Raises:
        LookupError: The log does not have the entry or one of its ancestors.
    """
    entries: list[ConversationEntry] = []
    group: dict[int, BaseMessage] = {}
    wanted = head_id
    if wanted is None:
        return []
    async with aclosing(newest_first(chat, rewound=True)) as log:
        async for stored in log:
            message = stored.message
            mark = mark_of(stored.message)
            if mark.get("entry") == wanted:
                group[mark["at"]] = message
                if len(group) == mark["of"]:
                    entries.append(entry_of([group[at] for at in sorted(group)]))
                    group = {}
                    wanted = mark["parent"]
                    if wanted is None or len(entries) == limit:
                        return entries[::-1]
    raise LookupError(head_id)


def _original_id(message: BaseMessage) -> str:
    return str(message.id).partition("~")[0]
