"""Read a table of an untrusted SQLite file, in time and memory that are bounded by the size of the file.

A file of some kilobytes can make SQLite compute rows without end: by a view, a computed column, or pages that refer to
each other in a cycle. So only a table with stored columns is read, without a sort, and no more data than a file of this
size can contain.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LEAST_STEPS = 1_000
_STEPS_AT_ONCE = 1_000
_STEPS_FOR_A_BYTE = 50
"""Steps of SQLite's virtual machine. A row takes about 20 steps, and at least a dozen bytes."""
_BYTES_OF_A_ROW = 8
"""Minimum size of a row in the file, for its lengths and types."""


class SQLiteTable:
    """A table of a file, open for reading.

    Raises:
        sqlite3.Error: The file is not a database with such a table. From a method: the file is damaged.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._name = '"' + name.replace('"', '""') + '"'
        # The write-ahead log has data that SQLite has not moved into the file yet.
        self._size = sum(
            part.stat().st_size for part in (path, Path(f"{path}-wal")) if part.exists()
        )
        self._steps = iter(range(_LEAST_STEPS + self._size * _STEPS_FOR_A_BYTE // _STEPS_AT_ONCE))
        self._left = self._size
        address = f"{path.absolute().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(address, uri=True, check_same_thread=False)
        try:
            self._connection.text_factory = _text
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._size)
            self._connection.set_progress_handler(self._is_over, _STEPS_AT_ONCE)
            self._check(name)
        except sqlite3.Error:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def rows(self, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the row id and some short columns of every row."""
        left = self._size
        for row in self._connection.execute(
            f"SELECT _rowid_, {', '.join(columns)} FROM {self._name}"  # noqa: S608
        ):
            left -= _bytes_of(row)
            _check_left(left)
            yield row

    def row(self, rowid: int, *columns: str) -> tuple[Any, ...]:
        """Return some columns of a row. Each row may be read only once, because its size is counted."""
        query = (
            f"SELECT {', '.join(columns)} FROM {self._name} "  # noqa: S608 - quoted
            "WHERE _rowid_ = ?"
        )
        row: tuple[Any, ...] | None = self._connection.execute(query, (rowid,)).fetchone()
        if row is None:
            raise sqlite3.DatabaseError(f"the row {rowid} cannot be found")
        self._left -= _bytes_of(row)
        _check_left(self._left)
        return row

    def _is_over(self) -> bool:
        """Return True after as many steps as a file of this size can need; SQLite then stops with an error."""
        return next(self._steps, None) is None

    def _check(self, name: str) -> None:
        query = "SELECT type, rootpage FROM sqlite_master WHERE lower(name) = lower(?)"
        found = self._connection.execute(query, (name,)).fetchall()
        if not any(kind == "table" and root for kind, root in found):  # a virtual table has no root
            raise sqlite3.DatabaseError(f"it has no table {name}")
        columns = self._connection.execute(f"PRAGMA table_xinfo({self._name})").fetchall()
        if any(hidden for *_, hidden in columns):
            raise sqlite3.DatabaseError(f"the table {name} has computed columns")


def _check_left(left: int) -> None:
    if left < 0:
        raise sqlite3.DatabaseError("its rows are larger than the file, so it is damaged")


def _bytes_of(row: tuple[Any, ...]) -> int:
    return _BYTES_OF_A_ROW + sum(len(value) for value in row if isinstance(value, str | bytes))


def _text(data: bytes) -> str | bytes:
    """Return a text; bytes that are not UTF-8 are unchanged, so that only their own row becomes a problem."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
