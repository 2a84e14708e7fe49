"""One client of many in the fault runs (`faults.py`): appends, reads and records the outcomes.

Each line of its input is a command: ``begin`` names the conversations of a round, ``settle`` lets every call under way
come to its end and is answered with a line. Attempts and outcomes go to a journal, a line each before
anything else happens, so that it is there whoever is killed. A client that takes the place of a killed one finds in the
journal the attempts without an outcome, and repeats it as it was, as a backend does with a request.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pymongo import AsyncMongoClient

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.compaction import compactor
from convstore.exceptions import (
    ConversationDeletedError,
    MessageRewoundError,
    StoreUnavailableError,
    UnknownMessageError,
)
from convstore.integration import host_of
from convstore.testing import same_messages
from convstore.testing.pairing import check_pairing
from convstore.values.policy import CompactionRule

__all__ = ["KINDS", "USER", "Marks", "make_turn"]

USER = "crowd"
KINDS = ("plain", "rewound", "summed", "deleted")
"""Operations on the conversations of a round besides appends: none, rewinds, compactions, deletions."""

IMPATIENT = {"serverSelectionTimeoutMS": 200, "timeoutMS": 400}
"""Shorter than an election, so that calls fail in the middle of it."""

_MOST_PROBLEM = 3_000
_WHOLE, _SHORT = HistoryPolicy(max_tokens=None), HistoryPolicy(max_tokens=900)
_RULE = CompactionRule(max_tokens_before_summary=3_000, max_summary_tokens=50, keep_last_turns=2)


def make_turn(name: str) -> list[BaseMessage]:
    """The turn of a name, always the same: a question, perhaps calls with results of some size, an answer."""
    dice = random.Random(name)
    turn: list[BaseMessage] = [HumanMessage(f"What is {name}?", id=f"{name}|0")]
    for index in range(dice.choice((0, 1, 1, 2))):
        call = f"call {index}"  # the same in all turns, as some models count
        size = 6_000 if dice.random() < 0.1 else 160
        texts = [
            " ".join(dice.choices(("reef", "tide", "gull", "kelp", name), k=size)) for _ in range(2)
        ]
        turn.append(
            AIMessage(
                "", id=f"{name}|c{index}", tool_calls=[{"name": "look", "args": {}, "id": call}]
            )
        )
        artifact = [(text, {"title": f"{name} {number}"}) for number, text in enumerate(texts)]
        turn.append(
            ToolMessage(
                "\n".join(texts), id=f"{name}|r{index}", tool_call_id=call, artifact=artifact
            )
        )
    return [*turn, AIMessage(f"It is {name}.", id=f"{name}|a")]


class Marks:
    """A running hash of ids, so that a list that was seen is written down in a few characters."""

    def __init__(self, ids: Sequence[str] = ()) -> None:
        self._hash = hashlib.sha256()
        for id_ in ids:
            self.add(id_)

    def add(self, id_: str) -> str:
        """The mark of all ids so far and this one."""
        self._hash.update(id_.encode() + b"\n")
        return str(self)

    def __str__(self) -> str:
        return self._hash.hexdigest()[:16]


def read_note(line: str) -> Any:
    """A line of a journal; None for one that its client was killed in."""
    try:
        return json.loads(line)
    except ValueError:
        return None


class Journal:
    """Lines in a file; one is with the system, and so survives the process, when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")
        self._file.write("\n")  # ends what a client that was killed in the middle of a line left

    def write(self, what: str, chat: Conversation | None = None, **values: Any) -> None:
        """Record an attempt or an outcome."""
        thread = {"thread": chat.scope["thread_id"]} if chat else {}
        self._file.write(json.dumps({"what": what, "at": time.time(), **thread, **values}) + "\n")
        self._file.flush()

    def unfinished(self) -> dict[str, str]:
        """Return by thread the turn that was tried last, if it has no outcome."""
        tried: dict[str, str] = {}
        for line in self._path.read_text(encoding="utf-8").splitlines():
            if (note := read_note(line)) is None:
                continue
            if note["what"] == "try":
                tried[note["thread"]] = note["turn"]
            elif note["what"] == "acknowledged":
                tried.pop(note["thread"], None)
        return tried


async def summarize(messages: Sequence[BaseMessage], summary: str | None) -> str:
    """A summary that names the last message it was shown, and the summary before it."""
    await asyncio.sleep(random.uniform(0, 0.05))
    return f"through {messages[-1].id} after {hashlib.sha256((summary or '').encode()).hexdigest()[:8]}"


class Summarizer:
    """A summarizer that calls `summarize`, under a rule that asks for it often."""

    rule = _RULE
    name = "scripted"

    async def summarize(self, messages: Sequence[BaseMessage], *, summary: str | None) -> str:
        """See the function."""
        return await summarize(messages, summary)


