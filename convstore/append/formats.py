"""Convert messages of other formats to LangChain messages or OpenAI's chat format.

The module supports LangChain's own dicts (``message_to_dict``, ``model_dump``), messages of Anthropic's API with
``tool_use`` and ``tool_result`` blocks, items of OpenAI's Responses API, and the whole responses of the three APIs. The
converted messages equal those of LangChain's integrations: calls are in ``tool_calls`` and stay in the content, and
each result is a separate tool message. Provider, model and stop reason of a whole response are in
``response_metadata``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import NAMESPACE_OID, uuid5

from pydantic import ValidationError

from convstore.append.fields import check_call_id, check_text, check_type
from convstore.append.responses import (
    OF_SDK,
    OUTPUTS,
    TEXTS,
    AnswerItems,
    is_answer_item,
    is_of_anthropic,
    is_refused,
    may_be_item,
    output_of,
    refusal,
    with_text_blocks,
)
from convstore.exceptions import InvalidMessageError, UnfinishedReplyError
from convstore.messages.langchain_dicts import from_langchain, is_langchain
from convstore.messages.media import block_type
from convstore.messages.stop_reasons import FAILED_REASONS, UNFINISHED_STATUSES, stop_reason
from convstore.messages.text import text_of
from convstore.values.json_form import has_few_levels, valid_text, without_nulls
from convstore.values.scope import id_problem

_Fields: TypeAlias = dict[str, Any]

_WHOLE: Final = {"chat.completion": "choices", "response": "output"}
_MOVED_FIELDS: Final = ("model", "stop_reason", "stop_sequence", "finish_reason")
_CALL_BLOCKS: Final = {"tool_use": "input", "tool_call": "args"}


class InputMessage(NamedTuple):
    """A message to normalise, and its index in the caller's batch."""

    position: int
    value: Any


def convert_formats(batch: Iterable[Any]) -> list[InputMessage]:
    """Return the items of a batch, with dicts of other formats as LangChain messages or OpenAI-format dicts.

    One dict with several results becomes a message for each. Adjacent items of one response of OpenAI's Responses API
    become one AI message.

    Raises:
        InvalidMessageError: An item of a supported format cannot be read, or its kind is not supported.

    >>> result = {"type": "tool_result", "tool_use_id": "c1", "content": "4"}
    >>> [item.value for item in convert_formats([{"role": "user", "content": [result]}])]
    [{'role': 'tool', 'tool_call_id': 'c1', 'content': '4', 'status': 'success'}]
    """
    items: list[InputMessage] = []
    answer: AnswerItems | None = None
    values = list(batch)
    belongs = _are_of_answers(values)
    for index, value in enumerate(values):
        if belongs[index]:
            answer = answer or AnswerItems(index)
            answer.add(value, index=index)
            continue
        items += _items_of(answer)
        answer = None
        items += [InputMessage(index, part) for part in _read(value, index=index)]
    return items + _items_of(answer)


def _are_of_answers(values: Sequence[Any]) -> list[bool]:
    """Return for each value True if it is an item of an answer; an unknown type counts next to another such item."""
    found = [_is_of_answer(value) for value in values]
    for order in (range(len(values)), reversed(range(len(values)))):
        is_beside = False
        for at in order:
            found[at] = found[at] or (is_beside and may_be_item(values[at]))
            is_beside = found[at]
    return found


def _is_of_answer(value: Any) -> bool:
    return isinstance(value, Mapping) and is_answer_item(value)


