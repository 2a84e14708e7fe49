"""LangGraph's time travel: a run that begins at an older checkpoint gets a log that ends there, on a real server.

Each program runs with the middleware and with the nodes: turns with tools, a replay, `update_state`, a new question.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from deepagents import create_deep_agent
from fixture_types import Client
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from pymongo import MongoClient
from scripted_agents import ScriptedModel, calls, elsewhere, kinds, log_of

from convstore import ConversationStore
from convstore.exceptions import InvalidInputError, OlderCheckpointError
from convstore.ext.langchain import ConversationMiddleware, steps
from convstore.ext.langgraph import ConversationState, append_node, load_node
from convstore.messages.tool_calls import calls_of

Make = Callable[..., Any]


@pytest.fixture
async def database(pymongo_client: Client, database_name: str) -> Any:
    """A database that is set up."""
    await ConversationStore(pymongo_client[database_name]).setup()
    return pymongo_client[database_name]


@pytest.fixture
async def store(database: Any) -> Any:
    """A store on it."""
    store = ConversationStore(database)
    yield store
    await store.close()


@pytest.fixture
def config() -> dict[str, Any]:
    """The configuration of the runs of a new thread."""
    return {"configurable": {"user_id": "ada", "thread_id": uuid.uuid4().hex}}


def find(number: list[int]) -> Any:
    """A tool whose results are numbered, so that one that ran again is seen."""

    @tool
    def search(query: str = "") -> str:
        """Search."""
        number.append(len(number) + 1)
        return f"found {query}{number[-1]}"

    return search


def agent_of(
    store: ConversationStore, model: ScriptedModel, saver: Any, number: list[int], **options: Any
) -> Any:
    """An agent of `create_agent`."""
    middleware = [ConversationMiddleware(store, prompt="", **options)]
    return create_agent(model, [find(number)], middleware=middleware, checkpointer=saver)


def graph_of(
    store: ConversationStore, model: ScriptedModel, saver: Any, number: list[int], **options: Any
) -> Any:
    """A graph that appends a turn at its end."""
    return _graph(store, model, saver, number, steps=False, **options)


def stepwise_graph_of(
    store: ConversationStore, model: Any, saver: Any, number: list[int], **options: Any
) -> Any:
    """A graph that appends each step."""
    return _graph(store, model, saver, number, steps=True, **options)


def _graph(
    store: ConversationStore,
    model: Any,
    saver: Any,
    number: list[int],
    *,
    steps: bool,
    **options: Any,
) -> Any:
    load = load_node(store, append_first=steps, **options)

    async def call_model(state: ConversationState) -> dict[str, Any]:
        return {"messages": [model.reply(await load.aview_of(state))]}

    def is_done(state: MessagesState) -> str:
        return "tools" if calls_of(state["messages"][-1]) else "append"

    graph = StateGraph(MessagesState)
    graph.add_node("load", load)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode([find(number)]))
    graph.add_node("append", append_node(store, **options))
    graph.add_edge(START, "load")
    graph.add_edge("load", "model")
    if steps:
        graph.add_node("log", append_node(store, **options))
        graph.add_edge("model", "log")
        graph.add_conditional_edges("log", is_done, {"tools": "tools", "append": "append"})
    else:
        graph.add_conditional_edges("model", is_done, {"tools": "tools", "append": "append"})
    graph.add_edge("tools", "model")
    graph.add_edge("append", END)
    return graph.compile(checkpointer=saver)


@pytest.fixture(
    params=[
        pytest.param(agent_of, id="agent"),
        pytest.param(graph_of, id="graph"),
        pytest.param(stepwise_graph_of, id="stepwise graph", marks=pytest.mark.slow),
    ]
)
def make(request: pytest.FixtureRequest) -> Make:
    """Return the function that builds the program: an agent or a graph."""
    return request.param


async def view(store: ConversationStore, config: dict[str, Any]) -> list[str]:
    """Texts of the view that a next question gets, of any worker."""
    scope = {key: config["configurable"][key] for key in ("user_id", "thread_id")}
    return [message.text for message in (await store.conversation(**scope).load_history()).messages]


def chat_of(store: ConversationStore, config: dict[str, Any]) -> Any:
    """The conversation of a thread."""
    return store.conversation(user_id="ada", thread_id=config["configurable"]["thread_id"])


async def ask(app: Any, config: dict[str, Any], text: str, **options: Any) -> list[str]:
    """A question, and the state's texts after it."""
    return texts(await app.ainvoke({"messages": [HumanMessage(text, **options)]}, config))


