"""LangChain's chat message history on a conversation: what is given, what is added, alone and around chains."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from counting import Commands
from fixture_types import Client
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import tool
from pymongo import AsyncMongoClient
from scripted_agents import log_of

from convstore import ConversationStore, HistoryPolicy
from convstore.conversation import Conversation
from convstore.exceptions import (
    ContentConflictError,
    InvalidInputError,
    InvalidScopeError,
    SyncUnsupportedError,
    TurnClosedError,
)
from convstore.ext.chat_history import ChatMessageHistory, SessionHistories, with_message_history
from convstore.messages.tokens import count
from convstore.testing.samples import new_id, rag_turn, same_messages
from convstore.types import Dropped

pytestmark = pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")


@pytest.fixture(scope="module")
async def store(server_uri: str, database_name: str) -> AsyncIterator[ConversationStore]:
    """A store of its own client on the real server, so sync callers are served too."""
    uri = f"{server_uri.partition('?')[0].rstrip('/')}/{database_name}_history?{server_uri.partition('?')[2]}"
    async with await ConversationStore.connect(uri) as store:
        await store.setup()
        yield store
        await store._client.drop_database(f"{database_name}_history")


def config_of(chat: Conversation) -> Any:
    """The configuration of a run in a conversation."""
    return {"configurable": chat.scope}


def texts_of(messages: list[BaseMessage]) -> list[str]:
    """Type and text of messages."""
    return [f"{message.type}: {message.text}" for message in messages]


class Parrot(GenericFakeChatModel):
    """A scripted model that may be given tools."""

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        """Itself: what it calls is in the script."""
        return self


def parrot(*answers: AIMessage | str) -> BaseChatModel:
    """A model that gives these answers."""
    return Parrot(
        messages=iter(
            AIMessage(answer) if isinstance(answer, str) else answer for answer in answers
        )
    )


# ---------------------------------------------------------------------------------------------------------------------
# The history alone


async def test_it_gives_the_view(chat: Conversation) -> None:
    """aget_messages() returns the messages of `load_history` under the same policy, and reports what they lack."""
    thought: Any = [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]
    await chat.append([*rag_turn("Where are whales?"), AIMessage(thought), HumanMessage("Seals?")])
    for policy in (None, HistoryPolicy(stub_tools="never"), HistoryPolicy(provider="openai")):
        dropped = list[Dropped]()
        history = ChatMessageHistory(chat, policy, on_dropped=dropped.extend)
        given = await history.aget_messages()
        assert same_messages(given, (await chat.load_history(policy)).messages)
        is_adapted = policy is not None and policy.provider
        assert [part.part for part in dropped] == (["reasoning"] if is_adapted else [])


async def test_what_is_added_is_in_the_log(chat: Conversation) -> None:
    """Every helper of LangChain's class appends: messages, one message, a user's text, a model's text."""
    history = ChatMessageHistory(chat)
    await history.aadd_messages([SystemMessage("Be brief.")])
    await asyncio.to_thread(history.add_user_message, "Hi")
    await asyncio.to_thread(history.add_ai_message, "Hello")
    await asyncio.to_thread(history.add_message, HumanMessage("Bye"))
    assert texts_of(await log_of(chat)) == [
        "system: Be brief.",
        "human: Hi",
        "ai: Hello",
        "human: Bye",
    ]


async def test_the_same_objects_again_add_nothing(chat: Conversation) -> None:
    """A call that failed is repeated with the same messages."""
    messages = [HumanMessage("Hi"), AIMessage("Hello")]
    for _ in range(2):
        await ChatMessageHistory(chat).aadd_messages(messages)
    assert texts_of(await log_of(chat)) == ["human: Hi", "ai: Hello"]


@pytest.mark.parametrize(
    "policy", [HistoryPolicy(), HistoryPolicy(max_turns=1), HistoryPolicy(view="conversation")]
)
async def test_a_view_that_comes_back_is_not_appended(chat: Conversation, policy: Any) -> None:
    """Stubs, the note and results that stand for missing ones never get into the log; what is new does."""
    lone = AIMessage("", id=new_id(), tool_calls=[{"name": "search", "args": {}, "id": "lone"}])
    before = [
        *rag_turn("Where are whales?"),
        HumanMessage("?", id=new_id()),
        lone,
        HumanMessage("!", id=new_id()),
    ]
    await chat.append(before)
    history = ChatMessageHistory(chat, policy)
    view = await history.aget_messages()
    assert not same_messages(view, before)
    await history.aadd_messages([*view, HumanMessage("Next")])
    assert same_messages((await log_of(chat))[:-1], before)
    assert (await log_of(chat))[-1].text == "Next"


