"""The lossless archive format: JSON lines, several for each conversation.

The first line has the scope, each message has a line, and the last line ends the conversation, so that a truncated file
is detected::

    {"convstore": 1, "scope": {…}, "title": …, "metadata": […], "state": […]}
    {"message": […], "ordinal": 1, "entry": 1, "at": "…", "turn": 1, "unseen": 2, "sources": "1-10",
     "annotations": […], "stamp": {…}}
    {"item": […], "after": 1}
    {"end": {"messages": 1, "rewound": [[first, last], …], "changes": [{…}, …], "sources_through": 10,
             "summaries": […]}}

A value is a list of the lines that the codec writes for it, or their base64 if UTF-8 cannot encode them. Ordinals are
those of the log, from 1. Summaries are informative only; an import skips them, because compaction writes new ones.

An item that is not a message has the ordinal of the message that it follows; all items are after the messages.

``changes`` has the changes of turns, variants and rewound messages, and all other facts of entries, in order; see
`LogChange`. After a repair that moved messages it only has facts and events of turns; an import then rewinds the ranges
of ``rewound``, the messages that are rewound at the end. A change whose ``values`` are base64 has ``is_base64``.

``turn`` is the ordinal of the question that a message belongs to, 0 if it has no turn; without the field it is that of
the message before. ``unseen`` is the number of messages directly before an AI message that its model was not shown.
``added_to`` marks a message that a tool added to its result, by the ``result_id`` of the call. ``failed`` is the
application's statement about a result, if it differs from the result's content.

A message has a stamp if its view has no summary and includes everything before the entry of the message.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from convstore.messages.encoding import decode_message, fields_of
from convstore.messages.values import Codec
from convstore.transfer.records import (
    DAMAGED,
    BadRecord,
    ConversationRecord,
)
from convstore.types import ConversationInfo, LogItem, StoredItem, Summary
from convstore.values.log_records import LogChange, PlacedItem, RecordItem
from convstore.values.plain import counted
from convstore.values.scope import id_problem
from convstore.values.stamps import read_stamp, write_stamp

VERSION = 1
"""Version of the format. A reader refuses later versions."""

_MAX_NUMBER = 2**53
_CLOCK_SKEW = timedelta(days=1)
"""Tolerance for clock differences; a date later than this from now is refused."""
_CHANGE_TEXTS = ("turn", "first_turn", "variant", "call", "values", "message", "name")
_JSON_NAMES = {str: "string", int: "integer", bool: "boolean", dict: "object", list: "array"}
_Value = TypeVar("_Value")

_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


def begin_line(codec: Codec, info: ConversationInfo, *, state: Mapping[str, Any]) -> bytes:
    """Return the first line of a conversation."""
    parts = {"convstore": str(VERSION), "scope": json.dumps(info.scope)}
    if info.forked_from:
        parts["forked_from"] = info.forked_from.model_dump_json()
    if info.title is not None:
        parts["title"] = _pack(codec, info.title)
    for name, values in (("metadata", info.metadata), ("state", state)):
        if values:
            parts[name] = _pack(codec, dict(values))
    return _line(parts)


def message_line(
    codec: Codec, item: RecordItem, *, ordinal: int, entry: int, turn_before: int | None = None
) -> bytes:
    """Return the line of one message, with its ordinal and the number of its entry in the archive.

    `turn_before` is the turn of the message before it; None for the first message.
    """
    message: Any = item.message
    at: Any = item.at  # each message of a log has a date
    parts = {
        "message": _pack(codec, fields_of(message)),
        "ordinal": str(ordinal),
        "entry": str(entry),
        "at": json.dumps(at.isoformat()),
    }
    if item.turn != turn_before:
        parts["turn"] = str(item.turn)
    if item.unseen:
        parts["unseen"] = str(item.unseen)
    if item.added_to:
        parts["added_to"] = json.dumps(item.added_to)
    if item.is_failed is not None:
        parts["failed"] = json.dumps(item.is_failed)
    if item.sources:
        parts["sources"] = json.dumps(item.sources)
    if item.annotations:
        parts["annotations"] = _pack(codec, dict(item.annotations))
    if item.stamp and not item.stamp.summary:
        parts["stamp"] = write_stamp(item.stamp.model_copy(update={"entry": 0}))
    return _line(parts)


def item_line(codec: Codec, item: StoredItem, *, after: int) -> bytes:
    """Return the line of an item that is not a message, with the ordinal of the message that it follows."""
    packed = _pack(codec, {"id": item.id, "kind": item.kind, "data": item.data})
    return _line({"item": packed, "after": str(after)})


def end_line(
    *,
    messages: int,
    rewound: Sequence[tuple[int, int]],
    sources_through: int,
    summaries: Sequence[Summary],
    changes: Sequence[LogChange] = (),
) -> bytes:
    """Return the last line of a conversation."""
    end: dict[str, Any] = {"messages": messages}
    if rewound:
        end["rewound"] = rewound
    if changes:
        end["changes"] = [_raw(change) for change in changes]
    if sources_through:
        end["sources_through"] = sources_through
    if summaries:
        end["summaries"] = [summary.model_dump(mode="json") for summary in summaries]
    return _line({"end": json.dumps(end)})


@dataclass(slots=True)
class _OpenConversation:
    """A conversation whose last line was not read yet; with a problem, it becomes a `BadRecord`."""

    record: ConversationRecord
    items: list[RecordItem] = field(default_factory=list)
    log_items: list[PlacedItem] = field(default_factory=list)
    problem: str = ""

    def as_bad(self, problem: str = "") -> BadRecord:
        return BadRecord(self.record.where, self.problem or problem)


class ArchiveReader:
    """Assembles records from archive lines. An incomplete conversation becomes a `BadRecord`."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._open: _OpenConversation | None = None

    @property
    def is_open(self) -> bool:
        """Return True inside a conversation, before its last line."""
        return self._open is not None

    def takes(self, value: Mapping[str, Any]) -> bool:
        """Return True if a line belongs to an archive."""
        return "convstore" in value or (
            "messages" not in value and not {"message", "item", "end"}.isdisjoint(value)
        )

    def spoil(self, problem: str) -> None:
        """Mark the open conversation as damaged; `problem` says which of its lines cannot be read."""
        if self._open and not self._open.problem:
            self._open.problem = problem

    def read(
        self, value: Mapping[str, Any], where: str
    ) -> Iterator[ConversationRecord | BadRecord]:
        """Read the next line; yield the conversation that it completes, or a `BadRecord` for one that it cuts off."""
        if "convstore" in value:
            yield from self.close()
            self._open = self._begun(value, where)
            return
        if self._open is None:
            self._open = _OpenConversation(
                _record({}, where), problem="the first line of its conversation is missing"
            )
        try:
            if "message" in value:
                self._open.items.append(self._item(value, where, self._open.items))
                return
            if "item" in value:
                item = LogItem(**self._optional(value, "item"))
                self._open.log_items.append(PlacedItem(item, _number(value, "after")))
                return
            record = self._ended(self._open, value["end"])
        except DAMAGED as error:
            self.spoil(f"{where}: {error if isinstance(error, ValueError) else repr(error)}")
            if "end" not in value:
                return
            record = self._open.as_bad()
        self._open = None
        yield record

    def close(self) -> Iterator[BadRecord]:
        """Yield a `BadRecord` if the open conversation has no last line."""
        if self._open:
            yield self._open.as_bad("cut off: the last line of the conversation is missing")
        self._open = None

    def _begun(self, value: Mapping[str, Any], where: str) -> _OpenConversation:
        record = _record(value.get("scope"), where)
        version = value["convstore"]
        if type(version) is not int or version != VERSION:
            problem = (
                f"an export of version {version!r:.80}; this convstore reads version {VERSION}"
            )
            return _OpenConversation(record, problem=problem)
        try:
            _typed(value, "scope", dict)
            title = self._optional(value, "title")
            metadata = self._optional(value, "metadata")
            state = self._optional(value, "state")
        except DAMAGED as error:
            return _OpenConversation(record, problem=str(error))
        return _OpenConversation(
            replace(record, title=title, metadata=metadata or {}, state=state or {})
        )

    def _optional(self, value: Mapping[str, Any], name: str) -> Any:
        return self._codec.decode(_text(value[name]), fetch=_no_payload) if name in value else None

    def _item(
        self, value: Mapping[str, Any], where: str, before: Sequence[RecordItem]
    ) -> RecordItem:
        position = len(before) + 1
        turn_before = before[-1].turn if before else None
        message = decode_message(self._codec, _text(value["message"]), fetch=_no_payload)
        if problem := id_problem(message.id):
            raise ValueError(f"the id of its message {problem}")
        at = _date(value)
        is_past = at < datetime.now(UTC) + _CLOCK_SKEW
        item = RecordItem(
            message=message,
            where=where,
            at=at if is_past else None,
            unread_date="" if is_past else f"at {value['at']!r}",
            entry=_number(value, "entry"),
            turn=_number(value, "turn") if "turn" in value else turn_before,
            unseen=_number(value, "unseen", default=0),
            added_to=_typed(value, "added_to", str, default=""),
            is_failed=_typed(value, "failed", bool) if "failed" in value else None,
            sources=_typed(value, "sources", str, default=""),
            annotations=self._optional(value, "annotations") or {},
            stamp=read_stamp(json.dumps(value["stamp"]), "") if "stamp" in value else None,
        )
        if _number(value, "ordinal") != position:
            raise ValueError(
                f"its ordinal is {value['ordinal']}, and should be {position}: "
                "a line is missing or moved"
            )
        return item

    def _ended(
        self, conversation: _OpenConversation, end: Mapping[str, Any]
    ) -> ConversationRecord | BadRecord:
        items = conversation.items
        number = len(items)
        if not isinstance(end, Mapping):
            raise ValueError("the end of a conversation must be an object")
        if conversation.problem:
            return conversation.as_bad()
        if _number(end, "messages") != number:
            return conversation.as_bad(
                f"it has {counted(number, 'message')}, and should have {end['messages']}"
            )
        summaries = len(_typed(end, "summaries", list, default=[]))
        left_out = f"{counted(summaries, 'summary', 'summaries')} left out; compact makes new ones"
        return replace(
            conversation.record,
            messages=items,
            items=conversation.log_items,
            rewound=_rewound(end, number),
            changes=[_change(change) for change in _typed(end, "changes", list, default=[])],
            sources_through=_number(end, "sources_through", default=0),
            notes=[left_out] if summaries else [],
        )


