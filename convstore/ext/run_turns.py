"""Hold the turn on which a run of LangChain or LangGraph works, and give its lease back however the run ends.

Hooks of a middleware and nodes of a graph are not called if a run ends by an error, an interrupt or a cancellation.
Callback handlers are. Two are registered with langchain-core: one tracks which run is a part of which, the other
releases the leases of a run before its caller continues. They cost a few microseconds for each Runnable of the process.

All parts of a root run that work on one conversation share its turn. A sub-agent that is called by a tool is an
exception: it has a conversation of its own, and its turn is released when the tool ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.types import Command

from convstore import Conversation
from convstore.exceptions import InvalidInputError
from convstore.ext.checkpoints import is_at_breakpoint, last_question_in, run_config
from convstore.ext.loops import has_loop, run_on, run_on_and_wait
from convstore.integration import HeldTurn, RunTurn, TurnAccess
from convstore.types import History
from convstore.values.scope import PATH
from convstore.values.turns import Busy
from convstore.wire.history import last_seen

_MOST_RUNS = 100_000
"""Runs that are tracked at once; above it the oldest ones, whose end was probably not reported, are forgotten."""


class _HeldTurns:
    """The turns that a run holds.

    Attributes:
        held: The turns, in the order in which they were taken.
    """

    def __init__(self) -> None:
        self.held: list[RunTurn] = []
        self._locks: dict[tuple[Any, ...], asyncio.Lock] = {}

    def lock_of(self, chat: Conversation) -> asyncio.Lock:
        """Return the lock under which turns of a conversation are taken."""
        return self._locks.setdefault((chat.store, *chat.scope.items()), asyncio.Lock())

    async def leave_finished(self, chat: Conversation) -> None:
        """Give the lease of a conversation back if the run has finished all its turns."""
        own = [turn for turn in self.held if turn.is_of(chat)]
        if all(turn.held.record.is_finished for turn in own):
            self.held = [turn for turn in self.held if turn not in own]
            for turn in reversed(own):
                await run_on(turn.loop, turn.leave)


@dataclass(slots=True)
class _TrackedRun:
    """A run in progress.

    Attributes:
        kind: "call" for a Runnable or retriever that was called with its input; "stream" for one that may wait for its
            reader for ever, such as a graph.
        parent: The run that it is a part of.
        is_resumed: True if a graph was resumed from a checkpoint, without an input.
        is_graph: True for the run of a graph.
        question: The last question in its input, which gets its id from LangGraph; None if the input has no question.
        questions: The ids of the questions of a graph's run, by conversation.
        done: Ids of the messages that agents of a graph's run have made or repeated.
        is_interrupted: True if a part of it was interrupted, so that it may be resumed.
    """

    kind: Literal["tool", "node", "call", "stream"]
    parent: UUID | None
    is_resumed: bool = False
    is_graph: bool = False
    question: BaseMessage | None = None
    questions: dict[Any, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    is_interrupted: bool = False


class _Unanswered(NamedTuple):
    """A turn in which an agent ended without an answer, with the turn's event loop and the agent's configuration."""

    held: HeldTurn
    loop: asyncio.AbstractEventLoop
    configurable: Mapping[str, Any]

    async def finish(self) -> None:
        """Finish the turn, unless an agent after that one has answered it, or the graph stopped at a breakpoint."""
        if not await is_at_breakpoint(self.configurable):
            await self.held.finish(if_done=True)


class _RunTracker(BaseCallbackHandler):
    """Tracks the runs in progress and the turns that they hold.

    Attributes:
        turns: The turns that runs hold, by the id of the run at whose end they are released.
        unanswered: The turns that are finished when the run of a graph ends, by the id of that run.
    """

    run_inline = True

    def __init__(self) -> None:
        self.turns: dict[UUID, _HeldTurns] = {}
        self.unanswered: dict[UUID, list[_Unanswered]] = {}
        self._runs: dict[UUID, _TrackedRun] = {}

    @property
    def ignore_llm(self) -> bool:
        """Ignore model calls, as nothing inside them works on a conversation."""
        return True

    def on_chain_start(
        self,
        serialized: Any,  # noqa: ARG002 - the name is LangChain's
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Track a graph, a node or another Runnable."""
        if "langgraph_node" not in (metadata or {}):
            self._begin(run_id, parent_run_id, "stream" if _is_streamed(inputs) else "call")
            self._runs[run_id].is_resumed = inputs is None or isinstance(inputs, Command)
            self._runs[run_id].question = _question_in(inputs)
            return
        self._begin(run_id, parent_run_id, "node")
        graph = self._runs.get(parent_run_id) if parent_run_id else None
        if graph:
            graph.is_graph = True
        if graph and graph.kind == "call":
            graph.kind = "stream"  # `invoke` of a graph reports its start as `stream` does

    def on_tool_start(
        self, *_: Any, run_id: UUID, parent_run_id: UUID | None = None, **__: Any
    ) -> None:
        """Track a tool."""
        self._begin(run_id, parent_run_id, "tool")

    def on_retriever_start(
        self, *_: Any, run_id: UUID, parent_run_id: UUID | None = None, **__: Any
    ) -> None:
        """Track a retriever."""
        self._begin(run_id, parent_run_id, "call")

    def on_chain_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Forget a run; in a thread without an event loop, release its turns."""
        self._end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Forget a run that failed or was cancelled, or whose stream was closed, as `on_chain_end` does."""
        self._end(run_id, error)

    on_tool_end = on_retriever_end = on_chain_end
    on_tool_error = on_retriever_error = on_chain_error

    def _begin(
        self,
        run_id: UUID,
        parent_run_id: UUID | None,
        kind: Literal["tool", "node", "call", "stream"],
    ) -> None:
        self._runs[run_id] = _TrackedRun(kind, parent_run_id)
        if len(self._runs) > _MOST_RUNS:
            del self._runs[next(iter(self._runs))]

    def _end(self, run_id: UUID, error: BaseException | None = None) -> None:
        if isinstance(error, GraphInterrupt):
            for ancestor in self._with_ancestors(run_id):
                self._runs[ancestor].is_interrupted = True
        run = self._runs.pop(run_id, None)
        if error or (run and run.is_interrupted):
            self.unanswered.pop(run_id, None)
        if has_loop():  # `_TurnReleaser` is called, too
            return
        try:
            for each in self.unanswered.pop(run_id, ()):
                run_on_and_wait(each.loop, each.finish)
        finally:
            for turn in self.take_turns(run_id):
                run_on_and_wait(turn.loop, partial(turn.leave, _failure(error)))

    def take_turns(self, run_id: UUID) -> list[RunTurn]:
        """Remove the turns that a run holds, and return them, the last one first."""
        turns = self.turns.pop(run_id, None)
        return turns.held[::-1] if turns else []

    def touch(self, held: HeldTurn) -> None:
        """Record that the current run works on a turn, so that its lease is renewed."""
        for run_id in self.current():
            for turn in self.turns[run_id].held if run_id in self.turns else ():
                if turn.held is held:
                    turn.touch()

    def is_at_work(self, run_id: UUID) -> bool:
        """Return True if a tool, a node of a graph or a call of another Runnable is in progress in a run.

        These end by themselves, whereas a Runnable that streams may wait for its reader for ever.
        """
        parts = [part for part, run in self._runs.items() if run.kind != "stream"]
        return any(run_id in self._with_ancestors(part) for part in parts)

    def current(self) -> list[UUID]:
        """Return the run that the current code is a part of, followed by its ancestors."""
        config: Any = var_child_runnable_config.get() or {}
        return self._with_ancestors(getattr(config.get("callbacks"), "parent_run_id", None))

    def _with_ancestors(self, run_id: UUID | None) -> list[UUID]:
        found: list[UUID] = []
        while run_id is not None and run_id in self._runs:
            found.append(run_id)
            run_id = self._runs[run_id].parent
        return found

    def is_resumed(self) -> bool:
        """Return True if the current run, or an ancestor of it, was resumed from a checkpoint, without an input."""
        return any(self._runs[run_id].is_resumed for run_id in self.current())

    def graph(self) -> _TrackedRun | None:
        """Return the run of the outermost graph of `_graphs`; None outside a graph."""
        graphs = self._graphs()
        return self._runs[graphs[-1]] if graphs else None

    def outer_graph(self) -> UUID | None:
        """Return the id of the outermost graph's run if the current graph is nested in it; else None."""
        graphs = self._graphs()
        return graphs[-1] if len(graphs) > 1 else None

    def _graphs(self) -> list[UUID]:
        """Return the runs of the graphs around the current code, up to a tool that runs, the innermost first."""
        runs = self.current()
        tools = [at for at, run_id in enumerate(runs) if self._runs[run_id].kind == "tool"]
        within = runs[: tools[0]] if tools else runs
        return [run_id for run_id in within if self._runs[run_id].is_graph]

    def holder(self, chat: Conversation) -> UUID | None:
        """Return the run at whose end a turn of a conversation is released; None outside of a run.

        It is the outermost run; for the conversation of a sub-agent, the tool that calls it.
        """
        runs = self.current()
        tools = [run_id for run_id in runs if self._runs[run_id].kind == "tool"]
        if PATH in chat.scope and tools:
            return tools[0]
        return runs[-1] if runs else None


