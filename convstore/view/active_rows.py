"""The active messages at the end of a log, from which a view is planned and built.

`load` reads rows until `has_enough` is true, plans the view, and then reads the payloads that `payloads_needed` lists.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage

from convstore.log.entry import EntryMessage
from convstore.log.rows import Row, leading_system
from convstore.log.state import NamedMessage
from convstore.log.stored_message import FormDetails, ShownMessage
from convstore.log.summary import SummaryRecord
from convstore.messages.provenance import mark
from convstore.messages.tokens import TokenCounter, count
from convstore.values.stamps import ViewMarks
from convstore.view.decoder import Decoder
from convstore.view.render import NOTE_RESULTS, View, build_view, make_note
from convstore.view.rule import ViewPlan, decide, is_enough, plan_from_marks
from convstore.view.sizes import SizedLog
from convstore.view.thinking import with_bound_thinking


@dataclass(slots=True, kw_only=True)
class ActiveRows:
    """The active messages at the end of a log, sized by the store's counter and checked for holes.

    Attributes:
        rows: The messages, after those that the summary covers.
        is_complete: True if `rows` has every message that is not summarised.
        summary: The current summary.
        summary_messages: The messages by which a view shows the summary.
        system: The leading system messages of the log; None if they are unknown.
        earlier_results: The newest named messages before the rows, newest first; None if they are unknown.
        kept_notes: Notes and their sizes, by the ordinals around the messages that they replace.
    """

    rows: Sequence[Row] = ()
    is_complete: bool = True
    summary: SummaryRecord | None = None
    summary_messages: Sequence[BaseMessage] = ()
    system: tuple[EntryMessage, ...] | None = None
    earlier_results: tuple[NamedMessage, ...] | None = None
    kept_notes: dict[tuple[int, ...], ShownMessage] = field(default_factory=dict)
    _named: tuple[Sequence[Row], list[int]] = field(default=((), []), repr=False, compare=False)

    def results_before(self, index: int, left: Sequence[range] = ()) -> tuple[NamedMessage, ...]:
        """Return the newest named messages before a row and in left-out later steps, newest first."""
        if self._named[0] is not self.rows:
            self._named = (
                self.rows,
                [at for at, row in enumerate(self.rows) if row.message.is_named],
            )
        named = self._named[1]
        end = bisect_left(named, index)
        places = [
            at for step in reversed(left) for at in reversed(step) if self.rows[at].message.is_named
        ]
        places += reversed(named[max(0, end - NOTE_RESULTS) : end])
        own = [
            NamedMessage(self.rows[at].message.ordinal, self.rows[at].message.name) for at in places
        ]
        return (*own, *(self.earlier_results or ()))[:NOTE_RESULTS]

    def turns_before(self, index: int) -> int:
        """Return the number of turns before a row that are left out; the row begins a turn or follows the last one."""
        if index == len(self.rows):
            return max(1, self.rows[-1].turn) if self.begin < index else 0
        return 0 if self.is_first(index) else max(1, self.rows[index].turn - 1)

    def is_first(self, index: int) -> bool:
        """Return True if a row is the first one after the summary or the leading system messages."""
        system = 0 if self.summary else len(self.system or ())
        return index < len(self.rows) and self.rows[index].place == system + 1

    @property
    def begin(self) -> int:
        """Index of the row at which the first whole turn begins."""
        if self.is_complete:
            return 0 if self.summary else len(leading_system(self.rows))
        return next(
            (index for index, row in enumerate(self.rows) if row.message.begins_turn),
            len(self.rows),
        )

    def note(self, index: int, left: Sequence[range], counter: TokenCounter) -> ShownMessage | None:
        """Return the note of a view that begins with a row and leaves out later steps; None if nothing is left out."""
        turns = self.turns_before(index) if self.rows else 0
        if not turns and not left:
            return None
        first = self.rows[-1].message.ordinal + 1
        if index < len(self.rows):
            first = self.rows[index].message.ordinal
        key = (
            first,
            turns,
            *(self.rows[at].message.ordinal for step in left for at in (step.start, step.stop - 1)),
        )
        if key not in self.kept_notes:
            names = [left_out.name for left_out in self.results_before(index, left)]
            message = make_note((turns, len(left)), names, first=first)
            self.kept_notes[key] = message, FormDetails(count(counter, message))
        return self.kept_notes[key]

    def _size_turns(self, decoder: Decoder, *, start: int | None = None) -> SizedLog:
        """Size the turns from an ordinal, or from the first whole turn, under the decoder's policy."""
        counter = decoder.counter
        begin = self.begin if start is None else self._row_of(start)
        fixed = sum(count(counter, message) for message in self.summary_messages)
        fixed += sum(message.tokens for message in self.system or ())
        return SizedLog(self.rows, decoder, begin=begin, fixed=fixed)

    def has_enough(self, decoder: Decoder) -> bool:
        """Return True if a view without a record can be planned without earlier rows."""
        return self.is_complete or is_enough(self._size_turns(decoder))

    def plan(self, decoder: Decoder, record: tuple[int, int, int]) -> ViewPlan:
        """Plan a view, given the start and the two marks of the policy's record."""
        log = self._size_turns(decoder, start=record[0])

        def note(index: int, left: Sequence[range]) -> int:
            made = self.note(index, left, decoder.counter)
            return made[1].tokens or 0 if made else 0

        return decide(log, record, note)

    def past_plan(self, decoder: Decoder, marks: ViewMarks) -> ViewPlan:
        """Return the plan of a past view from the marks in its stamp."""
        return plan_from_marks(self._size_turns(decoder, start=marks.start), marks)

    def _row_of(self, start: int) -> int:
        """Return the index of the row with the ordinal `start`, or of the first whole turn after it."""
        index = bisect_left(self.rows, start, key=lambda row: row.message.ordinal)
        is_here = (
            not self.is_complete
            and index < len(self.rows)
            and self.rows[index].message.ordinal == start
        )
        return index if is_here else max(self.begin, index)

    def view(self, plan: ViewPlan, decoder: Decoder) -> View:
        """Build the view of a plan; see `render.build_view`. Equal arguments give equal views."""
        notes: list[ShownMessage] = [
            (message, FormDetails(None)) for message in self.summary_messages
        ]
        if note := self.note(plan.begin, plan.left, decoder.counter):
            # a deep copy would take six times as long
            own = {
                "additional_kwargs": mark("note"),
                "response_metadata": {},
            }
            notes.append((note[0].model_copy(update=own), note[1]))
        rows = self.rows[plan.begin :]
        view = build_view(rows, plan.shown, decoder=decoder, system=self.system or (), notes=notes)
        marks = plan.marks
        is_cut = bool(notes or marks.short_through or marks.stubs_through)
        return with_bound_thinking(view, rows, decoder.counter, is_cut=is_cut)
