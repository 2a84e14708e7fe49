"""The command ``convstore demo``: a small agent asked three questions about a corpus of its own."""

from __future__ import annotations

__all__: list[str] = []
