"""A `HistoryProvider` of Microsoft's Agent Framework on a convstore's conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Literal

from agent_framework import (
    AgentSession,
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    FunctionTool,
    HistoryProvider,
    Message,
    ResponseStream,
    SessionContext,
)
from langchain_core.messages import BaseMessage

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.edges import (
    OnDropped,
    as_mapping,
    check_list,
    check_store,
    read_current,
    report_dropped,
)
from convstore.exceptions import InvalidScopeError
from convstore.ext.microsoft.clients import client_of
from convstore.ext.microsoft.messages import (
    calls_and_results,
    from_log,
    question_of,
    reply_of,
    set_replies,
    to_log,
)
from convstore.integration import TurnAccess, agent_tools
from convstore.messages.call_ids import with_own_call_ids
from convstore.messages.provenance import without_generated_results
from convstore.types import Dropped, ProviderRules
from convstore.values.json_form import sendable_message
from convstore.values.policy import check_policy
from convstore.values.providers import rules_of_framework
from convstore.values.scope import as_scope, check_one_of
from convstore.wire.edits import RequestEdits, kept_ids

_RUN: ContextVar[tuple[Any, Sequence[Message]]] = ContextVar("_RUN", default=(None, ()))
"""The running agent, None outside a run, and its input; the framework does not pass them to `get_messages`."""


class ConvstoreHistoryProvider(HistoryProvider):
    """Keeps the messages of a session in the log, each once, and gives an agent the view of them.

    A repeated save of the same messages writes nothing. Agents get the tool that reads left out content again.

    Scope keys without a value here are taken from ``session.state[source_id]``, which the application sets. If it does
    not have all of them, the last missing key gets the session's id.

    Args:
        store: The store of the conversations.
        view: "policy" gives an agent the view; "all" every active message, in full, without the tool. With "all",
            `get_messages` outside a run returns messages as they were saved, unless `provider` is given.
        policy: Limits of the view; None for the store's.
        artifact: Show the model the rest of artifacts when it reads back, as `retrieve_previous_sources_tool` does.
        source_id: Name of the provider in a session.
        provider: The rules of the model's provider, by name or your own, for a model whose name does not imply them.
        on_dropped: Called for each load with the parts of the log that it lacks: those that the framework does not
            support, such as the reasoning of a message that the application appended itself, and reasoning of another
            provider's model. Not called if nothing is left out.
        options: ``store_inputs`` and the other settings of `HistoryProvider`.
        scope: Values of scope keys, such as the user's.

    Raises:
        InvalidInputError: `view` or `artifact` is invalid, or `provider` is not known.
        InvalidScopeError: A scope key is unknown; from a run: a scope key has no value.
    """

    def __init__(
        self,
        store: ConversationStore,
        *,
        view: Literal["policy", "all"] = "policy",
        policy: HistoryPolicy | None = None,
        artifact: bool = False,
        source_id: str = "convstore",
        provider: str | ProviderRules | None = None,
        on_dropped: OnDropped | None = None,
        options: dict[str, Any] | None = None,
        **scope: str,
    ) -> None:
        super().__init__(source_id, **as_mapping(options, name="options"))
        check_store(store)
        check_one_of(view, "policy", "all", name="view")
        if unknown := set(scope) - set(store.scope_keys):
            raise InvalidScopeError(
                f"the store has the scope keys {store.scope_keys}, not {sorted(unknown)}"
            )
        self._store = store
        self._view = view
        self._policy = check_policy(policy)
        own_tools = agent_tools(store, (), artifact=artifact)
        self._own_tools = own_tools if view == "policy" else []
        self._scope = scope
        rules_of_framework(provider, None)  # refuses a wrong name
        self._provider = provider
        self._on_dropped = on_dropped

    def conversation(
        self, session_id: str | None, state: dict[str, Any] | None = None
    ) -> Conversation:
        """Return convstore's handle of a session's conversation; no I/O.

        Args:
            session_id: Id of the session.
            state: ``session.state.get(source_id)``.

        Raises:
            InvalidScopeError: A scope key has no value, or the state is not a dict.
        """
        known = as_scope(state or {})
        values: dict[str, Any] = {key: known[key] for key in self._store.scope_keys if key in known}
        values |= self._scope
        if left := [key for key in self._store.scope_keys if key not in values]:
            values[left[-1]] = session_id
        return self._store.conversation(**values)

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **_: Any
    ) -> list[Message]:
        """Return the view of a session, or all its active messages."""
        return await self._messages(session_id, state)

    @read_current
    async def _messages(
        self, session_id: str | None, state: dict[str, Any] | None
    ) -> list[Message]:
        chat = self.conversation(session_id, state)
        if self._view == "policy":
            found = (await chat.load_history(self._policy)).messages
        else:
            found = [message async for turn in chat.turns() for message in turn.messages]
        agent, given = _RUN.get()
        if self._view == "policy" or agent or self._provider is not None:
            shown, dropped = self._request(found, agent, given)
        else:
            shown, dropped = from_log(map(sendable_message, found))
        report_dropped(dropped, self._on_dropped)
        return shown

    def _request(
        self, found: Sequence[BaseMessage], agent: Any, given: Sequence[Message]
    ) -> tuple[list[Message], list[Dropped]]:
        """Return messages by the rules of an agent's model, to precede its input, and the parts that they lack."""
        model = _model_of(agent)
        rules = rules_of_framework(self._provider, model)
        calls, results = calls_and_results(given)
        own = with_own_call_ids(without_generated_results(found, calls=calls, results=results))
        edits = RequestEdits(rules, asked=model, kept=kept_ids(own, set(results)))
        shown, dropped = from_log(map(sendable_message, own), edits, client_of(agent))
        return shown, [*dropped, *edits.dropped]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Append messages, all or none of them; messages that the log has already are skipped.

        Raises:
            TurnClosedError: The log has another answer to a question with this `message_id`; `get_turn` has it.
        """
        chat = self.conversation(session_id, state)
        given = check_list(messages, Message, name="messages")
        new = [part for message in given for part in to_log(message)]
        await TurnAccess(chat).append_run(new)

    async def before_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Give a run the view, and the tool that reads back.

        A question with its own `message_id` that the log has is part of the view, so it is removed from the input.

        Raises:
            TurnClosedError: The log has an answer to this question.
            ConflictError: The log has another message under its id, or a later question; or it was rewound.
        """
        chat = self.conversation(context.session_id, state)
        question = question_of(context.input_messages)
        if question is not None and await TurnAccess(chat).is_asked(to_log(question)[0]):
            given = context.input_messages
            context.input_messages = [message for message in given if message is not question]
        token = _RUN.set((agent, context.input_messages))
        try:
            await super().before_run(agent=agent, session=session, context=context, state=state)
        finally:
            _RUN.reset(token)
        tools = [_tool(bind(chat)) for _, bind in self._own_tools]
        context.extend_tools(self.source_id, tools)
        context.extend_middleware(self.source_id, _Replies())

    async def after_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Store the messages that a run has added, each answer with its model, token counts and finish reason."""
        if context.response:
            replies = [
                reply
                for listener in context.middleware.get(self.source_id, ())
                if isinstance(listener, _Replies)
                for reply in listener.found
            ]
            set_replies(context.response.messages, replies, reply_of(context.response))
        await super().after_run(agent=agent, session=session, context=context, state=state)


class _Replies(ChatMiddleware):
    """Records the values of each model reply in a run, because the framework only reports the sum of their tokens."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Record a reply; for a stream, record it when the stream is complete."""
        await call_next()
        if isinstance(context.result, ResponseStream):
            context.result.with_result_transform(self._keep)
        elif context.result is not None:
            self._keep(context.result)

    def _keep(self, reply: ChatResponse) -> None:
        self.found.append(reply_of(reply))


def _tool(tool: Any) -> FunctionTool:
    """Return a tool of convstore as a tool of the framework."""
    spec = tool.to_openai()["function"]

    async def read(**arguments: Any) -> str:
        return str(await tool.ainvoke(arguments))

    return FunctionTool(
        name=spec["name"],
        description=spec["description"],
        func=read,
        input_model=spec["parameters"],
    )


def _model_of(agent: Any) -> str:
    """Return the name of an agent's model; "" if it is not set."""
    options = getattr(agent, "default_options", None)
    name = options.get("model") if isinstance(options, dict) else None
    return name if isinstance(name, str) else ""
