"""Sizes the turns of a view from stored counts, in each form: whole, as finished turns, and shortened.

Pure. `rule` plans a view by these sizes, and `render` shows each message in the form that was sized here.

A *step* is an AI message with the results of its calls. *Condensed* steps show their results as stubs and each text in
at most an eighth of the budget. Together they take at most a quarter of it; the oldest ones are left out.

The module is long because each size depends on the form of a message, and a turn is the sum of its messages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from convstore.log.rows import (
    Row,
    is_always_whole,
    is_exempt,
    is_finished,
    is_hidden,
    turn_begins,
    unread_results,
)
from convstore.log.turns import unread
from convstore.sources.shortening import SHORTENED
from convstore.view.decoder import FINISHED, WHOLE, Decoder, Showing
from convstore.view.media import kept_media, leaving, limits_of

_PLACEHOLDER_TOKENS = 100
"""Estimated maximum size of the placeholder of an image or a file."""


class TurnRows(NamedTuple):
    """The range of rows of a turn: its question and its steps."""

    begin: int
    end: int


class Forms(NamedTuple):
    """The form of each row before texts are cut, and its size in that form."""

    shown: list[Showing]
    sizes: list[int]

    def copy(self) -> Forms:
        """Return a copy that can be changed."""
        return Forms(self.shown.copy(), self.sizes.copy())

    def take(self, at: int, other: Forms) -> None:
        """Take the form and the size of a row from other forms."""
        self.shown[at] = other.shown[at]
        self.sizes[at] = other.sizes[at]


class ShownRows(NamedTuple):
    """Successive rows in the forms in which a view shows them, such as those of a turn.

    Attributes:
        size: Size in these forms, in tokens.
        shown: The form of each row; None for a row that is left out.
        left: Steps that are left out, as ranges of rows.
    """

    size: int
    shown: Sequence[Showing | None]
    left: Sequence[range] = ()


class SizedLog:
    """The turns at the end of a log, with their sizes under one policy.

    Attributes:
        rows: The rows, without leading system messages before the first turn.
        turns: The finished turns.
        now: The turn in progress; empty if the last turn is finished.
        fixed: Size of leading system messages and summary.
    """

    def __init__(
        self, rows: Sequence[Row], decoder: Decoder, *, begin: int = 0, fixed: int = 0
    ) -> None:
        self.rows = rows
        self.policy = policy = decoder.policy
        self.fixed = fixed
        self._decoder = decoder
        self._eighth = (policy.max_tokens or 0) // 8
        self._quarter = (policy.max_tokens or 0) // 4
        turns = _turns(rows, begin)
        end = len(rows)
        self.now = TurnRows(end, end) if is_finished(rows) or not turns else turns.pop()
        self.turns = turns
        self._left_unread = unread_results(rows, before=self._newest_question)
        self._steps = steps_of(rows, self.now)
        self._read = self._steps[: self._read_steps()]
        self._current: dict[tuple[int, int], ShownRows] = {}
        self._with_media = [at for at, row in enumerate(rows) if row.message.media]
        self._whole = Forms([WHOLE] * end, [row.message.tokens for row in rows])
        self._finished = Forms([FINISHED] * end, self._finished_sizes())
        self._adapt_forms()
        self._unread_media = 0
        if self._with_media:
            self._limit_media()
            self._unread_media = self._unseen_media()
        self._finished_sums = [0, *accumulate(self._finished.sizes)]

    def _adapt_forms(self) -> None:
        """Adapt forms and sizes to the policy, and to the results that no model has read yet."""
        for at in self._with_media:
            self._whole.sizes[at] = self._decoder.size_whole(self.rows[at].message)
        self._keep_exempt()
        if self.policy.view == "full":
            self._keep_unread()
            self._add_missing()
        else:
            self._hide()

    def _finished_sizes(self) -> list[int]:
        """Return the size of each row in a finished turn; under most policies, the stored count except for media."""
        size = self._decoder.size_finished
        if self._decoder.may_shorten_finished:
            return [size(row.message) for row in self.rows]
        sizes = [row.message.view_tokens for row in self.rows]
        for at in self._with_media:
            sizes[at] = size(self.rows[at].message)
        return sizes

    def _limit_media(self) -> None:
        """Replace the media that a request cannot hold by placeholders."""
        begin = self.now.begin
        current = [self.rows[at].message for at in self._with_media if at >= begin]
        earlier = [
            self.rows[at].message for at in self._with_media if at < begin and self._shows_media(at)
        ]
        limits = limits_of(self.policy)
        kept = kept_media(current, earlier, limits, self._decoder.size_media)
        for at in self._with_media if kept else ():
            media = kept.get(self.rows[at].message.ordinal)
            if media is not None:
                self._leave_media_out(at, media)

    def _leave_media_out(self, at: int, media: int) -> None:
        """Show only the newest `media` of a message, and placeholders for the others."""
        message = self.rows[at].message
        gone = len(message.media) - media
        less = self._decoder.size_media(message, gone) - _PLACEHOLDER_TOKENS * gone
        smaller = [self._whole, self._finished] if self._shows_media(at) else [self._whole]
        for forms in smaller:
            forms.sizes[at] = max(0, forms.sizes[at] - less)
        for forms in (self._whole, self._finished):
            forms.shown[at] = forms.shown[at]._replace(media=media)

    def _shows_media(self, at: int) -> bool:
        """Return True if a message shows its images and files in a finished turn."""
        message = self.rows[at].message
        if self._finished.shown[at].whole:
            return True
        if message.type == "tool":
            return message.keeps_content
        return message.type == "system" or self.policy.media == "never"

    def _unseen_media(self) -> int:
        """Return the size of the unread media, if they would take the room of earlier turns, else 0.

        They do if the question and the media of the last step take more than three quarters of the budget.
        """
        budget = self.policy.max_tokens
        if budget is None:
            return 0
        asked = _head(self.now, self._steps)
        last = (at for part in self._steps[len(self._read) :] for at in part)
        in_question = sum(map(self._media_shown, asked))
        in_last_step = sum(map(self._media_shown, last))
        size = self.fixed + sum(self._in_progress.sizes[at] for at in asked) + in_last_step
        return in_question + in_last_step if size > budget - self._quarter else 0

    def _media_shown(self, at: int) -> int:
        """Return the size of the media that are shown of a message of the turn in progress."""
        message = self.rows[at].message
        if not message.media or not self._whole.sizes[at]:
            return 0
        shown = self._whole.shown[at].media
        gone = 0 if shown is None else len(message.media) - shown
        return self._decoder.size_media(message) - self._decoder.size_media(message, gone)

    def _keep_exempt(self) -> None:
        """Keep results whole that the policy exempts from stubs."""
        for at, row in enumerate(self.rows):
            if row.message.type == "tool" and is_exempt(row, self.policy):
                self._finished.take(at, self._whole)

    def _hide(self) -> None:
        """Set the sizes of messages that the policy hides to 0."""
        for index, row in enumerate(self.rows):
            if is_hidden(row.message, self.policy):
                self._whole.sizes[index] = self._finished.sizes[index] = 0

    @cached_property
    def _newest_question(self) -> int | None:
        """Ordinal of the question of the turn in progress, or of its first row; None if the newest turn is over."""
        if self.now.begin == self.now.end:
            return None
        rows = self.rows[self.now.begin : self.now.end]
        asked = (row.message.ordinal for row in reversed(rows) if row.message.begins_turn)
        return next(asked, rows[0].message.ordinal)

    @cached_property
    def _newest_row(self) -> int:
        """Index of the newest question if its turn is in progress, else the end of the rows."""
        question = self._newest_question
        if question is None:
            return len(self.rows)
        return bisect_left(self.rows, question, key=lambda row: row.message.ordinal)

    def _keep_unread(self) -> None:
        """Keep the newest results that were unread when this turn began whole, in a quarter of the budget."""
        room = self._quarter if self.policy.max_tokens else None
        for index in reversed(range(self._newest_row)):
            message = self.rows[index].message
            is_short = message.type == "tool" and self._finished.shown[index] is FINISHED
            if not is_short or message.ordinal not in self._left_unread:
                continue
            if room is not None:
                room -= self._whole.sizes[index]
                if room < 0:
                    break
            self._finished.take(index, self._whole)

    def _add_missing(self) -> None:
        """Add the sizes of synthetic results for unanswered calls, and of the text around results without a call."""
        missing = self._decoder.size_missing
        for turn in (*self.turns, self.now):
            unanswered = 0
            caller = turn.begin
            for index in range(turn.begin, turn.end):
                message = self.rows[index].message
                added = 0
                if message.calls:
                    unanswered = unanswered + len(message.calls)
                    caller = index
                elif message.type == "tool" and unanswered and message.arguments:
                    unanswered -= 1
                elif message.type == "tool":
                    added = missing * (2 + len(message.tool + message.arguments) // 40)
                if added:
                    self._add(index, added)
            if unanswered:
                synthetic = self._decoder.size_synthetic(self.rows[caller].message)
                self._add(caller, unanswered * max(missing, synthetic))

    def _add(self, index: int, tokens: int) -> None:
        self._whole.sizes[index] += tokens
        self._finished.sizes[index] += tokens

    def first(self, index: int) -> int:
        """Return the ordinal of the first message of a turn; of the next message after the last turn."""
        begin = self.begin(index)
        return self.rows[begin].message.ordinal if begin < len(self.rows) else self.last + 1

    def begin(self, index: int) -> int:
        """Return the index of the first row of a turn; the turn in progress comes after the finished ones."""
        return self.turns[index].begin if index < len(self.turns) else self.now.begin

    @property
    def last(self) -> int:
        """Ordinal of the last message."""
        return self.rows[-1].message.ordinal if self.rows else 0

    def ends(self, index: int) -> int:
        """Return the ordinal of the last message of a finished turn."""
        return self.rows[self.turns[index].end - 1].message.ordinal

    def index_of(self, ordinal: int) -> int:
        """Return the index of the first turn that begins at a message or after it."""
        return bisect_left(range(len(self.turns)), ordinal, key=self.first)

    def holder(self, ordinal: int) -> int | None:
        """Return the index of the finished turn that contains a message, else None."""
        index = bisect_right(range(len(self.turns)), ordinal, key=self.first) - 1
        return index if index >= 0 and ordinal <= self.ends(index) else None

    @property
    def before_last_step(self) -> int:
        """Ordinal of the last message of the turn in progress that may be condensed, 0 if it has at most one step."""
        return self.rows[self._read[-1].stop - 1].message.ordinal if self._read else 0

    @property
    def unseen(self) -> int:
        """Size of the unread messages, which are the question and the last step, with system messages and summary.

        Unread media count only as far as they leave a quarter of the budget to earlier turns.
        """
        sizes = self._in_progress.sizes
        size = self.fixed + sum(sizes[index] for part in self._unseen_parts for index in part)
        return size - self.media_beyond(size)

    @property
    def _unseen_parts(self) -> list[range]:
        """The question of the turn in progress, and its unread steps."""
        unread_steps = self._steps[len(self._read) :]
        return [_head(self.now, self._steps), *self._question_in_steps, *unread_steps]

    @cached_property
    def _question_in_steps(self) -> list[range]:
        """The newest question if it stands between read steps, as in interleaved turns; at most one range."""
        at = self._newest_row
        is_in_steps = bool(self._read) and self._read[0].start <= at < self._read[-1].stop
        is_question = is_in_steps and self.rows[at].message.begins_turn
        return [range(at, at + 1)] if is_question else []

    def media_beyond(self, size: int) -> int:
        """Return the part of the unread media that does not count, given the size of the view without earlier turns.

        Earlier turns keep a quarter of the budget, however large the unread media are.
        """
        if not self._unread_media or self.policy.max_tokens is None:
            return 0
        most = self.policy.max_tokens - self._quarter
        return min(self._unread_media, max(0, size - most))

    def _read_steps(self) -> int:
        """Return how many steps of the turn in progress come before the last step and before any unread message.

        The last step counts as unread, because a rewind may have removed the answer that followed it.
        """
        if len(self._steps) < 2:
            return 0
        before = range(self._steps[0].start, self._steps[-1].start)
        ordinals = unread(
            [row.message for row in self.rows[before.start :]], question=self._newest_question or 0
        )
        first = next(
            (at for at in before if ordinals and self.rows[at].message.ordinal in ordinals),
            before.stop,
        )
        return bisect_right(self._steps, first, key=lambda step: step.stop)

    def plain_sizes(self) -> list[int]:
        """Return the size of each finished turn, whole except for stubs."""
        sums = self._finished_sums
        return [sums[turn.end] - sums[turn.begin] for turn in self.turns]

    def plainly_shown(self, start: int) -> list[Showing | None]:
        """Return the forms of the rows of finished turns from one on, whole except for stubs."""
        return [*self._finished.shown[self.begin(start) : self.now.begin]]

    def changed(self, short: int, stubs: int) -> list[int]:
        """Return the indexes of the finished turns that these marks shorten or condense."""
        turns = list(range(bisect_right(range(len(self.turns)), short, key=self.ends)))
        holder = self.holder(stubs) if stubs > short else None
        return turns if holder is None else [*turns, holder]

    def part(self, index: int, *, short: int, stubs: int) -> ShownRows:
        """Return a turn as the marks require: shortened, or whole except for stubs and condensed steps."""
        turn = self.turns[index]
        if self.ends(index) <= short:
            return self._short(turn)
        return self._partly_condensed(turn, stubs)

    def current(self, stubs: int, gap: int) -> ShownRows:
        """Return the turn in progress with its steps up to `stubs` condensed in `gap` tokens.

        Results that stay whole count only if `gap` is not the usual quarter of the budget, but the room that an
        excursion leaves. The size excludes the unread media that do not count; see `media_beyond`.
        """
        if self.now.begin == self.now.end:
            return ShownRows(0, ())
        if (stubs, gap) not in self._current:
            done = self._read[: self._steps_through(self._read, stubs)]
            condensed = self._with_question(done, self._condense_current(done, gap))
            body = _head(self.now, self._steps).stop
            part = self._condensed_turn(self.now, body, done, condensed, self._in_progress)
            beyond = self.media_beyond(self.fixed + part.size)
            self._current[stubs, gap] = part._replace(size=part.size - beyond)
        return self._current[stubs, gap]

    def leaves_a_quarter(self, stubs: int, gap: int) -> bool:
        """Return True if unread media leave exactly a quarter of the budget to earlier turns."""
        if not self._unread_media or self.policy.max_tokens is None:
            return False
        shown = self.fixed + self.current(stubs, gap).size
        return shown == self.policy.max_tokens - self._quarter

    def _condense_current(self, done: Sequence[range], gap: int) -> ShownRows:
        """Return the condensed steps of the turn in progress; keep the first one if it has reasoning and fits in `gap`.

        Anthropic refuses a turn whose first step is not the one with the reasoning.
        """
        counts_whole = gap != self._quarter
        if done and self.rows[done[0].start].message.is_reasoning:
            first = self._with_cut_texts(done[0], self._eighth, self._answered_forms)
            if first.size <= gap:
                rest = self._condense(
                    done[1:], gap - first.size, self._answered_forms, counts_whole=counts_whole
                )
                return ShownRows(first.size + rest.size, [*first.shown, *rest.shown], rest.left)
        return self._condense(done, gap, self._answered_forms, counts_whole=counts_whole)

    def _with_question(self, done: Sequence[range], condensed: ShownRows) -> ShownRows:
        """Return condensed steps with the question among them whole, even if the steps around it are left out."""
        if not done or not self._question_in_steps:
            return condensed
        index = self._newest_row - done[0].start
        if index >= len(condensed.shown):
            return condensed
        shown = [*condensed.shown]
        [question] = self._question_in_steps
        known = (
            self._with_cut_texts(question, self._eighth, self._answered_forms).size
            if shown[index]
            else 0
        )
        whole = self._answered_forms.sizes[self._newest_row]
        shown[index] = self._answered_forms.shown[self._newest_row]
        return ShownRows(condensed.size - known + whole, shown, condensed.left)

    def _partly_condensed(self, turn: TurnRows, stubs: int) -> ShownRows:
        """Return a finished turn with its steps up to `stubs` condensed."""
        steps = steps_of(self.rows, turn)
        done = steps[: self._steps_through(steps, stubs)]
        condensed = self._condense(done, self._quarter, self._finished)
        return self._condensed_turn(turn, _head(turn, steps).stop, done, condensed, self._finished)

    def _condensed_turn(
        self, turn: TurnRows, body: int, done: Sequence[range], condensed: ShownRows, rest: Forms
    ) -> ShownRows:
        """Return a turn with its first steps condensed; `body` is the row at which its steps begin."""
        begin = done[-1].stop if done else body
        size = (
            sum(rest.sizes[turn.begin : body]) + condensed.size + sum(rest.sizes[begin : turn.end])
        )
        shown = [*rest.shown[turn.begin : body], *condensed.shown, *rest.shown[begin : turn.end]]
        return ShownRows(size, shown, condensed.left)

    def _steps_through(self, steps: Sequence[range], ordinal: int) -> int:
        """Return how many steps end at or before an ordinal."""
        return bisect_right(
            steps, ordinal, key=lambda step: self.rows[step.stop - 1].message.ordinal
        )

    def _short(self, turn: TurnRows) -> ShownRows:
        """Return a shortened turn: its last answer is kept; its question gets the rest of a quarter of the budget."""
        eighth = self._eighth
        steps = steps_of(self.rows, turn)
        forms = self._finished
        is_answered = bool(steps) and self.rows[steps[-1].start].message.is_answer
        head = _head(turn, steps)
        answer = steps.pop() if is_answered else range(0)
        question = sum(forms.sizes[at] for at in head)
        condensed = self._condense(steps, self._quarter - min(question, eighth), forms)
        said = self._with_cut_texts(answer, eighth, forms)
        asked = self._with_cut_texts(
            head, max(eighth, self._quarter - condensed.size - said.size), forms
        )
        parts = (asked, condensed, said)
        return ShownRows(
            sum(part.size for part in parts),
            [form for part in parts for form in part.shown],
            condensed.left,
        )

    def _condense(
        self, steps: Sequence[range], gap: int, forms: Forms, *, counts_whole: bool = False
    ) -> ShownRows:
        """Return condensed steps; steps above `gap` are left out in portions of an eighth, counted from the first."""
        counted = self._cut_sizes(steps, forms)
        has_kept = self.policy.stub_tools == "never" or bool(self.policy.never_stub)
        if has_kept and not counts_whole:
            counted = [
                size - self._kept_whole(step) for size, step in zip(counted, steps, strict=True)
            ]
        left = leaving(counted, gap, max(1, self._eighth))
        kept = [self._with_cut_texts(step, self._eighth, forms) for step in steps[left:]]
        shown: list[Showing | None] = [None] * sum(map(len, steps[:left]))
        shown += [showing for part in kept for showing in part.shown]
        return ShownRows(sum(part.size for part in kept), shown, steps[:left])

    def _cut_sizes(self, steps: Sequence[range], forms: Forms) -> list[int]:
        """Return the sizes of successive steps with their texts cut; in most steps, each text is short enough."""
        if not steps:
            return []
        begin = steps[0].start
        end = steps[-1].stop
        sums = [0, *accumulate(forms.sizes[begin:end])]
        sizes = [sums[step.stop - begin] - sums[step.start - begin] for step in steps]
        long = [at for at, size in enumerate(forms.sizes[begin:end], begin) if size > self._eighth]
        for number in {bisect_right(steps, at, key=lambda step: step.start) - 1 for at in long}:
            sizes[number] = self._with_cut_texts(steps[number], self._eighth, forms).size
        return sizes

    def _kept_whole(self, step: range) -> int:
        """Return the size of the results in a step that the policy always shows whole."""
        kept = (
            at
            for at in step
            if self.rows[at].message.type == "tool" and is_always_whole(self.rows[at], self.policy)
        )
        return sum(self._finished.sizes[at] for at in kept)

    @cached_property
    def _in_progress(self) -> Forms:
        """The forms in the turn in progress: whole from its newest question on, which may follow interleaved turns."""
        forms = self._whole.copy()
        for at in range(self.now.begin, self._newest_row):
            forms.take(at, self._finished)
        return forms

    @cached_property
    def _answered_forms(self) -> Forms:
        """The forms in read steps of the turn in progress, with results as in finished turns."""
        forms = self._whole.copy()
        for at in range(self.now.begin, self.now.end):
            if self.rows[at].message.type == "tool":
                forms.take(at, self._finished)
        return forms

    def _with_cut_texts(self, part: range, room: int, forms: Forms) -> ShownRows:
        """Return rows with texts of at most `room` tokens."""
        size = 0
        shown: list[Showing] = []
        for at in part:
            message = self.rows[at].message
            showing = forms.shown[at]
            tokens = forms.sizes[at]
            if tokens > room and message.type in SHORTENED:
                showing = showing._replace(room=room)
                tokens = self._decoder.size_cut(message, showing, tokens)
            shown.append(showing)
            size += tokens
        return ShownRows(size, shown)


def _turns(rows: Sequence[Row], begin: int) -> list[TurnRows]:
    """Split the rows from `begin` on into turns; the first row begins a turn or follows a summary."""
    return [TurnRows(start, end) for start, end in pairwise([*turn_begins(rows, begin), len(rows)])]


def _head(turn: TurnRows, steps: Sequence[range]) -> range:
    """Return the rows of a turn before its steps, which is its question."""
    return range(turn.begin, steps[0].start if steps else turn.end)


def steps_of(rows: Sequence[Row], turn: TurnRows) -> list[range]:
    """Return the steps of a turn as ranges of rows; each begins with a reply of a model."""
    messages = [row.message for row in rows[turn.begin : turn.end]]
    begins = [at for at, message in enumerate(messages, turn.begin) if message.is_reply]
    return [range(begin, end) for begin, end in pairwise([*begins, turn.end])]
