"""Shortens messages for views: stubs, placeholders of media, the beginning and the end of long texts.

Layer 1. Each function depends on the message and its arguments alone, so that a view shows the same bytes every time,
wherever the parts of a message are stored.
"""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage

from convstore.codec import PayloadRange, is_media, link_of, media_description
from convstore.stubs import RETRIEVAL_TOOL, in_one_line

__all__ = ["SHORTENED", "leave_out", "placeholder", "with_stub", "without_media"]

SHORTENED = ("human", "ai")
"""Types of messages whose long texts a policy shortens."""

_WITH_MEDIA = ("system", "tool")


def placeholder(about: str, message_id: str) -> str:
    """The text in place of a part that a view leaves out.

    >>> placeholder("image, 3 bytes", "m7")
    '[image, 3 bytes; left out to save context, call retrieve_previous_sources with message id m7 to read it]'
    """
    return (
        f"[{about}; left out to save context, "
        f"call {RETRIEVAL_TOOL} with message id {in_one_line(message_id)} to read it]"
    )


def with_stub(message: BaseMessage, stub: str) -> BaseMessage:
    """A decoded tool message with its stub as content and without its artifact; changed in place."""
    values: Any = message.__dict__
    values["content"] = stub
    values["artifact"] = None
    return leave_out(message)


def without_media(message: BaseMessage, *, everywhere: bool = False) -> BaseMessage:
    """A message with placeholders for its images, audio and files; the same object if it has none.

    System messages and tool results stay as they are, unless `everywhere`: a result has a stub, or is small.

    >>> from langchain_core.messages import HumanMessage
    >>> without_media(HumanMessage([{"type": "image", "base64": "QUJD"}], id="m7")).content[0]["text"][:15]
    '[image, 3 bytes'
    """
    content = message.content
    is_kept = message.type in _WITH_MEDIA and not everywhere
    if is_kept or type(content) is not list or not any(map(is_media, content)):
        return message
    blocks = [_text(media_description(block), message) if is_media(block) else block for block in content]  # type: ignore[arg-type]
    return message.model_copy(update={"content": blocks})


def leave_out(message: BaseMessage) -> BaseMessage:
    """A decoded message with placeholders for those parts whose payload was not read; changed in place.

    A text becomes a short text, a content block a short text block; anything else leaves. Of the request and the result
    of a tool that the provider ran itself neither stays without the other: providers refuse that.
    """
    values: Any = message.__dict__
    values["content"] = _content_without_parts(values["content"], message)
    for key in ("tool_calls", "invalid_tool_calls"):
        if values.get(key):
            values[key] = [_call_without_parts(call, message) for call in values[key]]
    for holder in (values, message.__pydantic_extra__ or {}):
        for key, value in holder.items():
            if type(value) is PayloadRange:
                holder[key] = {} if key in ("additional_kwargs", "response_metadata") else None
            elif type(value) is dict and key != "content":
                holder[key] = {name: part for name, part in value.items() if type(part) is not PayloadRange}
    return message


def _text(about: str, message: BaseMessage) -> dict[str, Any]:
    return {"type": "text", "text": placeholder(about, str(message.id))}


def _placeholder(part: PayloadRange, about: str, message: BaseMessage) -> str:
    return placeholder(f"{about}, {part.end - part.start:,} characters", str(message.id))


def _content_without_parts(content: Any, message: BaseMessage) -> Any:
    if type(content) is PayloadRange:
        return _placeholder(content, "text", message)
    if type(content) is not list:
        return content
    gone = {block.link for block in content if type(block) is PayloadRange} - {""}
    return [_block_without_parts(block, message) for block in content if link_of(block) not in gone]


def _block_without_parts(block: Any, message: BaseMessage) -> Any:
    if type(block) is PayloadRange:
        if block.is_media:
            return _text(block.about, message)
        return {"type": "text", "text": _placeholder(block, block.about, message)}
    if type(block) is dict and type(part := block.get("text")) is PayloadRange:
        return {**block, "text": _placeholder(part, "text", message)}
    return block


def _call_without_parts(call: Any, message: BaseMessage) -> Any:
    if type(call) is not dict:
        return call
    shown = dict(call)
    for key, part in call.items():
        if type(part) is PayloadRange:
            note = _placeholder(part, "arguments" if key == "args" else key, message)
            shown[key] = note if part.raw else {"left_out": note}
    return shown
