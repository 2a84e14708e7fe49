"""Convert messages of Microsoft's Agent Framework to messages of the log, and back.

Each function result becomes a message of its own, every other message one message. Their JSON is kept with them, so
that the way back is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any
from uuid import uuid4

from agent_framework import AgentResponse, ChatResponse, Content, Message
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.ext.microsoft.clients import MEDIA, UNKNOWN, Client
from convstore.messages.call_arguments import arguments_text, in_two_lists, read_call
from convstore.messages.media import KINDS, media_block, media_description
from convstore.messages.provenance import model_of
from convstore.messages.text import content_of
from convstore.messages.usage import usage_of
from convstore.types import Dropped
from convstore.wire.contents import ContentReader
from convstore.wire.edits import INSTRUCTION, MOVED, NO_TEXT, RequestEdits
from convstore.wire.exact import marked, rejoined
from convstore.wire.parts import Media, part_of

_MARK = "agent_framework"
_ID = "convstore_id"
_REPLY = "convstore_reply"
_OF_REPLY = ("model_name", "finish_reason")
_COUNTS = (
    "input_token_count",
    "output_token_count",
    "total_token_count",
    "cache_read_input_token_count",
    "cache_creation_input_token_count",
    "reasoning_output_token_count",
)
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
    results = _results_in(contents) if role == "tool" else []
    reply = message.additional_properties.get(_REPLY)
    edges = [0, *results[1:], len(contents)]
    messages: list[BaseMessage] = []
    for at, (first, end) in enumerate(pairwise(edges)):
        shown = _shown(role, contents[first:end])
        shown.id = f"{id_}.{at}" if at else id_
        if isinstance(shown, AIMessage) and isinstance(reply, dict):
            _set_reply(shown, reply)
        own = marked({"head": head, "contents": contents[first:end]}, shown)
        shown.additional_kwargs = {_MARK: {"entry": id_, "json": own}}
        messages.append(shown)
    return messages


def _results_in(contents: Sequence[dict[str, Any]]) -> list[int]:
    return [at for at, part in enumerate(contents) if part["type"] == "function_result"]


def _set_reply(answer: AIMessage, reply: dict[str, Any]) -> None:
    answer.response_metadata = {key: reply[key] for key in _OF_REPLY if reply.get(key)}
    answer.usage_metadata = reply.get("usage")


def reply_of(response: ChatResponse | AgentResponse) -> dict[str, Any]:
    """Return what the framework has beside the messages of a reply: its model, its tokens and why it stopped."""
    return {
        "model_name": _model_in(response),
        "finish_reason": response.finish_reason,
        "usage": _usage(response.usage_details),
    }


def note_replies(
    messages: Iterable[Message], replies: Sequence[dict[str, Any]], whole: dict[str, Any]
) -> None:
    """Note on the answers of a run what `reply_of` says of each, its tokens on the last message of a reply.

    Args:
        messages: The messages that the run has added.
        replies: Of each call of the model; empty if a client does not tell.
        whole: Of the run, whose tokens are then those of its last answer.
    """
    answers = [
        [*group]
        for is_said, group in groupby(messages, lambda message: message.role == "assistant")
        if is_said
    ]
    if len(answers) != len(replies):
        replies = [{"model_name": whole["model_name"]} for _ in answers[1:]] + [whole]
    for group, reply in zip(answers, replies, strict=False):
        for message in group[:-1]:
            message.additional_properties.setdefault(_REPLY, reply | {"usage": None})
        group[-1].additional_properties.setdefault(_REPLY, reply)


def calls_and_results(messages: Iterable[Message]) -> tuple[list[str], list[str]]:
    """Return the ids of the calls in the input of a run, and of those that it answers or decides about."""
    calls = list[str]()
    results = list[str]()
    for message in messages:
        for content in message.contents:
            if content.type == "function_call":
                calls.append(str(content.call_id))
            elif content.type == "function_result":
                results.append(str(content.call_id))
            elif content.type == "function_approval_response" and content.function_call:
                results.append(str(content.function_call.call_id))
    return calls, results


def question_of(given: Sequence[Message]) -> Message | None:
    """Return the last message of a user in the input of a run if it has an id of its own; None if it has none."""
    last = next((message for message in reversed(given) if message.role == "user"), None)
    return last if last and last.message_id else None


def _model_in(reply: Any) -> str:
    """Return the model that a reply, its raw form or the last of its updates names; "" without one."""
    raw = getattr(reply, "raw_representation", None)
    parts = raw if isinstance(raw, list) else [raw]
    for part in (reply, *reversed(parts)):
        for found in (part, getattr(part, "raw_representation", None)):
            model = getattr(found, "model", None)
            if isinstance(model, str) and model:
                return model
    return ""


def _usage(details: Mapping[str, Any] | None) -> Any:
    """Return the token counts of a reply in LangChain's form; None without any.

    The clients for Anthropic and Bedrock count tokens that the cache read or wrote apart from those of the input.
    """
    counts = {name: details.get(name) or 0 for name in _COUNTS} if details else {}
    if not counts:
        return None
    given, said, total, read, written, thought = counts.values()
    is_apart = read + written > 0 and total in (0, given + said + read + written)
    return usage_of(
        {
            "input_tokens": given + read + written if is_apart else given,
            "output_tokens": said,
            "cache_read_tokens": read,
            "cache_write_tokens": written,
            "output_reasoning_tokens": thought,
        }
    )


def from_log(
    messages: Iterable[BaseMessage], edits: RequestEdits | None = None, client: Client = UNKNOWN
) -> tuple[list[Message], list[Dropped]]:
    """Return messages of the log or of a view as the framework's, edited for a request, and what it has no place for.

    The edits note what the client would leave out.

    Those that are as they were appended come back exactly.
    """
    found = list[Message]()
    moved = list[Content]()
    writer = _Writer()

    def written(message: BaseMessage) -> dict[str, Any]:
        head = {"type": "message", "role": _ROLES.get(message.type, "user")}
        contents = [content.to_dict() for content in writer.written(message)]
        return {"head": head, "contents": contents}

    for several, made in rejoined(messages, _MARK, written, _joined):
        if edits is None:
            found.append(made)
            continue
        request = _Request(edits, client, several)
        if made.role != "tool":
            found += _moved(moved)
        found += request.edited(made)
        moved += request.moved
    return [*found, *_moved(moved)], writer.dropped


def _moved(media: list[Content]) -> Iterator[Message]:
    """Yield the message of a user to which media of results move, if there are some; none wait any longer."""
    if media:
        yield Message("user", [Content.from_text(MOVED), *media])
        media.clear()


class _Request:
    """Edits one message for a request.

    Attributes:
        moved: Media of its results that go to a message of a user.
    """

    def __init__(self, edits: RequestEdits, client: Client, logged: Sequence[BaseMessage]) -> None:
        self.moved = list[Content]()
        self._edits = edits
        self._client = client
        self._logged = logged[0]
        self._results = {
            each.tool_call_id: each for each in logged if isinstance(each, ToolMessage)
        }

    def edited(self, message: Message) -> list[Message]:
        """Return a message as the provider accepts it, after the one that the provider wants before it."""
        kinds = {content.type for content in message.contents}
        if message.role == "tool" or "function_approval_response" in kinds:
            self._name_calls(message)
            return [message]
        place = self._edits.place(message.role)
        made = [message]
        if message.role == "user":
            message.contents = [self._asked(content) for content in message.contents]
        elif message.role == "assistant":
            made = self._answers(message)
        elif place.role != message.role:
            made = [Message(place.role, [Content.from_text(INSTRUCTION), *message.contents])]
        for each in made:
            self._name_calls(each)
        if place.before is None:
            return made
        return [Message(place.before.role, [Content.from_text(place.before.text)]), *made]

    def _answers(self, message: Message) -> list[Message]:
        """Return an answer as the messages that the provider accepts."""
        made = self._edits.answer(
            message.contents,
            _kind_of,
            self._logged,
            writer=model_of(self._logged),
            blank=Content.from_text(NO_TEXT),
            problem="" if self._client.reasoning else "the client sends none",
        )
        message.contents = made[0]
        return [message, *(Message(message.role, contents) for contents in made[1:])]

    def _asked(self, content: Content) -> Content:
        """Return a content of a question: a text in place of a file that the client would leave out."""
        if content.type not in MEDIA or self._client.takes(content):
            return content
        return self._named(content, self._logged)

    def _take_media(self, result: Content) -> None:
        """Replace files of a result by texts where they go elsewhere, or are not taken."""
        logged = self._results.get(result.call_id or "")
        rules = self._edits.rules
        is_refused = bool(result.exception) and not rules.failed_media
        wanted: Any = "named" if is_refused else rules.result_media
        items = list[Content]()
        for item in result.items or ():
            place = self._client.place(item, wanted) if item.type in MEDIA else "kept"
            if place == "kept":
                items.append(item)
            elif place == "moved":
                items.append(_as_text(item))
                self.moved.append(item)
            else:
                items.append(self._named(item, logged))
        result.items = items

    def _named(self, file: Content, logged: BaseMessage | None) -> Content:
        """Return the text of a file of text, or the one that names any other, and note that this is not sent."""
        part = part_of(_described(file))
        if isinstance(part, Media) and part.plain_text:
            return Content.from_text(part.plain_text)
        kind = KINDS[_described(file)["type"]]
        self._edits.drop(logged, kind, "only its description is sent")
        return _as_text(file)

    def _name_calls(self, message: Message) -> None:
        """Give calls and results the ids, names, arguments and files that they have in the request."""
        for content in message.contents:
            if content.type == "function_call":
                if not arguments_text(content.arguments)[1]:
                    part = f"arguments of {content.name}"
                    self._edits.drop(self._logged, part, "they are not a JSON object")
                    content.arguments = "{}"
                call = self._edits.call(content.call_id or "", content.name or "")
                content.call_id = call.id
                content.name = call.tool
            elif content.type == "function_result":
                if content.items:
                    self._take_media(content)
                content.call_id = self._edits.result(content.call_id or "").id


def _kind_of(content: Content) -> str:
    kinds = {"function_call": "call", "text_reasoning": "reasoning"}
    return kinds.get(content.type, "")


def _described(content: Content) -> dict[str, Any]:
    return next(_blocks([content.to_dict()]), {"type": "file"})


def _as_text(file: Content) -> Content:
    return Content.from_text(f"[{media_description(_described(file))}]")


def _joined(_: Sequence[BaseMessage], owns: Sequence[dict[str, Any]]) -> Message:
    contents = [content for own in owns for content in own["contents"]]
    return Message.from_dict(owns[0]["head"] | {"contents": contents})


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


class _Writer(ContentReader):
    """Writes messages that another adapter appended, or that a view has changed, as contents; and keeps a report."""

    is_request = True

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
            elif isinstance(content, str):
                yield Content.from_text(content)
            else:
                yield self._file(message, content)

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
