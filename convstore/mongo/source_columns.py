"""Convert an entry's sources to columns and back, and build the filter that finds them.

A run of adjacent ids in one result is one document with a list for each field. A column whose values are all the
default is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import groupby
from typing import Any

from convstore.log.entry import Entry, EntrySource
from convstore.log.totals import ShownSources
from convstore.mongo.bson_values import (
    from_stored,
    reading,
    stored_bytes,
    stored_list,
    stored_number,
    stored_number_or_none,
    stored_numbers,
    stored_text,
)
from convstore.sources.places import SourcePlace
from convstore.sources.source import TEXT_DIGEST_BYTES

_BLOCK = 16
"""Number of source ids in one block: a result has about ten sources, so one or two blocks find it."""

_MAX_EXACT = 10
"""Number of ids up to which the filter excludes entries of the same blocks without these ids."""


def source_blocks(numbers: Iterable[int]) -> list[int]:
    """Return the blocks that contain some source ids; sources are indexed by these blocks."""
    return sorted({number // _BLOCK for number in numbers})


def source_filter(numbers: Iterable[int]) -> dict[str, Any]:
    """Return the filter for entries that have or claim some source ids; for many ids also entries near them match."""
    wanted = sorted(numbers)
    found: dict[str, Any] = {"lookup": {"$in": source_blocks(wanted)}}
    if len(wanted) <= _MAX_EXACT:
        found["$or"] = [
            {"kept_source_ids": {"$in": wanted}},
            *(
                {"sources": {"$elemMatch": {"first": {"$lte": number}, "last": {"$gte": number}}}}
                for number in wanted
            ),
        ]
    return found


def source_documents(entry: Entry) -> list[dict[str, Any]]:
    """Return an entry's sources in columns: one document for each run of adjacent ids in one result."""
    positions = {message.id: position for position, message in enumerate(entry.messages)}
    runs = groupby(enumerate(entry.sources), key=_run_of)
    return [_run_document([source for _, source in run], positions[key[0]]) for key, run in runs]


def _run_of(numbered: tuple[int, EntrySource]) -> tuple[str, bool, bool, int]:
    """Return the key that the sources of one run share; the difference of id and index is constant for adjacent ids."""
    index, source = numbered
    return source.message_id, source.kept, source.is_shown, source.id - index


def _run_document(run: Sequence[EntrySource], position: int) -> dict[str, Any]:
    places = [source.place for source in run]
    document: dict[str, Any] = {
        "message": position,
        "first": run[0].id,
        "last": run[-1].id,
        "titles": [source.title for source in run],
        "digests": b"".join(source.digest for source in run),
        "starts": [place.start for place in places],
        "middles": [place.middle for place in places],
        "ends": [place.end for place in places],
    }
    if run[0].kept:
        document["kept"] = 1
    if run[0].is_shown:
        document["shown"] = 1
    return document | _rare_columns(run)


def _rare_columns(run: Sequence[EntrySource]) -> dict[str, list[Any]]:
    """Return the columns in which a source has a value other than the default."""
    columns: dict[str, list[Any]] = {
        "urls": [source.url for source in run],
        "pieces": [source.piece for source in run],
        "given": [None if source.kept else source.given for source in run],
        "earlier": [source.earlier for source in run],
        "plain": [int(source.is_plain) for source in run],
    }
    return {name: column for name, column in columns.items() if any(column)}


def sources_from(document: Mapping[str, Any], messages: Sequence[Any]) -> tuple[EntrySource, ...]:
    """Return an entry's sources; empty if its messages were not read."""
    if "messages" not in document:
        return ()
    runs = stored_list(document["sources"], minimum=1)
    return tuple(source for run in runs for source in _run_from(run, messages, document["_id"]))


def _run_from(run: Mapping[str, Any], messages: Sequence[Any], entry: str) -> list[EntrySource]:
    first = stored_number(run["first"])
    message_id = stored_text(messages[stored_number(run["message"])]["id"])
    places = _places_of(run)
    numbers = range(first, first + len(places))
    if stored_number(run["last"]) != numbers[-1]:
        raise ValueError("the last number of a run of sources does not match their number")
    kept = bool(stored_number(run.get("kept", 0)))
    is_shown = bool(stored_number(run.get("shown", 0)))
    columns = zip(
        numbers,
        _column(run, "plain", numbers, 0, stored_number),
        map(from_stored, stored_list(run["titles"])),
        _column(run, "urls", numbers, "", from_stored),
        places,
        _digests_of(run),
        _column(run, "pieces", numbers, "", from_stored),
        _column(run, "given", numbers, None, stored_number_or_none),
        _column(run, "earlier", numbers, None, stored_number_or_none),
        strict=True,
    )
    return [
        EntrySource(
            number,
            message_id,
            title,
            url,
            place,
            digest,
            piece,
            number if kept else given,
            earlier,
            bool(is_plain),
            is_shown,
            entry,
        )
        for number, is_plain, title, url, place, digest, piece, given, earlier in columns
    ]


def _places_of(run: Mapping[str, Any]) -> list[SourcePlace]:
    """Return the positions of a run's sources; raise a ValueError for an impossible position."""
    columns = (stored_numbers(stored_list(run[name])) for name in ("starts", "middles", "ends"))
    places = [SourcePlace(*ends) for ends in zip(*columns, strict=True)]
    if any(not place.start <= place.middle <= place.end for place in places):
        raise ValueError("the start, middle and end of a source are not in order")
    return places


def _column(
    run: Mapping[str, Any],
    name: str,
    numbers: Sized,
    default: Any,
    read: Callable[[Any], Any],
) -> Iterable[Any]:
    """Return a column with a value for each source; the default if it is not stored."""
    if name in run:
        return map(read, stored_list(run[name]))
    return [default] * len(numbers)


def _digests_of(run: Mapping[str, Any]) -> list[bytes]:
    packed = stored_bytes(run["digests"])
    if len(packed) % TEXT_DIGEST_BYTES:
        raise ValueError("the digests of sources are truncated")
    return [
        packed[start : start + TEXT_DIGEST_BYTES]
        for start in range(0, len(packed), TEXT_DIGEST_BYTES)
    ]


def taken_ids(document: Mapping[str, Any], wanted: Iterable[int]) -> set[int]:
    """Return the ids among some that an entry has or claims; raise a CorruptDocumentError if it is damaged."""
    with reading(document):
        sources, kept = (
            stored_list(document.get(name, ())) for name in ("sources", "kept_source_ids")
        )
        runs = [(stored_number(run["first"]), stored_number(run["last"])) for run in sources]
    return {
        number
        for number in wanted
        if number in kept or any(first <= number <= last for first, last in runs)
    }


def shown_in(documents: Iterable[Mapping[str, Any]]) -> dict[bytes, int]:
    """Return the newest distinct sources of some entries, read in order; raise a CorruptDocumentError for damage."""
    shown = ShownSources({})
    for document in documents:
        with reading(document):
            for run in stored_list(document.get("sources", ())):
                for number, digest in enumerate(_digests_of(run), stored_number(run["first"])):
                    shown.add(digest, number)
    return shown.numbers
