"""Convert turns to parts of the AI SDK 7, with bounded sizes and a report of everything that is left out or cut.

The messages of AG-UI are made from the same parts, so both formats agree.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from convstore.exceptions import InvalidInputError
from convstore.integration import normalize_messages
from convstore.messages.turn_calls import pairs_of
from convstore.sources.citations import Mention, citations_in, distinct
from convstore.types import Source, TurnCall
from convstore.values.json_form import valid_text
from convstore.wire.contents import ContentReader
from convstore.wire.parts import Block, Media, json_value, parsed_value
from convstore.wire.streams import StreamedReply

Format = Literal["ai-sdk", "ag-ui"]
Part: TypeAlias = dict[str, Any]
Event: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, Any]
Outcome: TypeAlias = Literal["finished", "waiting", "stopped", "unfinished"]

DRAFT = "draft:"
"""Prefix of the id of a step that is being streamed."""

ANSWER = "answer:"
"""Prefix of the id of a turn's answer as one message; the id of the turn follows."""
_LATE = ("data-", "source-")
"""Parts of a reply that are sent after the streamed ones, when the reply is in the log."""


class ShownStep(NamedTuple):
    """One message of a turn, in parts.

    Attributes:
        role: "system", "user", "assistant", or "tool" for a result. Messages that a tool added are "assistant".
        id: Id of the message.
        parts: Its texts, reasoning and media in order, then its calls, then other blocks and cited sources. For a
            result, the part of its call, then its files and sources.
    """

    role: str
    id: str
    parts: list[Part]


class ShownTurn(NamedTuple):
    """A turn for front ends: each result directly follows the message with its call. Metadata is by message id."""

    turn_id: str
    steps: list[ShownStep]
    metadata: dict[str, dict[str, Any]]


