"""Conversations as the session store of Anthropic's Claude Agent SDK: it keeps transcripts, and resumes sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from claude_agent_sdk import fold_session_summary

from convstore import Conversation, ConversationInfo, ConversationStore
from convstore.exceptions import (
    BatchTooLargeError,
    ContentConflictError,
    InvalidInputError,
    InvalidScopeError,
    StateConflictError,
)
from convstore.ext.claude_agent.entries import KIND, Entry, from_log, id_of, to_log
from convstore.integration import as_of, update_state_of
from convstore.types import LogItem
from convstore.values.scope import PATH, check_partial_scope

if TYPE_CHECKING:
    from claude_agent_sdk.types import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

_PAGE = 200
_SUMMARY = "claude_session_summary"
"""Name of the summary in the state of a conversation."""


class ConvstoreSessionStore:
    """The `SessionStore` of the Claude Agent SDK on conversations: each session is one, each sub-path a child of it.

    User and assistant entries become messages of the log, which views, search and the inspector show. All entries come
    back equal, in order. An entry is stored once under its `uuid`; a changed one under a stored `uuid` is ignored. The
    constructor does no I/O.

    Args:
        store: The store. Its scope keys are `project`, `session` and the names of `values`.
        project: Scope key for the SDK's `project_key`.
        session: Scope key for the SDK's `session_id`.
        values: The other scope values, such as the user. Set them on your server: make a session store for each
            request, so that a session of another user is one that does not exist.

    Raises:
        InvalidScopeError: A scope key is missing or unknown, or a value is invalid.
    """

    def __init__(
        self,
        store: ConversationStore,
        *,
        project: str = "project_key",
        session: str = "session_id",
        **values: str,
    ) -> None:
        if not isinstance(store, ConversationStore):
            raise InvalidInputError(f"store must be a ConversationStore, not {type(store).__name__}")
        check_partial_scope(store.scope_keys, values)
        if sorted([project, session, *values]) != sorted(store.scope_keys):
            raise InvalidScopeError(
                f"the store has the scope keys {', '.join(store.scope_keys)}: pass a value for each but {project!r} "
                f"and {session!r}, or name the keys for the project and the session with project= and session="
            )
        self.store, self._project, self._session, self._values = store, project, session, values

    def conversation(self, key: SessionKey) -> Conversation:
        """Return the conversation of a session, or of a sub-path of it; no I/O."""
        chat = self.store.conversation(
            **{self._project: key["project_key"], self._session: key["session_id"]}, **self._values
        )
        return chat.child(subpath) if (subpath := key.get("subpath")) is not None else chat

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Store entries in order; those whose `uuid` is stored are ignored. A failed call can be repeated.

        Entries without a `uuid` are stored again then. A batch that is too large for one append is split.
        """
        if not entries:
            return
        chat, ids = self.conversation(key), dict[Any, Entry]()
        for index, entry in enumerate(cast("list[Entry]", entries)):
            ids.setdefault(id_of(entry) or index, entry)  # the first one under a uuid counts
        await _append(chat, list(ids.values()))
        if key.get("subpath") is None:
            await self._fold(chat, key, entries)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all entries, equal to those that were stored; None for a session that does not exist."""
        chat = self.conversation(key)
        items = [item.data async for item in chat.items(kind=KIND)]
        if not items:
            return None
        contents = {str(message.id): message.content async for message in chat.messages()}
        return cast("list[SessionStoreEntry]", [from_log(data, contents) for data in items])

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the ids of a project's sessions, and when each was changed last, newest first."""
        return [
            {"session_id": info.scope[self._session], "mtime": _millis(info)}
            async for info in self._listed(project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries that the SDK made of a project's sessions. Two commands for each session."""
        found = list[Any]()
        async for info in self._listed(project_key):
            state = await self.store.conversation(**info.scope).state.get()
            if _SUMMARY in state.values:
                found.append(state.values[_SUMMARY])
        return found

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with its sub-paths, or one sub-path, permanently; nothing happens if it does not exist."""
        await self.conversation(key).delete()

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the sub-paths of a session, oldest first."""
        children = await self.conversation(cast("SessionKey", key)).children()
        return [unquote(info.scope[PATH]) for info in children]

    async def _listed(self, project_key: str) -> AsyncIterator[ConversationInfo]:
        cursor: str | None = None
        while True:
            scope: Any = {self._project: project_key, **self._values}
            page = await self.store.list_conversations(limit=_PAGE, cursor=cursor, **scope)
            for info in page.conversations:
                yield info
            if (cursor := page.next_cursor) is None:
                return

    async def _fold(self, chat: Conversation, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Fold entries into the summary, which concurrent calls change one after the other.

        It is dated as the session is in listings, by which the SDK knows that it has all entries.
        """
        info = await chat.info()
        while info.conversation_id:
            state = await chat.state.get()
            folded = fold_session_summary(state.values.get(_SUMMARY), key, entries)
            folded["mtime"] = max(folded["mtime"], _millis(info))
            try:
                with as_of(info.updated_at):
                    summary = {_SUMMARY: dict(folded)}
                    await update_state_of(chat, info.conversation_id, summary, revision=state.revision)
                return
            except StateConflictError:
                if (await chat.info()).conversation_id != info.conversation_id:
                    return  # deleted: nothing of it is stored again


async def _append(chat: Conversation, entries: Sequence[Entry]) -> None:
    """Append entries that the log does not have, in halves if one append cannot hold them."""
    try:
        await chat.append([part for entry in entries for part in to_log(entry)])
    except ContentConflictError:
        stored = {item.id async for item in chat.items(kind=KIND)}
        new = [entry for entry in entries if id_of(entry) not in stored]
        if len(new) == len(entries):
            raise  # the log has a message under a uuid that is no entry
        if new:
            await _append(chat, new)
    except BatchTooLargeError:
        if len(entries) == 1:  # a message of many small parts
            await chat.append(LogItem(kind=KIND, data={"entry": entries[0]}, id=id_of(entries[0])))
            return
        half = len(entries) // 2
        await _append(chat, entries[:half])
        await _append(chat, entries[half:])


def _millis(info: ConversationInfo) -> int:
    return int(info.updated_at.timestamp() * 1000) if info.updated_at else 0
