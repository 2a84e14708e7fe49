"""List the constructs that the store needs on a server, each with a check that tries it.

A check sends the commands of the store to the collections of a `Workbench`, and compares the answer.
It uses the store's own code where that is possible, so that the two cannot drift apart. A test
compares the operators in this room with those that are tried here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pymongo import ASCENDING
from pymongo.errors import BulkWriteError

from convstore.exceptions import StoreError
from convstore.mongo.bson_values import utc
from convstore.mongo.collection import BY_KEY, NEWEST_FIRST, Document, within
from convstore.mongo.driver import CLUSTERED, COMPRESSED, DUPLICATE_KEY, driver_errors
from convstore.mongo.heads import join_of_last_entry
from convstore.mongo.indexes import indexes_for
from convstore.mongo.inspection import SchemaInspection
from convstore.mongo.keys import HEADS, LOG, entry_id, entry_range, of_state
from convstore.mongo.statistics import GROUP_BY_DAY
from convstore.mongo.times import is_past_now, setting_from_now
from convstore.mongo.workbench import ENTRIES, SCOPE_KEYS, DifferentAnswerError, Workbench

_LONGEST_VALUE = 512
_LARGE_ENTRY = 1_000_000

Check = Callable[[Workbench], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Construct:
    """A command, operator or option that the store needs on a server.

    Attributes:
        name: Its name in reports.
        check: Tries it. It raises a `StoreError` if the server refuses the construct, a
            `DifferentAnswerError` after a wrong answer.
        replacement: Description of the replacement on a server without it; "" if it has no replacement.
        consequence: Description of what fails on a server without it, if it is not replaced.
        after: Name of a construct without which it cannot be tried, or "".
        replaced_if: Condition under which the store uses the replacement: always, after a refusal,
            or only after a refusal with a known code (`driver.is_refusal`).
    """

    name: str
    check: Check
    replacement: str = ""
    consequence: str = ""
    after: str = ""
    replaced_if: Literal["lacking", "refused", "refused by a known code"] = "lacking"


def _expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise DifferentAnswerError(f"{what}: {found!r} instead of {wanted!r}")


def _refute(is_wrong: bool, what: str) -> None:
    if is_wrong:
        raise DifferentAnswerError(what)


async def _compression(bench: Workbench) -> None:
    await bench.create(HEADS, storageEngine=COMPRESSED)


async def _clustering(bench: Workbench) -> None:
    if not await bench.driver.can_cluster():
        raise StoreError("servers have them since MongoDB 5.3")
    await bench.create(LOG, clusteredIndex=CLUSTERED)


async def _indexes(bench: Workbench) -> None:
    for collection, indexes in indexes_for(SCOPE_KEYS).items():
        for index in indexes if collection in (LOG, HEADS) else ():
            await bench.driver.create_index(collection, index)


async def _unique_ids(bench: Workbench) -> None:
    twin = bench.entry(ENTRIES + 1) | {"messages": [{"id": "other"}, {"id": "message-1"}]}
    accepted = await bench.log.insert(twin)
    await bench.log.delete_one({"_id": twin["_id"], "conversation": bench.owner})
    _refute(accepted, "a second entry with the same message id was accepted")


async def _unique_keys(bench: Workbench) -> None:
    accepted = await bench.log.insert(bench.entry(1))
    _refute(accepted, "a second entry with the same key was accepted")


async def _long_values(bench: Workbench) -> None:
    head = bench.head("ä" * (_LONGEST_VALUE // 2))
    await bench.heads.insert(head)
    query = {f"scope.{key}": head["scope"][key] for key in SCOPE_KEYS}
    found = await bench.heads.find(query, {"_id": 1})
    _expect([document["_id"] for document in found], [head["_id"]], "a head with long scope values")


async def _plans(bench: Workbench) -> None:
    query = {"conversation": bench.owner, "first": {"$exists": True}}
    find = {"find": bench.driver.prefix + LOG, "filter": query, "limit": 1}
    find["sort"] = {"first": -1, "_id": -1}
    async with driver_errors():
        reply = await bench.driver.database.command("explain", find, verbosity="queryPlanner")
    stages = _stages_in(reply.get("queryPlanner", {}).get("winningPlan"))
    if not stages:
        raise StoreError("the server's answer to explain has no plan")
    _refute("COLLSCAN" in stages, "the last entry is read by a scan of the collection (COLLSCAN)")


def _stages_in(plan: object) -> list[str]:
    """Return the names of all stages of a plan."""
    if isinstance(plan, Mapping):
        own = [str(plan["stage"])] if "stage" in plan else []
        return own + [stage for part in plan.values() for stage in _stages_in(part)]
    if isinstance(plan, list):
        return [stage for part in plan for stage in _stages_in(part)]
    return []


async def _ordered_batches(bench: Workbench) -> None:
    keys = [f"{bench.owner}#batch-{name}" for name in ("before", "before", "after")]
    try:
        async with driver_errors():
            documents = [{"_id": key, "conversation": bench.owner} for key in keys]
            await bench.log.driver_collection.insert_many(documents, ordered=True)
        raise DifferentAnswerError("a batch with a key twice was accepted")
    except StoreError as error:
        if not isinstance(error.__cause__, BulkWriteError):
            raise
        failures = error.__cause__.details["writeErrors"]
    failed = [(failure["index"], failure["code"]) for failure in failures]
    _expect(failed, [(1, DUPLICATE_KEY)], "errors of a batch with a key twice")
    left = await bench.log.count(bench.owner, f"{bench.owner}#batch", f"{bench.owner}#batch~")
    _expect(left, 1, "documents of a batch that ended at its second one")


async def _large_entries(bench: Workbench) -> None:
    key = {"_id": f"{bench.owner}#large", "conversation": bench.owner}
    await bench.log.insert(key | {"data": b"x" * _LARGE_ENTRY})
    found = await bench.log.find_one(key)
    _expect(len(found["data"]) if found else 0, _LARGE_ENTRY, "bytes of a large document")
    await bench.log.delete_one(key)


async def _upserts(bench: Workbench) -> None:
    query = {"_id": f"{bench.owner}-upsert"}
    date = datetime(2026, 1, 2, tzinfo=UTC)
    change = {
        "$setOnInsert": {"conversation": bench.owner, "details": {"title": "a"}},
        "$max": {"written_at": date},
        "$set": {"has_children": True},
    }
    await bench.heads.find_and_update(query, change, after=True, upsert=True)
    earlier = change | {"$max": {"written_at": date - timedelta(days=1)}}
    found = await bench.heads.find_and_update(query, earlier, after=True, upsert=True) or {}
    _expect(utc(found["written_at"]), date, "a date that was raised")
    before = await bench.heads.find_and_update(query, {"$unset": {"has_children": ""}})
    _refute("has_children" not in (before or {}), "an update did not return the document before it")
    async with driver_errors():
        heads = bench.heads.driver_collection
        dropped = await heads.find_one_and_delete(query, {"has_children": 1})
    _expect(dropped, query, "a document that was found and deleted")


async def _conditions(bench: Workbench) -> None:
    state = of_state(bench.owner)
    move = {"$each": [{"seen": 1}, {"seen": 2}, {"seen": 3}], "$slice": -2}
    change = {"$inc": {"revision": 1}, "$push": {"moves.policy": move}}
    has_lapsed = {"turn.until": {"$lt": datetime.now(UTC)}}
    is_free = {"$or": [{"turn.until": {"$exists": False}}, has_lapsed]}
    taken = await bench.log.update(state | {"revision": 1} | is_free, change)
    again = await bench.log.update(state | {"revision": 1} | is_free, change)
    _expect((taken, again), (True, False), "two updates of one revision")
    found = await bench.log.find_one(state) or {}
    _expect(found.get("moves"), {"policy": [{"seen": 2}, {"seen": 3}]}, "the last two of a list")
    replaced = await bench.log.replace(state | {"revision": 2}, state | {"revision": 1})
    _refute(not replaced, "a document of the right revision was not replaced")
    entries = within(bench.owner, *entry_range(bench.owner))
    await bench.log.update_many(entries, {"$set": {"read": True}})
    _expect(await bench.numbers({"read": True}), [1, 2, 3, 4], "entries that were updated together")


async def _clock_in_updates(bench: Workbench) -> None:
    key = {"_id": f"{bench.owner}#clock", "conversation": bench.owner}
    literal = "$no field"
    update = setting_from_now({"text": literal}, field="until", ahead=timedelta(minutes=-1))
    await bench.log.update(key, update, upsert=True)
    found = await bench.log.find_and_update(key, update, after=True) or {}
    _expect(found.get("text"), literal, "a text that was set by a pipeline")
    _refute(not isinstance(found.get("until"), datetime), "$$NOW did not set a date")


async def _clock_in_filters(bench: Workbench) -> None:
    past = is_past_now("due")
    _expect(await bench.numbers(past), [1], "entries that are due by the server's time")
    _expect(await bench.numbers({"$nor": [past]}), [2, 3, 4], "entries that are not due")


async def _deletions(bench: Workbench) -> None:
    keys = [f"{bench.owner}#delete-{number}" for number in range(3)]
    async with driver_errors():
        documents = [{"_id": key, "conversation": bench.owner} for key in keys]
        await bench.log.driver_collection.insert_many(documents, ordered=False)
    query = within(bench.owner, keys[0], f"{keys[2]}~")
    query["_id"]["$in"] = keys[:2]
    _expect(await bench.log.delete_many(query), 2, "documents deleted by a range and their keys")
    deleted = await bench.log.delete(bench.owner, keys[0], f"{keys[2]}~")
    _expect(deleted, 1, "documents deleted by a range")


async def _ranges(bench: Workbench) -> None:
    query = within(bench.owner, *entry_range(bench.owner, start=2, before=4))
    fields = {"messages.body": 0, "at": 0}
    found = await bench.log.find(query, fields, order=BY_KEY, limit=10)
    _expect([document["first"] for document in found], [2, 3], "entries of a range")
    _expect(
        sorted(found[0]["messages"][0]), ["id", "stamp", "tokens", "type"], "fields of a message"
    )


async def _descending_bounds(bench: Workbench) -> None:
    # Unlike the bounds of `entry_range` these keys exist: only so the check sees if a bound is included.
    low = entry_id(bench.owner, 1)
    high = entry_id(bench.owner, 3)
    found = await bench.log.find(within(bench.owner, low, high), order=NEWEST_FIRST)
    numbers = [document.get("first") for document in found]
    _expect(numbers, [2, 1], "a descending read from the first entry to before the third one")


async def _cursors(bench: Workbench) -> None:
    query = within(bench.owner, *entry_range(bench.owner))
    async with driver_errors():
        found = bench.log.driver_collection.find(query, batch_size=2, **bench.log.read_limit)
        documents = await found.skip(1).sort([("_id", ASCENDING)]).to_list(None)
    _expect([document["first"] for document in documents], [2, 3, 4], "entries in several answers")


_FILTERS: Sequence[tuple[Document, list[int]]] = (
    ({"messages": {"$elemMatch": {"type": {"$in": ["human"]}, "tokens": {"$gte": 2}}}}, [3]),
    ({"messages.type": "human", "first": {"$lte": 2}}, [1]),
    ({"$nor": [{"first": {"$gte": 2, "$lte": 3}}]}, [1, 4]),
    ({"first": {"$not": {"$lt": 3}}, "count": {"$ne": 0}}, [3, 4]),
    ({"first": {"$nin": [1, 4]}}, [2, 3]),
    ({"$or": [{"first": {"$gt": 3}}, {"first": {"$eq": 1}}]}, [1, 4]),
    ({"conversation": {"$not": {"$regex": "."}}}, []),
    ({"messages.0": {"$exists": True}, "missing": {"$exists": False}, "first": 4}, [4]),
)


async def _filters(bench: Workbench) -> None:
    for query, wanted in _FILTERS:
        _expect(await bench.numbers(query), wanted, f"entries by {_operators_of(query)}")
    fields: Any = {"first": 1, "messages": {"$elemMatch": {"type": "ai"}}}
    found = await bench.log.find({"conversation": bench.owner, "first": 2}, fields)
    _expect(len(found[0]["messages"]) if found else 0, 1, "messages by $elemMatch")


def _operators_of(query: Document) -> str:
    return ", ".join(sorted(set(re.findall(r"\$\w+", repr(query)))))


async def _patterns(bench: Workbench) -> None:
    patterns = [re.compile("^message-[12]", re.ASCII)]
    _expect(await bench.numbers({"messages.id": {"$in": patterns}}), [1, 2], "entries by a pattern")


async def _counts(bench: Workbench) -> None:
    counted = await bench.log.count(bench.owner, *entry_range(bench.owner))
    _expect(counted, ENTRIES, "entries that were counted")


async def _distinct(bench: Workbench) -> None:
    query = {"conversation": bench.owner, "first": {"$gte": 0}}
    _expect(await bench.log.distinct("conversation", query), [bench.owner], "distinct values")


async def _joins(bench: Workbench) -> None:
    own: list[Document] = [{"$match": {"conversation": bench.owner, "scope.user_id": "user"}}]
    pipeline = [*own, {"$sort": {"_id": 1}}, join_of_last_entry(bench.driver.prefix + LOG)]
    found = await bench.heads.aggregate(pipeline)
    joined = [dict(entry) for head in found for entry in head["last"]]
    last = {"_id": entry_id(bench.owner, ENTRIES), "conversation": bench.owner}
    _expect(joined, [last], "the last entry without its messages, joined to its head")


async def _sizes(bench: Workbench) -> None:
    match = {"$match": within(bench.owner, *entry_range(bench.owner))}
    found = await bench.log.aggregate([match, {"$group": GROUP_BY_DAY}])
    _expect(sum(row["messages"] for row in found), ENTRIES, "messages that were summed")
    _refute(any(row["size"] <= 0 for row in found), "documents have no size")


async def _changes(bench: Workbench) -> None:
    async with aclosing(bench.driver.changes(LOG)) as changes:
        await anext(changes)


async def _schema(bench: Workbench) -> None:
    inspection = SchemaInspection(bench.driver)
    listed = await inspection.options((LOG, HEADS))
    _expect(sorted(listed), [HEADS, LOG], "collections that are listed")
    wanted = {index.name for index in indexes_for(SCOPE_KEYS)[LOG]}
    found = set(await inspection.indexes(LOG))
    _expect(sorted(wanted - found), [], "indexes that are not listed")


async def _file_options(bench: Workbench) -> None:
    await SchemaInspection(bench.driver).compressor(HEADS)


CREATION = (
    Construct("zstd compression", _compression, "the server's own compression: larger files"),
    Construct(
        "clustered collections",
        _clustering,
        "a collection with an index on its key: cold reads need 2.5 times the cache",
    ),
)
"""Constructs that are tried first, because their checks create the collections of all other checks."""

_PARTIAL = "partial indexes"
_MEASURED_CLOCK = "leases and sweeps go by the server's clock as measured through hello"
_NO_SETUP = "setup() fails, so there is no store"

CONSTRUCTS = (
    Construct(_PARTIAL, _indexes, consequence=_NO_SETUP),
    Construct(
        "unique partial indexes over arrays",
        _unique_ids,
        consequence="promise 2: an append that two processes repeat may be stored twice",
        after=_PARTIAL,
    ),
    Construct(
        "unique keys", _unique_keys, consequence="promise 3: two processes may write one entry"
    ),
    Construct(
        "index keys of 1 KB", _long_values, consequence="scope values of 512 bytes are refused"
    ),
    Construct(
        "indexes for $exists",
        _plans,
        consequence="promise 6: a read may examine a whole conversation, or the whole collection",
        after=_PARTIAL,
    ),
    Construct(
        "ordered batches with majority and journal",
        _ordered_batches,
        consequence="promises 1 and 9: an append may be seen in part, or lost",
    ),
    Construct(
        "documents of 1 MB", _large_entries, consequence="large messages and results are refused"
    ),
    Construct("upserts", _upserts, consequence="no conversation can be begun"),
    Construct(
        "conditional updates",
        _conditions,
        consequence="promise 5: turns, views and summaries of two processes overwrite each other",
    ),
    Construct(
        "pipeline updates with $$NOW",
        _clock_in_updates,
        _MEASURED_CLOCK,
        consequence=_NO_SETUP,
        replaced_if="refused by a known code",
    ),
    Construct(
        "filters with $$NOW",
        _clock_in_filters,
        _MEASURED_CLOCK,
        consequence=_NO_SETUP,
        replaced_if="refused by a known code",
    ),
    Construct("range deletions", _deletions, consequence="promise 10: nothing can be deleted"),
    Construct("range reads with majority", _ranges, consequence="promise 3: nothing can be loaded"),
    Construct(
        "exact bounds of descending scans",
        _descending_bounds,
        "no read ends at a key that exists, so that its bounds do not matter (SERVER-121822)",
    ),
    Construct("cursors", _cursors, consequence="exports and long searches fail"),
    Construct("filters with $elemMatch and $not", _filters, consequence="turns and deletions fail"),
    Construct(
        "filters with patterns", _patterns, consequence="ids are not found by their beginning"
    ),
    Construct("counts", _counts, consequence="`dry_run=True` of deletions fails"),
    Construct("distinct", _distinct, consequence="lost conversations are not found"),
    Construct(
        "$lookup with a pipeline",
        _joins,
        "one more command for each listed conversation",
        consequence="conversations cannot be listed",
        replaced_if="refused",
    ),
    Construct(
        "$bsonSize",
        _sizes,
        "`store.stats` reads the documents to measure them",
        consequence="`store.stats` fails, but with sizes=False",
        replaced_if="refused by a known code",
    ),
    Construct("change streams", _changes, "watched conversations are read once a second"),
    Construct(
        "listCollections and listIndexes",
        _schema,
        consequence="setup() and the doctor fail",
        after=_PARTIAL,
    ),
    Construct("collStats", _file_options, consequence="`convstore doctor` without --server fails"),
)
