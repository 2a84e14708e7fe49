"""The store: one database and all conversations in it.

The module is long because nearly all of it is the documentation of one class.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from convstore.conversation import Conversation
from convstore.conversation.host import Host
from convstore.conversation.services import Services
from convstore.exceptions import InvalidInputError
from convstore.messages.custom_types import functions_of
from convstore.messages.tokens import TokenCounter, approximate_tokens, named_counter
from convstore.messages.values import Kind
from convstore.mongo.artifact_types import new_codec
from convstore.mongo.driver import Driver, close_client, open_client
from convstore.mongo.migrator import Migrator, discover
from convstore.runtime.cache import ConversationCache
from convstore.runtime.clock import Clock
from convstore.runtime.loop_thread import Twin
from convstore.search.request import search_request
from convstore.sources.detection import SourceExtractor
from convstore.sources.failures import FailureJudge, check_judge
from convstore.values.environment import address_in, options_in
from convstore.values.models import ConversationPage, ToolRecord
from convstore.values.plain import shown_value, suggests_options
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.reports import (
    ConversationHits,
    ErasureReceipt,
    Migration,
    SearchHit,
    SearchResult,
    StoreStats,
    VerifyReport,
)
from convstore.values.scope import (
    PATH,
    check_field_names,
    check_flags,
    check_id,
    check_partial_scope,
    check_scope,
    check_scope_keys,
    check_selection,
)

if TYPE_CHECKING:
    from convstore.chain import ChainSummarizer
    from convstore.summarization.summarizers import SummarizerLike

_PREFIX = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99})?")


class StoreOptions(TypedDict, total=False):
    """Options of `ConversationStore`, as `ConversationStore.connect` takes them."""

    scope_keys: Sequence[str]
    policy: HistoryPolicy | None
    summarizer: SummarizerLike | ChainSummarizer | None
    token_counter: TokenCounter
    token_counter_name: str | None
    compaction_seconds: float
    collection_prefix: str
    search_index: bool
    visible_metadata: Sequence[str]
    is_failed: FailureJudge | None
    clock: Clock | None


@suggests_options
class ConversationStore:
    """Keeps conversations in a MongoDB database.

    Every message is stored in full and never changed; `Conversation.load_history` builds the view for the next model
    call. Creating a store does no I/O. One store serves all tasks of one event loop, and any number of processes may
    use the same database.

    Args:
        database: A database of PyMongo's ``AsyncMongoClient``, Motor or mongomock-motor. The caller closes its client.
        scope_keys: 1 to 8 names of the keys that identify a conversation; not the names of arguments of methods, such
            as ``limit``.
        policy: Default policy of `load_history`; ``compact="before_load"`` needs a `summarizer`.
        summarizer: Writes the summaries that `Conversation.compact` stores: a `RunningSummarizer`, a
            `ChainSummarizer`, or an async function from messages and the earlier summary to the new one. Its trigger is
            below the `max_tokens` of `policy`, half of it by default.
        token_counter: Counts the tokens of a list of messages. Counts are stored with the messages under its name;
            counts made under another name are recomputed.
        token_counter_name: Name of the token counter; None takes the name of the function and of the model. Lambdas
            and closures need one.
        compaction_seconds: Seconds that a load under ``compact="before_load"`` waits for the summarizer. It then
            returns the old view; the work continues, at most until `close`, and is committed when done.
        collection_prefix: Prefix of the collection names, for a database that already has a ``log`` collection. Up to
            100 letters, digits, ``_``, ``-`` and ``.``.
        search_index: Store search segments of conversations that are idle or were searched, so that a `search` need not
            read their whole logs. Without segments it returns the same hits.
        visible_metadata: Names of metadata fields, such as ``("author", "date")``, that a model is shown with each
            source that it reads back. By default it sees title, address, file and position in it; see SECURITY.md.
        is_failed: Decides if a tool's result reports a failed call, for tools that report failures in words: a function
            from the name of the tool and the ``ToolMessage`` to True, False, or None. None leaves the decision to the
            result's status and to ``"success": false`` in its JSON. It is called at append, perhaps in a thread, and
            its result is stored; if it raises, the append is refused before anything is written.
        clock: Source of time, for tests.

    Attributes:
        scope_keys: The scope keys.
        policy: The default policy.
        token_counter: The token counter, which measures all sizes.
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
        search_index: bool = True,
        visible_metadata: Sequence[str] = (),
        is_failed: FailureJudge | None = None,
        clock: Clock | None = None,
    ) -> None:
        _check_prefix(collection_prefix)
        check_flags(search_index=search_index)
        now = clock.now if clock else None
        clock = clock or Clock()
        driver = Driver(database, prefix=collection_prefix, now=now, monotonic=clock.monotonic)
        self.scope_keys = check_scope_keys(scope_keys)
        self.policy = check_policy(policy) or HistoryPolicy()
        self.token_counter = named_counter(token_counter, token_counter_name)
        _check_seconds(compaction_seconds)
        if self.policy.compact == "before_load" and summarizer is None:
            raise InvalidInputError(
                'compact="before_load" needs a summarizer; pass one, or leave `compact` out'
            )
        codec = new_codec()
        extractors: dict[str, SourceExtractor] = {}
        self._migrator = Migrator(driver, scope_keys=self.scope_keys)
        strategy = None
        if summarizer is not None:
            from convstore.compaction.strategies import as_strategy  # noqa: PLC0415 - with the chain, for few stores

            strategy = as_strategy(summarizer, budget=self.policy.max_tokens)
        self._known = ConversationCache(clock, self.scope_keys)
        self._services = Services(
            driver,
            self._migrator,
            self._known,
            codec=codec,
            counter=self.token_counter,
            clock=clock,
            strategy=strategy,
            policy=self.policy,
            compaction_seconds=compaction_seconds,
            extractors=extractors,
            is_failed=check_judge(is_failed),
            search_index=search_index,
            visible_metadata=check_field_names(visible_metadata, name="visible_metadata"),
        )
        self._host = Host(
            self, self._services, codec=codec, source_extractors=extractors, clock=clock
        )
        self._client: Any = None

    @classmethod
    async def connect(cls, uri: str, **options: Unpack[StoreOptions]) -> Self:
        """Create a store with its own client, which `close` closes: ``mongodb://…/database`` or ``memory://``.

        Such a store also serves sync callers of its tools. This method does no I/O; the first call of the store
        connects, and waits 5 seconds for a server unless the address has the option ``serverSelectionTimeoutMS``.

        Args:
            uri: The address, with the name of the database; the default name is "convstore". Its user, password and
                options never appear in an error or a ``repr``.
            options: Keyword arguments of the class.

        Raises:
            InvalidInputError: The address is invalid.
            MissingExtraError: ``memory://`` needs an extra that is not installed.
        """
        client, database = open_client(uri)
        store = cls(database, **options)
        store._client = client

        def twin() -> ConversationStore:
            # A client belongs to the event loop that first used it. The in-memory client itself has the data.
            if store._migrator.driver_name == "memory":
                other = cls(database, **options)
            else:
                other_client, other_database = open_client(uri)
                other = cls(other_database, **options)
                other._client = other_client
            other._host.codec.copy_from(store._host.codec)
            other._host.source_extractors.update(store._host.source_extractors)
            store._known.join(other._known)
            if store._host.observer is not None:
                other._host.observe(store._host.observer)
            return other

        store._host.twin = Twin(twin)
        return store

    @classmethod
    async def from_env(cls, **options: Unpack[StoreOptions]) -> Self:
        """Create a store as `connect` does, from the environment variables ``CONVSTORE_URI`` and others.

        ``CONVSTORE_DATABASE`` names the database if the address names none. ``CONVSTORE_SCOPE_KEYS``,
        ``CONVSTORE_COLLECTION_PREFIX`` and ``CONVSTORE_POLICY`` set options; the command line reads the same variables.

        Args:
            options: Keyword arguments of the class; they override the environment.

        Raises:
            InvalidInputError: ``CONVSTORE_URI`` is not set, or a variable has an invalid value; the error names it.
            MissingExtraError: ``memory://`` needs an extra that is not installed.
        """
        found: Any = options_in(os.environ) | options
        return await cls.connect(address_in(os.environ), **found)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def setup(
        self, *, listings: Sequence[Sequence[str]] = (), after_deployment: bool = False
    ) -> None:
        """Create collections and indexes by running pending migrations. Idempotent, and safe to run concurrently.

        Listings by one scope key have an index, and so have listings by all keys but the last (by both of two keys).
        Listings by other combinations examine every conversation with one of the values, unless `listings` names the
        combination. A RuntimeWarning is issued if all conversations in the database, or 100 of them, have other scope
        keys.

        Args:
            listings: Combinations of scope keys, such as ``[("team_id", "course_id")]``.
            after_deployment: Also run the migrations that wait until every process runs this version. Older processes
                are refused within 10 seconds, and the migrations that exclude them begin 80 seconds later.

        Raises:
            InvalidScopeError: A combination names other keys than the store's.
            SchemaVersionError: The database was set up by a newer convstore.
            MissingPrivilegeError: A migration is due, and the database user may not run it; run ``convstore migrate``.
        """
        self._host.check_open()
        check_flags(after_deployment=after_deployment)
        await self._migrator.run(listings, after_deployment=after_deployment)
        await self._migrator.check_keys()
        await self._host.schema.read()

    async def migrations(self) -> list[Migration]:
        """Return the migrations of this version in order, each with its state in the database. One command.

        Raises:
            SchemaVersionError: The database was set up by a newer convstore.
        """
        self._host.check_open()
        pending = (await self._migrator.records()).pending
        return [
            Migration(
                name=step.name,
                summary=step.summary,
                phase=step.phase,
                is_applied=step not in pending,
            )
            for step in discover()
        ]

    async def ping(self) -> None:
        """Check that the server answers and that the database is set up for this version, for a readiness check.

        It waits for a server as long as any call of the store, 5 seconds after `connect`. One command.

        Raises:
            StoreUnavailableError: The server did not answer.
            NotSetUpError: A migration is due; call `setup`.
            SchemaVersionError: The database was set up by a newer convstore; upgrade the package.
            MissingPrivilegeError: The database user may not read the records of migrations.
            StoreClosedError: `close` was called.
        """
        self._host.check_open()
        await self._host.schema.read()

    async def close(self) -> None:
        """Stop background work, and close the client if the store owns it. The store cannot be used afterwards."""
        if self._host.is_closed:
            return
        self._host.is_closed = True
        try:
            await self._services.retention.background.close()
            await self._services.changes.close()
            await self._services.sealer.close()
        finally:
            if self._host.twin is not None:
                await self._host.twin.close()
            if self._client is not None:
                await close_client(self._client)
            if self._host.observer is not None:
                self._host.observer.flush()

    def conversation(self, **scope: str) -> Conversation:
        """Return the handle of one conversation; no I/O.

        A conversation need not be created first. Handles are cheap: create one for each request.

        Args:
            scope: A value for each scope key of the store.

        Raises:
            InvalidScopeError: A key is missing or unknown, or a value is not a plain non-empty str.
        """
        return Conversation(self._host, check_scope(self.scope_keys, scope))

    async def find_conversation(
        self, conversation_id: str, /, **partial_scope: str
    ) -> Conversation | None:
        """Return the handle of the conversation with a random id (`ConversationInfo.conversation_id`). One command.

        Returns None if the conversation is missing, was deleted or has other scope values. Without scope values it
        finds conversations of all users.

        Args:
            conversation_id: The id that `ConversationInfo` and listings show.
            partial_scope: Values of some scope keys that the conversation must have.
        """
        wanted = check_partial_scope(self.scope_keys, partial_scope)
        scope = await (await self._host.services()).catalog.scope_of(
            check_id(conversation_id, name="id"), wanted
        )
        if scope and scope.keys() - {PATH} == set(self.scope_keys):
            return self.conversation(**scope)
        return None

    async def get_tool_messages(
        self, *values: Any, tool_message_ids: Sequence[str] | None = None, **scope: str
    ) -> list[ToolRecord]:
        """Return messages of one conversation in full; see `Conversation.get_tool_messages`.

        Pass all arguments by name or all by position. By position, the scope values come first, in the order of
        `scope_keys`, and the ids last.

        Args:
            values: The scope values, then the ids, by position.
            tool_message_ids: The ids, by name.
            scope: A value for each scope key, by name.

        Raises:
            InvalidInputError: Arguments by name and by position are mixed, or an argument is missing or too many.
        """
        ids: Any = tool_message_ids
        if values or ids is None:
            if scope or ids is not None or len(values) != len(self.scope_keys) + 1:
                names = ", ".join((*self.scope_keys, "tool_message_ids"))
                raise InvalidInputError(
                    f"get_tool_messages takes {names}: all by name, or all in this order"
                )
            scope = dict(zip(self.scope_keys, values[:-1], strict=True))
            ids = values[-1]
        return await self.conversation(**scope).get_tool_messages(ids)

    async def list_conversations(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        everything: bool = False,
        **partial_scope: str,
    ) -> ConversationPage:
        """Return a page of the conversations with these scope values, newest first.

        Counts, previews and usage are exact, even after a process was killed. The order is exact to 10 s, if clocks
        agree. It takes one command, which joins the last entry of each log. Servers that cannot join collections
        (``$lookup``), such as sharded ones before MongoDB 5.1, need one more for each conversation on the page.

        Args:
            limit: Maximum number of conversations on a page, up to 1,000.
            cursor: ``next_cursor`` of the previous page.
            everything: List the conversations of all users. Excludes scope values.
            partial_scope: Values of some scope keys, at least one.

        Raises:
            InvalidInputError: Neither scope values nor ``everything=True``, or both, or `limit` is out of bounds.
            InvalidScopeError: A scope key is unknown, or a value is invalid.
            InvalidCursorError: The cursor does not come from this call.
        """
        scope = check_selection(self.scope_keys, partial_scope, everything=everything)
        return await (await self._host.services()).catalog.page(scope, limit=limit, cursor=cursor)

    async def stats(self, *, sizes: bool = True, **partial_scope: str) -> StoreStats:
        """Return counts, sizes and growth of the conversations with these scope values.

        Counts are exact. It reads every head and the last entry of each log, a thousand with one command. The tokens
        that views save are estimated from the running totals and the budget of the store's policy; no other entry is
        read.

        Args:
            sizes: Also measure stored bytes and their growth. The server then reads every document of these
                conversations, with five commands for each of them, or five for all conversations.
            partial_scope: Values of some scope keys; without any, all conversations.

        Raises:
            InvalidScopeError: A scope key is unknown, or a value is invalid.
        """
        check_flags(sizes=sizes)
        scope = check_partial_scope(self.scope_keys, partial_scope)
        return await (await self._host.services()).stats.read(
            scope, sizes=sizes, budget=self.policy.max_tokens
        )

    async def search(
        self,
        text: str,
        /,
        *,
        limit: int = 20,
        conversations: int = 500,
        everything: bool = False,
        **partial_scope: str,
    ) -> SearchResult:
        """Return the messages that match some words best, from all conversations with these scope values.

        Idle conversations are in segments of the search index. Of other messages at most 4 million characters are
        read, for at most 2 seconds. Conversations that were not read completely are named in the result, and segments
        of them are written in the background.
        One command lists the conversations, one reads all segments, two read a conversation with messages in no
        segment, and one the hits of a conversation; large results take one more.

        Args:
            text: The words, as in `Conversation.search`.
            limit: Maximum number of hits, up to 200.
            conversations: Maximum number of conversations, the newest ones; up to 1,000.
            everything: Search the conversations of all users. Excludes scope values.
            partial_scope: Values of some scope keys, at least one.

        Raises:
            InvalidInputError: Neither scope values nor ``everything=True``, or both, or another argument is invalid.
            InvalidScopeError: A scope key is unknown, or a value is invalid.
        """
        scope = check_selection(self.scope_keys, partial_scope, everything=everything)
        request = search_request(text, limit=limit)
        services = await self._host.services()
        found = await services.catalog.newest(scope, limit=conversations)
        newest = [(head, info) for head, info in found if not head.damage]
        searched = []
        for (head, totals, *_), _ in newest:
            cached = self._known.outside(self._scope_of(head.scope), head.conversation)
            searched.append((cached, totals))
        matches, incomplete = await services.across.search(searched, request)
        hits: dict[int, list[SearchHit]] = {}
        for index, match in matches:
            hits.setdefault(index, []).append(match.hit)
        groups = [
            ConversationHits(
                scope=newest[index][1].scope,
                conversation_id=newest[index][1].conversation_id,
                title=newest[index][1].title,
                hits=own,
            )
            for index, own in hits.items()
        ]
        return SearchResult(
            conversations=sorted(groups, key=lambda group: -group.hits[0].score),
            searched=len(searched),
            incomplete=[newest[index][1].scope for index in incomplete],
            problems={info.conversation_id: info.problem for _, info in found if info.problem},
        )

    def _scope_of(self, values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        """Return scope values in the order of the store's keys, or as they are if the keys are others."""
        keys = self.scope_keys if set(self.scope_keys) == set(values) else tuple(values)
        return tuple((key, values[key]) for key in keys)

    async def erase(
        self,
        conversation_id: str | None = None,
        /,
        *,
        everything: bool = False,
        lost: bool = False,
        dry_run: bool = False,
        progress: Callable[[ErasureReceipt], None] | None = None,
        **partial_scope: str,
    ) -> ErasureReceipt:
        """Delete all conversations with these scope values permanently, and return a receipt of the removed data.

        Conversations that begin during the call may remain. Appends in flight are discarded with their conversations,
        by a sweep at most 80 s later; writes that a broken connection delivers even later, by a sweep a day later.
        Sweeps run in the background of any store in use, or in the next call for the same scope. A failed or killed
        call can be retried as it is, and concurrent calls are safe.

        The scope of a conversation is only in its head, so scope values do not find a conversation whose head is
        missing or damaged. After an erasure for a person, ``erase(lost=True, dry_run=True)`` counts such conversations:
        if it counts 0, all messages of that person are deleted. It does not count documents of conversations that have
        lost their entries, too; `verify` with ``repair=True`` removes these after 24 hours.

        Args:
            conversation_id: Delete the conversation with this id alone (`ConversationInfo.conversation_id`), also
                without its head.
            everything: Delete all conversations of these collections, including those of stores with other scope keys.
            lost: Delete the conversations of unknown scope: entries without a head, and heads that do not name their
                conversation or their scope. Restore them from a backup first if you can. It compares the ids in heads
                and log, and reads every head.
            dry_run: Only count the data to remove.
            progress: Called with the receipt so far after each batch of conversations.
            partial_scope: Values of some scope keys, at least one.

        Raises:
            InvalidInputError: Not exactly one of scope values, an id, ``everything=True`` and ``lost=True`` is passed.
            InvalidScopeError: A scope key is unknown, or a value is invalid.
            CorruptDocumentError: A head does not name its conversation; all others are erased, or counted.
        """
        check_flags(everything=everything, lost=lost, dry_run=dry_run)
        id_ = "" if conversation_id is None else check_id(conversation_id, name="conversation_id")
        if [everything, lost, bool(id_)].count(True) > 1:
            raise InvalidInputError(
                "pass only one of an id, everything=True, lost=True and scope values"
            )
        scope = check_selection(
            self.scope_keys, partial_scope, everything=lost or bool(id_) or everything
        )
        retention = (await self._host.services()).retention
        return await retention.erase(
            scope, conversation=id_, lost=lost, dry_run=dry_run, progress=progress
        )

    async def prune(
        self,
        *,
        older_than: timedelta,
        dry_run: bool = False,
        progress: Callable[[ErasureReceipt], None] | None = None,
        **partial_scope: str,
    ) -> ErasureReceipt:
        """Delete idle conversations as `erase` does, and return a receipt of the removed data.

        No acknowledged message is lost: a conversation that is written to during the call is kept, or the append begins
        a new one. Setting a title counts as use. Conversations are removed as a whole. Idempotent, and safe to run
        concurrently.

        Args:
            older_than: Time since the last entry; at least 5 minutes.
            dry_run: Only count the data to remove.
            progress: Called with the receipt so far after each batch of conversations.
            partial_scope: Values of some scope keys; without any, all conversations.

        Raises:
            InvalidInputError: `older_than` is too short.
            InvalidScopeError: A scope key is unknown, or a value is invalid.
        """
        check_flags(dry_run=dry_run)
        scope = check_partial_scope(self.scope_keys, partial_scope)
        retention = (await self._host.services()).retention
        return await retention.prune(
            scope, older_than=older_than, dry_run=dry_run, progress=progress
        )

    async def verify(
        self,
        *,
        repair: bool = False,
        progress: Callable[[VerifyReport], None] | None = None,
        **partial_scope: str,
    ) -> VerifyReport:
        """Check stored data for damage and report it. Nothing is changed without ``repair=True``.

        It reads every document of the selected conversations in bounded memory, concurrently with writers; writes in
        flight are not reported. Schema and indexes are always checked, and without scope values orphaned documents too.

        Args:
            repair: Rebuild data that can be derived from the log: heads, missing indexes and migrations. Remnants of
                broken appends and deletions are removed after 24 hours. A log that lost entries, as after a restore
                under running processes, is replaced by a copy of the rest, and is itself kept for 30 days; its finding
                has the lost ordinals and source ids, and the new id. No entry is ever changed.
            progress: Called with the report so far after each conversation.
            partial_scope: Values of some scope keys; without any, all conversations.

        Raises:
            InvalidScopeError: A scope key is unknown, or a value is invalid.
            SchemaVersionError: The database was set up by a newer convstore.
        """
        self._host.check_open()
        check_flags(repair=repair)
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
        """Register a type, so that its values are restored exactly wherever they occur in a message.

        Call it after creating each store, with the same name: stored documents refer to it. pydantic models and
        dataclasses need no functions: a value is restored from its fields, without its constructor and validators.

        Args:
            type_: The class; instances of subclasses are not covered.
            name: Name of the type in stored documents; None takes module and class name.
            dump: Converts a value of `type_` to a value of registered types.
            load: Converts it back.

        Raises:
            InvalidInputError: `type_` is not a class, it or the name is already registered, or functions are missing.
        """
        if not isinstance(type_, type):
            raise InvalidInputError(f"register a class, not {shown_value(type_)}")
        if bool(dump) is not bool(load):
            raise InvalidInputError("pass both dump= and load=, or neither")
        if not dump or not load:
            dump, load = functions_of(type_)
        self._host.codec.register(
            type_, Kind(name or f"{type_.__module__}.{type_.__qualname__}", dump, load)
        )

    def register_source_extractor(self, tool: str, extractor: SourceExtractor) -> None:
        """Register a function that finds the sources in a tool's results that the store does not detect itself.

        `append` calls it for results with this tool name. Stored results keep their sources, even if the function
        changes later. Call it after creating each store.

        Args:
            tool: Name of the tool.
            extractor: Returns the sources of a result: ``Document``s, ``(text, metadata)`` pairs or dicts with a text.

        Raises:
            InvalidInputError: `tool` is not a name, or `extractor` is not a function.
        """
        if type(tool) is not str or not tool or not callable(extractor):
            raise InvalidInputError(
                "pass the name of a tool and a function from a ToolMessage to a list of sources"
            )
        self._host.source_extractors[tool] = extractor


def _check_prefix(prefix: Any) -> None:
    if type(prefix) is not str or not _PREFIX.fullmatch(prefix):
        raise InvalidInputError(
            "collection_prefix must be up to 100 letters, digits, '_', '-' and '.', not "
            f"{shown_value(prefix)}"
        )


def _check_seconds(seconds: Any) -> None:
    if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
        raise InvalidInputError(
            f"compaction_seconds must be a number of seconds from 0, not {shown_value(seconds)}"
        )
