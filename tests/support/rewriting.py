"""Rewrites the assertions of all test modules once before the workers start.

pytest rewrites a module where it imports it, and keeps the result in `__pycache__`. In a fresh checkout each worker did
so for each module at the same time, which took 6 s of CPU in each. This only saves time: delete it if the functions of
pytest that it calls, which are private, change.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from quick_run import is_quick, is_slow_module


def rewrite_before_workers_start(config: pytest.Config) -> None:
    """Rewrite what the workers of a whole run will import, half of it in another process."""
    has_workers = not hasattr(config, "workerinput") and config.option.numprocesses
    if not has_workers or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    missing = [
        path
        for path in sorted(Path(__file__).parents[1].rglob("test_*.py"))
        if not _is_rewritten(path)
    ]
    if is_quick(config):
        missing = [path for path in missing if not is_slow_module(path)]
    child = os.fork()  # no thread runs yet
    if child == 0:
        try:
            _rewrite(missing[::2], config)
        finally:
            os._exit(0)
    _rewrite(missing[1::2], config)
    os.waitpid(child, 0)


def _rewrite(paths: list[Path], config: pytest.Config) -> None:
    state = config.stash[rewrite.assertstate_key]
    for path in paths:
        with contextlib.suppress(SyntaxError):  # the collection reports it
            source_hash, code = rewrite._rewrite_test(path, config)
            _cached(path).parent.mkdir(exist_ok=True)
            rewrite._write_pyc(state, code, source_hash, _cached(path))


def _cached(path: Path) -> Path:
    """Return the file in which pytest keeps a module with rewritten assertions."""
    return rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)


def _is_rewritten(path: Path) -> bool:
    """Return True if pytest will find a module in its cache."""
    return rewrite._read_pyc(path, _cached(path)) is not None
