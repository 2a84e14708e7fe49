"""Rewrite tool call ids into the form that a provider accepts, or so that each is unique in its message.

Providers reject each other's ids by length, character or prefix. A template describes the ids that fit. An id that does
not fit is replaced in its message and in the call's result.

New ids are derived from the old id and the call's position, without randomness, so the same chain always gets the same
ids. Calls of an AI message with an id get the same new ids at any position in any list. So a result that is returned
with a new id can be matched to its call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from langchain_core.messages import AIMessage, BaseMessage, InvalidToolCall, ToolMessage

from convstore.exceptions import InvalidInputError
from convstore.messages.tool_calls import Call, calls_of, changed_block, with_changes
from convstore.values.call_id_templates import CallIdTemplate

_ATTEMPTS: Final = 1000
_GEMINI_MAP: Final = "__gemini_function_call_thought_signatures__"


@dataclass(slots=True)
class NewIds:
    """Assigns ids to the calls of a chain; two calls never get the same new id.

    Attributes:
        template: The template of new ids.
        taken: Ids in use.
        seen: Number of occurrences of each old id in messages without an id.
        unique: True if only the first call with an id keeps it.
        any_form: True to keep also ids that do not fit the template, except empty ones.
    """

    template: CallIdTemplate
    taken: set[str] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    unique: bool = False
    any_form: bool = False

    def give(self, call: Call, message: BaseMessage) -> str:
        """Return the id of a call of a message if it can be kept, else a new one derived from it."""
        # Calls with the same id are distinguished by message and position, or by a running count.
        self.seen[call.id] += not message.id
        key = f"{message.id}\0{call.position}" if message.id else str(self.seen[call.id])
        return call.id if self.keeps(call) else self.make(call.id, tool=call.tool, key=key)

    def keeps(self, call: Call) -> bool:
        """Return True if a call keeps its id; then the id counts as used."""
        is_kept = bool(call.id) if self.any_form else self.template.fits(call.id, tool=call.tool)
        if self.unique and is_kept:
            is_kept = call.id not in self.taken
            self.taken.add(call.id)
        return is_kept

    def make(self, call_id: str, *, tool: str, key: str) -> str:
        """Return a unique id derived from another id and its key.

        Raises:
            InvalidInputError: The template has too few ids.
        """
        for attempt in range(_ATTEMPTS):
            made = self.template.make("\0".join((call_id, key, str(attempt))), tool=tool)
            if made not in self.taken:
                self.taken.add(made)
                return made
        raise InvalidInputError(
            f"{self.template.template!r} has too few ids for this chain; make it longer"
        )


def rename_calls(
    ai: AIMessage, results: Sequence[ToolMessage], ids: NewIds
) -> tuple[AIMessage, tuple[ToolMessage, ...]]:
    """Return a message and its results with ids that fit; unchanged messages are the same objects.

    It replaces the id in `tool_calls`, `invalid_tool_calls`, the chunks of a stream, content blocks and
    `additional_kwargs`. Calls that share an id get different new ids, in the order of the calls. Their results get them
    in the order of the results.
    """
    renamed: dict[str, list[str]] = defaultdict(list)
    for call in calls_of(ai):
        renamed[call.id].append(ids.give(call, ai))
    if all(new == old for old, all_new in renamed.items() for new in all_new):
        return ai, tuple(results)
    next_of = _Renaming(renamed)
    answers = tuple(
        with_changes(result, {"tool_call_id": next_of(result.tool_call_id)}) for result in results
    )
    return _rename_in(ai, renamed), answers


_UNIQUE: Final = CallIdTemplate("call_{r:24:x}")


def with_own_call_ids(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages, with calls whose ids are unique in their AI message.

    Some servers with OpenAI's API leave the ids of calls empty, or give several calls of a message the same id. Their
    results could not be distinguished, and providers reject a result without a call id.

    Changed messages are copies, the others the same objects. A new id is derived from the id of the AI message and the
    call's position, so it is always the same. Results after their AI message get the ids of its calls, in order.

    >>> both = AIMessage("", id="ai", tool_calls=[{"name": "look", "args": {}, "id": ""}] * 2)
    >>> ai, one, other = with_own_call_ids([both, *(ToolMessage(text, tool_call_id="") for text in "ab")])
    >>> [call["id"] for call in ai.tool_calls] == [one.tool_call_id, other.tool_call_id]
    True
    >>> one.tool_call_id == other.tool_call_id or "" in (one.tool_call_id, other.tool_call_id)
    False
    """
    own: list[BaseMessage] = []
    answers: list[ToolMessage] = []
    for index, message in enumerate(messages):
        if isinstance(message, AIMessage):
            later = takewhile(lambda item: not isinstance(item, AIMessage), messages[index + 1 :])
            ai, renamed = _with_unique_ids(
                message, [result for result in later if isinstance(result, ToolMessage)]
            )
            own.append(ai)
            answers = list(renamed)
        else:
            own.append(answers.pop(0) if answers and isinstance(message, ToolMessage) else message)
    return own


