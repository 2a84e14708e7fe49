"""The rules of OpenAI's and Anthropic's APIs for the messages of a request, which their SDKs do not check.

Each function returns the errors that the API would answer with, in its own words. It shares no code with convstore.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAME = r"^[a-zA-Z0-9_-]+$"
SAID_BY = r"^[^\s<|\\/>]+$"
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
HOSTED = {
    "advisor_tool_result",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_result",
}
RAN = {
    "code_interpreter_call": "code container_id outputs",
    "file_search_call": "queries",
    "mcp_call": "name server_label arguments",
    "web_search_call": "action",
}
"""Items of tools that OpenAI ran, and what it needs of them."""


def is_sendable(request: Any) -> Iterator[str]:
    """The client cannot make JSON of a request with other values, NaN or lone surrogates."""
    try:
        json.dumps(request, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        yield f"the client fails: {error}"


def extra(where: str, given: Mapping[str, Any], required: str, allowed: str = "") -> Iterator[str]:
    """Fields that are missing or not known."""
    yield from (
        f"Missing required parameter: '{where}.{name}'."
        for name in required.split()
        if name not in given
    )
    known = {*required.split(), *allowed.split()}
    yield from (f"Unknown parameter: '{where}.{name}'." for name in given if name not in known)


def text(
    where: str, value: Any, *, longest: int, pattern: str = "", shortest: int = 1
) -> Iterator[str]:
    """A string of a length, and of a pattern."""
    if not isinstance(value, str):
        yield f"Invalid type for '{where}': expected a string, but got {type(value).__name__} instead."
        return
    if len(value) < shortest:
        yield f"Invalid '{where}': empty string. Expected a string with minimum length {shortest}."
    if len(value) > longest:
        yield f"Invalid '{where}': string too long. Expected a string with maximum length {longest}, but got a string with length {len(value)} instead."  # noqa: E501
    if pattern and not re.fullmatch(pattern, value):
        yield f"Invalid '{where}': string does not match pattern. Expected a string that matches '{pattern}'."


def base64_of(where: str, data: Any) -> Iterator[str]:
    """Base64 that is not empty."""
    try:
        if not binascii.a2b_base64(data, strict_mode=True):
            yield f"{where}: image cannot be empty"
    except (binascii.Error, ValueError, TypeError):
        yield f"{where}: invalid base64 data"


def data_url(where: str, url: Any, types: Sequence[str], *, plain: bool) -> Iterator[str]:
    """A data URL of one of some types, or an address if `plain`."""
    if plain and isinstance(url, str) and url.startswith(("http://", "https://")):
        return
    found = re.match(r"data:([^;,]*);base64,", url) if isinstance(url, str) else None
    if not found or found[1] not in types:
        yield f"Invalid '{where}'. Expected a base64-encoded data URL with one of {types}, but got {str(url)[:40]!r}."
        return
    yield from base64_of(where, url[found.end() :])


# ---------------------------------------------------------------------------------------------------------------------
# OpenAI, Chat Completions


def chat_errors(messages: Sequence[Any]) -> list[str]:
    """Return what Chat Completions would refuse in these `messages`."""
    found = [*is_sendable(messages)]
    waiting: list[str] = []
    for at, message in enumerate(messages):
        where, role = f"messages[{at}]", message.get("role")
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                found.append(
                    f"Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls': {where}"  # noqa: E501
                )
            else:
                waiting.remove(message["tool_call_id"])
        elif waiting:
            found.append(unanswered(waiting))
            waiting = []
        found += chat_message(where, message)
        if calls := message.get("tool_calls"):
            waiting = [call.get("id") for call in calls]
            if len(set(waiting)) < len(waiting):
                found.append(f"Duplicate value for 'tool_call_id' in {where}.tool_calls")
    return found + ([unanswered(waiting)] if waiting else [])


def unanswered(ids: Sequence[str]) -> str:
    """The most frequent of all errors."""
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(map(str, ids))}"
    )


def chat_message(where: str, message: Mapping[str, Any]) -> Iterator[str]:
    """Fields and content of one message."""
    role = message.get("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        yield f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'."  # noqa: E501
        return
    more = {"assistant": "name tool_calls", "tool": "tool_call_id"}.get(role, "name")
    yield from extra(
        where, message, "role content" + (" tool_call_id" if role == "tool" else ""), more
    )
    if "name" in message:
        yield from text(f"{where}.name", message["name"], longest=64, pattern=SAID_BY)
    if "tool_calls" in message:
        yield from chat_calls(where, message["tool_calls"])
    content = message.get("content")
    if content is None:
        if not message.get("tool_calls"):
            yield "Invalid value for 'content': expected a string, got null."
    elif isinstance(content, list):
        yield from (
            []
            if content
            else [f"Invalid '{where}.content': empty array. Expected minimum length 1."]
        )
        for at, part in enumerate(content):
            yield from chat_part(f"{where}.content[{at}]", part, role)
    else:
        yield from text(
            f"{where}.content", content, longest=10_485_760, shortest=0 if role == "tool" else 1
        )


def chat_calls(where: str, calls: Any) -> Iterator[str]:
    """The calls of an assistant."""
    if not calls:
        yield f"Invalid '{where}.tool_calls': empty array. Expected an array with minimum length 1."
    for at, call in enumerate(calls):
        place = f"{where}.tool_calls[{at}]"
        kind = call.get("type")
        if kind not in ("function", "custom"):
            yield f"Missing required parameter: '{place}.type'."
            continue
        yield from extra(place, call, f"id type {kind}")
        yield from text(f"{place}.id", call.get("id"), longest=40)
        yield from text(f"{place}.{kind}.name", call[kind].get("name"), longest=64, pattern=NAME)
        given = call[kind].get("arguments" if kind == "function" else "input")
        yield from text(f"{place}.{kind}.arguments", given, longest=1_048_576, shortest=0)
        yield from extra(
            f"{place}.{kind}", call[kind], "name arguments" if kind == "function" else "name input"
        )
        if kind == "function" and not is_object(given):
            yield f"{place}.function.arguments: Input should be a valid JSON object (gateways)"


def is_object(arguments: Any) -> bool:
    """Return True for the JSON text of an object; gateways parse the arguments."""
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, TypeError):
        return False


def chat_part(where: str, part: Any, role: str) -> Iterator[str]:
    """A part of a list of content."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        yield from extra(where, part, "type text")
        yield from text(f"{where}.text", part.get("text"), longest=10_485_760)
    elif role != "user":
        yield f"Image URLs are only allowed for messages with role 'user', but this message with role '{role}' contains {kind}."  # noqa: E501
    elif kind == "image_url":
        yield from data_url(
            f"{where}.image_url.url", part["image_url"]["url"], IMAGE_TYPES, plain=True
        )
    elif kind == "input_audio":
        yield from base64_of(where, part["input_audio"]["data"])
        if part["input_audio"]["format"] not in ("wav", "mp3"):
            yield f"Invalid value: '{part['input_audio']['format']}'. Supported values are: 'wav' and 'mp3'."
    elif kind == "file":
        if "file_id" not in part["file"]:
            yield from data_url(
                f"{where}.file.file_data",
                part["file"].get("file_data"),
                ["application/pdf"],
                plain=False,
            )
            yield from extra(f"{where}.file", part["file"], "file_data filename")
    else:
        yield f"Invalid value: '{kind}'. Supported values are: 'text', 'image_url', 'input_audio', 'refusal', 'audio', and 'file'."  # noqa: E501


