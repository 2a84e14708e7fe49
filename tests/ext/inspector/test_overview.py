"""The overview has a window and marks for a log of any length, and "Go to" finds messages and sources."""

from __future__ import annotations

import re

import httpx
import pytest
from conftest import text_in
from fixture_types import Browse
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore
from convstore.ext.inspector.overview import MARKS, Overview
from convstore.ext.inspector.strip import Bar, Scale, Strip
from convstore.ext.model_calls import ModelCall
from convstore.values.stamps import TURN_ENDED, ViewParts, ViewStamp

STAMP = ViewStamp(conversation_id="c", tokens=100, parts=ViewParts(turn=100))


def marks(number: int) -> list[ModelCall]:
    """Calls of a long log, every second message; every hundredth has failed, and every other one of them broke."""
    return [
        ModelCall(
            ordinal,
            f"a{ordinal}",
            (),
            STAMP,
            cut_by="turns left out" if ordinal % 400 == 0 else "",
            failed=int(ordinal % 200 == 0),
        )
        for ordinal in range(2, 2 * number + 1, 2)
    ]


def test_any_number_of_calls_has_at_most_150_bars() -> None:
    """The window has its calls, and what comes before and after it is found."""
    for number in (0, 1, 149, 150, 151, 6_000):
        overview = Overview(marks(number), None)
        assert len(overview.buckets) <= 150
        assert sum(len(bucket.calls) for bucket in overview.buckets) == number
        assert len(overview.rows) == min(number, max(50, number * 3 // 150))
        assert sum(width for _, width, *_ in overview.links()) == overview.width
    overview = Overview(marks(6_000), 6_000)
    assert (overview.rows[0].ordinal, overview.rows[-1].ordinal) == (6_000, 6_238)
    assert [first for first, *_, is_shown in overview.links() if is_shown] == [5_762]
    assert overview.neighbours(MARKS["bad"][0]) == (60, 5_800, 6_400)
    assert overview.neighbours(MARKS["ink"][0]) == (30, 5_600, 6_400)
    assert overview.neighbours(MARKS["mark"][0]) == (0, 0, 0)
    left, width = overview.window
    assert left <= 8 * 75 <= left + width <= overview.width
    assert len(re.findall("M", overview.paths()["turn"])) == 150


async def test_a_long_log_is_read_for_a_time(
    store: ConversationStore, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says how far it came, and links to the rest; each visit goes on where the one before ended."""
    monkeypatch.setattr("convstore.ext.inspector.overview._PAGE", 4)
    monkeypatch.setattr("convstore.ext.inspector.overview._SECONDS", 0)
    chat = store.conversation(user_id="ada", thread_id="long")
    for _ in range(7):
        stamp = (await chat.load_history()).stamp
        await chat.append([HumanMessage("Why?"), AIMessage("So.")], stamp=stamp)
    client = browse()
    here = f"/c/{(await chat.info()).conversation_id}/overview"
    for read in ("messages 1 to 4 read", "messages 1 to 8 read"):
        page = (await client.get(here)).text
        assert read in text_in(page)
        assert f'href="{here}?whole=1">Read the rest</a>' in page
    whole = text_in((await client.get(f"{here}?whole=1")).text)
    assert "14 messages read" in whole
    assert "Read the rest" not in whole
    at_once = text_in((await browse().get(f"{here}?whole=1")).text)
    assert re.sub(r"\d+ ms", "", at_once) == re.sub(r"\d+ ms", "", whole)


def test_labels_of_the_strip_have_room() -> None:
    """Five digits of 12 pixels take 34."""
    for ordinal, step in ((9_999, 28), (12_000, 44)):
        assert Strip([Bar(ordinal, {"turn": 1})], Scale(1, None), 0, 0).step == step


def test_the_strip_marks_breaks_as_the_overview_does() -> None:
    """Those at a turn's end are hollow."""
    causes = ("", TURN_ENDED, "summary made")
    bars = [Bar(2, {"turn": 1}, cut_by=cause) for cause in causes]
    calls = [ModelCall(2, "a", (), STAMP, cut_by=cause) for cause in causes]
    for paths in (Strip(bars, Scale(1, None), 0, 0).paths(), Overview(calls, None).paths()):
        assert [paths[mark].count("M") for mark in ("hollow", "ink")] == [1, 1]


async def test_a_call_has_its_failures_and_its_sub_agent(
    store: ConversationStore, browse: Browse
) -> None:
    """A result that was rewound counts, too: it was paid for. The page follows a change of the log."""
    chat = store.conversation(user_id="ada", thread_id="t")
    here = f"/c/{await started(chat)}/overview"
    client = browse()
    assert rows(await client.get(here)) == {
        2: "\u2013 0",
        5: "\u2013 1 sub-agent \u201cNo.\u201d",
        7: "\u2013 0",
    }
    await chat.rewind(before_id="calls")
    assert rows(await client.get(here))[5] == "\u2013 1 rewound sub-agent \u201cNo.\u201d"
    assert (await client.get(f"{here}?from=x")).status_code == 404


async def started(chat: Conversation) -> str:
    """Append a turn, and one with a failed call of a sub-agent; return the id of the conversation."""
    await chat.append([HumanMessage("Hello?"), AIMessage("Yes.")])
    await chat.append(HumanMessage("Refund?"))
    await chat.append(HumanMessage("Please."))
    calls = [{"name": "refund", "args": {}, "id": "c"}]
    failed = ToolMessage("Timeout", tool_call_id="c", status="error", id="result")
    await chat.append([AIMessage("", tool_calls=calls, id="calls"), failed, AIMessage("Sorry.")])
    await chat.child("calls", "c").append([HumanMessage("Pay."), AIMessage("No.")])
    return (await chat.info()).conversation_id


def rows(answer: httpx.Response) -> dict[int, str]:
    """The text of each row, by the ordinal of the call."""
    assert answer.status_code == 200, answer.text
    found = re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', answer.text, re.DOTALL)
    return {int(text_in(name)): text_in(row) for name, row in found}


async def test_a_page_of_other_messages_than_its_call_says_which(
    store: ConversationStore, browse: Browse
) -> None:
    """After "Go to" the head is about the next call, and the messages are earlier ones."""
    chat = store.conversation(user_id="ada", thread_id="long")
    for number in range(20):
        await chat.append([HumanMessage(f"{number}?"), AIMessage("Yes.")])
    here, client = f"/c/{(await chat.info()).conversation_id}", browse()
    went = text_in((await client.get(here, params={"go": "6"}, follow_redirects=True)).text)
    assert "The next call, if it were made now; below, messages 3 to 26" in went
    assert "; below, messages" not in text_in((await client.get(here)).text)
    assert "; below, messages" not in text_in((await client.get(here, params={"at": "6"})).text)
    assert re.search(
        r"40 messages read in \d+ ms", text_in((await client.get(f"{here}/overview")).text)
    )


async def test_go_to_takes_ordinals_ids_and_sources(chat: Conversation, browse: Browse) -> None:
    """Each leads to its page, and keeps the call from which it was asked; anything else is not found."""
    here = f"/c/{(await chat.info()).conversation_id}"
    [answer] = await chat.get_tool_messages(["answer-2"])
    message = f"{here}?at=5&after={answer.ordinal - 4}#m{answer.ordinal}"
    client = browse()
    for name, expected in {
        f"{answer.ordinal}": message,
        f" m{answer.ordinal} ": message,
        "answer-2": message,
        "[4]": f"{here}/sources/4?at=5",
    }.items():
        found = await client.get(here, params={"at": "5", "go": name})
        assert found.status_code == 303
        assert (
            str(found.next_request.url if found.next_request else "")
            == f"http://inspector{expected}"
        )
        assert (await client.get(expected)).status_code == 200
    prompt = await client.get(here, params={"go": "answer-2", "as": "sent"}, follow_redirects=True)
    assert prompt.url.path == f"{here}/sent"
    assert prompt.url.query == f"at={answer.ordinal}".encode()
    assert f'/sent?at={answer.ordinal}"' in (await client.get(message)).text
    for name in ("nothing", "[4", "-1", "", "\u0664"):
        assert (await client.get(here, params={"go": name})).status_code == 404
