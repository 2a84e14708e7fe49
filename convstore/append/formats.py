"""Convert messages of other formats to LangChain messages or OpenAI's chat format.

It supports LangChain's own dicts (``message_to_dict``, ``model_dump``), messages of Anthropic's API with ``tool_use``
and ``tool_result`` blocks, items of OpenAI's Responses API, and the whole responses of the three APIs. The result
equals that of LangChain's integrations: calls are in ``tool_calls`` and stay in the content, each result is a tool
message of its own, and provider, model and stop reason of a whole response are in ``response_metadata``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import NAMESPACE_OID, uuid5

from langchain_core.messages import BaseMessage, messages_from_dict
from pydantic import ValidationError

from convstore.append.fields import check_text, check_type
from convstore.exceptions import InvalidMessageError
from convstore.messages.media import block_type
from convstore.messages.text import text_of
from convstore.values.json_form import has_few_levels, valid_text
from convstore.values.scope import id_problem

_Fields: TypeAlias = dict[str, Any]

_OUTPUTS: Final = {"function_call_output", "custom_tool_call_output"}
_CALLS: Final = {
    "function_call": ("function", "arguments"),
    "custom_tool_call": ("custom", "input"),
}
# Items of tools that the provider runs are blocks of the AI message.
_HOSTED: Final = frozenset(
    {
        *(
            "web_search_call",
            "file_search_call",
            "code_interpreter_call",
            "image_generation_call",
            "compaction",
        ),
        *(
            "mcp_call",
            "mcp_list_tools",
            "tool_search_call",
            "tool_search_output",
            "program",
            "program_output",
        ),
    }
)
# Items that the client answers by others than `function_call_output`, and references to what OpenAI stored.
_REFUSED: Final = frozenset(
    {
        *(
            "apply_patch_call",
            "apply_patch_call_output",
            "computer_call",
            "computer_call_output",
            "item_reference",
        ),
        *(
            "local_shell_call",
            "local_shell_call_output",
            "mcp_approval_request",
            "mcp_approval_response",
        ),
        *("shell_call", "shell_call_output"),
    }
)
_WHOLE: Final = {"chat.completion": "choices", "response": "output"}
_MOVED_FIELDS: Final = ("model", "stop_reason", "stop_sequence", "finish_reason")
_OF_RESPONSES: Final = frozenset({"output_text", "refusal"})
_TEXTS: Final = frozenset({"input_text", "output_text"})
_CALL_BLOCKS: Final = {"tool_use": "input", "tool_call": "args"}


class Item(NamedTuple):
    """A message to normalise, and its index in the caller's batch."""

    position: int
    value: Any


def read_items(batch: Iterable[Any]) -> list[Item]:
    """Return the items of a batch, with dicts of other formats as LangChain messages or OpenAI-format dicts.

    One dict with several results becomes a message for each. Adjacent items of one response of OpenAI's Responses API
    become one AI message.

    Raises:
        InvalidMessageError: An item of a supported format cannot be read, or its kind is not supported.

    >>> result = {"type": "tool_result", "tool_use_id": "c1", "content": "4"}
    >>> [item.value for item in read_items([{"role": "user", "content": [result]}])]
    [{'role': 'tool', 'tool_call_id': 'c1', 'content': '4', 'status': 'success'}]
    """
    items: list[Item] = []
    response: _Response | None = None
    for index, value in enumerate(batch):
        if isinstance(value, Mapping) and is_answer_item(value):
            response = response or _Response(index)
            response.add(value, index=index)
            continue
        items += _items_of(response)
        response = None
        items += [Item(index, part) for part in _read(value, index=index)]
    return items + _items_of(response)


def is_langchain(raw: Mapping[str, Any]) -> bool:
    """Return True for a dict that LangChain wrote: it names the type of a message, but no role."""
    return "type" in raw and ("role" not in raw or raw["type"] == "chat")


