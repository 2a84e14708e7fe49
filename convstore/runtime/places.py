"""Read which variant is shown at a place of a log; see `log.facts.standing`."""

from __future__ import annotations

from typing import NamedTuple

from convstore.log.facts.event import EVENT, of_variant
from convstore.log.facts.standing import ShownVariant, Standing, at_place, first_standing
from convstore.mongo.log import StoredMessageRow
from convstore.runtime.log_reader import LogReader, Snapshot


class Place(NamedTuple):
    """A place of a log as of one of its entries.

    Attributes:
        log: The log.
        question: The question of the turn that was asked for.
        standing: The variant that is shown there.
        is_shown: The place is in the active log: its question is active, or it is empty.
    """

    log: Snapshot
    question: StoredMessageRow
    standing: Standing
    is_shown: bool


def place_of(question: StoredMessageRow) -> str:
    """Return the place of a turn, given its question: the id of the turn that stood there first."""
    event = EVENT.of(question.entry)
    return (event and event.first_turn) or question.message.id


async def standing_at(reader: LogReader, log: Snapshot, place: str) -> Standing:
    """Return the variant shown at a place, by the last entry that changed it; its question may be lost.

    One or two commands.
    """
    row = await reader.log.places.last(
        log.cached.conversation, at_place(place), through=log.tail.entries
    )
    return row.standing if row else first_standing(place)


async def standing_of(reader: LogReader, log: Snapshot, turn_id: str, place: str) -> Standing:
    """Return the variant shown at the place of a turn, whose question may be lost, as a repair found."""
    rows = await reader.messages_by_id(log.cached, [turn_id])
    if turn_id in rows:
        return (await place_at(reader, log, rows[turn_id])).standing
    return await standing_at(reader, log, place)


async def place_at(
    reader: LogReader,
    log: Snapshot,
    question: StoredMessageRow,
    standing: Standing | None = None,
) -> Place:
    """Return the place of a turn, given the result of `standing_at`. Rarely two commands.

    One command more without `standing`.
    """
    log.cached.know_questions([question.message])
    if standing is None:
        standing = await standing_at(reader, log, place_of(question))
    standing, is_shown = await shown_at(reader, log, standing)
    return Place(log, question, standing, is_shown)


async def shown_at(reader: LogReader, log: Snapshot, standing: Standing) -> tuple[Standing, bool]:
    """Return the variant shown at a place, by the last entry that changed it, and True if its question is active.

    No command for a question that this store knows and that has its answer; else one or two.
    """
    turn = standing.shown.turn
    ordinals = log.cached.known_questions([turn])
    if turn and turn not in ordinals:
        rows = await reader.messages_by_id(log.cached, [turn])
        ordinals = {id_: row.message.ordinal for id_, row in rows.items()}
    if turn not in ordinals:
        return standing, False
    standing = await _answered_since(reader, log, standing, ordinals[turn])
    return standing, log.active.has(ordinals[turn])


async def _answered_since(
    reader: LogReader, log: Snapshot, standing: Standing, question: int
) -> Standing:
    """Return the variant shown at a place; its own variant if the question stood alone and was answered since."""
    turn = standing.shown.turn
    is_answered = log.active.next_active(question + 1) <= log.tail.messages
    if standing.shown.variant or not is_answered:
        return standing
    number = 1
    if turn != standing.place:
        key = of_variant(standing.place, turn)
        finished = await reader.log.places.last(log.cached.conversation, key)
        number = finished.standing.shown.number if finished else 0
    return standing._replace(shown=ShownVariant(turn, turn, number))
