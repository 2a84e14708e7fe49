"""The whole log of one conversation, for exports and imports.

Unlike a view, it includes rewound messages, the entries and the source ids.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage

from convstore.append.condition import Condition, TailMoved
from convstore.conversation.host import Host
from convstore.conversation.services import Services
from convstore.exceptions import ConversationDeletedError, InvalidInputError
from convstore.log.changes import LogChanges
from convstore.log.entry import Entry, Facts, Totals
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.facts.table import each, kind_named
from convstore.log.stored_message import stored_stamp
from convstore.messages.values import Codec
from convstore.readback.items import items_of_all_messages
from convstore.runtime.cache import CachedConversation
from convstore.sources.stub import RETRIEVAL_TOOL
from convstore.turns.variants import VariantRequest
from convstore.values.append_options import AppendOptions, Columns
from convstore.values.log_records import (
    LogChange,
    PlacedItem,
    RecordItem,
    StoredId,
    StoredItem,
)
from convstore.values.models import Receipt, StoredMessage
from convstore.values.plain import slices
from convstore.values.ranges import Pair
from convstore.values.scope import MAX_IDS, PATH, Scope
from convstore.values.stamps import ViewStamp

_PAGE = 200
"""Messages whose annotations are read with one command."""

_WHOLE: Mapping[str, int] = {}
"""Projection that reads entries with all their facts, and the look-up values of facts unknown to this version."""


class ConversationLog:
    """Reads the log of one conversation for an export, and appends the messages and changes of an import.

    After `look`, each write must directly follow the entry that was read or written last. It raises TailMoved if
    another writer appended meanwhile.
    """

    def __init__(self, host: Host, scope: Scope) -> None:
        self._services = host.services
        self._scope = scope
        self._end: Totals | None = None

    async def look(self) -> Totals | None:
        """Return the totals of the last entry, like `snapshot`, and let the next write follow that entry."""
        end = await self.snapshot()
        self._end = end or Totals()
        return end

    async def has_moved(self) -> bool:
        """Return True if another writer appended since the last `look` or write."""
        return not Condition(self._end).follows(await self.snapshot() or Totals())

    async def snapshot(self) -> Totals | None:
        """Return the totals of the last entry; None for an empty scope."""
        reader = (await self._services()).reader
        cached = await reader.find(self._scope)
        return None if cached is None else await reader.tail(cached)

    async def refresh_head(self) -> None:
        """Store the number of the last entry in the head, so that `verify` detects a log that lost its end."""
        services, cached = await self._found()
        await services.refresher.refresh(cached, await services.reader.tail(cached))

    async def read(self, snapshot: Totals, changes: LogChanges) -> AsyncGenerator[RecordItem, None]:
        """Iterate over the messages up to the end of a snapshot, in order and in batches.

        The other changes that the entries made are added to `changes`.

        Raises:
            ConversationDeletedError: The conversation was deleted meanwhile.
        """
        services, cached = await self._found()
        page: list[RecordItem] = []
        first = 1
        changed = 0
        reading = services.reader.walk(self._scope, snapshot, fields=_WHOLE)
        async with aclosing(reading) as entries:
            async for _, entry in entries:
                changes.add(entry)
                page += await self._decode(services, cached, entry, changed)
                if entry.messages or entry.is_rewind:
                    changed = entry.number
                if len(page) >= _PAGE:
                    for item in await self._with_annotations(services, cached, page, first):
                        yield item
                    first += len(page)
                    page = []
        for item in await self._with_annotations(services, cached, page, first):
            yield item

    async def skim(self) -> AsyncGenerator[StoredMessage, None]:
        """Iterate over messages with calls, tool results and rewound messages, in the form of `list_messages`.

        Only some fields of `StoredMessage` are set, and large results are not read. About four commands, and one more
        for each hundred entries.

        Raises:
            ConversationDeletedError: The conversation was deleted meanwhile.
        """
        services, cached = await self._found()
        reader = services.reader
        async with reader.reading(cached):
            log = await reader.snapshot(cached)
        async with aclosing(reader.walk(self._scope, log.tail)) as entries:
            async for _, entry in entries:
                rewound = {
                    stored.ordinal
                    for stored in entry.messages
                    if not log.active.has(stored.ordinal)
                }
                chosen = [
                    stored
                    for stored in entry.messages
                    if stored.calls or stored.type == "tool" or stored.ordinal in rewound
                ]
                async with reader.reading(cached):
                    messages = await reader.decode_all(cached, chosen, whole=False)
                for stored, message in zip(chosen, messages, strict=True):
                    yield StoredMessage(
                        ordinal=stored.ordinal,
                        created_at=entry.at,
                        message=message,
                        tokens=stored.tokens,
                        is_failed=stored.is_failed,
                        is_rewound=stored.ordinal in rewound,
                    )

    async def rewound(self, snapshot: Totals) -> Sequence[Pair]:
        """Return the ranges of messages that are rewound as of a snapshot.

        Raises:
            ConversationDeletedError: The conversation was deleted meanwhile.
        """
        services, cached = await self._found()
        async with services.reader.reading(cached):
            log = await services.reader.snapshot(cached, snapshot)
        return log.active.gaps(snapshot.messages)

    async def items(self) -> AsyncGenerator[StoredItem, None]:
        """Iterate over all items of the log that were appended as `LogItem`, including those of rewound messages."""
        reader = (await self._services()).reader
        async with aclosing(items_of_all_messages(reader, self._scope)) as items:
            async for item in items:
                yield item

    async def changes(self, snapshot: Totals) -> list[LogChange]:
        """Return the changes that entries up to a snapshot made besides appending messages, in order."""
        services, _ = await self._found()
        changes = LogChanges(services.reader.codec)
        reading = services.reader.walk(self._scope, snapshot, fields=_WHOLE)
        async with aclosing(reading) as entries:
            async for _, entry in entries:
                changes.add(entry)
        return changes.found

    async def make_change(self, change: LogChange) -> None:
        """Apply a change from an archive that comes without messages.

        Raises:
            TailMoved: Another writer appended meanwhile.
        """
        services = await self._services()
        condition = Condition(self._end)
        if change.is_fact:
            await self.append((), facts=[change])
        elif change.kind == "begin":
            replaced = change.message if change.variant == change.turn else ""
            request = VariantRequest(change.variant, replaced)
            variants = services.variants
            begun = await variants.begin(self._scope, change.turn, request, after=self._end)
            self._end = begun.tail if begun else self._end
        elif change.kind == "activate":
            self._end = await services.activator.activate(
                self._scope, change.turn, change.variant, condition
            )
        elif change.kind == "rewind":
            await self.rewind(change.message)
        elif change.kind == "undo":
            before_id = change.message or None
            self._end = (await services.rewinder.undo(self._scope, before_id, condition)).end
        elif (await self._condition_and_event(change))[1]:
            await self.append((), change=change)

    async def rewind(self, message_id: str) -> None:
        """Rewind a message and all after it; raises as `make_change` does."""
        rewinder = (await self._services()).rewinder
        condition = Condition(self._end)
        self._end = (await rewinder.rewind(self._scope, message_id, condition)).end

    async def find(self, ids: Sequence[str]) -> dict[str, StoredId]:
        """Return the messages with these ids that are in the log, rewound ones included. One command for 200 ids."""
        reader = (await self._services()).reader
        cached = await reader.find(self._scope)
        found: dict[str, StoredId] = {}
        if cached is None:
            return found
        for part in slices(ids, MAX_IDS):
            rows = await reader.messages_by_id(cached, part)
            for id_, row in rows.items():
                found[id_] = StoredId(
                    row.entry.number, row.message.ordinal, row.message.identity, row.message.sources
                )
        return found

    async def append(
        self,
        messages: Sequence[BaseMessage],
        *,
        numbers: Sequence[int] = (),
        stamp: ViewStamp | None = None,
        change: LogChange | None = None,
        items: Sequence[PlacedItem] = (),
        columns: Mapping[str, Columns] | None = None,
        facts: Sequence[LogChange] = (),
    ) -> Receipt:
        """Append messages of an archive like `Conversation.append`; source ids that are taken are replaced.

        Args:
            messages: The messages of one entry.
            numbers: In a child, numbers for sources that are used if they are free. Elsewhere sources get the next
                numbers after `reserve_sources`.
            stamp: Stamp of the view that the first AI message answers.
            change: An event of the same entry. If it names a variant that was begun, the entry belongs to the variant.
            items: Items of the same entry.
            columns: Columns of messages, by message id.
            facts: Facts of the entry.

        Raises:
            InvalidInputError: A fact is damaged.
            TailMoved: Another writer appended meanwhile, or the log already has all of these messages.
        """
        services = await self._services()
        own = numbers if PATH in dict(self._scope) else ()
        options = AppendOptions(
            on_source_clash="renumber",
            stamp=stamp,
            numbers=own,
            columns=columns or {},
        )
        condition, event = await self._condition_and_event(change)
        written = await services.writer.append(
            self._scope,
            messages,
            items=items,
            facts=EVENT.put(event, restored_facts(facts, services.reader.codec)),
            condition=condition,
            options=options,
        )
        if written.entry is None:
            raise TailMoved(written.totals.messages)
        self._end = written.totals
        return written.receipt

    async def _condition_and_event(
        self, change: LogChange | None
    ) -> tuple[Condition, TurnEvent | None]:
        """Return the condition and event of an entry; the event is None without a change or in a finished variant."""
        condition = Condition(self._end)
        if change is None:
            return condition, None
        event = TurnEvent(change.kind, change.turn, change.call, change.values)
        if not change.variant:
            return condition, event
        variants = (await self._services()).variants
        request = VariantRequest(change.variant, change.first_turn)
        found = await variants.read(self._scope, change.turn, request)
        condition.check(found.tail)
        branch = found.hidden
        if branch is None or found.record.is_finished:
            return condition, None
        ending = branch._replace(is_ending=change.shows)
        return Condition(found.tail, branch=ending), branch.records(event)

    async def reserve_sources(self, through: int) -> None:
        """Reserve the source ids up to a number that are not in use yet; does nothing in a child."""
        end = self._end or Totals()
        missing = through - end.sources_through
        if missing > 0 and PATH not in dict(self._scope):
            writer = (await self._services()).writer
            _, self._end = await writer.reserve(self._scope, missing, after=end)

    async def _found(self) -> tuple[Services, CachedConversation]:
        services = await self._services()
        cached = await services.reader.find(self._scope)
        if cached is None:
            raise ConversationDeletedError(
                "the conversation was deleted while its log was read; begin again"
            )
        return services, cached

    async def _decode(
        self,
        services: Services,
        cached: CachedConversation,
        entry: Entry,
        changed: int,
    ) -> list[RecordItem]:
        """Return the messages of an entry; `changed` is the last entry before it with messages or a rewind."""
        async with services.reader.reading(cached):
            messages = await services.reader.decode_all(cached, entry.messages)
        stamps = [stored_stamp(cached.conversation, stored) for stored in entry.messages]
        return [
            RecordItem(
                message=message,
                at=entry.at,
                entry=entry.number,
                turn=stored.turn,
                unseen=stored.unseen,
                added_to=stored.answers if stored.is_added else "",
                is_failed=stored.is_failed if stored.type == "tool" else None,
                # Results of the retrieval tool repeat earlier source ids and own none.
                sources="" if stored.tool == RETRIEVAL_TOOL else stored.sources,
                stamp=stamp if stamp and stamp.entry >= changed else None,
            )
            for stored, message, stamp in zip(entry.messages, messages, stamps, strict=True)
        ]

    async def _with_annotations(
        self, services: Services, cached: CachedConversation, page: Sequence[RecordItem], first: int
    ) -> list[RecordItem]:
        """Return messages with their annotations; `first` is the ordinal of the first one."""
        found = await services.annotator.of(cached, [*range(first, first + len(page))])
        return [
            replace(item, annotations=found.get(ordinal, {}))
            for ordinal, item in enumerate(page, first)
        ]


def check_fact(fact: LogChange, codec: Codec, *, before: int) -> None:
    """Raise an InvalidInputError if a fact is invalid in an entry that follows `before` messages."""
    facts = restored_facts([fact], codec)
    entry = Entry(before + 1, fact.at, (), Totals(messages=before), facts=facts)
    for kind, value in each(facts):
        for problem in kind.problems(value, entry, {}, codec):
            raise InvalidInputError(f"its fact {fact.name!r:.80} is damaged: {problem}")


def renumbered_fact(fact: LogChange, codec: Codec, place: Callable[[int], int]) -> LogChange:
    """Return a fact of an archive with the ordinals of another log; `place` maps old ordinals to new ones."""
    kind = kind_named(fact.name)
    value = kind.renumbered(kind.restored(codec.decode(fact.values)), place)
    return fact._replace(values=codec.encode(kind.archived(value)))


def restored_facts(facts: Sequence[LogChange], codec: Codec) -> Facts:
    """Decode the facts that an archive has of one entry; raise an InvalidInputError if one cannot be read."""
    restored: dict[str, Any] = {}
    for fact in facts:
        kind = kind_named(fact.name)
        try:
            if not kind.is_archived:
                raise ValueError("an archive stores facts of this kind in another form")
            restored[fact.name] = kind.restored(codec.decode(fact.values))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise InvalidInputError(
                f"its fact {fact.name!r:.80} after message {fact.ordinal} cannot be read: {error}"
            ) from error
    return restored
