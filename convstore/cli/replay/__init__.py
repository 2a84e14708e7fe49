"""The command ``convstore replay``: recorded conversations run through the store, with every promise asserted."""

from __future__ import annotations

__all__: list[str] = []
