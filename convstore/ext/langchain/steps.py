"""What the middleware does at each hook, as functions of a conversation and a run.

Floor 7. Each is called by an async hook with the store's own conversation, and by a sync hook with that of the store's
twin. All of them may be done again: an append of what is there writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import set_config_context, var_child_runnable_config

from convstore.conversation import Conversation
from convstore.exceptions import ContentConflictError
from convstore.ext.ids import ids_of
from convstore.ext.langchain.evicted import SETTING, as_in_state
from convstore.ext.langchain.logged import LoggedTurn, ids_in_log, read_turn
from convstore.ext.langchain.resent import find_resent
from convstore.ext.langchain.results import give_result_ids
from convstore.ext.langchain.run import AgentRun
from convstore.ext.langchain.shorten import stubbed_until
from convstore.ext.langchain.structured import may_be_structured
from convstore.ext.langchain.turn import is_answer, is_made_up, last_question, turn_of
from convstore.messages.tokens import approximate_tokens
from convstore.values.models import History, Receipt
from convstore.values.policy import HistoryPolicy
from convstore.view.provider_rules import fit_for

__all__ = ["Rules", "begin", "catch_up", "end", "prepare", "take_up"]

_Result = TypeVar("_Result")
_NO_STREAM = "nostream"
"""LangGraph streams no model call with this tag as the agent's."""
_STUB_LIMIT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of a middleware; see `ConversationMiddleware`."""

    policy: HistoryPolicy
    turn_tokens: int | None
    compact: bool
    unencodable: Literal["raise", "omit"]
    on_source_clash: Literal["raise", "renumber"]


async def begin(
    chat: Conversation, rules: Rules, messages: Sequence[BaseMessage], *, is_inner: bool
) -> tuple[AgentRun, list[BaseMessage]]:
    """Load the view, let earlier turns leave the state, and find out whether the question came before.

    One load for a new question. A message of an earlier turn that the log has not, because its run broke off, stays
    in the state and is appended with the question.

    Args:
        chat: The conversation.
        rules: How the middleware works.
        messages: The state's, the question last.
        is_inner: The agent is a part of another graph, which may have put more behind the question.

    Returns:
        What is known of the run, and what changes in the state's messages. If the question is answered, its turn is
        among these or in the state.
    """
    history = await _load(chat, rules)
    shown = ids_of(one for one in history.messages if not is_made_up(one))
    logged = shown & ids_of(messages)
    earlier = messages[: last_question(messages) or 0]
    logged |= await ids_in_log(chat, ids_of(one for one in earlier if not is_made_up(one)) - logged)
    changes: list[BaseMessage] = []
    resent = await find_resent(chat, messages, logged)
    if resent:
        messages, changes, logged = resent.messages, list(resent.changes), logged | resent.logged
    place = last_question(messages) or 0
    earlier, turn = messages[:place], messages[place:]
    run = AgentRun(chat.scope, _turn_id(messages), dict.fromkeys(logged), history=history)
    run.resent = resent.known if resent else None
    changes += [_remove(one) for one in earlier if one.id in logged or is_made_up(one)]
    if run.turn_id not in logged and len(turn) <= 1:
        run.view = None if _is_unfinished(history) else history.messages
        return run, changes
    found = await read_turn(chat, run.turn_id)
    _take_note(run, found)
    if found is None or turn[0].id != run.turn_id or (is_inner and len(turn) > 1):
        return run, changes
    run.ahead = [*found.later, *await _only_here(chat, found, turn[1:])]
    run.is_answered = _is_answered(turn, found, run.ahead)
    if run.is_answered:
        here = ids_of(turn)
        return run, [*changes, *(one for one in run.ahead if one.id not in here)]
    # The state gets them back one by one, so that each passes the hooks again that it had not passed.
    return run, [*changes, *map(_remove, turn[1:])]


async def take_up(chat: Conversation, messages: Sequence[BaseMessage]) -> AgentRun:
    """The run of a state that lost it: after a resume, or on another worker."""
    run = AgentRun(chat.scope, _turn_id(messages))
    found = await read_turn(chat, run.turn_id)
    _take_note(run, found)
    run.ahead = found.later if found else []
    return run


async def catch_up(chat: Conversation, rules: Rules, run: AgentRun, messages: Sequence[BaseMessage]) -> None:
    """Append what the log has not; one command, none if it has all.

    Raises:
        ContentConflictError: A message was changed after it was appended.
    """
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
    ordinals = dict(zip(receipt.message_ids, receipt.ordinals, strict=True))
    run.first = ordinals.get(run.turn_id or "", run.first)
    run.note(missing)
    if receipt.written < len(missing) and not run.is_known:
        found = await read_turn(chat, run.turn_id)
        _take_note(run, found)
        run.ahead, run.view = (found.later if found else []), None
    run.is_known = True


async def _append(chat: Conversation, rules: Rules, run: AgentRun, missing: Sequence[BaseMessage]) -> Receipt:
    """Append messages of the state, those of a client's history after comparing all of it with the log once more."""
    how: dict[str, Any] = {"unencodable": rules.unencodable, "on_source_clash": rules.on_source_clash}
    if run.resent is None:
        return await chat.append(missing, **how)
    # Copies: what is known gets the ids of the log, and the state keeps its own.
    history = [one.model_copy() for one in (*run.resent, *missing)]
    return await chat.append(history, resent="skip", **how)


