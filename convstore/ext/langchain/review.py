"""Let persons decide about an agent's tool calls: record the calls that wait, and resume the agent after the decisions.

LangChain's ``HumanInTheLoopMiddleware`` interrupts the agent's graph. Before that, the store's middleware records which
calls wait. So a page that shows the log can ask a person, and `Conversation.decide` records the decision.
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
from convstore.edges import check_conversation
from convstore.exceptions import InvalidInputError
from convstore.ext.checkpoints import run_config
from convstore.ext.langchain.results import call_position
from convstore.integration import TurnAccess, TurnRecord
from convstore.messages.tool_calls import result_id, result_ids
from convstore.values.scope import check_id
from convstore.values.turns import Pause, TurnCall

Review = HumanInTheLoopMiddleware[Any, Any, Any]
_EDITED = "hitl_edited_tool_calls"


async def resume_command(chat: Conversation, turn_id: str) -> Command[Any] | None:
    """Return the command that resumes an agent with the recorded decisions on its tool calls.

    It has the decisions on all calls that the agent asked about, in their order, as `Conversation.decide` recorded
    them. Two or three database commands; none within a session of the turn, whose decisions are used. A variant that is
    not active yet needs such a session.

    Args:
        chat: The conversation.
        turn_id: The id of the turn, which is that of its question.

    Returns:
        None if a call still waits, or if there is nothing to resume. Then send the question again under its id.

    Raises:
        UnknownMessageError: The turn is not in the log, or was rewound.
        InvalidInputError: `chat` is not a conversation, or `turn_id` not an id.
    """
    check_conversation(chat)
    paused = await TurnAccess(chat).paused_calls(check_id(turn_id, name="turn_id"))
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
    """Raise an InvalidInputError if the current run cannot be resumed, because it has no checkpointer."""
    if not run_config()[0].get("__pregel_checkpointer"):
        raise InvalidInputError(
            "an agent that waits for a person cannot be resumed without a checkpointer; pass one "
            "that all workers "
            "share, such as create_agent(..., checkpointer=MongoDBSaver(...)), or leave out review"
        )


def answer_in_log(
    record: TurnRecord, messages: Sequence[BaseMessage], call: ToolCall | None = None
) -> Any:
    """Return the answer to the next interrupt of a review if all its calls were decided; else None.

    Args:
        record: The turn from the log.
        messages: The messages of the agent's state.
        call: The call that the review asks about; None if it asks about the calls of the last AI message together.
    """
    calls = _batch_calls(record, messages) if call is None else _single_call(record, messages, call)
    # A call that was resumed without `decide` has a result, but no decision.
    is_decided = all(reviewed.decision or record.result(reviewed.result_id) for reviewed in calls)
    if not calls or not is_decided:
        return None
    answers = [_answer(reviewed) for reviewed in calls]
    return {"decisions": answers} if call is None else answers[0]


def _batch_calls(record: TurnRecord, messages: Sequence[BaseMessage]) -> list[TurnCall]:
    """Return the calls of the last AI message that one interrupt asked about together."""
    reply = _last_reply(messages)
    reviewed = record.reviewed(str(reply.id)) if reply else []
    return [call for call, pause in reviewed if pause.is_batch]


def _single_call(
    record: TurnRecord, messages: Sequence[BaseMessage], call: ToolCall
) -> list[TurnCall]:
    """Return a call if an interrupt asked about it alone; else an empty list."""
    message_id, position = call_position(messages, call)
    wanted = result_id(message_id, str(call["id"]), position)
    reviewed = record.reviewed(message_id)
    return [own for own, pause in reviewed if own.result_id == wanted and not pause.is_batch]


def _last_reply(messages: Sequence[BaseMessage]) -> AIMessage | None:
    return next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)


def give_answer(answer: Any) -> None:
    """Make the next interrupt of the current task return an answer, unless its run was resumed with one.

    This is needed if the checkpoint of the answered interrupt is lost. LangGraph has no public function for it. In a
    version of LangGraph that stores answers elsewhere this has no effect, and the agent asks again.
    """
    scratchpad = run_config()[0].get("__pregel_scratchpad")
    answers = getattr(scratchpad, "resume", None)
    resumed_with = getattr(scratchpad, "get_null_resume", None)
    if answer is None or not isinstance(answers, list) or not callable(resumed_with):
        return
    if not answers and resumed_with(False) is None:
        answers.append(answer)


def _answer(call: TurnCall) -> dict[str, Any]:
    """Return a decision in the format of LangChain's middleware."""
    decided = call.decision
    if decided is None or decided.verdict == "approve":
        return {"type": "approve"}
    if decided.verdict == "edit":
        return {"type": "edit", "edited_action": {"name": call.name, "args": decided.args}}
    return {"type": decided.verdict} | ({"message": decided.message} if decided.message else {})


def pauses_in(interrupt: GraphInterrupt, messages: Sequence[BaseMessage]) -> dict[str, Pause]:
    """Return the pauses of the last AI message's calls, by the ids of their results; {} for any other interrupt."""
    reply = _last_reply(messages)
    if reply is None:
        return {}
    calls = list(zip(reply.tool_calls, result_ids(reply), strict=False))
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
    """Return the pause of a call whose tool asks for approval itself."""
    if value.get("type") != "tool_approval":
        return {}
    # All fields are compared, because an agent inside the tool may ask about its own call with the same id.
    wanted = (value.get("tool_call_id"), value.get("name"), value.get("args"))
    return {
        id_: Pause(interrupt)
        for call, id_ in calls
        if (call["id"], call["name"], call["args"]) == wanted
    }


def _asked_in_batch(
    value: Mapping[str, Any], interrupt: str, calls: _NamedCalls
) -> dict[str, Pause]:
    """Return the pauses of the calls that LangChain's middleware asks about together."""
    found: dict[str, Pause] = {}
    rest = iter(calls)
    configs = value.get("review_configs", ())
    for action, config in zip(value.get("action_requests", ()), configs, strict=False):
        wanted = (action["name"], action["args"])
        same = (id_ for call, id_ in rest if (call["name"], call["args"]) == wanted)
        if id_ := next(same, ""):
            found[id_] = Pause(interrupt, True, tuple(config["allowed_decisions"]))
    return found


def warn_of_review(state: Mapping[str, Any]) -> None:
    """Warn if a review middleware of the agent asked a person about a call before the call was in the log."""
    if _EDITED in state:
        warnings.warn(
            "HumanInTheLoopMiddleware asked a person before ConversationMiddleware appended the "
            "call; pass it as ConversationMiddleware(review=...) instead of to the agent",
            RuntimeWarning,
            stacklevel=2,
        )


def state_with(review: Review, schema: type[Any]) -> type[Any]:
    """Return the schema of a middleware's state with the channels of a review."""
    if not isinstance(review, HumanInTheLoopMiddleware):
        raise InvalidInputError(
            f"review must be a HumanInTheLoopMiddleware, not {type(review).__name__}"
        )
    return new_class("ReviewedAgentState", (schema, review.state_schema))
