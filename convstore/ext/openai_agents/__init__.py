"""Integrations for OpenAI's Agents SDK, the package openai-agents and the extra of the same name.

`ConvstoreSession` is a session of its runs. `read_back_tools` are the tools by which an agent reads old results again.
"""

from __future__ import annotations

from convstore.ext.openai_agents.session import ConvstoreSession
from convstore.ext.openai_agents.tools import read_back_tools

__all__ = ["ConvstoreSession", "read_back_tools"]
