"""200 users of two uvicorn workers: they ask twice, leave, stop, decide, edit, ask for other answers, and switch back.

Meanwhile workers are killed at random and replaced. No check depends on speed: at the end each user waits for the
answer to the question that was asked last.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import turn_worker
from langchain_core.messages import BaseMessage
from turn_worker import LEASE_SECONDS, goes_on, question

from convstore import Conversation, ConversationStore
from convstore.exceptions import StoreUnavailableError
from convstore.messages.tool_calls import calls_of
from convstore.types import Turn

pytestmark = pytest.mark.slow

SECONDS, USERS, WORKERS = 10.0, 200, 2
_SETTLE_SECONDS, _PATIENCE = 240.0, 90.0
_PAUSE, _LEAVE, _STOP, _CHANGE, _EDIT = 5.0, 0.25, 0.1, 0.5, 0.3
_NOTICED = 2.0
_Result = TypeVar("_Result")
_PROGRAM = Path(turn_worker.__file__)


class WorkerProcess:
    """A worker on a socket of its own, which stays when the worker is killed and another one replaces it."""

    _numbers = itertools.count()

    def __init__(self, uri: str, database: str, journals: Path) -> None:
        self._arguments, self._journals = [uri, database], journals
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2 * USERS)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Start it."""
        listening, journal = self._socket.fileno(), self._journals / f"{next(self._numbers)}.jsonl"
        arguments = [str(_PROGRAM), *self._arguments, str(journal), str(listening)]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, pass_fds=[listening]
        )

    async def replace(self) -> None:
        """Kill it, and start another one."""
        self.process.kill()
        await self.process.wait()
        await self.start()

    async def end(self) -> None:
        """Let it come to its end; kill it if it does not."""
        if self.process.returncode is None:
            self.process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), _PATIENCE)
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self._socket.close()


