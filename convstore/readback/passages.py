"""Splits a stored message into named passages that can be read page by page.

A passage is read from beginning to end; `request` has the keys by which a page continues it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from convstore.log.entry import EntrySource, PayloadRef
from convstore.log.stored_message import check_source
from convstore.messages.media import is_media, media_description
from convstore.messages.media_figures import UNMEASURED_TOKENS
from convstore.messages.payload_ranges import PayloadRange
from convstore.messages.text import text_of
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, fitting, weight
from convstore.messages.values import Codec
from convstore.mongo.log import StoredMessageRow
from convstore.readback.dedup import deduplicated, holds_only_sources
from convstore.sources.detection import parse_json
from convstore.sources.places import read_text
from convstore.values.models import Source

_LABEL_CHARACTERS = 200
_NUMBERS = len(", characters 123456789-123456789 of 123456789\n\n")
_MIN_COMPARED = 1_000
"""A shorter content is shown in addition to its sources, even if it repeats them."""
_MAX_COMPARED = 1_000_000
"""Maximum characters of a message's parts in a payload from which repeated texts are removed."""
_MAX_BLOCKS = 8_000_000
"""The same limit for a content of blocks, which is read whole because some may be images."""
_REPEATED = "What follows is the result as the tool wrote it, most likely the same texts."
_REST = "What follows is what else the tool said, the texts apart."
_REPLACEMENT = "\ufffd"


class PageMedia(NamedTuple):
    """An image or file that a page may show: its description and size, and its block or its range of a payload."""

    about: str
    size: int
    block: Any = None
    stored: tuple[PayloadRef, int, int] | None = None

    @property
    def weight(self) -> int:
        """The weight on a page: for an image, of a typical image's tokens and a little for its size; else its size."""
        is_image = self.about.startswith("image")
        return (
            UNMEASURED_TOKENS * CHARACTERS_PER_TOKEN + self.size // 1_000 if is_image else self.size
        )


@dataclass(frozen=True, slots=True)
class Passage:
    """A readable part of a message: a text in memory, or a range of a payload.

    Attributes:
        key: Name in cursors.
        label: Name in headers; a single line.
        length: Number of characters.
        suffix: End of the label, which is never cut off.
        text: The text, if it is in memory.
        ref: The payload that holds the text, if any.
        start: Offset in the payload.
        source: The source whose text this is, if any.
        is_rest: True for the artifact of a result with sources.
        is_repeated: True if other passages show all of it; then it is left out.
        compared_append: Token of the append whose payload was read to find repeated texts, else "".
        is_deferred: True if it may repeat others but was not compared yet; pages do not show it.
        remark: Line that announces it on the previous page; it begins a new page.
        media: The image or file that the text describes; None without one, or if it is not shown.
        fields: Fields of the source that the store shows to models; known once its item was read.
    """

    key: str
    label: str
    length: int
    text: str = ""
    ref: PayloadRef | None = None
    start: int = 0
    source: EntrySource | None = None
    is_rest: bool = False
    is_repeated: bool = False
    compared_append: str = ""
    is_deferred: bool = False
    remark: str = ""
    suffix: str = ""
    media: PageMedia | None = None
    fields: str = ""

    def header(self, start: int, end: int, *, limit: int) -> str:
        """Return the header line for a part of the passage; its label is cut to a weight.

        >>> Passage("11", "[11] Seals of the North", 9_120, suffix=", the same as [2]").header(0, 4_000, limit=30)
        '[11] Seals of, the same as [2], characters 0-4000 of 9120'
        """
        return f"{self._name(limit)}, characters {start}-{end} of {self.length}"

    def overhead(self, limit: int) -> int:
        """Return the maximum weight of its header line and its image or file on a page."""
        return weight(self._name(limit)) + _NUMBERS + (self.media.weight if self.media else 0)

    def _name(self, limit: int) -> str:
        name = f"{self.label}, {self.fields}" if self.fields else self.label
        return name[: fitting(name, limit - len(self.suffix))].rstrip() + self.suffix


