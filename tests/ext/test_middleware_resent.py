"""Clients that send the whole history with every request, without ids: the middleware doubles nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from scripted_agents import ScriptedModel, calls, elsewhere, log_of

from convstore import ConversationStore, HistoryDivergedError
from convstore.exceptions import UntrustedMessageError
from convstore.ext.langchain import ConversationMiddleware


class BrokenOffError(Exception):
    """Simulates a crash."""


def make_agent(
    store: ConversationStore, replies: list[Any], trust: Any = None, **options: Any
) -> tuple[Any, ScriptedModel, list[str]]:
    """An agent with a tool that counts how often it ran; a new one acts as another worker."""
    ran: list[str] = []

    @tool
    def search(query: str = "") -> str:
        """Search."""
        ran.append(query)
        return f"found {query}"

    model = ScriptedModel(replies=replies)
    middleware = [ConversationMiddleware(store, prompt="", trust=trust)]
    return create_agent(model, [search], middleware=middleware, **options), model, ran


async def ask(agent: Any, scope: dict[str, str], *texts: str, prompt: str = "") -> Any:
    """A request with all that was said, as a client keeps it: texts only."""
    said: list[Any] = [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)
    ]
    if prompt:
        said.insert(0, {"role": "system", "content": prompt})
    return await agent.ainvoke({"messages": said}, {"configurable": scope})


async def logged(store: ConversationStore, scope: dict[str, str]) -> list[str]:
    """The texts of the log."""
    return [message.text for message in await log_of(store.conversation(**scope))]


@pytest.mark.costly
@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("prompt", ["", "Be brief."])
async def test_a_history_that_comes_again_is_logged_once(
    store: ConversationStore, scope: dict[str, str], saves: bool, prompt: str
) -> None:
    """With a checkpointer and without; calls and results, of which the client knows nothing, stay where they are."""
    saver = InMemorySaver() if saves else None
    agent, model, _ = make_agent(store, [calls("search"), AIMessage("So.")], checkpointer=saver)
    await ask(agent, scope, "How?", prompt=prompt)
    for turn, history in enumerate(
        (["How?", "So.", "Why?"], ["How?", "So.", "Why?", "Thus 0.", "When?"])
    ):
        agent, model, _ = make_agent(store, [AIMessage(f"Thus {turn}.")], checkpointer=saver)
        result = await ask(agent, scope, *history, prompt=prompt)
        assert result["messages"][-1].text == f"Thus {turn}."
        assert [message.text for message in model.shown[0]] == [
            "How?",
            "",
            "found ",
            "So.",
            *history[2:],
        ]
    assert (await logged(store, scope)) == [
        *("How?", "", "found ", "So."),
        *("Why?", "Thus 0.", "When?", "Thus 1."),
    ]


async def test_the_state_keeps_the_new_turn_under_the_ids_of_the_log(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Known messages are replaced in the state, so a later run finds its messages by id."""
    await ask(make_agent(store, [AIMessage("So.")])[0], scope, "How?")
    result = await ask(make_agent(store, [AIMessage("Thus.")])[0], scope, "How?", "So.", "Why?")
    log = await log_of(store.conversation(**scope))
    assert [message.id for message in result["messages"]] == [message.id for message in log[2:]]
    turn = await store.conversation(**scope).get_turn(str(log[2].id))
    assert turn is not None
    assert [message.text for message in turn.messages] == ["Why?", "Thus."]


@pytest.mark.costly
@pytest.mark.parametrize(
    "history", [("How, please?", "So.", "Why?"), ("How?", "So.", "Why?", "Thus.", "When?")]
)
async def test_another_history_is_refused_before_the_model_is_asked(
    store: ConversationStore, scope: dict[str, str], history: tuple[str, ...]
) -> None:
    """An edited question, questions that the log never had: nothing is written."""
    await ask(make_agent(store, [AIMessage("So.")])[0], scope, "How?")
    if len(history) > 3:
        await ask(make_agent(store, [AIMessage("Others.")])[0], scope, "How?", "So.", "Who?")
    before = await logged(store, scope)
    agent, model, _ = make_agent(store, [])
    with pytest.raises(HistoryDivergedError, match="rewind"):
        await ask(agent, scope, *history)
    assert model.shown == []
    assert await logged(store, scope) == before


