"""Numbers at each door: what a model is shown, the log has, and each number reads the passage beside which it stood."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import httpx
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langgraph.types import Command
from made_results import FIRST, FORMS, Made, check_beside, check_content, make
from properties import soaked
from scripted_agents import ScriptedModel

from convstore import Conversation, ConversationStore, HistoryPolicy, number_sources
from convstore.ext.inspector import EVERYTHING, inspector
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import append_node
from convstore.sources.source import write_ids
from convstore.types import Source

_WHOLE = HistoryPolicy(max_tokens=1_000_000)
_RESULTS = 200
_OPENED = 2
"""Sources whose pages of the inspector are opened, at one door of each case: this takes longest."""

Door = Callable[[Conversation, Sequence[Made]], Awaitable[list[ToolMessage]]]


def _calls(made: Sequence[Made]) -> AIMessage:
    calls = [
        {
            "name": "search" if index % 2 else "hand_over",
            "args": {"index": index},
            "id": result.message.tool_call_id,
        }
        for index, result in enumerate(made)
    ]
    return AIMessage("", tool_calls=calls, id="asked")


def _tools(made: Sequence[Made]) -> list[StructuredTool]:
    """Return tools that return the results: as content and artifact, and as the messages of a command."""

    def search(index: int) -> tuple[Any, Any]:
        """Search."""
        return made[index].message.content, made[index].message.artifact

    def hand_over(index: int, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Hand over."""
        result = made[index].message.model_copy(update={"tool_call_id": call_id})
        return Command(update={"messages": [result]})

    split = StructuredTool.from_function(search, response_format="content_and_artifact")
    return [split, StructuredTool.from_function(hand_over)]


async def _middleware(chat: Conversation, made: Sequence[Made]) -> list[ToolMessage]:
    """Let an agent call its tools; every other result is in a command."""
    model = ScriptedModel(replies=[_calls(made), AIMessage("Done.")])
    middleware = ConversationMiddleware(chat.store, policy=_WHOLE)
    agent = create_agent(model, _tools(made), middleware=[middleware])
    await agent.ainvoke({"messages": [("user", "All?")]}, {"configurable": chat.scope})
    return [shown for shown in model.shown[-1] if isinstance(shown, ToolMessage)]


async def _node(chat: Conversation, made: Sequence[Made]) -> list[ToolMessage]:
    """Let the append node between tools and model number the results of a state."""
    results = [result.message for result in made]
    state = {"messages": [HumanMessage("All?", id="q"), _calls(made), *results]}
    changed = await append_node(chat.store).ainvoke(state, {"configurable": chat.scope})
    return [*results, *changed["messages"]]


async def _session(chat: Conversation, made: Sequence[Made]) -> list[ToolMessage]:
    """Add the results in a loop on an SDK, and load the view for its next call."""
    async with await chat.turn("q", human="All?") as turn:
        await turn.append(_calls(made))
        for call, result in zip(turn.open_calls, made, strict=True):
            message = result.message
            await turn.add_result(call, message.content, artifact=message.artifact)
        history = await turn.load_history(_WHOLE)
    return [shown for shown in history.messages if isinstance(shown, ToolMessage)]


async def _wrapper(chat: Conversation, made: Sequence[Made]) -> list[ToolMessage]:
    """Call the tools as `number_sources` wraps them, and append what they return."""
    tools = {tool.name: number_sources(tool, chat) for tool in _tools(made)}
    asked = _calls(made)
    results = []
    for call in asked.tool_calls:
        answer: Any = await tools[call["name"]].ainvoke({**call, "type": "tool_call"})
        results += answer.update["messages"] if isinstance(answer, Command) else [answer]
    await chat.append([HumanMessage("All?"), asked, *results])
    return results


async def _sub_agent(chat: Conversation, made: Sequence[Made]) -> list[ToolMessage]:
    """Number the results of a sub-agent, whose sources the conversation around it reads."""
    return await _wrapper(chat.child("finder"), made)


DOORS: tuple[Door, ...] = (_middleware, _node, _session, _wrapper, _sub_agent)


