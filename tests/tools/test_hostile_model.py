"""Any arguments of a model get a short, useful answer from its own conversation, without exception, in bounded work."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from counting import STANDING
from hypothesis import example, given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from properties import examples, sampled
from pymongo import AsyncMongoClient, monitoring

from convstore import (
    Conversation,
    ConversationStore,
    HistoryPolicy,
    SourcePage,
    StoreUnavailableError,
    number_sources,
    retrieve_previous_sources_tool,
)
from convstore.readback.request import Request
from convstore.sources.stub import RETRIEVAL_TOOL
from convstore.testing.pairing import check_pairing
from convstore.testing.samples import SHARED_FIXTURES, passages, rag_turn, same_messages
from convstore.tools.retrieval import make_retrieval_tool

MOST_FINDS = 7
"""Messages by id, by call and by the beginning of an id, sources, two for ids to suggest, and what is shown, when that
came in one append."""
MOST_FINDS_EVER = MOST_FINDS + 7
"""A page shows what came in eight appends."""
ERROR = 500
LARGE = 10_000_000
HERS = "SECRET-OF-EVE"


class Finds(monitoring.CommandListener):
    """Counts what is read from the log and what is written."""

    def __init__(self) -> None:
        self.reads = self.others = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Count it."""
        self.reads += event.command_name in ("find", "getMore")
        self.others += event.command_name in (
            "insert",
            "update",
            "delete",
            "findAndModify",
            "aggregate",
        )

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Counted when it starts."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Counted when it starts."""


class World:
    """Ada's conversation, with tools that are bound to it, and Eve's."""

    def __init__(self, store: ConversationStore, finds: Finds) -> None:
        self.store, self.finds = store, finds
        self.chat = store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
        self.eve = store.conversation(**{**self.chat.scope, "user_id": "eve"})
        self.bound = self.chat.retrieve_previous_sources_tool()
        self.small = self.chat.retrieve_previous_sources_tool(page_tokens=100)
        self.unbound = retrieve_previous_sources_tool(store)

    async def fill(self) -> None:
        """Append results in one batch, a result that is rewound, and results of Eve."""
        found = [(f"{text} Straße {'filler ' * 200}", said) for text, said in passages(4)]
        search = ToolMessage(
            "found", id="search-1", tool_call_id="call-1", name="search", artifact=found
        )
        log = ToolMessage(
            "line of a listing\n" * 9_000, id="log-1", tool_call_id="call-2", name="run"
        )
        asked = {"type": "tool_call", "name": "search", "args": {"q": "x"}, "id": "call-1"}
        await self.chat.append(
            [HumanMessage("?"), AIMessage("", tool_calls=[asked]), search, log, AIMessage("so")]
        )
        again = HumanMessage("again", id="again")
        await self.chat.append(
            [again, ToolMessage("gone " * 900, id="gone", tool_call_id="call-1")]
        )
        await self.chat.rewind(before_id="again")
        hers = [(f"{HERS} {number} " * 99, {"title": HERS}) for number in range(40)]
        await self.eve.append(
            ToolMessage(HERS * 99, id="eve-1", tool_call_id="call-eve", artifact=hers)
        )
        await self.bound.ainvoke({})

    async def ask(self, tool: BaseTool, arguments: dict[str, Any]) -> ToolMessage:
        """Return the message that an agent gets, after checking that a model may see it."""
        self.finds.reads = self.finds.others = 0
        config = {"configurable": self.chat.scope} if tool is self.unbound else None
        call = {"type": "tool_call", "id": "c", "name": tool.name, "args": arguments}
        answer = await tool.ainvoke(call, config)
        assert isinstance(answer, ToolMessage)
        text = answer.content
        assert isinstance(text, str)
        assert text
        text.encode()
        maximum = 400 if tool is self.small else 16_000
        assert len(text) <= (maximum if answer.status == "success" else min(maximum, ERROR))
        assert HERS not in text
        assert HERS not in repr(answer.artifact)
        assert len(repr(answer.artifact)) < 200_000
        assert self.finds.others == 0
        return answer


@pytest.fixture(scope="session")
async def world(server_uri: str, database_name: str) -> AsyncIterator[World]:
    """A world whose commands are counted."""
    finds = Finds()
    async with AsyncMongoClient[dict[str, Any]](server_uri, event_listeners=[finds]) as client:
        # a search has segments made in the background
        store = ConversationStore(client[database_name], clock=STANDING, search_index=False)
        await store.setup()
        world = World(store, finds)
        await world.fill()
        yield world
        await store.close()


