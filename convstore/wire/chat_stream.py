"""Assemble a reply of Chat Completions from its chunks, of OpenAI and of the many servers that have the same API.

Some servers leave out or repeat indexes, ids and names of calls. These rules read all of them:

- A delta belongs to the call with its index; without an index, to the call with its id; without both, to the last call.
- It begins a new call instead if it has a name and another id. Without ids, it does so if it has another name, or has
  arguments although the arguments of the call are complete.
- Only some texts grow: see `_TEXTS` and `grow`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from convstore.messages.call_arguments import parsed_arguments
from convstore.messages.stop_reasons import FAILED_REASONS, cut_reason, stop_reason
from convstore.values.json_form import without_nulls

_TEXTS: Final = frozenset({"content", "reasoning", "reasoning_content", "refusal"})
_NESTED: Final = {
    "audio": frozenset({"data", "transcript"}),
    "function_call": frozenset({"arguments"}),
}
"""Objects in a delta, with the texts in each that grow."""
_CALL_PARTS: Final = ("function", "custom")
_CALL_TEXTS: Final = frozenset({"arguments", "input"})
_DETAIL_TEXTS: Final = frozenset({"summary", "text"})
_EMPTY: Final[tuple[Any, ...]] = (None, "", [])
_HEAD: Final = ("created", "id", "model")


class ChatReply:
    """Assembles a reply of Chat Completions from its chunks, or from events of the SDK's stream helper with chunks."""

    def __init__(self) -> None:
        self._whole: dict[str, Any] = {"object": "chat.completion"}
        self._message: dict[str, Any] = {}
        self._calls = _AssembledCalls()
        self._details = _Details()
        self._finish = ""
        self._failure = ""

    @property
    def text(self) -> str:
        """The text so far that users see."""
        return visible_text(self._message.get("content")) or str(self._message.get("refusal") or "")

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments of its calls so far, as the model wrote them, by call id."""
        return {str(call.fields.get("id")): call.text for call in self._calls.found}

    @property
    def problem(self) -> str:
        """Why the reply is not complete, "" if it is."""
        if self._failure or self._finish in FAILED_REASONS:
            return f"the provider reported {self._failure or self._finish}"
        return "" if self._finish else "its stream ended without a finish reason"

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add a chunk; other events of the helper are ignored, because they repeat the chunks."""
        if chunk.get("type") == "chunk":
            chunk = chunk["chunk"]
        if failure := chunk.get("error"):
            self._failure = error_code(failure)
        if "choices" not in chunk:
            return
        self._take_head(chunk)
        for choice in chunk["choices"] or ():
            if not choice.get("index"):
                self._take(choice)

    def _take_head(self, chunk: Mapping[str, Any]) -> None:
        for name in _HEAD:
            if name not in self._whole and chunk.get(name):
                self._whole[name] = chunk[name]
        if usage := chunk.get("usage"):
            self._whole["usage"] = usage  # if each chunk has it, it is the sum so far

    def _take(self, choice: Mapping[str, Any]) -> None:
        if failure := choice.get("error"):
            self._failure = error_code(failure)
        self._finish = stop_reason(choice.get("finish_reason")) or self._finish
        delta = choice.get("delta")
        if delta is None and not self._message:
            delta = choice.get("message")  # a server that does not stream sends its reply at once
        for name, value in (delta or {}).items():
            if (value or value not in _EMPTY) and name != "role":
                self._take_field(name, value)

    def _take_field(self, name: str, value: Any) -> None:
        if name == "content":
            self._take_content(value)
        elif name == "tool_calls":
            self._calls.add(value)
        elif name == "reasoning_details":
            self._details.add(value)
        elif name in _NESTED:
            grow(self._message.setdefault(name, {}), value, _NESTED[name])
        else:
            grow(self._message, {name: value}, _TEXTS)

    def _take_content(self, content: Any) -> None:
        """Add a text, or Mistral's blocks of texts and thoughts."""
        known = self._message.get("content") or ""
        if isinstance(content, str) and isinstance(known, str):
            self._message["content"] = known + content
            return
        if isinstance(known, str):
            blocks: list[Any] = []
            add_blocks(blocks, known)
            self._message["content"] = known = blocks
        add_blocks(known, content)

    def message(self, *, is_whole: bool = False) -> dict[str, Any]:
        """Return the reply so far in the form of a reply without a stream.

        Calls without a name are left out, unless the reply is whole and was not cut off.
        """
        is_cut = not is_whole or bool(cut_reason({"finish_reason": self._finish}))
        calls = [call.made() for call in self._calls.in_order() if call.name or not is_cut]
        message: dict[str, Any] = {"role": "assistant", "content": None, **self._message}
        if self._details.found:
            message["reasoning_details"] = self._details.found
        if calls:
            message["tool_calls"] = calls
        finish = None if self.problem else self._finish
        choice = {"index": 0, "finish_reason": finish, "message": message}
        return {**self._whole, "choices": [choice]}


