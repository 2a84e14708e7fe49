"""Integrations that need the package langchain, the extra of the same name.

`ConversationMiddleware` attaches a store to an agent of ``create_agent``. Without langchain only asking for it raises.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from convstore.exceptions import MissingExtraError

with suppress(MissingExtraError):
    from convstore.ext.langchain.middleware import ConversationMiddleware

__all__ = ["ConversationMiddleware"]


def __getattr__(name: str) -> Any:
    if name == "ConversationMiddleware":
        raise MissingExtraError(package="langchain", extra="langchain")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
