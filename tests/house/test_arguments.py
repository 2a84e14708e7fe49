"""Invalid arguments of the public API are refused where they are passed, by an error that says what is valid."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from mongomock_motor import AsyncMongoMockClient

from convstore import (
    Conversation,
    ConversationStore,
    HistoryPolicy,
    InvalidInputError,
    StoreUnavailableError,
    number_sources,
    retrieve_previous_sources_tool,
    search_conversations_tool,
)
from convstore.admin.retention import Retention
from convstore.exceptions import InvalidScopeError
from convstore.ext.chat_history import ChatMessageHistory, SessionHistories
from convstore.ext.langchain import ConversationMiddleware
from convstore.ext.langgraph import load_node
from convstore.store.handle import StoreOptions
from convstore.summarization import HeadTailSummarizer
from convstore.transfer import export_conversations
from convstore.types import ProviderRules
from convstore.values.scope import check_number
from convstore.values.usage import check_prices

MEMORY = AsyncMongoMockClient()

TAKES_ANYTHING: dict[str, Callable[[Conversation, Any], Any]] = {
    "wait_seconds": lambda chat, value: chat.turn("q", human="?", wait_seconds=value),
    "types": lambda chat, value: chat.search("whales", types=value),
    "older_than": lambda chat, value: chat.store.prune(older_than=value),
    "type": lambda chat, value: chat.store.register_artifact_type(value),
    "prefix": lambda _, value: ConversationStore(MEMORY["x"], collection_prefix=value),
    "seconds": lambda _, value: ConversationStore(MEMORY["x"], compaction_seconds=value),
    "keys": lambda chat, value: search_conversations_tool(chat.store, shared_keys=value),
    "api": lambda chat, value: chat.retrieve_previous_sources_tool().to_openai(api=value),
    "format": lambda chat, value: export_conversations(chat.store, print, format=value),
    "provider": lambda _, value: ProviderRules.named(value),
    "prices": lambda _, value: check_prices({"gpt-5": value}),
}

TAKES_POLICY: dict[str, Callable[[Conversation, Any], Any]] = {
    "store": lambda _, policy: ConversationStore(AsyncMongoMockClient()["x"], policy=policy),
    "history": ChatMessageHistory,
    "histories": lambda chat, policy: SessionHistories(chat.store, policy=policy),
    "middleware": lambda chat, policy: ConversationMiddleware(chat.store, policy=policy),
    "node": lambda chat, policy: load_node(chat.store, policy=policy),
}


@pytest.fixture
def database() -> Any:
    """A database in memory."""
    return AsyncMongoMockClient()["arguments"]


@pytest.fixture
async def chat(database: Any) -> Conversation:
    """An empty conversation."""
    store = ConversationStore(database)
    await store.setup()
    return store.conversation(user_id="ada", thread_id="t")


@pytest.mark.costly
@pytest.mark.parametrize("wrong", [{"max_tokens": 5}, {}, "default", 0], ids=repr)
@pytest.mark.parametrize("take", TAKES_POLICY.values(), ids=TAKES_POLICY)
def test_what_is_no_policy_is_refused_where_it_is_passed(
    chat: Conversation, take: Callable[[Conversation, Any], Any], wrong: Any
) -> None:
    """A value that is not a policy is refused when a store or an integration is made, never taken for the default."""
    with pytest.raises(
        InvalidInputError, match=f"policy must be a HistoryPolicy, not {type(wrong).__name__}"
    ):
        take(chat, wrong)


@pytest.mark.parametrize("wrong", [{"max_tokens": 5}, {}, "default", 0], ids=repr)
async def test_what_is_no_policy_is_refused_by_a_load(chat: Conversation, wrong: Any) -> None:
    """load_history() refuses a value that is not a policy, even if the value is empty."""
    with pytest.raises(
        InvalidInputError, match=f"policy must be a HistoryPolicy, not {type(wrong).__name__}"
    ):
        await chat.load_history(wrong)


@pytest.mark.parametrize("name", TAKES_ANYTHING)
async def test_a_refused_value_is_shown_in_short(chat: Conversation, name: str) -> None:
    """A long or deep value is refused as any other; the error has a few characters of it."""
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    for value in (deep, ["x" * 10_000] * 500):
        with pytest.raises(InvalidInputError) as caught:
            await TAKES_ANYTHING[name](chat, value)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("wrong", [0, -1, 1.5, 1_001, True, "2"], ids=repr)
async def test_a_turn_reserves_whole_numbers(chat: Conversation, wrong: Any) -> None:
    """Half a number would be added to the totals of the log, which nothing could read then."""
    async with await chat.turn("q", human="?") as turn:
        with pytest.raises(InvalidInputError, match="number must be a whole number from 1 to 1000"):
            await turn.reserve(wrong)
        assert await turn.reserve(2) == range(1, 3)
        await turn.append(AIMessage("Whales."))


@pytest.mark.parametrize("name", ["message", "by"])
@pytest.mark.parametrize("wrong", [None, 5, ["x"]], ids=repr)
async def test_a_decision_is_told_in_texts(chat: Conversation, name: str, wrong: Any) -> None:
    """The error names the argument, in words of this package."""
    with pytest.raises(InvalidInputError) as caught:
        await chat.decide("q", "result", "reject", **{name: wrong})
    assert str(caught.value) == f"{name} must be a str, not {wrong!r}"


async def test_a_failure_is_told_in_the_content(chat: Conversation) -> None:
    """A text as `error` is refused, as the model would not see it."""
    call = {"name": "search", "args": {}, "id": "c"}
    async with await chat.turn("q", human="?") as turn:
        await turn.append(AIMessage("", tool_calls=[call]))
        with pytest.raises(InvalidInputError, match="error must be True or False, not 'no city'"):
            await turn.add_result(turn.open_calls[0], error="no city")
        await turn.add_result(turn.open_calls[0], "no city", error=True)
        await turn.finish()


FLAGS = [
    pytest.param(owner, name, parameter.name, id=f"{name}-{parameter.name}")
    for owner in (Conversation, ConversationStore)
    for name, method in inspect.getmembers(owner, inspect.isfunction)
    for parameter in inspect.signature(method).parameters.values()
    if type(parameter.default) is bool and not name.startswith("_")
]


@pytest.mark.parametrize("wrong", ["no", 1, None], ids=repr)
@pytest.mark.parametrize(("owner", "name", "flag"), FLAGS)
async def test_a_flag_is_true_or_false(
    chat: Conversation, owner: type, name: str, flag: str, wrong: Any
) -> None:
    """Anything else is refused before it is taken for one: an erasure is no rehearsal with `dry_run=None`."""
    method = getattr(chat if owner is Conversation else chat.store, name)
    required = [
        HumanMessage("?") if parameter.name == "messages" else "seals"
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    named = {"older_than": timedelta(days=1)} if name == "prune" else {}

    async def call() -> None:
        found = method(*required, **named, **{flag: wrong})
        await (anext(found) if inspect.isasyncgen(found) else found)

    with pytest.raises(InvalidInputError, match=f"{flag} must be True or False, not"):
        await call()


@pytest.mark.parametrize("wrong", ["user_id", 0, "", [("user_id", "ada")], True], ids=repr)
def test_the_scope_of_all_runs_is_a_mapping(chat: Conversation, wrong: Any) -> None:
    """An empty text is not taken for no scope."""
    with pytest.raises(InvalidScopeError, match="scope must be a mapping of scope values, not"):
        SessionHistories(chat.store, scope=wrong)


@pytest.mark.parametrize("wrong", [{}, {"$ne": ""}, {1: 2}, {"name": "x", "tools": 1}], ids=repr)
def test_rules_of_a_provider_have_known_options(wrong: Any) -> None:
    """Rules from a file are refused by an error that says what they have too much or too little."""
    with pytest.raises(InvalidInputError, match="provider has wrong options: "):
        HistoryPolicy(provider=wrong)


@pytest.mark.parametrize("key", [2, None, True, b"x", (1,)], ids=repr)
async def test_metadata_and_state_have_texts_as_keys(chat: Conversation, key: Any) -> None:
    """Another key, which a row of a listing cannot have, is refused before it hides all rows."""
    await chat.append(HumanMessage("?"))
    with pytest.raises(InvalidInputError, match="each key of metadata must be a str"):
        await chat.update(metadata={"a": 1, key: 3})
    with pytest.raises(InvalidInputError, match="each key of changes must be a str"):
        await chat.state.update({"a": 1, key: 3})
    assert (await chat.info()).metadata == {}
    await chat.update(metadata={"a": {key: 3}})
    [info] = (await chat.store.list_conversations(everything=True)).conversations
    assert info.metadata == {"a": {key: 3}}


def test_a_store_that_is_to_summarise_has_a_summarizer() -> None:
    """The store that lacks it can not be made, and says what it lacks."""
    database, policy = AsyncMongoMockClient()["x"], HistoryPolicy(compact="before_load")
    with pytest.raises(InvalidInputError, match='compact="before_load" needs a summarizer'):
        ConversationStore(database, policy=policy)
    assert (
        ConversationStore(database, policy=policy, summarizer=HeadTailSummarizer()).policy is policy
    )


@pytest.mark.parametrize("limit", [0, -1, 1_001, None, True, 1.0, "20"], ids=repr)
async def test_both_listings_take_the_same_limits(chat: Conversation, limit: Any) -> None:
    """Both listings refuse a wrong limit in the same words, with the bounds and the value."""
    expected = f"limit must be a whole number from 1 to 1000, not {limit!r}"
    with pytest.raises(InvalidInputError) as of_messages:
        await chat.list_messages(limit=limit)
    with pytest.raises(InvalidInputError) as of_conversations:
        await chat.store.list_conversations(everything=True, limit=limit)
    assert (str(of_messages.value), str(of_conversations.value)) == (expected, expected)


@pytest.mark.parametrize("limit", [1, 1_000])
async def test_the_bounds_themselves_are_allowed(chat: Conversation, limit: int) -> None:
    """The limits 1 and 1,000 are allowed."""
    await chat.append(HumanMessage("hi"))
    assert len(await chat.list_messages(limit=limit)) == 1
    assert (
        len((await chat.store.list_conversations(everything=True, limit=limit)).conversations) == 1
    )


def test_the_error_about_a_number_without_a_maximum_says_so() -> None:
    """The text has only the bound that there is."""
    assert check_number(10**30, name="jobs", minimum=1) == 10**30
    with pytest.raises(InvalidInputError, match=r"^jobs must be a whole number from 1, not 0$"):
        check_number(0, name="jobs", minimum=1)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("turn_id", lambda chat, id_: chat.get_turn(id_)),
        ("turn_id", lambda chat, id_: chat.turn(id_, human="hi")),
        ("message_id", lambda chat, id_: chat.annotate(id_, seen=True)),
        ("before_id", lambda chat, id_: chat.rewind(before_id=id_)),
        ("before_id", lambda chat, id_: chat.undo_rewind(before_id=id_)),
    ],
)
async def test_one_id_is_called_by_the_name_of_its_argument(
    chat: Conversation, name: str, ask: Callable[[Conversation, Any], Any]
) -> None:
    """An error about a single id names its argument, not an index in a list."""
    for wrong, problem in ((3, "must be a plain str, not int"), ("", "must not be empty")):
        with pytest.raises(InvalidInputError) as caught:
            await ask(chat, wrong)
        assert str(caught.value) == f"{name} {problem}"


async def test_a_page_of_sources_begins_and_goes_on_with_what_a_page_gives(
    chat: Conversation,
) -> None:
    """The first page is asked for with None, as of a listing, and the next with `next_cursor`."""
    found = [{"content": f"Passage {n}. " * 60} for n in range(4)]
    call = {"name": "search", "args": {}, "id": "c"}
    asked = [HumanMessage("?"), AIMessage("", tool_calls=[call])]
    await chat.append(
        [*asked, ToolMessage("see artifact", artifact=found, name="search", tool_call_id="c")]
    )
    cursor, texts = None, ""
    while True:
        page = await chat.get_sources("1-4", cursor=cursor, page_tokens=100)
        texts += "".join(source.content for source in page.sources)
        if (cursor := page.next_cursor) is None:
            break
    assert texts == "".join(message["content"] for message in found)
    assert await chat.get_sources("1-4", cursor="", page_tokens=100) == await chat.get_sources(
        "1-4", page_tokens=100
    )


@pytest.mark.parametrize("scope", [{}, {"user_id": "ada"}], ids=repr)
@pytest.mark.parametrize("everything", [0, 1, "false", None], ids=repr)
async def test_everything_is_said_by_true_alone(
    chat: Conversation, everything: Any, scope: dict[str, Any]
) -> None:
    """A text such as "false" does not erase everything, and the error shows the argument."""
    await chat.append(HumanMessage("kept"))
    with pytest.raises(
        InvalidInputError, match=f"everything must be True or False, not {everything!r}"
    ):
        await chat.store.erase(everything=everything, **scope)
    assert len(await chat.list_messages()) == 1


@tool
def find(text: str) -> list[dict[str, str]]:
    """Find."""
    return [{"content": text}]


@pytest.mark.parametrize("name", ["find", "retrieve_previous_sources"])
async def test_a_tool_for_many_conversations_says_where_to_name_one(
    chat: Conversation, name: str
) -> None:
    """Without a scope key the error names the ways to pass it, in the terms of the integrations."""
    tools = {
        tool.name: tool
        for tool in (number_sources(find, chat.store), retrieve_previous_sources_tool(chat.store))
    }
    with pytest.raises(
        InvalidScopeError, match="lacks thread_id: pass it in the run's context or in config"
    ):
        await tools[name].ainvoke({"text": "whales"}, {"configurable": {"user_id": "ada"}})


def test_a_tool_for_many_conversations_wants_a_store(chat: Conversation) -> None:
    """A conversation has a tool of its own."""
    with pytest.raises(
        InvalidInputError, match="store must be a ConversationStore, not Conversation"
    ):
        retrieve_previous_sources_tool(chat)


@pytest.mark.parametrize("who", ["itself", "another"])
async def test_a_deletion_is_forgotten_though_the_removal_after_it_fails(
    database: Any, chat: Conversation, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """The store forgets a conversation once it is ended, by any process."""
    await chat.append(HumanMessage("old"))
    if who == "another":
        await ConversationStore(database).conversation(**chat.scope).delete()
    assert len(chat.store._known.all()) == 1

    async def fail(*_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(Retention, "_documents", fail)
    with pytest.raises(StoreUnavailableError):
        await chat.delete()
    assert chat.store._known.all() == []


def test_connect_takes_the_options_of_a_store() -> None:
    """Editors and type checkers know each of them, with its type."""
    options = [
        parameter
        for parameter in inspect.signature(ConversationStore).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    assert StoreOptions.__annotations__.keys() == {option.name for option in options}
    assert [annotation.__forward_arg__ for annotation in StoreOptions.__annotations__.values()] == [
        option.annotation for option in options
    ]
