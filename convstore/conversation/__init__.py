"""The handle of one conversation for backends, and its whole log for imports and exports.

Floor 6. Each method checks its arguments and calls one of the `services`, which a store wires. The handle does not
import the store.
"""

from __future__ import annotations

from convstore.conversation.handle import Conversation

__all__ = ["Conversation"]
