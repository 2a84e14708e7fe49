"""Puts the services of a store together.

Layer 4. What they work on is made here, once for each store, without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from convstore.codec import Codec
from convstore.driver import Driver
from convstore.extraction import SourceExtractor
from convstore.migrate import Migrator
from convstore.repository import Annotations, Digests, Endings, Heads, Inspection, Log, Newest, Summaries
from convstore.services.annotations import Annotator
from convstore.services.clock import Clock
from convstore.services.compactor import Compactor
from convstore.services.directory import Directory
from convstore.services.doctor import SchemaCheck, Verifier
from convstore.services.kept_summaries import KeptSummaries
from convstore.services.known import KnownConversations
from convstore.services.loader import Loader
from convstore.services.open_heads import OpenHeads
from convstore.services.pager import Pager
from convstore.services.reader import Reader
from convstore.services.records import Records
from convstore.services.resending import Resender
from convstore.services.retention import Retention
from convstore.services.rewinder import Rewinder
from convstore.services.turns import Turns
from convstore.services.writer import Writer
from convstore.summarization.folders import Folder
from convstore.tokens import NamedCounter

__all__ = ["Parts", "make_parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """What does the work of a store."""

    writer: Writer
    open_heads: OpenHeads
    resender: Resender
    reader: Reader
    loader: Loader
    records: Records
    turns: Turns
    pager: Pager
    directory: Directory
    retention: Retention
    verifier: Verifier
    compactor: Compactor
    kept: KeptSummaries
    rewinder: Rewinder
    annotator: Annotator


def make_parts(
    driver: Driver,
    prefix: str,
    migrator: Migrator,
    known: KnownConversations,
    *,
    codec: Codec,
    counter: NamedCounter,
    clock: Clock,
    folder: Folder | None,
    compaction_seconds: float,
    extractors: Mapping[str, SourceExtractor],
    forget: Callable[[dict[str, str]], None],
) -> Parts:
    """The parts of one store.

    Args:
        driver: The database.
        prefix: Stands before the names of collections.
        migrator: Knows the schema.
        known: What the store remembers.
        codec: Knows the types of values.
        counter: Counts tokens.
        clock: Where time comes from.
        folder: Makes summaries; None if the store has no summarizer.
        compaction_seconds: How long a load waits for one.
        extractors: By the name of a tool what finds the sources in its results.
        forget: Told of the scope of each conversation that ended.
    """
    heads, endings, log = Heads(driver, prefix=prefix), Endings(driver, prefix=prefix), Log(driver, prefix=prefix)
    annotations, summaries = Annotations(driver, prefix=prefix), Summaries(driver, prefix=prefix)
    open_heads = OpenHeads(heads, log, clock=clock)
    reader = Reader(heads, log, known, codec=codec, counter=counter)
    kept = KeptSummaries(reader, heads, log, summaries)
    annotator = Annotator(reader, annotations, codec=codec, clock=clock)
    writer = Writer(
        reader,
        heads,
        endings,
        log,
        known,
        open_heads=open_heads,
        codec=codec,
        counter=counter,
        clock=clock,
        extractors=extractors,
    )
    return Parts(
        writer=writer,
        open_heads=open_heads,
        resender=Resender(reader, Digests(driver, prefix=prefix), writer, known, codec=codec),
        reader=reader,
        loader=Loader(reader, heads, log, known, codec=codec, counter=counter),
        records=Records(reader, annotator, codec=codec),
        turns=Turns(reader),
        pager=Pager(reader, Newest(driver, prefix=prefix), codec=codec),
        directory=Directory(heads, log, known, open_heads, codec=codec, clock=clock),
        retention=Retention(endings, log, annotations, summaries, clock=clock, forget=forget),
        verifier=Verifier(
            Inspection(driver, prefix=prefix), log, SchemaCheck(driver, migrator, prefix=prefix), clock=clock
        ),
        compactor=Compactor(
            reader,
            heads,
            log,
            kept,
            summaries,
            codec=codec,
            counter=counter,
            clock=clock,
            folder=folder,
            wait_seconds=compaction_seconds,
        ),
        kept=kept,
        rewinder=Rewinder(reader, heads, log, kept, known, codec=codec, clock=clock),
        annotator=annotator,
    )
