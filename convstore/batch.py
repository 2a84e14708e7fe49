"""A batch on its way into the log: everything that can be worked out before the server is asked.

Layer 1. `prepare` encodes, counts and compresses once; `compose` adds what depends on the log before the batch
(ordinals, source ids, tool names, stubs, totals) and is done again after each collision with another writer.
"""

from __future__ import annotations

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
)
from convstore.entries import Entry, EntryMessage, EntrySource, PayloadRef, Totals
from convstore.exceptions import SourceIdClashError, UnencodableError
from convstore.pairing import calls_of
from convstore.policy import HistoryPolicy
from convstore.sources import FoundSources, find_sources, parse_json, write_ids
from convstore.stubs import RETRIEVAL_TOOL, failure_in, make_stub, text_of
from convstore.tokens import TokenCounter, count

__all__ = ["Batch", "Chunk", "Composed", "Prepared", "Split", "compose", "is_heavy", "prepare"]

_STUB_MIN_TOKENS = HistoryPolicy().stub_min_tokens
_SHORT = 2_000
"""A result of so few characters may be shorter than its stub; whether it is shows only with its ids."""
_MOST_OPEN_CALLS = 200
_TITLE_CHARACTERS, _URL_CHARACTERS = 200, 500
_HEAVY = 200_000
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
    split: Split | None
    found: FoundSources = FoundSources()
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


def compose(batch: Batch, after: Totals, *, at: datetime, token: str) -> Composed:
    """The entry that the batch makes behind a log with these totals.

    Ordinals go on, sources without a number get the next free ones in order, stubs name them.

    Raises:
        SourceIdClashError: Two sources of the batch came with one number.
    """
    kept = batch.kept_source_ids
    if clashes := sorted({number for number in kept if kept.count(number) > 1} if len(kept) < 2_000 else ()):
        raise SourceIdClashError(clashes[0])
    state = _Running(after, max([after.sources_through, *kept]), dict(after.calls))
    made = [state.add(one, batch, token) for one in batch.prepared]
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


class _Running:
    """What changes from message to message while an entry is composed."""

    def __init__(self, after: Totals, sources_through: int, calls: dict[str, str]) -> None:
        self.ordinal = after.messages
        self.sources_through = sources_through
        self.calls = calls
        self.turns = self.results = self.tokens = self.view_tokens = 0

    def add(
        self, one: Prepared, batch: Batch, token: str
    ) -> tuple[EntryMessage, list[EntrySource], tuple[Chunk, ...]]:
        self.ordinal += 1
        calls = calls_of(one.message)
        tool = self._follow(one.message, [(call.id, call.tool) for call in calls])
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
            calls=tuple(self.calls.items())[-_MOST_OPEN_CALLS:],
            updated_at=at,
        )

    def _follow(self, message: BaseMessage, calls: list[tuple[str, str]]) -> str:
        """Keep count of turns and open calls; gives the tool's name of a tool result."""
        if message.type == "human":
            self.turns += 1
            self.calls.clear()
        self.calls.update(calls)
        if not isinstance(message, ToolMessage):
            return ""
        self.results += 1
        return message.name or self.calls.get(message.tool_call_id, "")

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
    tokens = count(counter, message)
    known = {"message": message, "id": str(message.id), "digest": digest_of(canonical), "tokens": tokens}
    if not isinstance(message, ToolMessage):
        if len(canonical) < PART_MINIMUM:
            return Prepared(**known, whole=EncodedMessage(canonical), split=None)
        return Prepared(**known, **_large(canonical, encode_message(codec, fields, omitted=omitted), numbers))
    text = text_of(message.content)
    parsed = parse_json(text)
    found = FoundSources() if message.name == RETRIEVAL_TOOL else find_sources(message, parsed)
    known |= {"found": found, "text": text, "error": failure_in(message.status, text, parsed)}
    if not found.items and tokens <= _STUB_MIN_TOKENS:
        if len(canonical) < PART_MINIMUM:
            return Prepared(**known, whole=EncodedMessage(canonical), split=None)
        return Prepared(**known, **_large(canonical, encode_message(codec, fields, omitted=omitted), numbers))
    encoded = encode_message(
        codec,
        fields,
        items=found.items if found.rebuild else (),
        rebuild=found.rebuild,
        split_result=True,
        omitted=omitted,
    )
    whole = EncodedMessage(canonical) if len(canonical) < _SHORT else None
    return Prepared(**known, whole=whole, split=_split(encoded, numbers), wants_stub=True)


def _large(canonical: str, encoded: EncodedMessage, numbers: Iterator[int]) -> dict[str, Any]:
    """A large message: split if it has large parts, whole if it has only many small ones."""
    if encoded.payload:
        return {"whole": None, "split": _split(encoded, numbers)}
    return {"whole": EncodedMessage(canonical), "split": None}


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
    if stub is not None:
        message = one.message
        assert isinstance(message, ToolMessage)  # noqa: S101 - only results have stubs
        short = ToolMessage(stub, tool_call_id=message.tool_call_id, name=message.name, id=one.id)
        return count(batch.counter, short)
    if split is not None:
        return count(batch.counter, leave_out(decode_message(batch.codec, split.encoded.body)))
    return one.tokens


def _with_places(sources: list[EntrySource], encoded: EncodedMessage) -> Iterator[tuple[EntrySource, Any]]:
    places = encoded.places or (None,) * len(sources)
    return zip(sources, places, strict=True)


def _usage(message: BaseMessage) -> list[tuple[str, int]]:
    usage = message.usage_metadata if isinstance(message, AIMessage) else None
    if not isinstance(usage, dict):
        return []
    return [(key, usage[key]) for key in _USAGE_KEYS if type(usage.get(key)) is int]  # type: ignore[literal-required]