class User:
    """The user of one conversation.

    Attributes:
        turns: Turns that are shown, in order.
        edits: Turns that the user asked instead of others, with these.
        finished: Variants whose answer was finished, by turn; the first one has the turn's id.
        active: The variant that is shown, by turn.
        stopped: Variants that the user asked to stop.
        shown: Answers that were read to their end, with their variants.
        drafts: Drafts that a page showed.
        states: How often each request ended in which way.
    """

    def __init__(
        self, thread: str, chat: Conversation, http: httpx.AsyncClient, workers: list[WorkerProcess]
    ) -> None:
        self.thread, self.chat, self._http, self._workers = thread, chat, http, workers
        self._dice, self.is_over = random.Random(), False
        self.turns, self.edits = list[str](), dict[str, str]()
        self.finished, self.active = dict[str, list[str]](), dict[str, str]()
        self.stopped, self.shown, self.drafts = set[str](), set[tuple[str, str]](), list[str]()
        self.states = Counter[str]()

    async def run(self) -> None:
        """Ask one question after the other until the time is over."""
        await self._pause(1)
        for number in itertools.count():
            turn = f"{self.thread}-{number}"
            self.turns.append(turn)
            await self._finish(turn, turn)
            if not (number and self.is_over):
                await self._change_answers()
                await self._edit()
            if not self.is_over:
                await self._pause(_PAUSE)
            if self.is_over:
                return

    async def _change_answers(self) -> None:
        """Perhaps ask for another answer, and for one to the turn before, which hides the last turn for a while."""
        if self._dice.random() < _CHANGE:
            turn = self.turns[-1]
            await self._finish(turn, f"{turn}-again")
            await self._switch(turn, self._dice.choice(self.finished[turn]))
        if len(self.turns) > 1 and self._dice.random() < _CHANGE:
            turn = self.turns[-2]
            before = self.active[turn]
            await self._finish(turn, f"{turn}-late")
            await self._switch(turn, before)

    async def _edit(self) -> None:
        """Perhaps ask something else instead of one of the last two questions, and perhaps go back to that."""
        if self._dice.random() >= _EDIT:
            return
        replaced = self._dice.choice(self.turns[-2:])
        before, edit = self.active[replaced], f"{replaced}e{len(self.edits)}"
        self.edits[edit] = replaced
        await self._finish(edit, edit)
        if (
            self.active[edit] == edit
            and replaced == self.turns[-1]
            and self._dice.random() < _CHANGE
        ):
            self.turns[-1] = edit
        else:
            await self._switch(replaced, before)

    async def _pause(self, most: float) -> None:
        await asyncio.sleep(self._dice.uniform(0, most))

    async def _finish(self, turn: str, variant: str) -> None:
        """Ask for an answer until it is there; it is shown then, unless it was stopped before it said anything."""
        wait = 0.1
        while not await self._try(turn, variant):
            await asyncio.sleep(self._dice.uniform(0, wait))
            wait = min(2 * wait, 2)
        self.active[turn] = await self._shown(turn)
        if variant not in self.stopped:
            assert self.active[turn] == variant
        if self.active[turn] == variant:
            self.finished.setdefault(turn, []).append(variant)

    async def _shown(self, turn: str) -> str:
        """Return the variant of a turn that is shown."""
        variants = await self._read(partial(self.chat.variants, turn))
        [shown] = [variant.variant_id for variant in variants if variant.is_active]
        return shown

    async def _read(self, read: Callable[[], Awaitable[_Result]]) -> _Result:
        """Read from the store; again for `_PATIENCE` if the machine is too busy to answer in time."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return await read()
            except StoreUnavailableError:
                if time.monotonic() >= until:
                    raise

    async def _try(self, turn: str, variant: str) -> bool:
        """Ask twice at once, and do what a user may do meanwhile; return True if the answer is finished."""
        asked = [
            asyncio.ensure_future(self._ask(turn, variant, worker)) for worker in self._workers
        ]
        if goes_on(variant) or (self._dice.random() < _STOP and not self.is_over):
            await self._stop(turn, variant, asked)
        states = set(await asyncio.gather(*asked))
        if "finished" not in states:
            await self._note_drafts(turn)
        if "waiting" in states:
            verdict = self._dice.choice(("approve", "reject"))
            await self._twice(turn, "decide", variant=variant, verdict=verdict)
        return "finished" in states

    async def _note_drafts(self, turn: str) -> None:
        """Note the drafts that a page would show."""
        found = await self._read(partial(self.chat.get_turn, self.edits.get(turn, turn)))
        if found:
            states = (found, found.pending)
            self.drafts += [state.draft for state in states if state and state.draft]

    async def _stop(self, turn: str, variant: str, asked: list[asyncio.Future[str]]) -> None:
        """Ask to stop; for an answer without an end, until nobody gives it."""
        self.stopped.add(variant)
        while True:
            await self._pause(0.5)
            await self._request(turn, "stop")
            if not goes_on(variant) or all(future.done() for future in asked):
                return

    async def _switch(self, turn: str, variant: str) -> None:
        """Show a variant."""
        while "switched" not in await self._twice(turn, "switch", variant=variant):
            await self._pause(0.5)
        self.active[turn] = await self._shown(turn)
        assert self.active[turn] == variant

    async def _ask(self, turn: str, variant: str, worker: WorkerProcess) -> str:
        """Return the state of the turn, which the last line of an answer says; the user may leave before."""
        do = "edit" if variant in self.edits else "ask" if variant == turn else "regenerate"
        params = {"instead_of": self.edits[turn]} if do == "edit" else {"variant": variant}
        leaves = self._dice.random() < _LEAVE and not self.is_over
        try:
            async with asyncio.timeout(self._dice.uniform(0.01, 1) if leaves else None):
                text, _, state = (await self._post(worker, turn, do, **params)).rpartition("\n")
        except TimeoutError:
            text, state = "", "left"
        if state == "finished" and text:
            self.shown.add((variant, text))
        self.states[f"{do}: {state}"] += 1
        return state

    async def _twice(self, turn: str, do: str, **params: str) -> list[str]:
        """Send a request to all workers at once."""
        return await asyncio.gather(
            *(self._request(turn, do, worker, **params) for worker in self._workers)
        )

    async def _request(
        self, turn: str, do: str, worker: WorkerProcess | None = None, **params: str
    ) -> str:
        state = await self._post(worker or self._dice.choice(self._workers), turn, do, **params)
        self.states[f"{do}: {state}"] += 1
        return state

    async def _post(self, worker: WorkerProcess, turn: str, do: str, **params: str) -> str:
        """Return the body of a response; "killed" if the worker was."""
        try:
            response = await self._http.post(f"{worker.url}/{turn}/{do}", params=params)
        except httpx.TransportError:
            return "killed"
        assert response.status_code in {200, 409}, f"{do} {turn} {params}: {response.status_code}"
        return response.text


class Crowd:
    """All users, the workers that they ask, and what kills these.

    Attributes:
        store: A store of no worker.
        users: The users.
        kills: Number of workers that were killed.
    """

    def __init__(
        self, store: ConversationStore, http: httpx.AsyncClient, workers: list[WorkerProcess]
    ) -> None:
        self.store, self._http, self._workers, self.kills = store, http, workers, 0
        chats = {
            f"t{number}": store.conversation(user_id="crowd", thread_id=f"t{number}")
            for number in range(USERS)
        }
        self.users = [User(thread, chat, http, workers) for thread, chat in chats.items()]

    async def run(self) -> list[str]:
        """Let them ask until the time is over and every question has its answer; return what went wrong."""
        for worker in self._workers:
            await self._ready(worker)
        asking = [asyncio.create_task(user.run()) for user in self.users]
        killing = asyncio.create_task(self._kill())
        await asyncio.wait(asking, timeout=SECONDS)
        for user in self.users:
            user.is_over = True
        await killing
        _, pending = await asyncio.wait(asking, timeout=_SETTLE_SECONDS)
        for task in pending:
            task.cancel()
        ended = zip(self.users, await asyncio.gather(*asking, return_exceptions=True), strict=True)
        for worker in self._workers:
            await worker.end()
        return [f"{user.thread}: {error!r} after {user.states}" for user, error in ended if error]

    async def _kill(self) -> None:
        for worker in itertools.cycle(self._workers):
            await asyncio.sleep(random.uniform(1, 4))
            if self.users[0].is_over:
                return
            await worker.replace()
            self.kills += 1
            await self._ready(worker)

    async def _ready(self, worker: WorkerProcess) -> None:
        """Wait until a worker answers."""
        async with asyncio.timeout(_PATIENCE):
            await self._http.get(worker.url)

    @property
    def states(self) -> Counter[str]:
        """Return how often each request ended in each way."""
        return sum((user.states for user in self.users), Counter[str]())


def _notes(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of all journals, by kind; a killed worker may have left half a line."""
    found = dict[str, list[dict[str, Any]]]()
    for path in folder.glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                note = json.loads(line)
            except ValueError:
                continue
            found.setdefault(note["what"], []).append(note)
    return found


