"""The list is a form: what each of its fields keeps, what its rows say, and that its numbers are those of the API."""

from __future__ import annotations

import asyncio
import csv
import html
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from conftest import text_in
from fixture_types import Browse
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from convstore import Conversation, ConversationStore, HistoryPolicy
from convstore.exceptions import InvalidInputError
from convstore.ext.inspector import EVERYTHING, inspector
from convstore.ext.inspector.list_selection import reason_for_more
from convstore.integration import host_of
from convstore.types import ConversationInfo, SearchResult
from convstore.values.list_rows import ConversationEnd, ListRow, scope_choices

ARROWS = " \u2039\u203a"
NOT_KNOWN = "\u2013"
CALL = AIMessage("", tool_calls=[{"name": "refund", "args": {}, "id": "c"}], id="calling")


async def listed(browse: Browse, **query: str) -> str:
    """The body of the list."""
    answer = await browse(lambda _: EVERYTHING).get("/", params=query)
    assert answer.status_code == 200, answer.text
    return answer.text


def questions(body: str) -> list[str]:
    """The titles of the rows, in order."""
    return re.findall(r'<th scope="row".*?<bdi>([^<]*)</bdi>', body, re.DOTALL)


def chips(body: str) -> dict[str, int]:
    """The numbers on the buttons of the form, by the labels."""
    return {text.rpartition(" ")[0]: int(text.rpartition(" ")[2]) for text in buttons(body)}


def buttons(body: str) -> list[str]:
    """The texts of the buttons of states."""
    return re.findall(r'name="show"[^>]*aria-pressed="\w+"[^>]*>([^<]*)</button>', body)


