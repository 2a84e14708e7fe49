"""Integrations for OpenAI's Agents SDK, the extra openai-agents: a session of its runs, and tools of its agents."""

from __future__ import annotations

from convstore.ext.openai_agents.session import ConvstoreSession
from convstore.ext.openai_agents.tools import read_back_tools

__all__ = ["ConvstoreSession", "read_back_tools"]
