"""An erasure or a policy that is killed; started by test_retention.

It dies by SIGKILL when its n-th command that writes is about to be sent.
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


class Killer(monitoring.CommandListener):
    """Counts the commands that write."""

    def __init__(self, die_at: int) -> None:
        self.left = die_at

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """A command is about to be sent."""
        if event.command_name in ("insert", "update", "delete", "findAndModify"):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """It was answered."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """It was refused."""


async def run(uri: str, database: str, call: str, user: str, die_at: int) -> None:
    """End all conversations of a user."""
    async with AsyncMongoClient[dict[str, Any]](uri, event_listeners=[Killer(die_at)]) as client:
        store = ConversationStore(client[database])
        if call == "erase":
            await store.erase(user_id=user)
        else:
            await store.prune(older_than=timedelta(days=90), user_id=user)


def main(uri: str, database: str) -> None:
    """Fork for each line of the input: the call, the user, the command to die at."""
    for line in sys.stdin:
        call, user, die_at = line.split()
        if not (child := os.fork()):
            asyncio.run(run(uri, database, call, user, int(die_at)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
