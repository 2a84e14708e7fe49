"""List the searchable texts of a stored message, split them into windows, and cut snippets from windows.

A tool result with sources is indexed source by source. Its content and data often repeat the sources, so only words
that the sources lack are added. Images, audio and files are left out.
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
"""Maximum characters of the searched texts of one append, and of a segment. So the document of a segment is always
smaller than 16 MB: the worst texts take 6.5 bytes for each character."""

_WINDOW = 800
"""Maximum average number of characters in the windows of a text."""
_SLACK = 150
_ENDS = [re.compile(end) for end in (r"\s[.!?;:]|\n|[\u3002\uff01\uff1f\uff1b]", r"\s", r"[^\w]")]
"""Patterns of places to cut after, the best kind first, for a reversed text."""

_COPY = 40
_COPIES = 64
"""Minimum length of a text whose copies are not indexed again, and the maximum number of such texts in a message."""

_NOT_TEXT = frozenset(
    {"id", "index", "signature", "encrypted_content", "data", "base64", "call_id", "type"}
)
"""Keys of content blocks with ids or data."""


class SearchableText(NamedTuple):
    """A searchable text of a message.

    Attributes:
        text: The text; "" if it is in a payload that was not read.
        start: Its first character in the payload; -1 if it is not in the payload.
        source_id: The source that it belongs to, or 0.
        label: Title and address of the source, which are searched with the beginning of the text.
        is_rest: True if it may repeat other texts of the message.
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
) -> list[SearchableText]:
    """Return the searchable texts of a message that was decoded without its payload.

    Their number and order depend on the message alone; texts in a payload that was not read are empty. Results of the
    retrieval tool are left out, because they are copies. So are parts of an artifact other than sources, because the
    tool did not show them.
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


def cut_to_fit(texts: Sequence[Sequence[SearchableText]]) -> Sequence[Sequence[SearchableText]]:
    """Return the texts of the messages of one append; the longest ones are cut to fit into `MAX_CHARACTERS`."""
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
    """Return start and end of each window of a text, cut at ends of sentences or words if possible.

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


def without_copies(text: SearchableText, others: Sequence[SearchableText]) -> str:
    """Return a text with spaces in place of copies of earlier texts of its message, if they are in the same order.

    >>> orcas = "Orcas hunt together in large groups, they say."
    >>> without_copies(SearchableText(f"1. {orcas} End", is_rest=True), [SearchableText(orcas)]).split()
    ['1.', 'End']
    """
    shown: list[str] = []
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
    """Yield a text unchanged, and in its JSON forms."""
    yield text
    yield json.dumps(text)[1:-1]
    if not text.isascii():
        yield json.dumps(text, ensure_ascii=False)[1:-1]


def texts_of_source(source: EntrySource, payload: str | None) -> Iterator[SearchableText]:
    """Yield the text of a source and, if its tool showed the item, the item."""
    start, middle, end = source.place
    whole = source.piece or payload or ""
    text = SearchableText(whole[start:middle], start, source.id, _label(source))
    item = SearchableText(whole[middle:end], middle, source.id, is_rest=True)
    for found in (text, item) if source.is_shown else (text,):
        yield found._replace(start=-1) if source.piece else found


def _label(source: EntrySource) -> str:
    """Return title and address of a source."""
    if source.title and source.url:
        return f"{source.title} ({source.url})"
    return f"({source.url})" if source.url else source.title


def _of_value(
    value: Any, payload: str | None, *, skip: Collection[str] = (), is_rest: bool
) -> Iterator[SearchableText]:
    """Yield the texts of a value: all its strings as one text, and each part in the payload as a separate text."""
    strings: list[str] = []
    ranges: list[PayloadRange] = []
    _collect(value, skip, strings, ranges)
    text = "\n".join(filter(None, strings))
    if text:
        yield SearchableText(text, is_rest=is_rest)
    for part in ranges:
        yield SearchableText((payload or "")[part.start : part.end], part.start, is_rest=is_rest)


def _collect(
    value: Any, skip: Collection[str], strings: list[str], ranges: list[PayloadRange]
) -> None:
    """Add the strings and payload ranges of a value, in order; iterative, because values may be nested deeply."""
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
        """Return the part of a text with the most different words of the query; if it has none, the beginning."""
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
        """Return start and end of each word of the query in a text, in order; words that touch or overlap are joined.

        >>> Snippets([("seal",)]).marks("Two seals bark.")
        [(4, 9)]
        """
        language = language_of(text)
        found: list[tuple[int, int]] = []
        for start, end, token in spans(text):
            if self._words_in(token, language):
                is_next = found and start <= found[-1][1]
                found[-1:] = [(found[-1][0], end)] if is_next else [*found[-1:], (start, end)]
        return found

    def _words_in(self, token: str, language: str) -> set[int]:
        """Return the numbers of the query's words that a token matches."""
        if (token, language) not in self._words_of:
            # A single character of a script without spaces is found inside pairs.
            terms = {*token_terms(token, language), *(token if len(token) <= 2 else ())}
            self._words_of[token, language] = {
                self._word_of[term] for term in terms if term in self._word_of
            }
        return self._words_of[token, language]


def _densest(matches: list[tuple[int, int, set[int]]], characters: int) -> tuple[int, int]:
    """Return the range with the most different words that fits; without matches, an empty range at the beginning."""
    best = (0, 0)
    found = 0
    for index, (start, _, _) in enumerate(matches):
        words: set[int] = set()
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
