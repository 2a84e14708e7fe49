"""Tests of the frameworks run with the slow ones, where the framework's own package is installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from adapters import is_installed
from quick_run import is_quick

PACKAGES = {
    "claude_agent": "claude_agent_sdk",
    "microsoft": "agent_framework",
    "openai_agents": "agents",
    "pydantic_ai": "pydantic_ai",
    "test_answers_of_doors.py": "agent_framework",
    "test_deleted_elsewhere.py": "agent_framework",
    "test_matrix.py": "pydantic_ai",
    "test_wrong_stores.py": "agent_framework",
    "test_wrong_types.py": "agent_framework",
    "ui": "ag_ui",
}
"""The package that the tests in each folder or file need; those of the files need all of them."""


@pytest.fixture(autouse=True)
def _quick_memory(quick_memory: None) -> None:
    """Let databases in memory be quick: most tests of this folder are on one."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of frameworks if no slow tests are asked for; their import alone would take seconds.

    With CONVSTORE_FRAMEWORKS set, a missing package is an error.
    """
    package = PACKAGES.get(collection_path.name)
    if package is None:
        return None
    if is_quick(config):
        return True
    if is_installed(package) or os.environ.get("CONVSTORE_FRAMEWORKS"):
        return None
    print(  # noqa: T201
        f"left out: the tests in {collection_path.name} need {package}: pip install -e '.[frameworks]'"
    )
    return True