def is_compared(row: StoredMessageRow, message: BaseMessage, *, artifact: bool) -> bool:
    """Return True if a message's payload must be read whole first, because its content may repeat other passages."""
    ref = row.message.payload
    if ref is None or row.message.type != "tool":
        return False
    has_blocks = isinstance(message.content, PayloadRange) and not message.content.raw
    if has_blocks or ref.own > _MAX_COMPARED:
        return has_blocks and ref.own <= _MAX_BLOCKS
    return bool(row.sources) or (artifact and getattr(message, "artifact", None) is not None)


def passages_of(
    row: StoredMessageRow,
    message: BaseMessage,
    codec: Codec,
    payload: str | None = None,
    *,
    artifact: bool = False,
) -> list[Passage]:
    """Return all passages of a message: sources, content and other parts, and with `artifact` its artifact.

    If the message has no payload, or its payload is in memory, each text is in only one passage. For larger payloads,
    lengths are compared to guess if the content repeats its sources; a wrong guess loses nothing.
    """
    ref = row.message.payload
    row = _with_texts(row, payload)
    texts = [passage_of_source(source, row, artifact=artifact) for source in row.sources]
    label = in_line(row.message.tool or row.message.type, 200)
    content = _of_value(label, _blocks_in(message.content, payload, codec), ref, payload)
    rest = _artifact(row, message, payload, codec) if artifact else []
    compared = is_compared(row, message, artifact=artifact)
    if ref is None or (payload is not None and ref.own <= _MAX_COMPARED):
        value = getattr(message, "artifact", None) if artifact else None
        content, rest = _without_repeats(
            codec, row, value, payload or "", texts=texts, content=content, artifact=rest
        )
    elif not compared and _is_long(content, texts):
        content = [replace(passage, remark=_REPEATED) for passage in content]
    others = [*rest, *_large_parts(message, ref, payload)]
    passages = [*texts, *_with_keys(f"m{row.message.ordinal}", content, others)]
    return _mark_deferred(passages, ref, payload) if ref and compared else passages


def _with_texts(row: StoredMessageRow, payload: str | None) -> StoredMessageRow:
    """Return a row whose sources have the text of the payload, if it was read."""
    if payload is None:
        return row
    sources = [replace(source, piece=source.piece or payload) for source in row.sources]
    return replace(row, sources=tuple(sources))


def _mark_deferred(
    passages: Sequence[Passage], ref: PayloadRef, payload: str | None
) -> list[Passage]:
    """Mark passages as compared with each other, or as deferred if their payload was not read."""
    token = ref.token if payload else ""
    return [
        replace(passage, compared_append=token, is_deferred=payload is None) for passage in passages
    ]


def _with_keys(key: str, content: Sequence[Passage], others: Sequence[Passage]) -> list[Passage]:
    """Return the passages of a message with their keys for cursors.

    The number of parts of a content is known only once its payload was read. So the other parts are numbered apart.
    """
    keys = [f"{key}.{number}" if number else key for number in range(len(content))]
    keys += [f"{key}.x{number}" for number in range(len(others))]
    named = zip([*content, *others], keys, strict=True)
    return [replace(passage, key=name, suffix=f", {key}") for passage, name in named]


