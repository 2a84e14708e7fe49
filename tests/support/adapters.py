"""Which adapters of frameworks can be imported: a framework that is not installed leaves its own out."""

from __future__ import annotations

from importlib.util import find_spec

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
    return package is None or find_spec(package) is not None
