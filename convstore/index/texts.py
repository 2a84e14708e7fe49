"""List the searchable texts of a stored message, cut them into windows, and cut snippets out of these.

A tool result with sources is indexed source by source. Its content and data often repeat the sources, so they add only
words that the sources lack. Images, audio and files are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from convstore.index.words import language_of, spans, token_terms
from convstore.log.entry import EntryMessage, EntrySource
from convstore.messages.media import is_media
from convstore.messages.payload_ranges import PayloadRange
from convstore.messages.text import text_of
from convstore.sources.stub import RETRIEVAL_TOOL

MAX_CHARACTERS = 2_000_000
"""Maximum size of the texts of one append that are searched, and of a segment. So its document is smaller than 16 MB,
whatever the texts: the worst ones take 6.5 bytes for each character."""

_WINDOW = 800
"""Maximum average number of characters in the windows of a text."""
_SLACK = 150
_ENDS = [re.compile(end) for end in (r"\s[.!?;:]|\n|[\u3002\uff01\uff1f\uff1b]", r"\s", r"[^\w]")]
"""Places to cut after, the best kind of place first, in a text that is read backward."""

_COPY = 40
_COPIES = 64
"""Minimum size of a text whose copies are not split again, and the number of such texts in a message."""

_NOT_TEXT = frozenset(
    {"id", "index", "signature", "encrypted_content", "data", "base64", "call_id", "type"}
)
"""Keys of content blocks that hold ids or data."""


class Text(NamedTuple):
    """A searchable text of a message.

    Attributes:
        text: The text; "" if it is in a payload that was not read.
        start: Its first character in the payload; -1 if it is not there.
        source_id: The source that it belongs to, 0 for none.
        label: Title and address of the source, which are searched with the beginning of the text.
        is_rest: It may repeat other texts of the message.
    """

    text: str
    start: int = -1
    source_id: int = 0
    label: str = ""
    is_rest: bool = False


def texts_of(
    stored: EntryMessage,
    sources: Sequence[EntrySource],
    message: BaseMessage,
    payload: str | None,
) -> list[Text]:
    """Return the searchable texts of a message that was decoded without its payload.

    Their number and order depend on the message alone; texts in a payload that was not read are empty. Results of the
    retrieval tool have none, because they are copies. The rest of an artifact has none: the tool did not show it.
    """
    if stored.type == "tool" and stored.tool == RETRIEVAL_TOOL:
        return []
    found = [text for source in sources for text in texts_of_source(source, payload)]
    found += _of_value(message.content, payload, skip=_NOT_TEXT, is_rest=bool(sources))
    calls = [*getattr(message, "tool_calls", ()), *getattr(message, "invalid_tool_calls", ())]
    parts = [
        [call.get("name"), call.get("args")] for call in calls if call.get("name") != RETRIEVAL_TOOL
    ]
    for part in (*parts, message.name):
        found += _of_value(part, payload, is_rest=True)
    found += _of_value(message.additional_kwargs, payload, skip=_NOT_TEXT, is_rest=True)
    return found


def cut_to_fit(texts: Sequence[Sequence[Text]]) -> Sequence[Sequence[Text]]:
    """Return the texts of the messages of one append, the longest ones cut so that all of them are small enough."""
    sizes = sorted(len(text.text) for message_texts in texts for text in message_texts)
    if sum(sizes) <= MAX_CHARACTERS:
        return texts
    room = MAX_CHARACTERS
    count = len(sizes)
    for size in sizes:
        if size * count > room:
            break
        room = room - size
        count = count - 1
    return [
        [text._replace(text=text.text[: room // count]) for text in message_texts]
        for message_texts in texts
    ]


def windows_of(text: str) -> list[tuple[int, int]]:
    """Return start and end of each window of a text, cut at the ends of sentences or words where there are any.

    >>> windows_of("Short."), [end - start for start, end in windows_of("word " * 500)]
    ([(0, 6)], [625, 625, 625, 625])
    """
    count = -(-len(text) // _WINDOW)
    starts = [0] + [_cut(text, len(text) * number // count) for number in range(1, count)]
    return [(start, end) for start, end in pairwise([*starts, len(text)]) if start < end]


def _cut(text: str, position: int) -> int:
    """Return the best place to cut a text shortly before a position."""
    backward = text[position - _SLACK : position][::-1]
    found = next(filter(None, (end.search(backward) for end in _ENDS)), None)
    return position - found.start() if found else position


def without_copies(text: Text, others: Sequence[Text]) -> str:
    """Return a text with spaces in place of texts before it in its message that it repeats in their order.

    >>> orcas = "Orcas hunt together in large groups, they say."
    >>> without_copies(Text(f"1. {orcas} End", is_rest=True), [Text(orcas)]).split()
    ['1.', 'End']
    """
    shown = list[str]()
    end = 0
    comparable = [
        known.text
        for known in others
        if not known.is_rest and text.source_id in (0, known.source_id)
    ]
    for other in comparable[:_COPIES]:
        for copy in _copies(other) if _COPY <= len(other) <= len(text.text) - end else ():
            if (start := text.text.find(copy, end)) >= 0:
                shown += [text.text[end:start], " " * len(copy)]
                end = start + len(copy)
                break
    return "".join([*shown, text.text[end:]])


def _copies(text: str) -> Iterator[str]:
    """Yield a text as it is, and in JSON."""
    yield text
    yield json.dumps(text)[1:-1]
    if not text.isascii():
        yield json.dumps(text, ensure_ascii=False)[1:-1]


def texts_of_source(source: EntrySource, payload: str | None) -> Iterator[Text]:
    """Yield the text of a source and, if its tool showed the item, the item."""
    start, middle, end = source.place
    whole = source.piece or payload or ""
    text = Text(whole[start:middle], start, source.id, _label(source))
    item = Text(whole[middle:end], middle, source.id, is_rest=True)
    for found in (text, item) if source.is_shown else (text,):
        yield found._replace(start=-1) if source.piece else found


def _label(source: EntrySource) -> str:
    """Return title and address of a source."""
    if source.title and source.url:
        return f"{source.title} ({source.url})"
    return f"({source.url})" if source.url else source.title


def _of_value(
    value: Any, payload: str | None, *, skip: Collection[str] = (), is_rest: bool
) -> Iterator[Text]:
    """Yield the texts of a value: each part in the payload by itself, all other strings as one text."""
    strings: list[str] = []
    ranges: list[PayloadRange] = []
    _collect(value, skip, strings, ranges)
    text = "\n".join(filter(None, strings))
    if text:
        yield Text(text, is_rest=is_rest)
    for part in ranges:
        yield Text((payload or "")[part.start : part.end], part.start, is_rest=is_rest)


def _collect(
    value: Any, skip: Collection[str], strings: list[str], ranges: list[PayloadRange]
) -> None:
    """Add the strings and payload ranges of a value, in order; iterative, as values may be nested deeply."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, PayloadRange):
            if not item.is_media:
                ranges.append(item)
        elif isinstance(item, Mapping):
            pending += reversed(_searched_values(item, skip))
        elif isinstance(item, list | tuple | set | frozenset):
            pending += reversed(list(item))
        elif isinstance(item, str):
            strings.append(item)
        elif item is not None and not isinstance(item, bool | bytes):
            strings.append(text_of(item))


