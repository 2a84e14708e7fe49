"""Reads JSON lines: one conversation a line, with messages in OpenAI's or LangChain's format.

``{"id": …, "messages": […]}``, or the state of a LangGraph thread, ``{"values": {"messages": […]}}``. A scope can be
made from the other fields of the object. Lines of an archive are read by ``archive``.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from convstore.exceptions import InvalidInputError, InvalidScopeError
from convstore.integration import new_codec
from convstore.messages.values import Codec
from convstore.transfer.agents_sessions import read_agents_sqlite
from convstore.transfer.archive import ArchiveReader
from convstore.transfer.dicts import CREATED, UPDATED, item_of, moment_of, unread_date
from convstore.transfer.records import BadRecord, ConversationRecord
from convstore.values.addresses import without_addresses
from convstore.values.log_records import RecordItem
from convstore.values.scope import PATH, check_scope_keys

_ID_KEYS = ("id", "conversation_id", "thread_id", "session_id")
_KEPT = frozenset({"scope", "title", "metadata", *CREATED, *UPDATED})
"""Fields of an object, besides its id and messages, that a conversation keeps."""

_LINE_BYTES = 512 * 1024 * 1024
"""Maximum length of a line; longer ones are left out, because Python needs several times their size to parse them."""

_GZIP = b"\x1f\x8b"
_SQLITE = b"SQLite format 3\0"
_PIECE = 1 << 20
_UNPACKED_BYTES = 1 << 26
"""Size to which any gzip file may unpack."""
_UNPACKED_RATIO = 200
"""Further size for each byte of a gzip file. Conversations are compressed by a factor of 3 to 30."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file: its number from 1, and its JSON object, or the problem of a line without one."""

    number: int
    value: dict[str, Any]
    problem: str = ""


def check_readable(path: Path) -> None:
    """Raise an InvalidInputError if a file cannot be opened."""
    try:
        with path.open("rb") as raw, _unpacked(raw) as file:
            file.read(1)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInputError(
            f"{without_addresses(str(path))} cannot be read: {reason}"
        ) from error


def read_lines(
    path: Path, *, on_bytes: Callable[[int], object] = lambda _: None
) -> Generator[Line, None, None]:
    """Yield the objects of a file in order, and a `Line` with a problem for any other line; empty lines are skipped.

    The file may be gzip. `on_bytes` is called after each line with the number of bytes read.
    """
    with path.open("rb") as raw, _unpacked(raw) as file:
        number = 0
        try:
            for number, line in enumerate(_raw_lines(file), 1):
                if line is None:
                    problem = f"longer than {_LINE_BYTES:,} bytes; import it from code, in parts"
                    yield Line(number, {}, problem)
                elif line.strip():
                    yield _parsed(number, line)
                on_bytes(raw.tell())
        except (OSError, EOFError, zlib.error) as error:
            yield Line(number + 1, {}, f"the file cannot be read from here on: {error}")


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    is_gzip = raw.read(len(_GZIP)) == _GZIP
    size = raw.seek(0, os.SEEK_END)
    raw.seek(0)
    if is_gzip:
        return cast(IO[bytes], _BoundedGzip(raw, _UNPACKED_BYTES + _UNPACKED_RATIO * size))
    return raw


class _BoundedGzip(gzip.GzipFile):
    """A gzip file that is read by lines, up to `limit` bytes in total."""

    def __init__(self, raw: IO[bytes], limit: int) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self._left = limit

    def readline(self, size: int | None = -1) -> bytes:
        """Return the next line; an OSError if there are more bytes than the limit."""
        wanted = self._left + 1 if size is None or size < 0 else min(size, self._left + 1)
        line = super().readline(wanted)
        self._left -= len(line)
        if self._left < 0:
            raise OSError(
                f"it unpacks to more than {_UNPACKED_RATIO} times its size; "
                "unpack it first (gunzip)"
            )
        return line


def _raw_lines(file: IO[bytes]) -> Iterator[bytes | None]:
    """Yield lines without a byte order mark; None for a line that is too long."""
    is_first = True
    while line := file.readline(_LINE_BYTES + 1):
        if len(line) > _LINE_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(_PIECE)) and not rest.endswith(b"\n"):
                pass
            yield None
        else:
            yield line.removeprefix(codecs.BOM_UTF8) if is_first else line
        is_first = False


