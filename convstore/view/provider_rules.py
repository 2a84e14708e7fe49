"""Makes a view safe for a provider that did not write all of it.

Layer 1. Providers refuse whole requests over what another one wrote: ids of calls in another form, reasoning with a
foreign signature, arguments that are no JSON, a message without content, a system message in the middle, an assistant
that speaks first. What the provider itself wrote stays byte for byte, an empty answer apart; everything else is mended
the same way each time and at its place, so that prompt caches live.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.messages.call_arguments import with_json_arguments
from convstore.messages.call_ids import CallIdTemplate, NewIds, rename_calls
from convstore.messages.provenance import mark
from convstore.messages.reasoning import without_reasoning
from convstore.messages.tool_calls import calls_of, pair

__all__ = ["PROVIDERS", "Provider", "fit_for", "made_for", "with_original_ids"]

_INSTRUCTION = "[Instruction of the application]"
_NO_TEXT = "(no text)"
_BEGINNING = "(The conversation begins.)"
_Message = TypeVar("_Message", bound=BaseMessage)


@dataclass(frozen=True, slots=True)
class Provider:
    """What a provider takes.

    Attributes:
        call_ids: The form of tool call ids that it takes.
        system_first: Whether system messages are taken at the head alone.
        human_first: Whether the first message behind those must not be an AI message; Gemini refuses one with calls.
    """

    call_ids: CallIdTemplate
    system_first: bool
    human_first: bool = False


PROVIDERS = {
    "anthropic": Provider(CallIdTemplate("toolu_{r:24:b}"), system_first=True),
    "bedrock_converse": Provider(CallIdTemplate("tooluse_{r:22:b}"), system_first=True, human_first=True),
    "google_genai": Provider(CallIdTemplate("call_{r:24:x}"), system_first=True, human_first=True),
    "mistralai": Provider(CallIdTemplate("{r:9:x}"), system_first=False),
    "openai": Provider(CallIdTemplate("call_{r:24:x}"), system_first=False),
}
"""By the name that LangChain's packages write into ``response_metadata["model_provider"]``."""


class _UniqueIds(NewIds):
    """Ids that fit stay, unless they came before: some adapters find a result by its id in the whole request."""

    def give(self, call_id: str, *, tool: str, place: str) -> str:
        if call_id not in self.taken and self.template.fits(call_id, tool=tool):
            self.taken.add(call_id)
            return call_id
        return self.make(call_id, tool=tool, place=place)


def fit_for(messages: Sequence[BaseMessage], provider: str | None) -> list[BaseMessage]:
    """Any messages as a list that a provider accepts: paired, and unless it is `None` made for it.

    >>> [message.type for message in fit_for([ToolMessage("2", tool_call_id="c"), HumanMessage("hi")], None)]
    ['human']
    """
    if provider is None:
        return pair(messages).messages
    return made_for(pair(with_original_ids(messages, provider)).messages, provider)


def with_original_ids(messages: Sequence[BaseMessage], provider: str) -> list[BaseMessage]:
    """Messages in which results that came back under ids of `made_for` have those of their calls again."""
    ids, original_ids, call_ids = _ids_for(provider), dict[str, str](), set[str]()
    restored: list[BaseMessage] = []
    for message in messages:
        for call in calls_of(message):
            call_ids.add(call.id)
            place = ids.place_of(message, call.id, call.position)
            original_ids[ids.give(call.id, tool=call.tool, place=place)] = call.id
        is_renamed = isinstance(message, ToolMessage) and message.tool_call_id not in call_ids
        original = original_ids.get(message.tool_call_id) if is_renamed and isinstance(message, ToolMessage) else None
        restored.append(message.model_copy(update={"tool_call_id": original}) if original is not None else message)
    return restored


