"""The nodes: one loads the view of a conversation, one appends to its log.

`run_scope` finds the conversation of the run. The module is long because the docstrings of the nodes document every
option and promise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.runtime import get_runtime

from convstore import Conversation, ConversationStore
from convstore.edges import OWNER, OnDropped, append_in_halves
from convstore.exceptions import ContentConflictError, InvalidInputError, TurnClosedError
from convstore.ext.around import conversation_of_run, redactor_of, with_turn_id
from convstore.ext.checkpoints import (
    OnFork,
    check_owner,
    find_origins,
    go_back,
    is_addressed,
    may_be_behind,
    owner_of,
)
from convstore.ext.langgraph.model_streams import JoinedTurn, check_entered, join_turn
from convstore.ext.langgraph.state import (
    ConversationState,
    LoadedView,
    answer_in,
    begin_of,
    for_model,
    loaded_of,
    logged_of,
    messages_of,
    owner_in,
    removed_by_load,
    repeated_questions,
    stamp_of,
    turn_in,
    turn_of_run,
    view_of,
)
from convstore.ext.run_scope import ScopeChoice, check_choice
from convstore.ext.run_turns import has_moved, hold_turn, is_in_run, is_resumed
from convstore.integration import ResultNumbering, TurnAccess, run_sync
from convstore.messages.call_ids import with_own_call_ids
from convstore.messages.filing import ids_of, last_question, without_marks
from convstore.types import History
from convstore.values.plain import part_of
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.scope import check_one_of
from convstore.values.stamps import ViewStamp
from convstore.values.turns import Busy

_HOW_TO_CHANGE = (
    "The state of the graph has this id with other content. If the question was sent again in "
    "other words, send it under a new id. If a node changed a message that is logged, let it "
    "return the message under a new id. If a checkpoint already has the other content, remove the "
    "message: graph.update_state(config, {'messages': [RemoveMessage(id)]})."
)


def load_node(
    store: ConversationStore,
    *,
    scope: ScopeChoice | None = None,
    policy: HistoryPolicy | None = None,
    append_first: bool = True,
    number_sources: Collection[str | BaseTool | Callable[..., Any]] | None = None,
    on_fork: OnFork = "rewind",
    drafts: bool | Callable[[str], str] = False,
    busy: Busy = "wait",
    on_dropped: OnDropped | None = None,
) -> LoadNode:
    """Return a node that loads the view, for `view_of`, and removes messages of earlier turns from the state.

    A message that is not in the log because its run broke off stays in the state and is shown, until an append node has
    logged it. If a question is repeated under its id, the view has the steps that the log has of its turn. If the log
    has the answer, too, the node adds it to the state, see `answer_of`. It costs an append and a load.

    Args:
        store: The store of the conversations; made by `connect` if the graph is called sync.
        scope: See `scope_of`; by default taken from the run's context and ``config["configurable"]``.
        policy: The policy of the view; None for the store's.
        append_first: Append messages that the log lacks, such as the question, before the view is loaded. False leaves
            them to an append node: the graph may still remove the question, and the stamp of its first answer does not
            include the question.
        number_sources: With `append_first`, as in `append_node`.
        on_fork: The effect of a run that begins at an older checkpoint. "rewind" rewinds the conversation to that
            checkpoint; `undo_rewind` restores the abandoned messages. "raise" raises `OlderCheckpointError`.
        drafts: Keep a draft of the reply that a model streams in a node, as `TurnSession.stream` does, until the append
            node has logged the reply. Pass a function to redact drafts.
        busy: The effect of another run on the conversation: "wait" waits for its end, up to 30 seconds; "raise" raises
            `TurnBusyError`; "interrupt" asks another turn to stop, and waits.
        on_dropped: Called by `view_of` with the parts of the log that its messages lack: those that the `provider` of
            the policy does not support, and thinking that its model would refuse. Not called if nothing is left out.

    Raises:
        InvalidScopeError: `scope` is invalid. From the node: the run lacks a key, or its checkpoint belongs to another
            scope.
        InvalidInputError: `policy` is not a policy, or `number_sources` is given without `append_first`. From the node:
            the state has no messages, or messages without ids.
        ContentConflictError: From the node: the log has another message under the question's id.
        OlderCheckpointError: From the node, with ``on_fork="raise"``.
        TurnClosedError: From the node: the turn was stopped and has no answer. The exit of a session that you entered
            suppresses it.
        SyncUnsupportedError: From the node, called sync on a store that works on your client.
    """
    if number_sources is not None and not append_first:
        raise InvalidInputError(
            "number_sources needs append_first=True, because a load node numbers only results that "
            "it appends; with append_first=False pass number_sources to append_node"
        )
    policy = check_policy(policy)
    return LoadNode(
        store=store,
        scope=scope,
        policy=policy,
        append_first=append_first,
        numbering=ResultNumbering(number_sources),
        on_fork=on_fork,
        redact=redactor_of(drafts),
        busy=busy,
        on_dropped=on_dropped,
    )


def append_node(
    store: ConversationStore,
    *,
    scope: ScopeChoice | None = None,
    number_sources: Collection[str | BaseTool | Callable[..., Any]] | None = None,
    on_unencodable: Literal["raise", "omit"] = "raise",
    on_source_clash: Literal["raise", "renumber"] = "raise",
    on_fork: OnFork = "rewind",
    busy: Busy = "wait",
) -> AppendNode:
    """Return a node that appends the messages of the state that are not in the log yet, as one batch.

    Messages above 1 MB in total, not counting large tool results, become several batches, in order. A graph may have
    the node in several places: after the last node it logs the whole turn at once, after a tool node it logs each step.
    If the id of a call is empty or repeated, the call and its results get a unique id in state and log. A node that
    runs again appends nothing twice. The log is immutable: if a later node changes a logged message, the log keeps the
    old content. The first AI message of a batch gets the stamp of the view that `view_of` returned for it, see
    `Conversation.view_at`.

    A repeated request gets its stored answer, also in a graph that never calls `answer_of`: if the question was
    answered before the run, nothing is appended, and in the state the stored answer replaces the messages that the
    graph made after the question.

    Args:
        store: The store of the conversations; made by `connect` if the graph is called sync.
        scope: As in `load_node`.
        number_sources: Tools, functions, or names of either, whose sources are numbered. Results of other tools are
            numbered if their form shows that they hold sources: documents, ``search_result`` blocks, responses of known
            search services, and texts that count their sources. () for no numbers. A result is numbered if no AI
            message follows it in the state. The state then has the result with its numbers, so put the node between
            tools and model. A node does not know the tools of its graph: a name that no tool has had is logged as a
            warning.
        on_unencodable: As in `Conversation.append`.
        on_source_clash: As in `Conversation.append`.
        on_fork: As in `load_node`, for a run that begins at a checkpoint after the load node.
        busy: As in `load_node`, for a run that begins after the load node.

    Raises:
        InvalidScopeError: As in `load_node`; the checkpoint is checked only if no load node ran before in this run.
        InvalidInputError: From the node: the state has no messages, or messages without ids; also as in
            `Conversation.append`.
        OlderCheckpointError: As in `load_node`.
        TurnClosedError: As in `load_node`. A reply that came after the stop is not appended; messages before it are.
        SyncUnsupportedError: From the node, called sync on a store that works on your client.
    """
    options = {"on_unencodable": on_unencodable, "on_source_clash": on_source_clash}
    return AppendNode(
        store=store,
        scope=scope,
        on_fork=on_fork,
        busy=busy,
        options=options,
        numbering=ResultNumbering(number_sources),
    )


@dataclass(eq=False, kw_only=True)
class _Node(Runnable[Any, dict[str, Any]]):
    """Finds the conversation of a run and works on it, sync or async."""

    store: ConversationStore
    scope: ScopeChoice | None
    on_fork: OnFork
    busy: Busy

    def __post_init__(self) -> None:
        self.scope = check_choice(self.store, self.scope)
        check_one_of(self.busy, *get_args(Busy), name="busy")
        check_one_of(self.on_fork, *get_args(OnFork), name="on_fork")

    def __call__(self, state: ConversationState) -> dict[str, Any]:
        """Call `invoke`. LangGraph reads the node's channels from the annotation of `state`."""
        return self.invoke(state)

    def invoke(
        self,
        input: Any,  # noqa: A002 - the name is LangChain's
        config: RunnableConfig | None = None,
        **kwargs: Any,  # noqa: ARG002 - as above
    ) -> dict[str, Any]:
        """Return the update of a state, for a graph that is called sync; needs a store made by `connect`."""
        if is_in_run():
            return self._updated(input, config)
        return self._call_with_config(lambda state: self._updated(state, config), input, config)

    async def ainvoke(
        self,
        input: Any,  # noqa: A002 - the name is LangChain's
        config: RunnableConfig | None = None,
        **kwargs: Any,  # noqa: ARG002 - as above
    ) -> dict[str, Any]:
        """Return the update of a state. Outside of a graph the call is a run of its own, which holds the turn."""
        if is_in_run():
            return await self._update(self._chat(config), input)

        async def update(state: Any) -> dict[str, Any]:
            return await self._update(self._chat(config), state)

        return await self._acall_with_config(update, input, config)

    def _updated(self, state: Any, config: RunnableConfig | None) -> dict[str, Any]:
        return run_sync(
            self._chat(config),
            lambda chat: self._update(chat, state),
            instead="`await graph.ainvoke(...)`",
        )

    async def _update(self, chat: Conversation, state: Any) -> dict[str, Any]:
        """Return the update of the state; a ContentConflictError gets a note with the remedies in a graph."""
        try:
            return await self._work(chat, state)
        except ContentConflictError as error:
            error.add_note(_HOW_TO_CHANGE)
            raise

    @abstractmethod
    async def _work(self, chat: Conversation, state: Any) -> dict[str, Any]:
        """Return the update of the state."""

    def _chat(self, config: RunnableConfig | None) -> Conversation:
        """Return the conversation of the run; inside an agent's tool, the child conversation of the call. No I/O."""
        return conversation_of_run(self.store, self.scope, context=_context(), config=config)


