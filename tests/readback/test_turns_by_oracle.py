"""Every reader of turns says what `turn_oracle` works out from the rules, over generated logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from mongomock_motor import AsyncMongoMockClient
from properties import soaked
from turn_oracle import ExpectedTurn, Oracle, Said

from convstore import Conversation, ConversationStore
from convstore.integration import LogChanges, host_of, log_of
from convstore.messages.tool_calls import result_id
from convstore.messages.values import Codec
from convstore.runtime.clock import Clock
from convstore.transfer import export_conversations, import_conversations, read_file
from convstore.types import TurnState
from convstore.values.append_options import Columns

pytestmark = pytest.mark.usefixtures("quick_memory")

IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
CALLS = ("look", "find", "read")
_FOLLOWED = 5
_PATIENCE = 60.0


def message_of(said: Said) -> BaseMessage:
    """Return a message as an application appends it."""
    made: BaseMessage
    if said.type == "ai":
        calls = [{"name": call, "args": {}, "id": call} for call in said.calls]
        made = AIMessage("" if calls else "So.", id=said.id, tool_calls=calls)
    elif said.type == "tool":
        made = ToolMessage("5", tool_call_id=said.answers, id=said.id)
    elif said.type == "human":
        made = HumanMessage(IMAGE if said.has_media else "Why?", id=said.id)
    else:
        made = SystemMessage("A note.", id=said.id)
    return made


class Page:
    """A page that follows a conversation, and looks for what is new when it is asked to.

    Attributes:
        messages: Ordinals and turns of the messages that it shows.
        turn: State of the last turn.
    """

    def __init__(self) -> None:
        self.messages = list[tuple[int, str]]()
        self.turn: TurnState | None = None
        self._may_look = asyncio.Event()
        self._has_looked = asyncio.Event()

    @asynccontextmanager
    async def follow(self, world: World) -> AsyncIterator[None]:
        """Follow a conversation in a process of its own."""
        async with ConversationStore(world.database, clock=Clock(sleep=self._sleep)) as store:
            following = asyncio.ensure_future(self._read(store.conversation(**world.chat.scope)))
            yield
            following.cancel()

    async def _sleep(self, _: float) -> None:
        if not self._may_look.is_set():
            self._has_looked.set()
        await self._may_look.wait()
        self._may_look.clear()

    async def _read(self, chat: Conversation) -> None:
        async for update in chat.watch(limit=1_000):
            self.messages = [known for known in self.messages if known[0] < update.replaces_from]
            self.messages += [(stored.ordinal, stored.turn_id) for stored in update.messages]
            self.turn = update.turn

    async def look(self) -> None:
        """Look once."""
        self._has_looked.clear()
        self._may_look.set()
        async with asyncio.timeout(_PATIENCE):
            await self._has_looked.wait()

    async def check(self, world: World) -> None:
        """Look once more, and check what it shows, and what a list of conversations says of this one."""
        await self.look()
        assert self.messages == world.oracle.listed
        check_state(self.turn, world.oracle)
        [row] = await host_of(world.chat).rows([await world.chat.info()])
        end = row.end
        assert end.status == (self.turn.status if self.turn else "")
        waiting = self.turn.waiting_calls if self.turn else ()
        assert end.waiting == tuple(call.name for call in waiting)


@dataclass
class World:
    """A conversation, and what it has to be.

    Attributes:
        database: The database.
        dice: Decides what happens.
        stores: Those of its processes.
        oracle: What it has to be.
        number: Number of ids that were used.
        is_varied: It has another answer, so nothing but a part of that is rewound any more.
        is_rewound: Something of it was rewound.
        varied: Ordinals of the other answer without its first message.
        workers: The conversation in several processes.
    """

    database: Any
    dice: random.Random
    stores: Sequence[ConversationStore] = ()
    oracle: Oracle = field(default_factory=Oracle)
    number: int = 0
    is_varied: bool = False
    is_rewound: bool = False
    varied: range = range(0)
    workers: list[Conversation] = field(init=False)

    def __post_init__(self) -> None:
        scope = {"user_id": "ada", "thread_id": uuid4().hex}
        stores = self.stores or _two_stores(self.database)
        self.workers = [store.conversation(**scope) for store in stores]

    @property
    def chat(self) -> Conversation:
        """The conversation in any of the processes."""
        return self.dice.choice(self.workers)

    def said(self, type_: str, **more: object) -> Said:
        """Return a new message."""
        self.number += 1
        return Said(f"m{self.number}", type_, **more)

    def step(self) -> Said:
        """Return an AI message, with calls or not."""
        count = self.dice.choice([0, 0, 1, 2])
        return self.said("ai", calls=tuple(self.dice.sample(CALLS, count)))

    def result(self) -> Said | None:
        """Return a result of an open call, by the id of the call alone or by that of the result, too."""
        calls = self.oracle.open_calls()
        if not calls:
            return None
        message, _, call = self.dice.choice(calls[-4:])
        own = result_id(message, call)
        if self.dice.random() < 0.5 and all(stored.said.id != own for stored in self.oracle.log):
            return Said(own, "tool", answers=call, exact=message)
        return self.said("tool", answers=call)

    async def append(self, *batch: Said | None) -> None:
        """Append messages as one entry."""
        messages = [said for said in batch if said]
        if messages:
            await self.chat.append([message_of(said) for said in messages])
            self.oracle.append(*messages)

    async def append_named(self, batch: Sequence[Said]) -> None:
        """Append messages as one entry, as the run of a framework does that names their question."""
        columns = {
            said.id: Columns(said.named, answers="any" if said.is_added else "") for said in batch
        }
        await log_of(self.chat).append([message_of(said) for said in batch], columns=columns)
        self.oracle.append(*batch)

    async def ask(self) -> None:
        """Ask a question, perhaps with all of its answer."""
        more = [self.step()] if self.dice.random() < 0.3 else []
        await self.append(self.said("human"), *more)

    async def answer(self) -> None:
        """Append a step of the newest turn, or a reminder."""
        await self.append(self.step(), *([self.step()] if self.dice.random() < 0.2 else []))

    async def give(self) -> None:
        """Append a result, perhaps with its image and the next step."""
        result = self.result()
        image = self.said("human", has_media=True) if result and self.dice.random() < 0.3 else None
        await self.append(result, image, self.step() if self.dice.random() < 0.3 else None)

    async def note(self) -> None:
        """Append a system message."""
        await self.append(self.said("system"))

    async def go_on(self) -> None:
        """Append a step of an earlier run, which names its question; perhaps something that its tool added."""
        if self.oracle.questions:
            named = self.dice.choice(self.oracle.questions[-3:]).said.id
            count = self.dice.choice([0, 1])
            batch = [self.said("ai", calls=CALLS[:count], named=named)]
            if self.dice.random() < 0.3:
                batch.append(
                    self.said(self.dice.choice(["human", "ai"]), named=named, is_added=True)
                )
            await self.append_named(batch)

    async def enter(self, question: int) -> None:
        """Enter a turn: its calls that a person refused get their results again if these were rewound."""
        refused = [
            Said("", "tool", answers=call, exact=message)
            for id_, (message, call) in self.oracle.unanswered(question).items()
            if self.oracle.decided.get(id_) is False
        ]
        if not refused:
            return
        name = self.oracle.log[question - 1].said.id
        async with await self.chat.turn(name):
            pass
        given = await self.chat.list_messages(limit=len(refused))
        for stored, said in zip(given, refused, strict=True):
            self.oracle.append(replace(said, id=str(stored.message.id), named=name))

    async def steer(self) -> None:
        """Let the worker of the newest turn append a message."""
        newest = self.oracle.newest
        if newest and not self.oracle.over(newest):
            await self.enter(newest)
            name = self.oracle.log[newest - 1].said.id
            said = self.said(self.dice.choice(["system", "ai"]), named=name)
            async with await self.chat.turn(name) as turn:
                await turn.append(message_of(said))
            self.oracle.append(said)

    async def pause(self) -> None:
        """Let a call of the newest turn wait for a person, or decide about one that does."""
        newest = self.oracle.newest
        waiting, ready = self.oracle.undecided(newest), self.oracle.ready(newest)
        name = self.oracle.log[newest - 1].said.id if newest else ""
        if newest and waiting:
            id_, runs = self.dice.choice(waiting), self.dice.random() < 0.5
            message, call = self.oracle.unanswered(newest)[id_]
            await self.chat.decide(name, id_, "approve" if runs else "reject")
            self.oracle.decided[id_] = runs
            if not runs:
                [last] = await self.chat.list_messages(limit=1)
                given = str(last.message.id)
                # then it was rewound
                assert given == id_ or any(stored.said.id == id_ for stored in self.oracle.log)
                self.oracle.append(Said(given, "tool", answers=call, exact=message, named=name))
        elif newest and ready:
            id_ = self.dice.choice(ready)
            await self.enter(newest)
            async with await self.chat.turn(name) as turn:
                await turn.wait_for(next(call for call in turn.open_calls if call.result_id == id_))
            self.oracle.waiting.add(id_)

    async def end(self) -> None:
        """Stop or finish the newest turn, if it is in progress."""
        newest = self.oracle.newest
        if not newest or self.oracle.over(newest):
            return
        await self.enter(newest)
        turn_id = self.oracle.log[newest - 1].said.id
        if self.dice.random() < 0.5:
            assert await self.chat.stop(turn_id)
            self.oracle.end(newest, "stopped")
        else:
            async with await self.chat.turn(turn_id) as turn:
                await turn.finish()
            self.oracle.end(newest, "finished")

    async def rewind(self) -> None:
        """Rewind the newest messages, or take that back."""
        if self.oracle.before and self.dice.random() < 0.4:
            await self.chat.undo_rewind()
            self.oracle.undo()
        elif self.is_varied:
            await self.rewind_in_variant()
        elif self.oracle.messages:
            chosen = self.dice.choice(self.oracle.messages[-5:])
            await self.chat.rewind(before_id=chosen.said.id)
            self.oracle.rewind(chosen.ordinal)
            self.is_rewound = True

    async def rewind_in_variant(self) -> None:
        """Rewind a part of the other answer, if it is shown and in several steps, and nothing follows it."""
        shown = [stored for stored in self.oracle.messages if stored.ordinal in self.varied]
        if shown and shown[-1] == self.oracle.messages[-1]:
            chosen = shown[len(shown) // 2]
            await self.chat.rewind(before_id=chosen.said.id)
            self.oracle.rewind(chosen.ordinal)
            self.oracle.before.clear()  # what a rewind and another answer undo is that of another test

    async def vary(self) -> None:
        """Make another answer to a question, or show one that was made before."""
        if self.is_rewound or not self.oracle.questions:
            return
        known = [key for key in self.oracle.left if self.oracle.shown[key[0]] != key[1]]
        known = [key for key in known if key[0] in self.oracle.state.active]
        if known and self.dice.random() < 0.5:
            await self.activate(*self.dice.choice(known))
        elif not self.is_varied:  # variants inside of variants are those of another test
            await self.regenerate(self.dice.choice(self.oracle.questions[-2:]).ordinal)

    async def activate(self, question: int, key: str) -> None:
        """Show an answer that was made before."""
        turn_id = self.oracle.log[question - 1].said.id
        [variant] = [
            variant
            for variant in await self.chat.variants(turn_id)
            if variant.variant_id == (key or turn_id)
        ]
        await self.chat.activate(variant)
        self.oracle.activate(question, key)

    async def regenerate(self, question: int) -> None:
        """Make another answer to a question, with each second number after a person has decided about two calls."""
        self.is_varied = True
        name = self.oracle.log[question - 1].said.id
        said = await self.ask_in_variant(name) if self.number % 2 else []
        answer = self.said("ai")
        async with await self.chat.turn(name, regenerate="again") as turn:
            for call in turn.open_calls:
                await turn.add_result(call, "5")
            await turn.append(message_of(answer))
        begins = len(self.oracle.log) + 1
        self.oracle.regenerate(question, "again", *said, answer)
        self.varied = range(begins + 1, len(self.oracle.log) + 1)

    async def ask_in_variant(self, name: str) -> list[Said]:
        """Let a person decide about two calls while no reader shows them; return the step and its results."""
        step = self.said("ai", calls=CALLS[:2])
        async with await self.chat.turn(name, regenerate="again") as turn:
            await turn.append(message_of(step))
            for call in turn.open_calls:
                await turn.wait_for(call)
        refused, run = (result_id(step.id, call) for call in step.calls)
        await self.chat.decide(name, refused, "reject")
        await self.chat.decide(name, run, "approve")
        self.oracle.waiting |= {refused, run}
        self.oracle.decided |= {refused: False, run: True}
        given = zip((refused, run), step.calls, strict=True)
        return [step, *(Said(id_, "tool", answers=call, exact=step.id) for id_, call in given)]

    async def live(self, count: int, page: Page | None = None) -> None:
        """Let a number of things happen, which a page is told."""
        doings: dict[Callable[[], object], int] = {
            self.ask: 4,
            self.answer: 4,
            self.give: 4,
            self.note: 1,
            self.go_on: 2,
            self.steer: 1,
            self.pause: 2,
            self.end: 2,
            self.rewind: 2,
            self.vary: 2,
        }
        for number, doing in enumerate(
            self.dice.choices(list(doings), list(doings.values()), k=count)
        ):
            await doing()  # type: ignore[misc]
            if page and number % 3 == 0:
                await page.look()


async def check(chat: Conversation, oracle: Oracle) -> None:
    """Ask every reader."""
    expected = await check_lists(chat, oracle)
    told = list[tuple[int, str]]()
    async for update in chat.watch(limit=1_000):
        told += [(stored.ordinal, stored.turn_id) for stored in update.messages]
        if update.turn or len(told) >= len(oracle.listed):  # what was not rewound is read in parts
            assert told == oracle.listed
            check_state(update.turn, oracle)
            break
    await check_each(chat, oracle, expected)
    await check_everything(chat, oracle)


async def check_lists(chat: Conversation, oracle: Oracle) -> list[ExpectedTurn]:
    """Ask for all turns and all messages; return what is expected of the turns."""
    expected = oracle.turns()
    for newest_first in (False, True):
        read = [turn async for turn in chat.turns(newest_first=newest_first)]
        found = [
            (turn.turn_id, turn.number, tuple(str(message.id) for message in turn.messages))
            for turn in (reversed(read) if newest_first else read)
        ]
        assert found == [turn[:3] for turn in expected]
        overs = [turn.over for turn in read]
        assert (overs[::-1] if newest_first else overs) == [turn.over for turn in expected]
        assert all(turn.is_finished == bool(turn.over) for turn in read)
    outlined = await chat.outline()
    assert [
        ExpectedTurn(turn.turn_id, turn.number, (), turn.over, turn.answer) for turn in outlined
    ] == [turn._replace(messages=()) for turn in expected]
    listed = oracle.listed
    assert [
        (stored.ordinal, stored.turn_id) for stored in await chat.list_messages(limit=1_000)
    ] == listed
    if oracle.messages:
        [last] = await chat.list_messages(limit=1)
        assert (last.ordinal, last.turn_id) == listed[-1]
    return expected


async def check_everything(chat: Conversation, oracle: Oracle) -> None:
    """Ask for rewound messages, too: each message of the log is in one turn, the one that it was stored with."""
    turns = [turn async for turn in chat.turns(rewound=True)]
    active = {stored.said.id for stored in oracle.messages}
    asked = {stored.said.id: stored.turn for stored in oracle.log}
    found = [(str(message.id), turn) for turn in turns for message in turn.messages]
    assert sorted(id_ for id_, _ in found) == sorted(asked)
    for id_, turn in found:
        assert (id_ in turn.rewound) == (id_ not in active)
        assert asked[id_] in (0, turn.first)
    for expected in oracle.turns():
        [same] = [turn for turn in turns if turn.turn_id == expected.turn_id]
        assert same.number == expected.number
        assert same.is_finished == bool(expected.over)


async def check_each(chat: Conversation, oracle: Oracle, expected: list[ExpectedTurn]) -> None:
    """Ask for each turn by itself, as a reader and as the worker of its question."""
    by_id = {turn.turn_id: turn for turn in expected}
    begun = min((question.ordinal for question in oracle.questions), default=len(oracle.log) + 1)
    without = {
        stored.said.id
        for stored in oracle.messages
        if not oracle.turn_of(stored) and stored.ordinal > begun
    }
    begins = [said for said in oracle.log if said.turn == said.ordinal or said.said.id in by_id]
    within = [said for said in oracle.log if said not in begins]
    for stored in [*begins, *within[-1:]]:
        turn = await chat.get_turn(stored.said.id)
        known = by_id.get(stored.said.id) if stored.ordinal in oracle.state.active else None
        assert (turn is None) == (known is None)
        if turn and known:
            assert tuple(str(message.id) for message in turn.messages) == known.messages
            assert set(turn.others) == {id_ for id_ in known.messages if id_ in without}
            assert turn.is_finished == bool(known.over)
    for question in oracle.questions[-2:]:
        async with await chat.turn(question.said.id) as session:
            assert session.is_finished == bool(oracle.over(question.ordinal))
            assert [call.result_id for call in session.open_calls] == oracle.ready(question.ordinal)
            assert session.is_waiting == bool(
                oracle.undecided(question.ordinal) and not oracle.ready(question.ordinal)
            )


def check_state(turn: TurnState | None, oracle: Oracle) -> None:
    """Check what a reader is told of the newest turn."""
    if not oracle.newest:
        assert turn is None
        return
    assert turn
    undecided = oracle.undecided(oracle.newest)
    assert [call.result_id for call in turn.waiting_calls] == undecided
    status = "waiting" if undecided and not oracle.ready(oracle.newest) else "interrupted"
    if over := oracle.over(oracle.newest):
        status = "stopped" if over == "stopped" else "finished"
    assert (turn.turn_id, turn.status) == (oracle.log[oracle.newest - 1].said.id, status)


async def check_copies(world: World, copy: Conversation, path: Path) -> None:
    """Check an import of an export, and a fork of it all and one before a question."""
    oracle, chat, chosen = (
        world.oracle,
        world.chat,
        world.dice.choice(world.oracle.questions or [None]),
    )
    if not world.is_varied:
        file = BytesIO()
        await export_conversations(chat.store, file.write, scope=chat.scope)
        await asyncio.to_thread(path.write_bytes, file.getvalue())
        report = await import_conversations(
            copy.store, read_file(path, codec=host_of(copy.store).codec)
        )
        assert report.is_complete, report.problems
        assert await columns_of(copy) == await columns_of(chat)
        await check(copy, oracle)
        assert not (await copy.store.verify(**copy.scope)).findings
    if world.is_varied or chosen is None:
        return
    thread = f"{chat.scope['thread_id']} fork"
    if oracle.over(oracle.newest):
        fork = await chat.fork(
            key="all", new_scope={"user_id": "ada", "thread_id": f"{thread} all"}
        )
        await check_lists(fork, oracle)
    fork = await chat.fork(
        before_id=chosen.said.id, key="k", new_scope={"user_id": "ada", "thread_id": thread}
    )
    await check(
        fork,
        replace(oracle, log=oracle.log[: chosen.ordinal - 1], state=oracle.cut(chosen.ordinal)),
    )


async def columns_of(chat: Conversation) -> list[tuple[int | None, int, str]]:
    """Return the turn of each message of a log, how much its model was not shown, and what a tool added it to."""
    if not (end := await log_of(chat).snapshot()):
        return []
    read = log_of(chat).read(end, LogChanges(Codec()))
    return [(found.turn, found.unseen, found.added_to) async for found in read]


async def run(seeds: Sequence[int], path: Path, *, copies: int) -> None:
    """Let things happen in a conversation for each seed, and ask every reader."""
    databases = [await _database() for _ in range(2)]
    stores = _two_stores(databases[0])
    for seed in seeds:
        world = World(databases[0], random.Random(seed), stores)
        try:
            await _live(world, is_followed=seed % _FOLLOWED == 0)
            for question in world.oracle.questions[-2:]:
                await world.enter(question.ordinal)
            await check(world.chat, world.oracle)
            if seed % copies == 0:
                far = ConversationStore(databases[1])
                copy = far.conversation(**world.chat.scope)
                await check_copies(world, copy, path / "archive.jsonl")
        except BaseException as error:
            log = [(stored.ordinal, stored.said, stored.turn) for stored in world.oracle.log]
            error.add_note(f"seed {seed}: {log}, {world.oracle.state}")
            raise
        for database in databases:  # in memory, each call looks at all documents
            for name in ("log", "heads"):
                await database[name].delete_many({})


def _two_stores(database: Any) -> list[ConversationStore]:
    """Return a store for each of two processes."""
    return [ConversationStore(database) for _ in range(2)]


async def _database() -> Any:
    """Return a database in memory that is set up."""
    database = AsyncMongoMockClient()["app"]
    await ConversationStore(database).setup()
    return database


async def _live(world: World, *, is_followed: bool) -> None:
    count = world.dice.randint(3, 20)
    if not is_followed:
        await world.live(count)
        return
    page = Page()
    async with page.follow(world):
        await world.live(count, page)
        await page.check(world)


async def test_a_note_stays_in_an_entry_with_a_question_and_a_late_result() -> None:
    """A message of no turn, the next question and a result of the turn before may come in one entry."""
    world = World(await _database(), random.Random(0))
    await world.append(world.said("human"), world.said("ai", calls=("look",)))
    await world.append(world.said("ai"))
    late = world.said("tool", answers="look")
    await world.append(world.said("system"), world.said("human"), late)
    await check(world.chat, world.oracle)


async def test_a_stop_is_that_of_the_answer_that_was_shown() -> None:
    """Another answer is not stopped by it, though no message tells the two apart, also after a later question."""
    world = World(await _database(), random.Random(0))
    await world.ask()
    await world.regenerate(1)
    await world.activate(1, "")
    await world.end()
    await world.activate(1, "again")
    await world.append(world.said("human"))
    await check(world.chat, world.oracle)


async def test_every_reader_says_the_same_of_200_logs(tmp_path: Path) -> None:
    """All calls that read turns, and copies of some logs.

    In 156 a person refused a call of another answer while it was hidden, and its result is rewound once it is shown.
    In 315 and 594 messages without a question follow rewound ones; in 2253 a rewind takes back the end of a turn.
    In 3335 and 15354 a batch of entries ends where rewound messages begin, and a call waits after them; in 5512 a
    refused call gets its result back as its turn is entered.
    """
    await run([*range(194), 315, 594, 2253, 3335, 5512, 15354], tmp_path, copies=20)


@pytest.mark.slow
@pytest.mark.parametrize("first", soaked(range(194, 20_000, 225), first=8))
async def test_every_reader_says_the_same_of_many_logs(tmp_path: Path, first: int) -> None:
    """The same for 20,000 logs, 2,000 of them in `.ci/run` with the test above, and the copies of every eighth."""
    await run(range(first, first + 225), tmp_path, copies=8)
