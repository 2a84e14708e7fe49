"""Documents that a newer convstore wrote: its conversations are left alone, and can be deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.exceptions import SchemaVersionError
from convstore.runtime.clock import Clock
from convstore.summarization import HeadTailSummarizer
from convstore.values.policy import CompactionRule

RULE = CompactionRule(max_tokens_before_summary=50, max_summary_tokens=40, keep_last_turns=1)
LATER = Clock(now=lambda: datetime.now(UTC) + timedelta(days=400))


@pytest.fixture
def database(emptied_database: Any) -> Any:
    """A database of its own, because verify looks at all of it."""
    return emptied_database


@pytest.fixture
async def chat(database: Any) -> Conversation:
    """A conversation with results, a summary and an annotation; there is another one beside it."""
    store = made(database)
    await store.setup()
    for thread in ("other", "newer"):
        chat = store.conversation(user_id="ada", thread_id=thread)
        for number in range(3):
            call = AIMessage("", tool_calls=[{"name": "read", "args": {}, "id": f"call{number}"}])
            result = ToolMessage("line " * 400, tool_call_id=f"call{number}", id=f"t{number}")
            await chat.append([HumanMessage(f"Why {number}?"), call, result, AIMessage("So.", id=f"a{number}")])
        assert (await chat.compact(force=True)).status == "done"
        await chat.annotate("a1", rating=1)
        await chat.append([HumanMessage("And?"), AIMessage("Then.")])
    return chat


def made(database: Any, **options: Any) -> ConversationStore:
    """A store of another process."""
    return ConversationStore(database, summarizer=HeadTailSummarizer(RULE), **options)


def again(database: Any, chat: Conversation) -> Conversation:
    """The conversation in another process."""
    return made(database).conversation(**chat.scope)


async def renew(database: Any, chat: Conversation, kind: str) -> None:
    """Let a newer version have written the last document of a kind in the conversation."""
    conversation = await id_of(database, chat)
    name = {"head": "heads", "summary": "summaries"}.get(kind, "log")
    key: Any = {"state": f"{conversation}:~", "entry": f"{conversation}:{4:012d}"}.get(kind, {"$exists": True})
    query = {"conversation": conversation, "_id": key}
    assert (await database[name].update_one(query, {"$set": {"v": 2, "field": "of then"}})).modified_count == 1


async def id_of(database: Any, chat: Conversation) -> str:
    """The random id of the conversation."""
    return str((await database["heads"].find_one({"scope.thread_id": chat.scope["thread_id"]}))["conversation"])


async def stored(database: Any) -> dict[str, Any]:
    """Every document but the records of migrations."""
    names = ("heads", "log", "summaries", "annotations")
    return {name: await database[name].find({}).sort("_id", 1).to_list(None) for name in names}


def newer_in(documents: dict[str, Any]) -> list[Any]:
    """Those that a newer version wrote."""
    return [one for collection in documents.values() for one in collection if one.get("v") == 2]


@pytest.mark.parametrize("kind", ["entry", "head"])
async def test_a_newer_entry_or_head_stops_its_conversation(database: Any, chat: Conversation, kind: str) -> None:
    """The error says to upgrade, before anything is written; other conversations go on."""
    await renew(database, chat, kind)
    found, late = await stored(database), again(database, chat)
    for call in (late.load_history, late.list_messages, late.info, lambda: late.append(HumanMessage("More?"))):
        with pytest.raises(SchemaVersionError, match="written by a newer convstore; upgrade"):
            await call()
    del found["heads"]
    assert {name: one for name, one in (await stored(database)).items() if name in found} == found
    other = made(database).conversation(user_id="ada", thread_id="other")
    await other.append([HumanMessage("More?"), AIMessage("Less.")])
    assert (await other.load_history()).messages[-1].text == "Less."


@pytest.mark.parametrize("kind", ["entry", "head"])
async def test_a_newer_document_marks_its_row_in_a_listing(database: Any, chat: Conversation, kind: str) -> None:
    """Other rows are as they were."""
    await renew(database, chat, kind)
    rows = {
        one.scope["thread_id"]: one for one in (await made(database).list_conversations(user_id="ada")).conversations
    }
    assert "newer convstore" in rows["newer"].problem
    assert (rows["other"].problem, rows["other"].message_count) == ("", 14)


@pytest.mark.parametrize("kind", ["state", "summary"])
async def test_newer_derived_data_is_ignored_and_kept(database: Any, chat: Conversation, kind: str) -> None:
    """Loads read the log, appends go on, and no compaction, repair or load changes the document."""
    await renew(database, chat, kind)
    found = await stored(database)
    late = again(database, chat)
    if kind == "state":
        assert (await late.load_history()).summary is None
        with pytest.raises(SchemaVersionError, match="upgrade"):  # its lease would be a field of the state
            await late.turn("r1", human="More?")
    await late.append([HumanMessage("More?"), AIMessage("Less.")])
    assert (await late.load_history(HistoryPolicy(max_turns=1))).messages[-1].text == "Less."
    assert (await late.compact(force=True)).status != "failed"
    await late.rewind(before="a2")
    await late.undo_rewind()
    await made(database, clock=LATER).verify(repair=True)
    assert newer_in(await stored(database)) == newer_in(found)


@pytest.mark.parametrize("kind", ["entry", "head", "state", "summary"])
async def test_a_repair_leaves_newer_documents_alone(database: Any, chat: Conversation, kind: str) -> None:
    """They are no damage: a finding says what was not checked, and other conversations are checked."""
    await renew(database, chat, kind)
    before = await stored(database)
    report = await made(database, clock=LATER).verify(repair=True)
    assert [one.kind for one in report.findings] == (["newer"] if kind in ("entry", "head") else [])
    assert newer_in(await stored(database)) == newer_in(before)


@pytest.mark.parametrize("kind", ["entry", "head", "state", "summary"])
@pytest.mark.parametrize("way", ["delete", "erase", "prune"])
async def test_a_newer_conversation_can_be_deleted(database: Any, chat: Conversation, kind: str, way: str) -> None:
    """A request to erase does not wait for an upgrade."""
    await renew(database, chat, kind)
    conversation, store = await id_of(database, chat), made(database, clock=LATER)
    if way == "delete":
        await store.conversation(**chat.scope).delete()
    elif way == "erase":
        await store.erase(**chat.scope)
    else:
        await store.prune(older_than=timedelta(days=30), user_id="ada")
    for name in ("log", "summaries", "annotations"):
        assert await database[name].count_documents({"conversation": conversation}) == 0


async def test_fields_by_rules_of_another_version_are_not_compared(database: Any, chat: Conversation) -> None:
    """A change of a word of the stub, or of a constant, makes no stored data damaged."""
    key = {"_id": f"{await id_of(database, chat)}:{1:012d}"}
    changed = {"messages.2.stub": "in other words", "totals.view_tokens": 5, "results_at": 3}
    await database["log"].update_one(key, {"$set": changed | {"rules": 7}})
    report = await made(database, clock=LATER).verify()
    assert [(one.kind, one.document_id) for one in report.findings if one.document_id == key["_id"]] == []
    assert len(await again(database, chat).get_tool_messages(["t0"])) == 1
