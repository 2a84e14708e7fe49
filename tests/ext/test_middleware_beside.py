"""Other middleware beside the store's: what it changes is what the log has, and it does no harm."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.middleware.types import hook_config
from langchain_core.messages import AIMessage, HumanMessage, InvalidToolCall, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from scripted_agents import ScriptedModel, calls, kinds, log_of

from convstore import ConversationStore
from convstore.exceptions import ContentConflictError
from convstore.ext.langchain import ConversationMiddleware


@tool
def search(query: str = "") -> str:
    """Search."""
    return f"found {query} eve@example.org " + "and more " * 40


def make_agent(
    store: ConversationStore, replies: list[Any], *beside: Any, **options: Any
) -> tuple[Any, ScriptedModel]:
    """An agent with the store first and other middleware after it."""
    model = ScriptedModel(replies=replies)
    saver = options.pop("checkpointer", None)
    tools = options.pop("tools", [search])
    middleware = [ConversationMiddleware(store, **options), *beside]
    return create_agent(model, tools, middleware=middleware, checkpointer=saver), model


async def ask(agent: Any, scope: dict[str, str], text: Any = "How?", id_: str | None = None) -> Any:
    """A question."""
    return await agent.ainvoke({"messages": [HumanMessage(text, id=id_)]}, {"configurable": scope})


@pytest.mark.costly
@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no checkpointer", "checkpointer"])
async def test_the_log_holds_redacted_text_only(
    store: ConversationStore, scope: dict[str, str], saver: Any
) -> None:
    """Text that PIIMiddleware redacts is neither in the log nor shown to the model."""
    pii = PIIMiddleware(
        "email", apply_to_input=True, apply_to_output=True, apply_to_tool_results=True
    )
    replies = [
        calls("search"),
        AIMessage("Write to eve@example.org."),
        AIMessage("Again: eve@example.org."),
    ]
    agent, model = make_agent(store, replies, pii, tool_results="after_hooks", checkpointer=saver)
    await ask(agent, scope, "I am ada@example.org", "q1")
    again = await ask(agent, scope, "I am ada@example.org", "q1")
    result = await ask(agent, scope, "And bob@example.org?")
    log = await log_of(store.conversation(**scope))
    assert "@example.org" not in repr([log, model.shown, result, again["messages"][1:]])
    assert [message.text.count("[REDACTED_EMAIL]") for message in log] == [1, 0, 1, 1, 1, 1]
    assert len(model.shown) == 3


async def test_a_result_that_is_changed_after_it_was_logged_is_an_error(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A result that is changed after it was logged raises ContentConflictError, with a note on the setting to use."""
    pii = PIIMiddleware("email", apply_to_tool_results=True)
    agent, _ = make_agent(store, [calls("search"), AIMessage("Never.")], pii)
    with pytest.raises(ContentConflictError) as raised:
        await ask(agent, scope)
    assert 'tool_results="after_hooks"' in raised.value.__notes__[0]


