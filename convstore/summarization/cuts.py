"""Select the messages to fold into a summary, and the number of messages in each model call.

Floor 1, pure. `pairing` says which result answers which call; from that follow the places where a list may be cut
without parting a call from its results. A place is the number of messages before it.

- A call that has no result may still get one. Nothing is cut behind it before a human message follows: then it is
  given up, and is folded like any other message.
- A cut never follows a human message: its answer is yet to come. Nor does it follow an AI message whose calls lack a
  result, as long as the limit can be kept without that.
- Within that, the limit comes first: an answered question is folded with its answer rather than that too much stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from convstore.messages.provenance import kind_of
from convstore.messages.tool_calls import Pairing, has_calls, pair

__all__ = ["Cuts", "choose_cut", "find_trigger", "next_step"]


@dataclass(slots=True)
class _Exchange:
    """An AI message with calls: its index, that of its last result, and whether all results are there."""

    start: int
    end: int
    answered: bool = True


class Cuts:
    """The places where a list may be cut.

    >>> from langchain_core.messages import AIMessage
    >>> calls = [{"name": "search", "args": {}, "id": id} for id in ("x", "y")]
    >>> results = [ToolMessage("found", tool_call_id=id) for id in ("x", "y")]
    >>> cuts = Cuts([HumanMessage("Find both."), AIMessage("", tool_calls=calls), *results, AIMessage("Here.")])
    >>> [place for place in range(6) if cuts.keeps_pairs(place)], [place for place in range(6) if cuts.is_good(place)]
    ([0, 1, 4, 5], [4, 5])
    """

    def __init__(self, messages: Sequence[BaseMessage]) -> None:
        self.messages = messages
        pairing = pair(messages)
        exchanges, owners = _exchanges(messages, pairing)
        in_place = set(pairing.indexes)
        self.orphans = frozenset(
            index
            for index, message in enumerate(messages)
            if isinstance(message, ToolMessage) and index not in in_place
        )
        self._reach = _reaches(exchanges, len(messages))
        self._limit = _first_in_flight(exchanges, messages)
        self._owners = owners

    def keeps_pairs(self, place: int) -> bool:
        """Return True if no result behind the place answers a call before it."""
        return self._reach[place] < place

    def is_good(self, place: int) -> bool:
        """Return True if the messages before the place form a valid unit to summarize."""
        return self.is_permitted(place) and not self._waits(place, calls=True)

    def is_permitted(self, place: int) -> bool:
        """Return True if the messages before the place may be folded, even if they end with a given-up call."""
        return 0 < place <= self._limit and self.keeps_pairs(place) and not self._waits(place, calls=False)

    def permitted_from(self, place: int) -> int:
        """The first permitted place from one on; 0 if there is none."""
        return next(filter(self.is_permitted, range(place, self._limit + 1)), 0)

    def permitted_until(self, place: int) -> int:
        """The last permitted place up to one; 0 if there is none."""
        return next(filter(self.is_permitted, range(place, 0, -1)), 0)

    def good_until(self, place: int) -> int:
        """The last good place up to one; 0 if there is none."""
        return next((found for found in range(place, 0, -1) if self.is_good(found)), 0)

    def closed_from(self, place: int) -> int:
        """The first place from one on that keeps pairs."""
        while not self.keeps_pairs(place):
            place = self._reach[place] + 1
        return place

    def waits_at(self, index: int) -> bool:
        """Return True if a message is a human one, or an AI message that has a call without a result."""
        owner = self._owners.get(index)
        calls_wait = owner is not None and owner.start == index and not owner.answered
        return calls_wait or _is_human(self.messages[index])

    def _waits(self, place: int, *, calls: bool) -> bool:
        """Return True if the last message before a place, or the AI message it answers, still waits for a reply."""
        for index in range(place - 1, -1, -1):
            owner = self._owners.get(index)
            if owner is not None:
                return calls and not owner.answered
            if not _is_result(self.messages[index]):
                return _is_human(self.messages[index])
        return False  # nothing but results of calls that are not here


def find_trigger(tokens: Sequence[int], *, before_summary: int, room: int) -> int:
    """The first place where the sum reaches `before_summary` and the rest fits `room`; 0 if there is none.

    >>> find_trigger([10, 10, 10, 10], before_summary=20, room=10), find_trigger([10, 10], before_summary=30, room=10)
    (3, 0)
    """
    total, so_far = sum(tokens), 0
    for place, each in enumerate(tokens, start=1):
        so_far += each
        if so_far >= before_summary and total - so_far <= room:
            return place
    return 0


def choose_cut(cuts: Cuts, tokens: Sequence[int], *, before_summary: int, room: int, unfolded_room: int) -> int:
    """Return the number of messages to fold.

    What stays fits, wherever a permitted cut makes it fit; if none does, all is folded that may be. Else it is those up
    to the place where `before_summary` is reached, less a message there that waits for its answer.

    Args:
        cuts: Where what has not been summarised yet may be cut.
        tokens: The size of each message.
        before_summary: Messages are folded once they are so large.
        room: At most this many tokens should stay behind a new summary.
        unfolded_room: At most this many should stay if nothing is folded.

    Returns:
        The number of messages, 0 if none are folded.

    >>> from langchain_core.messages import AIMessage
    >>> cuts = Cuts([HumanMessage("paste"), AIMessage("Yes."), HumanMessage("And?"), AIMessage("No.")])
    >>> choose_cut(cuts, [95, 3, 3, 3], before_summary=90, room=80, unfolded_room=100)
    2
    >>> choose_cut(cuts, [70, 3, 3, 3], before_summary=70, room=80, unfolded_room=100)
    0
    """
    trigger = find_trigger(tokens, before_summary=before_summary, room=room)
    cut = _preferred(cuts, trigger)
    if sum(tokens[cut:]) <= (room if cut else unfolded_room):
        return cut
    # Before the sum is reached, half of the room is left free, so that not every turn costs a call of the model.
    wanted = trigger or find_trigger(tokens, before_summary=0, room=room // 2)
    return (cuts.permitted_from(wanted) if wanted else 0) or cuts.permitted_until(len(tokens))


def _preferred(cuts: Cuts, trigger: int) -> int:
    """Return the number of messages to fold if only the trigger counts, not the limit.

    A message that waits for its answer stays out, with all that belongs to it. An AI message whose results follow is
    folded with all of them, unless a human message is among them.
    """
    if not trigger:
        return 0
    messages = cuts.messages
    if cuts.waits_at(trigger - 1):
        return cuts.good_until(trigger - 1)
    onward = cuts.closed_from(trigger)
    passes_human = any(map(_is_human, messages[trigger:onward]))
    return onward if cuts.is_good(onward) and not passes_human else cuts.good_until(trigger - 1)


def next_step(cuts: Cuts, tokens: Sequence[int], *, start: int, budget: int) -> int:
    """Return the end of the next step: as many messages as fit the budget, with calls and results together.

    A step that is not the last ends before a human message where it can: some providers refuse a list that begins
    with a call. A message that does not fit, or one with calls together with its results, is a step of its own: the
    model that answered it had to take it whole as well.

    Args:
        cuts: Where all that is folded may be cut.
        tokens: The size of each message.
        start: Where the step before ended; at least one message is left.
        budget: At most this many tokens of a step.

    Returns:
        The place, behind `start`.
    """
    messages, size, end, before_human = cuts.messages, 0, start, 0
    for place in filter(cuts.keeps_pairs, range(start + 1, len(messages) + 1)):
        size += sum(tokens[end:place])
        if end > start and size > budget:
            return before_human or end
        end = place
        if end < len(messages) and isinstance(messages[end], HumanMessage):
            before_human = end
    return end


def _exchanges(messages: Sequence[BaseMessage], pairing: Pairing) -> tuple[list[_Exchange], dict[int, _Exchange]]:
    """All exchanges in order, and for each message with calls, and each result, the one that it belongs to."""
    exchanges: list[_Exchange] = []
    owners: dict[int, _Exchange] = {}
    for index in pairing.indexes:
        if index is None:
            exchanges[-1].answered = False  # a made result stands behind its call
            continue
        if isinstance(messages[index], ToolMessage):
            exchanges[-1].end = max(exchanges[-1].end, index)
        elif has_calls(messages[index]):
            exchanges.append(_Exchange(index, index))
        else:
            continue
        owners[index] = exchanges[-1]
    return exchanges, owners


def _reaches(exchanges: Sequence[_Exchange], length: int) -> list[int]:
    """For each place the index of the last result of a call before it; -1 if there is none."""
    ends = {exchange.start + 1: exchange.end for exchange in exchanges}
    reach = [-1]
    for place in range(1, length + 1):
        reach.append(max(reach[-1], ends.get(place, -1)))
    return reach


def _first_in_flight(exchanges: Sequence[_Exchange], messages: Sequence[BaseMessage]) -> int:
    """Index of the first message with a call whose result may still come; the length if there is none."""
    last_human = max((i for i, message in enumerate(messages) if _is_human(message)), default=-1)
    return next((e.start for e in exchanges if not e.answered and e.start > last_human), len(messages))


def _is_human(message: BaseMessage) -> bool:
    """Return True if a user wrote it: a late result that is shown as text of a human message is none."""
    return isinstance(message, HumanMessage) and kind_of(message) != "late_result"


def _is_result(message: BaseMessage) -> bool:
    return isinstance(message, ToolMessage) or kind_of(message) == "late_result"
