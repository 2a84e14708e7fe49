"""Agents that are nodes of a graph: a repeated question gives each what was said in its place, and asks the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from scripted_agents import ScriptedModel, calls, log_of

from convstore import Conversation, ConversationStore
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langchain.results import ending, ends_agent
from convstore.ext.run_turns import done_in_graph
from convstore.messages.filing import added_to, marked_as_added, without_marks

TEXT = "Do seals sleep?"

Node = tuple[str, Any]


@pytest.fixture(params=["memory", pytest.param("mongo", marks=pytest.mark.slow)])
async def chat(
    request: pytest.FixtureRequest, scope: dict[str, str]
) -> AsyncIterator[Conversation]:
    """A conversation of a store that serves sync graphs, too."""
    url = "memory://"
    if request.param == "mongo":
        uri = request.getfixturevalue("server_uri")
        url = uri.replace("/?", f"/{request.getfixturevalue('database_name')}?")
    async with await ConversationStore.connect(url) as store:
        await store.setup()
        yield store.conversation(**scope)


def _agent(chat: Conversation, name: str, asked: list[str], *replies: Any, **how: Any) -> Node:
    """An agent as a node, which notes each time that its model is asked."""

    class Model(ScriptedModel):
        def reply(self, messages: list[BaseMessage]) -> AIMessage:
            asked.append(name)
            return super().reply(messages)

    own = ConversationMiddleware(chat.store, **how.pop("options", {}))
    around = [*how.pop("before", []), own]
    given = list(replies) or [AIMessage(f"By {name}.")]
    return name, create_agent(Model(replies=given), how.pop("tools", []), middleware=around, **how)


def _two(chat: Conversation, asked: list[str]) -> list[Node]:
    return [_agent(chat, name, asked) for name in ("first", "second")]


def _told(chat: Conversation, asked: list[str]) -> list[Node]:
    """The second agent reads the first one's words as those of a user."""

    def tell(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(state["messages"][-1].text, name="first")]}

    first, second = _two(chat, asked)
    return [first, ("tell", tell), second]


def _rewritten(chat: Conversation, asked: list[str]) -> list[Node]:
    """A node rewrites the question before the first agent."""

    def rewrite(_: MessagesState) -> Any:
        return {"messages": [HumanMessage("Do they, and how?")]}

    return [("rewrite", rewrite), *_two(chat, asked)]


def _in_functions(chat: Conversation, asked: list[str]) -> list[Node]:
    """Nodes that call the agents, and give their last words to the graph as those of a user."""

    def called(name: str, agent: Any) -> Node:
        async def node(state: MessagesState) -> Any:
            result = await agent.ainvoke({"messages": state["messages"]})
            return {"messages": [HumanMessage(result["messages"][-1].text, name=name)]}

        return name, node

    return [called(*agent) for agent in _two(chat, asked)]


def _graph(nodes: Sequence[Node], saver: Any = None, **how: Any) -> Any:
    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_sequence(list(nodes))
    graph.set_entry_point(nodes[0][0])
    return graph.compile(checkpointer=saver, **how)


async def _ask(graph: Any, chat: Conversation, id_: str = "q1", *, is_sync: bool = False) -> Any:
    request = {"messages": [HumanMessage(TEXT, id=id_)]}, {"configurable": chat.scope}
    if is_sync:
        return await asyncio.to_thread(graph.invoke, *request)
    return await graph.ainvoke(*request)


async def _turns(chat: Conversation) -> list[list[str]]:
    return [[message.text for message in turn.messages] async for turn in chat.turns()]


SAID = {
    _two: ["By first.", "By second."],
    _told: ["By first.", "By first.", "By second."],
    _rewritten: ["Do they, and how?", "By first.", "By second."],
    _in_functions: ["By first.", "By first.", "By second."],
}


@pytest.mark.parametrize("has_saver", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("nodes", "is_sync"),
    [*((nodes, False) for nodes in SAID), pytest.param(_told, True, marks=pytest.mark.slow)],
)
async def test_a_repeated_question_asks_no_agent(
    chat: Conversation, nodes: Callable[..., list[Node]], has_saver: bool, is_sync: bool
) -> None:
    """Each agent gives its stored words, in its place; what nodes say again is neither logged nor the next question."""
    saver = InMemorySaver() if has_saver else None
    for id_ in ("q1", "q1", "q1", "q2", "q2"):
        asked = list[str]()
        before = await log_of(chat)
        state = await _ask(_graph(nodes(chat, asked), saver), chat, id_, is_sync=is_sync)
        is_new = not any(message.id == id_ for message in before)
        assert asked == (["first", "second"] if is_new else [])
        assert is_new or await log_of(chat) == before
        if not has_saver or nodes in (_two, _in_functions):  # else a node has the last word
            assert state["messages"][-1].text == "By second."
    assert await _turns(chat) == [[TEXT, *SAID[nodes]]] * 2


