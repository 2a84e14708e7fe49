"""Tools whose answers carry source ids of the conversation before a model sees them."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, ToolException, tool
from langchain_tests.unit_tests import ToolsUnitTests
from langgraph.types import Command
from mongomock_motor import AsyncMongoMockClient

from convstore import Conversation, ConversationStore, InvalidInputError, Source, number_sources
from convstore.exceptions import SyncUnsupportedError
from convstore.sources.numbering import sources_in, with_numbers


@pytest.fixture
def database() -> Any:
    """A database in memory."""
    return AsyncMongoMockClient()["numbers"]


@pytest.fixture
async def store(database: Any) -> ConversationStore:
    """A store that is set up."""
    store = ConversationStore(database)
    await store.setup()
    return store


@pytest.fixture
def chat(store: ConversationStore) -> Conversation:
    """An empty conversation."""
    return store.conversation(user_id="ada", thread_id="t")


def documents(topic: str, count: int = 2) -> list[Document]:
    """Return documents numbered from 1, as retrievers do."""
    return [
        Document(
            page_content=f"{topic} {n}",
            id=f"d{n}",
            metadata={"title": f"T{n}", "source_id": n, "rank": n},
        )
        for n in range(1, count + 1)
    ]


@tool(response_format="content_and_artifact")
async def search(topic: str) -> tuple[str, list[Document]]:
    """Search the library."""
    found = documents(topic)
    return "\n".join(f"({n}) {each.page_content}" for n, each in enumerate(found, 1)), found


async def ask(
    wrapped: BaseTool, config: RunnableConfig | None = None, **arguments: Any
) -> ToolMessage:
    """Return the message that an agent gets."""
    call = {"type": "tool_call", "id": "call-1", "name": wrapped.name, "args": arguments}
    answer = await wrapped.ainvoke(call, config)
    assert isinstance(answer, ToolMessage)
    return answer


async def test_content_and_artifact_carry_the_numbers_that_the_log_then_has(
    chat: Conversation,
) -> None:
    """Two searches that both count from 1 get 1-2 and 3-4, and appending them clashes with nothing."""
    wrapped = number_sources(search, chat)
    answers = [await ask(wrapped, topic=topic) for topic in ("seals", "orcas")]
    assert answers[1].content == "(3) orcas 1\n(4) orcas 2"
    assert answers[1].artifact[0] == Document(
        page_content="orcas 1", id="d1", metadata={"title": "T1", "source_id": 3, "rank": 1}
    )
    for answer in answers:
        await chat.append(answer)
    page = await chat.get_sources(range(1, 5))
    assert [(source.source_id, source.content) for source in page.sources] == [
        (1, "seals 1"),
        (2, "seals 2"),
        (3, "orcas 1"),
        (4, "orcas 2"),
    ]


async def test_a_document_that_was_shown_says_so(chat: Conversation) -> None:
    """The model reads under which number it saw it first; the log knows it too."""

    def find(topic: str) -> list[Document]:
        """Search the library."""
        return documents(topic)

    wrapped = number_sources(find, chat)
    await chat.append(await ask(wrapped, topic="seals"))
    again = await ask(wrapped, topic="seals")
    assert str(again.content).startswith("[3] T1, already shown as [1]\nseals 1")
    await chat.append(again)
    assert [source.earlier_id for source in (await chat.get_sources([3, 4])).sources] == [1, 2]
    assert await chat.find_shown_sources(["seals 2", "no"]) == [2, None]


async def test_parallel_answers_never_share_a_number(chat: Conversation, database: Any) -> None:
    """Parallel answers in one conversation never share a source id, even from several stores."""
    others = [ConversationStore(database).conversation(**chat.scope) for _ in range(3)]
    answers = await asyncio.gather(
        *(
            ask(number_sources(search, conversation), topic=f"t{n}")
            for n, conversation in enumerate([chat, *others] * 4)
        )
    )
    numbers = [document.metadata["source_id"] for answer in answers for document in answer.artifact]
    assert sorted(numbers) == list(range(1, 33))


async def test_json_keeps_its_form(chat: Conversation) -> None:
    """Each item of the list gets its number, every other character stays; the artifact is left alone."""

    @tool
    def lookup(topic: str) -> str:
        """Look it up."""
        return json.dumps(
            {"total": 1, "results": [{"title": "é", "content": topic, "source_id": 1}]}
        )

    await chat.reserve_source_ids(6)
    answer = await ask(number_sources(lookup, chat), topic="x")
    assert (
        answer.content
        == r'{"total": 1, "results": [{"title": "\u00e9", "content": "x", "source_id": 7}]}'
    )
    assert answer.artifact is None
    receipt = await chat.append(answer)
    assert receipt.source_ids == (7, 7)


@pytest.mark.parametrize("form", ["list", "documents", "tuple", "dict", "async"])
async def test_a_function_of_any_form_is_wrapped(chat: Conversation, form: str) -> None:
    """A function of any form is wrapped, and the tool has its description and its arguments."""
    items = [{"title": "T", "text": "one"}]
    values: dict[str, Any] = {
        "list": items,
        "documents": [Document(page_content="one", metadata={"title": "T"})],
        "tuple": ("1 hit: one", [("one", {"title": "T"})]),
        "dict": {"documents": items},
    }

    def look_up(topic: str, limit: int = 3) -> Any:
        """Look something up."""
        assert (topic, limit) == ("x", 3)
        return values[form]

    async def look_up_later(topic: str, limit: int = 3) -> Any:
        """Look something up."""
        return [(topic, {"limit": limit})]

    wrapped = number_sources(look_up_later if form == "async" else look_up, chat)
    answer = await ask(wrapped, topic="x")
    assert wrapped.description == "Look something up."
    assert set(wrapped.args) == {"topic", "limit"}
    in_json = '{"documents": [{"source_id": 1, "title": "T", "text": "one"}]}'
    written = {"async": "[1]\nx", "dict": in_json, "tuple": "1 hit: [1] one"}
    assert answer.content == written.get(form, "[1] T\none")
    await chat.append(answer)
    [source] = (await chat.get_sources([1])).sources
    assert source.content in ("one", "x")


async def test_an_extractor_finds_the_sources_and_the_artifact_keeps_them(
    chat: Conversation, store: ConversationStore
) -> None:
    """Numbered sources are appended with their numbers, though the extractor would not find them again."""
    store.register_source_extractor(
        "grep", lambda message: [(line, {}) for line in message.text.splitlines()]
    )

    @tool
    def grep(pattern: str) -> str:
        """Find lines."""
        return f"{pattern} one\n{pattern} two"

    answer = await ask(number_sources(grep, chat), pattern="x")
    assert answer.content == "[1] x one\n[2] x two"
    await chat.append(answer)
    assert [source.content for source in (await chat.get_sources([1, 2])).sources] == [
        "x one",
        "x two",
    ]


async def test_what_has_no_sources_goes_through(chat: Conversation) -> None:
    """Content and artifact as they came, no number used."""

    @tool(response_format="content_and_artifact")
    def run(code: str) -> tuple[str, dict[str, int]]:
        """Run code."""
        return f"ran {code}", {"exit": 0}

    answer = await ask(number_sources(run, chat), code="x")
    assert (answer.content, answer.artifact) == ("ran x", {"exit": 0})
    assert (await chat.reserve_source_ids(1))[0] == 1


async def test_a_failure_stays_a_failure(chat: Conversation) -> None:
    """A failed result keeps its error status; an exception is raised."""

    @tool(response_format="content_and_artifact")
    def fail(how: str) -> tuple[str, None]:
        """Fail."""
        raise ToolException("no index") if how == "tool" else ValueError("broken")

    fail.handle_tool_error = True
    wrapped = number_sources(fail, chat)
    answer = await ask(wrapped, how="tool")
    assert (answer.status, answer.content) == ("error", "no index")
    with pytest.raises(ValueError, match="broken"):
        await ask(wrapped, how="raised")
    fail.handle_tool_error = False
    with pytest.raises(ToolException, match="no index"):
        await ask(wrapped, how="tool")


async def test_the_content_is_written_as_the_application_wants_it(chat: Conversation) -> None:
    """`render` gets whole sources."""

    def titles(sources: list[Source]) -> str:
        return ", ".join(f"{source.title}={source.source_id}" for source in sources)

    answer = await ask(number_sources(search, chat, render=titles), topic="x")
    assert answer.content == "T1=1, T2=2"


async def test_with_a_store_the_run_says_which_conversation(store: ConversationStore) -> None:
    """With a store, the configuration of a run chooses the conversation, so that one tool serves many."""
    wrapped = number_sources(search, store)
    for user, first in (("ada", 1), ("ada", 3), ("eve", 1)):
        answer = await ask(
            wrapped, {"configurable": {"user_id": user, "thread_id": "t"}}, topic="x"
        )
        assert answer.artifact[0].metadata["source_id"] == first


async def test_what_else_a_tool_wrote_is_kept(chat: Conversation) -> None:
    """Lines that name the sources come before a text without them, and before blocks."""

    @tool(response_format="content_and_artifact")
    def search_old(topic: str) -> tuple[str, list[Document]]:
        """Search."""
        return "The index is a week old.", documents(topic, 1)

    @tool
    def browse(topic: str) -> list[dict[str, Any]]:
        """Browse."""
        cited = [
            {
                "type": "url_citation",
                "url": "https://a",
                "title": "A",
                "start_index": 0,
                "end_index": 8,
            }
        ]
        text = {"type": "text", "text": "The moon is far away.", "annotations": cited}
        return [text, {"type": "image", "url": "https://b"}]

    assert (
        await ask(number_sources(search_old, chat), topic="x")
    ).content == "[1] T1\n\nThe index is a week old."
    answer = await ask(number_sources(browse, chat), topic="x")
    assert [block["type"] for block in answer.content] == ["text", "text", "image"]
    assert answer.content[0]["text"] == "[2] A (https://a)"
    assert answer.content[1]["text"] == "The moon is far away."
    await chat.append(answer)
    assert (await chat.get_sources([2])).sources[0].url == "https://a"


async def test_every_way_to_call_it_numbers(chat: Conversation) -> None:
    """With bare arguments, as a call, by `arun`; with the run's configuration each time."""
    for tool_ in (number_sources(search, chat), number_sources(search, chat.store)):
        config: RunnableConfig = {"configurable": chat.scope}
        first = (await chat.reserve_source_ids(1))[0] + 1
        assert str(await tool_.ainvoke({"topic": "x"}, config)).startswith(f"({first}) x 1")
        assert str(await tool_.arun({"topic": "x"}, config=config)).startswith(f"({first + 2}) x 1")
        assert str((await ask(tool_, config, topic="x")).content).startswith(f"({first + 4}) x 1")


