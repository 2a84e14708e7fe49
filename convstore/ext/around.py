"""Find the context of an agent or a graph: the agent whose tool calls it, and the turn that its caller has entered.

An agent that a tool of another agent calls inherits its configuration, and with it the scope. If both wrote into one
conversation, each would be shown the other's unfinished turn. So the inner one works on a child of it.
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
"""Tag of model calls that LangGraph does not stream as the run's; they are not heard either."""

_Running = tuple[Conversation, tuple[str, ...] | None, str | None]
_OUTER: ContextVar[tuple[_Running, ...]] = ContextVar("convstore_outer_agents", default=())


@contextmanager
def working_on(
    chat: Conversation, call: tuple[str, ...] | None = None, *, turn_id: str | None = None
) -> Iterator[None]:
    """Remember this run, so that agents called inside it find their parent: its conversation, its call and its turn.

    A call is named by what `Conversation.child` takes; None while the model is called.
    """
    token = _OUTER.set((*_OUTER.get(), (chat, call, turn_id)))
    try:
        yield
    finally:
        _OUTER.reset(token)


def is_asking() -> bool:
    """Return True while the middleware of an agent calls its model, which hears the reply and ends at a stop itself."""
    running = _OUTER.get()
    return bool(running) and running[-1][1] is None


def conversation_of_run(
    store: ConversationStore,
    chosen: ScopeChoice | None,
    *,
    context: Any,
    config: Mapping[str, Any] | None = None,
) -> Conversation:
    """Return the conversation on which a run works; below the call that it answers if an agent around it works on it.

    No I/O. `scope_of` finds its scope, in the configuration of the current run if `config` is None.

    Raises:
        InvalidScopeError: An agent around this one works on the same conversation, outside a tool call.
        TurnLostError: The turn within which the tool was called is over for this worker.
    """
    config = config or {"configurable": dict(run_config()[0])}
    scope = scope_of(store, context=context, config=config, chosen=chosen)
    return _own_conversation(store.conversation(**scope))


def _own_conversation(chat: Conversation) -> Conversation:
    """Return the conversation of an agent: below the call that it answers if the agent around it works on this one."""
    scope = tuple(chat.scope.items())
    for outer, call, _ in reversed(_OUTER.get()):
        around = tuple(outer.scope.items())
        if outer.store is chat.store and scope in (around, root_scope(around)):
            if call is None or scope != root_scope(around):
                raise InvalidScopeError(
                    f"this agent was called by another one that works on the same conversation "
                    f"({chat.scope}), outside a tool call or under the same path; "
                    'give it a place of its own, say scope={"path": "researcher"}, '
                    "or leave the middleware out of it"
                )
            if turn := turn_around():
                turn.lease.check()
            return outer.child(*call)
    return chat


def turn_around() -> HeldTurn | None:
    """Return the turn within which an agent around this one has called the tool that runs; None without one."""
    turns = (
        TurnAccess(outer).begun(turn_id) for outer, call, turn_id in reversed(_OUTER.get()) if call
    )
    return next((turn for turn in turns if turn), None)


async def with_turn_id(
    chat: Conversation, messages: Sequence[BaseMessage], history: History | None = None
) -> tuple[Sequence[BaseMessage], list[BaseMessage]]:
    """Give the question of a run the id of the turn that its caller has entered; return messages and changes.

    Without the id the log would have the question twice, and the turn no answer. A question that the log has keeps its
    own. One command if the ids differ, else none. Below a call, the same words as those of a turn that broke off or
    waits there continue it: a tool that runs again may have no id for them.
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
    """Return the id of a turn that asks the same as a question, is not over, and that nothing in this run works on.

    "" without one, and in a conversation that does not belong to a call. One command without a view.
    """
    calls = (outer.child(*call) for outer, call, _ in _OUTER.get() if call)
    if not any(child.scope == chat.scope for child in calls):
        return ""
    history = history or await chat.load_history()
    turn_id = open_turn_of(history)
    if not turn_id or TurnAccess(chat).held(turn_id):
        return ""
    asked = next((shown for shown in history.messages if shown.id == turn_id), None)
    return turn_id if asked and asked.content == question.content else ""


def redactor_of(drafts: bool | Callable[[str], str]) -> Callable[[str], str] | None:
    """Return what redacts the drafts of an agent or a graph; None for no drafts."""
    if callable(drafts):
        return drafts
    return str if drafts else None
