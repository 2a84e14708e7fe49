"""A thread that an agent began without convstore is imported before the middleware goes on with it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from scripted_agents import ScriptedModel, kinds, log_of

from convstore import ConversationStore, InvalidInputError
from convstore.ext.langchain import ConversationMiddleware
from convstore.transfer import import_conversations, read_checkpoints

OLD = [("human", "First?"), ("ai", "One."), ("human", "Second?"), ("ai", "Two.")]
NEW = [("human", "Third?"), ("ai", "Three.")]


async def begun(scope: dict[str, str]) -> InMemorySaver:
    """Return a checkpointer with a thread of two turns."""
    saver = InMemorySaver()
    agent = create_agent(
        ScriptedModel(replies=[AIMessage("One."), AIMessage("Two.")]), [], checkpointer=saver
    )
    for question in ("First?", "Second?"):
        await agent.ainvoke({"messages": [HumanMessage(question)]}, {"configurable": scope})
    return saver


async def test_a_thread_without_convstore_is_refused_until_it_is_imported(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Whatever is chosen for clients' messages: nothing is written, and the state is left as it was."""
    saver = await begun(scope)
    chat = store.conversation(**scope)
    options: list[dict[str, Any]] = [{"trust": "human"}, {"strict": True}]
    for option in options:
        model = ScriptedModel(replies=[])
        agent = create_agent(
            model, [], middleware=[ConversationMiddleware(store, **option)], checkpointer=saver
        )
        with pytest.raises(InvalidInputError, match="import it first") as refusal:
            await agent.ainvoke({"messages": [HumanMessage("Third?")]}, {"configurable": scope})
        assert "answers and results of its state (2)" in str(refusal.value)
        assert "trust" not in str(refusal.value)
        assert kinds((await agent.aget_state({"configurable": scope})).values["messages"]) == OLD
    assert kinds(await log_of(chat)) == []
    report = await import_conversations(store, read_checkpoints(saver), scope=scope)
    assert report.imported == 1
    model = ScriptedModel(replies=[AIMessage("Three.")])
    agent = create_agent(
        model, [], middleware=[ConversationMiddleware(store, prompt="")], checkpointer=saver
    )
    await agent.ainvoke({"messages": [HumanMessage("Third?")]}, {"configurable": scope})
    assert kinds(model.shown[0]) == [*OLD, NEW[0]]
    assert kinds((await chat.load_history()).messages) == [*OLD, *NEW]
    report = await import_conversations(store, read_checkpoints(saver), scope=scope)
    assert (report.unchanged, report.left_out) == (1, 0)


@pytest.mark.slow
async def test_a_thread_of_another_kind_is_not_refused(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """With trust="all" the state is appended; messages of `update_state` are no thread that can be imported."""
    saver = await begun(scope)
    model = ScriptedModel(replies=[AIMessage("Three.")] * 2)
    agent = create_agent(
        model, [], middleware=[ConversationMiddleware(store, trust="all")], checkpointer=saver
    )
    await agent.ainvoke({"messages": [HumanMessage("Third?")]}, {"configurable": scope})
    assert kinds(await log_of(store.conversation(**scope))) == [*OLD, *NEW]
    agent = create_agent(
        model, [], middleware=[ConversationMiddleware(store)], checkpointer=InMemorySaver()
    )
    other: Any = {"configurable": {**scope, "thread_id": "other"}}
    await agent.aupdate_state(other, {"messages": [AIMessage("Hello.")]}, as_node="model")
    with pytest.raises(InvalidInputError, match="trust="):
        await agent.ainvoke({"messages": [HumanMessage("Third?")]}, other)
