"""What readers say of turns is the same after an export and an import, whatever became of the turns."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from string import ascii_letters
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from mongomock_motor import AsyncMongoMockClient
from properties import sampled
from pymongo.asynchronous.database import AsyncDatabase

from convstore import Conversation, ConversationStore
from convstore.conversation.turn import TurnSession
from convstore.exceptions import ConvstoreError
from convstore.integration import ConversationLog, TailMoved, host_of, log_of
from convstore.log.facts.imported import IMPORTED
from convstore.transfer import export_conversations, import_conversations, read_file
from convstore.types import LogItem
from convstore.values.log_records import LogChange
from convstore.values.turns import Verdict

pytestmark = pytest.mark.usefixtures("quick_memory")

SCOPE = {"user_id": "ada", "thread_id": "t"}
_VERDICTS: tuple[Verdict, ...] = ("approve", "edit", "reject", "respond")


class Life:
    """A conversation to which anything happens that a user, a worker or a person who decides may do."""

    def __init__(self, chat: Conversation, seed: int) -> None:
        self.chat = chat
        self._dice = random.Random(seed)
        self._number = 0
        self.questions = list[str]()

    def _new(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._number}"

    async def ask(self) -> None:
        """Ask a question, and answer it more or less."""
        self.questions.append(text := self._new("q"))
        async with await self.chat.turn(text, human=text) as turn:
            await self._work(turn)

    async def regenerate(self) -> None:
        """Make another answer to any question."""
        asked = self._dice.choice(self.questions)
        async with await self.chat.turn(asked, regenerate=self._new("k")) as turn:
            await self._work(turn)

    async def edit(self) -> None:
        """Ask another question in place of any."""
        asked = self._dice.choice(self.questions)
        text = self._new("q")
        async with await self.chat.turn(text, human=text, instead_of=asked) as turn:
            self.questions.append(text)
            await self._work(turn)

    async def go_on(self) -> None:
        """Go on with any turn."""
        async with await self.chat.turn(self._dice.choice(self.questions)) as turn:
            await self._work(turn)

    async def _work(self, turn: TurnSession) -> None:
        """Append steps to a turn: it may be answered, finished, wait for a person, or break off."""
        for call in turn.open_calls:
            await turn.add_result(call, self._new("r"))
        for _ in range(self._dice.randrange(3)):
            text = self._new("c")
            calls = [{"name": "t", "args": {}, "id": f"{text} {n}"} for n in range(2)]
            await turn.append(AIMessage(text, id=text, tool_calls=calls))
            for call in turn.open_calls:
                match self._dice.randrange(6):
                    case 0:
                        await turn.wait_for(call)
                    case 1:
                        return
                    case _:
                        await turn.add_result(call, self._new("r"))
        if turn.open_calls or turn.waiting_calls:
            return
        if self._dice.random() < 0.2:
            await turn.finish()
        elif self._dice.random() < 0.8:
            text = self._new("a")
            await turn.append(AIMessage(text, id=text))

    async def note(self) -> None:
        """Append outside of turns."""
        await self.chat.append(AIMessage(text := self._new("n"), id=text))

    async def plain(self) -> None:
        """Append a question with its answer, without a session."""
        self.questions.append(text := self._new("q"))
        answer = self._new("a")
        await self.chat.append([HumanMessage(text, id=text), AIMessage(answer, id=answer)])

    async def decide(self) -> None:
        """Decide about any call that waits."""
        calls = list[tuple[str, str]]()
        for asked in self.questions:
            found = await self.chat.get_turn(asked)
            if found is not None:
                waiting = [
                    *found.waiting_calls,
                    *(found.pending.waiting_calls if found.pending else ()),
                ]
                calls += [(asked, call.result_id) for call in waiting]
        if calls:
            asked, call = self._dice.choice(calls)
            verdict = self._dice.choice(_VERDICTS)
            args = {"x": 1} if verdict == "edit" else None
            await self.chat.decide(asked, call, verdict, args=args, message="so", by="eve")

    async def stop(self) -> None:
        """Stop any turn."""
        await self.chat.stop(self._dice.choice(self.questions))

    async def activate(self) -> None:
        """Switch to any variant."""
        await self.chat.activate(
            self._dice.choice(await self.chat.variants(self._dice.choice(self.questions)))
        )

    async def rewind(self) -> None:
        """Rewind to any of the last messages."""
        listed = await self.chat.list_messages(limit=6)
        if listed:
            await self.chat.rewind(before_id=str(self._dice.choice(listed).message.id))

    async def undo(self) -> None:
        """Undo the last change of what is shown."""
        await self.chat.undo_rewind()

    async def live(self, steps: int) -> None:
        """Let some of this happen; what cannot be done then is refused."""
        doings: list[Callable[[], Awaitable[None]]] = [
            *(self.ask, self.ask, self.regenerate, self.regenerate, self.edit, self.go_on),
            *(self.note, self.plain, self.decide, self.decide, self.stop),
            *(self.activate, self.activate, self.rewind, self.undo),
        ]
        await self.ask()
        for _ in range(steps):
            with suppress(ConvstoreError):
                await self._dice.choice(doings)()


async def told(chat: Conversation, questions: list[str]) -> dict[str, Any]:
    """What every reader says of a conversation, but for its id and what is not in its log."""
    info = await chat.info()
    [row] = await host_of(chat.store).rows([info])
    found: dict[str, Any] = {
        "info": info.model_dump(exclude={"conversation_id", "created_at", "updated_at"}),
        "row": (row.end.label, row.needs_attention),
        "turns": [turn.model_dump() async for turn in chat.turns(rewound=True)],
        "outline": [turn.model_dump() for turn in await chat.outline()],
        "listed": [
            stored.model_dump(exclude={"stamp"})
            for stored in await chat.list_messages(limit=1_000, rewound=True)
        ],
        "view": (await chat.load_history()).messages,
        "variants": {},
        "by id": {},
    }
    async for update in chat.watch(limit=1):
        found["watched"] = update.turn
        break
    for asked in questions:
        turn = await chat.get_turn(asked)
        found["by id"][asked] = turn and turn.model_dump(exclude={"error", "draft"})
        with suppress(ConvstoreError):
            found["variants"][asked] = [each.model_dump() for each in await chat.variants(asked)]
    return found


async def brought(chat: Conversation, path: Path) -> Conversation:
    """Import an export of a conversation into a store of its own, twice, and return it there."""
    written = io.BytesIO()
    await export_conversations(chat.store, written.write)
    await asyncio.to_thread(path.write_bytes, written.getvalue())
    there = await ConversationStore.connect("memory://")
    await there.setup()
    for _ in range(2):
        report = await import_conversations(there, read_file(path))
        assert report.problems == []
    again = io.BytesIO()
    await export_conversations(there, again.write)
    assert again.getvalue() == written.getvalue()
    return there.conversation(**SCOPE)


@pytest.mark.parametrize("seed", sampled(range(30), every=10))
async def test_every_reader_says_the_same_of_an_import(seed: int, tmp_path: Path) -> None:
    """Also after the last change was undone in both, and another answer was made the active one."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        life = Life(store.conversation(**SCOPE), seed)
        await life.live(14)
        copy = await brought(life.chat, tmp_path / "archive.jsonl")
        async with copy.store:
            await compare(life.chat, copy, life.questions)
            for chat in (life.chat, copy):
                await chat.undo_rewind()
            await compare(life.chat, copy, life.questions)
            for asked in life.questions:
                for chat in (life.chat, copy):
                    with suppress(ConvstoreError):
                        await chat.activate((await chat.variants(asked))[0])
            await compare(life.chat, copy, life.questions)
            assert (await copy.store.verify()).findings == ()