class _TurnReleaser(AsyncCallbackHandler):
    """Releases the turns of async runs that end, before the caller of the run continues."""

    run_inline = True

    @property
    def ignore_llm(self) -> bool:
        """Ignore model calls, as `_RunTracker` does."""
        return True

    @property
    def ignore_chain(self) -> bool:
        """Ignore runs while there is no turn to release or finish, and sync runs, which `_RunTracker` handles."""
        return not (_TRACKER.turns or _TRACKER.unanswered) or not has_loop()

    @property
    def ignore_agent(self) -> bool:
        """Handle tools like other runs: a tool may still hold a turn of its own after its caller was cancelled."""
        return self.ignore_chain

    async def on_chain_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Release the turns of a run or a tool that ended."""
        await self._leave(run_id)

    async def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Release the turns of a run or a tool that failed or was cancelled, or whose stream was closed."""
        await self._leave(run_id, error)

    on_tool_end = on_chain_end
    on_tool_error = on_chain_error

    async def _leave(self, run_id: UUID, error: BaseException | None = None) -> None:
        try:
            for each in _TRACKER.unanswered.pop(run_id, ()):
                await run_on(each.loop, each.finish)
        finally:
            for turn in _TRACKER.take_turns(run_id):
                await run_on(turn.loop, partial(turn.leave, _failure(error)))


