"""Imports conversations of other stores: in order, each message once, safe to repeat.

Floor 7. Stored messages of a record are found by their ids, and only the messages after them are appended. So a killed
import resumes where it stopped, and repeating a finished one writes nothing.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from convstore.exceptions import (
    ConvstoreError,
    InvalidInputError,
    InvalidScopeError,
    MessageRewoundError,
    NotSetUpError,
    StoreUnavailableError,
)
from convstore.services import Services
from convstore.store import ConversationStore
from convstore.transfer.conversation_import import ConversationImport, Outcome
from convstore.transfer.prepare import make_ready
from convstore.transfer.records import BadRecord, ConversationRecord, Problem
from convstore.transfer.report import ImportReport
from convstore.transfer.scope_rule import ScopeRule
from convstore.values.scope import Scope, check_number, check_scope

__all__ = ["Records", "ScopeOf", "import_conversations"]

Records: TypeAlias = Iterable[ConversationRecord | BadRecord] | AsyncIterable[ConversationRecord | BadRecord]
ScopeOf: TypeAlias = (
    Mapping[str, str] | Callable[[ConversationRecord], Mapping[str, str] | Awaitable[Mapping[str, str]]]
)
"""Scope values for all records, or a function, async or not, that returns the scope of one."""

_TRIES = 5
_END = object()


async def import_conversations(
    store: ConversationStore,
    records: Records,
    *,
    scope: ScopeOf | None = None,
    jobs: int = 4,
    limit: int | None = None,
    dry_run: bool = False,
    skip_messages: bool = False,
    on_problem: Callable[[Problem], object] = lambda _: None,
    on_conversation: Callable[[ImportReport], object] = lambda _: None,
) -> ImportReport:
    """Append the messages of each record to the conversation of its scope, whole turns at a time, in order.

    Run it again after a kill, or when the source has grown: only messages missing at the end of conversations are
    written. Concurrent runs write each message once. A conversation is left unchanged if it holds messages that its
    record does not have, or if one of the record's messages cannot be stored. A turn gets the date of its source, else
    that of the turn before, else that of the import; unreadable dates are reported. At most `jobs` records are in
    memory.

    Args:
        store: The store to write to. It must be set up, unless `dry_run`.
        records: Records of ``read_file`` or ``read_history_collection``, or your own.
        scope: Scope of the conversations: values for all, a `ScopeRule`, or a function. By default a record's own
            scope, and its id for the last scope key.
        jobs: Conversations at a time.
        limit: Maximum number of conversations to read.
        dry_run: Read and compare everything, write nothing.
        skip_messages: Leave out messages that cannot be stored, instead of their conversations.
        on_problem: Called with each problem.
        on_conversation: Called with the report after each conversation.

    Raises:
        InvalidInputError: An argument is invalid.
        StoreUnavailableError: The server does not answer; run the import again.
    """
    check_number(jobs, name="jobs", minimum=1)
    if limit is not None:
        check_number(limit, name="limit", minimum=1)
    if scope is not None and not callable(scope) and not isinstance(scope, Mapping):
        raise InvalidInputError(f"scope is a dict, a ScopeRule or a function, not {type(scope).__name__}")
    if isinstance(records, str | Path) or not isinstance(records, Iterable | AsyncIterable):
        raise InvalidInputError(
            f"records is what read_file(path) gives, or a list of ConversationRecords, not {type(records).__name__}"
        )
    rule = scope if callable(scope) else ScopeRule(keys=store.scope_keys, constant=scope or {})
    report = ImportReport(on_problem=on_problem)
    services = await _services(store, dry_run=dry_run)
    work = _Import(store, services, rule, report, dry_run, skip_messages, on_conversation)
    await work.import_all(_each(records), jobs=jobs, limit=limit)
    return report


async def _services(store: ConversationStore, *, dry_run: bool) -> Services | None:
    """Return the store's services; None for a dry run on a database that is not set up."""
    try:
        return await store.services()
    except NotSetUpError:
        if not dry_run:
            raise
        return None


async def _each(records: Records) -> AsyncIterator[ConversationRecord | BadRecord]:
    """Yield the records; refuse values of another type."""
    async for record in records if isinstance(records, AsyncIterable) else _in_a_thread(records):
        if not isinstance(record, ConversationRecord | BadRecord):
            raise InvalidInputError(
                f"a record is a ConversationRecord(id=…, messages=…), not {type(record).__name__}; "
                "read_file(path) makes them of a file"
            )
        yield record


