"""The services of one store, shared by its conversations, tools and integrations."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from convstore.conversation.operations import Observer, observe
from convstore.conversation.services import Services
from convstore.exceptions import (
    CorruptDocumentError,
    InvalidInputError,
    SchemaVersionError,
    StoreClosedError,
    SyncUnsupportedError,
)
from convstore.messages.tool_calls import result_id
from convstore.messages.values import Codec
from convstore.mongo.migrator import Migrator
from convstore.mongo.parallel import in_parallel
from convstore.readback.request import Request
from convstore.runtime.clock import Clock
from convstore.runtime.loop_thread import BothWays, Twin
from convstore.sources.detection import SourceExtractor
from convstore.tools.search_page import search_page
from convstore.values.list_rows import ConversationEnd, ListRow
from convstore.values.models import ConversationInfo, SourcePage
from convstore.values.reports import ConversationHits
from convstore.values.scope import Scope, child_ids

_Result = TypeVar("_Result")
_Named = TypeVar("_Named", ConversationInfo, ConversationHits)
_SWEEP_SECONDS = 60.0
_ENDS_AT_ONCE = 16
_LISTED = 1_000
_MOST_PAGES = 10
_ENOUGH = 50


def _call_of(child: ConversationInfo) -> str:
    """Return the `result_id` of the call that a sub-agent answers, or the name of a sub-agent that has one."""
    ids = child_ids(child.scope)
    return result_id(ids[0], ids[1]) if len(ids) > 1 else ids[0]


class Host:
    """The services of one store, for async callers and for sync ones.

    Attributes:
        store: The store; `Conversation.store` returns it.
        codec: Encodes and decodes values, with the types registered by `register_artifact_type`.
        source_extractors: The functions passed to `register_source_extractor`, by tool name.
        twin: A second store for sync callers; None if the client belongs to the caller.
        driver: The database, with its driver.
        schema: Checks that this version may use the database.
        observer: Observer of the store's operations; None without one.
        is_closed: True once the store was closed.
        logged_tools: Tools for which a warning about their sources was logged, each with the names in `number_sources`.
    """

    def __init__(
        self,
        store: Any,
        services: Services,
        *,
        codec: Codec,
        source_extractors: dict[str, SourceExtractor],
        clock: Clock,
    ) -> None:
        self.store = store
        self.codec = codec
        self.source_extractors = source_extractors
        self.twin: Twin[Any] | None = None
        self.observer: Observer | None = None
        self.is_closed = False
        self.logged_tools: set[tuple[str, frozenset[str] | None]] = set()
        self.schema = services.reader.schema
        self.driver = services.driver
        self._services = services
        self._clock = clock
        self._sweep_at = clock.monotonic() + _SWEEP_SECONDS

    async def services(self) -> Services:
        """Return the services after checking that this version may use the database.

        The check takes one command the first time and then at most every 10 seconds. Once a minute this also starts a
        background sweep that removes remnants of deleted conversations.
        """
        self.check_open()
        await self.schema.check()
        now = self._clock.monotonic()
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_SECONDS
            retention = self._services.retention
            retention.background.start(retention.sweep_slowly)
        return self._services

    def observe(self, observer: Observer) -> None:
        """Report all operations of the store to an observer, and those of a twin that is made later.

        Raises:
            InvalidInputError: The store has an observer already.
        """
        if self.observer is not None:
            raise InvalidInputError(
                "this store has an observer already; pass one observer for each store"
            )
        self.observer = observer
        observe(self._services, observer)

    def run_sync(
        self,
        work: Callable[[Any], Coroutine[Any, Any, _Result]],
        *,
        instead: str = "`await tool.ainvoke(...)`",
    ) -> _Result:
        """Run work on a twin of the store with its own event loop and client, and wait for the result.

        Args:
            work: Coroutine function that takes the twin, a store.
            instead: The async call to suggest in the error.

        Raises:
            SyncUnsupportedError: The client belongs to the caller and its event loop.
        """
        self.check_open()
        if self.twin is None:
            raise SyncUnsupportedError(
                "this store works on your async client, which belongs to your event loop, so it "
                "cannot serve a sync "
                f"call: use {instead}, or make the store with `ConversationStore.connect(uri)`"
            )
        return self.twin.run(work)

    async def conversation_id(self, scope: Mapping[str, str]) -> str:
        """Return the id of a scope's conversation, "" without one. One command, or zero if it is cached."""
        found = await (await self.services()).reader.find(tuple(scope.items()))
        return found.conversation if found else ""

    async def titled(self, conversations: Sequence[_Named]) -> list[_Named]:
        """Return conversations, each titled by its first question if it has no title. At most one command.

        The question may have been rewound since. A conversation that begins with an answer stays without a title.
        """
        nameless = [info.conversation_id for info in conversations if not info.title]
        questions = await (await self.services()).catalog.first_questions(nameless)
        found: list[_Named] = []
        for info in conversations:
            title = info.title or questions.get(info.conversation_id)
            found.append(info.model_copy(update={"title": title}))
        return found

    async def rows(self, conversations: Sequence[ConversationInfo]) -> list[ListRow]:
        """Return conversations as rows of a list, with the state of their last turns and their ratings.

        Two commands for a thousand conversations find those that were rated down and the imported ones that a run has
        tried to continue. An open turn takes two or three more, or about seven if a worker holds it or a person has to
        decide; 16 conversations are read at a time. A turn that broke off during calls of sub-agents is shown as
        waiting if those sub-agents wait, so their rows are read, too. If a conversation with an open turn is damaged,
        or was written by a newer version, its state is empty.
        """
        services = await self.services()
        rated = await services.annotator.rated_down(
            [info.conversation_id for info in conversations]
        )
        tried = await services.drafts.among(
            [info.conversation_id for info in conversations if info.state == "imported"]
        )

        async def row(info: ConversationInfo) -> ListRow:
            id_ = info.conversation_id
            end = ConversationEnd.of(info)
            if info.state == "open" or id_ in tried:
                chat = self.store.conversation(**info.scope)
                with suppress(CorruptDocumentError, SchemaVersionError):
                    end = await services.ends.read(tuple(chat.scope.items()), id_)
            if end.open_calls and info.has_children:
                end = await self._waiting_below(info, end)
            return ListRow(info, end, is_rated_down=id_ in rated)

        return await in_parallel(row, conversations, limit=_ENDS_AT_ONCE)

    async def _waiting_below(self, info: ConversationInfo, end: ConversationEnd) -> ConversationEnd:
        """Return the end of a conversation with open calls: "waiting" if the sub-agents of all these calls wait."""
        children = await self.store.conversation(**info.scope).children()
        below = [child for child in children if _call_of(child) in end.open_calls]
        rows = await self.rows(below) if len(below) == len(end.open_calls) else []
        if not rows or any(row.end.status != "waiting" for row in rows):
            return end
        names = tuple(name for row in rows for name in row.end.waiting)
        return ConversationEnd("waiting", names, since=end.since)

    async def newest(
        self,
        scope: Mapping[str, str],
        *,
        cursor: str | None = None,
        wanted: Callable[[ListRow], bool] | None = None,
    ) -> tuple[list[ListRow], str | None]:
        """Return the newest 1,000 conversations with these scope values as rows, and a cursor for older ones.

        With `wanted`, further pages are read until it is true for 50 rows, or 10,000 rows were read.
        """
        found: list[ListRow] = []
        for _ in range(_MOST_PAGES if wanted else 1):
            page = await self.store.list_conversations(
                limit=_LISTED, cursor=cursor, everything=not scope, **scope
            )
            found += await self.rows(page.conversations)
            cursor = page.next_cursor
            if cursor is None or (wanted and sum(map(wanted, found)) >= _ENOUGH):
                break
        return found, cursor

    async def seal(self, scope: Mapping[str, str]) -> None:
        """Add the whole conversation to the search index now, if the store has one. About five commands."""
        sealer = (await self.services()).sealer
        if sealer.is_on:
            await sealer.seal(tuple(scope.items()))

    async def shard_key_indexes(self, *, create: bool) -> list[str]:
        """With `create`, add the indexes that sharding needs. Return the names of collections without such an index."""
        migrator = Migrator(self.driver, scope_keys=self.store.scope_keys)
        return await (migrator.add_shard_keys() if create else migrator.missing_shard_keys())

    def check_open(self) -> None:
        """Raise a StoreClosedError once the store was closed."""
        if self.is_closed:
            raise StoreClosedError("this store was closed; make a new store")


def host_of(handle: Any) -> Host:
    """Return the host of a store or of a conversation."""
    host: Host = handle._host  # noqa: SLF001 - the public classes do not show it
    return host


def both_ways(store: Any, work: Callable[[Any, Any], Coroutine[Any, Any, Any]]) -> BothWays:
    """Return `work` as two functions of a request: one for async callers, and one for sync callers on the twin."""
    return lambda request: work(store, request), lambda request: host_of(store).run_sync(
        lambda twin: work(twin, request)
    )


def read_back(store: Any, scope: Scope) -> BothWays:
    """Return the read functions that a retrieval tool calls for one conversation."""

    async def read(store: Any, request: Request) -> tuple[Any, SourcePage]:
        services = await host_of(store).services()
        if not (request.names or request.find or request.cursor):
            return await services.listing.read(scope, request)
        if request.is_search:
            return await search_page(services.searcher, services.records, scope, request)
        return await services.pager.read(scope, request)

    return both_ways(store, read)
