"""Write a view for Anthropic's Messages API: the leading system messages apart, all results of a step in one message.

A later system message stays in its place, as a user message that begins with ``[Instruction of the application]``: few
models take system messages there, and moving it to the front would change the prefix that prompt caches know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError
from convstore.messages.text import content_of
from convstore.messages.tool_calls import is_paused
from convstore.wire.openai_chat import IMAGES
from convstore.wire.parts import Block, Media, Part, Text
from convstore.wire.requests import AnthropicMessages
from convstore.wire.steps import NO_TEXT, Result, Step, WireCall, is_reasoning, read_steps

BEGINNING: Final = "(The conversation begins.)"
INSTRUCTION: Final = "[Instruction of the application]"
_IMAGE_CHARACTERS: Final = 5 * 1024 * 1024
_HOSTED_ID: Final = re.compile(r"srvtoolu_[a-zA-Z0-9_]+")
_HOSTED_RESULTS: Final = frozenset(
    {
        *(
            "bash_code_execution_tool_result",
            "code_execution_tool_result",
            "text_editor_code_execution_tool_result",
        ),
        *("tool_search_tool_result", "web_fetch_tool_result", "web_search_tool_result"),
    }
)
_SIGNED: Final = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}
_SYSTEM: Final = ("system", "developer")


def to_anthropic(
    messages: Sequence[BaseMessage], *, model: str | None = None, cache: str | None = None
) -> AnthropicMessages:
    """Return a view as `messages` and `system` of a request; `cache` marks what the prompt cache should keep.

    >>> from langchain_core.messages import HumanMessage, SystemMessage
    >>> to_anthropic([SystemMessage("Be brief."), HumanMessage("Hello")])
    {'system': [{'type': 'text', 'text': 'Be brief.'}], 'messages': [{'role': 'user', 'content': 'Hello'}]}
    """
    if cache not in (None, "5m", "1h"):
        raise InvalidInputError(f'cache is "5m", "1h" or None, not {cache!r}')
    steps, dropped = read_steps(messages, model=model)
    steps = _joined(steps)
    head = next((at for at, step in enumerate(steps) if step.role not in _SYSTEM), len(steps))
    system = [block for step in steps[:head] for block in step.content(lambda _: None)]
    made = list[dict[str, Any]]()
    finished = 0
    for step in steps[head:]:
        finished = finished if step.is_open else len(made) + 1 + bool(step.results)
        made += _messages(step)
    if not made or made[0]["role"] != "user":
        made.insert(0, {"role": "user", "content": BEGINNING})
        finished += 1
    if cache:
        _mark(system, made, finished, cache)
    return AnthropicMessages({**({"system": system} if system else {}), "messages": made}, dropped)


def _joined(steps: Sequence[Step]) -> list[Step]:
    """Join each answer that was paused with the one that went on with it: that has the results of its hosted calls."""
    joined = list[Step]()
    for step in steps:
        is_same = bool(joined) and is_paused(joined[-1].message) and not joined[-1].results
        if is_same and step.role == "assistant":
            step.parts[:0] = joined.pop().parts
        joined.append(step)
    return joined


def _messages(step: Step) -> Iterator[dict[str, Any]]:
    """Yield a message, then the user message with the results of its calls."""
    if step.role == "assistant":
        if problem := _problem(step):
            step.withhold(problem)
        content = [block for part in step.parts if (block := _block(part, step))]
        if (
            content and content[-1]["type"] == "text"
        ):  # the API rejects white space at the end of the last answer
            content[-1]["text"] = content[-1]["text"].rstrip()
    else:
        content = step.content(_media if step.role == "user" else lambda _: None)
        content = (
            [{"type": "text", "text": INSTRUCTION}, *content] if step.role in _SYSTEM else content
        )
    role = "assistant" if step.role == "assistant" else "user"
    yield {"role": role, "content": content_of(content) or NO_TEXT}
    if step.results:
        yield {"role": "user", "content": [_result(step, result) for result in step.results]}


def _problem(step: Step) -> str:
    """Return why the reasoning of a message cannot go, "" if all of it can."""
    thoughts = [at for at, part in enumerate(step.parts) if is_reasoning(part)]
    provider = step.message.response_metadata.get("model_provider") or "anthropic"
    if (
        provider != "anthropic"
        or not all(_thought(step.parts[at]) for at in thoughts)
        or step.reasoning
    ):
        return "it has no signature of Anthropic"
    is_followed = any(
        isinstance(part, Text | WireCall) or (isinstance(part, Block) and _is_paired(part, step))
        for part in step.parts[max(thoughts, default=-1) + 1 :]
    )
    return "" if is_followed else "nothing that can be sent followed it"


def _thought(part: Part | WireCall) -> dict[str, Any] | None:
    """Return a block of thinking with its signature, None for any other reasoning."""
    block = part.block if isinstance(part, Block) else {}
    names = _SIGNED.get(str(block.get("type")), ())
    found = {name: block.get(name) for name in names}
    is_signed = (
        names and all(isinstance(value, str) for value in found.values()) and found[names[-1]]
    )
    return {"type": block["type"], **found} if is_signed else None


def _block(part: Part | WireCall, step: Step) -> dict[str, Any] | None:
    """Return the block of a part of an answer, None for one that is not sent."""
    if isinstance(part, WireCall):
        return {
            "type": "tool_use",
            "id": part.id,
            "name": part.name,
            "input": json.loads(part.arguments),
        }
    if not isinstance(part, Block):
        return {"type": "text", "text": part.text} if isinstance(part, Text) else None
    if part.kind == "reasoning":
        return _thought(part)
    if _is_paired(part, step):
        return dict(part.block)
    step.drop(part.type, "Anthropic does not take it here")
    return None


def _is_paired(part: Block, step: Step) -> bool:
    """Return True for a call of a tool that Anthropic ran, or its result, if the message has both.

    Of an answer that is paused, Anthropic goes on with the calls that have no result yet.
    """
    others = [block for block in step.parts if isinstance(block, Block) and block.kind == "other"]
    calls = [block.block.get("id") for block in others if block.type == "server_tool_use"]
    results = [block.block.get("tool_use_id") for block in others if block.type in _HOSTED_RESULTS]
    own = part.block.get("id" if part.type == "server_tool_use" else "tool_use_id")
    is_whole = calls.count(own) == results.count(own) == 1
    is_going_on = (
        step.is_open and is_paused(step.message) and calls.count(own) == 1 and own not in results
    )
    return (is_whole or is_going_on) and _HOSTED_ID.fullmatch(str(own)) is not None


def _result(step: Step, result: Result) -> dict[str, Any]:
    """Return the block of a result; that of a failed call is text only."""
    is_error = getattr(result.message, "status", "") == "error"
    content = content_of(step.content((lambda _: None) if is_error else _media, result))
    block = {"type": "tool_result", "tool_use_id": result.call.id, "content": content}
    return {**block, "content": content or NO_TEXT, "is_error": True} if is_error else block


def _media(media: Media) -> dict[str, Any] | None:
    """Return the block of an image or a document, None for one that the API does not take."""
    is_image = media.kind == "image"
    is_small = not is_image or len(media.data) <= _IMAGE_CHARACTERS
    source: dict[str, str] | None = None
    if (
        media.data
        and is_small
        and media.mime_type in (IMAGES if is_image else ("application/pdf",))
    ):
        source = {"type": "base64", "media_type": media.mime_type, "data": media.data}
    elif media.url.startswith("https:") and (
        is_image or media.mime_type in ("", "application/pdf")
    ):
        source = {"type": "url", "url": media.url}
    elif media.file_id.startswith("file_"):
        source = {"type": "file", "file_id": media.file_id}
    title = {"title": media.name[:500]} if media.name and not is_image else {}
    is_known = source is not None and media.kind in ("image", "file")
    return (
        {"type": "image" if is_image else "document", "source": source, **title}
        if is_known
        else None
    )


def _mark(
    system: list[dict[str, Any]], messages: list[dict[str, Any]], finished: int, ttl: str
) -> None:
    """Mark the end of the system messages, of the finished turns and of the view: three of the four marks allowed."""
    control: Any = {"type": "ephemeral", "ttl": ttl}
    if system:
        system[-1]["cache_control"] = control
    for message in {id(item): item for item in (*messages[:finished][-1:], messages[-1])}.values():
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        blocks = [block for block in message["content"] if block["type"] not in _SIGNED]
        blocks[-1]["cache_control"] = control
