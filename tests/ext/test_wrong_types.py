"""A value of a wrong type is refused by a typed error where it is passed, by every function for applications."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from convstore import Conversation, ConversationStore, InvalidInputError
from convstore.ext.chat_history import ChatMessageHistory, with_message_history
from convstore.ext.claude_agent import ConvstoreSessionStore
from convstore.ext.langchain import ConversationMiddleware, resume_command
from convstore.ext.microsoft import ConvstoreHistoryProvider
from convstore.ext.openai_agents import ConvstoreSession
from convstore.ext.otel import observe
from convstore.ext.pydantic_ai import ConvstoreConversationStore
from convstore.ext.run_scope import scope_of
from convstore.ext.ui import read_request, resume_stream, ui_messages, ui_stream

pytestmark = pytest.mark.slow

SCOPE = {"user_id": "ada", "thread_id": "t"}
ASKED = {
    "id": "t",
    "messages": [{"id": "q1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}],
}
REQUEST = read_request(ASKED)
WRONG = [None, 1, 1.5, "x", b"x", object(), AIMessage("x")]


async def _chunks() -> Any:
    yield AIMessage("x")


def _claude(store: ConversationStore) -> ConvstoreSessionStore:
    return ConvstoreSessionStore(store, project="user_id", session="thread_id")


Call = Callable[[ConversationStore, Any], Any]

TAKES_CONVERSATION: dict[str, Call] = {
    "resume_command": lambda _, wrong: resume_command(wrong, "q1"),
    "ui_messages": lambda _, wrong: ui_messages(wrong),
    "resume_stream": lambda _, wrong: resume_stream(wrong),
    "UIRequest.turn": lambda _, wrong: REQUEST.turn(wrong),
    "ChatMessageHistory": lambda _, wrong: ChatMessageHistory(wrong),
}
TAKES_LIST: dict[str, Call] = {
    "ConvstoreSession": lambda store, wrong: ConvstoreSession(store, **SCOPE).add_items(wrong),
    "ChatMessageHistory": lambda store, wrong: ChatMessageHistory(
        store.conversation(**SCOPE)
    ).aadd_messages(wrong),
    "ConvstoreHistoryProvider": lambda store, wrong: ConvstoreHistoryProvider(
        store, user_id="ada"
    ).save_messages("t", wrong),
    "ConvstoreSessionStore": lambda store, wrong: _claude(store).append(
        {"project_key": "ada", "session_id": "t"}, wrong
    ),
}
OTHERS: list[tuple[Call, str]] = [
    (lambda store, _: resume_command(store.conversation(**SCOPE), ["q1"]), "turn_id"),
    (lambda store, _: resume_stream(store.conversation(**SCOPE), format="json"), "format"),
    (lambda store, _: resume_stream(store.conversation(**SCOPE), run_id=7), "run_id"),
    (lambda store, _: resume_stream(store.conversation(**SCOPE), client_tools="x"), "client_tools"),
    (lambda store, _: ConvstoreSession(store, **SCOPE).get_items("x"), "limit"),
    (lambda store, _: ConvstoreSession(store, **SCOPE).get_items(1.5), "limit"),
    (lambda store, _: ConvstoreSession(store, **SCOPE).run_compaction(1), "args"),
    (lambda store, _: ConvstoreHistoryProvider(store, options=1, user_id="ada"), "options"),
    (lambda store, _: ConvstoreSessionStore(store, project=None), "scope keys"),
    (lambda store, _: _claude(store).conversation({"project_key": "ada"}), "session_id"),
    (lambda store, _: _claude(store).load(None), "key must be a dict"),
    (lambda store, _: ConvstoreConversationStore(store, user_id="a").read_entry(None), "entry_id"),
    (lambda store, _: ConvstoreConversationStore(store, user_id="a").read_history([]), "head_id"),
    (
        lambda store, _: ConvstoreConversationStore(store, user_id="a").read_records(limit="x"),
        "limit",
    ),
    (lambda store, _: with_message_history(None, store), "runnable"),
    (lambda store, _: ConversationMiddleware(store, review=1), "review"),
    (lambda _, wrong: observe(wrong), "store"),
    (lambda _, wrong: scope_of(wrong), "store"),
    (lambda store, _: scope_of(store, config=1), "config"),
]


async def assert_refused(call: Call, store: ConversationStore, wrong: Any, said: str) -> None:
    """Make a call with a wrong value; its error says which one."""

    async def made() -> None:
        await call(store, wrong)

    with pytest.raises(InvalidInputError, match=said):
        await made()


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("name", TAKES_CONVERSATION)
async def test_what_is_no_conversation_is_refused(
    store: ConversationStore, name: str, wrong: Any
) -> None:
    """A store, too, which other functions take."""
    await assert_refused(TAKES_CONVERSATION[name], store, wrong, "chat must come from store.conv")
    await assert_refused(TAKES_CONVERSATION[name], store, store, "not ConversationStore")


@pytest.mark.parametrize(
    "wrong", [1, "x", b"x", {"a": 1}, [1], [None], object()], ids=lambda wrong: type(wrong).__name__
)
@pytest.mark.parametrize("name", TAKES_LIST)
async def test_what_is_no_list_of_messages_is_refused(
    store: ConversationStore, name: str, wrong: Any
) -> None:
    """Nor is a single message taken for one."""
    await assert_refused(TAKES_LIST[name], store, wrong, "must be a list, and each of them a")


@pytest.mark.parametrize(("call", "said"), OTHERS, ids=range(len(OTHERS)))
async def test_the_error_names_the_value(store: ConversationStore, call: Call, said: str) -> None:
    """No AttributeError of an inner function reaches the caller."""
    await assert_refused(call, store, None, said)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
async def test_a_stream_takes_a_turn_and_a_request(chat: Conversation, wrong: Any) -> None:
    """It is refused before the loop begins, while an endpoint can still answer with a status."""
    turn = await REQUEST.turn(chat)
    with pytest.raises(InvalidInputError, match="turn must be a TurnSession"):
        ui_stream(wrong, _chunks(), REQUEST)
    with pytest.raises(InvalidInputError, match="request must be a UIRequest"):
        ui_stream(turn, _chunks(), wrong)


LAST = ASKED["messages"][0]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "the body must be a JSON object, not list"),
        (ASKED | {"id": 1}, "id of the body must be a text; it is of type int"),
        ({"id": "t"}, "message of the body must be an object; it is missing"),
        (ASKED | {"messages": {}}, "messages of the body must be a list; it is of type dict"),
        (
            ASKED | {"messages": [{**LAST, "id": None}]},
            "id of the last message must be a text; it is missing",
        ),
        (
            ASKED | {"messages": [{**LAST, "parts": [{"type": "text", "text": 1}]}]},
            "text of a part must be a text; it is of type int",
        ),
        (
            ASKED | {"messages": [{**LAST, "parts": [{"type": "file", "url": 1}]}]},
            "url of a file must be a text; it is of type int",
        ),
    ],
    ids=range(7),
)
def test_the_error_of_a_request_says_where_the_value_is(body: Any, said: str) -> None:
    """The body and its messages have ids alike."""
    for given in (body, json.dumps(body)):
        with pytest.raises(InvalidInputError, match=said):
            read_request(given)
