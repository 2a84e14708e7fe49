"""Write turns for the AI SDK 7: as `UIMessage`s, one for the question and one for the whole answer, or as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from convstore.ext.ui.turns import (
    ANSWER,
    Event,
    Key,
    Outcome,
    Part,
    ShownTurn,
    checked_fields,
    with_keys,
)

_EMPTY = {"type": "text", "text": ""}
"""Part of an empty message, because the AI SDK refuses messages without parts."""
_REASONS = {"finished": "stop", "waiting": "tool-calls"}


def ai_sdk_messages(turn: ShownTurn) -> Iterator[dict[str, Any]]:
    """Yield the messages of a turn: system messages, the question, the answer."""
    for step in turn.steps:
        if step.role in ("system", "user"):
            parts = [
                {key: value for key, value in part.items() if key != "state"} for part in step.parts
            ]
            metadata = dict(turn.metadata.get(step.id, {}))
            yield {
                "id": step.id,
                "role": step.role,
                "metadata": metadata,
                "parts": parts or [_EMPTY],
            }
    if any(step.role == "assistant" for step in turn.steps):
        yield _answer(turn)


def _answer(turn: ShownTurn) -> dict[str, Any]:
    """Return the message with the whole answer of a turn."""
    parts: list[Part] = []
    for step in turn.steps:
        if step.role in ("assistant", "tool"):
            if step.role == "assistant":
                parts += [{"type": "step-start"}, *step.parts]
            else:
                parts += step.parts[1:]
    id_ = ANSWER + turn.turn_id
    return {
        "id": id_,
        "role": "assistant",
        "metadata": dict(turn.metadata.get(id_, {})),
        "parts": parts,
    }


class AISDKEncoder:
    """Writes the UI message stream; `shown` are the parts of the answer that the client already has."""

    def __init__(self, turn_id: str, shown: Iterable[Mapping[str, Any]] = ()) -> None:
        self._id = ANSWER + turn_id
        self._sent = dict(with_keys(map(checked_fields, shown)))

    def start(self) -> Iterator[Event]:
        """Begin the message, under the id that it has on pages."""
        yield {"type": "start", "messageId": self._id}

    def show(self, turn: ShownTurn) -> Iterator[Event]:
        """Yield the new parts; if the client has outdated parts of the last step, the step is sent again."""
        message = _answer(turn)
        fresh = dict(with_keys(message["parts"]))
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
        if outcome == "stopped":
            yield {"type": "abort", "reason": "stopped"}
        else:
            yield {"type": "finish", "finishReason": _REASONS.get(outcome, "other")}

    def fail(self, text: str) -> Iterator[Event]:
        """Report that the answer ended with an error."""
        yield {"type": "error", "errorText": text}

    def _stale_step(self, fresh: Mapping[Key, Part]) -> list[Key]:
        """Return the keys of the last step that was sent, if one of its parts was removed or has another text now."""
        keys = list(self._sent)
        begun = max((at for at, (kind, _) in enumerate(keys) if kind == "step-start"), default=-1)
        is_stale = (
            key not in fresh or not _extends(fresh[key], self._sent[key], "text")
            for key in keys[begun + 1 :]
        )
        return keys[begun + 1 :] if any(is_stale) else []


def _extends(part: Mapping[str, Any], before: Mapping[str, Any], name: str) -> bool:
    return str(part.get(name, "")).startswith(str(before.get(name, "")))


def _chunks(key: Key, part: Part, before: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the chunks that turn one part into another."""
    kind = part["type"]
    id_ = f"{key[0]}-{key[1]}"
    if kind == "step-start":
        yield from [{"type": "finish-step"}, {"type": "start-step"}][not key[1] :]
    elif kind in ("text", "reasoning"):
        if not before:
            yield {"type": f"{kind}-start", "id": id_}
        if new := part["text"][len(before.get("text", "")) :]:
            yield {"type": f"{kind}-delta", "id": id_, "delta": new}
        if part["state"] == "done" != before.get("state"):
            proof = (
                {"providerMetadata": part["providerMetadata"]} if "providerMetadata" in part else {}
            )
            yield {"type": f"{kind}-end", "id": id_, **proof}
    elif "toolCallId" in part:
        yield from _call_chunks(part, before, {"toolCallId": part["toolCallId"]})
    elif not before:
        yield part


def _call_chunks(part: Part, before: Mapping[str, Any], own: Part) -> Iterator[Event]:
    state = part["state"]
    known = before.get("state", "")
    named = {**own, **_tool_of(part)}
    if state == "input-streaming":
        if not before:
            yield {"type": "tool-input-start", **named}
        yield from _input_chunks(part, before, own)
        return
    if known in ("", "input-streaming"):
        yield {"type": "tool-input-available", **named, "input": part["input"]}
    if state == "approval-requested" and known not in (state, "approval-responded"):
        yield {"type": "tool-approval-request", **own, "approvalId": part["approval"]["id"]}
    elif state == "output-available" != known:
        yield {"type": "tool-output-available", **own, "output": part["output"]}
    elif state == "output-error" and part["errorText"] != before.get("errorText"):
        yield {"type": "tool-output-error", **own, "errorText": part["errorText"]}


def _tool_of(part: Part) -> Part:
    """Return the fields that name the tool of a call."""
    if "toolName" in part:
        return {"toolName": part["toolName"], "dynamic": True}
    return {"toolName": part["type"].removeprefix("tool-")}


def _input_chunks(part: Part, before: Mapping[str, Any], own: Part) -> Iterator[Event]:
    """Yield the new text of a call's arguments; nothing if they no longer begin with the text that was sent."""
    if not _extends(part, before, "input"):
        return
    new = part["input"][len(str(before.get("input", ""))) :]
    if new:
        yield {"type": "tool-input-delta", **own, "inputTextDelta": new}
