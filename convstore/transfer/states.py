"""Follows the messages of a LangGraph state through the checkpoints of a thread, from the newest back to the oldest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage, RemoveMessage, SystemMessage

from convstore.edges import OWNER
from convstore.exceptions import InvalidInputError, MissingExtraError
from convstore.messages.encoding import digest_of, digest_of_messages
from convstore.messages.provenance import is_generated
from convstore.transfer.dicts import without_id
from convstore.transfer.records import merged_fields
from convstore.values.plain import part_of

Write: TypeAlias = tuple[Any, Any, Any]
"""A pending write of a checkpoint: task, channel and value."""

INPUT = "__start__"
"""Channel with the input of a run that no node has taken yet."""

_LANGMEM_BEGINNING = "Summary of the conversation so far:"
"""The beginning of the message that langmem's `SummarizationNode` puts before the messages that it kept."""


class Checkpoint(NamedTuple):
    """A checkpoint on the path of a thread.

    Attributes:
        id: Its id.
        parent: Id of its parent; "" for the first one of a thread.
        config: Finds it in the checkpointer.
        step: Its step on the path.
        at: When it was saved.
        values: The values of its channels.
        versions: The versions of its channels; a channel that was never written has none.
        writes: Writes after it, which the next checkpoint has.
        metadata: Of the run that saved it.
    """

    id: str
    parent: str
    config: Any
    step: int
    at: datetime
    values: Mapping[str, Any]
    versions: Mapping[str, Any]
    writes: Sequence[Write]
    metadata: Mapping[str, Any]

    def has_changes_only(self, channel: str) -> bool:
        """Return True if the channel is a `DeltaChannel`, whose value is not in this checkpoint."""
        return channel in self.versions and channel not in self.values

    def writes_to(self, channel: str) -> list[Write]:
        """Return the pending writes to a channel, or the input that no node has taken yet."""
        found = [write for write in self.writes if write[1] == channel]
        given = self.values.get(INPUT)
        if not found and isinstance(given, Mapping) and given.get(channel):
            found = [("", channel, given[channel])]
        return found


@dataclass(slots=True)
class Place:
    """A message of a thread.

    Attributes:
        message: With the content that it had last.
        oldest: With the content that it had in the oldest checkpoint that was read.
        depth: Number of checkpoints from the newest one back to the one that the message came with.
        index: Its index in that state.
        step: The step of that checkpoint.
        checkpoint: The id of that checkpoint.
        at: When that checkpoint was saved.
        is_active: The newest state has it.
        is_replaced: Its content changed.
        is_open: The state that was read last has it.
    """

    message: Any
    oldest: Any
    depth: int
    index: int
    step: int
    checkpoint: str
    at: datetime
    is_active: bool
    is_replaced: bool = False
    is_open: bool = True


@dataclass(slots=True)
class StateHistory:
    """The messages of all checkpoints of a path, which are added from the newest to the oldest.

    A message stands where it came into the state; if it was removed and came back, where it came back. The messages of
    the newest state stand in its order: a graph may hide and restore messages, or order them in a new way.

    Attributes:
        channel: Key of the messages in the state.
        checkpoints: Number of checkpoints.
        has_channel: A checkpoint has the channel.
        is_taken_over: convstore keeps the messages of the newest checkpoints, so they are not read.
        metadata: The metadata of all checkpoints.
        summaries: Digests of the summaries that the graph made.
    """

    channel: str
    checkpoints: int = 0
    has_channel: bool = False
    is_taken_over: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    summaries: set[bytes] = field(default_factory=set)
    _depth: int = -1
    _found: dict[Any, Place] = field(default_factory=dict)

    def add(self, checkpoint: Checkpoint, state: Sequence[Any]) -> None:
        """Add the next older checkpoint with its messages; the newest one with those of pending writes."""
        self.checkpoints += 1
        self.metadata = merged_fields(self.metadata, checkpoint.metadata)
        writes = checkpoint.writes_to(self.channel)
        self.has_channel |= self.channel in checkpoint.versions or bool(writes)
        # the log has its messages, and convstore removes them from the state
        if OWNER in checkpoint.values:
            self.is_taken_over = True
            return
        self.summaries |= {digest_of(text) for text in _summaries_beside(checkpoint.values)}
        if self.checkpoints == 1 and writes:
            self._add(replayed(list(state), writes), checkpoint, checkpoint.step + 1)
        self._add(state, checkpoint, checkpoint.step)

    def _add(self, state: Sequence[Any], checkpoint: Checkpoint, step: int) -> None:
        """Add the messages of the next older state."""
        self._depth += 1
        seen = set[Any]()
        for index, (own_key, message) in enumerate(_keyed(state)):
            if _is_summary(message):
                self.summaries.add(digest_of(message.text))
                continue
            key = self._key_of(own_key, message)
            place = self._found.get(key)
            if place is None:
                kept = message if key == own_key else without_id(message)
                place = Place(kept, message, 0, 0, 0, "", checkpoint.at, is_active=self._depth == 0)
                self._found[key] = place
            seen.add(key)
            if not place.is_open:
                continue
            place.is_replaced |= place.oldest != message
            place.oldest = message
            place.depth = self._depth
            place.index = index
            place.step = step
            place.checkpoint = checkpoint.id
            place.at = checkpoint.at
        for key, place in self._found.items():
            place.is_open = place.is_open and key in seen

    def _key_of(self, key: Any, message: Any) -> Any:
        """Return the key of a message; a removed one whose id another message took later has a key of its own."""
        number = 0
        own_key = key
        while (place := self._found.get(own_key)) and not place.is_open and place.oldest != message:
            number += 1
            own_key = (key, "earlier", number)
        return own_key

    def places(self) -> list[Place]:
        """Return the messages in order; `_found` has those of the newest state first, in its order."""
        found = sorted(self._found.values(), key=lambda place: (-place.depth, place.index))
        active = [place for place in self._found.values() if place.is_active]
        in_order = iter(active)
        return [next(in_order) if place.is_active else place for place in found]


