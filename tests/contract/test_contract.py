"""The contract suite on every driver: PyMongo and Motor with a real server, mongomock-motor in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import cycle
from typing import Any, ClassVar

import bson
import pytest
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
from convstore.testing.turn_results import TurnResultContract
from convstore.testing.turn_sessions import TurnSessionContract
from convstore.testing.turn_streams import TurnStreamContract
from convstore.testing.turn_variants import TurnVariantContract
from convstore.testing.turns import TurnContract
from convstore.testing.verifying import SUMMARY_RULE, fill_with_everything
from convstore.testing.waiting_variants import WaitingVariantContract
from convstore.testing.watching import WatchContract


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
            await database[name].insert_many([self._renamed(document, ids) for document in documents])
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
    if "created_at" in document:
        document["created_at"] = sealed(document["created_at"][0], document["conversation"], "created_at")
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
    async def database(self, pymongo_client: Client, database_name: str) -> Any:
        """A real database."""
        return pymongo_client[database_name]


LONG = {
    "test_a_crash_at_any_write_leaves_one_answer_whole",
    "test_a_35_mb_result_comes_back_equal",
    "test_a_hole_is_repaired",
    "test_many_middling_parts_of_a_message_come_back_equal",
    "test_running_writers_are_no_finding",
    "test_segments_give_the_hits_of_a_scan",
    "test_two_processes_seal_at_once",
}
"""The tests that take longest; each part of the contract has others."""


@pytest.mark.slow
class TestPyMongoAtLength(TestPyMongo):
    """The rest of the contract."""


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
    TurnResultContract,
    TurnStreamContract,
    TurnVariantContract,
    WaitingVariantContract,
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
    async def database(self, pymongo_client: Client, database_name: str) -> Any:
        """A database of these tests."""
        return pymongo_client[f"{database_name}_refusing"]

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


IN_SHORT = {
    "test_a_repeated_fork_writes_nothing",
    "test_a_fork_before_a_message_has_nothing_of_it_and_what_follows",
    "test_a_person_decides_later",
    "test_sources_come_with_an_artifact",
    "test_listed_messages_name_their_turns",
    "test_a_killed_worker_is_succeeded",
    "test_of_many_first_questions_one_is_taken",
    "test_another_question_interrupts",
    "test_variants_are_listed_and_activated",
    "test_a_variant_that_waits_is_stopped",
    "test_values_are_set_by_name_and_removed_by_none",
    "test_a_stream_that_breaks_leaves_a_draft",
    "test_a_stopped_stream_ends_in_the_middle",
    "test_a_page_follows_what_others_append",
    "test_a_page_sees_the_draft",
    "test_counts_previews_and_usage_are_exact_after_every_append",
    "test_a_head_is_refreshed_once_in_ten_seconds",
    "test_a_refresh_that_fails_loses_no_append",
    "test_an_import_with_old_dates_is_not_pruned",
    "test_a_cancelled_write_ends_before_its_caller",
    "test_what_was_said_is_whole_in_every_view",
    "test_an_idle_store_loads_what_was_restored",
    "test_every_class_of_message_comes_back_equal",
    "test_large_parts_of_any_message_come_back_equal",
    "test_the_receipt_has_ids_and_ordinals",
    "test_a_batch_above_one_megabyte_is_refused",
    "test_two_stores_append_to_one_conversation_without_holes",
    "test_readers_see_a_prefix_while_writers_write",
    "test_other_content_under_an_id_is_a_conflict",
    "test_a_child_is_deleted_with_its_parent",
    "test_a_cancelled_append_can_be_repeated",
    "test_missing_and_stray_results_are_paired_in_the_view_only",
    "test_a_history_is_appended_without_what_is_known",
    "test_a_view_keeps_to_its_budget",
    "test_a_scope_has_all_keys_and_no_others",
    "test_another_scope_sees_nothing",
    "test_two_workers_never_both_summarise",
    "test_a_compaction_is_taken_back",
    "test_a_deletion_during_a_compaction_wins",
    "test_a_lost_state_is_restored",
    "test_a_source_is_paged_to_its_end",
    "test_a_tool_call_id_reads_its_results",
    "test_sources_are_read_by_their_numbers",
    "test_hits_are_active_messages",
    "test_all_conversations_of_a_user_are_searched",
    "test_a_search_owes_a_seal",
    "test_taken_numbers_are_replaced_on_request",
    "test_a_database_without_setup_says_so",
    "test_a_deleted_conversation_is_removed_and_its_scope_can_be_used_again",
    "test_what_a_writer_in_flight_added_is_swept",
    "test_an_erasure_removes_all_of_a_user_and_nothing_else",
    "test_a_policy_removes_what_is_old",
    "test_conversations_are_listed_newest_first_by_pages",
    "test_annotations_are_stored_outside_the_log",
    "test_a_rewind_is_taken_back",
    "test_an_item_goes_and_comes_back_with_its_message",
    "test_question_and_answer_are_one_turn",
    "test_what_is_whole_is_found_whole",
    "test_heads_are_brought_back",
    "test_a_hole_is_not_repaired_while_an_entry_can_not_be_read",
    "test_statistics_are_sums_over_conversations",
    "test_a_stamp_and_a_message_give_the_view_as_it_was",
}
"""A test or two of each part of the contract, and of each command that a store sends."""


class OnMotor(OnServer):
    """Motor, for backends that still run on it."""

    @pytest.fixture
    async def database(self, server_uri: str, database_name: str) -> AsyncIterator[Any]:
        """A real database."""
        client: Any = AsyncIOMotorClient(server_uri)
        yield client[database_name]
        client.close()


@pytest.mark.slow
class TestMotor(OnMotor, StoreContract):
    """The whole contract."""


class TestMotorInShort(OnMotor, StoreContract):
    """The part of the contract on Motor that every test run includes."""


class InMemory:
    """mongomock-motor, for demos and users' unit tests."""

    @pytest.fixture
    async def database(self) -> Any:
        """A database of its own for each test: every operation scans all of it."""
        return AsyncMongoMockClient()["app"]


@pytest.mark.slow
class TestInMemory(InMemory, StoreContract):
    """The whole contract."""


class TestInMemoryInShort(InMemory, StoreContract):
    """The part of the contract on the in-memory database that every test run includes."""


for name in [name for name in dir(StoreContract) if name.startswith("test_")]:
    setattr(TestPyMongo, name, None if name in LONG else getattr(StoreContract, name))
    setattr(TestPyMongoAtLength, name, getattr(StoreContract, name) if name in LONG else None)
    if name not in IN_SHORT:
        setattr(TestMotorInShort, name, None)
        setattr(TestInMemoryInShort, name, None)


def test_each_part_of_the_contract_is_in_the_short_form() -> None:
    """A part that comes later is added to the short form, and nothing is in it that there is not."""
    parts = [{name for name in vars(part) if name.startswith("test_")} for part in StoreContract.__mro__]
    assert all(part & IN_SHORT and part - LONG for part in parts if part)
    assert set().union(*parts) >= IN_SHORT | LONG