def texts(result: dict[str, Any]) -> list[str]:
    """Texts of a result."""
    return [message.text for message in result["messages"]]


async def checkpoint(
    app: Any, config: dict[str, Any], *wanted: str, then: tuple[str, ...] | None = None
) -> Any:
    """The newest checkpoint whose state ends with some texts (and whose next nodes are given)."""
    async for snapshot in app.aget_state_history(config):
        found = [message.text for message in snapshot.values.get("messages", ())]
        if found[-len(wanted) or len(found) :] == list(wanted) and (
            then is None or snapshot.next == then
        ):
            return at(config, snapshot.config)
    raise AssertionError(wanted)


def at(config: dict[str, Any], snapshot: Any) -> dict[str, Any]:
    """The configuration of a run at a checkpoint: LangGraph's names the thread, ours the other keys of the scope."""
    return {"configurable": {**config["configurable"], **snapshot["configurable"]}}


async def two_turns(
    make: Make, store: ConversationStore, config: dict[str, Any], *more: Any, **options: Any
) -> Any:
    """A thread with two turns, the second with a tool."""
    replies = [AIMessage("a1"), calls("search", query="x"), AIMessage("a2"), *more]
    model, number = ScriptedModel(replies=replies), list[int]()
    app = make(store, model, InMemorySaver(), number, **options)
    await ask(app, config, "q1")
    await ask(app, config, "q2")
    return app, model, number


@pytest.mark.costly
async def test_a_question_at_an_older_checkpoint(
    make: Make, store: ConversationStore, database: Any, config: Any
) -> None:
    """The model and the next views see the branch; the other one stays in the log, and an undo brings it back."""
    app, model, _ = await two_turns(make, store, config, AIMessage("a3"), AIMessage("a4"))
    whole = await view(store, config)
    await ask(app, await checkpoint(app, config, "q1", "a1", then=()), "q3")
    assert [message.text for message in model.shown[-1]] == ["q1", "a1", "q3"]
    assert await view(elsewhere(store, database), config) == ["q1", "a1", "q3", "a3"]
    await ask(app, config, "q4")
    assert [message.text for message in model.shown[-1]] == ["q1", "a1", "q3", "a3", "q4"]
    logged = [message.text for message in await log_of(chat_of(store, config))]
    assert logged == ["q1", "a1", "q2", "", "found x1", "a2", "q3", "a3", "q4", "a4"]
    assert await chat_of(store, config).undo_rewind() > 0
    assert await view(store, config) == whole


@pytest.mark.costly
async def test_the_first_question_is_edited(
    make: Make, store: ConversationStore, config: Any
) -> None:
    """Editing the first question replaces all later turns. Messages that were logged before that question stay."""
    await chat_of(store, config).append([HumanMessage("earlier"), AIMessage("answer")])
    app, model, _ = await two_turns(make, store, config, AIMessage("a3"))
    *_, first = [snapshot async for snapshot in app.aget_state_history(config)]
    await ask(app, at(config, first.config), "q1 edited")
    assert [message.text for message in model.shown[-1]] == ["earlier", "answer", "q1 edited"]
    assert await view(store, config) == ["earlier", "answer", "q1 edited", "a3"]


