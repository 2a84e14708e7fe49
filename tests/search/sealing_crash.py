"""Seals one conversation, and dies by SIGKILL when its n-th command that writes is about to be sent, or was answered.

Started by test_sealing_crash.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from pymongo import AsyncMongoClient, monitoring

from convstore import ConversationStore
from convstore.integration import host_of
from convstore.search import sealer

WRITES = ("insert", "update", "delete", "findAndModify")


class Killer(monitoring.CommandListener):
    """Counts the commands that write; odd numbers die before one, even ones after it."""

    def __init__(self, die_at: int) -> None:
        self.left = die_at

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """A command is about to be sent."""
        self._count(event)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """It was answered."""
        self._count(event)

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """It was refused."""
        self._count(event)

    def _count(self, event: Any) -> None:
        self.left -= event.command_name in WRITES
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(uri: str, database: str, user: str, die_at: str) -> None:
    """Seal all that is not sealed, together with the segments before it."""
    sealer._MERGED_AT_ONCE = 3
    async with AsyncMongoClient[dict[str, Any]](uri, event_listeners=[Killer(int(die_at))]) as client:
        services = await host_of(ConversationStore(client[database])).services()
        assert services.sealer is not None
        await services.sealer.seal((("user_id", user), ("thread_id", "t")))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
