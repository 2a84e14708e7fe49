"""A graph built by hand in a turn: a stop ends a streamed call of its model, and a draft of the reply is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from scripted_agents import PausingModel, ScriptedModel, log_of

from convstore import Conversation, ConversationStore
from convstore.exceptions import TurnClosedError
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import ConversationState, append_node, load_node, view_of
from convstore.ext.langgraph.model_streams import _STREAM_HANDLER
from convstore.testing.fixtures import ahead

ASKED = {"messages": [HumanMessage("Do seals sleep?", id="r1")]}


@pytest.fixture
async def chat(database: Any) -> AsyncIterator[Conversation]:
    """A conversation in a worker that waits a hundred times shorter."""
    async with ConversationStore(database, clock=ahead(0, hurry=100)) as store:
        await store.setup()
        yield store.conversation(user_id="ada", thread_id="graph stops")
        await store.conversation(user_id="ada", thread_id="graph stops").delete()


def _graph(chat: Conversation, ask: Callable[[Any], Any], **options: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("load", load_node(chat.store, **options))
    graph.add_node("model", ask)
    graph.add_node("append", append_node(chat.store))
    for begin, end in ((START, "load"), ("load", "model"), ("model", "append"), ("append", END)):
        graph.add_edge(begin, end)
    return graph.compile()


def _streaming(*said: Any) -> Callable[[Any], Any]:
    model = PausingModel(replies=list(said))

    async def ask(state: ConversationState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(view_of(state))]}

    return ask


async def _stream(graph: Any, chat: Conversation) -> None:
    async for _ in graph.astream(ASKED, {"configurable": chat.scope}, stream_mode="messages"):
        pass


async def _stream_in_turn(graph: Any, chat: Conversation) -> None:
    async with await chat.turn("r1", human="Do seals sleep?"):
        await _stream(graph, chat)


async def _draft(chat: Conversation) -> str:
    """Return the draft of the turn as soon as there is one."""
    async with asyncio.timeout(60):
        while not ((turn := await chat.get_turn("r1")) and turn.draft):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    return turn.draft


async def _when_asked_to_stop(chat: Conversation, turn: Any) -> None:
    await chat.stop("r1")
    async with asyncio.timeout(60):
        while not turn.is_stopped:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("stream", "error"),
    [(_stream_in_turn, nullcontext()), (_stream, pytest.raises(TurnClosedError))],
)
async def test_a_stop_ends_a_streamed_call_of_a_node(
    chat: Conversation, database: Any, stream: Callable[..., Any], error: Any
) -> None:
    """What was said, which the draft had redacted, is the answer; no word after it, and no draft is left.

    A graph that holds its turn itself raises TurnClosedError; the exit of a session swallows it.
    """
    known = set(_STREAM_HANDLER.get()._calls)
    going = asyncio.Event()
    graph = _graph(chat, _streaming("They ", going, "do.", "All."), drafts=str.upper)
    working = asyncio.ensure_future(stream(graph, chat))
    assert await _draft(chat) == "THEY "
    await chat.stop("r1")
    await asyncio.sleep(0.5)  # a turn looks for a stop every 15 ms, or later on a busy machine
    going.set()
    with error:
        await working
    turn = await chat.get_turn("r1")
    assert turn is not None
    assert ([message.text for message in turn.messages], turn.over) == (
        ["Do seals sleep?", "They "],
        "stopped",
    )
    assert (
        await database["drafts"].count_documents(
            {"conversation": (await chat.info()).conversation_id}
        )
        == 0
    )
    assert set(_STREAM_HANDLER.get()._calls) <= known


async def _ask_graph(chat: Conversation, model: Any) -> Any:
    async def ask(state: ConversationState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(view_of(state))]}

    return await _graph(chat, ask).ainvoke(ASKED, {"configurable": chat.scope})


async def _ask_agent(chat: Conversation, model: Any) -> Any:
    agent = create_agent(model, middleware=[ConversationMiddleware(chat.store)])
    return await agent.ainvoke(ASKED, {"configurable": chat.scope})


@pytest.mark.parametrize("ask", [_ask_graph, _ask_agent])
async def test_a_question_that_was_stopped_before_its_answer_asks_no_model_again(
    chat: Conversation, ask: Callable[..., Any]
) -> None:
    """Its reply could not be appended. What a stop left of an answer is that of the repeated question."""
    model = ScriptedModel(replies=[AIMessage("They do.")])
    async with await chat.turn("r1", human="Do seals sleep?"):
        await chat.stop("r1")
    with pytest.raises(TurnClosedError, match="has its answer, if it got one"):
        await ask(chat, model)
    assert model.shown == []


@pytest.mark.parametrize("ask", [_ask_graph, _ask_agent])
async def test_a_stop_leaves_what_was_said(chat: Conversation, ask: Callable[..., Any]) -> None:
    """It is the answer to the question when that is repeated."""
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        await turn.append(AIMessage("They"))
        await chat.stop("r1")
    state = await ask(chat, ScriptedModel(replies=[AIMessage("Never.")]))
    assert [message.text for message in state["messages"]] == ["Do seals sleep?", "They"]
    assert [message.text for message in await log_of(chat)] == ["Do seals sleep?", "They"]


async def test_a_reply_after_a_stop_is_not_the_answer(chat: Conversation) -> None:
    """A model that is not streamed, or not LangChain's, is read to its end; what came before its reply is appended."""
    async with await chat.turn("r1", human="Do seals sleep?") as turn:

        async def ask(_: ConversationState) -> dict[str, Any]:
            await _when_asked_to_stop(chat, turn)
            return {"messages": [AIMessage("They do.")]}

        with pytest.raises(TurnClosedError):
            await _graph(chat, ask).ainvoke(ASKED, {"configurable": chat.scope})
    assert [message.text for message in await log_of(chat)] == ["Do seals sleep?"]
    assert turn.is_stopped


