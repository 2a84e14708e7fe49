"""Read a view as steps, each a message with its calls and their results, under the rules that all APIs share.

- Each call has one result directly after its message, in the order of the calls (`tool_calls.pair`).
- Call ids are unique in the request and have at most 40 letters, digits, `_` and `-`. Other ids are replaced, in the
  call and its result, always by the same new id.
- Arguments are the JSON text of an object. Tool names have at most 64 of the same characters.
- Further changes are rules of the provider (`edits.RequestEdits`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from convstore.messages.call_arguments import arguments_text
from convstore.messages.provenance import kind_of, model_of
from convstore.messages.reasoning import REASONING_BESIDE
from convstore.messages.text import text_of
from convstore.messages.tool_calls import Call, arguments_of, calls_of, is_paused, pair
from convstore.values.json_form import is_json, valid_text
from convstore.values.providers import ProviderRules
from convstore.wire.edits import INSTRUCTION, Inserted, RequestEdits, tool_name
from convstore.wire.parts import Block, Media, Part, Text, beside_calls, listed_calls, parts_of
from convstore.wire.requests import Dropped

_ROLES: Final = ("system", "developer", "assistant", "user")
_BESIDE: Final = ("annotations", "audio", "extra_content", "images")
"""Fields of an answer beside its content in Chat Completions."""
_NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})


MediaWriter: TypeAlias = Callable[[Media, ProviderRules], dict[str, Any] | None]
"""Function that writes an image or a file in the form of an API; None if the API does not accept it."""


def no_media(media: Media, rules: ProviderRules) -> None:
    """Write no image or file, where an API accepts only texts."""


SourceWriter: TypeAlias = Callable[[Text], dict[str, Any] | None]
"""Function that writes a document, search result or tool reference in the form of an API; None to send it as text."""


def no_source(text: Text) -> None:
    """Write every document and search result as a text."""


class WireCall(NamedTuple):
    """A call in a request; `input` is the free text of a custom tool, None for a function.

    `block` is its block in the content, and `listed` its entry in the list that Chat Completions returns; each is empty
    if it is missing.
    """

    id: str
    name: str
    arguments: str
    input: str | None
    item_id: str
    block: Mapping[str, Any] = _NO_FIELDS
    listed: Mapping[str, Any] = _NO_FIELDS

    def own_fields(self, types: Collection[str], written: Collection[str]) -> dict[str, Any]:
        """Return further fields of a block of one of these types, such as a namespace, except those in `written`."""
        if self.block.get("type") not in types:
            return {}
        fields = {key: value for key, value in self.block.items() if key not in written}
        return {key: value for key, value in fields.items() if value is not None and is_json(value)}


class Result(NamedTuple):
    """The result of a call: its message, and the texts and media in it."""

    call: WireCall
    message: BaseMessage
    parts: list[Text | Media]


@dataclass(slots=True)
class Step:
    """A message of the view, or one that the rules insert, with the results of its calls.

    Attributes:
        message: The message.
        edits: The edits of the request, which also record the parts that are not sent.
        role: "system", "developer", "user" or "assistant", after the rules were applied.
        parts: The content without blank texts. Only user messages have media, only answers have calls and blocks.
        reasoning: Reasoning outside the content, as servers with the Chat Completions API return it.
        results: The results of its calls, in the order of the calls.
        is_open: True for the question of the turn in progress and all messages after it.
    """

    message: BaseMessage
    edits: RequestEdits
    role: str
    is_open: bool
    parts: list[Part | WireCall] = field(default_factory=list)
    reasoning: dict[str, Any] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    @property
    def rules(self) -> ProviderRules:
        """The rules of the requested provider."""
        return self.edits.rules

    @property
    def is_own(self) -> bool:
        """True for an answer of a model of the requested family."""
        return self.rules.is_own(model_of(self.message))

    def drop(self, part: str, reason: str, message: BaseMessage | None = None) -> None:
        """Record that a part of the message, or of one of its results, is not sent."""
        self.edits.drop(message or self.message, part, reason)

    def beside(self) -> dict[str, Any]:
        """Return the fields beside the content of an answer from Chat Completions."""
        kwargs = self.message.additional_kwargs
        return {key: kwargs[key] for key in _BESIDE if kwargs.get(key)} if kwargs else {}

    def drop_beside(self) -> None:
        """Record the fields beside an answer and its calls that only Chat Completions has, for another API."""
        if not self.message.additional_kwargs:
            return
        for name in (*self.beside(), *beside_calls(self.message)):
            self.drop(name, "the API does not accept it here")

    def drop_status(self, result: Result) -> None:
        """Record that the API cannot mark a result as failed, if it failed and the store did not generate it."""
        if getattr(result.message, "status", "") == "error" and not kind_of(result.message):
            self.drop("status", "the API has no mark of a failed result", result.message)

    def withhold(self, reason: str) -> None:
        """Remove the reasoning, and record why it is not sent."""
        kept = [part for part in self.parts if not is_reasoning_part(part)]
        if len(kept) < len(self.parts) or self.reasoning:
            self.drop("reasoning", reason)
        self.parts = kept
        self.reasoning = {}

    def drop_settings(
        self, part: Text | Media, sent: Mapping[str, Any], message: BaseMessage | None = None
    ) -> None:
        """Record the settings of a text or a file that its written form does not have."""
        for name in part.settings:
            inner = [value for value in sent.values() if isinstance(value, dict)]
            if not any(name in fields for fields in (sent, *inner)):
                self.drop(name, "the API does not accept it here", message)

    def content(
        self,
        write: MediaWriter,
        result: Result | None = None,
        *,
        kind: str = "text",
        source: SourceWriter = no_source,
    ) -> list[dict[str, Any]]:
        """Return its texts and media, or those of a result.

        Args:
            write: Writes media; a text names what it does not take.
            result: The result, None for the message itself.
            kind: The type of a text.
            source: Writes the original block of a text; by default, the text itself is sent.
        """
        content: list[dict[str, Any]] = []
        message = result.message if result else None
        for part in self.parts if result is None else result.parts:
            block = source(part) if isinstance(part, Text) and part.source is not None else None
            sent = block or self._written_media(part, write, message, kind=kind)
            if sent is not None:
                content.append(sent)
                if isinstance(part, Text | Media) and part.settings:
                    self.drop_settings(part, sent, message)
        return content

    def _written_media(
        self,
        part: Part | WireCall,
        write: MediaWriter,
        message: BaseMessage | None,
        *,
        kind: str,
    ) -> dict[str, Any] | None:
        """Return the written form of a text or a file, None without one."""
        if isinstance(part, Text):
            return {"type": kind, "text": part.text} if part.text else None
        if not isinstance(part, Media):
            return None
        if part.plain_text:
            return {"type": kind, "text": part.plain_text}
        sent = write(part, self.rules)
        if sent is None:
            self.drop(part.kind, "only its description is sent", message)
            return {"type": kind, "text": part.description}
        return sent


def read_steps(
    messages: Sequence[BaseMessage],
    rules: ProviderRules,
    *,
    model: str | None,
    names: bool = False,
) -> tuple[list[Step], list[Dropped]]:
    """Return the steps of a view, and the list in which they record the parts that are not sent.

    Args:
        messages: The view.
        rules: The rules of the requested provider.
        model: The requested model; None means the last one of the open turn.
        names: True if messages have names in the API.
    """
    paired = pair(messages).messages
    begin = turn_begin(paired)
    edits = RequestEdits(rules, asked=model or last_model(paired[begin:]))
    steps: list[Step] = []
    for index, message in enumerate(paired):
        if isinstance(message, ToolMessage):
            continue
        role = role_of(message)
        place = edits.place(role)
        is_open = index >= begin
        if place.before:
            steps.append(_inserted(place.before, edits, is_open=is_open))
        step = Step(message, edits, place.role, is_open)
        if isinstance(message, AIMessage):
            _fill_answer(step, message, paired, index + 1)
        else:
            head = [] if place.role == role else [Text(INSTRUCTION)]
            step.parts = [*head, *_head(message), *_texts_and_media(message)]
        if message.name and not names and message.type != "function":
            step.drop("name", "the API has no names of messages")
        steps.append(step)
    return steps, edits.dropped


def _inserted(given: Inserted, edits: RequestEdits, *, is_open: bool) -> Step:
    """Return the step of a message that the rules insert."""
    kind = AIMessage if given.role == "assistant" else HumanMessage
    parts: list[Part | WireCall] = [Text(given.text)]
    return Step(kind(given.text), edits, given.role, is_open, parts)


def results_with_moved_media(
    step: Step, write: MediaWriter, *, moves: bool
) -> tuple[list[Result], list[dict[str, Any]]]:
    """Return the results of a step, and the images and files in them that move to a user message.

    A text replaces each that moves. Files that the API does not accept there are recorded as not sent.
    """
    moved: list[dict[str, Any]] = []
    if not moves or not any(
        isinstance(part, Media) for each in step.results for part in each.parts
    ):
        return step.results, moved
    for result in step.results:
        media = [part for part in result.parts if isinstance(part, Media)]
        written = step.content(write, result._replace(parts=[*media]))
        moved += [part for part in written if not str(part["type"]).endswith("text")]
    return list(map(_without_media, step.results)), moved


def _without_media(result: Result) -> Result:
    """Return a result with texts in place of images and files that follow it."""
    if not any(isinstance(part, Media) for part in result.parts):
        return result
    return result._replace(parts=[*map(_named, result.parts)])


def _named(part: Text | Media) -> Text | Media:
    return part if isinstance(part, Text) else Text(part.plain_text or part.description)


def is_reasoning_part(part: Part | WireCall) -> TypeGuard[Block]:
    """Return True for a block of reasoning."""
    return isinstance(part, Block) and part.kind == "reasoning"


def turn_begin(messages: Sequence[BaseMessage]) -> int:
    """Return the index of the question of the turn in progress, 0 without one.

    A user message after results, or after a paused answer, belongs to the turn of these. Messages that the store
    generated do not count.

    >>> calling = AIMessage("", tool_calls=[{"name": "book", "args": {}, "id": "c"}])
    >>> turn_begin([HumanMessage("Book."), calling, ToolMessage("1", tool_call_id="c"), HumanMessage("Early.")])
    0
    """
    question = 0
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, HumanMessage):
            question = question if kind_of(message) else index
        elif isinstance(message, AIMessage | ToolMessage) and question:
            if isinstance(message, AIMessage) and not is_paused(message):
                return question
            question = 0
    return question


def last_model(messages: Sequence[BaseMessage]) -> str:
    """Return the model of the last answer, "" without one."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return model_of(message)
    return ""