@pytest.mark.parametrize("value", [5, "text", {"flight": "X1"}, [1, 2], None])
async def test_an_answer_without_sources_is_what_the_tool_alone_gives(
    chat: Conversation, value: Any
) -> None:
    """A wrapped tool gives the same answer as the tool alone if the answer has no sources, of any type."""

    @tool
    def compute(topic: str) -> Any:
        """Compute."""
        return value

    assert await ask(number_sources(compute, chat), topic="x") == await ask(compute, topic="x")


async def test_a_tool_that_takes_the_id_of_its_call_gets_it(chat: Conversation) -> None:
    """A tool that takes the id of its call gets it, so that a command answers the right call."""

    @tool
    def hand_over(topic: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Hand over."""
        return Command(update={"messages": [ToolMessage(topic, tool_call_id=tool_call_id)]})

    wrapped = number_sources(hand_over, chat)
    call = {"type": "tool_call", "id": "call-1", "name": wrapped.name, "args": {"topic": "x"}}
    assert (await wrapped.ainvoke(call)).update["messages"][0].tool_call_id == "call-1"
    assert set(wrapped.tool_call_schema.model_json_schema()["properties"]) == {"topic"}


async def test_a_failure_that_was_handled_keeps_its_status(chat: Conversation) -> None:
    """A handled failure keeps its status "error", both of the tool and of refused arguments."""

    @tool
    def count(number: int) -> str:
        """Count."""
        raise ToolException("no such index")

    count.handle_tool_error = count.handle_validation_error = True
    wrapped = number_sources(count, chat)
    for arguments in ({"number": 1}, {"number": "x"}):
        assert (await ask(wrapped, **arguments)).status == "error"


async def test_the_numbers_shown_are_those_of_the_log(chat: Conversation) -> None:
    """If content and artifact could both hold sources, those that an append finds are numbered."""

    @tool(response_format="content_and_artifact")
    def both(topic: str) -> tuple[str, list[dict[str, str]]]:
        """Find."""
        return json.dumps({"results": [{"title": "J", "content": "json"}]}), [
            {"title": "A", "content": topic}
        ]

    answer = await ask(number_sources(both, chat), topic="artifact")
    assert answer.artifact == [{"title": "A", "content": "artifact", "source_id": 1}]
    await chat.append(answer)
    assert (await chat.get_sources([1])).sources[0].content == "artifact"


def test_sync_callers_are_served_by_a_connected_store() -> None:
    """The error says what to do on a store of the caller's client."""

    @tool(response_format="content_and_artifact")
    def find(topic: str) -> tuple[str, list[Document]]:
        """Find."""
        return topic, documents(topic)

    async def make() -> ConversationStore:
        store = await ConversationStore.connect("memory://")
        await store.setup()
        return store

    chat = asyncio.run(make()).conversation(user_id="ada", thread_id="t")
    assert number_sources(find, chat).invoke({"topic": "x"}) == "[1] T1\n[2] T2\n\nx"
    other = ConversationStore(AsyncMongoMockClient()["x"]).conversation(
        user_id="ada", thread_id="t"
    )
    with pytest.raises(SyncUnsupportedError):
        number_sources(find, other).invoke({"topic": "x"})


@pytest.mark.parametrize(
    ("wrong", "chat_too"), [(7, False), ("search", False), (str, False), (search, True)]
)
def test_what_is_no_tool_or_no_conversation_is_refused(
    chat: Conversation, wrong: Any, chat_too: bool
) -> None:
    """Typed, when the wrapper is made."""
    with pytest.raises(InvalidInputError):
        number_sources(wrong, {"user_id": "ada"} if chat_too else chat)


class TestStandard(ToolsUnitTests):
    """LangChain's unit tests of tools."""

    @property
    def tool_constructor(self) -> BaseTool:
        """A wrapped tool."""
        store = ConversationStore(AsyncMongoMockClient()["x"])
        return number_sources(search, store.conversation(user_id="ada", thread_id="t"))

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        """Return arguments as a model sends them."""
        return {"topic": "seals"}


async def test_what_a_tool_says_of_itself_stays(chat: Conversation) -> None:
    """An agent ends after a tool that returns directly, tracing finds its tags, a provider its extras."""
    said = {"return_direct": True, "tags": ["a"], "metadata": {"b": 1}, "extras": {"c": 2}}
    wrapped = number_sources(search.model_copy(update=said), chat)
    assert {name: getattr(wrapped, name) for name in said} == said


async def test_an_artifact_without_sources_is_kept_with_them(
    chat: Conversation, store: ConversationStore
) -> None:
    """An extractor found the sources in the text; what the tool gave besides is not lost."""
    store.register_source_extractor(
        "grep", lambda message: [(line, {}) for line in message.text.splitlines()]
    )

    @tool(response_format="content_and_artifact")
    def grep(pattern: str) -> tuple[str, dict[str, int]]:
        """Find lines."""
        return f"{pattern} one\n{pattern} two", {"files": 7}

    answer = await ask(number_sources(grep, chat), pattern="x")
    assert answer.artifact["artifact"] == {"files": 7}
    assert len(answer.artifact["sources"]) == 2


def test_a_text_among_blank_ones_keeps_its_number() -> None:
    """A list in which only one text is a source is found again with its number, in an artifact of its own form."""
    message = ToolMessage("Seals sleep.", artifact=["Seals sleep.", " "], tool_call_id="1")
    numbered = with_numbers(message, sources_in(message, {}), ([7], [None]))
    assert numbered.content == "[7] Seals sleep."
    assert [source.kept_id for source in sources_in(numbered, {}).items] == [7]
