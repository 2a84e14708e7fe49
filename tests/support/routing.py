"""Which shards a router would send a command to, and a plugin that fails a test whose store sends one to all.

The collections that docs/scaling.md shards have the shard key ``conversation``. The plugin listens to every client of a
run. The store's commands are known by their concerns: tests that look into a database themselves have others.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import pytest
from pymongo import monitoring

SHARDED = ("log", "summaries", "annotations", "drafts", "search")
"""The collections that may be sharded, by `conversation`; tests may have a prefix before their names.

`convstore doctor --server` tries commands in collections of its own, which nobody shards.
"""

SHARD_KEY = "conversation"

_VERIFY = "verify looks for damaged documents by their keys alone, in all conversations"
BROADCAST = {
    "Inspection.chunk_keys": _VERIFY,
    "Inspection.chunks": _VERIFY,
    "Inspection.documents_of": _VERIFY,
    "Inspection.entries": _VERIFY,
    "Inspection.entry": _VERIFY,
    "Inspection.next_conversation": _VERIFY,
    "Inspection.replace_state": "verify mends a state whose conversation is damaged",
    "Inspection.remove": "verify removes leftovers of any conversation by their keys",
    "SchemaInspection.lacks": "verify samples a collection",
    "Statistics._read": "stats of all conversations",
    "Statistics.amounts": "stats of all conversations",
    "Statistics.summaries": "stats of all conversations",
}
"""Methods whose commands every shard gets, and the reason; see `untargeted`."""

_NAMES = re.compile(rf"(?!convstore_probe_)(?:.*_)?({'|'.join(SHARDED)})")
_LOWEST = frozenset({"convstore.mongo.collection", "convstore.mongo.driver"})
_READS = frozenset({"find", "aggregate", "count", "distinct"})


class Bounds(NamedTuple):
    """A range of values of the shard key, with both ends."""

    low: str
    high: str

    @property
    def is_exact(self) -> bool:
        """Return True for a single value."""
        return self.low == self.high


class Statement(NamedTuple):
    """A part of a command: a read, a document to insert, or one update or deletion."""

    kind: str
    query: Mapping[str, Any]
    must_be_exact: bool


def sharded_name(collection: object) -> str:
    """Return the name of a sharded collection without its prefix, "" for another one, such as those of a probe."""
    found = _NAMES.fullmatch(collection) if isinstance(collection, str) else None
    return found[1] if found else ""


def bounds_of(query: Mapping[str, Any]) -> list[Bounds] | None:
    """Return the values of the shard key that a filter allows; None if they may be on any shard."""
    condition = query.get(SHARD_KEY)
    if isinstance(condition, str):
        return [Bounds(condition, condition)]
    if not isinstance(condition, Mapping):
        return None
    if "$eq" in condition:
        return [Bounds(condition["$eq"], condition["$eq"])]
    if "$in" in condition:
        return [Bounds(value, value) for value in condition["$in"]]
    low, high = (
        condition.get("$gte", condition.get("$gt")),
        condition.get("$lt", condition.get("$lte")),
    )
    return [Bounds(low, high)] if low is not None and high is not None else None


def statements_of(name: str, command: Mapping[str, Any]) -> Iterator[Statement]:
    """Return the parts of a data command that a router looks at one by one; none for other commands."""
    if name == "aggregate":
        first: Mapping[str, Any] = next(iter(command["pipeline"]), {})
        yield Statement(name, first.get("$match", {}), must_be_exact=False)
    elif name in _READS:
        yield Statement(name, command.get("filter", command.get("query", {})), must_be_exact=False)
    elif name == "insert":
        yield from (
            Statement(name, document, must_be_exact=True) for document in command["documents"]
        )
    elif name == "update":
        for update in command["updates"]:
            yield Statement(name, update["q"], must_be_exact=not update.get("multi"))
    elif name == "delete":
        for deletion in command["deletes"]:
            yield Statement(name, deletion["q"], must_be_exact=bool(deletion["limit"]))
    elif name.lower() == "findandmodify":
        yield Statement("findAndModify", command["query"], must_be_exact=True)


def untargeted(name: str, command: Mapping[str, Any]) -> Iterator[str]:
    """Return the parts of a command on sharded collections that a router would send to all shards, in short form."""
    if collection := sharded_name(command.get(name)):
        for statement in statements_of(name, command):
            bounds = bounds_of(statement.query)
            is_exact = bounds is not None and all(bound.is_exact for bound in bounds)
            if bounds is None or (statement.must_be_exact and not is_exact):
                yield f"{statement.kind} {collection} by {', '.join(sorted(statement.query)) or 'nothing'}"
    for stage in command.get("pipeline", ()):
        lookup = stage.get("$lookup", {})
        if (collection := sharded_name(lookup.get("from"))) and not _joins_by_key(lookup):
            yield f"$lookup {collection}"


def _joins_by_key(lookup: Mapping[str, Any]) -> bool:
    """Return True if a join names the shard key of the documents that it looks for."""
    first: Mapping[str, Any] = next(iter(lookup.get("pipeline", ())), {})
    same: Sequence[object] = first.get("$match", {}).get("$expr", {}).get("$eq", ())
    return lookup.get("foreignField") == SHARD_KEY or f"${SHARD_KEY}" in same


def is_of_store(command: Mapping[str, Any]) -> bool:
    """Return True if a command has the concerns that the store sends."""
    written = command.get("writeConcern", {})
    return command.get("readConcern", {}).get("level") == "majority" or (
        written.get("w"),
        written.get("j"),
    ) == (
        "majority",
        True,
    )


def sender() -> str:
    """Return the method of the room `mongo` that sends a command, such as "Log.entries"; "" if a thread of Motor does.

    Motor runs the same methods, so what PyMongo sends is enough.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("convstore.mongo.") and module not in _LOWEST:
            return frame.f_code.co_qualname
        frame = frame.f_back
    return ""


class Routing(monitoring.CommandListener):
    """Fails each test whose store sends a command to all shards, except those of `BROADCAST`."""

    def __init__(self) -> None:
        self.found = list[str]()

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Look at a command that is sent."""
        if not is_of_store(event.command):
            return
        for text in untargeted(event.command_name, event.command):
            method = sender()
            if method and method not in BROADCAST:
                self.found.append(f"{method}: {text}")

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Only what is sent counts."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Only what is sent counts."""

    def pytest_configure(self) -> None:
        """Listen to every client that is made from now on."""
        monitoring.register(self)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a test in whose phase such a command was sent."""
        report = yield
        found = sorted(set(self.found))
        self.found.clear()
        if found and report.outcome == "passed":
            report.outcome = "failed"
            report.longrepr = (
                f"a router would send these commands to all shards: {'; '.join(found)}"
            )
        return report
