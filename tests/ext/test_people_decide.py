"""Persons decide about an agent's calls: what waits is in the log, and what they said resumes the agent."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from scripted_agents import ScriptedModel, calls, elsewhere, log_of

from convstore import ConversationStore
from convstore.exceptions import InvalidInputError, TurnClosedError
from convstore.ext.langchain import ConversationMiddleware, resume_command, review
from convstore.ext.langgraph import ConversationState, append_node, load_node, view_of
from convstore.integration import row_of
from convstore.testing.fixtures import result_id_of

VERDICTS: dict[str, tuple[dict[str, Any], str]] = {
    "approve": ({}, "900 euros"),
    "edit": ({"args": {"euros": 90}}, "90 euros"),
    "reject": (
        {"message": "Too much."},
        "User rejected the tool call for `refund` with reason: Too much.",
    ),
    "respond": ({"message": "Done by hand."}, "Done by hand."),
}
ANSWERS: dict[str, dict[str, Any]] = {
    "approve": {"type": "approve"},
    "edit": {"type": "edit", "edited_action": {"name": "refund", "args": {"euros": 90}}},
    "reject": {"type": "reject", "message": "Too much."},
    "respond": {"type": "respond", "message": "Done by hand."},
}
"""What LangChain's middleware takes for each."""


@tool
def refund(euros: int) -> str:
    """Refund money."""
    return f"{euros} euros"


@tool
def look(what: str = "") -> str:
    """Look something up."""
    return f"looked up {what}"


def agent_of(
    store: ConversationStore, saver: Any, *replies: Any, mode: Any = "batched", listed: bool = False
) -> Any:
    """An agent whose refunds a person approves, as each worker makes it."""
    review: Any = HumanInTheLoopMiddleware({"refund": True}, interrupt_mode=mode)
    own = ConversationMiddleware(store, review=None if listed else review)
    middleware = [own, review] if listed else [own]
    return create_agent(
        ScriptedModel(replies=list(replies)),
        [refund, look],
        middleware=middleware,
        checkpointer=saver,
    )


ASKED = {"messages": [HumanMessage("Refund me.", id="r1")]}


@pytest.mark.parametrize("saver", [None, False])
async def test_a_review_without_a_checkpointer_is_refused(
    store: ConversationStore, scope: dict[str, str], saver: Any
) -> None:
    """At the first question, before the model is asked: nothing could resume the agent once it waits."""
    agent = agent_of(store, saver, AIMessage("No call."))
    with pytest.raises(InvalidInputError, match="checkpointer="):
        await agent.ainvoke(ASKED, {"configurable": scope})
    assert await log_of(store.conversation(**scope)) == []


@pytest.mark.costly
@pytest.mark.parametrize(
    ("how", "verdict"),
    [*((how, text) for how in ("batched", "per_call") for text in VERDICTS), ("listed", "edit")],
)
async def test_a_decision_of_another_worker_resumes_the_agent(
    store: ConversationStore, database: Any, scope: dict[str, str], verdict: Any, how: str
) -> None:
    """The call waits in the log; each verdict, given twice, comes out in log and state alike, and once."""
    saver, config, chat = InMemorySaver(), {"configurable": scope}, store.conversation(**scope)
    kind: dict[str, Any] = {
        "mode": "batched" if how == "batched" else "per_call",
        "listed": how == "listed",
    }
    asking = calls("refund", "look", euros=900) if how == "batched" else calls("refund", euros=900)
    paused = await agent_of(store, saver, asking, **kind).ainvoke(ASKED, config)
    assert "__interrupt__" in paused
    # the client sends its request again, which asks again, under another interrupt
    if how != "listed":
        assert "__interrupt__" in await agent_of(store, saver, **kind).ainvoke(ASKED, config)
    assert [message.type for message in await log_of(chat)][:2] == ["human", "ai"]
    async for update in chat.watch():
        assert update.turn is not None
        assert update.turn.status == "waiting"
        assert [call.args for call in update.turn.waiting_calls] == [{"euros": 900}]
        break
    assert await resume_command(chat, "r1") is None
    other = elsewhere(store, database)
    told, seen = VERDICTS[verdict]
    for _ in range(2):
        deciding = other.conversation(**scope)
        call = await result_id_of(deciding, "call_0")
        await deciding.decide("r1", call, verdict, **told, by="bob")
    command = await resume_command(other.conversation(**scope), "r1")
    assert command is not None
    given_at_once = [ANSWERS[verdict]]
    assert [*command.resume.values()] == ([given_at_once] if how == "batched" else given_at_once)
    assert ("decisions" in command.resume) is (how == "batched")
    result = await agent_of(other, saver, AIMessage("Done."), **kind).ainvoke(command, config)
    log = await log_of(chat)
    results = slice(2, -1)  # of calls that run at once, in the order in which they end
    log[results] = sorted(log[results], key=lambda item: str(getattr(item, "tool_call_id", "")))
    assert log == result["messages"]
    assert len(log) == 4 + (how == "batched")
    [given] = [message for message in log if getattr(message, "tool_call_id", "") == "call_0"]
    assert given.text.endswith(seen)
    assert getattr(given, "status", "") == ("error" if verdict == "reject" else "success")
    assert ("a human reviewer replaced" in given.text) is (verdict == "edit")
    assert await resume_command(chat, "r1") is None
    assert (turn := await chat.get_turn("r1"))
    assert turn.is_finished


