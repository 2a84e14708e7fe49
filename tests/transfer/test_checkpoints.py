"""Imports of LangGraph's checkpoints: the whole path of a thread, whatever its graph did with the state."""

from __future__ import annotations

import operator
import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, _messages_delta_reducer
from typing_extensions import TypedDict

from convstore import ConversationStore, InvalidInputError
from convstore.edges import OWNER
from convstore.transfer import BadRecord, import_conversations, read_checkpoints
from convstore.transfer.savers import open_saver

CONFIG: Any = {"configurable": {"thread_id": "orcas"}}
Step = Callable[[Any], dict[str, Any]]


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store to import into."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store


class DeltaState(TypedDict):
    """A state whose checkpoints hold changes, and all messages after each third one only."""

    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]


class PlainState(TypedDict):
    """A state whose reducer gives messages no ids."""

    messages: Annotated[list[Any], operator.add]


def graph_of(*steps: Step, saver: Any = None, state: Any = MessagesState) -> Any:
    """Compile a graph of nodes that run one after the other."""
    graph = StateGraph(state)
    previous = START
    for number, step in enumerate(steps):
        graph.add_node(f"node{number}", step)
        graph.add_edge(previous, f"node{number}")
        previous = f"node{number}"
    return graph.compile(checkpointer=saver or InMemorySaver())


def answer(state: Any) -> dict[str, Any]:
    """Answer the last question."""
    asked = state["messages"][-1].text
    return {"messages": [AIMessage(f"Answer to {asked}", id=f"a-{asked}")]}


def trim(state: Any) -> dict[str, Any]:
    """Keep the last four messages."""
    return {"messages": [RemoveMessage(message.id) for message in state["messages"][:-4]]}


def date_parent_later(saver: Any) -> None:
    """Give the parent of the third newest checkpoint an id just below the newest, as another worker's clock may."""
    checkpoints = saver.storage["orcas"][""]
    *_, child, _, newest = sorted(checkpoints)
    parent = checkpoints[child][2]
    later = newest[:-1]
    checkpoints[later] = checkpoints.pop(parent)
    for id_, saved in list(checkpoints.items()):
        checkpoints[id_] = (*saved[:2], later if saved[2] == parent else saved[2])


async def ask(graph: Any, *questions: str) -> None:
    """Run the graph for each question."""
    for question in questions:
        await graph.ainvoke({"messages": [HumanMessage(question, id=f"q-{question}")]}, CONFIG)


async def imported(
    store: ConversationStore, saver: Any, **options: Any
) -> tuple[list[str], list[str], list[str]]:
    """Import the thread; return the ids of the log and of the view, and what was reported."""
    records = read_checkpoints(saver, **options)
    report = await import_conversations(store, records, scope={"user_id": "ada"})
    chat = store.conversation(user_id="ada", thread_id="orcas")
    log = [str(message.id) async for message in chat.messages(rewound=True)]
    shown = [str(message.id) for message in (await chat.load_history()).messages]
    return log, shown, [problem.reason for problem in report.problems]


def texts(*numbers: int) -> list[str]:
    """Return the ids of the questions and answers with these numbers."""
    return [f"{kind}-{number}" for number in numbers for kind in ("q", "a")]


@pytest.mark.costly
@pytest.mark.parametrize("state", [MessagesState, DeltaState])
async def test_a_shortened_state_loses_no_message(store: ConversationStore, state: Any) -> None:
    """Removed messages are in the log once, in order, and in no view, also if the thread has grown since an import."""
    graph = graph_of(trim, answer, state=state)
    for questions, rewound in ("0123", 3), ("", 3), ("456", 9):
        await ask(graph, *questions)
        log, shown, reasons = await imported(store, graph.checkpointer)
        assert log == texts(*range((rewound + 5) // 2))
        kept = (await graph.aget_state(CONFIG)).values["messages"]
        assert shown == [message.id for message in kept] == log[rewound:]
        assert reasons == [f"rewound: {rewound} messages that the graph removed from its state"]


async def test_what_was_removed_or_replaced_is_never_shown(store: ConversationStore) -> None:
    """A redacted text is nowhere, a removed message is rewound or left out, and one that came back is where it came."""
    graph = graph_of(answer)
    await ask(graph, "0", "pin", "2")
    for update in (
        [HumanMessage("***", id="q-pin")],
        [RemoveMessage("a-pin")],
        [RemoveMessage("q-2"), RemoveMessage("a-2")],
        [HumanMessage("2", id="q-2")],
        [AIMessage("new", id="a-2")],
    ):
        await graph.aupdate_state(CONFIG, {"messages": update})
    _, shown, reasons = await imported(store, graph.checkpointer)
    assert shown == ["q-0", "a-0", "q-pin", "q-2", "a-2"]
    chat = store.conversation(user_id="ada", thread_id="orcas")
    log = [message.text async for message in chat.messages(rewound=True)]
    assert log == ["0", "Answer to 0", "***", "Answer to pin", "Answer to 2", "2", "new"]
    assert reasons == [
        "rewound: 2 messages that the graph removed from its state",
        "replaced in the state: 1 message; the last content is imported",
    ]
    await chat.delete()
    log, shown, _ = await imported(store, graph.checkpointer, removed="leave out")
    assert log == shown == ["q-0", "a-0", "q-pin", "q-2", "a-2"]


async def test_messages_that_a_graph_hides_and_restores_keep_their_order(
    store: ConversationStore,
) -> None:
    """All but the question are removed before each call of the model and come back after it: nothing is rewound."""
    hidden: list[Any] = []

    def hide(state: Any) -> dict[str, Any]:
        hidden[:] = state["messages"][:-1]
        return {"messages": [RemoveMessage(message.id) for message in hidden]}

    def restore(state: Any) -> dict[str, Any]:
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *hidden, *state["messages"]]}

    graph = graph_of(hide, answer, restore)
    await ask(graph, "0", "1", "2")
    assert await imported(store, graph.checkpointer) == (texts(0, 1, 2), texts(0, 1, 2), [])
    await ask(graph, "3")
    assert await imported(store, graph.checkpointer) == (texts(0, 1, 2, 3), texts(0, 1, 2, 3), [])


