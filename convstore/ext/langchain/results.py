"""Results of tools: their ids, the structured response in an answer, and older ones that a long turn shows shortened.

LangChain gives results their ids when they enter the state, at random. That is too late to append them before, and a
repeated step would get other ids. It makes the structured response where it calls the model; a step that is taken from
the log calls none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final
from uuid import uuid4

from langchain.agents.middleware.types import ToolCallRequest
from langchain.agents.structured_output import (
    AutoStrategy,
    OutputToolBinding,
    ProviderStrategy,
    ProviderStrategyBinding,
    ToolStrategy,
)
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolCall,
    ToolMessage,
    convert_to_messages,
)
from langgraph.types import Command

from convstore.messages.encoding import digest_of_messages
from convstore.messages.filing import marked_as_added, state_marks, with_state_mark
from convstore.messages.provenance import mark
from convstore.messages.tool_calls import result_id
from convstore.messages.turn_calls import cut_error
from convstore.sources.outputs import messages_in, results_in, with_messages, with_results
from convstore.values.scope import id_problem

SETTING = (
    "FilesystemMiddleware(tool_token_limit_before_evict=None, "
    "human_message_token_limit_before_evict=None)"
)
"""The middleware of deepagents that moves nothing."""
ToolOutput = ToolMessage | Command[Any]
OWN: Final = "convstore_own"
"""Channel of an agent's state: digests of its own messages that the log may lack."""
_RESULT = "Tool result too large, the result of this tool call "
_TAG = "lc_evicted_to"
_HANDS_OVER = "hands_over"
_ENDS_AGENT = "ends_agent"


def cut_result(messages: Sequence[BaseMessage], call: ToolCall) -> ToolMessage | None:
    """Return the result of a call that the output limit cut off, so that no tool runs it; None for any other call."""
    caller, _ = _caller(messages, call)
    error = cut_error(caller, call["id"]) if caller else ""
    if not error:
        return None
    return ToolMessage(error, tool_call_id=call["id"], name=call["name"], status="error")


def call_position(messages: Sequence[BaseMessage], call: ToolCall) -> tuple[str, int]:
    """Return the id of the last AI message with a call, and the position of the call among its calls with that id."""
    caller, same = _caller(messages, call)
    if caller is None:
        return "", 0
    with_args = (at for at, made in enumerate(same) if made["args"] == call["args"])
    return str(caller.id), next(with_args, 0)


def _caller(
    messages: Sequence[BaseMessage], call: ToolCall
) -> tuple[AIMessage | None, list[ToolCall]]:
    """Return the last AI message with a call, and its calls with the same id; None if there is none."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            same = [made for made in message.tool_calls if made["id"] == call["id"]]
            if same:
                return message, same
    return None, []


def with_ids(
    output: Any,
    call: ToolCall,
    place: tuple[str, int],
    *,
    turn_id: str | None,
    taken: Collection[str],
) -> Any:
    """Return a tool's output with an id on each message; existing ids stay.

    The result of the call, whose place is its `call_position`, gets the id that `result_id` makes, or a random one if
    that is `taken`, and a mark if its command hands over to an outer graph. Other messages in the output are marked as
    added to it.
    """
    made = result_id(place[0], str(call["id"]), place[1])
    base = str(uuid4()) if made in taken else made

    numbers = count()

    def named(given: Any, is_outer: bool) -> BaseMessage:
        [message] = convert_to_messages([given])
        if _answers(message, call):
            if is_outer:
                message = with_state_mark(message, **{_HANDS_OVER: True})
            return _named(message, base)
        whole = _named(message, f"{base}-{next(numbers)}")
        return marked_as_added(whole, made) if turn_id and not is_outer else whole

    return with_messages(output, named)


def ending(message: BaseMessage) -> BaseMessage:
    """Return a result with the mark that an agent of a graph ended with its step."""
    return with_state_mark(message, **{_ENDS_AGENT: True})


def ends_agent(message: BaseMessage) -> bool:
    """Return True for a result of the step in which an agent of a graph ended, or handed over to another one."""
    is_marked = not state_marks(message).keys().isdisjoint((_ENDS_AGENT, _HANDS_OVER))
    return is_marked and isinstance(message, ToolMessage)


def hands_over(message: BaseMessage) -> bool:
    """Return True for the result of a tool that handed over to an outer graph.

    The log does not have its command. So the tool runs again where the step is repeated.
    """
    return _HANDS_OVER in state_marks(message) and isinstance(message, ToolMessage)


def as_stored(output: Any, stored: Sequence[BaseMessage]) -> Any:
    """Return a tool's output with the results that the log has under their ids."""
    known = {message.id: message for message in stored if isinstance(message, ToolMessage)}
    again = [result for result in results_in(output) if result.id in known]
    return with_results(output, {id(result): known[result.id] for result in again})


def entering(output: Any, call: ToolCall) -> list[BaseMessage]:
    """Return the messages of a tool's output that enter the conversation.

    Messages that a command sends to an outer graph belong to that graph, except for the result of the call.
    """
    return [
        message
        for message, is_outer in messages_in(output)
        if not isinstance(message, RemoveMessage) and (not is_outer or _answers(message, call))
    ]


