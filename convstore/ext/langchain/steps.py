"""The work of the middleware at each hook, as functions of a conversation and a run.

All of them may run again: appending messages that the log has writes nothing.

The module is long because the hooks of one run share the rules by which its state and the log are joined.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import set_config_context, var_child_runnable_config

from convstore import Conversation
from convstore.exceptions import (
    ContentConflictError,
    HistoryDivergedError,
    InvalidInputError,
    UntrustedMessageError,
)
from convstore.ext.around import with_turn_id
from convstore.ext.langchain.resent import find_resent, removal
from convstore.ext.langchain.results import (
    OWN,
    SETTING,
    as_in_state,
    give_result_ids,
    is_of_no_call,
    may_be_structured,
)
from convstore.ext.langchain.run import NO_STREAM, AgentRun, ConversationAgentState
from convstore.ext.langchain.turn import TurnMessages, ids_in_log, read_turn
from convstore.ext.langchain.unimported import find_unimported
from convstore.ext.older_checkpoint import (
    OnFork,
    go_back,
    is_addressed,
    is_nested,
    may_be_behind,
    run_config,
)
from convstore.ext.run_turns import hold_turn, turn_of_run
from convstore.integration import (
    Busy,
    Trust,
    append_in_turn,
    catch_up_turn,
    finish_in_turn,
    fit_for,
    held_by_caller,
    host_of,
    last_seen,
    made_for,
    sendable_message,
)
from convstore.messages.encoding import digest_of_messages
from convstore.messages.filing import (
    ids_of,
    is_answer,
    is_question,
    last_question,
    last_turn_of,
    pending_results,
)
from convstore.messages.provenance import is_made_up
from convstore.messages.tokens import approximate_tokens
from convstore.messages.tool_calls import is_paired
from convstore.messages.unread import steps_of, with_unread
from convstore.types import History, Receipt
from convstore.values.append_options import AppendOptions
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


async def begin(  # noqa: PLR0915
    chat: Conversation, rules: Rules, state: ConversationAgentState
) -> tuple[AgentRun, list[BaseMessage]]:
    """Load the view, remove earlier turns from the state, and look up the question in the log if its id was used.

    A new question costs one load. A message of an earlier turn that the log does not have, because its run was
    interrupted, stays in the state and is appended with the question. Another graph may have added messages after the
    question, if the agent is part of one. Returns the run, and the changes to the state's messages, which complete an
    answered turn, or remove an input that is refused, so that the thread takes the next one.
    """
    results_of_no_call = list(filter(is_of_no_call, state["messages"]))
    messages: Sequence[BaseMessage] = [
        sent for sent in state["messages"] if sent not in results_of_no_call
    ]
    # The first step of a run without earlier checkpoints: all that the state has is the run's input.
    is_inner = is_nested()
    is_first = run_config()[1].get("langgraph_step") == 1
    history = await _load(chat, rules)
    changes = list(map(removal, results_of_no_call))
    branch = (
        await go_back(chat, messages, rules.on_fork) if may_be_behind(history, messages) else None
    )
    if branch:
        history = await _load(chat, rules)
        messages = branch.messages
        changes = [*changes, *branch.changes]
    shown = ids_of(message for message in history.messages if not is_made_up(message))
    logged = shown & ids_of(messages)
    question = last_question(messages) or 0
    others = [*messages[:question], *messages[question + 1 :]]
    logged |= await ids_in_log(
        chat, ids_of(message for message in others if not is_made_up(message)) - logged
    )
    may_be_older = not (is_inner or is_first or rules.trust.is_all)
    if may_be_older and (unimported := await find_unimported(chat, state, messages, logged)):
        return unimported
    own = set(state.get(OWN, ()))
    made = ids_of(
        sent
        for sent in messages
        if own and sent.id not in logged and digest_of_messages([sent]) in own
    )
    trust = replace(rules.trust, own=frozenset(made))
    try:
        resent = await find_resent(
            chat, messages, logged, trust, is_client=is_first and not is_inner
        )
    except (HistoryDivergedError, UntrustedMessageError) as refusal:
        refused = [message for message in messages if message.id not in logged | trust.own]
        return AgentRun(chat.scope, refusal=refusal), [*changes, *map(removal, refused)]
    if resent:
        messages = resent.messages
        changes = [*changes, *resent.changes]
        logged = logged | resent.logged
    messages, named = await with_turn_id(chat, messages)
    changes = [*changes, *named]
    logged = logged | (shown & ids_of(named))
    earlier, turn = _divided(messages)
    turn_id = last_turn_of(messages) or _lost_question(history, logged)
    logged |= shown & {str(turn_id)}
    run = AgentRun(chat.scope, turn_id, dict.fromkeys(logged), history=history)
    run.resent = resent.known if resent else None
    run.abandoned = branch.abandoned if branch else frozenset()
    removed = ids_of(
        message for message in earlier if message.id in logged or is_made_up(message)
    ) - ids_of(turn)
    if not trust.is_all:
        removed |= ids_of(filter(is_made_up, turn))
        removed |= (
            ids_of(turn) & logged if run.turn_id not in logged else set()
        )  # none can follow a new question
    changes += [removal(message) for message in messages if message.id in removed]
    turn = [message for message in turn if message.id not in removed]
    last = _last_said(history)
    if not turn and last and is_answer(last):
        raise InvalidInputError(
            "the run has no human message, and the last turn of the conversation has its answer; pass a question: "
            '{"messages": [HumanMessage(...)]}; for another answer to the last one see `regenerate` of `chat.turn`'
        )
    if run.turn_id not in logged and len(turn) <= 1:
        is_unfinished = (
            last and last.type != "system" and not is_answer(last)
        )  # then the view has all of the turn
        run.view = None if is_unfinished else history.messages
        return run, changes
    return run, [*changes, *await _found_again(chat, run, turn, trust, is_inner=is_inner)]


async def _found_again(
    chat: Conversation, run: AgentRun, turn: Sequence[BaseMessage], trust: Trust, *, is_inner: bool
) -> list[BaseMessage]:
    """Look up a turn that may have begun before; return the changes to the state's messages."""
    found = await read_turn(chat, run.turn_id)
    _take_note(run, found)
    if found is None:
        return []
    if turn[0].id != run.turn_id or (is_inner and len(turn) > 1):
        if not trust.is_all:
            run.note(found.later)  # as logged, so that other content is a conflict
        is_last = turn[-1].id in ids_of(found.until_answer[-1:])
        run.is_answered = is_last and not is_inner  # of a state that has lost the question
        return []
    only_here = await _only_here(chat, found, turn[1:])
    run.ahead = [*found.later, *only_here]
    run.is_answered = not only_here and _is_answered(turn, found)
    if run.is_answered:
        run.ahead = found.until_answer
        return run.ahead
    # They enter the state again one by one, so that each passes the hooks that it had not passed.
    return list(map(removal, turn[1:]))


