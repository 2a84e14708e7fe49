"""The pages of the inspector: one module reads what one page shows.

Floor 7. Each is called with the request and a conversation that the request may see.
"""

from __future__ import annotations

__all__: list[str] = []
