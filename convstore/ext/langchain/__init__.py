"""Integrations that need the package langchain, the extra of the same name.

`ConversationMiddleware` attaches a store to an agent of ``create_agent``.
"""

from __future__ import annotations

from convstore.ext.langchain.middleware import ConversationMiddleware

__all__ = ["ConversationMiddleware"]