def _typed(
    values: Mapping[str, Any], name: str, type_: type[_Value], *, default: Any = ...
) -> _Value:
    """Return a value of exactly this type, or the default if it is missing; raise a ValueError for anything else."""
    if name not in values and default is not ...:
        return default  # type: ignore[no-any-return]
    value = values.get(name)
    if type(value) is not type_:
        raise ValueError(
            f"{name!r} must be a JSON {_JSON_NAMES[type_]}, not {type(value).__name__}"
        )
    return value


def _number(values: Mapping[str, Any], name: str, **default: int) -> int:
    """Return a whole number of at least 0 that the store can represent; ValueError for any other value."""
    number = _typed(values, name, int, **default)
    if not 0 <= number < _MAX_NUMBER:
        raise ValueError(f"{name!r} must be a whole number from 0, below 2**53")
    return number


def _date(values: Mapping[str, Any]) -> datetime:
    """Return the date of a line, in UTC."""
    at = datetime.fromisoformat(_typed(values, "at", str))
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _rewound(end: Mapping[str, Any], number: int) -> list[tuple[int, int]]:
    """Return the ranges of rewound messages from the last line; each must be within the `number` messages."""
    ranges: list[tuple[int, int]] = []
    for first, last in _typed(end, "rewound", list, default=[]):
        if not (type(first) is type(last) is int and 1 <= first <= last <= number):
            raise ValueError(f"'rewound' must be pairs of ordinals from 1 to {number:,}")
        ranges.append((first, last))
    return ranges


