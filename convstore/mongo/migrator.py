"""Brings a database to the shape that this version expects: numbered files, each run once.

Layer 4. ``migrations/NNNN_name.py`` holds ``async def up(database: Target) -> None`` and says in its docstring what it
does; a step may be repeated after a crash, so it makes sure of things instead of making them. What was applied is
kept in the collection ``convstore_migrations``; a lease in the same place lets one runner work at a time. It is renewed
while a step lasts, which with an index over a large collection may be hours.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pymongo.errors import DuplicateKeyError

from convstore.exceptions import NotSetUpError, SchemaVersionError, StoreUnavailableError
from convstore.mongo.driver import Driver, DriverName, driver_errors
from convstore.mongo.indexes import LOG_INDEXES, Index, head_indexes
from convstore.mongo.keys import ANNOTATIONS, HEADS, LOG, MIGRATIONS, SUMMARIES

__all__ = ["Migration", "Migrator", "Target", "discover"]

_LEASE = "lease"
_LEASE_TIME, _RENEW_SECONDS = timedelta(seconds=60), 20.0
_WAIT_SECONDS, _POLL_SECONDS = 120.0, 0.1
_Result = TypeVar("_Result")
_FILE_NAME = re.compile(r"\d{4}_\w+\.py")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: its name, what it does, and the function that does it."""

    name: str
    summary: str
    up: Callable[[Target], Awaitable[None]]


class Target:
    """What a migration may do to a database; every method makes sure of something and may be repeated."""

    def __init__(self, driver: Driver, *, prefix: str, scope_keys: Sequence[str]) -> None:
        self._driver, self._prefix = driver, prefix
        self._scope_keys = scope_keys

    async def ensure_log(self) -> None:
        """The ``log`` collection, clustered where the server can, and its indexes."""
        await self._driver.create_collection(self._prefix + LOG, clustered=True)
        await self._ensure_indexes(LOG, LOG_INDEXES)

    async def ensure_heads(self) -> None:
        """The ``heads`` collection and the indexes that listing by scope needs."""
        await self._driver.create_collection(self._prefix + HEADS)
        await self._ensure_indexes(HEADS, head_indexes(self._scope_keys))

    async def has_heads(self) -> bool:
        """Whether the indexes that listing by scope needs are there. One command."""
        names = await self._driver.index_names(self._prefix + HEADS)
        return {index.name for index in head_indexes(self._scope_keys)} <= names

    async def ensure_annotations(self) -> None:
        """The ``annotations`` collection, which is read by ``_id`` alone."""
        await self._driver.create_collection(self._prefix + ANNOTATIONS)

    async def ensure_summaries(self) -> None:
        """The ``summaries`` collection, which is read by ``_id`` alone."""
        await self._driver.create_collection(self._prefix + SUMMARIES)

    async def _ensure_indexes(self, collection: str, indexes: Iterable[Index]) -> None:
        # One by one: the in-memory driver drops what it does not know when it is given several.
        for index in indexes:
            await self._driver.create_index(
                self._prefix + collection, index.name, list(index.keys), unique=index.unique, present=index.present
            )