@pytest.mark.parametrize("seed", sampled(range(30), every=10))
async def test_an_import_of_a_fork_shows_what_the_fork_shows(seed: int, tmp_path: Path) -> None:
    """Wherever it was cut, such as before a question that replaces an earlier one, which the fork does not show."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        life = Life(store.conversation(**SCOPE), seed)
        await life.live(14)
        for stored in (await life.chat.list_messages(after=0, limit=1_000))[:6]:
            cut = str(stored.message.id)
            fork = await life.chat.fork(
                before_id=cut, key=cut, new_scope=SCOPE | {"thread_id": cut}
            )
            await compare_shown(fork, tmp_path / f"{stored.ordinal}.jsonl")


async def test_a_fork_before_an_edit_of_the_first_question_comes_back_empty(tmp_path: Path) -> None:
    """Nothing stands before the edit; the replaced question and all after it stay rewound."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        await chat.append([HumanMessage("q", id="q"), AIMessage("a", id="a")])
        async with await chat.turn("e", human="e", instead_of="q") as turn:
            await turn.append(AIMessage("b"))
        fork = await chat.fork(before_id="e", key="k", new_scope=SCOPE | {"thread_id": "fork"})
        assert [turn async for turn in fork.turns()] == []
        await compare_shown(fork, tmp_path / "fork.jsonl")


