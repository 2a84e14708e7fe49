"""Adapts a view to a provider that did not write all of its messages, for the packages of LangChain.

The rules are the rows of `values.providers`, which the writers of requests follow, too. Providers reject whole requests
because of messages that another provider wrote:

- call ids and names in another format,
- reasoning with a foreign signature, and blocks of tools that another provider ran,
- arguments that are not the JSON of an object,
- a message without content, or one that ends with reasoning,
- a system message in the middle of the list,
- an assistant message at the beginning, or a user's directly after a result.

Messages that the provider itself wrote stay byte for byte, with three exceptions: empty answers, invalid names and
arguments of calls, and parts that LangChain's package would send twice or in another order. All other messages are
adapted in place and always in the same way, so that prompt caches stay valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.messages.call_ids import rename_calls
from convstore.messages.media import KINDS, block_type, is_media, media_description
from convstore.messages.media_types import with_true_types
from convstore.messages.provenance import kind_of, mark
from convstore.messages.reasoning import without_reasoning
from convstore.messages.tool_calls import CALL_BLOCKS, calls_of, pair
from convstore.values.json_form import sendable_message
from convstore.values.providers import ProviderRules
from convstore.view.foreign_answers import (
    as_own,
    drop_unsent,
    with_custom_outputs,
    without_foreign_parts,
)
from convstore.view.foreign_blocks import with_accepted_blocks
from convstore.wire.edits import (
    INSTRUCTION,
    MOVED,
    NO_TEXT,
    Inserted,
    RequestEdits,
    tool_name,
    user_name,
)
from convstore.wire.requests import Dropped
from convstore.wire.steps import role_of

_Message = TypeVar("_Message", bound=BaseMessage)


def fit_for(
    messages: Sequence[BaseMessage],
    rules: ProviderRules | None,
    dropped: list[Dropped] | None = None,
) -> list[BaseMessage]:
    """Turn any messages into a list that a provider accepts: calls and results paired, and adapted by `made_for`.

    >>> [message.type for message in fit_for([ToolMessage("2", tool_call_id="c"), HumanMessage("hi")], None)]
    ['human']
    """
    original = with_original_ids(messages, rules) if rules else messages
    adapted = made_for(pair(original).messages, rules, dropped)
    return [sendable_message(message) for message in adapted]


def with_original_ids(messages: Sequence[BaseMessage], rules: ProviderRules) -> list[BaseMessage]:
    """Restore the original call ids in results that have ids which `made_for` assigned."""
    ids = RequestEdits(rules, in_own_form=True).ids
    original_ids: dict[str, str] = {}
    call_ids: set[str] = set()
    restored: list[BaseMessage] = []
    for message in messages:
        for call in calls_of(message):
            call_ids.add(call.id)
            original_ids[ids.give(call, message)] = call.id
        if isinstance(message, ToolMessage) and message.tool_call_id not in call_ids:
            original = original_ids.get(message.tool_call_id, message.tool_call_id)
            if original != message.tool_call_id:
                message = message.model_copy(update={"tool_call_id": original})  # noqa: PLW2901
        restored.append(message)
    return restored


def made_for(
    messages: Sequence[BaseMessage],
    rules: ProviderRules | None,
    dropped: list[Dropped] | None = None,
) -> list[BaseMessage]:
    """Adapt messages to a provider; messages that need no change stay the same objects.

    If `rules` is None, only AI messages without text and calls are adapted.

    - Ids that do not fit, or that are not unique, are replaced in the call and in its result. The same message always
      gets the same ids.
    - Messages written by another or an unknown provider lose reasoning and signatures. Their arguments become objects,
      names of tools get the characters that all providers accept, and calls of hosted tools become texts.
    - A system, human or AI message without text and calls gets the text "(no text)". Dropping it could leave two
      messages of one kind in a row, which some providers reject as well.
    - A system message that the provider does not accept at its position becomes a human message there. It begins with
      the line "[Instruction of the application]". Moving it to the beginning would change the order of events, and
      every new one would change the prefix of the view. A user can write the same line, so it has no more authority
      than a user's words.
    - If the provider rejects an AI message as the first one, such as a greeting, a human message "(The conversation
      begins.)" is inserted before it, marked ``{"convstore": {"kind": "beginning"}}``. If it rejects a human message
      directly after a result, an AI message "(No answer.)" stands between them, marked
      ``{"convstore": {"kind": "no_answer"}}``.
    - The text of an answer with calls becomes a message before it, marked ``{"convstore": {"kind": "said"}}``, where
      only one of them would be sent.
    - Images and PDFs get the type that their bytes have. In user messages and tool results, blocks in the form of
      another provider become texts, and its files LangChain's own blocks.
    - Images and files in tool results become texts where the provider rejects them: for Mistral always, for Anthropic
      in a failed result. For OpenAI they follow the results in a human message, marked
      ``{"convstore": {"kind": "media"}}``.

    Args:
        messages: A list in which each result follows its call, as `tool_calls.pair` returns it.
        rules: The rules of the provider, None without one.
        dropped: A list to which the parts that messages lose are added.
    """
    if rules is None:
        return [_with_own_text(message) for message in messages]
    edits = RequestEdits(rules, in_own_form=True)
    adapted: list[BaseMessage] = []
    for first, results in _groups(messages):
        if not _not_repeated([first], adapted):
            continue
        role = role_of(first)
        place = edits.place(role)
        if place.before:
            adapted.append(_inserted(place.before, first))
        if isinstance(first, AIMessage):
            adapted += _not_repeated(_answer(first, results, edits), adapted)
        else:
            said = first if place.role == role else _instruction(first)
            adapted += [_as_prompt(said, edits), *results]
        if results:
            edits.note_results()
    if dropped is not None:
        dropped += edits.dropped
    return adapted


def _not_repeated(messages: list[BaseMessage], adapted: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return messages without the first if it is a split-off text or media message that was just added.

    The messages of a graph's state may be those of the log after a message that an earlier view split off.
    """
    first = messages[0]
    if not adapted or first.id != adapted[-1].id or kind_of(first) not in ("media", "said"):
        return messages
    return messages[1:]


