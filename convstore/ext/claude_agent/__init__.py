"""Integration for Anthropic's Claude Agent SDK, the package claude-agent-sdk and the extra claude-agent.

`ConvstoreSessionStore` is a store for the transcripts of its sessions.
"""

from __future__ import annotations

from convstore.ext.claude_agent.store import ConvstoreSessionStore

__all__ = ["ConvstoreSessionStore"]