def _is_streamed(inputs: Any) -> bool:
    """Return True for the placeholder that LangChain reports as the input of a Runnable that is streamed."""
    if not isinstance(inputs, dict) or inputs.keys() != {"input"}:
        return False
    text = inputs["input"]
    return isinstance(text, str) and not text


def _question_in(inputs: Any) -> BaseMessage | None:
    """Return the last question among the messages of an input; None if it has no question."""
    given: Any = inputs.get("messages") if isinstance(inputs, dict) else None
    messages: list[Any] = given if isinstance(given, list) else [given]
    return last_question_in(messages)


def _failure(error: BaseException | None) -> BaseException | None:
    """Return the error by which a run failed; None for an interrupt or a command to a parent graph."""
    return None if isinstance(error, GraphBubbleUp) else error


_TRACKER = _RunTracker()
_RELEASER = _TurnReleaser()


def is_in_run() -> bool:
    """Return True if the current code is a part of a run."""
    return bool(_TRACKER.current())


def is_resumed() -> bool:
    """Return True if the current run, or an ancestor of it, was resumed from a checkpoint, without an input."""
    return _TRACKER.is_resumed()


def graph_question(
    chat: Conversation, state: Collection[str], newest: str | None = None
) -> str | None:
    """Return the id of the question on which the outermost graph's run works.

    The first agent of the run decides: the `newest` question of its state is recorded here. Before that, it is the
    question in the run's input. Human messages that nodes add later, such as the reply of another agent, belong to the
    same turn. Returns `newest`, which may be None, outside a graph and if the id is not in `state`.
    """
    graph = _TRACKER.graph()
    if graph is None:
        return newest
    key = (chat.store, *chat.scope.items())
    known = graph.questions.get(key) or (graph.question.id if graph.question else None)
    if newest is not None:
        graph.questions.setdefault(key, newest)
    return known if known in state else newest


