"""Imports conversations of other stores: in order, each message once, safe to repeat.

Floor 7. Stored messages of a record are found by their ids, and only the messages after them are appended. So a killed
import resumes where it stopped, and repeating a finished one writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from convstore import (
    ConversationStore,
    ConvstoreError,
    InvalidInputError,
    InvalidScopeError,
    MessageRewoundError,
    NotSetUpError,
    StoreUnavailableError,
)
from convstore.transfer.conversation_import import ConversationImport
from convstore.transfer.jobs import in_a_thread, location_of, run_each
from convstore.transfer.prepare import make_ready
from convstore.transfer.records import BadRecord, ConversationRecord, ImportReport, Problem
from convstore.transfer.scope_rule import ScopeRule
from convstore.values.scope import Scope, check_number, check_scope

__all__ = ["Records", "ScopeOf", "import_conversations"]

Records: TypeAlias = Iterable[ConversationRecord | BadRecord] | AsyncIterable[ConversationRecord | BadRecord]
ScopeOf: TypeAlias = (
    Mapping[str, str] | Callable[[ConversationRecord], Mapping[str, str] | Awaitable[Mapping[str, str]]]
)
"""Scope values for all records, or a function, async or not, that returns the scope of one."""

_TRIES = 5


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
            f"records must come from read_file(path) or be a list of ConversationRecords, not {type(records).__name__}"
        )
    rule = scope if callable(scope) else ScopeRule(keys=store.scope_keys, constant=scope or {})
    report = ImportReport(on_problem=on_problem)
    work = _Import(store, rule, report, dry_run, skip_messages, on_conversation)
    await run_each(work.counted(records, limit), work.import_one, jobs=jobs)
    return report


@dataclass(frozen=True, slots=True)
class _Import:
    """One run of an import; `seen` maps the scopes of the run to the location of their record."""

    store: ConversationStore
    scope_of: Callable[[ConversationRecord], Mapping[str, str] | Awaitable[Mapping[str, str]]]
    report: ImportReport
    dry_run: bool
    skip_messages: bool
    on_conversation: Callable[[ImportReport], object]
    seen: dict[Scope, str] = field(default_factory=dict)

    async def counted(self, records: Records, limit: int | None) -> AsyncIterator[ConversationRecord]:
        """Yield the records up to the limit; report bad ones."""
        async for record in records if isinstance(records, AsyncIterable) else in_a_thread(records):
            self.report.conversations += 1
            if isinstance(record, ConversationRecord):
                yield record
            elif isinstance(record, BadRecord):
                self.report.note(Problem("conversation", record.where, "", record.problem))
                self.on_conversation(self.report)
            else:
                raise InvalidInputError(
                    f"a record is a ConversationRecord(id=…, messages=…), not {type(record).__name__}; "
                    "read_file(path) makes them of a file"
                )
            if limit is not None and self.report.conversations >= limit:
                return

    async def import_one(self, record: ConversationRecord) -> None:
        """Import one record, or report why it was left out; raise errors that concern all records."""
        try:
            await self._import(record)
        except (NotSetUpError, StoreUnavailableError):
            raise
        except ConvstoreError as error:
            self._note("conversation", record, str(error))
        except Exception as error:  # noqa: BLE001 - reported; continue with the next conversation
            self._note("conversation", record, f"{type(error).__name__}: {error} ({location_of(error)})")
        self.on_conversation(self.report)

    def _note(self, what: Literal["conversation", "changed"], record: ConversationRecord, reason: str) -> None:
        self.report.note(Problem(what, record.where, record.id, reason))

    async def _scope(self, record: ConversationRecord) -> Scope:
        """Return the scope of a record, which no other record of this run may have."""
        found = self.scope_of(record)
        values = await found if isinstance(found, Awaitable) else found
        keys = self.store.scope_keys
        if not isinstance(values, Mapping):
            raise InvalidScopeError(
                f"the scope function must return a dict of {', '.join(keys)}, not {type(values).__name__}"
            )
        scope = check_scope(keys, values)
        if (first := self.seen.get(scope)) is not None:
            shown = ", ".join(f"{key}={value!r}" for key, value in scope)
            raise InvalidInputError(f"its scope {shown} is also that of {first}; add a field that differs to the scope")
        self.seen[scope] = record.where or record.id
        return scope

    async def _import(self, record: ConversationRecord) -> None:
        chat = self.store.conversation(**dict(await self._scope(record)))
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
                result = await ConversationImport(chat, record, ready.messages, dry_run=self.dry_run).take()
                self.report.messages += result.written
                self.report.known += result.known
                for reason in result.changed:
                    self._note("changed", record, reason)
                self.report.settle(result.outcome)
                return
        raise InvalidInputError("some of its messages were rewound, but not in the record; it was left unchanged")