def from_langchain(raw: Mapping[str, Any]) -> BaseMessage:
    """Return the message of a dict that ``message_to_dict`` or ``model_dump`` wrote.

    Any other dict raises an error that depends on what is wrong: ValueError, KeyError, TypeError or AttributeError. No
    class is loaded by its name.
    """
    data = raw.get("data")
    if not isinstance(data, dict):
        data = {name: value for name, value in raw.items() if name != "type"}
    [message] = messages_from_dict([{"type": raw["type"], "data": copied(dict(data))}])
    return message


def field_error(error: ValidationError, *, index: int) -> InvalidMessageError:
    """Return the error for a message that LangChain rejects, with its first problem."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    problem = f"LangChain refuses it ({first['msg']}); correct this field"
    return InvalidMessageError(problem, index=index, field=field.removeprefix("."))


def without_input(error: ValidationError) -> ValidationError:
    """Return the same error without the values that were refused: a traceback shows causes, and these are contents."""
    details: Any = error.errors(include_url=False)
    return ValidationError.from_exception_data(error.title, details, hide_input=True)


def is_answer_item(value: Mapping[str, Any]) -> bool:
    """Return True for an item of a model's answer through OpenAI's Responses API."""
    kind = value.get("type")
    if kind == "message":
        return value.get("role") == "assistant" and not _is_of_anthropic(value)
    return (
        "role" not in value
        and isinstance(kind, str)
        and (kind == "reasoning" or kind in _CALLS or kind in _HOSTED)
    )


def _is_of_anthropic(value: Mapping[str, Any]) -> bool:
    """Return True for an answer of a model through Anthropic's API, which has fields of a whole response."""
    content = value.get("content")
    types = {block_type(block) for block in content} if isinstance(content, list) else set()
    return "stop_reason" in value or "usage" in value or bool(types - _OF_RESPONSES)


def _read(value: Any, *, index: int) -> list[Any]:
    """Return an item as one or more LangChain messages or OpenAI-format dicts."""
    if not isinstance(value, Mapping):
        return [value]
    kind = value.get("type")
    content = value.get("content")
    whole = value.get("object")
    if isinstance(whole, str) and whole in _WHOLE and "role" not in value:
        return [_from_response(value, whole, index=index)]
    if isinstance(kind, str) and is_langchain(value):
        return [_from_items_or_langchain(value, kind, index=index)]
    if kind == "message":
        value = _without_envelope(value)
    if not isinstance(content, list):
        return [value]
    return _from_blocks(value, content, index=index)


def _without_envelope(value: Mapping[str, Any]) -> _Fields:
    """Return a message of an API without the fields of a response; those of an answer become its metadata."""
    left_out: tuple[str, ...] = ("type", "status")
    metadata: _Fields = {}
    if value.get("role") == "assistant" and _is_of_anthropic(value):
        left_out = (*left_out, *_MOVED_FIELDS)
        metadata = _metadata(value, "anthropic")
    return {key: part for key, part in value.items() if key not in left_out} | metadata


def _from_blocks(value: Mapping[str, Any], content: list[Any], *, index: int) -> list[Any]:
    """Return a message whose content is a list of blocks, or one for each result in it."""
    role = value.get("role")
    types = {block_type(block) for block in content}
    if role == "user" and "tool_result" in types:
        return list(_results(value, content, index=index))
    if role == "assistant" and types & _CALL_BLOCKS.keys() and not value.get("tool_calls"):
        calls = list(_block_calls(content, index=index))
        content = [
            block for block in content if not _is_deep_call(block)
        ]  # an invalid call, which no API takes back
        value = {**value, "tool_calls": calls, "content": content}
    if types & _TEXTS:
        return [{**value, "content": _texts(content)}]
    return [value]