@pytest.mark.costly
@pytest.mark.parametrize("is_sync", [False, True])
@pytest.mark.parametrize("has_saver", [True, False])
@pytest.mark.parametrize("position", [1, 2])
async def test_a_node_that_failed_asks_no_agent_before_it_again(
    chat: Conversation, position: int, has_saver: bool, is_sync: bool
) -> None:
    """The repeated request asks the agents that had not answered yet, and no other."""
    saver = InMemorySaver() if has_saver else None
    errors: list[Exception] = [ValueError("503")]

    def fail(_: MessagesState) -> Any:
        if errors:
            raise errors.pop()
        return {}

    asked = list[str]()
    for _ in range(3):
        nodes = _two(chat, asked)
        nodes.insert(position, ("fail", fail))
        graph = _graph(nodes, saver)
        if errors:
            with pytest.raises(ValueError, match="503"):
                await _ask(graph, chat, is_sync=is_sync)
        else:
            state = await _ask(graph, chat, is_sync=is_sync)
            assert [each.text for each in state["messages"]] == [TEXT, "By first.", "By second."]
    assert asked == ["first", "second"]
    assert await _turns(chat) == [[TEXT, "By first.", "By second."]]


@pytest.mark.parametrize("has_saver", [False, True])
async def test_an_agent_goes_on_with_its_own_steps(chat: Conversation, has_saver: bool) -> None:
    """The second agent broke off after a tool: neither the tool nor what the first one said is repeated by it."""
    saver, ran = InMemorySaver() if has_saver else None, list[str]()

    @tool
    def look() -> str:
        """Look it up."""
        ran.append("look")
        return "They do."

    async def run(*replies: Any) -> Any:
        second = _agent(chat, "second", [], *replies, tools=[look])
        return await _ask(_graph([_agent(chat, "first", []), second], saver), chat)

    with pytest.raises(ValueError, match="503"):
        await run(calls("look"), ValueError("503"))
    state = await run(AIMessage("By second."))
    said = [TEXT, "By first.", "", "They do.", "By second."]
    assert [message.text for message in state["messages"]] == said
    assert await _turns(chat) == [said]
    assert ran == ["look"]


@pytest.mark.parametrize("has_saver", [False, True])
async def test_parallel_agents_give_an_answer_each_again(
    chat: Conversation, has_saver: bool
) -> None:
    """A repeated question of a graph with two branches asks neither."""
    asked, saver = list[str](), InMemorySaver() if has_saver else None
    for _ in range(2):
        graph: StateGraph[Any] = StateGraph(MessagesState)
        for name, agent in _two(chat, asked):
            graph.add_node(name, agent).add_edge(START, name).add_edge(name, END)
        state = await _ask(graph.compile(checkpointer=saver), chat)
        said = sorted(message.text for message in state["messages"][1:])
        assert said == ["By first.", "By second."]
    assert sorted(asked) == ["first", "second"]


async def test_two_workers_ask_each_agent_once(chat: Conversation) -> None:
    """A graph that waits for another one with the same request gives what that one's agents said, each in its place."""
    asked = list[str]()
    runs = [_ask(_graph(_two(chat, asked)), chat) for _ in range(2)]
    for state in await asyncio.gather(*runs):
        assert [each.text for each in state["messages"]] == [TEXT, "By first.", "By second."]
    assert asked == ["first", "second"]


@pytest.mark.parametrize("has_saver", [False, True])
async def test_the_reply_of_a_plain_node_is_no_agent_s(chat: Conversation, has_saver: bool) -> None:
    """A node without an agent makes its reply again; the agent after it gives its own, not that of the node."""
    asked, saver = list[str](), InMemorySaver() if has_saver else None

    async def plan(_: MessagesState) -> Any:
        return {"messages": [AIMessage("A plan.")]}

    for _ in range(2):
        agent = _agent(chat, "agent", asked, options={"trust": "all"})
        state = await _ask(_graph([("plan", plan), agent], saver), chat)
        assert "By agent." in [message.text for message in state["messages"]]
    assert asked == ["agent"]
    assert await _turns(chat) == [[TEXT, "A plan.", "By agent."]]


