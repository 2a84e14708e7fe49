"""Adapts a view to a provider that did not write all of its messages.

Providers reject whole requests because of messages that another provider wrote:

- call ids in another format,
- reasoning with a foreign signature,
- arguments that are not JSON,
- a message without content,
- a system message in the middle of the list,
- an assistant message at the beginning.

Messages that the provider itself wrote stay byte for byte, except for empty answers, which no view has. All others are
adapted in place and always in the same way, so that prompt caches stay valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.messages.call_arguments import with_json_arguments
from convstore.messages.call_ids import CallIdTemplate, NewIds, rename_calls
from convstore.messages.media import is_media, media_description
from convstore.messages.provenance import mark
from convstore.messages.reasoning import without_reasoning
from convstore.messages.tool_calls import calls_of, pair
from convstore.values.json_form import sendable_message
from convstore.wire.openai_chat import BEGINNING, INSTRUCTION, MOVED
from convstore.wire.steps import NO_TEXT

_Message = TypeVar("_Message", bound=BaseMessage)


@dataclass(frozen=True, slots=True)
class Provider:
    """Rules of a provider for the messages that it accepts.

    Attributes:
        call_ids: Accepted format of tool call ids.
        system_first: True if system messages are accepted only at the beginning.
        human_first: True if the first message after those must not be an AI message; Gemini rejects one with calls.
        media_in_results: Where images and files of tool results go: "kept" if the provider takes them there, or its
            package moves them; "moved" to a human message after the results; "named" by a text.
    """

    call_ids: CallIdTemplate
    system_first: bool
    human_first: bool = False
    media_in_results: Literal["kept", "moved", "named"] = "kept"


PROVIDERS = {
    "anthropic": Provider(CallIdTemplate("toolu_{r:24:b}"), system_first=True),
    "bedrock_converse": Provider(
        CallIdTemplate("tooluse_{r:22:b}"), system_first=True, human_first=True
    ),
    "google_genai": Provider(CallIdTemplate("call_{r:24:x}"), system_first=True, human_first=True),
    "mistralai": Provider(CallIdTemplate("{r:9:x}"), system_first=False, media_in_results="named"),
    "openai": Provider(
        CallIdTemplate("call_{r:24:x}"), system_first=False, media_in_results="moved"
    ),
}
"""Providers by the name that LangChain's packages write into ``response_metadata["model_provider"]``."""


def fit_for(messages: Sequence[BaseMessage], provider: str | None) -> list[BaseMessage]:
    """Turn any messages into a list that a provider accepts: paired, and adapted as `made_for` says.

    >>> [message.type for message in fit_for([ToolMessage("2", tool_call_id="c"), HumanMessage("hi")], None)]
    ['human']
    """
    original = with_original_ids(messages, provider) if provider else messages
    return [sendable_message(message) for message in made_for(pair(original).messages, provider)]


def with_original_ids(messages: Sequence[BaseMessage], provider: str) -> list[BaseMessage]:
    """Restore the original call ids in results that came back under ids that `made_for` assigned."""
    ids = _ids_for(provider)
    original_ids = dict[str, str]()
    call_ids = set[str]()
    restored: list[BaseMessage] = []
    for message in messages:
        for call in calls_of(message):
            call_ids.add(call.id)
            original_ids[ids.give(call, message)] = call.id
        is_renamed = isinstance(message, ToolMessage) and message.tool_call_id not in call_ids
        original = (
            original_ids.get(message.tool_call_id)
            if is_renamed and isinstance(message, ToolMessage)
            else None
        )
        restored.append(
            message.model_copy(update={"tool_call_id": original})
            if original is not None
            else message
        )
    return restored