# ---------------------------------------------------------------------------------------------------------------------
# OpenAI, Responses


def responses_errors(items: Sequence[Any]) -> list[str]:
    """Return what the Responses API would refuse in this `input`, with `store=False`."""
    found = [*is_sendable(items)]
    calls, outputs, ids = dict[str, str](), list[str](), list[str]()
    for at, item in enumerate(items):
        where, kind = f"input[{at}]", item.get("type")
        found += responses_item(where, item)
        ids += [item["id"]] if "id" in item else []
        if kind in ("function_call", "custom_tool_call"):
            if item["call_id"] in calls:
                found.append(f"Duplicate function call id {item['call_id']} in {where}")
            calls[item["call_id"]] = kind
        elif kind in ("function_call_output", "custom_tool_call_output"):
            outputs.append(item["call_id"])
            if calls.get(item["call_id"], "") + "_output" != kind:
                found.append(
                    f"No tool call found for function call output with call_id {item['call_id']}."
                )
        elif kind == "reasoning" and not follows(items[at + 1 :]):
            found.append(
                f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
            )
    found += [
        f"No tool output found for function call {id_}." for id_ in calls if outputs.count(id_) != 1
    ]
    found += [
        f"Duplicate item found with id {id_}. Remove duplicate items."
        for id_ in set(ids)
        if ids.count(id_) > 1
    ]
    return found


