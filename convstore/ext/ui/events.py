"""Write an answer as it grows as events of a stream: of the AI SDK 7, or of AG-UI 1.0.

An encoder gets the answer so far, as pages show it, and yields the events that bring a client from what it has to that.
So a stream, a page and a resumed stream agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from convstore.ext.ui.ag_ui import ag_ui_answer
from convstore.ext.ui.ai_sdk import ai_sdk_answer
from convstore.ext.ui.parts import Part
from convstore.ext.ui.turns import ShownTurn, answer_id

Outcome: TypeAlias = Literal["finished", "waiting", "stopped", "unfinished"]
Event: TypeAlias = dict[str, Any]
_Key: TypeAlias = tuple[str, Any]

DRAFT = "draft:"
"""What the id of a step begins with that is being streamed."""

_REASONS = {"finished": "stop", "waiting": "tool-calls"}
_TYPES = {"approved": {"type": "boolean"}, "editedArgs": {"type": "object"}, "reason": {"type": "string"}}
_SCHEMA = {"type": "object", "properties": _TYPES, "required": ["approved"]}


class AISDKEncoder:
    """Writes the UI message stream of the AI SDK; `shown` are the parts that the client has of the answer."""

    def __init__(self, turn_id: str, shown: Iterable[Mapping[str, Any]] = ()) -> None:
        self._id, self._sent = answer_id(turn_id), dict(_keyed(map(_known, shown)))

    def start(self) -> Iterator[Event]:
        """Begin the message, with the id that pages give it."""
        yield {"type": "start", "messageId": self._id}

    def show(self, turn: ShownTurn) -> Iterator[Event]:
        """Yield what is new; a last step of which the client has what is no longer so is begun again."""
        message = ai_sdk_answer(turn)
        fresh = dict(_keyed(message["parts"]))
        if stale := self._stale_step(fresh):
            yield {"type": "reset-step"}
            for key in stale:
                del self._sent[key]
        for key, part in fresh.items():
            if part != (before := self._sent.get(key)):
                self._sent[key] = part
                yield from _chunks(key, part, before or {})
        if message["metadata"]:
            yield {"type": "message-metadata", "messageMetadata": message["metadata"]}

    def end(self, outcome: Outcome) -> Iterator[Event]:
        """End the message."""
        if ("step-start", 0) in self._sent:
            yield {"type": "finish-step"}
        stopped: Event = {"type": "abort", "reason": "stopped"}
        yield stopped if outcome == "stopped" else {"type": "finish", "finishReason": _REASONS.get(outcome, "other")}

    def fail(self, text: str) -> Iterator[Event]:
        """Say that the answer ended with an error."""
        yield {"type": "error", "errorText": text}

    def _stale_step(self, fresh: Mapping[_Key, Part]) -> list[_Key]:
        """Return the keys of the last step if it has a part that is gone, or a text that is another one now."""
        keys = list(self._sent)
        begun = max((at for at, (kind, _) in enumerate(keys) if kind == "step-start"), default=-1)
        is_stale = (key not in fresh or not _extends(fresh[key], self._sent[key], "text") for key in keys[begun + 1 :])
        return keys[begun + 1 :] if any(is_stale) else []


class AGUIEncoder:
    """Writes events of AG-UI; `shown` are the messages that the client has after the question."""

    def __init__(self, thread_id: str, run_id: str, shown: Iterable[Mapping[str, Any]] = ()) -> None:
        self._run, self._sent = {"threadId": thread_id, "runId": run_id}, dict(_keyed(map(_known, shown)))
        self._open, self._calls = dict[str, list[Event]](), list[Part]()

    def start(self) -> Iterator[Event]:
        """Begin the run."""
        yield {"type": "RUN_STARTED", **self._run, "protocolVersion": "1.0"}

    def show(self, turn: ShownTurn) -> Iterator[Event]:
        """Yield what is new. A reply that was streamed keeps the id of its draft."""
        for key, message in _keyed(ag_ui_answer(turn)):
            before = self._sent.get(key, {})
            own = {**message, "id": before.get("id", message["id"]), "live": message["id"].startswith(DRAFT)}
            if own != before:
                self._sent[key] = own
                yield from self._events(own, before)
        parts = (part for step in turn.steps for part in step.parts)
        self._calls = [part for part in parts if part.get("state") in ("input-available", "approval-requested")]

    def end(self, outcome: Outcome) -> Iterator[Event]:
        """End the run: with what a person has to decide, or with the calls that the client has to run."""
        yield from self._closed()
        asked = [_interrupt(part) for part in self._calls if "approval" in part]
        pending = [part["toolCallId"] for part in self._calls if "approval" not in part]
        found: Event = {"type": "success"} | ({"pendingToolCallIds": pending} if pending else {})
        if asked or outcome == "stopped":
            found = {"type": "interrupt", "interrupts": asked} if asked else {"type": "cancelled"}
        yield {"type": "RUN_FINISHED", **self._run, "outcome": found}

    def fail(self, text: str) -> Iterator[Event]:
        """Say that the run ended with an error."""
        yield from self._closed()
        yield {"type": "RUN_ERROR", "message": text}

    def _events(self, message: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Event]:
        role, own = message["role"], {"messageId": message["id"]}
        if role not in ("assistant", "reasoning") or not message["live"]:
            yield from self._closed(message["id"])
        if role == "tool" and not before:
            answered = {"toolCallId": message["toolCallId"], "content": message["content"], "role": "tool"}
            yield {"type": "TOOL_CALL_RESULT", **own, **answered}
        elif role == "activity":
            about = {"activityType": message["activityType"], "content": message["content"]}
            yield {"type": "ACTIVITY_SNAPSHOT", **own, **about, "replace": True}
        elif role != "tool":
            yield from self._text(message, before)
            for call in message.get("toolCalls", ()):
                known = [sent for sent in before.get("toolCalls", ()) if sent.get("id") == call["id"]]
                yield from self._call(call, message["id"], known[0]["function"] if known else None)
            if not message["live"]:
                yield from self._closed()
            if proof := message.get("encryptedValue"):
                named = {"subtype": "message", "entityId": message["id"], "encryptedValue": proof}
                yield {"type": "REASONING_ENCRYPTED_VALUE", **named}

    def _text(self, message: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the beginning of a text, and what is new of it."""
        id_, text, sent = message["id"], message.get("content") or "", before.get("content") or ""
        is_thought, own = message["role"] == "reasoning", {"messageId": message["id"]}
        name = "REASONING_MESSAGE" if is_thought else "TEXT_MESSAGE"
        if text and not sent:
            yield from self._closed(id_)
            yield from [{"type": "REASONING_START", **own}] if is_thought else []
            yield {"type": f"{name}_START", **own, "role": message["role"]}
            ends = [f"{name}_END", *(["REASONING_END"] if is_thought else [])]
            self._open[id_] = [{"type": kind, **own} for kind in ends]
        if text != sent and text.startswith(sent):
            yield {"type": f"{name}_CONTENT", **own, "delta": text[len(sent) :]}

    def _call(self, call: Part, parent: str, known: Mapping[str, Any] | None) -> Iterator[Event]:
        """Yield the beginning of a call, and what is new of its arguments."""
        own, function, sent = (
            {"toolCallId": call["id"]},
            call["function"],
            str(known.get("arguments", "")) if known else "",
        )
        if known is None:
            yield {"type": "TOOL_CALL_START", **own, "toolCallName": function["name"], "parentMessageId": parent}
            self._open[call["id"]] = [{"type": "TOOL_CALL_END", **own}]
        if function["arguments"] != sent and function["arguments"].startswith(sent):
            yield {"type": "TOOL_CALL_ARGS", **own, "delta": function["arguments"][len(sent) :]}

    def _closed(self, but: str = "") -> Iterator[Event]:
        """Close what is open, but for one."""
        for id_ in [id_ for id_ in self._open if id_ != but]:
            yield from self._open.pop(id_)


