"""Agents in agents: the middleware of an inner one finds its conversation below the call that it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from scripted_agents import ScriptedModel, calls, kinds, log_of

from convstore import Conversation, ConversationStore
from convstore.exceptions import InvalidScopeError
from convstore.ext.langchain import ConversationMiddleware

ADA = {"user_id": "ada", "thread_id": "t"}


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store in memory, which serves sync agents, too."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store


@tool(response_format="content_and_artifact")
def find(query: str = "") -> tuple[str, list[dict[str, str]]]:
    """Find two passages."""
    return "2 passages", [
        {"title": f"{query} {at}", "content": f"{query} passage {at}. " * 30} for at in (1, 2)
    ]


def agent_of(
    store: ConversationStore, replies: list[BaseMessage], *tools: BaseTool, **options: Any
) -> Any:
    """Return an agent with the middleware that gives these replies."""
    names = ["find"] if find in tools else []
    middleware = ConversationMiddleware(store, number_sources=names, **options)
    return create_agent(ScriptedModel(replies=replies), list(tools), middleware=[middleware])


def asking(agent: Any, name: str) -> BaseTool:
    """Return a tool that asks an agent."""

    @tool(name)
    async def ask() -> str:
        """Ask the other agent."""
        return str((await agent.ainvoke({"messages": [("user", f"{name}?")]}))["messages"][-1].text)

    return ask


async def family_of(chat: Conversation) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return path and messages of all conversations below one, each before those below it."""
    found = []
    for info in await chat.children():
        child = chat.store.conversation(**info.scope)
        found += [(info.scope["path"], kinds(await log_of(child))), *await family_of(child)]
    return found


async def test_a_sub_agent_works_below_its_call(store: ConversationStore) -> None:
    """Without a scope of its own, at any depth; its caller's conversation has the call and its result alone."""
    critic = agent_of(store, [AIMessage("Fine.")])
    inner = agent_of(store, [calls("critic"), AIMessage("In May.")], asking(critic, "critic"))
    outer = agent_of(
        store, [calls("librarian"), AIMessage("Plant in May.")], asking(inner, "librarian")
    )
    await outer.ainvoke({"messages": [("user", "When?")]}, {"configurable": ADA})
    chat = store.conversation(**ADA)
    log = await log_of(chat)
    assert kinds(log) == [
        ("human", "When?"),
        ("ai", ""),
        ("tool", "In May."),
        ("ai", "Plant in May."),
    ]
    first = f"{log[1].id}:call_0"
    (path, said), (nested, below) = await family_of(chat)
    assert (path, said[0], said[-1]) == (first, ("human", "librarian?"), ("ai", "In May."))
    assert nested.startswith(f"{first}/")
    assert below == [("human", "critic?"), ("ai", "Fine.")]
    child = chat.child(str(log[1].id), "call_0")
    assert (await child.info()).message_count == 4


async def test_parallel_sub_agents_have_a_conversation_each(store: ConversationStore) -> None:
    """Their sources have numbers of the caller's conversation, which reads them back."""
    item, two = (
        agent_of(store, [calls("find", query=name), AIMessage(name)], find)
        for name in ("orcas", "seals")
    )
    both = AIMessage(
        "", tool_calls=[{"name": name, "args": {}, "id": f"id_{name}"} for name in ("one", "two")]
    )
    outer = agent_of(store, [both, AIMessage("Both.")], asking(item, "one"), asking(two, "two"))
    await outer.ainvoke({"messages": [("user", "?")]}, {"configurable": ADA})
    chat = store.conversation(**ADA)
    assert [said[-1] for _, said in sorted(await family_of(chat))] == [
        ("ai", "orcas"),
        ("ai", "seals"),
    ]
    pages = [
        await chat.get_sources("1-9"),
        *[await child.get_sources("1-9") for child in await children_of(chat)],
    ]
    numbers = [[source.source_id for source in page.sources] for page in pages]
    assert numbers[0] == [1, 2, 3, 4] == sorted(numbers[1] + numbers[2])
    assert sorted(source.title for source in pages[0].sources) == [
        "orcas 1",
        "orcas 2",
        "seals 1",
        "seals 2",
    ]


