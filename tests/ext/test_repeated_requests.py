"""The same request finds its answer, for good, at every door: the log never has a second one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from adapters import is_installed
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import Command, interrupt
from scripted_agents import ScriptedModel, log_of

from convstore import Conversation, ConversationStore
from convstore.exceptions import TurnClosedError
from convstore.ext.chat_history import with_message_history
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import append_node, load_node

pytestmark = pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")

TEXT = "Do seals sleep?"
SAVER = InMemorySaver()
SAVER_OF_AGENTS = InMemorySaver()

Door = Callable[[Conversation, str], Awaitable[str]]
"""Asks the same request once more, with a model that says a text; returns the answer that the caller gets."""


@pytest.fixture
async def chat() -> AsyncIterator[Conversation]:
    """A conversation in memory."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store.conversation(user_id="ada", thread_id="seals")


def _question() -> HumanMessage:
    return HumanMessage(TEXT, id="q1")


async def _own_loop(chat: Conversation, says: str) -> str:
    async with await chat.turn("q1", human=TEXT) as turn:
        while turn.is_running:
            await turn.append(AIMessage(says))
        assert turn.answer
        return turn.answer.text


async def _agent(chat: Conversation, says: str) -> str:
    own = ConversationMiddleware(chat.store)
    agent = create_agent(ScriptedModel(replies=[AIMessage(says)]), [], middleware=[own])
    result = await agent.ainvoke({"messages": [_question()]}, {"configurable": chat.scope})
    return str(result["messages"][-1].text)


def _graph(*nodes: tuple[str, Any], saver: InMemorySaver | None = None) -> Any:
    """A graph that asks its model whatever the log has."""
    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_sequence(list(nodes))
    graph.set_entry_point(nodes[0][0])
    return graph.compile(checkpointer=saver)


def _model(says: str) -> tuple[str, Any]:
    async def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(says)]}

    return "model", answer


async def _asked(graph: Any, chat: Conversation) -> str:
    result = await graph.ainvoke({"messages": [_question()]}, {"configurable": chat.scope})
    return str(result["messages"][-1].text)


async def _graph_without_an_edge(chat: Conversation, says: str) -> str:
    load, append = load_node(chat.store), append_node(chat.store)
    return await _asked(_graph(("load", load), _model(says), ("append", append)), chat)


async def _graph_that_appends_last(chat: Conversation, says: str) -> str:
    load, append = load_node(chat.store, append_first=False), append_node(chat.store)
    return await _asked(_graph(("load", load), _model(says), ("append", append)), chat)


async def _graph_with_a_checkpointer(chat: Conversation, says: str) -> str:
    nodes = ("load", load_node(chat.store)), _model(says), ("append", append_node(chat.store))
    return await _asked(_graph(*nodes, saver=SAVER), chat)


async def _graph_without_a_load_node(chat: Conversation, says: str) -> str:
    return await _asked(_graph(_model(says), ("append", append_node(chat.store))), chat)


def _node(chat: Conversation, name: str, says: Any) -> tuple[str, Any]:
    """An agent as a node of a graph."""
    own = ConversationMiddleware(chat.store)
    return name, create_agent(ScriptedModel(replies=[says]), [], middleware=[own])


async def _agent_in_a_graph(chat: Conversation, says: str) -> str:
    return await _asked(_graph(_node(chat, "agent", AIMessage(says)), saver=SAVER_OF_AGENTS), chat)


async def _chain(chat: Conversation, says: str) -> str:
    async def answer(messages: Any) -> BaseMessage:
        return AIMessage(says)

    chain = with_message_history(RunnableLambda(answer), chat.store)
    return str((await chain.ainvoke([_question()], {"configurable": chat.scope})).text)


async def _microsoft(chat: Conversation, says: str) -> str:
    from agent_framework import (  # noqa: PLC0415 - takes seconds
        Agent,
        BaseChatClient,
        ChatResponse,
        Message,
    )

    from convstore.ext.microsoft import ConvstoreHistoryProvider  # noqa: PLC0415

    class Model(BaseChatClient):
        async def _inner_get_response(self, **_: Any) -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", [says])])

    history = ConvstoreHistoryProvider(chat.store, user_id="ada")
    agent = Agent(client=Model(), context_providers=[history])
    session = agent.create_session(session_id="seals")
    asked = Message("user", [TEXT], message_id="q1")
    return str((await agent.run(asked, session=session)).text)


