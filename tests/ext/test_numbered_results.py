"""Which results are numbered: what the model is shown and what the log has are the same numbers, at each door."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command
from made_results import append_hidden, check_hidden
from scripted_agents import ScriptedModel

from convstore import ConversationStore, number_sources
from convstore.exceptions import InvalidInputError
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import append_node, load_node
from convstore.integration import ResultNumbering

ADA = {"user_id": "ada", "thread_id": "t"}


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store in memory."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store


def _records(name: str) -> list[dict[str, str]]:
    return [{"title": f"{name} {n}", "content": f"{name}, part {n}. " * 9} for n in (1, 2)]


@tool(response_format="content_and_artifact")
def counted() -> tuple[str, list[dict[str, str]]]:
    """Count records."""
    found = _records("counted")
    return "\n".join(f"[{n}] {each['content']}" for n, each in enumerate(found, 1)), found


@tool
def documents() -> list[Document]:
    """Return documents as they are."""
    return [
        Document(each["content"], metadata={"title": each["title"]})
        for each in _records("documents")
    ]


@tool
def handed(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Hand documents over in a command."""
    found = [Document(each["content"], metadata={"acl": "SECRET"}) for each in _records("handed")]
    content = "\n\n".join(each.page_content for each in found)
    return Command(
        update={"messages": [ToolMessage(content, artifact=found, tool_call_id=call_id)]}
    )


@tool
def tickets() -> str:
    """List tickets, which are records, not sources."""
    return json.dumps({"results": _records("tickets")})


TOOLS = [counted, documents, handed, tickets]


async def run(store: ConversationStore, **options: Any) -> dict[str, ToolMessage]:
    """Let an agent call each tool, and return what its model was shown."""
    asked = [{"name": each.name, "args": {}, "id": f"call-{each.name}"} for each in TOOLS]
    model = ScriptedModel(replies=[AIMessage("", tool_calls=asked), AIMessage("Done.")])
    middleware = ConversationMiddleware(store, **options)
    agent = create_agent(model, TOOLS, middleware=[middleware])
    await agent.ainvoke({"messages": [("user", "All?")]}, {"configurable": ADA})
    return {
        shown.tool_call_id.removeprefix("call-"): shown
        for shown in model.shown[-1]
        if isinstance(shown, ToolMessage)
    }


async def numbers_of(store: ConversationStore, shown: ToolMessage) -> tuple[list[int], list[int]]:
    """Return the numbers that the model was shown, and those of the log."""
    [record] = await store.conversation(**ADA).get_tool_messages([str(shown.id)])
    assert record.content == shown.content
    found = re.findall(r"\[(\d+)\]|\"source_id\": (\d+)", str(shown.content))
    return [int(mark or field) for mark, field in found], [
        each.source_id for each in record.sources
    ]


async def test_what_says_that_it_is_sources_is_numbered(store: ConversationStore) -> None:
    """Marks, documents and those in a command have the log's numbers; a list of records has none for the model."""
    await store.conversation(**ADA).reserve_source_ids(7)
    shown = await run(store)
    for name in ("counted", "documents", "handed"):
        seen, logged = await numbers_of(store, shown[name])
        assert seen == logged
        assert len(logged) == 2
        assert min(logged) > 7
    assert shown["documents"].text.startswith("[")
    assert "SECRET" not in shown["handed"].text
    seen, logged = await numbers_of(store, shown["tickets"])
    assert (seen, len(logged)) == ([], 2)


async def test_a_graph_has_the_numbers_in_its_state(store: ConversationStore) -> None:
    """The append node between tool and model numbers what no model has seen, once, also after a crash."""
    append = append_node(store)
    message: ToolMessage = counted.invoke(_call("counted"))
    message.id = "result"
    question = HumanMessage("q", id="q")
    asked = AIMessage("", id="a", tool_calls=[_call("counted")])
    state = {"messages": [question, asked, message]}
    config = {"configurable": ADA}
    await store.conversation(**ADA).reserve_source_ids(7)
    [shown] = (await append.ainvoke(state, config))["messages"]
    seen, logged = await numbers_of(store, shown)
    assert seen == logged == [8, 9]
    assert (await append.ainvoke(state, config))["messages"] == [shown]
    seen_before = {"messages": [*state["messages"], AIMessage("So [1].", id="b")]}
    other = {"configurable": ADA | {"thread_id": "u"}}
    assert "messages" not in await append.ainvoke(seen_before, other)