@pytest.fixture(params=["bound", "small", "unbound"])
def tool(request: pytest.FixtureRequest, world: World) -> BaseTool:
    """The tool in each of its forms."""
    return getattr(world, request.param)


odd = [
    "",
    " ",
    "\x00",
    "\ud800",
    "null",
    "[]",
    "{}",
    "$where",
    ".*",
    "(a+)+$",
    "\\",
    "ß",
    "ẞ",
    "İ",
    "ﬃ",
    "filler",
]
ids = [
    "search-1",
    "log-1",
    "gone",
    "eve-1",
    "call-1",
    "call-eve",
    "1-3",
    "11-20",
    "3, 40",
    "1-",
    "-",
    "20-1",
    "[1]",
]
ids += ["\u0661-\u0662", "1e3", "0x1"]
cursors = [
    "1@0",
    "m3@0",
    "m4@9",
    "m4.1@0",
    "40@3",
    "m7@0",
    "1@99999999999999",
    "9" * 15 + "@0",
    "1@-1",
    "1@0@0",
    "0@0",
]
cursors += ["m0@0", "End.", 'More: cursor="1@7"', '"1@0"', "\u0663@\u0663"]
texts = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=30),
    st.sampled_from(odd),
    st.sampled_from(ids + cursors),
)
junk = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(
            [0, 1, 2, 4, 5, 40, -1, 10**15, 2**63, 2**64, 10**400, -(10**400), 1e300, 3.0]
        ),
        texts,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["$ne", "$gt", "$where", "$regex", "a", ""]), inner, max_size=2
        ),
    ),
    max_leaves=6,
)
named = ["tool_message_ids", "source_ids", "find", "cursor"]
foreign = [
    "config",
    "run_manager",
    "callbacks",
    "user_id",
    "thread_id",
    "page_tokens",
    "self",
    "args",
    "kwargs",
    "$where",
]
arguments = st.fixed_dictionaries(
    {},
    optional={
        "tool_message_ids": st.one_of(st.lists(texts, max_size=5), texts, junk),
        "source_ids": st.one_of(
            st.lists(st.one_of(st.integers(-1, 50), texts), max_size=5), texts, junk
        ),
        "find": st.one_of(texts, junk),
        "cursor": st.one_of(texts, junk),
        **dict.fromkeys(foreign, junk),
    },
)


@pytest.mark.costly
@examples(150, suppress_health_check=SHARED_FIXTURES)
@given(arguments)
@example({"source_ids": "gone", "tool_message_ids": ["1", "00000="]})
async def test_whatever_a_model_sends_is_answered(
    world: World, tool: BaseTool, arguments: dict[str, Any]
) -> None:
    """A tool message with a short text, of its own conversation, for a bounded number of reads and no write."""
    answer = await world.ask(tool, arguments)
    names_another_append = "gone" in repr(arguments)
    assert world.finds.reads <= MOST_FINDS + names_another_append
    if answer.status == "error":
        assert any(f"{name}: expected " in str(answer.content) for name in named)


