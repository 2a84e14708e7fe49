"""LangChain's ``BaseChatMessageHistory`` on a conversation, for chains that still use ``RunnableWithMessageHistory``.

LangChain has deprecated both classes; new code calls `Conversation` itself, or uses the middleware. A history returns
the view, and messages added to it go into the log. A message that exists only in views, such as the note, the summary
or the stub of a result, is never appended.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from inspect import Parameter, Signature
from itertools import takewhile
from typing import Any, Literal, TypeVar, cast

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import (
    ConfigurableFieldSpec,
    Runnable,
    RunnableConfig,
    RunnableGenerator,
    RunnableLambda,
)
from langchain_core.runnables.history import RunnableWithMessageHistory

from convstore import Conversation, ConversationStore
from convstore.edges import (
    OnDropped,
    check_conversation,
    check_list,
    check_store,
    read_current,
    report_dropped,
)
from convstore.exceptions import ContentConflictError, InvalidInputError, InvalidScopeError
from convstore.ext.repeated_messages import changed_messages, with_id, without_repeats
from convstore.integration import TurnAccess, run_sync
from convstore.messages.filing import last_question, last_turn_of
from convstore.messages.provenance import kind_of
from convstore.messages.tokens import count
from convstore.types import History
from convstore.values.explanations import ADDED
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.scope import check_one_of, check_partial_scope
from convstore.values.stamps import ViewStamp

_Result = TypeVar("_Result")


class ChatMessageHistory(BaseChatMessageHistory):
    """A conversation as LangChain's chat message history.

    `messages` is the view of `Conversation.load_history`; adding messages appends them to the log. The constructor does
    no I/O. Methods that begin with ``a`` work with every store. The others need a store made by
    `ConversationStore.connect`, and block a running event loop.

    Args:
        chat: The conversation.
        policy: The policy of the view; None for the store's.
        clear: The effect of `clear`. "delete" removes the conversation permanently, as other histories do. "rewind"
            removes its messages from views and listings and keeps them in the log; `Conversation.undo_rewind` restores
            them.
        on_dropped: Called for each view with the parts that it leaves out for the `provider` of its policy; not called
            if it leaves nothing out.
    """

    def __init__(
        self,
        chat: Conversation,
        policy: HistoryPolicy | None = None,
        *,
        clear: Literal["delete", "rewind"] = "delete",
        on_dropped: OnDropped | None = None,
    ) -> None:
        super().__init__()
        check_conversation(chat)
        check_one_of(clear, "delete", "rewind", name="clear")
        self.chat = chat
        self.policy = check_policy(policy)
        self._clear: Literal["delete", "rewind"] = clear
        self._on_dropped = on_dropped

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.chat!r})"

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """Load and return the view for the next model call; see `Conversation.load_history`.

        Raises:
            SyncUnsupportedError: The store works on the caller's async client; use `aget_messages`.
        """
        return self._wait("aget_messages", self._load)

    async def aget_messages(self) -> list[BaseMessage]:
        """Load and return the view for the next model call; see `Conversation.load_history`."""
        return await self._load(self.chat)

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages as `aadd_messages` does.

        Raises:
            SyncUnsupportedError: The store works on the caller's async client; use `aadd_messages`.
        """
        self._wait("aadd_messages", lambda chat: self._add(chat, messages))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages to the log: all of them or none, once, in order; see `Conversation.append`.

        Messages that come back from a view are skipped: those that exist only in views, copies with a stub or a
        placeholder as content, and messages that the log has already.

        Raises:
            ContentConflictError: An id is in the log with other content, which is not the content in views either.
            ConvstoreError: As `Conversation.append`.
        """
        await self._add(self.chat, messages)

    def clear(self) -> None:
        """Delete or rewind the conversation as `aclear` does.

        Raises:
            SyncUnsupportedError: The store works on the caller's async client; use `aclear`.
        """
        self._wait("aclear", self._empty)

    async def aclear(self) -> None:
        """Delete the conversation permanently, or rewind all of it with ``clear="rewind"``; it then has no messages."""
        await self._empty(self.chat)

    async def _load(self, chat: Conversation) -> list[BaseMessage]:
        return (await self._load_view(chat)).messages

    async def _load_view(self, chat: Conversation) -> History:
        history = await chat.load_history(self.policy)
        report_dropped(history.dropped, self._on_dropped)
        return history

    async def _add(
        self, chat: Conversation, messages: Sequence[BaseMessage], stamp: ViewStamp | None = None
    ) -> None:
        given = check_list(messages, BaseMessage, name="messages")
        new = [message for message in given if kind_of(message) not in ADDED]
        if not new:
            return
        try:
            await self._append(chat, new, stamp)
        except ContentConflictError:
            rest = await changed_messages(chat, new)
            if len(rest) == len(new):
                raise
            if rest:
                await self._append(chat, rest, stamp)

    async def _append(
        self, chat: Conversation, messages: Sequence[BaseMessage], stamp: ViewStamp | None
    ) -> None:
        await chat.append(messages, stamp=stamp)

    @read_current
    async def _empty(self, chat: Conversation) -> None:
        if self._clear == "delete":
            await chat.delete()
            return
        for first in await chat.list_messages(after=0, limit=1):
            await chat.rewind(before_id=str(first.message.id))

    def _wait(
        self, async_name: str, work: Callable[[Conversation], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        instead = f"`await history.{async_name}(...)`, and `ainvoke` of what uses the history"
        return run_sync(self.chat, work, instead=instead)


class _RunHistory(ChatMessageHistory):
    """The history of one run of a `RunnableWithMessageHistory`.

    The runnable reads the messages before and after the run, and treats those beyond the first count as new. So both
    reads return the same view, even if other writers append meanwhile. An agent's output repeats its input; repeats are
    skipped. The runnable only logs an error of adding messages, so the error is kept for `check`. The answer gets the
    stamp of the view.
    """

    _view: History | None = None
    _problem: Exception | None = None

    async def _load(self, chat: Conversation) -> list[BaseMessage]:
        if self._view is None:
            self._view = await self._load_view(chat)
        return list(self._view.messages)

    async def _add(
        self, chat: Conversation, messages: Sequence[BaseMessage], stamp: ViewStamp | None = None
    ) -> None:
        given = check_list(messages, BaseMessage, name="messages")
        new = [with_id(message) for message in without_repeats(given)]
        if self._view is not None:
            inputs = list(takewhile(lambda message: not isinstance(message, AIMessage), new))
            stamp = self._view.stamp_for(
                [*self._view.messages, *inputs],
                adapted=bool(inputs),
                turn=last_turn_of(inputs),
                size_of=partial(count, chat.store.token_counter),
            )
        self._view = None
        try:
            await super()._add(chat, new, stamp)
        except Exception as error:
            self._problem = error
            raise

    async def _append(
        self, chat: Conversation, messages: Sequence[BaseMessage], stamp: ViewStamp | None
    ) -> None:
        await TurnAccess(chat).append_run(messages, stamp=stamp)

    async def _empty(self, chat: Conversation) -> None:
        self._view = None
        await super()._empty(chat)

    async def acheck_question(self, value: Any, key: str | None) -> Any:
        """Return the input of a run; refuse a question that its append would refuse, before a model is asked.

        `key` names the messages in the input; None if there is no such key.

        Raises:
            ConflictError: As `TurnAccess.is_asked`.
        """
        return await self._check_question(self.chat, value, key)

    def check_question(self, value: Any, key: str | None) -> Any:
        """Check the question of a run as `acheck_question` does."""
        return self._wait("aget_messages", lambda chat: self._check_question(chat, value, key))

    async def _check_question(self, chat: Conversation, value: Any, key: str | None) -> Any:
        question = _question_in(value, key)
        if question is None or not question.id:
            return value
        try:
            await TurnAccess(chat).is_asked(question)
        except ContentConflictError:
            if await changed_messages(chat, [question]):
                raise
        return value

    def check(self) -> None:
        """Raise the error of adding the run's messages, if there was one."""
        if self._problem is not None:
            raise self._problem