def _from_response(value: Mapping[str, Any], whole: str, *, index: int) -> _Fields:
    """Return the answer in a `ChatCompletion` or `Response`, in OpenAI's chat format with usage and model."""
    key = _WHOLE[whole]
    found = dict(value)
    check_type(value.get(key), list, field=key, index=index)
    if whole == "response":
        response = _Response(index)
        for position, item in enumerate(value[key]):
            if not isinstance(item, Mapping) or not is_answer_item(item):
                problem = "is no item of OpenAI's Responses API that is supported; append the items before it"
                raise InvalidMessageError(problem, index=index, field=f"{key}[{position}]")
            response.add(item, index=index)
        message = response.message()
    else:
        choice = value[key][0] if len(value[key]) == 1 else None
        if not isinstance(choice, Mapping) or not isinstance(choice.get("message"), Mapping):
            problem = "must be one choice; append the message of the right one"
            raise InvalidMessageError(problem, index=index, field=key)
        # Some servers repeat the ids that they give.
        written = text_of([value.get("id"), value.get("created"), dict(choice)])
        message = {**choice["message"], "id": str(uuid5(NAMESPACE_OID, valid_text(written)))}
        found["finish_reason"] = choice.get("finish_reason")
    usage = {"usage": value["usage"]} if value.get("usage") is not None else {}
    return {**message, **usage, **_metadata(found, "openai")}


def _metadata(value: Mapping[str, Any], provider: str) -> _Fields:
    """Return provider, model and stop reason of a whole response, as LangChain's integrations name them."""
    found = {
        key: value[key] for key in ("id", "status", *_MOVED_FIELDS) if value.get(key) is not None
    }
    model = {"model_name": found["model"]} if "model" in found else {}
    return {"response_metadata": {**found, **model, "model_provider": provider}}


def _from_items_or_langchain(value: Mapping[str, Any], kind: str, *, index: int) -> Any:
    if kind in _OUTPUTS:
        return _output(value, index=index)
    if kind in _REFUSED:
        problem = f"{kind!r} of OpenAI's Responses API is not supported; append the AIMessage of langchain-openai"
        raise InvalidMessageError(problem, index=index, field="type")
    if kind == "constructor":
        problem = "serialised objects of LangChain are not loaded; pass message_to_dict(message) or the message"
        raise InvalidMessageError(problem, index=index, field="type")
    try:
        return from_langchain(value)
    except ValidationError as error:
        data = inner if isinstance(inner := value.get("data"), dict) else value
        reason = field_error(error, index=index)
        try:
            check_type(data.get("content"), str, list, field="content", index=index)
        except InvalidMessageError as clearer:
            reason = clearer
        raise reason from without_input(error)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        problem = (
            "is neither a LangChain message nor a supported item; pass {'role': …, 'content': …}"
        )
        raise InvalidMessageError(problem, index=index, field="type") from error


def _results(value: Mapping[str, Any], content: list[Any], *, index: int) -> Iterator[_Fields]:
    """Return the results in a user message of Anthropic's API, then its other content.

    The last message has the dict's id; those before it get ids derived from that.
    """
    rest = [block for block in content if block_type(block) != "tool_result"]
    blocks = [
        (position, block)
        for position, block in enumerate(content)
        if block_type(block) == "tool_result"
    ]
    found = [result_of(block, position, index=index) for position, block in blocks]
    others = {key: part for key, part in value.items() if key not in ("content", "role")}
    last = {**value, "content": _texts(rest)} if rest else {**others, **found.pop()}
    for number, result in enumerate(found):
        own: Any = value.get("id")
        if not id_problem(own):
            result["id"] = str(uuid5(NAMESPACE_OID, f"{number}:{own}"))
        yield result
    yield last


def result_of(block: _Fields, position: int, *, index: int) -> _Fields:
    """Return the fields of the tool message that a block of Anthropic's API stands for."""
    check_text(block.get("tool_use_id"), field=f"content[{position}].tool_use_id", index=index)
    content = block.get("content")
    others = {
        key: part
        for key, part in block.items()
        if key not in ("type", "tool_use_id", "content", "is_error")
    }
    return {
        **others,
        "role": "tool",
        "tool_call_id": block["tool_use_id"],
        "content": "" if content is None else content,
        "status": "error" if block.get("is_error") else "success",
    }


