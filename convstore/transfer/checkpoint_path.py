"""Reads the path of a thread: the chain of parents of its newest checkpoint, and the state of each.

Checkpoints are read in pages through LangGraph's interface, because a saver may load a whole thread before it yields
the first checkpoint. Savers are synchronous or asynchronous, and the matching methods are called.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from convstore.exceptions import InvalidInputError
from convstore.integration import driver_errors
from convstore.transfer.states import Checkpoint, plain_state, rebuilt

_PAGE = 5
"""Number of checkpoints that are read at once. Each may contain the whole state of its thread."""


@dataclass(slots=True)
class CheckpointPath:
    """The path of one thread in the root namespace.

    Attributes:
        saver: A checkpointer.
        thread_id: The thread.
        channel: Key of the messages in the state.
        others: The parent of each checkpoint that is not on the path, by id.
        is_cut: True if a parent is missing, so that the checkpoints before it were deleted.
    """

    saver: Any
    thread_id: str
    channel: str
    others: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False

    @property
    def branches(self) -> int:
        """The number of other branches: of checkpoints outside the path that have no child."""
        return len(self.others.keys() - set(self.others.values()))

    async def states(self) -> AsyncGenerator[tuple[Checkpoint, list[Any]], None]:
        """Yield the checkpoints of the path with their messages, from the newest to the oldest."""
        waiting: list[Checkpoint] = []
        async with aclosing(self.checkpoints()) as checkpoints:
            async for checkpoint in checkpoints:
                if checkpoint.has_changes_only(self.channel):
                    waiting.append(checkpoint)
                    continue
                for rebuilt_state in await self._rebuilt(waiting, checkpoint):
                    yield rebuilt_state
                waiting = []
                yield checkpoint, plain_state(checkpoint.values.get(self.channel))
        for rebuilt_state in await self._rebuilt(waiting, None):
            yield rebuilt_state

    async def _rebuilt(
        self, checkpoints: list[Checkpoint], base: Checkpoint | None
    ) -> list[tuple[Checkpoint, list[Any]]]:
        """Return checkpoints that only store changes, with their messages.

        Args:
            checkpoints: The checkpoints, from the newest to the oldest.
            base: The checkpoint before them, which has the value of the channel; None at the beginning of the thread.
        """
        if not checkpoints:
            return []
        if base is None and self.is_cut:
            raise InvalidInputError(
                "its messages cannot be rebuilt: the checkpoints only store changes, "
                "and those before them were deleted"
            )
        found = await self._call(
            "get_delta_channel_history", config=checkpoints[0].config, channels=[self.channel]
        )
        before = [*checkpoints[1:], *([base] if base else [])]
        numbers = [
            len([write for write in each.writes if write[1] == self.channel]) for each in before
        ]
        if base is None:
            numbers.append(0)
        states = rebuilt(found[self.channel], numbers[::-1])
        return list(zip(checkpoints, reversed(states), strict=True))

    async def checkpoints(self) -> AsyncGenerator[Checkpoint, None]:
        """Yield the checkpoints of the path from the newest to the oldest."""
        wanted: str | None = None
        read: set[str] = set()
        async with aclosing(self._newest_first()) as checkpoints:
            async for checkpoint in checkpoints:
                if wanted in (None, checkpoint.id):
                    wanted = checkpoint.parent
                    read.add(checkpoint.id)
                    yield checkpoint
                else:
                    self.others[checkpoint.id] = checkpoint.parent
        # A parent may have a later id than its child if the clocks of two workers differ.
        while wanted and wanted not in read:
            found = await self._call(
                "get_tuple", {"configurable": self._configurable | {"checkpoint_id": wanted}}
            )
            if found is None:
                self.is_cut = True
                return
            checkpoint = _read(found)
            self.others.pop(wanted, None)
            read.add(wanted)
            wanted = checkpoint.parent
            yield checkpoint

    @property
    def _configurable(self) -> dict[str, str]:
        return {"thread_id": self.thread_id, "checkpoint_ns": ""}

    async def _newest_first(self) -> AsyncGenerator[Checkpoint, None]:
        """Yield the checkpoints of the root namespace by their ids, from the latest to the earliest."""
        before: Any = None
        while True:
            page = await self._page(before)
            for found in page:
                yield _read(found)
            if len(page) < _PAGE:
                return
            before = page[-1].config

    async def _page(self, before: Any) -> list[Any]:
        config = {"configurable": self._configurable}
        try:
            async with driver_errors():
                return [
                    found async for found in self.saver.alist(config, before=before, limit=_PAGE)
                ]
        except NotImplementedError:
            return await asyncio.to_thread(
                lambda: list(self.saver.list(config, before=before, limit=_PAGE))
            )

    async def _call(self, name: str, *values: Any, **options: Any) -> Any:
        """Call a method of the saver by its name; the asynchronous one if the saver implements it."""
        try:
            async with driver_errors():
                return await getattr(self.saver, f"a{name}")(*values, **options)
        except NotImplementedError:
            return await asyncio.to_thread(getattr(self.saver, name), *values, **options)


def _read(found: Any) -> Checkpoint:
    """Return the parts of a ``CheckpointTuple`` that an import reads."""
    checkpoint = found.checkpoint
    metadata: Mapping[str, Any] = found.metadata or {}
    parent = ((found.parent_config or {}).get("configurable") or {}).get("checkpoint_id")
    step = metadata.get("step")
    at = datetime.fromisoformat(checkpoint["ts"])
    return Checkpoint(
        id=str(found.config["configurable"]["checkpoint_id"]),
        parent=str(parent or ""),
        config=found.config,
        step=step if isinstance(step, int) else 0,
        at=at if at.tzinfo else at.replace(tzinfo=UTC),
        values=checkpoint.get("channel_values") or {},
        versions=checkpoint.get("channel_versions") or {},
        writes=found.pending_writes or [],
        metadata=metadata,
    )
