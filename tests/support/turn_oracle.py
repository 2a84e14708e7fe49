"""What every reader has to say of the turns of a log, worked out from the rules alone, message by message.

`Oracle` is told what is appended, rewound, stopped and made active. It knows nothing of entries, totals, look-ups or
folds: it keeps all messages and goes through those that are active whenever it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from convstore.messages.tool_calls import result_id


@dataclass(frozen=True)
class Said:
    """A message as it is appended.

    Attributes:
        id: Its id.
        type: "human", "ai", "tool" or "system".
        calls: Ids of the calls of an AI message.
        answers: For a result the id of its call.
        exact: For a result the id of the AI message whose call it answers, "" if only the call's id is known.
        named: Id of the question that its writer names.
        is_added: A tool added it to its result.
        has_media: A human message with an image.
    """

    id: str
    type: str
    calls: tuple[str, ...] = ()
    answers: str = ""
    exact: str = ""
    named: str = ""
    is_added: bool = False
    has_media: bool = False


class Stored(NamedTuple):
    """A message of the log with its turn, the ordinal of its question; 0 for none."""

    ordinal: int
    said: Said
    turn: int


class End(NamedTuple):
    """A stop or a finish of a turn, after a number of messages."""

    after: int
    question: int
    over: str


class State(NamedTuple):
    """What of a log is active: its messages by their ordinals, and the ends of turns."""

    active: tuple[int, ...] = ()
    ends: tuple[End, ...] = ()


class ExpectedTurn(NamedTuple):
    """A turn as readers list it."""

    turn_id: str
    number: int
    messages: tuple[str, ...]
    over: str
    answer: int | None


@dataclass
class Oracle:
    """A log.

    Attributes:
        log: All messages.
        state: What of them is active.
        before: The states before the rewinds that can be undone.
        left: What was active as a variant was left, by place and variant.
        shown: The variant that stands at a place.
        waiting: The calls that wait or waited for a person, by the ids of their results.
        decided: The decisions about them: True if the call is to be run.
    """

    log: list[Stored] = field(default_factory=list)
    state: State = field(default_factory=State)
    before: list[State] = field(default_factory=list)
    left: dict[tuple[int, str], State] = field(default_factory=dict)
    shown: dict[int, str] = field(default_factory=dict)
    waiting: set[str] = field(default_factory=set)
    decided: dict[str, bool] = field(default_factory=dict)

    @property
    def messages(self) -> list[Stored]:
        """The active messages."""
        return [self.log[ordinal - 1] for ordinal in self.state.active]

    @property
    def questions(self) -> list[Stored]:
        """The active questions."""
        return [stored for stored in self.messages if stored.turn == stored.ordinal]

    @property
    def newest(self) -> int:
        """Ordinal of the newest question, 0 without one."""
        return max((stored.ordinal for stored in self.questions), default=0)

    def over(self, question: int) -> str:
        """Return why a turn is over, "" if it is in progress; of 0 that of what precedes the first question."""
        ends = [end for end in self.state.ends if end.question == question]
        if ends:
            return ends[-1].over
        begun = min((stored.ordinal for stored in self.questions), default=len(self.log) + 1)
        spoken = [
            stored.said
            for stored in self.messages
            if self.turn_of(stored) == question and (question or stored.ordinal < begun)
            if stored.said.type == "ai" and not stored.said.is_added
        ]
        if spoken and not spoken[-1].calls:
            return "answered"
        return "superseded" if question != self.newest else ""

    def open_calls(self) -> list[tuple[str, int, str]]:
        """Return the calls without a result, as the id of the AI message, its turn and the id of the call."""
        found = list[tuple[str, int, str]]()
        for stored in self.messages:
            said = stored.said
            found += [(said.id, stored.turn, call) for call in said.calls]
            if said.type == "tool" and (called := self._called(said, found)):
                found.remove(called)
        return found

    def _called(
        self, said: Said, calls: Sequence[tuple[str, int, str]]
    ) -> tuple[str, int, str] | None:
        matching = [call for call in calls if call[2] == said.answers]
        exact = [call for call in matching if call[0] == said.exact]
        return next(reversed(exact or matching), None)

    def append(self, *batch: Said) -> None:
        """Append the messages of one entry."""
        spoken, before = set[int](), Said("", "")
        before_turn = self.newest
        for said in batch:
            ordinal = len(self.log) + 1
            turn = self._turn(said, ordinal, before, before_turn, spoken)
            self.log.append(Stored(ordinal, said, turn))
            self.state = self.state._replace(active=(*self.state.active, ordinal))
            if said.type == "ai" and not said.is_added:
                spoken.add(turn)
            before, before_turn = said, turn

    def _turn(
        self, said: Said, ordinal: int, before: Said, before_turn: int, spoken: set[int]
    ) -> int:
        if said.named:
            return next(stored.ordinal for stored in self.log if stored.said.id == said.named)
        newest = self.newest
        if said.type == "tool":
            called = self._called(said, self.open_calls())
            return called[1] if called else before_turn
        if said.type == "human":
            return before_turn if said.has_media and before.type == "tool" else ordinal
        if said.type == "ai" and newest and newest in spoken:
            return newest
        return newest if newest and not self.over(newest) else 0

    def end(self, question: int, over: str) -> None:
        """Stop or finish a turn."""
        self.state = self.state._replace(
            ends=(*self.state.ends, End(len(self.log), question, over))
        )

    def cut(self, ordinal: int) -> State:
        """Return the state without a message and all that came after it."""
        return State(
            tuple(active for active in self.state.active if active < ordinal),
            tuple(end for end in self.state.ends if end.after < ordinal),
        )

    def rewind(self, ordinal: int) -> None:
        """Rewind to before a message."""
        self.before = [self.state]
        self.state = self.cut(ordinal)

    def undo(self) -> None:
        """Undo the last rewind."""
        self.state = self.before.pop()

    def regenerate(self, question: int, key: str, *answer: Said) -> None:
        """Put another answer in the place of the one that stands there."""
        self.left[question, self.shown.get(question, "")] = self.state
        self.shown[question] = key
        cut = self.cut(question + 1)
        self.state = cut._replace(ends=tuple(end for end in cut.ends if end.question != question))
        self.append(*answer)

    def activate(self, question: int, variant: str) -> None:
        """Show a variant as it was when it was left."""
        self.left[question, self.shown.get(question, "")] = self.state
        self.shown[question] = variant
        self.state = self.left[question, variant]

    def turn_of(self, stored: Stored) -> int:
        """Return the turn of an active message; 0 if it belongs to no active question."""
        return stored.turn if stored.turn in self.state.active else 0

    @property
    def listed(self) -> list[tuple[int, str]]:
        """The active messages by their ordinals, each with the id of its turn, "" for none."""
        names = {stored.ordinal: stored.said.id for stored in self.questions}
        return [(stored.ordinal, names.get(self.turn_of(stored), "")) for stored in self.messages]

    def turns(self) -> list[ExpectedTurn]:
        """Return the turns as readers list them, in order."""
        first, lists, current = dict[int, Stored](), dict[int, list[Stored]](), 0
        for stored in self.messages:
            if stored.turn == stored.ordinal:
                current = stored.ordinal
            place = self.turn_of(stored) or current
            first.setdefault(place, stored)
            lists.setdefault(place, []).append(stored)
        found = list[ExpectedTurn]()
        for place in sorted(lists):
            own = [stored for stored in lists[place] if self.turn_of(stored) == place]
            replies = [stored for stored in own if stored.said.type == "ai"]
            spoken = [stored.ordinal for stored in replies if not stored.said.is_added]
            number = len([stored for stored in self.questions if stored.ordinal <= place])
            ids = tuple(stored.said.id for stored in lists[place])
            found.append(
                ExpectedTurn(
                    first[place].said.id, number, ids, self.over(place), max(spoken, default=None)
                )
            )
        return found

    def unanswered(self, question: int) -> dict[str, tuple[str, str]]:
        """Return the calls of a turn in progress without a result, by the ids that their results get."""
        calls = self.open_calls() if not self.over(question) else []
        return {
            result_id(message, call): (message, call)
            for message, turn, call in calls
            if turn == question
        }

    def ready(self, question: int) -> list[str]:
        """Return those of the calls that may be run."""
        held = self.waiting - {id_ for id_, runs in self.decided.items() if runs}
        return [id_ for id_ in self.unanswered(question) if id_ not in held]

    def undecided(self, question: int) -> list[str]:
        """Return those of the calls that wait for a person."""
        return [
            id_
            for id_ in self.unanswered(question)
            if id_ in self.waiting and id_ not in self.decided
        ]
