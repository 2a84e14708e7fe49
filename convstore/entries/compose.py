"""Makes the entry that a batch becomes behind a given log.

Layer 1. What depends on the log before the batch is added here, and again after each collision with another writer:
ordinals, numbers of sources, names of tools, stubs and running totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.codec import Codec, decode_message
from convstore.entries import Entry, EntryMessage, EntrySource, OpenCall, Preview, Totals, Usage
from convstore.entries.batch import Batch, Chunk, Prepared, Split
from convstore.entries.models import is_long
from convstore.exceptions import SourceIdClashError
from convstore.pairing import Call, calls_of
from convstore.scopes import id_problem
from convstore.shortening import with_stub
from convstore.sources import write_ids
from convstore.stubs import RETRIEVAL_TOOL, make_stub, text_of
from convstore.tokens import count

__all__ = [
    "MOST_AHEAD",
    "MOST_SHOWN",
    "Composed",
    "RunningTotals",
    "ShownSources",
    "compose",
    "totals_behind",
    "totals_through",
]

MOST_SHOWN = 200
"""A source remembers an earlier number if it was one of so many newest different ones."""

MOST_AHEAD = 1_000_000
"""A number further ahead than this is not kept; it would leave none for the sources that follow."""

_MOST_OPEN_CALLS, _MOST_LATE_CALLS = 200, 20
_MOST_MODELS, _OTHER_MODELS = 20, "other"
_TITLE_CHARACTERS, _URL_CHARACTERS = 200, 500
_ARGUMENT_CHARACTERS, _PREVIEW_CHARACTERS, _MODEL_CHARACTERS = 120, 120, 100
_TOOL_CHARACTERS, _CALL_ID_CHARACTERS = 200, 10_000  # some providers write a signature into the id
_USAGE_KEYS = ("input_tokens", "output_tokens", "total_tokens")
_MODEL_KEYS = ("model_name", "model", "model_id")


@dataclass(frozen=True, slots=True)
class Composed:
    """An entry for one place in the log, and the chunks that it refers to."""

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
    """The entry that the batch makes behind a log with these totals.

    Ordinals go on, sources without a number get the next free ones in order, stubs name them; then `reserve` more
    numbers are set aside.

    Args:
        batch: What is appended.
        after: The log before it; with `shown` if the batch has sources.
        at: When.
        token: Names the chunks of this append.
        link: Random number of the entry.
        reserve: How many source ids to set aside.
        taken: Numbers of other sources, for a batch whose sources may be renumbered.

    Raises:
        SourceIdClashError: Two sources of the batch came with one number.
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


def totals_through(before: Totals, messages: Sequence[EntryMessage], *, codec: Codec, at: datetime) -> Totals:
    """Return the totals in the middle of an entry, after the first of its messages.

    Args:
        before: What it held before the entry.
        messages: The first messages of the entry, as it holds them.
        codec: Decodes them.
        at: When the entry was appended.

    Raises:
        ValueError: A stored message is damaged.
    """
    return totals_behind(before, [(message, decode_message(codec, message.body)) for message in messages], at=at)


def totals_behind(before: Totals, messages: Iterable[tuple[EntryMessage, BaseMessage]], *, at: datetime) -> Totals:
    """Return the totals after some messages, each as stored and as appended; sources are not counted."""
    running = RunningTotals(before, before.sources_through)
    for message, appended in messages:
        running.add_size(message)
        running.follow(appended, calls_of(appended))
    return running.totals(at, shown_now=False)


class ShownSources:
    """The newest different sources: by digest of their text the lowest number they were shown under.

    Attributes:
        numbers: At most 200, the newest last.
    """

    def __init__(self, numbers: Mapping[bytes, int]) -> None:
        self.numbers = dict(numbers)

    def add(self, digest: bytes, number: int) -> int | None:
        """Take a source that is shown; gives the number that it was first shown under, if it was."""
        shown, earlier = self.numbers, self.numbers.pop(digest, None)
        shown[digest] = number if earlier is None else earlier
        for oldest in list(islice(shown, len(shown) - MOST_SHOWN)) if len(shown) > MOST_SHOWN else ():
            del shown[oldest]
        return earlier


class _OpenCalls:
    """Calls without a result, by which a result without a name is named; answered in the order of `pairing`."""

    def __init__(self, calls: Sequence[OpenCall]) -> None:
        self._calls: dict[str, list[OpenCall]] = {}
        for call in calls:
            self._calls.setdefault(call.id, []).append(call)

    def begin_turn(self) -> None:
        """Drop what is hardly ever answered any more."""
        self._calls = dict(list(self._calls.items())[-_MOST_LATE_CALLS:])

    def open(self, message: BaseMessage, calls: Sequence[Call]) -> None:
        for call in reversed(calls):
            if len(call.id) > _CALL_ID_CHARACTERS:
                continue  # every entry that follows would hold it
            opened = OpenCall(call.id, call.tool[:_TOOL_CHARACTERS], _arguments(message, call))
            self._calls.setdefault(call.id, []).append(opened)

    def answer(self, call_id: str) -> OpenCall:
        """The call that a result answers, an empty one if there is none."""
        calls = self._calls.get(call_id, [OpenCall(call_id, "", "")])
        call = calls.pop()
        if not calls:
            self._calls.pop(call_id, None)
        return call

    def newest(self) -> tuple[OpenCall, ...]:
        calls = [call for same_id in self._calls.values() for call in same_id]
        return tuple(calls[-_MOST_OPEN_CALLS:])