def _raw(change: LogChange) -> dict[str, Any]:
    """Return the JSON object of a change, without empty fields."""
    fields = {name: value for name, value in change._asdict().items() if value}
    if encoded := _base64(change.values):
        fields |= {"values": encoded, "is_base64": True}
    return fields | {"ordinal": change.ordinal, "at": change.at.isoformat()}


def _change(raw: Mapping[str, Any]) -> LogChange:
    fields: dict[str, Any] = {name: _typed(raw, name, str, default="") for name in _CHANGE_TEXTS}
    for name in ("has_messages", "shows"):
        fields[name] = _typed(raw, name, bool, default=False)
    if _typed(raw, "is_base64", bool, default=False):
        fields["values"] = _text(fields["values"])
    at = _date(raw)
    if at > datetime.now(UTC) + _CLOCK_SKEW:
        raise ValueError(f"the date of a change is in the future: {raw['at']!r}")
    return LogChange(_number(raw, "ordinal"), _typed(raw, "kind", str), at, **fields)


def _record(scope: Any, where: str) -> ConversationRecord:
    values = dict(scope) if isinstance(scope, dict) else {}
    return ConversationRecord(
        id=json.dumps(values, sort_keys=True),
        messages=(),
        where=where,
        fields={"scope": values, **values},  # under the same names as for OpenAI's format
        scope=values,
    )


def _pack(codec: Codec, value: Any) -> str:
    """Encode a value as JSON text on one line."""
    text = codec.encode(value)
    if encoded := _base64(text):
        return f'"{encoded}"'
    return f"[{','.join(text.split(chr(10)))}]"


def _base64(text: str) -> str:
    """Return base64 of a text that UTF-8 cannot encode, else "". JSON would join two lone surrogates of such a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
    return ""


def _text(packed: Any) -> str:
    if isinstance(packed, str):
        return base64.b64decode(packed, validate=True).decode("utf-8", "surrogatepass")
    if not isinstance(packed, list) or not packed:
        raise ValueError("a value must be a list of lines")
    return "\n".join(_JSON.encode(line) for line in packed)


def _no_payload(_start: int, _end: int) -> str:
    raise ValueError("an archived message cannot refer to a payload")


def _line(parts: Mapping[str, str]) -> bytes:
    return ("{" + ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}\n").encode()