def field_error(error: ValidationError, *, index: int) -> InvalidMessageError:
    """Return the error for a message that LangChain rejects, with its first problem."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    problem = f"LangChain refuses it ({first['msg']}); correct this field"
    return InvalidMessageError(problem, index=index, field=field.removeprefix("."))


def without_input(error: ValidationError) -> ValidationError:
    """Return the same error without the rejected values: they are contents, and a traceback would show them."""
    details: Any = error.errors(include_url=False)
    return ValidationError.from_exception_data(error.title, details, hide_input=True)


def _read(value: Any, *, index: int) -> list[Any]:
    """Return an item as one or more LangChain messages or OpenAI-format dicts."""
    if not isinstance(value, Mapping):
        return [value]
    kind = value.get("type")
    content = value.get("content")
    _check_is_reply(value, index=index)
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


def _check_is_reply(value: Mapping[str, Any], *, index: int) -> None:
    """Raise an UnfinishedReplyError if a provider or a gateway returned an error in place of the reply.

    >>> _check_is_reply({"error": {"message": "Rate limit"}}, index=0)
    Traceback (most recent call last):
    ...
    convstore.exceptions.UnfinishedReplyError: message 0, field 'error': the reply is not finished (the provider or a \
gateway answered with an error), so it was not appended; ask the model again, or append the reply once it is complete
    """
    is_message = "role" in value or value.get("type") not in (None, "error")
    if value.get("error") and not is_message:
        raise UnfinishedReplyError(
            "the provider or a gateway answered with an error", index=index, field="error"
        )


def _without_envelope(value: Mapping[str, Any]) -> _Fields:
    """Return a message of an API without the fields of its response; those of Anthropic's API become metadata."""
    if value.get("role") != "assistant" or not is_of_anthropic(value):
        return {key: part for key, part in value.items() if key not in ("type", "status")}
    left_out = ("type", "status", *_MOVED_FIELDS)
    fields = {key: part for key, part in without_nulls(value).items() if key not in left_out}
    if isinstance(usage := fields.get("usage"), Mapping):
        fields["usage"] = without_nulls(usage)
    if isinstance(content := fields.get("content"), list):
        fields["content"] = list(map(_block_without_nulls, content))
    return fields | _metadata(value, "anthropic")


def _block_without_nulls(block: Any) -> Any:
    return without_nulls(block) if isinstance(block, dict) else block


def _from_blocks(value: Mapping[str, Any], content: list[Any], *, index: int) -> list[Any]:
    """Return a message whose content is a list of blocks; one with tool results becomes several messages."""
    role = value.get("role")
    types = {block_type(block) for block in content}
    if role == "user" and "tool_result" in types:
        return list(_results(value, content, index=index))
    if role == "assistant" and types & _CALL_BLOCKS.keys() and not value.get("tool_calls"):
        calls = list(_block_calls(content, index=index))
        # an API rejects a history with these invalid calls
        content = [block for block in content if not _is_deep_call(block)]
        value = {**value, "tool_calls": calls, "content": content}
    if types & TEXTS:
        return [{**value, "content": with_text_blocks(content)}]
    return [value]


def _from_response(value: Mapping[str, Any], whole: str, *, index: int) -> _Fields:
    """Return the answer in a `ChatCompletion` or `Response`, in OpenAI's chat format with usage and model.

    Raises:
        UnfinishedReplyError: The response failed, was cancelled or is still in progress.
    """
    key = _WHOLE[whole]
    check_type(value.get(key), list, field=key, index=index)
    found = dict(value)
    if whole == "response":
        message = _from_items(value, index=index)
    else:
        choice = _choice(value, index=index)
        message = _from_choice(value, choice, index=index)
        found["finish_reason"] = stop_reason(choice.get("finish_reason"))
    if (usage := value.get("usage")) is not None:
        message["usage"] = without_nulls(usage) if isinstance(usage, Mapping) else usage
    return {**message, **_metadata(found, "openai")}


def _from_items(value: Mapping[str, Any], *, index: int) -> _Fields:
    """Return the message of a `Response`."""
    if (status := stop_reason(value.get("status"))) in UNFINISHED_STATUSES:
        raise UnfinishedReplyError(f"its status is {status!r}", index=index, field="status")
    answer = AnswerItems(index, response_id=value.get("id"))
    for position, item in enumerate(value["output"]):
        field = f"output[{position}]"
        if isinstance(item, Mapping) and is_refused(item):
            raise refusal(item, index=index, field=field)
        if not (_is_of_answer(item) or may_be_item(item)):
            problem = "is not an output item of OpenAI's Responses API; append the items before it"
            raise InvalidMessageError(problem, index=index, field=field)
        answer.add(item, index=index)
    return answer.message()