async def test_a_fork_before_another_answer_to_a_bare_question_comes_back(tmp_path: Path) -> None:
    """It shows what was shown before that answer: the question alone, which had been made active again."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        async with await chat.turn("q", human="q"):
            pass
        async with await chat.turn("q", regenerate="first") as turn:
            await turn.append(AIMessage("a"))
        async with await chat.turn("e", human="e", instead_of="q") as turn:
            await turn.append(AIMessage("b"))
        await chat.activate((await chat.variants("q"))[0])
        async with await chat.turn("q", regenerate="second") as turn:
            await turn.append(AIMessage("c", id="c"))
        fork = await chat.fork(before_id="c", key="k", new_scope=SCOPE | {"thread_id": "fork"})
        assert [message.id async for message in fork.messages()] == ["q"]
        await compare_shown(fork, tmp_path / "fork.jsonl")


async def test_what_was_appended_between_a_rewind_of_items_and_its_undo_stays_rewound(
    tmp_path: Path,
) -> None:
    """The undo rewinds it, and restores no message."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        await chat.append([HumanMessage("q", id="q"), AIMessage("a", id="a")])
        await chat.append(LogItem(id="i", kind="note", data={}))
        await chat.rewind(before_id="i")
        await chat.append([HumanMessage("r", id="r"), AIMessage("b", id="b")])
        await chat.undo_rewind()
        assert [message.id async for message in chat.messages()] == ["q", "a"]
        await compare_shown(chat, tmp_path / "archive.jsonl")


async def compare_shown(chat: Conversation, path: Path) -> None:
    """Import an export of a conversation into a store of its own, and compare what is active and what a model gets."""
    written = io.BytesIO()
    await export_conversations(chat.store, written.write, scope=dict(chat.scope))
    await asyncio.to_thread(path.write_bytes, written.getvalue())
    async with await ConversationStore.connect("memory://") as there:
        await there.setup()
        assert (await import_conversations(there, read_file(path))).problems == []
        copy = there.conversation(**chat.scope)
        found, said = [
            (
                [
                    (stored.message.id, stored.turn_id, stored.is_rewound)
                    for stored in await each.list_messages(after=0, limit=1_000, rewound=True)
                ],
                (await each.load_history()).messages,
            )
            for each in (copy, chat)
        ]
        assert found == said
        assert (await there.verify()).findings == ()


async def test_a_repaired_log_comes_back_whose_rewinds_no_call_could_make(tmp_path: Path) -> None:
    """Without two of its entries, a rewind of this log restores messages, too: an import rewinds what is in the end.

    It has all facts, too.
    """
    database = AsyncMongoMockClient()["app"]
    store = ConversationStore(database)
    await store.setup()
    await Life(store.conversation(**SCOPE), 30).live(14)
    entries = [each["_id"] async for each in database["log"].find({"first": {"$exists": True}})]
    await database["log"].delete_many({"_id": {"$in": [entries[0], entries[19]]}})
    await ConversationStore(database).verify(repair=True)
    chat = ConversationStore(database).conversation(**SCOPE)
    writer = (await host_of(chat).services()).writer
    await writer.append(tuple(SCOPE.items()), (), facts=IMPORTED.put(True))
    written = io.BytesIO()
    await export_conversations(chat.store, written.write)
    path = tmp_path / "archive.jsonl"
    await asyncio.to_thread(path.write_bytes, written.getvalue())
    async with await ConversationStore.connect("memory://") as there:
        await there.setup()
        assert (await import_conversations(there, read_file(path))).problems == []
        log = log_of(there.conversation(**SCOPE))
        end = await log.snapshot()
        assert end
        facts = [change.name for change in await log.changes(end) if change.is_fact]
        assert facts == [IMPORTED.name]
        shown = [
            [(row.message.id, row.is_rewound) for row in await each.list_messages(rewound=True)]
            for each in (chat, there.conversation(**SCOPE))
        ]
    assert shown[0] == shown[1]


