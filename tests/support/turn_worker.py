"""One worker of many that answers questions with `chat.turn`: ``python turn_worker.py URI DATABASE JOURNAL``.

Each line of its input is a request, which it handles beside the others and answers with a line. What it yields of a
reply is in its journal before, and what was acknowledged right after, so that both are known whoever is killed.
Leases are short, so that the turns of a killed worker are taken over soon.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import traceback
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore
from convstore.conversation import turn as sessions
from convstore.exceptions import ConflictError, InvalidInputError, StoreUnavailableError
from convstore.turns import keeper, streaming

__all__ = ["LEASE_SECONDS", "question"]

LEASE_SECONDS = 2.0
_WORDS, _PAUSE = 25, 0.02
_MOST_PROBLEM = 3_000
_KINDS = ("say", "say", "look", "pay")
"""What a model does first: it answers at once, calls a tool, or calls one about which a person decides."""


def question(turn_id: str) -> str:
    """The question of a turn."""
    return f"What is {turn_id}?"


class Worker:
    """Handles requests at once."""

    def __init__(self, store: ConversationStore, journal: TextIO) -> None:
        self._store, self._journal, self._tasks = store, journal, set[asyncio.Task[None]]()

    def note(self, what: str, **values: Any) -> None:
        """Write a line to the journal; it is with the system when this returns."""
        self._journal.write(json.dumps({"what": what, **values}) + "\n")
        self._journal.flush()

    def begin(self, request: dict[str, Any]) -> None:
        """Handle a request in a task of its own."""
        task = asyncio.create_task(self._handle(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, request: dict[str, Any]) -> None:
        work = asyncio.ensure_future(self._work(**request))
        if request["cut"]:
            await asyncio.wait({work}, timeout=request["cut"])
            while not work.done():  # in each cycle of the event loop, as anyio does
                work.cancel()
                await asyncio.sleep(0)
        await asyncio.wait({work})
        error = None if work.cancelled() else work.exception()
        if error is not None and not isinstance(error, ConflictError | InvalidInputError | StoreUnavailableError):
            self.note(
                "wrong", turn=request["turn"], problem="".join(traceback.format_exception(error))[-_MOST_PROBLEM:]
            )
        state = "cut" if work.cancelled() else type(error).__name__ if error else work.result()
        sys.stdout.write(json.dumps({"id": request["id"], "state": state}) + "\n")
        sys.stdout.flush()

    async def _work(self, *, do: str, thread: str, turn: str, verdict: Any, **_: Any) -> str:
        chat = self._store.conversation(user_id="crowd", thread_id=thread)
        if do == "ask":
            return await self._ask(chat, turn)
        if do == "stop":
            return "stopped" if await chat.stop(turn) else "not running"
        await chat.decide(turn, f"pay {turn}", verdict, message="no")
        return "decided"

    async def _ask(self, chat: Conversation, turn_id: str) -> str:
        async with await chat.turn(turn_id, human=question(turn_id)) as turn:
            if turn.draft:
                self.note("draft", turn=turn_id, text=turn.draft)
            while turn.is_running:
                await self._step(turn)
            return "waiting" if turn.is_waiting else "finished" if turn.is_finished else "stopping"

    async def _step(self, turn: Any) -> None:
        for call in turn.open_calls:
            if call.name == "pay" and not call.decision:
                await turn.wait_for(call)
                return
            receipt = await turn.add_result(call, f"found for {turn.turn_id}")
            self.note("acknowledged", turn=turn.turn_id, ids=receipt.message_ids)
        await turn.load_history()
        kind = random.Random(turn.turn_id).choice(_KINDS)
        if kind != "say" and len(turn.messages) == 1:
            function = {"name": kind, "arguments": "{}"}
            calls = [{"id": f"{kind} {turn.turn_id}", "type": "function", "function": function}]
            receipt = await turn.append({"role": "assistant", "content": "", "tool_calls": calls})
            self.note("acknowledged", turn=turn.turn_id, ids=receipt.message_ids)
            return
        async for _ in turn.stream(self._say(turn.turn_id)):
            pass
        if turn.answer is not None:
            self.note("acknowledged", turn=turn.turn_id, ids=[turn.answer.id])

    async def _say(self, turn_id: str) -> AsyncIterator[str]:
        attempt = f"{random.randrange(10**12)}"
        for word in (f"{turn_id} {attempt}", *(f" word{number}" for number in range(_WORDS))):
            self.note("yielded", turn=turn_id, attempt=attempt, text=word)
            yield word
            await asyncio.sleep(random.uniform(0, 2 * _PAUSE))


async def main(uri: str, database: str, journal: TextIO) -> None:
    """Handle requests until the input ends."""
    keeper._LEASE = timedelta(seconds=LEASE_SECONDS)
    sessions.RENEW_SECONDS, sessions.CHECK_SECONDS, streaming.DRAFT_SECONDS = 0.6, 0.2, 0.1  # type: ignore[attr-defined]
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        worker = Worker(ConversationStore(client[database]), journal)
        while line := await reader.readline():
            worker.begin(json.loads(line))


if __name__ == "__main__":
    with Path(sys.argv[3]).open("a", encoding="utf-8") as file:
        asyncio.run(main(sys.argv[1], sys.argv[2], file))
