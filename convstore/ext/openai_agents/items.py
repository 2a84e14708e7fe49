"""Convert items of the Agents SDK to messages and `LogItem`s of the log, and back to the same items.

The items of one answer become one AI message, so that parallel calls are in one message. An item that cannot be a
message becomes a `LogItem`. Calls of shell, apply_patch and computer tools become tool calls, their outputs tool
results. A message keeps its items in ``additional_kwargs``, with references to the long texts in its content.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, Literal, TypeAlias
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.exceptions import InvalidMessageError
from convstore.integration import is_answer_item, normalize_messages
from convstore.messages.text import text_of
from convstore.types import History, LogItem, OpenAIMessages, ProviderRules
from convstore.values.scope import id_problem
from convstore.wire.exact import with_references, without_references
from convstore.wire.steps import role_of

Item: TypeAlias = dict[str, Any]
KIND: Final = "openai."  # the prefix of the kinds of `LogItem`s
_KEPT: Final = "openai_agents"  # the key of the items in `additional_kwargs`
_PROMPTS: Final = ("developer", "system", "user")
_FAKE_ID: Final = "__fake_id__"  # the id of all items of a model that does not make ids
_COMPACTION: Final = "compaction"
"""Type of an item with the encrypted history before it. It becomes a `LogItem`, not a part of a message."""

_CALLS: Final = frozenset({"apply_patch_call", "computer_call", "local_shell_call", "shell_call"})
"""Types of the built-in calls that the client runs; the type of each output is that of the call with ``_output``."""
_NOT_ARGUMENTS: Final = frozenset({"call_id", "id", "status", "type"})


def to_log(items: Sequence[Item], seed: str) -> list[BaseMessage | LogItem]:
    """Return the messages and `LogItem`s of items, in order. Ids are derived from the seed, position and content."""
    made: list[BaseMessage | LogItem] = []
    position = 0
    while position < len(items):
        group = [*takewhile(_is_answer, items[position:])] or [items[position]]
        message = _message(group)
        if message is None:  # one item of the group cannot be part of a message
            group = group[:1]
            message = _message(group)
        logged = message or LogItem(kind=f"{KIND}{group[0].get('type') or 'item'}", data=group[0])
        logged.id = digest_of([seed, position, group])
        made.append(logged)
        position += len(group)
    return made


def digest_of(value: Any) -> str:
    """Return an id that is derived from a value; equal values have equal ids."""
    return str(uuid5(NAMESPACE_OID, json.dumps(value, default=str)))


def items_of(message: BaseMessage) -> list[Item] | None:
    """Return the items that a message was made of; None if it has none, or if they do not match its content."""
    try:
        items: list[Item] = without_references(message.additional_kwargs[_KEPT], message)["items"]
        read = _message(items)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    return items if read and _content_of(read) == _content_of(message) else None


def converted(messages: Sequence[BaseMessage]) -> OpenAIMessages:
    """Return messages of another API as items; the first messages may be results of earlier calls."""
    items: list[Item] = []
    while len(items) < len(messages) and isinstance(result := messages[len(items)], ToolMessage):
        items.append(
            {"type": "function_call_output", "call_id": result.tool_call_id, "output": result.text}
        )
    rest = History(messages=[*messages[len(items) :]]).to_openai(api="responses")
    return OpenAIMessages([*items, *rest], rest.dropped)


def of_view(messages: Sequence[BaseMessage], rules: ProviderRules) -> OpenAIMessages:
    """Return a view as items by the rules of the model's provider.

    A prompt that was added as an item without a type is returned without a type, unless the rules insert messages.
    """
    # The run will ask the next question, so reasoning before it is left out.
    view = History(messages=[*messages, HumanMessage("?")])
    found = view.to_openai(api="responses", provider=rules)
    del found[-1]
    prompts = [item for item in found if item.get("role") in _PROMPTS]
    added = [each for each in messages if _is_prompt(each)]
    if len(prompts) == len(added):
        for item, message in zip(prompts, added, strict=True):
            _shape_like(item, items_of(message))
    return found


def _is_prompt(message: BaseMessage) -> bool:
    return not isinstance(message, ToolMessage) and role_of(message) != "assistant"


def _shape_like(item: Item, kept: Sequence[Item] | None) -> None:
    """Remove the type of an item if the item that was added had none."""
    if kept and "type" not in kept[0]:
        del item["type"]


def _is_answer(item: Item) -> bool:
    return _is_call(item) or (is_answer_item(item) and item["type"] != _COMPACTION)


def _is_call(item: Item) -> bool:
    """Return True for a built-in call that the client runs."""
    return item.get("type") in _CALLS and isinstance(_call_id(item), str)


def _call_id(item: Item) -> Any:
    """Return the id of a call, or of the call that an output answers; some outputs of shells only have an `id`."""
    return item.get("call_id") or item.get("id")


def _is_output(item: Item) -> bool:
    kind = str(item.get("type"))
    is_known = kind.removesuffix("_output") in _CALLS and kind.endswith("_output")
    has_result = "output" in item or isinstance(item.get("status"), str)
    return is_known and has_result and isinstance(_call_id(item), str)


def _with_calls(message: AIMessage, calls: Sequence[Item]) -> AIMessage:
    """Return an answer with these built-in calls added after its other calls."""
    made: list[Any] = list(message.tool_calls)
    for item in calls:
        name = item["type"].removesuffix("_call")
        arguments = {key: value for key, value in item.items() if key not in _NOT_ARGUMENTS}
        made.append({"name": name, "args": arguments, "id": _call_id(item), "type": "tool_call"})
    return message.model_copy(update={"tool_calls": made})


def _result(item: Item) -> ToolMessage:
    """Return the tool result of a built-in call's output: its text, the picture of a screen, or else its status."""
    output = item.get("output")
    content: Any = text_of(output or item.get("status") or "")
    url = output.get("image_url") if isinstance(output, dict) else None
    if isinstance(url, str):
        content = [{"type": "image_url", "image_url": {"url": url}}]
    name = item["type"].removesuffix("_call_output")
    status: Literal["error", "success"] = "error" if item.get("status") == "failed" else "success"
    return ToolMessage(content, tool_call_id=str(_call_id(item)), name=name, status=status)


