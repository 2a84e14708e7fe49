"""An independent, slow implementation of the rule that decides what a model is shown under a token budget.

Written from the text of the rule alone, whose ten points the comments quote by number. It knows nothing of storage: a
log is a plain list of messages, and a decision is computed from that list each time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from convstore import HistoryPolicy
from convstore.sources.shortening import shorten_text
from convstore.sources.stub import stub_of

CHARACTERS = 4
_FEW = 3
_MARK = re.compile(
    r"\n\[[\d,]+ characters left out to save context, call \S+ with message id \S+ to read them\]\n"
)

Form = Literal["whole", "stub", "shortened", "absent"]


def count_letters(messages: Sequence[BaseMessage]) -> int:
    """Count four characters as one token, and nothing for what a view adds: notes, and marks in shortened texts.

    So the size of a view is the sum of what is shown of its messages, and nothing else.
    """
    return sum(_letters(message) for message in messages)


def _letters(message: BaseMessage) -> int:
    if message.additional_kwargs.get("convstore", {}).get("kind") in ("note", "missing_result"):
        return 0
    texts = [
        str(message.content),
        *(text for call in getattr(message, "tool_calls", []) for text in _texts(call)),
    ]
    return sum(len(_MARK.sub("", text)) // CHARACTERS for text in texts)


def _texts(call: Any) -> list[str]:
    return [value for value in call["args"].values() if isinstance(value, str)]


@dataclass(frozen=True)
class Line:
    """A message in the log.

    Attributes:
        ordinal: Its position: 1, 2, 3 …
        entry: Identity of the batch that it was appended in.
        message: The message.
        sources: Numbers of the sources in it, given in the order of the log.
    """

    ordinal: int
    entry: str
    message: BaseMessage
    sources: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The tokens of the whole message."""
        return count_letters([self.message])


