"""Sources in tool results: detection, numbering, citations, and the stub that replaces a result in a view.

Pure functions, floor 1, on `messages`.
"""

from __future__ import annotations

__all__: list[str] = []
