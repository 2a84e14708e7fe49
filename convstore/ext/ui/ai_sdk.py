"""Write turns as `UIMessage`s of the AI SDK 7: one for a question, one for the whole answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.ext.ui.thoughts import Thought
from convstore.ext.ui.turns import ANSWER, Limits, ShownCall, ShownTurn, Step, content_of, output_of
from convstore.integration import Media, Text, valid_text
from convstore.types import Source

_UNKNOWN = "application/octet-stream"


def ai_sdk_messages(turn: ShownTurn, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield the messages of a turn: system messages, the question, the answer."""
    for system in turn.systems:
        yield _message(system, "system", content_of(system, limits), turn, limits)
    if turn.question:
        yield _message(turn.question, "user", content_of(turn.question, limits), turn, limits)
    if turn.steps or turn.draft:
        yield ai_sdk_answer(turn, limits)


def ai_sdk_answer(turn: ShownTurn, limits: Limits) -> dict[str, Any]:
    """Return the message with the whole answer of a turn, and the draft that follows what is in the log."""
    parts = [part for step in turn.steps for part in step_parts(step, turn, limits)]
    if turn.draft:
        parts += [{"type": "step-start"}, {"type": "text", "text": valid_text(turn.draft), "state": "streaming"}]
    id_ = ANSWER + turn.turn_id
    return {"id": id_, "role": "assistant", "metadata": dict(turn.metadata.get(id_, {})), "parts": parts}


def step_parts(step: Step, turn: ShownTurn, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield the parts of a step: texts, reasoning and media in order, the calls, then files and sources of results."""
    yield {"type": "step-start"}
    yield from _content(step.message, step.parts, limits)
    media = dict[str, list[Media]]()
    for call in step.calls:
        part, media[call.id] = call_part(call, limits)
        yield part
    for call in step.results:
        if call.result:
            yield from _content(call.result, media[call.id], limits)
            yield from source_parts(turn.sources.get(str(call.result.id), ()))


def call_part(call: ShownCall, limits: Limits) -> tuple[dict[str, Any], list[Media]]:
    """Return the part of a call as it stands, and the media of its result."""
    name = valid_text(call.call.name)
    named = {"type": f"tool-{name}"} if name else {"type": "dynamic-tool", "toolName": "tool"}
    part = {**named, "toolCallId": call.id, "input": call.arguments}
    if call.error:
        return {**part, "state": "output-error", "errorText": call.error[: limits.output]}, []
    if call.result:
        output, media = output_of(call.result, limits)
        return {**part, "state": "output-available", "output": output}, media
    if call.waits:
        return {**part, "state": "approval-requested", "approval": {"id": call.call.result_id}}, []
    return {**part, "state": "input-available"}, []


def source_parts(sources: Sequence[Source]) -> Iterator[dict[str, Any]]:
    """Yield the sources of a result, by their numbers."""
    for source in sources:
        part = {"sourceId": str(source.source_id), "title": valid_text(source.title) or f"Source {source.source_id}"}
        own = {"convstore": {"messageId": source.tool_message_id}}
        if source.url:
            yield {"type": "source-url", **part, "url": valid_text(source.url), "providerMetadata": own}
        else:
            yield {"type": "source-document", **part, "mediaType": "text/plain", "providerMetadata": own}


def _message(
    message: BaseMessage, role: str, content: Sequence[Text | Media], turn: ShownTurn, limits: Limits
) -> dict[str, Any]:
    parts = [
        {key: value for key, value in part.items() if key != "state"} for part in _content(message, content, limits)
    ]
    id_ = str(message.id)
    return {"id": id_, "role": role, "metadata": dict(turn.metadata.get(id_, {})), "parts": parts}


def _content(message: BaseMessage, parts: Sequence[Text | Media | Thought], limits: Limits) -> Iterator[dict[str, Any]]:
    for part in parts:
        if isinstance(part, Media):
            yield _media_part(message, part, limits)
        elif isinstance(part, Thought):
            proof = {"providerMetadata": {part.provider: dict(part.proof)}} if part.provider else {}
            yield {"type": "reasoning", "text": part.text, "state": "done", **proof}
        elif part.text:
            yield {"type": "text", "text": part.text, "state": "done"}


def _media_part(message: BaseMessage, media: Media, limits: Limits) -> dict[str, Any]:
    """Return a file with an address or its data; for any other a part that says where the rest is."""
    name = {"filename": media.name} if media.name else {}
    if limits.is_shown(message, media):
        kind = media.mime_type or (media.kind if media.kind != "file" else _UNKNOWN)
        return {"type": "file", "mediaType": kind, "url": media.data_url or media.url, **name}
    data = {"messageId": str(message.id), "kind": media.kind, "description": media.description}
    return {"type": "data-omitted", "data": data}
