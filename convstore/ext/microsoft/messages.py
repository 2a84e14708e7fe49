"""Convert messages of Microsoft's Agent Framework to messages of the log, and back.

A message with function results becomes one message for each result, every other message one message. Their JSON is kept
with them, so that the way back is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any
from uuid import uuid4

from agent_framework import AgentResponse, ChatResponse, Content, Message
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.ext.microsoft.clients import MEDIA, UNKNOWN, Client
from convstore.messages.call_arguments import arguments_text, as_call_fields, read_call
from convstore.messages.media import KINDS, media_block, media_description
from convstore.messages.provenance import model_of
from convstore.messages.text import content_of
from convstore.messages.usage import usage_of
from convstore.types import Dropped
from convstore.wire.contents import ContentReader
from convstore.wire.edits import INSTRUCTION, MOVED, NO_TEXT, RequestEdits
from convstore.wire.exact import rejoined, with_references
from convstore.wire.parts import Media, read_part

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
    """Return the messages to store for a message. If it is not a user's message with an id, a new id is set on it.

    Ids of a model's service are not used, because some services repeat them.
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
        own = with_references({"head": head, "contents": contents[first:end]}, shown)
        shown.additional_kwargs = {_MARK: {"entry": id_, "json": own}}
        messages.append(shown)
    return messages


def _results_in(contents: Sequence[dict[str, Any]]) -> list[int]:
    return [at for at, part in enumerate(contents) if part["type"] == "function_result"]


def _set_reply(answer: AIMessage, reply: dict[str, Any]) -> None:
    answer.response_metadata = {key: reply[key] for key in _OF_REPLY if reply.get(key)}
    answer.usage_metadata = reply.get("usage")


def reply_of(response: ChatResponse | AgentResponse) -> dict[str, Any]:
    """Return the model, the token counts and the finish reason of a reply."""
    return {
        "model_name": _model_in(response),
        "finish_reason": response.finish_reason,
        "usage": _usage(response.usage_details),
    }


def set_replies(
    messages: Iterable[Message], replies: Sequence[dict[str, Any]], whole: dict[str, Any]
) -> None:
    """Set the values of `reply_of` on the answers of a run; its tokens on the last message of each answer.

    Args:
        messages: The messages that the run has added.
        replies: The values of each model call; empty if the client does not report them.
        whole: The values of the whole run. If `replies` do not match the answers, the last answer gets its tokens.
    """
    answers = [
        [*group]
        for is_answer, group in groupby(messages, lambda message: message.role == "assistant")
        if is_answer
    ]
    if len(answers) != len(replies):
        replies = [{"model_name": whole["model_name"]} for _ in answers[1:]] + [whole]
    for group, reply in zip(answers, replies, strict=False):
        for message in group[:-1]:
            message.additional_properties.setdefault(_REPLY, reply | {"usage": None})
        group[-1].additional_properties.setdefault(_REPLY, reply)


def calls_and_results(messages: Iterable[Message]) -> tuple[list[str], list[str]]:
    """Return the ids of the calls in a run's input, and of the calls that the input answers or decides about."""
    calls: list[str] = []
    results: list[str] = []
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
    """Return the last user message in a run's input; None if there is no such message or it has no id of its own."""
    last = next((message for message in reversed(given) if message.role == "user"), None)
    return last if last and last.message_id else None


def _model_in(reply: Any) -> str:
    """Return the model's name from a reply, its raw form or its last updates; "" if it is not named."""
    raw = getattr(reply, "raw_representation", None)
    parts = raw if isinstance(raw, list) else [raw]
    for part in (reply, *reversed(parts)):
        for found in (part, getattr(part, "raw_representation", None)):
            model = getattr(found, "model", None)
            if isinstance(model, str) and model:
                return model
    return ""


def _usage(details: Mapping[str, Any] | None) -> Any:
    """Return the token counts of a reply in LangChain's form; None if it has no counts.

    The clients for Anthropic and Bedrock do not include tokens that the cache read or wrote in the input tokens.
    """
    counts = {name: details.get(name) or 0 for name in _COUNTS} if details else {}
    if not counts:
        return None
    count_in, count_out, total, read, written, reasoning = counts.values()
    is_cache_apart = read + written > 0 and total in (0, count_in + count_out + read + written)
    return usage_of(
        {
            "input_tokens": count_in + read + written if is_cache_apart else count_in,
            "output_tokens": count_out,
            "cache_read_tokens": read,
            "cache_write_tokens": written,
            "output_reasoning_tokens": reasoning,
        }
    )


def from_log(
    messages: Iterable[BaseMessage], edits: RequestEdits | None = None, client: Client = UNKNOWN
) -> tuple[list[Message], list[Dropped]]:
    """Return messages of the log or of a view as the framework's, edited for a request, and its unsupported parts.

    Unchanged messages come back exactly. The parts that the client would leave out are reported by `edits`.
    """
    found: list[Message] = []
    moved: list[Content] = []
    writer = _ContentWriter()

    def written(message: BaseMessage) -> dict[str, Any]:
        head = {"type": "message", "role": _ROLES.get(message.type, "user")}
        contents = [content.to_dict() for content in writer.contents_of(message)]
        return {"head": head, "contents": contents}

    for several, made in rejoined(messages, _MARK, written, _joined):
        if edits is None:
            found.append(made)
            continue
        editor = _MessageEditor(edits, client, several)
        if made.role != "tool":
            found += _take_moved(moved)
        found += editor.edited(made)
        moved += editor.moved
    return [*found, *_take_moved(moved)], writer.dropped


