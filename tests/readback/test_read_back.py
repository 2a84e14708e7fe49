"""The tool and `get_sources` give all of a payload, in pages that are bounded in every script."""

from __future__ import annotations

import json
from typing import Any

import pytest
from counting import Commands
from fixture_types import Client
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore, SourcePage
from convstore.messages.tokens import approximate_tokens, fitting, weight
from convstore.readback import pager

PASSAGE = "A passage on whales. " * 20
SCRIPTS = {
    "chinese": "鲸鱼在海里睡觉并且吃鱼。",
    "korean": "고래는 바다에서 잔다. ",
    "emoji": "🐋🐟🌊",
    "russian": "Киты спят в море. ",
    "mixed": "Whales 鲸鱼 sleep 🐋 in the sea, Киты тоже. ",
    "english": "Whales sleep in the sea. ",
}


async def pages_of(chat: Conversation, page_tokens: int, **asked: Any) -> list[ToolMessage]:
    """All pages of an answer of the tool."""
    tool = chat.retrieve_previous_sources_tool(page_tokens=page_tokens, artifact=True)
    pages: list[ToolMessage] = []
    cursor: str | None = ""
    while cursor is not None:
        call = {
            "type": "tool_call",
            "id": "c",
            "name": tool.name,
            "args": {**asked, "cursor": cursor},
        }
        pages.append(await tool.ainvoke(call))
        assert pages[-1].artifact.next_cursor != cursor
        cursor = pages[-1].artifact.next_cursor
    return pages


async def text_of(chat: Conversation, message_id: str, page_tokens: int = 16_000) -> str:
    """Return all that a model reads of a message, page by page."""
    pages = await pages_of(chat, page_tokens, tool_message_ids=[message_id])
    return "\n".join(str(page.content) for page in pages)


def result(artifact: Any, content: str = "see artifact") -> ToolMessage:
    """A result with an artifact."""
    return ToolMessage(content, id="r", tool_call_id="c", name="search", artifact=artifact)


@pytest.mark.costly
@pytest.mark.parametrize("key", ["sources", "results", "documents", "data"])
@pytest.mark.parametrize("text", [PASSAGE, "short"])
async def test_the_rest_of_an_artifact_with_sources_is_read_back(
    chat: Conversation, key: str, text: str
) -> None:
    """Reading a result shows all values of its artifact and all fields of its sources, and each source's text once.

    A text of less than 20 characters stays in the artifact, too: it may occur in any text by chance.
    """
    items = [
        {"file_id": f"f{n}", "content": f"{n} {text}", "raw_html": f"<RAW-{n}>" + "h" * 900}
        for n in (1, 2, 3)
    ]
    await chat.append(
        result({key: items, "answer": "THE ONLY ANSWER", "debug": {"x": "DEBUG ONLY"}})
    )
    read = await text_of(chat, "r")
    for value in ("THE ONLY ANSWER", "DEBUG ONLY", "<RAW-1>", "<RAW-2>", "<RAW-3>", '"f2"'):
        assert value in read
    times = 1 if text == PASSAGE else 2
    assert [read.count(f"{n} {text}") for n in (1, 2, 3)] == [times] * 3


async def test_the_rest_of_a_small_result_is_read_back(chat: Conversation) -> None:
    """A result that has no stub, as that would be longer."""
    await chat.append(
        result({"results": [{"title": "T", "content": "x", "raw": "RAW"}], "answer": "ANSWER"})
    )
    read = await text_of(chat, "r")
    assert "RAW" in read
    assert "ANSWER" in read


@pytest.mark.parametrize("rank", ["seventh", "seventh " * 400])
async def test_a_source_without_a_text_is_read_as_its_tool_showed_it(
    chat: Conversation, rank: str
) -> None:
    """Its item, if that stood in the content; else its heading, until the artifact is asked for."""
    items = [{"title": "Seals", "url": "https://seals.example", "rank": rank}]
    shown = result(None, json.dumps({"results": items}))
    hidden = result({"results": items}, "One hit.").model_copy(
        update={"id": "hidden", "tool_call_id": "c2"}
    )
    await chat.append([shown, hidden])
    found = (await chat.get_sources([1, 2])).sources
    assert [json.loads(source.content) for source in found] == items * 2
    tool = chat.retrieve_previous_sources_tool()
    assert rank in await tool.ainvoke({"source_ids": "1"})
    assert rank not in await tool.ainvoke({"source_ids": "2"})
    asked = chat.retrieve_previous_sources_tool(artifact=True)
    assert rank in await asked.ainvoke({"source_ids": "2"})


