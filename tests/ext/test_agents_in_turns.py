"""An agent or a graph that is run inside a turn works on it: its messages are fenced, and the turn knows them."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from scripted_agents import log_of

from convstore import Conversation, ConversationStore
from convstore.exceptions import ContentConflictError, TurnClosedError, TurnLostError
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import ConversationState, answer_of, append_node, load_node, view_of
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
            assert [message.type for message in turn.messages] == ["human", "ai", "tool", "ai"]
    assert (await chat.info()).message_count == 4


async def test_an_agent_makes_another_answer(store: ConversationStore) -> None:
    """An agent in a regenerated turn continues the call of a killed run, and its answer replaces the old one."""
    chat, asked = _chat(store), {"messages": [HumanMessage("Do seals sleep?", id="r1")]}
    await chat.append([HumanMessage("Do seals sleep?", id="r1"), AIMessage("No idea.")])
    call = {"name": "search", "args": {"words": "seals"}, "id": "call_1"}
    async with await chat.turn("r1", regenerate="click") as turn:
        await turn.append(AIMessage("", id="asked", tool_calls=[call]))
    model = Model(messages=iter([AIMessage("They do.")]))
    agent = create_agent(model, [search], middleware=[ConversationMiddleware(store)])
    async with await chat.turn("r1", regenerate="click") as turn:
        await agent.ainvoke(asked, context=chat.scope)
        assert turn.answer is not None
        assert turn.answer.text == "They do."
    assert [message.message.type for message in await chat.list_messages()] == [
        "human",
        "ai",
        "tool",
        "ai",
    ]


async def test_an_agent_whose_turn_was_taken_writes_nothing(
    store: ConversationStore, database: Any
) -> None:
    """An agent whose turn was taken by another worker raises TurnLostError and writes nothing."""
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
    assert [message.id async for message in chat.messages(rewound=True)] == ["r1"]


async def test_a_node_appends_to_the_turn(store: ConversationStore) -> None:
    """A node of a graph built by hand appends to the running turn. Outside of a turn it appends to the log."""
    chat, node = _chat(store), append_node(store)
    config: Any = {"configurable": chat.scope}
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        said = [HumanMessage("Do seals sleep?", id="r1"), AIMessage("They do.", id="a1")]
        await node.ainvoke(MessagesState(messages=said), config)
        assert turn.answer == said[1]
    await node.ainvoke(MessagesState(messages=[HumanMessage("And?", id="r2")]), config)
    assert (await chat.info()).message_count == 3


def _graph(store: ConversationStore, *replies: str, append_first: bool = False) -> Any:
    """A graph with the store's nodes around a model that plays a script."""
    left = list(replies)

    async def model(state: ConversationState) -> dict[str, Any]:
        assert [message.type for message in view_of(state)].count("human") == 1
        return {"messages": [AIMessage(left.pop(0))]}

    graph: Any = StateGraph(MessagesState)
    load, append = load_node(store, append_first=append_first), append_node(store)
    graph.add_sequence([("load", load), ("model", model), ("append", append)])
    graph.add_edge(START, "load")
    return graph.compile()


@pytest.mark.costly
@pytest.mark.parametrize("own_id", [None, "other"])
@pytest.mark.parametrize("kind", ["agent", "graph"])
async def test_a_question_gets_the_id_of_the_turn(
    store: ConversationStore, kind: str, own_id: str | None
) -> None:
    """Without it the log would have the question twice, and the turn no answer."""
    chat = _chat(store)
    asked = {"messages": [HumanMessage("Do seals sleep?", id=own_id)]}
    run = _agent(store) if kind == "agent" else _graph(store, "They do.", append_first=True)
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        result = await run.ainvoke(asked, {"configurable": chat.scope})
        assert turn.answer is not None
        assert [message.id for message in result["messages"]] == [
            message.id for message in turn.messages
        ]
    assert [message.type async for message in chat.messages(rewound=True)].count("human") == 1


async def test_another_question_in_a_turn_is_refused(store: ConversationStore) -> None:
    """Another question within a turn raises ContentConflictError, because it would have the turn's id."""
    chat = _chat(store)
    async with await chat.turn("r1", human="Do seals sleep?"):
        with pytest.raises(ContentConflictError):
            await _agent(store).ainvoke(
                {"messages": [("user", "Do orcas?")]}, {"configurable": chat.scope}
            )
    assert (await chat.info()).message_count == 1


async def test_a_graph_in_a_tool_works_below_the_call(store: ConversationStore) -> None:
    """A graph in a tool works on the child conversation of the call, as an inner agent does."""
    chat, inner = _chat(store), _graph(store, "In May.")

    @tool
    async def ask(question: str) -> str:
        """Ask the librarian."""
        return str((await inner.ainvoke({"messages": [("user", question)]}))["messages"][-1].text)

    call = {"name": "ask", "args": {"question": "When?"}, "id": "call_1"}
    said = iter([AIMessage("", id="ai-1", tool_calls=[call]), AIMessage("Sow in May.")])
    outer: Any = create_agent(
        Model(messages=said), [ask], middleware=[ConversationMiddleware(store)]
    )
    await outer.ainvoke({"messages": [("user", "Plan.")]}, {"configurable": chat.scope})
    assert [message.text async for message in chat.child("ai-1", "call_1").messages()] == [
        "When?",
        "In May.",
    ]
    assert (await chat.info()).message_count == 4


