"""What the pages say of the newest turn: a worker runs it, it waits for a person, or it broke off."""

from __future__ import annotations

import re
from contextlib import suppress

from conftest import text_in
from fixture_types import Browse
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore

CALL = AIMessage("", tool_calls=[{"name": "refund", "args": {"order": 7}, "id": "c"}], id="calling")
STOPPED = "The agent stopped before the result was recorded"


async def shown(browse: Browse, chat: Conversation, tab: str = "") -> str:
    """The text of a page of a conversation."""
    answer = await browse().get(f"/c/{(await chat.info()).conversation_id}{tab}")
    assert answer.status_code == 200, answer.text
    return text_in(answer.text)


async def test_a_running_turn_is_not_said_to_have_stopped(
    store: ConversationStore, browse: Browse
) -> None:
    """While a worker holds the turn, its call has no result yet."""
    chat = store.conversation(user_id="ada", thread_id="running")
    async with await chat.turn("q", human="Refund me?") as turn:
        await turn.append([CALL])
        page = await shown(browse, chat)
        live = await browse().get(f"/c/{(await chat.info()).conversation_id}")
        past = await browse().get(f"/c/{(await chat.info()).conversation_id}?at=2")
    assert "Refund me? running user_id" in page
    assert "script-src 'self'; connect-src 'self'" in live.headers["content-security-policy"]
    [script] = re.findall(r'<script src="(.*?)" defer></script>', live.text)
    assert (await browse().get(script)).headers["content-type"].startswith("text/javascript")
    assert re.search(r'<a href="[^"]*">Reload</a>', live.text)
    assert "<script" not in past.text
    assert "script-src" not in past.headers["content-security-policy"]
    over = await browse().get(f"/c/{(await chat.info()).conversation_id}")
    assert "<script" not in over.text
    assert "A worker runs this turn now" in page
    assert STOPPED not in page


async def test_a_turn_that_waits_names_the_tool(store: ConversationStore, browse: Browse) -> None:
    """Also once no worker holds it, and once another process looks."""
    chat = store.conversation(user_id="ada", thread_id="waiting")
    async with await chat.turn("q", human="Refund me?") as turn:
        await turn.append([CALL])
        await turn.wait_for(turn.open_calls[0])
    page = await shown(browse, chat)
    assert re.search(r"Refund me\? waits \d+ s: refund user_id", page)
    assert "The turn waits for a person" in page
    assert STOPPED not in page


async def test_a_turn_that_broke_off_says_why(store: ConversationStore, browse: Browse) -> None:
    """With the error of its worker; tabs that show the placeholder explain it as well."""
    chat = store.conversation(user_id="ada", thread_id="broken")
    with suppress(RuntimeError):
        async with await chat.turn("q", human="Refund me?") as turn:
            await turn.append([CALL])
            raise RuntimeError("the shop does not answer")
    page = await shown(browse, chat)
    assert "Refund me? broke off: RuntimeError: the shop does not answer user_id" in page
    assert STOPPED in page
    assert "no result, only in the view" in await shown(browse, chat, "/sent")


async def test_a_past_view_and_an_earlier_turn_say_only_that_there_was_no_result(
    store: ConversationStore, browse: Browse
) -> None:
    """How the turn ended was not known at that call; of an earlier turn nobody knows it."""
    chat = store.conversation(user_id="ada", thread_id="past")
    await chat.append([HumanMessage("Refund me?", id="q"), CALL, HumanMessage("Hello?", id="r")])
    stamp = (await chat.load_history()).stamp
    await chat.append(AIMessage("Sorry.", id="a"), stamp=stamp)
    for tab in ("?at=4", ""):
        page = await shown(browse, chat, tab)
        assert "The log had no result of this call yet" in page
        assert STOPPED not in page
        assert "broke off" not in page


async def test_a_stopped_turn_and_a_cut_answer_are_named(
    store: ConversationStore, browse: Browse
) -> None:
    """A finished turn has no label of its own."""
    chat = store.conversation(user_id="ada", thread_id="stopped")
    await chat.append([HumanMessage("Seals?", id="q")])
    assert await chat.stop("q")
    assert "Seals? stopped user_id" in await shown(browse, chat)
    cut = AIMessage("Because", id="cut", response_metadata={"finish_reason": "length"})
    await chat.append([HumanMessage("Why?", id="r"), cut])
    assert "Seals? cut off user_id" in await shown(browse, chat)
    await chat.append([HumanMessage("And?", id="s"), AIMessage("So.", id="b")])
    assert "Seals? user_id" in await shown(browse, chat)


async def test_a_result_after_the_summary_of_a_run_is_counted(
    store: ConversationStore, browse: Browse
) -> None:
    """A call that got its result is no missing one."""
    chat = store.conversation(user_id="ada", thread_id="whole")
    result = ToolMessage("Done.", tool_call_id="c", name="refund")
    await chat.append([HumanMessage("Refund me?", id="q"), CALL, result])
    page = await shown(browse, chat)
    assert "broke off: after refund user_id" in page
    assert "no result" not in page