def _take_moved(media: list[Content]) -> Iterator[Message]:
    """Yield a user message with media that are moved out of results, and empty the list; nothing for an empty list."""
    if media:
        yield Message("user", [Content.from_text(MOVED), *media])
        media.clear()


class _MessageEditor:
    """Edits one message for a request.

    Attributes:
        moved: Media of its results that move to a user message.
    """

    def __init__(self, edits: RequestEdits, client: Client, logged: Sequence[BaseMessage]) -> None:
        self.moved: list[Content] = []
        self._edits = edits
        self._client = client
        self._logged = logged[0]
        self._results = {
            each.tool_call_id: each for each in logged if isinstance(each, ToolMessage)
        }

    def edited(self, message: Message) -> list[Message]:
        """Return a message in the form that the provider accepts, after the message that its rules insert before it."""
        kinds = {content.type for content in message.contents}
        if message.role == "tool" or "function_approval_response" in kinds:
            self._adapt_calls(message)
            return [message]
        place = self._edits.place(message.role)
        made = [message]
        if message.role == "user":
            message.contents = [self._question_content(content) for content in message.contents]
        elif message.role == "assistant":
            made = self._answers(message)
        elif place.role != message.role:
            made = [Message(place.role, [Content.from_text(INSTRUCTION), *message.contents])]
        for each in made:
            self._adapt_calls(each)
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
            problem="" if self._client.reasoning else "the client does not send reasoning",
        )
        message.contents = made[0]
        return [message, *(Message(message.role, contents) for contents in made[1:])]

    def _question_content(self, content: Content) -> Content:
        """Return a content of a question; a file that the client would leave out is replaced by a text."""
        if content.type not in MEDIA or self._client.sends(content):
            return content
        return self._described_file(content, self._logged)

    def _replace_media(self, result: Content) -> None:
        """Replace the files of a result that move to a user message, or that are not sent, by texts."""
        logged = self._results.get(result.call_id or "")
        rules = self._edits.rules
        is_refused = bool(result.exception) and not rules.failed_media
        wanted: Any = "named" if is_refused else rules.result_media
        items: list[Content] = []
        for item in result.items or ():
            place = self._client.place(item, wanted) if item.type in MEDIA else "kept"
            if place == "kept":
                items.append(item)
            elif place == "moved":
                items.append(_as_text(item))
                self.moved.append(item)
            else:
                items.append(self._described_file(item, logged))
        result.items = items

    def _described_file(self, file: Content, logged: BaseMessage | None) -> Content:
        """Return the text of a text file; for any other file, report it as dropped and return its description."""
        part = read_part(_described(file))
        if isinstance(part, Media) and part.plain_text:
            return Content.from_text(part.plain_text)
        kind = KINDS[_described(file)["type"]]
        self._edits.drop(logged, kind, "only its description is sent")
        return _as_text(file)

    def _adapt_calls(self, message: Message) -> None:
        """Give calls and results their ids, names, arguments and files in the request."""
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
                    self._replace_media(content)
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
        lists = as_call_fields(
            read_call(str(call["name"]), call.get("arguments"), call["call_id"]) for call in calls
        )
        return AIMessage(content, **lists)
    if role == "system" or (not content and _is_approval(contents)):
        return SystemMessage(content)
    return HumanMessage(content)


def _result(result: dict[str, Any]) -> ToolMessage:
    """Return the message of a function's result: its text, or blocks if it has any other content."""
    content: Any = [*_blocks(result.get("items") or ())]
    if all(block["type"] == "text" for block in content):
        content = str(result.get("result") or "")
    status: Any = "error" if result.get("exception") else "success"
    return ToolMessage(content, tool_call_id=str(result["call_id"]), status=status)


def _is_approval(contents: Sequence[dict[str, Any]]) -> bool:
    """Return True for a person's decision about a call, which belongs to the turn in progress and is not a question."""
    return any(part["type"] == "function_approval_response" for part in contents)


def _blocks(contents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield contents as LangChain's content blocks, without those that only the framework can read."""
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


class _ContentWriter(ContentReader):
    """Writes messages that another adapter appended, or that a view has changed, as contents of the framework."""

    is_request = True

    def contents_of(self, message: BaseMessage) -> list[Content]:
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
                    message, "reasoning", "clients of the framework cannot tell which API wrote it"
                )
            elif isinstance(content, str):
                yield Content.from_text(content)
            else:
                yield self._file(message, content)

    def _file(self, message: BaseMessage, media: Media) -> Content:
        """Return a file, or a text that describes it; only questions and results may have files."""
        url = media.data_url or media.url
        usual = "image/*" if media.url and media.kind == "image" else ""
        mime_type = media.mime_type or usual  # clients only read the part before the slash
        if not url or not mime_type or isinstance(message, AIMessage | SystemMessage):
            return Content.from_text(self.without_file(message, media))
        named = {"filename": media.name} if media.name else None  # clients read the name from here
        return Content.from_uri(
            url, media_type=mime_type, name=media.name or None, additional_properties=named
        )
