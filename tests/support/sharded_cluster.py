"""A real sharded cluster: a config server, two shards, and a router that is written here.

No package has ``mongos``. What it sends to the servers can be sent to them directly: `ShardedCluster` sends what
becomes of ``shardCollection``, ``split`` and ``moveRange``. Its router is a proxy for clients. As mongos does, it finds
the shards of a command by the ranges of the config server, attaches the version of the ranges that it knows, and looks
again when a shard answers that a range has moved. So the shards themselves refuse what went to the wrong one.

It speaks to MongoDB 6.0, as releases differ in these commands. It has what the store needs: a write goes to one shard,
and what several shards return is joined and sorted.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Self

import bson
from bson import MaxKey, MinKey, ObjectId, Timestamp
from pymongo import MongoClient
from refusing_server import RefusingServer, command_in, read_exactly
from routing import SHARD_KEY, Bounds, bounds_of, statements_of

from convstore.devserver import DevServer

SHARDS = ("shard1", "shard2")
DATA = frozenset(
    {"find", "aggregate", "count", "distinct", "insert", "update", "delete", "findAndModify"}
)
_LISTS = {"insert": "documents", "update": "updates", "delete": "deletes"}
_CURSORS = frozenset({"find", "aggregate"})
_READS = _CURSORS | {"count", "distinct"}
_STALE = frozenset({249, 13388})
"""StaleDbVersion and StaleConfig: ranges have moved since the router looked."""
_UNSHARDED = {"e": ObjectId("0" * 24), "t": Timestamp(0, 0), "v": Timestamp(0, 0)}
_SECONDS = 60.0
_HOST = "127.0.0.1"
_OP_MSG, _HEADER, _WIRE_VERSION = 2013, 16, 17

Document = dict[str, Any]


class _Config(DevServer):
    _role = "configsvr"


class _Shard(DevServer):
    _role = "shardsvr"


class Range(NamedTuple):
    """A range of the shard key, from one value and before another, and its shard."""

    low: Any
    high: Any
    shard: str

    def overlaps(self, bounds: Bounds) -> bool:
        """Return True if a value within the bounds may be in it."""
        is_before = not isinstance(self.high, MaxKey) and self.high <= bounds.low
        is_after = not isinstance(self.low, MinKey) and self.low > bounds.high
        return not (is_before or is_after)


class Table(NamedTuple):
    """The ranges of a collection and the version of each shard's; without ranges it is on the first shard alone."""

    ranges: Sequence[Range]
    versions: Mapping[str, Document]

    def shards(self, bounds: Sequence[Bounds] | None) -> list[str]:
        """Return the shards that may have documents within the bounds, all of them without bounds."""
        if not self.ranges:
            return [SHARDS[0]]
        ranges = self.ranges
        if bounds is not None:
            ranges = [part for part in ranges if any(part.overlaps(bound) for bound in bounds)]
        return sorted({part.shard for part in ranges})