async def test_a_late_reply_of_a_graph_names_its_question(store: ConversationStore) -> None:
    """A late reply of a graph belongs to its own question, although another question was appended meanwhile."""
    chat = _chat(store)
    node, config = append_node(store), {"configurable": chat.scope}
    state: Any = {"messages": [HumanMessage("One?", id="q1")]}
    await node.ainvoke(state, config)
    await chat.append(HumanMessage("Two?", id="q2"))
    state = {
        "messages": [*state["messages"], AIMessage("First.", id="a1")],
        "convstore_logged": ["q1"],
    }
    await node.ainvoke(state, config)
    assert [[message.id for message in turn.messages] async for turn in chat.turns()] == [
        ["q1", "a1"],
        ["q2"],
    ]
    for id_, found in (("q1", "a1"), ("q2", None)):
        state = {"messages": [message for message in await log_of(chat) if message.id == id_]}
        state |= await load_node(store).ainvoke(state, config)
        answer = answer_of(state)
        assert (answer and answer.id) == found


async def test_source_ids_are_reserved_in_the_turn(store: ConversationStore) -> None:
    """Source ids are reserved in the turn, so that its next append follows them without another read."""
    chat = _chat(store)
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        assert await chat.reserve_source_ids(3) == range(1, 4)
        tail = turn._held.tail
        await turn.append(AIMessage("They do."))
        assert (turn._held.tail.entries, tail.sources_through) == (tail.entries + 1, 3)


async def test_a_run_that_outlives_its_session_appends_nothing(store: ConversationStore) -> None:
    """As a tool of LangGraph goes on after the client went away: its result is not of the turn any more."""
    chat, begun, left = _chat(store), asyncio.Event(), asyncio.Event()

    @tool
    async def slow(words: str) -> str:
        """Search slowly."""
        begun.set()
        await left.wait()
        return f"{words}: found"

    said = iter(
        [AIMessage("", tool_calls=[{"name": "slow", "args": {"words": "seals"}, "id": "call_1"}])]
    )
    agent = create_agent(Model(messages=said), [slow], middleware=[ConversationMiddleware(store)])
    async with await chat.turn("r1", human="Do seals sleep?"):
        asked: Any = {"messages": [HumanMessage("Do seals sleep?", id="r1")]}
        run = asyncio.ensure_future(agent.ainvoke(asked, {"configurable": chat.scope}))
        await begun.wait()
    left.set()
    with pytest.raises(TurnLostError):
        await run
    assert [message.type for message in await log_of(chat)] == ["human", "ai"]
    # What the caller does itself after a session is an append like any other.
    once_more = create_agent(
        Model(messages=iter([AIMessage("They do.")])),
        [search],
        middleware=[ConversationMiddleware(store)],
    )
    await once_more.ainvoke(asked, {"configurable": chat.scope})
    again = create_agent(
        Model(messages=iter([AIMessage("They do.")])),
        [search],
        middleware=[ConversationMiddleware(store)],
    )
    await again.ainvoke(
        {"messages": [HumanMessage("And whales?", id="r2")]}, {"configurable": chat.scope}
    )
    assert (await log_of(chat))[-1].text == "They do."


def _librarian(store: ConversationStore, model: Model, background: list[Any] | None = None) -> Any:
    """An agent whose tool asks another one, which has the model; in the background if a list takes the task."""
    inner = create_agent(model, [search], middleware=[ConversationMiddleware(store)])

    @tool
    async def ask_librarian(words: str) -> str:
        """Ask the librarian."""
        asking = asyncio.ensure_future(inner.ainvoke({"messages": [HumanMessage(words, id="i1")]}))
        if background is not None:
            background.append(asking)
            return "I asked."
        return str((await asking)["messages"][-1].text)

    call = {"name": "ask_librarian", "args": {"words": "seals"}, "id": "call_1"}
    said = iter([AIMessage("", tool_calls=[call]), AIMessage("I will see.")])
    return create_agent(
        Model(messages=said), [ask_librarian], middleware=[ConversationMiddleware(store)]
    )


class SlowModel(Model):
    """Says nothing until it is let."""

    begun: ClassVar[asyncio.Event]
    let: ClassVar[asyncio.Event]

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        self.begun.set()
        await self.let.wait()
        return await super()._agenerate(*args, **kwargs)


