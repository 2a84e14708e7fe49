"""Write a view for OpenAI's Chat Completions API, and for the many servers with the same API.

Tool results are text only in this API, so their images and files follow all results of the step in a user message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import BaseMessage

from convstore.messages.text import content_of
from convstore.values.json_form import is_json
from convstore.values.providers import ROWS, ProviderRules, rules_for
from convstore.wire.edits import MOVED, NO_TEXT, user_name
from convstore.wire.hosted import hosted_text
from convstore.wire.parts import Block, Media, Part, Text, beside_call
from convstore.wire.requests import OpenAIMessages
from convstore.wire.steps import Step, WireCall, no_media, read_steps, results_with_moved_media

NO_REASONING: Final = " "
"""Reasoning of an answer without any, for a provider that refuses answers whose field is missing or empty."""
NO_SIGNATURE: Final = "skip_thought_signature_validator"
"""Google's documented signature for a call that was not made by a Gemini model."""

_AUDIO: Final = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}


def to_chat(
    messages: Sequence[BaseMessage],
    *,
    model: str | None = None,
    provider: str | ProviderRules | None = None,
) -> OpenAIMessages:
    """Return a view as the `messages` of a request under the rules of a provider, or else of a model.

    These rules decide which reasoning is sent. The default are those of OpenAI's models, which do not accept reasoning
    here; DeepSeek, Kimi and GLM require theirs.

    >>> from langchain_core.messages import HumanMessage
    >>> to_chat([HumanMessage("Hello")])
    [{'role': 'user', 'content': 'Hello'}]
    """
    rules = rules_for(provider, model, default=ROWS["openai"])
    steps, dropped = read_steps(messages, rules, model=model, names=True)
    made: list[dict[str, Any]] = []
    for step in steps:
        made += [*_messages(step), *_results(step)]
    return OpenAIMessages(made, dropped)


def media_part(media: Media, _: ProviderRules) -> dict[str, Any] | None:
    """Return the content part of an image, audio or a file, None if the API does not accept it."""
    if media.kind == "image":
        image = {"url": media.image_url, **detail_of(media)}
        return {"type": "image_url", "image_url": image} if media.image_url else None
    if media.kind == "audio" and media.data and media.mime_type in _AUDIO:
        return {
            "type": "input_audio",
            "input_audio": {"data": media.data, "format": _AUDIO[media.mime_type]},
        }
    if media.data and media.mime_type == "application/pdf":
        return {
            "type": "file",
            "file": {"file_data": media.data_url, "filename": media.name or "file.pdf"},
        }
    is_upload = media.kind == "file" and media.file_id.startswith("file-")
    return {"type": "file", "file": {"file_id": media.file_id}} if is_upload else None


def detail_of(media: Media) -> dict[str, str]:
    """Return the `detail` setting of an image for OpenAI, {} without one."""
    detail = media.settings.get("detail")
    return {"detail": detail} if detail in ("auto", "high", "low", "original") else {}


def _messages(step: Step) -> Iterator[dict[str, Any]]:
    """Yield a message; an answer with a text and calls becomes two if the provider does not accept both in one."""
    fields = {"role": step.role, "content": _content(step)}
    if step.role == "assistant":
        fields |= _reasoning(step) | _own_fields(step)
    if step.results:
        yield from _calling(step, fields)
        return
    yield fields | {"content": fields["content"] or NO_TEXT} | _name(step)


def _calling(step: Step, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an answer with calls."""
    rules = step.rules
    calls = [_call(step, result.call) for result in step.results]
    if rules.signature_needed:
        _sign(calls[0], is_open=step.is_open)
    if not rules.text_beside_calls and fields["content"]:
        yield fields | _name(step)
        fields = {"role": "assistant", "content": ""}
    content = fields["content"]
    if not content and rules.text_beside_calls and "reasoning_content" not in fields:
        content = None
    yield fields | {"content": content} | _name(step) | {"tool_calls": calls}


def _as_text(step: Step, part: Part | WireCall) -> Part | WireCall:
    """Return the text that describes an unsupported block, and any other part unchanged."""
    text = _block_text(step, part)
    return Text(text) if text else part


def _content(step: Step) -> Any:
    """Return the texts and media of a message; "" if it has neither."""
    if step.role == "assistant" and any(isinstance(part, Block) for part in step.parts):
        step.parts = [_as_text(step, part) for part in step.parts]
    return content_of(step.content(media_part if step.role == "user" else no_media))


def _block_text(step: Step, part: Part | WireCall) -> str:
    """Return a text that describes a block which the API does not support; "" for any other part."""
    if not isinstance(part, Block):
        return ""
    text = hosted_text(part.block)
    reason = "only a text names it" if text else "Chat Completions does not support it"
    step.drop("reasoning" if part.kind == "reasoning" else part.type, reason)
    return text


def _name(step: Step) -> dict[str, Any]:
    if step.message.type == "function":
        return {}
    name = user_name(step.message.name or "")
    return {"name": name} if name else {}


def _reasoning(step: Step) -> dict[str, Any]:
    """Return the reasoning of an answer; if the provider requires the field, a blank replaces missing reasoning."""
    fields = dict(step.reasoning)
    if step.rules.reasoning_needed:
        fields["reasoning_content"] = reasoning_content(fields) or NO_REASONING
    return fields


def reasoning_content(fields: Mapping[str, Any]) -> str:
    """Return the text of the reasoning beside an answer, "" without one."""
    found = (fields.get(key) for key in ("reasoning_content", "reasoning"))
    return next((said for said in found if isinstance(said, str) and said), "")


def _own_fields(step: Step) -> dict[str, Any]:
    """Return the fields beside the content that the requested provider wrote itself; report the others."""
    found: dict[str, Any] = {}
    for key, value in step.beside().items():
        if key == "extra_content" and step.is_own and is_json(value):
            found[key] = value
        else:
            step.drop(key, "the API does not accept it here")
    return found


def _call(step: Step, call: WireCall) -> dict[str, Any]:
    fields = beside_call(call.listed) if call.listed else {}
    is_own = bool(fields) and step.is_own
    own = {key: value for key, value in fields.items() if is_own and is_json(value)}
    for key in fields.keys() - own.keys():
        step.drop(f"{key} of {call.name}", "another provider wrote it")
    if call.input is not None:
        function = {"name": call.name, "input": call.input}
        return {**own, "id": call.id, "type": "custom", "custom": function}
    function = {"name": call.name, "arguments": call.arguments}
    return {**own, "id": call.id, "type": "function", "function": function}


def _sign(call: dict[str, Any], *, is_open: bool) -> None:
    """Set the documented signature on the first call of a step of the open turn, unless Gemini signed the call."""
    extra = call.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    if is_open and not (isinstance(google, dict) and google.get("thought_signature")):
        call["extra_content"] = {"google": {"thought_signature": NO_SIGNATURE}}


def _results(step: Step) -> Iterator[dict[str, Any]]:
    """Yield the result messages of a step, then the user message with their images and files."""
    rules = step.rules
    results, moved = results_with_moved_media(step, media_part, moves=rules.result_media != "named")
    for result in results:
        step.drop_status(result)
        content = content_of(step.content(no_media, result))
        name = {"name": result.call.name} if rules.result_names else {}
        yield {"role": "tool", "tool_call_id": result.call.id, "content": content, **name}
    if moved:
        yield {"role": "user", "content": [{"type": "text", "text": MOVED}, *moved]}
