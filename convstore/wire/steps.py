"""Read a view as steps: a message with its calls, and their results, under the rules that all APIs share.

- Each call has one result directly after its message, in the order of the calls (`tool_calls.pair`).
- An id of a call is unique in the request and has at most 40 letters, digits, `_` and `-`. Others are replaced, in the
  call and its result, always by the same id.
- Arguments are the JSON text of an object. A name of a tool has at most 64 of the same characters.
- Reasoning may go along in the open turn alone, and only to the model that wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from convstore.messages.call_arguments import sanitize_arguments
from convstore.messages.call_ids import CallIdTemplate, NewIds
from convstore.messages.provenance import kind_of, model_of
from convstore.messages.text import text_of
from convstore.messages.tool_calls import calls_of, pair
from convstore.values.json_form import has_few_levels, is_json, valid_text
from convstore.wire.parts import Block, Media, Part, Text, parts_of
from convstore.wire.requests import Dropped

NO_TEXT: Final = "(no text)"
"""Stands in a message that would have no content, which the APIs reject."""

_ROLES: Final = ("system", "developer", "assistant", "user")
_REASONING_KEYS: Final = ("reasoning_content", "reasoning", "reasoning_details")
_SNAPSHOT: Final = re.compile(r"-(latest|\d{8}|\d{4}-\d{2}-\d{2})$")
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]")


class _AnyCallId(CallIdTemplate):
    """Ids that all the APIs accept; new ones look like OpenAI's."""

    def fits(self, call_id: str, *, tool: str) -> bool:  # noqa: ARG002 - as in the base class
        return re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", call_id) is not None


_CALL_ID: Final = _AnyCallId("call_{r:24:x}")


class WireCall(NamedTuple):
    """A call as a request has it; `input` is the free text of a custom tool, None for a function."""

    id: str
    name: str
    arguments: str
    input: str | None
    item_id: str


class Result(NamedTuple):
    """The result of a call: its message, and the texts and media in it."""

    call: WireCall
    message: BaseMessage
    parts: list[Text | Media]


@dataclass(slots=True)
class Step:
    """A message, with the results of its calls.

    Attributes:
        message: The message of the view.
        role: "system", "developer", "user" or "assistant".
        parts: Its content without blank texts. Media are only in those of a user, calls and blocks of an assistant.
        reasoning: Its reasoning outside the content, as servers with the Chat Completions API return it.
        results: The results of its calls, in the order of these.
        is_open: True for the last question and all after it.
        dropped: Where all steps of a view note what is not sent.
    """

    message: BaseMessage
    role: str
    parts: list[Part | WireCall]
    reasoning: dict[str, Any]
    results: list[Result]
    is_open: bool
    dropped: list[Dropped]

    def drop(self, part: str, reason: str, message: BaseMessage | None = None) -> None:
        """Note that a part of the message, or of one of its results, is not sent."""
        self.dropped.append(Dropped((message or self.message).id or "", part, reason))

    def drop_status(self, result: Result) -> None:
        """Note that the API has no mark of a failed result, if this one failed; not of one that the store generated."""
        if getattr(result.message, "status", "") == "error" and not kind_of(result.message):
            self.drop("status", "the API has no mark of a failed result", result.message)

    def withhold(self, reason: str) -> None:
        """Remove its reasoning, and note why it is not sent."""
        kept = [part for part in self.parts if not is_reasoning(part)]
        if len(kept) < len(self.parts) or self.reasoning:
            self.drop("reasoning", reason)
        self.parts = kept
        self.reasoning = {}

    def content(
        self,
        write: Callable[[Media], dict[str, Any] | None],
        result: Result | None = None,
        *,
        kind: str = "text",
    ) -> list[dict[str, Any]]:
        """Return its texts and media, or those of a result: media as `write` does, or else as a text that names it."""
        content: list[dict[str, Any]] = []
        for part in self.parts if result is None else result.parts:
            sent = None
            text = part.text if isinstance(part, Text) else ""
            if (
                isinstance(part, Media)
                and not (text := part.plain_text)
                and not (sent := write(part))
            ):
                text = part.description
                self.drop(part.kind, "only its description is sent", result and result.message)
            if sent or text:
                content.append(sent or {"type": kind, "text": text})
        return content


def read_steps(
    messages: Sequence[BaseMessage], *, model: str | None, names: bool = False
) -> tuple[list[Step], list[Dropped]]:
    """Return the steps of a view, and the list in which they note what is not sent.

    Args:
        messages: The view.
        model: The model that will be asked; None means the last one of the open turn.
        names: True if the API has names of messages.
    """
    paired = pair(messages).messages
    begin = _question(paired)
    asked = model or next(
        (model_of(ai) for ai in reversed(paired[begin:]) if isinstance(ai, AIMessage)), ""
    )
    ids = NewIds(_CALL_ID, unique=True)
    steps = list[Step]()
    dropped = list[Dropped]()
    for index, message in enumerate(paired):
        if isinstance(message, ToolMessage):
            continue
        step = Step(
            message, _role_of(message), [], _reasoning_of(message), [], index >= begin, dropped
        )
        _fill(step, paired[index + 1 :], ids)
        if message.name and not names and message.type != "function":
            step.drop("name", "the API has no names of messages")
        if not step.is_open:
            step.withhold("its turn is over")
        elif not _is_same(model_of(message), asked):
            step.withhold("another model wrote it")
        steps.append(step)
    return steps, dropped


def is_reasoning(part: Part | WireCall) -> bool:
    """Return True for a block of reasoning."""
    return isinstance(part, Block) and part.kind == "reasoning"


