"""Write the content of messages as parts of the AI SDK 7, bounded, with a report of all that is left out or cut.

These parts are also what the messages of AG-UI are made from, so both formats agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.ext.reasoning import reasoning_beside, reasoning_part
from convstore.integration import Media, Text, is_json, parts_of, valid_text
from convstore.sources.citations import citations_in, distinct
from convstore.types import Dropped, Source, TurnCall

Part: TypeAlias = dict[str, Any]


class PartWriter:
    """Writes the content of messages as parts.

    Attributes:
        report: The parts of messages that were left out, or cut.
    """

    def __init__(self, *, output_limit: int, media_limit: int) -> None:
        self._output_limit, self._media_limit, self.report = output_limit, media_limit, list[Dropped]()

    def drop(self, message: BaseMessage, part: str, reason: str) -> None:
        """Report a part of a message that is left out or cut."""
        self.report.append(Dropped(str(message.id), part, reason))

    def content(self, message: BaseMessage) -> list[Part]:
        """Return the texts, the reasoning, the media and other blocks of a message in order, then what it cites."""
        is_said = isinstance(message, AIMessage)
        found = list(reasoning_beside(message)) if is_said else []
        for part in parts_of(message):
            if isinstance(part, Text):
                found += [{"type": "text", "text": part.text, "state": "done"}] if part.text else []
            elif isinstance(part, Media):
                found.append(self._file(message, part))
            elif part.kind == "reasoning" and is_said:
                found.append(reasoning_part(part.block))
            elif part.kind != "call" and len(json.dumps(part.block)) <= self._output_limit:
                found.append({"type": f"data-{valid_text(part.type) or 'block'}", "data": plain(dict(part.block))})
            elif part.kind != "call":
                self.drop(message, part.type or "block", f"it is longer than {self._output_limit:,} characters")
        return [*found, *_cited(message)]

    def call(self, call: TurnCall, id_: str, written: str, result: ToolMessage | None) -> tuple[Part, list[Part]]:
        """Return the part of a call as it stands, and the files in its result; `written` are invalid arguments."""
        name = valid_text(call.name)
        named = {"type": f"tool-{name}"} if name else {"type": "dynamic-tool", "toolName": "tool"}
        part = {**named, "toolCallId": id_, "input": written or plain(call.args)}
        content = self.content(result) if result else []
        text = "\n".join(found["text"] for found in content if found["type"] == "text")
        files = [found for found in content if found["type"] == "file" or found["type"].startswith("data-")]
        if result is None and not call.error:
            return {**part, "state": "input-available"}, []
        if result is None or result.status == "error":
            said = valid_text(call.error) if result is None else self._cut(result, text) or "The tool failed."
            return {**part, "state": "output-error", "errorText": said}, files
        return {**part, "state": "output-available", "output": _value_of(self._cut(result, text))}, files

    def _cut(self, result: ToolMessage, text: str) -> str:
        """Return a text within the limit: a longer one is its beginning, with the id of the message that has it all."""
        if (more := len(text) - self._output_limit) <= 0:
            return text
        self.drop(result, "output", f"it has {len(text):,} characters; get_tool_messages returns all of it")
        return f"{text[: self._output_limit]}\n[{more:,} more characters in message {result.id}]"

    def _file(self, message: BaseMessage, media: Media) -> Part:
        """Return a file with its address or data; for one without, or with too much, a part that names its message."""
        if media.url or 0 < len(media.data) <= self._media_limit:
            kind = media.mime_type or (media.kind if media.kind != "file" else "application/octet-stream")
            name = {"filename": media.name} if media.name else {}
            return {"type": "file", "mediaType": kind, "url": media.data_url or media.url, **name}
        large = f"its data is longer than {self._media_limit:,} characters"
        self.drop(message, media.kind, large if media.data else "a browser can open neither data nor an address of it")
        return {"type": "data-omitted", "data": {"messageId": str(message.id), "description": media.description}}


def source_parts(sources: Iterable[Source]) -> Iterator[Part]:
    """Yield the sources of a result, by their numbers."""
    for source in sources:
        yield _source_part(str(source.source_id), source.title, source.url, source.tool_message_id)


def _cited(message: BaseMessage) -> Iterator[Part]:
    """Yield the sources that a provider has cited in an answer; they have no numbers in the conversation."""
    blocks = message.content if isinstance(message, AIMessage) and isinstance(message.content, list) else []
    mentions = [mention for block in blocks if isinstance(block, dict) for mention in citations_in(block)]
    for number, source in enumerate(distinct(mentions)):
        yield _source_part(f"{message.id}:{number}", str(source.title or ""), str(source.url or ""), str(message.id))


def _source_part(id_: str, title: str, url: str, message_id: str) -> Part:
    part = {"sourceId": id_, "title": valid_text(title or url) or f"Source {id_}"}
    own = {"providerMetadata": {"convstore": {"messageId": message_id}}}
    if url:
        return {"type": "source-url", **part, "url": valid_text(url), **own}
    return {"type": "source-document", **part, "mediaType": "text/plain", **own}


def plain(value: Any) -> Any:
    """Return a value as JSON has it; one with numbers that JSON lacks becomes its text.

    >>> plain({1: ("x", None)}), plain({"a": float("inf")})
    ({'1': ['x', None]}, '{"a": Infinity}')
    """
    try:
        text = valid_text(json.dumps(value, ensure_ascii=False, default=str))
        return found if is_json(found := json.loads(text)) else text
    except (ValueError, TypeError, RecursionError):
        return f"[a value of type {type(value).__name__} that JSON does not have]"


def _value_of(text: str) -> Any:
    """Return an object or a list if the text is its JSON, else the text.

    >>> _value_of('{"a": 1}'), _value_of("007"), _value_of("[1, NaN]")
    ({'a': 1}, '007', '[1, NaN]')
    """
    try:
        value = json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        return text
    return value if is_json(value) else text
