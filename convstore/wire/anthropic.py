"""Write a view for Anthropic's Messages API: leading system messages as `system`, all results of a step in one message.

A later system message becomes a user message at its position, which begins with ``[Instruction of the application]``.
Few models accept system messages there, and moving it to the front would change the prefix of prompt caches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, Literal

from langchain_core.messages import BaseMessage

from convstore.messages.text import content_of
from convstore.messages.tool_calls import is_paused
from convstore.values.providers import ROWS, ProviderRules, row_of_model, rules_for
from convstore.values.scope import check_one_of
from convstore.wire.edits import BEGINNING, MOVED, NO_TEXT, SYSTEM
from convstore.wire.hosted import hosted_text
from convstore.wire.parts import IMAGES, Block, Media, Part, Text
from convstore.wire.requests import AnthropicMessages
from convstore.wire.steps import (
    Result,
    Step,
    WireCall,
    is_reasoning_part,
    last_model,
    no_media,
    read_steps,
    results_with_moved_media,
)

_HOSTED_ID: Final = re.compile(r"(srv|mcp)toolu_[a-zA-Z0-9_]+")
_HOSTED_CALLS: Final = frozenset({"mcp_tool_use", "server_tool_use"})
_OF_CALLS: Final = frozenset(
    {"cache_control", "id", "index", "input", "name", "partial_json", "type"}
)
"""Fields of a call block that are written from the call itself, or left over from a stream."""
_SIGNED: Final = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


def to_anthropic(
    messages: Sequence[BaseMessage],
    *,
    model: str | None = None,
    cache: str | None = None,
    provider: str | ProviderRules | None = None,
) -> AnthropicMessages:
    """Return a view as `messages` and `system` of a request, with cache marks of the lifetime `cache`.

    >>> from langchain_core.messages import HumanMessage, SystemMessage
    >>> to_anthropic([SystemMessage("Be brief."), HumanMessage("Hello")])
    {'system': [{'type': 'text', 'text': 'Be brief.'}], 'messages': [{'role': 'user', 'content': 'Hello'}]}
    """
    check_one_of(cache, "5m", "1h", None, name="cache")
    rules = _rules(provider, model or last_model(messages))
    steps, dropped = read_steps(messages, rules, model=model)
    hosted = _Hosted(steps)
    head = next((at for at, step in enumerate(steps) if step.role not in SYSTEM), len(steps))
    system = [block for step in steps[:head] for block in step.content(no_media)]
    made, finished = _written_steps(steps[head:], rules, hosted)
    if cache:
        _mark(system, made, finished, cache)
    arguments: dict[str, Any] = {"system": system} if system else {}
    if hosted.container:
        arguments["container"] = hosted.container
    return AnthropicMessages({**arguments, "messages": made}, dropped)


def _written_steps(
    steps: Sequence[Step], rules: ProviderRules, hosted: _Hosted
) -> tuple[list[dict[str, Any]], int]:
    """Return the messages of some steps, and the number of messages in finished turns."""
    made: list[dict[str, Any]] = []
    finished = 0
    for step in steps:
        made += _messages(step, hosted)
        if not step.is_open:
            finished = len(made)
    if not made:
        made.append(_message("user", [{"type": "text", "text": BEGINNING.text}], rules))
    return made, finished


def _message(role: str, content: list[dict[str, Any]], rules: ProviderRules) -> dict[str, Any]:
    """Return a message. With bound thinking, the content is always a list, so that a cache mark does not change it."""
    if rules.bound_thinking:
        return {"role": role, "content": content or [{"type": "text", "text": NO_TEXT}]}
    return {"role": role, "content": content_of(content) or NO_TEXT}


def _rules(provider: str | ProviderRules | None, model: str | None) -> ProviderRules:
    """Return the rules of a Claude model, or rules for another model behind a server with the same API."""
    rules = rules_for(provider, None, default=ROWS["anthropic"])
    if isinstance(provider, ProviderRules):
        return rules
    if model:
        rules = row_of_model(model)
    return rules if rules.kin == ROWS["anthropic"].kin else _like_anthropic(rules)


@lru_cache
def _like_anthropic(rules: ProviderRules) -> ProviderRules:
    reasoning: Literal["always", "open_turn"]
    reasoning = "always" if rules.reasoning == "always" else "open_turn"
    return replace(
        ROWS["anthropic"],
        package=rules.kin,
        reasoning=reasoning,
        reasoning_of=rules.reasoning_of,
    )


class _Hosted:
    """The calls of tools that Anthropic ran itself, and their results, which may be in a later answer.

    Attributes:
        container: Id of the container in which a pending call runs, "" without one.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.container = ""
        self._calls: dict[str, tuple[int, Block]] = {}
        self._results: dict[str, tuple[int, Block]] = {}
        self._last: Step | None = None
        for at, step in enumerate(steps):
            if step.role != "assistant":
                continue
            self._last = step
            for part in step.parts:
                if isinstance(part, Block) and part.kind == "other":
                    known = self._calls if part.type in _HOSTED_CALLS else self._results
                    known.setdefault(_hosted_id(part), (at, part))
        for id_, (at, _) in self._calls.items():
            if id_ not in self._results and steps[at] is self._last:
                self._set_container(steps[at])

    def _set_container(self, step: Step) -> None:
        container = step.message.additional_kwargs.get("container")
        own = container.get("id") if isinstance(container, dict) else None
        self.container = own if isinstance(own, str) else self.container

    def is_sent(self, part: Block, step: Step) -> bool:
        """Return True for a call with its result, for a result with its call, and for a pending call.

        A call is pending in a paused answer, or beside calls of the client; Anthropic continues such a call.
        """
        own = _hosted_id(part)
        if not _HOSTED_ID.fullmatch(own) or not _is_hosted(part):
            return False
        call = self._calls.get(own)
        result = self._results.get(own)
        if call is None or not any(part is found[1] for found in (call, result) if found):
            return False
        if result is None:
            is_pending = is_paused(step.message) or bool(step.results)
            return is_pending and step is self._last
        return call[0] <= result[0]


