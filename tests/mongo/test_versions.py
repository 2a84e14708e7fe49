"""Documents that a newer convstore wrote: its conversations are left alone, and can be deleted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from properties import sampled

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.exceptions import SchemaVersionError
from convstore.mongo.drafts import Draft, Drafts
from convstore.mongo.driver import Driver
from convstore.mongo.keys import application_state_id
from convstore.runtime.clock import Clock
from convstore.summarization import HeadTailSummarizer
from convstore.types import TurnSession
from convstore.values.policy import CompactionRule

COLLECTIONS = {
    "entry": "log",
    "head": "heads",
    "state": "log",
    "summary": "summaries",
    "annotation": "annotations",
    "draft": "drafts",
    "segment": "search",
}
"""Where documents of each kind are stored; the lease of a turn is a field of the state."""

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
            await chat.append(
                [HumanMessage(f"Why {number}?"), call, result, AIMessage("So.", id=f"a{number}")]
            )
        assert (await chat.compact(force=True)).status == "done"
        await chat.annotate("a1", rating=1)
        await chat.append([HumanMessage("And?"), AIMessage("Then.")])
        await store._services.sealer.seal(tuple(chat.scope.items()))
    draft = Draft("r1", "owner", 14, "So f")
    await Drafts(Driver(database)).begin(await id_of(database, chat), draft)
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
    key: Any = {"state": f"{conversation}:~", "entry": f"{conversation}:{4:012d}"}.get(
        kind, {"$exists": True}
    )
    query = {"conversation": conversation, "_id": key}
    found = await database[COLLECTIONS[kind]].find_one_and_delete(query)
    if kind == "segment":  # the version of which is in its key
        found |= {"_id": f"{conversation}:{1:012d}:later", "version": "later"}
    await database[COLLECTIONS[kind]].insert_one(found | {"v": 2, "field": "of then"})


async def id_of(database: Any, chat: Conversation) -> str:
    """The random id of the conversation."""
    return str(
        (await database["heads"].find_one({"scope.thread_id": chat.scope["thread_id"]}))[
            "conversation"
        ]
    )


async def stored(database: Any) -> dict[str, Any]:
    """Every document but the records of migrations."""
    names = sorted({*COLLECTIONS.values()})
    return {name: await database[name].find({}).sort("_id", 1).to_list(None) for name in names}


def newer_in(documents: dict[str, Any]) -> list[Any]:
    """Return the documents that a newer version wrote."""
    return [
        document
        for collection in documents.values()
        for document in collection
        if document.get("v") == 2
    ]


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["entry", "head"])
async def test_a_newer_entry_or_head_stops_its_conversation(
    database: Any, chat: Conversation, kind: str
) -> None:
    """The error says to upgrade, before anything is written; other conversations go on."""
    await renew(database, chat, kind)
    found, late = await stored(database), again(database, chat)
    for call in (
        late.load_history,
        late.list_messages,
        late.info,
        lambda: late.append(HumanMessage("More?")),
    ):
        with pytest.raises(SchemaVersionError, match="written by a newer convstore; upgrade"):
            await call()
    del found["heads"]
    assert {
        name: value for name, value in (await stored(database)).items() if name in found
    } == found
    other = made(database).conversation(user_id="ada", thread_id="other")
    await other.append([HumanMessage("More?"), AIMessage("Less.")])
    assert (await other.load_history()).messages[-1].text == "Less."


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["entry", "head"])
async def test_a_newer_document_marks_its_row_in_a_listing(
    database: Any, chat: Conversation, kind: str
) -> None:
    """A document of a newer version marks the row of its conversation in a listing, and no other row."""
    await renew(database, chat, kind)
    rows = {
        conversation.scope["thread_id"]: conversation
        for conversation in (await made(database).list_conversations(user_id="ada")).conversations
    }
    assert "newer convstore" in rows["newer"].problem
    assert (rows["other"].problem, rows["other"].message_count) == ("", 14)


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["state", "summary", "draft", "segment"])
async def test_newer_derived_data_is_ignored_and_kept(
    database: Any, chat: Conversation, kind: str
) -> None:
    """Loads read the log, appends go on, and no compaction, repair or load changes the document."""
    await renew(database, chat, kind)
    found = await stored(database)
    late = again(database, chat)
    if kind == "state":
        assert (await late.load_history()).summary is None
        # its lease would be a field of the state
        with pytest.raises(SchemaVersionError, match="upgrade"):
            await late.turn("r1", human="More?")
    else:
        await late.append(HumanMessage("Still?"))
        async with await late.turn("r1", human="More?") as turn:
            assert [chunk async for chunk in turn.stream(words())] == ["Less ", "of it."]
    await late.append([HumanMessage("More?"), AIMessage("Less.")])
    assert (await late.get_turn("r1") is None) == (kind == "state")
    assert [hit.message_id for hit in await late.search("less")]
    assert (await late.load_history(HistoryPolicy(max_turns=1))).messages[-1].text == "Less."
    assert (await late.compact(force=True)).status != "failed"
    await late.rewind(before_id="a2")
    await late.undo_rewind()
    await made(database, clock=LATER).verify(repair=True)
    assert newer_in(await stored(database)) == newer_in(found)


async def words(*, breaks: bool = False) -> AsyncIterator[str]:
    """A reply that is streamed, to its end or until it breaks."""
    yield "Less "
    if breaks:
        raise ConnectionError
    yield "of it."


async def break_off(turn: TurnSession) -> None:
    """Stream a reply that breaks, so that its draft is written."""
    with pytest.raises(ConnectionError):
        async for _ in turn.stream(words(breaks=True)):
            pass


async def draft_of(chat: Conversation) -> str:
    """The draft of the turn, as other workers see it."""
    turn = await chat.get_turn("r1")
    assert turn is not None
    return turn.draft


@pytest.mark.slow
async def test_a_newer_draft_is_not_shown_replaced_or_removed(
    database: Any, chat: Conversation
) -> None:
    """The draft of a newer version is not shown, replaced or removed. The turn continues without a draft."""
    async with await chat.turn("r1", human="More?") as turn:
        await break_off(turn)
    late = again(database, chat)
    assert await draft_of(late) == "Less "
    await renew(database, chat, "draft")
    assert await draft_of(late) == ""
    await database["drafts"].update_one({"v": 2}, {"$unset": {"draft": ""}})
    before = await stored(database)
    async with await late.turn("r1") as turn:
        assert turn.draft == ""
        await break_off(turn)
    assert (await made(database, clock=LATER).verify(repair=True)).findings == ()
    assert (await stored(database))["drafts"] == before["drafts"]


@pytest.mark.slow
async def test_a_newer_state_of_the_application_is_not_read_or_changed(
    database: Any, chat: Conversation
) -> None:
    """Calls for an application state of a newer version say to upgrade, and do not change it.

    Annotations of this version are still read.
    """
    await chat.state.update({"step": 1})
    key = application_state_id(await id_of(database, chat))
    await database["annotations"].update_one({"_id": key}, {"$set": {"v": 2}})
    late, before = again(database, chat), await stored(database)
    for call in (late.state.get, partial(late.state.update, {"step": 2})):
        with pytest.raises(SchemaVersionError, match="newer convstore; upgrade"):
            await call()
    assert (await stored(database))["annotations"] == before["annotations"]
    assert await late.annotations(["a1"]) == {"a1": {"rating": 1}}
    assert [finding.kind for finding in (await made(database, clock=LATER).verify()).findings] == [
        "newer"
    ]


async def test_newer_annotations_are_not_read_or_changed(database: Any, chat: Conversation) -> None:
    """Calls for annotations of a newer version say to upgrade, and do not change them.

    Annotations of other messages and the view are not affected.
    """
    await renew(database, chat, "annotation")
    late, before = again(database, chat), await stored(database)
    for call in (late.annotations(["a1"]), late.annotate("a1", rating=2)):
        with pytest.raises(SchemaVersionError, match=r"the annotation .* newer convstore; upgrade"):
            await call
    assert (await stored(database))["annotations"] == before["annotations"]
    await late.annotate("a2", rating=2)
    assert await late.annotations(["a2"]) == {"a2": {"rating": 2}}
    assert (await late.load_history()).messages[-1].text == "Then."


@pytest.mark.slow
async def test_the_lease_in_a_newer_state_stays_its_holders(
    database: Any, chat: Conversation
) -> None:
    """The lease in a state of a newer version is neither taken nor stopped. Its holder continues and releases it."""
    holder = again(database, chat)
    async with await holder.turn("r1", human="More?") as turn:
        await renew(database, chat, "state")
        before = newer_in(await stored(database))
        late = again(database, chat)
        for call in (late.turn("r2", human="Else?"), late.stop("r1")):
            with pytest.raises(SchemaVersionError, match=r"the state .* newer convstore; upgrade"):
                await call
        assert newer_in(await stored(database)) == before
        await made(database, clock=LATER).verify(repair=True)
        assert newer_in(await stored(database)) == before
        await turn.append(AIMessage("Less."))
    [state] = newer_in(await stored(database))
    assert "turn" not in state
    assert state == {name: value for name, value in before[0].items() if name != "turn"}


async def test_the_numbers_in_a_newer_state_are_not_taken(
    database: Any, chat: Conversation
) -> None:
    """The numbers that a newer version reserved for sub-agents stay in the state; sub-agents get others."""
    sources = json.dumps([{"title": "A page", "content": "words " * 50}])

    async def searched(chat: Conversation, number: int) -> int:
        """Return the number of a sub-agent's source."""
        call = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": f"s{number}"}])
        result = ToolMessage(sources, name="search", tool_call_id=f"s{number}")
        receipt = await chat.child("finder").append([HumanMessage("Find."), call, result])
        assert receipt.source_ids is not None
        return receipt.source_ids[0]

    used = [await searched(chat, number) for number in range(3)]
    state = await database["log"].find_one({"_id": f"{await id_of(database, chat)}:~"})
    assert state["numbers"]["free"] > 0
    await renew(database, chat, "state")
    before = newer_in(await stored(database))
    used += [await searched(again(database, chat), number) for number in (3, 4)]
    assert newer_in(await stored(database)) == before
    assert len(set(used)) == len(used)


