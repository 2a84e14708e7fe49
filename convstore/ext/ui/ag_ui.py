"""Write turns in the format of AG-UI 1.0: as messages, one for each reply and each result, or as a stream of events.

Sources and files become activities.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from convstore.ext.ui.turns import (
    DRAFT,
    Event,
    Outcome,
    Part,
    ShownStep,
    ShownTurn,
    checked_fields,
    with_keys,
)

_MEDIA = ("image", "audio", "video")
_REASONING = ":reasoning-"
_TEXTS = {"assistant": "TEXT_MESSAGE", "reasoning": "REASONING_MESSAGE"}
_TYPES = {
    "approved": {"type": "boolean"},
    "editedArgs": {"type": "object"},
    "reason": {"type": "string"},
}
_SCHEMA = {"type": "object", "properties": _TYPES, "required": ["approved"]}


def ag_ui_messages(turn: ShownTurn) -> Iterator[dict[str, Any]]:
    """Yield the messages of a turn in order."""
    for step in turn.steps:
        if step.role == "assistant":
            yield from _reply(step, turn)
        elif step.role == "tool":
            yield from _result(step, turn)
        else:
            is_text = step.role == "system" or all(part["type"] == "text" for part in step.parts)
            yield _message(
                turn,
                step.id,
                step.role,
                content=_text(step.parts) if is_text else _content(step.parts),
            )


class AGUIEncoder:
    """Writes events; `shown` are the messages after the question that the client already has."""

    def __init__(
        self, thread_id: str, run_id: str, shown: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self._run = {"threadId": thread_id, "runId": run_id}
        self._sent = dict(with_keys(map(checked_fields, shown)))
        self._open: dict[str, Event] = {}
        self._calls: list[Part] = []

    def start(self) -> Iterator[Event]:
        """Begin the run."""
        yield {"type": "RUN_STARTED", **self._run, "protocolVersion": "1.0"}

    def show(self, turn: ShownTurn) -> Iterator[Event]:
        """Yield the new content. A streamed reply keeps the id of its draft, unless the stored text differs."""
        answer = (
            message for message in ag_ui_messages(turn) if message["role"] not in ("system", "user")
        )
        for key, message in with_keys(answer):
            before = self._sent.get(key, {})
            live = message["id"].startswith(DRAFT)
            own = {**message, "id": before.get("id", message["id"]), "live": live}
            # the text of a redacted draft: events cannot remove sent text
            if not _extends_text(message, before):
                if live:
                    own["content"] = before["content"]
                else:
                    own["id"] = message["id"]
                    before = {"toolCalls": before.get("toolCalls", ())}
            if own != before:
                self._sent[key] = own
                yield from self._events(own, before)
        self._calls = []
        for step in turn.steps:
            for part in step.parts:
                if part.get("state") in ("input-available", "approval-requested"):
                    self._calls.append(part)

    def end(self, outcome: Outcome) -> Iterator[Event]:
        """End the run: with the calls that a person has to decide about, or those that the client has to run."""
        yield from self._closed()
        interrupts = [_interrupt(part) for part in self._calls if "approval" in part]
        pending = [part["toolCallId"] for part in self._calls if "approval" not in part]
        found: Event = {"type": "success"} | ({"pendingToolCallIds": pending} if pending else {})
        if interrupts or outcome == "stopped":
            found = (
                {"type": "interrupt", "interrupts": interrupts}
                if interrupts
                else {"type": "cancelled"}
            )
        yield {"type": "RUN_FINISHED", **self._run, "outcome": found}

    def fail(self, text: str) -> Iterator[Event]:
        """Report that the run ended with an error."""
        yield from self._closed()
        yield {"type": "RUN_ERROR", "message": text}

    def _events(self, message: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the events that turn one message into another, after those that end all other open texts and calls."""
        id_ = message["id"]
        role = message["role"]
        reply = id_.partition(_REASONING)[0]  # its text may continue after its reasoning
        calls = {call["id"] for call in message.get("toolCalls", ())}
        yield from self._closed({id_, reply, *calls})
        if role in _TEXTS:
            yield from self._text_events(message, before)
        elif role == "tool" and not before:
            yield {
                "type": "TOOL_CALL_RESULT",
                "messageId": id_,
                "toolCallId": message["toolCallId"],
                "content": message["content"],
                "role": role,
            }
        elif role == "activity":
            yield {
                "type": "ACTIVITY_SNAPSHOT",
                "messageId": id_,
                "activityType": message["activityType"],
                "content": message["content"],
                "replace": True,
            }

    def _text_events(
        self, message: Mapping[str, Any], before: Mapping[str, Any]
    ) -> Iterator[Event]:
        """Yield the events of a message with text or reasoning, and of its calls."""
        id_ = message["id"]
        role = message["role"]
        if text := message.get("content"):
            sent = before.get("content") or None
            yield from self._growth_events(_TEXTS[role], id_, text, sent, role=role)
        known = {
            call.get("id"): str(call["function"].get("arguments", ""))
            for call in before.get("toolCalls", ())
        }
        for call in message.get("toolCalls", ()):
            named = {"toolCallName": call["function"]["name"], "parentMessageId": id_}
            arguments = call["function"]["arguments"]
            yield from self._growth_events(
                "TOOL_CALL", call["id"], arguments, known.get(call["id"]), **named
            )
        if not message["live"]:
            yield from self._closed()
        if proof := message.get("encryptedValue"):
            named = {"subtype": "message", "entityId": id_, "encryptedValue": proof}
            yield {"type": "REASONING_ENCRYPTED_VALUE", **named}

    def _growth_events(
        self, kind: str, id_: str, text: str, sent: str | None, **begun: str
    ) -> Iterator[Event]:
        """Yield the events of new text or call arguments; `sent` is the text sent before, None if nothing was sent."""
        is_call = kind == "TOOL_CALL"
        own = {"toolCallId" if is_call else "messageId": id_}
        if sent is None:
            yield from [{"type": "REASONING_START", **own}] if kind == "REASONING_MESSAGE" else []
            yield {"type": f"{kind}_START", **own, **begun}
            self._open[id_] = {"type": f"{kind}_END", **own}
        new = text[len(sent or "") :]
        if new and text.startswith(sent or ""):
            yield {"type": f"{kind}_{'ARGS' if is_call else 'CONTENT'}", **own, "delta": new}

    def _closed(self, but: Collection[str] = ()) -> Iterator[Event]:
        """End the open texts and calls, except for `but`."""
        for id_ in [id_ for id_ in self._open if id_ not in but]:
            yield (ended := self._open.pop(id_))
            if ended["type"] == "REASONING_MESSAGE_END":
                yield {**ended, "type": "REASONING_END"}


