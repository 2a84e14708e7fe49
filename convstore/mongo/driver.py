"""Wrap the database driver: PyMongo's async API, Motor or mongomock-motor.

The three drivers share most of their API. The differences are handled here: how a client is opened and closed, features
that the in-memory driver lacks, and errors, which become those of convstore.

The module is long because it handles every difference between the three drivers, so that no other module has to.
"""

from __future__ import annotations

import asyncio
import re
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
from inspect import isawaitable
from types import TracebackType
from typing import Any, Literal

import bson
import pymongo
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, ReadPreference, WriteConcern
from pymongo.errors import (
    BulkWriteError,
    CollectionInvalid,
    ConfigurationError,
    ConnectionFailure,
    CursorNotFound,
    ExecutionTimeout,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
    WTimeoutError,
)
from pymongo.read_concern import ReadConcern

from convstore.exceptions import (
    InvalidInputError,
    MissingExtraError,
    MissingPrivilegeError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from convstore.mongo.indexes import Index
from convstore.mongo.times import ServerClock, Times
from convstore.values.addresses import ADDRESS_FORM, check_address, contains_part_of
from convstore.values.environment import DEFAULT_DATABASE
from convstore.values.plain import duration

COMMAND_SECONDS = 40.0
"""Longest wait for one answer; longer than PyMongo's 30 s for finding a server, so that its error comes first."""

SELECTION_SECONDS = 5.0
"""Server selection timeout of a client that `open_client` creates, unless its address sets another one."""

JOIN = "join by a pipeline"
DOCUMENT_SIZE = "size of documents"
"""Names, in `Driver.refused`, of ``$lookup`` with a pipeline and of ``$bsonSize``."""

COMPRESSED: Mapping[str, Any] = {"wiredTiger": {"configString": "block_compressor=zstd"}}
CLUSTERED: Mapping[str, Any] = {"key": {"_id": 1}, "unique": True}
"""Options of new collections, on servers that support them."""

_CLOSING_SECONDS = 5.0
DriverName = Literal["pymongo", "motor", "memory"]

# The in-memory classes are subclasses of Motor's, so they come first.
_KNOWN: tuple[tuple[str, DriverName], ...] = (
    ("AsyncMongoMockDatabase", "memory"),
    ("AsyncIOMotorDatabase", "motor"),
    ("AsyncDatabase", "pymongo"),
)
# Of PyMongo and of mongomock.
_SYNCHRONOUS = frozenset({"Database", "MongoClient"})
_CLUSTERED_SINCE = (5, 3)
# The primary stepped down or shuts down, a majority cannot be read yet, or a time limit of the server expired. A server
# may also report these codes for single writes of a command, where the driver does not check them.
_TRY_AGAIN = frozenset({91, 134, 189, 262, 10058, 10107, 11600, 11602, 13435, 13436})
# Codes of servers that do not know a command, a stage, an operator or a variable, as far as they are reported:
# BadValue, FailedToParse, TypeMismatch, CommandNotFound, InvalidOptions, CommandNotSupported, InvalidPipelineOperator,
# NotImplemented, Amazon DocumentDB's two, undefined variable, join with a sharded collection, unknown stage and field.
_REFUSALS = frozenset({2, 9, 14, 59, 72, 115, 168, 238, 303, 304, 17276, 28769, 40324, 40415})
_EXISTS = 48
DUPLICATE_KEY = 11000
# A damaged value is decoded anyway, so that the other documents of the read are returned; later checks report it.
_OPTIONS = CodecOptions[Mapping[str, Any]](
    unicode_decode_error_handler="replace", datetime_conversion=DatetimeConversion.DATETIME_AUTO
)
_UNAUTHORIZED = 13
_BAD_LOGIN = frozenset({11, 18})  # UserNotFound, AuthenticationFailed
# Debugging details that PyMongo appends to an error: timeouts, every server it knows, and the whole reply.
_TIMEOUTS = re.compile(r" \(configured timeouts:[^)]*\)")
_DETAILS = re.compile(r", (?:Timeout: \d|Topology Description:|full error:).*", re.DOTALL)
# A server that refuses a command quotes it, including the documents to write.
_COMMAND = re.compile(r"(execute command \{ \w+: \"[^\"]*\").*", re.DOTALL)
# DNS failures as Linux, macOS, Windows and dnspython report them.
_NO_HOST = re.compile(
    "Name or service not known|name resolution|nodename nor servname|getaddrinfo failed|No "
    "address associated|DNS|resolution lifetime|SRV"
)


class Driver:
    """A database, independent of its driver; creating it does no I/O.

    Attributes:
        name: The driver that the database belongs to.
        database: The caller's database object.
        prefix: The beginning of the names of this store's collections; methods take names without it.
        refused: The constructs that this server is known to refuse; the store uses their replacements.
        times: Filters and updates with times.
    """

    def __init__(
        self,
        database: Any,
        *,
        prefix: str = "",
        now: Callable[[], datetime] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        classes = {class_.__name__ for class_ in type(database).__mro__}
        found: DriverName | None = next(
            (name for class_, name in _KNOWN if class_ in classes), None
        )
        if found is None:
            raise InvalidInputError(_not_a_database(database))
        self.name: DriverName = found
        self.database = database
        self.prefix = prefix
        self.refused: set[str] = set()
        in_memory = partial(datetime.now, UTC) if found == "memory" else None
        clock = ServerClock(self.hello, connections=self._connections, monotonic=monotonic)
        self.times = Times(now or in_memory, clock, self.refused)

    async def hello(self) -> Mapping[str, Any]:
        """Return the ``hello`` reply of the primary. One command."""
        async with driver_errors():
            reply: Mapping[str, Any] = await self.database.command("hello")
        return reply

    def _connections(self) -> object:
        """Return a value that changes when the client has connected again: the update times of writable servers."""
        servers = self.database.client.topology_description.server_descriptions().values()
        return [server.last_update_time for server in servers if server.is_writable]

    def collection(self, name: str, *, raw: bool = False) -> Any:
        """Return a collection with majority read and write concern, independent of the options of the caller's client.

        With `raw`, its documents are undecoded BSON, see `decoded`; documents of the in-memory driver never are.
        """
        options: CodecOptions[Any] = _OPTIONS
        if self.name == "memory":
            options = CodecOptions()
        elif raw:
            options = _OPTIONS.with_options(document_class=RawBSONDocument)
        return self.database.get_collection(
            self.prefix + name,
            codec_options=options,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern("majority", j=True),
        )

    @property
    def read_limit(self) -> dict[str, int]:
        """Return the option that also ends an abandoned read on the server."""
        return {} if self.name == "memory" else {"max_time_ms": int(COMMAND_SECONDS * 1_000)}

    def limited(self) -> AbstractContextManager[object]:
        """Send ``maxTimeMS`` with writes that may take long, unless the client's ``timeoutMS`` does so already."""
        has_limit = self.name == "memory" or self.database.client.options.timeout is not None
        return nullcontext() if has_limit else pymongo.timeout(COMMAND_SECONDS)

    async def create_collection(self, name: str, *, clustered: bool = False) -> None:
        """Create a collection if it is missing, with the options that this server supports."""
        async with driver_errors():
            if self.prefix + name in await self.database.list_collection_names():
                return
            options = await self._options(clustered)
            # Other servers than MongoDB's refuse some options, so creation is tried again without them.
            for refused in ((), ("storageEngine",), ("clusteredIndex",), tuple(options)):
                allowed = {name: value for name, value in options.items() if name not in refused}
                try:
                    await self.database.create_collection(self.prefix + name, **allowed)
                except OperationFailure as error:
                    if error.code != _EXISTS and allowed:
                        continue
                    if error.code != _EXISTS:
                        raise
                except CollectionInvalid:
                    pass  # another process created it first
                return

    async def can_cluster(self) -> bool:
        """Return True if this server supports clustered collections. One command."""
        async with driver_errors():
            version = (await self.database.command("buildInfo"))["versionArray"]
        return tuple(version[:2]) >= _CLUSTERED_SINCE

    async def create_index(self, collection: str, index: Index) -> None:
        """Create an index if it is missing; may take hours."""
        options: dict[str, Any] = {"name": index.name, "unique": index.unique}
        if self.name == "memory":
            if index.unique:
                return  # mongomock ignores the filter and would reject every second payload
        elif index.present:
            options["partialFilterExpression"] = {index.present: {"$exists": True}}
        async with driver_errors(seconds=None):
            await self.collection(collection).create_index(list(index.keys), **options)

    async def index_names(self, collection: str) -> set[str]:
        """Return the names of a collection's indexes. One command."""
        async with driver_errors():
            return set(await self.collection(collection).index_information())

    async def changes(self, *collections: str) -> AsyncGenerator[str]:
        """Yield the key of each document of some collections that changes, and "" at least once a second.

        Raises:
            StoreError: Change streams are not available: in memory, on a standalone server, or without the privilege.
        """
        if self.name == "memory":
            raise StoreError("the in-memory database has no change streams")
        wanted = {"ns.coll": {"$in": [self.prefix + name for name in collections]}}
        async with driver_errors(seconds=None):
            opened = self.database.watch(
                [{"$match": wanted}, {"$project": {"documentKey": 1}}], max_await_time_ms=1_000
            )
            async with await opened if isawaitable(opened) else opened as stream:
                while stream.alive:
                    change = await stream.try_next()
                    yield str(change["documentKey"]["_id"]) if change else ""

    async def _options(self, clustered: bool) -> dict[str, Any]:
        if self.name == "memory":
            return {}
        options: dict[str, Any] = {"storageEngine": COMPRESSED}
        if clustered and await self.can_cluster():
            options["clusteredIndex"] = CLUSTERED
        return options


def decoded(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document of any collection as a dict."""
    try:
        if isinstance(document, RawBSONDocument):
            return bson.decode(document.raw, _OPTIONS)
        return document
    except BSONError as error:
        raise _refusal(error) from error


def bson_size(document: Mapping[str, Any]) -> int:
    """Return the size of a document in BSON."""
    return len(document.raw if isinstance(document, RawBSONDocument) else bson.encode(document))


def open_client(uri: str, *, default: str = DEFAULT_DATABASE) -> tuple[Any, Any]:
    """Return a new client for an address and the database that it names, or the default one; no I/O.

    The client waits `SELECTION_SECONDS` for a server, unless the address has the option ``serverSelectionTimeoutMS``.

    Raises:
        InvalidInputError: The address cannot be opened; neither the message nor its cause quotes it.
        MissingExtraError: ``memory://`` needs mongomock-motor, which is not installed.
    """
    check_address(uri)
    if uri.startswith("memory://"):
        client = _memory_client()
        return client, client[uri.removeprefix("memory://").strip("/") or default]
    is_named = "serverselectiontimeoutms=" in uri.partition("?")[2].lower()
    options: dict[str, Any] = (
        {} if is_named else {"serverSelectionTimeoutMS": int(SELECTION_SECONDS * 1_000)}
    )
    remote = None
    database = None
    cause: Exception | None = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            remote = AsyncMongoClient[dict[str, Any]](uri, **options)
            database = remote.get_default_database(default)
        except (PyMongoError, ValueError, TypeError, OSError) as error:
            cause = error
    if cause is not None:
        # Raised outside the except block, so that the driver's error is not its context either.
        is_safe = not contains_part_of(str(cause), uri)
        raise InvalidInputError(_refused(cause if is_safe else None)) from (
            cause if is_safe else None
        )
    _warn_again(caught, uri)
    return remote, database


def _refused(cause: Exception | None) -> str:
    reason = f": {cause}" if cause else ""
    return f"PyMongo refuses the address{reason}; write it in the form {ADDRESS_FORM}"


def _warn_again(caught: Sequence[warnings.WarningMessage], uri: str) -> None:
    """Repeat PyMongo's warnings about an address; a warning that quotes the address is replaced by a general text."""
    for warning in caught:
        text = str(warning.message)
        # A ResourceWarning may come from a socket of another client, whose address is not secret.
        if warning.category is not ResourceWarning and contains_part_of(text, uri):
            text = (
                "an option of the address is unknown, deprecated or has an invalid value; "
                "see PyMongo's options"
            )
        # a caller's source line may contain the address
        warnings.warn(text, warning.category, stacklevel=2)


async def close_client(client: Any) -> None:
    """Close a client that `open_client` created; if the server does not answer, its sessions are not ended."""
    async with driver_errors():
        ended = client.close()
        if asyncio.iscoroutine(ended):
            try:
                await asyncio.wait_for(ended, _CLOSING_SECONDS)
            except TimeoutError:
                # The first call has removed the sessions, so this one does not wait.
                await client.close()


class driver_errors:  # noqa: N801 - used as a function; a generator takes three times as long
    """Convert the driver's errors to those of convstore, with the original as ``__cause__``; limit the wait.

    A suspended server neither answers nor closes connections, so callers would hang without a limit. With
    ``seconds=None`` the caller has to detect such a server in another way.
    """

    def __init__(self, *, seconds: float | None = COMMAND_SECONDS) -> None:
        self._limit = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as late:
            error = late
        if error is not None and (ours := _ours(error)):
            raise ours from error


def _not_a_database(value: object) -> str:
    """Return why a value is not a database that a store can use, and what to pass instead."""
    name = type(value).__qualname__
    if name in _SYNCHRONOUS:
        return (
            f"{name} belongs to a synchronous client, and a store awaits its database: pass "
            'AsyncMongoClient(...)["app"] of PyMongo, with the same address, or call '
            "`await ConversationStore.connect(address)`"
        )
    return (
        "database must be a database of PyMongo's AsyncMongoClient, Motor or "
        f'mongomock-motor, such as AsyncMongoClient(...)["app"], not {name}'
    )


def _ours(error: BaseException) -> StoreError | None:  # noqa: PLR0911 - one for each kind
    """Return the error of convstore for an error of the driver or of a time limit; None for any other error."""
    if isinstance(error, ConnectionFailure | ExecutionTimeout | WTimeoutError | TimeoutError):
        reason = reason_of(error) or f"no answer in {duration(COMMAND_SECONDS)}"
        return StoreUnavailableError(
            "MongoDB cannot be reached or did not answer in time; check that it runs and that the "
            f"address is right, then repeat the call: {reason}{_dns_hint(reason)}"
        )
    if isinstance(error, InvalidOperation):
        return StoreClosedError(
            f"the MongoDB client of this store was closed or is used elsewhere ({error}); "
            "close the store before its client"
        )
    if isinstance(error, RuntimeError):
        return _of_event_loop(str(error))
    if isinstance(error, OperationFailure) and error.code == _UNAUTHORIZED:
        return MissingPrivilegeError(
            f"MongoDB does not permit the user of this store a command ({reason_of(error)}): grant "
            "it to the user; docs/operations.md has the roles for serving, migrating and checking. "
            "Another server may lack the command: check with `convstore doctor --server`"
        )
    if isinstance(error, PyMongoError | BSONError | OverflowError):
        return _refusal(error)
    if isinstance(error, ValueError) and str(error).startswith("SASLprep"):
        return StoreError(
            f"the user name or the password contains a character that cannot be sent: {error}"
        )
    return None


def _of_event_loop(text: str) -> StoreError | None:
    """Return the error of convstore for a RuntimeError of asyncio about the client; None for any other."""
    if "Lock is not acquired" in text:
        # PyMongo raises this after some cancellations, before it sends a command.
        return StoreUnavailableError("a cancellation broke the search for the server; call again")
    if "loop" in text:
        return StoreError(
            "the MongoDB client of this store belongs to the event loop of its first use, "
            "which is not this one or has ended: make a store for each event loop, "
            "and use and close it there, in one `asyncio.run`"
        )
    return None


def is_refusal(error: StoreError) -> bool:
    """Return True if the server does not know a command or a part of it; False for other errors."""
    cause = error.__cause__
    return isinstance(cause, OperationFailure) and not _REFUSALS.isdisjoint(_codes(cause))


def taken_keys(error: BulkWriteError) -> list[int]:
    """Return the indexes of the documents of a batch whose keys were taken.

    Raises:
        BulkWriteError: The error has other causes. After an error of the write concern, writes may be rolled back.
    """
    failures = error.details.get("writeErrors") or []
    is_other = any(failure["code"] != DUPLICATE_KEY for failure in failures)
    if is_other or not failures or error.details.get("writeConcernErrors"):
        raise error
    return [failure["index"] for failure in failures]


def reason_of(error: Exception) -> str:
    """Return the text of a driver's error without its developer's details: time-outs, topology, whole replies.

    >>> reason_of(PyMongoError("db:27017: timed out, Timeout: 5.0s, Topology Description: <TopologyDescription …>"))
    'db:27017: timed out'
    """
    text = str(error)
    if isinstance(error, BulkWriteError) and error.details:
        failures = [
            *error.details.get("writeErrors", ()),
            *error.details.get("writeConcernErrors", ()),
        ]
        text = next((str(failure["errmsg"]) for failure in failures if failure.get("errmsg")), text)
    return _COMMAND.sub(r"\1 … }", _DETAILS.sub("", _TIMEOUTS.sub("", text)))


def _refusal(error: Exception) -> StoreError:
    """Return the error of convstore for a driver's error other than a lost connection."""
    reason = reason_of(error)
    if isinstance(error, OperationFailure) and (error.code in _BAD_LOGIN or "bad auth" in reason):
        return StoreError(
            f"MongoDB refused the user name or the password ({reason.rstrip('.')}): check both, "
            "and the authSource, which names the database that has the user"
        )
    if isinstance(error, ConfigurationError):
        if hint := _dns_hint(reason):
            return StoreUnavailableError(
                f"the servers of the address cannot be looked up: {reason}{hint}"
            )
        return StoreError(f"PyMongo cannot work with this server or these options: {reason}")
    if isinstance(error, CursorNotFound):
        return StoreError(
            f"the server closed the cursor of a long read ({reason}), as after ten minutes "
            "without a request or in a failover: start again from the beginning; "
            "a repeated import writes only what is missing"
        )
    if _is_undecided(error):
        return StoreUnavailableError(
            "MongoDB did not confirm a write, which may or may not be durable; repeat the call: "
            f"{reason}"
        )
    return StoreError(
        f"MongoDB refused a command of the store: {reason}{_server_hint(error, reason)}"
    )


def _server_hint(error: Exception, reason: str) -> str:
    """Return advice for a refusal of a server that lacks a feature."""
    if "retryable writes" in reason.lower():
        return "; add retryWrites=false to the address"
    if isinstance(error, OperationFailure) and not _REFUSALS.isdisjoint(_codes(error)):
        return (
            "; if the database was moved to this server, run `convstore migrate`, "
            "which finds out what the server lacks"
        )
    return ""


def _dns_hint(reason: str) -> str:
    if _NO_HOST.search(reason):
        return "; the host does not resolve: check its name in the address, and the DNS"
    return ""


def _is_undecided(error: Exception) -> bool:
    """Return True if a write may have taken effect without confirmation by the majority."""
    if isinstance(error, WriteConcernError):
        return True
    if isinstance(error, BulkWriteError) and error.details.get("writeConcernErrors"):
        return True
    if isinstance(error, OperationFailure) and not _TRY_AGAIN.isdisjoint(_codes(error)):
        return True
    return isinstance(error, PyMongoError) and error.has_error_label("RetryableWriteError")


def _codes(error: OperationFailure) -> set[int | None]:
    details = error.details if isinstance(error, BulkWriteError) and error.details else {}
    return {error.code, *(failure.get("code") for failure in details.get("writeErrors", ()))}


def _memory_client() -> Any:
    try:
        from mongomock_motor import AsyncMongoMockClient  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError(package="mongomock-motor", extra="memory") from error
    return AsyncMongoMockClient()