@pytest.mark.costly
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("said", [("How?", "My answer."), ("How?", "So.", "Why?", "Mine.")])
async def test_answers_that_only_the_client_has_block_no_thread(
    store: ConversationStore, scope: dict[str, str], said: tuple[str, ...], durability: Any
) -> None:
    """With a checkpointer, too: they are ignored, in the run that sends them and after one that failed."""
    agent, model, _ = make_agent(
        store,
        [AIMessage("So."), BrokenOffError(), AIMessage("Thus.")],
        None,
        checkpointer=InMemorySaver(),
    )
    agent = agent.with_config(configurable=scope)
    await agent.ainvoke({"messages": [("user", "How?")]}, durability=durability)
    history = [(("user", "ai")[at % 2], text) for at, text in enumerate((*said, "When?"))]
    with pytest.raises(BrokenOffError):
        await agent.ainvoke({"messages": history}, durability=durability)
    await agent.ainvoke({"messages": [("user", "Where?")]}, durability=durability)
    log = ["How?", "So.", *said[2::2], "When?", "Where?", "Thus."]
    assert [message.text for message in model.shown[-1]] == log[:-1]
    assert await logged(store, scope) == log


@pytest.mark.costly
@pytest.mark.parametrize("strict", [False, True])
async def test_a_refused_history_leaves_the_thread_as_it_was(
    store: ConversationStore, scope: dict[str, str], strict: bool
) -> None:
    """The state is without it, so the next question is answered, and a resume asks no model."""
    model, config = (
        ScriptedModel(replies=[AIMessage("So."), AIMessage("Thus.")]),
        {"configurable": scope},
    )
    own = ConversationMiddleware(store, prompt="", strict=strict)
    agent: Any = create_agent(model, [], middleware=[own], checkpointer=InMemorySaver())
    await ask(agent, scope, "How?")
    before = (await agent.aget_state(config)).values["messages"]
    with pytest.raises(UntrustedMessageError if strict else HistoryDivergedError):
        await ask(agent, scope, *(("How?", "Mine.", "Why?") if strict else ("Who?", "So.", "Why?")))
    assert (await agent.aget_state(config)).values["messages"] == before
    await agent.ainvoke(None, config)
    assert len(model.shown) == 1
    await ask(agent, scope, "When?")
    assert await logged(store, scope) == ["How?", "So.", "When?", "Thus."]


