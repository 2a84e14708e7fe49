"""A batch on its way into the log: everything that can be worked out before the server is asked.

Layer 1. `prepare` encodes, counts and compresses once; `compose` adds what depends on the log before the batch
(ordinals, source ids, tool names, stubs, totals) and is done again after each collision with another writer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count as counting
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore.codec import (
    PART_MINIMUM,
    Codec,
    EncodedMessage,
    compress,
    cut,
    decode_message,
    digest_of,
    encode_message,
    fields_of,
    leave_out,
    with_stub,
)
from convstore.entries import Entry, EntryMessage, EntrySource, PayloadRef, Totals
from convstore.exceptions import SourceIdClashError, UnencodableError
from convstore.pairing import Call, calls_of
from convstore.policy import HistoryPolicy
from convstore.sources import FoundSources, find_sources, parse_json, write_ids
from convstore.stubs import RETRIEVAL_TOOL, failure_in, make_stub, text_of
from convstore.tokens import TokenCounter, count

__all__ = ["Batch", "Chunk", "Composed", "Prepared", "Split", "compose", "is_heavy", "prepare"]

_STUB_MIN_TOKENS = HistoryPolicy().stub_min_tokens
_SHORT = 2_000
"""A result of so few characters may be shorter than its stub; whether it is shows only with its ids."""
_MOST_OPEN_CALLS, _MOST_LATE_CALLS = 200, 20
_TITLE_CHARACTERS, _URL_CHARACTERS = 200, 500
_HEAVY = 200_000
_NO_SOURCES = FoundSources()
_USAGE_KEYS = ("input_tokens", "output_tokens", "total_tokens")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One compressed piece of a payload; `number` counts the chunks of the whole batch."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Split:
    """A message in body and payload."""

    encoded: EncodedMessage
    digest: bytes
    ends: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def ref(self, token: str) -> PayloadRef:
        """Where the payload is once its chunks are written under a token."""
        size = sum(len(chunk.data) for chunk in self.chunks)
        return PayloadRef(token, self.chunks[0].number, self.ends, self.digest, size)


@dataclass(frozen=True, slots=True)
class Prepared:
    """One message, encoded. At least one of `whole` and `split` is there; both while the stub may decide."""

    message: BaseMessage
    id: str
    digest: bytes
    tokens: int
    whole: EncodedMessage | None
    split: Split | None = None
    found: FoundSources = _NO_SOURCES
    text: str = ""
    error: str | None = None
    wants_stub: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages ready for the log.

    Attributes:
        ids: Their ids, in order.
        digests: What tells equal content from other content, in the same order.
        kept_source_ids: Numbers that tools gave their sources.
        omitted: Where values of unknown types were left out.
    """

    prepared: tuple[Prepared, ...]
    codec: Codec
    counter: TokenCounter
    omitted: tuple[str, ...] = ()

    @property
    def ids(self) -> list[str]:
        """Ids of the messages."""
        return [one.id for one in self.prepared]

    @property
    def digests(self) -> list[bytes]:
        """Digests of the messages."""
        return [one.digest for one in self.prepared]

    @property
    def kept_source_ids(self) -> list[int]:
        """Source ids that came with the results."""
        found = (source.kept_id for one in self.prepared for source in one.found.items)
        return [number for number in found if number is not None]

    def without(self, ids: Mapping[str, Any]) -> Batch:
        """The batch less the messages that are in the log already."""
        return replace(self, prepared=tuple(one for one in self.prepared if one.id not in ids))


@dataclass(frozen=True, slots=True)
class Composed:
    """An entry for one place in the log, and the chunks that it refers to."""

    entry: Entry
    chunks: tuple[Chunk, ...]


def prepare(messages: Sequence[BaseMessage], *, codec: Codec, counter: TokenCounter, omit: bool = False) -> Batch:
    """Encode, count and compress the messages of a batch; each has an id already.

    Raises:
        UnencodableError: A value of a type that the codec does not know, unless `omit`.
    """
    numbers = counting()
    omitted: list[str] = []
    prepared = []
    for index, message in enumerate(messages):
        places: list[str] | None = [] if omit else None
        try:
            prepared.append(_prepare(message, codec, counter, numbers, places))
        except UnencodableError as error:
            raise UnencodableError(error.problem, path=f"message {index}.{error.path}") from error.__cause__
        omitted.extend(dict.fromkeys(f"message {index}.{place}" for place in places or ()))
    return Batch(tuple(prepared), codec, counter, tuple(omitted))


