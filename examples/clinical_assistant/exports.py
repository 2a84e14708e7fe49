"""Turns as JSON lines: examples for fine-tuning a model, and an audit trail."""

from __future__ import annotations

import json
import re
from typing import Any

from langchain_core.messages import (
    AIMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
)
from langchain_core.utils.function_calling import convert_to_openai_tool

from clinical_assistant.graph import PROMPT, answer_of, error_of
from clinical_assistant.knowledge import retrieve_knowledge_base
from convstore import Conversation, Turn

__all__ = ["audit_line", "fine_tuning_line"]

_MOST_CITED = 200


def fine_tuning_line(turn: Turn) -> str:
    """Return a turn in OpenAI's chat format; "" without a good answer, or if the answer cites an earlier turn."""
    answer = answer_of(turn)
    tools = {retrieve_knowledge_base.name: convert_to_openai_tool(retrieve_knowledge_base)}
    called = [
        call["name"]
        for message in turn.messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]
    if answer is None or error_of(answer) or not tools.keys() >= set(called):
        return ""
    messages = convert_to_openai_messages([SystemMessage(PROMPT), *turn.messages])
    return _line({"messages": messages, "tools": [tools[name] for name in dict.fromkeys(called)]})


async def audit_line(chat: Conversation, turn: Turn) -> str:
    """Return user, question, time, tool calls with arguments and outputs, used sources and the answer."""
    answer = answer_of(turn)
    text = answer.text if answer else None
    return _line(
        {
            "interaction_id": turn.turn_id,
            "ordinal": turn.first,
            "at": turn.created_at.isoformat(),
            **chat.scope,
            "question": turn.messages[0].text,
            "tools": await _tools(chat, turn),
            "sources_used": await _sources(chat, text or ""),
            "answer": text,
            "error": error_of(answer) if answer else "no answer",
        }
    )


async def _tools(chat: Conversation, turn: Turn) -> list[dict[str, Any]]:
    """Return the calls of a turn, each with its output and the numbers of its sources."""
    results = {
        message.tool_call_id: message
        for message in turn.messages
        if isinstance(message, ToolMessage)
    }
    records = await chat.get_tool_messages([str(message.id) for message in results.values()])
    found = {
        record.tool_call_id: [source.source_id for source in record.sources] for record in records
    }
    return [
        {
            "tool": call["name"],
            "arguments": call["args"],
            "status": results[call["id"]].status if call["id"] in results else "no result",
            "output": results[call["id"]].text if call["id"] in results else None,
            "source_ids": found.get(call["id"] or "", []),
        }
        for message in turn.messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]


async def _sources(chat: Conversation, answer: str) -> list[dict[str, Any]]:
    """Return the sources that an answer cites, from any turn, without invented numbers."""
    cited = [int(number) for number in dict.fromkeys(re.findall(r"\[([1-9]\d{0,8})\]", answer))][
        :_MOST_CITED
    ]
    titles: dict[int, str] = {}
    cursor: str | None = "" if cited else None
    while cursor is not None:
        page = await chat.get_sources(cited, cursor=cursor, page_tokens=16_000)
        titles |= {source.source_id: source.title for source in page.sources}
        cursor = page.next_cursor
    return [{"source_id": number, "title": titles[number]} for number in cited if number in titles]


def _line(value: dict[str, Any]) -> str:
    # ASCII, because outside text may contain characters that UTF-8 cannot encode.
    return json.dumps(value) + "\n"