def follows(rest: Sequence[Any]) -> bool:
    """Return True if the next item but reasoning is one that a model writes after it."""
    following: Mapping[str, Any] = next(
        (item for item in rest if item.get("type") != "reasoning"), {}
    )
    is_said = following.get("type") == "message" and following.get("role") == "assistant"
    return is_said or following.get("type") in ("function_call", "custom_tool_call", *RAN)


def responses_item(where: str, item: Mapping[str, Any]) -> Iterator[str]:
    """Fields of one item."""
    kind = item.get("type")
    prefix = {
        **dict.fromkeys(RAN, ""),
        "message": "msg",
        "function_call": "fc",
        "reasoning": "rs",
        "custom_tool_call": "ctc",
    }.get(str(kind), "")
    if prefix and "id" in item and not str(item["id"]).startswith(prefix + "_"):
        yield f"Invalid '{where}.id': '{item['id']}'. Expected an ID that begins with '{prefix}'."
    if kind == "message":
        yield from responses_message(where, item)
    elif kind in ("function_call", "custom_tool_call"):
        given = "arguments" if kind == "function_call" else "input"
        yield from extra(where, item, f"type call_id name {given}", "id namespace caller")
        yield from text(f"{where}.call_id", item.get("call_id"), longest=64)
        yield from text(f"{where}.name", item.get("name"), longest=64, pattern=NAME)
        yield from text(f"{where}.{given}", item.get(given), longest=10_485_760, shortest=0)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        yield from extra(where, item, "type call_id output")
        for at, part in enumerate(item["output"] if isinstance(item["output"], list) else ()):
            yield from input_part(f"{where}.output[{at}]", part, "user")
    elif kind == "reasoning":
        yield from extra(where, item, "type id summary", "encrypted_content content")
        if not item.get("encrypted_content"):
            yield f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false."
    elif kind in RAN:
        yield from (
            f"Missing required parameter: '{where}.{name}'."
            for name in f"id status {RAN[str(kind)]}".split()
            if name not in item
        )
    else:
        yield f"Invalid value: '{kind}'. Supported values are: 'message', 'reasoning', 'function_call', …"


def responses_message(where: str, item: Mapping[str, Any]) -> Iterator[str]:
    """Role and content of a message."""
    role, content = item.get("role"), item.get("content")
    is_written = isinstance(content, list) and role == "assistant"  # only such a message has an id
    more = "phase" if role == "assistant" else ""
    yield from extra(where, item, "type role content" + " id status" * is_written, more)
    if role not in ("user", "assistant", "system", "developer"):
        yield f"Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', and 'user'."
    if not isinstance(content, list):
        yield from text(f"{where}.content", content, longest=10_485_760)
        return
    yield from ([] if content else [f"Invalid '{where}.content': empty array."])
    for at, part in enumerate(content):
        yield from input_part(f"{where}.content[{at}]", part, str(role))


def input_part(where: str, part: Mapping[str, Any], role: str) -> Iterator[str]:
    """A part of a list of content."""
    kind = part.get("type")
    if kind == ("output_text" if role == "assistant" else "input_text"):
        yield from extra(where, part, "type text", "annotations" if role == "assistant" else "")
        yield from text(f"{where}.text", part.get("text"), longest=10_485_760)
    elif role == "assistant":
        yield f"Invalid value: '{kind}'. Supported values are: 'output_text' and 'refusal'."
    elif role != "user":
        yield f"Invalid value: '{kind}'. Supported values are: 'input_text'."
    elif kind == "input_image":
        if "file_id" not in part:
            yield from data_url(
                f"{where}.image_url", part.get("image_url"), IMAGE_TYPES, plain=True
            )
        yield from extra(where, part, "type detail", "image_url file_id")
    elif kind == "input_file":
        yield from extra(where, part, "type", "file_data filename file_url file_id")
        if "file_data" in part:
            yield from data_url(
                f"{where}.file_data", part["file_data"], ["application/pdf"], plain=False
            )
        if sum(key in part for key in ("file_data", "file_url", "file_id")) != 1:
            yield f"Mutually exclusive parameters: '{where}'. Ensure you are only providing one."
    else:
        yield f"Invalid value: '{kind}'. Supported values are: 'input_text', 'input_image', 'input_file', …"