def _answers(messages: Iterable[BaseMessage]) -> list[str]:
    """Return the texts of the answers among some messages; each begins with its turn and its variant."""
    return [message.text for message in messages if message.type == "ai" and not calls_of(message)]


async def _check_log(user: User, acknowledged: set[str], drafts: list[str]) -> list[str]:
    """Each message once; each question in order, with the answer that is shown; each finished variant is listed."""
    logged = [message async for message in user.chat.messages(rewound=True)]
    acknowledged -= {str(message.id) for message in logged}
    answers = _answers(logged)
    counts = Counter(str(message.id) for message in logged)
    counts += Counter(f"an answer of {text.split()[1]}" for text in answers)
    problems = [f"{id_} is in the log {times} times" for id_, times in counts.items() if times > 1]
    problems += [
        f"{shown} was read"
        for shown in user.shown
        if shown not in {(answer.split()[1], answer) for answer in answers}
    ]
    drafts += answers
    turns = [turn async for turn in user.chat.turns()]
    if [turn.turn_id for turn in turns] != user.turns:
        problems.append(f"{[turn.turn_id for turn in turns]}, not {user.turns}")
    for turn in turns:
        problems += await _check_turn(user, turn)
    return problems


async def _check_turn(user: User, turn: Turn) -> list[str]:
    """Return the problems of a turn. A finished turn has its one answer, unless stopped, and lists its variants."""
    id_, active = turn.turn_id, user.active.get(turn.turn_id)
    answers = [text.split()[:2] for text in _answers(turn.messages)]
    is_right = answers == [[id_, active]] or (answers == [] and active in user.stopped)
    problems = [] if is_right else [f"{id_} has {answers}, not that of {active}"]
    if not turn.is_finished or turn.messages[0].text != question(id_):
        problems.append(f"{id_} has {turn.messages[0].text}, is_finished={turn.is_finished}")
    if len(user.finished.get(id_, ())) > 1:
        listed = [variant.variant_id for variant in await user.chat.variants(id_)]
        problems += [
            f"{id_} lists {listed}, not {text}" for text in user.finished[id_] if text not in listed
        ]
    return problems


