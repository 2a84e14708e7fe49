"""What the pages say is true: the policy of the application, past views that stay past, sizes of the same moment."""

from __future__ import annotations

import re

import httpx
import pytest
from conftest import text_in
from fixture_types import Browse
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore, HistoryPolicy, InvalidInputError
from convstore.ext.inspector import EVERYTHING, inspector
from convstore.testing.samples import new_id, rag_turn
from convstore.types import ViewStamp

SMALL = HistoryPolicy(max_tokens=400, stub_tools="never")


async def talk(store: ConversationStore, policy: HistoryPolicy | None, *, turns: int = 6) -> Conversation:
    """A conversation whose application loads every view under a policy and appends its stamp."""
    chat = store.conversation(user_id="ada", thread_id=new_id())
    for number in range(turns):
        await chat.append(HumanMessage(f"Question {number}? {'Please explain. ' * 12}"))
        stamp = (await chat.load_history(policy)).stamp
        await chat.append(AIMessage(f"Answer {number}."), stamp=stamp)
    return chat


async def address(chat: Conversation) -> str:
    """The path of the page of a conversation."""
    return f"/c/{(await chat.info()).conversation_id}"


async def body(client: httpx.AsyncClient, path: str) -> str:
    """The body of a page that must be there."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_the_next_call_is_shown_under_the_policy_of_the_newest_stamp(
    store: ConversationStore, browse: Browse
) -> None:
    """The next call is shown under the policy of the newest stamp, which the application loads too.

    The page of the conversation and the page of a message both name that policy.
    """
    chat = await talk(store, SMALL, turns=9)
    loaded, here = await chat.load_history(SMALL), await address(chat)
    assert loaded.tokens < (await chat.load_history()).tokens
    shown = text_in(await body(browse(), here))
    assert f"{loaded.tokens:,} of 400 tokens" in shown
    named = "max_tokens=400,stub_tools=never, as in the last call"
    assert named in shown
    message = text_in(await body(browse(), f"{here}/messages/1"))
    assert "left out" in message
    assert named in message
    exported = (await browse().get(f"{here}/view.json")).json()
    assert len(exported) == len(loaded.messages)


async def test_without_a_stamp_the_policy_is_that_of_the_store(store: ConversationStore, browse: Browse) -> None:
    """Without a stamp the view has the policy of the store, and the page says that no call has a stamp."""
    store.policy = HistoryPolicy(max_tokens=777)
    chat = store.conversation(user_id="ada", thread_id="plain")
    await chat.append(rag_turn("What about orcas?"))
    assert "max_tokens=777, of the store, as no call has a stamp" in text_in(await body(browse(), await address(chat)))


async def test_a_policy_that_this_version_does_not_know_is_passed_over(
    store: ConversationStore, browse: Browse
) -> None:
    """The newest stamp that can be read counts."""
    chat = await talk(store, SMALL, turns=2)
    id_ = (await chat.info()).conversation_id
    await chat.append([HumanMessage("And?"), AIMessage("So.")], stamp=ViewStamp(conversation_id=id_, policy={"new": 1}))
    assert "max_tokens=400,stub_tools=never" in text_in(await body(browse(), f"/c/{id_}"))


async def test_a_given_policy_is_taken_where_no_call_has_its_own(store: ConversationStore) -> None:
    """For the next call and for moments without a stamp; a stamped call keeps its policy."""
    chat, given = await talk(store, SMALL), HistoryPolicy(max_tokens=200)
    await chat.append(HumanMessage("Last?"))
    transport = httpx.ASGITransport(inspector(store, authorize=lambda _: EVERYTHING, policy=given))
    async with httpx.AsyncClient(transport=transport, base_url="http://inspector") as client:
        here = await address(chat)
        for path in (here, f"{here}?at=13"):
            assert "max_tokens=200, chosen for these pages" in text_in(await body(client, path))
        assert "max_tokens=400,stub_tools=never, that of the call" in text_in(await body(client, f"{here}?at=12"))
    with pytest.raises(InvalidInputError, match="policy"):
        inspector(store, authorize=lambda _: EVERYTHING, policy=400)


async def test_links_of_a_past_view_stay_in_it(browse: Browse, chat: Conversation, here: str) -> None:
    """Links of a past view lead to pages of the same moment, or to pages that are not of a moment.

    The title of a past view names its moment.
    """
    client = browse()
    now = await body(client, here)
    waiting, seen = [f"{here}?at=9"], set[str]()
    while waiting and len(seen) < 60:
        path = waiting.pop()
        seen.add(path)
        page = await body(client, path)
        if "/view.json" in path:
            continue
        links = {link.replace("&amp;", "&").partition("#")[0] for link in re.findall(r' href="(/c/[^"]+)"', page)}
        elsewhere = {link for link in links if "at=9" not in link}
        own = {
            link
            for link in elsewhere
            if link in (here, f"{here}/sent", f"{here}/changes", f"{here}/tools") or re.fullmatch(r".*\?at=\d+", link)
        }
        assert elsewhere == own, path
        waiting += links - elsewhere - seen
    assert {text.partition("?")[0].removeprefix(here).rpartition("/")[0] for text in seen} >= {"/messages", "/sources"}
    for tag in ("title", "h1"):
        then = re.search(rf"<{tag}[^>]*>(.*?)</{tag}>", await body(client, f"{here}?at=9"), re.DOTALL)[1]
        assert "as of message 9" in text_in(then)
        assert then != re.search(rf"<{tag}[^>]*>(.*?)</{tag}>", now, re.DOTALL)[1]


async def test_a_message_opened_from_a_past_view_shows_what_the_model_got_then(
    browse: Browse, store: ConversationStore
) -> None:
    """A result is whole in the view of its turn, and a stub later."""
    chat = store.conversation(user_id="ada", thread_id="then")
    for topic in ("orcas", "seals"):
        for message in rag_turn(f"What about {topic}?"):
            seen = (await chat.load_history()).stamp if message.type == "ai" else None
            await chat.append(message, stamp=seen)
    here, client = await address(chat), browse()
    then, now = [text_in(await body(client, f"{here}/messages/3{query}")) for query in ("?at=4", "")]
    assert "What the model got of it for message 4 whole" in then
    assert "What the model gets of it stub" in now
    assert (await client.get(f"{here}/messages/3?at=99")).status_code == 404


async def test_a_search_from_a_past_view_finds_what_was_there(browse: Browse, store: ConversationStore) -> None:
    """No message that came later."""
    chat = store.conversation(user_id="ada", thread_id="search")
    await chat.append([HumanMessage("Orcas?"), AIMessage("Whales.")])
    await chat.append([HumanMessage("More orcas?"), AIMessage("No.")])
    here, client = await address(chat), browse()
    assert '<input type="hidden" name="at" value="2">' in await body(client, f"{here}?at=2")
    assert '#m3"' in await body(client, f"{here}/search?q=orcas")
    assert '#m3"' not in await body(client, f"{here}/search?q=orcas&at=2")


async def test_what_a_page_of_the_log_leaves_out_is_said(store: ConversationStore, browse: Browse) -> None:
    """An image is named there; the page of the message has all of it."""
    chat = store.conversation(user_id="ada", thread_id="image")
    picture = "QUJD" * 300
    await chat.append([HumanMessage([{"type": "image", "base64": picture, "mime_type": "image/png"}]), AIMessage("A.")])
    here, client = await address(chat), browse()
    log = await body(client, here)
    assert picture not in log
    assert picture in await body(client, f"{here}/messages/1")


@pytest.mark.parametrize("failure", ["status", "content", "stub"])
async def test_a_failed_call_is_marked(store: ConversationStore, browse: Browse, failure: str) -> None:
    """By its status or by its content, also once a stub stands for it, at call and result; a good one is not."""
    chat = store.conversation(user_id="ada", thread_id=failure)
    calls = [{"name": "look_up", "args": {}, "id": id_} for id_ in ("bad", "good")]
    text = '{"success": false, "error": "no such order"}' + " " * (10_000 if failure == "stub" else 0)
    status = "error" if failure == "status" else "success"
    bad = ToolMessage("Timeout" if failure == "status" else text, tool_call_id="bad", status=status)
    good = ToolMessage('{"success": true}', tool_call_id="good")
    await chat.append([HumanMessage("Q?"), AIMessage("", tool_calls=calls), bad, good, AIMessage("A.")])
    here, client = await address(chat), browse()
    rows = (await body(client, here)).split('<li class="m p-')[1:]
    assert [row.count(">failed</span>") for row in rows] == [0, 1, 1, 0, 0]
    for ordinal, is_marked in ((3, True), (4, False)):
        assert (">failed</span>" in await body(client, f"{here}/messages/{ordinal}")) is is_marked