async def test_a_stop_ends_the_model_s_call_of_a_sub_agent(store: ConversationStore) -> None:
    """The run ends with TurnClosedError; the sub-agent's question stays, and its model is not asked to the end."""
    chat, SlowModel.begun, SlowModel.let = _chat(store), asyncio.Event(), asyncio.Event()

    async def stop() -> None:
        await SlowModel.begun.wait()
        await chat.stop("r1")

    stopping = asyncio.ensure_future(stop())
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        agent = _librarian(store, SlowModel(messages=iter([AIMessage("They do.")])))
        with pytest.raises(TurnClosedError):
            await asyncio.wait_for(
                agent.ainvoke({"messages": [HumanMessage("Do seals sleep?")]}, context=chat.scope),
                10,
            )
    await stopping
    assert turn.is_stopped
    [child] = await chat.children()
    assert [message.text for message in await log_of(store.conversation(**child.scope))] == [
        "seals"
    ]


@pytest.mark.slow
async def test_a_sub_agent_that_outlives_the_session_appends_nothing(
    store: ConversationStore,
) -> None:
    """Its model's call ends with the session of its caller, and a later one is not made."""
    chat, SlowModel.begun, SlowModel.let, background = (
        _chat(store),
        asyncio.Event(),
        asyncio.Event(),
        list[Any](),
    )
    async with await chat.turn("r1", human="Do seals sleep?"):
        agent = _librarian(store, SlowModel(messages=iter([AIMessage("They do.")])), background)
        await agent.ainvoke({"messages": [HumanMessage("Do seals sleep?")]}, context=chat.scope)
        await SlowModel.begun.wait()
    with pytest.raises(TurnLostError):
        await asyncio.wait_for(background[0], 10)
    [child] = await chat.children()
    assert [message.text for message in await log_of(store.conversation(**child.scope))] == [
        "seals"
    ]


async def test_a_task_that_outlives_a_session_asks_sub_agents_about_another_question(
    store: ConversationStore,
) -> None:
    """Its context has the session that was left, whose turn is not the one that it works on."""
    chat, left = _chat(store), asyncio.Event()
    agent = _librarian(store, Model(messages=iter([AIMessage("They do.")])))

    async def later() -> Any:
        await left.wait()
        return await agent.ainvoke(
            {"messages": [HumanMessage("And whales?", id="r2")]}, context=chat.scope
        )

    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        task = asyncio.ensure_future(later())
        await turn.append(AIMessage("Yes."))
    left.set()
    assert (await task)["messages"][-1].text == "I will see."
    [child] = await chat.children()
    assert [message.text for message in await log_of(store.conversation(**child.scope))] == [
        "seals",
        "They do.",
    ]


async def _graph_that_answers(store: ConversationStore, answer: Any) -> Any:
    async def model(state: ConversationState) -> dict[str, Any]:
        return {"messages": [await answer(state)]}

    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_node("load", load_node(store))
    graph.add_node("model", model)
    graph.add_node("append", append_node(store))
    for begin, end in ((START, "load"), ("load", "model"), ("model", "append"), ("append", END)):
        graph.add_edge(begin, end)
    return graph.compile()


async def test_a_node_appends_nothing_that_another_one_logged(store: ConversationStore) -> None:
    """A node may log its reply itself, by the turn that its caller entered or by `append`, and return it."""
    for how in ("turn", "chat"):
        chat = _chat(store)
        turn = await chat.turn("q1", human="Do orcas sleep?") if how == "turn" else None

        async def answer(_: Any, target: Any = turn or chat) -> AIMessage:
            reply = AIMessage("They do.", id="reply-1")
            await target.append(reply)
            return reply

        graph = await _graph_that_answers(store, answer)
        question = {"messages": [HumanMessage("Do orcas sleep?", id="q1")]}
        async with turn or nullcontext():
            await graph.ainvoke(question, {"configurable": chat.scope})
        assert [message.type for message in await log_of(chat)] == ["human", "ai"]


@pytest.mark.slow
async def test_a_graph_may_get_one_reply_for_two_questions(store: ConversationStore) -> None:
    """A cache returns the same reply with the same id; each question has it as its answer, once."""

    async def answer(_: Any) -> AIMessage:
        return AIMessage("Fish.", id="cached")

    chat, graph = _chat(store), await _graph_that_answers(store, answer)
    for number in (1, 2, 2):
        question = {"messages": [HumanMessage("What do orcas eat?", id=f"q{number}")]}
        await graph.ainvoke(question, {"configurable": chat.scope})
    turns = [[message.text for message in turn.messages] async for turn in chat.turns()]
    assert turns == [["What do orcas eat?", "Fish."]] * 2


@pytest.mark.slow
async def test_an_agent_may_get_one_reply_for_two_questions(store: ConversationStore) -> None:
    """The same with the middleware."""
    chat = _chat(store)
    for number in (1, 2):
        model = Model(messages=iter([AIMessage("Fish.", id="cached")]))
        agent = create_agent(model, middleware=[ConversationMiddleware(store)])
        question = {"messages": [HumanMessage("What do orcas eat?", id=f"q{number}")]}
        await agent.ainvoke(question, context=chat.scope)
    turns = [[message.text for message in turn.messages] async for turn in chat.turns()]
    assert turns == [["What do orcas eat?", "Fish."]] * 2
