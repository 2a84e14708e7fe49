"""Imports conversations of other stores: in order, each message once, safe to repeat.

Stored messages of a record are found by their ids, and only the messages after them are appended. So a killed import
resumes where it stopped, and repeating a finished one writes nothing.

The module is long because it has all steps of the import of one record, in order.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from types import EllipsisType
from typing import Any, Literal, TypeAlias

from convstore import (
    Conversation,
    ConversationStore,
    ConvstoreError,
    InvalidInputError,
    Receipt,
    StoreUnavailableError,
)
from convstore.edges import check_store
from convstore.exceptions import (
    BatchTooLargeError,
    ConflictError,
    CorruptDocumentError,
    InvalidScopeError,
    MessageRewoundError,
    NotSetUpError,
)
from convstore.integration import TailMoved, as_of, host_of, log_of, until_written
from convstore.transfer.jobs import each_of, location_of, run_each
from convstore.transfer.prepare import (
    ImportBatch,
    ReadyMessage,
    batches_of,
    by_batch,
    columns_of,
    items_after,
    make_ready,
    messages_between,
    numbers_of,
    without_left_out,
)
from convstore.transfer.records import (
    AssignedScope,
    BadRecord,
    ConversationRecord,
    ImportReport,
    Problem,
    ScopeRule,
)
from convstore.transfer.second_import import differences, rewound_ids
from convstore.values.log_records import LogChange, PlacedItem, StoredId
from convstore.values.plain import counted
from convstore.values.ranges import has, merge_ranges
from convstore.values.scope import Scope, check_flags, check_number, check_scope, root_scope
from convstore.values.stamps import ViewStamp

Records: TypeAlias = (
    Iterable[ConversationRecord | BadRecord] | AsyncIterable[ConversationRecord | BadRecord]
)
ScopeOf: TypeAlias = (
    Mapping[str, str]
    | Callable[[ConversationRecord], Mapping[str, str] | Awaitable[Mapping[str, str]]]
)
"""Scope values for all records, or a function, async or not, that returns the scope of one."""

_SHOWN = 5
_NO_DATE = datetime.min.replace(tzinfo=UTC)
_IMPORTED = LogChange(0, "fact", _NO_DATE, name="imported", values="true")


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
    written. Concurrent runs write each message once. A conversation is left unchanged if it has messages that its
    record does not have, or if one of the record's messages cannot be stored. A turn gets its date from the source,
    else that of the turn before, else that of the import; unreadable dates are reported. At most `jobs` records are in
    memory. Each conversation is indexed for searches after its import.

    Args:
        store: The store to write to. It must be set up, unless `dry_run`.
        records: Records of ``read_file`` or ``read_history_collection``, or your own.
        scope: Scope of the conversations: values for all, a `ScopeRule`, or a function. By default a record's own
            scope, and its id for the last scope key.
        jobs: Number of conversations that are imported at a time.
        limit: Maximum number of conversations to read.
        dry_run: Read and compare everything, but write nothing.
        skip_messages: Leave out messages that cannot be stored, instead of their conversations.
        on_problem: Called with each problem.
        on_conversation: Called with the report after each conversation.

    Raises:
        InvalidInputError: An argument is invalid.
        StoreUnavailableError: The server does not answer; run the import again.
    """
    check_store(store)
    check_number(jobs, name="jobs", minimum=1)
    check_flags(dry_run=dry_run, skip_messages=skip_messages)
    if limit is not None:
        check_number(limit, name="limit", minimum=1)
    if scope is not None and not callable(scope) and not isinstance(scope, Mapping):
        raise InvalidInputError(
            f"scope must be a dict, a ScopeRule or a function, not {type(scope).__name__}"
        )
    if isinstance(records, str | Path) or not isinstance(records, Iterable | AsyncIterable):
        raise InvalidInputError(
            "records must come from read_file(path) or be a list of ConversationRecords, "
            f"not {type(records).__name__}"
        )
    rule = scope if callable(scope) else ScopeRule(keys=store.scope_keys, constant=scope or {})
    report = ImportReport(on_problem=on_problem)
    work = _Import(store, rule, report, dry_run, skip_messages, on_conversation)
    await run_each(work.select(records, limit), work.import_one, jobs=jobs)
    return report


