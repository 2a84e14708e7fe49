"""Write a view for OpenAI's Responses API, as a request that depends on nothing that OpenAI stored.

A reasoning item goes along if it is encrypted, and the item that followed it goes too, both with their ids. Ask for it
with ``include=["reasoning.encrypted_content"]``. Items of tools that OpenAI ran are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage

from convstore.messages.text import content_of
from convstore.wire.openai_chat import IMAGES
from convstore.wire.parts import Block, Media, Part, Text
from convstore.wire.requests import OpenAIMessages
from convstore.wire.steps import NO_TEXT, Result, Step, WireCall, is_reasoning, read_steps

_REASONING_FIELDS: Final = ("type", "id", "summary", "content", "encrypted_content")
_PHASES: Final = ("commentary", "final_answer")


def to_responses(messages: Sequence[BaseMessage], *, model: str | None = None) -> OpenAIMessages:
    """Return a view as the `input` of a request.

    >>> from langchain_core.messages import HumanMessage
    >>> to_responses([HumanMessage("Hello")])
    [{'type': 'message', 'role': 'user', 'content': 'Hello'}]
    """
    steps, dropped = read_steps(messages, model=model)
    made: list[dict[str, Any]] = []
    ids: set[str] = set()
    for step in steps:
        made += (
            list(_assistant(step, ids)) or [_said(NO_TEXT)]
            if step.role == "assistant"
            else [_message(step)]
        )
        made += [_output(step, result) for result in step.results]
    return OpenAIMessages(made, dropped)


def _assistant(step: Step, ids: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the items of one answer of the model: reasoning, texts and calls; with their ids if it has reasoning."""
    if problem := _problem(step, ids):
        step.withhold(problem)
    has_reasoning = any(map(is_reasoning, step.parts))
    for part in step.parts:
        if isinstance(part, Block) and part.kind == "other":
            step.drop(part.type, "it depends on what the provider stored")
            continue
        own = _own_id(part, step) if has_reasoning else ""
        yield _item(part, own if own not in ids else "")
        ids.add(own)


def _problem(step: Step, ids: set[str]) -> str:
    """Return why the reasoning of a message cannot go, "" if all of it can."""
    seen = set(ids)
    for part, following in zip(step.parts, [*step.parts[1:], None], strict=False):
        if not isinstance(part, Block) or part.kind != "reasoning":
            continue
        own = part.block.get("id")
        lists = [part.block.get("summary"), part.block.get("content") or []]
        is_valid = all(
            isinstance(items, list) and all(isinstance(text, dict) for text in items)
            for items in lists
        )
        is_own = isinstance(own, str) and own.startswith("rs_") and own not in seen
        if not (is_valid and is_own and part.block.get("encrypted_content")):
            return "it is not encrypted reasoning of OpenAI"
        if following is None or (isinstance(following, Block) and following.kind == "other"):
            return "the item that followed it cannot be sent"
        seen.add(str(own))
    return "it is no item of the Responses API" if step.reasoning else ""


def _own_id(part: Part | WireCall, step: Step) -> str:
    """Return the id that OpenAI gave the item of a part, "" without one."""
    if isinstance(part, WireCall):
        own = part.item_id
        prefix = "fc_" if part.input is None else "ctc_"
    elif isinstance(part, Block):
        own = str(part.block.get("id"))
        prefix = "rs_"
    else:
        own = (isinstance(part, Text) and part.id) or step.message.id or ""
        prefix = "msg_"
    return own if own.startswith(prefix) else ""


def _item(part: Part | WireCall, id_: str) -> dict[str, Any]:
    """Return the item of a part, with its id or without one."""
    own: dict[str, Any] = {"id": id_} if id_ else {}
    if isinstance(part, WireCall):
        item = {"call_id": part.id, "name": part.name, **own}
        if part.input is not None:
            return {"type": "custom_tool_call", **item, "input": part.input}
        return {"type": "function_call", **item, "arguments": part.arguments}
    if isinstance(part, Block):
        return {
            key: value for key in _REASONING_FIELDS if (value := part.block.get(key)) is not None
        }
    text = part.text if isinstance(part, Text) else part.description
    if id_:
        own |= {
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    return (
        _said(text)
        | own
        | ({"phase": part.phase} if isinstance(part, Text) and part.phase in _PHASES else {})
    )


def _said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text}


def _message(step: Step) -> dict[str, Any]:
    """Return a message of a user, the system or a developer."""
    content = step.content(
        _media_part if step.role == "user" else lambda _: None, kind="input_text"
    )
    return {"type": "message", "role": step.role, "content": content_of(content) or NO_TEXT}


def _output(step: Step, result: Result) -> dict[str, Any]:
    step.drop_status(result)
    kind = "function_call_output" if result.call.input is None else "custom_tool_call_output"
    output = content_of(step.content(_media_part, result, kind="input_text"))
    return {"type": kind, "call_id": result.call.id, "output": output}


def _media_part(media: Media) -> dict[str, Any] | None:
    """Return the input part of an image or a file, None for one that the API does not take."""
    is_image = media.kind == "image"
    data = (
        media.data_url if media.mime_type in (IMAGES if is_image else ("application/pdf",)) else ""
    )
    upload = {"file_id": media.file_id} if media.file_id.startswith("file-") else None
    if is_image:
        where = {"image_url": data or media.url} if data or media.url else upload
        return {"type": "input_image", "detail": "auto", **where} if where else None
    where = {"file_data": data, "filename": media.name or "file.pdf"} if data else None
    where = where or ({"file_url": media.url} if media.url else upload)
    return {"type": "input_file", **where} if where and media.kind == "file" else None
