"""An agent or a graph that nobody runs in a turn holds its turn itself, and gives it back however its run ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, cast

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from scripted_agents import PausingModel, ScriptedModel, calls, elsewhere, kinds, log_of

from convstore import Conversation, ConversationStore
from convstore.exceptions import TurnBusyError
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import ConversationState, append_node, load_node, view_of
from convstore.ext.run_turns import _TRACKER
from convstore.mongo.turn_leases import TurnLeases
from convstore.testing.fixtures import ahead

ASKED = {"messages": [HumanMessage("Do seals sleep?", id="q1")]}
BEGUN = list[asyncio.Event]()


class HookError(Exception):
    """Raised by a hook of another middleware."""


class FailingHook(AgentMiddleware):
    """Fails after the model."""

    async def aafter_model(self, state: Any, runtime: Any) -> Any:  # noqa: ARG002 - the base class has them
        """Fail."""
        raise HookError


@tool
async def look(how: str = "") -> str:
    """Look, in some way."""
    if how == "fail":
        raise ValueError(how)
    if how == "long":
        BEGUN[-1].set()
        await asyncio.sleep(60)
    return "seen"


@pytest.fixture
async def chat() -> AsyncIterator[Conversation]:
    """A conversation in memory, where sync agents work, too."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store.conversation(user_id="ada", thread_id="ways-out")


def _agent(chat: Conversation, *replies: Any, beside: Any = (), **options: Any) -> Any:
    own = ConversationMiddleware(chat.store, **options)
    model = ScriptedModel(replies=list(replies))
    return create_agent(model, [look], middleware=[own, *beside], checkpointer=InMemorySaver())


async def _is_free(chat: Conversation) -> None:
    """Take the conversation at once, without a wait."""
    async with await chat.turn("next", human="And orcas?") as turn:
        await turn.append(AIMessage("They do."))
    await chat.rewind(before_id="next")


async def _ask(agent: Any, chat: Conversation) -> None:
    await agent.ainvoke(ASKED, {"configurable": chat.scope})


async def _cancelled(agent: Any, chat: Conversation) -> None:
    BEGUN.append(asyncio.Event())
    run = asyncio.create_task(_ask(agent, chat))
    await BEGUN[-1].wait()
    with pytest.raises(TurnBusyError):
        await chat.turn("next", human="And orcas?")
    run.cancel()
    await run


async def _left(agent: Any, chat: Conversation) -> None:
    stream = agent.astream(ASKED, {"configurable": chat.scope}, stream_mode="updates")
    async for update in stream:
        if "model" in update:
            break
    await stream.aclose()


async def _sync(agent: Any, chat: Conversation) -> None:
    await asyncio.to_thread(agent.invoke, ASKED, {"configurable": chat.scope})


async def _sync_in_loop(agent: Any, chat: Conversation) -> None:
    agent.invoke(ASKED, {"configurable": chat.scope})


async def _inside_another_run(agent: Any, chat: Conversation) -> None:
    async def work(_: Any) -> None:
        await _ask(agent, chat)
        await _ask(agent, chat)

    await RunnableLambda(work).ainvoke("")


async def _node_alone(node: Any, chat: Conversation) -> None:
    await node.ainvoke(ASKED, {"configurable": chat.scope})


async def _sync_node_alone(node: Any, chat: Conversation) -> None:
    node.invoke(ASKED, {"configurable": chat.scope})


Way = Callable[[Any, Conversation], Coroutine[Any, Any, None]]


async def test_each_step_of_a_long_run_keeps_its_lease(chat: Conversation) -> None:
    """The time after which a run that does nothing loses its lease begins again with each append."""
    seen = list[float]()

    @tool
    async def work() -> str:
        """Work for 14 minutes."""
        [turns] = _TRACKER.turns.values()
        seen.append(turns.held[0]._unattended)
        turns.held[0]._unattended += 840.0
        return "worked"

    own = ConversationMiddleware(chat.store)
    replies = [calls("work"), calls("work"), calls("work"), AIMessage("Done.")]
    agent = create_agent(ScriptedModel(replies=replies), [work], middleware=[own])
    await _ask(agent, chat)
    assert len(seen) == 3
    assert max(seen) < 840.0