def compose(batch: Batch, after: Totals, *, at: datetime, token: str, reserve: int = 0) -> Composed:
    """The entry that the batch makes behind a log with these totals.

    Ordinals go on, sources without a number get the next free ones in order, stubs name them; then `reserve` more
    numbers are set aside.

    Raises:
        SourceIdClashError: Two sources of the batch came with one number.
    """
    kept = Counter(batch.kept_source_ids)
    if clashes := [number for number, times in kept.items() if times > 1]:
        raise SourceIdClashError(min(clashes))
    state = _Running(after, max([after.sources_through, *kept]))
    made = [state.add(one, batch, token) for one in batch.prepared]
    state.sources_through += reserve
    entry = Entry(
        first=after.messages + 1,
        at=at,
        messages=tuple(message for message, _, _ in made),
        totals=state.totals(after, at, batch),
        sources=tuple(source for _, sources, _ in made for source in sources),
    )
    return Composed(entry, tuple(chunk for _, _, chunks in made for chunk in chunks))


def is_heavy(messages: Sequence[BaseMessage]) -> bool:
    """Whether encoding is long enough to leave the event loop for it; looks at no more than it needs to."""
    budget, seen = _HEAVY, 0
    todo: list[Any] = [message.__dict__ for message in messages]
    while todo and budget > 0 and seen < _HEAVY // 20:
        value = todo.pop()
        seen += 1
        if isinstance(value, str | bytes):
            budget -= len(value)
        elif isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, list | tuple):
            todo.extend(value[:_HEAVY])
        elif hasattr(value, "page_content"):
            todo.append(value.page_content)
    return bool(todo) or budget <= 0


class _OpenCalls:
    """Calls without a result, by which a result without a name is named; answered in the order of `pairing`."""

    def __init__(self, calls: Sequence[tuple[str, str]]) -> None:
        self._tools: dict[str, list[str]] = {}
        for id_, tool in calls:
            self._tools.setdefault(id_, []).append(tool)

    def begin_turn(self) -> None:
        """Drop what is hardly ever answered any more."""
        self._tools = dict(list(self._tools.items())[-_MOST_LATE_CALLS:])

    def open(self, calls: Sequence[Call]) -> None:
        for call in reversed(calls):
            self._tools.setdefault(call.id, []).append(call.tool)

    def answer(self, call_id: str) -> str:
        """The tool of the call that a result answers, "" if there is none."""
        tools = self._tools.get(call_id, [""])
        tool = tools.pop()
        if not tools:
            self._tools.pop(call_id, None)
        return tool

    def newest(self) -> tuple[tuple[str, str], ...]:
        calls = [(id_, tool) for id_, tools in self._tools.items() for tool in tools]
        return tuple(calls[-_MOST_OPEN_CALLS:])


class _Running:
    """What changes from message to message while an entry is composed."""

    def __init__(self, after: Totals, sources_through: int) -> None:
        self.ordinal = after.messages
        self.sources_through = sources_through
        self.calls = _OpenCalls(after.calls)
        self.turns = self.results = self.tokens = self.view_tokens = 0

    def add(self, one: Prepared, batch: Batch, token: str) -> tuple[EntryMessage, list[EntrySource], tuple[Chunk, ...]]:
        self.ordinal += 1
        calls = calls_of(one.message)
        tool = self._follow(one.message, calls)
        sources = self._number(one)
        ids = write_ids(source.id for source in sources)
        stub = _stub(one, tool, ids)
        split = one.split if one.split and (stub is not None or one.whole is None) else None
        encoded = split.encoded if split else one.whole
        assert encoded is not None  # noqa: S101 - Prepared holds one of them
        message = EntryMessage(
            ordinal=self.ordinal,
            id=one.id,
            type=one.message.type,
            body=encoded.body,
            digest=one.digest,
            tokens=one.tokens,
            view_tokens=_view_tokens(one, stub, split, batch),
            calls=len(calls),
            tool=tool,
            sources=ids,
            stub=stub,
            payload=split.ref(token) if split else None,
        )
        self.tokens += message.tokens
        self.view_tokens += message.view_tokens
        if split:
            sources = [replace(source, place=place) for source, place in _with_places(sources, encoded)]
        return message, sources, split.chunks if split else ()

    def totals(self, after: Totals, at: datetime, batch: Batch) -> Totals:
        usage = dict(after.usage)
        for one in batch.prepared:
            for key, number in _usage(one.message):
                usage[key] = usage.get(key, 0) + number
        return Totals(
            entries=after.entries + 1,
            messages=self.ordinal,
            turns=after.turns + self.turns,
            results=after.results + self.results,
            tokens=after.tokens + self.tokens,
            view_tokens=after.view_tokens + self.view_tokens,
            sources_through=self.sources_through,
            usage=usage,
            calls=self.calls.newest(),
            updated_at=at,
        )

    def _follow(self, message: BaseMessage, calls: Sequence[Call]) -> str:
        """Keep count of turns, results and open calls; gives the tool's name of a tool result."""
        if message.type == "human":
            self.turns += 1
            self.calls.begin_turn()
        self.calls.open(calls)
        if not isinstance(message, ToolMessage):
            return ""
        self.results += 1
        called = self.calls.answer(message.tool_call_id)
        return message.name or called

    def _number(self, one: Prepared) -> list[EntrySource]:
        numbered = []
        for source in one.found.items:
            number = source.kept_id
            if number is None:
                self.sources_through += 1
                number = self.sources_through
            title, url = source.title[:_TITLE_CHARACTERS], source.url[:_URL_CHARACTERS]
            numbered.append(EntrySource(number, one.id, title, url))
        return numbered