def _searched_values(fields: Mapping[Any, Any], skip: Collection[str]) -> list[Any]:
    """Return the values of a mapping whose texts are searched, without those of media."""
    if is_media(fields):
        return []
    return [value for key, value in fields.items() if key not in skip]


class Snippets:
    """Cuts the snippets of one query, whose words are given as in `query_groups`.

    >>> text = "Whales sing. " * 40 + "Seals bark. " + "Whales sing. " * 40
    >>> Snippets([("seals", "seal")]).of(text, characters=40)
    'Whales sing. Seals bark. Whales'
    """

    def __init__(self, groups: Iterable[tuple[str, ...]]) -> None:
        self._word_of = {term: number for number, group in enumerate(groups) for term in group}
        self._words_of: dict[tuple[str, str], set[int]] = {}

    def of(self, text: str, *, characters: int = 300) -> str:
        """Return the part of a text with the most different words, unchanged; its beginning if it has no word."""
        if len(text) <= characters:
            return text.strip()
        language = language_of(text)
        matches = [
            (start, end, words)
            for start, end, token in spans(text)
            if (words := self._words_in(token, language))
        ]
        start, end = _densest(matches, characters)
        room = max(0, characters - (end - start))
        begin = max(0, min(start - room // 2, len(text) - characters))
        shown = text[begin : begin + characters]
        if begin and not text[begin - 1].isspace():
            shown = shown.partition(" ")[2] or shown
        if begin + characters < len(text) and not text[begin + characters].isspace():
            shown = shown.rpartition(" ")[0] or shown
        return shown.strip()

    def marks(self, text: str) -> list[tuple[int, int]]:
        """Return start and end of each part of a text that has a word of the query, in order, without overlaps.

        >>> Snippets([("seal",)]).marks("Two seals bark.")
        [(4, 9)]
        """
        language = language_of(text)
        found = list[tuple[int, int]]()
        for start, end, token in spans(text):
            if self._words_in(token, language):
                is_next = found and start <= found[-1][1]
                found[-1:] = [(found[-1][0], end)] if is_next else [*found[-1:], (start, end)]
        return found

    def _words_in(self, token: str, language: str) -> set[int]:
        """Return the numbers of the query's words that a token has."""
        if (token, language) not in self._words_of:
            # A single character of a script without spaces is found inside pairs.
            terms = {*token_terms(token, language), *(token if len(token) <= 2 else ())}
            self._words_of[token, language] = {
                self._word_of[term] for term in terms if term in self._word_of
            }
        return self._words_of[token, language]


def _densest(matches: list[tuple[int, int, set[int]]], characters: int) -> tuple[int, int]:
    """Return the range with the most different words that fits; an empty range at the beginning without matches."""
    best = (0, 0)
    found = 0
    for index, (start, _, _) in enumerate(matches):
        words = set[int]()
        end = start
        for _, match_end, numbers in matches[index:]:
            if match_end - start > characters:
                break
            words |= numbers
            end = match_end
        if len(words) > found:
            best = (start, end)
            found = len(words)
    return best