async def _chain_without_ids(chat: Conversation, says: str) -> str:
    async def answer(messages: Any) -> BaseMessage:
        return AIMessage(says)

    chain = with_message_history(RunnableLambda(answer), chat.store)
    return str((await chain.ainvoke([HumanMessage(TEXT)], {"configurable": chat.scope})).text)


async def _agents_sdk(chat: Conversation, says: str) -> str:
    from agents import Agent, Runner, set_tracing_disabled  # noqa: PLC0415 - takes seconds
    from agents.testing import ScriptedModel, assistant_message  # noqa: PLC0415

    from convstore.ext.openai_agents import ConvstoreSession  # noqa: PLC0415

    set_tracing_disabled(True)
    model = ScriptedModel([[assistant_message(says)]])
    session = ConvstoreSession(chat.store, **chat.scope)
    agent = Agent(name="biologist", model=model)
    return str((await Runner.run(agent, TEXT, session=session)).final_output)


async def _pydantic(chat: Conversation, says: str) -> str:
    from pydantic_ai import Agent, Conversation  # noqa: PLC0415 - takes seconds
    from pydantic_ai.models.test import TestModel  # noqa: PLC0415

    from convstore.ext.pydantic_ai import ConvstoreConversationStore  # noqa: PLC0415

    conversations = ConvstoreConversationStore(chat.store, user_id="ada")
    found = await conversations.load("seals") or Conversation(conversation_id="seals")
    agent = Agent(TestModel(custom_output_text=says))
    result = await agent.run(TEXT, conversation=found)
    await conversations.save(result)
    return str(result.output)


def _of(package: str, door: Door) -> Any:
    """A door of a framework that takes seconds to import, if it is installed."""
    is_missing = not is_installed(package)
    absent = pytest.mark.skipif(is_missing, reason=f"{package} is not installed")
    return pytest.param(door, marks=[pytest.mark.slow, absent])


WITH_IDS = [
    _own_loop,
    _agent,
    _graph_without_an_edge,
    _graph_that_appends_last,
    _graph_with_a_checkpointer,
    _graph_without_a_load_node,
    _agent_in_a_graph,
    _chain,
    _of("agent_framework", _microsoft),
]
REFUSED = (_chain, _microsoft)
"""Doors that refuse a question that has an answer."""

WITHOUT_IDS = [_chain_without_ids, _of("agents", _agents_sdk), _of("pydantic_ai", _pydantic)]


@pytest.mark.parametrize("door", WITH_IDS)
async def test_the_same_request_finds_its_answer(chat: Conversation, door: Door) -> None:
    """The caller gets the stored answer, or an error that says where it is; the log gets nothing."""
    assert await door(chat, "They do.") == "They do."
    if door in REFUSED:
        with pytest.raises(TurnClosedError, match="get_turn"):
            await door(chat, "They do not.")
    else:
        assert await door(chat, "They do not.") == "They do."
    assert [message.text for message in await log_of(chat)] == [TEXT, "They do."]
    turn = await chat.get_turn("q1")
    assert turn
    assert turn.messages[-1].text == "They do."


async def test_the_words_of_an_agent_that_a_node_gives_to_another_are_of_one_turn(
    chat: Conversation,
) -> None:
    """A node that makes a human message of an agent's answer begins no turn; the last answer is the answer."""

    async def tell(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(state["messages"][-1].text, name="first")]}

    saver = InMemorySaver()
    for _ in range(2):
        agents = [_node(chat, name, AIMessage(f"By {name}.")) for name in ("first", "second")]
        await _asked(_graph(agents[0], ("tell", tell), agents[1], saver=saver), chat)
    said = ["By first.", "By first.", "By second."]
    assert [message.text for message in await log_of(chat)] == [TEXT, *said]
    assert [[m.text for m in turn.messages] async for turn in chat.turns()] == [[TEXT, *said]]