def _inserted(message: Inserted, following: BaseMessage) -> BaseMessage:
    """Return a message that the provider requires before another one."""
    if message.role == "assistant":
        id_ = f"no-answer-{following.id}"
        return AIMessage(message.text, id=id_, additional_kwargs=mark(message.kind))
    return HumanMessage(message.text, id=message.kind, additional_kwargs=mark(message.kind))


def _with_own_text(message: BaseMessage) -> BaseMessage:
    """Return a message; an AI message without text and calls gets a placeholder text."""
    if isinstance(message, AIMessage) and _may_be_empty(message):
        return _with_text(message, own=True)
    return message


def _as_prompt(message: BaseMessage, edits: RequestEdits) -> BaseMessage:
    """Return a user or system message with blocks, a text and a name that the provider accepts; others unchanged."""
    if not isinstance(message, HumanMessage | SystemMessage):
        return message
    return _with_user_name(_with_text(_with_own_blocks(message, edits)))


def _with_own_blocks(message: _Message, edits: RequestEdits) -> _Message:
    """Return a user message or tool result with blocks that the package accepts, and with true media types."""
    drop = partial(edits.drop, message)
    return with_accepted_blocks(with_true_types(message), edits.rules, drop)


def _with_user_name(message: BaseMessage) -> BaseMessage:
    """Return a message whose name OpenAI accepts; the same object if it needs no change."""
    name = user_name(message.name) if message.name else message.name
    return message if name == message.name else message.model_copy(update={"name": name or None})


def _answer(
    message: AIMessage, results: Sequence[ToolMessage], edits: RequestEdits
) -> list[BaseMessage]:
    """Return an answer and the results of its calls in the form that the provider accepts."""
    rules = edits.rules
    drop = partial(edits.drop, message)
    writer = message.response_metadata.get("model_provider")
    is_own = bool(rules.package) and writer == rules.package
    drop_unsent(message, rules, drop, is_own=is_own)
    if is_own:
        clean = _with_text(as_own(message, rules, drop), own=True)
    else:
        clean = _with_text(without_foreign_parts(message, drop))
    if not results and not calls_of(clean):
        return [clean]
    named = [_with_own_blocks(_with_tool_name(result), edits) for result in results]
    if rules.response_items:
        named = with_custom_outputs(clean, named)
    renamed, answers = rename_calls(clean, named, edits.ids)
    if not rules.failed_media:
        answers = tuple(
            _without_media(each, edits) if each.status == "error" else each for each in answers
        )
    return [*_split_text_and_calls(renamed, rules), *_with_allowed_media(answers, edits)]


