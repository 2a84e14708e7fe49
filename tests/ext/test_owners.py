# ruff: noqa: PLC0415 - each framework is imported by its own case alone
"""Two owners use the same ids through every door, and each sees the conversations that it would see alone.

A door is a script: an owner's calls, each followed by its outcome. The two scripts of a door run one after the other,
in both orders, and in turns; each has the outcomes that it has on a store without the other owner.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from adapters import is_installed
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from scripted_agents import ScriptedModel

from convstore import Conversation, ConversationStore, retrieve_previous_sources_tool
from convstore.exceptions import ConvstoreError
from convstore.ext.chat_history import SessionHistories
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import append_node, load_node
from convstore.ext.ui import read_request, ui_messages
from convstore.transfer import export_conversations, import_conversations, read_file

pytestmark = pytest.mark.slow

OWNERS = ("ada", "eve")
THREAD = "main"

Outcomes = AsyncIterator[Any]


class Owner:
    """One of the two owners, and what it says; the ids are those of the other owner, too."""

    def __init__(self, store: ConversationStore, name: str, folder: Path) -> None:
        [self.other] = [other for other in OWNERS if other != name]
        self.store, self.name, self.folder = store, name, folder
        self.scope = {"user_id": name, "thread_id": THREAD}

    @property
    def chat(self) -> Conversation:
        """The handle of its conversation."""
        return self.store.conversation(**self.scope)

    def turn(self, number: int = 1) -> list[BaseMessage]:
        """A turn with a result that has sources."""
        passages = [
            {"title": f"{self.name} {part}", "content": f"{self.name}'s passage {part}. " * 9}
            for part in "ab"
        ]
        call = {"name": "search", "args": {}, "id": f"call-{number}"}
        return [
            HumanMessage(f"{self.name} asks.", id=f"question-{number}"),
            AIMessage("", tool_calls=[call], id=f"calls-{number}"),
            ToolMessage(
                "hits",
                artifact=passages,
                name="search",
                tool_call_id=call["id"],
                id=f"result-{number}",
            ),
            AIMessage(f"{self.name} is answered.", id=f"answer-{number}"),
        ]

    async def said(self) -> list[Any]:
        """All messages of its log."""
        return [(message.id, message.content) async for message in self.chat.messages(rewound=True)]


async def outcome(call: Awaitable[Any]) -> Any:
    """Return what a call returns, or its error."""
    try:
        return await call
    except (ConvstoreError, ValueError, LookupError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


async def handle(me: Owner) -> Outcomes:
    """The store and its handles: every id of the other owner is an unknown one."""
    chat = me.chat
    yield await outcome(chat.append([*me.turn(), *me.turn(2)]))
    only = f"only-{me.name}"
    yield await outcome(chat.append([HumanMessage("Mine.", id=only), AIMessage("Yes.")]))
    for id_ in (f"only-{me.other}", "result-1", "answer-2"):
        yield await outcome(chat.get_tool_messages([id_]))
        yield await outcome(chat.get_turn(id_))
        yield await outcome(chat.annotate(id_, rating=1))
        yield await outcome(chat.rewind(before_id=id_))
        yield await outcome(chat.undo_rewind())
        yield await outcome(
            chat.fork(before_id=id_, key=id_, new_scope={**me.scope, "thread_id": f"fork of {id_}"})
        )
    yield await outcome(chat.get_sources(range(1, 9)))
    yield await outcome(chat.search(me.other))
    yield await outcome(chat.append([AIMessage("Again.", id="again")], turn="question-1"))
    child = chat.child("calls-1", "call-1")
    yield await outcome(child.append(me.turn(3)))
    yield await outcome(chat.children())
    yield await outcome(chat.state.update({"step": me.name}))
    yield await outcome(chat.state.get())
    yield await outcome(
        me.store.get_tool_messages(me.name, THREAD, ["result-1", f"only-{me.other}"])
    )
    yield await outcome(me.store.list_conversations(user_id=me.name))
    yield await outcome(me.store.search("asks", user_id=me.name))
    stranger = await me.store.conversation(user_id=me.other, thread_id=THREAD).info()
    for id_ in (stranger.conversation_id or "nobody's", "nobody's"):
        yield await outcome(me.store.find_conversation(id_, user_id=me.name))
    yield await me.said()
    yield await outcome(chat.delete())
    yield await me.said()
    yield await outcome(chat.append(me.turn()))


async def tools(me: Owner) -> Outcomes:
    """The tools of a model, bound by the configuration of a run."""
    await me.chat.append(me.turn())
    tool = retrieve_previous_sources_tool(me.store)
    config = {"configurable": me.scope}
    for arguments in (
        {"tool_message_ids": ["result-1"]},
        {"source_ids": [1, 2, 3]},
        {"find": "passage"},
        {"cursor": "1@3"},
        {"tool_message_ids": [f"only-{me.other}"]},
    ):
        yield await outcome(tool.ainvoke(arguments, config))


async def chat_history(me: Owner) -> Outcomes:
    """LangChain's chat message histories, found by the id of a session."""
    histories = SessionHistories(me.store, scope={"user_id": me.name})
    history = histories(THREAD)
    yield await outcome(history.aadd_messages(me.turn()))
    yield await outcome(history.aget_messages())
    yield await outcome(history.aclear())
    yield await outcome(history.aget_messages())
    yield await outcome(history.aadd_messages(me.turn()))


