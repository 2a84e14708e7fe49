"""Serve chat front ends from a conversation: pages, requests and streams for the AI SDK's `useChat` and for AG-UI."""

from __future__ import annotations

from convstore.ext.ui.messages import UIPage, ui_messages
from convstore.ext.ui.requests import UIRequest, read_request
from convstore.ext.ui.streams import HEADERS, resume_stream, ui_stream

__all__ = [
    "HEADERS",
    "UIPage",
    "UIRequest",
    "read_request",
    "resume_stream",
    "ui_messages",
    "ui_stream",
]
