"""A checkpointer finds the state of a thread by its id alone: no other conversation's state is taken over."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from scripted_agents import ScriptedModel, calls, kinds, log_of

from convstore import ConversationDeletedError, ConversationStore
from convstore.edges import OWNER
from convstore.exceptions import InvalidScopeError
from convstore.ext.checkpoints import owner_of
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import ConversationState, append_node, load_node


def agent_of(
    store: ConversationStore, saver: Any, *replies: Any
) -> tuple[Any, ScriptedModel, list[int]]:
    """An agent with a tool that a person approves, its model, and the calls of the tool."""
    done: list[int] = []

    @tool
    def refund(euros: int) -> str:
        """Refund money."""
        done.append(euros)
        return f"{euros} euros"

    model = ScriptedModel(replies=list(replies))
    own = ConversationMiddleware(store, review=HumanInTheLoopMiddleware({"refund": True}))
    return create_agent(model, [refund], middleware=[own], checkpointer=saver), model, done


def run_of(user: str, scope: dict[str, str]) -> Any:
    """The configuration of a run of a user, in a thread that another user has, too."""
    return {"configurable": {"user_id": user, "thread_id": scope["thread_id"]}}


async def test_another_user_with_the_same_thread_id_is_refused(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The run ends before the model is asked; neither user is shown anything of the other, then or later."""
    agent, model, _ = agent_of(
        store, InMemorySaver(), AIMessage("Hello."), AIMessage("Hello again.")
    )
    await agent.ainvoke({"messages": [HumanMessage("My secret.")]}, run_of("ada", scope))
    with pytest.raises(InvalidScopeError, match="thread_id"):
        await agent.ainvoke({"messages": [HumanMessage("Hi.")]}, run_of("bob", scope))
    assert len(model.shown) == 1
    assert await log_of(store.conversation(user_id="bob", thread_id=scope["thread_id"])) == []
    await agent.ainvoke({"messages": [HumanMessage("And?")]}, run_of("ada", scope))
    assert [text for _, text in kinds(model.shown[-1])] == ["My secret.", "Hello.", "And?"]
    log = ["My secret.", "Hello.", "And?", "Hello again."]
    chat = store.conversation(user_id="ada", thread_id=scope["thread_id"])
    assert [message.text for message in await log_of(chat)] == log


