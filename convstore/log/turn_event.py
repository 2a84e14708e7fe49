"""Define what an entry records of a turn besides messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

from convstore.messages.encoding import digest_of

Over = Literal["", "answered", "finished", "stopped"]
"""Why a turn is over; "" if it is not."""

_ENDS: Mapping[str, Over] = {"finish": "finished", "stop": "stopped"}


def events_of(turn_id: str) -> bytes:
    """Return the key by which the entries are found that say how calls of a turn wait, or what was decided."""
    return digest_of(json.dumps(["events", turn_id]))


class TurnEvent(NamedTuple):
    """What an entry records of a turn besides messages.

    Attributes:
        kind: "fence", which only moves the end of the log; "wait", "decide", "finish" or "stop"; "begin" or "append"
            for a variant.
        turn: Id of the turn's question.
        call: For "wait" and "decide" the `result_id` of the call.
        values: For "decide" the decision, for "begin" the place, as JSON.
        first_turn: For an entry of a variant the id of the turn that stood first at its place.
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
    def ends(self) -> bool:
        """Return True if it ends the turn."""
        return bool(self.over)

    @property
    def over(self) -> Over:
        """Why the turn is over after it; "" if it does not end the turn."""
        return _ENDS.get(self.kind, "")
