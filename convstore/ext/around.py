"""Find the context of an agent or a graph: the agent whose tool calls it, and the turn that its caller has entered.

An agent that is called by a tool of another agent inherits the configuration, and with it the scope. If both wrote into
one conversation, each would be shown the other's unfinished turn. So the inner agent works on a child conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage

from convstore import Conversation, ConversationStore
from convstore.exceptions import InvalidScopeError
from convstore.ext.checkpoints import run_config
from convstore.ext.run_scope import ScopeChoice, scope_of
from convstore.integration import HeldTurn, TurnAccess, log_of
from convstore.messages.filing import ids_of, last_question
from convstore.types import History
from convstore.values.scope import root_scope
from convstore.wire.history import open_turn_of

NO_STREAM = "nostream"
"""Tag of model calls that LangGraph does not stream; no draft of them is kept either."""

_Running = tuple[Conversation, tuple[str, ...] | None, str | None]
_OUTER: ContextVar[tuple[_Running, ...]] = ContextVar("convstore_outer_agents", default=())


@contextmanager
def working_on(
    chat: Conversation, call: tuple[str, ...] | None = None, *, turn_id: str | None = None
) -> Iterator[None]:
    """Remember this run, so that agents called inside it find their parent: its conversation, its call and its turn.

    `call` has the arguments of `Conversation.child` for a tool call; None while the model is called.
    """
    token = _OUTER.set((*_OUTER.get(), (chat, call, turn_id)))
    try:
        yield
    finally:
        _OUTER.reset(token)


def is_asking() -> bool:
    """Return True while the middleware of an agent calls its model; it keeps the draft and handles a stop itself."""
    running = _OUTER.get()
    return bool(running) and running[-1][1] is None


def conversation_of_run(
    store: ConversationStore,
    chosen: ScopeChoice | None,
    *,
    context: Any,
    config: Mapping[str, Any] | None = None,
) -> Conversation:
    """Return the conversation on which a run works.

    If an enclosing agent works on the same conversation, it is the child conversation of that agent's tool call. No
    I/O. `scope_of` finds the scope, in the configuration of the current run if `config` is None.

    Raises:
        InvalidScopeError: An enclosing agent works on the same conversation, outside a tool call.
        TurnLostError: This worker lost the turn within which the tool was called.
    """
    config = config or {"configurable": dict(run_config()[0])}
    scope = scope_of(store, context=context, config=config, chosen=chosen)
    return _own_conversation(store.conversation(**scope))


def _own_conversation(chat: Conversation) -> Conversation:
    """Return `chat`, or the child conversation of a tool call if the enclosing agent works on `chat` as well."""
    scope = tuple(chat.scope.items())
    for outer, call, _ in reversed(_OUTER.get()):
        around = tuple(outer.scope.items())
        if outer.store is chat.store and scope in (around, root_scope(around)):
            if call is None or scope != root_scope(around):
                raise InvalidScopeError(
                    f"this agent was called by another agent that works on the same conversation "
                    f"({chat.scope}), outside a tool call or under the same path; "
                    'give it a path of its own, such as scope={"path": "researcher"}, '
                    "or remove the middleware from it"
                )
            if turn := turn_around():
                turn.lease.check()
            return outer.child(*call)
    return chat


def turn_around() -> HeldTurn | None:
    """Return the turn in which an enclosing agent called the running tool; None outside such a call."""
    turns = (
        TurnAccess(outer).begun(turn_id) for outer, call, turn_id in reversed(_OUTER.get()) if call
    )
    return next((turn for turn in turns if turn), None)


async def with_turn_id(
    chat: Conversation, messages: Sequence[BaseMessage], history: History | None = None
) -> tuple[Sequence[BaseMessage], list[BaseMessage]]:
    """Give the question of a run the id of the turn that its caller has entered.

    Otherwise the log would have the question twice, and the turn would have no answer. A question that the log has
    keeps its id. In the conversation of a tool call, a question with the content of an unfinished turn continues that
    turn, because a tool that runs again may not know the id. One command if the ids differ, else no command.

    Returns:
        The messages, and the changes to the state that give it the new id.
    """
    held = TurnAccess(chat).entered()
    at = last_question(messages)
    if at is None:
        return messages, []
    turn_id = held.record.turn_id if held else await _broken_off(chat, messages[at], history)
    if not turn_id or turn_id in ids_of(messages):
        return messages, []
    if await log_of(chat).find([str(messages[at].id)]):
        return messages, []
    named = [messages[at].model_copy(update={"id": turn_id}), *messages[at + 1 :]]
    return [*messages[:at], *named], [
        *(RemoveMessage(str(message.id)) for message in messages[at:]),
        *named,
    ]


async def _broken_off(chat: Conversation, question: BaseMessage, history: History | None) -> str:
    """Return the id of the unfinished turn with the content of a question, if nothing in this run works on it.

    "" if there is no such turn, and in a conversation that does not belong to a tool call. One command if `history` is
    None, else no command.
    """
    calls = (outer.child(*call) for outer, call, _ in _OUTER.get() if call)
    if not any(child.scope == chat.scope for child in calls):
        return ""
    history = history or await chat.load_history()
    turn_id = open_turn_of(history)
    if not turn_id or TurnAccess(chat).held(turn_id):
        return ""
    logged = next((shown for shown in history.messages if shown.id == turn_id), None)
    return turn_id if logged and logged.content == question.content else ""


def redactor_of(drafts: bool | Callable[[str], str]) -> Callable[[str], str] | None:
    """Return the function that redacts drafts, from the option `drafts`; None if no drafts are kept."""
    if callable(drafts):
        return drafts
    return str if drafts else None
