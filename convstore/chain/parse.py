"""Makes a chain of a list of messages, or says which message is in the way.

Layer 1, pure. The rules of `pairing` decide which result answers which call: the latest unanswered call with its id.
The order of results inside a pair is free and kept; a pair that is mended gets that of its calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.chain.sizes import size_of
from convstore.chain.structure import Chain, Header, Pair, Section, join_humans
from convstore.exceptions import MalformedChainError
from convstore.messages.tool_calls import Call, calls_of, missing_result

__all__ = ["MISSING_RESULT", "Origins", "Reading", "parse_chain", "read_chain"]

MISSING_RESULT: Final = "the call was not handled, please try again"
"""The text that a repair gives to a call without a result."""

_UNKNOWN_TOOL: Final = "unknown"


class Origins:
    """Which messages of the input each message of a chain stands for.

    Messages are told apart as objects, so no object may stand in a chain twice.
    """

    def __init__(self) -> None:
        # Each message is kept, so that its `id()` is never given to another one.
        self._known: dict[int, tuple[BaseMessage, tuple[int, ...]]] = {}
        self._summaries: set[int] = set()

    def put(self, message: BaseMessage, indexes: Sequence[int], *, summary: bool = False) -> None:
        """Say that a message stands for those at some places of the input, and whether it only sums them up."""
        self._known[id(message)] = (message, tuple(indexes))
        if summary:
            self._summaries.add(id(message))

    def shown_by(self, messages: Sequence[BaseMessage]) -> tuple[int, ...]:
        """The places of what these messages say word for word, in order."""
        return self.of([message for message in messages if id(message) not in self._summaries])

    def of(self, messages: Sequence[BaseMessage]) -> tuple[int, ...]:
        """The places that any of these messages stands for, in order."""
        return tuple(sorted({index for message in messages for index in self._known[id(message)][1]}))


def parse_chain(messages: Sequence[BaseMessage], *, repair: bool = False) -> Chain:
    """The chain that a list of messages is; flattened again it gives the same messages.

    The first message is a system or a human message, no human message follows another, and behind each AI message stand
    exactly the results of its calls, in any order. A system message that is not the first message, and a message of any
    other kind, is kept where it stands: in the header, or behind the pair before it.

    With `repair`, what breaks these rules is mended where that can be done, and `Chain.repairs` says what was done:

    - an AI message at the start is kept, in a section whose header is empty; nothing is put before it, so that the
      chain still needs this repair when it is parsed again;
    - a call without result gets one with the text of `MISSING_RESULT` and status "error";
    - human messages in a row become one, with all their contents;
    - a result whose id is none of its AI message's calls gets a call with empty arguments;
    - a result that comes late, or behind a message that is kept, is put behind its call; any other stray tool
      message, and a second result of the same call, is dropped.

    The messages that came in are never changed.

    Raises:
        MalformedChainError: A rule is broken: names the message. With `repair` only for what is no message.

    >>> chain = parse_chain([HumanMessage("Hi!"), AIMessage("Hello!"), HumanMessage("Bye!")])
    >>> [(section.header.human.text, len(section.body), section.size) for section in chain.sections]
    [('Hi!', 1, 9), ('Bye!', 0, 4)]
    """
    return read_chain(messages, repair=repair).chain


@dataclass(frozen=True, slots=True)
class Reading:
    """A chain and where its messages come from."""

    chain: Chain
    origins: Origins


def read_chain(messages: Sequence[BaseMessage], *, repair: bool, seed_faults: bool = False) -> Reading:
    """`parse_chain`, with the origin of each message.

    Args:
        messages: The list; no object stands in it twice.
        repair: As for `parse_chain`.
        seed_faults: A second result of a call makes a second call, and bytes that a repair adds count nothing.
    """
    reader = _Reader(repair=repair, seed_faults=seed_faults)
    for index, message in enumerate(messages):
        reader.add(index, message)
    return reader.finish()


@dataclass(slots=True)
class _OpenPair:
    """A pair while its results are collected."""

    ai: AIMessage
    index: int
    calls: list[Call]
    results: list[ToolMessage] = field(default_factory=list)
    added: list[dict[str, Any]] = field(default_factory=list)
    after: list[BaseMessage] = field(default_factory=list)
    mended: bool = False


@dataclass(slots=True)
class _OpenSection:
    system: SystemMessage | None = None
    before: list[BaseMessage] = field(default_factory=list)
    humans: list[HumanMessage] = field(default_factory=list)
    after: list[BaseMessage] = field(default_factory=list)
    body: list[_OpenPair] = field(default_factory=list)


class _Reader:
    """Takes messages one by one."""

    def __init__(self, *, repair: bool, seed_faults: bool) -> None:
        self._repair = repair
        self._seed_faults = seed_faults
        self._sections: list[_OpenSection] = []
        # The top of a stack is the latest message that has an open call with that id.
        self._unanswered: defaultdict[str, list[_OpenPair]] = defaultdict(list)
        self._repairs: list[str] = []
        self._origins = Origins()

    def add(self, index: int, message: BaseMessage) -> None:
        self._origins.put(message, [index])
        if isinstance(message, SystemMessage) and not self._sections:
            self._sections.append(_OpenSection(system=message))
        elif isinstance(message, HumanMessage):
            self._add_human(index, message)
        elif isinstance(message, AIMessage):
            self._add_ai(index, message)
        elif isinstance(message, ToolMessage):
            self._add_result(index, message)
        elif isinstance(message, BaseMessage):
            self._keep(message)
        else:
            problem = f"a chain is made of LangChain messages, not of {type(message).__name__}"
            raise MalformedChainError(problem, index=index, message_id=None)

    def finish(self) -> Reading:
        sections = [
            Section(self._header_of(opened), tuple(map(self._closed, opened.body))) for opened in self._sections
        ]
        return Reading(Chain(tuple(sections), repairs=tuple(self._repairs)), self._origins)

    def _keep(self, message: BaseMessage) -> None:
        """Keep a message that is neither a header's nor a pair's behind what came before it."""
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
            self._mend(index, message, "a human message behind a human message", "joined with it")
        self._sections[-1].humans.append(message)

    def _add_ai(self, index: int, message: AIMessage) -> None:
        if not self._sections:
            self._mend(index, message, "a chain begins with a system or a human message", "kept without a header")
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
                self._mend(index, message, f"the result for {message.tool_call_id!r} comes late", "put behind its call")
                pair.mended = True
            elif pair.after:
                problem = f"the result for {message.tool_call_id!r} comes behind a {pair.after[0].type} message"
                self._mend(index, message, problem, "put behind its call")
            pair.results.append(message)
        elif current is None:
            self._mend(index, message, "a tool message without a call", "dropped")
        else:
            self._add_result_without_call(index, message, current)

    def _add_result_without_call(self, index: int, message: ToolMessage, pair: _OpenPair) -> None:
        call_id = message.tool_call_id
        if any(call.id == call_id for call in pair.calls) and not self._seed_faults:
            self._mend(index, message, f"a second result for {call_id!r}", "dropped")
            return
        self._mend(index, message, f"a result for {call_id!r}, which no call has", "a call was added")
        name = message.name or _UNKNOWN_TOOL
        pair.added.append({"name": name, "args": {}, "id": call_id, "type": "tool_call"})
        pair.calls.append(Call(call_id, name, len(pair.calls)))
        pair.results.append(message)
        pair.mended = True

    def _header_of(self, opened: _OpenSection) -> Header:
        human, before, after = self._human_of(opened), tuple(opened.before), tuple(opened.after)
        return Header(opened.system, human, before=before, after=after)

    def _human_of(self, opened: _OpenSection) -> HumanMessage | None:
        if not opened.humans:
            return None
        human = join_humans(opened.humans)
        self._origins.put(human, self._origins.of(opened.humans))
        return human

    def _closed(self, opened: _OpenPair) -> Pair:
        ai = opened.ai
        if opened.added:
            ai = ai.model_copy(update={"tool_calls": [*ai.tool_calls, *opened.added]})
            self._origins.put(ai, [opened.index])
        results = tuple(opened.results)
        if opened.mended or len(results) < len(opened.calls):
            results = self._completed(ai, opened)
        pair = Pair(ai, results, after=tuple(opened.after))
        if not self._seed_faults:
            return pair
        came = [opened.ai, *opened.results, *opened.after]
        return replace(pair, uncounted=pair.size - sum(map(size_of, came)))

    def _completed(self, ai: AIMessage, opened: _OpenPair) -> tuple[ToolMessage, ...]:
        """A result for each call, in the order of the calls."""
        waiting: defaultdict[str, list[ToolMessage]] = defaultdict(list)
        for result in reversed(opened.results):
            waiting[result.tool_call_id].append(result)
        return tuple(
            waiting[call.id].pop() if waiting[call.id] else self._made_result(call, opened) for call in calls_of(ai)
        )

    def _made_result(self, call: Call, opened: _OpenPair) -> ToolMessage:
        self._mend(opened.index, opened.ai, f"the call {call.id!r} has no result", "one was added that says so")
        made = missing_result(call, ai_message_id=opened.ai.id).model_copy(update={"content": MISSING_RESULT})
        self._origins.put(made, [])
        return made

    def _mend(self, index: int, message: BaseMessage, problem: str, done: str) -> None:
        if not self._repair:
            _refuse(index, message, f"{problem}; parse with repair=True, and it is {done}")
        self._repairs.append(f"message {index}: {problem}: {done}")


def _refuse(index: int, message: BaseMessage, problem: str) -> NoReturn:
    raise MalformedChainError(problem, index=index, message_id=message.id)
