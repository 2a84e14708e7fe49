"""Prepare a batch: encode, count and compress its messages before the log is read.

Floor 4; `writer` calls it. `prepare` runs once, even if the writer then retries at other entry numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count as counting
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.exceptions import UnencodableError
from convstore.log.comparison import content_digest
from convstore.log.entry import PayloadRef
from convstore.log.stored_message import BODY_DIGEST_BYTES
from convstore.messages.compression import Chunk, compress, cut
from convstore.messages.encoding import (
    PART_MINIMUM,
    EncodedMessage,
    SourcePlace,
    decode_message,
    digest_of,
    encode_message,
    encode_source,
    fields_of,
)
from convstore.messages.text import text_of
from convstore.messages.tokens import NamedCounter, count
from convstore.messages.values import Codec
from convstore.sources.detection import SourceExtractor, extract_sources, parse_json, read_back_ids
from convstore.sources.shortening import SHORTENED, leave_out, without_media
from convstore.sources.source import FoundSources
from convstore.sources.stub import RETRIEVAL_TOOL, failure_in
from convstore.values.policy import HistoryPolicy

__all__ = ["Batch", "Prepared", "Split", "is_heavy", "prepare"]

_STUB_MIN_TOKENS = HistoryPolicy().stub_min_tokens
_SHORT = 2_000
"""A shorter result, in characters, may be shorter than its stub; this is known only once its source ids are."""
_HEAVY = 200_000
_PER_MESSAGE = 500
"""Cost of a message in addition to its text, in characters."""
_MAXIMUM_EDGES = 100_000
_NO_SOURCES = FoundSources()
_NO_EXTRACTORS: Mapping[str, SourceExtractor] = {}


@dataclass(frozen=True, slots=True)
class Split:
    """A message split into body and payload."""

    encoded: EncodedMessage
    digest: bytes
    ends: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def ref(self, token: str) -> PayloadRef:
        """Return the reference to the payload once its chunks are written under a token."""
        size = sum(len(chunk.data) for chunk in self.chunks)
        body = digest_of(self.encoded.body)[:BODY_DIGEST_BYTES]
        shown, part = self.encoded.shown, b""
        if 0 < shown < len(self.encoded.payload):
            part = digest_of(self.encoded.payload[:shown])[:BODY_DIGEST_BYTES]
        return PayloadRef(
            token, self.chunks[0].number, self.ends, self.digest, size, body, shown, part, self.encoded.is_edged
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """One message, encoded.

    Attributes:
        message: The message itself.
        id: Its id.
        digest: Digest of its whole encoding.
        content: Its content digest.
        tokens: Its size in full.
        view_tokens: Its size in the default view of a finished turn, unless that shows its stub.
        whole: The encoding with everything in the body; None if it is too large for that.
        split: Body and payload; None without a payload. Both are set while the length of the stub has to decide.
        found: The sources of a tool result.
        digests: Digests of their texts.
        read_back: Numbers of older sources that a page of ``retrieve_previous_sources`` shows.
        pieces: The sources as they are stored along with `whole`.
        text: The text of a tool result.
        error: The error message of a failed result, None if it succeeded.
        wants_stub: The result gets a stub, unless that is longer than the result.
    """

    message: BaseMessage
    id: str
    digest: bytes
    content: bytes
    tokens: int
    view_tokens: int
    whole: EncodedMessage | None
    split: Split | None = None
    found: FoundSources = _NO_SOURCES
    digests: tuple[bytes, ...] = ()
    read_back: tuple[int, ...] = ()
    pieces: tuple[tuple[str, SourcePlace], ...] = ()
    text: str = ""
    error: str | None = None
    wants_stub: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages ready for the log.

    Attributes:
        prepared: The messages, in order.
        codec: Encoded them.
        counter: Counted their tokens.
        omitted: Paths of values of unknown types that were left out.
        renumber: Give sources another number if theirs is taken.
    """

    prepared: tuple[Prepared, ...]
    codec: Codec
    counter: NamedCounter
    omitted: tuple[str, ...] = ()
    renumber: bool = False

    @property
    def ids(self) -> list[str]:
        """Return the ids of the messages."""
        return [one.id for one in self.prepared]

    @property
    def digests(self) -> list[bytes]:
        """Return the digests of the messages."""
        return [one.digest for one in self.prepared]

    @property
    def characters(self) -> int:
        """Estimate the text in the entry, for `run_in_thread_if_long`."""
        encoded = (one.split.encoded if one.split else one.whole for one in self.prepared)
        return sum(_PER_MESSAGE + len(one.body) for one in encoded if one)

    @property
    def kept_source_ids(self) -> list[int]:
        """Return the source ids that came with the results."""
        found = (source.kept_id for one in self.prepared for source in one.found.items)
        return [number for number in found if number is not None]

    def without(self, ids: Mapping[str, Any]) -> Batch:
        """Return the batch without the messages that are in the log already."""
        return replace(self, prepared=tuple(one for one in self.prepared if one.id not in ids))


