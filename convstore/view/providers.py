"""Makes a view safe for a provider that did not write all of it.

Layer 1. Providers refuse whole requests over what another one wrote: ids of calls in another form, reasoning with a
foreign signature, arguments that are no JSON, a system message in the middle. What the provider itself wrote stays byte
for byte; everything else is mended the same way each time, so that prompt caches live.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage

from convstore.chain.arguments import with_json_arguments
from convstore.chain.call_ids import CallIdTemplate, NewIds, rename_calls
from convstore.chain.reasoning import without_reasoning
from convstore.pairing import calls_of

__all__ = ["PROVIDERS", "Provider", "made_for", "with_original_ids"]


@dataclass(frozen=True, slots=True)
class Provider:
    """What a provider takes.

    Attributes:
        call_ids: The form of tool call ids that it takes.
        system_first: Whether all system messages must stand at the head.
    """

    call_ids: CallIdTemplate
    system_first: bool


PROVIDERS = {
    "anthropic": Provider(CallIdTemplate("toolu_{r:24:b}"), system_first=True),
    "bedrock_converse": Provider(CallIdTemplate("tooluse_{r:22:b}"), system_first=True),
    "google_genai": Provider(CallIdTemplate("call_{r:24:x}"), system_first=True),
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


def with_original_ids(messages: Sequence[BaseMessage], provider: str) -> list[BaseMessage]:
    """Messages in which results that came back under ids of `made_for` have those of their calls again."""
    ids, made, known = _ids_for(provider), dict[str, str](), set[str]()
    restored: list[BaseMessage] = []
    for message in messages:
        for call in calls_of(message):
            known.add(call.id)
            place = ids.place_of(message, call.id, call.position)
            made[ids.give(call.id, tool=call.tool, place=place)] = call.id
        is_renamed = isinstance(message, ToolMessage) and message.tool_call_id not in known
        original = made.get(message.tool_call_id) if is_renamed and isinstance(message, ToolMessage) else None
        restored.append(message.model_copy(update={"tool_call_id": original}) if original is not None else message)
    return restored


def made_for(messages: Sequence[BaseMessage], provider: str) -> list[BaseMessage]:
    """The messages as the provider takes them; the same objects where nothing has to change.

    Ids that do not fit, or that came before, are replaced in the call and in its result; the same message always gets
    the same ids. Of messages that another provider wrote, or nobody knows who, reasoning and signatures go, and
    arguments become JSON.

    Args:
        messages: A list in which each result follows its call, as `pairing.pair` makes it.
        provider: One of `PROVIDERS`.
    """
    ids = _ids_for(provider)
    mended: list[BaseMessage] = []
    for first, results in _groups(messages):
        if isinstance(first, AIMessage):
            own = first.response_metadata.get("model_provider") == provider
            clean = first if own else _cleaned(first)
            renamed, answers = rename_calls(clean, results, ids)
            mended += [renamed, *answers]
        else:
            mended += [first, *results]
    if PROVIDERS[provider].system_first:
        mended.sort(key=lambda message: not isinstance(message, SystemMessage))  # stable
    return mended


def _ids_for(provider: str) -> _UniqueIds:
    return _UniqueIds(PROVIDERS[provider].call_ids, set(), defaultdict(int))


def _cleaned(message: AIMessage) -> AIMessage:
    clean = without_reasoning(message)
    return with_json_arguments(clean) if isinstance(clean, AIMessage) else message


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