class SessionHistories:
    """A ``get_session_history`` for `RunnableWithMessageHistory`, which returns the history of a run's conversation.

    If one scope key is not given here, each call has one value, the ``session_id`` of the run's configuration. If
    several are not given, each call has all their values by name, see `config`. Each history is for one run: the view
    is loaded once, so that nothing is lost or duplicated if other writers append to the conversation meanwhile.

    Args:
        store: The store of the conversations.
        policy: The policy of views; None for the store's.
        clear: The effect of ``clear``, see `ChatMessageHistory`.
        scope: Values of scope keys that are the same for all runs, such as the logged-in user.
        on_dropped: As in `ChatMessageHistory`.

    Raises:
        InvalidInputError: `policy` is not a policy.
        InvalidScopeError: A key of `scope` is unknown, or a value invalid.
    """

    def __init__(
        self,
        store: ConversationStore,
        *,
        policy: HistoryPolicy | None = None,
        clear: Literal["delete", "rewind"] = "delete",
        scope: Mapping[str, str] | None = None,
        on_dropped: OnDropped | None = None,
    ) -> None:
        check_store(store)
        self._store = store
        self._on_dropped = on_dropped
        self._policy = check_policy(policy)
        self._clear: Literal["delete", "rewind"] = clear
        self._scope = dict(check_partial_scope(store.scope_keys, {} if scope is None else scope))
        self._keys = [key for key in store.scope_keys if key not in self._scope]
        # RunnableWithMessageHistory reads the names of the parameters.
        kind = Parameter.POSITIONAL_OR_KEYWORD if len(self._keys) == 1 else Parameter.KEYWORD_ONLY
        names = ["session_id"] if len(self._keys) == 1 else self._keys
        self.__signature__ = Signature([Parameter(name, kind, annotation=str) for name in names])

    @property
    def config(self) -> list[ConfigurableFieldSpec]:
        """The scope keys that each run has to set, for ``history_factory_config``."""
        return [
            ConfigurableFieldSpec(
                id=key,
                annotation=str,
                name=key,
                description="Scope of the conversation.",
                default="",
            )
            for key in self._keys
        ]

    def __call__(self, *session_id: str, **values: str) -> ChatMessageHistory:
        """Return the history of a run.

        Raises:
            InvalidScopeError: A value is missing or invalid.
        """
        if len(self._keys) == 1 and "session_id" in values:
            session_id = (values.pop("session_id"),)
        if len(session_id) > 1 or (session_id and len(self._keys) != 1):
            raise InvalidScopeError(f"pass {', '.join(self._keys)} by name")
        values |= dict(zip(self._keys, session_id, strict=False))
        if repeated := self._scope.keys() & values.keys():
            raise InvalidScopeError(
                f"{min(repeated)} was given for all runs of these histories; do not pass it again"
            )
        return _RunHistory(
            self._store.conversation(**self._scope, **values),
            self._policy,
            clear=self._clear,
            on_dropped=self._on_dropped,
        )


