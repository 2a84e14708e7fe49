"""The session store for the Claude Agent SDK: the SDK's own contract, and what a conversation adds to it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from claude_agent_sdk import (
    fold_session_summary,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
)
from claude_agent_sdk.testing import run_session_store_conformance
from hypothesis import given, settings
from hypothesis import strategies as st

from convstore import ConversationStore, InvalidInputError
from convstore.conversation.state import ApplicationState
from convstore.exceptions import InvalidScopeError
from convstore.ext.claude_agent import ConvstoreSessionStore
from convstore.types import StateSnapshot

pytestmark = pytest.mark.slow

_KEYS = ("user_id", "project_key", "session_id")


@pytest.fixture(params=["mongod", "memory"])
async def sessions(
    request: pytest.FixtureRequest, own_database: Any
) -> AsyncIterator[ConversationStore]:
    """A store with keys for a user, a project and a session, on a real server and in memory."""
    if request.param == "mongod":
        async with ConversationStore(own_database, scope_keys=_KEYS) as store:
            await store.setup()
            yield store
        return
    async with await ConversationStore.connect("memory://", scope_keys=_KEYS) as memory:
        await memory.setup()
        yield memory


def _key(**more: str) -> Any:
    return {"project_key": "garden", "session_id": "0b5d0a34-74a5-4a3e-8a1b-1f6a3c9d2e10", **more}


def _entry(kind: str, content: Any = None, **more: Any) -> dict[str, Any]:
    """An entry as the command line writes it."""
    entry = {
        "parentUuid": None,
        "isSidechain": False,
        "cwd": "/garden",
        "type": kind,
        "uuid": str(uuid.uuid4()),
        "timestamp": "2026-11-02T08:00:00.000Z",
        **more,
    }
    if content is not None:
        entry["message"] = {"role": kind, "content": content}
    return entry


def _transcript() -> list[dict[str, Any]]:
    """A session with everything: calls in parallel, thinking, an image, an error, titles, and forms that are odd."""
    usage = {"input_tokens": 10, "output_tokens": 4, "cache_read_input_tokens": 3}
    of_model = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "stop_sequence": None,
    }
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    }
    calls = [
        {"type": "tool_use", "id": f"toolu_{n}", "name": "Read", "input": {"file_path": f"{n}.md"}}
        for n in (1, 2)
    ]
    results: list[dict[str, Any]] = [
        {"tool_use_id": "toolu_1", "type": "tool_result", "content": "long " * 8_000},
        {
            "type": "tool_result",
            "content": [{"type": "text", "text": "no file"}],
            "is_error": True,
            "tool_use_id": "toolu_2",
        },
    ]

    def answered(block: dict[str, Any], stop: str | None = None) -> dict[str, Any]:
        return _entry("assistant", requestId="req_1") | {
            "message": {**of_model, "content": [block], "stop_reason": stop, "usage": usage}
        }

    return [
        {
            "type": "queue-operation",
            "operation": "enqueue",
            "timestamp": "2026-11-02T08:00:00.000Z",
            "n": 2**53,
        },
        _entry("user", "What is in the two files?"),
        answered({"type": "thinking", "thinking": "Read them.", "signature": "c2ln"}),
        answered(calls[0]),
        answered(calls[1], "tool_use"),
        _entry("user", results, toolUseResult={"file": {"numLines": 3}}),
        answered({"type": "text", "text": "One is long, one is missing. \ud800"}, "end_turn"),
        {"type": "custom-title", "customTitle": "Files", "sessionId": "x"},
        _entry("user", [{"type": "text", "text": "And this?"}, image]),
        _entry(
            "user",
            [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": None},
                {"type": "text", "text": "?"},
            ],
        ),
        _entry("assistant", "plain text"),
        _entry("user", {"not": "content"}),
        _entry("assistant") | {"message": "not a message"},
        _entry("system", subtype="compact_boundary", content=None)
        | {"content": "Conversation compacted"},
        {"type": "summary", "summary": "Two files", "leafUuid": "x"},
        {"type": "tag", "tag": "reading"},
    ]


async def test_the_contract_of_the_sdk_holds(sessions: ConversationStore) -> None:
    """Each of its fourteen checks, each with a user of its own."""
    await run_session_store_conformance(
        lambda: ConvstoreSessionStore(sessions, user_id=uuid.uuid4().hex)
    )


async def test_a_transcript_comes_back_equal(sessions: ConversationStore) -> None:
    """In any batches, also from another process; its messages are those of the conversation."""
    entries, store = _transcript(), ConvstoreSessionStore(sessions, user_id="ada")
    for at in range(0, len(entries), 5):
        await store.append(_key(), entries[at : at + 5])
    assert await ConvstoreSessionStore(sessions, user_id="ada").load(_key()) == entries
    chat = store.conversation(_key())
    assert [message.type async for message in chat.messages()] == (
        ["human", "ai", "ai", "ai", "tool", "tool", "ai", "human", "tool", "human", "ai"]
    )
    assert not (await sessions.verify()).findings
    view = await chat.load_history()
    assert next(message for message in view.messages if message.type == "tool").text.startswith(
        '{"success": true'
    )
    assert (await chat.search("two files"))[0].ordinal == 1
    usage = (await chat.info()).usage["claude-sonnet-4-5"]
    assert usage["output_tokens"] == 8  # of two answers, in four entries


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_BLOCKS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["text", "tool_use", "tool_result", "image", "thinking", "input_text"]
            )
        },
        optional={
            "text": _JSON,
            "id": st.just("c1"),
            "name": st.just("f"),
            "input": _JSON,
            "content": _JSON,
        }
        | {"tool_use_id": st.sampled_from(["c1", "c2", ""]), "is_error": _JSON},
    )
    | _JSON,
    max_size=4,
)
_ENTRIES = st.fixed_dictionaries(
    {"type": st.sampled_from(["user", "assistant", "system"])},
    optional={"parentUuid": _JSON}
    | {
        "message": st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool"])},
            optional={
                "content": _BLOCKS | _JSON,
                "type": st.just("message"),
                "stop_reason": _JSON,
                "id": _JSON,
            }
            | {
                "usage": _JSON
                | st.fixed_dictionaries({"input_tokens": _JSON, "output_tokens": _JSON}),
                "x": _JSON,
            },
        )
        | _JSON
    },
)


@settings(max_examples=150, deadline=None)
@given(entries=st.lists(_ENTRIES, min_size=1, max_size=4))
async def test_any_entry_comes_back_equal(entries: list[dict[str, Any]]) -> None:
    """Any entry is loaded as it was appended, with the types of its values, even if no command line would write it."""
    async with await ConversationStore.connect("memory://", scope_keys=_KEYS) as memory:
        await memory.setup()
        given_entries: list[Any] = [{**entry, "uuid": f"u{at}"} for at, entry in enumerate(entries)]
        store = ConvstoreSessionStore(memory, user_id="ada")
        await store.append(_key(), given_entries)
        assert repr(await store.load(_key())) == repr(given_entries)


async def test_the_blocks_of_an_answer_are_one_turn(sessions: ConversationStore) -> None:
    """Though each is an entry that is written alone, and a text before a call looks like the answer."""
    ours = ConvstoreSessionStore(sessions, user_id="ada")
    look = {"type": "tool_use", "id": "t1", "name": "Read", "input": {}}
    entries: list[Any] = [
        _entry("user", "Look."),
        _entry("assistant", [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]),
        _entry("assistant", [{"type": "text", "text": "I will look."}]),
        _entry("assistant", [look]),
        _entry("user", [{"type": "tool_result", "tool_use_id": "t1", "content": "beans"}]),
        _entry("assistant", [{"type": "text", "text": "Beans."}]),
        _entry("user", "And now?"),
        _entry("assistant", [{"type": "text", "text": "Peas."}]),
    ]
    for entry in entries[:5]:
        await ours.append(_key(), [entry])
    await ours.append(_key(), entries[5:])
    chat = ours.conversation(_key())
    turns = [(len(turn.messages), turn.is_finished) async for turn in chat.turns()]
    assert turns == [(6, True), (2, True)]
    assert not (await sessions.verify(**chat.scope)).findings


async def test_an_entry_is_stored_once(sessions: ConversationStore) -> None:
    """Under its uuid, whatever it says then; entries without one are stored again."""
    entries, store = _transcript(), ConvstoreSessionStore(sessions, user_id="ada")
    with_uuid = [entry for entry in entries if "uuid" in entry]
    await store.append(_key(), with_uuid)
    changed = [{**entry, "message": {"role": "user", "content": "other"}} for entry in with_uuid]
    new, mark = _entry("user", "new"), {"type": "mode", "mode": "plan"}
    await store.append(_key(), [*changed, new, new, {**new, "cwd": "/other"}, mark])
    await store.append(_key(), [new, mark])
    assert await store.load(_key()) == [*with_uuid, new, mark, mark]


async def test_a_uuid_that_is_no_text_names_no_entry(sessions: ConversationStore) -> None:
    """An entry whose uuid is not text is never a duplicate of another entry. All entries are loaded in order."""
    store = ConvstoreSessionStore(sessions, user_id="ada")
    given: list[Any] = [
        {"type": "x", "uuid": id_, "at": at} for at, id_ in enumerate([1, "a", 1, {"$ne": ""}])
    ]
    await store.append(_key(), given)
    await store.append(_key(), given[1:2])
    assert await store.load(_key()) == given


async def test_a_batch_may_be_of_any_size(own_database: Any) -> None:
    """Above what one append takes, in one entry or in many."""
    sessions = ConversationStore(own_database, scope_keys=_KEYS)
    await sessions.setup()
    store = ConvstoreSessionStore(sessions, user_id="ada")
    entries = [_entry("assistant", f"{n} " * 2_000) for n in range(150)]
    entries.append(_entry("user", [{"type": "text", "text": f"{n} " * 20} for n in range(14_000)]))
    await store.append(_key(), entries)
    assert await store.load(_key()) == entries


async def test_users_are_apart(sessions: ConversationStore) -> None:
    """A session of another user is one that does not exist; deleting it deletes nothing."""
    ada, eve = (ConvstoreSessionStore(sessions, user_id=user) for user in ("ada", "eve"))
    sub = _key(subpath="subagents/workflows/agent-1")
    for key in (_key(), sub):
        await ada.append(key, [_entry("user", "secret")])
    await eve.delete(_key())
    assert [await eve.load(key) for key in (_key(), sub)] == [None, None]
    assert [await eve.list_sessions("garden"), await eve.list_subkeys(_key())] == [[], []]
    assert await eve.list_session_summaries("garden") == []
    assert await ada.list_subkeys(_key()) == ["subagents/workflows/agent-1"]
    assert len(await ada.load(sub) or []) == 1


async def test_summaries_of_concurrent_writers_lose_nothing(
    sessions: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is folded in, though all of them read the same sidecar first; one is as new as its session."""
    read, barrier, readers = ApplicationState.get, asyncio.Barrier(3), list[int]()

    async def get(state: ApplicationState) -> StateSnapshot:
        found = await read(state)
        readers.append(1)
        if len(readers) <= barrier.parties:
            await barrier.wait()
        return found

    monkeypatch.setattr(ApplicationState, "get", get)
    store = ConvstoreSessionStore(sessions, user_id="ada")
    batches: list[list[Any]] = [
        [{"type": "tag", "tag": "t"}],
        [{"type": "x", "aiTitle": "Beans"}],
        [_entry("user", "Hi")],
    ]
    await asyncio.gather(*(store.append(_key(), batch) for batch in batches))
    [summary], [listed] = (
        await store.list_session_summaries("garden"),
        await store.list_sessions("garden"),
    )
    assert summary["mtime"] == listed["mtime"]
    folded = fold_session_summary(None, _key(), [entry for batch in batches for entry in batch])
    assert {"tag": "t", "ai_title": "Beans", "first_prompt": "Hi"}.items() <= summary[
        "data"
    ].items()
    assert summary["data"].keys() == folded["data"].keys()


