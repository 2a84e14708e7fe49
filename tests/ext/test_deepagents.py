"""Agents of deepagents: its files take large messages out of the state behind the store, and the log has them whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.middleware import FilesystemMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from scripted_agents import ScriptedModel, calls, log_of

from convstore import ConversationStore
from convstore.exceptions import ContentConflictError
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langchain.results import is_evicted

LARGE = "\n".join(f"line {number}: the tide comes in twice a day" for number in range(4_000))


@tool
def search(query: str = "") -> str:
    """Search."""
    return LARGE


@tool
def search_blocks(query: str = "") -> list[dict[str, str]]:
    """Search."""
    return [{"type": "text", "text": LARGE}]


def make_agent(
    store: ConversationStore, replies: list[Any], **options: Any
) -> tuple[Any, ScriptedModel]:
    """A deep agent with nothing set but the store."""
    model = ScriptedModel(replies=replies)
    middleware = [*options.pop("beside", ()), ConversationMiddleware(store)]
    return create_deep_agent(
        model, [search, search_blocks], middleware=middleware, **options
    ), model


async def ask(agent: Any, scope: dict[str, str], text: str, id_: str | None = None) -> Any:
    """A question."""
    return await agent.ainvoke({"messages": [HumanMessage(text, id=id_)]}, {"configurable": scope})


@pytest.mark.costly
@pytest.mark.parametrize("name", ["search", "search_blocks"])
@pytest.mark.parametrize("saver", [None, InMemorySaver], ids=["no checkpointer", "checkpointer"])
async def test_a_large_result_is_whole_in_the_log(
    store: ConversationStore, scope: dict[str, str], name: str, saver: Callable[[], Any] | None
) -> None:
    """The model is shown a preview and the file; the next turn a stub, which leads to the result."""
    replies = [calls(name), AIMessage("Twice a day."), AIMessage("You are welcome.")]
    agent, model = make_agent(store, replies, checkpointer=saver() if saver else None)
    answer = await ask(agent, scope, "How often?", "q1")
    assert answer["messages"][-1].text == "Twice a day."
    chat = store.conversation(**scope)
    log = await log_of(chat)
    assert [message.type for message in log] == ["human", "ai", "tool", "ai"]
    assert log[2].text == LARGE
    [result] = [message for message in model.shown[1] if isinstance(message, ToolMessage)]
    assert result.text.startswith("Tool result too large")
    assert (await ask(agent, scope, "Thank you!"))["messages"][-1].text == "You are welcome."
    [stub] = [message for message in model.shown[2] if isinstance(message, ToolMessage)]
    assert str(log[2].id) in stub.text
    assert (await ask(agent, scope, "How often?", "q1"))["messages"][-1].text == "Twice a day."
    assert len(await log_of(chat)) == 6


async def test_a_large_question_is_whole_in_the_log(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Though the middleware is shown its preview only."""
    large = LARGE * 2
    agent, model = make_agent(store, [calls("search"), AIMessage("Tides."), AIMessage("Bye.")])
    assert (await ask(agent, scope, large, "q1"))["messages"][-1].text == "Tides."
    assert len(model.shown[0][-1].text) < 10_000
    log = await log_of(store.conversation(**scope))
    assert [message.type for message in log] == ["human", "ai", "tool", "ai"]
    assert log[0].text == large
    assert (await ask(agent, scope, "Bye"))["messages"][-1].text == "Bye."


@pytest.mark.slow
def test_a_sync_agent_does_the_same(
    server_uri: str, database_name: str, scope: dict[str, str]
) -> None:
    """On the store's own client."""

    async def main() -> None:
        uri = server_uri.replace("/?", f"/{database_name}?")
        async with await ConversationStore.connect(uri) as store:
            await store.setup()
            agent, _ = make_agent(store, [calls("search"), AIMessage("Twice.")])
            state = {"messages": [HumanMessage("How often?")]}
            answer = await asyncio.to_thread(agent.invoke, state, {"configurable": scope})
            assert answer["messages"][-1].text == "Twice."
            assert (await log_of(store.conversation(**scope)))[2].text == LARGE

    asyncio.run(main())


async def test_without_its_files_the_model_is_shown_all(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The setting that the error names."""
    files = FilesystemMiddleware(
        tool_token_limit_before_evict=None, human_message_token_limit_before_evict=None
    )
    agent, model = make_agent(store, [calls("search"), AIMessage("Twice.")], beside=[files])
    await ask(agent, scope, "How often?")
    assert model.shown[1][-1].text == LARGE
    assert (await log_of(store.conversation(**scope)))[2].text == LARGE


async def test_another_change_of_a_result_is_an_error_that_names_the_setting(
    store: ConversationStore, scope: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should deepagents say it in other words one day."""
    monkeypatch.setattr("convstore.ext.langchain.results._RESULT", "Moved")
    agent, _ = make_agent(store, [calls("search"), AIMessage("Twice.")])
    with pytest.raises(ContentConflictError) as caught:
        await ask(agent, scope, "How often?")
    assert "tool_token_limit_before_evict=None" in "".join(caught.value.__notes__)


def test_only_what_was_moved_may_differ() -> None:
    """Only evicted content may differ. A message with another id, status, name or artifact is another message."""
    whole = ToolMessage(LARGE, tool_call_id="c1", id="r1", name="search", artifact=[1])
    moved = whole.model_copy(
        update={"content": "Tool result too large, the result of this tool call c1 was saved"}
    )
    assert is_evicted(moved, whole)
    for update in (
        {"id": "r2"},
        {"status": "error"},
        {"name": "x"},
        {"artifact": None},
        {"content": "[REDACTED]"},
    ):
        assert not is_evicted(moved.model_copy(update=update), whole)
    asked = HumanMessage(LARGE, id="q1")
    tagged = asked.model_copy(update={"additional_kwargs": {"lc_evicted_to": "/x.md"}})
    assert is_evicted(tagged, asked)
    assert not is_evicted(tagged.model_copy(update={"content": "x"}), asked)
    assert not is_evicted(asked.model_copy(update={"content": "x"}), asked)


@pytest.mark.slow
async def test_a_subagent_works_below_its_task(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Each task of its own; the caller's conversation has the task and its answer alone."""
    inner = ScriptedModel(replies=[AIMessage("Twice a day."), AIMessage("Twice a day.")])
    helper = {
        "name": "tides",
        "description": "Knows tides.",
        "system_prompt": "Be brief.",
        "model": inner,
    }
    helper |= {"tools": [], "middleware": [ConversationMiddleware(store)]}
    task = {"description": "How often?", "subagent_type": "tides"}
    both = AIMessage(
        "", tool_calls=[{"name": "task", "args": task, "id": f"call_{number}"} for number in (1, 2)]
    )
    agent, _ = make_agent(store, [both, AIMessage("Done.")], subagents=[helper])
    assert (await ask(agent, scope, "Tides?"))["messages"][-1].text == "Done."
    chat = store.conversation(**scope)
    log = await log_of(chat)
    assert [message.type for message in log] == ["human", "ai", "tool", "tool", "ai"]
    for number in (1, 2):
        child = chat.child(str(log[1].id), f"call_{number}")
        assert [message.text for message in await log_of(child)] == ["How often?", "Twice a day."]
