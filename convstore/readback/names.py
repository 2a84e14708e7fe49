"""Find the messages and sources that a model names, in any unambiguous form.

A name is first looked up unchanged, as the id of a message or of a tool call. If it is unknown, it may be a source
number ("source 3", "[3-5]"), an ordinal ("m12"), an id in quotes or after a word, or the beginning of an id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from convstore.log.entry import EntrySource
from convstore.mongo.log import StoredMessageRow
from convstore.mongo.parallel import together
from convstore.readback.request import MessageRef, Request
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.sources.source import MAX_SOURCES, read_ids
from convstore.values.scope import MAX_IDS, id_problem

_MIN_BEGINNING = 6
"""Minimum length of the beginning of an id."""
_MAX_BEGINNINGS = 5
_MAX_ORDINALS = 20
_WORD = r"(?:tool|call|messages?|sources?|results?|ordinals?|ids?|numbers?|and|no|nr)\b[ _.:=]*|# ?"
_LABEL = re.compile(rf"(?i)(?:{_WORD})+(?=\S)")
_ORDINAL = re.compile(r"(?i)(?:m|(?:message|ordinal) (?:no\.? ?|#)?)(\d{1,15})", re.ASCII)
_NUMBERS = re.compile(r"\d{1,15}(-\d{1,15})?([,; ]+\d{1,15}(-\d{1,15})?)*", re.ASCII)


class Meaning(NamedTuple):
    """Meaning of a name that is not an id itself: source numbers, an ordinal, or an id inside the name."""

    numbers: Sequence[int] = ()
    ordinal: int | None = None
    id: str = ""


def meaning_of(name: str) -> Meaning:
    """Parse the meaning of a name. It has at most one source number more than a call reads.

    >>> meaning_of("source 3").numbers, meaning_of("[1 - 3]").numbers, meaning_of("m12").ordinal
    ([3], [1, 2, 3], 12)
    >>> meaning_of('message id "9f0c…"').id
    '9f0c'
    """
    plain = " ".join(name.split()).strip(" '\"`<>[](){}.,;\u2026")
    if found := _ORDINAL.fullmatch(plain):
        return Meaning(ordinal=int(found[1]))
    plain = _LABEL.sub("", plain, count=1) if _LABEL.match(plain) else plain
    numbers = re.sub(
        r" ?[-\u2013] ?", "-", " ".join(re.sub(r"[\[\]()#]|\band\b", " ", plain).split())
    )
    if _NUMBERS.fullmatch(numbers):
        return Meaning(read_ids(re.sub("[,; ]+", ",", numbers)))
    return Meaning(id=plain.strip("'\"`<>[](){}"))


@dataclass(slots=True)
class ResolvedNames:
    """The messages and sources that a request names, in its order, unknown names, and remarks for the model."""

    rows: list[StoredMessageRow] = field(default_factory=list)
    sources: list[tuple[StoredMessageRow, EntrySource]] = field(default_factory=list)
    missing: list[int | str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


async def resolve_names(
    reader: LogReader, cached: CachedConversation, request: Request, *, exactly: bool = False
) -> ResolvedNames:
    """Look up the messages and sources that a request names; with `exactly`, ids are not interpreted."""
    resolved = ResolvedNames()
    numbers = dict.fromkeys(request.source_ids)
    ids = list(dict.fromkeys(request.tool_message_ids))[:MAX_IDS]
    meanings = {} if exactly else {id_: meaning_of(id_) for id_ in ids}
    by_id = await _by_id(reader, cached, ids, meanings)
    ordinals = _assign_names(ids, meanings, by_id, resolved, numbers)
    message_refs = [*request.message_refs, *(MessageRef(ordinal, ordinal) for ordinal in ordinals)]
    at = await _rows_at(reader, cached, message_refs)
    resolved.rows += at.values()
    resolved.missing += [id_ for ordinal, id_ in ordinals.items() if ordinal not in at]
    if len(numbers) > MAX_SOURCES:
        resolved.remarks.append(f"Only the first {MAX_SOURCES} source_ids are read.")
    wanted = list(numbers)[:MAX_SOURCES]
    found = await reader.log.sources_by_id(cached.conversation, wanted) if wanted else {}
    resolved.sources = [found[number] for number in wanted if number in found]
    resolved.missing += [number for number in wanted if number not in found]
    return resolved


async def _by_id(
    reader: LogReader, cached: CachedConversation, ids: Sequence[str], meanings: dict[str, Meaning]
) -> dict[str, list[StoredMessageRow]]:
    """Look up messages by their ids, by the ids of the tool calls that they answer, or by beginnings of ids."""
    valid = [id_ for id_ in ids if not id_problem(id_)]
    by_id = await reader.messages_by_id(cached, valid, retry_if_stale=False) if valid else {}
    found = {id_: [row] for id_, row in by_id.items()}
    if others := [id_ for id_ in valid if id_ not in found]:
        begun = {id_: meanings[id_].id for id_ in others if id_ in meanings and meanings[id_].id}
        results, beginnings = await together(
            reader.log.messages_by_call(cached.conversation, others),
            _rows_by_beginning(reader, cached, begun.values()),
        )
        for row in results:
            found.setdefault(row.message.call, []).append(row)
        found = {
            id_: [beginnings[text]] for id_, text in begun.items() if text in beginnings
        } | found
    return found


async def _rows_by_beginning(
    reader: LogReader, cached: CachedConversation, texts: Iterable[str]
) -> dict[str, StoredMessageRow]:
    """Return the messages with these ids, or with the only id that begins so. MongoDB refuses patterns with NUL."""
    wanted = [
        text for text in dict.fromkeys(texts) if len(text) >= _MIN_BEGINNING and "\0" not in text
    ]
    rows = await reader.log.messages_by_beginning(cached.conversation, wanted[:_MAX_BEGINNINGS])
    found: dict[str, StoredMessageRow] = {}
    for text in wanted[:_MAX_BEGINNINGS]:
        begun = [id_ for id_ in rows if id_.startswith(text)]
        if text in rows or len(begun) == 1:
            found[text] = rows[text if text in rows else begun[0]]
    return found


async def _rows_at(
    reader: LogReader, cached: CachedConversation, message_refs: Sequence[MessageRef]
) -> dict[int, StoredMessageRow]:
    """Return messages by ordinal. One command; one more for each message whose entry is unknown."""
    firsts = {ref.first for ref in message_refs}
    rows = await reader.log.messages_of_entries(cached.conversation, firsts) if firsts else {}
    unknown = [ref.ordinal for ref in message_refs if ref.ordinal not in rows][:_MAX_ORDINALS]
    more = await together(
        *(reader.log.message_at(cached.conversation, ordinal) for ordinal in unknown)
    )
    rows |= {row.message.ordinal: row for row in more if row}
    return {ref.ordinal: rows[ref.ordinal] for ref in message_refs if ref.ordinal in rows}


def _assign_names(
    ids: Sequence[str],
    meanings: Mapping[str, Meaning],
    by_id: Mapping[str, Sequence[StoredMessageRow]],
    resolved: ResolvedNames,
    numbers: dict[int, None],
) -> dict[int, str]:
    """Add messages found by id to `resolved`, and source numbers to `numbers`; return the names by their ordinals."""
    ordinals: dict[int, str] = {}
    for id_ in ids:
        meaning = meanings.get(id_, Meaning())
        if id_ in by_id:
            resolved.rows += by_id[id_]
        elif meaning.numbers:
            numbers |= dict.fromkeys(meaning.numbers)
        elif meaning.ordinal is not None and len(ordinals) < _MAX_ORDINALS:
            ordinals.setdefault(meaning.ordinal, id_)
        else:
            resolved.missing.append(id_)
    return ordinals