async def test_two_imports_at_once_make_each_change_once(
    database: AsyncDatabase[dict[str, Any]], tmp_path: Path, scope: dict[str, str]
) -> None:
    """Two processes import one archive: what they make together is what it has, and neither reports a problem."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        life = Life(store.conversation(**scope), 1)
        await life.live(14)
        await export_conversations(store, (written := io.BytesIO()).write)
    path = tmp_path / "archive.jsonl"
    await asyncio.to_thread(path.write_bytes, written.getvalue())
    stores = [ConversationStore(database), ConversationStore(database)]
    reports = await asyncio.gather(
        *(import_conversations(each, read_file(path)) for each in stores)
    )
    assert [report.problems for report in reports] == [[], []]
    end = [message async for message in stores[0].conversation(**scope).messages(rewound=True)]
    assert sum(report.messages for report in reports) == len(end)
    await export_conversations(stores[0], (again := io.BytesIO()).write, scope=scope)
    assert again.getvalue() == written.getvalue()
    for each in stores:
        await each.close()


async def test_an_entry_of_a_variant_that_is_too_large_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variant is shown when its last part is there, as one that was written whole."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        async with await chat.turn("q", human="?") as turn:
            await turn.append(AIMessage("First.", id="a1"))
        async with await chat.turn("q", regenerate="k") as turn:
            call = {"name": "t", "args": {}, "id": "c"}
            large = "".join(random.Random(1).choices(ascii_letters, k=2_000))
            result = ToolMessage(large, tool_call_id="c", id="r")
            asking = AIMessage(large, tool_calls=[call], id="c")
            await turn.append([asking, result, AIMessage(large, id="a2")])
        await export_conversations(store, (written := io.BytesIO()).write)
        path = tmp_path / "archive.jsonl"
        await asyncio.to_thread(path.write_bytes, written.getvalue())
        async with await ConversationStore.connect("memory://") as there:
            await there.setup()
            with monkeypatch.context() as small:
                small.setattr("convstore.mongo.documents.ENTRY_BYTES", 4_000)
                assert (await import_conversations(there, read_file(path))).problems == []
            copy = there.conversation(**SCOPE)
            end = await log_of(copy).snapshot()
            assert end
            changes = await log_of(copy).changes(end)
            made = [(change.kind, change.ordinal, change.shows) for change in changes]
            assert made == [("begin", 2, False), ("append", 3, False), ("append", 5, True)]
            await compare(chat, copy, ["q"])
            for each in (chat, copy):
                await each.activate((await each.variants("q"))[0])
            await compare(chat, copy, ["q"])


async def test_a_stamp_from_before_a_rewind_is_not_archived(tmp_path: Path) -> None:
    """An import would bind it to the log after the rewind, which is not what the model was shown."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        await chat.append([HumanMessage("One?", id="q1"), AIMessage("1", id="a1")])
        for answer, is_rewound in (("a2", False), ("a3", True)):
            await chat.append(HumanMessage("Two?", id=f"q of {answer}"))
            stamp = (await chat.load_history()).stamp
            if is_rewound:
                await chat.rewind(before_id=f"q of {answer}")
            await chat.append(AIMessage("2", id=answer), stamp=stamp)
        copy = await brought(chat, tmp_path / "archive.jsonl")
        async with copy.store:
            listed = {row.message.id: row.stamp for row in await copy.list_messages()}
    assert listed["a2"]
    assert listed["a3"] is None


