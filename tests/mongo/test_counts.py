"""Round trips, documents and bytes, counted by command monitoring: what makes the store fast by design."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from counting import STANDING, Commands, cold
from fixture_types import Client
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from pymongo import AsyncMongoClient, ReadPreference

from convstore import Conversation, ConversationStore, HistoryPolicy, StoreUnavailableError
from convstore.integration import host_of
from convstore.mongo.keys import state_id
from convstore.mongo.state_documents import record_document, views_in
from convstore.summarization import CompactionRule, HeadTailSummarizer
from convstore.testing import rag_turn


@pytest.fixture
async def store(
    client: Client, database_name: str, seconds: list[float]
) -> AsyncIterator[ConversationStore]:
    """A store that is set up, on the counted client."""
    store = ConversationStore(
        client[database_name], clock=replace(STANDING, monotonic=lambda: seconds[0])
    )
    await store.setup()
    yield store
    await store.close()


@pytest.fixture
async def chat(store: ConversationStore) -> Conversation:
    """A conversation of three turns, warm."""
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    for number in range(3):
        await chat.append(rag_turn(f"What about fish {number}?"))
    await chat.load_history()
    return chat


async def test_a_warm_append_refreshes_the_head_concurrently(
    chat: Conversation, commands: Commands, seconds: list[float]
) -> None:
    """Two commands when the head is due, one again right after."""
    seconds[0] += 11
    await chat.load_history()
    with commands.counted():
        await chat.append(rag_turn("And orcas?"))
    assert commands.names == ["insert", "update"]
    with commands.counted():
        await chat.append(rag_turn("And sharks?"))
    assert commands.names == ["insert"]


async def test_a_turn_is_two_commands_more(chat: Conversation, commands: Commands) -> None:
    """A turn takes two commands for its lease, and one insert for each message.

    In a new conversation, an entry and its head come first.
    """
    with commands.counted():
        async with await chat.turn("turn", human="And orcas?") as turn:
            await turn.append(
                AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "call"}])
            )
            await turn.add_result(turn.open_calls[0], "found")
            await turn.append(AIMessage("They do."))
    assert commands.names == ["findAndModify", "insert", "insert", "insert", "insert", "update"]
    new = chat.store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    with commands.counted():
        await new.turn("turn", human="And orcas?")
    assert commands.names == [
        "find",
        "findAndModify",
        "findAndModify",
        "insert",
        "insert",
        "update",
    ]


async def test_a_repeated_append_is_two_round_trips(chat: Conversation, commands: Commands) -> None:
    """The refused insert; then the look-up of its ids and the tail, which names the rewound messages, at once."""
    turn = [HumanMessage("hi"), AIMessage("ho")]
    await chat.append(turn)
    with commands.counted():
        await chat.append(turn)
    assert commands.names == ["find", "find", "insert"]


async def test_a_history_that_comes_again_is_one_command_more(
    chat: Conversation, commands: Commands, client: Client, database_name: str
) -> None:
    """The digests of the end of the log, then the insert if anything is new; cold, the head comes first."""
    turns = [turn.messages async for turn in chat.turns()]
    history = [
        message
        for turn in turns
        for message in (HumanMessage(turn[0].text), AIMessage(turn[-1].text))
    ]
    with commands.counted():
        receipt = await chat.append_history([*history, HumanMessage("And orcas?")])
    assert (receipt.written, commands.names) == (1, ["find", "insert"])
    with commands.counted():
        await chat.append_history([*history, HumanMessage("And orcas?")])
    assert commands.names == ["find"]
    other = cold(client, database_name, chat)
    with commands.counted():
        await other.append_history(
            [*history, HumanMessage("And orcas?"), HumanMessage("And seals?")]
        )
    assert commands.names == ["find", "find", "insert", "update"]


@pytest.mark.slow
async def test_a_history_of_two_turns_reads_little_of_a_long_log(
    chat: Conversation, commands: Commands, client: Client, database_name: str
) -> None:
    """Comparing a history of two turns with a long log reads fewer than 30 documents, without their content."""
    for number in range(60):
        await chat.append([HumanMessage(f"q{number}"), AIMessage(f"a{number} " * 3_000)])
    other = cold(client, database_name, chat)
    await other.info()
    batch = [HumanMessage("q59"), AIMessage("a59 " * 3_000), HumanMessage("more")]
    with commands.counted():
        assert (await other.append_history(batch)).written == 1
    assert commands.documents < 30
    assert commands.bytes < 30_000


async def test_a_warm_load_is_one_command(
    chat: Conversation, commands: Commands, seconds: list[float]
) -> None:
    """The state and the last entry, as the others are cached; the head too once its id is 10 seconds old."""
    with commands.counted():
        history = await chat.load_history()
    assert commands.names == ["find"]
    assert history.report.round_trips == 1
    assert history.report.documents == commands.documents == 1 + 1
    seconds[0] += 11
    # reads what migrations ask for, which is due as well
    await chat.store.find_conversation("none")
    for names in (["find", "find"], ["find"]):
        with commands.counted():
            history = await chat.load_history()
        assert commands.names == names
        assert history.report.round_trips == 1
        assert history.report.documents == commands.documents


async def test_what_migrations_ask_for_is_read_once_in_10_seconds(
    chat: Conversation, commands: Commands, seconds: list[float]
) -> None:
    """By one find for each store, however many conversations and calls it serves; each of them waits for it."""
    others = [
        chat.store.conversation(user_id="counted", thread_id=uuid.uuid4().hex) for _ in range(3)
    ]
    for number in (1, 0):
        seconds[0] += 11 * number
        with commands.counted():
            await asyncio.gather(
                *(conversation.load_history() for conversation in (chat, chat, *others)),
                chat.append(HumanMessage("?")),
            )
        finds = [sent["find"] for name, sent in commands.sent if name == "find"]
        assert finds.count("convstore_migrations") == number
        assert finds[0] == "convstore_migrations" or not number


@pytest.mark.slow
async def test_a_cold_load_of_a_long_log_is_two_round_trips(
    store: ConversationStore,
    commands: Commands,
    client: Client,
    database_name: str,
    seconds: list[float],
) -> None:
    """The state says where the view begins, once a load had to find it out, and has the system messages."""
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    await chat.append(SystemMessage("Be brief."))
    for number in range(30):
        await chat.append([HumanMessage(f"q{number} " * 300), AIMessage(f"a{number} " * 3_000)])
        await chat.load_history()
    seconds[0] += 11
    await chat.append(HumanMessage("and now?"))
    warm = await cold(client, database_name, chat).load_history()
    other = cold(client, database_name, chat)
    with commands.counted():
        history = await other.load_history()
    assert history.messages == warm.messages
    assert history.report.left_out_turns > 0
    assert history.report.round_trips == len(commands.sent) == 2


@pytest.mark.slow
async def test_a_cold_load_of_some_turns_reads_about_those(
    store: ConversationStore,
    commands: Commands,
    client: Client,
    database_name: str,
    seconds: list[float],
) -> None:
    """A cold load of the last turns reads about as many entries as it shows, with or without a token budget."""
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    for number in range(120):
        await chat.append([HumanMessage(f"q{number}"), AIMessage(f"a{number} " * 20)])
    await chat.load_history()
    seconds[0] += 11
    await chat.append(HumanMessage("and now?"))
    for max_tokens in (32_000, None):
        policy = HistoryPolicy(max_turns=5, max_tokens=max_tokens)
        other = cold(client, database_name, chat)
        with commands.counted():
            history = await other.load_history(policy)
        assert [message.text for message in history.messages[1:]][::2] == [
            *(f"q{n}" for n in range(117, 120)),
            "and now?",
        ]
        assert commands.documents == history.report.documents <= 32
        assert commands.bytes < 35_000


async def test_a_cold_load_after_a_rewind_is_two_commands(
    chat: Conversation, commands: Commands, client: Client, database_name: str
) -> None:
    """The entry that rewinds is read with the others."""
    question = (await chat.list_messages(limit=4))[0].message.id
    await chat.rewind(before_id=str(question))
    await chat.append(HumanMessage("again"))
    warm = await chat.load_history()
    other = cold(client, database_name, chat)
    with commands.counted():
        history = await other.load_history()
    assert history.messages == warm.messages
    assert commands.names == ["aggregate", "find"]
    assert history.report.round_trips == 2
    assert history.report.documents == commands.documents


@pytest.mark.slow
async def test_a_cold_load_of_a_log_that_was_never_loaded_stores_its_start(
    chat: Conversation, commands: Commands, client: Client, database_name: str
) -> None:
    """The first load decides and stores where views begin; the next one costs two commands and gives the same view."""
    for number in range(200):
        await chat.append([HumanMessage(f"q{number} " * 100), AIMessage(f"a{number} " * 400)])
    views = []
    for names in (["aggregate", "find", "find", "update"], ["aggregate", "find"]):
        other = cold(client, database_name, chat)
        with commands.counted():
            views.append((await other.load_history()).messages)
        assert sorted(commands.names) == sorted(names)
        assert commands.documents < 150
    assert views[0] == views[1]


@pytest.mark.slow
async def test_a_load_in_a_long_log_reads_little_whatever_is_known_of_its_start(
    chat: Conversation, commands: Commands, client: Client, database_name: str
) -> None:
    """The load after the one that stored the start reads what is new; one under another policy reads about its view."""
    for number in range(300):
        await chat.append([HumanMessage(f"q{number} " * 100), AIMessage(f"a{number} " * 150)])
    other = cold(client, database_name, chat)
    await other.load_history(HistoryPolicy(max_tokens=4_000))
    for policy, most in (
        (HistoryPolicy(max_tokens=4_000), 2),
        (HistoryPolicy(max_tokens=5_000), 80),
    ):
        with commands.counted():
            history = await other.load_history(policy)
        assert history.report.documents == commands.documents <= most
        assert history.report.left_out_turns > 200
        assert history.report.bytes < 2 * commands.bytes < 4 * history.report.bytes
    [cached] = other.store._known.all()
    cached.end = None  # as if other conversations had taken its place
    with commands.counted():
        await other.load_history(HistoryPolicy(max_tokens=6_000))
    assert commands.documents <= 80
    with commands.counted():
        history = await cold(client, database_name, chat).load_history(
            HistoryPolicy(max_tokens=4_000)
        )
    assert commands.bytes < 2 * history.report.bytes  # what was read and not needed counts, too


@pytest.mark.slow
async def test_a_cold_load_for_a_provider_costs_what_one_for_any_costs(
    store: ConversationStore,
    commands: Commands,
    client: Client,
    database_name: str,
    seconds: list[float],
) -> None:
    """Views begin at the same message: the policies share one record."""
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    for number in range(60):
        await chat.append([HumanMessage(f"q{number} " * 300), AIMessage(f"a{number} " * 3_000)])
    seconds[0] += 11
    await chat.load_history()
    await chat.append(HumanMessage("and now?"))
    costs = []
    for policy in (
        HistoryPolicy(),
        HistoryPolicy(provider="openai"),
        HistoryPolicy(provider="anthropic"),
    ):
        other = cold(client, database_name, chat)
        with commands.counted():
            history = await other.load_history(policy)
        assert history.report.left_out_turns > 0
        assert history.report.round_trips == 2
        costs.append(
            (commands.names, commands.documents, commands.bytes, history.report.left_out_turns)
        )
        with commands.counted():
            again = await other.load_history()
        assert again.report.round_trips == 1
    assert costs == costs[:1] * 3


async def test_a_message_by_id_is_at_most_two_commands(
    chat: Conversation, commands: Commands
) -> None:
    """The entry, and the chunks of the payload."""
    turn = rag_turn("And orcas?")
    await chat.append(turn)
    with commands.counted():
        await chat.get_tool_messages([str(turn[2].id)])
    assert commands.names == ["find", "find"]


async def test_payloads_of_the_turn_in_progress_cost_nothing_where_they_were_appended(
    chat: Conversation, commands: Commands, client: Client, database_name: str
) -> None:
    """The store that appended them has them; another reads them in one round trip more."""
    await chat.append(rag_turn("And orcas?")[:3])
    with commands.counted():
        own = await chat.load_history()
    assert len(commands.sent) == 1
    other = cold(client, database_name, chat)
    with commands.counted():
        history = await other.load_history()
    assert history.messages == own.messages
    assert history.report.round_trips == 3
    assert len(commands.sent) == 3


@pytest.mark.slow
async def test_bytes_of_a_load_do_not_grow_with_tool_results(
    store: ConversationStore, commands: Commands
) -> None:
    """Results ten times as large change what a load receives by less than 1 %."""
    received = []
    for words in (300, 3_000):
        chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
        for number in range(10):
            await chat.append(rag_turn(f"What about fish {number}?", words=words))
        await chat.load_history()
        with commands.counted():
            await chat.load_history()
        received.append(commands.bytes)
    assert abs(received[1] - received[0]) < received[0] / 100


async def test_bytes_of_a_load_do_not_grow_with_the_conversation(
    store: ConversationStore, commands: Commands
) -> None:
    """The bytes of a warm load are bounded by the budget."""
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    policy = HistoryPolicy(max_tokens=2_000)
    received = []
    for number in range(80):
        await chat.append(rag_turn(f"What about fish {number}?"))
        with commands.counted():
            await chat.load_history(policy)
        received.append(commands.bytes)
    assert max(received[40:]) <= max(received[:40]) * 1.05


async def test_reading_a_page_of_a_large_result_reads_only_its_chunks(
    chat: Conversation, commands: Commands
) -> None:
    """A page of a 20 MB result costs one chunk."""
    turn = rag_turn("And orcas?")
    turn[2] = turn[2].model_copy(update={"content": uuid.uuid4().hex * 600_000, "artifact": None})
    await chat.append(turn)
    tool = chat.retrieve_previous_sources_tool()
    with commands.counted():
        text = await tool.ainvoke({"tool_message_ids": [turn[2].id]})
    assert len(text) < 16_100
    assert commands.bytes < 1_100_000
    assert len(commands.sent) == 2


@pytest.mark.slow
async def test_a_source_of_a_large_result_is_two_commands(
    chat: Conversation, commands: Commands
) -> None:
    """Reading a source of a large result takes two commands, and reads only chunks with its text or its fields."""
    turn = rag_turn("And seals?")
    # 9.6 MB, 320 B, 6.4 MB, 320 B
    texts = [uuid.uuid4().hex * size for size in (300_000, 10, 200_000, 10)]
    artifact = [{"content": text, "title": f"T{index}"} for index, text in enumerate(texts)]
    turn[2] = turn[2].model_copy(update={"artifact": artifact})
    first, _ = (await chat.append(turn)).source_ids or (0, 0)
    for index, chunks in ((1, 1), (3, 1), (2, 2), (0, 2)):
        with commands.counted():
            page = await chat.get_sources([first + index])
        assert texts[index].startswith(page.sources[0].content)
        assert page.sources[0].title == f"T{index}"
        assert commands.names == ["find", "find"]
        assert commands.documents <= 1 + chunks


async def test_a_page_of_many_sources_is_one_command_for_each_result(
    chat: Conversation, commands: Commands
) -> None:
    """A page of many sources takes one command for each tool result, and one more for the entries."""
    receipts = [
        await chat.append(rag_turn(f"And {name}?", sources=8)) for name in ("orcas", "seals")
    ]
    numbers = [number for receipt in receipts for number in receipt.source_ids or ()]
    with commands.counted():
        page = await chat.get_sources(range(numbers[0], numbers[3] + 1), page_tokens=16_000)
    assert len(page.sources) == 16
    assert len(commands.sent) == 3


async def test_a_rewind_costs_other_processes_nothing(
    chat: Conversation, commands: Commands, client: Client, database_name: str
) -> None:
    """A load reads the difference with the other new entries."""
    question = (await chat.list_messages(limit=4))[0].message.id
    assert await cold(client, database_name, chat).rewind(before_id=str(question)) == 4
    with commands.counted():
        history = await chat.load_history()
    assert history.report.round_trips == 1
    assert commands.names == ["find"]


@pytest.mark.slow
async def test_a_cold_load_passes_over_what_was_rewound(
    chat: Conversation, commands: Commands, client: Client, database_name: str
) -> None:
    """A cold load skips rewound entries and reads about as many as it shows, however many were rewound."""
    first = HumanMessage("begin", id=uuid.uuid4().hex)
    await chat.append(first)
    for _ in range(150):
        await chat.append([HumanMessage("q " * 100), AIMessage("a")])
    await chat.rewind(before_id=str(first.id))
    await chat.append([HumanMessage("again"), AIMessage("so")])
    with commands.counted():
        history = await cold(client, database_name, chat).load_history()
    assert history.messages[-2].text == "again"
    assert commands.documents < 70


async def test_a_tail_is_read_again_after_an_append_that_failed(
    chat: Conversation,
    store: ConversationStore,
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The outcome is unknown, so the next append does not use a number that may be taken."""
    log = (await host_of(store).services()).writer._log
    insert = log.insert

    async def unheard(*values: Any, **options: Any) -> int:
        await insert(*values, **options)
        raise StoreUnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(log, "insert", unheard)
        with pytest.raises(StoreUnavailableError):
            await chat.append(HumanMessage("And orcas?"))
    with commands.counted():
        await chat.append(HumanMessage("And sharks?"))
    assert commands.names == ["find", "insert", "update"]


