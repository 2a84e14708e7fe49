"""Read which variant is shown at a place of a log; see `log.facts.standing`."""

from __future__ import annotations

from typing import NamedTuple

from convstore.log.facts.event import EVENT, key_of_variant
from convstore.log.facts.standing import ShownVariant, Standing, first_standing, key_of_place
from convstore.mongo.log import StoredMessageRow
from convstore.runtime.log_reader import LogReader, Snapshot


class TurnPlace(NamedTuple):
    """A place of a log as of one of its entries.

    Attributes:
        log: The log.
        question: The question of the requested turn.
        standing: The variant that is shown there.
        is_shown: True if the question that is shown there is active.
    """

    log: Snapshot
    question: StoredMessageRow
    standing: Standing
    is_shown: bool


def place_of(question: StoredMessageRow) -> str:
    """Return the place of a turn, given its question: the id of the first turn there."""
    event = EVENT.of(question.entry)
    return (event and event.first_turn) or question.message.id


async def standing_at(reader: LogReader, log: Snapshot, place: str) -> Standing:
    """Return the variant shown at a place, as the last entry that changed it records. One or two commands."""
    row = await reader.log.places.last(
        log.cached.conversation, key_of_place(place), through=log.tail.entries
    )
    return row.standing if row else first_standing(place)


async def standing_of(reader: LogReader, log: Snapshot, turn_id: str, place: str) -> Standing:
    """Return the variant shown at the place of a turn; `place` is used if a repair found the turn's question lost."""
    rows = await reader.messages_by_id(log.cached, [turn_id])
    if turn_id in rows:
        return (await place_at(reader, log, rows[turn_id])).standing
    return await standing_at(reader, log, place)


async def place_at(
    reader: LogReader,
    log: Snapshot,
    question: StoredMessageRow,
    standing: Standing | None = None,
) -> TurnPlace:
    """Return the place of a turn; `standing` is the result of `standing_at`, which else is read with one command.

    Rarely two more commands.
    """
    log.cached.know_questions([question.message])
    if standing is None:
        standing = await standing_at(reader, log, place_of(question))
    standing, is_shown = await shown_at(reader, log, standing)
    return TurnPlace(log, question, standing, is_shown)


async def shown_at(reader: LogReader, log: Snapshot, standing: Standing) -> tuple[Standing, bool]:
    """Return the variant shown at a place, and True if its question is active; `standing` is that of `standing_at`.

    No command if the question is cached and a variant is shown; else one or two.
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
    """Return the variant shown at a place; its first variant if the question was shown alone and answered since."""
    turn = standing.shown.turn
    is_answered = log.active.next_active(question + 1) <= log.tail.messages
    if standing.shown.variant or not is_answered:
        return standing
    number = 1
    if turn != standing.place:
        key = key_of_variant(standing.place, turn)
        finished = await reader.log.places.last(log.cached.conversation, key)
        number = finished.standing.shown.number if finished else 0
    return standing._replace(shown=ShownVariant(turn, turn, number))