async def test_the_path_is_that_of_the_newest_checkpoint(store: ConversationStore) -> None:
    """Other branches, namespaces of subgraphs and summaries are left out and counted; a parent may have a later id."""
    inner = graph_of(
        lambda state: {"messages": [AIMessage("inner", id=f"i-{len(state['messages'])}")]},
        saver=True,
    )
    graph = graph_of(answer, inner)
    await ask(graph, "0")
    states = [state async for state in graph.aget_state_history(CONFIG)]
    await ask(graph, "lost")
    await graph.aupdate_state(
        states[0].config, {"messages": [HumanMessage("edited", id="q-edited")]}, as_node="node1"
    )
    summary = HumanMessage(
        "Before: orcas.", id="s", additional_kwargs={"lc_source": "summarization"}
    )
    kept = [RemoveMessage(REMOVE_ALL_MESSAGES), summary, HumanMessage("edited", id="q-edited")]
    await graph.aupdate_state(CONFIG, {"messages": kept}, as_node="node1")
    date_parent_later(graph.checkpointer)
    log, shown, reasons = await imported(store, graph.checkpointer)
    assert (log, shown) == (["q-0", "a-0", "i-2", "q-edited"], ["q-edited"])
    assert reasons == [
        "left out: 1 other branch",
        "rewound: 3 messages that the graph removed from its state",
        "left out: 1 summary of the graph; compact makes new ones",
        "left out: 1 other namespace, of subgraphs",
    ]


async def test_summaries_beside_the_messages_are_counted(store: ConversationStore) -> None:
    """Frameworks keep them in fields of their own; one that stands among the messages, too, counts once."""

    class State(MessagesState):
        context: Any
        _summarization_event: Any

    def summarize(state: Any) -> dict[str, Any]:
        context = {"running_summary": {"summary": "Orcas sleep."}}
        event = {"cutoff_index": 1, "summary_message": HumanMessage("Before: orcas.")}
        told = SystemMessage("Summary of the conversation so far: Orcas sleep.")
        return {"context": context, "_summarization_event": event, "messages": [told]}

    graph = graph_of(answer, summarize, state=State)
    await ask(graph, "0")
    notes = ["left out: 2 summaries of the graph; compact makes new ones"]
    assert await imported(store, graph.checkpointer) == (texts(0), texts(0), notes)