async def test_a_lease_is_renewed_while_a_tool_or_a_chain_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long they take, their run keeps the turn; a stream that nobody reads keeps it for 15 minutes."""
    looks = asyncio.Queue[None]()
    find = TurnLeases.find

    async def counted(*args: Any, **options: Any) -> Any:
        looks.put_nowait(None)
        return await find(*args, **options)

    monkeypatch.setattr(TurnLeases, "find", counted)

    async def wait_long() -> None:
        [turns] = _TRACKER.turns.values()
        turns.held[0]._unattended += 900.0
        for _ in range(looks.qsize() + 3):
            await looks.get()

    @tool
    async def work() -> str:
        """Work for more than 15 minutes."""
        await wait_long()
        return "worked"

    async def answer(state: Any) -> Any:
        await wait_long()
        return {**state, "messages": [*ASKED["messages"], AIMessage("They do.", id="a1")]}

    async with await ConversationStore.connect("memory://", clock=ahead(0, hurry=1000)) as store:
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="long")
        own = ConversationMiddleware(store)
        model = ScriptedModel(replies=[calls("work"), AIMessage("Done.")])
        agent = create_agent(model, [work], middleware=[own])
        stream = agent.astream(ASKED, {"configurable": chat.scope}, stream_mode="updates")
        async with asyncio.timeout(20), aclosing(stream) as updates:
            async for update in updates:
                if "tools" in update:
                    await _lapse_of_lease()
                    break
        chat = store.conversation(user_id="ada", thread_id="chain")
        chain = load_node(store) | RunnableLambda(answer) | append_node(store)
        async with asyncio.timeout(20):
            await chain.ainvoke(ASKED, {"configurable": chat.scope})
        assert [message.type for message in await log_of(chat)] == ["human", "ai"]
        chat = store.conversation(user_id="ada", thread_id="streamed chain")
        streamed = load_node(store) | RunnableLambda(_parts)
        parts = cast(
            AsyncGenerator[str, None], streamed.astream(ASKED, {"configurable": chat.scope})
        )
        async with asyncio.timeout(20), aclosing(parts):
            await anext(parts)
            await _lapse_of_lease()


async def _parts(_: Any) -> AsyncIterator[str]:
    yield "They"
    yield "do."


async def _lapse_of_lease() -> None:
    """Wait until the run in progress loses its lease, after 15 minutes in which it does nothing."""
    [turns] = _TRACKER.turns.values()
    [turn] = turns.held
    assert turn._unattended < 900.0
    turn._unattended += 900.0
    assert turn._session._renewing
    await turn._session._renewing


async def test_the_next_question_is_taken_at_once_after_any_way_out(chat: Conversation) -> None:
    """The turn is given back before the caller goes on, and no run is remembered."""
    review = HumanInTheLoopMiddleware({"look": True})
    done = AIMessage("They do.")
    failing = calls("look", how="fail")
    ways: list[tuple[Way, Any]] = [
        (_ask, _agent(chat, done)),
        (_ask, _agent(chat, RuntimeError("model"))),
        (_ask, _agent(chat, done, beside=[FailingHook()])),
        (_ask, _agent(chat, failing)),
        (_ask, _agent(chat, calls("look"), review=review)),
        (_ask, _agent(chat, calls("look"), beside=[review])),
        (_cancelled, _agent(chat, calls("look", how="long"))),
        (_left, _agent(chat, calls("look"), done)),
        (_sync, _agent(chat, done)),
        (_sync, _agent(chat, RuntimeError("model"))),
        (_sync_in_loop, _agent(chat, done)),
        (_inside_another_run, _agent(chat, done)),
        (_node_alone, load_node(chat.store)),
        (_node_alone, append_node(chat.store)),
        (_sync_node_alone, append_node(chat.store)),
    ]
    for way, agent in ways:
        with suppress(Exception, asyncio.CancelledError):
            await way(agent, chat)
        await _is_free(chat)
        await chat.delete()
    assert (_TRACKER.turns, _TRACKER._runs) == ({}, {})


async def test_parallel_branches_of_one_graph_share_the_turn(chat: Conversation) -> None:
    """They do not wait for each other, with agents and with nodes; another question at the same time neither."""
    both = asyncio.Barrier(2)

    class Together(ScriptedModel):
        async def _agenerate(self, *args: Any, **options: Any) -> Any:
            await both.wait()
            return await super()._agenerate(*args, **options)

    def agent(text: str) -> Any:
        model = Together(replies=[AIMessage(text)])
        return create_agent(model, middleware=[ConversationMiddleware(chat.store)])

    async def asks(_: Any) -> Any:
        given = {"messages": [HumanMessage("Do orcas?", id="q2")]}
        return await agent("Two.").ainvoke(given)

    for second in (agent("Two."), asks):
        graph = StateGraph(MessagesState)
        graph.add_node("one", agent("One."))
        graph.add_node("two", second)
        for name in ("one", "two"):
            graph.add_edge(START, name)
            graph.add_edge(name, END)
        async with asyncio.timeout(20):
            await graph.compile().ainvoke(ASKED, {"configurable": chat.scope})
        assert {"One.", "Two."} < {message.text for message in await log_of(chat)}
        await _is_free(chat)
        await chat.delete()


async def test_the_next_agent_waits_and_is_shown_the_turn_before(
    store: ConversationStore,
    database: Any,
    scope: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another worker's question waits for the answer; the same question gets it, and its model is not asked."""
    going = asyncio.Event()
    is_refused = asyncio.Event()
    take = TurnLeases.take

    async def noted(*arguments: Any, **options: Any) -> Any:
        taken = await take(*arguments, **options)
        if taken and not taken.is_taken:
            is_refused.set()
        return taken

    monkeypatch.setattr(TurnLeases, "take", noted)
    chat = store.conversation(**scope)
    await chat.append([HumanMessage("Hello?", id="q0"), AIMessage("Hello.")])
    asked = asyncio.Event()

    class Slow(ScriptedModel):
        async def _agenerate(self, *args: Any, **options: Any) -> Any:
            asked.set()
            await going.wait()
            return await super()._agenerate(*args, **options)

    slow = create_agent(
        Slow(replies=[AIMessage("They do.")]), middleware=[ConversationMiddleware(store)]
    )
    config = {"configurable": scope}
    first = asyncio.create_task(slow.ainvoke(ASKED, config))
    await asked.wait()
    other = elsewhere(store, database)
    models = [ScriptedModel(replies=[AIMessage("Orcas, too.")]) for _ in range(2)]
    agents = [create_agent(model, middleware=[ConversationMiddleware(other)]) for model in models]
    same = asyncio.create_task(agents[0].ainvoke(ASKED, config))
    await is_refused.wait()
    question = {"messages": [HumanMessage("And orcas?", id="q2")]}
    later = asyncio.create_task(agents[1].ainvoke(question, config))
    going.set()
    results = await asyncio.gather(first, same, later)
    assert [result["messages"][-1].text for result in results] == [
        *["They do."] * 2,
        "Orcas, too.",
    ]
    assert models[0].shown == []
    assert ("ai", "They do.") in kinds(models[1].shown[0])


