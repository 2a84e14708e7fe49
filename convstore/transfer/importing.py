"""Takes conversations of other stores over: once, in order, and again without harm.

Layer 6. What of a record is in the log is found out by its message ids before anything is written, and only what
follows it is appended; so an import that was killed goes on where it stopped, and a finished one writes nothing.
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
from convstore.transfer.prepare import make_ready
from convstore.transfer.records import BadRecord, ConversationRecord, Problem
from convstore.transfer.report import ImportReport
from convstore.transfer.scope_rule import ScopeRule
from convstore.transfer.taking import ConversationImport, Outcome
from convstore.values.scope import Scope, check_number, check_scope

__all__ = ["Records", "ScopeOf", "import_conversations"]

Records: TypeAlias = Iterable[ConversationRecord | BadRecord] | AsyncIterable[ConversationRecord | BadRecord]
ScopeOf: TypeAlias = (
    Mapping[str, str] | Callable[[ConversationRecord], Mapping[str, str] | Awaitable[Mapping[str, str]]]
)
"""Values that are the same for all records, or a function, async or not, that gives the scope of one."""

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

    Running it again writes only what is missing at the end of conversations: after a kill, or when the source has
    grown; two at once write everything once. A conversation that holds other messages than its record before or behind
    those to be written is left as it is, and so is one with a message that cannot be stored. A turn has the date that
    its source gives, else that of the turn before, else that of the import; one that cannot be read is told. Records
    are read as places become free.

    Args:
        store: Where they go; it must be set up, unless `dry_run`.
        records: What ``read_file`` or ``read_history_collection`` gives, or records of your own.
        scope: Whose the conversations are: values for all, a `ScopeRule`, or a function of yours. Without it a
            record's own scope counts, and for the last scope key its id.
        jobs: Conversations at a time.
        limit: At most this many conversations to read.
        dry_run: Only look: read everything, compare with what is there, write nothing.
        skip_messages: Take conversations over without those messages that cannot be stored.
        on_problem: Told everything that is not taken over as it was.
        on_conversation: Told the report after each conversation.

    Raises:
        InvalidInputError: Arguments that make no sense.
        StoreUnavailableError: No answer from the server; run it again.
    """
    check_number(jobs, name="jobs", least=1)
    if limit is not None:
        check_number(limit, name="limit", least=1)
    if scope is not None and not callable(scope) and not isinstance(scope, Mapping):
        raise InvalidInputError(f"scope is a dict, a ScopeRule or a function, not {type(scope).__name__}")
    if isinstance(records, str | Path) or not isinstance(records, Iterable | AsyncIterable):
        raise InvalidInputError(
            f"records is what read_file(path) gives, or a list of ConversationRecords, not {type(records).__name__}"
        )
    rule = scope if callable(scope) else ScopeRule(keys=store.scope_keys, constant=scope or {})
    report = ImportReport(on_problem=on_problem)
    parts = await _parts(store, dry_run=dry_run)
    work = _Import(store, parts, rule, report, dry_run, skip_messages, on_conversation)
    await work.take_all(_each(records), jobs=jobs, limit=limit)
    return report


async def _parts(store: ConversationStore, *, dry_run: bool) -> Services | None:
    """The store's working parts; None for a look at a database that is not set up."""
    try:
        return await store.services()
    except NotSetUpError:
        if not dry_run:
            raise
        return None


async def _each(records: Records) -> AsyncIterator[ConversationRecord | BadRecord]:
    """Records one by one, of the right type."""
    async for record in records if isinstance(records, AsyncIterable) else _in_a_thread(records):
        if not isinstance(record, ConversationRecord | BadRecord):
            raise InvalidInputError(
                f"a record is a ConversationRecord(id=…, messages=…), not {type(record).__name__}; "
                "read_file(path) makes them of a file"
            )
        yield record


