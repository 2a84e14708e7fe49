"""Read LangGraph's checkpoints to find the conversation that a run belongs to and the checkpoint that it began at.

A checkpointer finds a checkpoint by the thread's id alone, so a state names the conversation that it belongs to.

The log is rewound for a run that began at an older checkpoint: a replay, a question asked there, or `update_state`.
More messages in the log than in the state do not prove that: another worker may have appended them, or their run was
killed before its checkpoint was saved. So two conditions must hold:

* The caller went back: the run's configuration names a checkpoint, or `update_state` made the one that the run began
  at.
* A message after those of the state is in a checkpoint that the thread saved later.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.runnables.config import var_child_runnable_config

from convstore import Conversation
from convstore.exceptions import (
    ConversationDeletedError,
    InvalidScopeError,
    OlderCheckpointError,
)
from convstore.integration import host_of, log_of
from convstore.messages.encoding import digest_of
from convstore.messages.filing import ids_of, last_question
from convstore.messages.provenance import kind_of
from convstore.types import History
from convstore.values.log_records import StoredId

OnFork = Literal["rewind", "raise"]
_PAGE = 1_000
_FIRST_CHECKPOINTS = 4
_MOST_CHECKPOINTS = 64
"""Checkpoints in the first page and in the largest page; pages grow, because most runs need only the newest ones."""

_INNER = "|"
"""Separates the names of nested graphs in a run's ``checkpoint_ns``."""


@dataclass(frozen=True, slots=True)
class RewoundState:
    """An older state, to which the log was rewound.

    Attributes:
        abandoned: Ids of the messages that were rewound.
        messages: The state's messages. A question that was edited under its old id has a new id.
        changes: The changes to the state's messages that give the question the new id.
    """

    abandoned: frozenset[str]
    messages: list[BaseMessage]
    changes: list[BaseMessage]


def is_addressed() -> bool:
    """Return True if the configuration of the current run names a checkpoint."""
    return "checkpoint_id" in run_config()[1]


def may_be_behind(history: History, messages: Sequence[BaseMessage]) -> bool:
    """Return True if a view has messages after those of a state, or the run's configuration names a checkpoint."""
    last = next(
        (message.id for message in reversed(history.messages) if not kind_of(message)), None
    )
    return is_addressed() or (last is not None and last not in ids_of(messages))


async def go_back(
    chat: Conversation, messages: Sequence[BaseMessage], on_fork: OnFork
) -> RewoundState | None:
    """Rewind the log to the state of a run that began at an older checkpoint; return None for any other run.

    Idempotent. If the last rewind removed messages of the state, that rewind is undone.
    """
    since, held = await _saved_since()
    if not since:
        return None
    stored = await log_of(chat).find(sorted(ids_of(messages)))
    first = min((stored_id.ordinal for stored_id in stored.values()), default=1)
    active, later = await _after(chat, first, messages)
    edited = await _edited_question(chat, messages, stored)
    lost = _lost(messages, stored.keys() - active, edited)
    is_abandoned = bool(lost) or not since.isdisjoint(later)
    if not is_abandoned or _is_repeated(last_question_in(messages), active, held):
        return None
    before = _first_abandoned(edited, active, later, since)
    if on_fork == "raise":
        raise OlderCheckpointError(before or lost[0])
    if lost:
        before = await _undo_rewind(chat, first, messages, last=lost[-1])
    if before:
        await chat.rewind(before_id=before)
    return _rewound_state(messages, edited, later)


def last_question_in(messages: Sequence[BaseMessage]) -> BaseMessage | None:
    """Return the last human message that a user sent; None without such a message."""
    at = last_question(messages)
    return None if at is None else messages[at]


def _is_repeated(
    question: BaseMessage | None, active: Collection[str], held: Collection[str] | None
) -> bool:
    """Return True if the log has the state's question, but the checkpoint that the caller went back to does not."""
    if question is None or held is None:
        return False
    return question.id in active and question.id not in held


async def _undo_rewind(
    chat: Conversation, first: int, messages: Sequence[BaseMessage], *, last: str
) -> str | None:
    """Undo the rewind of a state's last message; return the id of the first message after the state's, if any."""
    await chat.undo_rewind(before_id=last)
    _, later = await _after(chat, first, messages)
    return next(iter(later), None)


def _first_abandoned(
    edited: BaseMessage | None,
    active: Collection[str],
    later: Sequence[str],
    since: Collection[str],
) -> str | None:
    """Return the id of the first active message that a state abandons, which may be the question that was edited."""
    if edited and edited.id in active:
        return edited.id
    if active:
        return next(iter(later), None)
    # The log has no message of the state, so only messages in a later checkpoint are certain to be abandoned.
    return next((id_ for id_ in later if id_ in since), None)


def _rewound_state(
    messages: Sequence[BaseMessage], edited: BaseMessage | None, later: Sequence[str]
) -> RewoundState:
    """Return the state to which the log was rewound; an edited question gets a new id in it."""
    if edited is None:
        return RewoundState(frozenset(later), list(messages), [])
    new = edited.model_copy(update={"id": str(uuid4())})
    kept = [new if message.id == edited.id else message for message in messages]
    return RewoundState(frozenset(later), kept, [RemoveMessage(str(edited.id)), new])


