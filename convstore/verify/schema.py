"""Check collections, their options, their indexes and the migrations.

Missing collections and indexes can be created again. Differences are only reported, because rebuilding an index may
take hours and the operator must choose the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from convstore.exceptions import StoreError
from convstore.mongo.driver import Driver
from convstore.mongo.indexes import Index, indexes_for
from convstore.mongo.inspection import SchemaInspection, matches
from convstore.mongo.keys import HEADS, LOG, MIGRATIONS, OF_CONVERSATIONS
from convstore.mongo.migrator import Migrator
from convstore.verify.findings import Findings


class SchemaCheck:
    """Compares a database with the schema."""

    def __init__(self, driver: Driver, migrator: Migrator) -> None:
        self._inspection = SchemaInspection(driver)
        self._driver = driver
        self._migrator = migrator
        self._indexes = indexes_for(migrator.scope_keys)

    async def run(self, findings: Findings) -> None:
        """Check everything; a repair runs missing migrations and creates missing collections and indexes."""
        await self._migrations(findings)
        if not self._inspection.is_real:
            return
        options = await self._inspection.options(self._indexes)
        of_stored_keys = indexes_for(await self._inspection.scope_keys(), has_default=False)
        for collection, own in self._indexes.items():
            if collection not in options:
                await self._create_collection(findings, collection)
            else:
                await self._options(findings, collection, options[collection])
            indexes = list(dict.fromkeys([*own, *of_stored_keys[collection]]))
            await self._check_indexes(findings, collection, indexes, is_there=collection in options)

    async def _migrations(self, findings: Findings) -> None:
        records = await self._migrator.records()
        refused = ""
        for name in records.changed:
            findings.report(
                "migration", MIGRATIONS, name, "it ran with another content than in this version"
            )
        if (pending := records.due()) and findings.repair:
            try:
                await self._migrator.run()
            except StoreError as error:
                refused = f" and cannot: {error}"
            records = await self._migrator.records()
        for migration in pending:
            repaired = migration not in records.pending
            problem = "it has not run" if repaired else f"it has not run{refused}"
            findings.report(
                "migration", MIGRATIONS, migration.name, problem, repairable=True, repaired=repaired
            )

    async def _create_collection(self, findings: Findings, collection: str) -> None:
        if findings.repair:
            await self._driver.create_collection(collection, clustered=collection == LOG)
        name = self._driver.prefix + collection
        repair = findings.repair
        problem = "the collection is missing; its documents are lost, or it was never created"
        findings.report("collection", collection, name, problem, repairable=True, repaired=repair)

    async def _options(
        self, findings: Findings, collection: str, options: Mapping[str, Any]
    ) -> None:
        name = self._driver.prefix + collection
        advice = (
            "the store works without; to change it, dump the collection, drop it, run setup() "
            "and restore it"
        )
        if (
            collection == LOG
            and "clusteredIndex" not in options
            and await self._driver.can_cluster()
        ):
            findings.report("options", collection, name, f"it is not clustered; {advice}")
        compressor = await self._inspection.compressor(collection)
        if compressor not in ("", "zstd"):
            problem = f"it is compressed with {compressor}, not with zstd; {advice}"
            findings.report("options", collection, name, problem)

    async def _check_indexes(
        self, findings: Findings, collection: str, indexes: Sequence[Index], *, is_there: bool
    ) -> None:
        found = await self._inspection.indexes(collection) if is_there else {}
        for index in indexes:
            if index.name not in found and await self._is_of_another_store(index):
                continue
            if index.name not in found:
                await self._create_index(findings, collection, index)
            elif not matches(found[index.name], index):
                text = (
                    "the index differs from the one that the store creates; drop it, "
                    "then run doctor --repair"
                )
                findings.report("index_different", collection, index.name, text)
        for name, document in found.items():
            for kind, problem in _problems_of(collection, document).items():
                findings.report(kind, collection, name, problem)

    async def _is_of_another_store(self, index: Index) -> bool:
        """Return True if an index is for a scope key that no conversation has, although conversations exist."""
        return index.present.startswith("scope.") and await self._inspection.lacks(
            HEADS, index.present, given="scope"
        )

    async def _create_index(self, findings: Findings, collection: str, index: Index) -> None:
        problem = "the index is missing"
        repaired = False
        if findings.repair:
            try:
                await self._migrator.leased(partial(self._driver.create_index, collection, index))
                repaired = True
            except StoreError as error:
                problem = f"the index is missing and cannot be created: {error}"
        findings.report(
            "index_missing", collection, index.name, problem, repairable=True, repaired=repaired
        )


def _problems_of(collection: str, index: Mapping[str, Any]) -> dict[str, str]:
    """Return the problems of an index, by kind of finding, independent of who created it."""
    problems = {}
    if "expireAfterSeconds" in index:
        problems["index_expiring"] = (
            "it deletes single documents when they expire, which leaves holes; drop it, "
            "and use prune"
        )
    if collection in OF_CONVERSATIONS and _is_by_conversation(index):
        problems["index_slow"] = (
            "servers such as MongoDB 6.0.5 read a state by it and examine the whole conversation; "
            "drop it, on a sharded cluster after `convstore migrate --sharded`"
        )
    return problems


def _is_by_conversation(index: Mapping[str, Any]) -> bool:
    """Return True if an index has only the conversation as its key, ascending or hashed, and is not partial."""
    return list(index["key"]) == ["conversation"] and "partialFilterExpression" not in index
