"""Read the content of a message as parts of a few kinds, independent of the provider or framework that wrote it.

It reads the blocks of OpenAI's Chat Completions and Responses API, of Anthropic, and both generations of LangChain's
standard content. Texts are valid Unicode: a lone surrogate, which JSON over HTTP cannot carry, becomes U+FFFD.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage

from convstore.messages.call_arguments import parsed_arguments
from convstore.messages.media import (
    KINDS,
    block_type,
    is_media,
    media_description,
    media_holders,
    read_media,
)
from convstore.messages.media_types import true_kind, true_type
from convstore.messages.reasoning import is_reasoning
from convstore.messages.tool_calls import CALL_FORMS
from convstore.sources.detection import parse_json
from convstore.values.json_form import has_few_levels, is_json, valid_text

_OF_CALLS: Final = frozenset({"args", "custom", "function", "id", "index", "name", "type"})
_RESIDUE: Final = frozenset({"index", "partial_json"})
_LISTS: Final = ("content", "summary")
_MAX_LEVELS: Final = 100
"""Maximum nesting of values that are shown as JSON; pydantic serialises at most 255 levels."""
_TEXTS: Final = frozenset({"", "input_text", "output_text", "refusal", "text", "text-plain"})
_SETTINGS: Final = frozenset({"annotations", "citations", "context", "detail"})
_NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
_WHOLE_BLOCKS: Final = frozenset({"document", "search_result", "tool_reference"})
IMAGES: Final = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
"""Types of images that all providers accept as data."""


class Text(NamedTuple):
    """A text.

    Attributes:
        text: The text.
        id: Id of its item in OpenAI's Responses API, "" if unknown.
        phase: Phase of that item, "" if unknown.
        settings: Citations, annotations and similar fields of its block; None for a value that JSON cannot carry.
        source: The block of the document, search result or tool reference that has this text, else None.
    """

    text: str
    id: str = ""
    phase: str = ""
    settings: Mapping[str, Any] = _NO_SETTINGS
    source: Mapping[str, Any] | None = None


class Media(NamedTuple):
    """An "image", "audio", a "video" or a "file": Base64 `data`, a `url`, or the `file_id` of an upload.

    `description` replaces it where it cannot be sent; `settings` are those of its block, as in `Text`. The type of
    images and PDFs is detected from their bytes, and may differ from the label.
    """

    kind: str
    description: str
    mime_type: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""
    name: str = ""
    settings: Mapping[str, Any] = _NO_SETTINGS

    @property
    def data_url(self) -> str:
        """The data as a URL, "" without data."""
        return f"data:{self.mime_type};base64,{self.data}" if self.data else ""

    @property
    def image_url(self) -> str:
        """The data of an image as a URL, or else its address; "" if it has neither in an accepted type."""
        return (self.mime_type in IMAGES and self.data_url) or self.url

    @property
    def plain_text(self) -> str:
        """The name and the text of a text file, "" for any other file."""
        if self.kind != "file" or not self.mime_type.startswith("text/") or not self.data:
            return ""
        return "\n".join(filter(None, [self.name, b64decode(self.data).decode("utf-8", "replace")]))


class Block(NamedTuple):
    """Any other block, unchanged.

    `kind` is "reasoning"; "call", with the `id` of the call; or "other", such as a tool that the provider ran itself.
    """

    kind: str
    block: Mapping[str, Any]
    id: str = ""

    @property
    def type(self) -> str:
        """The `type` of the block."""
        return str(self.block.get("type", ""))


Part: TypeAlias = Text | Media | Block


def parts_of(message: BaseMessage) -> list[Part]:
    """Return the content of a message, with the refusal and the transcript that OpenAI keeps outside it.

    >>> from langchain_core.messages import AIMessage
    >>> [part.text for part in parts_of(AIMessage(["Hm.", {"type": "refusal", "refusal": "No."}]))]
    ['Hm.', 'No.']
    """
    content: Any = message.content
    blocks = content if isinstance(content, list) else [content]
    # langchain-openai may keep an item of the Responses API here
    own = message.additional_kwargs.get("reasoning")
    blocks = [own, *blocks] if isinstance(own, dict) and is_reasoning(own) else blocks
    parts = [part for block in blocks if (part := read_part(block)) is not None]
    if not any(isinstance(part, Text) and part.text.strip() for part in parts):
        audio = message.additional_kwargs.get("audio")
        transcript = audio.get("transcript") if isinstance(audio, dict) else None
        beside = (message.additional_kwargs.get("refusal"), transcript)
        parts += [Text(valid_text(text)) for text in beside if isinstance(text, str) and text]
    return parts


def listed_calls(message: BaseMessage) -> list[dict[str, Any]]:
    """Return the calls as the Chat Completions API listed them."""
    raw: Any = message.additional_kwargs.get("tool_calls")
    return [call for call in raw if isinstance(call, dict)] if isinstance(raw, list) else []


def beside_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extra fields of a call in Chat Completions, such as the signature of Gemini."""
    return {key: value for key, value in call.items() if key not in _OF_CALLS}


def beside_calls(message: BaseMessage) -> list[str]:
    """Return the names of the extra fields of a message's calls in Chat Completions.

    >>> from langchain_core.messages import AIMessage
    >>> listed = {"id": "c", "function": {"name": "look"}, "extra_content": {}}
    >>> beside_calls(AIMessage("", additional_kwargs={"tool_calls": [listed]}))
    ['extra_content of look']
    """
    found: list[str] = []
    for call in listed_calls(message):
        body = call.get("function") or call.get("custom")
        name = body.get("name") if isinstance(body, dict) else call.get("name")
        found += [f"{key} of {name}" for key in beside_call(call)]
    return found