def _hosted_id(part: Block) -> str:
    key = "id" if part.type in _HOSTED_CALLS else "tool_use_id"
    return str(part.block.get(key))


def _is_hosted(part: Block) -> bool:
    return part.type in _HOSTED_CALLS or part.type.endswith("_tool_result")


def _messages(step: Step, hosted: _Hosted) -> Iterator[dict[str, Any]]:
    """Yield a message, then the user message with the results of its calls."""
    role = step.role
    if role == "assistant":
        content = _answer(step, hosted)
    elif role in SYSTEM:
        role = "system"
        content = step.content(no_media)
    else:
        content = _user_content(step)
    yield _message(role, content, step.rules)
    if step.results:
        yield {"role": "user", "content": _results(step)}


def _answer(step: Step, hosted: _Hosted) -> list[dict[str, Any]]:
    """Return the blocks of an answer."""
    step.drop_beside()
    if problem := _problem(step, hosted):
        step.withhold(problem)
    content: list[dict[str, Any]] = []
    for part in step.parts:
        if block := _block(part, step, hosted):
            content.append(block)
            if isinstance(part, Text) and part.settings:
                step.drop_settings(part, block)
    if content and content[-1]["type"] == "text":
        # The API rejects an answer that ends with white space as the last message.
        content[-1]["text"] = content[-1]["text"].rstrip()
    return content


def _user_content(step: Step, result: Result | None = None) -> list[dict[str, Any]]:
    """Return the texts and media of a user message or a result; documents and search results stay unchanged."""
    source = partial(_source_block, is_result=result is not None)
    return step.content(anthropic_media, result, source=source)


def _source_block(text: Text, *, is_result: bool) -> dict[str, Any] | None:
    """Return the block of a document, a search result or a tool reference if the API accepts it, else None."""
    block = text.source or {}
    kind = block.get("type")
    is_valid = False
    if kind == "tool_reference":
        is_valid = is_result and isinstance(block.get("tool_name"), str)
    elif kind == "search_result":
        is_valid = _is_search_result(block)
    elif kind == "document":
        is_valid = _is_document(block.get("source"))
    if not is_valid:
        return None
    return {key: value for key, value in block.items() if key != "cache_control"}


def _is_search_result(block: Mapping[str, Any]) -> bool:
    names = block.get("source"), block.get("title")
    return all(isinstance(name, str) for name in names) and _are_texts(block.get("content"))


def _are_texts(blocks: Any) -> bool:
    """Return True for a list of text blocks that are not blank."""
    if not isinstance(blocks, list) or not blocks:
        return False
    return all(
        isinstance(block, dict)
        and block.get("type") == "text"
        and isinstance(block.get("text"), str)
        and bool(block["text"].strip())
        for block in blocks
    )


def _is_document(source: Any) -> bool:
    """Return True for the source of a document of plain text or of text blocks."""
    if not isinstance(source, dict):
        return False
    if source.get("type") == "content":
        content = source.get("content")
        return _are_texts(content) or (isinstance(content, str) and bool(content.strip()))
    data = source.get("data")
    is_plain = source.get("type") == "text" and source.get("media_type") == "text/plain"
    return is_plain and isinstance(data, str) and bool(data.strip())


def _problem(step: Step, hosted: _Hosted) -> str:
    """Return the reason why the reasoning of a message cannot be sent, "" if all of it can."""
    thoughts = [at for at, part in enumerate(step.parts) if is_reasoning_part(part)]
    if not thoughts and not step.reasoning:
        return ""
    provider = step.message.response_metadata.get("model_provider") or "anthropic"
    is_signed = all(_thought(step.parts[at]) for at in thoughts)
    if provider != "anthropic" or not is_signed or step.reasoning:
        return "it has no signature of Anthropic"
    following = step.parts[max(thoughts, default=-1) + 1 :]
    is_followed = any(_is_said(part, step, hosted) for part in following)
    return "" if is_followed else "nothing that can be sent followed it"


