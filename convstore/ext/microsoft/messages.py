"""Convert messages of Microsoft's Agent Framework to messages of the log, and back.

Each function result becomes a message of its own, every other message one message. Their JSON is kept with them, so
that the way back is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any
from uuid import uuid4

from agent_framework import Content, Message
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.messages.call_arguments import in_two_lists, read_call
from convstore.messages.media import KINDS, media_block, media_description
from convstore.messages.provenance import model_of
from convstore.messages.text import content_of
from convstore.types import Dropped
from convstore.wire.contents import FrameworkWriter
from convstore.wire.edits import INSTRUCTION, MOVED, NO_TEXT, RequestEdits
from convstore.wire.exact import marked, restored
from convstore.wire.parts import Media
from convstore.wire.steps import arguments_text

_MARK = "agent_framework"
_FORGED = (LookupError, TypeError, ValueError, AttributeError)
"""Errors of a mark that the adapter did not write: it is a field of a message that a client can send."""
_ID = "convstore_id"
_MODEL = "convstore_model"
_ROLES = {"ai": "assistant", "human": "user", "system": "system", "tool": "tool"}


def to_log(message: Message) -> list[BaseMessage]:
    """Return the messages that a message becomes in the log; a message without an id of its own gets one, kept on it.

    Ids that a model's service gives are no ids: some repeat them.
    """
    is_own = message.message_id and message.role == "user"
    id_ = (
        message.message_id if is_own else message.additional_properties.setdefault(_ID, uuid4().hex)
    )
    head = message.to_dict()
    role = head["role"]
    contents = head.pop("contents")
    results = [
        at
        for at, part in enumerate(contents)
        if role == "tool" and part["type"] == "function_result"
    ]
    model = message.additional_properties.get(_MODEL)
    edges = [0, *results[1:], len(contents)]
    messages: list[BaseMessage] = []
    for at, (first, end) in enumerate(pairwise(edges)):
        shown = _shown(role, contents[first:end])
        shown.id = f"{id_}.{at}" if at else id_
        if model and role == "assistant":
            shown.response_metadata = {"model_name": model}
        own = marked({"head": head, "contents": contents[first:end]}, shown)
        shown.additional_kwargs = {_MARK: {"message": id_, "json": own}}
        messages.append(shown)
    return messages


def name_model(messages: Iterable[Message], model: str) -> None:
    """Note on answers which model wrote them; the framework names it beside its messages."""
    for message in messages:
        if model and message.role == "assistant":
            message.additional_properties.setdefault(_MODEL, model)


def from_log(
    messages: Iterable[BaseMessage], edits: RequestEdits | None = None
) -> tuple[list[Message], list[Dropped]]:
    """Return messages of the log or of a view as the framework's, edited for a request, and what it has no place for.

    Those that are as they were appended come back exactly.
    """
    found = list[Message]()
    moved = list[Content]()
    writer = _Writer()
    for _, group in groupby(
        messages, lambda message: _mark_of(message).get("message") or id(message)
    ):
        several = [*group]
        try:
            made = _joined([_own(message, writer) for message in several])
        except _FORGED:
            made = _joined([_written(message, writer) for message in several])
        if edits is None:
            found.append(made)
            continue
        if made.role != "tool":
            found += _moved(moved)
        found += _edited(made, edits, several, moved)
    return [*found, *_moved(moved)], writer.dropped


def _moved(media: list[Content]) -> Iterator[Message]:
    """Yield the message of a user to which media of results move, if there are some; none wait any longer."""
    if media:
        yield Message("user", [Content.from_text(MOVED), *media])
        media.clear()


def _edited(
    message: Message, edits: RequestEdits, several: Sequence[BaseMessage], moved: list[Content]
) -> list[Message]:
    """Return a message as the provider accepts it, after the one that the provider wants before it.

    Media of its results that go elsewhere are added to `moved`.
    """
    logged = several[0]
    kinds = {content.type for content in message.contents}
    if message.role == "tool" or "function_approval_response" in kinds:
        _take_media(message, edits, several, moved)
        _name_calls(message, edits, logged)
        return [message]
    place = edits.place(message.role)
    if place.role != message.role:
        said = [Content.from_text(INSTRUCTION), *message.contents]
        message = Message(place.role, said)
    elif message.role == "assistant":
        _withhold(message, edits, logged)
    _name_calls(message, edits, logged)
    made = _parted(message, edits)
    if place.before is None:
        return made
    return [Message(place.before.role, [Content.from_text(place.before.text)]), *made]


def _parted(message: Message, edits: RequestEdits) -> list[Message]:
    """Return an answer; with a text and calls as two messages, if the provider takes only one of them in each."""
    calls = [content for content in message.contents if content.type == "function_call"]
    said = [content for content in message.contents if content.type != "function_call"]
    if edits.rules.text_beside_calls or not calls or not said:
        return [message]
    return [Message(message.role, said), Message(message.role, calls)]


def _take_media(
    message: Message, edits: RequestEdits, several: Sequence[BaseMessage], moved: list[Content]
) -> None:
    """Replace media of results by texts where they go elsewhere or are not taken: clients leave them out silently."""
    logged = {each.tool_call_id: each for each in several if isinstance(each, ToolMessage)}
    for content in message.contents:
        if content.type == "function_result" and content.items:
            moved += _media_of(content, edits, logged.get(content.call_id or ""))


def _media_of(result: Content, edits: RequestEdits, logged: BaseMessage | None) -> list[Content]:
    """Return the media of a result that move; texts stand in the place of these, and of those that are not taken."""
    items = result.items or []
    media = [item for item in items if item.type in ("data", "uri")]
    is_refused = bool(result.exception) and not edits.rules.failed_media
    where = "named" if is_refused else edits.rules.result_media
    if where == "kept":
        return []
    result.items = [_as_text(item) for item in items]
    if where == "moved":
        return media
    for item in media:
        edits.drop(logged, KINDS[_described(item)["type"]], "only its description is sent")
    return []


def _described(content: Content) -> dict[str, Any]:
    return next(_blocks([content.to_dict()]), {"type": "file"})


def _as_text(item: Content) -> Content:
    """Return the text that names a file, anything else as it is."""
    if item.type not in ("data", "uri"):
        return item
    return Content.from_text(f"[{media_description(_described(item))}]")


def _withhold(message: Message, edits: RequestEdits, logged: BaseMessage) -> None:
    """Remove the reasoning of an answer if the rules keep it out of the request.

    That of an answer without the name of its model goes.
    """
    said = [content for content in message.contents if content.type != "text_reasoning"]
    writer = model_of(logged)
    if not writer or len(said) == len(message.contents):
        return
    problem = edits.writer_problem(writer)
    if problem:
        edits.drop(logged, "reasoning", problem)
        message.contents = said or [Content.from_text(NO_TEXT)]


def _name_calls(message: Message, edits: RequestEdits, logged: BaseMessage) -> None:
    """Give calls and results the ids, names and arguments that they have in the request."""
    for content in message.contents:
        if content.type == "function_call":
            if not arguments_text(content.arguments)[1]:
                edits.drop(logged, f"arguments of {content.name}", "they are not a JSON object")
                content.arguments = "{}"
            call = edits.call(content.call_id or "", content.name or "")
            content.call_id = call.id
            content.name = call.tool
        elif content.type == "function_result":
            content.call_id = edits.result(content.call_id or "").id


def _mark_of(message: BaseMessage) -> dict[str, Any]:
    """Return what the adapter keeps with a message; empty for a message from elsewhere."""
    mark = message.additional_kwargs.get(_MARK)
    return mark if isinstance(mark, dict) else {}


def _joined(owns: Sequence[dict[str, Any]]) -> Message:
    contents = [content for own in owns for content in own["contents"]]
    return Message.from_dict(owns[0]["head"] | {"contents": contents})


def _own(message: BaseMessage, writer: _Writer) -> dict[str, Any]:
    try:
        return restored(_mark_of(message)["json"], message)
    except LookupError:  # from elsewhere, or changed by a view
        return _written(message, writer)


def _written(message: BaseMessage, writer: _Writer) -> dict[str, Any]:
    head = {"type": "message", "role": _ROLES.get(message.type, "user")}
    return {"head": head, "contents": [content.to_dict() for content in writer.written(message)]}


def _shown(role: str, contents: Sequence[dict[str, Any]]) -> BaseMessage:
    result = next((part for part in contents if part["type"] == "function_result"), None)
    if role == "tool" and result:
        return _result(result)
    content = content_of([*_blocks(contents)])
    if role == "assistant":
        calls = (part for part in contents if part["type"] == "function_call")
        lists = in_two_lists(
            read_call(str(call["name"]), call.get("arguments"), call["call_id"]) for call in calls
        )
        return AIMessage(content, **lists)
    if role == "system" or (not content and _is_approval(contents)):
        return SystemMessage(content)
    return HumanMessage(content)


def _result(result: dict[str, Any]) -> ToolMessage:
    """Return the message of a function's result: its text, or blocks if it has others than texts."""
    content: Any = [*_blocks(result.get("items") or ())]
    if all(block["type"] == "text" for block in content):
        content = str(result.get("result") or "")
    status: Any = "error" if result.get("exception") else "success"
    return ToolMessage(content, tool_call_id=str(result["call_id"]), status=status)