async def test_a_changed_message_is_refused(chat: Conversation) -> None:
    """A message of the log that comes back with a text that no view shows is an error, and nothing is appended."""
    turn = rag_turn("Where are whales?")
    await chat.append(turn)
    forged = ToolMessage("forged", id=turn[2].id, tool_call_id=turn[2].tool_call_id)
    with pytest.raises(ContentConflictError):
        await ChatMessageHistory(chat).aadd_messages([HumanMessage("new"), forged])
    assert same_messages(await log_of(chat), turn)


async def test_clear_deletes(chat: Conversation) -> None:
    """Afterwards nothing is left, and what is added begins a new conversation; both ways, one after the other."""
    history = ChatMessageHistory(chat)
    for clear in (history.aclear, lambda: asyncio.to_thread(history.clear)):
        await history.aadd_messages([HumanMessage("Hi", id="one")])
        await asyncio.to_thread(history.add_messages, [AIMessage("Hello", id="two")])
        await clear()
        assert (await history.aget_messages(), await log_of(chat)) == ([], [])
    await history.aadd_messages([HumanMessage("again", id="one")])
    assert texts_of(await log_of(chat)) == ["human: again"]
    assert await asyncio.to_thread(lambda: texts_of(history.messages)) == ["human: again"]


@pytest.mark.parametrize("is_sync", [False, True])
async def test_what_is_added_after_clear_is_kept(chat: Conversation, is_sync: bool) -> None:
    """Sync and async callers of one store know at once of a deletion by the other; nothing goes to what was deleted."""
    history = ChatMessageHistory(chat)
    await history.aadd_messages([HumanMessage("old")])
    await asyncio.to_thread(history.add_messages, [AIMessage("older")])
    if is_sync:
        await asyncio.to_thread(history.clear)
        await history.aadd_messages([HumanMessage("new")])
    else:
        await history.aclear()
        await asyncio.to_thread(history.add_messages, [HumanMessage("new")])
    other = ConversationStore(chat.store._client.get_default_database())
    assert texts_of(await log_of(other.conversation(**chat.scope))) == ["human: new"]


async def test_clear_may_rewind(chat: Conversation) -> None:
    """With ``clear="rewind"`` the messages leave the view, stay in the log, and can be brought back."""
    history = ChatMessageHistory(chat, clear="rewind")
    await history.aclear()
    await chat.append([HumanMessage("Hi"), AIMessage("Hello")])
    await history.aclear()
    await history.aclear()
    assert await history.aget_messages() == []
    assert texts_of(await log_of(chat)) == ["human: Hi", "ai: Hello"]
    assert await chat.undo_rewind() == 2


async def test_sync_calls_work_inside_a_running_loop(chat: Conversation) -> None:
    """A sync method that is called in a coroutine waits and answers; it does not deadlock."""
    history = ChatMessageHistory(chat)
    history.add_messages([HumanMessage("Hi")])
    assert texts_of(history.messages) == ["human: Hi"]
    assert str(history) == "Human: Hi"
    history.clear()
    assert history.messages == []


async def test_sync_calls_on_a_foreign_client_say_what_to_do(server_uri: str) -> None:
    """On a store that works on the caller's client each sync method names `connect` and the async method."""
    async with AsyncMongoClient[dict[str, Any]](server_uri) as client:
        history = ChatMessageHistory(
            ConversationStore(client["none"]).conversation(user_id="a", thread_id="t")
        )
        calls = {
            "aget_messages": lambda: history.messages,
            "aadd_messages": lambda: history.add_messages([HumanMessage("Hi")]),
            "aclear": history.clear,
        }
        for name, call in calls.items():
            with pytest.raises(
                SyncUnsupportedError, match=rf"await history\.{name}.*ConversationStore\.connect"
            ):
                call()


@pytest.mark.parametrize(
    "wrong", [{"chat": "ada"}, {"policy": {"max_turns": 1}}, {"clear": "forget"}]
)
async def test_nonsense_is_refused(chat: Conversation, wrong: dict[str, Any]) -> None:
    """Arguments of other types are refused when the history is made."""
    with pytest.raises(InvalidInputError):
        ChatMessageHistory(**{"chat": chat, **wrong})


# ---------------------------------------------------------------------------------------------------------------------
# Around chains


