"""Define the event of a turn that an entry records besides messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from convstore.log.entry import Entry, Over
from convstore.log.facts.kind import CopyPositions, FactKind, Key, digest_key

_ENDS: Mapping[str, Over] = {"finish": "finished", "stop": "stopped"}


class TurnEvent(NamedTuple):
    """Event of a turn that an entry records besides messages.

    Attributes:
        kind: "fence", which only adds an entry so that older tails are refused; "wait", "decide", "finish" or "stop";
            "begin" or "append" for a variant.
        turn: Id of the turn's question.
        call: For "wait" and "decide" the `result_id` of the call.
        values: For "decide" the decision, for "begin" the place, as JSON.
        first_turn: For an entry of a variant the id of the first turn at its place.
        variant: Id of the variant.
        question: Ordinal of the turn's question; 0 if the log does not have it yet.
    """

    kind: str
    turn: str
    call: str = ""
    values: str = ""
    first_turn: str = ""
    variant: str = ""
    question: int = 0

    @property
    def is_of_call(self) -> bool:
        """True if it records that a call waits for a person, or the person's decision."""
        return self.kind in ("wait", "decide")

    @property
    def over(self) -> Over:
        """Why the turn is over after it; "" if it does not end the turn."""
        return _ENDS.get(self.kind, "")


def key_of_call_events(turn_id: str) -> bytes:
    """Return the key of the entries with events of a turn's calls: waits and decisions."""
    return digest_key("events", turn_id)


def key_of_variant(place: str, variant: str) -> bytes:
    """Return the key of the entries of a variant."""
    return digest_key("variant", place, variant)


class EventKind(FactKind[TurnEvent]):
    """Kind of fact: events of turns."""

    name = "event"
    is_loaded = True
    # a fork that is cut in the entry has neither the end of the turn nor the decision
    is_forked = False

    def restored(self, archived: Any) -> TurnEvent:
        """Return the event with these fields."""
        return TurnEvent(*archived)

    def keys(self, value: TurnEvent, entry: Entry) -> Iterable[Key]:
        """Return the key of its variant, else for an event of a call the key of the turn."""
        if value.variant:
            return [key_of_variant(value.first_turn, value.variant)]
        return [key_of_call_events(value.turn)] if value.is_of_call else []

    def moved(self, value: TurnEvent, entry: Entry, copy: CopyPositions) -> TurnEvent | None:
        """Return the event with the ordinals of the copy; without its variant if the copy cannot show the variant.

        It cannot if the variant's first entry or question is lost, or the entry that made the messages before it
        active.
        """
        event = value._replace(question=copy.ordinals.get(value.question, 0))
        if not event.variant:
            return event
        if event.kind == "begin":
            return _moved_beginning(event, copy)
        if (event.first_turn, event.variant) in copy.variants:
            return event
        if event.kind == "append":  # the first turn still identifies the place
            return event._replace(kind="fence", variant="")
        return event._replace(first_turn="", variant="")


EVENT = EventKind()


def _moved_beginning(event: TurnEvent, copy: CopyPositions) -> TurnEvent | None:
    """Return the event of a variant's first entry for a copy; None if the copy cannot show the variant."""
    place = copy.ordinal_before(json.loads(event.values)[0])
    is_question_lost = event.turn != event.variant and not event.question
    is_hidden = place > 0 and not copy.is_active(place)
    if is_question_lost or is_hidden:
        return None
    return event._replace(values=json.dumps([place, copy.entry_after(place)]))