async def middleware(me: Owner) -> Outcomes:
    """An agent of LangChain; the thread is the same, the user is not."""
    model = ScriptedModel(
        replies=[AIMessage(f"{me.name} is answered.", id=f"answer-{n}") for n in range(2)]
    )
    agent = create_agent(model, middleware=[ConversationMiddleware(me.store)])
    for number in range(2):
        question = HumanMessage(f"{me.name} asks {number}.", id=f"question-{number}")
        state = await agent.ainvoke({"messages": [question]}, {"configurable": me.scope})
        yield [message.text for message in state["messages"]]
    yield await me.said()


async def graph(me: Owner) -> Outcomes:
    """A graph with nodes that load and append."""
    builder = StateGraph(MessagesState)
    builder.add_node("load", load_node(me.store))
    builder.add_node(
        "model", lambda _: {"messages": [AIMessage(f"{me.name} is answered.", id="answer")]}
    )
    builder.add_node("append", append_node(me.store))
    builder.add_edge(START, "load")
    builder.add_edge("load", "model")
    builder.add_edge("model", "append")
    question = HumanMessage(f"{me.name} asks.", id="question")
    for _ in range(2):
        state = await builder.compile().ainvoke(
            {"messages": [question]}, {"configurable": me.scope}
        )
        yield [message.text for message in state["messages"]]
    yield await me.said()


async def page(me: Owner) -> Outcomes:
    """A chat front end; the ids of its requests are the client's."""
    question = {
        "id": "question-1",
        "role": "user",
        "parts": [{"type": "text", "text": f"{me.name} asks."}],
    }
    ask = {"id": THREAD, "trigger": "submit-message", "messages": [question]}
    for _ in range(2):
        async with await read_request(ask).turn(me.chat) as turn:
            yield [message.text for message in turn.messages]
            if not turn.is_finished:
                await turn.append(AIMessage(f"{me.name} is answered.", id="answer"))
    again = {**ask, "trigger": "regenerate-message", "messageId": f"answer:only-{me.other}"}
    yield await outcome(read_request(again).turn(me.chat))
    yield await outcome(ui_messages(me.chat))


async def inspector_pages(me: Owner) -> Outcomes:
    """The inspector, which shows this owner's conversations only."""
    import httpx

    from convstore.ext.inspector import inspector

    await me.chat.append([*me.turn(), HumanMessage("Mine.", id=f"only-{me.name}")])
    own = (await me.chat.info()).conversation_id
    stranger = await me.store.conversation(user_id=me.other, thread_id=THREAD).info()
    transport = httpx.ASGITransport(inspector(me.store, authorize=lambda _: {"user_id": me.name}))
    async with httpx.AsyncClient(transport=transport, base_url="http://inspector") as client:
        for id_ in (stranger.conversation_id or "nobody's", "nobody's"):
            for path in ("", "/sent", "/changes", "/tools", "/view.json", "/messages/1"):
                answer = await client.get(f"/c/{id_}{path}")
                yield answer.status_code, answer.text.replace(id_, "ID")
        for path in ("/", "/search?q=asks", f"/c/{own}", f"/c/{own}/tools", f"/c/{own}/view.json"):
            answer = await client.get(path)
            yield answer.status_code, answer.text.replace(own, "OWN")


