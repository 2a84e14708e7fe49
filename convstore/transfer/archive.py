"""The format of an export that loses nothing: JSON lines, several for each conversation.

Layer 6. The first line says whose conversation it is, then each message has one, and the last line closes it, so that
a file that was cut off is noticed::

    {"convstore": 1, "scope": {…}, "title": …, "metadata": […]}
    {"message": […], "ordinal": 1, "entry": 1, "at": "…", "sources": "1-10", "annotations": […]}
    {"end": {"messages": 1, "rewound": [[first, last], …], "sources_through": 10, "summaries": […]}}

A value is the lines that ``codec`` writes for it, as a list; where UTF-8 cannot hold them, it is base64 of them.
Ordinals count the messages of the file from 1, so those that a repaired log lacks leave no hole here.
Summaries are there to be read; an import leaves them out, as they are made again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.messages.encoding import decode_message, fields_of
from convstore.messages.values import Codec
from convstore.transfer.records import BadRecord, ConversationRecord, RecordItem
from convstore.values.models import Summary

__all__ = ["VERSION", "ArchiveReader", "begin_line", "end_line", "message_line"]

VERSION = 1
"""Of the format; a reader refuses a later one."""

_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


def begin_line(codec: Codec, *, scope: Mapping[str, str], title: str | None, metadata: Mapping[str, Any]) -> bytes:
    """The line that a conversation begins with."""
    parts = {"convstore": str(VERSION), "scope": json.dumps(dict(scope))}
    if title is not None:
        parts["title"] = _pack(codec, title)
    if metadata:
        parts["metadata"] = _pack(codec, dict(metadata))
    return _line(parts)


def message_line(
    codec: Codec,
    message: BaseMessage,
    *,
    ordinal: int,
    entry: int,
    at: datetime,
    sources: str,
    annotations: Mapping[str, Any],
) -> bytes:
    """The line of one message."""
    parts = {
        "message": _pack(codec, fields_of(message)),
        "ordinal": str(ordinal),
        "entry": str(entry),
        "at": json.dumps(at.isoformat()),
    }
    if sources:
        parts["sources"] = json.dumps(sources)
    if annotations:
        parts["annotations"] = _pack(codec, dict(annotations))
    return _line(parts)


def end_line(
    *, messages: int, rewound: Sequence[tuple[int, int]], sources_through: int, summaries: Sequence[Summary]
) -> bytes:
    """The line that a conversation ends with."""
    end: dict[str, Any] = {"messages": messages}
    if rewound:
        end["rewound"] = rewound
    if sources_through:
        end["sources_through"] = sources_through
    if summaries:
        end["summaries"] = [summary.model_dump(mode="json") for summary in summaries]
    return _line({"end": json.dumps(end)})


@dataclass(slots=True)
class _Open:
    """A conversation whose last line was not read yet."""

    where: str
    scope: dict[str, str]
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    items: list[RecordItem] = field(default_factory=list)
    problem: str = ""


class ArchiveReader:
    """Puts the lines of an export together; a conversation that is not whole is told and left out."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._open: _Open | None = None

    @property
    def is_open(self) -> bool:
        """Whether a conversation was begun and not ended."""
        return self._open is not None

    def takes(self, value: Mapping[str, Any]) -> bool:
        """Whether a line is one of an export."""
        return "convstore" in value or ("messages" not in value and ("message" in value or "end" in value))

    def spoil(self, problem: str) -> None:
        """Note that a line of the conversation that is open cannot be read."""
        if self._open and not self._open.problem:
            self._open.problem = problem

    def read(self, value: Mapping[str, Any], where: str) -> Iterator[ConversationRecord | BadRecord]:
        """Take the next line; gives the conversation that it ends, and what it leaves unfinished."""
        if "convstore" in value:
            yield from self.close()
            self._open = self._begun(value, where)
            return
        if self._open is None:
            self._open = _Open(where, {}, problem="the line that begins its conversation is missing")
        try:
            if "message" in value:
                self._open.items.append(self._item(value, where))
                return
            record = self._ended(self._open, value["end"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.spoil(f"{where}: {error if isinstance(error, ValueError) else repr(error)}")
            if "message" in value:
                return
            record = BadRecord(self._open.where, self._open.problem)
        self._open = None
        yield record

    def close(self) -> Iterator[BadRecord]:
        """Tell of a conversation that has no end."""
        if self._open:
            yield BadRecord(self._open.where, self._open.problem or "cut off: the line that ends it is missing")
        self._open = None

    def _begun(self, value: Mapping[str, Any], where: str) -> _Open:
        scope = value.get("scope")
        opened = _Open(where, dict(scope) if isinstance(scope, dict) else {})
        if value["convstore"] != VERSION:
            opened.problem = f"an export of version {value['convstore']!r}; this convstore reads version {VERSION}"
            return opened
        try:
            opened.title = _unpack(self._codec, value["title"]) if "title" in value else None
            opened.metadata = _unpack(self._codec, value["metadata"]) if "metadata" in value else {}
        except (ValueError, TypeError) as error:
            opened.problem = str(error)
        return opened

    def _item(self, value: Mapping[str, Any], where: str) -> RecordItem:
        return RecordItem(
            message=decode_message(self._codec, _text(value["message"]), fetch=_no_payload),
            where=where,
            at=datetime.fromisoformat(value["at"]),
            entry=int(value["entry"]),
            sources=str(value.get("sources", "")),
            annotations=_unpack(self._codec, value["annotations"]) if "annotations" in value else {},
        )

    def _ended(self, opened: _Open, end: Mapping[str, Any]) -> ConversationRecord | BadRecord:
        number = len(opened.items)
        if not isinstance(end, Mapping):
            raise ValueError("the end of a conversation is an object")
        if not opened.problem and end["messages"] != number:
            opened.problem = f"it has {number} messages, and should have {end['messages']}"
        if opened.problem:
            return BadRecord(opened.where, opened.problem)
        rewound = [(int(first), int(last)) for first, last in end.get("rewound", ())]
        summaries = len(end.get("summaries", ()))
        return ConversationRecord(
            id=json.dumps(opened.scope, sort_keys=True),
            messages=opened.items,
            where=opened.where,
            fields=dict(opened.scope),
            scope=opened.scope,
            title=opened.title,
            metadata=opened.metadata,
            rewound=[(first, last) for first, last in rewound if 1 <= first <= last <= number],
            sources_through=int(end.get("sources_through", 0)),
            notes=[f"{summaries} summaries are left out; compact makes new ones"] if summaries else [],
        )


def _pack(codec: Codec, value: Any) -> str:
    """A value as JSON text, on one line."""
    text = codec.encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON would join two lone surrogates to one character
        return f'"{base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()}"'
    return f"[{','.join(text.split(chr(10)))}]"


def _text(packed: Any) -> str:
    if isinstance(packed, str):
        return base64.b64decode(packed, validate=True).decode("utf-8", "surrogatepass")
    if not isinstance(packed, list) or not packed:
        raise ValueError("a value is a list of lines")
    return "\n".join(_JSON.encode(line) for line in packed)


def _unpack(codec: Codec, packed: Any) -> Any:
    return codec.decode(_text(packed), fetch=_no_payload)


def _no_payload(_start: int, _end: int) -> str:
    raise ValueError("a message of an export has no payload")


def _line(parts: Mapping[str, str]) -> bytes:
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}\n").encode()
