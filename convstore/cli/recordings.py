"""Reads recorded conversations: OpenAI-format JSON lines, plain or gzip, one conversation a line.

Floor 8. ``replay`` uses it. Lines are read one at a time. A line that is not a conversation becomes a `BadLine`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeAlias

from convstore.exceptions import InvalidInputError
from convstore.transfer.dicts import with_artifact
from convstore.values.addresses import without_addresses

__all__ = ["BadLine", "Recording", "Turn", "check_readable", "count_lines", "read_recordings"]

Turn: TypeAlias = list[Any]
"""Messages of a file. A turn starts with a human message, except messages before the first one."""

_File: TypeAlias = gzip.GzipFile | BufferedReader

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Recording:
    """One conversation of a file, cut into turns."""

    id: str
    line: int
    turns: list[Turn]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line without a conversation, and the reason."""

    line: int
    problem: str


def check_readable(path: Path) -> None:
    """Check that a file can be read.

    Raises:
        InvalidInputError: It cannot be read; says why.
    """
    try:
        _open(path).close()
    except OSError as error:
        raise InvalidInputError(f"{without_addresses(str(path))} cannot be read: {error.strerror or error}") from error


def count_lines(path: Path) -> int:
    """Count the lines of a file that are not empty, as far as it can be read."""
    with _open(path) as file:
        return sum(bool(line) for _, line in _lines(file))


def read_recordings(path: Path) -> Iterator[Recording | BadLine]:
    """Yield the conversations of a file in order, and a `BadLine` for any other line."""
    with _open(path) as file:
        for number, line in _lines(file):
            yield line if isinstance(line, BadLine) else _recording(number, line)


def _open(path: Path) -> _File:
    with path.open("rb") as file:
        is_gzip = file.read(len(_GZIP)) == _GZIP
    return gzip.open(path, "rb") if is_gzip else path.open("rb")


def _lines(file: _File) -> Iterator[tuple[int, bytes | BadLine]]:
    """Yield lines with their numbers from 1, except empty ones; a read error becomes the last line."""
    number = 0
    try:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line
    except (OSError, EOFError, zlib.error) as error:
        yield number + 1, BadLine(number + 1, f"the file cannot be read from here on: {error}")


def _recording(number: int, line: bytes) -> Recording | BadLine:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadLine(number, f"not JSON: {error}")
    messages = record.get("messages") if isinstance(record, dict) else None
    if not isinstance(messages, list) or not messages:
        return BadLine(number, 'no conversation: an object with a list "messages" is needed')
    return Recording(str(record.get("id", f"line {number}")), number, _turns(messages))


def _turns(messages: Sequence[Any]) -> list[Turn]:
    """Cut messages before each human message; messages before the first one are a turn."""
    turns: list[Turn] = []
    for raw in messages:
        if not turns or (isinstance(raw, dict) and raw.get("role") == "user"):
            turns.append([])
        turns[-1].append(with_artifact(raw) if isinstance(raw, dict) else raw)
    return turns
