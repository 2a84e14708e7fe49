"""Compose the entry that appends a prepared batch to a log with given totals.

Floor 4; `pending` calls it, and calls it again after each collision with another writer. It adds everything that
depends on the log so far: ordinals, numbers of sources, names of tools, stubs and running totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from langchain_core.messages import ToolMessage

from convstore.append.batch import Batch, Prepared, Split
from convstore.exceptions import SourceIdClashError
from convstore.log.entry import Entry, EntryMessage, EntrySource, Totals, is_long
from convstore.log.totals import RunningTotals
from convstore.messages.compression import Chunk
from convstore.messages.encoding import decode_message
from convstore.messages.tokens import count
from convstore.messages.tool_calls import calls_of
from convstore.sources.shortening import with_stub
from convstore.sources.source import write_ids
from convstore.sources.stub import RETRIEVAL_TOOL, make_stub
from convstore.values.scope import id_problem

__all__ = ["MOST_AHEAD", "Composed", "compose"]

MOST_AHEAD = 1_000_000
"""A source number that exceeds the highest one by more than this is replaced, as it would exhaust later numbers."""

_TITLE_CHARACTERS, _URL_CHARACTERS = 200, 500


@dataclass(frozen=True, slots=True)
class Composed:
    """An entry for one position in the log, and the chunks that it refers to."""

    entry: Entry
    chunks: tuple[Chunk, ...]


def compose(
    batch: Batch,
    after: Totals,
    *,
    at: datetime,
    token: str,
    link: int = 0,
    reserve: int = 0,
    taken: frozenset[int] = frozenset(),
) -> Composed:
    """Compose the entry that appends a batch to a log with these totals.

    Ordinals continue the log's. Sources without a number get the next free ones, which their stubs name. Then `reserve`
    more numbers are reserved.

    Args:
        batch: The messages to append.
        after: Totals of the log before it; with `shown` if the batch has sources.
        at: Date of the entry.
        token: Token in the keys of this append's chunks.
        link: Random number of the entry.
        reserve: Number of source ids to reserve.
        taken: Numbers in use, for a batch whose sources may be renumbered.

    Raises:
        SourceIdClashError: Two sources of the batch have the same number.
    """
    kept = Counter(number for number in batch.kept_source_ids if number <= after.sources_through + MOST_AHEAD)
    clashes = [number for number, times in kept.items() if times > 1]
    if clashes and not batch.renumber:
        raise SourceIdClashError(min(clashes))
    running = RunningTotals(after, max([after.sources_through, *kept]))
    work = _Composition(running, set(taken))
    made = [work.add(one, batch, token) for one in batch.prepared]
    running.sources_through += reserve
    sources = tuple(source for _, found, _ in made for source in found)
    entry = Entry(
        first=after.messages + 1,
        at=at,
        messages=tuple(message for message, _, _ in made),
        totals=replace(running.totals(at, shown_now=bool(sources)), counter=batch.counter.name, link=link),
        after=after.link,
        sources=sources,
    )
    return Composed(entry, tuple(chunk for _, _, chunks in made for chunk in chunks))


@dataclass(slots=True)
class _Composition:
    """Builds the messages and sources of an entry, one after the other."""

    running: RunningTotals
    taken: set[int]

    def add(self, one: Prepared, batch: Batch, token: str) -> tuple[EntryMessage, list[EntrySource], tuple[Chunk, ...]]:
        calls = calls_of(one.message)
        call = self.running.follow(one.message, calls)
        numbers = [self._number(source.kept_id) for source in one.found.items]
        tool = (one.message.name or call.tool) if isinstance(one.message, ToolMessage) else ""
        named = one.read_back if tool == RETRIEVAL_TOOL else [number for number, _ in numbers]
        ids = write_ids(named)
        stub = _stub(one, tool, ids, count=len(set(named)))
        split = one.split if one.split and (stub is not None or one.whole is None) else None
        encoded = split.encoded if split else one.whole
        assert encoded is not None  # noqa: S101 - Prepared holds one of them
        message = EntryMessage(
            ordinal=self.running.next_ordinal,
            id=one.id,
            type=one.message.type,
            body=encoded.body,
            digest=one.digest,
            tokens=one.tokens,
            view_tokens=_view_tokens(one, stub, split, batch),
            content_digest=one.content,
            calls=len(calls),
            tool=tool,
            call="" if id_problem(call.id) else call.id,
            arguments=call.arguments,
            sources=ids,
            stub=stub,
            payload=split.ref(token) if split else None,
            is_long=is_long(one.message.type, one.view_tokens),
        )
        self.running.add_size(message)
        return message, self._sources(one, numbers, split), split.chunks if split else ()

    def _number(self, kept: int | None) -> tuple[int, int | None]:
        """Return the number of a source, and the original one if that was taken."""
        given, running = kept, self.running
        if kept is None or kept in self.taken or kept > running.after.sources_through + MOST_AHEAD:
            running.sources_through += 1
            kept = running.sources_through
        self.taken.add(kept)
        return kept, given if given != kept else None

    def _sources(
        self, one: Prepared, numbers: Sequence[tuple[int, int | None]], split: Split | None
    ) -> list[EntrySource]:
        pieces = [("", span) for span in split.encoded.places] if split else one.pieces
        made = []
        for source, (number, given), (piece, span), digest in zip(
            one.found.items, numbers, pieces, one.digests, strict=True
        ):
            title, url = source.title[:_TITLE_CHARACTERS], source.url[:_URL_CHARACTERS]
            earlier = self.running.shown.add(digest, number)
            bare, held = not source.says_more, one.found.rebuild is None
            made.append(EntrySource(number, one.id, title, url, span, piece, given, earlier, bare, held))
        return made


def _stub(one: Prepared, tool: str, ids: str, *, count: int) -> str | None:
    """Return the stub of a result with `count` sources, or None if the result is not longer than its stub."""
    if not one.wants_stub:
        return None
    stub = make_stub(
        tool=tool,
        tool_message_id=one.id,
        content=one.text,
        source_count=count,
        source_ids=ids,
        error=one.error,
    )
    in_artifact = one.found.items if one.found.rebuild else ()
    length = len(one.text) + sum(len(source.text) for source in in_artifact)
    return stub if one.whole is None or length > len(stub) else None


def _view_tokens(one: Prepared, stub: str | None, split: Split | None, batch: Batch) -> int:
    if split is None or stub is None:
        return one.view_tokens
    return count(batch.counter, with_stub(decode_message(batch.codec, split.encoded.body), stub))
