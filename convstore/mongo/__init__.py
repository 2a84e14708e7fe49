"""Every MongoDB command and every document shape of the store, and nothing else.

Floor 2. The rooms above call these classes; no other room contains an operator or imports a driver.
"""

from __future__ import annotations

__all__: list[str] = []