def made_for(messages: Sequence[BaseMessage], provider: str) -> list[BaseMessage]:
    """The messages as the provider takes them; the same objects where nothing has to change.

    Ids that do not fit, or that came before, are replaced in the call and in its result; the same message always gets
    the same ids. Of messages that another provider wrote, or nobody knows who, reasoning and signatures go, and
    arguments become JSON. A system, human or AI message that says and calls nothing says "(no text)": left out, it
    could leave two messages of one kind in a row, which some providers refuse, too.

    Where a provider takes system messages at the head alone, a later one stays at its place, as a human message behind
    the line "[Instruction of the application]". At the head it would speak before it was said, and each new one would
    change the beginning of the view. A user can write that line, too, so it has no more weight than a user's words.

    Where a provider takes no AI message as the first one, as of an assistant that greets, a human message "(The
    conversation begins.)" stands before it, marked ``{"convstore": {"kind": "beginning"}}``.

    Args:
        messages: A list in which each result follows its call, as `pairing.pair` makes it.
        provider: One of `PROVIDERS`.
    """
    ids = _ids_for(provider)
    adapted: list[BaseMessage] = []
    at_head = True
    for first, results in _groups(messages):
        at_head = at_head and isinstance(first, SystemMessage)
        if isinstance(first, AIMessage):
            own = first.response_metadata.get("model_provider") == provider
            clean = _with_text(first if own else _without_foreign_parts(first), own=own)
            renamed, answers = rename_calls(clean, results, ids)
            adapted += [renamed, *answers]
        elif isinstance(first, SystemMessage) and PROVIDERS[provider].system_first and not at_head:
            adapted += [_instruction(first), *results]
        else:
            adapted += [_with_text(first) if isinstance(first, HumanMessage | SystemMessage) else first, *results]
    return _with_human_first(adapted) if PROVIDERS[provider].human_first else adapted


def _with_human_first(messages: list[BaseMessage]) -> list[BaseMessage]:
    """The messages, a human one in front if an AI message would be the first behind the leading system messages."""
    head = next((place for place, one in enumerate(messages) if not isinstance(one, SystemMessage)), None)
    if head is None or not isinstance(messages[head], AIMessage):
        return messages
    return [
        *messages[:head],
        HumanMessage(_BEGINNING, id="beginning", additional_kwargs=mark("beginning")),
        *messages[head:],
    ]


def _ids_for(provider: str) -> _UniqueIds:
    return _UniqueIds(PROVIDERS[provider].call_ids, set(), defaultdict(int))


def _without_foreign_parts(message: AIMessage) -> AIMessage:
    clean = without_reasoning(message)
    return with_json_arguments(clean) if isinstance(clean, AIMessage) else message


def _with_text(message: _Message, *, own: bool = False) -> _Message:
    """The message, with a text if nothing that this provider is sent stands in it."""
    blocks = message.content if isinstance(message.content, list) else [message.content]
    other_fields = message.additional_kwargs.values() if own else [message.additional_kwargs.get("function_call")]
    if calls_of(message) or any(other_fields) or not all(map(_is_blank, blocks)):
        return message
    return message.model_copy(update={"content": _NO_TEXT})


def _is_blank(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else block
    return isinstance(text, str) and not text.strip()


def _instruction(message: SystemMessage) -> HumanMessage:
    """A system message as the provider takes it in the middle of a list; its id stays."""
    said = message.content
    text = f"{_INSTRUCTION}\n{said}" if isinstance(said, str) else [{"type": "text", "text": _INSTRUCTION}, *said]
    return HumanMessage(text, id=message.id, name=message.name, additional_kwargs=message.additional_kwargs)


def _groups(messages: Sequence[BaseMessage]) -> Iterator[tuple[BaseMessage, list[ToolMessage]]]:
    """Each message with the results that follow it."""
    place = 0
    while place < len(messages):
        first, results = messages[place], list[ToolMessage]()
        place += 1
        while place < len(messages) and isinstance(result := messages[place], ToolMessage):
            results.append(result)
            place += 1
        yield first, results