@pytest.mark.costly
@pytest.mark.parametrize("times", [1, 2])
async def test_a_replay_before_the_model(
    make: Make, store: ConversationStore, config: Any, times: int
) -> None:
    """A replay from before the model runs the tool again and replaces the answer, any number of times."""
    more = [
        reply
        for at in range(times)
        for reply in (calls("search", query=f"y{at} "), AIMessage(f"b{at}"))
    ]
    app, _, number = await two_turns(make, store, config, *more)
    for at in range(times):
        before = await checkpoint(app, config, "q2")
        result = texts(await app.ainvoke(None, before))
        assert result == ["q2", "", f"found y{at} {at + 2}", f"b{at}"]
    shown = await view(store, config)
    assert shown[:3] + shown[4:] == ["q1", "a1", "q2", shown[4], f"b{times - 1}"]
    assert len(number) == times + 1


@pytest.mark.slow
async def test_a_replay_before_the_tool(make: Make, store: ConversationStore, config: Any) -> None:
    """The call stays, its result and the answer are new; two calls at once, too."""
    model = ScriptedModel(
        replies=[calls("search", "search"), AIMessage("a1"), AIMessage("b1"), AIMessage("b2")]
    )
    number: list[int] = []
    app = make(store, model, InMemorySaver(), number)
    await ask(app, config, "q1")
    for answer, results in (("b1", {"found 3", "found 4"}), ("b2", {"found 5", "found 6"})):
        result = texts(await app.ainvoke(None, await checkpoint(app, config, "q1", "")))
        assert (set(result[2:4]), result[4:]) == (results, [answer])
        turn = await chat_of(store, config).list_messages(full=True)
        assert [message.message.type for message in turn] == ["human", "ai", "tool", "tool", "ai"]
        assert {message.message.text for message in turn[2:4]} == results
        assert turn[-1].message.text == answer
    assert len(model.shown[-1]) == 4