@dataclass(eq=False, kw_only=True)
class LoadNode(_Node):
    """The node that `load_node` returns."""

    policy: HistoryPolicy | None
    append_first: bool
    numbering: ResultNumbering
    redact: Callable[[str], str] | None = None
    on_dropped: OnDropped | None = None
    name: str | None = "load"

    def view_of(self, state: Any, config: RunnableConfig | None = None) -> list[BaseMessage]:
        """`aview_of` for sync nodes; needs a store made by `connect`."""
        if loaded_of(state) is not None:
            return view_of(state)
        return run_sync(
            self._chat(config),
            lambda chat: self._loaded_now(chat, state),
            instead="`await load.aview_of(state)`",
        )

    async def aview_of(self, state: Any, config: RunnableConfig | None = None) -> list[BaseMessage]:
        """Return `view_of` a state; load the view for this call if the state has none, as in a resumed node.

        Args:
            state: The state that a node gets.
            config: The configuration of the run; known in a node of a graph.
        """
        if loaded_of(state) is not None:
            return view_of(state)
        return await self._loaded_now(self._chat(config), state)

    async def _loaded_now(self, chat: Conversation, state: Any) -> list[BaseMessage]:
        await check_owner(chat, owner_in(state))
        messages = messages_of(state)
        history = await chat.load_history(self.policy)
        if may_be_behind(history, messages) and await go_back(chat, messages, self.on_fork):
            history = await chat.load_history(self.policy)
        return for_model(self._loaded(history, logged_of(state), messages), messages)

    def _loaded(
        self,
        history: History,
        logged: set[str],
        messages: Sequence[BaseMessage],
        answer: AIMessage | None = None,
        turn_id: str | None = None,
    ) -> LoadedView:
        given = history, self.policy or self.store.policy, frozenset(logged), messages, answer
        return LoadedView(*given, turn_id=turn_id, on_dropped=self.on_dropped)

    async def _work(self, chat: Conversation, state: Any) -> dict[str, Any]:
        found = messages_of(state)
        await check_owner(chat, owner_in(state))
        check_entered(chat)
        logged = logged_of(state)
        history = None if self.append_first else await chat.load_history(self.policy)
        messages, changes, history = await self._adjust_to_start(chat, found, history)
        turn_id = await _turn_of(chat, state, messages)
        if self.append_first and not answer_in(state, turn_id):
            changes = [*changes, *await self._append_first(chat, messages, logged, turn_id)]
            logged |= ids_of(messages)
        history = history or await chat.load_history(self.policy)
        answer = await _find_answer(chat, history, messages, turn_id)
        if answer is None and turn_id is not None:
            history = await self._held(chat, turn_id, history)
            # another run may have answered it meanwhile
            answer = await _find_answer(chat, history, messages, turn_id)
        if repeated := repeated_questions(history, messages, logged):
            await chat.append(repeated)  # writes nothing; refuses other content under the same id
        if held := TurnAccess(chat).held():
            join_turn(held).redact = self.redact
        logged |= ids_of(messages) & ids_of(history.messages)
        removed = removed_by_load(messages, logged, turn_id)
        answers = [answer] if answer and answer.id not in ids_of(messages) else []
        logged |= ids_of(answers)
        kept = ids_of([*messages, *answers]) - ids_of(removed)
        removals = [RemoveMessage(str(each.id)) for each in removed]
        return {
            "messages": [*changes, *removals, *answers],
            "convstore_view": self._loaded(history, logged, messages, answer, turn_id),
            "convstore_turn": turn_id or "",
            "convstore_logged": {each: each in kept for each in sorted(logged)},
            OWNER: owner_of(chat.scope),
        }

    async def _adjust_to_start(
        self, chat: Conversation, messages: Sequence[BaseMessage], history: History | None
    ) -> tuple[Sequence[BaseMessage], list[BaseMessage], History | None]:
        """Rewind the log if the run began at an older checkpoint; give the question the id of the entered turn.

        Returns:
            The state's messages under their ids in the log, the changes to the state, and the view; None if the view
            was not loaded or is stale.
        """
        changes: list[BaseMessage] = []
        if history is None or may_be_behind(history, messages):
            rewound = await go_back(chat, messages, self.on_fork)
            if rewound:
                messages = rewound.messages
                changes = rewound.changes
                history = None
        messages, named = await with_turn_id(chat, messages)
        return messages, [*changes, *named], history

    async def _append_first(
        self,
        chat: Conversation,
        messages: Sequence[BaseMessage],
        logged: Collection[str],
        turn_id: str | None,
    ) -> list[BaseMessage]:
        """Append the messages of a state that are not in the log; return those that got new ids or numbers."""
        new = [each for each in messages if each.id not in logged]
        if not new:
            return []
        numbered = await _with_numbers(chat, self.numbering, messages, new)
        appended, _ = await _append_named(chat, numbered, turn_id, busy=self.busy)
        held = TurnAccess(chat).held(turn_id)
        answer = held.record.answer if held else None
        if held and answer and answer.id in ids_of(appended):
            origins = await find_origins({str(answer.id)})
            # the answer is of an earlier run that was killed before it appended it
            if origins and origins.made_before:
                held.first_answer = str(answer.id)
        return _changed(appended, new)

    async def _held(self, chat: Conversation, turn_id: str, history: History) -> History:
        """Hold the turn until the run ends; return the view, which is loaded again if others appended meanwhile.

        Raises:
            TurnClosedError: The turn was stopped before it had an answer, so a reply of a model would be refused.
        """
        is_new = turn_id not in ids_of(history.messages)
        held = await hold_turn(chat, turn_id, busy=self.busy, is_new=is_new)
        if held.record.is_stopped and held.record.answer is None:
            raise TurnClosedError(turn_id)
        if has_moved(held, history, end=held.tail.messages):
            return await chat.load_history(self.policy)
        return history