def made_for(messages: Sequence[BaseMessage], provider: str | None) -> list[BaseMessage]:
    """Adapt messages to a provider; messages that need no change stay the same objects.

    Without a provider only AI messages without text and calls are adapted.

    - Ids that do not fit, or that are not unique, are replaced in the call and in its result. The same message always
      gets the same ids.
    - Messages written by another or an unknown provider lose reasoning and signatures, and their arguments become
      JSON.
    - A system, human or AI message without text and calls gets the text "(no text)". Dropping it could leave two
      messages of one kind in a row, which some providers reject as well.
    - If the provider accepts system messages only at the beginning, a later one stays in place. It becomes a human
      message that begins with the line "[Instruction of the application]". Moving it to the beginning would change
      the order of events, and every new one would change the prefix of the view. A user can write the same line, so it
      has no more authority than a user's words.
    - If the provider rejects an AI message as the first one, such as a greeting, a human message "(The conversation
      begins.)" is inserted before it, marked ``{"convstore": {"kind": "beginning"}}``.
    - Images and files in tool results become texts where the provider rejects them. For OpenAI they follow the results
      in a human message, marked ``{"convstore": {"kind": "media"}}``; Mistral accepts none there.

    Args:
        messages: A list in which each result follows its call, as `tool_calls.pair` returns it.
        provider: One of `PROVIDERS`, or None.
    """
    if provider is None:
        return [
            _with_text(each, own=True)
            if isinstance(each, AIMessage) and _may_be_empty(each)
            else each
            for each in messages
        ]
    ids = _ids_for(provider)
    adapted: list[BaseMessage] = []
    at_head = True
    for first, results in _groups(messages):
        at_head = at_head and isinstance(first, SystemMessage)
        if isinstance(first, AIMessage):
            own = first.response_metadata.get("model_provider") == provider
            clean = _with_text(first if own else _without_foreign_parts(first), own=own)
            renamed, answers = rename_calls(clean, results, ids)
            adapted += [
                renamed,
                *_with_allowed_media(answers, PROVIDERS[provider].media_in_results),
            ]
        elif isinstance(first, SystemMessage) and PROVIDERS[provider].system_first and not at_head:
            adapted += [_instruction(first), *results]
        else:
            adapted += [
                _with_text(first) if isinstance(first, HumanMessage | SystemMessage) else first,
                *results,
            ]
    return _with_human_first(adapted) if PROVIDERS[provider].human_first else adapted


def _with_allowed_media(results: Sequence[ToolMessage], where: str) -> list[BaseMessage]:
    """Return results with texts in place of images and files, unless these are kept, and the message they move to."""
    if where == "kept":
        return list(results)
    named = list[BaseMessage]()
    media = list[Any]()
    for result in results:
        blocks: Any = result.content
        found = [block for block in blocks if is_media(block)] if isinstance(blocks, list) else []
        texts = (
            [_media_text(block) if is_media(block) else block for block in blocks]
            if found
            else blocks
        )
        named.append(result.model_copy(update={"content": texts}) if found else result)
        media += found
    if where == "named" or not media:
        return named
    said = [{"type": "text", "text": MOVED}, *media]
    return [
        *named,
        HumanMessage(said, id=f"media-{results[0].id}", additional_kwargs=mark("media")),
    ]


def _media_text(block: Any) -> dict[str, str]:
    return {"type": "text", "text": f"[{media_description(block)}]"}


def _with_human_first(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Insert a human message if an AI message would be the first one after the leading system messages."""
    head = next(
        (index for index, message in enumerate(messages) if not isinstance(message, SystemMessage)),
        None,
    )
    if head is None or not isinstance(messages[head], AIMessage):
        return messages
    return [
        *messages[:head],
        HumanMessage(BEGINNING, id="beginning", additional_kwargs=mark("beginning")),
        *messages[head:],
    ]


def _ids_for(provider: str) -> NewIds:
    # Unique, because some adapters look up a result by its id in the whole request.
    return NewIds(PROVIDERS[provider].call_ids, unique=True)


def _without_foreign_parts(message: AIMessage) -> AIMessage:
    clean = without_reasoning(message)
    return with_json_arguments(clean) if isinstance(clean, AIMessage) else message


def _with_text(message: _Message, *, own: bool = False) -> _Message:
    """Return the message, with a placeholder text if nothing in it would be sent to this provider."""
    blocks = message.content if isinstance(message.content, list) else [message.content]
    other_fields = (
        message.additional_kwargs.values()
        if own
        else [message.additional_kwargs.get("function_call")]
    )
    if not all(map(_is_blank, blocks)) or any(other_fields) or calls_of(message):
        return message
    return message.model_copy(update={"content": NO_TEXT})


def _may_be_empty(message: AIMessage) -> bool:
    """Return False for nearly all messages with a text or a call, which is quickly seen."""
    content: Any = message.content
    return not message.tool_calls and (type(content) is list or not content or content[0].isspace())


def _is_blank(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else block
    return isinstance(text, str) and (not text or text.isspace())


def _instruction(message: SystemMessage) -> HumanMessage:
    """Convert a system message to a human one that the provider accepts in the middle of a list; keep its id."""
    said = message.content
    text = (
        f"{INSTRUCTION}\n{said}"
        if isinstance(said, str)
        else [{"type": "text", "text": INSTRUCTION}, *said]
    )
    return HumanMessage(
        text, id=message.id, name=message.name, additional_kwargs=message.additional_kwargs
    )


def _groups(messages: Sequence[BaseMessage]) -> Iterator[tuple[BaseMessage, list[ToolMessage]]]:
    """Yield each message with the tool results that follow it."""
    index = 0
    while index < len(messages):
        first = messages[index]
        results = list[ToolMessage]()
        index += 1
        while index < len(messages) and isinstance(result := messages[index], ToolMessage):
            results.append(result)
            index += 1
        yield first, results
