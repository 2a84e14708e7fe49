"""At DEBUG the logger `convstore` has one line for a load, and for what an application may have overlooked."""

from __future__ import annotations

import logging

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import ConversationStore
from convstore.testing.samples import rag_turn


@pytest.fixture(autouse=True)
def _at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "convstore")


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines at DEBUG."""
    return [record.getMessage() for record in caplog.records if record.levelname == "DEBUG"]


async def test_a_load_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Its size, stubs, turns left out, and from the second on what broke the prompt cache; never a text or a scope."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append(rag_turn("Where are whales?")[:3])
        await chat.load_history()
        await chat.append(AIMessage("At sea."))
        await chat.load_history()
        await chat.append(HumanMessage("And orcas?"))
        history = await chat.load_history()
        name = f"loaded conversation {(await chat.info()).conversation_id}: "
    lines = lines_of(caplog)
    assert all(line.startswith(name) for line in lines)
    assert [line.partition("turns left out")[2] for line in lines] == [
        "",
        ", prompt cache broken: turn ended",
        ", prompt cache held",
    ]
    assert f"5 messages, {history.tokens} tokens, 1 stub, 0 turns left out" in lines[2]


async def test_what_may_be_overlooked_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Dicts without ids and key, which a repeated call stores twice, and results that no call asked for."""
    question = {"role": "user", "content": "Hi"}
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append([question, {**question, "id": "q2"}], key="r1")
        await chat.append([{**question, "id": "q3"}, HumanMessage("Ho")])
        assert lines_of(caplog) == []
        await chat.append([question, question])
        await chat.append(ToolMessage("Found.", tool_call_id="c9", id="r9"))
    assert lines_of(caplog) == [
        "append without key=: a repeated call would store 2 messages again, because dicts have no id",
        "results without a call, which views leave out: r9",
    ]
