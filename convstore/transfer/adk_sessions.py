"""Reads the sessions that Google ADK's ``MongoDbSessionService`` stored: documents of sessions and of events.

An event with content becomes a message under the event's id, or several if it has function results. The collections are
only read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.edges import collection_of
from convstore.integration import documents_of
from convstore.messages.media import media_block
from convstore.messages.text import content_of
from convstore.messages.usage import usage_of
from convstore.transfer.prepare import hidden_ranges
from convstore.transfer.records import (
    DAMAGED,
    BadRecord,
    ConversationRecord,
    record_or_bad,
    where_of,
)
from convstore.values.log_records import RecordItem
from convstore.values.plain import counted

_SIGNATURES = "__gemini_function_call_thought_signatures__"
"""Key under which ChatGoogleGenerativeAI reads the signatures of calls."""
_KEYS = ("app_name", "user_id", "session_id")
_Part: TypeAlias = Mapping[str, Any]


async def read_adk_sessions(
    database: Any, *, sessions: str = "sessions", events: str = "events"
) -> AsyncGenerator[ConversationRecord | BadRecord, None]:
    """Yield the conversations of a database one at a time, ordered by app, user and session.

    The fields of a record for its scope are ``app_name``, ``user_id`` and ``session_id``. The state of the session
    becomes `Conversation.state`; states of an app or a user are not read.

    Args:
        database: Of PyMongo's async client, Motor or mongomock-motor.
        sessions: Name of the collection of sessions.
        events: Name of the collection of events.

    Raises:
        InvalidInputError: `database` is not a database, or a name is not a text.
        StoreError: The server does not answer, or refuses a command.
    """
    found = collection_of(database, sessions).find({}).sort("_id", 1)
    events_found = collection_of(database, events)
    async with aclosing(documents_of(found)) as sessions_found:
        async for session in sessions_found:
            yield await record_or_bad(
                where_of("session", session["_id"]), _record(session, events_found)
            )


async def _record(session: Mapping[str, Any], events: Any) -> ConversationRecord:
    keys = {name: str(session["_id"][name]) for name in _KEYS}
    open_calls = _UnansweredCalls()
    found = documents_of(events.find(keys).sort([("timestamp", 1), ("revision", 1)]))
    read = [_read(document, open_calls) async for document in found]
    shown = _shown(read)
    messages: list[RecordItem] = []
    is_shown: list[bool] = []
    empty = 0
    for index, event in enumerate(read):
        messages += event.items
        is_shown += [index in shown] * len(event.items)
        if not event.items and not event.rewound_from:
            empty += 1
    state = session.get("state") or {}
    if isinstance(state, str):
        state = json.loads(state)
    return ConversationRecord(
        id=keys["session_id"],
        messages=messages,
        where=where_of("session", keys["session_id"]),
        fields=keys,
        state=dict(state),
        rewound=hidden_ranges(is_shown),
        notes=[f"left out: {counted(empty, 'event')} without content"] if empty else [],
    )


class _UnansweredCalls:
    """Calls without a result, to match calls and results that Google ADK stored without an id."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []

    def id_of_call(self, call: Mapping[str, Any], event_id: str, index: int) -> str:
        """Return the id of a call; one without an id gets one that is derived from its event."""
        id_ = str(call.get("id") or f"{event_id}:call:{index}")
        self._open.append((str(call["name"]), id_))
        return id_

    def id_of_result(self, result: Mapping[str, Any], event_id: str, index: int) -> str:
        """Return the id of the call that a result names, else of the first unanswered call of its tool."""
        name = str(result["name"])
        given = result.get("id")
        matching = [
            call for call in self._open if call[1] == given or (not given and call[0] == name)
        ]
        if matching:
            self._open.remove(matching[0])
            return matching[0][1]
        return str(given or f"{event_id}:result:{index}")


class _Event(NamedTuple):
    """An event of a session: its messages, its invocation, and the first invocation that it rewinds, "" without one."""

    items: list[RecordItem]
    invocation: str
    rewound_from: str


def _read(document: Mapping[str, Any], open_calls: _UnansweredCalls) -> _Event:
    where = where_of("event", document["_id"])
    try:
        where = where_of("event", document["_id"]["event_id"])
        event = json.loads(document["event_data"])
        at = datetime.fromtimestamp(float(event["timestamp"]), UTC)
        items = [
            RecordItem(message=message, where=where, at=at)
            for message in _messages(event, open_calls)
        ]
        rewound_from = (event.get("actions") or {}).get("rewind_before_invocation_id")
        return _Event(items, str(event.get("invocation_id") or ""), str(rewound_from or ""))
    except DAMAGED as error:
        return _Event(
            [RecordItem(message=None, problem=f"not an event: {error!r}", where=where)], "", ""
        )


