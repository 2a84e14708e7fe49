"""Listings examine what they return, and the store works on servers that lack options or close a cursor."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from counting import Commands
from fixture_types import Client
from langchain_core.messages import HumanMessage
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from convstore import ConversationStore
from convstore.exceptions import InvalidScopeError, StoreError, StoreUnavailableError
from convstore.mongo import collection
from convstore.mongo.collection import Collection
from convstore.mongo.driver import Driver, driver_errors

KEYS = ("team_id", "user_id", "thread_id")
REFUSALS = {
    "storageEngine": OperationFailure(
        "Field 'storageEngine' is currently not supported",
        303,
        {"ok": 0.0, "code": 303, "operationTime": 1},
    ),
    "clusteredIndex": OperationFailure(
        "BSON field 'create.clusteredIndex' is an unknown field.", 40415, {"ok": 0.0, "code": 40415}
    ),
}


async def examined(database: Any, command: dict[str, Any]) -> tuple[int, int, int]:
    """Return the keys of heads and of the log that the server examines for a page, and the rows that it returns."""
    aggregate = {name: command[name] for name in ("aggregate", "pipeline", "cursor")}
    plan = await database.command({"explain": aggregate, "verbosity": "executionStats"})
    heads, join = plan["stages"][0]["$cursor"]["executionStats"], plan["stages"][-1]
    return heads["totalKeysExamined"], int(join["totalKeysExamined"]), int(join["nReturned"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "listings", "scope"),
    [
        (KEYS, [("thread_id", "team_id")], {"team_id": "red", "thread_id": "t1"}),
        (KEYS, [], {"team_id": "red", "user_id": "u1"}),
        (("team_id", "user_id"), [], {"team_id": "red", "user_id": "u1"}),
        (KEYS, [], {"team_id": "red"}),
    ],
)
async def test_a_listing_examines_about_what_it_returns(  # noqa: PLR0917 - fixtures and cases
    own_database: Any,
    client: Client,
    commands: Commands,
    keys: Any,
    listings: Any,
    scope: Any,
) -> None:
    """By two keys as by one, on the first page and on later ones, however many sub-agents there are."""
    store = ConversationStore(client[own_database.name], scope_keys=keys)
    await store.setup(listings=listings)
    documents = [
        {"team_id": team, "user_id": f"u{user}", "thread_id": f"t{thread}"}
        for team in ("red", "blue")
        for user in range(8)
        for thread in range(8)
    ]
    for distinct in {
        tuple(document[key] for key in keys): document for document in documents
    }.values():
        await store.conversation(**{key: distinct[key] for key in keys}).append(HumanMessage("hi"))
    calls_sub_agents = store.conversation(**{key: scope.get(key, "u1") for key in keys})
    for number in range(9):
        await calls_sub_agents.child(f"agent {number}").append(HumanMessage("hi"))
    cursor, listed = None, list[Any]()
    while not listed or cursor:
        with commands.counted():
            page = await store.list_conversations(limit=3, cursor=cursor, **scope)
        [(name, page_of_heads)] = commands.sent
        assert name == "aggregate"
        *keys_examined, returned = await examined(own_database, page_of_heads)
        assert max(keys_examined) <= returned + 2, page_of_heads
        listed += page.conversations
        cursor = page.next_cursor
    assert len(listed) == len({str(info.scope) for info in listed}) >= 1
    assert all(scope.items() <= info.scope.items() for info in listed)
    assert (await store.verify()).findings == ()


@pytest.mark.parametrize(
    "listing",
    ["team_id", (), ("team_id", "course"), ("team_id", "team_id"), None, 7, ([],), {"team_id": 1}],
)
async def test_a_listing_names_scope_keys(own_database: Any, listing: Any) -> None:
    """Anything else is refused before anything is created."""
    with pytest.raises(InvalidScopeError, match="a listing names some of this store's scope keys"):
        await ConversationStore(own_database, scope_keys=KEYS).setup(listings=[listing])
    assert await own_database.list_collection_names() == []


@pytest.mark.parametrize(
    "listings", ["team_id", None, 7, True, {"team_id": 1}, lambda: [["team_id"]]]
)
async def test_listings_are_a_list(own_database: Any, listings: Any) -> None:
    """One name in place of a list of combinations would be read letter by letter."""
    with pytest.raises(InvalidScopeError, match="listings must be a list of combinations"):
        await ConversationStore(own_database, scope_keys=KEYS).setup(listings=listings)
    assert await own_database.list_collection_names() == []


@pytest.mark.costly
@pytest.mark.parametrize(
    "refused", [["storageEngine"], ["clusteredIndex"], ["storageEngine", "clusteredIndex"]]
)
async def test_a_server_that_refuses_an_option_is_set_up_without_it(
    own_database: Any, monkeypatch: pytest.MonkeyPatch, refused: list[str]
) -> None:
    """With all others; the store then works as ever."""
    create = type(own_database).create_collection

    async def picky(database: Any, name: str, **options: Any) -> Any:
        if found := [option for option in refused if option in options]:
            raise REFUSALS[found[0]]
        return await create(database, name, **options)

    monkeypatch.setattr(type(own_database), "create_collection", picky)
    store = ConversationStore(own_database)
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(HumanMessage("hi"))
    assert [message.content async for message in chat.messages()] == ["hi"]
    options = await own_database["log"].options()
    can_cluster = await Driver(own_database).can_cluster()
    assert ("storageEngine" in options, "clusteredIndex" in options) == (
        "storageEngine" not in refused,
        can_cluster and "clusteredIndex" not in refused,
    )


async def test_another_refusal_is_reported(
    own_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing rights, for example, which no option has to do with."""

    async def forbid(_database: Any, _name: str, **_options: Any) -> Any:
        raise OperationFailure('not authorized on app to execute command { create: "log" }', 13)

    monkeypatch.setattr(type(own_database), "create_collection", forbid)
    with pytest.raises(StoreError, match="not authorized"):
        await ConversationStore(own_database).setup()