def json_value(value: Any) -> Any:
    """Return a JSON value; with numbers that JSON does not have, or with many levels, it becomes its text.

    >>> json_value({1: ("x", None)}), json_value({"a": float("inf")})
    ({'1': ['x', None]}, '{"a": Infinity}')
    """
    try:
        text = valid_text(json.dumps(value, ensure_ascii=False, default=str))
        return found if _is_shown(found := json.loads(text)) else text
    except (ValueError, TypeError, RecursionError):
        return f"[a value of type {type(value).__name__} that JSON does not have]"


def parsed_value(text: str) -> Any:
    """Parse a text that is the JSON of an object or a list; return any other text unchanged.

    >>> parsed_value('{"a": 1}'), parsed_value("007"), parsed_value("[1, NaN]")
    ({'a': 1}, '007', '[1, NaN]')
    """
    value = parse_json(text)
    return value if value is not None and _is_shown(value) else text


def _is_shown(value: Any) -> bool:
    return (not isinstance(value, dict | list) or has_few_levels(value, _MAX_LEVELS)) and is_json(
        value
    )


def read_part(block: Any) -> Part | None:
    """Return a block as a part; None for a block without content."""
    if isinstance(block, str):
        return Text(valid_text(block))
    kind = block_type(block)
    if kind == "non_standard":
        return read_part(block.get("value"))
    if is_reasoning(block):
        # LangChain's standard form of Anthropic's thinking
        if signature := _text(block.get("extras"), "signature"):
            block = {
                "type": "thinking",
                "thinking": _text(block, "reasoning"),
                "signature": signature,
            }
        return Block("reasoning", _sendable(block))
    if key := CALL_FORMS.get(kind):
        return Block("call", block, _text(block, key))
    return _media(block) if is_media(block) else _text_or_other(block, kind)


def _text_or_other(block: Any, kind: str) -> Part | None:
    if text := _text_in(block, kind):
        settings = _settings(block, [])
        source = block if kind in _WHOLE_BLOCKS and is_json(block) else None
        return Text(valid_text(text), _text(block, "id"), _text(block, "phase"), settings, source)
    return Block("other", _sendable(block)) if kind not in _TEXTS else None


def _settings(block: Mapping[str, Any], inner: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the settings of a block and of the dicts in it."""
    if not inner and _SETTINGS.isdisjoint(block):
        return _NO_SETTINGS
    found: dict[str, Any] = {}
    for holder in (block, *inner):
        for key in sorted(_SETTINGS & holder.keys()):
            if value := holder.get(key):
                found[key] = value if is_json(value) else None
    return found or _NO_SETTINGS


def _sendable(block: Any) -> Mapping[str, Any]:
    """Return a block if JSON can carry it exactly; of any other block, only the type."""
    if not is_json(block):
        return {"type": block_type(block)}
    return _without_residue(block)


def _without_residue(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove leftovers of LangChain's streams from a block: indexes of blocks, and an input in the form of a text.

    >>> _without_residue({"type": "server_tool_use", "input": {}, "index": 0, "partial_json": '{"query": "sea"}'})
    {'type': 'server_tool_use', 'input': {'query': 'sea'}}
    """
    made = {key: value for key, value in block.items() if key not in _RESIDUE}
    for key in _LISTS:
        if isinstance(made.get(key), list):
            made[key] = list(map(_without_index, made[key]))
    text = block.get("partial_json")
    if isinstance(text, str) and text and not made.get("input"):
        made["input"] = parsed_arguments(text) or {}
    return made


def _without_index(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: inner for key, inner in value.items() if key != "index"}


def _text_in(block: Any, kind: str) -> str:
    """Return the text of a block, with title and address of a document or a search result."""
    if text := _text(block, "text", "refusal"):
        return text
    if kind not in ("document", "file", "search_result"):
        return ""
    source = block.get("source")
    inner = source if isinstance(source, dict) else {}
    body = inner.get("data") or inner.get("content") or block.get("content") or ""
    lines = body if isinstance(body, list) else [body]
    texts = [line if isinstance(line, str) else _text(line, "text") for line in lines]
    head = [_text(block, "title"), source if isinstance(source, str) else ""]
    return "\n".join(filter(None, [*head, *texts]))


def _text(block: Any, *keys: str) -> str:
    values = [block.get(key) for key in keys] if isinstance(block, dict) else []
    return next((value for value in values if isinstance(value, str) and value), "")


def _media(block: dict[str, Any]) -> Media:
    """Return a media block of any format; data that is not Base64 is left out."""
    found = read_media(block)
    data = _base64(found.data)
    mime_type = true_type(data)
    is_address = found.url.startswith(("https://", "http://"))
    return Media(
        true_kind(KINDS[block["type"]], mime_type),
        valid_text(f"[{media_description(block)}]"),
        mime_type or valid_text(found.mime_type),
        data,
        valid_text(found.url) if is_address else "",
        valid_text(found.file_id),
        valid_text(found.name),
        _settings(block, media_holders(block)),
    )


def _base64(data: str | bytes) -> str:
    """Return bytes as Base64, and valid Base64 without white space; "" for anything else."""
    if isinstance(data, bytes):
        return b64encode(data).decode()
    packed = data if data.isalnum() else "".join(data.split())
    try:
        binascii.a2b_base64(packed, strict_mode=True)
    except (binascii.Error, ValueError):
        return ""
    return packed