async def test_a_rewind_of_items_alone_changes_no_import(tmp_path: Path) -> None:
    """Nor does its undo, which an import would make of the rewind of messages before it."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        await chat.append([HumanMessage("q", id="q"), AIMessage("a", id="a")])
        await chat.rewind(before_id="a")
        await chat.append(LogItem(id="i", kind="note", data={}))
        await chat.rewind(before_id="i")
        await chat.undo_rewind()
        copy = await brought(chat, tmp_path / "archive.jsonl")
        async with copy.store:
            await compare(chat, copy, ["q"])


async def test_an_import_says_which_changes_did_nothing_or_contradict_the_ranges(
    tmp_path: Path,
) -> None:
    """An archive that shows what is shown, and lacks the range that its rewind hides."""
    written = io.BytesIO()
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(**SCOPE)
        async with await chat.turn("q", human="?") as turn:
            await turn.append(AIMessage("First."))
        async with await chat.turn("q", regenerate="again") as turn:
            await turn.append(AIMessage("Second."))
        await chat.activate((await chat.variants("q"))[0])
        await chat.append([HumanMessage("More?", id="more"), AIMessage("Yes.")])
        await chat.rewind(before_id="more")
        await export_conversations(store, written.write)
    *lines, last = written.getvalue().splitlines()
    end = json.loads(last)
    end["end"]["rewound"].pop()
    changes = end["end"]["changes"]
    at = [change["kind"] for change in changes].index("activate")
    changes.insert(at, changes[at])
    path = tmp_path / "archive.jsonl"
    await asyncio.to_thread(path.write_bytes, b"\n".join([*lines, json.dumps(end).encode()]))
    async with await ConversationStore.connect("memory://") as there:
        await there.setup()
        report = await import_conversations(there, read_file(path))
    assert [problem.reason for problem in report.problems] == [
        "still rewound: 3 messages that the source shows; see undo_rewind",
        "not made: 1 change of turns",
    ]


_LATE: dict[str, Callable[[ConversationLog], Awaitable[object]]] = {
    "begin": lambda log: log.make_change(_change("begin", turn="q", variant="third")),
    "activate": lambda log: log.make_change(_change("activate", turn="q", variant="q")),
    "rewind": lambda log: log.make_change(_change("rewind", message="q")),
    "undo": lambda log: log.make_change(_change("undo")),
    "event": lambda log: log.make_change(_change("finish", turn="q")),
    "event of a variant": lambda log: log.make_change(_change("finish", turn="q", variant="open")),
    "messages": lambda log: log.append([AIMessage("Late.", id="late")]),
    "messages that came meanwhile": lambda log: log.append([SystemMessage("-", id="meanwhile")]),
}


def _change(kind: str, *, turn: str = "", variant: str = "", message: str = "") -> LogChange:
    now = datetime.now(UTC)
    return LogChange(0, kind, now, turn, turn, variant, message=message)


@pytest.mark.parametrize("name", _LATE)
async def test_an_import_writes_nothing_after_what_it_has_not_seen(
    database: AsyncDatabase[dict[str, Any]], scope: dict[str, str], name: str
) -> None:
    """Whatever it writes: another import may have written just that, so it has to look again."""
    store = ConversationStore(database)
    chat = store.conversation(**scope)
    async with await chat.turn("q", human="?") as turn:
        await turn.append(AIMessage("First."))
    async with await chat.turn("q", regenerate="second") as turn:
        await turn.append(AIMessage("Second."))
    async with await chat.turn("q", regenerate="open") as turn:
        await turn.append(AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c"}]))
    await chat.append(HumanMessage("Then?", id="then"))
    await chat.rewind(before_id="then")
    log = log_of(chat)
    await log.look()
    await chat.append(SystemMessage("-", id="meanwhile"))
    before = await log.snapshot()
    with pytest.raises(TailMoved):
        await _LATE[name](log)
    assert await log.snapshot() == before
    assert await log.has_moved()
    await store.close()


async def compare(chat: Conversation, copy: Conversation, questions: list[str]) -> None:
    """Ask every reader of both."""
    there = await told(copy, questions)
    for name, said in (await told(chat, questions)).items():
        assert there[name] == said, name
