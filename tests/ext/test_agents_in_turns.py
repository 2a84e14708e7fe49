"""An agent or a graph that is run inside a turn works on it: its messages are fenced, and the turn knows them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import MessagesState

from convstore import Conversation, ConversationStore
from convstore.exceptions import TurnLostError
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import append_node
from convstore.runtime.clock import Clock


def _chat(store: ConversationStore) -> Conversation:
    """Return an empty conversation."""
    return store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)


class Model(GenericFakeChatModel):
    """Says what it is told to."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - the base class has it
        """Take no notice of tools."""
        return self


@tool
def search(words: str) -> str:
    """Search the handbook."""
    return f"{words}: half of the brain sleeps"


@pytest.fixture
async def store(database: Any) -> Any:
    """A store that is set up."""
    made = ConversationStore(database)
    await made.setup()
    yield made
    await made.close()


def _agent(store: ConversationStore) -> Any:
    call = {"name": "search", "args": {"words": "seals"}, "id": "call_1"}
    said = iter([AIMessage("", tool_calls=[call]), AIMessage("They do.")])
    return create_agent(Model(messages=said), [search], middleware=[ConversationMiddleware(store)])


async def test_an_agent_answers_the_turn_that_its_caller_entered(store: ConversationStore) -> None:
    """The turn has its messages at once, so a repeated request finds the answer."""
    chat = _chat(store)
    for _ in range(2):
        async with await chat.turn("r1", human="Do seals sleep?") as turn:
            if turn.is_running:
                asked = {"messages": [HumanMessage("Do seals sleep?", id="r1")]}
                await _agent(store).ainvoke(asked, context=chat.scope)
            assert turn.answer is not None
            assert [one.type for one in turn.messages] == ["human", "ai", "tool", "ai"]
    assert (await chat.info()).message_count == 4


async def test_an_agent_makes_another_answer(store: ConversationStore) -> None:
    """It sees the question without the old answer, and continues what a killed run left."""
    chat, asked = _chat(store), {"messages": [HumanMessage("Do seals sleep?", id="r1")]}
    await chat.append_turn("r1", human="Do seals sleep?", messages=AIMessage("No idea."))
    call = {"name": "search", "args": {"words": "seals"}, "id": "call_1"}
    async with await chat.turn("r1", regenerate="click") as turn:
        await turn.append(AIMessage("", id="asked", tool_calls=[call]))
    model = Model(messages=iter([AIMessage("They do.")]))
    agent = create_agent(model, [search], middleware=[ConversationMiddleware(store)])
    async with await chat.turn("r1", regenerate="click") as turn:
        await agent.ainvoke(asked, context=chat.scope)
        assert turn.answer is not None
        assert turn.answer.text == "They do."
    assert [one.message.type for one in await chat.list_messages()] == ["human", "ai", "tool", "ai"]


async def test_an_agent_whose_turn_was_taken_writes_nothing(store: ConversationStore, database: Any) -> None:
    """Another worker has the turn: the agent's next message is refused."""
    later = Clock(now=lambda: datetime.now(UTC) + timedelta(seconds=31))
    chat = _chat(store)
    other = ConversationStore(database, clock=later).conversation(**chat.scope)
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        async with await other.turn("r1"):
            with pytest.raises(TurnLostError):
                await _agent(store).ainvoke(
                    {"messages": [HumanMessage("Do seals sleep?", id="r1")]}, context=chat.scope
                )
        assert not turn.is_running
    assert [one.id async for one in chat.messages()] == ["r1"]


async def test_a_node_appends_to_the_turn(store: ConversationStore) -> None:
    """Of a graph built by hand; outside of a turn it appends to the log as before."""
    chat, node = _chat(store), append_node(store)
    config: Any = {"configurable": chat.scope}
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        said = [HumanMessage("Do seals sleep?", id="r1"), AIMessage("They do.", id="a1")]
        await node.ainvoke(MessagesState(messages=said), config)
        assert turn.answer == said[1]
    await node.ainvoke(MessagesState(messages=[HumanMessage("And?", id="r2")]), config)
    assert (await chat.info()).message_count == 3


async def test_source_ids_are_reserved_in_the_turn(store: ConversationStore) -> None:
    """So the next append of the turn follows them without a further read."""
    chat = _chat(store)
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        assert await chat.reserve_source_ids(3) == range(1, 4)
        tail = turn._held.tail
        await turn.append(AIMessage("They do."))
        assert (turn._held.tail.entries, tail.sources_through) == (tail.entries + 1, 3)
