"""Questions that are asked again, runs that are taken up by another worker, and what the log answers by then."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from counting import Commands
from fixture_types import Client
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, hook_config
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel
from scripted_agents import ScriptedModel, calls, elsewhere, kinds, log_of

from convstore import ConversationStore
from convstore.exceptions import ContentConflictError, InvalidInputError, MessageRewoundError
from convstore.ext.langchain import ConversationMiddleware
from convstore.log.entry import Entry
from convstore.messages.tool_calls import result_id
from convstore.mongo.log import Log
from convstore.summarization import HeadTailSummarizer
from convstore.values.policy import CompactionRule

QUESTION = "How do bees tell the way?"


class BrokenOffError(Exception):
    """Simulates a crash."""


class Report(BaseModel):
    """A structured answer."""

    title: str


def make_agent(
    store: ConversationStore, replies: list[Any], **options: Any
) -> tuple[Any, ScriptedModel, list[str]]:
    """An agent with a tool that counts how often it ran; a new one acts as another worker."""
    ran: list[str] = []

    @tool
    def search(query: str = "") -> str:
        """Search."""
        ran.append(query)
        if query == "break":
            raise BrokenOffError
        return f"found {query}"

    model = ScriptedModel(replies=replies)
    own = options.pop("beside", [])
    return (
        create_agent(model, [search], middleware=[ConversationMiddleware(store), *own], **options),
        model,
        ran,
    )


async def ask(agent: Any, scope: dict[str, str], text: str = QUESTION, id_: str = "q1") -> Any:
    """A question under an id, as a backend asks that takes the id of the request."""
    return await agent.ainvoke({"messages": [HumanMessage(text, id=id_)]}, {"configurable": scope})


@pytest.mark.costly
@pytest.mark.parametrize("said", [[], [AIMessage("Mine.")]], ids=["nothing", "an answer"])
async def test_a_run_without_a_question_asks_no_model_after_an_answer(
    store: ConversationStore, scope: dict[str, str], said: list[Any]
) -> None:
    """It is refused; an agent may begin a conversation, and a checkpoint with the question gives its answer."""
    greeter, _, _ = make_agent(store, [AIMessage("Hello.")])
    config: Any = {"configurable": scope}
    await greeter.ainvoke({"messages": []}, config)
    with pytest.raises(InvalidInputError, match="no human message"):
        await greeter.ainvoke({"messages": said}, config)
    agent, model, _ = make_agent(store, [AIMessage("By dancing.")], checkpointer=InMemorySaver())
    await ask(agent, scope)
    for again in ({"messages": said}, None):
        assert (await agent.ainvoke(again, config))["messages"][-1].text == "By dancing."
    assert len(model.shown) == 1
    log = [("ai", "Hello."), ("human", QUESTION), ("ai", "By dancing.")]
    assert kinds(await log_of(store.conversation(**scope))) == log


@pytest.mark.costly
@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no checkpointer", "checkpointer"])
async def test_an_answered_question_is_answered_from_the_log(
    store: ConversationStore, database: Any, scope: dict[str, str], saver: Any
) -> None:
    """Asked again under its id, on another worker: the same messages, no call of model or tool, nothing written."""
    agent, _, _ = make_agent(
        store, [calls("search", query="a"), AIMessage("By dancing.")], checkpointer=saver
    )
    first = await ask(agent, scope)
    before = await log_of(store.conversation(**scope))
    agent, model, ran = make_agent(elsewhere(store, database), [], checkpointer=saver)
    again = await ask(agent, scope)
    assert again["messages"] == first["messages"]
    assert (model.shown, ran) == ([], [])
    assert await log_of(store.conversation(**scope)) == before


async def test_the_answer_is_streamed_again_to_who_asks_again(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A client that lost its connection gets the answer as a message of the stream."""
    agent, _, _ = make_agent(store, [AIMessage("By dancing.")])
    await ask(agent, scope)
    question = {"messages": [HumanMessage(QUESTION, id="q1")]}
    streamed = [
        message.text
        async for message, _ in agent.astream(
            question, {"configurable": scope}, stream_mode="messages"
        )
    ]
    assert streamed == ["By dancing."]