def _lost_question(history: History, logged: Collection[str]) -> str | None:
    """Return the question of those messages of a state that a view has, though the state has lost it."""
    question = found = None
    for message in history.messages:
        if is_question(message) and not is_made_up(message):
            question = message.id
        if message.id in logged:
            found = question
    return found


def _divided(
    messages: Sequence[BaseMessage],
) -> tuple[Sequence[BaseMessage], Sequence[BaseMessage]]:
    """Return the messages before the last question, and those from it on."""
    start = last_question(messages) or 0
    return messages[:start], messages[start:]


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
        await catch_up_turn(chat, run.turn_id)  # the task of a parallel call may have gone back
        found = await read_turn(chat, run.turn_id)
    _take_note(run, found)
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
            "Another middleware changed a message after it was appended. Place ConversationMiddleware first, and if "
            'results of tools are changed before the model sees them, pass tool_results="after_hooks". '
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
        _take_note(run, found)
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
    later = held.record.messages[1:]
    if ids_of(later) - run.logged.keys():
        only_here = [each for each in run.ahead if each.id not in ids_of(later)]
        _take_note(run, TurnMessages(held.record.messages[0], later))
        run.ahead = [*later, *only_here]


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
    if run.resent is None:
        turn_id = _turn_of(run, missing)
        if turn_id is None:
            return await chat.append(missing, **how)
        is_new = turn_id not in run.logged
        async with turn_of_run(chat, turn_id, busy=rules.busy, is_new=is_new) as held:
            receipt = await append_in_turn(chat, held, missing, **how)
            if not held.sharing and _has_moved(run, receipt, missing):
                run.view = None
            return receipt
    # Copies, because known messages get the ids of the log, and the state keeps its own.
    history = [message.model_copy() for message in (*run.resent, *missing)]
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
    run.shown = _fitted(run.with_turn(messages), run, rules.policy.provider)
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
            "the question of this run was removed from the state before it was appended, so the model would be asked "
            'nothing; end the run instead (`jump_to="end"`), or put another human message in its place'
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
    if (
        budget is None or rules.policy.view == "conversation"
    ):  # that view has no results of this turn
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
    if (
        run.turn_id and messages and isinstance(messages[-1], ToolMessage)
    ):  # of a tool with `return_direct`
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