@pytest.mark.costly
@pytest.mark.parametrize("kind", COLLECTIONS)
async def test_a_repair_leaves_newer_documents_alone(
    database: Any, chat: Conversation, kind: str
) -> None:
    """A repair leaves documents of a newer version as they are and reports those that it could not check."""
    await renew(database, chat, kind)
    before = await stored(database)
    report = await made(database, clock=LATER).verify(repair=True)
    # The segment of this version is built again.
    found = [finding.kind for finding in report.findings if finding.kind != "segment"]
    assert found == (["newer"] if kind in ("entry", "head", "annotation") else [])
    assert newer_in(await stored(database)) == newer_in(before)


@pytest.mark.costly
@pytest.mark.parametrize("kind", COLLECTIONS)
@pytest.mark.parametrize("way", sampled(["delete", "erase", "prune"], every=3))
async def test_a_newer_conversation_can_be_deleted(
    database: Any, chat: Conversation, kind: str, way: str
) -> None:
    """A request to erase does not wait for an upgrade."""
    await renew(database, chat, kind)
    conversation, store = await id_of(database, chat), made(database, clock=LATER)
    if way == "delete":
        await store.conversation(**chat.scope).delete()
    elif way == "erase":
        await store.erase(**chat.scope)
    else:
        await store.prune(older_than=timedelta(days=30), user_id="ada")
    for name in {*COLLECTIONS.values()} - {"heads"}:
        assert await database[name].count_documents({"conversation": conversation}) == 0


