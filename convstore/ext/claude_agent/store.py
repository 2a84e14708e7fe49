"""The session store of Anthropic's Claude Agent SDK on conversations: it keeps transcripts, and resumes sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from claude_agent_sdk import fold_session_summary

from convstore import Conversation, ConversationInfo, ConversationStore
from convstore.edges import (
    append_in_halves,
    check_list,
    check_store,
    each_conversation,
    read_current,
)
from convstore.exceptions import (
    BatchTooLargeError,
    ContentConflictError,
    InvalidInputError,
    InvalidScopeError,
    StateConflictError,
)
from convstore.ext.claude_agent.entries import KIND, Entry, from_log, id_of, item_of, to_log
from convstore.integration import TurnAccess, as_of, update_state_of
from convstore.values.plain import shown_value
from convstore.values.scope import PATH, check_partial_scope

if TYPE_CHECKING:
    from claude_agent_sdk.types import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

_SUMMARY = "claude_session_summary"
"""Name of the summary in the state of a conversation."""


class ConvstoreSessionStore:
    """The `SessionStore` of the Claude Agent SDK. Each session is a conversation, each sub-path a child conversation.

    User and assistant entries become messages of the log, which views, search and the inspector show. All entries come
    back equal, in order. An entry is stored once under its `uuid`; a changed entry under a stored `uuid` is ignored.
    The constructor does no I/O.

    Args:
        store: The store. Its scope keys are `project`, `session` and the names of `values`.
        project: Scope key for the SDK's `project_key`.
        session: Scope key for the SDK's `session_id`.
        values: The other scope values, such as the user. Set them on your server, and make a session store for each
            request: then sessions of other users do not exist for it.

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
        check_store(store)
        check_partial_scope(store.scope_keys, values)
        named = [project, session, *values]
        if not all(isinstance(key, str) for key in named) or sorted(named) != sorted(
            store.scope_keys
        ):
            raise InvalidScopeError(
                f"the store has the scope keys {', '.join(store.scope_keys)}: pass a value for "
                f"each except {project!r} and {session!r}, or name the keys for the project and "
                "the session with project= and session="
            )
        self.store = store
        self._project = project
        self._session = session
        self._values = values

    def conversation(self, key: SessionKey) -> Conversation:
        """Return the conversation of a session, or of a sub-path of it; no I/O."""
        if not isinstance(key, Mapping) or not {"project_key", "session_id"} <= key.keys():
            raise InvalidInputError(
                f"key must be a dict with project_key and session_id, not {shown_value(key)}"
            )
        chat = self.store.conversation(
            **{self._project: key["project_key"], self._session: key["session_id"]}, **self._values
        )
        return chat.child(subpath) if (subpath := key.get("subpath")) is not None else chat

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Store entries in order; entries whose `uuid` is stored are ignored.

        A failed call can be repeated, but entries without a `uuid` are then stored again. A batch that is too large for
        one append is split.
        """
        if not entries:
            return
        chat = self.conversation(key)
        given = check_list(cast("list[Entry]", entries), dict, name="entries")
        ids: dict[Any, Entry] = {}
        for index, entry in enumerate(given):
            ids.setdefault(id_of(entry) or index, entry)  # of equal uuids, the first is stored
        await _append(chat, list(ids.values()))
        if key.get("subpath") is None:
            await self._fold(chat, key, entries)

    @read_current
    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return all entries, equal to those that were stored; None for a session that does not exist."""
        chat = self.conversation(key)
        items = [item.data async for item in chat.items(kind=KIND)]
        if not items:
            return None
        messages = {str(message.id): message async for message in chat.messages(rewound=True)}
        return cast("list[SessionStoreEntry]", [from_log(data, messages) for data in items])

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the ids of a project's sessions with the times of their last change, newest first."""
        return [
            {"session_id": info.scope[self._session], "mtime": _millis(info)}
            async for info in each_conversation(self.store, self._scope_of(project_key))
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries that the SDK made of a project's sessions. Two commands for each session."""
        found: list[Any] = []
        async with aclosing(
            each_conversation(self.store, self._scope_of(project_key))
        ) as conversations:
            async for info in conversations:
                state = await self.store.conversation(**info.scope).state.get()
                if _SUMMARY in state.values:
                    found.append(state.values[_SUMMARY])
        return found

    async def delete(self, key: SessionKey) -> None:
        """Delete a session with its sub-paths, or one sub-path, permanently; do nothing if it does not exist."""
        await self.conversation(key).delete()

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the sub-paths of a session, oldest first."""
        children = await self.conversation(cast("SessionKey", key)).children()
        return [unquote(info.scope[PATH]) for info in children]

    def _scope_of(self, project_key: str) -> dict[str, str]:
        return {self._project: project_key, **self._values}

    async def _fold(
        self, chat: Conversation, key: SessionKey, entries: list[SessionStoreEntry]
    ) -> None:
        """Fold entries into the summary; concurrent calls retry, so that each folds its entries into the newest one.

        The summary gets the session's time in listings, because the SDK compares both to see that it is up to date.
        """
        info = await chat.info()
        while info.conversation_id:
            state = await chat.state.get()
            folded = fold_session_summary(state.values.get(_SUMMARY), key, entries)
            folded["mtime"] = max(folded["mtime"], _millis(info))
            try:
                with as_of(info.updated_at):
                    summary = {_SUMMARY: dict(folded)}
                    await update_state_of(
                        chat, info.conversation_id, summary, revision=state.revision
                    )
                return
            except StateConflictError:
                if (await chat.info()).conversation_id != info.conversation_id:
                    return  # the session was deleted, so the summary must not be stored again


async def _without_stored(chat: Conversation, entries: Sequence[Entry]) -> list[Entry]:
    stored = {item.id async for item in chat.items(kind=KIND)}
    return [entry for entry in entries if id_of(entry) not in stored]


async def _append(chat: Conversation, entries: Sequence[Entry]) -> None:
    """Append entries that the log does not have, in halves if one append cannot hold them."""

    @read_current
    async def append(batch: Sequence[Entry]) -> None:
        try:
            parts = [part for entry in batch for part in to_log(entry)]
            await TurnAccess(chat).append_transcript(parts)
        except ContentConflictError:
            new = await _without_stored(chat, batch)
            if len(new) == len(batch):
                raise  # a message that is not an entry has the uuid
            if new:
                await append(new)
        except BatchTooLargeError:
            if len(batch) > 1:
                raise
            await chat.append(item_of(batch[0]))  # a message of many small parts

    await append_in_halves(append, entries)


def _millis(info: ConversationInfo) -> int:
    return int(info.updated_at.timestamp() * 1000) if info.updated_at else 0
