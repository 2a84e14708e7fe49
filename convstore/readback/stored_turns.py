"""Split the entries of a log into its turns, each with its messages and what `log.turns` says of it.

The turn of a message is a column, so a turn is the range from its question up to the next one, and what stands of it
later. A message of no turn, such as a reminder, is shown with the turn that it stands in, and changes nothing about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from convstore.log.entry import Entry, EntryMessage
from convstore.log.turns import LoggedTurn
from convstore.runtime.log_reader import Snapshot

_ordinal = attrgetter("ordinal")


@dataclass(slots=True)
class StoredTurn:
    """A turn, or what stands before the first question, with the entries that were read of it.

    Attributes:
        number: Its position among the active turns; 0 for what stands before the first question.
        entries: The entries of its range, and later ones with messages of it, by their numbers.
        range: The active messages from its first one up to the next question, whatever turn they belong to.
        messages: The messages that a reader shows as this turn, in order; `judge` finds them.
        logged: The turn as the log has it; `judge` folds it.
    """

    number: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)
    range: list[EntryMessage] = field(default_factory=list)
    messages: list[EntryMessage] = field(default_factory=list)
    logged: LoggedTurn = field(default_factory=lambda: LoggedTurn(0, ""))

    @property
    def first(self) -> EntryMessage:
        """Its first message."""
        return self.range[0]

    @property
    def question(self) -> int:
        """Ordinal of its question, 0 if it has none."""
        return self.first.turn if self.first.begins_turn else 0

    def extend(self, rest: StoredTurn) -> None:
        """Add what stands in its range after the entries that were read before."""
        self.entries |= rest.entries
        self.range += rest.range

    def entry_of(self, ordinal: int) -> Entry:
        """Return the entry of one of its messages."""
        return next(entry for entry in self.entries.values() if entry.first <= ordinal <= entry.last)

    def judge(self, log: Snapshot, later: Iterable[Entry] = ()) -> None:
        """Find its messages and fold them, given all entries with messages of it after a later question."""
        self.entries |= {entry.number: entry for entry in later}
        self.logged = LoggedTurn(self.question, self.first.id)
        if self.question:
            for number in sorted(self.entries):
                entry = self.entries[number]
                self.logged.add(entry.messages, log.active.event_of(entry))
        else:
            self.logged.add(self.range)
        self.logged.settle(log.tail)
        shown = {message.ordinal: message for message in self.logged.messages}
        shown |= {message.ordinal: message for message in self.range if not turn_shown(message, log)}
        self.messages = sorted(shown.values(), key=_ordinal)


def split(entries: Sequence[Entry]) -> tuple[StoredTurn, list[StoredTurn]]:
    """Split successive entries with active messages into the rest of an earlier turn and the turns that begin there."""
    rest, turns = StoredTurn(), list[StoredTurn]()
    current = rest
    for entry in entries:
        current.entries[entry.number] = entry
        number = entry.totals.turns - sum(message.begins_turn for message in entry.messages)
        is_first = entry.totals.active == len(entry.messages)
        for message in entry.messages:
            number += message.begins_turn
            if message.begins_turn or is_first:
                current = StoredTurn(number, {entry.number: entry})
                turns.append(current)
            is_first = False
            current.range.append(message)
    return rest, turns


def turn_shown(message: EntryMessage, log: Snapshot) -> int:
    """Return the turn that a message is shown in; 0 if its question is not active and the message is."""
    if log.active.has(message.ordinal) and not log.active.has(message.turn):
        return 0
    return message.turn