def _choice(value: Mapping[str, Any], *, index: int) -> Mapping[str, Any]:
    """Return the only choice of a `ChatCompletion`."""
    choice = value["choices"][0] if len(value["choices"]) == 1 else None
    if not isinstance(choice, Mapping) or not isinstance(choice.get("message"), Mapping):
        problem = "must be one choice; append the message of the right one"
        raise InvalidMessageError(problem, index=index, field="choices")
    if (reason := stop_reason(choice.get("finish_reason"))) in FAILED_REASONS:
        raise UnfinishedReplyError(
            f"its finish reason is {reason!r}", index=index, field="choices[0].finish_reason"
        )
    return choice


def _from_choice(value: Mapping[str, Any], choice: Mapping[str, Any], *, index: int) -> _Fields:
    """Return the message of a choice without empty fields, like that of a stream; its id is a hash of its content."""
    message = {
        key: part
        for key, part in choice["message"].items()
        if part not in (None, "", []) and key not in OF_SDK
    }
    check_type(calls := message.get("tool_calls", []), list, field="tool_calls", index=index)
    if calls:
        message["tool_calls"] = [_as_sent(call) for call in calls]
    fields = [value.get("id") or None, value.get("created"), choice.get("finish_reason"), message]
    # Some servers give the same id to several replies.
    return {**message, "id": str(uuid5(NAMESPACE_OID, valid_text(_identity(fields))))}


def _as_sent(call: Any) -> Any:
    """Return a call without fields of an SDK and without `index`, which some servers send in whole replies."""
    if not isinstance(call, Mapping):
        return call
    made = {key: part for key, part in call.items() if key != "index"}
    if isinstance(function := made.get("function"), Mapping):
        made["function"] = {key: part for key, part in function.items() if key not in OF_SDK}
    return made


def _identity(fields: list[Any]) -> str:
    """Return fields as a text that does not depend on the order of keys."""
    try:
        return json.dumps(fields, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # not JSON, or nested too deeply
        return text_of(fields)


def _metadata(value: Mapping[str, Any], provider: str) -> _Fields:
    """Return provider, model and stop reason of a whole response, as LangChain's integrations name them."""
    names = ("id", "status", "incomplete_details", *_MOVED_FIELDS)
    found = {key: value[key] for key in names if value.get(key) not in (None, "")}
    model = {"model_name": found["model"]} if "model" in found else {}
    return {"response_metadata": {**found, **model, "model_provider": provider}}


def _from_items_or_langchain(value: Mapping[str, Any], kind: str, *, index: int) -> Any:
    if kind in OUTPUTS:
        return output_of(value, index=index)
    if is_refused(value):
        raise refusal(value, index=index)
    if kind == "constructor":
        problem = (
            "serialised objects of LangChain are not loaded; pass message_to_dict(message) or "
            "the message"
        )
        raise InvalidMessageError(problem, index=index, field="type")
    data = inner if isinstance(inner := value.get("data"), dict) else value
    # LangChain would convert None to the text "None".
    if kind == "tool" and data.get("content", "") is None:
        check_type(None, str, list, field="content", index=index)
    try:
        return from_langchain(value)
    except ValidationError as error:
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

    The last message has the dict's id; earlier messages get ids derived from that id.
    """
    rest = [block for block in content if block_type(block) != "tool_result"]
    blocks = [
        (position, block)
        for position, block in enumerate(content)
        if block_type(block) == "tool_result"
    ]
    found = [result_of(block, position, index=index) for position, block in blocks]
    others = {key: part for key, part in value.items() if key not in ("content", "role")}
    last = {**value, "content": with_text_blocks(rest)} if rest else {**others, **found.pop()}
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
            check_call_id(block, "id", field=f"{path}.id", index=index)
            check_text(block.get("name"), field=f"{path}.name", index=index)
            check_type(given := block.get(key), dict, NoneType, field=f"{path}.{key}", index=index)
            yield {
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": given},
            }


def _items_of(answer: AnswerItems | None) -> list[InputMessage]:
    return [InputMessage(answer.index, answer.message())] if answer else []
