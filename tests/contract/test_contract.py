"""The contract suite on every driver: PyMongo and Motor with a real server, mongomock-motor in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import cycle
from typing import Any, ClassVar

import bson
import pytest
from contract_share import COSTLY, IN_SHORT, LONG, ON_MOTOR
from fixture_types import Client
from mongomock_motor import AsyncMongoMockClient
from motor.motor_asyncio import AsyncIOMotorClient
from server_kinds import refusing, swapped_bounds

from convstore import Conversation, ConversationStore
from convstore.mongo.bson_values import sealed
from convstore.mongo.keys import head_id
from convstore.runtime.clock import Clock
from convstore.summarization import HeadTailSummarizer
from convstore.testing import StoreContract
from convstore.testing.children import ChildContract
from convstore.testing.compacting import CompactContract
from convstore.testing.ending import EndContract
from convstore.testing.fixtures import ContractFixtures, ahead
from convstore.testing.forking import ForkContract
from convstore.testing.retention import RetentionContract
from convstore.testing.samples import new_id
from convstore.testing.states import StateContract
from convstore.testing.statistics import StatsContract
from convstore.testing.turn_messages import TurnMessageContract
from convstore.testing.turn_results import TurnResultContract
from convstore.testing.turn_sessions import TurnSessionContract
from convstore.testing.turn_streams import TurnStreamContract
from convstore.testing.turn_variants import TurnVariantContract
from convstore.testing.turn_writes import TurnWriteContract
from convstore.testing.turns import TurnContract
from convstore.testing.verifying import SUMMARY_RULE, fill_with_everything
from convstore.testing.waiting import WaitingContract
from convstore.testing.watching import WatchContract

WHOLE = {
    "test_a_conversation_without_a_head_can_be_erased",
    "test_a_damaged_head_and_its_log_can_be_erased",
    "test_a_tombstone_says_nothing_of_a_person",
    "test_an_erasure_that_broke_off_is_finished_by_the_next",
    "test_everything_is_everything",
    "test_what_a_writer_in_flight_added_is_swept",
    "test_what_is_written_while_a_policy_ends_it_is_not_lost",
}
"""Tests whose calls go through all conversations and tombstones of a database."""


async def on_server(
    client: Any, name: str, request: pytest.FixtureRequest
) -> AsyncGenerator[Any, None]:
    """Yield a database that tests share, with thousands of conversations, or for those of `WHOLE` an empty one."""
    if request.node.originalname not in WHOLE:
        yield client[name]
        return
    database = client[f"{name}_whole"]
    await ConversationStore(database).setup()
    yield database
    for collection in await database.list_collection_names():
        if collection != "convstore_migrations":
            await database[collection].delete_many({})


class CopiedConversation:
    """The fixture `full` of many tests, for which the conversation is written once and copied under other ids."""

    _ids: ClassVar[list[str]] = []
    _documents: ClassVar[dict[str, list[bytes]]] = {}

    @pytest.fixture
    async def full(self, store: ConversationStore, database: Any) -> Conversation:
        """A conversation with everything, alone with its user."""
        if not self._ids:
            writer = ConversationStore(database, summarizer=HeadTailSummarizer(SUMMARY_RULE))
            written = writer.conversation(user_id=new_id(), thread_id="t")
            await fill_with_everything(written)
            conversation = (await written.info()).conversation_id
            await writer.close()
            for name in ("log", "heads", "summaries", "annotations", "search"):
                found = await database[name].find({"conversation": conversation}).to_list(None)
                self._documents[name] = [bson.encode(document) for document in found]
            self._ids[:] = [conversation, written.scope["user_id"], head_id(written.scope)]
        chat = store.conversation(user_id=new_id(), thread_id="t")
        ids = [new_id()[:24], chat.scope["user_id"], head_id(chat.scope)]
        for name, documents in self._documents.items():
            await database[name].insert_many(
                [self._renamed(document, ids) for document in documents]
            )
        return ConversationStore(database).conversation(**chat.scope)

    def _renamed(self, document: bytes, ids: Sequence[str]) -> dict[str, Any]:
        """Return a document with other ids, which are equally long."""
        for old, new in zip(self._ids, ids, strict=True):
            document = document.replace(old.encode(), new.encode())
        return resealed(bson.decode(document))


def resealed(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose checksums name its own ids."""
    for texts, owner in (("details", document["conversation"]), ("values", document["_id"])):
        for name, (text, _) in document.get(texts, {}).items():
            document[texts][name] = sealed(text, owner, name)
    if "revision" in document and isinstance(document.get("state"), list):
        document["state"] = sealed(document["state"][0], document["_id"], str(document["revision"]))
    for name in {"event", "standing"} & document.get("facts", {}).keys():
        text = document["facts"][name][0]
        document["facts"][name] = sealed(text, str(document["totals"]["link"]), name)
    if "created_at" in document:
        document["created_at"] = sealed(
            document["created_at"][0], document["conversation"], "created_at"
        )
    return document