# ---------------------------------------------------------------------------------------------------------------------
# Anthropic, Messages


def anthropic_errors(request: Mapping[str, Any]) -> list[str]:
    """Return what the Messages API would refuse in these arguments."""
    found = [*is_sendable(request), *extra("request", request, "messages", "system container")]
    found += hosted_errors(request["messages"])
    system, messages = request.get("system", [{"type": "text", "text": "x"}]), request["messages"]
    found += [] if system else ["system: text content blocks must be non-empty"]
    for at, block in enumerate(system):
        found += anthropic_text(f"system.{at}", block)
    if not messages:
        found.append("messages: at least one message is required")
    elif messages[0]["role"] != "user":
        found.append('messages: first message must use the "user" role')
    calls = list[str]()
    for at, message in enumerate(messages):
        found += anthropic_message(f"messages.{at}", message, is_last=at == len(messages) - 1)
        now, before = blocks_of(message), blocks_of(messages[at - 1]) if at else []
        made = [block["id"] for block in now if block["type"] == "tool_use"]
        answered = [block["tool_use_id"] for block in now if block["type"] == "tool_result"]
        asked = [block["id"] for block in before if block["type"] == "tool_use"]
        calls += made
        for id_ in [id_ for id_ in asked if id_ not in answered]:
            found.append(tool_use_error(at - 1, id_))
        for id_ in [id_ for id_ in answered if asked.count(id_) != 1 or answered.count(id_) != 1]:
            found.append(
                f"messages.{at}.content: unexpected `tool_use_id` found in `tool_result` blocks: {id_}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if made and message is messages[-1]:
            found.append(tool_use_error(at, made[0]))
        kinds = [block["type"] == "tool_result" for block in now]
        if kinds != sorted(kinds, reverse=True):
            found.append(f"messages.{at}: `tool_result` blocks must come first")
    found += ["messages: `tool_use` ids must be unique"] if len(set(calls)) < len(calls) else []
    marks = json.dumps(request, default=str).count('"cache_control": {"type": "ephemeral"')
    return found + (
        [f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."]
        if marks > 4
        else []
    )


def tool_use_error(at: int, id_: str) -> str:
    """The most frequent of all errors."""
    return (
        f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {id_}. Each "
        "`tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def blocks_of(message: Mapping[str, Any]) -> list[Any]:
    """Return the content as blocks; a string is short for one text."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def anthropic_message(where: str, message: Mapping[str, Any], *, is_last: bool) -> Iterator[str]:
    """Role and content of one message."""
    yield from extra(where, message, "role content")
    role, blocks = message["role"], blocks_of(message)
    if role not in ("user", "assistant"):
        yield f"{where}.role: role 'system' is not supported on this model"
        return
    if not blocks:
        yield f"{where}: all messages must have non-empty content except for the optional final assistant message"
        return
    for at, block in enumerate(blocks):
        yield from anthropic_block(f"{where}.content.{at}", block, role)
    if role == "assistant":
        if blocks[-1]["type"] in ("thinking", "redacted_thinking"):
            yield f"{where}: The final block in an assistant message cannot be `thinking`."
        if (
            is_last
            and blocks[-1]["type"] == "text"
            and blocks[-1]["text"] != blocks[-1]["text"].rstrip()
        ):
            yield "messages: final assistant content cannot end with trailing whitespace"


def hosted_errors(messages: Sequence[Any]) -> Iterator[str]:
    """Calls of tools that Anthropic runs, and results, which may be in a later answer; the last may be pending."""
    said = [message for message in messages if message["role"] == "assistant"]
    blocks = [block for message in said for block in blocks_of(message)]
    made = [block["id"] for block in blocks if block["type"] in ("server_tool_use", "mcp_tool_use")]
    answered = [block["tool_use_id"] for block in blocks if block["type"] in HOSTED]
    pending = [block.get("id") for block in (blocks_of(said[-1]) if said else ())]
    for id_ in made:
        if made.count(id_) != 1 or (answered.count(id_) != 1 and id_ not in pending):
            yield f"`web_search` tool use {id_} was found without a corresponding `web_search_tool_result` block"
    if any(made.count(id_) != 1 for id_ in answered):
        yield "Each `web_search_tool_result` block must have a `server_tool_use` block before it."


def anthropic_text(where: str, block: Mapping[str, Any]) -> Iterator[str]:
    """A block of text."""
    yield from extra(where, block, "type text", "cache_control citations")
    if not isinstance(block.get("text"), str) or not block["text"].strip():
        yield f"{where}: text content blocks must contain non-whitespace text"


def anthropic_block(where: str, block: Mapping[str, Any], role: str) -> Iterator[str]:
    """A block of content, by its type."""
    kind = block.get("type")
    allowed = {
        "user": {"text", "image", "document", "tool_result", "search_result"},
        "assistant": {
            "text",
            "thinking",
            "redacted_thinking",
            "tool_use",
            "server_tool_use",
            "mcp_tool_use",
        }
        | HOSTED,
    }[role]
    if kind not in allowed:
        yield f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags"
    elif kind == "text":
        yield from anthropic_text(where, block)
    elif kind in ("image", "document"):
        yield from anthropic_media(where, block)
    elif kind == "tool_use":
        yield from extra(where, block, "type id name input", "cache_control caller")
        yield from text(f"{where}.tool_use.id", block.get("id"), longest=256, pattern=NAME)
        yield from text(f"{where}.tool_use.name", block.get("name"), longest=128, pattern=NAME)
        yield from (
            []
            if isinstance(block.get("input"), dict)
            else [f"{where}.tool_use.input: Input should be an object"]
        )
    elif kind == "tool_result":
        yield from anthropic_result(where, block)
    elif kind == "thinking":
        yield from extra(where, block, "type thinking signature")
        yield from (
            [] if block.get("signature") else [f"{where}: Invalid `signature` in `thinking` block"]
        )
    elif kind == "search_result":
        yield from extra(where, block, "type source title content", "citations cache_control")
    elif kind == "redacted_thinking":
        yield from extra(where, block, "type data")
    elif kind == "server_tool_use":
        yield from text(
            f"{where}.server_tool_use.id",
            block["id"],
            longest=256,
            pattern="^srvtoolu_[a-zA-Z0-9_]+$",
        )


def anthropic_result(where: str, block: Mapping[str, Any]) -> Iterator[str]:
    """A result: texts, images and documents; texts alone, and not empty, after an error."""
    yield from extra(where, block, "type tool_use_id content", "is_error cache_control")
    content = block["content"]
    if block.get("is_error") and not content:
        yield f"{where}.tool_result: content cannot be empty if `is_error` is true"
    for at, part in enumerate(content if isinstance(content, list) else ()):
        if part["type"] not in ("text", "image", "document", "search_result", "tool_reference"):
            yield f"{where}.tool_result.content.{at}: Input tag '{part['type']}' does not match any of the tags"
        elif block.get("is_error") and part["type"] != "text":
            yield f'{where}.tool_result: all content must be type "text" if `is_error` is true'
        elif part["type"] == "tool_reference":
            yield from extra(where, part, "type tool_name", "cache_control")
        else:
            yield from anthropic_block(f"{where}.content.{at}", part, "user")


def anthropic_media(where: str, block: Mapping[str, Any]) -> Iterator[str]:
    """An image or a document."""
    yield from extra(where, block, "type source", "cache_control title citations context")
    source, is_image = block["source"], block["type"] == "image"
    kind = source.get("type")
    if kind == "base64":
        types = IMAGE_TYPES if is_image else ("application/pdf",)
        if source["media_type"] not in types:
            yield f"{where}.source.base64.media_type: Input should be one of {types}"
        yield from base64_of(f"{where}.source.base64", source["data"])
        if is_image and len(source["data"]) > 5 * 1024 * 1024:
            yield f"{where}.image.source.base64: image exceeds 5 MB maximum: {len(source['data'])} bytes"
    elif kind == "url":
        if not source["url"].startswith("https://"):
            yield f"{where}.source.url: Only HTTPS URLs are supported."
    elif kind == "text" and not is_image:
        if not source["data"].strip():
            yield f"{where}.source: text content must be non-empty"
    elif kind != "file":
        yield f"{where}.source: Input tag '{kind}' found using 'type' does not match any of the expected tags"
