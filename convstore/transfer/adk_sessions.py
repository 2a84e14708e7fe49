"""Reads the sessions that Google ADK's ``MongoDbSessionService`` stored: documents of sessions and of events.

An event with a content becomes a message, or one for each result in it; its id is that of the event. The collections
are only read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore.integration import documents_of
from convstore.messages.media import media_block
from convstore.messages.text import content_of
from convstore.transfer.records import DAMAGED, BadRecord, ConversationRecord, RecordItem, counted, record_or_bad

_SIGNATURES = "__gemini_function_call_thought_signatures__"
"""Where ChatGoogleGenerativeAI looks for the signatures of calls."""
_KEYS = ("app_name", "user_id", "session_id")


async def read_adk_sessions(
    database: Any, *, sessions: str = "sessions", events: str = "events"
) -> AsyncIterator[ConversationRecord | BadRecord]:
    """Yield the conversations of a database one at a time, ordered by app, user and session.

    The fields of a record for its scope are ``app_name``, ``user_id`` and ``session_id``. The state of the session
    becomes `Conversation.state`; states of an app or a user are not read.

    Args:
        database: Of PyMongo's async client, Motor or mongomock-motor.
        sessions: Name of the collection of sessions.
        events: Name of the collection of events.

    Raises:
        StoreError: The server does not answer, or refuses a command.
    """
    async for session in documents_of(database[sessions].find({}).sort("_id", 1)):
        yield await record_or_bad(f"session {session['_id']!r}"[:200], _record(session, database[events]))


async def _record(session: Mapping[str, Any], events: Any) -> ConversationRecord:
    keys = {name: str(session["_id"][name]) for name in _KEYS}
    items, silent = list[RecordItem](), 0
    async for document in documents_of(events.find(keys).sort([("timestamp", 1), ("revision", 1)])):
        found = _items(document)
        items += found
        silent += not found
    state = session.get("state") or {}
    return ConversationRecord(
        id=keys["session_id"],
        messages=items,
        where=f"session {keys['session_id']!r}"[:200],
        fields=keys,
        state=dict(json.loads(state) if isinstance(state, str) else state),
        notes=[f"left out: {counted(silent, 'event')} without content"] if silent else [],
    )


def _items(document: Mapping[str, Any]) -> list[RecordItem]:
    where = f"event {document['_id']!r}"[:200]
    try:
        where = f"event {document['_id']['event_id']!r}"[:200]
        event = json.loads(document["event_data"])
        at = datetime.fromtimestamp(float(event["timestamp"]), UTC)
        return [RecordItem(message=message, where=where, at=at) for message in _messages(event)]
    except DAMAGED as error:
        return [RecordItem(message=None, problem=f"no event: {error!r}", where=where)]


def _messages(event: Mapping[str, Any]) -> list[BaseMessage]:
    content = event.get("content") or {}
    parts, id_ = content.get("parts") or [], event["id"]
    results = [part["function_response"] for part in parts if part.get("function_response")]
    calls = [part for part in parts if part.get("function_call")]
    others = [part for part in parts if not (part.get("function_response") or part.get("function_call"))]
    said = content_of([_block(part) for part in others])
    own = [_result(result, id_ if index == 0 else f"{id_}:{index}") for index, result in enumerate(results)]
    if not (calls or others):
        return [*own]
    is_human = results or content.get("role") == "user" or event.get("author") == "user"
    rest_id = f"{id_}:text" if results else id_
    return [*own, HumanMessage(said, id=rest_id) if is_human and not calls else _answer(event, said, calls, rest_id)]


def _answer(event: Mapping[str, Any], said: Any, calls: list[Mapping[str, Any]], id_: str) -> AIMessage:
    counts, made = event.get("usage_metadata") or {}, [part["function_call"] for part in calls]
    names = {"input_tokens": "prompt_token_count", "output_tokens": "candidates_token_count"}
    usage = {name: counts.get(theirs) or 0 for name, theirs in names.items()}
    signed = {part["function_call"]["id"]: part["thought_signature"] for part in calls if part.get("thought_signature")}
    return AIMessage(
        said,
        id=id_,
        tool_calls=[{"name": call["name"], "args": call.get("args") or {}, "id": call["id"]} for call in made],
        usage_metadata={**usage, "total_tokens": counts.get("total_token_count") or 0} if counts else None,
        response_metadata={"model_name": event["model_version"]} if event.get("model_version") else {},
        additional_kwargs={"author": event["author"], **({_SIGNATURES: signed} if signed else {})},
    )


def _result(result: Mapping[str, Any], id_: str) -> ToolMessage:
    response = result.get("response") or {}
    plain = response.get("result") if response.keys() == {"result"} else None
    text = plain if isinstance(plain, str) else json.dumps(response, ensure_ascii=False)
    failed = "error" if "error" in response else "success"
    return ToolMessage(text, id=id_, tool_call_id=result["id"], name=result["name"], status=failed)


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    signature = part.get("thought_signature")
    extras = {"extras": {"signature": signature}} if signature else {}
    if isinstance(text := part.get("text"), str):
        return {"type": "reasoning", "reasoning": text} | extras if part.get("thought") else _text(text) | extras
    if data := part.get("inline_data"):
        return media_block(data["mime_type"], base64=data["data"]) | extras
    if file := part.get("file_data"):
        return media_block(file.get("mime_type") or "", url=file["file_uri"]) | extras
    return {"type": "non_standard", "value": dict(part)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
