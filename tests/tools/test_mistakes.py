"""The mistakes that models make with the tool: what is clear is done, what is not is named, and nothing raises."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from convstore import SOURCES_PROMPT, Conversation, ConversationStore
from convstore.mongo.log import beginnings_filter

TOPICS = ("orcas", "seals", "belugas", "walrus", "narwhals")
END = re.compile(r'More: cursor="([^"\n]+)"; call again with this cursor alone\.\Z')

UUIDS = [str(uuid.UUID(int=number * 0x1F00_0000_0000_0000_0000_0000_0001)) for number in (3, 5, 7)]
SHORT = ["hit-one", "hit-two", "run-log"]


def text_on(topic: str) -> str:
    """A text of 1,400 characters whose middle names a place."""
    filler = f"What is known of {topic} fills a book. " * 17
    return f"{filler}In winter the {topic} rest near Tromsø harbour. {filler}"


class Sea:
    """A conversation with five sources in two results, a listing, and two questions."""

    def __init__(self, chat: Conversation, ids: list[str]) -> None:
        self.chat, self.ids = chat, ids
        self.tool = chat.retrieve_previous_sources_tool()
        self.small = chat.retrieve_previous_sources_tool(page_tokens=400)

    async def fill(self) -> None:
        """Append two turns; the messages with ordinals 3, 7 and 8 have the ids."""
        first, second, log = self.ids
        items = [(text_on(topic), {"title": topic.title()}) for topic in TOPICS]
        call = {"name": "search", "args": {}, "id": "call-a"}
        found = ToolMessage(
            "3 hits", id=first, tool_call_id="call-a", name="search", artifact=items[:3]
        )
        await self.chat.append(
            [HumanMessage("Sea?", id="question-1"), AIMessage("", tool_calls=[call]), found]
        )
        await self.chat.append(AIMessage("So [1]."))
        calls = [{"name": name, "args": {}, "id": f"call-{name}"} for name in ("search", "run")]
        again = ToolMessage(
            "2 hits", id=second, tool_call_id="call-search", name="search", artifact=items[3:]
        )
        lines = "".join(f"line {number} of the listing\n" for number in range(400))
        listing = ToolMessage(lines, id=log, tool_call_id="call-run", name="run")
        asked = [HumanMessage("Ice?", id="question-2"), AIMessage("", tool_calls=calls)]
        await self.chat.append([*asked, again, listing, AIMessage("So [4].")])
        await self.chat.append(HumanMessage("And now?"))

    async def ask(self, tool: BaseTool | None = None, **arguments: Any) -> str:
        """Return the text of an answer, which is no error."""
        tool = tool or self.tool
        answer = await tool.ainvoke(
            {"type": "tool_call", "id": "c", "name": tool.name, "args": arguments}
        )
        assert answer.status == "success", answer.content
        assert len(answer.text) <= (1_600 if tool is self.small else 16_000)
        return str(answer.text)

    async def read(self, **arguments: Any) -> list[str]:
        """Return all pages, each after the first one by the cursor alone."""
        pages = [await self.ask(self.small, **arguments)]
        while more := END.search(pages[-1]):
            pages.append(await self.ask(self.small, cursor=more[1]))
            assert len(pages) < 40
        assert pages[-1].endswith("\nEnd.")
        return pages


@pytest.fixture(params=["uuids", "short ids"])
async def sea(
    request: pytest.FixtureRequest, store: ConversationStore, scope: dict[str, str]
) -> Sea:
    """The conversation under ids of both kinds."""
    sea = Sea(store.conversation(**scope), UUIDS if request.param == "uuids" else SHORT)
    await sea.fill()
    return sea


# ---------------------------------------------------------------------------------------------------------------------
# The cursor alone


@pytest.mark.costly
@pytest.mark.parametrize("find", ["near Tromsø harbour", 'fills a book. what "is"', "tromsø"])
@pytest.mark.parametrize("named", [{}, {"source_ids": "2-5"}])
async def test_a_cursor_alone_knows_what_was_looked_for(sea: Sea, find: str, named: Any) -> None:
    """In some sources, or everywhere; the pages are those of the same call with a cursor."""
    pages = await sea.read(find=find, **named)
    assert len(pages) > 1 or "what" in find
    assert all("nknown cursor" not in page for page in pages)
    first = END.search(pages[0])
    assert bool(first) == (len(pages) > 1)
    if first:
        assert (
            await sea.ask(sea.small, cursor=first[1], find="other", source_ids=[1], ids=["x"])
            == pages[1]
        )


@pytest.mark.costly
async def test_a_cursor_is_short_and_plain(sea: Sea) -> None:
    """A model has to copy it."""
    pages = await sea.read(tool_message_ids=sea.ids)
    cursors = [found[1] for page in pages if (found := END.search(page))]
    assert cursors
    assert max(map(len, cursors)) < 30
    assert not re.search(r"[^\w@/.,+-]", "".join(cursors))


@pytest.mark.costly
@pytest.mark.parametrize(
    "cursor",
    [
        "1@0/m999999999999999+999999999",
        "1@0/1-999999999999999",
        "1@0/" + ",".join(["m1+2"] * 5_000),
        "1@0/1-1000,2-1000,3-1000",
        "m3@0/m1+2/" + "x" * 100_000,
        "f5@0/m1+2/%00%ff%ed%a0%80",
        "f999999999999999@999999999/m1/tromsø",
        "f0@0//",
        "1@0/../../etc",
        "m999999999999999@0",
        "1@0/m0+0",
        *("99@", "@", "x@-1", "1@99999999999999999999", "\x00", "\u0661@\u0661", "1@1e3"),
    ],
)
async def test_a_changed_cursor_is_data(sea: Sea, cursor: str) -> None:
    """A changed cursor reads a bounded part of its own conversation, quickly, or is unknown."""
    began = time.monotonic()
    answer = await sea.ask(cursor=cursor)
    assert time.monotonic() - began < 5
    assert answer.endswith(("End.", "alone."))


# ---------------------------------------------------------------------------------------------------------------------
# Arguments

MISTAKES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tool_message_id": "$0"}, {"tool_message_ids": ["$0"]}),
    ({"message_id": "$0"}, {"tool_message_ids": ["$0"]}),
    ({"ids": ["$0", "$1"]}, {"tool_message_ids": ["$0", "$1"]}),
    ({"id": "$2"}, {"tool_message_ids": ["$2"]}),
    ({"source_id": 3}, {"source_ids": [3]}),
    ({"query": "Tromsø"}, {"find": "Tromsø"}),
    ({"find": ["Tromsø", "winter"]}, {"find": "Tromsø winter"}),
    ({"source_ids": [1], "page": 1}, {"source_ids": [1]}),
    ({"source_ids": [1], "cursor": "none"}, {"source_ids": [1]}),
    ({"tool_message_ids": ["3"]}, {"source_ids": [3]}),
    ({"tool_message_ids": 3}, {"source_ids": [3]}),
    ({"tool_message_ids": "1-3"}, {"source_ids": "1-3"}),
    ({"tool_message_ids": ["1-3", "5"]}, {"source_ids": "1-3, 5"}),
    ({"tool_message_ids": ["source 3"]}, {"source_ids": [3]}),
    ({"tool_message_ids": ["[3]"]}, {"source_ids": [3]}),
    ({"source_ids": "source 3"}, {"source_ids": [3]}),
    ({"source_ids": "sources 1-3 and 5"}, {"source_ids": "1-3, 5"}),
    ({"source_ids": ["Source #3", "[4]"]}, {"source_ids": [3, 4]}),
    ({"source_ids": ["$0"]}, {"tool_message_ids": ["$0"]}),
    ({"source_ids": "$0"}, {"tool_message_ids": ["$0"]}),
    ({"source_ids": ["4", "$0"]}, {"tool_message_ids": ["$0"], "source_ids": [4]}),
    ({"tool_message_ids": ["$0-1"]}, {"tool_message_ids": ["$0"]}),
    ({"tool_message_ids": ["$2-1", "$1-1"]}, {"tool_message_ids": ["$2", "$1"]}),
    ({"tool_message_ids": ["$2…"]}, {"tool_message_ids": ["$2"]}),
    ({"tool_message_ids": ['"$0"', "message id $1"]}, {"tool_message_ids": ["$0", "$1"]}),
    ({"tool_message_ids": ["m3"]}, {"tool_message_ids": ["$0"]}),
    ({"tool_message_ids": ["m8", "M7"]}, {"tool_message_ids": ["$2", "$1"]}),
    ({"source_ids": "m3"}, {"tool_message_ids": ["$0"]}),
    ({"tool_message_ids": ["message 3", "ordinal 7"]}, {"tool_message_ids": ["$0", "$1"]}),
    ({"tool_message_ids": "m3, 5"}, {"tool_message_ids": ["$0"], "source_ids": [5]}),
]


def with_ids(value: Any, ids: list[str]) -> Any:
    """Return arguments with ``$0`` replaced by the first id, ``$0-1`` by the same without its last character."""
    text = json.dumps(value)
    for index, id_ in enumerate(ids):
        text = text.replace(f"${index}-1", id_[:-1]).replace(f"${index}", id_)
    return json.loads(text)


@pytest.mark.costly
@pytest.mark.parametrize(("mistake", "meant"), MISTAKES, ids=json.dumps)
async def test_what_is_clear_is_done(sea: Sea, mistake: Any, meant: Any) -> None:
    """The answer is that to the call that was meant."""
    wanted = await sea.ask(**with_ids(meant, sea.ids))
    assert "Not found" not in wanted
    assert await sea.ask(**with_ids(mistake, sea.ids)) == wanted


@pytest.mark.costly
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"source_ids": [4, 99]},
            ["In winter the walrus", "Not found: 99.", "Source numbers here: 1-5."],
        ),
        ({"source_ids": "7-1000000000"}, ["Source numbers here: 1-5.", "Only the first 1000"]),
        (
            {"source_ids": [1, 3, 77, 78, 79]},
            ["Not found: 77, 78, 79.", "Source numbers here: 1-5."],
        ),
        (
            {"source_ids": ["all"]},
            ["Not found: all.", "Source numbers here: 1-5.", "Valid ids: $2"],
        ),
        ({"tool_message_ids": ["nothing-like-it"]}, ["Not found: nothing-like-it.", "$2, $1, $0"]),
        ({"tool_message_ids": ["m99"]}, ["Not found: m99."]),
        (
            {"source_ids": [1], "limit": 5},
            ["Unknown argument: limit.", "tool_message_ids, source_ids, find, cursor"],
        ),
        ({"querry": "x", "n": 1}, ["Unknown arguments: querry, n.", "$0"]),
        ({"source_ids": [1], "page": 2}, ["There are no page numbers", "In winter the orcas"]),
        ({"find": "xylophone"}, ["No match for 'xylophone'. Try other words."]),
        (
            {"find": "xylophone", "source_ids": [1]},
            ["No match for 'xylophone'", "Try other words", "without ids"],
        ),
    ],
)
async def test_what_is_not_clear_is_named(sea: Sea, arguments: Any, said: list[str]) -> None:
    """With what to do; an unknown number is answered with those that exist."""
    answer = await sea.ask(**with_ids(arguments, sea.ids))
    for part in with_ids(said, sea.ids):
        assert part in answer


async def test_find_with_ids_searches_in_them(sea: Sea) -> None:
    """Exact matches first; then passages that have the words, in another order or form; none of other messages."""
    found = await sea.ask(find="harbour near Tromsø", source_ids="2, 4")
    assert (
        "No match for 'harbour near Tromsø' as an exact text; these passages have its words."
        in found
    )
    assert "seals rest near Tromsø" in found
    assert "walrus rest near Tromsø" in found
    assert "orcas" not in found
    exact = await sea.ask(find="walrus rest near", tool_message_ids=[sea.ids[0], sea.ids[1]])
    assert all(
        exact.index("the walrus rest near") < exact.index(f"{name} rest near")
        for name in ("narwhals", "seals")
    )
    assert exact.count("the walrus rest near") == 1
    assert "line" not in exact


@pytest.mark.costly
async def test_an_ambiguous_beginning_is_not_resolved(sea: Sea) -> None:
    """Two ids begin with it; and one that is too short is no beginning."""
    for name in ("question-", "quest", "000000"):
        assert "Not found: " in await sea.ask(tool_message_ids=[name])
    assert "Sea?" in await sea.ask(tool_message_ids=["question-1"])


@pytest.mark.costly
async def test_a_beginning_never_reaches_another_scope(sea: Sea, scope: dict[str, str]) -> None:
    """An id of another user's conversation is unknown, and so are its beginning and its ordinals."""
    other = sea.chat.store.conversation(**{**scope, next(iter(scope)): "eve"})
    await other.append(ToolMessage("SECRET " * 300, id="abcdef-123456", tool_call_id="c"))
    for name in ("abcdef-12345", "abcdef-123456", "m99", "m1"):
        assert "SECRET" not in await sea.ask(tool_message_ids=[name])
    assert "SECRET" in await Sea(other, SHORT).ask(tool_message_ids=["abcdef-12345"])


