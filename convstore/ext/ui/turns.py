"""Read a turn as front ends show it, from its messages alone: the question, and the steps of the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.ext.ui.parts import Part, PartWriter, source_parts
from convstore.integration import pairs_of, valid_text
from convstore.types import Source, TurnCall

_ANSWER = "answer:"
_LATE = ("data-", "source-")
"""Parts of a reply that a client gets when it is in the log, after all that is streamed."""


class Result(NamedTuple):
    """The result of a call: its id, the part of the call, and the files and sources in it."""

    id: str
    call: Part
    parts: list[Part]


@dataclass(slots=True)
class Step:
    """One message of a turn, with the results of its calls; what a tool added counts as the assistant's.

    Attributes:
        role: "system", "user" or "assistant".
        id: Id of the message.
        parts: Its texts, reasoning and media in order, then its calls, then other blocks and what it cites.
        results: Those of its calls that it has, in the order of the log.
    """

    role: str
    id: str
    parts: list[Part]
    results: list[Result] = field(default_factory=list)


@dataclass(slots=True)
class ShownTurn:
    """A turn as front ends show it.

    Attributes:
        turn_id: Its id.
        steps: Its messages but for results, in order.
        metadata: By message id, and that of the whole answer by `answer_id`.
        draft: The beginning of a reply that is being streamed.
    """

    turn_id: str
    steps: list[Step]
    metadata: Mapping[str, Mapping[str, Any]]
    draft: str = ""


def answer_id(turn_id: str) -> str:
    """Return the id of the answer of a turn as one message."""
    return _ANSWER + turn_id


def turn_answered(answer_id: str) -> str:
    """Return the id of the turn that an answer belongs to, by the id of the answer; any other id as it is."""
    return answer_id.removeprefix(_ANSWER)


def read_turn(
    turn_id: str,
    messages: Sequence[BaseMessage],
    writer: PartWriter,
    *,
    waiting: Collection[str] = (),
    client_tools: Collection[str] = (),
    sources: Mapping[str, Sequence[Source]] | None = None,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    draft: str = "",
    is_over: bool = False,
) -> ShownTurn:
    """Return a turn as front ends show it.

    Args:
        turn_id: Its id.
        messages: Its messages in full, in order.
        writer: Writes their parts.
        waiting: Ids of the results of the calls that wait for a person.
        client_tools: Names of tools that run on the client, whose calls wait for a result and no approval.
        sources: Those of its results, by message id.
        metadata: As in `ShownTurn`.
        draft: As in `ShownTurn`.
        is_over: A call without a result will never have one.
    """
    turn = ShownTurn(turn_id, [], metadata or {}, valid_text(draft))
    steps, results = dict[str, Step](), dict[int, tuple[str, Result]]()
    for call, part, files, result in _calls(messages, writer):
        if part["state"] == "input-available" and is_over:
            part |= {"state": "output-error", "errorText": "The call has no result."}
        elif part["state"] == "input-available" and call.result_id in waiting and call.name not in client_tools:
            part |= {"state": "approval-requested", "approval": {"id": call.result_id}}
        steps.setdefault(call.message_id, Step("assistant", call.message_id, [])).parts.append(part)
        if result:
            more = [*files, *source_parts((sources or {}).get(str(result.id), ()))]
            results[id(result)] = call.message_id, Result(str(result.id), part, more)
    for message in messages:
        if isinstance(message, AIMessage | HumanMessage | SystemMessage):
            id_, is_question = str(message.id), message is messages[0] and isinstance(message, HumanMessage)
            role = "system" if isinstance(message, SystemMessage) else "user" if is_question else "assistant"
            step = steps.setdefault(id_, Step(role, id_, []))
            content = writer.content(message)
            late = [part for part in content if part["type"].startswith(_LATE)] if role == "assistant" else []
            step.parts = [*(part for part in content if part not in late), *step.parts, *late]
            turn.steps.append(step)
        elif found := results.get(id(message)):
            steps[found[0]].results.append(found[1])
        else:
            writer.drop(message, message.type, "it answers no call, and front ends have no other such messages")
    return turn


def _calls(
    messages: Sequence[BaseMessage], writer: PartWriter
) -> Iterator[tuple[TurnCall, Part, list[Part], ToolMessage | None]]:
    """Yield the calls of a turn, each with its part, whose id is its own in the turn, its files and its result."""
    seen = {""}
    for call, result in pairs_of(messages):
        id_ = call.result_id if call.id in seen else valid_text(call.id)
        seen.add(call.id)
        yield call, *writer.call(call, id_, _written(messages, call) if call.error else "", result), result


def _written(messages: Sequence[BaseMessage], call: TurnCall) -> str:
    """Return the arguments of a call as the model wrote them, if they are no JSON object."""
    said = (message for message in messages if isinstance(message, AIMessage) and message.id == call.message_id)
    invalid = (wrong for message in said for wrong in message.invalid_tool_calls if wrong.get("id") == call.id)
    return valid_text(next((str(wrong.get("args") or "") for wrong in invalid), ""))