@dataclass(eq=False, kw_only=True)
class AppendNode(_Node):
    """The node that `append_node` returns."""

    options: dict[str, Any]
    numbering: ResultNumbering
    name: str | None = "append"

    async def _work(self, chat: Conversation, state: Any) -> dict[str, Any]:
        messages = messages_of(state)
        logged = logged_of(state)
        new = [message for message in messages if message.id not in logged]
        if loaded_of(state) is None:  # no load node has run in this run
            await check_owner(chat, owner_in(state))
            if is_addressed():
                await go_back(chat, messages, self.on_fork)
        if not new:
            return {}
        turn_id = turn_in(state, messages)
        joined = await self._joined(chat, turn_id)
        if answer := _answer_before(state, messages, joined):
            return await _replace_by_answer(chat, messages, new, answer, turn_id)
        if joined:
            new = list(joined.accepted(new))
        loaded = _loaded_from(chat, state)
        stamp = stamp_of(loaded, messages, new, counter=chat.store.token_counter)
        numbered = await _with_numbers(chat, self.numbering, messages, new)
        appended, entry = await _append_named(
            chat, numbered, turn_id, stamp=stamp, busy=self.busy, **self.options
        )
        changed = _changed(appended, new)
        if loaded is not None:
            loaded.note(appended)
            loaded.entry = entry or loaded.entry
        if joined:
            joined.check()
        update: dict[str, Any] = {"convstore_logged": [str(message.id) for message in new]}
        if loaded_of(state) is None and turn_id is not None:
            # without it, a load node would treat the logged question as one of an earlier run
            update["convstore_turn"] = turn_id
        return {**update, "messages": changed} if changed else update

    async def _joined(self, chat: Conversation, turn_id: str | None) -> JoinedTurn | None:
        """Hold the turn until the run ends, and return it; None without a question."""
        if turn_id is None:
            return None
        return join_turn(await hold_turn(chat, turn_id, busy=self.busy))


