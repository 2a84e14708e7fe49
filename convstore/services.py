"""Wire the services of one store, without I/O; a `ServiceHost` hands them to conversations and tools.

Floor 6. Each service is the work of one room below; `store` makes all of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from convstore.admin.catalog import Catalog
from convstore.admin.retention import Retention
from convstore.admin.statistics import StatsReader
from convstore.append.resent_history import Resender
from convstore.append.rewinder import Rewinder
from convstore.append.writer import Writer
from convstore.compaction.compactor import Compactor
from convstore.compaction.history import SummaryHistory
from convstore.compaction.strategies import CompactionStrategy
from convstore.messages.tokens import NamedCounter
from convstore.messages.values import Codec
from convstore.mongo.annotations import Annotations
from convstore.mongo.digests import Digests
from convstore.mongo.driver import Driver
from convstore.mongo.heads import Heads
from convstore.mongo.inspection import Inspection
from convstore.mongo.log import Log
from convstore.mongo.migrator import Migrator
from convstore.mongo.newest import Newest
from convstore.mongo.segments import Segments
from convstore.mongo.states import States
from convstore.mongo.statistics import Statistics
from convstore.mongo.summaries import Summaries
from convstore.mongo.tombstones import Tombstones
from convstore.readback.annotations import Annotator
from convstore.readback.listing import Listing
from convstore.readback.pager import Pager
from convstore.readback.records import Records
from convstore.readback.request import ReadBack, Request
from convstore.readback.turns import Turns
from convstore.runtime.cache import ConversationCache
from convstore.runtime.clock import Clock
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import LogReader
from convstore.runtime.open_heads import OpenHeads
from convstore.search.across import AcrossSearcher
from convstore.search.log_parts import LogParts
from convstore.search.sealer import Sealer
from convstore.search.searcher import Searcher
from convstore.sources.detection import SourceExtractor
from convstore.tools.search_page import search_page
from convstore.values.models import SourcePage
from convstore.values.policy import HistoryPolicy
from convstore.values.scope import Scope
from convstore.verify.schema import SchemaCheck
from convstore.verify.verifier import Verifier
from convstore.view.loader import Loader
from convstore.view.past import PastViews
from convstore.view.past_loader import PastLoader

__all__ = ["SearchIndex", "ServiceHost", "Services", "both_ways", "make_services", "read_back"]

SearchIndex = Literal[True, False, "across"]
"""The value of the store's option `search_index`."""

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one store, one for each use case."""

    writer: Writer
    open_heads: OpenHeads
    resender: Resender
    reader: LogReader
    loader: Loader
    past: PastViews
    records: Records
    turns: Turns
    pager: Pager
    listing: Listing
    searcher: Searcher
    across: AcrossSearcher
    sealer: Sealer | None
    directory: Catalog
    retention: Retention
    stats: StatsReader
    verifier: Verifier
    compactor: Compactor
    kept: SummaryHistory
    rewinder: Rewinder
    annotator: Annotator


def make_services(
    driver: Driver,
    prefix: str,
    migrator: Migrator,
    cache: ConversationCache,
    *,
    codec: Codec,
    counter: NamedCounter,
    clock: Clock,
    folder: CompactionStrategy | None,
    compaction_seconds: float,
    extractors: Mapping[str, SourceExtractor],
    search_index: SearchIndex,
    forget: Callable[[dict[str, str]], None],
) -> Services:
    """Make the services of one store.

    Args:
        driver: The database.
        prefix: Prefix of the names of collections.
        migrator: The schema's migrations.
        cache: The store's cache of conversations.
        codec: Encodes values.
        counter: Counts tokens.
        clock: Source of time and tokens.
        folder: The compaction strategy; None if the store has no summarizer.
        compaction_seconds: Time that a load waits for a summary.
        extractors: Functions that find the sources in a tool's results, by tool name.
        search_index: Which conversations have segments of the search index.
        forget: Called with the scope of each conversation that ended.
    """
    heads, tombstones, log = Heads(driver, prefix=prefix), Tombstones(driver, prefix=prefix), Log(driver, prefix=prefix)
    annotations, summaries = Annotations(driver, prefix=prefix), Summaries(driver, prefix=prefix)
    segments = Segments(driver, prefix=prefix)
    reader = LogReader(heads, log, cache, codec=codec, counter=counter)
    states = States(driver, prefix=prefix)
    ends = LogEndReader(reader, heads, states, summaries, cache, clock=clock)
    kept = SummaryHistory(reader, ends, states, summaries)
    logs = LogParts(reader, Newest(driver, prefix=prefix), segments if search_index else None, codec=codec)
    everything = search_index == "across"
    sealer = Sealer(reader, log, logs, segments, clock=clock, everything=everything) if search_index else None
    searcher = Searcher(reader, logs, sealer)
    open_heads = OpenHeads(heads, log, clock=clock, on_close=sealer.note if sealer else None)
    annotator = Annotator(reader, annotations, codec=codec, clock=clock)
    writer = Writer(
        reader,
        heads,
        tombstones,
        log,
        cache,
        open_heads=open_heads,
        codec=codec,
        counter=counter,
        clock=clock,
        extractors=extractors,
    )
    past_loader = PastLoader(reader, ends, log, states, cache, codec=codec, counter=counter)
    return Services(
        writer=writer,
        open_heads=open_heads,
        resender=Resender(reader, Digests(driver, prefix=prefix), writer, cache, codec=codec),
        reader=reader,
        loader=Loader(reader, ends, log, states, cache, codec=codec, counter=counter),
        past=PastViews(reader, ends, states, summaries, past_loader, codec=codec, counter=counter),
        records=Records(reader, annotator, codec=codec),
        turns=Turns(reader),
        pager=Pager(reader, codec=codec),
        listing=Listing(reader, Newest(driver, prefix=prefix), codec=codec),
        searcher=searcher,
        across=AcrossSearcher(reader, logs, segments, searcher),
        sealer=sealer,
        directory=Catalog(heads, log, cache, open_heads, codec=codec, clock=clock),
        stats=StatsReader(Statistics(driver, prefix=prefix), open_heads),
        retention=Retention(
            tombstones, log, annotations, summaries, states, segments=segments, clock=clock, forget=forget
        ),
        verifier=Verifier(
            Inspection(driver, prefix=prefix), log, SchemaCheck(driver, migrator, prefix=prefix), clock=clock
        ),
        compactor=Compactor(
            reader,
            ends,
            states,
            kept,
            summaries,
            codec=codec,
            counter=counter,
            clock=clock,
            strategy=folder,
            wait_seconds=compaction_seconds,
        ),
        kept=kept,
        rewinder=Rewinder(reader, heads, log, kept.reselect, cache, codec=codec, clock=clock),
        annotator=annotator,
    )


class ServiceHost(Protocol):
    """The side of a store that its conversations and tools use."""

    @property
    def policy(self) -> HistoryPolicy:
        """Return the policy of loads that name none."""
        ...

    @property
    def source_extractors(self) -> dict[str, SourceExtractor]:
        """Return the application's functions that find sources, by tool name."""
        ...

    def conversation(self, **scope: str) -> Any:
        """Return the handle of one conversation."""
        ...

    async def services(self) -> Services:
        """Return the services once the database is known to be set up."""
        ...

    def run_sync(self, work: Callable[[ServiceHost], Coroutine[Any, Any, _Result]], *, instead: str = ...) -> _Result:
        """Run some work for a sync caller, on a twin of the store."""
        ...


def both_ways(
    host: ServiceHost, work: Callable[[ServiceHost, _Request], Coroutine[Any, Any, _Result]]
) -> tuple[Callable[[_Request], Coroutine[Any, Any, _Result]], Callable[[_Request], _Result]]:
    """Return a function for async callers, on the store, and one for sync callers, on its twin."""
    return lambda request: work(host, request), lambda request: host.run_sync(lambda twin: work(twin, request))


def read_back(host: ServiceHost, scope: Scope) -> ReadBack:
    """Return the read function that a retrieval tool calls for one conversation."""

    async def read(store: ServiceHost, request: Request) -> tuple[str, SourcePage]:
        services = await store.services()
        if request.find and not request.names:
            return await search_page(services.searcher, scope, request)
        if not request.names and not request.cursor:
            return await services.listing.read(scope, request), SourcePage()
        return await services.pager.read(scope, request)

    return ReadBack(*both_ways(host, read))