class Migrator:
    """Runs what is pending and tells what was applied."""

    def __init__(self, driver: Driver, *, prefix: str = "", scope_keys: Sequence[str]) -> None:
        self._applied = driver.collection(prefix + MIGRATIONS)
        self._target = Target(driver, prefix=prefix, scope_keys=scope_keys)
        self.driver_name: DriverName = driver.name
        self.scope_keys = tuple(scope_keys)

    async def applied(self) -> list[str]:
        """Names of the migrations that ran, in order. One command."""
        async with driver_errors():
            documents = await self._applied.find({}).sort("_id", 1).to_list(None)
        return [document["_id"] for document in documents if document["_id"] != _LEASE]

    async def pending(self) -> list[Migration]:
        """Migrations that have not run, in order.

        Raises:
            SchemaVersionError: The database knows migrations that this version does not.
        """
        applied = await self.applied()
        known = discover()
        if unknown := sorted(set(applied) - {migration.name for migration in known}):
            raise SchemaVersionError(
                f"the database was set up by a newer convstore (it has {unknown[-1]}); upgrade the package"
            )
        return [migration for migration in known if migration.name not in applied]

    async def check(self) -> None:
        """Make sure that nothing is pending.

        Raises:
            NotSetUpError: Something is.
            SchemaVersionError: The database is newer than this version.
        """
        if pending := await self.pending():
            raise NotSetUpError(
                f"the database is not set up for this convstore ({pending[0].name} has not run); "
                "call `await store.setup()` once, or run `convstore migrate`"
            )

    async def run(self) -> list[str]:
        """Run what is pending, one runner at a time; gives the names of what this call ran.

        Raises:
            SchemaVersionError: The database is newer than this version; nothing was done.
            StoreUnavailableError: Another runner holds the lease and does not finish.
        """
        # Each store names its own scope keys, so their indexes are made sure of every time.
        if not await self.pending() and await self._target.has_heads():
            return []
        return await self.leased(self._run_pending)

    async def leased(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Do some work on the schema while nobody else does; however long it takes.

        Raises:
            StoreUnavailableError: Another runner holds the lease and does not finish, or this one could not keep it.
        """
        owner = uuid.uuid4().hex
        await self._take_lease(owner)
        try:
            return await self._while_leased(owner, work())
        finally:
            async with driver_errors():
                await self._applied.delete_one({"_id": _LEASE, "owner": owner})

    async def _while_leased(self, owner: str, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do some work and renew the lease meanwhile; stop it when the lease cannot be kept."""
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
        """Keep the lease; gives when it ends, which is as before if the server is out of reach and there is time.

        Raises:
            StoreUnavailableError: The lease is lost.
        """
        renewed_ends, until = time.monotonic() + _LEASE_TIME.total_seconds(), datetime.now(UTC) + _LEASE_TIME
        try:
            async with driver_errors(seconds=_RENEW_SECONDS):
                renewed = await self._applied.update_one({"_id": _LEASE, "owner": owner}, {"$set": {"until": until}})
        except StoreUnavailableError:
            if time.monotonic() >= ends:
                raise
            return ends
        if not renewed.matched_count:
            raise StoreUnavailableError(
                "another process took over the migration of this database, as this one did not answer for a minute; "
                "call setup() again"
            )
        return renewed_ends

    async def _run_pending(self) -> list[str]:
        pending = await self.pending()
        for migration in pending:
            await migration.up(self._target)
            async with driver_errors():
                await self._applied.update_one(
                    {"_id": migration.name}, {"$setOnInsert": {"applied_at": datetime.now(UTC)}}, upsert=True
                )
        await self._target.ensure_heads()
        return [migration.name for migration in pending]

    async def _take_lease(self, owner: str) -> None:
        """Wait until no other runner is at work; a lease that its owner did not give back ends by itself."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while not await self._try_lease(owner):  # noqa: ASYNC110 - the other runner is another process
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise StoreUnavailableError(
                "another process has been migrating this database for two minutes; try again when it is done"
            ) from error

    async def _try_lease(self, owner: str) -> bool:
        now = datetime.now(UTC)
        async with driver_errors():
            try:
                await self._applied.update_one(
                    {"_id": _LEASE, "until": {"$lt": now}},
                    {"$set": {"owner": owner, "until": now + _LEASE_TIME}},
                    upsert=True,
                )
            except DuplicateKeyError:
                return False
        return True


@cache
def discover() -> tuple[Migration, ...]:
    """All migrations that this version has, in order."""
    files = sorted(path for path in _folder().iterdir() if _FILE_NAME.fullmatch(path.name))
    return tuple(_load(path) for path in files)


def _folder() -> Path:
    """Where the files are: inside the package once installed, beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def _load(path: Path) -> Migration:
    spec = importlib.util.spec_from_file_location(f"convstore._migrations.{path.stem}", path)
    assert spec is not None  # noqa: S101 - the path is a Python file
    assert spec.loader is not None  # noqa: S101 - likewise
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Migration(path.stem, (module.__doc__ or "").strip().partition("\n")[0], module.up)
