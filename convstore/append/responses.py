"""Read the items of OpenAI's Responses API: all items of an answer become one AI message, a result a tool message.

An item of an unknown type becomes a block of the answer, because OpenAI adds types without notice. Only items that the
client has to answer with another item than a function's output are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, TypeAlias

from convstore.append.fields import check_call_id, check_text, check_type
from convstore.exceptions import InvalidMessageError
from convstore.messages.media import block_type

_Fields: TypeAlias = dict[str, Any]

OF_SDK: Final = frozenset({"parsed", "parsed_arguments"})
"""Fields that OpenAI's SDK adds to a reply that it parses; the API does not accept them in a request."""

OUTPUTS: Final = frozenset({"custom_tool_call_output", "function_call_output"})
"""Items with the result of a call."""

_CALLS: Final = {
    "function_call": ("function", "arguments"),
    "custom_tool_call": ("custom", "input"),
}
_HOSTED: Final = frozenset(
    {
        "code_interpreter_call",
        "compaction",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Items of tools that the provider runs."""

_REFUSED: Final = frozenset(
    {
        "apply_patch_call",
        "apply_patch_call_output",
        "computer_call",
        "computer_call_output",
        "item_reference",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "shell_call",
        "shell_call_output",
    }
)
"""Items that the client answers with other items than `function_call_output`, and references to stored items."""

_OF_LANGCHAIN: Final = frozenset(
    {"ai", "chat", "constructor", "developer", "function", "human", "remove", "system", "tool"}
)
_OF_RESPONSES: Final = frozenset({"output_text", "refusal"})
TEXTS: Final = frozenset({"input_text", "output_text"})
_LEFT_OUT: Final = OF_SDK | {"status"}
_NOT_OF_MESSAGE: Final = frozenset({"content", "id", "phase", "role", "status", "type"})


def is_answer_item(value: Mapping[str, Any]) -> bool:
    """Return True for an item of a model's answer whose type is known."""
    kind = value.get("type")
    if kind == "message":
        return value.get("role") == "assistant" and not is_of_anthropic(value)
    if "role" in value or not isinstance(kind, str) or is_refused(value):
        return False
    return kind == "reasoning" or kind in _CALLS or kind in _HOSTED


def may_be_item(value: Any) -> bool:
    """Return True for a dict of an unknown type, which is an item of an answer if it is next to another item."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or "role" in value or is_refused(value):
        return False
    is_known = kind in OUTPUTS or kind in _OF_LANGCHAIN or kind.endswith("MessageChunk")
    return kind != "message" and not is_known


def is_refused(value: Mapping[str, Any]) -> bool:
    """Return True for an item that is not supported: the client answers it in another way, or it is a reference."""
    kind = value.get("type")
    is_of_client = kind in ("tool_search_call", "tool_search_output") and (
        value.get("execution") == "client"
    )
    return is_of_client or (isinstance(kind, str) and kind in _REFUSED)


def refusal(value: Mapping[str, Any], *, index: int, field: str = "type") -> InvalidMessageError:
    """Return the error for an item that is refused."""
    problem = (
        f"{value['type']!r} of OpenAI's Responses API, which the client answers in a way of its "
        "own, is not supported; append the AIMessage of langchain-openai"
    )
    return InvalidMessageError(problem, index=index, field=field)


def is_of_anthropic(value: Mapping[str, Any]) -> bool:
    """Return True for an answer of Anthropic's API: it has fields of a whole response, or blocks of that API."""
    content = value.get("content")
    types = {block_type(block) for block in content} if isinstance(content, list) else set()
    return "stop_reason" in value or "usage" in value or bool(types - _OF_RESPONSES)


def with_text_blocks(content: Any) -> Any:
    """Return content with text blocks of OpenAI's Responses API as blocks of type `text`."""
    if not isinstance(content, list):
        return content
    return [_text(block) if block_type(block) in TEXTS else block for block in content]


def _text(block: Mapping[str, Any]) -> _Fields:
    made = {**block, "type": "text"}
    return {key: part for key, part in made.items() if part != [] and key not in OF_SDK}


def output_of(value: Mapping[str, Any], *, index: int) -> _Fields:
    """Return the tool message of a result."""
    check_text(value.get("call_id"), field="call_id", index=index)
    check_type(value.get("output"), str, list, field="output", index=index)
    left_out = ("type", "call_id", "output", "status")
    others = {key: part for key, part in value.items() if key not in left_out}
    return {
        **others,
        "role": "tool",
        "tool_call_id": value["call_id"],
        "content": with_text_blocks(value["output"]),
    }


class AnswerItems:
    """Adjacent items of one answer of the model, which become one AI message."""

    def __init__(self, index: int, *, response_id: Any = None) -> None:
        self.index = index
        self._response_id = response_id
        self._id: Any = None
        self._content: list[Any] = []
        self._calls: list[_Fields] = []
        self._others: _Fields = {}

    def add(self, item: Mapping[str, Any], *, index: int) -> None:
        """Add one item: a message adds its blocks, any other item is added as a block."""
        own = item.get("id")
        if own and (self._id is None or item["type"] == "message"):
            self._id = own
        if item["type"] == "message":
            self._add_message(item, index=index)
            return
        if item["type"] in _CALLS:
            self._add_call(item, index=index)
        # "incomplete" is the only status to keep.
        left_out = OF_SDK if item.get("status") == "incomplete" else _LEFT_OUT
        self._content.append({key: part for key, part in item.items() if key not in left_out})

    def _add_message(self, item: Mapping[str, Any], *, index: int) -> None:
        content = item.get("content")
        check_type(content, str, list, field="content", index=index)
        blocks = with_text_blocks(content) if isinstance(content, list) else [_plain(content)]
        phase = {"phase": item["phase"]} if item.get("phase") else {}
        self._content += [
            {**block, **phase} if isinstance(block, dict) else block for block in blocks
        ]
        self._others |= {key: item[key] for key in item.keys() - _NOT_OF_MESSAGE}

    def _add_call(self, item: Mapping[str, Any], *, index: int) -> None:
        check_call_id(item, "call_id", field="call_id", index=index)
        check_text(item.get("name"), field="name", index=index)
        part, key = _CALLS[item["type"]]
        check_type(item.get(key), str, NoneType, field=key, index=index)
        body = {"name": item["name"], key: item.get(key)}
        self._calls.append({"id": item.get("call_id"), "type": part, part: body})

    def message(self) -> _Fields:
        """Return the message in OpenAI's chat format."""
        own = self._id or self._response_id
        message = {**self._others, "role": "assistant", "content": self._content, "id": own}
        return message | ({"tool_calls": self._calls} if self._calls else {})


def _plain(text: Any) -> _Fields:
    return {"type": "text", "text": text}