async def test_a_load_is_a_look_at_the_head(
    chat: Conversation, commands: Commands, seconds: list[float]
) -> None:
    """Ten seconds begin anew with each: what is read next costs no look of its own."""
    seconds[0] += 11
    await chat.load_history()
    with commands.counted():
        await chat.find_shown_sources(["Seals sleep."])
    assert commands.names == []


async def test_a_first_append_reads_no_log(store: ConversationStore, commands: Commands) -> None:
    """The process that creates a conversation knows that it is empty, and names the first entry in its head."""
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    with commands.counted():
        await chat.append(rag_turn("And orcas?"))
    assert commands.names == ["findAndModify", "insert", "update"]


@pytest.mark.costly
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"link": 1}, id="another log"),
        pytest.param({"entry": 90, "start": 179}, id="after the end"),
        pytest.param({"short_through": 10**9}, id="a mark after the end"),
        pytest.param({"start": 100}, id="inside a turn"),
    ],
)
async def test_a_record_that_does_not_belong_to_the_log_is_ignored(
    store: ConversationStore, client: Client, database_name: str, change: dict[str, int]
) -> None:
    """A log that was restored from a backup may be shorter than its state, or have other entries and rewinds."""
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    for number in range(60):
        await chat.append([HumanMessage(f"q{number} " * 300), AIMessage(f"a{number} " * 3_000)])
    expected = await cold(client, database_name, chat).load_history()
    known = store._known.get(tuple(chat.scope.items()))
    assert known
    log, key = client[database_name]["log"], {"_id": state_id(known.conversation)}
    [(view, record)] = views_in(await log.find_one(key) or {}).items()
    forged = record_document(view, record._replace(**change))
    await log.update_one(key, {"$set": {f"views.{view}": forged}})
    assert (await cold(client, database_name, chat).load_history()).messages == expected.messages