@pytest.mark.parametrize(
    "artifact",
    [
        {"answer": "ONLY HERE"},
        [{"note": "ONLY HERE", "x": 1}, 2],
        [1, "ONLY HERE"],
        {"rows": [{"title": "T", "content": "ONLY HERE"}] * 2},
    ],
)
async def test_an_artifact_is_read_back_when_the_content_has_sources(
    chat: Conversation, artifact: Any
) -> None:
    """Sources are found in the content, and the artifact is no less readable for it."""
    content = json.dumps(
        {"results": [{"title": f"T{n}", "content": f"{n} {PASSAGE}"} for n in (1, 2)]}
    )
    await chat.append(result(artifact, content))
    read = await text_of(chat, "r")
    assert "ONLY HERE" in read
    assert "Rest of [1]" not in read  # the content has it


@pytest.mark.parametrize("part", ["a", "b"])
async def test_a_large_part_of_an_artifact_without_a_stub_is_read_back(
    chat: Conversation, part: str
) -> None:
    """A large value of an artifact is stored outside the entry and is read back whole."""
    await chat.append(
        result({"a": "ALL OF A " * 3_000, "b": ["ALL OF B " * 3_000], "c": 1}, content="ok")
    )
    read = await text_of(chat, "r")
    assert read.count(f"ALL OF {part.upper()} ") == 3_000
    assert '"c"' in read or "c, characters" in read


@pytest.mark.parametrize("text", [PASSAGE, "short"])
@pytest.mark.parametrize(
    "wrap", [list, lambda items: {"results": items}, lambda items: {"documents": items}]
)
async def test_nothing_is_offered_where_there_is_no_more(
    chat: Conversation, text: str, wrap: Any
) -> None:
    """Sources that say title, address and text are read on one page, which says that it is the last."""
    items = [{"title": f"T{n}", "url": f"https://a/{n}", "content": f"{n} {text}"} for n in (1, 2)]
    await chat.append(result(wrap(items)))
    [page] = await pages_of(chat, 4_000, tool_message_ids=["r"])
    assert str(page.content).endswith("End.")


async def test_what_most_readers_do_not_need_comes_last(chat: Conversation) -> None:
    """The sources of all results come before the rest of any, which begins a page of its own and repeats no text."""
    said = "Found in the book on whales."
    for name in ("one", "two"):
        document = Document(
            page_content=f"{name} {PASSAGE}", id=f"doc-{name}", metadata={"score": 0.5}
        )
        artifact = {"results": [document], "said": said}
        await chat.append(ToolMessage(said, id=name, tool_call_id="c", artifact=artifact))
    first, rest = await pages_of(chat, 4_000, tool_message_ids=["one", "two"])
    assert [source.source_id for source in first.artifact.sources] == [1, 2]
    assert "What follows is what else the tool said, the texts apart.\nMore: " in str(first.content)
    assert str(rest.content).startswith("artifact, ")
    assert '"score":0.5' in str(rest.content)
    assert "doc-two" in str(rest.content)
    assert str(rest.content).count('"said":"[shown above]"') == 2
    assert str(rest.content).count('"page_content":"[shown above]"') == 2


# ---------------------------------------------------------------------------------------------------------------------
# Sizes


@pytest.mark.costly
@pytest.mark.parametrize("page_tokens", [100, 4_000])
@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_page_takes_no_more_tokens_than_it_may(
    chat: Conversation, script: str, page_tokens: int
) -> None:
    """By the store's own counter, header and all; and every character is on one page."""
    text = SCRIPTS[script] * (20 if page_tokens == 100 else 1_500)
    await chat.append(result([(text, {"title": SCRIPTS[script] * 4})]))
    pages = await pages_of(chat, page_tokens, source_ids=[1])
    assert max(approximate_tokens([HumanMessage(page.text)]) for page in pages) <= page_tokens
    assert "".join(source.content for page in pages for source in page.artifact.sources) == text
    assert "".join(page.text.split("\n", 1)[1].rsplit("\n", 1)[0] for page in pages) == text


@pytest.mark.costly
@pytest.mark.parametrize("script", SCRIPTS)
async def test_every_match_in_every_script_is_on_some_page(chat: Conversation, script: str) -> None:
    """Whole, on pages of no more tokens than they may take."""
    text = "".join(f"{SCRIPTS[script] * 20}<{number}>" for number in range(20))
    await chat.append(result([(text, {})]))
    find = SCRIPTS[script].strip()[:6]
    pages = await pages_of(chat, 300, source_ids=[1], find=find)
    assert max(approximate_tokens([HumanMessage(page.text)]) for page in pages) <= 300
    assert sum(page.text.rpartition("\n")[0].count(find) for page in pages) == text.count(find)


