"""Ends, forks, repairs or seals conversations in processes that are killed: ``python killed.py URI DATABASE < lines``.

Each line names a call, its user and a number: SIGKILL comes when so many commands that write were sent or answered.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from typing import Any

from pymongo import AsyncMongoClient, monitoring

from convstore import ConversationStore
from convstore.integration import host_of
from convstore.search import sealer


class Killer(monitoring.CommandListener):
    """Counts commands that write; odd numbers die before one, even ones after it."""

    def __init__(self, die_at: int) -> None:
        self.left = die_at

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """A command is about to be sent."""
        self._count(event)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Count a command that was answered."""
        self._count(event)

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Count a command that was refused."""
        self._count(event)

    def _count(self, event: Any) -> None:
        self.left -= event.command_name in ("insert", "update", "delete", "findAndModify")
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def run(uri: str, database: str, call: str, user: str, die_at: int) -> None:
    """End all conversations of a user, fork one for him, or repair or seal that of thread "t", with all segments."""
    async with AsyncMongoClient[dict[str, Any]](uri, event_listeners=[Killer(die_at)]) as client:
        store = ConversationStore(client[database])
        if call == "erase":
            await store.erase(user_id=user)
        elif call == "prune":
            await store.prune(older_than=timedelta(days=90), user_id=user)
        elif call == "repair":
            await store.verify(repair=True, user_id=user, thread_id="t")
        elif call == "fork":
            chat = store.conversation(user_id="parent", thread_id="t")
            await chat.fork(key="r", new_scope={"user_id": user, "thread_id": "t"})
        else:
            sealer._MERGED_AT_ONCE = 3
            services = await host_of(store).services()
            await services.sealer.seal((("user_id", user), ("thread_id", "t")))


def main(uri: str, database: str) -> None:
    """Fork for each line of the input, and print the exit code."""
    for line in sys.stdin:
        call, user, die_at = line.split()
        if not (child := os.fork()):
            asyncio.run(run(uri, database, call, user, int(die_at)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
