"""What a tool does with one conversation, for async and sync callers alike.

Layer 5, below the handle and what an agent registers. Bound to a store and a scope, which no model is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from convstore.models import SourcePage
from convstore.scopes import Scope
from convstore.services.request import Request
from convstore.tools import ReadBack

if TYPE_CHECKING:
    from convstore.store import ConversationStore

__all__ = ["both_ways", "read_back"]

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def both_ways(
    store: ConversationStore, work: Callable[[ConversationStore, _Asked], Coroutine[Any, Any, _Answer]]
) -> tuple[Callable[[_Asked], Coroutine[Any, Any, _Answer]], Callable[[_Asked], _Answer]]:
    """Some work for async callers, on the store, and for sync callers, on its twin."""
    return lambda asked: work(store, asked), lambda asked: store.run_sync(lambda twin: work(twin, asked))


def read_back(store: ConversationStore, scope: Scope) -> ReadBack:
    """What the tool reads a conversation with."""

    async def read(where: ConversationStore, request: Request) -> tuple[str, SourcePage]:
        parts = await where.parts()
        return await parts.pager.read(scope, request)

    return ReadBack(*both_ways(store, read))
