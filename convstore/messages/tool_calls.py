"""Pair tool calls with their results, so that OpenAI, Anthropic and Gemini accept any list of messages.

The view pairs every list before it goes to a model; `convstore.testing.pairing` checks lists without pairing them.
Providers reject a whole request over one call without a result, or one result without a call. Real logs have both: a
process died between call and result, a result came late, a retry answered twice, a model reused a call id.

The rule: each AI message with calls is directly followed by its results, one per call, in the order of the calls. No
other position holds a tool message. `pair` establishes the rule.

- A result answers the latest earlier AI message that has an unanswered call with its id. Inside one AI message, calls
  are answered in order. So a call id may be reused, as happens in real conversations.
- A result whose own id was made by `result_id` answers the call that the id was made for. A stored result answers the
  call that is stored with it. Two runs may work on a conversation concurrently, and both name their calls ``call_0``.
- The first answer counts. A second one, or a result before its call, is left out and reported.
- A call without an answer gets a synthetic result that says so.
- A summary or a note may replace calls of the list; `without_orphans` then shows their results as text.

Messages before the first unanswered call never change again, whatever is appended; provider prompt caches depend on
that. Legacy function messages have no call id and keep their position.

The module is long because the rule, its check and the repair of a list have to agree.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.messages.provenance import mark

_Message = TypeVar("_Message", bound=BaseMessage)

MISSING_TEXT: Final = "No result was recorded for this call."
"""Content of the result that is generated for a call without one."""

_MALFORMED_TEXT: Final = (
    "Tool call {name} with id {id} could not be executed - arguments were malformed or truncated."
)
"""Content of the generated result for a call with invalid arguments, with the wording of LangChain's agents."""

_UNKNOWN: Mapping[str, str] = {}

_NO_RESULTS: Final = frozenset({AIMessage, HumanMessage, SystemMessage})
CALL_BLOCKS: Final = {
    "tool_use": "id",
    "tool_call": "id",
    "function_call": "call_id",
    "custom_tool_call": "call_id",
    "computer_call": "call_id",
}
"""Content blocks that a provider treats as a client-side call, and the key of the call's id in each: Anthropic,
LangChain's standard content, OpenAI Responses. Calls that the provider runs itself (`server_tool_use`,
`mcp_tool_use`, `web_search_call`, ...) have their results in the same message, so they are not listed."""

CALL_FORMS: Final = CALL_BLOCKS | dict.fromkeys(
    ("input_json_delta", "invalid_tool_call", "tool_call_chunk"), "id"
)
"""`CALL_BLOCKS` and the blocks of LangChain that repeat a listed call or a part of it."""


class Call(NamedTuple):
    """One call of an AI message that needs a result.

    Attributes:
        id: The tool call id; "" if the model wrote no id.
        tool: Name of the tool; "" if it is unknown.
        position: Index among the calls of its message, from 0; distinguishes calls with the same id.
        is_malformed: True if its arguments are invalid, so that no tool can run it.
    """

    id: str
    tool: str
    position: int
    is_malformed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """A valid list of messages, and its differences from the input.

    Input and output are the same exactly if `missing`, `orphans` and `moved` are all empty. Messages are named by their
    id, or else by their tool call id.

    Attributes:
        messages: The valid list; the input's own objects, except results generated for unanswered calls.
        indexes: For each of `messages`, its index in the input; None for a generated result.
        missing: Tool call ids of the calls that got a generated result, in the order of `messages`.
        orphans: Tool messages left out, in input order: no unanswered call with their id precedes them.
        moved: Results moved ahead of a message that preceded them in the input, in the order of `messages`.
    """

    messages: list[BaseMessage]
    indexes: tuple[int | None, ...]
    missing: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()


@dataclass(slots=True)
class Slot:
    """A position after an AI message for the result of one call; `own_id` is the id that `result_id` makes."""

    call: Call
    own_id: str
    result: int | None = None


