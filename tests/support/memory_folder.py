"""Start servers of tests with their data in memory: no test cuts the power, and syncing takes time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")  # noqa: S108 - each server's folder has a name of its own


@contextmanager
def data_in_memory() -> Iterator[None]:
    """Let temporary folders be made in memory, where the machine has such a folder."""
    with pytest.MonkeyPatch.context() as patch:
        if _MEMORY.is_dir():
            patch.setattr(tempfile, "tempdir", str(_MEMORY))
        yield
