"""Migrate a database to the schema of this version: numbered files, each run once.

``migrations/NNNN_name.py`` has a function ``async def up(database: Target) -> None`` and describes itself in its
docstring. It may define a ``PHASE`` and a ``LEVEL``: see `MigrationStep`. A step may be repeated after a crash, so it
must be idempotent. Applied steps are recorded in the collection ``convstore_migrations``. A lease there lets one runner
work at a time. It is renewed during a step, because an index over a large collection may take hours.

A step that requires a higher level than those before it is announced there first. It begins when every older process
has read the announcement and its last write has ended. A new database has no older processes.

A document ``server`` there names the constructs that the server refuses and that the store can replace. Every process
reads it with the records.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import logging
import re
import uuid
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from convstore.exceptions import (
    MissingPrivilegeError,
    NotSetUpError,
    SchemaVersionError,
    StoreError,
    StoreUnavailableError,
)
from convstore.mongo.collection import BY_KEY, Collection, Document
from convstore.mongo.driver import (
    DOCUMENT_SIZE,
    JOIN,
    Driver,
    DriverName,
    driver_errors,
    is_refusal,
)
from convstore.mongo.heads import join_of_last_entry
from convstore.mongo.indexes import SHARD_KEYS, Index, scope_indexes
from convstore.mongo.keys import HEADS, LOG, MIGRATIONS
from convstore.mongo.leases import while_leased
from convstore.mongo.statistics import GROUP_BY_DAY
from convstore.mongo.times import (
    ALWAYS_BY_SERVER_TIME,
    SERVER_TIME,
    SWEEP_MARGIN,
    is_past_now,
    setting_from_now,
)
from convstore.mongo.tombstones import Tombstones
from convstore.mongo.versions import LEVEL
from convstore.values.scope import PATH, check_listings

_LOGGER = logging.getLogger("convstore")
_LEASE = "lease"
_SERVER = "server"
_LEASE_TIME = timedelta(seconds=60)
_RENEW_SECONDS = 20.0
_WAIT_SECONDS = 120.0
_POLL_SECONDS = 0.1
_OLDER_ARE_OUT = timedelta(seconds=80)
"""Time after which older processes have read an announcement (10 s) and ended their appends (60 s)."""

_Result = TypeVar("_Result")
_FILE_NAME = re.compile(r"\d{4}_\w+\.py")
_NO_DOCUMENT = {"_id": ""}
_NOTHING = {"$match": _NO_DOCUMENT}
_AT = "at"


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """A migration.

    Attributes:
        name: Name of its file, which begins with its number.
        summary: First line of its docstring.
        up: Runs it; idempotent.
        phase: "before" if this version needs it; "after" if it waits until older processes are replaced.
        level: Lowest `versions.LEVEL` of a process that may read and write once the step was announced or has run.
        checksum: Checksum of its file, which must not change after its release.
    """

    name: str
    summary: str
    up: Callable[[Target], Awaitable[None]]
    phase: Literal["before", "after"] = "before"
    level: int = 1
    checksum: str = ""

    @property
    def record(self) -> dict[str, Any]:
        """Return the fields that the database stores."""
        return {"phase": self.phase, "level": self.level, "checksum": self.checksum}


class MigrationRecords(dict[str, Document]):
    """Records of migrations in a database, by name. A migration that was only announced has no ``applied_at``."""

    @property
    def pending(self) -> list[MigrationStep]:
        """Return the migrations of this version that have not run, in order."""
        return [step for step in discover() if "applied_at" not in self.get(step.name, ())]

    def due(self, *, after_deployment: bool = False) -> list[MigrationStep]:
        """Return the migrations to run, in order; the last ones of the phase "after" wait for `after_deployment`."""
        pending = self.pending
        is_new = not self
        needed = max(
            (number for number, step in enumerate(pending, 1) if step.phase == "before"), default=0
        )
        return pending if after_deployment or is_new else pending[:needed]

    @property
    def changed(self) -> list[str]:
        """Return the names of migrations that ran with another checksum than this version has."""
        ran = [step for step in discover() if step not in self.pending]
        return [step.name for step in ran if self[step.name].get("checksum") != step.checksum]


class Target:
    """The operations that a migration may use; each of them is idempotent."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def create(self, collection: str, *, clustered: bool = False) -> None:
        """Create a collection if it is missing; with `clustered` a clustered one if the server supports that."""
        await self._driver.create_collection(collection, clustered=clustered)

    async def index(
        self,
        collection: str,
        name: str,
        keys: Mapping[str, int],
        *,
        unique: bool = False,
        present: str = "",
    ) -> None:
        """Create an index if it is missing, restricted to documents that have the field `present`."""
        await self._driver.create_index(
            collection, Index(name, tuple(keys.items()), unique, present)
        )