def grow(known: dict[str, Any], delta: Mapping[str, Any], texts: Collection[str] = ()) -> None:
    """Merge a delta into `known`: named texts grow, lists are extended, and other fields keep their first value.

    Null and empty texts do not count as a value, because servers send them before the value.

    >>> known = {}
    >>> for delta in ({"id": "c1", "said": "Half "}, {"id": "c1", "said": "of it.", "notes": [1]}):
    ...     grow(known, delta, {"said"})
    >>> known
    {'id': 'c1', 'said': 'Half of it.', 'notes': [1]}
    """
    for name, value in delta.items():
        if value is not None and value != "":
            known[name] = _grown(known.get(name), value, is_text=name in texts)


def _grown(before: Any, value: Any, *, is_text: bool) -> Any:
    if isinstance(value, list):
        if not isinstance(before, list):
            return list(value)
        before.extend(value)
        return before
    if is_text and isinstance(value, str) and isinstance(before, str):
        return before + value
    return value if before in (None, "") else before


def visible_text(content: Any) -> str:
    """Return the texts and refusals of a content, which users see.

    >>> visible_text(["Half ", {"type": "text", "text": "of it."}, {"type": "thinking", "thinking": "Hm."}])
    'Half of it.'
    """
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else ()
    return "".join(map(_text_of, blocks))


def _text_of(block: Any) -> str:
    text = block
    if isinstance(block, dict):
        text = block.get("text") or block.get("refusal")
    return text if isinstance(text, str) else ""


def error_code(error: Any) -> str:
    """Return the code or type of an error that a provider reports, without its text, which may quote contents.

    >>> error_code({"code": "server_error", "message": "The server had an error."}), error_code("?")
    ('server_error', 'an error')
    """
    fields = error if isinstance(error, Mapping) else {}
    code = fields.get("code") or fields.get("type")
    return str(code)[:64] if isinstance(code, str | int) else "an error"


def add_blocks(blocks: list[Any], content: str | Iterable[Any]) -> None:
    """Add content to a list of blocks; a text or a thought extends a last block of the same type."""
    texts = [{"type": "text", "text": content}] if isinstance(content, str) and content else ()
    for block in texts if isinstance(content, str) else content:
        last = blocks[-1] if blocks else None
        if not isinstance(block, dict):
            blocks.append(block)
        elif isinstance(last, dict) and _continues(last, block):
            _continue(last, block)
        else:
            blocks.append({**block, **{key: [*block[key]] for key in _lists_in(block)}})


def _lists_in(block: Mapping[str, Any]) -> Iterator[str]:
    return (key for key, value in block.items() if isinstance(value, list))


def _continues(last: Mapping[str, Any], block: Mapping[str, Any]) -> bool:
    kind = block.get("type")
    return kind in ("text", "thinking") and kind == last.get("type")


def _continue(last: dict[str, Any], block: Mapping[str, Any]) -> None:
    thoughts = block.get("thinking")
    if isinstance(thoughts, list) and isinstance(last.get("thinking"), list):
        inner: list[Any] = []
        add_blocks(inner, last["thinking"])
        add_blocks(inner, thoughts)
        last["thinking"] = inner
        block = {name: value for name, value in block.items() if name != "thinking"}
    grow(last, block, ("text", "thinking"))


