"""Write turns as `UIMessage`s of the AI SDK 7: one for a question, one for the whole answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from convstore.ext.ui.turns import ShownTurn, answer_id

_EMPTY = {"type": "text", "text": ""}
"""What a message without a part has, as the AI SDK refuses one without parts."""


def ai_sdk_messages(turn: ShownTurn) -> Iterator[dict[str, Any]]:
    """Yield the messages of a turn: system messages, the question, the answer."""
    for step in turn.steps:
        if step.role != "assistant":
            parts = [{key: value for key, value in part.items() if key != "state"} for part in step.parts]
            metadata = dict(turn.metadata.get(step.id, {}))
            yield {"id": step.id, "role": step.role, "metadata": metadata, "parts": parts or [_EMPTY]}
    if turn.draft or any(step.role == "assistant" for step in turn.steps):
        yield ai_sdk_answer(turn)


def ai_sdk_answer(turn: ShownTurn) -> dict[str, Any]:
    """Return the message with the whole answer of a turn, and the draft that follows what is in the log."""
    parts = list[dict[str, Any]]()
    for step in turn.steps:
        if step.role == "assistant":
            parts += [{"type": "step-start"}, *step.parts, *(part for result in step.results for part in result.parts)]
    if turn.draft:
        parts += [{"type": "step-start"}, {"type": "text", "text": turn.draft, "state": "streaming"}]
    id_ = answer_id(turn.turn_id)
    metadata = dict(turn.metadata.get(id_, {}))
    return {"id": id_, "role": "assistant", "metadata": metadata, "parts": parts}