async def _edited_question(
    chat: Conversation, messages: Sequence[BaseMessage], stored: Mapping[str, StoredId]
) -> BaseMessage | None:
    """Return the last question of a state if its content in the log differs; else None."""
    question = last_question_in(messages)
    if question is None or question.id not in stored:
        return None
    at = stored[str(question.id)].ordinal
    [known] = await chat.list_messages(after=at - 1, limit=1, full=True, rewound=True)
    return None if known.message.content == question.content else question


def _lost(
    messages: Sequence[BaseMessage], rewound: Collection[str], edited: BaseMessage | None
) -> list[str]:
    """Return the ids of a state's messages that are rewound in the log, except the edited question."""
    return [
        str(message.id) for message in messages if message.id in rewound and message is not edited
    ]


async def _after(
    chat: Conversation, first: int, messages: Sequence[BaseMessage]
) -> tuple[set[str], list[str]]:
    """Return the ids of a state's messages that are active in the log, and the ids of the messages after them."""
    page = [
        str(message.message.id)
        for message in await chat.list_messages(after=first - 1, limit=_PAGE)
    ]
    own = ids_of(messages).intersection(page)
    return own, page[max((page.index(id_) + 1 for id_ in own), default=0) :]


async def _saved_since() -> tuple[set[str], set[str] | None]:
    """Return the ids of the messages in later checkpoints than the one the run began at, and those in that one.

    Checkpoints of the run itself do not count. The first set is empty if the run began at the newest checkpoint. The
    second is None if the checkpoint only stores changes of its messages.
    """
    configurable, metadata = run_config()
    search = _StartSearch(configurable, metadata)
    async with aclosing(_newest_first(configurable)) as snapshots:
        async for snapshot in snapshots:
            if search.ends_with(snapshot):
                break
    start = search.start
    if start is None:
        return set(), None
    has_messages = not {"messages", "__start__"}.isdisjoint(start.checkpoint["channel_values"])
    return search.since, _message_ids(start) if has_messages else None


