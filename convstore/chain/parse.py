"""Parse a list of messages into a chain, or name the message that breaks its rules.

A result answers the latest unanswered call with its id, as in `messages.tool_calls`. The order of results inside a pair
is kept; a repaired pair gets the order of its calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.chain.structure import Chain, Header, Pair, Section, join_humans, results_by_call
from convstore.exceptions import InvalidInputError, MalformedChainError
from convstore.messages.sizes import size_of
from convstore.messages.tool_calls import Call, calls_of, missing_result
from convstore.values.plain import shown_value

MISSING_RESULT: Final = "the call was not handled, please try again"
"""Content of the result that a repair adds to a call without one."""

_UNKNOWN_TOOL: Final = "unknown"


class Origins:
    """Map from each message of a chain, by object, to the indexes of the input messages that it represents."""

    def __init__(self) -> None:
        # The reference prevents Python from reusing the message's `id()`.
        self._indexes_by_object: dict[int, tuple[BaseMessage, tuple[int, ...]]] = {}
        self._summaries: set[int] = set()

    def put(self, message: BaseMessage, indexes: Sequence[int], *, summary: bool = False) -> None:
        """Record the input indexes that a message represents; `summary` is True if it does not contain their text."""
        self._indexes_by_object[id(message)] = (message, tuple(indexes))
        if summary:
            self._summaries.add(id(message))

    def shown_by(self, messages: Sequence[BaseMessage]) -> tuple[int, ...]:
        """Return the input indexes of these messages in order, without summaries, which do not show the originals."""
        return self.of([message for message in messages if id(message) not in self._summaries])

    def of(self, messages: Sequence[BaseMessage]) -> tuple[int, ...]:
        """Return the input indexes that any of these messages represents, in order."""
        return tuple(
            sorted(
                {index for message in messages for index in self._indexes_by_object[id(message)][1]}
            )
        )


def parse_chain(messages: Sequence[BaseMessage], *, repair: bool = False) -> Chain:
    """Parse a list of messages into a chain. `Chain.messages` returns the same messages.

    A well-formed list follows three rules:

    - The first message is a system or a human message.
    - No human message directly follows another.
    - Each AI message is followed by exactly the results of its calls, in any order.

    A system message after the first position, and a message of any other kind, keeps its position: in the header, or
    after the preceding pair.

    With `repair`, broken rules are repaired, and `Chain.repairs` lists each repair:

    - An AI message at the start is kept in a section with an empty header. Nothing is inserted before it, so the chain
      needs this repair again when it is parsed again.
    - A call without a result gets one with the text of `MISSING_RESULT` and status "error".
    - Consecutive human messages become one, with all their contents.
    - A result whose id matches no call of its AI message gets a call with empty arguments.
    - A result that comes late, or after a message that is kept, moves to its call. Other tool messages without a call,
      and second results of a call, are dropped.

    The input messages are never changed.

    Args:
        messages: A list of messages, such as the state of an agent.
        repair: Repair broken rules instead of raising.

    Raises:
        MalformedChainError: A rule is broken; the error names the message. With `repair`, only for items that are not
            messages.

    Examples:
        >>> chain = parse_chain([HumanMessage("Hi!"), AIMessage("Hello!"), HumanMessage("Bye!")])
        >>> [(section.header.human.text, len(section.body), section.size) for section in chain.sections]
        [('Hi!', 1, 9), ('Bye!', 0, 4)]
    """
    return read_chain(messages, repair=repair)[0]


def read_chain(
    messages: Sequence[BaseMessage], *, repair: bool, seed_faults: bool = False
) -> tuple[Chain, Origins]:
    """Parse a chain as `parse_chain` does, and record the origin of each message; no object may occur twice.

    `seed_faults` reproduces two faults of the original algorithm: a second result of a call adds a second call, and
    bytes added by a repair are not counted.
    """
    check_messages(messages)
    reader = _Reader(repair=repair, seed_faults=seed_faults)
    for index, message in enumerate(messages):
        reader.add(index, message)
    return reader.finish()


def check_messages(messages: Sequence[object]) -> None:
    """Raise a MalformedChainError that names the first item of a list that is not a LangChain message.

    Raises:
        InvalidInputError: `messages` is not a list.
    """
    if not isinstance(messages, Sequence):
        raise InvalidInputError(f"a chain is a list of messages, not {shown_value(messages)}")
    for index, message in enumerate(messages):
        if not isinstance(message, BaseMessage):
            problem = f"a chain is made of LangChain messages, not of {type(message).__name__}"
            raise MalformedChainError(problem, index=index, message_id=None)


@dataclass(slots=True)
class _OpenPair:
    """A pair under construction, while its results are collected."""

    ai: AIMessage
    index: int
    calls: list[Call]
    results: list[ToolMessage] = field(default_factory=list)
    added: list[dict[str, Any]] = field(default_factory=list)
    after: list[BaseMessage] = field(default_factory=list)
    repaired: bool = False


@dataclass(slots=True)
class _OpenSection:
    system: SystemMessage | None = None
    before: list[BaseMessage] = field(default_factory=list)
    humans: list[HumanMessage] = field(default_factory=list)
    after: list[BaseMessage] = field(default_factory=list)
    body: list[_OpenPair] = field(default_factory=list)


class _Reader:
    """Builds a chain from messages added one at a time."""

    def __init__(self, *, repair: bool, seed_faults: bool) -> None:
        self._repair = repair
        self._seed_faults = seed_faults
        self._sections: list[_OpenSection] = []
        # Ids may repeat: the top of each stack is the latest pair with an open call of that id.
        self._unanswered: defaultdict[str, list[_OpenPair]] = defaultdict(list)
        self._repairs: list[str] = []
        self._origins = Origins()

    def add(self, index: int, message: BaseMessage) -> None:
        self._origins.put(message, [index])
        match message:
            case SystemMessage() if not self._sections:
                self._sections.append(_OpenSection(system=message))
            case HumanMessage():
                self._add_human(index, message)
            case AIMessage():
                self._add_ai(index, message)
            case ToolMessage():
                self._add_result(index, message)
            case _:
                self._keep(message)

    def finish(self) -> tuple[Chain, Origins]:
        sections = tuple(
            Section(self._header_of(opened), tuple(map(self._closed, opened.body)))
            for opened in self._sections
        )
        return Chain(sections, repairs=tuple(self._repairs)), self._origins

    def _keep(self, message: BaseMessage) -> None:
        """Keep a message of another kind at its position: in the header, or after the last pair."""
        if not self._sections:
            self._sections.append(_OpenSection())
        section = self._sections[-1]
        if section.body:
            section.body[-1].after.append(message)
        else:
            (section.after if section.humans else section.before).append(message)

    def _add_human(self, index: int, message: HumanMessage) -> None:
        if not self._sections or self._sections[-1].body or self._sections[-1].after:
            self._sections.append(_OpenSection())
        elif self._sections[-1].humans:
            self._repair_or_refuse(
                index, message, "a human message follows a human message", "joined with it"
            )
        self._sections[-1].humans.append(message)

    def _add_ai(self, index: int, message: AIMessage) -> None:
        if not self._sections:
            problem = "a chain begins with a system or a human message"
            self._repair_or_refuse(index, message, problem, "kept without a header")
            self._sections.append(_OpenSection())
        pair = _OpenPair(message, index, calls_of(message))
        self._sections[-1].body.append(pair)
        for call in pair.calls:
            self._unanswered[call.id].append(pair)

    def _add_result(self, index: int, message: ToolMessage) -> None:
        body = self._sections[-1].body if self._sections else []
        current = body[-1] if body and body[-1].calls else None
        waiting = self._unanswered[message.tool_call_id]
        if waiting:
            pair = waiting.pop()
            if pair is not current:
                problem = f"the result for {message.tool_call_id!r} comes late"
                self._repair_or_refuse(index, message, problem, "moved to its call")
                pair.repaired = True
            elif pair.after:
                problem = (
                    f"the result for {message.tool_call_id!r} comes after a "
                    f"{pair.after[0].type} message"
                )
                self._repair_or_refuse(index, message, problem, "moved to its call")
            pair.results.append(message)
        elif current is None:
            self._repair_or_refuse(index, message, "a tool message without a call", "dropped")
        else:
            self._add_result_without_call(index, message, current)

    def _add_result_without_call(self, index: int, message: ToolMessage, pair: _OpenPair) -> None:
        call_id = message.tool_call_id
        if any(call.id == call_id for call in pair.calls) and not self._seed_faults:
            self._repair_or_refuse(index, message, f"a second result for {call_id!r}", "dropped")
            return
        self._repair_or_refuse(
            index, message, f"a result for {call_id!r}, which no call has", "a call was added"
        )
        name = message.name or _UNKNOWN_TOOL
        pair.added.append({"name": name, "args": {}, "id": call_id, "type": "tool_call"})
        pair.calls.append(Call(call_id, name, len(pair.calls)))
        pair.results.append(message)
        pair.repaired = True

    def _header_of(self, opened: _OpenSection) -> Header:
        human = join_humans(opened.humans) if opened.humans else None
        if human is not None:
            self._origins.put(human, self._origins.of(opened.humans))
        return Header(opened.system, human, before=tuple(opened.before), after=tuple(opened.after))

    def _closed(self, opened: _OpenPair) -> Pair:
        ai = opened.ai
        if opened.added:
            ai = ai.model_copy(update={"tool_calls": [*ai.tool_calls, *opened.added]})
            self._origins.put(ai, [opened.index])
        results = tuple(opened.results)
        if opened.repaired or len(results) < len(opened.calls):
            # in the order of the calls
            slots = zip(calls_of(ai), results_by_call(ai, opened.results), strict=True)
            results = tuple(slot or self._made_result(call, opened) for call, slot in slots)
        pair = Pair(ai, results, after=tuple(opened.after))
        original = pair.size
        if self._seed_faults:
            original = sum(map(size_of, [opened.ai, *opened.results, *opened.after]))
        return replace(pair, uncounted=pair.size - original) if original != pair.size else pair

    def _made_result(self, call: Call, opened: _OpenPair) -> ToolMessage:
        problem = f"the call {call.id!r} has no result"
        self._repair_or_refuse(opened.index, opened.ai, problem, "an error result was added")
        made = missing_result(call, ai_message_id=opened.ai.id).model_copy(
            update={"content": MISSING_RESULT}
        )
        self._origins.put(made, [])
        return made

    def _repair_or_refuse(self, index: int, message: BaseMessage, problem: str, done: str) -> None:
        if not self._repair:
            problem = f"{problem}; repair the list, or parse it with repair=True ({done})"
            raise MalformedChainError(problem, index=index, message_id=message.id)
        self._repairs.append(f"message {index}: {problem}: {done}")