async def test_a_session_numbers_what_says_that_it_is_sources(store: ConversationStore) -> None:
    """By default documents in an artifact and marks; () leaves the content as it is; again, nothing is written."""
    chat = store.conversation(**ADA)
    content, found = "(1) one\n(2) two", [Document("one"), Document("two")]
    async with await chat.turn("q", human="Two?") as turn:
        await turn.append(AIMessage("", tool_calls=[_call("a"), _call("b"), _call("c")]))
        first, second, third = turn.open_calls
        await turn.add_result(first, content, artifact=found, sources=())
        for written in (1, 0):
            receipt = await turn.add_result(second, content, artifact=found)
            assert receipt.written == written
        await turn.add_result(third, "2 hits", artifact=found)
        shown = [each.content for each in (await chat.load_history()).messages[-3:]]
    assert shown == [
        content,
        "(3) one\n(4) two",
        "[5], already shown as [1]\n[6], already shown as [2]\n\n2 hits",
    ]


def _call(name: str) -> Any:
    return {"name": name, "args": {}, "id": f"call-{name}", "type": "tool_call"}


async def test_without_numbers_the_log_line_names_a_tool_whose_marks_mislead(
    store: ConversationStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for a tool; a list that is not numbered by default has a hint; a name that no tool has is refused."""
    chat = store.conversation(**ADA)
    marks = counted.invoke(_call("counted"))
    records = tickets.invoke(_call("tickets"))
    text = ToolMessage("[1] Seals sleep.\n[2] Orcas sing.", tool_call_id="call", name="notes")
    with caplog.at_level(logging.INFO, logger="convstore"):
        for names, message in (((), marks), (None, records), (["notes"], text)):
            for _ in range(2):
                assert await ResultNumbering(names).number(chat, [message], tools={}) == {}
    warned, told, unknown = [record.getMessage() for record in caplog.records]
    assert "register_source_extractor('notes', ...)" in unknown
    assert "'counted' show marks" in warned
    assert "number_sources=('tickets',)" in told
    assert "no such tool" not in warned + told
    with pytest.raises(InvalidInputError, match="'serach', but the agent has no such tool"):
        ResultNumbering(["serach", tickets]).check(TOOLS)
    wrong: Any
    for wrong in ("tickets", 7, [7], [b"tickets"]):
        with pytest.raises(InvalidInputError, match="a collection of tools, functions or names"):
            ResultNumbering(wrong)


def plain() -> str:
    """Return what `tickets` returns."""
    return str(tickets.invoke({}))


async def test_a_function_is_named_as_langchain_names_its_tool(store: ConversationStore) -> None:
    """A plain function, the usual form of a tool, is taken by the nodes and the middleware."""
    assert ResultNumbering([plain, tickets, "kept"]).names == frozenset(
        ("plain", "tickets", "kept")
    )
    ResultNumbering([plain]).check([tool(plain)])
    model = ScriptedModel(replies=[AIMessage("", tool_calls=[_call("plain")]), AIMessage("Done.")])
    middleware = ConversationMiddleware(store, number_sources=[plain])
    await create_agent(model, [plain], middleware=[middleware]).ainvoke(
        {"messages": [("user", "All?")]}, {"configurable": ADA}
    )
    seen, logged = await numbers_of(store, model.shown[-1][-1])
    assert seen == logged == [1, 2]


@pytest.mark.parametrize("names", [None, ("search",)])
async def test_documents_that_a_graph_wrote_as_text_are_told_once(
    store: ConversationStore, caplog: pytest.LogCaptureFixture, names: Any
) -> None:
    """Each tool has one warning with what to do and no contents; text that an artifact goes with has none."""
    found = [Document("SECRET seals sleep.", id="d1")]
    asked = AIMessage("", id="a", tool_calls=[_call("search"), _call("other")])
    results = [
        ToolMessage(str(found), tool_call_id="call-search", id="r1"),
        ToolMessage(str(found), tool_call_id="call-other", id="r2", artifact={"kept": 1}),
    ]
    state = {"messages": [HumanMessage("q", id="q"), asked, *results]}
    append = append_node(store, number_sources=names)
    for thread in ("t", "u"):
        await append.ainvoke(state, {"configurable": ADA | {"thread_id": thread}})
    [warned] = [record for record in caplog.records if record.name == "convstore"]
    assert warned.levelname == "WARNING"
    assert "results of tool 'search' are a list of Documents" in warned.getMessage()
    assert "number_sources(tool, store)" in warned.getMessage()
    assert "SECRET" not in warned.getMessage()


async def test_a_search_that_found_nothing_says_so_to_the_model(store: ConversationStore) -> None:
    """An empty list of sources is no empty result; a content that the caller wrote stays."""
    chat = store.conversation(**ADA)
    async with await chat.turn("q", human="Two?") as turn:
        await turn.append(AIMessage("", tool_calls=[_call("a"), _call("b")]))
        first, second = turn.open_calls
        for written in (1, 0):
            assert (await turn.add_result(first, sources=[])).written == written
        await turn.add_result(second, "0 hits", sources=[])
        shown = [each.content for each in (await chat.load_history()).messages[-2:]]
    assert shown == ["No results.", "0 hits"]


@tool
def kept() -> list[Document]:
    """Return documents that have numbers."""
    return [Document("Seals sleep. " * 9, metadata={"title": "Seals", "source_id": 7})]


@tool
def hidden() -> list[Document]:
    """Return a message of its own, in spite of the annotation."""
    found: Any = ToolMessage("", artifact=[Document("SECRET " * 9)], tool_call_id="call-hidden")
    return found


@pytest.mark.parametrize("names", [None, ("hidden",)])
async def test_a_list_is_shown_whole_and_a_message_as_the_tool_wrote_it(
    store: ConversationStore, names: Any
) -> None:
    """Documents with numbers of their own keep them; an artifact is hidden though the content is empty."""
    model = ScriptedModel(
        replies=[
            AIMessage("", tool_calls=[_call("kept")]),
            AIMessage("", tool_calls=[_call("hidden")]),
            AIMessage("Done."),
        ]
    )
    middleware = ConversationMiddleware(store, number_sources=names)
    agent = create_agent(model, [kept, hidden], middleware=[middleware])
    await agent.ainvoke({"messages": [("user", "All?")]}, {"configurable": ADA})
    shown = [message.content for message in model.shown[-1] if isinstance(message, ToolMessage)]
    assert shown == ["[7] Seals\n" + "Seals sleep. " * 9, "[8]"]
    wrapped = number_sources(hidden, store.conversation(**ADA))
    assert (await wrapped.ainvoke(_call("hidden"))).content == "[9], already shown as [8]"


async def test_a_node_warns_of_a_name_that_no_tool_has_had(
    store: ConversationStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A node does not know the tools of its graph; the line about a result without numbers has the misspelt name.

    Another agent has logged that tool before. A tool in place of its name is what it is.
    """
    chat = store.conversation(**ADA)
    await ResultNumbering(None).number(chat, [tickets.invoke(_call("tickets"))], tools={})
    append = append_node(store, number_sources=("ticket", counted))
    messages = [counted.invoke(_call("counted")), tickets.invoke(_call("tickets"))]
    asked = AIMessage("", id="a", tool_calls=[_call("counted"), _call("tickets")])
    state = {"messages": [HumanMessage("q", id="q"), asked]}
    for number, message in enumerate(messages):
        state["messages"].append(message.model_copy(update={"id": f"result-{number}"}))
    await append.ainvoke(state, {"configurable": ADA})
    [warned] = [record for record in caplog.records if record.name == "convstore"]
    assert warned.levelname == "WARNING"
    assert "names 'ticket', and no such tool has had a result" in warned.getMessage()
    with pytest.raises(InvalidInputError, match="append_first=True"):
        load_node(store, append_first=False, number_sources=("counted",))


async def test_an_agent_reads_artifacts_back_if_its_middleware_says_so(
    store: ConversationStore,
) -> None:
    """By default its tool shows what tools showed."""
    wanted = await append_hidden(store.conversation(**ADA))
    read = {"name": "retrieve_previous_sources", "args": wanted, "id": "r"}
    for artifact in (False, True):
        model = ScriptedModel(replies=[AIMessage("", tool_calls=[read]), AIMessage("Done.")])
        middleware = ConversationMiddleware(store, artifact=artifact)
        agent = create_agent(model, [], middleware=[middleware])
        await agent.ainvoke({"messages": [("user", "Again?")]}, {"configurable": ADA})
        check_hidden(model.shown[-1][-1].text, artifact=artifact)


@pytest.mark.slow
async def test_an_application_adds_tools_or_turns_numbers_off(store: ConversationStore) -> None:
    """A named tool is numbered; with () each content stays."""
    shown = await run(store, number_sources=(tickets,))
    seen, logged = await numbers_of(store, shown["tickets"])
    assert seen == logged != []
    await store.conversation(**ADA).delete()
    shown = await run(store, number_sources=())
    assert shown["counted"].content == counted.invoke({})
    with pytest.raises(InvalidInputError, match="'serach', but the agent has no such tool"):
        await run(store, number_sources=("serach",))