async def prepare(
    chat: Conversation,
    rules: Rules,
    run: AgentRun,
    messages: Sequence[BaseMessage],
    state: Sequence[BaseMessage],
) -> AIMessage | list[BaseMessage]:
    """Return the messages for the model at this step, view and turn; or its earlier answer to this step.

    Args:
        chat: The conversation.
        rules: How the middleware works.
        run: The run.
        messages: The turn in the request, as other middleware left it.
        state: The state's messages, which have whole what the request may show shortened.
    """
    give_result_ids(messages)
    await catch_up(chat, rules, run, as_in_state(messages, state))
    if answer := run.next_answer(messages):
        return answer
    if run.view is None:
        await _load_view(chat, rules, run, messages)
    turn = [message for message in messages if message.id not in run.folded]
    shown = await _shortened(chat, rules, run, turn)
    return fit_for([*(run.view or ()), *shown], rules.policy.provider)


async def end(chat: Conversation, rules: Rules, run: AgentRun, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Append what is left, and summarise if it is time; gives what changes in the state's messages.

    Where the log gave the answer, nothing is appended: hooks of other middleware ran at the end of the first run, and
    what they add now leaves the state again.
    """
    if run.is_answered:
        return [_remove(one) for one in run.missing(messages[last_question(messages) or 0 :])]
    await catch_up(chat, rules, run, messages)
    await _summarise(chat, rules, run, messages)
    return []


async def _summarise(chat: Conversation, rules: Rules, run: AgentRun, messages: Sequence[BaseMessage]) -> None:
    """Summarise if it is time."""
    if not rules.compact or run.history is None:
        return
    compactor = (await chat.store.services()).compactor
    later = approximate_tokens(messages)
    if compactor.has_summarizer and compactor.may_be_due(run.history, later_tokens=later):
        await _unstreamed(compactor.compact_in_time(tuple(chat.scope.items())))


def _turn_id(messages: Sequence[BaseMessage]) -> str | None:
    """Id of the human message that a state answers, which another middleware may have taken out of it."""
    place = last_question(messages)
    if place is not None:
        return messages[place].id
    return next((turn for one in reversed(messages) if (turn := turn_of(one))), None)


def _take_note(run: AgentRun, found: LoggedTurn | None) -> None:
    run.is_known = True
    if found:
        run.first = found.first
        run.logged |= dict.fromkeys(ids_of(found.later))
        run.note([found.question])  # asked in other words it is not the same


async def _only_here(chat: Conversation, found: LoggedTurn, state: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a turn that only the state has, from a run that broke off before it logged them."""
    known = ids_of(found.later)
    extra = [one for one in state if one.id not in known and not is_made_up(one)]
    rewound = await ids_in_log(chat, ids_of(extra))
    return [one for one in extra if one.id not in rewound]


def _is_answered(turn: Sequence[BaseMessage], found: LoggedTurn, ahead: Sequence[BaseMessage]) -> bool:
    """Return True if the very same question was answered, in a way that needs nothing else done."""
    if not found.is_finished or len(ahead) > len(found.later) or turn[0] != found.question:
        return False
    answer = found.later[-1]
    return isinstance(answer, AIMessage) and not may_be_structured(answer)


def _is_unfinished(history: History) -> bool:
    """Return True if the last turn of a view is in progress, and therefore shown in full."""
    said = [one for one in history.messages if not is_made_up(one)]
    return bool(said) and said[-1].type != "system" and not is_answer(said[-1])


def _remove(message: BaseMessage) -> BaseMessage:
    return RemoveMessage(str(message.id))


async def _load(chat: Conversation, rules: Rules) -> History:
    return await _unstreamed(chat.load_history(rules.policy))


async def _load_view(chat: Conversation, rules: Rules, run: AgentRun, messages: Sequence[BaseMessage]) -> None:
    """Load what precedes the turn, when the log has the turn's beginning already."""
    run.history = history = await _load(chat, rules)
    ids = [message.id for message in messages]
    own = {*ids, *ids_of(run.ahead)}
    start = next((at for at, one in enumerate(history.messages) if one.id in own), len(history.messages))
    run.view = history.messages[:start]
    if history.summary is not None and start < len(history.messages):
        # A compaction in the middle of a long turn: its beginning is in the summary.
        place = ids.index(history.messages[start].id) if history.messages[start].id in ids else 0
        run.folded = frozenset(str(each) for each in ids[:place] if each in run.logged)


async def _shortened(chat: Conversation, rules: Rules, run: AgentRun, turn: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The turn, its older results as stubs if it is over its budget."""
    if rules.turn_tokens is None:
        return list(turn)
    until, is_guess = stubbed_until(turn, run.stubs, budget=rules.turn_tokens)
    if is_guess and run.first is not None:
        unread = [one for one in turn if isinstance(one, ToolMessage) and one.id not in run.stubs]
        await _read_stubs(chat, rules, run, unread)
        until, _ = stubbed_until(turn, run.stubs, budget=rules.turn_tokens)
    return [run.stubs.get(str(one.id)) or one if at < until else one for at, one in enumerate(turn)]


async def _read_stubs(chat: Conversation, rules: Rules, run: AgentRun, unread: Sequence[ToolMessage]) -> None:
    """The stubs that the log made of some results; of those that policies leave whole there are none."""
    page = await chat.list_messages(after=(run.first or 1) - 1, limit=_STUB_LIMIT)
    short = {one.message.id: one.message for one in page}
    for result in unread:
        stub = short.get(result.id)
        is_stub = isinstance(stub, ToolMessage) and stub.content != result.content
        is_exempt = result.name in rules.policy.never_stub or rules.policy.stub_tools == "never"
        run.stubs[str(result.id)] = (
            cast("ToolMessage", stub).model_copy(update={"tool_call_id": result.tool_call_id})
            if is_stub and not is_exempt
            else None
        )


async def _unstreamed(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Do work of the store's; calls of a summarizer's model are traced, but not streamed as the agent's."""
    config: RunnableConfig = dict(var_child_runnable_config.get() or {})  # type: ignore[assignment]
    config["tags"] = [*(config.get("tags") or ()), _NO_STREAM]
    with set_config_context(config) as context:
        return await asyncio.create_task(work, context=context)
