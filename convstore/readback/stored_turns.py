"""Split the entries of a log into turns, each with its messages and its state by `log.turns`.

The turn of a message is a stored column. So a turn is the range from its question up to the next one, and those of its
messages that follow later questions. A message outside turns, such as a reminder, is shown with the turn whose range
contains it, and does not change the state of that turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from convstore.log.entry import Entry, EntryMessage
from convstore.log.facts.event import EVENT
from convstore.log.turns import LoggedTurn, turns_before, turns_in
from convstore.runtime.log_reader import Snapshot

_ordinal = attrgetter("ordinal")


class EntryPart(NamedTuple):
    """The part of one entry that belongs to a turn: some of its messages, and perhaps an event."""

    entry: Entry
    messages: list[EntryMessage]


EntryParts = dict[int, EntryPart]
"""The parts of entries that belong to one turn, by the numbers of the entries."""


@dataclass(slots=True)
class StoredTurn:
    """A turn, or the messages before the first question, with the entries that were read of it.

    Attributes:
        number: Its position among the active turns; 0 for the messages before the first question.
        range: Parts of entries from its first message up to the next question, including messages of other turns.
        parts: Parts of entries that belong to the turn, in its range and after it; set by `assemble`.
        messages: The messages that a reader shows as this turn, in order; set by `assemble`.
        logged: The folded state of the turn; set by `assemble`.
    """

    number: int = 0
    range: EntryParts = field(default_factory=dict)
    parts: EntryParts = field(default_factory=dict)
    messages: list[EntryMessage] = field(default_factory=list)
    logged: LoggedTurn = field(default_factory=lambda: LoggedTurn(0, ""))

    @property
    def first(self) -> EntryMessage:
        """The first message of the turn."""
        return next(part.messages[0] for part in self.range.values() if part.messages)

    @property
    def question(self) -> int:
        """Ordinal of the question, 0 without a question."""
        return self.first.turn if self.first.begins_turn else 0

    @property
    def last(self) -> int:
        """Ordinal of the last message of the range."""
        return next(
            part.messages[-1].ordinal for part in reversed(self.range.values()) if part.messages
        )

    @property
    def variants(self) -> set[tuple[str, str]]:
        """The variants that its entries belong to, as pairs of the first turn's id and the variant's id."""
        events = [EVENT.of(part.entry) for part in self.parts.values()]
        return {(event.first_turn, event.variant) for event in events if event and event.variant}

    def extend(self, rest: StoredTurn) -> None:
        """Add the rest of its range, which later entries contain."""
        self.range |= rest.range

    def entry_of(self, ordinal: int) -> Entry:
        """Return the entry that contains one of its messages."""
        return next(
            part.entry
            for part in self.parts.values()
            if part.entry.first <= ordinal <= part.entry.last
        )

    def assemble(self, log: Snapshot, later: EntryParts) -> None:
        """Collect its messages and fold its state, given all its parts that follow a later question."""
        self._fold(log, later)
        self.logged.apply_tail(log.tail)
        shown = {message.ordinal: message for message in self.logged.messages}
        for part in self.range.values():
            shown |= {
                message.ordinal: message
                for message in part.messages
                if not turn_shown(message, log)
            }
        self.messages = sorted(shown.values(), key=_ordinal)

    def _fold(self, log: Snapshot, later: EntryParts) -> None:
        """Fold the active messages and events of its parts; a variant that became active again restores its end."""
        self.parts = dict(sorted((self.range | later).items()))
        self.logged = LoggedTurn(self.question, self.first.id)
        for entry, messages in self.parts.values():
            active = [message for message in messages if log.active.has(message.ordinal)]
            self.logged.add(active, log.active.event_of(entry) if self.question else None)
            end = log.active.totals_after_change(entry)
            if end is not None and self.question:
                self.logged.apply_tail(end)

    def assemble_everything(
        self, log: Snapshot, later: EntryParts, without: Sequence[EntryMessage]
    ) -> None:
        """Collect its messages, including rewound ones, given all its parts outside its range.

        Its state follows from its active messages, or from all messages if its question was rewound. Before the first
        question, the active messages `without` a turn in the ranges of rewound turns count, too.
        """
        is_active = log.active.has(self.first.ordinal)
        self._fold(log if is_active else Snapshot(log.cached, log.tail), later)
        if is_active and not self.question:
            self.logged.add(without)
        self.logged.apply_tail(log.tail)
        self.logged.is_superseded = self.logged.is_superseded or not is_active
        self.messages = self._own()

    def _own(self) -> list[EntryMessage]:
        """Return the messages of its parts that belong to the turn or are outside turns, in order."""
        # One entry may have a message outside turns before the next question, and a message of this turn after it.
        own = {
            message.ordinal: message
            for part in (*self.range.values(), *self.parts.values())
            for message in part.messages
            if message.turn in (0, self.question)
        }
        return sorted(own.values(), key=_ordinal)


def active_outside_turns(turn: StoredTurn, log: Snapshot) -> list[EntryMessage]:
    """Return the active messages outside turns that are in the range of a turn."""
    return [
        message
        for part in turn.range.values()
        for message in part.messages
        if not message.turn and log.active.has(message.ordinal)
    ]


def assign_to_others(turn: StoredTurn, parts: dict[int, EntryParts]) -> None:
    """Add the messages of other turns in the range of a turn to the parts of those turns."""
    for entry in [part.entry for part in turn.range.values()]:
        for question in turns_in(entry) - {0, turn.question}:
            own = [message for message in entry.messages if message.turn == question]
            parts.setdefault(question, {})[entry.number] = EntryPart(entry, own)


def split(entries: Sequence[Entry]) -> tuple[StoredTurn, list[StoredTurn]]:
    """Split entries with active messages into the rest of an earlier turn and the turns that begin in them."""
    rest = StoredTurn()
    turns: list[StoredTurn] = []
    current = rest
    for entry in entries:
        part = current.range[entry.number] = EntryPart(entry, [])
        number = entry.totals.turns - sum(message.begins_turn for message in entry.messages)
        is_first = entry.totals.active == len(entry.messages)
        for message in entry.messages:
            number += message.begins_turn
            if message.begins_turn or is_first:
                part = EntryPart(entry, [])
                current = StoredTurn(number, {entry.number: part})
                turns.append(current)
            is_first = False
            part.messages.append(message)
    return rest, turns


def add_later(found: dict[int, EntryParts], entries: Iterable[Entry]) -> None:
    """Add the parts of entries that belong to earlier turns than the newest one at their position."""
    for entry in entries:
        own = {turn: EntryPart(entry, []) for turn in turns_before(entry)}
        for message in entry.messages:
            if message.turn in own:
                own[message.turn].messages.append(message)
        for turn, part in own.items():
            found.setdefault(turn, {})[entry.number] = part


def turn_shown(message: EntryMessage, log: Snapshot) -> int:
    """Return the turn in which a message is shown; 0 for an active message whose question was rewound."""
    if log.active.has(message.ordinal) and not log.active.has(message.turn):
        return 0
    return message.turn
