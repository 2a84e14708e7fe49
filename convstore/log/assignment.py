"""Give each message its turn when it is appended; it is stored and never changes.

The turn of a message is the ordinal of the question that it belongs to, 0 for none. The writer may name it, as whoever
writes for a question does, also after that was rewound: an agent's run goes on then, and what it still appends must not
answer another question. Readers list messages of a question that is not active like those of no turn. Without a name
the message's type and the end of the log say it, in this order:

- A tool result belongs to the turn of its call; without its call, to the turn of the message before it.
- A human message begins a turn. One with media directly after a tool result in the same entry is an addition to it:
  some providers take images of a tool in no other way.
- An AI message belongs to the newest turn while that is in progress, or if another AI message of that turn stands in
  the same entry; else to none, as a greeting or a reminder does.
- Any other message belongs to the turn in progress, else to none.
"""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.messages import BaseMessage

from convstore.log.entry import OpenCall, Over, Totals
from convstore.messages.media import has_media
from convstore.values.stamps import ViewStamp


@dataclass(slots=True)
class Assignment:
    """Gives the messages of an entry their turns, in order.

    Attributes:
        turn: Ordinal of the newest question so far, 0 without one.
        over: Why that turn is over, "" if it is in progress.
    """

    turn: int
    over: Over
    _before: int
    _has_spoken: bool = False
    _follows_result: bool = False

    @classmethod
    def after(cls, totals: Totals) -> Assignment:
        """Return the one for an entry after these totals."""
        return cls(totals.turn, totals.over, totals.turn)

    def turn_of(self, message: BaseMessage, ordinal: int, call: OpenCall | None) -> int:
        """Return the turn of a message that its writer did not name one for; `call` is what a result answers."""
        if message.type == "tool":
            return call.turn if call else self._before
        if message.type == "human":
            is_addition = self._follows_result and has_media(message)
            return self._before if is_addition else ordinal
        if message.type == "ai" and self._has_spoken:
            return self.turn
        return 0 if self.over else self.turn

    def add(self, type_: str, ordinal: int, turn: int, *, is_said: bool, is_answer: bool) -> None:
        """Take over a message with its turn; `is_said` by a model, and an answer if it has no calls."""
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
        """Record why the newest turn is over, if it is."""
        self.over = over or self.over


def saw_of(ordinal: int, stamp: ViewStamp | None = None) -> int:
    """Return the last ordinal that the model of an AI message was shown: by the stamp, else the one before it."""
    seen = stamp.ordinal if stamp else 0
    return min(seen, ordinal - 1) if seen else ordinal - 1
