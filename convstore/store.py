"""The store: one database, all conversations in it.

Layer 5. Makes the parts and hands out handles; what they promise is kept below.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from convstore.chain import ChainSummarizer
from convstore.compaction.strategies import as_strategy
from convstore.conversation import Conversation
from convstore.exceptions import InvalidInputError, StoreClosedError, StoreError, SyncUnsupportedError
from convstore.messages.custom_types import functions_of
from convstore.messages.tokens import TokenCounter, approximate_tokens, named
from convstore.messages.values import Codec, Kind
from convstore.mongo.driver import Driver, close_client, open_client
from convstore.mongo.migrator import Migrator
from convstore.runtime.cache import ConversationCache
from convstore.runtime.clock import Clock
from convstore.runtime.loop_thread import LoopThread
from convstore.services import Services, make_services
from convstore.sources.detection import SourceExtractor
from convstore.summarization.summarizers import SummarizerLike
from convstore.values.models import ConversationPage, ErasureReceipt, ToolRecord, VerifyReport
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.scope import check_partial_scope, check_scope, check_scope_keys, check_seconds

__all__ = ["ConversationStore"]

_Result = TypeVar("_Result")
_SWEEP_SECONDS = 60.0
_SWEPT_BESIDE = 8
_PREFIX = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99})?")


class ConversationStore:
    """Keeps conversations in a MongoDB database.

    Every message is kept in full and never changed; `Conversation.load_history` gives the model what the next call
    needs. Making a store does no I/O. One store serves any number of tasks of one event loop, and any number of
    processes may have one on the same database. `codec`, `parts` and `run_sync` are for the integrations.

    Args:
        database: Of PyMongo's ``AsyncMongoClient``, Motor or mongomock-motor. The client stays yours to close.
        scope_keys: Names of the keys that say whose a conversation is.
        policy: What `load_history` does when it is not told; ``compact="before_load"`` needs a `summarizer`.
        summarizer: Writes the summaries that `Conversation.compact` keeps: a `RunningSummarizer`, a
            `ChainSummarizer`, or an async function from messages and the earlier summary to the new one.
        token_counter: Gives the tokens of a list of messages; counts are kept with the messages, under its name. A
            store with another counter counts anew what it loads, and the log once.
        token_counter_name: What tells it from others; None takes the name of the function, and of the model. Lambdas
            and closures need one.
        compaction_seconds: How long a load under ``compact="before_load"`` waits for the summarizer. Then it loads as
            before; the work goes on, until `close` at the latest, and is committed once it is done.
        collection_prefix: Put before the names of the collections, for a database with a ``log`` of its own.
        clock: Where time comes from; for tests.

    Attributes:
        scope_keys: As given.
        policy: As given.
        source_extractors: By name of a tool what `register_source_extractor` was given.
    """

    def __init__(
        self,
        database: Any,
        *,
        scope_keys: Sequence[str] = ("user_id", "thread_id"),
        policy: HistoryPolicy | None = None,
        summarizer: SummarizerLike | ChainSummarizer | None = None,
        token_counter: TokenCounter = approximate_tokens,
        token_counter_name: str | None = None,
        compaction_seconds: float = 30,
        collection_prefix: str = "",
        clock: Clock | None = None,
    ) -> None:
        if type(collection_prefix) is not str or not _PREFIX.fullmatch(collection_prefix):
            raise InvalidInputError(
                f"a collection_prefix is up to 100 letters, digits, '_', '-' and '.', not {collection_prefix!r}"
            )
        driver = Driver(database)
        self.scope_keys = check_scope_keys(scope_keys)
        self.policy = check_policy(policy) or HistoryPolicy()
        if self.policy.compact == "before_load" and summarizer is None:
            raise InvalidInputError('compact="before_load" needs a summarizer; pass one, or leave `compact` out')
        self._codec = Codec()
        self.source_extractors: dict[str, SourceExtractor] = {}
        self._migrator = Migrator(driver, prefix=collection_prefix, scope_keys=self.scope_keys)
        self._clock = clock or Clock()
        self._known = ConversationCache(self._clock)
        self._all_known = [self._known]
        self._services = make_services(
            driver,
            collection_prefix,
            self._migrator,
            self._known,
            codec=self._codec,
            counter=named(token_counter, token_counter_name),
            clock=self._clock,
            folder=None if summarizer is None else as_strategy(summarizer),
            compaction_seconds=check_seconds(compaction_seconds, name="compaction_seconds"),
            extractors=self.source_extractors,
            forget=self._forget,
        )
        self._sweep_at = self._clock.monotonic() + _SWEEP_SECONDS
        self._is_ready = self._is_closed = False
        self._client: Any = None
        self._make_twin: Callable[[], ConversationStore] | None = None
        self._twin: tuple[LoopThread, ConversationStore] | None = None
        self._twin_lock = threading.Lock()

    @classmethod
    async def connect(cls, uri: str, **options: Any) -> Self:
        """A store with a client of its own, which `close` closes: ``mongodb://…/database`` or ``memory://``.

        Such a store also serves sync callers of its tools. The server is first spoken to by the next call, which waits
        5 seconds for one to be found, unless the address has the option ``serverSelectionTimeoutMS``.

        Args:
            uri: The database is named in it; else it is "convstore". User, password and options of it are never part
                of an error or a ``repr``.
            options: As of the class.

        Raises:
            InvalidInputError: Not an address.
            MissingExtraError: ``memory://`` without the extra.
        """
        client, database = open_client(uri)
        store = cls(database, **options)
        store._client = client

        def twin() -> ConversationStore:
            # A client belongs to the event loop that it was first used on; the in-memory one holds the data itself.
            if store._migrator.driver_name == "memory":
                other = cls(database, **options)
            else:
                other_client, other_database = open_client(uri)
                other = cls(other_database, **options)
                other._client = other_client
            other._codec.copy_from(store._codec)
            other.source_extractors.update(store.source_extractors)
            store._all_known.append(other._known)
            other._all_known = store._all_known
            return other

        store._make_twin = twin
        return store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def setup(self) -> None:
        """Make collections and indexes by running the migrations that are pending; safe to repeat and to race.

        Raises:
            SchemaVersionError: The database was set up by a newer convstore.
        """
        self._check_open()
        await self._migrator.run()
        self._is_ready = True
        await self._services.retention.sweep()

    async def close(self) -> None:
        """End what still runs, bring listings up to date, and close the client if it is the store's own.

        The store is then of no use.

        Without it, as after ``kill -9``, listings are exact all the same, at the cost of reading the log.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._services.compactor.close()
            if self._is_ready:
                await self._services.open_heads.close()
        finally:
            if self._twin is not None:
                # A thread of its own: those of the loop may all be waiting for the twin.
                with ThreadPoolExecutor(1) as thread:
                    await asyncio.get_running_loop().run_in_executor(thread, self._stop_twin)
            if self._client is not None:
                await close_client(self._client)

    def conversation(self, **scope: str) -> Conversation:
        """The handle of one conversation; no I/O.

        Raises:
            InvalidScopeError: A key is missing or unknown, or a value is not a plain non-empty str.
        """
        return Conversation(self, check_scope(self.scope_keys, scope))

    async def get_tool_messages(self, *, tool_message_ids: Sequence[str], **scope: str) -> list[ToolRecord]:
        """Messages of one conversation in full; see `Conversation.get_tool_messages`."""
        return await self.conversation(**scope).get_tool_messages(tool_message_ids)

    async def list_conversations(
        self, *, limit: int = 50, cursor: str | None = None, **partial_scope: str
    ) -> ConversationPage:
        """Conversations with these scope values, newest first; order and counts are exact to 15 s.

        That holds for what any process appended, also if it was killed in the middle of a burst, while the clocks of
        the processes agree to 5 s. What this store appended itself counts at once. One command; one more for each
        conversation of the page whose writer did not bring it up to date in time, and one for up to 500 conversations
        to which this store appended lately.

        Without scope values it lists the conversations of everybody; name whose they are before a user sees them.

        Args:
            limit: At most this many conversations on a page, up to 1,000.
            cursor: ``next_cursor`` of the page before.
            partial_scope: Values of some scope keys; without any, all conversations.

        Raises:
            InvalidInputError: `limit` is out of bounds.
            InvalidScopeError: An unknown key, or an invalid value.
            InvalidCursorError: A cursor that this call did not give.
        """
        scope = check_partial_scope(self.scope_keys, partial_scope)
        return await (await self.services()).directory.page(scope, limit=limit, cursor=cursor)

    async def erase(self, *, everything: bool = False, dry_run: bool = False, **partial_scope: str) -> ErasureReceipt:
        """End for ever all conversations with these scope values and remove all that they hold; says what it removed.

        Conversations that begin while it works may stay, as those that begin later. Messages that other processes
        append at the same moment are removed with their conversations, at the latest by a sweep 75 s later; what a
        broken connection delivers later still, by one a day later. Sweeps run with the next calls of any store. A call
        that failed or was killed is repeated as it is. Several at once do no harm.

        Args:
            everything: All conversations of these collections, those of stores with other scope keys too; without
                scope values.
            dry_run: Only count what would be removed.
            partial_scope: Values of some scope keys, at least one.

        Raises:
            InvalidInputError: Neither scope values nor ``everything=True``, or both.
            InvalidScopeError: An unknown key, or an invalid value.
            CorruptDocumentError: A head does not say what it is of; all others are erased, or counted.
        """
        scope = check_partial_scope(self.scope_keys, partial_scope)
        if type(everything) is not bool:
            raise InvalidInputError(f"everything is True or False, not {everything!r}")
        if everything == bool(scope):
            raise InvalidInputError("name scope values to erase their conversations, or say everything=True for all")
        return await (await self.services()).retention.erase(scope, dry_run=dry_run)

    async def prune(self, *, older_than: timedelta, dry_run: bool = False, **partial_scope: str) -> ErasureReceipt:
        """Remove, as `erase` does, the conversations to which nothing was appended for so long; says what it removed.

        A conversation that is written to in the same moment stays, or what is appended begins a new one: nothing that
        was acknowledged is lost. A title that is set counts as use, too. Conversations are removed whole. Safe to
        repeat and to race.

        Args:
            older_than: Since the last entry; at least 5 minutes.
            dry_run: Only count what would be removed.
            partial_scope: Values of some scope keys, or of none for all conversations.

        Raises:
            InvalidInputError: `older_than` is too short.
            InvalidScopeError: An unknown key, or an invalid value.
        """
        scope = check_partial_scope(self.scope_keys, partial_scope)
        return await (await self.services()).retention.prune(scope, older_than=older_than, dry_run=dry_run)

    async def verify(
        self,
        *,
        repair: bool = False,
        progress: Callable[[VerifyReport], None] | None = None,
        **partial_scope: str,
    ) -> VerifyReport:
        """Look whether all that is stored is whole, and tell what is not; changes nothing unless told to.

        Reads every document of the conversations chosen, in bounded memory, beside running writers: what is on its way
        is no finding. Without scope values also what no conversation leads to. Schema and indexes in any case. Where a
        head seems out of date it waits 15 seconds at the end, once for all, and tells only what has not changed.

        Args:
            repair: Mend what follows from the rest: what heads repeat of the log, missing indexes and migrations, and
                remove what is left of broken appends and deletions after 24 hours. A log that lost entries, as after a
                restore beneath running processes, gets others in their place, which name what is lost. No entry is
                ever changed or removed.
            progress: Called with the numbers so far after each conversation.
            partial_scope: Values of some scope keys, or of none for all conversations.

        Raises:
            InvalidScopeError: An unknown key, or an invalid value.
            SchemaVersionError: The database was set up by a newer convstore.
        """
        self._check_open()
        scope = check_partial_scope(self.scope_keys, partial_scope)
        return await self._services.verifier.verify(scope, repair=repair, progress=progress)

    def register_artifact_type(
        self,
        type_: type,
        *,
        name: str | None = None,
        dump: Callable[[Any], Any] | None = None,
        load: Callable[[Any], Any] | None = None,
    ) -> None:
        """Teach the store a type, so that values of it come back equal wherever they stand in a message.

        Call it whenever a store is made, with the same name: what is stored names the type by it. pydantic models and
        dataclasses need no functions: a value is made again from its fields, without its constructor and validators.

        Args:
            type_: The class; instances of subclasses are not covered.
            name: What stored documents call it; None takes module and class name.
            dump: Gives a value of known types for one of `type_`.
            load: Gives it back.

        Raises:
            InvalidInputError: The type or the name is known already, or functions are missing.
        """
        if bool(dump) is not bool(load):
            raise InvalidInputError("pass both dump= and load=, or neither")
        if not dump or not load:
            dump, load = functions_of(type_)
        self._codec.register(type_, Kind(name or f"{type_.__module__}.{type_.__qualname__}", dump, load))

    def register_source_extractor(self, tool: str, extractor: SourceExtractor) -> None:
        """Say where the sources in a tool's results are, if the store does not find them by itself.

        It is asked at append, for results that carry this name; what is stored keeps its sources whatever it says
        later. Call it whenever a store is made.

        Args:
            tool: Name of the tool.
            extractor: Gives the sources of a result: ``Document``s, ``(text, metadata)`` pairs or dicts with a text.

        Raises:
            InvalidInputError: Not a name, or not a function.
        """
        if type(tool) is not str or not tool or not callable(extractor):
            raise InvalidInputError("pass the name of a tool and a function from a ToolMessage to a list of sources")
        self.source_extractors[tool] = extractor

    @property
    def codec(self) -> Codec:
        """What writes and reads values; it knows the types that `register_artifact_type` was given."""
        return self._codec

    async def services(self) -> Services:
        """The working parts, once it is sure that the database is set up; one command the first time.

        Once a minute some of what is left of deleted conversations is swept on the way.
        """
        self._check_open()
        if not self._is_ready:
            await self._migrator.check()
            self._is_ready = True
        now = self._clock.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_SECONDS
            # The caller came for something else: sweep only a few, and leave a failure to the next sweep.
            with suppress(StoreError):
                if await self._services.retention.sweep(most=_SWEPT_BESIDE) == _SWEPT_BESIDE:
                    self._sweep_at = now + 1
        return self._services

    def _forget(self, values: dict[str, str]) -> None:
        """Forget what is remembered of a conversation that ended, also where sync callers are served."""
        if set(values) != set(self.scope_keys):
            return  # of a store with other scope keys
        scope = tuple((key, values[key]) for key in self.scope_keys)
        for remembered in self._all_known:
            if known := remembered.get(scope):
                remembered.forget(known)

    def run_sync(
        self,
        work: Callable[[ConversationStore], Coroutine[Any, Any, _Result]],
        *,
        instead: str = "`await tool.ainvoke(...)`",
    ) -> _Result:
        """Do some work on a twin of this store that lives on a loop and a client of its own, and wait for it.

        Args:
            work: Gets the twin.
            instead: What an async caller does, for the error.

        Raises:
            SyncUnsupportedError: The client is the caller's; it belongs to the caller's loop.
        """
        self._check_open()
        if self._make_twin is None:
            raise SyncUnsupportedError(
                "this store works on your async client, which belongs to your event loop, so it cannot serve a sync "
                f"call: use {instead}, or make the store with `ConversationStore.connect(uri)`"
            )
        with self._twin_lock:
            self._check_open()
            if self._twin is None:
                self._twin = LoopThread(), self._make_twin()
        thread, twin = self._twin
        try:
            return thread.run(work(twin))
        except CancelledError as error:
            raise StoreClosedError("this store was closed in the middle of the call; make a new one") from error

    def _stop_twin(self) -> None:
        with self._twin_lock:
            twin, self._twin = self._twin, None
        if twin is not None:
            thread, store = twin
            thread.run(store.close())
            thread.stop()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError("this store was closed; make a new store")
