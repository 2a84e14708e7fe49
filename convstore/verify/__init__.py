"""The work of `store.verify`: compare what is stored with the rules that made it, and repair what can be derived.

Floor 4. One module for each thing that is checked; `verifier` walks the database.
"""

from __future__ import annotations

__all__: list[str] = []