def _known(message: Mapping[str, Any]) -> Part:
    """Return what a client says that it has, without all that has another type than what is read of it."""
    calls = message["toolCalls"] if isinstance(message.get("toolCalls"), list) else []
    found = [call for call in calls if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)]
    return {key: value for key, value in message.items() if isinstance(value, str)} | (
        {"toolCalls": found} if found else {}
    )


def _keyed(items: Iterable[Mapping[str, Any]]) -> Iterator[tuple[_Key, Part]]:
    """Yield parts or messages, each with what it is known by: its call, its source, or its number among its kind."""
    counts = Counter[str]()
    for item in items:
        kind = str(item.get("role", item.get("type")))
        known = next((name for name in ("toolCallId", "sourceId") if name in item), None)
        yield ((known, str(item[known])) if known else (kind, counts[kind])), dict(item)
        counts[kind] += 1


def _extends(part: Mapping[str, Any], before: Mapping[str, Any], name: str) -> bool:
    return str(part.get(name, "")).startswith(str(before.get(name, "")))


def _chunks(key: _Key, part: Part, before: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the chunks that turn one part of the AI SDK into another."""
    kind, id_ = part["type"], f"{key[0]}-{key[1]}"
    if kind == "step-start":
        yield from [{"type": "finish-step"}, {"type": "start-step"}][not key[1] :]
    elif kind in ("text", "reasoning"):
        if not before:
            yield {"type": f"{kind}-start", "id": id_}
        if new := part["text"][len(before.get("text", "")) :]:
            yield {"type": f"{kind}-delta", "id": id_, "delta": new}
        if part["state"] == "done" != before.get("state"):
            proof = {"providerMetadata": part["providerMetadata"]} if "providerMetadata" in part else {}
            yield {"type": f"{kind}-end", "id": id_, **proof}
    elif "toolCallId" in part:
        yield from _call_chunks(part, before, {"toolCallId": part["toolCallId"]})
    elif not before:
        yield part


def _call_chunks(part: Part, before: Mapping[str, Any], own: Part) -> Iterator[Event]:
    state, known = part["state"], before.get("state", "")
    dynamic = {"dynamic": True} if "toolName" in part else {}
    named = {**own, "toolName": part.get("toolName") or part["type"].removeprefix("tool-"), **dynamic}
    if state == "input-streaming":
        if not before:
            yield {"type": "tool-input-start", **named}
        if _extends(part, before, "input") and (new := part["input"][len(before.get("input", "")) :]):
            yield {"type": "tool-input-delta", **own, "inputTextDelta": new}
        return
    if known in ("", "input-streaming"):
        yield {"type": "tool-input-available", **named, "input": part["input"]}
    if state == "approval-requested" and known not in (state, "approval-responded"):
        yield {"type": "tool-approval-request", **own, "approvalId": part["approval"]["id"]}
    elif state == "output-available" != known:
        yield {"type": "tool-output-available", **own, "output": part["output"]}
    elif state == "output-error" and part["errorText"] != before.get("errorText"):
        yield {"type": "tool-output-error", **own, "errorText": part["errorText"]}


def _interrupt(part: Part) -> Event:
    """Return the question whether a call may run."""
    name = part.get("toolName") or part["type"].removeprefix("tool-")
    about = {"toolCallId": part["toolCallId"], "message": f"Approve {name}?", "responseSchema": _SCHEMA}
    return {"id": part["approval"]["id"], "reason": "tool_call", **about}