def _loaded_from(chat: Conversation, state: Any) -> LoadedView | None:
    """Return the view in a state; None if it belongs to another conversation, as its stamp would be wrong here."""
    return loaded_of(state) if owner_in(state) in ("", owner_of(chat.scope)) else None


def _changed(appended: Sequence[BaseMessage], before: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the appended messages that differ from those of the state."""
    return [new for new, old in zip(appended, before, strict=True) if new is not old]


async def _append_named(
    chat: Conversation,
    messages: Sequence[BaseMessage],
    turn_id: str | None,
    *,
    stamp: ViewStamp | None = None,
    busy: Busy,
    **options: Any,
) -> tuple[list[BaseMessage], int]:
    """Append messages of a turn, each call under a unique id; return the logged messages and the last entry's number.

    The stamp is for the first AI message. The entry number is 0 if nothing was written.
    """
    named = with_own_call_ids(messages)
    if not named:
        return [], 0
    entry = 0
    unused_stamp = stamp
    is_begun = turn_id not in ids_of(named)

    async def append(batch: Sequence[BaseMessage]) -> None:
        nonlocal entry, unused_stamp, is_begun
        is_earlier = not is_begun and turn_id not in ids_of(batch)
        if is_earlier or turn_id is None:
            receipt = await chat.append(without_marks(batch), stamp=unused_stamp, **options)
        else:
            held = await hold_turn(chat, turn_id, busy=busy)
            receipt = await TurnAccess(chat).append(held, batch, stamp=unused_stamp, **options)
        entry = receipt.entry or entry
        is_begun = not is_earlier
        unused_stamp = (
            None if any(isinstance(message, AIMessage) for message in batch) else unused_stamp
        )

    await append_in_halves(append, named)
    return list(named), entry


async def _turn_of(chat: Conversation, state: Any, messages: Sequence[BaseMessage]) -> str | None:
    """Return `turn_of_run`; in a run resumed from a checkpoint, its earlier question if that turn is not over."""
    turn_id = turn_of_run(state, messages)
    before = part_of(state, "convstore_turn")
    if loaded_of(state) is None and is_resumed() and turn_id != before in ids_of(messages):
        record = await TurnAccess(chat).record(before)
        if record and not record.is_finished:
            return str(before)
    return turn_id


async def _find_answer(
    chat: Conversation, history: History, messages: Sequence[BaseMessage], question: str | None
) -> AIMessage | None:
    """Return the answer to a question that the log had before this run; None without one.

    Replies that nodes made in this run, or before the checkpoint from which it was resumed, do not count. Two commands
    if the view has messages after the question, else no command.
    """
    if question not in ids_of(history.messages[:-1]):
        return None
    turns = TurnAccess(chat)
    record = await turns.record(str(question))
    answer = record.answer if record else None
    held = turns.held(question)
    if answer is None or (held and held.first_answer not in (None, answer.id)):
        return None
    return None if is_resumed() and answer.id in ids_of(messages) else answer


def _answer_before(
    state: Any, messages: Sequence[BaseMessage], joined: JoinedTurn | None
) -> AIMessage | None:
    """Return the answer that the question had before this run; None if this run has to give it."""
    if loaded_of(state) is not None:
        return answer_in(state, turn_in(state, messages))
    answer = joined.held.record.answer if joined else None
    logged = logged_of(state)
    is_continued = any(isinstance(each, AIMessage) and each.id in logged for each in messages)
    return None if is_continued or answer is None or answer.id in ids_of(messages) else answer


async def _replace_by_answer(
    chat: Conversation,
    messages: Sequence[BaseMessage],
    new: Sequence[BaseMessage],
    answer: AIMessage,
    turn_id: str | None,
) -> dict[str, Any]:
    """Return the update that replaces the messages made in this run by the stored answer to the question."""
    question = begin_of(turn_id, messages)
    is_there = last_question(messages) is not None
    since = messages[question + is_there :]
    if is_there and messages[question] in new:
        await chat.append(messages[question])  # writes nothing; refuses other content
    replaced = ids_of(since) & ids_of(new)
    removals = [RemoveMessage(str(each.id)) for each in since if each.id in replaced]
    missing = [] if answer.id in ids_of(messages) else [answer]
    return {"messages": [*removals, *missing], "convstore_logged": [str(answer.id)]}


async def _with_numbers(
    chat: Conversation,
    numbering: ResultNumbering,
    state: Sequence[BaseMessage],
    new: Sequence[BaseMessage],
) -> list[BaseMessage]:
    """Return messages to append, with numbers on the sources of results after the last AI message of the state.

    If the node runs again, because its graph was killed before the state had the numbers, they are read from the log.
    """
    unseen = ids_of(_unseen(state))
    results = [each for each in new if isinstance(each, ToolMessage) and each.id in unseen]
    if not results:
        return list(new)
    tools = {
        str(call["id"]): call["name"]
        for message in state
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    }
    numbered = await numbering.number(chat, results, tools=tools, may_be_logged=True)
    return [numbered.get(id(each), each) for each in new]


def _unseen(state: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
    """Return the messages after the last AI message."""
    for index in range(len(state), 0, -1):
        if isinstance(state[index - 1], AIMessage):
            return state[index:]
    return state


def _context() -> Any:
    """Return the context of the current run; None outside of a run."""
    try:
        return getattr(get_runtime(), "context", None)
    except (RuntimeError, KeyError):  # outside of a run, or in a run of another Runnable
        return None
