"""Put a reply of OpenAI's Responses API together from its events.

The event that closes a stream has the whole `Response`, which is taken as it is. Some servers leave its `output` empty;
the items that were done stand in for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from convstore.wire.chat_stream import error_code

_CLOSING: Final = ("response.completed", "response.incomplete")
_FAILING: Final = ("error", "response.cancelled", "response.failed")
_ITEMS: Final = ("response.output_item.added", "response.output_item.done")
_SAID: Final = {
    "response.output_text.delta": ("output_text", "text"),
    "response.refusal.delta": ("refusal", "refusal"),
}
"""Types of events, the block that each continues, and the key of its text."""
_WRITTEN: Final = {
    "response.custom_tool_call_input.delta": ("custom_tool_call", "input"),
    "response.function_call_arguments.delta": ("function_call", "arguments"),
}
"""Types of events, the item that each continues, and the key of its text."""


class ResponsesReply:
    """A reply of the Responses API, from its events."""

    def __init__(self) -> None:
        self._begun: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        self._done: set[int] = set()
        self._said: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._closing: dict[str, Any] | None = None
        self._failure = ""

    @property
    def text(self) -> str:
        """Text of it that a user has read."""
        return "".join(text for _, text in sorted(self._said.items()))

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of its calls so far, as the model wrote them, by call id."""
        return {
            str(item.get("call_id")): str(item.get("arguments") or item.get("input") or "")
            for item in self._items.values()
        }

    @property
    def problem(self) -> str:
        """Why it is not a whole reply, "" if it is."""
        if self._failure:
            return f"the provider reported {self._failure}"
        return "its stream ended without response.completed" if self._closing is None else ""

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event; those that repeat others add nothing."""
        kind = event.get("type", "")
        if kind in _SAID:
            self._say(event, *_SAID[kind])
        elif kind in _WRITTEN:
            item_type, key = _WRITTEN[kind]
            item = self._items.setdefault(self._number(event), {"type": item_type})
            item[key] = (item.get(key) or "") + event["delta"]
        elif kind in _ITEMS:
            self._take_item(event, is_done=kind == "response.output_item.done")
        elif kind in _FAILING:
            self._fail(event)
        elif kind in _CLOSING:
            self._closing = {**event["response"]}
        elif isinstance(event.get("response"), Mapping):
            self._begun = {**event["response"]}

    def _fail(self, event: Mapping[str, Any]) -> None:
        response = event.get("response")
        if isinstance(response, Mapping):
            error = response.get("error") or {"code": response.get("status")}
        else:
            error = event.get("error") or event
        self._failure = error_code(error)

    def _number(self, event: Mapping[str, Any], item_id: Any = None) -> int:
        """Return the index of an event's item: the one that it has, else by the id of the item."""
        index = event.get("output_index")
        if isinstance(index, int):
            return index
        own = str(item_id or event.get("item_id") or "")
        return self._numbers.setdefault(own, len(self._numbers))

    def _take_item(self, event: Mapping[str, Any], *, is_done: bool) -> None:
        item = deepcopy({**event["item"]})  # more is added to its content
        number = self._number(event, item.get("id"))
        self._items[number] = item
        if is_done:
            self._done.add(number)
        if item.get("type") == "message":
            self._said[number] = _text_in(item)

    def _say(self, event: Mapping[str, Any], kind: str, key: str) -> None:
        number = self._number(event)
        delta = event["delta"]
        self._said[number] = self._said.get(number, "") + delta
        item = self._items.setdefault(number, {"type": "message", "role": "assistant"})
        content = item.setdefault("content", [])
        if not content or content[-1].get("type") != kind:
            content.append({"type": kind, key: ""})
        content[-1][key] += delta

    def message(self, *, is_whole: bool = False) -> Any:  # noqa: ARG002 - its closing event says so
        """Return the reply so far as the API returns one, with reasoning that is done; None without an item."""
        items = [
            item
            for number, item in sorted(self._items.items())
            if item.get("type") != "reasoning" or number in self._done
        ]
        if self._closing is not None:
            return {
                "object": "response",
                **self._closing,
                "output": self._closing.get("output") or items,
            }
        made = {"object": "response", **self._begun, "status": "incomplete", "output": items}
        return made if items else None


def _text_in(item: Mapping[str, Any]) -> str:
    """Return the texts of a message item."""
    content = item.get("content") or ()
    if isinstance(content, str):
        return content
    blocks = (block for block in content if isinstance(block, dict))
    return "".join(block.get("text") or block.get("refusal") or "" for block in blocks)
