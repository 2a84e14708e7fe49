"""Imports of what other frameworks stored: documents made by their packages, or the packages themselves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mongomock
import pytest
from bson import json_util
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from mongomock_motor import AsyncMongoMockClient

from convstore import ConversationStore, InvalidInputError
from convstore.transfer import (
    ConversationRecord,
    ScopeRule,
    import_conversations,
    read_adk_sessions,
    read_agents_sessions,
    read_agents_sqlite,
    read_checkpoints,
    read_history_collection,
    read_step_store,
)

FILE = Path(__file__).parents[1] / "support" / "foreign_sessions.json"
"""Made with google-adk 2.13.0 and pydantic-ai-harness 0.62.0, which cannot be installed beside the other packages."""


@pytest.fixture
async def store() -> AsyncIterator[ConversationStore]:
    """A store to import into."""
    async with await ConversationStore.connect("memory://") as store:
        await store.setup()
        yield store


async def _documents(name: str) -> Any:
    database = AsyncMongoMockClient()[name]
    for collection, documents in json_util.loads(FILE.read_text(encoding="utf-8"))[name].items():
        await database[collection].insert_many(documents)
    return database


def _outline(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    return [(message.type, message.text) for message in messages]


async def test_sessions_of_google_adk_are_imported(store: ConversationStore) -> None:
    """Messages with their calls, errors, images, thoughts, dates and ids, and the state; a second import adds none."""
    database, rule = (
        await _documents("adk"),
        ScopeRule(keys=store.scope_keys, fields={"user_id": "user_id"}),
    )
    for imported, unchanged in ((1, 1), (0, 2)):  # one session is empty
        report = await import_conversations(store, read_adk_sessions(database), scope=rule)
        assert (report.imported, report.unchanged, report.left_out) == (imported, unchanged, 0)
    reasons = [problem.reason for problem in report.problems]
    assert reasons[0] == "left out: 1 event without content"
    chat = store.conversation(user_id="ada", thread_id="s1")
    messages = [message async for message in chat.messages(rewound=True)]
    assert [message.id for message in messages] == ["e1", "e2", "e3", "e3:1", "e5"]
    question, call, found, failed, answer = messages
    assert isinstance(call, AIMessage)
    assert question.content[1] == {
        "type": "image",
        "mime_type": "image/png",
        "base64": "iVBOR/v//g==",
    }
    assert call.content == [{"type": "reasoning", "reasoning": "Let me look."}]
    assert [(call["id"], call["args"]) for call in call.tool_calls] == [
        ("c1", {"q": "orcas"}),
        ("c2", {"q": "sleep"}),
    ]
    assert call.usage_metadata == {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    assert (found.text, getattr(found, "tool_call_id", ""), getattr(failed, "status", "")) == (
        "One half.",
        "c1",
        "error",
    )
    assert json.loads(failed.text) == {"error": "no answer", "code": 7}
    assert answer.text == "One half of the brain at a time."
    assert (await chat.list_messages())[0].created_at == datetime(2024, 5, 1, 8, tzinfo=UTC)
    assert (await chat.state.get()).values == {"step": 2}


SESSION = {"app_name": "zoo", "user_id": "ada", "session_id": "s1"}


async def _adk(*events: tuple[str, dict[str, Any]]) -> Any:
    """Return a database with one session; an event is its invocation and what it has beside."""
    database = AsyncMongoMockClient()["adk"]
    await database["sessions"].insert_one({"_id": SESSION, **SESSION, "state": "{}"})
    for number, (invocation, more) in enumerate(events, 1):
        data = {
            "id": f"e{number}",
            "invocation_id": invocation,
            "author": "user",
            "timestamp": 1.7e9 + number,
            **more,
        }
        key = {**SESSION, "event_id": f"e{number}"}
        stored = {"_id": key, **SESSION, "timestamp": data["timestamp"], "revision": number}
        await database["events"].insert_one(stored | {"event_data": json.dumps(data)})
    return database


async def test_what_a_user_of_google_adk_took_back_is_rewound(store: ConversationStore) -> None:
    """From the named invocation on; a rewind that was taken back, or of an unknown invocation, hides nothing."""

    def said(invocation: str, text: str) -> tuple[str, dict[str, Any]]:
        return invocation, {"content": {"role": "user", "parts": [{"text": text}]}}

    def back(invocation: str) -> tuple[str, dict[str, Any]]:
        return "rewind", {"actions": {"rewind_before_invocation_id": invocation}}

    cases: list[tuple[list[tuple[str, dict[str, Any]]], str]] = [
        ([said("1", "a"), said("2", "b"), back("2"), said("3", "c")], "ac"),
        (
            [
                said("1", "a"),
                said("2", "b"),
                back("2"),
                back("2"),
                back("unknown"),
                said("3", "c"),
                back("2"),
            ],
            "a",
        ),
        (
            [
                said("1", "a"),
                said("2", "b"),
                back("2"),
                said("3", "c"),
                back("1"),
                said("4", "d"),
                back("3"),
            ],
            "a",
        ),
        (
            [said("1", "a"), said("2", "b"), said("2", "c"), back("2"), back("1"), said("4", "d")],
            "d",
        ),
    ]
    for number, (events, shown) in enumerate(cases):
        scope = {"user_id": f"user{number}", "thread_id": "s1"}
        for _ in range(2):
            report = await import_conversations(
                store, read_adk_sessions(await _adk(*events)), scope=scope
            )
            assert (report.problems, report.left_out) == ([], 0)
        messages = (await store.conversation(**scope).load_history()).messages
        assert "".join(message.text for message in messages) == shown, number


async def test_calls_of_google_adk_without_ids_are_imported(store: ConversationStore) -> None:
    """A call gets an id made from its event, and a result without an id answers the first open call of its tool."""
    call = {"function_call": {"name": "search", "args": {}}}
    named = {"function_call": {"name": "search", "args": {}, "id": "c3"}}
    result = {"function_response": {"name": "search", "response": {"result": "found"}}}
    database = await _adk(
        ("1", {"author": "guide", "content": {"role": "model", "parts": [call, call, named]}}),
        (
            "1",
            {
                "author": "guide",
                "content": {"role": "user", "parts": [result, result, result, result]},
            },
        ),
    )
    report = await import_conversations(
        store, read_adk_sessions(database), scope={"user_id": "ada"}
    )
    assert (report.imported, report.problems) == (1, [])
    asked, *found = [
        message async for message in store.conversation(user_id="ada", thread_id="s1").messages()
    ]
    assert isinstance(asked, AIMessage)
    assert [each["id"] for each in asked.tool_calls] == ["e1:call:0", "e1:call:1", "c3"]
    answered = [getattr(message, "tool_call_id", "") for message in found]
    assert answered == ["e1:call:0", "e1:call:1", "c3", "e2:result:3"]


async def test_snapshots_of_a_step_store_are_imported(store: ConversationStore) -> None:
    """The newest one of each conversation, with all that the history of Pydantic AI has; a second import adds none."""
    database = await _documents("steps")
    for imported in (1, 0):
        report = await import_conversations(
            store, read_step_store(database), scope={"user_id": "ada"}
        )
        assert (report.imported, report.left_out) == (imported, 0)
    assert report.problems[0].reason == "the instructions of its requests are left out"
    messages = [
        message
        async for message in store.conversation(user_id="ada", thread_id="conv-1").messages()
    ]
    assert _outline(messages) == [
        ("system", "Be kind."),
        ("human", "Do orcas sleep?"),
        ("ai", ""),
        ("tool", '{"found": "orcas"}'),
        ("tool", "Sleep."),
        ("ai", "One half of the brain at a time."),
        ("human", "Where do they live?"),
        ("ai", "In all seas."),
    ]
    assert [block["type"] for block in messages[1].content if isinstance(block, dict)] == [
        "text",
        "image",
        "image",
    ]
    assert [call["args"] for call in getattr(messages[2], "tool_calls", ())] == [
        {"q": "orcas"},
        {"q": "sleep"},
    ]


async def test_a_conversation_of_two_users_is_given_to_neither(store: ConversationStore) -> None:
    """The field of a scope may be in some documents, and must not differ between those of one conversation."""
    database = AsyncMongoMockClient()["owners"]
    history = json.dumps(
        [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hi"}]}]
    )
    graph = StateGraph(MessagesState).add_node("answer", lambda _: {"messages": [AIMessage("Yes")]})
    agent: Any = graph.add_edge(START, "answer").compile(checkpointer=InMemorySaver())
    for thread, users in {"one": ("ada", None, "ada"), "two": ("ada", "eve", None)}.items():
        for number, user in enumerate(users):
            own = {"user_id": user} if user else {}
            said = {
                "SessionId": thread,
                "History": {"role": "user", "content": "Hi"},
                "metadata": own,
            }
            await database["messages"].insert_one(said)
            run = {
                "_id": f"{thread}{number}",
                "conversation_id": thread,
                "metadata": {"n": number} | own,
            }
            await database["runs"].insert_one(run)
            snapshot = {
                "run_id": run["_id"],
                "conversation_id": thread,
                "parent_run_id": None,
                "seq": number,
            }
            await database["snapshots"].insert_one(snapshot | {"messages": history})
            await agent.ainvoke(
                {"messages": [("user", "Hi")]}, {"configurable": own | {"thread_id": thread}}
            )
    rule = ScopeRule(keys=store.scope_keys, fields={"user_id": "metadata.user_id"})
    readers = (
        read_history_collection(database["messages"]),
        read_step_store(database),
        read_checkpoints(agent.checkpointer),
    )
    for records in readers:
        report = await import_conversations(store, records, scope=rule, dry_run=True)
        assert [given.scope for given in report.scopes] == [{"user_id": "ada", "thread_id": "one"}]
        assert [problem.conversation for problem in report.problems] == ["two"]
        assert "'metadata.user_id' has several values" in report.problems[0].reason


async def test_a_call_that_was_cut_and_a_file_in_a_result_are_imported(
    store: ConversationStore,
) -> None:
    """Arguments that are no JSON leave out no answer; an image in a result is no text, and feedback says what it is."""
    call = {
        "part_kind": "tool-call",
        "tool_name": "look",
        "tool_call_id": "c1",
        "args": '{"place": ',
    }
    image = {"kind": "binary", "data": "iVBOR_v__g==", "media_type": "image/png"}
    result = {
        "part_kind": "tool-return",
        "tool_name": "look",
        "tool_call_id": "c1",
        "content": [{"n": 1}, image],
    }
    native = {"part_kind": "builtin-tool-call", "tool_name": "web", "args": {}, "tool_call_id": "n"}
    history = [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Look."}]},
        {"kind": "response", "parts": [{"part_kind": "text", "content": "So."}, native, call]},
        {
            "kind": "request",
            "parts": [result, {"part_kind": "retry-feedback", "content": [{"type": "missing"}]}],
        },
        {"kind": "request", "parts": []},
    ]
    database = AsyncMongoMockClient()["cut"]
    await database["snapshots"].insert_one(
        {
            "run_id": "r",
            "conversation_id": "cut",
            "parent_run_id": None,
            "seq": 1,
            "messages": json.dumps(history),
        }
    )
    report = await import_conversations(store, read_step_store(database), scope={"user_id": "ada"})
    assert (report.imported, report.messages, report.problems) == (1, 4, [])
    messages = [
        message async for message in store.conversation(user_id="ada", thread_id="cut").messages()
    ]
    _, answer, found, feedback = messages
    assert isinstance(answer, AIMessage)
    assert [(wrong["id"], wrong["args"]) for wrong in answer.invalid_tool_calls] == [
        ("c1", '{"place": ')
    ]
    assert answer.content == [
        {"type": "text", "text": "So."},
        {"type": "non_standard", "value": native},
    ]
    assert found.content == [
        {"type": "text", "text": '{"n": 1}'},
        {"type": "image", "mime_type": "image/png", "base64": "iVBOR/v//g=="},
    ]
    assert (
        feedback.text
        == 'Validation feedback:\n[{"type": "missing"}]\n\nFix the errors and try again.'
    )


_ITEMS: list[Any] = [
    {"role": "user", "content": "Do orcas sleep?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "search",
        "arguments": '{"q": "orcas"}',
    },
    {"type": "function_call_output", "call_id": "c1", "output": "One half."},
    {
        "type": "message",
        "id": "__fake_id__",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "One half of the brain.", "annotations": []}],
    },
]
_AGAIN: list[Any] = [
    {"role": "user", "content": "Where?"},
    {
        "id": "__fake_id__",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Seas."}],
    },
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mongodb", "sqlite"])
async def test_sessions_of_openai_agents_are_imported(
    store: ConversationStore, server_uri: str, own_database: Any, tmp_path: Path, kind: str
) -> None:
    """The items of an answer are one message, ids that the SDK made up are none, later turns are added."""
    agents = pytest.importorskip("agents")
    memory = pytest.importorskip("agents.extensions.memory.mongodb_session")

    def session(id_: str) -> Any:
        if kind == "sqlite":
            return agents.SQLiteSession(id_, tmp_path / "sessions.db")
        return memory.MongoDBSession.from_uri(id_, uri=server_uri, database=own_database.name)

    first, cleared = session("s-1"), session("s-2")
    await cleared.add_items(_ITEMS)
    await cleared.clear_session()
    for items, expected in ((_ITEMS, 4), (_AGAIN, 6), ([], 6)):
        await first.add_items(items)
        records = (
            read_agents_sqlite(tmp_path / "sessions.db")
            if kind == "sqlite"
            else read_agents_sessions(own_database)
        )
        report = await import_conversations(store, records, scope={"user_id": "ada"})
        assert report.problems == [] or {problem.conversation for problem in report.problems} == {
            "s-2"
        }
        chat = store.conversation(user_id="ada", thread_id="s-1")
        messages = [message async for message in chat.messages(rewound=True)]
        assert len(messages) == expected
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai", "human", "ai"]
    assert isinstance(messages[1], AIMessage)
    assert messages[1].tool_calls[0]["args"] == {"q": "orcas"}
    assert messages[3].text == "One half of the brain."
    assert "__fake_id__" not in [message.id for message in messages]
    for each in (first, cleared):
        await each.close() if kind == "mongodb" else each.close()


@pytest.mark.slow
async def test_threads_of_a_mongodb_saver_are_imported(
    store: ConversationStore, server_uri: str, own_database: Any
) -> None:
    """The newest state of a MongoDBSaver's thread is imported, as docs/migrating.md does it for a checkpointer."""
    saver = pytest.importorskip("langgraph.checkpoint.mongodb").MongoDBSaver
    graph = StateGraph(MessagesState)
    graph.add_node(
        "answer", lambda state: {"messages": [AIMessage(f"Answer {len(state['messages'])}")]}
    )
    graph.add_edge(START, "answer")
    with saver.from_conn_string(server_uri, own_database.name) as checkpointer:
        agent: Any = graph.compile(checkpointer=checkpointer)
        config = {"configurable": {"thread_id": "orcas"}}
        for question in ("Do orcas sleep?", "How?"):
            await agent.ainvoke({"messages": [("user", question)]}, config)
        state = await agent.aget_state(config)
        record = ConversationRecord(id="orcas", messages=state.values["messages"])
        report = await import_conversations(store, [record], scope={"user_id": "ada"})
    assert (report.imported, report.messages, report.problems) == (1, 4, [])