@pytest.mark.slow
async def test_system_messages_in_many_entries_are_all_shown(store: ConversationStore) -> None:
    """All leading system messages are shown, even from many entries and before a view that leaves turns out."""
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    for number in range(11):
        await chat.append(SystemMessage(f"Rule {number}.", id=f"s{number}"))
    for number in range(60):
        await chat.append([HumanMessage(f"q{number} " * 300), AIMessage(f"a{number} " * 3_000)])
    history = await chat.load_history()
    assert history.report.left_out_turns > 0
    assert [message.id for message in history.messages[:11]] == [
        f"s{number}" for number in range(11)
    ]


@pytest.mark.slow
async def test_system_messages_that_were_rewound_are_not_shown(store: ConversationStore) -> None:
    """The cached beginning of a log is valid until the beginning is rewound."""
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    await chat.append([SystemMessage("Be brief.", id="old"), HumanMessage("q"), AIMessage("a")])
    await chat.load_history()
    await chat.rewind(before_id="old")
    await chat.append(SystemMessage("Be kind.", id="new"))
    for number in range(60):
        await chat.append([HumanMessage(f"q{number} " * 300), AIMessage(f"a{number} " * 3_000)])
    history = await chat.load_history()
    assert history.report.left_out_turns > 0
    assert [message.id for message in history.messages if message.type == "system"] == ["new"]