async def _in_a_thread(records: Iterable[ConversationRecord | BadRecord]) -> AsyncIterator[Any]:
    """Yield records of a file that is read and parsed in a thread."""
    iterator = iter(records)
    while (found := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield found


async def _wait(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until a conversation is finished; return the others."""
    done, rest = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return rest


@dataclass(frozen=True, slots=True)
class _Import:
    """One run of an import; `seen` maps the scopes of the run to the location of their record."""

    store: ConversationStore
    services: Services | None
    scope_of: Callable[[ConversationRecord], Mapping[str, str] | Awaitable[Mapping[str, str]]]
    report: ImportReport
    dry_run: bool
    skip_messages: bool
    on_conversation: Callable[[ImportReport], object]
    seen: dict[Scope, str] = field(default_factory=dict)

    async def import_all(
        self, records: AsyncIterator[ConversationRecord | BadRecord], *, jobs: int, limit: int | None
    ) -> None:
        """Import records, `jobs` at a time."""
        running: set[asyncio.Task[None]] = set()
        try:
            async for record in records:
                self.report.conversations += 1
                if isinstance(record, BadRecord):
                    self.report.note(Problem("conversation", record.where, "", record.problem))
                else:
                    running.add(asyncio.create_task(self.import_one(record)))
                    if len(running) >= jobs:
                        running = await _wait(running)
                self.on_conversation(self.report)
                if limit is not None and self.report.conversations >= limit:
                    break
            while running:
                running = await _wait(running)
                self.on_conversation(self.report)
        except asyncio.CancelledError:
            for task in running:
                task.cancel()
            raise
        finally:
            # After an error the other tasks end by themselves. Cancelling PyMongo in server selection may hang forever.
            await asyncio.gather(*running, return_exceptions=True)

    async def import_one(self, record: ConversationRecord) -> None:
        """Import one record, or report the reason it was left out.

        Raises:
            StoreUnavailableError: The server does not answer.
        """
        try:
            self.report.settle(await self._import(record))
        except StoreUnavailableError:
            raise
        except ConvstoreError as error:
            self._leave_out(record, str(error))
        except Exception as error:  # noqa: BLE001 - reported; continue with the next conversation
            last = traceback.extract_tb(error.__traceback__)[-1]
            location = f"{Path(last.filename).name}, line {last.lineno}"
            self._leave_out(record, f"{type(error).__name__}: {error} ({location})")

    def _leave_out(self, record: ConversationRecord, reason: str) -> None:
        self.report.note(Problem("conversation", record.where, record.id, reason))

    async def _scope(self, record: ConversationRecord) -> Scope:
        """Return the scope of a record.

        Raises:
            InvalidScopeError: The function did not return a valid scope.
        """
        found = self.scope_of(record)
        values = await found if isinstance(found, Awaitable) else found
        keys = self.store.scope_keys
        if not isinstance(values, Mapping):
            raise InvalidScopeError(
                f"the scope function gives a dict of {', '.join(keys)}, not {type(values).__name__}"
            )
        return check_scope(keys, values)

    async def _import(self, record: ConversationRecord) -> Outcome:
        scope = await self._scope(record)
        if (first := self.seen.get(scope)) is not None:
            shown = ", ".join(f"{key}={value!r}" for key, value in scope)
            raise InvalidInputError(f"its scope {shown} is also that of {first}; add a field that differs to the scope")
        self.seen[scope] = record.where or record.id
        ready = await asyncio.to_thread(make_ready, record, codec=self.store.codec)
        bad = [problem for problem in ready.problems if problem.what == "message"]
        if bad and not self.skip_messages:
            more = f" and {len(bad) - 1} more of its messages cannot be stored" if bad[1:] else ""
            raise InvalidInputError(f"{bad[0].where}: {bad[0].reason}{more}")
        for problem in ready.problems:
            self.report.note(problem)
        for _ in range(_TRIES):
            # A concurrent import of the same record may rewind messages that this one is about to write.
            with suppress(MessageRewoundError):
                result = await ConversationImport(
                    self.services, scope, record, ready.messages, dry_run=self.dry_run
                ).take()
                self.report.messages += result.written
                self.report.known += result.known
                for reason in result.changed:
                    self.report.note(Problem("changed", record.where, record.id, reason))
                return result.outcome
        raise InvalidInputError("some of its messages were rewound, but not in the record; it was left unchanged")
