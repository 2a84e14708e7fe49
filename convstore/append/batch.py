"""Prepare a batch: encode, count and compress its messages before the log is read.

`prepare_batch` runs once, even if the writer then retries at other entry numbers. The module also defines the values
that the writer returns.

The module is long because the values that it defines are made and used together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from itertools import count as counting
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, ToolMessage

from convstore.append.condition import ANYWHERE, Condition
from convstore.append.items import PreparedItem, prepare_items
from convstore.exceptions import UnencodableError
from convstore.log.comparison import content_digest
from convstore.log.entry import (
    NO_FACTS,
    UNREAD,
    Entry,
    EntryMessage,
    EntrySource,
    Facts,
    PayloadRef,
    Totals,
)
from convstore.log.facts.claim import CLAIM
from convstore.log.facts.event import EVENT
from convstore.log.totals import preview_of
from convstore.messages.compression import Chunk, chunk_ends, compress
from convstore.messages.encoding import (
    PART_MINIMUM,
    SMALLEST_PART,
    EncodedMessage,
    decode_message,
    digest_of,
    encode_message,
    fields_of,
)
from convstore.messages.media_sizes import MediaSize
from convstore.messages.reasoning import begins_with_reasoning
from convstore.messages.sizes import bytes_of
from convstore.messages.text import text_of
from convstore.messages.tokens import NamedCounter, count, count_with_media
from convstore.messages.tool_calls import is_paused
from convstore.messages.values import Codec
from convstore.sources.detection import SourceExtractor, extract_sources, parse_json, read_back_ids
from convstore.sources.failures import FailureJudge
from convstore.sources.places import SourcePlace, store_sources
from convstore.sources.shortening import SHORTENED, leave_out, without_media
from convstore.sources.source import FoundSource, FoundSources
from convstore.sources.stub import RETRIEVAL_TOOL, failure_in, wants_stub
from convstore.values.append_options import PLAIN, AppendOptions
from convstore.values.log_records import PlacedItem
from convstore.values.models import Receipt

_MAXIMUM_EDGES = 100_000
_SMALLER_PARTS = (
    (PART_MINIMUM, False),
    (4_096, False),
    (1_024, False),
    (SMALLEST_PART, False),
    (SMALLEST_PART, True),
)
"""Steps that make an entry smaller, in order: the length from which parts move to payloads; if whole contents move."""
_ENTRY_BYTES = 900_000
"""Estimated size of an entry above which smaller parts of its messages move to payloads."""
_NO_SOURCES = FoundSources()
_NO_EXTRACTORS: Mapping[str, SourceExtractor] = {}


class PreparedMessage(NamedTuple):
    """One message, encoded.

    Attributes:
        message: The message itself.
        stored: Its stored form, of which `compose_entry` sets the fields that depend on its position.
        view_tokens: Its size in views without a stub.
        payload: The parts outside the body, concatenated; "" if there are none.
        chunks: The compressed payload.
        sources: The sources of a tool result, which `compose_entry` numbers; `given` is the number that the tool gave.
        read_back: Numbers of older sources that a page of ``retrieve_previous_sources`` shows.
        text: The content of a tool result as text.
        error: The error message of a failed result, None if it succeeded.
        has_large_fields: The payload holds other fields than content and artifact.
    """

    message: BaseMessage
    stored: EntryMessage
    view_tokens: int
    payload: str = ""
    chunks: tuple[Chunk, ...] = ()
    sources: tuple[EntrySource, ...] = ()
    read_back: tuple[int, ...] = ()
    text: str = ""
    error: str | None = None
    has_large_fields: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages ready for the log.

    Attributes:
        prepared: The messages, in order.
        codec: The codec that encoded them.
        counter: The counter of their tokens.
        token: Random token in the keys of the chunks.
        omitted: Paths of values of unknown types that were left out.
        options: Options of the append.
        through: The highest number of the sequence that the numbers in the options come from.
        facts: Facts that the entry records besides the messages and items.
        items: Items of the application that are not messages, in order.
        judge: The application's function that decides if a result failed.
        condition: Condition on the log under which the batch is written.
        reserve: Number of source ids to reserve.
        for_child: True if the reserved ids are for the conversation of a sub-agent.
    """

    prepared: tuple[PreparedMessage, ...]
    codec: Codec
    counter: NamedCounter
    token: str = ""
    omitted: tuple[str, ...] = ()
    options: AppendOptions = PLAIN
    through: int = 0
    facts: Facts = field(default_factory=lambda: NO_FACTS)
    items: tuple[PreparedItem, ...] = ()
    judge: FailureJudge | None = None
    condition: Condition = ANYWHERE
    reserve: int = 0
    for_child: bool = False

    @property
    def named(self) -> set[str]:
        """Return the ids of questions outside the batch that its messages and facts refer to."""
        options = self.options
        named = {columns.turn for columns in options.columns.values()}
        event = EVENT.among(self.facts)
        if event and event.kind != "fence":
            named.add(event.turn)
        return {id_ for id_ in (*named, options.question) if id_}.difference(self.ids)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write."""
        return not (self.prepared or self.items or self.facts or self.reserve)

    @property
    def needs_shown(self) -> bool:
        """True if composing needs the sources that were shown before."""
        return self.reserve > 0 or any(part.sources for part in self.prepared)

    def can_follow(self, tail: Totals) -> bool:
        """Return True if a cached tail has every field that composing needs.

        A tail that a load cached lacks the shown sources and the preview.
        """
        if tail.shown is None and tail.shown_at and self.needs_shown:
            return False
        if tail.preview is not UNREAD:
            return True
        return not self.condition.branch and any(preview_of(part.message) for part in self.prepared)

    @property
    def ids(self) -> list[str]:
        """Return the ids of the messages."""
        return [new.stored.id for new in self.prepared]

    @property
    def kept_source_ids(self) -> list[int]:
        """Return the source ids that came with the results."""
        given = [
            source.given
            for new in self.prepared
            for source in new.sources
            if source.given is not None
        ]
        return [*CLAIM.ids_in(self.facts), *given]

    @property
    def chunks(self) -> list[Chunk]:
        """Return the compressed payloads."""
        return [
            chunk for part in (self.prepared, self.items) for item in part for chunk in item.chunks
        ]

    def without(self, ids: Mapping[str, Any], item_ids: Collection[str] = ()) -> Batch:
        """Return the batch without the messages and items that are in the log already."""
        prepared = tuple(new for new in self.prepared if new.stored.id not in ids)
        kept = [*accumulate((new.stored.id not in ids for new in self.prepared), initial=0)]
        items = tuple(
            item._replace(stored=replace(item.stored, after=kept[item.stored.after]))
            for item in self.items
            if item.stored.id not in item_ids
        )
        return replace(self, prepared=prepared, items=items)


def prepare_batch(
    messages: Sequence[BaseMessage],
    items: Sequence[PlacedItem] = (),
    options: AppendOptions = PLAIN,
    *,
    codec: Codec,
    counter: NamedCounter,
    token: str = "",
    extractors: Mapping[str, SourceExtractor] = _NO_EXTRACTORS,
    facts: Facts = NO_FACTS,
    judge: FailureJudge | None = None,
    condition: Condition = ANYWHERE,
) -> Batch:
    """Encode, count and compress the messages and items of a batch; each message has an id already.

    Raises:
        InvalidInputError: An extractor failed.
        UnencodableError: The codec cannot encode the type of a value, unless the options omit it.
    """
    omits = options.on_unencodable == "omit"
    prepared: list[PreparedMessage] = []
    made = tuple[PreparedItem, ...]()
    omitted: list[str] = []
    for minimum, whole_contents in _SMALLER_PARTS:
        work = _Preparer(codec, counter, token, extractors, minimum, whole_contents)
        prepared, omitted = work.prepare_all(
            zip(options.indexes or counting(), messages, strict=False), omit=omits
        )
        paths = omitted if omits else None
        made = prepare_items(
            items, codec, token=token, numbers=work.numbers, omitted=paths, minimum=minimum
        )
        if sum(map(_entry_bytes, prepared)) + sum(map(_item_bytes, made)) <= _ENTRY_BYTES:
            break
    return Batch(
        tuple(prepared),
        codec,
        counter,
        token,
        tuple(omitted),
        options,
        facts=facts,
        items=made,
        judge=judge,
        condition=condition,
    )


def _entry_bytes(prepared: PreparedMessage) -> int:
    """Estimate the bytes that a message and its sources take in an entry."""
    sources = sum(200 + len(source.title) + len(source.url) for source in prepared.sources)
    return 300 + 600 * bool(prepared.text) + sources + bytes_of(prepared.stored.body)


def _item_bytes(prepared: PreparedItem) -> int:
    """Estimate the bytes that an item takes in an entry."""
    return 250 + 2 * bytes_of(prepared.stored.id) + bytes_of(prepared.stored.body)


@dataclass(slots=True)
class _Preparer:
    """Prepares the messages of one batch; `numbers` counts the chunks of all of them.

    Parts with at least `minimum` characters leave the entry, and with `whole_contents` lists of blocks as a whole.
    `edges_left` limits the characters that bodies keep of the texts in payloads, which bounds the size of the entry.
    """

    codec: Codec
    counter: NamedCounter
    token: str
    extractors: Mapping[str, SourceExtractor]
    minimum: int
    whole_contents: bool = False
    numbers: Iterator[int] = field(default_factory=counting)
    edges_left: int = _MAXIMUM_EDGES

    def prepare_all(
        self, messages: Iterable[tuple[int, BaseMessage]], *, omit: bool
    ) -> tuple[list[PreparedMessage], list[str]]:
        """Prepare all messages, each given with its index; also return the paths of values that were left out."""
        prepared: list[PreparedMessage] = []
        omitted: list[str] = []
        for index, message in messages:
            paths: list[str] | None = [] if omit else None
            try:
                prepared.append(self.prepare(message, paths))
            except UnencodableError as error:
                raise UnencodableError(
                    error.problem, path=f"message {index}.{error.path}"
                ) from error.__cause__
            omitted.extend(dict.fromkeys(f"message {index}.{path}" for path in paths or ()))
        return prepared, omitted

    def prepare(self, message: BaseMessage, omitted: list[str] | None) -> PreparedMessage:
        """Prepare one message; paths of values that were left out are added to `omitted`."""
        fields = fields_of(message)
        left_out: list[str] | None = None if omitted is None else []
        try:
            if isinstance(message, ToolMessage):
                prepared = self._result(message, fields, left_out)
            else:
                prepared = self._message(message, fields, left_out)
        except UnencodableError:
            self.codec.encode(fields)  # raises the error with the path from the message on
            raise
        if left_out:
            self.codec.encode(fields, omitted=omitted)
        return prepared

    def _message(
        self, message: BaseMessage, fields: dict[str, Any], omitted: list[str] | None
    ) -> PreparedMessage:
        edges = self.edges_left if message.type in SHORTENED else 0
        encoded, plain = self._encoded(fields, omitted, max_edges=edges)
        tokens, media = count_with_media(self.counter, message)
        sizes = tokens, self._view_tokens(message, encoded, tokens)
        return self._prepared(message, (encoded, plain), encoded.payload, sizes, media)

    def _result(
        self, message: ToolMessage, fields: dict[str, Any], omitted: list[str] | None
    ) -> PreparedMessage:
        """Prepare a tool result with its sources and the facts for its stub."""
        content = message.content
        is_own = message.name == RETRIEVAL_TOOL
        text = text_of(content)
        written = text if isinstance(content, str) else ""  # the JSON of blocks is ours
        parsed = parse_json(written)
        found = _NO_SOURCES if is_own else extract_sources(message, parsed, self.extractors)
        # A result without a name gets that of its call, which is found only when the entry is composed.
        read_back = read_back_ids(message) if is_own or not message.name else ()
        tokens, media = count_with_media(self.counter, message)
        encoded, plain = self._encoded(fields, omitted)
        is_stub = wants_stub(tokens, has_sources=bool(found.items or (is_own and read_back)))
        if is_stub:
            encoded = encoded._replace(shown=0)
        payload, places = store_sources(found.items, encoded.payload, self.codec, omitted)
        is_outside = is_stub and encoded.has_content
        return self._prepared(
            message,
            (encoded, plain),
            payload,
            (tokens, tokens if is_outside else self._view_tokens(message, encoded, tokens)),
            media,
            sources=tuple(
                self._source(str(message.id), source, *place, is_shown=found.is_shown)
                for source, place in zip(found.items, places, strict=True)
            ),
            read_back=read_back,
            text=text,
            error=failure_in(message.status, text, parsed),
        )

    def _encoded(
        self,
        fields: dict[str, Any],
        omitted: list[str] | None,
        *,
        max_edges: int = 0,
    ) -> tuple[EncodedMessage, EncodedMessage]:
        """Return a message as this entry stores it, and as it is encoded independently of the batch."""
        encode = partial(encode_message, self.codec, fields, omitted=omitted)
        encoded = encode(
            max_edges=max_edges, minimum=self.minimum, whole_contents=self.whole_contents
        )
        self.edges_left -= encoded.edges
        return encoded, encode() if encoded.edges or self.minimum < PART_MINIMUM else encoded

    def _prepared(
        self,
        message: BaseMessage,
        forms: tuple[EncodedMessage, EncodedMessage],
        payload: str,
        sizes: tuple[int, int],
        media: tuple[MediaSize, ...],
        **facts: Any,
    ) -> PreparedMessage:
        encoded, plain = forms
        ref, chunks = self._stored(encoded, payload, plain)
        is_text = ref is not None and encoded.payload == message.content == encoded.payload.strip()
        text_digest = ref.digest if ref and is_text else None
        stored = EntryMessage(
            0,
            str(message.id),
            message.type,
            encoded.body,
            digest_of(encoded.body),
            *sizes,
            content_digest(message, self.codec, text_digest=text_digest),
            payload=ref,
            is_paused=is_paused(message),
            is_reasoning=begins_with_reasoning(message),
            media=media,
        )
        return PreparedMessage(
            message,
            stored,
            sizes[1],
            payload,
            chunks,
            has_large_fields=encoded.has_large_fields,
            **facts,
        )

    def _source(
        self, message_id: str, found: FoundSource, place: SourcePlace, piece: str, *, is_shown: bool
    ) -> EntrySource:
        title, url, is_plain = found.shown()
        return EntrySource(  # by position: names take four times as long
            0,
            message_id,
            title,
            url,
            place,
            found.digest(self.codec),
            piece,
            found.kept_id,
            None,
            is_plain,
            is_shown,
        )

    def _view_tokens(self, message: BaseMessage, encoded: EncodedMessage, tokens: int) -> int:
        shown = message
        if encoded.shown < len(encoded.payload):
            part = encoded.payload[: encoded.shown]
            shown = leave_out(
                decode_message(
                    self.codec,
                    encoded.body,
                    fetch=lambda start, end: part[start:end],
                    limit=len(part),
                )
            )
        if type(shown.content) is list:
            shown = without_media(shown)
        return tokens if shown is message else count(self.counter, shown)

    def _stored(
        self, encoded: EncodedMessage, payload: str, plain: EncodedMessage
    ) -> tuple[PayloadRef | None, tuple[Chunk, ...]]:
        """Return location and chunks of a payload: the message's parts as they are encoded, then its sources.

        `plain` is the message as it is encoded independently of the batch.
        """
        if not payload:
            return None, ()
        own = len(encoded.payload)
        shown = encoded.shown
        ends = chunk_ends(payload[:shown]) if shown else []
        if shown < len(payload):
            ends += [shown + end for end in chunk_ends(payload[shown:])]
        chunks = tuple(Chunk(next(self.numbers), data) for data in compress(payload, ends))
        ref = PayloadRef(
            token=self.token,
            chunk=chunks[0].number,
            ends=tuple(ends),
            own=own,
            digest=digest_of(encoded.payload),
            size=sum(len(chunk.data) for chunk in chunks),
            shown=shown,
            shown_digest=digest_of(payload[:shown]) if 0 < shown < own else b"",
            is_edged=encoded.is_edged,
            identity=b"" if encoded[:2] == plain[:2] else plain.digests,
        )
        return ref, chunks


class ConversationReplaced(Exception):  # noqa: N818 - a result, caught by the writer
    """The cached conversation was deleted, pruned or replaced by a backup; the append has to begin again."""


class AppendResult(NamedTuple):
    """The result of an append.

    Attributes:
        receipt: Its receipt.
        conversation: The id of the conversation.
        totals: The totals of the log after it.
        entry: The entry that was written; None if the log had everything.
    """

    receipt: Receipt
    conversation: str
    totals: Totals
    entry: Entry | None


class BatchLookup(NamedTuple):
    """The result of looking up a batch in the log.

    Attributes:
        new: The part of the batch that the log does not have.
        stored: Ordinals of the messages that the log has, by id.
        renumbered: Old and new numbers of the sources of stored messages, by message id.
        questions: Ordinals of the questions that the batch and its facts refer to, by id.
    """

    new: Batch
    stored: Mapping[str, int] = {}
    renumbered: Mapping[str, dict[int, int]] = {}
    questions: Mapping[str, int] = {}
