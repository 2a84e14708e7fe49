"""The work of the middleware at each hook, as functions of a conversation and a run.

All of them are idempotent: appending messages that the log has writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import set_config_context, var_child_runnable_config

from convstore import Conversation
from convstore.exceptions import ContentConflictError, InvalidInputError
from convstore.ext.around import NO_STREAM
from convstore.ext.checkpoints import go_back, is_addressed
from convstore.ext.langchain.resent import removal
from convstore.ext.langchain.results import SETTING, as_in_state, give_result_ids
from convstore.ext.langchain.run import AgentRun, Rules, ids_in_log, read_turn
from convstore.ext.run_turns import done_in_graph, finish, has_moved, hold_turn
from convstore.integration import HeldTurn, TurnAccess, host_of
from convstore.messages.filing import (
    ids_of,
    last_question,
    last_turn_of,
    pending_results,
    with_unread,
    without_marks,
)
from convstore.messages.tokens import approximate_tokens
from convstore.types import History, Receipt
from convstore.values.append_options import AppendOptions

_Result = TypeVar("_Result")


async def rebuild_run(
    chat: Conversation, rules: Rules, messages: Sequence[BaseMessage], turn_id: str | None
) -> AgentRun:
    """Rebuild the run of a state that lost it: after a resume, at an older checkpoint, or on another worker.

    `turn_id` is used if the state has no question.
    """
    run = AgentRun(chat, rules, last_turn_of(messages) or turn_id)
    held = await hold(run, is_new=False)
    found = await read_turn(chat, run.turn_id)
    if is_addressed() or found is None or not ids_of(found.messages[1:]) <= ids_of(messages):
        branch = await go_back(chat, messages, rules.on_fork)
        run.abandoned = branch.abandoned if branch else run.abandoned
        if held:
            # the task of a parallel call may have rewound the log
            await held.read_again()
        found = await read_turn(chat, run.turn_id)
    run.resume(found)
    run.abandoned |= await ids_in_log(chat, pending_results(messages)) - ids_of(run.ahead)
    return run


async def append_missing(run: AgentRun, messages: Sequence[BaseMessage]) -> None:
    """Append the messages that the log does not have; one command, or no command if it has all of them."""
    missing = run.missing(messages)
    if not missing:
        return
    done_in_graph().update(ids_of(missing))
    try:
        receipt = await _append(run, missing)
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
    run.view.entry = receipt.entry or run.view.entry
    run.note_appended(missing)
    is_begun = run.turn_id in ids_of(missing)
    if is_begun and receipt.written < len(missing):  # another worker was faster
        run.resume(await read_turn(run.chat, run.turn_id))
        run.view.before = None


async def hold(run: AgentRun, *, is_new: bool | None = None) -> HeldTurn | None:
    """Hold the turn of the run, so that no other run calls its model or its tools; None if the run has no question.

    Messages that another run appended meanwhile are taken over from the log.
    """
    if run.turn_id is None:
        return None
    known = TurnAccess(run.chat).held(run.turn_id)
    is_new = run.turn_id not in run.logged if is_new is None else is_new
    held = await hold_turn(run.chat, run.turn_id, busy=run.rules.busy, is_new=is_new)
    if held is known:
        return held
    if has_moved(held, run.view.history, end=held.tail.messages):
        run.view.before = None
    later = ids_of(held.record.messages[1:])
    if later - run.logged.keys():
        only_here = [each for each in run.ahead if each.id not in later]
        run.ahead = [*run.take_over(held.record), *only_here]
    return held


async def _append(run: AgentRun, missing: Sequence[BaseMessage]) -> Receipt:
    """Append messages of the state to the turn that the run holds; without a question, to the log.

    A client's history is compared with the log again.
    """
    options: dict[str, Any] = {
        "on_unencodable": run.rules.on_unencodable,
        "on_source_clash": run.rules.on_source_clash,
    }
    if any(isinstance(message, AIMessage) for message in missing):
        options["stamp"] = run.view.take_stamp(run.turn_id)
    held = await hold(run) if _has_question(run, missing) else None
    if run.resent is not None:
        receipt = await _append_resent(run, run.resent, missing, AppendOptions(**options))
    elif held is not None:
        receipt = await TurnAccess(run.chat).append(held, missing, **options)
    else:
        receipt = await run.chat.append(without_marks(missing), **options)
    if held is not None:
        if run.resent is not None:
            await held.read_again()
        is_begun = run.turn_id in ids_of(missing)
        if is_begun and has_moved(held, run.view.history, end=receipt.first - 1):
            run.view.before = None
    return receipt


async def _append_resent(
    run: AgentRun,
    resent: Sequence[BaseMessage],
    missing: Sequence[BaseMessage],
    options: AppendOptions,
) -> Receipt:
    """Append messages of a client's history, which is compared with the log again."""
    # Copies, because known messages get their ids from the log, but the state keeps the client's ids.
    history = [message.model_copy() for message in without_marks([*resent, *missing])]
    trust = replace(run.rules.trust, strict=False, own=frozenset(ids_of(missing)))
    resender = (await host_of(run.chat).services()).resender
    scope = tuple(run.chat.scope.items())
    found: Receipt = await resender.append(scope, history, skip=True, trust=trust, options=options)
    return found