async def test_a_chain_is_given_the_view_and_appends(
    store: ConversationStore, chat: Conversation
) -> None:
    """With a prompt and a key for the history, each run sees the runs before it, async and sync."""
    shown: list[list[str]] = []

    def watch(value: Any) -> Any:
        shown.append(texts_of(value.to_messages()))
        return value

    prompt = ChatPromptTemplate(
        [("system", "Be brief."), MessagesPlaceholder("history"), ("human", "{question}")]
    )
    chain = with_message_history(
        prompt | RunnableLambda(watch) | parrot("One.", "Two.", "Three."),
        store,
        input_messages_key="question",
        history_messages_key="history",
    )
    await chain.ainvoke({"question": "First?"}, config_of(chat))
    await chain.ainvoke({"question": "Second?"}, config_of(chat))
    answer = await asyncio.to_thread(chain.invoke, {"question": "Third?"}, config_of(chat))
    asked = ["human: First?", "ai: One.", "human: Second?", "ai: Two.", "human: Third?"]
    assert (answer.text, shown[-1]) == ("Three.", ["system: Be brief.", *asked])
    assert texts_of(await log_of(chat)) == [*asked, "ai: Three."]


async def test_a_bare_model_is_given_the_view_and_appends(
    store: ConversationStore, chat: Conversation
) -> None:
    """With messages in and a message out, the view in front of the input is not appended again."""
    await chat.append(rag_turn("Where are whales?"))
    chain = with_message_history(parrot("Hello", "Bye"), store)
    await chain.ainvoke([HumanMessage("Hi")], config_of(chat))
    await chain.ainvoke([HumanMessage("That is all", id="mine")], config_of(chat))
    assert texts_of(await log_of(chat))[4:] == [
        "human: Hi",
        "ai: Hello",
        "human: That is all",
        "ai: Bye",
    ]


async def test_an_answer_has_the_stamp_of_its_view(
    store: ConversationStore, chat: Conversation
) -> None:
    """An answer has the stamp of its view. view_at() reports it as adapted, since the question came with the answer."""
    await chat.append(rag_turn("Where are whales?"))
    history = await chat.load_history()
    await with_message_history(parrot("Hello"), store).ainvoke(
        [HumanMessage("Hi")], config_of(chat)
    )
    *_, answer = await chat.list_messages()
    past = await chat.view_at(answer.stamp)
    assert (past.match, past.difference, past.messages) == ("differs", "adapted", history.messages)
    assert answer.stamp
    question = count(store.token_counter, HumanMessage("Hi"))
    assert answer.stamp.parts == answer.stamp.parts._replace(now=question)


async def test_nothing_is_lost_when_others_append_meanwhile(
    store: ConversationStore, chat: Conversation
) -> None:
    """A run appends its own messages, whatever was appended to the conversation while it ran."""
    await chat.append([HumanMessage("Hi"), AIMessage("Hello")])

    async def answer(_messages: list[BaseMessage]) -> AIMessage:
        await chat.append([HumanMessage("elsewhere"), AIMessage("there")])
        return AIMessage("mine")

    chain = with_message_history(RunnableLambda(answer), store)
    await chain.ainvoke([HumanMessage("question")], config_of(chat))
    assert texts_of(await log_of(chat))[2:] == [
        "human: elsewhere",
        "ai: there",
        "human: question",
        "ai: mine",
    ]


@pytest.mark.costly
@pytest.mark.parametrize("given", [None, "mine"])
async def test_an_agent_whose_output_repeats_its_input(
    store: ConversationStore, chat: Conversation, given: str | None
) -> None:
    """An agent gives its whole state back; the log has every message once, results in full with their artifacts."""

    @tool(response_format="content_and_artifact")
    def search(query: str) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
        """Search."""
        return "found " * 200, [("text " * 200, {"title": query})]

    calls = [
        AIMessage("", tool_calls=[{"name": "search", "args": {"query": "x"}, "id": f"c{n}"}])
        for n in range(2)
    ]
    agent = create_agent(parrot(calls[0], "One.", calls[1], "Two."), [search])
    chain = with_message_history(
        agent, store, input_messages_key="messages", output_messages_key="messages"
    )
    for number in range(2):
        question = HumanMessage(f"Question {number}", id=given and f"{given}-{number}")
        await chain.ainvoke({"messages": [question]}, config_of(chat))
    log = await log_of(chat)
    assert [message.type for message in log] == ["human", "ai", "tool", "ai"] * 2
    assert {message.text for message in log if message.type == "tool"} == {"found " * 200}
    assert all(message.artifact for message in log if isinstance(message, ToolMessage))


