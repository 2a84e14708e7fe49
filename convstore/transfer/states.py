"""Tracks the messages of a LangGraph state through the checkpoints of a thread, from the newest to the oldest."""

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
"""Channel with the input of a run that nodes have not read yet."""

_LANGMEM_BEGINNING = "Summary of the conversation so far:"
"""Beginning of the message that langmem's `SummarizationNode` puts before the messages that it keeps."""


class Checkpoint(NamedTuple):
    """A checkpoint on the path of a thread.

    Attributes:
        id: Its id.
        parent: Id of its parent; "" for the first checkpoint of a thread.
        config: The configuration by which the checkpointer finds it.
        step: Its step on the path.
        at: The time when it was saved.
        values: The values of its channels.
        versions: The versions of its channels, without channels that were never written.
        writes: Writes after it, which are applied in the next checkpoint.
        metadata: Metadata of the run that saved it.
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
        """Return the pending writes to a channel, or the input that nodes have not read yet."""
        found = [write for write in self.writes if write[1] == channel]
        given = self.values.get(INPUT)
        if not found and isinstance(given, Mapping) and given.get(channel):
            found = [("", channel, given[channel])]
        return found


@dataclass(slots=True)
class TrackedMessage:
    """A message of a thread, with the oldest checkpoint that has it.

    Attributes:
        message: The message with its last content.
        oldest: The message with its content in the oldest checkpoint that was read.
        depth: Number of checkpoints from the newest one back to the oldest with the message.
        index: Index of the message in the state of that checkpoint.
        step: The step of that checkpoint.
        checkpoint: The id of that checkpoint.
        at: The time when that checkpoint was saved.
        is_active: True if the newest state has the message.
        is_replaced: True if its content changed.
        is_open: True if the state that was read last has the message.
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

    The position of a message is that at which it entered the state, the last time if it was removed and came back. The
    messages of the newest state are in its order, because a graph may hide, restore or reorder messages.

    Attributes:
        channel: Key of the messages in the state.
        checkpoints: Number of checkpoints.
        has_channel: True if a checkpoint has the channel.
        is_taken_over: True if convstore keeps the messages of the newest checkpoints, which are then not read.
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
    _found: dict[Any, TrackedMessage] = field(default_factory=dict)

    def add(self, checkpoint: Checkpoint, state: Sequence[Any]) -> None:
        """Add the next older checkpoint with its messages; for the newest one, also those of pending writes."""
        self.checkpoints += 1
        self.metadata = merged_fields(self.metadata, checkpoint.metadata)
        writes = checkpoint.writes_to(self.channel)
        self.has_channel |= self.channel in checkpoint.versions or bool(writes)
        # the log has its messages, and convstore removes them from the state
        if OWNER in checkpoint.values:
            self.is_taken_over = True
            return
        self.summaries |= {digest_of(text) for text in _separate_summaries(checkpoint.values)}
        if self.checkpoints == 1 and writes:
            self._add(replayed(list(state), writes), checkpoint, checkpoint.step + 1)
        self._add(state, checkpoint, checkpoint.step)

    def _add(self, state: Sequence[Any], checkpoint: Checkpoint, step: int) -> None:
        """Add the messages of the next older state."""
        self._depth += 1
        seen: set[Any] = set()
        for index, (own_key, message) in enumerate(_keyed(state)):
            if _is_summary(message):
                self.summaries.add(digest_of(message.text))
                continue
            key = self._key_of(own_key, message)
            tracked = self._found.get(key)
            if tracked is None:
                kept = message if key == own_key else without_id(message)
                tracked = TrackedMessage(
                    kept, message, 0, 0, 0, "", checkpoint.at, is_active=self._depth == 0
                )
                self._found[key] = tracked
            seen.add(key)
            if not tracked.is_open:
                continue
            tracked.is_replaced |= tracked.oldest != message
            tracked.oldest = message
            tracked.depth = self._depth
            tracked.index = index
            tracked.step = step
            tracked.checkpoint = checkpoint.id
            tracked.at = checkpoint.at
        for key, tracked in self._found.items():
            tracked.is_open = tracked.is_open and key in seen

    def _key_of(self, key: Any, message: Any) -> Any:
        """Return the key of a message; a removed message whose id was reused later gets a key of its own."""
        number = 0
        own_key = key
        while known := self._found.get(own_key):
            if known.is_open or known.oldest == message:
                break
            number += 1
            own_key = (key, "earlier", number)
        return own_key

    def messages(self) -> list[TrackedMessage]:
        """Return the messages in order; `_found` has those of the newest state first, in its order."""
        found = sorted(self._found.values(), key=lambda tracked: (-tracked.depth, tracked.index))
        active = [tracked for tracked in self._found.values() if tracked.is_active]
        in_order = iter(active)
        return [next(in_order) if tracked.is_active else tracked for tracked in found]


def replayed(base: Any, writes: Sequence[Write]) -> list[Any]:
    """Return a state's messages after LangGraph's reducer has applied some writes."""
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
    """Return the states of consecutive checkpoints that only store changes, from the oldest to the newest.

    Args:
        history: The result of the checkpointer's `get_delta_channel_history` for the newest of them.
        numbers: For each checkpoint, the number of writes between its parent and it.
    """
    writes = history["writes"]
    if len(writes) != sum(numbers):
        raise InvalidInputError(
            "its changes cannot be rebuilt: writes of its checkpoints are missing"
        )
    states: list[list[Any]] = []
    base = history.get("seed")
    start = 0
    for number in numbers:
        base = replayed(base, writes[start : start + number])
        states.append(base)
        start += number
    return states


def _keyed(state: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the messages with keys that are equal in all states: id, else digest, and the number of the repetition.

    After a removal of all messages, LangGraph adds the new ones unchanged, even equal ids and a RemoveMessage.
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


def _separate_summaries(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the summaries that langmem and deepagents keep outside the messages of a state."""
    event = values.get("_summarization_event")
    message = event.get("summary_message") if isinstance(event, Mapping) else None
    if isinstance(message, BaseMessage):
        yield message.text
    for value in values.values():
        running = value.get("running_summary") if isinstance(value, Mapping) else None
        text = part_of(running, "summary")
        if isinstance(text, str) and text:
            yield f"{_LANGMEM_BEGINNING} {text}"
