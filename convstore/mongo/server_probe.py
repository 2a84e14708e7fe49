"""Try all constructs that the store uses on a server, and report those that the server lacks.

Only behaviour counts, not the version: servers that imitate MongoDB report one of its versions. The
collections of a probe have fixed names, so that a role can permit them, and so that the next run
removes those of a killed run. A marker in them detects two runs at the same time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from convstore.exceptions import (
    InvalidInputError,
    MissingPrivilegeError,
    StoreError,
    StoreUnavailableError,
)
from convstore.mongo.collection import Collection
from convstore.mongo.constructs import CONSTRUCTS, CREATION, Construct
from convstore.mongo.driver import Driver, driver_errors, is_refusal, reason_of
from convstore.mongo.keys import HEADS, LOG
from convstore.mongo.workbench import DifferentAnswerError, Workbench
from convstore.values.plain import duration
from convstore.values.reports import ProbedConstruct, ServerReport

PROBE_PREFIX = "convstore_probe_"
"""Prefix of the collections of a probe."""

PROBE_SECONDS = 60.0
"""Time limit of a probe, unless the caller sets another one."""

_MARKER = "marker"
_CLEANING_SECONDS = 10.0
_MAX_REASON = 200
_BUSY = frozenset({112, 16500})
"""Codes of a busy server: a write conflict, and the request limit of Cosmos DB."""

_ADDRESSES = {
    ".docdb.amazonaws.com": "Amazon DocumentDB",
    ".docdb-elastic.amazonaws.com": "Amazon DocumentDB",
    ".mongocluster.cosmos.azure.com": "Azure DocumentDB",
    ".cosmos.azure.com": "Azure Cosmos DB for MongoDB",
}
_OF_MONGODB = {"allocator", "gitVersion", "storageEngines"}
"""Fields of `buildInfo` that only MongoDB's own servers have."""

_Topology = Literal["standalone", "replica set", "sharded cluster"]
_Lack = Literal["lacking", "refused", "refused by a known code"]
_LACKS: tuple[_Lack, ...] = ("lacking", "refused", "refused by a known code")
_GRANT = "grant the user the role convstoreProbe of docs/operations.md"
_AMBIGUOUS = "code 13, by which this server may also mean that it does not have the command"


async def probe_server(database: Any, *, seconds: float = PROBE_SECONDS) -> ServerReport:
    """Try all constructs that a store uses; afterwards remove all collections of the probe, also of a killed run.

    Collections of a store in the database are not touched. A run takes about two seconds.

    Args:
        database: A database of one of the drivers.
        seconds: The time limit; constructs that were not tried by then are reported as such.

    Raises:
        InvalidInputError: The database is in memory, or the time limit is not above zero.
        StoreUnavailableError: The server does not answer, or the connection was lost meanwhile.
        StoreError: Another probe ran on the same database, so that the result may be wrong.
    """
    driver = Driver(database, prefix=PROBE_PREFIX)
    if driver.name == "memory":
        raise InvalidInputError("a database in memory has no server; pass the address of a server")
    if not seconds > 0:
        raise InvalidInputError(f"the time limit is {seconds!r} seconds; pass a number above 0")
    probe = _Probe(driver)
    try:
        async with asyncio.timeout(seconds):
            await probe.identify()
    except TimeoutError as error:
        text = f"the server did not answer in {duration(seconds)}; check the address"
        raise StoreUnavailableError(text) from error
    return await probe.run(seconds)