class OpenSlots:
    """The calls without a result, while results are assigned one after the other."""

    def __init__(self, answers: Mapping[str, str] = _UNKNOWN) -> None:
        self._answers = answers
        # The top of each stack is the first open call of the latest message, so every result finds its call in O(1).
        self._stacks: defaultdict[str, list[Slot]] = defaultdict(list)
        self._by_result_id: dict[str, Slot] = {}

    def add(self, slots: Sequence[Slot]) -> None:
        """Add the calls of a message."""
        self._by_result_id |= {slot.own_id: slot for slot in slots if slot.own_id}
        for slot in reversed(slots):
            self._stacks[slot.call.id].append(slot)

    def answer(self, result: ToolMessage, index: int) -> Slot | None:
        """Assign a result to its call, and return the call; None if no call is open."""
        stack = self._stacks[result.tool_call_id]
        while stack and stack[-1].result is not None:
            stack.pop()
        if not stack:
            return None
        given = result.id or ""
        own = self._by_result_id.get(self._answers.get(given) or answered_by(given))
        is_open = own is not None and own.result is None and own.call.id == result.tool_call_id
        found = own if own is not None and is_open else stack[-1]
        found.result = index
        return found


def calls_of(message: BaseMessage) -> list[Call]:
    """Return the calls of a message that need a result, in the order that their results must have.

    The order is `tool_calls`, `invalid_tool_calls` (both are sent to providers), then call blocks of the content that
    are in neither list. Those blocks are sent back unchanged to the provider that wrote them.

    A call in `tool_calls` without an id is included with the id "". An invalid call without an id or a name is not:
    langchain-anthropic 1.7 leaves it out of the request, so a result for it would be rejected.

    >>> message = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "call_1"}])
    >>> calls_of(message)
    [Call(id='call_1', tool='search', position=0, is_malformed=False)]
    """
    if not isinstance(message, AIMessage):
        return []
    if not message.invalid_tool_calls and type(message.content) is str:
        return [
            Call(*_id_and_name(call), position) for position, call in enumerate(message.tool_calls)
        ]
    calls = [_id_and_name(call) for call in message.tool_calls]
    invalid = list(filter(all, map(_id_and_name, message.invalid_tool_calls)))
    malformed = range(len(calls), len(calls) + len(invalid))
    calls += invalid
    calls += _only_in_content(message.content, calls)
    return [Call(*call, position, position in malformed) for position, call in enumerate(calls)]


def _id_and_name(call: Mapping[str, Any]) -> tuple[str, str]:
    """Return the id and the tool's name of a listed call, "" for a missing one."""
    return call.get("id") or "", call.get("name") or ""