def _has_question(run: AgentRun, missing: Sequence[BaseMessage]) -> bool:
    """Return True if the log or the messages to append have the question of a run.

    If it was removed from the state before it was appended, the last question to append becomes that of the run.
    """
    if run.turn_id in run.logged or run.turn_id in ids_of(missing):
        return True
    at = last_question(missing)
    if at is None:
        return False
    run.turn_id = missing[at].id
    return True


async def prepare(
    run: AgentRun, messages: Sequence[BaseMessage], state: Sequence[BaseMessage]
) -> AIMessage | list[BaseMessage]:
    """Return the messages for the model at this step, or its stored reply to this step.

    `messages` is the turn in the request, which other middleware may have changed; `state` has the whole turn.
    """
    give_result_ids(messages)
    await append_missing(run, as_in_state(messages, state))
    _check_question(run)
    await hold(run)
    if answer := run.next_answer(messages):
        done_in_graph().add(str(answer.id))
        return answer
    messages = with_unread(run.turn, messages)
    if run.view.needs_load(messages):
        history = await load(run)
        own = ids_of([*messages, *run.ahead])
        run.view.take(history, messages, own=own, logged=run.logged)
    run.view.is_adapted = bool(run.missing(messages))
    return run.view.show(messages)


def _check_question(run: AgentRun) -> None:
    """Raise an InvalidInputError if the state has lost the question of a run that is not in the log."""
    if run.turn_id is not None and run.turn_id not in run.logged:
        raise InvalidInputError(
            "the question of this run was removed from the state before it was appended, so the "
            "model would get no question; end the run instead "
            '(`jump_to="end"`), or replace the question by another human message'
        )


async def end(run: AgentRun, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Append the remaining messages, and summarise if a summary is due; return the changes to the state's messages.

    If the answer came from the log, nothing is appended. The hooks of other middleware ran at the end of the first run,
    so messages that they add now are removed from the state.
    """
    if run.is_answered:
        return [
            removal(message) for message in run.missing(messages[last_question(messages) or 0 :])
        ]
    await append_missing(run, messages)
    # the result of a tool with `return_direct`, or a structured response
    is_result_last = bool(messages) and isinstance(messages[-1], ToolMessage)
    if is_result_last and (held := await hold(run)):
        await finish(held)
    await _summarise(run, messages)
    return []


async def _summarise(run: AgentRun, messages: Sequence[BaseMessage]) -> None:
    history = run.view.history
    if not run.rules.compact or history is None:
        return
    compactor = (await host_of(run.chat).services()).compactor
    policy = run.rules.policy
    later = approximate_tokens(messages)
    if compactor.has_summarizer and compactor.may_be_due(history, policy, later_tokens=later):
        await _unstreamed(compactor.compact_in_time(tuple(run.chat.scope.items())))


async def load(run: AgentRun) -> History:
    """Load the view."""
    return await _unstreamed(run.chat.load_history(run.rules.policy))


async def _unstreamed(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await work of the store. Model calls of a summarizer in it are traced, but not streamed as the agent's."""
    config: RunnableConfig = dict(var_child_runnable_config.get() or {})  # type: ignore[assignment]
    config["tags"] = [*(config.get("tags") or ()), NO_STREAM]
    with set_config_context(config) as context:
        return await asyncio.create_task(work, context=context)