class _Probe:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._owner = secrets.token_hex(12)
        self._marker = Collection(driver, _MARKER)
        self._bench = Workbench(driver, self._owner)
        self._found: dict[str, ProbedConstruct] = {}
        self._is_mongodb = False
        self._has_begun = False
        self._is_marked = False
        self._report = ServerReport(server="", version="", topology="standalone", clock_ahead=0.0)

    async def identify(self) -> None:
        """Ask for the server's kind, version, topology and time. Two commands."""
        command = self._driver.database.command
        async with driver_errors():
            build = await command("buildInfo")
            began = datetime.now(UTC)
            hello = await command("hello")
            ended = datetime.now(UTC)
        server = self._server_of(build)
        self._is_mongodb = server == "MongoDB"
        local: datetime = hello["localTime"].replace(tzinfo=UTC)
        ahead = began + (ended - began) / 2 - local
        self._report = ServerReport(
            server=server,
            version=str(build.get("version", "")),
            topology=_topology_of(hello),
            clock_ahead=round(ahead / timedelta(seconds=1), 3),
        )

    def _server_of(self, build: Mapping[str, Any]) -> str:
        if "ferretdb" in build:
            return "FerretDB"
        hosts = [host.lower() for host, _ in self._driver.database.client.nodes]
        for ending, name in _ADDRESSES.items():
            if any(host.endswith(ending) for host in hosts):
                return name
        if build.keys() >= _OF_MONGODB:
            return "MongoDB"
        return "a server that speaks MongoDB's protocol"

    async def run(self, seconds: float) -> ServerReport:
        """Try the constructs one after the other, and clean up in any case."""
        obstacle = ""
        try:
            async with asyncio.timeout(seconds):
                await self._try_all()
        except TimeoutError:
            obstacle = f"the time limit of {duration(seconds)} was reached; allow more (--timeout)"
        except MissingPrivilegeError as error:
            obstacle = self._of_privilege(error)
        finally:
            await self._clean_up()
        for construct in (*CREATION, *CONSTRUCTS):
            self._found.setdefault(construct.name, _not_tried(construct, obstacle))
        return self._report.model_copy(update={"constructs": tuple(self._found.values())})

    async def _try_all(self) -> None:
        await self._drop()
        self._has_begun = True
        await self._marker.insert({"_id": _MARKER, "owner": self._owner})
        self._is_marked = True
        for construct in CREATION:
            await self._try(construct)
        await self._bench.fill()
        for construct in CONSTRUCTS:
            await self._try(construct)

    async def _try(self, construct: Construct) -> None:
        before = self._found.get(construct.after)
        if before is not None and before.status == "not_tried":
            self._found[construct.name] = _not_tried(construct, f"it needs {construct.after}")
        else:
            self._found[construct.name] = await self._outcome_of(construct)

    async def _outcome_of(self, construct: Construct) -> ProbedConstruct:
        try:
            await construct.check(self._bench)
        except StoreUnavailableError:
            raise
        except StoreError as error:
            return self._refused(construct, error)
        except DifferentAnswerError as error:
            return _lacking(construct, _short(str(error)))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return _lacking(construct, _short(f"an answer of another form ({error!r})"))
        return ProbedConstruct(name=construct.name, status="supported")

    def _refused(self, construct: Construct, error: StoreError) -> ProbedConstruct:
        """Return the result of a refusal: the construct is lacking, unless the user or a busy server is the cause."""
        code = getattr(error.__cause__, "code", None)
        needs_code = construct.replaced_if == "refused by a known code"
        is_replaced = bool(construct.replacement) and not needs_code
        if isinstance(error, MissingPrivilegeError) and (self._is_mongodb or not is_replaced):
            return _not_tried(construct, self._of_privilege(error), code)
        if code in _BUSY:
            return _not_tried(construct, _reason_of(error), code)
        lack: _Lack = "refused by a known code" if is_refusal(error) else "refused"
        return _lacking(construct, _reason_of(error), code, lack)

    def _of_privilege(self, error: MissingPrivilegeError) -> str:
        """Return why a command was not permitted, and what to do if that is known."""
        reason = _reason_of(error)
        return f"{reason}; {_GRANT}" if self._is_mongodb else f"{reason} ({_AMBIGUOUS})"

    async def _clean_up(self) -> None:
        if not self._has_begun:
            return
        try:
            async with asyncio.timeout(_CLEANING_SECONDS):
                await self._remove_own()
        except TimeoutError as error:
            raise StoreUnavailableError(
                "the server stopped answering, so collections convstore_probe_* may be left; "
                "the next `convstore doctor --server` removes them"
            ) from error

    async def _remove_own(self) -> None:
        """Remove the collections, unless another run uses them.

        Raises:
            StoreError: Another run uses them.
        """
        with suppress(MissingPrivilegeError):  # the user may write, but not read
            marker = await self._marker.find_one({"_id": _MARKER})
            is_lost = marker is None and self._is_marked
            if is_lost or (marker is not None and marker.get("owner") != self._owner):
                raise StoreError(
                    "another `convstore doctor --server` works on this database, "
                    "so the result may be wrong: run one at a time"
                )
        await self._drop()

    async def _drop(self) -> None:
        for name in (LOG, HEADS, _MARKER):
            async with driver_errors():
                await self._driver.database.drop_collection(PROBE_PREFIX + name)


def _not_tried(construct: Construct, reason: str, code: int | None = None) -> ProbedConstruct:
    return ProbedConstruct(name=construct.name, status="not_tried", reason=reason, code=code)


def _lacking(
    construct: Construct, reason: str, code: int | None = None, lack: _Lack = "lacking"
) -> ProbedConstruct:
    """Return the result for a construct that is lacking: "replaced" if the store notices that and has a replacement."""
    is_noticed = _LACKS.index(lack) >= _LACKS.index(construct.replaced_if)
    is_replaced = bool(construct.replacement) and is_noticed
    return ProbedConstruct(
        name=construct.name,
        status="replaced" if is_replaced else "missing",
        without=construct.replacement if is_replaced else construct.consequence,
        reason=reason,
        code=code,
    )


def _topology_of(hello: Mapping[str, Any]) -> _Topology:
    if hello.get("msg") == "isdbgrid":
        return "sharded cluster"
    return "replica set" if "setName" in hello else "standalone"


def _reason_of(error: StoreError) -> str:
    """Return the server's text of a refusal, else that of convstore."""
    cause = error.__cause__
    return _short(reason_of(cause) if isinstance(cause, Exception) else str(error))


def _short(text: str) -> str:
    return text if len(text) <= _MAX_REASON else f"{text[: _MAX_REASON - 1]}…"
