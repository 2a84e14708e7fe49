"""Read a turn as front ends show it: the question, and the steps of the answer with calls, results and sources.

Both formats are written from it, pages and streams, so they agree on ids, order and states.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.ext.ui.thoughts import Thought, thought_in, thoughts_beside
from convstore.integration import Block, Media, Text, is_json, pairs_of, parts_of, valid_text
from convstore.types import Dropped, Source, TurnCall

ANSWER = "answer:"
"""What the id of an answer begins with; the id of its turn follows."""


@dataclass(slots=True)
class Limits:
    """What a page shows in full, and a report of all that it does not.

    Attributes:
        output: Characters of a result.
        media: Characters of the data of an image or a file, as Base64.
        report: The parts of messages that are not shown, or cut.
    """

    output: int
    media: int
    report: list[Dropped] = field(default_factory=list)

    def drop(self, message: BaseMessage, part: str, reason: str) -> None:
        """Report a part of a message."""
        self.report.append(Dropped(str(message.id), part, reason))

    def is_shown(self, message: BaseMessage, media: Media) -> bool:
        """Return True for media with an address or little data; report any other."""
        if media.data and len(media.data) > self.media:
            self.drop(message, media.kind, f"its data is longer than {self.media:,} characters")
        elif not media.data and not media.url:
            self.drop(message, media.kind, "it has neither data nor an address that a browser can open")
        else:
            return True
        return False


class ShownCall(NamedTuple):
    """A call of an answer.

    Attributes:
        call: The call.
        id: Its id, unique in the turn: as the model wrote it, or that of its result if the turn has used it before.
        raw: The arguments as the model wrote them, if they are no JSON object.
        result: Its result, None if it has none.
        waits: A person has to decide about it.
    """

    call: TurnCall
    id: str
    raw: str = ""
    result: ToolMessage | None = None
    waits: bool = False

    @property
    def arguments(self) -> Any:
        """The arguments as JSON has them."""
        return self.raw or plain(self.call.args)

    @property
    def error(self) -> str:
        """Why it failed, "" if it did not."""
        if self.result and self.result.status == "error":
            return valid_text(self.result.text) or "The tool failed."
        return "" if self.result else valid_text(self.call.error)


@dataclass(slots=True)
class Step:
    """One reply of the model, with the results of its calls; or a message that a tool added.

    Attributes:
        message: The message.
        parts: Its texts, its reasoning and its media, in order.
        calls: Its calls, in order.
        results: Those with a result, in the order of the log.
    """

    message: BaseMessage
    parts: list[Text | Media | Thought]
    calls: list[ShownCall] = field(default_factory=list)
    results: list[ShownCall] = field(default_factory=list)


@dataclass(slots=True)
class ShownTurn:
    """A turn as front ends show it.

    Attributes:
        turn_id: Its id.
        question: The question; None for what precedes the first one.
        systems: Its system messages.
        steps: The answer.
        sources: Of its results, by message id.
        metadata: By message id.
        draft: The beginning of a reply that is being streamed.
    """

    turn_id: str
    question: HumanMessage | None
    systems: list[SystemMessage]
    steps: list[Step]
    sources: Mapping[str, Sequence[Source]] = field(default_factory=dict)
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    draft: str = ""


def read_turn(
    turn_id: str,
    messages: Sequence[BaseMessage],
    limits: Limits,
    *,
    waiting: Collection[str] = (),
    client_tools: Collection[str] = (),
    **known: Any,
) -> ShownTurn:
    """Return a turn as front ends show it.

    Args:
        turn_id: Its id.
        messages: Its messages in full, in order.
        limits: Gets a report of what is not shown.
        waiting: Ids of the results of the calls that wait for a person.
        client_tools: Names of tools that run on the client, whose calls wait for a result and no approval.
        known: Other fields of `ShownTurn`.
    """
    question = messages[0] if messages and isinstance(messages[0], HumanMessage) else None
    systems = [one for one in messages if isinstance(one, SystemMessage)]
    steps, calls = list[Step](), _calls(messages, waiting, client_tools)
    by_result = {id(one.result): one for one in calls if one.result}
    owners = dict[str, Step]()
    for message in messages:
        if isinstance(message, ToolMessage):
            if shown := by_result.get(id(message)):
                owners[shown.call.message_id].results.append(shown)
            else:
                limits.drop(message, "result", "it answers no call")
        elif isinstance(message, AIMessage | HumanMessage) and message is not question:
            own = [one for one in calls if one.call.message_id == message.id]
            owners[str(message.id)] = step = Step(message, _parts(message, limits), own)
            steps.append(step)
        elif message is not question and not isinstance(message, SystemMessage):
            limits.drop(message, message.type, "front ends have no such messages")
    return ShownTurn(turn_id, question, systems, steps, **known)


def content_of(message: BaseMessage, limits: Limits) -> list[Text | Media]:
    """Return the texts and media of a question or a result; other blocks are reported."""
    found = [part for part in _parts(message, limits) if not isinstance(part, Thought)]
    return [part for part in found if not isinstance(part, Text) or part.text]


def output_of(result: ToolMessage, limits: Limits) -> tuple[Any, list[Media]]:
    """Return what a tool returned: JSON if it is an object or a list, else text; and its media.

    A longer one than the limit is its beginning, with the id of the message that has all of it.
    """
    parts = content_of(result, limits)
    text = "\n".join(part.text for part in parts if isinstance(part, Text))
    media = [part for part in parts if isinstance(part, Media)]
    if len(text) > limits.output:
        limits.drop(result, "output", f"it has {len(text):,} characters; get_tool_messages returns all of it")
        more = f"[{len(text) - limits.output:,} more characters in message {result.id}]"
        return f"{text[: limits.output]}\n{more}", media
    try:
        value = json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        return text, media
    return (value if is_json(value) else text), media


def plain(value: Any) -> Any:
    """Return a value as JSON has it; one with numbers that JSON lacks becomes its text.

    >>> plain({1: ("x", None)}), plain({"a": float("inf")})
    ({'1': ['x', None]}, '{"a": Infinity}')
    """
    try:
        text = valid_text(json.dumps(value, ensure_ascii=False, default=str))
        return found if is_json(found := json.loads(text)) else text
    except (ValueError, TypeError, RecursionError):
        return f"[a value of type {type(value).__name__} that JSON does not have]"


def _parts(message: BaseMessage, limits: Limits) -> list[Text | Media | Thought]:
    """Return the texts, reasoning and media of a message; other blocks are reported, but for calls."""
    found: list[Text | Media | Thought] = list(thoughts_beside(message))
    for part in parts_of(message):
        if not isinstance(part, Block):
            found.append(part)
        elif part.kind == "reasoning":
            found.append(thought_in(part.block))
        elif part.kind == "other":
            limits.drop(message, part.type or "block", "front ends have no such part")
    return found


def _calls(messages: Sequence[BaseMessage], waiting: Collection[str], client_tools: Collection[str]) -> list[ShownCall]:
    """Return the calls of a turn, each with an id of its own and its result."""
    raw = {
        (str(one.id), str(call.get("id"))): valid_text(str(call.get("args") or ""))
        for one in messages
        if isinstance(one, AIMessage)
        for call in one.invalid_tool_calls
    }
    found, seen = list[ShownCall](), {""}
    for call, result in pairs_of(messages):
        id_ = call.result_id if call.id in seen else valid_text(call.id)
        seen.add(call.id)
        written = raw.get((call.message_id, call.id), "") if call.error else ""
        waits = not result and call.result_id in waiting and call.name not in client_tools
        found.append(ShownCall(call, id_, written, result, waits=waits))
    return found
