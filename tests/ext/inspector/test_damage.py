"""The inspector where a stored document is damaged: what can be read is shown, and the page names the rest."""

from __future__ import annotations

import html
from typing import Any

import pytest
from conftest import text_in
from fixture_types import Browse
from langchain_core.messages import AIMessage, HumanMessage

from convstore import Conversation, ConversationStore
from convstore.ext.inspector import EVERYTHING, inspector
from convstore.testing.samples import rag_turn

COMMAND = "convstore doctor --scope user_id=ada --scope 'thread_id=on seals'"


@pytest.fixture
async def turns(store: ConversationStore) -> Conversation:
    """Two finished turns with large results, and one in progress, which views show whole."""
    chat = store.conversation(user_id="ada", thread_id="on seals")
    for topic in ("orcas", "seals"):
        await chat.append(rag_turn(f"What about {topic}?", sources=8))
    await chat.append([HumanMessage("So?"), AIMessage("So.")])
    await chat.append(rag_turn("What about whales?", sources=8)[:-1])
    return chat


def database_of(store: ConversationStore) -> Any:
    """The database of a store in memory."""
    return store._services.driver.database


async def entries(store: ConversationStore) -> list[Any]:
    """All entries, in order."""
    found = database_of(store)["log"].find({"first": {"$exists": True}})
    return sorted(await found.to_list(None), key=lambda entry: entry["_id"])


async def damage_payload(store: ConversationStore, entry: Any) -> None:
    """Change a byte in the middle of the payloads of an entry."""
    log = database_of(store)["log"]
    for chunk in await log.find({"data": {"$exists": True}}).to_list(None):
        if chunk["_id"].split("#")[1] in repr(entry):
            data = bytearray(chunk["data"])
            data[len(data) // 2] ^= 255
            await log.update_one({"_id": chunk["_id"]}, {"$set": {"data": bytes(data)}})


def browse_again(browse: Browse, store: ConversationStore) -> Any:
    """The pages of a store that has nothing cached."""
    client: Any = browse()
    client._transport.app = inspector(
        ConversationStore(database_of(store)), authorize=lambda _: EVERYTHING
    )
    return client


async def test_a_damaged_result_is_marked_on_the_page(
    browse: Browse, store: ConversationStore, turns: Conversation
) -> None:
    """The page shows the stub of a result whose payload is damaged, the record, and the command that checks it."""
    await damage_payload(store, (await entries(store))[0])
    answer = await browse_again(browse, store).get(f"/c/{(await turns.info()).conversation_id}")
    text = html.unescape(text_in(answer.text))
    assert answer.status_code == 200
    assert text.count("damaged document '") == 1
    assert COMMAND in text
    assert "What about whales?" in text
    assert "As sent" in text


async def test_an_answer_that_cites_a_damaged_result_is_shown(
    browse: Browse, store: ConversationStore
) -> None:
    """Beside what the model gets, without links to the sources, which cannot be read."""
    chat = store.conversation(user_id="ada", thread_id="on seals")
    await chat.append([*rag_turn("What about orcas?", sources=8)[:-1], AIMessage("Fish [1].")])
    await chat.append([HumanMessage("So?"), AIMessage("So.")])
    await damage_payload(store, (await entries(store))[0])
    answer = await browse_again(browse, store).get(f"/c/{(await chat.info()).conversation_id}")
    text = html.unescape(text_in(answer.text))
    assert answer.status_code == 200
    assert "damaged document '" in text
    assert "As sent" in text
    assert "Fish [1]." in text


@pytest.mark.costly
@pytest.mark.parametrize("part", ["payload", "body", "whole entry"])
@pytest.mark.parametrize("place", [0, 3])
async def test_a_conversation_without_a_view_shows_the_messages_that_can_be_read(
    browse: Browse, store: ConversationStore, turns: Conversation, part: str, place: int
) -> None:
    """Where no view can be made, the log stands alone: sound messages, and the damaged ones with what is wrong."""
    entry, log = (await entries(store))[place], database_of(store)["log"]
    if part == "payload":
        await damage_payload(store, entry)
    elif part == "body":
        await log.update_one({"_id": entry["_id"]}, {"$set": {"messages.0.body": b"x"}})
    else:
        await log.update_one({"_id": entry["_id"]}, {"$set": {"messages": 7}})
    client, id_ = browse_again(browse, store), (await turns.info()).conversation_id
    answer = await client.get(f"/c/{id_}")
    text = html.unescape(text_in(answer.text))
    assert answer.status_code == 200
    assert "damaged document '" in text
    assert COMMAND in text
    assert "What about seals?" in text
    assert "So." in text


async def test_the_other_pages_name_the_record_and_the_command(
    browse: Browse, store: ConversationStore, turns: Conversation
) -> None:
    """A page about the view says which document is damaged, what to run, and where the readable messages are."""
    entry = (await entries(store))[3]
    await damage_payload(store, entry)
    client, id_ = browse_again(browse, store), (await turns.info()).conversation_id
    for page in ("sent", "changes", "tools", "view.json", "messages/12", "search?q=whales"):
        answer = await client.get(f"/c/{id_}/{page}")
        text = html.unescape(text_in(answer.text))
        assert (answer.status_code, "A stored document is damaged" in text) == (500, True)
        assert f"document '{id_}#" in text
        assert COMMAND in text
        assert f'href="/c/{id_}"' in answer.text


async def test_a_damaged_conversation_does_not_hide_the_list(
    browse: Browse, store: ConversationStore, turns: Conversation
) -> None:
    """A first message that cannot be read leaves its row without a question; all others stay."""
    await store.conversation(user_id="eve", thread_id="t").append(HumanMessage("On squid?"))
    id_ = (await turns.info()).conversation_id
    own = next(entry for entry in await entries(store) if entry["conversation"] == id_)
    await database_of(store)["log"].update_one(
        {"_id": own["_id"]}, {"$set": {"messages.0.body": b"x"}}
    )
    answer = await browse_again(browse, store).get("/")
    assert answer.status_code == 200
    assert "On squid?" in html.unescape(text_in(answer.text))
    assert id_ in answer.text


@pytest.mark.slow
async def test_a_damaged_log_is_read_in_pages(
    browse: Browse, store: ConversationStore, turns: Conversation
) -> None:
    """A long log without a view has a page for each 25 messages, from the end back to the beginning."""
    for number in range(30):
        await turns.append(HumanMessage(f"Question {number}?"))
    info = await turns.info()
    await database_of(store)["heads"].update_one({}, {"$set": {"details": {"title": "x"}}})
    client = browse_again(browse, store)
    newest = await client.get(f"/c/{info.conversation_id}")
    assert "Question 29?" in newest.text
    older = info.message_count - 24
    assert f"?before={older}" in newest.text
    page = await client.get(f"/c/{info.conversation_id}?before={older}")
    assert "Question 4?" in page.text
    assert "What about whales?" in page.text
    assert f"?after={older - 1}" in page.text
