"""Compares the log of a round with what its clients wrote and read; for the fault runs (`faults.py`).

The log is read with majority concern when every node is there again. Problems are sorted under a name each, so that
a table can count them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fault_client import USER, Marks, make_turn, read_note
from langchain_core.messages import BaseMessage, ToolMessage
from pymongo import ReadPreference
from pymongo.read_concern import ReadConcern

from convstore import Conversation, ConversationStore
from convstore.exceptions import ConvstoreError
from convstore.log.entry import Entry
from convstore.log.rewind import NO_REWINDS
from convstore.mongo.documents import entry_from
from convstore.mongo.keys import OF_CONVERSATIONS, chunk_id, entry_range, log_ranges
from convstore.runtime.clock import Clock
from convstore.testing import same_messages
from convstore.values.models import Summary

__all__ = ["Findings", "check_round", "read_notes"]

Notes = Sequence[Mapping[str, Any]]

_IDS_AT_ONCE = 200
_LEFT_BEHIND = {"head_behind", "head_entry", "orphan_chunks", "summary_unused"}


@dataclass
class Findings:
    """The figures of a round, and its violations.

    Attributes:
        acknowledged: Turns whose append was acknowledged.
        refused: Calls that ended with `StoreUnavailableError`, and were made again.
        cancelled: Appends that were cancelled in the middle, and made again.
        deleted: Conversations whose deletion was acknowledged.
        reads: Logs, pages, views and payloads that were read meanwhile.
        older: Reads of a log without an entry that the same client had seen acknowledged.
        orphans: Chunks that no entry leads to, before a sweep.
        stall: Longest time without an acknowledged turn of any patient client.
        problems: What must not be, in words, by what is broken: "lost", "doubled", "hole", …
    """

    acknowledged: int = 0
    refused: int = 0
    cancelled: int = 0
    deleted: int = 0
    reads: int = 0
    older: int = 0
    orphans: int = 0
    stall: float = 0.0
    problems: dict[str, list[str]] = field(default_factory=dict)

    def wrong(self, what: str, problem: str) -> None:
        """Note a problem."""
        self.problems.setdefault(what, []).append(problem)

    def count(self, what: str) -> int:
        """Count a violation."""
        return len(self.problems.get(what, ()))


@dataclass(frozen=True)
class Stored:
    """A conversation as it is stored in the end: the log, its entries, every summary, the keys of its chunks."""

    chat: Conversation
    messages: Sequence[BaseMessage]
    entries: Sequence[Entry]
    summaries: Sequence[Summary]
    chunks: frozenset[str]
    conversation: str

    @property
    def ids(self) -> list[str]:
        """The ids of the messages in the log."""
        return [str(message.id) for message in self.messages]

    @property
    def ends(self) -> list[int]:
        """Last ordinals of the entries: what a reader may see is the log up to one of them."""
        return [0, *(entry.last for entry in self.entries)]

    def live_at(self, number: int) -> list[str]:
        """Ids that views show after an entry."""
        gone = self.rewound[number]
        return [
            id_
            for ordinal, id_ in enumerate(self.ids[: self.entries[number - 1].last], 1)
            if ordinal not in gone
        ]

    @cached_property
    def rewound(self) -> list[set[int]]:
        """The ordinals that are rewound before any entry and after each of them."""
        rewinds, found = NO_REWINDS, [set[int]()]
        for entry in self.entries:
            rewinds = rewinds.after(entry) if entry.is_rewind else rewinds
            found.append(
                {
                    ordinal
                    for range_ in rewinds.ranges
                    for ordinal in range(range_.first, range_.last + 1)
                }
            )
        return found


def read_notes(journals: Iterable[Path]) -> list[Mapping[str, Any]]:
    """Everything that clients wrote down, lines apart that were cut off when their client was killed."""
    notes = list[Mapping[str, Any]]()
    for journal in journals:
        found = map(read_note, journal.read_text(encoding="utf-8").splitlines())
        notes += [{**note, "client": journal.stem} for note in found if note is not None]
    return notes


async def check_round(
    database: Any, threads: Sequence[str], notes: Notes, *, since: float
) -> Findings:
    """Compare the conversations of a round with the notes of its clients, which have settled."""
    findings = Findings()
    own = [note for note in notes if note.get("thread") in threads]
    for note in notes:
        if note["at"] >= since and note["what"] == "wrong":
            findings.wrong("error", note["problem"])
    findings.acknowledged = sum(note["what"] == "acknowledged" for note in own)
    findings.refused = sum(note["what"] == "refused" and note["at"] >= since for note in notes)
    findings.cancelled = sum(note["what"] == "cancelled" for note in own)
    findings.deleted = sum(note["what"] == "deleted" for note in own)
    findings.reads = sum(note["what"].startswith("saw") for note in own)
    findings.stall = _stall([note for note in own if not note["client"].startswith("impatient")])
    for thread in threads:
        in_thread = [note for note in own if note["thread"] == thread]
        is_kept = not thread.startswith("deleted")
        findings.older += _count_older(in_thread) if is_kept else 0
        try:
            await (_check_conversation if is_kept else _check_deleted)(
                database, thread, in_thread, findings
            )
        except ConvstoreError as error:
            findings.wrong("unreadable", f"{thread}: {error}")
    return findings


def _stall(notes: Notes) -> float:
    """The longest time between two answers."""
    moments = sorted(note["at"] for note in notes if note["what"] == "acknowledged")
    return max((after - before for before, after in itertools.pairwise(moments)), default=0.0)


def _count_older(notes: Notes) -> int:
    last, older = dict[str, list[tuple[float, int]]](), 0
    for note in notes:
        before = last.setdefault(note["client"], [])
        if note["what"] == "acknowledged" and note["ordinals"]:
            before.append((note["at"], max(note["ordinals"])))
        elif note["what"] == "saw log":
            older += any(at < note["begun"] and ordinal > note["count"] for at, ordinal in before)
    return older


async def _check_conversation(database: Any, thread: str, notes: Notes, findings: Findings) -> None:
    chat = ConversationStore(database).conversation(user_id=USER, thread_id=thread)
    stored = await _read(database, chat)
    _check_log(stored, notes, findings)
    _check_reported(stored, notes, findings)
    _check_seen(stored, notes, findings)
    _check_hits(stored, notes, findings)
    await _check_search(database, stored, findings)
    _check_sources(stored, notes, findings)
    await _check_payloads(stored, findings)
    await _check_summaries(stored, notes, findings)
    await _check_annotations(stored, notes, findings)
    await _sweep(database, chat, findings)


async def _check_deleted(database: Any, thread: str, notes: Notes, findings: Findings) -> None:
    """Conversations begun after the last deletion are whole; nothing is left of ended ones."""
    chat = ConversationStore(database).conversation(user_id=USER, thread_id=thread)
    _check_hits_after_deletions(notes, findings)
    if (await chat.info()).created_at:
        stored = await _read(database, chat)
        _check_log(stored, notes, findings)
        await _check_search(database, stored, findings)
        await _check_payloads(stored, findings)
        await _sweep(database, chat, findings)
    await _check_ended(database, findings)


async def _check_ended(database: Any, findings: Findings) -> None:
    """Check that each conversation has a head or a tombstone, and that all sweeps leave nothing of a deleted one."""
    if strays := await _conversations(database) - await _named(database):
        findings.wrong("left behind", f"without a head and a tombstone: {strays}")
    # An end that broke off has a head still.
    ended = await _named(database, sweep_at={"$exists": True}) - await _named(
        database, scope={"$exists": True}
    )
    for hours in (1, 48):
        later = Clock(now=lambda: datetime.now(UTC) + timedelta(hours=hours))  # noqa: B023
        await ConversationStore(database, clock=later).prune(older_than=timedelta(days=9_000))
    if left := await _conversations(database) & ended:
        findings.wrong("left behind", f"after all sweeps: {left}")
    if kept := ended & await _named(database):
        findings.wrong("left behind", f"tombstones after all sweeps: {kept}")


async def _conversations(database: Any) -> set[str]:
    """Return the ids of all conversations with stored documents."""
    return {
        id_
        for name in OF_CONVERSATIONS
        for id_ in await _collection(database, name).distinct("conversation")
    }


async def _named(database: Any, **query: Any) -> set[str]:
    """Return the ids of the conversations that matching heads and tombstones name."""
    return set(await _collection(database, "heads").distinct("conversation", query))


def _collection(database: Any, name: str) -> Any:
    return database.get_collection(
        name, read_concern=ReadConcern("majority"), read_preference=ReadPreference.PRIMARY
    )


async def _read(database: Any, chat: Conversation) -> Stored:
    heads, log = (_collection(database, name) for name in ("heads", "log"))
    conversation = (await heads.find_one({"scope.thread_id": chat.scope["thread_id"]}))[
        "conversation"
    ]
    low, high = entry_range(conversation)
    documents = await log.find({"_id": {"$gte": low, "$lt": high}}).sort("_id", 1).to_list(None)
    low, high = log_ranges(conversation)[1]
    chunks = await log.find({"_id": {"$gte": low, "$lt": high}}, {"_id": 1}).to_list(None)
    return Stored(
        chat,
        [message async for message in chat.messages(rewound=True)],
        [entry_from(document) for document in documents],
        await chat.summaries(),
        frozenset(chunk["_id"] for chunk in chunks),
        conversation,
    )


def _check_log(stored: Stored, notes: Notes, findings: Findings) -> None:
    """Dense, each message once, each turn whole and as it was made, and none that nobody appended."""
    ids, tried = stored.ids, {note["turn"] for note in notes if note["what"] == "try"}
    for id_, times in Counter(ids).items():
        if times > 1:
            findings.wrong("doubled", f"{id_} is in the log {times} times")
    numbers = [entry.number for entry in stored.entries]
    ordinals = [message.ordinal for entry in stored.entries for message in entry.messages]
    if numbers != [*range(1, len(numbers) + 1)] or ordinals != [*range(1, len(ids) + 1)]:
        findings.wrong("hole", f"entries {numbers} with messages {ordinals}")
    for turn, group in itertools.groupby(
        stored.messages, key=lambda message: str(message.id).rpartition("|")[0]
    ):
        found = list(group)
        if turn not in tried:
            findings.wrong("foreign", f"nobody appended {turn}")
        elif not same_messages(found, _made(turn)):
            findings.wrong(
                "changed", f"{turn} is not what was appended: {[message.id for message in found]}"
            )


@cache
def _made(turn: str) -> list[BaseMessage]:
    return make_turn(turn)


def _check_reported(stored: Stored, notes: Notes, findings: Findings) -> None:
    """Acknowledged messages are in the log at their acknowledged ordinals; rewound ones are not active."""
    ids = stored.ids
    there = set(ids)
    for note in notes:
        if note["what"] == "acknowledged":
            wanted = [str(message.id) for message in _made(note["turn"])]
            if missing := [id_ for id_ in wanted if id_ not in there]:
                findings.wrong("lost", f"{note['client']} got an acknowledgement of {missing}")
            elif note["ordinals"] and [ids[ordinal - 1] for ordinal in note["ordinals"]] != wanted:
                findings.wrong("moved", f"{note['turn']} is not at {note['ordinals']}")
    gone = stored.rewound[-1]
    for note in notes:
        if (
            note["what"] == "rewound"
            and note["id"] in there
            and ids.index(note["id"]) + 1 not in gone
        ):
            findings.wrong("unrewound", f"{note['id']} was rewound and is shown")


def _check_seen(stored: Stored, notes: Notes, findings: Findings) -> None:
    """Each read is a prefix of the log: a page without rewound messages, a view from its summary on."""
    checks = {"saw log": _log_marks(stored), "saw view": _view_marks(stored)}
    pages = _Pages(stored)
    for note in notes:
        if (
            note["what"] in checks
            and (note.get("summary") or "", note["mark"]) not in checks[note["what"]]
        ):
            findings.wrong("hole", str(note))
        if note["what"] == "saw page" and not pages.could_be(note["ordinals"], note["mark"]):
            findings.wrong("hole", str(note))
        if note["what"] in {"saw view", "saw short view"} and note["wrong"]:
            findings.wrong("invalid view", str(note))
        if note["what"] == "saw payload" and not note["equal"]:
            findings.wrong("payload", str(note))


def _check_hits(stored: Stored, notes: Notes, findings: Findings) -> None:
    """Hits are messages of the log, each once; the turn that was asked for is among them unless it was rewound."""
    ids = stored.ids
    gone = stored.rewound[-1]
    for note in (document for document in notes if document["what"] == "saw hits"):
        ordinals = [ordinal for ordinal, _ in note["hits"]]
        if len(set(ordinals)) < len(ordinals):
            findings.wrong("doubled", str(note))
        if any(ordinal > len(ids) or ids[ordinal - 1] != id_ for ordinal, id_ in note["hits"]):
            findings.wrong("foreign", str(note))
        question = f"{note['turn']}|0"
        found = [id_ for _, id_ in note["hits"]]
        if (
            note["turn"]
            and question not in found
            and question in ids
            and ids.index(question) + 1 not in gone
        ):
            findings.wrong("lost", str(note))
        for other in notes:
            is_earlier = other["at"] < note["begun"] and other["client"] == note["client"]
            if other["what"] == "rewound" and is_earlier and other["id"] in found:
                findings.wrong("unrewound", str(note))


def _check_hits_after_deletions(notes: Notes, findings: Findings) -> None:
    """No client finds a turn that it appended before it deleted the conversation."""
    acknowledged, deleted = dict[str, set[str]](), dict[tuple[str, str], float]()
    for note in notes:
        client = note["client"]
        if note["what"] == "acknowledged":
            acknowledged.setdefault(client, set()).add(note["turn"])
        elif note["what"] == "deleted":
            deleted |= {(client, turn): note["at"] for turn in acknowledged.pop(client, ())}
        elif note["what"] == "saw hits":
            ids = [id_ for _, id_ in note["hits"]]
            if len(set(ids)) < len(ids):
                findings.wrong("doubled", str(note))
            if any(
                deleted.get((client, id_.rpartition("|")[0]), note["at"]) < note["begun"]
                for id_ in ids
            ):
                findings.wrong("foreign", str(note))


async def _check_search(database: Any, stored: Stored, findings: Findings) -> None:
    """Segments give the hits of a scan, whoever was killed while sealing."""
    scanning = ConversationStore(database, search_index=False).conversation(**stored.chat.scope)
    for query in (
        "reef tide",
        "what is it",
        *(str(message.text)[:40] for message in stored.messages[-1:]),
    ):
        if await stored.chat.search(query, limit=50) != await scanning.search(query, limit=50):
            findings.wrong("search", f"{stored.chat.scope}: segments and scan differ for {query!r}")


def _log_marks(stored: Stored) -> set[tuple[str, str]]:
    marks = Marks()
    each = [str(marks), *map(marks.add, stored.ids)]
    return {("", each[end]) for end in stored.ends}


def _view_marks(stored: Stored) -> set[tuple[str, str]]:
    """Marks of all views without a summary, and of those after the message that a summary names as its last."""
    found = _log_marks(stored)
    if any(entry.totals.rewind_entry for entry in stored.entries):
        found = {("", str(Marks()))} | {
            ("", str(Marks(stored.live_at(entry.number)))) for entry in stored.entries
        }
    for summary in stored.summaries:
        marks = Marks()
        each = [str(marks), *map(marks.add, stored.ids[summary.last :])]
        found |= {
            (summary.text, each[end - summary.last]) for end in stored.ends if end >= summary.last
        }
    return found


class _Pages:
    """Valid pages of all messages: those up to an entry, without those that one of the rewind entries names."""

    def __init__(self, stored: Stored) -> None:
        self._ids, self._ends = stored.ids, set(stored.ends)
        self._gone = [
            set(ordinals) for ordinals in {frozenset(ordinals) for ordinals in stored.rewound}
        ]

    def could_be(self, ordinals: Sequence[Sequence[int]], mark: str) -> bool:
        """Return True if these ordinals, with ids of this mark, are such a page."""
        shown = [ordinal for first, last in ordinals for ordinal in range(first, last + 1)]
        if any(ordinal > len(self._ids) for ordinal in shown):
            return False
        if str(Marks([self._ids[ordinal - 1] for ordinal in shown])) != mark:
            return False
        return any(self._is_whole(shown, gone) for gone in self._gone)

    def _is_whole(self, shown: Sequence[int], gone: set[int]) -> bool:
        last = shown[-1] if shown else 0
        if shown != [ordinal for ordinal in range(1, last + 1) if ordinal not in gone]:
            return False
        while last not in self._ends and last + 1 in gone:
            last += 1  # the end of an entry may be gone
        return last in self._ends


def _check_sources(stored: Stored, notes: Notes, findings: Findings) -> None:
    """No number names two sources, no reserved one is used, and clients got the right ones."""
    sources = [source for entry in stored.entries for source in entry.sources]
    reserved = [
        number
        for note in notes
        if note["what"] == "reserved"
        for number in (note["first"], note["last"])
    ]
    reserved += [first + 1 for first in reserved[::2]]
    for number, times in Counter([*(source.id for source in sources), *reserved]).items():
        if times > 1:
            findings.wrong("source number", f"{number} was given {times} times")
    by_turn: dict[str, list[int]] = {}
    for source in sources:
        by_turn.setdefault(source.message_id.rpartition("|")[0], []).append(source.id)
    for note in notes:
        if note["what"] == "acknowledged" and note["sources"]:
            numbers = by_turn.get(note["turn"], [0])
            if note["sources"] != [min(numbers), max(numbers)]:
                findings.wrong(
                    "source number", f"{note['turn']} has {numbers}, not {note['sources']}"
                )


async def _check_payloads(stored: Stored, findings: Findings) -> None:
    """Every stub leads to its result, equal to what was appended; counts the chunks that nothing leads to."""
    results = {
        str(message.id): message for message in stored.messages if isinstance(message, ToolMessage)
    }
    ids = list(results)
    for begin in range(0, len(ids), _IDS_AT_ONCE):
        for record in await stored.chat.get_tool_messages(ids[begin : begin + _IDS_AT_ONCE]):
            result = results.pop(record.tool_message_id)
            if (record.content, record.artifact) != (
                result.content,
                result.artifact,
            ) or not record.sources:
                findings.wrong("payload", f"{record.tool_message_id} is not what was appended")
    for id_ in results:
        findings.wrong("payload", f"{id_} leads nowhere")
    used = _used_chunks(stored)
    for key in used - stored.chunks:
        findings.wrong("payload", f"{key} is missing")
    findings.orphans += len(stored.chunks - used)


def _used_chunks(stored: Stored) -> set[str]:
    return {
        chunk_id(stored.conversation, message.payload.token, message.payload.chunk + index)
        for entry in stored.entries
        for message in entry.messages
        if message.payload
        for index in range(len(message.payload.ends))
    }


async def _no_pause(seconds: float) -> None:
    """In the place of a wait between two looks: the clients have settled."""


async def _sweep(database: Any, chat: Conversation, findings: Findings) -> None:
    """A day later the store finds nothing but what killed and cancelled calls left behind, and removes it."""
    later = Clock(now=lambda: datetime.now(UTC) + timedelta(days=2), sleep=_no_pause)
    store = ConversationStore(database, clock=later)
    report = await store.verify(repair=True, user_id=USER, thread_id=chat.scope["thread_id"])
    for finding in report.findings:
        if finding.kind not in _LEFT_BEHIND or not finding.repaired:
            findings.wrong("verify", str(finding))
    stored = await _read(database, chat)
    if stored.chunks != _used_chunks(stored):
        findings.wrong("orphan", f"{stored.chunks ^ _used_chunks(stored)} after a sweep")


async def _check_summaries(stored: Stored, notes: Notes, findings: Findings) -> None:
    """Each one goes on where the one before it ends, and leads to its messages; no acknowledged one is lost."""
    last = 0
    for summary in stored.summaries:
        is_next = (summary.first, summary.last > last) == (1, True)
        named = stored.ids[summary.last - 1]
        if not is_next or not summary.text.startswith(f"through {named} "):
            findings.wrong(
                "summary",
                f"{summary.version} covers {summary.first}-{summary.last}: {summary.text}",
            )
        last = summary.last
    made = {(summary.version, summary.last, summary.text) for summary in stored.summaries}
    for note in notes:
        if (
            note["what"] == "compacted"
            and (note["version"], note["last"], note["text"]) not in made
        ):
            findings.wrong(
                "lost", f"{note['client']} got an acknowledgement of summary {note['version']}"
            )
    if stored.summaries:
        expanded = await stored.chat.expand_summary(stored.summaries[-1].version)
        if [message.id for message in expanded] != stored.ids[:last]:
            findings.wrong(
                "summary", f"{stored.summaries[-1].version} does not lead to its messages"
            )


async def _check_annotations(stored: Stored, notes: Notes, findings: Findings) -> None:
    """Acknowledged annotations are stored."""
    said = {note["id"]: note["value"] for note in notes if note["what"] == "annotated"}
    found = await stored.chat.annotations(list(said)) if said else {}
    for id_, value in said.items():
        if found.get(id_, {}).get("seen") != value:
            findings.wrong("lost", f"annotation of {id_}: {found.get(id_)}")
