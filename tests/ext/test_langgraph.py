"""Graphs built by hand: what the model is shown, what the log gets and what stays in the state, on a real server."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated, Any, TypedDict
from urllib.parse import urlsplit

import pytest
from fixture_types import Client
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import Command, RetryPolicy, interrupt
from pydantic import BaseModel
from pymongo import MongoClient

from convstore import (
    Conversation,
    ConversationStore,
    HistoryPolicy,
    number_sources,
    retrieve_previous_sources_tool,
)
from convstore.exceptions import (
    ContentConflictError,
    InvalidInputError,
    InvalidScopeError,
    StoreUnavailableError,
    SyncUnsupportedError,
    TurnBusyError,
)
from convstore.ext.langgraph import (
    ConversationState,
    LoadedView,
    answer_of,
    append_node,
    load_node,
    view_of,
)
from convstore.ext.langgraph.state import compose
from convstore.integration import host_of
from convstore.messages.filing import last_question
from convstore.messages.tokens import count
from convstore.testing import rag_turn
from convstore.testing.pairing import check_pairing
from convstore.testing.samples import new_id, same_messages
from convstore.types import Dropped, Source, SourcePage

Model = Callable[[Sequence[BaseMessage]], AIMessage]


@pytest.fixture
async def store(pymongo_client: Client, database_name: str) -> AsyncIterator[ConversationStore]:
    """A store on the tests' client."""
    made = ConversationStore(pymongo_client[database_name], collection_prefix="graphs_")
    await made.setup()
    yield made
    await made.close()


@pytest.fixture
async def other_worker(pymongo_client: Client, database_name: str) -> ConversationStore:
    """A store of another process on the same data, which knows nothing yet."""
    return ConversationStore(pymongo_client[database_name], collection_prefix="graphs_")


@pytest.fixture
def config() -> RunnableConfig:
    """The configuration of a conversation that no other test has."""
    return {"configurable": {"user_id": "ada", "thread_id": new_id()}}


def chat_of(store: ConversationStore, config: RunnableConfig) -> Conversation:
    """The conversation of a configuration."""
    return store.conversation(**config["configurable"])


async def log_of(store: ConversationStore, config: RunnableConfig) -> list[BaseMessage]:
    """All that was appended."""
    return [message async for message in chat_of(store, config).messages(rewound=True)]


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    """The texts of messages."""
    return [message.text for message in messages]