async def test_every_command_has_the_concerns_of_the_store(
    server_uri: str, database_name: str, commands: Commands
) -> None:
    """Reads see what a majority has, from the primary; writes are in the journals of a majority; whatever the client's.

    Without them a primary that is cut off would give a tail that is rolled back, and the log a hole.
    """
    options = {
        "w": 1,
        "journal": False,
        "readConcernLevel": "local",
        "readPreference": "secondaryPreferred",
    }
    async with AsyncMongoClient[dict[str, Any]](
        server_uri, event_listeners=[commands], **options
    ) as client:
        store = ConversationStore(client[database_name])
        await store.setup()
        chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
        with commands.counted():
            turn = rag_turn("And orcas?")
            await chat.append(turn)
            await chat.load_history()
            await chat.annotate(str(turn[0].id), rating=1)
            await chat.rewind(before_id=str(turn[3].id))
            await chat.delete()
        for name, sent in commands.sent:
            if name == "find":
                assert sent["readConcern"]["level"] == "majority"
            else:
                assert {"w": "majority", "j": True}.items() <= sent["writeConcern"].items()
        assert {"find", "insert", "update", "delete", "findAndModify"} <= set(commands.names)
        assert store._services
        assert (
            store._services.writer._log._log.driver_collection.read_preference
            == ReadPreference.PRIMARY
        )


