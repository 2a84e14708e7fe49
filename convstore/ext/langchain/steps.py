"""The work of the middleware at each hook, as functions of a conversation and a run.

All of them may run again: appending messages that the log has writes nothing.

The module is long because the hooks of one run share the rules by which its state and the log are joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import set_config_context, var_child_runnable_config

from convstore import Conversation
from convstore.exceptions import (
    ContentConflictError,
    InvalidInputError,
)
from convstore.ext.langchain.resent import removal
from convstore.ext.langchain.results import (
    SETTING,
    as_in_state,
    give_result_ids,
)
from convstore.ext.langchain.run import NO_STREAM, AgentRun
from convstore.ext.langchain.turn import TurnMessages, ids_in_log, read_turn
from convstore.ext.older_checkpoint import (
    OnFork,
    go_back,
    is_addressed,
)
from convstore.ext.run_turns import hold_turn, turn_of_run
from convstore.integration import (
    Busy,
    Trust,
    append_in_turn,
    finish_in_turn,
    fit_for,
    held_by_caller,
    host_of,
    last_seen,
    made_for,
    read_again,
)
from convstore.messages.filing import (
    ids_of,
    last_question,
    last_turn_of,
    pending_results,
    without_marks,
)
from convstore.messages.provenance import is_made_up
from convstore.messages.tokens import approximate_tokens
from convstore.messages.tool_calls import is_paired
from convstore.messages.unread import steps_of, with_unread
from convstore.types import History, Receipt
from convstore.values.append_options import AppendOptions
from convstore.values.json_form import sendable_message
from convstore.values.policy import HistoryPolicy
from convstore.values.stamps import ViewStamp

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of a middleware; see `ConversationMiddleware`."""

    policy: HistoryPolicy
    compact: bool
    on_unencodable: Literal["raise", "omit"]
    on_source_clash: Literal["raise", "renumber"]
    on_fork: OnFork
    trust: Trust
    busy: Busy


async def take_up(
    chat: Conversation, rules: Rules, messages: Sequence[BaseMessage], turn_id: str | None
) -> AgentRun:
    """Rebuild the run of a state that lost it: after a resume, at an older checkpoint, or on another worker.

    `turn_id` is the turn of a state without its question.
    """
    run = AgentRun(chat.scope, last_turn_of(messages) or turn_id)
    await hold(chat, rules, run, is_new=False)
    found = await read_turn(chat, run.turn_id)
    if is_addressed() or found is None or not ids_of(found.later) <= ids_of(messages):
        branch = await go_back(chat, messages, rules.on_fork)
        run.abandoned = branch.abandoned if branch else run.abandoned
        if held := held_by_caller(chat, run.turn_id):
            await read_again(chat, held)  # the task of a parallel call may have gone back
        found = await read_turn(chat, run.turn_id)
    take_note(run, found)
    run.ahead = found.later if found else []
    run.abandoned |= await ids_in_log(chat, pending_results(messages)) - ids_of(run.ahead)
    return run


async def catch_up(
    chat: Conversation, rules: Rules, run: AgentRun, messages: Sequence[BaseMessage]
) -> None:
    """Append the messages that the log does not have; one command, none if it has all."""
    missing = run.missing(messages)
    if not missing:
        return
    try:
        receipt = await _append(chat, rules, run, missing)
    except ContentConflictError as error:
        error.add_note(
            "Another middleware changed a message after it was appended. Place "
            "ConversationMiddleware first, and if "
            "results of tools are changed before the model sees them, pass "
            'tool_results="after_hooks". '
            f"If deepagents moved it to a file, put {SETTING} in front of it."
        )
        raise
    run.resent = None
    run.entry = receipt.entry or run.entry
    if run.drop_draft and any(isinstance(message, AIMessage) for message in missing):
        await run.drop_draft()
        run.drop_draft = None
    run.note_appended(missing)
    if receipt.written < len(missing) and not run.is_known:
        found = await read_turn(chat, run.turn_id)
        take_note(run, found)
        run.ahead = found.later if found else []
        run.view = None
    run.is_known = True


async def hold(
    chat: Conversation, rules: Rules, run: AgentRun, *, is_new: bool | None = None
) -> None:
    """Make sure that this run holds its turn, so that no other one asks its model or runs its tools.

    What another run has done meanwhile is taken over.
    """
    if run.turn_id is None or held_by_caller(chat, run.turn_id):
        return
    is_new = run.turn_id not in run.logged if is_new is None else is_new
    held = await hold_turn(chat, run.turn_id, busy=rules.busy, is_new=is_new)
    if held is None:
        return
    if not held.sharing and run.history and held.tail.messages > last_seen(run.history):
        run.view = None
    if held.record.is_asked:
        _follow(run, TurnMessages.of(held.record))


