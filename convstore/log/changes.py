"""Read the changes that the entries of a log made besides appending messages, so that an import can repeat them.

These are events of turns and variants, rewinds and their undoing, and all other facts of entries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

from convstore.log.entry import Entry
from convstore.log.facts.branch import BRANCH
from convstore.log.facts.event import EVENT, TurnEvent
from convstore.log.facts.rewound import REWOUND, Rewound
from convstore.log.facts.standing import STANDING
from convstore.log.facts.table import archived
from convstore.log.rewind import NO_REWINDS, Rewinds
from convstore.messages.values import Codec
from convstore.values.log_records import LogChange
from convstore.values.ranges import Pair, without

_EVENTS = ("begin", "wait", "decide", "finish", "stop")


class LogChanges:
    """The changes of a log, read entry by entry.

    Args:
        codec: Encodes the values of facts.

    Attributes:
        rewinds: The active messages after the last entry.
        can_be_made: False if a repair left an entry that rewinds and restores messages as no call of `Conversation`
            does. Then an import only rewinds the messages that are rewound in the end, and `found` has only facts and
            events that still count.
        left_out: Kinds of the facts that an archive cannot have.
    """

    def __init__(self, codec: Codec) -> None:
        self.rewinds = NO_REWINDS
        self.can_be_made = True
        self.left_out: set[str] = set()
        self._codec = codec
        self._ids: dict[int, str] = {}
        self._found: list[tuple[LogChange, Entry]] = []
        self._without_change: set[int] = set()

    @property
    def found(self) -> list[LogChange]:
        """The changes, in order."""
        if self.can_be_made:
            return [change for change, _ in self._found]
        active = self.rewinds
        return [
            change
            for change, entry in self._found
            if change.is_fact or (change.is_event and not change.variant and active.event_of(entry))
        ]

    def add(self, entry: Entry) -> None:
        """Read the next entry."""
        before = self.rewinds
        if entry.is_rewind:
            # a repaired log may have lost the whole list that the entry continues
            with suppress(ValueError):
                self.rewinds = before.after(entry)
        self._ids |= {message.ordinal: message.id for message in entry.messages}
        changes = [*self._changes(entry, before), *self._facts(entry)]
        self._found += [(change, entry) for change in changes]

    def _changes(self, entry: Entry, before: Rewinds) -> Iterator[LogChange]:
        event = EVENT.of(entry)
        if event is not None and event.variant:
            yield from self._of_variant(entry, event, before)
        elif entry.is_rewind:
            yield from self._of_rewind(entry, before)
        elif event is not None and event.question and event.kind in _EVENTS:
            yield _with_event(_change(entry, event.kind, has_messages=bool(entry.messages)), event)

    def _facts(self, entry: Entry) -> Iterator[LogChange]:
        """Yield the facts that an archive has as they are; events, variants and rewinds have changes of their own."""
        for name, value in archived(entry.facts):
            if value is None:
                self.left_out.add(name)
                continue
            made = _change(entry, "fact", has_messages=bool(entry.messages))
            yield made._replace(name=name, values=self._codec.encode(value))

    def _of_variant(self, entry: Entry, event: TurnEvent, before: Rewinds) -> Iterator[LogChange]:
        kind = event.kind if event.kind in _EVENTS else "append"
        shows = BRANCH.of(entry) is None
        if kind == "append" and not (shows or entry.messages):
            return
        made = _change(entry, kind, has_messages=bool(entry.messages), shows=shows)
        made = _with_event(made, event)
        if kind == "begin":
            place = json.loads(event.values)[0]
            replaced = self._ids.get(before.next_active(place + 1), "")
            made = made._replace(values="", message=replaced)
        yield made

    def _of_rewind(self, entry: Entry, before: Rewinds) -> Iterator[LogChange]:
        """Yield the change of an entry that belongs to no variant and rewinds or restores messages."""
        earlier = before.gaps(entry.last)
        later = self.rewinds.gaps(entry.last)
        rewound = without(later, earlier)
        restored = without(earlier, later)
        if (REWOUND.of(entry) or Rewound()).undo != entry.number:
            if change := self._of_undo(entry, before, rewound=rewound, restored=restored):
                yield change
            return
        if change := _activation(entry):
            yield change
            return
        if not rewound:  # only items were rewound
            self._without_change.add(entry.number)
            return
        is_of_others = bool(entry.messages) and rewound[0][0] < entry.first
        self.can_be_made = self.can_be_made and not (restored or is_of_others)
        yield _change(entry, "rewind", message=self._first(rewound))

    def _of_undo(
        self, entry: Entry, before: Rewinds, *, rewound: list[Pair], restored: list[Pair]
    ) -> LogChange | None:
        """Return the change of an entry after which a call of `undo_rewind` does not undo the entry itself.

        Such an entry may only rewind messages: where a fork ends before the first message of another answer or
        question, and where messages were appended after a rewind of items, which was then undone. It rewinds nothing
        where the fork shows what was shown before that answer.
        """
        if rewound and not restored:
            return _change(entry, "rewind", message=self._first(rewound))
        is_of_fork = not restored and STANDING.of(entry) is not None
        if before.undo in self._without_change or is_of_fork:
            self._without_change.add(entry.number)
            return _activation(entry) if is_of_fork else None
        return _change(entry, "undo", message=self._first(restored))

    def _first(self, pairs: list[Pair]) -> str:
        """Return the id of the first message in some ranges, or ""."""
        return self._ids.get(pairs[0][0], "") if pairs else ""


def _activation(entry: Entry) -> LogChange | None:
    """Return the change that makes the variant active which an entry records as shown; None without one."""
    standing = STANDING.of(entry)
    if standing is None or not standing.shown.variant:
        return None
    now = standing.shown
    made = _change(entry, "activate", message="")
    return made._replace(turn=now.turn, first_turn=standing.place, variant=now.variant)


def _change(
    entry: Entry, kind: str, *, message: str = "", has_messages: bool = False, shows: bool = False
) -> LogChange:
    return LogChange(
        entry.last, kind, entry.at, message=message, has_messages=has_messages, shows=shows
    )


def _with_event(change: LogChange, event: TurnEvent) -> LogChange:
    return change._replace(
        turn=event.turn,
        first_turn=event.first_turn,
        variant=event.variant,
        call=event.call,
        values=event.values,
    )