async def check(door: Door, chat: Conversation, made: Sequence[Made], *, opens_pages: bool) -> None:
    """Let results through a door; compare what the model is shown with the tool's content and with the log."""
    await _begin(chat)
    by_call = {message.tool_call_id: message for message in await door(chat, made)}
    shown = [by_call[result.message.tool_call_id] for result in made]
    owner = chat.child("finder") if door is _sub_agent else chat
    records = await owner.get_tool_messages([str(message.id) for message in shown])
    for result, message, record in zip(made, shown, records, strict=True):
        assert record.content == message.content
        assert all(source.source_id > FIRST for source in record.sources)
        check_content(result, message.content, record.sources)
        if result.shows:
            for source in record.sources:
                check_beside(str(message.content), source)
    sources = [source for record in records for source in record.sources]
    await _check_readers(chat, sources)
    if opens_pages:
        opened = sources[:: -(-len(sources) // _OPENED)]
        await chat.append([HumanMessage("Then?"), AIMessage(f"So {_cited(opened)}.")])
        await _check_pages(chat, opened)


async def _begin(chat: Conversation) -> None:
    """Append a source whose number is the last one below those of the test."""
    found = ToolMessage("", artifact=[{"content": "-", "source_id": FIRST}], tool_call_id="first")
    call = {"name": "first", "args": {}, "id": "first"}
    await chat.append([HumanMessage("-"), AIMessage("", tool_calls=[call]), found, AIMessage("-")])


async def _check_readers(chat: Conversation, sources: Sequence[Source]) -> None:
    """Each number is read as its passage by `get_sources`, `citations` and the tool."""
    numbers = [source.source_id for source in sources]
    assert await _read(chat, numbers) == [source.content for source in sources]
    answer = AIMessage(_cited(sources), id="answer")
    await chat.append([HumanMessage("Which?"), answer])
    cited = await chat.citations("answer")
    wanted = [(source.source_id, source.tool_message_id, source.title[:200]) for source in sources]
    assert [(each.source_id, each.tool_message_id, each.title) for each in cited] == wanted
    read = await _read_by_tool(chat, numbers)
    assert read == {source.source_id: source.content for source in sources}


def _cited(sources: Sequence[Source]) -> str:
    """Return the citations of some sources."""
    return " ".join(f"[{source.source_id}]" for source in sources)


async def _read(chat: Conversation, numbers: Sequence[int]) -> list[str]:
    texts = dict[int, str]()
    cursor = None
    while True:
        page = await chat.get_sources(numbers, cursor=cursor, page_tokens=16_000)
        for source in page.sources:
            texts[source.source_id] = texts.get(source.source_id, "") + source.content
        cursor = page.next_cursor
        if cursor is None:
            return [texts[number] for number in numbers]


async def _read_by_tool(chat: Conversation, numbers: Sequence[int]) -> dict[int, str]:
    """Return the texts that the tool's pages show under each number."""
    tool = chat.retrieve_previous_sources_tool(page_tokens=16_000)
    arguments: dict[str, Any] = {"source_ids": write_ids(numbers)}
    texts = dict[int, str]()
    while True:
        page = await tool.ainvoke(arguments)
        body, _, last = page.rpartition("\n")
        parts = re.split(r"(?m)^\[(1\d{5})\].*, characters \d+-\d+ of \d+\n", body)
        for number, text in zip(parts[1::2], parts[2::2], strict=True):
            texts[int(number)] = texts.get(int(number), "") + text.removesuffix("\n")
        more = re.search(r'cursor="([^"]+)"', last)
        if more is None:
            return texts
        arguments = {"cursor": more[1]}


async def _check_pages(chat: Conversation, opened: Sequence[Source]) -> None:
    """The answer on the page of the conversation leads to the page of each source, which has its passage."""
    here = f"/c/{(await chat.info()).conversation_id}"
    transport = httpx.ASGITransport(inspector(chat.store, authorize=lambda _: EVERYTHING))
    async with httpx.AsyncClient(transport=transport, base_url="http://inspector") as client:
        whole = (await client.get(here)).text
        for source in opened:
            link = f"{here}/sources/{source.source_id}"
            assert f'href="{link}"' in whole
            page = (await client.get(link)).text
            assert f"Source {source.source_id}" in page
            assert re.findall(r"Passage\d+x\d+", source.content)[0] in page


@pytest.mark.costly
@pytest.mark.parametrize("seed", [0, *soaked(range(1, 11), first=6)])
async def test_each_number_reads_the_passage_beside_it_at_each_door(
    store: ConversationStore, scope: dict[str, str], seed: int
) -> None:
    """Results of all shapes, by all doors: characters stay, nothing hidden is shown, and all readers agree.

    The first case has two results of each form, the others have 2,000 together. A real server takes half the time of a
    store in memory.
    """
    rng = random.Random(seed)
    count = _RESULTS if seed else 2 * len(FORMS)
    made = [make(rng, index, FORMS[index % len(FORMS)]) for index in range(count)]
    for index, door in enumerate(DOORS):
        chat = store.conversation(**scope | {"user_id": f"user-{index}"})
        opens_pages = index == seed % len(DOORS)
        await check(door, chat, made[index :: len(DOORS)], opens_pages=opens_pages)
