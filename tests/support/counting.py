"""Count round trips, documents and bytes in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import bson
from fixture_types import Client
from pymongo import monitoring

from convstore import Conversation, ConversationStore
from convstore.runtime.clock import Clock

STANDING = Clock(
    monotonic=lambda: 100.0, wall=lambda: 0.0, call_later=lambda _seconds, _callback: None
)
"""A clock that stands still: however slow the machine is, no head is read again, nothing is swept, no timer rings."""

_COUNTING = ContextVar("counting", default=False)

DATA = ("find", "getMore", "insert", "update", "delete", "findAndModify", "aggregate")


class Commands(monitoring.CommandListener):
    """Keeps the data commands of a client, with the size of their replies."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was counted."""
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.own: list[tuple[str, dict[str, Any]]] = []
        self.bytes = self.documents = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Keep what is sent."""
        if event.command_name in DATA:
            self.sent.append((event.command_name, dict(event.command)))
            if _COUNTING.get():
                self.own.append(self.sent[-1])

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Count what comes back."""
        if event.command_name in DATA:
            reply = {key: value for key, value in event.reply.items() if not key.startswith("$")}
            self.bytes += len(bson.encode(reply))
            cursor = reply.get("cursor", {})
            self.documents += len(cursor.get("firstBatch", cursor.get("nextBatch", ())))

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """A refused insert is counted when it starts."""

    @property
    def names(self) -> list[str]:
        """Names of the commands, sorted."""
        return sorted(name for name, _ in self.sent)

    @contextmanager
    def counted(self) -> Iterator[Commands]:
        """Begin to count; `own` leaves out work in the background, which has a context of its own."""
        self.reset()
        token = _COUNTING.set(True)
        yield self
        _COUNTING.reset(token)


def cold(client: Client, name: str, chat: Conversation) -> Conversation:
    """The conversation as another process has it, whose store is set up."""
    store = ConversationStore(client[name], clock=STANDING)
    store._host.schema.is_ready = True
    return store.conversation(**chat.scope)