class OnServer:
    """The database of this run, which is set up."""

    @pytest.fixture(autouse=True)
    def bounds(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """A server that takes the bounds of descending scans as they are sent, or swaps them."""
        with swapped_bounds() if request.param == "swapped bounds" else nullcontext():
            yield

    @pytest.fixture
    async def store(
        self,
        new_store: Callable[..., ConversationStore],
        pymongo_client: Client,  # noqa: ARG002 - sets it up
    ) -> AsyncIterator[ConversationStore]:
        """A store that does not look at the database again."""
        store = new_store()
        store._host.schema.is_ready = True
        yield store
        await store.close()


class TestPyMongo(CopiedConversation, OnServer, StoreContract):
    """PyMongo's own async API."""

    @pytest.fixture
    async def database(
        self, pymongo_client: Client, database_name: str, request: pytest.FixtureRequest
    ) -> AsyncIterator[Any]:
        """A real database."""
        async for database in on_server(pymongo_client, database_name, request):
            yield database


class TestPlainCollection(CopiedConversation, StateContract, ContractFixtures):
    """The state of a conversation in a collection that is not clustered, as on servers before 5.3."""

    @pytest.fixture
    async def database(self, pymongo_client: Client, database_name: str) -> Any:
        """A database whose log existed before its migration."""
        database = pymongo_client[f"{database_name}_plain"]
        if "log" not in await database.list_collection_names():
            await database.create_collection("log")
        return database


@pytest.mark.slow
class TestRefusingServer(
    TurnContract,
    TurnSessionContract,
    TurnMessageContract,
    TurnResultContract,
    TurnWriteContract,
    TurnStreamContract,
    TurnVariantContract,
    WaitingContract,
    WatchContract,
    CompactContract,
    EndContract,
    RetentionContract,
    ForkContract,
    ChildContract,
    StatsContract,
    ContractFixtures,
):
    """Leases, turns, sweeps and listings on a server like Amazon DocumentDB, with clients whose clocks are off."""

    @pytest.fixture(autouse=True)
    def server(self) -> Iterator[None]:
        """A server that refuses updates by a pipeline, `$$NOW`, joins by a pipeline and sizes of documents."""
        with refusing():
            yield

    @pytest.fixture
    async def database(
        self, pymongo_client: Client, database_name: str, request: pytest.FixtureRequest
    ) -> AsyncIterator[Any]:
        """A database of these tests."""
        async for database in on_server(pymongo_client, f"{database_name}_refusing", request):
            yield database

    @pytest.fixture
    async def new_store(self, database: Any) -> AsyncIterator[Callable[..., ConversationStore]]:
        """Makes another store, in turn as a process whose clock is 120 s ahead or behind."""
        made, offsets = list[ConversationStore](), cycle((120.0, -120.0))

        def make(*, clock: Clock | None = None, **options: Any) -> ConversationStore:
            store = ConversationStore(database, clock=clock or ahead(next(offsets)), **options)
            if clock is None:
                store._host.driver.times._now = None
            made.append(store)
            return store

        yield make
        for store in made:
            await store.close()


@pytest.fixture(scope="module")
async def motor_client(server_uri: str) -> AsyncIterator[Any]:
    """One for all tests: connecting and logging in takes longer than most of them."""
    client: Any = AsyncIOMotorClient(server_uri)
    yield client
    client.close()


class TestMotor(OnServer, StoreContract):
    """Motor, for backends that still run on it."""

    DRIVER: ClassVar = "motor"

    @pytest.fixture
    async def database(
        self, motor_client: Any, database_name: str, request: pytest.FixtureRequest
    ) -> AsyncIterator[Any]:
        """A real database."""
        async for database in on_server(motor_client, database_name, request):
            yield database


class TestInMemory(StoreContract):
    """mongomock-motor, for demos and users' unit tests."""

    DRIVER: ClassVar = "memory"

    @pytest.fixture
    async def database(self) -> Any:
        """A database of its own for each test: every operation scans all of it."""
        return AsyncMongoMockClient()["app"]


def test_each_part_of_the_contract_is_in_the_short_form() -> None:
    """A part that comes later is added to the short form, and nothing is in it that there is not."""
    parts = [
        {name for name in vars(part) if name.startswith("test_")} for part in StoreContract.__mro__
    ]
    assert all(part & IN_SHORT and part - LONG for part in parts if part)
    assert set().union(*parts) >= IN_SHORT | LONG | COSTLY
    assert IN_SHORT >= ON_MOTOR
    assert LONG.isdisjoint(ON_MOTOR)
