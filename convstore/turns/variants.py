"""The variants of a turn: begin another answer or another question, continue it, and list the variants at a place.

An unfinished variant is a `Branch`: readers see its messages only when its last entry makes it active.

Each entry that changes a place records the variant shown there (`log.facts.standing`), so no call reads all variants.

The module is long because variants are begun, continued, made active and listed by the same record of their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from convstore.append.condition import Condition
from convstore.append.rewinder import Rewinder
from convstore.append.writer import Writer
from convstore.exceptions import (
    InvalidInputError,
    TurnConflictError,
    UnknownMessageError,
)
from convstore.log.branch import Branch, branch_of
from convstore.log.entry import Entry, Totals
from convstore.log.facts.branch import BRANCH, shown_event
from convstore.log.facts.event import EVENT, TurnEvent, key_of_variant
from convstore.log.facts.standing import STANDING, Standing, key_of_number, key_of_place
from convstore.log.rewind import continued
from convstore.log.turn_record import TurnRecord
from convstore.mongo.log import StoredMessageRow
from convstore.mongo.parallel import together
from convstore.mongo.turn_leases import TurnLease
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader, Snapshot, check_question
from convstore.runtime.places import TurnPlace, place_at, place_of, standing_at
from convstore.turns.record_reader import FoundTurn
from convstore.values.scope import Scope, check_id, check_number, check_ordinals
from convstore.values.turns import TurnCall, Variant

_MAX_VARIANTS = 200
_FEW = 10
_SPARE = 20
"""Entries that one command reads in addition to one for each place of a page."""


class VariantRequest(NamedTuple):
    """A requested variant: its id, and the turn that its question replaces; "" for another answer."""

    variant: str
    instead_of: str = ""


class Variants:
    """Reads and changes the variants of turns, for all conversations of a store.

    Attributes:
        writer: Appends entries of variants.
    """

    def __init__(self, reader: LogReader, writer: Writer, rewinder: Rewinder) -> None:
        self._reader = reader
        self.writer = writer
        self._rewinder = rewinder

    async def _place(self, scope: Scope, turn_id: str, log: Snapshot | None = None) -> TurnPlace:
        """Return the place of a turn as of a log that was read, by default as of now. Three commands, rarely five.

        Raises:
            UnknownMessageError: The log does not have its question.
        """
        cached, question = await self._reader.find_question(scope, turn_id)
        log = log or await self._reader.snapshot(cached)
        return await place_at(self._reader, log, question)

    async def page(
        self, scope: Scope, turn_id: str, *, before_number: int | None, limit: int
    ) -> list[Variant]:
        """Return a page of the variants at the place of a turn; see `Conversation.variants`."""
        check_id(turn_id, name="turn_id")
        check_number(limit, name="limit", minimum=1, maximum=_MAX_VARIANTS)
        check_ordinals(before_number=before_number)
        log, question, standing, is_shown = await self._place(scope, turn_id)
        end = standing.variants + 1
        if before_number is not None:
            end = min(before_number, end)
        numbers = range(max(1, end - limit), end)
        found: dict[int, tuple[str, str, datetime]] = {}
        if 1 in numbers:
            first = standing.place
            rows = {turn_id: question}
            if first != turn_id:
                rows = await self._reader.messages_by_id(log.cached, [first])
            if first in rows:  # else a repair recorded it as lost
                found[1] = first, first, rows[first].entry.at
        keys = [key_of_number(standing.place, number) for number in numbers if number > 1]
        for row in (
            await self._reader.log.places.rows(log.cached.conversation, keys) if keys else ()
        ):
            shown = row.standing.shown
            began = datetime.fromisoformat(row.standing.began) if row.standing.began else row.at
            found[shown.number] = shown.turn, shown.variant, began
        active = standing.shown.variant if is_shown else ""
        return [
            Variant(
                turn_id=turn,
                variant_id=variant,
                number=number,
                count=standing.variants,
                is_active=variant == active,
                created_at=began,
            )
            for number, (turn, variant, began) in sorted(found.items())
        ]

    async def at_places(self, scope: Scope, turn_ids: Sequence[str]) -> dict[str, Standing]:
        """Return the variants shown at the places of active turns, by turn id. Turns without variants are left out.

        Two commands; two or three more for a question whose answer was rewound.
        """
        cached = await self._reader.find(scope)
        if cached is None or not turn_ids:
            return {}
        places = await self._reader.log.places.of_turns(cached.conversation, turn_ids)
        newest = await self._newest(cached, set(places.values()))
        found: dict[str, Standing] = {}
        for turn_id, place in places.items():
            if (standing := newest.get(place)) is None:
                continue
            if not standing.shown.variant:
                standing = (await self._place(scope, turn_id)).standing
            if standing.variants > 1 or not standing.shown.variant:
                found[turn_id] = standing
        return found

    async def _newest(
        self, cached: CachedConversation, places: Iterable[str]
    ) -> dict[str, Standing]:
        """Return the variant shown at each place. One command, or more if some places changed often."""
        found: dict[str, Standing] = {}
        wanted = {key_of_place(place) for place in places}
        while wanted:
            limit = len(wanted) + _SPARE
            rows = await self._reader.log.places.rows(
                cached.conversation, sorted(wanted), limit=limit
            )
            for row in rows:  # newest first
                found.setdefault(row.standing.place, row.standing)
            wanted -= {key_of_place(place) for place in found}
            if len(rows) < limit:
                break
        return found

    async def reselect(self, scope: Scope, end: Totals) -> None:
        """Make the longest summary of active messages the current one, after a variant has become active."""
        cached = await self._reader.find(scope)
        if cached:
            await self._rewinder.reselect(cached, end)

    async def enter(self, scope: Scope, turn_id: str, request: VariantRequest) -> FoundTurn:
        """Begin a variant, or return it if the log has it already; raises as `begin` and `read` do."""
        return await self.begin(scope, turn_id, request) or await self.read(scope, turn_id, request)

    async def reread(self, scope: Scope, branch: Branch) -> FoundTurn:
        """Return a variant as the log has it now; raises as `read` does."""
        event = branch.event
        instead_of = ""
        if event.variant == event.turn:
            instead_of = event.first_turn
        return await self.read(scope, event.turn, VariantRequest(event.variant, instead_of))

    async def begin(
        self, scope: Scope, turn_id: str, request: VariantRequest, *, after: Totals | None = None
    ) -> FoundTurn | None:
        """Append the first entry of a variant, directly after `after` if it is given; None if the log has it already.

        Raises:
            UnknownMessageError: The turn to answer or to replace is not in the log, or not active.
            TurnConflictError: The new question's id is that of another turn.
            InvalidInputError: The variant belongs to another turn.
            TailMoved: Another writer appended meanwhile.
        """
        cached = await self._reader.find(scope)
        if cached is None:
            raise UnknownMessageError(request.instead_of or turn_id, begins_turn=True)
        log = await self._reader.snapshot(cached, after or cached.tail)
        place, entries = await self._place_and_variant(
            log, request.instead_of or turn_id, request.variant
        )
        if not entries:
            return await self._begin(place, turn_id, request)
        if (event := EVENT.of(entries[0])) and event.turn != turn_id:
            raise InvalidInputError(
                f"{request.variant!r} belongs to turn {event.turn!r}; use another key"
            )
        return None

    async def _place_and_variant(
        self, log: Snapshot, turn_id: str, variant: str
    ) -> tuple[TurnPlace, list[Entry]]:
        """Return the place of a turn, and the entries of a variant there, as of a log; raises as `find_question` does.

        Two commands in one round trip; twice for an edited question.
        """
        cached = log.cached
        (row, entries), standing = await together(
            self._reader.log.message_and_entries(
                cached.conversation, turn_id, key_of_variant(turn_id, variant)
            ),
            standing_at(self._reader, log, turn_id),
        )
        if row is None:  # a new primary may lag
            _, row = await self._reader.find_question(cached.scope, turn_id)
        check_question(row)
        if (first := place_of(row)) != turn_id:
            return await together(
                place_at(self._reader, log, row), self._entries(log, first, [variant])
            )
        place = await place_at(self._reader, log, row, standing)
        return place, [entry for entry in entries if entry.number <= log.tail.entries]

    async def _begin(self, place: TurnPlace, turn_id: str, request: VariantRequest) -> FoundTurn:
        log = place.log
        question = place.question
        ordinal = question.message.ordinal
        is_taken = request.variant in (question.message.id, place.standing.place)
        if request.instead_of and not is_taken:
            is_taken = bool(
                await self._reader.messages_by_id(log.cached, [turn_id], retry_if_stale=False)
            )
        if is_taken:
            raise TurnConflictError(turn_id)
        if not log.active.has(ordinal):
            raise UnknownMessageError(question.message.id, begins_turn=True)
        last = ordinal - 1 if request.instead_of else ordinal
        record = await self._record(place, turn_id, request.variant)
        entry, point = await self._rewind_point(log, question, is_after=not request.instead_of)
        event = TurnEvent(
            "append", turn_id, first_turn=place.standing.place, variant=request.variant
        )
        totals = replace(continued(log.tail, point), over="")
        branch = Branch(
            event, last, entry, log.active.through(last), totals, standing=place.standing
        )
        branch = await self._counted(log, branch)
        condition = Condition(log.tail, branch=branch)
        written = await self.writer.append(
            log.cached.scope, (), condition=condition, facts=EVENT.put(branch.begin)
        )
        if begin := written.entry:
            branch = branch.after(begin)._replace(
                standing=STANDING.of(begin), began=begin.at.isoformat()
            )
        return FoundTurn(record, written.totals, branch, was_shown=False, is_new=True)

    async def _rewind_point(
        self, log: Snapshot, question: StoredMessageRow, *, is_after: bool
    ) -> tuple[int, Totals]:
        """Return the first entry with only messages from a question on, and the totals there; see `Rewinder.point`.

        With `is_after` the messages are those after the question.
        """
        entry = question.entry
        ordinal = question.message.ordinal
        if is_after and ordinal == entry.last and not entry.is_rewind:
            return entry.number + 1, log.active.of([entry])[0].totals
        return await self._rewinder.point(log.cached, ordinal, log.active, is_after=is_after)

    async def _counted(self, log: Snapshot, branch: Branch) -> Branch:
        """Return a variant whose totals are counted by the store's token counter."""
        as_if = Snapshot(log.cached, branch.totals, branch.active(log.active))
        totals = await self._reader.recount_tail(log.cached, branch.totals, as_if)
        return branch._replace(totals=totals)

    async def read(self, scope: Scope, turn_id: str, request: VariantRequest) -> FoundTurn:
        """Return a variant that the log has.

        Raises:
            UnknownMessageError: The log does not have it, or it is unfinished and its place is rewound.
        """
        place = await self._place(scope, request.instead_of or turn_id)
        entries = await self._entries(place.log, place.standing.place, [request.variant])
        if not entries:
            raise UnknownMessageError(turn_id, begins_turn=True)
        found = await self._variant_from(place, entries)
        is_over = found.record.is_finished or found.was_shown
        if not is_over and not found.fits(place.log):
            raise UnknownMessageError(place.question.message.id, begins_turn=True)
        return found

    async def _entries(self, log: Snapshot, place: str, variants: Iterable[str]) -> list[Entry]:
        """Return the entries of some variants, as of a log, in order. One command."""
        read = self._reader.log.places.entries_of
        return await read(log.cached.conversation, place, variants, through=log.tail.entries)

    async def _variant_from(self, place: TurnPlace, own: Sequence[Entry]) -> FoundTurn:
        """Return the variant whose entries these are."""
        log = place.log
        standing = place.standing
        event = EVENT.of(own[0]) or TurnEvent("", "")
        began = await self._reader.snapshot(log.cached, own[0].totals)
        branch = branch_of(own, began.active)._replace(standing=standing)
        was_shown = any(BRANCH.of(entry) is None for entry in own)
        is_shown_now = was_shown and place.is_shown and standing.shown.variant == event.variant
        record = await self._record(place, event.turn, event.variant)
        for entry in log.active.of(own) if is_shown_now else own:
            decoded = await self._reader.decode_all(log.cached, entry.messages)
            record.add(entry.messages, decoded, EVENT.of(entry))
        if is_shown_now:
            await self._add_following(record, log, own[-1].number + 1)
        elif was_shown and not record.is_ended:  # another variant replaced it
            end = TurnEvent("finish", event.turn, question=record.fold.question)
            record.fold.add((), end)
        return FoundTurn(record, log.tail, await self._counted(log, branch), was_shown)

    async def _record(self, place: TurnPlace, turn_id: str, variant: str) -> TurnRecord:
        """Return the record of a variant without its own messages: for another answer, the question alone."""
        record = TurnRecord.of(turn_id, 0)
        question = place.question.message
        if turn_id == question.id != variant:
            record.add([question], await self._reader.decode_all(place.log.cached, [question]))
        return record

    async def _add_following(self, record: TurnRecord, log: Snapshot, start: int) -> None:
        """Add the messages and events of a turn from an entry on, up to the next question."""
        async with aclosing(self._reader.batches(log, start=start, at_once=_FEW)) as batches:
            async for entries in batches:
                for entry in entries:
                    decoded = await self._reader.decode_all(log.cached, entry.messages)
                    record.add(entry.messages, decoded, shown_event(entry))
                if record.fold.is_superseded:
                    return

    async def hidden(
        self, scope: Scope, turn_id: str, variant: str
    ) -> tuple[list[BaseMessage], str]:
        """Return the messages of a variant that is not shown yet, and the id of the question that is shown instead.

        Raises:
            UnknownMessageError: The log does not have its question.
        """
        place = await self._place(scope, turn_id)
        own = await self._entries(place.log, place.standing.place, [variant])
        messages = (await self._variant_from(place, own)).record.messages if own else []
        return messages, place.standing.shown.turn

    async def pending(self, scope: Scope, turn_id: str) -> list[FoundTurn]:
        """Return the variants at the place of a turn that are not finished, and may become active, newest first."""
        with suppress(UnknownMessageError, InvalidInputError):
            return await self._pending(await self._place(scope, turn_id), lambda _: True)
        return []

    async def unfinished(
        self, scope: Scope, turn_id: str, log: Snapshot | None = None
    ) -> TurnPlace | None:
        """Return the place of a turn, as `_place` does, if it has an unfinished variant; else None."""
        with suppress(UnknownMessageError, InvalidInputError):
            place = await self._place(scope, turn_id, log)
            return place if place.standing.unfinished else None
        return None

    async def newest_pending(self, place: TurnPlace, lease: TurnLease | None) -> FoundTurn | None:
        """Return the newest variant that the holder of a lease makes, or that waits for a person; else None."""

        def is_wanted(own: Sequence[Entry]) -> bool:
            events = [event for entry in own if (event := EVENT.of(entry))]
            is_made = lease is not None and lease.is_for(events[0].turn, events[0].variant)
            return is_made or any(event.kind == "wait" for event in events)

        return next(iter(await self._pending(place, is_wanted, limit=1)), None)

    async def _pending(
        self, place: TurnPlace, is_wanted: Callable[[Sequence[Entry]], bool], *, limit: int = 0
    ) -> list[FoundTurn]:
        """Return the wanted variants that may become active, newest first; with `limit` at most so many."""
        found: list[FoundTurn] = []
        for own in await self._entries_by_variant(place, place.standing.unfinished):
            if _is_superseded(place.log, own) or not is_wanted(own):
                continue
            variant = await self._variant_from(place, own)
            if not variant.record.is_finished and variant.fits(place.log):
                found.append(variant)
            if len(found) == limit:
                break
        return found

    async def _entries_by_variant(
        self, place: TurnPlace, variants: Iterable[str]
    ) -> list[list[Entry]]:
        """Return the entries of each variant, the variant that began last first. One command at most."""
        by_variant: dict[str, list[Entry]] = {}
        wanted = set(variants)
        for entry in await self._entries(place.log, place.standing.place, wanted) if wanted else ():
            if event := EVENT.of(entry):
                by_variant.setdefault(event.variant, []).append(entry)
        return list(by_variant.values())[::-1]

    async def with_call(
        self, scope: Scope, turn_id: str, result_id: str
    ) -> tuple[list[FoundTurn], str]:
        """Return the variants of a turn in which a call waits for a decision or was decided, newest first.

        Also return the id of the variant in which an agent paused last; "" if no agent waits there.
        """
        with suppress(UnknownMessageError, InvalidInputError):
            place = await self._place(scope, turn_id)
            variants = {*place.standing.unfinished, *await self._with_result(place, result_id)}
            found: list[FoundTurn] = []
            paused_last = ""
            for own in await self._entries_by_variant(place, variants):
                variant = await self._variant_from(place, own)
                record = variant.record
                is_open = (
                    not variant.was_shown
                    and not _is_superseded(place.log, own)
                    and variant.fits(place.log)
                )
                if is_open and record.paused:
                    paused_last = paused_last or variant.variant
                if not (is_open or variant.was_shown):
                    record.fold.is_superseded = True
                call = record.call_of_result(result_id)
                if record.turn_id == turn_id and call and call.result_id in record.fold.waiting:
                    found.append(variant)
            return found, paused_last
        return [], ""

    async def _with_result(self, place: TurnPlace, result_id: str) -> set[str]:
        """Return the variants at a place that have the result of a call."""
        conversation = place.log.cached.conversation
        rows = await self._reader.log.messages_by_id(conversation, [result_id])
        events = [EVENT.of(row.entry) for row in rows.values()]
        return {
            event.variant for event in events if event and event.first_turn == place.standing.place
        }


