"""What is kept in memory for the most recently used conversations, bounded in size over all of them.

Layer 4. All of it can be read again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Keeper"]

_Owner = TypeVar("_Owner")
_Kept = TypeVar("_Kept")


class Keeper(Generic[_Owner, _Kept]):
    """Keeps something for each owner; when there is no room, what was used least recently goes first."""

    def __init__(self, most: int) -> None:
        self._most, self.size = most, 0
        self._kept: OrderedDict[_Owner, tuple[_Kept, int]] = OrderedDict()

    def get(self, owner: _Owner) -> _Kept | None:
        """What is kept for an owner."""
        if owner not in self._kept:
            return None
        self._kept.move_to_end(owner)
        return self._kept[owner][0]

    def put(self, owner: _Owner, kept: _Kept, *, size: int) -> None:
        """Keep something in place of what was kept for an owner, unless it is larger than all the room."""
        self.drop(owner)
        if size > self._most:
            return
        self._kept[owner] = kept, size
        self.size += size
        while self.size > self._most:
            self.drop(next(iter(self._kept)))

    def drop(self, owner: _Owner) -> _Kept | None:
        """Give what was kept for an owner, and keep it no more."""
        kept, size = self._kept.pop(owner, (None, 0))
        self.size -= size
        return kept
