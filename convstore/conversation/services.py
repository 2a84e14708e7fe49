"""Wire the services of one store, without I/O; its `Host` provides them to conversations and tools.

Each service comes from one of the packages below; `store` creates all of them once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from convstore.admin.application_state import StateKeeper
from convstore.admin.catalog import Catalog
from convstore.admin.retention import Retention
from convstore.admin.statistics import StatsReader
from convstore.append.forker import Forker
from convstore.append.resent_history import Resender
from convstore.append.rewinder import Rewinder
from convstore.append.writer import Writer
from convstore.compaction.history import SummaryHistory
from convstore.messages.tokens import NamedCounter
from convstore.messages.values import Codec
from convstore.mongo.annotations import Annotations
from convstore.mongo.collection import Collection
from convstore.mongo.copies import Copies
from convstore.mongo.drafts import Drafts
from convstore.mongo.driver import Driver
from convstore.mongo.heads import Heads
from convstore.mongo.inspection import Inspection
from convstore.mongo.keys import ANNOTATIONS, DRAFTS, SEARCH, SUMMARIES
from convstore.mongo.log import Log
from convstore.mongo.migrator import Migrator
from convstore.mongo.number_pools import NumberPools
from convstore.mongo.segments import Segments
from convstore.mongo.states import States
from convstore.mongo.statistics import Statistics
from convstore.mongo.summaries import Summaries
from convstore.mongo.tombstones import Tombstones
from convstore.mongo.turn_leases import TurnLeases
from convstore.readback.annotations import Annotator
from convstore.readback.listing import Listing
from convstore.readback.pager import Pager
from convstore.readback.records import Records
from convstore.readback.turns import Turns
from convstore.runtime.cache import ConversationCache
from convstore.runtime.changes import ChangeFeed
from convstore.runtime.clock import Clock
from convstore.runtime.head_refresh import HeadRefresher
from convstore.runtime.log_end import LogEndReader
from convstore.runtime.log_reader import LogReader
from convstore.runtime.schema_watch import SchemaWatch
from convstore.search.across import AcrossSearcher
from convstore.search.log_parts import LogParts
from convstore.search.sealer import Sealer
from convstore.search.searcher import Searcher
from convstore.sources.detection import SourceExtractor
from convstore.sources.failures import FailureJudge
from convstore.turns.activating import Activator
from convstore.turns.deciding import Decisions
from convstore.turns.ends import EndReader
from convstore.turns.entering import TurnEntrance
from convstore.turns.held import TurnServices
from convstore.turns.record_reader import TurnRecordReader
from convstore.turns.variants import Variants
from convstore.turns.watching import Watcher
from convstore.values.policy import HistoryPolicy
from convstore.view.loader import Loader
from convstore.view.past import PastViews

if TYPE_CHECKING:
    from convstore.compaction.compactor import Compactor
    from convstore.compaction.strategies import CompactionStrategy
    from convstore.verify.repair import Repairer
    from convstore.verify.verifier import Verifier


class Services:
    """The services of one store, one for each use case.

    Compaction, verification and repair are imported and created on first use.
    """

    def __init__(
        self,
        driver: Driver,
        migrator: Migrator,
        cache: ConversationCache,
        *,
        codec: Codec,
        counter: NamedCounter,
        clock: Clock,
        strategy: CompactionStrategy | None,
        policy: HistoryPolicy,
        compaction_seconds: float,
        extractors: Mapping[str, SourceExtractor],
        is_failed: FailureJudge | None,
        search_index: bool,
        visible_metadata: Sequence[str],
    ) -> None:
        states = States(driver)
        tombstones = Tombstones(driver)
        segments = Segments(driver)
        watch = SchemaWatch(migrator, clock)
        heads = Heads(driver)
        log = Log(driver)
        reader = LogReader(
            heads=heads,
            log=log,
            cache=cache,
            codec=codec,
            counter=counter,
            clock=clock,
            schema=watch,
        )
        self.reader = reader
        ends = LogEndReader(reader, states, Summaries(driver))
        logs = LogParts(reader, segments if search_index else None)
        self.sealer = Sealer(reader, logs, segments, is_on=search_index)
        self.searcher = Searcher(reader, logs, self.sealer)
        self.across = AcrossSearcher(reader, logs, segments, self.searcher, self.sealer)
        self.refresher = refresher = HeadRefresher(reader, on_append=self.sealer.note)
        self.writer = Writer(
            reader, tombstones, refresher, extractors, NumberPools(driver), judge=is_failed
        )
        self.resender = Resender(reader, self.writer)
        self.loader = Loader(ends)
        self.past = PastViews(ends)
        annotations = Annotations(driver)
        self.annotator = Annotator(reader, annotations)
        self.states = StateKeeper(reader, annotations)
        self.records = Records(reader, self.annotator)
        self.drafts = drafts = Drafts(driver)
        self.turns = Turns(reader, drafts)
        self.pager = Pager(reader, self.records, visible_metadata)
        self.listing = Listing(reader, states)
        self.changes = ChangeFeed(driver, clock)
        self.summaries = SummaryHistory(ends)
        self.rewinder = Rewinder(ends, refresher, self.summaries.reselect)
        self.activator = Activator(reader, self.rewinder)
        self.forker = Forker(ends, self.rewinder, tombstones, Copies(driver))
        self.turn_records = TurnRecordReader(reader, self.turns)
        self.variants = Variants(reader, self.writer, self.rewinder)
        turn_services = TurnServices(
            reader, TurnLeases(driver), drafts, self.turn_records, self.variants
        )
        self.watcher = Watcher(self.records, self.turns, turn_services, self.changes)
        self.ends = EndReader(states, drafts, self.watcher)
        self.turn_entrance = TurnEntrance(ends, turn_services)
        self.decisions = Decisions(turn_services)
        self.catalog = Catalog(reader)
        self.stats = StatsReader(reader.heads, Statistics(driver))
        kept = {
            "annotations": ANNOTATIONS,
            "summaries": SUMMARIES,
            "drafts": DRAFTS,
            "search_segments": SEARCH,
        }
        parts = {name: Collection(driver, collection) for name, collection in kept.items()}
        self.retention = Retention(
            reader, tombstones, Inspection(driver), states, parts, self._move_late
        )
        self._log_ends = ends
        self.driver = driver
        self._migrator = migrator
        self._clock = clock
        self._compaction = (strategy, policy)
        self._compaction_seconds = compaction_seconds

    @cached_property
    def compactor(self) -> Compactor:
        """Makes summaries."""
        from convstore.compaction.compactor import Compactor  # noqa: PLC0415

        return Compactor(
            self._log_ends,
            self.summaries,
            self.retention.background,
            *self._compaction,
            wait_seconds=self._compaction_seconds,
        )

    @cached_property
    def verifier(self) -> Verifier:
        """Checks and repairs stored data."""
        from convstore.verify.schema import SchemaCheck  # noqa: PLC0415
        from convstore.verify.verifier import Verifier  # noqa: PLC0415

        schema = SchemaCheck(self.driver, self._migrator)
        repairer = self.repairer
        return Verifier(
            repairer.inspection,
            repairer,
            schema,
            self._clock,
            self.sealer,
            self.reader.schema.check,
        )

    @cached_property
    def repairer(self) -> Repairer:
        """Replaces logs that lost entries."""
        from convstore.verify.repair import Repairer  # noqa: PLC0415

        codec = Codec()
        codec.keep_unknown()
        copies = Copies(self.driver)
        retention = self.retention
        return Repairer(self._log_ends, retention.inspection, copies, retention.tombstones, codec)

    async def _move_late(self, tombstone: Mapping[str, Any]) -> None:
        await self.repairer.move_late(tombstone)
