"""Migrate a database to the schema of this version: numbered files, each run once.

``migrations/NNNN_name.py`` holds ``async def up(database: Target) -> None`` and describes itself in its docstring. It
may name a ``LEVEL``, the lowest `versions.LEVEL` of a process that may use the database after it; older processes go on
where that is not above their own, so that a deployment need not stop all of them. A
step may be repeated after a crash, so it must be idempotent. Applied steps are recorded in the collection
``convstore_migrations``. A lease there lets one runner work at a time. It is renewed during a step, as an index over a
large collection may take hours.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import time
import uuid
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pymongo.errors import DuplicateKeyError

from convstore.exceptions import NotSetUpError, SchemaVersionError, StoreUnavailableError
from convstore.mongo.collection import Collection
from convstore.mongo.driver import Driver, DriverName, driver_errors
from convstore.mongo.indexes import indexes_for
from convstore.mongo.keys import HEADS, LOG, MIGRATIONS
from convstore.mongo.tombstones import Tombstones
from convstore.mongo.versions import LEVEL
from convstore.values.scope import PATH, check_listing

_LEASE = "lease"
_LEASE_TIME, _RENEW_SECONDS = timedelta(seconds=60), 20.0
_WAIT_SECONDS, _POLL_SECONDS = 120.0, 0.1
_Result = TypeVar("_Result")
_FILE_NAME = re.compile(r"\d{4}_\w+\.py")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: its name, a summary, its function, and the lowest level of a process that may run after it."""

    name: str
    summary: str
    up: Callable[[Target], Awaitable[None]]
    level: int = 1


class Target:
    """The operations that a migration may use; each of them is idempotent."""

    def __init__(self, driver: Driver, *, scope_keys: Sequence[str], listings: Sequence[Sequence[str]] = ()) -> None:
        self._driver, self._indexes = driver, indexes_for(scope_keys, listings)

    async def ensure(self, *collections: str) -> None:
        """Create collections and their indexes where they are missing; the log is clustered if the server can."""
        for collection in collections:
            await self._driver.create_collection(collection, clustered=collection == LOG)
            # One by one: given several, the in-memory driver drops options that it does not support.
            for index in self._indexes[collection]:
                await self._driver.create_index(collection, index)

    async def has_heads(self) -> bool:
        """Return True if the indexes for listing by scope exist. One command."""
        return {index.name for index in self._indexes[HEADS]} <= await self._driver.index_names(HEADS)


