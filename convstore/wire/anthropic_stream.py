"""Assemble a reply of Anthropic's Messages API from its stream events.

The stream helper of the SDK adds events that repeat others; these are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from convstore.messages.call_arguments import parsed_arguments
from convstore.values.json_form import without_nulls
from convstore.wire.chat_stream import error_code, grow, visible_text

READ: Final = frozenset(
    {
        "content_block_delta",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_start",
        "message_stop",
    }
)
"""Types of the API's events, except errors and pings."""

_TEXTS: Final = frozenset({"text", "thinking"})
_BLOCK_OF_DELTA: Final = {"thinking_delta": "thinking", "signature_delta": "thinking"}
_NOT_OF_MESSAGE: Final = frozenset({"delta", "type", "usage"})


@dataclass(slots=True)
class _StreamedBlock:
    """A content block, and the JSON text of its input received so far."""

    fields: dict[str, Any]
    arguments: str = ""

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add a delta."""
        kind = delta.get("type")
        if kind == "input_json_delta":
            self.arguments += delta.get("partial_json") or ""
        elif kind == "citations_delta":
            grow(self.fields, {"citations": [delta["citation"]]})
        else:
            grow(
                self.fields,
                {name: value for name, value in delta.items() if name != "type"},
                _TEXTS,
            )

    @property
    def is_call(self) -> bool:
        """True for a call that the client runs."""
        return self.fields.get("type") == "tool_use"

    @property
    def is_cut(self) -> bool:
        """True if the input received so far is not a JSON object."""
        return parsed_arguments(self.arguments) is None

    @property
    def is_cut_call(self) -> bool:
        """True for a call of the client that was cut off."""
        return self.is_call and self.is_cut

    def made(self) -> dict[str, Any]:
        """Return the block as in a reply without a stream; a cut-off input stays as text in `partial_json`."""
        if self.is_cut:
            return {**self.fields, "partial_json": self.arguments}
        if self.arguments:
            return {**self.fields, "input": parsed_arguments(self.arguments)}
        return {"input": {}, **self.fields} if self.is_call else self.fields

    def call(self) -> dict[str, Any]:
        """Return the call with its arguments as the model wrote them."""
        given = self.arguments or self.fields.get("input") or {}
        function = {"name": self.fields.get("name"), "arguments": given}
        return {"id": self.fields.get("id"), "type": "function", "function": function}


class AnthropicReply:
    """Assembles a reply of the Messages API from its events."""

    def __init__(self) -> None:
        self._whole: dict[str, Any] = {}
        self._blocks: list[_StreamedBlock] = []
        self._by_index: dict[Any, _StreamedBlock] = {}
        self._is_closed = False
        self._failure = ""

    @property
    def text(self) -> str:
        """The text so far that users see."""
        return visible_text([block.fields for block in self._blocks])

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of its calls so far, as the model wrote them, by call id."""
        return {
            str(block.fields.get("id")): block.arguments
            for block in self._blocks
            if block.arguments
        }

    @property
    def problem(self) -> str:
        """Why the reply is not complete, "" if it is."""
        if self._failure:
            return f"the provider reported {self._failure}"
        return "" if self._is_closed else "its stream ended without a stop reason"

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event; helper events are ignored."""
        kind = event.get("type")
        if kind == "error":
            self._failure = error_code(event.get("error"))
        elif kind == "message_start":
            self._whole = without_nulls(event["message"])
            self._whole["usage"] = without_nulls(self._whole.get("usage") or {})
        elif kind == "content_block_start":
            self._begin(event.get("index"), without_nulls(event["content_block"]))
        elif kind == "content_block_delta":
            self._block(event.get("index"), event["delta"]).add(event["delta"])
        elif kind == "message_delta":
            self._close(event)
        elif kind == "message_stop":
            self._is_closed = True

    def _begin(self, index: Any, fields: dict[str, Any]) -> _StreamedBlock:
        block = _StreamedBlock(fields)
        self._blocks.append(block)
        self._by_index[index] = block
        return block

    def _block(self, index: Any, delta: Mapping[str, Any]) -> _StreamedBlock:
        """Return the block that a delta continues, or a new one if its start event is missing."""
        if index is None and self._blocks:
            return self._blocks[-1]
        kind = _BLOCK_OF_DELTA.get(str(delta.get("type")), "text")
        return self._by_index.get(index) or self._begin(index, {"type": kind})

    def _close(self, event: Mapping[str, Any]) -> None:
        others = {name: value for name, value in event.items() if name not in _NOT_OF_MESSAGE}
        self._whole |= without_nulls(others) | without_nulls(event["delta"])
        usage = self._whole.setdefault("usage", {})
        usage |= without_nulls(event.get("usage") or {})
        self._is_closed = bool(self._whole.get("stop_reason"))

    def message(self, *, is_whole: bool = False) -> Any:
        """Return the reply so far in the form of a reply without a stream; None before the first block.

        A whole reply may be empty. If the arguments of a call were cut off, all calls are in `tool_calls`, with the
        text of their arguments.
        """
        blocks = self._blocks if is_whole else self._filled()
        if not blocks and not is_whole:
            return None
        made = {"type": "message", "role": "assistant", "stop_reason": None, **self._whole}
        made["content"] = [block.made() for block in blocks if not block.is_cut_call]
        if any(block.is_cut_call for block in blocks):
            made["tool_calls"] = [block.call() for block in blocks if block.is_call]
        return made

    def _filled(self) -> list[_StreamedBlock]:
        return [block for block in self._blocks if not _is_blank(block.fields)]


def _is_blank(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "text" and not block.get("text")