def _parsed(number: int, line: bytes) -> Line:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Line(
            number, {}, f"not UTF-8: byte {line[error.start]:#04x} at position {error.start + 1:,}"
        )
    except (ValueError, RecursionError) as error:
        return Line(number, {}, f"not JSON: {error}")
    if isinstance(value, list):
        return Line(
            number, {}, "a JSON array; write each conversation on a line of its own: jq -c '.[]'"
        )
    if not isinstance(value, dict):
        return Line(number, {}, f"not a JSON object but {type(value).__name__}")
    return Line(number, value)


def read_file(
    path: Path | str,
    *,
    codec: Codec | None = None,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> Iterator[ConversationRecord | BadRecord]:
    """Yield the conversations of a file in order, and a `BadRecord` for any other line; reads them lazily.

    Args:
        path: JSON lines, plain or gzip: one conversation a line, or an archive written by `export_conversations`; or a
            file of ``SQLiteSession``, see `read_agents_sqlite`.
        codec: Decodes the types of artifacts; by default those of the standard library, LangChain and PyMongo.
        on_bytes: Called after each line with the number of bytes read.
    """
    path = Path(path)
    if _is_database(path):
        yield from read_agents_sqlite(path)
        return
    archive = ArchiveReader(codec or new_codec())
    for line in read_lines(path, on_bytes=on_bytes):
        where = f"{path.name}, line {line.number}"
        if line.problem and archive.is_open:
            archive.spoil(f"line {line.number}: {line.problem}")
        elif line.problem:
            yield BadRecord(where, line.problem)
        elif archive.takes(line.value):
            yield from archive.read(line.value, where)
        else:
            yield from archive.close()
            yield _record(path, line, where)
    yield from archive.close()


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def scope_keys_of(path: Path) -> tuple[str, ...]:
    """Return the scope keys of the first conversation of an export, in either format; () for any other file."""
    if _is_database(path):
        return ()
    with closing(read_lines(path)) as lines:
        scope = next((line.value.get("scope") for line in lines if not line.problem), None)
    try:
        if isinstance(scope, dict):
            return check_scope_keys([key for key in scope if key != PATH])
        return ()
    except InvalidScopeError:
        return ()


def _record(path: Path, line: Line, where: str) -> ConversationRecord | BadRecord:
    value = line.value
    messages = _messages_in(value)
    if not messages:
        return BadRecord(where, 'not a conversation: an object with a list "messages" is needed')
    fields = _fields(value)
    items = [
        item_of(raw, where=f"{where}, message {position}")
        for position, raw in enumerate(messages, 1)
    ]
    notes: list[str] = []
    if not any(item.at for item in items):
        notes = _set_dates(items, value)
    title = _optional(value, "title", str, notes)
    metadata = _optional(value, "metadata", dict, notes)
    return ConversationRecord(
        id=_id(value) or f"{path.name}:{line.number}",
        messages=items,
        where=where,
        fields={"file": path.name, "line": str(line.number), **fields},
        title=title,
        metadata=metadata or {},
        other_fields=[name for name, field in fields.items() if field and name not in _KEPT],
        notes=notes,
    )


def _fields(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an object without its messages; fields of a state in "values" are named by their path."""
    fields = {name: field for name, field in value.items() if name not in ("messages", "values")}
    state = value.get("values")
    inner = state if isinstance(state, dict) else {}
    others = {f"values.{name}": field for name, field in inner.items() if name != "messages"}
    return fields | others


def _messages_in(value: Mapping[str, Any]) -> list[Any]:
    """Return the list of messages of an object, or of the state in its "values"; [] without such a list."""
    messages = value.get("messages")
    if messages is None and isinstance(value.get("values"), dict):
        messages = value["values"].get("messages")
    return messages if isinstance(messages, list) else []


def _optional(value: Mapping[str, Any], name: str, kind: type, notes: list[str]) -> Any:
    """Return a field of an object; None if it is missing, and None with a note if it has another type."""
    field = value.get(name)
    if field is None or isinstance(field, kind):
        return field
    needed = "a text" if kind is str else "an object"
    notes.append(f"its {name} is left out: {needed} is needed, not {type(field).__name__}")
    return None


def _set_dates(items: list[RecordItem], value: Mapping[str, Any]) -> list[str]:
    """Set the conversation's dates on its first and last message; return a note for each unreadable date."""
    notes: list[str] = []
    for index, names in ((0, CREATED), (-1, UPDATED)):
        if at := moment_of(value, names):
            items[index] = replace(items[index], at=items[index].at or at)
        elif unread := unread_date(value, names):
            notes.append(f"a date of the conversation cannot be read: {unread}")
    return notes


def _id(value: dict[str, Any]) -> str:
    found = next((value[key] for key in _ID_KEYS if value.get(key) not in (None, "")), "")
    return str(found) if isinstance(found, str | int) else ""