def _is_superseded(log: Snapshot, own: Sequence[Entry]) -> bool:
    """Return True if the user went on with another question after a variant was begun."""
    return log.tail.turns > own[0].totals.turns


def check_resumable(
    record: TurnRecord, call: TurnCall, branch: Branch | None, paused_last: str
) -> None:
    """Raise an InvalidInputError if the agent of a call has paused in another variant since; see `resume_command`."""
    if record.fold.waiting[call.result_id].interrupt and paused_last not in (
        "",
        branch and branch.event.variant,
    ):
        raise InvalidInputError(
            f"call {call.id!r} is not where the agent of turn {record.turn_id!r} paused last, so "
            f"it could not be resumed there; decide about the calls of variant {paused_last!r}, "
            "which get_turn(...).pending has"
        )


def requested_variant(
    turn_id: str, regenerate: str | None, instead_of: str | None, *, has_question: bool
) -> VariantRequest | None:
    """Return the variant that the arguments of `Conversation.turn` ask for; None for the turn itself."""
    if regenerate is not None:
        if has_question or instead_of or check_id(regenerate, name="regenerate") == turn_id:
            raise InvalidInputError(
                "regenerate takes a key of its own, and neither a question nor instead_of"
            )
        return VariantRequest(regenerate)
    if instead_of is None:
        return None
    if not has_question or check_id(instead_of, name="instead_of") == turn_id:
        raise InvalidInputError("instead_of takes another turn, and the new question as human")
    return VariantRequest(turn_id, instead_of)