class TurnReader(ContentReader):
    """Converts turns for front ends.

    Attributes:
        sources: The sources of results, by message id.
        metadata: As in `ShownTurn`.
    """

    def __init__(
        self,
        client_tools: Collection[str] = (),
        *,
        output_limit: int = 20_000,
        media_limit: int = 500_000,
    ) -> None:
        super().__init__()
        self._client_tools = client_tools
        self._output_limit = output_limit
        self._media_limit = media_limit
        self.sources: dict[str, Sequence[Source]] = {}
        self.metadata: dict[str, dict[str, Any]] = {}

    def turn(
        self,
        turn_id: str,
        messages: Sequence[BaseMessage],
        waiting: Iterable[TurnCall] = (),
        *,
        is_over: bool = False,
    ) -> ShownTurn:
        """Convert a turn from its full messages; `waiting` are the calls that a person has to decide about."""
        calls, results = self._calls(messages, waiting, is_over=is_over)
        groups: dict[str, list[ShownStep]] = {}
        for message in messages:
            id_ = str(message.id)
            if isinstance(message, AIMessage | HumanMessage | SystemMessage):
                role = _role_of(message, is_first=message is messages[0])
                parts = [*self._content(message), *calls.get(id_, ())]
                if role == "assistant":
                    parts.sort(key=lambda part: part["type"].startswith(_LATE))
                groups.setdefault(id_, []).append(ShownStep(role, id_, parts))
            elif id(message) in results:
                owner, parts = results[id(message)]
                groups[owner].append(ShownStep("tool", id_, parts))
            else:
                self.drop(
                    message,
                    message.type,
                    "front ends do not support results without a call",
                )
        steps = [step for group in groups.values() for step in group]
        return ShownTurn(turn_id, steps, self.metadata)

    def _calls(
        self, messages: Sequence[BaseMessage], waiting: Iterable[TurnCall], *, is_over: bool
    ) -> tuple[dict[str, list[Part]], dict[int, tuple[str, list[Part]]]]:
        """Return the parts of calls by message id, and for each result the id of the call's message and its parts."""
        approvals = {call.result_id for call in waiting if call.name not in self._client_tools}
        written = _invalid_arguments(messages)
        calls: dict[str, list[Part]] = {}
        results: dict[int, tuple[str, list[Part]]] = {}
        pairs = pairs_of(messages)
        ids = call_ids(call for call, _ in pairs)
        for (call, result), id_ in zip(pairs, ids, strict=True):
            given = written.get((call.message_id, call.id)) if call.error else None
            part = _call_part(call, id_, given or json_value(call.args))
            if result:
                results[id(result)] = (call.message_id, self._result(result, part))
            else:
                part |= _open_state(call, approvals, is_over=is_over)
            calls.setdefault(call.message_id, []).append(part)
        return calls, results

    def streaming(self, turn: ShownTurn, reply: StreamedReply) -> ShownTurn:
        """Return a turn with the reply that is being streamed, whose last text and calls are marked as incomplete."""
        known = [step for step in turn.steps if step.role == "assistant"]
        drafts = _drafts(reply, f"{DRAFT}{turn.turn_id}:{len(known)}")
        used = {part.get("toolCallId") for step in known for part in step.parts} - {None}
        steps = list(turn.steps)
        for step in self.turn(turn.turn_id, drafts).steps:
            parts = [part for part in step.parts if part.get("toolCallId") not in used]
            if parts:
                _mark_as_streamed(parts, reply)
                steps.append(step._replace(parts=parts))
        return turn._replace(steps=steps)

    def other(self, message: BaseMessage, block: Block) -> Iterator[Part]:
        """Yield a block of another type unchanged; calls have parts of their own."""
        if block.kind != "call" and len(json.dumps(block.block)) <= self._output_limit:
            yield {
                "type": f"data-{valid_text(block.type) or 'block'}",
                "data": json_value(dict(block.block)),
            }
        elif block.kind != "call":
            self.drop(
                message,
                block.type or "block",
                f"it is longer than {self._output_limit:,} characters",
            )

    def _content(self, message: BaseMessage) -> Iterator[Part]:
        """Yield the texts, the reasoning, the media and other blocks of a message in order, then its cited sources.

        Sources that a provider has cited do not have numbers of the conversation.
        """
        for content in self.contents(message):
            if isinstance(content, str):
                yield {"type": "text", "text": content, "state": "done"}
            elif isinstance(content, Media):
                yield self._file(message, content)
            else:
                yield content
        id_ = str(message.id)
        for number, source in enumerate(distinct(_citations_of(message))):
            yield _source(f"{id_}:{number}", str(source.title or ""), str(source.url or ""), id_)

    def _result(self, result: ToolMessage, call: Part) -> list[Part]:
        """Return the part of a call with its result added, then the files and the sources of the result."""
        content = list(self._content(result))
        id_ = str(result.id)
        text = "\n".join(part["text"] for part in content if part["type"] == "text")
        if (more := len(text) - self._output_limit) > 0:
            self.drop(
                result,
                "output",
                f"it has {len(text):,} characters; get_tool_messages returns all of it",
            )
            text = f"{text[: self._output_limit]}\n[{more:,} more characters in message {id_}]"
        if result.status == "error":
            call |= {"state": "output-error", "errorText": text or "The tool failed."}
        else:
            call |= {"state": "output-available", "output": parsed_value(text)}
        found = self.sources.get(id_, ())
        sources = [
            _source(str(own.source_id), own.title, own.url, own.tool_message_id) for own in found
        ]
        return [
            call,
            *(part for part in content if part["type"].startswith(("file", "data-"))),
            *sources,
        ]

    def _file(self, message: BaseMessage, media: Media) -> Part:
        """Return a file with its address or data; if it has neither, or is too large, a part with the message's id."""
        if media.url or 0 < len(media.data) <= self._media_limit:
            kind = media.mime_type or (
                media.kind if media.kind != "file" else "application/octet-stream"
            )
            name = {"filename": media.name} if media.name else {}
            return {"type": "file", "mediaType": kind, "url": media.data_url or media.url, **name}
        large = f"its data is longer than {self._media_limit:,} characters"
        self.drop(
            message,
            media.kind,
            large if media.data else "it has neither data nor an address that a browser can open",
        )
        return {
            "type": "data-omitted",
            "data": {"messageId": str(message.id), "description": media.description},
        }