async def test_nobody_decides_about_a_call_of_another_user(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A run that waits is resumed in its own scope only; the tool runs once, for the one who asked."""
    agent, _, done = agent_of(
        store, InMemorySaver(), calls("refund", euros=900), AIMessage("Done.")
    )
    assert "__interrupt__" in await agent.ainvoke(
        {"messages": [HumanMessage("Pay.")]}, run_of("ada", scope)
    )
    approved: Any = Command(resume={"decisions": [{"type": "approve"}]})
    with pytest.raises(InvalidScopeError, match="thread_id"):
        await agent.ainvoke(approved, run_of("bob", scope))
    assert done == []
    assert await log_of(store.conversation(user_id="bob", thread_id=scope["thread_id"])) == []


async def test_a_graph_takes_no_other_user_s_state(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A question and a resume of another user end before the model is asked, and nothing is logged for him."""
    load, shown = load_node(store), list[list[str]]()

    async def call_model(state: ConversationState) -> dict[str, Any]:
        interrupt("May I?")
        shown.append([message.text for message in await load.aview_of(state)])
        return {"messages": [AIMessage("Hello.")]}

    graph = StateGraph(MessagesState)
    graph.add_node("load", load)
    graph.add_node("model", call_model)
    graph.add_node("append", append_node(store))
    for start, end in ((START, "load"), ("load", "model"), ("model", "append")):
        graph.add_edge(start, end)
    app: Any = graph.compile(checkpointer=InMemorySaver())
    await app.ainvoke({"messages": [HumanMessage("My secret.")]}, run_of("ada", scope))
    for sent in (Command(resume=True), {"messages": [HumanMessage("Hi.")]}):
        with pytest.raises(InvalidScopeError, match="thread_id"):
            await app.ainvoke(sent, run_of("bob", scope))
    assert shown == []
    assert await log_of(store.conversation(user_id="bob", thread_id=scope["thread_id"])) == []


async def test_an_input_does_not_make_a_state_another_user_s(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A client that writes all of the input cannot name itself the owner of a checkpoint."""
    graph = StateGraph(ConversationState)
    graph.add_node("load", load_node(store))
    graph.add_edge(START, "load")
    app: Any = graph.compile(checkpointer=InMemorySaver())
    await app.ainvoke({"messages": [HumanMessage("My secret.")]}, run_of("ada", scope))
    bob = owner_of(store.conversation(user_id="bob", thread_id=scope["thread_id"]).scope)
    with pytest.raises(InvalidScopeError, match="thread_id"):
        await app.ainvoke({"messages": [HumanMessage("Hi.")], OWNER: bob}, run_of("bob", scope))


async def test_an_append_behind_an_interrupt_takes_no_other_user_s_state(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """If another user resumes a graph behind its model, the messages are not logged in his conversation."""

    async def call_model(_: ConversationState) -> dict[str, Any]:
        return {"messages": [AIMessage("Hello.")]}

    graph = StateGraph(MessagesState)
    graph.add_node("load", load_node(store))
    graph.add_node("model", call_model)
    graph.add_node("append", append_node(store))
    for start, end in ((START, "load"), ("load", "model"), ("model", "append")):
        graph.add_edge(start, end)
    app: Any = graph.compile(checkpointer=InMemorySaver(), interrupt_before=["append"])
    await app.ainvoke({"messages": [HumanMessage("My secret.")]}, run_of("ada", scope))
    with pytest.raises(InvalidScopeError, match="thread_id"):
        await app.ainvoke(None, run_of("bob", scope))
    assert await log_of(store.conversation(user_id="bob", thread_id=scope["thread_id"])) == []
    await app.ainvoke(None, run_of("ada", scope))
    chat = store.conversation(user_id="ada", thread_id=scope["thread_id"])
    assert [message.text for message in await log_of(chat)] == ["My secret.", "Hello."]


async def test_a_checkpoint_does_not_bring_back_what_was_deleted(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The next run says that the thread is to be deleted, too; then the conversation begins anew."""
    saver, user = InMemorySaver(), "ada"
    agent, _, _ = agent_of(store, saver, AIMessage("Hello."), AIMessage("Hello again."))
    await agent.ainvoke({"messages": [HumanMessage("My secret.")]}, run_of(user, scope))
    chat = store.conversation(user_id=user, thread_id=scope["thread_id"])
    await chat.delete()
    with pytest.raises(ConversationDeletedError, match="adelete_thread"):
        await agent.ainvoke({"messages": [HumanMessage("Hi.")]}, run_of(user, scope))
    assert await log_of(chat) == []
    await saver.adelete_thread(scope["thread_id"])
    await agent.ainvoke({"messages": [HumanMessage("Hi.")]}, run_of(user, scope))
    assert [message.text for message in await log_of(chat)] == ["Hi.", "Hello again."]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_first_run_that_was_interrupted_does_not_bring_back_what_was_deleted(
    store: ConversationStore, scope: dict[str, str], waits: bool
) -> None:
    """A call that waits, or a second call of the model that failed: the checkpoint names its conversation by then."""
    replies = [calls("refund", euros=900)] if waits else [calls("refuse"), RuntimeError("no model")]
    agent, _, _ = agent_of(store, InMemorySaver(), *replies, AIMessage("Hello."))
    with nullcontext() if waits else pytest.raises(RuntimeError):
        await agent.ainvoke({"messages": [HumanMessage("My secret.")]}, run_of("ada", scope))
    chat = store.conversation(user_id="ada", thread_id=scope["thread_id"])
    await chat.delete()
    with pytest.raises(ConversationDeletedError, match="adelete_thread"):
        await agent.ainvoke({"messages": [HumanMessage("Hi.")]}, run_of("ada", scope))
    assert await log_of(chat) == []
