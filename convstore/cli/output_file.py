"""Write the file of an export: whole or not at all.

Floor 8. ``export`` uses it.
"""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from convstore.exceptions import InvalidInputError
from convstore.values.addresses import without_addresses

__all__ = ["open_output"]


@contextmanager
def open_output(path: Path | None, *, force: bool) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that writes bytes; a file gets its name only on success, and replaces none without `force`."""
    name = without_addresses(str(path or "stdout"))
    try:
        if path is None:
            yield sys.stdout.buffer.write
            sys.stdout.buffer.flush()
        elif path.exists() and not force:
            raise InvalidInputError(f"{name} already exists; choose another file, or replace it with --force")
        else:
            with _whole_file(path) as write:
                yield write
    except OSError as error:
        raise InvalidInputError(f"{name} cannot be written: {error.strerror or error}") from error


@contextmanager
def _whole_file(path: Path) -> Iterator[Callable[[bytes], object]]:
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as raw:
            is_gzip = path.suffix == ".gz"
            # No name and date in the header: equal exports are equal files.
            file = cast(IO[bytes], gzip.GzipFile("", "wb", fileobj=raw, mtime=0)) if is_gzip else raw
            yield file.write
            if is_gzip:
                file.close()
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