_NO_CALL = OpenCall("", "", "")


@dataclass(slots=True)
class RunningTotals:
    """A fold over messages: what the log holds after each of them.

    Attributes:
        after: The totals of the log before the first message.
        sources_through: Highest source id in use or reserved.
        shown: The newest different sources.
    """

    after: Totals
    sources_through: int
    shown: ShownSources = field(init=False)
    _calls: _OpenCalls = field(init=False)
    _usage: dict[str, Usage] = field(init=False)
    _preview: Preview | None = field(init=False)
    _messages: int = 0
    _turns: int = 0
    _results: int = 0
    _tokens: int = 0
    _view_tokens: int = 0

    def __post_init__(self) -> None:
        self.shown = ShownSources(self.after.shown or {})
        self._calls = _OpenCalls(self.after.calls)
        self._usage = dict(self.after.usage)
        self._preview = self.after.preview

    @property
    def next_ordinal(self) -> int:
        """Ordinal of the next message."""
        return self.after.messages + self._messages + 1

    def add_size(self, message: EntryMessage) -> None:
        """Count a stored message and its tokens."""
        self._messages += 1
        self._tokens += message.tokens
        self._view_tokens += message.view_tokens

    def totals(self, at: datetime, *, shown_now: bool) -> Totals:
        """Return the totals of an entry that ends here."""
        after, entries = self.after, self.after.entries + 1
        return Totals(
            entries=entries,
            messages=after.messages + self._messages,
            live=after.live + self._messages,
            turns=after.turns + self._turns,
            results=after.results + self._results,
            tokens=after.tokens + self._tokens,
            view_tokens=after.view_tokens + self._view_tokens,
            counter=after.counter,
            marker=after.marker,
            sources_through=self.sources_through,
            usage=self._usage,
            calls=self._calls.newest(),
            preview=self._preview,
            shown_at=entries if shown_now else after.shown_at,
            shown=self.shown.numbers if shown_now else after.shown,
            updated_at=at,
        )

    def follow(self, message: BaseMessage, calls: Sequence[Call]) -> OpenCall:
        """Count turns, results, usage and open calls; return the call that a tool result answers."""
        if message.type == "human":
            self._turns += 1
            self._calls.begin_turn()
        self._calls.open(message, calls)
        self._use(message)
        if message.type in ("human", "ai") and (text := _own_text(message)):
            self._preview = Preview(message.type, text)
        if not isinstance(message, ToolMessage):
            return _NO_CALL
        self._results += 1
        return self._calls.answer(message.tool_call_id)

    def _use(self, message: BaseMessage) -> None:
        counts = message.usage_metadata if isinstance(message, AIMessage) else None
        if not isinstance(counts, dict) or not counts:
            return
        model = _model(message)
        if model not in self._usage and len(self._usage) >= _MOST_MODELS:
            model = _OTHER_MODELS
        numbers = (counts.get(key) for key in _USAGE_KEYS)
        # MongoDB holds no larger sums; the message itself keeps what the model said.
        added = [number if type(number) is int and number.bit_length() < 50 else 0 for number in numbers]
        before = self._usage.get(model, (0, 0, 0))
        self._usage[model] = (before[0] + added[0], before[1] + added[1], before[2] + added[2])


@dataclass(slots=True)
class _Composition:
    """The messages and sources of an entry, made one after the other."""

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
        """The number of a source, and the one it came with if that was taken."""
        given, running = kept, self.running
        if kept is None or kept in self.taken or kept > running.after.sources_through + MOST_AHEAD:
            running.sources_through += 1
            kept = running.sources_through
        self.taken.add(kept)
        return kept, given if given != kept else None

    def _sources(
        self, one: Prepared, numbers: Sequence[tuple[int, int | None]], split: Split | None
    ) -> list[EntrySource]:
        pieces = [("", place) for place in split.encoded.places] if split else one.pieces
        made = []
        for source, (number, given), (piece, place), digest in zip(
            one.found.items, numbers, pieces, one.digests, strict=True
        ):
            title, url = source.title[:_TITLE_CHARACTERS], source.url[:_URL_CHARACTERS]
            earlier = self.running.shown.add(digest, number)
            bare, held = not source.says_more, one.found.rebuild is None
            made.append(EntrySource(number, one.id, title, url, place, piece, given, earlier, bare, held))
        return made


def _stub(one: Prepared, tool: str, ids: str, *, count: int) -> str | None:
    """The stub of a result with so many sources, None if the result is not longer than it."""
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


def _arguments(message: BaseMessage, call: Call) -> str:
    """The beginning of the arguments of a call as JSON, "" if they are not in the message's list of calls."""
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    return text_of(calls[call.position]["args"])[:_ARGUMENT_CHARACTERS] if call.position < len(calls) else ""


def _own_text(message: BaseMessage) -> str:
    """The beginning of what a message says, in one line."""
    content = message.content
    blocks = [content] if isinstance(content, str) else content if isinstance(content, list) else []
    texts = (block.get("text") if isinstance(block, dict) else block for block in blocks)
    return " ".join(" ".join(text[: 2 * _PREVIEW_CHARACTERS] for text in texts if isinstance(text, str)).split())[
        :_PREVIEW_CHARACTERS
    ]


def _model(message: BaseMessage) -> str:
    said = message.response_metadata if isinstance(message.response_metadata, dict) else {}
    names = (said.get(key) for key in _MODEL_KEYS)
    return next((name[:_MODEL_CHARACTERS] for name in names if isinstance(name, str) and name), "unknown")