def _is_said(part: Part | WireCall, step: Step, hosted: _Hosted) -> bool:
    """Return True for a part of an answer that is sent, in its own form or as a text."""
    if isinstance(part, Block):
        return hosted.is_sent(part, step) or bool(hosted_text(part.block))
    return isinstance(part, Text | WireCall)


def _thought(part: Part | WireCall) -> dict[str, Any] | None:
    """Return a block of thinking with its signature, None for any other reasoning."""
    block = part.block if isinstance(part, Block) else {}
    names = _SIGNED.get(str(block.get("type")), ())
    found = {name: block.get(name) for name in names}
    is_signed = (
        names and all(isinstance(value, str) for value in found.values()) and found[names[-1]]
    )
    return {"type": block["type"], **found} if is_signed else None


def _block(part: Part | WireCall, step: Step, hosted: _Hosted) -> dict[str, Any] | None:
    """Return the block for a part of an answer, None if it is not sent."""
    if isinstance(part, WireCall):
        return _call_block(part)
    if isinstance(part, Text):
        return _text_block(part, step)
    if not isinstance(part, Block):
        return None
    if part.kind == "reasoning":
        return _thought(part)
    if hosted.is_sent(part, step):
        return {key: value for key, value in part.block.items() if key != "cache_control"}
    text = hosted_text(part.block)
    step.drop(part.type, "only a text names it" if text else "Anthropic does not accept it here")
    return {"type": "text", "text": text} if text else None


def _call_block(call: WireCall) -> dict[str, Any]:
    """Return the block of a call, with further fields from Anthropic, such as `caller`."""
    own = call.own_fields(("tool_use",), _OF_CALLS)
    given = json.loads(call.arguments)
    return {**own, "type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _text_block(text: Text, step: Step) -> dict[str, Any]:
    """Return the block of a text, with its citations from Anthropic."""
    block: dict[str, Any] = {"type": "text", "text": text.text}
    citations = text.settings.get("citations")
    is_own = step.message.response_metadata.get("model_provider") == "anthropic"
    if is_own and isinstance(citations, list):
        block["citations"] = citations
    return block


def _results(step: Step) -> list[dict[str, Any]]:
    """Return the blocks of results, followed by their images and files if results must be text only."""
    results, moved = results_with_moved_media(
        step, anthropic_media, moves=step.rules.result_media == "moved"
    )
    blocks = [_result(step, result) for result in results]
    return [*blocks, {"type": "text", "text": MOVED}, *moved] if moved else blocks


def _result(step: Step, result: Result) -> dict[str, Any]:
    """Return the block of a result; the result of a failed call is text only."""
    is_error = getattr(result.message, "status", "") == "error"
    is_text = is_error and not step.rules.failed_media
    if is_text or step.rules.result_media == "named":
        content = content_of(step.content(no_media, result))
    else:
        content = content_of(_user_content(step, result))
    block = {"type": "tool_result", "tool_use_id": result.call.id, "content": content}
    return {**block, "content": content or NO_TEXT, "is_error": True} if is_error else block


def anthropic_media(media: Media, rules: ProviderRules) -> dict[str, Any] | None:
    """Return the block of an image or a document, None if the API does not accept it."""
    source = _source(media, rules)
    if source is None:
        return None
    if media.kind == "image":
        return {"type": "image", "source": source}
    block: dict[str, Any] = {"type": "document", "source": source}
    if media.name:
        block["title"] = media.name[:500]
    if isinstance(media.settings.get("citations"), dict):
        block["citations"] = media.settings["citations"]
    if isinstance(media.settings.get("context"), str):
        block["context"] = media.settings["context"]
    return block


def _is_accepted(media: Media, rules: ProviderRules) -> bool:
    """Return True if the API accepts the data of an image or a document."""
    if media.kind != "image":
        return bool(media.data) and media.mime_type == "application/pdf"
    limit = rules.image_characters or len(media.data)
    return 0 < len(media.data) <= limit and media.mime_type in IMAGES


def _source(media: Media, rules: ProviderRules) -> dict[str, str] | None:
    """Return the `source` of an image or a document, None if the API does not accept it."""
    is_image = media.kind == "image"
    if media.kind not in ("image", "file"):
        return None
    if _is_accepted(media, rules):
        return {"type": "base64", "media_type": media.mime_type, "data": media.data}
    if media.url.startswith("https:") and (is_image or media.mime_type in ("", "application/pdf")):
        return {"type": "url", "url": media.url}
    if media.file_id.startswith("file_"):
        return {"type": "file", "file_id": media.file_id}
    return None


def _mark(
    system: list[dict[str, Any]], messages: list[dict[str, Any]], finished: int, ttl: str
) -> None:
    """Set cache marks at the end of the system messages, of the finished turns and of the view; four are allowed."""
    control: Any = {"type": "ephemeral", "ttl": ttl}
    if system:
        system[-1]["cache_control"] = control
    for message in {id(item): item for item in (*messages[:finished][-1:], messages[-1])}.values():
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        # The last block is never thinking, which is not sent at the end of a message.
        message["content"][-1]["cache_control"] = control
