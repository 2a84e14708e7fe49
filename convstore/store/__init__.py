"""The store: opens and sets up a database, lists and searches its conversations, ends them, and makes their handles.

Floor 6. It creates the services once, and the `Host` that hands them to the handles.
"""

from __future__ import annotations

from convstore.store.handle import ConversationStore

__all__ = ["ConversationStore"]