def arguments_text(given: Any) -> tuple[str, bool]:
    """Return arguments as the JSON text of an object, and True if that is all of them.

    >>> arguments_text({"city": "Oslo"}), arguments_text('{"city": "Os')
    (('{"city": "Oslo"}', True), ('{}', False))
    """
    if given is None or (isinstance(given, str) and given.strip() in ("", "null")):
        return "{}", True
    try:
        text = sanitize_arguments(given) if isinstance(given, str) else ""
        value = json.loads(text) if text else given
        if isinstance(value, dict) and has_few_levels(value):
            is_whole = text != "{}" or given.strip() == "{}"
            return valid_text(json.dumps(value, ensure_ascii=False, allow_nan=False)), is_whole
    except (TypeError, ValueError, RecursionError):
        pass
    return "{}", False


def _question(messages: Sequence[BaseMessage]) -> int:
    """Return the index of the last question, 0 without one; messages that the store generated do not count."""
    indexes = range(len(messages) - 1, -1, -1)
    return next(
        (
            at
            for at in indexes
            if isinstance(messages[at], HumanMessage) and not kind_of(messages[at])
        ),
        0,
    )


def _is_same(text: str, other: str) -> bool:
    """Return True for two names of one model, of which one may name a snapshot.

    >>> _is_same("gpt-5-2025-08-07", "gpt-5"), _is_same("gpt-5-mini", "gpt-5")
    (True, False)
    """
    return _SNAPSHOT.sub("", text) == _SNAPSHOT.sub("", other)


def _role_of(message: BaseMessage) -> str:
    if isinstance(message, SystemMessage):
        return (
            "developer"
            if message.additional_kwargs.get("__openai_role__") == "developer"
            else "system"
        )
    if isinstance(message, ChatMessage):
        return message.role if message.role in _ROLES else "user"
    return "assistant" if isinstance(message, AIMessage) else "user"


def _reasoning_of(message: BaseMessage) -> dict[str, Any]:
    found = {key: message.additional_kwargs.get(key) for key in _REASONING_KEYS}
    return {
        key: value
        for key, value in found.items()
        if value and isinstance(value, str | list) and is_json(value)
    }


def _texts_and_media(message: BaseMessage) -> list[Text | Media]:
    """Return the content of a message that no model wrote; blocks of other types as their JSON."""
    parts = (
        Text(valid_text(text_of(part.block))) if isinstance(part, Block) else part
        for part in parts_of(message)
    )
    return [part for part in parts if isinstance(part, Media) or part.text.strip()]


def _fill(step: Step, following: Sequence[BaseMessage], ids: NewIds) -> None:
    """Set the parts of a step, with each call once: where the content has it, else at the end; and its results."""
    message = step.message
    parts = step.parts
    if not isinstance(message, AIMessage):
        head = (
            [Text(f"[Result of the function {valid_text(str(message.name))}]")]
            if message.type == "function"
            else []
        )
        step.parts = [*head, *_texts_and_media(message)]
        return
    blocks = parts_of(message)
    waiting = list(_calls(step, blocks, ids))
    answers = {call: answer for (_, call), answer in zip(waiting, following, strict=False)}
    for part in blocks:
        if isinstance(part, Media):
            step.drop(part.kind, "only its description is sent")
            parts.append(Text(part.description))
        elif isinstance(part, Block) and part.kind == "call":
            at = next((at for at, (id_, _) in enumerate(waiting) if id_ == part.id), None)
            parts += [] if at is None else [waiting.pop(at)[1]]
        elif isinstance(part, Block) or part.text.strip():
            parts.append(part)
    parts += [call for _, call in waiting]
    calls = [part for part in parts if isinstance(part, WireCall)]
    step.results = [Result(call, answers[call], _texts_and_media(answers[call])) for call in calls]


def _calls(step: Step, parts: Sequence[Part], ids: NewIds) -> Iterator[tuple[str, WireCall]]:
    """Yield the calls of a message in the order of their results, each with its id in the log."""
    message = step.message
    blocks = {
        part.id: part for part in reversed(parts) if isinstance(part, Block) and part.kind == "call"
    }
    raw: Any = message.additional_kwargs.get("tool_calls")
    listed = [call for call in raw if isinstance(call, dict)] if isinstance(raw, list) else []
    custom = [call.get("id") for call in listed if call.get("type") == "custom"]
    custom += [id_ for id_, part in blocks.items() if part.type == "custom_tool_call"]
    given = list(_arguments(message))
    for call in calls_of(message):
        block = blocks.get(call.id, Block("call", {}))
        own = [
            block.block[key]
            for key in ("input", "args", "arguments", "action")
            if key in block.block
        ]
        value = given[call.position] if call.position < len(given) else next(iter(own), None)
        text, is_whole = arguments_text(value)
        if not is_whole:
            step.drop(f"arguments of {call.tool}", "they are not a JSON object")
        free = (
            valid_text(str(value.get("__arg1", "")))
            if call.id in custom and isinstance(value, dict)
            else None
        )
        item_id = str(block.block.get("id") or "") if block.type.endswith("_call") else ""
        name = _NOT_IN_NAMES.sub("_", call.tool)[:64] or "tool"
        yield call.id, WireCall(ids.give(call, message), name, text, free, item_id)


def _arguments(message: BaseMessage) -> Iterator[Any]:
    """Yield the arguments of the listed calls, in the order of `calls_of`."""
    if isinstance(message, AIMessage):
        yield from (call["args"] for call in message.tool_calls)
        yield from (
            call["args"]
            for call in message.invalid_tool_calls
            if call.get("id") and call.get("name")
        )
