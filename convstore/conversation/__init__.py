"""One conversation as a backend uses it: the handle, and the whole log for imports and exports.

Floor 6. Each method checks its arguments and calls one of the `services`, which a store wires; the handle knows no
store.
"""

from __future__ import annotations

from convstore.conversation.handle import Conversation

__all__ = ["Conversation"]