@pytest.mark.slow
async def test_a_beginning_is_looked_up_by_the_index(
    store: ConversationStore, scope: dict[str, str], database: Any
) -> None:
    """A bounded number of keys and documents, however many ids there are, and however many begin so."""
    chat = store.conversation(**scope)
    for batch in range(60):
        await chat.append(
            [HumanMessage("x", id=f"message-{batch * 20 + number:05}") for number in range(20)]
        )
    conversation = (await chat.info()).conversation_id
    for beginning, most in (("message-0113", 2), ("message-", 20), ("nothing-", 0)):
        query = beginnings_filter(conversation, [beginning])
        found = await database.command(
            {
                "explain": {"find": "log", "filter": query, "limit": 20},
                "verbosity": "executionStats",
            }
        )
        assert found["executionStats"]["totalDocsExamined"] <= most
        assert found["executionStats"]["totalKeysExamined"] <= 450


async def test_ordinals_are_shown(sea: Sea) -> None:
    """In the list, in headers and in what a search finds."""
    listed = await sea.ask()
    assert all(f", m{ordinal}" in listed for ordinal in (3, 7, 8))
    assert "run, m8, characters 0-" in await sea.ask(tool_message_ids=[sea.ids[2]])
    assert f"in result {sea.ids[0]} of search, m3, " in await sea.ask(find="orcas winter")


