"""The tool by which an agent searches the other conversations of its user: ``search_conversations``.

The application or the run's configuration determines the user, never the model. A hit has a reference that only this
tool accepts, and only for conversations with the same scope values.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from pydantic import BaseModel, Field

from convstore.messages.text import text_of
from convstore.messages.tokens import CHARACTERS_PER_TOKEN, fitting, weight
from convstore.readback.passages import in_line
from convstore.runtime.loop_thread import BothWays
from convstore.tools.agent_tool import AgentTool, agent_tool
from convstore.values.models import StoredMessage
from convstore.values.reports import ConversationHits, SearchHit, SearchResult

SEARCH_TOOL = "search_conversations"
_DESCRIPTION = (
    "Search the user's other conversations. Pass words as find: you get the best passages, each "
    "with a reference. Pass a reference as read to read the whole message. The text is from "
    "another conversation: say so when you use it, and do not cite its numbers as sources of this "
    "one."
)
MAX_HITS = 60
_TITLE_CHARACTERS = 80
_FIND_CHARACTERS = 4_096
_REFERENCE = re.compile(r"([0-9a-zA-Z]{1,64})\.(\d{1,15})(?:@(\d{1,12}))?", re.ASCII)
_NOT_FOUND = "There is no such reference; search again with find."


class OtherConversations(NamedTuple):
    """Functions that search and read the other conversations of one user."""

    search: Callable[[str], Awaitable[SearchResult]]
    read: Callable[[str, int], Awaitable[StoredMessage | None]]


class _SearchArguments(BaseModel):
    find: Any = Field(
        default="", description="Words to search for.", json_schema_extra={"type": "string"}
    )
    read: Any = Field(
        default="", description="A reference from a search.", json_schema_extra={"type": "string"}
    )


_Answer = Callable[[OtherConversations, tuple[Any, Any]], Coroutine[Any, Any, str]]


def make_search_tool(
    both_ways: Callable[[RunnableConfig, _Answer], BothWays], *, page_tokens: int
) -> AgentTool:
    """Return the tool, async and sync; `both_ways` calls a function with the conversations that a run may search."""
    room = (page_tokens - 4) * CHARACTERS_PER_TOKEN

    async def answer(others: OtherConversations, arguments: tuple[Any, Any]) -> str:
        find, read = arguments
        if reference := _text(read):
            found = _REFERENCE.fullmatch(reference)
            message = await others.read(found[1], int(found[2])) if found else None
            return _page(message, found, room) if message and found else _NOT_FOUND
        if words := _text(find)[:_FIND_CHARACTERS]:
            return _hits(await others.search(words), room)
        return "Pass words as find, or a reference as read."

    return agent_tool(
        lambda find="", read="": (find, read),
        lambda config: both_ways(config, answer),
        name=SEARCH_TOOL,
        description=_DESCRIPTION,
        args_schema=_SearchArguments,
    )


def _text(value: Any) -> str:
    return str(value).strip() if isinstance(value, str | int | float) else ""


def _hits(result: SearchResult, room: int) -> str:
    """Return the hits of all conversations, best first, as far as there is room."""
    hits = [(group, hit) for group in result.conversations for hit in group.hits]
    lines: list[str] = []
    note = ""
    if result.incomplete:
        note = "Some conversations could not be searched whole."
        room -= len(note) + 1
    for group, hit in sorted(hits, key=lambda pair: -pair[1].score):
        text = _hit(group, hit)
        if weight(text) + 1 > room and lines:
            break
        lines.append(text[: fitting(text, room)])
        room -= weight(lines[-1]) + 1
    return "\n".join([*(lines or ["No match in other conversations."]), *([note] if note else [])])


def _hit(group: ConversationHits, hit: SearchHit) -> str:
    title = f' in "{in_line(group.title, _TITLE_CHARACTERS)}"' if group.title else ""
    kind = f"result of {in_line(hit.tool, 60)}" if hit.type == "tool" else f"{hit.type} message"
    return (
        f"[{group.conversation_id}.{hit.ordinal}] {kind}{title}, "
        f"{hit.created_at:%Y-%m-%d}\n{hit.snippet}"
    )


def _page(message: StoredMessage, reference: re.Match[str], room: int) -> str:
    """Return a message of another conversation, or the part of it that begins at an offset."""
    conversation = reference[1]
    ordinal = int(reference[2])
    offset = int(reference[3] or 0)
    text = text_of(message.message.content)[offset:]
    header = (
        f"{message.message.type} message, {message.created_at:%Y-%m-%d}, from character {offset}"
    )
    end = fitting(text, max(1, room - len(header) - 150))
    following = f'\nMore: read="{conversation}.{ordinal}@{offset + end}"' if end < len(text) else ""
    return f"{header}\n{text[:end]}{following}"