def _split_text_and_calls(message: AIMessage, rules: ProviderRules) -> list[BaseMessage]:
    """Return an answer; as two messages if it has a text and calls, and only one of them would be sent."""
    if rules.text_beside_calls and "text_beside_calls" not in rules.package_omits:
        return [message]
    content: Any = message.content
    if isinstance(content, list):
        content = [block for block in content if block_type(block) not in CALL_BLOCKS]
    if _is_empty(content) or not calls_of(message):
        return [message]
    said = AIMessage(
        content,
        id=f"said-{message.id}",
        additional_kwargs=mark("said"),
        response_metadata=message.response_metadata,
    )
    return [said, message.model_copy(update={"content": ""})]


def _with_tool_name(result: ToolMessage) -> ToolMessage:
    if not result.name or tool_name(result.name) == result.name:
        return result
    return result.model_copy(update={"name": tool_name(result.name)})


def _without_media(result: ToolMessage, edits: RequestEdits | None = None) -> ToolMessage:
    """Return a result with texts in place of images and files, and report them to `edits` if given."""
    blocks: Any = result.content
    if not isinstance(blocks, list) or not any(map(is_media, blocks)):
        return result
    if edits:
        for block in filter(is_media, blocks):
            edits.drop(result, KINDS[block["type"]], "only its description is sent")
    texts = [_media_text(block) if is_media(block) else block for block in blocks]
    return result.model_copy(update={"content": texts})


def _with_allowed_media(results: Sequence[ToolMessage], edits: RequestEdits) -> list[BaseMessage]:
    """Return results with the media that the provider accepts there, and the message to which the others move."""
    where = edits.rules.result_media
    if where == "kept":
        return list(results)
    lost = edits if where == "named" else None
    named: list[BaseMessage] = [_without_media(result, lost) for result in results]
    media = [
        block
        for result in results
        if isinstance(result.content, list)
        for block in result.content
        if is_media(block)
    ]
    if where == "named" or not media:
        return named
    said: list[Any] = [{"type": "text", "text": MOVED}, *media]
    return [
        *named,
        HumanMessage(said, id=f"media-{results[0].id}", additional_kwargs=mark("media")),
    ]


def _media_text(block: Any) -> dict[str, str]:
    return {"type": "text", "text": f"[{media_description(block)}]"}


def _with_text(message: _Message, *, own: bool = False) -> _Message:
    """Return the message, with a placeholder text if it would be sent without content."""
    if not _is_empty(message.content) or calls_of(message):
        return message
    fields = without_reasoning(message).additional_kwargs
    if any(fields.values() if own else [fields.get("function_call")]):
        return message
    return message.model_copy(update={"content": NO_TEXT})


def _may_be_empty(message: AIMessage) -> bool:
    """Return False for most messages with a text or a call; this is a cheap check before the exact one."""
    content: Any = message.content
    return not message.tool_calls and (type(content) is list or not content or content[0].isspace())


def _is_empty(content: Any) -> bool:
    """Return True for a content that is empty or has only blank texts."""
    return all(map(_is_blank, content if isinstance(content, list) else [content]))


def _is_blank(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else block
    return isinstance(text, str) and (not text or text.isspace())


def _instruction(message: BaseMessage) -> HumanMessage:
    """Convert a system message to a human message with the same id, which providers accept at any position."""
    said: Any = message.content
    if isinstance(said, list):
        text: Any = [{"type": "text", "text": INSTRUCTION}, *said]
    else:
        text = f"{INSTRUCTION}\n{said}"
    kwargs = message.additional_kwargs
    return HumanMessage(text, id=message.id, name=message.name, additional_kwargs=kwargs)


def _groups(messages: Sequence[BaseMessage]) -> Iterator[tuple[BaseMessage, list[ToolMessage]]]:
    """Yield each message with the tool results that follow it."""
    index = 0
    while index < len(messages):
        first = messages[index]
        results: list[ToolMessage] = []
        index += 1
        while index < len(messages) and isinstance(result := messages[index], ToolMessage):
            results.append(result)
            index += 1
        yield first, results
