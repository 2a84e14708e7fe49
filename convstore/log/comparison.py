"""Compute the content digest of a message, which is equal for messages that look the same to a client.

A client that resends a conversation has no ids and no reasoning. It may send a text as blocks, and an image in another
provider's format. The digest is computed when a message is appended and stored in its entry, so a resent conversation
is compared without reading messages.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, ChatMessage, FunctionMessage

from convstore.log.stored_message import CONTENT_DIGEST_BYTES
from convstore.messages.encoding import MESSAGE_TYPES, digest_of, fields_of
from convstore.messages.media import KINDS, block_type, read_media
from convstore.messages.values import Codec
from convstore.values.json_form import (
    has_few_levels,
    json_fields,
    sendable,
    sendable_message,
    valid_text,
    with_invalid_calls,
)

_TEXT_KEYS: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
_MEDIA_TYPES: Final = KINDS.keys() - {"image_generation_call"} | {"text-plain"}
"""Media that a person can send."""
# The block's id, and fields that only some providers' clients add.
_NOT_CONTENT: Final = frozenset(
    {"id", "index", "extras", "cache_control", "citations", "annotations"}
)
_write_sorted: Final = json.JSONEncoder(sort_keys=True).encode
_TEXT_HEADS: Final = {type_: json.dumps([type_, "", [], []]).encode() for type_ in MESSAGE_TYPES}


def content_digest(
    message: BaseMessage, codec: Codec, *, text_digest: bytes | None = None
) -> bytes:
    """Return the digest of a message's type, text, media, and the names and arguments of its calls.

    A text equals text blocks with the same characters; leading and trailing white space is ignored. Ids, names of
    speakers, dates, reasoning, artifacts and calls that a provider ran itself are ignored too. `text_digest` is the
    `digest_of` its text without white space around it, if that is known.

    >>> from langchain_core.messages import HumanMessage
    >>> one, other = HumanMessage("Hello", id="h-1"), HumanMessage([{"type": "text", "text": "Hello "}])
    >>> content_digest(one, Codec()) == content_digest(other, Codec()) != content_digest(AIMessage("Hello"), Codec())
    True
    """
    content = message.content
    if isinstance(content, str):
        text = content
        rest = []
    else:
        blocks = content if isinstance(content, list) else [content]
        text = "".join(_texts(blocks))
        rest = [_written(block, codec) for block in blocks if _counts(block, message)]
    # The type alone does not say the role of a chat message or the name of a function message.
    speaker = message.role if isinstance(message, ChatMessage) else ""
    if isinstance(message, FunctionMessage):
        speaker = str(message.name)
    calls = _calls(message, codec) if isinstance(message, AIMessage) else []
    is_text = not speaker and not rest and not calls
    if is_text:
        head = _TEXT_HEADS[message.type]
    else:
        head = json.dumps([message.type, speaker, rest, calls]).encode()
    valid = valid_text(text)
    # A client was shown valid text, and sends that text back.
    written = digest_of(valid.strip()) if text_digest is None or valid is not text else text_digest
    return hashlib.blake2b(head + written, digest_size=CONTENT_DIGEST_BYTES).digest()


def is_as_shown(given: BaseMessage, stored: BaseMessage, codec: Codec) -> bool:
    r"""Return True if a message equals a stored one, apart from changes that clients and checkpoints make.

    A client is shown only valid text. A checkpoint of LangGraph has an object as the dict of its fields, and a tuple as
    a list, so both messages are compared as JSON.

    >>> from langchain_core.messages import HumanMessage
    >>> given, stored = HumanMessage("cut \ufffd"), HumanMessage("cut \ud83d")
    >>> is_as_shown(given, stored, Codec()), is_as_shown(stored, given, Codec())
    (True, False)
    """
    return _as_kept(given, codec) == _as_kept(sendable_message(stored), codec)


def _as_kept(message: BaseMessage, codec: Codec) -> str:
    """Return a message as text, with its values converted to JSON if all of them can be."""
    return codec.encode(json_fields(message) or fields_of(message), omitted=[])


def is_said(block: Any) -> bool:
    """Return True for a content block that a person can write: text, an image, audio or a file."""
    return (
        _text(block) is not None
        or block_type(block) in _MEDIA_TYPES
        or (isinstance(block, dict) and [*block] == ["text"])
    )


def _texts(blocks: list[Any]) -> Iterator[str]:
    for block in blocks:
        text = _text(block)
        if text is not None:
            yield text


def _text(block: Any) -> str | None:
    """Return the text of a block; None if it is not a text block."""
    if isinstance(block, str):
        return block
    kind = block_type(block)
    text = block.get(_TEXT_KEYS[kind]) if kind in _TEXT_KEYS else None
    return text if isinstance(text, str) else None


def _counts(block: Any, message: BaseMessage) -> bool:
    """Return True if a block is compared: media always, others unless a model wrote them (reasoning and calls)."""
    if _text(block) is not None:
        return False
    return is_said(block) or not isinstance(message, AIMessage)


def _written(block: Any, codec: Codec) -> str:
    """Return a non-text block as text; media are reduced to a hash of their data, independent of the block's format."""
    if block_type(block) in _MEDIA_TYPES and (data := _data(block)):
        return hashlib.blake2b(
            data.encode("utf-8", "surrogatepass"), digest_size=CONTENT_DIGEST_BYTES
        ).hexdigest()
    if isinstance(block, dict):
        block = {key: value for key, value in block.items() if key not in _NOT_CONTENT}
    return _canonical(block, codec)


def _data(block: dict[str, Any]) -> str:
    """Return the data of media as base64, else its text, its address or file id, else ""."""
    found = read_media(block)
    text = block.get("text")
    named = found.url or found.file_id or block.get("file_uri")
    data = found.data or (isinstance(text, str) and text) or named or ""
    return base64.b64encode(data).decode() if isinstance(data, bytes) else str(data)


def _calls(message: AIMessage, codec: Codec) -> list[list[str]]:
    """Return names and arguments of a message's calls, invalid ones last; too deep arguments make a call invalid."""
    shown = with_invalid_calls(message)
    calls: list[Mapping[str, Any]] = [*shown.tool_calls, *shown.invalid_tool_calls]
    return [[_sorted(call.get("name"), codec), _sorted(call.get("args"), codec)] for call in calls]


def _canonical(value: Any, codec: Codec) -> str:
    """Return a value of any depth as text that is independent of the order of keys and the same for 1 and 1.0."""
    if isinstance(value, dict | list | tuple) and not has_few_levels(value):
        return codec.encode(value, omitted=[])
    return _sorted(value, codec)


def _sorted(value: Any, codec: Codec) -> str:
    """Return the text of `_canonical` for a value with few levels."""
    try:
        text = _write_sorted(value)
    except (TypeError, ValueError, ArithmeticError):
        # bytes, dates, or keys that cannot be sorted, such as a Decimal NaN
        return codec.encode(value, omitted=[])
    if "\\ud" in text:  # a surrogate, perhaps a lone one
        text = _write_sorted(sendable(value))
    if ".0" not in text:
        return text
    return _write_sorted(json.loads(text, parse_float=_number))


def _number(text: str) -> int | float:
    """Parse a number; whole floats become ints, because JavaScript writes 1.0 as 1."""
    value = float(text)
    return int(value) if value.is_integer() else value
