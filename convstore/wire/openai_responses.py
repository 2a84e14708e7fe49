"""Write a view for OpenAI's Responses API, as a request that does not depend on data stored by OpenAI.

A reasoning item is sent if it is encrypted and the item that followed it is sent, both with their ids. To get encrypted
reasoning, call the API with ``include=["reasoning.encrypted_content"]``. An item of a tool that OpenAI ran is sent back
unchanged if the API accepts it; else a text describes the call and its result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage

from convstore.messages.text import content_of
from convstore.values.providers import ROWS, ProviderRules, rules_for
from convstore.wire.contents import reasoning_text
from convstore.wire.edits import MOVED, NO_TEXT
from convstore.wire.hosted import hosted_text
from convstore.wire.openai_chat import NO_REASONING, detail_of, reasoning_content
from convstore.wire.parts import Block, Media, Part, Text
from convstore.wire.requests import OpenAIMessages
from convstore.wire.steps import (
    Step,
    WireCall,
    is_reasoning_part,
    no_media,
    read_steps,
    results_with_moved_media,
)

_REASONING_FIELDS: Final = ("type", "id", "summary", "content", "encrypted_content")
_HOSTED: Final[Mapping[str, Mapping[str, type]]] = {
    "code_interpreter_call": {"id": str, "code": str, "container_id": str, "outputs": list},
    "file_search_call": {"id": str, "queries": list},
    "mcp_call": {"id": str, "name": str, "server_label": str, "arguments": str},
    "web_search_call": {"id": str, "action": dict},
}
"""Items of hosted tools that the API accepts, with the fields that it requires."""
_OF_CALLS: Final = frozenset(
    {"arguments", "call_id", "id", "index", "input", "name", "status", "type"}
)
"""Fields of a call that are written from the call itself."""
_MADE_ID: Final = "__fake_id__"
"""The id in the Agents SDK of items without an id from an API."""
_PHASES: Final = ("commentary", "final_answer")


def to_responses(
    messages: Sequence[BaseMessage],
    *,
    model: str | None = None,
    provider: str | ProviderRules | None = None,
) -> OpenAIMessages:
    """Return a view as the `input` of a request.

    >>> from langchain_core.messages import HumanMessage
    >>> to_responses([HumanMessage("Hello")])
    [{'type': 'message', 'role': 'user', 'content': 'Hello'}]
    """
    rules = rules_for(provider, None, default=ROWS["responses"])
    if isinstance(provider, str):  # the row of this name has the rules of another API
        rules = ROWS["responses"]
    steps, dropped = read_steps(messages, rules, model=model)
    made: list[dict[str, Any]] = []
    ids: set[str] = set()
    for step in steps:
        if step.role == "assistant":
            made += _answer(step, ids)
        else:
            made.append(_message(step))
        made += _outputs(step)
    return OpenAIMessages(made, dropped)


def _answer(step: Step, ids: set[str]) -> list[dict[str, Any]]:
    """Return the items of one answer of the model."""
    if step.rules.reasoning_needed:
        return _with_reasoning(step, ids)
    return list(_assistant(step, ids)) or [_said(NO_TEXT)]


def _with_reasoning(step: Step, ids: set[str]) -> list[dict[str, Any]]:
    """Return the items of an answer for a server that requires reasoning in each; a blank replaces missing reasoning.

    The Agents SDK joins a reasoning item, the message after it and its calls into a message with `reasoning_content`.
    """
    thought = {"type": "summary_text", "text": _pop_reasoning(step) or NO_REASONING}
    made: list[dict[str, Any]] = [{"type": "reasoning", "id": _MADE_ID, "summary": [thought]}]
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for item in _assistant(step, ids):
        if item["type"] == "message":
            texts.append(item["content"])
        else:
            calls.append(item)
    if texts or not calls:
        text = "\n".join(texts) or NO_TEXT
        made.append(_said(text) | {"id": _MADE_ID} | _output(text))
    return [*made, *calls]


def _pop_reasoning(step: Step) -> str:
    """Remove the reasoning from the parts of an answer and return its text, "" without reasoning."""
    blocks = [part.block for part in step.parts if is_reasoning_part(part)]
    said = reasoning_content(step.reasoning) or "\n".join(map(reasoning_text, blocks))
    if not said:
        step.withhold("it has no text")
    step.parts = [part for part in step.parts if not is_reasoning_part(part)]
    step.reasoning = {}
    return said


def _assistant(step: Step, ids: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the items of one answer: reasoning, texts and calls. They have their ids if the answer has reasoning."""
    step.drop_beside()
    has_reasoning = _keeps_reasoning(step, ids)
    for part in step.parts:
        if isinstance(part, Block) and part.kind == "other":
            yield from _hosted_items(part, step, ids)
            continue
        own = _own_id(part, step) if has_reasoning else ""
        item = _item(part, own if own not in ids else "")
        if isinstance(part, Text) and part.settings:
            sent = item["content"][0] if isinstance(item["content"], list) else item
            step.drop_settings(part, sent)
        yield item
        ids.add(own)


def _keeps_reasoning(step: Step, ids: set[str]) -> bool:
    """Withhold the reasoning of an answer if it cannot be sent; return True if the answer has reasoning to send."""
    has_items = any(map(is_reasoning_part, step.parts))
    problem = _problem(step, ids) if has_items or step.reasoning else ""
    if problem:
        step.withhold(problem)
    return has_items and not problem