def role_of(message: BaseMessage) -> str:
    """Return the role of a message: "system", "developer", "assistant" or "user"."""
    if isinstance(message, SystemMessage):
        if message.additional_kwargs.get("__openai_role__") == "developer":
            return "developer"
        return "system"
    if isinstance(message, ChatMessage):
        return message.role if message.role in _ROLES else "user"
    return "assistant" if isinstance(message, AIMessage) else "user"


def _reasoning_of(message: BaseMessage) -> dict[str, Any]:
    found = {key: message.additional_kwargs.get(key) for key in REASONING_BESIDE}
    return {
        key: value
        for key, value in found.items()
        if value and isinstance(value, str | list) and is_json(value)
    }


def _texts_and_media(message: BaseMessage) -> list[Text | Media]:
    """Return the content of a user message, a result or a system message; blocks of other types as their JSON."""
    parts: list[Text | Media] = []
    for part in parts_of(message):
        if isinstance(part, Block):
            parts.append(Text(valid_text(text_of(part.block)), source=part.block))
        elif isinstance(part, Media) or part.text.strip():
            parts.append(part)
    return parts


def _fill_answer(step: Step, message: AIMessage, messages: Sequence[BaseMessage], at: int) -> None:
    """Set the parts and results of an answer. Each call is once among the parts, in its position or else at the end.

    The results are the messages from the index `at` on.
    """
    step.reasoning = _reasoning_of(message)
    blocks = parts_of(message)
    waiting = list(_calls(step, blocks))
    answers = {call.id: messages[place] for place, (_, call) in enumerate(waiting, at)}
    for part in blocks:
        step.parts += _said(step, part, waiting)
    step.parts += [call for _, call in waiting]
    if answers:
        calls = [part for part in step.parts if isinstance(part, WireCall)]
        step.results = [
            Result(call, answers[call.id], _texts_and_media(answers[call.id])) for call in calls
        ]
        step.edits.note_results()
    if step.reasoning or any(map(is_reasoning_part, step.parts)):
        problem = step.edits.turn_problem(is_open=step.is_open)
        problem = problem or step.edits.writer_problem(model_of(message))
        if problem:
            step.withhold(problem)