def done_in_graph() -> set[str]:
    """Return the ids of messages that agents of the outermost graph have made or repeated; callers add to the set."""
    graph = _TRACKER.graph()
    return graph.done if graph else set()


def is_in_graph() -> bool:
    """Return True if the graph of the current code, such as an agent, is nested in another graph."""
    return _TRACKER.outer_graph() is not None


async def finish(held: HeldTurn) -> None:
    """Finish a turn in which an agent ended without an answer.

    If the agent is a part of a graph, an agent after it may answer. So the turn is finished when the graph's run ends,
    unless that run is interrupted, stops at a breakpoint, or fails.
    """
    graph = _TRACKER.outer_graph()
    if graph is None:
        await held.finish(if_done=True)
        return
    configurable, _ = run_config()
    unanswered = _Unanswered(held, asyncio.get_running_loop(), configurable)
    _TRACKER.unanswered.setdefault(graph, []).append(unanswered)


async def hold_turn(
    chat: Conversation, turn_id: str, *, busy: Busy, is_new: bool = False
) -> HeldTurn:
    """Return a turn that the caller or the current run holds; otherwise the run enters it and keeps it until its end.

    `is_new` says that the question is probably not in the log.

    Raises:
        InvalidInputError: The current code is not a part of a run.
        TurnBusyError: Another run works on the conversation, and did not end in time.
        TurnLostError: The caller's task began within a session of the turn, which has ended meanwhile.
    """
    held = TurnAccess(chat).held(turn_id)
    if held is not None:
        _TRACKER.touch(held)
        return held
    TurnAccess(chat).check_not_left(turn_id)
    holder = _TRACKER.holder(chat)
    if holder is None:
        raise InvalidInputError(
            "a turn needs a run of LangChain that holds it, and the current code is not part of "
            "one; call the agent or graph by `invoke` or `ainvoke`, or enter `chat.turn` before"
        )
    return await _take(holder, chat, turn_id, busy=busy, is_new=is_new)


def has_moved(held: HeldTurn, history: History | None, *, end: int) -> bool:
    """Return True if the log has messages up to the ordinal `end` that were appended after a view was loaded.

    Always False for a turn that shares its lease with another turn of the same run, which keeps its view.
    """
    return history is not None and not held.lease.sharing and end > last_seen(history)


async def _take(
    holder: UUID, chat: Conversation, turn_id: str, *, busy: Busy, is_new: bool
) -> HeldTurn:
    """Enter a turn for a run; if the run holds another turn of the conversation, both share its lease."""
    async with _TRACKER.turns.setdefault(holder, _HeldTurns()).lock_of(chat):
        turns = _TRACKER.turns.setdefault(holder, _HeldTurns())
        if held := TurnAccess(chat).held(turn_id):  # a parallel part of the run was first
            return held
        await turns.leave_finished(chat)
        around = TurnAccess(chat).held()
        is_at_work = partial(_TRACKER.is_at_work, holder)
        turn = await RunTurn.enter(
            chat, turn_id, busy=busy, is_at_work=is_at_work, is_new=is_new, around=around
        )
        turns.held.append(turn)
        return turn.held


def _turns_of_run() -> list[tuple[Conversation, HeldTurn]]:
    found = [
        _TRACKER.turns[run_id]
        for run_id in reversed(_TRACKER.current())
        if run_id in _TRACKER.turns
    ]
    return [(turn.chat, turn.held) for turns in found for turn in turns.held]


for _handler in (_TRACKER, _RELEASER):
    register_configure_hook(
        ContextVar(f"convstore_{type(_handler).__name__}", default=_handler), inheritable=True
    )
TurnAccess.find_by(_turns_of_run)
