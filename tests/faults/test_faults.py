"""Acknowledged writes hold under every fault on a real replica set, and the checker finds violations.

``CONVSTORE_FAULT_ROUNDS=10`` does each ten times; ``python tests/support/faults.py --minutes 10`` prints a table.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from bson import ObjectId
from fault_checker import Findings, check_round
from fault_client import USER, Marks, Summarizer, make_turn
from faults import FAULTS, Field, table
from fixture_types import Client
from properties import soaked

from convstore import ConversationStore

ROUNDS = int(os.environ.get("CONVSTORE_FAULT_ROUNDS", "1"))

pytestmark = pytest.mark.slow  # the tests of the checker too: other tests do not use it


@pytest.fixture(scope="module")
async def field() -> AsyncIterator[Field]:
    """A replica set and its clients, on which all rounds follow each other."""
    async with Field() as field:
        yield field


_ALONE = ("kill_client",)
"""Faults that others have in them: `kill_both` kills a client, too."""


@pytest.mark.parametrize(
    "fault",
    [name for name in FAULTS if name not in ("no_fault", *_ALONE)] + soaked(_ALONE, first=0),
)
async def test_everything_acknowledged_holds(field: Field, fault: str) -> None:
    """Under every fault no acknowledged message is lost or doubled, and no reader sees a gap.

    Every stub leads to its payload.
    """
    rounds = [await field.round(fault) for _ in range(ROUNDS)]
    assert [findings.problems for findings in rounds] == [{}] * ROUNDS, table({fault: rounds})
    assert all(min(findings.acknowledged, findings.reads) > 10 for findings in rounds), (
        "nobody worked"
    )


class Forged:
    """A round of one true conversation with true notes, to which a false one is added."""

    def __init__(self, database: Any, kind: str = "plain") -> None:
        self.database = database
        self.thread = f"{kind}-{uuid.uuid4().hex[:8]}"
        self.notes: list[dict[str, Any]] = []
        self.store = ConversationStore(database, summarizer=Summarizer())
        self.chat = self.store.conversation(user_id=USER, thread_id=self.thread)
        self.ids: list[str] = []

    async def append(self, turn: str) -> None:
        """Append a turn and record its acknowledgement."""
        receipt = await self.chat.append(make_turn(turn))
        self.ids += receipt.message_ids
        self.note("try", turn=turn)
        sources = receipt.source_ids and [*receipt.source_ids]
        self.note("acknowledged", turn=turn, ordinals=list(receipt.ordinals), sources=sources)

    def note(self, what: str, **values: Any) -> None:
        """Return a line of a client's journal."""
        note = {
            "what": what,
            "at": time.time(),
            "thread": self.thread,
            "client": "patient0",
            **values,
        }
        self.notes.append(note)

    def saw(self, what: str, ids: list[str], **values: Any) -> None:
        """Return a reader's line of a journal."""
        self.note(f"saw {what}", mark=str(Marks(ids)), **values)

    async def check(self) -> Findings:
        """Return the findings of the checker."""
        return await check_round(self.database, [self.thread], self.notes, since=0.0)


@pytest.fixture
async def forged(pymongo_client: Client, database_name: str) -> Forged:
    """Three turns, of which each has a result at least, and everything a reader may have seen."""
    round_ = Forged(pymongo_client[database_name])
    await round_.store.setup()
    turns = (name for name in map("t{}".format, range(100)) if len(make_turn(name)) > 2)
    for name in [next(turns) for _ in range(3)]:
        await round_.append(name)
    first = len(make_turn(round_.notes[0]["turn"]))
    for ids in ([], round_.ids[:first], round_.ids):
        round_.saw("log", ids, begun=0.0, count=len(ids))
        round_.saw("page", ids, ordinals=[[1, len(ids)]] if ids else [])
        round_.saw("view", ids, summary=None, wrong=0)
    return round_


async def test_the_checker_finds_nothing_wrong_where_nothing_is(forged: Forged) -> None:
    """True notes make no findings, those of a rewind, a compaction, a reservation and an annotation among them."""
    before = list(forged.ids)
    reserved = await forged.chat.reserve_source_ids(3)
    forged.note("reserved", first=reserved[0], last=reserved[-1])
    await forged.chat.annotate(before[0], seen=2)
    forged.note("annotated", id=before[0], value=2)
    made = (await forged.chat.compact(force=True)).summary
    assert made
    forged.note("compacted", version=made.version, last=made.last, text=made.text)
    forged.saw("view", before[made.last :], summary=made.text, wrong=0)
    findings = await forged.check()
    assert findings.problems == {}
    assert (findings.acknowledged, findings.reads, findings.orphans, findings.older) == (
        3,
        10,
        0,
        0,
    )


async def test_the_checker_knows_what_a_rewind_leaves(forged: Forged) -> None:
    """A page and a view may lack what was rewound, and nothing else."""
    active = forged.ids[:-1]
    await forged.chat.rewind(before_id=forged.ids[-1])
    forged.note("rewound", id=forged.ids[-1], count=1)
    await forged.append("after")
    left = [*active, *(str(message.id) for message in make_turn("after"))]
    forged.saw("page", left, ordinals=[[1, len(active)], [len(active) + 2, len(forged.ids)]])
    forged.saw("view", left, summary=None, wrong=0)
    assert (await forged.check()).problems == {}
    forged.saw("view", forged.ids, summary=None, wrong=0)
    assert set((await forged.check()).problems) == {"hole"}


