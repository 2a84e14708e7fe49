"""A plain writer names the turn that its messages belong to."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation
from convstore.exceptions import InvalidInputError, UnknownMessageError


async def test_a_writer_names_the_question_that_its_messages_belong_to(chat: Conversation) -> None:
    """Though a later one was asked; the question must be an active one of the log, or in the batch."""
    calling = AIMessage("", id="c1", tool_calls=[{"name": "look", "args": {}, "id": "a"}])
    with pytest.raises(UnknownMessageError):
        await chat.append(AIMessage("Hello."), turn="q1")
    await chat.append([HumanMessage("First?", id="q1"), HumanMessage("Second?", id="q2")])
    await chat.append(
        [calling, ToolMessage("5", tool_call_id="a"), HumanMessage("Briefly.")], turn="q1"
    )
    assert [message.turn_id for message in await chat.list_messages()] == [
        "q1",
        "q2",
        "q1",
        "q1",
        "q1",
    ]
    for turn in ("nobody", "c1"):
        with pytest.raises(UnknownMessageError):
            await chat.append(AIMessage("So."), turn=turn)
    await chat.append([HumanMessage("Third?", id="q3"), AIMessage("Yes.")], turn="q3")
    await chat.rewind(before_id="q3")
    with pytest.raises(UnknownMessageError):
        await chat.append(AIMessage("No."), turn="q3")
    invalid: Any = {"$ne": ""}
    for turn in ("", invalid):
        with pytest.raises(InvalidInputError):
            await chat.append(AIMessage("So."), turn=turn)