async def test_an_answer_that_follows_an_answer_is_imported_later(store: ConversationStore) -> None:
    """Items that `MongoDBSession` stored in two calls are two messages, so a session may grow between two imports."""
    collections = AsyncMongoMockClient()["agents"]
    await collections["agent_sessions"].insert_one({"session_id": "s-1"})
    for at, items in enumerate((_ITEMS, _AGAIN[1:])):
        texts = [json.dumps(item) for item in items]
        await collections["agent_messages"].insert_one(
            {"session_id": "s-1", "seq": at, "message_data": texts}
        )
        report = await import_conversations(
            store, read_agents_sessions(collections), scope={"user_id": "ada"}
        )
        assert (report.left_out, report.messages) == (0, [4, 1][at])
    messages = [
        message async for message in store.conversation(user_id="ada", thread_id="s-1").messages()
    ]
    assert _outline(messages)[-2:] == [("ai", "One half of the brain."), ("ai", "Seas.")]


_KEY = {"app_name": "zoo", "user_id": "ada", "session_id": "s9"}
_DAMAGE = {
    "adk": [("sessions", {"_id": "torn"}), ("sessions", {"_id": _KEY, "state": "{torn"})],
    "steps": [
        (
            "snapshots",
            {"_id": f"torn-{at}", "run_id": "torn", "conversation_id": f"a-{at}", "seq": 9} | torn,
        )
        for at, torn in enumerate(
            [{"messages": "[torn"}, {"messages": "{}"}, {"messages": None}, {}]
        )
    ],
    "agents": [("agent_sessions", {"_id": "torn"})],
}