def replayed(base: Any, writes: Sequence[Write]) -> list[Any]:
    """Return a state's messages after some writes, as LangGraph applies them."""
    try:
        from langgraph.channels.delta import DeltaChannel  # noqa: PLC0415 - an extra
        from langgraph.graph.message import _messages_delta_reducer  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError(package="langgraph", extra="langgraph") from error
    reducer: Any = _messages_delta_reducer
    channel = DeltaChannel(reducer, list).from_checkpoint(base)
    channel.replay_writes(writes)
    return list(channel.get())


def plain_state(value: Any) -> list[Any]:
    """Return the messages in the value of a channel: a list, or the snapshot of a `DeltaChannel`."""
    found = getattr(value, "value", value) if isinstance(value, tuple) else value
    if found is None:
        return []
    if not isinstance(found, list):
        raise InvalidInputError(
            f"its messages are a value of type {type(found).__name__}; a list is needed"
        )
    return found


def rebuilt(history: Mapping[str, Any], numbers: Sequence[int]) -> list[list[Any]]:
    """Return the states of consecutive checkpoints that have changes only, from the oldest to the newest.

    Args:
        history: What the checkpointer's `get_delta_channel_history` returns for the newest of them.
        numbers: For each of them, the number of writes between its parent and it.
    """
    writes = history["writes"]
    if len(writes) != sum(numbers):
        raise InvalidInputError(
            "its changes cannot be rebuilt: writes of its checkpoints are missing"
        )
    states = list[list[Any]]()
    base = history.get("seed")
    start = 0
    for number in numbers:
        base = replayed(base, writes[start : start + number])
        states.append(base)
        start += number
    return states


def _keyed(state: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the messages with keys that are equal in all states: the id, or class and content; and the number of it.

    After a removal of all messages LangGraph takes the new ones as they are, also two with one id and a RemoveMessage.
    """
    equal = Counter[Any]()
    for message in state:
        if isinstance(message, RemoveMessage):
            continue
        key = part_of(message, "id")
        if not key:
            is_message = isinstance(message, BaseMessage)
            key = digest_of_messages([message]) if is_message else repr(message)
        equal[key] += 1
        yield (key, equal[key]), message


def _is_summary(message: Any) -> bool:
    if not isinstance(message, BaseMessage):
        return False
    is_langmem = isinstance(message, SystemMessage) and message.text.startswith(_LANGMEM_BEGINNING)
    return is_langmem or is_generated(message)


def _summaries_beside(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the summaries that langmem and deepagents keep beside the messages of a state."""
    event = values.get("_summarization_event")
    message = event.get("summary_message") if isinstance(event, Mapping) else None
    if isinstance(message, BaseMessage):
        yield message.text
    for value in values.values():
        running = value.get("running_summary") if isinstance(value, Mapping) else None
        text = part_of(running, "summary")
        if isinstance(text, str) and text:
            yield f"{_LANGMEM_BEGINNING} {text}"