class Link:
    """A connection to one shard that says it is a server's: a shard then sends a part of a join to other shards."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = itertools.count(1)
        versions = {"minWireVersion": _WIRE_VERSION, "maxWireVersion": _WIRE_VERSION}
        hello = self.call({"hello": 1, "internalClient": versions, "$db": "admin"})
        assert hello["ok"], hello

    def call(self, command: Document) -> Document:
        """Send a command and return the reply."""
        body = b"\0\0\0\0\0" + bson.encode(command)
        self._socket.sendall(
            struct.pack("<iiii", _HEADER + len(body), next(self._numbers), 0, _OP_MSG) + body
        )
        length, *_ = struct.unpack("<iiii", read_exactly(self._socket, _HEADER))
        return command_in(read_exactly(self._socket, length - _HEADER))

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class ShardedCluster:
    """A cluster that runs inside ``with``; its data is on the first shard until a range is moved.

    Attributes:
        uri: Address of the router.
        servers: The servers of the shards.
        shards: Clients of them.
        sent: How many commands the router sent to each shard.
        moved: How often a shard answered that a range has moved.
        refused: Errors that the router gave to its clients.
    """

    def __init__(self, database: str = "app") -> None:
        self.database = database
        self.sent = dict.fromkeys(SHARDS, 0)
        self.moved = 0
        self.refused = list[str]()
        self._tables = dict[str, Table]()
        self._cursors = dict[int, str]()
        self._own = threading.local()
        self._links = list[Link]()
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.servers = {name: stack.enter_context(_Shard()) for name in SHARDS}
            self.config = _client(stack, stack.enter_context(_Config()))
            self.shards = {name: _client(stack, server) for name, server in self.servers.items()}
            for name, client in self.shards.items():
                hello = client.admin.command("hello")
                self._configure(
                    {"_configsvrAddShard": f"{hello['setName']}/{hello['me']}", "name": name}
                )
            self._configure(
                {"_configsvrCreateDatabase": self.database, "primaryShardId": SHARDS[0]}
            )
            port = self.servers[SHARDS[0]].nodes[0].port
            uri = f"mongodb://{_HOST}:{port}/{self.database}"
            router = RefusingServer(uri, self._answer, options="retryWrites=true")
            stack.callback(self._close_links)
            self.uri = str(stack.enter_context(router).uri)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _configure(self, command: Document) -> None:
        self.config.admin.command({**command, "writeConcern": {"w": "majority"}})

    # What mongosh's helpers send

    def shard_collection(self, namespace: str, key: Document) -> None:
        """``sh.shardCollection``; raises an OperationFailure if the servers refuse."""
        database, _, collection = namespace.partition(".")
        command = {
            "_shardsvrCreateCollection": collection,
            "shardKey": key,
            "unique": False,
            "databaseVersion": self._database_version(),
            "writeConcern": {"w": "majority", "wtimeout": 30_000},
        }
        self.shards[SHARDS[0]][database].command(command)

    def split_at(self, namespace: str, middle: Document) -> None:
        """``sh.splitAt``."""
        collection = self._collection(namespace)
        value = middle[SHARD_KEY]
        chunk = next(
            part
            for part in self._chunks(collection)
            if Range(part["min"][SHARD_KEY], part["max"][SHARD_KEY], "").overlaps(
                Bounds(value, value)
            )
        )
        command = {
            "splitChunk": namespace,
            "from": chunk["shard"],
            "keyPattern": collection["key"],
            "epoch": collection["lastmodEpoch"],
            "timestamp": collection["timestamp"],
            "min": chunk["min"],
            "max": chunk["max"],
            "splitKeys": [middle],
        }
        self.shards[chunk["shard"]].admin.command(command)

    def move_range(self, namespace: str, bounds: Document) -> None:
        """``db.adminCommand({moveRange: namespace, min: …, max: …, toShard: …})``."""
        self._configure({"_configsvrMoveRange": namespace, **bounds})

    def shard_of(self, namespace: str, value: str) -> str:
        """The shard of a value of the shard key."""
        collection = self._collection(namespace)
        [shard] = _table_of(collection, self._chunks(collection)).shards([Bounds(value, value)])
        return shard

    def owners(self, namespace: str) -> list[str]:
        """The shard of each range of a collection, in order; none if it is not sharded."""
        collection = self._collection(namespace)
        return [chunk["shard"] for chunk in self._chunks(collection)] if collection else []

    # What the router knows

    def _collection(self, namespace: str) -> Document:
        return self.config.config.collections.find_one({"_id": namespace}) or {}

    def _chunks(self, collection: Document) -> list[Document]:
        return list(self.config.config.chunks.find({"uuid": collection["uuid"]}, sort=[("min", 1)]))

    def _database_version(self) -> Document:
        found = self.config.config.databases.find_one({"_id": self.database}) or {}
        return {part: found["version"][part] for part in ("uuid", "timestamp", "lastMod")}

    def _table(self, namespace: str) -> Table:
        """Return what is known of a collection; read it if nothing is."""
        if namespace not in self._tables:
            collection = self._collection(namespace)
            if not collection:
                self._tables[namespace] = Table([], {SHARDS[0]: _UNSHARDED})
            else:
                self._tables[namespace] = _table_of(collection, self._chunks(collection))
        return self._tables[namespace]

    # What the router does

    def _answer(self, command: Mapping[str, Any]) -> Document | None:
        """Return the reply to a command on data; None for another one, which the first shard gets as it is.

        Raises:
            TimeoutError: For a minute shards answered that a range has moved.
        """
        name = next(iter(command))
        if name in {"getMore", "killCursors"}:
            cursor = command["getMore"] if name == "getMore" else command["cursors"][0]
            return self._send(self._cursors.get(cursor, SHARDS[0]), command)
        if name not in DATA or not isinstance(command[name], str):
            return None
        namespace = f"{command['$db']}.{command[name]}"
        done = 0
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            reply = self._try(namespace, command)
            if not _is_stale(reply):
                if not reply["ok"]:
                    self.refused.append(reply["errmsg"])
                elif done:
                    reply["n"] += done
                return reply
            self.moved += 1
            self._tables.pop(namespace, None)
            if name in _LISTS:
                command, finished = _rest_of(command, reply)
                done += finished
            time.sleep(0.01)
        raise TimeoutError(f"the ranges of {namespace} went on moving")

    def _try(self, namespace: str, command: Mapping[str, Any]) -> Document:
        """Send a command to its shards, by what is known of the ranges."""
        name = next(iter(command))
        table = self._table(namespace)
        allowed = [bounds_of(statement.query) for statement in statements_of(name, command)]
        known = [bound for bounds in allowed for bound in bounds or ()]
        shards = table.shards(None if None in allowed else known)
        if len(shards) > 1 and name not in _CURSORS:
            return {
                "ok": 0.0,
                "code": 20,
                "errmsg": f"this router sends {name} to one shard, not to {len(shards)}",
            }
        replies = {}
        for shard in shards:
            replies[shard] = self._send(
                shard, {**_explicit(command), "shardVersion": table.versions[shard]}
            )
            if len(shards) == 1 or not replies[shard]["ok"]:
                return replies[shard]
        documents = [
            each for shard, reply in replies.items() for each in self._all(shard, command, reply)
        ]
        for field, direction in reversed(command.get("sort", {}).items()):
            documents.sort(key=itemgetter(field), reverse=direction < 0)
        documents = documents[: command.get("limit") or len(documents)]
        return replies[shards[0]] | {"cursor": {"firstBatch": documents, "id": 0, "ns": namespace}}

    def _all(self, shard: str, command: Mapping[str, Any], reply: Document) -> list[Document]:
        """Return all documents of a cursor."""
        cursor = reply["cursor"]
        documents = list(cursor["firstBatch"])
        while cursor["id"]:
            more = {"getMore": cursor["id"], "collection": command[next(iter(command))]}
            cursor = self._send(shard, more | {name: command[name] for name in ("$db", "lsid")})[
                "cursor"
            ]
            documents += cursor["nextBatch"]
        return documents

    def _send(self, shard: str, command: Mapping[str, Any]) -> Document:
        """Send a command to a shard by this thread's connection."""
        links = self._own.__dict__
        if shard not in links:
            links[shard] = Link((_HOST, self.servers[shard].nodes[0].port))
            self._links.append(links[shard])
        self.sent[shard] += 1
        reply: Document = links[shard].call(dict(command))
        if cursor := reply.get("cursor", {}).get("id"):
            self._cursors[cursor] = shard
        return reply

    def _close_links(self) -> None:
        for link in self._links:
            link.close()


