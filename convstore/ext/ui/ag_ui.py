"""Write turns as messages of AG-UI 1.0: one for each reply and each result; sources and files are activities."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from convstore.ext.ui.parts import Part
from convstore.ext.ui.turns import Result, ShownTurn, Step

_MEDIA = ("image", "audio", "video")


def ag_ui_messages(turn: ShownTurn) -> Iterator[dict[str, Any]]:
    """Yield the messages of a turn in order, those of each step of the answer, and the draft that follows them."""
    for step in turn.steps:
        is_text = step.role == "system" or all(part["type"] == "text" for part in step.parts)
        if step.role == "assistant":
            yield from _step(step, turn)
        else:
            yield _message(turn, step.id, step.role, content=_text(step.parts) if is_text else _content(step.parts))
    if turn.draft:
        known = {**turn.metadata.get(turn.turn_id, {}), "draft": True}
        id_ = f"draft:{turn.turn_id}:{sum(step.role == 'assistant' for step in turn.steps)}"
        yield {"id": id_, "role": "assistant", "content": turn.draft, "metadata": known}


def ag_ui_answer(turn: ShownTurn) -> Iterator[dict[str, Any]]:
    """Return the messages of the answer alone."""
    return (message for message in ag_ui_messages(turn) if message["role"] not in ("system", "user"))


def _step(step: Step, turn: ShownTurn) -> Iterator[dict[str, Any]]:
    """Yield the messages of a step: its reasoning, the reply with its calls, its files, its results."""
    for number, part in enumerate(part for part in step.parts if part["type"] == "reasoning"):
        proof = [value for named in part.get("providerMetadata", {}).values() for value in named.values()]
        signed = {"encryptedValue": proof[0]} if proof else {}
        yield {"id": f"{step.id}:reasoning-{number}", "role": "reasoning", "content": part["text"], **signed}
    calls = [_call(part) for part in step.parts if "toolCallId" in part]
    text = _text(step.parts)
    content = {"content": text} if text or not calls else {}
    yield _message(turn, step.id, "assistant", **content, **({"toolCalls": calls} if calls else {}))
    others = [part for part in step.parts if part["type"] == "file" or part["type"].startswith("data-")]
    for number, part in enumerate(others):
        kind = part["type"].removeprefix("data-")
        yield _activity(f"{step.id}:part-{number}", kind, part.get("data") or _content([part])[0])
    yield from _sources(step.id, step.parts)
    for result in step.results:
        yield from _result(result, turn)


def _result(result: Result, turn: ShownTurn) -> Iterator[dict[str, Any]]:
    """Yield the result of a call, then its sources."""
    call, files = result.call, [part for part in result.parts if "sourceId" not in part]
    output = call.get("output", call.get("errorText"))
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    content = [{"type": "text", "text": text}, *_content(files)] if files else text
    error = {"error": call["errorText"]} if "errorText" in call else {}
    yield _message(turn, result.id, "tool", toolCallId=call["toolCallId"], content=content, **error)
    yield from _sources(result.id, result.parts)


def _sources(id_: str, parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
    """Yield the sources of a message, if it has some."""
    keys = ("sourceId", "title", "url")
    if found := [{key: part[key] for key in keys if key in part} for part in parts if "sourceId" in part]:
        yield _activity(f"{id_}:sources", "sources", {"messageId": id_, "sources": found})


def _message(turn: ShownTurn, id_: str, role: str, **fields: Any) -> dict[str, Any]:
    known = turn.metadata.get(id_)
    return {"id": id_, "role": role, **fields, **({"metadata": dict(known)} if known else {})}


def _activity(id_: str, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"id": id_, "role": "activity", "activityType": kind, "content": content}


def _call(part: Part) -> dict[str, Any]:
    given, approval = part["input"], part.get("approval")
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    function = {"name": part.get("toolName") or part["type"].removeprefix("tool-"), "arguments": arguments}
    asked = {"metadata": {"approval": approval}} if approval else {}
    return {"id": part["toolCallId"], "type": "function", "function": function, **asked}


def _text(parts: Sequence[Part]) -> str:
    return "".join(part["text"] for part in parts if part["type"] == "text")


def _content(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Return texts and files as content parts; files that are not shown as a text that names them."""
    found = list[dict[str, Any]]()
    for part in parts:
        if part["type"] == "text":
            found.append({"type": "text", "text": part["text"]})
        elif part["type"] == "data-omitted":
            named = {"messageId": part["data"]["messageId"]}
            found.append({"type": "text", "text": part["data"]["description"], "metadata": named})
        elif part["type"].startswith("data-"):
            found.append({"type": "text", "text": f"[{part['type'].removeprefix('data-')}]", "metadata": part["data"]})
        else:
            head, _, data = part["url"].partition(";base64,")
            is_data, kind = head.startswith("data:"), part["mediaType"]
            source = {"type": "data", "value": data} if is_data else {"type": "url", "value": part["url"]}
            name = {"metadata": {"filename": part["filename"]}} if "filename" in part else {}
            media = kind.partition("/")[0]
            typed = {"type": media if media in _MEDIA else "document", "source": {**source, "mimeType": kind}}
            found.append({**typed, **name})
    return found
