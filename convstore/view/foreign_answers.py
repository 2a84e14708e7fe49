"""Adapt answers of models to LangChain's package of one provider.

An answer of another provider loses the parts that only the other one reads. An answer of the provider itself is changed
only where the package would send it in a form that the provider refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, ToolMessage

from convstore.messages.call_arguments import arguments_text, with_json_arguments
from convstore.messages.media import block_type
from convstore.messages.reasoning import REASONING_BESIDE, is_reasoning, without_reasoning
from convstore.messages.tool_calls import CALL_BLOCKS, calls_of, changed_functions, with_changes
from convstore.values.json_form import valid_text
from convstore.values.providers import ProviderRules
from convstore.wire.edits import NO_TEXT, tool_name, user_name
from convstore.wire.hosted import hosted_text
from convstore.wire.parts import Block, Media, Text, beside_calls, read_part
from convstore.wire.requests import ReportDropped

_EMPTY: Final = "{}"
_UNSENT: Final = "LangChain's package does not send it"
_FILTERED: Final = frozenset({"reasoning_content", "thinking"})


def without_foreign_parts(message: AIMessage, drop: ReportDropped) -> AIMessage:
    """Return an answer of another provider with only parts that all providers accept; the same object if unchanged.

    >>> ran = {"type": "code_interpreter_call", "id": "ci_1", "code": "1 + 1", "outputs": []}
    >>> without_foreign_parts(AIMessage([ran, "Two."]), print).content[0]["text"]
    code_interpreter_call only a text names it
    '[The provider ran code_interpreter: 1 + 1]'
    """
    clean = without_reasoning(message)
    if not isinstance(clean, AIMessage):
        return message
    if clean is not message:
        drop("reasoning", "another provider wrote it")
    clean = with_json_arguments(_with_valid_calls(clean, drop))
    update: dict[str, Any] = {}
    if clean.name:
        update["name"] = user_name(clean.name) or None
    if isinstance(clean.content, list):
        update["content"] = _sendable_content(clean, drop)
    return with_changes(clean, update)


def _with_valid_calls(message: AIMessage, drop: ReportDropped) -> AIMessage:
    """Return an answer with names and arguments of calls that providers accept; the same object if unchanged."""
    for call in message.invalid_tool_calls:
        if not arguments_text(call.get("args"))[1]:
            drop(f"arguments of {call.get('name')}", "they are not a JSON object")
    update: dict[str, Any] = {
        "tool_calls": [_named(call) for call in message.tool_calls],
        "invalid_tool_calls": [_with_object(_named(call)) for call in message.invalid_tool_calls],
        "additional_kwargs": changed_functions(message.additional_kwargs, _with_valid_function),
    }
    if isinstance(message.content, list):
        update["content"] = list(map(_named_block, message.content))
    return with_changes(message, update)


def _named_block(block: Any) -> Any:
    """Return a call block with a name that all providers accept; any other block unchanged."""
    return _named(block) if block_type(block) in CALL_BLOCKS else block


def _sendable_content(message: AIMessage, drop: ReportDropped) -> list[Any]:
    listed = {call.get("id") for call in (*message.tool_calls, *message.invalid_tool_calls)}
    return [sent for block in message.content for sent in _sendable(block, listed, drop)]


def _sendable(block: Any, listed: set[Any], drop: ReportDropped) -> Iterator[Any]:
    """Yield a block of content in a form that all providers accept; calls in `listed` are not part of the content."""
    part = read_part(block)
    if isinstance(part, Text):
        for name in part.settings:
            drop(name, "another provider wrote it")
        is_plain = block_type(block) == "text" or not part.text.strip()
        yield block if is_plain and not part.settings else {"type": "text", "text": part.text}
    elif isinstance(part, Media):
        drop(part.kind, "only its description is sent")
        yield {"type": "text", "text": part.description}
    elif isinstance(part, Block):
        yield from _sendable_action(part, block, listed, drop)
    elif isinstance(block, str) or block_type(block) in ("text", ""):
        yield block


def _sendable_action(
    part: Block, block: Any, listed: set[Any], drop: ReportDropped
) -> Iterator[Any]:
    """Yield a call that is not listed, or a text that describes the use of a hosted tool."""
    if part.kind != "call":
        text = hosted_text(part.block)
        drop(part.type, "only a text names it" if text else "another provider wrote it")
        if text:
            yield {"type": "text", "text": text}
    elif part.id not in listed:
        yield {**block, "name": tool_name(str(block.get("name") or ""))}


def _named(call: Any) -> Any:
    """Return a call with a name that all providers accept; in a block the name may have any type."""
    name = call.get("name")
    if not name:
        return call
    valid = tool_name(str(name))
    return call if valid == name else {**call, "name": valid}


def _with_object(call: Any) -> Any:
    """Return an invalid call; arguments that are empty, or JSON but not an object, become an empty object."""
    given = call.get("args")
    return {**call, "args": _EMPTY} if _is_empty(given) else call


def _is_empty(arguments: Any) -> bool:
    """Return True for a JSON text that is not an object, or an object without fields."""
    return isinstance(arguments, str) and arguments_text(arguments)[0] == _EMPTY


def _with_valid_function(function: dict[str, Any]) -> dict[str, Any]:
    """Return a call in OpenAI's raw form with a name and arguments that providers accept."""
    name = function.get("name")
    named = {"name": tool_name(name)} if isinstance(name, str) and name else {}
    if _is_empty(function.get("arguments")):
        named["arguments"] = _EMPTY
    return {**function, **named}