class Log:
    """A conversation as a list of lines: messages are added at the end, rewinds remove ordinals.

    Attributes:
        lines: Every line ever appended.
        removed: Ordinals that rewinds hide.
        summary_through: Last ordinal that a summary stands for.
        summary_size: Tokens of that summary in a view.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.removed: set[int] = set()
        self.summary_through = 0
        self.summary_size = 0
        self._sources = 0
        self._entries = 0
        self._rewinds: list[set[int]] = []

    @property
    def last(self) -> int:
        """The last ordinal, removed or not."""
        return len(self.lines)

    @property
    def active(self) -> list[Line]:
        """The lines that no rewind hides."""
        return [line for line in self.lines if line.ordinal not in self.removed]

    def append(self, messages: Iterable[BaseMessage]) -> None:
        """Add a batch."""
        self._entries += 1
        for message in messages:
            found = getattr(message, "artifact", None) or ()
            numbers = tuple(range(self._sources + 1, self._sources + len(found) + 1))
            self._sources += len(found)
            self.lines.append(Line(self.last + 1, f"entry {self._entries}", message, numbers))

    def rewind(self, before: str) -> None:
        """Remove an active message and all after it."""
        [first] = [line.ordinal for line in self.active if line.message.id == before]
        gone = {line.ordinal for line in self.active if line.ordinal >= first}
        self._rewinds.append(gone)
        self.removed |= gone

    def undo_rewind(self) -> None:
        """Restore what the last rewind removed."""
        self.removed -= self._rewinds.pop()


@dataclass(frozen=True)
class Turn:
    """The active lines of a turn.

    Attributes:
        question: What precedes its first AI message.
        steps: Each AI message with the results that follow it.
        is_finished: As the log says: its last AI message has no calls, or a later question exists.
    """

    question: list[Line]
    steps: list[list[Line]]
    is_finished: bool

    @property
    def lines(self) -> list[Line]:
        """All of them, in order."""
        return [*self.question, *(line for step in self.steps for line in step)]

    @property
    def first(self) -> int:
        """The ordinal of the first line."""
        return self.lines[0].ordinal

    @property
    def last(self) -> int:
        """The ordinal of the last line."""
        return self.lines[-1].ordinal

    @property
    def answer(self) -> list[Line]:
        """The last step if it is an answer, else an empty list."""
        return self.steps[-1] if self.steps and _is_answer(self.steps[-1][0].message) else []


class Record(NamedTuple):
    """The stored record of a policy: the three marks, and the entry of the start."""

    start: int
    short_through: int
    stubs_through: int
    link: str


class Shown(NamedTuple):
    """The form of a message in a view.

    Attributes:
        line: The message.
        form: Its form.
        limit: Tokens that each text and call argument keeps; None for all.
    """

    line: Line
    form: Form
    limit: int | None = None


@dataclass(frozen=True)
class Marks:
    """A possible view: where it begins, what is shortened and condensed, and the room of condensed steps in progress.

    Attributes:
        start: First ordinal shown.
        short: `short_through`.
        kept: `stubs_through`.
        gap: Room of the condensed steps of the turn in progress.
    """

    start: int
    short: int
    kept: int
    gap: int


@dataclass(frozen=True)
class Decision:
    """The view of a log under a policy and a record.

    Attributes:
        shown: Every active line, in order.
        record: What is stored afterwards; None if there is none.
        size: Tokens of the view.
        unseen: Tokens of what the model has not read yet, with leading system messages and summary.
        left_turns: Turns before the view that no summary covers; what precedes the first question counts if alone.
        has_note: Turns or steps are left out.
        is_excursion: The view is smaller than its record says.
        marks: What the view shows, once a summary and an excursion are considered.
    """

    shown: list[Shown]
    record: Record | None
    size: int
    unseen: int
    left_turns: int
    has_note: bool
    is_excursion: bool
    marks: Marks

    def messages(self) -> list[BaseMessage]:
        """The messages of the log as the view shows them."""
        return [_render(piece) for piece in self.shown if piece.form != "absent"]

    def forms(self) -> list[tuple[int, Form, int | None]]:
        """Return the ordinal, form and limit of each message that is shown."""
        return [(piece.line.ordinal, piece.form, piece.limit) for piece in self.shown]


def _render(shown: Shown) -> BaseMessage:
    message = shown.line.message
    if shown.form == "shortened" and shown.limit is not None:
        return _with_short_texts(message, shown.limit)
    if shown.form != "stub":
        return message
    stub = _stub(shown.line) or ""
    content = message.text + stub if stub.startswith("\n") else stub
    return message.model_copy(update={"content": content, "artifact": None})


def _with_short_texts(message: BaseMessage, limit: int) -> BaseMessage:
    """Return a message whose texts and call arguments keep at most the limit; the same one if none is longer."""
    changed: dict[str, Any] = {"content": _cut(message.text, message, limit)}
    if isinstance(message, AIMessage):
        changed["tool_calls"] = [
            {
                **call,
                "args": {name: _cut(value, message, limit) for name, value in call["args"].items()},
            }
            for call in message.tool_calls
        ]
    return (
        message
        if changed.items() <= message.__dict__.items()
        else message.model_copy(update=changed)
    )


def _cut(text: str, message: BaseMessage, limit: int) -> str:
    """Cut a text to a limit, or to less where the mark would make it no shorter. A few tokens more are not cut."""
    if len(text) <= (limit + _FEW) * CHARACTERS:
        return text
    shown = [shorten_text(text, tokens, str(message.id)) for tokens in (limit, limit * 3 // 4)]
    return next((name for name in shown if name != text), text)


def _stub(line: Line) -> str | None:
    message = line.message
    if not isinstance(message, ToolMessage):
        return None
    return stub_of(
        tool=message.name or "",
        tool_message_id=str(message.id),
        content=message.text,
        tokens=line.size,
        source_ids=line.sources,
        error=message.text if message.status == "error" else None,
    )


def _is_answer(message: BaseMessage) -> bool:
    return isinstance(message, AIMessage) and not message.tool_calls


def _is_hidden(message: BaseMessage) -> bool:
    return message.type == "tool" or bool(isinstance(message, AIMessage) and message.tool_calls)


@dataclass(frozen=True)
class Oracle:
    """The rule for one log and one policy with a budget.

    Attributes:
        log: The log.
        policy: The policy.
    """

    log: Log
    policy: HistoryPolicy
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    # the log's parts

    @property
    def budget(self) -> int:
        """The policy's `max_tokens`: B."""
        assert self.policy.max_tokens is not None
        return self.policy.max_tokens

    @cached_property
    def leading(self) -> list[Line]:
        """The system messages at the beginning of the log."""
        return list(takewhile(lambda line: line.message.type == "system", self.log.active))

    @cached_property
    def turns(self) -> list[Turn]:
        """All active turns that no summary covers, in order."""
        groups: list[list[Line]] = []
        for line in self.log.active[len(self.leading) :]:
            if line.message.type == "human" or not groups:
                groups.append([])
            groups[-1].append(line)
        through = self.log.summary_through
        groups = [
            rest for group in groups if (rest := [line for line in group if line.ordinal > through])
        ]
        return [_turn(group, is_last=group is groups[-1]) for group in groups]

    @cached_property
    def finished(self) -> list[Turn]:
        """The finished turns, in order."""
        return [turn for turn in self.turns if turn.is_finished]

    @cached_property
    def now(self) -> Turn | None:
        """The turn in progress."""
        return next((turn for turn in self.turns if not turn.is_finished), None)

    @property
    def now_first(self) -> int:
        """The ordinal at which the turn in progress begins or would begin."""
        return self.now.first if self.now else self.log.last + 1

    @property
    def newest(self) -> Turn | None:
        """The newest finished turn."""
        return self.finished[-1] if self.finished else None

    @property
    def before_newest(self) -> Turn | None:
        """The finished turn before the newest."""
        return self.finished[-2] if len(self.finished) > 1 else None

    @property
    def unseen_lines(self) -> list[Line]:
        """The question of the turn in progress and its last step, with leading system messages."""
        now = (
            [*self.now.question, *(self.now.steps[-1] if self.now.steps else [])]
            if self.now
            else []
        )
        return [*self.leading, *now]

    @cached_property
    def unseen(self) -> int:
        """The tokens that the model has not read yet, with leading system messages and summary."""
        return (
            sum(self._size(Shown(line, "whole")) for line in self.unseen_lines)
            + self.log.summary_size
        )

    @cached_property
    def left_unread(self) -> set[int]:
        """Results of finished turns that no model had read when the turn in progress began, the newest in B/4."""
        lines = [line for turn in self.finished for line in turn.lines]
        last_read = max((line.ordinal for line in lines if line.message.type == "ai"), default=0)
        unread = [
            line for line in lines if line.message.type == "tool" and line.ordinal > last_read
        ]
        found, room = set[int](), self.budget // 4
        for line in reversed(unread):
            if self._is_exempt(line) or _stub(line) is None:
                continue
            room -= self._size(Shown(line, "whole"))
            if room < 0:
                break
            found.add(line.ordinal)
        return found

    # forms of messages

    def _size(self, shown: Shown) -> int:
        key = (shown.line.ordinal, *shown[1:])
        if key not in self._cache:
            self._cache[key] = self._measure(shown)
        found: int = self._cache[key]
        return found

    def _measure(self, shown: Shown) -> int:
        if shown.form == "absent" or (
            self.policy.view == "conversation" and _is_hidden(shown.line.message)
        ):
            return 0  # "hidden messages have size 0"
        return count_letters([_render(shown)])

    def _total(self, shown: Iterable[Shown]) -> int:
        return sum(self._size(piece) for piece in shown)

    def _is_exempt(self, line: Line) -> bool:
        """A result that the policy keeps whole."""
        message = line.message
        return message.type == "tool" and (
            self.policy.stub_tools == "never" or message.name in self.policy.never_stub
        )

    def _stubbed(self, line: Line, limit: int | None = None) -> Shown:
        """A line of a finished turn or condensed step: results are stubs, texts keep at most `limit`."""
        if line.message.type == "tool":
            is_whole = self._is_exempt(line) or line.ordinal in self.left_unread
            is_stub = not is_whole and _stub(line) is not None
            return Shown(line, "stub" if is_stub else "whole")
        shown = Shown(line, "shortened", limit)
        is_text = line.message.type in ("human", "ai")
        return shown if is_text and _render(shown) is not line.message else Shown(line, "whole")

    def _condensed(
        self, steps: list[list[Line]], room: int, *, is_excursion: bool = False
    ) -> list[Shown]:
        """2. A text or call argument keeps at most B/8. Together they take at most `room`: the oldest steps leave.

        "In portions of B/8 counted from the beginning of the turn": a step belongs to the portion that it begins in,
        and whole portions leave until the rest fits.
        """
        eighth = self.budget // 8
        shown = [[self._stubbed(line, eighth) for line in step] for step in steps]
        # "whole results do not count for 2", but they do for 8
        counts = [
            [piece for piece in step if is_excursion or not self._is_exempt(piece.line)]
            for step in shown
        ]
        sizes = [sum(map(self._size, step)) for step in counts]
        leaving = _leaving(sizes, room=room, portion=eighth)
        gone = [[Shown(piece.line, "absent") for piece in step] for step in shown[:leaving]]
        return [piece for step in [*gone, *shown[leaving:]] for piece in step]

    # forms of turns

    def _finished_turn(self, turn: Turn, marks: Marks) -> list[Shown]:
        key = (
            turn.first,
            turn.last,
            turn.last <= marks.short,
            self._holds(turn, marks.kept) and marks.kept,
        )
        if key not in self._cache:
            self._cache[key] = self._show_finished(turn, marks)
        found: list[Shown] = self._cache[key]
        return found

    def _show_finished(self, turn: Turn, marks: Marks) -> list[Shown]:
        if turn.last <= marks.short:
            return self._shortened_turn(turn)
        # 1. A result of a finished turn is its stub. Everything else is whole, unless 2 or 3 say otherwise.
        # 2. Condensed steps are those of the turn that holds stubs_through, up to it, also after the turn has ended.
        condensed = _until(turn.steps, marks.kept) if self._holds(turn, marks.kept) else []
        rest = [self._stubbed(line) for step in turn.steps[len(condensed) :] for line in step]
        question = [self._stubbed(line) for line in turn.question]
        return [*question, *self._condensed(condensed, self.budget // 4), *rest]

    def _shortened_turn(self, turn: Turn) -> list[Shown]:
        """3. All steps but the last answer are condensed as in 2, the question counted in the B/4 (at B/8 at most)."""
        eighth, quarter = self.budget // 8, self.budget // 4
        answer = turn.answer
        steps = turn.steps[:-1] if answer else turn.steps
        asked = sum(min(self._size(Shown(line, "whole")), eighth) for line in turn.question)
        # "The last answer never leaves."
        rest = [
            *self._condensed(steps, quarter - asked),
            *(self._stubbed(line, eighth) for line in answer),
        ]
        # "A text keeps at most B/8, the question what the rest of the turn leaves of B/4, at least B/8."
        limit = max(eighth, quarter - self._total(rest))
        return [*(self._stubbed(line, limit) for line in turn.question), *rest]

    def _turn_in_progress(self, marks: Marks) -> list[Shown]:
        if not self.now:
            return []
        # 1. A result of a step at or before stubs_through is its stub; everything else is whole.
        # The last step is unseen, whatever a rewind removed after it.
        condensed = _until(self.now.steps[:-1], marks.kept)
        rest = [Shown(line, "whole") for step in self.now.steps[len(condensed) :] for line in step]
        return [
            *(Shown(line, "whole") for line in self.now.question),
            *self._condensed(condensed, marks.gap, is_excursion=marks.gap != self.budget // 4),
            *rest,
        ]

    def _holds(self, turn: Turn, ordinal: int) -> bool:
        return turn.first <= ordinal <= turn.last

    # sizes of a view

    def early(self, marks: Marks) -> int:
        """The earlier turns; the note counts nothing here."""
        shown = [turn for turn in self.finished if turn.first >= marks.start]
        return sum(self._total(self._finished_turn(turn, marks)) for turn in shown)

    def size_of(self, turn: Turn) -> int:
        """A finished turn, whole but for stubs."""
        return self._total(self._finished_turn(turn, Marks(1, 0, 0, 0)))

    def current(self, marks: Marks) -> int:
        """The turn in progress, with leading system messages and summary."""
        whole = [Shown(line, "whole") for line in self.leading]
        return self._total([*whole, *self._turn_in_progress(marks)]) + self.log.summary_size

    def size(self, marks: Marks) -> int:
        """The whole view."""
        return self.early(marks) + self.current(marks)

    # the rule

    def valid(self, record: Record | None) -> Record:
        """9. Return the record, or the one of a first use if it counts as none."""
        empty = Record(1, 0, 0, self._link(1))
        if record is None:
            return empty
        # "Neither the log's first message nor the first of an active turn, finished or in progress"
        starts = {
            line.ordinal: line.entry
            for line in [*self.log.lines[:1], *map(_opening, self._all_turns())]
        }
        if starts.get(record.start) != record.link:
            return empty
        return empty if max(record[:3]) > self.log.last else record

    def _all_turns(self) -> list[Turn]:
        log = self.log
        if not log.summary_through:
            return self.turns
        whole = Log()
        whole.lines, whole.removed = log.lines, log.removed
        return Oracle(whole, self.policy).turns

    def decide(self, given: Record | None) -> Decision:
        """Return the view, and the record to store."""
        record = self.valid(given)
        start = self._after_max_turns(record.start)
        moved = replace(self.marks(record), start=self._effective(start))
        begin = moved.start
        moved = self._make_room(moved)
        moved = self._condense(moved)
        # 7. What 5 and 6 decide is stored; the summary's end is not.
        start = moved.start if moved.start != begin else start
        after = Record(start, moved.short, moved.kept, self._link(start))
        # 4. If nothing changes, nothing is written.
        stored = given if after == record else after
        shown = self._excursion(moved)
        return self._decision(shown, stored, is_excursion=shown != moved)

    def marks(self, record: Record) -> Marks:
        """The view that a record describes."""
        return Marks(record.start, record.short_through, record.stubs_through, self.budget // 4)

    def _effective(self, start: int) -> int:
        """Rows begin after the summary: the effective start is the later of the two."""
        return max(start, self.log.summary_through + 1)

    def _link(self, start: int) -> str:
        return next((line.entry for line in self.log.lines if line.ordinal == start), "")

    def _after_max_turns(self, start: int) -> int:
        """The start moves when `max_turns` is exceeded, to three quarters; the turn in progress counts."""
        limit = self.policy.max_turns
        turns = [turn for turn in self.turns if turn.first >= start]
        if not limit or len(turns) <= limit:
            return start
        return turns[-(limit - limit // 4 or 1)].first

    def _make_room(self, marks: Marks) -> Marks:
        """5. Shorten turns, then let turns leave."""
        budget = self.budget
        if self.size(marks) <= budget:
            return marks  # 4. If the view fits in B, nothing changes.
        is_called_for = self.unseen <= budget // 2 or self.early(marks) > budget
        if not is_called_for or self.early(marks) <= budget // 4:
            return marks
        marks = self._shorten(marks, self.before_newest)  # a
        alone = replace(
            marks, start=max(marks.start, self.newest.first if self.newest else self.now_first)
        )
        if self.size(marks) > budget and self.size(alone) > budget:
            marks = self._shorten(marks, self.newest)  # b
        if self.early(marks) > budget // 4:  # c
            while self.size(marks) > budget // 2 and self.early(marks) > budget // 8:
                if not (later := self._next_start(marks)):
                    break
                marks = later
        return marks

    def _shorten(self, marks: Marks, turn: Turn | None) -> Marks:
        """Move `short_through` to a turn. A move that makes the view no smaller is not made."""
        if turn is None:
            return marks
        moved = replace(marks, short=max(marks.short, turn.last))
        return moved if self.early(moved) < self.early(marks) else marks

    def _next_start(self, marks: Marks) -> Marks | None:
        """Let the first turn of the view leave; None if it is the newest, which never leaves so."""
        later = [turn.first for turn in self.finished if turn.first >= marks.start][1:]
        return replace(marks, start=later[0]) if later else None

    def _condense(self, marks: Marks) -> Marks:
        """6. If the view still exceeds B, all steps of the turn but the last are condensed at once."""
        if self.size(marks) <= self.budget or not self.now or len(self.now.steps) < 2:
            return marks
        last_step = self.now.steps[-1][0].ordinal
        if max(marks.kept, self.now.first - 1) >= last_step - 1:
            return marks
        # "If it leaves a finished turn, short_through moves at least to that turn."
        left = [turn.last for turn in self.finished if self._holds(turn, marks.kept)]
        return replace(marks, short=max([marks.short, *left]), kept=last_step - 1)

    def _excursion(self, marks: Marks) -> Marks:
        """8. For this view only: shorten, leave, shorten the newest, leave steps, leave the newest."""
        budget = self.budget
        if self.size(marks) <= budget:
            return marks
        if self.before_newest:
            marks = replace(marks, short=max(marks.short, self.before_newest.last))
        while self.size(marks) > budget or self.early(marks) > budget // 8:
            if not (later := self._next_start(marks)):
                break
            marks = later
        if self.size(marks) > budget and self.newest:
            marks = replace(marks, short=max(marks.short, self.newest.last))
        if self.size(marks) > budget:
            marks = replace(marks, gap=self._gap(budget - self.unseen - self.early(marks)))
        if self.size(marks) > budget:
            marks = replace(marks, start=self.now_first, gap=self._gap(budget - self.unseen))
        return marks

    def _gap(self, room: int) -> int:
        """The room of condensed steps in an excursion; it is never the one that they have without."""
        return max(0, room if room != self.budget // 4 else room - 1)

    def _decision(self, marks: Marks, stored: Record | None, *, is_excursion: bool) -> Decision:
        turns = [turn for turn in self.finished if turn.first < marks.start]
        absent = [Shown(line, "absent") for turn in turns for line in turn.lines]
        early = [
            piece
            for turn in self.finished[len(turns) :]
            for piece in self._finished_turn(turn, marks)
        ]
        now = self._turn_in_progress(marks)
        leading = [Shown(line, "whole") for line in self.leading]
        has_note = bool(turns) or any(piece.form == "absent" for piece in [*early, *now])
        shown = self._visible([*leading, *absent, *early, *now])
        return Decision(
            shown=shown,
            record=stored,
            size=self._total(shown) + self.log.summary_size,
            unseen=self.unseen,
            left_turns=max(
                bool(turns), sum(turn.lines[0].message.type == "human" for turn in turns)
            ),
            has_note=has_note,
            is_excursion=is_excursion,
            marks=marks,
        )

    def _visible(self, shown: list[Shown]) -> list[Shown]:
        if self.policy.view == "full":
            return shown
        return [
            Shown(piece.line, "absent") if _is_hidden(piece.line.message) else piece
            for piece in shown
        ]


def _turn(lines: list[Line], *, is_last: bool) -> Turn:
    question = []
    while lines and lines[0].message.type != "ai":
        question.append(lines[0])
        lines = lines[1:]
    steps: list[list[Line]] = []
    for line in lines:
        if line.message.type == "ai":
            steps.append([])
        steps[-1].append(line)
    ends = bool(steps) and _is_answer(steps[-1][0].message)
    return Turn(question, steps, is_finished=ends or not is_last)


def _opening(turn: Turn) -> Line:
    return turn.lines[0]


def _until(steps: list[list[Line]], ordinal: int) -> list[list[Line]]:
    """The steps at or before a mark."""
    return [step for step in steps if step[-1].ordinal <= ordinal]


def _leaving(sizes: list[int], *, room: int, portion: int) -> int:
    """Return how many of the oldest steps leave: all that begin in the first portions.

    As few portions as possible leave.
    """
    begins = [sum(sizes[:at]) for at in range(len(sizes))]
    count = 0
    for portions in range(sum(sizes) // max(1, portion) + 2):
        count = sum(begin < portions * portion for begin in begins)
        if sum(sizes[count:]) <= room:
            return count
    return count


def whole_view(log: Log, policy: HistoryPolicy) -> list[BaseMessage]:
    """The view without a budget: nothing to decide, no record."""
    huge = replace(policy, max_tokens=10**9)
    return Oracle(log, huge).decide(None).messages()


def essence(messages: Sequence[BaseMessage]) -> list[str]:
    """Return the parts of the logged messages that a model reads, for comparison."""
    kept = [message for message in messages if "convstore" not in message.additional_kwargs]
    return [
        json.dumps([message.id, message.type, message.content, _calls(message)]) for message in kept
    ]


def _calls(message: BaseMessage) -> Any:
    return [[call["name"], call["args"], call["id"]] for call in getattr(message, "tool_calls", [])]


def decide(log: Log, policy: HistoryPolicy, record: Record | None) -> Decision:
    """Return the view of a log under a policy with a budget, and the record to store."""
    return Oracle(log, policy).decide(record)