class _StartSearch:
    """Searches the checkpoints of a thread, newest first, for the one that the caller went back to.

    Attributes:
        start: That checkpoint, None until it is found.
        since: Ids of the messages in newer checkpoints, except those of the current run.
    """

    def __init__(self, configurable: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self.start: Any = None
        self.since: set[str] = set()
        self._end = metadata.get("checkpoint_id")
        self._own: set[Any] = {(configurable.get("checkpoint_map") or {}).get("")}
        self._parents: set[Any] = set()
        self._has_input = False

    def ends_with(self, snapshot: Any) -> bool:
        """Process the next checkpoint; return True if earlier ones are not needed."""
        source = snapshot.metadata.get("source")
        id_ = snapshot.checkpoint["id"]
        parent = _parent_of(snapshot)
        is_made = source in ("update", "fork")
        if is_made and not self._end:
            self._end = id_
        if id_ == self._end:
            self._take_start(snapshot)
            self._end = parent
            return not (is_made and parent)
        if self._end is None and self._has_input:
            return True
        if id_ in self._own:
            self._own.add(parent)
        elif self._end is not None:
            self.since |= _message_ids(snapshot)
            self._parents.add(parent)
        self._has_input = self._has_input or source == "input"
        return False

    def _take_start(self, snapshot: Any) -> None:
        """Record a checkpoint that the caller went back to; the first one recorded stays `start`."""
        self.start = self.start or snapshot
        if snapshot.checkpoint["id"] in self._parents:
            self.since |= _message_ids(snapshot)


class MessageOrigins(NamedTuple):
    """The origins of a state's messages.

    Attributes:
        sources: By id, "input", or the source of the first checkpoint with the message: "loop", "update" or "fork".
        before: Ids of the messages that the thread had before this run.
        first: By id, the first checkpoint with the message.
    """

    sources: dict[str, str]
    before: set[str]
    first: dict[str, Any]

    @property
    def made_before(self) -> set[str]:
        """Ids of the messages that nodes of earlier runs made."""
        return {id_ for id_ in self.before if self.sources[id_] == "loop"}


async def find_origins(ids: Collection[str], *, is_outer: bool = False) -> MessageOrigins | None:
    """Find the first checkpoint of each message of a state; return None without a checkpointer.

    In a nested graph, only `is_outer` finds anything: it says that the state is that of the outermost graph. The
    origins of another graph's messages are unknown.
    """
    configurable, metadata = run_config()
    is_elsewhere = is_nested() and not is_outer
    if is_elsewhere or not hasattr(configurable.get("__pregel_checkpointer"), "list"):
        return None
    first: dict[str, Any] = {}
    parents: dict[Any, Any] = {}
    sources: dict[Any, Any] = {}
    before: set[str] = set()
    # The input and the step that reads it belong to this run; they may not be saved yet.
    step_before = metadata.get("langgraph_step", 0) - 3
    async with aclosing(_newest_first(configurable)) as snapshots:
        async for snapshot in snapshots:
            id_ = snapshot.checkpoint["id"]
            sources[id_] = snapshot.metadata.get("source")
            parents[id_] = _parent_of(snapshot)
            held = ids_of(snapshot.checkpoint["channel_values"].get("messages") or ()) & set(ids)
            if snapshot.metadata.get("step", 0) <= step_before:
                before |= held
            if not held:
                break
            first |= dict.fromkeys(held, id_)
    # The messages of an input are first in the checkpoint after it.
    found = {
        id_: "input" if sources.get(parents[at]) == "input" else str(sources[at])
        for id_, at in first.items()
    }
    return MessageOrigins(found, before, first)


async def is_at_breakpoint(configurable: Mapping[str, Any]) -> bool:
    """Return True if a graph that ended stopped at a breakpoint: the newest checkpoint has a node to run next."""
    async with aclosing(_newest_first(configurable)) as snapshots:
        async for newest in snapshots:
            return any(starmap(_is_trigger, newest.checkpoint["channel_values"].items()))
    return False


def _is_trigger(channel: str, value: Any) -> bool:
    """Return True if the value of a channel triggers a node of LangGraph.

    >>> _is_trigger("branch:to:b", None), _is_trigger("join:a+b:c", {"a"}), _is_trigger("__pregel_tasks", [])
    (True, False, False)
    """
    kind, _, rest = channel.partition(":")
    if kind == "join":
        awaited = rest.partition(":")[0].split("+")
        return bool(value == set(awaited))
    return channel.startswith("branch:to:") or (channel == "__pregel_tasks" and bool(value))


def _parent_of(snapshot: Any) -> Any:
    return ((snapshot.parent_config or {}).get("configurable") or {}).get("checkpoint_id")


def is_nested() -> bool:
    """Return True if the current run is nested in that of another graph."""
    return _INNER in str(run_config()[0].get("checkpoint_ns") or "")


async def _newest_first(configurable: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
    """Yield the checkpoints of the current run's thread, from pages that are each read to the end.

    An iterator that is left open may keep a lock of its saver: `AsyncSqliteSaver` would then block every further call.
    """
    saver: Any = configurable.get("__pregel_checkpointer")
    if not hasattr(saver, "list") or "thread_id" not in configurable:
        return
    thread = {"configurable": {"thread_id": str(configurable["thread_id"]), "checkpoint_ns": ""}}
    before: Any = None
    limit = _FIRST_CHECKPOINTS
    while page := await _checkpoints(saver, thread, before=before, limit=limit):
        for snapshot in page:
            yield snapshot
        if len(page) < limit:
            return
        before = page[-1].config
        limit = min(2 * limit, _MOST_CHECKPOINTS)


async def _checkpoints(saver: Any, thread: Any, *, before: Any, limit: int) -> list[Any]:
    """Return the newest checkpoints of a thread before one; a saver's sync iterator is read in a worker thread."""
    try:
        return await asyncio.to_thread(lambda: list(saver.list(thread, before=before, limit=limit)))
    except NotImplementedError:
        return [snapshot async for snapshot in saver.alist(thread, before=before, limit=limit)]


def _message_ids(saved: Any) -> set[str]:
    """Return the ids of the messages in a checkpoint, of those in its input and of those written after it."""
    values = saved.checkpoint["channel_values"]
    given = values.get("__start__")
    parts = [value for _, channel, value in saved.pending_writes or () if channel == "messages"]
    parts += [values.get("messages"), given.get("messages") if isinstance(given, Mapping) else None]
    each = (item for part in parts for item in (part if isinstance(part, list) else [part]))
    return ids_of(message for message in each if isinstance(message, BaseMessage))


def run_config() -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the configurable values and the metadata of the current run."""
    config: Mapping[str, Any] = var_child_runnable_config.get() or {}
    return config.get("configurable") or {}, config.get("metadata") or {}


def owner_of(scope: dict[str, str], conversation: str = "") -> str:
    """Return the owner that a state stores: a digest of the scope, then the conversation's id once it has messages."""
    return f"{digest_of(json.dumps(sorted(scope.items()))).hex()} {conversation}"


async def check_owner(chat: Conversation, owner: Any, *, is_begin: bool = False) -> None:
    """Raise an error for the state of another conversation; with `is_begin` also for that of a deleted one.

    Raises:
        InvalidScopeError: The checkpoint belongs to another scope.
        ConversationDeletedError: The conversation of the checkpoint was deleted, so its messages must not come back.
    """
    digest, _, conversation = str(owner or "").partition(" ")
    if digest and digest != owner_of(chat.scope).partition(" ")[0]:
        raise InvalidScopeError(
            "the checkpoint of this run belongs to another conversation: a checkpointer finds it "
            'by thread_id alone; make that unique, such as f"{user_id}:{thread_id}", pass the '
            "scope as context=..., and scope=lambda run: run.context to the middleware or the nodes"
        )
    if (
        is_begin
        and conversation
        and conversation != await host_of(chat).conversation_id(chat.scope)
    ):
        raise ConversationDeletedError(
            "the conversation of this checkpoint was deleted, but the checkpoint still has its "
            "messages; delete the thread, too: `await checkpointer.adelete_thread(thread_id)`"
        )