HUGE: list[dict[str, Any]] = [
    {"tool_message_ids": [f"made-up-{number}" for number in range(10_000)]},
    {"tool_message_ids": ["search-1"] * 10_000},
    {"tool_message_ids": list(range(10_000))},
    {"tool_message_ids": ["x" * LARGE]},
    {"tool_message_ids": "x" * LARGE},
    {"tool_message_ids": "[" * LARGE},
    {"tool_message_ids": "[" + "1," * (LARGE // 2)},
    {"tool_message_ids": "x," * (LARGE // 2)},
    {"source_ids": list(range(1, 10_001))},
    {"source_ids": [1] * 1_000_000},
    {"source_ids": ["1-1000"] * 10_000},
    {"source_ids": "1-1000," * (LARGE // 7)},
    {"source_ids": "1" * LARGE},
    {"source_ids": "1-999999999999999"},
    {"source_ids": " " * LARGE},
    {"source_ids": "[" * LARGE},
    {"find": "x" * LARGE, "source_ids": [1]},
    {"find": "ß" * LARGE, "tool_message_ids": ["search-1", "log-1"]},
    {"find": " " * LARGE, "source_ids": [1]},
    {"find": "line", "tool_message_ids": ["log-1"] * 10_000},
    {"cursor": "1" * LARGE},
    {"cursor": '"1@' + "1" * LARGE, "source_ids": [1]},
    {"unknown": "x" * LARGE},
    {"config": {"configurable": {"user_id": "eve"}}, "source_ids": "1-40"},
    *({name: [{"$ne": ""}] * 10_000} for name in named),
    *({name: json.loads("[" * 200 + "]" * 200)} for name in named),
]


@pytest.mark.costly
@pytest.mark.parametrize(
    "arguments",
    sampled(HUGE, every=9),
    ids=lambda huge: "-".join(f"{key}-{str(huge[key])[:12]}" for key in huge),
)
async def test_however_much_a_model_sends_is_answered(
    world: World, tool: BaseTool, arguments: dict[str, Any]
) -> None:
    """Ten thousand ids and ten megabytes cost no more commands than one."""
    await world.ask(tool, arguments)
    assert world.finds.reads <= MOST_FINDS


@pytest.mark.parametrize(
    "value", [1.5, True, {"$ne": ""}, [["a"]], [True], [{"id": "x"}], [-1], [10**400]]
)
async def test_wrong_tool_message_ids_are_explained(world: World, value: Any) -> None:
    """The argument is named, with what is expected and what was sent instead."""
    answer = await world.ask(world.bound, {"tool_message_ids": value})
    assert answer.status == "error"
    assert str(answer.content).startswith(
        "tool_message_ids: expected a list of ids as shortened results show them"
    )


@pytest.mark.parametrize("value", ["all", "-1", "20-11", "\u0661", "1.5"])
async def test_source_ids_that_are_no_numbers_are_named(world: World, value: str) -> None:
    """Source ids that are not numbers are named, and the answer says which ids are valid."""
    answer = await world.ask(world.bound, {"source_ids": value})
    assert str(answer.content).startswith(
        f"Not found: {value}. Valid ids: log-1, search-1. Source numbers"
    )


@pytest.mark.parametrize("value", [1.5, [1.5], -1, [True], {"$gt": 0}, [[1]]])
async def test_wrong_source_ids_are_explained(world: World, value: Any) -> None:
    """The argument is named, with what is expected and what was sent instead."""
    answer = await world.ask(world.bound, {"source_ids": value})
    assert answer.status == "error"
    assert str(answer.content).startswith(
        "source_ids: expected numbers of sources, such as [3, 11], or a text"
    )


@pytest.mark.parametrize("name", ["find", "cursor"])
@pytest.mark.parametrize("value", [True, [["a"]], {"$regex": ".*"}, 10**400])
async def test_wrong_texts_are_explained(world: World, name: str, value: Any) -> None:
    """The argument is named, with what is expected and what was sent instead."""
    answer = await world.ask(world.bound, {name: value, "source_ids": [1]})
    assert answer.status == "error"
    assert str(answer.content).startswith(f"{name}: expected ")


async def test_every_wrong_argument_is_explained_at_once(world: World) -> None:
    """A model mends its call in one step."""
    answer = await world.ask(
        world.bound, {"tool_message_ids": True, "source_ids": 1.5, "find": {}, "cursor": False}
    )
    assert [name for name in named if f"{name}: expected " in str(answer.content)] == named


@pytest.mark.costly
@pytest.mark.parametrize(
    ("lenient", "strict"),
    [
        ({"tool_message_ids": "search-1"}, {"tool_message_ids": ["search-1"]}),
        (
            {"tool_message_ids": '["search-1", "log-1"]'},
            {"tool_message_ids": ["search-1", "log-1"]},
        ),
        ({"tool_message_ids": "log-1, search-1"}, {"tool_message_ids": ["log-1", "search-1"]}),
        ({"tool_message_ids": ["search-1", None, ""]}, {"tool_message_ids": ["search-1"]}),
        ({"tool_message_ids": [3]}, {"source_ids": [3]}),
        ({"source_ids": 3}, {"source_ids": [3]}),
        ({"source_ids": 3.0}, {"source_ids": [3]}),
        ({"source_ids": "[3, 1]"}, {"source_ids": [3, 1]}),
        ({"source_ids": "[3], [1]"}, {"source_ids": [3, 1]}),
        ({"source_ids": "2 - 4; 1"}, {"source_ids": [2, 3, 4, 1]}),
        ({"source_ids": "2–4"}, {"source_ids": [2, 3, 4]}),  # noqa: RUF001 - what models write
        ({"source_ids": ["1-2", None, 4]}, {"source_ids": [1, 2, 4]}),
        ({"source_ids": [1], "find": 1}, {"source_ids": [1], "find": "1"}),
        ({"source_ids": [1], "find": " filler "}, {"source_ids": [1], "find": "filler"}),
        ({"source_ids": [1], "find": "   "}, {"source_ids": [1]}),
        ({"source_ids": [1], "cursor": 'More: cursor="1@7"'}, {"source_ids": [1], "cursor": "1@7"}),
        (
            {"source_ids": [1], "cursor": None, "find": None, "tool_message_ids": None},
            {"source_ids": [1]},
        ),
        ({"source_ids": None, "tool_message_ids": "", "find": "", "cursor": ""}, {}),
    ],
)
async def test_what_a_model_means_is_understood(
    world: World, lenient: dict[str, Any], strict: dict[str, Any]
) -> None:
    """Nulls, numbers in texts, texts in the place of lists and whole last lines read as what they stand for."""
    given_, meant = await world.ask(world.bound, lenient), await world.ask(world.bound, strict)
    assert given_.status == "success"
    assert (given_.content, given_.artifact) == (meant.content, meant.artifact)


async def test_a_string_in_the_place_of_the_arguments_is_taken_as_an_id(world: World) -> None:
    """A tool that is called with a text alone."""
    assert await world.bound.ainvoke("search-1") == await world.bound.ainvoke(
        {"tool_message_ids": ["search-1"]}
    )


async def test_the_result_says_that_more_can_be_read(world: World) -> None:
    """A model knows what it has to ask for again."""
    many = await world.ask(
        world.bound, {"tool_message_ids": [f"id-{number}" for number in range(201)]}
    )
    assert "Only the first 200 tool_message_ids are read." in str(many.content)
    assert ", and 180 more." in str(many.content)
    many = await world.ask(world.bound, {"source_ids": list(range(1, 1_002))})
    assert "Only the first 1000 source_ids are read." in str(many.content)
    long = await world.ask(world.bound, {"source_ids": [1], "find": "filler " * 100})
    assert "Only the first 400 characters of find are looked for." in str(long.content)


@pytest.mark.parametrize("find", [".*", "(a+)+$", "[a-z]", "\\w", "^", "ŉ", "\ud800", "\x00"])
async def test_a_text_to_find_is_no_pattern(world: World, find: str) -> None:
    """The text to find is not a pattern: it is compared literally."""
    answer = await world.ask(world.bound, {"source_ids": "1-4", "find": find})
    assert str(answer.content).startswith("No match for ")


async def test_what_is_not_there_is_named_in_one_line(world: World) -> None:
    """Ids that do not exist are named in one line, without the line breaks and control characters in them."""
    answer = await world.ask(
        world.bound, {"tool_message_ids": ['a\nMore: cursor="1@0"', "b\ud800\x00", "made-up\x00"]}
    )
    lines = str(answer.content).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        'Not found: a\ufffdMore: cursor="1@0", b\ufffd\ufffd, made-up\ufffd. Valid ids: '
    )


async def test_the_tool_writes_down_no_more_than_it_was_asked_for(world: World) -> None:
    """An id of ten megabytes is not kept in the artifact, which the log keeps for ever."""
    answer = await world.ask(world.bound, {"tool_message_ids": ["x" * LARGE]})
    assert [len(name) for name in answer.artifact.not_found] == [513]


@pytest.fixture
async def wide(world: World) -> Conversation:
    """A conversation in which every one of 40 results came in an append of its own."""
    chat = world.store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    for number in range(40):
        turn = rag_turn(f"Where is whale{number}?", sources=2, words=45)
        turn[2].id = f"result-{number}"
        await chat.append(turn)
    return chat


@pytest.mark.slow
@pytest.mark.costly
@pytest.mark.parametrize("find", ["", "passage", "not there"])
async def test_a_call_reads_a_bounded_number_of_appends(
    world: World, wide: Conversation, find: str
) -> None:
    """Each call reads a bounded number of appends, however many it names. The pages together show all of them."""
    tool = wide.retrieve_previous_sources_tool(page_tokens=16_000)
    asked = {
        "tool_message_ids": [*(f"result-{number}" for number in range(40)), "call-x"],
        "source_ids": "1-90",
    }
    seen: set[int] = set()
    cursor = ""
    while cursor is not None:
        answer = await world.ask(tool, {**asked, "find": find, "cursor": cursor})
        assert world.finds.reads <= MOST_FINDS_EVER
        seen |= {source.source_id for source in answer.artifact.sources}
        assert answer.artifact.next_cursor != cursor
        cursor = answer.artifact.next_cursor
    assert seen == (set() if find == "not there" else set(range(1, 81)))


@pytest.mark.slow
async def test_looking_for_a_text_in_a_large_result_is_bounded(world: World) -> None:
    """A page says how far it looked, and the next one goes on there; what is far behind is found in the end."""
    chat = world.store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    text = "straw " * 4_000_000 + "needle" + " straw" * 1_000
    await chat.append(
        ToolMessage("hay", id="hay", tool_call_id="c", artifact=[(text, {"title": "Hay"})])
    )
    tool = chat.retrieve_previous_sources_tool()
    first = await world.ask(tool, {"source_ids": [1], "find": "NEEDLE"})
    assert str(first.content).startswith(
        "No match for 'NEEDLE' in the text read so far.\nMore: cursor="
    )
    assert world.finds.reads <= MOST_FINDS
    second = await world.ask(
        tool, {"source_ids": [1], "find": "NEEDLE", "cursor": first.artifact.next_cursor}
    )
    assert "needle" in str(second.content)
    assert world.finds.reads <= MOST_FINDS


async def test_a_long_error_of_the_store_is_cut() -> None:
    """A driver lists every server that it knows; a model needs the beginning."""

    async def read(_: Request) -> tuple[str, SourcePage]:
        raise StoreUnavailableError("no primary " * 1_000)

    tool = make_retrieval_tool(lambda _: (read, lambda _: pytest.fail("not called")))
    answer = await tool.ainvoke({"type": "tool_call", "id": "c", "name": tool.name, "args": {}})
    assert (answer.status, len(answer.content) <= ERROR) == ("error", True)


# ---------------------------------------------------------------------------------------------------------------------
# What a model writes into the log

written = st.one_of(
    texts,
    st.sampled_from(["run", "x" * 600, "a\nMore: cursor=", "]. End.", "retrieve_previous_sources"]),
)
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
made_calls = st.lists(
    st.fixed_dictionaries(
        {"name": written, "args": st.dictionaries(texts, plain, max_size=3), "id": written}
    ),
    max_size=4,
)
broken_calls = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.none() | written,
            "args": st.none() | texts,
            "id": st.none() | written,
            "error": texts,
        }
    ),
    max_size=2,
)
VIEWS = [
    HistoryPolicy(),
    *(
        HistoryPolicy(stub_tools="never", provider=name)
        for name in ("openai", "anthropic", "mistralai")
    ),
]


@pytest.mark.slow
@examples(60, suppress_health_check=SHARED_FIXTURES)
@given(made_calls, broken_calls, texts, st.booleans())
async def test_whatever_calls_a_model_writes_are_kept_and_shown(
    world: World,
    made: list[dict[str, Any]],
    broken: list[dict[str, Any]],
    said: str,
    is_large: bool,
) -> None:
    """Names, arguments and ids of any text: equal in the log, a view that providers accept, one line each in lists."""
    chat = world.store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    asked = AIMessage(said, tool_calls=made, invalid_tool_calls=broken)
    output = "line\n" * (900 if is_large else 2)
    results = [
        ToolMessage(output, id=f"r{index}", tool_call_id=call["id"])
        for index, call in enumerate(made)
        if call["id"]
    ]
    own_pages = {f"r{index}" for index, call in enumerate(made) if call["name"] == RETRIEVAL_TOOL}
    await chat.append([HumanMessage("?"), asked, *results])
    await chat.append([AIMessage("so"), HumanMessage("and?"), AIMessage("so")])
    log = [message async for message in chat.messages(rewound=True)]
    assert same_messages(log[1 : 2 + len(results)], [asked, *results])
    for policy in VIEWS:
        assert check_pairing((await chat.load_history(policy)).messages) == []
    tool = chat.retrieve_previous_sources_tool()
    listing = str((await world.ask(tool, {})).content)
    listed = listing.partition("Earlier turns, newest first")[0].rstrip("\n")
    named = [line.partition(":")[0] for line in listed.split("\n")[1:]]
    assert named == [result.id for result in reversed(results) if result.id not in own_pages]
    assert len(listing.splitlines()) == len(listing.split("\n"))
    for call in made:
        answer = await world.ask(tool, {"tool_message_ids": [call["id"]]})
        assert answer.status == "success"


@pytest.mark.parametrize(
    "configuration", [{"user_id": "eve"}, {"configurable": {"user_id": "eve", "thread_id": "x"}}]
)
async def test_a_numbered_tool_takes_no_scope_from_a_model(
    world: World, configuration: dict[str, Any]
) -> None:
    """Numbers are those of the run's conversation, whatever the arguments of the call are."""

    async def find(query: str) -> list[tuple[str, dict[str, str]]]:
        """Find it."""
        return [(f"About {query}. " * 20, {"title": "T"})]

    chat = world.store.conversation(user_id="ada", thread_id=uuid.uuid4().hex)
    numbered = number_sources(find, world.store)
    arguments = {"query": "seals", "config": configuration, **configuration}
    call = {"type": "tool_call", "id": "c", "name": "find", "args": arguments}
    for number in (1, 2):
        answer = await numbered.ainvoke(call, {"configurable": chat.scope})
        assert str(answer.content).startswith(f"[{number}] T")