def _only_in_content(content: Any, calls: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the calls of content blocks that are not listed; two blocks may describe one call."""
    if not isinstance(content, list):
        return []
    listed = {call_id for call_id, _ in calls}
    in_content = dict(calls_in_content(content))  # unlike a set, it keeps the order
    return [(call_id, tool) for call_id, tool in in_content.items() if call_id not in listed]


def result_id(ai_message_id: str, call_id: str, position: int = 0) -> str:
    """Return the id of a call's result: the same in every process, and a different one for every AI message.

    `position` is the index of the call among the calls of its message with the same call id.

    >>> result_id("ai-1", "call_1") == result_id("ai-1", "call_1") != result_id("ai-2", "call_1")
    True
    """
    # JSON keeps the parts apart and writes lone surrogates as ASCII.
    return sha256(
        json.dumps(["convstore result", ai_message_id, call_id, position]).encode()
    ).hexdigest()[:32]


def later_result_id(made_for: str, number: int) -> str:
    """Return the id of a later result of a call whose earlier results were rewound; see `answered_by`.

    >>> later_result_id("cac4", 2)
    'cac4.2'
    """
    return f"{made_for}.{number}"


def answered_by(id_: str) -> str:
    """Return the `result_id` of the call that a result answers, given the id of the result.

    >>> answered_by("cac4"), answered_by("cac4.2")
    ('cac4', 'cac4')
    """
    return id_.partition(".")[0]


def result_ids(message: BaseMessage) -> list[str]:
    """Return the ids that `result_id` makes for the results of a message, in the order of its calls."""
    ids: list[str] = []
    same = Counter[str]()
    for call in calls_of(message):
        ids.append(result_id(str(message.id), call.id, same[call.id]))
        same[call.id] += 1
    return ids


def is_paused(message: BaseMessage) -> bool:
    """Return True for an answer that its provider paused and continues in the next call.

    Anthropic does so if its own tools, such as web search, take long: https://docs.claude.com, "Stop reasons".

    >>> is_paused(AIMessage("I look it up.", response_metadata={"stop_reason": "pause_turn"}))
    True
    """
    return (
        isinstance(message, AIMessage)
        and message.response_metadata.get("stop_reason") == "pause_turn"
    )


def missing_result(call: Call, *, ai_message_id: str | None) -> ToolMessage:
    """Generate the result for a call without a result; equal arguments give equal messages.

    Its id is derived from the message id and the position, because two calls may have the same id. Without a message id
    it has no id.

    >>> result = missing_result(Call("call_1", "search", 0), ai_message_id="m7")
    >>> result.id, result.name, result.tool_call_id, result.status
    ('m7:missing-result-0', 'search', 'call_1', 'error')
    """
    text = MISSING_TEXT
    if call.is_malformed:
        text = _MALFORMED_TEXT.format(name=call.tool, id=call.id)
    return ToolMessage(
        text,
        id=None if ai_message_id is None else f"{ai_message_id}:missing-result-{call.position}",
        name=call.tool or None,
        tool_call_id=call.id,
        status="error",
        additional_kwargs=mark("missing_result"),
    )


def pair(messages: Sequence[BaseMessage], answers: Mapping[str, str] = _UNKNOWN) -> Pairing:
    """Place the results of each AI message directly after it, one per call, in the order of the calls.

    Nothing else is reordered, and the input and its messages are not modified. Pairing a paired list changes nothing.

    The result is stable when the log grows: everything before the first generated result stays the beginning of the
    paired list. As long as the missing results do not arrive, the whole list does. Time is linear in the number of
    messages and calls. `answers` has the `result_id` of the call that each result answers, by the result's id, as far
    as it is known; "" for a result whose call is not in the list.

    >>> call = AIMessage("", id="m1", tool_calls=[{"name": "search", "args": {}, "id": "call_1"}])
    >>> late = ToolMessage("found", id="m3", tool_call_id="call_1")
    >>> paired = pair([call, AIMessage("Wait.", id="m2"), late])
    >>> [message.id for message in paired.messages], paired.indexes, paired.moved
    (['m1', 'm3', 'm2'], (0, 2, 1), ('m3',))
    >>> [message.id for message in pair([call]).messages], pair([call]).missing
    (['m1', 'm1:missing-result-0'], ('call_1',))
    >>> pair([call, late]).orphans, pair([call, late], {"m3": ""}).orphans
    ((), ('m3',))
    """
    if is_paired(messages) and "" not in answers.values():
        return Pairing(messages=list(messages), indexes=tuple(range(len(messages))))
    slots, orphans = fill_slots(messages, answers)
    paired: list[BaseMessage] = []
    indexes: list[int | None] = []
    missing: list[str] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            continue
        paired.append(message)
        indexes.append(index)
        for slot in slots.get(index, ()):
            indexes.append(slot.result)
            if slot.result is None:
                missing.append(slot.call.id)
                paired.append(missing_result(slot.call, ai_message_id=message.id))
            else:
                paired.append(messages[slot.result])
    return Pairing(
        messages=paired,
        indexes=tuple(indexes),
        missing=tuple(missing),
        orphans=tuple(_name(messages[index]) for index in orphans),
        moved=tuple(_name(messages[index]) for index in _moved_forward(indexes)),
    )


def without_orphans(
    messages: Sequence[BaseMessage],
    calls: Mapping[str, str] | None = None,
    answers: Mapping[str, str] = _UNKNOWN,
) -> list[BaseMessage]:
    r"""Return the messages, with results that answer no call among them shown as text of human messages.

    Such a text comes after the run of results that contained the result, because a call and its results must not be
    separated. It keeps the result's id and blocks such as images, and is marked
    ``{"convstore": {"kind": "late_result"}}``. All other messages are the same objects. The choice is stable: appending
    messages never turns a text into a result, or a result into a text. `calls` describes calls by the id of their
    result, if more than the tool's name is known; for `answers` see `pair`.

    >>> [message.text for message in without_orphans([ToolMessage("2 orcas", name="count", tool_call_id="x")])]
    ['[Result of an earlier call of count]\n2 orcas']
    """
    placed = set(pair(messages, answers).indexes)
    shown: list[BaseMessage] = []
    waiting: list[BaseMessage] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage) and index not in placed:
            waiting.append(
                _as_text(message, (calls or {}).get(message.id or "") or message.name or "a tool")
            )
            continue
        if not isinstance(message, ToolMessage):
            shown += waiting
            waiting = []
        shown.append(message)
    return shown + waiting


def _as_text(result: ToolMessage, call: str) -> HumanMessage:
    head = f"[Result of an earlier call of {call}]"
    content = result.content
    text: str | list[str | dict[Any, Any]] = f"{head}\n{content}"
    if not isinstance(content, str):
        text = [{"type": "text", "text": head}, *content]
    return HumanMessage(text, id=result.id, additional_kwargs=mark("late_result"))


_ARGUMENTS: Final = ("input", "args", "arguments", "action")


def arguments_of(message: BaseMessage) -> list[Any]:
    """Return the arguments of the calls that `calls_of` returns: a dict, the text of invalid arguments, or "".

    >>> arguments_of(AIMessage("", tool_calls=[{"name": "search", "args": {"q": "orca"}, "id": "call_1"}]))
    [{'q': 'orca'}]
    """
    if not isinstance(message, AIMessage):
        return []
    given: list[Any] = [call["args"] for call in message.tool_calls]
    given += [call["args"] or "" for call in message.invalid_tool_calls if all(_id_and_name(call))]
    blocks = [block_of(message, call.id) for call in calls_of(message)[len(given) :]]
    return given + [
        next((block[key] for key in _ARGUMENTS if key in block), "") for block in blocks
    ]


def calls_in_content(content: list[str | dict[Any, Any]]) -> Iterator[tuple[str, str]]:
    """Yield id and tool of each content block that describes a call of the client."""
    for block in map(inner_block, content):
        if call_id := called_in(block, CALL_BLOCKS):
            yield call_id, str(block.get("name") or "")


def called_in(block: Any, forms: Mapping[str, str] = CALL_FORMS) -> str | None:
    """Return the id of the call that a content block describes or repeats, "" without an id; None for other blocks.

    >>> called_in({"type": "tool_use", "id": "c1"}), called_in({"type": "tool_use"}), called_in("Hi")
    ('c1', '', None)
    """
    inner = inner_block(block)
    key = forms.get(str(inner.get("type")))
    if key is None:
        return None
    call_id = inner.get(key)
    return call_id if isinstance(call_id, str) else ""


def inner_block(block: Any) -> Mapping[str, Any]:
    """Return a block, or the block inside a wrapper of LangChain's standard content; {} for a text.

    LangChain wraps blocks that it does not define, such as OpenAI's computer_call.
    """
    if isinstance(block, dict) and block.get("type") == "non_standard":
        block = block.get("value")
    return block if isinstance(block, dict) else {}


def changed_block(block: Any, change: Callable[[dict[Any, Any]], Any]) -> Any:
    """Apply a function to a block, or to the block inside a wrapper of LangChain's standard content; not to a text."""
    if not isinstance(block, dict):
        return block
    if block.get("type") == "non_standard":
        return {**block, "value": changed_block(block.get("value"), change)}
    return change(block)


def changed_functions(
    kwargs: Mapping[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Apply a function to name and arguments of each raw call of Chat Completions in ``additional_kwargs``."""
    calls = kwargs.get("tool_calls")
    if not isinstance(calls, list):
        return dict(kwargs)
    changed: list[Any] = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            call = {**call, "function": change(function)}  # noqa: PLW2901
        changed.append(call)
    return {**kwargs, "tool_calls": changed}


def with_changes(message: _Message, update: Mapping[str, Any]) -> _Message:
    """Return a message with new values of some fields; the same object if all are equal."""
    changed = {name: value for name, value in update.items() if value != getattr(message, name)}
    return message.model_copy(update=changed) if changed else message


def block_of(message: BaseMessage, call_id: str) -> Mapping[str, Any]:
    """Return the content block that describes a call, {} without one.

    >>> block_of(AIMessage([{"type": "tool_use", "id": "c1", "name": "look"}]), "c1")["name"]
    'look'
    """
    content = message.content if isinstance(message.content, list) else ()
    for block in map(inner_block, content):
        if call_id and called_in(block, CALL_BLOCKS) == call_id:
            return block
    return {}


def is_paired(messages: Sequence[BaseMessage]) -> bool:
    """Return True for a list that `pair` leaves unchanged, in which each result follows its call and call ids differ.

    >>> is_paired([HumanMessage("Hi!"), AIMessage("Hello!")]), is_paired([ToolMessage("2", tool_call_id="x")])
    (True, False)
    """
    waiting: list[str] = []
    for message in messages:
        if type(message) not in _NO_RESULTS and isinstance(message, ToolMessage):
            if not waiting or waiting.pop() != message.tool_call_id:
                return False
        elif waiting:
            return False
        elif type(message) is not HumanMessage and (calls := calls_of(message)):
            waiting = [call.id for call in reversed(calls)]
            if len(waiting) > 1 and len(set(waiting)) < len(waiting):
                return False
    return not waiting


def fill_slots(
    messages: Sequence[BaseMessage], answers: Mapping[str, str] = _UNKNOWN
) -> tuple[dict[int, list[Slot]], list[int]]:
    """Assign each result to its call; return the slots by the index of their AI message, and indexes of orphans."""
    slots: dict[int, list[Slot]] = {}
    open_calls = OpenSlots(answers)
    orphans: list[int] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            is_lost = answers.get(message.id or "") == ""
            if is_lost or not open_calls.answer(message, index):
                orphans.append(index)
        elif own := slots_of(message):
            slots[index] = own
            open_calls.add(own)
    return slots, orphans


def slots_of(message: BaseMessage) -> list[Slot]:
    """Return the empty slots of a message, one for each call."""
    calls = calls_of(message)
    return list(map(Slot, calls, result_ids(message) if message.id else [""] * len(calls)))


def answers_in(messages: Sequence[BaseMessage]) -> dict[str, ToolMessage]:
    """Return the results among messages with ids, by the ids that `result_id` makes for their calls.

    >>> call = AIMessage("", tool_calls=[{"name": "add", "args": {}, "id": "c"}], id="a")
    >>> list(answers_in([call, ToolMessage("7", tool_call_id="c", id="r")])) == [result_id("a", "c")]
    True
    """
    slots, _ = fill_slots(messages)
    found: dict[str, ToolMessage] = {}
    for slot in chain.from_iterable(slots.values()):
        result = None if slot.result is None else messages[slot.result]
        if isinstance(result, ToolMessage):
            found[slot.own_id] = result
    return found


def _moved_forward(indexes: Sequence[int | None]) -> list[int]:
    """Return the indexes that come before a smaller one, in order: those of results that moved forward."""
    moved: list[int] = []
    smallest_after: int | None = None
    for index in reversed(indexes):
        if index is None:
            continue
        if smallest_after is None or index < smallest_after:
            smallest_after = index
        else:
            moved.append(index)
    return moved[::-1]


def _name(message: BaseMessage) -> str:
    return message.id or (message.tool_call_id if isinstance(message, ToolMessage) else "")