def _follow(run: AgentRun, found: TurnMessages) -> None:
    """Take over what the log has of a turn by now."""
    known = ids_of(found.later)
    if known - run.logged.keys():
        only_here = [each for each in run.ahead if each.id not in known]
        take_note(run, found)
        run.ahead = [*found.later, *only_here]


def _has_moved(run: AgentRun, receipt: Receipt, appended: Sequence[BaseMessage]) -> bool:
    """Return True if others appended something between the load of the view and the question."""
    is_begun = run.turn_id in ids_of(appended)
    return is_begun and run.history is not None and receipt.first > last_seen(run.history) + 1


async def _append(
    chat: Conversation, rules: Rules, run: AgentRun, missing: Sequence[BaseMessage]
) -> Receipt:
    """Append messages of the state. A client's history is compared with the log once more."""
    how: dict[str, Any] = {
        "on_unencodable": rules.on_unencodable,
        "on_source_clash": rules.on_source_clash,
    }
    if any(isinstance(message, AIMessage) for message in missing):
        how["stamp"] = _stamp(run)
        run.shown = None
    turn_id = _turn_of(run, missing)
    if turn_id is None and run.resent is None:
        return await chat.append(without_marks(missing), **how)
    if turn_id is None:
        return await _append_resent(chat, rules, run, missing, **how)
    is_new = turn_id not in run.logged
    async with turn_of_run(chat, turn_id, busy=rules.busy, is_new=is_new) as held:
        if run.resent is None:
            receipt = await append_in_turn(chat, held, missing, **how)
        else:
            receipt = await _append_resent(chat, rules, run, missing, **how)
            await read_again(chat, held)
        if not held.sharing and _has_moved(run, receipt, missing):
            run.view = None
        return receipt


async def _append_resent(
    chat: Conversation, rules: Rules, run: AgentRun, missing: Sequence[BaseMessage], **how: Any
) -> Receipt:
    """Append messages of a client's history, which is compared with the log once more."""
    # Copies, because known messages get the ids of the log, and the state keeps its own.
    known = run.resent or ()
    history = [message.model_copy() for message in without_marks([*known, *missing])]
    trust = replace(rules.trust, strict=False, own=frozenset(ids_of(missing)))
    options = AppendOptions(**how)
    resender = (await host_of(chat).services()).resender
    scope = tuple(chat.scope.items())
    found: Receipt = await resender.append(scope, history, skip=True, trust=trust, options=options)
    return found


def _turn_of(run: AgentRun, missing: Sequence[BaseMessage]) -> str | None:
    """Return the turn of messages to append.

    If the question was removed from the state before it was appended, it is that of the question in its place, if any.
    """
    if run.turn_id in run.logged or run.turn_id in ids_of(missing):
        return run.turn_id
    at = last_question(missing)
    if at is None:
        return None
    run.turn_id = missing[at].id
    return run.turn_id


def _stamp(run: AgentRun) -> ViewStamp | None:
    """Return the stamp of the view that the model was shown last; None if no answer to it is expected."""
    if run.shown is None or run.history is None:
        return None
    return run.history.stamp_for(run.shown, entry=run.entry, adapted=run.is_adapted)


async def prepare(
    chat: Conversation,
    rules: Rules,
    run: AgentRun,
    messages: Sequence[BaseMessage],
    state: Sequence[BaseMessage],
) -> AIMessage | list[BaseMessage]:
    """Return the messages for the model at this step, view and turn; or its earlier answer to this step.

    `messages` is the turn in the request, as other middleware left it; `state` has all of it in full.
    """
    give_result_ids(messages)
    await catch_up(chat, rules, run, as_in_state(messages, state))
    await hold(chat, rules, run)
    if answer := run.next_answer(messages):
        return answer
    messages = await _with_unread(chat, run, messages)
    if run.view is None or _exceeds(chat, rules, run, messages):
        await _load_view(chat, rules, run, messages)
    shown = without_marks(run.with_turn(messages))
    run.shown = _fitted(shown, run, rules.policy.provider)
    run.is_adapted = bool(run.missing(messages))
    return run.shown