@pytest.mark.slow
async def test_parallel_tools_go_back_once(
    store: ConversationStore, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parallel tools of a replay both continue, although only the first one goes back in the log."""
    barrier, lock, reads, read, go_back = (
        asyncio.Barrier(2),
        asyncio.Lock(),
        list[str](),
        steps.read_turn,
        steps.go_back,
    )

    async def read_together(chat: Any, turn_id: str) -> Any:
        found = await read(chat, turn_id)
        reads.append(turn_id)
        if len(reads) <= 2:
            await barrier.wait()
        return found

    async def one_at_a_time(*args: Any) -> Any:
        async with lock:
            return await go_back(*args)

    model = ScriptedModel(replies=[calls("search", "search"), AIMessage("a1"), AIMessage("b1")])
    app = agent_of(store, model, InMemorySaver(), [])
    await ask(app, config, "q1")
    monkeypatch.setattr(steps, "read_turn", read_together)
    monkeypatch.setattr(steps, "go_back", one_at_a_time)
    result = texts(await app.ainvoke(None, await checkpoint(app, config, "q1", "")))
    assert (set(result[2:4]), result[4:]) == ({"found 3", "found 4"}, ["b1"])


@pytest.mark.costly
@pytest.mark.parametrize("addressed", [True, False])
async def test_update_state_at_an_older_checkpoint(
    make: Make, store: ConversationStore, config: Any, addressed: bool
) -> None:
    """A question that is added there, and one that is edited under its id; run with either configuration."""
    app, model, _ = await two_turns(make, store, config, AIMessage("a3"), AIMessage("a4"))
    older = await checkpoint(app, config, "q1", "a1", then=())
    branch = await app.aupdate_state(older, {"messages": [HumanMessage("q3")]}, as_node="__start__")
    await app.ainvoke(None, at(config, branch) if addressed else config)
    assert [message.text for message in model.shown[-1]] == ["q1", "a1", "q3"]
    assert await view(store, config) == ["q1", "a1", "q3", "a3"]
    older = await checkpoint(app, config, "q3")
    [*_, question] = (await app.aget_state(older)).values["messages"]
    edited = HumanMessage("q3 edited", id=question.id)
    branch = await app.aupdate_state(older, {"messages": [edited]}, as_node="__start__")
    await app.ainvoke(None, at(config, branch) if addressed else config)
    assert await view(store, config) == ["q1", "a1", "q3 edited", "a4"]


@pytest.mark.slow
async def test_back_to_the_abandoned_branch(
    make: Make, store: ConversationStore, config: Any
) -> None:
    """A client that switches between branches: the one it goes on with is the view."""
    app, model, _ = await two_turns(make, store, config, AIMessage("a3"), AIMessage("a4"))
    end = at(config, (await app.aget_state(config)).config)
    whole = await view(store, config)
    await ask(app, await checkpoint(app, config, "q1", "a1", then=()), "q3")
    await ask(app, end, "q4")
    assert await view(store, config) == [*whole, "q4", "a4"]
    assert [message.text for message in model.shown[-1]] == [*whole, "q4"]


@pytest.mark.slow
async def test_a_branch_that_an_earlier_rewind_abandoned(
    make: Make, store: ConversationStore, config: Any
) -> None:
    """Only the last rewind is undone; the error names undo_rewind, which makes the same run work."""
    app, _, _ = await two_turns(
        make, store, config, AIMessage("a3"), AIMessage("a4"), AIMessage("a5")
    )
    first = at(config, (await app.aget_state(config)).config)
    whole = await view(store, config)
    for question in ("q3", "q4"):
        await ask(app, await checkpoint(app, config, "q1", "a1", then=()), question)
    with pytest.raises(InvalidInputError, match="undo_rewind"):
        await ask(app, first, "q5")
    assert await view(store, config) == ["q1", "a1", "q4", "a4"]
    await chat_of(store, config).undo_rewind()
    await ask(app, first, "q5")
    assert await view(store, config) == [*whole, "q5", "a5"]


@pytest.mark.costly
async def test_a_call_is_edited_under_a_new_id(
    make: Make, store: ConversationStore, config: Any
) -> None:
    """The tool runs with the new arguments, and the log has the new call before its result."""
    app, _, _ = await two_turns(make, store, config, AIMessage("a3"))
    older = await checkpoint(app, config, "q2", "")
    call = (await app.aget_state(older)).values["messages"][-1]
    edited = calls("search", query="edited ")
    edited.id = "edited"
    branch = await app.aupdate_state(older, {"messages": [RemoveMessage(call.id), edited]})
    assert texts(await app.ainvoke(None, at(config, branch)))[-2:] == ["found edited 2", "a3"]
    shown = (await chat_of(store, config).load_history()).messages
    assert [message.text for message in shown if message.type != "tool"] == [
        "q1",
        "a1",
        "q2",
        "",
        "a3",
    ]
    assert shown[3].id == "edited"


@pytest.mark.costly
async def test_raise_writes_nothing(make: Make, store: ConversationStore, config: Any) -> None:
    """The error names the message to rewind to; after that rewind the same call works."""
    app, _, _ = await two_turns(make, store, config, AIMessage("a3"), on_fork="raise")
    older, before = (
        await checkpoint(app, config, "q1", "a1", then=()),
        await log_of(chat_of(store, config)),
    )
    with pytest.raises(OlderCheckpointError, match="rewind") as caught:
        await ask(app, older, "q3")
    assert await log_of(chat_of(store, config)) == before
    assert caught.value.before_id == before[2].id
    await chat_of(store, config).rewind(before_id=caught.value.before_id)
    await ask(app, older, "q3")
    assert await view(store, config) == ["q1", "a1", "q3", "a3"]


@pytest.mark.costly
async def test_the_newest_checkpoint_is_no_fork(
    make: Make, store: ConversationStore, database: Any, config: Any
) -> None:
    """A run at the newest checkpoint is no fork: messages that another worker appended since then stay in the view."""
    app, model, _ = await two_turns(
        make, store, config, AIMessage("a3"), AIMessage("a4"), on_fork="raise"
    )
    other = chat_of(elsewhere(store, database), config)
    for question in ("q3", "q4"):
        await other.append([HumanMessage(f"note before {question}"), AIMessage("noted")])
        named = at(config, (await app.aget_state(config)).config) if question == "q3" else config
        await ask(app, named, question)
        assert [message.text for message in model.shown[-1]][-3:] == [
            f"note before {question}",
            "noted",
            question,
        ]


@pytest.mark.costly
async def test_a_run_that_is_repeated_at_an_older_checkpoint(
    make: Make, store: ConversationStore, config: Any
) -> None:
    """The question was asked there under its id and broke off: it is not taken for a second branch."""
    app, _, _ = await two_turns(make, store, config, ValueError("broken off"), AIMessage("a3"))
    older = await checkpoint(app, config, "q1", "a1", then=())
    with pytest.raises(ValueError, match="broken off"):
        await ask(app, older, "q3", id="request-3")
    await ask(app, older, "q3", id="request-3")
    assert await view(store, config) == ["q1", "a1", "q3", "a3"]
    again = [message.text for message in await log_of(chat_of(store, config))]
    assert again == ["q1", "a1", "q2", "", "found x1", "a2", "q3", "a3"]


@pytest.mark.costly
async def test_two_runs_on_one_thread_keep_both_turns(
    make: Make, store: ConversationStore, config: Any
) -> None:
    """Two concurrent runs on one thread are no forks, and the view keeps both questions."""
    model = ScriptedModel(
        replies=[AIMessage("a1"), AIMessage("b"), AIMessage("c"), AIMessage("d"), AIMessage("e")]
    )
    app = make(store, model, InMemorySaver(), [], on_fork="raise")
    await ask(app, config, "q1")
    await asyncio.gather(ask(app, config, "q2"), ask(app, config, "q3"))
    await ask(app, config, "q4")
    shown = await view(store, config)
    assert {"q1", "a1", "q2", "q3", "q4"} <= set(shown)


async def test_an_interrupt_is_answered_in_another_way(
    store: ConversationStore, config: Any
) -> None:
    """A replay before the interrupt asks again; the answers of both are in the log, one is in the view."""

    async def call_model(state: ConversationState) -> dict[str, Any]:
        word = interrupt("May I?")
        return {"messages": [AIMessage(f"{word}: {len(await load.aview_of(state))}")]}

    load, graph = load_node(store), StateGraph(MessagesState)
    graph.add_node("load", load)
    graph.add_node("model", call_model)
    graph.add_node("append", append_node(store))
    for start, two in ((START, "load"), ("load", "model"), ("model", "append"), ("append", END)):
        graph.add_edge(start, two)
    app = graph.compile(checkpointer=InMemorySaver())
    await ask(app, config, "q1")
    await app.ainvoke(Command(resume="yes"), config)
    older = await checkpoint(app, config, "q1", then=("model",))
    await app.ainvoke(None, older)
    await app.ainvoke(Command(resume="no"), config)
    assert await view(store, config) == ["q1", "no: 1"]
    result = texts(await app.ainvoke(Command(resume="perhaps"), older))
    assert await view(store, config) == result
    logged = [message.text for message in await log_of(chat_of(store, config))]
    assert logged == ["q1", "yes: 1", "no: 1", result[-1]]


async def test_a_turn_removed_from_the_state_stays_in_the_log(
    store: ConversationStore, config: Any
) -> None:
    """A state that was trimmed is shorter than the log, but no branch."""
    app, model, _ = await two_turns(agent_of, store, config, AIMessage("a3"), on_fork="raise")
    state = (await app.aget_state(config)).values["messages"]
    await app.aupdate_state(
        config, {"messages": [RemoveMessage(message.id) for message in state[1:]]}
    )
    await ask(app, config, "q3")
    assert kinds(model.shown[-1])[-1] == ("human", "q3")
    assert (await view(store, config))[-3:] == ["a2", "q3", "a3"]


@pytest.mark.slow
async def test_synchronous_runs(server_uri: str, database: Any, config: Any) -> None:
    """The same in `invoke`."""
    uri = urlsplit(server_uri)._replace(path=f"/{database.name}").geturl()
    async with await ConversationStore.connect(uri) as store:
        model, saver = (
            ScriptedModel(replies=[AIMessage(value) for value in ("a1", "a2", "a3")]),
            InMemorySaver(),
        )
        app = agent_of(store, model, saver, [])

        def work() -> list[BaseMessage]:
            for text in ("q1", "q2"):
                app.invoke({"messages": [HumanMessage(text)]}, config)
            [first, *_] = (
                snapshot
                for snapshot in app.get_state_history(config)
                if texts(snapshot.values)[-1:] == ["a1"]
            )
            app.invoke({"messages": [HumanMessage("q3")]}, at(config, first.config))
            return model.shown[-1]

        assert [message.text for message in await asyncio.to_thread(work)] == ["q1", "a1", "q3"]
        assert await view(store, config) == ["q1", "a1", "q3", "a3"]


@pytest.mark.costly
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_whatever_is_saved_and_where(  # noqa: PLR0917 - pytest passes them by name
    make: Make,
    store: ConversationStore,
    database: Any,
    server_uri: str,
    config: Any,
    durability: Any,
) -> None:
    """Checkpoints in MongoDB or in memory, whenever they are written."""
    replies = [
        AIMessage("a1"),
        calls("search", query="x"),
        *(AIMessage(value) for value in ("a2", "a3", "a4")),
    ]
    with MongoClient(server_uri) as client:
        saver = (
            MongoDBSaver(client, db_name=database.name) if durability == "sync" else InMemorySaver()
        )
        app = make(store, ScriptedModel(replies=replies), saver, [])
        for question in ("q1", "q2"):
            await app.ainvoke({"messages": [HumanMessage(question)]}, config, durability=durability)
        older = await checkpoint(app, config, "q1", "a1", then=())
        await app.ainvoke({"messages": [HumanMessage("q3")]}, older, durability=durability)
        assert await view(store, config) == ["q1", "a1", "q3", "a3"]
        branch = await app.aupdate_state(
            older, {"messages": [HumanMessage("q4")]}, as_node="__start__"
        )
        await app.ainvoke(None, at(config, branch), durability=durability)
        assert await view(store, config) == ["q1", "a1", "q4", "a4"]


@pytest.mark.slow
async def test_a_deep_agent(store: ConversationStore, config: Any) -> None:
    """A deep agent can go back too, although its checkpoints hold only changes of the messages."""
    replies = [
        AIMessage("a1"),
        calls("search", query="x"),
        *(AIMessage(value) for value in ("a2", "a3", "a4", "a5")),
    ]
    model, number = ScriptedModel(replies=replies), list[int]()
    middleware = [ConversationMiddleware(store, prompt="")]
    app = create_deep_agent(
        model, [find(number)], middleware=middleware, checkpointer=InMemorySaver()
    )
    for question in ("q1", "q2"):
        await ask(app, config, question)
    older = await checkpoint(app, config, "q1", "a1", then=())
    await ask(app, older, "q3")
    assert await view(store, config) == ["q1", "a1", "q3", "a3"]
    await app.ainvoke(None, await checkpoint(app, config, "q3"))
    assert await view(store, config) == ["q1", "a1", "q3", "a4"]
    first = [snapshot async for snapshot in app.aget_state_history(config)][-1]
    await ask(app, at(config, first.config), "q1 edited")
    assert await view(store, config) == ["q1 edited", "a5"]


@pytest.mark.slow
async def test_an_agent_in_a_graph(store: ConversationStore, config: Any) -> None:
    """The checkpoint is the outer graph's."""
    model = ScriptedModel(
        replies=[
            AIMessage("a1"),
            calls("search"),
            AIMessage("a2"),
            AIMessage("a3"),
            AIMessage("a4"),
        ]
    )
    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent_of(store, model, None, []))
    graph.add_edge(START, "agent")
    app = graph.compile(checkpointer=InMemorySaver())
    for question in ("q1", "q2"):
        await ask(app, config, question)
    await ask(app, await checkpoint(app, config, "a1", then=()), "q3")
    assert await view(store, config) == ["q1", "a1", "q3", "a3"]
    await app.ainvoke(None, await checkpoint(app, config, "q3"))
    assert await view(store, config) == ["q1", "a1", "q3", "a4"]