@dataclass(slots=True)
class _AssembledCall:
    """A call that is assembled from deltas; `position` is its index, or its number among the calls."""

    position: int
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def part(self) -> str:
        """The key of its name and its arguments."""
        return "custom" if "custom" in self.fields else "function"

    @property
    def name(self) -> str:
        """The name of its tool, "" before it was received."""
        return str(_body(self.fields).get("name") or "")

    @property
    def text(self) -> str:
        """Its arguments or its input so far."""
        body = _body(self.fields)
        given = body.get("input" if self.part == "custom" else "arguments", "")
        return given if isinstance(given, str) else json.dumps(given)

    @property
    def is_complete(self) -> bool:
        """True if its arguments are a complete JSON object."""
        return self.text.rstrip().endswith("}") and parsed_arguments(self.text) is not None

    def add(self, delta: Mapping[str, Any]) -> None:
        """Add a delta."""
        for name, value in delta.items():
            if name in _CALL_PARTS and isinstance(value, dict):
                grow(self.fields.setdefault(name, {}), value, _CALL_TEXTS)
            elif name == "id":
                self.fields["id"] = self.fields.get("id") or value
            elif name != "index":
                grow(self.fields, {name: value})

    def made(self) -> dict[str, Any]:
        """Return the call in the form of a reply without a stream."""
        text = {"input": ""} if self.part == "custom" else {"arguments": ""}
        return {
            "type": self.part,
            **without_nulls(self.fields),
            self.part: {**text, **_body(self.fields)},
        }


class _AssembledCalls:
    """The calls of a reply that are assembled from deltas."""

    def __init__(self) -> None:
        self.found: list[_AssembledCall] = []
        self._by_index: dict[int, _AssembledCall] = {}
        self._by_id: dict[str, _AssembledCall] = {}

    def add(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        """Add each delta to its call."""
        for delta in deltas:
            self._call_of(delta).add(delta)

    def _call_of(self, delta: Mapping[str, Any]) -> _AssembledCall:
        """Return the call of a delta, or a new one if the delta begins a call."""
        given = delta.get("index")
        index = given if isinstance(given, int) else None
        own = delta.get("id") or ""
        known = self._known(index, own)
        if known is None or _begins(known, delta):
            known = _AssembledCall(len(self.found) if index is None else index)
            self.found.append(known)
            if index is not None:
                self._by_index[index] = known
        if own:
            self._by_id[own] = known
        return known

    def _known(self, index: int | None, own: str) -> _AssembledCall | None:
        if index is not None:
            return self._by_index.get(index)
        if own:
            return self._by_id.get(own)
        return self.found[-1] if self.found else None

    def in_order(self) -> list[_AssembledCall]:
        """Return the calls ordered by index; calls with the same index are in the order in which they began."""
        return sorted(self.found, key=lambda call: call.position)


def _body(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a call or a delta that has the name and the arguments."""
    for part in _CALL_PARTS:
        if isinstance(body := call.get(part), dict):
            return body
    return {}


def _begins(known: _AssembledCall, delta: Mapping[str, Any]) -> bool:
    """Return True if a delta begins a new call instead of continuing `known`."""
    body = _body(delta)
    name = body.get("name")
    if not name:
        return False
    own = delta.get("id")
    before = known.fields.get("id")
    if own and before:
        return bool(own != before)
    if not before and name != known.name:
        return True
    arguments = body.get("arguments")
    return bool(arguments) and str(arguments).strip() != "" and known.is_complete


class _Details:
    """OpenRouter's reasoning details. Texts and summaries come in parts, joined by type and index; others are whole."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._by_key: dict[Any, dict[str, Any]] = {}

    def add(self, details: Iterable[Any]) -> None:
        """Add the details of a delta."""
        for detail in details:
            key = self._key(detail)
            known = self._by_key.get(key) if key else None
            if known is not None and not _is_other(known, detail):
                grow(known, detail, _DETAIL_TEXTS)
                continue
            made = dict(detail) if isinstance(detail, dict) else detail
            self.found.append(made)
            if key:
                self._by_key[key] = made

    def _key(self, detail: Any) -> Any:
        """Return the key of a detail that later deltas may continue, else None."""
        kind = detail.get("type") if isinstance(detail, dict) else None
        if kind not in ("reasoning.text", "reasoning.summary"):
            # Without an index, only the last detail can be continued.
            self._by_key.pop((None, None), None)
            return None
        index = detail.get("index")
        return (kind, index) if index is not None else (None, None)


def _is_other(known: Mapping[str, Any], detail: Mapping[str, Any]) -> bool:
    """Return True if two details with one key differ in type or id."""
    own = detail.get("id")
    return known.get("type") != detail.get("type") or bool(own and own != (known.get("id") or own))
