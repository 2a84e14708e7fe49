"""Serve chat front ends from a conversation: pages of messages for the AI SDK's `useChat` and for AG-UI clients."""

from __future__ import annotations

from convstore.ext.ui.messages import UIPage, ui_messages

__all__ = ["UIPage", "ui_messages"]