@pytest.fixture
async def states(store: ConversationStore) -> AsyncIterator[ConversationStore]:
    """A store with a conversation in each state, the first of them the oldest; one is running."""

    def chat(name: str, user: str = "ada") -> Conversation:
        return store.conversation(user_id=user, thread_id=name)

    done = chat("done")
    await done.append(HumanMessage("Done?", id="q"))
    usage = {"input_tokens": 900, "output_tokens": 80, "total_tokens": 980}
    answer = AIMessage("Yes.", id="a", usage_metadata=usage)
    await done.append(answer, stamp=(await done.load_history()).stamp)
    full = chat("full", "grace")
    await full.append(HumanMessage("Full? " + "Please explain. " * 40))
    tokens = (await full.info()).tokens
    stamp = (await full.load_history(HistoryPolicy(max_tokens=tokens * 10 // 9))).stamp
    await full.append(AIMessage("No."), stamp=stamp)
    async with await chat("waits").turn("q", human="Waits?") as turn:
        await turn.append([CALL])
        await turn.wait_for(turn.open_calls[0])
    with suppress(RuntimeError):
        async with await chat("broken").turn("q", human="Broken?") as turn:
            result = ToolMessage("Timeout", tool_call_id="c", status="error")
            await turn.append([CALL, result])
            raise RuntimeError("no shop")
    await chat("asked").append(HumanMessage("Asked?"))
    await asyncio.sleep(0.002)  # lists are sorted by time, which is stored in milliseconds
    await done.annotate("q", rating=1)
    await done.annotate("a", rating=-1, comment="wrong")
    for name, reason in (("cut", "length"), ("refused", "refusal")):
        said = AIMessage("Because", response_metadata={"stop_reason": reason})
        await chat(name).append([HumanMessage(f"{name.capitalize()}?"), said])
        await asyncio.sleep(0.002)
    async with await chat("running").turn("q", human="Running?") as turn:
        await turn.append([CALL])
        yield store


async def test_each_state_is_a_button_with_its_number(
    states: ConversationStore, browse: Browse
) -> None:
    """A button keeps the conversations in its state, and the one that is pressed gives all of them back."""
    body = await listed(browse)
    assert len(questions(body)) == 8
    assert "8 conversations; 6 of these need attention." in text_in(body)
    assert chips(body) == {
        "needs attention": 6,
        "waits": 1,
        "running": 1,
        "broke off": 1,
        "no answer": 1,
        "failed tools": 1,
        "cut off": 1,
        "refused": 1,
        "rated down": 1,
        "over 80 %": 1,
    }
    assert "broke off" not in chips(await listed(browse, q="waits"))
    kept = {
        "attention": ["Refused?", "Cut?", "Asked?", "Broken?", "Waits?"],
        "waiting": ["Waits?"],
        "running": ["Running?"],
        "interrupted": ["Broken?"],
        "asked": ["Asked?"],
        "failed": ["Broken?"],
        "down": ["Done?"],
        "cut": ["Cut?"],
        "refused": ["Refused?"],
    }
    for chip, expected in kept.items():
        found = await listed(browse, show=chip)
        assert questions(found)[: len(expected)] == expected, chip
        assert chips(found).items() - chips(body).items() <= {("rated down", 1)}
        assert 'name="show" value="" aria-pressed="true"' in found
    [crowded] = questions(await listed(browse, show="full"))
    assert crowded.startswith("Full?")


async def test_a_call_waits_also_after_a_hint_of_the_user(
    store: ConversationStore, browse: Browse
) -> None:
    """The last message belongs to the turn, and is neither a question nor a decision."""
    chat = store.conversation(user_id="ada", thread_id="hint")
    async with await chat.turn("q", human="Refund?") as turn:
        await turn.append([CALL])
        await turn.wait_for(turn.open_calls[0])
    await chat.append(HumanMessage("Please hurry."), turn="q")
    assert questions(await listed(browse, show="waiting")) == ["Refund?"]
    async with await chat.turn("q") as turn:
        assert turn.is_waiting


async def test_a_call_of_another_answer_waits_also_after_a_message_of_no_turn(
    store: ConversationStore, browse: Browse
) -> None:
    """The turn has an answer, and the last entry is not of the variant that waits."""
    chat = store.conversation(user_id="ada", thread_id="note")
    async with await chat.turn("q", human="Refund?") as turn:
        await turn.append(AIMessage("No."))
    async with await chat.turn("q", regenerate="click") as turn:
        await turn.append([CALL])
        await turn.wait_for(turn.open_calls[0])
    await chat.append(AIMessage("The shop closes at six."))
    assert questions(await listed(browse, show="waiting")) == ["Refund?"]


async def test_a_title_does_not_change_since_when_a_person_is_asked(
    store: ConversationStore,
) -> None:
    """The age of a turn that waits is that of its last entry; a title moves the conversation's own date."""
    chat = store.conversation(user_id="ada", thread_id="titled")
    async with await chat.turn("q", human="Refund?") as turn:
        await turn.append([CALL])
        await turn.wait_for(turn.open_calls[0])
    asked = (await chat.info()).updated_at
    await asyncio.sleep(0.002)  # dates are in milliseconds
    await chat.update(title="Refunds")
    info = await chat.info()
    assert asked
    assert info.updated_at
    assert info.updated_at > asked
    [row] = await host_of(chat).rows([info])
    assert row.end.since == asked


async def test_a_conversation_without_a_turn_has_no_state(store: ConversationStore) -> None:
    """Such as one that begins with a message of the assistant: it was said to be finished."""
    chat = store.conversation(user_id="ada", thread_id="greeting")
    await chat.append(AIMessage("Welcome."))
    [row] = await host_of(chat).rows([await chat.info()])
    assert row.end.status == ""


async def test_a_row_says_what_its_turn_is_doing_and_what_it_cost(
    states: ConversationStore, browse: Browse
) -> None:
    """State with its age, the tool that waits or the error; billed tokens, and a dash for what is not known."""
    body = await listed(browse)
    rows = {
        questions(row)[0]: text_in(row).replace(NOT_KNOWN, "-")
        for row in re.findall(r"<tr><th scope=\"row\".*?</tr>", body, re.DOTALL)
    }
    assert re.search(r"waits \d+ s: refund", rows["Waits?"])
    assert "running" in rows["Running?"]
    assert "broke off: RuntimeError: no shop" in rows["Broken?"]
    assert re.search(r"no answer \d+ s", rows["Asked?"])
    assert "cut off" in rows["Cut?"]
    assert "refused" in rows["Refused?"]
    info = await states.conversation(user_id="ada", thread_id="done").info()
    assert info.last_call
    share = round(100 * info.last_call.tokens / 32_000)
    assert rows["Done?"] == (
        f"Done? ada / done rated down 1 {info.tokens} {info.last_call.tokens} {share} % "
        "900 / 80 - just now"
    )


async def test_words_scope_time_and_order_are_fields_of_one_form(
    states: ConversationStore, browse: Browse
) -> None:
    """Together they keep what all of them keep; the address names no scope value."""
    assert questions(await listed(browse, q="broken")) == ["Broken?"]
    assert questions(await listed(browse, q="broken", show="waiting")) == []
    body = await listed(browse)
    [option] = re.findall(r'<option value="(user_id:\w+)">user_id = ada \(7\)</option>', body)
    assert "ada" not in option
    assert len(questions(await listed(browse, scope=option))) == 7
    assert questions(await listed(browse, order="full"))[0].startswith("Full?")
    assert questions(await listed(browse, order="billed"))[0] == "Done?"
    assert len(questions(await listed(browse, since="1h"))) == 8
    for query in ({"show": "x"}, {"since": "x"}, {"order": "x"}, {"from": "x"}):
        answer = await browse(lambda _: EVERYTHING).get("/", params=query)
        assert answer.status_code == 404, query


async def test_sums_and_exports_are_of_what_the_form_selects(
    states: ConversationStore, browse: Browse
) -> None:
    """By scope value, metadata, model and tool; an export has the columns of the list, and runs no formula."""
    for name in ("done", "broken"):
        await states.conversation(user_id="ada", thread_id=name).update(metadata={"release": "1.4"})
    client = browse(lambda _: EVERYTHING)
    assert 'href="/sums?"' in (await client.get("/")).text.partition("<table")[0]
    page = html.unescape((await client.get("/sums")).text)
    rows = {
        (text_in(title), text_in(name)): [text_in(cell) for cell in re.findall(r"<td.*?</td>", row)]
        for title, table in re.findall(r"<h2>(.*?)</h2>(.*?)</section>", page, re.DOTALL)
        for name, row in re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', table, re.DOTALL)
    }
    assert rows["Together", "all"][2:4] == ["8", "8"]
    assert rows["By user_id", "ada"][2] == "7"
    assert rows["By metadata release", "1.4"] == [
        *("900", "80", "2", "2", rows["By metadata release", "1.4"][4], "1")
    ]
    assert rows["By model", "unknown"] == ["900", "80", "1"]
    assert rows["By tool", "refund"][:2] == ["3", "1"]
    await states.conversation(user_id="ada", thread_id="done").update(title="=1+1")
    exported = (await client.get("/list.json", params={"order": "billed"})).json()
    assert len(exported) == 8
    assert (exported[0]["title"], exported[0]["first_question"]) == ("=1+1", None)
    assert (exported[0]["billed"]["input_tokens"], exported[0]["state"]) == (900, "")
    table = list(csv.reader((await client.get("/list.csv?show=waiting")).text.splitlines()))
    assert {"user_id", "path", "billed_input_tokens", "last_call_tokens"} <= set(table[0])
    [waits] = [dict(zip(table[0], row, strict=True)) for row in table[1:]]
    assert (waits["first_question"], waits["user_id"]) == ("Waits?", "ada")
    assert (waits["waiting"], waits["billed_input_tokens"]) == ('["refund"]', "")
    assert (waits["state"], waits["reason"], waits["rated_down"]) == ("waits", "refund", "False")
    assert "'=1+1" in (await client.get("/list.csv")).text


def test_a_price_is_two_numbers(store: ConversationStore) -> None:
    """Those of a million tokens in and out."""
    inspector(store, authorize=lambda _: EVERYTHING, prices={"m": (2.5, 10)})
    for wrong in ({"m": 3}, {"m": (1,)}, {"m": (1, -1)}, {1: (1, 2)}, [("m", 1, 2)]):
        with pytest.raises(InvalidInputError):
            inspector(store, authorize=lambda _: EVERYTHING, prices=wrong)


async def test_the_list_says_what_it_covers_and_links_to_older_ones(
    states: ConversationStore, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form covers a window of the newest, and each link keeps what was asked."""
    monkeypatch.setattr("convstore.conversation.host._LISTED", 4)
    monkeypatch.setattr("convstore.ext.inspector.list_pages._PAGE", 3)
    body = await listed(browse, order="tokens")
    assert "The newest 4 conversations" in text_in(body)
    assert re.search(r"4 conversations read in \d+ ms", text_in(body))
    links = {
        text.strip(ARROWS): link.replace("&amp;", "&")
        for link, text in re.findall(r'<a[^>]* href="/\?([^"]*)">([^<]*)</a>', body)
    }
    assert links["Rows from 4 on"] == "order=tokens&from=3"
    assert len(questions(await listed(browse, order="tokens", **{"from": "3"}))) == 1
    older = await browse(lambda _: EVERYTHING).get("/?" + links["Older conversations"])
    assert "order=tokens" in links["Older conversations"]
    assert len(questions(older.text)) == 3
    assert "Newest</a>" in older.text


async def test_a_state_is_looked_for_in_older_conversations_until_enough_have_it(
    states: ConversationStore, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that waits is not among the newest four; the page says how many it covers."""
    monkeypatch.setattr("convstore.conversation.host._LISTED", 4)
    body = await listed(browse)
    assert buttons(body)[:2] == ["needs attention 3+", "waits"]
    assert "The newest 4 conversations; 3 of these need attention, older ones were not" in text_in(
        body
    )
    body = await listed(browse, show="waiting")
    assert questions(body) == ["Waits?"]
    assert "1 of 8 conversations. Open" in text_in(body)
    assert chips(body)["needs attention"] == 6
    monkeypatch.setattr("convstore.conversation.host._ENOUGH", 2)
    body = await listed(browse, show="attention")
    assert "3 of the newest 4 conversations" in text_in(body)
    assert "Older conversations" in body


async def test_the_way_to_older_ones_in_need_is_there_whatever_is_newest(
    store: ConversationStore, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer ones that are finished hid the button, and with it those that wait."""
    monkeypatch.setattr("convstore.conversation.host._LISTED", 1)
    await store.conversation(user_id="ada", thread_id="old").append(HumanMessage("Old?"))
    new = store.conversation(user_id="ada", thread_id="new")
    await new.append([HumanMessage("New?"), AIMessage("Yes.")])
    body = await listed(browse)
    assert buttons(body)[0] == "needs attention"
    assert "none of these needs attention, older ones were not read" in text_in(body)
    assert questions(await listed(browse, show="attention")) == ["Old?"]
    monkeypatch.undo()
    await store.conversation(user_id="ada", thread_id="old").append(AIMessage("Yes."))
    assert buttons(await listed(browse)) == ["needs attention 0"]


def test_a_key_with_a_value_for_nearly_each_conversation_is_no_filter() -> None:
    """Hundreds of threads that two conversations share hid the users in the menu."""
    rows = [
        ListRow(
            ConversationInfo(
                scope={"user_id": f"u{number % 5}", "thread_id": f"t{number // 2}"},
                conversation_id=f"{number:024}",
            ),
            ConversationEnd(),
        )
        for number in range(300)
    ]
    labels = [label for _, label in scope_choices(rows, ["user_id", "thread_id"])]
    assert labels == [f"user_id = u{number} (60)" for number in range(5)]
    few = scope_choices(rows[:4], ["thread_id"])
    assert [label for _, label in few] == ["thread_id = t0 (2)", "thread_id = t1 (2)"]


async def test_a_question_that_names_a_conversation_ends_with_a_word(
    store: ConversationStore, browse: Browse
) -> None:
    """The pages took up to 160 characters of it; a title without spaces is cut as before."""
    question = (
        "Why does the shop refuse each second card of our customers, and since when does it do so?"
    )
    chat = store.conversation(user_id="ada", thread_id="long")
    await chat.append(HumanMessage(question))
    body = await listed(browse)
    assert questions(body) == [
        "Why does the shop refuse each second card of our customers, and since when does…"
    ]
    assert f'title="{question}"' in body


async def test_a_search_names_what_it_did_not_search_and_offers_to_search_again(
    store: ConversationStore, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an import, while the index of the messages is still made; the link keeps words and scope."""
    chat = store.conversation(user_id="ada", thread_id="t")
    await chat.append(HumanMessage("Seals & whales?"))
    id_ = (await chat.info()).conversation_id
    found = SearchResult(searched=2, incomplete=[{"user_id": "ada", "thread_id": "u"}])
    asked = list[int]()

    async def search(*_: Any, conversations: int, **__: Any) -> SearchResult:
        asked.append(conversations)
        return found

    monkeypatch.setattr(ConversationStore, "search", search)
    query = {"q": "seals & whales", "scope": f"user_id:{id_}"}
    answer = await browse(lambda _: EVERYTHING).get("/search", params=query)
    assert "1 of them was not searched whole, as after an import" in text_in(answer.text)
    link = f"/search?q=seals+%26+whales&scope=user_id%3A{id_}"
    assert f'<a href="{link}">Search again</a>' in html.unescape(answer.text)
    assert "Search older" not in answer.text
    found = SearchResult(searched=500)
    answer = await browse(lambda _: EVERYTHING).get("/search", params=query)
    assert f'<a href="{link}&older=1">Search older ones' in html.unescape(answer.text)
    assert "Search older" not in (await browse().get("/search?q=seals&older=1")).text
    assert asked == [500, 500, 1_000]


@pytest.mark.parametrize("many", [True, False])
async def test_the_list_says_that_more_conversations_may_have_the_words(
    store: ConversationStore, browse: Browse, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """One with the 200 best messages hid all others, and the list named their number as that of all that match."""
    if many:
        monkeypatch.setattr("convstore.ext.inspector.list_selection._MOST_HITS", 3)
    chat = store.conversation(user_id="ada", thread_id="many")
    await chat.append([HumanMessage(f"Whale, whale {number}?") for number in range(3)])
    await store.conversation(user_id="ada", thread_id="one").append(HumanMessage("Whale, squid?"))
    body = text_in(await listed(browse, q="whale"))
    reason = "More conversations may have these words: only those with the 3 best messages"
    assert (reason in body) == many
    assert ("1 of 2 conversations" in body) == many


@pytest.mark.parametrize(
    ("found", "is_older", "reason"),
    [
        (SearchResult(searched=500), False, ""),
        (SearchResult(searched=500), True, "only the newest 500 were searched"),
        (SearchResult(searched=499), True, ""),
        (
            SearchResult(searched=2, incomplete=[{"user_id": "ada"}]),
            False,
            "1 conversation could not be searched whole yet",
        ),
    ],
)
def test_a_search_that_is_not_of_all_has_a_reason(
    found: SearchResult, is_older: bool, reason: str
) -> None:
    """An older page is searched only as far as the newest 500 conversations reach."""
    assert reason_for_more(found, is_older=is_older) == reason
