"""Apply the edits of a provider's rules to messages of Pydantic AI; a message without an edit is the same object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import is_
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from convstore.messages.provenance import model_of
from convstore.wire.edits import INSTRUCTION, NO_TEXT, Inserted, RequestEdits


def edited(
    message: ModelMessage, edits: RequestEdits, logged: BaseMessage | None = None
) -> list[ModelMessage]:
    """Return a message in the form that the provider accepts, with the messages that its rules insert.

    `logged` is its message of the log; None if it is not appended yet.
    """
    if isinstance(message, ModelResponse):
        return _answer(message, edits, logged)
    return list(_requests(message, edits, logged))


def _answer(
    message: ModelResponse, edits: RequestEdits, logged: BaseMessage | None
) -> list[ModelMessage]:
    place = edits.place("assistant")
    before = [_inserted(place.before)] if place.before else []
    writer = model_of(logged) if logged else message.model_name or ""
    parts: list[Any] = list(message.parts)
    blank = TextPart(NO_TEXT)
    made = edits.answer(parts, _kind_of_part, logged, writer=writer, blank=blank)
    if len(made) > 1:  # Pydantic AI would join consecutive answers without a model name
        message = replace(message, model_name=message.model_name or edits.rules.name)
    named = [[_with_call(part, edits, logged) for part in parts] for parts in made]
    return [*before, *(_with_parts(message, parts) for parts in named)]


def _kind_of_part(part: Any) -> str:
    if isinstance(part, ThinkingPart):
        return "reasoning"
    return "call" if isinstance(part, ToolCallPart) else ""


def _requests(
    message: ModelRequest, edits: RequestEdits, logged: BaseMessage | None
) -> Iterator[ModelMessage]:
    """Yield a request; if the provider's rules insert an answer inside it, yield two requests with it between them."""
    parts: list[Any] = []
    for part in message.parts:
        role = _role_of(part)
        if not role:
            parts.append(_with_call(part, edits, logged))
            continue
        place = edits.place(role)
        if place.before:
            if parts:
                yield replace(message, parts=parts)
                parts = []
            yield _inserted(place.before)
        is_instruction = place.role != role
        parts.append(_instruction(part) if is_instruction else part)
    yield _with_parts(message, parts)


def _role_of(part: Any) -> str:
    """Return the role of a prompt; "" for results and for other parts that are not messages of their own."""
    if isinstance(part, SystemPromptPart):
        return "system"
    is_retry = isinstance(part, RetryPromptPart) and part.tool_name is None
    return "user" if is_retry or isinstance(part, UserPromptPart) else ""


def _instruction(part: Any) -> UserPromptPart:
    return UserPromptPart(f"{INSTRUCTION}\n{part.content}", timestamp=part.timestamp)


def _inserted(message: Inserted) -> ModelMessage:
    if message.role == "assistant":
        return ModelResponse([TextPart(message.text)])
    return ModelRequest([UserPromptPart(message.text)])


def _with_parts(message: Any, parts: Sequence[Any]) -> Any:
    """Return a message with these parts; the same object if they are unchanged."""
    is_same = len(parts) == len(message.parts) and all(map(is_, parts, message.parts))
    return message if is_same else replace(message, parts=parts)


def _with_call(part: Any, edits: RequestEdits, logged: BaseMessage | None) -> Any:
    """Return a call or a result with its id and name in the request; the same object if they are unchanged."""
    if isinstance(part, ToolReturnPart):
        part = _without_refused_files(part, edits, logged)
    if isinstance(part, ToolCallPart):
        call = edits.call(part.tool_call_id, part.tool_name)
        name = call.tool
    elif isinstance(part, ToolReturnPart | RetryPromptPart):
        call = edits.result(part.tool_call_id)
        name = call.tool or part.tool_name or ""
    else:
        return part
    is_same = (call.id, name) == (part.tool_call_id, part.tool_name)
    return part if is_same else replace(part, tool_call_id=call.id, tool_name=name)


def _without_refused_files(
    part: ToolReturnPart, edits: RequestEdits, logged: BaseMessage | None
) -> ToolReturnPart:
    """Return a failed result with descriptions in place of files, if the provider only accepts text in it."""
    if part.outcome == "success" or edits.rules.failed_media or not part.files:
        return part
    content = part.content if isinstance(part.content, list) else [part.content]
    for file in part.files:
        edits.drop(logged, _kind_of(file), "only its description is sent")
    texts = [f"[{_kind_of(item)}]" if item in part.files else item for item in content]
    return replace(part, content=texts)


def _kind_of(file: Any) -> str:
    """Return the word for a file, such as "image"."""
    kind = str(getattr(file, "media_type", "")).partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "file"