def _check_drafts(drafts: list[str], notes: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Each draft, and each answer, is the beginning of what a worker had yielded of one reply."""
    said = dict[str, str]()
    for note in notes["yielded"]:
        said[note["reply"]] = said.get(note["reply"], "") + note["text"]
    return [
        f"draft {text!r}"
        for text in drafts
        if not said.get(" ".join(text.split()[:3]), "").startswith(text)
    ]


def _noticed_late(notes: dict[str, list[dict[str, Any]]]) -> list[bool]:
    """Return for each reply that somebody stopped whether it went on for more than two seconds."""
    said, stops = dict[str, list[float]](), dict[str, list[float]]()
    for note in notes["yielded"]:
        said.setdefault(note["reply"], []).append(note["at"])
    for note in notes["stopped"]:
        stops.setdefault(note["turn"], []).append(note["at"])
    running = [
        [times[-1] - at for at in stops.get(reply.split()[0], ()) if times[0] < at <= times[-1]]
        for reply, times in said.items()
    ]
    return [waits[0] > _NOTICED for waits in running if waits]


@pytest.fixture
async def crowd(server_uri: str, own_database: Any, tmp_path: Path) -> AsyncIterator[Crowd]:
    """Users, and the workers that they ask."""
    store = ConversationStore(own_database)
    await store.setup()
    workers = [WorkerProcess(server_uri, own_database.name, tmp_path) for _ in range(WORKERS)]
    for worker in workers:
        await worker.start()
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as http:  # noqa: S113 - a killed one
        yield Crowd(store, http, workers)
    for worker in workers:
        await worker.end()
    await store.close()


async def test_each_question_is_answered_once(
    crowd: Crowd, own_database: Any, tmp_path: Path
) -> None:
    """Each question is answered once, whatever is killed, cut, stopped and asked twice.

    No acknowledged message is lost, and no lease lasts longer than `LEASE_SECONDS`.
    """
    problems = await crowd.run()
    now = (await own_database.client.admin.command("hello"))["localTime"]
    until = [
        state["turn"]["until"]
        async for state in own_database["log"].find({"turn": {"$exists": True}})
    ]
    assert all(moment <= now + timedelta(seconds=LEASE_SECONDS) for moment in until), until
    notes = _notes(tmp_path)
    acknowledged = {id_ for note in notes["acknowledged"] for id_ in note["ids"]}
    drafts = [
        *(note["text"] for note in notes.get("draft", [])),
        *(text for user in crowd.users for text in user.drafts),
    ]
    assert drafts, "no draft was seen"
    problems += [note["problem"] for note in notes.get("wrong", [])]
    for user in crowd.users:
        problems += await _check_log(user, acknowledged, drafts)
    problems += _check_drafts(drafts, notes)
    late = _noticed_late(notes)
    assert sum(late) <= len(late) // 2 < len(late), (
        f"{sum(late)} of {len(late)} stops were noticed late"
    )
    assert (problems, acknowledged, len(notes.get("closed", []))) == ([], set(), WORKERS), (
        crowd.states
    )
    report = await crowd.store.verify(user_id="crowd")
    assert report.ok, report.findings