async def test_the_state_of_an_application_costs_no_load_anything(
    store: ConversationStore, commands: Commands
) -> None:
    """Reading the application's state takes two commands, changing it takes three, and a load does not read it."""
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    with commands.counted():
        await chat.state.update({"step": 1})
    assert commands.names == ["find", "findAndModify", "insert"]
    with commands.counted():
        await chat.state.update({"step": 2}, revision=1)
    assert commands.names == ["find", "findAndModify", "update"]
    with commands.counted():
        assert (await chat.state.get()).values == {"step": 2}
    assert commands.names == ["find", "find"]
    with commands.counted():
        await chat.load_history()
    assert not [sent for _, sent in commands.sent if "annotations" in sent.values()]


async def test_payloads_that_are_too_large_for_one_command_go_ahead(
    store: ConversationStore, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command is larger than is set, so that none comes near what a server takes; the entry goes in the last."""
    monkeypatch.setattr("convstore.mongo.log._COMMAND_BYTES", 30_000)
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    results = [
        ToolMessage(secrets.token_hex(10_000), id=f"r{n}", tool_call_id=f"c{n}") for n in range(6)
    ]
    with commands.counted():
        await chat.append(results)
    inserts = [sent for name, sent in commands.sent if name == "insert"]
    assert len(inserts) > 1
    log = [message async for message in chat.messages(rewound=True)]
    assert [message.content for message in log] == [result.content for result in results]


async def test_a_large_append_that_collides_in_its_last_command_takes_the_next_number(
    store: ConversationStore, client: Client, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer took the entry's number; the chunks went ahead, so the entry is not the first document sent."""
    monkeypatch.setattr("convstore.mongo.log._COMMAND_BYTES", 20_000)
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    other = ConversationStore(client[database_name]).conversation(**chat.scope)
    await chat.append(HumanMessage("q1"))
    await other.append(HumanMessage("q2"))
    receipt = await chat.append(ToolMessage(secrets.token_hex(20_000), tool_call_id="c"))
    assert receipt.first == 3
    assert [message.type async for message in chat.messages()] == ["human", "human", "tool"]


@pytest.mark.slow
async def test_a_compaction_that_is_not_due_reads_the_state_and_the_last_entry(
    client: Client, database_name: str, commands: Commands
) -> None:
    """The running totals of a finished log show that there is nothing to do; a compaction can follow each turn."""
    rule = CompactionRule(max_tokens_before_summary=2_000, max_summary_tokens=200)
    store = ConversationStore(
        client[database_name], summarizer=HeadTailSummarizer(rule), clock=STANDING
    )
    chat = store.conversation(user_id="counted", thread_id=uuid.uuid4().hex)
    statuses = []
    for number in range(30):
        await chat.append(rag_turn(f"What about fish {number}?"))
        with commands.counted():
            statuses.append((await chat.compact()).status)
        if statuses[-1] == "not_needed":
            assert (commands.names, commands.documents) == (["find"], 2)
    assert statuses.count("done") > 1
    await store.close()