async def test_a_session_that_is_deleted_during_an_append_stays_deleted(
    sessions: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No summary of it is stored afterwards, and no listing has it."""
    ada, get = ConvstoreSessionStore(sessions, user_id="ada"), ApplicationState.get

    async def late(state: ApplicationState) -> StateSnapshot:
        found = await get(state)
        monkeypatch.setattr(ApplicationState, "get", get)
        await ada.delete(_key())
        return found

    # a first append, and a later one
    for batch in (
        [_entry("user", "Hi")],
        [_entry("assistant", "Hello")],
    ):
        monkeypatch.setattr(ApplicationState, "get", late)
        await ada.append(_key(), batch)
        assert await ada.load(_key()) is None
        assert await ada.list_sessions("garden") == await ada.list_session_summaries("garden") == []
        await ada.append(_key(), [_entry("user", "Again")])


async def test_the_sdk_reads_lists_and_forks_sessions(sessions: ConversationStore) -> None:
    """By its own functions."""
    store, directory = ConvstoreSessionStore(sessions, user_id="ada"), "/garden"
    key = _key(project_key=project_key_for_directory(directory))
    first = _entry("user", "What is in it?")
    second = _entry("assistant", [{"type": "text", "text": "Beans."}], parentUuid=first["uuid"])
    await store.append(key, [first, second])
    [info] = await list_sessions_from_store(store, directory=directory)
    assert (info.session_id, info.first_prompt) == (key["session_id"], "What is in it?")
    read = await get_session_messages_from_store(store, key["session_id"], directory=directory)
    assert [message.message["content"] for message in read] == [
        "What is in it?",
        [{"type": "text", "text": "Beans."}],
    ]
    forked = await fork_session_via_store(store, key["session_id"], directory=directory)
    assert forked.session_id != key["session_id"]
    assert len(await list_sessions_from_store(store, directory=directory)) == 2


def test_scope_keys_are_checked_at_once(sessions: ConversationStore) -> None:
    """Each has a value, but for project and session, which may have other names."""
    for wrong in (
        {},
        {"user_id": "ada", "thread_id": "x"},
        {"user_id": "ada", "project": "user_id"},
        {"user_id": ""},
        {"user_id": "ada", "project_key": "garden"},
    ):
        with pytest.raises(InvalidScopeError):
            ConvstoreSessionStore(sessions, **wrong)
    with pytest.raises(InvalidInputError):
        ConvstoreSessionStore(None)
    store = ConvstoreSessionStore(
        sessions, user_id="ada", project="session_id", session="project_key"
    )
    assert store.conversation(_key()).scope["project_key"] == _key()["session_id"]
