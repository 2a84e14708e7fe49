"""One conversation as an agent backend uses it: the handle, its reading half, the whole log for imports and exports.

Floor 6. Each method checks its arguments and calls one of the services; the handle knows no store.
"""

from __future__ import annotations

from convstore.conversation.handle import Conversation

__all__ = ["Conversation"]
