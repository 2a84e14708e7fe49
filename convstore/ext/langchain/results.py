"""Tool results in an agent's state: their ids and marks, structured responses, and contents that deepagents moved.

LangChain gives results random ids when they enter the state. That is too late to append them earlier, and a repeated
step would get other ids. LangChain makes the structured response where it calls the model, so a stored reply needs one
made here.
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
"""The setting that keeps the middleware of deepagents from moving contents to files."""
ToolOutput = ToolMessage | Command[Any]
OWN: Final = "convstore_own"
"""Channel of an agent's state: digests of its own messages that the log may lack."""
_RESULT = "Tool result too large, the result of this tool call "
_TAG = "lc_evicted_to"
_HANDS_OVER = "hands_over"
_ENDS_AGENT = "ends_agent"


def cut_result(messages: Sequence[BaseMessage], call: ToolCall) -> ToolMessage | None:
    """Return an error result for a call that the model's output limit cut off; None for a complete call."""
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
    """Return the last AI message with a call, and its calls with the same id; None and [] without such a message."""
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

    `place` is the `call_position` of the call. Its result gets the id that `result_id` derives, or a random id if that
    one is `taken`, and a mark if its command hands over to an outer graph. Other messages in the output are marked as
    additions to the result.
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
    """Return a result with the mark that a nested agent ended with its step."""
    return with_state_mark(message, **{_ENDS_AGENT: True})


def ends_agent(message: BaseMessage) -> bool:
    """Return True for a result of the step with which a nested agent ended, or handed over to another agent."""
    is_marked = not state_marks(message).keys().isdisjoint((_ENDS_AGENT, _HANDS_OVER))
    return is_marked and isinstance(message, ToolMessage)


def hands_over(message: BaseMessage) -> bool:
    """Return True for the result of a tool that handed over to an outer graph.

    The log does not have its command, so the tool runs again when the step is repeated.
    """
    return _HANDS_OVER in state_marks(message) and isinstance(message, ToolMessage)


def as_stored(output: Any, stored: Sequence[BaseMessage]) -> Any:
    """Return a tool's output; a result whose id is among the stored messages is replaced by the stored result."""
    known = {message.id: message for message in stored if isinstance(message, ToolMessage)}
    again = [result for result in results_in(output) if result.id in known]
    return with_results(output, {id(result): known[result.id] for result in again})


def as_stored_messages(
    messages: Sequence[BaseMessage], stored: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Return messages; one whose id is that of a stored result is replaced by the stored result."""
    known = {message.id: message for message in stored if isinstance(message, ToolMessage)}
    return [known.get(message.id, message) for message in messages]


def messages_to_log(output: Any, call: ToolCall) -> list[BaseMessage]:
    """Return the messages of a tool's output that enter the conversation.

    Messages that a command sends to an outer graph belong to that graph, except for the result of the call.
    """
    return [
        message
        for message, is_outer in messages_in(output)
        if not isinstance(message, RemoveMessage) and (not is_outer or _answers(message, call))
    ]


def child_key(request: ToolCallRequest) -> tuple[str, ...]:
    """Return the ids of the AI message and of its call, as `Conversation.child` takes them.

    If an id is not valid in a scope, such as a very long one, the id of the result is returned instead.
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


def with_digests(output: ToolOutput, messages: Sequence[BaseMessage]) -> ToolOutput:
    """Return a tool's output with the digests of its messages, for messages that are appended later."""
    own = {OWN: digests(messages)}
    if isinstance(output, ToolMessage):
        return Command(update={"messages": [output], **own})
    if (
        isinstance(output, Command)
        and output.graph is None
        and isinstance(output.update, Mapping)
        and messages
    ):
        return replace(output, update={**output.update, **own})
    return output


def give_result_ids(messages: Sequence[BaseMessage]) -> None:
    """Set the ids of results that LangChain itself adds: of structured output, and for unreadable arguments.

    A result for a call without an id is marked, so that it is not logged.
    """
    caller = AIMessage("")
    for message in messages:
        if isinstance(message, AIMessage):
            caller = message
        elif isinstance(message, ToolMessage) and message.id is None:
            message.id = result_id(str(caller.id), message.tool_call_id)
            if lacks_call_id(message):
                message.additional_kwargs |= mark("missing_result")


def lacks_call_id(message: BaseMessage) -> bool:
    """Return True for the result that LangChain adds for an invalid call with the id ""; all providers refuse it."""
    return isinstance(message, ToolMessage) and not message.tool_call_id


def may_be_structured(answer: BaseMessage) -> bool:
    """Return True if an answer without calls may be the JSON text of a structured response."""
    return answer.text.lstrip()[:1] in ("{", "[")


def schema_names(response_format: Any) -> set[str]:
    """Return the names of the tools that a model calls to give a structured response."""
    return {spec.name for spec in _tool_specs(response_format)}


def structured_response(response_format: Any, answer: AIMessage) -> Any:
    """Return the structured response in an answer; None if it has no valid one."""
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
        return None  # LangChain asked the model again, and the log has that reply as well
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
    """Return True if deepagents moved the content of a logged message to a file, without changing anything else.

    Its ``FilesystemMiddleware``, placed around ours, replaces a large content by a preview and the path of the file.
    The log has the full content; the model is shown the preview.

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
    """Return the messages of a request; questions that deepagents shortened are replaced by those of the state."""
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
