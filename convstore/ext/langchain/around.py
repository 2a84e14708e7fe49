"""Which conversations the agents around this code work on.

Floor 7. An agent that a tool of another agent calls inherits its configuration, and with it the scope. Two agents that
write into one conversation at once would each be shown the other's half-done turn, so the inner one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from convstore.conversation import Conversation
from convstore.exceptions import InvalidScopeError

__all__ = ["check_alone", "working_on"]

_AROUND: ContextVar[tuple[tuple[Any, dict[str, str]], ...]] = ContextVar("convstore_agents_around", default=())


@contextmanager
def working_on(chat: Conversation) -> Iterator[None]:
    """While this runs, an agent that is called from here may not work on the same conversation."""
    token = _AROUND.set((*_AROUND.get(), (chat.store, chat.scope)))
    try:
        yield
    finally:
        _AROUND.reset(token)


def check_alone(chat: Conversation) -> None:
    """Make sure that no agent around works on this conversation.

    Raises:
        InvalidScopeError: One does.
    """
    if any(store is chat.store and scope == chat.scope for store, scope in _AROUND.get()):
        raise InvalidScopeError(
            f"this agent was called by another one that works on the same conversation ({chat.scope}); give it a "
            "conversation of its own: make the store with one more scope key, say 'agent', and each middleware with "
            "scope={'agent': '...'}; or leave the middleware out of the inner agent"
        )