async def test_a_stream_is_still_a_stream_and_is_appended(
    store: ConversationStore, chat: Conversation
) -> None:
    """Chunks come one by one; the whole message is in the log at the end."""
    chain = with_message_history(parrot("one two three"), store)
    chunks = [chunk.text async for chunk in chain.astream([HumanMessage("count")], config_of(chat))]
    assert len(chunks) > 1
    assert texts_of(await log_of(chat)) == ["human: count", "ai: one two three"]


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_run_that_can_not_be_appended_fails(
    store: ConversationStore, chat: Conversation, is_sync: bool
) -> None:
    """LangChain logs what goes wrong in a history and goes on; here the caller gets the error."""
    await chat.append([HumanMessage("other", id="taken")])
    reply = AIMessage("Hello", id="taken")
    chain = with_message_history(RunnableLambda(lambda _: reply), store)
    given = [HumanMessage("Hi")], config_of(chat)
    run = asyncio.to_thread(chain.invoke, *given) if is_sync else chain.ainvoke(*given)
    with pytest.raises(ContentConflictError):
        await run
    assert texts_of(await log_of(chat)) == ["human: other"]


@pytest.mark.parametrize("is_sync", [False, True])
@pytest.mark.parametrize(
    ("text", "refusal"), [("Hi", TurnClosedError), ("Other", ContentConflictError)]
)
async def test_no_model_is_asked_for_a_question_whose_id_is_taken(
    store: ConversationStore,
    chat: Conversation,
    text: str,
    refusal: type[Exception],
    is_sync: bool,
) -> None:
    """The append at the end of the run would be refused; a question with a new id is asked."""
    asked = list[Any]()
    key = "question" if is_sync else None

    def answer(value: Any) -> AIMessage:
        asked.append(value)
        return AIMessage("Hello")

    chain = with_message_history(RunnableLambda(answer), store, input_messages_key=key)

    async def run(text: str, id_: str) -> None:
        question = HumanMessage(text, id=id_)
        value = {key: question} if key else [question]
        if is_sync:
            await asyncio.to_thread(chain.invoke, value, config_of(chat))
        else:
            await chain.ainvoke(value, config_of(chat))

    await run("Hi", "q1")
    with pytest.raises(refusal):
        await run(text, "q1")
    assert len(asked) == 1
    await run(text, "q2")
    said = ["human: Hi", "ai: Hello", f"human: {text}", "ai: Hello"]
    assert (len(asked), texts_of(await log_of(chat))) == (2, said)


async def test_a_question_that_a_view_showed_is_no_other_one(
    store: ConversationStore, chat: Conversation
) -> None:
    """Its image is a placeholder there."""
    image = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}
    question = HumanMessage([{"type": "text", "text": "Hi"}, image], id="q1")
    await chat.append([question, AIMessage("Hello"), HumanMessage("And?"), AIMessage("No.")])
    [shown, *_] = (await chat.load_history()).messages
    assert shown.content != question.content
    chain = with_message_history(parrot("Again."), store)
    await chain.ainvoke([shown, HumanMessage("Sure?", id="q2")], config_of(chat))
    assert texts_of(await log_of(chat))[-2:] == ["human: Sure?", "ai: Again."]


@pytest.mark.slow
async def test_two_conversations_do_not_mix(store: ConversationStore) -> None:
    """Each run works on the conversation that its configuration names, also when runs of several overlap."""
    chain = with_message_history(
        RunnableLambda(lambda messages: AIMessage(f"{len(messages)}")), store
    )
    chats = [
        store.conversation(user_id=user, thread_id=new_id())
        for user in ("ada", "bob", "eve")
        for _ in range(3)
    ]
    for _ in range(3):
        await asyncio.gather(
            *(
                chain.ainvoke([HumanMessage(str(conversation.scope))], config_of(conversation))
                for conversation in chats
            )
        )
    for chat in chats:
        question = f"human: {chat.scope}"
        assert texts_of(await log_of(chat)) == [
            question,
            "ai: 1",
            question,
            "ai: 3",
            question,
            "ai: 5",
        ]


async def test_the_user_may_be_fixed(store: ConversationStore, chat: Conversation) -> None:
    """With the user fixed, one value is left; existing code passes it as ``session_id``, by place."""
    histories = SessionHistories(store, scope={"user_id": "ada"})
    chain = RunnableWithMessageHistory(parrot("Hello"), histories)
    thread = chat.scope["thread_id"]
    await chain.ainvoke([HumanMessage("Hi")], {"configurable": {"session_id": thread}})
    assert texts_of(await log_of(chat)) == ["human: Hi", "ai: Hello"]
    assert histories(thread).chat.scope == histories(session_id=thread).chat.scope == chat.scope


