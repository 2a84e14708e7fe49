"""The store: opens and sets up a database, lists and searches its conversations, ends them, and makes their handles.

Floor 6. It wires the services once, and gives itself to the handles as the host of the services.
"""

from __future__ import annotations

from convstore.store.handle import ConversationStore

__all__ = ["ConversationStore"]
