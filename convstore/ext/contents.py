"""Read the content of messages for a framework that did not write them, and keep a report of what it cannot express."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from convstore.ext.reasoning import reasoning_beside, reasoning_part
from convstore.integration import Media, Text, parts_of
from convstore.types import Dropped


class ContentReader:
    """Reads messages that came through other doors, or that a view has changed.

    Attributes:
        dropped: What the framework has no place for.
    """

    def __init__(self) -> None:
        self.dropped = list[Dropped]()

    def contents(self, message: BaseMessage) -> Iterator[str | Media | dict[str, Any]]:
        """Yield texts, files and, of a model, its reasoning as `reasoning_part` writes it; in order."""
        is_said, calls = isinstance(message, AIMessage), set[str | None]()
        if isinstance(message, AIMessage):
            calls = {call["id"] for call in (*message.tool_calls, *message.invalid_tool_calls)}
            yield from reasoning_beside(message)
        for part in parts_of(message):
            if isinstance(part, Text):
                yield from filter(None, [part.text])
            elif isinstance(part, Media):
                yield part
            elif part.kind == "reasoning" and is_said:
                yield reasoning_part(part.block)
            elif part.kind != "call" or part.id not in calls:
                name = "reasoning" if part.kind == "reasoning" else part.type or "block"
                self.drop(message, name, "the framework has no part for it")

    def calls(self, message: AIMessage) -> Iterator[tuple[str, str, Any]]:
        """Yield id, name and arguments of the calls, valid or not; a call without an id or a name is reported."""
        for call in (*message.tool_calls, *message.invalid_tool_calls):
            if call["id"] and call["name"]:
                yield call["id"], call["name"], call["args"]
            else:
                self.drop(message, "call", "it has no id or no name")

    def without_file(self, message: BaseMessage, media: Media) -> str:
        """Report a file, and return the text that names it."""
        self.drop(message, media.kind, "the framework has no part for such a file in a message of this kind")
        return media.description

    def drop(self, message: BaseMessage, part: str, reason: str) -> None:
        """Report a part of a message."""
        self.dropped.append(Dropped(str(message.id or ""), part, reason))
