"""One conversation whose head cannot be read costs one row, marked and named; never an answer about many."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from command_line import convstore
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel

from convstore import ConversationStore, ConvstoreError
from convstore.exceptions import CorruptDocumentError
from convstore.ext.inspector import inspector
from convstore.testing.samples import new_id
from convstore.transfer import export_conversations

Document = dict[str, Any]
RAW = CodecOptions(document_class=RawBSONDocument)


class Money(BaseModel):
    """A value of the application's own type."""

    euros: int


@pytest.fixture
def database(emptied_database: Any) -> Any:
    """A database of its own, set up."""
    return emptied_database


@pytest.fixture
async def user(store: ConversationStore, database: Any) -> str:
    """A user with three conversations about whales; the middle one has a price in its metadata."""
    user = new_id()
    for number in range(3):
        chat = store.conversation(user_id=user, thread_id=f"t{number}")
        await chat.append([HumanMessage(f"Whales {number}?"), AIMessage("They sing.")])
        await chat.update(title=f"Title {number}", metadata={"number": number})
    rich = ConversationStore(database)
    rich.register_artifact_type(Money, name="Money")
    await rich.conversation(user_id=user, thread_id="t1").update(metadata={"price": Money(euros=3)})
    return user


async def rows(store: ConversationStore, user: str) -> dict[str, tuple[str | None, str]]:
    """Return title and problem of each row of a listing, in one page and in pages of one.

    A head without a readable date comes last, and is only on the page that it fits on.
    """
    found, cursor = dict[str, tuple[str | None, str]](), None
    while True:
        page = await store.list_conversations(user_id=user, limit=1, cursor=cursor)
        found |= {
            conversation.scope.get("thread_id", ""): (conversation.title, conversation.problem)
            for conversation in page.conversations
        }
        if (cursor := page.next_cursor) is None:
            break
    whole = (await store.list_conversations(user_id=user)).conversations
    every = {info.scope.get("thread_id", ""): (info.title, info.problem) for info in whole}
    assert {
        name: row
        for name, row in every.items()
        if "expected a datetime" not in row[1] or name in found
    } == found
    return every


@pytest.mark.slow
async def test_a_type_that_is_not_registered_is_called_that(
    store: ConversationStore, user: str
) -> None:
    """In the row, in the result of a search and by `info`, which writes nothing back; it is no damage."""
    found = await rows(store, user)
    assert (found["t0"], found["t2"]) == (("Title 0", ""), ("Title 2", ""))
    assert found["t1"][0] is None
    assert "'Money'" in found["t1"][1]
    assert "damage" not in found["t1"][1]
    result = await store.search("whales", user_id=user)
    assert sorted(str(conversation.title) for conversation in result.conversations) == [
        "None",
        "Title 0",
        "Title 2",
    ]
    assert list(result.problems.values()) == [found["t1"][1]]
    with pytest.raises(ConvstoreError, match="register_artifact_type") as raised:
        await store.conversation(user_id=user, thread_id="t1").info()
    assert not isinstance(raised.value, CorruptDocumentError)
    assert (await store.verify(user_id=user)).ok


