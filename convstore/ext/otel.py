"""Spans and metrics of a store by OpenTelemetry, the extra ``otel``.

`observe` turns them on for a store; without it, nothing of this module is loaded or called. They hold counts,
durations, outcomes and the random id of a conversation, never content or scope values.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from time import time_ns
from typing import Any, NamedTuple

from convstore import ConversationStore, __version__
from convstore.edges import check_store
from convstore.exceptions import MissingExtraError
from convstore.integration import Operation, host_of

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context, get_current
except ImportError as error:
    raise MissingExtraError(package="opentelemetry-api", extra="otel") from error

# Names from OpenTelemetry's semantic conventions for generative AI 0.1.0 and for databases 1.45, where these define
# one. They are pinned here: those for generative AI are in development, and the Python package of conventions marks its
# copies of them as moved.
_OPERATION = "gen_ai.operation.name"
_CONVERSATION = "gen_ai.conversation.id"
_ERROR = "error.type"
_SYSTEM = "db.system.name"
_OPERATIONS = {
    "append": "create_memory",
    "load": "load_history",
    "read_back": "read_back",
    "search": "search_memory",
    "compact": "compact_history",
    "erase": "delete_memory",
}
_ATTRIBUTES = {
    "messages": "gen_ai.memory.record.count",
    "is_compacted": "gen_ai.conversation.compacted",
    "tokens_stored": "convstore.token.stored",
    "tokens_shown": "convstore.token.shown",
    "tokens_whole": "convstore.token.whole",
    "sources": "convstore.sources",
    "conversations": "convstore.conversations",
    "outcome": "convstore.outcome",
    "error": _ERROR,
}
_DISCARDED = "convstore.append.discarded"
_COUNTED = ("tokens_stored", "tokens_shown", "tokens_whole")
_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
"""Bounds of the histogram in seconds, from the conventions for databases."""

_DELAY = 1.0
_AT_ONCE = 128
"""Longest wait in seconds until an operation is recorded, and the number of operations that are recorded at once."""

_NOTHING: Mapping[str, Any] = {}


def observe(
    store: ConversationStore,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Record a span and metrics for each operation of a store, including those of turns, agents and tools.

    Call it once, directly after creating the store. Without providers nothing is recorded; they may be set later. Close
    the store before the providers, as operations are recorded up to a second after their end.

    Args:
        store: The store.
        tracer_provider: Makes the spans; None for the provider of the process.
        meter_provider: Makes the metrics; None for the provider of the process.

    Raises:
        InvalidInputError: The store is observed already, or it is not a store.
    """
    check_store(store)
    tracer = trace.get_tracer("convstore", __version__, tracer_provider)
    meter = metrics.get_meter("convstore", __version__, meter_provider)
    host = host_of(store)
    host.observe(_Recorder(tracer, meter, is_local=host.driver.name == "memory"))


_Work = Callable[..., Awaitable[Any]]


class _EndedOperation(NamedTuple):
    """An operation that has ended, with its times in nanoseconds and the context of its caller."""

    operation: str
    began: int
    ended: int
    context: Context
    found: Mapping[str, Any]
    conversation: str


class _Recorder:
    """Records the operations of one store, and of its counterpart for sync callers.

    Operations are recorded in groups, outside the calls. A span that is recorded alone costs four times the processor
    time, because the SDK's code is not in the processor's caches.
    """

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter, *, is_local: bool) -> None:
        self._system = {_SYSTEM: "mongomock" if is_local else "mongodb"}
        self._kind = trace.SpanKind.INTERNAL if is_local else trace.SpanKind.CLIENT
        self._tracer = tracer
        self._ended = deque[_EndedOperation]()
        self._due = 0
        # One histogram for each operation: an attribute with its name would double the time of recording it.
        new = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=_BOUNDS)
        self._durations = {name: new(f"convstore.{name}.duration") for name in _OPERATIONS}
        self._counters = {
            name: meter.create_counter(_ATTRIBUTES[name], unit="{token}") for name in _COUNTED
        }
        self._discarded = meter.create_counter(_DISCARDED, unit="{message}")

    def observed(self, operation: Operation, work: _Work, id_of: Callable[[Any], str]) -> _Work:
        """Return a method that does the work and records its times and outcome."""
        name = operation.name
        has_scope = operation.has_scope

        async def noted(*args: Any, **options: Any) -> Any:
            found = _NOTHING
            conversation = id_of(args[0]) if has_scope else ""
            began = time_ns()
            context = get_current()
            try:
                result = await work(*args, **options)
                found = operation.counts(result)
            except BaseException as error:
                found = {"error": type(error).__name__}
                raise
            finally:
                ended = time_ns()
                conversation = conversation or (id_of(args[0]) if has_scope else "")
                self._note(_EndedOperation(name, began, ended, context, found, conversation))
            return result

        return noted

    def _note(self, operation: _EndedOperation) -> None:
        self._ended.append(operation)
        if len(self._ended) >= _AT_ONCE:
            self.flush()
        # Before that time a timer runs, unless its event loop was closed.
        elif operation.ended >= self._due:
            self._due = operation.ended + int(_DELAY * 1e9)
            asyncio.get_running_loop().call_later(_DELAY, self.flush)

    def discarded(self, messages: int) -> None:
        """Count appended messages that were discarded because another worker had deleted their conversation."""
        self._discarded.add(messages, context=Context())

    def flush(self) -> None:
        """Record all operations that have ended."""
        tokens = dict.fromkeys(self._counters, 0)
        with suppress(IndexError):  # the thread for sync callers took the last one
            while self._ended:
                ended = self._ended.popleft()
                self._record(ended)
                for name in ended.found.keys() & tokens.keys():
                    tokens[name] += ended.found[name]
        for name, number in tokens.items():
            self._counters[name].add(number, context=Context())

    def _record(self, ended_operation: _EndedOperation) -> None:
        operation, began, ended, context, found, conversation = ended_operation
        failed = {_ERROR: found["error"]} if "error" in found else None
        self._durations[operation].record((ended - began) / 1e9, failed, context)
        name = _OPERATIONS[operation]
        attributes = {
            _OPERATION: name,
            **self._system,
            **{_ATTRIBUTES[key]: found[key] for key in found},
        }
        if conversation:
            attributes[_CONVERSATION] = conversation
        span = self._tracer.start_span(name, context, self._kind, attributes, start_time=began)
        if failed:
            span.set_status(trace.StatusCode.ERROR)
        span.end(ended)
