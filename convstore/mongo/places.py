"""Read the facts of entries about the places of variants, see `log.facts.standing`.

Each method is one command, unless its docstring says otherwise. Queries by `lookup` have no bounds on ``_id``, because
a server might then scan a range of the log for one entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from convstore.log.entry import Entry
from convstore.log.facts.event import EVENT, TurnEvent, key_of_call_events, key_of_variant
from convstore.log.facts.standing import STANDING, Standing
from convstore.mongo.bson_values import reading, stored_list, stored_text, utc
from convstore.mongo.collection import BY_KEY, NEWEST_FIRST, Collection, within
from convstore.mongo.documents import LEAN, NO_MESSAGES, entry_from
from convstore.mongo.driver import decoded
from convstore.mongo.facts import fact_in, needed_for
from convstore.mongo.keys import entry_number, entry_range
from convstore.mongo.versions import check_version

_STANDING = {"conversation": 1, "at": 1, "v": 1, **needed_for(STANDING)}
_EVENT = {"conversation": 1, "v": 1, **needed_for(EVENT)}
_PLACE = {**_EVENT, "messages.id": 1}
_MOST_EVENTS = 200


class StandingRow(NamedTuple):
    """The variants of a place as of an entry, with the entry's number and date."""

    number: int
    at: datetime
    standing: Standing


class Places:
    """Commands on the ``log`` collection by the keys of places."""

    def __init__(self, log: Collection) -> None:
        self._log = log

    async def entries_of(
        self, conversation: str, place: str, variants: Iterable[str], *, through: int
    ) -> list[Entry]:
        """Return the entries of some variants at a place, up to a number, in order."""
        keys = [key_of_variant(place, variant) for variant in variants]
        query = {"conversation": conversation, "lookup": {"$in": keys}}
        found = await self._log.find(query, LEAN, order=BY_KEY)
        entries = [entry_from(decoded(document), has_messages=True) for document in found]
        return [entry for entry in entries if entry.number <= through]

    async def last(
        self, conversation: str, key: bytes, *, through: int | None = None
    ) -> StandingRow | None:
        """Return the fact of the last entry with a key, if there is one.

        One command, and one more if that entry is after the number `through`.
        """
        query: dict[str, Any] = {"conversation": conversation, "lookup": key}
        found = await self._log.find(query, _STANDING, order=NEWEST_FIRST, limit=1)
        row = _row(found[0]) if found else None
        if row is None or through is None or row.number <= through:
            return row
        query |= within(conversation, *entry_range(conversation, before=through + 1))
        found = await self._log.find(query, _STANDING, order=NEWEST_FIRST, limit=1)
        return _row(found[0]) if found else None

    async def last_entries(self, conversation: str, key: bytes, *, limit: int) -> list[Entry]:
        """Return the last entries with a key, newest first, without their messages."""
        query = {"conversation": conversation, "lookup": key}
        found = await self._log.find(query, NO_MESSAGES, order=NEWEST_FIRST, limit=limit)
        return list(map(entry_from, found))

    async def rows(
        self, conversation: str, keys: Sequence[bytes], *, limit: int = 0
    ) -> list[StandingRow]:
        """Return the facts of the entries with some keys, or of the newest `limit` of them, newest first."""
        query = {"conversation": conversation, "lookup": {"$in": keys}}
        found = await self._log.find(query, _STANDING, order=NEWEST_FIRST, limit=limit)
        return [_row(document) for document in found]

    async def events_of(
        self,
        conversation: str,
        turn_id: str,
        variants: Iterable[tuple[str, str]],
        *,
        through: int,
    ) -> list[TurnEvent]:
        """Return the events of a turn's calls, waits and decisions, up to an entry, in order.

        This includes events that were recorded while these variants, given by place and id, were hidden.
        """
        keys = [key_of_variant(place, variant) for place, variant in variants]
        query = {
            "conversation": conversation,
            "lookup": {"$in": [key_of_call_events(turn_id), *keys]},
        }
        limit = 0 if keys else _MOST_EVENTS
        found = await self._log.find(query, _EVENT, order=NEWEST_FIRST, limit=limit)
        events: list[TurnEvent] = []
        for document in reversed(found):
            check_version(document, "entry")
            with reading(document):
                event = fact_in(document, EVENT)
            if event and event.is_of_call and entry_number(document["_id"]) <= through:
                events.append(event)
        return events

    async def of_turns(self, conversation: str, turn_ids: Iterable[str]) -> dict[str, str]:
        """Return the places of some turns, by the ids of their questions, without reading contents."""
        wanted = set(turn_ids)
        query = {"conversation": conversation, "messages.id": {"$in": sorted(wanted)}}
        places: dict[str, str] = {}
        for document in await self._log.find(query, _PLACE):
            check_version(document, "entry")
            with reading(document):
                ids = [stored_text(message["id"]) for message in stored_list(document["messages"])]
                event = fact_in(document, EVENT)
                places |= {id_: (event and event.first_turn) or id_ for id_ in ids}
        return {id_: place for id_, place in places.items() if id_ in wanted}


def _row(document: Mapping[str, Any]) -> StandingRow:
    check_version(document, "entry")
    with reading(document):
        standing = fact_in(document, STANDING)
        if standing is None:
            raise KeyError(STANDING.name)
        return StandingRow(entry_number(document["_id"]), utc(document["at"]), standing)
