"""What can be read of a stored message, as passages with names.

Layer 4, pure. A passage is read from its beginning to its end. Its key and a character make a cursor: ``11@4000`` goes
on in source 11, ``m7@4000`` in the message with ordinal 7, ``m7.2@0`` in the second further part of it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from convstore.codec import Codec, PayloadRange
from convstore.entries import EntrySource, PayloadRef
from convstore.marks import mark
from convstore.models import Source
from convstore.repository import StoredMessageRow
from convstore.sources import source_in
from convstore.stubs import text_of
from convstore.tokens import fitting, weight

__all__ = [
    "Cursor",
    "Passage",
    "fold",
    "in_line",
    "in_order",
    "make_source",
    "matches",
    "page_source",
    "passage_of_source",
    "passages_of",
    "read_cursor",
    "snippets",
]

_LABEL_CHARACTERS = 200
_AROUND = 200
_NUMBERS = len(", characters 123456789-123456789 of 123456789\n\n")
_REPEATS = 1_000
"""A shorter content is shown beside its sources, whatever it holds."""
_REPEATED = "What follows is the result as the tool wrote it, most likely the same texts."
_REST = "What follows is what else the tool said, the texts apart."
_FRAMES = tuple(len(frame) for frame in ("", '{"results":}', '{"documents":}'))
"""What can stand around a list of items and says nothing; none can be taken for another one with one more value."""
_LEFT_OUT = "too large for a page; get_tool_messages gives it whole"
_NAMED, _NAME_CHARACTERS = 5, 60
_HIDDEN = "\ufffd"
_GROWING = re.compile(
    "["
    + "".join(
        sign
        for sign in map(chr, (*range(0xDF, 0x2000), *range(0xFB00, 0xFB18)))
        if len(sign.casefold()) > 1 and sign != "İ"
    )
    + "]"
)
"""Characters that become several when their case is folded, such as the German sharp s."""
_CURSOR = re.compile(r"(?P<key>(?P<source>\d{1,15})|m(?P<ordinal>\d{1,15})(\.\d{1,6})?)@(?P<offset>\d{1,15})", re.ASCII)


class Cursor(NamedTuple):
    """Where a page ended: the passage, and what it is a passage of: a source or the message with an ordinal."""

    key: str
    source_id: int | None
    ordinal: int | None
    offset: int


def read_cursor(text: Any) -> Cursor | None:
    """The place that a cursor names; None if it is none.

    >>> read_cursor("11@4000")
    Cursor(key='11', source_id=11, ordinal=None, offset=4000)
    """
    found = _CURSOR.fullmatch(text.strip()) if isinstance(text, str) else None
    if not found:
        return None
    source, ordinal = found["source"], found["ordinal"]
    return Cursor(
        found["key"], int(source) if source else None, int(ordinal) if ordinal else None, int(found["offset"])
    )


@dataclass(frozen=True, slots=True)
class Passage:
    """Something to read: a text at hand, or a range of a payload.

    Attributes:
        key: Names it in cursors.
        label: Names it in headers; one line.
        length: Its characters.
        same: What its label ends with, however short that is cut.
        text: The text itself, if it is at hand.
        ref: The payload that it is in, if it is in one.
        start: Where it begins in the payload.
        source: The source that it is the text of.
        rest: Whether it holds what a result with sources says beside their texts and its content.
        remark: What the page before says of it, as it begins a page of its own.
    """

    key: str
    label: str
    length: int
    text: str = ""
    ref: PayloadRef | None = None
    start: int = 0
    source: EntrySource | None = None
    rest: bool = False
    remark: str = ""
    same: str = ""

    def header(self, start: int, end: int, *, most: int) -> str:
        """What stands above a part of it; its label is cut to a weight.

        >>> Passage("11", "[11] Seals of the North", 9_120, same=", the same as [2]").header(0, 4_000, most=30)
        '[11] Seals of, the same as [2], characters 0-4000 of 9120'
        """
        return f"{self._name(most)}, characters {start}-{end} of {self.length}"

    def overhead(self, most: int) -> int:
        """The largest weight of its header line on a page."""
        return weight(self._name(most)) + _NUMBERS

    def _name(self, most: int) -> str:
        return self.label[: fitting(self.label, most - len(self.same))].rstrip() + self.same

    @property
    def item_length(self) -> int:
        """How much is said of its source, in characters."""
        return self.source.place.end - self.source.place.middle if self.source else 0

    @property
    def item_range(self) -> tuple[int, int]:
        """Where what is said of its source stands in the payload."""
        assert self.source is not None  # noqa: S101 - asked for sources only
        return self.source.place.middle, self.source.place.end


def passages_of(row: StoredMessageRow, message: BaseMessage) -> list[Passage]:
    """All passages of a message whose payload was not read: sources, content, and all else that it holds.

    Tools that have their sources in an artifact mostly write them into the content too. Lengths tell, and nothing is
    lost if they mislead.
    """
    ref, key = row.message.payload, f"m{row.message.ordinal}"
    texts = [passage_of_source(source, row) for source in row.sources]
    content = _of_value(in_line(row.message.tool or row.message.type, 200), message.content, ref)
    if sum(passage.length for passage in content) >= max(_REPEATS, sum(text.length for text in texts) * 4 // 5):
        content = [replace(passage, remark=_REPEATED if texts else "") for passage in content]
    parts = [*content, *_artifact(row, message), *_large_parts(message, ref), *_items(row)]
    own = [replace(passage, key=f"{key}.{place}" if place else key) for place, passage in enumerate(parts)]
    return [*texts, *own]


def in_order(passages: Sequence[Passage]) -> list[Passage]:
    """Passages as they are read: each once, and what most readers do not need last, from a page of its own on."""
    each = list({passage.key: passage for passage in passages}.values())
    shown, rest = [one for one in each if not one.rest], [one for one in each if one.rest]
    if rest and shown and not shown[-1].remark:
        rest[0] = replace(rest[0], remark=_REST)
    return [*shown, *rest]


def passage_of_source(source: EntrySource, row: StoredMessageRow) -> Passage:
    """The text of one source; an item without a text of its own is read as it is."""
    named = " ".join(filter(None, [source.title, f"({source.url})" if source.url else ""]))
    same = f", the same as [{source.earlier}]" if source.earlier else ""
    label = _one_line(f"[{source.id}] {named}")
    place, ref = source.place, row.message.payload
    start, end = (place.start, place.middle) if place.middle > place.start else (place.middle, place.end)
    if source.piece or ref is None:
        return Passage(str(source.id), label, end - start, text=source.piece[start:end], source=source, same=same)
    return Passage(str(source.id), label, end - start, ref=ref, start=start, source=source, same=same)


def make_source(codec: Codec, source: EntrySource, *, content: str, item: str) -> Source:
    """A source as the public API gives it.

    Args:
        codec: Decodes the item.
        source: What its entry says of it.
        content: Its text, or the part of it that is asked for.
        item: What the tool said of it, as it is stored.

    Raises:
        ValueError: The item is not what was written.
    """
    found = source_in(codec.decode(item, fetch=lambda _start, _end: ""))
    return Source(
        source_id=source.id,
        title=found.title if found else source.title,
        url=found.url if found else source.url,
        content=content,
        metadata=found.metadata if found else {},
        tool_message_id=source.message_id,
        earlier_id=source.earlier,
        given_id=source.given,
    )


def page_source(codec: Codec, source: EntrySource, *, content: str, item: str | None, room: int) -> tuple[Source, int]:
    """A source as a page gives it, and how much of the room for such things is left.

    Of the metadata there is as much as fits, and a mark that says what is left out.

    Args:
        codec: Decodes the item.
        source: What its entry says of it.
        content: The part of its text that is on the page.
        item: What the tool said of it, as it is stored; None if that is too much to read.
        room: At most this many characters of what the tool said, as it is stored.

    Raises:
        ValueError: The item is not what was written.
    """
    whole = make_source(codec, source, content=content, item="{}" if item is None else item)
    if item is not None and len(item) <= room:
        return whole, room - len(item)
    kept: dict[str, Any] = {}
    for key, value in whole.metadata.items():
        size = len(key) + len(codec.encode(value, omitted=[]))
        if size <= room:
            kept[key] = value
            room -= size
    gone = [name for name in ("title", "url") if getattr(whole, name) != getattr(source, name)]
    gone += [in_line(key, _NAME_CHARACTERS) for key in whole.metadata if key not in kept]
    more = [f"{len(gone) - _NAMED} more"] if len(gone) > _NAMED else []
    kept |= mark("left_out", keys=[*gone[:_NAMED], *more], message=_LEFT_OUT)
    return whole.model_copy(update={"title": source.title, "url": source.url, "metadata": kept}), room


def matches(text: str, find: str) -> Iterator[tuple[int, int]]:
    """Ranges of a text that say the same as another in any case, by Unicode's full case folding; linear in both.

    >>> list(matches("Maße, MASSE, masse", "mASSe"))
    [(0, 4), (6, 11), (13, 18)]
    """
    folded, wanted = fold(text), fold(find)
    grown, extra = _growth(text, folded)
    at = folded.find(wanted) if wanted else -1
    while at >= 0:
        yield _unfolded(at, grown, extra), _unfolded(at + len(wanted) - 1, grown, extra) + 1
        at = folded.find(wanted, at + len(wanted))


def fold(text: str) -> str:
    """A text in one case; the Turkish letters i, with a dot and without, are one letter.

    >>> fold("STRAẞE"), fold("İstanbul")
    ('strasse', 'istanbul')
    """
    return text.replace("İ", "i").replace("\u0131", "i").casefold()


def snippets(text: str, find: str, *, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of a text around the matches of another, in any case, those that touch joined.

    The last one is the first that is longer than `most`: nobody shows it whole.

    >>> list(snippets("a" * 300 + "Needle" + "b" * 300, "needle", most=1_000))
    [(100, 506)]
    """
    start = stop = 0
    for first, end in matches(text, find):
        if stop and first - _AROUND > stop:
            yield start, stop
            stop = 0
        start = start if stop else max(0, first - _AROUND)
        stop = min(len(text), end + _AROUND)
        if stop - start > most:
            break
    if stop:
        yield start, stop


