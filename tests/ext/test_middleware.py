"""An agent of create_agent with the store attached in one line: what is logged, what is shown, what is streamed."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from counting import STANDING, Commands
from fixture_types import Client
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import Command
from mongomock_motor import AsyncMongoMockClient
from properties import sampled
from pydantic import BaseModel
from scripted_agents import ScriptedModel, StreamingModel, calls, kinds, log_of

from convstore import SOURCES_PROMPT, ConversationStore, HistoryPolicy
from convstore.exceptions import (
    InvalidInputError,
    InvalidScopeError,
    MissingExtraError,
    SyncUnsupportedError,
)
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langchain.run import CHANNEL, AgentRun, RunReference, run_in
from convstore.messages.filing import without_marks
from convstore.messages.tokens import approximate_tokens
from convstore.messages.tool_calls import calls_of, result_id
from convstore.summarization import HeadTailSummarizer, RunningSummarizer
from convstore.types import Dropped
from convstore.values.policy import CompactionRule


@tool
def search(query: str = "") -> str:
    """Search the library."""
    return f"found {query}" + " and much more of it" * 60


@tool(response_format="content_and_artifact")
def find(query: str = "") -> tuple[str, list[dict[str, str]]]:
    """Find two passages."""
    return "2 passages", [
        {"title": f"{query} {at}", "content": f"{query} passage {at}. " * 30} for at in (1, 2)
    ]


@pytest.fixture
async def store(client: Client, database_name: str) -> AsyncIterator[ConversationStore]:
    """A store on the counted client, whose clock stands still."""
    store = ConversationStore(client[database_name], clock=STANDING)
    await store.setup()
    yield store
    await store.close()


def config_of(scope: dict[str, str]) -> dict[str, Any]:
    """Return the configuration of a run."""
    return {"configurable": dict(scope)}


async def test_what_the_state_gets_is_in_the_log_under_the_same_ids(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Question, call, result, answer: the log equals the state's messages, ids and all."""
    model = ScriptedModel(replies=[calls("search", query="bees"), AIMessage("Bees dance.")])
    agent = create_agent(model, [search], middleware=[ConversationMiddleware(store)])
    result = await agent.ainvoke({"messages": [("user", "How?")]}, config_of(scope))
    log = await log_of(store.conversation(**scope))
    assert result["messages"] == log
    assert result["messages"][-1].text == "Bees dance."
    question, call, found, answer = log
    assert found.id == result_id(str(call.id), "call_0")
    assert not call.response_metadata
    assert (turn := await store.conversation(**scope).get_turn(str(question.id)))
    assert turn.messages == [question, call, found, answer]