def _is_long(content: Sequence[Passage], texts: Sequence[Passage]) -> bool:
    """Return True if a content is long enough to contain the texts of its sources."""
    length = sum(passage.length for passage in content)
    return bool(texts) and length >= max(_MIN_COMPARED, sum(text.length for text in texts) * 4 // 5)


def _without_repeats(
    codec: Codec,
    row: StoredMessageRow,
    value: Any,
    payload: str,
    *,
    texts: Sequence[Passage],
    content: Sequence[Passage],
    artifact: Sequence[Passage],
) -> tuple[list[Passage], list[Passage]]:
    """Return content and artifact without texts that earlier passages show; `value` is the artifact itself."""
    named = [
        Source(source_id=source.id, title=source.title, url=source.url, content=text.text)
        for source, text in zip(row.sources, texts, strict=True)
    ]
    parsed = parse_json(content[0].text) if len(content) == 1 else None
    shown, others = deduplicated(
        named,
        [passage.text for passage in content],
        [passage.text for passage in artifact],
        codec,
        parsed=parsed,
        value=_decode_value(value, payload, codec),
    )
    if row.sources and parsed is not None and holds_only_sources(parsed, row.sources):
        shown = [None]
    return (
        [_with_text(passage, text) for passage, text in zip(content, shown, strict=True)],
        [_with_text(passage, text) for passage, text in zip(artifact, others, strict=True)],
    )


def _decode_value(value: Any, payload: str, codec: Codec) -> Any:
    """Return a value, decoded from the payload if it is there; None if its type is unknown to this process."""
    if not isinstance(value, PayloadRange):
        return value
    text = payload[value.start : value.end]
    if value.raw:
        return text
    try:
        return codec.decode(text, fetch=lambda start, end: payload[start:end])
    except ValueError:
        return None  # the passage shows the stored form


def _with_text(passage: Passage, text: str | None) -> Passage:
    """Replace the text of a passage; None marks the passage as repeated."""
    if passage.is_repeated:
        return passage
    return replace(passage, text=text or "", length=len(text or ""), is_repeated=text is None)


def in_reading_order(passages: Sequence[Passage]) -> list[Passage]:
    """Sort passages for reading, each once; artifacts come last and begin a new page."""
    by_key: dict[str, Passage] = {}
    for passage in passages:
        by_key.setdefault(passage.key, passage)
    each = by_key.values()
    shown = [part for part in each if not part.is_rest]
    rest = [part for part in each if part.is_rest]
    first = next((index for index, part in enumerate(rest) if not part.is_repeated), None)
    if first is not None and shown and not shown[-1].remark:
        rest[first] = replace(rest[first], remark=rest[first].remark or _REST)
    return [*shown, *rest]


def passage_of_source(source: EntrySource, row: StoredMessageRow, *, artifact: bool) -> Passage:
    """Return the passage of one source: its text, or its complete item if it has no text.

    An item of an artifact without a text is shown only by its heading, unless `artifact` is true.

    Raises:
        CorruptDocumentError: The entry should hold the text, which is missing or damaged.
    """
    named = " ".join(filter(None, [source.title, f"({source.url})" if source.url else ""]))
    suffix = f", the same as [{source.earlier}]" if source.earlier else ""
    label = _one_line(f"[{source.id}] {named}")
    place = source.place
    ref = row.message.payload
    if source.piece or ref is None:
        check_source(source, source.piece)
    if not (place.length or source.is_shown or artifact):
        where = None if source.piece else ref
        return Passage(str(source.id), label, 0, ref=where, source=source, suffix=suffix)
    if source.piece or ref is None:
        text = read_text(place, source.piece)
        return Passage(str(source.id), label, len(text), text=text, source=source, suffix=suffix)
    start = place.start if place.length else place.middle
    length = place.length or place.end - place.middle
    return Passage(
        str(source.id), label, length, ref=ref, start=start, source=source, suffix=suffix
    )


def in_line(text: Any, limit: int) -> str:
    r"""Return the beginning of an untrusted text with all non-printable characters replaced.

    >>> in_line("a\nb\ud800c", 3)
    'a�b'
    """
    return "".join(sign if sign.isprintable() else _REPLACEMENT for sign in str(text)[:limit])


def _of_value(label: str, value: Any, ref: PayloadRef | None, payload: str | None) -> list[Passage]:
    """Split a content or an artifact into passages; parts in the payload become separate passages."""
    label = _one_line(label)
    media: PageMedia | None = None
    if is_media(value):
        media = PageMedia(media_description(value), len(text_of(value)), block=value)
    elif isinstance(value, PayloadRange) and value.is_media and ref:
        media = PageMedia(
            value.about, value.end - value.start, stored=(ref, value.start, value.end)
        )
    if media:
        text = f"[{media.about}]"
        return [Passage("", label, len(text), text=text, media=media)]
    if isinstance(value, PayloadRange):
        return [_stored_passage(label, value.start, value.end, ref, payload)]
    parts = _parts_of(value)
    if any(isinstance(part, PayloadRange) or is_media(part) for _, part in parts):
        return [
            passage
            for name, part in parts
            for passage in _of_value(f"{label}, {name}", part, ref, payload)
        ]
    text = text_of(value)
    return [Passage("", label, len(text), text=text)]


def _blocks_in(content: Any, payload: str | None, codec: Codec) -> Any:
    """Decode the blocks of a content in a payload that was read, if some are images or files."""
    if payload is None or not isinstance(content, PayloadRange) or content.raw:
        return content
    try:
        blocks = codec.decode(payload[content.start : content.end])
    except ValueError:
        return content  # a type unknown to this process: the passage shows the stored form
    return blocks if type(blocks) is list and any(map(is_media, blocks)) else content


def _stored_passage(
    label: str, start: int, end: int, ref: PayloadRef | None, payload: str | None
) -> Passage:
    """Return the passage of a payload range, with its text if the payload is in memory."""
    if payload is not None:
        return Passage("", label, end - start, text=payload[start:end])
    return Passage("", label, end - start, ref=ref, start=start)


def _parts_of(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [
            (f"part {position}", _text_of_block(part)) for position, part in enumerate(value, 1)
        ]
    return [(str(key), part) for key, part in value.items()] if isinstance(value, dict) else []


def _text_of_block(part: Any) -> Any:
    """Return the text of a plain text block; any other value unchanged."""
    is_plain = type(part) is dict and set(part) == {"type", "text"}
    return part["text"] if is_plain and type(part["text"]) is str else part


def _artifact(
    row: StoredMessageRow, message: BaseMessage, payload: str | None, codec: Codec
) -> list[Passage]:
    """Return the passages of the artifact; they count as repeated if it has only the sources."""
    artifact = getattr(message, "artifact", None)
    if artifact is None:
        return []
    found = _of_value("artifact", artifact, row.message.payload, payload)
    if not row.sources:
        return found
    if isinstance(artifact, PayloadRange) and payload is None:
        return [replace(passage, is_rest=True, remark=_REPEATED) for passage in found]
    value = _decode_value(artifact, payload or "", codec)
    is_repeated = holds_only_sources(value, row.sources)
    return [replace(passage, is_rest=True, is_repeated=is_repeated) for passage in found]


def _large_parts(
    message: BaseMessage, ref: PayloadRef | None, payload: str | None
) -> list[Passage]:
    """Return passages for all other parts of a message that are stored in the payload."""
    calls = [*getattr(message, "tool_calls", []), *getattr(message, "invalid_tool_calls", [])]
    found: list[tuple[str, Any]] = [
        (f"{'arguments' if key == 'args' else key} {position} of {call.get('name')}", part)
        for position, call in enumerate(calls, 1)
        for key, part in call.items()
    ]
    for name, value in {**message.__dict__, **(message.__pydantic_extra__ or {})}.items():
        if name not in ("content", "artifact"):
            parts = {"": value} if type(value) is not dict else value
            found += [(f"{name}.{key}" if key else name, part) for key, part in parts.items()]
    return [
        passage
        for label, value in found
        if isinstance(value, PayloadRange)
        for passage in _of_value(label, value, ref, payload)
    ]


def _one_line(label: str) -> str:
    """Join a label to one line of limited length, so that a source's title cannot imitate a header line."""
    return " ".join(label.split())[:_LABEL_CHARACTERS]