async def test_a_stop_ends_a_run_that_nobody_entered(database: Any) -> None:
    """What was said is the answer, of an agent and of a graph's node; a draft is kept until then."""
    async with ConversationStore(database, clock=ahead(0, hurry=100)) as store:
        await store.setup()
        going = asyncio.Event()

        async def ask(state: ConversationState) -> dict[str, Any]:
            model = PausingModel(replies=["They ", going, "do."])
            return {"messages": [await model.ainvoke(view_of(state))]}

        graph = StateGraph(MessagesState)
        load = load_node(store, drafts=True)
        nodes = {"load": load, "ask": ask, "append": append_node(store)}
        graph.add_sequence(list(nodes.items()))
        graph.add_edge(START, "load")
        own = ConversationMiddleware(store, drafts=True)
        model = PausingModel(replies=["They ", going, "do."])
        runs = {"agent": create_agent(model, middleware=[own]), "graph": graph.compile()}
        for kind, runnable in runs.items():
            chat = store.conversation(user_id="ada", thread_id=kind)
            going.clear()
            await _stopped(chat, runnable, going)
            turn = await chat.get_turn("q1")
            assert turn is not None
            assert (turn.is_finished, turn.draft) == (True, "")
            assert [message.text for message in turn.messages][1:] == ["They "]


async def _stopped(chat: Conversation, runnable: Any, going: asyncio.Event) -> None:
    kind = chat.scope["thread_id"]

    async def read() -> None:
        config = {"configurable": chat.scope}
        async for _ in runnable.astream(ASKED, config, stream_mode="messages"):
            pass

    reading = asyncio.create_task(read())
    async with asyncio.timeout(20):
        while not ((turn := await chat.get_turn("q1")) and turn.draft):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        assert await chat.stop("q1")
        if kind == "graph":  # the node's model is stopped at its next token, an agent's at once
            [turns] = _TRACKER.turns.values()
            await turns.held[0].held.lease.ended.wait()
            going.set()
        await asyncio.wait({reading})
    await _is_free(chat)