@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_agents_in_a_graph_go_on_after_its_run_failed(
    chat: Conversation, durability: Any
) -> None:
    """What the first agent said stands, and the second one answers; both are repeated after that."""
    saver = InMemorySaver()
    request = {"messages": [_question()]}, {"configurable": chat.scope}
    first = _node(chat, "first", AIMessage("Let me ask."))
    graph = _graph(first, _node(chat, "second", ValueError("503")), saver=saver)
    with pytest.raises(ValueError, match="503"):
        await graph.ainvoke(*request, durability=durability)
    for _ in range(3):
        first = _node(chat, "first", AIMessage("I asked."))
        graph = _graph(first, _node(chat, "second", AIMessage("They do.")), saver=saver)
        result = await graph.ainvoke(*request, durability=durability)
        assert result["messages"][-1].text == "They do."
    said = [message.text for message in await log_of(chat)]
    assert said == [TEXT, "Let me ask.", "They do."]


def _steps(chat: Conversation, *replies: Any, saver: InMemorySaver | None = None) -> Any:
    """A graph that loads before each call of a model and appends after it; "?" asks a person, an error is raised."""
    nodes = list[tuple[str, Any]]()
    for at, reply in enumerate(replies):

        async def model(state: MessagesState, reply: Any = reply) -> Any:
            if isinstance(reply, Exception):
                raise reply
            return {"messages": [AIMessage(interrupt("Which?") if reply == "?" else reply)]}

        ends = load_node(chat.store), append_node(chat.store)
        nodes += [(f"load {at}", ends[0]), (f"model {at}", model), (f"append {at}", ends[1])]
    return _graph(*nodes, saver=saver)


@pytest.mark.parametrize("in_subgraphs", [False, True])
async def test_what_a_graph_says_in_several_steps_is_kept(
    chat: Conversation, in_subgraphs: bool
) -> None:
    """A plan that a node wrote in this run is no answer yet: what the next node writes is appended, too."""
    graph = _steps(chat, "A plan.", "They do.", saver=InMemorySaver())
    if in_subgraphs:
        parts = (("plan", _steps(chat, "A plan.")), ("write", _steps(chat, "They do.")))
        graph = _graph(*parts, saver=InMemorySaver())
    for _ in range(2):  # the second time the same request
        assert await _asked(graph, chat) == "They do."
    assert [message.text for message in await log_of(chat)] == [TEXT, "A plan.", "They do."]


async def test_a_graph_that_is_resumed_after_a_plan_goes_on(chat: Conversation) -> None:
    """What a run said before it failed or was interrupted is no answer where the run goes on; it is to the question."""
    saver = InMemorySaver()
    with pytest.raises(ValueError, match="503"):
        await _asked(_steps(chat, "A plan.", ValueError("503"), saver=saver), chat)
    graph = _steps(chat, "-", "?", saver=saver)
    scope = {"configurable": chat.scope}
    assert "__interrupt__" in await graph.ainvoke(None, scope)
    result = await graph.ainvoke(Command(resume="They do."), scope)
    assert result["messages"][-1].text == "They do."
    assert await _graph_without_an_edge(chat, "They do not.") == "They do."
    assert [message.text for message in await log_of(chat)] == [TEXT, "A plan.", "They do."]


async def test_a_graph_that_waits_after_a_plan_goes_on(chat: Conversation) -> None:
    """The load node of a run that goes on takes what was said before the pause for no answer."""

    async def wait(_: MessagesState) -> Any:
        return {"messages": interrupt("?")}

    load, append = load_node(chat.store), append_node(chat.store)
    steps = [
        ("load", load),
        _model("A plan."),
        ("append", append),
        ("wait", wait),
        ("load 2", load),
    ]
    steps += [("model 2", _model("They do.")[1]), ("append 2", append)]
    graph, scope = _graph(*steps, saver=InMemorySaver()), {"configurable": chat.scope}
    await graph.ainvoke({"messages": [_question()]}, scope)
    result = await graph.ainvoke(Command(resume=[]), scope)
    assert result["messages"][-1].text == "They do."
    assert await _graph_without_an_edge(chat, "They do not.") == "They do."
    assert [message.text for message in await log_of(chat)] == [TEXT, "A plan.", "They do."]


