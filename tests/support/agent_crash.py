"""Runs of an agent that are killed; started by test_middleware_crash.

Each line of its input names a conversation, the event at which to die, and whether to save checkpoints. For each it
forks a process that asks the agent one question and dies by SIGKILL when that event comes: a command that is sent or
answered, a call of the model or of the tool that begins or ends, a checkpoint that is or was written. Then it prints
the exit code. Events are noted in a file before anything else, so that who looks later sees how far it came.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pymongo import AsyncMongoClient, monitoring
from scripted_agents import ScriptedModel, calls

from convstore import ConversationStore
from convstore.ext.langchain import ConversationMiddleware
from convstore.turns import held_lease

QUESTION = "How do bees tell the way?"
ANSWER = "By dancing."


class Events:
    """Notes what happens, and dies when it is time."""

    def __init__(self, path: Path | None = None, die_at: int | None = None) -> None:
        self.path, self.die_at, self.names = path, die_at, list[str]()

    def __call__(self, name: str) -> None:
        """Something happens."""
        self.names.append(name)
        if self.path:
            with self.path.open("a") as file:
                file.write(f"{name}\n")
        if self.die_at == len(self.names):
            os.kill(os.getpid(), signal.SIGKILL)


class Listener(monitoring.CommandListener):
    """Tells of the commands that write."""

    def __init__(self, events: Events) -> None:
        self.events = events

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """A command is about to be sent."""
        if event.command_name in ("insert", "update", "findAndModify"):
            self.events(f"{event.command_name} sent")

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Record the answer to a write."""
        if event.command_name in ("insert", "update", "findAndModify"):
            self.events(f"{event.command_name} answered")

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Ignore a command that failed."""


class FileSaver(InMemorySaver):
    """Checkpoints in a file, for a process that takes a run up."""

    def __init__(self, path: Path, events: Events) -> None:
        super().__init__()
        self.path, self.events = path, events
        if path.exists():
            storage, writes, blobs = pickle.loads(path.read_bytes())  # noqa: S301 - our own file
            for thread, spaces in storage.items():
                for space, held in spaces.items():
                    self.storage[thread][space].update(held)
            self.writes.update(writes)
            self.blobs.update(blobs)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        """Keep a checkpoint."""
        done = super().put(*args, **kwargs)
        self._save()
        self.events("checkpoint ends")
        return done

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        """Keep what a node wrote."""
        super().put_writes(*args, **kwargs)
        self._save()

    def _save(self) -> None:
        storage = {
            thread: {space: dict(held) for space, held in spaces.items()}
            for thread, spaces in self.storage.items()
        }
        part = self.path.with_suffix(".part")
        part.write_bytes(pickle.dumps((storage, dict(self.writes), dict(self.blobs))))
        part.replace(self.path)


def make_agent(store: ConversationStore, events: Events, saver: FileSaver | None) -> Any:
    """An agent whose model calls the tool and then answers, whichever process asks it."""

    @tool
    def search() -> str:
        """Search."""
        events("tool begins")
        events("tool ends")
        return "found"

    def reply(messages: list[BaseMessage]) -> AIMessage:
        events("model begins")
        events("model ends")
        if isinstance(messages[-1], HumanMessage) and messages[-1].text == QUESTION:
            return calls("search")
        return AIMessage(ANSWER)

    model = ScriptedModel(replies=[reply] * 9)
    return create_agent(
        model, [search], middleware=[ConversationMiddleware(store)], checkpointer=saver
    )


def question(text: str = QUESTION, id_: str = "q1") -> dict[str, Any]:
    """The input of a run."""
    return {"messages": [HumanMessage(text, id=id_)]}


def config_of(thread: str) -> dict[str, Any]:
    """The configuration of a run."""
    return {"configurable": {"user_id": "ada", "thread_id": thread}}


def paths_of(folder: Path, thread: str) -> tuple[Path, Path]:
    """Files of a conversation: its events, its checkpoints."""
    return folder / f"{thread}.events", folder / f"{thread}.checkpoints"


async def run(uri: str, database: str, folder: Path, task: dict[str, Any]) -> None:
    """Ask the question, and die."""
    noted, checkpoints = paths_of(folder, task["thread"])
    events = Events(noted, task["die_at"])
    async with AsyncMongoClient[dict[str, Any]](uri, event_listeners=[Listener(events)]) as client:
        store = ConversationStore(client[database])
        saver = FileSaver(checkpoints, events) if task["saves"] else None
        await make_agent(store, events, saver).ainvoke(question(), config_of(task["thread"]))
        await store.close()


def main(uri: str, database: str, folder: str) -> None:
    """Fork for each line, one after the other. Who takes a run up waits for its lease, so that is short."""
    held_lease.LEASE = timedelta(seconds=3)
    held_lease.RENEW_SECONDS = 0.9
    for line in sys.stdin:
        task = json.loads(line)
        if not (child := os.fork()):
            asyncio.run(run(uri, database, Path(folder), task))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
