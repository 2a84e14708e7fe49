"""Integrations with frameworks, each in a module that needs the framework's extra.

Floor 7.
"""

from __future__ import annotations

__all__: list[str] = []
