"""The variants of a turn: begin another answer or another question, list what stands at a place, activate one of it.

A variant that is worked on is a `Branch`: readers see its messages only when its last entry makes it active. A change
of the active variant is one rewind entry, which restores the log as it was when the variant was active last.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from convstore.append.condition import Condition
from convstore.append.rewinder import Rewinder
from convstore.append.writer import Writer
from convstore.exceptions import (
    InvalidInputError,
    MessageRewoundError,
    TurnConflictError,
    UnknownMessageError,
)
from convstore.log.branch import Branch
from convstore.log.entry import Entry, Totals
from convstore.log.rewind import Change, continued
from convstore.log.turn_event import TurnEvent
from convstore.log.turn_record import TurnRecord
from convstore.mongo.log import StoredMessageRow
from convstore.runtime.log_reader import LogReader, Snapshot
from convstore.values.scope import Scope, check_id
from convstore.values.turns import TurnCall, Variant


class Asked(NamedTuple):
    """A variant that a caller asks for: its id, and the turn that its question replaces; "" for another answer."""

    variant: str
    instead_of: str = ""


VariantRecord = tuple[TurnRecord, Totals, Branch]
"""A variant as the log has it: its turn, the end of the log, and how to continue it."""

TurnOrVariant = tuple[TurnRecord, Totals, Branch | None]
"""The same of a turn as it stands, which has no branch, or of a variant."""


class _Place(NamedTuple):
    """What stands at one place of a log.

    Attributes:
        log: The log.
        rows: The questions that were looked up, by id.
        first_turn: Id of the turn that stood there first.
        entries: The entries of all variants, in order.
    """

    log: Snapshot
    rows: dict[str, StoredMessageRow]
    first_turn: str
    entries: Sequence[Entry]

    @property
    def begun(self) -> list[TurnEvent]:
        """What the first entry of each variant records, newest first."""
        return [entry.event for entry in reversed(self.entries) if entry.event and entry.event.kind == "begin"]

    def is_closed(self, variant: str) -> bool:
        """Return True if the user went on with another question after a variant was begun."""
        return self.log.tail.turns > self.of(variant)[0].totals.turns

    @property
    def stood(self) -> dict[str, list[Entry]]:
        """The entries of each variant that was finished, by its id, in order of their beginning."""
        own = {event.variant: self.of(event.variant) for entry in self.entries if (event := entry.event)}
        return {variant: entries for variant, entries in own.items() if not all(entry.branch for entry in entries)}

    def of(self, variant: str) -> list[Entry]:
        """Return the entries that a variant consists of, in order."""
        return [entry for entry in self.entries if entry.is_of(variant)]

    def active(self, log: Snapshot) -> str | None:
        """Return the id of the variant that was active in a log, that of the first turn for the first one."""
        firsts = {id_: next(entry.first for entry in own if entry.messages) for id_, own in self.stood.items()}
        firsts[self.first_turn] = self.rows[self.first_turn].message.ordinal
        there = [id_ for id_ in firsts if firsts[id_] <= log.tail.messages and log.active.has(firsts[id_])]
        return max(there, key=firsts.__getitem__, default=None)  # the answer to a question comes after it


class Variants:
    """Reads and changes the variants of turns, for all conversations of a store.

    Attributes:
        writer: Appends their entries.
    """

    def __init__(self, reader: LogReader, writer: Writer, rewinder: Rewinder) -> None:
        self._reader, self.writer, self._rewinder = reader, writer, rewinder

    async def _place(self, scope: Scope, turn_id: str, log: Snapshot | None = None) -> _Place:
        """Return what stands at the place of a turn, now or as of a log that was read. Four commands at most.

        Raises:
            UnknownMessageError: The log does not have its question.
        """
        cached = await self._reader.find(scope)
        rows = await self._reader.messages_by_id(cached, [turn_id]) if cached else {}
        if cached is None or not rows:
            raise UnknownMessageError(turn_id, begins_turn=True)
        if not rows[turn_id].message.begins_turn:
            raise InvalidInputError(f"message {turn_id!r} is no question, so no turn begins with it")
        event = rows[turn_id].entry.event
        first = (event and event.first_turn) or turn_id
        if first != turn_id:
            rows |= await self._reader.messages_by_id(cached, [first])
        log = log or await self._reader.snapshot(cached)
        entries = await self._reader.log.variants(cached.conversation, first)
        known = [entry for entry in entries if entry.number <= log.tail.entries]
        return _Place(log, rows, first, known)

    async def at(self, scope: Scope, turn_id: str) -> list[Variant]:
        """Return the variants at the place of a turn; see `Conversation.variants`."""
        place = await self._place(scope, turn_id)
        active, first = place.active(place.log), place.rows[place.first_turn]
        found = [(place.first_turn, place.first_turn, first.entry.at)]
        begun = [(id_, entries[0]) for id_, entries in place.stood.items()]
        found += [(entry.event.turn, id_, entry.at) for id_, entry in begun if entry.event]
        return [
            Variant(
                turn_id=turn, variant_id=id_, number=number, count=len(found), is_active=id_ == active, created_at=at
            )
            for number, (turn, id_, at) in enumerate(found, 1)
        ]

    async def at_places(self, scope: Scope, turn_ids: Sequence[str]) -> dict[str, list[Variant]]:
        """Return the variants at the places of some turns, by turn id; none for a turn that stands there alone.

        Two commands, and those of `at` for each turn that does not.
        """
        cached = await self._reader.find(scope)
        rows = await self._reader.messages_by_id(cached, turn_ids) if cached and turn_ids else {}
        if cached is None or not rows:
            return {}
        firsts = {id_: (event and event.first_turn) or id_ for id_, row in rows.items() for event in [row.entry.event]}
        entries = await self._reader.log.variants(cached.conversation, *set(firsts.values()))
        known = {entry.event.first_turn for entry in entries if entry.event}
        return {id_: await self.at(scope, id_) for id_, first in firsts.items() if first in known}

    async def activate(self, scope: Scope, turn_id: str, variant: str) -> None:
        """Make a variant active with all that followed it; see `Conversation.activate`."""
        if (cached := await self._reader.find(scope)) is None:
            raise UnknownMessageError(turn_id, begins_turn=True)

        async def make(_: Snapshot) -> Change | None:
            place = await self._place(scope, turn_id)
            if variant != place.first_turn and variant not in place.stood:
                raise InvalidInputError(f"turn {turn_id!r} has no finished variant {variant!r}; see `variants`")
            active = place.active(place.log)
            if active == variant:
                return None
            if active is None:
                raise MessageRewoundError(turn_id)
            earlier = await self._last_active(place, variant)
            tail = earlier.tail
            event = TurnEvent("activate", turn_id, first_turn=place.first_turn, variant=variant)
            return Change(earlier.active.ranges, tail.messages + 1, tail.entries + 1, tail, event=event)

        await self._rewinder.append(cached, make)

    async def reselect(self, scope: Scope) -> None:
        """Make the longest summary of active messages the current one, after a variant has become active."""
        if cached := await self._reader.find(scope):
            await self._rewinder.reselect(await self._reader.snapshot(cached))

    async def _last_active(self, place: _Place, variant: str) -> Snapshot:
        """Return the log as it was when a variant was active last: before a change of the variant, or as it began."""
        cached = place.log.cached
        entries, own = place.entries[::-1], place.stood.get(variant, ())[-1:]
        changes = [entry.number - 1 for entry in entries if not entry.branch]
        hidden = [entry.number - 1 for entry in entries if entry.branch]
        for number in [*changes, *(entry.number for entry in own), *hidden]:  # a rewind may have come before a change
            totals = (await self._reader.log.entry(cached.conversation, number)).totals
            log = await self._reader.snapshot(cached, totals)
            if place.active(log) == variant:
                return log
        raise MessageRewoundError(place.first_turn)

    async def begin(self, scope: Scope, turn_id: str, asked: Asked) -> None:
        """Append the first entry of a variant, unless the log has it.

        Raises:
            UnknownMessageError: The turn to answer or to replace is not in the log, or was rewound.
            TurnConflictError: The new question's id is that of another turn.
            InvalidInputError: The variant belongs to another turn.
            TailMoved: Another writer appended meanwhile.
        """
        target = asked.instead_of or turn_id
        place = await self._place(scope, target)
        cached, log = place.log.cached, place.log
        if own := place.of(asked.variant):
            if own[0].event and own[0].event.turn != turn_id:
                raise InvalidInputError(f"{asked.variant!r} belongs to turn {own[0].event.turn!r}; use another key")
            return
        if asked.variant in place.rows or (asked.instead_of and await self._reader.messages_by_id(cached, [turn_id])):
            raise TurnConflictError(turn_id)
        question = place.rows[target].message.ordinal
        if not log.active.has(question):
            raise UnknownMessageError(target, begins_turn=True)
        last, is_after = question - bool(asked.instead_of), not asked.instead_of
        entry, point = await self._rewinder.point(cached, question, log.active, is_after=is_after)
        event = TurnEvent("append", turn_id, first_turn=place.first_turn, variant=asked.variant)
        totals = replace(continued(log.tail, point), over="")
        branch = Branch(event, last, entry, log.active.through(last), totals)
        as_if = Snapshot(cached, totals, branch.active(log.active))
        branch = branch._replace(totals=await self._reader.recount_tail(cached, totals, as_if))
        await self.writer.append(scope, (), condition=Condition(log.tail, branch=branch), event=branch.begin)

    async def read(self, scope: Scope, turn_id: str, asked: Asked) -> VariantRecord:
        """Return a variant that was begun.

        Raises:
            UnknownMessageError: It is unfinished, and its place is not active any more.
        """
        target = asked.instead_of or turn_id
        place = await self._place(scope, target)
        record, tail, branch = await self._read(place, turn_id, asked.variant)
        if not record.is_finished and not branch.fits(place.log.active):
            raise UnknownMessageError(target, begins_turn=True)
        return record, tail, branch

    async def _read(self, place: _Place, turn_id: str, variant: str) -> VariantRecord:
        cached = place.log.cached
        event = TurnEvent("", turn_id, first_turn=place.first_turn, variant=variant)
        record = TurnRecord.of(turn_id, 0)
        branch = await self._reader.branch(cached, event, through=place.log.tail.entries)
        as_if = Snapshot(cached, branch.totals, branch.active(place.log.active))
        branch = branch._replace(totals=await self._reader.recount_tail(cached, branch.totals, as_if))
        if turn_id in place.rows and turn_id != variant:
            question = [place.rows[turn_id].message]
            record.add(question, await self._reader.decode_all(cached, question))
        for entry in place.of(variant):
            record.add(entry.messages, await self._reader.decode_all(cached, entry.messages), entry.event)
        return record, place.log.tail, branch

    async def pending(self, scope: Scope, turn_id: str, log: Snapshot | None = None) -> list[VariantRecord]:
        """Return the variants at the place of a turn that are not finished, and may become active, newest first."""
        with suppress(UnknownMessageError, InvalidInputError):
            return await self._pending(await self._place(scope, turn_id, log))
        return []

    async def _pending(self, place: _Place) -> list[VariantRecord]:
        shown = place.stood
        hidden = [new for new in place.begun if new.variant not in shown and not place.is_closed(new.variant)]
        found = [await self._read(place, event.turn, event.variant) for event in hidden]
        return [record for record in found if not record[0].is_finished and record[2].fits(place.log.active)]

    async def asking(self, scope: Scope, turn_id: str, call_id: str) -> tuple[list[VariantRecord], str]:
        """Return the variants of a turn in which a call waits for a decision or was decided, newest first.

        Also the id of the variant at its place in which an agent paused last; "" if none waits.
        """
        with suppress(UnknownMessageError, InvalidInputError):
            place, found = await self._place(scope, turn_id), list[VariantRecord]()
            for event in place.begun:
                if event.turn == turn_id:
                    variant = await self._read(place, turn_id, event.variant)
                    variant[0].fold.is_superseded = place.is_closed(event.variant)
                    if (call := variant[0].find_call(call_id)) and call.result_id in variant[0].waiting:
                        found.append(variant)
            pending = await self._pending(place)
            return found, next((branch.event.variant for record, _, branch in pending if record.paused), "")
        return [], ""


def check_resumable(record: TurnRecord, call: TurnCall, branch: Branch | None, paused_last: str) -> None:
    """Refuse a decision about a call of an agent that has paused in another variant since; see `resume_command`."""
    if record.waiting[call.result_id].interrupt and paused_last not in ("", branch and branch.event.variant):
        raise InvalidInputError(
            f"call {call.id!r} is not where the agent of turn {record.turn_id!r} paused last, so it could not be "
            f"resumed there; decide about the calls of variant {paused_last!r}, which get_turn(...).pending has"
        )


def check_asked(turn_id: str, regenerate: str | None, instead_of: str | None, *, has_question: bool) -> Asked | None:
    """Return the variant that the arguments of `Conversation.turn` ask for; None for the turn as it stands."""
    if regenerate is not None:
        if has_question or instead_of or check_id(regenerate, name="regenerate") == turn_id:
            raise InvalidInputError("regenerate takes a key of its own, and neither a question nor instead_of")
        return Asked(regenerate)
    if instead_of is None:
        return None
    if not has_question or check_id(instead_of, name="instead_of") == turn_id:
        raise InvalidInputError("instead_of takes another turn, and the new question as human")
    return Asked(turn_id, instead_of)
