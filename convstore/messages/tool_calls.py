"""Calls and results: makes any list of messages one that OpenAI, Anthropic and Gemini accept.

Layer 1, pure. The view asks it before a list goes to a model; the contract suite and the replay of the command line
check lists with it. Providers refuse a whole request over one call without a result, or one result without a call,
and real logs have both: a process died between call and result, a result came late, a retry answered twice, a model
used a call id again.

The rule: directly after each AI message with calls come exactly its results, one for each call, in the order of the
calls, and no tool message stands anywhere else. `pair` makes it true, `check_pairing` says where it is not.

- A result answers the latest AI message before it that has an unanswered call with its id; inside one AI message the
  calls are answered in order. So a call id may come again, as it does in real conversations.
- The first answer wins: a later one, and a result that stands before its call, is left out and named.
- A call that nobody answered gets a result that says so.
- Where calls may have left the list, under a summary or a note, `without_orphans` tells what came for them as text.

What stands before the first unanswered call never changes again, whatever is appended: the provider's prompt cache
lives on that. Legacy function messages carry no call id; they stay where they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.messages.provenance import mark

__all__ = [
    "MISSING_TEXT",
    "Call",
    "Pairing",
    "calls_of",
    "check_pairing",
    "has_calls",
    "missing_result",
    "pair",
    "without_orphans",
]

MISSING_TEXT: Final = "No result was recorded for this call."
"""What the result says that is made for a call that has none."""

# Content blocks that a provider takes for a call of the client, and the key of the call's id in them: Anthropic,
# LangChain's standard content, OpenAI Responses. Calls that the provider runs itself (`server_tool_use`,
# `mcp_tool_use`, `web_search_call`, ...) have their results in the same message and are not in the table.
_CALL_BLOCKS: Final = {
    "tool_use": "id",
    "tool_call": "id",
    "function_call": "call_id",
    "custom_tool_call": "call_id",
    "computer_call": "call_id",
}


class Call(NamedTuple):
    """One call of an AI message that a provider wants answered.

    Attributes:
        id: The tool call id; "" if the model gave none.
        tool: Name of the tool; "" if the message does not say.
        position: Place among the calls of its message, from 0; tells calls with the same id apart.
    """

    id: str
    tool: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """A valid list of messages and how it differs from the one that came in.

    Nothing differs exactly if `missing`, `orphans` and `moved` are all empty. Messages are named by their id; one
    without an id by its tool call id.

    Attributes:
        messages: The valid list; the same objects that came in, apart from the results made for missing ones.
        indexes: For each of `messages` its place in the list that came in; None for a result made here.
        missing: Tool call ids of the calls that got a result made here, in the order of `messages`.
        orphans: Tool messages left out, in the order they came: no unanswered call with their id stands before them.
        moved: Results put before a message that had come ahead of them, in the order of `messages`.
    """

    messages: list[BaseMessage]
    indexes: tuple[int | None, ...]
    missing: tuple[str, ...]
    orphans: tuple[str, ...]
    moved: tuple[str, ...]


@dataclass(slots=True)
class _Slot:
    """The place behind an AI message that waits for the result of one call."""

    call: Call
    result: int | None = None


def calls_of(message: BaseMessage) -> list[Call]:
    """Return the calls of a message that need a result, in the order their results must have.

    First `tool_calls`, then `invalid_tool_calls` (providers are sent both), then call blocks of the content that
    neither of them names: the provider that wrote such a block is sent it as it stands.

    A call in `tool_calls` without an id takes part with the id "". An invalid call without an id or a name does not:
    langchain-anthropic 1.7 leaves it out of the request, where a result for it would be the error.

    Args:
        message: Any message; only an AI message has calls.

    Returns:
        The calls; empty for every other message.

    >>> message = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "call_1"}])
    >>> calls_of(message)
    [Call(id='call_1', tool='search', position=0)]
    """
    if not isinstance(message, AIMessage):
        return []
    named = [(call.get("id") or "", call.get("name") or "") for call in message.tool_calls]
    for invalid in message.invalid_tool_calls:
        call_id, tool = invalid.get("id"), invalid.get("name")
        if call_id and tool:
            named.append((call_id, tool))
    if isinstance(message.content, list):
        # A dict, not a set: a call that two blocks describe is one call, and the order stays.
        in_content = dict(_calls_in_content(message.content))
        listed = {call_id for call_id, _ in named}
        named.extend((call_id, tool) for call_id, tool in in_content.items() if call_id not in listed)
    return [Call(call_id, tool, position) for position, (call_id, tool) in enumerate(named)]


def has_calls(message: BaseMessage) -> bool:
    """Tell whether a message has a call that needs a result.

    >>> has_calls(AIMessage("The answer is 4."))
    False
    """
    return bool(calls_of(message))


def missing_result(call: Call, *, ai_message_id: str | None) -> ToolMessage:
    """Make the result for a call that has none; the same arguments give the same bytes.

    Args:
        call: The call, as `calls_of` gives it.
        ai_message_id: Id of the message with the call. The result's own id is made from it and the call's position,
            so that two calls with the same call id get different messages; without it the result has no id either.

    Returns:
        A tool message with status "error", marked ``{"convstore": {"kind": "missing_result"}}``.

    >>> result = missing_result(Call("call_1", "search", 0), ai_message_id="m7")
    >>> result.id, result.name, result.tool_call_id, result.status
    ('m7:missing-result-0', 'search', 'call_1', 'error')
    """
    return ToolMessage(
        MISSING_TEXT,
        id=None if ai_message_id is None else f"{ai_message_id}:missing-result-{call.position}",
        name=call.tool or None,
        tool_call_id=call.id,
        status="error",
        additional_kwargs=mark("missing_result"),
    )


def pair(messages: Sequence[BaseMessage]) -> Pairing:
    """Put directly after each AI message with calls exactly its results, one for each call, in the calls' order.

    Nothing else is reordered; the list and its messages are never changed. Pairing a paired list changes nothing.

    Stable: of the paired prefix of a log, everything before the first result made for a missing one also begins the
    paired log. If none of the missing results comes later, the whole paired prefix does. Time is linear in the number
    of messages and calls.

    Args:
        messages: Any messages in the order of the log.

    Returns:
        The valid list and what was done to make it.

    >>> call = AIMessage("", id="m1", tool_calls=[{"name": "search", "args": {}, "id": "call_1"}])
    >>> late = ToolMessage("found", id="m3", tool_call_id="call_1")
    >>> paired = pair([call, AIMessage("Wait.", id="m2"), late])
    >>> [message.id for message in paired.messages], paired.indexes, paired.moved
    (['m1', 'm3', 'm2'], (0, 2, 1), ('m3',))
    >>> [message.id for message in pair([call]).messages], pair([call]).missing
    (['m1', 'm1:missing-result-0'], ('call_1',))
    """
    slots, orphans = _fill_slots(messages)
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


def without_orphans(messages: Sequence[BaseMessage], calls: Mapping[str, str] | None = None) -> list[BaseMessage]:
    r"""The messages in order, those results that answer no call among them as text of a human message.

    Such a text stands behind the run of results in which the result came, since nothing may stand between a call and
    its results. It keeps the id of the result, and blocks such as images, and is marked
    ``{"convstore": {"kind": "late_result"}}``. All other messages are the same objects. Stable: whatever is appended,
    a text stays a text, and a result a result.

    Args:
        messages: Any messages in the order of the log.
        calls: By id of a result what is known of its call, where that is more than the tool's name.

    >>> [message.text for message in without_orphans([ToolMessage("2 orcas", name="count", tool_call_id="x")])]
    ['[Result of an earlier call of count]\n2 orcas']
    """
    answers = set(pair(messages).indexes)
    shown: list[BaseMessage] = []
    waiting: list[BaseMessage] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage) and index not in answers:
            waiting.append(_as_text(message, (calls or {}).get(message.id or "") or message.name or "a tool"))
            continue
        if not isinstance(message, ToolMessage):
            shown += waiting
            waiting = []
        shown.append(message)
    return shown + waiting


def check_pairing(messages: Sequence[BaseMessage]) -> list[str]:
    """Say where a list breaks the rule of this module; an empty answer means that it nowhere does.

    Shares only `calls_of` with `pair`, so that each can test the other.

    Args:
        messages: The list as it would go to a model.

    Returns:
        One sentence for each violation, with the index of the message, in order.

    >>> check_pairing([ToolMessage("found", tool_call_id="call_1")])
    ["message 0: the result for 'call_1' answers no call of the AI message directly before it"]
    """
    problems: list[str] = []
    for head, calls, results in _runs(messages):
        owed = Counter(calls)
        owner = f"message {head}: the call "
        before = len(problems)
        for offset, call_id in enumerate(results, start=1):
            if owed[call_id] > 0:
                owed[call_id] -= 1
            else:
                stray = f"message {head + offset}: the result for {call_id!r}"
                problems.append(f"{stray} answers no call of the AI message directly before it")
        problems.extend(f"{owner}{call_id!r} has no result directly behind it" for call_id in owed.elements())
        if len(problems) == before and results != calls:
            problems.append(f"message {head}: its results stand in the order {results}, its calls in {calls}")
    return problems


def _as_text(result: ToolMessage, call: str) -> HumanMessage:
    head, said = f"[Result of an earlier call of {call}]", result.content
    text = f"{head}\n{said}" if isinstance(said, str) else [{"type": "text", "text": head}, *said]
    return HumanMessage(text, id=result.id, additional_kwargs=mark("late_result"))


def _calls_in_content(content: list[str | dict[Any, Any]]) -> Iterator[tuple[str, str]]:
    for block in content:
        inner: Any = block
        if isinstance(block, dict) and block.get("type") == "non_standard":
            # So LangChain's standard content wraps what it has no name for, such as OpenAI's computer_call.
            inner = block.get("value")
        if isinstance(inner, dict):
            key = _CALL_BLOCKS.get(str(inner.get("type")))
            call_id = inner.get(key) if key else None
            if isinstance(call_id, str) and call_id:
                yield call_id, str(inner.get("name") or "")


def _fill_slots(messages: Sequence[BaseMessage]) -> tuple[dict[int, list[_Slot]], list[int]]:
    """Give each result its call: the slots behind each AI message, by its index, and the results with no call."""
    slots: dict[int, list[_Slot]] = {}
    # The top of a stack is the first open call of the latest message; so no result ever searches.
    unanswered: defaultdict[str, list[_Slot]] = defaultdict(list)
    orphans: list[int] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if waiting := unanswered.get(message.tool_call_id):
                waiting.pop().result = index
            else:
                orphans.append(index)
        elif calls := calls_of(message):
            slots[index] = [_Slot(call) for call in calls]
            for slot in reversed(slots[index]):
                unanswered[slot.call.id].append(slot)
    return slots, orphans


def _moved_forward(indexes: Sequence[int | None]) -> list[int]:
    """Return the indexes that stand before a smaller one, in their order.

    Only results ever do, and where none does the order is the old one. A message that was merely passed is not moved.
    """
    moved: list[int] = []
    smallest_behind: int | None = None
    for index in reversed(indexes):
        if index is None:
            continue
        if smallest_behind is None or index < smallest_behind:
            smallest_behind = index
        else:
            moved.append(index)
    return moved[::-1]


def _name(message: BaseMessage) -> str:
    return message.id or (message.tool_call_id if isinstance(message, ToolMessage) else "")


def _runs(messages: Sequence[BaseMessage]) -> Iterator[tuple[int, list[str], list[str]]]:
    """Cut a list before each message that is no result: its index, its calls' ids, the ids answered behind it."""
    head, calls, results = -1, list[str](), list[str]()
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            results.append(message.tool_call_id)
        else:
            yield head, calls, results
            head, calls, results = index, [call.id for call in calls_of(message)], []
    yield head, calls, results