def prepare(
    messages: Sequence[BaseMessage],
    *,
    codec: Codec,
    counter: NamedCounter,
    extractors: Mapping[str, SourceExtractor] = _NO_EXTRACTORS,
    omit: bool = False,
    renumber: bool = False,
) -> Batch:
    """Encode, count and compress the messages of a batch; each has an id already.

    Args:
        messages: In order.
        codec: Encodes values.
        counter: Counts tokens.
        extractors: Functions that find the sources in a tool's results, by tool name.
        omit: Leave out values of unknown types instead of refusing them.
        renumber: Give sources another number if theirs is taken.

    Raises:
        InvalidInputError: An extractor failed.
        UnencodableError: The codec cannot encode the type of a value, unless `omit`.
    """
    work = _Preparation(codec, counter, extractors)
    omitted: list[str] = []
    prepared = []
    for index, message in enumerate(messages):
        paths: list[str] | None = [] if omit else None
        try:
            prepared.append(work.prepare(message, paths))
        except UnencodableError as error:
            raise UnencodableError(error.problem, path=f"message {index}.{error.path}") from error.__cause__
        omitted.extend(dict.fromkeys(f"message {index}.{path}" for path in paths or ()))
    return Batch(tuple(prepared), codec, counter, tuple(omitted), renumber)


def is_heavy(messages: Sequence[BaseMessage]) -> bool:
    """Return True if encoding should run in a thread; stops looking as soon as that is clear."""
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


@dataclass(slots=True)
class _Preparation:
    """Prepares the messages of one batch; `numbers` counts the chunks of all of them.

    `edges_left` limits the characters that bodies keep of the texts in payloads, which bounds the size of the entry.
    """

    codec: Codec
    counter: NamedCounter
    extractors: Mapping[str, SourceExtractor]
    numbers: Iterator[int] = field(default_factory=counting)
    edges_left: int = _MAXIMUM_EDGES

    def prepare(self, message: BaseMessage, omitted: list[str] | None) -> Prepared:
        """Prepare one message; paths of values that were left out are added to `omitted`."""
        fields = fields_of(message)
        canonical = self.codec.encode(fields, omitted=omitted)
        # The second encoding leaves out the same values, but under paths that begin at their part.
        again: list[str] | None = None if omitted is None else []
        tokens = count(self.counter, message)
        content, whole = content_digest(message, self.codec), EncodedMessage(canonical)
        one = Prepared(message, str(message.id), digest_of(canonical), content, tokens, tokens, whole)
        if isinstance(message, ToolMessage):
            one = self._read_result(one, message)
        if one.wants_stub:
            return self._split_result(one, fields, again, is_short=len(canonical) < _SHORT)
        # Every model call needs the system prompt, so it stays whole in the entry.
        if len(canonical) >= PART_MINIMUM and message.type != "system":
            edges = self.edges_left if message.type in SHORTENED else 0
            encoded = encode_message(self.codec, fields, omitted=again, max_edges=edges)
            if encoded.payload:  # else it has only many small parts
                self.edges_left -= encoded.edges
                one = replace(one, whole=None, split=self._split(encoded))
        return replace(one, view_tokens=self._view_tokens(one))

    def _view_tokens(self, one: Prepared) -> int:
        shown = one.message
        if one.split and one.split.encoded.shown < len(one.split.encoded.payload):
            encoded = one.split.encoded
            payload = encoded.payload[: encoded.shown]
            part = decode_message(
                self.codec, encoded.body, fetch=lambda start, end: payload[start:end], limit=len(payload)
            )
            shown = leave_out(part)
        shown = without_media(shown)
        return one.tokens if shown is one.message else count(self.counter, shown)

    def _read_result(self, one: Prepared, message: ToolMessage) -> Prepared:
        """Add the sources of a tool result and the facts for its stub."""
        text = text_of(message.content)
        parsed = parse_json(text) if isinstance(message.content, str) else None  # the JSON of blocks is ours
        is_own = message.name == RETRIEVAL_TOOL
        found = _NO_SOURCES if is_own else extract_sources(message, parsed, self.extractors)
        # A result without a name gets that of its call, which is found only when the entry is composed.
        read_back = read_back_ids(message) if is_own or not message.name else ()
        return replace(
            one,
            found=found,
            read_back=read_back,
            digests=tuple(source.digest(self.codec) for source in found.items),
            text=text,
            error=failure_in(message.status, text, parsed),
            wants_stub=bool(found.items or (is_own and read_back)) or one.tokens > _STUB_MIN_TOKENS,
        )

    def _split_result(
        self, one: Prepared, fields: dict[str, Any], omitted: list[str] | None, *, is_short: bool
    ) -> Prepared:
        items, rebuild = one.found.items, one.found.rebuild
        encoded = encode_message(self.codec, fields, items=items, rebuild=rebuild, split_result=True, omitted=omitted)
        one = replace(one, split=self._split(encoded))
        if not is_short:
            return replace(one, whole=None)
        return replace(one, pieces=tuple(encode_source(self.codec, item, omitted=omitted) for item in items))

    def _split(self, encoded: EncodedMessage) -> Split:
        shown, payload = encoded.shown, encoded.payload
        ends = cut(payload[:shown]) if shown else []
        if shown < len(payload) or not payload:
            ends += [shown + end for end in cut(payload[shown:])]
        chunks = tuple(Chunk(next(self.numbers), data) for data in compress(encoded.payload, ends))
        return Split(encoded, digest_of(encoded.payload), tuple(ends), chunks)