def _is_deep_call(block: Any) -> bool:
    key = _CALL_BLOCKS.get(block_type(block))
    return bool(key) and isinstance(block.get(key), dict) and not has_few_levels(block[key])


def _block_calls(content: list[Any], *, index: int) -> Iterator[_Fields]:
    """Return the calls in the content of an AI message, in OpenAI's format."""
    for position, block in enumerate(content):
        key = _CALL_BLOCKS.get(block_type(block))
        if key is not None:
            path = f"content[{position}]"
            check_text(block.get("id"), field=f"{path}.id", index=index)
            check_text(block.get("name"), field=f"{path}.name", index=index)
            check_type(given := block.get(key), dict, NoneType, field=f"{path}.{key}", index=index)
            yield {
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": given},
            }


def _texts(content: Any) -> Any:
    """Return content with text blocks of OpenAI's Responses API in the common form."""
    if not isinstance(content, list):
        return content
    return [
        {key: part for key, part in {**block, "type": "text"}.items() if part != []}
        if block_type(block) in _TEXTS
        else block
        for block in content
    ]


def _output(value: Mapping[str, Any], *, index: int) -> _Fields:
    """Return the tool message of a result in OpenAI's Responses API."""
    check_text(value.get("call_id"), field="call_id", index=index)
    check_type(value.get("output"), str, list, field="output", index=index)
    others = {
        key: part
        for key, part in value.items()
        if key not in ("type", "call_id", "output", "status")
    }
    return {
        **others,
        "role": "tool",
        "tool_call_id": value["call_id"],
        "content": _texts(value["output"]),
    }


class _Response:
    """Adjacent items of OpenAI's Responses API that form one answer of the model, so one AI message."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.id: Any = None
        self.content: list[Any] = []
        self.calls: list[_Fields] = []
        self.others: _Fields = {}

    def add(self, item: Mapping[str, Any], *, index: int) -> None:
        """Add one item: its blocks, or itself as a block."""
        kind = item["type"]
        own = item.get("id")
        if self.id is None or kind == "message":
            self.id = own if own is not None else self.id
        if kind == "message":
            content = item.get("content")
            check_type(content, str, list, field="content", index=index)
            blocks = (
                _texts(content)
                if isinstance(content, list)
                else [{"type": "text", "text": content}]
            )
            phase = {"phase": item["phase"]} if item.get("phase") else {}
            self.content += [
                {**block, **phase} if isinstance(block, dict) else block for block in blocks
            ]
            self.others |= {
                key: item[key]
                for key in item.keys() - {"type", "role", "content", "id", "status", "phase"}
            }
            return
        if kind in _CALLS:
            check_text(item.get("call_id"), field="call_id", index=index)
            check_text(item.get("name"), field="name", index=index)
            part, key = _CALLS[kind]
            check_type(item.get(key), str, NoneType, field=key, index=index)
            self.calls.append(
                {
                    "id": item["call_id"],
                    "type": part,
                    part: {"name": item["name"], key: item.get(key)},
                }
            )
        self.content.append({key: part for key, part in item.items() if key != "status"})

    def message(self) -> _Fields:
        """Return the message in OpenAI's chat format."""
        message = {**self.others, "role": "assistant", "content": self.content, "id": self.id}
        return message | ({"tool_calls": self.calls} if self.calls else {})


def _items_of(response: _Response | None) -> list[Item]:
    return [Item(response.index, response.message())] if response else []


def copied(value: Any) -> Any:
    """Return a copy of the value with every nested dict and list copied; other objects are shared."""
    root = [value]
    copies: dict[int, Any] = {}  # a container met twice, or inside itself, is copied once
    pending: list[Any] = [root]
    while pending:
        parent = pending.pop()
        for slot, child in list(parent.items() if type(parent) is dict else enumerate(parent)):
            if type(child) not in (dict, list):
                continue
            if id(child) not in copies:
                copies[id(child)] = child.copy()
                pending.append(copies[id(child)])
            parent[slot] = copies[id(child)]
    return root[0]
