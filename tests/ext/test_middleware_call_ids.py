"""Calls without an id, and several under one: each gets an id of its own before anything else happens with it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, InvalidToolCall, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel
from scripted_agents import ScriptedModel, elsewhere, kinds, log_of

from convstore import ConversationStore
from convstore.ext.langchain import ConversationMiddleware
from convstore.messages.call_ids import with_own_call_ids
from convstore.messages.tool_calls import calls_of
from convstore.testing.pairing import check_pairing


class Report(BaseModel):
    """A structured answer."""

    title: str


def calling(*ids: str | None, name: str = "search", **arguments: Any) -> AIMessage:
    """A reply that calls a tool under these ids, each time with the same arguments."""
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": id_} for id_ in ids])


def make_agent(
    store: ConversationStore, *replies: Any, trust: Any = None, **options: Any
) -> tuple[Any, ScriptedModel, list[str]]:
    """An agent with a tool that says how often it ran; a new one acts as another worker."""
    ran: list[str] = []

    @tool
    def search(query: str = "") -> str:
        """Search."""
        ran.append(query)
        return f"found {query} {len(ran)}"

    model = ScriptedModel(replies=list(replies))
    agent = create_agent(
        model, [search], middleware=[ConversationMiddleware(store, trust=trust)], **options
    )
    return agent, model, ran


async def ask(agent: Any, scope: dict[str, str]) -> Any:
    """A question under an id."""
    return await agent.ainvoke(
        {"messages": [HumanMessage("How?", id="q1")]}, {"configurable": scope}
    )


@pytest.mark.costly
@pytest.mark.parametrize(
    "ids", [("",), (None,), ("", ""), ("same", "same", "same"), ("", "same", "same", "")]
)
async def test_each_call_has_its_result(
    store: ConversationStore, scope: dict[str, str], ids: Any
) -> None:
    """Empty and repeated ids: as many results as calls, in the state, before the model and in the log."""
    agent, model, ran = make_agent(store, calling(*ids), AIMessage("So."))
    result = await ask(agent, scope)
    log = await log_of(store.conversation(**scope))
    assert {message.id: message for message in log} == {
        message.id: message for message in result["messages"]
    }
    named = [call.id for call in calls_of(log[1])]
    assert len({*named, ""}) == len(ids) + 1
    assert check_pairing(result["messages"]) == []
    found = {("tool", f"found  {number}") for number in range(1, len(ids) + 1)}
    assert set(kinds(model.shown[-1])) == {("human", "How?"), ("ai", ""), *found}
    assert len(ran) == len(ids)


@pytest.mark.slow
async def test_such_a_turn_goes_on_where_it_broke_off(
    store: ConversationStore, database: Any, scope: dict[str, str]
) -> None:
    """The results that are logged are found again, and no tool runs twice."""
    with pytest.raises(RuntimeError):
        await ask(make_agent(store, calling("", ""), RuntimeError("down"))[0], scope)
    agent, model, ran = make_agent(elsewhere(store, database), AIMessage("So."))
    await ask(agent, scope)
    assert ran == []
    assert sorted(text for kind, text in kinds(model.shown[-1]) if kind == "tool") == [
        "found  1",
        "found  2",
    ]


async def test_a_structured_answer_without_an_id_is_given_again(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The message that LangChain puts after it has the call's new id."""
    options = {"response_format": ToolStrategy(Report)}
    first = await ask(
        make_agent(store, calling("", name="Report", title="Bees"), **options)[0], scope
    )
    again = await ask(make_agent(store, **options)[0], scope)
    assert first["structured_response"] == again["structured_response"] == Report(title="Bees")
    assert first["messages"] == again["messages"] == await log_of(store.conversation(**scope))
    assert check_pairing(first["messages"]) == []


async def test_a_call_without_an_id_that_can_not_be_read_is_answered(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """LangChain's result for it is logged and shown under the call's new id."""
    unread = InvalidToolCall(name="search", args="{", id="", error=None, type="invalid_tool_call")
    reply = calling("").model_copy(update={"invalid_tool_calls": [unread]})
    agent, model, _ = make_agent(store, reply, AIMessage("So."))
    await ask(agent, scope)
    log = await log_of(store.conversation(**scope))
    assert {result.tool_call_id for result in log if isinstance(result, ToolMessage)} == {
        call.id for call in calls_of(log[1])
    }
    assert "could not be executed" in repr(model.shown[-1])


async def test_a_reply_of_malformed_calls_only_is_shown_as_langchain_shows_it(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The next turn says that the arguments were malformed, in the same words and place."""
    malformed = InvalidToolCall(
        name="search", args="{", id="c1", error=None, type="invalid_tool_call"
    )
    reply = AIMessage("", id="a1", invalid_tool_calls=[malformed])
    agent, model, _ = make_agent(store, reply, AIMessage("So."))
    plain = ScriptedModel(replies=[AIMessage("So.")])
    config: Any = {"configurable": scope}
    for question in ("Find bees.", "Well?"):
        await agent.ainvoke({"messages": [HumanMessage(question)]}, config)
    await create_agent(plain, []).ainvoke(
        {"messages": [HumanMessage("Find bees."), reply, HumanMessage("Well?")]}
    )
    assert kinds(model.shown[-1])[-4:] == kinds(plain.shown[-1])
    assert "malformed" in plain.shown[-1][2].text


@pytest.mark.costly
@pytest.mark.parametrize("call_id", ["", None])
async def test_a_history_may_have_a_malformed_call_without_an_id(
    store: ConversationStore, scope: dict[str, str], call_id: str | None
) -> None:
    """LangChain makes a result without a call id for "". It is not logged, and a history that repeats it is taken."""
    malformed = InvalidToolCall(
        name="search", args="{", id=call_id, error=None, type="invalid_tool_call"
    )
    agent, _, _ = make_agent(store, AIMessage("So."), AIMessage("Well."), trust="all")
    history = [HumanMessage("Find bees."), AIMessage("", invalid_tool_calls=[malformed])]
    config: Any = {"configurable": scope}
    found = (await agent.ainvoke({"messages": history}, config))["messages"]
    await agent.ainvoke({"messages": [*found, HumanMessage("Well?")]}, config)
    log = await log_of(store.conversation(**scope))
    assert [message.type for message in log] == ["human", "ai", "ai", "human", "ai"]


def test_ids_that_tell_calls_apart_stay() -> None:
    """The same objects come back, and a result after another AI message is not touched."""
    messages = [
        calling("a", "b"),
        ToolMessage("1", tool_call_id="b"),
        AIMessage("So."),
        ToolMessage("2", tool_call_id=""),
    ]
    assert all(
        message is other
        for message, other in zip(with_own_call_ids(messages), messages, strict=True)
    )
