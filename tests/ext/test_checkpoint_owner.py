"""A checkpointer finds the state of a thread by its id alone: the middleware takes no other conversation's state."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from scripted_agents import ScriptedModel, calls, log_of

from convstore import ConversationDeletedError, ConversationStore
from convstore.exceptions import InvalidScopeError
from convstore.ext.langchain import ConversationMiddleware


def agent_of(store: ConversationStore, saver: Any, *replies: Any) -> tuple[Any, ScriptedModel, list[int]]:
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


async def test_another_user_with_the_same_thread_id_is_refused(store: ConversationStore, scope: dict[str, str]) -> None:
    """The run ends before the model is asked, and nothing of the other user's state is logged or shown."""
    agent, model, _ = agent_of(store, InMemorySaver(), AIMessage("Hello."))
    await agent.ainvoke({"messages": [HumanMessage("My secret.")]}, run_of("ada", scope))
    with pytest.raises(InvalidScopeError, match="thread_id"):
        await agent.ainvoke({"messages": [HumanMessage("Hi.")]}, run_of("bob", scope))
    assert len(model.shown) == 1
    assert await log_of(store.conversation(user_id="bob", thread_id=scope["thread_id"])) == []


async def test_nobody_decides_about_a_call_of_another_user(store: ConversationStore, scope: dict[str, str]) -> None:
    """A run that waits is resumed in its own scope only; the tool runs once, for the one who asked."""
    agent, _, done = agent_of(store, InMemorySaver(), calls("refund", euros=900), AIMessage("Done."))
    assert "__interrupt__" in await agent.ainvoke({"messages": [HumanMessage("Pay.")]}, run_of("ada", scope))
    approved: Any = Command(resume={"decisions": [{"type": "approve"}]})
    with pytest.raises(InvalidScopeError, match="thread_id"):
        await agent.ainvoke(approved, run_of("bob", scope))
    assert done == []
    assert await log_of(store.conversation(user_id="bob", thread_id=scope["thread_id"])) == []


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