async def test_checkpoints_of_convstore_are_not_read(store: ConversationStore) -> None:
    """The log has their messages, which convstore removes from the state: that rewinds nothing."""
    graph = graph_of(
        answer, state=TypedDict("State", {**MessagesState.__annotations__, OWNER: str})
    )
    await ask(graph, "0")
    await graph.aupdate_state(
        CONFIG, {OWNER: "ada", "messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]}
    )
    await ask(graph, "1")
    log, shown, reasons = await imported(store, graph.checkpointer)
    assert log == shown == texts(0)
    assert reasons == [
        "left out: the newer checkpoints, because convstore has kept the messages of this thread "
        "since then"
    ]


async def test_a_parent_with_a_later_id_is_not_a_branch(store: ConversationStore) -> None:
    """Its checkpoint is read once more, and counted as a part of the path."""
    graph = graph_of(answer, lambda _: {})
    await ask(graph, "0", "1")
    date_parent_later(graph.checkpointer)
    assert await imported(store, graph.checkpointer) == (texts(0, 1), texts(0, 1), [])


async def test_messages_without_ids_and_missing_checkpoints(store: ConversationStore) -> None:
    """Ids are made from thread, step and index; what deleted checkpoints had is reported, or the thread is left out."""
    for state in (PlainState, DeltaState):
        graph = graph_of(lambda _: {"messages": [HumanMessage("yes")]}, state=state)
        for question in ("yes", "no"):
            await graph.ainvoke({"messages": [HumanMessage(question)]}, CONFIG)
        saver = graph.checkpointer
        for _ in range(2):
            report = await import_conversations(
                store, read_checkpoints(saver), scope={"user_id": state.__name__}
            )
        assert (report.unchanged, report.known) == (1, 4)
        chat = store.conversation(user_id=state.__name__, thread_id="orcas")
        assert [message.text async for message in chat.messages(rewound=True)] == [
            "yes",
            "yes",
            "no",
            "yes",
        ]
        checkpoints = saver.storage["orcas"][""]
        for id_ in sorted(checkpoints)[: len(checkpoints) // 2]:
            del checkpoints[id_]
        [record] = [record async for record in read_checkpoints(saver)]
        if state is PlainState:
            assert record.notes == [
                "its first checkpoints were deleted; messages that only they had are lost"
            ]
        else:
            assert isinstance(record, BadRecord)
            assert "cannot be rebuilt" in record.problem


async def test_a_thread_that_cannot_be_read_is_reported() -> None:
    """It stops no other thread; wrong arguments are refused before anything is read."""
    graph = graph_of(answer)
    await ask(graph, "0")
    threads = ["", "unknown", "orcas"]
    found = [record async for record in read_checkpoints(graph.checkpointer, threads)]
    assert [isinstance(record, BadRecord) for record in found] == [True, True, False]
    [bad] = [
        record async for record in read_checkpoints(graph.checkpointer, ["orcas"], channel="chat")
    ]
    assert "'chat'" in bad.problem
    wrong: list[tuple[Any, dict[str, Any]]] = [
        ("saver", {}),
        (graph.checkpointer, {"thread_ids": "orcas"}),
        (graph.checkpointer, {"removed": "keep"}),
    ]
    for saver, options in wrong:
        with pytest.raises(InvalidInputError):
            await anext(read_checkpoints(saver, **options))


async def test_a_state_is_imported_as_it_is(store: ConversationStore) -> None:
    """After a removal of all messages, LangGraph takes the new ones in any order, with one id twice, and removals."""
    graph = graph_of(answer)
    await ask(graph, "0")
    twins = [HumanMessage("1", id="q"), HumanMessage("2", id="q")]
    kept = [AIMessage("Answer to 0", id="a-0"), HumanMessage("0", id="q-0")]
    update = [RemoveMessage(REMOVE_ALL_MESSAGES), *twins, RemoveMessage("q-0"), *kept]
    await graph.aupdate_state(CONFIG, {"messages": update})
    for _ in range(2):
        log, shown, reasons = await imported(store, graph.checkpointer)
        assert "belongs to an earlier message" in reasons[0]
    history = await store.conversation(user_id="ada", thread_id="orcas").load_history()
    assert [message.text for message in history.messages] == ["1", "2", "Answer to 0", "0"]
    assert log == shown


async def test_an_interrupted_step_belongs_to_the_thread(store: ConversationStore) -> None:
    """What one node wrote before another one failed, and the input of a run that no node took."""

    def fail(state: Any) -> dict[str, Any]:
        raise ValueError(len(state))

    graph = StateGraph(MessagesState).add_node("answer", answer).add_node("fail", fail)
    graph.add_edge(START, "answer").add_edge(START, "fail")
    agent = graph.compile(checkpointer=InMemorySaver())
    with pytest.raises(ValueError, match="1"):
        await ask(agent, "0")
    saver = agent.checkpointer
    assert (await imported(store, saver))[:2] == (texts(0), texts(0))
    checkpoints = saver.storage["orcas"][""]
    for id_ in sorted(checkpoints)[1:]:
        del checkpoints[id_]
    saver.writes.clear()
    [record] = [record async for record in read_checkpoints(saver)]
    assert [item.message.id for item in record.messages] == ["q-0"]


@dataclass
class Foreign:
    """A class of an application that a checkpoint names."""

    made: ClassVar[int] = 0
    value: int = 0

    def __post_init__(self) -> None:
        type(self).made += 1


@pytest.mark.slow
async def test_the_savers_of_the_command_build_no_classes_of_others(
    store: ConversationStore, tmp_path: Path
) -> None:
    """A value of another class stays plain; the thread is imported, and its file cannot be written to."""

    class State(MessagesState):
        foreign: Any

    path = str(tmp_path / "checkpoints.sqlite")
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        graph = graph_of(
            lambda _: {"messages": [AIMessage("Yes.", id="a-0")]}, saver=saver, state=State
        )
        await graph.ainvoke(
            {"messages": [HumanMessage("0", id="q-0")], "foreign": Foreign()}, CONFIG
        )
        assert (await imported(store, saver))[0] == texts(0)
    made = Foreign.made
    async with open_saver(path) as saver:
        assert (await imported(store, saver))[0] == texts(0)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            saver.conn.execute("DELETE FROM checkpoints")
    assert Foreign.made == made
