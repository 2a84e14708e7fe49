"""Recognises messages that deepagents moved to a file: a large result, or a large question.

Floor 7, pure. Its ``FilesystemMiddleware`` stands around ours. Behind our back it replaces the content of a result by a
preview and the path of a file, and marks a question that it moved. The log has both in full; the model is shown what
deepagents made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

__all__ = ["SETTING", "as_in_state", "is_evicted"]

SETTING = "FilesystemMiddleware(tool_token_limit_before_evict=None, human_message_token_limit_before_evict=None)"
"""The middleware of deepagents that moves nothing."""

_RESULT = "Tool result too large, the result of this tool call "
_TAG = "lc_evicted_to"


def is_evicted(message: BaseMessage, logged: BaseMessage) -> bool:
    """Return True if deepagents moved the content of a logged message to a file, and changed nothing else of it.

    >>> whole = ToolMessage("a" * 100_000, tool_call_id="c1", id="r1")
    >>> is_evicted(ToolMessage(_RESULT + "c1 was saved …", tool_call_id="c1", id="r1"), whole)
    True
    """
    if isinstance(message, ToolMessage) and isinstance(logged, ToolMessage):
        return message.text.startswith(_RESULT) and message.model_copy(update={"content": logged.content}) == logged
    if isinstance(message, HumanMessage) and _TAG in message.additional_kwargs:
        return _untagged(message) == _untagged(logged)
    return False


def as_in_state(messages: Sequence[BaseMessage], state: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a request, questions that deepagents shortened for the model as the state has them."""
    whole = {one.id: one for one in state if isinstance(one, HumanMessage)}
    return [whole.get(one.id, one) if one.id and _is_shortened(one, whole) else one for one in messages]


def _is_shortened(message: BaseMessage, whole: dict[Any, HumanMessage]) -> bool:
    return isinstance(message, HumanMessage) and _TAG in message.additional_kwargs and message.id in whole


def _untagged(message: BaseMessage) -> BaseMessage:
    kept = {key: value for key, value in message.additional_kwargs.items() if key != _TAG}
    return message.model_copy(update={"additional_kwargs": kept})