def as_own(message: AIMessage, rules: ProviderRules, drop: ReportDropped) -> AIMessage:
    """Return an answer of the provider in a form that its package sends correctly; the same object if unchanged."""
    calls = calls_of(message)
    if any(call.is_malformed or tool_name(call.tool) != call.tool for call in calls):
        message = _with_valid_calls(message, drop)
    update: dict[str, Any] = {}
    content: Any = message.content
    if rules.response_items and _looks_old(message):
        update["response_metadata"] = {
            key: value for key, value in message.response_metadata.items() if key != "id"
        }
        content = [_with_item_id(block, str(message.id)) for block in content]
    if _ends_with_reasoning(content) and not calls:
        content = [*content, {"type": "text", "text": NO_TEXT}]
    if content is not message.content:
        update["content"] = content
    return message.model_copy(update=update) if update else message


def drop_unsent(
    message: AIMessage, rules: ProviderRules, drop: ReportDropped, *, is_own: bool
) -> None:
    """Report the parts of an answer that LangChain's package does not send, though the view keeps them."""
    for part in beside_calls(message):
        drop(part, _UNSENT)
    if is_own and "reasoning" in rules.package_omits and _has_omitted_reasoning(message):
        drop("reasoning", _UNSENT)


def _has_omitted_reasoning(message: AIMessage) -> bool:
    """Return True for reasoning beside the content, or thinking inside it; langchain-openai removes both."""
    kwargs = message.additional_kwargs
    if any(isinstance(kwargs.get(key), str | list) and kwargs[key] for key in REASONING_BESIDE):
        return True
    content: Any = message.content
    return isinstance(content, list) and any(block_type(block) in _FILTERED for block in content)


def _ends_with_reasoning(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and is_reasoning(content[-1])


def _looks_old(message: AIMessage) -> bool:
    """Return True for an answer that langchain-openai takes for one of its version 0.3, and sends in another order."""
    response = message.response_metadata.get("id")
    return (
        isinstance(message.content, list)
        and str(message.id).startswith("msg_")
        and isinstance(response, str)
        and response.startswith("resp_")
    )


def _with_item_id(block: Any, id_: str) -> Any:
    """Return a text block with the id of its item, where langchain-openai looks for it."""
    if block_type(block) != "text" or "id" in block:
        return block
    return {**block, "id": id_}


def with_custom_outputs(message: AIMessage, results: Sequence[ToolMessage]) -> list[ToolMessage]:
    """Return results; those of custom tools of the Responses API get the form that langchain-openai sends correctly."""
    content: Any = message.content
    blocks = content if isinstance(content, list) else []
    custom = [block.get("call_id") for block in blocks if block_type(block) == "custom_tool_call"]
    return [_custom(result) if result.tool_call_id in custom else result for result in results]


def _custom(result: ToolMessage) -> ToolMessage:
    content: Any = result.content
    texts = [read_part(block) for block in (content if isinstance(content, list) else [content])]
    said = [part.text for part in texts if isinstance(part, Text) and part.text]
    block = {"type": "custom_tool_call_output", "output": valid_text("\n".join(said))}
    return result.model_copy(update={"content": [block]})