def _take_note(run: AgentRun, found: TurnMessages | None) -> None:
    run.is_known = True
    if found:
        run.logged |= dict.fromkeys(ids_of(found.later))
        run.note([found.question])  # as logged, so that a question in other words is a conflict
        if steps := steps_of(found.later):
            run.unread = set(steps[-1])


async def _only_here(
    chat: Conversation, found: TurnMessages, state: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Return the messages of a turn that only the state has: their run was interrupted before it logged them."""
    known = ids_of(found.later)
    extra = [message for message in state if message.id not in known and not is_made_up(message)]
    logged = await ids_in_log(chat, ids_of(extra))
    return [message for message in extra if message.id not in logged]


def _is_answered(turn: Sequence[BaseMessage], found: TurnMessages) -> bool:
    """Return True if the same question was answered, and the answer needs no further work."""
    answer = found.until_answer[-1:]
    return bool(answer) and turn[0] == found.question and not may_be_structured(answer[0])


def _last_said(history: History) -> BaseMessage | None:
    """Return the last message of a view that is in the log."""
    return next(
        (message for message in reversed(history.messages) if not is_made_up(message)), None
    )


async def _load(chat: Conversation, rules: Rules) -> History:
    return await _unstreamed(chat.load_history(rules.policy))


async def _load_view(
    chat: Conversation, rules: Rules, run: AgentRun, messages: Sequence[BaseMessage]
) -> None:
    """Load the view before the turn; above the budget, that of the turn as far as the log has it, too."""
    run.history = await _load(chat, rules)
    run.entry = 0
    run.folded = frozenset()
    history = run.history
    given = {str(message.id): message for message in messages}
    own = {*given, *ids_of(run.ahead)}
    start = next(
        (at for at, message in enumerate(history.messages) if message.id in own),
        len(history.messages),
    )
    run.view = history.messages[:start]
    turn = history.messages[start:]
    if _exceeds(chat, rules, run, messages):
        report = history.report
        changed = {*report.stubbed, *report.shortened, *report.placeholders}
        shown = [message for message in turn if message.id in given or is_made_up(message)]
        run.view += [
            message if message.id in changed else given.get(str(message.id), message)
            for message in shown
        ]
        run.folded = frozenset(id_ for id_ in given if id_ in run.logged)
    elif history.summary is not None and turn:
        # A compaction during a long turn: the summary covers its beginning.
        ids = list(given)
        end = ids.index(str(turn[0].id)) if turn[0].id in given else 0
        run.folded = frozenset(id_ for id_ in ids[:end] if id_ in run.logged)


async def _unstreamed(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run work of the store. Calls of a summarizer's model in it are traced, but not streamed as the agent's."""
    config: RunnableConfig = dict(var_child_runnable_config.get() or {})  # type: ignore[assignment]
    config["tags"] = [*(config.get("tags") or ()), NO_STREAM]
    with set_config_context(config) as context:
        return await asyncio.create_task(work, context=context)