async def test_metadata_with_a_key_that_is_no_text_costs_one_row(
    store: ConversationStore, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions stored it; the row says how it is mended, and `update` mends it."""
    chat = store.conversation(user_id=user, thread_id="t0")
    with monkeypatch.context() as earlier:
        earlier.setattr("convstore.admin.catalog.check_text_keys", lambda *_, **__: None)
        await chat.update(metadata={2: "a"})
    title, problem = (await rows(store, user))["t0"]
    assert title is None
    assert "each key of metadata must be a str, not 2" in problem
    with pytest.raises(CorruptDocumentError, match="set them again"):
        await chat.info()
    await chat.update(title="Again", metadata={"2": "a"})
    assert (await rows(store, user))["t0"] == ("Again", "")


@pytest.mark.slow
@pytest.mark.costly
@pytest.mark.parametrize(
    ("change", "is_searched"),
    [
        ({"details.title": '"half'}, True),
        ({"details.title": "7"}, True),
        ({"details.metadata": "[1]"}, True),
        ({"details": "x"}, False),
        ({"entry": "x"}, False),
        ({"created_at": 5}, False),
        ({"updated_at": 5}, False),
        ({"conversation": 5}, False),
    ],
)
async def test_a_damaged_head_costs_one_row(
    store: ConversationStore, database: Any, user: str, change: Document, *, is_searched: bool
) -> None:
    """Listings and searches answer about the others, and name it; `verify` reports it."""
    before = await rows(store, user)
    head = await database["heads"].find_one({"scope.user_id": user, "scope.thread_id": "t0"})
    await database["heads"].update_one({"_id": head["_id"]}, {"$set": change})
    cold = ConversationStore(database)
    found = await rows(cold, user)
    assert {name: row for name, row in found.items() if name != "t0"} == {
        name: before[name] for name in ("t1", "t2")
    }
    assert found["t0"][0] is None
    assert head["_id"] in found["t0"][1]
    result = await cold.search("whales", user_id=user)
    assert sum(len(conversation.hits) for conversation in result.conversations) == 2 + is_searched
    assert found["t0"][1] in result.problems.values()
    report = await cold.verify(user_id=user)
    assert (report.ok, {finding.document_id for finding in report.findings}) == (
        False,
        {head["_id"]},
    )


@pytest.mark.costly
@pytest.mark.parametrize("change", [{"entry": "x"}, {"updated_at": 5}, {"conversation": 5}])
async def test_statistics_count_a_damaged_head_apart(
    store: ConversationStore, database: Any, user: str, change: Document
) -> None:
    """The sums are those of the others, with and without a scope, and say that one is missing."""
    query = {"scope.user_id": user, "scope.thread_id": "t0"}
    await database["heads"].update_one(query, {"$set": change})
    for scope in ({"user_id": user}, {}):
        stats = await store.stats(**scope)
        assert (stats.conversations, stats.damaged, stats.turns, stats.messages) == (3, 1, 2, 4)
        assert sum(day.conversations for day in stats.growth) == 2


@pytest.mark.slow
async def test_a_damaged_title_is_set_again(
    store: ConversationStore, database: Any, user: str
) -> None:
    """Repair guesses none; the error says what to do."""
    chat = store.conversation(user_id=user, thread_id="t0")
    await database["heads"].update_one({"scope": chat.scope}, {"$set": {"details.title": '"half'}})
    with pytest.raises(CorruptDocumentError, match="set them again"):
        await chat.info()
    assert not (await store.verify(repair=True, user_id=user)).ok
    await chat.update(title="Again")
    assert ((await chat.info()).title, (await chat.info()).metadata) == ("Again", {"number": 0})
    assert (await store.verify(user_id=user)).ok


async def test_a_title_that_is_no_text_hides_no_other_row(
    store: ConversationStore, database: Any, user: str
) -> None:
    """Bytes that are not UTF-8, which a driver refuses to read."""
    head = await database["heads"].find_one({"scope.user_id": user, "scope.thread_id": "t0"})
    raw = await database.get_collection("heads", codec_options=RAW).find_one({"_id": head["_id"]})
    await database["heads"].delete_one({"_id": head["_id"]})
    await database["heads"].insert_one(
        RawBSONDocument(bytes(raw.raw).replace(b"Title 0", b"T\xc3\x28le 0"))
    )
    assert len(await rows(ConversationStore(database), user)) == 3
    assert (
        len((await ConversationStore(database).search("whales", user_id=user)).conversations) == 3
    )


async def test_an_export_names_it(store: ConversationStore, database: Any, user: str) -> None:
    """The others are in the file; none comes without its title."""
    await database["heads"].update_one(
        {"scope.user_id": user, "scope.thread_id": "t0"}, {"$set": {"details.title": "7"}}
    )
    store.register_artifact_type(Money, name="Money")
    written = list[bytes]()
    report = await export_conversations(store, written.append, scope={"user_id": user})
    assert (report.conversations, report.left_out) == (2, 1)
    assert "set them again" in str(report.problems)
    assert b"They sing" in b"".join(written)


@pytest.mark.slow
async def test_people_see_it(
    store: ConversationStore, user: str, database: Any, server_uri: str
) -> None:
    """On the command line and in the inspector."""
    await database["heads"].update_one(
        {"scope.thread_id": "t0"}, {"$set": {"details.title": "damaged"}}
    )
    address = server_uri.replace("/?", f"/{database.name}?")
    said = await asyncio.to_thread(
        convstore, "list", "--uri", address, "--scope", f"user_id={user}"
    )
    assert "title and its metadata cannot be read" in said.output, said.output
    transport = httpx.ASGITransport(inspector(store, authorize=lambda _: {"user_id": user}))
    async with httpx.AsyncClient(transport=transport, base_url="http://inspector") as browser:
        shown = (await browser.get("/")).text
    assert "cannot be read in this store" in shown
    assert "Title 2" in shown
