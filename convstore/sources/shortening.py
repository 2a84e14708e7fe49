"""Shorten messages for views: stubs, placeholders for media, beginning and end of long texts.

Each function depends only on the message and its arguments, so a view shows the same bytes every time, independent of
where the parts of a message are stored.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage

from convstore.messages.encoding import EDGE_CHARACTERS, link_of
from convstore.messages.media import is_media, media_description
from convstore.messages.payload_ranges import PayloadRange
from convstore.messages.text import in_one_line, text_of
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, fitting, weight
from convstore.sources.stub import RETRIEVAL_TOOL

SHORTENED = ("human", "ai")
"""Types of messages whose long texts a policy shortens."""

Arguments = Literal["kept", "texts", "whole"]
"""How call arguments are shortened: not at all, each text in them, or all arguments of a call as one text."""

_UNCUT = ("additional_kwargs", "invalid_tool_calls")
"""Fields that views of finished turns show in full."""

_WITH_MEDIA = ("system", "tool")
_OF_IMAGE = re.compile(r"\[image\b.{0,400}, [\d,]+ bytes; left out to save context, call ")
_SPACES = (" ", "\n", "\t")
_MAX_DEPTH = 8


def placeholder(about: str, message_id: str) -> str:
    """Return the text that replaces a part left out of a view.

    >>> placeholder("image, 3 bytes", "m7")
    '[image, 3 bytes; left out to save context, call retrieve_previous_sources with message id m7 to read it]'
    """
    return (
        f"[{about}; left out to save context, "
        f"call {RETRIEVAL_TOOL} with message id {in_one_line(message_id)} to read it]"
    )


def is_image_placeholder(text: str) -> bool:
    """Return True for the placeholder of an image.

    >>> is_image_placeholder("[image, image/png, 3 bytes; left out to save context, call x")
    True
    """
    return bool(_OF_IMAGE.match(text))


def with_stub(message: BaseMessage, stub: str) -> BaseMessage:
    """Replace the content of a tool message by its stub, or append a suffix; remove the artifact; in place."""
    values: Any = message.__dict__
    values["artifact"] = None
    if not stub.startswith("\n"):
        values["content"] = stub
    elif isinstance(content := values["content"], str):  # the stub is a suffix
        values["content"] = content + stub
    else:
        values["content"] = [*content, {"type": "text", "text": stub}]
    return message


def without_media(message: BaseMessage, *, everywhere: bool = False, keep: int = 0) -> BaseMessage:
    """Return a message with placeholders for images, audio and files; the same object if it has none.

    The last `keep` of them are kept. System messages and tool results are unchanged unless `everywhere` is set, because
    results have a stub or are small.

    >>> from langchain_core.messages import HumanMessage
    >>> without_media(HumanMessage([{"type": "image", "base64": "QUJD"}], id="m7")).content[0]["text"][:15]
    '[image, 3 bytes'
    """
    content = message.content
    is_kept = message.type in _WITH_MEDIA and not everywhere
    if is_kept or type(content) is not list or not any(map(is_media, content)):
        return message
    blocks = list(content)
    places = [index for index, block in enumerate(content) if is_media(block)]
    for index in places[: max(0, len(places) - keep)]:
        blocks[index] = _text(media_description(content[index]), message)  # type: ignore[arg-type]
    return message.model_copy(update={"content": blocks})


def shorten_text(text: str | PayloadRange, tokens: int, message_id: str) -> str:
    """Cut a text longer than `tokens` to its beginning and end, between words, with the message id in the middle.

    A token is estimated as four characters of English text (see `tokens.weight`), independent of the store's counter,
    so that equal arguments give equal bytes everywhere. A shorter text is returned unchanged.

    >>> print(shorten_text("one two three four five" + ", one two three four five" * 20, 10, "m7"))
    one two three four
    [486 characters left out to save context, call retrieve_previous_sources with message id m7 to read them]
    two three four five
    """
    room = tokens * CHARACTERS_PER_TOKEN
    if isinstance(text, PayloadRange):
        length = text.end - text.start
        head = text.head
        tail = text.tail
    elif len(text) * CHARACTERS_PER_TOKEN <= room or weight(text) <= room:
        return text
    else:
        length = len(text)
        head = text[: room // 2]
        tail = text[len(text) - room // 2 :]
    head = _beginning(head[: room // 2], room // 2)
    tail = _beginning(tail[::-1][: room // 2], room // 2)[::-1]
    shown = (
        f"{head}\n[{length - len(head) - len(tail):,} characters left out to save context, "
        f"call {RETRIEVAL_TOOL} with message id {in_one_line(message_id)} to read them]\n{tail}"
    )
    return shown if isinstance(text, PayloadRange) or len(shown) < length else text


def with_short_texts(
    message: BaseMessage, tokens: int, *, arguments: Arguments = "kept"
) -> BaseMessage:
    """Return a human or AI message with `shorten_text` applied; the same object if no text is too long.

    >>> call = {"name": "f", "args": {"texts": ["one two three"] * 20}, "id": "c", "type": "tool_call"}
    >>> message = AIMessage("", tool_calls=[call], id="m7")
    >>> with_short_texts(message, 20, arguments="texts") is message
    True
    >>> list(with_short_texts(message, 20, arguments="whole").tool_calls[0]["args"])
    ['left_out']
    """
    if message.type not in SHORTENED:
        return message
    shorten = partial(_shortened, tokens=tokens, message_id=str(message.id))
    content: Any = message.content
    if type(content) is list:
        content = [_block(block, shorten, arguments) for block in content]
        content = message.content if all(map(operator.is_, content, message.content)) else content
    else:
        content = shorten(content)
    changed: dict[str, Any] = {} if content is message.content else {"content": content}
    if arguments != "kept" and isinstance(message, AIMessage):
        calls = [
            {**call, "args": _short_arguments(call["args"], shorten, arguments)}
            for call in message.tool_calls
        ]
        if calls != message.tool_calls:
            changed["tool_calls"] = calls
    return message.model_copy(update=changed) if changed else message


def text_lengths(message: BaseMessage) -> tuple[list[int], int]:
    """Return the lengths of the texts that `with_short_texts` may cut, and the length of other parts not read.

    Call arguments are included; arguments in the payload count as one text.

    >>> text_lengths(AIMessage("four", tool_calls=[{"name": "f", "args": {"q": "of", "n": [1, "x"]}, "id": "c"}]))
    ([4, 2, 1], 0)
    >>> text_lengths(AIMessage.model_construct(content=["So", PayloadRange(0, 9, False)]))
    ([2], 9)
    """
    content = message.content
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    cut = lengths_without_arguments(content)
    for arguments in [*_inputs_of(content), *(call["args"] for call in calls)]:
        cut += _lengths(arguments)
    unread = [part for part in _unread(content) if not (part.raw or part.is_media)]
    unread += _unread([value for key, value in message if key in _UNCUT])
    return cut, sum(part.end - part.start for part in unread)


def _inputs_of(content: Any) -> list[Any]:
    """Return the arguments of the calls in a content's blocks of Anthropic's format."""
    if type(content) is not list:
        return []
    blocks = [block for block in content if type(block) is dict]
    return [block.get("input") for block in blocks if block.get("type") == "tool_use"]


def _unread(value: Any) -> Iterator[PayloadRange]:
    if type(value) is PayloadRange:
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _unread(part)


def lengths_without_arguments(content: Any) -> list[int]:
    """Return the lengths of the texts that `with_short_texts` may cut in a content, including texts not read.

    >>> lengths_without_arguments(["four", {"type": "text", "text": "two"}, {"type": "tool_use", "input": {"q": "of"}}])
    [4, 3]
    """
    blocks = content if type(content) is list else [content]
    texts = [_cut_text(block) if type(block) is dict else block for block in blocks]
    found = [
        text for text in texts if isinstance(text, str) or (type(text) is PayloadRange and text.raw)
    ]
    return [length for text in found for length in _lengths(text)]


def _cut_text(block: dict[str, Any]) -> Any:
    """Return the text of a block that may be cut, see `_block`."""
    source = block.get("source")
    data = source.get("data") if type(source) is dict and source.get("type") == "text" else None
    return block.get("text", data)


def _lengths(value: Any) -> Iterator[int]:
    if isinstance(value, str):
        yield len(value)
    elif type(value) is PayloadRange:
        yield value.end - value.start
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _lengths(part)


def needs_edges_only(tokens: int | None) -> bool:
    """Return True if texts shortened to `tokens` need no more than the beginning and end that bodies keep."""
    return tokens is not None and tokens * CHARACTERS_PER_TOKEN // 2 <= EDGE_CHARACTERS


def _beginning(text: str, room: int) -> str:
    """Return the beginning of a text that fits in `room`, cut after a whole word if possible."""
    fit = text[: fitting(text, room)]
    end = max(fit.rfind(sign) for sign in _SPACES)
    return (fit[:end] if end >= len(fit) // 2 else fit).rstrip()


def _shortened(text: Any, *, tokens: int, message_id: str) -> Any:
    if isinstance(text, str) or (
        type(text) is PayloadRange and text.head and needs_edges_only(tokens)
    ):
        return shorten_text(text, tokens, message_id)
    return text


def _block(block: Any, shorten: Callable[[Any], Any], arguments: Arguments) -> Any:
    """Return a content block with its text shortened; reasoning is signed and therefore unchanged."""
    if type(block) is not dict:
        return shorten(block)
    source = block.get("source")
    if "text" in block and (text := shorten(block["text"])) is not block["text"]:
        return {**block, "text": text}
    if type(source) is dict and source.get("type") == "text":
        data = shorten(source.get("data"))
        return (
            block if data is source.get("data") else {**block, "source": {**source, "data": data}}
        )
    if arguments != "kept" and block.get("type") == "tool_use":
        return {**block, "input": _short_arguments(block.get("input"), shorten, arguments)}
    return block


def _short_arguments(value: Any, shorten: Callable[[Any], Any], arguments: Arguments) -> Any:
    """Return call arguments with each text shortened, or with all arguments as one shortened text."""
    if arguments == "texts" or type(value) is not dict:
        return _leaves(value, shorten)
    text = text_of(value)
    return value if (short := shorten(text)) is text else {"left_out": short}


def _leaves(value: Any, shorten: Callable[[Any], Any], depth: int = 0) -> Any:
    """Return call arguments with their texts shortened, down to `_MAX_DEPTH` levels of nesting."""
    if type(value) is dict and depth < _MAX_DEPTH:
        return {key: _leaves(part, shorten, depth + 1) for key, part in value.items()}
    if type(value) is list and depth < _MAX_DEPTH:
        return [_leaves(part, shorten, depth + 1) for part in value]
    return shorten(value) if isinstance(value, str) else value


def leave_out(message: BaseMessage) -> BaseMessage:
    """Replace the parts of a decoded message whose payload was not read by placeholders. Changes the message.

    A text is replaced by a placeholder, a content block by a text block; other parts are removed. Request and result of
    a tool that the provider ran are removed together, because providers reject one without the other.
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
            elif type(value) is dict and value and key != "content":
                holder[key] = {
                    name: part for name, part in value.items() if type(part) is not PayloadRange
                }
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
    unread = {block.link for block in content if type(block) is PayloadRange} - {""}
    return [
        _block_without_parts(block, message) for block in content if link_of(block) not in unread
    ]


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
