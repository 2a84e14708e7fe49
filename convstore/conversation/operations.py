"""The operations of a store that an observer sees, such as appends and searches.

An observer wraps the one service method that every path to an operation calls, including those of turns, agents and
tools. A store without an observer calls the methods directly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from convstore.conversation.services import Services

Name = Literal["append", "load", "read_back", "search", "compact", "erase"]
Counts = Mapping[str, Any]
Work = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A service method that performs an operation.

    Attributes:
        name: Name of the operation.
        service: Name of the service in `Services`.
        method: Name of the method.
        counts: Returns counts and outcomes of a result that need no further work; never content.
        has_scope: True if the first argument is the scope of one conversation.
    """

    name: Name
    service: str
    method: str
    counts: Callable[[Any], Counts]
    has_scope: bool = True


class Observer(Protocol):
    """Observes the operations of stores."""

    def observed(self, operation: Operation, work: Work, id_of: Callable[[Any], str]) -> Work:
        """Return a method that wraps `work`; `id_of` returns the id of a scope's conversation if cached, else ""."""
        ...

    def discarded(self, messages: int) -> None:
        """Count messages of this store that were deleted with a conversation by another worker."""
        ...

    def flush(self) -> None:
        """Record all pending observations, because the store closes."""


def observe(services: Services, observer: Observer) -> None:
    """Wrap each operation of a store with an observer."""

    def id_of(scope: Any) -> str:
        cached = services.reader.cache.get(scope)
        return cached.conversation if cached else ""

    services.reader.cache.on_discarded = observer.discarded
    for operation in _OPERATIONS:
        service = getattr(services, operation.service)
        setattr(
            service,
            operation.method,
            observer.observed(operation, getattr(service, operation.method), id_of),
        )


def _of_append(written: Any) -> Counts:
    messages = written.entry.messages if written.entry else ()
    return {"messages": len(messages), "tokens_stored": sum(message.tokens for message in messages)}


def _of_history(history: Any) -> Counts:
    compacted = {"is_compacted": True} if history.summary else {}
    tokens = {"tokens_shown": history.tokens, "tokens_whole": history.report.tokens_before}
    return {"messages": len(history.messages)} | tokens | compacted


def _of_receipt(receipt: Any) -> Counts:
    return {"conversations": receipt.conversations}


def _of_compaction(compaction: Any) -> Counts:
    failed = (
        {"error": compaction.problem.partition(":")[0]} if compaction.status == "failed" else {}
    )
    return {"outcome": compaction.status} | failed


_OPERATIONS = (
    Operation("append", "writer", "append", _of_append),
    Operation("load", "loader", "load", _of_history),
    Operation("load", "past", "of_variant", lambda found: _of_history(found[0])),
    Operation("read_back", "records", "get", lambda records: {"messages": len(records)}),
    Operation("read_back", "pager", "sources", lambda page: {"sources": len(page.sources)}),
    Operation("read_back", "pager", "read", lambda answer: {"sources": len(answer[1].sources)}),
    Operation("read_back", "listing", "read", lambda _: {}),
    Operation("search", "searcher", "search", lambda found: {"messages": len(found.matches)}),
    Operation(
        "search", "across", "search", lambda found: {"messages": len(found[0])}, has_scope=False
    ),
    Operation("compact", "compactor", "compact", _of_compaction),
    Operation("erase", "retention", "delete", _of_receipt),
    Operation("erase", "retention", "erase", _of_receipt, has_scope=False),
    Operation("erase", "retention", "prune", _of_receipt, has_scope=False),
)
