"""Which adapters of frameworks can be imported: a framework that is not installed leaves its own out."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

ADAPTERS = {
    "convstore.ext.claude_agent": "claude_agent_sdk",
    "convstore.ext.microsoft": "agent_framework",
    "convstore.ext.openai_agents": "agents",
    "convstore.ext.pydantic_ai": "pydantic_ai",
}
"""Each adapter with the package that it needs."""


def can_import(module: str) -> bool:
    """Return False for a module of an adapter whose framework is not installed."""
    package = next((ADAPTERS[adapter] for adapter in ADAPTERS if module.startswith(adapter)), None)
    return package is None or is_installed(package)


def is_installed(package: str) -> bool:
    """Return True for a package, not for a folder of tests that has its name."""
    found = find_spec(package)
    return found is not None and found.origin is not None


def package(name: str) -> Any:
    """Return a module of the extra `frameworks`; without it the test is skipped, unless CONVSTORE_FRAMEWORKS is set."""
    if os.environ.get("CONVSTORE_FRAMEWORKS"):
        return import_module(name)
    return pytest.importorskip(name)
