"""Three workers answer 30 conversations; users ask twice, leave, stop and decide; workers are killed and replaced."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import turn_worker
from turn_worker import LEASE_SECONDS, question

from convstore import Conversation, ConversationStore
from convstore.messages.tool_calls import has_calls

pytestmark = pytest.mark.slow

SECONDS, CONVERSATIONS, WORKERS = 25.0, 30, 3
_SETTLE_SECONDS = 30.0
_PROGRAM = Path(turn_worker.__file__)


class WorkerProcess:
    """A worker, and the requests that it has not answered."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments, self._waiting = arguments, dict[int, asyncio.Future[str]]()
        self.process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]
        self._is_running = False

    async def start(self) -> None:
        """Start it."""
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, str(_PROGRAM), *self._arguments, stdin=pipe, stdout=pipe
        )
        self._reading, self._is_running = asyncio.create_task(self._read()), True

    async def _read(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set_result(answer["state"])

    async def request(self, id_: int, **values: Any) -> str:
        """Return the outcome of a request; "killed" if there is none."""
        if not self._is_running:
            return "killed"
        assert self.process.stdin
        waiting = self._waiting[id_] = asyncio.get_running_loop().create_future()
        self.process.stdin.write(json.dumps({"id": id_, "cut": 0, "verdict": "", **values}).encode() + b"\n")
        return await waiting

    async def end(self, *, kill: bool) -> None:
        """End it by SIGKILL, or let it come to its end."""
        assert self.process.stdin
        self._is_running = False
        if kill:
            self.process.kill()
        self.process.stdin.close()
        await self.process.wait()
        await self._reading
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result("killed")
        self._waiting.clear()


class Crowd:
    """Users of all conversations.

    Attributes:
        turns: Turns in order, by thread.
        stopped: Turns that somebody asked to stop.
        drafts: Drafts that a reader saw, with their turns.
    """

    def __init__(self, store: ConversationStore, workers: list[WorkerProcess], dice: random.Random) -> None:
        self.store, self.workers, self.dice = store, workers, dice
        self.ids, self.is_over = itertools.count(), False
        self.turns = dict[str, list[str]]()
        self.stopped, self.drafts, self.states = set[str](), list[tuple[str, str]](), Counter[str]()

    async def run(self) -> None:
        """Ask until the time is over, then until every question has its answer."""
        users = asyncio.gather(*(self._use(f"t{number}") for number in range(CONVERSATIONS)))
        faults = asyncio.create_task(self._kill())
        async with asyncio.timeout(SECONDS + _SETTLE_SECONDS):
            await asyncio.sleep(SECONDS)
            self.is_over = True
            await faults
            await users

    async def _kill(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.dice.uniform(1, 3))
            worker = self.dice.choice(self.workers)
            await worker.end(kill=True)
            await worker.start()

    async def _use(self, thread: str) -> None:
        chat = self.store.conversation(user_id="crowd", thread_id=thread)
        for number in itertools.count():
            if self.is_over:
                return
            turn = f"{thread}-{number}"
            self.turns.setdefault(thread, []).append(turn)
            while not await self._try(chat, turn):
                pass

    async def _try(self, chat: Conversation, turn: str) -> bool:
        """Ask twice at once, and do what a user may do meanwhile; return True if the turn is finished."""
        await asyncio.sleep(0.1)
        both = self.dice.sample(self.workers, 2)
        asked = [asyncio.ensure_future(self._request(turn, worker, "ask")) for worker in both]
        if self.dice.random() < 0.1 and not self.is_over:
            await asyncio.sleep(self.dice.uniform(0, 0.5))
            self.stopped.add(turn)
            await self._request(turn, self.dice.choice(self.workers), "stop")
        states = set(await asyncio.gather(*asked))
        if (found := await chat.get_turn(turn)) and found.draft:
            self.drafts.append((turn, found.draft))
        if "waiting" in states:
            verdict = self.dice.choice(("approve", "reject"))
            await asyncio.gather(*(self._request(turn, worker, "decide", verdict=verdict) for worker in both))
        return "finished" in states

    async def _request(self, turn: str, worker: WorkerProcess, do: str, **values: Any) -> str:
        cut = self.dice.uniform(0.01, 1) if do == "ask" and self.dice.random() < 0.3 and not self.is_over else 0
        thread = turn.partition("-")[0]
        state = await worker.request(next(self.ids), do=do, turn=turn, thread=thread, cut=cut, **values)
        self.states[f"{do}: {state}"] += 1
        return state


def _notes(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of all journals but those in which their worker was killed."""
    found = list[dict[str, Any]]()
    for path in folder.glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


async def _check_log(crowd: Crowd, thread: str, acknowledged: set[str]) -> list[str]:
    """Each question once and in order, each with one answer, which is its own; each message once."""
    chat, problems = crowd.store.conversation(user_id="crowd", thread_id=thread), list[str]()
    ids = [str(message.id) async for message in chat.messages()]
    problems += [f"{id_} is in the log {times} times" for id_, times in Counter(ids).items() if times > 1]
    acknowledged -= set(ids)
    turns = [turn async for turn in chat.turns()]
    if [turn.turn_id for turn in turns] != crowd.turns[thread]:
        problems.append(f"{thread}: {[turn.turn_id for turn in turns]}, not {crowd.turns[thread]}")
    for turn in turns:
        answers = [one.text for one in turn.messages if one.type == "ai" and not has_calls(one)]
        least = 0 if turn.turn_id in crowd.stopped else 1
        if not turn.is_finished or not least <= len(answers) <= 1 or turn.messages[0].text != question(turn.turn_id):
            problems.append(f"{turn.turn_id} has {answers}")
        problems += [f"{turn.turn_id} has {text!r}" for text in answers if text.split()[0] != turn.turn_id]
    return problems


def _check_drafts(drafts: list[tuple[str, str]], notes: list[dict[str, Any]]) -> list[str]:
    """Each draft is the beginning of what a worker had yielded of one reply."""
    said = dict[tuple[str, str], str]()
    for note in notes:
        if note["what"] == "yielded":
            key = note["turn"], note["attempt"]
            said[key] = said.get(key, "") + note["text"]
    drafts = [*drafts, *((note["turn"], note["text"]) for note in notes if note["what"] == "draft")]
    assert len(drafts) > 10, "no draft was seen"
    return [f"{turn}: {text}" for turn, text in drafts if not said[turn, text.split()[1]].startswith(text)]


@pytest.fixture
async def crowd(server_uri: str, own_database: Any, tmp_path: Path) -> AsyncIterator[Crowd]:
    """Users, and the workers that they ask."""
    store = ConversationStore(own_database)
    await store.setup()
    journals = [str(tmp_path / f"{number}.jsonl") for number in range(WORKERS)]
    workers = [WorkerProcess([server_uri, own_database.name, journal]) for journal in journals]
    for worker in workers:
        await worker.start()
    yield Crowd(store, workers, random.Random())
    for worker in workers:
        await worker.end(kill=True)
    await store.close()


async def test_each_question_is_answered_once(crowd: Crowd, own_database: Any, tmp_path: Path) -> None:
    """Whatever is killed, cut, stopped and asked twice; nothing acknowledged is lost, and no lease is left."""
    await crowd.run()
    now = (await own_database.client.admin.command("hello"))["localTime"]
    until = [state["turn"]["until"] async for state in own_database["log"].find({"turn": {"$exists": True}})]
    assert all(one <= now + timedelta(seconds=LEASE_SECONDS) for one in until), until
    notes = _notes(tmp_path)
    acknowledged = {id_ for note in notes if note["what"] == "acknowledged" for id_ in note["ids"]}
    assert len(acknowledged) > 100, f"nobody worked: {crowd.states}"
    problems = [note["problem"] for note in notes if note["what"] == "wrong"] + _check_drafts(crowd.drafts, notes)
    for thread in crowd.turns:
        problems += await _check_log(crowd, thread, acknowledged)
    assert (problems, acknowledged) == ([], set()), crowd.states
    report = await crowd.store.verify(user_id="crowd")
    assert report.ok, report.findings
