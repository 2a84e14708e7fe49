"""Read a turn as front ends show it, from its messages alone: the question, and the steps of the answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.ext.ui.parts import Part, PartWriter, source_parts
from convstore.integration import pairs_of, valid_text
from convstore.types import Source, TurnCall

_ANSWER = "answer:"


class Shown(NamedTuple):
    """A system message or a question: its role, its id, its parts."""

    role: str
    id: str
    parts: list[Part]


class Result(NamedTuple):
    """The result of a call: its id, the part of the call, and the files and sources in it."""

    id: str
    call: Part
    parts: list[Part]


@dataclass(slots=True)
class Step:
    """One reply of the model, or a message that a tool added.

    Attributes:
        id: Id of the message.
        parts: Its texts, reasoning and media in order, then its calls.
        results: Those of its calls that it has, in the order of the log.
    """

    id: str
    parts: list[Part]
    results: list[Result] = field(default_factory=list)


@dataclass(slots=True)
class ShownTurn:
    """A turn as front ends show it.

    Attributes:
        turn_id: Its id.
        asked: Its system messages and its question.
        steps: The answer.
        metadata: By message id, and that of the whole answer by `answer_id`.
        draft: The beginning of a reply that is being streamed.
    """

    turn_id: str
    asked: list[Shown]
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
    """
    turn = ShownTurn(turn_id, [], [], metadata or {}, valid_text(draft))
    steps, results = dict[str, Step](), dict[int, tuple[str, Result]]()
    calls = _calls(messages, writer, lambda call: call.result_id in waiting and call.name not in client_tools)
    for call, part, files, result in calls:
        steps.setdefault(call.message_id, Step(call.message_id, [])).parts.append(part)
        if result:
            more = [*files, *source_parts((sources or {}).get(str(result.id), ()))]
            results[id(result)] = call.message_id, Result(str(result.id), part, more)
    for message in messages:
        id_, is_question = str(message.id), message is messages[0] and isinstance(message, HumanMessage)
        if is_question or isinstance(message, SystemMessage):
            turn.asked.append(Shown("user" if is_question else "system", id_, writer.content(message)))
        elif isinstance(message, AIMessage | HumanMessage):
            step = steps.setdefault(id_, Step(id_, []))
            step.parts[:0] = writer.content(message)
            turn.steps.append(step)
        elif found := results.get(id(message)):
            steps[found[0]].results.append(found[1])
        else:
            writer.drop(message, message.type, "it answers no call, and front ends have no other such messages")
    return turn


def _calls(
    messages: Sequence[BaseMessage], writer: PartWriter, waits: Callable[[TurnCall], bool]
) -> Iterator[tuple[TurnCall, Part, list[Part], ToolMessage | None]]:
    """Yield the calls of a turn, each with its part, whose id is its own in the turn, its files and its result."""
    seen = {""}
    for call, result in pairs_of(messages):
        id_ = call.result_id if call.id in seen else valid_text(call.id)
        seen.add(call.id)
        part, files = writer.call(call, id_, _written(messages, call) if call.error else "", result)
        if part["state"] == "input-available" and waits(call):
            part |= {"state": "approval-requested", "approval": {"id": call.result_id}}
        yield call, part, files, result


def _written(messages: Sequence[BaseMessage], call: TurnCall) -> str:
    """Return the arguments of a call as the model wrote them, if they are no JSON object."""
    said = (one for one in messages if isinstance(one, AIMessage) and one.id == call.message_id)
    invalid = (one for message in said for one in message.invalid_tool_calls if one.get("id") == call.id)
    return valid_text(next((str(one.get("args") or "") for one in invalid), ""))