async def test_what_a_graph_says_before_it_loads_is_no_answer(chat: Conversation) -> None:
    """The load node appends what a node said before; a run that died after its answer is answered by it."""
    before, step = _model("A plan."), ("write", _steps(chat, "They do."))
    assert (
        await _asked(_graph(("plan", before[1]), step, saver=InMemorySaver()), chat) == "They do."
    )
    assert [message.text for message in await log_of(chat)] == [TEXT, "A plan.", "They do."]


@pytest.mark.parametrize("has_saver", [False, True])
async def test_what_a_node_says_as_a_user_belongs_to_the_question(
    chat: Conversation, has_saver: bool
) -> None:
    """A rewritten question or a critique begins no turn: the last answer is that to the question, repeated or not."""

    async def criticise(_: MessagesState) -> Any:
        return {"messages": [HumanMessage("Be brief.")]}

    load, append = load_node(chat.store), append_node(chat.store)
    steps = [("load", load), _model("They do, with one half of the brain."), ("append", append)]
    steps += [("criticise", criticise), ("load 2", load)]
    steps += [("model 2", _model("They do.")[1]), ("append 2", append)]
    saver = InMemorySaver() if has_saver else None
    for _ in range(2):
        assert await _asked(_graph(*steps, saver=saver), chat) == "They do."
    assert [len(turn.messages) async for turn in chat.turns()] == [4]
    next_one = {"messages": [HumanMessage("Why?", id="q2")]}, {"configurable": chat.scope}
    await _graph(*steps, saver=saver).ainvoke(*next_one)
    assert [(turn.turn_id, len(turn.messages)) async for turn in chat.turns()] == [
        ("q1", 4),
        ("q2", 4),
    ]


async def test_what_a_person_says_in_a_resumed_run_is_the_next_question(chat: Conversation) -> None:
    """A graph that waits for the next message of its user begins a turn with it, but not while its turn is open."""

    async def listen(_: MessagesState) -> Any:
        return {"messages": [HumanMessage(interrupt("?"))]}

    load, append = load_node(chat.store), append_node(chat.store)
    steps = [("load", load), ("which", listen), ("load 1", load), _model("Hm."), ("append", append)]
    steps += [
        ("listen", listen),
        ("load 2", load),
        ("model 2", _model("Yes.")[1]),
        ("append 2", append),
    ]
    graph, scope = _graph(*steps, saver=InMemorySaver()), {"configurable": chat.scope}
    await graph.ainvoke({"messages": [_question()]}, scope)
    for said in ("The grey ones.", "Really?"):
        await graph.ainvoke(Command(resume=said), scope)
    turns = [[message.text for message in turn.messages] async for turn in chat.turns()]
    assert turns == [[TEXT, "The grey ones.", "Hm."], ["Really?", "Yes."]]


async def test_an_answer_that_only_the_checkpoint_has_is_the_answer(chat: Conversation) -> None:
    """A worker that died between its model and the append node has said it: the model is not asked again."""
    saver = InMemorySaver()
    load, append = ("load", load_node(chat.store)), ("append", append_node(chat.store))

    async def die(_: MessagesState) -> Any:
        raise ValueError("killed")

    with pytest.raises(ValueError, match="killed"):
        await _asked(_graph(load, _model("They do."), ("append", die), saver=saver), chat)
    again = _graph(load, _model("They do not."), append, saver=saver)
    assert await _asked(again, chat) == "They do."
    assert [message.text for message in await log_of(chat)] == [TEXT, "They do."]


@pytest.mark.parametrize("door", [_graph_without_an_edge, _graph_that_appends_last])
async def test_two_workers_give_one_answer(chat: Conversation, door: Door) -> None:
    """A graph waits for another one that answers the same request, and finds its answer."""
    given = await asyncio.gather(*(door(chat, says) for says in ("They do.", "They do not.")))
    assert len(set(given)) == 1
    assert [message.text for message in await log_of(chat)] == [TEXT, given[0]]


@pytest.mark.parametrize("door", WITHOUT_IDS)
async def test_the_same_words_without_an_id_are_another_question(
    chat: Conversation, door: Door
) -> None:
    """Where a request has no id, the same words have an answer of their own, and the first one keeps its."""
    assert await door(chat, "They do.") == "They do."
    assert await door(chat, "They do not.") == "They do not."
    turns = [[message.text for message in turn.messages] async for turn in chat.turns()]
    assert turns == [[TEXT, "They do."], [TEXT, "They do not."]]