@pytest.fixture
async def long_collection(client: Client, database_name: str) -> AsyncIterator[Collection]:
    """A collection whose reads take several batches."""
    name = f"long_{uuid.uuid4().hex}"
    await client[database_name][name].insert_many([{"_id": number} for number in range(25)])
    yield Collection(Driver(client[database_name]), name)
    await client[database_name].drop_collection(name)


@asynccontextmanager
async def closed_cursors(client: Client, times: int) -> AsyncIterator[None]:
    """The server says of the next requests for more that it has no such cursor."""
    data = {"failCommands": ["getMore"], "errorCode": 43}
    await client.admin.command(
        {"configureFailPoint": "failCommand", "mode": {"times": times}, "data": data}
    )
    try:
        yield
    finally:
        await client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


async def test_a_read_whose_cursor_is_gone_begins_again(
    long_collection: Collection, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gets all documents, once; if it happens again, the error says what to do."""
    monkeypatch.setattr(collection, "_BATCH", 9)
    async with closed_cursors(client, 1):
        assert [
            document["_id"] for document in await long_collection.find({}, order=[("_id", 1)])
        ] == list(range(25))
    async with closed_cursors(client, 2):
        with pytest.raises(StoreError, match="start again from the beginning"):
            await long_collection.find({}, order=[("_id", 1)])


@pytest.mark.slow
async def test_abandoned_commands_end_at_the_server(
    own_database: Any, client: Client, commands: Commands
) -> None:
    """Reads and deletions carry the time after which the store gives them up."""
    store = ConversationStore(client[own_database.name])
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(HumanMessage("hi"))
    with commands.counted():
        await ConversationStore(client[own_database.name]).conversation(**chat.scope).load_history()
        await store.list_conversations(user_id="ada")
        await chat.delete()
    limits = {
        (name, command.get("delete")): command.get("maxTimeMS", 0)
        for name, command in commands.sent
    }
    assert limits["find", None] == 40_000
    assert 30_000 < limits["delete", "log"] <= 40_000


@pytest.mark.slow
async def test_a_limit_of_the_client_is_kept(server_uri: str, own_database: Any) -> None:
    """If the ``timeoutMS`` of the client is shorter than the store's limit, every command keeps to it."""
    seen = Commands()
    async with AsyncMongoClient[dict[str, Any]](
        server_uri, timeoutMS=5_000, event_listeners=[seen]
    ) as client:
        store = ConversationStore(client[own_database.name])
        await store.setup()
        chat = store.conversation(user_id="ada", thread_id="t")
        await chat.append(HumanMessage("hi"))
        await chat.load_history()
        await chat.delete()
        await store.close()
    assert {
        name for name, command in seen.sent if not 0 < command.get("maxTimeMS", 0) <= 5_000
    } == set()


async def test_a_lock_that_the_driver_lost_is_no_server() -> None:
    """PyMongo may raise a RuntimeError if calls are cancelled while it looks for the server; they may be repeated."""
    with pytest.raises(StoreUnavailableError):
        async with driver_errors():
            raise RuntimeError("Lock is not acquired")
