"""The store: sets up a database, creates handles of its conversations, and lists, searches and deletes conversations.

Floor 6. It creates the services once, and the `Host` that passes them to the handles.
"""

from __future__ import annotations

from convstore.store.handle import ConversationStore

__all__ = ["ConversationStore"]