@pytest.mark.slow
async def test_fields_by_rules_of_another_version_are_not_compared(
    database: Any, chat: Conversation
) -> None:
    """A change of a word of the stub, or of a constant, makes no stored data damaged."""
    key = {"_id": f"{await id_of(database, chat)}:{1:012d}"}
    changed = {"messages.2.stub": "in other words", "totals.view_tokens": 5, "results_at": 3}
    await database["log"].update_one(key, {"$set": changed | {"rules": 7}})
    report = await made(database, clock=LATER).verify()
    assert [
        (finding.kind, finding.document_id)
        for finding in report.findings
        if finding.document_id == key["_id"]
    ] == []
    assert len(await again(database, chat).get_tool_messages(["t0"])) == 1


@pytest.mark.costly
@pytest.mark.parametrize("swept", [False, True])
async def test_a_newer_tombstone_is_swept(database: Any, chat: Conversation, swept: bool) -> None:
    """A tombstone of a newer version is swept. The second sweep removes the tombstone itself."""
    conversation = await id_of(database, chat)
    await chat.delete()
    past = datetime.now(UTC) - timedelta(minutes=1)
    change = {"v": 2, "sweep_at": past, "swept": swept}
    await database["heads"].update_one({"_id": f"deleted:{conversation}"}, {"$set": change})
    await database["log"].insert_one(
        {"_id": f"{conversation}:{9:012d}", "conversation": conversation, "v": 2}
    )
    await made(database).erase(user_id="nobody")
    await made(database).prune(older_than=timedelta(days=3_000))
    assert await database["log"].count_documents({"conversation": conversation}) == 0
    assert await database["heads"].count_documents({"_id": f"deleted:{conversation}"}) == (
        not swept
    )