def _head(message: BaseMessage) -> list[Text]:
    if message.type != "function":
        return []
    return [Text(f"[Result of the function {valid_text(str(message.name))}]")]


def _said(step: Step, part: Part, waiting: list[tuple[str, WireCall]]) -> Iterator[Part | WireCall]:
    """Yield a part of an answer in the form in which it is sent; a yielded call is removed from `waiting`."""
    if isinstance(part, Media):
        step.drop(part.kind, "only its description is sent")
        yield Text(part.description)
    elif isinstance(part, Block) and part.kind == "call":
        for at, (id_, call) in enumerate(waiting):
            if id_ == part.id:
                del waiting[at]
                yield call
                return
    elif isinstance(part, Block) or part.text.strip():
        yield part


def _calls(step: Step, parts: Sequence[Part]) -> Iterator[tuple[str, WireCall]]:
    """Yield the calls of a message in the order of their results, each with its id in the log."""
    message = step.message
    calls = calls_of(message)
    if not calls:
        return
    blocks = {
        part.id: part for part in reversed(parts) if isinstance(part, Block) and part.kind == "call"
    }
    listed = listed_calls(message)
    for call, value in zip(calls, arguments_of(message), strict=True):
        block = blocks.get(call.id, _NO_BLOCK)
        entry = _entry_of(call, listed)
        text, is_whole = arguments_text(value)
        if not is_whole:
            step.drop(f"arguments of {call.tool}", "they are not a JSON object")
        is_custom = entry.get("type") == "custom" or block.type == "custom_tool_call"
        free = None
        if is_custom and isinstance(value, dict):
            free = valid_text(str(value.get("__arg1", "")))
        yield (
            call.id,
            WireCall(
                id=step.edits.ids.give(call, message),
                name=tool_name(call.tool),
                arguments=text,
                input=free,
                item_id=_item_id(block),
                block=block.block,
                listed=entry,
            ),
        )


_NO_BLOCK: Final = Block("call", _NO_FIELDS)


def _item_id(block: Block) -> str:
    return str(block.block.get("id") or "") if block.type.endswith("_call") else ""


def _entry_of(call: Call, listed: Sequence[dict[str, Any]]) -> Mapping[str, Any]:
    """Return the entry of a call: the one at its position if the ids are equal, else the first one with its id."""
    at_place = listed[call.position : call.position + 1]
    for entry in (*at_place, *listed):
        if (entry.get("id") or "") == call.id:
            return entry
    return _NO_FIELDS