async def test_a_whole_scope_may_be_fixed(store: ConversationStore, chat: Conversation) -> None:
    """With a scope that is fixed for the chain, a run needs no configuration."""
    chain = with_message_history(parrot("Hello"), store, scope=chat.scope)
    await chain.ainvoke([HumanMessage("Hi")])
    assert texts_of(await log_of(chat)) == ["human: Hi", "ai: Hello"]


@pytest.mark.parametrize("value", [{"$ne": ""}, "", "x" * 600, "\ud800", None])
async def test_hostile_session_ids_are_refused(
    store: ConversationStore, value: dict[str, Any] | str | None
) -> None:
    """An invalid scope value is refused before anything is read."""
    chain = with_message_history(parrot("Hello"), store)
    with pytest.raises(InvalidScopeError):
        await chain.ainvoke(
            [HumanMessage("Hi")], {"configurable": {"user_id": value, "thread_id": "t"}}
        )


async def test_a_fixed_value_can_not_be_overridden(store: ConversationStore) -> None:
    """A run cannot name another user than the one that the application fixed."""
    histories = SessionHistories(store, scope={"user_id": "ada"})
    for values, named in ((("t",), {"user_id": "bob"}), (("t", "u"), {}), ((), {"other": "t"})):
        with pytest.raises(InvalidScopeError):
            histories(*values, **named)
    with pytest.raises(InvalidScopeError):
        SessionHistories(store, scope={"nobody": "x"})


async def test_a_run_that_fails_appends_nothing(
    store: ConversationStore, chat: Conversation
) -> None:
    """Input and output are appended together, so there is no question without its answer."""

    def fail(_messages: Any) -> AIMessage:
        raise RuntimeError(uuid.uuid4().hex)

    with pytest.raises(RuntimeError):
        await with_message_history(RunnableLambda(fail), store).ainvoke(
            [HumanMessage("Hi")], config_of(chat)
        )
    assert await log_of(chat) == []


async def test_a_mark_of_somebody_else_is_no_mark(chat: Conversation) -> None:
    """Only what the store made for a view is left out; an application may use the same key for something of its own."""
    history = ChatMessageHistory(chat)
    await history.aadd_messages([HumanMessage("Hi", additional_kwargs={"convstore": {"x": 1}})])
    assert texts_of(await log_of(chat)) == ["human: Hi"]


async def test_many_messages_that_come_back_are_not_appended(chat: Conversation) -> None:
    """More than one call may ask for: all of them are compared with what views show."""
    turn = rag_turn("What about seals?")
    first = [HumanMessage(f"q{number}", id=new_id()) for number in range(250)]
    await chat.append([*first, *turn, HumanMessage("next", id=new_id())])
    view = (await chat.load_history(HistoryPolicy(max_tokens=None))).messages
    await ChatMessageHistory(chat).aadd_messages([*view, AIMessage("new", id=new_id())])
    assert [message.text for message in (await log_of(chat))[255:]] == ["new"]


async def test_messages_that_come_back_are_read_in_pages(
    client: Client, commands: Commands, database_name: str
) -> None:
    """Messages that a chain returns are looked up in pages: a long view takes a few commands."""
    store = ConversationStore(client[database_name])
    await store.setup()
    chat = store.conversation(user_id="ada", thread_id=new_id())
    await chat.append(
        [*rag_turn("What about seals?"), *(HumanMessage(f"q{number}") for number in range(150))]
    )
    view = (await chat.load_history(HistoryPolicy(max_tokens=None))).messages
    commands.reset()
    await ChatMessageHistory(chat).aadd_messages([*view, AIMessage("new")])
    assert len(commands.sent) <= 12
    await store.close()


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_history_of_a_run_shows_what_was_done_to_it(
    store: ConversationStore, chat: Conversation, is_sync: bool
) -> None:
    """Returned messages belong to the caller; after an addition or a clearing the view is loaded again."""
    [history] = [SessionHistories(store)(**chat.scope)]

    async def do(name: str, *values: Any) -> None:
        await (
            asyncio.to_thread(getattr(history, name), *values)
            if is_sync
            else getattr(history, f"a{name}")(*values)
        )

    async def shown() -> list[BaseMessage]:
        return await (
            asyncio.to_thread(lambda: history.messages) if is_sync else history.aget_messages()
        )

    (await shown()).append(HumanMessage("not said"))
    assert await shown() == []
    await do("add_messages", [HumanMessage("Hi")])
    assert texts_of(await shown()) == ["human: Hi"]
    await do("clear")
    assert await shown() == []
