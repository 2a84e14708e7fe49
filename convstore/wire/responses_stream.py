"""Assemble a reply of OpenAI's Responses API from its events.

The event that closes a stream has the whole `Response`, which is used unchanged. If a server leaves its `output` empty,
the items of earlier events are used. Servers also leave out deltas or the items around them, number two items alike,
or send a finished item without its texts. So each event adds the values that it has, and an empty value never replaces
a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from convstore.wire.chat_stream import error_code, visible_text

_CLOSING: Final = ("response.completed", "response.incomplete")
_FAILING: Final = ("error", "response.cancelled", "response.failed")
_ITEMS: Final = ("response.output_item.added", "response.output_item.done")
_LISTS: Final = ("content", "summary")


class _TextField(NamedTuple):
    """Location of a text in an item: in one of its fields, or in a block of the list in this field."""

    item: str
    field: str
    block: str = ""
    key: str = "text"


_TEXTS: Final = {
    "response.code_interpreter_call_code": _TextField("code_interpreter_call", "code"),
    "response.custom_tool_call_input": _TextField("custom_tool_call", "input"),
    "response.function_call_arguments": _TextField("function_call", "arguments"),
    "response.mcp_call_arguments": _TextField("mcp_call", "arguments"),
    "response.output_text": _TextField("message", "content", "output_text"),
    "response.reasoning_summary_text": _TextField("reasoning", "summary", "summary_text"),
    "response.reasoning_text": _TextField("reasoning", "content", "reasoning_text"),
    "response.refusal": _TextField("message", "content", "refusal", "refusal"),
}
"""Beginnings of the types of events with a text: a piece of it (``.delta``) or all of it (``.done``)."""


@dataclass(slots=True)
class _StreamedItem:
    """An item that is assembled from events."""

    fields: dict[str, Any]
    id: str = ""
    position: int = 0
    is_done: bool = False
    blocks: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def take(self, given: Mapping[str, Any]) -> None:
        """Merge the item of an event; an empty value, or a list with less text, does not replace a known value."""
        for name, value in given.items():
            known = self.fields.get(name)
            is_less = name in _LISTS and len(visible_text(value)) < len(visible_text(known))
            if not known or (value and not is_less):
                self.fields[name] = value
        self.blocks.clear()

    def block(self, event: Mapping[str, Any], text: _TextField) -> dict[str, Any]:
        """Return the dict with the text of an event, which is the item itself or a block in it."""
        if not text.block:
            return self.fields
        blocks = self.fields.setdefault(text.field, [])
        index = event.get("content_index", event.get("summary_index"))
        key = (text.field, index)
        if key not in self.blocks:
            last = blocks[-1] if blocks and not self.blocks else {}
            if last.get("type") != text.block:
                last = {"type": text.block}
                blocks.append(last)
            self.blocks[key] = last
        return self.blocks[key]


class ResponsesReply:
    """Assembles a reply of the Responses API from its events."""

    def __init__(self) -> None:
        self._begun: dict[str, Any] = {}
        self._items: list[_StreamedItem] = []
        self._by_index: dict[Any, _StreamedItem] = {}
        self._by_id: dict[str, _StreamedItem] = {}
        self._closing: dict[str, Any] | None = None
        self._failure = ""

    @property
    def text(self) -> str:
        """The text so far that users see."""
        said = [item.fields for item in self._items if item.fields.get("type") == "message"]
        return "".join(visible_text(fields.get("content")) for fields in said)

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of its calls so far, as the model wrote them, by call id."""
        calls = [item.fields for item in self._items if item.fields.get("call_id")]
        return {
            str(call["call_id"]): str(call.get("arguments") or call.get("input") or "")
            for call in calls
        }

    @property
    def problem(self) -> str:
        """Why the reply is not complete, "" if it is."""
        if self._failure:
            return f"the provider reported {self._failure}"
        return "its stream ended without response.completed" if self._closing is None else ""

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event."""
        kind = event.get("type", "")
        beginning, _, last = kind.rpartition(".")
        if beginning in _TEXTS:
            self._take_text(event, _TEXTS[beginning], is_whole=last == "done")
        elif kind in _ITEMS:
            item = self._item(event, event["item"])
            item.take(deepcopy({**event["item"]}))  # more is added to its content
            item.is_done = item.is_done or last == "done"
        elif kind == "response.output_text.annotation.added":
            text = _TEXTS["response.output_text"]
            block = self._item(event, {}, text.item).block(event, text)
            block.setdefault("annotations", []).append(event["annotation"])
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

    def _item(
        self, event: Mapping[str, Any], given: Mapping[str, Any], kind: str = ""
    ) -> _StreamedItem:
        """Return the item of an event, by its id or else by its index; a new one if it is unknown or the ids differ."""
        own = str(given.get("id") or event.get("item_id") or "")
        index = event.get("output_index")
        found = self._by_id.get(own) or self._by_index.get(index)
        if found is None or (own and found.id not in ("", own)):
            role = {"role": "assistant"} if kind == "message" else {}
            found = _StreamedItem({"type": kind, **role} if kind else {})
            found.position = index if isinstance(index, int) else len(self._items)
            self._items.append(found)
            self._items.sort(key=_position)
        self._by_index[index] = found
        if own:
            found.id = own
            self._by_id[own] = found
        return found

    def _take_text(self, event: Mapping[str, Any], text: _TextField, *, is_whole: bool) -> None:
        block = self._item(event, {}, text.item).block(event, text)
        key = text.key if text.block else text.field
        known = block.get(key) or ""
        if not is_whole:
            block[key] = known + event["delta"]
        elif event.get(key):
            block[key] = event[key]

    def message(self, *, is_whole: bool = False) -> Any:  # noqa: ARG002 - its closing event says so
        """Return the reply so far in the form of a reply without a stream; None before the first item.

        Unfinished reasoning is left out.
        """
        if self._closing is not None:
            items = [item.fields for item in self._items]
            return {
                "object": "response",
                **self._closing,
                "output": self._closing.get("output") or items,
            }
        items = [
            item.fields
            for item in self._items
            if item.fields.get("type") != "reasoning" or item.is_done
        ]
        made = {"object": "response", **self._begun, "status": "incomplete", "output": items}
        return made if items else None


def _position(item: _StreamedItem) -> int:
    return item.position
