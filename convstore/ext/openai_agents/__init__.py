"""Integrations for OpenAI's Agents SDK, the extra openai-agents: a session of its runs, and tools of its agents."""

from __future__ import annotations

from convstore.exceptions import MissingExtraError

try:
    import agents  # noqa: F401 - the modules below need it
except ImportError as error:
    raise MissingExtraError(package="openai-agents", extra="openai-agents") from error

from convstore.ext.openai_agents.session import ConvstoreSession
from convstore.ext.openai_agents.tools import read_back_tools

__all__ = ["ConvstoreSession", "read_back_tools"]