@dataclass(frozen=True, slots=True)
class _Import:
    """One run of an import.

    Attributes:
        seen: The location of the record of each scope in this run.
        families: A lock for each outermost conversation. Its children are imported one by one, because they share its
            source numbers.
    """

    store: ConversationStore
    scope_of: Callable[[ConversationRecord], Mapping[str, str] | Awaitable[Mapping[str, str]]]
    report: ImportReport
    dry_run: bool
    skip_messages: bool
    on_conversation: Callable[[ImportReport], object]
    seen: dict[Scope, str] = field(default_factory=dict)
    families: dict[Scope, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def select(
        self, records: Records, limit: int | None
    ) -> AsyncGenerator[ConversationRecord, None]:
        """Yield the records up to the limit; report bad ones."""
        async with aclosing(each_of(records)) as each:
            async for record in each:
                self.report.conversations += 1
                if isinstance(record, ConversationRecord):
                    yield record
                elif isinstance(record, BadRecord):
                    self.report.note(Problem("conversation", record.where, "", record.problem))
                    self.on_conversation(self.report)
                else:
                    raise InvalidInputError(
                        "a record must be a ConversationRecord(id=…, messages=…), "
                        f"not {type(record).__name__}; read_file(path) yields them from a file"
                    )
                if limit is not None and self.report.conversations >= limit:
                    return

    async def import_one(self, record: ConversationRecord) -> None:
        """Import one record, or report the reason why it is left out; raise errors that concern all records."""
        try:
            await self._import(record)
        except (NotSetUpError, StoreUnavailableError):
            raise
        except ConvstoreError as error:
            self._note("conversation", record, str(error))
        except Exception as error:  # noqa: BLE001 - reported; continue with the next conversation
            self._note(
                "conversation", record, f"{type(error).__name__}: {error} ({location_of(error)})"
            )
        self.on_conversation(self.report)

    def _note(
        self, what: Literal["conversation", "changed"], record: ConversationRecord, reason: str
    ) -> None:
        self.report.note(Problem(what, record.where, record.id, reason))

    async def _scope(self, record: ConversationRecord) -> Scope:
        """Return the scope of a record, which must differ from those of all other records of this run."""
        found = self.scope_of(record)
        values = await found if isinstance(found, Awaitable) else found
        keys = self.store.scope_keys
        if not isinstance(values, Mapping):
            raise InvalidScopeError(
                f"the scope function must return a dict of {', '.join(keys)}, "
                f"not {type(values).__name__}"
            )
        scope = check_scope(keys, values)
        if (first := self.seen.get(scope)) is not None:
            shown = ", ".join(f"{key}={value!r}" for key, value in scope)
            raise InvalidInputError(
                f"its scope {shown} is also that of {first}; add a field that differs to the scope"
            )
        self.seen[scope] = record.where or record.id
        if self.dry_run:
            self.report.scopes.append(AssignedScope(record.id, record.where, dict(scope)))
        return scope

    async def _import(self, record: ConversationRecord) -> None:
        scope = await self._scope(record)
        async with self.families[root_scope(scope)]:
            await self._import_into(self.store.conversation(**dict(scope)), record)
        kept = {record.id, *dict(scope).values()}
        others = [name for name in record.other_fields if str(record.fields[name]) not in kept]
        if others:
            names = ", ".join(others)
            self._note(
                "changed", record, f"left out: its fields {names}; put what you need into metadata"
            )

    async def _import_into(self, chat: Conversation, record: ConversationRecord) -> None:
        codec = host_of(self.store).codec
        messages, problems = await asyncio.to_thread(make_ready, record, codec=codec)
        bad = [problem for problem in problems if problem.what == "message"]
        if bad and not self.skip_messages:
            more = ""
            if len(bad) > 1:
                more = f"; this and {len(bad) - 1} more of its messages cannot be stored"
            raise InvalidInputError(f"{bad[0].where}: {bad[0].reason}{more}")
        for problem in problems:
            self.report.note(problem)
        record = without_left_out(record, messages, codec)
        written, changed = await self._run(chat, record, messages)
        await self._index(chat, written)
        known = len(messages) - written
        self.report.known += known
        for reason in changed:
            self._note("changed", record, reason)
        if not written:
            self.report.unchanged += 1
        elif known:
            self.report.extended += 1
        else:
            self.report.imported += 1

    async def _index(self, chat: Conversation, written: int) -> None:
        """Index a conversation for searches if messages were written to it."""
        if written and not self.dry_run:
            with suppress(CorruptDocumentError):  # reported when the conversation is read
                await host_of(self.store).seal(chat.scope)

    async def _run(
        self, chat: Conversation, record: ConversationRecord, messages: Sequence[ReadyMessage]
    ) -> tuple[int, list[str]]:
        """Import a record; start again from the end of the log whenever another writer has appended meanwhile.

        Return the number of messages written, and differences from the source.
        """
        written = 0

        async def attempt() -> list[str]:
            nonlocal written
            work = _ConversationImport(chat, record, messages, dry_run=self.dry_run)
            try:
                return await work.run()
            finally:
                written += work.written
                self.report.messages += work.written

        changed = await until_written(attempt, TailMoved)
        return written, changed


class _ConversationImport:
    """Import of one record; with `dry_run`, it only compares, and the database need not be set up.

    Concurrent imports of one record make the same writes in the same order. Each write is conditional on the end of the
    log that was read, so only one of them succeeds.

    Attributes:
        known: Number of messages that are stored already.
        written: Number of messages written, or to write.
    """

    def __init__(
        self,
        chat: Conversation,
        record: ConversationRecord,
        messages: Sequence[ReadyMessage],
        *,
        dry_run: bool,
    ) -> None:
        self._chat = chat
        self._log = log_of(chat)
        self._record = record
        self._messages = messages
        self._dry_run = dry_run
        ends = [batch.messages[-1].position for batch in batches_of(record, messages)]
        self._changes = by_batch(ends, record.changes, attrgetter("ordinal"))
        # The date of the last message, so that metadata does not make the conversation newer.
        self._last_date = next(
            (message.item.at for message in reversed(messages) if message.item.at), None
        )
        self._ids = {message.position: message.id for message in messages}
        self._with_numbers = {message.id for message in messages if message.item.sources}
        self.known = 0
        self.written = 0
        self._differences: list[str] = []
        self._kept: list[str] = []
        self._stored: dict[str, StoredId] = {}
        self._stored_items: set[str | None] = set()
        self._rewound: set[str] = set()

    async def run(self) -> list[str]:
        """Append the missing messages, or with `dry_run` count them; return differences from the source.

        Raises:
            InvalidInputError: The record does not continue the log; nothing was written.
            TailMoved: Another writer appended meanwhile; import the record again.
        """
        try:
            await self._run()
        except (ConflictError, InvalidInputError) as error:
            if await self._log.has_moved():
                raise TailMoved from error
            if isinstance(error, MessageRewoundError):
                raise InvalidInputError(
                    "some of its messages were rewound, but not in the source; "
                    "it was left unchanged"
                ) from error
            raise
        return self._differences

    async def _run(self) -> None:
        self.known, stored = await self._compare_with_log()
        if self._dry_run:
            self.written = len(self._messages) - self.known
            return
        known = self._messages[: self.known]
        if known and self._record.rewinds:
            self._rewound = await rewound_ids(self._log, known, self._stored)
        await self._write(stored)
        if self._record.sources_through:
            with as_of(self._last_date):
                await self._log.reserve_sources(self._record.sources_through)
        await self._check_sources()
        await self._describe()
        await self._annotate()
        if known and (missing := len(self._missing_items())):
            between = "between messages that were stored before"
            self._differences.append(f"not imported: {counted(missing, 'item')} {between}")
        if known or self._record.changes:
            self._differences += await self._missing_changes()
        if self._kept:
            names = ", ".join(self._kept)
            self._differences.append(f"kept as they were, the source has others: {names}")

    async def _missing_changes(self) -> list[str]:
        """Return the rewinds and changes of the record that the log lacks, in words."""
        stored = self._stored
        if self.known < len(self._messages):
            stored = await self._log.find([message.id for message in self._messages])
        return await differences(self._log, self._record, self._messages, stored)

    async def _compare_with_log(self) -> tuple[int, int]:
        """Compare the record with the log; return the counts of its stored messages and of all messages of the log.

        Raises:
            InvalidInputError: The log has other content or another order, so that the record cannot continue it.
        """
        entries, messages = await self._stored_counts()
        if not entries:
            return 0, 0
        self._stored = await self._log.find([message.id for message in self._messages])
        if self._record.items:
            self._stored_items = {item.id async for item in self._log.items()}
        self._check_content()
        found = [message for message in self._messages if self._is_stored(message, entries)]
        if new := len(self._messages) - len(found):
            others = messages - len(found)
            self._check_order(found, new, others=others)
        ids = [self._stored[message.id] for message in found]
        if any((a.entry, a.ordinal) > (b.entry, b.ordinal) for a, b in pairwise(ids)):
            raise InvalidInputError(
                "the conversation has these messages in another order; choose another scope"
            )
        return len(found), messages

    async def _stored_counts(self) -> tuple[int, int]:
        """Return the numbers of entries and messages that are stored."""
        try:
            end = await self._log.look()
        except NotSetUpError:
            if not self._dry_run:
                raise
            end = None
        return (end.entries, end.messages) if end else (0, 0)

    def _is_stored(self, message: ReadyMessage, through: int) -> bool:
        """Return True if a message is in an entry up to `through`; later ones may be of a concurrent import."""
        stored_id = self._stored.get(message.id)
        return stored_id is not None and stored_id.entry <= through

    def _check_content(self) -> None:
        """Check that each stored message has the content that the record has."""
        for message in self._messages:
            stored = self._stored.get(message.id)
            if stored and stored.digest != message.digest:
                raise InvalidInputError(
                    f"{message.item.where} is stored with different content (id {message.id!r}). "
                    "The log is immutable: choose another scope, or delete the conversation and "
                    "import it again"
                )

    def _check_order(self, found: Sequence[ReadyMessage], new: int, *, others: int) -> None:
        """Check that the missing messages can be appended after those that were found."""
        if found and found[-1] is not self._messages[len(found) - 1]:
            ids = {message.id for message in found}
            missing = next(message for message in self._messages if message.id not in ids)
            raise InvalidInputError(
                f"{missing.item.where} is missing in the log, but messages after it are stored. "
                "The log is immutable: delete the conversation and import it again"
            )
        if others:
            raise InvalidInputError(
                f"the conversation has {counted(others, 'message')} that the source lacks, "
                f"and the source's {counted(new, 'new message')} would come after; "
                "choose another scope, or delete the conversation"
            )

    async def _write(self, stored: int) -> None:
        """Append the missing messages batch by batch. A rewind after a batch is repeated before the next one."""
        done = 0
        if not self._messages:
            await self._append_items(self._missing_items())
        await self._make_changes(None, is_known=True)
        for batch in batches_of(self._record, self._messages):
            new = batch.messages[max(0, self.known - done) :]
            done += len(batch.messages)
            # An earlier run that was killed can only have missed the writes after the last message that it stored.
            is_last_stored = done == stored == self.known
            if new:
                await self._append_batch(batch, new)
            if new or is_last_stored:
                await self._write_following(batch, is_known=not new)

    async def _write_following(self, batch: ImportBatch, *, is_known: bool) -> None:
        """Write the rewinds, changes and items after a batch; with `is_known` only those that the log lacks."""
        is_hidden = is_known and has(
            merge_ranges(self._record.rewound), batch.messages[-1].position
        )
        if is_hidden:
            await self._append_late_items(batch)
        await self._rewind(batch)
        await self._make_changes(batch.messages[-1], is_known=is_known)
        if not is_hidden:
            await self._append_late_items(batch)

    async def _make_changes(self, last: ReadyMessage | None, *, is_known: bool) -> None:
        """Make the changes after a message, or before all; with `is_known` only those that the log lacks."""
        changes = self._changes[last.position if last else 0]
        stored = await self._stored_changes(last) if changes and is_known else []
        for change in changes:
            key = _without_position(change)
            if key in stored:
                stored.remove(key)
            elif is_known or not _is_of_entry(change, last):
                with as_of(change.at):
                    await self._log.make_change(change)

    async def _stored_changes(self, last: ReadyMessage | None) -> list[LogChange]:
        """Return the changes that the log has after a message, or before all, in the form of `_without_position`."""
        end = await self._log.snapshot()
        changes = await self._log.changes(end) if end else []
        ordinal = self._stored[last.id].ordinal if last else 0
        return [_without_position(change) for change in changes if change.ordinal == ordinal]

    def _missing_items(self) -> list[PlacedItem]:
        """Return the items of the record that the log lacks."""
        return [each for each in self._record.items if each.item.id not in self._stored_items]

    async def _append_late_items(self, batch: ImportBatch) -> None:
        """Append the items after the last message of a batch, except those that the log has."""
        last = len(batch.messages)
        following = {each.item.id for each in batch.items if each.position == last}
        with as_of(batch.at):
            await self._append_items(
                [each for each in self._missing_items() if each.item.id in following]
            )

    async def _append_items(self, items: Sequence[PlacedItem]) -> None:
        """Append items after the last message of the log."""
        if items:
            await self._log.append((), items=[item._replace(position=0) for item in items])
            self._stored_items |= {item.item.id for item in items}

    async def _append_batch(self, batch: ImportBatch, new: Sequence[ReadyMessage]) -> None:
        """Append the new messages of a batch, which are its last ones."""
        if batch.reserve_to:
            with as_of(batch.at or self._last_date):
                await self._log.reserve_sources(batch.reserve_to)
        items = items_after(batch.items, len(batch.messages) - len(new))
        await self._append(new, batch.at, self._change_of(batch), items)
        self._stored_items |= {item.item.id for item in items}

    def _change_of(self, batch: ImportBatch) -> LogChange | None:
        """Return the change that came with the messages of a batch; None if its entry only appended them."""
        changes = self._changes[batch.messages[-1].position]
        made = (change for change in changes if change.has_messages and not change.is_fact)
        return next(made, None)

    async def _append(
        self,
        messages: Sequence[ReadyMessage],
        at: datetime | None,
        change: LogChange | None,
        items: Sequence[PlacedItem],
    ) -> None:
        """Append messages with items as one entry, or in halves if they are too large for one."""
        try:
            stamp = await self._stamp(messages)
            with as_of(at):
                numbers = numbers_of(messages)
                columns = columns_of(messages, self._ids)
                new = [message.message for message in messages]
                receipt = await self._log.append(
                    new,
                    numbers=numbers,
                    stamp=stamp,
                    change=change,
                    items=items,
                    columns=columns,
                    facts=self._facts_of(messages),
                )
        except BatchTooLargeError:
            if len(messages) == 1:
                raise
            half = len(messages) // 2
            leading = [item for item in items if item.position <= half]
            await self._append(messages[:half], at, change and change.leading, leading)
            await self._append(messages[half:], at, change, items_after(items, half))
            return
        self.written += receipt.written
        self._note_numbers(receipt)

    def _facts_of(self, messages: Sequence[ReadyMessage]) -> list[LogChange]:
        """Return the facts of the entry with these messages; "imported" if they do not come from an archive."""
        last = messages[-1]
        if not last.item.entry:
            return [_IMPORTED]
        changes = self._changes[last.position]
        return [change for change in changes if change.is_fact and _is_of_entry(change, last)]

    async def _stamp(self, messages: Sequence[ReadyMessage]) -> ViewStamp | None:
        """Return the stamp of the record for these messages, with the number of the last entry of this log."""
        stamp = next((message.item.stamp for message in messages if message.item.stamp), None)
        end = await self._log.snapshot() if stamp else None
        # An archive has no stamps with a summary; a forged stamp must not name one that does not exist.
        return stamp and stamp.model_copy(
            update={"entry": end.entries if end else 0, "summary": ""}
        )

    def _note_numbers(self, receipt: Receipt) -> None:
        """Report messages whose source ids were in use; `_check_sources` compares those with ids in the record."""
        for id_, numbers in receipt.renumbered.items():
            if id_ not in self._with_numbers:
                shown = ", ".join(
                    f"{old} is {new} now" for old, new in list(numbers.items())[:_SHOWN]
                )
                more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
                self._differences.append(
                    f"message {id_!r} has source ids that are already in use: {shown}{more}"
                )

    async def _rewind(self, batch: ImportBatch) -> None:
        """If a rewind follows the batch, rewind from the first message that an earlier import has not rewound."""
        if not batch.rewind_from:
            return
        ready = messages_between(self._messages, batch.rewind_from, batch.messages[-1].position)
        if first := next((message.id for message in ready if message.id not in self._rewound), ""):
            with as_of(batch.at):
                await self._log.rewind(first)

    async def _check_sources(self) -> None:
        """Report sources whose ids differ from the record, because answers cite them."""
        numbered = [ready for ready in self._messages if ready.item.sources]
        stored = await self._log.find([ready.id for ready in numbered]) if numbered else {}
        for ready in numbered:
            where = ready.item.where
            known = ready.item.sources
            numbers = stored[ready.id].sources if ready.id in stored else known
            if numbers != known:
                self._differences.append(
                    f"{where}: its sources were {known}, now {numbers or 'none'}"
                )

    async def _describe(self) -> None:
        """Set title, metadata and state, unless the conversation has them; its date is that of its last message."""
        with as_of(self._last_date):
            await self._restore_title()
            await self._restore_state()
        if self.written:
            await self._log.refresh_head()

    async def _restore_state(self) -> None:
        if not self._record.state:
            return
        stored = await self._chat.state.get()
        if stored.revision:
            self._note_kept("state", stored.values, self._record.state)
            return
        try:
            await self._chat.state.update(dict(self._record.state))
        except InvalidInputError as error:  # its messages are stored
            self._differences.append(f"its state is left out: {error}")

    async def _restore_title(self) -> None:
        record = self._record
        title: Any = ...
        metadata: Any = ...
        if record.title is not None or record.metadata:
            info = await self._chat.info()
            title = self._value_to_set("title", info.title, record.title)
            metadata = self._value_to_set("metadata", info.metadata, dict(record.metadata))
        has_new = title is not ... or metadata is not ...
        if self.written or has_new:
            await self._set_title(title, metadata)

    def _value_to_set(self, name: str, stored: Any, given: Any) -> Any:
        """Return the record's value if only the record has one, else `...`; report a different one that is kept."""
        if given in (None, {}):
            return ...
        if stored in (None, {}):
            return given
        self._note_kept(name, stored, given)
        return ...

    def _note_kept(self, name: str, stored: Any, given: Any) -> None:
        """Report that the conversation keeps its value, if the record has another one."""
        if stored != given:
            self._kept.append(name)

    async def _set_title(
        self, title: str | EllipsisType | None, metadata: dict[str, Any] | EllipsisType
    ) -> None:
        """Set title and metadata, or report that they cannot be stored; both set the date of the conversation."""
        try:
            await self._chat.update(title=title, metadata=metadata)
        except InvalidInputError as error:
            self._differences.append(f"its title and metadata are left out: {error}")
            await self._chat.update()

    async def _annotate(self) -> None:
        """Set annotations, except those for which a message already has a value."""
        given = {ready.id: ready.item for ready in self._messages if ready.item.annotations}
        stored = await self._chat.annotations(list(given)) if given else {}
        others = 0
        for id_, item in given.items():
            known = stored.get(id_, {})
            new = {name: value for name, value in item.annotations.items() if name not in known}
            others += sum(
                item.annotations.get(name, value) != value for name, value in known.items()
            )
            await self._set_annotations(id_, new, item.where)
        if others:
            self._kept.append(counted(others, "annotation"))

    async def _set_annotations(self, id_: str, values: Mapping[str, Any], where: str) -> None:
        """Set annotations of a message, or report that they cannot be stored."""
        if not values:
            return
        try:
            await self._chat.annotate(id_, **values)
        except InvalidInputError as error:
            self._differences.append(f"{where}: its annotations are left out: {error}")


def _is_of_entry(change: LogChange, last: ReadyMessage | None) -> bool:
    """Return True if a change came with the entry that ends with a message.

    A fact of messages that were left out does not belong to it, because the entry may have another one of its kind.
    """
    if last is None or not change.has_messages:
        return False
    return change.ordinal == last.position or not change.is_fact


def _without_position(change: LogChange) -> LogChange:
    """Return a change without position and date, to compare it: another import may have given it its own entry."""
    return change._replace(ordinal=0, at=_NO_DATE, has_messages=False)