def _hosted_items(part: Block, step: Step, ids: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the item of a tool that OpenAI ran, or a text that describes it; report what is not sent."""
    if step.rules.response_items and _is_item(part, ids):
        ids.add(part.block["id"])
        yield {"status": "completed", **part.block}
        return
    text = hosted_text(part.block)
    reason = "only a text names it" if text else "it depends on data that the provider stored"
    step.drop(part.type, reason)
    if text:
        yield _said(text)


def _is_item(part: Block, ids: Collection[str]) -> bool:
    """Return True for the item of a hosted tool with all fields that the API requires."""
    needed = _HOSTED.get(part.type)
    block = part.block
    if needed is None or any(not isinstance(block.get(key), kind) for key, kind in needed.items()):
        return False
    return block["id"] not in ids and block.get("status", "completed") == "completed"


def _problem(step: Step, ids: set[str]) -> str:
    """Return the reason why the reasoning of a message cannot be sent, "" if all of it can."""
    if step.reasoning or not step.rules.response_items:
        return "it is not an item of the Responses API"
    seen: set[str] = set()
    for part, following in _reasoning_in(step):
        own = str(part.block.get("id"))
        if not _is_encrypted(part.block) or own in ids or own in seen:
            return "it is not encrypted reasoning of OpenAI"
        if following is None or _is_lost(following, ids):
            return "the item that followed it cannot be sent"
        seen.add(own)
    return ""


def _reasoning_in(step: Step) -> Iterator[tuple[Block, Part | WireCall | None]]:
    """Yield each item of reasoning of an answer, with the item that followed it."""
    for part, following in zip(step.parts, [*step.parts[1:], None], strict=False):
        if is_reasoning_part(part):
            yield part, following


def _is_encrypted(block: Mapping[str, Any]) -> bool:
    """Return True for a reasoning item of OpenAI with its encrypted content."""
    own = block.get("id")
    for items in (block.get("summary"), block.get("content") or []):
        if not isinstance(items, list) or not all(isinstance(text, dict) for text in items):
            return False
    return isinstance(own, str) and own.startswith("rs_") and bool(block.get("encrypted_content"))


def _is_lost(part: Part | WireCall, ids: Collection[str]) -> bool:
    return isinstance(part, Block) and part.kind == "other" and not _is_item(part, ids)


def _own_id(part: Part | WireCall, step: Step) -> str:
    """Return the id that OpenAI assigned to the item of a part, "" without one."""
    if isinstance(part, WireCall):
        own = part.item_id
        prefix = "fc_" if part.input is None else "ctc_"
    elif isinstance(part, Block):
        own = str(part.block.get("id"))
        prefix = "rs_"
    else:
        own = (isinstance(part, Text) and part.id) or step.message.id or ""
        prefix = "msg_"
    return own if own.startswith(prefix) else ""


def _item(part: Part | WireCall, id_: str) -> dict[str, Any]:
    """Return the item of a part, with an id if one is given."""
    own: dict[str, Any] = {"id": id_} if id_ else {}
    if isinstance(part, WireCall):
        return _call_item(part) | own
    if isinstance(part, Block):
        block = part.block
        return {key: block[key] for key in _REASONING_FIELDS if block.get(key) is not None}
    if not isinstance(part, Text):
        return _said(part.description)
    item = _said(part.text) | own
    if id_:
        item |= _output(part.text, part.settings.get("annotations"))
    return item | ({"phase": part.phase} if part.phase in _PHASES else {})


def _output(text: str, notes: Any = None) -> dict[str, Any]:
    """Return the fields of a message with an id."""
    written = {"type": "output_text", "text": text, "annotations": notes or []}
    return {"status": "completed", "content": [written]}


def _call_item(call: WireCall) -> dict[str, Any]:
    """Return the item of a call, with further fields from OpenAI, such as a namespace."""
    own = call.own_fields(("function_call", "custom_tool_call"), _OF_CALLS)
    own |= {"call_id": call.id, "name": call.name}
    if call.input is not None:
        return {"type": "custom_tool_call", **own, "input": call.input}
    return {"type": "function_call", **own, "arguments": call.arguments}


def _said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": text}


def _message(step: Step) -> dict[str, Any]:
    """Return a user, system or developer message."""
    write = _media_part if step.role == "user" else no_media
    content = step.content(write, kind="input_text")
    return {"type": "message", "role": step.role, "content": content_of(content) or NO_TEXT}


def _outputs(step: Step) -> Iterator[dict[str, Any]]:
    """Yield the results of a step, followed by a user message with their images and files if results are text only."""
    where = step.rules.result_media
    results, moved = results_with_moved_media(step, _media_part, moves=where == "moved")
    for result in results:
        step.drop_status(result)
        kind = "function_call_output" if result.call.input is None else "custom_tool_call_output"
        write = _media_part if where == "kept" else no_media
        output = content_of(step.content(write, result, kind="input_text"))
        yield {"type": kind, "call_id": result.call.id, "output": output}
    if moved:
        text = {"type": "input_text", "text": MOVED}
        yield {"type": "message", "role": "user", "content": [text, *moved]}


def _media_part(media: Media, _: ProviderRules) -> dict[str, Any] | None:
    """Return the input part of an image or a file, None if the API does not accept it."""
    if media.kind == "image":
        where = {"image_url": media.image_url} if media.image_url else _upload(media)
        image = {"type": "input_image", "detail": "auto", **detail_of(media)}
        return image | where if where else None
    where = _file(media)
    return {"type": "input_file", **where} if where and media.kind == "file" else None


def _file(media: Media) -> dict[str, str]:
    if media.data and media.mime_type == "application/pdf":
        return {"file_data": media.data_url, "filename": media.name or "file.pdf"}
    return {"file_url": media.url} if media.url else _upload(media)


def _upload(media: Media) -> dict[str, str]:
    return {"file_id": media.file_id} if media.file_id.startswith("file-") else {}