@pytest.mark.slow
@pytest.mark.costly
@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_a_turn_waits_while_its_agent_does(
    store: ConversationStore, database: Any, scope: dict[str, str], mode: str
) -> None:
    """In a turn: it is left waiting, and entered again after two decisions that come in any order."""
    saver, config = InMemorySaver(), {"configurable": scope}
    asking = AIMessage(
        "",
        tool_calls=[{"name": "refund", "args": {"euros": n}, "id": f"call_{n}"} for n in (900, 7)],
    )
    chat = store.conversation(**scope)
    async with await chat.turn("r1", human="Refund me.") as turn:
        await agent_of(store, saver, asking, mode=mode).ainvoke(ASKED, config)
        assert turn.is_waiting
    other = elsewhere(store, database).conversation(**scope)
    await other.decide("r1", await result_id_of(other, "call_7"), "reject")
    assert await resume_command(other, "r1") is None
    async with await other.turn("r1"):  # the client sends its request again
        assert "__interrupt__" in await agent_of(other.store, saver, mode=mode).ainvoke(
            ASKED, config
        )
    await other.decide("r1", await result_id_of(other, "call_900"), "approve")
    async with await other.turn("r1") as turn:
        command = await resume_command(other, "r1")
        await agent_of(other.store, saver, AIMessage("Done."), mode=mode).ainvoke(command, config)
        assert turn.answer is not None
    log = await log_of(chat)
    assert [getattr(message, "tool_call_id", message.text) for message in log[2:]] == [
        "call_7",
        "call_900",
        "Done.",
    ]
    assert log[2].text == (
        "User rejected the tool call for `refund` with id call_7. The tool was not executed. Do not retry this tool "
        "call unless the user explicitly requests it."
    )


@pytest.mark.slow
async def test_another_answer_may_wait(store: ConversationStore, scope: dict[str, str]) -> None:
    """Another answer that waits for a decision is resumed in its own session. Until then readers see the old answer."""
    saver, config, chat = InMemorySaver(), {"configurable": scope}, store.conversation(**scope)
    await chat.append([HumanMessage("Refund me.", id="r1"), AIMessage("No.")])
    async with await chat.turn("r1", regenerate="click") as turn:
        await agent_of(store, saver, calls("refund", euros=900)).ainvoke(ASKED, config)
        assert turn.is_waiting
    await chat.decide("r1", await result_id_of(chat, "call_0"), "approve")
    assert [message.message.text for message in await chat.list_messages()] == ["Refund me.", "No."]
    async with await chat.turn("r1", regenerate="click") as turn:
        command = await resume_command(chat, "r1")
        await agent_of(store, saver, AIMessage("Done.")).ainvoke(command, config)
    assert [message.message.text for message in await chat.list_messages()][2:] == [
        "900 euros",
        "Done.",
    ]


