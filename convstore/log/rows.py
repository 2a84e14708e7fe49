"""Build the rows of a log: its active messages with their positions, sizes and turns.

The view, the compaction plan and the readers of turns all work on these rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from convstore.log.entry import Entry, EntryMessage, Over
from convstore.log.facts.branch import BRANCH
from convstore.log.facts.event import EVENT
from convstore.log.summary import SummaryRecord
from convstore.log.turns import unread
from convstore.sources.stub import RETRIEVAL_TOOL, STUB_MIN_TOKENS
from convstore.values.policy import HistoryPolicy

_LONG_TOKENS = 1_000
_number = attrgetter("entry.number")
_turn = attrgetter("turn")
_ordinal = attrgetter("message.ordinal")


class Row(NamedTuple):
    """A message of the log with its position in the running totals.

    Attributes:
        message: The message as stored in its entry.
        entry: The entry.
        place: Its position among the active messages, from 1.
        before: View tokens of the log before it, by the counter of the rows.
        turn: Number of the newest question; 0 before the first one.
        over: For the last row of a log, why the newest turn is over; "" if it is in progress.
        ended: Ordinal of the question whose turn an event ended directly after the row; 0 for most rows.
    """

    message: EntryMessage
    entry: Entry
    place: int
    before: int
    turn: int
    over: Over = ""
    ended: int = 0


def rows_of(
    entries: Sequence[Entry], summary: SummaryRecord | None = None, *, through: int | None = None
) -> list[Row]:
    """Return the messages of successive entries as rows.

    Messages that a summary covers are left out; places, sizes and turns are then counted from the end of the summary.

    Args:
        entries: Entries in order, with active messages only. They must reach the end of the log, or begin where the
            rows begin.
        summary: The current summary.
        through: View tokens of the log up to the last entry; by default those in its totals.
    """
    last = summary.last if summary else 0
    covered, turns = (summary.active, summary.turns) if summary else (0, 0)
    rows = []
    for entry in entries:
        totals = entry.totals
        turn = totals.turns - sum([message.turn == message.ordinal for message in entry.messages])
        place = totals.active - len(entry.messages)
        for message in entry.messages:
            turn += message.turn == message.ordinal
            place += 1
            if message.ordinal > last:
                rows.append((message, entry, place - covered, turn - turns))
    sizes = [row[0].view_tokens for row in rows]
    begins = bool(rows) and rows[0][2] == 1
    if through is None:
        through = entries[-1].totals.view_tokens if entries else 0
    covered_tokens = summary.view_tokens if summary else 0
    befores = accumulate(sizes, initial=0 if begins else through - covered_tokens - sum(sizes))
    made = [
        Row(message, entry, place, before, turn)
        for (message, entry, place, turn), before in zip(rows, befores, strict=False)
    ]
    return with_turn_ends(made, entries)


def with_turn_ends(rows: list[Row], entries: Sequence[Entry]) -> list[Row]:
    """Return the rows with `ended` and `over` set by the events and totals of entries at the end of the log."""
    if not rows or not entries:
        return rows
    for entry in entries:
        event = EVENT.of(entry)
        if event and event.over and event.question and not BRANCH.of(entry):
            before = bisect_right(rows, entry.number, key=_number) - 1
            if before >= 0:
                rows[before] = rows[before]._replace(ended=event.question)
    rows[-1] = rows[-1]._replace(over=entries[-1].totals.over)
    return rows


def leading_system(rows: Sequence[Row]) -> list[Row]:
    """Return the system messages at the beginning of a log, given its first rows."""
    end = next((index for index, row in enumerate(rows) if row.message.type != "system"), len(rows))
    return list(rows[:end])


def is_finished(rows: Sequence[Row]) -> bool:
    """Return True if the newest turn is over: it was answered, or an event ended it."""
    return not rows or bool(rows[-1].over)


def open_turn(rows: Sequence[Row]) -> str:
    """Return the id of the first row of the turn in progress, usually its question; "" if the newest turn is over."""
    if is_finished(rows) or len(leading_system(rows)) == len(rows):
        return ""
    return rows[bisect_left(rows, rows[-1].turn, key=_turn)].message.id


def is_named(type_: str, view_tokens: int, tool: str) -> bool:
    """Return True if notes name a message: a tool result, or a human or AI message of at least 1,000 tokens.

    Pages of the retrieval tool are not named, because they only repeat parts of other messages.
    """
    if type_ == "tool":
        return tool != RETRIEVAL_TOOL
    return view_tokens >= _LONG_TOKENS and type_ in ("human", "ai")


def is_hidden(message: EntryMessage, policy: HistoryPolicy) -> bool:
    """Return True if a policy with ``view="conversation"`` leaves a message out."""
    return policy.view == "conversation" and (
        message.type in ("tool", "function") or bool(message.calls)
    )


def is_exempt(row: Row, policy: HistoryPolicy) -> bool:
    """Return True if a policy still shows the tool result of a row in full after its turn is finished."""
    message = row.message
    # views of finished turns do not read the payload of a result that is too large for the entry
    is_split = message.payload is not None and message.stub is None
    return is_always_whole(row, policy) or (
        not message.sources and message.tokens <= STUB_MIN_TOKENS and not is_split
    )


def is_always_whole(row: Row, policy: HistoryPolicy) -> bool:
    """Return True if a policy never shows a tool result as a stub, for all tools or for this one."""
    return policy.stub_tools == "never" or row.message.tool in policy.never_stub


def tool_results_in(entries: Sequence[Entry]) -> list[EntryMessage]:
    """Return the tool results of entries, newest first; the entries must be newest first, too."""
    return [message for message in named_in(entries) if message.type == "tool"]


def named_in(entries: Sequence[Entry]) -> list[EntryMessage]:
    """Return the tool results and long messages of entries, newest first; the entries must be newest first, too."""
    return [
        message for entry in entries for message in reversed(entry.messages) if message.is_named
    ]


def _newest_question(rows: Sequence[Row]) -> int:
    """Return the ordinal of the newest question of a log that ends with some rows; 0 if it ends in a hidden variant."""
    if not rows or BRANCH.of(rows[-1].entry):
        return 0
    return rows[-1].entry.totals.turn


def question_in_progress(rows: Sequence[Row]) -> int:
    """Return the ordinal of the newest question if its turn is in progress, else 0."""
    return 0 if is_finished(rows) else _newest_question(rows)


def unread_results(rows: Sequence[Row], *, before: int | None = None) -> set[int]:
    """Return the ordinals of the tool results that no model has read, except in turns that an event ended.

    With `before` only messages before that ordinal are considered.
    """
    end = len(rows) if before is None else bisect_left(rows, before, key=_ordinal)
    question = _newest_question(rows) if before is None else 0
    ordinals = unread([row.message for row in rows[:end]], question=question)
    if not ordinals:
        return ordinals
    ended = _ended_turns(rows)
    found: set[int] = set()
    for row in rows:
        message = row.message
        if message.type == "tool" and message.ordinal in ordinals and message.turn not in ended:
            found.add(message.ordinal)
    return found


def _ended_turns(rows: Sequence[Row]) -> set[int]:
    """Return the turns that an event ended; the newest one is left out if it is in progress again."""
    ended = {row.ended for row in rows if row.ended}
    if rows[-1].over:
        return ended
    newest = {
        row.message.turn for row in rows if row.message.begins_turn and row.turn == rows[-1].turn
    }
    return ended - newest


def turn_begins(rows: Sequence[Row], begin: int = 0) -> list[int]:
    """Return the indexes at which turns begin, from `begin` on, which is the first row of a turn or follows a summary.

    Interleaved turns count as one: a question begins no turn here if a later AI message belongs to an earlier turn.
    """
    begins = [begin] if begin < len(rows) else []
    for index in range(begin + 1, len(rows)):
        message = rows[index].message
        if message.turn == message.ordinal:
            begins.append(index)
        elif message.type == "ai" and message.turn:
            while len(begins) > 1 and rows[begins[-1]].message.ordinal > message.turn:
                begins.pop()
    return begins


def begins_turn(row: Row) -> bool:
    """Return True for a question, and for the first active message of the log."""
    return row.message.begins_turn or row.place == 1


def weigh(rows: Sequence[Row]) -> list[int]:
    """Return the size of each message in a view; messages of the turn in progress count in full."""
    last = None if is_finished(rows) else rows[-1].turn
    return [row.message.tokens if row.turn == last else row.message.view_tokens for row in rows]