@pytest.mark.slow
async def test_a_reply_that_was_complete_before_a_stop_is_the_answer(chat: Conversation) -> None:
    """The stop came between the model and the append node."""
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        model = ScriptedModel(replies=[AIMessage("They do.")])

        async def ask(state: ConversationState) -> dict[str, Any]:
            said = await model.ainvoke(view_of(state))
            await _when_asked_to_stop(chat, turn)
            return {"messages": [said]}

        await _graph(chat, ask, drafts=True).ainvoke(ASKED, {"configurable": chat.scope})
    assert [message.text for message in await log_of(chat)] == ["Do seals sleep?", "They do."]


async def test_a_node_that_gives_its_model_up_answers_itself(
    chat: Conversation, database: Any
) -> None:
    """LangChain tells no handler of a cancelled call: the append node ends its draft instead of waiting for it."""
    model = PausingModel(replies=["They ", asyncio.Event()])

    async def ask(state: ConversationState) -> dict[str, Any]:
        asking = asyncio.ensure_future(model.ainvoke(view_of(state)))
        assert await _draft(chat) == "They "
        asking.cancel()
        await asyncio.wait({asking})
        return {"messages": [AIMessage("Ask me later.")]}

    async with asyncio.timeout(20):
        await _stream_in_turn(_graph(chat, ask, drafts=True), chat)
    drafts = {"conversation": (await chat.info()).conversation_id}
    assert await database["drafts"].count_documents(drafts) == 0
    assert [message.text for message in await log_of(chat)] == ["Do seals sleep?", "Ask me later."]


@pytest.mark.slow
async def test_a_draft_goes_with_the_reply(chat: Conversation, database: Any) -> None:
    """The append node deletes it as it appends the reply."""
    going = asyncio.Event()
    working = asyncio.ensure_future(
        _stream_in_turn(_graph(chat, _streaming("They ", going, "do."), drafts=True), chat)
    )
    assert await _draft(chat) == "They "
    going.set()
    await working
    drafts = {"conversation": (await chat.info()).conversation_id}
    assert await database["drafts"].count_documents(drafts) == 0
    assert [message.text for message in await log_of(chat)] == ["Do seals sleep?", "They do."]


@pytest.mark.slow
async def test_models_outside_of_graphs_are_not_heard(chat: Conversation, database: Any) -> None:
    """A loop of its own in the same turn keeps its draft by `turn.stream`, after a graph has joined it."""
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        await load_node(chat.store, drafts=True).ainvoke(ASKED, {"configurable": chat.scope})
        model = PausingModel(replies=["They ", "do."])
        known = set(_STREAM_HANDLER.get()._calls)
        async for _ in turn.stream(model.astream("Do seals sleep?")):
            assert set(_STREAM_HANDLER.get()._calls) <= known
        assert turn.answer
    assert (
        await database["drafts"].count_documents(
            {"conversation": (await chat.info()).conversation_id}
        )
        == 0
    )


@pytest.mark.slow
async def test_a_stream_of_the_session_in_a_node_is_heard_by_itself(chat: Conversation) -> None:
    """With `on_stop="discard"` nothing is appended, though the load node keeps drafts."""
    going = asyncio.Event()
    async with await chat.turn("r1", human="Do seals sleep?") as turn:
        model = PausingModel(replies=["They ", going, "do."])

        async def ask(state: ConversationState) -> dict[str, Any]:
            async for _ in turn.stream(model.astream(view_of(state)), on_stop="discard"):
                pass
            return {"messages": turn.messages[1:]}

        graph = _graph(chat, ask, drafts=True)
        working = asyncio.ensure_future(graph.ainvoke(ASKED, {"configurable": chat.scope}))
        assert await _draft(chat) == "They "
        await _when_asked_to_stop(chat, turn)
        await asyncio.wait({working})
    assert [message.text for message in await log_of(chat)] == ["Do seals sleep?"]


@pytest.mark.slow
async def test_a_run_that_is_cancelled_leaves_a_draft(chat: Conversation) -> None:
    """The same request asks again; the call is held by its session alone, as nobody hears that it was cancelled."""
    going = asyncio.Event()
    working = asyncio.ensure_future(
        _stream_in_turn(_graph(chat, _streaming("They ", going), drafts=True), chat)
    )
    assert await _draft(chat) == "They "
    working.cancel()
    await asyncio.wait({working})
    assert (turn := await chat.get_turn("r1"))
    assert (turn.over, turn.draft) == ("", "They ")
    await _stream_in_turn(_graph(chat, _streaming("They do."), drafts=True), chat)
    assert [message.text for message in await log_of(chat)] == ["Do seals sleep?", "They do."]