def _client(stack: contextlib.ExitStack, server: DevServer) -> MongoClient[Document]:
    return stack.enter_context(MongoClient[Document](server.uri))


def _table_of(collection: Document, chunks: Sequence[Document]) -> Table:
    """Return the ranges of a collection; the version of a shard is that of its newest range."""
    ranges = [
        Range(chunk["min"][SHARD_KEY], chunk["max"][SHARD_KEY], chunk["shard"]) for chunk in chunks
    ]
    newest = dict.fromkeys(SHARDS, Timestamp(0, 0))
    for chunk in chunks:
        newest[chunk["shard"]] = max(newest[chunk["shard"]], chunk["lastmod"])
    own = {"e": collection["lastmodEpoch"], "t": collection["timestamp"]}
    return Table(ranges, {shard: own | {"v": version} for shard, version in newest.items()})


def _explicit(command: Mapping[str, Any]) -> Document:
    """Return a command with the concerns that shards want to see in those of a router."""
    name = next(iter(command))
    given = {**command}
    if name in _READS:
        given.setdefault("readConcern", {"level": "majority"})
    if name not in _READS or name == "aggregate":
        given.setdefault("writeConcern", {"w": "majority"})
    return given


def _is_stale(reply: Document) -> bool:
    """Return True if a shard has refused a command, or the rest of its statements, because a range has moved."""
    return reply.get("code") in _STALE or any(
        error["code"] in _STALE for error in reply.get("writeErrors", ())
    )


def _rest_of(command: Mapping[str, Any], reply: Document) -> tuple[Document, int]:
    """Return a command on several documents without those that were written, and their number.

    The statements keep their numbers, by which a shard knows a statement that is repeated.
    """
    name = _LISTS[next(iter(command))]
    statements = command[name]
    numbers = command.get("stmtIds") or [*range(len(statements))]
    done = reply["writeErrors"][0]["index"] if "writeErrors" in reply else 0
    rest = {**command, name: statements[done:]}
    if "txnNumber" in command:
        rest["stmtIds"] = numbers[done:]
    return rest, reply.get("n", 0) if done else 0