async def _with_unread(
    chat: Conversation, run: AgentRun, messages: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Return the turn's messages with those that the model has to read and that the state lacks, from the log."""
    whole = list(messages)
    if run.turn_id is None:
        return whole
    if run.turn_id not in run.logged:
        raise InvalidInputError(
            "the question of this run was removed from the state before it was appended, so the "
            "model would be asked "
            'nothing; end the run instead (`jump_to="end"`), or put another human message in its '
            "place"
        )
    question = run.logged[run.turn_id]
    if question is not None and run.turn_id not in ids_of(whole):
        whole.insert(0, question)
    if run.is_whole(whole):
        run.whole = whole
    elif found := await read_turn(chat, run.turn_id):
        whole = with_unread([found.question, *found.later], whole)
    return whole


def _exceeds(
    chat: Conversation, rules: Rules, run: AgentRun, messages: Sequence[BaseMessage]
) -> bool:
    """Return True if the view with the turn is above the budget, so that the store has to decide what leaves."""
    budget = rules.policy.max_tokens
    counter = chat.store.token_counter
    # that view has no results of this turn
    if budget is None or rules.policy.view == "conversation":
        return False
    return sum(run.size_of(message, counter) for message in run.with_turn(messages)) > budget


def _fitted(messages: list[BaseMessage], run: AgentRun, provider: str | None) -> list[BaseMessage]:
    """`fit_for`, which reads only the messages added since the last step if those before were paired."""
    known = len(run.paired) if messages[: len(run.paired)] == run.paired else 0
    if provider is None and is_paired(messages[known:]):
        run.paired = messages
        return [sendable_message(message) for message in made_for(messages, provider)]
    return fit_for(messages, provider)


async def end(
    chat: Conversation, rules: Rules, run: AgentRun, messages: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Append the remaining messages, and summarise if it is due; return the changes to the state's messages.

    If the answer came from the log, nothing is appended: hooks of other middleware ran at the end of the first run, and
    what they add now is removed from the state.
    """
    if run.is_answered:
        return [
            removal(message) for message in run.missing(messages[last_question(messages) or 0 :])
        ]
    await catch_up(chat, rules, run, messages)
    # of a tool with `return_direct`
    if run.turn_id and messages and isinstance(messages[-1], ToolMessage):
        async with turn_of_run(chat, run.turn_id, busy=rules.busy) as held:
            await finish_in_turn(chat, held)
    await _summarise(chat, rules, run, messages)
    return []


async def _summarise(
    chat: Conversation, rules: Rules, run: AgentRun, messages: Sequence[BaseMessage]
) -> None:
    if not rules.compact or run.history is None:
        return
    compactor = (await host_of(chat).services()).compactor
    later = approximate_tokens(messages)
    if compactor.has_summarizer and compactor.may_be_due(
        run.history, rules.policy, later_tokens=later
    ):
        await _unstreamed(compactor.compact_in_time(tuple(chat.scope.items())))


def take_note(run: AgentRun, found: TurnMessages | None) -> None:
    """Record in a run what the log has of its turn."""
    run.is_known = True
    if found:
        run.logged |= dict.fromkeys(ids_of(found.later))
        run.note([found.question])  # as logged, so that a question in other words is a conflict
        if steps := steps_of(found.later):
            run.unread = set(steps[-1])


async def load(chat: Conversation, rules: Rules) -> History:
    """Load the view."""
    return await _unstreamed(chat.load_history(rules.policy))


async def _load_view(
    chat: Conversation, rules: Rules, run: AgentRun, messages: Sequence[BaseMessage]
) -> None:
    """Load the view before the turn; above the budget, that of the turn as far as the log has it, too."""
    run.history = history = await load(chat, rules)
    run.entry = 0
    run.folded = frozenset()
    given = {str(message.id): message for message in messages}
    start = _turn_begins(history.messages, {*given, *ids_of(run.ahead)})
    run.view = history.messages[:start]
    turn = history.messages[start:]
    if _exceeds(chat, rules, run, messages):
        run.view += _shortened(history, turn, given)
        run.folded = frozenset(id_ for id_ in given if id_ in run.logged)
    elif history.summary is not None and turn:
        # A compaction during a long turn: the summary covers its beginning.
        ids = list(given)
        end = ids.index(str(turn[0].id)) if turn[0].id in given else 0
        run.folded = frozenset(id_ for id_ in ids[:end] if id_ in run.logged)


def _turn_begins(view: Sequence[BaseMessage], own: Collection[str]) -> int:
    """Return the index of a view's first message of a turn with these ids."""
    indexes = (at for at, message in enumerate(view) if message.id in own)
    return next(indexes, len(view))


def _shortened(
    history: History, turn: Sequence[BaseMessage], given: Mapping[str, BaseMessage]
) -> list[BaseMessage]:
    """Return the messages of a turn as the view shows them above the budget; unchanged ones are those of the state."""
    report = history.report
    changed = {*report.stubbed, *report.shortened, *report.placeholders}
    shown = [message for message in turn if message.id in given or is_made_up(message)]
    return [
        message if message.id in changed else given.get(str(message.id), message)
        for message in shown
    ]


async def _unstreamed(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run work of the store. Calls of a summarizer's model in it are traced, but not streamed as the agent's."""
    config: RunnableConfig = dict(var_child_runnable_config.get() or {})  # type: ignore[assignment]
    config["tags"] = [*(config.get("tags") or ()), NO_STREAM]
    with set_config_context(config) as context:
        return await asyncio.create_task(work, context=context)