async def transfer(me: Owner) -> Outcomes:
    """An archive, exported for one owner and imported for the other, who has the same ids."""
    await me.chat.append(me.turn())
    file = BytesIO()
    await export_conversations(me.store, file.write, scope={"user_id": me.name})
    yield sorted(line for line in file.getvalue().decode().splitlines() if "message" in line[:30])
    archive = me.folder / f"{me.name}.jsonl"
    archive.write_bytes(file.getvalue().replace(me.name.encode(), b"somebody"))
    for scope in ({"user_id": me.name}, {"user_id": me.name, "thread_id": "copy"}):
        report = await import_conversations(me.store, read_file(archive), scope=scope)
        yield report.conversations, report.messages, report.problems
    yield await me.said()


async def pydantic_ai(me: Owner) -> Outcomes:
    """Pydantic AI's store, with the user as the scope of its methods."""
    from pydantic_ai import Agent
    from pydantic_ai import Conversation as Talk
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    from convstore.ext.pydantic_ai import ConvstoreConversationStore, ConvstoreView

    talks = ConvstoreConversationStore(me.store)
    model = FunctionModel(
        lambda shown, _: ModelResponse([TextPart(f"{me.name} is shown {len(shown)}.")])
    )
    agent = Agent(model, capabilities=[ConvstoreView(talks, scope=me.name, tools=False)])
    options = {"scope": me.name}
    yield await outcome(talks.load(THREAD, **options))
    for number in range(2):
        talk = await talks.load(THREAD, **options) or Talk(conversation_id=THREAD)
        run = await agent.run(f"{me.name} asks {number}.", conversation=talk)
        yield run.output
        yield len(await talks.save(run, **options))
    entries = await talks.load_entries(THREAD, **options) or []
    yield [entry.message.parts[0] for entry in entries]
    yield [entry.message.parts[0] for entry in await talks.read_history(entries[-1].id)]
    foreign = await talks.load(THREAD, scope=me.other)
    yield (await outcome(talks.save(Talk(conversation_id=THREAD), **options)))
    if foreign:
        # the other owner's revision is none of this one's
        yield await outcome(talks.save(foreign, **options))
    else:
        yield await outcome(
            talks.save(Talk(conversation_id=THREAD, revision="nobody's"), **options)
        )
    found = await talks.load(THREAD, **options)
    branched = await talks.branch(THREAD, at=1, expected_revision=found.revision, **options)
    yield len(branched.messages)
    fork = await talks.fork(THREAD, new_conversation_id="fork", source_scope=me.name, scope=me.name)
    yield len(fork.messages)
    yield [record.conversation_id for record in await talks.list_conversations(scope=me.name)]
    yield await me.said()
    yield await outcome(talks.delete("fork", **options))
    yield await outcome(talks.load("fork", **options))
    yield await outcome(talks.load(THREAD, scope="nobody"))


async def openai_agents(me: Owner) -> Outcomes:
    """A session of the Agents SDK."""
    from convstore.ext.openai_agents import ConvstoreSession

    session = ConvstoreSession(me.store, **me.scope)
    items = [
        {"role": "user", "content": f"{me.name} asks.", "id": "item-1"},
        {"role": "user", "content": "And?"},
    ]
    yield await outcome(session.add_items(items))
    yield await outcome(session.get_items())
    yield await outcome(session.get_items(limit=5))
    yield await outcome(session.pop_item())
    yield await outcome(session.clear_session())
    yield await outcome(session.get_items())
    yield await outcome(session.add_items(items))


async def microsoft(me: Owner) -> Outcomes:
    """A history provider of Microsoft's Agent Framework."""
    from agent_framework import Message

    from convstore.ext.microsoft import ConvstoreHistoryProvider

    provider = ConvstoreHistoryProvider(me.store, user_id=me.name)
    said = [
        Message("user", [f"{me.name} asks."], message_id="m1"),
        Message("assistant", ["Yes."], message_id="m2"),
    ]
    for _ in range(2):
        yield await outcome(provider.save_messages(THREAD, said))
        yield [message.text for message in await provider.get_messages(THREAD)]
    state = {"user_id": me.other}  # a session that a client has changed
    yield [message.text for message in await provider.get_messages(THREAD, state=state)]