class Scripted:
    """A model that calls a tool once a turn, if it is to, and answers; keeps what it was shown."""

    def __init__(self, *, calls: int = 0) -> None:
        self.calls, self.shown = calls, list[list[BaseMessage]]()

    def __call__(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """Answer as a chat model does."""
        self.shown.append(list(messages))
        assert check_pairing(messages) == []
        if self.calls and isinstance(messages[-1], HumanMessage):
            return AIMessage("", tool_calls=[self._call(number) for number in range(self.calls)])
        asked = next(message for message in reversed(messages) if isinstance(message, HumanMessage))
        return AIMessage(f"to {asked.text}")

    def _call(self, number: int) -> Any:
        return {
            "name": "search",
            "args": {"part": number},
            "id": f"call-{number}",
            "type": "tool_call",
        }


async def search(state: MessagesState) -> dict[str, Any]:
    """The tool, for each call of the last message, in the wrong order."""
    last = state["messages"][-1]
    assert isinstance(last, AIMessage)
    found = [
        ToolMessage("found " * 300, name="search", tool_call_id=call["id"])
        for call in last.tool_calls
    ]
    return {"messages": found[::-1]}


def after_model(state: MessagesState) -> str:
    """Return True if tools run next."""
    last = state["messages"][-1]
    return "tools" if isinstance(last, AIMessage) and last.tool_calls else "done"


def in_order(schema: Any, **nodes: Any) -> StateGraph[Any]:
    """A graph of these nodes, one after the other."""
    graph: StateGraph[Any] = StateGraph(schema)
    for before, (name, node) in zip([START, *nodes], nodes.items(), strict=False):
        graph.add_node(name, node)
        graph.add_edge(before, name)
    return graph


def model_node(model: Model) -> Any:
    """A node that shows the model the view."""

    async def call_model(state: ConversationState) -> dict[str, Any]:
        return {"messages": [model(view_of(state))]}

    return call_model


def straight(
    store: ConversationStore, model: Model, schema: Any = MessagesState, **load: Any
) -> StateGraph[Any]:
    """Load, model, append."""
    return in_order(
        schema, load=load_node(store, **load), model=model_node(model), append=append_node(store)
    )


def looped(store: ConversationStore, model: Model, wiring: str) -> StateGraph[Any]:
    """An agent with tools, which loads and appends at the places that the wiring names."""
    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_node("load", load_node(store, append_first=wiring == "append first"))
    graph.add_node("model", model_node(model))
    graph.add_node("tools", search)
    graph.add_node("append", append_node(store))
    graph.add_edge("load", "model")
    graph.add_edge("append", END)
    if wiring == "question before":
        graph.add_node("append question", append_node(store))
        graph.add_edge(START, "append question")
        graph.add_edge("append question", "load")
    else:
        graph.add_edge(START, "load")
    if wiring in ("every step", "every step and load"):
        graph.add_node("append calls", append_node(store))
        graph.add_node("append results", append_node(store))
        graph.add_edge("append calls", "tools")
        graph.add_edge("tools", "append results")
        graph.add_edge("append results", "load" if wiring == "every step and load" else "model")
        graph.add_conditional_edges(
            "model", after_model, {"tools": "append calls", "done": "append"}
        )
    elif wiring == "load between call and result":
        graph.add_node("append calls", append_node(store))
        graph.add_node("load again", load_node(store))
        graph.add_edge("append calls", "load again")
        graph.add_edge("load again", "tools")
        graph.add_edge("tools", "model")
        graph.add_conditional_edges(
            "model", after_model, {"tools": "append calls", "done": "append"}
        )
    else:
        graph.add_edge("tools", "model")
        graph.add_conditional_edges("model", after_model, {"tools": "tools", "done": "append"})
    return graph


async def test_what_the_messages_lack_of_the_log_is_reported(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """By `view_of`, of the view and of the state's own messages; each part once."""
    thought: Any = [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]
    before = [HumanMessage("One?"), AIMessage([*thought, "So."], id="a")]
    await chat_of(store, config).append(before)
    dropped = list[list[Dropped]]()
    policy = HistoryPolicy(provider="openai")
    load = load_node(store, policy=policy, on_dropped=dropped.append)
    messages = [HumanMessage("Two?", id="q"), AIMessage(thought, id="b")]
    state = {"messages": messages}
    loaded = await load.ainvoke(state, config)
    shown = view_of(loaded | state)
    assert await load.aview_of(state, config) == shown
    assert "Hm." not in str(shown)
    parts = [[(part.message_id, part.part) for part in request] for request in dropped]
    assert parts == [[("a", "reasoning"), ("b", "reasoning")]] * 2


WIRINGS = [
    "append last",
    "append first",
    "question before",
    "every step",
    "every step and load",
    "load between call and result",
]


@pytest.fixture(params=[None, pytest.param("anthropic", marks=pytest.mark.slow)])
async def either_store(
    request: pytest.FixtureRequest, pymongo_client: Client, database_name: str
) -> ConversationStore:
    """A store whose views are as they come, and one whose views are made for a provider."""
    policy = HistoryPolicy(provider=request.param)
    store = ConversationStore(
        pymongo_client[database_name], collection_prefix="graphs_", policy=policy
    )
    await store.setup()
    return store


@pytest.mark.costly
@pytest.mark.parametrize(
    "with_checkpointer", [False, True], ids=["without checkpointer", "with checkpointer"]
)
@pytest.mark.parametrize("wiring", WIRINGS)
async def test_the_model_sees_view_and_turn_exactly_once(
    either_store: ConversationStore, config: RunnableConfig, wiring: Any, with_checkpointer: bool
) -> None:
    """Wherever the nodes stand, the model is shown what `load_history` would give if all were in the log by then."""
    store = either_store
    model, expected = Scripted(calls=2), list[list[BaseMessage]]()
    mirror = store.conversation(user_id="mirror", thread_id=new_id())
    graph = looped(store, model, wiring).compile(
        checkpointer=InMemorySaver() if with_checkpointer else None
    )
    for question in ("one", "two", "three"):
        before = len(await log_of(store, config))
        await graph.ainvoke({"messages": [HumanMessage(question)]}, config)
        asked, calls, *results, answer = (await log_of(store, config))[before:]
        await mirror.append(asked)
        expected.append((await mirror.load_history()).messages)
        await mirror.append([calls, *results])
        expected.append((await mirror.load_history()).messages)
        await mirror.append(answer)
    assert len(model.shown) == len(expected) == 6
    # a late reply names its question once it is appended
    for shown, wanted in zip(model.shown, expected, strict=True):
        plain = [
            [message.model_copy(update={"response_metadata": {}}) for message in messages]
            for messages in (shown, wanted)
        ]
        assert same_messages(*plain)
    assert len({message.id for message in model.shown[-1]}) == len(model.shown[-1]) == 14


@pytest.mark.parametrize("append_first", [True, False])
async def test_an_answer_has_the_stamp_of_the_view_that_the_model_got(
    store: ConversationStore,
    other_worker: ConversationStore,
    config: RunnableConfig,
    append_first: bool,
) -> None:
    """Exact if the question was in the log; if not, the stamp says that the model got more."""
    model = Scripted()
    graph = straight(store, model, append_first=append_first).compile()
    for question in ("one", "two"):
        await graph.ainvoke({"messages": [HumanMessage(question)]}, config)
    *_, answer = await chat_of(store, config).list_messages()
    past = await chat_of(other_worker, config).view_at(answer.stamp)
    if append_first:
        assert (past.match, past.messages) == ("exact", model.shown[-1])
    else:
        assert (past.match, past.difference, past.messages) == (
            "differs",
            "adapted",
            model.shown[-1][:-1],
        )
    assert answer.stamp
    assert answer.stamp.parts.now == count(store.token_counter, model.shown[-1][-1])


async def test_answers_to_results_that_were_appended_before_them_have_exact_stamps(
    store: ConversationStore, other_worker: ConversationStore, config: RunnableConfig
) -> None:
    """The model answers from the view of the run's beginning and what nodes have appended since."""
    model = Scripted(calls=2)
    graph = looped(store, model, "every step").compile()
    for question in ("one", "two"):
        await graph.ainvoke({"messages": [HumanMessage(question)]}, config)
    log = await chat_of(store, config).list_messages(full=True)
    answers = [stored for stored in log if stored.message.text.startswith("to ")]
    for answer, shown in zip(answers, model.shown[1::2], strict=True):
        past = await chat_of(other_worker, config).view_at(answer.stamp)
        assert past.match == "exact"
        assert same_messages(past.messages, shown)
        turn = shown[last_question(shown) :]
        sizes = [count(store.token_counter, message) for message in turn]
        assert answer.stamp
        assert answer.stamp.parts.now == sum(sizes)


async def test_the_state_keeps_this_turn_only_and_the_answer_stays_last(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """Earlier turns leave at the start of the next run, and what the run gives is the turn, nothing of ours."""
    graph = straight(store, Scripted()).compile(checkpointer=InMemorySaver())
    for question in ("one", "two", "three"):
        result = await graph.ainvoke({"messages": [HumanMessage(question)]}, config)
        assert list(result) == ["messages"]
        assert texts(result["messages"]) == [question, f"to {question}"]
    state = (await graph.aget_state(config)).values
    assert texts(state["messages"]) == ["three", "to three"]
    assert state["convstore_logged"] == [message.id for message in state["messages"]]
    assert set(state) == {"messages", "convstore_logged", "convstore_owner", "convstore_turn"}
    assert texts(await log_of(store, config)) == [
        "one",
        "to one",
        "two",
        "to two",
        "three",
        "to three",
    ]


@pytest.mark.parametrize("schema", [MessagesState, ConversationState])
async def test_no_stream_repeats_earlier_turns(
    store: ConversationStore, config: RunnableConfig, schema: Any
) -> None:
    """New messages come through as they are made; nothing that is written as JSON has a message of an earlier turn."""
    graph = straight(store, Scripted(), schema=schema).compile(checkpointer=InMemorySaver())
    for question in ("SECRET", "SECRET too"):
        await graph.ainvoke({"messages": [HumanMessage(question)]}, config)
    new, updates, values = [], [], []
    stream = graph.astream(
        {"messages": [HumanMessage("new")]}, config, stream_mode=["messages", "updates", "values"]
    )
    async for mode, part in stream:
        {"messages": new, "updates": updates, "values": values}[mode].append(part)
    assert [message.text for message, _ in new] == ["to new"]
    # The first values are those of the checkpoint and the input, as in any graph.
    shown = json.dumps([updates, values[1:]], default=lambda message: message.text)
    assert "SECRET" not in shown + repr(updates) + repr(values[1:])
    assert "to new" in shown


async def test_a_subgraph_with_the_same_channels_checkpoints_no_history(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """A subgraph with the same channels gets the view of the outer graph, and the checkpointer stores no history."""
    model, saver = Scripted(), InMemorySaver()
    inner: StateGraph[Any] = StateGraph(ConversationState)
    inner.add_node("model", model_node(model))
    inner.add_edge(START, "model")
    graph = in_order(
        ConversationState, load=load_node(store), inner=inner.compile(), append=append_node(store)
    )
    compiled = graph.compile(checkpointer=saver)
    await chat_of(store, config).append(rag_turn("SECRET"))
    result = await compiled.ainvoke({"messages": [HumanMessage("new")]}, config)
    assert texts(result["messages"]) == ["new", "to new"]
    assert "SECRET" in texts(model.shown[0])
    written = repr(saver.blobs) + repr(saver.writes) + repr(saver.storage)
    assert "to new" in written
    assert "SECRET" not in written


async def test_a_subgraph_with_nodes_of_its_own_doubles_nothing(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """If a subgraph loads and appends too, each message is still shown and logged once."""
    model = Scripted()
    graph = in_order(
        MessagesState,
        load=load_node(store),
        inner=straight(store, model).compile(),
        append=append_node(store),
    )
    compiled = graph.compile(checkpointer=InMemorySaver())
    for question in ("one", "two"):
        await compiled.ainvoke({"messages": [HumanMessage(question)]}, config)
    assert texts(model.shown[-1]) == ["one", "to one", "two"]
    assert texts(await log_of(store, config)) == ["one", "to one", "two", "to two"]


def with_approval(
    store: ConversationStore, model: Model, *, in_model: bool
) -> tuple[StateGraph[Any], Any]:
    """An agent whose tools wait for a human; its model node loads the view again where it is absent."""
    load = load_node(store)

    async def call_model(state: ConversationState) -> dict[str, Any]:
        return {"messages": [model(await load.aview_of(state) if in_model else view_of(state))]}

    async def ask(state: MessagesState) -> dict[str, Any]:
        return await search(state) if interrupt("run it?") else {}

    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_node("load", load)
    graph.add_node("model", call_model)
    graph.add_node("tools", ask)
    graph.add_node("append", append_node(store))
    graph.add_edge(START, "load")
    graph.add_edge("load", "model")
    graph.add_edge("tools", "model")
    graph.add_conditional_edges("model", after_model, {"tools": "tools", "done": "append"})
    graph.add_edge("append", END)
    return graph, load


@pytest.fixture(params=["memory", "MongoDBSaver"])
def saver(request: pytest.FixtureRequest, server_uri: str, database_name: str) -> Iterator[Any]:
    """A checkpointer that several workers share: LangGraph's own, and that for MongoDB."""
    if request.param == "memory":
        yield InMemorySaver()
        return
    with MongoClient[dict[str, Any]](server_uri) as client:
        yield MongoDBSaver(client, db_name=database_name)


@pytest.mark.costly
@pytest.mark.parametrize("in_model", [True, False])
async def test_another_worker_resumes(
    store: ConversationStore,
    other_worker: ConversationStore,
    config: RunnableConfig,
    saver: Any,
    in_model: bool,
) -> None:
    """The view is absent there: `aview_of` loads it, `view_of` says what to do, and the log has the turn once."""
    await chat_of(store, config).append(rag_turn("earlier"))
    first, _ = with_approval(store, Scripted(calls=1), in_model=in_model)
    paused = await first.compile(checkpointer=saver).ainvoke(
        {"messages": [HumanMessage("new")]}, config
    )
    assert "__interrupt__" in paused
    model = Scripted(calls=1)
    second, _ = with_approval(other_worker, model, in_model=in_model)
    resumed = second.compile(checkpointer=saver)
    if not in_model:
        with pytest.raises(
            InvalidInputError, match=r"the state has no view: let a load node run.*aview_of"
        ):
            await resumed.ainvoke(Command(resume=True), config)
        return
    result = await resumed.ainvoke(Command(resume=True), config)
    assert result["messages"][-1].text == "to new"
    assert [message.type for message in model.shown[-1]] == [
        "human",
        "ai",
        "tool",
        "ai",
        "human",
        "ai",
        "tool",
    ]
    assert model.shown[-1][2].text.startswith('{"success": true')
    assert len(await log_of(store, config)) == 8


async def test_the_second_of_two_runs_at_once_waits(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """It is shown the first one's turn, with its answer; where it may not wait, it is refused and writes nothing."""
    asked = asyncio.Event()
    going = asyncio.Event()
    shown = list[list[str]]()

    async def call_model(state: ConversationState) -> dict[str, Any]:
        shown.append(texts(view_of(state)))
        asked.set()
        await going.wait()
        return {"messages": [AIMessage(f"to {shown[-1][-1]}")]}

    def graph(**options: Any) -> Any:
        load = load_node(store, **options)
        return in_order(
            MessagesState, load=load, model=call_model, append=append_node(store)
        ).compile()

    def run(question: str, **options: Any) -> asyncio.Task[Any]:
        asking = {"messages": [HumanMessage(question)]}
        return asyncio.create_task(graph(**options).ainvoke(asking, config))

    first = run("left")
    await asked.wait()
    with pytest.raises(TurnBusyError):
        await run("refused", busy="raise")
    second = run("right")
    await asyncio.sleep(0.1)
    assert not first.done()
    assert not second.done()
    going.set()
    await asyncio.gather(first, second)
    assert texts(await log_of(store, config)) == ["left", "to left", "right", "to right"]
    assert shown == [["left"], ["left", "to left", "right"]]


class FailsOnce(ConversationStore):
    """A store that loses the first answer of an append, after it was written."""

    failed = False

    def conversation(self, **scope: str) -> Conversation:
        """Return a conversation; the first append of messages raises after it has written."""
        writer: Any = host_of(self)._services.writer
        if "append" not in vars(writer):
            append = writer.append

            async def failing(where: Any, messages: Any, **options: Any) -> Any:
                written = await append(where, messages, **options)
                if messages and not self.failed:
                    self.failed = True
                    raise StoreUnavailableError("no answer")
                return written

            writer.append = failing
        return super().conversation(**scope)


async def test_a_node_that_is_run_again_appends_nothing_twice(
    pymongo_client: Client, database_name: str, config: RunnableConfig
) -> None:
    """LangGraph repeats the node after an error that came when all was written already."""
    store = FailsOnce(pymongo_client[database_name], collection_prefix="graphs_")
    await store.setup()
    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_node("load", load_node(store, append_first=False))
    graph.add_node("model", model_node(Scripted()))
    retry = RetryPolicy(initial_interval=0, jitter=False, retry_on=StoreUnavailableError)
    graph.add_node("append", append_node(store), retry_policy=retry)
    for begin, end in ((START, "load"), ("load", "model"), ("model", "append"), ("append", END)):
        graph.add_edge(begin, end)
    await graph.compile().ainvoke({"messages": [HumanMessage("one")]}, config)
    assert store.failed
    assert texts(await log_of(store, config)) == ["one", "to one"]


def with_answers(store: ConversationStore, model: Model, **load: Any) -> StateGraph[Any]:
    """Asks the model only if the log has no answer."""
    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_node("load", load_node(store, **load))
    graph.add_node("model", model_node(model))
    graph.add_node("append", append_node(store))

    def next_of(state: ConversationState) -> str:
        return "model" if answer_of(state) is None else END

    graph.add_edge(START, "load")
    graph.add_conditional_edges("load", next_of, ["model", END])
    graph.add_edge("model", "append")
    graph.add_edge("append", END)
    return graph


@pytest.mark.costly
@pytest.mark.parametrize(
    "with_checkpointer", [False, True], ids=["without checkpointer", "with checkpointer"]
)
@pytest.mark.parametrize("append_first", [False, True])
async def test_a_repeated_request_gets_the_answer_of_the_log(
    store: ConversationStore, config: RunnableConfig, with_checkpointer: bool, append_first: bool
) -> None:
    """The model is not asked again, nothing is written, and the answer is the last message of the result."""
    model, saver = Scripted(), InMemorySaver() if with_checkpointer else None
    graph = with_answers(store, model, append_first=append_first).compile(checkpointer=saver)
    await graph.ainvoke({"messages": [HumanMessage("zero")]}, config)
    long = "all of it " * 3_000
    request = {"messages": [HumanMessage("one", id=new_id())]}
    await graph.ainvoke(request, config)
    again = await graph.ainvoke(
        {"messages": [HumanMessage("one", id=request["messages"][0].id)]}, config
    )
    assert texts(again["messages"]) == ["one", "to one"]
    assert len(model.shown) == 2
    assert texts(await log_of(store, config)) == ["zero", "to zero", "one", "to one"]
    # An answer that views show as a placeholder comes whole.
    asked = HumanMessage("long?", id=new_id())
    await chat_of(store, config).append([asked, AIMessage(long)])
    result = await graph.ainvoke({"messages": [HumanMessage("long?", id=asked.id)]}, config)
    assert result["messages"][-1].text == long
    assert len(model.shown) == 2


@pytest.mark.parametrize(
    "with_checkpointer", [False, True], ids=["without checkpointer", "with checkpointer"]
)
async def test_other_words_under_the_same_id_are_refused(
    store: ConversationStore, config: RunnableConfig, with_checkpointer: bool
) -> None:
    """A repeated request is the same request; no answer is given to a question that was not asked."""
    saver = InMemorySaver() if with_checkpointer else None
    graph = with_answers(store, Scripted()).compile(checkpointer=saver)
    question = new_id()
    await graph.ainvoke({"messages": [HumanMessage("one", id=question)]}, config)
    with pytest.raises(ContentConflictError):
        await graph.ainvoke({"messages": [HumanMessage("other", id=question)]}, config)


async def test_an_answer_is_found_after_a_late_result(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """A late result, shown as a human message in the middle of a turn, does not end the turn."""
    chat = chat_of(store, config)
    pay = AIMessage("", tool_calls=[{"name": "pay", "args": {}, "id": "pay"}])
    asked, call, result, answer = rag_turn("one")
    await chat.append(
        [
            HumanMessage("Pay."),
            pay,
            asked,
            call,
            result,
            ToolMessage("Paid.", tool_call_id="pay"),
            answer,
        ]
    )
    node = load_node(store, policy=HistoryPolicy(max_turns=1))
    state = {"messages": [asked]} | await node.ainvoke({"messages": [asked]}, config)
    found = answer_of(state)
    assert found is not None
    assert found.id == answer.id


async def test_a_turn_that_broke_off_goes_on_from_the_log(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """Without a checkpointer the question under its id is enough: calls and results of before are shown, and kept."""
    model = Scripted(calls=1)
    asked, call, result, _ = rag_turn("one")
    await chat_of(store, config).append([asked, call, result])
    graph = with_answers(store, model).compile()
    given = await graph.ainvoke({"messages": [HumanMessage("one", id=asked.id)]}, config)
    assert given["messages"][-1].text == "to one"
    [shown] = model.shown
    assert same_messages(shown, [asked, call, result])
    assert len(await log_of(store, config)) == 4


async def test_what_a_broken_run_left_in_the_checkpoint_is_shown_and_logged_in_order(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """A call that nobody answered is shown with a result that says so, and nothing of the broken turn is lost."""
    saver, model = InMemorySaver(), Scripted(calls=1)
    broken: StateGraph[Any] = looped(store, model, "append last")
    await broken.compile(checkpointer=saver, interrupt_before=["tools"]).ainvoke(
        {"messages": [HumanMessage("one")]}, config
    )
    model.calls = 0
    graph = straight(store, model).compile(checkpointer=saver)
    await graph.ainvoke({"messages": [HumanMessage("two")]}, config)
    assert [message.type for message in model.shown[-1]] == ["human", "ai", "tool", "human"]
    assert model.shown[-1][2].additional_kwargs["convstore"] == {"kind": "missing_result"}
    logged = await log_of(store, config)
    assert [message.type for message in logged] == ["human", "ai", "human", "ai"]
    result = await graph.ainvoke({"messages": [HumanMessage("three")]}, config)
    assert texts(result["messages"]) == ["three", "to three"]
    assert len(await log_of(store, config)) == 6


async def test_a_deletion_is_not_undone_by_a_checkpoint(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """Messages of a deleted conversation are not logged again into the new one."""
    graph = straight(store, Scripted()).compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"messages": [HumanMessage("one")]}, config)
    await chat_of(store, config).delete()
    result = await graph.ainvoke({"messages": [HumanMessage("two")]}, config)
    assert texts(result["messages"]) == ["two", "to two"]
    assert texts(await log_of(store, config)) == ["two", "to two"]


async def test_another_answer_after_a_rewind(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """The question is asked again; the answer that was rewound is neither shown nor in the way."""
    model = Scripted()
    graph = with_answers(store, model).compile(checkpointer=InMemorySaver())
    question = new_id()
    first = await graph.ainvoke({"messages": [HumanMessage("one", id=question)]}, config)
    await chat_of(store, config).rewind(before_id=first["messages"][-1].id)
    second = await graph.ainvoke({"messages": [HumanMessage("one", id=question)]}, config)
    assert [texts(shown) for shown in model.shown] == [["one"], ["one"]]
    assert second["messages"][-1].id != first["messages"][-1].id
    history = await chat_of(store, config).load_history()
    assert [message.id for message in history.messages] == [question, second["messages"][-1].id]


async def test_a_view_of_the_conversation_leaves_tools_of_this_turn_out_too(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """A view of the conversation leaves out the tool messages of the turn in progress, even before they are logged."""
    model = Scripted(calls=1)
    await chat_of(store, config).append(rag_turn("earlier"))
    seen = []

    async def talk(state: ConversationState) -> dict[str, Any]:
        seen.append([message.type for message in view_of(state)])
        return {"messages": [AIMessage("done")]}

    policy = HistoryPolicy(view="conversation")
    graph = in_order(
        MessagesState,
        load=load_node(store, policy=policy),
        model=model_node(lambda _: model([HumanMessage("x")])),
        tools=search,
        talk=talk,
    )
    await graph.compile().ainvoke({"messages": [HumanMessage("new")]}, config)
    assert seen == [["human", "ai", "human"]]


@dataclass
class Context:
    """The runtime context of an application."""

    user_id: str
    thread: str = ""


async def test_the_scope_comes_from_context_configuration_or_a_function(
    store: ConversationStore,
) -> None:
    """The user of the context and the thread of the configuration, or what a function makes of both.

    What is appended to another conversation than the loaded one answers no view there.
    """
    graph: StateGraph[Any] = StateGraph(MessagesState, context_schema=Context)

    async def call_model(state: ConversationState, runtime: Runtime[Context]) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{runtime.context.user_id}, {len(view_of(state))}")]}

    def choose(run: Any) -> dict[str, str]:
        return {"thread_id": f"{run.context.thread}-chosen"}

    graph.add_node("load", load_node(store, append_first=False))
    graph.add_node("model", call_model)
    graph.add_node("append", append_node(store))
    graph.add_node("append elsewhere", append_node(store, scope=choose))
    edges = ((START, "load"), ("load", "model"), ("model", "append"), ("model", "append elsewhere"))
    for begin, end in edges:
        graph.add_edge(begin, end)
    thread = new_id()
    for question in ("one", "two"):
        await graph.compile().ainvoke(
            {"messages": [HumanMessage(question)]},
            {"configurable": {"thread_id": thread}},
            context=Context("ada", thread),
        )
    for name in (thread, f"{thread}-chosen"):
        stored = await store.conversation(user_id="ada", thread_id=name).list_messages(rewound=True)
        assert [row.message.text for row in stored] == ["one", "ada, 1", "two", "ada, 3"]
        assert [bool(row.stamp) for row in stored] == [False, name == thread] * 2


async def test_tools_find_the_scope_where_the_nodes_do(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """In the run's context as in its configuration; a run that says two things is refused."""
    await chat_of(store, config).append(rag_turn("What of bees?"))

    @tool
    def find() -> list[dict[str, str]]:
        """Find."""
        return [{"title": "Bees", "content": "Bees dance."}]

    read = retrieve_previous_sources_tool(store)
    schema: Any = dict
    graph = StateGraph(MessagesState, context_schema=schema)
    graph.add_node("tools", ToolNode([read, number_sources(find, store)]))
    graph.add_edge(START, "tools")
    calls = [
        {"name": read.name, "args": {"source_ids": "1"}, "id": "a"},
        {"name": "find", "args": {}, "id": "b"},
    ]
    asked, scope = {"messages": [AIMessage("", tool_calls=calls)]}, config["configurable"]
    both = {"context": {"user_id": "ada"}, "config": config}
    for number, options in enumerate(({"context": scope}, {"config": config}, both), start=4):
        _, page, found = (await graph.compile().ainvoke(asked, **options))["messages"]
        assert page.text.startswith("[1] ")
        assert found.text.startswith(f"[{number}] Bees")
    with pytest.raises(
        InvalidScopeError, match="user_id has different values in the run's context"
    ):
        await graph.compile().ainvoke(asked, config, context={"user_id": "eve"})


async def test_a_run_without_a_scope_is_refused(store: ConversationStore) -> None:
    """By a typed error that says where to put it, from either node and from `aview_of`, before anything is asked."""
    only_user: RunnableConfig = {"configurable": {"user_id": "ada"}}
    with pytest.raises(InvalidScopeError, match="lacks thread_id"):
        await (
            straight(store, Scripted())
            .compile()
            .ainvoke({"messages": [HumanMessage("one")]}, only_user)
        )
    state = {"messages": [HumanMessage("one", id="1")]}
    for call in (append_node(store).ainvoke, load_node(store).aview_of):
        with pytest.raises(InvalidScopeError, match="lacks user_id, thread_id"):
            await call(state)
        with pytest.raises(InvalidScopeError, match="user_id must be a plain str, not dict"):
            await call(state, {"configurable": {"user_id": {"$ne": ""}, "thread_id": "x"}})


async def test_a_graph_is_called_sync_on_a_store_made_by_connect(
    server_uri: str, database_name: str, config: RunnableConfig
) -> None:
    """Load, view of a resumed node and append work from a thread and inside a running loop."""
    uri = urlsplit(server_uri)._replace(path=f"/{database_name}").geturl()
    async with await ConversationStore.connect(uri, collection_prefix="graphs_") as store:
        await store.setup()
        load, seen = load_node(store), []

        def call_model(state: ConversationState) -> dict[str, Any]:
            without = {key: value for key, value in state.items() if key != "convstore_view"}
            seen.append((texts(load.view_of(state)), texts(load.view_of(without))))
            return {"messages": [AIMessage(f"to {state['messages'][-1].text}")]}

        graph = in_order(MessagesState, load=load, model=call_model, append=append_node(store))
        compiled = graph.compile()
        compiled.invoke({"messages": [HumanMessage("one")]}, config)
        await asyncio.to_thread(compiled.invoke, {"messages": [HumanMessage("two")]}, config)
        await compiled.ainvoke({"messages": [HumanMessage("three")]}, config)
        long = ["one", "to one", "two", "to two", "three"]
        assert seen == [(long[:1], long[:1]), (long[:3], long[:3]), (long, long)]
        assert texts(await log_of(store, config)) == [*long, "to three"]


async def test_a_sync_call_on_a_store_of_yours_says_what_to_do(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """A typed error that names both ways out; nothing hangs."""
    graph = straight(store, Scripted()).compile()
    with pytest.raises(SyncUnsupportedError, match=r"await graph\.ainvoke.*connect"):
        graph.invoke({"messages": [HumanMessage("one")]}, config)
    with pytest.raises(SyncUnsupportedError, match=r"await load\.aview_of.*connect"):
        load_node(store).view_of({"messages": []}, config)


class Loose(TypedDict):
    """A state whose messages are replaced, not merged."""

    messages: list[AnyMessage]


async def test_states_that_can_not_work_are_refused(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """A state that cannot work is refused when the graph is built, or else by an InvalidInputError of the node."""
    with pytest.raises(ValueError, match="Channel 'messages' already exists"):
        StateGraph(Loose).add_node("load", load_node(store))
    for state in (
        None,
        {},
        {"messages": None},
        {"messages": "hi"},
        {"messages": ["hi"]},
        Context("ada"),
    ):
        for node in (load_node(store), append_node(store)):
            with pytest.raises(InvalidInputError, match="no list of messages under `messages`"):
                await node.ainvoke(state, config)
    with pytest.raises(InvalidInputError, match="message 1 of the state has no id"):
        await append_node(store).ainvoke(
            {"messages": [HumanMessage("a", id="1"), HumanMessage("b")]}, config
        )
    for state in ({"messages": []}, {"messages": [], "convstore_view": {}}, Context("ada")):
        for read in (view_of, answer_of):
            with pytest.raises(InvalidInputError, match="the state has no view"):
                read(state)


class Elsewhere(TypedDict):
    """A state with its messages under another key."""

    chat: Annotated[list[AnyMessage], add_messages]


async def test_messages_under_another_key_are_not_lost_silently(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """The nodes bring an empty `messages`; that is refused, by each of them, before the model is asked."""
    for node in (load_node(store), load_node(store, append_first=True), append_node(store)):
        graph = StateGraph(Elsewhere).add_node("node", node)
        graph.add_edge(START, "node")
        with pytest.raises(
            InvalidInputError,
            match="no messages under `messages`; derive its schema from MessagesState",
        ):
            await graph.compile().ainvoke({"chat": [HumanMessage("one")]}, config)


async def test_a_node_of_yours_may_remove_all_messages(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """A question that is taken back is not logged, and the nodes do not mind that nothing is left."""
    graph = StateGraph(MessagesState)
    graph.add_node("load", load_node(store, append_first=False))
    graph.add_node(
        "forget", lambda state: {"messages": [RemoveMessage(str(state["messages"][0].id))]}
    )
    graph.add_node("append", append_node(store))
    for before, after in pairwise((START, "load", "forget", "append", END)):
        graph.add_edge(before, after)
    assert (await graph.compile().ainvoke({"messages": [HumanMessage("one")]}, config))[
        "messages"
    ] == []
    assert await log_of(store, config) == []


@pytest.mark.costly
@pytest.mark.parametrize("ids", [("", ""), ("same", "same")])
@pytest.mark.parametrize("steps", ["once", "each step", "append first"])
async def test_calls_get_ids_that_tell_them_apart(
    store: ConversationStore, config: RunnableConfig, ids: Any, steps: str
) -> None:
    """Before the tools run, or with the results that are there: state and log agree, each call has its result."""
    reply = AIMessage(
        "", tool_calls=[{"name": "echo", "args": {"text": "a"}, "id": id_} for id_ in ids]
    )

    def run_tools(state: MessagesState) -> dict[str, Any]:
        called = state["messages"][-1].tool_calls
        return {
            "messages": [
                ToolMessage(f"r{at}", tool_call_id=call["id"]) for at, call in enumerate(called)
            ]
        }

    last = append_node(store) if steps != "append first" else load_node(store, append_first=True)
    order = (
        ["model", "before", "tools", "after"]
        if steps == "each step"
        else ["model", "tools", "after"]
    )
    nodes = {
        "model": lambda _: {"messages": [reply]},
        "before": append_node(store),
        "tools": run_tools,
        "after": last,
    }
    graph = StateGraph(MessagesState)
    for before, after in pairwise([START, *order]):
        graph.add_node(after, nodes[after])
        graph.add_edge(before, after)
    result = await graph.compile().ainvoke({"messages": [HumanMessage("one")]}, config)
    log = await log_of(store, config)
    assert same_messages(log, result["messages"])
    assert check_pairing(log) == []
    assert len({call["id"] for call in log[1].tool_calls} - {""}) == 2
    assert texts(log) == ["one", "", "r0", "r1"]


async def test_arguments_that_can_not_be_are_refused_when_a_node_is_made(
    store: ConversationStore,
) -> None:
    """Wrong arguments of a node are refused when the node is made, not by the first run."""
    for wrong in ({"tenant": "x"}, {"user_id": ""}, "ada"):
        with pytest.raises(InvalidScopeError):
            load_node(store, scope=wrong)
    with pytest.raises(InvalidInputError, match="policy must be a HistoryPolicy"):
        load_node(store, policy={"max_turns": 3})
    with pytest.raises(InvalidInputError, match="store must be a ConversationStore"):
        append_node("mongodb://localhost")


async def test_options_reach_the_append(store: ConversationStore, config: RunnableConfig) -> None:
    """Values that cannot be restored equal are left out if the node says so, else refused."""
    message = ToolMessage("x", tool_call_id="1", artifact=object(), id=new_id())
    with pytest.raises(InvalidInputError, match="artifact"):
        await append_node(store).ainvoke({"messages": [message]}, config)
    assert await log_of(store, config) == []
    await append_node(store, on_unencodable="omit").ainvoke({"messages": [message]}, config)
    assert len(await log_of(store, config)) == 1


@dataclass
class ObjectState:
    """A state that is no dict."""

    messages: list[BaseMessage]
    convstore_view: LoadedView | None = None


async def test_a_state_may_be_an_object(store: ConversationStore, config: RunnableConfig) -> None:
    """Attributes do as well as keys."""
    await chat_of(store, config).append([HumanMessage("one"), AIMessage("two")])
    state = ObjectState([HumanMessage("three", id=new_id())])
    update = await load_node(store).ainvoke(state, config)
    state.convstore_view = update["convstore_view"]
    assert texts(view_of(state)) == ["one", "two", "three"]


async def test_what_a_node_of_yours_removes_is_forgotten(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """Marks of messages that left the state by another way do not pile up."""
    graph = straight(store, Scripted())
    graph.add_node(
        "forget", lambda state: {"messages": [RemoveMessage(str(state["messages"][0].id))]}
    )
    graph.add_edge("append", "forget")
    compiled = graph.compile(checkpointer=InMemorySaver())
    for question in ("one", "two", "three"):
        await compiled.ainvoke({"messages": [HumanMessage(question)]}, config)
    state = (await compiled.aget_state(config)).values
    assert texts(state["messages"]) == ["to three"]
    assert len(state["convstore_logged"]) == 2
    assert len(await log_of(store, config)) == 6


class Mine(ConversationState):
    """A state with a key of its own."""

    documents: Annotated[list[str], lambda old, new: [*old, *new]]


async def test_a_subclass_is_a_schema_too(store: ConversationStore, config: RunnableConfig) -> None:
    """For graphs whose nodes all want the view."""
    graph = straight(store, Scripted(), schema=Mine)
    graph.add_node("search", lambda _: {"documents": ["d"]})
    graph.add_edge("append", "search")
    result = await graph.compile().ainvoke({"messages": [HumanMessage("one")]}, config)
    assert result["documents"] == ["d"]
    assert texts(result["messages"]) == ["one", "to one"]
    assert repr(result["convstore_view"]) == "LoadedView(1 messages, 5 tokens)"


class Validated(BaseModel):
    """A state that pydantic validates at every node."""

    messages: Annotated[list[AnyMessage], add_messages]


class ValidatedView(Validated):
    """With the view."""

    convstore_view: Annotated[LoadedView | None, UntrackedValue(LoadedView, guard=False)] = None


async def test_a_state_may_be_a_pydantic_model(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """The nodes fit into its graph, and a model that names the channel has the view, which validation leaves alone."""
    seen = []

    async def call_model(state: ValidatedView) -> dict[str, Any]:
        seen.append(texts(view_of(state)))
        return {"messages": [AIMessage(f"to {state.messages[-1].text}")]}

    graph = in_order(Validated, load=load_node(store), model=call_model, append=append_node(store))
    compiled = graph.compile()
    for question in ("one", "two"):
        await compiled.ainvoke({"messages": [HumanMessage(question)]}, config)
    assert seen == [["one"], ["one", "to one", "two"]]


@pytest.mark.parametrize("schema", [MessagesState, ConversationState])
async def test_a_graph_with_the_nodes_describes_itself(
    store: ConversationStore, schema: Any
) -> None:
    """Names by default, a drawing, and JSON schemas of input and output, as servers ask for them."""
    graph: StateGraph[Any] = StateGraph(schema)
    graph.add_node(load_node(store))
    graph.add_node(append_node(store))
    for begin, end in ((START, "load"), ("load", "append"), ("append", END)):
        graph.add_edge(begin, end)
    compiled = graph.compile()
    assert "load --> append" in compiled.get_graph().draw_mermaid()
    for described in (compiled.get_input_jsonschema(), compiled.get_output_jsonschema()):
        assert "messages" in described["properties"]
        assert ("convstore_logged" in described["properties"]) == (schema is ConversationState)


async def test_a_turn_of_any_size_is_logged(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """More than an entry holds becomes several, in order; a single message that is too large is refused as ever."""
    turn = [
        HumanMessage("q", id=new_id()),
        *(AIMessage(f"{number} " * 3_000, id=new_id()) for number in range(300)),
    ]
    await append_node(store).ainvoke({"messages": turn}, config)
    assert same_messages(await log_of(store, config), turn)


@pytest.mark.slow
async def test_an_answer_after_many_questions_has_its_stamp(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """The stamp is the answer's, not that of the first batch into which the messages are divided."""
    asked = [HumanMessage(f"{number} " * 40, id=new_id()) for number in range(4_000)]
    loaded = await load_node(store).ainvoke({"messages": asked}, config)
    await append_node(store).ainvoke(
        {**loaded, "messages": [*asked, AIMessage("a", id=new_id())]}, config
    )
    [answer] = await chat_of(store, config).list_messages(limit=1)
    assert answer.message.text == "a"
    assert answer.stamp is not None


async def test_another_policy_for_one_call_of_a_resumed_node(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """`aview_of` uses the view of the state if there is one, else its own node's policy."""
    await chat_of(store, config).append([*rag_turn("one"), *rag_turn("two")])
    state = {"messages": [HumanMessage("three", id=new_id())]}
    short = load_node(store, policy=HistoryPolicy(view="conversation"))
    assert [message.type for message in await short.aview_of(state, config)] == [
        "human",
        "ai",
    ] * 2 + ["human"]
    full = {
        **state,
        **(await load_node(store).ainvoke(state, config)),
        "messages": state["messages"],
    }
    assert len(await short.aview_of(full, config)) == 9


@pytest.mark.costly
async def test_a_run_that_broke_off_after_the_append_is_resumed(
    pymongo_client: Client, database_name: str, config: RunnableConfig, saver: Any
) -> None:
    """The checkpoint does not know that the turn was logged; the resumed run finds out and writes nothing twice."""
    store = FailsOnce(pymongo_client[database_name], collection_prefix="graphs_")
    await store.setup()
    model = Scripted()
    graph = straight(store, model, append_first=False).compile(checkpointer=saver)
    with pytest.raises(StoreUnavailableError):
        await graph.ainvoke({"messages": [HumanMessage("one")]}, config)
    result = await graph.ainvoke(None, config)
    assert texts(result["messages"]) == ["one", "to one"]
    await graph.ainvoke({"messages": [HumanMessage("two")]}, config)
    assert [texts(shown) for shown in model.shown] == [["one"], ["one", "to one", "two"]]
    assert texts(await log_of(store, config)) == ["one", "to one", "two", "to two"]


@pytest.mark.costly
async def test_a_new_question_after_a_run_that_failed_after_the_append(
    pymongo_client: Client, database_name: str, config: RunnableConfig, saver: Any
) -> None:
    """After a run that failed after its append, a new question shows and logs each message once."""
    store = FailsOnce(pymongo_client[database_name], collection_prefix="graphs_")
    await store.setup()
    model = Scripted()
    graph = straight(store, model, append_first=False).compile(checkpointer=saver)
    with pytest.raises(StoreUnavailableError):
        await graph.ainvoke({"messages": [HumanMessage("one")]}, config)
    result = await graph.ainvoke({"messages": [HumanMessage("two")]}, config)
    assert texts(result["messages"]) == ["two", "to two"]
    assert texts(model.shown[-1]) == ["one", "to one", "two"]
    assert texts(await log_of(store, config)) == ["one", "to one", "two", "to two"]


class GoneError(BaseException):
    """Ends a run as a killed process does: nothing of its step reaches the checkpoint."""


@tool("search", response_format="content_and_artifact")
def look_up(part: int) -> tuple[str, Any]:
    """Look up something; the artifact has types that a checkpoint does not keep."""
    documents = [Document("found", metadata={"title": "T"})]
    return f"part {part}", [documents, [("a passage", {"title": "T"})], {"range": (1, 2)}][part]


@pytest.mark.costly
@pytest.mark.parametrize("again", ["question", "resume", "other question"])
async def test_a_worker_killed_after_the_append_of_results_leaves_no_conflict(
    store: ConversationStore, config: RunnableConfig, again: str
) -> None:
    """The checkpoint has artifacts as dicts and lists, the log as they were: the run goes on, and the log's stay."""
    gone = [GoneError()]
    node = load_node(store)

    async def load(state: ConversationState) -> dict[str, Any]:
        update = await node.ainvoke(state)
        if gone and isinstance(state["messages"][-1], ToolMessage):
            raise gone.pop()
        return update

    model = Scripted(calls=3)
    graph: StateGraph[Any] = StateGraph(MessagesState)
    graph.add_node("load", load)
    graph.add_node("tools", ToolNode([number_sources(look_up, store)]))
    graph.add_sequence([("model", model_node(model)), ("append", append_node(store))])
    graph.add_edge(START, "load").add_edge("load", "model").add_edge("tools", "load")
    graph.add_conditional_edges("append", after_model, {"tools": "tools", "done": END})
    agent = graph.compile(checkpointer=InMemorySaver())
    question = HumanMessage("one", id=new_id())
    with pytest.raises(GoneError):
        await agent.ainvoke({"messages": [question]}, config)
    before = await log_of(store, config)
    assert len(before) == 5
    if again == "other question":
        question = HumanMessage("two")
    request = None if again == "resume" else {"messages": [question]}
    given = await agent.ainvoke(request, config)
    assert given["messages"][-1].text == f"to {question.text}"
    assert same_messages((await log_of(store, config))[:5], before)


async def test_a_message_as_a_checkpoint_keeps_it_is_the_logged_one(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """Any other content under its id is a conflict, whose error says what to do in a graph."""
    chat = chat_of(store, config)
    page = SourcePage(sources=[Source(source_id=3, content="x")], next_cursor="more")
    artifact = {"page": page, "at": [(datetime(2026, 1, 2, tzinfo=UTC), {1, 2}, b"\xff", math.nan)]}
    asked, call, result, _ = rag_turn("one")
    result = result.model_copy(update={"artifact": artifact})
    await chat.append([asked, call, result])
    serde = JsonPlusSerializer()
    kept = serde.loads_typed(serde.dumps_typed(result))
    assert not same_messages([kept], [result])
    assert not (await chat.append(kept)).written
    assert same_messages([(await log_of(store, config))[-1]], [result])
    other = dict(kept.artifact, at=[])
    for changed in ({"artifact": other}, {"content": "other"}, {"status": "error"}):
        with pytest.raises(ContentConflictError):
            await chat.append(kept.model_copy(update=changed))
    saver = InMemorySaver()
    graph = with_answers(store, Scripted()).compile(checkpointer=saver)
    state = [asked, call, kept.model_copy(update={"content": "other"})]
    with pytest.raises(ContentConflictError) as raised:
        await graph.ainvoke({"messages": state}, config)
    assert "under a new id" in raised.value.__notes__[0]
    await graph.aupdate_state(config, {"messages": [RemoveMessage(str(result.id))]}, "__start__")
    given = await graph.ainvoke({"messages": [asked]}, config)
    assert given["messages"][-1].text == "to one"


async def test_above_the_budget_a_loaded_turn_is_shown_as_the_store_decides(
    store: ConversationStore,
) -> None:
    """Results that the view has as stubs, and steps that it leaves out, do not come back from the state."""
    chat = store.conversation(user_id="ada", thread_id="long turn")
    messages: list[BaseMessage] = [HumanMessage("q", id="q")]
    for step in range(12):
        call = {"name": "s", "args": {}, "id": f"c{step}"}
        messages.append(AIMessage("", id=f"a{step}", tool_calls=[call]))
        messages.append(ToolMessage("x " * 600, id=f"r{step}", tool_call_id=f"c{step}", name="s"))
    await chat.append(messages)
    policy = HistoryPolicy(max_tokens=2_000)
    history = await chat.load_history(policy)
    assert history.report.stubbed
    assert (
        compose(
            LoadedView(
                history, policy, frozenset(str(message.id) for message in messages), messages
            ),
            messages,
        )
        == history.messages
    )


async def test_an_empty_answer_is_shown_as_a_text(
    store: ConversationStore, config: RunnableConfig
) -> None:
    """In the turn of the state as in those of the view, because providers refuse an empty message."""
    await chat_of(store, config).append([HumanMessage("one"), AIMessage("")])
    model = Scripted()
    await straight(store, model).compile().ainvoke({"messages": [HumanMessage("two")]}, config)
    assert texts(model.shown[-1]) == ["one", "(no text)", "two"]