def _shown(events: Sequence[_Event]) -> set[int]:
    """Return the indexes of the events that Google ADK shows; a rewind that was rewound itself hides no events."""
    shown: set[int] = set()
    index = len(events) - 1
    while index >= 0:
        rewound_from = events[index].rewound_from
        if not rewound_from:
            shown.add(index)
        earlier = (at for at in range(index) if events[at].invocation == rewound_from)
        index = next(earlier, index) if rewound_from else index
        index -= 1
    return shown


def _messages(event: Mapping[str, Any], open_calls: _UnansweredCalls) -> list[BaseMessage]:
    content = event.get("content") or {}
    results, calls, others = _sorted_parts(content)
    own = _results(results, event["id"], open_calls)
    if not (calls or others):
        return own
    text = content_of([_block(part) for part in others])
    rest_id = f"{event['id']}:text" if results else event["id"]
    is_human = results or "user" in (content.get("role"), event.get("author"))
    if is_human and not calls:
        return [*own, HumanMessage(text, id=rest_id)]
    call_ids = [
        open_calls.id_of_call(part["function_call"], event["id"], index)
        for index, part in enumerate(calls)
    ]
    return [*own, _answer(event, text, calls, call_ids, rest_id)]


def _sorted_parts(content: _Part) -> tuple[list[_Part], list[_Part], list[_Part]]:
    """Return the results in a content, its parts with calls, and all other parts."""
    results: list[_Part] = []
    calls: list[_Part] = []
    others: list[_Part] = []
    for part in content.get("parts") or []:
        if part.get("function_response"):
            results.append(part["function_response"])
        if part.get("function_call"):
            calls.append(part)
        elif not part.get("function_response"):
            others.append(part)
    return results, calls, others


def _results(
    results: Sequence[Mapping[str, Any]], event_id: str, open_calls: _UnansweredCalls
) -> list[BaseMessage]:
    messages: list[BaseMessage] = []
    for index, result in enumerate(results):
        call_id = open_calls.id_of_result(result, event_id, index)
        id_ = event_id if index == 0 else f"{event_id}:{index}"
        messages.append(_result(result, id_, call_id))
    return messages


def _answer(
    event: Mapping[str, Any],
    content: Any,
    calls: Sequence[Mapping[str, Any]],
    call_ids: Sequence[str],
    id_: str,
) -> AIMessage:
    made: list[Any] = []
    signed: dict[str, Any] = {}
    for part, call_id in zip(calls, call_ids, strict=True):
        call = part["function_call"]
        made.append({"name": call["name"], "args": call.get("args") or {}, "id": call_id})
        if part.get("thought_signature"):
            signed[call_id] = part["thought_signature"]
    extra = {"author": event["author"]}
    if signed:
        extra[_SIGNATURES] = signed
    model = event.get("model_version")
    return AIMessage(
        content,
        id=id_,
        tool_calls=made,
        usage_metadata=usage_of(event.get("usage_metadata")),
        response_metadata={"model_name": model} if model else {},
        additional_kwargs=extra,
    )


def _result(result: Mapping[str, Any], id_: str, call_id: str) -> ToolMessage:
    response = result.get("response") or {}
    plain = response.get("result") if response.keys() == {"result"} else None
    text = plain if isinstance(plain, str) else json.dumps(response, ensure_ascii=False)
    failed = "error" if "error" in response else "success"
    return ToolMessage(text, id=id_, tool_call_id=call_id, name=result["name"], status=failed)


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    signature = part.get("thought_signature")
    extras = {"extras": {"signature": signature}} if signature else {}
    if isinstance(text := part.get("text"), str):
        if part.get("thought"):
            return {"type": "reasoning", "reasoning": text} | extras
        return {"type": "text", "text": text} | extras
    if data := part.get("inline_data"):
        return media_block(data["mime_type"], base64=data["data"]) | extras
    if file := part.get("file_data"):
        return media_block(file.get("mime_type") or "", url=file["file_uri"]) | extras
    return {"type": "non_standard", "value": dict(part)}