FALSE_NOTES: dict[str, tuple[str, dict[str, Any]]] = {
    "a turn that is not there": (
        "lost",
        {"what": "acknowledged", "turn": "lost", "ordinals": [1], "sources": None},
    ),
    "an error": ("error", {"what": "wrong", "problem": "TypeError"}),
    "an annotation that is not there": ("lost", {"what": "annotated", "id": "first", "value": 2}),
    "a summary that is not there": (
        "lost",
        {"what": "compacted", "version": 1, "last": 4, "text": "through"},
    ),
    "a number that a source has": ("source number", {"what": "reserved", "first": 1, "last": 3}),
    "a rewind that is not there": ("unrewound", {"what": "rewound", "id": "first", "count": 1}),
    "a hit of another conversation": (
        "foreign",
        {"what": "saw hits", "begun": 0.0, "turn": "", "hits": [[1, "x|0"]]},
    ),
    "a hit twice": (
        "doubled",
        {"what": "saw hits", "begun": 0.0, "turn": "", "hits": [[1, "first"], [1, "first"]]},
    ),
    "a turn that is not found": (
        "lost",
        {"what": "saw hits", "begun": 0.0, "turn": "first", "hits": []},
    ),
    "another payload": ("payload", {"what": "saw payload", "id": "first", "equal": False}),
}


@pytest.mark.parametrize("acknowledged", FALSE_NOTES)
async def test_the_checker_finds_what_does_not_hold(forged: Forged, acknowledged: str) -> None:
    """Each kind of violated acknowledgement is found under its name."""
    name, note = FALSE_NOTES[acknowledged]
    forged.note(**({"id": forged.ids[0]} | note if note.get("id") == "first" else note))
    if note.get("id") == "first":
        forged.notes[-1]["id"] = forged.ids[0]
    if note["what"] == "saw hits":
        hits = [
            [ordinal, forged.ids[0] if id_ == "first" else id_] for ordinal, id_ in note["hits"]
        ]
        forged.notes[-1] |= {"hits": hits, "turn": note["turn"] and forged.notes[0]["turn"]}
    assert set((await forged.check()).problems) == {name}


@pytest.mark.parametrize("what", ["log", "page", "view"])
@pytest.mark.parametrize(
    "shape", ["a message is missing", "two are the other way round", "half of a batch"]
)
async def test_the_checker_finds_holes(forged: Forged, what: str, shape: str) -> None:
    """Any list of messages that is not the log up to an entry is one."""
    ids, ordinals = list(forged.ids), [[1, len(forged.ids)]]
    match shape:
        case "a message is missing":
            del ids[1]
            ordinals = [[1, 1], [3, len(forged.ids)]]
        case "two are the other way round":
            ids[1:3] = ids[2:0:-1]
        case _:
            ids, ordinals = ids[:1], [[1, 1]]
    values = {"begun": 0.0, "count": len(ids), "ordinals": ordinals, "summary": None, "wrong": 0}
    forged.saw(what, ids, **values)
    assert set((await forged.check()).problems) == {"hole"}


async def test_the_checker_finds_what_was_written_twice_or_by_nobody(forged: Forged) -> None:
    """A turn that nobody tried is foreign; one in the log that was cut short is changed."""
    await forged.chat.append(make_turn("stranger"))
    await forged.chat.append(make_turn("short")[:1])
    forged.note("try", turn="short")
    assert set((await forged.check()).problems) == {"foreign", "changed"}


async def test_the_checker_finds_orphans_and_lost_chunks(forged: Forged) -> None:
    """A chunk that no entry leads to is counted and swept; one that is missing breaks the read of the log."""
    log = forged.database["log"]
    head = await forged.database["heads"].find_one({"scope.thread_id": forged.thread})
    key = f"{head['conversation']}#{ObjectId()}#000000"
    await log.insert_one({"_id": key, "conversation": head["conversation"], "data": b""})
    findings = await forged.check()
    assert (findings.orphans, findings.problems) == (1, {})
    assert (await forged.check()).orphans == 0
    await log.delete_many({"conversation": head["conversation"], "data": {"$exists": True}})
    assert set((await forged.check()).problems) == {"unreadable"}


@pytest.fixture
async def ended(own_database: Any) -> Forged:
    """A conversation that was deleted, and one that began after it."""
    round_ = Forged(own_database, "deleted")
    await round_.store.setup()
    await round_.append("before")
    await round_.chat.delete()
    round_.note("deleted")
    await round_.append("after")
    return round_


async def test_the_checker_knows_what_a_deletion_leaves(ended: Forged) -> None:
    """The checker accepts that messages acknowledged before a deletion are missing. Later messages are in the log."""
    findings = await ended.check()
    assert (findings.problems, findings.deleted) == ({}, 1)
    assert await ended.database["heads"].count_documents({}) == 1
    assert len([message async for message in ended.chat.messages(rewound=True)]) == len(
        make_turn("after")
    )


async def test_the_checker_finds_hits_of_a_deleted_conversation(ended: Forged) -> None:
    """A client that deleted its turn finds it no more."""
    ended.note("saw hits", begun=time.time() - 3600, turn="", hits=[[1, ended.ids[0]]])
    assert (await ended.check()).problems == {}
    ended.note("saw hits", begun=time.time(), turn="", hits=[[1, ended.ids[0]]])
    assert set((await ended.check()).problems) == {"foreign"}


@pytest.mark.parametrize("collection", ["log", "summaries", "annotations"])
@pytest.mark.parametrize("is_known", [True, False])
async def test_the_checker_finds_what_is_left_behind(
    ended: Forged, collection: str, is_known: bool
) -> None:
    """The checker finds documents of unknown conversations, and those that sweeps of a deleted one do not reach."""
    tombstone = await ended.database["heads"].find_one({"sweep_at": {"$exists": True}})
    conversation = tombstone["conversation"] if is_known else "nobody"
    await ended.database[collection].insert_one(
        {"_id": f"strange:{conversation}", "conversation": conversation}
    )
    assert set((await ended.check()).problems) == {"left behind"}