@pytest.mark.slow
async def test_an_agent_in_a_tool_is_not_rewound(database: Any) -> None:
    """The inner conversation has no checkpoint to go back to; it is not mistaken for the abandoned branch."""
    store = ConversationStore(database, scope_keys=("user_id", "thread_id", "agent"))
    inner_model = ScriptedModel(replies=[AIMessage("i1"), AIMessage("i2")])
    middleware = [ConversationMiddleware(store, prompt="", scope={"agent": "inner"})]
    inner = create_agent(inner_model, middleware=middleware)

    @tool
    async def search() -> str:
        """Ask the other."""
        return (await inner.ainvoke({"messages": [HumanMessage("inner q")]}))["messages"][-1].text

    model = ScriptedModel(
        replies=[calls("search"), AIMessage("a1"), calls("search"), AIMessage("b1")]
    )
    middleware = [ConversationMiddleware(store, prompt="", scope={"agent": "outer"})]
    app = create_agent(model, [search], middleware=middleware, checkpointer=InMemorySaver())
    config = {"configurable": {"user_id": "ada", "thread_id": uuid.uuid4().hex}}
    await ask(app, config, "q1")
    await app.ainvoke(None, await checkpoint(app, config, "q1"))
    assert [message.text for message in inner_model.shown[-1]] == ["inner q", "i1", "inner q"]
    outer = store.conversation(
        user_id="ada", thread_id=config["configurable"]["thread_id"], agent="outer"
    )
    assert [message.text for message in (await outer.load_history()).messages][-1] == "b1"
    await store.close()