@pytest.mark.slow
async def test_an_old_question_is_answered_from_the_log_too(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """An old question is answered from the log, even if many turns followed and the view no longer contains it."""
    replies = [
        calls("search"),
        AIMessage("By dancing."),
        *(AIMessage("Long. " * 2_500) for _ in range(12)),
    ]
    agent, model, _ = make_agent(store, replies)
    first = await ask(agent, scope)
    for number in range(12):
        await ask(agent, scope, "Tell more.", f"more-{number}")
    assert QUESTION not in [text for _, text in kinds(model.shown[-1])]
    again = await ask(agent, scope)
    assert again["messages"] == first["messages"]
    assert len(model.shown) == 14


async def test_an_answer_far_after_its_question_is_found(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """An answer is found although 300 messages of other runs come between it and its question."""
    others = [
        message for at in range(150) for message in (HumanMessage(f"q {at}"), AIMessage(f"a {at}"))
    ]
    chat = store.conversation(**scope)
    await chat.append([HumanMessage(QUESTION, id="q1"), *others])
    await chat.append(AIMessage("By dancing.", id="late"), turn="q1")
    agent, _, _ = make_agent(store, [])
    result = await ask(agent, scope)
    assert [message.text for message in result["messages"]] == [QUESTION, "By dancing."]


async def test_a_question_goes_on_where_it_broke_off(
    store: ConversationStore, database: Any, scope: dict[str, str]
) -> None:
    """The call that was logged is not asked for again, the result that was logged is not made again."""
    agent, _, _ = make_agent(
        store, [calls("search", query="a"), calls("search", query="b"), BrokenOffError()]
    )
    with pytest.raises(BrokenOffError):
        await ask(agent, scope)
    agent, model, ran = make_agent(elsewhere(store, database), [AIMessage("By dancing.")])
    result = await ask(agent, scope)
    assert ran == []
    assert len(model.shown) == 1
    wanted = [QUESTION, "", "found a", "", "found b", "By dancing."]
    assert [message.text for message in result["messages"]] == wanted
    assert await log_of(store.conversation(**scope)) == result["messages"]


async def test_an_answer_in_flight_at_a_cancellation_is_the_answer(
    store: ConversationStore, database: Any, scope: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancelled run ends when its insert has, so the next one finds the answer and does not ask the model again."""
    insert, is_sent = Log.insert, asyncio.Event()

    async def insert_answers_slowly(
        log: Log, conversation: str, entries: Sequence[Entry], *values: Any, **options: Any
    ) -> None:
        if any(message.type == "ai" for entry in entries for message in entry.messages):
            is_sent.set()
            await asyncio.sleep(0.1)
        await insert(log, conversation, entries, *values, **options)

    monkeypatch.setattr(Log, "insert", insert_answers_slowly)
    agent, _, _ = make_agent(store, [AIMessage("By dancing.")])
    run = asyncio.ensure_future(ask(agent, scope))
    await is_sent.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    agent, model, _ = make_agent(elsewhere(store, database), [AIMessage("By smell.")])
    result = await ask(agent, scope)
    assert [message.text for message in result["messages"]] == [QUESTION, "By dancing."]
    assert model.shown == []
    assert await log_of(store.conversation(**scope)) == result["messages"]


async def test_only_the_tool_that_broke_runs_again(
    store: ConversationStore, database: Any, scope: dict[str, str]
) -> None:
    """Of two parallel calls only the call without a result in the log runs again."""
    reply = AIMessage(
        "",
        tool_calls=[
            {"name": "search", "args": {"query": query}, "id": "same"} for query in ("a", "break")
        ],
    )
    one_by_one = {"configurable": scope, "max_concurrency": 1}
    asked = {"messages": [HumanMessage(QUESTION, id="q1")]}
    agent, _, first = make_agent(store, [reply])
    with pytest.raises(BrokenOffError):
        await agent.ainvoke(asked, one_by_one)
    agent, model, again = make_agent(elsewhere(store, database), [])
    with pytest.raises(BrokenOffError):
        await agent.ainvoke(asked, one_by_one)
    assert (first, again, model.shown) == (["a", "break"], ["break"], [])
    assert kinds(await log_of(store.conversation(**scope))) == [
        ("human", QUESTION),
        ("ai", ""),
        ("tool", "found a"),
    ]


async def test_a_turn_that_broke_off_is_taken_up_from_its_checkpoint(
    store: ConversationStore, database: Any, scope: dict[str, str]
) -> None:
    """`ainvoke(None)` on another worker: the view is loaded again, nothing is doubled, and the answer comes."""
    saver = InMemorySaver()
    agent, _, _ = make_agent(store, [AIMessage("Earlier.")], checkpointer=saver)
    await ask(agent, scope, "Before?", "q0")
    agent, _, _ = make_agent(
        store, [calls("search", query="a"), BrokenOffError()], checkpointer=saver
    )
    with pytest.raises(BrokenOffError):
        await ask(agent, scope)
    agent, model, ran = make_agent(
        elsewhere(store, database), [AIMessage("By dancing.")], checkpointer=saver
    )
    result = await agent.ainvoke(None, {"configurable": scope})
    assert result["messages"][-1].text == "By dancing."
    assert ran == []
    assert [text for _, text in kinds(model.shown[0])] == [
        "Before?",
        "Earlier.",
        QUESTION,
        "",
        "found a",
    ]
    log = await log_of(store.conversation(**scope))
    assert [message.text for message in log] == [
        "Before?",
        "Earlier.",
        QUESTION,
        "",
        "found a",
        "By dancing.",
    ]


async def test_a_checkpoint_older_than_the_log_is_updated_from_it(
    store: ConversationStore, database: Any, scope: dict[str, str]
) -> None:
    """A worker died before its checkpoint was written: steps that are in the log are taken from it."""
    saver = InMemorySaver()
    agent, _, _ = make_agent(store, [BrokenOffError()], checkpointer=saver)
    with pytest.raises(BrokenOffError):
        await ask(agent, scope)
    # Another worker did the rest and its checkpoints were lost.
    lost, _, _ = make_agent(store, [calls("search", query="a"), AIMessage("By dancing.")])
    first = await ask(lost, scope)
    agent, model, ran = make_agent(elsewhere(store, database), [], checkpointer=saver)
    result = await agent.ainvoke(None, {"configurable": scope})
    assert (result["messages"], model.shown, ran) == (first["messages"], [], [])


async def test_a_checkpoint_that_is_ahead_of_the_log_is_not_lost(
    store: ConversationStore, scope: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker died with the answer in its checkpoint only: asked again or followed by a question, it is logged."""
    append = store._services.writer.append

    async def refuse(where: Any, messages: Any, **options: Any) -> Any:
        if messages and isinstance(messages[-1], AIMessage):
            raise BrokenOffError
        return await append(where, messages, **options)

    for next_id in ("q1", "q2"):
        scope = {"user_id": "ada", "thread_id": uuid.uuid4().hex}
        agent, model, _ = make_agent(
            store, [AIMessage("By dancing."), AIMessage("Next.")], checkpointer=InMemorySaver()
        )
        with monkeypatch.context() as patch:
            patch.setattr(store._services.writer, "append", refuse)
            with pytest.raises(BrokenOffError):
                await ask(agent, scope)
        assert kinds(await log_of(store.conversation(**scope))) == [("human", QUESTION)]
        await ask(agent, scope, QUESTION, next_id)
        log = kinds(await log_of(store.conversation(**scope)))
        assert log[:2] == [("human", QUESTION), ("ai", "By dancing.")]
        assert log[2:] == ([] if next_id == "q1" else [("human", QUESTION), ("ai", "Next.")])
        assert len(model.shown) == (1 if next_id == "q1" else 2)


async def test_other_words_under_the_same_id_are_refused(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The old answer is not given for another question."""
    agent, model, _ = make_agent(store, [AIMessage("By dancing.")])
    await ask(agent, scope)
    with pytest.raises(ContentConflictError, match="q1"):
        await ask(agent, scope, "How do wasps?")
    assert len(model.shown) == 1


@pytest.mark.slow
async def test_a_question_that_was_rewound_is_refused(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A rewound question is refused under its old id. Under a new id it is asked without the rewound messages."""
    agent, model, _ = make_agent(store, [AIMessage("By dancing."), AIMessage("By smell.")])
    await ask(agent, scope)
    await store.conversation(**scope).rewind(before_id="q1")
    with pytest.raises(MessageRewoundError):
        await ask(agent, scope)
    result = await ask(agent, scope, id_="q1b")
    assert result["messages"][-1].text == "By smell."
    assert kinds(model.shown[-1]) == [("human", QUESTION)]


async def test_results_under_one_call_id_are_kept_apart(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Each call gets its own result again, in any order of the log."""
    call = AIMessage(
        "",
        id="ai",
        tool_calls=[
            {"name": "search", "args": {"query": query}, "id": "same"} for query in ("a", "b")
        ],
    )
    results = [
        ToolMessage(f"found {q}", id=result_id("ai", "same", at), tool_call_id="same")
        for at, q in enumerate("ab")
    ]
    await store.conversation(**scope).append(
        [HumanMessage(QUESTION, id="q1"), call, *reversed(results)]
    )
    agent, _, ran = make_agent(store, [AIMessage("By dancing.")])
    result = await ask(agent, scope)
    assert [message.text for message in result["messages"]] == [
        QUESTION,
        "",
        "found a",
        "found b",
        "By dancing.",
    ]
    assert ran == []


async def test_what_a_turn_that_broke_off_left_unread_is_whole_once(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The next question sees the results of a turn that broke off; after its answer they are stubs."""
    agent, model, _ = make_agent(
        store, [calls("search", query="long " * 500), BrokenOffError(), AIMessage("Fine.")]
    )
    with pytest.raises(BrokenOffError):
        await ask(agent, scope)
    await ask(agent, scope, "Well?", "q2")
    history = await store.conversation(**scope).load_history()
    shown = model.shown[-1][1:]
    assert shown[2].text.startswith("found long")
    assert '"tool_message_id"' in history.messages[2].text
    assert [*shown[:2], *shown[3:]] == [*history.messages[:2], *history.messages[3:-1]]


@pytest.mark.slow
async def test_a_result_that_was_not_logged_finds_its_call(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """A hook broke the run off between a tool and the model; with the next question the result is logged and shown."""

    class Breaks(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> None:  # noqa: ARG002 - LangChain passes it
            if isinstance(state["messages"][-1], ToolMessage):
                raise BrokenOffError

    @tool
    def search(query: str) -> str:
        """Search."""
        return f"found {query}"

    model = ScriptedModel(replies=[calls("search", query="a"), AIMessage("Fine.")])
    middleware = [ConversationMiddleware(store, tool_results="after_hooks"), Breaks()]
    agent = create_agent(model, [search], middleware=middleware, checkpointer=InMemorySaver())
    with pytest.raises(BrokenOffError):
        await ask(agent, scope)
    await ask(agent, scope, "Well?", "q2")
    shown = [("human", QUESTION), ("ai", ""), ("tool", "found a"), ("human", "Well?")]
    assert kinds(model.shown[-1]) == shown
    assert kinds(await log_of(store.conversation(**scope))) == [*shown, ("ai", "Fine.")]


@pytest.mark.slow
async def test_summarised_messages_of_a_long_turn_are_not_shown_with_the_summary(
    database: Any, scope: dict[str, str]
) -> None:
    """A turn broke off and was summarised in part by another worker; taken up again it goes on after the summary."""
    rule = CompactionRule(max_tokens_before_summary=600, max_summary_tokens=100, keep_last_turns=0)
    store = ConversationStore(database, summarizer=HeadTailSummarizer(rule, characters=40))
    steps = [calls("search", query=f"{step} " + "long " * 100) for step in range(6)]
    saver = InMemorySaver()
    agent, _, _ = make_agent(store, [*steps, BrokenOffError()], checkpointer=saver)
    with pytest.raises(BrokenOffError):
        await ask(agent, scope)
    assert (await store.conversation(**scope).compact()).status == "done"
    agent, model, ran = make_agent(store, [AIMessage("By dancing.")], checkpointer=saver)
    result = await agent.ainvoke(None, {"configurable": scope})
    assert (result["messages"][-1].text, ran) == ("By dancing.", [])
    assert "long 5" not in repr(model.shown[0])
    assert [message.type for message in model.shown[0]][:3] == ["system", "human", "ai"]
    assert "found 0" not in repr(model.shown[0][2:])
    assert "found 5" in model.shown[0][-1].text
    assert len(await log_of(store.conversation(**scope))) == 14
    await store.close()


async def test_a_run_that_was_taken_up_asks_the_log_once(
    client: Client, database_name: str, scope: dict[str, str], commands: Commands
) -> None:
    """Question and turn (head, question, two for the turn), then the view; later steps only insert."""
    store = ConversationStore(client[database_name])
    await store.setup()
    saver = InMemorySaver()
    agent, _, _ = make_agent(
        store, [calls("search", query="a"), BrokenOffError()], checkpointer=saver
    )
    with pytest.raises(BrokenOffError):
        await ask(agent, scope)
    replies = [calls("search", query="b"), calls("search", query="c"), AIMessage("By dancing.")]
    agent, _, _ = make_agent(store, replies, checkpointer=saver)
    with commands.counted():
        await agent.ainvoke(None, {"configurable": scope})
    assert commands.names.count("insert") == 5
    assert commands.names.count("find") <= 7
    await store.close()


@pytest.mark.costly
@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no checkpointer", "checkpointer"])
async def test_another_answer_is_given_once_the_first_is_rewound(
    store: ConversationStore, scope: dict[str, str], saver: Any
) -> None:
    """The question stays and is asked again under its id: a new answer, the old one in neither state nor view."""
    agent, model, _ = make_agent(
        store,
        [calls("search"), AIMessage("By dancing."), AIMessage("By smell."), AIMessage("Yes.")],
        checkpointer=saver,
    )
    first = await ask(agent, scope)
    await store.conversation(**scope).rewind(before_id=first["messages"][1].id)
    second = await ask(agent, scope)
    assert kinds(second["messages"]) == [("human", QUESTION), ("ai", "By smell.")]
    await ask(agent, scope, "Sure?", "q2")
    assert kinds(model.shown[-1]) == [("human", QUESTION), ("ai", "By smell."), ("human", "Sure?")]


async def test_what_a_run_appends_after_its_question_was_rewound_is_of_no_turn(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Result, addition of the tool and answer are logged, and belong neither to the turn before nor to a new one."""
    chat = store.conversation(**scope)

    @tool
    async def look(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Look, while the user asks something else instead."""
        await chat.rewind(before_id="q1")
        await chat.append(HumanMessage("And ants?", id="q2"))
        result = ToolMessage("seen", tool_call_id=tool_call_id)
        return Command(update={"messages": [result, HumanMessage("A picture.")]})

    await chat.append([HumanMessage("Hello?", id="q0"), AIMessage("Hello.")])
    model = ScriptedModel(replies=[calls("look"), AIMessage("By dancing.")])
    agent = create_agent(model, [look], middleware=[ConversationMiddleware(store)])
    await ask(agent, scope, QUESTION, "q1")
    turns = [turn async for turn in chat.turns()]
    assert [(turn.turn_id, turn.over, len(turn.others)) for turn in turns] == [
        ("q0", "answered", 0),
        ("q2", "", 3),
    ]
    texts = [message.text for message in turns[1].messages]
    assert texts == ["And ants?", "seen", "A picture.", "By dancing."]


@pytest.mark.costly
@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no checkpointer", "checkpointer"])
async def test_a_structured_answer_is_given_again_in_its_form(
    store: ConversationStore, scope: dict[str, str], saver: Any
) -> None:
    """With ToolStrategy: the call, its result and the object come from the log."""
    agent, model, _ = make_agent(
        store,
        [calls("search"), calls("Report", title="Bees")],
        response_format=ToolStrategy(Report),
        checkpointer=saver,
    )
    first = await ask(agent, scope)
    log = await log_of(store.conversation(**scope))
    assert log == first["messages"]
    assert isinstance(log[-1], ToolMessage)
    again = await ask(agent, scope)
    assert again["structured_response"] == first["structured_response"] == Report(title="Bees")
    assert again["messages"] == first["messages"]
    assert len(model.shown) == 2
    assert await log_of(store.conversation(**scope)) == log


async def test_a_structured_answer_of_the_provider_is_given_again_in_its_form(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """With ProviderStrategy: the text that is in the log is read again."""
    agent, model, _ = make_agent(
        store, [AIMessage('{"title": "Bees"}')], response_format=ProviderStrategy(Report)
    )
    first = await ask(agent, scope)
    again = await ask(agent, scope)
    assert again["structured_response"] == first["structured_response"] == Report(title="Bees")
    assert len(model.shown) == 1


async def test_a_structured_answer_that_did_not_fit_is_asked_for_again(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The error that the model was shown is logged; given again, the second try counts."""
    replies = [calls("Report", wrong=1), calls("Report", title="Bees")]
    agent, model, _ = make_agent(store, replies, response_format=ToolStrategy(Report))
    first = await ask(agent, scope)
    again = await ask(agent, scope)
    assert again["messages"] == first["messages"] == await log_of(store.conversation(**scope))
    assert again["structured_response"] == Report(title="Bees")
    assert len(model.shown) == 2


async def test_agents_in_a_row_in_one_graph_each_have_their_say(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The second is not taken for a repetition of the first, though the question is the same."""
    first, _, _ = make_agent(store, [AIMessage("First says.")])
    second, model, _ = make_agent(store, [AIMessage("Second says.")])
    graph = StateGraph(MessagesState)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge("__start__", "first")
    graph.add_edge("first", "second")
    result = await ask(graph.compile(), scope)
    assert [message.text for message in result["messages"]] == [
        QUESTION,
        "First says.",
        "Second says.",
    ]
    assert kinds(model.shown[0]) == [("human", QUESTION), ("ai", "First says.")]
    assert await log_of(store.conversation(**scope)) == result["messages"]


async def test_messages_that_come_with_the_first_question_are_logged_with_it(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Examples before the question, and the beginning of an answer after it: the application's, so logged and shown."""
    model = ScriptedModel(replies=[AIMessage("Fine.")])
    agent = create_agent(model, middleware=[ConversationMiddleware(store, trust="all")])
    given = [
        HumanMessage("2+2?", id="e1"),
        AIMessage("4", id="e2"),
        HumanMessage("3+3?", id="e3"),
        AIMessage("It is"),
    ]
    await agent.ainvoke({"messages": given}, {"configurable": scope})
    shown = [text for _, text in kinds(model.shown[0])]
    assert shown == ["2+2?", "4", "3+3?", "It is"]
    assert [message.text for message in await log_of(store.conversation(**scope))] == [
        *shown,
        "Fine.",
    ]


class Signs(AgentMiddleware[Any, Any, Any]):
    """Adds a message at the end of each run."""

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any]:  # noqa: ARG002 - LangChain passes it
        """Add a message, as middleware does that checks a policy."""
        return {"messages": [AIMessage("Checked.")]}


@pytest.mark.costly
@pytest.mark.parametrize("saves", [False, True], ids=["no checkpointer", "checkpointer"])
async def test_what_hooks_add_at_the_end_is_logged_once(
    store: ConversationStore, scope: dict[str, str], saves: bool
) -> None:
    """A repeated question gets the same messages, and neither it nor the next one adds to them."""
    saver = InMemorySaver() if saves else None
    replies = [AIMessage("By dancing."), AIMessage("Yes.")]
    agent, model, _ = make_agent(store, replies, beside=[Signs()], checkpointer=saver)
    first = await ask(agent, scope)
    for _ in range(2):
        assert (await ask(agent, scope))["messages"] == first["messages"]
    assert kinds(first["messages"]) == [
        ("human", QUESTION),
        ("ai", "By dancing."),
        ("ai", "Checked."),
    ]
    assert await log_of(store.conversation(**scope)) == first["messages"]
    await ask(agent, scope, "Sure?", "q2")
    assert kinds(model.shown[-1]) == [*kinds(first["messages"]), ("human", "Sure?")]
    assert len(await log_of(store.conversation(**scope))) == 6


async def test_a_turn_that_ends_with_the_result_of_a_tool_is_finished(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """The end of its run finishes it; asked again it is given without the model and without the tool."""
    ran: list[str] = []

    @tool(return_direct=True)
    def look_up(word: str) -> str:
        """Look a word up."""
        ran.append(word)
        return f"{word} is said in the book. " * 100

    chat = store.conversation(**scope)
    model = ScriptedModel(replies=[calls("look_up", word="It"), AIMessage("Yes.")])
    agent = create_agent(model, [look_up], middleware=[ConversationMiddleware(store)])
    first = await ask(agent, scope)
    assert (await ask(agent, scope))["messages"] == first["messages"] == await log_of(chat)
    assert (len(model.shown), ran) == (1, ["It"])
    assert (await chat.get_turn("q1")).is_finished
    await ask(agent, scope, "Sure?", "q2")
    assert (await chat.get_turn("q1")).is_finished
    assert '"tool_message_id"' in model.shown[-1][3].text


async def test_an_empty_answer_is_shown_as_a_text(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """In the turn that continues after it and in the next one alike, because providers refuse an empty message."""

    class AskAgain(AgentMiddleware[Any, Any, Any]):
        """Asks the model again if its answer is empty."""

        @hook_config(can_jump_to=["model"])
        def after_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 - the hook has it
            return None if state["messages"][-1].text else {"jump_to": "model"}

    agent, model, _ = make_agent(
        store, [AIMessage(""), AIMessage("So."), AIMessage("Thus.")], beside=[AskAgain()]
    )
    await ask(agent, scope)
    await ask(agent, scope, "Why?", "q2")
    shown = [[text for _, text in kinds(messages)] for messages in model.shown]
    assert shown[1:] == [[QUESTION, "(no text)"], [QUESTION, "(no text)", "So.", "Why?"]]
    assert (await log_of(store.conversation(**scope)))[1].text == ""


async def test_a_late_result_does_not_open_an_answered_question_again(
    store: ConversationStore, scope: dict[str, str]
) -> None:
    """Asked again, it is answered from the log; the late result stays in the log."""
    agent, model, ran = make_agent(store, [calls("search", query="a"), AIMessage("Fine.")])
    await ask(agent, scope)
    chat = store.conversation(**scope)
    await chat.append(ToolMessage("late", tool_call_id="nobody", id="late"), turn="q1")
    again = await ask(make_agent(store, [])[0], scope)
    assert again["messages"][-1].text == "Fine."
    assert (len(model.shown), ran) == (2, ["a"])
    assert (await chat.get_turn("q1")).over == "answered"