def _prepare(
    message: BaseMessage, codec: Codec, counter: TokenCounter, numbers: Iterator[int], omitted: list[str] | None
) -> Prepared:
    fields = fields_of(message)
    canonical = codec.encode(fields, omitted=omitted)
    # Encoded a second time, the same values are left out, from paths that begin at their part.
    again: list[str] | None = None if omitted is None else []
    one = Prepared(message, str(message.id), digest_of(canonical), count(counter, message), EncodedMessage(canonical))
    if isinstance(message, ToolMessage):
        one = _read_result(one, message)
    if one.wants_stub:
        encoded = encode_message(
            codec,
            fields,
            items=one.found.items,
            rebuild=one.found.rebuild,
            split_result=True,
            omitted=again,
        )
        return replace(one, whole=one.whole if len(canonical) < _SHORT else None, split=_split(encoded, numbers))
    # A system prompt is for every call of the model, so it stays in the entry, whole.
    if len(canonical) >= PART_MINIMUM and message.type != "system":
        encoded = encode_message(codec, fields, omitted=again)
        if encoded.payload:  # else it has only many small parts
            return replace(one, whole=None, split=_split(encoded, numbers))
    return one


def _read_result(one: Prepared, message: ToolMessage) -> Prepared:
    """What stubs and sources are made of."""
    text = text_of(message.content)
    parsed = parse_json(text) if isinstance(message.content, str) else None  # the JSON of blocks is ours
    found = _NO_SOURCES if message.name == RETRIEVAL_TOOL else find_sources(message, parsed)
    wants_stub = bool(found.items) or one.tokens > _STUB_MIN_TOKENS
    return replace(one, found=found, text=text, error=failure_in(message.status, text, parsed), wants_stub=wants_stub)


def _split(encoded: EncodedMessage, numbers: Iterator[int]) -> Split:
    ends = cut(encoded.payload)
    chunks = tuple(Chunk(next(numbers), data) for data in compress(encoded.payload, ends))
    return Split(encoded, digest_of(encoded.payload), tuple(ends), chunks)


def _stub(one: Prepared, tool: str, ids: str) -> str | None:
    """The stub of a result, None if the result is not longer than it."""
    if not one.wants_stub:
        return None
    stub = make_stub(
        tool=tool,
        tool_message_id=one.id,
        content=one.text,
        source_count=len(one.found.items),
        source_ids=ids,
        error=one.error,
    )
    in_artifact = one.found.items if one.found.rebuild else ()
    length = len(one.text) + sum(len(source.text) for source in in_artifact)
    return stub if one.whole is None or length > len(stub) else None


def _view_tokens(one: Prepared, stub: str | None, split: Split | None, batch: Batch) -> int:
    if split is None:
        return one.tokens
    shown = decode_message(batch.codec, split.encoded.body)
    return count(batch.counter, leave_out(shown) if stub is None else with_stub(shown, stub))


def _with_places(sources: list[EntrySource], encoded: EncodedMessage) -> Iterator[tuple[EntrySource, Any]]:
    places = encoded.places or (None,) * len(sources)
    return zip(sources, places, strict=True)


def _usage(message: BaseMessage) -> list[tuple[str, int]]:
    usage = message.usage_metadata if isinstance(message, AIMessage) else None
    if not isinstance(usage, dict):
        return []
    counts = ((key, usage.get(key)) for key in _USAGE_KEYS)
    # MongoDB holds no larger sums; the message itself keeps what the model said.
    return [(key, count) for key, count in counts if type(count) is int and count.bit_length() < 50]
