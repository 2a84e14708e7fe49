"""kill -9 between each pair of steps of an agent: nothing answered is lost, nothing doubled, the next run goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_crash import (
    ANSWER,
    QUESTION,
    Events,
    FileSaver,
    config_of,
    make_agent,
    paths_of,
    question,
)
from fixture_types import Client
from langchain_core.messages import BaseMessage
from properties import parts
from scripted_agents import kinds, log_of

from convstore import ConversationStore

WHOLE = [("human", QUESTION), ("ai", ""), ("tool", "found"), ("ai", ANSWER)]
MOST_EVENTS = 80

pytestmark = pytest.mark.slow


@pytest.fixture
async def database(pymongo_client: Client, database_name: str) -> Any:
    """A database that is set up."""
    store = ConversationStore(pymongo_client[database_name])
    await store.setup()
    return pymongo_client[database_name]


class Crash:
    """A conversation whose run was killed."""

    def __init__(self, database: Any, folder: Path, thread: str, *, saves: bool) -> None:
        self.database, self.thread = database, thread
        noted, self.checkpoints = paths_of(folder, thread)
        self.events = noted.read_text().splitlines()
        self.saves = saves

    async def log(self) -> list[BaseMessage]:
        """Return the log of this conversation."""
        store = ConversationStore(self.database)
        return await log_of(store.conversation(user_id="ada", thread_id=self.thread))

    async def go_on(self, given: Any) -> tuple[list[BaseMessage], list[str]]:
        """Run the agent on another worker: its messages, and the calls of model and tool."""
        events = Events()
        saver = FileSaver(self.checkpoints, Events()) if self.saves else None
        agent = make_agent(ConversationStore(self.database), events, saver)
        result = await agent.ainvoke(given, config_of(self.thread))
        return result["messages"], [
            name for name in events.names if name in ("model begins", "tool begins")
        ]


@pytest.fixture(scope="module")
def program(
    server_uri: str, database_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The program that forks runs, and its folder: one for all tests, as LangChain takes seconds to import."""
    folder = tmp_path_factory.mktemp("runs")
    script = Path(__file__).parents[1] / "support" / "agent_crash.py"
    command = [sys.executable, str(script), server_uri, database_name, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8") as process:  # noqa: S603 - our own code
        yield process, folder


@pytest.fixture
def crashes(program: tuple[subprocess.Popen[str], Path], database: Any) -> Any:
    """Kills runs at a part of their events."""
    process, folder = program

    def crash(kind: str, part: slice, *, saves: bool) -> list[Crash]:
        first = run([(f"{kind}-0", None)], saves=saves)[0]
        assert 10 < len(first.events) < MOST_EVENTS
        points = range(1, len(first.events) + 1)[part]
        places = [(f"{kind}-{die_at}", die_at) for die_at in points]
        return run(places, saves=saves)

    def run(tasks: Sequence[tuple[str, int | None]], *, saves: bool) -> list[Crash]:
        codes = [ended(thread, die_at, saves=saves) for thread, die_at in tasks]
        # Which command comes when is not the same each time, so the last of them may not come at all.
        assert all(code in (0, -signal.SIGKILL) for code in codes), codes
        assert sum(code != 0 for code in codes) >= len([task for task in tasks if task[1]]) - 3
        return [Crash(database, folder, thread, saves=saves) for thread, _ in tasks]

    def ended(thread: str, die_at: int | None, *, saves: bool) -> int:
        assert process.stdin
        assert process.stdout
        task = {"thread": thread, "die_at": die_at, "saves": saves}
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    return crash


@pytest.mark.parametrize("part", parts(6))
@pytest.mark.parametrize(("kind", "saves"), [("again", False), ("again", True), ("resumed", True)])
async def test_a_run_that_was_killed_is_taken_up(
    crashes: Any, kind: str, saves: bool, part: slice
) -> None:
    """Asked again, or by `ainvoke(None)` from its checkpoint: nothing that log or checkpoint have is done again."""
    for crash in crashes(f"{kind}-{saves}-{part.start}", part, saves=saves):
        before, where = await crash.log(), crash.events
        is_resumed = kind == "resumed" and "checkpoint ends" in where
        messages, done = await crash.go_on(None if is_resumed else question())
        after = await crash.log()
        assert kinds(after) == WHOLE, where
        assert after[: len(before)] == before, where
        assert messages == after, where
        answered = [message.type for message in before]
        left = 2 - answered.count("ai"), 1 - answered.count("tool")
        made = done.count("model begins"), done.count("tool begins")
        assert (made[0] <= left[0] and made[1] <= left[1]) if saves else made == left, where
        if not saves:
            await crash.go_on(question("And wasps?", "q2"))
            assert kinds(await crash.log()) == [*WHOLE, ("human", "And wasps?"), ("ai", ANSWER)], (
                where
            )


@pytest.mark.parametrize("part", parts(8))
@pytest.mark.parametrize("saves", [False, True], ids=["no checkpointer", "checkpointer"])
async def test_another_question_goes_on_from_what_is_there(
    crashes: Any, saves: bool, part: slice
) -> None:
    """After a crash another question is answered: the log keeps its messages and has no message twice."""
    for crash in crashes(f"other-{saves}-{part.start}", part, saves=saves):
        before, where = await crash.log(), crash.events
        messages, _ = await crash.go_on(question("And wasps?", "q2"))
        after = await crash.log()
        assert after[: len(before)] == before, where
        assert kinds(after)[-2:] == [("human", "And wasps?"), ("ai", ANSWER)], where
        assert kinds(messages)[-2:] == kinds(after)[-2:], where
        assert kinds(after)[:-2] == WHOLE[: len(after) - 2], where
        assert len({message.id for message in after}) == len(after), where
