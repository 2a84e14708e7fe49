"""A database that the first version wrote is taken over by the newest code: shape, content, and going on with it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from bson import json_util
from first_format import (
    CHILDREN,
    DELETED,
    FILE,
    KEYS,
    POLICY,
    RULE,
    SCOPES,
    TURN_ENTRIES,
    VIEW_ENTRIES,
    batches,
    dump,
    edges,
    regretted,
)
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.integration import LogChanges, log_of
from convstore.messages.values import Codec
from convstore.mongo import migrator as migrate
from convstore.mongo.driver import Driver
from convstore.mongo.keys import MIGRATIONS
from convstore.mongo.migrator import discover
from convstore.summarization import HeadTailSummarizer
from convstore.testing import same_messages


@pytest.fixture
async def old(own_database: Any) -> Any:
    """The database of the first version, as it was."""
    for name, collection in json_util.loads(FILE.read_text()).items():
        options = collection["options"]
        if clustered := options.pop("clusteredIndex", None):
            options |= {"clusteredIndex": {"key": clustered["key"], "unique": True}}
            if not await Driver(own_database).can_cluster():
                del options["clusteredIndex"]
        await own_database.create_collection(name, **options)
        for index in collection["indexes"]:
            keys = list(index.pop("key").items())
            await own_database[name].create_index(
                keys, **{key: value for key, value in index.items() if key != "v"}
            )
        if collection["documents"]:
            await own_database[name].insert_many(collection["documents"])
    return own_database


@pytest.fixture
async def chat(old: Any) -> Conversation:
    """The long conversation, by the newest code."""
    store = ConversationStore(old, scope_keys=KEYS, summarizer=HeadTailSummarizer(RULE))
    await store.setup()
    return store.conversation(**SCOPES[0])


async def shape(database: Any) -> dict[str, Any]:
    """Options, with validators, and indexes of each collection, and what is recorded of migrations but for the date."""
    whole = await dump(database)
    parts = {
        name: (collection["options"], {index["name"]: index for index in collection["indexes"]})
        for name, collection in whole.items()
    }
    ran = [{**record, "applied_at": None} for record in whole[MIGRATIONS]["documents"]]
    return {**parts, "records": ran}


@pytest.mark.slow
async def test_a_migrated_schema_equals_a_fresh_one(
    old: Any, pymongo_client: Client, database_name: str
) -> None:
    """Collections, options, indexes and checksums: a change of the schema or of a migration ends here."""
    await ConversationStore(old, scope_keys=KEYS).setup()
    name = f"{database_name}_{uuid.uuid4().hex[:8]}"
    fresh = pymongo_client[name]
    await ConversationStore(fresh, scope_keys=KEYS).setup()
    migrated, made = await shape(old), await shape(fresh)
    await pymongo_client.drop_database(name)
    assert migrated == made


@pytest.mark.costly
@pytest.mark.parametrize("first", range(len(discover())))
async def test_the_way_does_not_matter(
    own_database: Any,
    pymongo_client: Client,
    database_name: str,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
) -> None:
    """A database that was set up by any earlier version ends up like a fresh one, with the same records."""
    known = discover()
    monkeypatch.setattr(migrate, "discover", lambda: known[: first + 1])
    await ConversationStore(own_database, scope_keys=KEYS).setup()
    monkeypatch.undo()
    await ConversationStore(own_database, scope_keys=KEYS).setup()
    name = f"{database_name}_{uuid.uuid4().hex[:8]}"
    await ConversationStore(pymongo_client[name], scope_keys=KEYS).setup()
    expected, found = await shape(pymongo_client[name]), await shape(own_database)
    await pymongo_client.drop_database(name)
    assert found == expected


async def test_setup_changes_no_document(old: Any) -> None:
    """Setting up the newest version changes no document of the first format."""
    before = await dump(old)
    await ConversationStore(old, scope_keys=KEYS).setup()
    after = await dump(old)
    ran = [migration.name for migration in discover()]
    assert [document["_id"] for document in after.pop(MIGRATIONS)["documents"]] == ran
    before.pop(MIGRATIONS)
    kept = {
        name: value["documents"]
        for name, value in after.items()
        if value["documents"] or name in before
    }
    assert kept == {name: value["documents"] for name, value in before.items()}


async def test_every_message_comes_back_equal(chat: Conversation) -> None:
    """All kinds, with sources, artifacts of all types, payloads and what was rewound."""
    expected = [message for batch in batches() for message in batch]
    assert same_messages([message async for message in chat.messages(rewound=True)], expected)
    ids = ["t-1", "t-2", "t-3"]
    records = await chat.get_tool_messages(ids)
    assert [(record.tool_message_id, record.tool, record.status) for record in records] == [
        ("t-1", "search", "success"),
        ("t-2", "weigh", "success"),
        ("t-3", "read", "error"),
    ]


async def test_sources_keep_their_numbers(chat: Conversation) -> None:
    """Sources keep their ids: those found first, and those found after a range of reserved ids."""
    page = await chat.get_sources("1-12", page_tokens=16_000)
    assert [(source.source_id, source.title) for source in page.sources] == [
        (1, "Dance 1.1"),
        (2, "Dance 1.2"),
        (3, "Dance 1.3"),
        (9, "Dance 4.1"),
        (10, "Dance 4.2"),
        (11, "Dance 4.3"),
    ]
    assert [source.earlier_id for source in page.sources[3:]] == [1, 2, 3]
    assert page.not_found == [4, 5, 6, 7, 8, 12]


@pytest.mark.slow
async def test_views_summaries_and_annotations_are_there(chat: Conversation) -> None:
    """The view begins with the summary, the rewound question is not in it, and all is found whole."""
    history = await chat.load_history()
    assert [summary.version for summary in await chat.summaries()] == [1, 2]
    assert history.summary == (await chat.summaries())[-1].text
    shown = [message.id for message in history.messages]
    assert (shown[0], shown[-1], "h-4" in shown) == ("system", "t-4", False)
    assert await chat.annotations(["ai-1b"]) == {"ai-1b": {"rating": 1, "comment": "right"}}
    info = await chat.info()
    assert (info.title, info.metadata, info.message_count) == (
        "Bees",
        {"tags": ["sea"], "\x00": None},
        18,
    )
    report = await chat.store.verify()
    entries = 11 + len(edges()) + 2 * len(regretted()) + TURN_ENTRIES + VIEW_ENTRIES
    assert (report.findings, report.conversations, report.entries) == (
        (),
        len(SCOPES) + CHILDREN,
        entries,
    )


@pytest.mark.slow
async def test_records_of_views_and_stamps_are_there(old: Any, chat: Conversation) -> None:
    """A record that moved says where views begin; the view of each stamp is rebuilt; an item and a fork came too."""
    fay, forked = (chat.store.conversation(**scope) for scope in SCOPES[5:])
    state = await old["log"].find_one({"views": {"$exists": True}, "moves": {"$exists": True}})
    assert [len(moves) > 1 for moves in state["moves"].values()] == [True]
    history = await fay.load_history(POLICY)
    assert (history.report.left_out_turns > 0, history.report.over_budget) == (True, False)
    stamps = [stored.stamp for stored in await fay.list_messages(limit=100) if stored.stamp]
    assert [(await fay.view_at(stamp)).match for stamp in stamps] == ["exact"] * 12
    assert [item.data async for item in fay.items()] == [{"step": 1}]
    assert [message.id async for message in forked.messages(rewound=True)] == [
        message.id async for message in fay.messages(rewound=True)
    ]
    assert (await chat.store.conversation(**DELETED).info()).message_count == 0


async def test_it_goes_on(chat: Conversation) -> None:
    """Old batches are known, new ones follow, the rewind can be taken back, the policy ends it."""
    assert (await chat.append(batches()[-1])).written == 0
    receipt = await chat.append(HumanMessage("And wasps?", id="h-6"))
    assert receipt.first == sum(map(len, batches())) + 1
    assert await chat.undo_rewind() == 2
    assert (await chat.store.verify()).ok
    assert (await chat.store.erase(everything=True)).conversations == len(SCOPES) + CHILDREN


@pytest.mark.slow
async def test_both_sides_of_every_constant_are_read(old: Any) -> None:
    """Sizes at which something is stored in another way; results are as long as they were."""
    store = ConversationStore(old, scope_keys=KEYS)
    await store.setup()
    chat = store.conversation(**SCOPES[2])
    expected = [message for batch in (*edges(), *regretted()) for message in batch]
    assert same_messages([message async for message in chat.messages(rewound=True)], expected)
    listed = [message.message.id for message in await chat.list_messages(limit=1_000)]
    assert listed == [message.id for message in expected if not str(message.id).startswith("no-")]
    results = [result for result in expected if isinstance(result, ToolMessage)]
    records = await chat.get_tool_messages([str(result.id) for result in results])
    assert [record.content for record in records] == [result.content for result in results]
    assert await chat.undo_rewind() == 1
    assert (await store.verify()).ok


@pytest.mark.slow
async def test_a_turn_goes_on_where_its_worker_left_it(old: Any) -> None:
    """With its draft, its decisions and the calls that are open; the lease has lapsed, other turns are over."""
    store = ConversationStore(old, scope_keys=KEYS)
    await store.setup()
    chat = store.conversation(**SCOPES[3])
    turn = await chat.get_turn("t3")
    assert turn is not None
    assert (turn.draft, turn.is_finished) == ("Paid ", False)
    assert [read.is_finished async for read in chat.turns()] == [True, True, False]
    log = log_of(chat)
    end = await log.snapshot()
    assert end is not None
    added = [found async for found in log.read(end, LogChanges(Codec())) if found.added_to]
    assert [found.message.id for found in added] == ["picture"]
    async with await chat.turn("t3") as entered:
        assert [(call.id, call.args) for call in entered.open_calls] == [
            ("c3", {"sum": 2}),
            ("c5", {"sum": 1}),
        ]
        for call in entered.open_calls:
            await entered.add_result(call, "done")
        await entered.append(AIMessage("All is paid."))
    async with await chat.turn("t2") as stopped:
        assert stopped.is_stopped
    assert (await store.verify()).findings == ()


@pytest.mark.slow
async def test_variants_and_sub_agents_are_there(old: Any) -> None:
    """Variants of the first format can be listed, continued and activated, and the sub-agent is found."""
    store = ConversationStore(old, scope_keys=KEYS)
    await store.setup()
    chat = store.conversation(**SCOPES[4])
    variants = await chat.variants("v2")
    assert [(variant.turn_id, variant.variant_id, variant.is_active) for variant in variants] == [
        ("v1", "v1", False),
        ("v1", "w1", False),
        ("v2", "v2", True),
    ]
    assert [message.id for message in (await chat.load_history()).messages] == ["v2", "indeed"]
    async with await chat.turn("v2", regenerate="w2") as turn:
        await turn.add_result(turn.open_calls[0], "done")
        await turn.append(AIMessage("No.", id="no"))
    assert (await chat.load_history()).messages[-1].id == "no"
    await chat.activate(variants[0])
    assert [message.id for message in (await chat.load_history()).messages] == ["v1", "so"]
    [child] = await chat.children()
    assert [
        message.id async for message in store.conversation(**child.scope).messages(rewound=True)
    ] == [
        "s1",
        "seen",
    ]
    assert (await store.verify()).findings == ()


CONSTANTS = {
    "convstore.sources.stub.PREVIEW_CHARACTERS": 100,
    "convstore.sources.stub._SUFFIX": " ({}: {})",
    "convstore.log.totals._PREVIEW_CHARACTERS": 60,
    "convstore.log.totals._ARGUMENT_CHARACTERS": 30,
    "convstore.log.totals._MODEL_CHARACTERS": 10,
    "convstore.log.totals._MAX_MODELS": 3,
    "convstore.log.totals._TOOL_CHARACTERS": 100,
    "convstore.log.rows._LONG_TOKENS": 500,
    "convstore.mongo.source_columns._BLOCK": 8,
    "convstore.messages.encoding.PART_MINIMUM": 8_192,
    "convstore.log.rewind.MAX_DIFFERENCE": 4,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSTANTS)
async def test_a_later_version_may_change_a_constant(
    old: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With a new number of the rules, what earlier ones stored is no damage, and the log goes on."""
    for module in ("convstore.log.entry", "convstore.mongo.documents", "convstore.verify.entry"):
        monkeypatch.setattr(f"{module}.RULES", 2)
    monkeypatch.setattr(name, CONSTANTS[name])
    store = ConversationStore(old, scope_keys=KEYS)
    await store.setup()
    chat = store.conversation(**SCOPES[2])
    for batch in edges()[:3]:
        for message in batch:
            message.id = f"again {message.id}"
        await chat.append(batch)
    await chat.load_history()
    assert (await store.verify()).findings == ()
