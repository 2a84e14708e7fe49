"""A plain writer names the turn that its messages belong to."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation
from convstore.exceptions import InvalidInputError, UnknownMessageError
from convstore.integration import TurnAccess


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


async def test_a_reply_of_a_run_belongs_to_the_turn_of_the_results_before_it(
    chat: Conversation,
) -> None:
    """Though a later question was answered; one that the run asks after its results has its own reply."""
    calls = [
        AIMessage("", id=id_, tool_calls=[{"name": "look", "args": {}, "id": id_}]) for id_ in "ab"
    ]
    for id_, calling in zip(("q1", "q2"), calls, strict=True):
        await chat.append([HumanMessage("Look.", id=id_), calling])
    await chat.append([HumanMessage("Third?", id="q3"), AIMessage("Yes.")])
    access = TurnAccess(chat)
    await access.append_run([ToolMessage("5", tool_call_id="a"), AIMessage("Five.")])
    more = [HumanMessage("Fourth?", id="q4"), AIMessage("No.")]
    await access.append_run([ToolMessage("6", tool_call_id="b"), *more])
    await access.append_run([AIMessage("A reminder.")])
    turns = [stored.turn_id for stored in await chat.list_messages()]
    assert turns == ["q1", "q1", "q2", "q2", "q3", "q3", "q1", "q1", "q2", "q4", "q4", ""]