def place_of(request: ToolCallRequest) -> tuple[str, ...]:
    """Return the ids of the AI message with a call and of the call, which name the conversation of a sub-agent.

    A call whose id is too long is named by the id of its result.
    """
    message_id, position = call_position(request.state["messages"], request.tool_call)
    call_id = str(request.tool_call["id"])
    if id_problem(message_id) or id_problem(call_id):
        return (result_id(message_id, call_id, position),)
    return message_id, call_id


def digests(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the digest of each message."""
    return [digest_of_messages([message]) for message in messages]


def as_output(stored: list[BaseMessage]) -> ToolOutput:
    """Return the results an interrupted run already stored for this call, as a tool returns them."""
    [first, *more] = stored
    if more or not isinstance(first, ToolMessage):
        return Command(update={"messages": stored})
    return first


def noted(output: ToolOutput, messages: Sequence[BaseMessage]) -> ToolOutput:
    """Return a tool's output with the digests of its messages, which the log gets later."""
    note = {OWN: digests(messages)}
    if isinstance(output, ToolMessage):
        return Command(update={"messages": [output], **note})
    if (
        isinstance(output, Command)
        and output.graph is None
        and isinstance(output.update, Mapping)
        and messages
    ):
        return replace(output, update={**output.update, **note})
    return output


def give_result_ids(messages: Sequence[BaseMessage]) -> None:
    """Set the ids of results that LangChain itself adds: of structured output, and for unreadable arguments.

    One for a call without an id is marked, so that it is not logged.
    """
    caller = AIMessage("")
    for message in messages:
        if isinstance(message, AIMessage):
            caller = message
        elif isinstance(message, ToolMessage) and message.id is None:
            message.id = result_id(str(caller.id), message.tool_call_id)
            if is_of_no_call(message):
                message.additional_kwargs |= mark("missing_result")


def is_of_no_call(message: BaseMessage) -> bool:
    """Return True for the result that LangChain adds for an invalid call whose id is "": no provider takes it."""
    return isinstance(message, ToolMessage) and not message.tool_call_id


def may_be_structured(answer: BaseMessage) -> bool:
    """Return True if an answer without calls may be the JSON text of a structured response."""
    return answer.text.lstrip()[:1] in ("{", "[")


def schema_names(response_format: Any) -> set[str]:
    """Return the names of the tools that a model calls to give a structured response."""
    return {spec.name for spec in _tool_specs(response_format)}


def structured_response(response_format: Any, answer: AIMessage) -> Any:
    """Return the structured response in an answer; None without one."""
    if response_format is None:
        return None
    specs = {spec.name: spec for spec in _tool_specs(response_format)}
    calls = [call for call in answer.tool_calls if call["name"] in specs]
    try:
        if len(calls) == 1:
            return OutputToolBinding.from_schema_spec(specs[calls[0]["name"]]).parse(
                calls[0]["args"]
            )
        if not answer.tool_calls and not isinstance(response_format, ToolStrategy):
            spec = ProviderStrategy(_schema(response_format)).schema_spec
            return ProviderStrategyBinding.from_schema_spec(spec).parse(answer)
    except ValueError:
        return None  # the model was asked again; the log has its next answer
    return None


def _answers(message: BaseMessage, call: ToolCall) -> bool:
    return isinstance(message, ToolMessage) and message.tool_call_id == call["id"]


def _named(message: BaseMessage, message_id: str) -> BaseMessage:
    return message if message.id else message.model_copy(update={"id": message_id})


def _tool_specs(response_format: Any) -> list[Any]:
    if response_format is None or isinstance(response_format, ProviderStrategy):
        return []
    if isinstance(response_format, ToolStrategy):
        strategy = response_format
    else:
        strategy = ToolStrategy(_schema(response_format))
    return list(strategy.schema_specs)


def _schema(response_format: Any) -> Any:
    wrapped = isinstance(response_format, AutoStrategy | ProviderStrategy)
    return response_format.schema if wrapped else response_format


def is_evicted(message: BaseMessage, logged: BaseMessage) -> bool:
    """Return True if deepagents moved the content of a logged message to a file, and changed nothing else of it.

    Its ``FilesystemMiddleware``, placed around ours, replaces a large content by a preview and the path of the file.
    The log has it in full; the model is shown what deepagents made of it.

    >>> whole = ToolMessage("a" * 100_000, tool_call_id="c1", id="r1")
    >>> is_evicted(ToolMessage(_RESULT + "c1 was saved …", tool_call_id="c1", id="r1"), whole)
    True
    """
    if isinstance(message, ToolMessage) and isinstance(logged, ToolMessage):
        return (
            message.text.startswith(_RESULT)
            and message.model_copy(update={"content": logged.content}) == logged
        )
    if isinstance(message, HumanMessage) and _TAG in message.additional_kwargs:
        return _untagged(message) == _untagged(logged)
    return False


def as_in_state(messages: Sequence[BaseMessage], state: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a request, with questions that deepagents shortened as the state has them."""
    questions = (
        message for message in messages if isinstance(message, HumanMessage) and message.id
    )
    shortened = {message.id for message in questions if _TAG in message.additional_kwargs}
    whole = {
        message.id: message
        for message in state
        if message.id in shortened and isinstance(message, HumanMessage)
    }
    return [whole.get(message.id, message) for message in messages]


def _untagged(message: BaseMessage) -> BaseMessage:
    kept = {key: value for key, value in message.additional_kwargs.items() if key != _TAG}
    return message.model_copy(update={"additional_kwargs": kept})