def _with_unique_ids(
    ai: AIMessage, results: list[ToolMessage]
) -> tuple[AIMessage, tuple[ToolMessage, ...]]:
    ids = NewIds(_UNIQUE, unique=True, any_form=True)
    # `rename_calls` ignores an invalid call without an id, but LangChain answers it under the empty id.
    invalid: list[InvalidToolCall] = []
    for at, call in enumerate(ai.invalid_tool_calls):
        named = call.copy()
        if call.get("id") == "":
            named["id"] = ids.make("", tool="", key=f"{ai.id}\0invalid {at}")
        invalid.append(named)
    if invalid != ai.invalid_tool_calls:
        ai = ai.model_copy(update={"invalid_tool_calls": invalid})
    return rename_calls(ai, results, ids)


class _Renaming:
    """Returns the new ids of an old id one after another, and then repeats the last one."""

    def __init__(self, renamed: dict[str, list[str]]) -> None:
        self._unused = {old: list(new) for old, new in renamed.items()}

    def __call__(self, call_id: Any) -> Any:
        unused = self._unused.get(call_id or "") if isinstance(call_id, str | None) else None
        if not unused:
            return call_id
        return unused.pop(0) if len(unused) > 1 else unused[0]

    def in_all(self, calls: Sequence[Any], *keys: str) -> list[Any]:
        """Replace the id of each call or block under the first key with a renamed id."""

        def renamed(call: dict[Any, Any]) -> dict[Any, Any]:
            key = next((key for key in keys if self._is_renamed(call, key)), None)
            return {**call, key: self(call.get(key))} if key else call

        return [changed_block(call, renamed) for call in calls]

    def _is_renamed(self, call: dict[str, Any], key: str) -> bool:
        value = call.get(key)
        if value is None:  # the model made this call without an id
            return key == "id" and key in call and "args" in call and "" in self._unused
        return isinstance(value, str) and value in self._unused


def _rename_in(ai: AIMessage, renamed: dict[str, list[str]]) -> AIMessage:
    listed = _Renaming(renamed)
    update: dict[str, Any] = {"tool_calls": listed.in_all(ai.tool_calls, "id")}
    # Providers ignore an invalid call without an id; with an id they would require a result for it.
    update["invalid_tool_calls"] = [
        call if not call.get("id") else listed.in_all([call], "id")[0]
        for call in ai.invalid_tool_calls
    ]
    if chunks := getattr(ai, "tool_call_chunks", None):
        update["tool_call_chunks"] = _Renaming(renamed).in_all(chunks, "id")
    if isinstance(ai.content, list):
        # `call_id` before `id`, because in OpenAI Responses blocks `id` identifies the block.
        update["content"] = _Renaming(renamed).in_all(ai.content, "call_id", "id", "tool_call_id")
    update["additional_kwargs"] = _rename_in_kwargs(ai.additional_kwargs, renamed)
    return with_changes(ai, update)


def _rename_in_kwargs(kwargs: dict[str, Any], renamed: dict[str, list[str]]) -> dict[str, Any]:
    update: dict[str, Any] = {}
    if isinstance(calls := kwargs.get("tool_calls"), list):
        update["tool_calls"] = _Renaming(renamed).in_all(calls, "id")
    if isinstance(signatures := kwargs.get(_GEMINI_MAP), dict):
        next_of = _Renaming(renamed)
        update[_GEMINI_MAP] = {
            next_of(call_id): signature for call_id, signature in signatures.items()
        }
    return {**kwargs, **update}