async def _in_a_thread(records: Iterable[ConversationRecord | BadRecord]) -> AsyncIterator[Any]:
    """Records of a file, which is read and parsed in a thread."""
    iterator = iter(records)
    while (found := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield found


async def _wait(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until a conversation is through; gives those that are not."""
    done, rest = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return rest


@dataclass(frozen=True, slots=True)
class _Import:
    """How records are taken over; `seen` holds the scopes of this run with the place of their record."""

    store: ConversationStore
    parts: Services | None
    scope_of: Callable[[ConversationRecord], Mapping[str, str] | Awaitable[Mapping[str, str]]]
    report: ImportReport
    dry_run: bool
    skip_messages: bool
    on_conversation: Callable[[ImportReport], object]
    seen: dict[Scope, str] = field(default_factory=dict)

    async def take_all(
        self, records: AsyncIterator[ConversationRecord | BadRecord], *, jobs: int, limit: int | None
    ) -> None:
        """Take records over, so many at a time, as `import_conversations` tells it."""
        running: set[asyncio.Task[None]] = set()
        try:
            async for record in records:
                self.report.conversations += 1
                if isinstance(record, BadRecord):
                    self.report.note(Problem("conversation", record.where, "", record.problem))
                else:
                    running.add(asyncio.create_task(self.take(record)))
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
            # After an error they end by themselves; cancelled while it looks for a server, PyMongo may wait for ever.
            await asyncio.gather(*running, return_exceptions=True)

    async def take(self, record: ConversationRecord) -> None:
        """Take one record over, or note why not.

        Raises:
            StoreUnavailableError: No answer from the server.
        """
        try:
            self.report.settle(await self._take(record))
        except StoreUnavailableError:
            raise
        except ConvstoreError as error:
            self._leave_out(record, str(error))
        except Exception as error:  # noqa: BLE001 - told in the report; one conversation stops no other
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(last.filename).name}, line {last.lineno}"
            self._leave_out(record, f"{type(error).__name__}: {error} ({place})")

    def _leave_out(self, record: ConversationRecord, reason: str) -> None:
        self.report.note(Problem("conversation", record.where, record.id, reason))

    async def _scope(self, record: ConversationRecord) -> Scope:
        """Whose it is.

        Raises:
            InvalidScopeError: The function does not say it.
        """
        found = self.scope_of(record)
        values = await found if isinstance(found, Awaitable) else found
        keys = self.store.scope_keys
        if not isinstance(values, Mapping):
            raise InvalidScopeError(
                f"the scope function gives a dict of {', '.join(keys)}, not {type(values).__name__}"
            )
        return check_scope(keys, values)

    async def _take(self, record: ConversationRecord) -> Outcome:
        scope = await self._scope(record)
        if (first := self.seen.get(scope)) is not None:
            shown = ", ".join(f"{key}={value!r}" for key, value in scope)
            raise InvalidInputError(f"its scope {shown} is that of {first} too; let a field that differs be part of it")
        self.seen[scope] = record.where or record.id
        ready = await asyncio.to_thread(make_ready, record, codec=self.store.codec)
        bad = [problem for problem in ready.problems if problem.what == "message"]
        if bad and not self.skip_messages:
            more = f" and {len(bad) - 1} more of its messages cannot be taken over" if bad[1:] else ""
            raise InvalidInputError(f"{bad[0].where}: {bad[0].reason}{more}")
        for problem in ready.problems:
            self.report.note(problem)
        for _ in range(_TRIES):
            # Another import of the same record may rewind what this one is about to write.
            with suppress(MessageRewoundError):
                taken = await ConversationImport(self.parts, scope, record, ready.messages, dry_run=self.dry_run).take()
                self.report.messages += taken.written
                self.report.known += taken.known
                for reason in taken.changed:
                    self.report.note(Problem("changed", record.where, record.id, reason))
                return taken.outcome
        raise InvalidInputError("messages of it that are not in the record's rewinds were rewound; leave it as it is")
