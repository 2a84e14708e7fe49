"""Numbers that the tools of a sub-agent gave are claimed in the conversation around it, before its own entry."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from convstore import Conversation
from convstore.exceptions import SourceIdClashError, StoreUnavailableError
from convstore.mongo.log import Log


def _numbered_turn(id_: str) -> list[BaseMessage]:
    call = {"name": "search", "args": {}, "id": f"call-{id_}"}
    source = json.dumps([{"source_id": 500, "title": id_, "content": f"{id_} " * 50}])
    return [
        HumanMessage("What?", id=id_),
        AIMessage("", id=f"{id_}-call", tool_calls=[call]),
        ToolMessage(source, id=f"{id_}-result", name="search", tool_call_id=f"call-{id_}"),
    ]


async def test_a_number_that_was_claimed_waits_for_the_sub_agent_that_claimed_it(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker died between the claim and its entry: others are refused the number, the retry is not."""
    await chat.append(HumanMessage("Go."))
    mine, other = chat.child("mine"), chat.child("other")
    for child in (mine, other):
        await child.append(HumanMessage("Task."))
    of_mine = str((await mine.info()).conversation_id)
    insert = Log.insert

    async def killed(self: Log, conversation: str, *more: Any, **options: Any) -> None:
        if conversation == of_mine:
            raise StoreUnavailableError("the worker is gone")
        await insert(self, conversation, *more, **options)

    monkeypatch.setattr(Log, "insert", killed)
    with pytest.raises(StoreUnavailableError):
        await mine.append(_numbered_turn("a"))
    monkeypatch.undo()
    for refused in (other, chat):
        with pytest.raises(SourceIdClashError):
            await refused.append(_numbered_turn("b"))
    assert (await mine.append(_numbered_turn("a"))).source_ids == (500, 500)