async def test_a_call_that_the_output_limit_cut_is_not_run(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """LangChain completes the arguments of a cut call; its result says that it was cut."""
    cut = calls("search", "search", query="b")
    cut.response_metadata = {"finish_reason": "length"}
    model = ScriptedModel(replies=[cut, AIMessage("Bees dance.")])
    agent = create_agent(model, [search], middleware=[ConversationMiddleware(store)])
    await agent.ainvoke({"messages": [("user", "How?")]}, config_of(scope))
    log = await log_of(store.conversation(**scope))
    results = {each.tool_call_id: each for each in log if isinstance(each, ToolMessage)}
    assert (results["call_0"].status, results["call_1"].status) == ("success", "error")
    assert "cut off (length)" in results["call_1"].text
    assert log[-1].text == "Bees dance."


@pytest.mark.costly
@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no checkpointer", "checkpointer"])
async def test_the_model_is_shown_the_view_and_this_turn(
    store: ConversationStore, scope: dict[str, str], saver: Any
) -> None:
    """At the second question the first result is a stub; in its own turn it is whole. Nothing is shown twice."""
    model = ScriptedModel(
        replies=[calls("search"), AIMessage("One."), calls("search"), AIMessage("Two.")]
    )
    agent = create_agent(
        model, [search], middleware=[ConversationMiddleware(store)], checkpointer=saver
    )
    await agent.ainvoke({"messages": [("user", "First?")]}, config_of(scope))
    result = await agent.ainvoke({"messages": [("user", "Second?")]}, config_of(scope))
    whole = search.invoke({})
    *_, third, fourth = (kinds(shown) for shown in model.shown)
    assert third[:2] == [("human", "First?"), ("ai", "")]
    assert '"tool_message_id"' in third[2][1]
    assert third[3:] == [("ai", "One."), ("human", "Second?")]
    assert fourth == [*third, ("ai", ""), ("tool", whole)]
    assert kinds(result["messages"]) == [
        ("human", "Second?"),
        ("ai", ""),
        ("tool", whole),
        ("ai", "Two."),
    ]


async def test_earlier_turns_leave_the_state_at_the_start_of_the_next(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The checkpoint holds one turn; the answer stays in it until the next question."""
    model = ScriptedModel(replies=[AIMessage(f"Answer {number}.") for number in range(3)])
    agent = create_agent(
        model, middleware=[ConversationMiddleware(store)], checkpointer=InMemorySaver()
    )
    for number in range(3):
        await agent.ainvoke({"messages": [("user", f"Question {number}?")]}, config_of(scope))
        state = await agent.aget_state(config_of(scope))
        assert kinds(state.values["messages"]) == [
            ("human", f"Question {number}?"),
            ("ai", f"Answer {number}."),
        ]
        assert "convstore_run" not in state.values
    assert len(await log_of(store.conversation(**scope))) == 6


@pytest.mark.slow
async def test_views_are_stable_within_a_turn_and_from_turn_to_turn(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Within a turn, each view begins with the view before it, to the byte."""
    replies = [
        reply
        for number in range(4)
        for reply in (calls("search"), calls("search"), AIMessage(f"{number}."))
    ]
    model = ScriptedModel(replies=replies)
    agent = create_agent(
        model, [search], middleware=[ConversationMiddleware(store)], system_prompt="Be kind."
    )
    for number in range(4):
        await agent.ainvoke({"messages": [("user", f"Question {number}?")]}, config_of(scope))
    for at, (before, after) in enumerate(zip(model.shown, model.shown[1:], strict=False)):
        if (at + 1) % 3:
            assert after[: len(before)] == before
    starts = model.shown[::3]
    for before, after in itertools.pairwise(starts):
        assert after[: len(before)] == before


@pytest.mark.costly
@pytest.mark.parametrize(
    "summarizer", [None, HeadTailSummarizer()], ids=["no summarizer", "a summarizer"]
)
async def test_a_warm_run_with_a_tool_is_five_commands(
    client: Client,
    database_name: str,
    scope: dict[str, str],
    commands: Commands,
    summarizer: Any,
) -> None:
    """A load and an insert for question, call, result and answer; nothing is looked up.

    Also where there is a summarizer, as long as it is not due.
    """
    store = ConversationStore(client[database_name], clock=STANDING, summarizer=summarizer)
    model = ScriptedModel(replies=[AIMessage("Hello."), calls("search"), AIMessage("Done.")])
    agent = create_agent(
        model, [search], middleware=[ConversationMiddleware(store)], checkpointer=InMemorySaver()
    )
    await agent.ainvoke({"messages": [("user", "Hello?")]}, config_of(scope))
    with commands.counted():
        await agent.ainvoke({"messages": [("user", "And now?")]}, config_of(scope))
    assert commands.names == ["find", "findAndModify", *["insert"] * 4, "update"]


async def test_no_old_message_is_streamed_again(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A stream contains nothing of an earlier turn but the ids of removed messages."""
    model = StreamingModel(
        replies=[calls("search"), AIMessage("Old answer."), calls("search"), AIMessage("New one.")]
    )
    agent = create_agent(
        model, [search], middleware=[ConversationMiddleware(store)], checkpointer=InMemorySaver()
    )
    await agent.ainvoke({"messages": [("user", "Old question?")]}, config_of(scope))
    old = {message.id for message in await log_of(store.conversation(**scope))}
    modes: Any = ["messages", "updates"]
    streamed: list[Any] = []
    updates: list[Any] = []
    async for mode, chunk in agent.astream(
        {"messages": [("user", "New?")]}, config_of(scope), stream_mode=modes
    ):
        (streamed if mode == "messages" else updates).append(chunk)
    said = [message for message, _ in streamed]
    assert old & {message.id for message in said} == set()
    assert "".join(message.text for message in said if message.type != "tool") == "New one. "
    assert "Old answer" not in repr(updates)
    removed = [
        each
        for update in updates
        for value in update.values()
        for each in (value or {}).get("messages", ())
    ]
    assert {each.id for each in removed if each.type == "remove"} == old
    assert old & {each.id for each in removed if each.type != "remove"} == set()


async def test_ids_that_were_streamed_are_those_of_the_log(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A client that keeps the ids of what it was streamed finds each message in the log."""
    model = StreamingModel(replies=[calls("search"), AIMessage("Here you are.")])
    agent = create_agent(model, [search], middleware=[ConversationMiddleware(store)])
    ids = {
        message.id
        async for message, _ in agent.astream(
            {"messages": [("user", "?")]}, config_of(scope), stream_mode="messages"
        )
    }
    log = await log_of(store.conversation(**scope))
    assert ids == {message.id for message in log[1:]}


async def test_a_command_is_logged_with_its_messages(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The result in a command has its id and is appended; the command's other updates reach the state."""

    @tool
    def remember(runtime_call_id: str = "call_0") -> Command[Any]:
        """Remember."""
        messages = [ToolMessage("Noted.", tool_call_id=runtime_call_id), SystemMessage("Be brief.")]
        return Command(update={"messages": messages, "jump_to": None})

    model = ScriptedModel(replies=[calls("remember"), AIMessage("Done.")])
    agent = create_agent(model, [remember], middleware=[ConversationMiddleware(store)])
    result = await agent.ainvoke({"messages": [("user", "?")]}, config_of(scope))
    log = await log_of(store.conversation(**scope))
    assert log == without_marks(result["messages"])
    assert kinds(log) == [("human", "?"), ("ai", ""), ("tool", "Noted."), ("ai", "Done.")]
    assert log[2].id == result_id(str(log[1].id), "call_0")


async def test_a_tool_that_raises_ends_the_run_and_the_next_goes_on(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Messages until then are logged; the next view has a result for the failed call."""

    @tool
    def broken() -> str:
        """Break."""
        raise RuntimeError("the pump is broken")

    model = ScriptedModel(replies=[calls("broken", "search"), AIMessage("Sorry.")])
    agent = create_agent(model, [broken, search], middleware=[ConversationMiddleware(store)])
    with pytest.raises(RuntimeError, match="the pump is broken"):
        await agent.ainvoke({"messages": [("user", "Pump!")]}, config_of(scope))
    await agent.ainvoke({"messages": [("user", "Well?")]}, config_of(scope))
    shown = kinds(model.shown[-1])
    assert [kind for kind, _ in shown] == ["human", "ai", "tool", "tool", "human"]
    log = kinds(await log_of(store.conversation(**scope)))
    assert log[0] == ("human", "Pump!")
    assert log[-2:] == [("human", "Well?"), ("ai", "Sorry.")]


async def test_the_scope_comes_from_context_or_configuration(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A dict, a dataclass, a pydantic model, the configuration, a part of it in each, or a function: one log."""

    @dataclass
    class Data:
        user_id: str
        thread_id: str

    class Model(BaseModel):
        user_id: str
        thread_id: str

    ways: list[tuple[Any, dict[str, Any], Any]] = [
        (None, {}, scope),
        (None, {}, Data(**scope)),
        (None, {}, Model(**scope)),
        (None, config_of(scope), None),
        (None, config_of({"thread_id": scope["thread_id"]}), {"user_id": scope["user_id"]}),
        (
            lambda run: {"user_id": run.context["name"], "thread_id": scope["thread_id"]},
            {},
            {"name": "ada"},
        ),
    ]
    for at, (chosen, config, context) in enumerate(ways):
        model = ScriptedModel(replies=[AIMessage(f"Answer {at}.")])
        agent = create_agent(model, middleware=[ConversationMiddleware(store, scope=chosen)])
        await agent.ainvoke({"messages": [("user", f"Question {at}?")]}, config, context=context)
    assert len(await log_of(store.conversation(**scope))) == 2 * len(ways)


@pytest.mark.parametrize(
    "context", [None, {"user_id": "ada"}, {"user_id": "ada", "thread_id": {"$ne": ""}}]
)
async def test_a_scope_that_can_not_be_is_refused_before_anything_is_written(
    store: ConversationStore, commands: Commands, context: Any
) -> None:
    """No command is sent and the model is not asked."""
    model = ScriptedModel(replies=[AIMessage("Never.")])
    agent = create_agent(model, middleware=[ConversationMiddleware(store)])
    with commands.counted(), pytest.raises(InvalidScopeError, match="thread_id"):
        await agent.ainvoke({"messages": [("user", "?")]}, context=context)
    assert (commands.names, model.shown) == ([], [])


async def test_the_agent_reads_an_old_result_back(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The tool is there, the prompt mentions it, and it finds its conversation through the context alone."""
    model = ScriptedModel(replies=[calls("search"), AIMessage("One.")])
    agent = create_agent(
        model, [search], middleware=[ConversationMiddleware(store)], system_prompt="Be kind."
    )
    await agent.ainvoke({"messages": [("user", "First?")]}, context=scope)
    whole = next(
        message for message in await log_of(store.conversation(**scope)) if message.type == "tool"
    )
    model.replies += [
        calls("retrieve_previous_sources", tool_message_ids=[whole.id]),
        AIMessage("Two."),
    ]
    result = await agent.ainvoke({"messages": [("user", "Again?")]}, context=scope)
    assert whole.text in result["messages"][2].text
    assert "retrieve_previous_sources" in model.tools
    assert {shown[0].text for shown in model.shown} == {f"Be kind.\n\n{SOURCES_PROMPT}"}


async def test_sources_are_numbered_through_the_conversation(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Two searches in two turns: [1], [2] and [3], [4], before the model sees them and in the log."""
    replies = [
        calls("find", query="Orcas"),
        AIMessage("One."),
        calls("find", query="Seals"),
        AIMessage("Two."),
    ]
    model = ScriptedModel(replies=replies)
    agent = create_agent(
        model, [find], middleware=[ConversationMiddleware(store, number_sources=["find"])]
    )
    for question in ("Orcas?", "Seals?"):
        await agent.ainvoke({"messages": [("user", question)]}, context=scope)
    assert "[1] Orcas 1" in model.shown[1][-1].text
    assert "[3] Seals 1" in model.shown[3][-1].text
    page = await store.conversation(**scope).get_sources([2, 4])
    assert [source.title for source in page.sources] == ["Orcas 2", "Seals 2"]


@pytest.mark.slow
async def test_a_turn_is_summarised_after_it(
    client: Client, database_name: str, scope: Any
) -> None:
    """The summarizer of the store is asked at the end of a run when it is time, and what it writes is not streamed."""
    writer = StreamingModel(replies=[AIMessage("They spoke of bees.")])
    summarizer = RunningSummarizer(
        writer, max_tokens_before_summary=600, keep_last_turns=1, max_summary_tokens=50
    )
    store = ConversationStore(client[database_name], summarizer=summarizer)
    model = StreamingModel(
        replies=[AIMessage(f"Answer {number}. " + "Bees. " * 200) for number in range(3)]
    )
    agent = create_agent(model, middleware=[ConversationMiddleware(store)])
    streamed = ""
    for number in range(3):
        async for message, _ in agent.astream(
            {"messages": [("user", f"Question {number}?")]},
            config_of(scope),
            stream_mode="messages",
        ):
            streamed += message.text
    history = await store.conversation(**scope).load_history()
    assert history.summary == "They spoke of bees. "
    assert "spoke of bees" not in streamed
    assert streamed.count("Answer") == 3
    await store.close()


async def test_a_summarizer_that_hangs_does_not_hang_the_agent(database: Any, scope: Any) -> None:
    """The answer is given after `compaction_seconds`; `close` ends the summarizer."""
    asked = list[int]()

    async def hangs(messages: Any, summary: Any) -> str:
        asked.append(len(messages))
        return str(await asyncio.Event().wait())

    hangs.rule = CompactionRule(
        max_tokens_before_summary=60, max_summary_tokens=20, keep_last_turns=0
    )
    store = ConversationStore(database, summarizer=hangs, compaction_seconds=0.01)
    model = ScriptedModel(replies=[AIMessage("Bees. " * 100), AIMessage("Bees. " * 100)])
    agent = create_agent(model, middleware=[ConversationMiddleware(store)])
    for _ in range(2):
        done = await agent.ainvoke({"messages": [("user", "Hello?")]}, config_of(scope))
        assert done["messages"][-1].text.startswith("Bees.")
    assert asked
    await store.close()


@pytest.mark.slow
async def test_old_results_of_a_long_turn_become_stubs_in_large_steps(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Within the budget the turn is whole; then older results are stubs, not the last; few steps break a prefix."""
    steps = 14
    model = ScriptedModel(
        replies=[*[calls("search", query=str(step)) for step in range(steps)], AIMessage("Done.")]
    )
    middleware = ConversationMiddleware(store, policy=HistoryPolicy(max_tokens=2_000))
    agent = create_agent(model, [search], middleware=[middleware])
    result = await agent.ainvoke({"messages": [("user", "?")]}, config_of(scope))
    assert all(
        "found" in message.text[:5] for message in result["messages"] if message.type == "tool"
    )
    last = [message.text for message in model.shown[-1] if message.type == "tool"]
    assert '"tool_message_id"' in last[0]
    assert last[-1].startswith(f"found {steps - 1}")
    breaks = [
        at
        for at, (before, after) in enumerate(zip(model.shown, model.shown[1:], strict=False))
        if after[: len(before)] != before
    ]
    assert 1 <= len(breaks) <= steps // 4
    sizes = [
        approximate_tokens([message for message in shown if message.type != "system"])
        for shown in model.shown
    ]
    assert max(sizes) <= 2_210 < approximate_tokens(result["messages"])


async def test_results_that_the_model_has_not_seen_are_never_stubs(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Six at once, more than the budget: whole at the next call, stubs or left out at the one after it."""
    replies = [calls(*["search"] * 6), calls("search"), AIMessage("Done.")]
    model = ScriptedModel(replies=replies)
    agent = create_agent(
        model,
        [search],
        middleware=[ConversationMiddleware(store, policy=HistoryPolicy(max_tokens=1_000))],
    )
    await agent.ainvoke({"messages": [("user", "?")]}, config_of(scope))
    _, second, third = (
        [message.text[:5] for message in shown if message.type == "tool"] for shown in model.shown
    )
    assert second == ["found"] * 6
    assert (third[-1], third.count("found")) == ("found", 1)


@pytest.mark.slow
async def test_results_that_the_policy_leaves_whole_stay_whole_in_a_long_turn(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """`never_stub` holds within a turn too."""
    model = ScriptedModel(
        replies=[*[calls("search", query=str(step)) for step in range(9)], AIMessage("Done.")]
    )
    policy = HistoryPolicy(never_stub=frozenset({"search"}), max_tokens=1_000)
    middleware = ConversationMiddleware(store, policy=policy)
    await create_agent(model, [search], middleware=[middleware]).ainvoke(
        {"messages": [("user", "?")]}, context=scope
    )
    assert all(
        message.text.startswith("found") for message in model.shown[-1] if message.type == "tool"
    )


async def test_the_policy_shapes_earlier_turns_and_never_this_one(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A view of the talk alone hides earlier calls; this turn's call and result are shown."""
    model = ScriptedModel(
        replies=[calls("search"), AIMessage("One."), calls("search"), AIMessage("Two.")]
    )
    middleware = ConversationMiddleware(store, policy=HistoryPolicy(view="conversation"))
    agent = create_agent(model, [search], middleware=[middleware], checkpointer=InMemorySaver())
    await agent.ainvoke({"messages": [("user", "First?")]}, config_of(scope))
    await agent.ainvoke({"messages": [("user", "Second?")]}, config_of(scope))
    assert [kind for kind, _ in kinds(model.shown[-1])] == ["human", "ai", "human", "ai", "tool"]
    assert len(await log_of(store.conversation(**scope))) == 8


async def test_a_provider_s_policy_holds_for_this_turn_too(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Call ids of another provider are replaced in call and result; what each step lacks of the log is reported."""
    chat = store.conversation(**scope)
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    await chat.append([HumanMessage("Before?"), AIMessage([thought, "So."], id="earlier")])
    dropped = list[list[Dropped]]()
    looked = calls("search")
    looked.content = [thought]
    model = ScriptedModel(replies=[looked, calls("search"), AIMessage("One.")])
    policy = HistoryPolicy(provider="mistralai")
    middleware = ConversationMiddleware(store, policy=policy, on_dropped=dropped.append)
    agent = create_agent(model, [search], middleware=[middleware])
    await agent.ainvoke({"messages": [("user", "First?")]}, config_of(scope))
    made = [
        call["id"]
        for message in model.shown[-1]
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]
    assert len(set(made)) == 2
    assert {len(id_) for id_ in made} == {9}
    assert model.shown[-1][: len(model.shown[-2])] == model.shown[-2]
    parts = [[(part.message_id, part.part) for part in request] for request in dropped]
    first = [message async for message in chat.messages()][3].id
    earlier = ("earlier", "reasoning")
    assert parts == [[earlier], [earlier, (first, "reasoning")], [earlier, (first, "reasoning")]]


async def test_an_id_that_the_model_gives_twice_is_not_taken_for_the_same_answer(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A cache or a double that returns one object again: two answers in the log, under two ids."""
    same = AIMessage("Yes.", id="always")
    model = ScriptedModel(replies=[same, same])
    agent = create_agent(model, middleware=[ConversationMiddleware(store)])
    for question in ("Really?", "Truly?"):
        await agent.ainvoke({"messages": [("user", question)]}, config_of(scope))
    log = await log_of(store.conversation(**scope))
    assert kinds(log) == [("human", "Really?"), ("ai", "Yes."), ("human", "Truly?"), ("ai", "Yes.")]
    assert len({message.id for message in log}) == 4
    assert same.response_metadata == {}


@pytest.mark.slow
async def test_two_runs_at_once_keep_their_answers_apart(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """One of two concurrent runs waits for the other; each question, asked again, gets its own answer from the log."""

    @tool
    async def wait(name: str) -> str:
        """Let others work."""
        await asyncio.sleep(0.01)
        return f"waited for {name}"

    def agent_for(name: str) -> Any:
        replies = [calls("wait", name=name), AIMessage(f"Answer for {name}.")]
        return create_agent(
            ScriptedModel(replies=replies), [wait], middleware=[ConversationMiddleware(store)]
        )

    def ask(agent: Any, name: str) -> Any:
        return agent.ainvoke({"messages": [HumanMessage(f"{name}?", id=name)]}, config_of(scope))

    first, second = await asyncio.gather(*(ask(agent_for(name), name) for name in ("ada", "bob")))
    assert (first["messages"][-1].text, second["messages"][-1].text) == (
        "Answer for ada.",
        "Answer for bob.",
    )
    log = await log_of(store.conversation(**scope))
    assert len(log) == len({message.id for message in log}) == 8
    silent = create_agent(ScriptedModel(), [wait], middleware=[ConversationMiddleware(store)])
    for name, result in (("ada", first), ("bob", second)):
        again = await ask(silent, name)
        assert again["messages"] == result["messages"]
    model = ScriptedModel(replies=[AIMessage("Fine.")])
    last = create_agent(model, [wait], middleware=[ConversationMiddleware(store)])
    await last.ainvoke({"messages": [("user", "And now?")]}, config_of(scope))
    assert len(model.shown[0]) == 1 + 8 + 1


def a_run(name: str) -> list[BaseMessage]:
    """Question, call, result and answer; every run names its call alike."""
    call = calls("wait", name=name).model_copy(update={"id": f"{name}-call"})
    result = ToolMessage(
        f"waited for {name}",
        name="wait",
        tool_call_id="call_0",
        id=result_id(f"{name}-call", "call_0"),
    )
    answer = AIMessage(f"Answer for {name}.", id=f"{name}-answer")
    return [HumanMessage(f"{name}?", id=name), call, result, answer]


@pytest.mark.costly
@pytest.mark.parametrize("places", sampled(itertools.combinations(range(8), 4), every=4), ids=repr)
async def test_results_of_two_runs_at_once_are_kept_apart_in_every_order(
    places: tuple[int, ...], scope: Any
) -> None:
    """Each question is asked again and gets its own turn from the log; in a view each result is behind its call."""
    store = ConversationStore(AsyncMongoMockClient()["app"])
    await store.setup()
    chat = store.conversation(**scope)
    runs = {name: iter(a_run(name)) for name in ("ada", "bob")}
    for index in range(8):
        name = "ada" if index in places else "bob"
        message = next(runs[name])
        await chat.append(message, turn=None if isinstance(message, ToolMessage) else name)
    for name in ("ada", "bob"):
        silent = create_agent(ScriptedModel(), [search], middleware=[ConversationMiddleware(store)])
        again = await silent.ainvoke(
            {"messages": [HumanMessage(f"{name}?", id=name)]}, config_of(scope)
        )
        assert again["messages"] == a_run(name)
    shown = (await chat.load_history()).messages
    pairs = [
        (message.id, after.id) for message, after in itertools.pairwise(shown) if calls_of(message)
    ]
    assert sorted(pairs) == [
        (f"{name}-call", result_id(f"{name}-call", "call_0")) for name in ("ada", "bob")
    ]
    await store.close()


async def test_an_agent_hands_over_to_another_in_a_graph(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The result of the call that hands over is in the log; what else it sends to the graph around is that graph's."""

    @tool
    def hand_over() -> Command[Any]:
        """Hand over."""
        sent = [
            ToolMessage("Handed over.", tool_call_id="call_0"),
            HumanMessage("From the first.", id="sent"),
        ]
        return Command(goto="second", graph=Command.PARENT, update={"messages": sent})

    first = ScriptedModel(replies=[calls("hand_over")])
    second = ScriptedModel(replies=[AIMessage("The second one.")])
    graph = StateGraph(MessagesState)
    graph.add_node(
        "first", create_agent(first, [hand_over], middleware=[ConversationMiddleware(store)])
    )
    # no client sends to this node
    own = ConversationMiddleware(store, scope={"user_id": "second"}, trust="all")
    graph.add_node("second", create_agent(second, middleware=[own]))
    graph.add_edge("__start__", "first")
    result = await graph.compile().ainvoke({"messages": [("user", "?")]}, config_of(scope))
    assert result["messages"][-1].text == "The second one."
    assert kinds(await log_of(store.conversation(**scope))) == [
        ("human", "?"),
        ("ai", ""),
        ("tool", "Handed over."),
    ]


def test_a_run_is_taken_for_that_of_its_conversation_only(store: ConversationStore) -> None:
    """A state that came to another conversation reveals nothing of the first one."""
    of_ada = store.conversation(user_id="ada", thread_id="1")
    of_eve = store.conversation(user_id="eve", thread_id="1")
    run = AgentRun(of_ada, ConversationMiddleware(store)._rules)
    state = {CHANNEL: RunReference.to(run)}
    assert run_in(state, of_ada) is run
    assert run_in(state, of_eve) is None
    assert run_in({CHANNEL: "plain text"}, of_ada) is None


async def test_one_more_scope_key_keeps_nested_agents_apart(
    client: Client, database_name: str, scope: dict[str, str]
) -> None:
    """Each has a log of its own; user and thread still come from the run."""
    keys = ("user_id", "thread_id", "agent")
    store = ConversationStore(client[database_name], scope_keys=keys, collection_prefix="nested_")
    await store.setup()
    inner = create_agent(
        ScriptedModel(replies=[AIMessage("Inner.")]),
        middleware=[ConversationMiddleware(store, scope={"agent": "inner"})],
    )

    @tool
    async def delegate() -> str:
        """Ask the other agent."""
        result = await inner.ainvoke({"messages": [("user", "Inner question?")]})
        return result["messages"][-1].text

    model = ScriptedModel(replies=[calls("delegate"), AIMessage("Outer.")])
    agent = create_agent(
        model, [delegate], middleware=[ConversationMiddleware(store, scope={"agent": "outer"})]
    )
    await agent.ainvoke({"messages": [("user", "?")]}, config_of(scope))
    outer = kinds(await log_of(store.conversation(**scope, agent="outer")))
    assert outer == [("human", "?"), ("ai", ""), ("tool", "Inner."), ("ai", "Outer.")]
    assert kinds(await log_of(store.conversation(**scope, agent="inner"))) == [
        ("human", "Inner question?"),
        ("ai", "Inner."),
    ]
    await store.close()


@pytest.mark.slow
async def test_a_sync_agent_works_on_a_store_of_connect(
    server_uri: str, database_name: str, scope: dict[str, str]
) -> None:
    """All hooks, the tool and the numbers have a sync way; the log is that of an async run."""
    async with await ConversationStore.connect(
        urlsplit(server_uri)._replace(path=f"/{database_name}").geturl(),
        summarizer=HeadTailSummarizer(
            CompactionRule(max_tokens_before_summary=300, max_summary_tokens=100, keep_last_turns=1)
        ),
    ) as store:
        await store.setup()
        replies = [
            calls("find", "search", query="Orcas"),
            AIMessage("One."),
            None,
            AIMessage("Two."),
        ]
        model = ScriptedModel(replies=replies)
        middleware = ConversationMiddleware(store, number_sources=["find"])
        agent = create_agent(
            model, [find, search], middleware=[middleware], checkpointer=InMemorySaver()
        )
        first = await asyncio.to_thread(
            agent.invoke, {"messages": [("user", "First?")]}, config_of(scope)
        )
        found = next(
            message for message in first["messages"] if getattr(message, "name", "") == "find"
        )
        model.replies[0] = calls("retrieve_previous_sources", tool_message_ids=[found.id])
        second = await asyncio.to_thread(
            agent.invoke, {"messages": [("user", "Second?")]}, config_of(scope)
        )
        chat = store.conversation(**scope)
        # Tools that run at once are logged as they end.
        wanted = {message.id: message for message in [*first["messages"], *second["messages"]]}
        assert {message.id: message for message in await log_of(chat)} == wanted
        assert "[1] Orcas 1" in found.text
        assert "Orcas passage 1" in second["messages"][2].text
        assert (await chat.load_history()).summary is not None


async def test_a_sync_agent_on_a_client_of_yours_is_refused(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The error names what to do; nothing hangs and nothing is written."""
    agent = create_agent(ScriptedModel(), middleware=[ConversationMiddleware(store)])
    with pytest.raises(SyncUnsupportedError, match=r"agent\.ainvoke.*ConversationStore\.connect"):
        await asyncio.to_thread(agent.invoke, {"messages": [("user", "?")]}, config_of(scope))
    assert await log_of(store.conversation(**scope)) == []


@pytest.mark.costly
@pytest.mark.parametrize(
    "wrong",
    [
        {"store": None},
        {"policy": "full"},
        {"number_sources": "search"},
        {"number_sources": [1]},
        {"tool_results": "later"},
        {"scope": 1},
        {"scope": {"tenant": "x"}},
        {"page_tokens": 1},
    ],
)
def test_nonsense_is_refused_when_it_is_made(
    store: ConversationStore, wrong: dict[str, Any]
) -> None:
    """Wrong arguments are refused when the middleware is made, not when an agent first runs."""
    with pytest.raises(InvalidInputError):
        ConversationMiddleware(**{"store": store, **wrong})


@pytest.mark.slow
def test_without_langchain_the_import_says_what_to_install() -> None:
    """Without langchain, the import raises MissingExtraError with the command that installs the extra."""
    program = """
import sys
sys.modules["langchain"] = sys.modules["langgraph"] = None
from convstore.exceptions import MissingExtraError
try:
    from convstore.ext.langchain import ConversationMiddleware
except MissingExtraError as error:
    print(error)
"""
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True
    )
    assert ended.stdout == f"{MissingExtraError(package='langchain', extra='langchain')}\n"
