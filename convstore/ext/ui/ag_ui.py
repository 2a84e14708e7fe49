"""Write turns as messages of AG-UI 1.0: one for each reply and each result; sources and files are activities."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.ext.ui.thoughts import Thought
from convstore.ext.ui.turns import Limits, ShownCall, ShownTurn, Step, content_of, output_of
from convstore.integration import Media, Text, valid_text
from convstore.types import Source

_PARTS = {"image": "image", "audio": "audio", "video": "video", "file": "document"}
_UNKNOWN = "application/octet-stream"


def ag_ui_messages(turn: ShownTurn, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield the messages of a turn: system messages, the question, and what each step of the answer consists of."""
    for system in turn.systems:
        text = "\n".join(part.text for part in content_of(system, limits) if isinstance(part, Text))
        yield _message(system, "system", turn, content=text)
    if turn.question:
        parts = _content(turn.question, content_of(turn.question, limits), limits)
        texts = [part["text"] for part in parts if part["type"] == "text"]
        only_text = len(texts) == len(parts) <= 1
        yield _message(turn.question, "user", turn, content="".join(texts) if only_text else parts)
    yield from ag_ui_answer(turn, limits)


def ag_ui_answer(turn: ShownTurn, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield the messages after the question, and the draft that follows what is in the log."""
    for step in turn.steps:
        yield from step_messages(step, turn, limits)
    if turn.draft:
        id_, known = f"draft:{turn.turn_id}:{len(turn.steps)}", {**turn.metadata.get(turn.turn_id, {}), "draft": True}
        yield {"id": id_, "role": "assistant", "content": valid_text(turn.draft), "metadata": known}


def step_messages(step: Step, turn: ShownTurn, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield the messages of a step: its reasoning, the reply with its calls, its files, the results, their sources."""
    id_ = str(step.message.id)
    for number, thought in enumerate(part for part in step.parts if isinstance(part, Thought)):
        proof = {"encryptedValue": thought.encrypted} if thought.encrypted else {}
        yield {"id": f"{id_}:reasoning-{number}", "role": "reasoning", "content": thought.text, **proof}
    text = "".join(part.text for part in step.parts if isinstance(part, Text))
    calls = {"toolCalls": [_call(call) for call in step.calls]} if step.calls else {}
    yield _message(step.message, "assistant", turn, **({"content": text} if text or not calls else {}), **calls)
    media = _content(step.message, [part for part in step.parts if isinstance(part, Media)], limits)
    for number, part in enumerate(media):
        yield _activity(f"{id_}:file-{number}", "file", part)
    for call in step.results:
        yield from result_messages(call, turn, limits)


def result_messages(call: ShownCall, turn: ShownTurn, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield the result of a call, then its sources."""
    if (result := call.result) is None:
        return
    output, media = output_of(result, limits)
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    parts = _content(result, [Text(text), *media], limits) if media else text
    error = {"error": call.error[: limits.output]} if call.error else {}
    yield _message(result, "tool", turn, toolCallId=call.id, content=parts, **error)
    if sources := turn.sources.get(str(result.id), ()):
        shown = {"toolCallId": call.id, "sources": [_source(one) for one in sources]}
        yield _activity(f"{result.id}:sources", "sources", shown)


def _message(message: BaseMessage, role: str, turn: ShownTurn, **fields: Any) -> dict[str, Any]:
    id_ = str(message.id)
    known = turn.metadata.get(id_)
    return {"id": id_, "role": role, **fields, **({"metadata": dict(known)} if known else {})}


def _activity(id_: str, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"id": id_, "role": "activity", "activityType": kind, "content": content}


def _call(call: ShownCall) -> dict[str, Any]:
    arguments = call.raw or json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": valid_text(call.call.name), "arguments": arguments}
    approval = {"metadata": {"approval": {"id": call.call.result_id}}} if call.waits else {}
    return {"id": call.id, "type": "function", "function": function, **approval}


def _source(source: Source) -> dict[str, Any]:
    title, url = valid_text(source.title), valid_text(source.url)
    return {"sourceId": source.source_id, "title": title, "url": url, "messageId": source.tool_message_id}


def _content(message: BaseMessage, parts: Sequence[Text | Media], limits: Limits) -> list[dict[str, Any]]:
    """Return texts and media as content parts; media that are not shown as a text that names them."""
    found = list[dict[str, Any]]()
    for part in parts:
        if isinstance(part, Text):
            found.append({"type": "text", "text": part.text})
        elif source := _media_source(message, part, limits):
            name = {"metadata": {"filename": part.name}} if part.name else {}
            found.append({"type": _PARTS[part.kind], "source": source, **name})
        else:
            found.append({"type": "text", "text": part.description, "metadata": {"messageId": str(message.id)}})
    return found


def _media_source(message: BaseMessage, media: Media, limits: Limits) -> dict[str, Any] | None:
    mime_type = {"mimeType": media.mime_type} if media.mime_type else {}
    if media.file_id and not media.data and not media.url:
        return {"type": "file", "value": media.file_id, **mime_type}
    if not limits.is_shown(message, media):
        return None
    if media.data:
        return {"type": "data", "value": media.data, "mimeType": media.mime_type or _UNKNOWN}
    return {"type": "url", "value": media.url, **mime_type}
