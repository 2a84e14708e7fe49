"""Conversations of JSON lines: one a line, with its messages in OpenAI's or LangChain's format.

Layer 6. ``{"id": …, "messages": […]}``, or the state of a LangGraph thread, ``{"values": {"messages": […]}}``. What
else stands in the object can make the scope. Lines of an export of ours are handed to ``archive``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from convstore.codec import Codec
from convstore.transfer.archive import ArchiveReader
from convstore.transfer.dicts import CREATED, UPDATED, item_of, moment_of, unread_date
from convstore.transfer.lines import MOST_LINE_BYTES, BadLine, Line, read_lines
from convstore.transfer.records import BadRecord, ConversationRecord, RecordItem

__all__ = ["read_file"]

_ID_KEYS = ("id", "conversation_id", "thread_id", "session_id")


def read_file(
    path: Path | str,
    *,
    codec: Codec | None = None,
    most: int = MOST_LINE_BYTES,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> Iterator[ConversationRecord | BadRecord]:
    """The conversations of a file in order, and what stands in place of one; reads as it goes.

    Args:
        path: JSON lines, plain or gzip: one conversation a line, or an export of ours.
        codec: Knows the types of artifacts in an export; by default those of the standard library and LangChain.
        most: At most this many bytes of a line.
        on_bytes: Told, after each line, how far the file was read.
    """
    path = Path(path)
    archive = ArchiveReader(codec or Codec())
    for line in read_lines(path, most=most, on_bytes=on_bytes):
        where = f"{path.name}, line {line.number}"
        if isinstance(line, BadLine) and archive.is_open:
            archive.spoil(f"line {line.number}: {line.problem}")
        elif isinstance(line, BadLine):
            yield BadRecord(where, line.problem)
        elif archive.takes(line.value):
            yield from archive.read(line.value, where)
        else:
            yield from archive.close()
            yield _record(path, line, where)
    yield from archive.close()


def _record(path: Path, line: Line, where: str) -> ConversationRecord | BadRecord:
    value, messages = line.value, line.value.get("messages")
    if messages is None and isinstance(value.get("values"), dict):
        messages = value["values"].get("messages")
    if not isinstance(messages, list) or not messages:
        return BadRecord(where, 'no conversation: an object with a list "messages" is needed')
    fields = {name: field for name, field in value.items() if name not in ("messages", "values")}
    title, metadata = value.get("title"), value.get("metadata")
    items = [item_of(raw, where=f"{where}, message {place}") for place, raw in enumerate(messages, 1)]
    notes = [] if any(item.at for item in items) else _set_dates(items, value)
    return ConversationRecord(
        id=_id(value) or f"{path.name}:{line.number}",
        messages=items,
        where=where,
        fields={"file": path.name, "line": str(line.number), **fields},
        title=title if isinstance(title, str) else None,
        metadata=metadata if isinstance(metadata, dict) else {},
        notes=notes,
    )


def _set_dates(items: list[RecordItem], value: Mapping[str, Any]) -> list[str]:
    """Give the first and the last message the dates of their conversation; what cannot be read is told."""
    notes: list[str] = []
    for place, names in ((0, CREATED), (-1, UPDATED)):
        if at := moment_of(value, names):
            items[place] = replace(items[place], at=items[place].at or at)
        elif unread := unread_date(value, names):
            notes.append(f"a date of the conversation cannot be read: {unread}")
    return notes


def _id(value: dict[str, Any]) -> str:
    found = next((value[key] for key in _ID_KEYS if value.get(key) not in (None, "")), "")
    return str(found) if isinstance(found, str | int) else ""