@pytest.mark.parametrize("kind", _DAMAGE)
async def test_damaged_documents_do_not_end_an_import(store: ConversationStore, kind: str) -> None:
    """Each conversation of damaged documents is reported with its place; the others are imported."""
    if kind == "agents":
        database = AsyncMongoMockClient()[kind]
        await database["agent_sessions"].insert_one({"session_id": "whole"})
        messages = [json.dumps({"role": "user", "content": "Hi"})]
        await database["agent_messages"].insert_one(
            {"session_id": "whole", "seq": 1, "message_data": messages}
        )
    else:
        database = await _documents(kind)
    readers: dict[str, Any] = {
        "adk": read_adk_sessions,
        "steps": read_step_store,
        "agents": read_agents_sessions,
    }
    whole = [record async for record in readers[kind](database)]
    for collection, document in _DAMAGE[kind]:
        await database[collection].insert_one(dict(document, parent_run_id=None))
    report = await import_conversations(store, readers[kind](database), scope={"user_id": "ada"})
    assert (report.imported + report.unchanged, report.left_out) == (len(whole), len(_DAMAGE[kind]))
    reasons = [problem.reason for problem in report.problems if problem.what == "conversation"]
    assert all(reason.startswith("its documents are damaged") for reason in reasons)


async def test_damaged_event_is_a_message_that_is_left_out(store: ConversationStore) -> None:
    """An event without its key or with an impossible date leaves its session out, and ends no import."""
    database, key = (
        await _documents("adk"),
        {"app_name": "zoo", "user_id": "ada", "session_id": "s8"},
    )
    await database["sessions"].insert_one({"_id": key})
    text = json.dumps(
        {"id": "e1", "timestamp": 1e300, "content": {"role": "user", "parts": [{"text": "Hi"}]}}
    )
    await database["events"].insert_many(
        [{"event_data": text, **key}, {"event_data": "torn", **key}]
    )
    report = await import_conversations(
        store, read_adk_sessions(database), scope={"user_id": "ada"}
    )
    assert (report.imported, report.left_out) == (1, 1)