class Migrator:
    """Runs pending migrations and lists applied ones."""

    def __init__(self, driver: Driver, *, scope_keys: Sequence[str]) -> None:
        self._driver, self._applied = driver, Collection(driver, MIGRATIONS)
        self._target = Target(driver, scope_keys=scope_keys)
        self.driver_name: DriverName = driver.name
        self.scope_keys, self._database = tuple(scope_keys), driver.database.name
        self._heads = Tombstones(driver)

    async def pending(self) -> list[Migration]:
        """Return the migrations that have not run, in order.

        SchemaVersionError if the database has unknown ones that ask for a newer version.
        """
        documents = await self._applied.find({"_id": {"$ne": _LEASE}}, order=[("_id", 1)])
        levels = {document["_id"]: document.get("level", LEVEL + 1) for document in documents}
        migrations = discover()
        known = {migration.name for migration in migrations}
        if unknown := [name for name, level in levels.items() if name not in known and level > LEVEL]:
            raise SchemaVersionError(
                f"the database was set up by a newer convstore (it has {unknown[-1]}); upgrade the package"
            )
        return [migration for migration in migrations if migration.name not in levels]

    async def check(self) -> None:
        """Raise a NotSetUpError if a migration is pending, a SchemaVersionError if the database is newer."""
        if pending := await self.pending():
            raise NotSetUpError(
                f"the database {self._database!r} is not set up for this convstore ({pending[0].name} has not run); "
                "call `await store.setup()` once, or run `convstore migrate`"
            )

    async def check_keys(self) -> None:
        """Warn if all stored conversations, or 100 by the order of their hashes, have other scope keys. One command."""
        heads = await self._heads.page({}, after="", limit=100)
        stored = {tuple(sorted(head.scope.keys() - {PATH})) for head in heads if head.scope}
        if stored and tuple(sorted(self.scope_keys)) not in stored:
            warnings.warn(
                f"the scope keys of this store are {', '.join(self.scope_keys)}, those of the conversations in the "
                f"database {self._database!r} {' or '.join(map(', '.join, sorted(stored)))}; it will find none of them",
                RuntimeWarning,
                stacklevel=3,
            )

    async def run(self, listings: Sequence[Sequence[str]] = ()) -> list[str]:
        """Run pending migrations, one runner at a time, and return the names of those that this call ran.

        Indexes for listings by other combinations of scope keys are created as well.

        Raises:
            SchemaVersionError: The database is newer than this version; nothing was done.
            StoreUnavailableError: Another runner holds the lease and does not finish.
        """
        # Each store names its own scope keys, so their indexes are checked every time.
        checked = [check_listing(self.scope_keys, keys) for keys in listings]
        self._target = Target(self._driver, scope_keys=self.scope_keys, listings=checked)
        if not await self.pending() and await self._target.has_heads():
            return []
        return await self.leased(self._run_pending)

    async def leased(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run some work on the schema under the lease, however long it takes; see `run` for its errors."""
        owner = uuid.uuid4().hex
        await self._take_lease(owner)
        try:
            return await self._while_leased(owner, work())
        finally:
            await self._applied.delete_one({"_id": _LEASE, "owner": owner})

    async def _while_leased(self, owner: str, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run some work and renew the lease meanwhile; cancel the work when the lease is lost."""
        task = asyncio.ensure_future(work)
        ends = time.monotonic() + _LEASE_TIME.total_seconds()
        try:
            while not (await asyncio.wait({task}, timeout=_RENEW_SECONDS))[0]:
                ends = await self._renew(owner, ends)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _renew(self, owner: str, ends: float) -> float:
        """Renew the lease and return its end, unchanged while the server is unreachable; raise if the lease is lost."""
        renewed_ends = time.monotonic() + _LEASE_TIME.total_seconds()
        lease = self._driver.setting({}, field="until", ahead=_LEASE_TIME)
        try:
            async with driver_errors(seconds=_RENEW_SECONDS):
                renewed = await self._applied.driver_collection.update_one({"_id": _LEASE, "owner": owner}, lease)
        except StoreUnavailableError:
            if time.monotonic() >= ends:
                raise
            return ends
        if not renewed.matched_count:
            raise StoreUnavailableError(
                "another process took over the migration of this database, as this one did not respond for a minute; "
                "call setup() again"
            )
        return renewed_ends

    async def _run_pending(self) -> list[str]:
        pending = await self.pending()
        for migration in pending:
            await migration.up(self._target)
            applied = {"$setOnInsert": {"applied_at": datetime.now(UTC), "level": migration.level}}
            await self._applied.update({"_id": migration.name}, applied, upsert=True)
        await self._target.ensure(HEADS)
        return [migration.name for migration in pending]

    async def _take_lease(self, owner: str) -> None:
        """Wait for the lease; one that its owner did not release expires."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while not await self._try_lease(owner):  # noqa: ASYNC110 - the other runner is another process
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise StoreUnavailableError(
                "another process has been migrating this database for two minutes; try again when it is done"
            ) from error

    async def _try_lease(self, owner: str) -> bool:
        """Take the lease if there is none, else if it has expired: an upsert cannot compare with the server's time."""
        lease = self._driver.setting({"owner": owner}, field="until", ahead=_LEASE_TIME)
        async with driver_errors():
            try:
                await self._applied.driver_collection.update_one(
                    {"_id": _LEASE, "owner": {"$exists": False}}, lease, upsert=True
                )
            except DuplicateKeyError:
                return await self._applied.update({"_id": _LEASE, **self._driver.is_past("until")}, lease)
        return True


@cache
def discover() -> tuple[Migration, ...]:
    """Return all migrations of this version, in order."""
    files = sorted(path for path in _folder().iterdir() if _FILE_NAME.fullmatch(path.name))
    return tuple(_load(path) for path in files)


def _folder() -> Path:
    """Return the folder of the files: inside an installed package, next to it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def _load(path: Path) -> Migration:
    spec = importlib.util.spec_from_file_location(f"convstore._migrations.{path.stem}", path)
    assert spec is not None  # noqa: S101 - the path is a Python file
    assert spec.loader is not None  # noqa: S101 - likewise
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    summary = (module.__doc__ or "").strip().partition("\n")[0]
    return Migration(path.stem, summary, module.up, getattr(module, "LEVEL", 1))