def _message(group: list[Item]) -> BaseMessage | None:
    """Return the message of one item or of an answer's items; None if they cannot be a message."""
    if not group or not all(map(_is_answer, group[1:])) or group[0].get("type") == _COMPACTION:
        return None
    try:
        message = _message_of(group)
    except (InvalidMessageError, ValueError):
        return None
    message.additional_kwargs[_KEPT] = with_references({"items": group}, message)
    if isinstance(message, AIMessage) and (model := _model_in(group)):
        message.response_metadata = {**message.response_metadata, "model_name": model}
    return message


def _model_in(group: Sequence[Item]) -> str:
    """Return the model that is named in items of LiteLLM or any-llm; "" without a name."""
    for item in group:
        data = item.get("provider_data")
        model = data.get("model") if isinstance(data, dict) else None
        if isinstance(model, str):
            return model
    return ""


def _message_of(group: Sequence[Item]) -> BaseMessage:
    """Return the message of items.

    Raises:
        InvalidMessageError: They cannot be a message.
        ValueError: They are more than one message.
    """
    if _is_output(group[0]):
        return _result(group[0])
    calls = [item for item in group if _is_call(item)]
    rest = [_without_fake_ids(item) for item in group if not _is_call(item)]
    message: BaseMessage = AIMessage("")
    if rest:
        [message] = normalize_messages(rest)
    return _with_calls(message, calls) if isinstance(message, AIMessage) and calls else message


def _without_fake_ids(item: Item) -> Item:
    """Return an item without a made-up id, in the form for `normalize_messages`: a message's id is on its texts."""
    own = item.get("id")
    content = item.get("content")
    rest = {key: value for key, value in item.items() if key != "id"}
    if own == _FAKE_ID or id_problem(own) or not is_answer_item(item):
        return rest
    if item["type"] != "message":
        return item
    if isinstance(content, list):
        content = [{**block, "id": own} for block in content]
    return {**rest, "content": content}


def _content_of(message: BaseMessage) -> tuple[Any, ...]:
    calls = [
        getattr(message, name, None)
        for name in ("tool_calls", "invalid_tool_calls", "tool_call_id")
    ]
    return type(message), message.content, calls, message.additional_kwargs.get("__openai_role__")
