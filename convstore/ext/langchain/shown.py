"""The messages that an agent's model is shown: the view before the turn, then the messages of the agent's state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage

from convstore.integration import fit_for, made_for
from convstore.messages.filing import ids_of, without_marks
from convstore.messages.provenance import is_generated
from convstore.messages.tokens import TokenCounter, count
from convstore.messages.tool_calls import is_paired
from convstore.types import Dropped, History
from convstore.values.json_form import sendable_message
from convstore.values.policy import HistoryPolicy
from convstore.values.stamps import NOT_MEASURED, RequestParts, ViewStamp, storable_stamp


@dataclass(slots=True, eq=False)
class ShownView:
    """The messages that the model of one run is shown.

    Attributes:
        policy: The policy of the view.
        counter: Counts tokens.
        history: The view that was loaded last; None before the first load.
        before: The part of the view before the turn; above the budget, the whole view. None if it has to be loaded.
        folded: Ids of messages of the turn that `before` shows, leaves out or summarises.
        shown: The messages last shown to the model, until its answer is in the log.
        entry: Number of the last entry that the run wrote since the view was loaded; 0 if it wrote none.
        dropped: The parts of the log that were left out for the provider in the messages last shown.
        is_adapted: True if the model was shown the turn in another form than the log's.
        beside: Digest and sizes of the system prompt and the tools that the model got.
    """

    policy: HistoryPolicy
    counter: TokenCounter
    history: History | None = None
    before: list[BaseMessage] | None = None
    folded: frozenset[str] = frozenset()
    shown: list[BaseMessage] | None = None
    entry: int = 0
    dropped: list[Dropped] = field(default_factory=list)
    is_adapted: bool = False
    beside: RequestParts = NOT_MEASURED
    _paired: list[BaseMessage] = field(default_factory=list)
    _sizes: dict[int, tuple[BaseMessage, int]] = field(default_factory=dict)

    @property
    def ids(self) -> set[str]:
        """Ids of the messages before the turn."""
        return ids_of(self.before or ())

    def needs_load(self, turn: Sequence[BaseMessage]) -> bool:
        """Return True if no view is loaded, or if it is over budget and the store has to decide what leaves it."""
        return self.before is None or self._exceeds(turn)

    def _exceeds(self, turn: Sequence[BaseMessage]) -> bool:
        budget = self.policy.max_tokens
        # a view "conversation" has no results of this turn
        if budget is None or self.policy.view == "conversation":
            return False
        return sum(map(self._size_of, self._with_turn(turn))) > budget

    def _size_of(self, message: BaseMessage) -> int:
        """Return the tokens of a message, which are counted only once."""
        # The reference prevents Python from reusing the message's `id()`.
        if id(message) not in self._sizes:
            self._sizes[id(message)] = message, count(self.counter, message)
        return self._sizes[id(message)][1]

    def _with_turn(self, turn: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the view followed by the messages of the turn that are not folded into it."""
        before = self.before or ()
        return [*before, *(message for message in turn if message.id not in self.folded)]

    def take(
        self,
        history: History,
        turn: Sequence[BaseMessage],
        *,
        own: Collection[str | None],
        logged: Collection[str],
    ) -> None:
        """Use a view that was loaded: its part before the turn, or all of it if it is over budget.

        Args:
            history: The view.
            turn: The messages of the turn, as the state has them.
            own: Ids of messages of the turn.
            logged: Ids of messages that are in the log.
        """
        whole = history.messages
        start = next((at for at, message in enumerate(whole) if message.id in own), len(whole))
        rest = whole[start:]
        self.history = history
        self.before = whole[:start]
        self.folded = frozenset()
        self.entry = 0
        ids = [str(message.id) for message in turn]
        if self._exceeds(turn):
            self.before += _shortened(history, rest, turn)
        elif history.summary is not None and rest:
            # A compaction during a long turn: the summary covers its beginning.
            first = str(rest[0].id)
            ids = ids[: ids.index(first)] if first in ids else []
        else:
            return
        self.folded = frozenset(id_ for id_ in ids if id_ in logged)

    def show(self, turn: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the view and the messages of the turn, in the provider's form, and keep them for `take_stamp`."""
        messages = without_marks(self._with_turn(turn))
        rules = self.policy.rules
        dropped = list(self.history.dropped) if self.history else []
        known = len(self._paired) if messages[: len(self._paired)] == self._paired else 0
        if rules is None and is_paired(messages[known:]):  # those before were paired
            self._paired = messages
            self.shown = [sendable_message(message) for message in made_for(messages, rules)]
        else:
            self.shown = fit_for(messages, rules, dropped)
        self.dropped = dropped
        return self.shown

    def take_stamp(self, turn_id: str | None) -> ViewStamp | None:
        """Return the stamp for the answer to the messages last shown; None if they were answered or never shown."""
        shown = self.shown
        self.shown = None
        if shown is None or self.history is None:
            return None
        stamp = self.history.stamp_for(
            shown,
            entry=self.entry,
            adapted=self.is_adapted,
            turn=turn_id,
            size_of=self._size_of,
        )
        return stamp and storable_stamp(stamp.model_copy(update={"beside": self.beside}))


def _shortened(
    history: History, rest: Sequence[BaseMessage], turn: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Return the messages of a turn from a view over budget; unchanged ones are replaced by those of the state."""
    given = {str(message.id): message for message in turn}
    report = history.report
    changed = {*report.stubbed, *report.shortened, *report.placeholders}
    shown = [message for message in rest if message.id in given or is_generated(message)]
    return [
        message if message.id in changed else given.get(str(message.id), message)
        for message in shown
    ]
