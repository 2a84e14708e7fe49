"""Integration for Anthropic's Claude Agent SDK, the package claude-agent-sdk and the extra claude-agent.

`ConvstoreSessionStore` stores the transcripts of the SDK's sessions.
"""

from __future__ import annotations

from convstore.exceptions import MissingExtraError

try:
    import claude_agent_sdk  # noqa: F401 - the modules below need it
except ImportError as error:
    raise MissingExtraError(package="claude-agent-sdk", extra="claude-agent") from error

from convstore.ext.claude_agent.store import ConvstoreSessionStore

__all__ = ["ConvstoreSessionStore"]