def _is_approval(contents: Sequence[dict[str, Any]]) -> bool:
    """Return True for a person's decision about a call, which belongs to the turn in progress and asks nothing."""
    return any(part["type"] == "function_approval_response" for part in contents)


def _blocks(contents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield contents as blocks of LangChain's; those that no other model reads are left out."""
    for content in contents:
        mime_type = content.get("media_type") or ""
        name = content.get("name") or ""
        match content:
            case {"type": "text", "text": str(text)}:
                yield {"type": "text", "text": text}
            case {"type": "text_reasoning", "text": str(text)}:
                yield {"type": "reasoning", "reasoning": text}
            case {"type": "data", "uri": str(uri)} if ";base64," in uri:
                yield media_block(mime_type, name=name, base64=uri.partition(";base64,")[2])
            case {"type": "uri", "uri": str(uri)}:
                yield media_block(mime_type, name=name, url=uri)


class _Writer(FrameworkWriter):
    """Writes messages that another adapter appended, or that a view has changed, as contents; and keeps a report."""

    def written(self, message: BaseMessage) -> list[Content]:
        """Return the contents of a message: a result, or texts, files and calls in order."""
        found = [*self._found(message)]
        if isinstance(message, ToolMessage):
            failure = "The tool failed." if message.status == "error" else None
            return [
                Content.from_function_result(message.tool_call_id, result=found, exception=failure)
            ]
        calls = self.calls(message) if isinstance(message, AIMessage) else ()
        return [
            *found,
            *(Content.from_function_call(id_, name, arguments=args) for id_, name, args in calls),
        ]

    def _found(self, message: BaseMessage) -> Iterator[Content]:
        for content in self.contents(message):
            if isinstance(content, dict):
                self.drop(
                    message, "reasoning", "clients of the framework cannot tell which API it is of"
                )
            else:
                yield (
                    Content.from_text(content)
                    if isinstance(content, str)
                    else self._file(message, content)
                )

    def _file(self, message: BaseMessage, media: Media) -> Content:
        """Return a file, or the text that names it; only questions and results may have one."""
        url = media.data_url or media.url
        usual = "image/*" if media.url and media.kind == "image" else ""
        mime_type = media.mime_type or usual  # clients look at the first half of it
        if not url or not mime_type or isinstance(message, AIMessage | SystemMessage):
            return Content.from_text(self.without_file(message, media))
        named = {"filename": media.name} if media.name else None  # clients look for the name here
        return Content.from_uri(
            url, media_type=mime_type, name=media.name or None, additional_properties=named
        )