async def claude_agent(me: Owner) -> Outcomes:
    """A session store of the Claude Agent SDK."""
    from convstore.ext.claude_agent import ConvstoreSessionStore

    sessions = ConvstoreSessionStore(me.store, project="user_id", session="thread_id")
    key: Any = {"project_key": me.name, "session_id": THREAD}
    entry: Any = {
        "type": "user",
        "uuid": "e1",
        "message": {"role": "user", "content": f"{me.name} asks."},
    }
    for _ in range(2):
        yield await outcome(
            sessions.append(key, [{**entry, "timestamp": "2026-11-02T08:00:00.000Z"}])
        )
    yield await outcome(sessions.append({**key, "subpath": "sub"}, [entry]))
    yield await outcome(sessions.load(key))
    yield await outcome(sessions.list_subkeys(key))
    yield [session["session_id"] for session in await sessions.list_sessions(me.name)]
    yield await outcome(sessions.delete(key))
    yield await outcome(sessions.load(key))
    yield await outcome(sessions.append(key, [entry]))


Door = Callable[[Owner], Outcomes]
FRAMEWORKS: dict[Door, str] = {
    pydantic_ai: "pydantic_ai",
    openai_agents: "agents",
    microsoft: "agent_framework",
    claude_agent: "claude_agent_sdk",
}
DOORS = (
    handle,
    tools,
    chat_history,
    middleware,
    graph,
    page,
    inspector_pages,
    transfer,
    *FRAMEWORKS,
)
ORDERS = {
    "ada": ["ada"],
    "eve": ["eve"],
    "ada first": ["ada", "eve"],
    "eve first": ["eve", "ada"],
    "in turns": [],
}
RANDOM = re.compile(
    r"[0-9a-f]{8}-?[0-9a-f-]{9,}|\d{4}-\d\d-\d\d[T ][\d:.+]+Z?|datetime\([^)]*\)|\d\d:\d\d:\d\d"
    r"|just now|\b\d+ (ms|s|min)\b( ago)?"
)


async def outcomes_of(door: Door, order: Sequence[str], folder: Path) -> dict[str, list[str]]:
    """Return the outcomes of each owner's calls through a door, without random ids, dates and durations."""
    found: dict[str, list[str]] = {name: [] for name in order}
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        scripts = {name: door(Owner(store, name, folder)) for name in found}
        turns = (
            cycle(scripts)
            if len(order) > len(scripts)
            else (name for name in scripts for _ in range(999))
        )
        for name in turns:
            try:
                found[name].append(RANDOM.sub("…", repr(await anext(scripts[name]))))
            except StopAsyncIteration:
                found[name].append("")
            if all(each[-1:] == [""] for each in found.values()):
                break
    return found


async def check_door(door: Door, folder: Path) -> None:
    """Each owner's calls have the outcomes that they have on a store without the other one."""
    alone = {name: (await outcomes_of(door, [name], folder))[name] for name in OWNERS}
    for name, said in alone.items():
        assert len(said) > 3
        assert any(name in text for text in said), "the script shows nothing of its owner"
    for order in (["ada", "eve"], ["eve", "ada"], ["ada", "eve", "ada", "eve"]):
        together = await outcomes_of(door, order, folder)
        for name in OWNERS:
            pairs = zip(together[name], alone[name], strict=False)
            wrong = [number for number, (found, expected) in enumerate(pairs) if found != expected]
            assert wrong == [], (
                order,
                name,
                [together[name][n] for n in wrong],
                [alone[name][n] for n in wrong],
            )


@pytest.mark.parametrize("door", DOORS)
async def test_two_owners_with_equal_ids_never_meet(door: Door, tmp_path: Path) -> None:
    """Nothing crosses, and a foreign id answers like an unknown one, in whatever order they come."""
    if door in FRAMEWORKS and not is_installed(FRAMEWORKS[door]):
        pytest.skip(f"{FRAMEWORKS[door]} is not installed")
    await check_door(door, tmp_path)