@pytest.mark.costly
@pytest.mark.parametrize("later", ["c1", "c2"])
async def test_a_call_of_the_turn_is_not_decided_while_another_answer_waits(
    store: ConversationStore, scope: dict[str, str], later: str
) -> None:
    """The checkpoint is that of the other answer, so the decision could resume nothing; its own call is decided."""
    saver, config, chat = InMemorySaver(), {"configurable": scope}, store.conversation(**scope)
    asked: list[dict[str, Any]] = [{"human": "Refund me."}, {"regenerate": "click"}]
    for call, how in zip(("c1", later), asked, strict=True):
        async with await chat.turn("r1", **how):
            await agent_of(store, saver, calls("refund", euros=900, ids=[call])).ainvoke(
                ASKED, config
            )
    for _ in range(2):  # the other answer waits, then it is decided and not yet resumed
        await chat.decide("r1", await result_id_of(chat, later), "approve")
        if later != "c1":
            with pytest.raises(InvalidInputError, match="variant 'click'"):
                await chat.decide("r1", await result_id_of(chat, "c1"), "approve")
    async with await chat.turn("r1", regenerate="click") as turn:
        command = await resume_command(chat, "r1")
        await agent_of(store, saver, AIMessage("Done.")).ainvoke(command, config)
        assert turn.answer is not None
    assert [message.message.text for message in await chat.list_messages()][2:] == [
        "900 euros",
        "Done.",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("how", ["again", "command"])
@pytest.mark.parametrize("has_id", [True, False])
async def test_an_agent_in_a_tool_pauses_its_caller(
    store: ConversationStore, scope: dict[str, str], is_lost: bool, how: str, has_id: bool
) -> None:
    """A call that waits in an inner agent's conversation pauses the caller, and the decision there resumes it.

    The question of the caller is sent again, or the command of the inner turn; also if the checkpoint is lost, and if
    the tool has no id for its question.
    """
    inner = agent_of(store, None, calls("refund", euros=5), AIMessage("Paid."))

    @tool
    async def helper(call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Help."""
        said = await inner.ainvoke(
            {"messages": [HumanMessage("Pay.", id=call_id if has_id else None)]}
        )
        return str(said["messages"][-1].text)

    own = ConversationMiddleware(store)
    model = ScriptedModel(replies=[calls("helper"), AIMessage("Done.")])
    outers: Any = [
        create_agent(model, [helper], middleware=[own], checkpointer=InMemorySaver())
        for _ in range(2)
    ]
    chat, config = store.conversation(**scope), {"configurable": scope}
    await outers[0].ainvoke(ASKED, config)
    [info] = await chat.children()
    child = store.conversation(**info.scope)
    [turn] = [turn async for turn in child.turns()]
    assert (await row_of(chat)).end.line() == "waits: refund"
    await child.decide(turn.turn_id, turn.waiting_calls[0], "approve")
    assert await resume_command(chat, "r1") is None
    given = ASKED if how == "again" else await resume_command(child, turn.turn_id)
    await outers[is_lost].ainvoke(given, config)
    assert [message.text for message in await log_of(chat)][2:] == ["Paid.", "Done."]
    assert [message.text for message in await log_of(child)][2:] == ["5 euros", "Paid."]


async def test_an_agent_that_is_started_again_asks_once_more(
    store: ConversationStore, database: Any, scope: dict[str, str]
) -> None:
    """A worker that resumes it without a decision records nothing twice; another question closes the turn."""
    saver, config, chat = InMemorySaver(), {"configurable": scope}, store.conversation(**scope)
    await agent_of(store, saver, calls("refund", euros=900)).ainvoke(ASKED, config)
    query = {"conversation": (await chat.info()).conversation_id}
    written = await database["log"].count_documents(query)
    assert "__interrupt__" in await agent_of(store, saver).ainvoke(None, config)
    assert await database["log"].count_documents(query) == written
    await chat.append(HumanMessage("Never mind.", id="r2"))
    with pytest.raises(TurnClosedError):
        await chat.decide("r1", await result_id_of(chat, "call_0"), "approve")


@pytest.mark.parametrize("door", ["agent", "graph"])
async def test_another_question_of_a_run_closes_calls_that_wait(
    store: ConversationStore, scope: dict[str, str], door: str
) -> None:
    """As one that enters the turn does: the log and the model read that the call was not decided."""
    saver, config, chat = InMemorySaver(), {"configurable": scope}, store.conversation(**scope)
    await agent_of(store, saver, calls("refund", euros=900)).ainvoke(ASKED, config)
    shown = list[str]()

    async def model(state: ConversationState) -> Any:
        shown.extend(message.text for message in view_of(state))
        return {"messages": [AIMessage("Fine.")]}

    agent = agent_of(store, saver, AIMessage("Fine."))
    if door == "graph":
        graph = StateGraph(MessagesState).add_edge(START, "load")
        nodes = {"load": load_node(store), "model": model, "append": append_node(store)}
        agent = graph.add_sequence([*nodes.items()]).compile()
    await agent.ainvoke({"messages": [HumanMessage("Never mind.", id="r2")]}, config)
    not_decided = "Not decided: the user went on with another message."
    log = [message.text for message in await log_of(chat)]
    assert log == ["Refund me.", "", not_decided, "Never mind.", "Fine."]
    if door == "graph":
        assert shown == log[:-1]
    with pytest.raises(TurnClosedError):
        await chat.decide("r1", await result_id_of(chat, "call_0"), "approve")


async def test_a_verdict_that_the_agent_does_not_take_is_refused(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A verdict that the agent does not allow is refused, because the agent could not be resumed with it."""
    review: Any = HumanInTheLoopMiddleware({"refund": {"allowed_decisions": ["approve", "reject"]}})
    model, chat = ScriptedModel(replies=[calls("refund", euros=900)]), store.conversation(**scope)
    own = ConversationMiddleware(store, review=review)
    agent: Any = create_agent(model, [refund], middleware=[own], checkpointer=InMemorySaver())
    await agent.ainvoke(ASKED, {"configurable": scope})
    with pytest.raises(InvalidInputError, match="takes approve or reject"):
        await chat.decide("r1", await result_id_of(chat, "call_0"), "edit", args={"euros": 1})


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_sync_agent_pauses_too(scope: dict[str, str], is_lost: bool) -> None:
    """A sync agent pauses too, and is resumed with the recorded decision."""
    async with await ConversationStore.connect("memory://", scope_keys=tuple(scope)) as store:
        await store.setup()
        saver, config, chat = InMemorySaver(), {"configurable": scope}, store.conversation(**scope)
        asking = agent_of(store, saver, calls("refund", euros=900))
        await asyncio.to_thread(asking.invoke, ASKED, config)
        await chat.decide("r1", await result_id_of(chat, "call_0"), "approve")
        command = await resume_command(chat, "r1")
        if is_lost:
            saver = InMemorySaver()
        await asyncio.to_thread(agent_of(store, saver, AIMessage("Done.")).invoke, command, config)
        assert [message.text for message in await log_of(chat)][2:] == ["900 euros", "Done."]


async def test_a_review_that_the_agent_has_warns_that_the_log_was_late(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The person was asked about a call that only the checkpoint had."""
    saver, config = InMemorySaver(), {"configurable": scope}
    await agent_of(store, saver, calls("refund", euros=900), listed=True).ainvoke(ASKED, config)
    resumed = agent_of(store, saver, AIMessage("Done."), listed=True)
    with pytest.warns(RuntimeWarning, match="review="):
        await resumed.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), config)
    assert len(await log_of(store.conversation(**scope))) == 4


LOST = [
    *(("batched", verdict, "lost") for verdict in VERDICTS),
    ("per_call", "approve", "lost"),
    ("per_call", "edit", "lost"),
    ("per_call", "reject", "lost"),
    ("batched", "approve", "again"),
    ("batched", "edit", "again"),
    ("per_call", "approve", "again"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "verdict", "how"), LOST)
async def test_a_decided_call_runs_without_the_checkpoint_of_its_interrupt(
    store: ConversationStore, scope: dict[str, str], mode: str, verdict: Any, how: str
) -> None:
    """The checkpoint is lost, or the question is sent again: the log has the decision, and the person is not asked."""
    config, chat, saver = {"configurable": scope}, store.conversation(**scope), InMemorySaver()
    asking = calls("refund", euros=900)
    await agent_of(store, saver, asking, mode=mode).ainvoke(ASKED, config)
    told, seen = VERDICTS[verdict]
    await chat.decide("r1", await result_id_of(chat, "call_0"), verdict, **told)
    work: Any = await resume_command(chat, "r1") if how == "lost" else ASKED
    left = InMemorySaver() if how == "lost" else saver
    agent = agent_of(store, left, AIMessage("Done."), mode=mode)
    result = await agent.ainvoke(work, config)
    log = await log_of(chat)
    assert [message.type for message in log] == ["human", "ai", "tool", "ai"]
    assert log[2].text.endswith(seen)
    assert result["messages"] == log
    repeated = await agent_of(store, left, mode=mode).ainvoke(ASKED, config)
    assert repeated["messages"] == log
    assert await resume_command(chat, "r1") is None


async def test_a_decided_call_of_a_subgraph_runs_without_its_checkpoint(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The agent is a node of a graph, whose checkpoint is lost: the command begins a thread without messages."""

    def graph_of(*replies: AIMessage) -> Any:
        graph = StateGraph(MessagesState)
        graph.add_node("agent", agent_of(store, None, *replies))
        graph.add_edge(START, "agent")
        return graph.compile(checkpointer=InMemorySaver())

    chat, config = store.conversation(**scope), {"configurable": scope}
    await graph_of(calls("refund", euros=900)).ainvoke(ASKED, config)
    await chat.decide("r1", await result_id_of(chat, "call_0"), "approve")
    result = await graph_of(AIMessage("Done.")).ainvoke(await resume_command(chat, "r1"), config)
    log = await log_of(chat)
    assert [message.text for message in log] == ["Refund me.", "", "900 euros", "Done."]
    assert result["messages"] == log


async def test_an_undecided_call_waits_without_its_checkpoint(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A run without a question asks the person again, and not the model; the decision then resumes it."""
    config, chat, saver = {"configurable": scope}, store.conversation(**scope), InMemorySaver()
    await agent_of(store, InMemorySaver(), calls("refund", euros=900)).ainvoke(ASKED, config)
    given = Command(resume={"other": {"type": "approve"}})
    assert "__interrupt__" in await agent_of(store, saver).ainvoke(given, config)
    await chat.decide("r1", await result_id_of(chat, "call_0"), "approve")
    command = await resume_command(chat, "r1")
    await agent_of(store, saver, AIMessage("Done.")).ainvoke(command, config)
    assert [message.text for message in await log_of(chat)][2:] == ["900 euros", "Done."]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_calls_that_were_decided_before_are_not_asked_about_again(
    store: ConversationStore, scope: dict[str, str], mode: str
) -> None:
    """A turn with two reviewed steps, whose checkpoint is lost at the second: the first is repeated from the log."""
    config, chat = {"configurable": scope}, store.conversation(**scope)
    saver = InMemorySaver()
    first, second = (calls("refund", euros=n, ids=[f"c{n}"]) for n in (1, 2))
    await agent_of(store, saver, first, mode=mode).ainvoke(ASKED, config)
    await chat.decide("r1", await result_id_of(chat, "c1"), "reject", message="No.")
    command = await resume_command(chat, "r1")
    await agent_of(store, saver, second, mode=mode).ainvoke(command, config)
    lost = InMemorySaver()
    assert "__interrupt__" in await agent_of(store, lost, mode=mode).ainvoke(ASKED, config)
    await chat.decide("r1", await result_id_of(chat, "c2"), "approve")
    command = await resume_command(chat, "r1")
    agent = agent_of(store, InMemorySaver(), AIMessage("Done."), mode=mode)
    result = await agent.ainvoke(command, config)
    assert [message.text for message in result["messages"]][-2:] == ["2 euros", "Done."]
    assert result["messages"] == await log_of(chat)


@pytest.mark.slow
async def test_another_answer_is_resumed_without_its_checkpoint(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """In the session of another answer, its decided call runs, and not that of the first answer."""
    config, chat = {"configurable": scope}, store.conversation(**scope)
    await chat.append([HumanMessage("Refund me.", id="r1"), AIMessage("No.")])
    async with await chat.turn("r1", regenerate="click"):
        await agent_of(store, InMemorySaver(), calls("refund", euros=900)).ainvoke(ASKED, config)
    await chat.decide("r1", await result_id_of(chat, "call_0"), "approve")
    async with await chat.turn("r1", regenerate="click") as turn:
        command = await resume_command(chat, "r1")
        await agent_of(store, InMemorySaver(), AIMessage("Done.")).ainvoke(command, config)
        assert turn.answer is not None
    texts = [message.message.text for message in await chat.list_messages()]
    assert texts == ["Refund me.", "", "900 euros", "Done."]


@pytest.mark.parametrize("scratchpad", [None, object(), SimpleNamespace(resume=())])
def test_an_unknown_scratchpad_is_left_alone(
    scratchpad: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A LangGraph that keeps its answers otherwise asks again; the run does not fail."""
    monkeypatch.setattr(review, "run_config", lambda: ({"__pregel_scratchpad": scratchpad}, {}))
    review.give_answer({"decisions": [{"type": "approve"}]})