def in_line(text: Any, most: int) -> str:
    r"""The beginning of what somebody sent, as it can stand in a line of ours.

    >>> in_line("a\nb\ud800c", 3)
    'a�b'
    """
    return "".join(sign if sign.isprintable() else _HIDDEN for sign in str(text)[:most])


def _growth(text: str, folded: str) -> tuple[list[int], list[int]]:
    """Where in a folded text the characters begin that are several there, and by how many it grew through each."""
    grown: list[int] = []
    extra: list[int] = []
    if len(folded) > len(text):
        sum_ = 0
        for found in _GROWING.finditer(text):
            grown.append(found.start() + sum_)
            sum_ += len(found[0].casefold()) - 1
            extra.append(sum_)
    return grown, extra


def _unfolded(place: int, grown: list[int], extra: list[int]) -> int:
    """Which character of a text the one at a place of the folded text comes from."""
    last = bisect_right(grown, place) - 1
    if last < 0:
        return place
    before = extra[last - 1] if last else 0
    return max(grown[last] - before, place - extra[last])


def _of_value(label: str, value: Any, ref: PayloadRef | None) -> list[Passage]:
    """A content or an artifact as passages; what lies in the payload in pieces of its own."""
    label = _one_line(label)
    if isinstance(value, PayloadRange):
        return [Passage("", label, value.end - value.start, ref=ref, start=value.start)]
    parts = _parts_of(value)
    if any(isinstance(part, PayloadRange) for _, part in parts):
        return [passage for name, part in parts for passage in _of_value(f"{label}, {name}", part, ref)]
    text = text_of(value)
    return [Passage("", label, len(text), text=text)]