async def test_an_event_with_results_and_calls_keeps_both(store: ConversationStore) -> None:
    """Calls in the event of a result become an AI message after it."""
    database, key = (
        await _documents("adk"),
        {"app_name": "zoo", "user_id": "ada", "session_id": "s8"},
    )
    parts = [
        {"function_response": {"id": "c1", "name": "look", "response": {"result": "A seal."}}},
        {"text": "And again."},
        {"function_call": {"id": "c2", "name": "look", "args": {"q": 2}}},
    ]
    event = {
        "id": "e9",
        "timestamp": 1.0,
        "author": "zoo",
        "content": {"role": "model", "parts": parts},
    }
    await database["sessions"].insert_one({"_id": key})
    await database["events"].insert_one(
        {"_id": key | {"event_id": "e9"}, "event_data": json.dumps(event), **key}
    )
    await import_conversations(store, read_adk_sessions(database), scope={"user_id": "ada"})
    result, again = [
        message async for message in store.conversation(user_id="ada", thread_id="s8").messages()
    ]
    assert isinstance(again, AIMessage)
    assert (result.text, again.text, again.tool_calls[0]["id"]) == ("A seal.", "And again.", "c2")


async def test_state_that_is_too_large_is_reported_as_a_change(store: ConversationStore) -> None:
    """The messages of a session are imported and counted if `Conversation.state` cannot hold its state."""
    database = await _documents("adk")
    await database["sessions"].update_many({}, {"$set": {"state": {"notes": "x" * 300_000}}})
    report = await import_conversations(
        store, read_adk_sessions(database), scope={"user_id": "ada"}
    )
    assert (report.imported, report.left_out, report.messages) == (1, 0, 5)
    assert [
        problem.what for problem in report.problems if "its state is left out" in problem.reason
    ] == ["changed"] * 2


@pytest.mark.parametrize("wrong", [None, 1, "adk", {}, mongomock.MongoClient()["app"]], ids=repr)
@pytest.mark.parametrize(
    "read", [read_adk_sessions, read_agents_sessions, read_step_store, read_history_collection]
)
async def test_what_is_no_database_is_refused(read: Any, wrong: Any) -> None:
    """That of a synchronous client, too, before anything is read."""
    with pytest.raises(InvalidInputError):
        await anext(read(wrong))


async def test_a_name_of_a_collection_or_a_field_is_a_text() -> None:
    """Else the driver would raise an error of its own."""
    database = AsyncMongoMockClient()["adk"]
    readers: list[Any] = [
        read_adk_sessions(database, events=None),
        read_agents_sessions(database, sessions=""),
        read_history_collection(database["chats"], history_key=1),
    ]
    for reader in readers:
        with pytest.raises(InvalidInputError, match="non-empty str"):
            await anext(reader)
