"""What is kept in memory for the most recently used conversations, bounded in size over all of them.

Layer 4. All of it can be read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["Keeper", "Room"]

_Owner = TypeVar("_Owner")
_Kept = TypeVar("_Kept")


class Room:
    """The room that several keepers share; when it is full, what was used least recently goes first."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self._drops: OrderedDict[Any, tuple[Callable[[], object], int]] = OrderedDict()

    def use(self, key: Any) -> None:
        """Note that something was used just now."""
        self._drops.move_to_end(key)

    def take(self, key: Any, size: int, drop: Callable[[], object]) -> None:
        """Take room for something, and call `drop` of others until there is enough."""
        self._drops[key] = drop, size
        self.size += size
        while self.size > self.most:
            next(iter(self._drops.values()))[0]()

    def free(self, key: Any) -> None:
        """Give room back."""
        self.size -= self._drops.pop(key)[1]


class Keeper(Generic[_Owner, _Kept]):
    """Keeps something for each owner, as long as there is room for it."""

    def __init__(self, room: Room) -> None:
        self._room, self.size = room, 0
        self._kept: dict[_Owner, tuple[_Kept, int]] = {}

    def get(self, owner: _Owner) -> _Kept | None:
        """What is kept for an owner."""
        if owner not in self._kept:
            return None
        self._room.use((id(self), owner))
        return self._kept[owner][0]

    def put(self, owner: _Owner, kept: _Kept, *, size: int) -> None:
        """Keep something in place of what was kept for an owner, unless it is larger than all the room."""
        self.drop(owner)
        if size > self._room.most:
            return
        self._kept[owner] = kept, size
        self.size += size
        self._room.take((id(self), owner), size, lambda: self.drop(owner))

    def drop(self, owner: _Owner) -> _Kept | None:
        """Give what was kept for an owner, and keep it no more."""
        if owner not in self._kept:
            return None
        kept, size = self._kept.pop(owner)
        self.size -= size
        self._room.free((id(self), owner))
        return kept