class Client:
    """Works on the conversations of a round until it gets the command to settle."""

    def __init__(self, store: ConversationStore, name: str, journal: Journal, begun: str) -> None:
        self.store, self.name, self.journal, self.begun = store, name, journal, begun
        self.number = 0
        self.acknowledged: dict[str, str] = {}
        """By thread the turn that was appended last."""
        self.is_working = False
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, round_: str, threads: Sequence[str]) -> None:
        """Work on these conversations."""
        self.is_working = True
        unfinished = self.journal.unfinished()
        for thread in threads:
            chat = self.store.conversation(user_id=USER, thread_id=thread)
            self._start(self._write(chat, round_, unfinished.get(thread)))
            self._start(self._read(chat))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if error := task.exception():
            self.journal.write(
                "wrong", problem="".join(traceback.format_exception(error))[-_MOST_PROBLEM:]
            )

    async def settle(self) -> None:
        """Let every call come to its end."""
        self.is_working = False
        if self.tasks:
            await asyncio.wait(self.tasks)

    async def _until_acknowledged(self, call: Callable[[], Awaitable[Any]]) -> tuple[Any, int]:
        """The call's answer; as long as the store is not to be reached it is made again, as it was."""
        refused = 0
        while True:
            try:
                return await call(), refused
            except StoreUnavailableError as error:
                refused += 1
                self.journal.write("refused", error=str(error.__cause__ or error)[:100])
                await asyncio.sleep(random.uniform(0.01, 0.1))

    async def _write(self, chat: Conversation, round_: str, unfinished: str | None) -> None:
        kind = chat.scope["thread_id"].partition("-")[0]
        while self.is_working or unfinished:
            self.number += 1
            turn = unfinished or f"{round_}/{self.begun}/{self.number}"
            unfinished = None
            last = await self._append(chat, turn)
            match random.randrange(8), kind:
                case 0, _:
                    ids, _ = await self._until_acknowledged(lambda: chat.reserve_source_ids(3))
                    self.journal.write("reserved", chat, first=ids[0], last=ids[-1])
                case 1 | 2, "deleted":
                    with suppress(ConversationDeletedError, UnknownMessageError):
                        await self._annotate(chat, last)
                case 3 | 4, "deleted":
                    with suppress(ConversationDeletedError):
                        await self._compact(chat)
                case 5 | 6, "deleted":
                    await self._until_acknowledged(chat.delete)
                    self.journal.write("deleted", chat)
                case 1, _:
                    await self._annotate(chat, last)
                case 2 | 3, "rewound":
                    count, _ = await self._until_acknowledged(lambda: chat.rewind(before_id=last))  # noqa: B023
                    self.journal.write("rewound", chat, id=last, count=count)
                case 2 | 3 | 4, "summed":
                    await self._compact(chat)
                case 6 | 7, _:
                    await self._until_acknowledged(lambda: self._seal(chat))
            await asyncio.sleep(random.uniform(0, 0.1))

    async def _seal(self, chat: Conversation) -> None:
        """Seal the end of the log, as the timer does; often at the same time as other clients."""
        sealer = (await host_of(chat).services()).sealer
        await sealer.seal(tuple(chat.scope.items()))

    async def _append(self, chat: Conversation, turn: str) -> str:
        """Append a turn, sometimes cancelled in the middle and repeated; the id of its last message."""
        messages = make_turn(turn)
        self.journal.write("try", chat, turn=turn)
        begun = time.time()
        if random.random() < 0.15:
            await self._append_cancelled(chat, messages)
        # it was written, and another client rewound it before it was acknowledged
        try:
            receipt, refused = await self._until_acknowledged(lambda: chat.append(messages))
        except MessageRewoundError:
            self.journal.write(
                "acknowledged",
                chat,
                turn=turn,
                ordinals=[],
                sources=None,
                seconds=time.time() - begun,
            )
        else:
            self.journal.write(
                "acknowledged",
                chat,
                turn=turn,
                ordinals=list(receipt.ordinals),
                sources=receipt.source_ids,
                refused=refused,
                seconds=time.time() - begun,
            )
        self.acknowledged[chat.scope["thread_id"]] = turn
        return str(messages[-1].id)

    async def _append_cancelled(self, chat: Conversation, messages: list[BaseMessage]) -> None:
        task = asyncio.create_task(chat.append(messages))
        await asyncio.wait({task}, timeout=random.uniform(0, 0.03))
        if task.cancel():
            self.journal.write("cancelled", chat)
        await asyncio.gather(task, return_exceptions=True)

    async def _annotate(self, chat: Conversation, message_id: str) -> None:
        for value in (1, 2):
            await self._until_acknowledged(lambda: chat.annotate(message_id, seen=value))  # noqa: B023
        self.journal.write("annotated", chat, id=message_id, value=2)

    async def _compact(self, chat: Conversation) -> None:
        done, _ = await self._until_acknowledged(chat.compact)
        made = done.summary
        if made:
            self.journal.write(
                "compacted", chat, version=made.version, last=made.last, text=made.text
            )

    async def _read(self, chat: Conversation) -> None:
        """Read all the time, as different readers do, and write down what was seen."""
        is_kept = not chat.scope["thread_id"].startswith("deleted")
        reads = (
            self._see_log,
            self._see_hits,
            *((self._see_page, self._see_view, self._see_short_view) if is_kept else ()),
        )
        while self.is_working:
            for read in reads:
                try:
                    await read(chat)
                except ConversationDeletedError:
                    if is_kept:
                        raise
                except StoreUnavailableError as error:
                    self.journal.write("refused", error=str(error.__cause__ or error)[:100])
                await asyncio.sleep(random.uniform(0, 0.2))

    async def _see_log(self, chat: Conversation) -> None:
        begun = time.time()
        ids = [str(message.id) async for message in chat.messages(rewound=True)]
        self.journal.write("saw log", chat, begun=begun, count=len(ids), mark=str(Marks(ids)))

    async def _see_page(self, chat: Conversation) -> None:
        page = await chat.list_messages(limit=1_000)
        ids = [str(message.message.id) for message in page]
        self.journal.write(
            "saw page",
            chat,
            ordinals=runs([message.ordinal for message in page]),
            mark=str(Marks(ids)),
        )

    async def _see_view(self, chat: Conversation) -> None:
        history = await chat.load_history(_WHOLE)
        shown = [
            message for message in history.messages if "convstore" not in message.additional_kwargs
        ]
        ids, wrong = [str(message.id) for message in shown], check_pairing(history.messages)
        self.journal.write(
            "saw view", chat, mark=str(Marks(ids)), summary=history.summary, wrong=len(wrong)
        )
        if history.report.stubbed:
            await self._see_payload(chat, random.choice(history.report.stubbed))

    async def _see_short_view(self, chat: Conversation) -> None:
        """Load under a budget that the conversation exceeds, so that a record of views is stored and moved."""
        history = await chat.load_history(_SHORT)
        self.journal.write("saw short view", chat, wrong=len(check_pairing(history.messages)))

    async def _see_hits(self, chat: Conversation) -> None:
        """Search for the turn that this client appended last."""
        begun, turn = time.time(), self.acknowledged.get(chat.scope["thread_id"], "")
        hits = await chat.search(f"what is {turn}", limit=50)
        found = [[hit.ordinal, hit.message_id] for hit in hits]
        self.journal.write("saw hits", chat, begun=begun, turn=turn, hits=found)

    async def _see_payload(self, chat: Conversation, id_: str) -> None:
        """Read the payload of a stub in a view."""
        expected = next(
            message for message in make_turn(id_.rpartition("|")[0]) if message.id == id_
        )
        [record] = await chat.get_tool_messages([id_])
        found = expected.model_copy(update={"content": record.content, "artifact": record.artifact})
        self.journal.write("saw payload", chat, id=id_, equal=same_messages([found], [expected]))


def runs(ordinals: Sequence[int]) -> list[list[int]]:
    """Ordinals as first and last of each run.

    >>> runs([1, 2, 3, 7])
    [[1, 3], [7, 7]]
    """
    found: list[list[int]] = []
    for ordinal in ordinals:
        if found and ordinal == found[-1][1] + 1:
            found[-1][1] = ordinal
        else:
            found.append([ordinal, ordinal])
    return found


async def main(name: str, uri: str, database: str, journal: str, patience: str) -> None:
    """Do what the lines of the input say until it ends."""
    compactor._LEASE, compactor._RENEW_SECONDS = timedelta(seconds=3), 0.5
    compactor._FIRST_WAIT = timedelta(seconds=0.05)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    options: dict[str, Any] = IMPATIENT if patience == "impatient" else {}
    async with AsyncMongoClient[dict[str, Any]](uri, **options) as remote:
        store = ConversationStore(remote[database], summarizer=Summarizer())
        client = Client(store, name, Journal(Path(journal)), f"{name}.{time.time_ns():x}")
        while line := await lines.readline():
            command = json.loads(line)
            if command["do"] == "begin":
                client.begin(command["round"], command["threads"])
            else:
                await client.settle()
            sys.stdout.write(json.dumps(command["do"]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