def _extends_text(message: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Return True if the text of a message begins with the text that was sent of it."""
    if message["role"] not in _TEXTS:
        return True
    return str(message.get("content", "")).startswith(before.get("content", ""))


def _interrupt(part: Part) -> Event:
    """Return the interrupt that asks a person to approve a call."""
    about = {
        "toolCallId": part["toolCallId"],
        "message": f"Approve {_name(part)}?",
        "responseSchema": _SCHEMA,
    }
    return {"id": part["approval"]["id"], "reason": "tool_call", **about}


def _reply(step: ShownStep, turn: ShownTurn) -> Iterator[dict[str, Any]]:
    """Yield the messages of a reply: its reasoning, its text with its calls, its files, its sources."""
    reasoning = [part for part in step.parts if part["type"] == "reasoning"]
    for number, part in enumerate(reasoning):
        yield _reasoning(f"{step.id}{_REASONING}{number}", part)
    yield _answer(step, turn)
    others = [part for part in step.parts if part["type"].startswith(("file", "data-"))]
    for number, part in enumerate(others):
        kind = part["type"].removeprefix("data-")
        yield _activity(f"{step.id}:part-{number}", kind, part.get("data") or _content([part])[0])
    yield from _sources(step.id, step.parts)


def _answer(step: ShownStep, turn: ShownTurn) -> dict[str, Any]:
    """Return the message of a reply with its text and its calls."""
    calls = [_call(part) for part in step.parts if "toolCallId" in part]
    text = _text(step.parts)
    fields: dict[str, Any] = {}
    if text or not calls:
        fields["content"] = text
    if calls:
        fields["toolCalls"] = calls
    return _message(turn, step.id, "assistant", **fields)


def _reasoning(id_: str, part: Part) -> dict[str, Any]:
    """Return the message of a reasoning part, with the provider's signature if there is one."""
    message = {"id": id_, "role": "reasoning", "content": part["text"]}
    for metadata in part.get("providerMetadata", {}).values():
        for value in metadata.values():
            message.setdefault("encryptedValue", value)
    return message


def _result(step: ShownStep, turn: ShownTurn) -> Iterator[dict[str, Any]]:
    """Yield the result of a call, then its sources."""
    call, *others = step.parts
    files = [part for part in others if "sourceId" not in part]
    output = call.get("output", call.get("errorText"))
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    content = [{"type": "text", "text": text}, *_content(files)] if files else text
    error = {"error": call["errorText"]} if "errorText" in call else {}
    yield _message(turn, step.id, "tool", toolCallId=call["toolCallId"], content=content, **error)
    yield from _sources(step.id, others)


def _sources(id_: str, parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
    """Yield one activity with the sources of a message; nothing without sources."""
    keys = ("sourceId", "title", "url")
    if found := [
        {key: part[key] for key in keys if key in part} for part in parts if "sourceId" in part
    ]:
        yield _activity(f"{id_}:sources", "sources", {"messageId": id_, "sources": found})


def _message(turn: ShownTurn, id_: str, role: str, **fields: Any) -> dict[str, Any]:
    known = turn.metadata.get(id_)
    return {"id": id_, "role": role, **fields, **({"metadata": dict(known)} if known else {})}


def _activity(id_: str, kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"id": id_, "role": "activity", "activityType": kind, "content": content}


def _call(part: Part) -> dict[str, Any]:
    given = part["input"]
    approval = part.get("approval")
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    function = {"name": _name(part), "arguments": arguments}
    extra = {"metadata": {"approval": approval}} if approval else {}
    return {"id": part["toolCallId"], "type": "function", "function": function, **extra}


def _name(call: Part) -> str:
    return str(call.get("toolName") or call["type"].removeprefix("tool-"))


def _text(parts: Sequence[Part]) -> str:
    return "".join(part["text"] for part in parts if part["type"] == "text")


def _content(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Return texts and files as content parts; an omitted file becomes a text that describes it."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if part["type"] == "text":
            found.append({"type": "text", "text": part["text"]})
        elif part["type"] == "data-omitted":
            named = {"messageId": part["data"]["messageId"]}
            found.append({"type": "text", "text": part["data"]["description"], "metadata": named})
        elif part["type"].startswith("data-"):
            found.append(
                {
                    "type": "text",
                    "text": f"[{part['type'].removeprefix('data-')}]",
                    "metadata": part["data"],
                }
            )
        else:
            head, _, data = part["url"].partition(";base64,")
            is_data = head.startswith("data:")
            kind = part["mediaType"]
            if is_data:
                source = {"type": "data", "value": data}
            else:
                source = {"type": "url", "value": part["url"]}
            name = {"metadata": {"filename": part["filename"]}} if "filename" in part else {}
            media = kind.partition("/")[0]
            typed = {
                "type": media if media in _MEDIA else "document",
                "source": {**source, "mimeType": kind},
            }
            found.append({**typed, **name})
    return found
