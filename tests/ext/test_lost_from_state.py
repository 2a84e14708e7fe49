"""A state that lost messages of its turn: the model is shown the question and what it has not read, from the log."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.tools import InjectedState
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from scripted_agents import ScriptedModel, calls, log_of

from convstore import ConversationStore
from convstore.exceptions import InvalidInputError
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import ConversationState, append_node, load_node, view_of

FORGOTTEN = RemoveMessage(REMOVE_ALL_MESSAGES)
_CallId = Annotated[str, InjectedToolCallId]


@tool
def forget(tool_call_id: _CallId) -> Command[Any]:
    """Forget everything."""
    done = ToolMessage("forgotten", tool_call_id=tool_call_id, name="forget")
    return Command(update={"messages": [FORGOTTEN, done]})


@tool
def look(query: str = "") -> str:
    """Look something up."""
    return f"seen {query}"


@tool
def hand_over(
    state: Annotated[dict[str, Any], InjectedState], tool_call_id: _CallId
) -> Command[Any]:
    """Hand over to the other agent, with the messages so far."""
    done = ToolMessage("over to you", tool_call_id=tool_call_id, name="hand_over")
    return Command(
        goto="second", graph=Command.PARENT, update={"messages": [*state["messages"], done]}
    )


@tool
def hand_over_alone(tool_call_id: _CallId) -> Command[Any]:
    """Hand over to the other agent, without the messages so far."""
    done = ToolMessage("over to you", tool_call_id=tool_call_id, name="hand_over_alone")
    return Command(goto="second", graph=Command.PARENT, update={"messages": [FORGOTTEN, done]})


@pytest.fixture
async def store(database: Any) -> Any:
    """A store that is set up."""
    made = ConversationStore(database)
    await made.setup()
    yield made
    await made.close()


@pytest.fixture
def config() -> Any:
    """The configuration of a conversation that no other test has."""
    return {"configurable": {"user_id": "ada", "thread_id": uuid.uuid4().hex}}


def _texts(messages: list[BaseMessage]) -> list[str]:
    return [message.text or message.type for message in messages if message.type != "system"]


async def test_a_tool_that_forgets_hides_neither_question_nor_results(
    store: ConversationStore, config: Any
) -> None:
    """Only what the model has read stays removed, in the same run, and in one that goes on after a crash."""
    said = [
        AIMessage("Hi."),
        calls("look", query="a"),
        calls("look", "forget", query="b"),
        RuntimeError("crash"),
    ]
    model = ScriptedModel(replies=[*said, AIMessage("Done.")])
    agent = create_agent(
        model,
        [look, forget],
        middleware=[ConversationMiddleware(store)],
        checkpointer=InMemorySaver(),
    )
    await agent.ainvoke({"messages": [HumanMessage("Hello.")]}, config)
    with pytest.raises(RuntimeError, match="crash"):
        await agent.ainvoke({"messages": [HumanMessage("Forget it.")]}, config)
    await agent.ainvoke(None, config)
    wanted = ["Hello.", "Hi.", "Forget it.", "ai", "seen b", "forgotten"]
    assert [sorted(_texts(shown)) for shown in model.shown[-2:]] == [sorted(wanted)] * 2
    # the log has everything
    assert len(await log_of(store.conversation(**config["configurable"]))) == 9


@pytest.mark.slow
async def test_a_step_that_a_hook_removes_is_shown(store: ConversationStore, config: Any) -> None:
    """A hook removes call and result before the model has read them: they are in the log, and are shown."""

    class Hook(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> Any:  # noqa: ARG002 - the base class has it
            return {"messages": [RemoveMessage(message.id) for message in state["messages"][1:]]}

    model = ScriptedModel(replies=[calls("look", query="a"), AIMessage("Done.")])
    agent = create_agent(model, [look], middleware=[ConversationMiddleware(store), Hook()])
    await agent.ainvoke({"messages": [HumanMessage("Look.")]}, config)
    assert _texts(model.shown[-1]) == ["Look.", "ai", "seen a"]


async def test_a_question_that_a_guard_removes_is_not_asked(
    store: ConversationStore, config: Any
) -> None:
    """The model is not asked with the turn before alone; the guard may end the run, or replace the question."""
    instead: list[Any] = []

    class Guard(AgentMiddleware[Any, Any, Any]):
        @hook_config(can_jump_to=["end"])
        def before_agent(self, state: Any, runtime: Any) -> Any:  # noqa: ARG002 - the base class has it
            ends = bool(instead) and isinstance(instead[0], AIMessage)
            return {"messages": [FORGOTTEN, *instead], "jump_to": "end" if ends else None}

    model = ScriptedModel(replies=[AIMessage("Done.")])
    agent = create_agent(model, middleware=[ConversationMiddleware(store), Guard()])
    asked = {"messages": [HumanMessage("A secret.", id="q1")]}
    with pytest.raises(InvalidInputError, match="removed from the state"):
        await agent.ainvoke(asked, config)
    instead.append(HumanMessage("Something.", id="q2"))
    await agent.ainvoke(asked, config)
    chat = store.conversation(**config["configurable"])
    turn = await chat.get_turn("q2")
    assert turn is not None
    assert _texts(turn.messages) == ["Something.", "Done."]
    instead[:] = [AIMessage("No.", id="a2")]
    await agent.ainvoke(asked, config)
    assert _texts(await log_of(chat)) == ["Something.", "Done.", "No."]


async def test_an_agent_that_takes_over_reads_results_of_parallel_calls(
    store: ConversationStore, config: Any
) -> None:
    """The state of the graph around them lacks results, call and question; the log has them."""
    for over in ("hand_over", "hand_over_alone"):
        first = ScriptedModel(replies=[calls("look", over, query="a")])
        second = ScriptedModel(replies=[AIMessage("Done.")])
        middleware = [ConversationMiddleware(store, trust="all")]
        graph = StateGraph(MessagesState)
        agent: Any = create_agent(first, [look, hand_over, hand_over_alone], middleware=middleware)
        graph.add_node("first", agent, destinations=("second",))
        graph.add_node("second", create_agent(second, [look], middleware=middleware))
        graph.add_edge(START, "first")
        await graph.compile().ainvoke({"messages": [HumanMessage("Go.", id=over)]}, config)
        assert sorted(_texts(second.shown[-1])[-4:]) == sorted(
            ["Go.", "ai", "seen a", "over to you"]
        )
        turn = await store.conversation(**config["configurable"]).get_turn(over)
        assert turn is not None
        assert (len(turn.messages), turn.over) == (5, "answered")


def _graph(store: ConversationStore, model: ScriptedModel, *, guard: Any = None) -> Any:
    """A graph whose steps are appended each, with a guard before the model."""

    async def ask(state: ConversationState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(view_of(state))]}

    def after_append(state: MessagesState) -> str:
        last = state["messages"][-1]
        if isinstance(last, AIMessage):
            return "tools" if last.tool_calls else END
        return "model"

    graph = StateGraph(MessagesState)
    graph.add_node("load", load_node(store, append_first=guard is None))
    graph.add_node("guard", guard or (lambda _: {"messages": []}))
    graph.add_node("model", ask)
    graph.add_node("append", append_node(store))
    graph.add_node("tools", ToolNode([look, forget]))
    for path in (START, "load", "guard", "model", "append"), ("tools", "append"):
        for begin, end in pairwise(path):
            graph.add_edge(begin, end)
    graph.add_conditional_edges("append", after_append, ["model", "tools", END])
    return graph.compile(checkpointer=InMemorySaver())


async def test_a_tool_of_a_graph_hides_neither_question_nor_results(
    store: ConversationStore, config: Any
) -> None:
    """The view of a state that lost its turn has the question and what no model has read, and later runs go on."""
    model = ScriptedModel(
        replies=[calls("look", query="a"), calls("forget"), AIMessage("Done."), AIMessage("Sure.")]
    )
    graph, chat = _graph(store, model), store.conversation(**config["configurable"])
    await graph.ainvoke({"messages": [HumanMessage("Forget it.", id="q1")]}, config)
    assert _texts(model.shown[-1]) == ["Forget it.", "ai", "forgotten"]
    turn = await chat.get_turn("q1")
    assert turn is not None
    assert _texts(turn.messages) == ["Forget it.", "ai", "seen a", "ai", "forgotten", "Done."]
    await graph.ainvoke({"messages": [HumanMessage("And?")]}, config)
    assert _texts(model.shown[-1])[-3:] == ["forgotten", "Done.", "And?"]
    assert len(await log_of(chat)) == 8


@pytest.mark.slow
async def test_a_graph_whose_guard_removes_the_question_is_refused(
    store: ConversationStore, config: Any
) -> None:
    """`view_of` is not the view of the turn before, if the question is gone before it was appended."""
    model = ScriptedModel(replies=[AIMessage("Done.")])
    instead: list[Any] = []
    graph = _graph(store, model, guard=lambda _: {"messages": [FORGOTTEN, *instead]})
    with pytest.raises(InvalidInputError, match="removed from the state"):
        await graph.ainvoke({"messages": [HumanMessage("A secret.")]}, config)
    instead.append(HumanMessage("Something."))
    await graph.ainvoke({"messages": [HumanMessage("A secret.")]}, config)
    refused = {"messages": [AIMessage("No.", id="a2")], "convstore_turn": "removed"}
    await append_node(store).ainvoke(refused, config)
    assert _texts(await log_of(store.conversation(**config["configurable"]))) == [
        "Something.",
        "Done.",
        "No.",
    ]


@pytest.mark.slow
async def test_a_thread_that_lost_an_answered_question_asks_no_model(
    store: ConversationStore, config: Any
) -> None:
    """A run without a question finds the answer, as it does in a state that has the question; it stays the last."""
    model = ScriptedModel(replies=[calls("forget"), AIMessage("Done.")])
    agent = create_agent(
        model, [forget], middleware=[ConversationMiddleware(store)], checkpointer=InMemorySaver()
    )
    question = HumanMessage("Forget it.", id="q1")
    await agent.ainvoke({"messages": [question]}, config)
    result = await agent.ainvoke({"messages": []}, config)
    assert (result["messages"][-1].text, len(model.shown)) == ("Done.", 2)
    repeated = await agent.ainvoke({"messages": [question]}, config)
    assert repeated["messages"] == await log_of(store.conversation(**config["configurable"]))
    assert len(model.shown) == 2
