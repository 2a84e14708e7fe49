"""A LangChain message as data: encoding, compression, tool calls, token counts and text.

Pure functions, floor 0. Every room above uses it; it imports only `values` and `exceptions`.
"""

from __future__ import annotations

__all__: list[str] = []
