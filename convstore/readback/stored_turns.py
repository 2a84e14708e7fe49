"""Split the entries of a log into its turns, each with its messages and what `log.turns` says of it.

The turn of a message is a column, so a turn is the range from its question up to the next one, and what stands of it
later. A message of no turn, such as a reminder, is shown with the turn that it stands in, and changes nothing about it.
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


class Part(NamedTuple):
    """Part of a turn in one entry: some of its messages, and perhaps an event."""

    entry: Entry
    messages: list[EntryMessage]


Parts = dict[int, Part]
"""Parts of one turn, by the numbers of their entries."""


@dataclass(slots=True)
class StoredTurn:
    """A turn, or what stands before the first question, with the entries that were read of it.

    Attributes:
        number: Its position among the active turns; 0 for what stands before the first question.
        range: What stands from its first message up to the next question, whatever turn it belongs to.
        parts: Its own parts of entries, in its range and after it; `judge` finds them.
        messages: The messages that a reader shows as this turn, in order; `judge` finds them.
        logged: The turn as the log has it; `judge` folds it.
    """

    number: int = 0
    range: Parts = field(default_factory=dict)
    parts: Parts = field(default_factory=dict)
    messages: list[EntryMessage] = field(default_factory=list)
    logged: LoggedTurn = field(default_factory=lambda: LoggedTurn(0, ""))

    @property
    def first(self) -> EntryMessage:
        """Its first message."""
        return next(part.messages[0] for part in self.range.values() if part.messages)

    @property
    def question(self) -> int:
        """Ordinal of its question, 0 if it has none."""
        return self.first.turn if self.first.begins_turn else 0

    @property
    def last(self) -> int:
        """Ordinal of the last message of its range."""
        return next(
            part.messages[-1].ordinal for part in reversed(self.range.values()) if part.messages
        )

    @property
    def variants(self) -> set[tuple[str, str]]:
        """Places and ids of the variants that its entries belong to."""
        events = [EVENT.of(part.entry) for part in self.parts.values()]
        return {(event.first_turn, event.variant) for event in events if event and event.variant}

    def extend(self, rest: StoredTurn) -> None:
        """Add what stands in its range after the entries that were read before."""
        self.range |= rest.range

    def entry_of(self, ordinal: int) -> Entry:
        """Return the entry of one of its messages."""
        return next(
            part.entry
            for part in self.parts.values()
            if part.entry.first <= ordinal <= part.entry.last
        )

    def judge(self, log: Snapshot, later: Parts) -> None:
        """Find its messages and fold them, given all parts of it that follow a later question."""
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

    def _fold(self, log: Snapshot, later: Parts) -> None:
        """Fold active messages and events of its parts; a variant that became active brings back how it had ended."""
        self.parts = dict(sorted((self.range | later).items()))
        self.logged = LoggedTurn(self.question, self.first.id)
        for entry, messages in self.parts.values():
            active = [message for message in messages if log.active.has(message.ordinal)]
            self.logged.add(active, log.active.event_of(entry) if self.question else None)
            end = log.active.brought_back(entry)
            if end is not None and self.question:
                self.logged.apply_tail(end)

    def judge_everything(
        self, log: Snapshot, later: Parts, without: Sequence[EntryMessage]
    ) -> None:
        """Find its messages, also those that are not active, given all parts of it that stand elsewhere.

        It is judged by its active messages; if its question is not active, by all of them. What stands before the
        first question is also judged by the active messages `without` a turn that stand in rewound ones.
        """
        is_active = log.active.has(self.first.ordinal)
        self._fold(log if is_active else Snapshot(log.cached, log.tail), later)
        if is_active and not self.question:
            self.logged.add(without)
        self.logged.apply_tail(log.tail)
        self.logged.is_superseded = self.logged.is_superseded or not is_active
        self.messages = self._own()

    def _own(self) -> list[EntryMessage]:
        """Return the messages of its parts that belong to it or to no turn, in order."""
        # In one entry a message of no turn may precede the next question, and one of this turn follow.
        own = {
            message.ordinal: message
            for part in (*self.range.values(), *self.parts.values())
            for message in part.messages
            if message.turn in (0, self.question)
        }
        return sorted(own.values(), key=_ordinal)


def without_turn(turn: StoredTurn, log: Snapshot) -> list[EntryMessage]:
    """Return the active messages of no turn that stand in the range of another."""
    return [
        message
        for part in turn.range.values()
        for message in part.messages
        if not message.turn and log.active.has(message.ordinal)
    ]


def give_away(turn: StoredTurn, parts: dict[int, Parts]) -> None:
    """Add what stands in the range of a turn and belongs to others to their parts."""
    for entry in [part.entry for part in turn.range.values()]:
        for question in turns_in(entry) - {0, turn.question}:
            own = [message for message in entry.messages if message.turn == question]
            parts.setdefault(question, {})[entry.number] = Part(entry, own)


def split(entries: Sequence[Entry]) -> tuple[StoredTurn, list[StoredTurn]]:
    """Split successive entries with active messages into the rest of an earlier turn and the turns that begin there."""
    rest = StoredTurn()
    turns = list[StoredTurn]()
    current = rest
    for entry in entries:
        part = current.range[entry.number] = Part(entry, [])
        number = entry.totals.turns - sum(message.begins_turn for message in entry.messages)
        is_first = entry.totals.active == len(entry.messages)
        for message in entry.messages:
            number += message.begins_turn
            if message.begins_turn or is_first:
                part = Part(entry, [])
                current = StoredTurn(number, {entry.number: part})
                turns.append(current)
            is_first = False
            part.messages.append(message)
    return rest, turns


def add_later(found: dict[int, Parts], entries: Iterable[Entry]) -> None:
    """Add the parts of entries to the turns that are not the newest one where they stand."""
    for entry in entries:
        own = {turn: Part(entry, []) for turn in turns_before(entry)}
        for message in entry.messages:
            if message.turn in own:
                own[message.turn].messages.append(message)
        for turn, part in own.items():
            found.setdefault(turn, {})[entry.number] = part


def turn_shown(message: EntryMessage, log: Snapshot) -> int:
    """Return the turn that a message is shown in; 0 if its question is not active and the message is."""
    if log.active.has(message.ordinal) and not log.active.has(message.turn):
        return 0
    return message.turn
