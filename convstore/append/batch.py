"""Prepare a batch: encode, count and compress its messages before the log is read.

`prepare` runs once, even if the writer then retries at other entry numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count as counting
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.exceptions import UnencodableError
from convstore.log.comparison import content_digest
from convstore.log.entry import PayloadRef
from convstore.messages.compression import Chunk, compress, cut
from convstore.messages.encoding import EncodedMessage, decode_message, digest_of, encode_message, fields_of
from convstore.messages.text import text_of
from convstore.messages.tokens import NamedCounter, count
from convstore.messages.values import Codec
from convstore.sources.detection import SourceExtractor, extract_sources, read_back_ids
from convstore.sources.places import Located, SourcePlace, located_json, place_sources
from convstore.sources.shortening import SHORTENED, leave_out, without_media
from convstore.sources.source import FoundSource, FoundSources, says_more
from convstore.sources.stub import RETRIEVAL_TOOL, failure_in
from convstore.values.policy import HistoryPolicy

_STUB_MIN_TOKENS = HistoryPolicy().stub_min_tokens
_TITLE_CHARACTERS, _URL_CHARACTERS = 200, 500
_MAXIMUM_EDGES = 100_000
_NO_SOURCES = FoundSources()
_NO_EXTRACTORS: Mapping[str, SourceExtractor] = {}


class PreparedSource(NamedTuple):
    """A source of a tool result, without its number.

    Attributes:
        kept: The number that the tool gave it.
        title: The beginning of its title.
        url: The beginning of its address.
        digest: Digest of its text.
        is_plain: True if its item holds only its text, and title and address as shown in one line.
        place: Its place in the payload, or in `piece`.
        piece: The text that holds it, if the payload does not.
    """

    kept: int | None
    title: str
    url: str
    digest: bytes
    is_plain: bool
    place: SourcePlace
    piece: str


class Prepared(NamedTuple):
    """One message, encoded.

    Attributes:
        message: The message itself.
        id: Its id.
        body: Its encoded fields.
        digest: Digest of the body, without edges.
        content_digest: Its content digest, see `log.comparison`.
        tokens: Its size in full.
        view_tokens: Its size in the default view of a finished turn, unless that shows its stub.
        payload: The parts outside the body; "" for none.
        ref: Location of the payload, None for none.
        chunks: The compressed payload.
        sources: The sources of a tool result.
        read_back: Numbers of older sources that a page of ``retrieve_previous_sources`` shows.
        text: The text of a tool result that gets a stub.
        length: Length of that text, and of those that only the artifact has.
        error: The error message of a failed result, None if it succeeded.
        wants_stub: The result gets a stub, unless the result is not large, and not longer than its stub.
        is_large: The payload holds its content, or the artifact that its sources are in.
        has_large_fields: The payload holds other fields than content and artifact.
        seen: Stamp of the view that it answers, "" for none.
    """

    message: BaseMessage
    id: str
    body: str
    digest: bytes
    content_digest: bytes
    tokens: int
    view_tokens: int
    payload: str = ""
    ref: PayloadRef | None = None
    chunks: tuple[Chunk, ...] = ()
    sources: tuple[PreparedSource, ...] = ()
    read_back: tuple[int, ...] = ()
    text: str = ""
    length: int = 0
    error: str | None = None
    wants_stub: bool = False
    is_large: bool = False
    has_large_fields: bool = False
    seen: str = ""

    @property
    def identity(self) -> bytes:
        """The digests of body and payload, as `EntryMessage.identity`."""
        return self.digest + (self.ref.digest if self.ref else b"")


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages ready for the log.

    Attributes:
        prepared: The messages, in order.
        codec: Encoded them.
        counter: Counted their tokens.
        token: Random token in the keys of the chunks.
        omitted: Paths of values of unknown types that were left out.
        renumber: Give sources another number if theirs is taken.
    """

    prepared: tuple[Prepared, ...]
    codec: Codec
    counter: NamedCounter
    token: str = ""
    omitted: tuple[str, ...] = ()
    renumber: bool = False

    @property
    def ids(self) -> list[str]:
        """Return the ids of the messages."""
        return [one.id for one in self.prepared]

    @property
    def kept_source_ids(self) -> list[int]:
        """Return the source ids that came with the results."""
        return [source.kept for one in self.prepared for source in one.sources if source.kept is not None]

    def without(self, ids: Mapping[str, Any]) -> Batch:
        """Return the batch without the messages that are in the log already."""
        return replace(self, prepared=tuple(one for one in self.prepared if one.id not in ids))


def prepare(
    messages: Sequence[BaseMessage],
    *,
    codec: Codec,
    counter: NamedCounter,
    token: str = "",
    extractors: Mapping[str, SourceExtractor] = _NO_EXTRACTORS,
    omit: bool = False,
    renumber: bool = False,
    seen: str = "",
) -> Batch:
    """Encode, count and compress the messages of a batch; each has an id already.

    Raises:
        InvalidInputError: An extractor failed.
        UnencodableError: The codec cannot encode the type of a value, unless `omit`.
    """
    work = _Preparation(codec, counter, token, extractors)
    omitted: list[str] = []
    prepared = []
    for index, message in enumerate(messages):
        paths: list[str] | None = [] if omit else None
        try:
            prepared.append(work.prepare(message, paths))
        except UnencodableError as error:
            raise UnencodableError(error.problem, path=f"message {index}.{error.path}") from error.__cause__
        omitted.extend(dict.fromkeys(f"message {index}.{path}" for path in paths or ()))
    answer = next((index for index, one in enumerate(prepared) if seen and one.message.type == "ai"), None)
    if answer is not None:
        prepared[answer] = prepared[answer]._replace(seen=seen)
    return Batch(tuple(prepared), codec, counter, token, tuple(omitted), renumber)


