"""Let persons decide about an agent's calls: what the log records as they are asked, and what resumes the agent.

LangChain's ``HumanInTheLoopMiddleware`` interrupts the agent's graph. The middleware of the store records before that
which calls wait. So a page that shows the log can ask, and `Conversation.decide` records what a person said.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import new_class
from typing import Any

from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langgraph.errors import GraphInterrupt
from langgraph.types import Command

from convstore import Conversation
from convstore.exceptions import InvalidInputError
from convstore.ext.checkpoints import run_config
from convstore.ext.langchain.results import call_position
from convstore.integration import TurnAccess, TurnRecord
from convstore.messages.tool_calls import result_id, result_ids
from convstore.values.turns import Pause, TurnCall

Review = HumanInTheLoopMiddleware[Any, Any, Any]
_EDITED = "hitl_edited_tool_calls"


async def resume_command(chat: Conversation, turn_id: str) -> Command[Any] | None:
    """Return the command that resumes an agent with what persons decided about its calls.

    It has the decisions of all calls that the agent asked about, in their order, as `Conversation.decide` recorded
    them. None if a call still waits, or if there is nothing to resume: send the question again then, under its id. Two
    or three commands. Within a session of the turn, which another answer needs, it is that of the session, without a
    command.

    Args:
        chat: The conversation.
        turn_id: The turn, whose id is that of its question.

    Raises:
        UnknownMessageError: The turn is not in the log, or was rewound.
    """
    paused = await TurnAccess(chat).paused_calls(turn_id)
    if not paused or any(call.decision is None for call, _ in paused):
        return None
    resume: dict[str, Any] = {}
    for call, pause in paused:
        if pause.is_batch:
            resume.setdefault(pause.interrupt, {"decisions": []})["decisions"].append(_answer(call))
        else:
            resume[pause.interrupt] = _answer(call)
    is_only_batch = len(resume) == 1 and paused[0][1].is_batch
    return Command(resume=next(iter(resume.values())) if is_only_batch else resume)


def check_resumable() -> None:
    """Raise an InvalidInputError if the current run has no checkpointer, so that nothing could resume it."""
    if not run_config()[0].get("__pregel_checkpointer"):
        raise InvalidInputError(
            "an agent that waits for a person cannot be resumed without a checkpointer; pass one "
            "that all workers "
            "share, such as create_agent(..., checkpointer=MongoDBSaver(...)), or leave out review"
        )


def answer_in_log(
    record: TurnRecord, messages: Sequence[BaseMessage], call: ToolCall | None = None
) -> Any:
    """Return the answer to the next interrupt of a review if all calls that it is about were decided; else None.

    Args:
        record: The turn, as the log has it.
        messages: The messages of the agent's state.
        call: The call that the review asks about; None if it asks about those of the last AI message at once.
    """
    calls = _calls_at_once(record, messages) if call is None else _call(record, messages, call)
    # A call that was resumed without `decide` has its result only.
    is_decided = all(asked.decision or record.result(asked.result_id) for asked in calls)
    if not calls or not is_decided:
        return None
    answers = [_answer(asked) for asked in calls]
    return {"decisions": answers} if call is None else answers[0]


def _calls_at_once(record: TurnRecord, messages: Sequence[BaseMessage]) -> list[TurnCall]:
    """Return the calls of the last AI message that one interrupt was about."""
    asking = _last_reply(messages)
    reviewed = record.reviewed(str(asking.id)) if asking else []
    return [asked for asked, pause in reviewed if pause.is_batch]


def _call(record: TurnRecord, messages: Sequence[BaseMessage], call: ToolCall) -> list[TurnCall]:
    """Return a call if an interrupt was about it alone."""
    message_id, position = call_position(messages, call)
    wanted = result_id(message_id, str(call["id"]), position)
    reviewed = record.reviewed(message_id)
    return [asked for asked, pause in reviewed if asked.result_id == wanted and not pause.is_batch]


def _last_reply(messages: Sequence[BaseMessage]) -> AIMessage | None:
    return next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)


def give_answer(answer: Any) -> None:
    """Let the next interrupt of the current task return an answer, unless its run was resumed with one.

    The checkpoint of the interrupt that was answered may be lost. LangGraph has no public function for this; where it
    keeps its answers otherwise, the agent asks again.
    """
    scratchpad = run_config()[0].get("__pregel_scratchpad")
    answers = getattr(scratchpad, "resume", None)
    resumed_with = getattr(scratchpad, "get_null_resume", None)
    if answer is None or not isinstance(answers, list) or not callable(resumed_with):
        return
    if not answers and resumed_with(False) is None:
        answers.append(answer)


def _answer(call: TurnCall) -> dict[str, Any]:
    """Return a decision as LangChain's middleware takes it."""
    decided = call.decision
    if decided is None or decided.verdict == "approve":
        return {"type": "approve"}
    if decided.verdict == "edit":
        return {"type": "edit", "edited_action": {"name": call.name, "args": decided.args}}
    return {"type": decided.verdict} | ({"message": decided.message} if decided.message else {})


def pauses_in(interrupt: GraphInterrupt, messages: Sequence[BaseMessage]) -> dict[str, Pause]:
    """Return how the calls of the last AI message wait, by the ids of their results; {} for another interrupt."""
    asking = _last_reply(messages)
    if asking is None:
        return {}
    calls = list(zip(asking.tool_calls, result_ids(asking), strict=False))
    found: dict[str, Pause] = {}
    for item in interrupt.args[0] if interrupt.args else ():
        if isinstance(item.value, Mapping):
            found |= _asked_by_tool(item.value, item.id, calls)
            found |= _asked_in_batch(item.value, item.id, calls)
    return found


_NamedCalls = Sequence[tuple[ToolCall, str]]


def _asked_by_tool(
    value: Mapping[str, Any], interrupt: str, calls: _NamedCalls
) -> dict[str, Pause]:
    """Return how a call waits whose tool asks for approval itself."""
    if value.get("type") != "tool_approval":
        return {}
    # Compared whole, because an agent in the tool may ask about a call of its own with the same id.
    asked = (value.get("tool_call_id"), value.get("name"), value.get("args"))
    return {
        id_: Pause(interrupt)
        for call, id_ in calls
        if (call["id"], call["name"], call["args"]) == asked
    }


def _asked_in_batch(
    value: Mapping[str, Any], interrupt: str, calls: _NamedCalls
) -> dict[str, Pause]:
    """Return how calls wait that LangChain's middleware asks about at once."""
    found: dict[str, Pause] = {}
    rest = iter(calls)
    configs = value.get("review_configs", ())
    for action, config in zip(value.get("action_requests", ()), configs, strict=False):
        asked = (action["name"], action["args"])
        same = (id_ for call, id_ in rest if (call["name"], call["args"]) == asked)
        if id_ := next(same, ""):
            found[id_] = Pause(interrupt, True, tuple(config["allowed_decisions"]))
    return found


def warn_of_review(state: Mapping[str, Any]) -> None:
    """Warn if a review that was passed to the agent asked a person about a call that was not in the log."""
    if _EDITED in state:
        warnings.warn(
            "HumanInTheLoopMiddleware asked a person before ConversationMiddleware appended the "
            "call; pass it as ConversationMiddleware(review=...) instead of to the agent",
            RuntimeWarning,
            stacklevel=2,
        )


def state_with(review: Review, schema: type[Any]) -> type[Any]:
    """Return the schema of a middleware's state with the channels of a review."""
    return new_class("ReviewedAgentState", (schema, review.state_schema))