class _Sleep(BaseModel):
    """How an animal sleeps."""

    hours: int


async def test_a_structured_response_is_made_again(chat: Conversation) -> None:
    """The first agent of a repeated run takes its structured response from the log."""
    found, asked = list[Any](), list[str]()

    for _ in range(2):
        reply = AIMessage("", tool_calls=[{"name": "_Sleep", "args": {"hours": 9}, "id": "c1"}])
        _, agent = _agent(chat, "first", asked, reply, response_format=_Sleep)

        async def node(state: MessagesState, agent: Any = agent) -> Any:
            result = await agent.ainvoke({"messages": state["messages"]})
            found.append(result["structured_response"])
            return {"messages": result["messages"]}

        await _ask(_graph([("first", node)]), chat)
    assert found == [_Sleep(hours=9)] * 2
    assert asked == ["first"]


async def _over(chat: Conversation) -> str:
    """Return why the turn is over, "" if it is not."""
    turn = await chat.get_turn("q1")
    assert turn
    return turn.over


def _structured(chat: Conversation, name: str, asked: list[str]) -> Node:
    """An agent that ends with a structured response, which is the result of a call."""
    reply = AIMessage("", tool_calls=[{"name": "_Sleep", "args": {"hours": 9}, "id": f"c-{name}"}])
    return _agent(chat, name, asked, reply, response_format=_Sleep)


def _direct(chat: Conversation, name: str, asked: list[str]) -> Node:
    """An agent that ends with the result of a tool."""

    @tool(return_direct=True)
    def sleeps() -> str:
        """Say how long seals sleep."""
        return "For nine hours."

    reply = AIMessage("", tool_calls=[{"name": "sleeps", "args": {}, "id": f"c-{name}"}])
    return _agent(chat, name, asked, reply, tools=[sleeps])