@dataclass(slots=True)
class _Preparation:
    """Prepares the messages of one batch; `numbers` counts the chunks of all of them.

    `edges_left` limits the characters that bodies keep of the texts in payloads, which bounds the size of the entry.
    """

    codec: Codec
    counter: NamedCounter
    token: str
    extractors: Mapping[str, SourceExtractor]
    numbers: Iterator[int] = field(default_factory=counting)
    edges_left: int = _MAXIMUM_EDGES

    def prepare(self, message: BaseMessage, omitted: list[str] | None) -> Prepared:
        """Prepare one message; paths of values that were left out are added to `omitted`."""
        fields = fields_of(message)
        left_out: list[str] | None = None if omitted is None else []
        try:
            if isinstance(message, ToolMessage):
                one = self._result(message, fields, left_out)
            else:
                one = self._message(message, fields, left_out)
        except UnencodableError:
            self.codec.encode(fields)  # raises the error with the path from the message on
            raise
        if left_out:
            self.codec.encode(fields, omitted=omitted)
        return one

    def _message(self, message: BaseMessage, fields: dict[str, Any], omitted: list[str] | None) -> Prepared:
        edges = self.edges_left if message.type in SHORTENED else 0
        encoded = encode_message(self.codec, fields, omitted=omitted, max_edges=edges)
        plain = encoded
        if encoded.edges:
            self.edges_left -= encoded.edges
            plain = encode_message(self.codec, fields, omitted=omitted)
        tokens = count(self.counter, message)
        ref, chunks = self._stored(encoded, encoded.payload)
        return Prepared(
            message=message,
            id=str(message.id),
            body=encoded.body,
            digest=digest_of(plain.body),
            content_digest=content_digest(message, self.codec),
            tokens=tokens,
            view_tokens=self._view_tokens(message, encoded, tokens),
            payload=encoded.payload,
            ref=ref,
            chunks=chunks,
        )

    def _result(self, message: ToolMessage, fields: dict[str, Any], omitted: list[str] | None) -> Prepared:
        """Prepare a tool result with its sources and the facts for its stub."""
        content, is_own = message.content, message.name == RETRIEVAL_TOOL
        text = text_of(content)
        parsed, spans = located_json(text) if isinstance(content, str) else (None, [])  # the JSON of blocks is ours
        found = _NO_SOURCES if is_own else extract_sources(message, parsed, self.extractors)
        # A result without a name gets that of its call, which is found only when the entry is composed.
        read_back = read_back_ids(message) if is_own or not message.name else ()
        tokens = count(self.counter, message)
        located = place_sources(found, spans, self.codec, omitted) if found.items else Located()
        encoded = encode_message(self.codec, fields, artifact=located.artifact, omitted=omitted)
        wants_stub = bool(found.items or (is_own and read_back)) or tokens > _STUB_MIN_TOKENS
        if wants_stub:
            encoded = encoded._replace(shown=0)
        payload, places = located.stored_with(encoded, content)
        ref, chunks = self._stored(encoded, payload)
        is_text = ref is not None and encoded.payload == content == text.strip()
        is_large = encoded.content >= 0 or (found.rebuild is not None and encoded.artifact >= 0)
        return Prepared(
            message=message,
            id=str(message.id),
            body=encoded.body,
            digest=digest_of(encoded.body),
            content_digest=content_digest(message, self.codec, text_digest=ref.digest if ref and is_text else None),
            tokens=tokens,
            view_tokens=tokens if wants_stub and is_large else self._view_tokens(message, encoded, tokens),
            payload=payload,
            ref=ref,
            chunks=chunks,
            sources=tuple(map(self._source, found.items, places)),
            read_back=read_back,
            text=text if wants_stub else "",
            length=len(text) + (sum(len(source.text) for source in found.items) if found.rebuild else 0),
            error=failure_in(message.status, text, parsed),
            wants_stub=wants_stub,
            is_large=is_large,
            has_large_fields=encoded.has_large_fields,
        )

    def _source(self, found: FoundSource, stored: tuple[SourcePlace, str]) -> PreparedSource:
        title, url, metadata = found.label()
        is_plain = not says_more(found.item, title, url, metadata)
        title, url = title[:_TITLE_CHARACTERS], url[:_URL_CHARACTERS]
        return PreparedSource(found.kept_id, title, url, found.digest(self.codec), is_plain, *stored)

    def _view_tokens(self, message: BaseMessage, encoded: EncodedMessage, tokens: int) -> int:
        shown = message
        if encoded.shown < len(encoded.payload):
            part = encoded.payload[: encoded.shown]
            shown = leave_out(
                decode_message(self.codec, encoded.body, fetch=lambda start, end: part[start:end], limit=len(part))
            )
        if type(shown.content) is list:
            shown = without_media(shown)
        return tokens if shown is message else count(self.counter, shown)

    def _stored(self, encoded: EncodedMessage, payload: str) -> tuple[PayloadRef | None, tuple[Chunk, ...]]:
        """Return location and chunks of a payload: the message's parts as they are encoded, then copies of sources."""
        if not payload:
            return None, ()
        own, shown = len(encoded.payload), encoded.shown
        ends = cut(payload[:shown]) if shown else []
        if shown < len(payload):
            ends += [shown + end for end in cut(payload[shown:])]
        chunks = tuple(Chunk(next(self.numbers), data) for data in compress(payload, ends))
        return PayloadRef(
            self.token,
            chunks[0].number,
            tuple(ends),
            own,
            digest_of(encoded.payload),
            sum(len(chunk.data) for chunk in chunks),
            digest_of(encoded.body) if encoded.edges else b"",
            shown,
            digest_of(payload[:shown]) if 0 < shown < own else b"",
            encoded.is_edged,
        ), chunks
