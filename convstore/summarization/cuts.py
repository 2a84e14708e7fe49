"""Select the messages to fold into a summary, and the messages of each model call.

A cut is the number of messages before it. `pair` finds which result answers which call, so that cuts do not separate
them.

- A call without a result may still get one, so it is not folded. Once a human message follows, the call counts as
  abandoned and may be folded.
- A human message is not folded before its answer. An abandoned call is not folded before the next answer either, if
  the limit allows it.
- The limit comes first: an answered question is folded with its answer rather than exceeding the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from convstore.messages.provenance import kind_of
from convstore.messages.tool_calls import calls_of, pair


@dataclass(slots=True)
class _Exchange:
    """An AI message with calls: its index, the index of its last result, and True if all results are there."""

    start: int
    end: int
    answered: bool = True


class Cuts:
    """The cuts of a list, as flags by the number of messages before the cut.

    Attributes:
        keeps_pairs: True if the cut does not separate a call from its result.
        permitted: True if the messages before the cut may be folded, even if they end with an abandoned call.
        good: True if they may be folded, and no message before the cut waits for a reply.
        orphans: Indexes of results without a call.

    >>> from langchain_core.messages import AIMessage
    >>> calls = [{"name": "search", "args": {}, "id": id} for id in ("x", "y")]
    >>> results = [ToolMessage("found", tool_call_id=id) for id in ("x", "y")]
    >>> cuts = Cuts([HumanMessage("Find both."), AIMessage("", tool_calls=calls), *results, AIMessage("Here.")])
    >>> [cut for cut in range(6) if cuts.keeps_pairs[cut]], [cut for cut in range(6) if cuts.good[cut]]
    ([0, 1, 4, 5], [4, 5])
    """

    def __init__(self, messages: Sequence[BaseMessage]) -> None:
        self.messages = messages
        self._exchanges = _exchanges(messages)
        self.orphans = _results(messages) - self._exchanges.keys()
        self.keeps_pairs = [True]
        self.permitted = [False]
        self.good = [False]
        end = self._start_of_work()
        last_result = -1
        waiting = ""
        for index, message in enumerate(messages):
            exchange = self._exchanges.get(index)
            if exchange:
                last_result = max(last_result, exchange.end)
                waiting = "" if exchange.answered else "call"
            elif _may_reply(message):
                waiting = "human" if _is_human(message) else ""
            keeps_pairs = last_result <= index
            is_permitted = keeps_pairs and index < end and waiting != "human"
            self.keeps_pairs.append(keeps_pairs)
            self.permitted.append(is_permitted)
            self.good.append(is_permitted and not waiting)

    def _start_of_work(self) -> int:
        """Return the index of the first call without all results after the last question, or the end of the list."""
        question = -1
        for index, message in enumerate(self.messages):
            if _is_human(message):
                question = index
        for exchange in self._exchanges.values():
            if not exchange.answered and exchange.start > question:
                return exchange.start
        return len(self.messages)

    def waits_at(self, index: int) -> bool:
        """Return True for a human message, and for an AI message that has a call without a result."""
        exchange = self._exchanges.get(index)
        return _is_human(self.messages[index]) or bool(
            exchange and exchange.start == index and not exchange.answered
        )


def find_trigger(tokens: Sequence[int], *, before_summary: int, room: int) -> int:
    """Return the first cut where the sum reaches `before_summary` and the rest fits `room`; 0 without such a cut.

    >>> find_trigger([10, 10, 10, 10], before_summary=20, room=10), find_trigger([10, 10], before_summary=30, room=10)
    (3, 0)
    """
    total = sum(tokens)
    so_far = 0
    for cut, size in enumerate(tokens, start=1):
        so_far += size
        if so_far >= before_summary and total - so_far <= room:
            return cut
    return 0


def choose_cut(
    cuts: Cuts, tokens: Sequence[int], *, before_summary: int, room: int, unfolded_room: int
) -> int:
    """Return the number of messages to fold, which may be 0.

    The rest fits if any permitted cut makes that possible; otherwise as much as permitted is folded. Within these
    limits, the cut is where `before_summary` is reached, or before a message there that waits for its answer. `room` is
    the maximum size of the rest after a new summary, `unfolded_room` if nothing is folded.

    >>> from langchain_core.messages import AIMessage
    >>> cuts = Cuts([HumanMessage("paste"), AIMessage("Yes."), HumanMessage("And?"), AIMessage("No.")])
    >>> choose_cut(cuts, [95, 3, 3, 3], before_summary=90, room=80, unfolded_room=100)
    2
    >>> choose_cut(cuts, [70, 3, 3, 3], before_summary=70, room=80, unfolded_room=100)
    0
    """
    trigger = find_trigger(tokens, before_summary=before_summary, room=room)
    cut = _preferred(cuts, trigger) if trigger else 0
    if sum(tokens[cut:]) <= (room if cut else unfolded_room):
        return cut
    # Without a trigger, fold until half of the room is free, so that not every turn costs a model call.
    wanted = trigger or find_trigger(tokens, before_summary=0, room=room // 2)
    return (_first(cuts.permitted, wanted) if wanted else 0) or _last(cuts.permitted, len(tokens))


def _preferred(cuts: Cuts, trigger: int) -> int:
    """Return the number of messages to fold by the trigger alone, ignoring the limit.

    A message that waits for its answer is kept with its results. An AI message whose results follow is folded with all
    of them, unless a human message is among them.
    """
    if cuts.waits_at(trigger - 1):
        return _last(cuts.good, trigger - 1)
    onward = _first(cuts.keeps_pairs, trigger)
    passes_human = any(map(_is_human, cuts.messages[trigger:onward]))
    return onward if cuts.good[onward] and not passes_human else _last(cuts.good, trigger - 1)


def next_step(cuts: Cuts, tokens: Sequence[int], *, start: int, budget: int) -> int:
    """Return the cut after the next step: as many messages as fit the budget, with calls and results together.

    A step before the last one ends before a human message if possible, because some providers reject a list that begins
    with a call. A message that does not fit is a step of its own, together with the results of its calls.
    """
    messages = cuts.messages
    size = 0
    end = start
    before_human = 0
    for cut in filter(cuts.keeps_pairs.__getitem__, range(start + 1, len(messages) + 1)):
        size += sum(tokens[end:cut])
        if end > start and size > budget:
            return before_human or end
        end = cut
        if end < len(messages) and isinstance(messages[end], HumanMessage):
            before_human = end
    return end


def _results(messages: Sequence[BaseMessage]) -> set[int]:
    return {index for index, message in enumerate(messages) if isinstance(message, ToolMessage)}


def _may_reply(message: BaseMessage) -> bool:
    """Return False for a result, which is not a reply to the message before it."""
    return not isinstance(message, ToolMessage) and kind_of(message) != "late_result"


def _exchanges(messages: Sequence[BaseMessage]) -> dict[int, _Exchange]:
    """Return the exchange of each message with calls and of each result, by index, in the order of the pairs."""
    exchanges: dict[int, _Exchange] = {}
    latest = _Exchange(-1, -1)
    for index in pair(messages).indexes:
        if index is None:
            latest.answered = False  # a generated result follows its call
        elif isinstance(messages[index], ToolMessage):
            latest.end = max(latest.end, index)
            exchanges[index] = latest
        elif calls_of(messages[index]):
            latest = exchanges[index] = _Exchange(index, index)
    return exchanges


def _first(flags: Sequence[bool], start: int) -> int:
    return next((cut for cut in range(start, len(flags)) if flags[cut]), 0)


def _last(flags: Sequence[bool], end: int) -> int:
    return next((cut for cut in range(end, 0, -1) if flags[cut]), 0)


def _is_human(message: BaseMessage) -> bool:
    """Return True for a message of a user; a late result shown as a human message does not count."""
    return isinstance(message, HumanMessage) and kind_of(message) != "late_result"
