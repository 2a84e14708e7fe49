"""An agent searches the other conversations of its user, and never those of another."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from convstore import ConversationStore, InvalidInputError, search_conversations_tool
from convstore.exceptions import InvalidScopeError
from convstore.ext.langchain import ConversationMiddleware
from convstore.testing.samples import rag_turn


@pytest.fixture
async def store(database: Any) -> AsyncIterator[ConversationStore]:
    """A store."""
    store = ConversationStore(database)
    await store.setup()
    yield store
    await store.close()


@pytest.fixture
async def user(store: ConversationStore) -> str:
    """Ada, with three conversations; Eve has one of the same name."""
    user = uuid.uuid4().hex
    for thread, text in (
        ("now", "narwhals now"),
        ("then", "narwhals then"),
        ("long", "narwhal " * 4_000),
    ):
        chat = store.conversation(user_id=user, thread_id=thread)
        await chat.append([HumanMessage(text, id="m1"), AIMessage("I see.", id="m2")])
    await store.conversation(user_id=f"eve-{user}", thread_id="then").append(
        HumanMessage("narwhals SECRET", id="m1")
    )
    return user


def run_of(user: str, thread: str | None = "now") -> Any:
    """The configuration of a run."""
    return {"configurable": {"user_id": user} | ({"thread_id": thread} if thread else {})}


@pytest.mark.slow
async def test_the_other_conversations_are_searched(store: ConversationStore, user: str) -> None:
    """The tool searches the user's other conversations, not the run's own and not another user's.

    A reference reads the whole message, page by page.
    """
    tool = search_conversations_tool(store, page_tokens=1_000)
    answer = await tool.ainvoke({"find": "narwhals"}, run_of(user))
    assert "narwhals then" in answer
    assert "narwhals now" not in answer
    assert "SECRET" not in answer
    reference = answer.partition("[")[2].partition("]")[0]
    whole = await tool.ainvoke({"read": reference}, run_of(user))
    assert whole.splitlines()[1].startswith("narwhal")
    [group] = [
        conversation
        for conversation in (await store.search("narwhal", user_id=user)).conversations
        if conversation.scope["thread_id"] == "long"
    ]
    read, following = "", f"{group.conversation_id}.1"
    while following:
        page = await tool.ainvoke({"read": following}, run_of(user))
        body, _, more = page.partition("\n")[2].partition('\nMore: read="')
        read, following = read + body, more.rstrip('"')
    assert read == "narwhal " * 4_000


async def test_a_reference_is_checked_when_it_is_read(store: ConversationStore, user: str) -> None:
    """A forged reference, or one to a foreign, deleted or rewound message, is answered as missing."""
    tool = search_conversations_tool(store)
    hers = store.conversation(user_id=f"eve-{user}", thread_id="then")
    own = store.conversation(user_id=user, thread_id="then")
    references = [f"{(await chat.info()).conversation_id}.1" for chat in (hers, own)]
    assert "narwhals then" in await tool.ainvoke({"read": references[1]}, run_of(user))
    await own.rewind(before_id="m1")
    for reference in (
        *references,
        "x",
        "0" * 24 + ".1",
        f"{references[1]}@9",
        "a.b",
        "\x00",
        '{"$ne": ""}',
    ):
        assert "no such reference" in await tool.ainvoke({"read": reference}, run_of(user))
    await own.delete()
    assert "no such reference" in await tool.ainvoke({"read": references[1]}, run_of(user))


@pytest.mark.costly
@pytest.mark.parametrize(
    "arguments", [{}, {"find": ""}, {"find": None}, {"find": {"$ne": ""}}, {"find": "?!"}]
)
async def test_nothing_to_search_for_is_an_answer(
    store: ConversationStore, user: str, arguments: Any
) -> None:
    """Arguments without words to search for get an answer and raise no error."""
    answer = await search_conversations_tool(store).ainvoke(arguments, run_of(user))
    assert answer.startswith(("Pass words", "No match"))


async def test_a_run_without_the_key_is_refused(store: ConversationStore, user: str) -> None:
    """The keys come from the run alone; without a conversation of its own it searches all of the user."""
    tool = search_conversations_tool(store)
    with pytest.raises(InvalidScopeError, match="user_id"):
        await tool.ainvoke({"find": "narwhals", "user_id": user}, {"configurable": {}})
    assert "narwhals now" in await tool.ainvoke({"find": "narwhals"}, run_of(user, thread=None))
    for scope in ((), "user_id", ("color",), None):
        with pytest.raises(InvalidInputError, match="shared_keys"):
            search_conversations_tool(store, scope)


async def test_no_numbers_of_sources_are_shown(store: ConversationStore, user: str) -> None:
    """Source ids are not shown, because they belong to the other conversation."""
    await store.conversation(user_id=user, thread_id="rag").append(rag_turn("What about belugas?"))
    answer = await search_conversations_tool(store).ainvoke({"find": "belugas2w7"}, run_of(user))
    assert "result of search" in answer
    assert "source" not in answer.partition("\n")[0]


async def test_the_middleware_offers_it_on_request(store: ConversationStore) -> None:
    """The middleware offers the tool only if `search_other_conversations` is set."""
    assert [tool.name for tool in ConversationMiddleware(store).tools] == [
        "retrieve_previous_sources"
    ]
    middleware = ConversationMiddleware(store, search_other_conversations=("user_id",))
    assert [tool.name for tool in middleware.tools] == [
        "retrieve_previous_sources",
        "search_conversations",
    ]


async def test_a_tool_of_a_conversation_takes_its_scope(
    store: ConversationStore, user: str
) -> None:
    """The tool of a conversation searches under the scope of that conversation, whatever the scope of the run."""
    tool = search_conversations_tool(store.conversation(user_id=user, thread_id="then"))
    answer = await tool.ainvoke({"find": "narwhals"}, run_of(f"eve-{user}"))
    assert "narwhals now" in answer
    assert "SECRET" not in answer