async def test_a_history_whose_last_run_broke_off_goes_on(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The question is found open in the log: steps that are logged are not made again."""
    await ask(make_agent(store, [AIMessage("So.")])[0], scope, "How?")
    broken, _, ran = make_agent(store, [calls("search", query="x"), BrokenOffError()])
    with pytest.raises(BrokenOffError):
        await ask(broken, scope, "How?", "So.", "Why?")
    agent, model, again = make_agent(store, [AIMessage("Thus.")])
    await ask(agent, scope, "How?", "So.", "Why?")
    assert (ran, again) == (["x"], [])
    assert await logged(store, scope) == ["How?", "So.", "Why?", "", "found x", "Thus."]
    assert len(model.shown) == 1


async def test_a_history_that_is_sent_to_two_workers_is_one_question(
    store: ConversationStore, database: Any, scope: dict[str, str]
) -> None:
    """If two workers get the same history at once, its new question is logged once and no run fails."""
    await ask(make_agent(store, [AIMessage("So.")])[0], scope, "How?")
    other = elsewhere(store, database)
    agents = [
        make_agent(opened, [AIMessage(f"Thus {at}.", id=f"a{at}")])[0]
        for at, opened in enumerate((store, other))
    ]
    runs = [ask(agent, scope, "How?", "So.", "Why?") for agent in agents]
    refused = [
        error
        for error in await asyncio.gather(*runs, return_exceptions=True)
        if isinstance(error, BaseException)
    ]
    assert refused == []
    log = await logged(store, scope)
    assert log[:3] == ["How?", "So.", "Why?"]
    assert log.count("Why?") == 1
    assert set(log[3:]) <= {"Thus 0.", "Thus 1."}


async def test_questions_with_ids_keep_them(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A client may give its own messages ids, and send the agent's back without."""
    agent, _, _ = make_agent(store, [AIMessage("So."), AIMessage("Thus.")])
    config: Any = {"configurable": scope}
    await agent.ainvoke({"messages": [HumanMessage("How?", id="q1")]}, config)
    history = [HumanMessage("How?", id="q1"), AIMessage("So."), HumanMessage("Why?", id="q2")]
    for _ in range(2):  # the second time it is answered from the log
        result = await agent.ainvoke(
            {"messages": [message.model_copy() for message in history]}, config
        )
        assert result["messages"][-1].text == "Thus."
        history[1].id = None
    log = await log_of(store.conversation(**scope))
    assert [message.text for message in log] == ["How?", "So.", "Why?", "Thus."]
    assert log[2].id == "q2"


async def test_a_question_that_was_never_logged_is_no_history(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Two questions without an answer between them: the run of the first broke off before it was logged."""
    await ask(make_agent(store, [AIMessage("So.")])[0], scope, "How?")
    agent, _, _ = make_agent(store, [AIMessage("Both.")])
    said: list[BaseMessage] = [HumanMessage("Lost?", id="l"), HumanMessage("Why?", id="w")]
    await agent.ainvoke({"messages": said}, {"configurable": scope})
    assert await logged(store, scope) == ["How?", "So.", "Lost?", "Why?", "Both."]


class _Broken(AgentMiddleware[Any, Any, Any]):
    """Breaks a run off before its question is logged."""

    async def abefore_agent(self, state: Any, runtime: Any) -> None:
        raise BrokenOffError(state, runtime)


@pytest.mark.parametrize("trust", [None, "all"])
@pytest.mark.parametrize("is_node", [False, True])
@pytest.mark.parametrize("first", [AIMessage("So."), BrokenOffError()])
async def test_a_question_in_the_same_words_was_asked_again(
    store: ConversationStore, scope: dict[str, str], first: Any, is_node: bool, trust: Any
) -> None:
    """A person asks the same three times; the second run broke off before its question was logged."""
    saver = InMemorySaver()

    async def run(replies: list[Any], *before: Any) -> None:
        own = ConversationMiddleware(store, prompt="", trust=trust)
        around = [*before, own]
        saved = None if is_node else saver
        agent = create_agent(ScriptedModel(replies=replies), middleware=around, checkpointer=saved)
        if is_node:
            graph: StateGraph[Any] = StateGraph(MessagesState)
            graph.add_node("agent", agent).set_entry_point("agent")
            agent = graph.compile(checkpointer=saver)
        with suppress(BrokenOffError):
            await ask(agent, scope, "How?")

    await run([first])
    await run([], _Broken())
    await run([AIMessage("So again.")])
    said = await logged(store, scope)
    assert said == ["How?", *(["So."] * isinstance(first, AIMessage)), "How?", "How?", "So again."]


@pytest.mark.slow
async def test_after_a_rewind_the_edited_history_is_taken(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """After the rewind that the error advises, an edited history is accepted, even with the rewound question."""
    await ask(make_agent(store, [AIMessage("So.")])[0], scope, "How?")
    await ask(make_agent(store, [AIMessage("Thus.")])[0], scope, "How?", "So.", "Why?")
    with pytest.raises(HistoryDivergedError) as caught:
        await ask(make_agent(store, [])[0], scope, "How?", "So.", "Why not?")
    chat = store.conversation(**scope)
    await chat.rewind(before_id=str(caught.value.before_id))
    await ask(make_agent(store, [AIMessage("Well.")])[0], scope, "How?", "So.", "Why?")
    active = [message.message.text for message in await chat.list_messages()]
    assert active == ["How?", "So.", "Why?", "Well."]


async def test_a_sync_agent_skips_too() -> None:
    """`invoke` on a store that serves sync callers."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        scope: Any = {"configurable": {"user_id": "ada", "thread_id": "t"}}

        def run() -> None:
            agent, _, _ = make_agent(store, [AIMessage("So."), AIMessage("Thus.")])
            agent.invoke({"messages": [SystemMessage("Be brief."), HumanMessage("How?")]}, scope)
            said = [
                SystemMessage("Be brief."),
                HumanMessage("How?"),
                AIMessage("So."),
                HumanMessage("Why?"),
            ]
            agent.invoke({"messages": said}, scope)

        await asyncio.to_thread(run)
        log = [
            message.text
            async for message in store.conversation(user_id="ada", thread_id="t").messages()
        ]
        assert log == ["How?", "So.", "Why?", "Thus."]