class Migrator:
    """Runs pending migrations and lists applied ones."""

    def __init__(self, driver: Driver, *, scope_keys: Sequence[str]) -> None:
        self._driver = driver
        self._applied = Collection(driver, MIGRATIONS)
        self.driver_name: DriverName = driver.name
        self.scope_keys = tuple(scope_keys)
        self._database = driver.database.name
        self._heads = Tombstones(driver)
        self._times = driver.times

    async def records(self, condition: Document | None = None) -> MigrationRecords:
        """Return the records of migrations, and update the refused constructs of the driver. One command.

        `condition` is an additional filter that all documents match.

        Raises:
            SchemaVersionError: A migration excludes this version.
        """
        query = {"_id": {"$ne": _LEASE}, **(condition or {})}
        documents = await self._applied.find(query, order=BY_KEY)
        records = MigrationRecords({row["_id"]: row for row in documents})
        known = {step.name for step in discover()}
        self._driver.refused.update(records.pop(_SERVER, {}).get("refused") or ())
        if newer := [
            name
            for name in records
            if name not in known and records[name].get("level", LEVEL + 1) > LEVEL
        ]:
            raise SchemaVersionError(
                f"the database was set up by a newer convstore (it has {newer[-1]}); "
                "upgrade the package"
            )
        return records

    async def check(self) -> None:
        """Check that the database is set up for this version. One command.

        Raises:
            NotSetUpError: A migration is due.
            SchemaVersionError: The database is newer than this version.
        """
        if due := (await self.records()).due():
            raise NotSetUpError(
                f"the database {self._database!r} is not set up for this convstore ({due[0].name} "
                "has not run); call `await store.setup()` once, or run `convstore migrate`"
            )

    async def check_keys(self) -> None:
        """Warn if the first 100 conversations, in the order of their hashes, all have other scope keys. One command."""
        heads = await self._heads.page({}, after="", limit=100)
        stored = {tuple(sorted(head.scope.keys() - {PATH})) for head in heads if head.scope}
        if stored and tuple(sorted(self.scope_keys)) not in stored:
            warnings.warn(
                f"the scope keys of this store are {', '.join(self.scope_keys)}, "
                f"those of the conversations in the database {self._database!r} "
                f"{' or '.join(map(', '.join, sorted(stored)))}; it will find none of them",
                RuntimeWarning,
                stacklevel=3,
            )

    async def run(
        self, listings: Sequence[Sequence[str]] = (), *, after_deployment: bool = False
    ) -> list[str]:
        """Run the migrations that are due, one runner at a time, and return the names of those that this call ran.

        Indexes for listings by other combinations of scope keys are created as well.

        Raises:
            SchemaVersionError: The database is newer than this version; it was not changed.
            MissingPrivilegeError: A migration or an index is due, and the user may not create it.
            StoreUnavailableError: Another runner holds the lease and does not finish.
        """
        # Each store names its own scope keys, so their indexes are checked every time.
        indexes = scope_indexes(self.scope_keys, check_listings(self.scope_keys, listings))
        records = await self._records_of_this_server()
        is_done = records is not None and not records.due(after_deployment=after_deployment)
        if is_done and {index.name for index in indexes} <= await self._driver.index_names(HEADS):
            return []
        try:
            return await self.leased(
                partial(self._run_due, indexes, after_deployment=after_deployment)
            )
        except MissingPrivilegeError as error:
            raise MissingPrivilegeError(
                f"the database {self._database!r} has to be migrated first, which the user of this "
                f"store may not do: run `convstore migrate` as a user with the role for it. {error}"
            ) from error

    async def missing_shard_keys(self) -> list[str]:
        """Return the collections without the index that sharding needs. One command for each."""
        return [
            name
            for name, index in SHARD_KEYS.items()
            if index.name not in await self._driver.index_names(name)
        ]

    async def add_shard_keys(self) -> list[str]:
        """Create the indexes that sharding needs, and return the collections that lacked one; raises as `run`."""
        missing = await self.missing_shard_keys()

        async def work() -> None:
            for name in missing:
                await self._driver.create_index(name, SHARD_KEYS[name])

        if missing:
            await self.leased(work)
        return missing

    async def leased(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run some work on the schema under the lease, without a time limit; raises as `run`."""
        owner = uuid.uuid4().hex
        await self._take_lease(owner)
        try:
            return await self._while_leased(owner, work())
        finally:
            await self._applied.delete_one({"_id": _LEASE, "owner": owner})

    async def _while_leased(self, owner: str, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run some work and renew the lease meanwhile; cancel the work when the lease is lost."""
        lasts = _LEASE_TIME.total_seconds()
        renew = partial(self._renew, owner)
        ended = await while_leased(work, renew, every=_RENEW_SECONDS, lasts=lasts)
        if ended is None:
            raise StoreUnavailableError(
                "another process took over the migration of this database, as this one did not "
                "respond for a minute; call setup() again"
            )
        return ended.result()

    async def _renew(self, owner: str) -> bool:
        """Renew the lease; return False if it is lost."""
        async with driver_errors(seconds=_RENEW_SECONDS):
            lease = await self._times.setting({}, field="until", ahead=_LEASE_TIME)
            renewed = await self._applied.driver_collection.update_one(
                {"_id": _LEASE, "owner": owner}, lease
            )
        return bool(renewed.matched_count)

    async def _run_due(self, indexes: Sequence[Index], *, after_deployment: bool) -> list[str]:
        records = await self.records()
        due = records.due(after_deployment=after_deployment)
        is_new = not records
        await self._record_refused()
        for step in due:
            others = [
                record.get("level", 1) for name, record in records.items() if name != step.name
            ]
            if not is_new and step.level > max([1, *others]):
                await self._announce(step)
            await step.up(Target(self._driver))
            applied = {
                "$set": {**step.record, "applied_at": datetime.now(UTC)},
                "$unset": {"begins_at": ""},
            }
            await self._applied.update({"_id": step.name}, applied, upsert=True)
            records[step.name] = step.record
            _LOGGER.info("migration %s has run on database %s", step.name, self._database)
        for index in indexes:
            await self._driver.create_index(HEADS, index)
        return [step.name for step in due]

    async def _announce(self, step: MigrationStep) -> None:
        """Record the level of a step, and wait until no older process writes, counted from the first announcement."""
        values = await self._times.setting(step.record, field="begins_at", ahead=_OLDER_ARE_OUT)
        await self._applied.update(
            {"_id": step.name, "begins_at": {"$exists": False}}, values, upsert=True
        )
        while not await self._has_begun(step):  # noqa: ASYNC110 - the server's clock
            await asyncio.sleep(_POLL_SECONDS)

    async def _has_begun(self, step: MigrationStep) -> bool:
        is_past = await self._times.is_past("begins_at", margin=SWEEP_MARGIN)
        return await self._applied.find_one({"_id": step.name} | is_past) is not None

    async def _take_lease(self, owner: str) -> None:
        """Wait for the lease; a lease that its owner did not release expires."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while not await self._try_lease(owner):  # noqa: ASYNC110 - held by another process
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise StoreUnavailableError(
                "another process has been migrating this database for two minutes; "
                "try again when it is done"
            ) from error

    async def _try_lease(self, owner: str) -> bool:
        """Take the lease if it is free or has expired; return False if another process holds it.

        This also finds out if the server refuses ``$$NOW``.
        """
        try:
            return await self._take_free_lease(owner)
        except StoreError as error:
            if SERVER_TIME in self._driver.refused or not is_refusal(error):
                raise
            self._driver.refused.add(SERVER_TIME)
            return await self._take_free_lease(owner)

    async def _take_free_lease(self, owner: str) -> bool:
        lease = await self._times.setting({"owner": owner}, field="until", ahead=_LEASE_TIME)
        is_new = await self._applied.update(
            {"_id": _LEASE, "owner": {"$exists": False}}, lease, upsert=True
        )
        is_past = await self._times.is_past("until")
        return is_new or await self._applied.update({"_id": _LEASE, **is_past}, lease)

    async def _records_of_this_server(self) -> MigrationRecords | None:
        """Return the records; None if the server refuses ``$$NOW`` and the database did not record that yet."""
        condition = None if self._driver.name == "memory" else ALWAYS_BY_SERVER_TIME
        try:
            return await self.records(condition)
        except StoreError as error:
            if not is_refusal(error):
                raise
        records = await self.records()
        return records if SERVER_TIME in self._driver.refused else None

    async def _record_refused(self) -> None:
        """Find out which constructs the server refuses, and record them for other processes."""
        refused = self._driver.refused
        found = await _refused_by(self._driver)
        if found or refused:
            await self._applied.update(
                {"_id": _SERVER}, {"$set": {"refused": sorted(found)}}, upsert=True
            )
        refused.clear()
        refused.update(found)


async def _refused_by(driver: Driver) -> set[str]:
    """Return the names of the constructs that the server refuses, as in `Driver.refused`. Three commands.

    The commands match no document, so they change nothing.
    """
    if driver.name == "memory":  # these constructs are never used in memory
        return set()
    documents = Collection(driver, MIGRATIONS)
    update = setting_from_now({}, field=_AT, ahead=timedelta(seconds=1))
    join = join_of_last_entry(driver.prefix + LOG)
    commands: dict[str, Callable[[], Awaitable[object]]] = {
        SERVER_TIME: partial(documents.update, _NO_DOCUMENT | is_past_now(_AT), update),
        JOIN: partial(documents.aggregate, [_NOTHING, join]),
        DOCUMENT_SIZE: partial(documents.aggregate, [_NOTHING, {"$group": GROUP_BY_DAY}]),
    }
    return {construct for construct, command in commands.items() if await _is_refused(command)}


async def _is_refused(command: Callable[[], Awaitable[object]]) -> bool:
    """Return True if the server refuses a command; errors with other causes are raised."""
    try:
        await command()
    except MissingPrivilegeError:
        return False  # unknown; the first use finds out
    except StoreError as error:
        if is_refusal(error):
            return True
        raise
    return False


@cache
def discover() -> tuple[MigrationStep, ...]:
    """Return all migrations of this version, in order."""
    files = sorted(path for path in _folder().iterdir() if _FILE_NAME.fullmatch(path.name))
    return tuple(_load(path) for path in files)


def _folder() -> Path:
    """Return the folder of the migrations: inside an installed package, next to the package in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def _load(path: Path) -> MigrationStep:
    spec = importlib.util.spec_from_file_location(f"convstore._migrations.{path.stem}", path)
    assert spec is not None  # noqa: S101 - the path is a Python file
    assert spec.loader is not None  # noqa: S101 - the path is a Python file
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    summary = (module.__doc__ or "").strip().partition("\n")[0]
    named = {
        name.lower(): value for name, value in vars(module).items() if name in ("PHASE", "LEVEL")
    }
    checksum = hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()[:16]
    return MigrationStep(path.stem, summary, module.up, **named, checksum=checksum)
