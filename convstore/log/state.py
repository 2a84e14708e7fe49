"""Define the state of a conversation: data that a load needs besides entries, and that an append does not change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from convstore.log.entry import EntryMessage, Totals
from convstore.log.rows import Row, leading_system
from convstore.log.summary import NamedResult, SummaryRecord, summary_chain

_Gaps = Callable[[int], tuple[tuple[int, int], ...]]


class NamedMessage(NamedTuple):
    """A message that the note of a view may name: its ordinal, and `EntryMessage.name`."""

    ordinal: int
    name: NamedResult


class ViewRecord(NamedTuple):
    """Marks that decide which messages the views of one policy leave out or shorten. They only move forward.

    Attributes:
        start: Ordinal of the first message of views; 1 for the log's first.
        short_through: Finished turns up to this ordinal are shortened.
        stubs_through: In the turn that contains this ordinal, steps up to it are condensed.
        entry: Number of the entry that contains the first message.
        link: Link of that entry, 0 if the start is the log's first message.
        moved_at: When a mark was last moved.
        results: The newest named messages before the start, newest first; None if they were not stored.
        gaps: Digest of the ranges without active messages before the start at the time when `results` were stored.
        after: The last ordinal that a summary covered at that time; `results` are later.
    """

    start: int = 1
    short_through: int = 0
    stubs_through: int = 0
    entry: int = 1
    link: int = 0
    moved_at: datetime = datetime.min.replace(tzinfo=UTC)
    results: tuple[NamedMessage, ...] | None = ()
    gaps: bytes = b""
    after: int = 0

    @property
    def marks(self) -> tuple[int, int, int]:
        """The three marks that decide a view."""
        return self[:3]


NO_RECORD = ViewRecord()


class Move(NamedTuple):
    """A move of a record's marks, and the log's last entry at that time."""

    seen: int
    record: ViewRecord


@dataclass(frozen=True, slots=True)
class LeadingSystem:
    """The system messages at the beginning of a log.

    Attributes:
        messages: The messages.
        through: Ordinal of the first message after them.
        gaps: The ranges without active messages up to `through` when the messages were stored.
        counter: Name of the token counter of their sizes.
    """

    messages: tuple[EntryMessage, ...]
    through: int
    gaps: tuple[tuple[int, int], ...]
    counter: str


@dataclass(frozen=True, slots=True)
class State:
    """The state of a conversation.

    Attributes:
        conversation: Id of the conversation.
        at: When the state was inserted.
        revision: Counts the changes of the current summary.
        summary: The current summary.
        newest: Token of the summary that was written last, or "".
        aside: Tokens of the summaries that rewinds made invalid, each the last one of its chain; undoing a rewind makes
            one of them current again.
        versions: The number of summaries written so far.
        failures: Number of failed summaries since the last successful one.
        wait_until: After a failure, the time of the next attempt.
        views: Records of views, by the key of the policy.
        moves: Number of moves of all records so far.
        system: The leading system messages, None if they are unknown.
        changes: In a restored state, the changes of the current summary: the log's last entry at that time, and the
            token.
    """

    conversation: str
    at: datetime
    revision: int = 0
    summary: SummaryRecord | None = None
    newest: str = ""
    aside: tuple[str, ...] = ()
    versions: int = 0
    failures: int = 0
    wait_until: datetime | None = None
    views: Mapping[str, ViewRecord] = field(default_factory=dict)
    moves: int = 0
    system: LeadingSystem | None = None
    changes: tuple[tuple[int, str], ...] = ()


def system_of(
    rows: Sequence[Row], counter: str, gaps: _Gaps = lambda _: ()
) -> LeadingSystem | None:
    """Return the leading system messages of a log, given its first rows; None if more of them may follow."""
    leading = leading_system(rows)
    if len(leading) == len(rows):
        return None
    through = rows[len(leading)].message.ordinal
    return LeadingSystem(tuple(row.message for row in leading), through, gaps(through), counter)


def restored(
    conversation: str,
    records: Iterable[SummaryRecord],
    fits: Callable[[SummaryRecord], bool],
    *,
    revision: int,
    at: datetime,
) -> State:
    """Rebuild a lost state from the stored summaries of a conversation.

    Args:
        conversation: Id of the conversation.
        records: All its summaries.
        fits: Returns True if a summary covers the active messages of its range.
        revision: A revision above all earlier ones.
        at: The current time.
    """
    made = sorted(records, key=lambda record: record.version)
    fitting = [record for record in made if fits(record)]
    newest = made[-1] if made else None
    current = max(fitting, key=lambda record: (record.last, record.version), default=None)
    changes = [(record.seen, record.token) for record in made]
    if newest and current is not newest:  # a later rewind or undo changed the current summary
        changes.append((newest.seen, current.token if current else ""))
    return State(
        conversation,
        at,
        revision,
        summary=current,
        changes=tuple(changes),
        newest=newest.token if newest else "",
        versions=newest.version if newest else 0,
    )


def forked(
    conversation: str,
    state: State,
    records: Mapping[str, SummaryRecord],
    *,
    tail: Totals,
    gaps: _Gaps,
) -> tuple[State, list[SummaryRecord]]:
    """Return state and summaries of a fork, given those of the conversation, and the fork's last totals.

    Summaries that cover more than the fork's messages are left out. Views of the fork begin at the same messages.
    """
    kept: list[SummaryRecord] = []
    for made in reversed(summary_chain(records, state.newest, "previous")):
        if made.last <= tail.messages:
            before = kept[-1].token if kept else ""
            kept.append(
                replace(
                    made, version=len(kept) + 1, previous=before, seen=min(made.seen, tail.entries)
                )
            )
    starts = (*state.aside, state.summary.token if state.summary else "")
    # only summaries that are current or can become so again
    shown = {made.token for start in starts for made in summary_chain(records, start, "parent")}
    own = restored(
        conversation,
        kept,
        lambda made: made.token in shown and made.gaps == gaps(made.last),
        revision=state.revision,
        at=state.at,
    )
    views = {
        key: record._replace(
            short_through=min(record.short_through, tail.messages),
            stubs_through=min(record.stubs_through, tail.messages),
        )
        for key, record in state.views.items()
        if record.start <= tail.messages and record.entry <= tail.entries
    }
    system = state.system if state.system and state.system.through <= tail.messages else None
    return replace(own, views=views, system=system), kept