async def test_a_position_after_other_middleware_is_an_error_where_it_matters(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """An answer that is redacted after it was logged ends the run, and the error says where to place the store."""
    pii = PIIMiddleware("email", apply_to_output=True)
    model = ScriptedModel(replies=[AIMessage("Write to eve@example.org.")])
    agent = create_agent(model, middleware=[pii, ConversationMiddleware(store)])
    with pytest.raises(ContentConflictError) as raised:
        await ask(agent, scope)
    assert "Place ConversationMiddleware first" in raised.value.__notes__[0]


def review(*names: str, mode: Any = "batched") -> HumanInTheLoopMiddleware[Any, Any, Any]:
    """Asks a human before these tools run."""
    return HumanInTheLoopMiddleware(interrupt_on=dict.fromkeys(names, True), interrupt_mode=mode)


async def test_a_question_during_a_waiting_call_continues_without_it(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The user asks something else instead of deciding: the call is logged, unanswered, and the view stays valid."""
    saver = InMemorySaver()
    agent, model = make_agent(
        store,
        [calls("search", query="a"), AIMessage("Fine.")],
        review("search"),
        checkpointer=saver,
    )
    await ask(agent, scope)
    result = await ask(agent, scope, "Never mind.")
    assert result["messages"][-1].text == "Fine."
    assert [kind for kind, _ in kinds(model.shown[-1])] == ["human", "ai", "tool", "human"]
    assert kinds(await log_of(store.conversation(**scope))) == [
        ("human", "How?"),
        ("ai", ""),
        ("human", "Never mind."),
        ("ai", "Fine."),
    ]


@pytest.mark.slow
async def test_a_summary_of_langchain_is_shown_and_not_logged(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """SummarizationMiddleware folds the state of a long turn; the log keeps every message and no summary."""
    writer = ScriptedModel(
        replies=[AIMessage(f"LangChain's summary {number}.") for number in range(9)]
    )
    summing = SummarizationMiddleware(writer, trigger=("messages", 6), keep=("messages", 3))
    steps = [calls("search", query=str(step)) for step in range(6)]
    agent, model = make_agent(
        store, [*steps, AIMessage("One."), AIMessage("Two.")], summing, checkpointer=InMemorySaver()
    )
    await ask(agent, scope, "First?", "q1")
    result = await ask(agent, scope, "Second?", "q2")
    log = await log_of(store.conversation(**scope))
    assert [message.type for message in log] == ["human", *["ai", "tool"] * 6, "ai", "human", "ai"]
    assert "LangChain's summary" in repr(model.shown[6])
    assert "LangChain's summary" not in repr([log, model.shown[7]])
    assert kinds(result["messages"]) == [("human", "Second?"), ("ai", "Two.")]


async def test_results_that_are_cleared_for_the_model_stay_in_the_log(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """ContextEditingMiddleware edits what the model is shown, behind the store; state and log keep the results."""
    edit = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=100, keep=1)])
    steps = [calls("search", query=str(step)) for step in range(4)]
    agent, model = make_agent(store, [*steps, AIMessage("Done.")], edit)
    result = await ask(agent, scope)
    assert "[cleared]" in repr(model.shown[-1])
    assert "[cleared]" not in repr(result)
    assert await log_of(store.conversation(**scope)) == result["messages"]


async def test_retries_and_fallbacks_are_logged_as_they_ended(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A tool that works at the second try and a model that takes over: one result, one answer."""
    tries: list[int] = []

    @tool
    def shaky() -> str:
        """Work at the second try."""
        tries.append(1)
        if len(tries) < 2:
            raise RuntimeError("not yet")
        return "worked"

    fallback = ModelFallbackMiddleware(ScriptedModel(replies=[AIMessage("The other one.")]))
    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0)
    agent, _ = make_agent(
        store, [calls("shaky"), RuntimeError("down")], fallback, retry, tools=[shaky]
    )
    result = await ask(agent, scope)
    log = await log_of(store.conversation(**scope))
    assert log == result["messages"]
    assert kinds(log) == [
        ("human", "How?"),
        ("ai", ""),
        ("tool", "worked"),
        ("ai", "The other one."),
    ]


async def test_limits_end_a_run_and_what_they_say_is_logged(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The message in place of an answer, and results for calls that were not let through, are in the log."""
    model_limit = ModelCallLimitMiddleware(run_limit=2, exit_behavior="end")
    tool_limit = ToolCallLimitMiddleware(run_limit=1, exit_behavior="continue")
    agent, _ = make_agent(
        store, [calls("search", "search"), calls("search")], model_limit, tool_limit
    )
    result = await ask(agent, scope)
    log = await log_of(store.conversation(**scope))
    assert {message.id: message for message in log} == {
        message.id: message for message in result["messages"]
    }
    assert log[-1].type == "ai"
    assert "limit" in log[-1].text
    await ask(make_agent(store, [AIMessage("Fine.")])[0], scope, "Next?")


async def test_todos_reach_state_and_log(store: ConversationStore, scope: dict[str, str]) -> None:
    """The command of a tool updates the to-do list in the state, and its result is in the log."""
    todo = {"content": "look", "status": "pending"}
    agent, _ = make_agent(
        store, [calls("write_todos", todos=[todo]), AIMessage("Done.")], TodoListMiddleware()
    )
    result = await ask(agent, scope)
    assert result["todos"] == [todo]
    assert await log_of(store.conversation(**scope)) == result["messages"]


async def test_messages_of_hooks_are_logged_in_their_place(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Messages that other middleware adds before the model, after it and at the end are logged in the state's order."""

    class Adds(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 - LangChain passes it
            return {"messages": [AIMessage("One moment.")]} if len(state["messages"]) == 1 else None

        @hook_config(can_jump_to=["model"])
        def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 - LangChain passes it
            if len(state["messages"]) == 3:
                return {"messages": [HumanMessage("Are you sure?")], "jump_to": "model"}
            return None

        def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 - LangChain passes it
            return {"messages": [AIMessage("Anything else?")]}

    agent, _ = make_agent(store, [AIMessage("Yes."), AIMessage("Quite.")], Adds())
    result = await ask(agent, scope)
    log = await log_of(store.conversation(**scope))
    assert log == result["messages"]
    assert [message.text for message in log] == [
        *("How?", "One moment.", "Yes.", "Are you sure?", "Quite.", "Anything else?")
    ]


async def test_an_answer_that_another_middleware_gives_has_an_id(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Without a model there is none; the log has the id that the state has."""

    class Cached(AgentMiddleware[Any, Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> AIMessage:  # noqa: ARG002 - LangChain passes it
            return AIMessage("From the cache.")

    agent, model = make_agent(store, [], Cached())
    result = await ask(agent, scope)
    assert await log_of(store.conversation(**scope)) == result["messages"]
    assert kinds(result["messages"]) == [("human", "How?"), ("ai", "From the cache.")]
    assert model.shown == []


async def test_calls_that_can_not_be_read_are_answered_in_the_log(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """LangChain adds a result for arguments that are no JSON; it is logged, and the model is shown it."""
    broken = AIMessage(
        "",
        invalid_tool_calls=[
            InvalidToolCall(name="search", args="{", id="c", error=None, type="invalid_tool_call")
        ],
    )
    again = AIMessage(
        "",
        tool_calls=[{"name": "search", "args": {}, "id": "d"}],
        invalid_tool_calls=broken.invalid_tool_calls,
    )
    agent, model = make_agent(store, [again, AIMessage("Done.")])
    result = await ask(agent, scope)
    log = await log_of(store.conversation(**scope))
    assert {message.id: message for message in log} == {
        message.id: message for message in result["messages"]
    }
    assert sum(isinstance(message, ToolMessage) for message in log) == 2
    assert "could not be executed" in repr(model.shown[-1])


async def test_such_a_result_is_logged_once_whoever_asks_again(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """LangChain makes it anew at each step; its id is the same each time."""
    unread = InvalidToolCall(name="search", args="{", id="c", error=None, type="invalid_tool_call")
    reply = AIMessage(
        "", tool_calls=[{"name": "search", "args": {}, "id": "d"}], invalid_tool_calls=[unread]
    )

    def breaks(_: Any) -> AIMessage:
        raise RuntimeError("down")

    with pytest.raises(RuntimeError, match="down"):
        await ask(make_agent(store, [reply, breaks])[0], scope, id_="q1")
    await ask(make_agent(store, [AIMessage("Done.")])[0], scope, id_="q1")
    log = await log_of(store.conversation(**scope))
    assert [message.type for message in log].count("tool") == 2
    assert [message.type for message in log].count("ai") == 2


async def test_a_blocked_question_is_nowhere(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A hook that raises before the model is asked leaves nothing in the log."""
    agent, _ = make_agent(store, [], PIIMiddleware("email", strategy="block"))
    with pytest.raises(Exception, match="email"):
        await ask(agent, scope, "I am ada@example.org")
    assert await log_of(store.conversation(**scope)) == []
