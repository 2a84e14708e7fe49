"""Write a view for OpenAI's Chat Completions API, and for the many servers that have the same one.

A result of a tool is text only there, so its images and files follow all results of the step in a user message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage

from convstore.messages.text import content_of
from convstore.values.json_form import valid_text
from convstore.wire.parts import Block, Media, Text
from convstore.wire.requests import OpenAIMessages
from convstore.wire.steps import NO_TEXT, Step, WireCall, read_steps

MOVED: Final = "[Images and files in the tool results above]"
IMAGES: Final = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
"""Types of images that OpenAI and Anthropic accept."""

_AUDIO: Final = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}
_NOT_IN_NAMES: Final = re.compile(r"[\s<|\\/>]+")


def to_chat(messages: Sequence[BaseMessage], *, model: str | None = None) -> OpenAIMessages:
    """Return a view as the `messages` of a request; reasoning goes along only to a `model` that is named.

    OpenAI's own models take no reasoning here; DeepSeek and others want their `reasoning_content` back.

    >>> from langchain_core.messages import HumanMessage
    >>> to_chat([HumanMessage("Hello")])
    [{'role': 'user', 'content': 'Hello'}]
    """
    steps, dropped = read_steps(messages, model=model, names=True)
    made: list[dict[str, Any]] = []
    for step in steps:
        if model is None:
            step.withhold("model= does not name who wrote it")
        made += [_message(step), *_results(step)]
    return OpenAIMessages(made, dropped)


def media_part(media: Media) -> dict[str, Any] | None:
    """Return the content part of an image, audio or a file, None for one that the API does not take."""
    if media.kind == "image" and (
        url := media.data_url if media.mime_type in IMAGES else media.url
    ):
        return {"type": "image_url", "image_url": {"url": url}}
    if media.kind == "audio" and media.data and media.mime_type in _AUDIO:
        return {
            "type": "input_audio",
            "input_audio": {"data": media.data, "format": _AUDIO[media.mime_type]},
        }
    if media.data and media.mime_type == "application/pdf":
        return {
            "type": "file",
            "file": {"file_data": media.data_url, "filename": media.name or "file.pdf"},
        }
    is_upload = media.kind == "file" and media.file_id.startswith("file-")
    return {"type": "file", "file": {"file_id": media.file_id}} if is_upload else None


def _message(step: Step) -> dict[str, Any]:
    for part in step.parts:
        if isinstance(part, Block):
            step.drop(part.type, "Chat Completions does not know it")
    content = content_of(step.content(media_part if step.role == "user" else lambda _: None))
    fields = {
        "role": step.role,
        "content": content or (None if step.results else NO_TEXT),
        **step.reasoning,
    }
    name = (
        ""
        if step.message.type == "function"
        else _NOT_IN_NAMES.sub("_", valid_text(step.message.name or ""))[:64]
    )
    calls = [_call(result.call) for result in step.results]
    return fields | ({"name": name} if name else {}) | ({"tool_calls": calls} if calls else {})


def _call(call: WireCall) -> dict[str, Any]:
    if call.input is not None:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.input}}
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _results(step: Step) -> Iterator[dict[str, Any]]:
    """Yield the result messages of a step, then the user message with their images and files."""
    moved: list[dict[str, Any]] = []
    for result in step.results:
        step.drop_status(result)
        moved += [part for part in step.content(media_part, result) if part["type"] != "text"]
        named = [
            part if isinstance(part, Text) else Text(part.plain_text or part.description)
            for part in result.parts
        ]
        content = step.content(media_part, result._replace(parts=[*named]))
        yield {"role": "tool", "tool_call_id": result.call.id, "content": content_of(content)}
    if moved:
        yield {"role": "user", "content": [{"type": "text", "text": MOVED}, *moved]}
