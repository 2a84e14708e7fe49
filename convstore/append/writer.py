"""Append a batch to the log: atomically, exactly once, in order and without holes.

The entry is inserted at the number after the cached tail. If that number or a message id is taken, the writer looks up
the ids, reads the tail again and retries with the messages that are new. So two writers never share a number, and a
repeated batch writes nothing. The module is long because all steps before an insert form one loop: a collision with
another writer repeats all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from langchain_core.messages import BaseMessage

from convstore.append.batch import (
    AppendResult,
    Batch,
    BatchLookup,
    ConversationReplaced,
    prepare_batch,
)
from convstore.append.child_numbers import ChildNumbers, last_numbers
from convstore.append.compose import compose_entry, payloads_to_cache, receipt_of, renumbered_by
from convstore.append.condition import ANYWHERE, Condition, TailMoved
from convstore.append.items import stored_items
from convstore.exceptions import (
    ContentConflictError,
    ConversationDeletedError,
    SourceIdClashError,
    StoreError,
    TurnConflictError,
    UnknownMessageError,
)
from convstore.log.comparison import is_as_shown
from convstore.log.entry import NO_FACTS, Entry, Facts, Totals
from convstore.log.facts.branch import BRANCH
from convstore.log.facts.claim import CLAIM
from convstore.messages.compression import Chunk
from convstore.mongo.keys import is_twin, parent_id
from convstore.mongo.log import SlotTaken, StoredMessageRow
from convstore.mongo.number_pools import NumberPools
from convstore.mongo.parallel import together
from convstore.mongo.tombstones import Tombstones
from convstore.runtime.background import settle
from convstore.runtime.cache import CachedConversation
from convstore.runtime.clock import append_timeout
from convstore.runtime.head_refresh import HeadRefresher
from convstore.runtime.log_reader import LogReader
from convstore.runtime.retrying import Attempts
from convstore.runtime.threads import PER_MESSAGE, characters_in, run_in_thread_if_long
from convstore.sources.detection import SourceExtractor
from convstore.sources.failures import FailureJudge
from convstore.sources.source import text_digest
from convstore.values.append_options import PLAIN, AppendOptions
from convstore.values.log_records import PlacedItem
from convstore.values.scope import Scope
from convstore.values.stamps import check_known, check_own


class Writer:
    """Writes batches to all conversations of a store."""

    def __init__(
        self,
        reader: LogReader,
        tombstones: Tombstones,
        refresher: HeadRefresher,
        extractors: Mapping[str, SourceExtractor],
        pools: NumberPools,
        *,
        judge: FailureJudge | None = None,
    ) -> None:
        self._reader = reader
        self._heads = reader.heads
        self._log = reader.log
        self._cache = reader.cache
        self._codec = reader.codec
        self._counter = reader.counter
        self._clock = reader.clock
        self._tombstones = tombstones
        self._refresher = refresher
        self._extractors = extractors
        self._judge = judge
        self._child_numbers = ChildNumbers(reader, pools, self._write)

    async def append(
        self,
        scope: Scope,
        messages: Sequence[BaseMessage],
        *,
        items: Sequence[PlacedItem] = (),
        facts: Facts = NO_FACTS,
        condition: Condition = ANYWHERE,
        options: AppendOptions = PLAIN,
    ) -> AppendResult:
        """Write messages that have ids; see `Conversation.append`.

        Facts and items may be written without messages. Facts are written even if the log has all messages; items
        belong to no turn. If the condition names a variant, the messages belong to it, and its last entry makes it
        active.

        Raises:
            TailMoved: The log has another tail than the condition names, and lacks a message or has another message
                under its id.
            IdsTaken: The log has ids of the batch that the condition does not name.
            UnknownMessageError: The log does not have the question, or the question was rewound.
            TurnConflictError: The place of the variant is not active any more, so the variant cannot become active.
            ConflictError: The log lacks a message, and the condition refuses anything new.
        """
        work = partial(
            prepare_batch,
            messages,
            items,
            options,
            codec=self._codec,
            counter=self._counter,
            token=self._clock.token(),
            extractors=self._extractors,
            facts=facts,
            judge=self._judge,
            condition=condition,
        )
        batch = await run_in_thread_if_long(work, characters=characters_in(messages))
        known, entry, cached, tail = await self._write(scope, batch)
        receipt = receipt_of(batch, entry, stored=known.stored, renumbered=known.renumbered)
        return AppendResult(receipt, cached.conversation, tail, entry)

    async def reserve(
        self, scope: Scope, number: int, *, after: Totals | None = None
    ) -> tuple[range, Totals]:
        """Reserve source ids, and return the totals of the log; see `Conversation.reserve_source_ids`.

        Raises:
            TailMoved: The log has another tail than `after`.
        """
        batch = Batch((), self._codec, self._counter, condition=Condition(after), reserve=number)
        *_, tail = await self._write(scope, batch)
        return last_numbers(tail, number), tail

    async def reserve_for_child(self, scope: Scope, number: int) -> range:
        """Reserve source ids for a child, in the sequence of its outermost conversation."""
        return await self._child_numbers.reserve(scope, number)

    async def find_shown(self, scope: Scope, texts: Sequence[str]) -> list[int | None]:
        """Return the numbers under which some texts were shown; see `Conversation.find_shown_sources`."""
        cached = self._cache.get(scope)
        shown = (
            cached.tail.shown if cached and cached.tail and self._cache.is_warm(cached) else None
        )
        if shown is None and (cached := await self._reader.find(scope)):
            async with self._reader.reading(cached):
                shown = (await self._log.last_totals(cached.conversation, shown=True)).shown
        return [(shown or {}).get(text_digest(text)) for text in texts]

    async def _write(
        self, scope: Scope, batch: Batch
    ) -> tuple[BatchLookup, Entry | None, CachedConversation, Totals]:
        """Write to the scope's conversation; start again if it turns out to be deleted.

        Returns:
            The lookup of the batch, the entry that was written (None if the log had everything), the conversation, and
            the totals of the log.
        """
        async with append_timeout():
            while True:
                cached = self._cache.get(scope) or await self._claim(scope, batch)
                batch = _for_log(batch, cached.conversation)
                async with cached.lock:
                    if not self._cache.is_current(cached):
                        continue
                    try:
                        async with self._reader.reading(cached):
                            known, entry, tail = await self._write_in_order(cached, batch)
                            return known, entry, cached, tail
                    except (ConversationReplaced, ConversationDeletedError):
                        self._cache.forget(cached)
                    except BaseException:
                        cached.doubt()
                        raise

    async def _claim(self, scope: Scope, batch: Batch) -> CachedConversation:
        """Find or create the scope's conversation; a batch that continues a turn or answers a view creates none."""
        stamp = batch.options.stamp
        question = batch.options.question
        continues = bool(question) and question not in batch.ids
        answers = stamp is not None and bool(stamp.conversation_id or stamp.entry)
        if continues or answers or not batch.condition.follows(Totals()):
            if cached := await self._reader.find(scope):
                return cached
            if not batch.condition.follows(Totals()):
                raise TailMoved(0)
            check_own(stamp, "")
            check_known(stamp, 0)
            raise UnknownMessageError(question, begins_turn=True)
        now = self._clock.now()
        # A batch that is too large must not create a conversation.
        work = partial(compose_entry, batch, Totals(), at=now)
        self._log.check_size(
            await run_in_thread_if_long(work, characters=PER_MESSAGE * len(batch.prepared))
        )
        head, is_new = await self._heads.claim(
            dict(scope), updated_at=now, written_at=self._clock.undated()
        )
        claimed = self._cache.add(scope, head.conversation)
        if is_new:
            self._cache.confirm(claimed, Totals())
        return claimed

    async def _write_in_order(
        self, cached: CachedConversation, batch: Batch
    ) -> tuple[BatchLookup, Entry | None, Totals]:
        """Write one batch, as `_write` says; the caller holds the conversation's lock."""
        # Read now, because other calls may evict them from the cache before the entry is composed.
        named = batch.named
        questions = cached.known_questions(named)
        is_unknown = len(questions) < len(named)
        known = BatchLookup(batch, questions=questions)
        attempts = Attempts()
        sent: list[Chunk] = []
        used: list[Chunk] = []
        try:
            while True:
                tail = None if attempts.lost else await self._tail(cached, known.new)
                if tail is None or is_unknown or self._must_look_up(cached, batch, tail):
                    known, tail = await self._look_again(cached, batch, tail)
                    if known.new.is_empty:
                        await self._refresher.catch_up(cached, tail)
                        return known, None, tail
                batch.condition.check(tail)
                check_known(batch.options.stamp, cached.entries)
                entry = await self._compose(cached, known, tail)
                if not self._cache.is_warm(cached) and not await self._is_last(cached, tail):
                    attempts.lose()
                    continue
                acknowledged = cached.entries
                used = known.new.chunks
                if await self._insert(cached, entry, known.new, sent):
                    await self._after_insert(cached, known.new, entry, acknowledged)
                    return known, entry, entry.totals
                cached.tail = None
                used = []
                await self._refuse_taken_source_ids(cached, known.new)
                if attempts.lost:
                    await attempts.back_off()
                else:
                    attempts.lose()
        finally:
            # If an insert failed for another reason, its entry may be in the log, so its chunks stay.
            unused = [chunk.number for chunk in sent if chunk not in used]
            if unused:
                await self._drop(cached, batch, unused)

    async def _look_again(
        self, cached: CachedConversation, batch: Batch, tail: Totals | None
    ) -> tuple[BatchLookup, Totals]:
        """Look up a batch and read the tail of the log; `tail` is the cached tail, unless an attempt failed already."""
        known = await self._look_up(cached, batch)
        if tail and not known.new.is_empty:
            await self._check_continues(cached, tail, cached.tail or Totals())
        return known, await self._tail(cached, known.new)

    async def _after_insert(
        self, cached: CachedConversation, new: Batch, entry: Entry, acknowledged: int
    ) -> None:
        """Cache an entry that was just inserted; `acknowledged` is the number of the last one before it."""
        self._cache_entry(cached, new, entry)
        if new.condition.branch:
            await self._reader.snapshot(cached, entry.totals, [entry])
        was_taken_before = entry.number <= acknowledged
        if was_taken_before:  # the conversation was deleted, or a backup was restored
            self._reader.seen(cached.scope, await self._heads.find(dict(cached.scope)))
            self._cache.forget(cached)

    async def _drop(self, cached: CachedConversation, batch: Batch, chunks: Sequence[int]) -> None:
        """Remove chunks that no entry refers to; a sweep removes them after a day if that fails."""
        with suppress(StoreError):  # must not hide the append's own outcome
            await settle(self._log.drop_chunks(cached.conversation, batch.token, chunks))

    def _must_look_up(self, cached: CachedConversation, batch: Batch, tail: Totals) -> bool:
        """Return True if the log may hold a part of the batch, or entries that its stamp names."""
        condition = batch.condition
        stamp = batch.options.stamp
        if stamp and stamp.entry > cached.entries:
            return True
        if self._log.must_look_first or batch.items:  # no index keeps their ids unique
            return True
        return condition.refusal is not None or not condition.follows(tail)

    async def _tail(self, cached: CachedConversation, new: Batch) -> Totals:
        """Return the tail with all fields that this append needs; no command if the cached tail has them."""
        tail = cached.tail
        if tail is None or not new.can_follow(tail):
            cached.tail = None
            tail = await self._log.last_totals(cached.conversation, shown=new.needs_shown)
            self._cache.confirm(cached, tail)
        if tail.counter != self._counter.name:
            tail = await self._reader.recount_tail(cached, tail)
        cached.tail = tail
        return tail

    async def _look_up(self, cached: CachedConversation, batch: Batch) -> BatchLookup:
        """Find the messages of the batch that are in the log, and check that their content is equal."""
        condition = batch.condition
        questions = cached.known_questions(batch.named)
        tail, everything = await self._read_end(cached, batch, known=questions.keys())
        questions |= {
            id_: row.message.ordinal for id_, row in everything.items() if row.message.begins_turn
        }
        cached.know_questions([row.message for row in everything.values()])
        own = set(batch.ids)
        found = {id_: row for id_, row in everything.items() if id_ in own}
        cached.tail = None
        self._cache.confirm(cached, tail)
        condition.check_ids(found, tail)
        await self._refuse_changed(cached, batch, found)
        await self._check_active(cached, batch, found, tail)
        stored = {id_: row.message.ordinal for id_, row in found.items()}
        new = batch.without(stored, await stored_items(self._log, cached.conversation, batch.items))
        if self._log.must_look_first:
            await self._refuse_taken_source_ids(cached, new)
        renumbered = renumbered_by([source for row in found.values() for source in row.sources])
        return BatchLookup(new, stored, renumbered, questions)

    async def _read_end(
        self, cached: CachedConversation, batch: Batch, *, known: Collection[str]
    ) -> tuple[Totals, Mapping[str, StoredMessageRow]]:
        """Return the totals of the log, and the messages that a batch has or refers to, by id.

        Two commands, in parallel; one command for a batch without messages that refers only to known questions.
        """
        conversation = cached.conversation
        wanted = {*batch.ids, *batch.named.difference(known)}
        read_tail = self._log.last_totals(conversation, shown=batch.needs_shown)
        if not wanted:
            return await read_tail, {}
        read_messages = partial(self._log.messages_by_id, conversation, wanted)
        if batch.items or self._log.must_look_first:
            tail = await read_tail  # read first, so a concurrent append makes the insert fail
            return tail, await read_messages()
        return await together(read_tail, read_messages())

    async def _check_active(
        self,
        cached: CachedConversation,
        batch: Batch,
        found: Mapping[str, StoredMessageRow],
        tail: Totals,
    ) -> None:
        """Raise an error if the log has a message of the batch, but it was rewound."""
        if not found:
            return
        log = await self._reader.snapshot(cached, tail)
        branch = batch.condition.branch
        if branch and not batch.condition.follows(tail):
            raise TailMoved(tail.messages)  # it may have more messages now
        seen = log._replace(active=branch.active(log.active)) if branch else log
        seen.check_active([row.message for row in found.values()])

    async def _refuse_changed(
        self, cached: CachedConversation, batch: Batch, found: Mapping[str, StoredMessageRow]
    ) -> None:
        """Raise an error if the log has other content under an id of the batch.

        A message may also have the form in which clients are shown the stored message, or a checkpoint has it.
        """
        for prepared in batch.prepared:
            new = prepared.stored
            row = found.get(prepared.stored.id)
            if row is None or row.message.identity == new.identity:
                continue
            if row.message.content_digest == new.content_digest:
                [stored] = await self._reader.decode_all(cached, [row.message])
                if is_as_shown(prepared.message, stored, self._codec):
                    continue
            if batch.condition.has_not_seen(row.entry):
                raise TailMoved(row.message.ordinal)
            raise ContentConflictError(new.id)

    async def _compose(self, cached: CachedConversation, known: BatchLookup, tail: Totals) -> Entry:
        """Compose the entry after the tail; sources whose number is taken get another one, or are refused."""
        branch = known.new.condition.branch
        if branch is None:  # a variant's question is hidden until the variant is active
            await self._check_question(cached, known, tail)
        new, taken = await self._numbered(cached, known.new, tail)
        last_active = 0
        if new.items:
            last_active = (await self._reader.snapshot(cached, tail)).active.last_active(
                tail.messages
            )
        work = partial(
            compose_entry,
            new,
            branch.tail(tail) if branch else tail,
            at=self._clock.now(),
            link=self._clock.link(),
            taken=taken,
            last_active=last_active,
            questions=known.questions,
        )
        made = await run_in_thread_if_long(work, characters=PER_MESSAGE * len(new.prepared))
        if branch is None:
            return made
        branch = branch.ending_with(made)
        active = (await self._reader.snapshot(cached, tail)).active
        if branch.is_ending and not branch.fits(active):
            raise TurnConflictError(branch.event.turn, is_newest=False)
        return branch.entry_of(made, tail, active)

    async def _check_question(
        self, cached: CachedConversation, known: BatchLookup, tail: Totals
    ) -> None:
        """Raise an error if the question of a batch is neither in the batch nor an active message of the log."""
        turn = known.new.options.question
        if not turn or turn in known.new.ids:
            return
        ordinal = known.questions.get(turn, 0)
        if not ordinal or not (await self._reader.snapshot(cached, tail)).active.has(ordinal):
            raise UnknownMessageError(turn, begins_turn=True)

    async def _numbered(
        self, cached: CachedConversation, new: Batch, tail: Totals
    ) -> tuple[Batch, frozenset[int]]:
        """Return the batch, a child's with numbers for its sources, and the numbers of its tools that are taken.

        A unique index rejects a repeated number of a tool, but not one that the store gave to another source.

        Raises:
            SourceIdClashError: A number is taken, and the options do not allow renumbering.
        """
        is_child = bool(parent_id(cached.conversation))
        while True:
            numbers = new.kept_source_ids
            taken = frozenset[int]()
            through = 0
            # Read before the ids in use: a number that another child claims in between is refused here, too.
            if is_child and (numbers or new.options.numbers):
                through = await self._child_numbers.through(cached)
            given = tail.sources_through if new.options.renumbers else tail.given_through
            may_clash = bool(numbers) and (
                is_child or CLAIM.name in new.facts or min(numbers) <= given
            )
            if may_clash and new.options.renumbers:
                taken = frozenset(await self._log.taken_source_ids(cached.conversation, numbers))
            elif may_clash:
                await self._refuse_taken_source_ids(cached, new)
            if not is_child:
                return new, taken
            try:
                return await self._child_numbers.numbered(cached, new, taken, through), taken
            except SourceIdClashError:
                if not new.options.renumbers:
                    raise

    async def _refuse_taken_source_ids(self, cached: CachedConversation, new: Batch) -> None:
        """Raise an error if a source id that a tool gave to a new source is taken."""
        numbers = new.kept_source_ids
        if not numbers or new.options.renumbers:
            return
        claim = CLAIM.among(new.facts)
        claimant = claim.by if claim else cached.conversation
        taken = await self._log.taken_source_ids(claimant, numbers)
        if taken and not await self._log.messages_by_id(cached.conversation, new.ids):
            raise SourceIdClashError(taken[0])

    async def _is_last(self, cached: CachedConversation, tail: Totals) -> bool:
        """Return True if the tail is the last entry of the log; also check a cached id that is old. One command.

        False means that another writer appended. Then the tail was read again, and the entry must be recomposed.

        Raises:
            ConversationReplaced: The conversation was deleted, or its log no longer contains the tail.
        """
        if self._cache.is_fresh(cached):
            last = await self._log.last_totals(cached.conversation)
        else:
            found = await self._heads.find_listed(dict(cached.scope))
            if self._reader.seen(cached.scope, found and found.head) is not cached:
                raise ConversationReplaced
            last = found.totals if found else tail
        await self._check_continues(cached, tail, last)
        self._cache.confirm(cached, last)
        return last.entries == tail.entries

    async def _check_continues(
        self, cached: CachedConversation, tail: Totals, last: Totals
    ) -> None:
        """Check that the log continues the cached tail, given the last entry just read.

        Raises:
            ConversationReplaced: The log is shorter, or has another entry at the number of the tail.
        """
        if last.entries > tail.entries or (last.entries, last.link) == (tail.entries, tail.link):
            return
        head = await self._heads.find(dict(cached.scope))
        if head is not None and head.conversation == cached.conversation:
            raise ConversationReplaced

    async def _insert(
        self, cached: CachedConversation, entry: Entry, batch: Batch, sent: list[Chunk]
    ) -> bool:
        """Insert the entry, and refresh the head if that is due; False if another writer took the number or an id.

        Its chunks are written nevertheless; they are added to `sent`, and chunks in it are not written again.
        """
        chunks = [chunk for chunk in batch.chunks if chunk not in sent]
        try:
            exists = await self._refresher.insert(cached, entry, chunks, token=batch.token)
        except SlotTaken:
            sent += chunks
            return False
        if not exists:
            # delete() also discards appends in flight; prune() only removes idle conversations.
            if await self._tombstones.may_write_again(cached.conversation):
                raise ConversationReplaced
            cached.unverified += len(entry.messages)
            self._cache.discard(cached)
        return True

    def _cache_entry(self, cached: CachedConversation, batch: Batch, entry: Entry) -> None:
        """Cache the tail, the questions and the payloads of an entry that was just inserted."""
        self._cache.confirm(cached, entry.totals)
        cached.unverified += len(entry.messages)
        cached.know_questions(entry.messages)
        messages = () if BRANCH.of(entry) else entry.messages
        begins = max(
            (index for index, message in enumerate(messages) if message.begins_turn), default=-1
        )
        ends = bool(messages and entry.totals.over)
        if begins >= 0 or ends:
            self._cache.end_turn(cached)
        finished = len(messages) if ends else begins
        if payloads := payloads_to_cache(batch, entry, finished):
            self._cache.keep_payloads(cached, {**cached.payloads, **payloads})


def _for_log(batch: Batch, conversation: str) -> Batch:
    """Return the batch for a conversation; drop the stamp if its view is from the log that a repair replaced."""
    stamp = batch.options.stamp
    if stamp and is_twin(stamp.conversation_id, conversation):
        return replace(batch, options=replace(batch.options, stamp=None))
    check_own(stamp, conversation)
    return batch
