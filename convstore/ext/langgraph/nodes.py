"""The nodes: one loads the view of a conversation, one appends to its log.

Floor 7. Whose conversation it is they learn from the run, see `run_scope`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_config
from langgraph.runtime import get_runtime

from convstore.conversation import Conversation
from convstore.exceptions import BatchTooLargeError, InvalidInputError
from convstore.ext.ids import ids_of, with_own_call_ids
from convstore.ext.langgraph.state import (
    ConversationState,
    LoadedView,
    answer_in,
    compose,
    loaded_of,
    logged_of,
    messages_of,
    view_of,
)
from convstore.ext.run_scope import ScopeChoice, check_choice, scope_of
from convstore.store import ConversationStore
from convstore.values.models import History
from convstore.values.policy import HistoryPolicy, check_policy

__all__ = ["AppendNode", "LoadNode", "append_node", "load_node"]


def load_node(
    store: ConversationStore,
    *,
    scope: ScopeChoice | None = None,
    policy: HistoryPolicy | None = None,
    append_first: bool = False,
) -> LoadNode:
    """A node that loads the view, for `view_of`, and lets messages of earlier turns leave the state.

    A message that an earlier run left behind unlogged, because it broke off, stays in the state and is shown, until an
    append node has logged it. If the log already has the question of this run, because it is asked again under its id,
    the view goes on from there, and if it has the answer too, that is put into the state: see `answer_of`. One load,
    and nothing is written, unless `append_first`.

    Args:
        store: Where the conversations are; made by `connect` if the graph is to be called sync.
        scope: See `scope_of`: by default the run's context and ``config["configurable"]`` say whose conversation it is.
        policy: What the view may hold; None takes the store's.
        append_first: Append what the state has that is not in the log, the question, before the view is loaded.

    Raises:
        InvalidScopeError: `scope` cannot be one; from the node, that the run lacks a key.
        InvalidInputError: `policy` is none; from the node, that the state has no messages, or some without ids.
        ContentConflictError: From the node: the log has another message under the question's id.
        SyncUnsupportedError: From the node, called sync on a store that works on your client.
    """
    return LoadNode(store, scope=scope, policy=policy, append_first=append_first)


def append_node(
    store: ConversationStore,
    *,
    scope: ScopeChoice | None = None,
    unencodable: Literal["raise", "omit"] = "raise",
    on_source_clash: Literal["raise", "renumber"] = "raise",
) -> AppendNode:
    """A node that appends the messages of the state that are not in the log yet, as one batch.

    What is larger than 1 MB, large tool results apart, becomes several batches, in order. The node may stand
    wherever the log is to catch up, also more than once: behind the last node it logs a whole turn at once, behind
    a node of tools it logs each step. A call whose id is empty, or that of another call of its message, gets one of
    its own in state and log, and so have the results that are there by then. A node that is run again appends
    nothing twice. What was appended is final: a message that a later node changes under its id stays in the log as
    it was.

    Args:
        store: Where the conversations are; made by `connect` if the graph is to be called sync.
        scope: As in `load_node`.
        unencodable: As in `Conversation.append`.
        on_source_clash: As in `Conversation.append`.

    Raises:
        InvalidScopeError: `scope` cannot be one; from the node, that the run lacks a key.
        InvalidInputError: From the node: the state has no messages, or some without ids, or see `Conversation.append`.
        SyncUnsupportedError: From the node, called sync on a store that works on your client.
    """
    return AppendNode(store, scope=scope, unencodable=unencodable, on_source_clash=on_source_clash)


class _Node(Runnable[Any, dict[str, Any]]):
    """Finds the conversation of a run and works on it, sync or async."""

    def __init__(self, store: ConversationStore, *, scope: ScopeChoice | None, name: str) -> None:
        if not isinstance(store, ConversationStore):
            raise InvalidInputError(f"store is a ConversationStore, not {type(store).__name__}")
        self.store, self.scope, self.name = store, check_choice(store, scope), name

    def __call__(self, state: ConversationState) -> dict[str, Any]:
        """`invoke`; its annotation tells LangGraph which channels the node has."""
        return self.invoke(state)

    def invoke(
        self,
        input: Any,  # noqa: A002 - the name is LangChain's
        config: RunnableConfig | None = None,
        **kwargs: Any,  # noqa: ARG002 - as above
    ) -> dict[str, Any]:
        """The update of a state, for a graph that is called sync; on stores made by `connect`."""
        scope = self._scope_of_run(config)
        return self.store.run_sync(
            lambda twin: self._update(twin.conversation(**scope), input), instead="`await graph.ainvoke(...)`"
        )

    async def ainvoke(
        self,
        input: Any,  # noqa: A002 - the name is LangChain's
        config: RunnableConfig | None = None,
        **kwargs: Any,  # noqa: ARG002 - as above
    ) -> dict[str, Any]:
        """The update of a state."""
        return await self._update(self.store.conversation(**self._scope_of_run(config)), input)

    @abstractmethod
    async def _update(self, chat: Conversation, state: Any) -> dict[str, Any]:
        """Return the update of the state."""

    def _scope_of_run(self, config: RunnableConfig | None) -> dict[str, str]:
        context, ambient = _surroundings()
        return scope_of(self.store, context=context, config=config or ambient, chosen=self.scope)


class LoadNode(_Node):
    """The node that `load_node` returns."""

    def __init__(
        self,
        store: ConversationStore,
        *,
        scope: ScopeChoice | None = None,
        policy: HistoryPolicy | None = None,
        append_first: bool = False,
    ) -> None:
        super().__init__(store, scope=scope, name="load")
        self.policy, self.append_first = check_policy(policy) or store.policy, append_first

    def view_of(self, state: Any, config: RunnableConfig | None = None) -> list[BaseMessage]:
        """`aview_of` for sync nodes; on stores made by `connect`."""
        if loaded_of(state) is not None:
            return view_of(state)
        scope = self._scope_of_run(config)
        return self.store.run_sync(
            lambda twin: self._loaded_now(twin.conversation(**scope), state), instead="`await load.aview_of(state)`"
        )

    async def aview_of(self, state: Any, config: RunnableConfig | None = None) -> list[BaseMessage]:
        """`view_of`, and where the state has no view, as in a node that is resumed, one is loaded for this call.

        Args:
            state: As a node gets it.
            config: That of the run; in a node of a graph it is known.
        """
        if loaded_of(state) is not None:
            return view_of(state)
        return await self._loaded_now(self.store.conversation(**self._scope_of_run(config)), state)

    async def _loaded_now(self, chat: Conversation, state: Any) -> list[BaseMessage]:
        messages = messages_of(state)
        history = await chat.load_history(self.policy)
        return compose(LoadedView(history, self.policy, frozenset(logged_of(state))), messages)

    async def _update(self, chat: Conversation, state: Any) -> dict[str, Any]:
        messages, logged = messages_of(state), logged_of(state)
        renamed: list[BaseMessage] = []
        if self.append_first and (new := [each for each in messages if each.id not in logged]):
            renamed = await _append_named(chat, new)
            logged |= ids_of(new)
        history = await chat.load_history(self.policy)
        if again := _asked_again(history, messages, logged):
            await chat.append(again)  # writes nothing; refuses other content under the same id
        logged |= ids_of(messages) & ids_of(history.messages)
        gone = [each for each in messages[: _turn_start(messages)] if each.id in logged]
        answers = await _missing_answer(chat, history, messages)
        logged |= ids_of(answers)
        stays = ids_of([*messages, *answers]) - ids_of(gone)
        return {
            "messages": [*renamed, *(RemoveMessage(str(each.id)) for each in gone), *answers],
            "convstore_view": LoadedView(history, self.policy, frozenset(logged)),
            "convstore_logged": {each: each in stays for each in sorted(logged)},
        }


class AppendNode(_Node):
    """The node that `append_node` returns."""

    def __init__(
        self,
        store: ConversationStore,
        *,
        scope: ScopeChoice | None = None,
        unencodable: Literal["raise", "omit"] = "raise",
        on_source_clash: Literal["raise", "renumber"] = "raise",
    ) -> None:
        super().__init__(store, scope=scope, name="append")
        self.unencodable: Literal["raise", "omit"] = unencodable
        self.on_source_clash: Literal["raise", "renumber"] = on_source_clash

    async def _update(self, chat: Conversation, state: Any) -> dict[str, Any]:
        logged = logged_of(state)
        new = [message for message in messages_of(state) if message.id not in logged]
        if not new:
            return {}
        renamed = await _append_named(chat, new, unencodable=self.unencodable, on_source_clash=self.on_source_clash)
        update = {"convstore_logged": [str(message.id) for message in new]}
        return {**update, "messages": renamed} if renamed else update


async def _append_named(chat: Conversation, messages: Sequence[BaseMessage], **options: Any) -> list[BaseMessage]:
    """Append messages, each call under an id of its own; gives those that changed by this."""
    named = with_own_call_ids(messages)
    await _append(chat, named, **options)
    return [message for message, before in zip(named, messages, strict=True) if message is not before]


async def _append(chat: Conversation, messages: Sequence[BaseMessage], **options: Any) -> None:
    """Append messages as one batch, or in order in as few as it takes where one would be too large."""
    try:
        await chat.append(messages, **options)
    except BatchTooLargeError:
        if len(messages) == 1:
            raise
        half = len(messages) // 2
        await _append(chat, messages[:half], **options)
        await _append(chat, messages[half:], **options)


def _surroundings() -> tuple[Any, RunnableConfig | None]:
    """Context and configuration of the run that this code is part of; nothing outside of one."""
    try:
        config = get_config()
        runtime = get_runtime()
    except (RuntimeError, KeyError):  # no run, or one of another Runnable
        return None, None
    return getattr(runtime, "context", None), config


def _turn_start(messages: Sequence[BaseMessage]) -> int:
    """Return the index where the turn in progress begins: the last human message, or the first message."""
    places = [place for place, message in enumerate(messages) if isinstance(message, HumanMessage)]
    return places[-1] if places else 0


def _asked_again(history: History, messages: Sequence[BaseMessage], logged: set[str]) -> list[BaseMessage]:
    """Questions of a state that the log turns out to have, or has in other words."""
    shown = {message.id: message for message in history.messages}
    questions = [each for each in messages if isinstance(each, HumanMessage) and each.id in shown]
    return [each for each in questions if each.id not in logged or each != shown[each.id]]


async def _missing_answer(chat: Conversation, history: History, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The answer to the question of a state that the log has and the state has not, in full."""
    answer = answer_in(history, messages)
    if answer is None or answer.id in ids_of(messages):
        return []
    if answer.id not in history.report.placeholders:
        return [answer]
    [record] = await chat.get_tool_messages([str(answer.id)])
    return [answer.model_copy(update={"content": record.content})]
