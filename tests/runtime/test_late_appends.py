"""Appends of a worker that has not learnt of a deletion: logged and counted as soon as it learns of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from counting import STANDING
from langchain_core.messages import HumanMessage

from convstore import ConversationStore
from convstore.integration import host_of


@pytest.mark.parametrize("learns_by", ["append", "load"])
async def test_a_late_append_is_logged_and_counted(
    learns_by: str,
    database: Any,
    scope: dict[str, str],
    seconds: list[float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, with the conversation's id and the number of messages appended since this worker saw it last."""
    late, other = (
        ConversationStore(database, clock=replace(STANDING, monotonic=lambda: seconds[0]))
        for _ in range(2)
    )
    await late.setup()
    chat, counted = late.conversation(**scope), list[int]()
    (await host_of(late).services()).reader.cache.on_discarded = counted.append
    await chat.append([HumanMessage("One is seen."), HumanMessage("Two are seen.")])
    conversation = (await chat.info()).conversation_id
    seconds[0] += 11
    await chat.append(HumanMessage("Three are seen."))
    await other.conversation(**chat.scope).delete()
    assert (await chat.append([HumanMessage("Late."), HumanMessage("Late, too.")])).written == 2
    assert counted == []
    seconds[0] += 11
    if learns_by == "load":
        assert (await chat.load_history()).messages == []
    else:
        assert (await chat.append(HumanMessage("New."))).first == 1
    assert counted == [3]
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"conversation {conversation} was deleted, with 3 messages")
    await chat.append(HumanMessage("More."))
    assert counted == [3]