async def children_of(chat: Conversation) -> list[Conversation]:
    """Return the handles of the children of a conversation."""
    return [chat.store.conversation(**info.scope) for info in await chat.children()]


async def test_an_agent_that_is_asked_twice_at_once_mixes_nothing(store: ConversationStore) -> None:
    """Within one call both questions are in its conversation, each with its answer; a model sees its own alone."""
    both = asyncio.Barrier(2)

    @tool
    async def wait() -> str:
        """Wait for the other run."""
        await both.wait()
        return "waited"

    models = {
        name: ScriptedModel(replies=[calls("wait"), AIMessage(f"{name}!")])
        for name in ("one", "two")
    }

    @tool
    async def ask() -> str:
        """Ask the agent twice at once."""
        agents = {
            name: create_agent(model, [wait], middleware=[ConversationMiddleware(store)])
            for name, model in models.items()
        }
        runs = [
            agent.ainvoke({"messages": [("user", f"{name}?")]}) for name, agent in agents.items()
        ]
        return " ".join(run["messages"][-1].text for run in await asyncio.gather(*runs))

    outer = agent_of(store, [calls("ask"), AIMessage("Both.")], ask)
    said = await outer.ainvoke({"messages": [("user", "Ask both")]}, {"configurable": ADA})
    assert said["messages"][-2].text == "one! two!"
    [info] = await store.conversation(**ADA).children()
    turns = [kinds(turn.messages) async for turn in store.conversation(**info.scope).turns()]
    expected = [
        [("human", f"{name}?"), ("ai", ""), ("tool", "waited"), ("ai", f"{name}!")]
        for name in models
    ]
    assert sorted(turns) == sorted(expected)
    assert [kinds(model.shown[-1]) for model in models.values()] == [turn[:-1] for turn in expected]


@pytest.mark.parametrize(("fails", "times"), [(True, 1), (False, 2)])
async def test_the_same_words_below_a_call_continue_a_turn_that_broke_off(
    store: ConversationStore, fails: bool, times: int
) -> None:
    """A tool that runs again needs no id for its question; one that asks the same twice at once gets two answers."""
    inner = agent_of(store, [*[ValueError("503")] * fails, *[AIMessage("In May.")] * times])

    @tool
    async def ask() -> str:
        """Ask the other agent."""
        runs = [inner.ainvoke({"messages": [("user", "When?")]}) for _ in range(times)]
        return str((await asyncio.gather(*runs))[-1]["messages"][-1].text)

    outer = agent_of(store, [calls("ask"), AIMessage("Plant in May.")], ask)
    request = {"messages": [HumanMessage("?", id="q1")]}, {"configurable": ADA}
    if fails:
        with pytest.raises(ValueError, match="503"):
            await outer.ainvoke(*request)
    await outer.ainvoke(*request)
    [child] = await children_of(store.conversation(**ADA))
    said = [message.text for message in await log_of(child)]
    assert sorted(said) == ["In May."] * times + ["When?"] * times


async def test_the_same_words_outside_of_a_call_are_another_question(
    store: ConversationStore,
) -> None:
    """Without an id a person asks again, also after a run that broke off."""
    agent = agent_of(store, [ValueError("503"), AIMessage("In May.")])
    request = {"messages": [("user", "When?")]}, {"configurable": ADA}
    with pytest.raises(ValueError, match="503"):
        await agent.ainvoke(*request)
    await agent.ainvoke(*request)
    turns = [len(turn.messages) async for turn in store.conversation(**ADA).turns()]
    assert turns == [1, 2]


async def test_other_words_below_a_call_are_another_question(store: ConversationStore) -> None:
    """A tool that runs again with other words does not continue what it asked before."""
    words = iter(["When?", "Where?"])
    inner = agent_of(store, [ValueError("503"), AIMessage("In May.")])

    @tool
    async def ask() -> str:
        """Ask the other agent."""
        said = await inner.ainvoke({"messages": [("user", next(words))]})
        return str(said["messages"][-1].text)

    outer = agent_of(store, [calls("ask"), AIMessage("Plant in May.")], ask)
    request = {"messages": [HumanMessage("?", id="q1")]}, {"configurable": ADA}
    with pytest.raises(ValueError, match="503"):
        await outer.ainvoke(*request)
    await outer.ainvoke(*request)
    [child] = await children_of(store.conversation(**ADA))
    assert [m.text for m in await log_of(child)] == ["When?", "Where?", "In May."]