# ---------------------------------------------------------------------------------------------------------------------
# Schema


def leaves(schema: Any) -> Iterator[str]:
    """Yield every key in a schema."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            yield key
            yield from leaves(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from leaves(item)


def test_the_schema_is_flat(store: ConversationStore) -> None:
    """For every converter: from the model itself, as Google's packages read it, and from LangChain's."""
    tool = store.conversation(user_id="a", thread_id="b").retrieve_previous_sources_tool()
    arguments: Any = tool.args_schema
    strict = convert_to_openai_tool(tool, strict=True)["function"]
    plain = convert_to_openai_tool(tool)["function"]["parameters"]
    for schema in (arguments.model_json_schema(), strict["parameters"], plain):
        assert not {"anyOf", "oneOf", "allOf", "$ref", "$defs", "default"} & set(leaves(schema))
        assert {name: value["type"] for name, value in schema["properties"].items()} == {
            "tool_message_ids": "array",
            "source_ids": "string",
            "find": "string",
            "cursor": "string",
        }
        assert schema["properties"]["tool_message_ids"]["items"] == {"type": "string"}
        assert all("Example: " in item["description"] for item in schema["properties"].values())
        assert schema.get("description", tool.description) == tool.description
    assert strict["description"] == tool.description
    assert strict["parameters"]["additionalProperties"] is False


@pytest.mark.slow
def test_gemini_gets_the_description_for_models(store: ConversationStore) -> None:
    """Gemini's package declares the tool with its description for models, and with plain types."""
    utils = pytest.importorskip("langchain_google_genai._function_utils")
    tool = store.conversation(user_id="a", thread_id="b").retrieve_previous_sources_tool()
    [declared] = utils.convert_to_genai_function_declarations([tool])[0].function_declarations
    assert declared.description == tool.description
    assert declared.parameters.description in (None, tool.description)
    assert {str(message.type.value) for message in declared.parameters.properties.values()} == {
        "ARRAY",
        "STRING",
    }
    assert not any(item.any_of for item in declared.parameters.properties.values())


async def test_a_strict_model_fills_every_argument(sea: Sea) -> None:
    """Empty values mean nothing."""
    empty = {"tool_message_ids": [], "source_ids": "", "find": "", "cursor": ""}
    assert await sea.ask(**empty) == await sea.ask()
    assert await sea.ask(**{**empty, "source_ids": "2"}) == await sea.ask(source_ids=[2])


# ---------------------------------------------------------------------------------------------------------------------
# The system prompt


def test_the_prompt_says_when_to_read_and_how_to_search() -> None:
    """An old citation needs no reading; a search that finds nothing is tried with other words."""
    assert (
        "citation that stands in an earlier answer may be repeated without reading"
        in SOURCES_PROMPT
    )
    assert "searches words, so try others" in SOURCES_PROMPT
    assert len(SOURCES_PROMPT) < 800
