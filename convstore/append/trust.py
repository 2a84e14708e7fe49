"""Decide which messages of a client's history are taken: the rule of ``append_history(trust="human")``.

A client can forge answers and tool results. So only its questions are taken, and the results of tools that run on the
client. All other messages that the log does not have are ignored, and the receipt names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, ChatMessage, ToolMessage
from pydantic import ValidationError

from convstore.append.fields import check_fields
from convstore.append.formats import field_error, result_of, without_input
from convstore.append.resent import HistoryMatch
from convstore.log.comparison import is_said
from convstore.log.entry import OpenCall
from convstore.messages.provenance import MARK
from convstore.values.append_options import SentMessage, Trust

_MARKS = frozenset({MARK, "lc_source"})
"""Keys under which the store and LangChain's summarization mark what they generate."""


def read_sent(messages: Sequence[BaseMessage], trust: Trust) -> list[SentMessage]:
    """Return a client's messages; each block that a person did not write becomes its own message.

    Raises:
        InvalidMessageError: A message or a block cannot be stored.
    """
    sent: list[SentMessage] = []
    for index, origin in enumerate(messages):
        check_fields(origin, index=index)
        blocks: list[Any] = origin.content if isinstance(origin.content, list) else []
        is_mixed = origin.type == "human" and not trust.is_all
        foreign = [part for part in enumerate(blocks) if not is_said(part[1])] if is_mixed else []
        for place, block in foreign:
            name = f"message {index}, content[{place}] ({str(block.get('type'))[:40]!r})"
            sent.append(
                SentMessage(
                    name, _foreign(block, place, index, f"{origin.id}:{place}"), origin, index
                )
            )
        words = [block for block in blocks if is_said(block)] if foreign else origin.content
        if words or not foreign:
            message = origin if trust.is_all else _cleaned(origin, content=words)
            sent.append(SentMessage(f"message {index} ({origin.type})", message, origin, index))
    return sent


def _foreign(block: dict[str, Any], place: int, index: int, id_: str) -> BaseMessage:
    """Return a block of a human message as a tool result if it is one of Anthropic's, else as a ChatMessage."""
    if block.get("type") != "tool_result":
        return ChatMessage(content=[block], role="unknown", id=id_)
    fields = result_of(block, place, index=index)
    try:
        message = ToolMessage(
            fields["content"], tool_call_id=fields["tool_call_id"], status=fields["status"], id=id_
        )
    except ValidationError as error:
        raise field_error(error, index=index) from without_input(error)
    check_fields(message, index=index)
    return message


def _cleaned(message: BaseMessage, **update: Any) -> BaseMessage:
    """Return a message with updated fields and without marks of generated messages; the same object if none changes."""
    for field in ("additional_kwargs", "response_metadata"):
        values = getattr(message, field)
        is_marked = not _MARKS.isdisjoint(values)
        if is_marked:
            update[field] = {key: value for key, value in values.items() if key not in _MARKS}
        else:
            update[field] = values
    is_same = all(getattr(message, field) is value for field, value in update.items())
    return message if is_same else message.model_copy(update=update)


def taken_from(
    sent: Sequence[SentMessage], match: HistoryMatch, calls: Sequence[OpenCall], trust: Trust
) -> dict[int, BaseMessage]:
    """Return the messages of a history that are written, by index.

    A result needs an open call. If several open calls have its id, all of them must go to tools of the client.
    """
    if trust.is_all:
        return {index: item.message for index, item in enumerate(sent) if index >= match.known}
    taken: dict[int, BaseMessage] = {}
    tools: dict[str, list[str]] = {}
    for call in calls:
        tools.setdefault(call.id, []).append(call.tool)
    for index, (_, message, *_) in enumerate(sent):
        if index < match.start or index in match.matched:
            continue
        if message.type == "human" or message.id in trust.own:
            taken[index] = message
            continue
        open_ = tools.get(message.tool_call_id) if isinstance(message, ToolMessage) else None
        if open_ and trust.client_tools.issuperset(open_):
            tool = open_.pop()
            taken[index] = _cleaned(message, name=message.name and tool)
    return taken