async def test_a_match_across_two_reads_is_found(
    chat: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large result is searched in parts; a match may begin in one of them and end in the next."""
    monkeypatch.setattr(pager, "_READ_AT_ONCE", 100)
    await chat.append(result([("." * 95 + "orca whales" + "." * 500, {})]))
    pages = await pages_of(chat, 300, source_ids=[1], find="orca whales")
    assert (
        sum(
            source.content.count("orca whales")
            for page in pages
            for source in page.artifact.sources
        )
        == 1
    )


async def test_pages_of_sources_take_no_more_tokens_than_they_may(chat: Conversation) -> None:
    """For a program too; the pages are the texts."""
    texts = [script * 200 for script in SCRIPTS.values()]
    await chat.append(result([(text, {}) for text in texts]))
    read = [""] * len(texts)
    cursor: str | None = ""
    while cursor is not None:
        page = await chat.get_sources(range(1, 7), page_tokens=500, cursor=cursor)
        assert sum(weight(source.content) for source in page.sources) <= 500 * 4
        for source in page.sources:
            read[source.source_id - 1] += source.content
        cursor = page.next_cursor
    assert read == texts


async def test_lines_of_the_tool_take_no_more_tokens_than_a_page(chat: Conversation) -> None:
    """Messages about missing ids, search texts, bad cursors and readable ids fit a page in any script."""
    for number in range(20):
        call = {"name": "搜索" * 20, "args": {"query": "鲸鱼" * 60}, "id": f"调用{number}" * 9}
        await chat.append(
            [
                AIMessage("", tool_calls=[call]),
                ToolMessage("无", id=f"结果{number}" * 9, tool_call_id=call["id"]),
            ]
        )
    tool = chat.retrieve_previous_sources_tool(page_tokens=100)
    asked: list[dict[str, Any]] = [
        {},
        {"tool_message_ids": ["鲸" * 160] * 3},
        {"cursor": "鲸" * 200},
        {"tool_message_ids": ["结果1" * 9], "find": "鱼" * 200},
    ]
    for arguments in asked:
        assert approximate_tokens([HumanMessage(await tool.ainvoke(arguments))]) <= 100


@given(st.text("aßж鲸🐋\ud800 \n", max_size=60), st.integers(-5, 200))
def test_as_much_of_a_text_fits_as_there_is_room_for(text: str, room: int) -> None:
    """The longest beginning whose weight is not above the room."""
    end = fitting(text, room)
    assert end == max(
        [length for length in range(len(text) + 1) if weight(text[:length]) <= room], default=0
    )


async def test_what_is_said_of_the_sources_on_a_page_is_bounded(chat: Conversation) -> None:
    """For a program and in the artifact of the tool; what is left out is named, and the record has it."""
    large = "h" * 30_000
    items = [
        {"title": f"T{n}", "content": PASSAGE, "score": n, "raw_content": large} for n in range(10)
    ]
    await chat.append(result(items))
    tool = chat.retrieve_previous_sources_tool(page_tokens=1_000)
    call = {"type": "tool_call", "id": "c", "name": tool.name, "args": {"source_ids": "1-10"}}
    for page in (
        await chat.get_sources(range(1, 11), page_tokens=1_000),
        (await tool.ainvoke(call)).artifact,
    ):
        assert isinstance(page, SourcePage)
        assert len(page.model_dump_json()) < 4_000 + 4_000 + 400 * len(page.sources)
        for number, source in enumerate(page.sources):
            assert (source.title, source.metadata["score"]) == (f"T{number}", number)
            left_out = source.metadata["convstore"]
            assert (left_out["kind"], left_out["keys"]) == ("left_out", ["raw_content"])
            assert "get_tool_messages" in left_out["message"]
    [record] = await chat.get_tool_messages(["r"])
    assert record.sources[0].metadata == {"score": 0, "raw_content": large}


async def test_what_there_is_room_for_is_whole(chat: Conversation) -> None:
    """A page of ordinary sources has all of their metadata, without a mark."""
    said = [
        {"title": f"T{n}", "author": "A", "published": "2026-01-05", "rank": n} for n in range(8)
    ]
    await chat.append(result([(PASSAGE, metadata) for metadata in said]))
    page = await chat.get_sources(range(1, 9))
    assert [{"title": source.title, **source.metadata} for source in page.sources] == said


@pytest.mark.slow
async def test_what_is_too_much_to_show_is_not_read(
    client: Client, commands: Commands, database_name: str, scope: dict[str, str]
) -> None:
    """3 MB of raw content cost a page of its source nothing, and no page of it more than a chunk."""
    store = ConversationStore(client[database_name])
    await store.setup()
    chat = store.conversation(**scope)
    raw = "".join(f"{number:x}" for number in range(700_000))
    large = {"title": "T", "url": "u", "content": PASSAGE, "raw_content": raw}
    await chat.append(result([large, {"title": "S", "content": "short", "score": 1}]))
    with commands.counted():
        page = await chat.get_sources([1], page_tokens=100)
    assert (page.sources[0].title, page.sources[0].url) == ("T", "u")
    assert list(page.sources[0].metadata) == ["convstore"]
    assert len(page.model_dump_json()) < 1_000
    assert commands.documents <= 2
    assert [
        source.metadata.get("score") for source in (await chat.get_sources([1, 2])).sources
    ] == [None, 1]
    with commands.counted():
        tool = chat.retrieve_previous_sources_tool(artifact=True)
        text = await tool.ainvoke({"cursor": "m1.x0@1500000"})
    assert raw[1_500_000:1_510_000] in text
    assert commands.documents <= 2


# ---------------------------------------------------------------------------------------------------------------------
# Listings


@pytest.fixture
async def counted(client: Client, database_name: str, scope: dict[str, str]) -> Conversation:
    """An empty conversation whose commands are counted."""
    store = ConversationStore(client[database_name])
    await store.setup()
    return store.conversation(**scope)


@pytest.mark.slow
async def test_a_listing_reads_what_it_lists(counted: Conversation, commands: Commands) -> None:
    """A listing reads at most five documents, however many messages came with each append."""
    for batch in range(30):
        turns = [(HumanMessage(f"q{batch}-{n}"), AIMessage("a " * 100)) for n in range(50)]
        await counted.append([message for turn in turns for message in turn])
    listings = [
        counted.list_messages(limit=20),
        counted.list_messages(limit=20, before=1_550),
        counted.list_messages(limit=20, after=1_550),
        counted.list_messages(limit=20, after=1_590),
    ]
    for listing in listings:
        with commands.counted():
            assert len(await listing) == 20
        # the tail, two or three entries, and an annotation if there were one
        assert commands.documents <= 5
    for newest_first in (True, False):
        with commands.counted():
            assert (
                len([turn async for turn in counted.turns(newest_first=newest_first, limit=2)]) == 2
            )
        assert commands.documents <= 4


@pytest.mark.slow
async def test_a_listing_of_uneven_entries_takes_few_round_trips(
    counted: Conversation, commands: Commands
) -> None:
    """If the newest entries hold less than the average, each read is twice as large as the one before."""
    await counted.append([AIMessage(f"{number}") for number in range(2_000)])
    for number in range(100):
        await counted.append([HumanMessage(f"q{number}")])
    with commands.counted():
        page = await counted.list_messages(limit=100)
    assert [stored.ordinal for stored in page] == list(range(2_001, 2_101))
    assert len(commands.sent) <= 8


@pytest.mark.slow
async def test_a_listing_in_full_reads_large_results_of_successive_appends_at_once(
    counted: Conversation, commands: Commands
) -> None:
    """A full listing reads the large results of successive messages with one command.

    Results that are not next to each other take one command each.
    """
    for number in range(12):
        large = ToolMessage(
            f"{number} " * 20_000, id=f"r{number}", tool_call_id=f"c{number}", name="run"
        )
        call = AIMessage("", tool_calls=[{"name": "run", "args": {}, "id": f"c{number}"}])
        await counted.append([HumanMessage(f"q{number}"), call, large])
    with commands.counted():
        page = await counted.list_messages(limit=36, full=True)
        records = await counted.get_tool_messages([f"r{number}" for number in (0, 1, 11)])
    assert [stored.message.text for stored in page[2::3]] == [
        f"{number} " * 20_000 for number in range(12)
    ]
    assert [record.content[:3] for record in records] == ["0 0", "1 1", "11 "]
    finds = [
        command
        for name, command in commands.sent
        if name == "find" and "data" in command.get("projection", ())
    ]
    assert [len(find["filter"]["_id"].get("$in", "1")) for find in finds] == [12, 1, 1, 1]


async def test_naming_what_can_be_read_reads_no_bodies(
    counted: Conversation, commands: Commands
) -> None:
    """Listing and suggesting ids reads names only, however large the messages are."""
    for batch in range(10):
        large = [AIMessage("x" * 9_000) for _ in range(50)]
        await counted.append(
            [*large, ToolMessage("y", id=f"r{batch}", tool_call_id="0", name="run")]
        )
    tool = counted.retrieve_previous_sources_tool()
    for arguments in ({}, {"tool_message_ids": ["unknown"]}):
        with commands.counted():
            text = await tool.ainvoke(arguments)
        assert "r9" in text
        assert commands.bytes < 200_000