async def test_the_same_words_while_a_run_works_on_them_are_another_question(
    store: ConversationStore,
) -> None:
    """A tool that asks the same again before the first run has answered gets an answer of its own."""
    begun, asked = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait until the same was asked again."""
        begun.set()
        await asked.wait()
        return "waited"

    first = agent_of(store, [calls("wait"), AIMessage("In May.")], wait)
    second = agent_of(store, [AIMessage("In June.")])

    @tool
    async def ask() -> str:
        """Ask the other agents."""
        running = asyncio.create_task(first.ainvoke({"messages": [("user", "When?")]}))
        await begun.wait()
        await second.ainvoke({"messages": [("user", "When?")]})
        asked.set()
        return str((await running)["messages"][-1].text)

    outer = agent_of(store, [calls("ask"), AIMessage("Plant in May.")], ask)
    await outer.ainvoke({"messages": [("user", "?")]}, {"configurable": ADA})
    [child] = await children_of(store.conversation(**ADA))
    turns = [[message.text for message in turn.messages] async for turn in child.turns()]
    assert turns == [["When?", "", "waited", "In May."], ["When?", "In June."]]


@pytest.mark.slow
def test_a_sync_sub_agent_works_below_its_call() -> None:
    """The place is known in the threads of a sync agent, too."""
    store = asyncio.run(ConversationStore.connect("memory://"))
    asyncio.run(store.setup())
    inner = agent_of(store, [AIMessage("In May.")])

    @tool
    def ask() -> str:
        """Ask the other agent."""
        return str(inner.invoke({"messages": [("user", "When?")]})["messages"][-1].text)

    outer = agent_of(store, [calls("ask"), AIMessage("Plant in May.")], ask)
    outer.invoke({"messages": [("user", "?")]}, {"configurable": ADA})
    said = [said for _, said in asyncio.run(family_of(store.conversation(**ADA)))]
    asyncio.run(store.close())
    assert said == [[("human", "When?"), ("ai", "In May.")]]


async def test_an_agent_that_is_a_node_has_a_named_place(store: ConversationStore) -> None:
    """``scope={"path": ...}`` is the child with that name."""
    agent = agent_of(store, [AIMessage("Found.")], scope={"path": "researcher"})
    await agent.ainvoke({"messages": [("user", "?")]}, {"configurable": ADA})
    chat = store.conversation(**ADA)
    assert kinds(await log_of(chat.child("researcher"))) == [("human", "?"), ("ai", "Found.")]
    assert await log_of(chat) == []


async def test_an_agent_around_a_call_of_the_model_may_not_share_its_conversation(
    store: ConversationStore,
) -> None:
    """An agent called around a model call is refused before it writes, and the error says to pass `scope`."""
    inner = agent_of(store, [AIMessage("Never.")])

    class Asking(AgentMiddleware[Any, Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            await inner.ainvoke({"messages": [("user", "?")]})
            return await handler(request)

    middleware = [ConversationMiddleware(store), Asking()]
    outer = create_agent(ScriptedModel(replies=[AIMessage("Never.")]), middleware=middleware)
    with pytest.raises(InvalidScopeError, match=r"called by another agent.*scope="):
        await outer.ainvoke({"messages": [("user", "?")]}, {"configurable": ADA})
    assert kinds(await log_of(store.conversation(**ADA))) == [("human", "?")]


async def test_a_call_with_a_very_long_id_has_a_place(store: ConversationStore) -> None:
    """A call with an id of 600 characters has a child conversation too."""
    inner = agent_of(store, [AIMessage("In May.")])
    outer = agent_of(
        store, [calls("ask", ids=["c" * 600]), AIMessage("Plant in May.")], asking(inner, "ask")
    )
    await outer.ainvoke({"messages": [("user", "?")]}, {"configurable": ADA})
    log = await log_of(store.conversation(**ADA))
    child = store.conversation(**ADA).child(str(log[2].id))
    assert kinds(await log_of(child)) == [("human", "ask?"), ("ai", "In May.")]
