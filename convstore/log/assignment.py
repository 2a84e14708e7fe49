"""Assign each message to a turn when it is appended; the assignment is stored and never changes.

The turn of a message is the ordinal of the question that it belongs to, or 0. A writer that works on a question names
its turn. It does so even after the question was rewound: the agent's run may continue, and its messages must not answer
another question. Readers list messages of a question that is not active like messages that belong to no turn. If the
writer names no turn, the message's type and the end of the log decide, in this order:

- A tool result belongs to the turn of its call; if its call is unknown, to the turn of the message before it.
- A human message begins a turn. The exception is one with media directly after a tool result in the same entry: it is
  an addition to the result, because some providers accept images of a tool only in this form.
- An AI message belongs to the newest turn while that turn is in progress, or if the entry has another AI message of
  that turn. Else it belongs to no turn, like a greeting or a reminder.
- Any other message belongs to the turn in progress, if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from convstore.log.entry import OpenCall, Over, Totals
from convstore.messages.media import has_media
from convstore.values.stamps import ViewStamp


@dataclass(slots=True)
class Assignment:
    """Assigns the messages of an entry to turns, in order.

    Attributes:
        turn: Ordinal of the newest question so far, or 0.
        over: Why that turn is over, "" if it is in progress.
    """

    turn: int
    over: Over
    _before: int
    _has_spoken: bool = False
    _follows_result: bool = False

    @classmethod
    def after(cls, totals: Totals) -> Assignment:
        """Return the assignment for an entry after these totals."""
        return cls(totals.turn, totals.over, totals.turn)

    def turn_of(self, message: BaseMessage, ordinal: int, call: OpenCall | None) -> int:
        """Return the turn of a message whose writer named none; `call` is the call that a tool result answers."""
        if message.type == "tool":
            return call.turn if call else self._before
        if message.type == "human":
            is_addition = self._follows_result and has_media(message)
            return self._before if is_addition else ordinal
        if message.type == "ai" and self._has_spoken:
            return self.turn
        return 0 if self.over else self.turn

    def add(self, type_: str, ordinal: int, turn: int, *, is_said: bool, is_answer: bool) -> None:
        """Add a message with its turn; `is_said` if a model wrote it, `is_answer` if it also ends the turn."""
        self._before = turn
        self._follows_result = type_ == "tool"
        if turn == ordinal:
            self.turn = ordinal
            self.over = ""
        elif turn == self.turn and is_said:
            self._has_spoken = True
            if self.over not in ("finished", "stopped"):
                self.over = "answered" if is_answer else ""

    def end(self, over: Over) -> None:
        """Record why an event ended the newest turn, if it did."""
        self.over = over or self.over


def saw_of(ordinal: int, stamp: ViewStamp | None = None) -> int:
    """Return the last ordinal that the model of an AI message saw, from its stamp; else the one before the message."""
    seen = stamp.ordinal if stamp else 0
    return min(seen, ordinal - 1) if seen else ordinal - 1
