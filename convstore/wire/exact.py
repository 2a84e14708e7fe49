"""Store the original JSON of a framework's message with the messages of the log, without repeating content.

In that JSON, a reference replaces each value that the messages themselves have: contents, texts, arguments of calls,
files. If a view changed a text, for example to a stub, the restored JSON has the changed text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

FORGED = (LookupError, TypeError, ValueError, AttributeError)
"""Errors that a forged mark can cause; clients can set the field of a message that has the mark."""
_Made = TypeVar("_Made")
_REFERENCE = "convstore:held"
_HELD = frozenset({"args", "arguments", "content", "data", "result", "text", "uri", "url"})
"""Fields of frameworks' messages whose values the messages of the log may have."""
_LONG = 64
"""Minimum number of characters from which a text of any other field is replaced, too."""
_URL_SAFE = str.maketrans("+/", "-_")


def with_references(own: dict[str, Any], *messages: BaseMessage) -> dict[str, Any]:
    """Return the JSON with references in place of values that the messages have; `without_references` reverses it.

    >>> with_references({"text": "Hi", "id": "a"}, BaseMessage("Hi", type="ai"))
    {'text': {'convstore:held': 'content'}, 'id': 'a'}
    """
    exact = json.dumps(own)
    try:
        held = _held_by(messages)
        short: dict[str, Any] = _without(
            own, {json.dumps(value): key for key, value in held.items()}
        )
        if "exact" not in own and json.dumps(_filled(short, held)) == exact:
            return short
    except (LookupError, RecursionError):
        # The JSON itself contains references, or is nested very deep.
        pass
    return {"exact": exact}


def without_references(mark: Mapping[str, Any], *messages: BaseMessage) -> dict[str, Any]:
    """Return the JSON that was passed to `with_references`, with the current texts of the messages.

    Raises:
        LookupError: The messages lack a referenced value, such as a file that a view has replaced.
    """
    return dict(json.loads(mark["exact"]) if "exact" in mark else _filled(mark, _held_by(messages)))


def mark_in(message: BaseMessage, name: str) -> dict[str, Any]:
    """Return the mark that an adapter has set under its name; {} for a message from another source."""
    mark = message.additional_kwargs.get(name)
    return mark if isinstance(mark, dict) else {}


def rejoined(
    messages: Iterable[BaseMessage],
    name: str,
    write: Callable[[BaseMessage], dict[str, Any]],
    join: Callable[[Sequence[BaseMessage], Sequence[dict[str, Any]]], _Made],
) -> Iterator[tuple[list[BaseMessage], _Made]]:
    """Yield each message of a framework with the messages of the log into which it was split.

    Args:
        messages: Messages of the log or of a view.
        name: The name of the adapter's marks, which have the id of the framework's message as ``entry`` and its JSON as
            ``json``.
        write: Returns the JSON of a message without a mark, or of one that a view changed.
        join: Makes the framework's message of the messages and their JSON.
    """

    def own(message: BaseMessage) -> dict[str, Any]:
        try:
            return without_references(mark_in(message, name)["json"], message)
        except LookupError:  # the message is from another source, or a view changed it
            return write(message)

    for _, group in groupby(messages, lambda each: mark_in(each, name).get("entry") or id(each)):
        several = [*group]
        try:
            made = join(several, [own(message) for message in several])
        except FORGED:
            made = join(several, [write(message) for message in several])
        yield several, made


def _without(node: Any, keys: Mapping[str, str], name: str = "") -> Any:
    """Return a value of a field with references in place of known values; `keys` has their keys by their JSON."""
    is_replaced = name in _HELD or (isinstance(node, str) and len(node) >= _LONG)
    if is_replaced and (key := keys.get(json.dumps(node))):
        return {_REFERENCE: key}
    if isinstance(node, dict):
        return {inner: _without(value, keys, inner) for inner, value in node.items()}
    return [_without(value, keys, name) for value in node] if isinstance(node, list) else node


def _filled(node: Any, held: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if _REFERENCE in node:
            return held[node[_REFERENCE]]
        return {key: _filled(value, held) for key, value in node.items()}
    return [_filled(value, held) for value in node] if isinstance(node, list) else node


def _held_by(messages: Sequence[BaseMessage]) -> dict[str, Any]:
    """Return the values by the keys of references; after the first message, keys begin with the message's number."""
    return {
        f"{at}:{key}" if at else key: value
        for at, each in enumerate(messages)
        for key, value in _held_in(each)
    }


def _held_in(message: BaseMessage) -> Iterator[tuple[str, Any]]:
    """Yield the values of a message with their keys: long texts, content, texts, files, arguments of calls."""
    yield from (
        (f"long.{at}", text)
        for at, text in enumerate(_texts_in(message.content))
        if len(text) >= _LONG
    )
    if isinstance(message, ToolMessage) and isinstance(message.content, str):
        with suppress(ValueError):
            yield "json", json.loads(message.content)
    yield "content", message.content
    for at, block in enumerate(message.content if isinstance(message.content, list) else ()):
        values = block if isinstance(block, dict) else {"text": block}
        yield from (
            (f"{at}.{key}", values[key]) for key in ("text", "reasoning", "url") if key in values
        )
        if "base64" in values:
            yield f"{at}.base64", values["base64"].translate(_URL_SAFE)
            yield f"{at}.uri", f"data:{values.get('mime_type')};base64,{values['base64']}"
    for at, call in enumerate(message.tool_calls if isinstance(message, AIMessage) else ()):
        yield from ((f"call.{at}", call["args"]), (f"call.{at}.text", json.dumps(call["args"])))
        yield f"call.{at}.compact", json.dumps(call["args"], separators=(",", ":"))


def _texts_in(value: Any) -> Iterator[str]:
    """Yield the texts anywhere in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)