def call_ids(calls: Iterable[TurnCall]) -> Iterator[str]:
    """Yield the id of each call on pages: its own, or that of its result if an earlier call has the same id."""
    seen = {""}
    for call in calls:
        own = valid_text(call.id)
        yield call.result_id if own in seen else own
        seen.add(own)


def _role_of(message: BaseMessage, *, is_first: bool) -> str:
    if isinstance(message, SystemMessage):
        return "system"
    if isinstance(message, HumanMessage) and is_first:
        return "user"
    return "assistant"


def _invalid_arguments(messages: Sequence[BaseMessage]) -> dict[tuple[str | None, str | None], str]:
    """Return the text of call arguments that are not valid, by the ids of message and call."""
    texts: dict[tuple[str | None, str | None], str] = {}
    for message in messages:
        if isinstance(message, AIMessage):
            for call in message.invalid_tool_calls:
                texts[message.id, call["id"]] = valid_text(call["args"] or "")
    return texts


def _call_part(call: TurnCall, id_: str, arguments: Any) -> Part:
    name = valid_text(call.name)
    if name:
        return {"type": f"tool-{name}", "toolCallId": id_, "input": arguments}
    return {"type": "dynamic-tool", "toolName": "tool", "toolCallId": id_, "input": arguments}


def _open_state(call: TurnCall, approvals: Collection[str], *, is_over: bool) -> Part:
    """Return the state of a call without a result; those in `approvals` wait for a person."""
    if call.error or is_over:
        error = valid_text(call.error) or "The call has no result."
        return {"state": "output-error", "errorText": error}
    if call.result_id in approvals:
        return {"state": "approval-requested", "approval": {"id": call.result_id}}
    return {"state": "input-available"}


def _drafts(reply: StreamedReply, id_: str) -> list[BaseMessage]:
    """Return the streamed part of a reply as a message with this id; [] if it is not a message yet."""
    try:
        messages = normalize_messages(reply.message() or ())
    except InvalidInputError:
        return []
    replies = [message for message in messages if isinstance(message, AIMessage)]
    return [message.model_copy(update={"id": id_}) for message in replies]


def _mark_as_streamed(parts: Sequence[Part], reply: StreamedReply) -> None:
    """Mark calls and the last text of a reply as incomplete."""
    for part in parts:
        if "toolCallId" in part:
            part["state"] = "input-streaming"
            part["input"] = reply.arguments.get(part["toolCallId"], "")
    last = parts[-1]
    if "text" in last:
        last["state"] = "streaming"
        last["text"] = last["text"].removesuffix("\ufffd")  # half a character


def _citations_of(message: BaseMessage) -> Iterator[Mention]:
    """Yield the sources that the text blocks of a reply cite."""
    if not isinstance(message, AIMessage) or not isinstance(message.content, list):
        return
    for block in message.content:
        if isinstance(block, dict):
            yield from citations_in(block)


def _source(id_: str, title: str, url: str, message_id: str) -> Part:
    web = {"type": "source-url", "url": valid_text(url)}
    kind = web if url else {"type": "source-document", "mediaType": "text/plain"}
    own = {"providerMetadata": {"convstore": {"messageId": message_id}}}
    return {**kind, "sourceId": id_, "title": valid_text(title or url) or f"Source {id_}", **own}


def with_keys(items: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Key, Part]]:
    """Yield parts or messages, each with a key: the id of its call or source, else its index among its kind."""
    counts = Counter[str]()
    for item in items:
        kind = str(item.get("role", item.get("type")))
        known = next((name for name in ("toolCallId", "sourceId") if name in item), None)
        yield ((known, str(item[known])) if known else (kind, counts[kind])), dict(item)
        counts[kind] += 1


def checked_fields(message: Mapping[str, Any]) -> Part:
    """Return the fields of a client's part or message that have the expected types; others are left out."""
    calls = message["toolCalls"] if isinstance(message.get("toolCalls"), list) else []
    found = [
        call
        for call in calls
        if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)
    ]
    texts = {key: value for key, value in message.items() if isinstance(value, str)}
    return texts | ({"toolCalls": found} if found else {})