@pytest.mark.costly
@pytest.mark.parametrize("addressed", [True, False])
async def test_a_replay_that_broke_off(
    make: Make, store: ConversationStore, database: Any, config: Any, addressed: bool
) -> None:
    """Run again at the checkpoint it is a new branch; resumed, it goes on."""
    more = [calls("search", query="y"), ValueError("broken off"), AIMessage("b1"), AIMessage("b1")]
    app, model, number = await two_turns(make, store, config, *more)
    before = await checkpoint(app, config, "q2")
    with pytest.raises(ValueError, match="broken off"):
        await app.ainvoke(None, before)
    app = make(elsewhere(store, database), model, app.checkpointer, number)
    result = texts(await app.ainvoke(None, before if addressed else config))
    assert result == (["q2", "b1"] if addressed else ["q2", "", "found y2", "b1"])
    shown = await view(store, config)
    assert (shown[:3], shown[-1], len(shown)) == (["q1", "a1", "q2"], "b1", 4 if addressed else 6)
    assert len(number) == 2


class OpenIterators(InMemorySaver):
    """Counts the iterators that were begun and not read to the end; one of `AsyncSqliteSaver` would keep its lock."""

    number = 0

    def list(self, *args: Any, **options: Any) -> Any:
        """Count one, until it ends."""
        self.number += 1
        yield from super().list(*args, **options)
        self.number -= 1


@pytest.mark.slow
async def test_no_iterator_of_a_saver_is_left_open(store: ConversationStore, config: Any) -> None:
    """A thread that began without the middleware, and a replay, look for older checkpoints and stop early."""
    saver = OpenIterators()
    model = ScriptedModel(replies=[AIMessage(f"Answer {number}.") for number in range(9)])
    agent = agent_of(store, model, saver, [], trust="human")
    for number in range(3):
        await agent.ainvoke({"messages": [HumanMessage(f"Question {number}?")]}, config)
    states = [state async for state in agent.aget_state_history(config)]
    configurable = {**states[-4].config["configurable"], **config["configurable"]}
    await agent.ainvoke({"messages": [HumanMessage("Again?")]}, {"configurable": configurable})
    other = {"configurable": {**config["configurable"], "thread_id": uuid.uuid4().hex}}
    for _ in range(3):
        await create_agent(model, [], checkpointer=saver).ainvoke(
            {"messages": [HumanMessage("Question?")]}, other
        )
    with pytest.raises(InvalidInputError):
        await agent.ainvoke({"messages": [HumanMessage("Question?")]}, other)
    assert saver.number == 0