def with_message_history(
    runnable: Any,
    store: ConversationStore,
    *,
    policy: HistoryPolicy | None = None,
    scope: Mapping[str, str] | None = None,
    on_dropped: OnDropped | None = None,
    **options: Any,
) -> RunnableWithMessageHistory:
    """Return a chain or model that reads the view of its conversation and appends its messages to the log.

    Each run sets the store's scope keys in ``config["configurable"]``. Input and output of a run are appended together
    at its end; a run that fails appends nothing. An error of the append is raised at the end of the run, whereas
    `RunnableWithMessageHistory` alone would only log it. A question whose id the log has already is refused before the
    model is asked: with a `TurnClosedError` if it has an answer, which `Conversation.get_turn` returns.

    Args:
        runnable: As in `RunnableWithMessageHistory`.
        store: The store of the conversations.
        policy: The policy of views; None for the store's.
        scope: Values of scope keys that are the same for all runs, which then do not set them.
        on_dropped: As in `ChatMessageHistory`.
        options: As in `RunnableWithMessageHistory`: ``input_messages_key``, ``history_messages_key`` and others.
    """
    if not isinstance(runnable, Runnable):
        raise InvalidInputError(
            f"runnable must be a chain or a model, a Runnable, not {type(runnable).__name__}"
        )
    histories = SessionHistories(store, policy=policy, scope=scope, on_dropped=on_dropped)
    chain = RunnableWithMessageHistory(
        runnable, histories, history_factory_config=histories.config, **options
    )
    # Its types do not know that a generator may take the configuration.
    steps = cast(Any, _checked), cast(Any, _achecked)
    first = _question_check(options.get("input_messages_key"))
    chain.bound = first | chain.bound | RunnableGenerator[Any, Any](*steps, name="check_history")
    return chain


def _question_check(key: str | None) -> Runnable[Any, Any]:
    """Return the step that checks the question of a run, whose messages the input has under a key, if there is one."""

    def check(value: Any, config: RunnableConfig) -> Any:
        return _history_of(config).check_question(value, key)

    async def acheck(value: Any, config: RunnableConfig) -> Any:
        return await _history_of(config).acheck_question(value, key)

    return RunnableLambda(check, acheck, name="check_question")


def _question_in(value: Any, key: str | None) -> BaseMessage | None:
    """Return the question at the end of a run's input; None without one."""
    given = value
    if isinstance(value, dict):
        only = next(iter(value)) if len(value) == 1 else "input"
        given = value.get(key or only)
    if isinstance(given, BaseMessage):
        given = [given]
    if not isinstance(given, list | tuple):
        return None
    messages = [part for part in given if isinstance(part, BaseMessage)]
    at = last_question(messages)
    if at is None or any(isinstance(message, AIMessage) for message in messages[at:]):
        return None
    return messages[at]


def _history_of(config: RunnableConfig) -> _RunHistory:
    history: _RunHistory = config.get("configurable", {})["message_history"]
    return history


def _checked(output: Iterator[Any], config: RunnableConfig) -> Iterator[Any]:
    """Yield the output unchanged; at its end, raise the error of adding it to the history."""
    yield from output
    _history_of(config).check()


async def _achecked(
    output: AsyncIterator[Any], config: RunnableConfig
) -> AsyncGenerator[Any, None]:
    """Yield the output unchanged; at its end, raise the error of adding it to the history."""
    async for part in output:
        yield part
    _history_of(config).check()
