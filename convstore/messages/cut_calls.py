"""Find the call of a reply that the output limit or a filter cut off: no tool runs it, with half of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage

from convstore.messages.stop_reasons import cut_reason
from convstore.messages.tool_calls import (
    CALL_BLOCKS,
    Call,
    block_of,
    calls_in_content,
    calls_of,
    inner_block,
)

_NO_CALL: Final = (-1, "")
_CUT: Final = (
    "the reply was cut off ({reason}) before this call was complete, so the tool was not run; "
    "call it again, with less in one call"
)


def cut_errors(message: BaseMessage) -> dict[int, str]:
    """Return the error of the call that was cut off, by its position among the calls of its message; {} without one.

    >>> from langchain_core.messages import AIMessage
    >>> call = {"name": "write", "args": {"path": "a"}, "id": "c1"}
    >>> cut_errors(AIMessage("", tool_calls=[call])), cut_errors(AIMessage("I"))
    ({}, {})
    """
    position, reason = _cut_call(message)
    return {} if position < 0 else {position: _CUT.format(reason=reason)}


def cut_error(message: BaseMessage, call_id: str | None) -> str:
    """Return the error of a call that was cut off, "" for any other.

    >>> from langchain_core.messages import AIMessage
    >>> call = {"name": "write", "args": {"path": "a"}, "id": "c1"}
    >>> reason = {"finish_reason": "length"}
    >>> cut_error(AIMessage("", tool_calls=[call], response_metadata=reason), "c1")[:33]
    'the reply was cut off (length) be'
    """
    errors = cut_errors(message)
    for call in calls_of(message):
        if call.position in errors and call.id == (call_id or ""):
            return errors[call.position]
    return ""


def _cut_call(message: BaseMessage) -> tuple[int, str]:
    """Return the position of the call that the end of a reply cut off, and the stop reason; (-1, "") without one.

    It is the last call, unless other content follows it. Its arguments may look whole: SDKs complete them.

    >>> from langchain_core.messages import AIMessage
    >>> call = {"name": "write", "args": {"path": "a"}, "id": "c1"}
    >>> _cut_call(AIMessage("", tool_calls=[call], response_metadata={"stop_reason": "max_tokens"}))
    (0, 'max_tokens')
    """
    calls = calls_of(message)
    if not calls:
        return _NO_CALL
    for call in calls:
        if block_of(message, call.id).get("status") == "incomplete":
            return call.position, "incomplete"
    reason = cut_reason(message.response_metadata)
    if not reason:
        return _NO_CALL
    last = _last_call(message, calls)
    return (last, reason) if last >= 0 else _NO_CALL


def _last_call(message: BaseMessage, calls: Sequence[Call]) -> int:
    """Return the position of the call that ends a message, -1 if its content goes on after the calls."""
    content = message.content if isinstance(message.content, list) else []
    in_content = dict(calls_in_content(content))
    apart = [call for call in calls if call.id not in in_content]
    if not apart:
        block = inner_block(content[-1])
        key = CALL_BLOCKS.get(str(block.get("type")))
        return _last_with_id(calls, block.get(key) if key else None)
    # Where valid and invalid calls are mixed, the calls as the API wrote them have the order.
    written = message.additional_kwargs.get("tool_calls")
    if isinstance(written, list) and written and isinstance(written[-1], dict):
        return _last_with_id(calls, written[-1].get("id") or "")
    return apart[-1].position


def _last_with_id(calls: Sequence[Call], call_id: Any) -> int:
    return next((call.position for call in reversed(calls) if call.id == call_id), -1)