@pytest.mark.parametrize("is_sync", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("has_saver", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("first", [_structured, _direct])
async def test_an_agent_answers_after_one_that_ended_with_a_result(
    chat: Conversation, first: Callable[..., Node], has_saver: bool, is_sync: bool
) -> None:
    """The turn goes on until the run of the graph ends: an agent of it ended without an answer, and not the turn."""
    saver = InMemorySaver() if has_saver else None
    for expected in (["first", "second"], []):
        asked = list[str]()
        nodes = [first(chat, "first", asked), _agent(chat, "second", asked)]
        state = await _ask(_graph(nodes, saver), chat, is_sync=is_sync)
        assert asked == expected
        assert state["messages"][-1].text == "By second."
    assert await _over(chat) == "answered"


@pytest.mark.parametrize("is_sync", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_held", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("agent", [_structured, _direct])
async def test_a_graph_whose_last_agent_ends_with_a_result_has_finished(
    chat: Conversation, agent: Callable[..., Node], is_sync: bool, is_held: bool
) -> None:
    """The turn is finished as the graph's run ends, also one that its caller holds; a repeated question asks nobody."""
    for expected in (["first", "second"], []):
        asked = list[str]()
        nodes = [agent(chat, name, asked) for name in ("first", "second")]
        if is_held and not is_sync:
            async with await chat.turn("q1", human=TEXT):
                await _ask(_graph(nodes), chat)
        else:
            await _ask(_graph(nodes), chat, is_sync=is_sync)
        assert asked == expected
        assert await _over(chat) == "finished"


async def test_an_agent_goes_on_after_a_result_that_did_not_end_it(chat: Conversation) -> None:
    """Neither an unfit structured response nor a `return_direct` tool beside another one ends the agent's part."""

    @tool(return_direct=True)
    def sleeps() -> str:
        """Say how long seals sleep."""
        return "For nine hours."

    @tool
    def swims() -> str:
        """Say how far seals swim."""
        return "Far."

    for expected in (["first", "first", "second", "second"], []):
        asked = list[str]()
        unfit, fit = (
            AIMessage("", tool_calls=[{"name": "_Sleep", "args": args, "id": id_}])
            for args, id_ in (({"hours": "many"}, "c1"), ({"hours": 9}, "c2"))
        )
        both = AIMessage(
            "",
            tool_calls=[
                {"name": name, "args": {}, "id": f"c-{name}"} for name in ("sleeps", "swims")
            ],
        )
        first = _agent(chat, "first", asked, unfit, fit, response_format=_Sleep)
        said = AIMessage("By second.")
        second = _agent(chat, "second", asked, both, said, tools=[sleeps, swims])
        state = await _ask(_graph([first, second]), chat)
        assert asked == expected
        assert state["messages"][-1].text == "By second."


def _two_direct(chat: Conversation, name: str, asked: list[str]) -> Node:
    """An agent that ends with the results of two tools, one of which adds a picture."""

    @tool(return_direct=True)
    def sleeps() -> str:
        """Say how long seals sleep."""
        return "For nine hours."

    @tool(return_direct=True)
    def shows(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Show a seal."""
        result = ToolMessage("Here.", tool_call_id=call_id)
        return Command(update={"messages": [result, HumanMessage("A picture.")]})

    names = ("sleeps", "shows", "unknown")
    called = [{"name": each, "args": {}, "id": f"{each}-{name}"} for each in names]
    return _agent(chat, name, asked, AIMessage("", tool_calls=called), tools=[sleeps, shows])


def _structured_beside(chat: Conversation, name: str, asked: list[str]) -> Node:
    """An agent that ends with a structured response in one step with another tool."""

    @tool
    def swims() -> str:
        """Say how far seals swim."""
        asked.append(name)
        return "Far."

    called = [
        {"name": "_Sleep", "args": {"hours": 9}, "id": f"s-{name}"},
        {"name": "swims", "args": {}, "id": f"c-{name}"},
    ]
    reply = AIMessage("", tool_calls=called)
    return _agent(chat, name, asked, reply, tools=[swims], response_format=_Sleep)


@pytest.mark.parametrize("has_saver", [False, True])
@pytest.mark.parametrize("agent", [_two_direct, _structured_beside])
async def test_a_part_ends_after_the_step_that_ended_its_agent(
    chat: Conversation, agent: Callable[..., Node], has_saver: bool
) -> None:
    """A repeated question gives each agent all results of its last step, with what their tools added."""
    saver, said = InMemorySaver() if has_saver else None, list[list[str]]()
    for expected in ({"first", "second", "third"}, set[str]()):
        asked = list[str]()
        nodes = [agent(chat, name, asked) for name in ("first", "second")]
        state = await _ask(_graph([*nodes, _agent(chat, "third", asked)], saver), chat)
        assert set(asked) == expected
        said.append(sorted(each.text for each in state["messages"]))
    assert said[0] == said[1]
    [turn] = [turn async for turn in chat.turns()]
    assert turn.over == "answered"
    assert sorted(each.text for each in turn.messages) == said[0]


async def test_a_structured_answer_is_made_again(chat: Conversation) -> None:
    """The first agent of a repeated run takes a response from the JSON of its stored answer."""
    found, asked = list[Any](), list[str]()
    for _ in range(2):
        how: dict[str, Any] = {"response_format": ProviderStrategy(_Sleep)}
        _, agent = _agent(chat, "first", asked, AIMessage('{"hours": 9}'), **how)

        async def node(state: MessagesState, agent: Any = agent) -> Any:
            result = await agent.ainvoke({"messages": state["messages"]})
            found.append(result["structured_response"])
            return {"messages": result["messages"]}

        await _ask(_graph([("first", node), _agent(chat, "second", asked)]), chat)
    assert found == [_Sleep(hours=9)] * 2
    assert asked == ["first", "second"]


async def test_an_agent_alone_has_no_marks(chat: Conversation) -> None:
    """Its turn is finished as it ends; only a result in a graph says that an agent ended with it."""
    _, agent = _structured(chat, "first", [])
    await _ask(agent, chat)
    assert await _over(chat) == "finished"
    assert all("convstore" not in message.response_metadata for message in await log_of(chat))


async def test_an_interrupted_graph_has_not_finished(chat: Conversation) -> None:
    """A run that was interrupted after a structured response goes on: its next agent answers."""

    def wait(_: MessagesState) -> Any:
        interrupt("Go on?")
        return {}

    asked = list[str]()
    nodes = [_structured(chat, "first", asked), ("wait", wait), _agent(chat, "second", asked)]
    graph = _graph(nodes, InMemorySaver())
    await _ask(graph, chat)
    assert await _over(chat) == ""
    await graph.ainvoke(Command(resume=True), {"configurable": chat.scope})
    assert asked == ["first", "second"]
    assert await _over(chat) == "answered"


def _joined(nodes: Sequence[Node], saver: Any) -> Any:
    """A graph whose last node waits for all others, at a breakpoint before it."""
    graph: StateGraph[Any] = StateGraph(MessagesState)
    *before, last = nodes
    graph.add_node(*last)
    for name, agent in before:
        graph.add_node(name, agent).add_edge(START, name)
    graph.add_edge([name for name, _ in before], last[0])
    return graph.compile(checkpointer=saver, interrupt_before=[last[0]])


def _sent(nodes: Sequence[Node], saver: Any) -> Any:
    """A graph whose first node sends its state to the second one, at a breakpoint before that."""
    graph: StateGraph[Any] = StateGraph(MessagesState)
    first, second = nodes
    graph.add_node(*first).add_node(*second).add_edge(START, first[0])
    graph.add_conditional_edges(first[0], lambda state: [Send(second[0], state)], [second[0]])
    return graph.compile(checkpointer=saver, interrupt_before=[second[0]])


BREAKPOINTS: dict[str, Callable[..., Any]] = {
    "before": lambda nodes, saver: _graph(nodes, saver, interrupt_before=["second"]),
    "after": lambda nodes, saver: _graph(nodes, saver, interrupt_after=["first"]),
    "joined": _joined,
    "sent": _sent,
}


@pytest.mark.parametrize("is_sync", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("at", list(BREAKPOINTS))
async def test_a_graph_at_a_breakpoint_has_not_finished(
    chat: Conversation, at: str, is_sync: bool
) -> None:
    """A run that stopped at a breakpoint after a structured response goes on: its next agent answers."""
    asked = list[str]()
    first = [_structured(chat, "first", asked)]
    if at == "joined":
        first.append(("beside", lambda _: {}))
    graph = BREAKPOINTS[at]([*first, _agent(chat, "second", asked)], InMemorySaver())
    await _ask(graph, chat, is_sync=is_sync)
    assert await _over(chat) == ""
    await _ask_again(graph, chat, is_sync=is_sync)
    assert asked == ["first", "second"]
    assert await _over(chat) == "answered"


async def _ask_again(graph: Any, chat: Conversation, *, is_sync: bool) -> None:
    """Resume a graph at a breakpoint."""
    request = None, {"configurable": chat.scope}
    await (asyncio.to_thread(graph.invoke, *request) if is_sync else graph.ainvoke(*request))


@pytest.mark.parametrize("at", ["before", "sent"])
async def test_a_graph_that_ended_after_a_breakpoint_has_finished(
    chat: Conversation, at: str
) -> None:
    """The last agent ended with a result, too, and no node is left to run."""
    nodes = [_structured(chat, name, []) for name in ("first", "second")]
    graph = BREAKPOINTS[at](nodes, InMemorySaver())
    await _ask(graph, chat)
    await _ask_again(graph, chat, is_sync=False)
    assert await _over(chat) == "finished"


async def test_a_graph_that_failed_has_not_finished(chat: Conversation) -> None:
    """The repeated question asks the agent after the node that failed, and no agent before it."""
    asked, fails = list[str](), [True]

    def fail(_: MessagesState) -> Any:
        if fails.pop():
            raise ValueError("out of order")
        return {}

    def graph() -> Any:
        nodes = [_structured(chat, "first", asked), ("fail", fail), _agent(chat, "second", asked)]
        return _graph(nodes)

    with pytest.raises(ValueError, match="out of order"):
        await _ask(graph(), chat)
    fails.append(False)
    await _ask(graph(), chat)
    assert asked == ["first", "second"]
    assert await _over(chat) == "answered"


class _Dying(AgentMiddleware[Any, Any, Any]):
    """Fails after the first result of a tool is in the log, as a killed worker does."""

    def __init__(self, dies: bool) -> None:
        super().__init__()
        self.dies = dies

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        output = handler(request)
        self._die()
        return output

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        output = await handler(request)
        self._die()
        return output

    def _die(self) -> None:
        if self.dies:
            self.dies = False
            raise ValueError("killed")


@pytest.mark.costly
@pytest.mark.parametrize("is_sync", [False, True])
@pytest.mark.parametrize("has_saver", [True, False])
@pytest.mark.parametrize("fails", ["handoff", "second"])
async def test_a_handoff_is_repeated(
    chat: Conversation, fails: str, has_saver: bool, is_sync: bool
) -> None:
    """A killed run hands over again, with the stored result; the first agent's model is not asked what follows."""
    saver, asked, handed = InMemorySaver() if has_saver else None, list[str](), list[str]()

    @tool
    def transfer(
        call_id: Annotated[str, InjectedToolCallId], state: Annotated[Any, InjectedState]
    ) -> Command[Any]:
        """Hand over to the second agent."""
        handed.append(call_id)
        done = ToolMessage(f"Over to you, {len(handed)}.", tool_call_id=call_id)
        sent = [*state["messages"], done]
        return Command(goto="second", graph=Command.PARENT, update={"messages": sent})

    dying = _Dying(fails == "handoff")
    second: list[Any] = [ValueError("killed")] if fails == "second" else []
    second.append(AIMessage("By second."))
    first = [calls("transfer")]
    for at in range(4):
        graph: StateGraph[Any] = StateGraph(MessagesState)
        _, agent = _agent(chat, "first", asked, *first, tools=[transfer], before=[dying])
        graph.add_node("first", agent, destinations=("second",)).add_edge(START, "first")
        graph.add_node(*_agent(chat, "second", asked, *second[:1]))
        asking = _ask(graph.compile(checkpointer=saver), chat, is_sync=is_sync)
        if at == 0:
            with pytest.raises(ValueError, match="killed"):
                await asking
            second = second[-1:]
            continue
        state = await asking
        assert [each.text for each in state["messages"]][2:] == ["Over to you, 1.", "By second."]
        assert len(handed) == at + 1
    assert asked == ["first", *["second"] * (1 + (fails == "second"))]
    assert await _turns(chat) == [[TEXT, "", "Over to you, 1.", "By second."]]


async def test_a_resumed_graph_goes_on_with_its_next_agent(chat: Conversation) -> None:
    """What its state has is done: the second agent does not give the first one's words as its own."""
    saver, asked, errors = InMemorySaver(), list[str](), [ValueError("503")]

    def fail(_: MessagesState) -> Any:
        if errors:
            raise errors.pop()
        return {}

    first, second = _two(chat, asked)
    graph = _graph([first, ("fail", fail), second], saver)
    with pytest.raises(ValueError, match="503"):
        await _ask(graph, chat)
    state = await graph.ainvoke(None, {"configurable": chat.scope})
    assert [each.text for each in state["messages"]] == [TEXT, "By first.", "By second."]
    assert asked == ["first", "second"]


async def test_a_sub_agent_that_reads_the_question_has_one_of_its_own(chat: Conversation) -> None:
    """A tool that gives the caller's messages to an agent, with a task, asks about the task."""
    _, inner = _agent(chat, "inner", [], AIMessage("In May."))

    @tool
    async def ask(state: Annotated[Any, InjectedState]) -> str:
        """Ask the other agent."""
        given = [*state["messages"][:1], HumanMessage("When?", id="task")]
        return str((await inner.ainvoke({"messages": given}))["messages"][-1].text)

    outer = _agent(chat, "outer", [], calls("ask"), AIMessage("In May."), tools=[ask])
    await _ask(_graph([outer]), chat)
    [info] = await chat.children()
    child = chat.store.conversation(**info.scope)
    assert [turn.turn_id async for turn in child.turns()][-1:] == ["task"]


async def test_what_a_person_says_again_is_a_question(chat: Conversation) -> None:
    """A run that died before its agent began leaves the words of a person in the state, and the next one logs them."""
    saver, errors = InMemorySaver(), list[Exception]()

    def fail(_: MessagesState) -> Any:
        if errors:
            raise errors.pop()
        return {}

    for words in (TEXT, "By first.", "Why?"):
        graph = _graph([("fail", fail), _agent(chat, "first", [])], saver)
        asking = graph.ainvoke({"messages": [("user", words)]}, {"configurable": chat.scope})
        if words == "By first.":
            errors.append(ValueError("503"))
            with pytest.raises(ValueError, match="503"):
                await asking
        else:
            await asking
    said = [each.text for each in await log_of(chat) if each.type == "human"]
    assert said == [TEXT, "By first.", "Why?"]


async def test_outside_of_a_graph_nothing_is_done() -> None:
    """What is noted without a run of a graph is noted nowhere."""
    done_in_graph().add("a1")
    assert done_in_graph() == set()


def test_the_end_of_an_agent_leaves_other_marks_of_a_result() -> None:
    """A result that a tool added belongs to that of its call, also if the agent ends with this step; both are kept."""
    added = marked_as_added(ToolMessage("7", tool_call_id="other", id="r2"), "r1")
    ended = ending(added)
    assert added_to(ended) == "r1"
    assert ends_agent(ended)
    [logged] = without_marks([ended])
    assert added_to(logged) is None
    assert ends_agent(logged)
