"""What ties convstore to frameworks, each in a module of its own that needs the framework's extra.

Floor 7.
"""

from __future__ import annotations

__all__: list[str] = []