def _parts_of(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [(f"part {place}", part) for place, part in enumerate(value, 1)]
    return [(str(key), part) for key, part in value.items()] if isinstance(value, dict) else []


def _artifact(row: StoredMessageRow, message: BaseMessage) -> list[Passage]:
    """The artifact, unless it is no more than its sources."""
    artifact = getattr(message, "artifact", None)
    if artifact is None or (row.sources and _is_bare(artifact, row.sources)):
        return []
    found = _of_value("artifact", artifact, row.message.payload)
    return [replace(passage, rest=bool(row.sources)) for passage in found]


def _is_bare(artifact: Any, sources: Sequence[EntrySource]) -> bool:
    """Whether an artifact says nothing but what its sources say, or their items, which are read by themselves."""
    if isinstance(artifact, PayloadRange):
        items = [PayloadRange(source.place.middle, source.place.end, raw=False) for source in sources]
        more = artifact.end - artifact.start - len(Codec().encode(items))
        is_frame = more in _FRAMES or (len(items) == 1 and more + len("[]") == 0)
        return is_frame and not any(source.held for source in sources)
    while type(artifact) is dict and len(artifact) == 1:
        (artifact,) = artifact.values()
    if type(artifact) not in (list, tuple) or len(artifact) != len(sources):
        return False
    found = [source_in(item) for item in artifact]
    texts = [source.piece[source.place.start : source.place.middle] for source in sources]
    return all(one and not one.says_more and one.text == text for one, text in zip(found, texts, strict=True))


def _items(row: StoredMessageRow) -> list[Passage]:
    """What the tool said of each source, its text apart; unless that is no more, or is read elsewhere."""
    ref = row.message.payload
    return [
        Passage("", f"Rest of [{source.id}]", place.end - place.middle, ref=ref, start=place.middle, rest=True)
        for source in row.sources
        if ref and not (source.bare or source.held) and (place := source.place).middle > place.start
    ]


def _large_parts(message: BaseMessage, ref: PayloadRef | None) -> list[Passage]:
    """Whatever stands outside the entry beside content and artifact."""
    calls = [*getattr(message, "tool_calls", []), *getattr(message, "invalid_tool_calls", [])]
    found: list[tuple[str, Any]] = [
        (f"{'arguments' if key == 'args' else key} {place} of {call.get('name')}", part)
        for place, call in enumerate(calls, 1)
        for key, part in call.items()
    ]
    for name, value in {**message.__dict__, **(message.__pydantic_extra__ or {})}.items():
        if name not in ("content", "artifact"):
            parts = {f"{name}.{key}": part for key, part in value.items()} if type(value) is dict else {name: value}
            found += parts.items()
    return [
        passage for label, value in found if isinstance(value, PayloadRange) for passage in _of_value(label, value, ref)
    ]


def _one_line(label: str) -> str:
    """A label that can be part of a header: what a source calls itself cannot pass for a line of ours."""
    return " ".join(label.split())[:_LABEL_CHARACTERS]
